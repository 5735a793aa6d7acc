//! Changes that a Eureka server has still to be told, by instance.
//!
//! An instance has few pending actions, for a later one makes earlier ones needless: the data are those of the time at which they are sent. A change is
//! given up when the instance's lease is over: the server has dropped the instance then, and its next heartbeat brings everything.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::InstanceId;

/// Most instances with pending actions: that of the original's server.
const MOST_WAITING: usize = 10_000;

/// A change of an instance, by the original's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::api::eureka) enum Action {
    Register,
    Heartbeat,
    Cancel,
    StatusUpdate,
    DeleteStatusOverride,
}

/// A change to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) action: Action,
    pub(super) instance: InstanceId,
    /// Name of the application.
    pub(super) app: String,
    /// The client's id of the instance.
    pub(super) client_id: String,
    /// Time at which the change is given up.
    pub(super) until: Instant,
}

/// Pending changes, the oldest instance first.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    order: VecDeque<InstanceId>,
    /// Actions of each instance in `order`: at least one, each at most once.
    pending: HashMap<InstanceId, Vec<Task>>,
    /// Number of actions that were given up.
    lost: u64,
}

/// Adds an action to the pending ones of an instance.
fn add(pending: &mut Vec<Task>, task: Task) {
    use Action::{Cancel, DeleteStatusOverride, Heartbeat, Register, StatusUpdate};
    match task.action {
        // Everything else renews the lease, too; what is cancelled has none.
        Heartbeat if !pending.is_empty() => return,
        Cancel => pending.clear(),
        StatusUpdate | DeleteStatusOverride => {
            pending.retain(|one| !matches!(one.action, StatusUpdate | DeleteStatusOverride | Heartbeat));
        }
        Register | Heartbeat => pending.retain(|one| !matches!(one.action, Register | Heartbeat)),
    }
    pending.push(task);
}

impl Backlog {
    /// Adds a change. If there are too many, the oldest instance's are given up.
    pub(super) fn push(&mut self, task: Task) {
        let instance = task.instance.clone();
        let pending = self.pending.entry(instance.clone()).or_default();
        if pending.is_empty() {
            self.order.push_back(instance);
        }
        add(pending, task);
        if self.order.len() > MOST_WAITING
            && let Some(oldest) = self.order.pop_front()
        {
            self.lost += self.pending.remove(&oldest).map_or(0, |tasks| tasks.len() as u64);
        }
    }

    /// Takes whole instances with at least `least` actions, or all; those that are too late are left out.
    pub(super) fn take(&mut self, least: usize, now: Instant) -> Vec<Task> {
        let mut taken = Vec::new();
        while taken.len() < least
            && let Some(instance) = self.order.pop_front()
        {
            for task in self.pending.remove(&instance).unwrap_or_default() {
                if task.until > now {
                    taken.push(task);
                } else {
                    self.lost += 1;
                }
            }
        }
        taken
    }

    /// Puts changes back that were taken and not sent: before those that have come since.
    pub(super) fn put_back(&mut self, tasks: Vec<Task>) {
        let mut newer: Vec<Task> = Vec::new();
        for task in &tasks {
            newer.extend(self.pending.remove(&task.instance).unwrap_or_default());
        }
        if !newer.is_empty() {
            self.order.retain(|instance| self.pending.contains_key(instance));
        }
        tasks.into_iter().chain(newer).for_each(|task| self.push(task));
    }

    /// Returns the number of instances with pending actions.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the number of actions that were given up.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

/// Returns the time at which a change of an instance with a lease of `lease` is given up.
pub(super) fn limit(now: Instant, lease: Option<Duration>) -> Instant {
    /// Lease of an instance that is gone: the original's default.
    const LEASE: Duration = Duration::from_secs(90);
    now + lease.unwrap_or(LEASE)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::NamespaceName;
    use Action::{Cancel, DeleteStatusOverride, Heartbeat, Register, StatusUpdate};

    pub(in crate::api::eureka::servers) fn task(action: Action, client_id: &str, until: Instant) -> Task {
        let instance = InstanceId::new(&NamespaceName::default(), client_id).unwrap();
        Task { action, instance, app: "SHOP".into(), client_id: client_id.into(), until }
    }

    #[test]
    fn later_actions_make_earlier_ones_needless() {
        let now = Instant::now();
        let until = now + Duration::from_secs(1);
        for (pushed, expected) in [
            (vec![Heartbeat, Heartbeat], vec![Heartbeat]),
            (vec![Heartbeat, Register, Heartbeat], vec![Register]),
            (vec![Register, StatusUpdate, Heartbeat], vec![Register, StatusUpdate]),
            (vec![Register, StatusUpdate, DeleteStatusOverride], vec![Register, DeleteStatusOverride]),
            (vec![Register, StatusUpdate, Register], vec![StatusUpdate, Register]),
            (vec![Register, StatusUpdate, Cancel], vec![Cancel]),
            // The server forgets the status of operators only by the cancellation.
            (vec![Cancel, Register, Cancel, Register], vec![Cancel, Register]),
            (vec![Cancel, Heartbeat], vec![Cancel]),
        ] {
            let mut backlog = Backlog::default();
            pushed.iter().for_each(|action| backlog.push(task(*action, "a", until)));
            let taken: Vec<Action> = backlog.take(9, now).into_iter().map(|task| task.action).collect();
            assert_eq!(taken, expected, "{pushed:?}");
            assert_eq!((backlog.len(), backlog.lost()), (0, 0));
        }
    }

    #[test]
    fn what_was_not_sent_is_sent_before_what_has_come_since() {
        let now = Instant::now();
        let until = now + Duration::from_secs(1);
        let mut backlog = Backlog::default();
        for (action, id) in [(Register, "a"), (Heartbeat, "b"), (Register, "c")] {
            backlog.push(task(action, id, until));
        }
        let taken = backlog.take(2, now);
        backlog.push(task(StatusUpdate, "a", until));
        backlog.push(task(Cancel, "b", until));
        backlog.put_back(taken);
        let all: Vec<(Action, String)> =
            backlog.take(9, now).into_iter().map(|task| (task.action, task.client_id)).collect();
        let expected = [(Register, "c"), (Register, "a"), (StatusUpdate, "a"), (Cancel, "b")];
        assert_eq!(all, expected.map(|(action, id)| (action, id.to_owned())));
    }

    #[test]
    fn changes_are_given_up_in_time_and_in_number() {
        let now = Instant::now();
        let (late, until) = (now + Duration::from_secs(1), now + Duration::from_secs(9));
        let mut backlog = Backlog::default();
        backlog.push(task(Register, "a", late));
        backlog.push(task(Register, "b", until));
        let taken = backlog.take(9, late);
        assert_eq!((taken.len(), taken[0].client_id.as_str(), backlog.lost()), (1, "b", 1));
        for number in 0..MOST_WAITING + 5 {
            backlog.push(task(Heartbeat, &number.to_string(), until));
        }
        assert_eq!((backlog.len(), backlog.lost()), (MOST_WAITING, 6));
        assert_eq!(backlog.take(1, now)[0].client_id, "5");
    }
}
