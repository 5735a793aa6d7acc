//! The relay: makes WAL durable on another host than the primary's, and feeds replicas with it.
//!
//! ```text
//!  primary ──WAL──▶ receiver ─append─▶ log: segment files ─sendfile─▶ one sender a downstream ──WAL──▶ standbys, relays
//!     ▲                                 │ written ≥ flushed ≥ acknowledged
//!     └────────── acknowledger ◀────────┘
//! ```
//!
//! [`log`] holds the WAL: one writer, any number of readers, and positions that grow. It knows files, not connections.

//! Around it: `upstream` (a thread that receives, one that acknowledges) and `downstream` (a task a connection). [`Relay`]
//! starts and ends them together.
//!
//! # Invariants
//!
//! - Acknowledged is what is durable here, and what this very upstream has sent or sent again: never more.
//! - No upstream makes the log give up whole records: what does not fit is an alarm, and receiving stops.
//! - A slow downstream costs nobody else anything: it is fed from files, and falls behind on disk.
//! - In every state of a connection there is a limit on time and on bytes.

mod ask;
mod binlog;
mod channel;
pub mod config;
mod downstream;
mod error;
mod fetch;
pub mod log;
mod memory;
mod orders;
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

pub use ask::{Probe, RelayAccess, look, make_slot, order, probe};
pub use binlog::{
    BinlogDownstream, BinlogRelay, BinlogStanding, BinlogStatus, MariaDbAccess, MariaDbSession, last_source,
    source_concerns,
};
pub use error::{Cause, Peer, SessionError, StartError, UpstreamError};
pub use fetch::{FetchFromError, fetch_from};
pub use memory::{Conclusion, Evidence, Memory, Recollection, conclude};
pub use orders::{OrderError, Standing};
pub use promise::{Choice, Promise, PromiseError};
pub use relay::Relay;
pub use reset::{GivenUp, reset};
pub use status::{DownstreamStatus, LogStatus, SlotStatus, Status};
pub use surroundings::{OtherRelay, Surroundings};
pub use wire::replication::Order;
