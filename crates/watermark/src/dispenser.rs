//! Bookkeeping of a batched source of unique numbers.
//!
//! An [`Oracle`](crate::Oracle) gives all members of a batch the same answer. Here each needs a unique number: a taker's place is the batch and the
//! index in the batch, and the answer to a batch is a range of numbers. No taker joins a batch that has been sent, so a number is never older than
//! its request.

use std::fmt;

use crate::mark::Watermark;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of ranges kept. A taker that reads later has lost its place ([`Lapsed`]) and takes another one.
#[cfg(not(loom))]
const KEPT: usize = 1024;
/// Small, so that the model covers the driver overwriting a slot that is being read.
#[cfg(loom)]
const KEPT: usize = 2;

/// Number of bits of a word that count takers; the batch number is above them. At a million batches a second the batch numbers last for half a year,
/// at the ten thousand that a server may answer for half a century.
const TAKER_BITS: u32 = 20;
const TAKERS: u64 = (1 << TAKER_BITS) - 1;

/// Maximum number of takers of a batch. Far below the overflow of the count into the batch number, which leaves room for concurrent takers.
pub const MOST_TAKERS: u32 = 1 << 17;

/// Place of a taker's number: the index in a batch that had not been sent when the place was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    batch: u64,
    index: u64,
}

/// A batch that has been sent. Batches are answered in the order in which they began; if an answer is lost, the driver repeats the request.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch that is not completed leaves its takers waiting"]
pub struct Draw {
    number: u64,
    takers: u32,
}

/// Answer to a batch: taker number `n` gets `first + n * step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first number.
    pub first: u64,
    /// Difference between two numbers.
    pub step: u64,
    /// A note of the driver for all takers of the batch.
    pub note: u64,
}

/// The number of a taker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawn {
    /// The number, which no other taker gets.
    pub number: u64,
    /// The note of the batch.
    pub note: u64,
}

/// Error for a place whose number is no longer kept: too many batches were answered since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lapsed;

/// Assigns places and keeps the ranges. Many takers; one driver, which calls [`begin`](Dispenser::begin) and [`complete`](Dispenser::complete).
pub struct Dispenser {
    /// The current batch and its number of takers: one word, so that a taker's index and the size of the batch are always consistent.
    filling: AtomicU64,
    /// Number of takers at which the batch wakes the driver.
    enough: AtomicU32,
    /// The newest answered batch.
    answered: Watermark<u64>,
    slots: Box<[Slot]>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A range, written only by the driver; `batch` is the range's batch, 0 while it is being written.
#[derive(Default)]
struct Slot {
    batch: AtomicU64,
    first: AtomicU64,
    step: AtomicU64,
    note: AtomicU64,
}

// === impl Draw ===

impl Draw {
    /// Returns the number of takers; at least one.
    #[must_use]
    pub fn takers(&self) -> u32 {
        self.takers
    }
}

// === impl Dispenser ===

impl Dispenser {
    /// Creates a dispenser. `wake` is called from a taker's thread, once per batch: by the first taker, or as set by [`wake_at`](Dispenser::wake_at).
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Dispenser {
        Dispenser {
            filling: AtomicU64::new(1 << TAKER_BITS),
            enough: AtomicU32::new(1),
            answered: Watermark::new(0),
            slots: (0..KEPT).map(|_| Slot::default()).collect(),
            wake: Box::new(wake),
        }
    }

    /// Takes a place in the next batch. `None` if it has [`MOST_TAKERS`].
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        if self.waiting() >= MOST_TAKERS {
            return None;
        }
        let word = self.filling.fetch_add(1, Ordering::SeqCst);
        let place = Place { batch: word >> TAKER_BITS, index: word & TAKERS };
        // Between taking the place and reading the threshold: see `wake_at`.
        fence(Ordering::SeqCst);
        if place.index + 1 == u64::from(self.enough.load(Ordering::Relaxed)) {
            (self.wake)();
        }
        Some(place)
    }

    /// Called by the driver: until the next call, the taker that makes a batch this large wakes the driver; with 1, the first taker. Returns true if
    /// so many already wait, and may not have woken the driver.
    ///
    /// Either a taker sees the new threshold, or the driver sees the taker: no taker is forgotten.
    #[must_use = "who waits already wakes nobody"]
    pub fn wake_at(&self, takers: u32) -> bool {
        self.enough.store(takers, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.waiting() >= takers
    }

    /// Returns the number of takers in the batch that has not been sent.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        (self.filling.load(Ordering::SeqCst) & TAKERS) as u32
    }

    /// Returns the number of a place, if it has arrived. Never blocks.
    #[must_use]
    pub fn number(&self, place: Place) -> Option<Result<Drawn, Lapsed>> {
        if self.answered.get() < place.batch {
            return None;
        }
        let slot = &self.slots[place.batch as usize % KEPT];
        if slot.batch.load(Ordering::Acquire) != place.batch {
            return Some(Err(Lapsed));
        }
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (first, step, note) = (load(&slot.first), load(&slot.step), load(&slot.note));
        fence(Ordering::Acquire);
        if slot.batch.load(Ordering::Relaxed) != place.batch {
            return Some(Err(Lapsed));
        }
        Some(Ok(Drawn { number: first.wrapping_add(place.index.wrapping_mul(step)), note }))
    }

    /// Completes with the number of a place. May be dropped at any time; then no taker gets the number.
    ///
    /// # Errors
    /// [`Lapsed`], if so many batches were answered before the poll that the number is gone.
    pub async fn drawn(&self, place: Place) -> Result<Drawn, Lapsed> {
        self.answered.reached(place.batch).await;
        self.number(place).unwrap_or(Err(Lapsed))
    }

    /// Called by the driver before it sends a request: later takers join the next batch. `None` if there are no takers.
    pub fn begin(&self) -> Option<Draw> {
        let word = self.filling.load(Ordering::SeqCst);
        if word & TAKERS == 0 {
            return None;
        }
        // Only the driver changes the batch number; takers that arrive in between are counted by the swap.
        let number = word >> TAKER_BITS;
        let word = self.filling.swap((number + 1) << TAKER_BITS, Ordering::SeqCst);
        Some(Draw { number, takers: (word & TAKERS) as u32 })
    }

    /// Records the answer to a batch. Must be called in the order in which batches began, by one thread at a time.
    pub fn complete(&self, draw: Draw, range: Range) {
        let slot = &self.slots[draw.number as usize % KEPT];
        slot.batch.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.first.store(range.first, Ordering::Relaxed);
        slot.step.store(range.step, Ordering::Relaxed);
        slot.note.store(range.note, Ordering::Relaxed);
        slot.batch.store(draw.number, Ordering::Release);
        self.answered.publish(draw.number);
    }
}

impl fmt::Debug for Dispenser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispenser")
            .field("waiting", &self.waiting())
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn dispenser() -> (Dispenser, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let dispenser = Dispenser::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        (dispenser, wakes)
    }

    fn from(first: u64) -> Range {
        Range { first, step: 1, note: first }
    }

    #[test]
    fn each_taker_of_a_batch_has_a_number_of_its_own() {
        let (dispenser, wakes) = dispenser();
        assert_eq!(dispenser.begin(), None, "nobody waits");
        let places = [(); 3].map(|()| dispenser.take().unwrap());
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "woken once a batch");
        let draw = dispenser.begin().unwrap();
        assert_eq!(draw.takers(), 3);
        assert_eq!(places.map(|place| dispenser.number(place)), [None; 3]);
        dispenser.complete(draw, Range { first: 10, step: 4, note: 7 });
        let drawn = places.map(|place| dispenser.number(place).unwrap().unwrap());
        assert_eq!(drawn.map(|drawn| drawn.number), [10, 14, 18]);
        assert!(drawn.iter().all(|drawn| drawn.note == 7));
    }

    #[test]
    fn the_driver_says_how_many_it_waits_for() {
        let (dispenser, wakes) = dispenser();
        assert!(!dispenser.wake_at(3), "nobody waits");
        for (joined, woken) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
            dispenser.take().unwrap();
            assert_eq!(wakes.load(Ordering::SeqCst), woken, "{joined} have joined");
        }
        assert!(dispenser.wake_at(2), "more wait already");
        assert!(!dispenser.wake_at(1 << 20), "fewer wait");
        assert_eq!(dispenser.begin().unwrap().takers(), 4);
        dispenser.take().unwrap();
        assert!(dispenser.wake_at(1), "one came while nobody was to wake the driver");
    }

    #[test]
    fn nobody_joins_a_batch_that_is_on_its_way() {
        let (dispenser, wakes) = dispenser();
        let early = dispenser.take().unwrap();
        let first = dispenser.begin().unwrap();
        let late = dispenser.take().unwrap();
        assert_eq!(wakes.load(Ordering::SeqCst), 2);
        dispenser.complete(first, from(1));
        assert_eq!((dispenser.number(early), dispenser.number(late)), (Some(Ok(Drawn { number: 1, note: 1 })), None));
        let second = dispenser.begin().unwrap();
        dispenser.complete(second, from(2));
        assert_eq!(dispenser.number(late), Some(Ok(Drawn { number: 2, note: 2 })));
    }

    #[test]
    fn a_place_that_nobody_looks_at_lapses_and_gives_nobody_elses_number() {
        let (dispenser, _) = dispenser();
        let old = dispenser.take().unwrap();
        for number in 1..=KEPT as u64 {
            let draw = dispenser.begin().unwrap();
            dispenser.complete(draw, from(number));
            assert_eq!(dispenser.number(old), Some(Ok(Drawn { number: 1, note: 1 })), "after {number}");
            dispenser.take().unwrap();
        }
        let draw = dispenser.begin().unwrap();
        dispenser.complete(draw, from(9999));
        assert_eq!(dispenser.number(old), Some(Err(Lapsed)));
    }

    #[test]
    fn a_batch_has_a_limit() {
        let (dispenser, _) = dispenser();
        for _ in 0..MOST_TAKERS {
            assert!(dispenser.take().is_some());
        }
        assert_eq!(dispenser.take(), None);
        assert_eq!(dispenser.begin().unwrap().takers(), MOST_TAKERS);
        assert!(dispenser.take().is_some());
    }
}
