//! The handle that everybody else holds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use watermark::{Lsn, Oracle, Watermark};

use crate::config::{ClusterConfig, StartError, Target};
use crate::coordinate::Coordinator;
use crate::flush::{Flush, Flushing};
use crate::oracle::Driver;
use crate::probe::Signal;
use crate::proof::{self, Proofs, Standing};
use crate::relays::{self, Durable, RelayStatus, Relays};
use crate::times::{Clock, OracleTimes};
use crate::view::{Address, NodeId, Term, View};

/// For how long replicas are probed fast after [`Topology::want_replay`], and how often that must be said again.
const FAST_FOR: Duration = Duration::from_secs(1);
const RENEW: Duration = Duration::from_millis(500);

/// A cluster that is being watched. Ends with the last handle, or by [`shutdown`](Topology::shutdown).
pub struct Topology {
    shared: Arc<Shared>,
    settings: watch::Sender<Arc<ClusterConfig>>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// The oracle's thread, until it is dropped.
    oracle: Mutex<Option<oneshot::Sender<()>>>,
}

/// No primary was found in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no primary within {waited:?}; {nodes}: check that the servers run, their addresses, user and password")]
pub struct NotReady {
    /// How long was waited.
    pub waited: Duration,
    /// Each node's role and, where there is one, its last error.
    pub nodes: String,
}

/// What the tasks share with the handle.
pub(crate) struct Shared {
    pub(crate) view: ArcSwap<View>,
    /// That of `view`, stored after it: whoever sees an epoch finds a view at least as new.
    epoch: AtomicU64,
    pub(crate) oracle: Oracle,
    pub(crate) flush: Flush,
    pub(crate) relays: Relays,
    pub(crate) proofs: Proofs,
    /// Where the furthest replica is that reads may be given to.
    pub(crate) replayed: Arc<Watermark>,
    pub(crate) clock: Arc<Clock>,
    /// By node id.
    pub(crate) signals: ArcSwap<Vec<Arc<Signal>>>,
    replay_wanted: AtomicBool,
    replay_asked: Notify,
    /// The furthest position that somebody lately waited for, and the same for the probers, who wake when it moves.
    furthest_awaited: AtomicU64,
    pub(crate) awaited: watch::Sender<Lsn>,
    published: watch::Sender<u64>,
    /// Held while a view is installed, so that epochs rise also where several threads publish.
    installing: Mutex<()>,
    subscribers: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
    /// TLS with the servers; none: there is none.
    pub(crate) connector: ArcSwapOption<tls::Connector>,
    /// Each node's last failure, while it lasts.
    failures: Mutex<Vec<Option<String>>>,
    /// Logins of probes and of other sessions whose password a server has refused.
    pub(crate) refusals: AtomicU64,
}

/// Runs `work` on a thread of its own until what is returned is dropped. Every commit and strong read goes through it: between threads
/// each step would be a wake-up.
fn apart(work: impl Future<Output = ()> + Send + 'static) -> std::io::Result<oneshot::Sender<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (until, dropped) = oneshot::channel();
    let body = move || {
        runtime.block_on(async move {
            tokio::select! {
                () = work => {}
                _ = dropped => {}
            }
        });
    };
    std::thread::Builder::new().name("oracle".into()).spawn(body)?;
    Ok(until)
}

/// Nothing that is guarded here can be left half-changed by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Shared ===

impl Shared {
    fn new(view: View, oracle: Oracle, clock: Arc<Clock>) -> Shared {
        let relays = Relays::new();
        relays.begin(view.term);
        Shared {
            epoch: AtomicU64::new(view.epoch),
            published: watch::Sender::new(view.epoch),
            view: ArcSwap::from_pointee(view),
            oracle,
            flush: Flush::default(),
            relays,
            proofs: Proofs::new(),
            replayed: Arc::default(),
            clock,
            signals: ArcSwap::default(),
            replay_wanted: AtomicBool::new(false),
            replay_asked: Notify::new(),
            furthest_awaited: AtomicU64::new(0),
            awaited: watch::Sender::new(Lsn(0)),
            installing: Mutex::new(()),
            subscribers: Mutex::default(),
            connector: ArcSwapOption::empty(),
            failures: Mutex::default(),
            refusals: AtomicU64::new(0),
        }
    }

    /// Makes `view` the current one; its epoch is raised where needed.
    pub(crate) fn install(&self, mut view: View) {
        let installing = lock(&self.installing);
        view.epoch = view.epoch.max(self.epoch.load(Ordering::Relaxed) + 1);
        let epoch = view.epoch;
        // First: whoever sees a view finds marks of its term, or of a later one.
        self.relays.begin(view.term);
        self.view.store(Arc::new(view));
        self.epoch.store(epoch, Ordering::Release);
        drop(installing);
        // What relays have said may prove the new term.
        self.proofs.hear();
        self.published.send_replace(epoch);
        // Called without the lock: a subscriber may subscribe another.
        let subscribers = lock(&self.subscribers).clone();
        for subscriber in subscribers {
            subscriber();
        }
    }

    pub(crate) fn suspect(&self, node: NodeId) {
        if let Some(signal) = self.signals.load().get(usize::from(node.0)) {
            signal.suspect();
        }
    }

    pub(crate) fn note_failure(&self, node: NodeId, failure: Option<String>) {
        let mut failures = lock(&self.failures);
        let index = usize::from(node.0);
        if failures.len() <= index {
            failures.resize(index + 1, None);
        }
        failures[index] = failure;
    }

    /// Lets replicas be probed fast for as long as somebody goes on wanting it.
    async fn pace(self: Arc<Shared>, fast_until: watch::Sender<Instant>) {
        loop {
            self.replay_asked.notified().await;
            fast_until.send_replace(Instant::now() + FAST_FOR);
            tokio::time::sleep(RENEW).await;
            self.replay_wanted.store(false, Ordering::Release);
            // After a failover positions may be lower.
            self.furthest_awaited.store(0, Ordering::Relaxed);
        }
    }
}

// === impl Topology ===

impl Topology {
    /// Starts to watch a cluster, on `runtime`. Returns at once; see [`wait_ready`](Topology::wait_ready).
    ///
    /// # Errors
    /// The configuration is not usable. Servers that cannot be reached are no error.
    pub fn start(config: ClusterConfig, runtime: &Handle) -> Result<Arc<Topology>, StartError> {
        let connector = config.connector()?;
        let config = Arc::new(config);
        let wanted = Arc::new(Notify::new());
        let clock = Arc::new(Clock::new());
        let oracle = {
            let (wanted, clock) = (Arc::clone(&wanted), Arc::clone(&clock));
            Oracle::new(move || {
                clock.wanted();
                wanted.notify_one();
            })
        };
        let empty = View { epoch: 0, term: Term::default(), primary: None, nodes: Vec::new() };
        let shared = Arc::new(Shared::new(empty, oracle, clock));
        shared.connector.store(connector.map(Arc::new));
        let (fast_until, fast) = watch::channel(Instant::now());
        let (asks, asked) = watch::channel(None);
        let (settings, changes) = watch::channel(Arc::clone(&config));
        // At once: until the tasks run a strong read would take it that there is nobody to ask.
        shared.proofs.set_relays(config.relays.len());
        let relays = relays::run(Arc::clone(&shared), settings.subscribe());
        let proofs = proof::run(Arc::clone(&shared), settings.subscribe());
        let coordinator = Coordinator::start(Arc::clone(&shared), runtime.clone(), config, fast, asks)?;
        let tasks = vec![
            runtime.spawn(coordinator.run(changes)).abort_handle(),
            runtime.spawn(Arc::clone(&shared).pace(fast_until)).abort_handle(),
        ];
        let driver = Driver { shared: Arc::clone(&shared), wanted, asked, before: Default::default() };
        let oracle = apart(async move {
            tokio::join!(driver.run(), relays, proofs);
        });
        let oracle = match oracle {
            Ok(oracle) => oracle,
            Err(error) => {
                tasks.iter().for_each(AbortHandle::abort);
                return Err(StartError::Thread { reason: error.to_string() });
            }
        };
        Ok(Arc::new(Topology { shared, settings, tasks: Mutex::new(tasks), oracle: Mutex::new(Some(oracle)) }))
    }

    /// A cluster that is what it is said to be, with no tasks behind it: for tests and simulation. Answers to the oracle's
    /// tickets come from whoever calls [`Oracle::begin`] and [`Oracle::complete`].
    #[must_use]
    pub fn fixed(view: View) -> Arc<Topology> {
        let shared = Arc::new(Shared::new(view, Oracle::new(|| {}), Arc::new(Clock::new())));
        let (settings, _) = watch::channel(Arc::default());
        Arc::new(Topology { shared, settings, tasks: Mutex::default(), oracle: Mutex::default() })
    }

    /// Makes `view` the current one; its epoch is raised if it is not above the last. Meant for [`fixed`](Topology::fixed):
    /// where a cluster is being watched, the next decision takes its place.
    pub fn publish(&self, view: View) {
        self.shared.install(view);
    }

    /// The cluster at this moment.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }

    /// The epoch of [`view`](Topology::view), for one load: what reads a new epoch here finds a view at least as new.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Tickets for "where is the primary now?". The term of an answer is the timeline. While there is no primary there is
    /// no answer: whoever waits, waits for a bounded time.
    #[must_use]
    pub fn oracle(&self) -> &Oracle {
        &self.shared.oracle
    }

    /// Who flushes the primary's log from now on; every commit for itself unless this is called.
    pub fn set_flushing(&self, by: Flushing) {
        self.shared.flush.set(by);
    }

    /// True while sessions may leave the flush of their commits to the oracle's questions. False until the primary's version is
    /// known.
    #[must_use]
    pub fn flushes(&self) -> bool {
        self.shared.flush.by().is_some()
    }

    /// The next question is to flush the log, where questions do. To be followed by a ticket: that makes the question come.
    pub fn want_flush(&self) {
        self.shared.flush.want();
    }

    /// The same, and by whatever means the server has: the position that somebody waits for is not flushed, and nobody else may come to flush
    /// it. (PostgreSQL's WAL writer leaves what an open transaction has written to the last page.)
    pub fn need_flush(&self) {
        self.shared.flush.need();
    }

    /// Where the furthest replica is that reads may be given to, on the view's term: what a read that is ahead of all replicas
    /// waits at. It goes back when that replica is lost, and with each new term. Which replica it is, and whether it is still
    /// there, only the view and its nodes tell.
    #[must_use]
    pub fn replayed(&self) -> &Arc<Watermark> {
        &self.shared.replayed
    }

    /// What the relays have made durable, on the view's term or a later one.
    #[must_use]
    pub fn durable(&self) -> Arc<Durable> {
        self.shared.relays.durable()
    }

    /// How many relays confirm what is durable at the moment. One load.
    #[must_use]
    pub fn confirming(&self) -> usize {
        self.shared.relays.confirming()
    }

    /// Every configured relay.
    #[must_use]
    pub fn relays(&self) -> Vec<RelayStatus> {
        self.shared.relays.status()
    }

    /// Tickets for "does the view's term still stand?"; None: no relays are configured, so that nobody can tell. Of an answer only the term
    /// means anything: on that timeline whatever was acknowledged before the ticket was taken was acknowledged. While too few relays say so
    /// there is no answer: whoever waits, waits for a bounded time.
    #[must_use]
    pub fn proof(&self) -> Option<&Oracle> {
        (self.shared.proofs.relays() > 0).then_some(&self.shared.proofs.oracle)
    }

    /// What the relays said of the view's term when they were last asked: for a person.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.shared.relays.standing(self.shared.view.load().term)
    }

    /// As if so many relays could be asked whether the term stands. Meant for [`fixed`](Topology::fixed): answers to the tickets come from whoever
    /// calls [`Oracle::begin`] and [`Oracle::complete`].
    pub fn require_proof(&self, relays: usize) {
        self.shared.proofs.set_relays(relays);
    }

    /// As if the relay `name` had told how far it is (None: it is gone). Meant for [`fixed`](Topology::fixed).
    pub fn tell(&self, name: &str, told: Option<wire::replication::Flushed>) {
        self.shared.relays.tell(name, told);
    }

    /// What the oracle's batches have taken since the start.
    #[must_use]
    pub fn oracle_times(&self) -> OracleTimes {
        self.shared.clock.read()
    }

    /// A node refused or broke a connection: it is probed at once, and taken out if that one probe fails. From any thread;
    /// never blocks; reports that come before the probe count as one.
    pub fn report_failure(&self, node: NodeId) {
        self.shared.suspect(node);
    }

    /// Every node is probed at once: somebody knows that something has changed. From any thread; never blocks; costs a probe of each
    /// node, so it is not for the data path.
    pub fn probe_now(&self) {
        for signal in self.shared.signals.load().iter() {
            signal.nudge();
        }
    }

    /// It is wanted that replicas catch up: they are probed about every 10 ms for the next second. Costs one relaxed
    /// load when it was said shortly before, so it may be said as often as one likes.
    pub fn want_replay(&self) {
        if !self.shared.replay_wanted.load(Ordering::Relaxed) && !self.shared.replay_wanted.swap(true, Ordering::AcqRel)
        {
            self.shared.replay_asked.notify_one();
        }
    }

    /// Somebody waits for a replica to get to `lsn` ([`replayed`](Topology::replayed)): those that are not there are probed within a
    /// millisecond or two, and then less and less often up to every 10 ms, as with [`want_replay`](Topology::want_replay). Costs two
    /// relaxed loads if somebody has waited for as much shortly before.
    pub fn await_replay(&self, lsn: Lsn) {
        self.want_replay();
        let furthest = &self.shared.furthest_awaited;
        if furthest.load(Ordering::Relaxed) < lsn.0 && furthest.fetch_max(lsn.0, Ordering::AcqRel) < lsn.0 {
            // Read again where one at a time comes by: what is passed on is never less than what was before.
            self.shared.awaited.send_modify(|awaited| *awaited = Lsn(furthest.load(Ordering::Acquire)));
        }
    }

    /// `wake` is called after each new view has been published, and for nothing else, from the publishing thread: it must
    /// not block.
    pub fn subscribe(&self, wake: Box<dyn Fn() + Send + Sync>) {
        lock(&self.shared.subscribers).push(Arc::from(wake));
    }

    /// Waits until there is a primary.
    ///
    /// # Errors
    /// There is none within `limit`.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), NotReady> {
        let mut published = self.shared.published.subscribe();
        let ready = async {
            loop {
                published.borrow_and_update();
                if self.shared.view.load().primary.is_some() {
                    return;
                }
                if published.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(limit, ready).await.map_err(|_| NotReady { waited: limit, nodes: self.describe() })
    }

    /// Why a node could not be probed the last time, while that lasts: for a person. Takes a lock for a moment.
    #[must_use]
    pub fn failure(&self, node: NodeId) -> Option<String> {
        lock(&self.shared.failures).get(usize::from(node.0)).cloned().flatten()
    }

    /// Every node's role and last error, for a person.
    fn describe(&self) -> String {
        let view = self.view();
        let failures = lock(&self.shared.failures);
        let nodes = view.nodes.iter().enumerate().map(|(index, node)| {
            let role = format!("{} is {:?}", node.node.name, node.role);
            match failures.get(index) {
                Some(Some(failure)) => format!("{role} ({failure})"),
                _ => role,
            }
        });
        nodes.collect::<Vec<_>>().join(", ")
    }

    /// Takes over a changed configuration, soon. Nodes are told by their names and keep their ids; those no longer listed
    /// stay in the view as unusable entries.
    ///
    /// # Errors
    /// The configuration is not usable; nothing has changed.
    pub fn reload(&self, config: ClusterConfig) -> Result<(), StartError> {
        config.validate()?;
        let connector = config.connector()?;
        // First: probers that begin anew by the new configuration begin with its certificates.
        self.shared.connector.store(connector.map(Arc::new));
        self.settings.send_replace(Arc::new(config));
        Ok(())
    }

    pub(crate) fn note_refusal(&self, error: &crate::probe::ProbeError) {
        self.shared.note_refusal(error);
    }

    /// How many times a server has refused the password of a probe, or of a session by [`Topology::log_in`].
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.shared.refusals.load(Ordering::Relaxed)
    }

    /// How a connection to this node at this address begins; None: without TLS, because there is to be none, or it is a Unix
    /// socket. For whoever makes a connection, not for every statement: takes a lock for a moment.
    #[must_use]
    pub fn secure(&self, node: NodeId, address: &Address) -> Option<tls::Target> {
        let Address::Tcp(address) = address else { return None };
        let connector = self.shared.connector.load_full()?;
        let view = self.shared.view.load();
        let config = self.settings.borrow().clone();
        let named = view.node(node).and_then(|node| config.nodes.iter().find(|of| of.name == node.node.name));
        let target = match named.map(Target::of) {
            Some(Ok(Target::Tcp { host, .. })) => tls::Target::new(connector.clone(), &host),
            _ => None,
        };
        // A host that is no name a certificate could have; or its entry has just changed. Never without TLS for that.
        Some(target.unwrap_or_else(|| tls::Target::at(connector, address.ip())))
    }

    /// What a session with a server is opened by.
    pub(crate) fn to_log_in(&self) -> (ClusterConfig, Option<Arc<tls::Connector>>) {
        (ClusterConfig::clone(&self.settings.borrow()), self.shared.connector.load_full())
    }

    /// Stops watching. The last view stays.
    pub fn shutdown(&self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
        drop(lock(&self.oracle).take());
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topology").field("view", &self.shared.view.load()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
