//! Files, durably: what a crash may leave behind, and in which order.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::LogError;

/// Ending of files that are not complete. What has it at a start is removed.
pub(super) const UNFINISHED: &str = ".unfinished";

/// Zeroes are written in pieces of this size.
const ZEROES: usize = 1 << 20;

pub(super) fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_owned();
    move |source| LogError::Io { tried, path, source }
}

/// Whether room is missing: a state that ends without anybody touching the log.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes the names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync directory", dir))
}

/// Gives `content` the name `path`, so that after a crash there is either what was there before, or all of it.
pub(super) fn write_durably(path: &Path, content: &[u8]) -> Result<(), LogError> {
    let unfinished = unfinished(path);
    let written = create(&unfinished).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    if let Err(error) = written {
        let _ = std::fs::remove_file(&unfinished);
        return Err(failed("write", &unfinished)(error));
    }
    rename_durably(&unfinished, path)
}

/// Renames, and makes that durable.
pub(super) fn rename_durably(from: &Path, to: &Path) -> Result<(), LogError> {
    std::fs::rename(from, to).map_err(failed("rename", from))?;
    to.parent().map_or(Ok(()), sync_dir)
}

/// The name that a file has until it is complete.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// A new, empty file, for reading and writing; readable by its owner and group, as PostgreSQL's with group access.
pub(super) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o640).open(path)
}

/// An existing file, for reading and writing.
pub(super) fn open(path: &Path) -> Result<File, LogError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(failed("open", path))
}

/// Writes zeroes from `from` up to `to`.
pub(super) fn zero_fill(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeroes = vec![0; ZEROES.min(to.saturating_sub(from) as usize)];
    let mut at = from;
    while at < to {
        let here = zeroes.len().min((to - at) as usize);
        file.write_all_at(&zeroes[..here], at)?;
        at += here as u64;
    }
    Ok(())
}

/// Whether there is nothing but zeroes from `from` up to `to`.
pub(super) fn is_zero(file: &File, from: u64, to: u64) -> io::Result<bool> {
    let mut buffer = vec![0; ZEROES.min(to.saturating_sub(from) as usize)];
    let mut at = from;
    while at < to {
        let here = buffer.len().min((to - at) as usize);
        file.read_exact_at(&mut buffer[..here], at)?;
        if buffer[..here].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += here as u64;
    }
    Ok(true)
}
