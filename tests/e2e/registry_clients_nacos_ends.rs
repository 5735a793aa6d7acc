//! Nacos over gRPC, where the connection is the lease: its end by a revoked token, behind TLS, and by the loss of the client's machine.

use std::ffi::OsStr;
use std::time::Duration;

use kingpost_tests::certs::{Authority, Pair};
use kingpost_tests::{Cut, Link, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};

use crate::registry_clients_nacos::{Agent, Doors, passing_by, registrations, token, until_passing_by};

/// A client repeats its registrations every 30 s, and is probed after a silence of 20 s.
const LIMIT: Duration = Duration::from_secs(120);
const HANG_UP: i32 = 1;

/// Counts the audit log's entries, in the node's log, of an action by a token in a namespace.
fn audited(node: &RegistryNode, action: &str, token: &str, namespace: &str) -> usize {
    let log = std::fs::read_to_string(node.process().log()).unwrap_or_default();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is = |line: &Value| line["action"] == action && line["token"] == token && line["namespace"] == namespace;
    lines.filter(is).count()
}

/// Makes a node reload its configuration, with `from` replaced.
fn reconfigure(node: &RegistryNode, from: &str, to: &str) {
    let path = node.dir().join("kingpost.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replace(from, to)).unwrap();
    node.process().signal(HANG_UP);
}

/// A revoked token, or one with fewer permissions than before, takes its registrations and pushes with it. The client of another token in another
/// namespace is not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_nacos_grpc_tokens_come_and_go() {
    let doors = Doors::new();
    let (admin, table) = token("admin", "admin", &json!(["*"]));
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let (third, third_table) = token("third", "write", &json!(["tenant-b"]));
    let tables = format!("{table}{first_table}{second_table}{third_table}");
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{}{tables}", doors.key())).await;
    let _logs = ShowLogs(node.dir());
    let start = async |namespace: &str, token: &str| {
        Agent::start_with(&doors.address(), namespace, &[("NACOS_PASSWORD", OsStr::new(token))]).await
    };
    let mut a = start("tenant-a", &first).await;
    let mut b = start("tenant-b", &second).await;
    let mut c = start("tenant-b", &third).await;
    a.register("shop", "10.0.0.1").await;
    b.register("shop", "10.0.0.2").await;
    c.register("shop", "10.0.0.3").await;
    for agent in [&mut a, &mut b] {
        agent.ask(json!({ "do": "subscribe", "service": "shop" }), "subscribed").await;
    }
    let is = async |namespace: &str, ips: &[&str]| until_passing_by(&admin, &node, namespace, "shop", ips, SOON).await;
    is("tenant-a", &["10.0.0.1"]).await;
    is("tenant-b", &["10.0.0.2", "10.0.0.3"]).await;

    // One token is gone, another one may only read: both connections end as if their clients had left. No lease has to run out for that.
    reconfigure(&node, &first_table, "");
    reconfigure(&node, &third_table, &third_table.replace("\"write\"", "\"read\""));
    is("tenant-a", &[]).await;
    is("tenant-b", &["10.0.0.2"]).await;
    assert_eq!(audited(&node, "connection lost", "first", "tenant-a"), 1);
    assert_eq!(audited(&node, "connection lost", "third", "tenant-b"), 1);

    // The client without a token gets nothing any more. The other one gets everything.
    let bearer = format!("Bearer {admin}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    for (namespace, ip) in [("tenant-a", "10.0.9.1"), ("tenant-b", "10.0.9.2")] {
        let path = format!("/v1/namespaces/{namespace}/services/shop/instances/native");
        let answer = node.ask("PUT", &path, &headers, &json!({ "host": ip, "port": 80 }).to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    }
    b.hears("shop", &["10.0.0.2", "10.0.9.2"]).await;
    for asked in ["list", "register"] {
        let refused = a.ask(json!({ "do": asked, "service": "shop", "ip": "10.0.0.1" }), "refused").await;
        assert!(refused.as_str().unwrap().contains("token"), "{refused}");
    }
    let heard = format!("{:?}", a.heard);
    assert!(!heard.contains("10.0.9.") && !heard.contains("10.0.0.2"), "{heard}");
    // A client that may read still reads.
    let refused = c.ask(json!({ "do": "register", "service": "shop", "ip": "10.0.0.3" }), "refused").await;
    assert!(refused.as_str().unwrap().contains("may not write"), "{refused}");
    assert_eq!(c.list("shop").await, json!(["10.0.0.2", "10.0.9.2"]));

    // With the token back, the same client registers again.
    reconfigure(&node, &second_table, &format!("{first_table}{second_table}"));
    let bearer = format!("Bearer {first}");
    let admitted = async || (audited(&node, "register", "first", "tenant-a") > 1).then_some(());
    let register = json!({ "do": "register", "service": "shop", "ip": "10.0.0.1" });
    wait_until("the token to be known again", SOON, node.dir(), async || {
        let status =
            node.ask("GET", "/v1/namespaces/tenant-a/services", &[("Authorization", &bearer)], "").await.status;
        (status == 200).then_some(())
    })
    .await;
    assert_eq!(a.ask(register, "registered").await, json!(true));
    is("tenant-a", &["10.0.0.1", "10.0.9.1"]).await;
    wait_until("the registration in the audit log", SOON, node.dir(), admitted).await;
    // The other one was there all the time, by its first connection.
    assert_eq!(passing_by(&admin, &node, "tenant-b", "shop").await, ["10.0.0.2", "10.0.9.2"]);
    assert_eq!((registrations(&node, "10.0.0.2"), audited(&node, "connection lost", "second", "tenant-b")), (1, 0));
    let log = std::fs::read_to_string(node.process().log()).unwrap();
    assert!([&admin, &first, &second, &third].iter().all(|token| !log.contains(*token)), "a token is in the log");
}

/// Both of Nacos' addresses are behind TLS: the one for logins and the one for gRPC. Two clients, each with its own namespace and token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_nacos_grpc_with_tls() {
    let (servers, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    let server = servers.issue("registry", &["127.0.0.1"]);
    let doors = Doors::new();
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let node = RegistryNode::start(&format!(
        "auth = \"tokens\"\n{}{first_table}{second_table}[registry.tls]\nmode = \"require\"\ncert_file = {:?}\nkey_file = {:?}\nca_file = {:?}\nclient_cert = \"verify-ca\"",
        doors.key(),
        server.cert,
        server.key,
        clients.ca_file(),
    ))
    .await;
    let _logs = ShowLogs(node.dir());
    let address = format!("https://{}", doors.address());
    let start = async |namespace: &str, token: &str, authority: &Authority, shown: &Pair| {
        let ca = authority.ca_file();
        let files = [("NACOS_CA", ca.as_os_str()), ("NACOS_CERT", shown.cert.as_os_str())];
        let rest = [("NACOS_KEY", shown.key.as_os_str()), ("NACOS_PASSWORD", OsStr::new(token))];
        Agent::start_with(&address, namespace, &[files, rest].concat()).await
    };
    let (one, two) = (clients.issue("one", &[]), clients.issue("two", &[]));
    let mut a = start("tenant-a", &first, &servers, &one).await;
    let mut b = start("tenant-b", &second, &servers, &two).await;
    a.register("shop", "10.0.0.1").await;
    b.register("shop", "10.0.0.2").await;
    a.ask(json!({ "do": "subscribe", "service": "shop" }), "subscribed").await;
    assert_eq!(a.list("shop").await, json!(["10.0.0.1"]));
    assert_eq!(b.list("shop").await, json!(["10.0.0.2"]));
    let mut third = start("tenant-a", &first, &servers, &two).await;
    third.register("shop", "10.0.0.3").await;
    a.hears("shop", &["10.0.0.1", "10.0.0.3"]).await;
    // The connection is the lease behind TLS as well.
    third.kill().await;
    a.hears("shop", &["10.0.0.1"]).await;
    assert_eq!(b.list("shop").await, json!(["10.0.0.2"]));

    // A certificate of another authority, a server that the client does not trust, and no TLS: refused at both addresses.
    let insecure = async || node.metrics().await.sum("kingpost_registry_insecure_total", &[]);
    let stranger = others.issue("one", &[]);
    for (authority, shown) in [(&servers, &stranger), (&others, &one)] {
        let before = insecure().await;
        let mut refused = start("tenant-a", &first, authority, shown).await;
        refused.ask(json!({ "do": "register", "service": "shop", "ip": "10.0.0.4" }), "refused").await;
        assert!(insecure().await > before);
        refused.kill().await;
    }
    for port in doors.ports() {
        let before = insecure().await;
        let answer = RegistryNode::try_ask_at(port, "GET", "/nacos/v1/ns/operator/metrics", &[], "").await;
        assert!(answer.is_none() && insecure().await > before, "{answer:?}");
    }
    assert_eq!(a.list("shop").await, json!(["10.0.0.1"]));
}

/// A client whose machine is lost (nothing comes from it, and nothing is closed) loses its registrations; a client beside it does not. Part of `make
/// clients` only: a client is probed after 20 s of silence, and repeats its registrations every 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: make clients"]
async fn registry_nacos_grpc_half_open() {
    let doors = Doors::new();
    let node = RegistryNode::start(&doors.key()).await;
    let _logs = ShowLogs(node.dir());
    let path = Cut::to(doors.ports()[1]);
    let offset = (i32::from(path.port()) - i32::from(doors.ports()[0])).to_string();
    let mut gone = Agent::start_with(&doors.address(), "tenant-a", &[("NACOS_OFFSET", OsStr::new(&offset))]).await;
    let mut stays = Agent::start_with(&doors.address(), "tenant-a", &[]).await;
    let mut other = Agent::start_with(&doors.address(), "tenant-b", &[]).await;
    gone.register("shop", "10.0.0.1").await;
    stays.register("shop", "10.0.0.2").await;
    other.register("shop", "10.0.0.3").await;
    let is = async |namespace: &str, ips: &[&str]| until_passing_by("", &node, namespace, "shop", ips, LIMIT).await;
    is("tenant-a", &["10.0.0.1", "10.0.0.2"]).await;
    path.set(Link::BlackHole);
    is("tenant-a", &["10.0.0.2"]).await;
    // By the end of the connection: the end of a lease would have left a critical instance, and no such line.
    assert_eq!(audited(&node, "connection lost", "-", "tenant-a"), 1);
    assert_eq!(audited(&node, "connection lost", "-", "tenant-b"), 0);
    is("tenant-b", &["10.0.0.3"]).await;
    // Once the network is back, so is the client.
    path.set(Link::Up);
    is("tenant-a", &["10.0.0.1", "10.0.0.2"]).await;
    assert_eq!((registrations(&node, "10.0.0.2"), registrations(&node, "10.0.0.3")), (1, 1));
}
