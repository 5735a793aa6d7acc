//! State of the nodes, for people and for programs.

use std::fmt::Write;
use std::time::{Duration, Instant};

use ::relay::RelayAccess;
use serde::Serialize;

use super::postgres::{SUPERUSER, parse_lsn, query_at};
use daemon::Traffic;
use process::http::Remote;
use registry_client::nodes;

/// Longest time to ask one node.
const LIMIT: Duration = Duration::from_millis(1500);

const QUESTION: &str = "SELECT pg_is_in_recovery(), \
     CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, \
     (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()), \
     (SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database), \
     (SELECT timeline_id FROM pg_control_checkpoint()), \
     (SELECT status FROM pg_stat_wal_receiver)";

/// State of a node at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NodeStatus {
    pub(super) name: String,
    pub(super) address: String,
    /// `primary`, `replica`, `relay`, or `down`; for MariaDB also `stale`: a server that takes writes while the relay follows another one.
    pub(super) role: &'static str,
    pub(super) timeline: Option<u32>,
    /// Position written on a primary, replayed on a replica, flushed on a relay.
    pub(super) lsn: Option<String>,
    /// Position of MariaDB, in place of the LSN: the last transaction of each domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gtid: Option<String>,
    /// Bytes behind the primary.
    pub(super) lag_bytes: Option<u64>,
    /// Transactions behind the primary (MariaDB).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lag_transactions: Option<u64>,
    /// Time behind the primary (MariaDB).
    #[serde(skip)]
    pub(super) lag: Duration,
    pub(super) connections: Option<u64>,
    /// True if a replica, or a relay, receives.
    pub(super) streaming: Option<bool>,
    /// Transactions since the server's statistics began.
    pub(super) transactions: Option<u64>,
    /// Error: why the node is down, or does not receive.
    pub(super) error: Option<String>,
}

impl NodeStatus {
    /// Makes the status of a node of which nothing else is known.
    pub(super) fn down(name: String, address: String) -> NodeStatus {
        NodeStatus {
            name,
            address,
            role: "down",
            timeline: None,
            lsn: None,
            gtid: None,
            lag_bytes: None,
            lag_transactions: None,
            lag: Duration::ZERO,
            connections: None,
            streaming: None,
            transactions: None,
            error: None,
        }
    }
}

/// A service of the cluster's own, as the registry sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Registered {
    pub(super) service: String,
    pub(super) instances: u64,
    pub(super) usable: u64,
}

impl std::fmt::Display for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} of {} usable", self.service, self.usable, self.instances)
    }
}

/// Asks the registry at an address for the services of the cluster's nodes; empty if it does not answer.
pub(super) async fn registered(address: &str) -> Vec<Registered> {
    let Ok(remote) = Remote::new(address, None) else { return Vec::new() };
    let path = format!("/v1/namespaces/{}/services", nodes::NAMESPACE);
    let answer = tokio::time::timeout(LIMIT, remote.ask(hyper::Method::GET, &path, None)).await;
    let Ok(Ok(answer)) = answer else { return Vec::new() };
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let list = answer["services"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .map(|service| Registered {
            service: service["service"].as_str().unwrap_or_default().to_owned(),
            instances: number(&service["instances"]),
            usable: number(&service["usable"]),
        })
        .collect()
}

/// Asks all nodes (name, port) at the same time.
pub(super) async fn observe(nodes: &[(String, u16)]) -> Vec<NodeStatus> {
    let asked: Vec<_> = nodes.iter().map(|(name, port)| tokio::spawn(ask(name.clone(), *port))).collect();
    let mut all = Vec::new();
    for node in asked {
        if let Ok(node) = node.await {
            all.push(node);
        }
    }
    fill_lag(&mut all);
    all
}

async fn ask(name: String, port: u16) -> NodeStatus {
    let mut status = NodeStatus::down(name, format!("127.0.0.1:{port}"));
    match query_at("127.0.0.1", port, QUESTION, LIMIT).await {
        Ok(rows) => {
            let field = |index: usize| rows.first().and_then(|row| row.get(index));
            let replica = field(0) == Some("t");
            status.role = if replica { "replica" } else { "primary" };
            status.lsn = field(1).map(str::to_owned);
            status.connections = field(2).and_then(|text| text.parse().ok());
            status.transactions = field(3).and_then(|text| text.parse().ok());
            status.timeline = field(4).and_then(|text| text.parse().ok());
            status.streaming = replica.then(|| field(5) == Some("streaming"));
        }
        Err(error) => status.error = Some(error),
    }
    status
}

/// Asks a relay over its own protocol.
pub(super) async fn observe_relay(address: Option<&str>) -> Option<NodeStatus> {
    let address = address?.to_owned();
    let mut status = relay_status(address.clone());
    let asked = tokio::task::spawn_blocking(move || {
        // The cluster's only relay: its address is its name.
        let (name, address) = (address.as_str(), address.as_str());
        ::relay::probe(&RelayAccess { name, address, user: SUPERUSER, password: None, connector: None })
    });
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(Ok(Ok(probe))) => {
            status.role = "relay";
            status.timeline = Some(probe.timeline);
            status.lsn = Some(probe.position.to_string());
            status.connections = Some(probe.downstreams);
            status.streaming = Some(probe.upstream == "streaming");
            status.error = (probe.upstream != "streaming").then_some(probe.upstream);
        }
        Ok(Ok(Err(error))) => status.error = Some(error.to_string()),
        Ok(Err(error)) => status.error = Some(error.to_string()),
        Err(_) => status.error = Some(format!("no answer within {} s", LIMIT.as_secs_f32())),
    }
    Some(status)
}

/// Makes the status of a relay of which nothing is known yet.
pub(super) fn relay_status(address: String) -> NodeStatus {
    NodeStatus::down("relay".into(), address)
}

/// Fills in the lag of replicas, and of a relay, behind the furthest primary.
pub(super) fn fill_lag(nodes: &mut [NodeStatus]) {
    let lsn = |node: &NodeStatus| node.lsn.as_deref().and_then(parse_lsn);
    let Some(written) = nodes.iter().filter(|node| node.role == "primary").filter_map(lsn).max() else { return };
    for node in nodes.iter_mut().filter(|node| matches!(node.role, "replica" | "relay")) {
        node.lag_bytes = lsn(node).map(|replayed| written.saturating_sub(replayed));
    }
}

/// Computation of rates from totals.
#[derive(Debug, Default)]
pub(super) struct Rates {
    last: Option<Totals>,
}

#[derive(Debug)]
struct Totals {
    at: Instant,
    /// Totals by node.
    transactions: Vec<(String, u64)>,
    queries: u64,
}

/// Rates per second since the last time.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rate {
    /// Rates by node, in the order of the nodes.
    pub(super) transactions: Vec<Option<f64>>,
    /// Statements through the proxy.
    pub(super) queries: Option<f64>,
}

impl Rates {
    pub(super) fn next(&mut self, now: Instant, nodes: &[NodeStatus], traffic: Traffic) -> Rate {
        let transactions: Vec<(String, u64)> =
            nodes.iter().filter_map(|node| Some((node.name.clone(), node.transactions?))).collect();
        let last = self.last.replace(Totals { at: now, transactions, queries: traffic.queries });
        let Some(last) = last else { return Rate::default() };
        let seconds = now.saturating_duration_since(last.at).as_secs_f64();
        if seconds <= 0.0 {
            return Rate::default();
        }
        // A server that was restarted counts from zero again.
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let transactions = nodes.iter().map(|node| {
            let (_, old) = last.transactions.iter().find(|(name, _)| *name == node.name)?;
            Some(rate(node.transactions?, *old))
        });
        Rate { transactions: transactions.collect(), queries: Some(rate(traffic.queries, last.queries)) }
    }
}

/// Makes the table; without rates it has no column for them.
pub(super) fn table(nodes: &[NodeStatus], rate: Option<&Rate>) -> String {
    let (timeline, position) = match nodes.iter().any(|node| node.gtid.is_some()) {
        true => ("epoch", "gtid"),
        false => ("timeline", "lsn"),
    };
    let mut rows =
        vec![["node", "role", "address", timeline, position, "lag", "connections", "tx/s"].map(str::to_owned)];
    for (index, node) in nodes.iter().enumerate() {
        let role = match (node.streaming, node.role) {
            (Some(false), "relay") => "relay (not receiving)",
            (Some(false), "replica") => "replica (not streaming)",
            _ => node.role,
        };
        let number = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
        let per_second = rate.and_then(|rate| rate.transactions.get(index).copied().flatten());
        rows.push([
            node.name.clone(),
            role.into(),
            node.address.clone(),
            number(node.timeline.map(u64::from)),
            node.lsn.as_ref().or(node.gtid.as_ref()).cloned().unwrap_or_else(|| "-".into()),
            match (node.lag_bytes, node.lag_transactions) {
                (Some(lag), _) => bytes(lag),
                (None, Some(lag)) => format!("{lag} tx"),
                (None, None) => "-".into(),
            },
            number(node.connections),
            per_second.map_or("-".into(), |value| format!("{value:.0}")),
        ]);
    }
    let columns = if rate.is_some() { 8 } else { 7 };
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate().take(columns) {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn bytes(count: u64) -> String {
    match count {
        0..10_240 => format!("{count} B"),
        10_240..10_485_760 => format!("{} KiB", count >> 10),
        _ => format!("{} MiB", count >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, role: &'static str, lsn: &str, transactions: u64) -> NodeStatus {
        NodeStatus {
            role,
            timeline: Some(1),
            lsn: Some(lsn.into()),
            connections: Some(2),
            streaming: (role == "replica").then_some(true),
            transactions: Some(transactions),
            ..NodeStatus::down(name.into(), "127.0.0.1:1".into())
        }
    }

    fn down(name: &str) -> NodeStatus {
        NodeStatus {
            role: "down",
            timeline: None,
            lsn: None,
            connections: None,
            streaming: None,
            transactions: None,
            ..node(name, "down", "", 0)
        }
    }

    #[test]
    fn golden_table() {
        let mut nodes =
            vec![node("node1", "primary", "0/5000", 5), node("node2", "replica", "0/4000", 5), down("node3")];
        fill_lag(&mut nodes);
        let expected = "\
node   role     address      timeline  lsn     lag     connections
node1  primary  127.0.0.1:1  1         0/5000  -       2
node2  replica  127.0.0.1:1  1         0/4000  4096 B  2
node3  down     127.0.0.1:1  -         -       -       -
";
        assert_eq!(table(&nodes, None), expected);
        let rate = Rate { transactions: vec![Some(12.4), None, None], queries: None };
        assert!(table(&nodes, Some(&rate)).lines().nth(1).is_some_and(|line| line.ends_with("12")));
    }

    #[test]
    fn rates() {
        let start = Instant::now();
        let mut rates = Rates::default();
        let traffic = |queries| Traffic { clients: 1, queries };
        let first = rates.next(start, &[node("a", "primary", "0/1", 100)], traffic(10));
        assert_eq!(first, Rate::default());
        let nodes = [node("a", "primary", "0/1", 120), node("b", "replica", "0/1", 7), down("c")];
        let second = rates.next(start + Duration::from_secs(2), &nodes, traffic(50));
        assert_eq!(second, Rate { transactions: vec![Some(10.0), None, None], queries: Some(20.0) });
        let third = rates.next(start + Duration::from_secs(3), &[node("a", "primary", "0/1", 1)], traffic(50));
        assert_eq!(third.transactions, vec![Some(0.0)], "restarted");
    }
}
