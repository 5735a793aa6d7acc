//! Services and their instances.
//!
//! ```text
//!  register, update, report ─▶ batch writer ──commit──▶ Store (SQLite, PostgreSQL, MySQL)     the truth
//!        ▲                          │ its own rows          │ read_since(cursor)
//!        │ flips                    ▼                       ▼
//!     health ◀── instances ───── Cache: service ─▶ immutable snapshot, id index, metadata index, deltas
//!   (wheel, brake, probes)          │ publishes revisions
//!                                   ▼
//!                             watchers, readers: compare a revision, take the snapshot
//! ```

pub mod model;

pub use model::*;
