//! The client/server protocol of MySQL and MariaDB, as far as a replica and its source need it. No I/O.
//!
//! A packet is `length u24, sequence u8` and that many bytes. A message of 2^24 - 1 bytes or more is cut into packets of that length, followed by a
//! shorter, perhaps empty, one.

pub mod command;
mod frame;
pub mod login;
pub mod reply;
mod rsa;
pub mod text;

pub use frame::{Frames, MAX_PACKET, Messages, Piece, TooLong, message, packet_header};

/// A malformed message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProtocolError(pub String);

fn wrong(what: impl Into<String>) -> ProtocolError {
    ProtocolError(what.into())
}

/// A parser of values from the front of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.bytes(bytes)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|byte| byte[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|number| number as u32)
    }

    /// Takes bytes up to a zero, which is also taken, or the end.
    pub(crate) fn text(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0);
        let text = &self.0[..end.unwrap_or(self.0.len())];
        self.0 = &self.0[end.map_or(self.0.len(), |end| end + 1)..];
        text
    }

    /// Takes a number of one to nine bytes in the protocol's encoding; None also for NULL.
    pub(crate) fn packed(&mut self) -> Option<u64> {
        match self.u8()? {
            small @ 0..=0xfa => Some(u64::from(small)),
            0xfc => self.number(2),
            0xfd => self.number(3),
            0xfe => self.number(8),
            _ => None,
        }
    }

    /// Takes bytes preceded by their encoded length.
    pub(crate) fn packed_bytes(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.packed()?).ok()?;
        self.bytes(count)
    }
}

/// Appends bytes preceded by their encoded length.
pub(crate) fn put_packed(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        small @ 0..=0xfa => out.push(small as u8),
        medium @ 0xfb..=0xffff => {
            out.push(0xfc);
            out.extend_from_slice(&(medium as u16).to_le_bytes());
        }
        large => {
            out.push(0xfe);
            out.extend_from_slice(&(large as u64).to_le_bytes());
        }
    }
    out.extend_from_slice(bytes);
}
