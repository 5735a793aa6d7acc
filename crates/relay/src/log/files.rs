//! Durable file operations, in an order that is safe at a crash.
//!
//! Recovery changes files only through the functions of this module, one function for each step that a crash can separate from the next. Tests stop
//! it after each step (`tests::disk`), with and without the data that no flush has reached.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::LogError;
#[cfg(test)]
use super::tests::disk;

/// Suffix of incomplete files, which are removed at a start.
pub(super) const UNFINISHED: &str = ".unfinished";

/// Size of the pieces in which zeroes are written. Tests stop between two of them.
const ZEROES: usize = if cfg!(test) { 256 << 10 } else { 1 << 20 };

pub(super) fn failed(tried: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_owned();
    move |source| LogError::Io { tried, path, source }
}

/// True if the disk is full: a state that can end without any action on the log.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes all of `bytes` at `at`.
pub(super) fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(test)]
    disk::write(file, bytes.len(), at)?;
    file.write_all_at(bytes, at)
}

/// Makes a file's bytes durable.
pub(super) fn sync(file: &File) -> io::Result<()> {
    #[cfg(test)]
    disk::sync(file)?;
    file.sync_all()
}

/// Makes the names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), LogError> {
    let sync = || -> io::Result<()> {
        #[cfg(test)]
        disk::sync_dir()?;
        File::open(dir)?.sync_all()
    };
    sync().map_err(failed("sync directory", dir))
}

/// Writes `content` to `path` atomically: after a crash there is either the old content, or all of the new one.
pub(super) fn write_durably(path: &Path, content: &[u8]) -> Result<(), LogError> {
    let unfinished = unfinished(path);
    let written = create(&unfinished).and_then(|file| {
        write_at(&file, content, 0)?;
        sync(&file)
    });
    if let Err(error) = written {
        let _ = remove(&unfinished);
        return Err(failed("write", &unfinished)(error));
    }
    rename_durably(&unfinished, path)
}

/// Renames a file. An existing file `to` is replaced.
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(test)]
    disk::rename(from, to)?;
    std::fs::rename(from, to)
}

/// Renames a file durably.
pub(super) fn rename_durably(from: &Path, to: &Path) -> Result<(), LogError> {
    rename(from, to).map_err(failed("rename", from))?;
    to.parent().map_or(Ok(()), sync_dir)
}

/// Removes a file.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    #[cfg(test)]
    disk::remove(path)?;
    std::fs::remove_file(path)
}

/// Removes a file durably.
pub(super) fn remove_durably(path: &Path) -> Result<(), LogError> {
    remove(path).map_err(failed("remove", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Returns the name of a file until it is complete.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// Creates an empty file for reading and writing; readable by its owner and group, as PostgreSQL's files with group access.
pub(super) fn create(path: &Path) -> io::Result<File> {
    #[cfg(test)]
    disk::create(path)?;
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o640).open(path)
}

/// Opens an existing file for reading and writing.
pub(super) fn open(path: &Path) -> Result<File, LogError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(failed("open", path))
}

/// Gives a new file `bytes` bytes of room. The blocks are unwritten: quicker than zeroes, but the first flush of each costs the file system more.
pub(super) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        // A file system that cannot.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::INVAL) => {
            zero_fill(file, 0, bytes)
        }
        allocated => Ok(allocated?),
    }
}

/// Writes zeroes from `from` up to `to`.
pub(super) fn zero_fill(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeroes = vec![0; ZEROES.min(to.saturating_sub(from) as usize)];
    let mut at = from;
    while at < to {
        let here = zeroes.len().min((to - at) as usize);
        write_at(file, &zeroes[..here], at)?;
        at += here as u64;
    }
    Ok(())
}

/// Writes zeroes from `from` up to `to`, the last ones first: a reader after a crash in the middle finds the old bytes up to a point, and zeroes
/// after it.
pub(super) fn zero_fill_from_the_end(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = to;
    while at > from {
        let begin = at.saturating_sub(ZEROES as u64).max(from);
        zero_fill(file, begin, at)?;
        at = begin;
    }
    Ok(())
}

/// True if all bytes are zeroes. Compares by blocks, which is fast in an unoptimised build, too.
fn all_zero(bytes: &[u8]) -> bool {
    const BLOCK: [u8; 4096] = [0; 4096];
    bytes.chunks(BLOCK.len()).all(|block| block == &BLOCK[..block.len()])
}

/// True if all bytes from `from` up to `to` are zeroes.
pub(super) fn is_zero(file: &File, from: u64, to: u64) -> io::Result<bool> {
    let mut buffer = vec![0; ZEROES.min(to.saturating_sub(from) as usize)];
    let mut at = from;
    while at < to {
        let here = buffer.len().min((to - at) as usize);
        file.read_exact_at(&mut buffer[..here], at)?;
        if !all_zero(&buffer[..here]) {
            return Ok(false);
        }
        at += here as u64;
    }
    Ok(true)
}
