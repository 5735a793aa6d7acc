//! The whole store in memory, for readers that never wait for a database.
//!
//! One writer applies records ([`Applier`], under the registry's lock for it); readers take snapshots. An application updates the index, then each
//! service's snapshot, then its mark, then the mark of the whole registry. So a reader that sees a revision always finds at least its state.

mod apply;
mod encodings;
mod index;
mod instances;
mod mark;
mod ring;
mod snapshot;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;

pub(crate) use apply::{Applier, Changes};
pub use encodings::Encoding;
pub(crate) use encodings::Encodings;
pub use index::Found;
pub(crate) use index::HOST;
use index::{Index, Unwell};
pub use instances::Instances;
pub(crate) use mark::Mark;
pub use ring::Change;
use ring::Ring;
pub use snapshot::ServiceSnapshot;

use crate::model::{Instance, InstanceId, NamespaceName, Revision, ServiceKey};

const SHARDS: usize = 64;

/// Number of changes that are remembered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Changes of one service.
    pub(crate) service_changes: usize,
    /// Changes in all.
    pub(crate) changes: usize,
}

/// The in-memory copy of the store.
pub(crate) struct Cache {
    hasher: RandomState,
    shards: Vec<RwLock<HashMap<ServiceKey, Arc<Entry>, RandomState>>>,
    /// Keys of the entries whose names are not in lower case, by their lower case. Locked after a shard, never before.
    spellings: RwLock<HashMap<ServiceKey, Vec<ServiceKey>, RandomState>>,
    index: RwLock<Index>,
    whole: Mark,
    /// The last commit in each namespace.
    namespaces: RwLock<HashMap<NamespaceName, Arc<Mark>, RandomState>>,
    ring: Mutex<Ring>,
    memory: Memory,
    entries: AtomicUsize,
}

/// A service, or the placeholder of a watched one that does not exist.
pub(crate) struct Entry {
    snapshot: ArcSwap<ServiceSnapshot>,
    mark: Mark,
    ring: Mutex<Ring>,
}

impl Cache {
    pub(crate) fn new(memory: Memory) -> Cache {
        Cache {
            hasher: RandomState::default(),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            spellings: RwLock::default(),
            index: RwLock::default(),
            whole: Mark::new(Revision(0)),
            namespaces: RwLock::default(),
            ring: Mutex::new(Ring::new(memory.changes, Revision(0))),
            memory,
            entries: AtomicUsize::new(0),
        }
    }

    /// Returns the revision of the whole registry: everything up to it has been applied.
    pub(crate) fn revision(&self) -> Revision {
        self.whole.get()
    }

    pub(crate) fn whole(&self) -> &Mark {
        &self.whole
    }

    /// Returns the last commit that changed anything in the namespace; 0 if there never was one.
    pub(crate) fn revision_in(&self, namespace: &NamespaceName) -> Revision {
        read(&self.namespaces).get(namespace).map_or(Revision(0), |mark| mark.get())
    }

    /// Returns the mark of a namespace; creates it if it is absent.
    pub(crate) fn namespace_or_new(&self, namespace: &NamespaceName) -> Arc<Mark> {
        if let Some(mark) = read(&self.namespaces).get(namespace) {
            return Arc::clone(mark);
        }
        let mut namespaces = write(&self.namespaces);
        Arc::clone(namespaces.entry(namespace.clone()).or_insert_with(|| Arc::new(Mark::new(Revision(0)))))
    }

    /// Ends a wait at the mark of a namespace, and removes a mark that was created only for waiting once its last waiter has left.
    pub(crate) fn leave_namespace(&self, namespace: &NamespaceName, mark: &Arc<Mark>) {
        if mark.get() > Revision(0) {
            return;
        }
        let mut namespaces = write(&self.namespaces);
        // Two references: the map's and the caller's. Nobody clones another one while the map is locked.
        let only =
            namespaces.get(namespace).is_some_and(|found| Arc::ptr_eq(found, mark)) && Arc::strong_count(mark) == 2;
        if only && mark.get() == Revision(0) {
            namespaces.remove(namespace);
        }
    }

    /// Publishes the revisions of namespaces, after the snapshots.
    fn publish_namespaces(&self, revisions: BTreeMap<NamespaceName, Revision>) {
        for (namespace, revision) in revisions {
            self.namespace_or_new(&namespace).publish(revision);
        }
    }

    pub(crate) fn snapshot(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>> {
        let entry = self.entry(key)?;
        Some(entry.snapshot.load_full())
    }

    pub(crate) fn instance(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        self.index().get(id).cloned()
    }

    /// Returns the instances of `ids` that exist, with the history and revision of all of them.
    pub(crate) fn recall(&self, ids: &[&InstanceId]) -> (i64, Revision, Vec<Arc<Instance>>) {
        let index = self.index();
        let (epoch, revision) = index.at;
        (epoch, revision, ids.iter().filter_map(|id| index.get(id).cloned()).collect())
    }

    pub(crate) fn instances(&self) -> usize {
        self.index().len()
    }

    /// Returns the numbers of critical and isolated instances.
    pub(crate) fn unwell(&self) -> Unwell {
        self.index().unwell()
    }

    /// Returns the number of services, including those that are only watched.
    pub(crate) fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    pub(crate) fn find(&self, namespace: &NamespaceName, pairs: &[(&str, &str)], limit: usize) -> Found {
        self.index().find(namespace.as_str(), pairs, limit)
    }

    pub(crate) fn on_machine(&self, namespace: &NamespaceName, name: &str) -> Vec<Arc<Instance>> {
        self.index().on_machine(namespace.as_str(), name)
    }

    /// Returns the existing services of one namespace or of all, sorted by key.
    pub(crate) fn services(&self, namespace: Option<&NamespaceName>) -> Vec<Arc<ServiceSnapshot>> {
        let mut services = Vec::new();
        for shard in &self.shards {
            for (key, entry) in read(shard).iter() {
                if namespace.is_none_or(|namespace| namespace.as_str() == key.namespace()) {
                    let snapshot = entry.snapshot.load_full();
                    if snapshot.exists() {
                        services.push(snapshot);
                    }
                }
            }
        }
        services.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        services
    }

    pub(crate) fn changes(&self, key: &ServiceKey, since: Revision) -> Option<Vec<Change>> {
        let entry = self.entry(key)?;
        entry.ring.lock().unwrap_or_else(PoisonError::into_inner).after(since)
    }

    pub(crate) fn all_changes(&self, since: Revision) -> Option<Vec<Change>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).after(since)
    }

    pub(crate) fn entry(&self, key: &ServiceKey) -> Option<Arc<Entry>> {
        read(self.shard(key)).get(key).cloned()
    }

    /// Returns the entry; creates it if it is absent.
    pub(crate) fn entry_or_new(&self, key: &ServiceKey) -> Arc<Entry> {
        if let Some(entry) = self.entry(key) {
            return entry;
        }
        let mut shard = write(self.shard(key));
        let entry = shard.entry(key.clone()).or_insert_with(|| {
            self.entries.fetch_add(1, Ordering::Relaxed);
            self.spell(key);
            Arc::new(Entry {
                snapshot: ArcSwap::from_pointee(ServiceSnapshot::empty(key.clone())),
                mark: Mark::new(Revision(0)),
                // The ring lacks the changes before the entry was created.
                ring: Mutex::new(Ring::new(self.memory.service_changes, self.whole.get())),
            })
        });
        Arc::clone(entry)
    }

    /// Returns the spellings of a name that have an entry, and the name in lower case and as spelled in `key`, sorted.
    pub(crate) fn spellings(&self, key: &ServiceKey) -> Vec<ServiceKey> {
        let folded = key.folded();
        let mut keys = read(&self.spellings).get(&folded).cloned().unwrap_or_default();
        for one in [&folded, key] {
            if !keys.contains(one) {
                keys.push(one.clone());
            }
        }
        keys.sort_unstable();
        keys
    }

    fn spell(&self, key: &ServiceKey) {
        let folded = key.folded();
        if folded != *key {
            write(&self.spellings).entry(folded).or_default().push(key.clone());
        }
    }

    fn unspell(&self, key: &ServiceKey) {
        let folded = key.folded();
        if folded == *key {
            return;
        }
        let mut spellings = write(&self.spellings);
        if let Some(keys) = spellings.get_mut(&folded) {
            keys.retain(|known| known != key);
            if keys.is_empty() {
                spellings.remove(&folded);
            }
        }
    }

    /// Gives the other spellings of a service that has appeared its revision, so that calls that wait for it by such a name wake.
    fn touch_spellings(&self, key: &ServiceKey, revision: Revision) {
        for other in self.spellings(key).iter().filter(|other| *other != key) {
            let Some(entry) = self.entry(other) else { continue };
            if entry.snapshot.load().exists() {
                continue;
            }
            entry.snapshot.store(Arc::new(ServiceSnapshot::new(other.clone(), revision, None, &[])));
            entry.mark.publish(revision);
        }
    }

    /// Removes services that do not exist, have no watchers, and changed last at or before `floor`. Their revision is 0 from then on.
    pub(crate) fn forget(&self, floor: Revision) {
        for shard in &self.shards {
            write(shard).retain(|key, entry| {
                let snapshot = entry.snapshot.load();
                // A strong count of one: nobody waits at the entry, and nobody can begin to while the shard is locked.
                let keep = snapshot.exists() || snapshot.revision > floor || Arc::strong_count(entry) > 1;
                if !keep {
                    self.entries.fetch_sub(1, Ordering::Relaxed);
                    self.unspell(key);
                }
                keep
            });
        }
    }

    /// Ends a wait at `entry`, and removes an entry that was created only for waiting once its last waiter has left.
    pub(crate) fn leave(&self, key: &ServiceKey, entry: &Arc<Entry>) {
        if entry.snapshot.load().revision > Revision(0) {
            return;
        }
        let mut shard = write(self.shard(key));
        // Two references: the map's and the caller's. Nobody clones another one while the shard is locked.
        let only = shard.get(key).is_some_and(|found| Arc::ptr_eq(found, entry) && Arc::strong_count(entry) == 2);
        let snapshot = entry.snapshot.load();
        if only && snapshot.revision == Revision(0) && !snapshot.exists() {
            shard.remove(key);
            self.unspell(key);
            self.entries.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the keys of all services, including those that are only watched.
    pub(crate) fn keys(&self) -> Vec<ServiceKey> {
        self.shards.iter().flat_map(|shard| read(shard).keys().cloned().collect::<Vec<_>>()).collect()
    }

    fn shard(&self, key: &ServiceKey) -> &RwLock<HashMap<ServiceKey, Arc<Entry>, RandomState>> {
        &self.shards[(self.hasher.hash_one(key) as usize) % SHARDS]
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        read(&self.index)
    }
}

impl Entry {
    pub(crate) fn snapshot(&self) -> Arc<ServiceSnapshot> {
        self.snapshot.load_full()
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }
}

/// Locks for reading. A panic under the lock leaves at worst one service outdated until the next full load.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
