//! Index of instances by id, by metadata, and by host.
//!
//! Each instance has a slot, a small number that represents it: 4 bytes instead of an id. 200,000 instances with 8 entries have 1.6 million postings.
//! The entry of a pair is 8 bytes: half of a hash, and a slot or the number of a bitmap. No string is stored; an instance found by a hash is checked
//! for the pair itself. So distinct pairs cost 16 MB (a half-full table), and common ones a bit each.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use roaring::RoaringBitmap;

use crate::model::{AGENT, Health, Instance, InstanceId, Machines, NamespaceName, ON, Revision, machine_id};

/// Instances found by metadata.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The instances, sorted by id.
    pub instances: Vec<Arc<Instance>>,
    /// True if there are more than the limit.
    pub truncated: bool,
}

/// Index of the instances of a cache, by id and by metadata.
#[derive(Default)]
pub(crate) struct Index {
    /// The store's history, and the revision, of the index.
    pub(crate) at: (i64, Revision),
    hasher: RandomState,
    slots: Vec<Option<Arc<Instance>>>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    by_pair: HashTable<Posting>,
    bitmaps: Vec<RoaringBitmap>,
    free_bitmaps: Vec<u32>,
    unwell: Unwell,
    /// Number of instances that are machines.
    machines: usize,
}

/// Numbers of instances that are not healthy, or isolated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unwell {
    /// Critical instances, isolated or not.
    pub(crate) critical: usize,
    /// Isolated instances that are not critical.
    pub(crate) isolated: usize,
}

impl Unwell {
    /// Adds or subtracts one instance.
    fn count(&mut self, instance: &Instance, more: bool) {
        let of = match (instance.overall(), instance.isolate) {
            (Health::Critical, _) => &mut self.critical,
            (_, true) => &mut self.isolated,
            _ => return,
        };
        *of = if more { *of + 1 } else { of.saturating_sub(1) };
    }
}

/// The instances with a pair of this hash: a slot, or (with `MANY`) the slots in a bitmap.
#[derive(Clone, Copy)]
struct Posting {
    hash: u32,
    slots: u32,
}

/// Key of the pair that an instance's host is indexed as. No metadata have it: their keys are visible text.
pub(crate) const HOST: &str = "\0host";

/// Flag in [`Posting::slots`]: the rest is the number of a bitmap. So there are at most 2^31 instances; [`crate::Limits`] allows far fewer.
const MANY: u32 = 1 << 31;

impl Index {
    /// Returns the number of instances.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the numbers of critical and isolated instances.
    pub(crate) fn unwell(&self) -> Unwell {
        self.unwell
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &InstanceId> {
        self.slots.iter().flatten().map(|instance| &instance.id)
    }

    pub(crate) fn get(&self, id: &InstanceId) -> Option<&Arc<Instance>> {
        let slot = self.slot(id)?;
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Inserts `instance`, and returns the one with the same id that it replaces.
    pub(crate) fn put(&mut self, instance: &Arc<Instance>) -> Option<Arc<Instance>> {
        let before = self.slot(&instance.id);
        let slot = before.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        let old = self.slots[slot as usize].replace(Arc::clone(instance));
        if let Some(old) = &old {
            self.unwell.count(old, false);
            self.machines -= usize::from(old.service.is_of_machines());
        }
        self.unwell.count(instance, true);
        self.machines += usize::from(instance.service.is_of_machines());
        if before.is_none() {
            let (hasher, slots) = (&self.hasher, &self.slots);
            let hash = hasher.hash_one(&instance.id);
            self.by_id.insert_unique(hash, slot, |slot| id_hash(hasher, slots, *slot));
        }
        // Most pairs of most instances stay: their postings are left alone.
        let same =
            old.as_ref().is_some_and(|old| old.namespace() == instance.namespace() && pairs(old).eq(pairs(instance)));
        if !same {
            if let Some(old) = &old {
                self.unpost(slot, old);
            }
            for (key, value) in pairs(instance) {
                self.post(self.pair_hash(instance.namespace(), key, value), slot);
            }
        }
        old
    }

    /// Removes the instance with this id.
    pub(crate) fn remove(&mut self, id: &InstanceId) -> Option<Arc<Instance>> {
        let slot = self.slot(id)?;
        let hash = self.hasher.hash_one(id);
        if let Ok(entry) = self.by_id.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        let old = self.slots[slot as usize].take()?;
        self.unwell.count(&old, false);
        self.machines -= usize::from(old.service.is_of_machines());
        self.unpost(slot, &old);
        self.free.push(slot);
        Some(old)
    }

    /// Returns the machines of `instance` that have rows.
    pub(crate) fn machines_of(&self, instance: &Instance) -> Machines {
        // Mostly there are no machines at all, and an id costs an allocation.
        if self.machines == 0 || instance.service.is_of_machines() {
            return Machines::default();
        }
        let namespace = NamespaceName::of(&instance.service);
        let mut found: Vec<Arc<Instance>> = Vec::new();
        for name in instance.machine_names() {
            let machine = machine_id(&namespace, name).ok().and_then(|id| self.get(&id).cloned());
            found.extend(machine.filter(|machine| !found.contains(machine)));
        }
        Machines::new(found)
    }

    /// Returns the instances on the machine `name`.
    pub(crate) fn on_machine(&self, namespace: &str, name: &str) -> Vec<Arc<Instance>> {
        let by = |key| self.find(namespace, &[(key, name)], usize::MAX).instances;
        let mut found = by(ON);
        found.extend(by(AGENT));
        found.retain(|instance| !instance.service.is_of_machines());
        found.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        found.dedup_by(|a, b| a.id == b.id);
        found
    }

    /// Returns up to `limit` instances of `namespace` that have all pairs of `wanted`. No pairs find nothing.
    pub(crate) fn find(&self, namespace: &str, wanted: &[(&str, &str)], limit: usize) -> Found {
        let has_all = |instance: &Instance| {
            instance.namespace() == namespace
                && wanted.iter().all(|(key, wanted)| value(instance, key) == Some(*wanted))
        };
        let mut many: Vec<&RoaringBitmap> = Vec::new();
        let mut one = None;
        for (key, value) in wanted {
            let hash = self.pair_hash(namespace, key, value);
            match self.by_pair.find(spread(hash), |p| p.hash == hash) {
                None => return Found::default(),
                Some(posting) if posting.slots & MANY == 0 => one = Some(posting.slots),
                Some(posting) => many.extend(self.bitmaps.get((posting.slots & !MANY) as usize)),
            }
        }
        let mut found = Found::default();
        let mut take = |slot: u32| {
            if let Some(Some(instance)) = self.slots.get(slot as usize)
                && has_all(instance)
            {
                found.truncated = found.instances.len() == limit;
                if !found.truncated {
                    found.instances.push(Arc::clone(instance));
                }
            }
            !found.truncated
        };
        if let Some(slot) = one {
            take(slot);
        } else {
            many.sort_by_key(|bitmap| bitmap.len());
            if let [only] = many[..] {
                let _ = only.iter().all(&mut take);
            } else if let [first, rest @ ..] = &many[..] {
                let both = rest.iter().fold((*first).clone(), |both, next| both & *next);
                let _ = both.iter().all(take);
            }
        }
        found.instances.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        found
    }

    fn slot(&self, id: &InstanceId) -> Option<u32> {
        let hash = self.hasher.hash_one(id);
        self.by_id
            .find(hash, |slot| self.slots.get(*slot as usize).is_some_and(|i| i.as_ref().is_some_and(|i| i.id == *id)))
            .copied()
    }

    fn pair_hash(&self, namespace: &str, key: &str, value: &str) -> u32 {
        (self.hasher.hash_one((namespace, key, value)) >> 32) as u32
    }

    fn post(&mut self, hash: u32, slot: u32) {
        let mut found = match self.by_pair.entry(spread(hash), |p| p.hash == hash, |p| spread(p.hash)) {
            Entry::Occupied(found) => found,
            Entry::Vacant(place) => {
                place.insert(Posting { hash, slots: slot });
                return;
            }
        };
        let posting = found.get_mut();
        if posting.slots & MANY != 0 {
            let bitmap = &mut self.bitmaps[(posting.slots & !MANY) as usize];
            // A new slot is mostly the highest, which needs no search.
            if !bitmap.push(slot) {
                bitmap.insert(slot);
            }
        } else if posting.slots != slot {
            let bitmap = RoaringBitmap::from_iter([posting.slots, slot]);
            let number = match self.free_bitmaps.pop() {
                Some(number) => {
                    self.bitmaps[number as usize] = bitmap;
                    number
                }
                None => {
                    self.bitmaps.push(bitmap);
                    (self.bitmaps.len() - 1) as u32
                }
            };
            posting.slots = number | MANY;
        }
    }

    /// Removes the postings of a slot. If two pairs of an instance have the same hash, the second finds no posting.
    fn unpost(&mut self, slot: u32, instance: &Instance) {
        for (key, value) in pairs(instance) {
            let hash = self.pair_hash(instance.namespace(), key, value);
            let Ok(mut entry) = self.by_pair.find_entry(spread(hash), |p| p.hash == hash) else { continue };
            let slots = entry.get().slots;
            if slots & MANY == 0 {
                if slots == slot {
                    entry.remove();
                }
                continue;
            }
            let number = slots & !MANY;
            let bitmap = &mut self.bitmaps[number as usize];
            bitmap.remove(slot);
            if bitmap.len() == 1 {
                entry.get_mut().slots = bitmap.min().unwrap_or_default();
                *bitmap = RoaringBitmap::new();
                self.free_bitmaps.push(number);
            }
        }
    }
}

/// Returns the indexed pairs of an instance: its metadata and its host.
fn pairs(instance: &Instance) -> impl Iterator<Item = (&str, &str)> {
    instance.metadata.iter().chain(std::iter::once((HOST, &*instance.host)))
}

/// Returns the value of an indexed pair.
fn value<'a>(instance: &'a Instance, key: &str) -> Option<&'a str> {
    if key == HOST { Some(&instance.host) } else { instance.metadata.get(key) }
}

fn id_hash(hasher: &RandomState, slots: &[Option<Arc<Instance>>], slot: u32) -> u64 {
    slots.get(slot as usize).and_then(Option::as_ref).map_or(0, |instance| hasher.hash_one(&instance.id))
}

/// Expands half a hash to a whole one: the table uses the highest and the lowest bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{Metadata, Registration, ServiceKey};

    fn instance(id: u8, metadata: &BTreeMap<String, String>) -> Arc<Instance> {
        let service = ServiceKey::parse("default/s").unwrap();
        let id = InstanceId::parse(&format!("default/{id}")).unwrap();
        let mut registration = Registration::new(id, service, "h", 1);
        registration.metadata = Metadata::from_pairs(metadata).unwrap();
        Arc::new(Instance::registered(registration, None))
    }

    proptest! {
        /// After any puts and removals, a query finds the same instances as a scan.
        #[test]
        fn finds_what_a_scan_finds(
            steps in proptest::collection::vec(
                (0u8..12, proptest::option::of(proptest::collection::btree_map("[ab]", "[xyz]", 0..3))), 0..60,
            ),
        ) {
            let mut index = Index::default();
            let mut model: BTreeMap<u8, Arc<Instance>> = BTreeMap::new();
            for (id, metadata) in &steps {
                match metadata {
                    Some(metadata) => {
                        let new = instance(*id, metadata);
                        prop_assert_eq!(index.put(&new), model.insert(*id, new));
                    }
                    None => {
                        let id_text = InstanceId::parse(&format!("default/{id}")).unwrap();
                        prop_assert_eq!(index.remove(&id_text), model.remove(id));
                    }
                }
            }
            prop_assert_eq!(index.len(), model.len());
            for pairs in [vec![(HOST, "h")], vec![(HOST, "i")], vec![(HOST, "h"), ("b", "y")], vec![("a", "x")], vec![("b", "z")], vec![("a", "x"), ("b", "y")], vec![("a", "q")]] {
                let mut expected: Vec<_> = model.values()
                    .filter(|i| pairs.iter().all(|(k, v)| if *k == HOST { &*i.host == *v } else { i.metadata.get(k) == Some(*v) })).cloned().collect();
                expected.sort_by(|a, b| a.id.cmp(&b.id));
                prop_assert_eq!(&index.find("default", &pairs, 100).instances, &expected);
                prop_assert!(index.find("other", &pairs, 100).instances.is_empty());
                let few = index.find("default", &pairs, 1);
                prop_assert_eq!((few.instances.len(), few.truncated), (expected.len().min(1), expected.len() > 1));
            }
            for instance in model.values() {
                prop_assert_eq!(index.get(&instance.id), Some(instance));
                index.remove(&instance.id);
            }
            prop_assert_eq!((index.len(), index.by_pair.len()), (0, 0));
            prop_assert_eq!(index.free_bitmaps.len(), index.bitmaps.len());
        }
    }
}
