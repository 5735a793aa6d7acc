//! State of the model: logs, relays with their promises, servers; and its transitions.
//!
//! A log is a timeline's *branch* and a position on it. A branch begins at the promotion of its primary, so that two servers promoted to the same
//! timeline are two branches.
//!
//! Relays of MariaDB differ from those of PostgreSQL: each takes the writes of the one server that it was told to follow, counts its epochs by itself,
//! and its fence names one of them.

use ::binlog::gtid::mariadb::{Gtid, State};
use ::relay::{BinlogStanding, Choice, Conclusion, Evidence, Memory, Promise, Recollection, RelayState, conclude};

use super::super::plan::tests::{relay as relay_seen, server as server_seen};
use watermark::Lsn;

use super::super::binlog_servers::{BinlogServers, Held, NodeState};
use super::super::engine::Plan;
use super::super::note::Note;
use super::super::plan::{RelaySeen, ServerSeen, Survey, Tags};
use super::super::postgresql::Postgresql;
use super::run::{self, Answer, Kind, Run, Snapshot};
use super::{Action, Fleet};

/// The kind of all servers of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Servers {
    Postgresql,
    BinlogServers,
}

/// The safeguards of failovers, each of which can be removed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mends {
    /// True if a fenced relay takes nothing more of what the fence ends.
    pub(super) fences: bool,
    /// True if a relay that comes back empty acknowledges nothing before it has learnt from others its possible promises.
    pub(super) remembers: bool,
    /// True if a server is promoted only by the run whose term is noted on it.
    pub(super) notes: bool,
    /// True if a relay's answer to the fence counts when the relay does not answer later.
    pub(super) keeps_answers: bool,
    /// True if no two runs have the same term.
    pub(super) own_terms: bool,
    /// True if a run needs more than half of the relays, even if fewer stop all commits.
    pub(super) majority: bool,
    /// True if a run checks before the promotion that the relays still hold to its term.
    pub(super) looks: bool,
    /// True if a relay that may have been told to follow an earlier node is led away from it before the promotion.
    pub(super) leads: bool,
}

/// Most commits of one primary.
const COMMITS: u8 = 1;
/// The first primary; the others are standbys at first. It is cut off from every run, and goes on.
const OLD: usize = 0;
pub(super) const SERVERS: usize = 3;
pub(super) const NAMES: [&str; SERVERS] = ["a", "b", "c"];
pub(super) const RELAYS: [&str; 3] = ["r", "s", "t"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Log {
    branch: u8,
    end: u8,
}

/// WAL written by the primary of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Branch {
    timeline: u8,
    /// Start of the branch; None for the first one.
    from: Option<Log>,
    end: u8,
    /// The server that writes it, of MariaDB; else 0.
    server: u8,
}

/// Compact form of a relay's promise. The relay's own [`Promise`] decides the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Promised {
    term: u16,
    /// The last timeline of which nothing more is taken; 0: none.
    fenced: u8,
    /// The term and the server.
    chosen: Option<(u16, u8)>,
}

impl Promised {
    fn real(self) -> Promise {
        let choice = |(term, node): (u16, u8)| Choice { term: term.into(), node: NAMES[usize::from(node)].into() };
        Promise::learnt(self.term.into(), self.fenced.into(), self.chosen.map(choice))
    }

    fn of(promise: &Promise) -> Promised {
        let Memory { term, fenced, chosen } = promise.memory();
        let chosen = chosen.and_then(|choice| Some((u16::try_from(choice.term).ok()?, index(&choice.node))));
        // The model's terms and timelines are small.
        Promised { term: term as u16, fenced: fenced as u8, chosen }
    }

    /// Returns the fence and the choice that stand for a log of this timeline.
    fn standing(self, own: u8) -> Option<(u8, Option<(u16, u8)>)> {
        let promise = self.real();
        let (timeline, chosen) = promise.standing(own.into())?;
        Some((timeline as u8, chosen.map(|choice| (choice.term as u16, index(&choice.node)))))
    }
}

pub(super) fn index(name: &str) -> u8 {
    NAMES.iter().position(|known| *known == name).map_or(0, |index| index as u8)
}

/// A relay, with the others' knowledge of it: in one value, so that sorting the relays merges states that differ only in the relays' names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Relay {
    /// None: its directory is empty.
    holds: Option<(Log, Promised)>,
    /// The epoch of a relay of MariaDB; else 0.
    epoch: u8,
    /// The server that wrote the epoch, and the one that the relay was told to follow, of MariaDB; else 0.
    source: u8,
    upstream: u8,
    /// Confirmed position, as the primary of each branch knows it.
    confirmed: Vec<u8>,
    /// Answers that each run has heard.
    answers: Vec<Answer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Server {
    log: Log,
    standby: bool,
    /// Term noted on it; 0: none.
    noted: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    branches: Vec<Branch>,
    relays: Vec<Relay>,
    servers: [Server; SERVERS],
    pub(super) runs: Vec<Run>,
    losses: u8,
}

impl World {
    pub(super) fn new(fleet: &Fleet) -> World {
        let log = Log { branch: 0, end: 0 };
        let relay = Relay {
            holds: Some((log, Promised::default())),
            epoch: u8::from(fleet.servers == Servers::BinlogServers),
            source: 0,
            upstream: 0,
            confirmed: vec![0],
            answers: vec![Answer::default(); fleet.runs],
        };
        let server = Server { log, standby: true, noted: 0 };
        World {
            branches: vec![Branch { timeline: 1, from: None, end: 0, server: 0 }],
            relays: vec![relay; fleet.relays],
            servers: [Server { standby: false, ..server }, server, server],
            runs: vec![Run::default(); fleet.runs],
            losses: fleet.losses,
        }
    }

    /// Sorts what differs only in its name, so that equivalent states are checked once.
    pub(super) fn order(&mut self) {
        let [_, one, other] = self.servers;
        if one > other {
            self.servers.swap(1, 2);
            // Server 0 is the old primary.
            let swap = |server: u8| if server == 0 { 0 } else { 3 - server };
            let swapped = |chosen: Option<(u16, u8)>| chosen.map(|(term, server)| (term, swap(server)));
            for run in &mut self.runs {
                *run = run.swapped(swap);
            }
            for branch in &mut self.branches {
                branch.server = swap(branch.server);
            }
            for relay in &mut self.relays {
                (relay.source, relay.upstream) = (swap(relay.source), swap(relay.upstream));
                if let Some((_, promise)) = &mut relay.holds {
                    promise.chosen = swapped(promise.chosen);
                }
                for snapshot in relay.answers.iter_mut().filter_map(|answer| answer.fenced.as_mut()) {
                    snapshot.chosen = swapped(snapshot.chosen);
                    snapshot.source = swap(snapshot.source);
                }
            }
        }
        self.relays.sort();
    }

    pub(super) fn branches(&self) -> usize {
        self.branches.len()
    }

    fn timeline(&self, log: Log) -> u8 {
        self.branches[usize::from(log.branch)].timeline
    }

    /// Returns the log of a branch's primary.
    fn written(&self, branch: usize) -> Log {
        Log { branch: branch as u8, end: self.branches[branch].end }
    }

    /// True if `longer` contains all of `log`.
    fn is_part(&self, log: Log, mut longer: Log) -> bool {
        loop {
            if log.branch == longer.branch {
                return log.end <= longer.end;
            }
            match self.branches[usize::from(longer.branch)].from {
                Some(from) => longer = from,
                None => return false,
            }
        }
    }

    /// Returns the acknowledged position of a branch: confirmed by any w relays, at any time.
    fn acknowledged(&self, branch: usize, fleet: &Fleet) -> Option<Log> {
        let mut confirmed: Vec<u8> = self.relays.iter().map(|relay| relay.confirmed[branch]).collect();
        confirmed.sort_unstable_by(|one, other| other.cmp(one));
        let end = confirmed[fleet.acknowledgements - 1];
        let begin = self.branches[branch].from.map_or(0, |from| from.end);
        (end > begin).then_some(Log { branch: branch as u8, end })
    }

    pub(super) fn nothing_is_lost(&self, fleet: &Fleet) -> bool {
        (0..self.branches.len()).filter_map(|branch| self.acknowledged(branch, fleet)).all(|log| {
            let later =
                self.branches.iter().enumerate().filter(|(index, branch)| {
                    *index != usize::from(log.branch) && branch.timeline >= self.timeline(log)
                });
            later.into_iter().all(|(index, branch)| {
                // A second branch of the same timeline may still vanish, if nothing was acknowledged on it.
                let counts = branch.timeline > self.timeline(log) || self.acknowledged(index, fleet).is_some();
                !counts || self.is_part(log, self.written(index))
            })
        })
    }

    /// Counts the primaries that could get a commit acknowledged now.
    pub(super) fn acknowledging(&self, fleet: &Fleet) -> usize {
        let takes = |branch: usize| {
            let takes = self.relays.iter().filter(|relay| self.takes(fleet, relay, branch));
            takes.count() >= fleet.acknowledgements
        };
        (0..self.branches.len()).filter(|branch| takes(*branch)).count()
    }

    pub(super) fn goes_on(&self, fleet: &Fleet) -> bool {
        (1..self.branches.len()).any(|branch| self.acknowledged(branch, fleet).is_some())
    }

    /// True if a relay takes WAL from the primary of a branch.
    fn takes(&self, fleet: &Fleet, relay: &Relay, branch: usize) -> bool {
        let Some((log, promise)) = relay.holds else { return false };
        let fenced = if fleet.mends.fences { promise.fenced } else { 0 };
        if relay.epoch > 0 {
            let server = self.branches[branch].server;
            let next = relay.epoch + u8::from(relay.source != server);
            return relay.upstream == server && fenced < next && self.is_part(log, self.written(branch));
        }
        let timeline = self.branches[branch].timeline;
        fenced < timeline && self.timeline(log) <= timeline && self.is_part(log, self.written(branch))
    }

    /// Makes a run's survey. `silent` do not answer, and neither does the old primary.
    pub(super) fn seen<K: Kind>(&self, fleet: &Fleet, silent: (usize, usize)) -> Survey<K> {
        let relays = (0..self.relays.len()).map(|relay| K::relay(self, relay, relay != silent.0)).collect();
        Survey { servers: K::servers(self, silent.1), relays, acknowledgements: fleet.acknowledgements }
    }

    /// Returns the servers that answer, with their number.
    fn answering(&self, silent: usize) -> impl Iterator<Item = (usize, Option<Server>)> {
        self.servers.iter().enumerate().map(move |(server, state)| {
            let answers = server != OLD && server != silent;
            (server, answers.then_some(*state))
        })
    }

    /// Returns the transactions of a log.
    fn transactions(&self, log: Log) -> State {
        let Branch { from, server, .. } = self.branches[usize::from(log.branch)];
        let mut state = from.map_or_else(State::default, |from| self.transactions(from));
        if log.end > from.map_or(0, |from| from.end) {
            let added = state.add(Gtid { domain: 0, server: u32::from(server) + 1, sequence: log.end.into() });
            assert!(added, "a state has room for all servers");
        }
        state
    }

    pub(super) fn actions(&self, fleet: &Fleet, actions: &mut Vec<Action>) {
        let (relays, branches) = (0..self.relays.len(), 0..self.branches.len());
        for branch in branches {
            actions.push(Action::Write { branch });
            for relay in relays.clone() {
                match self.relays[relay].holds {
                    Some(_) => actions.push(Action::Receive { relay, branch }),
                    None => actions.push(Action::Learn { relay, branch }),
                }
            }
        }
        for relay in relays {
            actions.push(Action::Lose { relay });
            actions.push(Action::Begin { relay });
            actions.extend((1..SERVERS).map(|server| Action::Replay { server, relay }));
        }
        for run in 0..self.runs.len() {
            let answers: Vec<Answer> = self.answers(run).collect();
            self.runs[run].actions(run, fleet, &answers, actions);
        }
    }

    /// Performs an action; None if it is impossible now.
    pub(super) fn take(&mut self, fleet: &Fleet, action: Action) -> Option<()> {
        match action {
            Action::Write { branch } => {
                let begin = self.branches[branch].from.map_or(0, |from| from.end);
                let branch = &mut self.branches[branch];
                (branch.end < begin + COMMITS).then(|| branch.end += 1)
            }
            Action::Receive { relay, branch } => {
                if !self.takes(fleet, &self.relays[relay], branch) {
                    return None;
                }
                self.receive(relay, branch);
                Some(())
            }
            Action::Replay { server, relay } => {
                let (log, _) = self.relays[relay].holds?;
                let Server { standby, log: has, .. } = self.servers[server];
                (standby && has != log && self.is_part(has, log)).then(|| self.servers[server].log = log)
            }
            Action::Lose { relay } => {
                self.losses = self.losses.checked_sub(1)?;
                self.relays[relay].holds.take().map(drop)
            }
            Action::Learn { relay, branch } => self.learn(fleet, relay, branch),
            Action::Begin { relay } => self.begin_epoch(relay),
            _ if fleet.servers == Servers::BinlogServers => self.step::<BinlogServers>(fleet, action),
            _ => self.step::<Postgresql>(fleet, action),
        }
    }

    fn receive(&mut self, relay: usize, branch: usize) {
        let (log, server) = (self.written(branch), self.branches[branch].server);
        let relay = &mut self.relays[relay];
        if relay.epoch > 0 && relay.source != server {
            (relay.epoch, relay.source) = (relay.epoch + 1, server);
        }
        relay.holds = relay.holds.map(|(_, promise)| (log, promise));
        relay.confirmed[branch] = relay.confirmed[branch].max(log.end);
    }

    /// Begins an epoch of a server that is not promoted yet, and that the relay was told to follow.
    fn begin_epoch(&mut self, relay: usize) -> Option<()> {
        let Relay { holds, epoch, source, upstream, .. } = self.relays[relay].clone();
        let (log, promise) = holds?;
        let Server { log: has, standby, .. } = self.servers[usize::from(upstream)];
        if epoch == 0 || source == upstream || !standby || !self.is_part(log, has) {
            return None;
        }
        let relay = &mut self.relays[relay];
        (relay.holds, relay.epoch, relay.source) = (Some((has, promise)), epoch + 1, upstream);
        Some(())
    }

    /// Has a relay follow a server; false: it refuses.
    pub(super) fn follow(&mut self, relay: usize, term: u16, node: u8) -> bool {
        let holds = self.relays[relay].holds;
        let takes = holds.is_some_and(|(_, promise)| promise.term == term);
        if takes {
            self.relays[relay].upstream = node;
        }
        takes
    }

    /// Applies the relay's own conclusion from the others' memories. A server does not answer, so that enough relays have to.
    fn learn(&mut self, fleet: &Fleet, relay: usize, branch: usize) -> Option<()> {
        let mut promise = Promised::default();
        if fleet.mends.remembers {
            let others = self.relays.iter().enumerate().filter(|(other, _)| *other != relay).map(|(other, relay)| {
                let held = relay.holds.map(|(log, promise)| (self.timeline(log), promise.real().memory()));
                let (timeline, memory) = held.map_or((0, None), |(timeline, memory)| (timeline.into(), Some(memory)));
                (String::new(), Ok(Recollection { instance: other as u64, system: Some(1), timeline, memory }))
            });
            let evidence = Evidence {
                upstream: self.branches[branch].timeline.into(),
                servers: vec![(String::new(), Err(String::new()))],
                relays: others.collect(),
                acknowledgements: Some(fleet.acknowledgements),
            };
            match conclude(&evidence, false) {
                Conclusion::Known(known) => promise = Promised::of(&known),
                Conclusion::Nobody { .. } | Conclusion::Silent(_) => return None,
            }
        }
        // It begins at the primary's position, and counts from then on; before, it refuses to be fenced.
        self.relays[relay].holds = Some((self.written(branch), promise));
        if !self.takes(fleet, &self.relays[relay], branch) {
            return None;
        }
        self.receive(relay, branch);
        Some(())
    }

    pub(super) fn answers(&self, run: usize) -> impl Iterator<Item = Answer> {
        self.relays.iter().map(move |relay| relay.answers[run])
    }

    pub(super) fn answer(&mut self, run: usize, relay: usize) -> &mut Answer {
        &mut self.relays[relay].answers[run]
    }

    pub(super) fn forget(&mut self, run: usize) {
        for relay in &mut self.relays {
            relay.answers[run] = Answer::default();
        }
    }

    /// Carries out a fence on a relay; None: it refuses, or is empty.
    pub(super) fn fence(&mut self, relay: usize, term: u16, timeline: u8) -> Option<Snapshot> {
        let (log, promise) = self.relays[relay].holds?;
        let own = self.own(relay, log);
        let next = promise.real().fence(term.into(), timeline.into(), own.into(), Lsn(lsn(log.end))).ok()?;
        let next = Promised::of(&next);
        self.relays[relay].holds = Some((log, next));
        let (_, chosen) = next.standing(own)?;
        let Relay { epoch, source, .. } = self.relays[relay];
        let branch = if epoch > 0 { log.branch } else { 0 };
        Some(Snapshot { timeline: self.timeline(log), end: log.end, chosen, branch, epoch, source })
    }

    /// Returns the number that a fence of the relay is compared with: the timeline of its log, or its own epoch.
    fn own(&self, relay: usize, log: Log) -> u8 {
        match self.relays[relay].epoch {
            0 => self.timeline(log),
            epoch => epoch,
        }
    }

    /// Carries out an order on a relay; false: it refuses.
    fn order_relay(&mut self, relay: usize, order: impl Fn(&Promise, u32) -> Option<Promise>) -> bool {
        let Some((log, promise)) = self.relays[relay].holds else { return false };
        let Some(next) = order(&promise.real(), self.own(relay, log).into()) else { return false };
        self.relays[relay].holds = Some((log, Promised::of(&next)));
        true
    }

    pub(super) fn choose(&mut self, relay: usize, term: u16, node: u8) -> bool {
        self.order_relay(relay, |promise, own| promise.choose(term.into(), NAMES[usize::from(node)], own).ok())
    }

    pub(super) fn withdraw(&mut self, relay: usize, term: u16, node: u8) -> bool {
        self.order_relay(relay, |promise, own| promise.withdraw(term.into(), NAMES[usize::from(node)], own).ok())
    }

    /// Notes a run's term on a server, unless that is promoted or has a later one.
    pub(super) fn note(&mut self, server: usize, term: u16) -> bool {
        let server = &mut self.servers[server];
        let takes = server.standby && server.noted <= term;
        if takes {
            server.noted = term;
        }
        takes
    }

    /// Promotes a server if it is a standby, and this term is noted on it. None: whatever is noted.
    pub(super) fn promote(&mut self, server: usize, term: Option<u16>) {
        let Server { log, standby, noted } = self.servers[server];
        if !standby || term.is_some_and(|term| term != noted) {
            return;
        }
        let written_by = if self.relays.iter().any(|relay| relay.epoch > 0) { server as u8 } else { 0 };
        let branch = Branch { timeline: self.timeline(log) + 1, from: Some(log), end: log.end, server: written_by };
        self.branches.push(branch);
        for relay in &mut self.relays {
            relay.confirmed.push(0);
        }
        let log = self.written(self.branches.len() - 1);
        self.servers[server] = Server { log, standby: false, noted };
    }
}

impl Kind for Postgresql {
    fn servers(world: &World, silent: usize) -> Vec<ServerSeen> {
        let seen = world.answering(silent).map(|(server, state)| {
            let known = state.map(|Server { log, standby, .. }| {
                let end = if standby { log.end } else { world.branches[usize::from(log.branch)].end };
                (standby, world.timeline(log).into(), lsn(end))
            });
            let mut seen: ServerSeen = server_seen(NAMES[server], known);
            if let (Ok(seen), Some(Server { noted: 1.., .. })) = (&mut seen.state, state) {
                seen.note = state.map(|state| Note { term: state.noted.into(), after: None });
            }
            seen
        });
        seen.collect()
    }

    fn relay(world: &World, relay: usize, answers: bool) -> RelaySeen {
        let mut seen = relay_seen(RELAYS[relay], None);
        if let Some((log, promise)) = world.relays[relay].holds.filter(|_| answers) {
            let (fenced, chosen) = promise.standing(world.timeline(log)).unwrap_or_default();
            seen.standing = Ok(standing(promise.term, world.timeline(log), log.end, fenced, chosen));
        }
        seen
    }

    fn standing(_: &World, of: Snapshot, run: &Run) -> RelayState {
        standing(run.term, of.timeline, of.end, run.timeline, of.chosen)
    }

    fn begin(survey: &Survey) -> Option<Plan> {
        run::begin_postgresql(survey)
    }

    fn to_be_noted(now: &Survey) -> u8 {
        run::standbys(now)
    }
}

impl Kind for BinlogServers {
    fn servers(world: &World, silent: usize) -> Vec<ServerSeen<BinlogServers>> {
        let seen = world.answering(silent).map(|(server, state)| {
            let known = state.map(|Server { log, standby, .. }| {
                let log = if standby { log } else { world.written(usize::from(log.branch)) };
                let log = world.transactions(log);
                let position = log.position();
                let held = Held::MariaDb { log, position };
                NodeState { server_id: server as u32 + 1, held, read_only: standby, master: None }
            });
            let state = known.ok_or_else(|| "down".to_owned());
            ServerSeen { name: NAMES[server].into(), address: address(server as u8), tags: Tags::default(), state }
        });
        seen.collect()
    }

    fn relay(world: &World, relay: usize, answers: bool) -> RelaySeen<BinlogServers> {
        let Relay { holds, epoch, source, upstream, .. } = &world.relays[relay];
        let standing = holds.filter(|_| answers).map(|(log, promise)| {
            let stands = promise.standing(*epoch);
            let (_, chosen) = stands.unwrap_or_default();
            binlog_standing(promise.term, *epoch, *source, stands.is_some(), chosen, world.transactions(log), *upstream)
        });
        let name = RELAYS[relay].to_owned();
        RelaySeen {
            address: format!("{name}:1"),
            name,
            application: String::new(),
            standing: standing.ok_or_else(|| "down".to_owned()),
        }
    }

    fn standing(world: &World, of: Snapshot, run: &Run) -> BinlogStanding {
        let log = world.transactions(Log { branch: of.branch, end: of.end });
        binlog_standing(run.term, of.epoch, of.source, true, of.chosen, log, of.source)
    }

    fn begin(survey: &Survey<BinlogServers>) -> Option<Plan> {
        run::begin_binlog_servers(survey)
    }

    fn to_be_noted(_: &Survey<BinlogServers>) -> u8 {
        0
    }
}

fn address(server: u8) -> String {
    format!("{}:1", NAMES[usize::from(server)])
}

fn binlog_standing(
    term: u16,
    epoch: u8,
    source: u8,
    fenced: bool,
    chosen: Option<(u16, u8)>,
    state: State,
    upstream: u8,
) -> BinlogStanding {
    BinlogStanding {
        term: term.into(),
        epoch: epoch.into(),
        source: u32::from(source) + 1,
        fenced,
        chosen: chosen.map(|(term, server)| (term.into(), NAMES[usize::from(server)].to_owned())),
        state: ::binlog::gtid::State::MariaDb(state),
        upstream: address(upstream),
        upstream_state: "not receiving".into(),
    }
}

fn standing(term: u16, timeline: u8, end: u8, fenced: u8, chosen: Option<(u16, u8)>) -> RelayState {
    let chosen = chosen.map(|(term, server)| (term.into(), NAMES[usize::from(server)].to_owned()));
    RelayState {
        system: 1,
        term: term.into(),
        timeline: timeline.into(),
        flushed: Lsn(lsn(end)),
        whole: Lsn(lsn(end)),
        fenced: (fenced > 0).then_some(fenced.into()),
        chosen,
        upstream: String::new(),
        state: "not receiving".into(),
        named: false,
    }
}

/// Converts a position of the model to one of a log.
fn lsn(end: u8) -> u64 {
    100 * (u64::from(end) + 1)
}
