//! Deregistration of instances that stay critical. Without a clock, as in `leases`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::model::{Health, Instance, InstanceId};

/// Critical instances with a time limit.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    /// Time at which each became critical, as far as this node has seen it: starts again after a restart.
    critical: HashMap<InstanceId, (u64, Arc<Instance>)>,
    due: BTreeSet<(u64, InstanceId)>,
}

/// Milliseconds after which an instance that could not be deregistered comes up again.
const AGAIN: u64 = 5000;

impl Reaper {
    /// Applies a new or changed instance, or (`None`) a removed one.
    pub(crate) fn observe(&mut self, id: &InstanceId, instance: Option<&Arc<Instance>>, now: u64) {
        let limited = instance.and_then(|instance| {
            let after = instance.check.as_ref()?.deregister_after?;
            (instance.health == Health::Critical).then_some((instance, after))
        });
        let since = match self.critical.remove(id) {
            Some((since, before)) => {
                self.due.remove(&(end(since, &before), id.clone()));
                since
            }
            None => now,
        };
        if let Some((instance, _)) = limited {
            self.due.insert((end(since, instance), id.clone()));
            self.critical.insert(id.clone(), (since, Arc::clone(instance)));
        }
    }

    /// Returns up to `limit` instances whose time is over at `now`.
    pub(crate) fn due(&mut self, now: u64, limit: usize) -> Vec<Arc<Instance>> {
        let mut due = Vec::new();
        while due.len() < limit
            && let Some((at, id)) = self.due.first().cloned()
            && at <= now
        {
            self.due.remove(&(at, id.clone()));
            if let Some((since, instance)) = self.critical.get_mut(&id) {
                due.push(Arc::clone(instance));
                // Until the instance is observed to be gone.
                *since = since.saturating_add(now - at + AGAIN);
                self.due.insert((end(*since, instance), id));
            }
        }
        due
    }
}

fn end(since: u64, instance: &Instance) -> u64 {
    let after = instance.check.as_ref().and_then(|check| check.deregister_after).unwrap_or_default();
    since.saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;
    use crate::model::{Check, CheckKind, Registration, ServiceKey};

    fn instance(health: Health, after: Option<u64>) -> Arc<Instance> {
        let id = InstanceId::parse("default/i").unwrap();
        let mut registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), "h", 1);
        let kind = CheckKind::Ttl { ttl: Duration::from_secs(1) };
        registration.check = Some(Check { kind, deregister_after: after.map(Duration::from_millis) });
        registration.health = Some(health);
        Arc::new(Instance::registered(registration, None))
    }

    #[test]
    fn only_who_stays_critical() {
        use Health::*;
        let id = InstanceId::parse("default/i").unwrap();
        for (observed, due_at) in [
            (vec![(0, Some(instance(Critical, Some(1000))))], Some(1000)),
            (vec![(0, Some(instance(Critical, None)))], None),
            (vec![(0, Some(instance(Passing, Some(1000))))], None),
            (vec![(0, Some(instance(Critical, Some(1000)))), (500, Some(instance(Critical, Some(1000))))], Some(1000)),
            (vec![(0, Some(instance(Critical, Some(1000)))), (500, Some(instance(Critical, Some(3000))))], Some(3000)),
            (vec![(0, Some(instance(Critical, Some(1000)))), (500, Some(instance(Passing, Some(1000))))], None),
            (vec![(0, Some(instance(Critical, Some(1000)))), (500, None)], None),
        ] {
            let mut reaper = Reaper::default();
            for (now, instance) in &observed {
                reaper.observe(&id, instance.as_ref(), *now);
            }
            let first = (0..10_000).step_by(10).find(|now| !reaper.due(*now, 9).is_empty());
            assert_eq!(first, due_at, "{observed:?}");
            if let Some(at) = due_at {
                assert!(reaper.due(at + AGAIN - 10, 9).is_empty());
                assert_eq!(reaper.due(at + AGAIN, 9).len(), 1, "until it is gone");
            }
        }
    }
}
