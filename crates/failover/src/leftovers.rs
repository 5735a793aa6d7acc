//! Leftovers of an interrupted run, which any later command finds. Pure.

use std::time::Duration;

use super::lock::LEASE;
use super::plan::{Locked, ProxySeen, Situation, Survey};

/// A leftover that a healthy cluster does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Leftover {
    #[error("{proxy} is paused for another {left:?}")]
    Paused { proxy: String, left: Duration },
    #[error("{node} is locked, by a lease that ends within {LEASE:?}")]
    LockedByLease { node: String },
    #[error("{node} is locked")]
    Locked { node: String },
    #[error("{relay} is fenced, which stops nothing as long as the others are not")]
    Fenced { relay: String },
    #[error(
        "{node} has default_transaction_read_only = on, as a switchover of an earlier version may have left it: ALTER SYSTEM RESET \
         default_transaction_read_only; SELECT pg_reload_conf(); there"
    )]
    ReadOnly { node: String },
}

impl Leftover {
    /// True if it ends by itself, and may belong to a run under way.
    pub(super) fn ends_by_itself(&self) -> bool {
        matches!(self, Leftover::Paused { .. } | Leftover::LockedByLease { .. })
    }

    /// True if it can be taken back.
    pub(super) fn can_be_taken_back(&self) -> bool {
        !matches!(self, Leftover::ReadOnly { .. })
    }
}

/// Returns the leftovers while a primary works. Without a primary a failover may be under way, so there are none.
pub(super) fn leftovers(survey: &Survey, proxies: &[ProxySeen], situation: &Situation) -> Vec<Leftover> {
    let Situation::Healthy { primary, .. } = situation else { return Vec::new() };
    let mut found = Vec::new();
    for proxy in proxies {
        if let Ok(state) = &proxy.state
            && let Some(left) = state.lease
        {
            found.push(Leftover::Paused { proxy: proxy.name.clone(), left });
        }
    }
    for (server, state) in survey.answering() {
        let node = server.name.clone();
        // A server on an older timeline was left by a switchover, and stays locked until it is a standby.
        let should_open = state.standby || node == *primary;
        match state.locked {
            Locked::ByLease if should_open => found.push(Leftover::LockedByLease { node }),
            Locked::ForGood if should_open => found.push(Leftover::Locked { node }),
            Locked::ByLease | Locked::ForGood => {}
            Locked::No if node == *primary && state.read_only => found.push(Leftover::ReadOnly { node }),
            Locked::No => {}
        }
    }
    let fenced = survey.standing().filter(|(_, standing)| standing.fenced.is_some());
    found.extend(fenced.map(|(relay, _)| Leftover::Fenced { relay: relay.name.clone() }));
    found
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{relay, server};
    use super::super::plan::{ProxyState, ServerSeen};
    use super::*;

    fn seen(lease: Option<Duration>, paused: bool) -> ProxySeen {
        let state = ProxyState { paused, lease, gates: Vec::new() };
        ProxySeen { name: "p".into(), address: String::new(), state: Ok(state) }
    }

    fn locked(mut server: ServerSeen, locked: Locked) -> ServerSeen {
        if let Ok(state) = &mut server.state {
            state.locked = locked;
        }
        server
    }

    #[test]
    fn what_is_left_over() {
        let primary = || server("a", Some((false, 2, 9)));
        let standby = || server("b", Some((true, 2, 9)));
        let old = || server("o", Some((false, 1, 9)));
        let left = Duration::from_secs(9);
        let well = Situation::Healthy { primary: "a".into(), timeline: 2 };
        let node = |name: &str| name.to_owned();
        for (what, servers, proxy, relays, expected) in [
            ("nothing", vec![primary(), standby()], seen(None, false), vec![], vec![]),
            ("an operator's pause", vec![primary()], seen(None, true), vec![], vec![]),
            (
                "a pause",
                vec![primary()],
                seen(Some(left), true),
                vec![],
                vec![Leftover::Paused { proxy: node("p"), left }],
            ),
            (
                "a lease",
                vec![locked(primary(), Locked::ByLease)],
                seen(None, false),
                vec![],
                vec![Leftover::LockedByLease { node: node("a") }],
            ),
            (
                "a lock",
                vec![locked(primary(), Locked::ForGood)],
                seen(None, false),
                vec![],
                vec![Leftover::Locked { node: node("a") }],
            ),
            (
                "the lock of one that has become a standby",
                vec![primary(), locked(standby(), Locked::ForGood)],
                seen(None, false),
                vec![],
                vec![Leftover::Locked { node: node("b") }],
            ),
            (
                "the lock of an old primary, which is as it should be",
                vec![primary(), locked(old(), Locked::ForGood)],
                seen(None, false),
                vec![],
                vec![],
            ),
            (
                "a relay that has come back",
                vec![primary()],
                seen(None, false),
                vec![relay("r", Some((2, 9, Some(2), None)))],
                vec![Leftover::Fenced { relay: node("r") }],
            ),
        ] {
            let survey = Survey { servers, relays, acknowledgements: 1 };
            assert_eq!(leftovers(&survey, &[proxy], &well), expected, "{what}");
        }
        let mut read_only = primary();
        read_only.state.iter_mut().for_each(|state| state.read_only = true);
        let survey = Survey { servers: vec![read_only], relays: vec![], acknowledgements: 1 };
        assert_eq!(leftovers(&survey, &[], &well), [Leftover::ReadOnly { node: node("a") }]);
        assert_eq!(leftovers(&survey, &[seen(Some(left), true)], &Situation::NoPrimary { timeline: 2 }), []);
    }
}
