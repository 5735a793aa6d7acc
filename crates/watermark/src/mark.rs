//! An atomic, monotone number with its waiters.

use std::fmt;
use std::marker::PhantomData;

use crate::Lsn;
use crate::place::Places;
use crate::sync::{AtomicU64, OnceLock, Ordering, fence};
use crate::tasks::{Reached, Tasks};

/// A number that only grows: an [`Lsn`], a revision, a count. Publishing never blocks; a reader whose target has been reached pays one load.
///
/// There are three ways to wait, none of which polls: a task awaits [`reached`](Watermark::reached), a thread has a [`Parker`](crate::Parker), an
/// event loop has [`Waiters`](crate::Waiters). Publishing reads one word for each waiting thread and one for all tasks together, and wakes a thread
/// only if the lowest number it waits for has been reached.
///
/// 24 bytes, and about 200 more after the first wait.
pub struct Watermark<N: Number = Lsn> {
    mark: Mark,
    number: PhantomData<fn() -> N>,
}

/// A number of a [`Watermark`]: a `u64` by another name, in the same order.
pub trait Number: Copy + Ord {
    /// Returns the plain number.
    fn to_u64(self) -> u64;
    /// Converts a plain number from [`to_u64`](Number::to_u64) back.
    fn from_u64(number: u64) -> Self;
}

/// A watermark of plain numbers.
pub(crate) struct Mark {
    number: AtomicU64,
    waiting: OnceLock<Box<Waiting>>,
}

/// The waiters of a watermark.
pub(crate) struct Waiting {
    pub(crate) places: Places,
    pub(crate) tasks: Tasks,
}

// === impl Watermark ===

impl<N: Number> Watermark<N> {
    /// Creates a watermark at `number`.
    #[must_use]
    pub fn new(number: N) -> Watermark<N> {
        let mark = Mark { number: AtomicU64::new(number.to_u64()), waiting: OnceLock::new() };
        Watermark { mark, number: PhantomData }
    }

    /// Returns the highest number published so far.
    #[must_use]
    pub fn get(&self) -> N {
        N::from_u64(self.mark.get())
    }

    /// Raises the mark to `number`, and wakes the waiters for it or for less; a lower number changes nothing. Returns true if the mark rose.
    ///
    /// Never blocks. The cost is two atomic operations, one load for each waiting thread, and the wakers of the due waiters: one for each thread, and
    /// one for each task.
    pub fn publish(&self, number: N) -> bool {
        let number = number.to_u64();
        let rose = self.mark.number.fetch_max(number, Ordering::AcqRel) < number;
        if rose {
            self.mark.published(number);
        }
        rose
    }

    /// Restarts at `number`, which may be lower: only if earlier numbers have become meaningless (a new term, a server that may have been restarted).
    /// Waiters continue to wait for the same number.
    pub fn reset(&self, number: N) {
        let number = number.to_u64();
        self.mark.number.store(number, Ordering::Release);
        self.mark.published(number);
    }

    /// Completes with the mark's number once it is at least `target`. Costs one load if it already is.
    ///
    /// May be dropped at any time, as a time-out does. The waiting tasks of a watermark share a lock among themselves, not with publishers: a
    /// publisher that finds it held leaves the waking to its holder.
    pub fn reached(&self, target: N) -> Reached<'_, N> {
        Reached::new(self, target)
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }
}

impl<N: Number + Default> Default for Watermark<N> {
    fn default() -> Watermark<N> {
        Watermark::new(N::default())
    }
}

impl<N: Number + fmt::Debug> fmt::Debug for Watermark<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watermark").field(&self.get()).finish()
    }
}

// === impl Number ===

impl Number for u64 {
    fn to_u64(self) -> u64 {
        self
    }

    fn from_u64(number: u64) -> u64 {
        number
    }
}

impl Number for Lsn {
    fn to_u64(self) -> u64 {
        self.0
    }

    fn from_u64(number: u64) -> Lsn {
        Lsn(number)
    }
}

// === impl Mark ===

impl Mark {
    pub(crate) fn get(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        self.waiting.get_or_init(|| Box::new(Waiting { places: Places::new(), tasks: Tasks::new() }))
    }

    fn published(&self, number: u64) {
        // Between storing the number and reading the alarms: see `place`.
        fence(Ordering::SeqCst);
        if let Some(waiting) = self.waiting.get() {
            waiting.places.published(number);
            waiting.tasks.settle(self);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_rises() {
        let mark: Watermark = Watermark::default();
        assert_eq!(mark.get(), Lsn(0));
        assert!(mark.publish(Lsn(7)));
        assert!(!mark.publish(Lsn(7)), "the same position is no progress");
        assert!(!mark.publish(Lsn(3)));
        assert_eq!(mark.get(), Lsn(7));
    }

    #[test]
    fn reset_may_go_down() {
        let mark = Watermark::new(Lsn(9));
        mark.reset(Lsn(2));
        assert_eq!(mark.get(), Lsn(2));
        assert!(mark.publish(Lsn(3)));
    }

    #[test]
    fn is_small() {
        assert_eq!(size_of::<Watermark<u64>>(), 24);
        assert!(size_of::<Waiting>() <= 256, "{}", size_of::<Waiting>());
    }
}
