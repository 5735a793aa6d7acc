//! `SHOW GATE` and `SHOW RELAYS`: the held commits, and the progress of the relays.

use topology::{RelayStatus, Topology};
use watermark::Lsn;

use super::table::ColumnType::{Number, Text};
use super::table::{Table, Value};
use crate::core::report::{GateReport, PoolReport};

/// Adds the report of another worker for the same pool.
pub(super) fn add(sum: &mut Option<GateReport>, part: Option<GateReport>) {
    match (sum.as_mut(), part) {
        (Some(sum), Some(part)) => {
            sum.held += part.held;
            sum.longest = sum.longest.max(part.longest);
            sum.lazy |= part.lazy;
            sum.degraded |= part.degraded;
        }
        // Workers apply a reload one after another.
        (None, part) => *sum = part,
        (Some(_), None) => {}
    }
}

/// Returns the state of a pool's commits in a short phrase.
fn state(gate: &GateReport, confirming: usize) -> &'static str {
    match (gate.degraded, gate.settings.degrade) {
        (true, true) => "degraded: local",
        (true, false) => "degraded: wait",
        (false, _) if confirming < gate.settings.relays => "too few relays",
        (false, _) => "durable",
    }
}

/// Returns a table with a row for each pool with a commit gate.
pub(super) fn gate(pools: &[PoolReport], topology: &Topology) -> Table {
    let mut table = Table::new(&[
        ("database", Text),
        ("user", Text),
        ("durability", Text),
        ("state", Text),
        ("held", Number),
        ("longest_us", Number),
        ("confirming", Number),
        ("durable_lsn", Text),
        ("primary_lsn", Text),
        ("lag_bytes", Number),
        ("flush", Text),
        ("read_barrier", Text),
    ]);
    let durable = topology.durable();
    let confirming = topology.confirming();
    let primary = topology.oracle().newest();
    for pool in pools {
        let Some(gate) = &pool.gate else { continue };
        let mark = durable.mark(gate.settings.relays).map_or(Lsn(0), |mark| mark.get());
        // Positions of another timeline are not comparable.
        let primary = primary.filter(|at| at.term == u64::from(durable.term.timeline)).map(|at| at.lsn);
        let lag = primary.map(|at| at.0.saturating_sub(mark.0));
        table.row(vec![
            (*pool.database).into(),
            (*pool.user).into(),
            durability(gate.settings.relays).into(),
            state(gate, confirming).into(),
            gate.held.into(),
            u64::try_from(gate.longest.as_micros()).unwrap_or(u64::MAX).into(),
            confirming.into(),
            mark.to_string().into(),
            primary.map(|at| at.to_string()).into(),
            lag.into(),
            if gate.lazy { "batch" } else { "commit" }.into(),
            if gate.settings.barrier { "on" } else { "off" }.into(),
        ]);
    }
    table
}

/// Returns the durability as written in the configuration.
fn durability(relays: usize) -> String {
    if relays == 1 { "relay".into() } else { format!("quorum({relays})") }
}

/// Returns a table with a row for each configured relay.
pub(super) fn relays(relays: &[RelayStatus]) -> Table {
    let mut table = Table::new(&[
        ("name", Text),
        ("address", Text),
        ("confirms", Text),
        ("timeline", Number),
        ("confirmed_lsn", Text),
        ("error", Text),
    ]);
    for relay in relays {
        let (timeline, at) = match relay.told {
            Some((timeline, at)) => (Value::from(u64::from(timeline)), Value::from(at.to_string())),
            None => (Value::Null, Value::Null),
        };
        table.row(vec![
            relay.name.as_str().into(),
            relay.address.as_str().into(),
            if relay.confirms { "yes" } else { "no" }.into(),
            timeline,
            at,
            relay.error.as_deref().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::CommitGate;

    fn report(relays: usize, degrade: bool, degraded: bool) -> GateReport {
        let settings = CommitGate { relays, degrade, barrier: false };
        GateReport { settings, lazy: false, degraded, held: 2, longest: Duration::from_millis(3) }
    }

    #[test]
    fn states() {
        for (gate, confirming, expected) in [
            (report(1, false, false), 1, "durable"),
            (report(2, false, false), 1, "too few relays"),
            (report(1, false, true), 0, "degraded: wait"),
            (report(1, true, true), 0, "degraded: local"),
            (report(1, true, false), 0, "too few relays"),
        ] {
            assert_eq!(state(&gate, confirming), expected, "{gate:?} {confirming}");
        }
    }

    #[test]
    fn parts_are_added_up() {
        let mut sum = None;
        add(&mut sum, None);
        assert_eq!(sum, None);
        add(&mut sum, Some(report(1, false, false)));
        add(
            &mut sum,
            Some(GateReport { longest: Duration::from_millis(9), degraded: true, ..report(1, false, false) }),
        );
        add(&mut sum, None);
        let sum = sum.expect("two parts were gated");
        assert_eq!((sum.held, sum.longest, sum.degraded), (4, Duration::from_millis(9), true));
    }
}
