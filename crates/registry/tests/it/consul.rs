//! Consul's catalog over HTTP: nodes, their metadata, filters, and lists assembled from pieces.

use registry::{Check, Metadata, NamespaceName, Registration, ServiceKey};
use serde_json::{Value, json};

use crate::common::*;

impl Node {
    /// Returns the list at a path, and its index.
    async fn index(&self, path: &str) -> (Value, u64) {
        let (head, body) = self.whole_from("127.0.0.1", "GET", path, "").await;
        let line =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("x-consul-index: ").map(str::to_owned));
        (serde_json::from_str(&body).unwrap(), line.unwrap().parse().unwrap())
    }

    /// Sends a PUT with JSON from an address, which must be answered with 200.
    async fn put_from(&self, from: &str, path: &str, body: &Value) {
        let (status, said) = self.ask_from(from, "PUT", path, &body.to_string()).await;
        assert_eq!(status, 200, "{path} {body}: {said}");
    }

    async fn put(&self, path: &str, body: &Value) {
        self.put_from("127.0.0.1", path, body).await;
    }
}

/// Returns the values of a field, sorted.
fn each(list: &Value, field: &str) -> Vec<String> {
    let text = |entry: &Value| entry.pointer(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut found: Vec<String> = list.as_array().unwrap().iter().map(text).collect();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_their_metadata_and_filters() {
    let node = Node::alone().await;
    for (name, rack, service, tag) in
        [("n1", "a", "web", "v1"), ("n1", "a", "db", "v1"), ("n2", "b", "web", "v2"), ("n3", "", "web", "v1")]
    {
        let meta = if rack.is_empty() { json!({}) } else { json!({ "rack": rack, "os": "linux" }) };
        let body = json!({
            "Node": name, "Address": format!("10.0.0.{}", &name[1..]), "NodeMeta": meta,
            "Service": { "ID": service, "Service": service, "Port": 80, "Tags": [tag], "Meta": { "rack": rack } },
        });
        assert_eq!(node.ask("PUT", "/v1/catalog/register", &body.to_string()).await.0, 200);
    }
    for (path, field, expected) in [
        ("/v1/catalog/service/web?node-meta=rack:a", "/Node", &["n1"][..]),
        ("/v1/catalog/service/web?node-meta=os:linux", "/Node", &["n1", "n2"]),
        ("/v1/catalog/service/web?node-meta=os:linux&node-meta=rack:b", "/Node", &["n2"]),
        ("/v1/catalog/service/web?node-meta=rack:c", "/Node", &[]),
        ("/v1/health/service/web?node-meta=rack:b", "/Node/Node", &["n2"]),
        ("/v1/health/service/web?passing&node-meta=rack:b", "/Node/Node", &["n2"]),
        ("/v1/catalog/nodes?node-meta=rack:a", "/Node", &["n1"]),
        ("/v1/catalog/nodes", "/Node", &["n1", "n2", "n3", "own"]),
        ("/v1/catalog/service/web?filter=ServiceTags+contains+v1", "/Node", &["n1", "n3"]),
        ("/v1/catalog/service/web?filter=Node+matches+%22n%5B12%5D%22", "/Node", &["n1", "n2"]),
        ("/v1/health/service/web?filter=Service.Meta.rack+not+matches+%22.%22", "/Node/Node", &["n3"]),
        ("/v1/health/service/web?filter=Service.Service+==+%22%5Cx77eb%22", "/Node/Node", &["n1", "n2", "n3"]),
        ("/v1/health/service/web?filter=Service.EnableTagOverride+==+False", "/Node/Node", &["n1", "n2", "n3"]),
        ("/v1/health/service/web?filter=Checks+is+empty", "/Node/Node", &["n1", "n2", "n3"]),
        ("/v1/health/service/web?filter=any+Service.Tags+as+t+%7B+t+==+v2+%7D", "/Node/Node", &["n2"]),
        (
            "/v1/health/service/web?filter=all+Checks+as+c+%7B+c.Status+==+passing+%7D",
            "/Node/Node",
            &["n1", "n2", "n3"],
        ),
    ] {
        assert_eq!(each(&node.get(path).await, field), expected, "{path}");
    }
    let services = node.get("/v1/catalog/services?node-meta=rack:b").await;
    assert_eq!(services, json!({ "web": ["v2"] }));
    let on = node.get("/v1/catalog/node-services/n1").await;
    assert_eq!((&on["Node"]["Address"], &on["Node"]["Meta"]["rack"]), (&json!("10.0.0.1"), &json!("a")));
    assert_eq!(each(&on["Services"], "/ID"), ["db", "web"]);
    let on = node.get("/v1/catalog/node-services/n1?filter=Service+matches+%22%5Ed%22").await;
    assert_eq!(each(&on["Services"], "/ID"), ["db"]);
    assert_eq!(node.get("/v1/catalog/node-services/none").await, json!({ "Node": null, "Services": [] }));
    assert_eq!(node.get("/v1/catalog/node/n1").await["Services"].as_object().unwrap().len(), 2);
    for wrong in ["node-meta=rack", "node-meta=:a", "filter=Node+matches+%22(%22"] {
        assert_eq!(node.ask("GET", &format!("/v1/catalog/nodes?{wrong}"), "").await.0, 400, "{wrong}");
    }
    // Each endpoint has selectors of its own.
    for (path, filter, names) in [
        ("/v1/health/service/web", "ServiceTags contains a", "ServiceTags"),
        ("/v1/health/service/web", "Service.Tags == a", "Service.Tags"),
        ("/v1/health/service/web", "Bogus != x", "Bogus"),
        ("/v1/catalog/service/web", "Service.Tags contains a", "\"Service\" is not valid"),
        ("/v1/catalog/services", "Tags contains a", "Tags"),
        ("/v1/catalog/nodes", "Service == a", "Service"),
        ("/v1/catalog/node/n1", "Node == a", "Node"),
        ("/v1/catalog/node-services/n1", "Port == a", "whole number"),
        ("/v1/agent/services", "ServicePort == 1", "ServicePort"),
        ("/v1/agent/checks", "Port == 1", "Port"),
        ("/v1/health/checks/web", "Definition is empty", "Definition"),
        ("/v1/health/node/n1", "Status is empty", "Status"),
        ("/v1/health/state/any", "Checks is empty", "Checks"),
    ] {
        let (status, said) = node.ask("GET", &format!("{path}?filter={}", filter.replace(' ', "+")), "").await;
        assert!(status == 400 && said.contains(names), "{path} {filter}: {status} {said}");
    }
    // Elsewhere a filter has no meaning, as at Consul.
    assert_eq!(node.ask("GET", "/v1/agent/self?filter=Bogus", "").await.0, 200);
    node.end().await;
}

/// With many instances, so that lists have several pieces, every form of a list matches the instances after each change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_pieces_tell_what_there_is_after_each_change() {
    const COUNT: usize = 700;
    let node = Node::alone().await;
    let one = |n: usize, status: &str| {
        let (ip, port) = (format!("10.0.{}.{}", n / 250, n % 250), json!({ "$": 80, "@enabled": "true" }));
        json!({ "instance": {
            "instanceId": format!("i{n:04}"), "hostName": "h", "app": "SHOP", "ipAddr": ip, "port": port, "status": status,
        }})
    };
    let mut there = std::collections::BTreeMap::new();
    for n in 0..COUNT {
        assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &one(n, "UP").to_string()).await.0, 204);
        there.insert(format!("i{n:04}"), "UP");
    }
    for step in 0..12 {
        let n = step * 61 % COUNT;
        match step % 3 {
            0 => {
                assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &one(n, "DOWN").to_string()).await.0, 204);
                there.insert(format!("i{n:04}"), "DOWN");
            }
            1 => {
                assert_eq!(node.ask("DELETE", &format!("/eureka/apps/SHOP/i{n:04}"), "").await.0, 200);
                there.remove(&format!("i{n:04}"));
            }
            _ => {
                assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &one(COUNT + step, "UP").to_string()).await.0, 204);
                there.insert(format!("i{:04}", COUNT + step), "UP");
            }
        }
        let apps = node.get("/eureka/apps").await;
        let application = &apps["applications"]["application"];
        assert_eq!((application.as_array().map(Vec::len), &application[0]["name"]), (Some(1), &json!("SHOP")));
        let told = application[0]["instance"].as_array().unwrap().iter();
        let told: std::collections::BTreeMap<_, _> =
            told.map(|it| (it["instanceId"].as_str().unwrap().to_owned(), it["status"].as_str().unwrap())).collect();
        assert_eq!(told, there, "step {step}");
        let down = there.values().filter(|status| **status == "DOWN").count();
        let code = format!("DOWN_{down}_UP_{}_", there.len() - down);
        assert_eq!(apps["applications"]["apps__hashcode"], code);
        let targets = node.get("/prometheus/targets?all").await;
        assert_eq!(targets.as_array().unwrap().len(), there.len());
    }
    node.end().await;
}

/// An id is unique on an agent, which is the client's address, whatever the service's address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_unique_on_an_agent() {
    let node = Node::alone().await;
    let (one, two) = ("127.0.0.1", "127.0.0.2");
    let service =
        |id: &str, address: &str| json!({ "ID": id, "Name": id, "Address": address, "Check": { "TTL": "60s" } });
    let register = async |from: &str, id: &str, address: &str| {
        node.put_from(from, "/v1/agent/service/register", &service(id, address)).await;
    };
    let shown = async |service: &str, more: &str| {
        each(&node.get(&format!("/v1/health/service/{service}?{more}")).await, "/Service/Address")
    };
    // Another address replaces; so does an address where there was none, and none where there was one.
    for address in ["10.0.0.1", "10.0.0.2", "", "10.0.0.3"] {
        register(one, "web", address).await;
        let expected = if address.is_empty() { one } else { address };
        let list = node.get("/v1/health/service/web").await;
        assert_eq!(each(&list, "/Service/Address"), [expected]);
        assert_eq!(each(&list, "/Node/Node"), [expected], "its node");
    }
    node.put("/v1/agent/check/pass/service:web", &json!({})).await;
    assert_eq!(shown("web", "passing").await, ["10.0.0.3"]);
    // The same id of another agent is another instance, also at the same address.
    for (address, expected) in [("10.0.0.4", ["10.0.0.3", "10.0.0.4"]), ("10.0.0.3", ["10.0.0.3", "10.0.0.3"])] {
        register(two, "web", address).await;
        assert_eq!(shown("web", "").await, expected);
    }
    assert_eq!(shown("web", "passing").await.len(), 1, "the other agent's check has not passed");
    node.put_from(two, "/v1/agent/check/pass/service:web", &json!({})).await;
    node.put("/v1/agent/check/fail/service:web", &json!({})).await;
    assert_eq!(shown("web", "passing").await.len(), 1);
    node.put_from(two, "/v1/agent/service/deregister/web", &json!({})).await;
    assert_eq!((shown("web", "").await.len(), shown("web", "passing").await.len()), (1, 0));
    node.put("/v1/agent/service/deregister/web", &json!({})).await;
    assert!(shown("web", "").await.is_empty());
    node.end().await;
}

/// Rows of an older version, whose id was made of the service's address, are found, updated and removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_whose_id_has_the_services_address_are_the_agents() {
    let node = Node::alone().await;
    let namespace = NamespaceName::default();
    let old = async |id: &str, address: &str, from: &str| {
        let key = registry::api::identity::consul(&namespace, address, id).unwrap();
        let pairs = [
            ("kingpost.consul", r#"{"agent":true}"#),
            ("kingpost.id", id),
            ("kingpost.machine", address),
            ("kingpost.from", from),
        ];
        let metadata = Metadata::from_pairs(pairs.into_iter().filter(|(_, value)| !value.is_empty())).unwrap();
        let service = ServiceKey::new(&namespace, id).unwrap();
        let check = Some(Check::ttl(std::time::Duration::from_secs(60)));
        let row = Registration { metadata, check, ..Registration::new(key, service, address, 80) };
        let rows = node.registry.register(vec![row]).await;
        assert!(rows.iter().all(Result::is_ok), "{rows:?}");
    };
    let register = async |from: &str, id: &str, address: &str| {
        let body = json!({ "ID": id, "Name": id, "Address": address, "Check": { "TTL": "60s" } });
        node.put_from(from, "/v1/agent/service/register", &body).await;
    };
    let shown =
        async |service: &str| each(&node.get(&format!("/v1/health/service/{service}")).await, "/Service/Address");
    for id in ["report", "remove", "same", "other", "two", "apart"] {
        old(id, "10.0.0.1", "127.0.0.1").await;
    }
    old("two", "10.0.0.2", "127.0.0.1").await;
    old("own", "127.0.0.1", "").await;
    old("taken", "127.0.0.1", "127.0.0.2").await;
    node.put("/v1/agent/check/fail/service:report", &json!({})).await;
    assert_eq!(each(&node.get("/v1/health/checks/report").await, "/Status"), ["critical"]);
    node.put("/v1/agent/service/deregister/remove", &json!({})).await;
    assert!(shown("remove").await.is_empty());
    // One of two is reported and removed without a question of which; a registration leaves one.
    node.put("/v1/agent/check/pass/service:two", &json!({})).await;
    for (id, address, expected) in [
        ("same", "10.0.0.1", vec!["10.0.0.1"]),
        ("other", "10.0.0.9", vec!["10.0.0.9"]),
        ("two", "10.0.0.1", vec!["10.0.0.1"]),
        ("own", "10.0.0.9", vec!["10.0.0.9"]),
        ("taken", "10.0.0.9", vec!["10.0.0.9", "127.0.0.1"]),
    ] {
        for _ in 0..2 {
            register("127.0.0.1", id, address).await;
            assert_eq!(shown(id).await, expected, "{id}");
        }
        node.put(&format!("/v1/agent/service/deregister/{id}"), &json!({})).await;
        assert_eq!(shown(id).await.len(), expected.len() - 1, "{id}");
    }
    // Of another agent it is another one.
    register("127.0.0.2", "apart", "10.0.0.2").await;
    assert_eq!(shown("apart").await, ["10.0.0.1", "10.0.0.2"]);
    node.end().await;
}

/// Names of services and nodes, and tags, are compared without case, and shown as they were registered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_tags_are_compared_without_case() {
    let node = Node::alone().await;
    // Someone waits for the service before it is there, by another spelling.
    let (none, index) = node.index("/v1/health/service/order-service").await;
    assert_eq!(none, json!([]));
    let path = format!("/v1/health/service/order-service?index={index}&wait=60s");
    let waits = node.ask("GET", &path, "");
    let one = json!({ "ID": "o1", "Name": "Order-Service", "Tags": ["Primary"], "Port": 80 });
    let registers = async {
        while node.registry.status().watchers == 0 {
            tokio::task::yield_now().await;
        }
        node.put("/v1/agent/service/register", &one).await;
    };
    let (woken, ()) = tokio::join!(waits, registers);
    assert_eq!(each(&serde_json::from_str(&woken.1).unwrap(), "/Service/Service"), ["Order-Service"]);
    // A registration under another spelling joins the service that is there.
    let two = json!({ "ID": "o2", "Name": "ORDER-service", "Tags": ["second"], "Port": 81 });
    node.put("/v1/agent/service/register", &two).await;
    assert_eq!(node.get("/v1/catalog/services").await, json!({ "Order-Service": ["Primary", "second"] }));
    for (path, field, expected) in [
        ("/v1/health/service/order-service", "/Service/ID", &["o1", "o2"][..]),
        ("/v1/health/service/Order-Service?passing", "/Service/ID", &["o1", "o2"]),
        ("/v1/catalog/service/ORDER-SERVICE", "/ServiceID", &["o1", "o2"]),
        ("/v1/health/service/order-service?tag=primary", "/Service/ID", &["o1"]),
        ("/v1/catalog/service/order-service?tag=SECOND", "/ServiceID", &["o2"]),
        ("/v1/catalog/service/order-service?tag=none", "/ServiceID", &[]),
        ("/v1/health/checks/order-service", "/ServiceID", &[]),
    ] {
        assert_eq!(each(&node.get(path).await, field), expected, "{path}");
    }
    assert_eq!(node.ask("GET", "/v1/agent/health/service/name/order-service", "").await.0, 200);
    // Two services of other fronts whose names differ in case only are one for Consul's clients.
    let key = ServiceKey::parse("default/order-service").unwrap();
    let row = Registration::new("default/other".parse().unwrap(), key, "10.0.0.9", 9);
    assert!(node.registry.register(vec![row]).await[0].is_ok());
    for path in ["/v1/health/service/Order-Service", "/v1/health/service/order-SERVICE?passing"] {
        assert_eq!(each(&node.get(path).await, "/Service/ID"), ["o1", "o2", "other"], "{path}");
    }
    // A change of either wakes.
    let (_, index) = node.index("/v1/health/service/order-SERVICE").await;
    let path = format!("/v1/health/service/order-SERVICE?index={index}&wait=60s");
    let waits = node.ask("GET", &path, "");
    let leaves = async {
        while node.registry.status().watchers == 0 {
            tokio::task::yield_now().await;
        }
        node.registry.deregister(&["default/other".parse().unwrap()]).await;
    };
    let (woken, _) = tokio::join!(waits, leaves);
    assert_eq!(each(&serde_json::from_str(&woken.1).unwrap(), "/Service/ID"), ["o1", "o2"]);
    node.end().await;
}

/// A node is found, updated and removed by its name in any case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_compared_without_case() {
    let node = Node::alone().await;
    let register = async |name: &str, port: u16| {
        let service = json!({ "ID": "pg", "Service": "pg", "Port": port });
        let check = json!({ "CheckID": "up", "Name": "Up", "Status": "passing", "Node": name.to_uppercase() });
        let body = json!({ "Node": name, "Address": "10.0.0.1", "Service": service, "Check": check });
        node.put("/v1/catalog/register", &body).await;
    };
    // A row of an older version, whose id has the name as it was spelled.
    let pairs = [("kingpost.consul", "{}"), ("kingpost.id", "old"), ("kingpost.machine", "OLD-1")];
    let old = Registration {
        metadata: Metadata::from_pairs(pairs).unwrap(),
        ..Registration::new("default/consul:old@OLD-1".parse().unwrap(), "default/old".parse().unwrap(), "h", 1)
    };
    assert!(node.registry.register(vec![old]).await[0].is_ok());
    for name in ["OLD-1", "old-1"] {
        let body = json!({ "Node": name, "Address": "h", "Service": { "ID": "old", "Service": "old", "Port": 2 } });
        node.put("/v1/catalog/register", &body).await;
        assert_eq!(each(&node.get("/v1/health/service/old").await, "/Service/ID"), ["old"], "{name}");
    }
    node.put("/v1/catalog/deregister", &json!({ "Node": "Old-1" })).await;
    assert!(each(&node.get("/v1/health/service/old").await, "/Service/ID").is_empty());
    register("DB-1", 1).await;
    register("db-1", 2).await;
    assert_eq!(each(&node.get("/v1/health/service/pg").await, "/Node/Node"), ["DB-1"]);
    assert_eq!(each(&node.get("/v1/catalog/nodes").await, "/Node"), ["DB-1", "own"]);
    for path in ["/v1/catalog/node/db-1", "/v1/catalog/node-services/Db-1"] {
        let found = node.get(path).await;
        assert_eq!(found["Node"]["Node"], "DB-1", "{path}: {found}");
    }
    assert_eq!(node.get("/v1/catalog/node/db-1").await["Services"]["pg"]["Port"], 2);
    assert_eq!(each(&node.get("/v1/health/node/db-1").await, "/CheckID"), ["up"]);
    node.put("/v1/catalog/deregister", &json!({ "Node": "db-1", "ServiceID": "pg" })).await;
    assert!(each(&node.get("/v1/health/service/pg").await, "/Node/Node").is_empty());
    assert_eq!(each(&node.get("/v1/health/node/db-1").await, "/CheckID"), ["up"]);
    node.put("/v1/catalog/deregister", &json!({ "Node": "db-1" })).await;
    assert_eq!(node.get("/v1/catalog/node/DB-1").await, Value::Null);
    node.end().await;
}

/// The rest of a path behind its prefix is the id or the name, with slashes, escaped or not, as in Consul's routes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_and_names_may_have_slashes() {
    let node = Node::alone().await;
    for slash in ["/", "%2F"] {
        let id = format!("batman{slash}pg0");
        let check = json!({ "CheckID": "a/b/c", "TTL": "60s" });
        let service = json!({ "ID": "batman/pg0", "Name": "team/api", "Check": check });
        node.put("/v1/agent/service/register", &service).await;
        let body = json!({ "Node": "rack/1", "Address": "10.0.0.1", "Service": { "ID": "x", "Service": "other" } });
        node.put("/v1/catalog/register", &body).await;
        let status = async || each(&node.get("/v1/health/state/any").await, "/Status");
        for (how, expected) in [("pass", "passing"), ("warn", "warning"), ("fail", "critical")] {
            node.put(&format!("/v1/agent/check/{how}/a{slash}b{slash}c"), &json!({})).await;
            assert_eq!(status().await, [expected]);
        }
        node.put(&format!("/v1/agent/check/update/a{slash}b{slash}c"), &json!({ "Status": "passing" })).await;
        assert_eq!(status().await, ["passing"]);
        for (path, field, expected) in [
            (format!("/v1/health/service/team{slash}api"), "/Service/ID", "batman/pg0"),
            (format!("/v1/health/checks/team{slash}api"), "/CheckID", "a/b/c"),
            (format!("/v1/catalog/service/team{slash}api"), "/ServiceID", "batman/pg0"),
        ] {
            assert_eq!(each(&node.get(&path).await, field), [expected], "{path}");
        }
        assert_eq!(node.get(&format!("/v1/agent/service/{id}")).await["Service"], "team/api");
        assert_eq!(node.get(&format!("/v1/agent/health/service/id/{id}")).await["AggregatedStatus"], "passing");
        assert_eq!(node.ask("GET", &format!("/v1/agent/health/service/name/team{slash}api"), "").await.0, 200);
        assert_eq!(node.get(&format!("/v1/catalog/node/rack{slash}1")).await["Services"]["x"]["Service"], "other");
        assert_eq!(each(&node.get(&format!("/v1/catalog/node-services/rack{slash}1")).await["Services"], "/ID"), ["x"]);
        assert_eq!(node.get(&format!("/v1/health/node/rack{slash}1")).await, json!([]));
        node.put(&format!("/v1/agent/service/maintenance/{id}?enable=true"), &json!({})).await;
        node.put(&format!("/v1/agent/check/deregister/a{slash}b{slash}c"), &json!({})).await;
        assert_eq!(each(&node.get("/v1/health/state/any").await, "/CheckID"), ["_service_maintenance:batman/pg0"]);
        node.put(&format!("/v1/agent/service/deregister/{id}"), &json!({})).await;
        assert_eq!(node.get("/v1/agent/services").await, json!({}));
    }
    for (method, path) in [("PUT", "/v1/agent/service/deregister"), ("GET", "/v1/health/service")] {
        assert_ne!(node.ask(method, path, "").await.0, 200, "{path}");
    }
    node.end().await;
}

/// Services as large as Consul takes them are taken and shown whole; an error names the field, the value and the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_consul_takes_is_taken() {
    let node = Node::alone().await;
    let rule = |n: usize| {
        format!("traefik.http.routers.app-{n}.rule=Host(`app-{n}.shop.example.com`) && PathPrefix(`/v1/items`)")
    };
    let traefik: Vec<String> = (0..60).map(rule).collect();
    let long: Vec<String> = (0..40).map(|n| format!("{n:0512}")).collect();
    let pairs = |count: usize, bytes: usize| -> std::collections::BTreeMap<String, String> {
        (0..count).map(|n| (format!("{n:0128}"), "v".repeat(bytes))).collect()
    };
    let checks: Vec<Value> =
        (0..16).map(|n| json!({ "CheckID": format!("{n:0100}"), "TTL": "60s", "Notes": "n".repeat(512) })).collect();
    let cases = [
        json!({ "Name": "traefik", "Tags": traefik }),
        json!({ "Name": "long", "Tags": long }),
        json!({ "Name": "meta", "Meta": pairs(64, 512), "Tags": long, "Checks": checks, "Address": "10.0.0.1" }),
        json!({ "Name": "weights", "Weights": { "Passing": 65535, "Warning": 0 } }),
        json!({ "Name": "weight", "Weights": { "Passing": 655, "Warning": 655 } }),
    ];
    for sent in &cases {
        node.put("/v1/agent/service/register", sent).await;
        let name = sent["Name"].as_str().unwrap();
        let shown = node.get(&format!("/v1/health/service/{name}")).await[0]["Service"].clone();
        for field in ["Tags", "Meta", "Weights"].into_iter().filter(|field| !sent[field].is_null()) {
            assert_eq!(shown[field], sent[field], "{name}");
        }
        let mut of_catalog = sent.clone();
        of_catalog["Service"] = of_catalog["Name"].take();
        of_catalog.as_object_mut().unwrap().remove("Checks");
        let body = json!({ "Node": "n", "Address": "10.0.0.2", "NodeMeta": pairs(64, 512), "Service": of_catalog });
        node.put("/v1/catalog/register", &body).await;
    }
    let many: Vec<String> = (0..300).map(|n| format!("{n:0512}")).collect();
    for (sent, names) in [
        (json!({ "Name": "x", "Meta": pairs(65, 1) }), "metadata entries: 65 is more than the limit of 64"),
        (
            json!({ "Name": "x", "Meta": { "key": "v".repeat(4097) } }),
            "metadata value of \"key\", in bytes: 4097 is more than the limit of 4096",
        ),
        (json!({ "Name": "x", "Meta": { "k".repeat(129): "" } }), "in bytes: 129 is more than the limit of 128"),
        (json!({ "Name": "x", "Tags": many }), "Tags"),
        (json!({ "Name": "x", "Tags": many }), "the limit of 131072"),
        (json!({ "Name": "x", "Check": { "TTL": "500ms" } }), "500ms; expected 1s"),
    ] {
        let (status, said) = node.ask("PUT", "/v1/agent/service/register", &sent.to_string()).await;
        assert!(status == 400 && said.contains(names), "{names}: {status} {said}");
    }
    // As at Consul, a shorter interval is one second.
    let short = json!({ "Name": "short", "Check": { "TCP": "10.0.0.1:1", "Interval": "100ms", "Timeout": "1s" } });
    node.put("/v1/agent/service/register", &short).await;
    assert_eq!(node.get("/v1/health/checks/short").await[0]["Definition"]["Interval"], "1s");
    node.end().await;
}

/// Attributes beside the usual ones, of an agent's client or the catalog's writer, are kept and shown, also after the next registration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_beside_the_registration_is_kept() {
    let node = Node::alone().await;
    let nothing = json!({});
    // The reason of a service's maintenance.
    let web = json!({ "ID": "w", "Name": "web", "Check": { "TTL": "60s", "Status": "passing" } });
    node.put("/v1/agent/service/register", &web).await;
    let notes = async || {
        let checks = node.get("/v1/health/checks/web").await;
        let found = checks.as_array().unwrap().iter().find(|check| check["CheckID"] == "_service_maintenance:w");
        found.map(|check| check["Notes"].as_str().unwrap().to_owned())
    };
    for (query, expected) in [
        ("enable=true&reason=a+disk", Some("a disk")),
        ("enable=true&reason=another", Some("a disk")),
        ("enable=false", None),
        (
            "enable=true",
            Some(
                "Maintenance mode is enabled for this service, but no reason was provided. This is a default message.",
            ),
        ),
        ("enable=false&reason=x", None),
        ("enable=true&reason=last", Some("last")),
    ] {
        node.put(&format!("/v1/agent/service/maintenance/w?{query}"), &nothing).await;
        assert_eq!(notes().await.as_deref(), expected, "{query}");
        node.put("/v1/agent/service/register", &web).await;
        node.put("/v1/agent/check/pass/service:w", &nothing).await;
        assert_eq!(notes().await.as_deref(), expected, "registered again after {query}");
    }
    // CreateIndex stays, and is never above ModifyIndex.
    let indexes = async |path: &str, at: &str| {
        let list = node.get(path).await;
        let entry = list.pointer(at).unwrap();
        (entry["CreateIndex"].as_u64().unwrap(), entry["ModifyIndex"].as_u64().unwrap())
    };
    let (at_first, _) = indexes("/v1/health/service/web", "/0/Service").await;
    node.put("/v1/agent/check/fail/service:w", &nothing).await;
    node.put("/v1/agent/service/register", &web).await;
    for (path, at) in
        [("/v1/health/service/web", "/0/Service"), ("/v1/catalog/service/web", "/0"), ("/v1/health/checks/web", "/0")]
    {
        let (created, modified) = indexes(path, at).await;
        assert_eq!(created, at_first, "{path}");
        assert!(created < modified, "{path}: {created} {modified}");
    }
    node.put("/v1/agent/service/deregister/w", &nothing).await;
    node.put("/v1/agent/service/register", &web).await;
    assert!(indexes("/v1/health/service/web", "/0/Service").await.0 > at_first, "it is a new one");
    // The definition of a catalog's check, of a node and of a service: consul-esm reads it to know what to probe.
    let definition = json!({ "HTTP": "http://10.0.0.1/up", "Interval": "10s", "TLSSkipVerify": true });
    let check = |id: &str, service: &str| json!({ "CheckID": id, "Name": id, "ServiceID": service, "Status": "passing", "Definition": definition });
    let external = json!({ "Node": "x", "Address": "10.0.0.1", "NodeMeta": { "external-node": "true" },
        "Service": { "ID": "e", "Service": "ext" }, "Checks": [check("n", ""), check("s", "e"), check("t", "e")] });
    node.put("/v1/catalog/register", &external).await;
    let one = json!({ "Node": "y", "Address": "10.0.0.2", "Service": { "ID": "e", "Service": "ext" }, "Check": check("o", "e") });
    node.put("/v1/catalog/register", &one).await;
    for (path, count) in [("/v1/health/node/x", 3), ("/v1/health/node/y", 1), ("/v1/health/checks/ext", 3)] {
        let list = node.get(path).await;
        assert_eq!(list.as_array().unwrap().len(), count, "{path}: {list}");
        assert!(list.as_array().unwrap().iter().all(|check| check["Definition"] == definition), "{path}: {list}");
    }
    let (created, _) = indexes("/v1/catalog/service/ext", "/0").await;
    node.put("/v1/catalog/register", &external).await;
    let mut changed = external.clone();
    changed["Service"]["Port"] = json!(9);
    node.put("/v1/catalog/register", &changed).await;
    let (still, modified) = indexes("/v1/catalog/service/ext", "/0").await;
    assert!(still == created && modified > created, "{created} {still} {modified}");
    // Tags that others set, where the service lets them.
    let tagged = |tags: &[&str], port: u16| {
        json!({ "ID": "t", "Name": "tagged", "Address": "10.0.0.3", "Port": port, "Tags": tags,
        "EnableTagOverride": true, "Check": { "TTL": "60s" } })
    };
    let set = |tags: &[&str]| {
        json!({ "Node": "10.0.0.3", "Address": "10.9.9.9",
        "Service": { "ID": "t", "Service": "tagged", "Address": "10.9.9.9", "Port": 99, "Tags": tags } })
    };
    let shown = async || {
        let list = node.get("/v1/health/service/tagged").await;
        assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
        assert_eq!(list[0]["Service"]["Address"], "10.0.0.3", "the agent's");
        (
            list[0]["Service"]["Tags"].clone(),
            list[0]["Service"]["Port"].clone(),
            list[0]["Checks"][0]["CheckID"].clone(),
        )
    };
    node.put("/v1/agent/service/register", &tagged(&["a"], 80)).await;
    for (path, body, tags, port) in [
        ("/v1/catalog/register", set(&["b", "c"]), json!(["b", "c"]), 80),
        ("/v1/agent/service/register", tagged(&["a"], 80), json!(["b", "c"]), 80),
        ("/v1/agent/service/register", tagged(&["a"], 81), json!(["b", "c"]), 81),
        ("/v1/agent/service/register", tagged(&["d"], 81), json!(["d"]), 81),
        ("/v1/catalog/register", set(&["d"]), json!(["d"]), 81),
        ("/v1/agent/service/register", tagged(&["a"], 81), json!(["a"]), 81),
    ] {
        node.put(path, &body).await;
        assert_eq!(shown().await, (tags, json!(port), json!("service:t")), "{path} {body}");
        node.put("/v1/agent/check/pass/service:t", &nothing).await;
    }
    node.end().await;
}

/// More hosts than an agent's call looks through have a check with one id: each host reports its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_host_reports_its_own_lease() {
    let node = Node::alone().await;
    let lease = json!({ "CheckID": "serfHealth", "Name": "Serf Health Status", "TTL": "60s", "Status": "passing" });
    let hosts: Vec<String> = (1..=80).map(|n| format!("127.0.0.{n}")).collect();
    for host in &hosts {
        node.put_from(host, "/v1/agent/check/register", &lease).await;
    }
    for host in &hosts {
        node.put_from(host, "/v1/agent/check/pass/serfHealth", &Value::Null).await;
    }
    node.put_from("127.0.0.7", "/v1/agent/service/register", &json!({ "Name": "web" })).await;
    node.put_from("127.0.0.8", "/v1/agent/service/register", &json!({ "Name": "web" })).await;
    node.put_from("127.0.0.7", "/v1/agent/check/fail/serfHealth", &Value::Null).await;
    let passing = node.get("/v1/health/service/web?passing").await;
    assert_eq!(each(&passing, "/Node/Node"), ["127.0.0.8"]);
    // A session of the host that is gone is refused, one of another is not.
    let (status, said) = node.ask_from("127.0.0.7", "PUT", "/v1/session/create", "").await;
    assert!(status == 500 && said.contains("serfHealth"), "{status} {said}");
    assert_eq!(node.ask_from("127.0.0.8", "PUT", "/v1/session/create", "").await.0, 200);
    node.end().await;
}

/// A service is found by `service:ID`; that a session can depend on a check of this id, the service must have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_refused_without_its_checks() {
    let node = Node::alone().await;
    let body = json!({ "ServiceChecks": [{ "ID": "service:web" }] }).to_string();
    for (registered, status, said) in [
        (json!({ "Name": "web" }), 500, "Missing check 'service:web' registration"),
        (json!({ "Name": "web", "Check": { "CheckID": "own", "TTL": "60s", "Status": "passing" } }), 500, "Missing"),
        (json!({ "Name": "web", "Checks": [{ "TTL": "60s" }, { "TTL": "60s" }] }), 500, "Missing"),
        (json!({ "Name": "web", "Check": { "TTL": "60s" } }), 500, "critical"),
        (json!({ "Name": "web", "Check": { "TTL": "60s", "Status": "passing" } }), 200, "ID"),
    ] {
        let (done, text) = node.ask("PUT", "/v1/agent/service/deregister/web", "").await;
        assert!(done == 200 || done == 404, "{done} {text}");
        node.put("/v1/agent/service/register", &registered).await;
        let (found, text) = node.ask("PUT", "/v1/session/create", &body).await;
        assert!(found == status && text.contains(said), "{registered}: {found} {text}");
    }
    node.end().await;
}

/// Maintenance survives a registration, unless its client asks for all checks to be replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_is_a_check_that_is_replaced() {
    let node = Node::alone().await;
    let body = json!({ "Name": "web", "Check": { "TTL": "60s", "Status": "passing" } });
    node.put("/v1/agent/service/register", &body).await;
    node.put("/v1/agent/service/maintenance/web?enable=true&reason=work", &Value::Null).await;
    for (query, there) in [("", true), ("?replace-existing-checks=true", false)] {
        node.put(&format!("/v1/agent/service/register{query}"), &body).await;
        let checks = node.get("/v1/agent/checks").await;
        assert_eq!(checks.get("_service_maintenance:web").is_some(), there, "{query}: {checks}");
    }
    node.end().await;
}

/// A session is of a node of the catalog, and ends when the node is deregistered; one of the client's own host needs none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_node() {
    let node = Node::alone().await;
    let of = |name: &str| json!({ "Node": name, "NodeChecks": [] }).to_string();
    let (status, said) = node.ask("PUT", "/v1/session/create", &of("db-1")).await;
    assert!(status == 500 && said.contains("Missing node registration"), "{status} {said}");
    for (name, more) in [("db-1", json!(null)), ("db-2", json!({ "Service": "web" }))] {
        node.put("/v1/catalog/register", &json!({ "Node": name, "Address": "10.0.0.1", "Service": more })).await;
    }
    for name in ["DB-1", "db-2", "127.0.0.1"] {
        let (status, said) = node.ask("PUT", "/v1/session/create", &of(name)).await;
        assert_eq!(status, 200, "{name}: {said}");
    }
    node.put("/v1/catalog/deregister", &json!({ "Node": "db-2", "ServiceID": "none" })).await;
    assert_eq!(each(&node.get("/v1/session/list").await, "/Node").len(), 3);
    node.put("/v1/catalog/deregister", &json!({ "Node": "db-1" })).await;
    assert_eq!(each(&node.get("/v1/session/list").await, "/Node"), ["127.0.0.1", "db-2"]);
    node.end().await;
}

/// An alias has the health of a service of the same agent, of another node, or of a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_has_the_health_of_what_it_names() {
    let node = Node::alone().await;
    let check = |fields: Value| {
        let mut check = json!({ "CheckID": "alias" });
        check.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        check
    };
    let aliasing = async |name: &str, fields: Value| {
        node.put("/v1/agent/service/register", &json!({ "Name": name, "Port": 80, "Check": check(fields) })).await;
    };
    let is = async |name: &str, status: &str| {
        let begun = tokio::time::Instant::now();
        loop {
            let found = node.get(&format!("/v1/health/checks/{name}")).await;
            let own = found.as_array().unwrap().iter().find(|one| one["CheckID"] == "alias").unwrap().clone();
            if own["Status"] == status {
                assert_eq!(own["Type"], "alias");
                return own;
            }
            assert!(begun.elapsed() < PATIENCE, "{name} is not {status}: {own}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    // The aliased service comes later, and another node's beside it.
    aliasing("front", json!({ "AliasService": "back" })).await;
    aliasing("far", json!({ "AliasService": "back", "AliasNode": "n1" })).await;
    aliasing("host", json!({ "AliasNode": "n1" })).await;
    let back =
        json!({ "Name": "back", "Port": 81, "Check": { "CheckID": "beat", "TTL": "600s", "Status": "warning" } });
    node.put("/v1/agent/service/register", &back).await;
    let of_node = |service: &str, status: &str| {
        json!({
            "Node": "n1", "Address": "10.0.0.1", "Service": { "ID": "back", "Service": "back", "Port": 82 },
            "Checks": [{ "Node": "n1", "CheckID": "up", "Name": "up", "Status": status, "ServiceID": service }],
        })
    };
    is("front", "warning").await;
    is("far", "critical").await;
    is("host", "critical").await;
    node.put("/v1/catalog/register", &of_node("back", "warning")).await;
    assert_eq!(is("far", "warning").await["Definition"], json!({ "AliasNode": "n1", "AliasService": "back" }));
    is("host", "passing").await;
    node.put("/v1/agent/check/pass/beat", &json!({})).await;
    is("front", "passing").await;
    node.put("/v1/agent/check/fail/beat", &json!({})).await;
    is("front", "critical").await;
    // A check of the node counts for its services, too.
    node.put("/v1/catalog/register", &of_node("", "critical")).await;
    is("far", "critical").await;
    is("host", "critical").await;
    let own = json!({ "Name": "front", "Port": 80, "Check": check(json!({ "AliasService": "front" })) });
    assert_eq!(node.ask("PUT", "/v1/agent/service/register", &own.to_string()).await.0, 400);
    node.end().await;
}
