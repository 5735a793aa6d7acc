//! The supervisor: a pure function from an observation to a state and the next action. No I/O here.
//!
//! ```text
//!  absent ─initialise / clone─▶ cloning ─▶ starting ─▶ following ⇄ primary ─lease ends─▶ fenced ─▶ (stopped)
//!                                  ▲                        │          │                    │
//!                                  └── set aside ◀─ fails ── rewinding ◀── a higher timeline ┘
//! ```
//!
//! The supervisor never decides which server is primary: a promotion is an order of `kingpost failover`, which the server's timeline shows.

use std::fmt;

use watermark::Lsn;

use crate::controldata::OnDisk;
use crate::mandate::{Leader, Mandate};

/// Content of the agent's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Data {
    /// No data directory. `known`: the agent has had one here.
    Missing {
        known: bool,
    },
    /// A rewind has not ended: the data must not be started.
    HalfRewound,
    Present(OnDisk),
    /// The data cannot be used.
    Strange(Trouble),
}

/// State of the server's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Server {
    Down,
    /// The process runs, and answers no question yet.
    Silent,
    Up(Up),
}

/// State of a server that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Up {
    pub(crate) standby: bool,
    pub(crate) timeline: u32,
    pub(crate) system: u64,
    pub(crate) has: Lsn,
    pub(crate) receiving: bool,
    /// True if the server has received nothing for the time in which a failover would lead it elsewhere.
    pub(crate) patience_over: bool,
    /// True if `primary_conninfo` leads to the agent's choice of upstream.
    pub(crate) led: bool,
    /// True while a switchover lets nobody in.
    pub(crate) locked: bool,
    /// True if the recovery stands still because settings fall short of the primary's.
    pub(crate) cramped: bool,
}

/// Age of a primary's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    Valid,
    /// Too old for writes.
    Late,
    /// Too old for a running server.
    Over,
}

/// Ways that the command line allows for new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Permits {
    pub(crate) initialise: bool,
    pub(crate) join: bool,
}

/// An operator's order to copy the primary's data anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rebuild {
    /// No order.
    No,
    /// An order; clients have time to leave.
    Draining,
    /// An order whose time has come.
    Due,
}

/// Input of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) data: Data,
    pub(crate) server: Server,
    /// The primary among the other servers.
    pub(crate) leader: Option<Leader>,
    /// True if any other server or relay answers with a cluster's identity.
    pub(crate) cluster_exists: bool,
    /// Permission of the relays for the server to be primary on its timeline.
    pub(crate) mandate: Mandate,
    pub(crate) lease: Lease,
    /// True if the agent has made its server refuse writes.
    pub(crate) fenced: bool,
    pub(crate) permits: Permits,
    /// The claim of another node to make the cluster.
    pub(crate) claimed: Option<Trouble>,
    /// True while the agent only watches.
    pub(crate) paused: bool,
    pub(crate) rebuild: Rebuild,
}

/// State of a node, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Absent,
    Cloning,
    Starting,
    Following,
    Primary,
    Fenced,
    Rewinding,
    Broken,
}

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// No action.
    Wait,
    Initialise,
    Clone,
    /// Moves unusable data out of the way.
    SetAside,
    /// Stops the server and moves its data out of the way, so that a copy is made.
    Rebuild,
    /// Withdraws the order to copy the primary's data: the server is the primary.
    WithdrawRebuild,
    StartPrimary,
    /// Starts the server in recovery, after the agent has written its upstream.
    StartStandby,
    /// Stops the server with a checkpoint.
    StopFast,
    /// Stops the server at once.
    StopNow,
    /// Leads a running standby to the agent's choice of upstream.
    Lead,
    /// Makes the stopped data of a primary those of a standby: nothing in them is to be taken back.
    BecomeStandby,
    /// Stops the server, and takes its data back to the leader's history.
    Rewind,
    /// Makes the server refuse writes and ends its sessions.
    Fence,
    Unfence,
}

/// Reason of a state, with the command that helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(
        "the directory has no data, and had some before: is its volume mounted? `kingpost node --join …` copies the data of a primary again"
    )]
    Vanished,
    #[error(
        "the directory is empty: `kingpost node --init` makes a new cluster, `kingpost node --join …` a replica of one"
    )]
    Empty,
    #[error(
        "there is a cluster already, with data of its own: a second one is not made beside it; `kingpost node --join …` adds this server to it"
    )]
    ClusterExists,
    #[error("no primary answers: its data are copied as soon as one does")]
    NoPrimary,
    #[error(
        "the node {node} makes the cluster, by the registry's key {key}: remove the key only if that node is gone and has made none"
    )]
    Claimed { node: String, key: String },
    #[error("the agent only watches: `kingpost node --resume` has it act again")]
    Paused,
    #[error(
        "the data are copied anew when clients have left, after node.drain at the latest: `kingpost node --keep` takes the order back"
    )]
    Draining,
    #[error("no other server is primary on this timeline or a later one: there is nothing to copy, and the data stay")]
    NothingToCopy,
    #[error(
        "the recovery stands still: settings fall short of the primary's; the server is restarted with the primary's values"
    )]
    Cramped,
    #[error(
        "the data are of the cluster {own}, and the others are of {theirs}: point [node] directory at data of this cluster"
    )]
    OtherSystem { own: u64, theirs: u64 },
    #[error("the data are of PostgreSQL {data}, and its programs of {programs}: set [node] pg_bin to those of {data}")]
    OtherVersion { data: u32, programs: u32 },
    #[error("the data were not made by this agent: `kingpost node --adopt` takes them over")]
    Unknown,
    #[error("the agent's directory belongs to the node {0}: give this node a directory of its own")]
    OtherNode(String),
    #[error(
        "{0} is primary on the same timeline: one of the two was copied or restored; stop one of them, and remove its data"
    )]
    Twins(String),
    #[error("relays have elected another server, or are on a newer timeline")]
    Replaced,
    #[error("too few relays answer to know whether another server was promoted: {answering} of {needed} needed")]
    Unproven { answering: usize, needed: usize },
    #[error("a switchover keeps the server from taking commits, until another one is primary or the lock ends")]
    Locked,
    #[error("the relays have not confirmed the timeline within the lease")]
    LeaseOver,
    #[error("the server receives no WAL: look at its log; `kingpost node --rebuild` copies the primary's data anew")]
    NoWal,
    #[error("{0}")]
    Other(String),
}

/// A state, the next action, and the reason if one is worth telling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) state: State,
    pub(crate) action: Action,
    pub(crate) why: Option<Trouble>,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Absent => "absent",
            State::Cloning => "cloning",
            State::Starting => "starting",
            State::Following => "following",
            State::Primary => "primary",
            State::Fenced => "fenced",
            State::Rewinding => "rewinding",
            State::Broken => "broken",
        })
    }
}

impl State {
    /// Every state, for metrics.
    pub(crate) const ALL: [State; 8] = [
        State::Absent,
        State::Cloning,
        State::Starting,
        State::Following,
        State::Primary,
        State::Fenced,
        State::Rewinding,
        State::Broken,
    ];
}

impl Decision {
    fn act(state: State, action: Action) -> Decision {
        Decision { state, action, why: None }
    }

    fn wait(state: State, why: Trouble) -> Decision {
        Decision { state, action: Action::Wait, why: Some(why) }
    }

    fn because(self, why: Trouble) -> Decision {
        Decision { why: Some(why), ..self }
    }
}

/// Decides the next action. A paused agent has none, and shows the state all the same.
pub(crate) fn decide(seen: &Observation) -> Decision {
    let usual = next(seen);
    let decision = match seen.rebuild {
        Rebuild::No => usual,
        due => rebuild(seen, due, usual),
    };
    match seen.paused {
        true => Decision { action: Action::Wait, why: Some(Trouble::Paused), ..decision },
        false => decision,
    }
}

/// Decides about an order to copy the primary's data anew; `usual`: the decision without the order.
fn rebuild(seen: &Observation, due: Rebuild, usual: Decision) -> Decision {
    let own_timeline = match &seen.data {
        // Nothing is left to set aside, or nothing is there yet.
        Data::Missing { .. } | Data::Strange(Trouble::Vanished) => return usual,
        Data::Present(disk) if !disk.standby => Some(disk.timeline),
        _ => None,
    };
    let is_primary = match (&seen.leader, own_timeline) {
        (Some(leader), Some(own)) => leader.timeline < own,
        (None, Some(_)) => matches!(seen.server, Server::Up(_)),
        (_, None) => false,
    };
    match &seen.leader {
        _ if is_primary && usual.action == Action::Wait => {
            Decision { action: Action::WithdrawRebuild, why: Some(Trouble::NothingToCopy), ..usual }
        }
        _ if is_primary => usual,
        None => usual.because(Trouble::NoPrimary),
        Some(_) if due == Rebuild::Draining => usual.because(Trouble::Draining),
        Some(_) => Decision::act(State::Cloning, Action::Rebuild),
    }
}

fn next(seen: &Observation) -> Decision {
    match &seen.server {
        Server::Up(up) if up.standby => standby(seen, up),
        Server::Up(up) => primary(seen, up),
        // Whatever it is about to become: a process that answers nothing is not to be touched, unless its time in office may have ended.
        Server::Silent => match (&seen.data, seen.lease) {
            (Data::Present(disk), Lease::Over) if !disk.standby => {
                Decision::act(State::Fenced, Action::StopNow).because(Trouble::LeaseOver)
            }
            _ => Decision::act(State::Starting, Action::Wait),
        },
        Server::Down => down(seen),
    }
}

fn down(seen: &Observation) -> Decision {
    match &seen.data {
        Data::Strange(why) => Decision::wait(State::Broken, why.clone()),
        Data::HalfRewound => match &seen.leader {
            Some(_) => Decision::act(State::Rewinding, Action::SetAside),
            None => Decision::wait(State::Rewinding, Trouble::NoPrimary),
        },
        Data::Missing { known } => missing(seen, *known),
        Data::Present(disk) => stopped(seen, disk),
    }
}

fn missing(seen: &Observation, known: bool) -> Decision {
    match (seen.permits.join, seen.permits.initialise, &seen.leader) {
        (true, _, Some(_)) => Decision::act(State::Cloning, Action::Clone),
        (true, false, None) => Decision::wait(State::Absent, Trouble::NoPrimary),
        // Another host makes the cluster, or has made it.
        (true, true, None) if seen.cluster_exists => Decision::wait(State::Absent, Trouble::NoPrimary),
        // A known node has lost its data: a new cluster in their place would be another one.
        _ if known => Decision::wait(State::Broken, Trouble::Vanished),
        (_, true, _) if seen.cluster_exists => Decision::wait(State::Broken, Trouble::ClusterExists),
        (_, true, _) => match &seen.claimed {
            Some(claim) if seen.permits.join => Decision::wait(State::Absent, claim.clone()),
            Some(claim) => Decision::wait(State::Broken, claim.clone()),
            None => Decision::act(State::Absent, Action::Initialise),
        },
        (false, false, _) => Decision::wait(State::Broken, Trouble::Empty),
    }
}

fn stopped(seen: &Observation, disk: &OnDisk) -> Decision {
    if let Some(leader) = &seen.leader
        && leader.system != disk.system
    {
        return Decision::wait(State::Broken, Trouble::OtherSystem { own: disk.system, theirs: leader.system });
    }
    if disk.standby {
        return Decision::act(State::Starting, Action::StartStandby);
    }
    match &seen.leader {
        Some(leader) if leader.timeline > disk.timeline => match leader.fork {
            // A clean stop before the fork: the leader has replayed everything.
            Some(fork) if disk.clean && disk.checkpoint < fork => {
                Decision::act(State::Rewinding, Action::BecomeStandby)
            }
            _ => Decision::act(State::Rewinding, Action::Rewind),
        },
        Some(leader) if leader.timeline == disk.timeline => {
            Decision::wait(State::Broken, Trouble::Twins(leader.name.clone()))
        }
        _ => match seen.mandate {
            Mandate::Stands => Decision::act(State::Starting, Action::StartPrimary),
            Mandate::Ended => Decision::wait(State::Fenced, Trouble::Replaced),
            Mandate::Unknown { answering, needed } => {
                Decision::wait(State::Fenced, Trouble::Unproven { answering, needed })
            }
        },
    }
}

fn standby(seen: &Observation, up: &Up) -> Decision {
    let cramped = || Decision::act(State::Starting, Action::StopFast).because(Trouble::Cramped);
    let Some(leader) = &seen.leader else {
        // Perhaps a failover is under way: a standby that replays is left to it.
        return if up.cramped { cramped() } else { Decision::act(State::Following, Action::Wait) };
    };
    if leader.system != up.system {
        return Decision::wait(State::Broken, Trouble::OtherSystem { own: up.system, theirs: leader.system });
    }
    if up.cramped {
        return cramped();
    }
    if up.receiving {
        return Decision::act(State::Following, Action::Wait);
    }
    let beyond_fork = leader.timeline > up.timeline && leader.fork.is_some_and(|fork| up.has > fork);
    match () {
        () if !up.patience_over => Decision::act(State::Following, Action::Wait),
        () if beyond_fork => Decision::act(State::Rewinding, Action::Rewind),
        () if !up.led => Decision::act(State::Following, Action::Lead),
        // The slot may be missing.
        () => Decision::act(State::Following, Action::Lead).because(Trouble::NoWal),
    }
}

fn primary(seen: &Observation, up: &Up) -> Decision {
    let fence = |why: Trouble| match seen.fenced || up.locked {
        true => Decision::wait(State::Fenced, why),
        false => Decision::act(State::Fenced, Action::Fence).because(why),
    };
    match &seen.leader {
        Some(leader) if leader.system != up.system => {
            return Decision::wait(State::Broken, Trouble::OtherSystem { own: up.system, theirs: leader.system });
        }
        Some(leader) if leader.timeline > up.timeline => {
            return Decision::act(State::Rewinding, Action::StopFast).because(Trouble::Replaced);
        }
        Some(leader) if leader.timeline == up.timeline => return fence(Trouble::Twins(leader.name.clone())),
        // The switchover goes on, or its lock ends by itself; a reload would lift it.
        _ if up.locked => return Decision::wait(State::Fenced, Trouble::Locked),
        _ => {}
    }
    if seen.mandate == Mandate::Ended {
        return fence(Trouble::Replaced);
    }
    match seen.lease {
        Lease::Over => Decision::act(State::Fenced, Action::StopNow).because(Trouble::LeaseOver),
        Lease::Late => fence(Trouble::LeaseOver),
        Lease::Valid if seen.fenced && seen.mandate == Mandate::Stands => {
            Decision::act(State::Primary, Action::Unfence)
        }
        Lease::Valid if seen.fenced => Decision::wait(State::Fenced, Trouble::LeaseOver),
        Lease::Valid => Decision::act(State::Primary, Action::Wait),
    }
}
