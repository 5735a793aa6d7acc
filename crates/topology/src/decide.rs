//! Decisions from the reports of all nodes. Pure: no I/O, no clock; time is an argument.

use std::time::{Duration, Instant};

use watermark::Lsn;

use crate::config::Positions;
pub(crate) use crate::facts::{Facts, Position, Report};
use crate::lag::{Lag, Samples};
pub(crate) use crate::outcome::{Decision, Event, Mark, Outcome};
use crate::view::{NodeId, Role, Term, WEIGHT_SCALE};

/// Maximum time for which a node that answers is kept out after an ejection.
const MAX_BACK_OFF: Duration = Duration::from_secs(30);
/// Time in service after which a node starts again with the minimum back-off.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// Time after which a returning replica has its full share of reads. `SLOW_START_STEPS`: number of steps until then.
const SLOW_START: Duration = Duration::from_secs(10);
const SLOW_START_STEPS: u32 = 5;

/// Settings that decisions depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) failures: u32,
    pub(crate) lag: Duration,
    /// Back-off after the first ejection.
    pub(crate) back_off: Duration,
    /// Kind of the servers' positions: a change invalidates all earlier positions.
    pub(crate) positions: Positions,
}

/// State of the decisions.
#[derive(Debug)]
pub(crate) struct Decider {
    limits: Limits,
    /// The cluster's database system; 0 until decided.
    system: u64,
    /// Highest timeline seen anywhere in that system: a node out of recovery below it is permanently stale.
    highest: u32,
    term: Term,
    /// Number of counted terms, of servers without timelines.
    counted: u32,
    /// True if several nodes accept writes and it is unknown which is the newer primary.
    contested: bool,
    primary: Option<usize>,
    samples: Samples,
    nodes: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    /// Configured weight; None if removed from the configuration.
    weight: Option<u32>,
    /// True after the first report.
    heard: bool,
    /// Latest answer; None while the node is out.
    facts: Option<Facts>,
    out: bool,
    failures: u32,
    suspected: bool,
    ejections: u32,
    return_at: Option<Instant>,
    in_since: Option<Instant>,
    slow_start: bool,
    /// True if seen out of recovery on the primary's timeline besides the primary.
    rival: bool,
    /// Number of answers in this term, up to 2.
    answers: u8,
    /// Time since which the node's timeline is not the one its position could be compared on.
    astray_since: Option<Instant>,
    lag: Lag,
    lagging: bool,
    role: Role,
    accused: bool,
}

impl Known {
    fn new(weight: Option<u32>) -> Known {
        Known {
            weight,
            heard: false,
            facts: None,
            out: true,
            failures: 0,
            suspected: false,
            ejections: 0,
            return_at: None,
            in_since: None,
            slow_start: false,
            rival: false,
            answers: 0,
            astray_since: None,
            lag: Lag::default(),
            lagging: false,
            role: Role::Unknown,
            accused: false,
        }
    }

    /// Forgets the position: a restart may have set it back.
    fn forget_position(&mut self) {
        if let Some(Facts { position: Position::Standby { replayed, .. }, .. }) = &mut self.facts {
            *replayed = Lsn(0);
        }
    }

    fn replayed(&self) -> Lsn {
        match self.facts {
            Some(Facts { position: Position::Standby { replayed, .. }, .. }) => replayed,
            _ => Lsn(0),
        }
    }

    fn written(&self) -> Lsn {
        match self.facts {
            Some(Facts { position: Position::Primary { lsn }, .. }) => lsn,
            _ => Lsn(0),
        }
    }

    fn is_writable(&self) -> bool {
        matches!(self.facts, Some(Facts { position: Position::Primary { .. }, .. }))
    }

    fn timeline(&self) -> u32 {
        self.facts.as_ref().map_or(0, |facts| facts.timeline)
    }
}

fn id(index: usize) -> NodeId {
    NodeId(u16::try_from(index).unwrap_or(u16::MAX))
}

// === impl Decider ===

impl Decider {
    /// Creates a decider. `weights`: one per node, in the order of IDs; None for a node that is no longer configured.
    pub(crate) fn new(limits: Limits, weights: &[Option<u32>]) -> Decider {
        Decider {
            limits,
            system: 0,
            highest: 0,
            term: Term::default(),
            counted: 0,
            contested: false,
            primary: None,
            samples: Samples::new(limits.lag),
            nodes: weights.iter().map(|weight| Known::new(*weight)).collect(),
        }
    }

    /// Applies a new configuration. `moved`: nodes with a changed address, that is, new ones.
    pub(crate) fn reconfigure(
        &mut self,
        limits: Limits,
        weights: &[Option<u32>],
        moved: &[NodeId],
        now: Instant,
    ) -> Decision {
        // No node has reported the new positions yet, and the timelines seen before may no longer be reported.
        let anew = limits.positions != self.limits.positions;
        if anew {
            self.highest = 0;
        }
        self.limits = limits;
        self.samples.set_span(limits.lag);
        let mut marks = Vec::new();
        for (index, weight) in weights.iter().enumerate() {
            match self.nodes.get_mut(index) {
                None => self.nodes.push(Known::new(*weight)),
                Some(known) if anew || weight.is_none() || moved.contains(&id(index)) => {
                    if self.primary == Some(index) {
                        self.primary = None;
                    }
                    *known = Known { role: known.role, ..Known::new(*weight) };
                    marks.push((id(index), Mark::Reset));
                }
                Some(known) => known.weight = *weight,
            }
        }
        if self.primary.is_none() {
            self.nodes.iter_mut().for_each(|known| known.rival = false);
        }
        self.settle(None, now, marks, Vec::new())
    }

    /// Processes one report.
    pub(crate) fn report(&mut self, node: NodeId, report: Report, now: Instant) -> Decision {
        let (mut marks, mut events) = (Vec::new(), Vec::new());
        let index = usize::from(node.0);
        if self.nodes.get(index).is_some_and(|known| known.weight.is_some()) {
            match report {
                Report::Up(facts) => self.up(index, facts, now, &mut marks, &mut events),
                Report::Down { error, suspected } => self.down(index, error, suspected, now, &mut marks, &mut events),
                Report::Lost => {
                    let known = &mut self.nodes[index];
                    known.suspected = true;
                    known.forget_position();
                    marks.push((node, Mark::Reset));
                }
            }
        }
        self.settle(Some(index), now, marks, events)
    }

    fn up(
        &mut self,
        index: usize,
        facts: Facts,
        now: Instant,
        marks: &mut Vec<(NodeId, Mark)>,
        events: &mut Vec<Event>,
    ) {
        // A node that is kept out is still a witness of its timeline.
        if self.system != 0 && facts.system == self.system {
            self.highest = self.highest.max(facts.timeline);
        }
        let writable = matches!(facts.position, Position::Primary { .. });
        let known = &mut self.nodes[index];
        known.heard = true;
        known.failures = 0;
        known.suspected = false;
        known.answers = known.answers.saturating_add(1).min(2);
        if facts.fresh {
            marks.push((id(index), Mark::Reset));
            if self.primary == Some(index) && self.term.is_counted() {
                // The server may have been restarted as another's successor, which no timeline would show.
                self.primary = None;
            }
        }
        if known.out {
            // Writes wait for a primary, so it has no back-off.
            let excused = writable && facts.system == self.system && facts.timeline >= self.highest;
            if !excused && known.return_at.is_some_and(|at| now < at) {
                return;
            }
            known.out = false;
            known.in_since = Some(now);
            known.slow_start = known.ejections > 0 && !writable;
            if known.ejections > 0 {
                events.push(Event::Returned { node: id(index) });
            }
        }
        if !writable || facts.timeline > self.term.timeline {
            known.rival = false;
        }
        known.facts = Some(facts);
    }

    fn down(
        &mut self,
        index: usize,
        error: String,
        suspected: bool,
        now: Instant,
        marks: &mut Vec<(NodeId, Mark)>,
        events: &mut Vec<Event>,
    ) {
        let known = &mut self.nodes[index];
        let first = !std::mem::replace(&mut known.heard, true);
        known.failures = known.failures.saturating_add(1);
        known.suspected |= suspected;
        known.forget_position();
        marks.push((id(index), Mark::Reset));
        if known.out {
            if first {
                events.push(Event::Ejected { node: id(index), error, back_off: Duration::ZERO });
            }
            return;
        }
        if known.failures < self.limits.failures && !known.suspected {
            return;
        }
        let was_in = known.in_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        known.ejections = if was_in >= FORGIVEN_AFTER { 1 } else { known.ejections.saturating_add(1) };
        let doublings = known.ejections.saturating_sub(1).min(16);
        let back_off = self.limits.back_off.saturating_mul(1 << doublings).min(MAX_BACK_OFF);
        known.out = true;
        known.facts = None;
        known.return_at = Some(now + back_off);
        known.in_since = None;
        known.slow_start = false;
        known.astray_since = None;
        events.push(Event::Ejected { node: id(index), error, back_off });
    }

    /// Evaluates the state of all nodes, after a report of `reporter`.
    fn settle(
        &mut self,
        reporter: Option<usize>,
        now: Instant,
        mut marks: Vec<(NodeId, Mark)>,
        mut events: Vec<Event>,
    ) -> Decision {
        // The first decision waits until every node was tried: a node that accepts writes may be the old primary, which only the others' reports
        // show.
        if self.system != 0 || self.nodes.iter().all(|known| known.heard || known.weight.is_none()) {
            self.choose_system();
        }
        if self.system != 0 {
            for known in &self.nodes {
                if let Some(facts) = known.facts.as_ref().filter(|facts| facts.system == self.system) {
                    self.highest = self.highest.max(facts.timeline);
                }
            }
            self.choose_primary(now, &mut marks, &mut events);
            self.measure(reporter, now, &mut events);
        }
        let nodes = (0..self.nodes.len()).map(|index| self.outcome(index, now, &mut events)).collect();
        for (index, known) in self.nodes.iter().enumerate() {
            let replayed = known.replayed();
            let comparable = self.primary != Some(index) && self.is_on_term(known);
            if comparable && replayed != Lsn(0) {
                marks.push((id(index), Mark::Publish(replayed)));
            }
        }
        let tells = self.primary.is_some_and(|index| self.nodes[index].written() != Lsn(0));
        Decision { term: self.term, primary: self.primary.map(id), tells, nodes, marks, events }
    }

    /// Chooses the system of most nodes; the first in configured order if there are several.
    fn choose_system(&mut self) {
        if self.system != 0 {
            return;
        }
        let systems = || self.nodes.iter().filter_map(|known| known.facts.as_ref().map(|facts| facts.system));
        let mut most = 0;
        for system in systems() {
            let count = systems().filter(|other| *other == system).count();
            if count > most {
                (most, self.system) = (count, system);
            }
        }
    }

    fn is_ours(&self, known: &Known) -> bool {
        known.weight.is_some() && known.facts.as_ref().is_some_and(|facts| facts.system == self.system)
    }

    /// True if the node's position can be compared with those of the view's term.
    fn is_on_term(&self, known: &Known) -> bool {
        match self.term.is_counted() {
            true => self.is_ours(known) && known.timeline() == 0 && known.answers >= 2,
            false => self.is_ours(known) && self.term.timeline != 0 && known.timeline() == self.term.timeline,
        }
    }

    fn choose_primary(&mut self, now: Instant, marks: &mut Vec<(NodeId, Mark)>, events: &mut Vec<Event>) {
        let before = self.primary;
        let candidates: Vec<usize> = (0..self.nodes.len())
            .filter(|index| {
                let known = &self.nodes[*index];
                self.is_ours(known) && known.is_writable() && known.timeline() >= self.highest && !known.rival
            })
            .collect();
        let contested = match candidates[..] {
            // Without timelines, it is unknown which is the newer one.
            [one, other, ..] if self.highest == 0 => Some((one, other)),
            _ => None,
        };
        self.primary = match contested {
            Some(_) => None,
            None => before.filter(|index| candidates.contains(index)).or(candidates.first().copied()),
        };
        if let (Some((one, other)), false) = (contested, std::mem::replace(&mut self.contested, contested.is_some())) {
            events.push(Event::Contested { one: id(one), other: id(other) });
        }
        let Some(primary) = self.primary else {
            if let Some(last) = before {
                events.push(Event::NoPrimary { last: id(last) });
            }
            return;
        };
        let term = match self.nodes[primary].timeline() {
            0 if before == self.primary && self.term.is_counted() => self.term,
            0 => {
                self.counted += 1;
                Term::counted(self.system, self.counted)
            }
            timeline => Term { system: self.system, timeline },
        };
        for rival in candidates.into_iter().filter(|index| *index != primary) {
            self.nodes[rival].rival = true;
            events.push(Event::Rival { kept: id(primary), other: id(rival), timeline: term.timeline });
        }
        if term != self.term {
            self.term = term;
            self.samples.clear();
            if let Some(Facts { position: Position::Primary { lsn }, .. }) = self.nodes[primary].facts {
                self.samples.record(lsn, now);
            }
            for (index, known) in self.nodes.iter_mut().enumerate() {
                known.astray_since = None;
                known.answers = 0;
                marks.push((id(index), Mark::Reset));
            }
        }
        if before != self.primary {
            events.push(Event::Primary { node: id(primary), term, before: before.map(id) });
        }
    }

    /// Computes the lag of the node that reported, and only of it: compared with a newer sample of the primary, an older position would look like a
    /// lag.
    fn measure(&mut self, reporter: Option<usize>, now: Instant, events: &mut Vec<Event>) {
        let Some(index) = reporter.filter(|index| *index < self.nodes.len()) else { return };
        let (ours, on_term) = (self.is_ours(&self.nodes[index]), self.is_on_term(&self.nodes[index]));
        let known = &mut self.nodes[index];
        let follows_newest = known.timeline() == self.highest;
        let (reached, late, commit_age) = match known.facts {
            Some(Facts { position: Position::Standby { reached, late, commit_age, .. }, .. }) => {
                (reached, late, commit_age)
            }
            Some(Facts { position: Position::Primary { lsn }, .. }) => {
                (known.lag, known.lagging) = (Lag::default(), false);
                if self.primary == Some(index) && known.failures == 0 && !known.suspected {
                    self.samples.record(lsn, now);
                }
                return;
            }
            Some(Facts { position: Position::Disowned, .. }) | None => {
                (known.lag, known.lagging) = (Lag::default(), false);
                return;
            }
        };
        if !ours || known.suspected || known.failures > 0 {
            return;
        }
        if on_term {
            known.astray_since = None;
            if reached != Lsn(0) {
                known.lag = self.samples.lag(reached, commit_age);
            }
            if self.term.is_counted() {
                // A number of transactions is not a number of bytes.
                known.lag = Lag { time: known.lag.time.max(late.unwrap_or_default()), bytes: 0 };
            }
        } else if self.term.timeline != 0 && !follows_newest {
            // The position cannot be compared. It is at most as fresh as when the node was last seen on the right timeline.
            let since = *known.astray_since.get_or_insert(now);
            known.lag.time = known.lag.time.max(now.saturating_duration_since(since));
        }
        let lagging = known.lag.time > self.limits.lag;
        if lagging != known.lagging {
            known.lagging = lagging;
            events.push(match lagging {
                true => Event::Lagging { node: id(index), lag: known.lag.time },
                false => Event::CaughtUp { node: id(index) },
            });
        }
    }

    fn outcome(&mut self, index: usize, now: Instant, events: &mut Vec<Event>) -> Outcome {
        let ours = self.system != 0 && self.is_ours(&self.nodes[index]);
        let (system, highest, is_primary) = (self.system, self.highest, self.primary == Some(index));
        let known = &mut self.nodes[index];
        let role = match &known.facts {
            _ if system == 0 || known.out || known.weight.is_none() => Role::Unknown,
            None => Role::Unknown,
            Some(_) if is_primary => Role::Primary,
            Some(facts) if !ours || !matches!(facts.position, Position::Standby { .. }) => Role::Stale,
            Some(_) => Role::Replica,
        };
        if role != known.role {
            events.push(Event::Role { node: id(index), from: known.role, to: role });
            known.role = role;
            known.accused = false;
        }
        if let (Role::Stale, Some(facts), false) = (role, &known.facts, known.accused) {
            known.accused = true;
            if !ours {
                events.push(Event::Foreign { node: id(index), system: facts.system, expected: system });
            } else if facts.position == Position::Disowned {
                events.push(Event::Disowned { node: id(index) });
            } else if facts.timeline < highest {
                events.push(Event::OldTimeline { node: id(index), timeline: facts.timeline, highest });
            }
        }
        let usable = match role {
            Role::Primary => true,
            Role::Replica => !known.lagging,
            Role::Unknown | Role::Stale => false,
        };
        let configured = known.weight.unwrap_or(0);
        Outcome { role, usable, weight: configured.saturating_mul(known.ramp(now)), lag: known.lag }
    }
}

impl Known {
    /// Returns the factor of the configured weight.
    fn ramp(&mut self, now: Instant) -> u32 {
        let Some(since) = self.in_since.filter(|_| self.slow_start) else { return WEIGHT_SCALE };
        let step = SLOW_START / SLOW_START_STEPS;
        let passed = now.saturating_duration_since(since).as_millis() / step.as_millis();
        let steps = u32::try_from(passed).unwrap_or(u32::MAX).saturating_add(1);
        if steps >= SLOW_START_STEPS {
            self.slow_start = false;
            return WEIGHT_SCALE;
        }
        WEIGHT_SCALE * steps / SLOW_START_STEPS
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
