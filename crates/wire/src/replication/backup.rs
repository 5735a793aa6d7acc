//! `BASE_BACKUP`: the command in the syntax of each version, and the messages of its copy.
//!
//! ```text
//!  client                                 server
//!  Query "BASE_BACKUP …"    ──▶           one row: start, timeline; then a row for each tablespace
//!                           ◀── 13, 14:   a copy for each tablespace, and one for the manifest
//!                           ◀── 15 …:     one copy, whose messages begin with `n`, `m`, `d` or `p`
//!                           ◀──           one row: end, timeline
//! ```
//!
//! Source of the formats: PostgreSQL documentation, "Streaming Replication Protocol", of versions 13 to 19.

use super::{Rows, read_position};

/// Longest name of an archive or path of a tablespace in a message, in bytes.
const MAX_NAME: usize = 4096;

/// First major version with incremental backups.
pub const INCREMENTAL_SINCE: u32 = 17;

/// Slowest and fastest rate that servers accept, in kB/s.
pub const RATES: std::ops::RangeInclusive<u32> = 32..=1_048_576;

/// Options of a base backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupOptions {
    /// Label, in `backup_label`.
    pub label: String,
    /// True to checkpoint at once; false to spread the checkpoint's writes.
    pub fast: bool,
    /// Limit of the server's rate, in kB/s: of [`RATES`].
    pub max_rate: Option<u32>,
    /// True for the blocks alone that changed since the backup whose manifest was uploaded before ([`INCREMENTAL_SINCE`]).
    pub incremental: bool,
}

impl BackupOptions {
    /// Returns the command for a server of major version `version`. The server adds a manifest with CRC-32C and a `tablespace_map`, and waits for no
    /// archive.
    #[must_use]
    pub fn command(&self, version: u32) -> String {
        let label = self.label.replace('\'', "''");
        if version >= 15 {
            let checkpoint = if self.fast { "fast" } else { "spread" };
            let rate = self.max_rate.map(|rate| format!(", MAX_RATE {rate}")).unwrap_or_default();
            let incremental = if self.incremental { ", INCREMENTAL" } else { "" };
            return format!(
                "BASE_BACKUP (LABEL '{label}', PROGRESS true, CHECKPOINT '{checkpoint}', WAIT false, TABLESPACE_MAP true, \
                 MANIFEST 'yes', MANIFEST_CHECKSUMS 'CRC32C'{rate}{incremental})"
            );
        }
        let fast = if self.fast { " FAST" } else { "" };
        let rate = self.max_rate.map(|rate| format!(" MAX_RATE {rate}")).unwrap_or_default();
        format!(
            "BASE_BACKUP LABEL '{label}' PROGRESS{fast} NOWAIT{rate} TABLESPACE_MAP MANIFEST 'yes' MANIFEST_CHECKSUMS 'CRC32C'"
        )
    }
}

/// A position of a base backup: its start or its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupPoint {
    /// Position.
    pub at: u64,
    /// Timeline.
    pub timeline: u32,
}

/// A tablespace of a base backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupTablespace {
    /// Object identifier and location; None for the data directory.
    pub place: Option<(u32, String)>,
    /// Size in kB, as the server estimates it.
    pub size: Option<u64>,
}

impl Rows {
    /// Decodes the row as a start or an end of a base backup.
    #[must_use]
    pub fn backup_point(&self) -> Option<BackupPoint> {
        let timeline = self.text(1)?.parse().ok().filter(|timeline| *timeline > 0)?;
        Some(BackupPoint { at: read_position(self.text(0)?)?, timeline })
    }

    /// Decodes the row as a tablespace of a base backup.
    #[must_use]
    pub fn backup_tablespace(&self) -> Option<BackupTablespace> {
        let place = match self.0.first()? {
            None => None,
            Some(_) => {
                let location = self.text(1)?;
                if location.len() > MAX_NAME || !location.starts_with('/') {
                    return None;
                }
                Some((self.text(0)?.parse().ok()?, location.to_owned()))
            }
        };
        let size = match self.0.get(2) {
            Some(Some(_)) => Some(self.text(2)?.parse().ok()?),
            _ => None,
        };
        Some(BackupTablespace { place, size })
    }
}

/// A message of the copy of a server of version 15 or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupMessage<'a> {
    /// A new archive: its name, `base.tar` or `OID.tar`.
    Archive(&'a str),
    /// The manifest begins.
    Manifest,
    /// Data of the archive or the manifest.
    Data(&'a [u8]),
    /// Bytes of the current archive that the server has processed.
    Progress,
}

impl<'a> BackupMessage<'a> {
    /// Decodes the payload of a `CopyData` message; None if it is malformed.
    #[must_use]
    pub fn read(payload: &'a [u8]) -> Option<BackupMessage<'a>> {
        let (kind, rest) = payload.split_first()?;
        match kind {
            b'n' => {
                let end = rest.iter().position(|byte| *byte == 0).filter(|end| *end <= MAX_NAME)?;
                // The location of the tablespace follows; the rows had it.
                let location = &rest[end + 1..];
                let good = location.len() <= MAX_NAME && location.last() == Some(&0);
                good.then(|| std::str::from_utf8(&rest[..end]).ok().map(BackupMessage::Archive))?
            }
            b'm' if rest.is_empty() => Some(BackupMessage::Manifest),
            b'd' => Some(BackupMessage::Data(rest)),
            b'p' if rest.len() == 8 => Some(BackupMessage::Progress),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_command_in_both_syntaxes() {
        let options = BackupOptions { label: "it's".into(), fast: true, max_rate: Some(1024), incremental: false };
        let slow = BackupOptions { label: "l".into(), fast: false, max_rate: None, incremental: false };
        let incremental = BackupOptions { incremental: true, ..options.clone() };
        let command = incremental.command(INCREMENTAL_SINCE);
        assert!(command.ends_with("MAX_RATE 1024, INCREMENTAL)"), "{command}");
        for (options, version, expected) in [
            (&options, 14, "BASE_BACKUP LABEL 'it''s' PROGRESS FAST NOWAIT MAX_RATE 1024 TABLESPACE_MAP"),
            (&slow, 13, "BASE_BACKUP LABEL 'l' PROGRESS NOWAIT TABLESPACE_MAP MANIFEST 'yes'"),
            (
                &options,
                15,
                "BASE_BACKUP (LABEL 'it''s', PROGRESS true, CHECKPOINT 'fast', WAIT false, TABLESPACE_MAP true",
            ),
            (&slow, 19, "BASE_BACKUP (LABEL 'l', PROGRESS true, CHECKPOINT 'spread', WAIT false"),
        ] {
            let command = options.command(version);
            assert!(command.starts_with(expected), "{command}");
            assert_eq!(command.contains("MAX_RATE"), options.max_rate.is_some(), "{command}");
        }
    }

    #[test]
    fn rows() {
        let row = |columns: &[Option<&str>]| Rows(columns.iter().map(|text| text.map(|text| text.into())).collect());
        let point = row(&[Some("0/2000028"), Some("3")]).backup_point();
        assert_eq!(point, Some(BackupPoint { at: 0x200_0028, timeline: 3 }));
        assert_eq!(row(&[Some("0/2000028"), Some("0")]).backup_point(), None);
        let base = row(&[None, None, Some("123")]).backup_tablespace();
        assert_eq!(base, Some(BackupTablespace { place: None, size: Some(123) }));
        let other = row(&[Some("16400"), Some("/srv/fast"), None]).backup_tablespace().unwrap();
        assert_eq!(other, BackupTablespace { place: Some((16400, "/srv/fast".into())), size: None });
        for bad in [row(&[Some("x"), Some("/srv"), None]), row(&[Some("1"), Some("srv"), None]), row(&[])] {
            assert_eq!(bad.backup_tablespace(), None, "{bad:?}");
        }
    }

    #[test]
    fn messages() {
        for (payload, expected) in [
            (&b"nbase.tar\0\0"[..], Some(BackupMessage::Archive("base.tar"))),
            (b"n16400.tar\0/srv/fast\0", Some(BackupMessage::Archive("16400.tar"))),
            (b"nbase.tar", None),
            (b"nbase.tar\0x", None),
            (b"m", Some(BackupMessage::Manifest)),
            (b"mm", None),
            (b"dabc", Some(BackupMessage::Data(b"abc"))),
            (b"d", Some(BackupMessage::Data(b""))),
            (b"p\0\0\0\0\0\0\0\x01", Some(BackupMessage::Progress)),
            (b"p", None),
            (b"x", None),
            (b"", None),
        ] {
            assert_eq!(BackupMessage::read(payload), expected, "{payload:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(payload in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = BackupMessage::read(&payload);
        }
    }
}
