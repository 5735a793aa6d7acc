import com.tencent.polaris.api.core.ConsumerAPI;
import com.tencent.polaris.api.core.ProviderAPI;
import com.tencent.polaris.api.exception.PolarisException;
import com.tencent.polaris.api.pojo.Instance;
import com.tencent.polaris.api.rpc.GetAllInstancesRequest;
import com.tencent.polaris.api.rpc.GetHealthyInstancesRequest;
import com.tencent.polaris.api.rpc.InstanceDeregisterRequest;
import com.tencent.polaris.api.rpc.InstanceHeartbeatRequest;
import com.tencent.polaris.api.rpc.InstanceRegisterRequest;
import com.tencent.polaris.client.api.SDKContext;
import com.tencent.polaris.factory.ConfigAPIFactory;
import com.tencent.polaris.factory.api.DiscoveryAPIFactory;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;

/** polaris-java, unmodified, at its usual work. GRPC_ADDRESS says where. */
public final class Polaris {
    private static final String NAMESPACE = "default";
    private static int checks;

    static void check(String name, Callable<Void> body) throws Exception {
        body.call();
        checks++;
        System.out.println("ok " + checks + " - " + name);
    }

    static void expect(boolean good, String what) {
        if (!good) {
            throw new AssertionError(what);
        }
    }

    static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + 30_000_000_000L;
        while (!condition.call()) {
            expect(System.nanoTime() < end, what);
            Thread.sleep(50);
        }
    }

    private static InstanceRegisterRequest registration(String service, int port) {
        InstanceRegisterRequest it = new InstanceRegisterRequest();
        it.setNamespace(NAMESPACE);
        it.setService(service);
        it.setHost("127.0.0.1");
        it.setPort(port);
        it.setWeight(80);
        it.setVersion("1.2");
        it.setMetadata(Map.of("color", "blue"));
        return it;
    }

    private static Instance[] all(ConsumerAPI consumer, String service) {
        GetAllInstancesRequest it = new GetAllInstancesRequest();
        it.setNamespace(NAMESPACE);
        it.setService(service);
        return consumer.getAllInstance(it).getInstances();
    }

    private static Instance[] healthy(ConsumerAPI consumer, String service) {
        GetHealthyInstancesRequest it = new GetHealthyInstancesRequest();
        it.setNamespace(NAMESPACE);
        it.setService(service);
        return consumer.getHealthyInstances(it).getInstances();
    }

    public static void main(String[] arguments) throws Exception {
        SDKContext context = SDKContext.initContextByConfig(
                ConfigAPIFactory.createConfigurationByAddress(System.getenv("GRPC_ADDRESS")));
        ProviderAPI provider = DiscoveryAPIFactory.createProviderAPIByContext(context);
        ConsumerAPI consumer = DiscoveryAPIFactory.createConsumerAPIByContext(context);
        String service = "java-" + UUID.randomUUID();
        check("registers, and is found", () -> {
            expect(!provider.register(registration(service, 8001)).getInstanceId().isEmpty(), "an id");
            Instance[] found = all(consumer, service);
            expect(found.length == 1, "one instance, not " + found.length);
            expect(found[0].getPort() == 8001 && found[0].getWeight() == 80 && "1.2".equals(found[0].getVersion()),
                    found[0].toString());
            expect("blue".equals(found[0].getMetadata().get("color")), "its metadata");
            return null;
        });
        check("hears of another one", () -> {
            provider.register(registration(service, 8002));
            until("the second is seen", () -> all(consumer, service).length == 2);
            return null;
        });
        check("lives as long as it says so, and expires", () -> {
            InstanceRegisterRequest beating = registration(service, 8003);
            beating.setTtl(1);
            provider.register(beating);
            InstanceHeartbeatRequest beat = new InstanceHeartbeatRequest();
            beat.setNamespace(NAMESPACE);
            beat.setService(service);
            beat.setHost("127.0.0.1");
            beat.setPort(8003);
            provider.heartbeat(beat);
            until("the third is seen", () -> healthy(consumer, service).length == 3);
            until("it expires", () -> healthy(consumer, service).length == 2);
            provider.heartbeat(beat);
            until("it is back", () -> healthy(consumer, service).length == 3);
            return null;
        });
        check("a stranger's heartbeat is refused", () -> {
            InstanceHeartbeatRequest beat = new InstanceHeartbeatRequest();
            beat.setNamespace(NAMESPACE);
            beat.setService(service);
            beat.setHost("127.0.0.1");
            beat.setPort(9999);
            try {
                provider.heartbeat(beat);
            } catch (PolarisException expected) {
                return null;
            }
            throw new AssertionError("it was taken");
        });
        check("deregisters", () -> {
            InstanceDeregisterRequest it = new InstanceDeregisterRequest();
            it.setNamespace(NAMESPACE);
            it.setService(service);
            it.setHost("127.0.0.1");
            it.setPort(8001);
            provider.deRegister(it);
            until("it is gone", () -> all(consumer, service).length == 2);
            return null;
        });
        Rules rules = new Rules(context);
        rules.routing();
        rules.limits();
        rules.breakers();
        System.out.println("1.." + checks);
        context.close();
        // Its threads are not all daemons.
        System.exit(0);
    }
}
