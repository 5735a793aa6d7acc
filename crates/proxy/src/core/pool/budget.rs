//! Over all workers: how many connections a pool may have to a node, which workers wait for one, and which have an idle
//! one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use topology::NodeId;

use super::PoolKey;

/// Most workers, which is the number of bits in a set.
pub(crate) const MOST_WORKERS: usize = 256;

/// The server connections of one pool to one node, over all workers.
#[derive(Debug)]
pub(crate) struct Budget {
    open: AtomicUsize,
    limit: AtomicUsize,
    /// Workers with waiting clients that may not open another connection.
    starving: Workers,
    /// Workers that had idle connections at the end of their last turn.
    idle: Workers,
}

/// A set of workers, changed by all of them.
#[derive(Debug)]
struct Workers(Box<[AtomicU64]>);

/// The budgets of all pools and nodes.
#[derive(Debug)]
pub(crate) struct Budgets {
    workers: usize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    budgets: HashMap<(PoolKey, NodeId), Arc<Budget>>,
    /// Entries after the last sweep.
    swept: usize,
}

// === impl Workers ===

impl Workers {
    /// The empty set, for a process with this many workers.
    fn none_of(workers: usize) -> Workers {
        Workers((0..workers.clamp(1, MOST_WORKERS).div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, worker: usize, to: bool) {
        let (word, bit) = (&self.0[worker / 64 % self.0.len()], 1 << (worker % 64));
        // Worker 1 sets its bit in `starving` and then looks at `idle`; worker 2 sets its bit in `idle` and then looks
        // at `starving`. SeqCst guarantees that at least one of the two sees the other's bit.
        if to {
            word.fetch_or(bit, Ordering::SeqCst)
        } else {
            word.fetch_and(!bit, Ordering::SeqCst)
        };
    }

    /// A worker in the set other than `id`: the next higher one, wrapping around, so that different workers find
    /// different ones.
    fn other_than(&self, id: usize, order: Ordering) -> Option<usize> {
        let words = self.0.len();
        let (at, bit) = (id / 64 % words, id % 64);
        // Looks at the bits above `id` in its word, then the other words, then the bits below `id` in its word.
        let later = if bit == 63 { 0 } else { u64::MAX << (bit + 1) };
        let earlier = (1 << bit) - 1;
        if let [word] = &*self.0 {
            let set = word.load(order) & (later | earlier);
            let first = if set & later != 0 { set & later } else { set };
            return (first != 0).then(|| first.trailing_zeros() as usize);
        }
        let looks = std::iter::once((at, later))
            .chain((1..words).map(|further| ((at + further) % words, u64::MAX)))
            .chain([(at, earlier)]);
        for (word, mask) in looks {
            let set = self.0[word].load(order) & mask;
            if set != 0 {
                return Some(word * 64 + set.trailing_zeros() as usize);
            }
        }
        None
    }
}

// === impl Budget ===

impl Budget {
    fn new(limit: usize, workers: usize) -> Budget {
        Budget {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
            starving: Workers::none_of(workers),
            idle: Workers::none_of(workers),
        }
    }

    /// Counts one more connection, if the limit allows.
    pub(in crate::core) fn try_open(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |open| (open < limit).then_some(open + 1)).is_ok()
    }

    /// Counts one connection less.
    pub(super) fn close(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Changes the limit.
    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// True if there are more connections than the limit.
    pub(super) fn is_exceeded(&self) -> bool {
        self.open.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
    }

    /// The number of open connections.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Worker `id` waits for a connection and may not open one. Gives a worker to ask, which may have an idle
    /// connection. If there is none, the next worker with an idle connection sees that `id` waits.
    pub(super) fn starves(&self, id: usize) -> Option<usize> {
        self.starving.set(id, true);
        self.idle.other_than(id, Ordering::SeqCst)
    }

    /// Worker `id` gets a connection, or waits no more.
    pub(super) fn is_served(&self, id: usize) {
        self.starving.set(id, false);
    }

    /// A worker other than `id` that waits for a connection and may not open one.
    pub(super) fn starving_but(&self, id: usize) -> Option<usize> {
        self.starving.other_than(id, Ordering::Relaxed)
    }

    /// Publishes whether worker `id` has idle connections. Gives a worker that waits for one.
    pub(super) fn publish_idle(&self, id: usize, idle: bool) -> Option<usize> {
        self.idle.set(id, idle);
        if idle { self.starving.other_than(id, Ordering::SeqCst) } else { None }
    }

    /// A worker other than `id` and `also` that may have an idle connection.
    pub(super) fn idle_but(&self, id: usize, also: usize) -> Option<usize> {
        let first = self.idle.other_than(id, Ordering::SeqCst)?;
        if first != also {
            return Some(first);
        }
        self.idle.other_than(also, Ordering::SeqCst).filter(|&other| other != id && other != also)
    }
}

// === impl Budgets ===

impl Budgets {
    /// No budgets yet, for a process with this many workers.
    pub(crate) fn new(workers: usize) -> Budgets {
        Budgets { workers, known: Mutex::default() }
    }

    /// The budget for a pool and a node. A new budget allows `limit` connections.
    pub(super) fn get(&self, key: &PoolKey, node: NodeId, limit: usize) -> Arc<Budget> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.budgets.len() > 2 * known.swept + 64 {
            // Sweeps budgets of pools that no worker has any more.
            known.budgets.retain(|_, budget| Arc::strong_count(budget) > 1 || budget.open.load(Ordering::Relaxed) > 0);
            known.swept = known.budgets.len();
        }
        known.budgets.entry((key.clone(), node)).or_insert_with(|| Arc::new(Budget::new(limit, self.workers))).clone()
    }

    /// The number of open connections in all budgets.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.budgets.values().map(|budget| budget.open()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_found_behind_who_looks() {
        let workers = Workers::none_of(256);
        let from = |id| workers.other_than(id, Ordering::SeqCst);
        assert_eq!(from(3), None);
        for worker in [0, 3, 63, 64, 255] {
            workers.set(worker, true);
        }
        let expected = [(0, 3), (1, 3), (3, 63), (63, 64), (64, 255), (100, 255), (255, 0), (254, 255)];
        for (id, other) in expected {
            assert_eq!(from(id), Some(other), "{id}");
        }
        for worker in [0, 63, 64, 255] {
            workers.set(worker, false);
        }
        assert_eq!((from(3), from(4)), (None, Some(3)));
        let few = Workers::none_of(64);
        for worker in [0, 3, 63] {
            few.set(worker, true);
        }
        for (id, other) in [(0, 3), (1, 3), (3, 63), (63, 0), (10, 63)] {
            assert_eq!(few.other_than(id, Ordering::SeqCst), Some(other), "{id}");
        }
        few.set(3, false);
        few.set(63, false);
        assert_eq!((few.other_than(0, Ordering::SeqCst), few.other_than(9, Ordering::SeqCst)), (None, Some(0)));
    }

    #[test]
    fn who_waits_and_who_has_one_find_each_other() {
        let budget = Budget::new(1, 4);
        assert!(budget.try_open() && !budget.try_open());
        assert_eq!(budget.starves(1), None);
        assert_eq!(budget.publish_idle(2, true), Some(1));
        budget.is_served(1);
        assert_eq!((budget.publish_idle(2, true), budget.starves(1)), (None, Some(2)));
        assert_eq!(budget.idle_but(2, 1), None);
        budget.publish_idle(3, true);
        assert_eq!((budget.idle_but(2, 1), budget.idle_but(1, 2)), (Some(3), Some(3)));
        budget.close();
        budget.set_limit(0);
        assert!(!budget.try_open() && !budget.is_exceeded());
    }

    #[test]
    fn budgets_of_nobody_are_forgotten() {
        let budgets = Budgets::new(4);
        let key = |n: usize| PoolKey { database: n.to_string().into(), user: "u".into() };
        let kept = budgets.get(&key(0), NodeId(0), 1);
        for n in 1..10_000 {
            budgets.get(&key(n), NodeId(0), 1);
        }
        assert!(budgets.known.lock().unwrap_or_else(PoisonError::into_inner).budgets.len() < 200);
        assert!(Arc::ptr_eq(&kept, &budgets.get(&key(0), NodeId(0), 9)));
    }
}
