//! One writer publishes a growing number, readers compare with it. No I/O in here.
//!
//! ```text
//!                                    ┌─ place of a thread: lowest target ── Waiters: its heap, an eventfd
//!  publish ─▶ Watermark ── compare ──┼─ place of a thread: lowest target ── Parker: asleep
//!                 │ get              └─ the tasks: lowest target ── heap of wakers ── Reached, a future each
//!                 ▼
//!              readers
//! ```
//!
//! [`Lsn`] is a position in a write-ahead log. [`Watermark`] is one atomic, monotone number, mostly an `Lsn`; [`Waiters`],
//! [`Parker`] and [`Reached`] are the ways to wait at it. [`Oracle`] is the bookkeeping of a batched reader of a growing
//! number, [`Dispenser`] that of a batched source of numbers of which nobody gets one twice.
//!
//! # Invariants
//!
//! - No I/O. Who publishes, or takes a ticket, never blocks and never waits for a lock.
//! - A wake-up is never lost: who waits arms first and then looks at the number again; who publishes stores the number first
//!   and then looks at what is armed; a full fence lies between the two steps of each. `place` has the hand-shake.
//! - A thread is woken only when the lowest number that it waits for has been reached. Nothing polls.
//! - Whoever cannot have the tasks' lock leaves its work to the one who has it, who looks at the number after letting go.
//! - A watermark at which nobody has waited is three words. After construction nothing of `Oracle` allocates, and of the waiting
//!   side only what grows with the most waiters there have been.
//! - A ticket is never answered by a batch that was begun before the ticket was taken.
//! - A ticket is never forgotten: while it has no answer, a batch that will answer it is under way, or one is wanted.
//! - A reader never sees the term of one answer with the position of another.
//! - A dispenser gives no number twice, and none from a batch that began before it was asked for.
//!
//! Model-checked by loom (`src/model/`); it needs a target directory of its own, because the flag rebuilds everything:
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
pub use oracle::{Answer, Batch, Oracle, Ticket, Wanted};
pub use parker::{Parker, Unparker, Waited};
pub use tasks::Reached;
pub use waiters::{Waiter, Waiters};
