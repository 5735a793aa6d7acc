//! PD's encoding of keys: TiKV's regions are cut in a space in which each key of a transaction is encoded, so that one key's versions never lie
//! between another key's.
//!
//! Groups of eight bytes, the last one padded with zeroes, each followed by a byte of 255 less the number of padding bytes.

use bytes::Bytes;

const GROUP: usize = 8;

/// Encodes a key for PD.
pub(crate) fn encode(key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity((key.len() / GROUP + 1) * (GROUP + 1));
    let mut rest = key;
    loop {
        let (group, after) = rest.split_at(rest.len().min(GROUP));
        let padding = GROUP - group.len();
        encoded.extend_from_slice(group);
        encoded.extend(std::iter::repeat_n(0, padding));
        encoded.push(255 - padding as u8);
        if padding > 0 {
            return encoded;
        }
        rest = after;
    }
}

/// Decodes a key from PD; `None` if the encoding is invalid.
pub(crate) fn decode(encoded: &[u8]) -> Option<Bytes> {
    let mut key = Vec::with_capacity(encoded.len());
    let mut groups = encoded.chunks_exact(GROUP + 1);
    for group in groups.by_ref() {
        let (bytes, marker) = group.split_at(GROUP);
        let padding = usize::from(255 - marker[0]);
        let (filled, zeroes) = bytes.split_at(GROUP.checked_sub(padding)?);
        key.extend_from_slice(filled);
        if padding > 0 {
            let ends_here = groups.next().is_none() && groups.remainder().is_empty();
            return (ends_here && zeroes.iter().all(|zero| *zero == 0)).then(|| key.into());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_in_the_documentation_of_tikv() {
        assert_eq!(encode(b""), [0, 0, 0, 0, 0, 0, 0, 0, 247]);
        assert_eq!(encode(b"\x01\x02\x03"), [1, 2, 3, 0, 0, 0, 0, 0, 250]);
        assert_eq!(encode(b"12345678"), b"12345678\xff\0\0\0\0\0\0\0\0\xf7");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for wrong in [
            &b""[..],
            b"1234",
            b"12345678\xff",
            b"12345678\x00",
            b"1234\0\0\0\x01\xfb",
            &[0; 9],
            b"\0\0\0\0\0\0\0\0\xf7x",
        ] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn there_and_back(key: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&key)).unwrap(), key);
        }

        #[test]
        fn the_order_stays(one: Vec<u8>, other: Vec<u8>) {
            prop_assert_eq!(encode(&one).cmp(&encode(&other)), one.cmp(&other));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            if let Some(key) = decode(&bytes) {
                prop_assert_eq!(encode(&key), bytes);
            }
        }
    }
}
