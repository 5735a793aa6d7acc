//! What can go wrong, by what was tried: opening, appending, switching timelines, reading, fetching.

use std::io;
use std::path::PathBuf;

use watermark::Lsn;

use super::{HistoryError, Timeline};

/// Opening a log, or looking after its files, failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Not a size that PostgreSQL can have.
    #[error(
        "a WAL segment of {bytes} bytes is not possible: expected a power of two from 1 MB to 1 GB, as SHOW wal_segment_size says"
    )]
    SegmentSize {
        /// What was asked for.
        bytes: u64,
    },
    /// The operating system refused.
    #[error("{tried} {}: {source}", path.display())]
    Io {
        /// A verb: `open`, `write` …
        tried: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process, or another [`super::Log`] of this one, has the directory.
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
        /// System identifier of what it holds.
        held: u64,
        /// System identifier that was expected.
        given: u64,
    },
    /// The directory holds segments of another size.
    #[error("{} holds WAL in segments of {held} bytes, and {given} were expected", dir.display())]
    OtherSegmentSize {
        /// The directory.
        dir: PathBuf,
        /// Bytes of its segments.
        held: u64,
        /// Bytes expected.
        given: u64,
    },
    /// The state file cannot be believed.
    #[error("{}: {reason}; restore it from a copy, or move the directory away and start with an empty one", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Segments, but no state file that says whose they are.
    #[error("{} holds WAL segments ({example}) but no {state}: not a directory of this log", dir.display())]
    NotALog {
        /// The directory.
        dir: PathBuf,
        /// One of them.
        example: String,
        /// Name of the file that is missing.
        state: &'static str,
    },
    /// Nothing held, and nobody said where to begin.
    #[error("{} holds no WAL yet, so the position to begin at must come from the upstream server", dir.display())]
    Empty {
        /// The directory.
        dir: PathBuf,
    },
    /// The position to begin at is in the middle of a segment, or there is none.
    #[error("a log cannot begin at {at}: expected the start of a segment, after 0/0")]
    BadStart {
        /// The position.
        at: Lsn,
    },
    /// WAL that was known to be durable is not readable any more.
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
        /// Durable was at least this much.
        durable_to: Lsn,
    },
    /// A file has not the length that every segment has.
    #[error("{} has {held} bytes, and a segment has {expected}", path.display())]
    SegmentLength {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        held: u64,
        /// What it should have.
        expected: u64,
    },
    /// A history file cannot be used.
    #[error("timeline history file {}: {source}", path.display())]
    History {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: HistoryError,
    },
    /// A different history of the same timeline is held: two servers were promoted to one number.
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
    /// Whether room is missing: a state that ends without anybody touching the log.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, LogError::Io { source, .. } if super::files::is_full(source))
    }
}

/// Why the log works no more in this process. What had been reported as flushed is safe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{tried} {}: {reason}; after a failed flush nobody can say what the disk holds, so the log has stopped: \
     restart it once the disk is sound, it will go on from what it can prove", path.display()
)]
pub struct LogFailure {
    /// A verb.
    pub tried: &'static str,
    /// On what.
    pub path: PathBuf,
    /// The operating system's words.
    pub reason: String,
    /// What had been flushed, and stays so.
    pub flushed: Lsn,
}

/// WAL was not taken. Nothing that was taken before is lost, and nothing was overwritten.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// There would be a hole.
    #[error("WAL at {at} cannot follow what is held: the next byte has to be at {expected}")]
    Gap {
        /// The position that comes next.
        expected: Lsn,
        /// Where the bytes were to go.
        at: Lsn,
    },
    /// The upstream's bytes are not the ones that are held.
    #[error("the upstream's WAL differs from what is held at {at}: this is another history; nothing was overwritten")]
    Mismatch {
        /// The first byte that differs.
        at: Lsn,
    },
    /// Overlap with what is no longer held, so it cannot be compared.
    #[error("WAL at {at} is before {oldest}, the oldest that is held")]
    BeforeStart {
        /// Where the bytes were to go.
        at: Lsn,
        /// Start of the oldest segment.
        oldest: Lsn,
    },
    /// No room. The same append may be tried again; what was written of it is compared and passed over.
    #[error("no room for WAL in {}: {source}; nothing is acknowledged until there is room", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// `ENOSPC` or `EDQUOT`.
        source: io::Error,
    },
    /// The operating system refused for another reason; may be tried again.
    #[error("{tried} {}: {source}", path.display())]
    Io {
        /// A verb.
        tried: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The log works no more.
    #[error(transparent)]
    Failed(LogFailure),
}

/// The timeline was not switched; the log is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// Whole records are held after the point where the new timeline leaves: they would be lost.
    #[error(
        "timeline {to} leaves timeline {from} at {at}, but WAL up to {held_end} is held: the new primary has not got all that \
         this log made durable. Stopped, nothing was cut off. If the new primary is to stay without it, `kingpost relay reset` gives up what \
         the relay holds"
    )]
    Diverged {
        /// The timeline that is held.
        from: Timeline,
        /// The one to switch to.
        to: Timeline,
        /// Where it leaves.
        at: Lsn,
        /// End of the last whole record held.
        held_end: Lsn,
    },
    /// WAL before the switch point has not arrived.
    #[error(
        "timeline {to} begins at {at}, and WAL is held up to {expected} only: the rest of the old timeline comes first"
    )]
    Gap {
        /// The one to switch to.
        to: Timeline,
        /// What is held.
        expected: Lsn,
        /// Where it begins.
        at: Lsn,
    },
    /// Its history does not say that it leaves our timeline there.
    #[error("timeline {to} is not the next after timeline {from} at {at}, by its history file")]
    NotAChild {
        /// The timeline that is held.
        from: Timeline,
        /// The one to switch to.
        to: Timeline,
        /// Where.
        at: Lsn,
    },
    /// Its history file makes no sense.
    #[error("history of timeline {to}: {source}")]
    History {
        /// The one to switch to.
        to: Timeline,
        /// What is wrong.
        source: HistoryError,
    },
    /// Files.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log works no more.
    #[error(transparent)]
    Failed(LogFailure),
}

/// A downstream cannot have what it asked for. The text is PostgreSQL's own, which standbys and people match on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Removed by retention, or never held.
    #[error("requested WAL segment {segment} has already been removed")]
    Removed {
        /// Its name.
        segment: String,
    },
    /// Behind the end.
    #[error("requested starting point {requested} is ahead of the WAL flush position of this server {flushed}")]
    AheadOfFlush {
        /// What was asked for.
        requested: Lsn,
        /// What there is.
        flushed: Lsn,
    },
    /// The timeline had ended before that.
    #[error("requested starting point {requested} on timeline {timeline} is not in this server's history")]
    NotInHistory {
        /// What was asked for.
        requested: Lsn,
        /// On which timeline.
        timeline: Timeline,
        /// Where our history leaves it.
        forked_at: Lsn,
    },
    /// Not one of ours.
    #[error("requested timeline {timeline} is not in this server's history")]
    UnknownTimeline {
        /// The one asked for.
        timeline: Timeline,
    },
    /// The operating system refused.
    #[error("could not read from WAL segment {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl ReadError {
    /// The `DETAIL` that PostgreSQL gives with it.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            ReadError::NotInHistory { timeline, forked_at, .. } => {
                Some(format!("This server's history forked from timeline {timeline} at {forked_at}."))
            }
            _ => None,
        }
    }

    /// The `SQLSTATE` that PostgreSQL gives with it.
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
    /// Not there (yet, or any more): what a server's recovery asks all the time.
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
        /// What was given.
        name: String,
    },
    /// Files.
    #[error(transparent)]
    Log(#[from] LogError),
}
