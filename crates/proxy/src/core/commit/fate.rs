//! What becomes of a gate: from plain values.

use topology::Term;
use watermark::{Lsn, Ticket};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum State {
    /// The unit goes on.
    Open,
    /// What is behind it was committed on this term before the ticket was taken.
    Asked(Ticket, Term),
    /// It is durable when that is, on that term.
    At(Lsn, Term),
    /// What is behind it was read on this term: it waits for this ticket of [`topology::Topology::proof`].
    Proving(Ticket, Term),
}

/// What becomes of a client's first gate, from plain values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Fate {
    /// It waits: nothing is known of its position yet.
    Ask(Ticket),
    /// It waits to be durable.
    Wait(Lsn),
    /// It waits for proof that its term still stood.
    Prove(Ticket),
    /// It is asked once more: the primary itself had not flushed it.
    Again,
    Pass,
    /// It will never be known.
    Unknown,
    /// The unit is not at its end.
    Stay,
}

/// What a gate's fate depends on, besides its state.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Known {
    /// The oracle's answer to its ticket: on which timeline, the position, and whether the primary has flushed that.
    pub(in crate::core) answer: Option<(u64, Lsn, bool)>,
    /// The term that is proven to have stood after its ticket was taken.
    pub(in crate::core) proven: Option<u64>,
    pub(in crate::core) now: Term,
    /// Term and position of the mark it waits at.
    pub(in crate::core) durable: (Term, Lsn),
    /// It may pass though too few relays confirm it.
    pub(in crate::core) degraded: bool,
    /// Its server did not wait for the primary's own flush: degraded, it passes when that is known.
    pub(in crate::core) lazy: bool,
}

pub(in crate::core) fn fate(state: State, known: Known) -> Fate {
    let Known { answer, proven, now, durable, degraded, lazy } = known;
    let (term, lsn) = match state {
        State::Open => return Fate::Stay,
        State::Proving(ticket, term) => {
            return match proven {
                Some(of) if of == u64::from(term.timeline) => Fate::Pass,
                None if term == now => Fate::Prove(ticket),
                // What was read may have been left behind with that term.
                Some(_) | None => Fate::Unknown,
            };
        }
        State::At(lsn, term) => (term, Some(lsn)),
        State::Asked(_, term) => match answer {
            Some((of, _, _)) if of != u64::from(term.timeline) => return Fate::Unknown,
            // What is asked now is asked of another primary.
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
        // Degraded, and whether its server waited for its own flush.
        let (no, yes, lazy) = ((false, false), (true, false), (true, true));
        for (state, answer, now, durable, (degraded, lazy), expected) in [
            (State::Open, None, one, (one, Lsn(99)), yes, Fate::Stay),
            (asked, None, one, (one, Lsn(99)), no, Fate::Ask(ticket)),
            (asked, answer, one, (one, Lsn(49)), no, Fate::Wait(Lsn(50))),
            (asked, answer, one, (one, Lsn(50)), no, Fate::Pass),
            (at, None, one, (one, Lsn(49)), no, Fate::Wait(Lsn(50))),
            (at, None, one, (one, Lsn(50)), no, Fate::Pass),
            // Another primary's numbers say nothing, however high.
            (asked, Some((2, Lsn(50), true)), one, (one, Lsn(99)), no, Fate::Unknown),
            (asked, None, two, (two, Lsn(99)), no, Fate::Unknown),
            (asked, answer, one, (two, Lsn(99)), no, Fate::Unknown),
            (at, None, two, (two, Lsn(99)), no, Fate::Unknown),
            // Durable on its own term, as is known by now: that stays true.
            (at, None, two, (one, Lsn(50)), no, Fate::Pass),
            (asked, answer, two, (one, Lsn(50)), no, Fate::Pass),
            // Too few relays: the primary's word is enough, but only that of the one that committed it.
            (at, None, one, (one, Lsn(0)), yes, Fate::Pass),
            (asked, None, one, (one, Lsn(0)), yes, Fate::Pass),
            (at, None, two, (two, Lsn(0)), yes, Fate::Unknown),
            (asked, None, two, (two, Lsn(0)), yes, Fate::Unknown),
            // And if it did not wait for its flush, only when that is known.
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
            // It stood when it was asked about; that there is another by now does not matter.
            (Some(1), two, Fate::Pass),
        ] {
            // A state in which commits may pass proves nothing.
            let known = Known { answer: None, proven, now, durable: (now, Lsn(99)), degraded: true, lazy: false };
            assert_eq!(fate(State::Proving(ticket, one), known), expected, "{proven:?} {now:?}");
        }
    }
}
