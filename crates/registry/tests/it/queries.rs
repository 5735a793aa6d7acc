//! Consul's prepared queries: over two nodes of one store, in two namespaces, with tokens.

use registry::api::Auth;
use serde_json::{Value, json};

use crate::common::*;

/// A token of the test's configuration has all rights in its namespaces.
const NO_TOKEN: &str = "";

async fn send(node: &Node, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let headers = if token.is_empty() { String::new() } else { format!("X-Consul-Token: {token}\r\n") };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let (head, said) = node.whole_with("127.0.0.1", method, path, &headers, &body).await;
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(&said).unwrap_or(Value::String(said)))
}

async fn create(node: &Node, token: &str, namespace: &str, body: &Value) -> String {
    let (status, said) = send(node, token, "POST", &format!("/v1/query?ns={namespace}"), body).await;
    assert_eq!(status, 200, "{body}: {said}");
    said["ID"].as_str().unwrap().to_owned()
}

/// Returns the index of the list of queries, with everything that any node has committed.
async fn index_of(node: &Node) -> u64 {
    let (head, _) = node.whole_with("127.0.0.1", "GET", "/v1/query?consistent", "", "").await;
    let index =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("x-consul-index: ").map(str::to_owned));
    index.unwrap().parse().unwrap()
}

/// Returns the nodes of an execution, sorted.
async fn nodes(node: &Node, token: &str, path: &str) -> Vec<String> {
    let (status, said) = send(node, token, "GET", path, &Value::Null).await;
    assert_eq!(status, 200, "{path}: {said}");
    let name = |entry: &Value| entry["Node"]["Node"].as_str().unwrap().to_owned();
    let mut found: Vec<String> = said["Nodes"].as_array().unwrap().iter().map(name).collect();
    found.sort();
    found
}

async fn register(node: &Node, token: &str, namespace: &str, name: &str, service: &str, more: &Value) {
    let mut body = json!({
        "Node": name, "Address": format!("10.0.0.{}", &name[1..]), "NodeMeta": more["NodeMeta"],
        "Service": { "Service": service, "Port": 80, "Tags": more["Tags"], "Meta": more["Meta"] },
    });
    if let Some(status) = more["Status"].as_str() {
        body["Check"] = json!({ "CheckID": format!("{service}-up"), "ServiceID": service, "Status": status });
    }
    let (status, said) = send(node, token, "PUT", &format!("/v1/catalog/register?ns={namespace}"), &body).await;
    assert_eq!(status, 200, "{body}: {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_query_selects() {
    let node = Node::alone().await;
    for (name, tags, rack, version, status) in [
        ("n1", json!(["v1", "Main"]), "a", "1", "passing"),
        ("n2", json!(["v2"]), "a", "2", "warning"),
        ("n3", json!(["v1"]), "b", "1", "critical"),
    ] {
        let more =
            json!({ "Tags": tags, "NodeMeta": { "rack": rack }, "Meta": { "version": version }, "Status": status });
        register(&node, NO_TOKEN, "default", name, "web", &more).await;
    }
    for (number, (service, expected)) in [
        (json!({}), &["n1", "n2"][..]),
        (json!({ "OnlyPassing": true }), &["n1"]),
        (json!({ "IgnoreCheckIDs": ["web-up"] }), &["n1", "n2", "n3"]),
        (json!({ "Tags": ["main"] }), &["n1"]),
        (json!({ "Tags": ["!v1"] }), &["n2"]),
        (json!({ "Tags": ["v1", "!main"] }), &[]),
        (json!({ "NodeMeta": { "rack": "a" }, "ServiceMeta": { "version": "2" } }), &["n2"]),
        (json!({ "NodeMeta": { "rack": "c" } }), &[]),
        (json!({ "Failover": { "NearestN": 3, "Datacenters": ["dc2"] } }), &["n1", "n2"]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut service = service;
        service["Service"] = "WEB".into();
        let name = format!("query/{number}");
        let id = create(&node, NO_TOKEN, "default", &json!({ "Name": name, "Service": service })).await;
        for path in [format!("/v1/query/{}/execute", name.to_uppercase()), format!("/v1/query/{id}/execute")] {
            assert_eq!(nodes(&node, NO_TOKEN, &path).await, expected, "{service}");
        }
    }
    assert_eq!(nodes(&node, NO_TOKEN, "/v1/query/query/0/execute?limit=1").await.len(), 1);
    for _ in 0..5 {
        let (_, said) = send(&node, NO_TOKEN, "GET", "/v1/query/query/0/execute?near=n2&limit=1", &Value::Null).await;
        assert_eq!(said["Nodes"][0]["Node"]["Node"], "n2");
        assert_eq!(
            (&said["Datacenter"], &said["Failovers"], &said["Service"]),
            (&"dc1".into(), &0.into(), &"WEB".into())
        );
    }
    assert_eq!(
        send(&node, NO_TOKEN, "GET", "/v1/query/none/execute", &Value::Null).await,
        (404, "Query not found".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_templates_and_sessions_over_two_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let one = Node::start(directory.path()).await;
    let other = Node::start(directory.path()).await;
    register(&one, NO_TOKEN, "default", "n1", "db-shop", &json!({ "Tags": ["eu"] })).await;
    let plain = json!({ "Name": "geo-exact", "Service": { "Service": "db-shop" }, "DNS": { "TTL": "7s" } });
    let id = create(&one, NO_TOKEN, "default", &plain).await;
    let template = json!({
        "Name": "geo-", "Template": { "Type": "name_prefix_match", "Regexp": "^geo-(.+)-(.+)$" },
        "Service": { "Service": "db-${match(1)}", "Tags": ["${match(2)}"] },
    });
    create(&other, NO_TOKEN, "default", &template).await;
    let fallback = json!({ "Template": { "Type": "name_prefix_match" }, "Service": { "Service": "${name.full}" } });
    create(&other, NO_TOKEN, "default", &fallback).await;
    for node in [&one, &other] {
        node.registry.kv_settle().await.unwrap();
        let explained = async |name: &str| {
            let (status, said) =
                send(node, NO_TOKEN, "GET", &format!("/v1/query/{name}/explain?consistent"), &Value::Null).await;
            assert_eq!(status, 200, "{name}: {said}");
            said["Query"]["Service"]["Service"].as_str().unwrap().to_owned()
        };
        assert_eq!(explained("geo-exact").await, "db-shop", "a name comes before templates");
        assert_eq!(explained("geo-shop-eu").await, "db-shop", "the longest template");
        assert_eq!(explained("other").await, "other");
        assert_eq!(nodes(node, NO_TOKEN, "/v1/query/geo-shop-eu/execute").await, ["n1"]);
        assert_eq!(nodes(node, NO_TOKEN, "/v1/query/geo-shop-us/execute").await, [""; 0]);
    }
    // A name is one query's, over both nodes.
    let (status, said) = send(&other, NO_TOKEN, "POST", "/v1/query", &plain).await;
    assert_eq!(status, 400, "{said}");
    assert!(said.as_str().unwrap().contains("aliases an existing query name"), "{said}");
    let (_, before) = send(&other, NO_TOKEN, "GET", &format!("/v1/query/{id}"), &Value::Null).await;
    assert_eq!((&before[0]["Name"], &before[0]["DNS"]["TTL"]), (&"geo-exact".into(), &"7s".into()));
    let renamed = json!({ "Name": "renamed", "Service": { "Service": "db-shop" } });
    assert_eq!(send(&other, NO_TOKEN, "PUT", &format!("/v1/query/{id}"), &renamed).await.0, 200);
    create(&other, NO_TOKEN, "default", &plain).await;
    assert_eq!(nodes(&other, NO_TOKEN, "/v1/query/renamed/execute").await, ["n1"]);

    // It ends with its session, and its name is free again.
    let (_, session) = send(&one, NO_TOKEN, "PUT", "/v1/session/create", &json!({ "TTL": "1h" })).await;
    let session = session["ID"].as_str().unwrap();
    let bound = json!({ "Name": "bound", "Session": session, "Service": { "Service": "db-shop" } });
    let id = create(&one, NO_TOKEN, "default", &bound).await;
    assert_eq!(nodes(&one, NO_TOKEN, "/v1/query/bound/execute").await, ["n1"]);
    let before = index_of(&other).await;
    let path = format!("/v1/query?wait=60s&index={before}");
    let (waits, destroy) = (other.ask("GET", &path, ""), format!("/v1/session/destroy/{session}"));
    let ((status, list), (ended, _)) = tokio::join!(waits, send(&one, NO_TOKEN, "PUT", &destroy, &Value::Null));
    assert!((status, ended) == (200, 200) && !list.contains("\"bound\""), "{list}");
    // Its end is a change of the list, also for a client that waits at the other node.
    for node in [&one, &other] {
        assert!(index_of(node).await > before, "an index that rises with the end of the session");
        assert_eq!(send(node, NO_TOKEN, "GET", &format!("/v1/query/{id}"), &Value::Null).await.0, 404);
        let (_, said) = send(node, NO_TOKEN, "GET", "/v1/query/bound/explain", &Value::Null).await;
        assert_eq!(said["Query"]["Name"], "", "the template for all names");
    }
    let (status, said) = send(&one, NO_TOKEN, "POST", "/v1/query", &bound).await;
    assert!(status == 400 && said.as_str().unwrap().contains("invalid session"), "{said}");
    create(&other, NO_TOKEN, "default", &json!({ "Name": "bound", "Service": { "Service": "db-shop" } })).await;

    // A blocking query hears of a change at the other node.
    let path = format!("/v1/query?wait=60s&index={}", index_of(&one).await);
    let waits = one.ask("GET", &path, "");
    let late = json!({ "Name": "late", "Service": { "Service": "x" } });
    let changes = create(&other, NO_TOKEN, "default", &late);
    let ((status, list), _) = tokio::join!(waits, changes);
    assert!(status == 200 && list.contains("\"late\""), "{list}");
    let gone = send(&one, NO_TOKEN, "DELETE", &format!("/v1/query/{id}"), &Value::Null).await;
    assert_eq!(gone.0, 404, "{}", gone.1);
    assert_eq!(send(&one, NO_TOKEN, "PATCH", "/v1/query", &Value::Null).await.0, 405);
    // As at Consul, a change and a deletion are answered with nothing.
    let short = json!({ "Name": "short", "Service": { "Service": "x" } });
    let path = format!("/v1/query/{}", create(&one, NO_TOKEN, "default", &short).await);
    for (method, body) in [("PUT", &short), ("DELETE", &Value::Null)] {
        assert_eq!(send(&one, NO_TOKEN, method, &path, body).await, (200, Value::String(String::new())), "{method}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_of_one_token_and_another_callers() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::let_in_by(directory.path(), Auth::acl([], false)).await;
    let (_, first) = send(&node, "", "PUT", "/v1/acl/bootstrap", &Value::Null).await;
    let root = first["SecretID"].as_str().unwrap();
    let token = async |namespace: &str, name: &str, rules: &str| {
        let policy = json!({ "Name": name, "Rules": rules });
        send(&node, root, "PUT", &format!("/v1/acl/policy?ns={namespace}"), &policy).await;
        let token = json!({ "Policies": [{ "Name": name }] });
        let (_, said) = send(&node, root, "PUT", &format!("/v1/acl/token?ns={namespace}"), &token).await;
        said["SecretID"].as_str().unwrap().to_owned()
    };
    let reader =
        token("default", "reader", r#"service "web" { policy = "read" } node_prefix "" { policy = "read" }"#).await;
    let writer = token("default", "writer", r#"query_prefix "w-" { policy = "write" }"#).await;
    let shop = token("shop", "shop", r#"query_prefix "" { policy = "write" }"#).await;
    register(&node, root, "default", "n1", "web", &Value::Null).await;
    let body = |name: &str, token: &str| json!({ "Name": name, "Token": token, "Service": { "Service": "web" } });
    assert_eq!(send(&node, &reader, "POST", "/v1/query", &body("w-a", "")).await.0, 403);
    assert_eq!(send(&node, &writer, "POST", "/v1/query", &body("x-a", "")).await.0, 403);
    let own = create(&node, &writer, "default", &body("w-own", "")).await;
    let lent = create(&node, &writer, "default", &body("w-lent", &reader)).await;
    create(&node, &shop, "shop", &body("w-own", "")).await;
    // The caller's rights, or those of the token that the query has.
    for (token, path, expected) in [
        (&writer, "/v1/query/w-own/execute", &[][..]),
        (&writer, "/v1/query/w-lent/execute", &["n1"]),
        (&reader, "/v1/query/w-own/execute", &["n1"]),
        (&shop, "/v1/query/w-own/execute", &[]),
    ] {
        assert_eq!(nodes(&node, token, path).await, expected, "{path}");
    }
    let (_, shown) = send(&node, root, "GET", &format!("/v1/query/{lent}"), &Value::Null).await;
    assert_eq!(shown[0]["Token"], "<hidden>");
    let (_, kept) = node.registry.kv_tree(&registry::NamespaceName::default(), "").unwrap();
    assert!(kept.is_empty(), "no key-value front sees the rows");
    assert_eq!(send(&node, root, "PUT", &format!("/v1/query/{lent}"), &shown[0]).await.0, 400, "the hidden token");
    for (token, expected) in [(&writer, 2), (&reader, 0), (&shop, 1)] {
        let (_, list) = send(&node, token, "GET", "/v1/query", &Value::Null).await;
        assert_eq!(list.as_array().unwrap().len(), expected, "{list}");
    }
    for (token, method, status) in [(&reader, "DELETE", 403), (&shop, "DELETE", 404), (&writer, "DELETE", 200)] {
        assert_eq!(send(&node, token, method, &format!("/v1/query/{own}"), &Value::Null).await.0, status, "{method}");
    }
    // The token of a query is gone.
    let (_, list) = send(&node, root, "GET", "/v1/acl/tokens", &Value::Null).await;
    for entry in list.as_array().unwrap().iter().filter(|entry| entry["Policies"][0]["Name"] == "reader") {
        let path = format!("/v1/acl/token/{}", entry["AccessorID"].as_str().unwrap());
        assert_eq!(send(&node, root, "DELETE", &path, &Value::Null).await.0, 200);
    }
    let (status, said) = send(&node, root, "GET", "/v1/query/w-lent/execute", &Value::Null).await;
    assert!(status == 403 && said.as_str().unwrap().contains("ACL not found"), "{status} {said}");
}
