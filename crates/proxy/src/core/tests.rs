//! The core against a model of its environment: many clients, few servers, every order of events.

#![allow(clippy::unwrap_used)]

mod backend;
mod heard;
mod script;
mod secure;
mod world;

use std::sync::Arc;

use super::CoreMessage;
use crate::config::{AuthMethod, DatabaseConfig, ProxyConfig, UnknownFunctions};
use crate::console::Operation;
use crate::settings::Settings;
use script::{Random, Style};
use world::{Plan, World};

/// Returns the seeds: `KINGPOST_SEEDS` of them, or `default`; `KINGPOST_SEED` runs a single one, and `KINGPOST_TRACE` shows the messages.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    match number("KINGPOST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KINGPOST_SEEDS").unwrap_or(default),
    }
}

fn plan(seed: u64, style: Style) -> Plan {
    let mut random = Random(seed ^ 0x5eed);
    let unknown_functions = *random.pick(&[UnknownFunctions::Reset, UnknownFunctions::Pin]);
    // A client that keeps its connection gets PostgreSQL's own reports there.
    let style = Style { describes: unknown_functions == UnknownFunctions::Pin, ..style };
    Plan {
        seed,
        cores: 1 + random.below(2),
        nodes: 1 + random.below(3),
        clients: 1 + random.below(6),
        requests: 1 + random.below(12),
        pool: 1 + random.below(3),
        prepared_per_server: *random.pick(&[2, 4, 100]),
        style,
        leaves: random.one_in(2),
        faults: false,
        operator: random.one_in(3),
        lanes: random.one_in(2),
        scarce: false,
        gated: false,
        strong: false,
        unknown_functions,
        lies: false,
    }
}

#[test]
fn every_client_hears_what_a_server_alone_would_say() {
    let (mut early, mut runs) = (0, 0);
    for seed in seeds(500) {
        let mut random = Random(!seed);
        let style = Style {
            pipelined: random.one_in(2),
            stateful: true,
            session: random.one_in(2),
            resets: false,
            cancels: false,
            listens: false,
            reads: false,
            functions: random.one_in(2),
            describes: false,
        };
        let mut world = World::new(plan(seed, style));
        world.run();
        early += world.counted(|metrics| metrics.early_reads.get());
        runs += 1;
    }
    assert!(runs < 100 || early > 0, "no transaction has read on a replica");
}

#[test]
fn a_connection_on_its_way_between_workers_is_renewed_as_all_others() {
    let (mut kept, mut renewed) = (0, 0);
    for seed in 0..60 {
        let style = Style { stateful: true, cancels: false, ..under_faults(seed, false) };
        let world = || {
            let mut world = World::new(Plan { cores: 2, operator: false, ..plan(seed, style) });
            world.run();
            world
        };
        let other = |database: &str| {
            let database =
                DatabaseConfig { name: database.into(), dbname: Some("v2".into()), ..DatabaseConfig::default() };
            let config = ProxyConfig { auth: AuthMethod::Trust, databases: vec![database], ..ProxyConfig::default() };
            Some(CoreMessage::Settings(Arc::new(Settings::new(&config).unwrap()), None))
        };
        let reconnect = |_: &str| Some(CoreMessage::Operate(Operation::Reconnect(None)));
        kept += u32::from(world().is_kept(|_| None) == Some(true));
        for is_kept in [world().is_kept(other), world().is_kept(reconnect)] {
            assert_ne!(is_kept, Some(true), "seed {seed}");
            renewed += u32::from(is_kept == Some(false));
        }
    }
    assert!(kept > 5 && renewed > 10, "{kept} {renewed}");
}

#[test]
fn nothing_is_lost_or_done_twice_when_servers_are_lost() {
    for seed in seeds(300) {
        let style = under_faults(seed, false);
        World::new(Plan { faults: true, ..plan(seed, style) }).run();
    }
}

#[test]
fn who_listens_hears_of_everything_or_is_closed() {
    let (mut told, mut runs) = (0, 0);
    for seed in seeds(300) {
        // Without faults no client may be closed; with them a client learns so that it may have missed notifications.
        let faults = seed % 2 == 0;
        let style = under_faults(seed, false);
        let style =
            Style { listens: true, session: !faults && seed % 3 == 0, stateful: !faults, cancels: false, ..style };
        let mut world = World::new(Plan { faults, ..plan(seed, style) });
        world.run();
        told += world.counted(|metrics| metrics.notifications_told.get());
        runs += 1;
    }
    assert!(runs < 100 || told > 0, "nobody was told anything by a shared connection");
}

#[test]
fn nobody_hears_of_a_commit_before_the_relay_has_it() {
    let mut held = 0;
    for seed in seeds(200) {
        // Faults take the primary from held clients. Without them all clients must finally get the answers that a single server would give.
        let faults = seed % 2 == 0;
        let style = under_faults(seed, false);
        let style = if faults { style } else { Style { stateful: true, cancels: false, ..style } };
        let mut world = World::new(Plan { gated: true, faults, ..plan(seed, style) });
        world.run();
        held += world.counted(|metrics| metrics.gated.get());
    }
    assert!(held > 0, "nobody was held");
}

#[test]
fn strong_sessions_hear_what_a_server_alone_would_say_once_it_is_proven() {
    let mut asked = 0;
    for seed in seeds(200) {
        let faults = seed % 2 == 0;
        let style = under_faults(seed, true);
        let style = if faults { style } else { Style { stateful: true, cancels: false, ..style } };
        let mut world = World::new(Plan { strong: true, gated: seed % 3 == 0, faults, ..plan(seed, style) });
        world.run();
        asked += world.proofs();
    }
    assert!(asked > 0, "nobody asked for proof");
}

/// Tests the simulation itself: with a relay that confirms too much, answers come too early.
#[test]
fn an_answer_before_the_relay_has_it_is_noticed() {
    let noticed = |seed: &u64| {
        let plan = Plan { gated: true, faults: true, lies: true, ..plan(*seed, under_faults(*seed, false)) };
        let ended = std::panic::catch_unwind(|| World::new(plan).run());
        ended.is_err_and(|why| why.downcast_ref::<String>().is_some_and(|text| text.contains("is told that")))
    };
    assert!(seeds(40).into_iter().any(|seed| noticed(&seed)), "nobody notices");
}

#[test]
fn without_descriptors_workers_share_what_is_open() {
    for seed in seeds(200) {
        let mut random = Random(!seed);
        let style = Style {
            pipelined: random.one_in(2),
            stateful: random.one_in(2),
            session: false,
            resets: false,
            cancels: false,
            listens: false,
            reads: random.one_in(2),
            functions: false,
            describes: false,
        };
        World::new(Plan { cores: 2, scarce: true, ..plan(seed, style) }).run();
    }
}

/// Returns the clients' style while servers are lost.
fn under_faults(seed: u64, reads: bool) -> Style {
    let mut random = Random(!seed);
    Style {
        pipelined: random.one_in(3),
        stateful: false,
        session: false,
        resets: random.one_in(3),
        cancels: random.one_in(2),
        listens: false,
        reads,
        functions: false,
        describes: false,
    }
}

/// Returns a plan with many clients, few connections, and mostly reads.
fn crowd(seed: u64, style: Style) -> Plan {
    let mut random = Random(seed ^ 0xc0de);
    Plan {
        clients: 4 + random.below(8),
        requests: 10 + random.below(20),
        pool: 1 + random.below(2),
        lanes: true,
        ..plan(seed, style)
    }
}

/// Counters of lanes over all runs: a run without lanes tests nothing.
#[derive(Debug, Default)]
struct Seen {
    runs: u64,
    with_lanes: u64,
    statements: u64,
    moved: u64,
    redone: u64,
    stalls: u64,
    lost: u64,
    checked: u64,
    behind: u64,
}

impl Seen {
    fn add(&mut self, world: &World) {
        let statements = world.counted(|m| m.lane_statements.get());
        self.runs += 1;
        self.with_lanes += u64::from(statements > 0);
        self.statements += statements;
        self.moved += world.counted(|m| m.lane_moved.get());
        self.redone += world.counted(|m| m.lane_redone.get());
        self.stalls += world.counted(|m| m.lane_stalls.get());
        self.lost += world.counted(|m| m.replays_lost.get());
        self.checked += world.counted(|m| m.replay_checks.get());
        self.behind += world.counted(|m| m.replay_checks_behind.get());
    }
}

/// Runs a plan for each seed. In most of the runs lanes must have been used.
fn run_with_lanes(plan_of: impl Fn(u64) -> Plan) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds(400) {
        let mut world = World::new(plan_of(seed));
        world.run();
        seen.add(&world);
    }
    eprintln!("{seen:?}");
    assert!(seen.runs < 100 || seen.with_lanes * 10 > seen.runs * 9, "{seen:?}");
    seen
}

#[test]
fn in_shared_lanes_every_client_hears_its_own_answers() {
    let seen = run_with_lanes(|seed| {
        let mut random = Random(!seed);
        let style = Style {
            pipelined: random.one_in(3),
            stateful: true,
            session: random.one_in(4),
            resets: false,
            cancels: false,
            listens: false,
            reads: true,
            functions: random.one_in(2),
            describes: false,
        };
        crowd(seed, style)
    });
    assert!(seen.runs < 100 || (seen.moved > 0 && seen.stalls > 0), "{seen:?}");
}

#[test]
fn in_shared_lanes_nobody_is_harmed_by_cancels_and_lost_servers() {
    let seen = run_with_lanes(|seed| Plan { faults: true, ..crowd(seed, under_faults(seed, true)) });
    assert!(seen.runs < 100 || (seen.moved > 0 && seen.lost > 0), "{seen:?}");
    assert!(seen.runs < 100 || (seen.behind > 0 && seen.checked > 2 * seen.behind), "{seen:?}");
}
