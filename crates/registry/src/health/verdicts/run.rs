//! The tasks that judge: they look at leases, brakes and the reaper, ask the other nodes, and write the verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Cause, lock};
use crate::model::{Health, Instance, InstanceId, Patch, Revision, ServiceKey};
use crate::peers::{self, wire};
use crate::registry::Inner;
use crate::status::add;
use crate::store::{Outcome, Write, WriteKind};

/// Interval between two looks at leases, brakes and the reaper.
const TICK: Duration = Duration::from_millis(100);
/// Milliseconds after which an ended lease comes up again, until the instance is known to be critical.
const AGAIN: u64 = 1000;
/// Pause before a recovery that could not be written is tried again.
const REVIVE_AGAIN: Duration = Duration::from_millis(250);

/// The time at which all live nodes were asked. An instance that was silent for too long at that time was so at every node. Later time proves
/// nothing: the store may be slow, and the other nodes go on receiving heartbeats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked(u64);

impl Asked {
    /// Returns the time as of which leases are judged.
    pub(crate) fn at(self) -> u64 {
        self.0
    }
}

/// Asks all live nodes for the last heartbeats of instances (or renewals of sessions, by their names), and records the answers. `None` forbids any
/// judgement: a live node has not answered, or this one was suspended meanwhile. If a node was lost meanwhile, all leases have been prolonged, also
/// as of [`Asked::at`].
pub(crate) async fn ask_all(inner: &Inner, ids: &[InstanceId]) -> Option<Asked> {
    let leases = &inner.health.leases;
    // Looked at first: otherwise the clock could go back behind `at` when a suspension is deducted.
    if ids.is_empty() || leases.stood_still() {
        return None;
    }
    let at = leases.now();
    if !peers::hear(inner, ids).await {
        add(&inner.counters.unanswered, ids.len() as u64);
        return None;
    }
    (!leases.stood_still()).then_some(Asked(at))
}

/// Asks the other nodes about every instance that the brakes of `services` and of the whole registry count, so that the brakes use the heartbeats at
/// all nodes. Instances beyond the bound are counted by this node's heartbeats alone.
async fn hear_samples(inner: &Inner, services: impl Iterator<Item = &ServiceKey>) {
    let leases = &inner.health.leases;
    let now = leases.now();
    let mut ids = leases.late_ones(now);
    for key in services {
        if ids.len() >= wire::QUESTION_IDS {
            break;
        }
        ids.extend(leases.late_ones_of(&inner.cache, key, now));
    }
    ids.sort_unstable();
    ids.dedup();
    ids.truncate(wire::QUESTION_IDS);
    if !ids.is_empty() {
        peers::hear(inner, &ids).await;
    }
}

/// Looks at leases, brakes and the reaper at each tick.
pub(in crate::health) async fn run(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (leases, verdicts) = (&inner.health.leases, &inner.health.verdicts);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        if leases.stood_still() {
            continue;
        }
        let over = leases.ended(leases.now(), AGAIN, |id| inner.peers.owns(id));
        let over = silent(&inner, over).await;
        let now = leases.now();
        if over.is_empty() {
            verdicts.release(Cause::Heartbeat, now, |key| match key {
                Some(key) => leases.late_of(&inner.cache, key, now),
                None => leases.late(now),
            });
        }
        let of_service = |key: &ServiceKey| leases.late_of(&inner.cache, key, now);
        let (gone, held) = verdicts.believed(Cause::Heartbeat, over, now, of_service, || leases.late(now));
        add(&inner.counters.held, held as u64);
        // A verdict that could not be written comes up again, and is judged again.
        let (changed, _) = set_health(&inner, gone, Health::Critical).await;
        add(&inner.counters.expired, changed);
        let due = lock(&verdicts.reaper).due(now, inner.settings.limits.call_rows);
        let ours = due.into_iter().filter(|instance| inner.peers.owns(&instance.id)).collect();
        let ours = unheard(&inner, ours).await;
        let writes = ours.iter().map(|instance| Write {
            kind: WriteKind::Deregister(inner.health.meant(&instance.id).0),
            expected: Some(instance.revision),
        });
        let removed = inner.enqueue(writes.collect()).await;
        let removed = removed.iter().filter(|answer| matches!(answer, Ok((Outcome::Removed, _)))).count();
        add(&inner.counters.reaped, removed as u64);
    }
}

/// Returns those of the instances with an ended lease that no other node has heard either, after asking for all that the brakes count. Returns none
/// while a live node does not answer: they come up again.
async fn silent(inner: &Inner, over: Vec<Arc<Instance>>) -> Vec<Arc<Instance>> {
    let (leases, verdicts) = (&inner.health.leases, &inner.health.verdicts);
    let now = leases.now();
    // From time to time, a brake that holds is checked for release.
    let braking = verdicts.braking(Cause::Heartbeat) && now % AGAIN < TICK.as_millis() as u64;
    if over.is_empty() {
        if braking {
            let keys = verdicts.braked(Cause::Heartbeat);
            hear_samples(inner, keys.iter()).await;
        }
        return over;
    }
    let ids: Vec<InstanceId> = over.iter().map(|instance| instance.id.clone()).collect();
    let Some(asked) = ask_all(inner, &ids).await else { return Vec::new() };
    let over: Vec<_> = over.into_iter().filter(|instance| leases.is_over(&instance.id, asked.at())).collect();
    if !over.is_empty() {
        let services: BTreeSet<&ServiceKey> = over.iter().map(|instance| &instance.service).collect();
        hear_samples(inner, services.into_iter()).await;
    }
    over
}

/// Returns those of the critical instances due for deregistration that no node has heard to be passing again. Returns none while a live node does not
/// answer: they come up again.
async fn unheard(inner: &Inner, due: Vec<Arc<Instance>>) -> Vec<Arc<Instance>> {
    let ids: Vec<InstanceId> = due.iter().map(|instance| instance.id.clone()).collect();
    let Some(asked) = ask_all(inner, &ids).await else { return Vec::new() };
    let health = &inner.health;
    let mut due = due;
    due.retain(|instance| {
        let id = &instance.id;
        !health.leases.says_passing(id, asked.at()) && !health.probing.answers(id)
    });
    due
}

/// Makes instances passing again after a heartbeat.
pub(in crate::health) async fn revive(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let leases = &inner.health.leases;
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = leases.someone_returned() => {}
        }
        let (changed, failed) = set_health(&inner, leases.take_returned(), Health::Passing).await;
        add(&inner.counters.revived, changed);
        let now = leases.now();
        let living: Vec<_> = failed.into_iter().filter(|i| leases.says_passing(&i.id, now)).collect();
        if living.is_empty() {
            continue;
        }
        // The store was unavailable. Recoveries are written as soon as it is back, not at the next heartbeat.
        leases.put_returned(living);
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(REVIVE_AGAIN) => {}
        }
        leases.tell_returned();
    }
}

/// The patch of one instance, and the instance or the checks judged.
#[derive(Default)]
struct Verdict<'a> {
    patch: Patch,
    judged: Vec<&'a Arc<Instance>>,
}

/// Writes the health of instances, each only if it is unchanged since it was judged. Returns the number changed, and the instances that could not be
/// written.
pub(in crate::health) async fn set_health(
    inner: &Inner,
    instances: Vec<Arc<Instance>>,
    health: Health,
) -> (u64, Vec<Arc<Instance>>) {
    let (mut changed, mut failed) = (0, Vec::new());
    for chunk in instances.chunks(inner.settings.limits.call_rows) {
        // Several checks of one instance are one write: a second write would find the instance changed by the first.
        let mut patches: BTreeMap<(InstanceId, Revision), Verdict<'_>> = BTreeMap::new();
        for instance in chunk {
            let (id, check) = inner.health.meant(&instance.id);
            let verdict = patches.entry((id, instance.revision)).or_default();
            match check {
                Some(check) => drop(verdict.patch.checks.insert(check, health)),
                None => verdict.patch.health = Some(health),
            }
            verdict.judged.push(instance);
        }
        let writes = patches.iter().map(|((id, revision), verdict)| Write {
            kind: WriteKind::Patch(id.clone(), verdict.patch.clone()),
            expected: Some(*revision),
        });
        let answers = inner.enqueue(writes.collect()).await;
        changed += answers.iter().filter(|answer| matches!(answer, Ok((Outcome::Updated, _)))).count() as u64;
        let unwritten = patches.into_values().zip(&answers).filter(|(_, answer)| answer.is_err());
        failed.extend(unwritten.flat_map(|(verdict, _)| verdict.judged.into_iter().map(Arc::clone)));
    }
    (changed, failed)
}
