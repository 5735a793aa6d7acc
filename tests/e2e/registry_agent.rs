//! A host that dies: the lease that `kingpost registry agent` keeps, and the instances and sessions of the host.

use std::path::Path;

use kingpost_tests::{Process, RegistryNode, RunAs, SOON, ShowLogs, command, kingpost_bin, wait_until};
use serde_json::{Value, json};

/// Starts an agent on this host, and waits until it keeps the lease.
async fn agent(node: &RegistryNode, dir: &Path, name: &str, more: &[&str]) -> Process {
    let mut program = command(&kingpost_bin(), RunAs::Tests, "KILL");
    program.args(["registry", "agent", "--url", &node.url(), "--ttl", "2s"]).args(more);
    let log = dir.join(format!("{name}.log"));
    let agent = Process::start(name, program, &log);
    wait_until("the agent to keep the lease", SOON, dir, async || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        assert!(agent.exit_status().is_none(), "{said}");
        said.contains("is kept").then_some(())
    })
    .await;
    agent
}

async fn put(node: &RegistryNode, path: &str, body: &Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = node.ask("PUT", path, &[("Content-Type", "application/json")], &body).await;
    (answer.status, answer.body)
}

async fn passing(node: &RegistryNode, service: &str) -> usize {
    let list = node.get(&format!("/v1/health/service/{service}?passing")).await.json();
    list.as_array().map_or(0, Vec::len)
}

async fn until_passing(node: &RegistryNode, count: usize) {
    let reached = async || (passing(node, "web").await == count).then_some(());
    wait_until("the number of passing instances", SOON, node.dir(), reached).await;
}

#[tokio::test]
async fn instances_and_sessions_of_a_host_end_with_its_lease() {
    let node = RegistryNode::start("").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let first = agent(&node, &dir, "first", &[]).await;
    // No checks of their own; one on this host's address, one on another that its agent has registered.
    for (id, address) in [("a", ""), ("b", "10.0.0.2")] {
        let body = json!({ "ID": id, "Name": "web", "Address": address, "Port": 80 });
        assert_eq!(put(&node, "/v1/agent/service/register", &body).await.0, 200);
    }
    // A service of another host, in the catalog.
    let body = json!({ "Node": "n2", "Address": "10.0.0.3", "Service": { "ID": "c", "Service": "web" } });
    assert_eq!(put(&node, "/v1/catalog/register", &body).await.0, 200);
    assert_eq!(passing(&node, "web").await, 3);
    let session = put(&node, "/v1/session/create", &json!({ "LockDelay": "0s" })).await;
    let session = serde_json::from_str::<Value>(&session.1).unwrap()["ID"].as_str().unwrap().to_owned();
    assert_eq!(put(&node, &format!("/v1/kv/leader?acquire={session}"), &json!(1)).await.1.trim(), "true");
    let shown = node.get(&format!("/v1/session/info/{session}")).await.json();
    assert_eq!(shown[0]["NodeChecks"], json!(["serfHealth"]));

    // Its process is gone as with the host: nothing says that it ends.
    first.signal(libc::SIGKILL);
    until_passing(&node, 1).await;
    let checks = node.get("/v1/health/node/127.0.0.1").await.json();
    let serf = checks.as_array().unwrap().iter().find(|check| check["CheckID"] == "serfHealth").unwrap();
    assert_eq!((&serf["Status"], &serf["ServiceName"]), (&json!("critical"), &json!("")), "{checks}");
    wait_until("the session to end", SOON, &dir, async || {
        let shown = node.get(&format!("/v1/session/info/{session}")).await.json();
        (shown == json!([])).then_some(())
    })
    .await;
    assert_eq!(node.get("/v1/kv/leader").await.json()[0].get("Session"), None, "the lock is free");
    let refused = put(&node, "/v1/session/create", &Value::Null).await;
    assert!(refused.0 == 500 && refused.1.contains("serfHealth' is in critical state"), "{refused:?}");

    // A host that comes back, and an agent that is replaced by another one in time.
    let second = agent(&node, &dir, "second", &[]).await;
    until_passing(&node, 3).await;
    second.signal(libc::SIGTERM);
    wait_until("the agent to end", SOON, &dir, async || second.exit_status().map(drop)).await;
    let third = agent(&node, &dir, "third", &[]).await;
    assert_eq!(passing(&node, "web").await, 3);
    // A lease that somebody removed comes back.
    assert_eq!(put(&node, "/v1/agent/check/deregister/serfHealth", &Value::Null).await.0, 200);
    wait_until("the lease to come back", SOON, &dir, async || {
        let checks = node.get("/v1/health/node/127.0.0.1").await.json();
        checks.as_array().unwrap().iter().any(|check| check["CheckID"] == "serfHealth").then_some(())
    })
    .await;
    drop(third);
}

#[tokio::test]
async fn an_agent_without_the_right_says_so_and_ends() {
    let node = RegistryNode::start("auth = \"acl\"").await;
    let dir = node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let mut program = command(&kingpost_bin(), RunAs::Tests, "KILL");
    program.args(["registry", "agent", "--url", &node.url()]);
    let log = dir.join("agent.log");
    let agent = Process::start("agent", program, &log);
    wait_until("the agent to end", SOON, &dir, async || agent.exit_status().map(drop)).await;
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("lacks permission 'node:write'") && said.contains("KINGPOST_REGISTRY_TOKEN"), "{said}");
}
