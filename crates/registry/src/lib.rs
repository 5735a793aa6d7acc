//! Services and their instances.
//!
//! ```text
//!  register, update, report ─▶ batch writer ──commit──▶ Store                                 the truth
//!        ▲                          │ its own rows          │ read, after a cursor
//!        │ found out                ▼                       ▼
//!     health ◀── instances ───── Cache: service ─▶ immutable snapshot, id index, metadata index, last changes
//!   (leases, probes, brakes)        │ publishes revisions
//!                                   ▼
//!                             watchers, readers: compare a revision, take the snapshot
//! ```
//!
//! # Invariants
//!
//! - The store is the truth. Revisions rise in the order of commits, over all nodes: the counter row is locked for the whole
//!   of a write transaction, and nothing slow happens meanwhile.
//! - One applier writes to the cache. Its cursor is a revision up to which it has seen everything; it moves only to the `v`
//!   that was read in one snapshot with the rows, or by one, for a commit that follows directly. While a read of the store waits, commits that other
//!   nodes tell of are applied: whoever waited for the store here would not be heard by the other nodes.
//! - A write is answered after its commit and after the own cache has it. An unknown outcome is resolved or said to be unknown.
//! - A snapshot is never changed. Whoever sees a revision sees what it stands for.
//! - Readers do no I/O, and wait for nothing but a short lock of one shard.
//! - Health is judged on monotone time; what is found is written only if the instance is still as it was judged.

pub mod api;
mod cache;
mod change;
pub mod dns;
mod error;
mod health;
mod heartbeat;
pub mod kv;
pub mod model;
pub mod peers;
mod registry;
mod retry;
mod settings;
mod status;
pub mod store;
mod writable;
mod writer;

pub use cache::{Change, Encoding, Found, Instances, ServiceSnapshot};
pub use change::Edit;
pub use error::{OpenError, StoreError, WatchError, WriteError};
pub use health::Beat;
pub use kv::{KvLimits, KvStatus};
pub use model::*;
pub use registry::{Registry, Written};
pub use settings::{BrakeSettings, HealthSettings, PeerSettings, PeerTls, PeerTlsMode, RuleLimits, Settings};
pub use status::{Counts, PeerStatus, Status};
pub use store::{Outcome, Store};
