//! Consequences of silence and of failed probes: instances become critical or passing, or are deregistered. Brakes prevent that if many are missing
//! at once.

mod reaper;
mod run;
mod self_preservation;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::reaper::Reaper;
pub(crate) use self::run::ask_all;
pub(super) use self::run::{revive, run, set_health};
pub(super) use self::self_preservation::Missing;
use self::self_preservation::SelfPreservation;
use super::lock;
use crate::cache::Changes;
use crate::model::{Instance, ServiceKey};
use crate::settings::SelfPreservationSettings;

/// The reason why instances are missing. Each has brakes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Heartbeat,
    Probe,
}

/// The brakes and the reaper of a node.
pub(crate) struct Verdicts {
    settings: SelfPreservationSettings,
    self_preservation: Mutex<SelfPreservationStates>,
    reaper: Mutex<Reaper>,
}

#[derive(Default)]
struct SelfPreservationStates {
    /// Brakes that are not off. `None`: the whole registry.
    states: BTreeMap<(Cause, Option<ServiceKey>), SelfPreservation>,
}

impl Verdicts {
    pub(super) fn new(settings: SelfPreservationSettings) -> Verdicts {
        Verdicts { settings, self_preservation: Mutex::default(), reaper: Mutex::default() }
    }

    /// Applies changed instances, like [`super::Watch::observe`].
    pub(super) fn observe(&self, changes: &Changes, now: u64) {
        let mut reaper = lock(&self.reaper);
        changes.iter().for_each(|(id, instance)| reaper.observe(id, instance.as_ref(), now));
    }

    /// Returns the brakes that hold, and for how long they have held.
    pub(crate) fn protected(&self, now: u64) -> Vec<(Option<ServiceKey>, Duration)> {
        let self_preservation = lock(&self.self_preservation);
        let holding =
            self_preservation.states.iter().filter_map(|((_, service), self_preservation)| match self_preservation {
                SelfPreservation::Holding { since } => {
                    Some((service.clone(), Duration::from_millis(now.saturating_sub(*since))))
                }
                SelfPreservation::Off | SelfPreservation::Spent => None,
            });
        holding.collect()
    }

    /// Returns those of the `gone` instances that are believed to be gone, and the number held back. `service` counts the missing ones of a service,
    /// `whole` those of the whole registry.
    pub(super) fn believed(
        &self,
        cause: Cause,
        gone: Vec<Arc<Instance>>,
        now: u64,
        service: impl Fn(&ServiceKey) -> Missing,
        whole: impl FnOnce() -> Missing,
    ) -> (Vec<Arc<Instance>>, usize) {
        let settings = &self.settings;
        let mut by_service: BTreeMap<ServiceKey, Vec<Arc<Instance>>> = BTreeMap::new();
        for instance in gone {
            by_service.entry(instance.service.clone()).or_default().push(instance);
        }
        if by_service.is_empty() {
            return (Vec::new(), 0);
        }
        let whole = whole();
        let mut self_preservation = lock(&self.self_preservation);
        let all = self_preservation.judge((cause, None), whole, settings.whole_share, settings, now);
        let (mut believed, mut held) = (Vec::new(), 0);
        for (key, gone) in by_service {
            let missing = service(&key);
            let one = self_preservation.judge((cause, Some(key)), missing, settings.service_share, settings, now);
            if all.holds() || one.holds() {
                held += gone.len();
            } else {
                believed.extend(gone);
            }
        }
        (believed, held)
    }

    /// True if any brake of `cause` is not off.
    pub(super) fn braking(&self, cause: Cause) -> bool {
        lock(&self.self_preservation).states.keys().any(|(of, _)| *of == cause)
    }

    /// Returns the services whose brakes of `cause` are not off.
    fn braked(&self, cause: Cause) -> Vec<ServiceKey> {
        lock(&self.self_preservation)
            .states
            .keys()
            .filter(|(of, _)| *of == cause)
            .filter_map(|(_, key)| key.clone())
            .collect()
    }

    /// Releases brakes whose share has fallen, while no instance is newly gone. `count`: counts as in [`Verdicts::believed`].
    pub(super) fn release(&self, cause: Cause, now: u64, count: impl Fn(Option<&ServiceKey>) -> Missing) {
        let settings = self.settings;
        let mut self_preservation = lock(&self.self_preservation);
        let keys: Vec<_> = self_preservation.states.keys().filter(|(of, _)| *of == cause).cloned().collect();
        for key in keys {
            let share = if key.1.is_some() { settings.service_share } else { settings.whole_share };
            let missing = count(key.1.as_ref());
            self_preservation.judge(key, missing, share, &settings, now);
        }
    }
}

impl SelfPreservationStates {
    fn judge(
        &mut self,
        key: (Cause, Option<ServiceKey>),
        missing: Missing,
        share: f64,
        settings: &SelfPreservationSettings,
        now: u64,
    ) -> SelfPreservation {
        let before = self.states.get(&key).copied().unwrap_or_default();
        let after = before.judge(missing, share, settings, now);
        if before != after {
            let what = key.1.as_ref().map_or("everything", ServiceKey::as_str);
            let Missing { missing, of } = missing;
            match after {
                SelfPreservation::Holding { .. } => {
                    tracing::warn!(missing, of, "{what}: much is missing at once: the last good state is kept");
                }
                SelfPreservation::Spent => {
                    tracing::warn!(missing, of, "{what}: still missing: believed to be gone now")
                }
                SelfPreservation::Off => {
                    tracing::info!(missing, of, "{what}: the last good state is not kept any more")
                }
            }
        }
        if after == SelfPreservation::Off {
            self.states.remove(&key);
        } else {
            self.states.insert(key, after);
        }
        after
    }
}
