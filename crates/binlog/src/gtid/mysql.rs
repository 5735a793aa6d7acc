//! MySQL's GTIDs: `uuid:number`, or `uuid:tag:number` (MySQL 8.3 and later), and sets of them with holes:
//! `3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7-9:blue:1-3`. A tag holds for the intervals behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{GtidError, refuse};

/// Most origins of a set, and most intervals of each.
pub const MAX_ENTRIES: usize = 65_536;

/// `server_uuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<Uuid, GtidError> {
        let wrong = || refuse(text, "a UUID of 32 hexadecimal digits");
        let b = text.as_bytes();
        let dashes = [8, 13, 18, 23];
        if b.len() != 36 || dashes.iter().any(|at| b[*at] != b'-') {
            return Err(wrong());
        }
        let digits = b.iter().enumerate().filter(|(at, _)| !dashes.contains(at)).map(|(_, byte)| *byte);
        let digits: Vec<u8> = digits
            .map(|byte| (byte as char).to_digit(16).map(|digit| digit as u8))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let mut uuid = [0; 16];
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Uuid(uuid))
    }
}

/// Longest tag, in bytes.
const LONGEST_TAG: usize = 32;

/// The tag of a transaction; empty for none. Lower-case letters, digits and `_`, with no digit first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag([u8; LONGEST_TAG]);

impl Tag {
    /// Parses a tag as a server writes it; None if no server does. No bytes are the empty tag.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Tag> {
        let starts = bytes.first().is_none_or(|first| !first.is_ascii_digit());
        let valid = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_';
        if bytes.len() > LONGEST_TAG || !starts || !bytes.iter().all(valid) {
            return None;
        }
        let mut tag = Tag::default();
        tag.0[..bytes.len()].copy_from_slice(bytes);
        Some(tag)
    }

    /// True for no tag.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(LONGEST_TAG);
        &self.0[..end]
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Origin of transactions that are numbered together: a server, and a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Server where the transaction was first committed.
    pub uuid: Uuid,
    /// Tag of the transaction.
    pub tag: Tag,
}

/// One transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gtid {
    /// Server and tag.
    pub origin: Origin,
    /// Number of the origin, from 1.
    pub number: u64,
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { uuid, tag } = self.origin;
        if tag.is_empty() { write!(f, "{uuid}:{}", self.number) } else { write!(f, "{uuid}:{tag}:{}", self.number) }
    }
}

/// Takes a number of one to nine bytes in the encoding of MySQL's serialization library: the 1-bits at the low end of the first byte count the bytes
/// that follow.
pub(crate) fn variable_number(rest: &mut &[u8]) -> Option<u64> {
    let first = *rest.first()?;
    let more = first.trailing_ones() as usize;
    let (taken, behind) = rest.split_at_checked(more + 1)?;
    *rest = behind;
    if more == 8 {
        return taken[1..].try_into().ok().map(u64::from_le_bytes);
    }
    let number = taken.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Some(number >> (more + 1))
}

/// Takes a tag preceded by its length.
pub(crate) fn variable_tag(rest: &mut &[u8]) -> Option<Tag> {
    let length = usize::try_from(variable_number(rest)?).ok()?;
    let (tag, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Tag::new(tag)
}

/// A set of transactions: the intervals of each origin, disjoint and in order; the end is the number after the last one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set(BTreeMap<Origin, Vec<(u64, u64)>>);

impl Set {
    /// Adds the transactions of an origin from `start` up to, but without, `end`. False: there is no room, or the interval is invalid.
    #[must_use]
    pub fn add(&mut self, origin: Origin, start: u64, end: u64) -> bool {
        if start == 0 || start >= end || (self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&origin)) {
            return false;
        }
        let intervals = self.0.entry(origin).or_default();
        // Intervals that touch the new one are merged with it.
        let first = intervals.partition_point(|(_, their_end)| *their_end < start);
        let last = intervals.partition_point(|(their_start, _)| *their_start <= end);
        if first == last && intervals.len() >= MAX_ENTRIES {
            return false;
        }
        let start = intervals.get(first).filter(|_| first < last).map_or(start, |held| held.0.min(start));
        let end = intervals[..last].last().filter(|_| first < last).map_or(end, |held| held.1.max(end));
        intervals.splice(first..last, [(start, end)]);
        true
    }

    /// Adds one transaction. False: there is no room, or the number is invalid.
    #[must_use]
    pub fn add_one(&mut self, gtid: Gtid) -> bool {
        self.add(gtid.origin, gtid.number, gtid.number.saturating_add(1))
    }

    /// Adds all of `other`. False: there is no room.
    #[must_use]
    pub fn merge(&mut self, other: &Set) -> bool {
        other.intervals().all(|(origin, start, end)| self.add(origin, start, end))
    }

    /// True if the transaction is in the set.
    #[must_use]
    pub fn contains(&self, gtid: Gtid) -> bool {
        self.covers(gtid.origin, gtid.number, gtid.number.saturating_add(1))
    }

    fn covers(&self, origin: Origin, start: u64, end: u64) -> bool {
        let Some(intervals) = self.0.get(&origin) else { return false };
        let at = intervals.partition_point(|(_, their_end)| *their_end <= start);
        intervals.get(at).is_some_and(|held| held.0 <= start && end <= held.1)
    }

    /// True if all of `other` is in the set.
    #[must_use]
    pub fn includes(&self, other: &Set) -> bool {
        other.intervals().all(|(origin, start, end)| self.covers(origin, start, end))
    }

    /// Returns the transactions that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Set) -> Set {
        let mut left = Set::default();
        for (origin, start, end) in self.intervals() {
            let mut from = start;
            let held = other.0.get(&origin).map(Vec::as_slice).unwrap_or_default();
            for (their_start, their_end) in held.iter().filter(|held| held.1 > start && held.0 < end) {
                // An empty interval is refused, and so left out.
                let _ = left.add(origin, from, *their_start);
                from = *their_end;
            }
            let _ = left.add(origin, from, end);
        }
        left
    }

    /// Returns the transactions whose server is one of `other`'s.
    #[must_use]
    pub fn of_servers_in(&self, other: &Set) -> Set {
        let known = |uuid: Uuid| other.0.keys().any(|origin| origin.uuid == uuid);
        Set(self
            .0
            .iter()
            .filter(|(origin, _)| known(origin.uuid))
            .map(|(origin, held)| (*origin, held.clone()))
            .collect())
    }

    /// Returns the number of transactions.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.intervals().map(|(_, start, end)| end - start).fold(0, u64::saturating_add)
    }

    /// True if the set has no transaction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn intervals(&self) -> impl Iterator<Item = (Origin, u64, u64)> + '_ {
        self.0.iter().flat_map(|(origin, intervals)| intervals.iter().map(|(start, end)| (*origin, *start, *end)))
    }

    /// Parses the form of PREVIOUS_GTIDS and COM_BINLOG_DUMP_GTID: `origins u64, (uuid 16 bytes, [tag,] intervals u64, (start u64, end u64)…)…`. With
    /// tags the first and last byte of the number of origins are 1, and the six bytes between them are the number.
    ///
    /// # Errors
    /// Too short or too long for its counts, an invalid tag or interval, or another form.
    pub fn decode(bytes: &[u8]) -> Result<Set, GtidError> {
        let wrong = || refuse(&format!("a sequence of {} bytes", bytes.len()), "a set of GTIDs");
        let mut rest = bytes;
        let number = |rest: &mut &[u8]| -> Result<u64, GtidError> {
            let (first, behind) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
            *rest = behind;
            Ok(u64::from_le_bytes(*first))
        };
        let mut set = Set::default();
        let first = number(&mut rest)?;
        let (tagged, origins) = match first.to_be_bytes()[0] {
            0 => (false, first),
            1 if first & 0xff == 1 => (true, (first << 8) >> 16),
            _ => return Err(wrong()),
        };
        if origins > MAX_ENTRIES as u64 {
            return Err(wrong());
        }
        for _ in 0..origins {
            let (uuid, behind) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
            rest = behind;
            let tag = if tagged { variable_tag(&mut rest).ok_or_else(wrong)? } else { Tag::default() };
            let origin = Origin { uuid: Uuid(*uuid), tag };
            for _ in 0..number(&mut rest)? {
                let (start, end) = (number(&mut rest)?, number(&mut rest)?);
                if !set.add(origin, start, end) {
                    return Err(wrong());
                }
            }
        }
        if rest.is_empty() { Ok(set) } else { Err(wrong()) }
    }

    /// Encodes the set, with tags if it has any; see [`Set::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let tagged = self.0.keys().any(|origin| !origin.tag.is_empty());
        let origins = self.0.len() as u64;
        let first = if tagged { 1 << 56 | origins << 8 | 1 } else { origins };
        let mut bytes = first.to_le_bytes().to_vec();
        for (origin, intervals) in &self.0 {
            bytes.extend_from_slice(&origin.uuid.0);
            if tagged {
                let tag = origin.tag.as_bytes();
                // At most 32: one byte, without a 1-bit at its low end.
                bytes.push((tag.len() as u8) << 1);
                bytes.extend_from_slice(tag);
            }
            bytes.extend_from_slice(&(intervals.len() as u64).to_le_bytes());
            for (start, end) in intervals {
                bytes.extend_from_slice(&start.to_le_bytes());
                bytes.extend_from_slice(&end.to_le_bytes());
            }
        }
        bytes
    }

    /// Parses `@@gtid_owned`, the transactions under way: as a set, with the thread behind each number: `uuid:7#12:8#13`.
    ///
    /// # Errors
    /// Another form.
    pub fn parse_owned(text: &str) -> Result<Set, GtidError> {
        Set::parse(text, |interval| interval.split_once('#').map_or(interval, |(number, _)| number))
    }

    fn parse(text: &str, interval_of: impl Fn(&str) -> &str) -> Result<Set, GtidError> {
        let wrong = || refuse(text, "a set of GTIDs of the form uuid:1-5:7-9:tag:1-3,…");
        let mut set = Set::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (uuid, intervals) = part.split_once(':').ok_or_else(wrong)?;
            let mut origin = Origin { uuid: uuid.trim().parse()?, tag: Tag::default() };
            // A tag must have an interval behind it.
            let mut open = true;
            for interval in intervals.split(':').map(str::trim) {
                if interval.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
                    origin.tag = Tag::new(interval.to_ascii_lowercase().as_bytes()).ok_or_else(wrong)?;
                    open = true;
                    continue;
                }
                open = false;
                let interval = interval_of(interval);
                let (start, last) = interval.split_once('-').unwrap_or((interval, interval));
                let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number < u64::MAX);
                let (start, last) = (number(start).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?);
                if !set.add(origin, start, last + 1) {
                    return Err(wrong());
                }
            }
            if open {
                return Err(wrong());
            }
        }
        Ok(set)
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last: Option<Uuid> = None;
        for (origin, intervals) in &self.0 {
            if last != Some(origin.uuid) {
                let comma = if last.is_none() { "" } else { "," };
                write!(f, "{comma}{}", origin.uuid)?;
                last = Some(origin.uuid);
            }
            if !origin.tag.is_empty() {
                write!(f, ":{}", origin.tag)?;
            }
            for (start, end) in intervals {
                if *end == start + 1 { write!(f, ":{start}")? } else { write!(f, ":{start}-{}", end - 1)? }
            }
        }
        Ok(())
    }
}

impl FromStr for Set {
    type Err = GtidError;

    fn from_str(text: &str) -> Result<Set, GtidError> {
        Set::parse(text, |interval| interval)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const A: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn texts() {
        for (text, shown) in [
            ("", String::new()),
            (&*format!("{A}:1"), format!("{A}:1")),
            (&format!("{A}:5-7:1-4"), format!("{A}:1-7")),
            (&format!("{A}:1-5:7-9, {A}:11"), format!("{A}:1-5:7-9:11")),
            (&format!("{A}:1-5:Blue:1:3-4:_a:7"), format!("{A}:1-5:_a:7:blue:1:3-4")),
            (&format!("{A}:blue:1-2, {A}:1"), format!("{A}:1:blue:1-2")),
        ] {
            assert_eq!(text.parse::<Set>().unwrap().to_string(), shown);
        }
        for text in [A, &format!("{A}:0"), &format!("{A}:5-4"), &format!("{A}:tag"), "x:1", &format!("{A}:1:")] {
            assert!(text.parse::<Set>().is_err(), "{text}");
        }
    }

    fn origin(server: u8) -> Origin {
        // Half of them with a tag.
        Origin {
            uuid: Uuid([server / 2; 16]),
            tag: Tag::new(if server.is_multiple_of(2) { b"" } else { b"blue" }).unwrap(),
        }
    }

    /// Bytes of MySQL 9.7: the list at the start of a file.
    #[test]
    fn a_list_as_a_server_writes_it() {
        let hex = "0102000000000001affc0d61ead311f1a5cd02fc00000001000100000000000000010000000000000009000000000000\
                   00affc0d61ead311f1a5cd02fc000000010c6b705f746167010000000000000001000000000000000300000000000000";
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
        let set = Set::decode(&bytes).unwrap();
        assert_eq!(set.to_string(), "affc0d61-ead3-11f1-a5cd-02fc00000001:1-8:kp_tag:1-2");
        assert_eq!(set.encode(), bytes);
    }

    #[test]
    fn transactions_under_way() {
        let owned = Set::parse_owned(&format!("{A}:7#12:9#13:blue:1#14")).unwrap();
        assert_eq!(owned.to_string(), format!("{A}:7:9:blue:1"));
    }

    #[test]
    fn numbers_of_the_serialization_library() {
        for (bytes, number) in
            [(&[0x04][..], 2), (&[0xbd, 0x02], 0xaf), (&[0xff, 1, 0, 0, 0, 0, 0, 0, 0x80], 1 << 63 | 1)]
        {
            let mut rest = bytes;
            assert_eq!((variable_number(&mut rest), rest.len()), (Some(number), 0));
            assert_eq!(variable_number(&mut &bytes[..bytes.len() - 1]), None);
        }
    }

    proptest! {
        /// Compares with a plain set of numbers.
        #[test]
        fn a_set_is_what_was_added(ranges in prop::collection::vec((0_u8..4, 1_u64..60, 1_u64..12), 0..30), other in 1_u64..80) {
            let mut set = Set::default();
            let mut model = BTreeSet::new();
            for (server, start, length) in ranges {
                prop_assert!(set.add(origin(server), start, start + length));
                model.extend((start..start + length).map(|number| (server, number)));
            }
            for server in 0..4 {
                let gtid = Gtid { origin: origin(server), number: other };
                prop_assert_eq!(set.contains(gtid), model.contains(&(server, other)));
            }
            prop_assert_eq!(&Set::decode(&set.encode()).unwrap(), &set);
            prop_assert_eq!(&set.to_string().parse::<Set>().unwrap(), &set);
            prop_assert!(set.includes(&set));
            let mut more = set.clone();
            let one = Gtid { origin: origin(14), number: other };
            prop_assert!(more.add_one(one));
            prop_assert!(more.includes(&set) && !set.includes(&more));
            prop_assert_eq!(more.without(&set).to_string(), one.to_string());
            prop_assert!(set.without(&more).is_empty());
            prop_assert_eq!(more.of_servers_in(&set), set.clone());
            let mut merged = set.without(&more);
            prop_assert!(merged.merge(&more));
            prop_assert_eq!(merged, more);
        }

        #[test]
        fn no_bytes_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), text in "\\PC{0,60}") {
            let _ = (Set::decode(&bytes), text.parse::<Set>(), Set::parse_owned(&text));
        }
    }
}
