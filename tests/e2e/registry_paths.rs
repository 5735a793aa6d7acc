//! Several registry nodes on one store, and a forwarder in each path: node to store, node to node in each direction, client to node. One path
//! at a time is cut, by closing or by silence, while instances register, send heartbeats and are looked for at every node.
//!
//! Invariants: an instance that is registered and still sends heartbeats is not critical at any node, is known to the node that takes the heartbeat,
//! and is not missing at a node that has shown it before. And soon every node that reaches the store shows all registered instances; a node that does
//! not, once its path is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use kingpost_tests::{Cluster, Cut, Link, Port, RegistryNode, SOON, ShowLogs, wait_until};
use serde_json::{Value, json};

use crate::common::only_kingpost;

const SERVICE: &str = "/v1/namespaces/default/services/paths/instances";
const BEATS: &str = "/v1/namespaces/default/heartbeats";
const NODES: usize = 3;
/// Instances registered before the first path is cut; each round registers some more.
const FIRST: usize = 12;
const MORE: usize = 3;
const TTL: Duration = Duration::from_secs(2);
const DEREGISTER_AFTER: Duration = Duration::from_secs(2);
/// Time without an answer after which a client asks another node.
const CLIENT: Duration = Duration::from_millis(300);
/// Time after an interruption of its own heartbeats in which an instance may be critical.
const RECOVERY: Duration = Duration::from_secs(10);

/// A path between two of the world's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// From a node to the store.
    Store(usize),
    /// From the first node to the second: the first one's queries and reports of its commits.
    Peer(usize, usize),
    /// Between two nodes, in both directions.
    Peers(usize, usize),
    /// From all clients to a node.
    Client(usize),
}

/// One node, and the forwarders in front of it.
struct Place {
    node: RegistryNode,
    /// From the node to the store.
    store: Cut,
    /// From the other nodes to this one.
    peers: Cut,
    /// From clients to the node.
    clients: Cut,
    /// The port that the other nodes' forwarder leads to.
    _peer_port: Port,
}

struct World {
    cluster: Cluster,
    places: Vec<Place>,
    /// Number of registered instances; instance n sends heartbeats first to node n modulo [`NODES`].
    registered: AtomicUsize,
    /// Record of the heartbeats of each instance, on the clients' side.
    beats: Mutex<BTreeMap<usize, Beats>>,
    /// Instances that each node has shown.
    shown: Vec<Mutex<BTreeSet<usize>>>,
    wrong: Mutex<Vec<String>>,
    looks: AtomicUsize,
    stop: AtomicBool,
}

/// Record of the heartbeats of an instance. On a busy machine the clients themselves may not run for longer than a time to live: their instances are
/// then rightly critical.
#[derive(Default)]
struct Beats {
    /// Time at which the last answered one was sent, a lower bound of its arrival.
    sent: Option<Instant>,
    /// Time of the last answered one that came more than a time to live after the one before.
    interrupted: Option<Instant>,
}

impl Beats {
    fn answered(&mut self, sent: Instant) {
        if self.sent.replace(sent).is_some_and(|before| before.elapsed() >= TTL) {
            self.interrupted = Some(Instant::now());
        }
    }

    fn are_steady(&self) -> bool {
        self.sent.is_some_and(|sent| sent.elapsed() < TTL) && self.interrupted.is_none_or(|at| at.elapsed() > RECOVERY)
    }
}

fn name(n: usize) -> String {
    format!("i{n:03}")
}

fn number(id: &Value) -> usize {
    id.as_str().and_then(|id| id.strip_prefix('i')?.parse().ok()).expect("an instance of this test")
}

impl World {
    async fn start() -> Arc<World> {
        let cluster = Cluster::builder().replicas(0).start().await;
        let mut places = Vec::new();
        for _ in 0..NODES {
            let store = Cut::to(cluster.primary().endpoint().port);
            let peer_port = Port::reserve();
            let peers = Cut::to_from_each(peer_port.number());
            let mut url = cluster.primary().endpoint();
            url.port = store.port();
            // Without the brake, which would hide wrong verdicts of the nodes.
            let more = format!(
                "peer_listen = \"127.0.0.1:{}\"\npeer_advertise = \"127.0.0.1:{}\"\n[registry.health.brake]\nservice_share = 1.0\nwhole_share = 1.0",
                peer_port.number(),
                peers.port()
            );
            let node = RegistryNode::start_on(Some(&url.url()), &more).await;
            let clients = Cut::to(node.port());
            places.push(Place { node, store, peers, clients, _peer_port: peer_port });
        }
        let world = Arc::new(World {
            cluster,
            places,
            registered: AtomicUsize::new(0),
            beats: Mutex::default(),
            shown: (0..NODES).map(|_| Mutex::default()).collect(),
            wrong: Mutex::default(),
            looks: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        for n in 0..NODES {
            world.wait_whole(n).await;
        }
        world
    }

    fn set(&self, path: Path, link: Link) {
        let pid = |n: usize| self.places[n].node.process().pid();
        match path {
            Path::Store(n) => self.places[n].store.set(link),
            Path::Peer(from, to) => self.places[to].peers.set_from(pid(from), link),
            Path::Peers(a, b) => {
                self.places[b].peers.set_from(pid(a), link);
                self.places[a].peers.set_from(pid(b), link);
            }
            Path::Client(n) => self.places[n].clients.set(link),
        }
    }

    /// Queries node `n`, or the next ones if it does not answer. Returns the answering node, and the answer.
    async fn ask(&self, n: usize, method: &str, path: &str, body: &str) -> Option<(usize, Value)> {
        let headers = [("Content-Type", "application/json")];
        for n in (n..n + NODES).map(|n| n % NODES) {
            let port = self.places[n].clients.port();
            let asked = RegistryNode::try_ask_at(port, method, path, &headers, body);
            if let Ok(Some(answer)) = tokio::time::timeout(CLIENT, asked).await
                && (200..300).contains(&answer.status)
            {
                return Some((n, answer.json()));
            }
        }
        None
    }

    /// Registers `count` more instances, each at a different node, and waits for the acknowledgements.
    async fn register(&self, count: usize) {
        for _ in 0..count {
            let n = self.registered.load(Ordering::Acquire);
            let seconds = |duration: Duration| format!("{}s", duration.as_secs());
            let check = json!({ "type": "ttl", "ttl": seconds(TTL), "deregister_after": seconds(DEREGISTER_AFTER) });
            let instance = json!({ "host": "h", "port": n, "check": check });
            let path = format!("{SERVICE}/{}", name(n));
            let acknowledged = async || self.ask(n, "PUT", &path, &instance.to_string()).await;
            wait_until("a registration", SOON, self.cluster.dir(), acknowledged).await;
            self.registered.store(n + 1, Ordering::Release);
        }
    }

    /// Sends the heartbeats of every third instance, first to node `part`.
    async fn beat(&self, part: usize) {
        while !self.stop.load(Ordering::Acquire) {
            let ours: Vec<usize> = (0..self.registered.load(Ordering::Acquire)).filter(|n| n % NODES == part).collect();
            let ids: Vec<String> = ours.iter().map(|n| name(*n)).collect();
            let sent = Instant::now();
            if let Some((node, answer)) = self.ask(part, "POST", BEATS, &json!({ "ids": ids }).to_string()).await {
                let unknown: BTreeSet<usize> = answer["unknown"].as_array().into_iter().flatten().map(number).collect();
                let mut beats = self.beats.lock().unwrap();
                for n in ours {
                    let beats = beats.entry(n).or_default();
                    if unknown.contains(&n) && (beats.sent.is_none() || beats.are_steady()) {
                        self.is_wrong(format!("node {node} does not know {}", name(n)));
                    }
                    beats.answered(sent);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn is_wrong(&self, what: String) {
        self.wrong.lock().unwrap().push(what);
    }

    /// Returns the instances that node `n` shows, by its own port: a cut path from clients to the node hides nothing.
    async fn shown(&self, n: usize) -> Option<BTreeMap<usize, String>> {
        let asked = self.places[n].node.try_ask("GET", SERVICE, &[], "");
        let answer = tokio::time::timeout(SOON, asked).await.ok().flatten()?;
        let answer = answer.json();
        let health = |instance: &Value| (number(&instance["id"]), instance["health"].as_str().unwrap().to_owned());
        Some(answer["instances"].as_array().into_iter().flatten().map(health).collect())
    }

    async fn look(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let n = self.looks.fetch_add(1, Ordering::AcqRel) % NODES;
            if let Some(shown) = self.shown(n).await {
                let beats = self.beats.lock().unwrap();
                let steady = |n: &usize| beats.get(n).is_some_and(Beats::are_steady);
                let mut before = self.shown[n].lock().unwrap();
                for gone in before.iter().filter(|id| !shown.contains_key(id)).filter(|id| steady(id)) {
                    self.is_wrong(format!("node {n} does not show {} any more", name(*gone)));
                }
                for (id, health) in shown.iter().filter(|(id, _)| steady(id)) {
                    if health == "critical" {
                        self.is_wrong(format!("by node {n} {} is critical", name(*id)));
                    }
                }
                *before = shown.into_keys().collect();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until node `n` shows all instances.
    async fn wait_shown(&self, n: usize) {
        let all = 0..self.registered.load(Ordering::Acquire);
        wait_until(&format!("everybody at node {n}"), SOON, self.places[n].node.dir(), async || {
            // A deregistered instance is never shown again: this message is better than a time-out.
            self.nothing_is_wrong("while everybody is waited for");
            let shown = self.shown(n).await?;
            all.clone().all(|n| shown.contains_key(&n)).then_some(())
        })
        .await;
    }

    /// Waits until a node is ready and reaches every other one.
    async fn wait_whole(&self, n: usize) {
        let node = &self.places[n].node;
        wait_until(&format!("node {n} to reach the store and the others"), SOON, node.dir(), async || {
            let reached = node.metrics().await.sum("kingpost_registry_peers_reached", &[]);
            (node.is_ready().await && reached == (NODES - 1) as f64).then_some(())
        })
        .await;
    }

    /// Waits until a cut path is noticed in the status of the node at its beginning.
    async fn wait_noticed(&self, path: Path) {
        let noticed = async || match path {
            Path::Store(n) => !self.places[n].node.is_ready().await,
            Path::Peer(from, _) | Path::Peers(from, _) => {
                let metrics = self.places[from].node.metrics().await;
                metrics.sum("kingpost_registry_peers_reached", &[]) < (NODES - 1) as f64
            }
            Path::Client(n) => {
                let headers = [];
                let asked = RegistryNode::try_ask_at(self.places[n].clients.port(), "GET", SERVICE, &headers, "");
                !matches!(tokio::time::timeout(CLIENT, asked).await, Ok(Some(_)))
            }
        };
        wait_until(&format!("{path:?} to be missed"), SOON, self.cluster.dir(), async || noticed().await.then_some(()))
            .await;
    }

    /// Waits until every lease has been judged so often that a wrongly missed instance would have been found critical, and deregistered: a lease is
    /// judged once a time to live, and then its judge asks the other nodes. That comes after a node that is silent in the store is considered lost (4
    /// s), and after two times to live and the time as a critical instance.
    ///
    /// Between two nodes it takes longer: after 15 s an unreachable node would not be waited for any more.
    async fn wait_judged(&self, path: Path) {
        let times = if matches!(path, Path::Peers(..)) { 12 } else { 5 };
        let asked = async || {
            let mut sum = 0.0;
            for place in &self.places {
                sum += place.node.metrics().await.sum("kingpost_registry_asked_total", &[]);
            }
            sum
        };
        let enough = asked().await + (times * self.registered.load(Ordering::Acquire)) as f64;
        let looks = self.looks.load(Ordering::Acquire) + 2 * NODES;
        wait_until("all leases to come up", 4 * SOON, self.cluster.dir(), async || {
            let looked = self.looks.load(Ordering::Acquire) >= looks;
            (looked && asked().await >= enough).then_some(())
        })
        .await;
    }

    fn nothing_is_wrong(&self, when: &str) {
        let wrong = self.wrong.lock().unwrap();
        let few: Vec<_> = wrong.iter().collect::<BTreeSet<_>>().into_iter().take(20).collect();
        assert!(wrong.is_empty(), "{when}: {} times: {few:#?}", wrong.len());
    }
}

/// Cuts each of `paths`, one after the other, for as long as a wrong verdict would take.
async fn cut(paths: &[(Path, Link)]) {
    if only_kingpost() {
        return;
    }
    let world = World::start().await;
    let dir = world.places[0].node.dir().to_owned();
    let _logs = ShowLogs(&dir);
    world.register(FIRST).await;
    let mut tasks = tokio::task::JoinSet::new();
    for part in 0..NODES {
        let world = Arc::clone(&world);
        tasks.spawn(async move { world.beat(part).await });
    }
    let looking = Arc::clone(&world);
    tasks.spawn(async move { looking.look().await });
    for n in 0..NODES {
        world.wait_shown(n).await;
    }
    for (path, link) in paths {
        world.set(*path, *link);
        world.wait_noticed(*path).await;
        world.register(MORE).await;
        let far = if let Path::Store(n) = path { Some(*n) } else { None };
        for n in (0..NODES).filter(|n| Some(*n) != far) {
            world.wait_shown(n).await;
        }
        world.wait_judged(*path).await;
        world.nothing_is_wrong(&format!("{path:?} {link:?}"));
        world.set(*path, Link::Up);
        for n in 0..NODES {
            world.wait_whole(n).await;
            world.wait_shown(n).await;
        }
        world.register(1).await;
        world.nothing_is_wrong(&format!("{path:?} whole again"));
    }
    // A silent instance is found, so the checks above could have failed.
    world.stop.store(true, Ordering::Release);
    wait_until("the end of all that are silent", SOON, &dir, async || {
        for n in 0..NODES {
            if !world.shown(n).await?.is_empty() {
                return None;
            }
        }
        Some(())
    })
    .await;
    tasks.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_to_the_store_may_be_cut_and_nobody_who_beats_is_judged_dead() {
    cut(&[(Path::Store(0), Link::BlackHole), (Path::Store(1), Link::Cut)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_between_nodes_or_from_clients_may_be_cut_and_nobody_who_beats_is_judged_dead() {
    cut(&[(Path::Peers(0, 1), Link::BlackHole), (Path::Peer(2, 0), Link::Cut), (Path::Client(1), Link::BlackHole)])
        .await;
}

/// Random paths, as many as `KINGPOST_TORTURE_FAILOVERS`; none without it (`make torture`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn torture_of_paths() {
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let Some(count) = number("KINGPOST_TORTURE_FAILOVERS") else { return };
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.as_secs());
    let mut seed = number("KINGPOST_TORTURE_SEED").unwrap_or_else(now);
    eprintln!("paths of the registry: KINGPOST_TORTURE_SEED={seed}, {count} cuts");
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((seed >> 33) % below).expect("a small number")
    };
    let mut paths = Vec::new();
    for _ in 0..count {
        let (a, b) = (draw(3), draw(2));
        let b = (a + 1 + b) % NODES;
        let path = [Path::Store(a), Path::Peer(a, b), Path::Peers(a, b), Path::Client(a)][draw(4)];
        paths.push((path, [Link::Cut, Link::BlackHole][draw(2)]));
    }
    cut(&paths).await;
}
