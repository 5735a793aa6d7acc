//! Output of the decider.

use std::time::Duration;

use watermark::Lsn;

use crate::lag::Lag;
use crate::view::{NodeId, Role, Term};

/// State of a node in the next view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) role: Role,
    pub(crate) usable: bool,
    pub(crate) weight: u32,
    pub(crate) lag: Lag,
}

/// Change of a node's `replayed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Resets the position to none, before the new view is visible.
    Reset,
    /// Raises the position, after the new view is visible.
    Publish(Lsn),
}

/// Event for one line in the log.
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
    /// A node is out of recovery on an older timeline than one already seen.
    OldTimeline {
        node: NodeId,
        timeline: u32,
        highest: u32,
    },
    /// A node belongs to another database system.
    Foreign {
        node: NodeId,
        system: u64,
        expected: u64,
    },
    /// A node is out of recovery, but not the writer by its servers' own list.
    Disowned {
        node: NodeId,
    },
    /// Two nodes accept writes, and there are no timelines.
    Contested {
        one: NodeId,
        other: NodeId,
    },
    /// Two nodes accept writes on the same timeline.
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

/// Contents of the next view. Marks are in the order in which they apply.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) term: Term,
    pub(crate) primary: Option<NodeId>,
    /// True if the primary reports its position, and can be asked.
    pub(crate) tells: bool,
    pub(crate) nodes: Vec<Outcome>,
    pub(crate) marks: Vec<(NodeId, Mark)>,
    pub(crate) events: Vec<Event>,
}
