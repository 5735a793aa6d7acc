//! One run of `kingpost failover`: the steps of the real [`Engine`], one action each.

use super::super::ballot::{Ballot, to_be_noted};
use super::super::binlog_servers::{self, BinlogServers};
use super::super::engine::{Engine, Plan, ServerKind, Step, Wish};
use super::super::judge::{FailoverDecision, course};
use super::super::plan::{Candidate, Election, RelaySeen, Survey};
use super::super::postgresql::Postgresql;
use super::world::{NAMES, SERVERS, Servers, World, index};
use super::{Action, Fleet};

/// Progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    #[default]
    Idle,
    At(Step),
    /// The node is promoted, and relays that need it are told to follow.
    Following,
    /// Ended: relays follow its node, or another run has promoted one, or it failed.
    Over,
}

/// Compact form of a run, of which [`Run::engine`] makes the real one. A killed run takes no further step: orders that it has sent may still be carried
/// out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Run {
    pub(super) phase: Phase,
    pub(super) term: u16,
    pub(super) timeline: u8,
    /// See [`Plan`].
    over: u16,
    carried_out: bool,
    /// The choice that the first survey has shown, where it is the only one.
    surveyed: Option<(u16, u8)>,
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
    /// The epoch that the relay had in the first survey; 0 where all relays count alike.
    pub(super) epoch: u8,
    /// True if the run leaves the relay alone: it follows the chosen node already.
    pub(super) there: bool,
    /// State of the relay then, if the run has heard that the fence was carried out.
    pub(super) fenced: Option<Snapshot>,
    pub(super) withdrawn: bool,
    pub(super) chose: bool,
    /// True if the relay was led to the chosen node.
    pub(super) led: bool,
}

/// A relay's answer to the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Snapshot {
    pub(super) timeline: u8,
    pub(super) end: u8,
    pub(super) chosen: Option<(u16, u8)>,
    /// The branch, the epoch and the source of a relay of MariaDB; else 0.
    pub(super) branch: u8,
    pub(super) epoch: u8,
    pub(super) source: u8,
}

/// A kind of servers in the model: the answers that the world gives, and the decision to begin.
pub(super) trait Kind: ServerKind {
    fn servers(world: &World, silent: usize) -> Vec<super::super::plan::ServerSeen<Self>>;
    fn relay(world: &World, relay: usize, answers: bool) -> RelaySeen<Self>;
    /// Makes a relay's answer to a run's fence.
    fn standing(world: &World, of: Snapshot, run: &Run) -> Self::Relay;
    fn begin(survey: &Survey<Self>) -> Option<Plan>;
    /// Returns the bit set of the servers on which a run notes its term.
    fn to_be_noted(now: &Survey<Self>) -> u8;
}

/// Decides as [`super::super::replace_primary`] does.
pub(super) fn begin_postgresql(survey: &Survey<Postgresql>) -> Option<Plan> {
    let Ok(FailoverDecision::Away { timeline }) = course(survey, false) else { return None };
    (survey.standing().count() >= survey.needed()).then(|| Plan { timeline, ..Plan::default() })
}

/// Decides as [`binlog_servers::failover`] does.
pub(super) fn begin_binlog_servers(survey: &Survey<BinlogServers>) -> Option<Plan> {
    binlog_servers::begin(survey, &Wish::default()).ok()
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
            surveyed: self.surveyed.map(|(term, server)| (term, swap(server))),
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
        let Phase::At(step) = self.phase else {
            match self.phase {
                Phase::Idle => actions.extend(silent.map(|silent| Action::Survey { run, silent })),
                Phase::Following => actions.extend(relays().map(|(relay, _)| Action::Follow { run, relay })),
                Phase::At(_) | Phase::Over => {}
            }
            return;
        };
        match step {
            Step::Fence => {
                actions.extend(silent.clone().map(|silent| Action::Count { run, silent, to: None }));
                // The operator of every run but the first may name a node.
                let named =
                    (1..SERVERS).filter(|_| run > 0).flat_map(|to| silent.clone().map(move |silent| (silent, to)));
                actions.extend(named.map(|(silent, to)| Action::Count { run, silent, to: Some(to) }));
                for (relay, _) in relays().filter(|(_, answer)| !answer.asked && !answer.there) {
                    actions.extend([true, false].map(|heard| Action::Fence { run, relay, heard }));
                }
            }
            Step::Note => {
                let servers = (0..SERVERS).filter(|server| self.to_note & bit(*server) != 0);
                actions.extend(servers.map(|server| Action::Note { run, server }));
                actions.push(Action::Noted { run });
            }
            Step::Withdraw => {
                let these = relays().filter(|(_, answer)| answer.fenced.is_some() && !answer.withdrawn);
                actions.extend(these.map(|(relay, _)| Action::Withdraw { run, relay }));
            }
            Step::CatchUp => {
                let servers = (0..SERVERS).filter(|server| self.candidates & bit(*server) != 0);
                actions.extend(servers.map(|server| Action::CaughtUp { run, server }));
            }
            Step::Choose => {
                let these = relays().filter(|(_, answer)| answer.fenced.is_some() && !answer.chose);
                actions.extend(these.map(|(relay, _)| Action::Choose { run, relay }));
                let these = relays().filter(|(_, answer)| answer.chose && !answer.led);
                actions.extend(these.map(|(relay, _)| Action::Lead { run, relay }));
            }
            Step::Look => actions.push(Action::Look { run }),
            Step::Promote => actions.push(Action::Promote { run }),
            Step::Count | Step::Over => {}
        }
        // What a candidate's failure leads to, where others are tried after it.
        if fleet.servers == Servers::BinlogServers && matches!(step, Step::Choose | Step::Promote) {
            actions.push(Action::SetBack { run });
        }
    }

    /// Makes the real engine of the run: `now` is what it would see at this moment.
    fn engine<K: Kind>(&self, plan: Plan, ballot: Ballot<K>, now: Survey<K>) -> Engine<K> {
        let candidate = |name: String| Candidate { name, priority: 1 };
        let election = Election {
            candidates: names(self.candidates).into_iter().map(candidate).collect(),
            withdraw: self.withdraw.map(|server| NAMES[usize::from(server)].to_owned()),
            unfit: Vec::new(),
        };
        let step = match self.phase {
            Phase::At(step) => step,
            Phase::Idle | Phase::Following | Phase::Over => Step::Over,
        };
        Engine { plan, step, ballot, now, election, node: Some(NAMES[usize::from(self.node)].to_owned()) }
    }
}

impl World {
    /// Takes one step of a run; None if it is impossible now.
    pub(super) fn step<K: Kind>(&mut self, fleet: &Fleet, action: Action) -> Option<()> {
        match action {
            Action::Survey { run, silent } => self.begin::<K>(fleet, run, silent),
            Action::Fence { run, relay, heard } => {
                let Run { term, timeline, .. } = self.runs[run];
                let names = match self.answer(run, relay).epoch {
                    0 => timeline,
                    epoch => epoch,
                };
                let snapshot = self.fence(relay, term, names);
                let answer = self.answer(run, relay);
                answer.asked = true;
                answer.fenced = snapshot.filter(|_| heard);
                Some(())
            }
            Action::Count { run, silent, to } => self.count::<K>(fleet, run, silent, to),
            Action::Note { run, server } => {
                let term = self.runs[run].term;
                let is_noted = self.note(server, term);
                let run = &mut self.runs[run];
                run.to_note &= !bit(server);
                run.noted |= if is_noted { bit(server) } else { 0 };
                Some(())
            }
            Action::Noted { run } => {
                let mut engine = self.engine::<K>(fleet, run)?;
                let noted = names(self.runs[run].noted);
                if engine.noted(&noted, false).is_err() {
                    return self.over(run);
                }
                self.keep(run, &engine);
                (self.runs[run].to_note, self.runs[run].noted) = (0, 0);
                self.withdrawn::<K>(fleet, run)
            }
            Action::Withdraw { run, relay } => {
                let Run { term, withdraw, .. } = self.runs[run];
                if !self.withdraw(relay, term, withdraw?) {
                    return self.over(run);
                }
                self.answer(run, relay).withdrawn = true;
                self.withdrawn::<K>(fleet, run)
            }
            Action::CaughtUp { run, server } => {
                let mut engine = self.engine::<K>(fleet, run)?;
                let target = engine.target().ok()??;
                K::reached(&target, engine.now.state(NAMES[server])?).then(|| {
                    engine.caught_up(NAMES[server].to_owned());
                    self.keep(run, &engine);
                })
            }
            Action::Choose { run, relay } => {
                let Run { term, node, .. } = self.runs[run];
                if !self.choose(relay, term, node) {
                    return None;
                }
                let leads = self.leads::<K>(fleet, run, relay)?;
                self.answer(run, relay).chose = true;
                self.answer(run, relay).led = !leads;
                self.chosen::<K>(fleet, run)
            }
            Action::Lead { run, relay } => {
                let Run { term, node, .. } = self.runs[run];
                if !self.follow(relay, term, node) {
                    return None;
                }
                self.answer(run, relay).led = true;
                self.chosen::<K>(fleet, run)
            }
            Action::SetBack { run } => {
                let mut engine = self.engine::<K>(fleet, run)?;
                // The candidate tried first.
                let node = NAMES[usize::from(self.runs[run].node)];
                engine.election.candidates.sort_by_key(|candidate| candidate.name != node);
                if !engine.set_back() {
                    return self.over(run);
                }
                self.keep(run, &engine);
                for relay in 0..fleet.relays {
                    let answer = self.answer(run, relay);
                    (answer.chose, answer.led) = (false, false);
                }
                Some(())
            }
            // All relays at one moment: a relay holds to a term, of which only one exists, until it ends for good.
            Action::Look { run } => {
                let mut engine = self.engine::<K>(fleet, run)?;
                let nows: Vec<RelaySeen<K>> = (0..fleet.relays).map(|relay| K::relay(self, relay, true)).collect();
                let answers: Vec<Answer> = self.answers(run).collect();
                let heard = nows.iter().zip(&answers).filter(|(_, answer)| answer.fenced.is_some());
                let thens: Vec<K::Relay> = engine.ballot.relays.iter().map(|(_, then)| then.clone()).collect();
                let both =
                    thens.iter().zip(heard).filter_map(|(then, (now, _))| Some((then, now.standing.as_ref().ok()?)));
                if fleet.mends.looks && engine.looked(both).is_err() {
                    return self.over(run);
                }
                engine.step = Step::Promote;
                self.keep(run, &engine);
                Some(())
            }
            Action::Promote { run } => {
                let Run { term, node, .. } = self.runs[run];
                self.promote(usize::from(node), (K::NOTES && fleet.mends.notes).then_some(term));
                if fleet.servers == Servers::Postgresql {
                    return self.over(run);
                }
                self.runs[run].phase = Phase::Following;
                Some(())
            }
            Action::Follow { run, relay } => {
                let Run { term, node, .. } = self.runs[run];
                self.answer(run, relay).fenced?;
                self.follow(relay, term, node).then_some(())
            }
            _ => None,
        }
    }

    fn begin<K: Kind>(&mut self, fleet: &Fleet, run: usize, silent: (usize, usize)) -> Option<()> {
        // Runs are alike: by symmetry the first one begins first.
        if run > 0 && self.runs[run - 1].phase == Phase::Idle {
            return None;
        }
        let survey = self.seen::<K>(fleet, silent);
        let plan = K::begin(&survey)?;
        K::candidates(&survey, &plan, &Wish::default()).ok()?;
        let own = if fleet.mends.own_terms { run as u16 } else { 0 };
        let engine = Engine::new(plan, &survey, own);
        let begun = &mut self.runs[run];
        begun.phase = Phase::At(engine.step);
        begun.term = u16::try_from(engine.term()).ok()?;
        begun.timeline = u8::try_from(engine.plan.timeline).ok()?;
        begun.over = u16::try_from(engine.plan.over).ok()?;
        begun.carried_out = engine.plan.carried_out;
        begun.surveyed = survey.elected().filter(|_| !K::SURVEYS_AGAIN).map(|(term, node)| (term as u16, index(&node)));
        for (relay, seen) in survey.relays.iter().enumerate() {
            let there = engine.plan.there.contains(&seen.name);
            // A relay that did not answer gets no order where the order names its epoch.
            let fence = K::fence(&engine.plan, seen).and_then(|names| u8::try_from(names).ok());
            let epoch = if fleet.servers == Servers::BinlogServers { fence.unwrap_or(0) } else { 0 };
            let answer = self.answer(run, relay);
            answer.there = there;
            answer.epoch = epoch;
            answer.asked = fence.is_none();
        }
        Some(())
    }

    /// Makes the plan of a run.
    fn plan(&self, run: usize) -> Plan {
        let Run { timeline, over, carried_out, .. } = self.runs[run];
        let there = self.answers(run).enumerate().filter(|(_, answer)| answer.there);
        let there = there.map(|(relay, _)| super::world::RELAYS[relay].to_owned()).collect();
        Plan { timeline: timeline.into(), there, over: over.into(), carried_out }
    }

    /// Makes the real engine of a run, with what it sees at this moment.
    fn engine<K: Kind>(&self, fleet: &Fleet, run: usize) -> Option<Engine<K>> {
        let now = self.seen::<K>(fleet, (fleet.relays, 0));
        let ballot = self.ballot(fleet, run, &now)?;
        Some(self.runs[run].engine(self.plan(run), ballot, now))
    }

    /// Keeps the state of the real engine.
    fn keep<K: Kind>(&mut self, run: usize, engine: &Engine<K>) {
        let kept = &mut self.runs[run];
        kept.phase = Phase::At(engine.step);
        kept.candidates = bits(engine.election.candidates.iter().map(|candidate| candidate.name.as_str()));
        kept.withdraw = engine.election.withdraw.as_deref().map(index);
        kept.node = engine.node.as_deref().map_or(0, index);
    }

    /// Makes the ballot of the relays that have carried out a run's fence.
    fn ballot<K: Kind>(&self, fleet: &Fleet, run: usize, survey: &Survey<K>) -> Option<Ballot<K>> {
        let fenced = survey.relays.iter().zip(self.answers(run)).filter_map(|(relay, answer)| {
            let mut relay: RelaySeen<K> = relay.clone();
            let standing = K::standing(self, answer.fenced?, &self.runs[run]);
            relay.standing = Ok(standing.clone());
            Some((relay, standing))
        });
        let (term, fenced) = (self.runs[run].term.into(), fenced.collect::<Vec<_>>());
        if fleet.mends.majority {
            let there = self.answers(run).filter(|answer| answer.there).count();
            return Ballot::of(survey, term, fenced, there, false).ok();
        }
        let quorum = fleet.relays + 1 - fleet.acknowledgements;
        (fenced.len() >= quorum).then_some(Ballot { term, relays: fenced, quorum })
    }

    fn count<K: Kind>(&mut self, fleet: &Fleet, run: usize, silent: (usize, usize), to: Option<usize>) -> Option<()> {
        let mut engine = self.engine::<K>(fleet, run)?;
        engine.step = Step::Count;
        let mut now = self.seen::<K>(fleet, silent);
        if !K::SURVEYS_AGAIN {
            // What is known of relays is as old as the first survey.
            let chosen = self.runs[run].surveyed;
            for (relay, answer) in now.relays.iter_mut().zip(self.answers(run)) {
                let then =
                    answer.fenced.map(|fenced| K::standing(self, Snapshot { chosen, ..fenced }, &self.runs[run]));
                relay.standing = then.ok_or_else(|| "surveyed before".to_owned());
            }
        }
        let wish = Wish { to: to.map(|to| NAMES[to]), ..Wish::default() };
        let counted =
            if fleet.mends.keeps_answers { engine.counted(now, &wish) } else { engine.counted_as(now, &wish) };
        if counted.is_err() || engine.step == Step::Over {
            return self.over(run);
        }
        engine.node = None;
        self.keep(run, &engine);
        if engine.step == Step::Note {
            self.runs[run].to_note = K::to_be_noted(&engine.now);
        }
        Some(())
    }

    /// Goes on once every relay that had accepted the node has withdrawn it.
    fn withdrawn<K: Kind>(&mut self, fleet: &Fleet, run: usize) -> Option<()> {
        let mut engine = self.engine::<K>(fleet, run)?;
        let Some((relays, _)) = engine.withdrawal() else { return Some(()) };
        let done = self.answers(run).filter(|answer| answer.withdrawn).count();
        if relays.count() <= done {
            engine.withdrawn();
            self.keep(run, &engine);
        }
        Some(())
    }

    /// True if a relay that takes a run's choice is led to the node at once.
    fn leads<K: Kind>(&self, fleet: &Fleet, run: usize, relay: usize) -> Option<bool> {
        let engine = self.engine::<K>(fleet, run)?;
        let then = K::standing(self, self.answers(run).nth(relay)?.fenced?, &self.runs[run]);
        Some(fleet.mends.leads && engine.lead(&then).is_some())
    }

    /// Goes on once enough relays have taken the choice.
    fn chosen<K: Kind>(&mut self, fleet: &Fleet, run: usize) -> Option<()> {
        let mut engine = self.engine::<K>(fleet, run)?;
        let agree = self.answers(run).filter(|answer| answer.chose && answer.led).count();
        if engine.chose(agree).is_ok() {
            self.keep(run, &engine);
        }
        Some(())
    }

    /// Ends the run, and clears its state.
    fn over(&mut self, run: usize) -> Option<()> {
        self.runs[run] = Run { phase: Phase::Over, ..Run::default() };
        self.forget(run);
        Some(())
    }
}

/// Returns the standbys on which a run notes its term.
pub(super) fn standbys(now: &Survey<Postgresql>) -> u8 {
    bits(to_be_noted(now).map(|server| server.name.as_str()))
}
