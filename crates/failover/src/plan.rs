//! Decisions of a failover, from the answers of servers and relays. Pure: no I/O, no clock.

use config::failover::{needed, stopping};
use std::time::Duration;

use ::relay::RelayState;
use watermark::Lsn;

use super::acknowledge::Waits;
use super::engine::ServerKind;
use super::note::Note;
use super::postgresql::Postgresql;

/// A server, as surveyed.
#[derive(Debug, Clone)]
pub(super) struct ServerSeen<K: ServerKind = Postgresql> {
    pub(super) name: String,
    pub(super) address: String,
    /// Settings of the configuration.
    pub(super) tags: Tags,
    /// The answer, or the reason for its absence.
    pub(super) state: Result<K::Server, String>,
}

/// Preference of a server as the primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tags {
    /// `failover = "never"`.
    pub(super) never: bool,
    pub(super) priority: u32,
    pub(super) zone: Option<String>,
}

/// Answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerState {
    pub(super) system: u64,
    /// True if it is in recovery.
    pub(super) standby: bool,
    /// Timeline that it writes or follows.
    pub(super) timeline: u32,
    /// Position of its WAL: on a standby the received and durable, or the replayed one, whichever is higher; on a primary the written one.
    pub(super) has: Lsn,
    /// Replayed position of a standby.
    pub(super) replayed: Lsn,
    /// True if it receives at the moment.
    pub(super) receiving: bool,
    /// `primary_conninfo`, if it could be read.
    pub(super) conninfo: Option<String>,
    /// `primary_slot_name`, if set.
    pub(super) slot: Option<String>,
    /// True for a standby whose replay an operator has paused.
    pub(super) paused: bool,
    /// `recovery_min_apply_delay`.
    pub(super) delay: Duration,
    /// True if the user of this program may promote it and change its settings.
    pub(super) superuser: bool,
    /// Lock of a switchover, which keeps all clients out.
    pub(super) locked: Locked,
    /// `default_transaction_read_only`.
    pub(super) read_only: bool,
    /// Note of an earlier failover.
    pub(super) note: Option<Note>,
    /// `synchronous_standby_names`.
    pub(super) sync_names: String,
}

/// Lock of a switchover on a server, which keeps all clients out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locked {
    No,
    /// In the server's memory, for as long as the lease is renewed.
    ByLease,
    /// In the server's files.
    ForGood,
}

/// A relay, as surveyed.
#[derive(Debug, Clone)]
pub(super) struct RelaySeen<K: ServerKind = Postgresql> {
    pub(super) name: String,
    pub(super) address: String,
    /// Name of the relay on servers.
    pub(super) application: String,
    /// The answer, or the reason for its absence.
    pub(super) standing: Result<K::Relay, String>,
}

/// A proxy, as surveyed.
#[derive(Debug, Clone)]
pub(super) struct ProxySeen {
    pub(super) name: String,
    pub(super) address: String,
    /// The console's answer, or the reason for its absence.
    pub(super) state: Result<ProxyState, String>,
}

/// Answer of a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyState {
    /// True if all databases are paused.
    pub(super) paused: bool,
    /// Rest of the pause's lease, if it has one.
    pub(super) lease: Option<Duration>,
    /// Databases whose commits are held back, and how: `relay`, `quorum(2)`.
    pub(super) gates: Vec<(String, String)>,
}

/// Answers of all servers and relays.
#[derive(Debug, Clone)]
pub(super) struct Survey<K: ServerKind = Postgresql> {
    pub(super) servers: Vec<ServerSeen<K>>,
    pub(super) relays: Vec<RelaySeen<K>>,
    /// Least number of relays that have each acknowledged commit.
    pub(super) acknowledgements: usize,
}

/// Situation of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Situation {
    /// A primary, from which enough relays receive, or can.
    Healthy { primary: String, timeline: u32 },
    /// No primary on the newest timeline, which is this one.
    NoPrimary { timeline: u32 },
    /// A primary answers, but so many relays are fenced that its commits may not be acknowledged: a failover away from it has begun.
    Fenced { old: String, timeline: u32 },
    /// A node was promoted; fenced relays have not followed yet.
    Promoted { primary: String, timeline: u32 },
}

/// The reason why nothing can be decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecided {
    #[error("no server and no relay answers")]
    Nobody,
    #[error("{0} and {1} are both primaries on timeline {2}: one of them has to be stopped and rewound by hand")]
    Two(String, String, u32),
}

impl<K: ServerKind> Survey<K> {
    /// Returns the system identifier of most that answer.
    pub(super) fn system(&self) -> Option<u64> {
        let servers = self.servers.iter().filter_map(|server| server.state.as_ref().ok().map(K::system_of_server));
        let relays = self.relays.iter().filter_map(|relay| relay.standing.as_ref().ok().map(K::system_of_relay));
        let all: Vec<u64> = relays.chain(servers).collect();
        all.iter().copied().rev().max_by_key(|system| all.iter().filter(|other| *other == system).count())
    }

    /// Returns the servers of the system that answer.
    pub(super) fn answering(&self) -> impl Iterator<Item = (&ServerSeen<K>, &K::Server)> {
        let system = self.system();
        self.servers
            .iter()
            .filter_map(|server| Some((server, server.state.as_ref().ok()?)))
            .filter(move |(_, state)| Some(K::system_of_server(state)) == system)
    }

    /// Returns the relays of the system that answer.
    pub(super) fn standing(&self) -> impl Iterator<Item = (&RelaySeen<K>, &K::Relay)> {
        let system = self.system();
        self.relays
            .iter()
            .filter_map(|relay| Some((relay, relay.standing.as_ref().ok()?)))
            .filter(move |(_, standing)| Some(K::system_of_relay(standing)) == system)
    }

    /// Returns a server by its name.
    pub(super) fn server(&self, name: &str) -> Option<&ServerSeen<K>> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// Returns the answer of a server of the system, by its name.
    pub(super) fn state(&self, name: &str) -> Option<&K::Server> {
        self.answering().find(|(server, _)| server.name == name).map(|(_, state)| state)
    }

    /// Returns the number of relays that must be fenced and agree; see [`needed`]. 0 without relays.
    pub(super) fn needed(&self) -> usize {
        needed(self.relays.len(), self.acknowledgements).min(self.relays.len())
    }

    /// Returns the highest known term.
    pub(super) fn highest_term(&self) -> u64 {
        let relays = self.standing().map(|(_, standing)| K::term(standing));
        let notes = self.answering().filter_map(|(_, state)| K::noted(state));
        relays.chain(notes).max().unwrap_or(0)
    }

    /// Returns the term and the node of the election for the end of the newest timeline.
    pub(super) fn elected(&self) -> Option<(u64, String)> {
        self.standing().filter_map(|(_, standing)| K::chosen(standing).cloned()).max_by_key(|(term, _)| *term)
    }
}

impl Survey {
    /// Returns the number of fenced relays that stops all acknowledgements; see [`stopping`]. 0 without relays.
    fn stopping(&self) -> usize {
        stopping(self.relays.len(), self.acknowledgements).min(self.relays.len())
    }

    /// Returns the highest timeline of any server or relay.
    fn newest(&self) -> u32 {
        let servers = self.answering().map(|(_, state)| state.timeline);
        let relays = self.standing().map(|(_, standing)| standing.timeline.max(standing.fenced.unwrap_or(0)));
        servers.chain(relays).max().unwrap_or(0)
    }

    /// Determines the cluster's situation.
    pub(super) fn situation(&self) -> Result<Situation, Undecided> {
        let timeline = self.newest();
        if timeline == 0 {
            return Err(Undecided::Nobody);
        }
        let mut primaries = self
            .answering()
            .filter(|(_, state)| !state.standby && state.timeline == timeline)
            .map(|(server, _)| server);
        let Some(primary) = primaries.next().map(|server| server.name.clone()) else {
            return Ok(Situation::NoPrimary { timeline });
        };
        if let Some(other) = primaries.next() {
            return Err(Undecided::Two(primary, other.name.clone(), timeline));
        }
        let fences: Vec<u32> = self.standing().filter_map(|(_, standing)| standing.fenced).collect();
        let here = fences.iter().filter(|fence| **fence == timeline).count();
        // The state of silent relays is unknown.
        let silent = self.relays.len() - self.standing().count();
        Ok(if here > 0 && here + silent >= self.stopping() {
            Situation::Fenced { old: primary, timeline }
        } else if fences.len() > here {
            Situation::Promoted { primary, timeline }
        } else {
            Situation::Healthy { primary, timeline }
        })
    }
}

/// Position that the new primary must have reached: timeline, received, replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Name and address of the relay that has it.
    pub(super) relay: (String, String),
    pub(super) timeline: u32,
    pub(super) received: Lsn,
    pub(super) replayed: Lsn,
}

impl Target {
    /// Returns the position of the furthest fenced relay.
    pub(super) fn of<'a>(relays: impl Iterator<Item = (&'a RelaySeen, &'a RelayState)>) -> Option<Target> {
        let (relay, standing) = relays.max_by_key(|(_, standing)| (standing.timeline, standing.flushed))?;
        Some(Target {
            relay: (relay.name.clone(), relay.address.clone()),
            timeline: standing.timeline,
            received: standing.flushed,
            replayed: standing.whole,
        })
    }

    /// True if a standby has reached the position.
    pub(super) fn reached(&self, state: &ServerState) -> bool {
        // A standby that was ahead of the relay may never have received from it.
        state.timeline >= self.timeline && state.replayed >= self.replayed && state.has >= self.replayed
    }
}

/// Rules for standbys that become candidates without being named.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// Allowed zones; empty: all.
    pub(super) zones: Vec<String>,
    /// Most bytes that a candidate may lack.
    pub(super) lag_limit: Option<u64>,
    /// Zone of the old primary: candidates there come first.
    pub(super) home: Option<String>,
}

/// Candidates for the new primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Election {
    /// Candidates in order of preference, among those that have everything.
    pub(super) candidates: Vec<Candidate>,
    /// Node that an earlier run has elected and that is now withdrawn.
    pub(super) withdraw: Option<String>,
    /// The other nodes, with the reasons.
    pub(super) unfit: Vec<(String, Unfit)>,
}

/// A standby that may become the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) priority: u32,
}

/// The reason why a node may not be the primary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("no standby answers")]
    Nobody,
    #[error("no standby is a candidate:\n{}", reasons(.0))]
    None(Vec<(String, Unfit)>),
    #[error("there is no node {0:?}: expected one of {1}")]
    Unknown(String, String),
    #[error("{0} does not answer: {1}")]
    Silent(String, String),
    #[error("{0} belongs to another cluster")]
    Foreign(String),
    #[error("{0} is not in recovery: it cannot be promoted")]
    Writable(String),
    #[error("{0} is on timeline {1}, and {2} is on timeline {3} already: what was acknowledged may be only there")]
    Behind(String, u32, String, u32),
    #[error("the user of [failover] is no superuser on {0}: it can neither promote it nor change its settings")]
    Forbidden(String),
    #[error("{0} is never to be promoted (failover = \"never\" in [[cluster.nodes]]); --force does it all the same")]
    Never(String),
    #[error(
        "{0} has no synchronous_standby_names, and others have: it would acknowledge what no relay has; --to {0} takes it all the same"
    )]
    Unsynchronized(String),
    #[error("{0} is not in one of failover.zones; --to {0} takes it all the same")]
    Zone(String),
    #[error("{0} lacks {1} bytes, more than failover.lag_limit; --to {0} takes it all the same")]
    Lag(String, u64),
    #[error(
        "{0} replays everything {1:?} late: it would take so long to catch up. To take it: ALTER SYSTEM SET \
         recovery_min_apply_delay = 0; SELECT pg_reload_conf(); there"
    )]
    Delayed(String, Duration),
    #[error("replay is paused on {0}: it would never catch up. To take it: SELECT pg_wal_replay_resume(); there")]
    Paused(String),
    #[error(
        "{0} was elected in term {1} by an earlier run and does not answer: it may have been promoted. Bring it back; or, if it \
         never comes back without being rewound or made again, give it up: `kingpost failover --force` elects another node, \
         `kingpost failover --abort --force` lets the old primary go on"
    )]
    Elected(String, u64),
}

fn reasons(unfit: &[(String, Unfit)]) -> String {
    unfit.iter().map(|(_, why)| format!("  {why}")).collect::<Vec<_>>().join("\n")
}

/// Returns the candidates: the node that an earlier run has elected, or `to`, or all that are fit. `force` gives up an elected node that cannot be
/// reached.
///
/// # Errors
/// There is no candidate.
pub(super) fn candidates(survey: &Survey, to: Option<&str>, force: bool, rules: &Rules) -> Result<Election, Unfit> {
    let mut withdraw = None;
    if let Some((term, name)) = survey.elected() {
        match fit(survey, &name, true, rules) {
            Ok(()) if to.is_none_or(|to| to == name) => {
                let candidates = vec![candidate(survey, &name)];
                return Ok(Election { candidates, withdraw: None, unfit: Vec::new() });
            }
            // It answers, and is a standby: the run that elected it can be kept from promoting it.
            _ if survey.state(&name).is_some_and(|state| state.standby) => withdraw = Some(name),
            _ if force => withdraw = Some(name),
            _ => return Err(Unfit::Elected(name, term)),
        }
    }
    if let Some(to) = to {
        match fit(survey, to, true, rules) {
            Ok(()) => {}
            Err(Unfit::Never(_)) if force => {}
            Err(why) => return Err(why),
        }
        return Ok(Election { candidates: vec![candidate(survey, to)], withdraw, unfit: Vec::new() });
    }
    let (mut found, mut unfit) = (Vec::new(), Vec::new());
    for (order, server) in survey.servers.iter().enumerate() {
        match fit(survey, &server.name, false, rules) {
            Ok(()) => {
                let state = survey.state(&server.name);
                let has = state.map_or((0, Lsn(0)), |state| (state.timeline, state.has));
                let home = rules.home.is_some() && server.tags.zone == rules.home;
                // Among equals the first in the order of the configuration.
                found.push((
                    (server.tags.priority, home, has, std::cmp::Reverse(order)),
                    candidate(survey, &server.name),
                ));
            }
            Err(why) => unfit.push((server.name.clone(), why)),
        }
    }
    found.sort_by(|(a, _), (b, _)| b.cmp(a));
    let candidates: Vec<Candidate> = found.into_iter().map(|(_, candidate)| candidate).collect();
    if candidates.is_empty() {
        let answers = survey.answering().any(|(_, state)| state.standby);
        return Err(if answers { Unfit::None(unfit) } else { Unfit::Nobody });
    }
    Ok(Election { candidates, withdraw, unfit })
}

fn candidate(survey: &Survey, name: &str) -> Candidate {
    let priority = survey.server(name).map_or(0, |server| server.tags.priority);
    Candidate { name: name.into(), priority }
}

/// Checks a node. `named`: the operator names it.
fn fit(survey: &Survey, name: &str, named: bool, rules: &Rules) -> Result<(), Unfit> {
    let Some(server) = survey.server(name) else {
        let names: Vec<&str> = survey.servers.iter().map(|server| server.name.as_str()).collect();
        return Err(Unfit::Unknown(name.into(), names.join(", ")));
    };
    let state = server.state.as_ref().map_err(|why| Unfit::Silent(name.into(), why.clone()))?;
    if Some(state.system) != survey.system() {
        return Err(Unfit::Foreign(name.into()));
    }
    if !state.standby {
        return Err(Unfit::Writable(name.into()));
    }
    // A relay carries it along to its timeline; another standby does not.
    let further = survey.answering().find(|(_, other)| other.standby && other.timeline > state.timeline);
    if let Some((other, of)) = further
        && !survey.standing().any(|(_, standing)| standing.timeline >= of.timeline)
    {
        return Err(Unfit::Behind(name.into(), state.timeline, other.name.clone(), of.timeline));
    }
    if !state.superuser {
        return Err(Unfit::Forbidden(name.into()));
    }
    if !state.delay.is_zero() {
        return Err(Unfit::Delayed(name.into(), state.delay));
    }
    if state.paused {
        return Err(Unfit::Paused(name.into()));
    }
    if server.tags.never {
        return Err(Unfit::Never(name.into()));
    }
    if named {
        return Ok(());
    }
    if !rules.zones.is_empty() && !server.tags.zone.as_ref().is_some_and(|zone| rules.zones.contains(zone)) {
        return Err(Unfit::Zone(name.into()));
    }
    let waits = |state| survey.waits(state) != Waits::ForNobody;
    if !waits(state) && survey.answering().any(|(_, other)| waits(other)) {
        return Err(Unfit::Unsynchronized(name.into()));
    }
    let furthest = survey.standing().map(|(_, standing)| standing.flushed);
    let furthest = furthest.chain(survey.answering().map(|(_, state)| state.has)).max().unwrap_or(Lsn(0));
    let lacks = furthest.0.saturating_sub(state.has.0);
    if rules.lag_limit.is_some_and(|limit| lacks > limit) {
        return Err(Unfit::Lag(name.into(), lacks));
    }
    Ok(())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
