//! Digests of content: whether a row says something new, and whether two nodes hold the same.

use std::fmt;

use sha2::{Digest as _, Sha256};

/// 128 bits of SHA-256. A registration whose digest is that of the stored row is not written, so nobody may be able to
/// make two that collide.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// Of texts, each kept apart from the next.
    pub(crate) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Digest {
        let mut content = Content::default();
        for part in parts {
            content.text(part);
        }
        content.finish()
    }

    /// Of bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Digest {
        let mut content = Content::default();
        content.0.update(bytes);
        content.finish()
    }

    /// From its 32 hexadecimal digits.
    pub(crate) fn from_slice(bytes: &[u8]) -> Option<Digest> {
        Some(Digest(bytes.try_into().ok()?))
    }

    /// Takes `other` out of what it was added to.
    #[must_use]
    pub(crate) fn minus(self, other: Digest) -> Digest {
        Digest(u128::from_be_bytes(self.0).wrapping_sub(u128::from_be_bytes(other.0)).to_be_bytes())
    }

    /// Adds `other`: the digest of a set, whatever the order.
    #[must_use]
    pub fn plus(self, other: Digest) -> Digest {
        Digest(u128::from_be_bytes(self.0).wrapping_add(u128::from_be_bytes(other.0)).to_be_bytes())
    }
}

/// Content on its way into a digest. Every field is preceded by its length, so that no two contents are one text.
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
