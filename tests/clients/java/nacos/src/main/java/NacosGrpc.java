import com.alibaba.nacos.api.PropertyKeyConst;
import com.alibaba.nacos.api.naming.NamingFactory;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.listener.NamingEvent;
import com.alibaba.nacos.api.naming.pojo.Instance;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicReference;

/** Nacos' own client (gRPC) at its usual work. NACOS_ADDRESS says where, WRITER is a token of the namespaces tenant-a and tenant-b. */
public final class NacosGrpc {
    private static int done;

    private interface Check {
        void run() throws Exception;
    }

    private static void check(String name, Check check) throws Exception {
        check.run();
        done++;
        System.out.println("ok " + done + " - " + name);
    }

    private static void until(String what, Callable<Boolean> condition) throws Exception {
        for (int turn = 0; turn < 1000; turn++) {
            if (condition.call()) {
                return;
            }
            Thread.sleep(20);
        }
        throw new AssertionError(what);
    }

    private static NamingService client(String namespace) throws Exception {
        Properties properties = new Properties();
        properties.put(PropertyKeyConst.SERVER_ADDR, System.getenv("NACOS_ADDRESS"));
        properties.put(PropertyKeyConst.NAMESPACE, namespace);
        properties.put(PropertyKeyConst.USERNAME, "anybody");
        properties.put(PropertyKeyConst.PASSWORD, System.getenv("WRITER"));
        return NamingFactory.createNamingService(properties);
    }

    private static Instance instance(String ip) {
        Instance instance = new Instance();
        instance.setIp(ip);
        instance.setPort(80);
        return instance;
    }

    /** What the server says now, past the client's memory. */
    private static String ips(NamingService client, String service) throws Exception {
        List<Instance> found = client.getAllInstances(service, false);
        return found.stream().map(Instance::getIp).sorted().toList().toString();
    }

    public static void main(String[] arguments) throws Exception {
        NamingService a = client("tenant-a");
        NamingService other = client("tenant-a");
        NamingService b = client("tenant-b");
        check("the server is up", () -> until("up", () -> a.getServerStatus().equals("UP")));
        check("namespaces are apart", () -> {
            Instance one = instance("10.0.0.1");
            one.setWeight(2.5);
            one.setMetadata(Map.of("zone", "a"));
            a.registerInstance("shop", one);
            b.registerInstance("shop", instance("10.0.0.2"));
            until("one of its own", () -> ips(a, "shop").equals("[10.0.0.1]") && ips(b, "shop").equals("[10.0.0.2]"));
            Instance found = a.getAllInstances("shop", false).get(0);
            if (found.getWeight() != 2.5 || !found.getMetadata().equals(Map.of("zone", "a")) || !found.isEphemeral()) {
                throw new AssertionError(found.toString());
            }
        });
        check("a subscriber hears of changes, and that nobody is left", () -> {
            AtomicReference<String> heard = new AtomicReference<>("");
            other.subscribe("shop", event -> heard.set(
                ((NamingEvent) event).getInstances().stream().map(Instance::getIp).sorted().toList().toString()));
            until("the first look", () -> heard.get().equals("[10.0.0.1]"));
            other.registerInstance("shop", instance("10.0.0.3"));
            until("one more", () -> heard.get().equals("[10.0.0.1, 10.0.0.3]"));
            other.deregisterInstance("shop", "10.0.0.3", 80);
            until("one less", () -> heard.get().equals("[10.0.0.1]"));
            a.shutDown();
            until("its connection was all it lived by", () -> heard.get().equals("[]"));
        });
        check("a batch is all there is", () -> {
            other.batchRegisterInstance("many", "g", List.of(instance("10.0.1.1"), instance("10.0.1.2")));
            until("two", () -> other.getAllInstances("many", "g", false).size() == 2);
            other.batchDeregisterInstance("many", "g", List.of(instance("10.0.1.1")));
            until("one", () -> other.getAllInstances("many", "g", false).size() == 1);
        });
        check("a persistent instance stays", () -> {
            Instance stays = instance("10.0.2.1");
            stays.setEphemeral(false);
            other.registerInstance("stays", stays);
            other.registerInstance("goes", instance("10.0.2.2"));
            other.shutDown();
            NamingService later = client("tenant-a");
            until("what was ephemeral is gone", () -> ips(later, "goes").equals("[]"));
            if (!ips(later, "stays").equals("[10.0.2.1]")) {
                throw new AssertionError(ips(later, "stays"));
            }
            if (!later.getServicesOfServer(1, 100).getData().contains("stays")) {
                throw new AssertionError("the list of services");
            }
            later.deregisterInstance("stays", stays);
            until("it is gone", () -> ips(later, "stays").equals("[]"));
            later.shutDown();
        });
        b.shutDown();
        System.out.println("1.." + done);
        System.exit(0);
    }
}
