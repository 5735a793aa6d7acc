//! The record of a base backup: the object that makes it one.

use std::collections::BTreeMap;

use archive::BackupId;
use serde::{Deserialize, Serialize};
use watermark::Lsn;
use wire::replication::{BackupPoint, position, read_position};

/// Versions of the record's form: of a full backup, and of an incremental one, which a program without chains must not restore or remove alone.
const FULL: u32 = 1;
const INCREMENTAL: u32 = 2;

/// Most tablespaces of a record.
const MOST_STREAMS: usize = 4096;

/// A position on a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Position, as `X/X`.
    #[serde(serialize_with = "write_lsn", deserialize_with = "read_lsn")]
    pub(crate) lsn: Lsn,
    pub(crate) timeline: u32,
}

impl From<BackupPoint> for Point {
    fn from(point: BackupPoint) -> Point {
        Point { lsn: Lsn(point.at), timeline: point.timeline }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on timeline {}", self.lsn, self.timeline)
    }
}

fn write_lsn<S: serde::Serializer>(lsn: &Lsn, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&position(lsn.0))
}

fn read_lsn<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Lsn, D::Error> {
    let text = String::deserialize(from)?;
    read_position(&text).map(Lsn).ok_or_else(|| serde::de::Error::custom("a position is no X/X"))
}

/// The tar stream of a tablespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stream {
    /// Object identifier; None for the data directory.
    pub(crate) oid: Option<u32>,
    /// Location on the server; None for the data directory.
    pub(crate) location: Option<String>,
    /// Bytes of the stream.
    pub(crate) bytes: u64,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) id: String,
    /// Name of the backup to which this one is incremental; None for a full one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    pub(crate) label: String,
    /// Name of the node in the configuration.
    pub(crate) node: String,
    /// True if the node was a standby.
    pub(crate) standby: bool,
    pub(crate) server_version: String,
    /// Times by the clock of this program's host, in seconds since 1970.
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// The end once more, in microseconds, for the comparison with a moment.
    pub(crate) ended_micros: i64,
    pub(crate) start: Point,
    pub(crate) end: Point,
    pub(crate) streams: Vec<Stream>,
    /// Bytes of the manifest.
    pub(crate) manifest: u64,
    /// Bytes of all objects.
    pub(crate) stored: u64,
    /// Settings that a recovery needs at least as high as they were.
    pub(crate) settings: BTreeMap<String, String>,
}

/// Settings of [`Record::settings`].
pub(crate) const NEEDED: [&str; 5] = [
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
];

impl Record {
    /// Begins a record.
    pub(crate) fn begin(id: &BackupId, node: &str, label: &str, started: u64, start: Point) -> Record {
        Record {
            version: FULL,
            id: id.to_string(),
            parent: None,
            label: label.into(),
            node: node.into(),
            standby: false,
            server_version: String::new(),
            started,
            ended: started,
            ended_micros: i64::try_from(started).unwrap_or(0).saturating_mul(1_000_000),
            start,
            end: start,
            streams: Vec::new(),
            manifest: 0,
            stored: 0,
            settings: BTreeMap::new(),
        }
    }

    /// Makes the backup incremental to an earlier one.
    pub(crate) fn follow(&mut self, parent: &Record) {
        (self.version, self.parent) = (INCREMENTAL, Some(parent.id.clone()));
    }

    /// Parses a record. The error says what is wrong with it.
    pub(crate) fn parse(bytes: &[u8], id: &BackupId) -> Result<Record, String> {
        let record: Record = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let parent = match (record.version, &record.parent) {
            (FULL, None) => true,
            (INCREMENTAL, Some(parent)) => BackupId::parse(parent).is_some() && *parent != record.id,
            (FULL | INCREMENTAL, _) => false,
            (version, _) => {
                return Err(format!("is of version {version}, and this program reads {FULL} and {INCREMENTAL}"));
            }
        };
        if !parent {
            return Err("has an impossible parent".into());
        }
        if record.id != id.as_str() {
            return Err(format!("is of the backup {:?}", record.id));
        }
        if record.streams.len() > MOST_STREAMS || record.start.timeline == 0 || record.end.lsn < record.start.lsn {
            return Err("has impossible values".into());
        }
        let good = |stream: &Stream| match (&stream.oid, &stream.location) {
            (None, None) => true,
            (Some(_), Some(location)) => location.starts_with('/') && !location.contains(['\n', '\r', '\0']),
            _ => false,
        };
        let data = record.streams.iter().filter(|stream| stream.oid.is_none()).count();
        if data != 1 || !record.streams.iter().all(good) {
            return Err("has impossible tablespaces".into());
        }
        if !record.settings.iter().all(|(name, value)| NEEDED.contains(&name.as_str()) && is_number(value)) {
            return Err("has impossible settings".into());
        }
        Ok(record)
    }

    /// Returns the record's bytes.
    pub(crate) fn render(&self) -> Vec<u8> {
        // A record of plain values always has a form.
        serde_json::to_vec_pretty(self).unwrap_or_default()
    }

    /// Returns the name; None for one that is none, which no parsed record has.
    pub(crate) fn backup_id(&self) -> Option<BackupId> {
        BackupId::parse(&self.id)
    }

    /// Returns the number of bytes of all streams.
    pub(crate) fn bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.bytes).sum()
    }

    /// Returns the major version of the server.
    pub(crate) fn major(&self) -> u32 {
        let digits = self.server_version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.parse().unwrap_or(0)
    }
}

pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let id = BackupId::new(1_700_000_000, 7);
        let start = Point { lsn: Lsn(0x200_0028), timeline: 1 };
        let mut record = Record::begin(&id, "node1", "nightly", 1_700_000_000, start);
        record.streams.push(Stream { oid: None, location: None, bytes: 10 });
        record.settings.insert("max_connections".into(), "100".into());
        let text = String::from_utf8(record.render()).unwrap();
        assert!(text.contains("\"lsn\": \"0/2000028\""), "{text}");
        assert_eq!(Record::parse(text.as_bytes(), &id).unwrap(), record);
        let mut incremental = record.clone();
        incremental.follow(&Record::begin(&BackupId::new(1_600_000_000, 8), "n", "l", 0, start));
        let child = String::from_utf8(incremental.render()).unwrap();
        assert_eq!(Record::parse(child.as_bytes(), &id).unwrap(), incremental);
        for (from, to) in [
            ("\"version\": 2", "\"version\": 1"),
            ("\"version\": 2", "\"version\": 3"),
            ("20200913T122640Z-00000008", "../../etc"),
            ("20200913T122640Z-00000008", id.as_str()),
        ] {
            assert!(Record::parse(child.replace(from, to).as_bytes(), &id).is_err(), "{from} {to}");
        }
        for (from, to) in [
            ("\"version\": 1", "\"version\": 2"),
            ("0/2000028", "nowhere"),
            ("\"oid\": null", "\"oid\": 5"),
            ("\"100\"", "\"100\\nx\""),
            ("max_connections", "archive_command"),
            (id.as_str(), "20231114T221320Z-00000008"),
        ] {
            assert!(Record::parse(text.replace(from, to).as_bytes(), &id).is_err(), "{from} {to}");
        }
    }
}
