//! Over all workers: how many connections a pool may have to a node, which workers wait for one, and which have an idle
//! one. And the limits that several pools share: of a user, of a database, of a node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use topology::NodeId;

use super::PoolKey;
use crate::core::lane::LaneWidth;
use crate::settings::ConnectionLimits;

/// Most workers, which is the number of bits in a set.
pub(crate) const MOST_WORKERS: usize = 256;

/// The server connections of one pool to one node, over all workers.
#[derive(Debug)]
pub(crate) struct Budget {
    open: AtomicUsize,
    limit: AtomicUsize,
    /// Connections beyond the limit, for clients that have waited for long.
    reserve: AtomicUsize,
    /// A limit is set in `above`. Without one, a connection that comes back looks at nothing else.
    governed: AtomicBool,
    /// The limits that are shared with other pools. Each open connection counts in all of them.
    above: [Arc<Ceiling>; CEILINGS],
    /// The number of this budget; no other budget of the process has it.
    number: u64,
    /// Workers with waiting clients that may not open another connection.
    starving: Workers,
    /// Workers that had idle connections at the end of their last turn.
    idle: Workers,
    /// The number of connections that statements share.
    lane_width: LaneWidth,
}

/// The number of limits that a pool shares with others: of its user, its database, its node.
pub(super) const CEILINGS: usize = 3;

/// The place in [`Budget::above`] of the limit on all connections to the node.
const OF_NODE: usize = 2;

/// In [`Ceiling::wanted`]: the server itself has refused a connection, so there is no room although the limit is not reached.
const PRESSED: u64 = 1 << 15;

/// Names of the limits in the configuration, in the order of [`Budget::above`].
const NAMES: [&str; CEILINGS] = ["max_user_connections", "max_database_connections", "max_node_connections"];

/// A limit that several pools share, over all workers: the server connections to one node of a user, of a database or in total.
#[derive(Debug)]
struct Ceiling {
    open: AtomicUsize,
    /// `usize::MAX`: no limit.
    limit: AtomicUsize,
    /// The pool that found no room here and goes first when there is some: its budget's number and the worker whose
    /// clients wait, see [`Ceiling::pack`]; 0: no pool. While a pool stands here, no other pool opens a connection.
    wanted: AtomicU64,
}

/// Reason for which no connection may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Full {
    /// The pool's own limit is reached.
    Pool,
    /// A limit that is shared with other pools is reached, or another pool goes first there.
    Shared,
}

/// Owner of the connections that a ceiling counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whose {
    User(Arc<str>, NodeId),
    Database(Arc<str>, NodeId),
    Node(NodeId),
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
    ceilings: HashMap<Whose, Arc<Ceiling>>,
    /// The number of the budget that was made last.
    last: u64,
    /// Entries after the last sweep.
    swept: usize,
}

// === impl Workers ===

impl Workers {
    /// Returns the empty set, for a process with this many workers.
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

    /// Returns a worker in the set other than `id`: the next higher one, wrapping around, so that different workers find different ones.
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

/// Counts one more, if fewer than `limit` are counted.
fn count_one(open: &AtomicUsize, limit: usize) -> bool {
    open.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |open| (open < limit).then_some(open + 1)).is_ok()
}

// === impl Ceiling ===

impl Ceiling {
    fn new(limit: Option<usize>) -> Ceiling {
        Ceiling {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit.unwrap_or(usize::MAX)),
            wanted: AtomicU64::new(0),
        }
    }

    /// Counts one more connection of this budget, if the limit allows and no other pool goes first.
    fn try_open(&self, number: u64) -> bool {
        let wanted = self.wanted.load(Ordering::Acquire);
        if wanted != 0 && Ceiling::unpack(wanted).0 != number {
            return false;
        }
        let counted = count_one(&self.open, self.limit.load(Ordering::Relaxed));
        if counted && wanted != 0 {
            let _ = self.wanted.compare_exchange(wanted, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        counted
    }

    fn close(&self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_full(&self) -> bool {
        self.open.load(Ordering::Acquire) >= self.limit.load(Ordering::Relaxed)
    }

    fn is_exceeded(&self) -> bool {
        self.open.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed)
    }

    /// True if this pool has to give way to the one that wants room.
    fn is_wanted(&self, wanted: u64) -> bool {
        self.is_full() || wanted & PRESSED != 0
    }

    /// Returns a budget's number, which is above 0, and a worker's, which is below [`MOST_WORKERS`].
    fn pack(number: u64, worker: usize) -> u64 {
        (number << 16) | (worker as u64 & (PRESSED - 1))
    }

    fn unpack(wanted: u64) -> (u64, usize) {
        (wanted >> 16, (wanted & (PRESSED - 1)) as usize)
    }
}

// === impl Budget ===

impl Budget {
    fn new(limits: ConnectionLimits, workers: usize, above: [Arc<Ceiling>; CEILINGS], number: u64) -> Budget {
        let budget = Budget {
            open: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            reserve: AtomicUsize::new(0),
            governed: AtomicBool::new(false),
            above,
            number,
            starving: Workers::none_of(workers),
            idle: Workers::none_of(workers),
            lane_width: LaneWidth::new(Instant::now()),
        };
        budget.set_limits(limits);
        budget
    }

    /// Counts one more connection, if the limits allow. `late`: for a client that has waited for so long that the
    /// reserve is for it.
    pub(in crate::core) fn try_open(&self, late: bool) -> Result<(), Full> {
        let reserve = if late { self.reserve.load(Ordering::Relaxed) } else { 0 };
        let limit = self.limit.load(Ordering::Relaxed).saturating_add(reserve);
        if !count_one(&self.open, limit) {
            return Err(Full::Pool);
        }
        for (at, ceiling) in self.above.iter().enumerate() {
            if !ceiling.try_open(self.number) {
                self.above[..at].iter().for_each(|ceiling| ceiling.close());
                self.open.fetch_sub(1, Ordering::AcqRel);
                return Err(Full::Shared);
            }
        }
        Ok(())
    }

    /// Counts one connection less.
    pub(super) fn close(&self) {
        self.above.iter().for_each(|ceiling| ceiling.close());
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Changes the limits, also those that are shared with other pools.
    pub(super) fn set_limits(&self, limits: ConnectionLimits) {
        self.limit.store(limits.pool, Ordering::Relaxed);
        self.reserve.store(limits.reserve, Ordering::Relaxed);
        let shared = [limits.user, limits.database, limits.node];
        for (ceiling, limit) in self.above.iter().zip(shared) {
            ceiling.limit.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
        }
        self.governed.store(shared.iter().any(Option::is_some), Ordering::Relaxed);
    }

    /// True if there are more connections than a limit allows, the reserve included: after a reload.
    pub(super) fn is_exceeded(&self) -> bool {
        self.open.load(Ordering::Relaxed) > self.size().saturating_add(self.reserve.load(Ordering::Relaxed))
            || (self.is_governed() && self.above.iter().any(|ceiling| ceiling.is_exceeded()))
    }

    /// True if a limit is set that the pool shares with others, or if the server has refused a connection for which there is to be room.
    pub(super) fn is_governed(&self) -> bool {
        self.governed.load(Ordering::Relaxed) || self.above[OF_NODE].wanted.load(Ordering::Relaxed) & PRESSED != 0
    }

    /// Returns the width of the pool's lanes.
    pub(in crate::core) fn lane_width(&self) -> &LaneWidth {
        &self.lane_width
    }

    /// Returns the number of connections that the pool may have without its reserve.
    pub(in crate::core) fn size(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Gives this pool the first place under a shared limit where no other pool has it: worker `id` found no room there.
    pub(super) fn wants(&self, id: usize) {
        for ceiling in self.above.iter().filter(|ceiling| ceiling.is_full()) {
            let wanted = Ceiling::pack(self.number, id);
            let _ = ceiling.wanted.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Has the next connection of another pool that comes back give way, and gives this pool the first place where no other pool has it: the server
    /// has refused worker `id` a connection, and no other pool has an idle one.
    pub(super) fn presses(&self, id: usize) {
        let wanted = Ceiling::pack(self.number, id);
        let ceiling = &self.above[OF_NODE].wanted;
        if ceiling.compare_exchange(0, wanted | PRESSED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // It has been given room, which something else has taken.
            let _ = ceiling.compare_exchange(wanted, wanted | PRESSED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Gives this pool the first place where no other pool has it: a connection of another pool was closed for one that the server has refused worker
    /// `id`.
    pub(super) fn has_been_given_room(&self, id: usize) {
        let wanted = Ceiling::pack(self.number, id);
        let _ = self.above[OF_NODE].wanted.compare_exchange(0, wanted, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Notes that a connection of this pool has made room: one is enough.
    pub(super) fn gave_way(&self) {
        let ceiling = &self.above[OF_NODE].wanted;
        let wanted = ceiling.load(Ordering::Acquire);
        if wanted & PRESSED != 0 {
            let _ = ceiling.compare_exchange(wanted, wanted & !PRESSED, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Notes that worker `id` does not, or no longer, wait for room under a shared limit.
    pub(super) fn wants_no_more(&self, id: usize) {
        if self.is_governed() || self.above[OF_NODE].wanted.load(Ordering::Relaxed) != 0 {
            let mine = Ceiling::pack(self.number, id);
            for ceiling in &self.above {
                let wanted = ceiling.wanted.load(Ordering::Acquire);
                if wanted & !PRESSED == mine {
                    let _ = ceiling.wanted.compare_exchange(wanted, 0, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
    }

    /// Returns the worker whose clients wait for room under a limit that is reached, and that this pool shares with theirs.
    pub(super) fn wanted_elsewhere(&self) -> Option<usize> {
        if !self.is_governed() {
            return None;
        }
        self.above.iter().find_map(|ceiling| {
            let wanted = ceiling.wanted.load(Ordering::Acquire);
            let (number, worker) = Ceiling::unpack(wanted);
            (number != 0 && number != self.number && ceiling.is_wanted(wanted)).then_some(worker)
        })
    }

    /// True if a connection that this pool closes makes room for `other`: the two share a limit that is reached.
    pub(super) fn is_in_the_way_of(&self, other: &Budget) -> bool {
        self.number != other.number
            && self.above.iter().zip(&other.above).any(|(own, other)| Arc::ptr_eq(own, other) && own.is_full())
    }

    /// Returns the configuration's name of a shared limit that is reached.
    pub(super) fn reached(&self) -> Option<&'static str> {
        self.above.iter().zip(NAMES).find(|(ceiling, _)| ceiling.is_full()).map(|(_, name)| name)
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Notes that worker `id` waits for a connection and may not open one. Returns a worker to ask, which may have an idle connection. If there is
    /// none, the next worker with an idle connection sees that `id` waits.
    pub(super) fn starves(&self, id: usize) -> Option<usize> {
        self.starving.set(id, true);
        self.idle.other_than(id, Ordering::SeqCst)
    }

    /// Notes that worker `id` gets a connection, or waits no more.
    pub(super) fn is_served(&self, id: usize) {
        self.starving.set(id, false);
    }

    /// Returns a worker other than `id` that waits for a connection and may not open one.
    pub(super) fn starving_but(&self, id: usize) -> Option<usize> {
        self.starving.other_than(id, Ordering::Relaxed)
    }

    /// Publishes whether worker `id` has idle connections. Gives a worker that waits for one.
    pub(super) fn publish_idle(&self, id: usize, idle: bool) -> Option<usize> {
        self.idle.set(id, idle);
        if idle { self.starving.other_than(id, Ordering::SeqCst) } else { None }
    }

    /// Returns a worker other than `id` and `also` that may have an idle connection.
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
    /// Creates a set without budgets, for a process with this many workers.
    pub(crate) fn new(workers: usize) -> Budgets {
        Budgets { workers, known: Mutex::default() }
    }

    /// Returns the budget for a pool and a node. A new budget has these limits.
    pub(super) fn get(&self, key: &PoolKey, node: NodeId, limits: ConnectionLimits) -> Arc<Budget> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.budgets.len() > 2 * known.swept + 64 {
            // Sweeps budgets of pools that no worker has any more.
            known.budgets.retain(|_, budget| Arc::strong_count(budget) > 1 || budget.open.load(Ordering::Relaxed) > 0);
            known.ceilings.retain(|_, ceiling| Arc::strong_count(ceiling) > 1);
            known.swept = known.budgets.len();
        }
        if let Some(budget) = known.budgets.get(&(key.clone(), node)) {
            return budget.clone();
        }
        let whose = [
            (Whose::User(key.user.clone(), node), limits.user),
            (Whose::Database(key.database.clone(), node), limits.database),
            (Whose::Node(node), limits.node),
        ];
        let above = whose
            .map(|(whose, limit)| known.ceilings.entry(whose).or_insert_with(|| Arc::new(Ceiling::new(limit))).clone());
        known.last += 1;
        let budget = Arc::new(Budget::new(limits, self.workers, above, known.last));
        known.budgets.insert((key.clone(), node), budget.clone());
        budget
    }

    /// Returns a pool, and a worker other than `id` that may have an idle connection of it to `node`: one that is in the way of `budget`.
    pub(super) fn idle_in_the_way_of(&self, budget: &Budget, node: NodeId, id: usize) -> Option<(PoolKey, usize)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let others = known.budgets.iter().filter(|((_, of), other)| *of == node && other.is_in_the_way_of(budget));
        let mut idle = others.filter_map(|((key, _), other)| Some((key, other.idle.other_than(id, Ordering::SeqCst)?)));
        idle.next().map(|(key, worker)| (key.clone(), worker))
    }

    /// Returns a pool other than that of `budget` for which `counts` holds, and a worker other than `id` that may have an idle connection of it to
    /// `node`.
    pub(super) fn idle_elsewhere(
        &self,
        budget: &Budget,
        node: NodeId,
        id: usize,
        counts: impl Fn(&PoolKey) -> bool,
    ) -> Option<(PoolKey, usize)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let others = known.budgets.iter().filter(|((_, of), other)| *of == node && other.number != budget.number);
        let mut idle = others.filter_map(|((key, _), other)| Some((key, other.idle.other_than(id, Ordering::SeqCst)?)));
        idle.find(|(key, _)| counts(key)).map(|(key, worker)| (key.clone(), worker))
    }

    /// Returns the number of open connections in all budgets.
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
        let budgets = Budgets::new(4);
        let key = PoolKey { database: "d".into(), user: "u".into() };
        let budget = budgets.get(&key, NodeId(0), ConnectionLimits::of_pool(1));
        assert_eq!((budget.try_open(false), budget.try_open(false)), (Ok(()), Err(Full::Pool)));
        assert_eq!(budget.starves(1), None);
        assert_eq!(budget.publish_idle(2, true), Some(1));
        budget.is_served(1);
        assert_eq!((budget.publish_idle(2, true), budget.starves(1)), (None, Some(2)));
        assert_eq!(budget.idle_but(2, 1), None);
        budget.publish_idle(3, true);
        assert_eq!((budget.idle_but(2, 1), budget.idle_but(1, 2)), (Some(3), Some(3)));
        budget.close();
        budget.set_limits(ConnectionLimits::of_pool(0));
        assert!(budget.try_open(false).is_err() && !budget.is_exceeded());
    }

    #[test]
    fn the_reserve_is_for_those_who_waited() {
        let key = PoolKey { database: "d".into(), user: "u".into() };
        let limits = ConnectionLimits { reserve: 1, ..ConnectionLimits::of_pool(1) };
        let budget = Budgets::new(1).get(&key, NodeId(0), limits);
        let opened = [false, false, true, true].map(|late| budget.try_open(late));
        assert_eq!(opened, [Ok(()), Err(Full::Pool), Ok(()), Err(Full::Pool)]);
        assert!(!budget.is_exceeded() && budget.open() > budget.size());
    }

    #[test]
    fn pools_share_limits_and_whoever_wants_goes_first() {
        let budgets = Budgets::new(2);
        let of = |database: &str, user: &str, node: u16| {
            let key = PoolKey { database: database.into(), user: user.into() };
            let user = (user == "u").then_some(2);
            let database = (database == "d").then_some(3);
            budgets.get(&key, NodeId(node), ConnectionLimits { user, database, ..ConnectionLimits::of_pool(9) })
        };
        let (du, eu, dv, ev) = (of("d", "u", 0), of("e", "u", 0), of("d", "v", 0), of("e", "v", 0));
        assert_eq!([du.try_open(false), eu.try_open(false)], [Ok(()), Ok(())]);
        // The user has two in two databases; another node is another matter, and so is another user.
        assert_eq!([du.try_open(false), eu.try_open(false)], [Err(Full::Shared); 2]);
        assert_eq!([of("d", "u", 1).try_open(false), ev.try_open(false)], [Ok(()), Ok(())]);
        assert_eq!([dv.try_open(false), dv.try_open(false), dv.try_open(false)], [Ok(()), Ok(()), Err(Full::Shared)]);
        assert_eq!((du.open(), eu.open(), dv.open()), (1, 1, 2), "what was refused is not counted");
        assert_eq!((du.reached(), dv.reached(), ev.reached()), (Some(NAMES[0]), Some(NAMES[1]), None));
        // `eu` wants, and worker 1 asks for it. Pools under the same limit see that.
        eu.wants(1);
        du.wants(0);
        assert_eq!((du.wanted_elsewhere(), eu.wanted_elsewhere(), ev.wanted_elsewhere()), (Some(1), None, None));
        assert!(du.is_in_the_way_of(&eu) && !ev.is_in_the_way_of(&eu) && !eu.is_in_the_way_of(&eu));
        du.close();
        // There is room, and it is for `eu`: the pool that gave it away does not take it again.
        assert_eq!((du.wanted_elsewhere(), du.try_open(false)), (None, Err(Full::Shared)));
        assert_eq!(eu.try_open(false), Ok(()));
        // A pool that wants no more does not block others.
        eu.wants(1);
        eu.wants_no_more(0);
        assert_eq!(du.wanted_elsewhere(), Some(1));
        eu.wants_no_more(1);
        assert_eq!(du.wanted_elsewhere(), None);
        eu.close();
        assert_eq!(du.try_open(false), Ok(()));
        // An idle connection in the way is found, with its worker.
        du.publish_idle(0, true);
        let (key, worker) = budgets.idle_in_the_way_of(&eu, NodeId(0), 1).expect("an idle one");
        assert_eq!((&*key.database, worker), ("d", 0));
        assert_eq!(budgets.idle_in_the_way_of(&ev, NodeId(0), 1), None);
    }

    #[test]
    fn a_server_that_is_full_makes_one_pool_give_way() {
        let budgets = Budgets::new(2);
        let of = |database: &str, node: u16| {
            let key = PoolKey { database: database.into(), user: "u".into() };
            budgets.get(&key, NodeId(node), ConnectionLimits::of_pool(9))
        };
        let (d, e, f, elsewhere) = (of("d", 0), of("e", 0), of("f", 0), of("d", 1));
        assert!(!d.is_governed() && d.try_open(false).is_ok());
        e.presses(1);
        assert!(d.is_governed() && !elsewhere.is_governed());
        assert_eq!([d.wanted_elsewhere(), f.wanted_elsewhere(), e.wanted_elsewhere()], [Some(1), Some(1), None]);
        // One gives way; the others keep theirs, and open none before the one that waits.
        d.gave_way();
        d.close();
        assert_eq!((d.wanted_elsewhere(), f.wanted_elsewhere(), d.try_open(false)), (None, None, Err(Full::Shared)));
        // It was not enough.
        e.presses(1);
        assert_eq!(f.wanted_elsewhere(), Some(1));
        f.presses(0);
        assert_eq!((e.wanted_elsewhere(), e.try_open(false)), (None, Ok(())));
        assert!(!d.is_governed() && d.try_open(false).is_ok());
        // After another pool has made room, no pool must give way, and no third pool takes the room.
        f.has_been_given_room(0);
        assert_eq!((d.wanted_elsewhere(), d.try_open(false), f.try_open(false)), (None, Err(Full::Shared), Ok(())));
        // A pool that waits no more does not block others.
        f.presses(0);
        f.wants_no_more(1);
        assert_eq!(d.wanted_elsewhere(), Some(0));
        f.wants_no_more(0);
        assert!(!d.is_governed() && d.wanted_elsewhere().is_none());
        // An idle connection is found in another worker, of a pool that counts.
        d.publish_idle(0, true);
        let found = |counts: &str| budgets.idle_elsewhere(&e, NodeId(0), 1, |key| &*key.database == counts);
        assert_eq!(found("d").map(|(key, worker)| (key.database.to_string(), worker)), Some(("d".into(), 0)));
        assert_eq!(found("f"), None);
    }

    #[test]
    fn budgets_of_nobody_are_forgotten() {
        let budgets = Budgets::new(4);
        let key = |n: usize| PoolKey { database: n.to_string().into(), user: "u".into() };
        let limits = ConnectionLimits::of_pool(1);
        let kept = budgets.get(&key(0), NodeId(0), limits);
        for n in 1..10_000 {
            budgets.get(&key(n), NodeId(0), limits);
        }
        assert!(budgets.known.lock().unwrap_or_else(PoisonError::into_inner).budgets.len() < 200);
        assert!(Arc::ptr_eq(&kept, &budgets.get(&key(0), NodeId(0), limits)));
    }
}
