//! `kingpost node`: agents of real servers. A second server or a former primary is never set up by hand here.

use std::path::{Path, PathBuf};
use std::process::Command;

use kingpost_tests::{
    Cluster, Endpoint, Failover, Kingpost, Port, Process, RegistryNode, Relay, RunAs, SOON, ShowLogs, command,
    kingpost_bin, new_dir, pg_bin, signal, wait_until,
};
use toml::{Table, Value};

use crate::common::only_kingpost;

/// An agent and its server. Both end on drop.
pub(crate) struct Agent {
    pub(crate) name: &'static str,
    pub(crate) port: Port,
    pub(crate) dir: PathBuf,
    pub(crate) config: Option<PathBuf>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Address without the port.
    pub(crate) host: String,
    /// A process in the network namespace of agent and server; None for that of the tests.
    pub(crate) namespace: Option<u32>,
    /// Directory of the server's Unix socket, over which the tests reach it in another namespace.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) process: Option<Process>,
    /// Length of the log when the process was started.
    begun: usize,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

impl Agent {
    pub(crate) fn new(name: &'static str) -> Agent {
        Agent {
            name,
            port: Port::reserve(),
            dir: new_dir(name),
            config: None,
            environment: Vec::new(),
            host: "127.0.0.1".into(),
            namespace: None,
            socket: None,
            process: None,
            begun: 0,
        }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.dir.join("node")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut agent = command(&kingpost_bin(), RunAs::Tests, "KILL");
        if let Some(process) = self.namespace {
            let mut inside = Command::new("nsenter");
            inside.args(["--net", "--target", &process.to_string(), "--"]).arg(agent.get_program());
            inside.args(agent.get_args());
            agent = inside;
        }
        agent.arg("node").args(arguments).args(["--name", self.name, "--address", &self.address()]);
        agent.arg("--directory").arg(self.directory());
        if let Some(config) = &self.config {
            agent.arg("--config").arg(config);
        }
        agent.env("KINGPOST__NODE__PG_BIN", pg_bin()).env("KINGPOST__NODE__LISTEN_ADDRESSES", "127.0.0.1");
        agent.env("KINGPOST__NODE__INTERVAL", "100ms").env("KINGPOST__CLUSTER__PROBE_TIMEOUT", "2s");
        agent.envs(self.environment.iter().map(|(name, value)| (name, value)));
        agent
    }

    /// Starts the agent without waiting.
    pub(crate) fn launch(&mut self, arguments: &[&str]) {
        let command = self.command(arguments);
        self.begun = self.whole_log().len();
        self.process = Some(Process::start(self.name, command, &self.dir.join("agent.log")));
    }

    /// Runs a command of the agent to its end; returns its output.
    pub(crate) fn ends(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(arguments).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.host, self.port.number())
    }

    pub(crate) fn process(&self) -> &Process {
        self.process.as_ref().unwrap()
    }

    pub(crate) fn whole_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default()
    }

    /// Returns the log of the process.
    pub(crate) fn log(&self) -> String {
        self.whole_log().split_off(self.begun)
    }

    pub(crate) fn server(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.directory().join("data/postmaster.pid")).ok()?;
        text.lines().next()?.parse().ok()
    }

    /// Kills agent and server.
    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(9);
        }
        self.kill_server();
    }

    pub(crate) fn kill_server(&self) {
        let data = self.directory().join("data");
        if let Some(pid) = self.server()
            && std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| Some(cwd) == data.canonicalize().ok())
        {
            signal(pid, 9);
        }
    }

    /// Returns the login of the superuser.
    pub(crate) fn superuser(&self) -> tokio_postgres::Config {
        let mut config = match &self.socket {
            Some(directory) => tokio_postgres::Config::new().host_path(directory).port(self.port.number()).clone(),
            None => Endpoint::new(self.port.number(), &self.dir).config(),
        };
        config.user("postgres").dbname("postgres");
        config
    }

    pub(crate) async fn session(&self) -> Result<tokio_postgres::Client, String> {
        let config = self.superuser();
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub(crate) async fn query(&self, sql: &str) -> Result<String, String> {
        let client = self.session().await?;
        let rows = client.simple_query(sql).await.map_err(|error| format!("{error:?}"))?;
        let first = rows.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        Ok(first.unwrap_or_default())
    }

    pub(crate) async fn wait_value(&self, sql: &str, value: &str) {
        let what = format!("{} to answer {value:?} to {sql}", self.name);
        wait_until(&what, SOON, &self.dir, async || self.query(sql).await.ok().filter(|found| found == value)).await;
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.query(sql).await.unwrap_or_else(|why| panic!("{}: {sql}: {why}", self.name));
    }

    pub(crate) async fn wait_log(&self, text: &str) {
        let what = format!("{text:?} in the log of {}", self.name);
        wait_until(&what, SOON, &self.dir, async || self.log().contains(text).then_some(())).await;
    }
}

pub(crate) const STREAMS: &str = "SELECT status FROM pg_stat_wal_receiver";

pub(crate) fn part(name: &str, address: String) -> Value {
    Value::Table(Table::from_iter([
        ("name".to_owned(), Value::from(name)),
        ("address".to_owned(), Value::from(address)),
    ]))
}

/// Two agents with a relay. The harness's own cluster only carries the relay and the proxy.
pub(crate) struct Pair {
    pub(crate) a: Agent,
    pub(crate) b: Agent,
    pub(crate) relay: Relay,
    pub(crate) cluster: Cluster,
}

impl Pair {
    /// Starts a primary, a relay that commits wait for, and a replica.
    pub(crate) async fn start(lease: &str) -> Pair {
        let cluster = Cluster::builder().replicas(0).start().await;
        let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
        let nodes: Vec<Value> = [&a, &b].map(|agent| part(agent.name, agent.address())).into();
        let mut relay = Relay::watching(&cluster, &[]).set("cluster.nodes", nodes.clone());
        let mut config = Table::new();
        config.insert("cluster".into(), Table::from_iter([("nodes".to_owned(), Value::from(nodes))]).into());
        let relays = vec![part(relay.name(), format!("127.0.0.1:{}", relay.port()))];
        config.insert("failover".into(), Table::from_iter([("relays".to_owned(), Value::from(relays))]).into());
        let path = cluster.dir().join("agents.toml");
        std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
        for agent in [&mut a, &mut b] {
            agent.config = Some(path.clone());
            agent.environment.push(("KINGPOST__NODE__LEASE", lease.to_owned()));
        }
        a.launch(&["--init"]);
        a.wait_value("SELECT pg_is_in_recovery()", "f").await;
        // No relay of this cluster has promised anything before.
        relay.is_new(true);
        relay.start().await;
        relay.is_new(false);
        b.launch(&["--join"]);
        b.wait_value(STREAMS, "streaming").await;
        a.execute("CREATE TABLE acked (n bigint)").await;
        let names = format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name());
        for agent in [&a, &b] {
            agent.execute(&names).await;
            agent.execute("SELECT pg_reload_conf()").await;
        }
        a.wait_value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1").await;
        Pair { a, b, relay, cluster }
    }

    pub(crate) fn failover(&self) -> Failover {
        let nodes: Vec<Value> = [&self.a, &self.b].map(|agent| part(agent.name, agent.address())).into();
        Failover::of(&self.cluster, &[&self.relay]).set("cluster.nodes", nodes).set("failover.rejoined_by", "its agent")
    }

    /// Has a commit on `a` that no other server has, and kills its server and its agent.
    async fn lose_a_with_more(&mut self) {
        self.a.execute("INSERT INTO acked SELECT generate_series(1, 100)").await;
        self.relay.stop().await;
        self.a.execute("SET synchronous_commit = local; INSERT INTO acked SELECT generate_series(1001, 1100)").await;
        self.a.kill();
        self.relay.launch();
        let up = async || self.relay.http("/healthz").await;
        self.cluster.wait("the relay to be there", up).await;
        let text = self.failover().succeed(&["failover"]).await;
        assert!(text.contains("promoted b"), "{text}");
        self.b.wait_value("SELECT pg_is_in_recovery()", "f").await;
        self.b.execute("INSERT INTO acked SELECT generate_series(101, 200)").await;
    }

    /// Checks that `a` is a standby of `b`, with what was acknowledged and nothing else.
    async fn a_follows(&self) {
        let history = "SELECT count(*) || ' ' || count(DISTINCT n) || ' ' || max(n) FROM acked";
        assert_eq!(self.b.query(history).await.unwrap(), "200 200 200");
        self.a.wait_value("SELECT received_tli FROM pg_stat_wal_receiver", "2").await;
        self.a.wait_value(history, "200 200 200").await;
        self.a.wait_value("SELECT pg_is_in_recovery()", "t").await;
    }
}

pub(crate) fn aside(agent: &Agent) -> usize {
    let entries = std::fs::read_dir(agent.directory()).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("aside-")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_command_adds_a_replica_and_one_removes_it() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(0).start().await;
    let _logs = ShowLogs(cluster.dir());
    let registry = RegistryNode::start("").await;
    let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
    a.launch(&["--init", "--join", &registry.url()]);
    a.wait_value("SELECT pg_is_in_recovery()", "f").await;
    a.execute("CREATE ROLE alice LOGIN").await;
    a.execute("CREATE DATABASE app OWNER alice").await;
    let proxy = Kingpost::of(&cluster)
        .set("cluster.nodes", Value::Array(Vec::new()))
        .set("cluster.from.urls", vec![registry.url()]);
    let proxy = proxy.start().await;
    let server = async |hint: &str| {
        let client = proxy.connect().await;
        let sql = format!("/* kingpost.route={hint} */ SELECT inet_server_port()");
        u16::try_from(client.query_one(&sql, &[]).await.unwrap().get::<_, i32>(0)).unwrap()
    };
    assert_eq!(server("replica").await, a.port.number(), "there is no other");

    b.launch(&["--join", &registry.url()]);
    let reads = async |agent: &Agent| (server("replica").await == agent.port.number()).then_some(());
    cluster.wait("the replica to get reads", async || reads(&b).await).await;
    assert_eq!(server("primary").await, a.port.number());

    // A restart needs no flags but those of its place.
    b.process().signal(15);
    b.process().wait_exit(SOON).await;
    assert_eq!(b.server(), None, "an attached server ends with its agent");
    b.environment.push(("KINGPOST__CLUSTER__FROM__URLS", format!("[\"{}\"]", registry.url())));
    b.launch(&[]);
    b.wait_value(STREAMS, "streaming").await;

    // A killed server is started again.
    b.kill_server();
    b.wait_value(STREAMS, "streaming").await;
    b.process().signal(15);
    b.process().wait_exit(SOON).await;
    let (code, text) = b.ends(&["--leave"]);
    assert_eq!(code, Some(0), "{text}");
    a.wait_value("SELECT count(*) FROM pg_replication_slots", "0").await;
    let nodes = registry.get("/v1/namespaces/kingpost/services/postgres/instances").await;
    assert!(!nodes.body.contains(&b.port.number().to_string()), "{}", nodes.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_primary_comes_back_by_itself() {
    if only_kingpost() {
        return;
    }
    let mut pair = Pair::start("0s").await;
    let logs = pair.cluster.dir().to_owned();
    let _logs = ShowLogs(&logs);
    // Only its server: the agent starts it again.
    pair.a.execute("INSERT INTO acked VALUES (0); DELETE FROM acked").await;
    pair.a.kill_server();
    pair.a.wait_value("SELECT count(*) || ' ' || pg_is_in_recovery() FROM acked", "0 false").await;
    pair.lose_a_with_more().await;
    pair.a.launch(&[]);
    pair.a_follows().await;
    assert!(pair.a.log().contains("the data were rewound"), "{}", pair.a.log());
    assert_eq!(aside(&pair.a), 0);

    // Back again, with a stop that is clean.
    let text = pair.failover().succeed(&["switchover", "--to", "a"]).await;
    pair.a.wait_value("SELECT pg_is_in_recovery()", "f").await;
    pair.b.wait_value("SELECT received_tli FROM pg_stat_wal_receiver", "3").await;
    assert!(text.contains("a is the primary"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_cannot_be_rewound_are_copied_anew() {
    if only_kingpost() {
        return;
    }
    let mut pair = Pair::start("0s").await;
    let logs = pair.cluster.dir().to_owned();
    let _logs = ShowLogs(&logs);
    pair.lose_a_with_more().await;
    // Without the old primary's own control file pg_rewind does nothing.
    let wal = pair.a.directory().join("data/pg_wal");
    for entry in std::fs::read_dir(&wal).unwrap().flatten() {
        if entry.path().is_file() {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    pair.a.launch(&[]);
    pair.a_follows().await;
    assert_eq!(aside(&pair.a), 1, "{}", pair.a.log());
    assert!(!pair.a.directory().join("rewinding").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_relays_do_not_confirm_stops_taking_writes() {
    if only_kingpost() {
        return;
    }
    let pair = Pair::start("10s").await;
    let logs = pair.cluster.dir().to_owned();
    let _logs = ShowLogs(&logs);
    let write = "SET synchronous_commit = local; INSERT INTO acked VALUES (1)";
    pair.a.execute(write).await;
    pair.relay.process().signal(19);
    let refused = async || pair.a.query(write).await.is_err().then_some(());
    wait_until("the primary to refuse writes", SOON, &pair.a.dir, refused).await;
    // Not only for a moment, as a session that was ended.
    pair.a.wait_log("the relays have not confirmed the timeline within the lease").await;
    wait_until("its server to stop", SOON, &pair.a.dir, async || pair.a.server().is_none().then_some(())).await;
    pair.relay.process().signal(18);
    wait_until("the primary to take writes", SOON, &pair.a.dir, async || pair.a.query(write).await.ok()).await;
    // The mark goes after the server has been unlocked: an agent that dies between them locks it again.
    let unmarked = async || (!pair.a.directory().join("fenced").exists()).then_some(());
    wait_until("the mark to be gone", SOON, &pair.a.dir, unmarked).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_directories_are_refused() {
    if only_kingpost() {
        return;
    }
    let mut a = Agent::new("a");
    let (code, text) = a.ends(&["--leave"]);
    assert_eq!(code, Some(0), "{text}");
    // Nothing is made without a word.
    a.launch(&[]);
    a.wait_log("--init").await;
    a.kill();
    a.launch(&["--init"]);
    a.wait_value("SELECT pg_is_in_recovery()", "f").await;

    let (code, text) = a.ends(&[]);
    assert!(code == Some(4) && text.contains("another agent runs on"), "{text}");
    let server = a.server();
    a.process().signal(9);
    // The next agent takes over the running server.
    a.launch(&["--init"]);
    a.wait_log("\"state\":\"primary\"").await;
    assert_eq!(a.server(), server);
    a.process().signal(15);
    a.process().wait_exit(SOON).await;

    let identity = a.directory().join("kingpost.node");
    let good = std::fs::read_to_string(&identity).unwrap();
    std::fs::write(&identity, good.replace("\"name\": \"a\"", "\"name\": \"z\"")).unwrap();
    let (code, text) = a.ends(&[]);
    assert!(code == Some(3) && text.contains("belongs to the node z"), "{text}");

    let mut refuses = async |prepare: &dyn Fn(&Path), expected: &str| {
        std::fs::write(&identity, &good).unwrap();
        prepare(&a.directory());
        a.launch(&["--init"]);
        a.wait_log(expected).await;
        assert_eq!(a.server(), None);
        a.process().signal(9);
        a.process().wait_exit(SOON).await;
    };
    let system: serde_json::Value = serde_json::from_str(&good).unwrap();
    let other = good.replace(&system["system"].to_string(), "17");
    refuses(&|dir| std::fs::write(dir.join("kingpost.node"), &other).unwrap(), "and the others are of 17").await;
    refuses(&|dir| std::fs::write(dir.join("data/PG_VERSION"), "9\n").unwrap(), "the data are of PostgreSQL 9").await;
    refuses(&|dir| std::fs::rename(dir.join("data"), dir.join("away")).unwrap(), "is its volume mounted?").await;
}
