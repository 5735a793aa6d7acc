//! The stream of a source after a request for events: packets, each with an event. Without I/O.
//!
//! ```text
//!  packet:  00 │ (semi-synchronous: EF, 1 if an acknowledgement is wanted) │ event        FF … error      FE end
//! ```

use ::binlog::event::{Checksum, HEADER, Header, Kind, Rotate};
use ::binlog::gtid::{Gtid, State};
use ::binlog::protocol::reply::ServerError;
use ::binlog::protocol::{Frames, command};
use ::binlog::{Dialect, Group, Groups, WalkError, Walker, Within};

/// Most bytes read of a source's error.
const MAX_ERROR: usize = 4 << 10;

/// A result of parsing received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// The header of an event of the file: the next bytes of the file.
    Header([u8; HEADER]),
    /// Bytes of the file, next after those before.
    Bytes(&'a [u8]),
    /// The end of an event of the file, at `end`.
    Event(Whole),
    /// The file and offset of the events that follow.
    Announced(Rotate),
    /// A heartbeat of the source, at this offset of its current file.
    Heartbeat(u32),
}

/// A complete event of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) end: u64,
    pub(crate) kind: Kind,
    /// True if all transactions up to here are complete.
    pub(crate) whole: bool,
    /// The transaction that this event ends.
    pub(crate) gtid: Option<Gtid>,
    /// Start of the event's transaction, or of the event if it belongs to none.
    pub(crate) group: u64,
    /// True if the source waits for an acknowledgement.
    pub(crate) wanted: bool,
    /// State before the file's first event, as the file records it.
    pub(crate) begins: Option<State>,
}

/// A reason why the source's stream cannot be parsed further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("the source ends the stream: {0}")]
    Refused(ServerError),
    #[error("the source has ended the stream")]
    Ended,
    #[error("{0}")]
    Walk(#[from] WalkError),
    #[error("the source does not keep to the protocol: {0}")]
    Protocol(String),
    #[error("the source sends an event in more or fewer bytes than its header says")]
    Cut,
    #[error("{0}")]
    Body(#[from] ::binlog::event::BodyError),
}

#[derive(Debug, PartialEq, Eq)]
enum Packet {
    /// Before the first byte of a packet.
    Kind,
    /// Before the first byte that semi-synchronous sources add.
    Mark,
    Flag,
    Event,
    Error(Vec<u8>),
}

/// The parser of the stream; see the module.
#[derive(Debug)]
pub(crate) struct Receiver {
    dialect: Dialect,
    frames: Frames,
    packet: Packet,
    walker: Walker,
    groups: Groups,
    semisync: bool,
    wanted: bool,
    artificial: bool,
    group: u64,
    /// True if the packet has ended, and the event must end with it.
    ends: bool,
}

impl Receiver {
    /// Starts at the offset `at` of a file whose events end with `checksum`.
    pub(crate) fn new(dialect: Dialect, at: u64, checksum: Checksum, semisync: bool) -> Receiver {
        Receiver {
            dialect,
            frames: Frames::default(),
            packet: Packet::Kind,
            walker: Walker::stream(at, checksum),
            groups: Groups::default(),
            semisync,
            wanted: false,
            artificial: false,
            group: at,
            ends: false,
        }
    }

    /// Moves to `offset` of another file, where the source goes on.
    pub(crate) fn jump(&mut self, offset: u64) {
        self.walker.jump(offset);
        self.groups.reset();
        self.group = offset;
    }

    /// Takes bytes from the front of `input`; None once all were taken. `piece` keeps the rest of a packet between two calls, and is empty at first.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
        piece: &mut &'a [u8],
    ) -> Result<Option<Step<'a>>, ReceiveError> {
        loop {
            if piece.is_empty() && !self.ends {
                let Some(next) = self.frames.next(input) else { return Ok(None) };
                if next.begins {
                    self.packet = Packet::Kind;
                }
                *piece = next.bytes;
                self.ends = next.ends;
            }
            while self.packet != Packet::Event {
                if let Packet::Error(text) = &mut self.packet {
                    text.extend(piece.iter().take(MAX_ERROR.saturating_sub(text.len())));
                    *piece = &[];
                }
                let Some((byte, rest)) = piece.split_first() else { break };
                *piece = rest;
                self.packet = match (&self.packet, byte) {
                    (Packet::Kind, 0x00) if self.semisync => Packet::Mark,
                    (Packet::Kind, 0x00) => {
                        self.wanted = false;
                        Packet::Event
                    }
                    (Packet::Kind, 0xff) => Packet::Error(vec![0xff]),
                    (Packet::Kind, 0xfe) => return Err(ReceiveError::Ended),
                    (Packet::Kind, other) => {
                        return Err(ReceiveError::Protocol(format!("a packet begins with {other:02x}")));
                    }
                    (Packet::Mark, &command::SEMISYNC) => Packet::Flag,
                    (Packet::Mark, _) => {
                        return Err(ReceiveError::Protocol("an event without a semi-synchronous mark".into()));
                    }
                    (Packet::Flag, flag) => {
                        self.wanted = flag & 1 != 0;
                        Packet::Event
                    }
                    (Packet::Event | Packet::Error(_), _) => break,
                };
            }
            if let Packet::Error(text) = &self.packet
                && self.ends
            {
                return Err(ReceiveError::Refused(ServerError::parse(text)));
            }
            // An event that fills its packets to the last byte is followed by an empty one.
            if self.packet == Packet::Event && (self.ends || !piece.is_empty()) {
                match self.walker.advance(piece)? {
                    Some(Within::Header { header, artificial, .. }) => {
                        self.artificial = artificial;
                        if !artificial {
                            return Ok(Some(Step::Header(header.encode())));
                        }
                        continue;
                    }
                    Some(Within::Bytes(bytes)) => {
                        if !self.artificial {
                            return Ok(Some(Step::Bytes(bytes)));
                        }
                        continue;
                    }
                    Some(Within::Event(event)) => {
                        if !piece.is_empty() || !self.ends {
                            return Err(ReceiveError::Cut);
                        }
                        self.ends = false;
                        let (header, wanted) = (event.header, self.wanted);
                        if event.artificial {
                            match told(&header, event.body)? {
                                Some(step) => return Ok(Some(step)),
                                None => continue,
                            }
                        }
                        let group = self.groups.next(&event)?;
                        if matches!(group, Group::Begins(_) | Group::Outside) {
                            self.group = event.at;
                        }
                        let gtid = match group {
                            Group::Ends(name) => name,
                            _ => None,
                        };
                        let begins = self.dialect.begins(&event)?;
                        return Ok(Some(Step::Event(Whole {
                            end: event.end(),
                            kind: header.kind,
                            whole: self.groups.is_between(),
                            gtid,
                            group: self.group,
                            wanted,
                            begins,
                        })));
                    }
                    None => {}
                }
            }
            if self.ends && piece.is_empty() {
                if self.packet != Packet::Event || !self.walker.is_between() {
                    return Err(ReceiveError::Cut);
                }
                self.ends = false;
            }
        }
    }
}

/// Parses an event that is not part of a file.
fn told(header: &Header, body: &[u8]) -> Result<Option<Step<'static>>, ReceiveError> {
    Ok(match header.kind {
        Kind::ROTATE => Some(Step::Announced(Rotate::parse(body)?)),
        Kind::HEARTBEAT | Kind::HEARTBEAT_V2 => Some(Step::Heartbeat(header.end)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ::binlog::event::{announce, artificial, heartbeat};
    use ::binlog::protocol::message;
    use proptest::prelude::*;

    use super::*;

    const SUM: Checksum = Checksum::Crc32;

    fn event(at: u64, kind: Kind, body: &[u8]) -> Vec<u8> {
        let end = at as u32 + (HEADER + body.len() + 4) as u32;
        artificial(kind, 1, end, 0, body, SUM)
    }

    fn packet(out: &mut Vec<u8>, flag: u8, event: &[u8]) {
        let mut payload = vec![0, 0xef, flag];
        payload.extend_from_slice(event);
        message(out, 1, &payload);
    }

    fn gtid(sequence: u64) -> Vec<u8> {
        let mut body = sequence.to_le_bytes().to_vec();
        body.extend_from_slice(&[0; 11]);
        body
    }

    fn run(bytes: &[u8], pieces: usize) -> (Vec<u8>, Vec<String>, Option<String>) {
        let mut receiver = Receiver::new(Dialect::MariaDb, 500, SUM, true);
        let (mut file, mut said) = (Vec::new(), Vec::new());
        for chunk in bytes.chunks(pieces) {
            let (mut input, mut piece) = (chunk, &[][..]);
            loop {
                match receiver.next(&mut input, &mut piece) {
                    Ok(None) => break,
                    Ok(Some(Step::Header(bytes))) => file.extend_from_slice(&bytes),
                    Ok(Some(Step::Bytes(bytes))) => file.extend_from_slice(bytes),
                    Ok(Some(Step::Event(whole))) => said.push(format!(
                        "{} {} {:?} {} {}",
                        whole.end,
                        whole.whole,
                        whole.gtid.map(|gtid| gtid.to_string()),
                        whole.group,
                        whole.wanted
                    )),
                    Ok(Some(Step::Announced(rotate))) => said.push(format!("file {}", rotate.position)),
                    Ok(Some(Step::Heartbeat(at))) => said.push(format!("at {at}")),
                    Err(error) => return (file, said, Some(error.to_string())),
                }
            }
        }
        (file, said, None)
    }

    #[test]
    fn a_stream_whatever_the_pieces() {
        let mut bytes = Vec::new();
        packet(&mut bytes, 0, &announce(1, "bin.000007", 500, SUM));
        let begin = event(500, Kind::MARIADB_GTID, &gtid(9));
        let rows = event(500 + begin.len() as u64, Kind(23), &[7; 100]);
        let xid = event(500 + (begin.len() + rows.len()) as u64, Kind::XID, &[0; 8]);
        packet(&mut bytes, 0, &begin);
        packet(&mut bytes, 0, &rows);
        packet(&mut bytes, 0, &heartbeat(1, "bin.000007", 500, SUM));
        packet(&mut bytes, 1, &xid);
        let whole = run(&bytes, usize::MAX);
        assert_eq!(whole.0, [begin, rows, xid].concat());
        assert_eq!(
            whole.1,
            [
                "file 500",
                "542 false None 500 false",
                "665 false None 500 false",
                "at 500",
                "696 true Some(\"0-1-9\") 500 true"
            ]
        );
        assert_eq!(whole.2, None);
        for pieces in 1..200 {
            assert_eq!(run(&bytes, pieces), whole, "{pieces}");
        }
    }

    /// MariaDB 11.4 and later write `end_log_pos` only at the start and end of a transaction: positions in between are counted.
    #[test]
    fn events_that_do_not_say_where_they_end_are_counted() {
        let begin = event(500, Kind::MARIADB_GTID, &gtid(9));
        let rows = artificial(Kind(23), 1, 0, 0, &[7; 100], SUM);
        let xid = event(500 + (begin.len() + rows.len()) as u64, Kind::XID, &[0; 8]);
        let mut bytes = Vec::new();
        for event in [&begin, &rows, &xid] {
            packet(&mut bytes, 1, event);
        }
        let (file, said, error) = run(&bytes, 7);
        assert_eq!((file, error), ([begin.clone(), rows.clone(), xid].concat(), None));
        let ends = ["542 false None 500 true", "665 false None 500 true", "696 true Some(\"0-1-9\") 500 true"];
        assert_eq!(said, ends);
        // The omitted event shows where the transaction ends.
        let mut holes = Vec::new();
        packet(&mut holes, 1, &begin);
        packet(&mut holes, 1, &event(500 + (begin.len() + rows.len()) as u64, Kind::XID, &[0; 8]));
        assert!(run(&holes, 7).2.unwrap().contains("the source lies"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let xid = event(500, Kind::XID, &[0; 8]);
        let of = |event: &[u8]| {
            let mut bytes = Vec::new();
            packet(&mut bytes, 1, event);
            run(&bytes, usize::MAX).2.unwrap_or_default()
        };
        assert_eq!(of(&xid), "");
        let lies = event(400, Kind::XID, &[0; 8]);
        assert!(of(&lies).contains("the source lies"), "{}", of(&lies));
        let mut damaged = xid.clone();
        damaged[20] ^= 1;
        assert!(of(&damaged).contains("damaged"));
        assert!(of(&xid[..20]).contains("fewer bytes"));
        assert!(of(&[&xid[..], &[1]].concat()).contains("fewer bytes"));
        let mut huge = xid;
        huge[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(of(&huge).contains("4294967295 bytes"));
        let mut bytes = Vec::new();
        message(&mut bytes, 1, b"\xff\xd4\x04#HY000Could not find first log file name");
        assert!(run(&bytes, 3).2.unwrap().contains("Could not find first log"));
        bytes.clear();
        message(&mut bytes, 1, &[0xfe, 0, 0, 2, 0]);
        assert_eq!(run(&bytes, 3).2.unwrap(), "the source has ended the stream");
        bytes.clear();
        message(&mut bytes, 1, &[0, 1]);
        assert!(run(&bytes, 3).2.unwrap().contains("without a semi-synchronous mark"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), pieces in 1_usize..40) {
            let mut sent = bytes.clone();
            if sent.len() > 4 {
                sent[1] = 0;
                sent[2] = 0;
            }
            let _ = run(&sent, pieces);
        }
    }
}
