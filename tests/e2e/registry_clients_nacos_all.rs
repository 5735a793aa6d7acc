//! Every client of Nacos at the same work, on two nodes that require tokens: two tenants, each with a token for its own namespace. The other fronts
//! see a client's registrations, and vice versa; a client is killed, and so is a node.
//!
//! Part of `make clients` only: a lease takes 40 s to end, and HTTP clients poll every 10 s.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kingpost_tests::{RegistryNode, ShowLogs, new_dir, wait_until};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::clients::{build, here, installed, there};
use crate::registry_clients::java_program_with;
use crate::registry_clients_nacos::{Agent, LEASES, World, passing_by, registrations, token, until_passing_by};

const KILL: i32 = 9;

/// Lease of an instance.
#[derive(Clone, Copy, PartialEq)]
enum Lives {
    Connection,
    Beats,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute and a half: make clients"]
async fn registry_nacos_all_python() {
    let python = Agent::python().await;
    let program = python.as_std().get_program().to_owned();
    let arguments: Vec<_> = python.as_std().get_args().map(OsStr::to_owned).collect();
    let command = || {
        let mut command = Command::new(&program);
        command.args(&arguments).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    usual(Lives::Connection, command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes: make clients"]
async fn registry_nacos_all_node() {
    let modules = installed().await.join("node/node_modules");
    let command = || {
        let mut command = Command::new("node");
        command.arg(here().join("node/registry_nacos_agent.mjs")).env("NODE_PATH", &modules);
        command
    };
    usual(Lives::Beats, command).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and the network: make clients"]
async fn registry_nacos_all_go() {
    if !there("go") {
        return;
    }
    let program = new_dir("go").join("nacos");
    build(Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(here().join("go/nacos"))).await;
    usual(Lives::Connection, || Command::new(&program)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_nacos_all_java_1() {
    java("1.4.8", Lives::Beats).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_nacos_all_java_2() {
    java("2.5.1", Lives::Connection).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Java, Maven and the network: make clients"]
async fn registry_nacos_all_java_3() {
    java("3.0.2", Lives::Connection).await;
}

async fn java(version: &str, lives: Lives) {
    let version = format!("-Dkingpost.nacos={version}");
    if let Some(program) = java_program_with("java/nacos_agent", "NacosAgent", &[&version]).await {
        usual(lives, || Command::new(&program)).await;
    }
}

/// The nodes, and the tokens to query them.
struct Scene<F> {
    world: World,
    command: F,
    lives: Lives,
    /// Tokens for all namespaces, for tenant-a, and for tenant-b.
    tokens: [String; 3],
}

/// Runs the usual work of a client, and checks its views.
async fn usual<F: Fn() -> Command>(lives: Lives, command: F) {
    let (admin, admin_table) = token("admin", "admin", &json!(["*"]));
    let (first, first_table) = token("first", "write", &json!(["tenant-a"]));
    let (second, second_table) = token("second", "write", &json!(["tenant-b"]));
    let tables = [admin_table, first_table, second_table].concat();
    let world = World::start_with("auth = \"tokens\"\n", &tables).await;
    let dirs = [world.nodes[0].dir().to_owned(), world.nodes[1].dir().to_owned()];
    let _logs = (ShowLogs(&dirs[0]), ShowLogs(&dirs[1]));
    let mut scene = Scene { world, command, lives, tokens: [admin, first, second] };
    let both = scene.both();
    let mut a = scene.client(&both, "tenant-a", 1).await;
    let mut b = scene.client(&both, "tenant-b", 2).await;
    let said = (a.dir.clone(), b.dir.clone());
    let _said = (ShowLogs(&said.0), ShowLogs(&said.1));

    scene.come_and_are_found(&mut a, &mut b).await;
    scene.other_fronts(&mut a, &mut b).await;
    scene.change_go_and_die(&mut a).await;
    scene.strangers_are_refused().await;
    scene.a_node_dies(&mut a, &mut b).await;

    // Over the whole time.
    for (agent, others) in [(&a, [".0.2\"", "10.0.2.", "only-b"]), (&b, [".0.1\"", "10.0.1.", "only-a"])] {
        assert!(others.iter().all(|of_the_other| !agent.said.contains(of_the_other)), "{}", agent.said);
    }
    for node in &scene.world.nodes {
        let log = std::fs::read_to_string(node.process().log()).unwrap();
        assert!(scene.tokens.iter().all(|token| !log.contains(token)), "a token is in the log");
    }
}

impl<F: Fn() -> Command> Scene<F> {
    fn both(&self) -> String {
        self.world.doors.iter().map(|doors| doors.address()).collect::<Vec<_>>().join(",")
    }

    async fn client(&self, addresses: &str, namespace: &str, token: usize) -> Agent {
        let password = [("NACOS_PASSWORD", OsStr::new(&self.tokens[token]))];
        Agent::of((self.command)(), addresses, namespace, &password).await
    }

    async fn until(&self, node: usize, namespace: &str, service: &str, ips: &[&str]) {
        until_passing_by(&self.tokens[0], &self.world.nodes[node], namespace, service, ips, LEASES).await;
    }

    /// Queries a node with a token; returns the answer.
    async fn ask(&self, node: usize, token: usize, method: &str, path: &str, body: &Value) -> Value {
        let bearer = format!("Bearer {}", self.tokens[token]);
        let json = "application/json";
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", json), ("Accept", json)];
        let answer = self.world.nodes[node].ask(method, path, &headers, &body.to_string()).await;
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.body);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }

    async fn come_and_are_found(&self, a: &mut Agent, b: &mut Agent) {
        register(a, "shop", "10.0.0.1", Some("one")).await;
        register(b, "shop", "10.0.0.2", None).await;
        for node in [0, 1] {
            self.until(node, "tenant-a", "shop", &["10.0.0.1"]).await;
            self.until(node, "tenant-b", "shop", &["10.0.0.2"]).await;
        }
        for agent in [&mut *a, &mut *b] {
            agent.ask(json!({ "do": "subscribe", "service": "shop" }), "subscribed").await;
        }
        a.sees("shop", &[("10.0.0.1", true, "one")]).await;
        b.sees("shop", &[("10.0.0.2", true, "")]).await;
        // Lists of services: each namespace has its own.
        for (namespace, service) in [("tenant-a", "only-a"), ("tenant-b", "only-b")] {
            let path = format!("/v1/namespaces/{namespace}/services/{service}/instances/{service}");
            self.ask(0, 0, "PUT", &path, &json!({ "host": "10.9.9.9", "port": 80 })).await;
            for node in [0, 1] {
                self.until(node, namespace, service, &["10.9.9.9"]).await;
            }
        }
        for (agent, own) in [(a, "only-a"), (b, "only-b")] {
            let mut services = agent.ask(json!({ "do": "services", "service": "" }), "services").await;
            services.as_array_mut().unwrap().sort_by_key(Value::to_string);
            assert_eq!(services, json!([own, "shop"]));
        }
    }

    /// Checks that other fronts see the clients' instances, and vice versa: added, unhealthy, removed.
    async fn other_fronts(&self, a: &mut Agent, b: &mut Agent) {
        for (namespace, token, ip) in [("tenant-a", 1, "10.0.0.1"), ("tenant-b", 2, "10.0.0.2")] {
            let path = format!("/v1/health/service/shop?passing&ns={namespace}");
            let consul = self.ask(1, token, "GET", &path, &Value::Null).await;
            let address = &consul[0]["Service"]["Address"];
            assert_eq!((consul.as_array().unwrap().len(), address), (1, &json!(ip)), "{consul}");
            // Eureka's clients cannot name a namespace: the token's is used.
            let eureka = self.ask(0, token, "GET", "/eureka/apps/SHOP", &Value::Null).await;
            let instances = eureka["application"]["instance"].as_array().unwrap();
            assert_eq!((instances.len(), &instances[0]["ipAddr"]), (1, &json!(ip)), "{eureka}");
        }
        let check = json!({ "TTL": "300s", "Status": "passing" });
        let consul = json!({ "ID": "c", "Name": "shop", "Address": "10.0.1.3", "Port": 80, "Check": check });
        self.ask(1, 1, "PUT", "/v1/agent/service/register?ns=tenant-a", &consul).await;
        a.sees("shop", &[("10.0.0.1", true, "one"), ("10.0.1.3", true, "")]).await;
        let eureka = json!({ "instance": {
            "instanceId": "e", "hostName": "10.0.2.4", "app": "SHOP", "ipAddr": "10.0.2.4", "status": "UP",
            "port": { "$": 80, "@enabled": "true" }, "leaseInfo": { "durationInSecs": 300 },
            "dataCenterInfo": { "@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn" },
        } });
        self.ask(0, 2, "POST", "/eureka/apps/SHOP", &eureka).await;
        b.sees("shop", &[("10.0.0.2", true, ""), ("10.0.2.4", true, "")]).await;

        self.ask(0, 1, "PUT", "/v1/agent/check/fail/service:c?ns=tenant-a", &Value::Null).await;
        a.sees("shop", &[("10.0.0.1", true, "one"), ("10.0.1.3", false, "")]).await;
        self.ask(1, 1, "PUT", "/v1/agent/service/deregister/c?ns=tenant-a", &Value::Null).await;
        a.sees("shop", &[("10.0.0.1", true, "one")]).await;
        self.ask(1, 2, "DELETE", "/eureka/apps/SHOP/e", &Value::Null).await;
        b.sees("shop", &[("10.0.0.2", true, "")]).await;
    }

    /// Runs a second client of the tenant: it changes, deregisters, registers again, and is killed.
    async fn change_go_and_die(&self, a: &mut Agent) {
        let stays = ("10.0.0.1", true, "one");
        let mut c = self.client(&self.both(), "tenant-a", 1).await;
        register(&mut c, "shop", "10.0.0.3", Some("two")).await;
        a.sees("shop", &[stays, ("10.0.0.3", true, "two")]).await;
        register(&mut c, "shop", "10.0.0.3", Some("three")).await;
        a.sees("shop", &[stays, ("10.0.0.3", true, "three")]).await;
        let gone = c.ask(json!({ "do": "deregister", "service": "shop", "ip": "10.0.0.3" }), "deregistered").await;
        assert_eq!(gone, true);
        a.sees("shop", &[stays]).await;
        register(&mut c, "shop", "10.0.0.3", None).await;
        a.sees("shop", &[stays, ("10.0.0.3", true, "")]).await;
        c.kill().await;
        if self.lives == Lives::Beats {
            a.sees("shop", &[stays, ("10.0.0.3", false, "")]).await;
        }
        a.sees("shop", &[stays]).await;
        self.until(0, "tenant-b", "shop", &["10.0.0.2"]).await;
    }

    /// Checks that a client of tenant-a is refused in the namespace of tenant-b.
    async fn strangers_are_refused(&self) {
        let mut stranger = self.client(&self.both(), "tenant-b", 1).await;
        for asked in ["list", "register", "list"] {
            stranger.ask(json!({ "do": asked, "service": "shop", "ip": "10.0.0.8" }), "refused").await;
        }
        assert!(!stranger.said.contains("10.0.0.2"), "{}", stranger.said);
        stranger.kill().await;
        for node in [0, 1] {
            assert_eq!(passing_by(&self.tokens[0], &self.world.nodes[node], "tenant-b", "shop").await, ["10.0.0.2"]);
        }
    }

    /// Kills the node that `a` is connected to. Clients that know both nodes never lose their instances; one that knew only the dead one, and died
    /// with it, does.
    async fn a_node_dies(&mut self, a: &mut Agent, b: &mut Agent) {
        let dead = usize::from(registrations(&self.world.nodes[1], "10.0.0.1") > 0);
        let stays = 1 - dead;
        let mut goes = self.client(&self.world.doors[dead].address(), "tenant-b", 2).await;
        register(&mut goes, "goes", "10.0.0.5", None).await;
        self.until(stays, "tenant-b", "goes", &["10.0.0.5"]).await;
        self.until(stays, "tenant-a", "shop", &["10.0.0.1"]).await;
        let watching = AtomicBool::new(true);
        let missed = AtomicUsize::new(0);
        let [admin, ..] = &self.tokens;
        let [one, two] = &mut self.world.nodes;
        let (dying, survivor) = if dead == 0 { (one, &*two) } else { (two, &*one) };
        let watch = async {
            let mut looks = 0;
            while watching.load(Ordering::Acquire) {
                for (namespace, ip) in [("tenant-a", "10.0.0.1"), ("tenant-b", "10.0.0.2")] {
                    if passing_by(admin, survivor, namespace, "shop").await != [ip] {
                        missed.fetch_add(1, Ordering::AcqRel);
                    }
                }
                looks += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            looks
        };
        let die = async {
            dying.end(KILL).await;
            goes.kill().await;
            until_row_gone(survivor, admin, "/v1/namespaces/tenant-b/services/goes/instances").await;
            watching.store(false, Ordering::Release);
        };
        let (looks, ()) = tokio::join!(watch, die);
        assert_eq!(missed.into_inner(), 0, "of {looks} looks at clients that were there all the time");

        // They go on at the remaining node, with requests and pushes.
        for (agent, namespace, ip) in [(&mut *a, "tenant-a", "10.0.0.1"), (&mut *b, "tenant-b", "10.0.0.2")] {
            register(agent, "later", ip, None).await;
            self.until(stays, namespace, "later", &[ip]).await;
        }
        for (namespace, ip) in [("tenant-a", "10.0.1.6"), ("tenant-b", "10.0.2.6")] {
            let path = format!("/v1/namespaces/{namespace}/services/shop/instances/late");
            self.ask(stays, 0, "PUT", &path, &json!({ "host": ip, "port": 80 })).await;
        }
        a.sees("shop", &[("10.0.0.1", true, "one"), ("10.0.1.6", true, "")]).await;
        b.sees("shop", &[("10.0.0.2", true, ""), ("10.0.2.6", true, "")]).await;
    }
}

async fn register(agent: &mut Agent, service: &str, ip: &str, zone: Option<&str>) {
    let mut asked = json!({ "do": "register", "service": service, "ip": ip });
    if let Some(zone) = zone {
        asked["zone"] = zone.into();
    }
    assert_eq!(agent.ask(asked, "registered").await, true, "{service} {ip}");
}

async fn until_row_gone(node: &RegistryNode, token: &str, path: &str) {
    let bearer = format!("Bearer {token}");
    wait_until("the row to go", LEASES, node.dir(), async || {
        let answer = node.try_ask("GET", path, &[("Authorization", &bearer)], "").await?;
        (answer.status == 404 || answer.json()["instances"] == json!([])).then_some(())
    })
    .await;
}
