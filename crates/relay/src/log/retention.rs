//! Choice of the segments that may be removed: a decision over plain numbers.

use watermark::Lsn;

use super::{Segment, SegmentSize};

/// Constraints on removal. `None` is no constraint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// The lowest position that a downstream, connected or with a slot, still needs.
    pub downstream: Option<Lsn>,
    /// Position up to which an archive has confirmed everything. WAL from there on stays, also beyond `max_bytes`.
    pub archived: Option<Lsn>,
    /// Bytes kept even without a known need, for a downstream that was away for a moment.
    pub keep_bytes: u64,
    /// Most bytes held, even if downstreams need some; the segment being written always stays.
    pub max_bytes: Option<u64>,
}

/// Returns the lowest segment number that stays. `held` are the segments held, of any timeline; `current` is the one being written, or the lowest
/// with unflushed bytes if that is lower.
pub(super) fn first_to_keep(held: &[Segment], current: u64, size: SegmentSize, retention: &Retention) -> u64 {
    let kept_anyway = current.saturating_sub(retention.keep_bytes.div_ceil(size.bytes()));
    let archived = retention.archived.map_or(u64::MAX, |at| size.number(at));
    let needed = retention.downstream.map(|at| size.number(at));
    let mut first = needed.map_or(kept_anyway, |needed| needed.min(kept_anyway));
    if let Some(max_bytes) = retention.max_bytes {
        let mut numbers: Vec<u64> = held.iter().map(|segment| segment.number).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        let room = usize::try_from(max_bytes / size.bytes()).unwrap_or(usize::MAX);
        // The newest segment without room is removed, and with it every segment of its number.
        if let Some(number) = numbers.get(room) {
            first = first.max(number.saturating_add(1));
        }
    }
    first.min(archived).min(current)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::super::Timeline;
    use super::*;

    const SIZE: SegmentSize = SegmentSize::DEFAULT;
    const MB: u64 = 1 << 20;

    fn held(numbers: impl IntoIterator<Item = u64>) -> Vec<Segment> {
        numbers.into_iter().map(|number| Segment { number, timeline: Timeline(1) }).collect()
    }

    #[test]
    fn table() {
        let none = Retention::default();
        let at = |number: u64| Some(Lsn(SIZE.start(number).0 + 5));
        for (retention, first, why) in [
            (none, 20, "nobody needs anything: the current one stays"),
            (Retention { downstream: at(15), ..none }, 15, "the segment that a downstream is in"),
            (Retention { downstream: Some(SIZE.start(15)), ..none }, 15, "which has sent all before"),
            (Retention { archived: at(13), ..none }, 13, "not archived yet"),
            (Retention { downstream: at(15), archived: at(13), ..none }, 13, "the least"),
            (Retention { downstream: at(13), archived: at(15), ..none }, 13, "the least, turned round"),
            (Retention { downstream: at(25), ..none }, 20, "a downstream that claims to be ahead"),
            (Retention { downstream: at(3), ..none }, 3, "needs what is gone: nothing goes"),
            (Retention { keep_bytes: 64 * MB, ..none }, 16, "kept anyway"),
            (Retention { keep_bytes: 1, ..none }, 19, "rounded up"),
            (Retention { keep_bytes: 64 * MB, downstream: at(18), ..none }, 16, "kept beyond need"),
            (Retention { keep_bytes: 64 * MB, downstream: at(12), ..none }, 12, "need beyond kept"),
            (Retention { downstream: at(12), max_bytes: Some(48 * MB), ..none }, 18, "the cap wins over need"),
            (Retention { keep_bytes: 200 * MB, max_bytes: Some(48 * MB), ..none }, 18, "and over what is kept anyway"),
            (Retention { downstream: at(19), max_bytes: Some(48 * MB), ..none }, 19, "a cap that is not reached"),
            (Retention { archived: at(13), max_bytes: Some(48 * MB), ..none }, 13, "the archive before the cap"),
            (
                Retention { archived: at(19), max_bytes: Some(48 * MB), keep_bytes: 200 * MB, ..none },
                18,
                "and not beyond it",
            ),
            (Retention { archived: Some(Lsn(0)), max_bytes: Some(0), ..none }, 0, "nothing archived yet: nothing goes"),
            (Retention { max_bytes: Some(0), ..none }, 20, "a cap of nothing leaves the current one"),
            (Retention { downstream: at(12), max_bytes: Some(u64::MAX), ..none }, 12, "a cap beyond every disk"),
        ] {
            assert_eq!(first_to_keep(&held(10..=20), 20, SIZE, &retention), first, "{why}");
        }
    }

    #[test]
    fn two_timelines_in_one_segment_count_twice() {
        let mut segments = held(10..=12);
        segments.push(Segment { number: 12, timeline: Timeline(2) });
        segments.push(Segment { number: 13, timeline: Timeline(2) });
        let retention =
            Retention { downstream: Some(SIZE.start(10)), max_bytes: Some(3 * SIZE.bytes()), ..Retention::default() };
        assert_eq!(first_to_keep(&segments, 13, SIZE, &retention), 12);
    }

    proptest! {
        #[test]
        fn the_current_one_stays_and_the_cap_holds(
            numbers in prop::collection::vec(1_u64..50, 1..40), downstream: Option<u64>, archived: Option<u64>,
            keep_bytes: u64, max_bytes: Option<u32>,
        ) {
            let current = numbers.iter().copied().max().unwrap();
            let max_bytes = max_bytes.map(u64::from);
            let retention = Retention {
                downstream: downstream.map(Lsn), archived: archived.map(Lsn), keep_bytes, max_bytes,
            };
            let first = first_to_keep(&held(numbers.clone()), current, SIZE, &retention);
            prop_assert!(first <= current);
            let stay = numbers.iter().filter(|number| **number >= first).count() as u64;
            let of_current = numbers.iter().filter(|number| **number == current).count() as u64;
            if let Some(archived) = archived {
                prop_assert!(first <= SIZE.number(Lsn(archived)));
            } else if let Some(max) = max_bytes {
                prop_assert!(stay * SIZE.bytes() <= max || stay == of_current);
            } else if let Some(needed) = downstream {
                prop_assert!(first <= SIZE.number(Lsn(needed)));
            }
        }
    }
}
