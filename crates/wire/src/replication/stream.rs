//! Messages of a replication stream.

use crate::message::message;
use crate::{Frame, FrameError, HEADER};

/// Size of a CopyData message before its WAL: header, `w`, position, end of the server's log, time.
pub const WAL_HEADER: usize = HEADER + 1 + 24;

/// Maximum size of an accepted message without WAL while streaming, in bytes: errors, notices, rows.
pub const MAX_CONTROL: usize = 64 << 10;

/// Microseconds from 1970 to 2000, PostgreSQL's epoch.
const EPOCH: i64 = 946_684_800_000_000;

/// Event of a server's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A piece of WAL: the part of the message that has arrived. The next piece continues at its end.
    Wal {
        /// Position of the first byte.
        at: u64,
        /// The WAL, at least one byte.
        data: &'a [u8],
    },
    /// `k`, or the header of a `w` message: the server's position.
    Keepalive {
        /// End of the server's log.
        end: u64,
        /// True if the server requests a status message at once.
        reply: bool,
    },
    /// `CopyDone`.
    Done,
    /// Any other message.
    Message {
        /// Tag of the message.
        tag: u8,
        /// The whole payload.
        payload: &'a [u8],
    },
}

/// Error in a stream: the connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Error in a message's header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A message without WAL is too long.
    #[error("message {:?} of {length} bytes in a replication stream: expected at most {MAX_CONTROL}", char::from(*tag))]
    TooLong {
        /// Tag of the message.
        tag: u8,
        /// Length of the payload in bytes.
        length: usize,
    },
    /// A CopyData message that is neither WAL nor a keepalive, or is too short.
    #[error("malformed replication message of kind {:?}", char::from(*kind))]
    Malformed {
        /// First byte of the payload; 0 if there is none.
        kind: u8,
    },
    /// The WAL is beyond the last possible position.
    #[error("WAL at {}: the position is out of range", super::position(*at))]
    Position {
        /// The position in the message.
        at: u64,
    },
}

/// Decoder of a server's stream in pieces of any size. WAL is passed on as it arrives, so that no message has to be buffered completely.
#[derive(Debug, Default, Clone)]
pub struct WalStream {
    /// Position of the next byte of WAL, and number of the bytes of its message still to come.
    wal: Option<(u64, usize)>,
}

impl WalStream {
    /// Returns the next event in `bytes` and the number of bytes that it consumed; None if more are needed (at most [`MAX_CONTROL`] + [`HEADER`] in
    /// all). An event that consumes bytes may also be a [`Event::Keepalive`] made of a WAL message's header.
    ///
    /// # Errors
    /// See [`StreamError`].
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, StreamError> {
        if let Some((at, left)) = self.wal {
            let data = &bytes[..left.min(bytes.len())];
            if data.is_empty() {
                return Ok(None);
            }
            let left = left - data.len();
            self.wal = (left > 0).then_some((at + data.len() as u64, left));
            return Ok(Some((Event::Wal { at, data }, data.len())));
        }
        let Some(frame) = Frame::read(bytes)? else { return Ok(None) };
        match frame.tag {
            b'd' => self.copy_data(frame, bytes),
            tag => {
                if frame.payload > MAX_CONTROL {
                    return Err(StreamError::TooLong { tag, length: frame.payload });
                }
                let Some(payload) = bytes.get(HEADER..frame.total()) else { return Ok(None) };
                let event = if tag == b'c' { Event::Done } else { Event::Message { tag, payload } };
                Ok(Some((event, frame.total())))
            }
        }
    }

    fn copy_data<'a>(&mut self, frame: Frame, bytes: &'a [u8]) -> Result<Option<(Event<'a>, usize)>, StreamError> {
        let malformed = |kind| StreamError::Malformed { kind };
        if frame.payload == 0 {
            return Err(malformed(0));
        }
        let Some(&kind) = bytes.get(HEADER) else { return Ok(None) };
        match kind {
            b'w' => {
                let length = frame.payload.checked_sub(25).ok_or(malformed(kind))?;
                let Some(header) = bytes.get(HEADER + 1..WAL_HEADER) else { return Ok(None) };
                let (at, end) = (number(header, 0), number(header, 8));
                if at.checked_add(length as u64).is_none() {
                    return Err(StreamError::Position { at });
                }
                self.wal = (length > 0).then_some((at, length));
                Ok(Some((Event::Keepalive { end, reply: false }, WAL_HEADER)))
            }
            b'k' => {
                if frame.payload != 18 {
                    return Err(malformed(kind));
                }
                let Some(payload) = bytes.get(HEADER + 1..frame.total()) else { return Ok(None) };
                let event = Event::Keepalive { end: number(payload, 0), reply: payload[16] != 0 };
                Ok(Some((event, frame.total())))
            }
            kind => Err(malformed(kind)),
        }
    }
}

/// Returns the eight bytes at `at` as a number; the caller has checked the length.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

// === to a standby ===

/// Appends `CopyBothResponse`: overall format 0, no columns.
pub fn copy_both(out: &mut Vec<u8>) {
    message(out, b'W', |out| out.extend([0, 0, 0]));
}

/// Returns the start of a CopyData message with `length` bytes of WAL from position `at` on; the caller sends the WAL separately. `end` is the end of
/// the server's log, `now` in microseconds since 1970.
#[must_use]
pub fn wal_header(at: u64, end: u64, now: i64, length: usize) -> [u8; WAL_HEADER] {
    let mut header = [0; WAL_HEADER];
    header[0] = b'd';
    // The pieces are far below 4 GiB.
    header[1..5].copy_from_slice(&((length + WAL_HEADER - 1) as u32).to_be_bytes());
    header[5] = b'w';
    header[6..14].copy_from_slice(&at.to_be_bytes());
    header[14..22].copy_from_slice(&end.to_be_bytes());
    header[22..30].copy_from_slice(&(now.wrapping_sub(EPOCH)).to_be_bytes());
    header
}

/// Appends a keepalive (`k`). `now` in microseconds since 1970.
pub fn keepalive(out: &mut Vec<u8>, end: u64, now: i64, reply: bool) {
    message(out, b'd', |out| {
        out.push(b'k');
        out.extend(end.to_be_bytes());
        out.extend(now.wrapping_sub(EPOCH).to_be_bytes());
        out.push(u8::from(reply));
    });
}

// === to a server ===

/// Appends a status message (`r`) with the receiver's positions. `apply` is 0 if the receiver does not apply WAL. `now` in microseconds since 1970.
pub fn status(out: &mut Vec<u8>, write: u64, flush: u64, apply: u64, now: i64, reply: bool) {
    message(out, b'd', |out| {
        out.push(b'r');
        for number in [write, flush, apply] {
            out.extend(number.to_be_bytes());
        }
        out.extend(now.wrapping_sub(EPOCH).to_be_bytes());
        out.push(u8::from(reply));
    });
}

/// Appends a feedback message (`h`): the oldest transactions that queries on standbys still need (ID 0: none), each with its epoch. `now` in
/// microseconds since 1970.
pub fn feedback(out: &mut Vec<u8>, now: i64, xmin: (u32, u32), catalog_xmin: (u32, u32)) {
    message(out, b'd', |out| {
        out.push(b'h');
        out.extend(now.wrapping_sub(EPOCH).to_be_bytes());
        for (xid, epoch) in [xmin, catalog_xmin] {
            out.extend(xid.to_be_bytes());
            out.extend(epoch.to_be_bytes());
        }
    });
}

/// Reply of a standby while streaming: the payload of a CopyData message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// Status message (`r`).
    Status {
        /// Written position, not necessarily durable. May be below `flush` just after a start.
        write: u64,
        /// Durable position.
        flush: u64,
        /// Replayed position; 0 if the receiver does not replay WAL.
        apply: u64,
        /// True if the standby requests a keepalive at once.
        reply: bool,
    },
    /// Feedback message (`h`): transaction ID and epoch; ID 0 means none.
    Feedback {
        /// The oldest transaction that a query needs.
        xmin: (u32, u32),
        /// The oldest transaction whose catalog rows are needed.
        catalog_xmin: (u32, u32),
    },
}

/// Decodes the payload of a standby's CopyData message. `None` if it is of neither kind or has the wrong length; no version sends longer ones.
#[must_use]
pub fn read_reply(payload: &[u8]) -> Option<Reply> {
    let (&kind, rest) = payload.split_first()?;
    let word = |at: usize| rest.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
    match (kind, rest.len()) {
        (b'r', 33) => Some(Reply::Status {
            write: number(rest, 0),
            flush: number(rest, 8),
            apply: number(rest, 16),
            reply: rest[32] != 0,
        }),
        (b'h', 24) => Some(Reply::Feedback { xmin: (word(8), word(12)), catalog_xmin: (word(16), word(20)) }),
        _ => None,
    }
}

// === of a relay ===

/// Durable position of a relay's log, sent by the relay while `WATCH_FLUSHED` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flushed {
    /// Identifier of the log's database system.
    pub system: u64,
    /// The highest term that the relay has promised to.
    pub term: u64,
    /// Timeline that is being written.
    pub timeline: u32,
    /// Position on that timeline up to which the log is durable.
    pub at: u64,
}

impl Flushed {
    const BYTES: usize = 1 + 8 + 8 + 4 + 8;

    /// Appends the message, as CopyData.
    pub fn write(self, out: &mut Vec<u8>) {
        message(out, b'd', |out| {
            out.push(b'f');
            out.extend(self.system.to_be_bytes());
            out.extend(self.term.to_be_bytes());
            out.extend(self.timeline.to_be_bytes());
            out.extend(self.at.to_be_bytes());
        });
    }

    /// Decodes the payload of a CopyData message; `None` if it is another message.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Flushed> {
        if payload.first() != Some(&b'f') || payload.len() != Flushed::BYTES {
            return None;
        }
        let timeline = payload.get(17..21).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)?;
        Some(Flushed { system: number(payload, 1), term: number(payload, 9), timeline, at: number(payload, 21) })
    }
}

/// `ParameterStatus` of a relay at login: it answers a [`Question`] while `WATCH_FLUSHED` runs. A relay of an earlier version does not send it, and
/// closes the connection at a question.
pub const ANSWERS_QUESTIONS: (&str, &str) = ("kingpost_answers_questions", "on");

/// Question of a proxy to a relay while `WATCH_FLUSHED` runs: the relay's promises by now. A `CopyData` message whose payload is `q` and the number,
/// 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Number that rises with each question on a connection. The answer repeats it.
    pub number: u64,
}

/// A relay's answer to a [`Question`]: its promises when it read the question, or later. A `CopyData` message whose payload is `p`, the question's
/// number (8 bytes), system (8), term (8), fenced timeline (4) and timeline (4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promised {
    /// Number of the question.
    pub number: u64,
    /// Identifier of the database system of the relay's log.
    pub system: u64,
    /// The highest term of a failover that the relay has promised to; 0: none.
    pub term: u64,
    /// The last timeline of which the relay accepts no more WAL; 0: none. A relay that has lost its state answers `u32::MAX`: none of its answers may
    /// be relied on.
    pub fenced: u32,
    /// Timeline of the relay's log.
    pub timeline: u32,
}

impl Question {
    const BYTES: usize = 1 + 8;

    /// Appends the question as a `CopyData` message.
    pub fn write(self, out: &mut Vec<u8>) {
        message(out, b'd', |out| {
            out.push(b'q');
            out.extend(self.number.to_be_bytes());
        });
    }

    /// Decodes the payload of a `CopyData` message; None if it is another message.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Question> {
        let is_one = payload.first() == Some(&b'q') && payload.len() == Question::BYTES;
        is_one.then(|| Question { number: number(payload, 1) })
    }
}

impl Promised {
    const BYTES: usize = 1 + 8 + 8 + 8 + 4 + 4;

    /// Appends the answer as a `CopyData` message.
    pub fn write(self, out: &mut Vec<u8>) {
        message(out, b'd', |out| {
            out.push(b'p');
            for number in [self.number, self.system, self.term] {
                out.extend(number.to_be_bytes());
            }
            out.extend(self.fenced.to_be_bytes());
            out.extend(self.timeline.to_be_bytes());
        });
    }

    /// Decodes the payload of a `CopyData` message; None if it is another message.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Promised> {
        if payload.first() != Some(&b'p') || payload.len() != Promised::BYTES {
            return None;
        }
        let timeline = |at: usize| payload.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
        Some(Promised {
            number: number(payload, 1),
            system: number(payload, 9),
            term: number(payload, 17),
            fenced: timeline(25)?,
            timeline: timeline(29)?,
        })
    }
}

/// Appends `CopyOutResponse`: binary, no columns.
pub fn copy_out(out: &mut Vec<u8>) {
    message(out, b'H', |out| out.extend([1, 0, 0]));
}
