//! A fleet whose servers have agents: three servers and agents, three relays of which a commit waits for two, a watcher with a lock in a registry, a
//! proxy. One part or two at a time are killed, frozen or cut off; nobody repairs a server by hand.
//!
//! ```text
//!  clients ─▶ proxy ─▶ n0 n1 n2 ◀─ relays r0 r1 r2      clients ─▶ n0 n1 n2, asynchronously
//!                      ▲        ▲     ▲
//!                      agents a0 a1 a2 (each reaches each server and relay by a path of its own; a watchdog each)
//! ```
//!
//! Some clients commit asynchronously on every server that lets them. Their rows may be lost, but never is one acknowledged on a timeline after a later
//! timeline has acknowledged one.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kingpost_tests::{
    Cluster, Cut, DATABASE, Endpoint, Failover, Kingpost, Link, Process, RegistryNode, Relay, SOON, USER, kingpost_bin,
    signal, wait_until,
};
use tokio::io::AsyncReadExt;
use tokio_postgres::{Client, Config, NoTls};
use toml::{Table, Value};

use super::history::Clients;
use super::random::Random;
use super::scene::Scene;
use crate::node::{Agent, STREAMS, part};

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const RELAYS: usize = 3;
const ACKNOWLEDGEMENTS: usize = 2;
/// Lease of agents and promotions: the shortest that is useful.
const LEASE: &str = "10s";
/// Time without a byte after which the stand-in for a watchdog resets the host.
const WATCHDOG: Duration = Duration::from_secs(4);
/// Time without a word from the primary after which a relay no longer hears it.
const SILENCE: &str = "5s";
/// Least time of a long fault: a primary that is silent for so long is replaced, after [`SILENCE`] and [`LEASE`].
const LONG: Duration = Duration::from_secs(22);
/// Longest time until the fleet is whole after the repair of hosts, processes and paths.
const WHOLE: Duration = Duration::from_secs(180);
/// Longest time for one question to a server.
const ASK: Duration = Duration::from_secs(3);

/// A part of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Agent(usize),
    Server(usize),
    Relay(usize),
    Registry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Killed,
    Frozen,
    CutOff,
}

/// An asynchronous commit.
#[derive(Debug, Clone)]
pub(super) struct Write {
    sent: Instant,
    acknowledged: Instant,
    timeline: u32,
    node: usize,
}

/// Clients that commit asynchronously on each server, and the stand-ins for watchdogs.
pub(super) struct Beside {
    pub(super) writes: Arc<Mutex<Vec<Write>>>,
    stop: Arc<AtomicBool>,
    resets: Arc<AtomicU32>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Beside {
    pub(super) fn new() -> Beside {
        Beside { writes: Arc::default(), stop: Arc::default(), resets: Arc::default() }
    }

    /// Starts a client on a server.
    pub(super) fn write_on(&self, node: usize, login: Config) {
        let (writes, stop) = (self.writes.clone(), self.stop.clone());
        tokio::spawn(async move {
            let mut client = None;
            while !stop.load(Ordering::Relaxed) {
                // Not needed by the test: it leaves time for the rest of the machine.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let Some(connected) = &client else {
                    client = session(&login).await;
                    continue;
                };
                let sent = Instant::now();
                match asynchronous(connected).await {
                    Some(timeline) => {
                        writes.lock().unwrap().push(Write { sent, acknowledged: Instant::now(), timeline, node });
                    }
                    None => client = None,
                }
            }
        });
    }

    /// Serves a pipe as a watchdog of an agent: without a byte for a while, unless it was disarmed, agent and server are killed.
    fn watch(&self, pipe: &Path, agent: Arc<AtomicU32>, data: std::path::PathBuf) {
        let mut bytes = tokio::net::unix::pipe::OpenOptions::new().read_write(true).open_receiver(pipe).unwrap();
        let (stop, resets) = (self.stop.clone(), self.resets.clone());
        tokio::spawn(async move {
            let (mut armed, mut buffer) = (false, [0; 64]);
            while !stop.load(Ordering::Relaxed) {
                match tokio::time::timeout(WATCHDOG, bytes.read(&mut buffer)).await {
                    Ok(Ok(count)) if count > 0 => armed = buffer[count - 1] != b'V',
                    Ok(_) => return,
                    Err(_) if armed => {
                        armed = false;
                        resets.fetch_add(1, Ordering::Relaxed);
                        signal(agent.load(Ordering::Relaxed), libc::SIGKILL);
                        signal_all(&data, libc::SIGKILL);
                    }
                    Err(_) => {}
                }
            }
        });
    }

    /// Returns a write that was sent after one of a later timeline had been acknowledged.
    pub(super) fn second_primary(&self) -> Option<(Write, Write)> {
        let mut writes = self.writes.lock().unwrap().clone();
        writes.sort_by_key(|write| write.acknowledged);
        let first_of = |timeline| writes.iter().find(|write| write.timeline == timeline);
        let mut timelines: Vec<u32> = writes.iter().map(|write| write.timeline).collect();
        timelines.sort_unstable();
        timelines.dedup();
        timelines.iter().filter_map(|timeline| first_of(*timeline)).find_map(|first| {
            let late =
                writes.iter().find(|write| write.timeline < first.timeline && write.sent > first.acknowledged)?;
            Some((first.clone(), late.clone()))
        })
    }
}

fn login(endpoint: &Endpoint) -> Config {
    let mut config = endpoint.config();
    config.user("postgres").application_name("beside");
    config
}

async fn superuser(endpoint: &Endpoint) -> Option<Client> {
    session(&login(endpoint)).await
}

pub(super) async fn session(login: &Config) -> Option<Client> {
    let (client, connection) = tokio::time::timeout(ASK, login.connect(NoTls)).await.ok()?.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// Commits a row that waits for no relay; returns its timeline.
async fn asynchronous(client: &Client) -> Option<u32> {
    let sql = "SET synchronous_commit = local; INSERT INTO beside VALUES (1); SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)";
    let answer = tokio::time::timeout(Duration::from_secs(60), client.simple_query(sql)).await.ok()?.ok()?;
    answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => u32::from_str_radix(row.get(0)?, 16).ok(),
        _ => None,
    })
}

/// Returns the processes that work in a data directory: a server and its children.
fn processes(data: &Path) -> Vec<u32> {
    let Ok(data) = data.canonicalize() else { return Vec::new() };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data)).collect()
}

/// Signals a server and its children.
fn signal_all(data: &Path, number: i32) {
    for pid in processes(data) {
        signal(pid, number);
    }
}

/// The fleet; see the module.
pub(super) struct Agents {
    pub(super) seed: u64,
    random: Random,
    pub(super) cluster: Cluster,
    agents: Vec<Agent>,
    pids: Vec<Arc<AtomicU32>>,
    relays: Vec<Relay>,
    registry: RegistryNode,
    watcher: Failover,
    watching: Option<Process>,
    kingpost: Kingpost,
    /// Paths of each agent: to the servers, then to the relays. That to its own server is not used.
    agent_links: Vec<Vec<Cut>>,
    /// Paths of each relay to the servers.
    relay_links: Vec<Vec<Cut>>,
    proxy_links: Vec<Cut>,
    /// Paths of the watcher: to the servers, then to the relays.
    watcher_links: Vec<Cut>,
    beside: Beside,
    primary: usize,
    pub(super) failovers: u64,
    /// Number of faults in which the primary had to be replaced.
    pub(super) due: u64,
    pub(super) relays_reset: u64,
    pub(super) faults: Vec<String>,
}

impl Scene for Agents {
    fn dir(&self) -> &Path {
        self.cluster.dir()
    }

    async fn admin(&self) -> Client {
        let endpoint = self.endpoint(self.primary);
        wait_until("the primary", SOON, self.dir(), async || superuser(&endpoint).await).await
    }

    fn last(&self) -> &str {
        self.faults.last().map_or("the start", String::as_str)
    }

    fn has_barriers(&self) -> bool {
        // As with PostgreSQL's own synchronous replication, which this is.
        false
    }
}

fn port(link: &Cut) -> String {
    format!("127.0.0.1:{}", link.port())
}

fn parts<'a>(names: impl Iterator<Item = &'a str>, addresses: impl Iterator<Item = String>) -> Vec<Value> {
    names.zip(addresses).map(|(name, address)| part(name, address)).collect()
}

impl Agents {
    /// Starts the fleet.
    pub(super) async fn start(seed: u64) -> Agents {
        let cluster = Cluster::builder().replicas(0).start().await;
        let registry = RegistryNode::start("").await;
        let mut agents: Vec<Agent> = NODES.map(Agent::new).into();
        let to_servers = |agents: &[Agent]| agents.iter().map(|agent| Cut::to(agent.port.number())).collect::<Vec<_>>();
        let servers = |links: &[Cut]| parts(NODES.into_iter(), links.iter().map(port));

        let relay_links: Vec<Vec<Cut>> = (0..RELAYS).map(|_| to_servers(&agents)).collect();
        let mut relays: Vec<Relay> = Vec::new();
        for links in &relay_links {
            let relay = Relay::watching(&cluster, &[]).set("relay.upstream.timeout", SILENCE);
            relays.push(relay.set("cluster.nodes", servers(links)));
        }
        let direct = |relays: &[Relay]| {
            relays.iter().map(|relay| part(relay.name(), format!("127.0.0.1:{}", relay.port()))).collect::<Vec<_>>()
        };
        let all = direct(&relays);
        let mut relays: Vec<Relay> = relays
            .into_iter()
            .map(|relay| {
                relay.set("failover.relays", all.clone()).set("failover.acknowledgements", ACKNOWLEDGEMENTS as i64)
            })
            .collect();
        let to_relays = |relays: &[Relay]| relays.iter().map(|relay| Cut::to(relay.port())).collect::<Vec<_>>();
        let names: Vec<String> = relays.iter().map(|relay| relay.name().to_owned()).collect();
        let named = |links: &[Cut]| parts(names.iter().map(String::as_str), links.iter().map(port));

        let beside = Beside::new();
        let (mut agent_links, mut pids) = (Vec::new(), Vec::new());
        for own in 0..NODES.len() {
            let (links, relay_paths) = (to_servers(&agents), to_relays(&relays));
            let mut nodes = servers(&links);
            nodes[own] = part(NODES[own], agents[own].address());
            let section =
                |key: &str, value: Vec<Value>| Value::Table(Table::from_iter([(key.to_owned(), value.into())]));
            let config = Table::from_iter([
                ("cluster".to_owned(), section("nodes", nodes)),
                ("failover".to_owned(), section("relays", named(&relay_paths))),
            ]);
            let path = cluster.dir().join(format!("{}.toml", NODES[own]));
            std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
            let pipe = agents[own].dir.join("watchdog");
            assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            let pid = Arc::new(AtomicU32::new(0));
            beside.watch(&pipe, pid.clone(), agents[own].directory().join("data"));
            let agent = &mut agents[own];
            agent.config = Some(path);
            agent.environment.push(("KINGPOST__NODE__LEASE", LEASE.into()));
            agent.environment.push(("KINGPOST__NODE__WATCHDOG", pipe.display().to_string()));
            pids.push(pid);
            agent_links.push(links.into_iter().chain(relay_paths).collect());
        }
        let launch = |agent: &mut Agent, pid: &AtomicU32, arguments: &[&str]| {
            agent.launch(arguments);
            pid.store(agent.process().pid(), Ordering::Relaxed);
        };
        launch(&mut agents[0], &pids[0], &["--init"]);
        agents[0].wait_value("SELECT pg_is_in_recovery()", "f").await;
        // The servers that they would ask for earlier promises are not there yet.
        for relay in &mut relays {
            relay.is_new(true);
            relay.launch();
            relay.is_new(false);
        }
        for relay in &relays {
            relay.wait_receiving().await;
        }
        agents[0].execute(&format!("CREATE ROLE {USER} LOGIN")).await;
        agents[0].execute(&format!("CREATE DATABASE {DATABASE} OWNER {USER}")).await;
        let endpoint = Endpoint::new(agents[0].port.number(), cluster.dir());
        let admin = superuser(&endpoint).await.unwrap();
        let tables = "CREATE TABLE log (w int, n bigint); CREATE INDEX ON log (w, n); GRANT ALL ON log TO PUBLIC; CREATE TABLE beside (n int)";
        admin.batch_execute(tables).await.unwrap();
        let quorum =
            format!("ALTER SYSTEM SET synchronous_standby_names = 'ANY {ACKNOWLEDGEMENTS} ({})'", names.join(", "));
        agents[0].execute(&quorum).await;
        agents[0].execute("SELECT pg_reload_conf()").await;
        agents[0].wait_value("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'", "3").await;
        for own in 1..NODES.len() {
            launch(&mut agents[own], &pids[own], &["--join"]);
        }
        for agent in &agents[1..] {
            agent.wait_value(STREAMS, "streaming").await;
        }

        let proxy_links = to_servers(&agents);
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.pool.no_primary_timeout", "60s")
            .set("cluster.nodes", servers(&proxy_links))
            .start()
            .await;
        let (mut watcher_links, relay_paths) = (to_servers(&agents), to_relays(&relays));
        let refs: Vec<&Relay> = relays.iter().collect();
        let watcher = Failover::of(&cluster, &refs)
            .set("cluster.nodes", servers(&watcher_links))
            .set("failover.relays", named(&relay_paths))
            .set("failover.acknowledgements", ACKNOWLEDGEMENTS as i64)
            .set("failover.lease", LEASE)
            .set("failover.rejoined_by", "kingpost node")
            .proxy(&kingpost);
        watcher_links.extend(relay_paths);
        for (node, agent) in agents.iter().enumerate() {
            beside.write_on(node, login(&Endpoint::new(agent.port.number(), cluster.dir())));
        }
        let mut fleet = Agents {
            seed,
            random: Random(seed),
            cluster,
            agents,
            pids,
            relays,
            registry,
            watcher,
            watching: None,
            kingpost,
            agent_links,
            relay_links,
            proxy_links,
            watcher_links,
            beside,
            primary: 0,
            failovers: 0,
            due: 0,
            relays_reset: 0,
            faults: Vec::new(),
        };
        fleet.watch().await;
        fleet.whole().await;
        fleet
    }

    /// Starts the watcher, and waits until it knows the primary.
    async fn watch(&mut self) {
        let (process, log) = self.watcher.start(&["watch", "--registry", &self.registry.url()]);
        let says = async || std::fs::read_to_string(&log).ok()?.contains("is the primary").then_some(());
        wait_until("the watcher", SOON, self.cluster.dir(), says).await;
        self.watching = Some(process);
    }

    pub(super) fn clients(&self, count: usize) -> Clients {
        Clients::start(self.kingpost.endpoint(), count)
    }

    fn endpoint(&self, node: usize) -> Endpoint {
        Endpoint::new(self.agents[node].port.number(), self.cluster.dir())
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random.draw(below as u64) as usize
    }

    /// Draws a part: mostly those of the primary.
    fn draw_part(&mut self) -> Part {
        let node = if self.draw(3) == 0 { self.draw(NODES.len()) } else { self.primary };
        match self.draw(8) {
            0..=2 => Part::Server(node),
            3..=4 => Part::Agent(node),
            5..=6 => Part::Relay(self.draw(RELAYS)),
            _ => Part::Registry,
        }
    }

    /// Draws one fault or two.
    pub(super) async fn random_fault(&mut self, clients: &Clients) {
        let mut faults = Vec::new();
        for _ in 0..=self.draw(2) {
            let part = self.draw_part();
            let harm = [Harm::Killed, Harm::Frozen, Harm::CutOff][self.draw(3)];
            if faults.iter().all(|(other, _)| *other != part) {
                faults.push((part, harm));
            }
        }
        // Half of them last longer than a promotion takes with its lease.
        let (least, range) = [(Duration::from_millis(500), 8_000), (LONG, 10_000)][self.draw(2)];
        let dwell = least + Duration::from_millis(self.draw(range) as u64);
        self.fault(&faults, dwell, clients).await;
    }

    /// Makes faults, waits, repairs processes and paths, and waits until the agents have repaired the rest.
    async fn fault(&mut self, faults: &[(Part, Harm)], dwell: Duration, clients: &Clients) {
        let old = self.primary;
        self.faults.push(format!("{faults:?} for {dwell:?}, the primary was n{old}"));
        eprintln!("agents {:>3} {}", self.faults.len(), self.last());
        let standstill = clients.standstill();
        let silences = |(part, harm): &(Part, Harm)| *part == Part::Server(old) && *harm != Harm::Killed;
        let locks = faults.iter().all(|(part, _)| *part != Part::Registry);
        self.due += u64::from(dwell >= LONG && locks && faults.iter().any(silences));
        for (part, harm) in faults {
            self.harm(*part, *harm).await;
        }
        tokio::time::sleep(dwell).await;
        self.repair().await;
        let repaired = Instant::now();
        self.whole().await;
        self.failovers += u64::from(self.primary != old);
        let whole = repaired.elapsed();
        clients.progress(self, 30).await;
        eprintln!(
            "agents     n{} is the primary; {:.1} s without commits; whole {:.1} s after the repair; {} hosts reset so far",
            self.primary,
            standstill.longest().as_secs_f32(),
            whole.as_secs_f32(),
            self.beside.resets.load(Ordering::Relaxed)
        );
    }

    async fn harm(&mut self, part: Part, harm: Harm) {
        match (part, harm) {
            (Part::Agent(node), Harm::Killed) => self.agents[node].process().signal(libc::SIGKILL),
            (Part::Agent(node), Harm::Frozen) => self.agents[node].process().signal(libc::SIGSTOP),
            (Part::Agent(node), Harm::CutOff) => {
                self.agent_links[node].iter().for_each(|link| link.set(Link::BlackHole))
            }
            (Part::Server(node), Harm::Killed) => self.agents[node].kill_server(),
            (Part::Server(node), Harm::Frozen) => {
                let data = self.agents[node].directory().join("data");
                signal_all(&data, libc::SIGSTOP);
            }
            (Part::Server(node), Harm::CutOff) => {
                let agents = self.agent_links.iter().map(|links| &links[node]);
                let relays = self.relay_links.iter().map(|links| &links[node]);
                let others = [&self.proxy_links[node], &self.watcher_links[node]];
                agents.chain(relays).chain(others).for_each(|link| link.set(Link::BlackHole));
            }
            (Part::Relay(relay), Harm::Killed) => self.relays[relay].kill9().await,
            (Part::Relay(relay), Harm::Frozen) => self.relays[relay].process().signal(libc::SIGSTOP),
            (Part::Relay(relay), Harm::CutOff) => {
                let agents = self.agent_links.iter().map(|links| &links[NODES.len() + relay]);
                let all = agents.chain(&self.relay_links[relay]).chain([&self.watcher_links[NODES.len() + relay]]);
                all.for_each(|link| link.set(Link::BlackHole));
            }
            (Part::Registry, Harm::Killed) => self.registry.end(libc::SIGKILL).await,
            (Part::Registry, _) => self.registry.process().signal(libc::SIGSTOP),
        }
    }

    /// Mends paths, wakes what is frozen, and starts the processes that a service manager would. Servers are left to their agents.
    async fn repair(&mut self) {
        let links = self.agent_links.iter().chain(&self.relay_links).flatten();
        links.chain(&self.proxy_links).chain(&self.watcher_links).for_each(|link| link.set(Link::Up));
        for (agent, pid) in self.agents.iter_mut().zip(&self.pids) {
            signal_all(&agent.directory().join("data"), libc::SIGCONT);
            agent.process().signal(libc::SIGCONT);
            if agent.process().exit_status().is_some() {
                agent.launch(&[]);
                pid.store(agent.process().pid(), Ordering::Relaxed);
            }
        }
        for relay in &mut self.relays {
            relay.process().signal(libc::SIGCONT);
            if relay.process().exit_status().is_some() {
                relay.launch();
            }
        }
        if self.registry.process().exit_status().is_some() {
            self.registry.start_again().await;
        }
        self.registry.process().signal(libc::SIGCONT);
        let ended = self.watching.as_ref().and_then(Process::exit_status);
        assert!(ended.is_none(), "seed {}: the watcher has ended: {ended:?}\n{}", self.seed, self.faults.join("\n"));
    }

    /// Waits until one server is primary, the others stream from it, and all relays receive.
    async fn whole(&mut self) {
        let began = Instant::now();
        loop {
            self.mend();
            if let Some(primary) = self.is_whole().await {
                self.primary = primary;
                return;
            }
            if began.elapsed() > WHOLE {
                let logs: Vec<String> = self
                    .agents
                    .iter()
                    .map(|agent| format!("{}:\n{}", agent.name, end_of(&agent.whole_log())))
                    .collect();
                panic!(
                    "seed {}: the fleet is not whole after\n{}\n{}",
                    self.seed,
                    self.faults.join("\n"),
                    logs.join("\n")
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn is_whole(&mut self) -> Option<usize> {
        let mut primary = None;
        for node in 0..NODES.len() {
            let agent = &self.agents[node];
            let ask = async |sql: &str| tokio::time::timeout(ASK, agent.query(sql)).await.ok()?.ok();
            match ask("SELECT pg_is_in_recovery()").await?.as_str() {
                "f" if primary.is_none() => primary = Some(node),
                "f" => return None,
                _ => drop(ask(STREAMS).await.filter(|status| status == "streaming")?),
            }
        }
        for index in 0..RELAYS {
            let (status, text) = self.relays[index].http("/readyz").await?;
            if status == 503 && text.contains("kingpost relay reset") {
                // WAL that the new primary lacks: an operator's work, as the relay says.
                let relay = &mut self.relays[index];
                relay.stop().await;
                let reset =
                    Command::new(kingpost_bin()).args(["relay", "reset", "--dir"]).arg(relay.dir()).output().unwrap();
                assert!(reset.status.success(), "{reset:?}");
                relay.launch();
                self.relays_reset += 1;
            }
            if status != 200 {
                return None;
            }
        }
        primary
    }

    /// Starts agents again whose host the watchdog has reset meanwhile.
    fn mend(&mut self) {
        for (agent, pid) in self.agents.iter_mut().zip(&self.pids) {
            if agent.process().exit_status().is_some() {
                agent.launch(&[]);
                pid.store(agent.process().pid(), Ordering::Relaxed);
            }
        }
    }

    /// Panics if two servers took writes; returns the number of asynchronous commits.
    pub(super) fn assert_one_primary(&self) -> usize {
        if let Some((first, late)) = self.beside.second_primary() {
            panic!(
                "seed {}: n{} took a write on timeline {} {:?} after n{} had acknowledged one on timeline {}\n{}",
                self.seed,
                late.node,
                late.timeline,
                late.sent - first.acknowledged,
                first.node,
                first.timeline,
                self.faults.join("\n")
            );
        }
        self.beside.writes.lock().unwrap().len()
    }
}

fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
