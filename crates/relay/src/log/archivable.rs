//! The log's segments as an archive sees them: a decision over plain values.

use watermark::Lsn;

use super::{History, Log, Segment, SegmentSize, Timeline, lock};

/// A segment that an archive should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Archivable {
    /// The segment.
    pub(crate) segment: Segment,
    /// Bytes from its start that are durable and never change.
    pub(crate) durable: u64,
    /// True if its timeline was left: no more bytes will come.
    pub(crate) is_closed: bool,
}

impl Log {
    /// Returns the end of the durable WAL, and the segments with durable WAL, oldest first.
    pub(crate) fn archivable(&self) -> (Lsn, Vec<Archivable>) {
        // First: the tail of a timeline that ends meanwhile stands for the segments that were held before.
        let tail = self.tail();
        let flushed = tail.flushed.get();
        let held: Vec<Segment> = lock(&self.held).keys().copied().collect();
        (flushed, archivable(&held, &self.parsed_history(tail.timeline), flushed, self.identity.segment_size))
    }
}

/// Leaves out files of timelines that are not in the history, and what lies behind the point where a timeline was left.
fn archivable(held: &[Segment], history: &History, flushed: Lsn, size: SegmentSize) -> Vec<Archivable> {
    let end = |timeline: Timeline| match timeline == history.timeline {
        true => Some(flushed),
        false => history.left(timeline).map(|(at, _)| at),
    };
    let of = |segment: &Segment| {
        let durable = end(segment.timeline)?.0.saturating_sub(size.start(segment.number).0).min(size.bytes());
        let is_closed = segment.timeline != history.timeline;
        (durable > 0).then_some(Archivable { segment: *segment, durable, is_closed })
    };
    held.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_archived_of_each_timeline() {
        let size = SegmentSize::DEFAULT;
        let at = |number: u64, offset: u64| Lsn(size.start(number).0 + offset);
        let segment = |timeline: u32, number: u64| Segment { number, timeline: Timeline(timeline) };
        let history =
            History { timeline: Timeline(3), ancestors: vec![(Timeline(1), at(2, 700)), (Timeline(2), at(4, 0))] };
        let held = [
            segment(1, 1),
            segment(1, 2),
            segment(2, 2),
            segment(1, 3),
            segment(2, 3),
            segment(9, 3),
            segment(2, 4),
            segment(3, 4),
            segment(3, 5),
            segment(3, 6),
        ];
        let found = archivable(&held, &history, at(5, 100), size);
        let found: Vec<_> =
            found.iter().map(|of| (of.segment.timeline.0, of.segment.number, of.durable, of.is_closed)).collect();
        let whole = size.bytes();
        assert_eq!(
            found,
            [
                (1, 1, whole, true),
                (1, 2, 700, true),
                (2, 2, whole, true),
                (2, 3, whole, true),
                (3, 4, whole, false),
                (3, 5, 100, false),
            ]
        );
    }
}
