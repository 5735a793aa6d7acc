import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Callable;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.actuate.health.Health;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.cloud.client.ServiceInstance;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.cloud.consul.discovery.TtlScheduler;
import org.springframework.cloud.consul.serviceregistry.ConsulRegistration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;

/**
 * Spring Cloud Consul, unmodified: applications that register, look for each other and read their configuration. CONSUL_PORT says where; TENANT_A and
 * TENANT_B are tokens that may write in one namespace each. Its client has no setting for a namespace: the token decides.
 */
public final class SpringConsul {
    private static final String URL = "http://127.0.0.1:" + System.getenv("CONSUL_PORT");
    private static final String TENANT_A = System.getenv("TENANT_A");
    private static final String TENANT_B = System.getenv("TENANT_B");
    private static final String SALT = UUID.randomUUID().toString().substring(0, 8);
    private static final String SHOP = "shop-" + SALT;
    private static final String TILL = "till-" + SALT;
    private static int checks;
    private static int instances;

    /** How an application says that it is. */
    static final class Toggle implements HealthIndicator {
        private volatile boolean up = true;

        @Override
        public Health health() {
            return up ? Health.up().build() : Health.down().build();
        }
    }

    /** An application that does nothing but be there. Without a scan for components: in the package without a name it would find everybody's. */
    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Application {
        @Bean
        Toggle toggle() {
            return new Toggle();
        }
    }

    private interface Body {
        void run() throws Exception;
    }

    private static void check(String name, Body body) throws Exception {
        body.run();
        checks++;
        System.out.println("ok " + checks + " - " + name);
    }

    private static void expect(boolean good, String what) {
        if (!good) {
            throw new AssertionError(what);
        }
    }

    private static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + 30_000_000_000L;
        while (!condition.call()) {
            expect(System.nanoTime() < end, what);
            Thread.sleep(50);
        }
    }

    /** Starts an application of a tenant; gives it settings beyond the usual ones. */
    private static ConfigurableApplicationContext start(String name, String token, String... more) {
        List<String> settings = new ArrayList<>(List.of(
                "--spring.application.name=" + name,
                "--server.port=0",
                // By itself it takes the port that was set.
                "--spring.cloud.consul.discovery.instance-id=" + name + "-" + ++instances,
                "--server.address=127.0.0.1",
                "--spring.config.import=consul:",
                "--spring.cloud.consul.host=127.0.0.1",
                "--spring.cloud.consul.port=" + System.getenv("CONSUL_PORT"),
                "--spring.cloud.consul.token=" + token,
                "--spring.cloud.consul.config.acl-token=" + token,
                "--spring.cloud.consul.config.watch.delay=100",
                // It watches its folders one after the other, each for so many seconds.
                "--spring.cloud.consul.config.watch.wait-time=1",
                // It asks for the list of services without any token. The registry tells that nobody, and the application would be "DOWN".
                "--spring.cloud.consul.health-indicator.include-services-query=false",
                "--spring.cloud.consul.discovery.acl-token=" + token,
                "--spring.cloud.consul.discovery.ip-address=127.0.0.1",
                "--spring.cloud.consul.discovery.prefer-ip-address=true",
                "--spring.cloud.consul.discovery.metadata.color=" + name + "-color",
                "--spring.cloud.consul.discovery.query-passing=true"));
        settings.addAll(List.of(more));
        return new SpringApplicationBuilder(Application.class)
                .logStartupInfo(false)
                .properties("spring.main.banner-mode=off", "logging.level.root=OFF")
                .run(settings.toArray(String[]::new));
    }

    private static String[] heartbeats() {
        return new String[] {
            "--spring.cloud.consul.discovery.heartbeat.enabled=true",
            "--spring.cloud.consul.discovery.heartbeat.ttl=3s",
            "--spring.cloud.consul.discovery.heartbeat.reregister-service-on-failure=true",
        };
    }

    private static String[] probes() {
        return new String[] {
            "--spring.cloud.consul.discovery.health-check-interval=1s",
            "--spring.cloud.consul.discovery.health-check-timeout=5s",
            "--spring.cloud.consul.discovery.health-check-critical-timeout=60s",
        };
    }

    private static List<ServiceInstance> seen(ConfigurableApplicationContext by, String name) {
        return by.getBean(DiscoveryClient.class).getInstances(name);
    }

    private static void until(ConfigurableApplicationContext by, String name, int... ports) throws Exception {
        List<Integer> wanted = java.util.Arrays.stream(ports).sorted().boxed().toList();
        until(name + " to be at " + wanted, () -> {
            return seen(by, name).stream().map(ServiceInstance::getPort).sorted().toList().equals(wanted);
        });
    }

    private static int port(ConfigurableApplicationContext application) {
        return Integer.parseInt(application.getEnvironment().getProperty("local.server.port"));
    }

    private static String id(ConfigurableApplicationContext application) {
        return application.getBean(ConsulRegistration.class).getInstanceId();
    }

    private static HttpResponse<String> put(String token, String path, String body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(URL + path))
                .header("X-Consul-Token", token)
                .PUT(HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        expect(answer.statusCode() == 200, path + ": " + answer.statusCode() + " " + answer.body());
        return answer;
    }

    public static void main(String[] arguments) {
        try {
            all();
            System.exit(0);
        } catch (Throwable failed) {
            failed.printStackTrace();
            // The applications' threads would go on.
            Runtime.getRuntime().halt(1);
        }
    }

    private static void all() throws Exception {
        put(TENANT_A, "/v1/kv/config/" + SHOP + "/greeting", "hello of a");
        put(TENANT_B, "/v1/kv/config/" + SHOP + "/greeting", "hello of b");
        ConfigurableApplicationContext shop = start(SHOP, TENANT_A, heartbeats());
        ConfigurableApplicationContext second = start(SHOP, TENANT_A, probes());
        ConfigurableApplicationContext till = start(TILL, TENANT_A, probes());
        ConfigurableApplicationContext other = start(SHOP, TENANT_B, heartbeats());
        check("two applications find each other, with metadata", () -> {
            until(till, SHOP, port(shop), port(second));
            until(shop, TILL, port(till));
            ServiceInstance found = seen(shop, TILL).get(0);
            expect("127.0.0.1".equals(found.getHost()), found.toString());
            expect((TILL + "-color").equals(found.getMetadata().get("color")), found.getMetadata().toString());
        });
        check("tenants do not see each other", () -> {
            until(other, SHOP, port(other));
            expect(seen(other, TILL).isEmpty(), "the other tenant's till");
            List<String> names = other.getBean(DiscoveryClient.class).getServices();
            expect(names.contains(SHOP) && !names.contains(TILL), names.toString());
            expect(till.getBean(DiscoveryClient.class).getServices().containsAll(List.of(SHOP, TILL)), "its own");
            expect("hello of a".equals(shop.getEnvironment().getProperty("greeting")), "a's configuration");
            expect("hello of b".equals(other.getEnvironment().getProperty("greeting")), "b's configuration");
        });
        check("a key that changes is seen by the tenant's applications", () -> {
            put(TENANT_A, "/v1/kv/config/" + SHOP + "/greeting", "good bye");
            for (ConfigurableApplicationContext application : List.of(shop, second)) {
                until("the new value", () -> "good bye".equals(application.getEnvironment().getProperty("greeting")));
            }
            expect("hello of b".equals(other.getEnvironment().getProperty("greeting")), "b's configuration");
        });
        check("an instance that lives by heartbeats is there for longer than its time to live", () -> {
            long end = System.nanoTime() + 8_000_000_000L;
            while (System.nanoTime() < end) {
                List<ServiceInstance> found = seen(till, SHOP);
                expect(found.stream().anyMatch(instance -> instance.getPort() == port(shop)), found.toString());
                Thread.sleep(100);
            }
        });
        check("whoever says that it is not well vanishes, and comes back: by heartbeats", () -> {
            shop.getBean(Toggle.class).up = false;
            until(till, SHOP, port(second));
            shop.getBean(Toggle.class).up = true;
            until(till, SHOP, port(shop), port(second));
        });
        check("the same by a health check over HTTP", () -> {
            second.getBean(Toggle.class).up = false;
            until(till, SHOP, port(shop));
            second.getBean(Toggle.class).up = true;
            until(till, SHOP, port(shop), port(second));
        });
        check("whoever was removed registers again with its next heartbeat", () -> {
            put(TENANT_A, "/v1/agent/service/deregister/" + id(shop), "");
            until(till, SHOP, port(second));
            until(till, SHOP, port(shop), port(second));
        });
        check("without heartbeats it vanishes", () -> {
            shop.getBean(TtlScheduler.class).remove(id(shop));
            until(till, SHOP, port(second));
        });
        check("whoever ends deregisters", () -> {
            second.close();
            until(till, SHOP);
        });
        check("the other tenant's was there all the time", () -> until(other, SHOP, port(other)));
        for (ConfigurableApplicationContext application : List.of(shop, till, other)) {
            application.close();
        }
        System.out.println("1.." + checks);
    }
}
