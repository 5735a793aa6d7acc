//! A heap by target that supports lookup and removal of any entry.

/// Index that means none.
const NONE: u32 = u32::MAX;
/// Maximum number of entries: indices have 32 bits.
const MOST: usize = u32::MAX as usize - 1;

/// Identifies an entry of the heap; detectably stale once the entry has been removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    slot: u32,
    /// Sequence number of the entry among all inserted ones.
    number: u64,
}

/// A heap. Insert and removal cost O(log n), and allocate only beyond the highest number of entries so far.
#[derive(Debug)]
pub(crate) struct Heap<T> {
    /// Heap order: no entry's target is lower than that of the entry at `(its index - 1) / 2`.
    order: Vec<Entry>,
    slots: Vec<Slot<T>>,
    /// First free slot of the free list.
    free: u32,
    /// Number of entries ever inserted.
    inserted: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    target: u64,
    slot: u32,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: u32 },
    Taken { number: u64, index: u32, payload: T },
}

// === impl Heap ===

impl<T> Heap<T> {
    pub(crate) fn new() -> Heap<T> {
        Heap { order: Vec::new(), slots: Vec::new(), free: NONE, inserted: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the lowest target.
    pub(crate) fn smallest(&self) -> Option<u64> {
        self.order.first().map(|entry| entry.target)
    }

    /// Inserts an entry; returns the payload as an error if there are 2^32 - 2 entries.
    pub(crate) fn insert(&mut self, target: u64, payload: T) -> Result<Key, T> {
        if self.order.len() >= MOST {
            return Err(payload);
        }
        let index = self.order.len();
        self.inserted += 1;
        let taken = Slot::Taken { number: self.inserted, index: index as u32, payload };
        let slot = match self.slots.get_mut(self.free as usize) {
            Some(free) => {
                let slot = self.free;
                if let Slot::Free { next } = std::mem::replace(free, taken) {
                    self.free = next;
                }
                slot
            }
            None => {
                self.slots.push(taken);
                self.slots.len() as u32 - 1
            }
        };
        self.order.push(Entry { target, slot });
        self.rise(index);
        Ok(Key { slot, number: self.inserted })
    }

    /// Returns the payload of an entry that has not been removed.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.slot as usize) {
            Some(Slot::Taken { number, payload, .. }) if *number == key.number => Some(payload),
            _ => None,
        }
    }

    /// Removes an entry, if it has not been removed.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        match self.slots.get(key.slot as usize) {
            Some(Slot::Taken { number, index, .. }) if *number == key.number => self.take(*index as usize),
            _ => None,
        }
    }

    /// Removes an entry with the lowest target, if that is at most `reached`.
    pub(crate) fn pop(&mut self, reached: u64) -> Option<T> {
        if self.smallest()? <= reached { self.take(0) } else { None }
    }

    /// Frees memory if the heap is empty and had more than a few entries.
    pub(crate) fn shrink(&mut self) {
        if self.order.is_empty() && self.slots.len() > 8 {
            // The count continues: old keys must remain stale.
            *self = Heap { inserted: self.inserted, ..Heap::new() };
        }
    }

    fn take(&mut self, index: usize) -> Option<T> {
        let Entry { slot, .. } = *self.order.get(index)?;
        self.order.swap_remove(index);
        if index < self.order.len() {
            self.rise(index);
            self.sink(index);
        }
        let freed = std::mem::replace(self.slots.get_mut(slot as usize)?, Slot::Free { next: self.free });
        self.free = slot;
        match freed {
            Slot::Taken { payload, .. } => Some(payload),
            Slot::Free { .. } => None,
        }
    }

    fn rise(&mut self, mut index: usize) {
        while index > 0 {
            let above = (index - 1) / 2;
            if self.order[above].target <= self.order[index].target {
                break;
            }
            self.order.swap(above, index);
            self.placed(index);
            index = above;
        }
        self.placed(index);
    }

    fn sink(&mut self, mut index: usize) {
        loop {
            let mut least = index;
            for below in [2 * index + 1, 2 * index + 2] {
                if below < self.order.len() && self.order[below].target < self.order[least].target {
                    least = below;
                }
            }
            if least == index {
                break;
            }
            self.order.swap(least, index);
            self.placed(index);
            index = least;
        }
        self.placed(index);
    }

    /// Updates the index in the slot of the entry at `index`.
    fn placed(&mut self, index: usize) {
        let slot = self.order[index].slot as usize;
        if let Slot::Taken { index: at, .. } = &mut self.slots[slot] {
            *at = index as u32;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64),
        /// Removal of the key with this number (modulo their count) among all keys ever returned.
        Remove(usize),
        Pop(u64),
        Shrink,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..20_u64).prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Remove),
            3 => (0..20_u64).prop_map(Step::Pop),
            1 => Just(Step::Shrink),
        ]
    }

    proptest! {
        /// Compares with a sorted map by (target, number), except for the order among equal targets.
        #[test]
        fn is_a_sorted_map(steps in proptest::collection::vec(step(), 0..200)) {
            let mut heap = Heap::new();
            let mut model: BTreeMap<usize, u64> = BTreeMap::new();
            let mut keys = Vec::new();
            for step in steps {
                match step {
                    Step::Insert(target) => {
                        let number = keys.len();
                        keys.push(heap.insert(target, number).expect("there is room"));
                        model.insert(number, target);
                    }
                    Step::Remove(which) if !keys.is_empty() => {
                        let number = which % keys.len();
                        let expected = model.remove(&number).map(|_| number);
                        prop_assert_eq!(heap.get_mut(keys[number]).copied(), expected);
                        prop_assert_eq!(heap.remove(keys[number]), expected);
                    }
                    Step::Remove(_) => {}
                    Step::Pop(reached) => {
                        let least = model.values().min().copied().filter(|target| *target <= reached);
                        let popped = heap.pop(reached);
                        prop_assert_eq!(popped.map(|number| model[&number]), least);
                        if let Some(number) = popped {
                            model.remove(&number);
                        }
                    }
                    Step::Shrink => heap.shrink(),
                }
                prop_assert_eq!(heap.len(), model.len());
                prop_assert_eq!(heap.smallest(), model.values().min().copied());
            }
        }
    }
}
