//! The handle that everything else uses.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::{Applier, Cache, Change, Entry, Found, Mark, Memory, ServiceSnapshot};
use crate::change::Turns;
use crate::error::{OpenError, StoreError, WatchError, WriteError};
use crate::health::{Alive, Watch, several};
use crate::heartbeat::UnknownIds;
use crate::kv::Kv;
use crate::model::{
    Health, Instance, InstanceId, Invalid, Limits, Metadata, NamespaceName, Patch, Registration, Revision, ServiceKey,
    machines, visible,
};
use crate::peers::{self, Peers};
use crate::settings::{PeerTls, Settings};
use crate::status::{Counters, Status, add};
use crate::store::{Outcome, Record, Store, Write, WriteKind};
use crate::writable::Writable;
use crate::writer::{self, Answer, Request};

/// A registry node. A clone is the same node.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

/// A write that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The commit in which the row became what it is.
    pub revision: Revision,
    /// What became of it.
    pub outcome: Outcome,
}

impl Written {
    /// Whether it changed anything.
    pub fn changed(&self) -> bool {
        matches!(self.outcome, Outcome::Created | Outcome::Updated | Outcome::Removed)
    }
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) cache: Cache,
    /// Never held while something is waited for: what other nodes say goes through it.
    pub(crate) applier: tokio::sync::Mutex<Applier>,
    /// Held by whoever reads the store.
    reading: tokio::sync::Mutex<()>,
    pub(crate) counters: Counters,
    pub(crate) health: Arc<Watch>,
    pub(crate) queued: AtomicUsize,
    pub(crate) stop: watch::Sender<bool>,
    queue: mpsc::Sender<Request>,
    watchers: AtomicUsize,
    store_error: Mutex<Option<String>>,
    pub(crate) writable: Mutex<Writable>,
    pub(crate) peers: Peers,
    /// The store's history, as of the last read.
    epoch: AtomicI64,
    /// Another node has something that is not here.
    behind: Notify,
    /// Somebody asks for what is not here.
    pub(crate) unknown_ids: UnknownIds,
    /// Changes that are tried again.
    pub(crate) turns: Turns,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// Keys and sessions, where the store holds them.
    pub(crate) kv: Option<Kv>,
}

/// Milliseconds since 1970. For people and for the age of tombstones; nothing else depends on this clock.
pub(crate) fn now_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// After the store says that there is something, the other nodes have so long to tell what it is.
const GATHER: Duration = Duration::from_millis(50);
/// How often old tombstones are looked for.
const COLLECT: Duration = Duration::from_secs(30);
/// Tombstones that one transaction collects.
const COLLECT_ROWS: usize = 1000;

impl Registry {
    /// Reads everything from `store` and starts the node's tasks on the current tokio runtime.
    ///
    /// # Errors
    /// When a setting makes no sense, or the store cannot be read.
    pub async fn open(settings: Settings, store: Arc<dyn Store>) -> Result<Registry, OpenError> {
        settings.check()?;
        let memory = Memory { service_changes: settings.service_changes, changes: settings.changes };
        // A request has at least one row, so the count of rows is reached before the queue is full.
        let (queue, requests) = mpsc::channel(settings.limits.queued_writes);
        let peers = Peers::bind(&settings.peers, settings.health.enabled)?;
        let health = Arc::new(Watch::new(&settings.health)?);
        let (kv, asks) = match store.kv() {
            Some(part) => {
                let (limits, queued) = (settings.kv.clone(), settings.limits.queued_writes);
                Some(Kv::open(part, limits, queued, Arc::clone(&health)).await?).unzip()
            }
            None => (None, None),
        };
        let inner = Arc::new(Inner {
            store,
            cache: Cache::new(memory),
            applier: tokio::sync::Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            counters: Counters::default(),
            health,
            queued: AtomicUsize::new(0),
            stop: watch::Sender::new(false),
            queue,
            watchers: AtomicUsize::new(0),
            store_error: Mutex::new(None),
            writable: Mutex::default(),
            peers,
            epoch: AtomicI64::new(0),
            behind: Notify::new(),
            unknown_ids: UnknownIds::default(),
            turns: Turns::default(),
            tasks: Mutex::new(JoinSet::new()),
            kv,
            settings,
        });
        inner.health.probing.keep_from(inner.peers.bound());
        inner.catch_up().await?;
        peers::start(&inner).await?;
        {
            let mut tasks = inner.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.spawn(writer::run(Arc::clone(&inner), requests));
            tasks.spawn(feed(Arc::clone(&inner)));
            tasks.spawn(collect(Arc::clone(&inner)));
            crate::health::start(&inner, &mut tasks);
            if let Some(asks) = asks {
                crate::kv::start(&inner, asks, &mut tasks);
            }
        }
        Ok(Registry { inner })
    }

    /// The handle of a node.
    pub(crate) fn of(inner: &Arc<Inner>) -> Registry {
        Registry { inner: Arc::clone(inner) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Finishes the batch under way, tells what waits behind it that the registry stops, and ends the node's tasks.
    pub async fn shutdown(&self) {
        self.inner.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
    }

    /// Reads the files of TLS between the nodes again, for connections that begin after it. Whether there is TLS stays as it is.
    ///
    /// # Errors
    /// They cannot be used: then nothing has changed.
    pub fn renew_peer_tls(&self, settings: &PeerTls) -> Result<(), OpenError> {
        self.inner.peers.renew(settings)
    }

    /// Addresses of this process that probes do not ask, unless `probe_allow` has them: whoever may register an instance could otherwise
    /// look at what only the registry's machine reaches, such as its metrics.
    pub fn keep_from_probes(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.inner.health.probing.keep_from(addresses);
    }

    /// The limits that it keeps.
    pub fn limits(&self) -> &Limits {
        &self.inner.settings.limits
    }

    // === Writes ===
    //
    // Answered after the commit, and after this node's own cache has it. The rows of a call succeed or fail each for
    // itself; the answers are in the order of the rows.

    /// Makes instances exist as described.
    pub async fn register(&self, rows: Vec<Registration>) -> Vec<Result<Written, WriteError>> {
        self.write_checked(rows.into_iter().map(|row| WriteKind::Register(Box::new(row)).always()).collect()).await
    }

    /// Holds what is written against the limits, and writes it. To register is a sign of life.
    pub(crate) async fn write_checked(&self, rows: Vec<Write>) -> Vec<Result<Written, WriteError>> {
        let limits = &self.inner.settings.limits;
        let mut quota = QuotaCheck::new(&self.inner);
        let checked = rows.into_iter().map(|row| {
            match &row.kind {
                WriteKind::Register(registration) => {
                    registration.check(limits)?;
                    quota.take(registration)?;
                }
                WriteKind::Patch(_, Patch { metadata: Some(metadata), .. }) => metadata.check(limits)?,
                _ => {}
            }
            Ok(row)
        });
        let writes: Vec<Result<Write, WriteError>> = checked.collect();
        let alive = alive(&writes);
        // They live now, however long the commit takes; and a time to live that becomes shorter counts from now.
        for (_, ids) in &alive {
            self.inner.health.leases.renew(ids, Alive::AsReported);
        }
        let answers = self.inner.write(writes).await;
        // Registering is a sign of life, also where nothing is news.
        for (alive, ids) in alive {
            self.inner.health.leases.renew(&ids, alive);
            // How it is, each of several checks says for itself.
            self.inner.health.renew_each_check(&ids, Alive::AsReported);
        }
        answers
    }

    /// Takes instances out.
    pub async fn deregister(&self, ids: &[InstanceId]) -> Vec<Result<Written, WriteError>> {
        self.inner.write(ids.iter().map(|id| Ok(WriteKind::Deregister(id.clone()).always())).collect()).await
    }

    /// Changes instances in part.
    pub async fn update(&self, patches: Vec<(InstanceId, Patch)>) -> Vec<Result<Written, WriteError>> {
        self.write_checked(patches.into_iter().map(|(id, patch)| WriteKind::Patch(id, patch).always()).collect()).await
    }

    /// A heartbeat that says how the instance is. Written only where that is news.
    pub async fn report(&self, reports: &[(InstanceId, Health)]) -> Vec<Result<Written, WriteError>> {
        for (alive, wanted) in [(Alive::Passing, true), (Alive::Unwell, false)] {
            let said = reports.iter().filter(|(_, health)| (*health == Health::Passing) == wanted);
            let ids: Vec<InstanceId> = said.map(|(id, _)| id.clone()).collect();
            self.inner.health.leases.renew(&ids, alive);
            self.inner.health.renew_each_check(&ids, alive);
        }
        let mut answers: Vec<Option<Result<Written, WriteError>>> = Vec::with_capacity(reports.len());
        let mut news = Vec::new();
        for (id, health) in reports {
            match self.inner.cache.instance(id) {
                Some(instance) if instance.health == *health => {
                    let written = Written { revision: instance.revision, outcome: Outcome::Unchanged };
                    answers.push(Some(Ok(written)));
                }
                _ => {
                    answers.push(None);
                    let patch = Patch { health: Some(*health), ..Patch::default() };
                    news.push(Ok(WriteKind::Patch(id.clone(), patch).always()));
                }
            }
        }
        let mut written = self.inner.write(news).await.into_iter();
        answers.into_iter().map(|known| known.or_else(|| written.next()).unwrap_or(Err(WriteError::Stopped))).collect()
    }

    /// As [`Registry::report`], of one of several checks of an instance.
    ///
    /// # Errors
    /// As of any write; `NotFound` where there is no such instance.
    pub async fn report_check(&self, id: &InstanceId, check: &str, health: Health) -> Result<Written, WriteError> {
        let alive = if health == Health::Passing { Alive::Passing } else { Alive::Unwell };
        self.inner.health.leases.renew(&[several::unit(id, check)], alive);
        let patch = Patch { checks: BTreeMap::from([(check.to_owned(), health)]), ..Patch::default() };
        self.inner.write_one(WriteKind::Patch(id.clone(), patch)).await
    }

    /// Gives a service metadata; it then exists without instances too.
    ///
    /// # Errors
    /// As of any write.
    pub async fn put_service(&self, key: ServiceKey, metadata: Metadata) -> Result<Written, WriteError> {
        metadata.check(&self.inner.settings.limits)?;
        visible("service name", key.name())?;
        let (found, limit) = (self.inner.cache.entries(), self.inner.settings.limits.services);
        if found >= limit && self.inner.cache.entry(&key).is_none() {
            return Err(WriteError::Full { what: "services", found, limit });
        }
        self.inner.write_one(WriteKind::PutService(key, metadata)).await
    }

    /// Takes away what [`Registry::put_service`] gave.
    ///
    /// # Errors
    /// `NotEmpty` while there are instances, as far as this node knows.
    pub async fn delete_service(&self, key: &ServiceKey) -> Result<Written, WriteError> {
        let instances = self.snapshot(key).map_or(0, |snapshot| snapshot.instances.len());
        if instances > 0 {
            return Err(WriteError::NotEmpty { service: key.as_str().into(), instances });
        }
        self.inner.write_one(WriteKind::DeleteService(key.clone())).await
    }

    // === Reads: memory only ===

    /// The service, if it exists.
    pub fn snapshot(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>> {
        self.inner.cache.snapshot(key).filter(|snapshot| snapshot.exists() && !key.is_of_machines())
    }

    /// The instance, in whichever service of its namespace.
    pub fn instance(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.inner.cache.instance(id)
    }

    /// The services that exist, of one namespace or of all, sorted by key. Not that of the machines.
    pub fn services(&self, namespace: Option<&NamespaceName>) -> Vec<Arc<ServiceSnapshot>> {
        let mut services = self.inner.cache.services(namespace);
        services.retain(|service| !service.key.is_of_machines());
        services
    }

    /// The machines of a namespace, by their ids.
    pub fn machines(&self, namespace: &NamespaceName) -> Vec<Arc<Instance>> {
        let snapshot = self.inner.cache.snapshot(&machines(namespace));
        snapshot.map(|snapshot| snapshot.instances.iter().map(Arc::clone).collect()).unwrap_or_default()
    }

    /// The instances on the machine `name`, by their ids.
    pub fn on_machine(&self, namespace: &NamespaceName, name: &str) -> Vec<Arc<Instance>> {
        self.inner.cache.on_machine(namespace, name)
    }

    /// The namespaces that have a service, sorted.
    pub fn namespaces(&self) -> Vec<NamespaceName> {
        let mut names: Vec<NamespaceName> =
            self.services(None).iter().map(|service| NamespaceName::of(&service.key)).collect();
        names.dedup();
        names
    }

    /// Up to `limit` instances that have all these metadata entries. No entries find nothing.
    pub fn find(&self, namespace: &NamespaceName, pairs: &[(&str, &str)], limit: usize) -> Found {
        self.inner.cache.find(namespace, pairs, limit)
    }

    /// Of the whole: this node has everything that was committed up to it.
    pub fn revision(&self) -> Revision {
        self.inner.cache.revision()
    }

    /// The last commit that changed anything in the namespace, whichever of its services; 0 of a namespace in which there never was
    /// anything. What changes in other namespaces does not show.
    pub fn revision_in(&self, namespace: &NamespaceName) -> Revision {
        self.inner.cache.revision_in(namespace)
    }

    /// The last commit that changed anything of the service; 0 of one that never was. Also of one that has gone, for as long
    /// as its tombstones are kept; after that 0 again.
    pub fn revision_of(&self, key: &ServiceKey) -> Revision {
        self.inner.cache.snapshot(key).map_or(Revision(0), |snapshot| snapshot.revision)
    }

    /// What changed in the service after `since`; `None` where that is further back than is remembered: take the snapshot.
    pub fn changes(&self, key: &ServiceKey, since: Revision) -> Option<Vec<Change>> {
        self.inner.cache.changes(key, since)
    }

    /// As [`Registry::changes`], of all services.
    pub fn all_changes(&self, since: Revision) -> Option<Vec<Change>> {
        self.inner.cache.all_changes(since)
    }

    // === Waits ===

    /// Waits until the service has changed after `after`, also by coming into being, or until `deadline`. Returns its
    /// revision then: above `after` if it changed; lower than before only if the store's history is another one.
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// When too many watch, or the service is not there and no more can be waited for.
    pub async fn watch(&self, key: &ServiceKey, after: Revision, deadline: Instant) -> Result<Revision, WatchError> {
        let now = self.revision_of(key);
        if now > after {
            return Ok(now);
        }
        let (services, limit) = (self.inner.cache.entries(), self.inner.settings.limits.services);
        if services >= limit && self.inner.cache.entry(key).is_none() {
            return Err(WatchError::Full { services });
        }
        let entry = Waited { cache: &self.inner.cache, key, entry: self.inner.cache.entry_or_new(key) };
        self.wait(entry.entry.mark(), after, deadline).await
    }

    /// As [`Registry::watch`], for any change in a namespace.
    ///
    /// # Errors
    /// When too many watch.
    pub async fn watch_namespace(
        &self,
        namespace: &NamespaceName,
        after: Revision,
        deadline: Instant,
    ) -> Result<Revision, WatchError> {
        let now = self.revision_in(namespace);
        if now > after {
            return Ok(now);
        }
        let cache = &self.inner.cache;
        let waited = WaitedNamespace { cache, namespace, mark: cache.namespace_or_new(namespace) };
        self.wait(&waited.mark, after, deadline).await
    }

    /// As [`Registry::watch`], for any change at all. For the node itself: a client may see only its own namespaces.
    ///
    /// # Errors
    /// When too many watch.
    pub async fn watch_all(&self, after: Revision, deadline: Instant) -> Result<Revision, WatchError> {
        let now = self.revision();
        if now > after {
            return Ok(now);
        }
        self.wait(self.inner.cache.whole(), after, deadline).await
    }

    async fn wait(&self, mark: &Mark, after: Revision, deadline: Instant) -> Result<Revision, WatchError> {
        let _counted = self.begin_to_wait()?;
        let mut stop = self.inner.stop.subscribe();
        tokio::select! {
            revision = mark.passed(after, deadline) => Ok(revision),
            _ = stop.wait_for(|stop| *stop) => Err(WatchError::Stopped { at: mark.get() }),
        }
    }

    /// Counts a call that waits, of whatever, for as long as what it gives lives.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn begin_to_wait(&self) -> Result<Watching<'_>, WatchError> {
        let limit = self.inner.settings.limits.watchers;
        let watching = Watching(&self.inner.watchers);
        let watchers = watching.0.fetch_add(1, Ordering::Relaxed);
        if watchers < limit { Ok(watching) } else { Err(WatchError::TooMany { watchers, limit }) }
    }

    /// What the client of the TiKV cluster that the store is in counts and times; none, where the store is something else.
    pub fn tikv_figures(&self) -> Option<&Arc<crate::store::TikvFigures>> {
        self.inner.store.figures()
    }

    /// How it is.
    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let store_error = inner.store_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let writable = inner.writable.lock().unwrap_or_else(PoisonError::into_inner);
        let write_error = writable.error().map(str::to_owned);
        drop(writable);
        let mut counts = inner.counters.get();
        counts.graces = inner.health.leases.graces();
        let unwell = inner.cache.unwell();
        Status {
            ready: store_error.is_none() && write_error.is_none() && !*inner.stop.borrow(),
            store: inner.store.name(),
            store_error,
            write_error,
            revision: self.revision(),
            epoch: inner.epoch.load(Ordering::Relaxed),
            instances: inner.cache.instances(),
            critical: unwell.critical,
            isolated: unwell.isolated,
            services: inner.cache.entries(),
            watchers: inner.watchers.load(Ordering::Relaxed),
            queued_writes: inner.queued.load(Ordering::Relaxed),
            protected: inner.health.verdicts.protected(inner.health.leases.now()),
            peer_address: inner.peers.address().to_owned(),
            peers: inner.peers.status(),
            kv: inner.kv.as_ref().map(Kv::status).unwrap_or_default(),
            counts,
        }
    }
}

/// A call that waits, counted while it does.
pub(crate) struct Watching<'a>(&'a AtomicUsize);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A service that is waited for, for as long as it is.
struct Waited<'a> {
    cache: &'a Cache,
    key: &'a ServiceKey,
    entry: Arc<Entry>,
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.cache.leave(self.key, &self.entry);
    }
}

/// A namespace that is waited for, for as long as it is.
struct WaitedNamespace<'a> {
    cache: &'a Cache,
    namespace: &'a NamespaceName,
    mark: Arc<Mark>,
}

impl Drop for WaitedNamespace<'_> {
    fn drop(&mut self) {
        self.cache.leave_namespace(self.namespace, &self.mark);
    }
}

/// Checks that the limits allow what a call registers. As far as this node knows: several may together go a little over.
struct QuotaCheck<'a> {
    inner: &'a Inner,
    new: usize,
    new_of: HashMap<ServiceKey, usize>,
}

impl<'a> QuotaCheck<'a> {
    fn new(inner: &'a Inner) -> QuotaCheck<'a> {
        QuotaCheck { inner, new: 0, new_of: HashMap::new() }
    }

    fn take(&mut self, registration: &Registration) -> Result<(), WriteError> {
        let (cache, limits) = (&self.inner.cache, &self.inner.settings.limits);
        let full = |what, found, limit| Err(WriteError::Full { what, found, limit });
        let known = cache.instance(&registration.id);
        if known.is_some_and(|instance| instance.service == registration.service) {
            return Ok(());
        }
        let found = cache.instances() + self.new;
        if found >= limits.instances {
            return full("instances", found, limits.instances);
        }
        let entry = cache.entry(&registration.service);
        if entry.is_none() && cache.entries() >= limits.services {
            return full("services", cache.entries(), limits.services);
        }
        let new = self.new_of.entry(registration.service.clone()).or_default();
        let found = entry.map_or(0, |entry| entry.snapshot().instances.len()) + *new;
        if found >= limits.instances_per_service {
            return full("instances of the service", found, limits.instances_per_service);
        }
        *new += 1;
        self.new += 1;
        Ok(())
    }
}

// === impl Inner ===

impl Inner {
    /// Writes what is right, and puts each answer where its row was.
    pub(crate) async fn write(&self, rows: Vec<Result<Write, WriteError>>) -> Vec<Result<Written, WriteError>> {
        let limit = self.settings.limits.call_rows;
        if rows.len() > limit {
            let error = Invalid::TooLong { what: "rows of a call", found: rows.len(), limit };
            return rows.iter().map(|_| Err(WriteError::Invalid(error.clone()))).collect();
        }
        let names: Vec<Arc<str>> = rows.iter().map(|row| name(row.as_ref().ok())).collect();
        let mut writes = Vec::with_capacity(rows.len());
        let mut refused = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                Ok(write) => {
                    writes.push(write);
                    refused.push(None);
                }
                Err(error) => refused.push(Some(error)),
            }
        }
        let mut answers = self.enqueue(writes).await.into_iter();
        refused
            .into_iter()
            .zip(names)
            .map(|(refused, what)| match refused {
                Some(error) => Err(error),
                None => match answers.next() {
                    Some(Ok((Outcome::NotFound, _))) => Err(WriteError::NotFound { what }),
                    Some(Ok((outcome, revision))) => Ok(Written { revision, outcome }),
                    Some(Err(error)) => Err(error),
                    None => Err(WriteError::Stopped),
                },
            })
            .collect()
    }

    async fn write_one(&self, kind: WriteKind) -> Result<Written, WriteError> {
        self.write(vec![Ok(kind.always())]).await.pop().unwrap_or(Err(WriteError::Stopped))
    }

    /// Waits for the batch that `writes` join.
    pub(crate) async fn enqueue(&self, writes: Vec<Write>) -> Vec<Answer> {
        let rows = writes.len();
        if rows == 0 {
            return Vec::new();
        }
        let all = |error: WriteError| (0..rows).map(|_| Err(error.clone())).collect();
        let limit = self.settings.limits.queued_writes;
        let queued = self.queued.fetch_add(rows, Ordering::Relaxed);
        if queued + rows > limit && queued > 0 {
            self.queued.fetch_sub(rows, Ordering::Relaxed);
            add(&self.counters.overloaded, 1);
            return all(WriteError::Overloaded { queued, limit });
        }
        let (reply, answers) = oneshot::channel();
        let request = Request { writes, reply, since: Instant::now() };
        if let Err(error) = self.queue.try_send(request) {
            self.queued.fetch_sub(rows, Ordering::Relaxed);
            return all(match error {
                mpsc::error::TrySendError::Full(_) => WriteError::Overloaded { queued, limit },
                mpsc::error::TrySendError::Closed(_) => WriteError::Stopped,
            });
        }
        match answers.await {
            Ok(answers) => answers,
            // The writer is gone: what was queued was not begun.
            Err(_) => all(WriteError::Stopped),
        }
    }

    /// Brings the cache up to the store. While the store is silent, commits of other nodes are applied: other nodes wait for answers behind them.
    pub(crate) async fn catch_up(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.reading.lock().await;
        loop {
            let mut load = self.applier.lock().await.load();
            add(&self.counters.feed_reads, 1);
            let result = self.store.read(&mut load).await;
            let error = result.as_ref().err().map(ToString::to_string);
            *self.store_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
            if let Err(error) = result {
                add(&self.counters.feed_failures, 1);
                return Err(error);
            }
            let mut applier = self.applier.lock().await;
            // At most once: whoever distrusts then waits for a read of its own.
            let Some(changes) = applier.take(load, &self.cache, Instant::now()) else { continue };
            // While the lock is held: so those who judge health hear of changes in the order of revisions.
            self.health.observe(&changes);
            self.epoch.store(applier.epoch(), Ordering::Relaxed);
            self.count(&applier);
            return Ok(());
        }
    }

    /// Takes a commit, of this node or another, without reading the store. Whether everything up to it is here now: otherwise
    /// something in between is missing, and the store has to be read unless it comes from elsewhere.
    pub(crate) async fn offer(&self, epoch: i64, revision: Revision, records: Vec<Record>) -> bool {
        let mut applier = self.applier.lock().await;
        let changes = applier.offer(&self.cache, epoch, revision, records);
        self.health.observe(&changes);
        self.count(&applier);
        applier.has(epoch, revision)
    }

    fn count(&self, applier: &Applier) {
        self.counters.full_loads.store(applier.loads, Ordering::Relaxed);
        self.counters.rows_applied.store(applier.rows, Ordering::Relaxed);
    }

    /// Another node has everything up to `revision`.
    pub(crate) fn told(&self, epoch: i64, revision: Revision) {
        if epoch != self.epoch.load(Ordering::Relaxed) || revision > self.cache.revision() {
            self.behind.notify_one();
        }
    }

    /// What other nodes are told of what is here.
    pub(crate) fn news(&self) -> Bytes {
        peers::wire::news(self.epoch.load(Ordering::Relaxed), self.cache.revision())
    }
}

/// Who shows a sign of life by these writes, and what that says.
fn alive(writes: &[Result<Write, WriteError>]) -> [(Alive, Vec<InstanceId>); 3] {
    let mut signs = [Alive::Passing, Alive::AsReported, Alive::Unwell].map(|alive| (alive, Vec::new()));
    for write in writes.iter().flatten() {
        if let WriteKind::Register(registration) = &write.kind {
            // A registration that says nothing of its health is a heartbeat; one that says "passing" writes that itself.
            let sign = match registration.health {
                None => 0,
                Some(Health::Passing) => 1,
                Some(_) => 2,
            };
            signs[sign].1.push(registration.id.clone());
        }
    }
    signs
}

fn name(write: Option<&Write>) -> Arc<str> {
    match write.map(|write| &write.kind) {
        Some(WriteKind::Register(registration)) => registration.id.as_str().into(),
        Some(WriteKind::Patch(id, _) | WriteKind::Deregister(id)) => id.as_str().into(),
        Some(WriteKind::PutService(key, _) | WriteKind::DeleteService(key)) => key.as_str().into(),
        None => "".into(),
    }
}

/// Follows the store.
async fn feed(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut pause = Duration::ZERO;
    loop {
        let turn = async {
            tokio::select! {
                () = inner.behind.notified() => {}
                () = inner.store.changed(inner.cache.revision()) => {
                    // What the nodes say to each other is faster: the store is for what got lost on the way.
                    if inner.peers.all_reached() {
                        tokio::time::sleep(GATHER).await;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            inner.catch_up().await
        };
        let result = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            result = turn => result,
        };
        pause = match result {
            Ok(()) => Duration::ZERO,
            Err(error) => {
                tracing::warn!(store = inner.store.name(), "following the store: {error}");
                (pause * 2).clamp(Duration::from_millis(100), Duration::from_secs(5))
            }
        };
    }
}

/// Collects tombstones, and forgets services that are gone.
async fn collect(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let keep = i64::try_from(inner.settings.tombstones.as_millis()).unwrap_or(i64::MAX);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(COLLECT) => {}
        }
        // Only what this node itself has seen: so its own cursor is never below gc_floor.
        let (cursor, floor) = {
            let applier = inner.applier.lock().await;
            (applier.cursor(), applier.gc_floor())
        };
        match inner.store.collect(cursor, now_millis().saturating_sub(keep), COLLECT_ROWS).await {
            Ok(collected) => add(&inner.counters.tombstones, collected as u64),
            Err(error) => tracing::warn!(store = inner.store.name(), "collecting tombstones: {error}"),
        }
        inner.cache.forget(floor);
    }
}
