//! xDS used by unmodified clients: gRPC in Python, Node, Go and Java, each of which finds its servers by `xds:///NAME`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{Cluster, Cut, Link, Port, RegistryNode, SOON, ShowLogs, new_dir, wait_until, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::clients::{build, here, installed, there};
use crate::registry_clients::java_program;
use crate::registry_clients_nacos::token;

const LIMIT: Duration = Duration::from_secs(90);
/// Calls after which each server known to a client has got one.
const CALLS: usize = 12;
const KILL: i32 = 9;
const HANG_UP: i32 = 1;

/// A client in its own process, which may also run servers.
struct Agent {
    _child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    dir: PathBuf,
}

impl Agent {
    /// Starts a client. `registry`: the port of the registry for it.
    async fn start(mut command: Command, registry: u16, token: Option<&str>) -> Agent {
        let mut bootstrap = json!({
            "xds_servers": [{
                "server_uri": format!("127.0.0.1:{registry}"),
                "channel_creds": [{ "type": "insecure" }],
                "server_features": ["xds_v3"],
            }],
            "node": { "id": "test", "locality": { "zone": "a" } },
        });
        if let Some(token) = token {
            bootstrap["node"]["metadata"] = json!({ "token": token });
        }
        let dir = new_dir("xds");
        let file = dir.join("bootstrap.json");
        std::fs::write(&file, bootstrap.to_string()).unwrap();
        let log = std::fs::File::create(dir.join("client.log")).unwrap();
        command.current_dir(&dir).env("GRPC_XDS_BOOTSTRAP", &file).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().expect("the client starts");
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Agent { _child: child, to, from: BufReader::new(from).lines(), dir }
    }

    async fn python(registry: u16, token: Option<&str>) -> Agent {
        let mut command = Command::new(installed().await.join("venv/bin/python"));
        command.arg(here().join("python/registry_xds_agent.py"));
        Agent::start(command, registry, token).await
    }

    async fn ask(&mut self, asked: Value) -> Value {
        self.to.write_all(format!("{asked}\n").as_bytes()).await.unwrap();
        let line = tokio::time::timeout(LIMIT, self.from.next_line()).await.expect("a line in time").unwrap();
        serde_json::from_str(&line.expect("the client goes on")).unwrap()
    }

    /// Starts a server that answers with its name; returns its port.
    async fn serve(&mut self, name: &str) -> u64 {
        self.ask(json!({ "do": "serve", "name": name })).await["port"].as_u64().unwrap()
    }

    /// Makes `times` calls; returns the names of the answering servers, and the errors.
    async fn call(&mut self, name: &str, times: usize) -> (BTreeSet<String>, BTreeMap<String, u64>) {
        let said = self.ask(json!({ "do": "call", "name": name, "times": times })).await;
        let answered: BTreeMap<String, u64> = serde_json::from_value(said["answered"].clone()).unwrap();
        (answered.into_keys().collect(), serde_json::from_value(said["failed"].clone()).unwrap())
    }

    /// Waits until exactly these answer, and no call fails.
    async fn finds(&mut self, name: &str, servers: &[&str]) {
        let expected: BTreeSet<String> = servers.iter().map(|name| (*name).to_owned()).collect();
        let dir = self.dir.clone();
        wait_until(&format!("{name} to be {servers:?}"), SOON, &dir, async || {
            let (answered, failed) = self.call(name, CALLS).await;
            (answered == expected && failed.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until calls fail.
    async fn finds_nobody(&mut self, name: &str) {
        let dir = self.dir.clone();
        wait_until(&format!("{name} to be nobody"), SOON, &dir, async || {
            let (answered, failed) = self.call(name, 1).await;
            (answered.is_empty() && !failed.is_empty()).then_some(())
        })
        .await;
    }
}

/// Starts a load balancer in front of the registry: it forwards connections to the first of the ports with a server. Returns its port.
async fn balance(ports: [u16; 2]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                for port in ports {
                    if let Ok(mut node) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut node).await;
                        return;
                    }
                }
            });
        }
    });
    port
}

const C: &str = "/v1/namespaces/default/instances/c";

/// Registers `name` with its own API.
async fn put(node: &RegistryNode, namespace: &str, service: &str, name: &str, port: u64) {
    let path = format!("/v1/namespaces/{namespace}/services/{service}/instances/{name}");
    let answer = node.send("PUT", &path, &json!({ "host": "127.0.0.1", "port": port })).await;
    assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.body);
}

/// Checks a client's view, at two nodes of which one dies, of instances registered by three fronts.
async fn usual(client: Command) {
    let cluster = Cluster::builder().replicas(0).start().await;
    let store = cluster.primary().endpoint().url();
    let one = RegistryNode::start_on(Some(&store), "").await;
    let two = RegistryNode::start_on(Some(&store), "").await;
    let _logs = (ShowLogs(one.dir()), ShowLogs(two.dir()));
    let mut servers = Agent::python(one.port(), None).await;
    let balanced = balance([one.port(), two.port()]).await;
    let mut agent = Agent::start(client, balanced, None).await;
    let _said = ShowLogs(&agent.dir.clone());

    let consul = json!({ "Name": "shop", "ID": "a", "Address": "127.0.0.1", "Port": servers.serve("a").await, "Check": { "TTL": "300s", "Status": "passing" } });
    assert_eq!(two.send("PUT", "/v1/agent/service/register", &consul).await.status, 200);
    let port = servers.serve("b").await;
    let eureka = json!({ "instance": {
        "instanceId": "b", "hostName": "127.0.0.1", "ipAddr": "127.0.0.1", "app": "SHOP", "status": "UP", "vipAddress": "shop",
        "port": { "$": port, "@enabled": "true" }, "dataCenterInfo": { "@class": "x", "name": "MyOwn" },
        "leaseInfo": { "durationInSecs": 300 },
    }});
    let answer = one.send("POST", "/eureka/apps/SHOP", &eureka).await;
    assert_eq!(answer.status, 204, "{}", answer.body);
    put(&one, "default", "shop", "c", servers.serve("c").await).await;
    put(&one, "tenant-b", "shop", "d", servers.serve("d").await).await;
    put(&two, "default", "cart", "e", servers.serve("e").await).await;
    agent.finds("shop", &["a", "b", "c"]).await;
    agent.finds("default/shop", &["a", "b", "c"]).await;
    agent.finds("tenant-b/shop", &["d"]).await;
    agent.finds("default/cart", &["e"]).await;

    assert_eq!(two.send("PUT", "/v1/agent/check/fail/service:a", &json!({})).await.status, 200);
    agent.finds("shop", &["b", "c"]).await;
    let isolated = one.send("PATCH", C, &json!({ "isolate": true })).await;
    assert_eq!(isolated.status, 200, "{}", isolated.body);
    agent.finds("shop", &["b"]).await;

    // The node that the client is connected to dies: calls go on, and later changes are seen at the other one.
    one.end(KILL).await;
    let (answered, failed) = agent.call("shop", CALLS).await;
    assert!(answered.contains("b") && failed.is_empty(), "{answered:?} {failed:?}");
    let back = two.send("PATCH", C, &json!({ "isolate": false })).await;
    assert_eq!(back.status, 200, "{}", back.body);
    assert_eq!(two.send("PUT", "/v1/agent/check/pass/service:a", &json!({})).await.status, 200);
    agent.finds("shop", &["a", "b", "c"]).await;
    agent.finds("tenant-b/shop", &["d"]).await;
    let gone = two.ask("DELETE", "/v1/namespaces/tenant-b/instances/d", &[], "").await;
    assert_eq!(gone.status, 204, "{}", gone.body);
    agent.finds_nobody("tenant-b/shop").await;
    let metrics = two.metrics().await;
    assert!(metrics.sum("kingpost_registry_xds_streams", &[]) >= 1.0);
    assert_eq!(metrics.sum("kingpost_registry_xds_refused_total", &[]), 0.0, "the client takes everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_xds_grpcio() {
    let mut client = Command::new(installed().await.join("venv/bin/python"));
    client.arg(here().join("python/registry_xds_agent.py"));
    usual(client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_xds_grpc_js() {
    let mut client = Command::new("node");
    client.arg(here().join("node/registry_xds_agent.mjs"));
    client.env("NODE_PATH", installed().await.join("node/node_modules"));
    usual(client).await;
}

/// Starts a node with tokens; returns its port for xDS, a token that may write for two tenants, and one that may read of the first, with its table.
async fn of_two_tenants() -> (RegistryNode, Port, String, (String, String)) {
    let xds = Port::reserve();
    let (writer, first) = token("writer", "write", &json!(["tenant-a", "tenant-b"]));
    let (reader, second) = token("reader", "read", &json!(["tenant-a"]));
    let more = format!("auth = \"tokens\"\nxds_listen = \"127.0.0.1:{}\"\n{first}{second}", xds.number());
    let node = RegistryNode::start(&more).await;
    (node, xds, writer, (reader, second))
}

/// Part of `make clients` only: downloading and compiling Go's packages takes longer than all the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn registry_xds_grpc_go() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("xds");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(here().join("go/xds"))).await;
    usual(Command::new(program)).await;
}

/// As [`registry_xds_grpc_go`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_xds_grpc_java() {
    let Some(program) = java_program("java/xds", "XdsAgent").await else { return };
    usual(Command::new(&program)).await;
    let (node, xds, writer, (reader, second)) = of_two_tenants().await;
    let _logs = ShowLogs(node.dir());
    let java = async |token: &str| Agent::start(Command::new(&program), xds.number(), Some(token)).await;
    two_tokens(&node, xds.number(), [&writer, &reader], &second, java).await;
}

/// A client whose host is lost (nothing comes from it, and nothing is closed) keeps no stream open. Part of `make clients` only: the node probes
/// after 30 s and waits 20 s for the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: make clients"]
async fn registry_xds_half_open() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let mut servers = Agent::python(node.port(), None).await;
    put(&node, "default", "shop", "a", servers.serve("a").await).await;
    let path = Cut::to(node.port());
    let mut agent = Agent::python(path.port(), None).await;
    agent.finds("shop", &["a"]).await;
    let streams = async || node.metrics().await.sum("kingpost_registry_xds_streams", &[]);
    assert_eq!(streams().await, 1.0);
    path.set(Link::BlackHole);
    wait_until("the stream to be ended", LIMIT, node.dir(), async || (streams().await == 0.0).then_some(())).await;
    // Once the network is back, so is the client.
    path.set(Link::Up);
    put(&node, "default", "shop", "b", servers.serve("b").await).await;
    agent.finds("shop", &["a", "b"]).await;
}

/// The messages of a stream, one by one; and a client whose token may read one of two namespaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_xds_streams_and_tokens() {
    let (node, xds, writer, (reader, second)) = of_two_tenants().await;
    let _logs = ShowLogs(node.dir());
    let mut script = Command::new(installed().await.join("venv/bin/python"));
    script
        .arg(here().join("python/registry_xds.py"))
        .current_dir(new_dir("client"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    script.env("XDS_ADDRESS", format!("127.0.0.1:{}", node.port())).env("WRITER", &writer).env("READER", &reader);
    let output = within("the script", LIMIT, node.dir(), script.stdin(Stdio::null()).kill_on_drop(true).output()).await;
    let output = output.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let done = out.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(output.status.success() && out.lines().last() == Some(&*format!("1..{done}")), "{out}\n{err}");

    let metrics = node.metrics().await;
    assert_eq!(metrics.sum("kingpost_registry_xds_refused_total", &[]), 1.0, "one was refused, and an old one");
    assert_eq!(metrics.sum("kingpost_registry_xds_left_out_total", &[]), 1.0, "one host is a name");
    let log = std::fs::read_to_string(node.dir().join("registry.log")).unwrap();
    assert!(log.contains("no such thing") && !log.contains(&reader) && !log.contains(&writer), "{log}");
    assert!(metrics.sum("kingpost_registry_requests_total", &[("front", "xds"), ("outcome", "answered")]) > 1.0);

    let python = async |token: &str| Agent::python(xds.number(), Some(token)).await;
    two_tokens(&node, xds.number(), [&writer, &reader], &second, python).await;
}

/// Two clients at the address with xDS only, with one token each: the first is for tenant-a and tenant-b, the second for tenant-a only. `table` is
/// the second token's in the configuration.
async fn two_tokens(
    node: &RegistryNode,
    xds: u16,
    [writer, reader]: [&str; 2],
    table: &str,
    client: impl AsyncFn(&str) -> Agent,
) {
    let mut servers = Agent::python(xds, None).await;
    let bearer = format!("Bearer {writer}");
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    for (namespace, service) in [("tenant-a", "web"), ("tenant-b", "web")] {
        let port = servers.serve(namespace).await;
        let path = format!("/v1/namespaces/{namespace}/services/{service}/instances/{namespace}");
        let body = json!({ "host": "127.0.0.1", "port": port }).to_string();
        let answer = node.ask("PUT", &path, &headers, &body).await;
        assert!(matches!(answer.status, 200 | 201), "{} {}", answer.status, answer.body);
    }
    let mut all = client(writer).await;
    let mut one = client(reader).await;
    all.finds("tenant-a/web", &["tenant-a"]).await;
    all.finds("tenant-b/web", &["tenant-b"]).await;
    one.finds("tenant-a/web", &["tenant-a"]).await;
    one.finds_nobody("tenant-b/web").await;
    let (answered, _) = one.call("tenant-b/web", 1).await;
    assert_eq!(answered, BTreeSet::new(), "a service of another namespace");
    // A revoked token ends the streams that began with it, and no others.
    let streams = async || node.metrics().await.sum("kingpost_registry_xds_streams", &[]);
    let before = streams().await;
    let path = node.dir().join("kingpost.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace(table, "")).unwrap();
    node.process().signal(HANG_UP);
    wait_until("streams to be ended", SOON, node.dir(), async || (streams().await < before).then_some(())).await;
    all.finds("tenant-b/web", &["tenant-b"]).await;
    let other = RegistryNode::try_ask_at(xds, "GET", "/v1/namespaces/tenant-a/services", &headers, "").await;
    assert_ne!(other.map(|answer| answer.status), Some(200), "only xDS is served there");
}
