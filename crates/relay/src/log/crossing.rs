//! Acknowledgeable positions: an incomplete record that crosses into the next segment is not acknowledged past its own segment.
//!
//! An upstream's slot keeps the segments from the acknowledged position on, and no earlier one. After a crash the log goes back to the end of the
//! last whole record: if the incomplete record began in an earlier segment, that segment must still exist. So while such a record is not whole, the
//! acknowledged position stays in the segment in which it began. No commit waits longer for it: every whole record ends before.

use std::os::unix::fs::FileExt;

use watermark::Lsn;

use super::segment::PAGE;
use super::wal::{PAGE_BYTES, page_header, record_length};
use super::{Identity, Log, Segment, lock, recover};

/// A record that crosses a segment boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crossing {
    /// Start of the later segment.
    at: Lsn,
    /// End of the record.
    end: Lsn,
    /// Pages before this one are known to continue the record.
    looked: Lsn,
}

impl Log {
    /// Returns the highest position that may be acknowledged when all up to `flushed` is durable: `flushed`, unless a record that began in an earlier
    /// segment is not whole there. `flushed` is the tail's.
    #[must_use]
    pub fn acknowledgeable(&self, flushed: Lsn) -> Lsn {
        let size = self.identity.segment_size;
        let mut acknowledgeable = flushed;
        let mut at = size.start_of(flushed);
        // The length of a record has 32 bits: so many segments before may contain its start.
        for _ in 0..=u64::from(u32::MAX) / size.bytes() {
            match self.crossing(at) {
                Some(crossing) if crossing.end > flushed => {
                    if at == size.start_of(flushed) && self.overwritten(at, flushed) {
                        break;
                    }
                    acknowledgeable = Lsn(at.0 - 1);
                }
                _ => break,
            }
            let Some(before) = at.0.checked_sub(size.bytes()) else { break };
            at = Lsn(before);
        }
        acknowledgeable
    }

    /// True if the upstream crashed in the middle of the record that crosses `at`, and continued after the sent part: the rest never comes, and
    /// nothing has to wait for it. Reads each page once.
    fn overwritten(&self, at: Lsn, flushed: Lsn) -> bool {
        const HEADER: u64 = 40;
        let mut known = lock(&self.crossings);
        let Some((_, entry)) = known.iter_mut().find(|(start, _)| *start == at) else { return false };
        let Some(crossing) = entry else { return true };
        if crossing.looked.0 + HEADER > flushed.0 {
            return false;
        }
        let size = self.identity.segment_size;
        let history = self.parsed_history(self.tail.load().timeline);
        let has = |segment: Segment| lock(&self.held).contains_key(&segment);
        let Some(segment) = recover::locate(&history, size.number(at), &self.identity, has) else { return false };
        let Ok(Some(file)) = self.file(segment) else { return false };
        let mut page = [0; PAGE_BYTES];
        while crossing.looked.0 + HEADER <= flushed.0 && size.number(crossing.looked) == segment.number {
            if file.read_exact_at(&mut page, size.offset(crossing.looked)).is_err() {
                return false;
            }
            if page_header(&self.identity, crossing.looked, &page).is_ok_and(|header| header.overwrites()) {
                *entry = None;
                return true;
            }
            crossing.looked.0 += PAGE;
        }
        false
    }

    /// Returns the record that crosses `at`, a segment's start; `None` also if the previous segment is not held.
    fn crossing(&self, at: Lsn) -> Option<Crossing> {
        let mut known = lock(&self.crossings);
        if let Some((_, crossing)) = known.iter().find(|(start, _)| *start == at) {
            return *crossing;
        }
        let size = self.identity.segment_size;
        let number = size.number(at).checked_sub(1)?;
        let history = self.parsed_history(self.tail.load().timeline);
        let has = |segment: Segment| lock(&self.held).contains_key(&segment);
        let segment = recover::locate(&history, number, &self.identity, has)?;
        let file = self.file(segment).ok()??;
        let mut page = [0; PAGE_BYTES];
        file.read_exact_at(&mut page, size.bytes() - PAGE).ok()?;
        let last = Lsn(at.0 - PAGE);
        let crossing =
            rest_behind(&self.identity, last, &page).map(|rest| Crossing { at, end: end_of(at, rest), looked: at });
        known[1] = known[0];
        known[0] = (at, crossing);
        crossing
    }
}

/// Returns the number of bytes that a record has after the page at `at`, the last of its segment; `None` if no record continues.
fn rest_behind(identity: &Identity, at: Lsn, page: &[u8; PAGE_BYTES]) -> Option<u64> {
    // A page without a header is padding after a segment switch.
    let header = page_header(identity, at, page).ok()?;
    let mut offset = header.length;
    if header.continues() {
        let end = offset as u64 + u64::from(header.remaining);
        if end >= PAGE {
            return Some(end - PAGE).filter(|rest| *rest > 0);
        }
        offset = (end as usize).next_multiple_of(8);
    }
    while offset < PAGE_BYTES {
        let end = offset as u64 + u64::from(record_length(page, offset)?);
        if end > PAGE {
            return Some(end - PAGE);
        }
        offset = (end as usize).next_multiple_of(8);
    }
    None
}

/// Returns the end of a record with `rest` bytes after the header of the segment at `at`.
fn end_of(at: Lsn, rest: u64) -> Lsn {
    const FIRST: u64 = PAGE - 40;
    const OTHER: u64 = PAGE - 24;
    if rest <= FIRST {
        return Lsn(at.0 + 40 + rest);
    }
    let rest = rest - FIRST;
    let pages = (rest - 1) / OTHER;
    Lsn(at.0 + PAGE + pages * PAGE + 24 + (rest - pages * OTHER))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ends() {
        let at = Lsn(16 << 20);
        for (rest, end) in
            [(1, 41), (8152, 8192), (8153, 8192 + 25), (8152 + 8168, 2 * 8192), (8152 + 8168 + 1, 2 * 8192 + 25)]
        {
            assert_eq!(end_of(at, rest).0 - at.0, end, "{rest}");
        }
    }
}
