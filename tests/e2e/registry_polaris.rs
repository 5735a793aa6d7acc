//! Polaris' console API. The codes of the table are those of Polaris' own server, 1.18, to the same sequence.

use kingpost_tests::{RegistryNode, ShowLogs};
use serde_json::{Value, json};

use crate::registry_clients_nacos::token;

const INSTANCES: &str = "/naming/v1/instances";

/// A request and its answer: method, path below `/naming/v1`, body, and then the status, the code, the amount, and the codes of the parts or the ports
/// of the instances.
type Step = (&'static str, &'static str, String, u16, u32, u64, Vec<u64>);

async fn follow(node: &RegistryNode, steps: Vec<Step>) {
    for (method, path, body, status, code, amount, parts) in steps {
        let answer = node.ask(method, &format!("/naming/v1/{path}"), &[], &body).await;
        let said = answer.json();
        let of = |list: &str, field: &str| -> Vec<u64> {
            said[list].as_array().into_iter().flatten().map(|part| part[field].as_u64().unwrap()).collect()
        };
        let mut found = [of("responses", "code"), of("instances", "port")].concat();
        found.sort_unstable();
        let seen = (answer.status, said["code"].as_u64(), said["amount"].as_u64().unwrap_or(0), found);
        assert_eq!(seen, (status, Some(u64::from(code)), amount, parts), "{method} {path} {body}: {}", answer.body);
    }
}

/// Changes and queries of one service's instances.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_api_answers_as_polaris_does() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let at = |host: &str, port: u16, more: Value| {
        let mut fields = json!({ "namespace": "default", "service": "shop", "host": host, "port": port });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    let list = |fields: Value| json!([fields]).to_string();
    let (one, two, three) = ("10.0.0.1", "10.0.0.2", json!({ "metadata": { "a": "b" }, "weight": 7, "version": "1" }));
    let three = json!([
        at(one, 80, three),
        at(one, 81, json!({ "healthy": false })),
        at(two, 82, json!({ "enable_health_check": true, "health_check": { "type": 1, "heartbeat": { "ttl": 5 } } })),
    ]);
    let none = String::new;
    let steps: Vec<Step> = vec![
        ("POST", "instances", "[]".into(), 400, 400_002, 0, vec![]),
        ("POST", "instances", "{x".into(), 400, 400_001, 0, vec![]),
        ("POST", "instances", "[{}]".into(), 400, 400_120, 0, vec![400_120]),
        ("POST", "instances", list(at("", 1, json!({}))), 400, 400_131, 0, vec![400_131]),
        ("POST", "instances", three.to_string(), 200, 200_000, 0, vec![200_000; 3]),
        ("GET", "instances", none(), 400, 400_104, 0, vec![]),
        ("GET", "instances?namespace=default", none(), 200, 200_000, 3, vec![80, 81, 82]),
        ("GET", "instances?service=sh*", none(), 200, 200_000, 3, vec![80, 81, 82]),
        ("GET", "instances?service=*op&host=10.0.0.1,10.0.0.2&port=80", none(), 200, 200_000, 1, vec![80]),
        ("GET", "instances?service=shop&healthy=false", none(), 200, 200_000, 1, vec![81]),
        ("GET", "instances?service=shop&isolate=true", none(), 200, 200_000, 0, vec![]),
        ("GET", "instances?service=shop&keys=a&values=b", none(), 200, 200_000, 1, vec![80]),
        ("GET", "instances?service=shop&keys=a", none(), 400, 400_105, 0, vec![]),
        ("GET", "instances?service=shop&keys=a,b&values=c", none(), 400, 400_105, 0, vec![]),
        ("GET", "instances?service=shop&nonsense=1", none(), 400, 400_103, 0, vec![]),
        ("GET", "instances?service=", none(), 400, 400_103, 0, vec![]),
        ("GET", "instances?service=shop&limit=0", none(), 200, 200_000, 3, vec![]),
        ("GET", "instances?service=shop&limit=x", none(), 400, 400_103, 0, vec![]),
        ("GET", "instances?service=shop&weight=7&version=1", none(), 200, 200_000, 1, vec![80]),
        ("GET", "instances?service=shop&healthy=maybe", none(), 200, 200_000, 3, vec![80, 81, 82]),
        ("GET", "instances?service=nobody", none(), 200, 200_000, 0, vec![]),
        ("GET", "instances/count", none(), 200, 200_000, 3, vec![]),
        ("GET", "instances/labels?namespace=default&service=nobody", none(), 400, 400_202, 0, vec![]),
        ("PUT", "instances", list(at(one, 80, json!({ "weight": 9 }))), 200, 200_000, 0, vec![200_000]),
        ("PUT", "instances", list(at(one, 80, json!({ "weight": 9 }))), 200, 200_002, 0, vec![200_002]),
        ("PUT", "instances", list(at("10.0.0.9", 80, json!({}))), 400, 400_303, 0, vec![400_303]),
        ("PUT", "instances", list(json!({ "id": "unknown", "weight": 3 })), 400, 400_303, 0, vec![400_303]),
        // What was not sent stays.
        ("GET", "instances?weight=9&version=1&keys=a&values=b", none(), 200, 200_000, 1, vec![80]),
        (
            "PUT",
            "instances",
            list(at(one, 80, json!({ "isolate": true, "metadata": {} }))),
            200,
            200_000,
            0,
            vec![200_000],
        ),
        ("GET", "instances?isolate=true&healthy=true", none(), 200, 200_000, 1, vec![80]),
        ("GET", "instances?keys=a&values=b", none(), 200, 200_000, 0, vec![]),
        ("PUT", "instances/isolate/host", list(at(one, 0, json!({}))), 400, 400_139, 0, vec![400_139]),
        ("PUT", "instances/isolate/host", list(at(one, 0, json!({ "isolate": true }))), 200, 200_000, 0, vec![200_000]),
        ("GET", "instances?isolate=true", none(), 200, 200_000, 2, vec![80, 81]),
        ("PUT", "instances/isolate/host", list(at(one, 0, json!({ "isolate": true }))), 200, 200_002, 0, vec![200_002]),
        ("POST", "instances/delete", list(json!({ "id": "unknown" })), 200, 200_000, 0, vec![200_000]),
        ("POST", "instances/delete", list(at(two, 82, json!({}))), 200, 200_000, 0, vec![200_000]),
        ("GET", "services?name=shop", none(), 200, 200_000, 1, vec![]),
        ("GET", "services?name=nobody", none(), 200, 200_000, 0, vec![]),
        ("GET", "services?nonsense=1", none(), 400, 400_103, 0, vec![]),
        ("GET", "services/count", none(), 200, 200_000, 1, vec![]),
        ("GET", "namespaces?name=def*", none(), 200, 200_000, 1, vec![]),
        ("POST", "instances/delete/host", list(at(one, 0, json!({}))), 200, 200_000, 0, vec![200_000]),
        ("POST", "instances/delete/host", list(at("", 0, json!({}))), 400, 400_131, 0, vec![400_131]),
        ("POST", "instances/delete/host", list(at(one, 0, json!({}))), 400, 400_301, 0, vec![400_301]),
        ("GET", "instances?service=shop", none(), 200, 200_000, 0, vec![]),
        ("PATCH", "instances", none(), 405, 400_004, 0, vec![]),
        ("GET", "instances/what", none(), 404, 400_004, 0, vec![]),
    ];
    follow(&node, steps).await;
}

/// A service that was created exists without instances, for all fronts, until it is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_exist_without_instances() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let list = |fields: Value| json!([fields]).to_string();
    let none = String::new;
    let shop = |more: Value| {
        let mut fields = json!({ "namespace": "default", "name": "shop" });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    let at = json!({ "namespace": "default", "service": "shop", "host": "10.0.0.1", "port": 80 });
    let both = json!([shop(json!({})), { "namespace": "default", "name": "pay" }]).to_string();
    let bad = json!([shop(json!({})), { "namespace": "", "name": "pay" }]).to_string();
    let steps: Vec<Step> = vec![
        ("POST", "services", "[]".into(), 400, 400_002, 0, vec![]),
        ("POST", "services", "{x".into(), 400, 400_001, 0, vec![]),
        ("POST", "services", list(shop(json!({ "export_to": ["other"] }))), 400, 400_001, 0, vec![]),
        ("POST", "services", list(json!({ "namespace": "default" })), 400, 400_120, 0, vec![400_120]),
        ("POST", "services", bad, 400, 400_110, 0, vec![400_110]),
        ("GET", "services", none(), 200, 200_000, 0, vec![]),
        ("PUT", "services", list(shop(json!({}))), 400, 400_202, 0, vec![400_202]),
        (
            "POST",
            "services",
            list(shop(json!({ "metadata": {"a": "b"}, "owners": "me" }))),
            200,
            200_000,
            0,
            vec![200_000],
        ),
        ("POST", "services", both, 400, 400_000, 0, vec![200_000, 400_201]),
        ("GET", "services?name=shop&keys=a&values=b", none(), 200, 200_000, 1, vec![]),
        ("GET", "services", none(), 200, 200_000, 2, vec![]),
        ("GET", "services?only_exist_instance=true", none(), 200, 200_000, 0, vec![]),
        ("PUT", "services", list(shop(json!({ "owners": "me" }))), 200, 200_002, 0, vec![200_002]),
        ("PUT", "services", list(shop(json!({ "metadata": {"c": "d"} }))), 200, 200_000, 0, vec![200_000]),
        ("GET", "services?keys=a&values=b", none(), 200, 200_000, 0, vec![]),
        ("POST", "instances", list(at.clone()), 200, 200_000, 0, vec![200_000]),
        ("POST", "services/delete", list(shop(json!({}))), 400, 400_204, 0, vec![400_204]),
        ("POST", "instances/delete", list(at), 200, 200_000, 0, vec![200_000]),
        ("GET", "services?keys=c&values=d", none(), 200, 200_000, 1, vec![]),
        ("POST", "services/delete", list(shop(json!({}))), 200, 200_000, 0, vec![200_000]),
        ("POST", "services/delete", list(shop(json!({}))), 200, 200_000, 0, vec![200_000]),
        ("GET", "services", none(), 200, 200_000, 1, vec![]),
        ("PUT", "services/delete", none(), 405, 400_004, 0, vec![]),
    ];
    follow(&node, steps).await;
    let shown = node.ask("GET", "/nacos/v1/ns/service/list?namespaceId=default&pageNo=1&pageSize=9", &[], "").await;
    assert_eq!(shown.json()["doms"], json!(["pay"]), "{}", shown.body);
    let found = json!({ "type": "SERVICES", "service": { "namespace": "default" } }).to_string();
    let found = node.ask("POST", "/v1/Discover", &[], &found).await;
    assert_eq!(found.json()["services"][0]["name"], "pay", "{}", found.body);
}

/// Two users of two namespaces see and change nothing of each other's, nor of who has no token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_api_goes_by_the_callers_rights() {
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{first_table}{second_table}")).await;
    let _logs = ShowLogs(node.dir());
    let ask = async |token: &str, method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { json!([body]).to_string() };
        node.ask(method, path, &[("X-Polaris-Token", token)], &body).await
    };
    let shop = |namespace: &str| json!({ "namespace": namespace, "service": "shop", "host": "10.0.0.1", "port": 80 });
    for (token, namespace) in [(&first, "tenant-a"), (&second, "tenant-b")] {
        assert_eq!(ask(token, "POST", INSTANCES, shop(namespace)).await.status, 200);
    }
    for path in ["/naming/v1/instances?service=shop", "/naming/v1/services", "/naming/v1/namespaces"] {
        let found = ask(&first, "GET", path, Value::Null).await;
        assert_eq!(found.json()["amount"], 1, "{path}");
        assert!(!found.body.contains("tenant-b"), "{path}: {}", found.body);
    }
    for path in ["/naming/v1/instances/count", "/naming/v1/services/count"] {
        assert_eq!(ask(&first, "GET", path, Value::Null).await.json()["amount"], 1, "{path}");
    }
    let theirs = |more: Value| {
        let mut fields = shop("tenant-b");
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fields
    };
    for (method, path, body) in [
        ("POST", INSTANCES, theirs(json!({ "weight": 1 }))),
        ("PUT", INSTANCES, theirs(json!({ "weight": 1 }))),
        ("POST", "/naming/v1/instances/delete", theirs(json!({}))),
        ("POST", "/naming/v1/instances/delete/host", theirs(json!({}))),
        ("PUT", "/naming/v1/instances/isolate/host", theirs(json!({ "isolate": true }))),
    ] {
        let refused = ask(&first, method, path, body).await;
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (401, &json!(401_001)),
            "{method} {path}: {}",
            refused.body
        );
    }
    let labels = "/naming/v1/instances/labels?namespace=tenant-b&service=shop";
    assert_eq!(ask(&first, "GET", labels, Value::Null).await.json()["code"], 401_001);
    for token in ["", "wrong"] {
        let refused = ask(token, "GET", "/naming/v1/instances?service=shop", Value::Null).await;
        assert_eq!(refused.status, 401, "{}", refused.body);
    }
    let kept = ask(&second, "GET", "/naming/v1/instances?service=shop", Value::Null).await.json();
    let (weight, isolate) = (&kept["instances"][0]["weight"], &kept["instances"][0]["isolate"]);
    assert_eq!((weight, isolate), (&json!(100), &json!(false)), "{kept}");
}
