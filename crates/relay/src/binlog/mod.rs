//! The relay for MariaDB and MySQL: receives a binary log as a semi-synchronous replica, makes it durable, and feeds stock replicas by GTID.
//!
//! ```text
//!  source ──binlog──▶ receiver ─take, mark, publish─▶ log: the source's files, byte for byte ─▶ one feed a replica ──binlog──▶ replicas
//!     ▲                                               │ written ≥ flushed ≥ whole
//!     └── acknowledgements ◀── whoever has flushed ◀──┘
//! ```
//!
//! In what the two families differ is said by [`::binlog::Dialect`] and the types of their GTIDs; the variables of their sources are in `source`, the
//! selection of a replica's events in `feed`.
//!
//! # Invariants
//!
//! - The relay acknowledges only whole transactions that are durable here, and that this source has sent or sent again. A request for events is an
//!   acknowledgement too, and always starts at the durable end.
//! - Receiving never waits for an acknowledgement to be sent, nor for the disk, unless [`log::MAX_UNFLUSHED`] bytes are not flushed.
//! - The relay follows another server only if that has every transaction that is durable here. The log never discards anything because of a source.
//! - A slow replica does not delay others: it is fed from files, and falls behind on disk.
//! - Every connection state has a time limit and a byte limit.

mod acknowledge;
mod answer;
mod client;
mod downstream;
mod feed;
pub(crate) mod log;
mod orders;
mod receive;
mod relay;
mod settings;
mod shared;
mod source;
mod status;
mod upstream;

pub use orders::{BinlogAccess, BinlogSession, BinlogStanding};
pub use relay::{BinlogRelay, last_source, source_concerns};
pub use status::{BinlogDownstream, BinlogStatus};
