//! Application of commits to the cache.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::time::Instant;

use super::index::Index;
use super::ring::Ring;
use super::{Cache, Change, ServiceSnapshot, read, write};
use crate::model::{Instance, InstanceId, Machines, Metadata, NamespaceName, Revision, ServiceKey, machine_id};
use crate::store::{Head, InstanceRow, Interner, Record, ServiceRow, Sink};

/// The only writer of a cache, with its state.
#[derive(Debug, Default)]
pub(crate) struct Applier {
    at: At,
    gc_floor: Revision,
    /// Commits received before their predecessors: at most [`PENDING`], and no further ahead.
    pending: BTreeMap<Revision, Vec<Record>>,
    interner: Interner,
    /// Number of full loads.
    pub(crate) loads: u64,
    /// Number of rows applied.
    pub(crate) rows: u64,
}

/// Position of a cache in the store's history.
#[derive(Clone, Copy, Debug, Default)]
struct At {
    /// The revision up to which everything has been applied.
    cursor: Revision,
    epoch: i64,
    loaded: bool,
    /// Time since which every read has returned less than the cache has.
    behind: Option<Instant>,
    /// Number of times that the cache has turned out to be of another history.
    distrusted: u64,
}

/// Changed instances, for the health part. `None`: removed.
pub(crate) type Changes = Vec<(InstanceId, Option<Arc<Instance>>)>;

/// Maximum distance from the cursor at which a commit is kept for later.
const PENDING: u64 = 32;
/// Time for which a store that is behind counts as a lagging replica. After it, the store is of another history: restored from a backup, for example.
const LAG: Duration = Duration::from_secs(10);

/// A read of the store, to be applied to the cache. A store may not answer for long: so a read holds no lock that commits need, and commits pushed by
/// other nodes are applied meanwhile.
pub(crate) struct Load {
    /// Position of the cache when the read began.
    began: At,
    head: Head,
    /// Set for a full read.
    fresh: Option<Fresh>,
    records: Vec<Record>,
    /// True if the store read is behind the cache.
    old: bool,
}

/// A full read, assembled while rows arrive, so that no row is in memory twice.
#[derive(Default)]
struct Fresh {
    interner: Interner,
    index: Index,
    services: HashMap<ServiceKey, Whole, RandomState>,
    /// Revision of the last change of each machine, including removed ones.
    machines: HashMap<InstanceId, Revision, RandomState>,
    rows: u64,
}

// === impl Applier ===

impl Applier {
    pub(crate) fn cursor(&self) -> Revision {
        self.at.cursor
    }

    pub(crate) fn epoch(&self) -> i64 {
        self.at.epoch
    }

    /// True if everything up to `revision` of the history `epoch` has been applied.
    pub(crate) fn has(&self, epoch: i64, revision: Revision) -> bool {
        self.at.loaded && self.at.epoch == epoch && self.at.cursor >= revision
    }

    /// Returns the revision up to which the store has removed tombstones.
    pub(crate) fn gc_floor(&self) -> Revision {
        self.gc_floor
    }

    /// Returns the sink for [`crate::store::Store::read`], which is then passed to [`Applier::take`]: one at a time.
    pub(crate) fn load(&self) -> Load {
        Load { began: self.at, head: Head::default(), fresh: None, records: Vec::new(), old: false }
    }

    /// Applies a read. To be called only if the read has succeeded: a partial one must not move the cursor. `now` is used to measure how long a store
    /// has been behind. Returns `None`, and changes nothing, if the cache has turned out to be of another history since the read began: then the rows
    /// may be of that history, too.
    pub(crate) fn take(&mut self, load: Load, cache: &Cache, now: Instant) -> Option<Changes> {
        let Load { began, head, fresh, mut records, old } = load;
        if began.distrusted != self.at.distrusted {
            return None;
        }
        if old {
            self.at.behind.get_or_insert(now);
            return Some(Changes::new());
        }
        self.at.behind = None;
        self.gc_floor = head.gc_floor;
        // Commits may have brought the cache as far as the read, or further, during the read.
        let one_history = began.loaded && head.epoch == began.epoch && head.v >= began.cursor;
        if one_history && head.v <= self.at.cursor {
            return Some(Changes::new());
        }
        let mut changes = if let Some(fresh) = fresh {
            self.pending.clear();
            self.full(cache, head, fresh)
        } else {
            records.retain(|record| record.revision() > self.at.cursor);
            if records.is_empty() {
                self.at.cursor = head.v;
                write(&cache.index).at = (head.epoch, head.v);
                cache.whole.publish(head.v);
                Changes::new()
            } else {
                self.delta(cache, head.v, records)
            }
        };
        changes.extend(self.follow(cache));
        Some(changes)
    }

    /// Marks the cache as being of another history: the next read is a full one.
    pub(crate) fn distrust(&mut self) {
        self.at.loaded = false;
        self.at.distrusted += 1;
        self.pending.clear();
    }

    /// Takes a commit of this or another node. Applies the commit at once if it follows the cursor directly; keeps it if only few are missing.
    /// Otherwise, or for another history, the store must be read. Returns the changes.
    pub(crate) fn offer(&mut self, cache: &Cache, epoch: i64, revision: Revision, records: Vec<Record>) -> Changes {
        let At { cursor, epoch: ours, loaded, .. } = self.at;
        let known = revision <= cursor || revision.0 > cursor.0 + PENDING;
        if !loaded || epoch != ours || known {
            return Changes::new();
        }
        self.pending.insert(revision, records);
        self.follow(cache)
    }

    /// Applies pending commits that now follow the cursor directly.
    fn follow(&mut self, cache: &Cache) -> Changes {
        let next = |applier: &Applier| Revision(applier.at.cursor.0 + 1);
        self.pending = self.pending.split_off(&next(self));
        let mut changes = Changes::new();
        while let Some(records) = self.pending.remove(&next(self)) {
            changes.extend(self.delta(cache, next(self), records));
        }
        changes
    }

    fn delta(&mut self, cache: &Cache, v: Revision, mut records: Vec<Record>) -> Changes {
        self.rows += records.len() as u64;
        // Machines first, so that each instance is joined with their final state.
        let is_machine =
            |record: &Record| matches!(record, Record::Instance(row) if row.instance.service.is_of_machines());
        if records.iter().any(is_machine) {
            records.sort_by_key(|record| !is_machine(record));
        }
        let mut machines: Vec<(InstanceId, Revision)> = Vec::new();
        let mut services: BTreeMap<ServiceKey, Touched> = BTreeMap::new();
        let mut changes = Changes::with_capacity(records.len());
        let mut log = Vec::with_capacity(records.len());
        {
            let mut index = write(&cache.index);
            index.at = (self.at.epoch, v);
            for record in records {
                match record {
                    Record::Service(row) => {
                        let touched = services.entry(row.key.clone()).or_default();
                        touched.revision = touched.revision.max(row.revision);
                        log.push(Change::Service { service: row.key, revision: row.revision });
                        touched.metadata = Some((!row.deleted).then_some(row.metadata));
                    }
                    Record::Instance(row) => {
                        if row.instance.service.is_of_machines() {
                            machines.push((row.instance.id.clone(), row.instance.revision));
                        }
                        self.instance(&mut index, row, &mut services, &mut log, &mut changes);
                    }
                }
            }
            // A change of a machine also changes the instances on it.
            for (machine, revision) in machines {
                for instance in index.on_machine(machine.namespace(), machine.machine_name().unwrap_or_default()) {
                    let joined = Instance { machines: index.machines_of(&instance), ..Instance::clone(&instance) };
                    let joined = Arc::new(joined);
                    index.put(&joined);
                    let touched = services.entry(joined.service.clone()).or_default();
                    touched.revision = touched.revision.max(revision);
                    touched.instances.insert(joined.id.clone(), Some(Arc::clone(&joined)));
                    log.push(Change::Put { instance: joined, revision });
                }
            }
        }
        log.sort_by_key(Change::revision);
        let mut by_service: HashMap<ServiceKey, Vec<Change>, RandomState> = HashMap::default();
        for change in &log {
            by_service.entry(change.service().clone()).or_default().push(change.clone());
        }
        let mut namespaces: BTreeMap<NamespaceName, Revision> = BTreeMap::new();
        for (key, touched) in services {
            let entry = cache.entry_or_new(&key);
            let before = entry.snapshot.load();
            let metadata = touched.metadata.unwrap_or_else(|| before.metadata.clone());
            let revision = touched.revision.max(before.revision);
            let after = before.with(revision, metadata, touched.instances);
            let appeared = after.exists() && !before.exists();
            entry.snapshot.store(Arc::new(after));
            let mut ring = entry.ring.lock().unwrap_or_else(PoisonError::into_inner);
            for change in by_service.remove(&key).unwrap_or_default() {
                ring.push(change);
            }
            drop(ring);
            entry.mark.publish(revision);
            if appeared {
                cache.touch_spellings(&key, revision);
            }
            let namespace = NamespaceName::of(&key);
            let known = cache.revision_in(&namespace).max(revision);
            let of_namespace = namespaces.entry(namespace).or_default();
            *of_namespace = known.max(*of_namespace);
        }
        cache.publish_namespaces(namespaces);
        let mut ring = cache.ring.lock().unwrap_or_else(PoisonError::into_inner);
        log.into_iter().for_each(|change| ring.push(change));
        drop(ring);
        self.at.cursor = v;
        cache.whole.publish(v);
        changes
    }

    fn instance(
        &mut self,
        index: &mut Index,
        row: InstanceRow,
        services: &mut BTreeMap<ServiceKey, Touched>,
        log: &mut Vec<Change>,
        changes: &mut Changes,
    ) {
        let InstanceRow { mut instance, deleted } = row;
        let (id, revision, mtime) = (instance.id.clone(), instance.revision, instance.mtime);
        self.interner.share(&mut instance);
        instance.machines = index.machines_of(&instance);
        let instance = Arc::new(instance);
        let before = if deleted { index.remove(&id) } else { index.put(&instance) };
        let left = before.filter(|before| deleted || before.service != instance.service);
        if let Some(before) = &left {
            let touched = services.entry(before.service.clone()).or_default();
            touched.revision = touched.revision.max(revision);
            touched.instances.insert(id.clone(), None);
            log.push(Change::Removed { last: Arc::clone(before), revision, mtime });
        }
        if deleted {
            // Even if the instance was unknown: the service's revision has risen.
            let touched = services.entry(instance.service.clone()).or_default();
            touched.revision = touched.revision.max(revision);
            changes.push((id, None));
        } else {
            let touched = services.entry(instance.service.clone()).or_default();
            touched.revision = touched.revision.max(revision);
            touched.instances.insert(id.clone(), Some(Arc::clone(&instance)));
            log.push(Change::Put { instance: Arc::clone(&instance), revision });
            changes.push((id, Some(instance)));
        }
    }

    /// Replaces the whole cache. Readers see the old or the new state of each service; marks are published, higher or lower.
    fn full(&mut self, cache: &Cache, head: Head, fresh: Fresh) -> Changes {
        let Fresh { interner, mut index, mut services, machines, rows } = fresh;
        self.interner = interner;
        if !machines.is_empty() {
            for whole in services.values_mut() {
                whole.join(&machines, &mut index);
            }
        }
        self.rows += rows;
        self.loads += 1;
        let mut changes: Changes =
            services.values().flat_map(|w| w.instances.iter().map(|i| (i.id.clone(), Some(Arc::clone(i))))).collect();
        index.at = (head.epoch, head.v);
        let gone = std::mem::replace(&mut *write(&cache.index), index);
        {
            let index = super::read(&cache.index);
            changes.extend(gone.ids().filter(|id| index.get(id).is_none()).map(|id| (id.clone(), None)));
        }
        for key in cache.keys() {
            services.entry(key).or_default();
        }
        let same_history = self.at.loaded && head.epoch == self.at.epoch && head.v >= self.at.cursor;
        // Within one history no namespace goes back, even if the store has forgotten its last change.
        let known = read(&cache.namespaces).iter().map(|(name, mark)| (name.clone(), mark.get())).collect::<Vec<_>>();
        let kept = |revision| if same_history { revision } else { Revision(0) };
        let mut namespaces: BTreeMap<_, _> = known.into_iter().map(|(name, revision)| (name, kept(revision))).collect();
        for (key, mut whole) in services {
            whole.instances.sort_unstable_by(|a, b| a.id.cmp(&b.id));
            let entry = cache.entry_or_new(&key);
            let namespace = NamespaceName::of(&key);
            let mut after = ServiceSnapshot::new(key, whole.revision, whole.metadata, &whole.instances);
            let before = entry.snapshot.load();
            // The tombstones of the last change may have been removed. A service that differs must get a new revision: its watchers must be woken,
            // and no revision may stand for two contents. A service that was never seen may have changed at any revision up to gc_floor.
            let least = if same_history {
                let same = before.digest == after.digest && before.metadata == after.metadata;
                if same { before.revision } else { head.v }
            } else if after.exists() {
                head.gc_floor
            } else {
                Revision(0)
            };
            after.revision = after.revision.max(least);
            let revision = after.revision;
            *entry.ring.lock().unwrap_or_else(PoisonError::into_inner) =
                Ring::new(cache.memory.service_changes, head.v);
            entry.snapshot.store(Arc::new(after));
            entry.mark.publish(revision);
            let of_namespace = namespaces.entry(namespace).or_default();
            *of_namespace = revision.max(*of_namespace);
        }
        cache.publish_namespaces(namespaces);
        *cache.ring.lock().unwrap_or_else(PoisonError::into_inner) = Ring::new(cache.memory.changes, head.v);
        (self.at.cursor, self.at.epoch, self.at.loaded) = (head.v, head.epoch, true);
        cache.whole.publish(head.v);
        changes
    }
}

/// Changes of one service in a delta.
#[derive(Default)]
struct Touched {
    revision: Revision,
    metadata: Option<Option<Metadata>>,
    instances: BTreeMap<InstanceId, Option<Arc<Instance>>>,
}

/// A service in a full load.
#[derive(Default)]
struct Whole {
    revision: Revision,
    metadata: Option<Metadata>,
    instances: Vec<Arc<Instance>>,
}

impl Whole {
    /// Joins instances with their machines. A service also changed when one of these machines changed or was removed.
    fn join(&mut self, machines: &HashMap<InstanceId, Revision, RandomState>, index: &mut Index) {
        for instance in self.instances.iter_mut().filter(|instance| !instance.service.is_of_machines()) {
            let namespace = NamespaceName::of(&instance.service);
            for id in instance.machine_names().filter_map(|name| machine_id(&namespace, name).ok()) {
                if let Some(revision) = machines.get(&id) {
                    self.revision = self.revision.max(*revision);
                }
            }
            let found = index.machines_of(instance);
            if found != Machines::default() {
                *instance = Arc::new(Instance { machines: found, ..Instance::clone(instance) });
                index.put(instance);
            }
        }
    }
}

// === impl At ===

impl At {
    /// True if the cache is of another history than a store at `head`, or cannot be brought up to it by a delta.
    fn must_reload(&self, head: Head) -> bool {
        let lagged = self.behind.is_some_and(|since| since.elapsed() >= LAG);
        let another_history = head.epoch != self.epoch || (head.v < self.cursor && lagged);
        let too_old = self.cursor < head.gc_floor;
        !self.loaded || another_history || too_old
    }
}

// === impl Load ===

impl Sink for Load {
    fn begin(&mut self, head: Head) -> Revision {
        self.head = head;
        if self.began.must_reload(head) {
            self.fresh = Some(Fresh::default());
            Revision(0)
        } else if head.v < self.began.cursor {
            self.old = true;
            Revision(u64::MAX)
        } else {
            self.began.cursor
        }
    }

    fn record(&mut self, record: Record) {
        match &mut self.fresh {
            Some(fresh) => fresh.add(record),
            None => self.records.push(record),
        }
    }
}

impl Fresh {
    fn add(&mut self, record: Record) {
        self.rows += 1;
        match record {
            Record::Service(ServiceRow { key, metadata, revision, deleted, .. }) => {
                let whole = self.services.entry(key).or_default();
                whole.revision = whole.revision.max(revision);
                whole.metadata = (!deleted).then_some(metadata);
            }
            Record::Instance(InstanceRow { mut instance, deleted }) => {
                self.interner.share(&mut instance);
                let whole = self.services.entry(instance.service.clone()).or_default();
                whole.revision = whole.revision.max(instance.revision);
                if instance.service.is_of_machines() {
                    self.machines.insert(instance.id.clone(), instance.revision);
                }
                if !deleted {
                    let instance = Arc::new(instance);
                    self.index.put(&instance);
                    whole.instances.push(instance);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
