//! Parsing of bytes into events, independent of the pieces in which the bytes arrive. Only the parts of an event that a caller needs are kept.

use crate::MAGIC;
use crate::event::{BodyError, CHECKSUM, Checksum, Format, HEADER, Header, IN_USE, Kind};

/// Longest accepted event, in bytes: more than the largest `max_allowed_packet` (1 GiB) makes possible.
pub const MAX_EVENT: u32 = (1 << 30) + (1 << 20);

/// Most bytes kept of the body of a statement or a transaction's beginning: enough to recognise it.
const BEGINNING: usize = 4 << 10;
/// Longest format event, announcement of a file, or heartbeat. These are kept whole.
const SHORT: usize = 64 << 10;
/// Longest list of GTIDs, which is kept whole.
const LIST: usize = 16 << 20;

/// The reason why bytes are not a binary log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// Wrong first bytes.
    #[error("the file does not begin with the four bytes of a binary log (FE 62 69 6E)")]
    Magic,
    /// Shorter than the header and checksum, or longer than any event of a server.
    #[error("the event at {at} says that it has {length} bytes: an event has from {least} to {most}")]
    Length {
        /// Offset of the event.
        at: u64,
        /// Length in its header.
        length: u32,
        /// Shortest possible length.
        least: usize,
        /// Longest accepted length.
        most: usize,
    },
    /// The end in the header is not the event's.
    #[error(
        "the event at {at} says that it ends at {said} (modulo 2^32), and it ends at {counted}: bytes are missing, or the source lies"
    )]
    Position {
        /// Offset of the event.
        at: u64,
        /// `end_log_pos`.
        said: u32,
        /// Offset plus length.
        counted: u64,
    },
    /// A wrong checksum.
    #[error(
        "the event at {at} (kind {kind}, {length} bytes) has the checksum {said:08x}, and its bytes make {counted:08x}: it is damaged"
    )]
    Checksum {
        /// Offset of the event.
        at: u64,
        /// Kind of the event.
        kind: u8,
        /// Length of the event.
        length: u32,
        /// Checksum of the event.
        said: u32,
        /// Checksum computed over its bytes.
        counted: u32,
    },
    /// A file does not begin with a format event.
    #[error("the first event has kind {kind}, and a binary log begins with a format event (15)")]
    NoFormat {
        /// The kind found.
        kind: u8,
    },
    /// A body that does not fit the event's kind.
    #[error("the event at {at}: {error}")]
    Body {
        /// Offset of the event.
        at: u64,
        /// The fault.
        error: BodyError,
    },
}

/// A checked event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Header of the event.
    pub header: Header,
    /// Offset in the file; of an artificial event the offset of the next one.
    pub at: u64,
    /// True if the event is in no file.
    pub artificial: bool,
    /// The body without checksum, or its beginning, or nothing: as much as a caller needs. A format event with its checksum.
    pub body: &'a [u8],
}

impl Event<'_> {
    /// Returns the offset of the file's next event.
    #[must_use]
    pub fn end(&self) -> u64 {
        if self.artificial { self.at } else { self.at.saturating_add(u64::from(self.header.length)) }
    }
}

/// The next item.
#[derive(Debug, PartialEq, Eq)]
pub enum Within<'w, 'i> {
    /// A plausible header of an event. Its bytes are `header.encode()`.
    Header {
        /// The header.
        header: Header,
        /// Offset of the event in the file.
        at: u64,
        /// True if the event is in no file.
        artificial: bool,
    },
    /// Bytes of the event's body or checksum, not checked yet.
    Bytes(&'i [u8]),
    /// The event is complete, and its checksum correct.
    Event(Event<'w>),
}

#[derive(Debug)]
enum Phase {
    Magic {
        seen: usize,
    },
    Header {
        bytes: [u8; HEADER],
        have: usize,
    },
    Body {
        header: Header,
        artificial: bool,
        left: u32,
    },
    /// A complete event, to be returned next.
    Whole {
        header: Header,
        artificial: bool,
    },
}

/// The parser; see the module.
#[derive(Debug)]
pub struct Walker {
    phase: Phase,
    /// Offset of the file's next event, or of the one being read.
    at: u64,
    checksum: Checksum,
    /// True if events that are in no file may come between those of the file.
    stream: bool,
    format_seen: bool,
    kept: Vec<u8>,
    /// Bytes of the body and checksum to keep.
    keep: usize,
    crc: crc32fast::Hasher,
    /// The last four bytes, if events end with a checksum.
    sum: [u8; CHECKSUM],
}

impl Walker {
    /// Starts at the first byte of a file.
    #[must_use]
    pub fn file() -> Walker {
        Walker::new(Phase::Magic { seen: 0 }, 0, Checksum::None, false)
    }

    /// Starts at the offset `at` of a file that a source sends, whose events end with `checksum`.
    #[must_use]
    pub fn stream(at: u64, checksum: Checksum) -> Walker {
        Walker::new(Phase::Header { bytes: [0; HEADER], have: 0 }, at, checksum, true)
    }

    fn new(phase: Phase, at: u64, checksum: Checksum, stream: bool) -> Walker {
        let crc = crc32fast::Hasher::new();
        Walker { phase, at, checksum, stream, format_seen: false, kept: Vec::new(), keep: 0, crc, sum: [0; CHECKSUM] }
    }

    /// Returns the offset of the file's next event, or of the one being read: everything before is complete.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// True if no byte of another event has come.
    #[must_use]
    pub fn is_between(&self) -> bool {
        matches!(self.phase, Phase::Header { have: 0, .. })
    }

    /// Returns the kind of the events' checksum.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Moves to `offset` of another file, where the source goes on. Must be called between two events.
    pub fn jump(&mut self, offset: u64) {
        self.at = offset;
    }

    /// Takes bytes from the front of `input`; None: all were taken, and more are needed.
    ///
    /// # Errors
    /// [`WalkError`]. The walker cannot go on.
    pub fn advance<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<Within<'_, 'i>>, WalkError> {
        loop {
            match &mut self.phase {
                Phase::Magic { seen } => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(None) };
                    if MAGIC.get(*seen) != Some(byte) {
                        return Err(WalkError::Magic);
                    }
                    *seen += 1;
                    *input = rest;
                    self.at += 1;
                    if *seen == MAGIC.len() {
                        self.phase = Phase::Header { bytes: [0; HEADER], have: 0 };
                    }
                }
                Phase::Header { bytes, have } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let taken = input.len().min(HEADER - *have);
                    bytes[*have..*have + taken].copy_from_slice(&input[..taken]);
                    *have += taken;
                    *input = &input[taken..];
                    if *have == HEADER {
                        let header = Header::parse(bytes);
                        let artificial = self.begin(header)?;
                        let left = header.length - HEADER as u32;
                        self.phase = if left == 0 {
                            Phase::Whole { header, artificial }
                        } else {
                            Phase::Body { header, artificial, left }
                        };
                        return Ok(Some(Within::Header { header, at: self.at, artificial }));
                    }
                }
                Phase::Body { header, artificial, left } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let taken = input.len().min(*left as usize);
                    let (piece, rest) = input.split_at(taken);
                    *input = rest;
                    let (header, artificial, was_left) = (*header, *artificial, *left as usize);
                    *left -= taken as u32;
                    if *left == 0 {
                        self.phase = Phase::Whole { header, artificial };
                    }
                    self.take(header, piece, was_left);
                    return Ok(Some(Within::Bytes(piece)));
                }
                Phase::Whole { header, artificial } => {
                    let (header, artificial) = (*header, *artificial);
                    self.phase = Phase::Header { bytes: [0; HEADER], have: 0 };
                    let at = self.at;
                    self.finish(header)?;
                    if !artificial {
                        self.at += u64::from(header.length);
                    }
                    let unkept = if header.kind == Kind::FORMAT { 0 } else { self.checksum.bytes() };
                    let body = (header.length as usize - HEADER).saturating_sub(unkept);
                    let body = &self.kept[..self.kept.len().min(body)];
                    return Ok(Some(Within::Event(Event { header, at, artificial, body })));
                }
            }
        }
    }

    /// Checks a header. Returns true if the event is in no file.
    fn begin(&mut self, header: Header) -> Result<bool, WalkError> {
        let artificial = self.stream
            && (header.is_artificial() || (header.kind == Kind::FORMAT && (header.end == 0 || self.at != 4)));
        let ends = if header.kind == Kind::FORMAT { CHECKSUM } else { self.checksum.bytes() };
        let most = match header.kind {
            Kind::FORMAT | Kind::ROTATE | Kind::HEARTBEAT | Kind::HEARTBEAT_V2 => SHORT,
            Kind::MARIADB_GTID_LIST | Kind::MYSQL_PREVIOUS_GTIDS => LIST,
            _ => MAX_EVENT as usize,
        };
        let least = HEADER + ends;
        if (header.length as usize) < least || header.length as usize > most {
            return Err(WalkError::Length { at: self.at, length: header.length, least, most });
        }
        let counted = self.at + u64::from(header.length);
        if !artificial && header.end != 0 && header.end != counted as u32 {
            return Err(WalkError::Position { at: self.at, said: header.end, counted });
        }
        if !self.stream && !self.format_seen && header.kind != Kind::FORMAT {
            return Err(WalkError::NoFormat { kind: header.kind.0 });
        }
        self.kept.clear();
        self.keep = match header.kind {
            Kind::FORMAT | Kind::ROTATE | Kind::HEARTBEAT | Kind::HEARTBEAT_V2 => SHORT,
            Kind::MARIADB_GTID_LIST | Kind::MYSQL_PREVIOUS_GTIDS => LIST,
            Kind::QUERY | Kind::MARIADB_GTID | Kind::MYSQL_GTID | Kind::MYSQL_ANONYMOUS | Kind::MYSQL_GTID_TAGGED => {
                BEGINNING
            }
            _ => 0,
        };
        self.crc = crc32fast::Hasher::new();
        let mut summed = header;
        if header.kind == Kind::FORMAT {
            summed.flags &= !IN_USE;
        }
        self.crc.update(&summed.encode());
        Ok(artificial)
    }

    /// Takes a piece; `left`: bytes of body and checksum from `piece` on.
    fn take(&mut self, header: Header, piece: &[u8], left: usize) {
        let room = self.keep.saturating_sub(self.kept.len()).min(piece.len());
        self.kept.extend_from_slice(&piece[..room]);
        // A format event is kept whole, and states itself whether it has a checksum.
        if header.kind == Kind::FORMAT || self.checksum == Checksum::None {
            return;
        }
        let body = left.saturating_sub(CHECKSUM).min(piece.len());
        self.crc.update(&piece[..body]);
        for (index, byte) in piece.iter().enumerate().skip(body) {
            self.sum[CHECKSUM - (left - index)] = *byte;
        }
    }

    fn finish(&mut self, header: Header) -> Result<(), WalkError> {
        let at = self.at;
        if header.kind == Kind::FORMAT {
            let format = Format::parse(&self.kept).map_err(|error| WalkError::Body { at, error })?;
            self.format_seen = true;
            self.checksum = format.checksum;
            let body = self.kept.len() - CHECKSUM;
            self.crc.update(&self.kept[..body]);
            self.sum.copy_from_slice(&self.kept[body..]);
        }
        if self.checksum == Checksum::None {
            return Ok(());
        }
        let (said, counted) = (u32::from_le_bytes(self.sum), std::mem::take(&mut self.crc).finalize());
        if said == counted {
            return Ok(());
        }
        Err(WalkError::Checksum { at, kind: header.kind.0, length: header.length, said, counted })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::event::{announce, artificial, heartbeat};
    use crate::test_log::Log;

    /// Kinds, offsets and ends of events; and the end of the walk.
    type Walked = (Vec<(Kind, u64, u64)>, Result<u64, WalkError>);

    fn walk(bytes: &[u8], pieces: usize) -> Walked {
        let mut walker = Walker::file();
        let mut seen = Vec::new();
        for mut piece in bytes.chunks(pieces.max(1)) {
            loop {
                match walker.advance(&mut piece) {
                    Ok(Some(Within::Event(event))) => seen.push((event.header.kind, event.at, event.end())),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => return (seen, Err(error)),
                }
            }
        }
        let offset = walker.offset();
        (seen, Ok(offset))
    }

    #[test]
    fn events_of_a_file_whatever_the_pieces() {
        let log = Log::new(true).transaction(0, 1, b"insert").transaction(0, 2, b"update");
        let whole = walk(&log.bytes, usize::MAX);
        assert_eq!(whole.1, Ok(log.bytes.len() as u64));
        assert_eq!(whole.0.len(), 8);
        for pieces in 1..40 {
            assert_eq!(walk(&log.bytes, pieces), whole);
        }
    }

    #[test]
    fn a_flipped_byte_is_found() {
        let log = Log::new(true).transaction(0, 1, b"insert");
        for at in 0..log.bytes.len() {
            let mut broken = log.bytes.clone();
            broken[at] ^= 0x40;
            let (_, end) = walk(&broken, 100);
            // A length beyond the end of the file waits for more bytes: the file is torn there.
            assert!(end.is_err() || end.as_ref().is_ok_and(|end| *end < broken.len() as u64), "byte {at}: {end:?}");
        }
        let mut in_use = log.bytes.clone();
        in_use[4 + 17] |= 1;
        assert!(walk(&in_use, 100).1.is_ok(), "a file that its source has open");
    }

    #[test]
    fn a_lie_about_the_position_is_found() {
        let mut log = Log::new(false);
        log.push(Kind::STOP, 0, b"");
        let at = log.bytes.len() - HEADER;
        for (said, wrong) in
            [(log.bytes.len() as u32, false), (0, false), (log.bytes.len() as u32 + 1, true), (4, true)]
        {
            log.bytes[at + 13..at + 17].copy_from_slice(&said.to_le_bytes());
            let (_, end) = walk(&log.bytes, 100);
            assert_eq!(matches!(end, Err(WalkError::Position { .. })), wrong, "{said}: {end:?}");
        }
    }

    #[test]
    fn lengths_have_limits() {
        for (kind, length, fits) in [
            (Kind::XID, 18, false),
            (Kind::XID, 22, false),
            (Kind::XID, MAX_EVENT, true),
            (Kind::XID, MAX_EVENT + 1, false),
            (Kind::XID, u32::MAX, false),
            (Kind::ROTATE, 1 << 17, false),
            (Kind::MARIADB_GTID_LIST, 1 << 25, false),
        ] {
            let header = Header { timestamp: 1, kind, server_id: 1, length, end: 0, flags: 0 };
            let mut walker = Walker::stream(100, Checksum::Crc32);
            let bytes = header.encode();
            let result = walker.advance(&mut &bytes[..]);
            assert_eq!(result.is_ok(), fits, "{length}: {result:?}");
        }
    }

    #[test]
    fn what_is_in_no_file_moves_nothing() {
        let mut walker = Walker::stream(500, Checksum::Crc32);
        let mut bytes = announce(1, "bin.000007", 500, Checksum::Crc32);
        bytes.extend(heartbeat(1, "bin.000007", 500, Checksum::Crc32));
        let mut input = &bytes[..];
        let mut events = 0;
        while let Some(within) = walker.advance(&mut input).unwrap() {
            if let Within::Event(event) = within {
                assert!(event.artificial && event.at == 500 && event.end() == 500);
                events += 1;
            }
        }
        assert_eq!((events, walker.offset()), (2, 500));
        // Its place is known before its end.
        let xid = artificial(Kind::XID, 1, 527 + 4, 0, &[0; 8], Checksum::Crc32);
        let mut input = &xid[..HEADER];
        assert!(matches!(walker.advance(&mut input), Ok(Some(Within::Header { artificial: false, at: 500, .. }))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), pieces in 1_usize..50, begins: bool) {
            let mut file = if begins { Log::new(true).bytes } else { Vec::new() };
            file.extend_from_slice(&bytes);
            let _ = walk(&file, pieces);
            let mut walker = Walker::stream(4, Checksum::Crc32);
            let mut input = &bytes[..];
            while let Ok(Some(_)) = walker.advance(&mut input) {}
        }
    }
}
