//! The relay: makes WAL durable on another host than the primary's, and feeds replicas with it.
//!
//! ```text
//!  primary ──WAL──▶ receiver ─append─▶ log: segment files ─sendfile─▶ one sender a downstream ──WAL──▶ standbys, relays
//!     ▲                                 │ written ≥ flushed ≥ acknowledged
//!     └────────── acknowledger ◀────────┘
//! ```
//!
//! [`log`] holds the WAL: one writer, any number of readers, and positions that grow. It knows files, not connections.

pub mod log;
