//! MySQL's GTIDs: `uuid:number`, and sets of them with holes: `3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7-9`.
//!
//! Written from MySQL's documentation and sources; not tried against a server. Tags (MySQL 8.3 and later) are refused.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::{GtidError, refuse};

/// Most servers of a set, and most intervals of each.
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

/// One transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gtid {
    /// Server where it was first committed.
    pub uuid: Uuid,
    /// Number on that server, from 1.
    pub number: u64,
}

/// A set of transactions: the intervals of each server, disjoint and in order; the end is the number after the last one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Set(BTreeMap<Uuid, Vec<(u64, u64)>>);

impl Set {
    /// Adds the transactions of a server from `start` up to, but without, `end`. False: there is no room, or the interval is invalid.
    #[must_use]
    pub fn add(&mut self, uuid: Uuid, start: u64, end: u64) -> bool {
        if start == 0 || start >= end || (self.0.len() >= MAX_ENTRIES && !self.0.contains_key(&uuid)) {
            return false;
        }
        let intervals = self.0.entry(uuid).or_default();
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

    /// True if the transaction is in the set.
    #[must_use]
    pub fn contains(&self, gtid: Gtid) -> bool {
        self.covers(gtid.uuid, gtid.number, gtid.number.saturating_add(1))
    }

    fn covers(&self, uuid: Uuid, start: u64, end: u64) -> bool {
        let Some(intervals) = self.0.get(&uuid) else { return false };
        let at = intervals.partition_point(|(_, their_end)| *their_end <= start);
        intervals.get(at).is_some_and(|held| held.0 <= start && end <= held.1)
    }

    /// True if all of `other` is in the set.
    #[must_use]
    pub fn includes(&self, other: &Set) -> bool {
        other.0.iter().all(|(uuid, intervals)| intervals.iter().all(|(start, end)| self.covers(*uuid, *start, *end)))
    }

    /// Parses the form of PREVIOUS_GTIDS and COM_BINLOG_DUMP_GTID: `servers u64, (uuid 16 bytes, intervals u64, (start u64, end u64)…)…`.
    ///
    /// # Errors
    /// Too short or too long for its counts, an invalid interval, or the form with tags.
    pub fn decode(bytes: &[u8]) -> Result<Set, GtidError> {
        let wrong = || refuse(&format!("a sequence of {} bytes", bytes.len()), "a set of GTIDs without tags");
        let mut rest = bytes;
        let number = |rest: &mut &[u8]| -> Result<u64, GtidError> {
            let (first, behind) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
            *rest = behind;
            Ok(u64::from_le_bytes(*first))
        };
        let mut set = Set::default();
        let servers = number(&mut rest)?;
        if servers > MAX_ENTRIES as u64 {
            return Err(wrong());
        }
        for _ in 0..servers {
            let (uuid, behind) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
            rest = behind;
            for _ in 0..number(&mut rest)? {
                let (start, end) = (number(&mut rest)?, number(&mut rest)?);
                if !set.add(Uuid(*uuid), start, end) {
                    return Err(wrong());
                }
            }
        }
        if rest.is_empty() { Ok(set) } else { Err(wrong()) }
    }

    /// Encodes the set; see [`Set::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.0.len() as u64).to_le_bytes().to_vec();
        for (uuid, intervals) in &self.0 {
            bytes.extend_from_slice(&uuid.0);
            bytes.extend_from_slice(&(intervals.len() as u64).to_le_bytes());
            for (start, end) in intervals {
                bytes.extend_from_slice(&start.to_le_bytes());
                bytes.extend_from_slice(&end.to_le_bytes());
            }
        }
        bytes
    }
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (uuid, intervals)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{uuid}")?;
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
        let wrong = || refuse(text, "a set of GTIDs of the form uuid:1-5:7-9,…, without tags");
        let mut set = Set::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (uuid, intervals) = part.split_once(':').ok_or_else(wrong)?;
            let uuid: Uuid = uuid.trim().parse()?;
            for interval in intervals.split(':') {
                let (start, last) = interval.split_once('-').unwrap_or((interval, interval));
                let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number < u64::MAX);
                let (start, last) = (number(start).ok_or_else(wrong)?, number(last).ok_or_else(wrong)?);
                if !set.add(uuid, start, last + 1) {
                    return Err(wrong());
                }
            }
        }
        Ok(set)
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
        ] {
            assert_eq!(text.parse::<Set>().unwrap().to_string(), shown);
        }
        for text in [A, &format!("{A}:0"), &format!("{A}:5-4"), &format!("{A}:tag:1"), "x:1", &format!("{A}:1:")] {
            assert!(text.parse::<Set>().is_err(), "{text}");
        }
    }

    proptest! {
        /// Compares with a plain set of numbers.
        #[test]
        fn a_set_is_what_was_added(ranges in prop::collection::vec((0_u8..2, 1_u64..60, 1_u64..12), 0..30), other in 1_u64..80) {
            let mut set = Set::default();
            let mut model = BTreeSet::new();
            for (server, start, length) in ranges {
                prop_assert!(set.add(Uuid([server; 16]), start, start + length));
                model.extend((start..start + length).map(|number| (server, number)));
            }
            for server in 0..2 {
                let gtid = Gtid { uuid: Uuid([server; 16]), number: other };
                prop_assert_eq!(set.contains(gtid), model.contains(&(server, other)));
            }
            prop_assert_eq!(&Set::decode(&set.encode()).unwrap(), &set);
            prop_assert_eq!(&set.to_string().parse::<Set>().unwrap(), &set);
            prop_assert!(set.includes(&set));
            let mut more = set.clone();
            prop_assert!(more.add(Uuid([7; 16]), other, other + 1));
            prop_assert!(more.includes(&set) && !set.includes(&more));
        }

        #[test]
        fn no_bytes_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), text in "\\PC{0,60}") {
            let _ = (Set::decode(&bytes), text.parse::<Set>());
        }
    }
}
