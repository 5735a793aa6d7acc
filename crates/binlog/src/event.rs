//! Events: the header, and the bodies that a relay of a log must parse. All other bodies are opaque bytes.
//!
//! Sources of the format: the "Binlog Event" pages of MySQL's internals manual and of MariaDB's knowledge base ("Replication Protocol").

use crate::gtid::{mariadb, mysql};

/// Bytes of an event's header.
pub const HEADER: usize = 19;
/// Bytes of an event's checksum, at its end.
pub const CHECKSUM: usize = 4;

/// Kind of an event: the type byte in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind(pub u8);

#[allow(missing_docs)] // The names are the formats' own.
impl Kind {
    pub const QUERY: Kind = Kind(2);
    pub const STOP: Kind = Kind(3);
    pub const ROTATE: Kind = Kind(4);
    pub const INTVAR: Kind = Kind(5);
    pub const APPEND_BLOCK: Kind = Kind(9);
    pub const RAND: Kind = Kind(13);
    pub const USER_VAR: Kind = Kind(14);
    pub const FORMAT: Kind = Kind(15);
    pub const XID: Kind = Kind(16);
    pub const BEGIN_LOAD_QUERY: Kind = Kind(17);
    pub const TABLE_MAP: Kind = Kind(19);
    pub const HEARTBEAT: Kind = Kind(27);
    pub const MYSQL_GTID: Kind = Kind(33);
    pub const MYSQL_ANONYMOUS: Kind = Kind(34);
    pub const MYSQL_PREVIOUS_GTIDS: Kind = Kind(35);
    pub const XA_PREPARE: Kind = Kind(38);
    pub const TRANSACTION_PAYLOAD: Kind = Kind(40);
    pub const HEARTBEAT_V2: Kind = Kind(41);
    pub const MYSQL_GTID_TAGGED: Kind = Kind(42);
    pub const ANNOTATE_ROWS: Kind = Kind(160);
    pub const BINLOG_CHECKPOINT: Kind = Kind(161);
    pub const MARIADB_GTID: Kind = Kind(162);
    pub const MARIADB_GTID_LIST: Kind = Kind(163);
    pub const START_ENCRYPTION: Kind = Kind(164);
}

/// The source has the file open. Only in the first event of a file; not part of its checksum.
pub const IN_USE: u16 = 0x1;
/// The event was made for the stream and is in no file, such as the announcement of a file.
pub const ARTIFICIAL: u16 = 0x20;
/// The event was written with `@@skip_replication = 1`: a replica may request that its source omit such events.
pub const SKIP_REPLICATION: u16 = 0x8000;
/// In an artificial list of GTIDs: the stream ends here, at the position that the replica requested (`START SLAVE UNTIL`).
pub const UNTIL_REACHED: u32 = 1 << 28;

/// An event's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Seconds since 1970; 0 in artificial events.
    pub timestamp: u32,
    /// Kind of the event.
    pub kind: Kind,
    /// `server_id` of the server on which the change originated.
    pub server_id: u32,
    /// Bytes of the event, including header and checksum.
    pub length: u32,
    /// End of the event in the source's file, modulo 2^32; 0 if the source omits it (MariaDB 11.4 and later, inside transactions).
    pub end: u32,
    /// See [`IN_USE`] and [`ARTIFICIAL`].
    pub flags: u16,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Header {
    /// Parses a header. Any 19 bytes are a header.
    #[must_use]
    pub fn parse(b: &[u8; HEADER]) -> Header {
        let four = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Header {
            timestamp: four(0),
            kind: Kind(b[4]),
            server_id: four(5),
            length: four(9),
            end: four(13),
            flags: u16::from_le_bytes([b[17], b[18]]),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        b[0..4].copy_from_slice(&self.timestamp.to_le_bytes());
        b[4] = self.kind.0;
        b[5..9].copy_from_slice(&self.server_id.to_le_bytes());
        b[9..13].copy_from_slice(&self.length.to_le_bytes());
        b[13..17].copy_from_slice(&self.end.to_le_bytes());
        b[17..19].copy_from_slice(&self.flags.to_le_bytes());
        b
    }

    /// True if the event is in no file, only in the stream: an artificial one, or a heartbeat.
    #[must_use]
    pub fn is_artificial(&self) -> bool {
        self.flags & ARTIFICIAL != 0 || matches!(self.kind, Kind::HEARTBEAT | Kind::HEARTBEAT_V2)
    }
}

/// Checksum algorithm of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Checksum {
    /// No checksum after the body.
    #[default]
    None,
    /// CRC-32 of header and body.
    Crc32,
}

impl Checksum {
    /// Returns the number of checksum bytes at the end of each event.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Checksum::None => 0,
            Checksum::Crc32 => CHECKSUM,
        }
    }

    /// Returns the value of `binlog_checksum`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Checksum::None => "NONE",
            Checksum::Crc32 => "CRC32",
        }
    }
}

/// A body that does not conform to its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event of kind {} says: {what}", kind.0)]
pub struct BodyError {
    /// Kind of the event.
    pub kind: Kind,
    /// The problem.
    pub what: String,
}

fn wrong(kind: Kind, what: impl Into<String>) -> BodyError {
    BodyError { kind, what: what.into() }
}

/// The first event of a file, which describes the format of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// Version of the server that wrote the file, such as `10.11.6-MariaDB-log`.
    pub server_version: String,
    /// Seconds since 1970, in the first file after a start of the server; else 0.
    pub created: u32,
    /// Checksum algorithm of the file's events.
    pub checksum: Checksum,
}

/// Offset of `created` in the body of a format event.
pub const CREATED_AT: usize = 52;

impl Format {
    /// Parses a format event's body, including its checksum, which exists regardless of `binlog_checksum`.
    ///
    /// # Errors
    /// The format has a version other than 4, headers of another length, or an unknown checksum; or the body is too short.
    pub fn parse(body: &[u8]) -> Result<Format, BodyError> {
        let fail = |what: String| wrong(Kind::FORMAT, what);
        let short = || fail(format!("{} bytes are too few", body.len()));
        match u16_at(body, 0).ok_or_else(short)? {
            4 => {}
            other => return Err(fail(format!("version {other} of the format; version 4 is understood"))),
        }
        let version = body.get(2..52).ok_or_else(short)?;
        let version = version.split(|byte| *byte == 0).next().unwrap_or_default();
        let created = u32_at(body, CREATED_AT).ok_or_else(short)?;
        match body.get(56) {
            Some(19) => {}
            Some(other) => return Err(fail(format!("headers of {other} bytes; 19 are understood"))),
            None => return Err(short()),
        }
        let algorithm = body.len().checked_sub(1 + CHECKSUM).filter(|at| *at > 56).ok_or_else(short)?;
        let checksum = match body[algorithm] {
            0 => Checksum::None,
            1 => Checksum::Crc32,
            other => return Err(fail(format!("checksum algorithm {other}; 0 and 1 are understood"))),
        };
        Ok(Format { server_version: String::from_utf8_lossy(version).into_owned(), created, checksum })
    }
}

/// Name of the next file, and the position in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotate {
    /// Offset in the file.
    pub position: u64,
    /// Name of the file at the source: any bytes.
    pub name: Vec<u8>,
}

impl Rotate {
    /// Parses a body without checksum.
    ///
    /// # Errors
    /// The body is too short.
    pub fn parse(body: &[u8]) -> Result<Rotate, BodyError> {
        let position = u64_at(body, 0).ok_or_else(|| wrong(Kind::ROTATE, "no position"))?;
        Ok(Rotate { position, name: body[8..].to_vec() })
    }
}

/// Beginning of a transaction in MariaDB's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MariaDbGtid {
    /// GTID of the transaction.
    pub gtid: mariadb::Gtid,
    /// True if the transaction consists of the next statement, without a COMMIT.
    pub standalone: bool,
}

impl MariaDbGtid {
    /// Parses a body without checksum: `sequence u64, domain u32, flags u8, …`. The server ID is in the header.
    ///
    /// # Errors
    /// The body is too short.
    pub fn parse(header: &Header, body: &[u8]) -> Result<MariaDbGtid, BodyError> {
        let short = || wrong(Kind::MARIADB_GTID, format!("{} bytes are too few", body.len()));
        let sequence = u64_at(body, 0).ok_or_else(short)?;
        let domain = u32_at(body, 8).ok_or_else(short)?;
        let flags = *body.get(12).ok_or_else(short)?;
        let gtid = mariadb::Gtid { domain, server: header.server_id, sequence };
        Ok(MariaDbGtid { gtid, standalone: flags & 1 != 0 })
    }
}

/// Parses the body of MariaDB's list of GTIDs at the start of a file, without checksum: `count u32 (28 bits), (domain u32, server u32, sequence
/// u64)…`. The last GTID of each domain comes last.
///
/// # Errors
/// The body is too short, or has more than [`mariadb::MAX_ENTRIES`].
pub fn gtid_list(body: &[u8]) -> Result<Vec<mariadb::Gtid>, BodyError> {
    let fail = |what: String| wrong(Kind::MARIADB_GTID_LIST, what);
    let short = || fail(format!("{} bytes are too few", body.len()));
    let count = (u32_at(body, 0).ok_or_else(short)? & 0x0fff_ffff) as usize;
    if count > mariadb::MAX_ENTRIES {
        return Err(fail(format!("{count} GTIDs; at most {} are understood", mariadb::MAX_ENTRIES)));
    }
    let mut list = Vec::with_capacity(count);
    for index in 0..count {
        let at = 4 + index * 16;
        list.push(mariadb::Gtid {
            domain: u32_at(body, at).ok_or_else(short)?,
            server: u32_at(body, at + 4).ok_or_else(short)?,
            sequence: u64_at(body, at + 8).ok_or_else(short)?,
        });
    }
    Ok(list)
}

/// Parses the body of the event that begins a transaction without a tag in MySQL's log: `flags u8, uuid 16 bytes, number u64, …`.
///
/// # Errors
/// The body is too short, or the number is 0.
pub fn mysql_gtid(body: &[u8]) -> Result<mysql::Gtid, BodyError> {
    let fail = |what: &str| wrong(Kind::MYSQL_GTID, what);
    let uuid = body.get(1..17).and_then(|uuid| uuid.try_into().ok()).ok_or_else(|| fail("too short"))?;
    let origin = mysql::Origin { uuid: mysql::Uuid(uuid), tag: mysql::Tag::default() };
    match u64_at(body, 17) {
        Some(0) => Err(fail("transaction number 0")),
        Some(number) => Ok(mysql::Gtid { origin, number }),
        None => Err(fail("too short")),
    }
}

/// Parses the body of the event that begins a transaction with a tag in MySQL's log, in the form of its serialization library: `version, length, last
/// field that must be understood, (field, value)…`, with numbers of variable length. The fields 0 to 3 are flags, UUID (byte by byte), number and tag.
///
/// # Errors
/// The body is too short, has another version, or lacks one of the fields.
pub fn mysql_gtid_tagged(body: &[u8]) -> Result<mysql::Gtid, BodyError> {
    let fail = |what: &str| wrong(Kind::MYSQL_GTID_TAGGED, what);
    let mut rest = body;
    let mut number = || mysql::variable_number(&mut rest).ok_or_else(|| fail("too short"));
    if number()? != 1 {
        return Err(fail("another version of the serialization than 1"));
    }
    number()?;
    number()?;
    let (mut uuid, mut sequence, mut tag) = (None, None, None);
    while let Some(field) = mysql::variable_number(&mut rest) {
        let mut number = || mysql::variable_number(&mut rest).ok_or_else(|| fail("too short"));
        match field {
            0 => {
                number()?;
            }
            1 => {
                let mut bytes = [0; 16];
                for byte in &mut bytes {
                    *byte = u8::try_from(number()?).map_err(|_| fail("a UUID whose bytes are none"))?;
                }
                uuid = Some(mysql::Uuid(bytes));
            }
            // A signed number: its sign is the lowest bit.
            2 => sequence = Some(number()?).filter(|number| number & 1 == 0).map(|number| number >> 1),
            3 => tag = Some(mysql::variable_tag(&mut rest).ok_or_else(|| fail("an invalid tag"))?),
            _ => break,
        }
    }
    match (uuid, tag, sequence) {
        (Some(uuid), Some(tag), Some(number @ 1..)) => Ok(mysql::Gtid { origin: mysql::Origin { uuid, tag }, number }),
        _ => Err(fail("no UUID, tag or number")),
    }
}

/// Returns the statement of a QUERY event, without checksum; None if the body is too short for its lengths, or incomplete.
#[must_use]
pub fn statement(body: &[u8]) -> Option<&[u8]> {
    let database = usize::from(*body.get(8)?);
    let variables = usize::from(u16_at(body, 11)?);
    body.get(13 + variables + database + 1..)
}

/// True if a QUERY event with this statement ends a transaction.
#[must_use]
pub fn ends_transaction(statement: &[u8]) -> bool {
    statement.eq_ignore_ascii_case(b"COMMIT") || statement.eq_ignore_ascii_case(b"ROLLBACK")
}

/// Makes an event for the stream: header, body, and the checksum if one is used.
#[must_use]
pub fn artificial(kind: Kind, server_id: u32, end: u32, flags: u16, body: &[u8], checksum: Checksum) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len() + checksum.bytes()).unwrap_or(u32::MAX);
    let mut event = Header { timestamp: 0, kind, server_id, length, end, flags }.encode().to_vec();
    event.extend_from_slice(body);
    if checksum == Checksum::Crc32 {
        let sum = crc32fast::hash(&event);
        event.extend_from_slice(&sum.to_le_bytes());
    }
    event
}

/// Makes the artificial ROTATE that announces a file in the stream.
#[must_use]
pub fn announce(server_id: u32, name: &str, position: u64, checksum: Checksum) -> Vec<u8> {
    let mut body = position.to_le_bytes().to_vec();
    body.extend_from_slice(name.as_bytes());
    artificial(Kind::ROTATE, server_id, 0, ARTIFICIAL, &body, checksum)
}

/// Makes a heartbeat: no new events, and the source is at `position` of the file `name`.
#[must_use]
pub fn heartbeat(server_id: u32, name: &str, position: u64, checksum: Checksum) -> Vec<u8> {
    artificial(Kind::HEARTBEAT, server_id, position as u32, 0, name.as_bytes(), checksum)
}

/// Makes the artificial list of GTIDs with which a source ends a stream requested up to a position: `state` has the transactions before `end`,
/// including those not sent.
#[must_use]
pub fn until_reached(server_id: u32, end: u64, state: &mariadb::State, checksum: Checksum) -> Vec<u8> {
    let gtids: Vec<_> = state.iter().collect();
    let mut body = (gtids.len() as u32 | UNTIL_REACHED).to_le_bytes().to_vec();
    for gtid in &gtids {
        body.extend_from_slice(&gtid.domain.to_le_bytes());
        body.extend_from_slice(&gtid.server.to_le_bytes());
        body.extend_from_slice(&gtid.sequence.to_le_bytes());
    }
    if gtids.is_empty() {
        // MariaDB makes no shorter one, so that a dummy can take its place.
        body.extend_from_slice(&[0, 0]);
    }
    artificial(Kind::MARIADB_GTID_LIST, server_id, end as u32, ARTIFICIAL, &body, checksum)
}

/// Clears the start time in a whole format event: a replica that only reconnects must not drop its temporary tables. A shorter event is unchanged.
pub fn clear_created(event: &mut [u8], checksum: Checksum) {
    let at = HEADER + CREATED_AT;
    let Some(created) = event.get_mut(at..at + 4) else { return };
    created.fill(0);
    if let Some(flags) = event.get_mut(17..19) {
        let cleared = u16::from_le_bytes([flags[0], flags[1]]) & !IN_USE;
        flags.copy_from_slice(&cleared.to_le_bytes());
    }
    let body = event.len().saturating_sub(CHECKSUM);
    if checksum == Checksum::Crc32 && body > HEADER {
        let sum = crc32fast::hash(&event[..body]);
        event[body..].copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_is_what_was_encoded(bytes: [u8; HEADER]) {
            prop_assert_eq!(Header::parse(&bytes).encode(), bytes);
        }

        #[test]
        fn no_body_makes_a_panic(body in prop::collection::vec(any::<u8>(), 0..200), header: [u8; HEADER]) {
            let header = Header::parse(&header);
            let _ = (Format::parse(&body), Rotate::parse(&body), MariaDbGtid::parse(&header, &body), gtid_list(&body));
            let _ = (mysql_gtid(&body), mysql_gtid_tagged(&body), statement(&body));
            let mut event = body.clone();
            clear_created(&mut event, Checksum::Crc32);
        }
    }

    #[test]
    fn a_statement_is_found_behind_variables_and_database() {
        let mut body = vec![0; 8];
        body.push(2);
        body.extend_from_slice(&[0, 0, 3, 0]);
        body.extend_from_slice(b"abcdb\0COMMIT");
        assert_eq!(statement(&body), Some(&b"COMMIT"[..]));
        assert!(ends_transaction(b"commit") && ends_transaction(b"ROLLBACK") && !ends_transaction(b"BEGIN"));
        assert_eq!(statement(&body[..15]), None);
    }

    /// Bytes of MySQL 9.7.
    #[test]
    fn a_transaction_with_a_tag() {
        let hex = "027800000002bd02f1031ac2a9034d0322c5039502350304f103000000020408060c6b705f74616708100a1c0c7f5b765afe4c61061095041283120b";
        let mut body: Vec<u8> =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect();
        assert_eq!(mysql_gtid_tagged(&body).unwrap().to_string(), "affc0d61-ead3-11f1-a5cd-02fc00000001:kp_tag:2");
        assert!(mysql_gtid_tagged(&body[..30]).is_err());
        body[0] = 4;
        assert!(mysql_gtid_tagged(&body).unwrap_err().to_string().contains("version"));
    }

    #[test]
    fn the_list_at_which_a_stream_ends() {
        for text in ["", "0-2-7,0-1-9,5-1-3"] {
            let state: mariadb::State = text.parse().unwrap();
            let event = until_reached(7, 500, &state, Checksum::None);
            let header = Header::parse(event[..HEADER].try_into().unwrap());
            assert_eq!((header.kind, header.end, header.flags), (Kind::MARIADB_GTID_LIST, 500, ARTIFICIAL));
            let body = &event[HEADER..];
            assert_eq!(u32_at(body, 0).unwrap() >> 28, 1);
            assert_eq!(mariadb::State::from_list(&gtid_list(body).unwrap()), Some(state));
        }
    }

    #[test]
    fn formats() {
        let mut body = vec![4, 0];
        let mut version = b"10.11.6-MariaDB-log".to_vec();
        version.resize(50, 0);
        body.extend_from_slice(&version);
        body.extend_from_slice(&7_u32.to_le_bytes());
        body.push(19);
        body.extend_from_slice(&[56; 40]);
        body.extend_from_slice(&[1, 0, 0, 0, 0]);
        let format = Format::parse(&body).unwrap();
        assert_eq!((format.server_version.as_str(), format.created), ("10.11.6-MariaDB-log", 7));
        assert_eq!(format.checksum, Checksum::Crc32);
        for (at, value, what) in [(0, 3, "version 3"), (56, 13, "headers of 13"), (97, 9, "algorithm 9")] {
            let mut broken = body.clone();
            broken[at] = value;
            let text = Format::parse(&broken).unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        }
        assert!(Format::parse(&body[..57]).is_err());
    }
}
