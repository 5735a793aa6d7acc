import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.tencent.polaris.configuration.api.core.ConfigFile;
import com.tencent.polaris.configuration.api.core.ConfigFileService;
import com.tencent.polaris.configuration.factory.ConfigFileServiceFactory;
import com.tencent.polaris.factory.ConfigAPIFactory;
import com.tencent.polaris.factory.config.ConfigurationImpl;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * polaris-java's client of configuration files that does as it is told. Addresses (separated by commas) and the namespace are its arguments. Each line of
 * its input is a call, each line of its output an answer, or what a listener was told.
 */
public final class PolarisConfigAgent {
    private static final Gson JSON = new Gson().newBuilder().serializeNulls().create();

    private static synchronized void say(Map<String, Object> fields) {
        System.out.println(JSON.toJson(fields));
    }

    private static void carryOut(ConfigFileService client, String namespace, JsonObject asked) {
        String id = asked.get("service").getAsString();
        ConfigFile file = client.getConfigFile(namespace, "g", id);
        switch (asked.get("do").getAsString()) {
            case "get" -> {
                Map<String, Object> fields = new HashMap<>();
                fields.put("got", file.getContent());
                say(fields);
            }
            case "listen" -> {
                file.addChangeListener(event -> say(Map.of("heard", id, "content", event.getNewValue())));
                say(Map.of("listening", id));
            }
            default -> throw new IllegalArgumentException(asked.toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<String> addresses = List.of(arguments[0].split(","));
        ConfigurationImpl configuration = (ConfigurationImpl) ConfigAPIFactory.createConfigurationByAddress(addresses);
        configuration.getConfigFile().getServerConnector().setAddresses(addresses);
        ConfigFileService client = ConfigFileServiceFactory.createConfigFileService(configuration);
        say(Map.of("ready", true));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                carryOut(client, arguments[1], JSON.fromJson(line, JsonObject.class));
            } catch (RuntimeException refused) {
                say(Map.of("refused", refused.toString()));
            }
        }
        System.exit(0);
    }
}
