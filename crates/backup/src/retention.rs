//! The arithmetic of retention: backups and WAL that a window of time needs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use watermark::Lsn;

use crate::record::Point;
use crate::timelines::Timelines;

/// A backup, as far as retention looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) id: String,
    /// The backup to which this one is incremental.
    pub(crate) parent: Option<String>,
    pub(crate) ended: u64,
    pub(crate) start: Point,
    pub(crate) end: Point,
    /// True if the archive has its chain, and its WAL from start to end.
    pub(crate) is_restorable: bool,
}

/// Names of backups that a window does not need by themselves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Superfluous<'a> {
    /// Backups to remove.
    pub(crate) removed: BTreeSet<&'a str>,
    /// Backups that stay for an incremental one alone: their WAL is not needed.
    pub(crate) for_chains: BTreeSet<&'a str>,
}

/// Finds the backups that a window back to `since` does not need: those that ended before the newest restorable one that ended before `since`. Without
/// such a backup, all are needed.
pub(crate) fn superfluous(backups: &[Kept], since: u64) -> Superfluous<'_> {
    let ended = |backup: &&Kept| backup.is_restorable && backup.ended <= since;
    let Some(anchor) = backups.iter().filter(ended).max_by_key(|backup| (backup.ended, backup.end.lsn)) else {
        return Superfluous::default();
    };
    let is_old = |backup: &&Kept| (backup.ended, backup.end.lsn) < (anchor.ended, anchor.end.lsn);
    let mut removed: BTreeSet<&str> = backups.iter().filter(is_old).map(|backup| backup.id.as_str()).collect();
    let parents: BTreeMap<&str, &str> =
        backups.iter().filter_map(|backup| Some((backup.id.as_str(), backup.parent.as_deref()?))).collect();
    let mut for_chains = BTreeSet::new();
    for backup in backups.iter().filter(|backup| !is_old(backup)) {
        let mut at = backup.id.as_str();
        // Ends at a backup that stays anyway, whose own chain is followed from there, or that is not there.
        while let Some(parent) = parents.get(at).copied().filter(|parent| removed.remove(parent)) {
            for_chains.insert(parent);
            at = parent;
        }
    }
    Superfluous { removed, for_chains }
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

    use proptest::prelude::*;

    use super::*;

    fn kept(id: &str, ended: u64, timeline: u32, start: u64) -> Kept {
        let point = |lsn| Point { lsn: Lsn(lsn), timeline };
        Kept { id: id.into(), parent: None, ended, start: point(start), end: point(start + 0x10), is_restorable: true }
    }

    #[test]
    fn the_window() {
        let all = [kept("a", 10, 1, 0x100), kept("b", 20, 1, 0x200), kept("c", 30, 1, 0x300)];
        let removed =
            |backups: &[Kept], since| superfluous(backups, since).removed.into_iter().collect::<Vec<_>>().join("");
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
        // An incremental backup keeps its chain, and no other.
        let mut chain = all.clone();
        chain[2].parent = Some("a".into());
        assert_eq!(removed(&chain, 99), "b");
        assert_eq!(superfluous(&chain, 99).for_chains, BTreeSet::from(["a"]));
        chain[1].parent = Some("a".into());
        chain[2].parent = Some("b".into());
        assert_eq!(removed(&chain, 99), "");
        assert_eq!(superfluous(&chain, 99).for_chains, BTreeSet::from(["a", "b"]));
    }

    proptest! {
        /// Backups in any chains and any window: what was restorable at a moment of the window stays so, with all that it needs, and a second pruning
        /// finds nothing more.
        #[test]
        fn chains_stay_whole(
            kinds in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<bool>()), 1..30),
            since in 0_u64..400,
        ) {
            let mut backups: Vec<Kept> = Vec::new();
            for (n, (parent, is_incremental, is_restorable)) in kinds.iter().enumerate() {
                let parent = (*is_incremental && n > 0).then(|| backups[parent.index(n)].id.clone());
                let number = n as u64 + 1;
                let kept = kept(&format!("{n:02}"), number * 10, 1, number * 0x100);
                backups.push(Kept { parent, is_restorable: *is_restorable, ..kept });
            }
            let found = superfluous(&backups, since);
            let staying: Vec<&Kept> = backups.iter().filter(|kept| !found.removed.contains(kept.id.as_str())).collect();
            let stays = |id: &str| staying.iter().any(|kept| kept.id == id);
            for kept in &staying {
                prop_assert!(kept.parent.as_deref().is_none_or(stays), "{} lost its parent", kept.id);
            }
            let mut timelines = Timelines::default();
            timelines.add(1);
            let with_wal: Vec<&Kept> =
                staying.iter().copied().filter(|kept| !found.for_chains.contains(kept.id.as_str())).collect();
            for moment in since..400 {
                let used = backups.iter().rfind(|kept| kept.is_restorable && kept.ended <= moment);
                let Some(used) = used else { continue };
                prop_assert!(stays(&used.id), "a restore to {moment} begins with {}", used.id);
                prop_assert!(needs_wal(&with_wal, &timelines, 1, used.end.lsn), "and with its WAL");
            }
            for id in &found.for_chains {
                let has_child = staying.iter().any(|kept| kept.parent.as_deref() == Some(id));
                prop_assert!(has_child, "{id} stays for nothing");
            }
            // The WAL of those that stay for a chain goes, and with it what they were restorable by.
            let after: Vec<Kept> = staying
                .iter()
                .map(|kept| Kept {
                    is_restorable: kept.is_restorable && !found.for_chains.contains(kept.id.as_str()),
                    ..(*kept).clone()
                })
                .collect();
            prop_assert!(superfluous(&after, since).removed.is_empty());
        }
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
