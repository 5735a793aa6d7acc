//! Packets, and the messages in them.

/// Bytes of the longest packet.
pub const MAX_PACKET: usize = (1 << 24) - 1;

/// A part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Bytes of the piece; perhaps none.
    pub bytes: &'a [u8],
    /// True if a message begins with this piece.
    pub begins: bool,
    /// True if the message ends with this piece.
    pub ends: bool,
    /// Number of the packet.
    pub sequence: u8,
}

/// A parser of bytes into pieces of messages. Keeps four bytes.
#[derive(Debug)]
pub struct Frames {
    header: [u8; 4],
    have: usize,
    /// Bytes left of the packet.
    left: usize,
    /// True if another packet of the same message follows.
    more: bool,
    begins: bool,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { header: [0; 4], have: 0, left: 0, more: false, begins: true }
    }
}

impl Frames {
    /// Takes bytes from the front of `input`; None: all were taken, and more are needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Piece<'a>> {
        if self.have < self.header.len() {
            let taken = input.len().min(self.header.len() - self.have);
            self.header[self.have..self.have + taken].copy_from_slice(&input[..taken]);
            self.have += taken;
            *input = &input[taken..];
            if self.have < self.header.len() {
                return None;
            }
            let [a, b, c, _] = self.header;
            self.left = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
            self.more = self.left == MAX_PACKET;
        }
        if self.left > 0 && input.is_empty() {
            return None;
        }
        let (bytes, rest) = input.split_at(self.left.min(input.len()));
        *input = rest;
        self.left -= bytes.len();
        let ends = self.left == 0 && !self.more;
        let piece = Piece { bytes, begins: self.begins, ends, sequence: self.header[3] };
        self.begins = ends;
        if self.left == 0 {
            self.have = 0;
        }
        Some(piece)
    }
}

/// A message longer than the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of more than {limit} bytes")]
pub struct TooLong {
    /// The limit in bytes.
    pub limit: usize,
}

/// A parser of bytes into whole messages, up to a limit.
#[derive(Debug)]
pub struct Messages {
    frames: Frames,
    message: Vec<u8>,
    limit: usize,
}

impl Messages {
    /// Makes a parser of messages of up to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Messages {
        Messages { frames: Frames::default(), message: Vec::new(), limit }
    }

    /// Takes bytes from the front of `input` up to the end of a message; None: more are needed. Also returns the number of the last packet.
    ///
    /// # Errors
    /// The message is too long; the parser cannot go on.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<(u8, Vec<u8>)>, TooLong> {
        while let Some(piece) = self.frames.next(input) {
            if self.message.len() + piece.bytes.len() > self.limit {
                return Err(TooLong { limit: self.limit });
            }
            self.message.extend_from_slice(piece.bytes);
            if piece.ends {
                return Ok(Some((piece.sequence, std::mem::take(&mut self.message))));
            }
        }
        Ok(None)
    }
}

/// Encodes the header of a packet of `length` bytes, at most [`MAX_PACKET`].
#[must_use]
pub fn packet_header(length: usize, sequence: u8) -> [u8; 4] {
    [length as u8, (length >> 8) as u8, (length >> 16) as u8, sequence]
}

/// Appends a message, in as many packets as needed; returns the number of the packet after it.
pub fn message(out: &mut Vec<u8>, mut sequence: u8, payload: &[u8]) -> u8 {
    let mut rest = payload;
    loop {
        let (part, behind) = rest.split_at(rest.len().min(MAX_PACKET));
        out.extend_from_slice(&packet_header(part.len(), sequence));
        out.extend_from_slice(part);
        sequence = sequence.wrapping_add(1);
        rest = behind;
        if part.len() < MAX_PACKET {
            return sequence;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_message_takes_several_packets() {
        for (length, packets) in
            [(0, 1), (MAX_PACKET - 1, 1), (MAX_PACKET, 2), (MAX_PACKET + 1, 2), (2 * MAX_PACKET, 3)]
        {
            let mut bytes = Vec::new();
            assert_eq!(message(&mut bytes, 5, &vec![7; length]), 5 + packets);
            let mut messages = Messages::new(length);
            let (last, whole) = messages.next(&mut &bytes[..]).unwrap().unwrap();
            assert_eq!((last, whole.len()), (4 + packets, length));
            if length > 0 {
                assert_eq!(Messages::new(length - 1).next(&mut &bytes[..]), Err(TooLong { limit: length - 1 }));
            }
        }
    }

    proptest! {
        #[test]
        fn messages_are_what_was_sent_whatever_the_pieces(
            sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..10), pieces in 1_usize..20,
        ) {
            let mut bytes = Vec::new();
            for each in &sent {
                message(&mut bytes, 0, each);
            }
            let mut messages = Messages::new(30);
            let mut got = Vec::new();
            for mut piece in bytes.chunks(pieces) {
                while let Some((_, message)) = messages.next(&mut piece).unwrap() {
                    got.push(message);
                }
            }
            prop_assert_eq!(got, sent);
        }
    }
}
