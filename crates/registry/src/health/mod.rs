//! Who is alive.
//!
//! ```text
//!  heartbeats ─▶ leases (wheel) ─┐ silent for too long          ┌─▶ patch "critical", only if still as judged ─▶ batch writer
//!  prober ─────▶ answers in a row┴─▶ brake of the service, and ─┤
//!                                    of the whole               └─▶ held: looked at again soon
//! ```
//!
//! Everything that decides is pure and gets the time as an argument: milliseconds since the node's start, monotone. What
//! is found is written through the batch writer, with the revision it was found at: whoever registered again meanwhile wins.

mod brake;
mod lease;
mod probe;
mod prober;
mod reaper;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use brake::{Brake, Missing};
use lease::{Leases, Renewed};
use prober::Targets;
use reaper::Reaper;

use crate::cache::Changes;
use crate::model::{Health, Instance, InstanceId, Patch, ServiceKey};
use crate::registry::Inner;
use crate::settings::HealthSettings;
use crate::status::add;
use crate::store::{Outcome, Write, WriteKind};

/// What became of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The instance is registered.
    Known,
    /// It is not: it should register again.
    Unknown,
}

/// What a sign of life says about an instance that is not passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alive {
    /// That it is passing again.
    Passing,
    /// Nothing: how it is is said elsewhere.
    AsReported,
}

/// For what reason instances are missing. Each has brakes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Heartbeat,
    Probe,
}

/// Health as this node watches it.
pub(crate) struct Watch {
    settings: HealthSettings,
    began: Instant,
    hasher: RandomState,
    shards: Vec<Mutex<Leases>>,
    /// Not passing, and seen alive: to be made passing in the store. Bounded; what finds no room is seen alive again soon.
    returned: Mutex<HashMap<InstanceId, Arc<Instance>>>,
    returned_news: Notify,
    targets: Mutex<Targets>,
    reaper: Mutex<Reaper>,
    brakes: Mutex<Brakes>,
}

#[derive(Default)]
struct Brakes {
    /// Those that are not off. `None`: the whole.
    brakes: BTreeMap<(Cause, Option<ServiceKey>), Brake>,
}

const SHARDS: usize = 32;
/// How often leases, brakes and the reaper are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Wheel entries that one tick looks at, of each shard: 32 x 2,000 a tick are 640,000 a second.
const TICK_ENTRIES: usize = 2000;
/// A lease that ended comes up again after this, until it is known to be critical.
const AGAIN: u64 = 1000;
/// Instances that are looked at to find out how many of a service (or of a shard, for the whole) are missing.
const SAMPLE: usize = 1000;
const RETURNED: usize = 100_000;

impl Watch {
    pub(crate) fn new(settings: HealthSettings) -> Watch {
        Watch {
            settings,
            began: Instant::now(),
            hasher: RandomState::default(),
            shards: (0..SHARDS).map(|_| Mutex::new(Leases::new())).collect(),
            returned: Mutex::default(),
            returned_news: Notify::new(),
            targets: Mutex::default(),
            reaper: Mutex::default(),
            brakes: Mutex::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn shard(&self, id: &InstanceId) -> MutexGuard<'_, Leases> {
        lock(&self.shards[(self.hasher.hash_one(id) as usize) % SHARDS])
    }

    /// Instances are different. Called by whoever applies to the cache, in the order of revisions.
    pub(crate) fn observe(&self, changes: &Changes) {
        let now = self.now();
        for (id, instance) in changes {
            self.shard(id).observe(id, instance.as_ref(), now);
        }
        let mut targets = lock(&self.targets);
        changes.iter().for_each(|(id, instance)| targets.observe(id, instance.as_ref(), now));
        drop(targets);
        let mut reaper = lock(&self.reaper);
        changes.iter().for_each(|(id, instance)| reaper.observe(id, instance.as_ref(), now));
    }

    /// These show a sign of life. Whether each has a lease.
    pub(crate) fn renew(&self, ids: &[InstanceId], alive: Alive) -> Vec<bool> {
        let now = self.now();
        let renew = |id| match self.shard(id).renew(id, now) {
            Renewed::Unknown => false,
            Renewed::Alive => true,
            Renewed::Returned(instance) => {
                if alive == Alive::Passing {
                    let mut returned = lock(&self.returned);
                    if returned.len() < RETURNED {
                        returned.insert(instance.id.clone(), instance);
                    }
                    self.returned_news.notify_one();
                }
                true
            }
        };
        ids.iter().map(renew).collect()
    }

    /// Brakes that hold, and for how long already.
    pub(crate) fn protected(&self) -> Vec<(Option<ServiceKey>, Duration)> {
        let now = self.now();
        let brakes = lock(&self.brakes);
        let holding = brakes.brakes.iter().filter_map(|((_, service), brake)| match brake {
            Brake::Holding { since } => Some((service.clone(), Duration::from_millis(now.saturating_sub(*since)))),
            Brake::Off | Brake::Spent => None,
        });
        holding.collect()
    }

    /// Of the instances that `cause` says are gone, those that may be believed to be. `service` counts how many are missing
    /// of a service, `whole` of everything.
    fn believed(
        &self,
        cause: Cause,
        gone: Vec<Arc<Instance>>,
        service: impl Fn(&ServiceKey) -> Missing,
        whole: impl FnOnce() -> Missing,
    ) -> (Vec<Arc<Instance>>, usize) {
        let now = self.now();
        let settings = &self.settings.brake;
        let mut by_service: BTreeMap<ServiceKey, Vec<Arc<Instance>>> = BTreeMap::new();
        for instance in gone {
            by_service.entry(instance.service.clone()).or_default().push(instance);
        }
        if by_service.is_empty() {
            return (Vec::new(), 0);
        }
        let whole = whole();
        let mut brakes = lock(&self.brakes);
        let all = brakes.judge((cause, None), whole, settings.whole_share, settings, now);
        let (mut believed, mut held) = (Vec::new(), 0);
        for (key, gone) in by_service {
            let missing = service(&key);
            let one = brakes.judge((cause, Some(key)), missing, settings.service_share, settings, now);
            if all.holds() || one.holds() {
                held += gone.len();
            } else {
                believed.extend(gone);
            }
        }
        (believed, held)
    }

    /// Whether any brake of `cause` is not off.
    fn braking(&self, cause: Cause) -> bool {
        lock(&self.brakes).brakes.keys().any(|(of, _)| *of == cause)
    }

    /// Brakes whose share has fallen without anybody being gone just now. `count`: as of [`Watch::believed`].
    fn release(&self, cause: Cause, count: impl Fn(Option<&ServiceKey>) -> Missing) {
        let now = self.now();
        let settings = self.settings.brake;
        let mut brakes = lock(&self.brakes);
        let keys: Vec<_> = brakes.brakes.keys().filter(|(of, _)| *of == cause).cloned().collect();
        for key in keys {
            let share = if key.1.is_some() { settings.service_share } else { settings.whole_share };
            let missing = count(key.1.as_ref());
            brakes.judge(key, missing, share, &settings, now);
        }
    }

    /// Of everything that has a lease, from a sample.
    fn late(&self, now: u64) -> Missing {
        let (missing, of) = self
            .shards
            .iter()
            .map(|shard| lock(shard).late(now, SAMPLE))
            .fold((0, 0), |(late, of), (l, o)| (late + l, of + o));
        Missing { missing, of }
    }

    /// Of a service, from a sample.
    fn late_of(&self, inner: &Inner, key: &ServiceKey, now: u64) -> Missing {
        let Some(snapshot) = inner.cache.snapshot(key) else { return Missing::default() };
        let known = snapshot.instances.iter().take(SAMPLE).filter_map(|i| self.shard(&i.id).is_late(&i.id, now));
        let (missing, of) = known.fold((0, 0), |(late, of), is_late| (late + usize::from(is_late), of + 1));
        Missing { missing, of }
    }
}

impl Brakes {
    fn judge(
        &mut self,
        key: (Cause, Option<ServiceKey>),
        missing: Missing,
        share: f64,
        settings: &crate::settings::BrakeSettings,
        now: u64,
    ) -> Brake {
        let before = self.brakes.get(&key).copied().unwrap_or_default();
        let after = before.judge(missing, share, settings, now);
        if before != after {
            let what = key.1.as_ref().map_or("everything", ServiceKey::as_str);
            let Missing { missing, of } = missing;
            match after {
                Brake::Holding { .. } => {
                    tracing::warn!(missing, of, "{what}: much is missing at once: the last good state is kept");
                }
                Brake::Spent => tracing::warn!(missing, of, "{what}: still missing: believed to be gone now"),
                Brake::Off => tracing::info!(missing, of, "{what}: the last good state is not kept any more"),
            }
        }
        if after == Brake::Off {
            self.brakes.remove(&key);
        } else {
            self.brakes.insert(key, after);
        }
        after
    }
}

/// A panic in one tick must not end health: the state is made of independent entries.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts what watches.
pub(crate) fn start(inner: &Arc<Inner>, tasks: &mut JoinSet<()>) {
    tasks.spawn(expire(Arc::clone(inner)));
    tasks.spawn(revive(Arc::clone(inner)));
    tasks.spawn(prober::run(Arc::clone(inner)));
}

/// Looks at leases, brakes and the reaper, tick by tick.
async fn expire(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        let watch = &inner.health;
        let now = watch.now();
        let mut over = Vec::new();
        for shard in &watch.shards {
            lock(shard).tick(now, TICK_ENTRIES, AGAIN, &mut over);
        }
        if over.is_empty() {
            watch.release(Cause::Heartbeat, |key| match key {
                Some(key) => watch.late_of(&inner, key, now),
                None => watch.late(now),
            });
        }
        let of_service = |key: &ServiceKey| watch.late_of(&inner, key, now);
        let (gone, held) = watch.believed(Cause::Heartbeat, over, of_service, || watch.late(now));
        add(&inner.counters.held, held as u64);
        let changed = set_health(&inner, gone, Health::Critical).await;
        add(&inner.counters.expired, changed);
        let due = lock(&watch.reaper).due(now, inner.settings.limits.call_rows);
        let writes = due.iter().map(|instance| Write {
            kind: WriteKind::Deregister(instance.id.clone()),
            expected: Some(instance.revision),
        });
        let removed = inner.enqueue(writes.collect()).await;
        let removed = removed.iter().filter(|answer| matches!(answer, Ok((Outcome::Removed, _)))).count();
        add(&inner.counters.reaped, removed as u64);
    }
}

/// Makes those passing again that were seen alive.
async fn revive(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = inner.health.returned_news.notified() => {}
        }
        let returned = std::mem::take(&mut *lock(&inner.health.returned));
        let returned = returned.into_values().collect();
        let changed = set_health(&inner, returned, Health::Passing).await;
        add(&inner.counters.revived, changed);
    }
}

/// Writes the health of instances, each only if it is still as it was judged. Returns how many changed; what could not
/// be written comes up again by itself.
async fn set_health(inner: &Inner, instances: Vec<Arc<Instance>>, health: Health) -> u64 {
    let mut changed = 0;
    for chunk in instances.chunks(inner.settings.limits.call_rows) {
        let writes = chunk.iter().map(|instance| Write {
            kind: WriteKind::Patch(instance.id.clone(), Patch { health: Some(health), ..Patch::default() }),
            expected: Some(instance.revision),
        });
        let answers = inner.enqueue(writes.collect()).await;
        changed += answers.iter().filter(|answer| matches!(answer, Ok((Outcome::Updated, _)))).count() as u64;
    }
    changed
}
