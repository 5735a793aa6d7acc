//! Random kills, network failures and switchovers, while clients write and read; the answers to the clients are compared with the data.
//!
//! The sequence of faults comes from a seed, which is printed: `KINGPOST_TORTURE_SEED` repeats it, and `KINGPOST_TORTURE_FAILOVERS` sets the number
//! of changes of the primary (`make torture`): a quarter of them while commits wait in PostgreSQL's own synchronous replication, a quarter while they
//! wait in the proxy's gate, a quarter while they wait there and leave their flush to its queries; and a quarter in a fleet with three relays and two
//! watchers, which decide by themselves. The timing depends on the machine as well: a seed repeats the faults, not their moments.

mod agents;
mod backups;
mod cut_network;
mod cut_off;
mod history;
mod quorum;
pub(crate) mod random;
mod scene;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use kingpost_tests::{Link, ShowLogs};

use crate::common::only_kingpost;
use agents::Agents;
use history::Violation;
use quorum::Quorum;
use world::{Durability, World};

pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a number")))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a random run, as those that wait in the gate: make test-long"]
async fn nothing_acknowledged_is_lost_whatever_dies() {
    torture(Durability::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_the_gate_let_through_is_lost_whatever_dies() {
    torture(Durability::Gate).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a random run, as those that wait in the gate: make test-long"]
async fn nothing_that_was_flushed_with_others_is_lost_whatever_dies() {
    torture(Durability::Flush).await;
}

/// Runs a quarter of the failovers.
async fn torture(durability: Durability) {
    if only_kingpost() {
        return;
    }
    let seed = seed();
    let failovers = number("KINGPOST_TORTURE_FAILOVERS").map_or(2, |all| all.div_ceil(4));
    eprintln!("{durability:?}: KINGPOST_TORTURE_SEED={seed}, {failovers} failovers");
    let mut world = World::start(seed, durability).await;
    let dir = world.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let clients = world.clients(6).await;
    clients.progress(&world, 50).await;
    let mut checked = 0;
    while world.failovers < failovers {
        world.fault().await;
        clients.progress(&world, 30).await;
        if world.failovers >= checked + 20 {
            checked = world.failovers;
            assert_none(&clients.check(&world).await, &world);
        }
    }
    let summary = clients.end(&world).await;
    let violations = clients.check(&world).await;
    eprintln!(
        "{durability:?}: {} failovers and switchovers, {} other faults; {summary}",
        world.failovers, world.others
    );
    assert_none(&violations, &world);
}

pub(crate) fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    number("KINGPOST_TORTURE_SEED").unwrap_or(u64::from(now.subsec_nanos()))
}

/// Three relays, of which a commit waits for two, and watchers that decide: every kind of fault of one part, and of some pairs.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_there_is_one_primary_with_three_relays() {
    if only_kingpost() {
        return;
    }
    let seed = seed();
    let failovers = number("KINGPOST_TORTURE_FAILOVERS").map_or(2, |all| all.div_ceil(4));
    eprintln!("quorum: KINGPOST_TORTURE_SEED={seed}, {failovers} failovers");
    let Some(mut world) = Quorum::start(seed).await else { return };
    let dir = world.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let clients = world.clients(4);
    clients.progress(&world, 50).await;
    let (began, mut checked) = (std::time::Instant::now(), 0);
    let check = async |world: &Quorum, clients: &history::Clients| {
        let (acknowledged, lost) = world.lost_directly().await;
        assert!(
            lost.is_empty(),
            "seed {}, after {} failovers: {} of {acknowledged} that were acknowledged by a server directly are lost, such as {:?}\nfaults: {}",
            world.seed,
            world.failovers,
            lost.len(),
            &lost[..lost.len().min(10)],
            world.faults.join("\n")
        );
        let violations = clients.check(world).await;
        assert!(
            violations.is_empty(),
            "seed {}, after {} failovers: {} violations, such as {:?}\nfaults: {}",
            world.seed,
            world.failovers,
            violations.len(),
            &violations[..violations.len().min(10)],
            world.faults.join("\n")
        );
        acknowledged
    };
    while world.failovers < failovers {
        world.fault().await;
        clients.progress(&world, 30).await;
        if world.failovers >= checked + 20 {
            checked = world.failovers;
            check(&world, &clients).await;
            eprintln!("{} failovers, {:?}", world.failovers, began.elapsed());
        }
    }
    let summary = clients.end(&world).await;
    let directly = check(&world, &clients).await;
    eprintln!(
        "quorum: seed {seed}, {} failovers and switchovers, {} other faults, {} relays begun anew, in {:?}; {summary}; {directly} acknowledged by a server directly",
        world.failovers,
        world.others,
        world.resets,
        began.elapsed()
    );
}

/// Servers with agents: `KINGPOST_AGENTS_SEEDS` seeds from the given one on, each with a fleet of its own and `KINGPOST_AGENTS_FAULTS` faults of one
/// part or two.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a random run that waits for leases: scripts/test-long"]
async fn agents_bring_everything_back_and_never_two_servers_take_writes() {
    if only_kingpost() {
        return;
    }
    let first = seed();
    let (mut failovers, mut due) = (0, 0);
    for seed in (0..number("KINGPOST_AGENTS_SEEDS").unwrap_or(1)).map(|more| first.wrapping_add(more)) {
        eprintln!("agents: KINGPOST_TORTURE_SEED={seed}");
        let mut fleet = Agents::start(seed).await;
        let dir = fleet.cluster.dir().to_owned();
        let _logs = ShowLogs(&dir);
        let clients = fleet.clients(4);
        clients.progress(&fleet, 50).await;
        for _ in 0..number("KINGPOST_AGENTS_FAULTS").unwrap_or(2) {
            fleet.random_fault(&clients).await;
            fleet.assert_one_primary();
        }
        let summary = clients.end(&fleet).await;
        let violations = clients.check(&fleet).await;
        let faults = fleet.faults.join("\n");
        assert!(
            violations.is_empty(),
            "seed {seed}: {} violations, such as {:?}\n{faults}",
            violations.len(),
            violations.first()
        );
        let asynchronous = fleet.assert_one_primary();
        eprintln!(
            "agents: seed {seed}: {} failovers, {} due; {} relays begun anew; {summary}; {asynchronous} asynchronous",
            fleet.failovers, fleet.due, fleet.relays_reset
        );
        (failovers, due) = (failovers + fleet.failovers, due + fleet.due);
    }
    eprintln!("agents: {failovers} failovers; {due} faults asked for one");
    // A watcher that does nothing leaves every other check true.
    assert!(due == 0 || failovers > 0, "seeds from {first}: {due} faults asked for a failover, and there was none");
}

fn assert_none(violations: &[Violation], world: &World) {
    assert!(
        violations.is_empty(),
        "seed {}, after {} failovers: {} violations, such as {:?}\nfaults: {}",
        world.seed,
        world.failovers,
        violations.len(),
        &violations[..violations.len().min(10)],
        world.faults.join(", ")
    );
}

/// Test of the suite itself: commits that a gate releases too early must be found lost. This gate may, by its configuration.
#[tokio::test(flavor = "multi_thread")]
async fn commits_that_are_answered_early_are_found_lost() {
    if only_kingpost() {
        return;
    }
    let mut world = World::start(1, Durability::Early).await;
    let dir = world.cluster.dir().to_owned();
    let _logs = ShowLogs(&dir);
    let clients = world.clients(4).await;
    clients.progress(&world, 20).await;
    // Cut, not silent: data held back by a silent link still arrives when the link is mended.
    world.relay_link(Link::Cut);
    clients.progress(&world, 50).await;
    world.primary().kill9().await;
    world.relay_link(Link::Up);
    world.fail_over(&["failover", "--force"]).await;
    clients.progress(&world, 20).await;
    let summary = clients.end(&world).await;
    let violations = clients.check(&world).await;
    let lost = violations.iter().filter(|violation| matches!(violation, Violation::Lost { .. })).count();
    assert!(lost >= 20, "{lost} are found lost; {summary}");
}
