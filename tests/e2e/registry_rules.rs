//! Polaris' rules by its HTTP API: permissions to write and read them, refusals, and isolation from everything else. Their use by its clients is in
//! `tests/clients/java/registry`.

use std::sync::Arc;

use kingpost_tests::{Cluster, HttpResponse, RegistryNode, ShowLogs};
use serde_json::{Value, json};

use crate::registry_clients_nacos::token;

const LIMITS: &str = "/naming/v1/ratelimits";
const ROUTINGS: &str = "/naming/v2/routings";
const BREAKERS: &str = "/naming/v1/circuitbreaker/rules";
const DETECTORS: &str = "/naming/v1/faultdetectors";

fn limit(namespace: &str, service: &str, amount: u32) -> Value {
    json!({
        "name": "l", "namespace": namespace, "service": service, "resource": "QPS", "type": "LOCAL",
        "amounts": [{ "maxAmount": amount, "validDuration": "1s" }],
    })
}

fn routing(namespace: &str, from: &str, to: &str) -> Value {
    json!({
        "name": "r", "namespace": namespace, "enable": true, "routing_policy": "RulePolicy",
        "routing_config": { "@type": "type.googleapis.com/v1.RuleRoutingConfig", "rules": [{
            "name": "one", "sources": [{ "namespace": from, "service": "web" }],
            "destinations": [{ "namespace": to, "service": "shop", "weight": 100, "labels": { "v": { "value": "2" } } }],
        }] },
    })
}

fn breaker(namespace: &str, name: &str) -> Value {
    json!({ "name": name, "namespace": namespace, "enable": true, "level": "SERVICE",
        "ruleMatcher": { "source": { "namespace": "*", "service": "*" }, "destination": { "namespace": namespace, "service": "shop" } } })
}

fn detector(namespace: &str, name: &str) -> Value {
    json!({ "name": name, "namespace": namespace, "targetService": { "namespace": namespace, "service": "shop" }, "protocol": "TCP" })
}

/// A node, with a token for requests or without.
#[derive(Clone)]
struct Client<'a> {
    node: &'a RegistryNode,
    token: Option<&'a str>,
}

impl Client<'_> {
    async fn ask(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let header = self.token.map(|token| ("X-Polaris-Token", token));
        self.node.ask(method, path, header.as_slice(), body).await
    }

    async fn send(&self, method: &str, path: &str, rule: &Value) -> HttpResponse {
        self.ask(method, path, &json!([rule]).to_string()).await
    }

    /// Creates a rule, and returns its id.
    async fn make(&self, path: &str, rule: &Value) -> String {
        let made = self.send("POST", path, rule).await;
        let answer = made.json();
        assert_eq!((made.status, &answer["code"]), (200, &json!(200_000)), "{path} {rule}: {answer}");
        let response = &answer["responses"][0];
        let rule = if path == LIMITS { &response["rateLimit"] } else { &response["data"] };
        rule["id"].as_str().unwrap().to_owned()
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        let found = self.ask("GET", path, "").await.json();
        let list = if path.starts_with(LIMITS) { &found["rateLimits"] } else { &found["data"] };
        assert_eq!(found["code"], 200_000, "{found}");
        list.as_array().unwrap().clone()
    }

    /// Returns a client's answer about a service.
    async fn discover(&self, kind: &str, namespace: &str, service: &str, revision: &str) -> Value {
        let body =
            json!({ "type": kind, "service": { "name": service, "namespace": namespace, "revision": revision } });
        self.ask("POST", "/v1/Discover", &body.to_string()).await.json()
    }
}

/// The requests and answers of Polaris' own server, for each kind of rule.
#[tokio::test]
async fn rules_as_polaris_has_them() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let client = Client { node: &node, token: None };
    for (path, rule, kind, field, id_only) in [
        (LIMITS, limit("default", "shop", 5), "RATE_LIMIT", "rateLimit", 400_307),
        (ROUTINGS, routing("default", "*", "default"), "ROUTING", "routing", 400_302),
        (BREAKERS, breaker("default", "b"), "CIRCUIT_BREAKER", "circuitBreaker", 400_308),
        (DETECTORS, detector("default", "d"), "FAULT_DETECTOR", "faultDetector", 400_202),
    ] {
        let none = client.discover(kind, "default", "shop", "").await;
        assert_eq!((&none["code"], none.get(field)), (&json!(200_000), None), "{none}");
        let id = client.make(path, &rule).await;
        let list = client.list(path).await;
        assert_eq!((list.len(), list[0]["id"].as_str()), (1, Some(&*id)), "{path}");
        assert!(list[0]["ctime"].as_str().is_some_and(|time| time.len() == 19), "{path}: {}", list[0]);
        let served = client.discover(kind, "default", "shop", "").await;
        let revision = served["service"]["revision"].as_str().unwrap().to_owned();
        let own = &served[field]["revision"];
        assert!(*own == json!(revision) && !revision.is_empty(), "{served}");
        let same = client.discover(kind, "default", "shop", &revision).await;
        assert_eq!((&same["code"], same.get(field)), (&json!(200_001), None), "{same}");
        assert_eq!(same["service"]["revision"], json!(revision));
        // Of another namespace, and of another service: nothing.
        for (namespace, service) in [("other", "shop"), ("default", "other")] {
            let nothing = client.discover(kind, namespace, service, &revision).await;
            let told = (&nothing["code"], nothing.get(field), &nothing["service"]["revision"]);
            assert_eq!(told, (&json!(200_000), None, &Value::Null), "{nothing}");
        }
        // An existing rule changes nothing; a rule can be written as it was read.
        let mut changed = list[0].clone();
        assert_eq!(client.send("PUT", path, &changed).await.status, 200);
        assert_eq!(
            client.discover(kind, "default", "shop", &revision).await["code"],
            200_001,
            "{path}: it is the same"
        );
        changed["name"] = json!("changed");
        assert_eq!(client.send("PUT", path, &changed).await.status, 200);
        let served = client.discover(kind, "default", "shop", &revision).await;
        assert_eq!(served["code"], 200_000, "{path}: it is another one");
        let after = client.list(path).await;
        assert_eq!((&after[0]["name"], &after[0]["ctime"]), (&json!("changed"), &list[0]["ctime"]));
        if path != DETECTORS {
            let off = if path == LIMITS { json!({ "disable": true }) } else { json!({ "enable": false }) };
            let mut off = off;
            off["id"] = json!(id);
            assert_eq!(client.send("PUT", &format!("{path}/enable"), &off).await.status, 200);
            let nothing = client.discover(kind, "default", "shop", &revision).await;
            assert_eq!((&nothing["code"], nothing.get(field)), (&json!(200_000), None), "{nothing}");
            assert_eq!(client.list(path).await.len(), 1);
        } else {
            assert_eq!(client.send("PUT", &format!("{path}/enable"), &json!({ "id": id })).await.status, 404);
        }
        for _ in 0..2 {
            let gone = client.send("POST", &format!("{path}/delete"), &json!({ "id": id })).await;
            assert_eq!((gone.status, &gone.json()["code"]), (200, &json!(200_000)), "{path}");
        }
        assert_eq!(client.list(path).await.len(), 0);
        let nothing = client.discover(kind, "default", "shop", &revision).await;
        assert_eq!((&nothing["code"], nothing.get(field)), (&json!(200_000), None), "{nothing}");
        let answer = client.send("PUT", path, &changed).await;
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(id_only)), "{path}: {}", answer.body);
    }
    for (kind, field) in [("CUSTOM_ROUTE_RULE", "customRouteRules"), ("NEARBY_ROUTE_RULE", "nearbyRouteRules")] {
        let mut rule = routing("default", "*", "default");
        if field == "nearbyRouteRules" {
            rule["routing_policy"] = json!("NearbyPolicy");
            rule["routing_config"] = json!({ "namespace": "default", "service": "shop", "match_level": "ZONE" });
        }
        client.make(ROUTINGS, &rule).await;
        let served = client.discover(kind, "default", "shop", "").await;
        assert_eq!(served[field][0]["name"], "r", "{served}");
        assert!(served[field][0]["routing_config"]["@type"].is_string(), "{served}");
    }
}

/// Each line: method, path, body; then the status, the code, and the message.
#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let node = RegistryNode::start("[registry.rules]\ncount = 3\nrule_bytes = 2000\nbytes = 3000").await;
    let _logs = ShowLogs(node.dir());
    let client = Client { node: &node, token: None };
    let with = |rule: Value, field: &str, value: Value| {
        let mut rule = rule;
        rule[field] = value;
        json!([rule]).to_string()
    };
    let one = || limit("default", "shop", 1);
    let list = |rules: &[Value]| json!(rules).to_string();
    let id = "0".repeat(32);
    for (method, path, body, status, code, said) in [
        ("POST", LIMITS, "[]".to_owned(), 400, 400_002, "without a rule"),
        ("POST", LIMITS, "{}".into(), 400, 400_001, "expected a list"),
        ("POST", LIMITS, with(one(), "nmae", json!("x")), 400, 400_001, "nmae"),
        ("POST", ROUTINGS, with(routing("default", "*", "default"), "extend", json!({})), 400, 400_001, "extend"),
        ("POST", LIMITS, with(one(), "service", json!("")), 400, 400_120, "service"),
        ("POST", LIMITS, with(one(), "name", json!("x".repeat(65))), 400, 400_154, "name"),
        ("POST", BREAKERS, with(breaker("default", "b"), "name", json!("")), 400, 400_162, "name"),
        (
            "POST",
            BREAKERS,
            with(breaker("other", "b"), "namespace", json!("default")),
            400,
            400_103,
            "nobody would be given it",
        ),
        ("POST", ROUTINGS, list(&[routing("", "a", "b")]), 400, 400_103, "which namespace"),
        ("POST", ROUTINGS, with(routing("default", "*", "default"), "priority", json!(11)), 400, 400_703, "priority"),
        (
            "POST",
            LIMITS,
            with(one(), "custom_response", json!({ "body": "x".repeat(2000) })),
            400,
            400_003,
            "registry.rules.rule_bytes = 2000",
        ),
        ("POST", LIMITS, list(&vec![one(); 101]), 413, 400_003, "100"),
        // With one wrong rule nothing is done.
        ("POST", LIMITS, list(&[one(), json!({ "namespace": "default" })]), 400, 400_120, "service"),
        ("PUT", LIMITS, list(&[one()]), 400, 400_151, "id"),
        ("PUT", LIMITS, with(one(), "id", json!(id)), 400, 400_307, &*id),
        ("PUT", LIMITS, with(one(), "id", json!("../writes")), 400, 400_307, "writes"),
        ("POST", "/naming/v1/ratelimits/delete", list(&[json!({})]), 400, 400_151, "id"),
        ("DELETE", LIMITS, String::new(), 405, 400_004, "GET, POST, PUT"),
        ("GET", "/naming/v1/ratelimits/delete", String::new(), 405, 400_004, "POST"),
        ("GET", "/naming/v1/ratelimits?labels=x", String::new(), 400, 400_103, "labels"),
        ("GET", "/naming/v1/ratelimits?limit=x", String::new(), 400, 400_103, "limit"),
        ("GET", "/naming/v1/aliases", String::new(), 404, 400_004, "/naming/v1/aliases"),
        ("GET", "/naming/v2/ratelimits", String::new(), 404, 400_004, "/naming/v2/ratelimits"),
    ] {
        let answer = client.ask(method, path, &body).await;
        let told = answer.json();
        let shown = format!("{method} {path} {body}: {} {}", answer.status, answer.body);
        assert_eq!((answer.status, &told["code"]), (status, &json!(code)), "{shown}");
        assert!(told["info"].as_str().is_some_and(|info| info.contains(said)), "{shown}");
    }
    assert_eq!(client.list(LIMITS).await.len(), 0);
    // A name belongs to one breaker; rules of other kinds may have it.
    client.make(BREAKERS, &breaker("default", "b")).await;
    let again = client.send("POST", BREAKERS, &breaker("default", "b")).await;
    assert_eq!((again.status, &again.json()["code"]), (400, &json!(400_209)), "{}", again.body);
    client.make(DETECTORS, &detector("default", "b")).await;
    // Three rules of a namespace, 3000 bytes; another namespace has its own limits.
    let mut large = limit("default", "shop", 1);
    large["custom_response"] = json!({ "body": "x".repeat(1800) });
    client.make(LIMITS, &large).await;
    let full = client.send("POST", LIMITS, &limit("default", "shop", 1)).await;
    assert_eq!(full.json()["code"], 400_230, "{}", full.body);
    assert!(full.body.contains("registry.rules.count = 3"), "{}", full.body);
    large["namespace"] = json!("other");
    client.make(LIMITS, &large).await;
    let full = client.send("POST", LIMITS, &large).await;
    assert!(full.body.contains("registry.rules.bytes = 3000"), "{}", full.body);
}

/// Filters, pages and order, of rules of two namespaces.
#[tokio::test]
async fn rules_are_found() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let client = Client { node: &node, token: None };
    for (namespace, service, name, priority, disable) in
        [("a", "shop", "one", 2, false), ("a", "cart", "two", 1, false), ("b", "shop", "three", 0, true)]
    {
        let mut rule = limit(namespace, service, 1);
        (rule["name"], rule["priority"], rule["disable"]) = (json!(name), json!(priority), json!(disable));
        client.make(LIMITS, &rule).await;
    }
    client.make(ROUTINGS, &routing("a", "a", "b")).await;
    client.make(ROUTINGS, &routing("b", "*", "b")).await;
    client.make(BREAKERS, &breaker("a", "b")).await;
    client.make(DETECTORS, &detector("a", "d")).await;
    for (query, expected) in [
        ("", &["one", "three", "two"][..]),
        ("?namespace=a", &["one", "two"]),
        ("?service=shop", &["one", "three"]),
        ("?service=shop&namespace=a", &["one"]),
        ("?name=o", &["one", "two"]),
        ("?disable=true", &["three"]),
        ("?disable=false&brief=true", &["one", "two"]),
        ("?namespace=c", &[]),
    ] {
        let mut names: Vec<String> = client
            .list(&format!("{LIMITS}{query}"))
            .await
            .iter()
            .map(|rule| rule["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        assert_eq!(names, expected, "{query}");
    }
    let page = client.ask("GET", &format!("{LIMITS}?order_field=priority&offset=1&limit=1"), "").await.json();
    assert_eq!((&page["amount"], &page["size"], &page["rateLimits"][0]["name"]), (&json!(3), &json!(1), &json!("two")));
    for (path, query, count) in [
        (ROUTINGS, "?namespace=a&service=web", 1),
        (ROUTINGS, "?service=shop", 2),
        (ROUTINGS, "?source_namespace=a&destination_namespace=b", 1),
        (ROUTINGS, "?source_namespace=b", 0),
        (ROUTINGS, "?name=r", 2),
        (ROUTINGS, "?name=x*", 0),
        (ROUTINGS, "?enable=false", 0),
        (BREAKERS, "?dstService=shop&level=1", 1),
        (BREAKERS, "?dstService=shop&level=2", 0),
        (BREAKERS, "?serviceNamespace=b", 0),
        (DETECTORS, "?service=shop&dstNamespace=a", 1),
        (DETECTORS, "?namespace=b", 0),
    ] {
        assert_eq!(client.list(&format!("{path}{query}")).await.len(), count, "{path}{query}");
    }
}

/// Two tenants and a reader: each writes rules of its own namespaces, and no rule of one is served for the other.
#[tokio::test]
async fn rules_are_a_namespaces_own() {
    let (a, table_a) = token("a", "write", &json!(["a"]));
    let (b, table_b) = token("b", "write", &json!(["b"]));
    let (reader, table_r) = token("reader", "read", &json!(["a"]));
    let (root, table_x) = token("root", "admin", &json!(["*"]));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{table_a}{table_b}{table_r}{table_x}")).await;
    let _logs = ShowLogs(node.dir());
    let [a, b, reader, root] =
        [&a, &b, &reader, &root].map(|token| Client { node: &node, token: Some(token.as_str()) });
    let nobody = Client { node: &node, token: None };
    let all = |namespace: &str| {
        [
            (LIMITS, limit(namespace, "shop", 1)),
            (ROUTINGS, routing(namespace, namespace, namespace)),
            (BREAKERS, breaker(namespace, "b")),
            (DETECTORS, detector(namespace, "d")),
        ]
    };
    for (path, rule) in all("a") {
        for (who, status, code) in [(&nobody, 401, 401_000), (&b, 403, 401_001), (&reader, 403, 401_001)] {
            let answer = who.send("POST", path, &rule).await;
            assert_eq!((answer.status, &answer.json()["code"]), (status, &json!(code)), "{path}: {}", answer.body);
        }
        let id = a.make(path, &rule).await;
        // The rule's owner decides, not the body.
        let mut stolen = all("b").into_iter().find(|(other, _)| *other == path).unwrap().1;
        stolen["id"] = json!(id);
        for (who, status) in [(&nobody, 401), (&b, 400), (&reader, 403)] {
            assert_eq!(who.send("PUT", path, &stolen).await.status, status, "{path}");
            if path != DETECTORS {
                assert_eq!(
                    who.send("PUT", &format!("{path}/enable"), &json!({ "id": id })).await.status,
                    status,
                    "{path}"
                );
            }
            let gone = who.send("POST", &format!("{path}/delete"), &json!({ "id": id })).await.status;
            assert_eq!(gone, if status == 400 { 200 } else { status }, "{path}: to b it is not there");
        }
        // It stays in its namespace.
        assert_eq!(root.send("PUT", path, &stolen).await.json()["code"], 400_103, "{path}");
        for (who, count) in [(&a, 1), (&reader, 1), (&root, 1), (&b, 0)] {
            assert_eq!(who.list(path).await.len(), count, "{path}");
        }
        let forbidden = b.ask("GET", &format!("{path}?namespace=a"), "").await;
        assert_eq!(forbidden.status, 403, "{}", forbidden.body);
        assert_eq!(a.list(path).await[0]["editable"], true);
        assert_eq!(reader.list(path).await[0]["editable"], false);
    }
    // Rules of a that name services of b, as far as they can be written, are served to no client of b.
    for rule in [routing("a", "a", "b"), routing("a", "*", "*"), routing("a", "b", "a")] {
        a.make(ROUTINGS, &rule).await;
    }
    for (rule, path) in [(breaker("b", "x"), BREAKERS), (detector("b", "x"), DETECTORS)] {
        let mut rule = rule;
        rule["namespace"] = json!("a");
        assert_eq!(a.send("POST", path, &rule).await.json()["code"], 400_103, "{path}");
    }
    let mut everywhere = breaker("a", "everywhere");
    everywhere["ruleMatcher"]["destination"] = json!({ "namespace": "*", "service": "*" });
    a.make(BREAKERS, &everywhere).await;
    for (kind, field) in [
        ("ROUTING", "routing"),
        ("RATE_LIMIT", "rateLimit"),
        ("CIRCUIT_BREAKER", "circuitBreaker"),
        ("FAULT_DETECTOR", "faultDetector"),
        ("CUSTOM_ROUTE_RULE", "customRouteRules"),
    ] {
        for service in ["shop", "web", "*"] {
            let served = b.discover(kind, "b", service, "").await;
            assert_eq!((&served["code"], served.get(field)), (&json!(200_000), None), "{kind} of {service}: {served}");
        }
        assert!(a.discover(kind, "a", "shop", "").await.get(field).is_some(), "{kind}");
        assert!(reader.discover(kind, "a", "shop", "").await.get(field).is_some(), "{kind}");
        assert_eq!(b.discover(kind, "a", "shop", "").await["code"], 401_001, "{kind}");
    }
    let audit = root.ask("GET", "/v1/namespaces/a/audit?limit=100", "").await.body;
    assert!(audit.contains("polaris/ratelimit/create") && audit.contains("polaris/routing/create"), "{audit}");
    assert!(!audit.contains("/update") && !audit.contains("/delete"), "nobody changed anything: {audit}");
}

/// Rules are stored with the keys, and Consul's clients neither see nor change them, by any name.
#[tokio::test]
async fn rules_are_no_keys() {
    let mut node = RegistryNode::start("").await;
    let client = Client { node: &node, token: None };
    let key = async |node: &RegistryNode, method: &str, path: &str| node.ask(method, path, &[], "x").await;
    assert_eq!(key(&node, "PUT", "/v1/kv/mine").await.body, "true");
    let before = node.get("/v1/kv/?recurse").await;
    let id = client.make(LIMITS, &limit("default", "shop", 5)).await;
    let after = node.get("/v1/kv/?recurse").await;
    assert_eq!(after.header("x-consul-index"), before.header("x-consul-index"), "nothing happened to keys");
    // The name of a namespace of rules is a digest of the namespace.
    let spaces = [
        "kingpost.rules.37a8eec1ce19687d132fe29051dca629d164e2c4958ba141",
        "kingpost.rules.000000000000000000000000000000000000000000000000",
    ];
    for space in spaces {
        for (method, path) in [
            ("GET", format!("/v1/kv/?keys&ns={space}")),
            ("GET", format!("/v1/kv/?recurse&ns={space}")),
            ("GET", format!("/v1/kv/writes?raw&ns={space}")),
            ("PUT", format!("/v1/kv/writes?ns={space}")),
            ("DELETE", format!("/v1/kv/?recurse&ns={space}")),
            ("PUT", format!("/v1/session/create?ns={space}")),
            ("GET", format!("/v1/session/list?ns={space}")),
        ] {
            let answer = key(&node, method, &path).await;
            assert_eq!(answer.status, 400, "{method} {path}: {}", answer.body);
        }
        let header = [("X-Consul-Namespace", space)];
        assert_eq!(node.ask("GET", "/v1/kv/?keys", &header, "").await.status, 400);
        let body = json!([{ "KV": { "Verb": "delete-tree", "Key": "" } }]).to_string();
        assert_eq!(node.ask("PUT", &format!("/v1/txn?ns={space}"), &[], &body).await.status, 400);
        assert_eq!(node.get(&format!("/v1/namespaces/{space}/services")).await.status, 400);
        let mut rule = limit("default", "shop", 5);
        rule["namespace"] = json!(space);
        assert_eq!(client.send("POST", LIMITS, &rule).await.status, 400);
    }
    assert_eq!(node.get("/v1/kv/?keys").await.json(), json!(["mine"]));
    assert_eq!(key(&node, "DELETE", "/v1/kv/?recurse").await.body, "true");
    assert_eq!(client.list(LIMITS).await.len(), 1, "all keys are gone, and the rule is there");
    let served = client.discover("RATE_LIMIT", "default", "shop", "").await;
    node.end(9).await;
    node.start_again().await;
    let client = Client { node: &node, token: None };
    assert_eq!(client.list(LIMITS).await[0]["id"], json!(id), "after a restart too");
    assert_eq!(client.discover("RATE_LIMIT", "default", "shop", "").await, served);
    let _logs = ShowLogs(node.dir());
}

/// Two nodes on one store, with concurrent writes: no write is lost, a limit holds, a name belongs to one rule, and both serve the same.
#[tokio::test]
async fn two_nodes_write_at_once() {
    const WRITERS: usize = 8;
    const EACH: usize = 6;
    let cluster = Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let more = format!("[registry.rules]\ncount = {}", WRITERS * EACH + 1);
    let nodes = [RegistryNode::start_on(Some(&store), &more).await, RegistryNode::start_on(Some(&store), &more).await];
    let nodes = Arc::new(nodes);
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let nodes = Arc::clone(&nodes);
        tasks.spawn(async move {
            let client = Client { node: &nodes[writer % 2], token: None };
            let mut ids = Vec::new();
            let mut named = 0;
            for n in 0..EACH {
                ids.push(client.make(LIMITS, &limit("default", &format!("s{writer}-{n}"), 1)).await);
                let answer = client.send("POST", BREAKERS, &breaker("other", &format!("b{n}"))).await;
                match answer.json()["code"].as_u64() {
                    Some(200_000) => named += 1,
                    Some(400_209) => {}
                    other => panic!("{other:?}: {}", answer.body),
                }
            }
            (ids, named)
        });
    }
    let mut ids = Vec::new();
    let mut named = 0;
    while let Some(done) = tasks.join_next().await {
        let (made, won) = done.unwrap();
        ids.extend(made);
        named += won;
    }
    ids.sort();
    let clients = [0, 1].map(|n| Client { node: &nodes[n], token: None });
    for client in &clients {
        let mut found: Vec<String> =
            client.list(LIMITS).await.iter().map(|rule| rule["id"].as_str().unwrap().to_owned()).collect();
        found.sort();
        assert_eq!(found, ids, "every rule that was made is there");
        assert_eq!(client.list(BREAKERS).await.len(), EACH, "each name once");
    }
    assert_eq!(named, EACH, "each name was given to one");
    // One more fits: of concurrent requests one succeeds.
    let (one, two) = (limit("default", "last", 1), limit("default", "last", 2));
    let (first, second) = tokio::join!(clients[0].send("POST", LIMITS, &one), clients[1].send("POST", LIMITS, &two));
    let mut codes = [first.json()["code"].as_u64(), second.json()["code"].as_u64()];
    codes.sort_unstable();
    assert_eq!(codes, [Some(200_000), Some(400_230)]);
    // Each changes a different part of one rule, in its own loop: a write based on an old read must not undo the other's.
    let id = &ids[0];
    let mut off = json!({ "id": id, "disable": true });
    for round in 0..10 {
        off["disable"] = json!(round % 2 == 0);
        let rule = clients[0].list(&format!("{LIMITS}?id={id}")).await.remove(0);
        let (path, more) = (format!("{LIMITS}/enable"), limit("default", "more", 1));
        let (toggled, _) = tokio::join!(clients[1].send("PUT", &path, &off), clients[0].send("POST", LIMITS, &more));
        assert_eq!(toggled.status, 200, "{}", toggled.body);
        let found = clients[0].list(&format!("{LIMITS}?id={id}")).await.remove(0);
        assert_eq!((&found["disable"], &found["service"]), (&off["disable"], &rule["service"]));
    }
    let service =
        clients[0].list(&format!("{LIMITS}?id={}", ids[1])).await.remove(0)["service"].as_str().unwrap().to_owned();
    let served = clients[0].discover("RATE_LIMIT", "default", &service, "").await;
    let revision = served["service"]["revision"].as_str().unwrap();
    let other = clients[1].discover("RATE_LIMIT", "default", &service, revision).await;
    assert_eq!(other["code"], 200_001, "the other node calls the same rules by the same revision: {other}");
}
