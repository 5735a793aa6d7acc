//! End of the last whole durable record: a standby that has received everything has replayed up to there.
//!
//! The query may come each second (`kingpost watch`). So the walk continues where it stopped the last time: WAL is read once, and a log that has not
//! moved costs one page.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use watermark::Lsn;

use super::files::failed;
use super::segment::PAGE;
use super::wal::{PAGE_BYTES, Walker};
use super::{History, Log, LogError, Segment, Timeline, lock, recover};

/// A walk that has taken all pages before [`Walker::at`], each of them whole and durable, and has found the end of a record.
#[derive(Debug)]
pub(super) struct Walked {
    timeline: Timeline,
    walker: Walker,
}

/// Result of a walk.
enum Found {
    /// End of the last whole record. With the walk, if it can continue.
    End(Lsn, Option<Box<Walked>>),
    /// No record ends in the walked part.
    Nothing,
}

impl Log {
    /// Returns the end of the last whole durable record. Reads the WAL that became durable since the last call, or the last segment if that is less;
    /// more only while one record is longer than that.
    ///
    /// # Errors
    /// [`LogError::Io`].
    pub fn whole_records(&self) -> Result<Lsn, LogError> {
        let (size, tail) = (self.identity.segment_size, self.tail());
        let (timeline, end, oldest) = (tail.timeline, tail.flushed.get(), self.retained().oldest);
        let history = self.parsed_history(timeline);
        let mut walked = lock(&self.walked);
        let mut last = walked.take().filter(|last| last.timeline == timeline && last.walker.at() <= end);
        let from = size.start_of(Lsn(end.0.saturating_sub(1))).max(oldest);
        let found = match last.take_if(|last| end.0 - last.walker.at().0 <= size.bytes()) {
            Some(last) => self.walk_on(last, &history, end)?,
            None => self.walk_on(self.walk_from(timeline, from), &history, end)?,
        };
        let found = match (found, last) {
            // The record that ends here began in an earlier segment: walk the whole way from the last stop.
            (Found::Nothing, Some(last)) => self.walk_on(last, &history, end)?,
            (found, _) => found,
        };
        if let Found::End(whole, last) = found {
            *walked = last.map(|last| *last);
            return Ok(whole);
        }
        // Each time twice as far back, so that all of it is read twice at most.
        let (mut from, mut step) = (from, size.bytes());
        while from > oldest {
            from = Lsn(from.0.saturating_sub(step)).max(oldest);
            step = step.saturating_mul(2);
            if let Found::End(whole, last) = self.walk_on(self.walk_from(timeline, from), &history, end)? {
                *walked = last.map(|last| *last);
                return Ok(whole);
            }
        }
        Ok(from)
    }

    fn walk_from(&self, timeline: Timeline, from: Lsn) -> Walked {
        Walked { timeline, walker: Walker::new(self.identity, timeline, from) }
    }

    /// Takes all pages before `end`.
    fn walk_on(&self, mut walked: Walked, history: &History, end: Lsn) -> Result<Found, LogError> {
        let size = self.identity.segment_size;
        let has = |segment: Segment| lock(&self.held).contains_key(&segment);
        let mut page = [0; PAGE_BYTES];
        let mut held = None;
        let mut on = true;
        let mut whole = walked.walker.end_within(end);
        while on && walked.walker.at() < end {
            let at = walked.walker.at();
            let number = size.number(at);
            if held.as_ref().is_none_or(|(held, _): &(Segment, _)| held.number != number) {
                let Some(segment) = recover::locate(history, number, &self.identity, has) else { break };
                let Some(file) = self.file(segment)? else { break };
                held = Some((segment, file));
            }
            let Some((segment, file)) = &held else { break };
            let length = usize::try_from(end.0 - at.0).unwrap_or(PAGE_BYTES).min(PAGE_BYTES);
            page[length..].fill(0);
            let read = file.read_exact_at(&mut page[..length], size.offset(at));
            read.map_err(failed("read", &self.path(*segment)))?;
            self.metrics.walked_pages.fetch_add(1, Ordering::Relaxed);
            if length < PAGE_BYTES {
                // The last page is taken again when more of it is there.
                let mut last = walked.walker.clone();
                let _ = last.page(&page);
                whole = last.end_within(end);
                break;
            }
            on = walked.walker.page(&page).is_ok();
            whole = walked.walker.end_within(end);
        }
        Ok(match whole {
            Some(whole) => Found::End(whole, on.then(|| Box::new(walked))),
            None => Found::Nothing,
        })
    }
}

const _: () = assert!(PAGE as usize == PAGE_BYTES);
