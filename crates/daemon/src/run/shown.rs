//! Metrics of a proxy, of its cluster and of the relays that report to the proxy.

use std::sync::atomic::Ordering;

use proxy::metrics::{BUCKETS, Snapshot};
use proxy::traffic::RuleReport;
use topology::{NodeView, OracleTimes, RelayStatus, Role, View, WEIGHT_SCALE};

use metrics::{Exposition, Type};

/// Adds the workers' metrics. The names are the proxy's; the unit becomes seconds, counters get their suffix.
pub(super) fn describe_proxy(snapshot: &Snapshot, exposition: &mut Exposition) {
    for (name, help, value) in &snapshot.counters {
        exposition.counter(&format!("{name}_total"), help, *value);
    }
    for (name, help, value) in &snapshot.gauges {
        exposition.gauge(name, help, *value);
    }
    let mut pins = exposition.metric(Type::Counter, "pins_total", "Clients that became pinned, by reason");
    for (reason, count) in &snapshot.pins {
        pins.sample(&[("reason", reason)], *count);
    }
    for (name, help, histogram) in &snapshot.histograms {
        let name = name.replace("_micros", "_seconds");
        let buckets: Vec<(f64, u64)> =
            BUCKETS.iter().zip(&histogram.buckets).map(|(bound, count)| (*bound as f64 / 1e6, *count)).collect();
        let above = histogram.buckets.last().copied().unwrap_or(0);
        exposition.histogram(&name, help, &buckets, above, histogram.sum_micros as f64 / 1e6);
    }
}

/// Adds the cluster's metrics.
pub(crate) fn describe_view(view: &View, exposition: &mut Exposition) {
    exposition.gauge("topology_epoch", "Grows with each change of the cluster's picture.", view.epoch);
    exposition.gauge(
        "topology_timeline",
        "Timeline of the current or last primary; 0: its servers tell none.",
        view.term.told_timeline(),
    );
    exposition.gauge("topology_primary_known", "1 while there is a primary.", view.primary.is_some());
    let mut role = exposition.metric(Type::Gauge, "node_role", "1 for the role that a node has.");
    for node in &view.nodes {
        for (name, value) in
            [("unknown", Role::Unknown), ("primary", Role::Primary), ("replica", Role::Replica), ("stale", Role::Stale)]
        {
            role.sample(&[("node", &node.node.name), ("role", name)], node.role == value);
        }
    }
    let mut each = |name, help, value: &dyn Fn(&NodeView) -> f64| {
        let mut metric = exposition.metric(Type::Gauge, name, help);
        for node in &view.nodes {
            metric.sample(&[("node", &node.node.name)], value(node));
        }
    };
    each("node_usable", "1 while a node may be given new work.", &|node| f64::from(u8::from(node.usable)));
    each("node_weight", "Share of reads relative to the other nodes, lowered during slow start.", &|node| {
        f64::from(node.weight) / f64::from(WEIGHT_SCALE)
    });
    each("node_lag_seconds", "Time a replica is behind, by the last probe.", &|node| {
        node.node.lag_ms.load(Ordering::Relaxed) as f64 / 1000.0
    });
    each("node_lag_bytes", "Bytes a replica's replay is behind, by the last probe.", &|node| {
        node.node.lag_bytes.load(Ordering::Relaxed) as f64
    });
    let help = "Bytes of WAL that a node keeps for the replication slot that is furthest behind.";
    each("node_slots_held_bytes", help, &|node| node.node.slots_held.load(Ordering::Relaxed) as f64);
}

/// Adds the nodes' session settings: the node's name, the number that differ from the primary's, and true if the node refuses the primary's.
pub(super) fn describe_settings(nodes: &[(String, usize, bool)], exposition: &mut Exposition) {
    let help = "Session settings of a node that are others than the primary's.";
    let mut differ = exposition.metric(Type::Gauge, "node_settings_differ", help);
    for (name, count, _) in nodes {
        differ.sample(&[("node", name)], *count as f64);
    }
    let help = "1 while a node refuses the primary's session settings, and gets no reads of a database and user.";
    let mut refused = exposition.metric(Type::Gauge, "node_settings_refused", help);
    for (name, _, refuses) in nodes {
        refused.sample(&[("node", name)], *refuses);
    }
}

/// Adds the traffic rules, including temporary ones: there are at most a hundred.
pub(super) fn describe_traffic(rules: &[RuleReport], exposition: &mut Exposition) {
    type Count = fn(&RuleReport) -> u64;
    let counts: [(&str, Type, &str, Count); 3] = [
        ("traffic_rule_passed_total", Type::Counter, "Statements that a traffic rule has let pass", |of| of.passed),
        (
            "traffic_rule_refused_total",
            Type::Counter,
            "Statements that a traffic rule has refused; with dry_run: that it would have",
            |of| of.refused,
        ),
        (
            "traffic_rule_running",
            Type::Gauge,
            "Clients that run a statement under a traffic rule that limits how many",
            |of| of.running,
        ),
    ];
    if rules.is_empty() {
        return;
    }
    for (name, kind, help, count) in counts {
        let mut metric = exposition.metric(kind, name, help);
        for of in rules {
            metric.sample(&[("rule", &of.rule.name)], count(of));
        }
    }
}

/// Adds the relays that report to the proxy.
pub(super) fn describe_relays(relays: &[RelayStatus], exposition: &mut Exposition) {
    let help = "1 while a relay confirms what is durable on the primary's timeline.";
    let mut confirms = exposition.metric(Type::Gauge, "cluster_relay_confirms", help);
    for relay in relays {
        confirms.sample(&[("relay", &relay.name)], relay.confirms);
    }
    let help = "Position that a relay has last confirmed.";
    let mut confirmed = exposition.metric(Type::Gauge, "cluster_relay_confirmed_bytes", help);
    for relay in relays {
        confirmed.sample(&[("relay", &relay.name)], relay.told.map_or(0, |(_, at)| at.0));
    }
}

/// Adds the oracle's metrics.
pub(super) fn describe_oracle(times: &OracleTimes, exposition: &mut Exposition) {
    for (name, help, times) in [
        ("oracle_wait_seconds", "Time from when a batch was wanted until it was sent.", &times.waited),
        ("oracle_round_trip_seconds", "Time from sending a batch's question to its answer.", &times.round_trip),
    ] {
        let bounds = topology::times::BUCKETS.iter().map(|bound| *bound as f64 / 1e6);
        let buckets: Vec<(f64, u64)> = bounds.zip(times.buckets).collect();
        let above = times.buckets.last().copied().unwrap_or(0);
        exposition.histogram(name, help, &buckets, above, times.sum_micros as f64 / 1e6);
    }
    exposition.counter("oracle_failed_total", "Batches that were not answered.", times.failed);
}

#[cfg(test)]
mod tests {
    use proxy::metrics::HistogramSnapshot;

    use super::*;

    #[test]
    fn histograms_are_in_seconds() {
        let mut buckets = [0; BUCKETS.len() + 1];
        buckets[0] = 1;
        buckets[BUCKETS.len()] = 2;
        let snapshot = Snapshot {
            counters: vec![("cancels", "Cancels", 4)],
            histograms: vec![("wait_micros", "Waits", HistogramSnapshot { buckets, sum_micros: 1_500_000 })],
            ..Snapshot::default()
        };
        let mut exposition = Exposition::default();
        describe_proxy(&snapshot, &mut exposition);
        let text = exposition.render();
        for line in [
            "kingpost_cancels_total 4",
            "kingpost_wait_seconds_bucket{le=\"0.00005\"} 1",
            "kingpost_wait_seconds_bucket{le=\"+Inf\"} 3",
            "kingpost_wait_seconds_sum 1.5",
            "kingpost_wait_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
