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

use super::files::{self, failed};
use super::{Log, LogError, Segment, Timeline, lock};

/// The prepared files, by number.
#[derive(Debug)]
pub(super) struct Ahead {
    timeline: Timeline,
    /// The number needed next.
    next: u64,
    /// Number of files to prepare.
    spares: usize,
    files: BTreeMap<u64, Arc<File>>,
}

impl Ahead {
    pub(super) fn new(timeline: Timeline, next: u64, spares: usize, mut files: BTreeMap<u64, Arc<File>>) -> Ahead {
        files.retain(|number, _| *number >= next);
        Ahead { timeline, next, spares, files }
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
                self.create_segment(segment)?
            }
        };
        ahead.next = segment.number + 1;
        Ok(file)
    }

    /// Makes a file full of zeroes, durable with its name.
    pub(super) fn create_segment(&self, segment: Segment) -> Result<Arc<File>, LogError> {
        let path = self.path(segment);
        let unfinished = files::unfinished(&path);
        if path.exists() {
            return Err(failed("create", &path)(io::ErrorKind::AlreadyExists.into()));
        }
        let made = files::create(&unfinished).and_then(|file| {
            #[cfg(test)]
            self.faults.room()?;
            files::zero_fill(&file, 0, self.identity.segment_size.bytes())?;
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
                    self.create_segment(segment).map(|file| {
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
