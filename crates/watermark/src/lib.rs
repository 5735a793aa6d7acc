//! One writer publishes a growing number, readers compare with it. No I/O in here.
//!
//! [`Lsn`] is a position in a write-ahead log. [`Watermark`] is one atomic, monotone `Lsn`. [`Oracle`] is the
//! bookkeeping of a batched reader of a growing number.
//!
//! # Invariants
//!
//! - Nothing here blocks, locks, or does I/O; nothing allocates after construction.
//! - A ticket is never answered by a batch that was begun before the ticket was taken.
//! - A ticket is never forgotten: while it has no answer, a batch that will answer it is under way, or one is wanted.
//! - A reader never sees the term of one answer with the position of another.
//!
//! Model-checked by loom (`src/model.rs`); it needs a target directory of its own, because the flag rebuilds everything:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p watermark --release --lib
//! ```

mod lsn;
mod mark;
#[cfg(all(test, loom))]
mod model;
mod oracle;
mod sync;

pub use lsn::{Lsn, ParseLsnError};
pub use mark::Watermark;
pub use oracle::{Answer, Batch, Oracle, Ticket};
