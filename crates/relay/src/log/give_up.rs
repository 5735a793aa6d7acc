//! Removal of all WAL of a directory by an operator's order: moved aside, or deleted.

use std::fs;
use std::io;
use std::path::Path;

use super::files::{self, failed};
use super::reserve::{RESERVE_FILE, RESERVE_HISTORY_FILE};
use super::{Directory, LogError, Segment, SegmentSize, Timeline};

/// Moves every segment, every history file and all copies of them to the directory `to`, created below this one; None: deletes them. The state file,
/// which identifies the cluster, stays. Returns the sorted names of the segments. May be repeated after an interruption: until it is done, the
/// directory may hold a part of a log that looks like a whole one.
///
/// # Errors
/// [`LogError::Io`]: files moved before stay moved.
pub fn give_up(directory: &Directory, size: SegmentSize, to: Option<&Path>) -> Result<Vec<String>, LogError> {
    let dir = directory.path();
    if let Some(to) = to {
        fs::create_dir_all(to).map_err(failed("create directory", to))?;
    }
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // Including files that a recovery has set aside, and incomplete ones.
        let stem = name.split_once(".after-").map_or(name, |(stem, _)| stem);
        let stem = stem.strip_suffix(files::UNFINISHED).unwrap_or(stem);
        let is_segment = Segment::of_name(stem, size).is_some();
        let is_ours = is_segment || Timeline::of_history_name(stem).is_some();
        let is_reserve = [RESERVE_FILE, RESERVE_HISTORY_FILE].contains(&stem);
        if is_segment && stem == name {
            segments.push(name.to_owned());
        }
        let done = match to {
            Some(to) if is_ours => fs::rename(&path, to.join(name)).map_err(failed("move", &path)),
            _ if is_ours || is_reserve => fs::remove_file(&path).map_err(failed("remove", &path)),
            _ => Ok(()),
        };
        match done {
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
    }
    if let Some(to) = to {
        files::sync_dir(to)?;
    }
    files::sync_dir(dir)?;
    segments.sort_unstable();
    Ok(segments)
}
