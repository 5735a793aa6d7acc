//! Tokens with policies: two nodes on one store, two namespaces, several tokens, all fronts.

use registry::api::{Auth, Role, Token, hash_of};
use serde_json::{Value, json};

use crate::common::*;

/// An answer.
#[derive(Debug)]
struct Answer {
    status: u16,
    filtered: bool,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Node {
    async fn as_with(&self, headers: &str, method: &str, path: &str, body: &str) -> Answer {
        let (head, body) = self.whole_with("127.0.0.1", method, path, headers, body).await;
        let filtered = head.to_ascii_lowercase().contains("x-consul-results-filtered-by-acls: true");
        Answer { status: head.split(' ').nth(1).unwrap().parse().unwrap(), filtered, body }
    }

    /// Sends a request with a token; without one if it is empty.
    async fn by(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let headers = if token.is_empty() { String::new() } else { format!("X-Consul-Token: {token}\r\n") };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.as_with(&headers, method, path, &body).await
    }

    async fn read(&self, token: &str, path: &str) -> Value {
        let answer = self.by(token, "GET", path, &Value::Null).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    async fn write(&self, token: &str, path: &str, body: Value) -> Value {
        let answer = self.by(token, "PUT", path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or(Value::Null)
    }

    async fn status(&self, token: &str, method: &str, path: &str, body: &Value) -> u16 {
        self.by(token, method, path, body).await.status
    }

    /// Makes the first token.
    async fn bootstrap(&self) -> String {
        text(&self.write("", "/v1/acl/bootstrap", Value::Null).await, "SecretID")
    }

    /// Makes a token with one policy of these rules in a namespace.
    async fn token(&self, root: &str, namespace: &str, name: &str, rules: &str) -> (String, String) {
        let policy = json!({ "Name": name, "Rules": rules });
        self.write(root, &format!("/v1/acl/policy?ns={namespace}"), policy).await;
        let token = json!({ "Description": name, "Policies": [{ "Name": name }] });
        let token = self.write(root, &format!("/v1/acl/token?ns={namespace}"), token).await;
        (text(&token, "AccessorID"), text(&token, "SecretID"))
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("{key}: {value}")).to_owned()
}

fn each(list: &Value, field: &str) -> Vec<String> {
    let mut found: Vec<String> = list.as_array().unwrap().iter().map(|entry| text(entry, field)).collect();
    found.sort();
    found
}

fn names(map: &Value) -> Vec<&str> {
    map.as_object().unwrap().keys().map(String::as_str).collect()
}

fn configured(name: &str, role: Role, namespaces: &[&str]) -> Token {
    Token {
        name: name.to_owned(),
        hash: hash_of(&format!("secret of {name}")),
        role,
        namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_two_namespaces_two_tokens() {
    let directory = tempfile::tempdir().unwrap();
    let auth = || Auth::acl([], false);
    let one = Node::let_in_by(directory.path(), auth()).await;
    let other = Node::let_in_by(directory.path(), auth()).await;
    let root = one.bootstrap().await;
    let again = other.by("", "PUT", "/v1/acl/bootstrap", &Value::Null).await;
    assert_eq!(again.status, 403);
    assert!(again.body.contains("ACL bootstrap no longer allowed"), "{again:?}");
    let rules = r#"service "web" { policy = "write" } node_prefix "" { policy = "read" } key_prefix "web/" { policy = "write" }
                   session_prefix "" { policy = "write" } key "web/locked" { policy = "read" } event "deploy" { policy = "write" }"#;
    let (accessor, web) = one.token(&root, "default", "web", rules).await;
    let (_, shop) = one
        .token(&root, "shop", "all", r#"service_prefix "" { policy = "write" } node_prefix "" { policy = "write" }"#)
        .await;
    other.registry.kv_settle().await.unwrap();
    for node in [&one, &other] {
        let unknown =
            node.by("b54fe110-7af5-cafc-d1fb-afc8ba432b1c", "GET", "/v1/catalog/services", &Value::Null).await;
        assert_eq!((unknown.status, unknown.body.trim()), (403, "ACL not found"));
    }
    // Each registers in its own namespace, which is its default.
    other.write(&web, "/v1/agent/service/register", json!({ "Name": "web", "Port": 80 })).await;
    one.write(&shop, "/v1/agent/service/register", json!({ "Name": "cart", "Port": 81 })).await;
    let refused = one.by(&web, "PUT", "/v1/agent/service/register", &json!({ "Name": "db", "Port": 1 })).await;
    assert_eq!(refused.status, 403);
    let expected =
        format!("Permission denied: token with AccessorID '{accessor}' lacks permission 'service:write' on \"db\"");
    assert_eq!(refused.body.trim(), expected);
    one.write(&root, "/v1/agent/service/register", json!({ "Name": "db", "Port": 1 })).await;
    // An id does not lead from a service that one may write to another.
    assert_eq!(one.status(&web, "PUT", "/v1/agent/service/register", &json!({ "ID": "db", "Name": "web" })).await, 403);
    assert_eq!(one.status(&web, "PUT", "/v1/agent/service/deregister/db", &Value::Null).await, 403);
    let catalog = json!({ "Node": "n9", "Address": "10.0.0.9", "Service": { "Service": "web" } });
    assert_eq!(one.status(&web, "PUT", "/v1/catalog/register", &catalog).await, 403, "the node is new");

    let list = one.by(&web, "GET", "/v1/catalog/services", &Value::Null).await;
    assert_eq!((names(&list.json()), list.filtered), (vec!["web"], true));
    let list = one.by(&root, "GET", "/v1/catalog/services", &Value::Null).await;
    assert_eq!((names(&list.json()), list.filtered), (vec!["db", "web"], false));
    let list = one.by("", "GET", "/v1/catalog/services", &Value::Null).await;
    assert_eq!((names(&list.json()).len(), list.filtered), (0, false), "without a token nobody is told");
    assert_eq!(names(&one.read(&shop, "/v1/catalog/services").await), ["cart"]);
    for (token, path) in [
        (&web, "/v1/health/service/cart?ns=shop"),
        (&shop, "/v1/health/service/web?ns=default"),
        (&web, "/v1/health/service/db"),
    ] {
        let hidden = one.by(token, "GET", path, &Value::Null).await;
        assert_eq!((hidden.status, hidden.body.as_str()), (200, "[]"), "{path}");
    }
    assert_eq!(one.status(&web, "PUT", "/v1/agent/service/register?ns=shop", &json!({ "Name": "web" })).await, 403);
    assert_eq!(one.read(&web, "/v1/health/service/web").await.as_array().unwrap().len(), 1);

    // A rule is about the spelling in the registry, whichever one is asked for.
    let rules = r#"node_prefix "" { policy = "write" } node "Secret" { policy = "deny" } service_prefix "" { policy = "write" }"#;
    let (_, nodes) = one.token(&root, "default", "nodes", rules).await;
    let body = json!({ "Node": "Secret", "Address": "10.0.0.8", "Service": { "Service": "hidden" } });
    one.write(&root, "/v1/catalog/register", body).await;
    for name in ["Secret", "secret", "SECRET"] {
        assert_eq!(one.read(&nodes, &format!("/v1/catalog/node/{name}")).await, Value::Null, "{name}");
        let gone = json!({ "Node": name });
        assert_eq!(one.status(&nodes, "PUT", "/v1/catalog/deregister", &gone).await, 403, "{name}");
        assert_eq!(
            one.status(&web, "PUT", "/v1/catalog/deregister", &json!({ "Node": name, "ServiceID": "hidden" })).await,
            403
        );
    }
    assert!(one.read(&root, "/v1/catalog/node/secret").await["Node"].is_object());
    one.write(&root, "/v1/catalog/deregister", json!({ "Node": "secret" })).await;

    // Keys, transactions, sessions, events.
    one.write(&web, "/v1/kv/web/a", json!("1")).await;
    one.write(&root, "/v1/kv/db/a", json!("1")).await;
    one.write(&root, "/v1/kv/web/locked", json!("1")).await;
    let keys = one.by(&web, "GET", "/v1/kv/?keys", &Value::Null).await;
    assert_eq!((keys.json(), keys.filtered), (json!(["web/a", "web/locked"]), true));
    assert_eq!(each(&one.read(&web, "/v1/kv/web/?recurse").await, "Key"), ["web/a", "web/locked"]);
    for (method, path, status) in [
        ("GET", "/v1/kv/db/a", 403),
        ("GET", "/v1/kv/db?recurse", 404),
        ("PUT", "/v1/kv/db/a", 403),
        ("DELETE", "/v1/kv/db/a", 403),
        ("GET", "/v1/kv/web/locked", 200),
        ("PUT", "/v1/kv/web/locked", 403),
        ("DELETE", "/v1/kv/web/?recurse", 403),
        ("DELETE", "/v1/kv/web/a", 200),
        ("PUT", "/v1/event/fire/deploy", 200),
        ("PUT", "/v1/event/fire/other", 403),
        ("PUT", "/v1/agent/maintenance?enable=true", 403),
        ("GET", "/v1/agent/self", 403),
        ("GET", "/v1/acl/tokens", 403),
        ("PUT", "/v1/session/create", 200),
    ] {
        let answer = one.by(&web, method, path, &Value::Null).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
    let operations = json!([{ "KV": { "Verb": "set", "Key": "web/b", "Value": "MQ==" } }, { "KV": { "Verb": "set", "Key": "db/b", "Value": "MQ==" } }]);
    let refused = one.by(&web, "PUT", "/v1/txn", &operations).await;
    assert_eq!((refused.status, &refused.json()["Errors"][0]["OpIndex"]), (409, &json!(1)));
    assert_eq!(one.status(&root, "GET", "/v1/kv/web/b", &Value::Null).await, 404, "all or nothing");
    one.write(&root, "/v1/event/fire/other", Value::Null).await;
    assert_eq!(each(&one.read(&web, "/v1/event/list").await, "Name"), ["deploy"]);

    // A changed policy, and a deleted token, count at both nodes.
    let policies = one.read(&root, "/v1/acl/policies").await;
    let policy = policies.as_array().unwrap().iter().find(|policy| policy["Name"] == "web").unwrap();
    let id = text(policy, "ID");
    one.write(
        &root,
        &format!("/v1/acl/policy/{id}"),
        json!({ "Name": "web", "Rules": r#"service "db" { policy = "read" }"# }),
    )
    .await;
    other.registry.kv_settle().await.unwrap();
    for node in [&one, &other] {
        assert_eq!(names(&node.read(&web, "/v1/catalog/services").await), ["db"]);
        assert_eq!(node.status(&web, "PUT", "/v1/kv/web/a", &json!(1)).await, 403);
    }
    assert_eq!(other.status(&root, "DELETE", &format!("/v1/acl/token/{accessor}"), &Value::Null).await, 200);
    one.registry.kv_settle().await.unwrap();
    for node in [&one, &other] {
        assert_eq!(node.status(&web, "GET", "/v1/catalog/services", &Value::Null).await, 403);
    }
    one.end().await;
    other.end().await;
    let stored: Vec<u8> = std::fs::read_dir(directory.path())
        .unwrap()
        .flat_map(|file| std::fs::read(file.unwrap().path()).unwrap_or_default())
        .collect();
    for secret in [&root, &web, &shop] {
        assert!(!stored.windows(secret.len()).any(|part| part == secret.as_bytes()), "the store has a secret");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_front_asks_the_same_question() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::let_in_by(directory.path(), Auth::acl([], false)).await;
    let root = node.bootstrap().await;
    let (_, web) = node
        .token(&root, "default", "web", r#"service "web" { policy = "write" } service "db" { policy = "read" }"#)
        .await;
    for name in ["web", "db", "hidden"] {
        let body = json!({ "instances": [{ "id": name, "host": "10.0.0.1", "port": 80 }] });
        let path = format!("/v1/namespaces/default/services/{name}/instances");
        let answer = node.by(&root, "POST", &path, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let body = |service: &str| json!({ "instances": [{ "id": "x", "service": service, "host": "h", "port": 1 }] });
    let ids = |id: &str| json!({ "ids": [id] });
    let eureka = |app: &str| json!({ "instance": { "instanceId": "x", "app": app, "hostName": "h", "ipAddr": "10.0.0.2", "port": { "$": 1 } } });
    let polaris = |service: &str| json!({ "service": service, "namespace": "default", "host": "10.0.0.3", "port": 1 });
    let none = Value::Null;
    for (method, path, body, status) in [
        ("GET", "/v1/namespaces/default/services/web/instances", none.clone(), 200),
        ("GET", "/v1/namespaces/default/services/db/instances", none.clone(), 200),
        ("GET", "/v1/namespaces/default/services/hidden/instances", none.clone(), 403),
        ("GET", "/v1/namespaces/default/instances/web", none.clone(), 200),
        ("GET", "/v1/namespaces/default/instances/hidden", none.clone(), 403),
        ("PATCH", "/v1/namespaces/default/instances/web", json!({ "weight": 5 }), 200),
        ("PATCH", "/v1/namespaces/default/instances/db", json!({ "weight": 5 }), 403),
        ("DELETE", "/v1/namespaces/default/instances/db", none.clone(), 403),
        ("PUT", "/v1/namespaces/default/instances/db/heartbeat", none.clone(), 403),
        ("POST", "/v1/namespaces/default/heartbeats", ids("db"), 403),
        ("POST", "/v1/namespaces/default/heartbeats", ids("web"), 200),
        ("POST", "/v1/namespaces/default/deregistrations", ids("hidden"), 403),
        ("POST", "/v1/namespaces/default/instances", body("db"), 403),
        ("POST", "/v1/namespaces/default/instances", body("web"), 200),
        // An instance cannot be moved out of a service that one may not write.
        ("PUT", "/v1/namespaces/default/services/web/instances/db", json!({ "host": "h", "port": 1 }), 403),
        ("PUT", "/v1/namespaces/default/services/web", json!({ "metadata": { "a": "b" } }), 200),
        ("PUT", "/v1/namespaces/default/services/db", json!({ "metadata": { "a": "b" } }), 403),
        ("GET", "/v1/namespaces/default/audit", none.clone(), 403),
        ("GET", "/v1/namespaces/shop/services/web/instances", none.clone(), 403),
        ("POST", "/eureka/apps/WEB", eureka("WEB"), 204),
        ("POST", "/eureka/apps/DB", eureka("DB"), 403),
        ("GET", "/eureka/apps/HIDDEN", none.clone(), 403),
        ("DELETE", "/eureka/apps/DB/db", none.clone(), 403),
        ("PUT", "/eureka/apps/WEB/x", none.clone(), 200),
        ("GET", "/prometheus/targets?namespace=default&service=hidden", none.clone(), 403),
        ("GET", "/nacos/v1/ns/instance/list?namespaceId=default&serviceName=hidden", none.clone(), 403),
        ("PUT", "/nacos/v1/ns/instance/beat?namespaceId=default&serviceName=db&ip=10.0.0.1&port=80", none.clone(), 403),
    ] {
        let answer = node
            .as_with(
                &format!("Authorization: Bearer {web}\r\n"),
                method,
                path,
                &if body.is_null() { String::new() } else { body.to_string() },
            )
            .await;
        // Nacos' clients have the token in a parameter of their own.
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
    for (service, code) in [("web", 200_000), ("db", 401_000)] {
        let answer = node.by(&web, "POST", "/v1/RegisterInstance", &polaris(service)).await;
        assert_eq!(answer.json()["code"].as_u64().unwrap() / 1000 * 1000, code, "{service}: {answer:?}");
    }
    let listed = node.read(&web, "/v1/namespaces/default/services").await;
    assert_eq!(each(&listed["services"], "service"), ["db", "web"]);
    let query = json!({ "services": [{ "service": "hidden" }, { "service": "db" }] });
    let found = node.by(&web, "POST", "/v1/namespaces/default/queries", &query).await.json();
    assert_eq!((&found["services"][0]["absent"], &found["services"][1]["service"]), (&json!(true), &json!("db")));
    for path in ["/prometheus/targets", "/prometheus/targets?namespace=default", "/eureka/apps", "/eureka/apps/delta"] {
        let all = node.by(&root, "GET", path, &none).await.body.to_lowercase();
        let seen = node.by(&web, "GET", path, &none).await.body.to_lowercase();
        assert!(all.contains("hidden") && !seen.contains("hidden") && seen.contains("web"), "{path}: {seen}");
    }
    assert_eq!(node.read(&web, "/v1/namespaces").await["namespaces"], json!(["default"]));
    assert_eq!(node.read("", "/v1/namespaces").await["namespaces"], json!([]));
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managing_tokens_and_policies() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = [configured("root", Role::Admin, &["*"]), configured("writer", Role::Write, &["default"])];
    let node = Node::let_in_by(directory.path(), Auth::acl(tokens, false)).await;
    let root = "secret of root";
    let first = node.by("", "PUT", "/v1/acl/bootstrap", &Value::Null).await;
    assert_eq!(first.status, 403, "the configuration has a token for everything: {first:?}");
    // A configured token keeps its meaning.
    node.write("secret of writer", "/v1/agent/service/register", json!({ "Name": "web" })).await;
    for (token, path, status) in [
        ("secret of writer", "/v1/acl/tokens", 403),
        ("secret of writer", "/v1/catalog/services?ns=shop", 403),
        (root, "/v1/acl/tokens", 200),
        ("", "/v1/acl/tokens", 403),
        ("", "/v1/status/leader", 200),
        (root, "/v1/acl/role", 405),
        (root, "/v1/acl/auth-method", 501),
        (root, "/v1/acl/roles", 200),
    ] {
        assert_eq!(node.status(token, "GET", path, &Value::Null).await, status, "{path}");
    }
    // A service's record needs more than its instances do, at each front that writes it.
    for version in ["v1/ns", "v2/ns", "v3/admin/ns"] {
        let path = format!("/nacos/{version}/service?serviceName=new&namespaceId=default");
        for (token, method, status) in [
            ("", "POST", 403),
            ("secret of writer", "POST", 403),
            (root, "POST", 200),
            ("secret of writer", "DELETE", 403),
            ("secret of writer", "GET", 200),
            (root, "DELETE", 200),
        ] {
            let answer = node.by(token, method, &path, &Value::Null).await;
            assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        }
    }
    let (accessor, secret) = node.token(root, "default", "operators", r#"acl = "write""#).await;
    // A manager of one namespace gives no rights in another, and none on all.
    let rules = r#"service_prefix "" { policy = "write" } node_prefix "" { policy = "read" }"#;
    let made = node.write(&secret, "/v1/acl/policy", json!({ "Name": "services", "Rules": rules })).await;
    let policy = text(&made, "ID");
    assert_eq!(text(&node.read(&secret, "/v1/acl/policy/name/services").await, "ID"), policy);
    assert_eq!(text(&node.read(&secret, &format!("/v1/acl/policy/{policy}")).await, "Rules"), rules);
    for (path, body) in [
        ("/v1/acl/token?ns=shop", json!({ "Policies": [{ "Name": "global-management" }] })),
        ("/v1/acl/token?ns=*", json!({ "Policies": [{ "Name": "global-management" }] })),
        ("/v1/acl/policy?ns=shop", json!({ "Name": "a" })),
    ] {
        assert_eq!(node.status(&secret, "PUT", path, &body).await, 403, "{path}");
    }
    for (path, body, status, said) in [
        ("/v1/acl/token", json!({ "Policies": [{ "Name": "none" }] }), 400, "No such ACL policy with name"),
        ("/v1/acl/token", json!({ "Roles": [{ "Name": "r" }] }), 400, "No such ACL role with name"),
        ("/v1/acl/role", json!({ "Name": "a/b" }), 400, "invalid Name"),
        ("/v1/acl/role", json!({ "Name": "r", "ID": "x" }), 400, "Cannot specify the ID"),
        ("/v1/acl/role", json!({ "Name": "r", "Policies": [{ "Name": "none" }] }), 400, "No such ACL policy"),
        ("/v1/acl/role/b54fe110-7af5-cafc-d1fb-afc8ba432b1c", json!({ "Name": "r" }), 404, "cannot find role"),
        ("/v1/acl/token", json!({ "SecretID": "x" }), 400, "SecretID"),
        ("/v1/acl/token", json!({ "AccessorID": accessor }), 400, "AccessorID is already in use"),
        ("/v1/acl/token", json!({ "SecretID": secret }), 400, "SecretID is already in use"),
        ("/v1/acl/token", json!({ "ExpirationTTL": "1s" }), 400, "ExpirationTime"),
        ("/v1/acl/policy", json!({ "Name": "services" }), 400, "already exists"),
        ("/v1/acl/policy", json!({ "Name": "global-management" }), 400, "already exists"),
        ("/v1/acl/policy", json!({ "Name": "a b" }), 400, "Only alphanumeric"),
        ("/v1/acl/policy", json!({ "Name": "bad", "Rules": "servce \"a\" {}" }), 400, "Failed to parse ACL rules"),
        ("/v1/acl/policy", json!({ "Name": "big", "Rules": " ".repeat(70_000) }), 413, "registry.acl.rules_bytes"),
        ("/v1/acl/policy/00000000-0000-0000-0000-000000000001", json!({ "Name": "x" }), 400, "builtin"),
        ("/v1/acl/policy/b54fe110-7af5-cafc-d1fb-afc8ba432b1c", json!({ "Name": "x" }), 404, "cannot find policy"),
    ] {
        let answer = node.by(&secret, "PUT", path, &body).await;
        assert_eq!(answer.status, status, "{path} {body:?}: {answer:?}");
        assert!(answer.body.contains(said), "{path} {body}: {answer:?}");
    }
    let body = json!({ "Description": "d", "Policies": [{ "ID": policy }, { "ID": policy }], "ServiceIdentities": [{ "ServiceName": "own" }], "ExpirationTTL": "2h" });
    let made = node.write(&secret, "/v1/acl/token", body).await;
    let (id, own) = (text(&made, "AccessorID"), text(&made, "SecretID"));
    assert_eq!(made["Policies"], json!([{ "ID": policy, "Name": "services" }]));
    assert_eq!(made["ServiceIdentities"], json!([{ "ServiceName": "own" }]));
    assert!(made["ExpirationTime"].is_string(), "{made}");
    // The secret is shown to nobody but its holder afterwards.
    let shown = node.read(&secret, &format!("/v1/acl/token/{id}")).await;
    assert_eq!(text(&shown, "SecretID"), "<hidden>");
    assert_eq!(text(&node.read(&own, "/v1/acl/token/self").await, "SecretID"), own);
    assert_eq!(each(&node.read(&secret, "/v1/acl/tokens").await, "SecretID"), ["<hidden>", "<hidden>", "anonymous"]);
    assert_eq!(names(&node.read(&own, "/v1/catalog/services").await), ["web"]);
    // What a client has read, it writes back.
    let mut changed = shown.clone();
    changed["Description"] = "another".into();
    let written = node.write(&secret, &format!("/v1/acl/token/{id}"), changed).await;
    assert_eq!(
        (text(&written, "Description"), &written["ExpirationTime"]),
        ("another".into(), &made["ExpirationTime"])
    );
    let other = json!({ "SecretID": "b54fe110-7af5-cafc-d1fb-afc8ba432b1c" });
    assert_eq!(node.status(&secret, "PUT", &format!("/v1/acl/token/{id}"), &other).await, 400);
    let copy = node.write(&secret, &format!("/v1/acl/token/{id}/clone"), json!({ "Description": "copy" })).await;
    assert!(text(&copy, "AccessorID") != id && text(&copy, "SecretID") != own && text(&copy, "Description") == "copy");
    assert_eq!(names(&node.read(&text(&copy, "SecretID"), "/v1/catalog/services").await), ["web"]);
    // A link to a deleted policy gives nothing; the identity is still there.
    assert_eq!(node.status(&secret, "DELETE", &format!("/v1/acl/policy/{policy}"), &Value::Null).await, 200);
    assert_eq!(node.status(&own, "PUT", "/v1/agent/service/register", &json!({ "Name": "web" })).await, 403);
    assert_eq!(node.status(&own, "PUT", "/v1/agent/service/register", &json!({ "Name": "own" })).await, 200);
    for (path, status) in [
        (format!("/v1/acl/token/{accessor}"), 400),
        ("/v1/acl/token/00000000-0000-0000-0000-000000000002".into(), 400),
        ("/v1/acl/policy/00000000-0000-0000-0000-000000000001".into(), 400),
        (format!("/v1/acl/policy/{policy}"), 404),
        (format!("/v1/acl/token/{id}"), 200),
        (format!("/v1/acl/token/{id}"), 404),
    ] {
        assert_eq!(node.status(&secret, "DELETE", &path, &Value::Null).await, status, "{path}");
    }
    assert_eq!(node.status(&own, "GET", "/v1/catalog/services", &Value::Null).await, 403);
    // The anonymous token, and a token of all namespaces.
    let anonymous = "/v1/acl/token/00000000-0000-0000-0000-000000000002";
    let services = json!({ "Name": "public", "Rules": rules });
    node.write(root, "/v1/acl/policy?ns=shop", services.clone()).await;
    node.write(root, &format!("{anonymous}?ns=shop"), json!({ "Policies": [{ "Name": "public" }] })).await;
    assert_eq!(node.status("", "PUT", "/v1/agent/service/register?ns=shop", &json!({ "Name": "cart" })).await, 200);
    assert_eq!(node.status("", "PUT", "/v1/agent/service/register", &json!({ "Name": "cart" })).await, 403);
    let all =
        node.write(root, "/v1/acl/token?ns=*", json!({ "Policies": [{ "Name": "builtin/global-read-only" }] })).await;
    let all = text(&all, "SecretID");
    assert_eq!(names(&node.read(&all, "/v1/catalog/services?ns=shop").await), ["cart"]);
    assert_eq!(names(&node.read(&all, "/v1/catalog/services").await), ["own", "web"]);
    assert_eq!(node.status(&all, "PUT", "/v1/agent/service/register", &json!({ "Name": "x" })).await, 403);
    // No key reaches the rows.
    for namespace in reserved() {
        assert_eq!(
            node.status(root, "GET", &format!("/v1/kv/?keys&ns={namespace}"), &Value::Null).await,
            400,
            "{namespace}"
        );
    }
    node.end().await;
}

/// Returns the namespaces of keys in which the registry stores tokens and policies.
fn reserved() -> [String; 2] {
    use sha2::{Digest as _, Sha256};

    ["default", "*"].map(|scope| {
        let digest: String =
            Sha256::digest(scope.as_bytes()).iter().take(24).map(|byte| format!("{byte:02x}")).collect();
        format!("kingpost.acl.{digest}")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_policies_there_is_nothing_to_manage() {
    let node = Node::alone().await;
    for (method, path) in [("PUT", "/v1/acl/bootstrap"), ("GET", "/v1/acl/tokens"), ("PUT", "/v1/acl/policy")] {
        let answer = node.by("", method, path, &Value::Null).await;
        assert_eq!((answer.status, answer.body.as_str()), (401, "ACL support disabled"), "{path}");
    }
    node.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_gives_rights_as_long_as_it_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = [configured("root", Role::Admin, &["*"])];
    let node = Node::let_in_by(directory.path(), Auth::acl(tokens, false)).await;
    let root = "secret of root";
    let rules = r#"key_prefix "a/" { policy = "write" }"#;
    let policy = text(&node.write(root, "/v1/acl/policy", json!({ "Name": "keys", "Rules": rules })).await, "ID");
    let body = json!({ "Name": "apps", "Description": "d", "Policies": [{ "Name": "keys" }], "NodeIdentities": [{ "NodeName": "n1", "Datacenter": "dc1" }] });
    let role = node.write(root, "/v1/acl/role", body.clone()).await;
    let id = text(&role, "ID");
    assert_eq!(role["Policies"], json!([{ "ID": policy, "Name": "keys" }]));
    assert_eq!(role["NodeIdentities"], json!([{ "NodeName": "n1", "Datacenter": "dc1" }]));
    for path in [format!("/v1/acl/role/{id}"), "/v1/acl/role/name/apps".to_owned()] {
        assert_eq!(node.read(root, &path).await, role, "{path}");
    }
    let again = node.by(root, "PUT", "/v1/acl/role", &body).await;
    assert!(again.status == 400 && again.body.contains("already exists"), "{again:?}");
    let token = node.write(root, "/v1/acl/token", json!({ "Roles": [{ "Name": "apps" }, { "ID": id }] })).await;
    assert_eq!(token["Roles"], json!([{ "ID": id, "Name": "apps" }]));
    let secret = text(&token, "SecretID");
    for (path, found) in [
        (format!("/v1/acl/roles?policy={policy}"), 1),
        ("/v1/acl/roles?policy=none".to_owned(), 0),
        ("/v1/acl/roles?ns=shop".to_owned(), 0),
        (format!("/v1/acl/tokens?role={id}"), 1),
        ("/v1/acl/tokens?role=none".to_owned(), 0),
    ] {
        assert_eq!(node.read(root, &path).await.as_array().unwrap().len(), found, "{path}");
    }
    let may = async |key: &str| node.status(&secret, "PUT", &format!("/v1/kv/{key}"), &json!("x")).await == 200;
    assert!(may("a/x").await && !may("b/x").await);
    let path = format!("/v1/acl/role/{id}");
    node.write(root, &path, json!({ "Name": "apps" })).await;
    assert!(!may("a/x").await, "the role has lost its policy");
    node.write(root, &path, body).await;
    assert!(may("a/x").await);
    assert_eq!(node.status(&secret, "GET", "/v1/acl/roles", &Value::Null).await, 403);
    assert_eq!(
        node.status(root, "DELETE", &format!("{path}?ns=shop"), &Value::Null).await,
        404,
        "of another namespace"
    );
    assert_eq!(node.status(root, "DELETE", &path, &Value::Null).await, 200);
    assert!(!may("a/x").await, "a link to a role that is gone has no effect");
    assert_eq!(node.status(root, "GET", &path, &Value::Null).await, 404);
    assert_eq!(node.status(root, "DELETE", &path, &Value::Null).await, 404);
    node.end().await;
}
