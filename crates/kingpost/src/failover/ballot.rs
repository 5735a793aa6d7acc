//! What relays that have promised to a term amount to: whether they are enough, what they know, and whether they still stand by it. Pure: no
//! I/O, no clock. The model in `model` runs this code.

use ::relay::Standing;

use super::plan::{Candidate, Election, RelaySeen, ServerSeen, Survey, Target, Unfit};

/// Terms that begin with the same thousands are of runs that began at once.
const RUNS: u64 = 1000;

/// The term of a run that has seen this one as the highest. `run` tells it from others that see the same: two that have one term would take each
/// other's relays for their own, where a relay has lost its directory in between and promises to the same term a second time.
pub(super) fn next_term(highest: u64, run: u16) -> u64 {
    (highest / RUNS + 1) * RUNS + u64::from(run) % RUNS
}

/// Relays that promised to a term, enough of them.
#[derive(Debug, Clone)]
pub(super) struct Ballot {
    pub(super) term: u64,
    /// Each with its answer to the fence.
    pub(super) relays: Vec<(RelaySeen, Standing)>,
    /// How many of them have to agree: enough that nobody else gets as many, or all there are where a loss was accepted.
    pub(super) quorum: usize,
}

/// Fewer relays were fenced than are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooFew {
    pub(super) fenced: usize,
    pub(super) needed: usize,
}

impl Ballot {
    /// Of the relays that carried out the fence. With fewer than [`Survey::needed`] something acknowledged may be missing, or more be
    /// acknowledged later: only `accept_loss` takes that.
    ///
    /// # Errors
    /// There are too few.
    pub(super) fn of(
        survey: &Survey,
        term: u64,
        relays: Vec<(RelaySeen, Standing)>,
        accept_loss: bool,
    ) -> Result<Ballot, TooFew> {
        let (fenced, needed) = (relays.len(), survey.needed());
        if fenced < needed && !accept_loss {
            return Err(TooFew { fenced, needed });
        }
        Ok(Ballot { term, relays, quorum: needed.min(fenced) })
    }

    /// A later look, with what relays said when they were fenced in place of silence. An election that an earlier run has left must not be
    /// missed because the one relay that knows of it has not answered the second time.
    pub(super) fn seen_with(&self, mut now: Survey) -> Survey {
        for relay in now.relays.iter_mut().filter(|relay| relay.standing.is_err()) {
            if let Some((_, standing)) = self.relays.iter().find(|(fenced, _)| fenced.name == relay.name) {
                relay.standing = Ok(standing.clone());
            }
        }
        now
    }

    /// Where the new primary has to be at least; None: there are no relays.
    pub(super) fn target(&self) -> Option<Target> {
        Target::of(self.relays.iter().map(|(relay, standing)| (relay, standing)))
    }

    /// Relays that said they stand by `node`, which an earlier run has elected.
    pub(super) fn stand_by<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a RelaySeen> {
        let elected = move |standing: &Standing| standing.chosen.as_ref().is_some_and(|(_, of)| of == node);
        self.relays.iter().filter(move |(_, standing)| elected(standing)).map(|(relay, _)| relay)
    }

    /// Whether a node is elected to which so many relays have agreed.
    pub(super) fn elects(&self, agreed: usize) -> bool {
        agreed >= self.quorum
    }

    /// How many of these relays still stand by the term.
    pub(super) fn standing<'a>(&self, answers: impl Iterator<Item = &'a Standing>) -> usize {
        answers.filter(|standing| standing.term == self.term).count()
    }
}

impl Election {
    /// Keeps only candidates on which the term is noted. Gives the elected node that is to be given up, if there is one.
    ///
    /// # Errors
    /// Nobody is left; or that node may still be promoted by the run that has elected it, because the term is not noted on it. `force` takes
    /// an operator's word for it that it is not.
    pub(super) fn narrow(&mut self, claimed: &[String], term: u64, force: bool) -> Result<Option<String>, NotNoted> {
        self.candidates.retain(|candidate| claimed.contains(&candidate.name));
        if self.candidates.is_empty() {
            return Err(NotNoted::Nobody);
        }
        match self.withdraw.take() {
            Some(node) if !claimed.contains(&node) && !force => Err(NotNoted::Elected(Unfit::Elected(node, term))),
            withdraw => Ok(withdraw),
        }
    }

    /// Keeps only candidates that have most. For when nobody knows any more what was acknowledged.
    pub(super) fn keep_furthest(&mut self, now: &Survey) {
        let has = |candidate: &Candidate| now.state(&candidate.name).map(|state| (state.timeline, state.has));
        let most = self.candidates.iter().map(has).max().flatten();
        self.candidates.retain(|candidate| has(candidate) == most);
    }
}

/// Why nobody can be elected once the term was noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotNoted {
    /// On no candidate.
    Nobody,
    /// Not on the node that an earlier run has elected.
    Elected(Unfit),
}

/// Servers on which the term is noted, which keeps every earlier run from promoting them: all standbys that answer.
pub(super) fn to_be_noted(survey: &Survey) -> impl Iterator<Item = &ServerSeen> {
    survey.answering().filter(|(_, state)| state.standby).map(|(server, _)| server)
}
