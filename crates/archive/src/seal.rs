//! Objects: a header and a payload, made from raw bytes and checked when they are read back.

use std::io::{self, Read, Write};

use bytes::Bytes;

use crate::checksum::{Checksum, Summing};
use crate::config::Codec;
use crate::header::{HEADER, Header, HeaderError, Identity};
use crate::keys::{Key, KeyId, Keys};
use crate::name::{BLOCK, Kind, Span};

/// Most bytes of an object: compression and encryption add little to bytes that they cannot make smaller.
pub const LARGEST: usize = HEADER + BLOCK as usize + (BLOCK as usize >> 4);

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// Level of compression: the default of `zstd`, faster than most networks.
const LEVEL: i32 = 3;

/// Largest window that is accepted when reading, as a power of two: a block.
const WINDOW: u32 = 24;

/// A complete object.
#[derive(Debug, Clone)]
pub struct Sealed {
    /// Header and payload.
    pub object: Bytes,
    /// Checksum of the raw bytes.
    pub sum: Checksum,
}

/// An object that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// A header that cannot be used.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Longer or shorter than the header says.
    #[error("has {found} bytes behind its header, which says {stored}")]
    Length {
        /// Bytes found.
        found: usize,
        /// Bytes that the header names.
        stored: u64,
    },
    /// Undecodable.
    #[error("cannot be decompressed: {0}")]
    Codec(io::Error),
    /// Other bytes than were archived.
    #[error("has the checksum {found}, and its header says {expected}")]
    Sum {
        /// Checksum of the decoded bytes.
        found: Checksum,
        /// Checksum in the header.
        expected: Checksum,
    },
    /// Encrypted with a key that is not there.
    #[error(
        "is encrypted with the key {key}, which relay.archive.key_file does not have: add that key to the file; without it the content \
         is lost"
    )]
    NoKey {
        /// Identifier of the key.
        key: KeyId,
    },
    /// Not what the key has encrypted.
    #[error("was cut or changed after it was encrypted with the key {key}")]
    Forged {
        /// Identifier of the key.
        key: KeyId,
    },
    /// Another object than its name says.
    #[error("holds something else than its name says")]
    Other,
}

/// Computes the checksum of the next `bytes` bytes.
///
/// # Errors
/// The bytes cannot be read, or there are fewer.
pub fn sum(mut raw: impl Read, bytes: u64) -> io::Result<Checksum> {
    let mut sum = Summing::default();
    each_piece(&mut raw, bytes, |piece| {
        sum.add(piece);
        Ok(())
    })?;
    Ok(sum.finish())
}

/// Form of a new object's payload.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// Compression.
    pub codec: Codec,
    /// Key of an encrypted payload.
    pub key: Option<&'a Key>,
}

/// Makes an object from the next `bytes` bytes, which are at most [`BLOCK`]. Without any content nothing is compressed or encrypted.
///
/// # Errors
/// The bytes cannot be read, or there are fewer.
pub fn seal(
    form: Form<'_>,
    kind: Kind,
    identity: Identity,
    span: Option<Span>,
    mut raw: impl Read,
    bytes: u64,
) -> io::Result<Sealed> {
    let form = if bytes == 0 { Form { codec: Codec::None, key: None } } else { form };
    let mut sum = Summing::default();
    let mut object = compress(form.codec, |to| {
        each_piece(&mut raw, bytes, |piece| {
            sum.add(piece);
            to.write_all(piece)
        })
    })?;
    let sum = sum.finish();
    let key = form.key.map(Key::id);
    let mut header = Header { kind, identity, span, codec: form.codec, key, stored: 0, sum };
    if let Some(key) = form.key {
        header.sum = key.hide(sum);
        let payload = key.encrypt(header.begin().as_bytes(), &object[HEADER..])?;
        object.truncate(HEADER);
        object.extend_from_slice(&payload);
    }
    header.stored = (object.len() - HEADER) as u64;
    object[..HEADER].copy_from_slice(&header.render());
    Ok(Sealed { object: object.into(), sum })
}

/// Returns room for a header, and behind it the compressed bytes that `fill` writes.
fn compress(codec: Codec, mut fill: impl FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut object = vec![0; HEADER];
    match codec {
        Codec::None => fill(&mut object)?,
        Codec::Zstd => {
            // In one piece: in several, zstd copies each into a window of its own and finds matches across its edge at twice the cost.
            let mut raw = Vec::new();
            fill(&mut raw)?;
            object = vec![0; HEADER + zstd::zstd_safe::compress_bound(raw.len())];
            let mut encoder = zstd::bulk::Compressor::new(LEVEL)?;
            let length = encoder.compress_to_buffer(&raw, &mut object[HEADER..])?;
            object.truncate(HEADER + length);
            object.shrink_to_fit();
        }
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(object);
            fill(&mut encoder)?;
            object = encoder.finish().map_err(io::Error::other)?;
        }
    }
    Ok(object)
}

fn each_piece(raw: &mut impl Read, bytes: u64, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut piece = vec![0; PIECE.min(usize::try_from(bytes).unwrap_or(PIECE))];
    let mut left = bytes;
    while left > 0 {
        let here = piece.len().min(usize::try_from(left).unwrap_or(PIECE));
        raw.read_exact(&mut piece[..here])?;
        take(&piece[..here])?;
        left -= here as u64;
    }
    Ok(())
}

/// Returns the header and the raw bytes of an object, after checking every one of them.
///
/// # Errors
/// [`SealError`]: damaged, of a version that this one does not read, or encrypted with a key that is not there.
pub fn unseal(object: &[u8], keys: &Keys) -> Result<(Header, Vec<u8>), SealError> {
    let header = Header::parse(object)?;
    let payload = &object[HEADER..];
    if payload.len() as u64 != header.stored {
        return Err(SealError::Length { found: payload.len(), stored: header.stored });
    }
    let plain;
    let payload = match header.key {
        None => payload,
        Some(id) => {
            let key = keys.get(id).ok_or(SealError::NoKey { key: id })?;
            plain = key.decrypt(header.begin().as_bytes(), payload).ok_or(SealError::Forged { key: id })?;
            &plain[..]
        }
    };
    let expected = header.span.as_ref().map_or(0, Span::bytes);
    let raw = decompress(header.codec, payload, expected).map_err(SealError::Codec)?;
    let found = header.sum_of(Checksum::of(&raw), keys)?;
    if found != header.sum || raw.len() as u64 != expected {
        return Err(SealError::Sum { found, expected: header.sum });
    }
    Ok((header, raw))
}

/// Returns the raw bytes; of a longer content one more than are expected.
fn decompress(codec: Codec, payload: &[u8], expected: u64) -> io::Result<Vec<u8>> {
    let read = |decoder: &mut dyn Read| -> io::Result<Vec<u8>> {
        let mut raw = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        decoder.take(expected + 1).read_to_end(&mut raw)?;
        Ok(raw)
    };
    match codec {
        Codec::None => Ok(payload.to_vec()),
        Codec::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(payload)?;
            decoder.window_log_max(WINDOW)?;
            read(&mut decoder)
        }
        Codec::Lz4 => read(&mut lz4_flex::frame::FrameDecoder::new(payload)),
    }
}

impl Header {
    /// Returns the checksum that the header of this object has for raw bytes with the checksum `sum`.
    ///
    /// # Errors
    /// [`SealError::NoKey`].
    pub(crate) fn sum_of(&self, sum: Checksum, keys: &Keys) -> Result<Checksum, SealError> {
        match self.key {
            None => Ok(sum),
            Some(id) => Ok(keys.get(id).ok_or(SealError::NoKey { key: id })?.hide(sum)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::name::FileName;

    const IDENTITY: Identity = Identity { system_id: 7, segment_size: 16 << 20 };

    fn span(from: u64, raw: &[u8]) -> Span {
        let file = FileName::parse("000000010000000000000001").unwrap();
        Span { file, from, to: from + raw.len() as u64 }
    }

    const PLAIN: Form<'_> = Form { codec: Codec::Zstd, key: None };

    fn sealed_in(form: Form<'_>, raw: &[u8]) -> Sealed {
        seal(form, Kind::Part, IDENTITY, Some(span(8192, raw)), raw, raw.len() as u64).unwrap()
    }

    fn keys(digit: &str) -> Keys {
        Keys::parse(&digit.repeat(64)).unwrap()
    }

    #[test]
    fn an_incompressible_block_fits() {
        let mut state = 1_u64;
        let raw: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(BLOCK as usize)
        .collect();
        let keys = keys("a");
        for codec in [Codec::None, Codec::Zstd, Codec::Lz4] {
            let sealed = sealed_in(Form { codec, key: keys.newest() }, &raw);
            assert!(sealed.object.len() <= LARGEST, "{codec:?}");
            assert!(unseal(&sealed.object, &keys).unwrap().1 == raw, "{codec:?}");
        }
    }

    #[test]
    fn a_lost_or_another_key_is_named() {
        let (one, other) = (keys("a"), keys("b"));
        let sealed = sealed_in(Form { key: one.newest(), ..PLAIN }, b"secret secret");
        let id = one.newest().unwrap().id();
        for keys in [&other, &Keys::default()] {
            let error = unseal(&sealed.object, keys).unwrap_err().to_string();
            assert!(error.contains(&id.to_string()) && error.contains("relay.archive.key_file"), "{error}");
        }
        let (header, _) = unseal(&sealed.object, &one).unwrap();
        assert_ne!(header.sum, sealed.sum, "the checksum of the content is not told");
        assert!(!sealed.object.windows(6).any(|bytes| bytes == b"secret"));
        // Another object's place: its header is valid, and says another range.
        let mut moved = Header::parse(&sealed.object).unwrap();
        moved.span = moved.span.map(|span| Span { from: span.from + 1, to: span.to + 1, ..span });
        let moved = [&moved.render()[..], &sealed.object[HEADER..]].concat();
        assert!(matches!(unseal(&moved, &one), Err(SealError::Forged { .. })));
    }

    #[test]
    fn fewer_bytes_than_promised_are_an_error() {
        let raw = [1; 100];
        assert!(seal(PLAIN, Kind::Part, IDENTITY, Some(span(0, &raw)), &raw[..99], 100).is_err());
        assert!(sum(&raw[..99], 100).is_err());
    }

    #[test]
    fn a_payload_that_grows_without_end_is_cut() {
        // The header says 10 bytes; the payload decodes to 100 MB.
        for codec in [Codec::Zstd, Codec::Lz4] {
            let payload = compress(codec, |to| io::copy(&mut io::repeat(0).take(100 << 20), to).map(drop)).unwrap();
            let payload = &payload[HEADER..];
            let mut header = Header::parse(&sealed_in(Form { codec, key: None }, &[0; 10]).object).unwrap();
            header.stored = payload.len() as u64;
            let object = [&header.render()[..], payload].concat();
            assert!(matches!(unseal(&object, &Keys::default()), Err(SealError::Sum { .. })), "{codec:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(raw in prop::collection::vec(any::<u8>(), 0..3000), codec in 0_usize..3, encrypted: bool) {
            let keys = keys("a");
            let codec = [Codec::None, Codec::Zstd, Codec::Lz4][codec];
            let sealed = sealed_in(Form { codec, key: keys.newest().filter(|_| encrypted) }, &raw);
            let (header, again) = unseal(&sealed.object, &keys).unwrap();
            prop_assert_eq!(&again, &raw);
            prop_assert_eq!(header.sum, header.sum_of(sealed.sum, &keys).unwrap());
            prop_assert_eq!(sum(&raw[..], raw.len() as u64).unwrap(), sealed.sum);
        }

        #[test]
        fn a_cut_or_a_changed_byte_never_passes(raw in prop::collection::vec(0_u8..4, 1..500), cut: prop::sample::Index, at: prop::sample::Index, to: u8, codec in 0_usize..3) {
            let codec = [Codec::None, Codec::Zstd, Codec::Lz4][codec];
            let (object, none) = (sealed_in(Form { codec, key: None }, &raw).object, Keys::default());
            prop_assert!(unseal(&object[..cut.index(object.len())], &none).is_err());
            let mut changed = object.to_vec();
            let at = at.index(changed.len());
            changed[at] = to;
            // A changed payload may decode to the same bytes; never to others.
            if let Ok((_, again)) = unseal(&changed, &none) {
                prop_assert_eq!(again, raw);
            }
        }

        #[test]
        fn never_panics(object in prop::collection::vec(any::<u8>(), 0..1024)) {
            let _ = unseal(&object, &Keys::default());
        }
    }
}
