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
mod clock;
mod grpc;
mod lease;
mod mysql;
mod probe;
mod prober;
mod reach;
mod reaper;
mod resolver;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use brake::{Brake, Missing};
use clock::Clock;
use lease::{Leases, Renewed};
use prober::Targets;
pub(crate) use reach::Range;
use reach::Reach;
use reaper::Reaper;

use crate::cache::Changes;
use crate::model::{Health, Instance, InstanceId, Patch, ServiceKey};
use crate::peers::{self, wire};
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
    /// That it is not passing.
    Unwell,
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
    /// What may be probed.
    reach: ArcSwap<Reach>,
    reaper: Mutex<Reaper>,
    brakes: Mutex<Brakes>,
    clock: Clock,
    graces: AtomicU64,
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
/// Instances that are looked at to find out how many of a service, or of the whole, are missing.
const SAMPLE: usize = 1024;
const RETURNED: usize = 100_000;
/// What was seen alive and could not be written is tried again after this.
const REVIVE_AGAIN: Duration = Duration::from_millis(250);

impl Watch {
    pub(crate) fn new(settings: HealthSettings) -> Watch {
        let reach = ArcSwap::from_pointee(Reach::new(&settings.probe_allow, &settings.probe_deny));
        Watch {
            settings,
            reach,
            began: Instant::now(),
            hasher: RandomState::default(),
            shards: (0..SHARDS).map(|_| Mutex::new(Leases::new())).collect(),
            returned: Mutex::default(),
            returned_news: Notify::new(),
            targets: Mutex::default(),
            reaper: Mutex::default(),
            brakes: Mutex::default(),
            clock: Clock::default(),
            graces: AtomicU64::new(0),
        }
    }

    /// Addresses at which this process listens: they are not probed, unless the settings allow it.
    pub(crate) fn keep_from_probes(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        let after = self.reach.load().without(addresses);
        self.reach.store(Arc::new(after));
    }

    /// The time by which everything is judged: milliseconds in which this node ran.
    fn now(&self) -> u64 {
        self.clock.at(self.since_start())
    }

    fn since_start(&self) -> u64 {
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
        let renew = |id| match self.shard(id).renew(id, alive, now) {
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

    /// How long each of these has not been heard here, in milliseconds; `None`: never was. No answer at all soon after this
    /// node stood still: what was sent meanwhile may not have been read yet.
    pub(crate) fn silence(&self, ids: &[InstanceId]) -> Option<Vec<Option<u32>>> {
        self.stood_still();
        if self.clock.has_just_stood(self.since_start()) {
            return None;
        }
        let now = self.now();
        let silence =
            |id| self.shard(id).silence(id, now).map(|silence| u32::try_from(silence).unwrap_or(u32::MAX - 1));
        Some(ids.iter().map(silence).collect())
    }

    /// Another node says for how long it has not heard each of these.
    pub(crate) fn heard_elsewhere(&self, ids: &[InstanceId], silence: &[Option<u32>]) {
        let now = self.now();
        for (id, silence) in ids.iter().zip(silence) {
            if let Some(silence) = silence {
                self.shard(id).heard_elsewhere(id, now.saturating_sub(u64::from(*silence)));
            }
        }
    }

    /// Gives every lease its whole time from now: signs of life may have been lost.
    pub(crate) fn grace(&self) {
        let now = self.now();
        self.shards.iter().for_each(|shard| lock(shard).prolong(now));
        self.graces.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that happened.
    pub(crate) fn graces(&self) -> u64 {
        self.graces.load(Ordering::Relaxed)
    }

    /// Whether this node did not run for a while (stopped, or starved): then signs of life wait unread, and silence says
    /// nothing. Gives grace if so.
    pub(crate) fn stood_still(&self) -> bool {
        let stood = self.clock.look(self.since_start());
        if let Some(milliseconds) = stood {
            tracing::warn!(milliseconds, "this node stood still: every lease is prolonged");
            self.grace();
        }
        stood.is_some()
    }

    /// Of a service, those of the sample that are late.
    fn late_ones_of(&self, inner: &Inner, key: &ServiceKey, now: u64) -> Vec<InstanceId> {
        let Some(snapshot) = inner.cache.snapshot(key) else { return Vec::new() };
        let late = |i: &&Arc<Instance>| self.shard(&i.id).is_late(&i.id, now) == Some(true);
        snapshot.instances.iter().take(SAMPLE).filter(late).map(|i| i.id.clone()).collect()
    }

    /// Asks the other nodes about everything that the brakes of `services` and of the whole look at. So they go by what
    /// all nodes have heard. What is beyond the bound counts as this node has heard it.
    async fn hear_samples(&self, inner: &Inner, services: impl Iterator<Item = &ServiceKey>) {
        let now = self.now();
        let mut ids: Vec<InstanceId> = Vec::new();
        for shard in &self.shards {
            ids.extend(lock(shard).late_ones(now, SAMPLE / SHARDS).cloned());
        }
        for key in services {
            if ids.len() >= wire::QUESTION_IDS {
                break;
            }
            ids.extend(self.late_ones_of(inner, key, now));
        }
        ids.sort_unstable();
        ids.dedup();
        ids.truncate(wire::QUESTION_IDS);
        if !ids.is_empty() {
            peers::hear(inner, &ids).await;
        }
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

    /// The services whose brakes of `cause` are not off.
    fn braked(&self, cause: Cause) -> Vec<ServiceKey> {
        lock(&self.brakes).brakes.keys().filter(|(of, _)| *of == cause).filter_map(|(_, key)| key.clone()).collect()
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
            .map(|shard| lock(shard).late(now, SAMPLE / SHARDS))
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
    inner.health.clock.start(inner.health.since_start());
    tasks.spawn(stay_awake(Arc::clone(inner)));
    tasks.spawn(revive(Arc::clone(inner)));
    if inner.settings.health.enabled {
        tasks.spawn(expire(Arc::clone(inner)));
        tasks.spawn(prober::run(Arc::clone(inner)));
    }
}

/// Runs now and then, and notices when it did not; whatever else waits for a store or a peer.
async fn stay_awake(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(TICK) => {}
        }
        inner.health.stood_still();
    }
}

/// Looks at leases, brakes and the reaper, tick by tick.
async fn expire(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let watch = &inner.health;
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        if watch.stood_still() {
            continue;
        }
        let now = watch.now();
        let mut over = Vec::new();
        for shard in &watch.shards {
            lock(shard).tick(now, TICK_ENTRIES, AGAIN, |id| inner.peers.owns(id), &mut over);
        }
        let over = silent(&inner, over).await;
        let now = watch.now();
        if over.is_empty() {
            watch.release(Cause::Heartbeat, |key| match key {
                Some(key) => watch.late_of(&inner, key, now),
                None => watch.late(now),
            });
        }
        let of_service = |key: &ServiceKey| watch.late_of(&inner, key, now);
        let (gone, held) = watch.believed(Cause::Heartbeat, over, of_service, || watch.late(now));
        add(&inner.counters.held, held as u64);
        // What could not be written comes up again, and is judged again.
        let (changed, _) = set_health(&inner, gone, Health::Critical).await;
        add(&inner.counters.expired, changed);
        let due = lock(&watch.reaper).due(now, inner.settings.limits.call_rows);
        let ours = due.into_iter().filter(|instance| inner.peers.owns(&instance.id)).collect();
        let ours = unheard(&inner, ours).await;
        let writes = ours.iter().map(|instance| Write {
            kind: WriteKind::Deregister(instance.id.clone()),
            expected: Some(instance.revision),
        });
        let removed = inner.enqueue(writes.collect()).await;
        let removed = removed.iter().filter(|answer| matches!(answer, Ok((Outcome::Removed, _)))).count();
        add(&inner.counters.reaped, removed as u64);
    }
}

/// Asks the other nodes what they have heard of these. False: nobody may be judged by that, for a node that lives has not answered, or this one
/// stood still meanwhile.
async fn is_known_of(inner: &Inner, ids: &[InstanceId]) -> bool {
    let answered = peers::hear(inner, ids).await;
    if !answered {
        add(&inner.counters.unanswered, ids.len() as u64);
    }
    answered && !inner.health.stood_still()
}

/// Of the instances whose lease has ended here, those that no other node has heard either, with all that the brakes have to know
/// to judge them. None while a node that lives does not answer: they come up again.
async fn silent(inner: &Inner, over: Vec<Arc<Instance>>) -> Vec<Arc<Instance>> {
    let watch = &inner.health;
    let now = watch.now();
    // A brake that holds looks for itself whether it can let go, now and then.
    let braking = watch.braking(Cause::Heartbeat) && now % AGAIN < TICK.as_millis() as u64;
    if over.is_empty() {
        if braking {
            let keys = watch.braked(Cause::Heartbeat);
            watch.hear_samples(inner, keys.iter()).await;
        }
        return over;
    }
    let ids: Vec<InstanceId> = over.iter().map(|instance| instance.id.clone()).collect();
    if !is_known_of(inner, &ids).await {
        return Vec::new();
    }
    // The answers may have come late, or a node been lost meanwhile: what counts is how it is now.
    let now = watch.now();
    let over: Vec<_> =
        over.into_iter().filter(|instance| watch.shard(&instance.id).is_over(&instance.id, now)).collect();
    if !over.is_empty() {
        let services: BTreeSet<&ServiceKey> = over.iter().map(|instance| &instance.service).collect();
        watch.hear_samples(inner, services.into_iter()).await;
    }
    over
}

/// Of critical instances whose time is over, those that nobody has heard to be passing again. None while a node that lives does not
/// answer: they come up again.
async fn unheard(inner: &Inner, due: Vec<Arc<Instance>>) -> Vec<Arc<Instance>> {
    let watch = &inner.health;
    if due.is_empty() {
        return due;
    }
    let ids: Vec<InstanceId> = due.iter().map(|instance| instance.id.clone()).collect();
    if !is_known_of(inner, &ids).await {
        return Vec::new();
    }
    let now = watch.now();
    let mut due = due;
    due.retain(|instance| {
        let id = &instance.id;
        !watch.shard(id).says_passing(id, now) && !lock(&watch.targets).answers(id)
    });
    due
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
        let (changed, failed) = set_health(&inner, returned, Health::Passing).await;
        add(&inner.counters.revived, changed);
        let now = inner.health.now();
        let living: Vec<_> =
            failed.into_iter().filter(|i| inner.health.shard(&i.id).says_passing(&i.id, now)).collect();
        if living.is_empty() {
            continue;
        }
        // The store was not there. What has been heard since is tried as soon as it is back, not at the next heartbeat.
        {
            let mut waiting = lock(&inner.health.returned);
            for instance in living {
                if waiting.len() < RETURNED {
                    waiting.entry(instance.id.clone()).or_insert(instance);
                }
            }
        }
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(REVIVE_AGAIN) => {}
        }
        inner.health.returned_news.notify_one();
    }
}

/// Writes the health of instances, each only if it is still as it was judged. Returns how many changed, and those that could not be
/// written.
async fn set_health(inner: &Inner, instances: Vec<Arc<Instance>>, health: Health) -> (u64, Vec<Arc<Instance>>) {
    let (mut changed, mut failed) = (0, Vec::new());
    for chunk in instances.chunks(inner.settings.limits.call_rows) {
        let writes = chunk.iter().map(|instance| Write {
            kind: WriteKind::Patch(instance.id.clone(), Patch { health: Some(health), ..Patch::default() }),
            expected: Some(instance.revision),
        });
        let answers = inner.enqueue(writes.collect()).await;
        changed += answers.iter().filter(|answer| matches!(answer, Ok((Outcome::Updated, _)))).count() as u64;
        let unwritten = chunk.iter().zip(&answers).filter(|(_, answer)| answer.is_err());
        failed.extend(unwritten.map(|(instance, _)| Arc::clone(instance)));
    }
    (changed, failed)
}
