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
//! the header up.

use std::fmt::Write as _;

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

/// Encoding of an object's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// The raw bytes.
    None,
    /// Zstandard.
    Zstd,
}

impl Codec {
    fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Zstd => "zstd",
        }
    }
}

/// SHA-256 of raw bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub [u8; 32]);

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl Checksum {
    /// Computes the checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Checksum {
        let mut sum = Summing::default();
        sum.add(bytes);
        sum.finish()
    }

    fn parse(text: &str) -> Option<Checksum> {
        let mut sum = [0; 32];
        let good = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !good {
            return None;
        }
        for (byte, digits) in sum.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Checksum(sum))
    }
}

/// A checksum in progress.
pub(crate) struct Summing(ring::digest::Context);

impl Default for Summing {
    fn default() -> Summing {
        Summing(ring::digest::Context::new(&ring::digest::SHA256))
    }
}

impl Summing {
    /// Adds bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes.
    pub(crate) fn finish(self) -> Checksum {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.0.finish().as_ref());
        Checksum(sum)
    }
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
    /// Length of the payload.
    pub stored: u64,
    /// Checksum of the raw bytes.
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
    /// Encrypted, which this version cannot read.
    #[error("is encrypted with key {key:?}, and this version reads none that is encrypted")]
    Encrypted {
        /// Identifier of the key.
        key: String,
    },
    /// Damaged.
    #[error("its header is damaged: {0}")]
    Damaged(&'static str),
}

impl Header {
    /// Returns the header's bytes.
    #[must_use]
    pub fn render(&self) -> [u8; HEADER] {
        let Identity { system_id, segment_size } = self.identity;
        let mut text =
            format!("{VERSION}\nkind {}\nsystem-id {system_id}\nsegment-size {segment_size}\n", word(self.kind));
        if let Some(Span { file, from, to }) = &self.span {
            let _ = write!(text, "file {file}\nfrom {from}\nto {to}\n");
        }
        let (codec, stored, sum) = (self.codec.name(), self.stored, self.sum);
        let _ = write!(text, "codec {codec}\nencryption none\nstored {stored}\nsha256 {sum}\n");
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
    /// [`HeaderError`]: another version, encrypted, or damaged.
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
            _ => return Err(damaged("the codec")),
        };
        match value("encryption") {
            Some("none") => {}
            Some(key) => return Err(HeaderError::Encrypted { key: key.chars().take(80).collect() }),
            None => return Err(damaged("the encryption")),
        }
        let stored = number(value("stored"), "the length")?;
        let sum = value("sha256").and_then(Checksum::parse).ok_or(damaged("the checksum"))?;
        let header = Header { kind, identity: Identity { system_id, segment_size }, span, codec, stored, sum };
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
            stored: BLOCK + 4711,
            sum: Checksum::of(b"abc"),
        }
    }

    #[test]
    fn the_longest_one_fits() {
        let header = Header { stored: u64::MAX, ..header() };
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
            (replaced("encryption none", "encryption k1"), "encrypted with key \"k1\""),
            (replaced("codec zstd", "codec lz4"), "codec"),
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
