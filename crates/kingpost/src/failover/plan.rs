//! What is to be done, decided from what servers and relays say of themselves. Pure: no I/O, no clock.

use ::relay::Standing;
use watermark::Lsn;

/// A server, as it was seen.
#[derive(Debug, Clone)]
pub(super) struct ServerSeen {
    pub(super) name: String,
    pub(super) address: String,
    /// Err: why it does not answer.
    pub(super) state: Result<ServerState, String>,
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerState {
    pub(super) system: u64,
    /// In recovery.
    pub(super) standby: bool,
    /// The timeline it writes or follows.
    pub(super) timeline: u32,
    /// A standby: received and durable, or replayed, whichever is further; a primary: written.
    pub(super) has: Lsn,
    /// A standby: replayed.
    pub(super) replayed: Lsn,
    /// Whether it receives at the moment.
    pub(super) receiving: bool,
    /// `primary_conninfo`, if it could be read.
    pub(super) conninfo: Option<String>,
}

/// A relay, as it was seen.
#[derive(Debug, Clone)]
pub(super) struct RelaySeen {
    pub(super) name: String,
    pub(super) address: String,
    /// Err: why it does not answer.
    pub(super) standing: Result<Standing, String>,
}

/// Everything together.
#[derive(Debug, Clone)]
pub(super) struct Survey {
    pub(super) servers: Vec<ServerSeen>,
    pub(super) relays: Vec<RelaySeen>,
}

/// How a cluster stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Situation {
    /// This one is the primary, and the relays take from it, or can.
    Healthy { primary: String, timeline: u32 },
    /// There is none on the newest timeline, which is this one.
    NoPrimary { timeline: u32 },
    /// One answers, but the relays were fenced: a failover away from it has begun.
    Fenced { old: String, timeline: u32 },
    /// One has been promoted; relays that were fenced have not followed yet.
    Promoted { primary: String, timeline: u32 },
}

/// Why nothing can be decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecided {
    #[error("no server and no relay answers")]
    Nobody,
    #[error("{0} and {1} are both primaries on timeline {2}: one of them has to be stopped and rewound by hand")]
    Two(String, String, u32),
}

impl Survey {
    /// The system that most of those which answer belong to.
    pub(super) fn system(&self) -> Option<u64> {
        let servers = self.servers.iter().filter_map(|server| server.state.as_ref().ok().map(|state| state.system));
        let relays =
            self.relays.iter().filter_map(|relay| relay.standing.as_ref().ok().map(|standing| standing.system));
        let all: Vec<u64> = relays.chain(servers).collect();
        all.iter().copied().rev().max_by_key(|system| all.iter().filter(|other| *other == system).count())
    }

    /// Servers of the system that answer.
    pub(super) fn answering(&self) -> impl Iterator<Item = (&ServerSeen, &ServerState)> {
        let system = self.system();
        self.servers
            .iter()
            .filter_map(|server| Some((server, server.state.as_ref().ok()?)))
            .filter(move |(_, state)| Some(state.system) == system)
    }

    /// Relays of the system that answer.
    pub(super) fn standing(&self) -> impl Iterator<Item = (&RelaySeen, &Standing)> {
        let system = self.system();
        self.relays
            .iter()
            .filter_map(|relay| Some((relay, relay.standing.as_ref().ok()?)))
            .filter(move |(_, standing)| Some(standing.system) == system)
    }

    /// A server by its name.
    pub(super) fn server(&self, name: &str) -> Option<&ServerSeen> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// The highest timeline that anybody is on.
    fn newest(&self) -> u32 {
        let servers = self.answering().map(|(_, state)| state.timeline);
        let relays = self.standing().map(|(_, standing)| standing.timeline.max(standing.fenced.unwrap_or(0)));
        servers.chain(relays).max().unwrap_or(0)
    }

    /// How the cluster stands.
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
        Ok(if fences.contains(&timeline) {
            Situation::Fenced { old: primary, timeline }
        } else if fences.is_empty() {
            Situation::Healthy { primary, timeline }
        } else {
            Situation::Promoted { primary, timeline }
        })
    }
}

/// How many of `relays` have to be fenced so that no commit can be acknowledged any more, and so that one of them has every
/// commit that was.
pub(super) fn needed(relays: usize, acknowledgements: usize) -> usize {
    (relays + 1).saturating_sub(acknowledgements.max(1)).max(1)
}

/// Where the new primary has to be at least: timeline, received, replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Name and address of the relay that has it; None: it is what the best standby has.
    pub(super) relay: Option<(String, String)>,
    pub(super) timeline: u32,
    pub(super) received: Lsn,
    pub(super) replayed: Lsn,
}

impl Target {
    /// Of relays that are fenced: the one that is furthest.
    pub(super) fn of<'a>(relays: impl Iterator<Item = (&'a RelaySeen, &'a Standing)>) -> Option<Target> {
        let (relay, standing) = relays.max_by_key(|(_, standing)| (standing.timeline, standing.flushed))?;
        Some(Target {
            relay: Some((relay.name.clone(), relay.address.clone())),
            timeline: standing.timeline,
            received: standing.flushed,
            replayed: standing.whole,
        })
    }

    /// Whether a standby has come so far.
    pub(super) fn reached(&self, state: &ServerState) -> bool {
        // One that was ahead of the relay may never have received from it.
        state.timeline >= self.timeline && state.replayed >= self.replayed && state.has >= self.replayed
    }
}

/// Why a node is not to be the primary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("no standby answers")]
    None,
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
    #[error(
        "{0} was chosen to go on, in term {1}, and may be the primary already: bring it back, or leave it out for good and say \
         --force"
    )]
    Chosen(String, u64),
}

/// Which standby is to be the primary: the one that was chosen before, or `to`, or the one that has most.
pub(super) fn choose(survey: &Survey, to: Option<&str>, force: bool) -> Result<String, Unfit> {
    let chosen = survey.standing().filter_map(|(_, standing)| standing.chosen.clone()).max_by_key(|(term, _)| *term);
    if let Some((term, name)) = chosen {
        if fit(survey, &name).is_ok() && to.is_none_or(|to| to == name) {
            return Ok(name);
        }
        if !force {
            return Err(Unfit::Chosen(name, term));
        }
    }
    if let Some(to) = to {
        return fit(survey, to).map(|()| to.into());
    }
    let mut best: Option<(&ServerSeen, &ServerState)> = None;
    for (server, state) in survey.answering().filter(|(_, state)| state.standby) {
        // The first of equals, in the order of the configuration.
        if best.is_none_or(|(_, best)| (state.timeline, state.has) > (best.timeline, best.has)) {
            best = Some((server, state));
        }
    }
    best.map(|(server, _)| server.name.clone()).ok_or(Unfit::None)
}

fn fit(survey: &Survey, name: &str) -> Result<(), Unfit> {
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
    // A relay brings it along to its timeline; another standby does not.
    let further = survey.answering().find(|(_, other)| other.standby && other.timeline > state.timeline);
    match further {
        Some((other, of)) if !survey.standing().any(|(_, standing)| standing.timeline >= of.timeline) => {
            Err(Unfit::Behind(name.into(), state.timeline, other.name.clone(), of.timeline))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
