//! Names: files of WAL, and the objects that hold them.

use std::fmt;
use std::ops::Range;

/// Most raw bytes that one object covers. A larger segment is archived in several blocks, so that memory stays bounded.
pub const BLOCK: u64 = 16 << 20;

/// Path of the object that identifies the archive's cluster.
pub const IDENTITY: &str = "kingpost-archive";

/// Path of the object by which a relay finds out whether the store can create without overwriting.
pub const PROBE: &str = "probe";

/// A file of `pg_wal` that an archive holds: a segment or a timeline's history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(String);

impl FileName {
    /// Parses the name of a segment, 24 upper-case hexadecimal digits, or of a history file.
    #[must_use]
    pub fn parse(name: &str) -> Option<FileName> {
        let digits = name.strip_suffix(".history").filter(|digits| digits.len() == 8).unwrap_or(name);
        let good = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
        (good && (digits.len() == 24 || digits.len() < name.len())).then(|| FileName(name.to_owned()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the history file of a timeline.
    #[must_use]
    pub fn is_history(&self) -> bool {
        self.0.len() != 24
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A range of bytes of a file of WAL: the content of one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The file.
    pub file: FileName,
    /// Offset of the first byte.
    pub from: u64,
    /// Offset behind the last byte.
    pub to: u64,
}

impl Span {
    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.to - self.from
    }
}

/// A kind of object with content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The object that identifies the archive.
    Identity,
    /// The object that a relay tries to create twice.
    Probe,
    /// A whole block of a segment; the whole segment, if that is no larger than [`BLOCK`].
    Block,
    /// A part of a block that is still being written, or never became whole.
    Part,
    /// The history file of a timeline.
    History,
}

/// Returns the ranges of the blocks of a segment of this size.
pub fn blocks(segment_size: u64) -> impl Iterator<Item = Range<u64>> {
    (0..segment_size.div_ceil(BLOCK)).map(move |n| n * BLOCK..((n + 1) * BLOCK).min(segment_size))
}

/// Returns the path of the object for a block. `segment_size`: the cluster's.
#[must_use]
pub fn block_path(span: &Span, segment_size: u64) -> String {
    let directory = block_directory(&span.file);
    if segment_size <= BLOCK {
        return format!("{directory}/{}", span.file);
    }
    format!("{directory}/{}.{:02X}", span.file, span.from / BLOCK)
}

/// Returns the directory of a segment's blocks: by timeline and high half of the number, so that a listing stays short.
#[must_use]
pub fn block_directory(file: &FileName) -> String {
    format!("wal/{}", &file.as_str()[..file.as_str().len().min(16)])
}

/// Returns the path of the object for a part.
#[must_use]
pub fn part_path(span: &Span) -> String {
    format!("{}/{:08X}-{:08X}", part_directory(&span.file), span.from, span.to)
}

/// Returns the directory of a segment's parts.
#[must_use]
pub fn part_directory(file: &FileName) -> String {
    format!("part/{file}")
}

/// Directory of the history files.
pub const HISTORIES: &str = "history";

/// Returns the path of the object for a history file.
#[must_use]
pub fn history_path(file: &FileName) -> String {
    format!("{HISTORIES}/{file}")
}

/// Parses the path of a part.
#[must_use]
pub fn part_of_path(path: &str) -> Option<Span> {
    let (file, range) = path.strip_prefix("part/")?.split_once('/')?;
    let (from, to) = range.split_once('-')?;
    let number = |digits: &str| {
        let good = digits.len() == 8 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
        if good { u64::from_str_radix(digits, 16).ok() } else { None }
    };
    let (from, to) = (number(from)?, number(to)?);
    let file = FileName::parse(file).filter(|file| !file.is_history())?;
    (from < to && to - from <= BLOCK).then_some(Span { file, from, to })
}

/// Chooses the parts that give the longest run of bytes from `from` on: in order, each with the bytes that it adds. `parts` are of one file.
#[must_use]
pub fn chain(parts: &[Span], from: u64) -> Vec<Span> {
    let mut chosen = Vec::new();
    let mut at = from;
    while let Some(best) = parts.iter().filter(|part| part.from <= at && part.to > at).max_by_key(|part| part.to) {
        chosen.push(best.clone());
        at = best.to;
    }
    chosen
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const SEGMENT: &str = "000000010000000A000000FF";

    fn span(from: u64, to: u64) -> Span {
        Span { file: FileName::parse(SEGMENT).unwrap(), from, to }
    }

    #[test]
    fn names() {
        for (name, history) in [(SEGMENT, false), ("0000000A.history", true)] {
            let parsed = FileName::parse(name).unwrap();
            assert_eq!((parsed.as_str(), parsed.is_history()), (name, history));
        }
        for name in [
            "",
            ".history",
            "000000010000000A000000F",
            "000000010000000a000000ff",
            "0000000A.historyx",
            "000000010000000A000000FF.partial",
            "000000010000000A000000FF.history",
            "../../../../../../../aa",
            "0000000A/history",
        ] {
            assert_eq!(FileName::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn paths() {
        let mb = 1 << 20;
        assert_eq!(block_path(&span(0, 16 * mb), 16 * mb), format!("wal/000000010000000A/{SEGMENT}"));
        assert_eq!(block_path(&span(16 * mb, 32 * mb), 64 * mb), format!("wal/000000010000000A/{SEGMENT}.01"));
        assert_eq!(part_path(&span(0x2000, 0x1_0000)), format!("part/{SEGMENT}/00002000-00010000"));
        assert!(blocks(mb).eq(std::iter::once(0..mb)));
        assert_eq!(blocks(64 * mb).count(), 4);
    }

    #[test]
    fn what_is_no_part() {
        for path in [
            "part/0000000A.history/00000000-00000001",
            "part/000000010000000A000000FF/00000001-00000001",
            "part/000000010000000A000000FF/00000000-01000001",
            "part/000000010000000A000000FF/0-1",
            "wal/000000010000000A000000FF/00000000-00000001",
        ] {
            assert_eq!(part_of_path(path), None, "{path}");
        }
    }

    #[test]
    fn the_longest_run() {
        let parts = [span(0, 10), span(10, 20), span(0, 15), span(15, 18), span(30, 40)];
        for (from, expected) in [(0, vec![span(0, 15), span(10, 20)]), (20, vec![]), (35, vec![span(30, 40)])] {
            assert_eq!(chain(&parts, from), expected, "from {from}");
        }
        assert_eq!(chain(&[span(5, 9)], 0), [], "a run begins where it is asked for");
    }

    proptest! {
        #[test]
        fn a_part_round_trips(from in 0_u64..1 << 30, bytes in 1..=BLOCK) {
            let span = span(from, from + bytes);
            prop_assert_eq!(part_of_path(&part_path(&span)), Some(span));
        }

        #[test]
        fn never_panics(path: String) {
            let _ = (FileName::parse(&path), part_of_path(&path), part_of_path(&format!("part/{SEGMENT}/{path}")));
        }
    }
}
