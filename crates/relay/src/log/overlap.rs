//! The part of the held WAL that an upstream sends again, which proves that both have the same history.
//!
//! Two histories of one cluster look alike by position, and may be equal for many bytes: records have the same transaction IDs and the same rows if
//! the same statements ran again on a copy. Commits and checkpoints contain the time of day, to the microsecond and the second. So the overlap
//! reaches back to a segment with such a record, as far as [`MOST`] allows.

use std::os::unix::fs::FileExt;

use watermark::Lsn;

use super::segment::PAGE;
use super::wal::{PAGE_BYTES, Walker, first_previous};
use super::{History, Log, LogError, Segment, Timeline, lock, recover};

/// Limit of the search for a record with a time, in bytes; at least one segment.
const MOST: u64 = 64 << 20;

impl Log {
    /// Returns the position from which an upstream must send: `resume`, or the start of an earlier segment if no record with a time is held from
    /// `resume` up to `position`. Never before the oldest held segment, nor before the one in which the timeline begins.
    pub(super) fn overlap(&self, timeline: Timeline, resume: Lsn, position: Lsn) -> Lsn {
        let size = self.identity.segment_size;
        let history = self.parsed_history(timeline);
        let oldest = self.start().max(size.start_of(history.begin()));
        let least = oldest.max(Lsn(resume.0.saturating_sub(MOST.max(size.bytes()))));
        let (mut from, mut end) = (resume, position);
        while !self.is_dated(&history, from, end) && from > least {
            (from, end) = (Lsn(from.0 - size.bytes()), from);
        }
        from
    }

    /// True if a whole record with a time begins and ends in the held WAL between `from`, a segment's start, and `end`. False also if a file cannot
    /// be read.
    fn is_dated(&self, history: &History, from: Lsn, end: Lsn) -> bool {
        let mut walker = Walker::new(self.identity, history.timeline, from);
        let _ = self.walk_held(history, &mut walker, end, |walker| walker.is_dated());
        walker.is_dated()
    }

    /// Returns the start of the last whole record before `at`, a segment's start. None if the previous segment is not held, or has no record.
    pub(super) fn record_before(&self, timeline: Timeline, at: Lsn) -> Option<Lsn> {
        let from = Lsn(at.0.checked_sub(self.identity.segment_size.bytes())?);
        let mut walker = Walker::new(self.identity, timeline, from);
        self.walk_held(&self.parsed_history(timeline), &mut walker, at, |_| false).ok()?;
        walker.last_record()
    }

    /// Passes the held pages before `end` to `walker`, until one is refused or `enough` returns true.
    fn walk_held(
        &self,
        history: &History,
        walker: &mut Walker,
        end: Lsn,
        enough: impl Fn(&Walker) -> bool,
    ) -> Result<(), LogError> {
        let size = self.identity.segment_size;
        let has = |segment: Segment| lock(&self.held).contains_key(&segment);
        let mut page = [0; PAGE_BYTES];
        let mut held = None;
        while walker.at() < end && !enough(walker) {
            let at = walker.at();
            let number = size.number(at);
            if held.as_ref().is_none_or(|(held, _): &(Segment, _)| held.number != number) {
                let Some(segment) = recover::locate(history, number, &self.identity, has) else { break };
                let Some(file) = self.file(segment)? else { break };
                held = Some((segment, file));
            }
            let Some((segment, file)) = &held else { break };
            let length = usize::try_from((end.0 - at.0).min(PAGE)).unwrap_or(PAGE_BYTES);
            page[length..].fill(0);
            let read = file.read_exact_at(&mut page[..length], size.offset(at));
            read.map_err(super::failed("read", &self.path(*segment)))?;
            if walker.page(&page).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// The record that new WAL must follow if nothing can be compared: the upstream has removed the previous segment.
#[derive(Debug)]
pub struct Link {
    /// A segment's start, from which on nothing is held.
    at: Lsn,
    /// Start of the last record before it.
    previous: Lsn,
    head: Vec<u8>,
}

impl Link {
    pub(super) fn new(at: Lsn, previous: Lsn) -> Link {
        Link { at, previous, head: Vec::new() }
    }

    /// Takes `bytes`, the next ones from [`Link::at`] on. None: more are needed. Some: all taken bytes, and true if they follow the record.
    pub fn take(&mut self, bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
        self.head.extend_from_slice(bytes);
        let previous = first_previous(&self.head)?;
        Some((std::mem::take(&mut self.head), previous == Some(self.previous)))
    }

    /// Returns the position of the first byte.
    #[must_use]
    pub fn at(&self) -> Lsn {
        self.at
    }
}
