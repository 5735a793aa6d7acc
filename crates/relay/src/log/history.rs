//! Timeline history files: the ancestors of a timeline.
//!
//! Each line holds an ancestor and the position at which the next timeline left it, oldest first; then a reason for people:
//!
//! ```text
//! 1 <tab> 0/2000000 <tab> no recovery target specified
//! ```

use watermark::Lsn;

use super::Timeline;

/// Most bytes of a history file. A line has about 60.
pub const MAX_HISTORY_BYTES: usize = 1 << 20;

/// A parsed history file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The timeline of the file.
    pub timeline: Timeline,
    /// Ancestors, oldest first, each with the position where it was left. Numbers rise, positions do not fall.
    pub ancestors: Vec<(Timeline, Lsn)>,
}

/// An invalid history file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Longer than any file that a server writes.
    #[error("{bytes} bytes, and at most {MAX_HISTORY_BYTES} are possible")]
    TooLong {
        /// Length of the file.
        bytes: usize,
    },
    /// A malformed line.
    #[error("line {line}: expected a timeline and the position where it was left, as in 1<tab>0/2000000")]
    Syntax {
        /// Line number, from 1.
        line: usize,
    },
    /// Timelines or positions out of order.
    #[error("line {line}: timelines must rise, stay below {timeline}, and be left at positions that do not fall")]
    Order {
        /// Line number, from 1.
        line: usize,
        /// The timeline of the file.
        timeline: Timeline,
    },
}

impl History {
    /// Makes the history of a timeline without ancestors: the first, or one whose file is not held.
    #[must_use]
    pub fn none(timeline: Timeline) -> History {
        History { timeline, ancestors: Vec::new() }
    }

    /// # Errors
    /// [`HistoryError`] if the file is too long, not of the form above, or out of order.
    pub fn parse(timeline: Timeline, content: &[u8]) -> Result<History, HistoryError> {
        if content.len() > MAX_HISTORY_BYTES {
            return Err(HistoryError::TooLong { bytes: content.len() });
        }
        let mut ancestors: Vec<(Timeline, Lsn)> = Vec::new();
        for (index, line) in content.split(|b| *b == b'\n').enumerate() {
            let line_number = index + 1;
            // The reason may be in any encoding; only the fields before it matter.
            let line = line.trim_ascii_start();
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let (ancestor, at) = fields(line).ok_or(HistoryError::Syntax { line: line_number })?;
            let rises = ancestors.last().is_none_or(|(last, left)| *last < ancestor && *left <= at);
            if !rises || ancestor >= timeline {
                return Err(HistoryError::Order { line: line_number, timeline });
            }
            ancestors.push((ancestor, at));
        }
        Ok(History { timeline, ancestors })
    }

    /// Returns the position where `timeline` was left, and the next timeline; `None` for the last one, and for one that is no ancestor.
    #[must_use]
    pub fn left(&self, timeline: Timeline) -> Option<(Lsn, Timeline)> {
        let index = self.ancestors.iter().position(|(ancestor, _)| *ancestor == timeline)?;
        let next = self.ancestors.get(index + 1).map_or(self.timeline, |(next, _)| *next);
        Some((self.ancestors[index].1, next))
    }

    /// Returns the position where this timeline left its parent; 0/0 if it has none.
    #[must_use]
    pub fn begin(&self) -> Lsn {
        self.ancestors.last().map_or(Lsn(0), |(_, at)| *at)
    }

    /// Returns the timelines, newest first, each with the position where it began.
    pub fn newest_first(&self) -> impl Iterator<Item = (Timeline, Lsn)> + '_ {
        let timelines =
            std::iter::once(self.timeline).chain(self.ancestors.iter().rev().map(|(timeline, _)| *timeline));
        let begins = self.ancestors.iter().rev().map(|(_, at)| *at).chain(std::iter::once(Lsn(0)));
        timelines.zip(begins)
    }

    /// True if `timeline` is this one or an ancestor.
    #[must_use]
    pub fn contains(&self, timeline: Timeline) -> bool {
        self.timeline == timeline || self.ancestors.iter().any(|(ancestor, _)| *ancestor == timeline)
    }
}

fn fields(line: &[u8]) -> Option<(Timeline, Lsn)> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let timeline = std::str::from_utf8(fields.next()?).ok()?;
    let at = std::str::from_utf8(fields.next()?).ok()?;
    let digits = timeline.bytes().all(|b| b.is_ascii_digit());
    let timeline = timeline.parse().ok().filter(|timeline| digits && *timeline > 0)?;
    Some((Timeline(timeline), at.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn history(timeline: u32, text: &str) -> Result<History, HistoryError> {
        History::parse(Timeline(timeline), text.as_bytes())
    }

    #[test]
    fn what_servers_write() {
        let history = history(
            4,
            "# comment\n\n1\t0/5000148\tno recovery target specified\n\n2\t0/6000000\tbefore x\r\n  3 1/0 y\n",
        )
        .unwrap();
        let (t1, t2, t3, t4) = (Timeline(1), Timeline(2), Timeline(3), Timeline(4));
        let (a, b, c) = (Lsn(0x500_0148), Lsn(0x600_0000), Lsn(1 << 32));
        assert_eq!(history.ancestors, [(t1, a), (t2, b), (t3, c)]);
        assert_eq!(history.left(t1), Some((a, t2)));
        assert_eq!(history.left(t3), Some((c, t4)));
        assert_eq!(history.left(t4), None);
        assert_eq!(history.left(Timeline(9)), None);
        assert_eq!(history.begin(), c);
        assert_eq!(history.newest_first().collect::<Vec<_>>(), [(t4, c), (t3, b), (t2, a), (t1, Lsn(0))]);
        assert!(history.contains(t1) && history.contains(t4) && !history.contains(Timeline(5)));
    }

    #[test]
    fn a_reason_in_any_encoding() {
        let history = History::parse(Timeline(2), b"1\t0/10\tbefore \xff\xfe\n").unwrap();
        assert_eq!(history.ancestors, [(Timeline(1), Lsn(16))]);
    }

    #[test]
    fn rejects() {
        for (timeline, text, expected) in [
            (2, "x", HistoryError::Syntax { line: 1 }),
            (2, "1", HistoryError::Syntax { line: 1 }),
            (2, "\n1 zero", HistoryError::Syntax { line: 2 }),
            (2, "0\t0/1", HistoryError::Syntax { line: 1 }),
            (2, "+1\t0/1", HistoryError::Syntax { line: 1 }),
            (2, "4294967296\t0/1", HistoryError::Syntax { line: 1 }),
            (2, "2\t0/1", HistoryError::Order { line: 1, timeline: Timeline(2) }),
            (3, "2\t0/1\n1\t0/2", HistoryError::Order { line: 2, timeline: Timeline(3) }),
            (3, "1\t0/2\n2\t0/1", HistoryError::Order { line: 2, timeline: Timeline(3) }),
        ] {
            assert_eq!(history(timeline, text), Err(expected), "{text:?}");
        }
        let long = "#".repeat(MAX_HISTORY_BYTES + 1);
        assert_eq!(history(2, &long), Err(HistoryError::TooLong { bytes: MAX_HISTORY_BYTES + 1 }));
    }

    proptest! {
        #[test]
        fn round_trip(steps in prop::collection::vec((1_u32..9, 0_u64..1 << 40), 0..20)) {
            let (mut timeline, mut at) = (0, 0);
            let ancestors: Vec<_> = steps.into_iter().map(|(step, bytes)| {
                timeline += step;
                at += bytes;
                (Timeline(timeline), Lsn(at))
            }).collect();
            let text: String = ancestors.iter().map(|(t, at)| format!("{t}\t{at}\treason\n\n")).collect();
            let parsed = History::parse(Timeline(timeline + 1), text.as_bytes()).unwrap();
            prop_assert_eq!(parsed.ancestors, ancestors);
        }

        #[test]
        fn never_panics(timeline: u32, content: Vec<u8>) {
            let _ = History::parse(Timeline(timeline), &content);
        }

        #[test]
        fn never_panics_on_what_looks_right(timeline in 1_u32..4, content in "([0-9]{1,11}[\t ][0-9A-F]{1,3}/[0-9A-F]{1,9}[\t ]?[a-z]{0,3}\n?){0,6}") {
            if let Ok(history) = History::parse(Timeline(timeline), content.as_bytes()) {
                for (ancestor, _) in &history.ancestors {
                    prop_assert!(history.left(*ancestor).is_some());
                }
            }
        }
    }
}
