//! Tokens with policies in the real registry: they outlive a restart, and count for DNS.

use std::net::UdpSocket;
use std::time::Duration;

use kingpost_tests::{RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};

/// Asks for the addresses of a name below the zone; returns the number of answers.
fn addresses(dns: u16, name: &str) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').chain(["consul"]) {
        question.push(u8::try_from(label.len()).unwrap());
        question.extend(label.as_bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    socket.send_to(&question, ("127.0.0.1", dns)).unwrap();
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).unwrap();
    assert!(length >= 12 && answer[..2] == question[..2], "{:?}", &answer[..length]);
    u16::from_be_bytes([answer[6], answer[7]])
}

async fn send(node: &RegistryNode, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let headers = [("X-Consul-Token", token), ("Content-Type", "application/json")];
    let headers = if token.is_empty() { &headers[1..] } else { &headers };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = node.ask(method, path, headers, &body).await;
    (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::Null))
}

#[tokio::test]
async fn tokens_with_policies_outlive_a_restart_and_count_for_dns() {
    let mut node = RegistryNode::start("auth = \"acl\"\n[registry.dns]\nlisten = \"127.0.0.1:0\"").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let (status, root) = send(&node, "", "PUT", "/v1/acl/bootstrap", &Value::Null).await;
    let root = root["SecretID"].as_str().unwrap().to_owned();
    assert_eq!(status, 200);
    for name in ["web", "db"] {
        let body = json!({ "Name": name, "Address": "10.0.0.1", "Port": 80 });
        assert_eq!(send(&node, &root, "PUT", "/v1/agent/service/register", &body).await.0, 200);
    }
    let catalog = json!({ "Node": "n1", "Address": "10.0.0.7" });
    assert_eq!(send(&node, &root, "PUT", "/v1/catalog/register", &catalog).await.0, 200);
    let dns = node.dns_port();
    let seen = |name: &str| addresses(dns, name);
    assert_eq!((seen("web.service"), seen("db.service"), seen("N1.node")), (0, 0, 0), "nobody has a right");
    let rules = r#"service "web" { policy = "read" } node_prefix "" { policy = "read" }"#;
    let policy = json!({ "Name": "public", "Rules": rules });
    assert_eq!(send(&node, &root, "PUT", "/v1/acl/policy", &policy).await.0, 200);
    let anonymous = "/v1/acl/token/00000000-0000-0000-0000-000000000002";
    let linked = json!({ "Policies": [{ "Name": "public" }] });
    assert_eq!(send(&node, &root, "PUT", anonymous, &linked).await.0, 200);
    assert_eq!((seen("web.service"), seen("db.service"), seen("N1.node")), (1, 0, 1));

    // A prepared query has the rights of its token, else those of whom has none.
    for (name, service, token) in [("q-web", "web", ""), ("q-db", "db", ""), ("q-lent", "db", root.as_str())] {
        let query = json!({ "Name": name, "Token": token, "Service": { "Service": service } });
        assert_eq!(send(&node, &root, "POST", "/v1/query", &query).await.0, 200);
    }
    let queries = ["q-web.query", "Q-LENT.query.dc1", "_q-lent._tcp.query", "q-db.query", "q-none.query"];
    assert_eq!(queries.map(seen), [1, 1, 1, 0, 0]);

    node.process().signal(libc::SIGTERM);
    wait_until("the registry to end", SOON, &dir, async || node.process().exit_status().map(drop)).await;
    node.start_again().await;
    let dns = node.dns_port();
    let seen = |name: &str| addresses(dns, name);
    assert_eq!((seen("web.service"), seen("db.service"), seen("N1.node")), (1, 0, 1));
    assert_eq!(queries.map(seen), [1, 1, 1, 0, 0]);
    assert_eq!(send(&node, &root, "GET", "/v1/acl/token/self", &Value::Null).await.0, 200);
    assert_eq!(send(&node, "", "PUT", "/v1/acl/bootstrap", &Value::Null).await.0, 403, "once for a store");
    let log = std::fs::read_to_string(dir.join("registry.log")).unwrap();
    assert!(log.contains("acl/bootstrap") && !log.contains(&root), "{log}");
    let store = std::fs::read(dir.join("registry.sqlite")).unwrap();
    assert!(!store.windows(root.len()).any(|part| part == root.as_bytes()), "the store has a secret");
}
