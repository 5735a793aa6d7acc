//! A registry of services and their instances.
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
//! - The store is authoritative. Revisions rise in commit order across all nodes: a write transaction locks the counter row from start to end, and
//!   does nothing slow meanwhile (in TiKV, of two transactions that read the same counter one is started again).
//! - Only the applier writes to the cache. Its cursor is a revision up to which it has applied every commit. The cursor moves only to the `v` that
//!   was read in one snapshot with the rows, or by one, for a commit that follows directly. Commits pushed by other nodes are applied even during a
//!   slow read of the store; otherwise this node could not answer the other nodes meanwhile.
//! - A write is answered only after its commit, and after this node's cache has applied it. An unknown outcome is resolved or reported as unknown.
//! - A snapshot is never changed. A reader that has seen a revision never gets a snapshot older than it.
//! - Readers do no I/O, and wait only for a short lock of one shard.
//! - Health is judged by a monotonic clock; a verdict is written only if the instance is unchanged since the judgement.

pub mod api;
mod basic;
mod cache;
mod change;
pub mod configuration;
pub mod dns;
mod error;
mod expressions;
mod health;
mod heartbeat;
pub mod kv;
pub mod model;
pub mod peers;
mod registry;
mod retry;
mod rights;
mod settings;
mod status;
pub mod store;
mod turns;
mod writable;
mod writer;

pub use basic::basic_login;
pub use cache::{Change, Encoding, Found, Instances, ServiceSnapshot};
pub use change::Edit;
pub use configuration::ConfigLimits;
pub use error::{OpenError, StoreError, WatchError, WriteError};
pub use health::Beat;
#[doc(hidden)]
pub use health::read_probe;
pub use kv::{KvLimits, KvStatus};
pub use model::*;
pub use registry::{Registry, Written};
#[doc(hidden)]
pub use rights::{PolicyError, read_policy};
pub use settings::{
    AclLimits, DefaultPolicy, HealthSettings, PeerSettings, PeerTls, PeerTlsMode, RuleLimits, SelfPreservationSettings,
    Settings,
};
pub use status::{Counts, PeerStatus, Status};
pub use store::{Outcome, Store};
