//! Keys, and sessions that hold keys as locks: Consul's key-value store on the registry's stores.
//!
//! ```text
//!  put, delete, transaction, session ─▶ writer ── one transaction a batch ──▶ KvStore            the truth
//!                                         │  under the counter's lock: missed rows ─▶ State ─▶ plan
//!                                         ▼                                                       │ feed
//!  renewals ─▶ leases ─▶ judge ─▶ writer  State: every key and session, in memory ◀───────────────┘
//!                                         │ wakes watchers of a key, a prefix, sessions
//!                                         ▼
//!                                      readers
//! ```
//!
//! # Invariants
//!
//! - A decision is always based on everything committed before it by any node: it is made under the counter's lock, after the rows that the node
//!   lacked have been read. In TiKV it is made on a snapshot, and made again if another node's commit came in between. So a condition (`cas`, a lock
//!   that is free, a session that lives) holds when the write commits.
//! - Each call has one revision, so no revision stands for two contents of a key. A call is carried out completely or not at all.
//! - A key is held by at most one session, and only while that session is in the store. The transaction that ends a session also releases or deletes
//!   its keys.
//! - Rules, events, tokens, policies and configuration entries are in reserved namespaces of keys, which no name from outside can address (`rules`,
//!   `events`, `acl`, `config`). Writes to one of the first four are serialised (`own`); a change of an entry is conditional on its row.
//! - Each node counts a lock delay from the moment it receives the row, so it is never shorter than requested. No clocks are compared.
//! - A session is ended for lack of renewal only after twice its time to live without a renewal at any live node. A renewal that not every live node
//!   could ask for is committed to the store before it is answered.

mod acl;
mod config;
mod events;
mod judge;
mod model;
mod own;
mod plan;
mod queries;
mod rules;
mod state;
mod tasks;
mod watch;
mod writer;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

pub use config::ConfigChange;
pub(crate) use config::ConfigPrefix;
pub(crate) use model::{Ask, LONGEST_LOCK_DELAY, LONGEST_TTL, MOST_OPERATIONS, TTL_MULTIPLE};
pub use model::{Behavior, Entry, Given, KvLimits, Operation, Refusal, Session, Verb};
pub(crate) use rules::{RuleWrite, RulesMark, rule_name};
pub(crate) use watch::Subject;

use plan::CallResult;
use state::{State, Touched};
pub(crate) use tasks::start;
use watch::Watchers;
use writer::Queued;

use crate::configuration::{ConfigLimits, Listeners};
use crate::error::{StoreError, WatchError, WriteError};
use crate::health::Watch;
use crate::model::{NamespaceName, Revision};
use crate::registry::Registry;
use crate::store::{KvRead, KvStore};

/// The key-value part of a node.
pub(crate) struct Kv {
    store: Arc<dyn KvStore>,
    limits: KvLimits,
    state: RwLock<State>,
    watchers: Watchers,
    /// Limits of the configuration service.
    config: ConfigLimits,
    /// Listeners to configuration entries.
    listeners: Arc<Listeners>,
    /// Holds the leases of sessions.
    health: Arc<Watch>,
    queue: mpsc::Sender<Queued>,
    queued: AtomicUsize,
    most_queued: usize,
    began: Instant,
    /// Time of the last use, in milliseconds since `began`: an unused node polls the store less often.
    used: AtomicU64,
    /// Signalled when a caller needs rows that this node lacks.
    wanted: Notify,
    /// Time since which the store, where it is read, is behind this node.
    behind: Mutex<Option<Instant>>,
    error: Mutex<Option<String>>,
    /// Number of full reads.
    replaced: AtomicU64,
    /// Number of changes of tokens or policies, and of full reads.
    acl_changes: AtomicU64,
    /// Serialises this node's changes to reserved namespaces; each namespace maps to one lock.
    changing: [tokio::sync::Mutex<()>; 16],
}

/// The result of a renewal.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// The session lives.
    Lives(Arc<Session>),
    /// The session does not exist.
    Unknown,
}

/// Size of the key-value part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStatus {
    /// Keys.
    pub keys: usize,
    /// Sessions.
    pub sessions: usize,
    /// Bytes of keys and values.
    pub bytes: usize,
    /// The latest revision.
    pub revision: Revision,
}

/// Time after which a store that is behind this node is taken for another history, not for a lagging replica.
const LAG: Duration = Duration::from_secs(10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kv {
    /// Reads everything from `store`. Queued requests are carried out once [`start`] was called with the second value.
    pub(crate) async fn open(
        store: Arc<dyn KvStore>,
        limits: KvLimits,
        config: ConfigLimits,
        most_queued: usize,
        health: Arc<Watch>,
    ) -> Result<(Kv, mpsc::Receiver<Queued>), StoreError> {
        let (queue, asks) = mpsc::channel(most_queued);
        let kv = Kv {
            store,
            limits,
            state: RwLock::default(),
            watchers: Watchers::default(),
            config,
            listeners: Arc::default(),
            health,
            queue,
            queued: AtomicUsize::new(0),
            most_queued,
            began: Instant::now(),
            used: AtomicU64::new(0),
            wanted: Notify::new(),
            behind: Mutex::default(),
            error: Mutex::default(),
            replaced: AtomicU64::new(0),
            acl_changes: AtomicU64::new(0),
            changing: std::array::from_fn(|_| tokio::sync::Mutex::default()),
        };
        let read = kv.store.read(0, Revision(0)).await?;
        kv.take(KvRead { whole: true, ..read });
        Ok((kv, asks))
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn use_now(&self) {
        self.used.store(self.now(), Ordering::Relaxed);
    }

    /// Applies rows that are certainly not older than the state, or of another history: read with the counter locked, for example.
    fn take(&self, read: KvRead) {
        self.take_unless(read, |_, _| false);
    }

    /// Applies rows unless `skip` returns true for the state and the rows; then notifies leases and watchers.
    fn take_unless(&self, read: KvRead, skip: impl Fn(&State, &KvRead) -> bool) {
        let now = Instant::now();
        let touched = {
            let mut state = self.state_mut();
            if skip(&state, &read) {
                return;
            }
            if read.whole {
                self.replaced.fetch_add(1, Ordering::Relaxed);
            }
            let touched = match read.whole {
                true => state.replace(read.head, read.rows, now),
                false => state.absorb(read.head, read.rows, now),
            };
            let is_of_acl = |one: &Touched| matches!(one, Touched::Key(namespace, _) if namespace.is_of_acl());
            // Under the lock, so that nobody has the rows and the old number.
            if read.whole || touched.iter().any(is_of_acl) {
                self.acl_changes.fetch_add(1, Ordering::Release);
            }
            // Under the lock, so that the leases see a session's beginning and end in that order.
            let (mut leases, now) = self.health.leases.sessions();
            for one in &touched {
                match one {
                    Touched::Session(namespace, id, session) => {
                        leases.observe(namespace, id, session.as_deref(), now);
                    }
                    Touched::Renewed(namespace, id) => leases.renewed_elsewhere(namespace, id, now),
                    Touched::Key(..) => {}
                }
            }
            drop(leases);
            touched
        };
        match read.whole {
            true => {
                self.watchers.wake_all();
                self.listeners.wake_all();
            }
            false => {
                self.watchers.wake(&touched);
                self.wake_listeners(&touched);
            }
        }
    }

    /// Brings the state up to date with the store, if the store is ahead.
    async fn catch_up(&self) -> Result<(), StoreError> {
        let result = self.follow().await;
        *lock(&self.error) = result.as_ref().err().map(ToString::to_string);
        result
    }

    async fn follow(&self) -> Result<(), StoreError> {
        let head = self.store.head().await?;
        let (epoch, v) = {
            let state = self.state();
            (state.epoch, state.v)
        };
        if head.epoch == epoch && head.v < v {
            // A lagging replica, for a while; after that the store itself went back.
            let since = *lock(&self.behind).get_or_insert_with(Instant::now);
            if since.elapsed() < LAG {
                return Ok(());
            }
            tracing::warn!(here = v.0, there = head.v.0, "the key-value store went back: reading everything anew");
            let read = self.store.read(0, Revision(0)).await?;
            self.take(KvRead { whole: true, ..read });
        } else if head.epoch != epoch || head.v > v {
            let read = self.store.read(epoch, v).await?;
            // Read from another replica than the head, or before a commit of this node, the rows may be older than the state.
            self.take_unless(read, |state, read| read.head.epoch == state.epoch && read.head.v < state.v);
        }
        *lock(&self.behind) = None;
        Ok(())
    }

    /// Queues `ask` and waits for its answer.
    async fn ask(&self, ask: Ask) -> Result<CallResult, WriteError> {
        // The writer has ended: queued requests were not started.
        self.queue(ask)?.await.unwrap_or(Err(WriteError::Stopped))
    }

    /// Queues `ask` for the writer. Returns the receiver of the answer.
    fn queue(&self, ask: Ask) -> Result<oneshot::Receiver<Result<CallResult, WriteError>>, WriteError> {
        self.use_now();
        let queued = self.queued.fetch_add(1, Ordering::Relaxed);
        let (request, answer) = Queued::new(ask);
        if let Err(error) = self.queue.try_send(request) {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return Err(match error {
                mpsc::error::TrySendError::Full(_) => WriteError::Overloaded { queued, limit: self.most_queued },
                mpsc::error::TrySendError::Closed(_) => WriteError::Stopped,
            });
        }
        Ok(answer)
    }

    fn index(&self, namespace: &NamespaceName, subject: &Subject) -> Revision {
        let state = self.state();
        let Some(space) = state.space(namespace) else { return Revision(0) };
        match subject {
            Subject::Key(key) => space.key_index(key),
            Subject::Tree(prefix) => space.tree_index(prefix),
            Subject::Sessions => space.session_index(),
        }
    }

    pub(crate) fn status(&self) -> KvStatus {
        let state = self.state();
        let (keys, sessions) = state.counts();
        KvStatus { keys, sessions, bytes: state.bytes(), revision: state.v }
    }
}

impl Registry {
    fn kv(&self) -> Result<&Kv, WriteError> {
        let none = || WriteError::Unavailable { reason: "the registry's store cannot hold keys".into() };
        let kv = self.inner().kv.as_ref().ok_or_else(none)?;
        kv.use_now();
        Ok(kv)
    }

    /// True if the store can hold keys and sessions.
    pub fn has_keys(&self) -> bool {
        self.inner().kv.is_some()
    }

    /// Returns the limits on keys and sessions.
    pub fn kv_limits(&self) -> &KvLimits {
        &self.inner().settings.kv
    }

    /// Carries out operations in order, all of them or none. Returns the result of each, or the refused ones. Keys and values must be within the
    /// limits.
    ///
    /// # Errors
    /// The same as for any write.
    pub async fn kv_apply(
        &self,
        namespace: &NamespaceName,
        operations: Vec<Operation>,
    ) -> Result<CallResult, WriteError> {
        let limits = self.kv_limits();
        if operations.len() > MOST_OPERATIONS {
            let (found, limit) = (operations.len(), MOST_OPERATIONS);
            return Err(WriteError::Invalid(crate::Invalid::TooLong { what: "operations", found, limit }));
        }
        for Operation { key, verb } in &operations {
            if !matches!(verb, Verb::DeleteTree | Verb::GetTree) || !key.is_empty() {
                limits.check_key(key)?;
            }
            if let Verb::Set(value, _) | Verb::SetIf(value, ..) | Verb::Lock(value, ..) | Verb::Unlock(value, ..) = verb
            {
                limits.check_value(value)?;
            }
        }
        self.kv()?.ask(Ask::Operations(namespace.clone(), operations)).await
    }

    /// Returns a key and its index, read together.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn kv_get(&self, namespace: &NamespaceName, key: &str) -> Result<(Revision, Option<Arc<Entry>>), WriteError> {
        let state = self.kv()?.state();
        let Some(space) = state.space(namespace) else { return Ok((Revision(0), None)) };
        Ok((space.key_index(key), space.entry(key).cloned()))
    }

    /// Returns all keys that begin with `prefix`, in order, and their index, read together.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn kv_tree(&self, namespace: &NamespaceName, prefix: &str) -> Result<(Revision, Vec<Arc<Entry>>), WriteError> {
        let state = self.kv()?.state();
        let Some(space) = state.space(namespace) else { return Ok((Revision(0), Vec::new())) };
        Ok((space.tree_index(prefix), space.tree(prefix).cloned().collect()))
    }

    /// Returns the sessions of a namespace, and their index.
    ///
    /// # Errors
    /// The store holds no sessions.
    pub fn sessions(&self, namespace: &NamespaceName) -> Result<(Revision, Vec<Arc<Session>>), WriteError> {
        let state = self.kv()?.state();
        let Some(space) = state.space(namespace) else { return Ok((Revision(0), Vec::new())) };
        Ok((space.session_index(), space.sessions().cloned().collect()))
    }

    /// Waits until this node has everything that any node committed before the call.
    ///
    /// # Errors
    /// The store cannot be asked.
    pub async fn kv_settle(&self) -> Result<(), WriteError> {
        self.kv()?.ask(Ask::Barrier).await.map(drop)
    }

    /// Returns the latest revision of keys and sessions on this node.
    pub fn kv_revision(&self) -> Revision {
        self.inner().kv.as_ref().map_or(Revision(0), |kv| kv.state().v)
    }

    /// Waits until the index of `subject` is above `after`, or until `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many calls wait.
    pub(crate) async fn kv_wait(
        &self,
        namespace: &NamespaceName,
        subject: Subject,
        after: Revision,
        deadline: Instant,
    ) -> Result<(), WatchError> {
        let Ok(kv) = self.kv() else { return Ok(()) };
        let has_changed = || kv.index(namespace, &subject) > after;
        self.kv_wait_until(namespace, subject.clone(), has_changed, deadline).await
    }

    /// Waits until `has_changed` is true, which is asked again after each change of `subject`, or until `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many calls wait.
    pub(crate) async fn kv_wait_until(
        &self,
        namespace: &NamespaceName,
        subject: Subject,
        has_changed: impl Fn() -> bool,
        deadline: Instant,
    ) -> Result<(), WatchError> {
        let Ok(kv) = self.kv() else { return Ok(()) };
        let _counted = self.begin_to_wait()?;
        let watcher = kv.watchers.watch(namespace, subject);
        let mut stop = self.inner().stop.subscribe();
        loop {
            let mut woken = std::pin::pin!(watcher.notify.notified());
            woken.as_mut().enable();
            if has_changed() {
                return Ok(());
            }
            tokio::select! {
                () = woken => {}
                () = tokio::time::sleep_until(deadline) => return Ok(()),
                _ = stop.wait_for(|stop| *stop) => return Err(WatchError::Stopped { at: self.kv_revision() }),
            }
        }
    }

    /// Creates a session. The caller has validated it.
    ///
    /// # Errors
    /// The same as for any write; the inner error: there are too many sessions.
    pub async fn session_begin(
        &self,
        namespace: &NamespaceName,
        session: Session,
    ) -> Result<Result<(), Refusal>, WriteError> {
        let answer = self.kv()?.ask(Ask::Begin(namespace.clone(), Arc::new(session))).await?;
        Ok(answer.map(drop).map_err(first))
    }

    /// Ends a session. Does nothing if it does not exist.
    ///
    /// # Errors
    /// The same as for any write.
    pub async fn session_end(&self, namespace: &NamespaceName, id: &str) -> Result<(), WriteError> {
        self.kv()?.ask(Ask::End(namespace.clone(), id.into(), None)).await.map(drop)
    }

    /// Returns the session; asks the store once if this node does not have it.
    ///
    /// # Errors
    /// The store holds no sessions.
    pub async fn session(&self, namespace: &NamespaceName, id: &str) -> Result<Option<Arc<Session>>, WriteError> {
        let kv = self.kv()?;
        let find = || kv.state().space(namespace).and_then(|space| space.session(id).cloned());
        if let Some(session) = find() {
            return Ok(Some(session));
        }
        drop(kv.ask(Ask::Barrier).await?);
        Ok(find())
    }

    /// Renews a session. Answers only when the session cannot end before its time to live is over: either every node that judges asks this node first
    /// and has not been told of too long a silence, or the renewal is in the store.
    ///
    /// # Errors
    /// The same as for any write: then the holder must not rely on a renewal.
    pub async fn session_renew(&self, namespace: &NamespaceName, id: &str) -> Result<Renewal, WriteError> {
        let kv = self.kv()?;
        let Some(session) = self.session(namespace, id).await? else { return Ok(Renewal::Unknown) };
        // A renewal refused below still renews the lease: while the store is away no other one can come.
        let renewal = kv.health.leases.renew_session(namespace, id);
        let within = session.time_to_live().map_or(Duration::MAX, |ttl| ttl / 2);
        let in_memory = renewal.is_safe && self.inner().peers.is_asked_by_all(within);
        if !in_memory && kv.ask(Ask::Renew(namespace.clone(), id.into())).await?.is_err() {
            return Ok(Renewal::Unknown);
        }
        kv.health.leases.sessions().0.answer(namespace, id, renewal);
        Ok(Renewal::Lives(session))
    }
}

/// Returns the refusal of a call with one operation.
fn first(refused: Vec<(usize, Refusal)>) -> Refusal {
    let none = || Refusal::NoSession { session: "".into() };
    refused.into_iter().next().map_or_else(none, |(_, refusal)| refusal)
}
