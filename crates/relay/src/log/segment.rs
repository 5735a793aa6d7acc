//! Segments: mapping of positions and timelines to file names.

use std::fmt;
use std::str::FromStr;

use watermark::Lsn;

use super::LogError;

/// Bytes of a WAL page; the only supported size (a PostgreSQL built with another is refused at its first page).
pub const PAGE: u64 = 8192;

/// A timeline: the branch of history that a promotion begins. From 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeline(pub u32);

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Timeline {
    /// Returns the name of this timeline's history file.
    #[must_use]
    pub fn history_name(self) -> String {
        format!("{:08X}.history", self.0)
    }

    /// Parses a history file's name into its timeline.
    #[must_use]
    pub fn of_history_name(name: &str) -> Option<Timeline> {
        let digits = name.strip_suffix(".history")?;
        hex(digits, 8).and_then(|timeline| u32::try_from(timeline).ok()).filter(|t| *t > 0).map(Timeline)
    }
}

/// `wal_segment_size`: bytes of a segment, a power of two from 1 MB to 1 GB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentSize(u32);

impl SegmentSize {
    /// 16 MB, the default of `initdb`.
    pub const DEFAULT: SegmentSize = SegmentSize(16 << 20);

    /// # Errors
    /// [`LogError::SegmentSize`] unless `bytes` is a power of two from 1 MB to 1 GB.
    pub fn new(bytes: u64) -> Result<SegmentSize, LogError> {
        if bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes) {
            Ok(SegmentSize(bytes as u32))
        } else {
            Err(LogError::SegmentSize { bytes })
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// Returns the number of the segment that holds `at`.
    #[must_use]
    pub fn number(self, at: Lsn) -> u64 {
        at.0 >> self.0.trailing_zeros()
    }

    /// Returns the start of the segment that holds `at`.
    #[must_use]
    pub fn start_of(self, at: Lsn) -> Lsn {
        Lsn(at.0 & !(self.bytes() - 1))
    }

    /// Returns the offset of `at` in its segment.
    #[must_use]
    pub fn offset(self, at: Lsn) -> u64 {
        at.0 & (self.bytes() - 1)
    }

    /// Returns the start of segment `number`.
    #[must_use]
    pub fn start(self, number: u64) -> Lsn {
        Lsn(number << self.0.trailing_zeros())
    }

    /// Returns the highest segment number whose bytes all have a position.
    #[must_use]
    pub fn last_number(self) -> u64 {
        (u64::MAX >> self.0.trailing_zeros()) - 1
    }

    /// Returns the number of segments in 4 GB: the base of the two halves of a file's name.
    fn per_id(self) -> u64 {
        (1 << 32) / self.bytes()
    }
}

/// One segment of one timeline. Ordered by position, then timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment {
    /// Position divided by the segment size.
    pub number: u64,
    /// Timeline of its bytes.
    pub timeline: Timeline,
}

impl Segment {
    /// Returns the name of its file, as in `pg_wal`: timeline, high and low half of the number, 8 hexadecimal digits each.
    #[must_use]
    pub fn name(self, size: SegmentSize) -> String {
        let (high, low) = (self.number / size.per_id(), self.number % size.per_id());
        format!("{:08X}{high:08X}{low:08X}", self.timeline.0)
    }

    /// Parses a segment's file name; `None` for any other name.
    #[must_use]
    pub fn of_name(name: &str, size: SegmentSize) -> Option<Segment> {
        if name.len() != 24 || !name.is_ascii() {
            return None;
        }
        let timeline = u32::try_from(hex(&name[..8], 8)?).ok().filter(|t| *t > 0).map(Timeline)?;
        let (high, low) = (hex(&name[8..16], 8)?, hex(&name[16..], 8)?);
        let number = high * size.per_id() + low;
        (low < size.per_id() && number <= size.last_number()).then_some(Segment { number, timeline })
    }
}

/// Parses exactly `digits` upper-case hexadecimal digits, as PostgreSQL writes them.
fn hex(text: &str, digits: usize) -> Option<u64> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
    if good { u64::from_str_radix(text, 16).ok() } else { None }
}

impl FromStr for SegmentSize {
    type Err = LogError;

    /// Parses bytes, in decimal.
    fn from_str(text: &str) -> Result<SegmentSize, LogError> {
        SegmentSize::new(text.parse().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const MB16: SegmentSize = SegmentSize::DEFAULT;

    #[test]
    fn names_as_postgresql_does() {
        let mb1 = SegmentSize::new(1 << 20).unwrap();
        let gb1 = SegmentSize::new(1 << 30).unwrap();
        for (size, timeline, lsn, name) in [
            (MB16, 1, "0/1000000", "000000010000000000000001"),
            (MB16, 1, "0/1FFFFFF", "000000010000000000000001"),
            (MB16, 0xAB, "16/B374D848", "000000AB00000016000000B3"),
            (MB16, 1, "1/0", "000000010000000100000000"),
            (mb1, 1, "1/FFF00000", "000000010000000100000FFF"),
            (gb1, 2, "5/C0000000", "000000020000000500000003"),
        ] {
            let lsn: Lsn = lsn.parse().unwrap();
            let segment = Segment { number: size.number(lsn), timeline: Timeline(timeline) };
            assert_eq!(segment.name(size), name);
            assert_eq!(Segment::of_name(name, size), Some(segment));
        }
    }

    #[test]
    fn what_is_not_a_segment() {
        for name in [
            "",
            "00000001000000000000000",
            "0000000100000000000000011",
            "00000001000000000000000g",
            "00000001000000000000000a",
            "000000010000000000000100",
            "000000000000000000000001",
            "00000001FFFFFFFF000000FF",
            "000000010000000000000001.partial",
            "+0000001000000000000000A",
            "00000002.history",
            "é0000001000000000000000",
        ] {
            assert_eq!(Segment::of_name(name, MB16), None, "{name:?}");
        }
    }

    #[test]
    fn history_names() {
        assert_eq!(Timeline(10).history_name(), "0000000A.history");
        assert_eq!(Timeline::of_history_name("0000000A.history"), Some(Timeline(10)));
        for name in ["A.history", "00000000.history", "0000000A.historyx", "0000000a.history", ".history"] {
            assert_eq!(Timeline::of_history_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn sizes() {
        for (bytes, good) in [
            (0, false),
            (1 << 19, false),
            (1 << 20, true),
            ((16 << 20) + 1, false),
            (1 << 30, true),
            (1 << 31, false),
            (u64::MAX, false),
        ] {
            assert_eq!(SegmentSize::new(bytes).is_ok(), good, "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn name_round_trip(shift in 20_u32..=30, timeline in 1_u32.., lsn in 0..u64::MAX >> 1) {
            let size = SegmentSize::new(1 << shift).unwrap();
            let segment = Segment { number: size.number(Lsn(lsn)), timeline: Timeline(timeline) };
            prop_assert_eq!(Segment::of_name(&segment.name(size), size), Some(segment));
            prop_assert_eq!(size.start_of(Lsn(lsn)).0 + size.offset(Lsn(lsn)), lsn);
            prop_assert_eq!(size.start(size.number(Lsn(lsn))), size.start_of(Lsn(lsn)));
        }

        #[test]
        fn never_panics(name: String, shift in 20_u32..=30) {
            let _ = Segment::of_name(&name, SegmentSize::new(1 << shift).unwrap());
            let _ = Timeline::of_history_name(&name);
        }
    }
}
