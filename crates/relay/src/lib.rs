//! The relay: makes WAL durable on another host than the primary's, and serves it to replicas.
//!
//! ```text
//!  primary ──WAL──▶ receiver ─append─▶ log: segment files ─sendfile─▶ one sender a downstream ──WAL──▶ standbys, relays
//!     ▲                                 │ written ≥ flushed ≥ acknowledged
//!     └────────── acknowledger ◀────────┘
//! ```
//!
//! [`log`] stores the WAL: one writer, any number of readers, and positions that grow. It handles files, not connections.

//! Around it: `upstream` (one thread that receives, one that acknowledges) and `downstream` (one task per connection). [`Relay`] starts and ends them
//! together.
//!
//! # Invariants
//!
//! - Only WAL that is durable here, and that this very upstream has sent or sent again, is acknowledged.
//! - The log never discards a whole record because an upstream disagrees: the relay raises an alarm and stops receiving.
//! - A slow downstream delays no other: it is served from files, and falls behind on disk.
//! - Every connection state has a time limit and a byte limit.

mod archiver;
mod ask;
mod base_backup;
mod binlog;
mod channel;
pub mod config;
mod downstream;
mod error;
mod fetch;
pub mod log;
mod memory;
mod orders;
mod places;
mod promise;
mod relay;
mod reset;
mod running;
mod session;
mod settings;
mod shared;
mod slots;
mod socket;
mod status;
mod surroundings;
mod upstream;

pub use archiver::ArchiveStatus;
pub use ask::{Probe, RelayAccess, drop_slot, look, make_slot, order, probe};
pub use base_backup::{BackupEvent, BackupSession, BaseBackup, Begun, ServerAccess};
pub use binlog::{
    BinlogAccess, BinlogDownstream, BinlogRelay, BinlogSession, BinlogStanding, BinlogStatus, last_source,
    source_concerns,
};
pub use error::{Cause, Peer, SessionError, StartError, UpstreamError};
pub use fetch::{FetchArchivedError, FetchFromError, fetch_archived, fetch_from};
pub use memory::{Conclusion, Evidence, Memory, Recollection, conclude};
pub use orders::{OrderError, RelayState};
pub use promise::{Choice, Promise, PromiseError};
pub use relay::Relay;
pub use reset::{GivenUp, reset};
pub use status::{DownstreamStatus, LogStatus, SlotStatus, Status};
pub use surroundings::{OtherRelay, Surroundings};
pub use wire::replication::Order;
