//! Nacos' naming over gRPC, used by nacos-sdk-python 3 and Nacos' Java client, unmodified: on one node at their usual work, and on two nodes of which
//! each may die.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kingpost_tests::{Cluster, Kingpost, Port, RegistryNode, SOON, ShowLogs, new_dir, wait_until, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::clients::{here, installed};
use crate::registry_clients::java_program_with;

/// Longest time of one client's usual work, including the login.
const LIMIT: Duration = Duration::from_secs(90);
/// A client that dies together with its node is critical once its lease of 40 s is over.
pub(crate) const LEASES: Duration = Duration::from_secs(120);
const KILL: i32 = 9;
const TERMINATE: i32 = 15;

/// Ports of a node for Nacos' clients: of HTTP, and of gRPC.
pub(crate) struct Doors(Port, Port);

impl Doors {
    pub(crate) fn new() -> Doors {
        let (http, grpc) = Port::reserve_two(1000);
        Doors(http, grpc)
    }

    /// Returns their key in the node's configuration.
    pub(crate) fn key(&self) -> String {
        assert_eq!(self.1.number(), self.0.number() + 1000);
        format!("nacos_listen = \"{}\"\n", self.address())
    }

    /// Returns the address for clients.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.0.number())
    }

    /// Returns the ports of HTTP and of gRPC.
    pub(crate) fn ports(&self) -> [u16; 2] {
        [self.0.number(), self.1.number()]
    }
}

/// Makes a token, and its table.
pub(crate) fn token(name: &str, role: &str, namespaces: &Value) -> (String, String) {
    let output = Kingpost::run(&["registry", "token", name]);
    let said = String::from_utf8(output.stderr).unwrap();
    let hash = said.lines().find_map(|line| line.strip_prefix("sha256 = ")).expect("a hash");
    let table = format!(
        "[[registry.tokens]]\nname = \"{name}\"\nsha256 = {hash}\nrole = \"{role}\"\nnamespaces = {namespaces}\n"
    );
    (String::from_utf8(output.stdout).unwrap().trim().to_owned(), table)
}

/// Runs a client's usual work, on a node that requires tokens.
async fn run(mut client: Command) {
    let doors = Doors::new();
    let (writer, first) = token("writer", "write", &json!(["tenant-a", "tenant-b"]));
    let (reader, second) = token("reader", "read", &json!(["tenant-a"]));
    let node = RegistryNode::start(&format!("auth = \"tokens\"\n{}{first}{second}", doors.key())).await;
    let _logs = ShowLogs(node.dir());
    let dir = new_dir("client");
    client.current_dir(&dir).env("HOME", &dir).env("PYTHONDONTWRITEBYTECODE", "1");
    client.env("NACOS_ADDRESS", doors.address()).env("WRITER", writer).env("READER", reader);
    client.stdin(Stdio::null()).kill_on_drop(true);
    let output = within("the client", LIMIT, node.dir(), client.output()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let done = out.lines().filter(|line| line.starts_with("ok ")).count();
    // A program that stops early has not reported the number of its checks.
    let whole = done > 0 && out.lines().any(|line| line == format!("1..{done}"));
    assert!(output.status.success() && whole, "{out}\n{err}");
}

#[tokio::test]
async fn registry_nacos_sdk_python_grpc() {
    let mut client = Command::new(installed().await.join("nacos/bin/python"));
    client.arg(here().join("python/registry_nacos_grpc.py"));
    run(client).await;
}

/// Part of `make clients` only: downloading Maven's packages takes longer than all the rest.
#[tokio::test]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_nacos_java_grpc() {
    java(&[]).await;
}

/// As [`registry_nacos_java_grpc`], with version 2 of the client.
#[tokio::test]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_nacos_java_grpc_of_version_2() {
    java(&["-Dkingpost.nacos=2.5.1"]).await;
}

async fn java(options: &[&str]) {
    if let Some(program) = java_program_with("java/nacos", "NacosGrpc", options).await {
        run(Command::new(program)).await;
    }
}

/// A client in a process of its own.
pub(crate) struct Agent {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    /// Messages of subscriptions received while waiting for an answer.
    pub(crate) heard: Vec<Value>,
    /// Output of the client so far.
    pub(crate) said: String,
    pub(crate) dir: PathBuf,
}

/// An instance in a subscriber's list: its address, its health, and `zone` in its metadata.
pub(crate) type Seen<'a> = (&'a str, bool, &'a str);

/// Parses a client's list of address, health and metadata.
fn seen(hosts: &Value) -> Vec<Seen<'_>> {
    let hosts = hosts.as_array().unwrap_or_else(|| panic!("{hosts}")).iter();
    hosts.map(|host| (host[0].as_str().unwrap(), host[1] == true, host[2]["zone"].as_str().unwrap_or(""))).collect()
}

impl Agent {
    async fn start(doors: &[&Doors], namespace: &str) -> Agent {
        let addresses: Vec<String> = doors.iter().map(|doors| doors.address()).collect();
        Agent::start_with(&addresses.join(","), namespace, &[]).await
    }

    /// Starts a client of the servers at `addresses` (separated by commas), with `variables` in its environment.
    pub(crate) async fn start_with(addresses: &str, namespace: &str, variables: &[(&str, &OsStr)]) -> Agent {
        Agent::of(Agent::python().await, addresses, namespace, variables).await
    }

    /// Returns the command of nacos-sdk-python 3.
    pub(crate) async fn python() -> Command {
        let mut command = Command::new(installed().await.join("nacos/bin/python"));
        command.arg(here().join("python/registry_nacos_agent.py")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Starts a client by `command`, as [`Agent::start_with`].
    pub(crate) async fn of(
        mut command: Command,
        addresses: &str,
        namespace: &str,
        variables: &[(&str, &OsStr)],
    ) -> Agent {
        let dir = new_dir("agent");
        command.arg(addresses).arg(namespace).envs(variables.iter().copied()).current_dir(&dir).env("HOME", &dir);
        // Java takes the user's directory from the system, not from the environment.
        command.env("JAVA_TOOL_OPTIONS", format!("-Duser.home={}", dir.display()));
        let log = std::fs::File::create(dir.join("client.log")).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().expect("the client starts");
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let from = BufReader::new(from).lines();
        let mut agent = Agent { child, to, from, heard: Vec::new(), said: String::new(), dir };
        agent.next("ready").await;
        agent
    }

    async fn line(&mut self) -> Value {
        loop {
            let line = tokio::time::timeout(LIMIT, self.from.next_line()).await.expect("a line in time").unwrap();
            // The client's own log is on its output as well.
            let Some(line) = line else {
                let log = std::fs::read_to_string(self.dir.join("client.log")).unwrap_or_default();
                panic!("the client has ended: {log}");
            };
            if let Ok(value) = serde_json::from_str(&line) {
                self.said += &line;
                return value;
            }
        }
    }

    /// Returns the next answer that is not about a subscription.
    async fn answer(&mut self) -> Value {
        loop {
            let line = self.line().await;
            if line.get("heard").is_none() {
                return line;
            }
            self.heard.push(line);
        }
    }

    async fn next(&mut self, key: &str) -> Value {
        let mut line = self.answer().await;
        assert!(line.get(key).is_some(), "{key} was asked for: {line}");
        line[key].take()
    }

    /// Waits for an answer with `key`, and returns its value.
    pub(crate) async fn ask(&mut self, asked: Value, key: &str) -> Value {
        self.to.write_all(format!("{asked}\n").as_bytes()).await.unwrap();
        self.next(key).await
    }

    pub(crate) async fn register(&mut self, service: &str, ip: &str) {
        let done = self.ask(json!({ "do": "register", "service": service, "ip": ip }), "registered").await;
        assert_eq!(done, json!(true), "{service} {ip}");
    }

    /// Returns the addresses of a service's instances.
    pub(crate) async fn list(&mut self, service: &str) -> Value {
        let listed = self.ask(json!({ "do": "list", "service": service }), "listed").await;
        seen(&listed).into_iter().map(|(ip, ..)| ip).collect()
    }

    /// Waits until the subscription has delivered exactly these addresses.
    pub(crate) async fn hears(&mut self, service: &str, ips: &[&str]) {
        self.until_heard(service, |hosts| hosts.iter().map(|(ip, ..)| *ip).eq(ips.iter().copied())).await;
    }

    /// Waits until the subscription has delivered exactly these instances.
    pub(crate) async fn sees(&mut self, service: &str, wanted: &[Seen<'_>]) {
        self.until_heard(service, |hosts| hosts == wanted).await;
    }

    async fn until_heard(&mut self, service: &str, is: impl Fn(&[Seen<'_>]) -> bool) {
        let is = |line: &Value| line["heard"] == service && is(&seen(&line["hosts"]));
        if std::mem::take(&mut self.heard).iter().any(&is) {
            return;
        }
        while !is(&self.line().await) {}
    }

    /// Waits until a listener was told of this content of an entry.
    pub(crate) async fn told(&mut self, id: &str, content: &str) {
        let is = |line: &Value| line["heard"] == id && line["content"] == content;
        if std::mem::take(&mut self.heard).iter().any(is) {
            return;
        }
        while !is(&self.line().await) {}
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// Returns the addresses of a service's passing instances, by a node's own API.
async fn passing(node: &RegistryNode, namespace: &str, service: &str) -> Vec<String> {
    passing_by("", node, namespace, service).await
}

/// As [`passing`], of a node that requires a token.
pub(crate) async fn passing_by(token: &str, node: &RegistryNode, namespace: &str, service: &str) -> Vec<String> {
    let path = format!("/v1/namespaces/{namespace}/services/{service}/instances?usable=true");
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str())];
    let headers = if token.is_empty() { &headers[..0] } else { &headers[..] };
    let Some(answer) = node.try_ask("GET", &path, headers, "").await else { return Vec::new() };
    if answer.status == 404 {
        return Vec::new();
    }
    let answer = answer.json();
    let mut ips: Vec<String> = answer["instances"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"))
        .iter()
        .map(|instance| instance["host"].as_str().unwrap().to_owned())
        .collect();
    ips.sort();
    ips
}

async fn until_passing(node: &RegistryNode, namespace: &str, service: &str, ips: &[&str], limit: Duration) {
    until_passing_by("", node, namespace, service, ips, limit).await;
}

/// Waits until exactly these are passing, on a node that requires a token.
pub(crate) async fn until_passing_by(
    token: &str,
    node: &RegistryNode,
    namespace: &str,
    service: &str,
    ips: &[&str],
    limit: Duration,
) {
    let what = format!("{namespace}/{service} to be {ips:?}");
    let is = async || (passing_by(token, node, namespace, service).await == ips).then_some(());
    wait_until(&what, limit, node.dir(), is).await;
}

/// Counts the registrations of an instance by a connection to this node.
pub(crate) fn registrations(node: &RegistryNode, ip: &str) -> usize {
    let log = std::fs::read_to_string(node.process().log()).unwrap_or_default();
    log.lines().filter(|line| line.contains("\"action\":\"register\"") && line.contains(&format!("\"{ip}#80#"))).count()
}

/// Two nodes on one store.
pub(crate) struct World {
    _cluster: Cluster,
    pub(crate) nodes: [RegistryNode; 2],
    pub(crate) doors: [Doors; 2],
}

impl World {
    async fn start() -> World {
        World::start_with("", "").await
    }

    /// Starts the nodes with more configuration: keys of the registry, and tables.
    pub(crate) async fn start_with(keys: &str, tables: &str) -> World {
        let cluster = Cluster::builder().replicas(0).start().await;
        let store = cluster.primary().endpoint().url();
        let doors = [Doors::new(), Doors::new()];
        // After a large simultaneous loss the brake keeps the instances for at most this time.
        let brake = "[registry.health.brake]\nlongest = \"2s\"\n";
        let of = |doors: &Doors| format!("{keys}{}{brake}{tables}", doors.key());
        let one = RegistryNode::start_on(Some(&store), &of(&doors[0])).await;
        let two = RegistryNode::start_on(Some(&store), &of(&doors[1])).await;
        for node in [&one, &two] {
            wait_until("the nodes to reach each other", SOON, node.dir(), async || {
                (node.metrics().await.sum("kingpost_registry_peers_reached", &[]) == 1.0).then_some(())
            })
            .await;
        }
        World { _cluster: cluster, nodes: [one, two], doors }
    }
}

/// Instances registered by a client of Nacos are found by the clients of all other fronts, at either node, in their namespace; and vice versa.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_nacos_grpc_and_the_other_fronts() {
    let World { _cluster, nodes, doors } = &World::start().await;
    let _logs = (ShowLogs(nodes[0].dir()), ShowLogs(nodes[1].dir()));
    let mut a = Agent::start(&[&doors[0]], "tenant-a").await;
    let mut b = Agent::start(&[&doors[1]], "tenant-b").await;
    let mut d = Agent::start(&[&doors[0]], "default").await;
    a.register("shop", "10.0.0.1").await;
    b.register("shop", "10.0.0.2").await;
    d.register("shop", "10.0.0.3").await;
    for node in nodes {
        until_passing(node, "tenant-a", "shop", &["10.0.0.1"], SOON).await;
        until_passing(node, "tenant-b", "shop", &["10.0.0.2"], SOON).await;
        until_passing(node, "default", "shop", &["10.0.0.3"], SOON).await;
        for (namespace, ip) in [("tenant-a", "10.0.0.1"), ("tenant-b", "10.0.0.2")] {
            let nacos = format!("/nacos/v1/ns/instance/list?serviceName=shop&namespaceId={namespace}");
            let hosts = node.get(&nacos).await.json()["hosts"].take();
            assert_eq!((hosts.as_array().unwrap().len(), &hosts[0]["ip"]), (1, &json!(ip)), "{hosts}");
            let consul = node.get(&format!("/v1/health/service/shop?passing&ns={namespace}")).await.json();
            let address = &consul[0]["Service"]["Address"];
            assert_eq!((consul.as_array().unwrap().len(), address), (1, &json!(ip)), "{consul}");
        }
        let eureka = node.ask("GET", "/eureka/apps/SHOP", &[("Accept", "application/json")], "").await.json();
        let instances = eureka["application"]["instance"].as_array().unwrap();
        assert_eq!((instances.len(), &instances[0]["ipAddr"]), (1, &json!("10.0.0.3")), "{eureka}");
    }

    // A subscriber gets the other clients' registrations, one after the other; each made at the other node.
    for agent in [&mut a, &mut b, &mut d] {
        agent.ask(json!({ "do": "subscribe", "service": "shop" }), "subscribed").await;
    }
    let native = json!({ "host": "10.0.1.1", "port": 80 });
    let answer = nodes[1].send("PUT", "/v1/namespaces/tenant-a/services/shop/instances/n", &native).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    a.hears("shop", &["10.0.0.1", "10.0.1.1"]).await;
    let http = "/nacos/v1/ns/instance?serviceName=shop&namespaceId=tenant-a&ip=10.0.1.2&port=80";
    assert_eq!(nodes[1].ask("POST", http, &[], "").await.body, "ok");
    a.hears("shop", &["10.0.0.1", "10.0.1.1", "10.0.1.2"]).await;
    let consul = json!({ "ID": "c", "Name": "shop", "Address": "10.0.1.3", "Port": 80 });
    assert_eq!(nodes[0].send("PUT", "/v1/agent/service/register?ns=tenant-b", &consul).await.status, 200);
    b.hears("shop", &["10.0.0.2", "10.0.1.3"]).await;
    let eureka = json!({ "instance": {
        "instanceId": "e", "hostName": "10.0.1.4", "app": "SHOP", "ipAddr": "10.0.1.4", "status": "UP",
        "port": { "$": 80, "@enabled": "true" },
        "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
    } });
    assert_eq!(nodes[1].send("POST", "/eureka/apps/SHOP", &eureka).await.status, 204);
    d.hears("shop", &["10.0.0.3", "10.0.1.4"]).await;
    assert_eq!(a.list("shop").await, json!(["10.0.0.1", "10.0.1.1", "10.0.1.2"]));
    assert_eq!(b.list("shop").await, json!(["10.0.0.2", "10.0.1.3"]));
    // No client gets anything of another namespace.
    for (agent, others) in [(&a, ["10.0.0.2", "10.0.1.3", "10.0.1.4"]), (&b, ["10.0.0.1", "10.0.1.1", "10.0.1.2"])] {
        let heard = format!("{:?}", agent.heard);
        assert!(others.iter().all(|ip| !heard.contains(ip)), "{heard}");
    }

    // The registrations of a killed client go with it: no lease has to run out.
    a.kill().await;
    for node in nodes {
        until_passing(node, "tenant-a", "shop", &["10.0.1.1", "10.0.1.2"], SOON).await;
        assert_eq!(passing(node, "tenant-b", "shop").await, ["10.0.0.2", "10.0.1.3"]);
    }
}

/// A client connected to a node that dies, or stops, never loses its instances; a connection that ends late removes nothing of a later one.
///
/// Part of `make clients` only: the client repeats its registrations every 30 s, and a lease takes 40 s to end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and a half: make clients"]
async fn registry_nacos_grpc_nodes_die() {
    let mut world = World::start().await;
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    {
        // Two connections at two nodes publish one instance; the first one ends afterwards. Its end comes last in order.
        let World { nodes, doors, .. } = &world;
        let mut first = Agent::start(&[&doors[0]], "tenant-a").await;
        let mut second = Agent::start(&[&doors[1]], "tenant-a").await;
        first.register("shared", "10.0.0.9").await;
        first.register("witness", "10.0.0.9").await;
        second.register("shared", "10.0.0.9").await;
        first.kill().await;
        until_passing(&nodes[1], "tenant-a", "witness", &[], SOON).await;
        assert_eq!(passing(&nodes[1], "tenant-a", "shared").await, ["10.0.0.9"]);
        second.kill().await;
        until_passing(&nodes[0], "tenant-a", "shared", &[], SOON).await;
    }

    // Both know both nodes, and use the second one while the first is away.
    let both = [&world.doors[0], &world.doors[1]];
    let mut stays = Agent::start(&both, "tenant-a").await;
    stays.register("shop", "10.0.0.1").await;
    let at = usize::from(registrations(&world.nodes[1], "10.0.0.1") > 0);
    let (here, there) = (at, 1 - at);
    // Before the other one: without a renewal its lease would run out first.
    let mut rests = Agent::start(&[&world.doors[there]], "tenant-b").await;
    rests.register("rests", "10.0.0.5").await;
    let mut goes = Agent::start(&[&world.doors[here]], "tenant-b").await;
    goes.register("shop", "10.0.0.2").await;
    until_passing(&world.nodes[there], "tenant-b", "shop", &["10.0.0.2"], SOON).await;
    until_passing(&world.nodes[there], "tenant-a", "shop", &["10.0.0.1"], SOON).await;

    // The node dies, and one of its clients with it. The other client reaches the living node before it could be missed.
    let survivor = &world.nodes[there];
    let (watching, missed) = (AtomicBool::new(true), AtomicUsize::new(0));
    let watch = async {
        let mut looks = 0;
        while watching.load(Ordering::Acquire) {
            for (namespace, service, ip) in [("tenant-a", "shop", "10.0.0.1"), ("tenant-b", "rests", "10.0.0.5")] {
                if passing(survivor, namespace, service).await != [ip] {
                    missed.fetch_add(1, Ordering::AcqRel);
                }
            }
            looks += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        looks
    };
    let die = async {
        world.nodes[here].end(KILL).await;
        goes.kill().await;
        wait_until("the client at the living node", SOON, survivor.dir(), async || {
            (registrations(survivor, "10.0.0.1") > 0).then_some(())
        })
        .await;
        // The instance without a client goes when its lease is over: by then the other's would be, too, if it were not renewed.
        until_passing(survivor, "tenant-b", "shop", &[], LEASES).await;
        // All leases began anew when the node was lost. By the time the row is removed every unrenewed one has run out.
        wait_until("the row to go", LEASES, survivor.dir(), async || {
            let path = "/v1/namespaces/tenant-b/services/shop/instances";
            let answer = survivor.try_ask("GET", path, &[], "").await?;
            (answer.status == 404 || answer.json()["instances"] == json!([])).then_some(())
        })
        .await;
        watching.store(false, Ordering::Release);
    };
    let (looks, ()) = tokio::join!(watch, die);
    assert_eq!(missed.into_inner(), 0, "of {looks} looks at clients that were there all the time");

    // A node that shuts down tells its clients: they are at the other one before it is gone.
    world.nodes[here].start_again().await;
    let before = registrations(&world.nodes[here], "10.0.0.1");
    let (stopping, other) = (&world.nodes[there], &world.nodes[here]);
    until_passing(other, "tenant-a", "shop", &["10.0.0.1"], SOON).await;
    stopping.end(TERMINATE).await;
    wait_until("the client at the node that stays", SOON, other.dir(), async || {
        assert_eq!(passing(other, "tenant-a", "shop").await, ["10.0.0.1"]);
        (registrations(other, "10.0.0.1") > before).then_some(())
    })
    .await;
    // By its new connection, which alone keeps it.
    stays.kill().await;
    until_passing(other, "tenant-a", "shop", &[], SOON).await;
}

/// Entries of metadata are set at several instances by one request, and taken away again; their registrations stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_of_several_instances_at_once() {
    let node = RegistryNode::start("").await;
    let _logs = ShowLogs(node.dir());
    let at = |ip: &str| format!("/nacos/v1/ns/instance?serviceName=G%40%40shop&port=80&ip={ip}");
    let own = "&metadata=%7B%22own%22:%221%22%7D";
    for ip in ["10.0.0.1", "10.0.0.2"] {
        assert_eq!(node.ask("POST", &format!("{}{own}", at(ip)), &[], "").await.status, 200);
    }
    let batch = async |method: &str, version: &str, more: &str| {
        let path = format!("/nacos/{version}/instance/metadata/batch?serviceName=G%40%40shop{more}");
        let answer = node.ask(method, &path, &[], "").await;
        (answer.status, answer.json())
    };
    let shown = async |ip: &str| node.get(&at(ip)).await.json()["metadata"].take();
    let (red, first) = ("&metadata=%7B%22color%22:%22red%22%7D", "10.0.0.1:80:unknown:DEFAULT:ephemeral");
    let one =
        "&instances=%5B%7B%22ip%22:%2210.0.0.1%22,%22port%22:80%7D,%7B%22ip%22:%2210.0.0.9%22,%22port%22:80%7D%5D";
    let (status, body) = batch("PUT", "v2/ns", &format!("{red}{one}")).await;
    assert_eq!((status, &body["data"]["updated"]), (200, &json!([first])), "{body}");
    assert_eq!(shown("10.0.0.1").await, json!({ "own": "1", "color": "red" }));
    assert_eq!(shown("10.0.0.2").await, json!({ "own": "1" }));
    let (status, body) = batch("PUT", "v1/ns", red).await;
    assert_eq!((status, body["updated"].as_array().map(Vec::len)), (200, Some(2)), "{body}");
    assert_eq!(node.ask("POST", &format!("{}{own}", at("10.0.0.2")), &[], "").await.status, 200);
    assert_eq!(shown("10.0.0.2").await, json!({ "own": "1", "color": "red" }), "it survives a registration");
    // An instance's own entry cannot be taken away, only what was laid over it.
    let (status, body) =
        batch("DELETE", "v3/admin/ns", &format!("{}{one}", red.replace("red%22", "%22,%22own%22:%22%22"))).await;
    assert_eq!((status, &body["data"]["updated"]), (200, &json!([first])), "{body}");
    assert_eq!(shown("10.0.0.1").await, json!({ "own": "1" }));
    assert_eq!(shown("10.0.0.2").await, json!({ "own": "1", "color": "red" }));
    for (more, expected) in [("", "metadata is missing"), (&format!("{red}&instances=nonsense"), "instances")] {
        let refused =
            node.ask("PUT", &format!("/nacos/v1/ns/instance/metadata/batch?serviceName=shop{more}"), &[], "").await;
        assert!(
            refused.status == 400 && refused.body.contains(expected),
            "{more}: {} {}",
            refused.status,
            refused.body
        );
    }
}

/// Values that an operator sets by PUT and PATCH are laid over the instance's own words, and stay when it registers or connects again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registry_nacos_operators_overrides_stay() {
    let World { _cluster, nodes, doors } = &World::start().await;
    let _logs = (ShowLogs(nodes[0].dir()), ShowLogs(nodes[1].dir()));
    let at = |ip: &str| format!("/nacos/v1/ns/instance?namespaceId=tenant-a&serviceName=shop&port=80&ip={ip}");
    let send = async |node: usize, method: &str, ip: &str, more: &str| {
        let answer = nodes[node].ask(method, &format!("{}{more}", at(ip)), &[], "").await;
        (answer.status, answer.body)
    };
    // Waits until both nodes show the instance with this weight, enabled or not, and these metadata.
    let shown = async |ip: &str, weight: f64, enabled: bool, metadata: Value| {
        for node in nodes {
            let mut found = Value::Null;
            let what = format!("{ip} with {weight}, {enabled}, {metadata}");
            wait_until(&what, SOON, node.dir(), async || {
                found = node.get(&at(ip)).await.json();
                let is = found["weight"] == weight && found["enabled"] == enabled && found["metadata"] == metadata;
                is.then_some(())
            })
            .await;
        }
    };
    for (method, ip) in [("PUT", "10.0.0.1"), ("PATCH", "10.0.0.1")] {
        let (status, body) = send(0, method, ip, "&weight=2").await;
        assert!(status == 400 && body.contains("no service"), "{method}: {status} {body}");
    }
    let mut a = Agent::start(&[&doors[0]], "tenant-a").await;
    a.register("shop", "10.0.0.1").await;
    until_passing(&nodes[1], "tenant-a", "shop", &["10.0.0.1"], SOON).await;
    let own = nodes[1].get(&at("10.0.0.1")).await.json()["metadata"].take();
    let with = |more: Value| {
        let mut all = own.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    for method in ["PUT", "PATCH"] {
        assert_eq!(send(1, method, "10.0.0.9", "&weight=2").await.0, 404, "{method}");
        assert_eq!(send(1, "GET", "10.0.0.9", "").await.0, 404, "nothing was registered");
    }
    // An instance of gRPC.
    let set = "&weight=2&metadata=%7B%22zone%22:%22z9%22,%22color%22:%22red%22%7D";
    assert_eq!(send(1, "PUT", "10.0.0.1", set).await, (200, "ok".into()));
    shown("10.0.0.1", 2.0, true, with(json!({ "zone": "z9", "color": "red" }))).await;
    assert_eq!(send(1, "PATCH", "10.0.0.1", "&enabled=false").await.0, 200);
    shown("10.0.0.1", 2.0, false, with(json!({ "zone": "z9", "color": "red" }))).await;
    assert_eq!(send(0, "PATCH", "10.0.0.1", "&enabled=true&metadata=%7B%22color%22:%22blue%22%7D").await.0, 200);
    shown("10.0.0.1", 2.0, true, with(json!({ "color": "blue" }))).await;
    a.register("shop", "10.0.0.1").await;
    shown("10.0.0.1", 2.0, true, with(json!({ "color": "blue" }))).await;
    // It is still its connection's: it is out of service as soon as its client is gone, and comes back as it was.
    a.kill().await;
    until_passing(&nodes[1], "tenant-a", "shop", &[], SOON).await;
    let mut a = Agent::start(&[&doors[1]], "tenant-a").await;
    a.register("shop", "10.0.0.1").await;
    until_passing(&nodes[0], "tenant-a", "shop", &["10.0.0.1"], SOON).await;
    shown("10.0.0.1", 2.0, true, with(json!({ "color": "blue" }))).await;
    // PUT replaces all overrides: weight, enabled and metadata have defaults.
    assert_eq!(send(0, "PUT", "10.0.0.1", "").await.0, 200);
    shown("10.0.0.1", 1.0, true, own.clone()).await;
    let (status, body) = send(0, "PUT", "10.0.0.1", "&metadata=preserved.heart.beat.timeout=3000").await;
    assert!(status == 400 && body.contains("metadata.preserved.heart.beat.timeout"), "{status} {body}");
    // An instance of HTTP; the overrides end with it.
    let register = "&weight=4&metadata=%7B%22own%22:%221%22%7D";
    for _ in 0..2 {
        assert_eq!(send(0, "POST", "10.0.0.2", register).await.0, 200);
        shown("10.0.0.2", 4.0, true, json!({ "own": "1" })).await;
        assert_eq!(send(1, "PATCH", "10.0.0.2", "&weight=0.5").await.0, 200);
        assert_eq!(send(0, "POST", "10.0.0.2", register).await.0, 200);
        shown("10.0.0.2", 0.5, true, json!({ "own": "1" })).await;
        assert_eq!(send(0, "DELETE", "10.0.0.2", "").await.0, 200);
        wait_until("the end of 10.0.0.2", SOON, nodes[1].dir(), async || {
            (send(1, "GET", "10.0.0.2", "").await.0 == 404).then_some(())
        })
        .await;
    }
}
