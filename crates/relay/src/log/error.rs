//! Errors by operation: opening, appending, switching timelines, reading, fetching.

use std::io;
use std::path::PathBuf;

use watermark::Lsn;

use super::{HistoryError, Timeline};

/// Opening or maintaining a log failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not a size that PostgreSQL can have.
    #[error(
        "a WAL segment of {bytes} bytes is not possible: expected a power of two from 1 MB to 1 GB, as SHOW wal_segment_size says"
    )]
    SegmentSize {
        /// The requested size.
        bytes: u64,
    },
    /// The operating system refused.
    #[error("{tried} {}: {source}", path.display())]
    Io {
        /// A verb, such as `open` or `write`.
        tried: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process, or another [`super::Log`] of this one, uses the directory.
    #[error("{} is in use by another process: a log has one writer; stop the other, or give this one its own directory", dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory holds another cluster's WAL.
    #[error(
        "{} holds the WAL of the cluster with system identifier {held}, not of {given}: give each cluster its own directory, \
         or move this one away if the cluster was made anew",
        dir.display()
    )]
    OtherCluster {
        /// The directory.
        dir: PathBuf,
        /// System identifier of its WAL.
        held: u64,
        /// Expected system identifier.
        given: u64,
    },
    /// The directory holds segments of another size.
    #[error("{} holds WAL in segments of {held} bytes, and {given} were expected", dir.display())]
    OtherSegmentSize {
        /// The directory.
        dir: PathBuf,
        /// Bytes of a held segment.
        held: u64,
        /// Expected bytes.
        given: u64,
    },
    /// The state file is invalid.
    #[error("{}: {reason}; restore it from a copy, or move the directory away and start with an empty one", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Description of the fault.
        reason: String,
    },
    /// Segments without a state file, so that their cluster is unknown.
    #[error("{} holds WAL segments ({example}) but no {state}: not a directory of this log", dir.display())]
    NotALog {
        /// The directory.
        dir: PathBuf,
        /// Name of one of the segments.
        example: String,
        /// Name of the missing file.
        state: &'static str,
    },
    /// No WAL is held, and no start position was given.
    #[error("{} holds no WAL yet, so the position to begin at must come from the upstream server", dir.display())]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// The start position is in the middle of a segment, or is 0.
    #[error("a log cannot begin at {at}: expected the start of a segment, after 0/0")]
    BadStart {
        /// The position.
        at: Lsn,
    },
    /// WAL that was known to be durable is no longer readable.
    #[error(
        "{}: the WAL in {segment} is valid up to {valid_to} only, and everything before {durable_to} had been made durable: \
         the file was damaged. Nothing was changed. Put the segment there from another relay (`kingpost relay fetch --from`), the primary or an \
         archive; or give up what this log holds: `kingpost relay reset`",
        dir.display()
    )]
    Damaged {
        /// The directory.
        dir: PathBuf,
        /// Name of the file.
        segment: String,
        /// End of the last whole record.
        valid_to: Lsn,
        /// Lower bound of the durable WAL.
        durable_to: Lsn,
    },
    /// A file does not have the length of a segment.
    #[error("{} has {held} bytes, and a segment has {expected}", path.display())]
    SegmentLength {
        /// The file.
        path: PathBuf,
        /// Length of the file.
        held: u64,
        /// Expected length.
        expected: u64,
    },
    /// A history file cannot be used.
    #[error("timeline history file {}: {source}", path.display())]
    History {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: HistoryError,
    },
    /// The held history of the timeline differs from the given one: two servers were promoted to one number.
    #[error(
        "timeline {timeline} has another history here than the one that was given: two servers must have been promoted to \
         the same timeline"
    )]
    OtherHistory {
        /// The timeline.
        timeline: Timeline,
    },
}

impl LogError {
    /// True if the disk is full: this state can end without any change to the log.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, LogError::Io { source, .. } if super::files::is_full(source))
    }
}

/// The reason why the log has stopped in this process. WAL that was reported as flushed is safe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{tried} {}: {reason}; after a failed flush nobody can say what the disk holds, so the log has stopped: \
     restart it once the disk is sound, it will go on from what it can prove", path.display()
)]
pub struct LogFailure {
    /// A verb.
    pub tried: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Text of the operating system's error.
    pub reason: String,
    /// Flushed position, which stays valid.
    pub flushed: Lsn,
}

/// WAL was refused. WAL appended before is neither lost nor overwritten.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// A gap before the new bytes.
    #[error("WAL at {at} cannot follow what is held: the next byte has to be at {expected}")]
    Gap {
        /// Position of the next byte.
        expected: Lsn,
        /// Position of the refused bytes.
        at: Lsn,
    },
    /// The upstream's bytes differ from the held ones.
    #[error("the upstream's WAL differs from what is held at {at}: this is another history; nothing was overwritten")]
    Mismatch {
        /// Position of the first differing byte.
        at: Lsn,
    },
    /// The bytes overlap WAL that is no longer held, so they cannot be compared.
    #[error("WAL at {at} is before {oldest}, the oldest that is held")]
    BeforeStart {
        /// Position of the refused bytes.
        at: Lsn,
        /// Start of the oldest segment.
        oldest: Lsn,
    },
    /// The disk is full. The same append may be tried again; the part already written is compared and skipped.
    #[error("no room for WAL in {}: {source}; nothing is acknowledged until there is room", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// `ENOSPC` or `EDQUOT`.
        source: io::Error,
    },
    /// The operating system refused for another reason; the append may be tried again.
    #[error("{tried} {}: {source}", path.display())]
    Io {
        /// A verb.
        tried: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The log has stopped.
    #[error(transparent)]
    Failed(LogFailure),
}

/// The timeline was not switched; the log is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// Whole records are held after the point where the new timeline branches off: they would be lost.
    #[error(
        "timeline {to} leaves timeline {from} at {at}, but WAL up to {held_end} is held: the new primary has not got all that \
         this log made durable. Stopped, nothing was cut off. If the new primary is to stay without it, `kingpost relay reset` gives up what \
         the relay holds"
    )]
    Diverged {
        /// The held timeline.
        from: Timeline,
        /// The new timeline.
        to: Timeline,
        /// The switch point.
        at: Lsn,
        /// End of the last whole record held.
        held_end: Lsn,
    },
    /// WAL before the switch point is missing.
    #[error(
        "timeline {to} begins at {at}, and WAL is held up to {expected} only: the rest of the old timeline comes first"
    )]
    Gap {
        /// The new timeline.
        to: Timeline,
        /// End of the held WAL.
        expected: Lsn,
        /// The switch point.
        at: Lsn,
    },
    /// The new timeline's history does not branch off the held timeline at this point.
    #[error("timeline {to} is not the next after timeline {from} at {at}, by its history file")]
    NotAChild {
        /// The held timeline.
        from: Timeline,
        /// The new timeline.
        to: Timeline,
        /// The switch point.
        at: Lsn,
    },
    /// The new timeline's history file is invalid.
    #[error("history of timeline {to}: {source}")]
    History {
        /// The new timeline.
        to: Timeline,
        /// The fault.
        source: HistoryError,
    },
    /// Failure of the files.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log has stopped.
    #[error(transparent)]
    Failed(LogFailure),
}

/// A downstream's request cannot be met. The text is PostgreSQL's own, which standbys and people match on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Removed by retention, or never held.
    #[error("requested WAL segment {segment} has already been removed")]
    Removed {
        /// Name of the segment.
        segment: String,
    },
    /// A position behind the end.
    #[error("requested starting point {requested} is ahead of the WAL flush position of this server {flushed}")]
    AheadOfFlush {
        /// The requested position.
        requested: Lsn,
        /// End of the WAL that may be read.
        flushed: Lsn,
    },
    /// The timeline ended before the requested position.
    #[error("requested starting point {requested} on timeline {timeline} is not in this server's history")]
    NotInHistory {
        /// The requested position.
        requested: Lsn,
        /// Timeline of the request.
        timeline: Timeline,
        /// Position where our history leaves the timeline.
        forked_at: Lsn,
    },
    /// A timeline that is not in our history.
    #[error("requested timeline {timeline} is not in this server's history")]
    UnknownTimeline {
        /// The requested timeline.
        timeline: Timeline,
    },
    /// The operating system refused.
    #[error("could not read from WAL segment {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ReadError {
    /// Returns the `DETAIL` of PostgreSQL's error.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            ReadError::NotInHistory { timeline, forked_at, .. } => {
                Some(format!("This server's history forked from timeline {timeline} at {forked_at}."))
            }
            _ => None,
        }
    }

    /// Returns the `SQLSTATE` of PostgreSQL's error.
    #[must_use]
    pub fn sqlstate(&self) -> &'static str {
        match self {
            ReadError::Removed { .. } => "58P01",
            ReadError::AheadOfFlush { .. } | ReadError::NotInHistory { .. } | ReadError::UnknownTimeline { .. } => {
                "XX000"
            }
            ReadError::Io { .. } => "58030",
        }
    }
}

/// A file was not copied out of the log; the target was not touched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not there (yet, or any more): a frequent answer to a server's recovery.
    #[error("{} does not hold {name}", dir.display())]
    NotHeld {
        /// The directory.
        dir: PathBuf,
        /// The file.
        name: String,
    },
    /// Not a name that a server asks for.
    #[error("{name:?} is neither a WAL segment nor a timeline history file")]
    BadName {
        /// The given name.
        name: String,
    },
    /// Failure of the log's files.
    #[error(transparent)]
    Log(#[from] LogError),
}
