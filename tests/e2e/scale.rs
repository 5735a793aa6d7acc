//! `kingpost scale`: replicas come and go with the load, by agents that the scaler's program starts and stops.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kingpost_tests::{
    Cluster, Kingpost, Process, RegistryNode, RunAs, SOON, ShowLogs, command, http_get, kingpost_bin, signal,
    wait_until,
};
use toml::{Table, Value};

use crate::common::only_kingpost;
use crate::node::{Agent, STREAMS};

/// Agents that the scaler's program may start, one for each name that it may choose. Those that it has started end on drop.
struct Host {
    agents: Vec<Agent>,
}

impl Drop for Host {
    fn drop(&mut self) {
        for agent in &self.agents {
            // Only a process that works for this directory: its number may be another one's by now.
            let directory = agent.directory().display().to_string();
            if let Some(pid) = started(agent)
                && std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&directory))
            {
                signal(pid, 9);
            }
        }
    }
}

/// Returns the process that the program has started.
fn started(agent: &Agent) -> Option<u32> {
    std::fs::read_to_string(agent.dir.join("pid")).ok()?.trim().parse().ok()
}

impl Host {
    /// Writes the program: it starts an agent once, and stops it. Its first run waits for a file `go`, and does nothing.
    fn new(dir: &Path, registry: &RegistryNode, names: [&'static str; 2]) -> (Host, PathBuf) {
        let mut text = "#!/bin/sh\nset -eu\n".to_owned();
        let dir_text = dir.display();
        let _ = writeln!(text, "echo \"$KINGPOST_SCALE $KINGPOST_NODE $KINGPOST_SERVERS\" >> {dir_text}/orders");
        let _ = writeln!(text, "env | grep -c '^KINGPOST__' >> {dir_text}/settings || true");
        let _ = writeln!(
            text,
            "if mkdir {dir_text}/first 2> /dev/null; then\n  for _ in $(seq 600); do [ ! -e {dir_text}/go ] || exit 0; sleep 0.1; done\n  exit 1\nfi"
        );
        text.push_str("case $KINGPOST_SCALE.$KINGPOST_NODE in\n");
        let agents: Vec<Agent> = names.into_iter().map(Agent::new).collect();
        for agent in &agents {
            let (name, home) = (agent.name, agent.dir.display());
            let start = agent.command(&["--join", &registry.url()]);
            let _ = write!(
                text,
                "add.{name})\n  mkdir {home}/started 2> /dev/null || exit 0\n  exec > {home}/agent.log 2>&1 < /dev/null\n"
            );
            for (key, value) in start.get_envs() {
                let value = value.unwrap_or_default().to_string_lossy();
                let _ = writeln!(text, "  export {}='{value}'", key.to_string_lossy());
            }
            // Without setpriv, which would have the agent killed when the program ends: it is the agent's parent.
            let words = start.get_args().skip_while(|word| *word != "--").skip(1);
            let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
            let _ = writeln!(text, "  {} &\n  echo $! > {home}/pid\n  ;;", words.join(" "));
            let _ = writeln!(text, "remove.{name}) kill -TERM $(cat {home}/pid) 2> /dev/null || true ;;");
        }
        text.push_str("*) echo \"no server $KINGPOST_NODE can be had here\"; exit 1 ;;\nesac\n");
        let path = dir.join("scale");
        std::fs::write(&path, text).unwrap();
        (Host { agents }, path)
    }
}

fn scale_config(dir: &Path, registry: &RegistryNode, program: &Path, listen: &str) -> PathBuf {
    let text = |value: &str| Value::from(value);
    let program: Vec<Value> = vec!["/bin/sh".into(), program.to_str().unwrap().into()];
    let scale = Table::from_iter([
        ("least".to_owned(), Value::from(1)),
        ("most".into(), 2.into()),
        ("add".into(), program.clone().into()),
        ("remove".into(), program.into()),
        ("add_at".into(), 3.into()),
        ("remove_at".into(), 1.into()),
        ("window".into(), text("1s")),
        ("interval".into(), text("100ms")),
        ("add_pause".into(), text("0s")),
        ("remove_pause".into(), text("0s")),
        ("drain".into(), text("60s")),
        ("metrics_listen".into(), text(listen)),
    ]);
    let from = Table::from_iter([("urls".to_owned(), Value::from(vec![registry.url()]))]);
    let cluster = Table::from_iter([("from".to_owned(), Value::from(from))]);
    let whole = Table::from_iter([("cluster".to_owned(), Value::from(cluster)), ("scale".into(), scale.into())]);
    let path = dir.join("scale.toml");
    std::fs::write(&path, toml::to_string(&whole).unwrap()).unwrap();
    path
}

/// Starts a scaler.
fn scaler(config: &Path, log: &Path) -> Process {
    let mut scaler = command(&kingpost_bin(), RunAs::Tests, "KILL");
    scaler.args(["scale", "--ttl", "3s", "--config"]).arg(config);
    scaler.env("KINGPOST__FAILOVER__PASSWORD", "a-secret-of-nobody");
    Process::start("scale", scaler, log)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three servers and two scalers, for scripts/test-long"]
async fn replicas_come_and_go_with_the_load() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let dir = cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let registry = RegistryNode::start("[registry.kv]\nsession_ttl_min = \"1s\"").await;
    let mut primary = Agent::new("db1");
    primary.launch(&["--init", "--join", &registry.url()]);
    primary.wait_value("SELECT pg_is_in_recovery()", "f").await;
    primary.execute("CREATE ROLE alice LOGIN").await;
    primary.execute("CREATE DATABASE app OWNER alice").await;
    let proxy = Kingpost::of(&cluster).set("cluster.nodes", Value::Array(Vec::new()));
    let proxy = proxy.set("cluster.from.urls", vec![registry.url()]).start().await;
    let (host, program) = Host::new(&dir, &registry, ["replica-1", "replica-2"]);
    let [one, two] = &host.agents[..] else { unreachable!() };
    let metrics = kingpost_tests::Port::reserve();
    let config = scale_config(&dir, &registry, &program, &format!("127.0.0.1:{}", metrics.number()));
    let dry = Kingpost::run(&["scale", "--dry-run", "--config", config.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&[dry.stdout, dry.stderr].concat()).into_owned();
    assert!(text.contains("would add replica-1: there are 0 replicas, and 1 are the least"), "{text}");

    // Killed between the order and its result: the next one goes on, and adds one server.
    let log = dir.join("scale.log");
    let first = scaler(&config, &log);
    wait_until("the first order", SOON, &dir, async || dir.join("first").exists().then_some(())).await;
    first.signal(9);
    std::fs::write(dir.join("go"), "").unwrap();
    let second_log = dir.join("scale-2.log");
    let second = scaler(&config, &second_log);
    let said = || std::fs::read_to_string(&second_log).unwrap_or_default();
    let says = async |text: &str| {
        let what = format!("the scaler to say {text:?}");
        wait_until(&what, SOON, &dir, async || {
            assert!(second.exit_status().is_none(), "the scaler has ended:\n{}", said());
            said().contains(text).then_some(())
        })
        .await;
    };
    says("replica-1 serves").await;
    one.wait_value(STREAMS, "streaming").await;
    assert!(said().contains("an order was under way: replica-1 is being added"), "{}", said());

    // Load: four clients read all the time from the only replica.
    let loaded = Arc::new(AtomicBool::new(true));
    let mut readers = Vec::new();
    for _ in 0..4 {
        let (client, loaded) = (proxy.connect().await, Arc::clone(&loaded));
        readers.push(tokio::spawn(async move {
            while loaded.load(Ordering::Relaxed) {
                client.simple_query("/* kingpost.route=replica */ SELECT pg_sleep(0.3)").await.unwrap();
            }
        }));
    }
    says("replica-2 serves").await;
    let server = async || {
        let client = proxy.connect().await;
        let sql = "/* kingpost.route=replica */ SELECT inet_server_port()";
        u16::try_from(client.query_one(sql, &[]).await.unwrap().get::<_, i32>(0)).unwrap()
    };
    let reads = async |agent: &Agent| (server().await == agent.port.number()).then_some(());
    cluster.wait("the new replica to get reads", async || reads(two).await).await;
    let (_, figures) = http_get(metrics.number(), "/metrics").await.unwrap();
    assert!(figures.contains("kingpost_scale_servers{state=\"replica\"} 2"), "{figures}");

    // No load: the younger one goes, after the last session on it: a proxied one, of a client that names itself to nobody.
    let session = proxy.connect().await;
    let begins = async || {
        session.simple_query("/* kingpost.route=replica */ BEGIN READ ONLY").await.unwrap();
        let port: i32 = session.query_one("SELECT inet_server_port()", &[]).await.unwrap().get(0);
        if port == i32::from(two.port.number()) {
            return Some(());
        }
        session.simple_query("ROLLBACK").await.unwrap();
        None
    };
    cluster.wait("a transaction on the new replica", begins).await;
    let name: String = session.query_one("SELECT current_setting('application_name')", &[]).await.unwrap().get(0);
    assert_eq!(name, "kingpost");
    loaded.store(false, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    says("replica-2: clients have time to leave").await;
    assert_eq!(server().await, one.port.number(), "reads have left it");
    // Longer than a server without sessions is waited for.
    session.simple_query("SELECT pg_sleep(8)").await.unwrap();
    session.simple_query("COMMIT").await.unwrap();
    drop(session);
    says("replica-2 is gone").await;
    assert_eq!(two.server(), None);
    assert_eq!(server().await, one.port.number());
    primary.wait_value("SELECT string_agg(slot_name, ' ') FROM pg_replication_slots", "kingpost_replica_1").await;
    let nodes = registry.get("/v1/namespaces/kingpost/services/postgres/instances").await.body;
    assert!(nodes.contains("replica-1") && !nodes.contains("replica-2"), "{nodes}");
    second.signal(15);
    second.wait_exit(Duration::from_secs(20)).await;
    let orders = std::fs::read_to_string(dir.join("orders")).unwrap();
    assert_eq!(orders, "add replica-1 2\nadd replica-1 2\nadd replica-2 3\nremove replica-2 2\n");
    let settings = std::fs::read_to_string(dir.join("settings")).unwrap();
    assert!(settings.lines().all(|line| line == "0"), "the program sees settings of Kingpost, which may be secrets");
}
