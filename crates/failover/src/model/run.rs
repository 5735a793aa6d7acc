//! One run of `kingpost failover`: the steps of [`super::super::elect`], one action each, with the real code for its decisions.

use super::super::ballot::{Ballot, next_term, to_be_noted};
use super::super::judge::{Course, course};
use super::super::plan::{Candidate, Election, RelaySeen, Rules, Situation, Survey, candidates};
use super::world::{NAMES, SERVERS, World, index};
use super::{Action, Fleet};

/// Progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    #[default]
    Idle,
    Fencing,
    Noting,
    Withdrawing,
    CatchingUp,
    Choosing,
    Looking,
    Promoting,
    /// Ended: it has promoted its node, found that another run has, or failed.
    Over,
}

/// State of a run. A killed run takes no further step: orders that it has sent may still be carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) phase: Phase,
    pub(super) term: u16,
    pub(super) timeline: u8,
    /// Bit set of servers.
    candidates: u8,
    to_note: u8,
    noted: u8,
    withdraw: Option<u8>,
    pub(super) node: u8,
}

/// Answers of a relay to a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Answer {
    /// True if the fence was carried out or refused, even if the run has not heard of it.
    pub(super) asked: bool,
    /// State of the relay then, if the run has heard that the fence was carried out.
    pub(super) fenced: Option<Snapshot>,
    pub(super) withdrawn: bool,
    pub(super) chose: bool,
}

/// A relay's answer to the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Snapshot {
    pub(super) timeline: u8,
    pub(super) end: u8,
    pub(super) chosen: Option<(u16, u8)>,
}

fn bit(server: usize) -> u8 {
    1 << server
}

fn names(bits: u8) -> Vec<String> {
    (0..SERVERS).filter(|server| bits & bit(*server) != 0).map(|server| NAMES[server].to_owned()).collect()
}

fn bits<'a>(names: impl Iterator<Item = &'a str>) -> u8 {
    names.fold(0, |bits, name| bits | bit(usize::from(index(name))))
}

impl Run {
    /// Exchanges two servers.
    pub(super) fn swapped(self, swap: impl Fn(u8) -> u8) -> Run {
        let moved = |of: u8| (0..SERVERS as u8).fold(0, |bits, server| bits | ((of >> server) & 1) << swap(server));
        Run {
            candidates: moved(self.candidates),
            to_note: moved(self.to_note),
            noted: moved(self.noted),
            withdraw: self.withdraw.map(&swap),
            node: swap(self.node),
            ..self
        }
    }

    /// Adds the run's next actions, possible or not.
    pub(super) fn actions(&self, run: usize, fleet: &Fleet, answers: &[Answer], actions: &mut Vec<Action>) {
        // One relay and one server that do not answer, or none.
        let silent = (0..=fleet.relays).flat_map(|relay| (0..SERVERS).map(move |server| (relay, server)));
        let relays = || answers.iter().enumerate();
        match self.phase {
            Phase::Idle => actions.extend(silent.map(|silent| Action::Survey { run, silent })),
            Phase::Fencing => {
                actions.extend(silent.clone().map(|silent| Action::Count { run, silent, to: None }));
                // The operator of every run but the first may name a node.
                let named =
                    (1..SERVERS).filter(|_| run > 0).flat_map(|to| silent.clone().map(move |silent| (silent, to)));
                actions.extend(named.map(|(silent, to)| Action::Count { run, silent, to: Some(to) }));
                for (relay, _) in relays().filter(|(_, answer)| !answer.asked) {
                    actions.extend([true, false].map(|heard| Action::Fence { run, relay, heard }));
                }
            }
            Phase::Noting => {
                let servers = (0..SERVERS).filter(|server| self.to_note & bit(*server) != 0);
                actions.extend(servers.map(|server| Action::Note { run, server }));
                actions.push(Action::Noted { run });
            }
            Phase::Withdrawing => {
                let these = relays().filter(|(_, answer)| answer.fenced.is_some() && !answer.withdrawn);
                actions.extend(these.map(|(relay, _)| Action::Withdraw { run, relay }));
            }
            Phase::CatchingUp => {
                let servers = (0..SERVERS).filter(|server| self.candidates & bit(*server) != 0);
                actions.extend(servers.map(|server| Action::CaughtUp { run, server }));
            }
            Phase::Choosing => {
                let these = relays().filter(|(_, answer)| answer.fenced.is_some() && !answer.chose);
                actions.extend(these.map(|(relay, _)| Action::Choose { run, relay }));
            }
            Phase::Looking => actions.push(Action::Look { run }),
            Phase::Promoting => actions.push(Action::Promote { run }),
            Phase::Over => {}
        }
    }
}

impl World {
    /// Takes one step of a run; None if it is impossible now.
    pub(super) fn step(&mut self, fleet: &Fleet, action: Action) -> Option<()> {
        match action {
            Action::Survey { run, silent } => self.begin(fleet, run, silent),
            Action::Fence { run, relay, heard } => {
                let snapshot = self.fence(relay, self.runs[run].term, self.runs[run].timeline);
                let answer = self.answer(run, relay);
                answer.asked = true;
                answer.fenced = snapshot.filter(|_| heard);
                Some(())
            }
            Action::Count { run, silent, to } => self.count(fleet, run, silent, to),
            Action::Note { run, server } => {
                let term = self.runs[run].term;
                let is_noted = self.note(server, term);
                let run = &mut self.runs[run];
                run.to_note &= !bit(server);
                run.noted |= if is_noted { bit(server) } else { 0 };
                Some(())
            }
            Action::Noted { run } => self.narrow(fleet, run),
            Action::Withdraw { run, relay } => {
                let Run { term, withdraw, .. } = self.runs[run];
                if !self.withdraw(relay, term, withdraw?) {
                    return self.over(run);
                }
                self.answer(run, relay).withdrawn = true;
                self.withdrawn(fleet, run);
                Some(())
            }
            Action::CaughtUp { run, server } => {
                let target = self.ballot(fleet, run)?.target()?;
                // State of a server that answers.
                let survey = self.seen(fleet, (fleet.relays, 0));
                target.reached(survey.state(NAMES[server])?).then(|| {
                    self.runs[run].phase = Phase::Choosing;
                    self.runs[run].node = server as u8;
                })
            }
            Action::Choose { run, relay } => {
                let Run { term, node, .. } = self.runs[run];
                if !self.choose(relay, term, node) {
                    return None;
                }
                self.answer(run, relay).chose = true;
                let agreed = self.answers(run).filter(|answer| answer.chose).count();
                if self.ballot(fleet, run)?.elects(agreed) {
                    self.runs[run].phase = Phase::Looking;
                }
                Some(())
            }
            // All relays at one moment: a relay holds to a term, of which only one exists, until it ends for good.
            Action::Look { run } => {
                let ballot = self.ballot(fleet, run)?;
                let seen = self.seen(fleet, (fleet.relays, 0));
                let fenced = seen.relays.iter().zip(self.answers(run)).filter(|(_, answer)| answer.fenced.is_some());
                let stand = ballot.standing(fenced.filter_map(|(relay, _)| relay.standing.as_ref().ok()));
                if !ballot.elects(stand) {
                    return self.over(run);
                }
                self.runs[run].phase = Phase::Promoting;
                Some(())
            }
            Action::Promote { run } => {
                let Run { term, node, .. } = self.runs[run];
                self.promote(usize::from(node), fleet.mends.notes.then_some(term));
                self.over(run)
            }
            _ => None,
        }
    }

    fn begin(&mut self, fleet: &Fleet, run: usize, silent: (usize, usize)) -> Option<()> {
        // Runs are alike: by symmetry the first one begins first.
        if run > 0 && self.runs[run - 1].phase == Phase::Idle {
            return None;
        }
        let survey = self.seen(fleet, silent);
        let Ok(Course::Away { timeline }) = course(&survey, false) else { return None };
        candidates(&survey, None, false, &Rules::default()).ok()?;
        if survey.standing().count() < survey.needed() {
            return None;
        }
        let begun = &mut self.runs[run];
        begun.phase = Phase::Fencing;
        let own = if fleet.mends.own_terms { run as u16 } else { 0 };
        begun.term = u16::try_from(next_term(survey.highest_term(), own)).ok()?;
        begun.timeline = u8::try_from(timeline).ok()?;
        Some(())
    }

    /// Makes the ballot of the relays that have carried out a run's fence.
    fn ballot(&self, fleet: &Fleet, run: usize) -> Option<Ballot> {
        let survey = self.seen(fleet, (fleet.relays, 0));
        let fenced = survey.relays.iter().zip(self.answers(run)).filter_map(|(relay, answer)| {
            let mut relay: RelaySeen = relay.clone();
            let standing = World::standing(answer.fenced?, &self.runs[run]);
            relay.standing = Ok(standing.clone());
            Some((relay, standing))
        });
        let (term, fenced) = (self.runs[run].term.into(), fenced.collect::<Vec<_>>());
        if fleet.mends.majority {
            return Ballot::of(&survey, term, fenced, false).ok();
        }
        let quorum = fleet.relays + 1 - fleet.acknowledgements;
        (fenced.len() >= quorum).then_some(Ballot { term, relays: fenced, quorum })
    }

    fn count(&mut self, fleet: &Fleet, run: usize, silent: (usize, usize), to: Option<usize>) -> Option<()> {
        let ballot = self.ballot(fleet, run)?;
        let now: Survey = self.seen(fleet, silent);
        let now = if fleet.mends.keeps_answers { ballot.seen_with(now) } else { now };
        if matches!(now.situation(), Ok(Situation::Promoted { .. })) {
            return self.over(run);
        }
        let to = to.map(|to| NAMES[to]);
        let Ok(election) = candidates(&now, to, false, &Rules::default()) else { return self.over(run) };
        let counted = &mut self.runs[run];
        counted.phase = Phase::Noting;
        counted.candidates = bits(election.candidates.iter().map(|candidate| candidate.name.as_str()));
        counted.withdraw = election.withdraw.as_deref().map(index);
        counted.to_note = bits(to_be_noted(&now).map(|server| server.name.as_str()));
        Some(())
    }

    fn narrow(&mut self, fleet: &Fleet, run: usize) -> Option<()> {
        let Run { term, candidates, withdraw, noted, .. } = self.runs[run];
        let candidate = |name: String| Candidate { name, priority: 1 };
        let mut election = Election {
            candidates: names(candidates).into_iter().map(candidate).collect(),
            withdraw: withdraw.map(|server| NAMES[usize::from(server)].to_owned()),
            unfit: Vec::new(),
        };
        let Ok(withdraw) = election.narrow(&names(noted), term.into(), false) else { return self.over(run) };
        let narrowed = &mut self.runs[run];
        narrowed.phase = Phase::Withdrawing;
        narrowed.candidates = bits(election.candidates.iter().map(|candidate| candidate.name.as_str()));
        narrowed.withdraw = withdraw.as_deref().map(index);
        (narrowed.to_note, narrowed.noted) = (0, 0);
        self.withdrawn(fleet, run);
        Some(())
    }

    /// Goes on once every relay that had accepted the node has withdrawn it.
    fn withdrawn(&mut self, fleet: &Fleet, run: usize) {
        let Some(ballot) = self.ballot(fleet, run) else { return };
        let left = self.runs[run].withdraw.map_or(0, |node| {
            let done = self.answers(run).filter(|answer| answer.withdrawn).count();
            ballot.stand_by(NAMES[usize::from(node)]).count().saturating_sub(done)
        });
        if left == 0 {
            self.runs[run].phase = Phase::CatchingUp;
        }
    }

    /// Ends the run, and clears its state.
    fn over(&mut self, run: usize) -> Option<()> {
        self.runs[run] = Run { phase: Phase::Over, ..Run::default() };
        self.forget(run);
        Some(())
    }
}
