//! Names: files of WAL, and the objects that hold them.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

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

    /// Makes the name of a part of a base backup.
    #[must_use]
    pub fn of_backup(id: &BackupId, part: BackupPart) -> FileName {
        FileName(format!("{id}.{part}"))
    }

    /// Parses the name of a part of a base backup.
    #[must_use]
    pub fn parse_backup(name: &str) -> Option<(BackupId, BackupPart)> {
        let (id, part) = name.split_once('.')?;
        Some((BackupId::parse(id)?, BackupPart::parse(part)?))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for the history file of a timeline.
    #[must_use]
    pub fn is_history(&self) -> bool {
        self.0.ends_with(".history")
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
    /// A piece of a base backup: of the tar stream of a tablespace, or of the manifest.
    Base,
    /// The record of a base backup, which makes it one: written last.
    Record,
    /// The mark of a base backup that is being made or removed.
    Mark,
    /// A turn in the schedule of base backups: its number in the span, its backup in the file's name.
    Turn,
}

impl Kind {
    /// True for the objects of a base backup.
    #[must_use]
    pub fn is_backup(self) -> bool {
        matches!(self, Kind::Base | Kind::Record | Kind::Mark | Kind::Turn)
    }
}

/// End of the year 9999: the last second with a name.
const LAST_SECOND: u64 = 253_402_300_799;

/// Name of a base backup: the time of its start, `20261128T164437Z`, and eight random digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId(String);

impl BackupId {
    /// Makes a name. `seconds`: the time since 1970.
    #[must_use]
    pub fn new(seconds: u64, random: u32) -> BackupId {
        let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND));
        let time = humantime::format_rfc3339_seconds(time).to_string().replace(['-', ':'], "");
        BackupId(format!("{time}-{random:08x}"))
    }

    /// Parses a name.
    #[must_use]
    pub fn parse(text: &str) -> Option<BackupId> {
        const FORM: &str = "ddddddddTddddddZ-xxxxxxxx";
        let fits = |(byte, form): (u8, u8)| match form {
            b'd' => byte.is_ascii_digit(),
            b'x' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            form => byte == form,
        };
        (text.len() == FORM.len() && text.bytes().zip(FORM.bytes()).all(fits)).then(|| BackupId(text.to_owned()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A part of a base backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackupPart {
    /// The tar stream of a tablespace, by its index in the record.
    Stream(u16),
    /// The server's manifest.
    Manifest,
    /// The record.
    Record,
    /// The mark.
    Mark,
    /// The turn.
    Turn,
}

impl BackupPart {
    fn parse(text: &str) -> Option<BackupPart> {
        match text {
            "manifest" => Some(BackupPart::Manifest),
            "record" => Some(BackupPart::Record),
            "mark" => Some(BackupPart::Mark),
            "turn" => Some(BackupPart::Turn),
            digits if digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().map(BackupPart::Stream)
            }
            _ => None,
        }
    }
}

impl fmt::Display for BackupPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupPart::Stream(index) => write!(f, "{index:05}"),
            BackupPart::Manifest => f.write_str("manifest"),
            BackupPart::Record => f.write_str("record"),
            BackupPart::Mark => f.write_str("mark"),
            BackupPart::Turn => f.write_str("turn"),
        }
    }
}

/// Directory of the records of base backups.
pub const RECORDS: &str = "backup";

/// Directory of the data of base backups.
pub const BASES: &str = "base";

/// Pieces of one directory: a listing stays short.
const PIECES: u64 = 4096;

/// Returns the path of an object of a base backup.
#[must_use]
pub fn backup_path(id: &BackupId, part: BackupPart, from: u64) -> String {
    match part {
        BackupPart::Record => format!("{RECORDS}/{id}"),
        BackupPart::Mark => format!("{BASES}/{id}/mark"),
        BackupPart::Turn => turn_path(from),
        BackupPart::Stream(_) | BackupPart::Manifest => {
            let piece = from / BLOCK;
            format!("{BASES}/{id}/{part}-{:04X}/{:03X}", piece / PIECES, piece % PIECES)
        }
    }
}

/// Directory of the turns in the schedule of base backups.
pub const TURNS: &str = "turn";

/// Returns the path of a turn.
#[must_use]
pub fn turn_path(number: u64) -> String {
    format!("{TURNS}/{number:012}")
}

/// Parses the path of a turn.
#[must_use]
pub fn turn_of_path(path: &str) -> Option<u64> {
    let digits = path.strip_prefix(TURNS)?.strip_prefix('/')?;
    let good = digits.len() >= 12 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if good { digits.parse().ok() } else { None }
}

/// Returns the name of the base backup that a path of a record, or of a directory of data, is of.
#[must_use]
pub fn backup_of_path(path: &str) -> Option<BackupId> {
    let (directory, id) = path.split_once('/')?;
    if directory == RECORDS || directory == BASES { BackupId::parse(id) } else { None }
}

/// Returns the ranges of the blocks of a segment of this size.
pub fn blocks(segment_size: u64) -> impl Iterator<Item = Range<u64>> {
    (0..segment_size.div_ceil(BLOCK)).map(move |n| n * BLOCK..((n + 1) * BLOCK).min(segment_size))
}

/// Returns the least position above `position` at which a block is whole.
#[must_use]
pub fn next_whole(position: u64, segment_size: u64) -> u64 {
    let block = BLOCK.min(segment_size).max(1);
    (position / block).saturating_add(1).saturating_mul(block)
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

    #[test]
    fn a_block_is_whole_at_its_end_alone() {
        for (position, segment, whole) in [
            (0, BLOCK, BLOCK),
            (BLOCK - 1, BLOCK, BLOCK),
            (BLOCK, BLOCK, 2 * BLOCK),
            (5 << 20, 1 << 20, 6 << 20),
            ((1 << 30) + 1, 1 << 30, (1 << 30) + BLOCK),
        ] {
            assert_eq!(next_whole(position, segment), whole, "{position} of {segment}");
        }
    }

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

    #[test]
    fn backups() {
        let id = BackupId::new(1_795_884_277, 0x9f);
        assert_eq!(id.as_str(), "20261128T164437Z-0000009f");
        for (seconds, day) in [(0, "19700101"), (951_782_400, "20000229"), (4_107_542_399, "21000228")] {
            assert_eq!(&BackupId::new(seconds, 0).as_str()[..8], day);
        }
        for part in [BackupPart::Stream(7), BackupPart::Manifest, BackupPart::Record, BackupPart::Mark] {
            let name = FileName::of_backup(&id, part);
            assert_eq!(FileName::parse_backup(name.as_str()), Some((id.clone(), part)));
            assert_eq!(FileName::parse(name.as_str()), None);
        }
        let path = |part, from| backup_path(&id, part, from);
        assert_eq!(path(BackupPart::Stream(7), 4097 * BLOCK), format!("base/{id}/00007-0001/001"));
        assert_eq!(path(BackupPart::Manifest, 0), format!("base/{id}/manifest-0000/000"));
        assert_eq!(backup_of_path(&path(BackupPart::Record, 0)), Some(id.clone()));
        assert_eq!(backup_of_path(&format!("base/{id}")), Some(id));
        for text in ["", "20261128T164437Z-0000009F", "20261128T164437Z-0000009f/..", "../../../../../../../../x"] {
            assert_eq!(BackupId::parse(text), None, "{text}");
        }
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
