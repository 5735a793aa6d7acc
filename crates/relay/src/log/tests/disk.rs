//! A disk that stops: after a given number of this thread's steps no further one is carried out, as if the process was killed; and a power cut, which
//! may revert anything that was not flushed.
//!
//! The functions of `files` report each step here before they carry it out.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes that a disk loses as a unit.
const BLOCK: usize = 4096;

thread_local! {
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Steps since [`stop_after`].
#[derive(Default)]
pub(in crate::log) struct Run {
    left: usize,
    stopped: bool,
    /// Unflushed writes, oldest first.
    writes: Vec<Write>,
    names: Vec<Name>,
    /// Directory that keeps files which lost their names.
    kept: Option<tempfile::TempDir>,
}

struct Write {
    file: File,
    at: u64,
    old: Vec<u8>,
}

/// A renaming from `from` to `to`.
struct Name {
    from: Option<PathBuf>,
    to: Option<PathBuf>,
    /// Another name of the file that `from` (or, of a replaced file, `to`) was.
    removed: Option<PathBuf>,
}

/// Lets this thread carry out `steps` steps from now on; each further one fails.
pub(in crate::log) fn stop_after(steps: usize) {
    let kept = Some(tempfile::tempdir().unwrap());
    RUN.with_borrow_mut(|run| *run = Some(Run { left: steps, kept, ..Run::default() }));
}

/// Ends the run.
pub(in crate::log) fn end() -> Run {
    RUN.take().unwrap()
}

fn step(note: impl FnOnce(&mut Run) -> io::Result<()>) -> io::Result<()> {
    RUN.with_borrow_mut(|run| {
        let Some(run) = run else { return Ok(()) };
        if run.left == 0 {
            run.stopped = true;
            return Err(io::Error::other("stopped here"));
        }
        run.left -= 1;
        note(run)
    })
}

pub(in crate::log) fn write(file: &File, length: usize, at: u64) -> io::Result<()> {
    step(|run| {
        let mut old = vec![0; length];
        let mut read = 0;
        while read < length {
            match file.read_at(&mut old[read..], at + read as u64)? {
                0 => break,
                n => read += n,
            }
        }
        run.writes.push(Write { file: file.try_clone()?, at, old });
        Ok(())
    })
}

pub(in crate::log) fn sync(file: &File) -> io::Result<()> {
    step(|run| {
        let inode = file.metadata()?.ino();
        run.writes.retain(|write| write.file.metadata().map_or(true, |held| held.ino() != inode));
        Ok(())
    })
}

pub(in crate::log) fn sync_dir() -> io::Result<()> {
    step(|run| {
        run.names.clear();
        Ok(())
    })
}

/// Keeps the file at `path`, if it exists, under another name.
fn keep(run: &Run, path: &Path) -> io::Result<Option<PathBuf>> {
    let Some(kept) = run.kept.as_ref().filter(|_| path.exists()) else { return Ok(None) };
    let other = kept.path().join(format!("{}-{}", run.names.len(), path.file_name().unwrap().to_string_lossy()));
    // The file kept there has become durable since.
    let _ = std::fs::remove_file(&other);
    std::fs::hard_link(path, &other)?;
    Ok(Some(other))
}

pub(in crate::log) fn create(path: &Path) -> io::Result<()> {
    step(|run| {
        run.names.push(Name { from: None, to: Some(path.into()), removed: None });
        Ok(())
    })
}

pub(in crate::log) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step(|run| {
        let removed = keep(run, to)?;
        run.names.push(Name { from: Some(from.into()), to: Some(to.into()), removed });
        Ok(())
    })
}

pub(in crate::log) fn remove(path: &Path) -> io::Result<()> {
    step(|run| {
        let removed = keep(run, path)?;
        run.names.push(Name { from: Some(path.into()), to: None, removed });
        Ok(())
    })
}

impl Run {
    /// True if a step was not carried out.
    pub(in crate::log) fn was_stopped(&self) -> bool {
        self.stopped
    }

    /// Reverts about half of all unflushed changes, chosen by `seed`: blocks of writes, and renamings.
    pub(in crate::log) fn cut_power(self, seed: u64) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut toss = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state & 1 == 0
        };
        for Write { file, at, old } in self.writes.iter().rev() {
            let mut from = 0;
            while from < old.len() {
                // Blocks of the file, not of the write.
                let to = old.len().min(from + BLOCK - (*at as usize + from) % BLOCK);
                if toss() {
                    file.write_all_at(&old[from..to], at + from as u64).unwrap();
                }
                from = to;
            }
        }
        for name in self.names.iter().rev().filter(|_| toss()) {
            match name {
                Name { from: None, to: Some(made), .. } => drop(std::fs::remove_file(made)),
                Name { from: Some(from), to: Some(to), removed } => {
                    std::fs::rename(to, from).unwrap();
                    if let Some(removed) = removed {
                        std::fs::hard_link(removed, to).unwrap();
                    }
                }
                Name { from: Some(from), to: None, removed: Some(removed) } => {
                    std::fs::hard_link(removed, from).unwrap();
                }
                Name { .. } => {}
            }
        }
    }
}
