//! Promises of a relay, kept across crashes: the term, the fence, the choice, and the upstream it was told to follow.
//!
//! [`Promise`] is the value and its rules: each order makes a new one of an old one, or is refused. [`PromiseFile`] stores it on disk.
//!
//! A relay is an acceptor of a single-decree Paxos for the end of each timeline (docs/decisions/0013): a *fence* is its promise to one term, a
//! *choice* is the value that it has accepted, and a coordinator with a higher term is told of it.

mod file;

use watermark::Lsn;

use crate::memory::Memory;
pub(crate) use file::{NotPromised, PromiseFile};

/// The promises of a relay.
///
/// A value without I/O: `kingpost failover`'s model drives the same rules through all orders of events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Promise {
    term: u64,
    fence: Option<Fence>,
    redirect: Option<Redirect>,
    owed: Option<Owed>,
    giving_up: bool,
}

/// WAL that the relay may have acknowledged before its log was begun anew, and that it has lacked since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owed {
    timeline: u32,
    /// The upstream's position then: nobody can have acknowledged more.
    to: Lsn,
}

/// A promise to take nothing more on a timeline and older ones.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fence {
    timeline: u32,
    chosen: Option<Choice>,
}

/// The node chosen to go on from the end of a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Term of the choice.
    pub term: u64,
    /// Configured name of the node.
    pub node: String,
}

/// An upstream that an operator has set in place of the configured one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Redirect {
    /// The configured upstream at that time. The redirect ends as soon as the configuration names another.
    configured: String,
    address: String,
}

/// The reason why a relay refuses a promise. Its earlier promises hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    /// A higher term was promised, or this one was promised already.
    #[error("term {given} is too low: the relay has promised to term {held}; another failover may be under way")]
    Term {
        /// The promised term.
        held: u64,
        /// Term of the order.
        given: u64,
    },
    /// The timeline to end is not the last one.
    #[error("the relay is on timeline {own} already, so that timeline {given} has ended before")]
    Timeline {
        /// Timeline of the log.
        own: u32,
        /// Timeline of the order.
        given: u32,
    },
    /// The relay was begun anew, and may have acknowledged more before than it has now: it must not count as having that WAL.
    #[error(
        "the relay was begun anew and has WAL up to {flushed} only: before, it may have acknowledged everything up to {to}. Ask again when \
         it has come so far"
    )]
    Incomplete {
        /// Durable position.
        flushed: Lsn,
        /// Highest position that it may have acknowledged.
        to: Lsn,
    },
    /// No fence stands, or a newer timeline has passed it.
    #[error("the relay is not fenced: a node is chosen only to go on from where a fence was put up")]
    NotFenced,
    /// A node was chosen, and may be the primary already.
    #[error(
        "node {node:?} was chosen in term {term} to go on from here: it may be the primary already, so the fence stays"
    )]
    Chosen {
        /// Term of the choice.
        term: u64,
        /// The chosen node.
        node: String,
    },
    /// The choice to withdraw is another one.
    #[error("node {node:?} was chosen in term {term}, not {given:?}: the choice stays")]
    OtherChosen {
        /// Term of the choice.
        term: u64,
        /// The chosen node.
        node: String,
        /// Node of the order.
        given: String,
    },
    /// Names longer than the room in the file.
    #[error("the names in the order take {bytes} bytes in {}, which has room for {room}", file::NAME)]
    TooLong {
        /// Bytes needed.
        bytes: usize,
        /// Bytes available.
        room: usize,
    },
}

impl Promise {
    /// Returns the highest promised term; 0: none.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Returns the last timeline of which nothing more is taken, whichever timeline the log is on; 0: none.
    #[must_use]
    pub fn fenced_up_to(&self) -> u32 {
        self.fence.as_ref().map_or(0, |fence| fence.timeline)
    }

    /// Returns the fence unless the log, which is on timeline `own`, has passed it: the last timeline that ends here, and the choice.
    #[must_use]
    pub fn standing(&self, own: u32) -> Option<(u32, Option<&Choice>)> {
        let fence = self.fence.as_ref().filter(|fence| fence.timeline >= own)?;
        Some((fence.timeline, fence.chosen.as_ref()))
    }

    /// Returns the upstream to follow while `configured` is configured.
    pub(crate) fn upstream_for<'a>(&'a self, configured: &'a str) -> &'a str {
        match &self.redirect {
            Some(redirect) if redirect.configured == configured => &redirect.address,
            _ => configured,
        }
    }

    /// Promises to a higher term to take nothing more on `timeline` and older ones. A choice for the end of the same timeline stays. `own` is the
    /// timeline that the log is on, durable up to `flushed`.
    ///
    /// # Errors
    /// The term is not higher, the timeline has ended before, or the log lacks WAL that an earlier life acknowledged.
    pub fn fence(&self, term: u64, timeline: u32, own: u32, flushed: Lsn) -> Result<Promise, PromiseError> {
        self.must_be_higher(term)?;
        if timeline < own {
            return Err(PromiseError::Timeline { own, given: timeline });
        }
        // On a newer timeline it has the WAL of the node that was promoted.
        if let Some(Owed { to, .. }) = self.owed.filter(|owed| owed.timeline == own && flushed < owed.to) {
            return Err(PromiseError::Incomplete { flushed, to });
        }
        let same = self.fence.as_ref().filter(|fence| fence.timeline == timeline);
        let chosen = same.and_then(|fence| fence.chosen.clone());
        Ok(Promise { term, fence: Some(Fence { timeline, chosen }), ..self.clone() })
    }

    /// Chooses `node`, for the term's holder, to go on from the end of the fenced timeline.
    ///
    /// # Errors
    /// Another term was promised, or no fence stands.
    pub fn choose(&self, term: u64, node: &str, own: u32) -> Result<Promise, PromiseError> {
        self.must_be_the_term(term)?;
        let (timeline, _) = self.standing(own).ok_or(PromiseError::NotFenced)?;
        let chosen = Some(Choice { term, node: node.into() });
        Ok(Promise { fence: Some(Fence { timeline, chosen }), ..self.clone() })
    }

    /// Withdraws the choice of `node` for the term's holder: no node goes on, and the fence stays. A choice already gone is no error, so that the
    /// order can be repeated.
    ///
    /// A relay cannot see whether the node was promoted, or still can be. The operator must know that it cannot: the node answers as a standby, and
    /// whoever chose it no longer holds a term in which it could still promote it.
    ///
    /// # Errors
    /// Another term was promised, no fence stands, or another node is chosen.
    pub fn withdraw(&self, term: u64, node: &str, own: u32) -> Result<Promise, PromiseError> {
        self.must_be_the_term(term)?;
        let (timeline, chosen) = self.standing(own).ok_or(PromiseError::NotFenced)?;
        match chosen {
            Some(choice) if choice.node != node => {
                let Choice { term, node: held } = choice.clone();
                Err(PromiseError::OtherChosen { term, node: held, given: node.into() })
            }
            _ => Ok(Promise { fence: Some(Fence { timeline, chosen: None }), ..self.clone() }),
        }
    }

    /// Removes the fence by a higher term: the failover is called off. Refused once a node was chosen.
    pub(crate) fn release(&self, term: u64, own: u32) -> Result<Promise, PromiseError> {
        self.must_be_higher(term)?;
        if let Some((_, Some(Choice { term, node }))) = self.standing(own) {
            return Err(PromiseError::Chosen { term: *term, node: node.clone() });
        }
        Ok(Promise { term, fence: None, ..self.clone() })
    }

    /// Makes the relay follow `address`, for the term's holder, as long as the configuration says `configured`.
    pub(crate) fn follow(&self, term: u64, configured: &str, address: &str) -> Result<Promise, PromiseError> {
        self.must_be_the_term(term)?;
        if configured.is_empty() {
            // A relay that follows the cluster's primary learns the new one from the cluster.
            return Ok(self.clone());
        }
        let redirect = Some(Redirect { configured: configured.into(), address: address.into() });
        Ok(Promise { redirect, ..self.clone() })
    }

    /// Records that the log begins anew on `timeline`, with the upstream at `to`.
    pub(crate) fn begun_anew(&self, timeline: u32, to: Lsn) -> Promise {
        Promise { owed: Some(Owed { timeline, to }), ..self.clone() }
    }

    /// Records that the log is being given up, or no longer.
    pub(crate) fn giving_up(&self, giving_up: bool) -> Promise {
        Promise { giving_up, ..self.clone() }
    }

    /// True while the log is being given up: the directory may hold only a part of it.
    pub(crate) fn is_giving_up(&self) -> bool {
        self.giving_up
    }

    /// Makes the promise that others remember. `fenced` 0: nothing was fenced.
    #[must_use]
    pub fn learnt(term: u64, fenced: u32, chosen: Option<Choice>) -> Promise {
        let fence = (fenced > 0).then_some(Fence { timeline: fenced, chosen });
        Promise { term, fence, ..Promise::default() }
    }

    /// Returns the part that another relay takes over after losing its memory.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let chosen = self.fence.as_ref().and_then(|fence| fence.chosen.clone());
        Memory { term: self.term, fenced: self.fenced_up_to(), chosen }
    }

    fn must_be_higher(&self, term: u64) -> Result<(), PromiseError> {
        if term > self.term { Ok(()) } else { Err(PromiseError::Term { held: self.term, given: term }) }
    }

    fn must_be_the_term(&self, term: u64) -> Result<(), PromiseError> {
        if term == self.term { Ok(()) } else { Err(PromiseError::Term { held: self.term, given: term }) }
    }

    /// Makes the promise of the two files of an earlier version.
    pub(crate) fn earlier(
        term: u64,
        fence: Option<(u32, Option<Choice>)>,
        redirect: Option<(String, String)>,
    ) -> Promise {
        Promise {
            term,
            fence: fence.map(|(timeline, chosen)| Fence { timeline, chosen }),
            redirect: redirect.map(|(configured, address)| Redirect { configured, address }),
            owed: None,
            giving_up: false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn term(held: u64, given: u64) -> PromiseError {
        PromiseError::Term { held, given }
    }

    /// A relay whose log is on timeline 2, from the first fence on.
    #[test]
    fn what_is_promised_and_what_refused() {
        let none = Promise::default();
        assert_eq!((none.term(), none.fenced_up_to(), none.standing(2)), (0, 0, None));
        for (refused, why) in [
            (none.fence(0, 2, 2, Lsn(0)), term(0, 0)),
            (none.fence(1, 1, 2, Lsn(0)), PromiseError::Timeline { own: 2, given: 1 }),
            (none.choose(0, "n1", 2), PromiseError::NotFenced),
            (none.choose(1, "n1", 2), term(0, 1)),
            (none.release(0, 2), term(0, 0)),
            (none.follow(1, "a:1", "b:1"), term(0, 1)),
        ] {
            assert_eq!(refused, Err(why));
        }
        let fenced = none.fence(3, 2, 2, Lsn(0)).unwrap();
        assert_eq!((fenced.term(), fenced.fenced_up_to(), fenced.standing(2)), (3, 2, Some((2, None))));
        assert_eq!(fenced.standing(3), None, "a newer timeline has passed it");
        for (refused, why) in [
            (fenced.fence(3, 2, 2, Lsn(0)), term(3, 3)),
            (fenced.fence(2, 2, 2, Lsn(0)), term(3, 2)),
            (fenced.choose(2, "n1", 2), term(3, 2)),
            (fenced.choose(4, "n1", 2), term(3, 4)),
            (fenced.choose(3, "n1", 3), PromiseError::NotFenced),
            (fenced.release(3, 2), term(3, 3)),
        ] {
            assert_eq!(refused, Err(why));
        }
        assert_eq!(fenced.release(4, 2).unwrap().standing(2), None);

        let chosen = fenced.choose(3, "n1", 2).unwrap();
        let choice = Choice { term: 3, node: "n1".into() };
        assert_eq!(chosen.standing(2), Some((2, Some(&choice))));
        assert_eq!(chosen.choose(3, "n1", 2).as_ref(), Ok(&chosen), "again");
        assert_eq!(chosen.release(4, 2), Err(PromiseError::Chosen { term: 3, node: "n1".into() }));
        // A later term is told the choice, and goes on with it, or chooses another node.
        let later = chosen.fence(5, 2, 2, Lsn(0)).unwrap();
        assert_eq!(later.standing(2), Some((2, Some(&choice))));
        assert_eq!(
            later.choose(5, "n2", 2).unwrap().standing(2),
            Some((2, Some(&Choice { term: 5, node: "n2".into() })))
        );
        // The end of the next timeline is a new decision.
        assert_eq!(chosen.fence(5, 3, 3, Lsn(0)).unwrap().standing(3), Some((3, None)));
        assert_eq!(chosen.release(5, 3).unwrap().term(), 5, "what was chosen for an older timeline is in nobody's way");
    }

    #[test]
    fn a_choice_is_withdrawn_by_the_terms_holder_only() {
        let chosen = Promise::default().fence(3, 2, 2, Lsn(0)).unwrap().choose(3, "n1", 2).unwrap();
        let later = chosen.fence(5, 2, 2, Lsn(0)).unwrap();
        for (refused, why) in [
            (Promise::default().withdraw(1, "n1", 2), term(0, 1)),
            (Promise::default().withdraw(0, "n1", 2), PromiseError::NotFenced),
            (chosen.withdraw(2, "n1", 2), term(3, 2)),
            (chosen.withdraw(4, "n1", 2), term(3, 4)),
            (chosen.withdraw(3, "n1", 3), PromiseError::NotFenced),
            (later.withdraw(3, "n1", 2), term(5, 3)),
            (later.withdraw(5, "n2", 2), PromiseError::OtherChosen { term: 3, node: "n1".into(), given: "n2".into() }),
        ] {
            assert_eq!(refused, Err(why));
        }
        for from in [chosen, later] {
            let term = from.term();
            let none = from.withdraw(term, "n1", 2).unwrap();
            assert_eq!((none.term(), none.standing(2)), (term, Some((2, None))), "the fence and the term stay");
            assert_eq!(none.withdraw(term, "n1", 2).as_ref(), Ok(&none), "again");
            assert_eq!(none.withdraw(term, "n9", 2).as_ref(), Ok(&none), "nothing is chosen");
            assert_eq!(none.release(term + 1, 2).unwrap().standing(2), None, "now the failover can be called off");
            assert!(none.choose(term, "n2", 2).is_ok());
        }
    }

    #[test]
    fn a_relay_that_was_begun_anew_does_not_stand_for_what_it_lacks() {
        let anew = Promise::learnt(3, 1, None).begun_anew(2, Lsn(500));
        let incomplete = PromiseError::Incomplete { flushed: Lsn(499), to: Lsn(500) };
        assert_eq!(anew.fence(4, 2, 2, Lsn(499)), Err(incomplete));
        assert_eq!(anew.fence(3, 2, 2, Lsn(499)), Err(term(3, 3)), "the term counts first");
        assert_eq!(anew.fence(4, 2, 2, Lsn(500)).unwrap().standing(2), Some((2, None)));
        assert!(anew.fence(4, 3, 3, Lsn(0)).is_ok(), "it has followed a promotion since");
        assert!(anew.release(4, 2).unwrap().fence(5, 2, 2, Lsn(499)).is_err(), "other orders change nothing about it");
    }

    #[test]
    fn whom_to_follow() {
        let none = Promise::default();
        assert_eq!(none.upstream_for("a:1"), "a:1");
        let led = none.fence(1, 1, 1, Lsn(0)).unwrap().follow(1, "a:1", "b:1").unwrap();
        assert_eq!((led.upstream_for("a:1"), led.upstream_for("c:1"), led.upstream_for("")), ("b:1", "c:1", ""));
        assert_eq!(led.follow(1, "", "c:1").as_ref(), Ok(&led), "nothing is configured, and nothing kept");
        // Other orders do not change the upstream.
        let later = led.fence(2, 1, 1, Lsn(0)).unwrap().choose(2, "n1", 1).unwrap();
        assert_eq!(later.upstream_for("a:1"), "b:1");
        assert_eq!(led.release(2, 1).unwrap().upstream_for("a:1"), "b:1");
    }
}
