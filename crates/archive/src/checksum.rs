//! Checksums of raw bytes.

/// SHA-256 of raw bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Checksum(pub [u8; 32]);

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_digits(&self.0, f)
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

    /// Parses 64 lower-case hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Checksum> {
        Some(Checksum(digits(text)?.try_into().ok()?))
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

/// Parses an even number of lower-case hexadecimal digits.
pub(crate) fn digits(text: &str) -> Option<Vec<u8>> {
    let good = text.len().is_multiple_of(2) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    if good { text.as_bytes().chunks(2).map(byte).collect() } else { None }
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn write_digits(bytes: &[u8], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}
