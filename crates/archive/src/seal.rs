//! Objects: a header and a payload, made from raw bytes and checked when they are read back.

use std::io::{self, Read, Write};

use bytes::Bytes;

use crate::header::{Checksum, Codec, HEADER, Header, HeaderError, Identity, Summing};
use crate::name::{BLOCK, Kind, Span};

/// Most bytes of an object: Zstandard adds little to bytes that it cannot make smaller.
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

/// Makes an object from the next `bytes` bytes, which are at most [`BLOCK`].
///
/// # Errors
/// The bytes cannot be read, or there are fewer.
pub fn seal(kind: Kind, identity: Identity, span: Option<Span>, mut raw: impl Read, bytes: u64) -> io::Result<Sealed> {
    let mut sum = Summing::default();
    let (object, codec) = if bytes == 0 {
        (vec![0; HEADER], Codec::None)
    } else {
        let mut encoder = zstd::stream::write::Encoder::new(vec![0; HEADER], LEVEL)?;
        each_piece(&mut raw, bytes, |piece| {
            sum.add(piece);
            encoder.write_all(piece)
        })?;
        (encoder.finish()?, Codec::Zstd)
    };
    let sum = sum.finish();
    let mut object = object;
    let stored = (object.len() - HEADER) as u64;
    object[..HEADER].copy_from_slice(&Header { kind, identity, span, codec, stored, sum }.render());
    Ok(Sealed { object: object.into(), sum })
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
/// [`SealError`]: damaged, or of a version that this one does not read.
pub fn unseal(object: &[u8]) -> Result<(Header, Vec<u8>), SealError> {
    let header = Header::parse(object)?;
    let payload = &object[HEADER..];
    if payload.len() as u64 != header.stored {
        return Err(SealError::Length { found: payload.len(), stored: header.stored });
    }
    let expected = header.span.as_ref().map_or(0, Span::bytes);
    let raw = match header.codec {
        Codec::None => payload.to_vec(),
        Codec::Zstd => {
            let decode = || -> io::Result<Vec<u8>> {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(payload)?;
                decoder.window_log_max(WINDOW)?;
                let mut raw = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
                // One more, so that a longer content is noticed.
                decoder.take(expected + 1).read_to_end(&mut raw)?;
                Ok(raw)
            };
            decode().map_err(SealError::Codec)?
        }
    };
    let found = Checksum::of(&raw);
    if found != header.sum || raw.len() as u64 != expected {
        return Err(SealError::Sum { found, expected: header.sum });
    }
    Ok((header, raw))
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

    fn sealed(raw: &[u8]) -> Sealed {
        seal(Kind::Part, IDENTITY, Some(span(8192, raw)), raw, raw.len() as u64).unwrap()
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
        let sealed = sealed(&raw);
        assert!(sealed.object.len() <= LARGEST);
        assert!(unseal(&sealed.object).unwrap().1 == raw);
    }

    #[test]
    fn fewer_bytes_than_promised_are_an_error() {
        let raw = [1; 100];
        assert!(seal(Kind::Part, IDENTITY, Some(span(0, &raw)), &raw[..99], 100).is_err());
        assert!(sum(&raw[..99], 100).is_err());
    }

    #[test]
    fn a_payload_that_grows_without_end_is_cut() {
        // The header says 10 bytes; the payload decodes to 100 MB.
        let payload = zstd::stream::encode_all(io::repeat(0).take(100 << 20), 3).unwrap();
        let mut header = Header::parse(&sealed(&[0; 10]).object).unwrap();
        header.stored = payload.len() as u64;
        let object = [&header.render()[..], &payload].concat();
        assert!(matches!(unseal(&object), Err(SealError::Sum { .. })));
    }

    proptest! {
        #[test]
        fn round_trip(raw in prop::collection::vec(any::<u8>(), 0..3000)) {
            let sealed = sealed(&raw);
            let (header, again) = unseal(&sealed.object).unwrap();
            prop_assert_eq!(&again, &raw);
            prop_assert_eq!(header.sum, sealed.sum);
            prop_assert_eq!(sum(&raw[..], raw.len() as u64).unwrap(), sealed.sum);
        }

        #[test]
        fn a_cut_or_a_changed_byte_never_passes(raw in prop::collection::vec(0_u8..4, 1..500), cut: prop::sample::Index, at: prop::sample::Index, to: u8) {
            let object = sealed(&raw).object;
            prop_assert!(unseal(&object[..cut.index(object.len())]).is_err());
            let mut changed = object.to_vec();
            let at = at.index(changed.len());
            changed[at] = to;
            // A changed payload may decode to the same bytes; never to others.
            if let Ok((_, again)) = unseal(&changed) {
                prop_assert_eq!(again, raw);
            }
        }

        #[test]
        fn never_panics(object in prop::collection::vec(any::<u8>(), 0..1024)) {
            let _ = unseal(&object);
        }
    }
}
