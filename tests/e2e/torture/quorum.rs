//! A fleet that survives the loss of any one part: three servers, three relays of which a commit waits for two, two watchers with a lock in etcd, a
//! proxy. Each pair of them has its own path, which can be cut.
//!
//! ```text
//!  clients ─▶ proxy ─▶ n0 n1 n2 ◀─ relays r0 r1 r2 (each reaches each server)
//!  clients ──────────▶ n0 n1 n2      ▲
//!              watchers w0 w1 ───────┴── each reaches each server and each relay
//! ```
//!
//! Some clients write past the proxy, on every server that accepts them: any commit acknowledged by a server that is no longer the primary is lost,
//! and detected.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kingpost_tests::{
    Cluster, Cut, Etcd, Failover, Kingpost, Link, Node, Process, Relay, kingpost_bin, tails, wait_until,
};
use tokio_postgres::Client;
use toml::{Table, Value};

use super::history::Clients;
use super::random::Random;
use super::scene::Scene;

const RELAYS: usize = 3;
const ACKNOWLEDGEMENTS: usize = 2;
const WATCHERS: usize = 2;
/// Longest time until full recovery after a fault, with an operator's help.
const MENDED: Duration = Duration::from_secs(180);
/// Time without a change after which the operator runs `kingpost failover`, as the runbooks say.
const OPERATOR: Duration = Duration::from_secs(45);
/// Steps of a switchover after which it is killed.
const STEPS: [&str; 9] =
    ["paused", "silenced", "fenced", "noted", "caught-up", "elected", "promoting", "promoted", "resumed"];

/// A watcher, and its paths.
struct Watcher {
    failover: Failover,
    etcd: String,
    /// Paths to the servers, then to the relays.
    links: Vec<Cut>,
    process: Option<(Process, PathBuf)>,
}

impl Watcher {
    fn start(&mut self, arguments: &[&str]) {
        self.process = None;
        let all = [&["watch", "--etcd", self.etcd.as_str()], arguments].concat();
        self.process = Some(self.failover.start(&all));
    }

    fn signal(&self, number: i32) {
        if let Some((process, _)) = &self.process {
            process.signal(number);
        }
    }

    /// Returns the number of nodes that it has promoted, or None if it has ended.
    fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(|(process, _)| process.exit_status().is_none())
    }
}

/// Clients that write on each server directly, and their acknowledged rows: server and number.
struct Direct {
    acknowledged: Arc<Mutex<Vec<(usize, i64)>>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Direct {
    fn start(cluster: &Cluster) -> Direct {
        let (acknowledged, stop) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        for (index, node) in cluster.nodes().iter().enumerate() {
            let (endpoint, config) = (node.endpoint(), node.admin_config());
            let (acknowledged, stop) = (acknowledged.clone(), stop.clone());
            tokio::spawn(async move {
                let mut client = None;
                for n in 1_i64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    // Not needed by the test: it leaves time for the rest of the machine.
                    tokio::time::sleep(Duration::from_millis(15)).await;
                    let Some(connected) = &client else {
                        client = endpoint.try_connect(&config).await.ok();
                        continue;
                    };
                    // A session that was set to READ WRITE: a switchover has to stop it, too.
                    let insert = format!("BEGIN READ WRITE; INSERT INTO direct VALUES ({index}, {n}); COMMIT");
                    match connected.batch_execute(&insert).await {
                        Ok(()) => acknowledged.lock().unwrap().push((index, n)),
                        Err(_) => client = None,
                    }
                }
            });
        }
        Direct { acknowledged, stop }
    }
}

/// The fleet; see the module.
pub(super) struct Quorum {
    pub(super) seed: u64,
    random: Random,
    pub(super) cluster: Cluster,
    relays: Vec<Relay>,
    /// Paths from each relay to each server.
    relay_links: Vec<Vec<Cut>>,
    proxy_links: Vec<Cut>,
    kingpost: Kingpost,
    watchers: Vec<Watcher>,
    /// An operator, whose paths are never cut.
    operator: Failover,
    _etcd: Etcd,
    direct: Direct,
    primary: usize,
    pub(super) failovers: u64,
    pub(super) others: u64,
    /// Relays that an operator had to begin anew.
    pub(super) resets: u64,
    pub(super) faults: Vec<String>,
}

impl Scene for Quorum {
    fn dir(&self) -> &Path {
        self.cluster.dir()
    }

    async fn admin(&self) -> Client {
        self.primary().admin().await
    }

    fn last(&self) -> &str {
        self.faults.last().map_or("the start", String::as_str)
    }

    fn has_barriers(&self) -> bool {
        // PostgreSQL's own synchronous replication shows, after a restart, commits that the relays may not have.
        false
    }
}

fn part(name: &str, port: u16) -> Value {
    let mut table = Table::new();
    table.insert("name".into(), name.into());
    table.insert("address".into(), format!("127.0.0.1:{port}").into());
    table.insert("user".into(), "postgres".into());
    Value::Table(table)
}

impl Quorum {
    pub(super) fn primary(&self) -> &Node {
        &self.cluster.nodes()[self.primary]
    }

    /// Starts the fleet; None without etcd.
    pub(super) async fn start(seed: u64) -> Option<Quorum> {
        let cluster = Cluster::builder().replicas(2).start().await;
        let etcd = Etcd::start(&cluster).await?;
        let links = || cluster.nodes().iter().map(|node| Cut::to(node.port())).collect::<Vec<_>>();
        let relay_links: Vec<Vec<Cut>> = (0..RELAYS).map(|_| links()).collect();
        let mut relays: Vec<Relay> = Vec::new();
        for links in &relay_links {
            relays.push(Relay::watching(&cluster, &links.iter().map(Cut::port).collect::<Vec<_>>()));
        }
        let all: Vec<Value> = relays.iter().map(|relay| part(relay.name(), relay.port())).collect();
        let set = |relay: Relay| {
            relay.set("failover.relays", all.clone()).set("failover.acknowledgements", ACKNOWLEDGEMENTS as i64)
        };
        relays = relays.into_iter().map(set).collect();
        // All are new, and ask each other.
        for relay in &mut relays {
            relay.launch();
        }
        for relay in &relays {
            relay.wait_receiving().await;
        }
        for (replica, relay) in cluster.replicas().iter().zip(&relays) {
            replica.follow_port(relay.port());
        }
        let names: Vec<&str> = relays.iter().map(Relay::name).collect();
        for node in cluster.nodes() {
            let names = names.join(", ");
            node.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = 'ANY {ACKNOWLEDGEMENTS} ({names})'"))
                .await;
            node.execute("SELECT pg_reload_conf()").await;
        }
        let primary = cluster.primary();
        let quorum = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'";
        primary.wait_value(quorum, &RELAYS.to_string()).await;
        primary
            .execute(
                "CREATE TABLE log (w int, n bigint); CREATE INDEX ON log (w, n); GRANT ALL ON log TO PUBLIC; \
                 CREATE TABLE direct (node int, n bigint)",
            )
            .await;
        for replica in cluster.replicas() {
            replica.wait_caught_up(primary).await;
        }
        let proxy_links = links();
        let mut builder = Kingpost::of(&cluster).set("proxy.pool.no_primary_timeout", "60s");
        for (index, link) in proxy_links.iter().enumerate() {
            builder = builder.through(index, link);
        }
        let kingpost = builder.start().await;
        let refs: Vec<&Relay> = relays.iter().collect();
        let operator = Failover::of(&cluster, &refs).set("failover.acknowledgements", ACKNOWLEDGEMENTS as i64);
        let operator = operator.proxy(&kingpost);
        let mut watchers = Vec::new();
        for _ in 0..WATCHERS {
            let mut links = links();
            let mut failover = operator.clone().copy(&cluster);
            for (node, link) in cluster.nodes().iter().zip(&links) {
                failover = failover.tag(node.name(), "address", format!("127.0.0.1:{}", link.port()));
            }
            let to_relays: Vec<Cut> = relays.iter().map(|relay| Cut::to(relay.port())).collect();
            let parts: Vec<Value> =
                relays.iter().zip(&to_relays).map(|(relay, link)| part(relay.name(), link.port())).collect();
            links.extend(to_relays);
            let failover = failover.set("failover.relays", parts);
            let mut watcher = Watcher { failover, etcd: etcd.url(), links, process: None };
            watcher.start(&[]);
            watchers.push(watcher);
        }
        let direct = Direct::start(&cluster);
        Some(Quorum {
            seed,
            random: Random(seed),
            cluster,
            relays,
            relay_links,
            proxy_links,
            kingpost,
            watchers,
            operator,
            _etcd: etcd,
            direct,
            primary: 0,
            failovers: 0,
            others: 0,
            resets: 0,
            faults: Vec::new(),
        })
    }

    pub(super) fn clients(&self, count: usize) -> Clients {
        Clients::start(self.kingpost.endpoint(), count)
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random.draw(below as u64) as usize
    }

    async fn while_faulty(&mut self, most_ms: usize) {
        let ms = self.draw(most_ms) as u64;
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        eprintln!("quorum {:>4} {text}", self.faults.len());
        self.faults.push(text);
    }

    fn relay(&self, index: usize) -> &Relay {
        &self.relays[index]
    }

    /// Makes one or two faults, and repairs everything.
    pub(super) async fn fault(&mut self) {
        let (old, relay, watcher) = (self.primary, self.draw(RELAYS), self.draw(WATCHERS));
        match self.draw(16) {
            0 | 1 => {
                self.note(format!("kill -9 of the primary n{old}"));
                self.primary().kill9().await;
                self.another().await;
            }
            2 => {
                self.note(format!("the primary n{old} is frozen, and wakes up later"));
                self.primary().sigstop();
                self.another().await;
            }
            3 | 4 => {
                self.note(format!(
                    "the primary n{old} is cut off from all but those who write on it directly, in silence"
                ));
                self.cut_off(old, Link::BlackHole);
                self.another().await;
            }
            5 => {
                self.note(format!("the primary n{old} is cut off from all but those who write on it directly"));
                self.cut_off(old, Link::Cut);
                self.another().await;
            }
            6 => {
                self.note(format!("kill -9 of relay r{relay} and the primary n{old}"));
                self.relay(relay).kill9().await;
                self.while_faulty(300).await;
                self.primary().kill9().await;
                self.another().await;
            }
            7 => {
                self.note(format!("relay r{relay} is frozen, and the primary n{old} killed"));
                self.relay(relay).process().signal(libc::SIGSTOP);
                self.while_faulty(300).await;
                self.primary().kill9().await;
                self.another().await;
            }
            8 => {
                self.note(format!("relay r{relay} loses its directory, and the primary n{old} is killed"));
                self.relay(relay).kill9().await;
                self.relays[relay].lose_directory();
                self.primary().kill9().await;
                self.relays[relay].launch();
                self.another().await;
            }
            9 => {
                self.note(format!("relay r{relay} loses its directory"));
                self.relay(relay).kill9().await;
                self.relays[relay].lose_directory();
                self.relays[relay].launch();
                self.others += 1;
            }
            10 | 11 => {
                let steps = ["locked", "fenced", "noted", "caught-up", "elected", "promoting", "promoted"];
                let step = steps[self.draw(steps.len())];
                self.note(format!("kill -9 of the primary n{old}; watcher w{watcher} dies if it gets to {step}"));
                // It starts its failover sooner than the other one.
                self.watchers[watcher].start(&["--after", "300ms", "--die-at", step]);
                self.until_watching(watcher).await;
                self.primary().kill9().await;
                self.another().await;
            }
            12 => {
                self.note(format!("kill -9 of the primary n{old}, and watcher w{watcher} stands still for a while"));
                self.primary().kill9().await;
                self.while_faulty(2500).await;
                self.watchers[watcher].signal(libc::SIGSTOP);
                self.another().await;
            }
            13 => self.switch_over(None).await,
            14 => {
                let step = STEPS[self.draw(STEPS.len())];
                self.switch_over(Some(step)).await;
            }
            _ => self.cut_paths().await,
        }
        self.settle().await;
    }

    /// Sets the link between a server and all but its direct clients.
    fn cut_off(&self, node: usize, link: Link) {
        self.proxy_links[node].set(link);
        for links in &self.relay_links {
            links[node].set(link);
        }
        for watcher in &self.watchers {
            watcher.links[node].set(link);
        }
    }

    /// Cuts some paths, each by itself, for a while in which the watchers may or may not act.
    async fn cut_paths(&mut self) {
        let mut text = Vec::new();
        for _ in 0..=self.draw(3) {
            let kind = [Link::Cut, Link::BlackHole, Link::Slow(Duration::from_millis(15))][self.draw(3)];
            let node = self.draw(self.cluster.nodes().len());
            let (from, link) = match self.draw(4) {
                0 => ("the proxy".to_owned(), &self.proxy_links[node]),
                1 => {
                    let relay = self.draw(RELAYS);
                    (format!("r{relay}"), &self.relay_links[relay][node])
                }
                _ => {
                    let (watcher, path) = (self.draw(WATCHERS), self.draw(self.cluster.nodes().len() + RELAYS));
                    (format!("w{watcher}, path {path}"), &self.watchers[watcher].links[path])
                }
            };
            link.set(kind);
            text.push(format!("{kind:?} from {from} to n{node}"));
        }
        self.note(text.join(", "));
        self.while_faulty(4000).await;
        self.others += 1;
    }

    async fn switch_over(&mut self, dies_at: Option<&str>) {
        let others: Vec<usize> = (0..self.cluster.nodes().len()).filter(|index| *index != self.primary).collect();
        let to = others[self.draw(others.len())];
        self.note(format!("switchover from n{} to n{to}, {}", self.primary, dies_at.unwrap_or("whole")));
        let name = format!("n{to}");
        let mut arguments = vec!["switchover", "--to", &name];
        arguments.extend(dies_at.iter().flat_map(|step| ["--die-at", *step]));
        let ran = self.operator.run(&arguments).await;
        // A run that was to be killed at a step that it did not reach has succeeded.
        assert!(dies_at.is_some() || ran.code == Some(0), "seed {}: {}", self.seed, ran.text);
    }

    async fn until_watching(&self, watcher: usize) {
        let Some((_, log)) = &self.watchers[watcher].process else { panic!("it was started") };
        let said = async || std::fs::read_to_string(log).unwrap_or_default().contains("is the primary").then_some(());
        wait_until("a watcher to see the primary", MENDED, self.dir(), said).await;
    }

    /// Waits until the watchers have promoted another server.
    async fn another(&self) {
        let old = self.primary;
        let promoted = async || {
            for (index, node) in self.cluster.nodes().iter().enumerate() {
                if index != old && is_writable(node).await == Some(true) {
                    return Some(());
                }
            }
            None
        };
        wait_until(&format!("another primary after {}", self.last()), MENDED, self.dir(), promoted).await;
    }

    /// Undoes every fault, waits for self-healing, and does an operator's work by the runbooks: the old primary is made a standby, a relay that
    /// cannot follow is begun anew.
    async fn settle(&mut self) {
        for node in self.cluster.nodes() {
            node.sigcont();
        }
        for relay in &self.relays {
            relay.process().signal(libc::SIGCONT);
        }
        let links = self.relay_links.iter().flatten().chain(&self.proxy_links);
        links.chain(self.watchers.iter().flat_map(|watcher| &watcher.links)).for_each(|link| link.set(Link::Up));
        for relay in &mut self.relays {
            if relay.process().exit_status().is_some() {
                relay.launch();
            }
        }
        for watcher in &mut self.watchers {
            watcher.signal(libc::SIGCONT);
            if !watcher.is_running() {
                watcher.start(&[]);
            }
        }
        let began = Instant::now();
        let mut acted = began;
        loop {
            self.mend_relays().await;
            let ran = self.operator.run(&["status"]).await;
            let well = ran.text.lines().last().and_then(|last| last.strip_suffix(" is the primary"));
            if let (Some(0), Some(name)) = (ran.code, well) {
                let index = self.cluster.nodes().iter().position(|node| node.name() == name).expect("a node");
                self.failovers += u64::from(index != self.primary);
                self.primary = index;
                if self.mend_servers().await {
                    break;
                }
            }
            assert!(
                began.elapsed() < MENDED,
                "seed {}: not well {MENDED:?} after {}:\n{}\n{}",
                self.seed,
                self.last(),
                ran.text,
                tails(self.dir())
            );
            if acted.elapsed() > OPERATOR {
                acted = Instant::now();
                let ran = self.operator.run(&["failover"]).await;
                eprintln!("the operator ran `kingpost failover`: {:?}", ran.text.lines().last());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        self.kingpost.wait_readyz(200).await;
        for index in 0..WATCHERS {
            // A watcher that was to die and did not is replaced.
            let (process, _) = self.watchers[index].process.as_ref().expect("it was started");
            if process.exit_status().is_some() {
                self.watchers[index].start(&[]);
            }
            self.until_watching(index).await;
        }
    }

    /// A relay with WAL that the new primary lacks, or with a gap, reports what to do; the operator does it.
    async fn mend_relays(&mut self) {
        for index in 0..RELAYS {
            let relay = &mut self.relays[index];
            let Some((503, text)) = relay.http("/readyz").await else { continue };
            if !text.contains("kingpost relay reset") {
                continue;
            }
            relay.stop().await;
            let reset =
                Command::new(kingpost_bin()).args(["relay", "reset", "--dir"]).arg(relay.dir()).output().unwrap();
            assert!(reset.status.success(), "{reset:?}");
            relay.launch();
            self.resets += 1;
        }
    }

    /// Makes every server but the primary a receiving standby: one that is not is rewound. True: all relays and standbys receive.
    async fn mend_servers(&mut self) -> bool {
        let nodes = self.cluster.nodes();
        for (index, node) in nodes.iter().enumerate() {
            if index == self.primary {
                continue;
            }
            // A former primary, also one that a switchover has locked; or a stopped server.
            if !node.is_running() || is_writable(node).await != Some(false) {
                self.make_standby(node).await;
            } else if !receives(node).await {
                let relay = self.relays[index % RELAYS].port();
                node.follow_port(relay);
                let began = Instant::now();
                while !receives(node).await {
                    if began.elapsed() > Duration::from_secs(10) {
                        self.make_standby(node).await;
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        for relay in &self.relays {
            if relay.http("/readyz").await.is_none_or(|(status, _)| status != 200) {
                return false;
            }
        }
        for (index, node) in nodes.iter().enumerate() {
            if index != self.primary && !receives(node).await {
                return false;
            }
        }
        true
    }

    async fn make_standby(&self, node: &Node) {
        if node.is_running() {
            node.kill9().await;
        }
        node.rejoin(self.primary()).await;
        node.follow_port(self.relays[0].port());
    }

    /// Returns the number of directly acknowledged rows, and those that are missing: server and number.
    pub(super) async fn lost_directly(&self) -> (usize, Vec<(usize, i64)>) {
        let told = self.direct.acknowledged.lock().unwrap().clone();
        let rows = self.primary().admin().await.query("SELECT node, n FROM direct", &[]).await.unwrap();
        let there: std::collections::HashSet<(usize, i64)> =
            rows.iter().map(|row| (row.get::<_, i32>(0) as usize, row.get(1))).collect();
        let lost = told.iter().filter(|row| !there.contains(row)).copied().collect();
        (told.len(), lost)
    }
}

/// True if a server takes writes, as seen by an operator whom no lock keeps out; None: it does not answer within a moment.
async fn is_writable(node: &Node) -> Option<bool> {
    let mut config = node.admin_config();
    config.options("-c session_preload_libraries=");
    let asked = async {
        let client = node.endpoint().try_connect(&config).await.ok()?;
        let row = client.query_one("SELECT NOT pg_is_in_recovery()", &[]).await.ok()?;
        Some(row.get(0))
    };
    tokio::time::timeout(Duration::from_secs(5), asked).await.ok().flatten()
}

async fn receives(node: &Node) -> bool {
    let asked = async {
        let client = node.endpoint().try_connect(&node.admin_config()).await.ok()?;
        let sql = "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')";
        Some(client.query_one(sql, &[]).await.ok()?.get(0))
    };
    tokio::time::timeout(Duration::from_secs(5), asked).await.ok().flatten() == Some(true)
}
