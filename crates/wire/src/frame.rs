//! Message headers.

/// Bytes of a message header: a tag, and a length that counts its own four bytes but not the tag.
pub const HEADER: usize = 5;

/// Maximum length of a payload that PostgreSQL accepts or sends (`PQ_LARGE_MESSAGE_LIMIT`: 1 GiB less one).
pub const MAX_PAYLOAD: usize = (1 << 30) - 1;

/// A message header whose length has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Kind of message.
    pub tag: u8,
    /// Payload length in bytes, without the header.
    pub payload: usize,
}

/// Error in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is below its own four bytes, or above PostgreSQL's limit.
    #[error("message {:?} announces a length of {length} bytes: expected 4 to {}", char::from(*tag), MAX_PAYLOAD + 4)]
    Length {
        /// Kind of message.
        tag: u8,
        /// The length in the header.
        length: u32,
    },
}

impl Frame {
    /// Parses the header at the start of `bytes`. `None` if there are fewer than [`HEADER`] bytes.
    pub fn read(bytes: &[u8]) -> Result<Option<Frame>, FrameError> {
        let Some(&[tag, a, b, c, d]) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]);
        let payload = (length as usize).wrapping_sub(4);
        if length < 4 || payload > MAX_PAYLOAD {
            return Err(FrameError::Length { tag, length });
        }
        Ok(Some(Frame { tag, payload }))
    }

    /// Returns the length of the whole message.
    #[must_use]
    pub fn total(self) -> usize {
        HEADER + self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        type Expected = Result<Option<(u8, usize)>, ()>;
        let cases: [(&[u8], Expected); 7] = [
            (b"", Ok(None)),
            (b"Q\0\0\0", Ok(None)),
            (b"Q\0\0\0\x04", Ok(Some((b'Q', 0)))),
            (b"Q\0\0\x01\x00rest", Ok(Some((b'Q', 252)))),
            (b"Q\0\0\0\x03", Err(())),
            (b"Q\x80\0\0\0", Err(())),
            (b"Q\x40\0\0\x03", Ok(Some((b'Q', MAX_PAYLOAD)))),
        ];
        for (bytes, expected) in cases {
            let got = Frame::read(bytes).map(|f| f.map(|f| (f.tag, f.payload))).map_err(|_| ());
            assert_eq!(got, expected, "{bytes:?}");
        }
        assert!(Frame::read(b"Q\x40\0\0\x04").is_err());
    }
}
