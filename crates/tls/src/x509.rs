//! Two attributes of a certificate that PostgreSQL's protocol needs and rustls does not return: its common name, and its hash for channel binding.
//! Formats: X.690 (DER), RFC 5280 section 4.1 (Certificate), RFC 5929 section 4 (tls-server-end-point).

use sha2::{Digest as _, Sha256, Sha384, Sha512};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
/// Context-specific 0, constructed: the version before a serial number.
const VERSION: u8 = 0xa0;
/// Object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Returns the tag and the contents of an element, and the bytes after it. `None` if it is incomplete, or not in DER form.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// Returns the contents of an element with this tag, and the bytes after it.
fn expect(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(bytes).filter(|(found, ..)| *found == tag).map(|(_, contents, rest)| (contents, rest))
}

/// Returns the common name (CN) of a certificate's subject. `None` if there is none or more than one (it would be ambiguous), if it is not UTF-8, or
/// contains a NUL. Verifies nothing.
#[must_use]
pub fn common_name(certificate: &[u8]) -> Option<String> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (signed, _) = expect(certificate, SEQUENCE)?;
    let (tag, _, after) = element(signed)?;
    // version? serial, signature algorithm, issuer, validity, subject
    let mut rest = if tag == VERSION { after } else { signed };
    for _ in 0..4 {
        rest = element(rest)?.2;
    }
    let (mut names, _) = expect(rest, SEQUENCE)?;
    let mut found = None;
    while !names.is_empty() {
        let (mut attributes, rest) = expect(names, SET)?;
        names = rest;
        while !attributes.is_empty() {
            let (attribute, rest) = expect(attributes, SEQUENCE)?;
            attributes = rest;
            let (name, value) = expect(attribute, OID)?;
            if name == COMMON_NAME && found.replace(element(value)?).is_some() {
                return None;
            }
        }
    }
    let (tag, value, _) = found?;
    // UTF8String, PrintableString, T61String, IA5String: the others have more than one byte per character.
    if !matches!(tag, 0x0c | 0x13 | 0x14 | 0x16) || value.contains(&0) {
        return None;
    }
    String::from_utf8(value.to_vec()).ok()
}

/// Returns the certificate's hash for channel binding (`tls-server-end-point`): by the hash function of its signature, but SHA-256 in place of MD5
/// and SHA-1. `None` if it is not defined (Ed25519, RSA-PSS) or unknown to this crate.
#[must_use]
pub fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (contents, _) = expect(certificate, SEQUENCE)?;
    let (_, _, rest) = element(contents)?;
    let (algorithm, _) = expect(rest, SEQUENCE)?;
    let (algorithm, _) = expect(algorithm, OID)?;
    match algorithm {
        // 1.2.840.113549.1.1.n (RSA): 4 md5, 5 sha1, 11 sha256, 12 sha384, 13 sha512
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, hash] => match hash {
            4 | 5 | 11 => Some(Sha256::digest(certificate).to_vec()),
            12 => Some(Sha384::digest(certificate).to_vec()),
            13 => Some(Sha512::digest(certificate).to_vec()),
            _ => None,
        },
        // 1.2.840.10045.4.1 (ECDSA with SHA-1), 1.2.840.10045.4.3.n: 2 sha256, 3 sha384, 4 sha512
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01] => Some(Sha256::digest(certificate).to_vec()),
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, hash] => match hash {
            2 => Some(Sha256::digest(certificate).to_vec()),
            3 => Some(Sha384::digest(certificate).to_vec()),
            4 => Some(Sha512::digest(certificate).to_vec()),
            _ => None,
        },
        _ => None,
    }
}
