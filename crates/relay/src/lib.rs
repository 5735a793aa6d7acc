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

mod channel;
pub mod config;
mod downstream;
mod error;
pub mod log;
mod operate;
mod relay;
mod settings;
mod shared;
mod socket;
mod state;
mod status;
mod upstream;

pub use error::{StartError, UpstreamError};
pub use operate::{OrderError, Standing};
pub use relay::Relay;
pub use status::{DownstreamStatus, LogStatus, SlotStatus, Status};
pub use upstream::{Probe, make_slot, order, probe};
pub use wire::replication::Order;
