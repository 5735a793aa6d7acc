import com.tencent.polaris.api.core.ConsumerAPI;
import com.tencent.polaris.api.core.ProviderAPI;
import com.tencent.polaris.api.plugin.circuitbreaker.ResourceStat;
import com.tencent.polaris.api.plugin.circuitbreaker.entity.Resource;
import com.tencent.polaris.api.plugin.circuitbreaker.entity.ServiceResource;
import com.tencent.polaris.api.pojo.Instance;
import com.tencent.polaris.api.pojo.RetStatus;
import com.tencent.polaris.api.pojo.ServiceInfo;
import com.tencent.polaris.api.pojo.ServiceKey;
import com.tencent.polaris.api.rpc.GetInstancesRequest;
import com.tencent.polaris.api.rpc.InstanceRegisterRequest;
import com.tencent.polaris.circuitbreak.api.CircuitBreakAPI;
import com.tencent.polaris.circuitbreak.factory.CircuitBreakAPIFactory;
import com.tencent.polaris.client.api.SDKContext;
import com.tencent.polaris.factory.api.DiscoveryAPIFactory;
import com.tencent.polaris.ratelimit.api.core.LimitAPI;
import com.tencent.polaris.ratelimit.api.rpc.QuotaRequest;
import com.tencent.polaris.ratelimit.api.rpc.QuotaResultCode;
import com.tencent.polaris.ratelimit.factory.LimitAPIFactory;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Arrays;
import java.util.Map;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** What polaris-java makes of rules: written over HTTP as administrators do, and changed and removed while it runs. */
final class Rules {
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static final Pattern ID = Pattern.compile("\"id\":\"([0-9a-f]{32})\"");
    private static final String HERE = "default";
    private static final String ELSEWHERE = "elsewhere";
    private static final String LIMITS = "v1/ratelimits";
    private static final String ROUTINGS = "v2/routings";
    private static final String BREAKERS = "v1/circuitbreaker/rules";

    private final String service = "ruled-" + UUID.randomUUID();
    private final ProviderAPI provider;
    private final ConsumerAPI consumer;
    private final LimitAPI limits;
    private final CircuitBreakAPI breakers;

    Rules(SDKContext context) {
        provider = DiscoveryAPIFactory.createProviderAPIByContext(context);
        consumer = DiscoveryAPIFactory.createConsumerAPIByContext(context);
        limits = LimitAPIFactory.createLimitAPIByContext(context);
        breakers = CircuitBreakAPIFactory.createCircuitBreakAPIByContext(context);
    }

    /** The id of the rule. */
    private static String send(String method, String path, String rule) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + System.getenv("GRPC_ADDRESS") + "/naming/" + path))
                .method(method, HttpRequest.BodyPublishers.ofString("[" + rule + "]")).build();
        HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        Polaris.expect(answer.statusCode() == 200, method + " " + path + ": " + answer.body());
        Matcher id = ID.matcher(answer.body());
        return id.find() ? id.group(1) : "";
    }

    private static void remove(String path, String id) throws Exception {
        send("POST", path + "/delete", "{\"id\": \"" + id + "\"}");
    }

    private void instances(String namespace, int first) {
        for (String version : new String[] {"1", "2"}) {
            InstanceRegisterRequest it = new InstanceRegisterRequest();
            it.setNamespace(namespace);
            it.setService(service);
            it.setHost("127.0.0.1");
            it.setPort(first++);
            it.setMetadata(Map.of("version", version));
            provider.register(it);
        }
    }

    /** Versions of the instances that a call may go to. */
    private String versions(String caller, String namespace, Map<String, String> labels) {
        ServiceInfo source = new ServiceInfo();
        source.setNamespace(HERE);
        source.setService(caller);
        source.setMetadata(labels);
        GetInstancesRequest it = new GetInstancesRequest();
        it.setNamespace(namespace);
        it.setService(service);
        it.setServiceInfo(source);
        Instance[] found = consumer.getInstances(it).getInstances();
        return Arrays.stream(found).map(one -> one.getMetadata().get("version")).sorted().collect(Collectors.joining(","));
    }

    private String routing(String id, String from, String namespace, String version) {
        return String.format("{\"id\": \"%s\", \"name\": \"to one version\", \"namespace\": \"%s\", \"enable\": true,"
                + " \"routing_policy\": \"RulePolicy\", \"routing_config\": {\"@type\": \"type.googleapis.com/v1.RuleRoutingConfig\","
                + " \"rules\": [{\"name\": \"vip\","
                + " \"sources\": [{\"namespace\": \"%s\", \"service\": \"%s\", \"arguments\": [{\"type\": \"CUSTOM\", \"key\": \"user\","
                + " \"value\": {\"type\": \"EXACT\", \"value\": \"vip\"}}]}],"
                + " \"destinations\": [{\"namespace\": \"%s\", \"service\": \"%s\", \"weight\": 100,"
                + " \"labels\": {\"version\": {\"type\": \"EXACT\", \"value\": \"%s\"}}}]}]}}",
                id, HERE, HERE, from, namespace, service, version);
    }

    void routing() throws Exception {
        instances(HERE, 8101);
        instances(ELSEWHERE, 8201);
        Map<String, String> vip = Map.of("user", "vip");
        Map<String, String> other = Map.of("user", "other");
        Polaris.until("both are seen", () -> versions("web", HERE, vip).equals("1,2"));
        Polaris.until("both are seen elsewhere", () -> versions("web", ELSEWHERE, vip).equals("1,2"));
        Polaris.check("a rule of routing sends calls with a label to some instances only", () -> {
            String id = send("POST", ROUTINGS, routing("", "web", HERE, "2"));
            Polaris.until("calls of vips go to version 2", () -> versions("web", HERE, vip).equals("2"));
            Polaris.expect(versions("web", HERE, other).equals("1,2"), "calls of others go everywhere");
            Polaris.expect(versions("shop", HERE, vip).equals("1,2"), "calls of other services go everywhere");
            Polaris.expect(versions("web", ELSEWHERE, vip).equals("1,2"), "the other namespace has no such rule");
            send("PUT", ROUTINGS, routing(id, "web", HERE, "1"));
            Polaris.until("a change is seen", () -> versions("web", HERE, vip).equals("1"));
            send("PUT", ROUTINGS + "/enable", "{\"id\": \"" + id + "\", \"enable\": false}");
            Polaris.until("it is off", () -> versions("web", HERE, vip).equals("1,2"));
            send("PUT", ROUTINGS + "/enable", "{\"id\": \"" + id + "\", \"enable\": true}");
            Polaris.until("it is on", () -> versions("web", HERE, vip).equals("1"));
            remove(ROUTINGS, id);
            Polaris.until("it is gone", () -> versions("web", HERE, vip).equals("1,2"));
            return null;
        });
        Polaris.check("a rule of a caller's namespace holds for its calls to another one", () -> {
            String id = send("POST", ROUTINGS, routing("", "web", ELSEWHERE, "2"));
            Polaris.until("its calls go to version 2", () -> versions("web", ELSEWHERE, vip).equals("2"));
            Polaris.expect(versions("shop", ELSEWHERE, vip).equals("1,2"), "calls of another service go everywhere");
            Polaris.expect(versions("web", HERE, vip).equals("1,2"), "and those within the namespace");
            remove(ROUTINGS, id);
            Polaris.until("it is gone", () -> versions("web", ELSEWHERE, vip).equals("1,2"));
            return null;
        });
    }

    private boolean passes(String namespace) {
        QuotaRequest it = new QuotaRequest();
        it.setNamespace(namespace);
        it.setService(service);
        it.setMethod("/pay");
        it.setCount(1);
        return limits.getQuota(it).getCode() == QuotaResultCode.QuotaResultOk;
    }

    /** How many calls pass before one does not; at most 50. */
    private int passed(String namespace) {
        int calls = 0;
        while (calls < 50 && passes(namespace)) {
            calls++;
        }
        return calls;
    }

    private String limit(String id, String namespace, int amount, String duration) {
        return String.format("{\"id\": \"%s\", \"name\": \"few\", \"namespace\": \"%s\", \"service\": \"%s\", \"resource\": \"QPS\","
                + " \"type\": \"LOCAL\", \"method\": {\"type\": \"EXACT\", \"value\": \"/pay\"},"
                + " \"amounts\": [{\"maxAmount\": %d, \"validDuration\": \"%s\"}]}", id, namespace, service, amount, duration);
    }

    void limits() throws Exception {
        Polaris.check("without a rule there is no limit", () -> {
            Polaris.expect(passed(HERE) == 50 && passed(ELSEWHERE) == 50, "all calls pass");
            return null;
        });
        Polaris.check("a rate limit lets so many calls pass, and no more", () -> {
            String id = send("POST", LIMITS, limit("", HERE, 5, "3600s"));
            Polaris.until("it holds", () -> passed(HERE) < 50);
            Polaris.expect(!passes(HERE), "an hour is not over");
            Polaris.expect(passed(ELSEWHERE) == 50, "the other namespace has no such rule");
            // Another amount, counted anew: once a call passes the new rule is there.
            send("PUT", LIMITS, limit(id, HERE, 8, "3600s"));
            Polaris.until("a change is seen", () -> passes(HERE));
            int more = passed(HERE);
            Polaris.expect(more == 7, "8 calls pass, not " + (more + 1));
            send("PUT", LIMITS, limit(id, HERE, 3, "1s"));
            for (int round = 0; round < 3; round++) {
                Polaris.until("it passes again", () -> passes(HERE));
                Polaris.until("and is rejected again", () -> passed(HERE) < 50);
            }
            remove(LIMITS, id);
            Polaris.until("it is gone", () -> passed(HERE) == 50);
            return null;
        });
    }

    private Resource resource(String namespace) {
        return new ServiceResource(new ServiceKey(namespace, service), new ServiceKey(HERE, "web"));
    }

    private void report(String namespace, boolean good) {
        RetStatus status = good ? RetStatus.RetSuccess : RetStatus.RetFail;
        breakers.report(new ResourceStat(resource(namespace), good ? 200 : 500, 10, status));
    }

    private boolean closed(String namespace) {
        return breakers.check(resource(namespace)).isPass();
    }

    private String breaker(String id, int errors) {
        return String.format("{\"id\": \"%s\", \"name\": \"errors %s\", \"namespace\": \"%s\", \"enable\": true, \"level\": \"SERVICE\","
                + " \"ruleMatcher\": {\"source\": {\"namespace\": \"*\", \"service\": \"*\"},"
                + " \"destination\": {\"namespace\": \"%s\", \"service\": \"%s\"}},"
                + " \"block_configs\": [{\"name\": \"all\", \"api\": {\"protocol\": \"*\", \"method\": \"*\","
                + " \"path\": {\"type\": \"EXACT\", \"value\": \"*\"}},"
                + " \"error_conditions\": [{\"inputType\": \"RET_CODE\", \"condition\": {\"type\": \"IN\", \"value\": \"500\"}}],"
                + " \"trigger_conditions\": [{\"triggerType\": \"CONSECUTIVE_ERROR\", \"errorCount\": %d}]}],"
                + " \"recoverCondition\": {\"sleepWindow\": 3600, \"consecutiveSuccess\": 1}}",
                id, service, HERE, HERE, service, errors);
    }

    void breakers() throws Exception {
        Polaris.check("errors in a row open a circuit breaker", () -> {
            String id = send("POST", BREAKERS, breaker("", 3));
            Polaris.until("it opens", () -> {
                report(HERE, false);
                report(ELSEWHERE, false);
                return !closed(HERE);
            });
            for (int errors = 0; errors < 10; errors++) {
                report(ELSEWHERE, false);
            }
            Polaris.expect(closed(ELSEWHERE), "the other namespace has no such rule");
            Polaris.expect(!closed(HERE), "an hour is not over");
            remove(BREAKERS, id);
            Polaris.until("it is gone", () -> closed(HERE));
            for (int errors = 0; errors < 10; errors++) {
                report(HERE, false);
            }
            Polaris.expect(closed(HERE), "without the rule nothing opens");
            return null;
        });
    }
}
