//! What probes tell.

use std::time::Duration;

use watermark::Lsn;

/// What one probe of a node came to.
#[derive(Debug, Clone)]
pub(crate) enum Report {
    /// It answered.
    Up(Facts),
    /// It did not. `suspected`: a worker, or the loss of the probe's own session, had pointed at it before.
    Down { error: String, suspected: bool },
    /// The session of the probe broke while nothing was asked: the server may be restarting.
    Lost,
}

/// What a node says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// Its database system.
    pub(crate) system: u64,
    /// The timeline it writes, or follows; 0 if it cannot be told.
    pub(crate) timeline: u32,
    /// The first answer of a new session: since the last one the server may have been restarted, and a standby that
    /// recovered from a crash may be behind where it was.
    pub(crate) fresh: bool,
    pub(crate) position: Position,
}

/// Positions are LSNs or, of a server that tells none, transaction ids; 0 if it does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Out of recovery; what it has written.
    Primary { lsn: Lsn },
    /// In recovery.
    Standby {
        /// Everything before is to be seen there.
        replayed: Lsn,
        /// How far it is, for its lag: not before `replayed`. (Of transactions that ended, some may have begun after one that has not.)
        reached: Lsn,
        /// How late it is by the servers' own word.
        late: Option<Duration>,
        /// Age of the last commit it replayed, by its own clock.
        commit_age: Option<Duration>,
    },
    /// Out of recovery, but its servers' own list says that it is not the one to write to.
    Disowned,
}

impl Position {
    /// A standby's that replays a log.
    pub(crate) fn of_log(replayed: Lsn, commit_age: Option<Duration>) -> Position {
        Position::Standby { replayed, reached: replayed, late: None, commit_age }
    }
}

impl Facts {
    /// The position in its log, if it has one.
    pub(crate) fn log_position(&self) -> Lsn {
        match self.position {
            _ if self.timeline == 0 => Lsn(0),
            Position::Primary { lsn } | Position::Standby { replayed: lsn, .. } => lsn,
            Position::Disowned => Lsn(0),
        }
    }
}
