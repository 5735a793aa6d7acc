//! Bookkeeping of a batched reader of a growing number.
//!
//! An asker that needs the primary's current position takes a [`Ticket`]: the number of the first batch that has not been sent. One request to the
//! primary answers all tickets of that batch, and of earlier batches that were lost. No asker joins a batch that has been sent: its answer could be
//! older than the question.

use std::fmt;
use std::sync::Arc;

use crate::Lsn;
use crate::mark::{Number, Watermark};
use crate::sync::{AtomicU64, Ordering, fence};

/// Number of answers kept: an older ticket gets the newest answer instead, which is later than required, never earlier.
#[cfg(not(loom))]
const KEPT: usize = 1024;
/// Small, so that the model covers the driver overwriting a slot that is being read.
#[cfg(loom)]
const KEPT: usize = 2;

/// Number of the first batch that had not been sent when the ticket was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A batch that has been sent; ends in [`Oracle::complete`] or [`Oracle::fail`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch that is neither completed nor failed leaves its askers waiting"]
pub struct Batch {
    number: u64,
    shared: bool,
}

/// Position of the primary when a batch reached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrimaryPosition {
    /// The timeline of the position: positions of different terms are never compared.
    pub term: u64,
    /// Position up to which everything is visible.
    pub lsn: Lsn,
    /// Position up to which the primary itself has flushed.
    pub flushed: Lsn,
}

/// Urgency of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// No tickets for the batch.
    No,
    /// Only tickets whose holders can do without an answer for now: [`Oracle::ticket_for_later`].
    Later,
    /// At least one waiting asker.
    Now,
}

/// Value above [`Wanted::Now`]: several waiting askers.
const BY_SEVERAL: u64 = Wanted::Now as u64 + 1;

/// Issues tickets and keeps the answers. Many askers, one driver, which calls [`begin`](Oracle::begin) and [`complete`](Oracle::complete).
pub struct Oracle {
    /// Number of the last batch sent.
    sent: AtomicU64,
    /// Urgency of the first batch that has not been sent: a `Wanted`, or [`BY_SEVERAL`].
    wanted: AtomicU64,
    /// The newest answered batch.
    answered: Arc<Watermark<Ticket>>,
    slots: Box<[Slot]>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// An answer, written only by the driver; `batch` is the answer's batch, 0 while it is being written.
#[derive(Default)]
struct Slot {
    batch: AtomicU64,
    term: AtomicU64,
    lsn: AtomicU64,
    flushed: AtomicU64,
}

// === impl Ticket ===

impl Number for Ticket {
    fn to_u64(self) -> u64 {
        self.0
    }

    fn from_u64(number: u64) -> Ticket {
        Ticket(number)
    }
}

// === impl Batch ===

impl Batch {
    /// True if several askers waited for the batch when it was sent.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

// === impl Oracle ===

impl Oracle {
    /// Creates an oracle. `wake` is called from an asker's thread when a batch becomes wanted, or more urgent: at most twice per batch.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Oracle {
        Oracle {
            sent: AtomicU64::new(0),
            wanted: AtomicU64::new(Wanted::No as u64),
            answered: Arc::new(Watermark::new(Ticket(0))),
            slots: (0..KEPT).map(|_| Slot::default()).collect(),
            wake: Box::new(wake),
        }
    }

    /// Takes a ticket for the next batch: its answer covers everything that the primary had acknowledged before this call.
    pub fn ticket(&self) -> Ticket {
        self.take(Wanted::Now)
    }

    /// Takes a ticket for an asker that only checks for the answer, and has an alternative without it: the driver need not hurry.
    pub fn ticket_for_later(&self) -> Ticket {
        self.take(Wanted::Later)
    }

    /// Returns the answer for a ticket, if it has arrived. Never blocks; the caller retries later on `None`.
    #[must_use]
    pub fn answer(&self, ticket: Ticket) -> Option<PrimaryPosition> {
        if self.answered.get() < ticket {
            return None;
        }
        self.read(ticket.0).or_else(|| self.newest())
    }

    /// Returns the highest ticket that has an answer, on which an asker waits for its own.
    #[must_use]
    pub fn answered(&self) -> &Arc<Watermark<Ticket>> {
        &self.answered
    }

    /// Returns the urgency of the next batch.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        match self.wanted.load(Ordering::SeqCst) {
            0 => Wanted::No,
            1 => Wanted::Later,
            _ => Wanted::Now,
        }
    }

    /// Called by the driver before it sends a request.
    pub fn begin(&self) -> Batch {
        // The order matters. The urgency is reset first: an asker that raises it later is answered by this batch or requests the next one. In the
        // other order a ticket for the next batch could be taken in between, and its urgency lost.
        let shared = self.wanted.swap(Wanted::No as u64, Ordering::SeqCst) == BY_SEVERAL;
        Batch { number: self.sent.fetch_add(1, Ordering::SeqCst) + 1, shared }
    }

    /// Records the answer to a batch. Batches may be answered in any order, by one thread at a time, and fewer than the number of answers kept (1024)
    /// may be on their way.
    pub fn complete(&self, batch: Batch, answer: PrimaryPosition) {
        let Batch { number, .. } = batch;
        let slot = &self.slots[number as usize % KEPT];
        slot.batch.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.term.store(answer.term, Ordering::Relaxed);
        slot.lsn.store(answer.lsn.0, Ordering::Relaxed);
        slot.flushed.store(answer.flushed.0, Ordering::Relaxed);
        slot.batch.store(number, Ordering::Release);
        self.answered.publish(Ticket(number));
    }

    /// Ends a batch that will not be answered: its tickets are answered by the next one, which is requested here.
    pub fn fail(&self, batch: Batch) {
        drop(batch);
        self.want(Wanted::Now);
    }

    fn take(&self, wanted: Wanted) -> Ticket {
        let ticket = Ticket(self.sent.load(Ordering::SeqCst) + 1);
        self.want(wanted);
        ticket
    }

    fn want(&self, wanted: Wanted) {
        let wanted = wanted as u64;
        // The load avoids that many askers of one batch contend for the cache line. An asker that sees the newer number of batches also sees the
        // reset of the urgency that `begin` made before, so an old value never keeps it from raising the urgency.
        let mut seen = self.wanted.load(Ordering::SeqCst);
        if seen < wanted {
            seen = self.wanted.fetch_max(wanted, Ordering::SeqCst);
            if seen < wanted {
                return (self.wake)();
            }
        }
        if seen == wanted && wanted == Wanted::Now as u64 {
            // Never from a lower value: that would not wake the driver. If the urgency has been reset meanwhile, the batch that has begun also
            // answers this asker: it took its ticket before it saw that a batch was wanted.
            let _ = self.wanted.compare_exchange(seen, BY_SEVERAL, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Returns the newest answer of any batch; `None` if there is none yet.
    #[must_use]
    pub fn newest(&self) -> Option<PrimaryPosition> {
        // The driver overtakes a reader only if it answers KEPT batches during these few loads.
        (0..4).find_map(|_| Some(self.answered.get().0).filter(|batch| *batch > 0).and_then(|batch| self.read(batch)))
    }

    fn read(&self, batch: u64) -> Option<PrimaryPosition> {
        let slot = &self.slots[batch as usize % KEPT];
        if slot.batch.load(Ordering::Acquire) != batch {
            return None;
        }
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (lsn, flushed) = (Lsn(load(&slot.lsn)), Lsn(load(&slot.flushed)));
        let answer = PrimaryPosition { term: load(&slot.term), lsn, flushed };
        fence(Ordering::Acquire);
        (slot.batch.load(Ordering::Relaxed) == batch).then_some(answer)
    }
}

impl fmt::Debug for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oracle")
            .field("sent", &self.sent)
            .field("answered", &self.answered)
            .field("wanted", &self.wanted)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn oracle() -> (Oracle, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&wakes);
        let oracle = Oracle::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        (oracle, wakes)
    }

    fn at(lsn: u64) -> PrimaryPosition {
        PrimaryPosition { term: 1, lsn: Lsn(lsn), flushed: Lsn(lsn) }
    }

    #[test]
    fn one_batch_answers_all_who_asked_before_it() {
        let (oracle, wakes) = oracle();
        assert_eq!((oracle.wanted(), oracle.newest()), (Wanted::No, None));
        let (a, b) = (oracle.ticket(), oracle.ticket());
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "woken once a batch");
        assert_eq!(oracle.wanted(), Wanted::Now);
        let batch = oracle.begin();
        assert_eq!(oracle.wanted(), Wanted::No);
        assert_eq!((oracle.answer(a), oracle.answer(b)), (None, None));
        oracle.complete(batch, at(10));
        assert_eq!((oracle.answer(a), oracle.answer(b)), (Some(at(10)), Some(at(10))));
    }

    #[test]
    fn who_can_do_without_does_not_hurry_the_driver_and_is_answered_with_the_others() {
        let (oracle, wakes) = oracle();
        let patient = oracle.ticket_for_later();
        assert_eq!((oracle.wanted(), wakes.load(Ordering::SeqCst)), (Wanted::Later, 1));
        assert_eq!(oracle.ticket_for_later(), patient);
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "woken once for those who are patient");
        let hurried = oracle.ticket();
        assert_eq!((oracle.wanted(), wakes.load(Ordering::SeqCst)), (Wanted::Now, 2));
        assert_eq!(oracle.ticket_for_later(), patient);
        assert_eq!((oracle.wanted(), wakes.load(Ordering::SeqCst)), (Wanted::Now, 2), "nobody takes the hurry back");
        let batch = oracle.begin();
        oracle.complete(batch, at(10));
        assert_eq!((oracle.answer(patient), oracle.answer(hurried)), (Some(at(10)), Some(at(10))));
    }

    #[test]
    fn a_batch_says_whether_several_have_waited() {
        let (oracle, _) = oracle();
        let begun = |waits: &[bool]| {
            for waits in waits {
                let _ = if *waits { oracle.ticket() } else { oracle.ticket_for_later() };
            }
            let batch = oracle.begin();
            let shared = batch.is_shared();
            oracle.complete(batch, at(1));
            (shared, oracle.newest())
        };
        for (waits, shared) in [
            (&[true][..], false),
            (&[true, true], true),
            (&[true, false], false),
            (&[false, true], false),
            (&[false, false], false),
            (&[false, true, false, true], true),
        ] {
            assert_eq!(begun(waits), (shared, Some(at(1))), "{waits:?}");
        }
    }

    #[test]
    fn nobody_joins_a_batch_that_is_on_its_way() {
        let (oracle, wakes) = oracle();
        let early = oracle.ticket();
        let first = oracle.begin();
        let late = oracle.ticket();
        assert_eq!(oracle.wanted(), Wanted::Now);
        assert_eq!(wakes.load(Ordering::SeqCst), 2);
        oracle.complete(first, at(10));
        assert_eq!((oracle.answer(early), oracle.answer(late)), (Some(at(10)), None));
        let second = oracle.begin();
        oracle.complete(second, at(20));
        assert_eq!((oracle.answer(early), oracle.answer(late)), (Some(at(10)), Some(at(20))));
    }

    #[test]
    fn answers_may_overtake() {
        let (oracle, _) = oracle();
        let early = oracle.ticket();
        let first = oracle.begin();
        let late = oracle.ticket();
        let second = oracle.begin();
        oracle.complete(second, at(20));
        assert_eq!(oracle.answer(early), Some(at(20)), "a later batch covers an earlier ticket");
        assert_eq!(oracle.answer(late), Some(at(20)));
        oracle.complete(first, at(10));
        assert_eq!(oracle.answer(late), Some(at(20)));
    }

    #[test]
    fn a_failed_batch_is_asked_for_again() {
        let (oracle, wakes) = oracle();
        let ticket = oracle.ticket();
        let batch = oracle.begin();
        oracle.fail(batch);
        assert_eq!(oracle.wanted(), Wanted::Now);
        assert_eq!(wakes.load(Ordering::SeqCst), 2);
        assert_eq!(oracle.answer(ticket), None);
        let batch = oracle.begin();
        oracle.complete(batch, at(5));
        assert_eq!(oracle.answer(ticket), Some(at(5)));
    }

    #[test]
    fn an_old_ticket_gets_the_newest_answer() {
        let (oracle, _) = oracle();
        let old = oracle.ticket();
        for lsn in 1..=KEPT as u64 + 1 {
            let batch = oracle.begin();
            oracle.complete(batch, at(lsn));
        }
        assert_eq!(oracle.answer(old), Some(at(KEPT as u64 + 1)));
    }
}
