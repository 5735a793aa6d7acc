//! What the decider comes to.

use std::time::Duration;

use watermark::Lsn;

use crate::lag::Lag;
use crate::view::{NodeId, Role, Term};

/// A node's place in the next view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) role: Role,
    pub(crate) usable: bool,
    pub(crate) weight: u32,
    pub(crate) lag: Lag,
}

/// What is to become of a node's `replayed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Nothing is known any more: back to none, before the new view is seen.
    Reset,
    /// Raise it, after the new view is seen.
    Publish(Lsn),
}

/// Worth a line in the log, once.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    Primary {
        node: NodeId,
        term: Term,
        before: Option<NodeId>,
    },
    NoPrimary {
        last: NodeId,
    },
    Role {
        node: NodeId,
        from: Role,
        to: Role,
    },
    /// Out of recovery on an older timeline than one already seen.
    OldTimeline {
        node: NodeId,
        timeline: u32,
        highest: u32,
    },
    /// A node of another database system.
    Foreign {
        node: NodeId,
        system: u64,
        expected: u64,
    },
    /// Out of recovery, and not the writer by its servers' own list.
    Disowned {
        node: NodeId,
    },
    /// Two nodes take writes, and there are no timelines.
    Contested {
        one: NodeId,
        other: NodeId,
    },
    /// Two nodes take writes on the same timeline.
    Rival {
        kept: NodeId,
        other: NodeId,
        timeline: u32,
    },
    Ejected {
        node: NodeId,
        error: String,
        back_off: Duration,
    },
    Returned {
        node: NodeId,
    },
    Lagging {
        node: NodeId,
        lag: Duration,
    },
    CaughtUp {
        node: NodeId,
    },
}

/// The next view's contents. Marks are in the order in which they apply.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) term: Term,
    pub(crate) primary: Option<NodeId>,
    /// The primary says where it is, and can be asked.
    pub(crate) tells: bool,
    pub(crate) nodes: Vec<Outcome>,
    pub(crate) marks: Vec<(NodeId, Mark)>,
    pub(crate) events: Vec<Event>,
}
