//! Orders of an operator to a relay at a failover, and the promises that they make.
//!
//! The relays together decide which node goes on from the end of a timeline, as acceptors of Paxos do. A *fence* is the promise to one term: the
//! relay obeys no older term, and takes nothing more of the ending timeline. *Choose* is the value of that term. A later coordinator, with a higher
//! term, is told the choice, and goes on with it, or *withdraws* it if that node can no longer be promoted.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::info;
use watermark::{Lsn, Parker, Waited};
use wire::replication::{Order, Rows, position, read_position};

use crate::error::StartError;
use crate::log::{Log, LogError};
use crate::promise::{Choice, NotPromised, Promise, PromiseError};
use crate::shared::Shared;

/// Longest time for an order: to get its turn, for work under way to end, and for the disk to have it. A flush under way is waited for beyond that.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// State of a relay, for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayState {
    /// System identifier of the cluster.
    pub system: u64,
    /// The highest promised term.
    pub term: u64,
    /// The timeline being written.
    pub timeline: u32,
    /// Position durable here.
    pub flushed: Lsn,
    /// End of the last whole durable record: the replay position of a standby that has received everything.
    pub whole: Lsn,
    /// The last timeline of which nothing more is taken, while that is the one being written.
    pub fenced: Option<u32>,
    /// The node chosen to go on from the end of that timeline, and the term of the choice.
    pub chosen: Option<(u64, String)>,
    /// Address of the upstream.
    pub upstream: String,
    /// `streaming`, or the reason why it does not stream.
    pub state: String,
    /// True if the configuration names the upstream, rather than the cluster whose primary is followed.
    pub named: bool,
}

/// The reason why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// No log yet.
    #[error("the relay has not reached its upstream yet: it holds nothing")]
    Empty,
    /// The promise is refused.
    #[error("{0}")]
    Promise(#[from] PromiseError),
    /// The relay has lost its memory, and has not yet learnt its promises.
    #[error("the relay cannot promise anything yet: {state}")]
    NoMemory {
        /// State of the upstream connection, with the reason.
        state: String,
    },
    /// Another order takes too long.
    #[error("another order was not done within {} s: ask again", LIMIT.as_secs())]
    Busy,
    /// Work under way does not end in time.
    #[error("the fence is up and stays, but {what} within {} s: ask again", LIMIT.as_secs())]
    Slow {
        /// The missing event.
        what: &'static str,
    },
    /// A file cannot be written.
    #[error("{0}")]
    State(#[from] StartError),
    /// Failure of the log's files.
    #[error("{0}")]
    Log(#[from] LogError),
    /// The log has stopped.
    #[error("the log failed: {0}")]
    Failed(String),
}

/// A lock that serialises orders which change something.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    taken: Mutex<bool>,
    free: Condvar,
}

/// Turn of one order, released when dropped.
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for the turn; None if it was not free until `end`.
    pub(crate) fn take(&self, end: Instant) -> Option<Turn<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            taken = self.free.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *taken = true;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// Carries out one order; orders that change something run one at a time. Blocking.
pub(crate) fn carry_out(shared: &Shared, order: &Order) -> Result<RelayState, OrderError> {
    if !shared.promise.exists() {
        return Err(OrderError::NoMemory { state: shared.upstream().state });
    }
    let log = shared.log().ok_or(OrderError::Empty)?;
    if *order == Order::Look {
        // Not queued behind an order that waits for the disk.
        return look(shared, &log);
    }
    let end = Instant::now() + LIMIT;
    let _turn = shared.orders.take(end).ok_or(OrderError::Busy)?;
    let own = log.tail().timeline.0;
    match order {
        Order::Look => {}
        Order::Fence { term, timeline } => fence(shared, &log, *term, *timeline, end)?,
        Order::Choose { term, node } => {
            shared.promise.change(|promise| promise.choose(*term, node, own))?;
            info!(term, node, "this node is to be the primary");
        }
        Order::Withdraw { term, node } => {
            shared.promise.change(|promise| promise.withdraw(*term, node, own))?;
            info!(term, node, "this node is not to be the primary after all");
        }
        Order::Follow { term, address } => {
            let configured = shared.control.configured();
            shared.promise.change(|promise| promise.follow(*term, &configured, address))?;
            info!(term, upstream = address, "following another upstream, as an operator says");
            shared.control.follow(|config| config.address.clone_from(address));
        }
        Order::Release { term } => {
            shared.promise.change(|promise| promise.release(*term, own))?;
            info!(term, "the fence is taken away");
            shared.control.interrupt(end);
        }
    }
    look(shared, &log)
}

/// Ends a timeline here: the `flushed` position afterwards stays its end, and nobody was told of a higher one.
fn fence(shared: &Shared, log: &Log, term: u64, timeline: u32, end: Instant) -> Result<(), OrderError> {
    let own = log.tail().timeline.0;
    let flushed = log.tail().flushed.get();
    shared.promise.change(|promise| promise.fence(term, timeline, own, flushed))?;
    info!(term, timeline, "fenced: nothing more is taken on this timeline");
    if !shared.control.interrupt(end) {
        return Err(OrderError::Slow { what: "receiving has not ended" });
    }
    // The last received WAL must be durable: the new primary is compared with it.
    let tail = log.tail();
    let mut parker = Parker::new(std::sync::Arc::clone(&tail.flushed));
    match parker.wait(tail.written.get(), Some(end)) {
        Waited::Reached(_) => {}
        Waited::Unparked | Waited::TimedOut if tail.flushed.get() >= tail.written.get() => {}
        Waited::Unparked | Waited::TimedOut => {
            return Err(match log.failure() {
                Some(failure) => OrderError::Failed(failure.to_string()),
                None => OrderError::Slow { what: "the disk has not taken what was received" },
            });
        }
    }
    Ok(())
}

fn look(shared: &Shared, log: &Log) -> Result<RelayState, OrderError> {
    let tail = log.tail();
    let promise: Promise = shared.promise.now();
    let fence = promise.standing(tail.timeline.0);
    let flushed = tail.flushed.get();
    Ok(RelayState {
        system: log.identity().system_id,
        term: promise.term(),
        timeline: tail.timeline.0,
        flushed,
        whole: log.whole_records()?.min(flushed),
        fenced: fence.map(|(timeline, _)| timeline),
        chosen: fence.and_then(|(_, chosen)| chosen).map(|Choice { term, node }| (*term, node.clone())),
        upstream: shared.control.address(),
        state: shared.upstream().state,
        named: !shared.control.configured().is_empty(),
    })
}

impl From<NotPromised> for OrderError {
    fn from(error: NotPromised) -> OrderError {
        match error {
            NotPromised::Refused(refused) => OrderError::Promise(refused),
            NotPromised::File(error) => OrderError::State(error),
            NotPromised::NoMemory => OrderError::NoMemory { state: error.to_string() },
        }
    }
}

// === impl RelayState ===

impl RelayState {
    /// Renders the state as a row of text.
    pub(crate) fn columns(&self) -> Vec<(&'static str, String)> {
        let (term, node) = self.chosen.clone().map_or_else(Default::default, |(term, node)| (term.to_string(), node));
        vec![
            ("system", self.system.to_string()),
            ("term", self.term.to_string()),
            ("timeline", self.timeline.to_string()),
            ("flushed", position(self.flushed.0)),
            ("whole", position(self.whole.0)),
            ("fenced", self.fenced.map(|timeline| timeline.to_string()).unwrap_or_default()),
            ("chosen_term", term),
            ("chosen_node", node),
            ("upstream", self.upstream.clone()),
            ("state", self.state.clone()),
            ("named", self.named.to_string()),
        ]
    }

    /// Parses the row of [`RelayState::columns`]; None if it is something else.
    pub(crate) fn read(row: &Rows) -> Option<RelayState> {
        let text = |index| row.text(index);
        let optional = |index| match row.text(index) {
            Some("") => Some(None),
            Some(text) => text.parse().ok().map(Some),
            None => None,
        };
        let chosen: Option<u64> = optional(6)?;
        let fenced: Option<u64> = optional(5)?;
        Some(RelayState {
            system: text(0)?.parse().ok()?,
            term: text(1)?.parse().ok()?,
            timeline: text(2)?.parse().ok()?,
            flushed: Lsn(read_position(text(3)?)?),
            whole: Lsn(read_position(text(4)?)?),
            fenced: fenced.map(u32::try_from).transpose().ok()?,
            chosen: match chosen {
                Some(term) => Some((term, text(7)?.to_owned())),
                None => None,
            },
            upstream: text(8)?.to_owned(),
            state: text(9)?.to_owned(),
            named: text(10)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other() {
        let turns = Turns::default();
        let now = Instant::now();
        let first = turns.take(now);
        assert!(first.is_some() && turns.take(now).is_none());
        drop(first);
        assert!(turns.take(now).is_some());
    }

    #[test]
    fn what_is_written_is_read() {
        let fenced = RelayState {
            system: 7,
            term: 3,
            timeline: 2,
            flushed: Lsn(0x1_0000_0028),
            whole: Lsn(0x1_0000_0000),
            fenced: Some(2),
            chosen: Some((3, "db \"2\"".into())),
            upstream: "db1:5432".into(),
            state: "streaming".into(),
            named: true,
        };
        let free = RelayState { fenced: None, chosen: None, named: false, ..fenced.clone() };
        for relay_state in [fenced, free] {
            let row = Rows(relay_state.columns().into_iter().map(|(_, value)| Some(value.into_bytes())).collect());
            assert_eq!(RelayState::read(&row), Some(relay_state));
        }
        assert_eq!(RelayState::read(&Rows(vec![Some(b"7".to_vec())])), None);
    }
}
