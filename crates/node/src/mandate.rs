//! The cluster as one node sees it: the primary among the others, and the relays' word on the node's own timeline. Pure.

use failover::observe::{Observed, Voice};
use watermark::Lsn;

/// The primary among the other servers: on the highest timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) system: u64,
    pub(crate) timeline: u32,
    /// Position at which its history leaves this node's timeline, if known.
    pub(crate) fork: Option<Lsn>,
}

/// Word of the relays on a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mandate {
    /// Most relays follow the timeline or would, and none has ended it.
    Stands,
    /// A relay or a server is on a newer timeline, or a relay has elected another node.
    Ended,
    /// Too few relays have said so.
    Unknown { answering: usize, needed: usize },
}

/// Returns the primary among the servers other than `own`.
pub(crate) fn leader(seen: &Observed, own: &str) -> Option<Leader> {
    let primaries = seen.servers.iter().filter(|server| server.name != own).filter_map(|server| {
        let state = server.state.as_ref().ok().filter(|state| !state.standby)?;
        Some(Leader {
            name: server.name.clone(),
            address: server.address.clone(),
            system: state.system,
            timeline: state.timeline,
            fork: None,
        })
    });
    primaries.max_by_key(|leader| leader.timeline)
}

/// True if another server or a relay has data of a cluster.
pub(crate) fn cluster_exists(seen: &Observed, own: &str) -> bool {
    seen.servers.iter().any(|server| server.name != own && server.state.is_ok())
        || seen.relays.iter().any(|relay| matches!(relay.voice, Voice::State(_)))
}

/// Returns the relays' word on `timeline` of `system` with `own` as its primary. Without relays nobody ends a timeline but a newer primary.
pub(crate) fn mandate(seen: &Observed, own: &str, system: u64, timeline: u32) -> Mandate {
    let newer = |server: &&failover::observe::Peer| {
        let state = server.state.as_ref().ok();
        server.name != own && state.is_some_and(|state| state.system == system && state.timeline > timeline)
    };
    if seen.servers.iter().any(|server| newer(&server)) {
        return Mandate::Ended;
    }
    let mut answering = 0;
    for relay in &seen.relays {
        match &relay.voice {
            Voice::Empty => answering += 1,
            // Another cluster's relay by mistake, or a relay that does not answer.
            Voice::State(state) if state.system != system => {}
            Voice::Silent(_) => {}
            Voice::State(state) => {
                let fenced = state.fenced.is_some_and(|fenced| fenced >= timeline);
                let elected = state.chosen.as_ref().filter(|_| fenced).map(|(_, node)| node);
                match elected {
                    _ if state.timeline > timeline => return Mandate::Ended,
                    Some(node) if node != own => return Mandate::Ended,
                    // A fence without a choice: a failover is under way.
                    None if fenced => {}
                    _ => answering += 1,
                }
            }
        }
    }
    let needed = match seen.relays.len() {
        0 => 0,
        relays => relays / 2 + 1,
    };
    if answering >= needed { Mandate::Stands } else { Mandate::Unknown { answering, needed } }
}

#[cfg(test)]
mod tests {
    use failover::observe::{Peer, PeerState, RelayPeer};
    use relay::RelayState;

    use super::*;

    fn server(name: &str, standby: bool, timeline: u32) -> Peer {
        let state = PeerState {
            system: 1,
            standby,
            timeline,
            has: Lsn(9),
            replayed: Lsn(9),
            receiving: standby,
            upstream: None,
            locked: false,
        };
        Peer { name: name.into(), address: format!("{name}:5432"), state: Ok(state) }
    }

    fn relay(timeline: u32, fenced: Option<u32>, chosen: Option<&str>) -> RelayPeer {
        let state = RelayState {
            system: 1,
            term: 1,
            timeline,
            flushed: Lsn(9),
            whole: Lsn(9),
            fenced,
            chosen: chosen.map(|node| (1, node.to_owned())),
            upstream: String::new(),
            state: "streaming".into(),
            named: false,
        };
        RelayPeer { name: "r".into(), address: "r:1".into(), voice: Voice::State(state) }
    }

    fn silent() -> RelayPeer {
        RelayPeer { name: "r".into(), address: "r:1".into(), voice: Voice::Silent("no answer".into()) }
    }

    #[test]
    fn the_highest_timeline_leads() {
        let servers = vec![server("a", false, 1), server("b", false, 3), server("c", false, 2), server("d", true, 4)];
        let seen = Observed { servers, relays: Vec::new() };
        assert_eq!(leader(&seen, "a").map(|leader| leader.name), Some("b".into()));
        assert_eq!(leader(&seen, "b").map(|leader| leader.name), Some("c".into()));
    }

    #[test]
    fn mandates() {
        let empty = || RelayPeer { voice: Voice::Empty, ..silent() };
        let foreign = || match relay(9, None, None).voice {
            Voice::State(state) => RelayPeer { voice: Voice::State(RelayState { system: 2, ..state }), ..silent() },
            voice => RelayPeer { voice, ..silent() },
        };
        let unknown = |answering, needed| Mandate::Unknown { answering, needed };
        for (name, servers, relays, expected) in [
            ("no relays", vec![server("b", true, 2)], vec![], Mandate::Stands),
            ("a newer primary", vec![server("b", false, 3)], vec![], Mandate::Ended),
            ("a standby of a newer timeline", vec![server("b", true, 3)], vec![relay(2, None, None)], Mandate::Ended),
            ("all", vec![], vec![relay(2, None, None), relay(2, None, None), relay(2, None, None)], Mandate::Stands),
            ("most", vec![], vec![relay(2, None, None), silent(), relay(1, Some(1), None)], Mandate::Stands),
            ("half", vec![], vec![relay(2, None, None), silent()], unknown(1, 2)),
            ("a failover", vec![], vec![relay(2, Some(2), None), relay(2, Some(2), None), silent()], unknown(0, 2)),
            ("another elected", vec![], vec![relay(2, Some(2), Some("b")), silent(), silent()], Mandate::Ended),
            ("elected before", vec![], vec![relay(2, Some(1), Some("b"))], Mandate::Stands),
            ("elected itself", vec![], vec![relay(2, Some(2), Some("a"))], Mandate::Stands),
            (
                "a newer relay",
                vec![],
                vec![relay(3, None, None), relay(2, None, None), relay(2, None, None)],
                Mandate::Ended,
            ),
            ("new relays", vec![], vec![empty(), empty(), silent()], Mandate::Stands),
            ("a relay of another cluster", vec![], vec![foreign()], unknown(0, 1)),
        ] {
            assert_eq!(mandate(&Observed { servers, relays }, "a", 1, 2), expected, "{name}");
        }
    }
}
