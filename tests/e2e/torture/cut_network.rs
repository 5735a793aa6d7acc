//! Servers and agents in network namespaces of their own, between which the network loses packets: in one direction, in the other, one link or two at a
//! time. Packets vanish without an error, as on a broken link.
//!
//! ```text
//!  [agent a, server a] ═══ [agent b, server b]
//!              ╚═══════╦═══════╝
//!      [relay, watcher, registry, proxy, clients]
//! ```

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kingpost_tests::{
    Cluster, DATABASE, Failover, Kingpost, Process, RegistryNode, Relay, RunAs, SOON, ShowLogs, USER, command, new_dir,
    signal, skipped, unique, wait_until,
};
use tokio_postgres::Client;
use toml::{Table, Value};

use super::agents::{Beside, session};
use super::history::Clients;
use super::random::Random;
use super::scene::Scene;
use crate::common::only_kingpost;
use crate::node::{Agent, STREAMS, part};

const PASSWORD: &str = "correct horse";
/// Lease of agents and promotions.
const LEASE: &str = "10s";
/// Time without a word from the primary after which the relay no longer hears it.
const SILENCE: &str = "5s";
/// Time of a fault that must not lead to a promotion: longer than [`SILENCE`] and [`LEASE`] together.
const DWELL: Duration = Duration::from_secs(18);
/// Longest wait: for a relay's silence, a lease and a promotion.
const LONG: Duration = Duration::from_secs(120);
/// Longest time for one question to a server.
const ASK: Duration = Duration::from_secs(3);
const RECOVERS: &str = "SELECT pg_is_in_recovery()";
/// A hardware address that no device has: packets to it vanish.
const NOBODY: &str = "02:00:00:00:00:fe";
/// Random pairs of cuts in a run, if `KINGPOST_CUTS` does not say another number.
const PAIRS: usize = 4;

/// A host, by its part in the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Primary,
    Standby,
    /// The host of relay, watcher, registry and proxy.
    Relay,
}

use Host::{Primary, Standby};

/// A direction in which packets vanish.
type Cut = (Host, Host);

/// The six directions. The first two silence the primary.
const CUTS: [Cut; 6] = [
    (Primary, Host::Relay),
    (Host::Relay, Primary),
    (Primary, Standby),
    (Standby, Primary),
    (Standby, Host::Relay),
    (Host::Relay, Standby),
];

/// The end that a fault must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The primary goes on.
    Stays,
    /// The standby is promoted.
    Replaced,
    /// No server takes writes.
    Nobody,
}

/// Returns the outcome of cuts. A connection needs both directions; a promotion needs the relay to reach the standby and not the primary.
fn outcome(cuts: &[Cut]) -> Outcome {
    let reaches = |host| !cuts.iter().any(|cut| *cut == (host, Host::Relay) || *cut == (Host::Relay, host));
    match (reaches(Primary), reaches(Standby)) {
        (true, _) => Outcome::Stays,
        (false, true) => Outcome::Replaced,
        (false, false) => Outcome::Nobody,
    }
}

/// A network namespace, which ends with its process.
struct Namespace(Process);

/// One end of a link.
#[derive(Debug, Clone)]
struct End {
    device: String,
    address: String,
}

/// Three namespaces, each with a link to the two others: 0 and 1 have the servers, 2 is that of the tests.
struct Network {
    namespaces: Vec<Namespace>,
    /// Ends of the links, by the namespace of the end and that of the other one.
    ends: [[Option<End>; 3]; 3],
}

impl Drop for Network {
    fn drop(&mut self) {
        // Connections that a cut has left would keep namespace and link for minutes.
        for end in self.ends[2].iter().flatten() {
            let _ = run_ip(Command::new("ip"), &["link", "del", &end.device]);
        }
    }
}

/// Runs a command of `ip`; returns its error.
fn run_ip(mut command: Command, arguments: &[&str]) -> Result<(), String> {
    let output = command.args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Network {
    /// Makes it, or reports that the test is skipped.
    async fn make(dir: &Path) -> Option<Network> {
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            skipped("network namespaces need root");
            return None;
        }
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let mut network = Network { namespaces: Vec::new(), ends: Default::default() };
        for _ in 0..2 {
            let mut unshare = command(Path::new("unshare"), RunAs::Tests, "KILL");
            unshare.args(["--net", "sleep", "infinity"]);
            let process = Process::start("a network", unshare, &dir.join(format!("network-{}.log", unique())));
            let entered = || std::fs::read_link(format!("/proc/{}/ns/net", process.pid())).is_ok_and(|net| net != own);
            let made = async || (entered() || process.exit_status().is_some()).then_some(());
            wait_until("a network namespace", SOON, dir, made).await;
            if let Some(status) = process.exit_status() {
                skipped(&format!("no network namespace can be made here: unshare ended with {status}"));
                return None;
            }
            network.namespaces.push(Namespace(process));
        }
        match network.set_up() {
            Ok(()) => Some(network),
            Err(why) => {
                skipped(&format!("no network can be made here: {why}"));
                None
            }
        }
    }

    /// Runs `ip` in a namespace.
    fn ip(&self, namespace: usize, arguments: &[&str]) -> Result<(), String> {
        let command = match self.namespaces.get(namespace) {
            Some(Namespace(process)) => {
                let mut inside = Command::new("nsenter");
                inside.args(["--net", "--target", &process.pid().to_string(), "--", "ip"]);
                inside
            }
            None => Command::new("ip"),
        };
        run_ip(command, arguments)
    }

    fn set_up(&mut self) -> Result<(), String> {
        // Addresses for tests of networks, sixteen for each process.
        let block = std::process::id() % (1 << 13) * 16;
        let pids = [0, 1].map(|namespace: usize| self.namespaces[namespace].0.pid().to_string());
        for (link, (one, other)) in [(0, 1), (0, 2), (1, 2)].into_iter().enumerate() {
            let end = |last: u32| {
                let number = block + link as u32 * 4 + last;
                let address = format!("198.{}.{}.{}", 18 + (number >> 16), number >> 8 & 255, number & 255);
                End { device: format!("kp{}-{link}{last}", std::process::id()), address }
            };
            let (here, there) = (end(1), end(2));
            let mut add = vec!["link", "add", "name", &here.device, "netns", &pids[one], "type", "veth"];
            add.extend(["peer", "name", &there.device]);
            if let Some(pid) = pids.get(other) {
                add.extend(["netns", pid]);
            }
            run_ip(Command::new("ip"), &add)?;
            for (namespace, end) in [(one, &here), (other, &there)] {
                self.ip(namespace, &["addr", "add", &format!("{}/30", end.address), "dev", &end.device])?;
                self.ip(namespace, &["link", "set", &end.device, "up"])?;
            }
            (self.ends[one][other], self.ends[other][one]) = (Some(here), Some(there));
        }
        // Each host has one address for all others, which they reach by their own link to it.
        for (from, to) in [(0, 1), (1, 0), (1, 2)] {
            let (address, next) = (self.address(to).to_owned(), self.end(to, from).address.clone());
            self.ip(from, &["link", "set", "lo", "up"])?;
            self.ip(from, &["route", "add", &format!("{address}/32"), "via", &next])?;
        }
        Ok(())
    }

    fn end(&self, of: usize, towards: usize) -> &End {
        self.ends[of][towards].as_ref().expect("a link between two namespaces")
    }

    /// Returns the address of a namespace's host.
    fn address(&self, namespace: usize) -> &str {
        match namespace {
            2 => &self.end(2, 0).address,
            _ => &self.end(namespace, 2).address,
        }
    }

    /// Lets packets of one namespace to another vanish.
    fn cut(&self, from: usize, to: usize) {
        let (next, device) = (&self.end(to, from).address, &self.end(from, to).device);
        self.ip(from, &["neigh", "replace", next, "lladdr", NOBODY, "dev", device, "nud", "permanent"]).unwrap();
    }

    fn mend(&self, from: usize, to: usize) {
        let (next, device) = (&self.end(to, from).address, &self.end(from, to).device);
        self.ip(from, &["neigh", "del", next, "dev", device]).unwrap();
    }
}

/// Two servers with agents, a relay that commits wait for, a watcher with a lock in a registry, and a proxy.
struct Fleet {
    agents: [Agent; 2],
    primary: usize,
    beside: Beside,
    faults: Vec<String>,
    /// Directory of the logs.
    dir: PathBuf,
    watcher: Process,
    kingpost: Kingpost,
    _relay: Relay,
    _registry: RegistryNode,
    _cluster: Cluster,
    network: Network,
}

impl Scene for Fleet {
    fn dir(&self) -> &Path {
        &self.dir
    }

    async fn admin(&self) -> Client {
        let mut login = self.agents[self.primary].superuser();
        login.dbname(DATABASE);
        wait_until("the primary", SOON, self.dir(), async || session(&login).await).await
    }

    fn last(&self) -> &str {
        self.faults.last().map_or("the start", String::as_str)
    }

    fn has_barriers(&self) -> bool {
        false
    }
}

/// Waits for a new cluster, and lets its superuser in over the socket, and the proxy's clients by the network, without a password.
async fn lets_in(agent: &Agent, dir: &Path) {
    let file = agent.directory().join("data/pg_hba.conf");
    let first = format!("local all all trust\nhost all {USER} 198.18.0.0/15 trust\n");
    wait_until("the first server", LONG, dir, async || {
        let rules = std::fs::read_to_string(&file).ok()?;
        if !rules.starts_with(&first) {
            std::fs::write(&file, format!("{first}{rules}")).unwrap();
        }
        signal(agent.server()?, libc::SIGHUP);
        agent.query(RECOVERS).await.ok().filter(|recovers| recovers == "f")
    })
    .await;
}

impl Fleet {
    /// Starts the fleet; None if there is no network for it.
    async fn start() -> Option<Fleet> {
        let cluster = Cluster::builder().replicas(0).start().await;
        let dir = cluster.dir().to_owned();
        let network = Network::make(&dir).await?;
        let registry = RegistryNode::start("").await;
        let (mut a, mut b) = (Agent::new("a"), Agent::new("b"));
        for (namespace, agent) in [&mut a, &mut b].into_iter().enumerate() {
            agent.host = network.address(namespace).to_owned();
            agent.namespace = Some(network.namespaces[namespace].0.pid());
        }
        let nodes: Vec<Value> = [&a, &b].map(|agent| part(agent.name, agent.address())).into();
        let user = Table::from_iter([
            ("name".to_owned(), Value::from("postgres")),
            ("password".to_owned(), PASSWORD.into()),
            ("operator".to_owned(), true.into()),
        ]);
        let relay = Relay::watching(&cluster, &[]);
        let listen = [network.address(2), "127.0.0.1"].map(|host| format!("{host}:{}", relay.port()));
        let mut relay = relay
            .set("relay.listen", listen.to_vec())
            .set("relay.auth", "scram-sha-256")
            .set("relay.users", vec![Value::Table(user)])
            .set("relay.upstream.user", "postgres")
            .set("relay.upstream.password", PASSWORD)
            .set("relay.upstream.timeout", SILENCE)
            .set("cluster.password", PASSWORD)
            .set("cluster.nodes", nodes.clone());
        let mut entry = part(relay.name(), format!("{}:{}", network.address(2), relay.port()));
        for (key, value) in [("user", "postgres"), ("password", PASSWORD)] {
            entry.as_table_mut().unwrap().insert(key.into(), value.into());
        }
        let watcher = Failover::of(&cluster, &[])
            .set("cluster.nodes", nodes.clone())
            .set("cluster.password", PASSWORD)
            .set("failover.user", "postgres")
            .set("failover.password", PASSWORD)
            .set("failover.relays", vec![entry])
            .set("failover.lease", LEASE)
            .set("failover.rejoined_by", "its agent");
        for agent in [&mut a, &mut b] {
            let sockets = new_dir("sockets");
            std::fs::set_permissions(&sockets, PermissionsExt::from_mode(0o777)).unwrap();
            agent.config = Some(watcher.write());
            agent.environment.push(("KINGPOST__NODE__LEASE", LEASE.into()));
            agent.environment.push(("KINGPOST__NODE__LISTEN_ADDRESSES", "*".into()));
            agent.environment.push(("KINGPOST__NODE__SOCKET_DIRECTORY", sockets.display().to_string()));
            agent.socket = Some(sockets);
        }
        a.launch(&["--init"]);
        lets_in(&a, &dir).await;
        relay.is_new(true);
        relay.start().await;
        relay.is_new(false);
        b.launch(&["--join"]);
        b.wait_value(STREAMS, "streaming").await;
        a.execute(&format!("CREATE ROLE {USER} LOGIN")).await;
        a.execute(&format!("CREATE DATABASE {DATABASE} OWNER {USER}")).await;
        a.execute("CREATE TABLE beside (n int)").await;
        let mut login = a.superuser();
        let admin = session(login.dbname(DATABASE)).await.unwrap();
        let tables = "CREATE TABLE log (w int, n bigint); CREATE INDEX ON log (w, n); GRANT ALL ON log TO PUBLIC";
        admin.batch_execute(tables).await.unwrap();
        let names = format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name());
        for agent in [&a, &b] {
            agent.execute(&names).await;
            agent.execute("SELECT pg_reload_conf()").await;
        }
        a.wait_value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'", "1").await;
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.pool.no_primary_timeout", "100s")
            .set("cluster.password", PASSWORD)
            .set("cluster.nodes", nodes)
            .start()
            .await;
        let (watching, log) = watcher.proxy(&kingpost).start(&["watch", "--registry", &registry.url()]);
        let says = async || std::fs::read_to_string(&log).ok()?.contains("is the primary").then_some(());
        wait_until("the watcher", SOON, &dir, says).await;
        let beside = Beside::new();
        for (node, agent) in [&a, &b].into_iter().enumerate() {
            let mut login = agent.superuser();
            login.application_name("beside");
            beside.write_on(node, login);
        }
        Some(Fleet {
            agents: [a, b],
            primary: 0,
            beside,
            faults: Vec::new(),
            dir,
            watcher: watching,
            kingpost,
            _relay: relay,
            _registry: registry,
            _cluster: cluster,
            network,
        })
    }

    fn namespace(&self, host: Host) -> usize {
        match host {
            Primary => self.primary,
            Standby => 1 - self.primary,
            Host::Relay => 2,
        }
    }

    /// Asks a server; None if it does not answer soon.
    async fn ask(&self, node: usize, sql: &str) -> Option<String> {
        tokio::time::timeout(ASK, self.agents[node].query(sql)).await.ok()?.ok()
    }

    async fn is_primary(&self, node: usize) -> bool {
        self.ask(node, RECOVERS).await.is_some_and(|recovers| recovers == "f")
    }

    /// Waits for more asynchronous commits on the present primary.
    async fn more(&self) {
        let before = self.beside.writes.lock().unwrap().len();
        let grown = async || (self.beside.writes.lock().unwrap().len() > before + 10).then_some(());
        wait_until(&format!("commits after {}", self.last()), SOON, self.dir(), grown).await;
    }

    /// Cuts the network, waits for the outcome, mends the network, and waits until the agents have repaired the rest.
    async fn fault(&mut self, cuts: &[Cut], clients: &Clients) {
        let (old, expected) = (self.primary, outcome(cuts));
        self.faults.push(format!("{cuts:?}, the primary was {}", self.agents[old].name));
        let standstill = clients.standstill();
        let directions: Vec<_> = cuts.iter().map(|&(from, to)| (self.namespace(from), self.namespace(to))).collect();
        directions.iter().for_each(|&(from, to)| self.network.cut(from, to));
        let what = format!("the outcome {expected:?} of {}", self.last());
        match expected {
            Outcome::Stays => {
                tokio::time::sleep(DWELL).await;
                assert!(self.is_primary(old).await && !self.is_primary(1 - old).await, "not {what}");
            }
            Outcome::Replaced => {
                let other = async || self.is_primary(1 - old).await.then_some(());
                wait_until(&what, LONG, self.dir(), other).await;
                self.primary = 1 - old;
            }
            Outcome::Nobody => {
                let write = "SET synchronous_commit = local; INSERT INTO beside VALUES (1)";
                let refuses = async || self.ask(old, write).await.is_none().then_some(());
                wait_until(&what, LONG, self.dir(), refuses).await;
                tokio::time::sleep(DWELL).await;
                assert!(!self.is_primary(1 - old).await, "not {what}");
            }
        }
        if expected != Outcome::Nobody {
            self.more().await;
        }
        self.assert_one_primary();
        directions.iter().for_each(|&(from, to)| self.network.mend(from, to));
        let mended = Instant::now();
        self.whole().await;
        let whole = mended.elapsed();
        clients.progress(self, 30).await;
        self.more().await;
        self.assert_one_primary();
        assert!(self.watcher.exit_status().is_none(), "the watcher has ended");
        eprintln!(
            "cut {:<50} {expected:<9?} {:5.1} s without commits, whole {:5.1} s after the repair",
            format!("{cuts:?}"),
            standstill.longest().as_secs_f32(),
            whole.as_secs_f32()
        );
    }

    /// Waits until one server is primary and the other one streams.
    async fn whole(&mut self) {
        let what = format!("a whole fleet after {}", self.last());
        let found = async || {
            for node in 0..2 {
                let streams = self.ask(1 - node, STREAMS).await.is_some_and(|status| status == "streaming");
                if streams && self.is_primary(node).await {
                    return Some(node);
                }
            }
            None
        };
        self.primary = wait_until(&what, LONG, self.dir(), found).await;
    }

    fn assert_one_primary(&self) {
        if let Some((first, late)) = self.beside.second_primary() {
            panic!("two primaries: {first:?}, and later {late:?}\n{}", self.faults.join("\n"));
        }
    }
}

/// Each direction between the primary and the relay, then `KINGPOST_CUTS` random pairs of directions.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for leases, and needs root: scripts/test-long"]
async fn a_network_cut_in_one_direction_never_makes_two_primaries() {
    if only_kingpost() {
        return;
    }
    let seed = super::seed();
    let Some(mut fleet) = Fleet::start().await else { return };
    let dir = fleet.dir.clone();
    let _logs = ShowLogs(&dir);
    eprintln!("cut network: KINGPOST_TORTURE_SEED={seed}");
    let clients = Clients::start(fleet.kingpost.endpoint(), 4);
    clients.progress(&fleet, 50).await;
    for cut in &CUTS[..2] {
        fleet.fault(&[*cut], &clients).await;
    }
    let mut pairs: Vec<[usize; 2]> = (0..6).flat_map(|one| (one + 1..6).map(move |other| [one, other])).collect();
    let mut random = Random(seed);
    for _ in 0..super::number("KINGPOST_CUTS").map_or(PAIRS, |many| many as usize).min(pairs.len()) {
        let drawn = random.draw(pairs.len() as u64) as usize;
        let pair = pairs.swap_remove(drawn).map(|cut| CUTS[cut]);
        fleet.fault(&pair, &clients).await;
    }
    let summary = clients.end(&fleet).await;
    let violations = clients.check(&fleet).await;
    let faults = fleet.faults.join("\n");
    assert!(violations.is_empty(), "seed {seed}: {:?}\n{faults}", &violations[..violations.len().min(10)]);
    let asynchronous = fleet.beside.writes.lock().unwrap().len();
    eprintln!("cut network: seed {seed}: {summary}; {asynchronous} asynchronous");
}

#[test]
fn outcomes_of_cuts() {
    let relay = Host::Relay;
    for (cuts, expected) in [
        (&[][..], Outcome::Stays),
        (&[(Primary, relay)], Outcome::Replaced),
        (&[(relay, Primary)], Outcome::Replaced),
        (&[(Primary, Standby), (Standby, relay)], Outcome::Stays),
        (&[(relay, Primary), (Standby, Primary)], Outcome::Replaced),
        (&[(relay, Primary), (Standby, relay)], Outcome::Nobody),
    ] {
        assert_eq!(outcome(cuts), expected, "{cuts:?}");
    }
    let all: BTreeSet<Cut> = CUTS.into_iter().collect();
    assert_eq!(all.len(), 6);
}
