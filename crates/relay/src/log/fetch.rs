//! A copy of a file of the log, for a server's `restore_command`.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::files::failed;
use super::new_file::NewFile;
use super::wal::{PAGE_BYTES, is_page};
use super::{FetchError, Identity, LogError, Segment, Timeline, identify};

/// Copies the segment or history file `name` from the log in `dir` to `target`, whether or not a process has the log open. `target` is complete or
/// not there. The segment being written is copied too, up to its current end: recovery finds the end of WAL in it. Everything in the copy is durable
/// in the log. A segment of which the server itself has more is not copied ([`NewFile::complete_segment`]).
///
/// # Errors
/// [`FetchError::NotHeld`] is an ordinary answer: recovery asks for files until there are no more.
pub fn fetch(dir: &Path, name: &str, target: &Path) -> Result<(), FetchError> {
    let not_held = || FetchError::NotHeld { dir: dir.into(), name: name.into() };
    let identity = identify(dir)?.ok_or_else(not_held)?;
    let segment = Segment::of_name(name, identity.segment_size);
    if segment.is_none() && Timeline::of_history_name(name).is_none() {
        return Err(FetchError::BadName { name: name.into() });
    }
    let source = dir.join(name);
    let mut file = match fs::File::open(&source) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_held()),
        Err(error) => return Err(failed("open", &source)(error).into()),
    };
    if let Some(segment) = segment
        && !has_wal(&file, segment, &identity).map_err(failed("read", &source))?
    {
        // A file made ahead of time, still empty.
        return Err(not_held());
    }
    let mut copy = NewFile::create(target)?;
    copy.copy(&mut file)?;
    copy.sync()?;
    // After the copy, so that it holds nothing that the log could lose in a crash.
    file.sync_data().map_err(failed("flush", &source))?;
    if !has_still_that_name(&file, &source)? {
        return Err(not_held());
    }
    let Some(segment) = segment else { return Ok(copy.complete()?) };
    if copy.complete_segment(&identity, segment)? { Ok(()) } else { Err(not_held()) }
}

/// True if the segment holds WAL.
fn has_wal(file: &fs::File, segment: Segment, identity: &Identity) -> io::Result<bool> {
    use std::os::unix::fs::FileExt;
    let mut page = [0; PAGE_BYTES];
    match file.read_exact_at(&mut page, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
        Ok(()) => Ok(is_page(identity, identity.segment_size.start(segment.number), &page)),
    }
}

/// False if the name now belongs to another file: a file is renamed before it is overwritten.
fn has_still_that_name(file: &fs::File, source: &Path) -> Result<bool, LogError> {
    let held = file.metadata().map_err(failed("look at", source))?;
    match fs::metadata(source) {
        Ok(named) => Ok(named.ino() == held.ino() && named.dev() == held.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("look at", source)(error)),
    }
}
