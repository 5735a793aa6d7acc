//! A model of failovers, checked in all its states: some relays, a primary that is cut off and goes on, two standbys, two runs of `kingpost
//! failover` at once. Every order may be carried out late, its answer may get lost, a run may be killed anywhere, and a relay may lose its
//! directory and come back empty.
//!
//! ```text
//!  clients ─▶ primary ─▶ relays (n, of which w have to have a commit) ─▶ standbys
//!                           ▲ survey, fence, withdraw, choose, look        ▲ note, promote
//!                           └────────────── run A, run B ─────────────────┘
//! ```
//!
//! A run is the real code: the [engine](super::engine), with its decisions in [`course`](super::judge::course), [`super::plan`], [`super::ballot`] and,
//! for servers of MariaDB, [`super::binlog_servers`]. The promises of a relay, and the conclusions of one that came back empty, come from the relay's own
//! [`Promise`](::relay::Promise) and [`conclude`](::relay::conclude). The rule of servers (the note, which is in SQL) is modelled in [`world`], and the
//! adversary is [`Action`].
//!
//! *Invariants*: every later timeline has all acknowledged commits; two primaries never both get commits acknowledged. With one safeguard removed
//! ([`Mends`]) the checker must find a violation.

mod run;
mod world;

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Property};

use world::{Mends, Servers, World};

/// Size of the model.
#[derive(Debug, Clone)]
struct Fleet {
    servers: Servers,
    relays: usize,
    /// Number of relays that a commit waits for.
    acknowledgements: usize,
    /// Number of concurrent runs.
    runs: usize,
    /// Number of times that a relay loses its directory.
    losses: u8,
    mends: Mends,
}

/// A possible next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// The primary of a timeline writes a commit.
    Write { branch: usize },
    /// A relay receives everything that the primary of a timeline has, makes it durable, and confirms it.
    Receive { relay: usize, branch: usize },
    /// A standby replays everything that a relay has.
    Replay { server: usize, relay: usize },
    /// A relay loses its directory.
    Lose { relay: usize },
    /// An empty relay learns from others its possible promises, and begins anew at the primary of a timeline.
    Learn { relay: usize, branch: usize },
    /// A relay of MariaDB connects to the standby that it was told to follow.
    Begin { relay: usize },
    /// A run surveys the cluster. `silent`: one relay and one standby do not answer it, if in range.
    Survey { run: usize, silent: (usize, usize) },
    /// A relay carries out a run's fence; `heard`: its answer does not get lost.
    Fence { run: usize, relay: usize, heard: bool },
    /// A run has heard of enough relays, and surveys again. `to`: its operator names this node.
    Count { run: usize, silent: (usize, usize), to: Option<usize> },
    /// A run's term is noted on a standby.
    Note { run: usize, server: usize },
    /// A run stops waiting for further standbys.
    Noted { run: usize },
    /// A relay gives up the node of an earlier election.
    Withdraw { run: usize, relay: usize },
    /// A run sees that a candidate has everything.
    CaughtUp { run: usize, server: usize },
    /// A relay accepts a run's node.
    Choose { run: usize, relay: usize },
    /// A relay that has accepted a run's node is led to it, away from an earlier one.
    Lead { run: usize, relay: usize },
    /// A run's candidate fails for some other reason, surely not promoted.
    SetBack { run: usize },
    /// A run checks that the relays still hold to its term.
    Look { run: usize },
    /// A run promotes its node.
    Promote { run: usize },
    /// A relay of MariaDB is told to follow a run's node.
    Follow { run: usize, relay: usize },
}

impl Model for Fleet {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        next.take(self, action)?;
        next.order();
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Fleet>> {
        vec![
            Property::always(LOST, |fleet: &Fleet, world: &World| world.nothing_is_lost(fleet)),
            Property::always(TWO, |fleet: &Fleet, world: &World| world.acknowledging(fleet) <= 1),
            // Checks of the model itself: the interesting states are reachable.
            Property::sometimes("promoted", |_, world: &World| world.branches() == 2),
            Property::sometimes("acknowledged after it", |fleet: &Fleet, world: &World| world.goes_on(fleet)),
        ]
    }
}

const LOST: &str = "what was acknowledged is on every later timeline";
const TWO: &str = "at most one primary gets commits acknowledged";

const WHOLE: Mends = Mends {
    fences: true,
    remembers: true,
    notes: true,
    keeps_answers: true,
    own_terms: true,
    majority: true,
    looks: true,
    leads: true,
};

fn fleet(relays: usize, acknowledgements: usize) -> Fleet {
    Fleet { servers: Servers::Postgresql, relays, acknowledgements, runs: 2, losses: 1, mends: WHOLE }
}

/// A fleet of MariaDB: a source waits for one relay, whichever it is, and a relay that has lost its directory stays away from a failover.
fn mariadb(relays: usize) -> Fleet {
    Fleet { servers: Servers::BinlogServers, losses: 0, ..fleet(relays, 1) }
}

/// Longest time for one fleet. The checker reports how far it came.
const LIMIT: Duration = Duration::from_secs(1200);

/// Checks every state, or all that are at most this many actions away from the start.
fn holds(fleet: &Fleet, depth: Option<usize>) {
    let began = Instant::now();
    let checker = fleet.clone().checker().threads(2).timeout(LIMIT);
    let checker = match depth {
        Some(depth) => checker.target_max_depth(depth),
        None => checker,
    };
    let checker = checker.spawn_bfs().join();
    eprintln!(
        "{fleet:?}: {} states, {} actions, {:?}",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    assert!(began.elapsed() < LIMIT, "{fleet:?}: not everything was looked at within {LIMIT:?}");
    checker.assert_no_discovery(LOST);
    checker.assert_no_discovery(TWO);
    if depth.is_none() {
        checker.assert_any_discovery("promoted");
        checker.assert_any_discovery("acknowledged after it");
    }
}

#[test]
fn nothing_is_lost_and_there_is_one_primary() {
    holds(&fleet(1, 1), None);
    holds(&Fleet { losses: 0, ..fleet(2, 1) }, None);
    holds(&fleet(2, 2), None);
    holds(&Fleet { runs: 1, ..fleet(3, 2) }, None);
    holds(&Fleet { losses: 0, ..fleet(3, 2) }, Some(14));
}

#[test]
fn nothing_is_lost_and_there_is_one_source() {
    holds(&mariadb(1), None);
    holds(&Fleet { runs: 1, ..mariadb(3) }, None);
    holds(&mariadb(2), None);
}

/// Checks fleets with more failing relays, which takes some minutes, too long for each day.
#[test]
#[ignore = "takes minutes"]
fn nothing_is_lost_in_larger_fleets() {
    holds(&fleet(2, 1), None);
    holds(&Fleet { losses: 0, ..fleet(3, 2) }, None);
    holds(&Fleet { losses: 0, ..fleet(3, 3) }, None);
    holds(&fleet(3, 2), Some(18));
}

#[test]
#[ignore = "takes minutes"]
fn nothing_is_lost_in_larger_fleets_of_mariadb() {
    holds(&mariadb(3), Some(18));
}

/// Returns the path to a violation of an invariant, with one of the safeguards removed.
fn broken(fleet: &Fleet, property: &'static str) -> Vec<Action> {
    let began = Instant::now();
    let checker = fleet.clone().checker().threads(2).timeout(LIMIT);
    let checker = checker.finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    eprintln!(
        "{fleet:?}: {} states, {} actions, {:?}",
        checker.unique_state_count(),
        checker.max_depth(),
        began.elapsed()
    );
    let path = checker.discovery(property).unwrap_or_else(|| panic!("{fleet:?}: {property:?} was not seen broken"));
    path.into_actions()
}

/// A relay that comes back empty and believes that it has promised nothing: it acknowledges commits of the old primary.
#[test]
fn an_empty_relay_that_forgets_is_found() {
    for fleet in [fleet(1, 1), fleet(3, 2)] {
        let fleet = Fleet { runs: 1, mends: Mends { remembers: false, ..WHOLE }, ..fleet };
        for property in [LOST, TWO] {
            let path = broken(&fleet, property);
            assert!(path.iter().any(|action| matches!(action, Action::Lose { .. })), "{path:?}");
        }
    }
}

/// An overtaken run promotes its node all the same.
#[test]
fn a_term_that_is_not_noted_on_servers_is_found() {
    broken(&Fleet { losses: 0, mends: Mends { notes: false, ..WHOLE }, ..fleet(1, 1) }, TWO);
}

/// The one relay that knows of an election was fenced, and does not answer a moment later.
#[test]
fn an_election_that_is_overlooked_is_found() {
    broken(&Fleet { losses: 0, mends: Mends { keeps_answers: false, ..WHOLE }, ..fleet(1, 1) }, TWO);
}

/// A relay that has lost its directory promises to the same term a second time, to another run.
#[test]
fn two_runs_of_one_term_are_found() {
    broken(&Fleet { mends: Mends { own_terms: false, ..WHOLE }, ..fleet(2, 1) }, LOST);
}

/// Only as many relays as stop all commits, where that is no majority: two runs have one each.
#[test]
fn two_runs_without_a_common_relay_are_found() {
    broken(&Fleet { losses: 0, mends: Mends { majority: false, ..WHOLE }, ..fleet(2, 2) }, TWO);
}

/// A relay that has promised a fence takes what it took before.
#[test]
fn a_fence_that_stops_nothing_is_found() {
    for fleet in [Fleet { losses: 0, ..fleet(1, 1) }, mariadb(2)] {
        let fleet = Fleet { runs: 1, mends: Mends { fences: false, ..WHOLE }, ..fleet };
        for property in [LOST, TWO] {
            broken(&fleet, property);
        }
    }
}

/// A run of MariaDB overlooks a node that was chosen since its first survey.
#[test]
fn a_choice_since_the_survey_is_found() {
    broken(&Fleet { mends: Mends { keeps_answers: false, ..WHOLE }, ..mariadb(2) }, TWO);
}

/// A relay of MariaDB that was told to follow the node of an earlier failover begins to, while the next failover is away from that node.
#[test]
fn a_relay_that_may_still_follow_an_earlier_node_is_found() {
    broken(&Fleet { mends: Mends { leads: false, ..WHOLE }, ..mariadb(2) }, LOST);
}

/// Such a relay begins to between the choice and the promotion, and nobody looks.
#[test]
fn a_relay_that_has_left_its_fence_is_found() {
    broken(&Fleet { mends: Mends { looks: false, ..WHOLE }, ..mariadb(2) }, LOST);
}
