//! What an operator does with a relay at a failover, and what the relay promises by it.
//!
//! The relays together decide who goes on from the end of a timeline, as acceptors of Paxos do: a *fence* is the promise to
//! one term (nothing older is listened to, and nothing more is taken of the timeline that ends), *choose* is what that term
//! wants. Whoever comes later, with a higher term, is told what was chosen, and goes on with that.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tracing::info;
use watermark::{Lsn, Parker, Waited};
use wire::replication::{Order, Rows, position, read_position};

use crate::error::StartError;
use crate::log::LogError;
use crate::shared::Shared;
use crate::state::Fence;

/// Longest time for what is under way to end, and for the disk to have it.
const LIMIT: Duration = Duration::from_secs(20);

/// How a relay stands, as an operator needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Identifier of the cluster.
    pub system: u64,
    /// The highest term that was promised to.
    pub term: u64,
    /// The timeline being written.
    pub timeline: u32,
    /// Durable here.
    pub flushed: Lsn,
    /// End of the last whole record of it: what a standby can have replayed that has received all of it.
    pub whole: Lsn,
    /// The last timeline that nothing more is taken of, while that is the one being written.
    pub fenced: Option<u32>,
    /// Which node is to go on from the end of that timeline, and the term in which it was chosen.
    pub chosen: Option<(u64, String)>,
    /// Where WAL comes from.
    pub upstream: String,
    /// `streaming`, or what stands in the way.
    pub state: String,
    /// Whether the configuration names the upstream, rather than the cluster whose primary is followed.
    pub named: bool,
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// There is no log yet.
    #[error("the relay has not reached its upstream yet: it holds nothing")]
    Empty,
    /// Somebody else has a higher term, or this one was promised to already.
    #[error("term {given} is too low: the relay has promised to term {held}; another failover may be under way")]
    Term {
        /// Promised to.
        held: u64,
        /// Of the order.
        given: u64,
    },
    /// The timeline that is to end is not the last one.
    #[error("the relay is on timeline {own} already, so that timeline {given} has ended before")]
    Timeline {
        /// Of the log.
        own: u32,
        /// Of the order.
        given: u32,
    },
    /// Nothing was fenced, or another timeline.
    #[error("the relay is not fenced: a node is chosen only to go on from where a fence was put up")]
    NotFenced,
    /// A node was chosen: it may be the primary already.
    #[error(
        "node {node:?} was chosen in term {term} to go on from here: it may be the primary already, so the fence stays"
    )]
    Chosen {
        /// In which term.
        term: u64,
        /// The node.
        node: String,
    },
    /// What is under way does not end.
    #[error("the fence is up, but {what} within {} s: ask again", LIMIT.as_secs())]
    Slow {
        /// What did not happen.
        what: &'static str,
    },
    /// A file cannot be written.
    #[error("{0}")]
    State(#[from] StartError),
    /// The log is in the way.
    #[error("{0}")]
    Log(#[from] LogError),
    /// The log has failed.
    #[error("the log failed: {0}")]
    Failed(String),
}

/// Carries out one order; they come one after the other. Blocking.
pub(crate) fn operate(shared: &Shared, order: &Order) -> Result<Standing, OrderError> {
    let _one = shared.orders.lock().unwrap_or_else(PoisonError::into_inner);
    let log = shared.log().ok_or(OrderError::Empty)?;
    let held = log.term();
    let exactly = |given: u64| if given == held { Ok(()) } else { Err(OrderError::Term { held, given }) };
    match order {
        Order::Look => {}
        Order::Fence { term, timeline } => fence(shared, *term, *timeline)?,
        Order::Choose { term, node } => {
            exactly(*term)?;
            let fence = shared.state.fence().filter(|fence| fence.timeline >= log.tail().timeline.0);
            let fence = fence.ok_or(OrderError::NotFenced)?;
            shared.state.set_fence(Some(Fence { chosen: Some((*term, node.clone())), ..fence }))?;
            info!(term, node, "this node is to be the primary");
        }
        Order::Withdraw { term, node } => {
            exactly(*term)?;
            let fence = shared.state.fence().filter(|fence| fence.timeline >= log.tail().timeline.0);
            match fence {
                Some(Fence { chosen: Some((_, chosen)), timeline }) if chosen == *node => {
                    shared.state.set_fence(Some(Fence { timeline, chosen: None }))?;
                    info!(term, node, "this node is not to be the primary any more");
                }
                Some(Fence { chosen: Some((term, node)), .. }) => return Err(OrderError::Chosen { term, node }),
                // Withdrawn before.
                Some(Fence { chosen: None, .. }) | None => {}
            }
        }
        Order::Follow { term, address } => {
            exactly(*term)?;
            let configured = shared.control.configured();
            // Who follows whatever primary the cluster has will be told by it.
            if !configured.is_empty() {
                shared.state.set_follow(&configured, address)?;
            }
            info!(term, upstream = address, "following another upstream, as an operator says");
            shared.control.follow(|config| config.address.clone_from(address));
        }
        Order::Release { term } => {
            if *term <= held {
                return Err(OrderError::Term { held, given: *term });
            }
            let standing = shared.state.fence().filter(|fence| fence.timeline >= log.tail().timeline.0);
            if let Some(Fence { chosen: Some((term, node)), .. }) = standing {
                return Err(OrderError::Chosen { term, node });
            }
            log.raise_term(*term)?;
            shared.state.set_fence(None)?;
            info!(term, "the fence is taken away");
            shared.control.interrupt(LIMIT);
        }
    }
    look(shared)
}

/// Ends a timeline here: what `flushed` is afterwards stays the end of it, and nobody was told of more.
fn fence(shared: &Shared, term: u64, timeline: u32) -> Result<(), OrderError> {
    let log = shared.log().ok_or(OrderError::Empty)?;
    let held = log.term();
    if term <= held {
        return Err(OrderError::Term { held, given: term });
    }
    let own = log.tail().timeline.0;
    if timeline < own {
        return Err(OrderError::Timeline { own, given: timeline });
    }
    let chosen = shared.state.fence().filter(|fence| fence.timeline == timeline).and_then(|fence| fence.chosen);
    // The fence before the promise: a crash in between leaves the log safe, and the term free.
    shared.state.set_fence(Some(Fence { timeline, chosen }))?;
    log.raise_term(term)?;
    info!(term, timeline, "fenced: nothing more is taken on this timeline");
    if !shared.control.interrupt(LIMIT) {
        return Err(OrderError::Slow { what: "receiving has not ended" });
    }
    // What was received last must be durable: it is what the new primary will be held against.
    let tail = log.tail();
    let mut parker = Parker::new(std::sync::Arc::clone(&tail.flushed));
    match parker.wait(tail.written.get(), Some(Instant::now() + LIMIT)) {
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

fn look(shared: &Shared) -> Result<Standing, OrderError> {
    let log = shared.log().ok_or(OrderError::Empty)?;
    let tail = log.tail();
    let fence = shared.state.fence().filter(|fence| fence.timeline >= tail.timeline.0);
    let flushed = tail.flushed.get();
    Ok(Standing {
        system: log.identity().system_id,
        term: log.term(),
        timeline: tail.timeline.0,
        flushed,
        whole: log.whole_records()?.min(flushed),
        fenced: fence.as_ref().map(|fence| fence.timeline),
        chosen: fence.and_then(|fence| fence.chosen),
        upstream: shared.control.address(),
        state: shared.upstream().state,
        named: !shared.control.configured().is_empty(),
    })
}

// === impl Standing ===

impl Standing {
    /// As a row of text.
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

    /// What [`Standing::columns`] wrote; None if it is something else.
    pub(crate) fn read(row: &Rows) -> Option<Standing> {
        let text = |index| row.text(index);
        let optional = |index| match row.text(index) {
            Some("") => Some(None),
            Some(text) => text.parse().ok().map(Some),
            None => None,
        };
        let chosen: Option<u64> = optional(6)?;
        let fenced: Option<u64> = optional(5)?;
        Some(Standing {
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
    fn what_is_written_is_read() {
        let fenced = Standing {
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
        let free = Standing { fenced: None, chosen: None, named: false, ..fenced.clone() };
        for standing in [fenced, free] {
            let row = Rows(standing.columns().into_iter().map(|(_, value)| Some(value.into_bytes())).collect());
            assert_eq!(Standing::read(&row), Some(standing));
        }
        assert_eq!(Standing::read(&Rows(vec![Some(b"7".to_vec())])), None);
    }
}
