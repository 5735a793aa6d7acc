//! Leases of instances that send heartbeats, in a timing wheel. Without a clock: the time, in milliseconds since the node's start, is an argument. It
//! is monotonic; no lease expires because a wall clock jumped.
//!
//! A heartbeat records the time in the lease and does not touch the wheel: one look-up. The wheel has one entry for each lease, which comes up when
//! the lease would have ended as scheduled; if the lease was renewed meanwhile, the entry is scheduled again for the rest.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::health::Alive;
use crate::model::{Health, Instance, InstanceId};
use crate::peers::wire::Silence;

/// Milliseconds of a slot.
const SLOT: u64 = 100;
/// One turn takes 102 s; a later entry comes up early and is scheduled again.
const SLOTS: u64 = 1024;

/// Maximum number, for each shard, of heartbeats of instances that this node does not know yet.
const EARLY: usize = 4096;
/// Minimum time for which such a heartbeat is kept while there is room. An instance becomes known soon after its registration, unless this node does
/// not reach the store, and has missed the other nodes' pushes.
const EARLY_FOR: u64 = 600_000;

/// Leases of a part of all instances.
#[derive(Debug)]
pub(crate) struct Shard {
    leases: HashMap<InstanceId, Lease, RandomState>,
    /// Times of heartbeats at this node of instances without a lease here that another node knows.
    early: HashMap<InstanceId, u64, RandomState>,
    wheel: Vec<Vec<(u64, InstanceId)>>,
    /// The next slot to look at.
    next: u64,
    /// Minimum renewal time of every lease.
    floor: u64,
}

#[derive(Debug)]
struct Lease {
    instance: Arc<Instance>,
    ttl: u64,
    renewed: u64,
    /// Time of the last heartbeat at this node, as reported to other nodes. Excludes heartbeats at other nodes.
    heard: Option<u64>,
    /// Time of the last heartbeat, at any node, that stated passing health. A report of another health clears it.
    passing: Option<u64>,
    /// Time of the valid entry in the wheel; others are left over. `None`: the lease has ended and the instance is known to be critical.
    due: Option<u64>,
}

/// The result of a heartbeat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// No lease exists.
    Unknown,
    /// The instance is passing.
    Alive,
    /// The instance is not passing, and should be again.
    Returned(Arc<Instance>),
}

impl Shard {
    pub(crate) fn new() -> Shard {
        Shard {
            leases: HashMap::default(),
            early: HashMap::default(),
            wheel: (0..SLOTS).map(|_| Vec::new()).collect(),
            next: 0,
            floor: 0,
        }
    }

    /// Applies a new or changed instance, or (`None`) a removed one. A new lease has its whole time to live from `now`.
    pub(crate) fn observe(&mut self, id: &InstanceId, instance: Option<&Arc<Instance>>, now: u64) {
        let leased = instance.and_then(|i| Some((i, i.check.as_ref()?.time_to_live()?)));
        let Some((instance, ttl)) = leased else {
            self.leases.remove(id);
            self.early.remove(id);
            return;
        };
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let early = &mut self.early;
        let lease = self.leases.entry(id.clone()).or_insert_with(|| {
            let heard = early.remove(id);
            Lease { instance: Arc::clone(instance), ttl, renewed: now, heard, passing: heard, due: None }
        });
        lease.instance = Arc::clone(instance);
        let end = lease.renewed.max(self.floor).saturating_add(ttl);
        match lease.due {
            // The instance was reported healthy: believed for one time to live.
            None if instance.health != Health::Critical => {
                lease.renewed = now;
                self.schedule(id.clone(), now.saturating_add(ttl));
            }
            None => {}
            // The entry in the wheel would come too late for a shorter time.
            Some(due) if ttl < lease.ttl && end < due => self.schedule(id.clone(), end),
            Some(_) => {}
        }
        if let Some(lease) = self.leases.get_mut(id) {
            lease.ttl = ttl;
        }
    }

    /// Renews the lease of an instance.
    pub(crate) fn renew(&mut self, id: &InstanceId, alive: Alive, now: u64) -> Renewed {
        let Some(lease) = self.leases.get_mut(id) else { return Renewed::Unknown };
        (lease.renewed, lease.heard) = (now, Some(now));
        match alive {
            Alive::Passing => lease.passing = Some(now),
            Alive::AsReported => {}
            Alive::Unwell => lease.passing = None,
        }
        let (ended, end) = (lease.due.is_none(), now.saturating_add(lease.ttl));
        let returned = (lease.instance.health != Health::Passing).then(|| Arc::clone(&lease.instance));
        if ended {
            self.schedule(id.clone(), end);
        }
        returned.map_or(Renewed::Alive, Renewed::Returned)
    }

    /// Records a heartbeat, with passing health, of an instance that another node knows and this one does not yet, for the node that judges the
    /// instance.
    pub(crate) fn renew_early(&mut self, id: &InstanceId, now: u64) {
        if self.early.len() >= EARLY && !self.early.contains_key(id) {
            self.early.retain(|_, at| now.saturating_sub(*at) < EARLY_FOR);
            if self.early.len() >= EARLY {
                return;
            }
        }
        self.early.insert(id.clone(), now);
    }

    /// Returns the time since the last heartbeat at this node; `None` if there never was one. For a critical instance, which may be deregistered,
    /// only a heartbeat with passing health counts.
    pub(crate) fn silence(&self, id: &InstanceId, now: u64) -> Option<Silence> {
        let lease = self.leases.get(id);
        let heard = match lease {
            Some(lease) if lease.instance.health == Health::Critical => lease.passing,
            Some(lease) => lease.heard,
            None => self.early.get(id).copied(),
        };
        heard.map(|heard| Silence::new(now.saturating_sub(heard), lease.is_some()))
    }

    /// Records a heartbeat at another node, at `at`.
    pub(crate) fn heard_elsewhere(&mut self, id: &InstanceId, at: u64) {
        if let Some(lease) = self.leases.get_mut(id) {
            lease.renewed = lease.renewed.max(at);
            if lease.instance.health == Health::Critical {
                lease.passing = lease.passing.max(Some(at));
            }
        }
    }

    /// True if the instance has stated within its time to live that it is passing, or if all leases were prolonged that recently. Such an instance is
    /// never deregistered, whatever the store says: its recovery may not have reached the store.
    pub(crate) fn says_passing(&self, id: &InstanceId, now: u64) -> bool {
        let Some(lease) = self.leases.get(id) else { return false };
        let prolonged = (self.floor > 0).then_some(self.floor);
        lease.passing.max(prolonged).is_some_and(|at| at.saturating_add(lease.ttl) > now)
    }

    /// Gives every lease its whole time from `now`.
    pub(crate) fn prolong(&mut self, now: u64) {
        self.floor = self.floor.max(now);
    }

    /// True if the lease is over at `now` and the instance is not known to be critical.
    pub(crate) fn is_over(&self, id: &InstanceId, now: u64) -> bool {
        let over = |lease: &Lease| lease.end(self.floor) <= now && lease.instance.health != Health::Critical;
        self.leases.get(id).is_some_and(over)
    }

    /// Collects instances whose lease is over at `now`. Looks at no more than `limit` entries; the rest follow at the next call. Each instance comes
    /// up again after `again` until [`Shard::observe`] receives it as critical. Instances that are not `ours` are judged elsewhere: they come up
    /// again after another time to live, since they may be ours by then.
    pub(crate) fn tick(
        &mut self,
        now: u64,
        limit: usize,
        again: u64,
        ours: impl Fn(&InstanceId) -> bool,
        over: &mut Vec<Arc<Instance>>,
    ) {
        let mut looked = 0;
        while self.next * SLOT <= now && looked < limit {
            let slot = (self.next % SLOTS) as usize;
            let Some((due, id)) = self.wheel[slot].pop() else {
                self.next += 1;
                continue;
            };
            looked += 1;
            let Some(lease) = self.leases.get_mut(&id).filter(|lease| lease.due == Some(due)) else { continue };
            let end = lease.end(self.floor);
            if end > now {
                self.schedule(id, end);
            } else if lease.instance.health == Health::Critical {
                lease.due = None;
            } else if !ours(&id) {
                let later = now.saturating_add(lease.ttl.max(again));
                self.schedule(id, later);
            } else {
                over.push(Arc::clone(&lease.instance));
                self.schedule(id, now.saturating_add(again));
            }
        }
    }

    /// True if the instance has been silent for unusually long; `None` if it has no lease, or is critical already.
    pub(crate) fn is_late(&self, id: &InstanceId, now: u64) -> Option<bool> {
        self.leases.get(id).and_then(|lease| lease.is_late(self.floor, now))
    }

    /// Counts, among up to `limit` leases, those that have been silent for unusually long. Returns their number and the number counted.
    pub(crate) fn late(&self, now: u64, limit: usize) -> (usize, usize) {
        let known = self.leases.values().take(limit).filter_map(|lease| lease.is_late(self.floor, now));
        known.fold((0, 0), |(late, of), is_late| (late + usize::from(is_late), of + 1))
    }

    /// Returns the instances that [`Shard::late`] counts.
    pub(crate) fn late_ones(&self, now: u64, limit: usize) -> impl Iterator<Item = &InstanceId> {
        let looked = self.leases.iter().take(limit);
        looked.filter(move |(_, lease)| lease.is_late(self.floor, now) == Some(true)).map(|(id, _)| id)
    }

    fn schedule(&mut self, id: InstanceId, due: u64) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.due = Some(due);
        // The first slot that begins after `due`, within this turn: a later entry comes up early, and is scheduled again.
        let slot = (due / SLOT + 1).clamp(self.next, self.next + SLOTS - 1);
        self.wheel[(slot % SLOTS) as usize].push((due, id));
    }
}

impl Lease {
    fn end(&self, floor: u64) -> u64 {
        self.renewed.max(floor).saturating_add(self.ttl)
    }

    /// Clients send two or three heartbeats in a time to live. If all fall silent at the same moment, then by the time the first lease ends the
    /// others have been silent for more than 0.6 of theirs: so the first expiry shows how many are missing.
    fn is_late(&self, floor: u64, now: u64) -> Option<bool> {
        let silent = now.saturating_sub(self.renewed.max(floor));
        (self.instance.health != Health::Critical).then_some(silent.saturating_mul(10) > self.ttl.saturating_mul(6))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::model::{Check, Registration, ServiceKey};

    fn instance(id: &str, ttl: u64, health: Health) -> Arc<Instance> {
        let service = ServiceKey::parse("default/s").unwrap();
        let mut registration = Registration::new(InstanceId::parse(id).unwrap(), service, "h", 1);
        registration.check = Some(Check::ttl(Duration::from_millis(ttl)));
        registration.health = Some(health);
        Arc::new(Instance::registered(registration, None))
    }

    fn tick(leases: &mut Shard, now: u64) -> usize {
        let mut over = Vec::new();
        leases.tick(now, 1000, 500, |_| true, &mut over);
        over.len()
    }

    #[test]
    fn a_lease_ends_after_its_time_and_not_before() {
        for ttl in [1000, 5000, 99_950, 102_400, 250_000, 1_000_000] {
            let mut leases = Shard::new();
            let one = instance("default/a", ttl, Health::Passing);
            leases.observe(&one.id, Some(&one), 30);
            for now in (0..=30 + ttl).step_by(70) {
                assert_eq!(tick(&mut leases, now.min(29 + ttl)), 0, "ttl {ttl} at {now}");
            }
            assert_eq!(tick(&mut leases, 30 + ttl + 2 * SLOT), 1, "ttl {ttl}");
        }
    }

    #[test]
    fn renewed_in_time_it_never_ends() {
        let mut leases = Shard::new();
        let one = instance("default/a", 1000, Health::Passing);
        leases.observe(&one.id, Some(&one), 0);
        for now in (0..60_000).step_by(300) {
            assert_eq!(leases.renew(&one.id, Alive::Passing, now), Renewed::Alive);
            assert_eq!(tick(&mut leases, now), 0);
        }
        assert_eq!(tick(&mut leases, 61_500), 1);
        assert_eq!(tick(&mut leases, 61_600), 0, "asked again only after a while");
        assert_eq!(tick(&mut leases, 62_300), 1);
    }

    #[test]
    fn ended_it_rests_until_it_returns() {
        let mut leases = Shard::new();
        let (good, bad) = (instance("default/a", 1000, Health::Passing), instance("default/a", 1000, Health::Critical));
        leases.observe(&good.id, Some(&good), 0);
        assert_eq!(tick(&mut leases, 1500), 1);
        leases.observe(&bad.id, Some(&bad), 1500);
        assert_eq!(tick(&mut leases, 60_000), 0);
        assert_eq!(leases.renew(&bad.id, Alive::Passing, 60_000), Renewed::Returned(Arc::clone(&bad)));
        leases.observe(&good.id, Some(&good), 60_001);
        assert_eq!(tick(&mut leases, 60_900), 0);
        assert_eq!(tick(&mut leases, 61_300), 1);
        leases.observe(&good.id, None, 61_300);
        assert_eq!(leases.renew(&good.id, Alive::Passing, 61_300), Renewed::Unknown);
        assert_eq!(tick(&mut leases, 99_999), 0);
    }

    #[test]
    fn a_shorter_time_counts_at_once() {
        let mut leases = Shard::new();
        let (long, short) =
            (instance("default/a", 60_000, Health::Passing), instance("default/a", 1000, Health::Passing));
        leases.observe(&long.id, Some(&long), 0);
        leases.observe(&short.id, Some(&short), 500);
        assert_eq!(tick(&mut leases, 1300), 1);
    }

    #[test]
    fn what_is_judged_elsewhere_comes_up_again_and_is_judged_when_it_is_ours() {
        let mut leases = Shard::new();
        let one = instance("default/a", 1000, Health::Passing);
        leases.observe(&one.id, Some(&one), 0);
        let mut over = Vec::new();
        for now in (0..10_000).step_by(100) {
            leases.tick(now, 1000, 500, |_| false, &mut over);
        }
        assert!(over.is_empty());
        for now in (10_000..11_300).step_by(100) {
            leases.tick(now, 1000, 500, |_| true, &mut over);
        }
        assert_eq!(over.len(), 1);
    }

    #[test]
    fn what_was_heard_elsewhere_counts_and_is_not_told_on() {
        let mut leases = Shard::new();
        let one = instance("default/a", 1000, Health::Passing);
        leases.observe(&one.id, Some(&one), 0);
        assert_eq!(leases.silence(&one.id, 300), None, "being read from the store is no sign of life");
        leases.renew(&one.id, Alive::Passing, 400);
        assert_eq!(leases.silence(&one.id, 600), Some(Silence::new(200, true)));
        leases.heard_elsewhere(&one.id, 900);
        assert_eq!(leases.silence(&one.id, 950), Some(Silence::new(550, true)), "only what was heard here");
        assert!(!leases.is_over(&one.id, 1899) && leases.is_over(&one.id, 1900));
        leases.heard_elsewhere(&one.id, 100);
        assert!(!leases.is_over(&one.id, 1899), "an older sign takes nothing back");
    }

    #[test]
    fn what_was_heard_before_the_instance_was_known_is_told_and_kept() {
        let mut leases = Shard::new();
        let one = instance("default/a", 1000, Health::Passing);
        assert_eq!(leases.silence(&one.id, 100), None);
        leases.renew_early(&one.id, 100);
        assert_eq!(leases.silence(&one.id, 300), Some(Silence::new(200, false)));
        leases.observe(&one.id, Some(&one), 400);
        assert_eq!(leases.silence(&one.id, 500), Some(Silence::new(400, true)));
        assert!(!leases.is_over(&one.id, 1399), "the lease begins when the instance is known");
        leases.observe(&one.id, None, 2000);
        assert_eq!(leases.silence(&one.id, 2000), None, "what was heard goes with the instance");
        // Unknown instances take a limited room, from which the oldest are removed.
        for n in 0..2 * EARLY {
            leases.renew_early(&InstanceId::parse(&format!("default/{n}")).unwrap(), 3000);
        }
        assert_eq!(leases.early.len(), EARLY);
        leases.renew_early(&one.id, 3000 + EARLY_FOR);
        assert_eq!(leases.early.len(), 1);
    }

    /// Only a heartbeat with passing health keeps a critical instance from being deregistered, and only for a time to live.
    #[test]
    fn who_is_critical_and_says_that_it_is_passing() {
        use Alive::*;
        for (signs, at, says) in [
            (&[][..], 100, false),
            (&[(50, Passing)], 100, true),
            (&[(50, Passing)], 1049, true),
            (&[(50, Passing)], 1050, false),
            (&[(50, AsReported)], 100, false),
            (&[(50, Passing), (60, AsReported)], 100, true),
            (&[(50, Passing), (60, Unwell)], 100, false),
            (&[(50, Unwell), (60, Passing)], 100, true),
        ] {
            let mut leases = Shard::new();
            let one = instance("default/a", 1000, Health::Critical);
            leases.observe(&one.id, Some(&one), 0);
            for (now, alive) in signs {
                leases.renew(&one.id, *alive, *now);
            }
            assert_eq!(leases.says_passing(&one.id, at), says, "{signs:?} at {at}");
            assert_eq!(leases.silence(&one.id, at).is_some(), signs.last().is_some() && (says || at > 1000));
        }
        let mut leases = Shard::new();
        let one = instance("default/a", 1000, Health::Critical);
        leases.observe(&one.id, Some(&one), 0);
        leases.heard_elsewhere(&one.id, 300);
        assert!(leases.says_passing(&one.id, 1299) && !leases.says_passing(&one.id, 1300));
        leases.prolong(2000);
        assert!(leases.says_passing(&one.id, 2999) && !leases.says_passing(&one.id, 3000));
    }

    #[test]
    fn prolonged_they_count_from_then() {
        let mut leases = Shard::new();
        let one = instance("default/a", 1000, Health::Passing);
        leases.observe(&one.id, Some(&one), 0);
        leases.prolong(900);
        assert_eq!(leases.is_late(&one.id, 1400), Some(false));
        for now in (900..1900).step_by(100) {
            assert_eq!(tick(&mut leases, now), 0, "at {now}");
        }
        assert!(!leases.is_over(&one.id, 1899));
        assert_eq!(tick(&mut leases, 2100), 1);
    }

    #[test]
    fn work_a_tick_is_bounded_and_nothing_is_lost() {
        let mut leases = Shard::new();
        for n in 0..100 {
            let one = instance(&format!("default/{n}"), 1000, Health::Passing);
            leases.observe(&one.id, Some(&one), 0);
        }
        let mut over = Vec::new();
        for _ in 0..10 {
            let before = over.len();
            leases.tick(2000, 10, 60_000, |_| true, &mut over);
            assert_eq!(over.len() - before, 10);
        }
        leases.tick(2000, 10, 60_000, |_| true, &mut over);
        assert_eq!(over.len(), 100);
        assert_eq!(leases.late(2000, 1000), (100, 100));
    }
}
