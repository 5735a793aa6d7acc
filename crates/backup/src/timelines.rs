//! Timelines and their ancestry, from history files. Pure.

use std::collections::BTreeMap;

use relay::log::{History, Timeline};
use watermark::Lsn;

/// Most ancestors of a timeline.
const MOST: usize = 10_000;

/// The timelines of an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Timelines(BTreeMap<u32, Vec<(u32, Lsn)>>);

impl Timelines {
    /// Adds a timeline without ancestors, unless its history is known.
    pub(crate) fn add(&mut self, timeline: u32) {
        self.0.entry(timeline).or_default();
    }

    /// Adds a timeline with the content of its history file: lines of timeline, position and a reason. The error says what is wrong with the file.
    pub(crate) fn add_history(&mut self, timeline: u32, content: &[u8]) -> Result<(), String> {
        let history = History::parse(Timeline(timeline), content).map_err(|error| error.to_string())?;
        if history.ancestors.len() > MOST {
            return Err(format!("it has more than {MOST} ancestors"));
        }
        self.0.insert(timeline, history.ancestors.into_iter().map(|(ancestor, at)| (ancestor.0, at)).collect());
        Ok(())
    }

    /// Returns the numbers of all timelines.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Returns the newest timeline.
    pub(crate) fn newest(&self) -> Option<u32> {
        self.0.last_key_value().map(|(timeline, _)| *timeline)
    }

    /// True if the archive has anything of the timeline.
    pub(crate) fn has(&self, timeline: u32) -> bool {
        self.0.contains_key(&timeline)
    }

    /// Returns the ancestors of a timeline, oldest first, each with the position at which it was left.
    pub(crate) fn ancestors(&self, timeline: u32) -> &[(u32, Lsn)] {
        self.0.get(&timeline).map_or(&[], Vec::as_slice)
    }

    /// Returns the position at which the way to `timeline` leaves `on`: the greatest if it is `timeline` itself, None if it does not pass.
    pub(crate) fn left(&self, timeline: u32, on: u32) -> Option<Lsn> {
        if timeline == on {
            return Some(Lsn(u64::MAX));
        }
        self.ancestors(timeline).iter().find(|(ancestor, _)| *ancestor == on).map(|(_, at)| *at)
    }

    /// True if the way to `timeline` passes the position `at` on the timeline `on`.
    pub(crate) fn passes(&self, timeline: u32, on: u32, at: Lsn) -> bool {
        self.left(timeline, on).is_some_and(|left| at <= left)
    }

    /// Returns the position at which a timeline begins; 0 for one without ancestors.
    pub(crate) fn begin(&self, timeline: u32) -> Lsn {
        self.ancestors(timeline).last().map_or(Lsn(0), |(_, at)| *at)
    }

    /// Returns the position at which the way to `side` leaves the way to `main`.
    pub(crate) fn fork(&self, main: u32, side: u32) -> Option<Lsn> {
        // A timeline of the main way itself: left where the next one begins.
        if let Some(left) = self.left(main, side) {
            return Some(left);
        }
        let shared = self.ancestors(side).iter().rev().find_map(|(on, at)| Some((*at).min(self.left(main, *on)?)));
        shared.or(Some(Lsn(0)).filter(|_| self.has(side)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// 1 ── 0/400 ─▶ 2 ── 0/800 ─▶ 4, and 1 ── 0/600 ─▶ 3.
    pub(crate) fn tree() -> Timelines {
        let mut timelines = Timelines::default();
        timelines.add(1);
        for (timeline, history) in
            [(2, "1\t0/400\tno recovery target\n"), (3, "# old\n1\t0/600\tx\n"), (4, "1\t0/400\tx\n\n2\t0/800\ty\n")]
        {
            timelines.add_history(timeline, history.as_bytes()).unwrap();
        }
        timelines
    }

    #[test]
    fn ways() {
        let tree = tree();
        assert_eq!(tree.newest(), Some(4));
        for (timeline, on, at, expected) in
            [(4, 1, 0x400, true), (4, 1, 0x401, false), (4, 2, 0x800, true), (4, 4, 0x900, true), (4, 3, 0x500, false)]
        {
            assert_eq!(tree.passes(timeline, on, Lsn(at)), expected, "{timeline} {on} {at:x}");
        }
        assert_eq!((tree.begin(4), tree.begin(1)), (Lsn(0x800), Lsn(0)));
        for (side, fork) in [(1, 0x400), (2, 0x800), (3, 0x400)] {
            assert_eq!(tree.fork(4, side), Some(Lsn(fork)), "{side}");
        }
    }

    #[test]
    fn histories_that_cannot_be() {
        for history in ["x", "1", "1 0/1\n1 0/2", "2 0/2\n1 0/3", "1 0/5\n2 0/4", "9 0/1"] {
            assert!(Timelines::default().add_history(5, history.as_bytes()).is_err(), "{history:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(content in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Timelines::default().add_history(5, &content);
        }
    }
}
