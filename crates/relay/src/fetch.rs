//! `kingpost relay fetch`: a segment or a history file from a relay's address (`--from`), or from the archive, for the `restore_command` of a server on another host.
//!
//! By physical replication, as a standby: the relay needs nothing more than its users and its TLS, and gives only durable WAL. A server can be asked
//! as well.

use std::path::Path;
use std::time::{Duration, Instant};

use ::archive::config::ArchiveConfig;
use ::archive::{Archive, ArchiveError, FileName};
use watermark::Lsn;
use wire::replication::position;

use crate::ask::{RelayAccess, history, identify, show};
use crate::error::{Cause, SessionError};
use crate::log::{FetchError, Identity, LogError, NewFile, Segment, SegmentSize, Timeline};
use crate::session::{STEP, Session, Started};
use crate::upstream::parse_size;

/// Longest time without WAL of the segment, even if the relay sends other messages.
const PATIENCE: Duration = STEP;

/// An error of fetching a file from a relay.
#[derive(Debug, thiserror::Error)]
pub enum FetchFromError {
    /// Not there (yet, or any more): a frequent answer to a server's recovery.
    #[error("relay {relay} does not hold {name}")]
    NotHeld {
        /// The relay's name, as given.
        relay: String,
        /// The file.
        name: String,
    },
    /// Failure of the connection.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Not a name that a server asks for, or the file cannot be written.
    #[error(transparent)]
    File(#[from] FetchError),
}

impl From<LogError> for FetchFromError {
    fn from(error: LogError) -> FetchFromError {
        FetchFromError::File(error.into())
    }
}

/// Fetches the segment or history file `name` to `target`, which is complete or not there. An incomplete segment is given up to the relay's durable
/// position, with zeroes behind, as in a server's own, but not to a server that has more of it ([`NewFile::complete_segment`]). Blocking; the relay
/// may be silent for 10 s at most.
///
/// # Errors
/// [`FetchFromError::NotHeld`] is an ordinary answer: recovery asks for files until there are no more.
pub fn fetch_from(relay: &RelayAccess<'_>, name: &str, target: &Path) -> Result<(), FetchFromError> {
    let fetched = fetch(relay, name, target);
    let absent =
        matches!(&fetched, Err(FetchFromError::Session(error)) if error.is_removed() || error.is_other_history());
    if absent { Err(not_held(relay, name)) } else { fetched }
}

fn not_held(relay: &RelayAccess<'_>, name: &str) -> FetchFromError {
    FetchFromError::NotHeld { relay: relay.name.into(), name: name.into() }
}

fn fetch(relay: &RelayAccess<'_>, name: &str, target: &Path) -> Result<(), FetchFromError> {
    let mut session = relay.open("kingpost relay fetch")?;
    if let Some(timeline) = Timeline::of_history_name(name) {
        let content = history(&mut session, timeline.0)?;
        let mut file = NewFile::create(target)?;
        file.write_at(&content, 0)?;
        file.complete()?;
        session.leave();
        return Ok(());
    }
    let shown = show(&mut session, "wal_segment_size")?;
    let size = parse_size(&shown).and_then(|bytes| SegmentSize::new(bytes).ok());
    let size = size.ok_or_else(|| session.failed(Cause::Protocol(format!("wal_segment_size is {shown:?}"))))?;
    let segment = Segment::of_name(name, size).ok_or_else(|| FetchError::BadName { name: name.into() })?;
    let remote = identify(&mut session)?;
    let begin = size.start(segment.number);
    let end = Lsn(begin.0.saturating_add(size.bytes()));
    let end = match segment.timeline.0.cmp(&remote.timeline) {
        // The relay reports the end of an earlier timeline.
        std::cmp::Ordering::Less => end,
        std::cmp::Ordering::Equal => end.min(Lsn(remote.position)),
        std::cmp::Ordering::Greater => return Err(not_held(relay, name)),
    };
    if end <= begin {
        return Err(not_held(relay, name));
    }
    let command = format!("START_REPLICATION PHYSICAL {} TIMELINE {}", position(begin.0), segment.timeline.0);
    if let Started::Ended(_) = session.start(&command)? {
        return Err(not_held(relay, name));
    }
    let mut file = NewFile::create(target)?;
    if !receive(&mut session, begin, end, &mut file)? {
        return Err(not_held(relay, name));
    }
    file.extend_to(size.bytes())?;
    session.leave();
    let identity = Identity { system_id: remote.system, segment_size: size };
    if file.complete_segment(&identity, segment)? { Ok(()) } else { Err(not_held(relay, name)) }
}

/// An error of fetching a file from the archive.
#[derive(Debug, thiserror::Error)]
pub enum FetchArchivedError {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Not a name that a server asks for, or the file cannot be written.
    #[error(transparent)]
    File(#[from] FetchError),
}

/// Fetches the segment or history file `name` from the archive to `target`, which is complete or not there. False: the archive does not hold it, or the
/// server has more of the segment ([`NewFile::complete_segment`]). A segment that never became whole is given as far as it was archived, with zeroes behind.
///
/// # Errors
/// The archive does not answer or is damaged, or the file cannot be written.
pub async fn fetch_archived(config: &ArchiveConfig, name: &str, target: &Path) -> Result<bool, FetchArchivedError> {
    let file = FileName::parse(name).ok_or_else(|| FetchError::BadName { name: name.into() })?;
    let store = ::archive::open(config).map_err(ArchiveError::from)?;
    let archive = Archive::attach(store).await?;
    // Made with the first bytes: an answer that there are none leaves no trace.
    let mut copy = None;
    let found = archive
        .fetch(&file, |bytes, at| {
            let copy = match &mut copy {
                Some(copy) => copy,
                None => copy.insert(NewFile::create(target).map_err(FetchError::from)?),
            };
            copy.write_at(bytes, at).map_err(FetchError::from)?;
            Ok::<(), FetchArchivedError>(())
        })
        .await?;
    let Some(mut copy) = copy.filter(|_| found) else { return Ok(false) };
    let of = archive.identity();
    let size = SegmentSize::new(of.segment_size).map_err(FetchError::from)?;
    let Some(segment) = Segment::of_name(name, size) else {
        copy.complete().map_err(FetchError::from)?;
        return Ok(true);
    };
    copy.extend_to(size.bytes()).map_err(FetchError::from)?;
    let identity = Identity { system_id: of.system_id, segment_size: size };
    Ok(copy.complete_segment(&identity, segment).map_err(FetchError::from)?)
}

/// Receives from `begin` up to `end`, or to the end of the timeline. False: no WAL.
fn receive(session: &mut Session, begin: Lsn, end: Lsn, file: &mut NewFile) -> Result<bool, FetchFromError> {
    let mut wal = Vec::new();
    let mut at = begin;
    let mut last = Instant::now();
    while at < end {
        let (heard, start) = session.receive(&mut wal).map_err(|error| error.silent(STEP))?;
        if let Some(start) = start {
            if Lsn(start) != at {
                let what = format!("WAL at {} where {at} comes next", Lsn(start));
                return Err(session.failed(Cause::Protocol(what)).into());
            }
            let wanted = wal.len().min((end.0 - at.0) as usize);
            file.write_at(&wal[..wanted], at.0 - begin.0)?;
            at = Lsn(at.0 + wanted as u64);
            last = Instant::now();
        }
        if heard.done {
            break;
        }
        if last.elapsed() > PATIENCE {
            return Err(session.failed(Cause::Silent(PATIENCE)).into());
        }
    }
    Ok(at > begin)
}
