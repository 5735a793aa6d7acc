//! The bookkeeping of a batched reader of a growing number.
//!
//! Who needs to know "how far had the primary got by now?" takes a [`Ticket`]: the number of the first batch that has
//! not been sent. One question to the primary answers everyone whose ticket is of that batch, or of an earlier one that
//! was lost. Nobody joins a batch that is already on its way: its answer could be older than the question.

use std::fmt;
use std::sync::Arc;

use crate::Lsn;
use crate::mark::{Number, Watermark};
use crate::sync::{AtomicU64, Ordering, fence};

/// Answers kept: an older ticket gets the newest answer instead, which is later than it needs, never earlier.
#[cfg(not(loom))]
const KEPT: usize = 1024;
/// Small, so that the model can see the driver overwrite a slot that is being read.
#[cfg(loom)]
const KEPT: usize = 2;

/// The first batch that had not been sent when the ticket was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A batch that is on its way: ends in [`Oracle::complete`] or [`Oracle::fail`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch that is neither completed nor failed leaves its askers waiting"]
pub struct Batch(u64);

/// Where the primary was when a batch reached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The timeline the position is on: positions of different terms are never compared.
    pub term: u64,
    /// The position: of everything that is visible.
    pub lsn: Lsn,
    /// Up to where the primary itself has made it durable.
    pub flushed: Lsn,
}

/// How much a batch is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wanted {
    /// Nobody holds a ticket for it.
    No,
    /// Those who hold one can do without an answer for now: [`Oracle::ticket_for_later`].
    Later,
    /// Somebody waits for it.
    Now,
}

/// Hands out tickets and keeps the answers. Many askers, one driver that calls [`begin`](Oracle::begin) and
/// [`complete`](Oracle::complete).
pub struct Oracle {
    /// Number of the last batch sent.
    sent: AtomicU64,
    /// How much those who hold a ticket want the first batch that has not been sent: a `Wanted`.
    wanted: AtomicU64,
    /// The newest batch answered.
    answered: Arc<Watermark<Ticket>>,
    slots: Box<[Slot]>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Written by the driver alone; `batch` says whose answer it holds, 0 while it is being written.
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

// === impl Oracle ===

impl Oracle {
    /// `wake` is called, from an asker's thread, when a batch becomes wanted, or more so: at most twice a batch.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Oracle {
        Oracle {
            sent: AtomicU64::new(0),
            wanted: AtomicU64::new(Wanted::No as u64),
            answered: Arc::new(Watermark::new(Ticket(0))),
            slots: (0..KEPT).map(|_| Slot::default()).collect(),
            wake: Box::new(wake),
        }
    }

    /// A ticket for the next batch: its answer covers everything that the primary had acknowledged before this call.
    pub fn ticket(&self) -> Ticket {
        self.take(Wanted::Now)
    }

    /// The same for one who only looks whether the answer is there, and has another way while it is not: the driver need not
    /// hurry for it.
    pub fn ticket_for_later(&self) -> Ticket {
        self.take(Wanted::Later)
    }

    /// The answer for a ticket, if it has arrived. It never blocks; who gets None asks again later.
    #[must_use]
    pub fn answer(&self, ticket: Ticket) -> Option<Answer> {
        if self.answered.get() < ticket {
            return None;
        }
        self.read(ticket.0).or_else(|| self.newest())
    }

    /// The highest ticket that has an answer: where one waits for one's own.
    #[must_use]
    pub fn answered(&self) -> &Arc<Watermark<Ticket>> {
        &self.answered
    }

    /// Whether a batch should be sent.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        match self.wanted.load(Ordering::SeqCst) {
            0 => Wanted::No,
            1 => Wanted::Later,
            _ => Wanted::Now,
        }
    }

    /// To be called by the driver before it sends a question.
    pub fn begin(&self) -> Batch {
        // Order matters. The wish goes down first: whoever raises it after that is answered by this batch or asks for the
        // next. The other way round a ticket for the next batch could be taken, and its wish lost, in between.
        self.wanted.store(Wanted::No as u64, Ordering::SeqCst);
        Batch(self.sent.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// The answer to a batch. Batches may be answered in any order, by one thread at a time, and fewer than the number of
    /// answers kept (1024) may be on their way.
    pub fn complete(&self, batch: Batch, answer: Answer) {
        let slot = &self.slots[batch.0 as usize % KEPT];
        slot.batch.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        slot.term.store(answer.term, Ordering::Relaxed);
        slot.lsn.store(answer.lsn.0, Ordering::Relaxed);
        slot.flushed.store(answer.flushed.0, Ordering::Relaxed);
        slot.batch.store(batch.0, Ordering::Release);
        self.answered.publish(Ticket(batch.0));
    }

    /// A batch whose answer will not come: its tickets are answered by the next one, which is asked for here.
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
        // The load keeps many askers of one batch from passing the cache line around. Whoever has seen the newer number of
        // batches also sees that `begin` put the wish down before it, so it is never kept from raising it by an old value.
        if self.wanted.load(Ordering::SeqCst) < wanted && self.wanted.fetch_max(wanted, Ordering::SeqCst) < wanted {
            (self.wake)();
        }
    }

    fn newest(&self) -> Option<Answer> {
        // The driver may lap a reader only by answering KEPT batches during these few loads.
        (0..4).find_map(|_| self.read(self.answered.get().0))
    }

    fn read(&self, batch: u64) -> Option<Answer> {
        let slot = &self.slots[batch as usize % KEPT];
        if slot.batch.load(Ordering::Acquire) != batch {
            return None;
        }
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (lsn, flushed) = (Lsn(load(&slot.lsn)), Lsn(load(&slot.flushed)));
        let answer = Answer { term: load(&slot.term), lsn, flushed };
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

    fn at(lsn: u64) -> Answer {
        Answer { term: 1, lsn: Lsn(lsn), flushed: Lsn(lsn) }
    }

    #[test]
    fn one_batch_answers_all_who_asked_before_it() {
        let (oracle, wakes) = oracle();
        assert_eq!(oracle.wanted(), Wanted::No);
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
