//! The core against a model of the world: many clients, few servers, every order of events.

#![allow(clippy::unwrap_used)]

mod backend;
mod script;
mod secure;
mod world;

use script::{Random, Style};
use world::{Plan, World};

/// As many as `KINGPOST_SEEDS` says, else `default`; `KINGPOST_SEED` runs a single one, and `KINGPOST_TRACE` shows what is sent.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    match number("KINGPOST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KINGPOST_SEEDS").unwrap_or(default),
    }
}

fn plan(seed: u64, style: Style) -> Plan {
    let mut random = Random(seed ^ 0x5eed);
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
    }
}

#[test]
fn every_client_hears_what_a_server_alone_would_say() {
    for seed in seeds(500) {
        let mut random = Random(!seed);
        let style = Style { pipelined: random.one_in(2), stateful: true, session: random.one_in(2), cancels: false };
        World::new(plan(seed, style)).run();
    }
}

#[test]
fn nothing_is_lost_or_done_twice_when_servers_are_lost() {
    for seed in seeds(300) {
        let mut random = Random(!seed);
        let style = Style { pipelined: random.one_in(3), stateful: false, session: false, cancels: random.one_in(2) };
        World::new(Plan { faults: true, ..plan(seed, style) }).run();
    }
}
