//! Leases of instances and sessions: heartbeats and renewals at this node, and those that other nodes report on request.

mod awake;
mod clock;
mod instance;
pub(crate) mod session;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tokio::time::Instant;

pub(super) use self::awake::stay_awake;
use self::clock::Clock;
use self::instance::{Renewed, Shard};
use self::session::Sessions;
use super::several::watched;
use super::verdicts::Missing;
use super::{Alive, lock};
use crate::cache::{Cache, Changes};
use crate::model::{Instance, InstanceId, NamespaceName, ServiceKey};
use crate::peers::wire::Silence;

/// Number of shards of the leases of instances, each with a lock.
const SHARDS: usize = 32;
/// Wheel entries taken at one look, for each shard.
const LOOK_ENTRIES: usize = 2000;
/// Instances sampled to count the missing ones of a service, or of the whole registry.
const SAMPLE: usize = 1024;
const RETURNED: usize = 100_000;

/// The leases of all instances and of all sessions.
pub(crate) struct Leases {
    began: Instant,
    clock: Clock,
    hasher: RandomState,
    shards: Vec<Mutex<Shard>>,
    sessions: Mutex<Sessions>,
    /// Instances that are not passing, but have sent a heartbeat: to be made passing in the store. Bounded; an instance without room is added at its
    /// next heartbeat.
    returned: Mutex<HashMap<InstanceId, Arc<Instance>>>,
    returned_news: Notify,
    graces: AtomicU64,
}

impl Default for Leases {
    fn default() -> Leases {
        Leases {
            began: Instant::now(),
            clock: Clock::default(),
            hasher: RandomState::default(),
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect(),
            sessions: Mutex::default(),
            returned: Mutex::default(),
            returned_news: Notify::new(),
            graces: AtomicU64::new(0),
        }
    }
}

impl Leases {
    /// Starts the clock.
    pub(super) fn start(&self) {
        self.clock.start(self.since_start());
    }

    /// Returns the time by which everything is judged: the milliseconds during which this node ran.
    pub(crate) fn now(&self) -> u64 {
        self.clock.at(self.since_start())
    }

    fn since_start(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn shard(&self, id: &InstanceId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[(self.hasher.hash_one(id) as usize) % SHARDS])
    }

    /// Applies changed instances, like [`super::Watch::observe`].
    pub(super) fn observe(&self, changes: &Changes, now: u64) {
        for (id, instance) in changes {
            self.shard(id).observe(id, instance.as_ref(), now);
        }
    }

    /// Renews the leases of instances. Returns true for each one that has a lease.
    pub(crate) fn renew(&self, ids: &[InstanceId], alive: Alive) -> Vec<bool> {
        let now = self.now();
        let renew = |id| match self.shard(id).renew(id, alive, now) {
            Renewed::Unknown => false,
            Renewed::Alive => true,
            Renewed::Returned(instance) => {
                if alive == Alive::Passing {
                    self.put_returned([instance]);
                    self.returned_news.notify_one();
                }
                true
            }
        };
        ids.iter().map(renew).collect()
    }

    /// Records heartbeats of unknown instances, like [`Shard::renew_early`].
    pub(crate) fn renew_early<'a>(&self, ids: impl Iterator<Item = &'a InstanceId>) {
        let now = self.now();
        ids.for_each(|id| self.shard(id).renew_early(id, now));
    }

    /// Returns the leases of sessions, and the time that they use.
    pub(crate) fn sessions(&self) -> (MutexGuard<'_, Sessions>, u64) {
        (lock(&self.sessions), self.now())
    }

    /// Renews a session at this node.
    pub(crate) fn renew_session(&self, namespace: &NamespaceName, id: &str) -> session::Renewal {
        let (mut sessions, now) = self.sessions();
        sessions.renew(namespace, id, now)
    }

    /// Returns, for each instance or session (by [`session::name`]), the time since its last heartbeat or renewal at this node; `None` inside if
    /// there never was one. Returns `None` for all soon after this node was suspended: heartbeats sent meanwhile may not have been read yet.
    pub(crate) fn silence(&self, ids: &[InstanceId]) -> Option<Vec<Option<Silence>>> {
        self.stood_still();
        if self.clock.has_just_stood(self.since_start()) {
            return None;
        }
        let now = self.now();
        let silence = |id| match session::is_name(id) {
            true => lock(&self.sessions).silence(id, now).map(|silence| Silence::new(silence, true)),
            false => self.shard(id).silence(id, now),
        };
        Some(ids.iter().map(silence).collect())
    }

    /// Records the silences that another node reports.
    pub(crate) fn heard_elsewhere(&self, ids: &[InstanceId], silence: &[Option<Silence>]) {
        let now = self.now();
        for (id, silence) in ids.iter().zip(silence) {
            let Some(silence) = silence else { continue };
            let at = now.saturating_sub(silence.milliseconds());
            match session::is_name(id) {
                true => lock(&self.sessions).heard_elsewhere(id, at),
                false => self.shard(id).heard_elsewhere(id, at),
            }
        }
    }

    /// Gives every lease its whole time from now, because heartbeats may have been lost.
    pub(crate) fn grace(&self) {
        let now = self.now();
        self.shards.iter().for_each(|shard| lock(shard).prolong(now));
        lock(&self.sessions).prolong(now);
        self.graces.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of such extensions.
    pub(crate) fn graces(&self) -> u64 {
        self.graces.load(Ordering::Relaxed)
    }

    /// True if this node was suspended or starved: then heartbeats wait unread, and silence proves nothing. Prolongs all leases in that case.
    pub(crate) fn stood_still(&self) -> bool {
        let stood = self.clock.look(self.since_start());
        if let Some(milliseconds) = stood {
            tracing::warn!(milliseconds, "this node stood still: every lease is prolonged");
            self.grace();
        }
        stood.is_some()
    }

    /// Returns the instances whose lease has ended and which are `ours` to judge. Each comes up again after `again` milliseconds, until it is known
    /// to be critical.
    pub(super) fn ended(&self, now: u64, again: u64, ours: impl Fn(&InstanceId) -> bool) -> Vec<Arc<Instance>> {
        let mut over = Vec::new();
        for shard in &self.shards {
            lock(shard).tick(now, LOOK_ENTRIES, again, &ours, &mut over);
        }
        over
    }

    /// True if the lease was over at `at` and the instance is not known to be critical.
    pub(super) fn is_over(&self, id: &InstanceId, at: u64) -> bool {
        self.shard(id).is_over(id, at)
    }

    /// True under the conditions of [`Shard::says_passing`].
    pub(super) fn says_passing(&self, id: &InstanceId, at: u64) -> bool {
        self.shard(id).says_passing(id, at)
    }

    /// Waits for a heartbeat of an instance that is not passing.
    pub(super) async fn someone_returned(&self) {
        self.returned_news.notified().await;
    }

    /// Takes the instances that are to be made passing.
    pub(super) fn take_returned(&self) -> Vec<Arc<Instance>> {
        std::mem::take(&mut *lock(&self.returned)).into_values().collect()
    }

    /// Puts back instances that are still to be made passing. Wakes nobody.
    pub(super) fn put_returned(&self, instances: impl IntoIterator<Item = Arc<Instance>>) {
        let mut returned = lock(&self.returned);
        for instance in instances {
            let newest = returned.get(&instance.id).is_none_or(|before| before.revision <= instance.revision);
            if newest && returned.len() < RETURNED {
                returned.insert(instance.id.clone(), instance);
            }
        }
    }

    /// Wakes the task that waits for returned instances.
    pub(super) fn tell_returned(&self) {
        self.returned_news.notify_one();
    }

    /// Returns a sample of the leases that have been silent for unusually long.
    pub(super) fn late_ones(&self, now: u64) -> Vec<InstanceId> {
        let late = |shard: &Mutex<Shard>| lock(shard).late_ones(now, SAMPLE / SHARDS).cloned().collect::<Vec<_>>();
        self.shards.iter().flat_map(late).collect()
    }

    /// Returns the late ones in a service's sample.
    pub(super) fn late_ones_of(&self, cache: &Cache, key: &ServiceKey, now: u64) -> Vec<InstanceId> {
        let Some(snapshot) = cache.snapshot(key) else { return Vec::new() };
        let late = |id: &Cow<'_, InstanceId>| self.shard(id).is_late(id, now) == Some(true);
        let ids = snapshot.instances.iter().take(SAMPLE).flat_map(|instance| watched(instance));
        ids.filter(late).map(Cow::into_owned).collect()
    }

    /// Counts the late leases in a sample of all.
    pub(super) fn late(&self, now: u64) -> Missing {
        let (missing, of) = self
            .shards
            .iter()
            .map(|shard| lock(shard).late(now, SAMPLE / SHARDS))
            .fold((0, 0), |(late, of), (l, o)| (late + l, of + o));
        Missing { missing, of }
    }

    /// Counts the late leases in a sample of a service.
    pub(super) fn late_of(&self, cache: &Cache, key: &ServiceKey, now: u64) -> Missing {
        let Some(snapshot) = cache.snapshot(key) else { return Missing::default() };
        let ids = snapshot.instances.iter().take(SAMPLE).flat_map(|instance| watched(instance));
        let known = ids.filter_map(|id| self.shard(&id).is_late(&id, now));
        let (missing, of) = known.fold((0, 0), |(late, of), is_late| (late + usize::from(is_late), of + 1));
        Missing { missing, of }
    }
}
