import com.alibaba.nacos.api.NacosFactory;
import com.alibaba.nacos.api.PropertyKeyConst;
import com.alibaba.nacos.api.config.ConfigService;
import com.alibaba.nacos.api.config.listener.Listener;
import com.alibaba.nacos.api.naming.NamingFactory;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.listener.NamingEvent;
import com.alibaba.nacos.api.naming.pojo.Instance;
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Executor;

/**
 * Nacos' own client, of any version, that does as it is told. Addresses (separated by commas) and the namespace are its arguments, the environment has
 * NACOS_PASSWORD. Each line of its input is a call, each line of its output an answer, or what a subscription brought.
 */
public final class NacosAgent {
    private static final Gson JSON = new Gson();

    private static synchronized void say(Map<String, Object> fields) {
        System.out.println(JSON.toJson(fields));
    }

    /** Address, health and metadata of each. */
    private static Object told(List<Instance> instances) {
        return instances.stream().sorted(Comparator.comparing(Instance::getIp))
            .map(it -> List.of(it.getIp(), it.isHealthy(), it.getMetadata())).toList();
    }

    private static ConfigService configs;

    private static void carryOutConfig(Properties properties, JsonObject asked) throws Exception {
        if (configs == null) {
            configs = NacosFactory.createConfigService(properties);
        }
        String id = asked.get("service").getAsString();
        switch (asked.get("do").getAsString()) {
            case "publish" -> say(Map.of("published", configs.publishConfig(id, "g", asked.get("content").getAsString())));
            case "get" -> {
                Map<String, Object> fields = new HashMap<>();
                fields.put("got", configs.getConfig(id, "g", 3000));
                synchronized (NacosAgent.class) {
                    System.out.println(new com.google.gson.GsonBuilder().serializeNulls().create().toJson(fields));
                }
            }
            case "remove" -> say(Map.of("removed", configs.removeConfig(id, "g")));
            default -> {
                configs.addListener(id, "g", new Listener() {
                    @Override
                    public Executor getExecutor() {
                        return null;
                    }

                    @Override
                    public void receiveConfigInfo(String content) {
                        say(Map.of("heard", id, "content", content == null ? "" : content));
                    }
                });
                say(Map.of("listening", id));
            }
        }
    }

    private static void carryOut(NamingService client, JsonObject asked) throws Exception {
        String service = asked.get("service").getAsString();
        switch (asked.get("do").getAsString()) {
            case "register" -> {
                Instance instance = new Instance();
                instance.setIp(asked.get("ip").getAsString());
                instance.setPort(80);
                if (asked.has("zone")) {
                    instance.setMetadata(Map.of("zone", asked.get("zone").getAsString()));
                }
                client.registerInstance(service, instance);
                say(Map.of("registered", true));
            }
            case "deregister" -> {
                client.deregisterInstance(service, asked.get("ip").getAsString(), 80);
                say(Map.of("deregistered", true));
            }
            // What the server says now, past the client's memory.
            case "list" -> say(Map.of("listed", told(client.getAllInstances(service, false))));
            case "services" -> say(Map.of("services", client.getServicesOfServer(1, 100).getData()));
            case "subscribe" -> {
                client.subscribe(service,
                    event -> say(Map.of("heard", service, "hosts", told(((NamingEvent) event).getInstances()))));
                say(Map.of("subscribed", service));
            }
            default -> throw new IllegalArgumentException(asked.toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put(PropertyKeyConst.SERVER_ADDR, arguments[0]);
        properties.put(PropertyKeyConst.NAMESPACE, arguments[1]);
        properties.put(PropertyKeyConst.USERNAME, "anybody");
        properties.put(PropertyKeyConst.PASSWORD, System.getenv("NACOS_PASSWORD"));
        NamingService client = NamingFactory.createNamingService(properties);
        say(Map.of("ready", true));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                JsonObject asked = JSON.fromJson(line, JsonObject.class);
                if (List.of("publish", "get", "remove", "listen").contains(asked.get("do").getAsString())) {
                    carryOutConfig(properties, asked);
                } else {
                    carryOut(client, asked);
                }
            } catch (Exception refused) {
                say(Map.of("refused", refused.toString()));
            }
        }
        System.exit(0);
    }
}
