//! A gate, and its fate, computed from plain values.

use std::time::Instant;

use topology::Term;
use watermark::{Lsn, Ticket};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum State {
    /// The unit is not at its end: the gate may have nothing to wait for.
    Unsealed,
    /// The gate's commit took place on this term, before the ticket was taken.
    Asked(Ticket, Term),
    /// The gate is durable once this position is, on this term.
    At(Lsn, Term),
    /// The gate's data were read on this term: it waits for this ticket of [`topology::Topology::proof`].
    Proving(Ticket, Term),
}

/// Fate of a client's first gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Fate {
    /// The gate waits: its position is not yet known.
    Ask(Ticket),
    /// The gate waits until this position is durable.
    Wait(Lsn),
    /// The gate waits for proof that its term was still in force.
    Prove(Ticket),
    /// The gate's position is requested once more: the primary itself had not flushed it.
    Again,
    Pass,
    /// The outcome will never be known.
    Unknown,
    /// The unit is not at its end.
    Stay,
}

/// Inputs of a gate's fate besides its state.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Known {
    /// The oracle's answer to the gate's ticket: timeline, position, and true if the primary has flushed that position.
    pub(in crate::core) answer: Option<(u64, Lsn, bool)>,
    /// The term proven to be in force after the ticket was taken.
    pub(in crate::core) proven: Option<u64>,
    pub(in crate::core) now: Term,
    /// Term and position of the mark that the gate waits for.
    pub(in crate::core) durable: (Term, Lsn),
    /// True if the gate may pass although too few relays confirm it.
    pub(in crate::core) degraded: bool,
    /// True if the pool's connections do not flush at a commit: in degraded mode, the gate then passes once the flush is known.
    pub(in crate::core) lazy: bool,
}

pub(in crate::core) fn fate(state: State, known: Known) -> Fate {
    let Known { answer, proven, now, durable, degraded, lazy } = known;
    let (term, lsn) = match state {
        State::Unsealed => return Fate::Stay,
        State::Proving(ticket, term) => {
            return match proven {
                Some(of) if of == u64::from(term.timeline) => Fate::Pass,
                None if term == now => Fate::Prove(ticket),
                // The data may have been lost with that term.
                Some(_) | None => Fate::Unknown,
            };
        }
        State::At(lsn, term) => (term, Some(lsn)),
        State::Asked(_, term) => match answer {
            Some((of, _, _)) if of != u64::from(term.timeline) => return Fate::Unknown,
            // The question now goes to another primary.
            None if term != now => return Fate::Unknown,
            answer => (term, answer.map(|(_, lsn, _)| lsn)),
        },
    };
    let confirmed = lsn.is_some_and(|lsn| durable.0 == term && durable.1 >= lsn);
    match (state, lsn) {
        _ if confirmed => Fate::Pass,
        _ if term != now || durable.0 != term => Fate::Unknown,
        (State::Asked(ticket, _), None) => {
            if degraded && !lazy {
                Fate::Pass
            } else {
                Fate::Ask(ticket)
            }
        }
        (State::Asked(..), _) if degraded && lazy && answer.is_none_or(|(_, _, flushed)| !flushed) => Fate::Again,
        (State::At(..), _) if degraded && lazy => Fate::Again,
        _ if degraded => Fate::Pass,
        (_, Some(lsn)) => Fate::Wait(lsn),
        (_, None) => Fate::Again,
    }
}

/// Position in a client's output behind which no bytes may be written yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate {
    pub(super) state: State,
    /// A proof that the gate waits for once it could pass otherwise.
    pub(super) proof: Option<Ticket>,
    /// True if the gate waits for the whole log at the time that it was closed, flushed or not, because its commit is not known.
    pub(super) everything: bool,
    pub(super) since: Instant,
    /// True if the client is in the heap for the condition of `state`.
    pub(super) queued: bool,
}

impl Gate {
    pub(in crate::core) fn unsealed(now: Instant) -> Gate {
        Gate { state: State::Unsealed, proof: None, everything: false, since: now, queued: false }
    }

    pub(crate) fn is_unsealed(&self) -> bool {
        self.state == State::Unsealed
    }

    pub(in crate::core) fn since(&self) -> Instant {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates() {
        let oracle = watermark::Oracle::new(|| {});
        let ticket = oracle.ticket();
        let (one, two) = (Term { system: 1, timeline: 1 }, Term { system: 1, timeline: 2 });
        let asked = State::Asked(ticket, one);
        let at = State::At(Lsn(50), one);
        let (answer, unflushed) = (Some((1, Lsn(50), true)), Some((1, Lsn(50), false)));
        // Degraded, and true if the server did not wait for its own flush.
        let (no, yes, lazy) = ((false, false), (true, false), (true, true));
        for (state, answer, now, durable, (degraded, lazy), expected) in [
            (State::Unsealed, None, one, (one, Lsn(99)), yes, Fate::Stay),
            (asked, None, one, (one, Lsn(99)), no, Fate::Ask(ticket)),
            (asked, answer, one, (one, Lsn(49)), no, Fate::Wait(Lsn(50))),
            (asked, answer, one, (one, Lsn(50)), no, Fate::Pass),
            (at, None, one, (one, Lsn(49)), no, Fate::Wait(Lsn(50))),
            (at, None, one, (one, Lsn(50)), no, Fate::Pass),
            // Positions of another primary are not comparable, however high.
            (asked, Some((2, Lsn(50), true)), one, (one, Lsn(99)), no, Fate::Unknown),
            (asked, None, two, (two, Lsn(99)), no, Fate::Unknown),
            (asked, answer, one, (two, Lsn(99)), no, Fate::Unknown),
            (at, None, two, (two, Lsn(99)), no, Fate::Unknown),
            // Durable on its own term, as known by now: that stays true.
            (at, None, two, (one, Lsn(50)), no, Fate::Pass),
            (asked, answer, two, (one, Lsn(50)), no, Fate::Pass),
            // Too few relays: the word of the primary that committed it is enough, but no other's.
            (at, None, one, (one, Lsn(0)), yes, Fate::Pass),
            (asked, None, one, (one, Lsn(0)), yes, Fate::Pass),
            (at, None, two, (two, Lsn(0)), yes, Fate::Unknown),
            (asked, None, two, (two, Lsn(0)), yes, Fate::Unknown),
            // A commit that did not wait for its flush passes only once the flush is known.
            (asked, None, one, (one, Lsn(0)), lazy, Fate::Ask(ticket)),
            (asked, answer, one, (one, Lsn(0)), lazy, Fate::Pass),
            (asked, unflushed, one, (one, Lsn(0)), lazy, Fate::Again),
            (at, None, one, (one, Lsn(0)), lazy, Fate::Again),
            (at, None, one, (one, Lsn(50)), lazy, Fate::Pass),
            (asked, unflushed, one, (one, Lsn(49)), no, Fate::Wait(Lsn(50))),
            (asked, unflushed, one, (one, Lsn(50)), no, Fate::Pass),
        ] {
            let known = Known { answer, proven: None, now, durable, degraded, lazy };
            assert_eq!(fate(state, known), expected, "{state:?} {known:?}");
        }
    }

    #[test]
    fn what_was_read_waits_for_proof_of_its_own_term() {
        let ticket = watermark::Oracle::new(|| {}).ticket();
        let (one, two) = (Term { system: 1, timeline: 1 }, Term { system: 1, timeline: 2 });
        for (proven, now, expected) in [
            (None, one, Fate::Prove(ticket)),
            (Some(1), one, Fate::Pass),
            (Some(2), one, Fate::Unknown),
            (None, two, Fate::Unknown),
            (Some(2), two, Fate::Unknown),
            // The term was in force at the time of the question; a later term does not matter.
            (Some(1), two, Fate::Pass),
        ] {
            // Degraded mode proves nothing.
            let known = Known { answer: None, proven, now, durable: (now, Lsn(99)), degraded: true, lazy: false };
            assert_eq!(fate(State::Proving(ticket, one), known), expected, "{proven:?} {now:?}");
        }
    }
}
