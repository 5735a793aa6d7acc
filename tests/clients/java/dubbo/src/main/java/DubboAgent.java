import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.dubbo.common.config.configcenter.DynamicConfiguration;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ConfigCenterConfig;
import org.apache.dubbo.config.MetadataReportConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.ReferenceConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;
import org.apache.dubbo.config.bootstrap.DubboBootstrap;
import org.apache.dubbo.rpc.model.FrameworkModel;

/**
 * A provider and a consumer of Dubbo, each an application of its own, with Nacos as registry, metadata centre and configuration centre. Addresses (separated
 * by commas) and the namespace are its arguments, the environment has NACOS_PASSWORD. Each line of its input is a call, each line of its output an answer,
 * or an entry that has changed.
 */
public class DubboAgent {
    private static final Gson JSON = new Gson().newBuilder().serializeNulls().create();
    private static final PrintStream OUT = System.out;

    /** The service. */
    public interface Greeter {
        String greet(String name);
    }

    private static synchronized void say(Map<String, Object> fields) {
        OUT.println(JSON.toJson(fields));
    }

    private static DubboBootstrap application(String name, String address) {
        ApplicationConfig application = new ApplicationConfig(name);
        application.setQosEnable(false);
        // What a consumer knows of a provider comes from the metadata centre.
        application.setMetadataType("remote");
        ConfigCenterConfig configuration = new ConfigCenterConfig();
        configuration.setAddress(address);
        RegistryConfig registry = new RegistryConfig(address);
        registry.setRegisterMode("instance");
        return DubboBootstrap.newInstance(new FrameworkModel())
                .application(application)
                .configCenter(configuration)
                .metadataReport(new MetadataReportConfig(address))
                .registry(registry);
    }

    public static void main(String[] arguments) throws Exception {
        // The log is not an answer.
        System.setOut(System.err);
        String[] addresses = arguments[0].split(",", 2);
        String address = "nacos://" + addresses[0] + "?backup=" + addresses[1] + "&namespace=" + arguments[1]
                + "&username=anybody&password=" + System.getenv("NACOS_PASSWORD");

        ServiceConfig<Greeter> service = new ServiceConfig<>();
        service.setInterface(Greeter.class);
        service.setRef(name -> "hello, " + name);
        ProtocolConfig protocol = new ProtocolConfig("dubbo", -1);
        protocol.setHost("127.0.0.1");
        application("shop", address).protocol(protocol).service(service).start();

        ReferenceConfig<Greeter> reference = new ReferenceConfig<>();
        reference.setInterface(Greeter.class);
        reference.setCheck(false);
        DubboBootstrap consumer = application("web", address).reference(reference).start();
        DynamicConfiguration configuration =
                consumer.getApplicationModel().modelEnvironment().getDynamicConfiguration().orElseThrow();
        Greeter greeter = reference.get();
        say(Map.of("ready", true));

        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String input = lines.readLine(); input != null; input = lines.readLine()) {
            JsonObject asked = JSON.fromJson(input, JsonObject.class);
            Map<String, Object> fields = new HashMap<>();
            try {
                switch (asked.get("do").getAsString()) {
                    case "get" -> fields.put("got", configuration.getConfig("app", "g"));
                    case "listen" -> {
                        configuration.addListener("app", "g",
                                event -> say(Map.of("heard", "app", "content", event.getContent())));
                        fields.put("listening", true);
                    }
                    case "call" -> fields.put("called", greeter.greet("you"));
                    // As an application reads it: dubbo.properties of the group dubbo.
                    case "property" -> fields.put("property",
                            consumer.getApplicationModel().modelEnvironment().getConfiguration().getString("shop.motto"));
                    default -> fields.put("refused", input);
                }
            } catch (Exception error) {
                fields.put("refused", error.toString());
            }
            say(fields);
        }
        System.exit(0);
    }
}
