//! Decision of `kingpost scale`: servers, load and the record of earlier orders become one action. No I/O.
//!
//! ```text
//!  Adding ─ serves ─▶ (nothing under way) ─ idle ─▶ Draining ─ clients have left ─▶ Removing ─ answers no more ─▶ (nothing under way)
//!     └─ fails, or does not serve in time ─────────────────────────────────────────▶ Removing
//! ```

use std::fmt;
use std::time::Duration;

use config::scale::ScaleConfig;
use serde::{Deserialize, Serialize};

/// Pauses before a program that has failed is run again: it doubles up to the longest.
const AGAIN: (u64, u64) = (30, 3600);

/// A server that the registry lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Name.
    pub(crate) name: String,
    /// Address.
    pub(crate) address: String,
    /// True if proxies leave it: it is isolated.
    pub(crate) isolated: bool,
    /// True if its own agent has taken reads off it: its weight is 0.
    pub(crate) weightless: bool,
    /// Answer of the server.
    pub(crate) answer: Answer,
}

/// Answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The server does not answer, or is of another cluster.
    Missing,
    /// The server takes writes.
    Primary,
    /// The server is a standby.
    Standby {
        /// True if it receives WAL.
        receiving: bool,
        /// Bytes of WAL that it has not replayed.
        behind: u64,
        /// Number of busy sessions of clients; None if the server does not tell.
        busy: Option<u64>,
    },
}

impl Seen {
    /// True if the replica takes reads and is close enough to the primary.
    fn serves(&self, lag: u64) -> bool {
        matches!(self.answer, Answer::Standby { receiving: true, behind, .. } if behind <= lag)
            && !self.isolated
            && !self.weightless
    }

    /// Returns the reason why the replica does not serve.
    fn trouble(&self) -> &'static str {
        match self.answer {
            Answer::Missing => "does not answer",
            Answer::Primary => "is the primary",
            Answer::Standby { receiving: false, .. } => "receives nothing",
            Answer::Standby { .. } if self.isolated => "is isolated",
            Answer::Standby { .. } if self.weightless => "has weight 0",
            Answer::Standby { .. } => "is behind",
        }
    }
}

/// Returns the busy sessions of all replicas that serve, and their number; None if there are none, or one of them does not tell.
pub(crate) fn load(seen: &[Seen], lag: u64) -> Option<(u64, usize)> {
    let serving: Vec<&Seen> = seen.iter().filter(|server| server.serves(lag)).collect();
    let busy = serving.iter().map(|server| match server.answer {
        Answer::Standby { busy, .. } => busy,
        _ => None,
    });
    let total: u64 = busy.sum::<Option<u64>>()?;
    (!serving.is_empty()).then_some((total, serving.len()))
}

/// Memory of a scaler, in the registry: the order under way, and the last changes. Times are seconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The order under way.
    pub(crate) order: Option<Order>,
    /// Time of the last change.
    pub(crate) changed: u64,
    /// Number of failures since the last success.
    pub(crate) failures: u32,
    /// Time of the last failure.
    pub(crate) failed: u64,
}

/// An order under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Name of the server.
    pub(crate) node: String,
    /// Address of the server; empty for one that is added.
    pub(crate) address: String,
    /// Stage of the order.
    pub(crate) stage: Stage,
    /// True once the program of this stage has succeeded.
    pub(crate) done: bool,
    /// Time at which the stage began, or at which its program ended.
    pub(crate) since: u64,
    /// True for the removal of a server that did not come to serve.
    pub(crate) undoes: bool,
    /// Reason for the program and the log.
    pub(crate) reason: String,
}

/// Stage of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// A server is added, until it serves.
    Adding,
    /// Clients leave the server.
    Draining,
    /// The server is removed, until it answers no more and nothing is kept for it.
    Removing,
}

impl Record {
    /// Moves times that are ahead of this machine's clock to now: another machine wrote them.
    pub(crate) fn not_after(mut self, now: u64) -> Record {
        self.changed = self.changed.min(now);
        self.failed = self.failed.min(now);
        if let Some(order) = &mut self.order {
            order.since = order.since.min(now);
        }
        self
    }

    /// Takes an action that is about to be carried out, or has been.
    pub(crate) fn take(&mut self, action: &Action, reason: &Why, now: u64) {
        let undoes = self.order.as_ref().is_some_and(|order| order.undoes) || matches!(action, Action::GiveUp { .. });
        let order = |node: &str, address: &str, stage| Order {
            node: node.to_owned(),
            address: address.to_owned(),
            stage,
            done: false,
            since: now,
            undoes,
            reason: reason.to_string(),
        };
        match action {
            Action::Wait | Action::Isolate { .. } | Action::RunAdd { .. } | Action::RunRemove { .. } => {}
            Action::Add { node } => (self.order, self.changed) = (Some(order(node, "", Stage::Adding)), now),
            Action::Drain { node, address } => {
                (self.order, self.changed) = (Some(order(node, address, Stage::Draining)), now);
            }
            Action::Remove { node, address } => self.order = Some(order(node, address, Stage::Removing)),
            Action::GiveUp { node, address } => {
                self.order = Some(order(node, address, Stage::Removing));
                (self.failures, self.failed) = (self.failures.saturating_add(1), now);
            }
            Action::Joined { .. } => (self.order, self.changed, self.failures) = (None, now, 0),
            Action::Keep { .. } => self.order = None,
            Action::Forget { .. } => {
                (self.order, self.changed) = (None, now);
                // A server that was given up is a failure, which its removal does not end.
                self.failures = if undoes { self.failures } else { 0 };
            }
        }
    }

    /// Takes the result of a program.
    pub(crate) fn ended(&mut self, succeeded: bool, now: u64) {
        let Some(order) = &mut self.order else { return };
        (order.done, order.since) = (succeeded, now);
        if succeeded {
            return;
        }
        (self.failures, self.failed) = (self.failures.saturating_add(1), now);
        if order.stage == Stage::Adding {
            // Half of a server may be there.
            (order.stage, order.undoes) = (Stage::Removing, true);
            order.reason = "it could not be added".into();
        }
    }

    /// Returns the rest of the pause after failures.
    fn pause(&self, now: u64) -> Option<Duration> {
        let doubled =
            1_u64.checked_shl(self.failures.saturating_sub(1)).map_or(AGAIN.1, |by| AGAIN.0.saturating_mul(by));
        let pause = doubled.min(AGAIN.1);
        rest(self.failed, Duration::from_secs(pause), now).filter(|_| self.failures > 0)
    }
}

/// Returns the rest of a time that began at `since`; None if it is over.
fn rest(since: u64, time: Duration, now: u64) -> Option<Duration> {
    time.checked_sub(Duration::from_secs(now.saturating_sub(since))).filter(|rest| !rest.is_zero())
}

/// An action, each of which can be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// No action.
    Wait,
    /// Orders another server of this name.
    Add { node: String },
    /// Runs the program that adds the server.
    RunAdd { node: String },
    /// Ends the order: the server serves.
    Joined { node: String },
    /// Has the server removed that does not serve in time.
    GiveUp { node: String, address: String },
    /// Orders the removal of a server, which its clients are to leave first.
    Drain { node: String, address: String },
    /// Has proxies leave the server.
    Isolate { node: String },
    /// Takes the order back: proxies use the server again.
    Keep { node: String },
    /// Has the server removed that clients have left.
    Remove { node: String, address: String },
    /// Runs the program that removes the server.
    RunRemove { node: String, address: String },
    /// Removes the server from the registry, and its slots, and ends the order.
    Forget { node: String },
}

/// Reason for an action, or for none.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Why {
    NoPrimary,
    TwoPrimaries,
    Fewer { present: usize, least: usize },
    More { present: usize, most: usize },
    Busy { load: f64, limit: u32 },
    Idle { load: f64, limit: u32 },
    Enough { load: f64, replicas: usize },
    Most { load: f64, most: usize },
    Unknown,
    Troubled { node: String, trouble: &'static str },
    Pause { rest: Duration },
    Failed { rest: Duration },
    None,
    NotAdded,
    Joins,
    Serves,
    Late,
    Leaves,
    Left,
    Primary,
    Needed,
    Ends,
    Answers,
    Gone,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoPrimary => write!(f, "no primary answers"),
            Why::TwoPrimaries => write!(f, "two servers answer as primary"),
            Why::Fewer { present, least } => write!(f, "there are {present} replicas, and {least} are the least"),
            Why::More { present, most } => write!(f, "there are {present} replicas, and {most} are the most"),
            Why::Busy { load, limit } => write!(f, "{load:.1} busy sessions a replica, from {limit} on one is added"),
            Why::Idle { load, limit } => {
                write!(f, "{load:.1} busy sessions a replica without it, up to {limit} one is removed")
            }
            Why::Enough { load, replicas } => write!(f, "{load:.1} busy sessions a replica, {replicas} replicas serve"),
            Why::Most { load, most } => {
                write!(f, "{load:.1} busy sessions a replica, and there are already {most} replicas")
            }
            Why::Unknown => write!(f, "the load of the whole window is not known"),
            Why::Troubled { node, trouble } => write!(f, "nothing is removed while {node} {trouble}"),
            Why::Pause { rest } => write!(f, "the pause after the last change lasts another {} s", rest.as_secs()),
            Why::Failed { rest } => write!(f, "the pause after a failure lasts another {} s", rest.as_secs()),
            Why::None => write!(f, "no server that the scaler may remove is a replica"),
            Why::NotAdded => write!(f, "it is not there yet"),
            Why::Joins => write!(f, "it does not serve yet"),
            Why::Serves => write!(f, "it serves"),
            Why::Late => write!(f, "it does not serve in time"),
            Why::Leaves => write!(f, "clients have time to leave"),
            Why::Left => write!(f, "clients have left it, or had time to"),
            Why::Primary => write!(f, "it has become the primary"),
            Why::Needed => write!(f, "it is needed again"),
            Why::Ends => write!(f, "it is to be removed"),
            Why::Answers => write!(f, "it still answers"),
            Why::Gone => write!(f, "it answers no more"),
        }
    }
}

/// A decision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    pub(crate) action: Action,
    pub(crate) why: Why,
}

impl Decision {
    fn new(action: Action, why: Why) -> Decision {
        Decision { action, why }
    }

    fn wait(why: Why) -> Decision {
        Decision::new(Action::Wait, why)
    }
}

/// Decides. `average`: the load of a replica on average of the whole window; `drained`: clients have left the server that is drained.
pub(crate) fn decide(
    config: &ScaleConfig,
    seen: &[Seen],
    average: Option<f64>,
    record: &Record,
    drained: bool,
    now: u64,
) -> Decision {
    match seen.iter().filter(|server| server.answer == Answer::Primary).count() {
        0 => return Decision::wait(Why::NoPrimary),
        1 => {}
        _ => return Decision::wait(Why::TwoPrimaries),
    }
    match &record.order {
        Some(order) => under_way(config, seen, average, record, order, drained, now),
        None => settled(config, seen, average, record, now),
    }
}

fn under_way(
    config: &ScaleConfig,
    seen: &[Seen],
    average: Option<f64>,
    record: &Record,
    order: &Order,
    drained: bool,
    now: u64,
) -> Decision {
    let node = order.node.clone();
    let server = seen.iter().find(|server| server.name == order.node);
    let address = server.map_or_else(|| order.address.clone(), |server| server.address.clone());
    let is_primary = server.is_some_and(|server| server.answer == Answer::Primary);
    match order.stage {
        Stage::Adding if is_primary || server.is_some_and(|server| server.serves(config.lag_bytes)) => {
            Decision::new(Action::Joined { node }, Why::Serves)
        }
        Stage::Adding if !order.done && server.is_none() => Decision::new(Action::RunAdd { node }, Why::NotAdded),
        Stage::Adding if rest(order.since, config.join_timeout, now).is_none() => {
            Decision::new(Action::GiveUp { node, address }, Why::Late)
        }
        Stage::Adding => Decision::wait(Why::Joins),
        Stage::Draining | Stage::Removing if is_primary => Decision::new(Action::Keep { node }, Why::Primary),
        Stage::Draining => {
            let Some(server) = server else { return Decision::new(Action::Remove { node, address }, Why::Left) };
            let others = || seen.iter().filter(|other| other.name != order.node && other.answer != Answer::Primary);
            let busy = average.is_some_and(|load| load >= f64::from(config.add_at));
            let troubled = others().any(|other| !other.serves(config.lag_bytes));
            if busy || troubled || others().count() < config.least {
                Decision::new(Action::Keep { node }, Why::Needed)
            } else if !server.isolated {
                Decision::new(Action::Isolate { node }, Why::Leaves)
            } else if drained {
                Decision::new(Action::Remove { node, address }, Why::Left)
            } else {
                Decision::wait(Why::Leaves)
            }
        }
        Stage::Removing if !order.done => match record.pause(now).filter(|_| order.since == record.failed) {
            Some(rest) => Decision::wait(Why::Failed { rest }),
            None => Decision::new(Action::RunRemove { node, address }, Why::Ends),
        },
        Stage::Removing => match server.is_some_and(|server| server.answer != Answer::Missing) {
            false => Decision::new(Action::Forget { node }, Why::Gone),
            true if rest(order.since, config.command_timeout, now).is_none() => {
                Decision::new(Action::RunRemove { node, address }, Why::Answers)
            }
            true => Decision::wait(Why::Answers),
        },
    }
}

fn settled(config: &ScaleConfig, seen: &[Seen], average: Option<f64>, record: &Record, now: u64) -> Decision {
    let lag = config.lag_bytes;
    let replicas: Vec<&Seen> = seen.iter().filter(|server| server.answer != Answer::Primary).collect();
    let present = replicas.len();
    let serving = replicas.iter().filter(|server| server.serves(lag)).count();
    let add = |why| match record.pause(now) {
        Some(rest) => Decision::wait(Why::Failed { rest }),
        None => Decision::new(Action::Add { node: next_name(config, seen) }, why),
    };
    let remove = |why| {
        if let Some(troubled) = replicas.iter().find(|server| !server.serves(lag)) {
            return Decision::wait(Why::Troubled { node: troubled.name.clone(), trouble: troubled.trouble() });
        }
        if let Some(rest) = rest(record.changed, config.remove_pause, now) {
            return Decision::wait(Why::Pause { rest });
        }
        match candidate(config, seen) {
            Some(server) => {
                Decision::new(Action::Drain { node: server.name.clone(), address: server.address.clone() }, why)
            }
            None => Decision::wait(Why::None),
        }
    };
    if present < config.least {
        return add(Why::Fewer { present, least: config.least });
    }
    if present > config.most {
        return remove(Why::More { present, most: config.most });
    }
    let Some(load) = average else { return Decision::wait(Why::Unknown) };
    if load >= f64::from(config.add_at) {
        if present >= config.most {
            return Decision::wait(Why::Most { load, most: present });
        }
        return match rest(record.changed, config.add_pause, now) {
            Some(rest) => Decision::wait(Why::Pause { rest }),
            None => add(Why::Busy { load, limit: config.add_at }),
        };
    }
    // Numbers of servers are small.
    let without = |serving: usize| load * serving as f64 / (serving - 1) as f64;
    if present > config.least && serving > 1 && without(serving) <= f64::from(config.remove_at) {
        return remove(Why::Idle { load: without(serving), limit: config.remove_at });
    }
    Decision::wait(Why::Enough { load, replicas: serving })
}

/// Returns the number of a server that the scaler may add and remove.
fn number(config: &ScaleConfig, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(&config.prefix)?;
    digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns the name of the next server: with the number after the highest one, as a StatefulSet counts.
fn next_name(config: &ScaleConfig, seen: &[Seen]) -> String {
    let highest = seen.iter().filter_map(|server| number(config, &server.name)).max();
    format!("{}{}", config.prefix, highest.map_or(1, |highest| highest.saturating_add(1)))
}

/// Returns the server to remove: the replica with the highest number, the youngest.
fn candidate<'a>(config: &ScaleConfig, seen: &'a [Seen]) -> Option<&'a Seen> {
    let numbered = seen.iter().filter_map(|server| Some((number(config, &server.name)?, server)));
    let may_leave = |server: &&Seen| server.answer != Answer::Primary;
    let highest =
        numbered.filter(|(_, server)| config.only_last || may_leave(server)).max_by_key(|(number, _)| *number);
    highest.map(|(_, server)| server).filter(may_leave)
}
