//! A number published by one writer that only grows, and readers that compare with it. No I/O.
//!
//! ```text
//!                                    ┌─ place of a thread: lowest target ── Waiters: its heap, an eventfd
//!  publish ─▶ Watermark ── compare ──┼─ place of a thread: lowest target ── Parker: asleep
//!                 │ get              └─ the tasks: lowest target ── heap of wakers ── Reached, a future each
//!                 ▼
//!              readers
//! ```
//!
//! [`Lsn`] is a position in a write-ahead log. [`Watermark`] is an atomic, monotone number, usually an `Lsn`; [`Waiters`], [`Parker`] and [`Reached`]
//! are the ways to wait for it. [`Oracle`] is the bookkeeping of a batched reader of a growing number, [`Dispenser`] that of a batched source of
//! unique numbers.
//!
//! # Invariants
//!
//! - There is no I/O. Publishing, or taking a ticket, never blocks and never waits for a lock.
//! - A wake-up is never lost: a waiter arms first and then reads the number again; a publisher stores the number first and then checks the alarms;
//!   each has a full fence between the two steps. `place` describes the handshake.
//! - A thread is woken only when the lowest number that it waits for has been reached. There is no polling.
//! - A publisher that cannot get the tasks' lock leaves its work to the lock's holder, which reads the number again after releasing the lock.
//! - A watermark without past waiters has three words. After construction `Oracle` never allocates, and the waiting side allocates only for a new
//!   highest number of waiters.
//! - A ticket is never answered by a batch that began before the ticket was taken.
//! - A ticket is never forgotten: while it has no answer, a batch that will answer it is on its way, or wanted.
//! - A reader never sees the term of one answer with the position of another.
//! - A dispenser never gives a number twice, and never one from a batch that began before the request.
//!
//! Model-checked by loom (`src/model/`), with a target directory of its own, because the flag rebuilds everything:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p watermark --release --lib
//! ```

mod dispenser;
mod heap;
mod lsn;
mod mark;
#[cfg(all(test, loom))]
mod model;
mod oracle;
mod parker;
mod place;
mod sync;
mod tasks;
mod waiters;
#[cfg(all(test, not(loom)))]
mod waiting_tests;

pub use dispenser::{Dispenser, Draw, Drawn, Lapsed, MOST_TAKERS, Place, Range};
pub use lsn::{Lsn, ParseLsnError};
pub use mark::{Number, Watermark};
pub use oracle::{Batch, Oracle, PrimaryPosition, Ticket, Wanted};
pub use parker::{Parker, Unparker, Waited};
pub use tasks::Reached;
pub use waiters::{Waiter, Waiters};
