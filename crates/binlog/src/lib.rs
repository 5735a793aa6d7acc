//! MySQL's and MariaDB's binary log, without I/O: its events, the GTIDs of both families, a walker over the bytes of a file or of a stream,
//! and the messages of the client/server protocol that carry the log from a source to a replica.
//!
//! ```text
//!  socket ─▶ protocol::Frames ─ pieces of a packet ─▶ Walker ─ events (header, offset, checked) ─▶ Groups ─ transactions ─▶ gtid::State
//!  file ─────────────────────────── bytes ─────────────▲
//! ```
//!
//! A binary log file is the four bytes `FE 62 69 6E`, followed by events. An event is a header of 19 bytes, a body, and (unless `binlog_checksum` is
//! `NONE`) the CRC-32 of both:
//!
//! ```text
//!  timestamp u32 │ kind u8 │ server_id u32 │ length u32 │ end_log_pos u32 │ flags u16 │ body … │ CRC-32 u32      (little-endian)
//! ```
//!
//! # Invariants
//!
//! - No I/O and no clock.
//! - External input gives an error or a value, never a panic, and the memory kept of it is bounded.
//! - Offsets are counted, in 64 bits. The end in an event's header (`end_log_pos`, 32 bits) is compared with the counted one.
//! - Neither errors nor `Debug` output contain secrets.

mod dialect;
pub mod event;
mod groups;
pub mod gtid;
pub mod protocol;
#[cfg(test)]
mod test_log;
mod walker;

pub use dialect::{Dialect, Plugin, uuid_of};
pub use groups::{Group, Groups, Name};
pub use walker::{Event, MAX_EVENT, WalkError, Walker, Within};

/// The first bytes of a binary log file.
pub const MAGIC: [u8; 4] = *b"\xfebin";
