//! Results of probes.

use std::time::Duration;

use watermark::Lsn;

/// Result of one probe of a node.
#[derive(Debug, Clone)]
pub(crate) enum Report {
    /// The node answered.
    Up(Facts),
    /// The node did not answer. `suspected`: a worker, or the loss of the probe's own session, had suspected it before.
    Down { error: String, suspected: bool },
    /// The probe's session was lost while no query was under way: the server may be restarting.
    Lost,
}

/// State reported by a node.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The node's database system.
    pub(crate) system: u64,
    /// The timeline that the node writes or follows; 0 if unknown.
    pub(crate) timeline: u32,
    /// True for the first answer of a new session: the server may have been restarted since the last one, and a standby after crash recovery may be
    /// behind its former position.
    pub(crate) fresh: bool,
    pub(crate) position: Position,
}

/// Position of a node: LSNs or, for a server that reports none, transaction IDs; 0 if unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Out of recovery, with its write position.
    Primary { lsn: Lsn },
    /// In recovery.
    Standby {
        /// Position before which all changes are visible there.
        replayed: Lsn,
        /// Position for the lag, not before `replayed`. (Of the ended transactions, some may have begun after one that has not ended.)
        reached: Lsn,
        /// Lag reported by the servers themselves.
        late: Option<Duration>,
        /// Age of the last commit that it replayed, by its own clock.
        commit_age: Option<Duration>,
    },
    /// Out of recovery, but according to its servers' own list not the one to write to.
    Disowned,
}

impl Position {
    /// Returns the position of a standby that replays a log.
    pub(crate) fn of_log(replayed: Lsn, commit_age: Option<Duration>) -> Position {
        Position::Standby { replayed, reached: replayed, late: None, commit_age }
    }
}

impl Facts {
    /// Returns the position in the node's log, if it has one.
    pub(crate) fn log_position(&self) -> Lsn {
        match self.position {
            _ if self.timeline == 0 => Lsn(0),
            Position::Primary { lsn } | Position::Standby { replayed: lsn, .. } => lsn,
            Position::Disowned => Lsn(0),
        }
    }
}
