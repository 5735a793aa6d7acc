//! Three numbers that must agree: the relays that have a commit before its client is told, as set on the servers (`synchronous_standby_names`) or the
//! proxies (`commit_durability`), and as a failover relies on (`acknowledgements`). Pure.

use super::plan::{ProxySeen, ServerState, Survey};
use super::sync_names::SyncNames;

/// The standbys that commits of a server wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// None: WAL that only the primary has is lost with it, unless proxies hold commits back.
    ForNobody,
    /// At least this many relays; 0: others than relays may be the ones.
    ForRelays(usize),
    /// Standbys none of which is known to be a relay: relays may have other names there.
    ForStrangers,
    /// The setting cannot be read.
    Unknown,
}

/// A disagreement of the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Disagreement {
    #[error(
        "{node} has synchronous_standby_names = {setting:?}: a commit there may be acknowledged without any relay having it, and a \
         failover would not know of it; name relays only ({relays}), or ask for more of them"
    )]
    WithoutRelays { node: String, setting: String, relays: String },
    #[error(
        "{node} has synchronous_standby_names = {setting:?}: commits there wait for {waits} of the relays, fewer than \
         failover.acknowledgements = {acknowledgements}; a failover needs {needed} relays because of that, and else {counted}"
    )]
    Fewer { node: String, setting: String, waits: usize, acknowledgements: usize, needed: usize, counted: usize },
    #[error(
        "{node} has no synchronous_standby_names, and others have: as the primary it would acknowledge what no relay has"
    )]
    Unsynchronized { node: String },
    #[error(
        "{node} has synchronous_standby_names = {setting:?}, in which none of the relays ({relays}) is named: if they call themselves \
         otherwise there, say so by application_name in [[failover.relays]]"
    )]
    Strangers { node: String, setting: String, relays: String },
    #[error("{node} has synchronous_standby_names = {setting:?}, which is in no form that is known")]
    Unknown { node: String, setting: String },
    #[error(
        "proxy {proxy} holds commits of {database} back for {waits} of the relays ({durability}), fewer than \
         failover.acknowledgements = {acknowledgements}"
    )]
    Gate { proxy: String, database: String, durability: String, waits: usize, acknowledgements: usize },
}

impl Disagreement {
    /// True if a failover could lose acknowledged commits in any case.
    pub(super) fn is_in_the_way(&self) -> bool {
        matches!(self, Disagreement::WithoutRelays { .. } | Disagreement::Unknown { .. })
    }
}

impl Survey {
    /// Returns the standbys that commits of a server wait for, or would.
    pub(super) fn waits(&self, state: &ServerState) -> Waits {
        match SyncNames::read(&state.sync_names) {
            Ok(None) => Waits::ForNobody,
            Ok(Some(names)) if names.names_a_relay(|name| self.is_relay(name)) => {
                Waits::ForRelays(names.relays_at_least(|name| self.is_relay(name)))
            }
            Ok(Some(_)) => Waits::ForStrangers,
            Err(()) => Waits::Unknown,
        }
    }

    fn is_relay(&self, name: &str) -> bool {
        // The default name of a relay, which several relays cannot share.
        let alone = self.relays.len() == 1 && name.eq_ignore_ascii_case("kingpost_relay");
        alone || self.relays.iter().any(|relay| relay.application.eq_ignore_ascii_case(name))
    }

    /// Returns the least number of relays that have each acknowledged commit: the configured one, or fewer if a server waits for fewer.
    pub(super) fn acknowledged_by(&self, configured: usize) -> usize {
        let waits = self.answering().filter_map(|(_, state)| match self.waits(state) {
            Waits::ForRelays(relays @ 1..) => Some(relays),
            _ => None,
        });
        waits.chain([configured]).min().unwrap_or(configured)
    }

    /// Returns the servers' disagreements with `configured` acknowledgements.
    pub(super) fn disagreements(&self, configured: usize) -> Vec<Disagreement> {
        if self.relays.is_empty() {
            return Vec::new();
        }
        let relays = || self.relays.iter().map(|relay| relay.application.as_str()).collect::<Vec<_>>().join(", ");
        let any = self.answering().any(|(_, state)| self.waits(state) != Waits::ForNobody);
        let mut found = Vec::new();
        for (server, state) in self.answering() {
            let (node, setting) = (server.name.clone(), state.sync_names.clone());
            match self.waits(state) {
                Waits::ForStrangers => found.push(Disagreement::Strangers { node, setting, relays: relays() }),
                Waits::Unknown => found.push(Disagreement::Unknown { node, setting }),
                Waits::ForRelays(0) => found.push(Disagreement::WithoutRelays { node, setting, relays: relays() }),
                Waits::ForRelays(waits) if waits < configured => {
                    let needed = |acknowledgements| config::failover::needed(self.relays.len(), acknowledgements);
                    let (needed, counted) = (needed(waits), needed(configured));
                    let acknowledgements = configured;
                    found.push(Disagreement::Fewer { node, setting, waits, acknowledgements, needed, counted });
                }
                Waits::ForNobody if any => found.push(Disagreement::Unsynchronized { node }),
                Waits::ForRelays(_) | Waits::ForNobody => {}
            }
        }
        found
    }
}

/// Returns the proxies' disagreements with `configured` acknowledgements.
pub(super) fn gates(proxies: &[ProxySeen], configured: usize) -> Vec<Disagreement> {
    let answering = proxies.iter().filter_map(|proxy| Some((proxy, proxy.state.as_ref().ok()?)));
    let all = answering.flat_map(|(proxy, state)| state.gates.iter().map(move |gate| (proxy, gate)));
    let found = all.filter_map(|(proxy, (database, durability))| {
        let waits = match durability.as_str() {
            "relay" => 1,
            quorum => quorum.strip_prefix("quorum(")?.strip_suffix(')')?.parse().ok()?,
        };
        (waits < configured).then(|| Disagreement::Gate {
            proxy: proxy.name.clone(),
            database: database.clone(),
            durability: durability.clone(),
            waits,
            acknowledgements: configured,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::ProxyState;
    use super::super::plan::tests::{relay, server};
    use super::*;

    /// Makes servers with these settings, and three relays.
    fn survey(settings: &[&str]) -> Survey {
        let mut servers: Vec<_> = ["a", "b"].iter().map(|name| server(name, Some((true, 1, 9)))).collect();
        for (server, setting) in servers.iter_mut().zip(settings) {
            if let Ok(state) = &mut server.state {
                state.sync_names = (*setting).to_owned();
            }
        }
        let relays = ["r1", "r2", "r3"].map(|name| relay(name, Some((1, 9, None, None)))).to_vec();
        Survey { servers, relays, acknowledgements: 2 }
    }

    #[test]
    fn what_servers_say_is_held_against_what_is_configured() {
        let any1 = "ANY 1 (r1, r2, r3)";
        let any2 = "ANY 2 (r1, r2, r3)";
        let fewer = |node: &str| format!("{node}: 3 instead of 2");
        for (what, settings, acknowledged, in_the_way, expected) in [
            ("as it should be", [any2, any2], 2, false, vec![]),
            ("nobody waits: proxies may", ["", ""], 2, false, vec![]),
            ("for one only", [any1, any2], 1, false, vec![fewer("a")]),
            ("for one only, everywhere", [any1, any1], 1, false, vec![fewer("a"), fewer("b")]),
            ("for all three", [any2, "3 (r1, r2, r3)"], 2, false, vec![]),
            ("the other would wait for nobody", [any2, ""], 2, false, vec!["b: unsynchronized".into()]),
            ("a standby may be the one", ["ANY 1 (r1, s)", any2], 2, true, vec!["a: without".into()]),
            ("names of others", ["somebody", any2], 2, false, vec!["a: strangers".into()]),
            ("anybody", ["*", any2], 2, true, vec!["a: without".into()]),
            ("nonsense", ["ANY (r1", any2], 2, true, vec!["a: unknown".into()]),
        ] {
            let survey = survey(&settings);
            let found = survey.disagreements(2);
            let words = found.iter().map(|found| match found {
                Disagreement::Fewer { node, needed, counted, .. } => format!("{node}: {needed} instead of {counted}"),
                Disagreement::Unsynchronized { node } => format!("{node}: unsynchronized"),
                Disagreement::WithoutRelays { node, .. } => format!("{node}: without"),
                Disagreement::Strangers { node, .. } => format!("{node}: strangers"),
                Disagreement::Unknown { node, .. } => format!("{node}: unknown"),
                Disagreement::Gate { .. } => String::new(),
            });
            assert_eq!(words.collect::<Vec<_>>(), expected, "{what}");
            assert_eq!(survey.acknowledged_by(2), acknowledged, "{what}");
            assert_eq!(found.iter().any(Disagreement::is_in_the_way), in_the_way, "{what}");
        }
    }

    #[test]
    fn what_proxies_say_is_held_against_it_too() {
        let gates = |gates: &[(&str, &str)]| ProxyState {
            paused: false,
            lease: None,
            gates: gates
                .iter()
                .map(|(database, durability)| ((*database).to_owned(), (*durability).to_owned()))
                .collect(),
        };
        let seen = |name: &str, state| ProxySeen { name: name.into(), address: String::new(), state };
        let proxies = [
            seen("p1", Ok(gates(&[("shop", "quorum(2)"), ("app", "relay")]))),
            seen("p2", Ok(gates(&[("shop", "quorum(1)"), ("log", "local")]))),
            seen("p3", Err("down".into())),
        ];
        let found = super::gates(&proxies, 2);
        let names = found.iter().map(|found| match found {
            Disagreement::Gate { proxy, database, waits, .. } => (proxy.as_str(), database.as_str(), *waits),
            _ => ("", "", 0),
        });
        assert_eq!(names.collect::<Vec<_>>(), [("p1", "app", 1), ("p2", "shop", 1)]);
        assert!(super::gates(&proxies, 1).is_empty());
    }
}
