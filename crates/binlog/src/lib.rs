//! MySQL's and MariaDB's binary log, without I/O: its events, the GTIDs of both families, a walker over the bytes of a file or of a stream,
//! and the messages of the client/server protocol that carry the log from a source to a replica.
//!
//! ```text
//!  socket ─▶ protocol::Frames ─ pieces of a packet ─▶ Walker ─ events (header, offset, checked) ─▶ Groups ─ transactions ─▶ gtid::State
//!  file ─────────────────────────── bytes ─────────────▲
//! ```
//!
//! A binary log file is the four bytes `FE 62 69 6E` and events, one behind the other. An event is a header of 19 bytes, a body, and (unless
//! `binlog_checksum` is `NONE`) the CRC-32 of both:
//!
//! ```text
//!  timestamp u32 │ kind u8 │ server_id u32 │ length u32 │ end_log_pos u32 │ flags u16 │ body … │ CRC-32 u32      (little-endian)
//! ```
//!
//! # Invariants
//!
//! - No I/O and no clock.
//! - Whatever comes from outside gives an error or a value, never a panic, and what is kept of it in memory has a bound.
//! - Offsets are counted, in 64 bits. What an event says of its end (`end_log_pos`, 32 bits) is compared with what was counted.
//! - No secret is in an error or in `Debug`.

pub mod event;
mod groups;
pub mod gtid;
pub mod protocol;
#[cfg(test)]
mod test_log;
mod walker;

pub use groups::{Group, Groups, Name};
pub use walker::{Event, MAX_EVENT, WalkError, Walker, Within};

/// The first bytes of a binary log file.
pub const MAGIC: [u8; 4] = *b"\xfebin";
