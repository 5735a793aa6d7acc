//! Eureka's API over HTTP, with the algorithm of Eureka's own client as the reader of deltas.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::common::*;

impl Node {
    async fn register(&self, id: &str, fields: Value) {
        let mut instance = json!({
            "instanceId": id, "hostName": "h", "app": "SHOP", "ipAddr": "10.0.0.1", "port": { "$": 80, "@enabled": "true" },
            "leaseInfo": { "durationInSecs": 600 },
        });
        instance.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = self.ask("POST", "/eureka/apps/SHOP", &json!({ "instance": instance }).to_string()).await;
        assert_eq!(answer.0, 204, "{}", answer.1);
    }

    async fn deregister(&self, id: &str) {
        assert_eq!(self.ask("DELETE", &format!("/eureka/apps/SHOP/{id}"), "").await.0, 200);
    }
}

/// The cache of Eureka's client: it fetches everything once, then applies deltas, and fetches everything again only if its numbers of instances by status
/// are not those that a delta names.
#[derive(Default)]
struct Client {
    /// Status and address of each instance.
    seen: BTreeMap<String, [String; 2]>,
}

impl Client {
    fn of(list: &Value) -> impl Iterator<Item = (&str, String, [String; 2])> {
        let applications = list["applications"]["application"].as_array().into_iter().flatten();
        let instances = applications.flat_map(|application| application["instance"].as_array().into_iter().flatten());
        instances.map(|instance| {
            let text = |field: &str| instance[field].as_str().unwrap();
            (text("actionType"), text("instanceId").to_owned(), [text("status").to_owned(), text("ipAddr").to_owned()])
        })
    }

    async fn fetch(&mut self, node: &Node) {
        self.seen = Client::of(&node.get("/eureka/apps").await).map(|(_, id, rest)| (id, rest)).collect();
    }

    async fn poll(&mut self, node: &Node) {
        let delta = node.get("/eureka/apps/delta").await;
        for (action, id, rest) in Client::of(&delta) {
            match action {
                "ADDED" | "MODIFIED" => self.seen.insert(id, rest),
                "DELETED" => self.seen.remove(&id),
                action => panic!("{action}"),
            };
        }
        let mut counts = BTreeMap::<_, usize>::new();
        self.seen.values().for_each(|[status, _]| *counts.entry(status.clone()).or_default() += 1);
        let code: String = counts.iter().map(|(status, count)| format!("{status}_{count}_")).collect();
        if delta["applications"]["apps__hashcode"] != code {
            self.fetch(node).await;
        }
    }

    /// Polls, and compares with what a new client sees.
    async fn knows_all(&mut self, node: &Node, when: &str) {
        self.poll(node).await;
        let mut new = Client::default();
        new.fetch(node).await;
        assert_eq!(self.seen, new.seen, "{when}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_notices_what_changed_before_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path()).await;
    node.register("x1", json!({})).await;
    node.register("same", json!({})).await;
    let mut client = Client::default();
    client.fetch(&node).await;
    // The numbers by status stay as they were.
    node.deregister("x1").await;
    node.register("x2", json!({})).await;
    node.register("same", json!({ "ipAddr": "10.0.0.2" })).await;
    node.end().await;
    let node = Node::start(directory.path()).await;
    client.knows_all(&node, "after the restart").await;
    assert_eq!(client.seen.keys().collect::<Vec<_>>(), ["same", "x2"]);
    // A removal since then is named, for clients that do not count.
    node.deregister("x2").await;
    let delta = node.get("/eureka/apps/delta").await;
    let actions: BTreeMap<_, _> = Client::of(&delta).map(|(action, id, _)| (id, action)).collect();
    assert_eq!(actions, BTreeMap::from([("same".to_owned(), "ADDED"), ("x2".to_owned(), "DELETED")]));
    client.knows_all(&node, "after a removal").await;
    node.deregister("same").await;
    client.knows_all(&node, "after the last removal").await;
    assert!(client.seen.is_empty());
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_notices_what_changed_while_nodes_restart_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let mut nodes = [Node::start(directory.path()).await, Node::start(directory.path()).await];
    nodes[0].register("x0", json!({})).await;
    let mut client = Client::default();
    client.fetch(&nodes[0]).await;
    for round in 0..4 {
        let [down, up] = nodes;
        down.end().await;
        up.deregister(&format!("x{round}")).await;
        up.register(&format!("x{}", round + 1), json!({})).await;
        // The client's next node is the one that was down meanwhile.
        let again = Node::start(directory.path()).await;
        client.knows_all(&again, &format!("round {round}")).await;
        assert_eq!(client.seen.keys().collect::<Vec<_>>(), [&format!("x{}", round + 1)]);
        nodes = [up, again];
    }
    for node in nodes {
        node.end().await;
    }
}

/// Each step is a request, its status, and what is shown then: the status, the override, and whether the instance passes for Consul's clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_come_in_the_order_of_the_originals_rules() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path()).await;
    let say = |status: &str| format!("POST {status}");
    for (request, code, status, overridden, passes) in [
        (say("UP"), 204, "UP", "UNKNOWN", true),
        // The status in force is no override: the instance may say DOWN later.
        ("PUT /status?value=UP".into(), 200, "UP", "UNKNOWN", true),
        (say("DOWN"), 204, "DOWN", "UNKNOWN", false),
        ("PUT /status?value=UP".into(), 200, "UP", "UP", true),
        (say("DOWN"), 204, "DOWN", "UP", false),
        (say("STARTING"), 204, "STARTING", "UP", false),
        (say("UP"), 204, "UP", "UP", true),
        ("PUT /status?value=OUT_OF_SERVICE".into(), 200, "OUT_OF_SERVICE", "OUT_OF_SERVICE", false),
        (say("UP"), 204, "OUT_OF_SERVICE", "OUT_OF_SERVICE", false),
        (say("STARTING"), 204, "STARTING", "OUT_OF_SERVICE", false),
        (say("UP"), 204, "OUT_OF_SERVICE", "OUT_OF_SERVICE", false),
        ("PUT /metadata?a=b".into(), 200, "OUT_OF_SERVICE", "OUT_OF_SERVICE", false),
        ("PUT ".into(), 200, "OUT_OF_SERVICE", "OUT_OF_SERVICE", false),
        // The instance has to say its own once more.
        ("DELETE /status".into(), 200, "UNKNOWN", "UNKNOWN", false),
        ("PUT ".into(), 404, "UNKNOWN", "UNKNOWN", false),
        (say("UP"), 204, "UP", "UNKNOWN", true),
        ("PUT ".into(), 200, "UP", "UNKNOWN", true),
        ("DELETE /status?value=DOWN".into(), 200, "UP", "UNKNOWN", true),
        ("PUT /status?value=OUT_OF_SERVICE".into(), 200, "OUT_OF_SERVICE", "OUT_OF_SERVICE", false),
        ("DELETE /status?value=UP".into(), 200, "UP", "UNKNOWN", true),
        ("PUT /status?value=ABSENT".into(), 400, "UP", "UNKNOWN", true),
        ("PUT /status".into(), 400, "UP", "UNKNOWN", true),
    ] {
        let (method, rest) = request.split_once(' ').unwrap();
        match method {
            "POST" => node.register("a", json!({ "status": rest })).await,
            _ => assert_eq!(node.ask(method, &format!("/eureka/apps/SHOP/a{rest}"), "").await.0, code, "{request}"),
        }
        let shown = node.get("/eureka/apps/SHOP/a").await["instance"].clone();
        assert_eq!(json!([shown["status"], shown["overriddenStatus"]]), json!([status, overridden]), "{request}");
        let passing = node.get("/v1/health/service/shop?passing").await;
        assert_eq!(passing.as_array().unwrap().len(), usize::from(passes), "{request}: {passing}");
    }
    // An override ends with the registration.
    assert_eq!(node.ask("PUT", "/eureka/apps/SHOP/a/status?value=OUT_OF_SERVICE", "").await.0, 200);
    node.deregister("a").await;
    node.register("a", json!({})).await;
    assert_eq!(node.get("/eureka/apps/SHOP/a").await["instance"]["status"], "UP");
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_registration_does_not_replace_a_newer_one() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path()).await;
    let registered = async |dirty: Option<i64>, ip: &str| {
        let mut fields = json!({ "ipAddr": ip });
        if let Some(dirty) = dirty {
            fields["lastDirtyTimestamp"] = dirty.to_string().into();
        }
        node.register("a", fields).await;
        node.get("/eureka/apps/SHOP/a").await["instance"]["ipAddr"].as_str().unwrap().to_owned()
    };
    assert_eq!(registered(Some(2000), "10.0.0.2").await, "10.0.0.2");
    assert_eq!(registered(Some(1999), "10.0.0.1").await, "10.0.0.2");
    assert_eq!(registered(Some(2000), "10.0.0.3").await, "10.0.0.3");
    for (dirty, expected) in [
        ("?lastDirtyTimestamp=2001", 404),
        ("?lastDirtyTimestamp=2000", 200),
        ("?lastDirtyTimestamp=1999", 200),
        ("", 200),
    ] {
        assert_eq!(node.ask("PUT", &format!("/eureka/apps/SHOP/a{dirty}"), "").await.0, expected, "{dirty}");
    }
    assert_eq!(node.ask("PUT", "/eureka/apps/SHOP/a?lastDirtyTimestamp=now", "").await.0, 400);
    // One that does not say when it was made counts.
    assert_eq!(registered(None, "10.0.0.4").await, "10.0.0.4");
    assert_eq!(node.ask("PUT", "/eureka/apps/SHOP/a?lastDirtyTimestamp=3000", "").await.0, 200);
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_names_are_answered_as_by_the_original() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path()).await;
    for registered in [false, true] {
        for path in ["vips/none", "svips/none", "vips/NONE"] {
            let found = node.get(&format!("/eureka/{path}")).await["applications"].clone();
            assert_eq!(json!([found["application"], found["apps__hashcode"]]), json!([[], ""]), "{path}");
        }
        for path in ["apps/NONE", "apps/NONE/a", "apps/SHOP/none", "instances/none"] {
            assert_eq!(node.ask("GET", &format!("/eureka/{path}"), "").await.0, 404, "{path}");
        }
        for (method, path) in [
            ("PUT", "none"),
            ("DELETE", "none"),
            ("PUT", "none/status?value=UP"),
            ("DELETE", "none/status"),
            ("PUT", "none/metadata?a=b"),
        ] {
            assert_eq!(node.ask(method, &format!("/eureka/apps/SHOP/{path}"), "").await.0, 404, "{method} {path}");
        }
        for path in ["apps", "apps/delta"] {
            let code = if registered { "UP_1_" } else { "" };
            assert_eq!(node.get(&format!("/eureka/{path}")).await["applications"]["apps__hashcode"], code, "{path}");
        }
        node.register("a", json!({ "vipAddress": "one,two", "secureVipAddress": "three" })).await;
    }
    for (path, found) in
        [("vips/one", 1), ("vips/two", 1), ("svips/three", 1), ("vips/three", 0), ("svips/one", 0), ("vips/one,two", 0)]
    {
        let list = node.get(&format!("/eureka/{path}")).await;
        assert_eq!(Client::of(&list).count(), found, "{path}");
        let code = if found == 1 { "UP_1_" } else { "" };
        assert_eq!(list["applications"]["apps__hashcode"], code, "{path}");
    }
    node.end().await;
}

/// A few of the fields that `make peers` compares with the original.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_is_shown_in_the_originals_form() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path()).await;
    let least = json!({ "instance": { "hostName": "least", "status": "STARTING", "sid": "na", "appGroupName": "Group", "isCoordinatingDiscoveryServer": "true" } });
    assert_eq!(node.ask("POST", "/eureka/apps/SHOP", &least.to_string()).await.0, 204);
    let shown = node.get("/eureka/apps/SHOP/least").await["instance"].clone();
    for (field, expected) in [
        ("/overriddenStatus", json!("UNKNOWN")),
        ("/metadata", json!({ "@class": "java.util.Collections$EmptyMap" })),
        ("/port", json!({ "$": 7001, "@enabled": "true" })),
        ("/securePort", json!({ "$": 7002, "@enabled": "false" })),
        ("/appGroupName", json!("GROUP")),
        ("/isCoordinatingDiscoveryServer", json!("false")),
        ("/leaseInfo/serviceUpTimestamp", json!(0)),
        ("/actionType", json!("ADDED")),
    ] {
        assert_eq!(shown.pointer(field), Some(&expected), "{field}: {shown}");
    }
    for absent in ["overriddenstatus", "sid", "vipAddress"] {
        assert!(shown.get(absent).is_none(), "{absent}: {shown}");
    }
    assert_ne!(shown["lastDirtyTimestamp"], "0");
    assert_eq!(node.ask("PUT", "/eureka/apps/SHOP/least/status?value=UP", "").await.0, 200);
    let shown = node.get("/eureka/apps/SHOP/least").await["instance"].clone();
    assert!(shown["actionType"] == "MODIFIED" && shown["leaseInfo"]["serviceUpTimestamp"] != 0, "{shown}");
    // An instance of another front is found by its service's name.
    let consul = json!({ "ID": "w", "Name": "web", "Address": "10.0.0.9", "Port": 9 });
    assert_eq!(node.ask("PUT", "/v1/agent/service/register", &consul.to_string()).await.0, 200);
    assert_eq!(Client::of(&node.get("/eureka/vips/web").await).count(), 1);
    node.deregister("least").await;
    let delta = node.get("/eureka/apps/delta").await["applications"]["application"].clone();
    let gone = delta.as_array().unwrap().iter().find(|app| app["name"] == "SHOP").unwrap()["instance"][0].clone();
    assert!(gone["actionType"] == "DELETED" && gone["leaseInfo"]["evictionTimestamp"] != 0, "{gone}");
    node.end().await;
}

/// Each step is a change as another Eureka server sends it, its status, and what is shown then: the status, the override, the address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_servers_changes_are_made_by_the_originals_rules() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(directory.path()).await;
    let info = |status: &str, overridden: &str, dirty: i64, ip: &str| {
        json!({
            "instanceId": "a", "hostName": "h", "app": "SHOP", "ipAddr": ip, "port": { "$": 80, "@enabled": "true" },
            "leaseInfo": { "durationInSecs": 600 }, "status": status, "overriddenStatus": overridden,
            "lastDirtyTimestamp": dirty.to_string(),
        })
    };
    let change = |action: &str, more: Value| {
        let mut change = json!({ "appName": "SHOP", "id": "a", "action": action });
        change.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        change
    };
    let registered = |info: Value| change("Register", json!({ "instanceInfo": info }));
    let beat = |dirty: i64, overridden: Value| {
        change("Heartbeat", json!({ "lastDirtyTimestamp": dirty, "status": "UP", "overriddenStatus": overridden }))
    };
    let said = |action: &str, status: &str, dirty: i64| {
        change(action, json!({ "status": status, "lastDirtyTimestamp": dirty }))
    };
    let gone = json!([null, null, null]);
    for (change, code, shown) in [
        (beat(10, Value::Null), 404, gone.clone()),
        (said("StatusUpdate", "DOWN", 10), 404, gone.clone()),
        (change("Cancel", json!({})), 404, gone.clone()),
        (change("Register", json!({})), 400, gone.clone()),
        (change("Explode", json!({})), 400, gone.clone()),
        (registered(info("UP", "UNKNOWN", 10, "10.0.0.1")), 200, json!(["UP", "UNKNOWN", "10.0.0.1"])),
        (beat(10, Value::Null), 200, json!(["UP", "UNKNOWN", "10.0.0.1"])),
        // The sender has older data: it gets the newer ones.
        (beat(9, Value::Null), 409, json!(["UP", "UNKNOWN", "10.0.0.1"])),
        // It has newer ones, and an operator's status.
        (beat(11, json!("OUT_OF_SERVICE")), 404, json!(["OUT_OF_SERVICE", "OUT_OF_SERVICE", "10.0.0.1"])),
        (
            registered(info("UP", "UNKNOWN", 11, "10.0.0.2")),
            200,
            json!(["OUT_OF_SERVICE", "OUT_OF_SERVICE", "10.0.0.2"]),
        ),
        (
            registered(info("UP", "UNKNOWN", 10, "10.0.0.3")),
            200,
            json!(["OUT_OF_SERVICE", "OUT_OF_SERVICE", "10.0.0.2"]),
        ),
        (said("DeleteStatusOverride", "UP", 11), 200, json!(["UP", "UNKNOWN", "10.0.0.2"])),
        (said("StatusUpdate", "DOWN", 12), 200, json!(["DOWN", "DOWN", "10.0.0.2"])),
        (beat(12, json!("DOWN")), 200, json!(["DOWN", "DOWN", "10.0.0.2"])),
        // What a server says of UP and OUT_OF_SERVICE counts: it has applied the rules.
        (said("DeleteStatusOverride", "UP", 12), 200, json!(["UP", "UNKNOWN", "10.0.0.2"])),
        (
            registered(info("OUT_OF_SERVICE", "UNKNOWN", 13, "10.0.0.2")),
            200,
            json!(["OUT_OF_SERVICE", "UNKNOWN", "10.0.0.2"]),
        ),
        (registered(info("UP", "UNKNOWN", 14, "10.0.0.2")), 200, json!(["UP", "UNKNOWN", "10.0.0.2"])),
        (change("Cancel", json!({})), 200, gone.clone()),
        (
            registered(info("OUT_OF_SERVICE", "OUT_OF_SERVICE", 15, "10.0.0.4")),
            200,
            json!(["OUT_OF_SERVICE", "OUT_OF_SERVICE", "10.0.0.4"]),
        ),
    ] {
        let body = json!({ "replicationList": [change] }).to_string();
        let answer = node.ask("POST", "/eureka/peerreplication/batch/", &body).await;
        assert_eq!(answer.0, 200, "{}", answer.1);
        let answer: Value = serde_json::from_str(&answer.1).unwrap();
        let response = &answer["responseList"][0];
        assert_eq!(response["statusCode"], code, "{body}: {answer}");
        assert_eq!(
            response["responseEntity"]["instanceId"],
            if code == 409 { json!("a") } else { Value::Null },
            "{body}"
        );
        let (status, text) = node.ask("GET", "/eureka/apps/SHOP/a", "").await;
        let instance: Value =
            if status == 200 { serde_json::from_str::<Value>(&text).unwrap()["instance"].clone() } else { Value::Null };
        assert_eq!(json!([instance["status"], instance["overriddenStatus"], instance["ipAddr"]]), shown, "{body}");
    }
    // Several at once: those of an instance in their order, and each with its own status.
    let list: Vec<Value> = (0..20)
        .flat_map(|number| {
            let one = |action: &str, more: Value| {
                let mut one = change(action, more);
                one["id"] = format!("b{number}").into();
                one
            };
            let mut info = info("UP", "UNKNOWN", 10, "10.0.0.1");
            info["instanceId"] = format!("b{number}").into();
            [one("Cancel", json!({})), one("Register", json!({ "instanceInfo": info })), one("Heartbeat", json!({}))]
        })
        .collect();
    let body = json!({ "replicationList": list }).to_string();
    let answer: Value =
        serde_json::from_str(&node.ask("POST", "/eureka/peerreplication/batch", &body).await.1).unwrap();
    let codes: Vec<u64> =
        answer["responseList"].as_array().unwrap().iter().map(|one| one["statusCode"].as_u64().unwrap()).collect();
    assert_eq!(codes, [404, 200, 200].repeat(20));
    for (method, body, code) in [("POST", "{}", 400), ("POST", "[", 400), ("GET", "", 405)] {
        assert_eq!(node.ask(method, "/eureka/peerreplication/batch", body).await.0, code, "{method} {body}");
    }
    node.end().await;
}
