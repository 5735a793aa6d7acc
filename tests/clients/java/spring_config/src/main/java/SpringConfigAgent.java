import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.cloud.context.environment.EnvironmentChangeEvent;
import org.springframework.context.ApplicationListener;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.core.env.Environment;

/**
 * An application of Spring Cloud Alibaba that imports an entry of Nacos (spring.config.import), and is refreshed when it changes. Addresses (separated by
 * commas) and the namespace are its arguments, the environment has NACOS_PASSWORD. Each line of its input is a call, each line of its output an answer, or
 * the entry after a refresh. An entry here is one line: "a: 1" is the property a, "without 0" the property without.
 */
@EnableAutoConfiguration
public class SpringConfigAgent {
    private static final Gson JSON = new Gson().newBuilder().serializeNulls().create();
    private static final PrintStream OUT = System.out;

    private static synchronized void say(Map<String, Object> fields) {
        OUT.println(JSON.toJson(fields));
    }

    private static String line(Environment environment, String key) {
        String value = environment.getProperty(key);
        return value == null ? null : key.equals("a") ? "a: " + value : key + " " + value;
    }

    private static String content(Environment environment) {
        String line = line(environment, "without");
        return line == null ? line(environment, "a") : line;
    }

    public static void main(String[] arguments) throws Exception {
        // The log is not an answer.
        System.setOut(System.err);
        String[] settings = {
            "--spring.config.import=optional:nacos:app?group=g&refreshEnabled=true",
            "--spring.cloud.nacos.config.server-addr=" + arguments[0],
            "--spring.cloud.nacos.config.namespace=" + arguments[1],
            "--spring.cloud.nacos.config.username=anybody",
            "--spring.cloud.nacos.config.password=" + System.getenv("NACOS_PASSWORD"),
            "--spring.main.banner-mode=off",
        };
        ConfigurableApplicationContext context =
                new SpringApplicationBuilder(SpringConfigAgent.class).web(WebApplicationType.NONE).run(settings);
        context.addApplicationListener((ApplicationListener<EnvironmentChangeEvent>) event -> {
            for (String key : event.getKeys()) {
                String line = line(context.getEnvironment(), key);
                if (line != null) {
                    say(Map.of("heard", "app", "content", line));
                }
            }
        });
        say(Map.of("ready", true));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String input = lines.readLine(); input != null; input = lines.readLine()) {
            Map<String, Object> fields = new HashMap<>();
            switch (JSON.fromJson(input, JsonObject.class).get("do").getAsString()) {
                case "get" -> fields.put("got", content(context.getEnvironment()));
                default -> fields.put("refused", input);
            }
            say(fields);
        }
        System.exit(0);
    }
}
