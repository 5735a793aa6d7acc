//! The scheduler of probes: thousands of targets, one task, a bounded number of concurrent probes.

mod grpc;
mod h2ping;
mod http;
mod mysql;
mod probe;
mod reach;
mod resolver;
mod run;
mod secure;

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;

#[doc(hidden)]
pub use self::http::read_probe;
use self::probe::{Question, Row};
pub(crate) use self::reach::Range;
use self::reach::Reach;
pub(crate) use self::run::run;
use self::secure::Secure;
use super::lock;
use super::verdicts::Missing;
use crate::cache::Changes;
use crate::model::{Health, Instance, InstanceId, Pace, ServiceKey};
use crate::settings::HealthSettings;

/// The targets of probes, and the addresses that may be probed.
pub(crate) struct Probing {
    targets: Mutex<Targets>,
    reach: ArcSwap<Reach>,
    secure: Arc<Secure>,
}

impl Probing {
    /// Makes the scheduler from the settings.
    ///
    /// # Errors
    /// The file with the CA certificates is unusable.
    pub(super) fn new(settings: &HealthSettings) -> Result<Probing, String> {
        let reach = Reach::new(&settings.probe_allow, &settings.probe_deny);
        let secure = Secure::new(settings.probe_ca_file.as_deref())?;
        Ok(Probing { targets: Mutex::default(), reach: ArcSwap::from_pointee(reach), secure: Arc::new(secure) })
    }

    /// Excludes addresses on which this process listens, unless the settings allow them.
    pub(crate) fn keep_from(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        let after = self.reach.load().without(addresses);
        self.reach.store(Arc::new(after));
    }

    /// Applies changed instances, like [`super::Watch::observe`].
    pub(super) fn observe(&self, changes: &Changes, now: u64) {
        let mut targets = lock(&self.targets);
        changes.iter().for_each(|(id, instance)| targets.observe(id, instance.as_ref(), now));
    }

    /// True under the conditions of [`Targets::answers`].
    pub(super) fn answers(&self, id: &InstanceId) -> bool {
        lock(&self.targets).answers(id)
    }
}

/// Instances with probes.
#[derive(Debug, Default)]
struct Targets {
    hasher: foldhash::fast::RandomState,
    targets: HashMap<InstanceId, Target>,
    due: BTreeSet<(u64, InstanceId)>,
}

#[derive(Debug)]
struct Target {
    instance: Arc<Instance>,
    question: Question,
    pace: Pace,
    row: Row,
    /// True if this node made the last probe; otherwise another node probes it.
    ours: bool,
    /// Time of the next probe; `None` while one is under way.
    due: Option<u64>,
}

/// Maximum delay in milliseconds before a probe that could not be made is tried again.
const LATER: u64 = 1000;

impl Targets {
    /// Applies a new or changed instance, or (`None`) a removed one. The first probe of a new one comes within an interval from `now`, at a time
    /// derived from its id: so probes are spread, also after a restart.
    fn observe(&mut self, id: &InstanceId, instance: Option<&Arc<Instance>>, now: u64) {
        let Some((instance, (question, pace))) = instance.and_then(|i| Some((i, Question::of(i)?))) else {
            self.remove(id);
            return;
        };
        if let Some(target) = self.targets.get_mut(id)
            && target.question == question
            && target.pace == pace
        {
            target.instance = Arc::clone(instance);
            return;
        }
        self.remove(id);
        let interval = millis(pace.interval).max(1);
        let due = now + self.hasher.hash_one(id) % interval;
        self.due.insert((due, id.clone()));
        let instance = Arc::clone(instance);
        self.targets
            .insert(id.clone(), Target { instance, question, pace, row: Row::default(), ours: false, due: Some(due) });
    }

    fn remove(&mut self, id: &InstanceId) {
        if let Some(due) = self.targets.remove(id).and_then(|target| target.due) {
            self.due.remove(&(due, id.clone()));
        }
    }

    /// Returns up to `limit` probes that are due at `now`.
    fn due(&mut self, now: u64, limit: usize) -> Vec<(InstanceId, Question)> {
        let mut questions = Vec::new();
        while questions.len() < limit
            && let Some((at, id)) = self.due.first().cloned()
            && at <= now
        {
            self.due.remove(&(at, id.clone()));
            if let Some(target) = self.targets.get_mut(&id) {
                target.due = None;
                questions.push((id, target.question.clone()));
            }
        }
        questions
    }

    /// Applies the result of a probe made at `asked`. Returns the instance and its new health, if that is to change.
    fn answered(
        &mut self,
        id: &InstanceId,
        question: &Question,
        health: Health,
        asked: u64,
        now: u64,
    ) -> Option<(Arc<Instance>, Health)> {
        let target = self.targets.get_mut(id).filter(|target| target.due.is_none() && target.question == *question)?;
        let due = (asked + millis(target.pace.interval)).max(now + 1);
        (target.due, target.ours) = (Some(due), true);
        self.due.insert((due, id.clone()));
        let verdict = target.row.after(health, target.instance.health, &target.pace);
        (verdict != target.instance.health).then(|| (Arc::clone(&target.instance), verdict))
    }

    /// True if this node probes the instance, and the last result was a good one: then it is never deregistered, whatever the store says.
    fn answers(&self, id: &InstanceId) -> bool {
        self.targets.get(id).is_some_and(|target| target.ours && target.row.has_answered())
    }

    /// Schedules a probe that could not be made again soon, without a result.
    fn later(&mut self, id: &InstanceId, question: &Question, now: u64) {
        if let Some(target) =
            self.targets.get_mut(id).filter(|target| target.due.is_none() && target.question == *question)
        {
            let due = now + millis(target.pace.interval).clamp(1, LATER);
            target.due = Some(due);
            self.due.insert((due, id.clone()));
        }
    }

    /// Schedules a probe that another node makes again after an interval.
    fn skip(&mut self, id: &InstanceId, now: u64) {
        if let Some(target) = self.targets.get_mut(id).filter(|target| target.due.is_none()) {
            let due = now + millis(target.pace.interval).max(1);
            (target.due, target.ours, target.row) = (Some(due), false, Row::default());
            self.due.insert((due, id.clone()));
        }
    }

    /// Counts, of all targets probed here and of each service, those that are not critical and failed the last probe. One pass for all services: in a
    /// large failure, many of them are needed.
    fn missing(&self) -> (Missing, HashMap<ServiceKey, Missing>) {
        let mut whole = Missing::default();
        let mut each: HashMap<ServiceKey, Missing> = HashMap::new();
        for target in self.targets.values().filter(|target| target.ours && target.instance.health != Health::Critical) {
            let failed = usize::from(target.row.failed > 0);
            for count in [&mut whole, each.entry(target.instance.service.clone()).or_default()] {
                count.missing += failed;
                count.of += 1;
            }
        }
        (whole, each)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::model::{Check, CheckKind, Registration};

    fn instance(n: usize, interval: u64) -> Arc<Instance> {
        let id = InstanceId::parse(&format!("default/{n}")).unwrap();
        let mut registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), "h", 1);
        let pace = Pace { interval: Duration::from_millis(interval), fall: 2, ..Pace::default() };
        registration.check =
            Some(Check { kind: CheckKind::Tcp { target: None, tls: None, pace }, deregister_after: None });
        Arc::new(Instance::registered(registration, None))
    }

    #[test]
    fn questions_are_spread_over_the_interval_and_bounded() {
        let mut targets = Targets::default();
        for n in 0..1000 {
            let one = instance(n, 10_000);
            targets.observe(&one.id, Some(&one), 0);
        }
        let first = targets.due(1000, 10_000).len();
        assert!((20..300).contains(&first), "a tenth of them in a tenth of the time, not {first}");
        assert_eq!(targets.due(10_000, 7).len(), 7);
        let rest = targets.due(10_000, 10_000).len();
        assert_eq!(first + 7 + rest, 1000);
        assert!(targets.due(60_000, 1).is_empty(), "nobody is asked twice at the same time");
    }

    #[test]
    fn answers_count_for_who_was_asked() {
        let mut targets = Targets::default();
        let one = instance(1, 10_000);
        targets.observe(&one.id, Some(&one), 0);
        let ask = |targets: &mut Targets, now, health| {
            let (id, question) = targets.due(now, 1).pop().unwrap();
            targets.answered(&id, &question, health, now, now + 5).map(|(_, verdict)| verdict)
        };
        assert_eq!(ask(&mut targets, 10_000, Health::Critical), None);
        assert_eq!(targets.missing().0, Missing { missing: 1, of: 1 });
        assert_eq!(ask(&mut targets, 20_000, Health::Critical), Some(Health::Critical));
        let (id, question) = targets.due(30_000, 1).pop().unwrap();
        let elsewhere = instance(1, 5000);
        targets.observe(&id, Some(&elsewhere), 30_000);
        assert_eq!(targets.answered(&id, &question, Health::Critical, 30_000, 30_001), None, "another target now");
        targets.observe(&id, None, 30_002);
        assert!(targets.due(99_000, 9).is_empty());
    }
}
