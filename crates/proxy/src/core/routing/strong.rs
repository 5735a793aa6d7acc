//! Strong reads: they may run on a replica, and still see every commit that was reported to any client before the read began.
//!
//! The read takes a ticket of the oracle. The oracle's answer, a position of the primary, is the position that a replica must have reached; the read
//! waits for both here, in its worker's own heaps: it holds no server and no thread, and a worker is woken when the lowest awaited number has been
//! reached. A read that waits longer than `strong_wait` is sent to the primary, which is never behind.
//!
//! If relays are configured, each unit of a strong session also waits for **proof**: after its arrival, enough relays confirm that the view's term is
//! still in force (docs/decisions/0048). Otherwise a proxy that is cut off together with an old primary would continue to answer from it. Position
//! and proof are requested at the same time. A statement that cannot have its proof before it is sent, because its session holds a server connection,
//! has its answer held back until then (`commit`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::{Role, TermProof};
use watermark::{Lsn, Ticket, Waiters};

use crate::config::Consistency;
use crate::core::memory::Token;
use crate::core::pool::NodeRequest;
use crate::core::{Core, over};

/// Maximum number of waiting reads of one worker; further ones are sent to the primary.
const MOST_WAITING: usize = 1 << 17;

/// Hint for a client whose strong read could not have its proof.
pub(in crate::core) const UNPROVEN_HINT: &str = "Another primary may have been made that this proxy does not reach. Check that the proxy \
    reaches the relays of [[cluster.relays]], and SHOW RELAYS on its console; a failover that was begun ends, or is called off by \
    \"kingpost failover --abort\". SET kingpost.consistency = 'session' reads without this proof.";

/// State of the position that a strong read must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Reach {
    /// The position is not requested, or not needed.
    Unasked,
    /// The read waits for the answer to this ticket.
    Asked(Ticket),
    /// The read waits until a replica has reached the position.
    Behind { term: u64, lsn: Lsn },
    /// The read need not wait: any replica that has reached the position is suitable.
    At { term: u64, lsn: Lsn },
    /// The read has waited long enough, and is sent to the primary.
    Primary,
}

/// State of the proof of a strong session's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Proof {
    /// The proof is not requested, or not available.
    Unasked,
    /// The unit waits for the answer to this ticket of [`topology::Topology::proof`].
    Asked(Ticket),
    /// Proof that this term was in force after the arrival of the unit.
    Of(u64),
}

/// Decision on a unit that is about to be assigned a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Hold {
    /// The unit may be assigned a server.
    Go,
    /// The unit waits; its client is `waiting`, and the unit is dispatched again once the wait is over.
    Wait,
    /// The unit has waited for proof for too long, or too many units wait.
    Refuse,
}

impl Reach {
    fn is_waiting(self) -> bool {
        matches!(self, Reach::Asked(_) | Reach::Behind { .. })
    }
}

impl Proof {
    fn is_waiting(self) -> bool {
        matches!(self, Proof::Asked(_))
    }
}

/// Waiting strong reads of a worker; None until the first.
#[derive(Default)]
pub(in crate::core) struct StrongReads(Option<Box<Strong>>);

impl StrongReads {
    /// True if a read may wait.
    pub(in crate::core) fn any_wait(&self) -> bool {
        self.0.is_some()
    }
}

/// The waiting reads. An entry whose client has gone, or no longer waits, is dropped at its turn.
struct Strong {
    asked: Waiters<Token, Ticket>,
    behind: Waiters<Token, Lsn>,
    proved: Option<Waiters<Token, Ticket>>,
    /// End of each read's wait for a replica, in that order.
    deadlines: VecDeque<(Instant, Token)>,
    /// Start of each unit's wait for proof, in that order; entries that no longer wait are removed once they are at the front.
    unproven: VecDeque<(Instant, Token)>,
}

/// Decides from plain values on a strong read: by the known position, and by the position of the fastest usable replica. `checked`: a replica can be
/// asked by a replay check.
fn decide(reach: Reach, term: u64, fastest: Option<Lsn>, late: bool, checked: bool) -> Reach {
    match (reach, fastest) {
        (_, None) => Reach::Primary,
        (Reach::Behind { term: of, lsn } | Reach::At { term: of, lsn }, Some(there)) if of == term && there >= lsn => {
            Reach::At { term, lsn }
        }
        _ if late => Reach::Primary,
        // The primary has changed since: the new primary's position must be requested.
        (Reach::Behind { term: of, .. } | Reach::At { term: of, .. }, _) if of != term => Reach::Unasked,
        (Reach::At { term, lsn }, _) if checked => Reach::At { term, lsn },
        (Reach::At { term, lsn }, _) => Reach::Behind { term, lsn },
        (reach, _) => reach,
    }
}

/// Returns the state of the proof of a term, from plain values. `answer`: the term in the answer to its ticket. None: the proof has to be requested.
fn prove(proof: Proof, answer: Option<u64>, term: u64) -> Option<Proof> {
    match (proof, answer) {
        (Proof::Of(of), _) | (Proof::Asked(_), Some(of)) => (of == term).then_some(Proof::Of(term)),
        (Proof::Asked(_), None) => Some(proof),
        (Proof::Unasked, _) => None,
    }
}

impl Core {
    /// Returns the consistency of this client's reads.
    pub(in crate::core) fn consistency(&self, c: usize) -> Consistency {
        let client = &self.clients[c];
        let of_database = || self.pools.get(client.pool).map(|pool| pool.database.consistency);
        client.consistency.or_else(of_database).unwrap_or(Consistency::Session)
    }

    /// Decides if a unit that is about to be assigned a server has to wait.
    pub(in crate::core) fn hold_unit(&mut self, c: usize, request: NodeRequest) -> Hold {
        self.clients[c].proven = false;
        if self.consistency(c) != Consistency::Strong {
            return Hold::Go;
        }
        // Before any wait, so that both requests are under way at the same time.
        if self.clients[c].unit.proof == Proof::Unasked
            && let Some(proof) = self.shared.topology.proof()
        {
            self.clients[c].unit.proof = Proof::Asked(proof.ticket());
            self.clients[c].since = self.now;
        }
        if request == NodeRequest::Read && self.hold_read(c) { Hold::Wait } else { self.hold_for_proof(c) }
    }

    /// Decides if a unit has to wait for the proof that the view's term was still in force at its arrival.
    fn hold_for_proof(&mut self, c: usize) -> Hold {
        let topology = Arc::clone(&self.shared.topology);
        let Some(oracle) = topology.proof() else { return Hold::Go };
        let term = u64::from(self.view.term.timeline);
        let before = self.clients[c].unit.proof;
        let answer = match before {
            Proof::Asked(ticket) => oracle.answer(ticket).map(|answer| answer.term),
            Proof::Unasked | Proof::Of(_) => None,
        };
        let proof = prove(before, answer, term).unwrap_or_else(|| Proof::Asked(oracle.ticket()));
        self.clients[c].unit.proof = proof;
        let Proof::Asked(ticket) = proof else {
            // Messages of the unit after these bytes, up to its Sync or Flush, may come much later.
            self.clients[c].proven = self.clients[c].unit.whole;
            return Hold::Go;
        };
        let since = self.clients[c].since;
        if over(since, self.settings.no_primary_timeout, self.now) {
            return Hold::Refuse;
        }
        let token = self.clients[c].token;
        let wake = Arc::clone(&self.wake);
        let strong = self.strong_reads();
        let proved = strong
            .proved
            .get_or_insert_with(|| Waiters::new(Arc::clone(oracle.answered()), MOST_WAITING, move || wake()));
        if proved.insert(ticket, token).is_err() {
            return Hold::Refuse;
        }
        if strong.unproven.back() != Some(&(since, token)) {
            strong.unproven.push_back((since, token));
        }
        self.start_waiting(c);
        Hold::Wait
    }

    /// Returns the error message for a client whose unit could not have its proof; nothing of the unit was executed.
    pub(in crate::core) fn unproven_text(&self) -> String {
        let TermProof { relays, needed, stands, ended } = self.shared.topology.term_proof();
        format!(
            "a strong read needs proof that its primary has not been replaced: {needed} of {relays} relay(s) have to say so, {stands} did, and \
             {ended} said that its timeline {} is being left or has been; nothing was executed",
            self.view.term.told_timeline()
        )
    }

    /// Handles a read that is about to be assigned a server; returns true if it has to wait first, for its position or for a replica.
    fn hold_read(&mut self, c: usize) -> bool {
        let term = u64::from(self.view.term.timeline);
        let fastest = self.fastest_replica();
        let late = match self.clients[c].unit.reach {
            Reach::Unasked => false,
            _ => over(self.clients[c].since, self.settings.strong_wait, self.now),
        };
        let mut reach = self.clients[c].unit.reach;
        if let Reach::Asked(ticket) = reach
            && let Some(answer) = self.shared.topology.oracle().answer(ticket)
        {
            reach = Reach::At { term: answer.term, lsn: answer.lsn };
        }
        let first = reach == Reach::Unasked;
        let checked = self.is_verifiable(c) && self.view.nodes.iter().any(|node| node.usable && self.may_check(node));
        reach = decide(reach, term, fastest, late, checked);
        if first && fastest.is_some() {
            self.clients[c].since = self.now;
            self.metrics.strong_reads.add(1);
        }
        if reach == Reach::Unasked {
            reach = Reach::Asked(self.shared.topology.oracle().ticket());
        }
        self.clients[c].unit.reach = reach;
        if !reach.is_waiting() {
            let waited = self.now.saturating_duration_since(self.clients[c].since);
            if !first {
                self.clients[c].waited = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
                self.metrics.strong_wait_micros.observe(waited.as_micros() as u64);
            }
            if reach == Reach::Primary && fastest.is_some() {
                self.metrics.strong_primary.add(1);
            }
            return false;
        }
        if self.wait_strong(c, reach, first) {
            return true;
        }
        self.clients[c].unit.reach = Reach::Primary;
        false
    }

    /// Adds a read to the heaps; returns false if too many reads wait already.
    fn wait_strong(&mut self, c: usize, reach: Reach, first: bool) -> bool {
        let (token, since) = (self.clients[c].token, self.clients[c].since);
        let topology = Arc::clone(&self.shared.topology);
        let deadline = since + self.settings.strong_wait;
        let strong = self.strong_reads();
        let put = match reach {
            Reach::Asked(ticket) => strong.asked.insert(ticket, token).is_ok(),
            Reach::Behind { lsn, .. } => {
                topology.await_replay(lsn);
                strong.behind.insert(lsn, token).is_ok()
            }
            _ => false,
        };
        if !put {
            return false;
        }
        if first {
            strong.deadlines.push_back((deadline, token));
        }
        self.start_waiting(c);
        true
    }

    /// Returns the waiting reads of this worker.
    fn strong_reads(&mut self) -> &mut Strong {
        let (topology, wake) = (&self.shared.topology, &self.wake);
        self.strong.0.get_or_insert_with(|| {
            let (asked, behind) = (Arc::clone(wake), Arc::clone(wake));
            Box::new(Strong {
                asked: Waiters::new(Arc::clone(topology.oracle().answered()), MOST_WAITING, move || asked()),
                behind: Waiters::new(Arc::clone(topology.replayed()), MOST_WAITING, move || behind()),
                proved: None,
                deadlines: VecDeque::new(),
                unproven: VecDeque::new(),
            })
        })
    }

    /// Returns the position of the fastest replica usable for reads; None if there is none, or if it never reports one.
    fn fastest_replica(&self) -> Option<Lsn> {
        let fit = self.view.nodes.iter().filter(|node| node.role == Role::Replica && node.usable && node.weight > 0);
        let furthest = fit.map(|node| node.node.replayed.get()).max();
        // Without timelines there may also be no positions, and so no wait.
        furthest.filter(|lsn| *lsn > Lsn(0) || !self.view.term.is_counted())
    }

    /// Releases all reads that need not wait any more. Called each turn: costs two loads while no read waits.
    pub(in crate::core) fn release_strong(&mut self) {
        let Some(mut strong) = self.strong.0.take() else { return };
        while let Some(token) = strong.asked.pop() {
            self.wake_strong(token);
        }
        while let Some(token) = strong.behind.pop() {
            self.wake_strong(token);
        }
        while let Some(token) = strong.proved.as_mut().and_then(Waiters::pop) {
            self.wake_strong(token);
        }
        while let Some(&(since, token)) = strong.unproven.front() {
            let waits = self.is_client(token) && {
                let client = &self.clients[token.index()];
                client.waiting && client.since == since && client.unit.proof.is_waiting()
            };
            if waits && !over(since, self.settings.no_primary_timeout, self.now) {
                break;
            }
            strong.unproven.pop_front();
            if waits {
                self.wake_strong(token);
            }
        }
        while let Some(&(deadline, token)) = strong.deadlines.front() {
            if deadline > self.now {
                break;
            }
            strong.deadlines.pop_front();
            if self.is_client(token) && over(self.clients[token.index()].since, self.settings.strong_wait, self.now) {
                self.wake_strong(token);
            }
        }
        self.strong.0 = Some(strong);
    }

    /// Dispatches a waiting client again, unless it has left, was cancelled, or waits for a server by now.
    fn wake_strong(&mut self, token: Token) {
        if !self.is_client(token) {
            return;
        }
        let client = &mut self.clients[token.index()];
        if client.waiting && (client.unit.reach.is_waiting() || client.unit.proof.is_waiting()) {
            client.waiting = false;
            self.metrics.clients_waiting.sub(1);
            self.runnable.push_back(token);
        }
    }

    /// Returns the time until the first waiting read has waited long enough.
    pub(in crate::core) fn strong_patience(&self) -> Option<Duration> {
        let strong = self.strong.0.as_ref()?;
        let replica = strong.deadlines.front().map(|entry| entry.0);
        let proof = strong.unproven.front().map(|entry| entry.0 + self.settings.no_primary_timeout);
        let deadline = replica.into_iter().chain(proof).min()?;
        Some(deadline.saturating_duration_since(self.now).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions() {
        let at = |lsn| Reach::At { term: 1, lsn: Lsn(lsn) };
        let behind = |lsn| Reach::Behind { term: 1, lsn: Lsn(lsn) };
        let there = |lsn| Some(Lsn(lsn));
        for (reach, term, fastest, late, expected) in [
            (Reach::Unasked, 1, there(5), false, Reach::Unasked),
            (Reach::Unasked, 1, None, false, Reach::Primary),
            (at(5), 1, there(5), false, at(5)),
            (at(5), 1, there(4), false, behind(5)),
            (at(5), 1, there(4), true, Reach::Primary),
            (at(5), 1, there(6), true, at(5)),
            (at(5), 1, None, false, Reach::Primary),
            // The position of a replica of another term does not count, however high.
            (at(5), 2, there(9), false, Reach::Unasked),
            (behind(5), 2, there(9), false, Reach::Unasked),
            (behind(5), 2, there(9), true, Reach::Primary),
            (behind(5), 1, there(5), false, at(5)),
            (behind(5), 1, there(4), false, behind(5)),
            (behind(5), 1, there(4), true, Reach::Primary),
        ] {
            assert_eq!(decide(reach, term, fastest, late, false), expected, "{reach:?} {term} {fastest:?} {late}");
        }
        // A replica that can be asked.
        for (reach, term, fastest, late, expected) in [
            (at(5), 1, there(4), false, at(5)),
            (at(5), 1, there(4), true, Reach::Primary),
            (at(5), 2, there(9), false, Reach::Unasked),
            (at(5), 1, None, false, Reach::Primary),
            (behind(5), 1, there(4), false, behind(5)),
            (Reach::Unasked, 1, there(5), false, Reach::Unasked),
        ] {
            assert_eq!(decide(reach, term, fastest, late, true), expected, "{reach:?} {term} {fastest:?} {late}");
        }
    }

    #[test]
    fn a_term_is_proven_by_an_answer_about_that_term() {
        let ticket = watermark::Oracle::new(|| {}).ticket();
        let asked = Proof::Asked(ticket);
        for (proof, answer, term, expected) in [
            (Proof::Unasked, None, 1, None),
            (asked, None, 1, Some(asked)),
            (asked, Some(1), 1, Some(Proof::Of(1))),
            // The primary has changed since: the proof of the new term has to be requested.
            (asked, Some(1), 2, None),
            (asked, Some(2), 1, None),
            (Proof::Of(1), None, 1, Some(Proof::Of(1))),
            (Proof::Of(1), None, 2, None),
        ] {
            assert_eq!(prove(proof, answer, term), expected, "{proof:?} {answer:?} {term}");
        }
    }
}
