//! Digests of content: they tell if a row has changed, and if two nodes hold the same rows.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// 128 bits of SHA-256. A registration with the digest of the stored row is not written, so the hash must be collision-resistant.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// Returns the digest of several texts, each delimited from the next.
    pub(crate) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Digest {
        let mut content = Content::default();
        for part in parts {
            content.text(part);
        }
        content.finish()
    }

    /// Returns the digest of bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Digest {
        let mut content = Content::default();
        content.0.update(bytes);
        content.finish()
    }

    /// Makes a digest from its 16 bytes; `None` for any other length.
    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Digest> {
        Some(Digest(bytes.try_into().ok()?))
    }

    /// Subtracts `other`: removes an element from the digest of a set.
    #[must_use]
    pub(crate) fn minus(self, other: Digest) -> Digest {
        Digest(u128::from_be_bytes(self.0).wrapping_sub(u128::from_be_bytes(other.0)).to_be_bytes())
    }

    /// Adds `other`: gives the digest of a set, independent of the order.
    #[must_use]
    pub fn plus(self, other: Digest) -> Digest {
        Digest(u128::from_be_bytes(self.0).wrapping_add(u128::from_be_bytes(other.0)).to_be_bytes())
    }
}

/// Input of a digest. Every field is preceded by its length, so that two different contents never give the same bytes.
#[derive(Default)]
pub(crate) struct Content(Sha256);

impl Content {
    pub(crate) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    pub(crate) fn finish(self) -> Digest {
        let mut digest = [0; 16];
        digest.copy_from_slice(&self.0.finalize()[..16]);
        Digest(digest)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
