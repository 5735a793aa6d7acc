//! The window that can be restored. The decision does no I/O: it asks for the end of the WAL behind a backup.

use std::fmt;

use watermark::Lsn;

use crate::branch::show_time;
use crate::record::{Point, Record};
use crate::timelines::Timelines;

/// A span of moments that can be restored: from the end of a backup to the end of the WAL that follows it without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    from: Point,
    from_micros: i64,
    to: Lsn,
    timeline: u32,
}

impl Window {
    /// Finds the window. It begins with the oldest restorable backup from which the WAL reaches the newest one without a gap, on the way to the newest
    /// timeline. `restorable`: the records; `reach`: returns the end of the WAL from a position on, and its timeline.
    pub(crate) async fn find<E>(
        restorable: &[&Record],
        timelines: &Timelines,
        mut reach: impl AsyncFnMut(Point) -> Result<(Lsn, u32), E>,
    ) -> Result<Option<Window>, E> {
        let Some(newest) = timelines.newest() else { return Ok(None) };
        let is_on_way = |record: &&&Record| timelines.passes(newest, record.end.timeline, record.end.lsn);
        let mut on_way: Vec<&Record> = restorable.iter().filter(is_on_way).copied().collect();
        on_way.sort_by_key(|record| record.end.lsn);
        let Some(last) = on_way.last().map(|record| record.start.lsn) else { return Ok(None) };
        for record in on_way {
            let (to, timeline) = reach(record.start).await?;
            if to >= last {
                let to = to.max(record.end.lsn);
                return Ok(Some(Window { from: record.end, from_micros: record.ended_micros, to, timeline }));
            }
        }
        Ok(None)
    }

    /// Returns the time of the oldest moment, in seconds since 1970.
    #[must_use]
    pub fn from_seconds(&self) -> u64 {
        u64::try_from(self.from_micros / 1_000_000).unwrap_or(0)
    }

    /// Returns the position of the newest moment.
    #[must_use]
    pub fn to(&self) -> Lsn {
        self.to
    }

    /// Returns the form for programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "from": self.from_seconds(), "from_lsn": self.from.lsn.to_string(), "to_lsn": self.to.to_string(), "timeline": self.timeline,
        })
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Window { from, from_micros, to, timeline } = self;
        write!(f, "{from} ({}) to {to} on timeline {timeline}", show_time(*from_micros).replace(".000000", ""))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use archive::BackupId;

    use super::*;

    fn record(n: u32, timeline: u32, start: u64) -> Record {
        let point = |lsn| Point { lsn: Lsn(lsn), timeline };
        let mut record = Record::begin(&BackupId::new(0, n), "n", "l", 1_700_000_000, point(start));
        record.end = point(start + 0x10);
        record
    }

    #[tokio::test]
    async fn the_oldest_backup_without_a_gap_to_the_newest() {
        // 1 ── 0/400 ─▶ 2.
        let mut timelines = Timelines::default();
        timelines.add(1);
        timelines.add_history(2, b"1 0/400 x").unwrap();
        let (a, b, c) = (record(1, 1, 0x100), record(2, 1, 0x300), record(3, 2, 0x500));
        let left = record(4, 1, 0x600);
        let end = |at: u64| (Lsn(at), 2);
        for (backups, reaches, expected) in [
            (vec![], vec![], None),
            // Only on the end of a timeline that was left.
            (vec![&left], vec![], None),
            (vec![&a, &b, &c], vec![end(0x900)], Some((0x110, 0x900))),
            // A gap behind the first, and a record out of order.
            (vec![&c, &b, &a], vec![(Lsn(0x250), 1), end(0x900)], Some((0x310, 0x900))),
            (vec![&a, &b], vec![(Lsn(0x2ff), 1), (Lsn(0x310), 1)], Some((0x310, 0x310))),
            (vec![&a], vec![(Lsn(0x110), 1)], Some((0x110, 0x110))),
        ] {
            let mut reaches = reaches.into_iter();
            let found = Window::find(&backups, &timelines, async |_| Ok::<_, ()>(reaches.next().unwrap())).await;
            let found = found.unwrap().map(|window| (window.from.lsn.0, window.to.0));
            assert_eq!(found, expected);
            assert_eq!(reaches.next(), None, "every backup up to the first that reaches is asked for");
        }
    }

    #[tokio::test]
    async fn shown() {
        let mut timelines = Timelines::default();
        timelines.add(1);
        let record = record(1, 1, 0x100);
        let found = Window::find(&[&record], &timelines, async |_| Ok::<_, ()>((Lsn(0x200), 1))).await;
        let text = found.unwrap().unwrap().to_string();
        assert_eq!(text, "0/110 on timeline 1 (2023-11-14 22:13:20+00) to 0/200 on timeline 1");
    }
}
