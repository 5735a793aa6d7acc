//! The handle of a registry node.

mod open;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::{Applier, Cache, Change, Entry, Found, HOST, Mark, ServiceSnapshot};
use crate::error::{OpenError, StoreError, WatchError, WriteError};
use crate::expressions::Expressions;
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
use crate::turns::Turns;
use crate::writable::Writable;
use crate::writer::{Request, WriteResult};

/// A registry node. A clone is the same node.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The commit in which the row got its present content.
    pub revision: Revision,
    /// The outcome for the row.
    pub outcome: Outcome,
}

impl Written {
    /// True if the write changed a row.
    pub fn changed(&self) -> bool {
        matches!(self.outcome, Outcome::Created | Outcome::Updated | Outcome::Removed)
    }
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) cache: Cache,
    /// Never held across a wait: commits pushed by other nodes need it.
    pub(crate) applier: tokio::sync::Mutex<Applier>,
    /// Held while the store is read.
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
    /// Signalled when another node has a commit that this one lacks.
    behind: Notify,
    /// Reads of the store for unknown ids.
    pub(crate) unknown_ids: UnknownIds,
    /// Locks for changes that are tried again.
    pub(crate) turns: Turns,
    /// Regular expressions of stored queries.
    pub(crate) expressions: Expressions,
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// Keys and sessions, if the store holds them.
    pub(crate) kv: Option<Kv>,
}

/// Returns milliseconds since 1970. Informational, and for the age of tombstones and writer records; nothing else depends on this clock.
pub(crate) fn now_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Registry {
    /// Returns the handle of a node.
    pub(crate) fn of(inner: &Arc<Inner>) -> Registry {
        Registry { inner: Arc::clone(inner) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Finishes the batch under way, fails the queued writes with `Stopped`, and ends the node's tasks.
    pub async fn shutdown(&self) {
        self.inner.stop.send_replace(true);
        let mut tasks = std::mem::take(&mut *self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while tasks.join_next().await.is_some() {}
    }

    /// Reloads the files for TLS between the nodes, for new connections. Does not turn TLS on or off.
    ///
    /// # Errors
    /// The files are unusable: then nothing has changed.
    pub fn renew_peer_tls(&self, settings: &PeerTls) -> Result<(), OpenError> {
        self.inner.peers.renew(settings)
    }

    /// Excludes addresses of this process from probes, unless `probe_allow` includes them: otherwise a client that may register instances could probe
    /// endpoints that only the registry's machine reaches, such as its metrics.
    pub fn keep_from_probes(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.inner.health.probing.keep_from(addresses);
    }

    /// Returns the limits of this node.
    pub fn limits(&self) -> &Limits {
        &self.inner.settings.limits
    }

    // === Writes ===
    //
    // Answered after the commit, and after this node's own cache has applied it. Each row of a call succeeds or fails for itself; the answers are in
    // the order of the rows.

    /// Registers instances.
    pub async fn register(&self, rows: Vec<Registration>) -> Vec<Result<Written, WriteError>> {
        self.write_checked(rows.into_iter().map(|row| WriteKind::Register(Box::new(row)).always()).collect()).await
    }

    /// Validates rows against the limits and writes them. A registration counts as a heartbeat.
    pub(crate) async fn write_checked(&self, rows: Vec<Write>) -> Vec<Result<Written, WriteError>> {
        let limits = &self.inner.settings.limits;
        let mut quota = QuotaCheck::new(&self.inner);
        let checked = rows.into_iter().map(|row| {
            match &row.kind {
                WriteKind::Register(registration) => {
                    registration.check(limits)?;
                    quota.take(registration)?;
                }
                WriteKind::Patch(_, Patch { metadata, overlay, .. }) => {
                    metadata.as_ref().map_or(Ok(()), |metadata| metadata.check(limits))?;
                    overlay.as_ref().map_or(Ok(()), |overlay| overlay.check(limits))?;
                }
                _ => {}
            }
            Ok(row)
        });
        let writes: Vec<Result<Write, WriteError>> = checked.collect();
        let alive = alive(&writes);
        // The leases are renewed before the commit, however long it takes; a shorter time to live counts from now.
        for (_, ids) in &alive {
            self.inner.health.leases.renew(ids, Alive::AsReported);
        }
        let answers = self.inner.write(writes).await;
        // A registration is a heartbeat even if it changes no row.
        for (alive, ids) in alive {
            self.inner.health.leases.renew(&ids, alive);
            // Each of several checks has its own health.
            self.inner.health.renew_each_check(&ids, Alive::AsReported);
        }
        answers
    }

    /// Deregisters instances.
    pub async fn deregister(&self, ids: &[InstanceId]) -> Vec<Result<Written, WriteError>> {
        self.inner.write(ids.iter().map(|id| Ok(WriteKind::Deregister(id.clone()).always())).collect()).await
    }

    /// Changes single fields of instances.
    pub async fn update(&self, patches: Vec<(InstanceId, Patch)>) -> Vec<Result<Written, WriteError>> {
        self.write_checked(patches.into_iter().map(|(id, patch)| WriteKind::Patch(id, patch).always()).collect()).await
    }

    /// Records a heartbeat that states the instance's health. Written to the store only if the health changed.
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

    /// Reports the health of one of several checks of an instance, like [`Registry::report`].
    ///
    /// # Errors
    /// The same as for any write; `NotFound` if the instance does not exist.
    pub async fn report_check(&self, id: &InstanceId, check: &str, health: Health) -> Result<Written, WriteError> {
        let alive = if health == Health::Passing { Alive::Passing } else { Alive::Unwell };
        self.inner.health.leases.renew(&[several::unit(id, check)], alive);
        let patch = Patch { checks: BTreeMap::from([(check.to_owned(), health)]), ..Patch::default() };
        self.inner.write_one(WriteKind::Patch(id.clone(), patch)).await
    }

    /// Gives a service metadata; the service then exists even without instances.
    ///
    /// # Errors
    /// The same as for any write.
    pub async fn put_service(&self, key: ServiceKey, metadata: Metadata) -> Result<Written, WriteError> {
        metadata.check(&self.inner.settings.limits)?;
        visible("service name", key.name())?;
        let (found, limit) = (self.inner.cache.entries(), self.inner.settings.limits.services);
        if found >= limit && self.inner.cache.entry(&key).is_none() {
            return Err(WriteError::Full { what: "services", found, limit });
        }
        self.inner.write_one(WriteKind::PutService(key, metadata)).await
    }

    /// Removes the record made by [`Registry::put_service`].
    ///
    /// # Errors
    /// `NotEmpty` while the service has instances, as far as this node knows.
    pub async fn delete_service(&self, key: &ServiceKey) -> Result<Written, WriteError> {
        let instances = self.snapshot(key).map_or(0, |snapshot| snapshot.instances.len());
        if instances > 0 {
            return Err(WriteError::NotEmpty { service: key.as_str().into(), instances });
        }
        self.inner.write_one(WriteKind::DeleteService(key.clone())).await
    }

    // === Reads: memory only ===

    /// Returns the service, if it exists.
    pub fn snapshot(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>> {
        self.inner.cache.snapshot(key).filter(|snapshot| snapshot.exists() && !key.is_of_machines())
    }

    /// Returns the services whose names differ from that of `key` at most in case, sorted by key: to some protocols they are one service.
    pub fn spelled(&self, key: &ServiceKey) -> Vec<Arc<ServiceSnapshot>> {
        self.inner.cache.spellings(key).iter().filter_map(|key| self.snapshot(key)).collect()
    }

    /// Returns the instance, whichever service of its namespace it belongs to.
    pub fn instance(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.inner.cache.instance(id)
    }

    /// Returns the services of one namespace or of all, sorted by key, without the service of machines.
    pub fn services(&self, namespace: Option<&NamespaceName>) -> Vec<Arc<ServiceSnapshot>> {
        let mut services = self.inner.cache.services(namespace);
        services.retain(|service| !service.key.is_of_machines());
        services
    }

    /// Returns the machines of a namespace, sorted by id.
    pub fn machines(&self, namespace: &NamespaceName) -> Vec<Arc<Instance>> {
        let snapshot = self.inner.cache.snapshot(&machines(namespace));
        snapshot.map(|snapshot| snapshot.instances.iter().map(Arc::clone).collect()).unwrap_or_default()
    }

    /// Returns the instances on the machine `name`, sorted by id.
    pub fn on_machine(&self, namespace: &NamespaceName, name: &str) -> Vec<Arc<Instance>> {
        self.inner.cache.on_machine(namespace, name)
    }

    /// Returns the namespaces that have a service, sorted.
    pub fn namespaces(&self) -> Vec<NamespaceName> {
        let mut names: Vec<NamespaceName> =
            self.services(None).iter().map(|service| NamespaceName::of(&service.key)).collect();
        names.dedup();
        names
    }

    /// Returns up to `limit` instances that have all of the metadata entries. No entries find nothing.
    pub fn find(&self, namespace: &NamespaceName, pairs: &[(&str, &str)], limit: usize) -> Found {
        self.inner.cache.find(namespace, pairs, limit)
    }

    /// Returns up to `limit` instances whose host is `host`, spelled so, sorted by id.
    pub(crate) fn on_host(&self, namespace: &NamespaceName, host: &str, limit: usize) -> Vec<Arc<Instance>> {
        self.inner.cache.find(namespace, &[(HOST, host)], limit).instances
    }

    /// Returns the revision of the whole registry: this node has everything committed up to it.
    pub fn revision(&self) -> Revision {
        self.inner.cache.revision()
    }

    /// Returns the last commit that changed any service of the namespace; 0 if there never was one. Commits in other namespaces do not show.
    pub fn revision_in(&self, namespace: &NamespaceName) -> Revision {
        self.inner.cache.revision_in(namespace)
    }

    /// Returns the last commit that changed the service; 0 if there never was one. A removed service keeps its revision until its tombstones are
    /// collected; then it is 0 again.
    pub fn revision_of(&self, key: &ServiceKey) -> Revision {
        self.inner.cache.snapshot(key).map_or(Revision(0), |snapshot| snapshot.revision)
    }

    /// Returns the last commit that changed a service whose name differs from that of `key` at most in case, like [`Registry::revision_of`].
    pub fn revision_of_spelled(&self, key: &ServiceKey) -> Revision {
        self.inner.cache.spellings(key).iter().map(|key| self.revision_of(key)).max().unwrap_or_default()
    }

    /// Returns the changes of the service after `since`; `None` if they are no longer remembered: take the snapshot then.
    pub fn changes(&self, key: &ServiceKey, since: Revision) -> Option<Vec<Change>> {
        self.inner.cache.changes(key, since)
    }

    /// Returns the changes of all services, like [`Registry::changes`].
    pub fn all_changes(&self, since: Revision) -> Option<Vec<Change>> {
        self.inner.cache.all_changes(since)
    }

    // === Waits ===

    /// Waits until the service has a revision above `after`, also by being created, or until `deadline`. Returns the service's revision: above
    /// `after` if the service changed; lower than before only if the store's history is another one. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// Too many calls watch, or the service does not exist and the limit on services is reached.
    pub async fn watch(&self, key: &ServiceKey, after: Revision, deadline: Instant) -> Result<Revision, WatchError> {
        let now = self.revision_of(key);
        if now > after {
            return Ok(now);
        }
        if !self.has_room_for(key) {
            return Err(WatchError::Full { services: self.inner.cache.entries() });
        }
        let entry = Waited { cache: &self.inner.cache, key, entry: self.inner.cache.entry_or_new(key) };
        self.wait(entry.entry.mark(), after, deadline).await
    }

    /// Waits for a change of any service whose name differs from that of `key` at most in case, like [`Registry::watch`].
    ///
    /// # Errors
    /// The same as of [`Registry::watch`].
    pub async fn watch_spelled(
        &self,
        key: &ServiceKey,
        after: Revision,
        deadline: Instant,
    ) -> Result<Revision, WatchError> {
        loop {
            let namespace = NamespaceName::of(key);
            let of_namespace = self.revision_in(&namespace);
            let services = self.spelled(key);
            let one = match services.as_slice() {
                [] => Some(key),
                [one] => Some(&one.key),
                _ => None,
            };
            // The entry exists before the revision is read, so that a service that appears under another spelling is either read or wakes.
            let _entry = one.filter(|one| self.has_room_for(one)).map(|key| Waited {
                cache: &self.inner.cache,
                key,
                entry: self.inner.cache.entry_or_new(key),
            });
            let now = self.revision_of_spelled(key);
            if now > after {
                return Ok(now);
            }
            if let Some(one) = one {
                return self.watch(one, after, deadline).await;
            }
            // Several, which only other fronts register: any change in the namespace may be of one of them.
            self.watch_namespace(&namespace, of_namespace, deadline).await?;
            let now = self.revision_of_spelled(key);
            if now > after || Instant::now() >= deadline {
                return Ok(now);
            }
        }
    }

    /// True if the service may get an entry, which it needs to be waited for.
    fn has_room_for(&self, key: &ServiceKey) -> bool {
        let (services, limit) = (self.inner.cache.entries(), self.inner.settings.limits.services);
        services < limit || self.inner.cache.entry(key).is_some()
    }

    /// Waits for any change in a namespace, like [`Registry::watch`].
    ///
    /// # Errors
    /// Too many calls watch.
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

    /// Waits for any change at all, like [`Registry::watch`]. Only for the node itself: a client may see only its own namespaces.
    ///
    /// # Errors
    /// Too many calls watch.
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

    /// Counts a waiting call against the limit, until the returned guard is dropped.
    ///
    /// # Errors
    /// Too many calls wait.
    pub(crate) fn begin_to_wait(&self) -> Result<Watching<'_>, WatchError> {
        let limit = self.inner.settings.limits.watchers;
        let watching = Watching(&self.inner.watchers);
        let watchers = watching.0.fetch_add(1, Ordering::Relaxed);
        if watchers < limit { Ok(watching) } else { Err(WatchError::TooMany { watchers, limit }) }
    }

    /// Returns the counters and timings of the TiKV client; `None` for another kind of store.
    pub fn tikv_figures(&self) -> Option<&Arc<crate::store::TikvFigures>> {
        self.inner.store.figures()
    }

    /// Returns the node's status.
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

/// Counts a waiting call until dropped.
pub(crate) struct Watching<'a>(&'a AtomicUsize);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A watched service: its cache entry is kept until this is dropped.
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

/// A watched namespace: its mark is kept until this is dropped.
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

/// Checks a call's registrations against the limits, as far as this node knows: several nodes may together exceed a limit a little.
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
    /// Writes the valid rows, and returns every answer in the place of its row.
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

    /// Queues `writes` and waits for their batch.
    pub(crate) async fn enqueue(&self, writes: Vec<Write>) -> Vec<WriteResult> {
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
            // The writer has ended: queued writes were not started.
            Err(_) => all(WriteError::Stopped),
        }
    }

    /// Brings the cache up to date with the store. During a slow read, pushed commits are still applied: other nodes wait for answers behind them.
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
            // Repeats at most once: a caller of distrust() then waits for a read of its own.
            let Some(changes) = applier.take(load, &self.cache, Instant::now()) else { continue };
            // Under the lock, so that the health part sees changes in the order of revisions.
            self.health.observe(&changes);
            self.epoch.store(applier.epoch(), Ordering::Relaxed);
            self.count(&applier);
            return Ok(());
        }
    }

    /// Applies a commit of this or another node without reading the store. True if everything up to it is in the cache; false if a commit in between
    /// is missing, so that the store must be read unless another node pushes that commit.
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

    /// Notes that another node has everything up to `revision`, and wakes the feed if this node is behind.
    pub(crate) fn told(&self, epoch: i64, revision: Revision) {
        if epoch != self.epoch.load(Ordering::Relaxed) || revision > self.cache.revision() {
            self.behind.notify_one();
        }
    }

    /// Returns the message that tells other nodes this node's revision.
    pub(crate) fn news(&self) -> Bytes {
        peers::wire::news(self.epoch.load(Ordering::Relaxed), self.cache.revision())
    }
}

/// Returns the instances for which these writes are a heartbeat, by the health that it states.
fn alive(writes: &[Result<Write, WriteError>]) -> [(Alive, Vec<InstanceId>); 3] {
    let mut signs = [Alive::Passing, Alive::AsReported, Alive::Unwell].map(|alive| (alive, Vec::new()));
    for write in writes.iter().flatten() {
        if let WriteKind::Register(registration) = &write.kind {
            // A registration without a health is a heartbeat; one with "passing" writes the health itself.
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
