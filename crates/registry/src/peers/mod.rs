//! The other nodes on the same store.
//!
//! ```text
//!  store ◀─ a beat each second, and the roll ─▶ members ─▶ view: live nodes, owners of instances
//!  batch writer ── its commits ──────▶ link ═══▶ serve ─▶ applier, if they follow directly
//!  expiry: "heard of these?" ────────▶ link ═══▶ serve ─▶ leases
//! ```
//!
//! Any node takes a heartbeat and records it; nothing is forwarded. The owner of an instance (rendezvous hashing) judges it, and first asks all
//! others how long they have not heard of it. So a heartbeat costs its node a look-up, an instance costs one question in each time to live, and no
//! instance expires because two nodes saw different members. Heartbeats that only one node received are lost with it: when a node is lost, every
//! lease gets one more time to live.
//!
//! # Invariants
//!
//! - A node lives while its beats rise in the store, or while it speaks over its link: a node that has lost only the store goes on taking heartbeats,
//!   and is asked. Only a node that reaches the store judges.
//! - No clocks are compared: beats are counted, silence is sent as a duration.
//! - No instance is judged before every live node has answered, except nodes not reached for `UNREACHABLE`. Before that, a node that cannot ask a
//!   live node leaves judging to a node that may be able to: with three nodes, any one path may be cut for any time.
//! - A peer's commit is applied only if it follows directly on the cache; otherwise the store is read.
//! - Only the judgement of silence waits for a peer, and not for long. A peer's message is applied, and answered, without waiting for the store.

mod ended;
mod link;
mod members;
mod secure;
mod serve;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::net::TcpSocket;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::link::Link;
use self::members::Members;
use self::secure::Secure;
use self::wire::Silence;
use crate::error::{OpenError, StoreError};
use crate::health::Beat;
use crate::model::{InstanceId, Revision};
use crate::registry::Inner;
use crate::settings::{PeerSettings, PeerTls};
use crate::status::{PeerStatus, add};
use crate::store::{MOST_NODES, NodeId, NodeList, NodeRow, Record, Secret};

/// Interval between two roll calls, at which a node writes its beat and reads those of the others.
const ROLL_CALL: Duration = Duration::from_secs(1);
/// Time after which a node that lives according to the store, but is not reached, is no longer asked.
pub(crate) const UNREACHABLE: Duration = Duration::from_secs(15);
/// Milliseconds after a message of a peer for which it counts as live, whatever the store says.
const HEARD: u64 = 3000;
/// Backlog of the socket for other nodes.
const BACKLOG: u32 = 128;
/// Failed attempts after which a node is not waited for at the start. They take more than a second: a node that was alone until now opens its port at
/// its next roll call.
const DEAD: u32 = 4;
/// Time limit of an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Time limit of becoming known to the others.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// Time limit of leaving.
const FAREWELL: Duration = Duration::from_secs(2);

/// The other nodes, and this one's membership.
pub(crate) struct Peers {
    own: NodeId,
    /// The socket address bound on this machine.
    bound: SocketAddr,
    address: String,
    /// True if this node may judge; `judging` is true if it does.
    judges: bool,
    judging: AtomicBool,
    began: Instant,
    secret: OnceLock<Secret>,
    /// TLS between nodes; None: in clear.
    secure: ArcSwapOption<Secure>,
    view: ArcSwap<View>,
    links: Mutex<HashMap<NodeId, Link>>,
    /// Live nodes that cannot be reached.
    shunned: Mutex<BTreeSet<NodeId>>,
    members: tokio::sync::Mutex<(Members, i64)>,
    /// Nodes that have connected to this one, and the time of the last message of each, in milliseconds since the node's start.
    inbound: Mutex<BTreeMap<NodeId, u64>>,
    /// Start of the latest roll call that the store has answered, in milliseconds since the node's start; 0: never.
    attended: AtomicU64,
    /// Signalled when a node connects that the roll does not list yet; `contacts` when the reachability of a node changes.
    unknown: Notify,
    contacts: Notify,
    questions: AtomicU64,
    /// The bound socket for other nodes, until it listens.
    closed: Mutex<Option<TcpSocket>>,
}

/// The judges: nodes that live and reach the store, including this one if it judges.
#[derive(Debug, Default)]
struct View {
    judges: Vec<NodeId>,
}

/// Reachability of a peer; shared with its link.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    connected: AtomicBool,
    /// Failed attempts and lost connections since the peer was reached last.
    failed: AtomicU32,
    /// Time of the peer's last message, in milliseconds since the node's start.
    heard: AtomicU64,
}

impl Peers {
    /// Binds the port for other nodes. A configured port listens from the beginning; a port chosen by the system, which others learn from the store,
    /// is opened only once another node exists.
    pub(crate) fn bind(settings: &PeerSettings, judges: bool) -> Result<Peers, OpenError> {
        let failed = |error: std::io::Error| OpenError::Peers { address: settings.listen, reason: error.to_string() };
        let socket = if settings.listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.map_err(failed)?;
        // Only for a configured port, so that a restarted node can bind it at once.
        socket.set_reuseaddr(settings.listen.port() != 0).map_err(failed)?;
        socket.bind(settings.listen).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        let address = match settings.advertise.as_str() {
            "" => SocketAddr::new(reachable(bound.ip()), bound.port()).to_string(),
            host if host.parse::<SocketAddr>().is_ok()
                || host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) =>
            {
                host.to_owned()
            }
            host => format!("{host}:{}", bound.port()),
        };
        let peers = Peers {
            own: NodeId(crate::store::random()),
            bound,
            address,
            judges,
            judging: AtomicBool::new(judges),
            began: Instant::now(),
            secret: OnceLock::new(),
            secure: ArcSwapOption::from_pointee(Secure::new(&settings.tls)?),
            view: ArcSwap::from_pointee(View { judges: Vec::new() }),
            links: Mutex::default(),
            shunned: Mutex::default(),
            members: tokio::sync::Mutex::default(),
            inbound: Mutex::default(),
            attended: AtomicU64::new(0),
            unknown: Notify::new(),
            contacts: Notify::new(),
            questions: AtomicU64::new(0),
            closed: Mutex::new(Some(socket)),
        };
        Ok(peers)
    }

    /// Returns the TLS for a new connection.
    fn secure(&self) -> Option<Arc<Secure>> {
        self.secure.load_full()
    }

    /// Reloads the TLS files, for new connections. Does not turn TLS on or off.
    ///
    /// # Errors
    /// The files are unusable: then nothing has changed.
    pub(crate) fn renew(&self, settings: &PeerTls) -> Result<(), OpenError> {
        if self.secure.load().is_some()
            && let Some(secure) = Secure::new(settings)?
        {
            self.secure.store(Some(Arc::new(secure)));
        }
        Ok(())
    }

    /// Starts to listen, unless it has started already.
    fn open(&self, inner: &Arc<Inner>) -> std::io::Result<()> {
        let Some(socket) = lock(&self.closed).take() else { return Ok(()) };
        let listener = socket.listen(BACKLOG)?;
        lock(&inner.tasks).spawn(serve::run(Arc::clone(inner), listener));
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// True if this node judges the instance.
    pub(crate) fn owns(&self, id: &InstanceId) -> bool {
        match self.view.load().judges.as_slice() {
            [] => false,
            [only] => *only == self.own,
            judges => members::owner(judges, id) == Some(self.own),
        }
    }

    /// Pushes a commit to the other nodes.
    pub(crate) fn push(&self, inner: &Inner, epoch: i64, revision: Revision, records: &[Record]) {
        let links = lock(&self.links);
        let mut body = None;
        for link in links.values().filter(|link| link.contact.is_connected()) {
            let body = body.get_or_insert_with(|| wire::committed(epoch, revision, records));
            add(&inner.counters.pushed, u64::from(link.say(body.clone())));
        }
    }

    /// True if there is a connection to every live node: then their commits are pushed here at once.
    pub(crate) fn all_reached(&self) -> bool {
        lock(&self.links).values().all(|link| link.contact.is_connected())
    }

    /// Records a connection from `id`.
    fn called_by(&self, id: NodeId) {
        self.heard_from(id);
        if !lock(&self.links).contains_key(&id) {
            self.unknown.notify_one();
        }
        self.contacts.notify_one();
    }

    /// Records a message of `id` over its connection to this node.
    fn heard_from(&self, id: NodeId) {
        lock(&self.inbound).insert(id, self.now());
    }

    /// Returns the nodes that have not been heard for long over their links, and those heard just now.
    fn silent_and_heard(&self, now: u64) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let links = lock(&self.links);
        let which = |fits: &dyn Fn(&Contact) -> bool| {
            links.iter().filter(|(_, link)| fits(&link.contact)).map(|(id, _)| *id).collect()
        };
        (which(&|contact| contact.is_silent(now)), which(&|contact| contact.is_heard(now)))
    }

    /// True if no other node is known.
    pub(crate) fn is_alone(&self) -> bool {
        lock(&self.links).is_empty()
    }

    /// True if every node that may judge asks this one first: the store has answered a roll call that began at most `within` ago, so no node
    /// considers this one lost; and each live node has just spoken over the connection on which it asks.
    pub(crate) fn is_asked_by_all(&self, within: Duration) -> bool {
        let (now, attended) = (self.now(), self.attended.load(Ordering::Relaxed));
        let limit = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let inbound = lock(&self.inbound);
        let speaks = |id: &NodeId| inbound.get(id).is_some_and(|at| now.saturating_sub(*at) < HEARD);
        attended > 0 && now.saturating_sub(attended) < limit && lock(&self.links).keys().all(speaks)
    }

    /// True if each of the other reachable nodes has connected: from then on they ask this node, too.
    fn is_known(&self) -> bool {
        let inbound = lock(&self.inbound);
        let links = lock(&self.links);
        let dead = |link: &Link| link.contact.failed.load(Ordering::Relaxed) >= DEAD;
        links.iter().all(|(id, link)| inbound.contains_key(id) || dead(link))
    }

    /// Returns the peers for the console and metrics.
    pub(crate) fn status(&self) -> Vec<PeerStatus> {
        let links = lock(&self.links);
        let mut peers: Vec<PeerStatus> = links
            .values()
            .map(|link| PeerStatus { address: link.row.address.clone(), reached: link.contact.is_connected() })
            .collect();
        peers.sort_by(|a, b| a.address.cmp(&b.address));
        peers
    }

    /// Returns the local socket address for other nodes.
    pub(crate) fn bound(&self) -> Option<SocketAddr> {
        Some(self.bound)
    }

    /// Returns the address at which the others reach this node.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Contact {
    /// True if the peer has spoken a moment ago: each side sends a message every second.
    fn is_heard(&self, now: u64) -> bool {
        self.is_connected() && now.saturating_sub(self.heard.load(Ordering::Relaxed)) < HEARD
    }

    /// True if the peer has not spoken for long, connected or not. A new link does not count as silent yet.
    fn is_silent(&self, now: u64) -> bool {
        now.saturating_sub(self.heard.load(Ordering::Relaxed)) >= HEARD
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the address at which others reach a socket bound to `ip`: if that is the wildcard address, the one from which this machine would reach the
/// internet. Sends nothing.
fn reachable(ip: IpAddr) -> IpAddr {
    if !ip.is_unspecified() {
        return ip;
    }
    // TEST-NET-1: connecting a datagram socket only looks up the route.
    let route = || {
        let socket = std::net::UdpSocket::bind((ip, 0))?;
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    };
    route().map_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), |address| address.ip())
}

/// Calls the roll for the first time, and starts the task that repeats it.
pub(crate) async fn start(inner: &Arc<Inner>) -> Result<(), OpenError> {
    let settings = &inner.settings.peers;
    if settings.listen.port() != 0 {
        let failed = |error: std::io::Error| OpenError::Peers { address: settings.listen, reason: error.to_string() };
        inner.peers.open(inner).map_err(failed)?;
    }
    call(inner, true).await?;
    lock(&inner.tasks).spawn(attend(Arc::clone(inner)));
    let known = async {
        while !inner.peers.is_known() {
            inner.peers.contacts.notified().await;
        }
    };
    // Before clients connect: the others must ask for heartbeats that only this node has received.
    let _ = tokio::time::timeout(INTRODUCTION, known).await;
    Ok(())
}

async fn attend(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut ticks = tokio::time::interval(ROLL_CALL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        let turn = async {
            let counts = tokio::select! {
                _ = ticks.tick() => true,
                () = inner.peers.unknown.notified() => false,
            };
            call(&inner, counts).await
        };
        let result = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            result = turn => result,
        };
        let written = result.as_ref().copied().map_err(ToString::to_string);
        lock(&inner.writable).beat(written, tokio::time::Instant::now());
        match result {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                tracing::warn!(store = inner.store.name(), "telling the other nodes of this one: {error}");
            }
            Err(_) => {}
        }
        shun(&inner);
    }
    lock(&inner.peers.links).clear();
    let own = [inner.peers.own];
    // If this fails, the others detect the end by themselves.
    let _ = tokio::time::timeout(FAREWELL, inner.store.attend(None, &own)).await;
}

/// Calls the roll once; `counts` as in [`Members::called`].
async fn call(inner: &Arc<Inner>, counts: bool) -> Result<(), StoreError> {
    let peers = &inner.peers;
    let mut state = peers.members.lock().await;
    let (members, beat) = &mut *state;
    *beat += 1;
    let began = peers.now().max(1);
    let (silent, heard) = peers.silent_and_heard(began);
    let judges = peers.judges && !members.leaves_judging(|id| silent.contains(&id), |id| heard.contains(&id));
    if peers.judging.swap(judges, Ordering::Relaxed) != judges && peers.judges {
        let why = if judges {
            "this node judges again"
        } else {
            "a node that lives cannot be asked: judging is left to others"
        };
        tracing::info!("{why}");
    }
    let row = NodeRow { id: peers.own, address: peers.address.clone(), judges, beat: *beat };
    let NodeList { nodes, secret } = inner.store.attend(Some(&row), &members.forgotten()).await?;
    let _ = peers.secret.set(secret);
    let (_, linked) = peers.silent_and_heard(peers.now());
    let news = members.called(peers.own, nodes, counts, |id| linked.contains(&id));
    for id in &news.joined {
        tracing::info!(node = id.0, "another node of the registry is here");
    }
    for id in &news.lost {
        tracing::warn!(node = id.0, "a node of the registry is gone");
    }
    if !news.lost.is_empty() {
        add(&inner.counters.nodes_lost, news.lost.len() as u64);
        // First: a node that owns more from now on, or asks fewer, must find all leases prolonged.
        inner.health.leases.grace();
        let mut inbound = lock(&peers.inbound);
        inbound.retain(|id, _| !news.lost.contains(id));
    }
    let judges = members.in_touch().filter(|row| row.judges).map(|row| row.id);
    let judges = judges.chain(row.judges.then_some(peers.own)).collect();
    let mut links = lock(&peers.links);
    links.retain(|id, link| members.live().any(|row| row.id == *id && row.address == link.row.address));
    for row in members.live().take(MOST_NODES) {
        links.entry(row.id).or_insert_with(|| link::start(inner, row.clone(), peers.now()));
    }
    let alone = links.is_empty();
    drop(links);
    if !alone && let Err(error) = peers.open(inner) {
        tracing::error!(address = peers.address, "other nodes cannot reach this one: listening: {error}");
    }
    peers.view.store(Arc::new(View { judges }));
    peers.attended.store(began, Ordering::Relaxed);
    Ok(())
}

/// Updates the set of live nodes that cannot be reached.
fn shun(inner: &Inner) {
    let peers = &inner.peers;
    let now = peers.now();
    let limit = u64::try_from(UNREACHABLE.as_millis()).unwrap_or(u64::MAX);
    let far = |link: &Link| now.saturating_sub(link.contact.heard.load(Ordering::Relaxed)) > limit;
    let links = lock(&peers.links);
    let after: BTreeSet<NodeId> = links.iter().filter(|(_, link)| far(link)).map(|(id, _)| *id).collect();
    let mut before = lock(&peers.shunned);
    for id in after.difference(&before) {
        let address = links.get(id).map_or("", |link| &link.row.address);
        tracing::warn!(node = id.0, address, "a node lives, by the store, and cannot be reached: judging without it");
        inner.health.leases.grace();
    }
    *before = after;
}

/// Asks the others how long each of `ids` has been silent, and records the answers. Returns true if all live nodes have answered.
pub(crate) async fn hear(inner: &Inner, ids: &[InstanceId]) -> bool {
    let mut all = true;
    if !lock(&inner.peers.links).is_empty() {
        add(&inner.counters.asked, ids.len() as u64);
    }
    for ids in ids.chunks(wire::QUESTION_IDS) {
        all &= ask(inner, ids, |silence| inner.health.leases.heard_elsewhere(ids, &silence)).await;
    }
    all
}

/// Asks the others about at most [`wire::QUESTION_IDS`] instances. Returns true if all live nodes have answered.
pub(crate) async fn ask(inner: &Inner, ids: &[InstanceId], mut take: impl FnMut(Vec<Option<Silence>>)) -> bool {
    let peers = &inner.peers;
    let mut all = true;
    let number = peers.questions.fetch_add(1, Ordering::Relaxed);
    let answers: Vec<_> = {
        let (links, shunned) = (lock(&peers.links), lock(&peers.shunned));
        let asked = links.iter().filter(|(id, _)| !shunned.contains(id));
        let mut body = None;
        asked
            .map(|(_, link)| {
                let body = body.get_or_insert_with(|| wire::question(number, ids));
                link.ask(number, body.clone())
            })
            .collect()
    };
    if answers.is_empty() {
        return true;
    }
    let deadline = Instant::now() + ANSWER;
    for answer in answers {
        let answer = match answer {
            Some(answer) => tokio::time::timeout_at(deadline, answer).await.ok().and_then(Result::ok),
            None => None,
        };
        match answer.filter(|silence| silence.len() == ids.len()) {
            Some(silence) => take(silence),
            None => all = false,
        }
    }
    all
}

/// Returns which of `ids` another node has heard and knows. An id that was heard there before it was known does not count: otherwise two nodes would
/// confirm a removed instance to each other.
pub(crate) async fn heard(inner: &Inner, ids: &[InstanceId]) -> Vec<Beat> {
    let mut beats = vec![Beat::Unknown; ids.len()];
    for (ids, beats) in ids.chunks(wire::QUESTION_IDS).zip(beats.chunks_mut(wire::QUESTION_IDS)) {
        ask(inner, ids, |silence| {
            let heard = beats.iter_mut().zip(silence).filter(|(_, silence)| silence.is_some_and(Silence::is_known));
            heard.for_each(|(beat, _)| *beat = Beat::Known);
        })
        .await;
    }
    beats
}
