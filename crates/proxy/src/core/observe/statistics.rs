//! Costs of statements by shape: number, time, rows, node. Each worker has one table of fixed size. A new shape displaces the least recently used
//! one, whose counts are added to `rest`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::trace::Span;

/// Number of entries in which a key may be.
const WAYS: usize = 8;
/// Length in bytes above which a text is stored truncated and without its literals.
const MOST_TEXT: usize = 4 << 10;
/// Maximum length in bytes of a stored or logged text without its literals.
const MOST_SHOWN: usize = 2 << 10;
/// Maximum number of slow statements that one worker logs per second; others are only counted.
const MOST_LOGGED: u32 = 10;

/// Statistics of one worker.
pub(in crate::core) struct Statistics {
    /// Groups of [`WAYS`] entries; empty if statistics are disabled.
    table: Box<[Entry]>,
    clock: u32,
    /// Counts of the shapes that no longer have an entry.
    rest: Counts,
    slow: Slow,
}

/// Context in which the end of a statement in flight is counted.
#[derive(Debug)]
pub(in crate::core) struct Timing {
    /// The shape; 0 if the statement is not counted.
    pub key: u64,
    /// Time at which the statement was sent.
    pub since: Instant,
    /// The span, if the statement is traced.
    pub span: Option<Box<Span>>,
}

/// Counts of a shape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of times that the statement has ended.
    pub calls: u64,
    /// Number of times that it has ended with an error.
    pub errors: u64,
    /// Total time from sending the statement to the end of its answer, in microseconds.
    pub micros: u64,
    /// Longest such time, in microseconds.
    pub longest: u64,
    /// Rows returned or changed.
    pub rows: u64,
    /// Calls on the primary; all others were on replicas.
    pub primary: u64,
}

/// Stored text of a statement.
#[derive(Clone)]
pub enum Text {
    /// The text with its literals, which is never shown.
    Raw(Arc<[u8]>),
    /// The text without its literals.
    Redacted(Arc<str>),
}

/// A shape and its counts.
#[derive(Debug, Clone)]
pub struct StatementReport {
    /// The text; `None` for the sum of all shapes without an entry.
    pub text: Option<Text>,
    /// The counts.
    pub counts: Counts,
}

#[derive(Clone)]
struct Entry {
    /// The shape; 0 if the entry is free.
    key: u64,
    used: u32,
    counts: Counts,
    text: Text,
}

/// Outcome of a statement.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct End {
    pub elapsed: Duration,
    pub rows: u64,
    pub failed: bool,
    pub primary: bool,
}

/// Rate limit of the log of slow statements.
struct Slow {
    since: Instant,
    logged: u32,
    kept_back: u64,
}

impl Timing {
    /// Creates a timing that is not counted.
    pub(in crate::core) fn none(now: Instant) -> Timing {
        Timing { key: 0, since: now, span: None }
    }
}

// === impl Statistics ===

impl Statistics {
    /// Creates a table for about this many shapes; 0 disables it.
    pub(in crate::core) fn new(shapes: usize, now: Instant) -> Statistics {
        let none = Entry { key: 0, used: 0, counts: Counts::default(), text: Text::Redacted("".into()) };
        let size = if shapes == 0 { 0 } else { shapes.max(WAYS).next_power_of_two() };
        Statistics {
            table: vec![none; size].into(),
            clock: 0,
            rest: Counts::default(),
            slow: Slow { since: now, logged: 0, kept_back: 0 },
        }
    }

    fn group(&self, key: u64) -> std::ops::Range<usize> {
        let groups = self.table.len() / WAYS;
        let at = (key ^ key >> 32) as usize % groups * WAYS;
        at..at + WAYS
    }

    fn find(&mut self, key: u64) -> Option<&mut Entry> {
        let group = self.group(key);
        self.table[group].iter_mut().find(|entry| entry.key == key)
    }

    /// Starts counting a statement of this shape (not 0). Allocates only for a shape without an entry.
    pub(in crate::core) fn begin(&mut self, key: u64, text: &[u8]) -> u64 {
        if self.table.is_empty() || key == 0 {
            return 0;
        }
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        if let Some(entry) = self.find(key) {
            entry.used = clock;
            return key;
        }
        let group = self.group(key);
        // A free entry, or else the least recently used one.
        let age = |entry: &Entry| if entry.key == 0 { u32::MAX } else { clock.wrapping_sub(entry.used) };
        if let Some(entry) = self.table[group].iter_mut().max_by_key(|entry| age(entry)) {
            self.rest += entry.counts;
            *entry = Entry { key, used: clock, counts: Counts::default(), text: Text::new(text) };
        }
        key
    }

    /// Counts the end of a statement that began under this key. Returns its text for the log if it took at least `slow`.
    pub(in crate::core) fn end(&mut self, key: u64, end: End, slow: Option<Duration>, now: Instant) -> Option<String> {
        if key == 0 || self.table.is_empty() {
            return None;
        }
        let micros = u64::try_from(end.elapsed.as_micros()).unwrap_or(u64::MAX);
        let one = Counts {
            calls: 1,
            errors: end.failed.into(),
            micros,
            longest: micros,
            rows: end.rows,
            primary: end.primary.into(),
        };
        let Some(entry) = self.find(key) else {
            self.rest += one;
            return None;
        };
        entry.counts += one;
        if slow.is_none_or(|slow| end.elapsed < slow) {
            return None;
        }
        let text = entry.text.clone();
        self.slow.may_log(now).then(|| text.show())
    }

    /// Returns the number of slow statements that were not logged since the last call.
    pub(in crate::core) fn kept_back(&mut self) -> u64 {
        std::mem::take(&mut self.slow.kept_back)
    }

    /// Returns all entries, and the rest.
    pub(in crate::core) fn report(&self) -> Vec<StatementReport> {
        let known = self.table.iter().filter(|entry| entry.key != 0 && entry.counts.calls > 0);
        let known = known.map(|entry| StatementReport { text: Some(entry.text.clone()), counts: entry.counts });
        let rest = StatementReport { text: None, counts: self.rest };
        known.chain(std::iter::once(rest).filter(|rest| rest.counts.calls > 0)).collect()
    }

    /// Resets all counters.
    pub(in crate::core) fn clear(&mut self) {
        for entry in &mut self.table {
            entry.counts = Counts::default();
        }
        self.rest = Counts::default();
    }
}

impl Slow {
    fn may_log(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.logged) = (now, 0);
        }
        self.logged += 1;
        let may = self.logged <= MOST_LOGGED;
        self.kept_back += u64::from(!may);
        may
    }
}

impl Text {
    /// Stores a text; a long one without its literals, to limit the memory.
    pub(in crate::core) fn new(text: &[u8]) -> Text {
        if text.len() <= MOST_TEXT {
            Text::Raw(text.into())
        } else {
            Text::Redacted(sql::redact(text, MOST_SHOWN).into())
        }
    }

    /// Returns the text without its literals.
    #[must_use]
    pub fn show(&self) -> String {
        match self {
            Text::Raw(text) => sql::redact(text, MOST_SHOWN),
            Text::Redacted(text) => text.to_string(),
        }
    }

    /// Returns the fingerprint, which is equal for texts that differ only in their literals; `None` if unknown.
    #[must_use]
    pub fn fingerprint(&self) -> Option<u64> {
        match self {
            Text::Raw(text) => sql::fingerprint(text),
            Text::Redacted(_) => None,
        }
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.show())
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.micros = self.micros.saturating_add(other.micros);
        self.longest = self.longest.max(other.longest);
        self.rows = self.rows.saturating_add(other.rows);
        self.primary += other.primary;
    }
}

/// Returns the number of rows at the end of a command tag (`SELECT 5`, `INSERT 0 3`); 0 if it has none.
pub(in crate::core) fn rows_of(tag: &[u8]) -> u64 {
    let tag = tag.strip_suffix(b"\0").unwrap_or(tag);
    let digits = tag.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    tag[tag.len() - digits..].iter().fold(0u64, |sum, b| sum.saturating_mul(10).saturating_add(u64::from(b - b'0')))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn end(millis: u64) -> End {
        End { elapsed: Duration::from_millis(millis), rows: 2, failed: false, primary: true }
    }

    #[test]
    fn it_counts_by_shape() {
        let now = Instant::now();
        let mut statistics = Statistics::new(100, now);
        for millis in [1, 5, 3] {
            let key = statistics.begin(7, b"SELECT 1");
            assert_eq!(statistics.end(key, end(millis), None, now), None);
        }
        let key = statistics.begin(8, b"SELECT x");
        statistics.end(key, End { failed: true, primary: false, ..end(1) }, None, now);
        // A statement without a shape is not counted.
        let key = statistics.begin(0, b"?");
        statistics.end(key, end(1), None, now);
        let mut report = statistics.report();
        report.sort_by_key(|of| of.counts.calls);
        assert_eq!(report.len(), 2);
        let of = Counts { calls: 3, errors: 0, micros: 9_000, longest: 5_000, rows: 6, primary: 3 };
        assert_eq!(report[1].counts, of);
        assert_eq!((report[0].counts.errors, report[0].counts.primary), (1, 0));
        assert_eq!(report[1].text.as_ref().unwrap().show(), "SELECT ?");
    }

    #[test]
    fn it_is_bounded_and_loses_nothing() {
        let now = Instant::now();
        let mut statistics = Statistics::new(64, now);
        let often = u64::MAX / 3;
        for n in 1..10_000 {
            for key in [n * 0x9e37_79b9, often] {
                let key = statistics.begin(key, b"SELECT 1");
                statistics.end(key, end(1), None, now);
            }
        }
        let report = statistics.report();
        assert!(report.len() <= 65);
        assert_eq!(report.iter().map(|of| of.counts.calls).sum::<u64>(), 2 * 9_999);
        // A frequently used shape stays.
        assert!(report.iter().any(|of| of.text.is_some() && of.counts.calls == 9_999));
        // A statement whose shape lost its entry meanwhile is still counted.
        let key = statistics.begin(5, b"SELECT 1");
        for n in 1..10_000 {
            statistics.begin(n * 77, b"SELECT 1");
        }
        statistics.end(key, end(1), None, now);
        assert_eq!(statistics.report().iter().map(|of| of.counts.calls).sum::<u64>(), 2 * 9_999 + 1);
        // Disabled.
        let mut none = Statistics::new(0, now);
        let key = none.begin(5, b"SELECT 1");
        none.end(key, end(1), Some(Duration::ZERO), now);
        assert!(none.report().is_empty());
    }

    #[test]
    fn slow_ones_are_given_for_the_log_a_few_a_second() {
        let mut now = Instant::now();
        let slow = Some(Duration::from_millis(100));
        let mut statistics = Statistics::new(64, now);
        let key = statistics.begin(5, b"SELECT 'secret'");
        assert_eq!(statistics.end(key, end(99), slow, now), None);
        let logged = (0..100).filter_map(|_| statistics.end(key, end(100), slow, now)).collect::<Vec<_>>();
        assert_eq!(logged, vec!["SELECT ?"; MOST_LOGGED as usize]);
        assert_eq!((statistics.kept_back(), statistics.kept_back()), (90, 0));
        now += Duration::from_secs(1);
        assert!(statistics.end(key, end(100), slow, now).is_some());
        // A long text is truncated.
        let long = format!("SELECT '{}', {}", "s".repeat(5000), "x, ".repeat(5000));
        let key = statistics.begin(6, long.as_bytes());
        let shown = statistics.end(key, end(100), slow, now).unwrap();
        assert!(shown.len() <= MOST_SHOWN + 4 && shown.ends_with('…') && !shown.contains("ss"), "{shown}");
    }

    #[test]
    fn rows_of_a_tag() {
        for (tag, expected) in [
            ("SELECT 5\0", 5),
            ("INSERT 0 31\0", 31),
            ("BEGIN\0", 0),
            ("", 0),
            ("SELECT 99999999999999999999999", u64::MAX),
        ] {
            assert_eq!(rows_of(tag.as_bytes()), expected, "{tag}");
        }
    }
}
