//! Keys of an archive, and the frame of an encrypted payload.
//!
//! ```text
//!  salt 32, then chunks of 65,536 bytes and a tag of 16 each, the last of at most 65,536 bytes and a tag
//! ```
//!
//! AES-256-GCM in chunks, as the STREAM construction has it: the nonce is the number of the chunk and a mark of the last one, so no chunk can be moved,
//! repeated or cut off. Each object has a key of its own, by HKDF-SHA256 from the key of the file and the random salt. The first lines of the header are
//! part of every tag: an object cannot take another's place. The header has, in place of the content's SHA-256, an HMAC of it, which tells nothing
//! without the key, and lets relays compare objects without decrypting them.

use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::{hkdf, hmac};

use crate::checksum::{Checksum, digits, write_digits};

/// Bytes of plain text in a chunk.
const CHUNK: usize = 64 << 10;
/// Length of a tag.
const TAG: usize = 16;
/// Length of the salt.
const SALT: usize = 32;
/// Most bytes of a file of keys.
const LARGEST_FILE: u64 = 64 << 10;

/// Identifier of a key, derived from the key itself: another key never has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// Parses 16 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<KeyId> {
        let bytes = digits(text)?;
        Some(KeyId(bytes.try_into().ok()?))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_digits(&self.0, f)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A key.
pub struct Key {
    id: KeyId,
    secret: [u8; 32],
    checksums: hmac::Key,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

impl Key {
    fn new(secret: [u8; 32]) -> Key {
        let root = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        let mut id = [0; 8];
        id.copy_from_slice(&hmac::sign(&root, b"kingpost archive: identifier").as_ref()[..8]);
        let checksums = hmac::sign(&root, b"kingpost archive: checksums");
        let checksums = hmac::Key::new(hmac::HMAC_SHA256, checksums.as_ref());
        Key { id: KeyId(id), secret, checksums }
    }

    /// Returns the identifier.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Returns the checksum for the header of an encrypted object.
    pub(crate) fn hide(&self, sum: Checksum) -> Checksum {
        let mut hidden = [0; 32];
        hidden.copy_from_slice(hmac::sign(&self.checksums, &sum.0).as_ref());
        Checksum(hidden)
    }

    fn cipher(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(&self.secret);
        let derived = derived.expand(&[b"kingpost archive: object"], &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }

    /// Encrypts a payload. `bound`: text that the frame belongs to.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn encrypt(&self, bound: &[u8], plain: &[u8]) -> io::Result<Vec<u8>> {
        let failed = || io::Error::other("cannot encrypt: no random bytes");
        let mut frame = vec![0; SALT];
        SystemRandom::new().fill(&mut frame).map_err(|_| failed())?;
        let cipher = self.cipher(&frame).ok_or_else(failed)?;
        frame.reserve_exact(plain.len() + (plain.len() / CHUNK + 1) * TAG);
        // Without any content the one chunk is empty.
        let count = plain.len().div_ceil(CHUNK).max(1);
        let mut chunk = Vec::with_capacity(CHUNK + TAG);
        for number in 0..count {
            chunk.clear();
            chunk.extend_from_slice(&plain[number * CHUNK..plain.len().min((number + 1) * CHUNK)]);
            let nonce = nonce(number, number + 1 == count).ok_or_else(failed)?;
            cipher.seal_in_place_append_tag(nonce, Aad::from(bound), &mut chunk).map_err(|_| failed())?;
            frame.extend_from_slice(&chunk);
        }
        Ok(frame)
    }

    /// Decrypts a payload. None: it is not what this key has encrypted for `bound`, or it was cut or changed.
    #[must_use]
    pub fn decrypt(&self, bound: &[u8], frame: &[u8]) -> Option<Vec<u8>> {
        let (salt, mut rest) = frame.split_at_checked(SALT)?;
        let cipher = self.cipher(salt)?;
        let mut plain = Vec::with_capacity(rest.len());
        let mut number = 0;
        loop {
            let here = rest.len().min(CHUNK + TAG);
            let (chunk, behind) = rest.split_at(here);
            let mut chunk = chunk.to_vec();
            let nonce = nonce(number, behind.is_empty())?;
            plain.extend_from_slice(cipher.open_in_place(nonce, Aad::from(bound), &mut chunk).ok()?);
            if behind.is_empty() {
                return Some(plain);
            }
            (rest, number) = (behind, number + 1);
        }
    }
}

/// Returns the nonce of a chunk. None: no payload has so many.
fn nonce(number: usize, is_last: bool) -> Option<Nonce> {
    let mut bytes = [0; NONCE_LEN];
    bytes[..4].copy_from_slice(&u32::try_from(number).ok()?.to_be_bytes());
    bytes[NONCE_LEN - 1] = u8::from(is_last);
    Some(Nonce::assume_unique_for_key(bytes))
}

/// The keys of a file: the last one encrypts, each decrypts.
#[derive(Clone, Default)]
pub struct Keys(Arc<Vec<Key>>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

impl Keys {
    /// Reads a file of keys.
    ///
    /// # Errors
    /// The file cannot be read, or has a line that is no key; the text says so without the line.
    pub fn read(path: &Path) -> Result<Keys, String> {
        let read = || -> io::Result<String> {
            let mut text = String::new();
            std::fs::File::open(path)?.take(LARGEST_FILE).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().map_err(|error| format!("cannot read the keys in {}: {error}", path.display()))?;
        Keys::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// Parses the text of a file of keys: 64 hexadecimal digits a line; empty lines and lines that begin with # do not count.
    ///
    /// # Errors
    /// The number of a line that is no key, or no key at all.
    pub fn parse(text: &str) -> Result<Keys, String> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let secret = digits(&line.to_ascii_lowercase()).and_then(|secret| secret.try_into().ok());
            let secret = secret.ok_or_else(|| {
                format!("line {} is no key: 64 hexadecimal digits, as `openssl rand -hex 32` writes", number + 1)
            })?;
            keys.push(Key::new(secret));
        }
        if keys.is_empty() { Err("it has no key".into()) } else { Ok(Keys(Arc::new(keys))) }
    }

    /// Returns the key that encrypts. None: nothing is encrypted.
    #[must_use]
    pub fn newest(&self) -> Option<&Key> {
        self.0.last()
    }

    /// Returns the key with this identifier.
    #[must_use]
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.0.iter().find(|key| key.id == id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const ONE: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const TWO: &str = "FF0102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F";

    #[test]
    fn files() {
        let keys = Keys::parse(&format!("# of 2026\n{ONE}\n\n  {TWO}\r\n")).unwrap();
        let [one, two] = [ONE, TWO].map(|text| Keys::parse(text).unwrap().newest().unwrap().id());
        assert_eq!(keys.newest().unwrap().id(), two);
        assert!(keys.get(one).is_some() && one != two);
        assert_eq!(KeyId::parse(&one.to_string()), Some(one));
        for text in ["", "# none", "00", &ONE[1..], &format!("{ONE}\n{ONE}0"), &ONE.replace('a', "g")] {
            let error = Keys::parse(text).unwrap_err();
            assert!(!error.contains("0102"), "{error}");
        }
        assert!(!format!("{keys:?}").contains("0102"));
    }

    #[test]
    fn no_chunk_is_moved_cut_off_or_another_objects() {
        let keys = Keys::parse(ONE).unwrap();
        let key = keys.newest().unwrap();
        let plain: Vec<u8> = (0..3 * CHUNK).map(|at| (at / CHUNK) as u8).collect();
        let frame = key.encrypt(b"a", &plain).unwrap();
        assert_eq!(frame.len(), SALT + 3 * (CHUNK + TAG));
        assert_eq!(key.decrypt(b"a", &frame), Some(plain));
        let (salt, chunks) = frame.split_at(SALT);
        let chunk = |number: usize| &chunks[number * (CHUNK + TAG)..(number + 1) * (CHUNK + TAG)];
        for (name, order) in [
            ("the last one is missing", vec![0, 1]),
            ("the first one is missing", vec![1, 2]),
            ("moved", vec![1, 0, 2]),
            ("repeated", vec![0, 1, 2, 2]),
            ("none", vec![]),
        ] {
            let changed = [salt.to_vec(), order.iter().flat_map(|number| chunk(*number).to_vec()).collect()].concat();
            assert_eq!(key.decrypt(b"a", &changed), None, "{name}");
        }
        assert_eq!(key.decrypt(b"b", &frame), None, "another object's header");
        assert_eq!(Keys::parse(TWO).unwrap().newest().unwrap().decrypt(b"a", &frame), None, "another key");
        assert_ne!(salt, &key.encrypt(b"a", &[]).unwrap()[..SALT], "each object has a salt of its own");
    }

    proptest! {
        #[test]
        fn round_trip(plain in prop::collection::vec(any::<u8>(), 0..200), large: bool, at: prop::sample::Index, bit in 0_u8..8) {
            let keys = Keys::parse(ONE).unwrap();
            let key = keys.newest().unwrap();
            let plain = if large { plain.repeat(700) } else { plain };
            let mut frame = key.encrypt(b"x", &plain).unwrap();
            prop_assert_eq!(key.decrypt(b"x", &frame), Some(plain));
            prop_assert_eq!(key.decrypt(b"x", &frame[..at.index(frame.len())]), None);
            let at = at.index(frame.len());
            frame[at] ^= 1 << bit;
            prop_assert_eq!(key.decrypt(b"x", &frame), None);
        }
    }
}
