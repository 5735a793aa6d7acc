//! The relay for MariaDB: receives a binary log as a semi-synchronous replica, makes it durable, and feeds stock replicas by GTID.
//!
//! ```text
//!  source ──binlog──▶ receiver ─take, mark, publish─▶ log: the source's files, byte for byte ─▶ one feed a replica ──binlog──▶ replicas
//!     ▲                                               │ written ≥ flushed ≥ whole
//!     └── acknowledgements ◀── whoever has flushed ◀──┘
//! ```
//!
//! # Invariants
//!
//! - Acknowledged is only what is durable here, in whole transactions, and what this very source has sent or sent again. A request for events
//!   is an acknowledgement too, and is made from the durable end only.
//! - Receiving does not wait for an acknowledgement to be sent, nor for the disk, unless [`log::MAX_UNFLUSHED`] bytes are not flushed.
//! - Another server is followed only if it has every transaction that is durable here. No source makes the log give up anything.
//! - A slow replica costs nobody else anything: it is fed from files, and falls behind on disk.
//! - In every state of a connection there is a limit on time and on bytes.

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

pub use orders::{BinlogStanding, MariaDbAccess, MariaDbSession};
pub use relay::{BinlogRelay, last_source, source_concerns};
pub use status::{BinlogDownstream, BinlogStatus};
