import com.netflix.appinfo.ApplicationInfoManager;
import com.netflix.appinfo.InstanceInfo.InstanceStatus;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.cloud.client.ServiceInstance;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.context.ConfigurableApplicationContext;

/** Spring Cloud's Eureka client, unmodified, in two applications that look for each other. EUREKA_URL says where. */
public final class SpringEureka {
    private static int checks;

    /** An application that does nothing but be there. Without a scan for components: in the package without a name it would find everybody's. */
    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Application {}

    private static void check(String name, Callable<Void> body) throws Exception {
        body.call();
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

    private static ConfigurableApplicationContext start(String name, int port) {
        return new SpringApplicationBuilder(Application.class)
                .web(WebApplicationType.NONE)
                .logStartupInfo(false)
                .properties(Map.of(
                        "spring.application.name", name,
                        "spring.main.banner-mode", "off",
                        "logging.level.root", "ERROR",
                        "eureka.client.service-url.defaultZone", System.getenv("EUREKA_URL"),
                        "eureka.client.registry-fetch-interval-seconds", "1",
                        "eureka.client.instance-info-replication-interval-seconds", "1",
                        "eureka.instance.non-secure-port", String.valueOf(port),
                        "eureka.instance.metadata-map.color", "blue",
                        "eureka.instance.lease-renewal-interval-in-seconds", "1",
                        "eureka.instance.lease-expiration-duration-in-seconds", "3"))
                .run();
    }

    private static List<ServiceInstance> seen(ConfigurableApplicationContext by, String name) {
        return by.getBean(DiscoveryClient.class).getInstances(name);
    }

    private static int status(String app) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("EUREKA_URL") + "apps/" + app)).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).statusCode();
    }

    public static void main(String[] arguments) throws Exception {
        String salt = UUID.randomUUID().toString().substring(0, 8);
        String shop = "shop-" + salt;
        String till = "till-" + salt;
        ConfigurableApplicationContext one = start(shop, 8001);
        check("registers", () -> {
            until("it is there", () -> status(shop.toUpperCase()) == 200);
            return null;
        });
        ConfigurableApplicationContext other = start(till, 8002);
        check("two find each other, with metadata", () -> {
            until("the first sees the second", () -> seen(one, till).size() == 1);
            until("the second sees the first", () -> seen(other, shop).size() == 1);
            ServiceInstance found = seen(other, shop).get(0);
            expect(found.getPort() == 8001, found.toString());
            expect("blue".equals(found.getMetadata().get("color")), found.getMetadata().toString());
            return null;
        });
        check("is renewed for longer than its lease", () -> {
            long end = System.nanoTime() + 5_000_000_000L;
            while (System.nanoTime() < end) {
                expect(seen(other, shop).size() == 1, "it was lost");
                Thread.sleep(100);
            }
            return null;
        });
        check("a status that changes is seen by the other", () -> {
            // Not OUT_OF_SERVICE, which would not take the place of UP.
            one.getBean(ApplicationInfoManager.class).setInstanceStatus(InstanceStatus.DOWN);
            until("it is down", () -> seen(other, shop).isEmpty());
            one.getBean(ApplicationInfoManager.class).setInstanceStatus(InstanceStatus.UP);
            until("it is back", () -> seen(other, shop).size() == 1);
            return null;
        });
        check("deregisters", () -> {
            one.close();
            until("it is gone", () -> status(shop.toUpperCase()) == 404);
            until("the other does not see it", () -> seen(other, shop).isEmpty());
            return null;
        });
        other.close();
        System.out.println("1.." + checks);
        System.exit(0);
    }
}
