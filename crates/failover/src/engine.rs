//! The engine of a failover, for every kind of servers: the order of its steps, its decisions, and the consequence of a step that fails. Pure: no I/O,
//! no clock.
//!
//! ```text
//!  fence the relays ─▶ count ─▶ note* ─▶ withdraw* ─▶ catch up ─▶ choose ─▶ look ─▶ promote ─▶ followers (of each kind)
//!                                                        ▲───────────┴─────────┴───────┘ the next candidate**
//!  * only where a server keeps a note (PostgreSQL)       ** only where candidates are tried one by one (MariaDB, MySQL)
//! ```
//!
//! - [`Engine`] holds the state of one run. [`Engine::step`] names the step to carry out, and one method for each step takes its result.
//! - [`ServerKind`] is all that differs between kinds of servers in a decision: the answers of servers and relays, the number that a fence names, the
//!   candidates, the position that a candidate must reach. [`super::postgresql`] and [`super::binlog_servers`] implement it.
//! - [`super::elect`] carries the steps out, through an adapter of each kind; the model (`super::model`) drives the same engine for both kinds, through
//!   all orders of events.
//! - A step that fails ends the run, or leads to the next candidate. A run that is killed leaves only what relays and servers keep; the next run begins
//!   with a survey and a higher term, and goes on with the node that was chosen last.
//!
//! *What must hold*: no node is chosen before it has all that the fenced relays have; no node is promoted that is not chosen by enough relays that
//! still hold to the term; a node that an earlier run has chosen is given up only when no run can promote it any more, or when its promotion is over.

use std::fmt::Debug;

use ::relay::Order;

use super::ballot::{Ballot, NotNoted, TooFew, next_term};
use super::plan::{Candidate, Election, RelaySeen, Rules, Survey};

/// A kind of servers, as far as decisions depend on it.
pub(super) trait ServerKind: Debug + Clone + Copy {
    /// Answer of a server to a survey.
    type Server: Debug + Clone;
    /// Answer of a relay to a survey or an order.
    type Relay: Debug + Clone;
    /// The position that the new primary must have reached.
    type Target: Debug + Clone;
    /// The reason why a run cannot go on.
    type Refusal: Debug;

    /// True if a term is noted on each standby, which only the run of that term promotes.
    const NOTES: bool;
    /// True if servers and relays are surveyed again once the fence is up. Otherwise the answers to the fence complete the first survey.
    const SURVEYS_AGAIN: bool;
    /// True if all candidates catch up side by side, and the first that has everything is chosen. Otherwise they are tried one by one.
    const SIDE_BY_SIDE: bool;
    /// True if the terms of two runs that begin at once differ.
    const OWN_TERMS: bool;

    /// Returns the identifier of the cluster that a server belongs to.
    fn system_of_server(server: &Self::Server) -> u64;
    /// Returns the identifier of the cluster that a relay belongs to.
    fn system_of_relay(relay: &Self::Relay) -> u64;
    /// Returns the highest term that a relay has promised.
    fn term(relay: &Self::Relay) -> u64;
    /// Returns the term and the node of the choice that stands on a relay.
    fn chosen(relay: &Self::Relay) -> Option<&(u64, String)>;
    /// Returns the term that is noted on a server.
    fn noted(server: &Self::Server) -> Option<u64>;
    /// Returns the number that a relay's fence names; None: that relay gets no order.
    fn fence(plan: &Plan, relay: &RelaySeen<Self>) -> Option<u32>;
    /// Returns the node that another run has promoted meanwhile.
    fn promoted(now: &Survey<Self>) -> Option<Promoted>;
    /// Returns the candidates for the new primary.
    fn candidates(now: &Survey<Self>, plan: &Plan, wish: &Wish<'_>) -> Result<Election, Self::Refusal>;
    /// Keeps only the candidates that have most, for when the acknowledged position is unknown.
    fn keep_furthest(election: &mut Election, now: &Survey<Self>);
    /// Returns the position that the new primary must have reached, from the relays' answers to the fence; None without relays.
    fn target(fenced: &[(RelaySeen<Self>, Self::Relay)]) -> Result<Option<Self::Target>, Self::Refusal>;
    /// True if a server has reached the position. The model asks; adapters wait for it in ways of their own.
    #[cfg(test)]
    fn reached(target: &Self::Target, server: &Self::Server) -> bool;
    /// True if a relay, in its answer `now`, still keeps what it promised in its answer `then` to the fence. `node` is the chosen server.
    fn holds(then: &Self::Relay, now: &Self::Relay, node: Option<&Self::Server>) -> bool;
}

/// A node that was promoted, and the timeline it writes.
#[derive(Debug)]
pub(super) struct Promoted {
    pub(super) node: String,
    pub(super) timeline: u32,
    /// The primary that it replaces, if known.
    pub(super) old: Option<String>,
}

/// The wish of the operator.
#[derive(Debug, Default)]
pub(super) struct Wish<'a> {
    /// The node to promote.
    pub(super) to: Option<&'a str>,
    /// True if everything that cannot be known any more counts as lost.
    pub(super) force: bool,
    /// True if there may be too few relays.
    pub(super) accept_loss: bool,
    pub(super) rules: Rules,
}

/// The failover to carry out, as decided from the first survey.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The timeline to end, where all relays count alike; else 0.
    pub(super) timeline: u32,
    /// Names of relays that follow the chosen node already: they get no order, and count as relays that agree.
    pub(super) there: Vec<String>,
    /// Choices of this term and lower ones bind no more: they were carried out, or are given up.
    pub(super) over: u64,
    /// True if the last of those choices was carried out: a relay that knows it may have been told to follow that node.
    pub(super) carried_out: bool,
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Step {
    /// Has enough relays promise to the term, after which nothing more of the old primary is acknowledged.
    Fence,
    /// Decides on the candidates, from the answers to the fence and a survey.
    Count,
    /// Notes the term on every standby.
    Note,
    /// Gives up the node that an earlier run has chosen.
    Withdraw,
    /// Has candidates receive all that the fenced relays have.
    CatchUp,
    /// Records the choice of a node on the relays.
    Choose,
    /// Checks that the relays still hold to the term.
    Look,
    /// Promotes the node.
    Promote,
    /// The run has ended.
    Over,
}

/// Too few relays took the choice, or still hold to the term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotAgreed {
    pub(super) agree: usize,
    pub(super) quorum: usize,
}

/// One run: see the module's documentation.
#[derive(Debug)]
pub(super) struct Engine<K: ServerKind> {
    pub(super) plan: Plan,
    pub(super) step: Step,
    pub(super) ballot: Ballot<K>,
    /// The last survey, completed with the answers to the fence.
    pub(super) now: Survey<K>,
    pub(super) election: Election,
    pub(super) node: Option<String>,
}

impl<K: ServerKind> Engine<K> {
    /// Begins a run. `run` distinguishes it from others that begin at the same time.
    pub(super) fn new(plan: Plan, survey: &Survey<K>, run: u16) -> Engine<K> {
        let highest = survey.highest_term();
        let term = if K::OWN_TERMS { next_term(highest, run) } else { highest + 1 };
        let ballot = Ballot { term, relays: Vec::new(), quorum: usize::MAX };
        let election = Election { candidates: Vec::new(), withdraw: None, unfit: Vec::new() };
        Engine { plan, step: Step::Fence, ballot, now: survey.clone(), election, node: None }
    }

    pub(super) fn term(&self) -> u64 {
        self.ballot.term
    }

    /// Returns a relay's order in [`Step::Fence`]; None: it gets none.
    pub(super) fn fence(&self, relay: &RelaySeen<K>) -> Option<Order> {
        if self.plan.there.contains(&relay.name) {
            return None;
        }
        K::fence(&self.plan, relay).map(|timeline| Order::Fence { term: self.term(), timeline })
    }

    /// Takes the relays that have carried out the fence, with their answers.
    ///
    /// # Errors
    /// Too few relays.
    pub(super) fn fenced(
        &mut self,
        survey: &Survey<K>,
        relays: Vec<(RelaySeen<K>, K::Relay)>,
        accept_loss: bool,
    ) -> Result<(), TooFew> {
        self.ballot = Ballot::of(survey, self.term(), relays, self.plan.there.len(), accept_loss)?;
        self.step = Step::Count;
        Ok(())
    }

    /// Decides on the candidates, or returns the node that another run has promoted meanwhile, which ends this run. `now` is the survey made since, or
    /// the first one. An election that an earlier run has left must not be missed: the answers to the fence count.
    ///
    /// # Errors
    /// No node may be promoted.
    pub(super) fn counted(&mut self, now: Survey<K>, wish: &Wish<'_>) -> Result<Option<Promoted>, K::Refusal> {
        self.counted_as(self.ballot.seen_with(now), wish)
    }

    /// Decides on the candidates from a survey alone.
    pub(super) fn counted_as(&mut self, now: Survey<K>, wish: &Wish<'_>) -> Result<Option<Promoted>, K::Refusal> {
        self.now = now;
        if let Some(promoted) = K::promoted(&self.now) {
            self.step = Step::Over;
            return Ok(Some(promoted));
        }
        self.election = K::candidates(&self.now, &self.plan, wish)?;
        self.step = if K::NOTES { Step::Note } else { self.after_note() };
        Ok(None)
    }

    /// Takes the names of the servers on which the term was noted.
    ///
    /// # Errors
    /// No candidate is left, or an earlier run can still promote the node that it has chosen.
    pub(super) fn noted(&mut self, names: &[String], force: bool) -> Result<(), NotNoted> {
        self.election.narrow(names, self.ballot.term, force)?;
        if self.ballot.quorum < self.now.needed() {
            // The acknowledged position is no longer known: only the candidate with the most log remains.
            K::keep_furthest(&mut self.election, &self.now);
        }
        self.step = self.after_note();
        Ok(())
    }

    fn after_note(&self) -> Step {
        if self.election.withdraw.is_some() { Step::Withdraw } else { Step::CatchUp }
    }

    /// Returns the relays that give up the node of an earlier run in [`Step::Withdraw`], and their order.
    pub(super) fn withdrawal(&self) -> Option<(impl Iterator<Item = &RelaySeen<K>>, Order)> {
        let node = self.election.withdraw.as_deref()?;
        Some((self.ballot.stand_by(node), Order::Withdraw { term: self.term(), node: node.into() }))
    }

    /// Records that every relay has given up the node of an earlier run.
    pub(super) fn withdrawn(&mut self) {
        self.step = Step::CatchUp;
    }

    /// Returns the position that a candidate must reach; None without relays.
    pub(super) fn target(&self) -> Result<Option<K::Target>, K::Refusal> {
        K::target(&self.ballot.relays)
    }

    /// Returns the candidates to try now.
    pub(super) fn tried(&self) -> &[Candidate] {
        let count = if K::SIDE_BY_SIDE { self.election.candidates.len() } else { 1 };
        self.election.candidates.get(..count).unwrap_or_default()
    }

    /// Takes the candidate that has everything.
    pub(super) fn caught_up(&mut self, node: String) {
        self.node = Some(node);
        self.step = Step::Choose;
    }

    /// Returns a relay's order in [`Step::Choose`].
    pub(super) fn choice(&self) -> Option<Order> {
        self.node.clone().map(|node| Order::Choose { term: self.term(), node })
    }

    /// Returns the second order of a relay in [`Step::Choose`], which leads it away from the node of an earlier failover: a relay that was told to
    /// follow that node, and has not begun to, could still take its writes, for the fence names what the relay had begun.
    pub(super) fn lead(&self, then: &K::Relay) -> Option<Order> {
        let told = K::chosen(then).is_some_and(|(term, _)| *term <= self.plan.over);
        let node = self.node.as_ref().filter(|_| self.plan.carried_out && told)?;
        let address = self.now.server(node)?.address.clone();
        Some(Order::Follow { term: self.term(), address })
    }

    /// Takes the number of relays that have carried out all orders of the choice.
    ///
    /// # Errors
    /// Too few relays.
    pub(super) fn chose(&mut self, agree: usize) -> Result<(), NotAgreed> {
        self.agreed(agree, Step::Look)
    }

    /// Takes the relays' last answers before the promotion, each with its answer to the fence.
    ///
    /// # Errors
    /// Too few relays hold to the term.
    pub(super) fn looked<'a>(
        &mut self,
        answers: impl Iterator<Item = (&'a K::Relay, &'a K::Relay)>,
    ) -> Result<(), NotAgreed>
    where
        K: 'a,
    {
        let node = self.node.as_ref().and_then(|node| self.now.state(node));
        let holds =
            |(then, now): &(&K::Relay, &K::Relay)| K::term(now) == self.ballot.term && K::holds(then, now, node);
        let ours = answers.filter(holds).count();
        self.agreed(ours, Step::Promote)
    }

    fn agreed(&mut self, agree: usize, next: Step) -> Result<(), NotAgreed> {
        if !self.ballot.elects(agree) {
            return Err(NotAgreed { agree, quorum: self.ballot.quorum });
        }
        self.step = next;
        Ok(())
    }

    /// Records that the node was promoted.
    pub(super) fn promoted(&mut self) {
        self.step = Step::Over;
    }

    /// Gives up the candidates tried, which were surely not promoted. False: no candidate is left, and the run ends.
    pub(super) fn set_back(&mut self) -> bool {
        let tried = self.tried().len();
        self.election.candidates.drain(..tried);
        self.node = None;
        self.step = if self.election.candidates.is_empty() { Step::Over } else { Step::CatchUp };
        self.step != Step::Over
    }
}
