//! Proofs that the view's term is still in force, which a strong read needs, and only relays can give (docs/decisions/0048).
//!
//! ```text
//!  read ──ticket──▶ Oracle ──Question n──▶ every relay ──Promised n──▶ proven (pure) ──▶ the answer to tickets up to n
//! ```
//!
//! A failover promotes a node only after more than half of the relays have promised to receive no more of the old timeline. So a term was in force at
//! the time of a question if enough relays then answer that they have given no such promise: the others must be at most half.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alarm::Alarm;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use watermark::{Batch, Lsn, Oracle, PrimaryPosition, Wanted};
use wire::replication::Promised;

use crate::config::ClusterConfig;
use crate::handle::Shared;
use crate::view::Term;

/// Maximum number of questions under way.
const IN_FLIGHT: usize = 4;
/// Maximum time to prove a question; then the next one is sent in its place.
const PATIENCE: Duration = Duration::from_millis(100);

/// Part of the state shared by the tasks and the handle.
pub(crate) struct Proofs {
    pub(crate) oracle: Oracle,
    /// Number of the last question, which each relay's task sends.
    asked: watch::Sender<u64>,
    /// Notified when a relay has answered, or the view has changed.
    heard: Notify,
    wanted: Arc<Notify>,
    /// Number of relays to ask; 0: no proofs.
    relays: AtomicUsize,
}

/// The relays' answers about the view's term, for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermProof {
    /// Number of configured relays.
    pub relays: usize,
    /// Number of relays that must confirm the term.
    pub needed: usize,
    /// Number of relays that confirmed it in their last answer.
    pub stands: usize,
    /// Number of relays that denied it.
    pub ended: usize,
}

/// Returns the number of relays that must not have promised to let a term end, so that the others are too few to end it.
pub(crate) fn needed(relays: usize) -> usize {
    relays - relays / 2
}

/// True if a relay with this answer could still confirm commits of a term.
pub(crate) fn stands(promised: Promised, term: Term) -> bool {
    promised.system == term.system && promised.fenced < term.timeline && promised.timeline <= term.timeline
}

/// Returns the last question by which the term is proven, from each relay's last answer; 0: none.
pub(crate) fn proven(term: Term, relays: impl Iterator<Item = Option<Promised>>) -> u64 {
    let mut count = 0;
    let said = relays.inspect(|_| count += 1).flatten().filter(|promised| stands(*promised, term));
    let mut numbers: Vec<u64> = said.map(|promised| promised.number).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    needed(count).checked_sub(1).and_then(|index| numbers.get(index)).copied().unwrap_or(0)
}

/// True if a question is sent without waiting for the pace: as with queries for the position, for a single waiter.
fn at_once(shared: bool, under_way: usize) -> bool {
    !shared && under_way == 0
}

// === impl Proofs ===

impl Proofs {
    pub(crate) fn new() -> Proofs {
        let wanted = Arc::new(Notify::new());
        let wake = Arc::clone(&wanted);
        Proofs {
            oracle: Oracle::new(move || wake.notify_one()),
            asked: watch::Sender::new(0),
            heard: Notify::new(),
            wanted,
            relays: AtomicUsize::new(0),
        }
    }

    /// Returns the number of relays that can be asked.
    pub(crate) fn relays(&self) -> usize {
        self.relays.load(Ordering::Relaxed)
    }

    pub(crate) fn set_relays(&self, relays: usize) {
        self.relays.store(relays, Ordering::Relaxed);
        self.heard.notify_one();
    }

    /// Returns the numbers of the questions for a relay.
    pub(crate) fn questions(&self) -> watch::Receiver<u64> {
        self.asked.subscribe()
    }

    /// Notes that more questions may be proven.
    pub(crate) fn hear(&self) {
        self.heard.notify_one();
    }
}

/// Sends questions, and answers tickets. Runs until it is aborted.
pub(crate) async fn run(shared: Arc<Shared>, settings: watch::Receiver<Arc<ClusterConfig>>) {
    let proofs = &shared.proofs;
    // Number and send time of each question under way.
    let mut under_way: VecDeque<(u64, Batch, Instant)> = VecDeque::with_capacity(IN_FLIGHT);
    let mut alarm = Alarm::new();
    let mut last: Option<Instant> = None;
    // True if several waited for the last one.
    let mut together = false;
    loop {
        let term = shared.view.load().term;
        let asks = proofs.relays() > 0;
        let known = if asks { shared.relays.proven(term) } else { u64::MAX };
        while under_way.front().is_some_and(|(number, ..)| *number <= known) {
            let Some((_, batch, _)) = under_way.pop_front() else { break };
            proofs
                .oracle
                .complete(batch, PrimaryPosition { term: u64::from(term.timeline), lsn: Lsn(0), flushed: Lsn(0) });
        }
        let now = Instant::now();
        if under_way.front().is_some_and(|(_, _, sent)| now >= *sent + PATIENCE) {
            // Relays that did not answer, or denied the term, are asked again, for all waiters.
            for (_, batch, _) in under_way.drain(..) {
                proofs.oracle.fail(batch);
            }
        }
        let room = under_way.len() < IN_FLIGHT;
        let wanted = proofs.oracle.wanted() != Wanted::No;
        let due = (room && wanted).then(|| {
            let pace = if at_once(together, under_way.len()) { Duration::ZERO } else { settings.borrow().oracle_pace };
            last.map_or(now, |last| last + pace)
        });
        if due.is_some_and(|due| now >= due) {
            last = Some(now);
            let batch = proofs.oracle.begin();
            together = batch.is_shared();
            let mut number = 0;
            proofs.asked.send_modify(|asked| {
                *asked += 1;
                number = *asked;
            });
            under_way.push_back((number, batch, now));
            continue;
        }
        let late = under_way.front().map(|(_, _, sent)| *sent + PATIENCE);
        let next = due.into_iter().chain(late).min();
        tokio::select! {
            () = proofs.heard.notified() => {}
            () = alarm.until(next.unwrap_or(now)), if next.is_some() => {}
            () = proofs.wanted.notified(), if room => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { system: 7, timeline: 2 };

    fn said(number: u64, fenced: u32, timeline: u32) -> Option<Promised> {
        Some(Promised { number, system: 7, term: 0, fenced, timeline })
    }

    #[test]
    fn what_is_left_could_not_end_a_term() {
        for (relays, expected) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (16, 8)] {
            assert_eq!(needed(relays), expected, "{relays}");
            // A relay set that ends a term is more than half of them.
            assert!(relays - needed(relays) < relays / 2 + 1);
        }
    }

    #[test]
    fn proof_is_of_the_last_question_that_enough_relays_have_answered() {
        let yes = |number| said(number, 1, 2);
        let fenced = |number| said(number, 2, 2);
        for (what, relays, expected) in [
            ("no relay", vec![], 0),
            ("one", vec![yes(5)], 5),
            ("one that is silent", vec![None], 0),
            ("one that is fenced", vec![fenced(5)], 0),
            ("one of two", vec![yes(5), None], 5),
            ("the further one of two", vec![yes(5), yes(9)], 9),
            ("one of two is fenced: the other is needed for an end", vec![yes(5), fenced(9)], 5),
            ("two of three", vec![yes(5), yes(9), None], 5),
            ("two of three", vec![yes(5), yes(9), yes(7)], 7),
            ("one of three", vec![None, yes(9), None], 0),
            ("two of three are fenced", vec![fenced(9), yes(9), fenced(9)], 0),
            ("it has not heard of this timeline yet", vec![said(4, 0, 1)], 4),
            ("it was fenced on the one before", vec![said(4, 1, 1)], 4),
            ("it knows of a newer timeline", vec![said(4, 0, 3)], 0),
            ("it has lost its memory", vec![said(4, u32::MAX, 2)], 0),
            ("of another system", vec![Some(Promised { number: 4, system: 8, term: 0, fenced: 0, timeline: 2 })], 0),
        ] {
            assert_eq!(proven(TERM, relays.into_iter()), expected, "{what}");
        }
    }
}
