//! The arithmetic of retention: backups and WAL that a window of time needs. Pure.

use std::collections::BTreeSet;

use watermark::Lsn;

use crate::record::Point;
use crate::timelines::Timelines;

/// A backup, as far as retention looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) id: String,
    pub(crate) ended: u64,
    pub(crate) start: Point,
    pub(crate) end: Point,
    /// True if the archive has its WAL from start to end.
    pub(crate) is_restorable: bool,
}

/// Returns the names of the backups that a window back to `since` does not need: those that ended before the newest restorable one that ended before
/// `since`. Without such a backup, all are needed.
pub(crate) fn to_remove(backups: &[Kept], since: u64) -> BTreeSet<&str> {
    let ended = |backup: &&Kept| backup.is_restorable && backup.ended <= since;
    let Some(anchor) = backups.iter().filter(ended).max_by_key(|backup| (backup.ended, backup.end.lsn)) else {
        return BTreeSet::new();
    };
    backups
        .iter()
        .filter(|backup| (backup.ended, backup.end.lsn) < (anchor.ended, anchor.end.lsn))
        .map(|backup| backup.id.as_str())
        .collect()
}

/// True if a restore from one of `backups` can ask for the segment of `timeline` that ends at `end`: WAL from the backup's start on, on every timeline
/// that can be reached from there. `segment_size`: a restore begins with the whole segment of the start.
pub(crate) fn needs_wal(backups: &[&Kept], timelines: &Timelines, timeline: u32, end: Lsn) -> bool {
    backups.iter().any(|backup| {
        let reached = match timelines.left(timeline, backup.start.timeline) {
            Some(left) => backup.start.lsn <= left,
            // An ancestor of the backup's timeline, or one that is unknown, may be asked for; another branch may not.
            None => !timelines.has(timeline) || timelines.left(backup.start.timeline, timeline).is_some(),
        };
        reached && end > backup.start.lsn
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn kept(id: &str, ended: u64, timeline: u32, start: u64) -> Kept {
        let point = |lsn| Point { lsn: Lsn(lsn), timeline };
        Kept { id: id.into(), ended, start: point(start), end: point(start + 0x10), is_restorable: true }
    }

    #[test]
    fn the_window() {
        let all = [kept("a", 10, 1, 0x100), kept("b", 20, 1, 0x200), kept("c", 30, 1, 0x300)];
        let removed = |backups: &[Kept], since| to_remove(backups, since).into_iter().collect::<Vec<_>>().join("");
        for (since, expected) in [(0, ""), (10, ""), (19, ""), (20, "a"), (29, "a"), (30, "ab"), (99, "ab")] {
            assert_eq!(removed(&all, since), expected, "{since}");
        }
        // A backup that cannot be restored is no reason to remove one that can.
        let mut broken = all.clone();
        broken[2].is_restorable = false;
        assert_eq!(removed(&broken, 99), "a");
        broken[1].is_restorable = false;
        assert_eq!(removed(&broken, 99), "");
        assert_eq!(removed(&[], 99), "");
    }

    #[test]
    fn the_wal() {
        // 1 ── 0/400 ─▶ 2, 1 ── 0/150 ─▶ 3.
        let mut timelines = Timelines::default();
        timelines.add(1);
        timelines.add_history(2, b"1 0/400 x").unwrap();
        timelines.add_history(3, b"1 0/150 x").unwrap();
        let (on_1, on_2) = (kept("a", 10, 1, 0x200), kept("b", 20, 2, 0x500));
        for (backups, timeline, end, expected) in [
            (vec![&on_1], 1, 0x200, false),
            (vec![&on_1], 1, 0x300, true),
            (vec![&on_1], 2, 0x500, true),
            // Left before the backup began.
            (vec![&on_1], 3, 0x300, false),
            (vec![&on_2], 1, 0x500, false),
            (vec![&on_2], 1, 0x600, true),
            (vec![&on_2], 2, 0x500, false),
            (vec![&on_2], 2, 0x600, true),
            (vec![&on_1, &on_2], 1, 0x300, true),
            // Unknown: kept.
            (vec![&on_2], 9, 0x600, true),
            (vec![], 1, 0x100, false),
        ] {
            assert_eq!(needs_wal(&backups, &timelines, timeline, Lsn(end)), expected, "{timeline} {end:x}");
        }
    }
}
