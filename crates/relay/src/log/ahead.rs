//! The next segments, made before they are needed: an append into a file whose blocks are allocated and written costs half of
//! one that makes a file grow.
//!
//! The files have their final names, durably, so that beginning a segment is a removal from a map. Old segments are renamed to new ones. When all are
//! made, the reserve is filled.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::files::{self, failed};
use super::{Log, LogError, Segment, Timeline, lock};

/// Time between the beginnings of two segments below which WAL arrives in bulk: much is flushed at a time, and whoever makes files must keep up.
const BULK: Duration = Duration::from_millis(100);

/// Blocks of a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocks {
    /// Full of zeroes: small flushes are quick.
    Written,
    /// Allocated: made at once.
    Unwritten,
}

/// The prepared files, by number.
#[derive(Debug)]
pub(super) struct Ahead {
    timeline: Timeline,
    /// The number needed next.
    next: u64,
    /// Number of files to prepare.
    spares: usize,
    files: BTreeMap<u64, Arc<File>>,
    /// Beginnings of the last two segments.
    begun: [Option<Instant>; 2],
}

impl Ahead {
    pub(super) fn new(timeline: Timeline, next: u64, spares: usize, mut files: BTreeMap<u64, Arc<File>>) -> Ahead {
        files.retain(|number, _| *number >= next);
        Ahead { timeline, next, spares, files, begun: [None; 2] }
    }

    fn begin(&mut self, segment: Segment, now: Instant) {
        self.next = segment.number + 1;
        self.begun = [self.begun[1], Some(now)];
    }

    /// Returns the blocks that a file made now should have.
    fn blocks(&self, now: Instant) -> Blocks {
        let [Some(before), Some(last)] = self.begun else { return Blocks::Written };
        let longest = last.saturating_duration_since(before).max(now.saturating_duration_since(last));
        if longest < BULK { Blocks::Unwritten } else { Blocks::Written }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the lowest number that should be prepared and is not.
    fn wanted(&self) -> Option<u64> {
        (self.next..self.next.saturating_add(self.spares as u64)).find(|number| !self.files.contains_key(number))
    }
}

impl Log {
    /// Returns the file for the segment that the writer begins, made now if it is not prepared.
    pub(super) fn take_ahead(&self, segment: Segment) -> Result<Arc<File>, LogError> {
        let mut ahead = lock(&self.ahead);
        let file = match ahead.files.remove(&segment.number) {
            Some(file) => file,
            None => {
                self.metrics.segments_late.fetch_add(1, Ordering::Relaxed);
                // The writer waits.
                self.create_segment(segment, Blocks::Unwritten)?
            }
        };
        ahead.begin(segment, Instant::now());
        Ok(file)
    }

    /// Makes a file of full length, durable with its name.
    pub(super) fn create_segment(&self, segment: Segment, blocks: Blocks) -> Result<Arc<File>, LogError> {
        let path = self.path(segment);
        let unfinished = files::unfinished(&path);
        if path.exists() {
            return Err(failed("create", &path)(io::ErrorKind::AlreadyExists.into()));
        }
        let made = files::create(&unfinished).and_then(|file| {
            #[cfg(test)]
            self.faults.room()?;
            let bytes = self.identity.segment_size.bytes();
            match blocks {
                Blocks::Written => files::zero_fill(&file, 0, bytes)?,
                Blocks::Unwritten => files::allocate(&file, bytes)?,
            }
            file.sync_all()?;
            Ok(file)
        });
        match made {
            Ok(file) => {
                let named = files::rename_durably(&unfinished, &path);
                #[cfg(test)]
                let named = named.and_then(|()| self.faults.name().map_err(failed("sync the directory of", &path)));
                if let Err(error) = named {
                    // Its name may not be durable: the next attempt makes it anew, and must not find it.
                    let _ = std::fs::remove_file(&path);
                    return Err(error);
                }
                Ok(Arc::new(file))
            }
            Err(error) => {
                let _ = std::fs::remove_file(&unfinished);
                Err(failed("make", &unfinished)(error))
            }
        }
    }

    /// Renames the file of `old` for a new segment, if one more is wanted. False if not: the file is unchanged.
    pub(super) fn recycle(&self, old: Segment) -> Result<bool, LogError> {
        let mut ahead = lock(&self.ahead);
        let Some(number) = ahead.wanted().filter(|number| *number > old.number) else { return Ok(false) };
        let (from, to) = (self.path(old), self.path(Segment { number, timeline: ahead.timeline }));
        if to.exists() {
            return Err(failed("rename to", &to)(io::ErrorKind::AlreadyExists.into()));
        }
        // Opened first: nothing may fail once it has the new name.
        let file = match files::open(&from) {
            Ok(file) => file,
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if file.metadata().map_err(failed("look at", &from))?.len() != self.identity.segment_size.bytes() {
            return Ok(false);
        }
        files::rename_durably(&from, &to)?;
        ahead.files.insert(number, Arc::new(file));
        Ok(true)
    }

    /// Renames the prepared files for `timeline`, with `next` needed next. The caller makes the names durable.
    pub(super) fn readdress_ahead(&self, timeline: Timeline, next: u64) -> Result<(), LogError> {
        let mut ahead = lock(&self.ahead);
        let old = std::mem::take(&mut ahead.files);
        for (number, file) in old {
            let from = self.path(Segment { number, timeline: ahead.timeline });
            if number < next {
                std::fs::remove_file(&from).map_err(failed("remove", &from))?;
            } else {
                let to = self.path(Segment { number, timeline });
                std::fs::rename(&from, &to).map_err(failed("rename", &from))?;
                ahead.files.insert(number, file);
            }
        }
        ahead.timeline = timeline;
        ahead.next = next;
        Ok(())
    }

    /// Runs the preallocator: makes wanted files, sleeps until it is unparked.
    pub(super) fn preallocate(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let made = {
                let mut ahead = lock(&self.ahead);
                ahead.wanted().map(|number| {
                    let segment = Segment { number, timeline: ahead.timeline };
                    self.create_segment(segment, ahead.blocks(Instant::now())).map(|file| {
                        self.metrics.segments_prepared.fetch_add(1, Ordering::Relaxed);
                        ahead.files.insert(number, file);
                    })
                })
            };
            let made = match made {
                Some(Ok(())) => continue,
                Some(Err(error)) => Err(error),
                None => self.keep_reserve(),
            };
            // Not fatal: the writer tries again when it needs the file.
            match made {
                Ok(()) => self.short.store(false, Ordering::Relaxed),
                Err(error) => {
                    self.short.store(error.is_full(), Ordering::Relaxed);
                    tracing::warn!(%error, "no segment could be made ahead of time");
                }
            }
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_unwritten_while_wal_arrives_in_bulk() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        for (begun, now, blocks) in [
            (&[][..], 0, Blocks::Written),
            (&[0], 1, Blocks::Written),
            (&[0, 50], 60, Blocks::Unwritten),
            (&[0, 50], 149, Blocks::Unwritten),
            (&[0, 50], 150, Blocks::Written),
            (&[0, 100], 101, Blocks::Written),
            (&[0, 500, 550], 560, Blocks::Unwritten),
        ] {
            let mut ahead = Ahead::new(Timeline(1), 0, 2, BTreeMap::new());
            for (number, ms) in begun.iter().enumerate() {
                ahead.begin(Segment { number: number as u64, timeline: Timeline(1) }, at(*ms));
            }
            assert_eq!(ahead.blocks(at(now)), blocks, "{begun:?} at {now}");
        }
    }
}
