//! How long sessions live: pure, by monotone milliseconds.
//!
//! As of instances, renewals are in memory only. The node that a session belongs to (rendezvous hashing) judges it, and asks all other nodes
//! before it does; whatever prolongs the leases of instances (a node is lost, this one stood still) prolongs these too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::model::{Session, TTL_MULTIPLE};
use crate::model::{InstanceId, NamespaceName};

/// What stands before a session's id where nodes ask each other about it, as if it were an instance.
const MARK: &str = "kingpost.session:";

/// The name by which nodes ask each other about a session.
pub(crate) fn name(namespace: &NamespaceName, id: &str) -> Option<InstanceId> {
    InstanceId::new(namespace, &format!("{MARK}{id}")).ok()
}

/// Whether `id` is such a name.
pub(crate) fn is_name(id: &InstanceId) -> bool {
    id.local().starts_with(MARK)
}

/// All sessions with a time to live.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    leases: HashMap<InstanceId, Lease>,
    /// All were prolonged at this time.
    floor: u64,
}

#[derive(Debug)]
struct Lease {
    namespace: NamespaceName,
    session: Arc<str>,
    /// Silence that ends it, in milliseconds.
    patience: u64,
    renewed: u64,
    /// When it was renewed at this node.
    heard: Option<u64>,
}

impl Leases {
    /// A session is here, or (`None`) has ended.
    pub(crate) fn observe(&mut self, namespace: &NamespaceName, id: &Arc<str>, session: Option<&Session>, now: u64) {
        let Some(name) = name(namespace, id) else { return };
        match session.and_then(Session::time_to_live) {
            Some(ttl) => {
                let patience = u64::try_from((ttl * TTL_MULTIPLE).as_millis()).unwrap_or(u64::MAX);
                let (namespace, session) = (namespace.clone(), Arc::clone(id));
                let lease = Lease { namespace, session, patience, renewed: now, heard: None };
                self.leases.entry(name).or_insert(lease);
            }
            None => drop(self.leases.remove(&name)),
        }
    }

    /// A client renews it here.
    pub(crate) fn renew(&mut self, namespace: &NamespaceName, id: &str, now: u64) {
        if let Some(lease) = name(namespace, id).and_then(|name| self.leases.get_mut(&name)) {
            (lease.renewed, lease.heard) = (now, Some(now));
        }
    }

    /// A renewal at another node went through the store, and is here now.
    pub(crate) fn renewed_elsewhere(&mut self, namespace: &NamespaceName, id: &str, now: u64) {
        if let Some(lease) = name(namespace, id).and_then(|name| self.leases.get_mut(&name)) {
            lease.renewed = now;
        }
    }

    /// How long ago it was renewed here; `None`: never.
    pub(crate) fn silence(&self, name: &InstanceId, now: u64) -> Option<u64> {
        self.leases.get(name)?.heard.map(|heard| now.saturating_sub(heard))
    }

    /// Another node heard it `silence` ago.
    pub(crate) fn heard_elsewhere(&mut self, name: &InstanceId, silence: Duration, now: u64) {
        if let Some(lease) = self.leases.get_mut(name) {
            let at = now.saturating_sub(u64::try_from(silence.as_millis()).unwrap_or(u64::MAX));
            lease.renewed = lease.renewed.max(at);
        }
    }

    /// Gives every session its whole time from now.
    pub(crate) fn prolong(&mut self, now: u64) {
        self.floor = self.floor.max(now);
    }

    /// Up to `limit` of those whose time is over, and which are `ours` to judge.
    pub(crate) fn over(&self, now: u64, limit: usize, ours: impl Fn(&InstanceId) -> bool) -> Vec<InstanceId> {
        let over = self.leases.iter().filter(|(name, lease)| lease.is_over(self.floor, now) && ours(name));
        over.take(limit).map(|(name, _)| name.clone()).collect()
    }

    /// The session, if its time is over.
    pub(crate) fn is_over(&self, name: &InstanceId, now: u64) -> Option<(NamespaceName, Arc<str>)> {
        let lease = self.leases.get(name).filter(|lease| lease.is_over(self.floor, now))?;
        Some((lease.namespace.clone(), Arc::clone(&lease.session)))
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

    /// What happens when, and the first time at which the session (of 10 s: so 20 s of silence) is over.
    #[test]
    fn a_session_lives_for_twice_its_time() {
        type Step = fn(&mut Leases, &NamespaceName, u64);
        let renew: Step = |leases, namespace, now| leases.renew(namespace, "s", now);
        let other: Step = |leases, _, now| {
            let name = name(&NamespaceName::default(), "s").unwrap();
            leases.heard_elsewhere(&name, Duration::from_millis(500), now);
        };
        let prolong: Step = |leases, _, now| leases.prolong(now);
        let stranger: Step = |leases, _, now| leases.renew(&NamespaceName::new("other").unwrap(), "s", now);
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
            let mut leases = Leases::default();
            leases.observe(&namespace, &"s".into(), Some(&session(Some(10_000))), 100);
            for (at, step) in steps {
                step(&mut leases, &namespace, *at);
            }
            let name = name(&namespace, "s").unwrap();
            assert_eq!(leases.is_over(&name, over - 1), None, "{over}");
            assert_eq!(leases.is_over(&name, over), Some((namespace, "s".into())), "{over}");
            assert_eq!(leases.over(over, 10, |_| true), [name]);
        }
    }

    #[test]
    fn a_session_without_a_time_to_live_has_no_lease() {
        let namespace = NamespaceName::default();
        let mut leases = Leases::default();
        leases.observe(&namespace, &"s".into(), Some(&session(None)), 0);
        assert!(leases.over(u64::MAX, 10, |_| true).is_empty());
        leases.observe(&namespace, &"t".into(), Some(&session(Some(10_000))), 0);
        leases.observe(&namespace, &"t".into(), None, 1);
        assert!(leases.over(u64::MAX, 10, |_| true).is_empty());
    }

    #[test]
    fn only_what_was_heard_here_is_told() {
        let namespace = NamespaceName::default();
        let mut leases = Leases::default();
        leases.observe(&namespace, &"s".into(), Some(&session(Some(10_000))), 0);
        let name = name(&namespace, "s").unwrap();
        assert!(is_name(&name));
        assert_eq!(leases.silence(&name, 100), None, "being read from the store is no renewal");
        leases.renew(&namespace, "s", 200);
        leases.heard_elsewhere(&name, Duration::ZERO, 900);
        assert_eq!(leases.silence(&name, 1000), Some(800));
    }
}
