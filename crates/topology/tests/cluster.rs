//! Test with a real cluster: a primary `a`, its standby `b`, and `c` that follows `b`.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, NoTls};
use topology::{ClusterConfig, NodeConfig, NodeView, Role, Topology};
use watermark::{Lsn, PrimaryPosition};

/// Time limit of all waits, longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Servers in a directory that is removed with them, also when the test panics.
struct Servers {
    directory: tempfile::TempDir,
    bin: PathBuf,
    /// User of the servers if the test runs as root, which PostgreSQL refuses.
    user: Option<(u32, u32)>,
    ports: Vec<(String, u16)>,
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

impl Servers {
    fn new() -> Servers {
        let mut bins: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
            .expect("PostgreSQL's servers are in /usr/lib/postgresql")
            .map(|entry| entry.unwrap().path().join("bin"))
            .filter(|bin| bin.join("initdb").exists())
            .collect();
        bins.sort();
        let directory = tempfile::Builder::new().prefix("kp-topology-").tempdir().unwrap();
        let user = (id(&["-u"]) == Some(0)).then(|| {
            ["postgres", "nobody"].iter().find_map(|name| Some((id(&["-u", name])?, id(&["-g", name])?))).unwrap()
        });
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(directory.path(), Some(uid), Some(gid)).unwrap();
        }
        Servers { directory, bin: bins.pop().expect("a PostgreSQL server is installed"), user, ports: Vec::new() }
    }

    fn data(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(self.directory.path()).env("LC_ALL", "C");
        if let Some((uid, gid)) = self.user {
            command.gid(gid).uid(uid);
        }
        command
    }

    fn port(&self, name: &str) -> u16 {
        self.ports.iter().find(|(other, _)| other == name).unwrap().1
    }

    /// Gives a new data directory a port of its own.
    fn configure(&mut self, name: &str) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nfsync = off\n\
             shared_buffers = 16MB\nautovacuum = off\nhot_standby = on\nwal_retrieve_retry_interval = 100ms\n\
             wal_keep_size = 256MB\nmax_connections = 20\n",
            self.directory.path().display()
        );
        let file = self.data(name).join("postgresql.auto.conf");
        let before = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, before + &settings).unwrap();
        self.ports.push((name.into(), port));
    }

    fn init(&mut self, name: &str) {
        let data = self.data(name);
        run(self.command("initdb").args(["--no-sync", "--auth=trust", "--username=postgres", "-D"]).arg(data));
        self.configure(name);
    }

    fn clone_from(&mut self, upstream: &str, name: &str) {
        let upstream = format!("host=127.0.0.1 port={} user=postgres", self.port(upstream));
        let data = self.data(name);
        run(self
            .command("pg_basebackup")
            .args(["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &upstream, "-D"])
            .arg(data));
        self.configure(name);
    }

    fn pg_ctl(&self, name: &str) -> Command {
        let mut command = self.command("pg_ctl");
        let log = self.data(&format!("{name}.log"));
        command.args(["-w", "-t", "20", "-D"]).arg(self.data(name)).arg("-l").arg(log);
        command
    }

    fn start(&self, name: &str) {
        run(self.pg_ctl(name).arg("start"));
    }

    fn postmaster(&self, name: &str) -> Option<String> {
        let file = std::fs::read_to_string(self.data(name).join("postmaster.pid")).ok()?;
        Some(file.lines().next()?.to_owned())
    }

    /// Kills a server, like a crash.
    fn kill(&self, name: &str) {
        run(Command::new("kill").arg("-9").arg(self.postmaster(name).unwrap()));
    }

    /// Starts a server again after a crash: refused as long as a process of the killed server exists.
    fn restart(&self, name: &str) {
        let start = Instant::now();
        while !self.pg_ctl(name).arg("start").output().unwrap().status.success() {
            assert!(start.elapsed() < PATIENCE, "{name} does not start: {}", self.log(name));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.data(&format!("{name}.log"))).unwrap_or_default()
    }

    fn node(&self, name: &str, address: String) -> NodeConfig {
        NodeConfig::new(name, address)
    }

    async fn client(&self, name: &str) -> Client {
        let login = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port(name));
        let (client, connection) = tokio_postgres::connect(&login, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (name, _) in &self.ports {
            let stopped = self.pg_ctl(name).args(["-m", "immediate", "stop"]).output();
            if !stopped.is_ok_and(|output| output.status.success())
                && let Some(pid) = self.postmaster(name)
                && Path::new(&format!("/proc/{pid}")).exists()
            {
                let _ = Command::new("kill").arg("-9").arg(pid).status();
            }
        }
    }
}

fn run(command: &mut Command) {
    // pg_ctl passes its output to the server that it starts: a pipe would never end.
    let status = command.stdout(std::process::Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Polls until the condition holds. It depends on other processes, so there is no event to wait for.
async fn until<T>(topology: &Topology, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not seen: {what}; {:#?}", topology.view());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn node(topology: &Topology, name: &str) -> NodeView {
    topology.view().nodes.iter().find(|node| node.node.name == name).unwrap().clone()
}

async fn has_roles(topology: &Topology, wanted: [(Role, bool); 3]) {
    until(topology, &format!("{wanted:?}"), || {
        let seen = ["a", "b", "c"].map(|name| node(topology, name)).map(|node| (node.role, node.usable));
        (seen == wanted).then_some(())
    })
    .await;
}

async fn replayed(topology: &Topology, name: &str, lsn: Lsn) {
    until(topology, &format!("{name} has replayed {lsn}"), || {
        topology.want_replay();
        (node(topology, name).node.replayed.get() >= lsn).then_some(())
    })
    .await;
}

async fn ask(topology: &Topology) -> PrimaryPosition {
    let ticket = topology.oracle().ticket();
    until(topology, "the oracle's answer", || topology.oracle().answer(ticket)).await
}

/// Commits, and returns a position at or after that commit.
async fn write(client: &Client) -> Lsn {
    client.batch_execute("CREATE TABLE IF NOT EXISTS t (i int); INSERT INTO t VALUES (1)").await.unwrap();
    let row = client.query_one("SELECT pg_current_wal_flush_lsn()", &[]).await.unwrap();
    Lsn(u64::from(row.get::<_, PgLsn>(0)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_from_discovery_to_failover() {
    const PRIMARY: (Role, bool) = (Role::Primary, true);
    const REPLICA: (Role, bool) = (Role::Replica, true);
    const DOWN: (Role, bool) = (Role::Unknown, false);
    const STALE: (Role, bool) = (Role::Stale, false);

    let mut servers = Servers::new();
    servers.init("a");
    servers.start("a");
    servers.clone_from("a", "b");
    servers.start("b");
    servers.clone_from("b", "c");
    servers.start("c");

    // One of each kind of address, and a name to resolve.
    let socket = servers.directory.path().join(format!(".s.PGSQL.{}", servers.port("c")));
    let topology = Topology::start(
        ClusterConfig {
            probe_interval: Duration::from_millis(200),
            nodes: vec![
                servers.node("a", format!("localhost:{}", servers.port("a"))),
                servers.node("b", format!("127.0.0.1:{}", servers.port("b"))),
                servers.node("c", socket.display().to_string()),
            ],
            ..ClusterConfig::default()
        },
        &Handle::current(),
    )
    .unwrap();

    // Discovery.
    topology.wait_ready(PATIENCE).await.unwrap();
    has_roles(&topology, [PRIMARY, REPLICA, REPLICA]).await;
    let first = topology.view().term;
    assert_eq!(first.timeline, 1);
    assert_ne!(first.system, 0);
    assert_eq!(topology.view().primary_node().unwrap().node.name, "a");

    // The oracle knows of a commit, and replicas reach its position.
    let writer = servers.client("a").await;
    let committed = write(&writer).await;
    let answer = ask(&topology).await;
    assert_eq!(answer.term, 1);
    assert!(answer.lsn >= committed, "{} is before the commit at {committed}", answer.lsn);
    replayed(&topology, "b", committed).await;
    replayed(&topology, "c", committed).await;

    // Also at the start of a segment, where the primary's own number is behind the segment's header.
    writer.batch_execute("SELECT pg_switch_wal()").await.unwrap();
    let answer = ask(&topology).await;
    assert_eq!(answer.lsn.0 % (16 << 20), 0, "{}", answer.lsn);
    replayed(&topology, "b", answer.lsn).await;
    replayed(&topology, "c", answer.lsn).await;

    // A false alarm changes nothing; tickets continue to be answered.
    let epoch = topology.epoch();
    topology.report_failure(node(&topology, "b").node.id);
    replayed(&topology, "b", write(&writer).await).await;
    assert_eq!(topology.epoch(), epoch);

    // The primary crashes: reads continue.
    servers.kill("a");
    topology.report_failure(node(&topology, "a").node.id);
    has_roles(&topology, [DOWN, REPLICA, REPLICA]).await;
    let waiting = topology.oracle().ticket();

    // b is promoted; c follows it to the new timeline by itself.
    run(servers.pg_ctl("b").arg("promote"));
    has_roles(&topology, [DOWN, PRIMARY, REPLICA]).await;
    let second = topology.view().term;
    assert_eq!((second.system, second.timeline), (first.system, 2));
    let answer = until(&topology, "an answer from the new primary", || topology.oracle().answer(waiting)).await;
    let times = topology.oracle_times();
    let counts = [times.waited, times.round_trip].map(|times| times.buckets.iter().sum::<u64>());
    assert!(counts[1] >= 2, "two questions were answered at least: {times:?}");
    // One may have been sent and neither answered nor failed yet.
    assert!(counts[0] >= counts[1] + times.failed, "each that ended was sent: {times:?}");
    assert_eq!(answer.term, 2, "who asked while there was no primary is answered by the new one");
    let writer = servers.client("b").await;
    let committed = write(&writer).await;
    replayed(&topology, "c", committed).await;
    assert!(ask(&topology).await.lsn >= committed);

    // The old primary returns as a primary.
    servers.restart("a");
    has_roles(&topology, [STALE, PRIMARY, REPLICA]).await;
    assert_eq!(topology.view().term, second);

    // A standby that crashes is ejected, and its position forgotten; it returns after its back-off.
    servers.kill("c");
    has_roles(&topology, [STALE, PRIMARY, DOWN]).await;
    assert_eq!(node(&topology, "c").node.replayed.get(), Lsn(0));
    servers.restart("c");
    has_roles(&topology, [STALE, PRIMARY, REPLICA]).await;
    replayed(&topology, "c", committed).await;

    let last = Arc::clone(&topology.view());
    topology.shutdown();
    assert_eq!(topology.view().epoch, last.epoch);
}
