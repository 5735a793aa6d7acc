//! Commands of a client to a server, and messages other than events between a replica and its source.

use super::{Cursor, ProtocolError, wrong};
use crate::gtid::mysql;

/// Dump flag: the stream ends at the end of the log, instead of waiting for more.
pub const NON_BLOCK: u16 = 1;
/// Dump flag: events that only annotate rows are sent, too. Without it MariaDB omits them, and a copy has holes.
pub const ANNOTATE_ROWS: u16 = 2;

/// Dump flag of MySQL: the request has a set of GTIDs.
pub const THROUGH_GTID: u16 = 4;

/// A command of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// COM_QUIT: the client leaves.
    Quit,
    /// A statement.
    Query(String),
    /// COM_PING.
    Ping,
    /// Registration of a replica.
    RegisterSlave(RegisterSlave),
    /// Request for events.
    Dump(Dump),
    /// Request of a MySQL replica for the transactions that are not in a set.
    DumpGtid(DumpGtid),
    /// Any other command, by its number.
    Other(u8),
}

/// Identity of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterSlave {
    /// `server_id` of the replica.
    pub server_id: u32,
    /// `report_host`.
    pub host: String,
    /// `report_port`.
    pub port: u16,
}

impl RegisterSlave {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0x15];
        out.extend_from_slice(&self.server_id.to_le_bytes());
        let host: Vec<u8> = self.host.bytes().take(255).collect();
        out.push(host.len() as u8);
        out.extend_from_slice(&host);
        // Neither user nor password: the source shows them in its list of replicas.
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&self.port.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        out
    }
}

/// A replica's request for events from a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// Offset in the file. The source counts all before it as received.
    pub position: u32,
    /// See [`ANNOTATE_ROWS`].
    pub flags: u16,
    /// `server_id` of the replica.
    pub server_id: u32,
    /// Name of the file; empty: by GTID, or the first one.
    pub file: String,
}

impl Dump {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0x12];
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.server_id.to_le_bytes());
        out.extend_from_slice(self.file.as_bytes());
        out
    }
}

/// A MySQL replica's request for all transactions that are not in a set of GTIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpGtid {
    /// See [`NON_BLOCK`] and [`THROUGH_GTID`].
    pub flags: u16,
    /// `server_id` of the replica.
    pub server_id: u32,
    /// The transactions that the replica has.
    pub set: mysql::Set,
}

impl DumpGtid {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let data = self.set.encode();
        let mut out = vec![0x1e];
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.server_id.to_le_bytes());
        // No name of a file, and its first event.
        out.extend_from_slice(&0_u32.to_le_bytes());
        out.extend_from_slice(&4_u64.to_le_bytes());
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        out.extend_from_slice(&data);
        out
    }
}

/// Encodes a statement as a message.
#[must_use]
pub fn query(statement: &str) -> Vec<u8> {
    let mut out = vec![3];
    out.extend_from_slice(statement.as_bytes());
    out
}

impl Command {
    /// Parses a client's message.
    ///
    /// # Errors
    /// The message is too short for its kind, or has a statement that is not UTF-8.
    pub fn parse(message: &[u8]) -> Result<Command, ProtocolError> {
        let mut c = Cursor(message);
        let short = || wrong("a command that is too short");
        Ok(match c.u8().ok_or_else(short)? {
            0x01 => Command::Quit,
            0x03 => {
                let text = std::str::from_utf8(c.0).map_err(|_| wrong("a statement that is not UTF-8"))?;
                Command::Query(text.into())
            }
            0x0e => Command::Ping,
            0x12 => {
                let position = c.u32().ok_or_else(short)?;
                let flags = c.number(2).ok_or_else(short)? as u16;
                let server_id = c.u32().ok_or_else(short)?;
                Command::Dump(Dump { position, flags, server_id, file: String::from_utf8_lossy(c.0).into_owned() })
            }
            0x15 => {
                let server_id = c.u32().ok_or_else(short)?;
                let mut text = || -> Option<&[u8]> {
                    let count = c.u8()?;
                    c.bytes(count.into())
                };
                let host = String::from_utf8_lossy(text().ok_or_else(short)?).into_owned();
                text().and_then(|_| text()).ok_or_else(short)?;
                let port = c.number(2).ok_or_else(short)? as u16;
                Command::RegisterSlave(RegisterSlave { server_id, host, port })
            }
            0x1e => {
                let flags = c.number(2).ok_or_else(short)? as u16;
                let server_id = c.u32().ok_or_else(short)?;
                // The file's name and the position in it are those of an earlier connection: the set decides.
                let name = c.u32().ok_or_else(short)? as usize;
                c.bytes(name).and_then(|_| c.number(8)).ok_or_else(short)?;
                let length = c.u32().ok_or_else(short)? as usize;
                let set = mysql::Set::decode(c.bytes(length).ok_or_else(short)?).map_err(|e| wrong(e.to_string()))?;
                Command::DumpGtid(DumpGtid { flags, server_id, set })
            }
            other => Command::Other(other),
        })
    }
}

/// First byte that a semi-synchronous source puts before each event.
pub const SEMISYNC: u8 = 0xef;

/// Encodes a semi-synchronous replica's acknowledgement of all up to `position` of `file`. It is sent with packet number 0.
#[must_use]
pub fn acknowledgement(file: &str, position: u64) -> Vec<u8> {
    let mut out = vec![SEMISYNC];
    out.extend_from_slice(&position.to_le_bytes());
    out.extend_from_slice(file.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_are_what_was_sent() {
        let slave = RegisterSlave { server_id: 77, host: "relay".into(), port: 6442 };
        assert_eq!(Command::parse(&slave.encode()), Ok(Command::RegisterSlave(slave)));
        let dump = Dump { position: 4, flags: 2, server_id: 77, file: "bin.000007".into() };
        assert_eq!(Command::parse(&dump.encode()), Ok(Command::Dump(dump)));
        assert_eq!(Command::parse(&query("select 1")), Ok(Command::Query("select 1".into())));
        for set in ["", "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7:blue:1-3"] {
            let dump = DumpGtid { flags: THROUGH_GTID, server_id: 7, set: set.parse().unwrap() };
            assert_eq!(Command::parse(&dump.encode()), Ok(Command::DumpGtid(dump)));
        }
        assert!(Command::parse(&[]).is_err() && Command::parse(&[0x12, 1]).is_err());
        let ack = acknowledgement("bin.000007", 0x0102);
        assert_eq!(ack, *b"\xef\x02\x01\0\0\0\0\0\0bin.000007");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Command::parse(&bytes);
        }
    }
}
