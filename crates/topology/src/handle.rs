//! Handle of a watched cluster, for the code outside of this crate.

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
use crate::proof::{self, Proofs, TermProof};
use crate::relays::{self, Durable, RelayStatus, Relays};
use crate::times::{Clock, OracleTimes};
use crate::view::{Address, NodeId, Term, View};

/// Time for which replicas are probed fast after [`Topology::want_replay`]. `RENEW`: time after which the request must be repeated.
const FAST_FOR: Duration = Duration::from_secs(1);
const RENEW: Duration = Duration::from_millis(500);

/// A watched cluster. The watch ends with the last handle, or by [`shutdown`](Topology::shutdown).
pub struct Topology {
    shared: Arc<Shared>,
    settings: watch::Sender<Arc<ClusterConfig>>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// The oracle's thread, which ends when this is dropped.
    oracle: Mutex<Option<oneshot::Sender<()>>>,
}

/// Error: no primary was found in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no primary within {waited:?}; {nodes}: check that the servers run, their addresses, user and password")]
pub struct NotReady {
    /// Time waited.
    pub waited: Duration,
    /// Each node's role and its last error, if any.
    pub nodes: String,
}

/// State shared by the tasks and the handle.
pub(crate) struct Shared {
    pub(crate) view: ArcSwap<View>,
    /// Epoch of `view`, stored after it: a reader of an epoch finds a view at least as new.
    epoch: AtomicU64,
    pub(crate) oracle: Oracle,
    pub(crate) flush: Flush,
    pub(crate) relays: Relays,
    pub(crate) proofs: Proofs,
    /// Position of the furthest replica usable for reads.
    pub(crate) replayed: Arc<Watermark>,
    pub(crate) clock: Arc<Clock>,
    /// Signals by node ID.
    pub(crate) signals: ArcSwap<Vec<Arc<Signal>>>,
    replay_wanted: AtomicBool,
    replay_asked: Notify,
    /// The furthest position that was awaited recently. `awaited`: the same for the probers, which wake when it changes.
    furthest_awaited: AtomicU64,
    pub(crate) awaited: watch::Sender<Lsn>,
    published: watch::Sender<u64>,
    /// Held while a view is installed, so that epochs rise even if several threads publish.
    installing: Mutex<()>,
    subscribers: Mutex<Vec<Arc<dyn Fn() + Send + Sync>>>,
    /// TLS with the servers; none if it is disabled.
    pub(crate) connector: ArcSwapOption<tls::Connector>,
    /// Each node's present failure.
    failures: Mutex<Vec<Option<String>>>,
    /// Number of refused passwords, of probes and of other sessions.
    pub(crate) refusals: AtomicU64,
}

/// Runs `work` on a thread of its own until the result is dropped. Every commit and strong read uses it: between threads each step would be a
/// wake-up.
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

/// Locks a mutex. A panic cannot leave the guarded values half-changed.
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

    /// Makes `view` the current one, and raises its epoch if needed.
    pub(crate) fn install(&self, mut view: View) {
        let installing = lock(&self.installing);
        view.epoch = view.epoch.max(self.epoch.load(Ordering::Relaxed) + 1);
        let epoch = view.epoch;
        // First, so that a reader of a view finds marks of its term, or of a later one.
        self.relays.begin(view.term);
        self.view.store(Arc::new(view));
        self.epoch.store(epoch, Ordering::Release);
        drop(installing);
        // The relays' answers may prove the new term.
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

    /// Lets replicas be probed fast as long as the request is repeated.
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
    /// The configuration is not valid. Unreachable servers are not an error.
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
        // At once: until the tasks run, a strong read would otherwise assume that there are no relays to ask.
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

    /// Creates a cluster with this view and without tasks, for tests and simulation. The caller answers the oracle's tickets by [`Oracle::begin`] and
    /// [`Oracle::complete`].
    #[must_use]
    pub fn fixed(view: View) -> Arc<Topology> {
        let shared = Arc::new(Shared::new(view, Oracle::new(|| {}), Arc::new(Clock::new())));
        let (settings, _) = watch::channel(Arc::default());
        Arc::new(Topology { shared, settings, tasks: Mutex::default(), oracle: Mutex::default() })
    }

    /// Makes `view` the current one; its epoch is raised if it is not above the last. Meant for [`fixed`](Topology::fixed): in a watched cluster, the
    /// next decision replaces it.
    pub fn publish(&self, view: View) {
        self.shared.install(view);
    }

    /// Returns the present view of the cluster.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }

    /// Returns the epoch of [`view`](Topology::view), for one load: after a new epoch, the view is at least as new.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Returns the oracle, whose tickets ask for the primary's present position. The term of an answer is the timeline. Without a primary there is no
    /// answer, so waits need a time limit.
    #[must_use]
    pub fn oracle(&self) -> &Oracle {
        &self.shared.oracle
    }

    /// Sets the policy for flushing the primary's log; by default every commit flushes for itself.
    pub fn set_flushing(&self, by: Flushing) {
        self.shared.flush.set(by);
    }

    /// True while sessions may leave the flush of their commits to the oracle's queries. False until the primary's version is known.
    #[must_use]
    pub fn flushes(&self) -> bool {
        self.shared.flush.by().is_some()
    }

    /// Requests that the next query flushes the log, if queries do. To be followed by a ticket, which causes the query.
    pub fn want_flush(&self) {
        self.shared.flush.want();
    }

    /// Requests a flush by any means of the server: an awaited position is not flushed, and possibly no other commit will flush it. (PostgreSQL's
    /// WAL writer does not flush an open transaction's writes in the last page.)
    pub fn need_flush(&self) {
        self.shared.flush.need();
    }

    /// Returns the position of the furthest replica usable for reads, on the view's term, for a read that is ahead of all replicas. It goes back
    /// after the loss of that replica, and with each new term. Only the view and its nodes show which replica it is, and if it is still present.
    #[must_use]
    pub fn replayed(&self) -> &Arc<Watermark> {
        &self.shared.replayed
    }

    /// Returns the positions that the relays have made durable, on the view's term or a later one.
    #[must_use]
    pub fn durable(&self) -> Arc<Durable> {
        self.shared.relays.durable()
    }

    /// Returns the number of relays that confirm at the moment. One load.
    #[must_use]
    pub fn confirming(&self) -> usize {
        self.shared.relays.confirming()
    }

    /// Returns the status of every configured relay.
    #[must_use]
    pub fn relays(&self) -> Vec<RelayStatus> {
        self.shared.relays.status()
    }

    /// Returns the oracle whose tickets ask if the view's term is still in force; None if no relays are configured. Only the term of an answer has a
    /// meaning: every commit acknowledged before the ticket was taken was acknowledged on that timeline. While too few relays confirm there is no
    /// answer, so waits need a time limit.
    #[must_use]
    pub fn proof(&self) -> Option<&Oracle> {
        (self.shared.proofs.relays() > 0).then_some(&self.shared.proofs.oracle)
    }

    /// Returns the relays' last answers about the view's term, for a person.
    #[must_use]
    pub fn term_proof(&self) -> TermProof {
        self.shared.relays.term_proof(self.shared.view.load().term)
    }

    /// Simulates this number of relays that can be asked about the term. Meant for [`fixed`](Topology::fixed): the caller answers the tickets by
    /// [`Oracle::begin`] and [`Oracle::complete`].
    pub fn require_proof(&self, relays: usize) {
        self.shared.proofs.set_relays(relays);
    }

    /// Simulates a position reported by the relay `name` (None: it is lost). Meant for [`fixed`](Topology::fixed).
    pub fn tell(&self, name: &str, told: Option<wire::replication::Flushed>) {
        self.shared.relays.tell(name, told);
    }

    /// Returns the durations of the oracle's batches since the start.
    #[must_use]
    pub fn oracle_times(&self) -> OracleTimes {
        self.shared.clock.read()
    }

    /// Reports that a node refused or lost a connection: it is probed at once, and ejected if that one probe fails. From any thread; never blocks;
    /// several reports before the probe count as one.
    pub fn report_failure(&self, node: NodeId) {
        self.shared.suspect(node);
    }

    /// Probes every node at once, after a known change. From any thread; never blocks; costs a probe of each node, so it is not for the data path.
    pub fn probe_now(&self) {
        for signal in self.shared.signals.load().iter() {
            signal.nudge();
        }
    }

    /// Requests that replicas are probed about every 10 ms for the next second, to see them catch up. Costs one relaxed load shortly after another
    /// request, so it may be called as often as needed.
    pub fn want_replay(&self) {
        if !self.shared.replay_wanted.load(Ordering::Relaxed) && !self.shared.replay_wanted.swap(true, Ordering::AcqRel)
        {
            self.shared.replay_asked.notify_one();
        }
    }

    /// Requests probes until a replica has reached `lsn` ([`replayed`](Topology::replayed)): replicas that have not are probed within a millisecond
    /// or two, and then less and less often up to every 10 ms, as with [`want_replay`](Topology::want_replay). Costs two relaxed loads shortly after
    /// a request for the same or a later position.
    pub fn await_replay(&self, lsn: Lsn) {
        self.want_replay();
        let furthest = &self.shared.furthest_awaited;
        if furthest.load(Ordering::Relaxed) < lsn.0 && furthest.fetch_max(lsn.0, Ordering::AcqRel) < lsn.0 {
            // Loaded again within `send_modify`, which runs one at a time: the value passed on never decreases.
            self.shared.awaited.send_modify(|awaited| *awaited = Lsn(furthest.load(Ordering::Acquire)));
        }
    }

    /// Registers `wake`, which is called only after each new view has been published, from the publishing thread: it must not block.
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

    /// Returns the node's present probe failure, for a person. Takes a lock for a moment.
    #[must_use]
    pub fn failure(&self, node: NodeId) -> Option<String> {
        lock(&self.shared.failures).get(usize::from(node.0)).cloned().flatten()
    }

    /// Describes every node's role and last error, for a person.
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

    /// Applies a changed configuration, soon. Nodes are identified by their names and keep their IDs; those no longer listed stay in the view as
    /// unusable entries.
    ///
    /// # Errors
    /// The configuration is not valid; nothing has changed.
    pub fn reload(&self, config: ClusterConfig) -> Result<(), StartError> {
        config.validate()?;
        let connector = config.connector()?;
        // First, so that probers started by the new configuration use its certificates.
        self.shared.connector.store(connector.map(Arc::new));
        self.settings.send_replace(Arc::new(config));
        Ok(())
    }

    /// Returns the settings of the cluster as they are, each with its default.
    #[must_use]
    pub fn settings(&self) -> Vec<::settings::Row> {
        ::settings::rows(&**self.settings.borrow(), "cluster")
    }

    pub(crate) fn note_refusal(&self, error: &crate::probe::ProbeError) {
        self.shared.note_refusal(error);
    }

    /// Returns the number of times that a server has refused the password of a probe, or of a session by [`Topology::log_in`].
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.shared.refusals.load(Ordering::Relaxed)
    }

    /// Returns the TLS target of a connection to this node at this address; None: without TLS, because it is disabled, or because it is a Unix
    /// socket. For a new connection, not for every statement: takes a lock for a moment.
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
        // The host is not a name that a certificate could have, or its entry has just changed. This must never disable TLS.
        Some(target.unwrap_or_else(|| tls::Target::at(connector, address.ip())))
    }

    /// Returns the configuration and TLS connector for a session with a server.
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
