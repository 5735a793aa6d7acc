//! The task that probes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::lock;
use super::probe::{Found, Question};
use super::resolver::Resolver;
use crate::health::verdicts::{Cause, set_health};
use crate::model::{Health, InstanceId, NamespaceName, ServiceKey};
use crate::registry::Inner;
use crate::status::add;

/// Interval between two looks at due probes and at results.
const TICK: Duration = Duration::from_millis(20);

/// Makes the probes, and writes the resulting health.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut asking: JoinSet<(InstanceId, Question, Option<Found>, u64)> = JoinSet::new();
    let resolver = Arc::new(Resolver::default());
    let (mut gone, mut refused, mut back) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        tokio::select! {
            biased;
            // Dropping the set ends the probes under way.
            _ = stop.wait_for(|stop| *stop) => return,
            _ = ticks.tick() => {}
        }
        let (probing, verdicts) = (&inner.health.probing, &inner.health.verdicts);
        let now = inner.health.leases.now();
        while let Some(answer) = asking.try_join_next() {
            let Ok((id, question, found, asked)) = answer else { continue };
            let Some(found) = found else {
                lock(&probing.targets).later(&id, &question, now);
                continue;
            };
            add(&inner.counters.probes, 1);
            add(&inner.counters.failed_probes, u64::from(found.health == Health::Critical));
            match lock(&probing.targets).answered(&id, &question, found.health, asked, now) {
                Some((instance, Health::Critical)) if found.refused => refused.push(instance),
                Some((instance, Health::Critical)) => gone.push(instance),
                Some((instance, verdict)) => back.push((instance, verdict)),
                None => {}
            }
        }
        let wanted = !gone.is_empty() || verdicts.braking(Cause::Probe);
        let (whole, each) = if wanted { lock(&probing.targets).missing() } else { Default::default() };
        let missing = |key: &ServiceKey| each.get(key).copied().unwrap_or_default();
        if gone.is_empty() {
            verdicts.release(Cause::Probe, now, |key| key.map_or(whole, missing));
        }
        let gone = std::mem::take(&mut gone);
        let (believed, held) = verdicts.believed(Cause::Probe, gone, now, missing, || whole);
        add(&inner.counters.held, held as u64);
        set_health(&inner, believed, Health::Critical).await;
        // Without a brake: a refused connection proves that nothing listens.
        set_health(&inner, std::mem::take(&mut refused), Health::Critical).await;
        for health in [Health::Passing, Health::Warning] {
            let (these, others): (Vec<_>, Vec<_>) = back.drain(..).partition(|(_, verdict)| *verdict == health);
            back = others;
            let these = these.into_iter().map(|(instance, _)| instance).collect();
            // A result that could not be written is found again by the next probe.
            let (changed, _) = set_health(&inner, these, health).await;
            add(&inner.counters.revived, changed);
        }
        let room = inner.settings.health.probes.saturating_sub(asking.len());
        let due = lock(&probing.targets).due(now, room);
        for (id, question) in due {
            if !inner.peers.owns(&id) {
                lock(&probing.targets).skip(&id, now);
                continue;
            }
            if let Some(found) = question.of_alias(|id| health_of(&inner, id)) {
                asking.spawn(async move { (id, question, Some(found), now) });
                continue;
            }
            let (resolver, reach) = (Arc::clone(&resolver), probing.reach.load_full());
            let secure = Arc::clone(&probing.secure);
            asking.spawn(async move {
                let found = question.ask(id.namespace(), &resolver, &reach, &secure).await;
                (id, question, found, now)
            });
        }
    }
}

/// Returns the health of an instance; `None` if it does not exist. A machine of which only instances tell exists, and is passing.
fn health_of(inner: &Inner, id: &InstanceId) -> Option<Health> {
    if let Some(instance) = inner.cache.instance(id) {
        return Some(instance.overall());
    }
    let namespace = NamespaceName::new(id.namespace()).ok()?;
    (!inner.cache.on_machine(&namespace, id.machine_name()?).is_empty()).then_some(Health::Passing)
}
