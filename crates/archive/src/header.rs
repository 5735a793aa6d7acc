//! The header of every object: 512 bytes of text, so that an object can be understood, and read without Kingpost (`tail -c +513 | zstd -d`).
//!
//! ```text
//! kingpost-archive 1
//! kind block
//! system-id 7339581467219530125
//! segment-size 16777216
//! file 000000010000000000000001
//! from 0
//! to 16777216
//! codec zstd
//! encryption none
//! stored 1234567
//! sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//! crc32c 1b2c3d4e
//! ```
//!
//! `sha256` is of the raw bytes, `stored` the length of what follows the header, and `crc32c` covers the lines before it. Spaces and a line feed fill
//! the header up. `encryption` names the key of an encrypted object; `sha256` is then an HMAC of the checksum ([`crate::Keys`]).

use std::fmt::Write as _;

use crate::checksum::Checksum;
use crate::config::Codec;
use crate::keys::KeyId;
use crate::name::{BLOCK, FileName, Kind, Span};

/// Length of a header.
pub const HEADER: usize = 512;

const VERSION: &str = "kingpost-archive 1";

/// The cluster whose WAL an archive holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// System identifier.
    pub system_id: u64,
    /// `wal_segment_size`, in bytes.
    pub segment_size: u64,
}

/// A parsed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The object's kind.
    pub kind: Kind,
    /// The cluster.
    pub identity: Identity,
    /// Content of the object; None for an identity and a probe.
    pub span: Option<Span>,
    /// Encoding of the payload.
    pub codec: Codec,
    /// Key of an encrypted payload.
    pub key: Option<KeyId>,
    /// Length of the payload.
    pub stored: u64,
    /// Checksum of the raw bytes; of an encrypted object hidden by its key.
    pub sum: Checksum,
}

/// A header that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("{bytes} bytes, fewer than the {HEADER} of a header")]
    Short {
        /// Number of bytes.
        bytes: usize,
    },
    /// Written by another program, or a later version.
    #[error("begins with {found:?}, and this version reads {VERSION:?}")]
    Version {
        /// The first line.
        found: String,
    },
    /// Damaged.
    #[error("its header is damaged: {0}")]
    Damaged(&'static str),
}

impl Header {
    /// Returns the first lines: all that is known before the payload is made.
    pub(crate) fn begin(&self) -> String {
        let Identity { system_id, segment_size } = self.identity;
        let mut text =
            format!("{VERSION}\nkind {}\nsystem-id {system_id}\nsegment-size {segment_size}\n", word(self.kind));
        if let Some(Span { file, from, to }) = &self.span {
            let _ = write!(text, "file {file}\nfrom {from}\nto {to}\n");
        }
        let _ = writeln!(text, "codec {}", self.codec.name());
        let _ = match self.key {
            None => writeln!(text, "encryption none"),
            Some(key) => writeln!(text, "encryption {key}"),
        };
        text
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn render(&self) -> [u8; HEADER] {
        let mut text = self.begin();
        let _ = write!(text, "stored {}\nsha256 {}\n", self.stored, self.sum);
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {crc:08x}");
        let mut bytes = [b' '; HEADER];
        // The longest text has about 330 bytes.
        let length = text.len().min(HEADER - 1);
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        bytes[HEADER - 1] = b'\n';
        bytes
    }

    /// Parses the header at the start of an object.
    ///
    /// # Errors
    /// [`HeaderError`]: another version, or damaged.
    pub fn parse(object: &[u8]) -> Result<Header, HeaderError> {
        let bytes = object.get(..HEADER).ok_or(HeaderError::Short { bytes: object.len() })?;
        let damaged = HeaderError::Damaged;
        let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if first != VERSION.as_bytes() {
            let found = String::from_utf8_lossy(&first[..first.len().min(40)]).into_owned();
            return Err(HeaderError::Version { found });
        }
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
        let mut lines = text.lines().skip(1);
        let mut value = |key: &'static str| -> Option<&str> { lines.next()?.strip_prefix(key)?.strip_prefix(' ') };
        let kind = value("kind").and_then(kind).ok_or(damaged("the kind"))?;
        let number = |text: Option<&str>, what| text.and_then(|text| text.parse::<u64>().ok()).ok_or(damaged(what));
        let system_id = number(value("system-id"), "the system identifier")?;
        let segment_size = number(value("segment-size"), "the segment size")?;
        let span = match kind {
            Kind::Identity | Kind::Probe => None,
            Kind::Block | Kind::Part | Kind::History => {
                let file = value("file").and_then(FileName::parse).ok_or(damaged("the file"))?;
                let (from, to) = (number(value("from"), "the start")?, number(value("to"), "the end")?);
                if from > to || to - from > BLOCK || file.is_history() != (kind == Kind::History) {
                    return Err(damaged("the range"));
                }
                Some(Span { file, from, to })
            }
            Kind::Base | Kind::Record | Kind::Mark | Kind::Turn => {
                let (id, part) = value("file").and_then(FileName::parse_backup).ok_or(damaged("the file"))?;
                let (from, to) = (number(value("from"), "the start")?, number(value("to"), "the end")?);
                if from > to || to - from > BLOCK {
                    return Err(damaged("the range"));
                }
                Some(Span { file: FileName::of_backup(&id, part), from, to })
            }
        };
        let codec = match value("codec") {
            Some("none") => Codec::None,
            Some("zstd") => Codec::Zstd,
            Some("lz4") => Codec::Lz4,
            _ => return Err(damaged("the codec")),
        };
        let key = match value("encryption") {
            Some("none") => None,
            Some(key) => Some(KeyId::parse(key).ok_or(damaged("the encryption"))?),
            None => return Err(damaged("the encryption")),
        };
        let stored = number(value("stored"), "the length")?;
        let sum = value("sha256").and_then(Checksum::parse).ok_or(damaged("the checksum"))?;
        let header = Header { kind, identity: Identity { system_id, segment_size }, span, codec, key, stored, sum };
        // Only one encoding is valid; with it the checksum of the lines is right.
        if header.render()[..] != *bytes {
            return Err(damaged("its checksum does not fit its lines"));
        }
        Ok(header)
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Identity => "identity",
        Kind::Probe => "probe",
        Kind::Block => "block",
        Kind::Part => "part",
        Kind::History => "history",
        Kind::Base => "base",
        Kind::Record => "record",
        Kind::Mark => "mark",
        Kind::Turn => "turn",
    }
}

fn kind(word: &str) -> Option<Kind> {
    Some(match word {
        "identity" => Kind::Identity,
        "probe" => Kind::Probe,
        "block" => Kind::Block,
        "part" => Kind::Part,
        "history" => Kind::History,
        "base" => Kind::Base,
        "record" => Kind::Record,
        "mark" => Kind::Mark,
        "turn" => Kind::Turn,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Part,
            identity: Identity { system_id: 7_339_581_467_219_530_125, segment_size: 1 << 30 },
            span: Some(Span {
                file: FileName::parse("FFFFFFFFFFFFFFFFFFFFFFFF").unwrap(),
                from: 1 << 29,
                to: (1 << 29) + BLOCK,
            }),
            codec: Codec::Zstd,
            key: None,
            stored: BLOCK + 4711,
            sum: Checksum::of(b"abc"),
        }
    }

    #[test]
    fn the_longest_one_fits() {
        let header = Header { stored: u64::MAX, key: KeyId::parse("0123456789abcdef"), ..header() };
        let bytes = header.render();
        assert!(bytes.ends_with(b"   \n"));
        assert_eq!(Header::parse(&bytes), Ok(header));
    }

    #[test]
    fn rejects() {
        let good = header().render();
        let replaced = |from: &str, to: &str| {
            let mut bytes = std::str::from_utf8(&good).unwrap().replacen(from, to, 1).into_bytes();
            bytes.resize(HEADER, b' ');
            bytes
        };
        assert_eq!(Header::parse(&good[..HEADER - 1]), Err(HeaderError::Short { bytes: HEADER - 1 }));
        for (bytes, part) in [
            (replaced("kingpost-archive 1", "kingpost-archive 2"), "this version reads"),
            (replaced("encryption none", "encryption k1"), "the encryption"),
            (replaced("codec zstd", "codec gzip"), "codec"),
            (replaced("kind part", "kind history"), "range"),
            (replaced("from 5", "from 4"), "range"),
            (replaced("stored 1", "stored 2"), "checksum"),
            (vec![b'x'; HEADER], "begins with"),
        ] {
            let error = Header::parse(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_changed_byte_is_seen(at in 0..HEADER, to: u8) {
            let good = header().render();
            let mut changed = good;
            changed[at] = to;
            prop_assert_eq!(Header::parse(&changed).is_ok(), changed == good);
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..1024)) {
            let _ = Header::parse(&bytes);
        }
    }
}
