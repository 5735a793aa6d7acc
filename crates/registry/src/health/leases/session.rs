//! Leases of sessions. Without a clock, as in `instance`: the time, in milliseconds during which this node ran, is an argument.
//!
//! Renewals are recorded in memory, like heartbeats of instances. One node judges a session (rendezvous hashing), and asks all other nodes before it
//! does (`verdicts`). Any extension of the leases of instances extends the leases of sessions in the same call.
//!
//! After an answered renewal, the session must not end before its time to live is over: the holder of a lock relies on that. But time passes between
//! a judge's question and the commit of the end. So a node answers a renewal from memory only if the previous renewal answered by the same node is
//! less than the session's patience ago: a judge that asks this node in between is told of too short a silence to end the session. Every other
//! renewal is written to the store, where it either comes before the end and prevents it, or comes after the end and is refused.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kv::{Session, TTL_MULTIPLE};
use crate::model::{InstanceId, NamespaceName};

/// Prefix of a session's id in questions between nodes, where a session is named like an instance.
const MARK: &str = "kingpost.session:";

/// Returns the name of a session in questions between nodes.
pub(crate) fn name(namespace: &NamespaceName, id: &str) -> Option<InstanceId> {
    InstanceId::new(namespace, &format!("{MARK}{id}")).ok()
}

/// True if `id` is such a name.
pub(crate) fn is_name(id: &InstanceId) -> bool {
    id.local().starts_with(MARK)
}

/// The leases of all sessions with a time to live.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    leases: HashMap<InstanceId, Lease>,
    /// Time of the last extension of all leases.
    floor: u64,
}

#[derive(Debug)]
struct Lease {
    namespace: NamespaceName,
    session: Arc<str>,
    /// Milliseconds of silence after which the session ends.
    patience: u64,
    renewed: u64,
    /// Time of the last renewal at this node.
    heard: Option<u64>,
    /// Time of the latest renewal that this node has answered.
    answered: Option<u64>,
}

/// A renewal at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Renewal {
    /// Time of the renewal.
    at: u64,
    /// True if this node cannot have told any judge of too long a silence. If false, the renewal must be written to the store.
    pub(crate) is_safe: bool,
}

impl Sessions {
    /// Applies a new session, or (`None`) an ended one.
    pub(crate) fn observe(&mut self, namespace: &NamespaceName, id: &Arc<str>, session: Option<&Session>, now: u64) {
        let Some(name) = name(namespace, id) else { return };
        match session.and_then(Session::time_to_live) {
            Some(ttl) => {
                let patience = u64::try_from((ttl * TTL_MULTIPLE).as_millis()).unwrap_or(u64::MAX);
                let (namespace, session) = (namespace.clone(), Arc::clone(id));
                let lease = Lease { namespace, session, patience, renewed: now, heard: None, answered: None };
                self.leases.entry(name).or_insert(lease);
            }
            None => drop(self.leases.remove(&name)),
        }
    }

    /// Renews a session at this node.
    pub(crate) fn renew(&mut self, namespace: &NamespaceName, id: &str, now: u64) -> Renewal {
        let mut renewal = Renewal { at: now, is_safe: false };
        if let Some(lease) = name(namespace, id).and_then(|name| self.leases.get_mut(&name)) {
            renewal.is_safe = lease.answered.is_some_and(|at| now.saturating_sub(at) < lease.patience);
            (lease.renewed, lease.heard) = (now, Some(now));
        }
        renewal
    }

    /// Records that this node confirms a renewal to the client.
    pub(crate) fn answer(&mut self, namespace: &NamespaceName, id: &str, renewal: Renewal) {
        if let Some(lease) = name(namespace, id).and_then(|name| self.leases.get_mut(&name)) {
            lease.answered = lease.answered.max(Some(renewal.at));
        }
    }

    /// Applies a renewal at another node that came through the store.
    pub(crate) fn renewed_elsewhere(&mut self, namespace: &NamespaceName, id: &str, now: u64) {
        if let Some(lease) = name(namespace, id).and_then(|name| self.leases.get_mut(&name)) {
            lease.renewed = now;
        }
    }

    /// Returns the time since the last renewal at this node; `None` if there never was one.
    pub(crate) fn silence(&self, name: &InstanceId, now: u64) -> Option<u64> {
        self.leases.get(name)?.heard.map(|heard| now.saturating_sub(heard))
    }

    /// Records a renewal at another node, at `at`.
    pub(crate) fn heard_elsewhere(&mut self, name: &InstanceId, at: u64) {
        if let Some(lease) = self.leases.get_mut(name) {
            lease.renewed = lease.renewed.max(at);
        }
    }

    /// Gives every session its whole time from now.
    pub(crate) fn prolong(&mut self, now: u64) {
        self.floor = self.floor.max(now);
    }

    /// Returns up to `limit` sessions whose time is over, and which are `ours` to judge: the name, the namespace, the id.
    pub(crate) fn over(
        &self,
        now: u64,
        limit: usize,
        ours: impl Fn(&InstanceId) -> bool,
    ) -> Vec<(InstanceId, NamespaceName, Arc<str>)> {
        let over = self.leases.iter().filter(|(name, lease)| lease.is_over(self.floor, now) && ours(name));
        let parts =
            |(name, lease): (&InstanceId, &Lease)| (name.clone(), lease.namespace.clone(), Arc::clone(&lease.session));
        over.take(limit).map(parts).collect()
    }

    /// True if the session's time was over at `at`.
    pub(crate) fn is_over_at(&self, name: &InstanceId, at: u64) -> bool {
        self.leases.get(name).is_some_and(|lease| lease.is_over(self.floor, at))
    }
}

impl Lease {
    fn is_over(&self, floor: u64, now: u64) -> bool {
        self.renewed.max(floor).saturating_add(self.patience) <= now
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn session(ttl: Option<u64>) -> Session {
        serde_json::from_value(serde_json::json!({
            "name": "", "node": "", "lock_delay": 0, "behavior": "release", "ttl": ttl, "ttl_text": "",
            "node_checks": [], "service_checks": [],
        }))
        .unwrap()
    }

    /// Each case: the events with their times, and the first time at which the session (of 10 s: so 20 s of silence) is over.
    #[test]
    fn a_session_lives_for_twice_its_time() {
        type Step = fn(&mut Sessions, &NamespaceName, u64);
        let renew: Step = |leases, namespace, now| _ = leases.renew(namespace, "s", now);
        let other: Step = |leases, _, now| {
            let name = name(&NamespaceName::default(), "s").unwrap();
            leases.heard_elsewhere(&name, now - 500);
        };
        let prolong: Step = |leases, _, now| leases.prolong(now);
        let stranger: Step = |leases, _, now| _ = leases.renew(&NamespaceName::new("other").unwrap(), "s", now);
        for (steps, over) in [
            (&[][..], 20_100),
            (&[(5000, renew)], 25_000),
            (&[(5000, renew), (4000, renew)], 24_000),
            (&[(5000, other)], 24_500),
            (&[(5000, renew), (5200, other)], 25_000),
            (&[(7000, prolong)], 27_000),
            (&[(9000, stranger)], 20_100),
        ] {
            let namespace = NamespaceName::default();
            let mut leases = Sessions::default();
            leases.observe(&namespace, &"s".into(), Some(&session(Some(10_000))), 100);
            for (at, step) in steps {
                step(&mut leases, &namespace, *at);
            }
            let name = name(&namespace, "s").unwrap();
            assert!(!leases.is_over_at(&name, over - 1), "{over}");
            assert!(leases.is_over_at(&name, over), "{over}");
            assert_eq!(leases.over(over, 10, |_| true), [(name, namespace, "s".into())]);
        }
    }

    #[test]
    fn a_session_without_a_time_to_live_has_no_lease() {
        let namespace = NamespaceName::default();
        let mut leases = Sessions::default();
        leases.observe(&namespace, &"s".into(), Some(&session(None)), 0);
        assert!(leases.over(u64::MAX, 10, |_| true).is_empty());
        leases.observe(&namespace, &"t".into(), Some(&session(Some(10_000))), 0);
        leases.observe(&namespace, &"t".into(), None, 1);
        assert!(leases.over(u64::MAX, 10, |_| true).is_empty());
    }

    #[test]
    fn only_what_was_heard_here_is_told() {
        let namespace = NamespaceName::default();
        let mut leases = Sessions::default();
        leases.observe(&namespace, &"s".into(), Some(&session(Some(10_000))), 0);
        let name = name(&namespace, "s").unwrap();
        assert!(is_name(&name));
        assert_eq!(leases.silence(&name, 100), None, "being read from the store is no renewal");
        leases.renew(&namespace, "s", 200);
        leases.heard_elsewhere(&name, 900);
        assert_eq!(leases.silence(&name, 1000), Some(800));
    }

    /// Renewals of a session of 10 s (20 s of silence end it): the time of each, true if this node may answer it from memory, true if it is answered
    /// at all.
    #[test]
    fn a_renewal_is_answered_from_memory_only_after_one_that_was_answered() {
        for (case, steps) in [
            // The first renewal at this node: a judge may have asked already. Then as long as each comes in time.
            &[(5000, false, true), (10_000, true, true), (29_999, true, true), (49_998, true, true)][..],
            // Too late: a judge may have been told of 20 s of silence.
            &[(5000, false, true), (25_000, false, true), (26_000, true, true)],
            // Renewals that could not be written make none safe, however many come.
            &[
                (5000, false, true),
                (26_000, false, false),
                (26_001, false, false),
                (27_000, false, true),
                (28_000, true, true),
            ],
        ]
        .into_iter()
        .enumerate()
        {
            let namespace = NamespaceName::default();
            let mut leases = Sessions::default();
            leases.observe(&namespace, &"s".into(), Some(&session(Some(10_000))), 0);
            for (at, is_safe, is_answered) in steps {
                let renewal = leases.renew(&namespace, "s", *at);
                assert_eq!(renewal, Renewal { at: *at, is_safe: *is_safe }, "case {case}");
                if *is_answered {
                    leases.answer(&namespace, "s", renewal);
                }
            }
        }
    }
}
