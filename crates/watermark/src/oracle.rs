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

/// Who holds tickets for the batch that has not been sent: nobody, one asker, or several.
const NOBODY: u64 = 0;
const ONE: u64 = 1;
const SEVERAL: u64 = 2;

/// The first batch that had not been sent when the ticket was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A batch that is on its way: ends in [`Oracle::complete`] or [`Oracle::fail`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a batch that is neither completed nor failed leaves its askers waiting"]
pub struct Batch {
    number: u64,
    shared: bool,
}

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

/// Hands out tickets and keeps the answers. Many askers, one driver that calls [`begin`](Oracle::begin) and
/// [`complete`](Oracle::complete).
pub struct Oracle {
    /// Number of the last batch sent.
    sent: AtomicU64,
    /// Who holds a ticket for a batch that has not been sent: [`NOBODY`], [`ONE`], [`SEVERAL`].
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

// === impl Batch ===

impl Batch {
    /// More than one asker is answered by it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }
}

// === impl Oracle ===

impl Oracle {
    /// `wake` is called, from an asker's thread, at most once a batch: it tells the driver that one is wanted.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Oracle {
        Oracle {
            sent: AtomicU64::new(0),
            wanted: AtomicU64::new(NOBODY),
            answered: Arc::new(Watermark::new(Ticket(0))),
            slots: (0..KEPT).map(|_| Slot::default()).collect(),
            wake: Box::new(wake),
        }
    }

    /// A ticket for the next batch: its answer covers everything that the primary had acknowledged before this call.
    pub fn ticket(&self) -> Ticket {
        let ticket = Ticket(self.sent.load(Ordering::SeqCst) + 1);
        self.want();
        ticket
    }

    /// The same for an asker that takes another one for the same event: it does not make a batch one of several askers.
    pub fn ticket_as_well(&self) -> Ticket {
        let ticket = Ticket(self.sent.load(Ordering::SeqCst) + 1);
        if self.wanted.load(Ordering::SeqCst) == NOBODY {
            self.want();
        }
        ticket
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

    /// True when a batch should be sent.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != NOBODY
    }

    /// To be called by the driver before it sends a question.
    pub fn begin(&self) -> Batch {
        // Order matters. The flag goes down first: whoever raises it after that is answered by this batch or asks for the
        // next. The other way round a ticket for the next batch could be taken, and its flag lost, in between.
        let shared = self.wanted.swap(NOBODY, Ordering::SeqCst) == SEVERAL;
        Batch { number: self.sent.fetch_add(1, Ordering::SeqCst) + 1, shared }
    }

    /// The answer to a batch. Batches may be answered in any order, by one thread at a time, and fewer than the number of
    /// answers kept (1024) may be on their way.
    pub fn complete(&self, batch: Batch, answer: Answer) {
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

    /// A batch whose answer will not come: its tickets are answered by the next one, which is asked for here.
    pub fn fail(&self, batch: Batch) {
        drop(batch);
        self.want();
    }

    fn want(&self) {
        // The load keeps many askers of one batch from passing the cache line around. Whoever has seen the newer number of
        // batches also sees that `begin` put the flag down before it, so it is never kept from raising it by an old value.
        let mut seen = self.wanted.load(Ordering::SeqCst);
        if seen == NOBODY {
            match self.wanted.compare_exchange(NOBODY, ONE, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return (self.wake)(),
                Err(now) => seen = now,
            }
        }
        if seen == ONE {
            // Never up from nobody here: that would be without waking the driver. If it has gone down meanwhile, the batch that
            // has begun is this asker's, too: it took its ticket before it saw the flag up.
            let _ = self.wanted.compare_exchange(ONE, SEVERAL, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The newest answer, whoever it was for; None: there is none yet.
    #[must_use]
    pub fn newest(&self) -> Option<Answer> {
        // The driver may lap a reader only by answering KEPT batches during these few loads.
        (0..4).find_map(|_| Some(self.answered.get().0).filter(|batch| *batch > 0).and_then(|batch| self.read(batch)))
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
        assert!(!oracle.is_wanted());
        assert_eq!(oracle.newest(), None);
        let (a, b) = (oracle.ticket(), oracle.ticket());
        assert_eq!(wakes.load(Ordering::SeqCst), 1, "woken once a batch");
        assert!(oracle.is_wanted());
        let batch = oracle.begin();
        assert!(!oracle.is_wanted());
        assert_eq!((oracle.answer(a), oracle.answer(b)), (None, None));
        oracle.complete(batch, at(10));
        assert_eq!((oracle.answer(a), oracle.answer(b)), (Some(at(10)), Some(at(10))));
        assert_eq!(oracle.newest(), Some(at(10)));
    }

    #[test]
    fn a_batch_says_whether_several_have_asked() {
        let (oracle, wakes) = oracle();
        let begun = |askers: &[bool]| {
            for again in askers {
                if *again {
                    oracle.ticket_as_well()
                } else {
                    oracle.ticket()
                };
            }
            let batch = oracle.begin();
            let shared = batch.is_shared();
            oracle.complete(batch, at(1));
            shared
        };
        for (askers, shared) in [
            (&[false][..], false),
            (&[false, false], true),
            (&[false, true], false),
            (&[true, false], true),
            (&[true], false),
            (&[false, false, false], true),
        ] {
            assert_eq!(begun(askers), shared, "{askers:?}");
        }
        assert_eq!(wakes.load(Ordering::SeqCst), 6, "woken once a batch");
    }

    #[test]
    fn nobody_joins_a_batch_that_is_on_its_way() {
        let (oracle, wakes) = oracle();
        let early = oracle.ticket();
        let first = oracle.begin();
        let late = oracle.ticket();
        assert!(oracle.is_wanted());
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
        assert!(oracle.is_wanted());
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
