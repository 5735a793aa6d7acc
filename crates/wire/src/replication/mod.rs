//! The replication protocol, physical half: a standby's commands and the stream after them. Sans-I/O.
//!
//! ```text
//!  standby                                      server
//!  Query "IDENTIFY_SYSTEM"       ──▶            one row: [`Identity`]
//!  Query "START_REPLICATION …"   ──▶  [`Command`]
//!                                ◀──            CopyBothResponse
//!                                ◀── [`Event`]  CopyData `w` (WAL), `k` (keepalive)
//!  CopyData `r`, `h`             ──▶  [`Reply`]
//!  CopyDone                      ◀─▶            CopyDone: the timeline ends; then a row (next timeline, its start)
//! ```
//!
//! One command is not PostgreSQL's, and known to relays only: `WATCH_FLUSHED` starts a copy in which each message reports the durable position of the
//! relay's log ([`Flushed`]). While it runs the client may ask for the relay's promises ([`Question`], [`Promised`]).
//!
//! Positions are plain numbers here: bytes from the start of the log. [`position`] and [`read_position`] convert to and from `X/X`.
//!
//! Source of the formats: PostgreSQL documentation, "Streaming Replication Protocol", and messages observed from servers and standbys of versions 13
//! to 18.

mod backup;
mod command;
mod rows;
mod stream;
#[cfg(test)]
mod tests;

pub use backup::{BackupMessage, BackupOptions, BackupPoint, BackupTablespace, INCREMENTAL_SINCE, RATES};
pub use command::{Command, CommandError, MAX_COMMAND, Order, is_slot_name};
pub use rows::{Identity, Rows, TimelineEnd, identity, slot_created, slot_read, timeline_end, timeline_history};
pub use stream::{
    ANSWERS_QUESTIONS, Event, Flushed, MAX_CONTROL, Promised, Question, Reply, StreamError, WAL_HEADER, WalStream,
    copy_both, copy_out, feedback, keepalive, read_reply, status, wal_header,
};

/// Formats a position as `X/X`.
#[must_use]
pub fn position(at: u64) -> String {
    format!("{:X}/{:X}", at >> 32, at & 0xffff_ffff)
}

/// Parses `X/X`: two hexadecimal numbers of at most eight digits.
#[must_use]
pub fn read_position(text: &str) -> Option<u64> {
    let half = |part: &str| {
        let digits = (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        if digits { u64::from_str_radix(part, 16).ok() } else { None }
    };
    let (high, low) = text.split_once('/')?;
    Some(half(high)? << 32 | half(low)?)
}
