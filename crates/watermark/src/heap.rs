//! A heap by target in which any entry can be found again and taken out.

/// Stands for "nowhere" among indices.
const NONE: u32 = u32::MAX;
/// Most entries: indices are 32 bits wide.
const MOST: usize = u32::MAX as usize - 1;

/// A place in the heap; it is known to be stale once its entry has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    slot: u32,
    /// Which of all the entries that have ever been put in.
    number: u64,
}

/// Insert and removal cost O(log n), and allocate only beyond the most entries there have been.
#[derive(Debug)]
pub(crate) struct Heap<T> {
    /// No entry's target is lower than that of the entry at `(its index - 1) / 2`.
    order: Vec<Entry>,
    slots: Vec<Slot<T>>,
    /// First of the chain of free slots.
    free: u32,
    /// Entries ever put in.
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

    /// The lowest target.
    pub(crate) fn smallest(&self) -> Option<u64> {
        self.order.first().map(|entry| entry.target)
    }

    /// Puts an entry in; gives the payload back if there are 2^32 - 2 already.
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

    /// The payload of an entry that is still in.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.slot as usize) {
            Some(Slot::Taken { number, payload, .. }) if *number == key.number => Some(payload),
            _ => None,
        }
    }

    /// Takes an entry out, if it is still in.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        match self.slots.get(key.slot as usize) {
            Some(Slot::Taken { number, index, .. }) if *number == key.number => self.take(*index as usize),
            _ => None,
        }
    }

    /// Takes out an entry with the lowest target, if that is at most `reached`.
    pub(crate) fn pop(&mut self, reached: u64) -> Option<T> {
        if self.smallest()? <= reached { self.take(0) } else { None }
    }

    /// Gives memory back, where there are no entries and have been more than a few.
    pub(crate) fn shrink(&mut self) {
        if self.order.is_empty() && self.slots.len() > 8 {
            // The count goes on: keys given out before must stay stale.
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

    /// Tells the entry at `index` where it is.
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
        /// Of the keys ever given out, the one with this number (modulo their count).
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
        /// The same as a sorted map by (target, number) would do, but for the order among equal targets.
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
