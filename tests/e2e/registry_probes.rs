//! Probes of the registry, against real servers of each kind. (For PostgreSQL and MariaDB see the registry's own tests of those stores, which have
//! such servers.)

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kingpost_tests::{Port, Process, RegistryNode, RunAs, SOON, ShowLogs, command, wait_until};
use serde_json::json;

use crate::clients::{here, installed};

const SIGUSR1: i32 = 10;
const SIGKILL: i32 = 9;

fn redis(dir: &Path, port: &Port, more: &[&str]) -> Process {
    let mut redis = command(&PathBuf::from("redis-server"), RunAs::Tests, "KILL");
    redis
        .args(["--bind", "127.0.0.1", "--port", &port.number().to_string(), "--save", "", "--dir"])
        .arg(dir)
        .args(more);
    Process::start("redis", redis, &dir.join(format!("redis{}.log", port.number())))
}

/// Returns the health of each instance, by id.
async fn found(node: &RegistryNode) -> BTreeMap<String, String> {
    let answer = node.get("/v1/namespaces/default/services/probed/instances").await.json();
    let instances = answer["instances"].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    instances.iter().map(|instance| (text(&instance["id"]), text(&instance["health"]))).collect()
}

async fn until(node: &RegistryNode, wanted: &[(&str, &str)]) {
    let what = format!("{wanted:?}");
    wait_until(&what, SOON, node.dir(), async || {
        let found = found(node).await;
        wanted.iter().all(|(id, health)| found.get(*id).is_some_and(|found| found == health)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn registry_probes_ask_redis_and_grpc() {
    // The registry itself is a target, too.
    let node = RegistryNode::start("[registry.health]\nprobe_allow = [\"127.0.0.1\"]").await;
    let _logs = ShowLogs(node.dir());
    let ports = [Port::reserve(), Port::reserve(), Port::reserve()];
    let open = redis(node.dir(), &ports[0], &[]);
    let locked = redis(node.dir(), &ports[1], &["--requirepass", "sesame"]);
    let mut python = command(&installed().await.join("venv/bin/python"), RunAs::Tests, "KILL");
    python.arg(here().join("python/grpc_health_server.py")).arg(ports[2].number().to_string());
    let grpc = Process::start("grpc", python, &node.dir().join("grpc.log"));

    let check = |kind: &str, more: &str| {
        let mut check = json!({ "type": kind, "interval": "1s", "timeout": "1s", "fall": 1, "rise": 1 });
        if kind == "grpc" {
            check["service"] = more.into();
        }
        check
    };
    let instance = |id: &str, port: u16, check: serde_json::Value| json!({ "service": "probed", "id": id, "host": "127.0.0.1", "port": port, "health": "critical", "check": check });
    let [first, second, third] = ports.each_ref().map(Port::number);
    let own = node.port();
    let instances = json!({ "instances": [
        instance("redis", first, check("redis", "")),
        instance("redis-locked", second, check("redis", "")),
        instance("grpcio", third, check("grpc", "")),
        instance("grpcio-shop", third, check("grpc", "shop")),
        instance("grpcio-unknown", third, check("grpc", "nobody")),
        // The registry has gRPC's health service, too, in another implementation.
        instance("tonic", own, check("grpc", "")),
        // A server of another protocol.
        instance("not-redis", own, check("redis", "")),
        instance("not-mysql", first, check("mysql", "")),
    ] });
    let answer = node.send("POST", "/v1/namespaces/default/instances", &instances).await;
    assert_eq!(answer.json()["failed"], 0, "{}", answer.body);
    let good = ["redis", "redis-locked", "grpcio", "grpcio-shop", "tonic"];
    until(&node, &good.map(|id| (id, "passing"))).await;

    grpc.signal(SIGUSR1);
    open.signal(SIGKILL);
    until(&node, &[("grpcio-shop", "critical"), ("redis", "critical")]).await;
    let now = found(&node).await;
    for (id, health) in [
        ("redis-locked", "passing"),
        ("grpcio", "passing"),
        ("tonic", "passing"),
        ("grpcio-unknown", "critical"),
        ("not-redis", "critical"),
        ("not-mysql", "critical"),
    ] {
        assert_eq!(now[id], health, "{id}: {now:?}");
    }
    let again = redis(node.dir(), &ports[0], &[]);
    until(&node, &[("redis", "passing")]).await;
    drop((again, locked));
}
