//! Evaluation of the relays that have promised a term: whether they are enough, their answers, and whether they still hold to the term. Pure: no I/O,
//! no clock. The model in `model` runs this code.

use super::engine::ServerKind;
use super::plan::{Candidate, Election, RelaySeen, ServerSeen, Survey, Unfit};
use super::postgresql::Postgresql;

/// Terms with the same thousands belong to runs that began at once.
const RUNS: u64 = 1000;

/// Returns the term of a run that has seen `highest`. `run` distinguishes it from others that see the same: two runs of one term would count each
/// other's relays as their own, if a relay has lost its directory in between and promises the same term a second time.
pub(super) fn next_term(highest: u64, run: u16) -> u64 {
    (highest / RUNS + 1) * RUNS + u64::from(run) % RUNS
}

/// A sufficient number of relays that have promised a term.
#[derive(Debug, Clone)]
pub(super) struct Ballot<K: ServerKind = Postgresql> {
    pub(super) term: u64,
    /// The relays, each with its answer to the fence.
    pub(super) relays: Vec<(RelaySeen<K>, K::Relay)>,
    /// Number of relays that must agree: enough that no other run gets as many, or all of them if a loss was accepted.
    pub(super) quorum: usize,
}

/// Fewer relays were fenced than are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooFew {
    pub(super) fenced: usize,
    pub(super) needed: usize,
}

impl<K: ServerKind> Ballot<K> {
    /// Makes a ballot of the relays that carried out the fence, beside `there` relays that agree without it. With fewer than [`Survey::needed`] an
    /// acknowledged commit may be missing, or more be acknowledged later: only `accept_loss` permits that.
    ///
    /// # Errors
    /// Too few relays.
    pub(super) fn of(
        survey: &Survey<K>,
        term: u64,
        relays: Vec<(RelaySeen<K>, K::Relay)>,
        there: usize,
        accept_loss: bool,
    ) -> Result<Ballot<K>, TooFew> {
        let (fenced, needed) = (relays.len() + there, survey.needed());
        if fenced < needed && !accept_loss {
            return Err(TooFew { fenced, needed });
        }
        Ok(Ballot { term, relays, quorum: needed.min(fenced).saturating_sub(there) })
    }

    /// Completes a survey with the answers to the fence: of relays that are silent in a later survey, or of all of them if the survey is the first one.
    pub(super) fn seen_with(&self, mut now: Survey<K>) -> Survey<K> {
        for relay in now.relays.iter_mut().filter(|relay| relay.standing.is_err() || !K::SURVEYS_AGAIN) {
            if let Some((_, standing)) = self.relays.iter().find(|(fenced, _)| fenced.name == relay.name) {
                relay.standing = Ok(standing.clone());
            }
        }
        now
    }

    /// Returns the relays whose answer names `node` as elected by an earlier run.
    pub(super) fn stand_by<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a RelaySeen<K>> {
        let elected = move |standing: &K::Relay| K::chosen(standing).is_some_and(|(_, of)| of == node);
        self.relays.iter().filter(move |(_, standing)| elected(standing)).map(|(relay, _)| relay)
    }

    /// True if a node is elected once this many relays have agreed.
    pub(super) fn elects(&self, agreed: usize) -> bool {
        agreed >= self.quorum
    }
}

impl Election {
    /// Keeps only candidates on which the term is noted.
    ///
    /// # Errors
    /// No candidate is left; or the elected node may still be promoted by the run that has elected it, because the term is not noted on it. With
    /// `force` an operator asserts that it will not be.
    pub(super) fn narrow(&mut self, claimed: &[String], term: u64, force: bool) -> Result<(), NotNoted> {
        self.candidates.retain(|candidate| claimed.contains(&candidate.name));
        if self.candidates.is_empty() {
            return Err(NotNoted::Nobody);
        }
        match &self.withdraw {
            Some(node) if !claimed.contains(node) && !force => {
                Err(NotNoted::Elected(Unfit::Elected(node.clone(), term)))
            }
            _ => Ok(()),
        }
    }

    /// Keeps only the candidates with the most WAL, for when the acknowledged position is unknown.
    pub(super) fn keep_furthest(&mut self, now: &Survey) {
        let has = |candidate: &Candidate| now.state(&candidate.name).map(|state| (state.timeline, state.has));
        let most = self.candidates.iter().map(has).max().flatten();
        self.candidates.retain(|candidate| has(candidate) == most);
    }
}

/// The reason why nobody can be elected once the term was noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotNoted {
    /// The term is noted on no candidate.
    Nobody,
    /// The term is not noted on the node that an earlier run has elected.
    Elected(Unfit),
}

/// Returns the servers on which the term is noted, which keeps every earlier run from promoting them: all standbys that answer.
pub(super) fn to_be_noted(survey: &Survey) -> impl Iterator<Item = &ServerSeen> {
    survey.answering().filter(|(_, state)| state.standby).map(|(server, _)| server)
}
