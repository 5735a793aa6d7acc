//! Recovery of a log's state from the files of a directory alone.
//!
//! Files before the last one were flushed before it was begun: only their beginnings are read. The last one is read completely, with the checksum of
//! every event. A crash may have left an incomplete event or transaction at its end, which is truncated: it was never acknowledged. A damaged event
//! is not an incomplete one, and causes no truncation. The last bytes are written again and flushed: a relay that was killed may have written bytes
//! that no flush has reached.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::binlog::event::{Checksum, HEADER, Header};
use ::binlog::gtid::State;
use ::binlog::{Dialect, Event, Group, Groups, WalkError, Walker, Within};
use watermark::Lsn;

use super::{FileName, LogFile, MAX_UNFLUSHED, names};

/// Bytes read at once.
const READ: usize = 1 << 20;
/// Limit of the bytes in which a file's list of GTIDs is searched.
const BEGINNING: u64 = 17 << 20;

/// The log cannot be opened, or its files cannot be maintained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The operating system refused.
    #[error("cannot {tried} {}: {source}", path.display())]
    Io {
        /// The failed operation, a verb.
        tried: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Bytes that had been written are no longer readable.
    #[error(
        "{}: {reason}. Nothing was changed. Everything before offset {whole} is whole. If the source still has the file, end it there \
         (`truncate -s {whole}`), and the relay will take the rest from the source again; else copy the file from another relay", path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The damage.
        reason: String,
        /// End of the undamaged part.
        whole: u64,
    },
    /// Files are missing in the middle.
    #[error("{} follows number {before}, and has number {number}: a file is missing between them; copy it from another relay, or remove those before", path.display())]
    Missing {
        /// The file after the gap.
        path: PathBuf,
        /// Number of the file before the gap.
        before: u64,
        /// Number of the file after the gap.
        number: u64,
    },
    /// A file is of the other family of servers.
    #[error(
        "{} is a binary log of {found}, and the relay is one of {wanted}: set relay.engine as before, or give the relay another directory",
        path.display()
    )]
    Dialect {
        /// Path of the file.
        path: PathBuf,
        /// Family of the file.
        found: &'static str,
        /// Family of the relay.
        wanted: &'static str,
    },
    /// Two directories have the same number.
    #[error("{} is there beside another directory of the same epoch: remove the one that was put there", path.display())]
    TwoEpochs {
        /// One of the directories.
        path: PathBuf,
    },
}

pub(super) fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_owned();
    move |source| LogError::Io { tried, path, source }
}

/// Result of the recovery.
pub(super) struct Found {
    pub(super) log_files: VecDeque<Arc<LogFile>>,
    pub(super) epoch: u64,
    pub(super) end: Lsn,
    pub(super) state: State,
    /// The transactions of the last epoch.
    pub(super) history: State,
    /// Offset of the last transaction in the last file.
    pub(super) last_group: u64,
    /// Bytes of an incomplete event or transaction that a crash had left.
    pub(super) cut_off: u64,
}

fn list_directory(path: &Path) -> Result<Vec<String>, LogError> {
    let entries = fs::read_dir(path).map_err(failed("list", path))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed("list", path))?;
        names.extend(entry.file_name().to_str().map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the `server_id` of the server that wrote the last epoch in a relay's directory; None if there is none. Opens no file.
pub(crate) fn last_source(dir: &Path) -> Option<u32> {
    epochs(dir).ok()?.pop().map(|(_, source)| source)
}

/// Returns the epochs of a relay's directory, in order: number and source.
fn epochs(dir: &Path) -> Result<Vec<(u64, u32)>, LogError> {
    let mut epochs: Vec<_> = list_directory(dir)?.iter().filter_map(|name| names::parse_epoch(name)).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// True if the directory has the binary log of a relay.
pub(crate) fn is_log(dir: &Path) -> bool {
    epochs(dir).is_ok_and(|epochs| !epochs.is_empty())
}

/// Moves the files of all epochs to `to`; None: removes them. The directory of the last epoch stays, empty: it keeps the number, which fences refer
/// to. Returns the names of the files, in order. Can be repeated after an interruption.
///
/// # Errors
/// [`LogError::Io`]: files moved before the error stay moved.
pub(crate) fn give_up(dir: &Path, to: Option<&Path>) -> Result<Vec<String>, LogError> {
    let mut given_up = Vec::new();
    let epochs = epochs(dir)?;
    for (index, (epoch, source)) in epochs.iter().enumerate() {
        let epoch = names::epoch(*epoch, *source);
        let from = dir.join(&epoch);
        let to = to.map(|to| to.join(&epoch));
        if let Some(to) = &to {
            fs::create_dir_all(to).map_err(failed("create directory", to))?;
        }
        for name in list_directory(&from)? {
            let path = from.join(&name);
            match &to {
                Some(to) => fs::rename(&path, to.join(&name)).map_err(failed("move", &path))?,
                None => remove(&path)?,
            }
            if FileName::parse(name.as_bytes()).is_some() {
                given_up.push(format!("{epoch}/{name}"));
            }
        }
        if let Some(to) = &to {
            sync_directory(to)?;
            sync_parent(to)?;
        }
        sync_directory(&from)?;
        if index + 1 < epochs.len() {
            fs::remove_dir(&from).map_err(failed("remove directory", &from))?;
        }
    }
    sync_directory(dir)?;
    Ok(given_up)
}

pub(super) fn recover(dir: &Path, dialect: Dialect) -> Result<Found, LogError> {
    let epochs = epochs(dir)?;
    let mut found = Found {
        log_files: VecDeque::new(),
        epoch: epochs.last().map_or(0, |epoch| epoch.0),
        end: Lsn(0),
        state: State::new(dialect),
        history: State::new(dialect),
        last_group: 0,
        cut_off: 0,
    };
    if let Some(pair) = epochs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(LogError::TwoEpochs { path: dir.join(names::epoch(pair[1].0, pair[1].1)) });
    }
    let mut files: Vec<(u64, u32, FileName, PathBuf)> = Vec::new();
    for (epoch, source) in &epochs {
        let directory = dir.join(names::epoch(*epoch, *source));
        let mut named: Vec<FileName> =
            list_directory(&directory)?.iter().filter_map(|name| FileName::parse(name.as_bytes())).collect();
        named.sort_unstable_by_key(FileName::number);
        for pair in named.windows(2) {
            let (before, number) = (pair[0].number(), pair[1].number());
            if number != before + 1 {
                return Err(LogError::Missing { path: directory.join(pair[1].as_str()), before, number });
            }
        }
        files.extend(named.into_iter().map(|name| {
            let path = directory.join(name.as_str());
            (*epoch, *source, name, path)
        }));
    }
    // A file that a crash left without its first events has no transactions: it is removed, and the one before it is the last.
    while let Some((_, _, _, path)) = files.last() {
        let walked = walk(path, dialect, None)?;
        if let Some(whole) = walked.whole {
            if whole < walked.length {
                cut(path, whole)?;
            }
            write_again(path, walked.last_group.min(whole).saturating_sub(MAX_UNFLUSHED), whole)?;
            found.cut_off += walked.length - whole;
            found.state = walked.state.clone();
            found.history = walked.state;
            found.last_group = walked.last_group;
            break;
        }
        found.cut_off += walked.length;
        remove(path)?;
        files.pop();
    }
    // The last epoch may not have reached the end of the previous one: see [`super::behind`].
    let mut last = files.len().saturating_sub(1);
    while last > 0 && files[last - 1].0 != files[last].0 {
        last -= 1;
        let mut state = walk(&files[last].3, dialect, None)?.state;
        if !state.merge(&found.state) {
            return Err(LogError::Damaged {
                path: files[last].3.clone(),
                reason: "too many domains and servers, or origins".into(),
                whole: 0,
            });
        }
        found.state = state;
    }
    for (epoch, source, name, path) in files {
        let length = fs::metadata(&path).map_err(failed("look at", &path))?.len();
        let begins = walk(&path, dialect, Some(BEGINNING))?.begins;
        let log_file = LogFile {
            epoch,
            source,
            name,
            start: found.end,
            begins: begins.map(Into::into).unwrap_or_default(),
            end: Default::default(),
            path,
        };
        if let Some(before) = found.log_files.back() {
            let _ = before.end.set(found.end);
        }
        found.end = Lsn(found.end.0 + length);
        found.log_files.push_back(Arc::new(log_file));
    }
    Ok(found)
}

struct Walked {
    length: u64,
    /// End of the last whole transaction; None if even the first events are incomplete.
    whole: Option<u64>,
    begins: Option<State>,
    state: State,
    last_group: u64,
}

/// Reads a file, or (`most`) its beginning up to the list of GTIDs.
fn walk(path: &Path, dialect: Dialect, most: Option<u64>) -> Result<Walked, LogError> {
    let mut file = File::open(path).map_err(failed("open", path))?;
    let length = file.metadata().map_err(failed("look at", path))?.len();
    let mut walked = Walked { length, whole: None, begins: None, state: State::new(dialect), last_group: 0 };
    let (mut walker, mut groups) = (Walker::file(), Groups::default());
    let mut buffer = vec![0; READ];
    let mut read = 0;
    let damaged = |walked: &Walked, reason: String| LogError::Damaged {
        path: path.into(),
        reason,
        whole: walked.whole.unwrap_or(0),
    };
    loop {
        let count = file.read(&mut buffer).map_err(failed("read", path))?;
        if most.is_some_and(|most| read >= most) {
            return Ok(walked);
        }
        if count == 0 {
            let (at, checksum) = (walker.offset(), walker.checksum());
            let next = match most {
                None if !walker.is_between() => {
                    event_behind(&file, at, length, checksum).map_err(failed("read", path))?
                }
                _ => None,
            };
            return match next {
                None => Ok(walked),
                Some(next) => Err(damaged(
                    &walked,
                    format!(
                        "the event at offset {at} is longer than the file by its header, and another event begins at offset {next}"
                    ),
                )),
            };
        }
        read += count as u64;
        let mut input = &buffer[..count];
        loop {
            let offset = walker.offset();
            match walker.advance(&mut input) {
                Ok(None) => break,
                Ok(Some(Within::Event(event))) => {
                    if let Some(other) = Dialect::of_list(event.header.kind).filter(|other| *other != dialect) {
                        let (found, wanted) = (other.name(), dialect.name());
                        return Err(LogError::Dialect { path: path.into(), found, wanted });
                    }
                    take(&mut walked, &mut groups, dialect, &event).map_err(|reason| damaged(&walked, reason))?;
                    if most.is_some() && walked.begins.is_some() {
                        return Ok(walked);
                    }
                }
                Ok(Some(_)) => {}
                // If a crash has left only the length of the file, zeroes follow up to its end.
                Err(WalkError::Length { length: 0, .. })
                    if is_zero(&mut file, input).map_err(failed("read", path))? =>
                {
                    return Ok(walked);
                }
                Err(error) => return Err(damaged(&walked, format!("at offset {offset}: {error}"))),
            }
        }
    }
}

/// Looks for an event after the beginning of the last one, which starts at `at` and does not end in the file. Such an event proves that the last
/// one's length is damaged, and that it is not an event that a crash left incomplete. The found event's header has exactly the position where it
/// ends, and its checksum is correct.
fn event_behind(file: &File, at: u64, length: u64, checksum: Checksum) -> io::Result<Option<u64>> {
    let mut buffer = vec![0; READ];
    let mut from = at + 1;
    while from + HEADER as u64 <= length {
        let part = usize::try_from(length - from).unwrap_or(READ).min(READ);
        file.read_exact_at(&mut buffer[..part], from)?;
        for (index, bytes) in buffer[..part].windows(HEADER).enumerate() {
            let offset = from + index as u64;
            let Ok(header) = <&[u8; HEADER]>::try_from(bytes).map(Header::parse) else { continue };
            let end = offset + u64::from(header.length);
            if header.end != 0 && header.end == end as u32 && end <= length && is_event(file, offset, end, checksum)? {
                return Ok(Some(offset));
            }
        }
        from += (part - HEADER + 1) as u64;
    }
    Ok(None)
}

/// True if the bytes from `at` to `end` are an event.
fn is_event(file: &File, mut at: u64, end: u64, checksum: Checksum) -> io::Result<bool> {
    let mut walker = Walker::stream(at, checksum);
    let mut buffer = vec![0; READ.min(usize::try_from(end - at).unwrap_or(READ))];
    while at < end {
        let part = usize::try_from(end - at).unwrap_or(READ).min(buffer.len());
        file.read_exact_at(&mut buffer[..part], at)?;
        at += part as u64;
        let mut input = &buffer[..part];
        loop {
            match walker.advance(&mut input) {
                Ok(None) => break,
                Ok(Some(Within::Event(event))) => return Ok(!event.artificial),
                Ok(Some(_)) => {}
                Err(_) => return Ok(false),
            }
        }
    }
    Ok(false)
}

fn take(walked: &mut Walked, groups: &mut Groups, dialect: Dialect, event: &Event<'_>) -> Result<(), String> {
    if walked.begins.is_none()
        && let Some(state) = dialect.begins(event).map_err(|error| error.to_string())?
    {
        walked.state = state.clone();
        walked.begins = Some(state);
    }
    match groups.next(event).map_err(|error| error.to_string())? {
        Group::Begins(_) => walked.last_group = event.at,
        Group::Outside => walked.last_group = event.at,
        Group::Inside => {}
        Group::Ends(name) => {
            if let Some(gtid) = name
                && !walked.state.add(gtid)
            {
                return Err("too many domains and servers, or origins".into());
            }
        }
    }
    // The format event alone does not give the transactions before the file.
    if groups.is_between() && walked.begins.is_some() {
        walked.whole = Some(event.end());
    }
    Ok(())
}

/// True if `rest` and all bytes after it in the file are zeroes.
fn is_zero(file: &mut File, rest: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; READ];
    let mut zero = rest.iter().all(|byte| *byte == 0);
    while zero {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        zero = buffer[..count].iter().all(|byte| *byte == 0);
    }
    Ok(zero)
}

fn sync_directory(path: &Path) -> Result<(), LogError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(failed("sync directory", path))
}

fn sync_parent(path: &Path) -> Result<(), LogError> {
    path.parent().map_or(Ok(()), sync_directory)
}

fn cut(path: &Path, length: u64) -> Result<(), LogError> {
    let file = open_for_writing(path)?;
    file.set_len(length).and_then(|()| file.sync_all()).map_err(failed("cut", path))
}

/// Makes a file's bytes from `from` to `to` durable, regardless of earlier flushes. After a failed flush, the kernel may treat pages as clean that
/// never reached the disk, so that another flush would succeed and do nothing: rewriting makes the pages dirty again.
fn write_again(path: &Path, from: u64, to: u64) -> Result<(), LogError> {
    let file = open_for_writing(path)?;
    let mut buffer = vec![0; READ];
    let mut at = from;
    while at < to {
        let part = usize::try_from(to - at).unwrap_or(READ).min(READ);
        file.read_exact_at(&mut buffer[..part], at).map_err(failed("read", path))?;
        file.write_all_at(&buffer[..part], at).map_err(failed("write again", path))?;
        at += part as u64;
    }
    file.sync_all().map_err(failed("flush", path))?;
    sync_parent(path)
}

pub(super) fn open_for_writing(path: &Path) -> Result<File, LogError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(failed("open", path))
}

/// Removes a file. A missing one is no error.
pub(super) fn remove(path: &Path) -> Result<(), LogError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Creates a directory durably, unless it exists.
pub(super) fn make_directory(path: &Path) -> Result<(), LogError> {
    match fs::create_dir(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed("create directory", path)(error)),
    }
}

/// Creates a new, empty file with a durable name.
pub(super) fn create(path: &Path) -> Result<File, LogError> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o640).open(path);
    let file = file.map_err(failed("create", path))?;
    sync_parent(path)?;
    Ok(file)
}
