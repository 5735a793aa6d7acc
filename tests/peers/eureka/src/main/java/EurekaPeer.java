import java.util.Map;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.cloud.netflix.eureka.server.EnableEurekaServer;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.security.config.Customizer;
import org.springframework.security.config.annotation.web.builders.HttpSecurity;
import org.springframework.security.web.SecurityFilterChain;

/**
 * Eureka's own server, alone, on a port of the loopback that the system chooses; the line "listening PORT" says which. It ends with its standard input.
 */
public final class EurekaPeer {
    /** Without a scan for components: in the package without a name it would find everybody's. */
    @SpringBootConfiguration
    @EnableAutoConfiguration
    @EnableEurekaServer
    static class Application {
        /** Basic authentication, if a password is configured. */
        @Bean
        SecurityFilterChain security(HttpSecurity http, @Value("${spring.security.user.password:}") String password) throws Exception {
            http.csrf(csrf -> csrf.disable());
            if (password.isEmpty()) {
                http.authorizeHttpRequests(requests -> requests.anyRequest().permitAll());
            } else {
                http.authorizeHttpRequests(requests -> requests.anyRequest().authenticated()).httpBasic(Customizer.withDefaults());
            }
            return http.build();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ConfigurableApplicationContext context = new SpringApplicationBuilder(Application.class)
                .logStartupInfo(false)
                .properties(Map.ofEntries(
                        Map.entry("server.address", "127.0.0.1"),
                        Map.entry("server.port", "0"),
                        Map.entry("spring.main.banner-mode", "off"),
                        Map.entry("logging.level.root", "WARN"),
                        Map.entry("eureka.dashboard.enabled", "false"),
                        // A generated password would be written there.
                        Map.entry("logging.level.org.springframework.boot.autoconfigure.security", "ERROR"),
                        // No other server, and none to wait for.
                        Map.entry("eureka.client.register-with-eureka", "false"),
                        Map.entry("eureka.client.fetch-registry", "false"),
                        Map.entry("eureka.client.service-url.defaultZone", "http://127.0.0.1/eureka/"),
                        Map.entry("eureka.server.my-url", "http://127.0.0.1/eureka/"),
                        Map.entry("eureka.server.wait-time-in-ms-when-sync-empty", "0"),
                        // Every answer is made when it is asked for.
                        Map.entry("eureka.server.use-read-only-response-cache", "false"),
                        Map.entry("eureka.server.response-cache-auto-expiration-in-seconds", "0"),
                        Map.entry("eureka.server.enable-self-preservation", "false"),
                        Map.entry("eureka.server.eviction-interval-timer-in-ms", "86400000")))
                .run(arguments);
        System.out.println("listening " + context.getEnvironment().getProperty("local.server.port"));
        while (System.in.read() >= 0) {
            // Nothing is said there.
        }
        context.close();
        System.exit(0);
    }
}
