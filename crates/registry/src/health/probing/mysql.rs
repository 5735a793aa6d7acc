//! The MySQL probe: tests if a MySQL or MariaDB server accepts connections.
//!
//! Reading the greeting alone would suffice, but a server counts broken handshakes, and blocks a host that has too many of them. So the handshake is
//! completed, by a user that need not exist, without a password.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::probe::read_until;
use crate::model::Health;

/// `LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH`.
const CAPABILITIES: u32 = 0x1 | 0x200 | 0x8000 | 0x8_0000;
/// Maximum packet length announced.
const LONGEST: u32 = 1 << 16;
/// UTF-8.
const CHARSET: u8 = 33;
/// Bytes of a packet before its payload: length and sequence number.
const HEADER: usize = 4;

/// Meaning of a server's packet.
#[derive(Debug, PartialEq, Eq)]
enum ServerPacket {
    /// The server's greeting.
    Greeting,
    /// A packet that determines the health.
    Health(Health),
    /// A request for another authentication method.
    OtherWay,
}

pub(super) async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<Health> {
    let mut sent = false;
    // Greeting, perhaps another method, verdict.
    for _ in 0..3 {
        let bytes = read_until(stream, whole).await?;
        let number = bytes.get(3).copied().unwrap_or(0).wrapping_add(1);
        match (packet(&bytes), sent) {
            (ServerPacket::Greeting, false) => stream.write_all(&login(number)).await?,
            (ServerPacket::OtherWay, true) => stream.write_all(&[0, 0, 0, number]).await?,
            (ServerPacket::Health(health), _) => return Ok(health),
            (ServerPacket::Greeting | ServerPacket::OtherWay, _) => return Ok(Health::Critical),
        }
        sent = true;
    }
    // The server speaks the protocol and still asks for authentication.
    Ok(Health::Passing)
}

/// True if the bytes contain a complete packet.
fn whole(bytes: &[u8]) -> bool {
    let length = |bytes: &[u8]| usize::from(bytes[0]) | usize::from(bytes[1]) << 8 | usize::from(bytes[2]) << 16;
    bytes.len() >= HEADER && bytes.len() >= HEADER + length(bytes)
}

fn packet(packet: &[u8]) -> ServerPacket {
    let payload = if whole(packet) { &packet[HEADER..] } else { &[] };
    match payload {
        [0x0a, ..] => ServerPacket::Greeting,
        [0x00, ..] => ServerPacket::Health(Health::Passing),
        [0xfe, ..] => ServerPacket::OtherWay,
        [0xff, low, high, ..] => ServerPacket::Health(verdict(u16::from_le_bytes([*low, *high]))),
        _ => ServerPacket::Health(Health::Critical),
    }
}

/// Returns the health for an error's number. Access denied or host not allowed: the server accepts connections, from others. No connection left, or
/// this host blocked: alive, but of no use here. Shutting down: critical.
fn verdict(number: u16) -> Health {
    match number {
        // ER_CON_COUNT_ERROR, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED, ER_HOST_IS_BLOCKED
        1040 | 1203 | 1226 | 1129 => Health::Warning,
        // ER_SERVER_SHUTDOWN, ER_NORMAL_SHUTDOWN, ER_SHUTDOWN_COMPLETE, ER_CONNECTION_KILLED (MariaDB)
        1053 | 1077 | 1079 | 1927 => Health::Critical,
        _ => Health::Passing,
    }
}

/// Makes the answer to a greeting.
fn login(number: u8) -> Vec<u8> {
    let mut payload = Vec::with_capacity(80);
    payload.extend_from_slice(&CAPABILITIES.to_le_bytes());
    payload.extend_from_slice(&LONGEST.to_le_bytes());
    payload.push(CHARSET);
    payload.extend_from_slice(&[0; 23]);
    payload.extend_from_slice(b"kingpost\0");
    // An empty authentication response.
    payload.push(0);
    payload.extend_from_slice(b"mysql_native_password\0");
    let mut packet = (payload.len() as u32).to_le_bytes()[..3].to_vec();
    packet.push(number);
    packet.extend_from_slice(&payload);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say() {
        let framed = |payload: &[u8]| [&[payload.len() as u8, 0, 0, 0][..], payload].concat();
        for (payload, expected) in [
            (&b"\x0a8.0.36\0"[..], ServerPacket::Greeting),
            (b"\x00\x00\x00", ServerPacket::Health(Health::Passing)),
            (b"\xfemysql_native_password\0", ServerPacket::OtherWay),
            (b"\xff\x15\x04#28000Access denied", ServerPacket::Health(Health::Passing)),
            (b"\xff\x6a\x04Host is not allowed", ServerPacket::Health(Health::Passing)),
            (b"\xff\x10\x04Too many connections", ServerPacket::Health(Health::Warning)),
            (b"\xff\x1d\x04Server shutdown", ServerPacket::Health(Health::Critical)),
            (b"SSH-2.0", ServerPacket::Health(Health::Critical)),
            (b"", ServerPacket::Health(Health::Critical)),
        ] {
            assert_eq!(packet(&framed(payload)), expected, "{payload:?}");
        }
        assert_eq!(packet(b"\x09\0\0\0\x0a8"), ServerPacket::Health(Health::Critical), "cut off");
        assert!(whole(&login(1)) && login(1)[3] == 1);
    }
}
