//! State of the servers and the relay of a local cluster of MariaDB or MySQL, asked over their own protocols.

use std::time::Duration;

use ::binlog::gtid::State;
use ::binlog::protocol::reply::Row;
use ::relay::{BinlogStanding, Order};

use super::super::status::{NodeStatus, relay_status};
use super::family::Family;
use super::server::session;

/// Longest time to ask one server, or the relay.
const LIMIT: Duration = Duration::from_millis(1500);

/// Asks all servers (name, port) and the relay; returns the servers in their order, then the relay.
pub(crate) async fn observe(
    family: &Family,
    nodes: &[(String, u16)],
    relay: Option<&str>,
    secret: &str,
) -> Vec<NodeStatus> {
    let (question, replication, dialect) = (family.question, family.replication, family.dialect);
    let asked: Vec<_> = nodes
        .iter()
        .map(|(name, port)| {
            let (name, address, secret) = (name.clone(), format!("127.0.0.1:{port}"), secret.to_owned());
            tokio::spawn(async move {
                let rows = session(&address, &secret, LIMIT, move |session| {
                    Ok((session.query(question)?, session.query(replication)?))
                });
                let rows = rows.await;
                (name, address, rows)
            })
        })
        .collect();
    let standing = match relay {
        Some(address) => {
            Some((address, session(address, secret, LIMIT, move |session| session.order(&Order::Look, dialect)).await))
        }
        None => None,
    };
    let upstream =
        standing.as_ref().and_then(|(_, standing)| standing.as_ref().ok()).map(|relay| relay.upstream.as_str());
    let mut all = Vec::new();
    for node in asked {
        let Ok((name, address, rows)) = node.await else { continue };
        all.push(match rows {
            Ok((rows, slave)) => server(name, address, rows.first(), slave.first(), upstream),
            Err(error) => NodeStatus { error: Some(error), ..NodeStatus::down(name, address) },
        });
    }
    if let Some((address, standing)) = standing {
        all.push(match standing {
            Ok(standing) => of_relay(address, &standing),
            Err(error) => NodeStatus { error: Some(error), ..relay_status(address.to_owned()) },
        });
    }
    fill_lag(family, &mut all);
    all
}

fn of_relay(address: &str, standing: &BinlogStanding) -> NodeStatus {
    let receives = standing.upstream_state == "streaming";
    NodeStatus {
        role: "relay",
        timeline: Some(standing.epoch),
        gtid: Some(match &standing.state {
            State::MariaDb(state) => state.position().to_string(),
            State::MySql(set) => set.to_string(),
        }),
        streaming: Some(receives),
        error: (!receives).then(|| standing.upstream_state.clone()),
        ..relay_status(address.to_owned())
    }
}

/// Makes a server's status of its answers. `replication`: the row of SHOW REPLICA STATUS. `upstream`: the relay's upstream, if known.
fn server(
    name: String,
    address: String,
    row: Option<&Row>,
    replication: Option<&Row>,
    upstream: Option<&str>,
) -> NodeStatus {
    let text = |row: Option<&Row>, column: usize| row.and_then(|row| row.get(column)?.clone());
    let writes = text(row, 0).is_some_and(|read_only| matches!(read_only.as_str(), "0" | "OFF"));
    let role = match (writes, upstream) {
        (true, Some(upstream)) if upstream != address => "stale",
        (true, _) => "primary",
        (false, _) => "replica",
    };
    // The places of these columns are the same in both families, and since long before MariaDB 10.3: both threads, the time behind, the errors.
    let runs = |column| text(replication, column).as_deref() == Some("Yes");
    let wrong = [35, 37].into_iter().find_map(|column| text(replication, column).filter(|error| !error.is_empty()));
    let seconds = text(replication, 32).and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    NodeStatus {
        role,
        gtid: text(row, 1),
        connections: text(row, 2).and_then(|count| count.parse::<u64>().ok()).map(|count| count.saturating_sub(1)),
        transactions: text(row, 3).and_then(|count| count.parse().ok()),
        streaming: (!writes).then(|| runs(10) && runs(11)),
        error: wrong.filter(|_| !writes),
        lag: Duration::from_secs(if writes { 0 } else { seconds }),
        ..NodeStatus::down(name, address)
    }
}

/// Fills in the lag of replicas and relay behind the primary.
fn fill_lag(family: &Family, nodes: &mut [NodeStatus]) {
    let primary = nodes.iter().find(|node| node.role == "primary").and_then(|node| node.gtid.clone());
    let Some(primary) = primary else { return };
    for node in nodes.iter_mut().filter(|node| matches!(node.role, "replica" | "relay")) {
        node.lag_transactions = node.gtid.as_deref().and_then(|has| family.behind(&primary, has));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slave(io: &str, sql: &str, error: &str) -> Row {
        let mut row: Row = vec![Some(String::new()); 40];
        (row[10], row[11], row[32], row[35]) =
            (Some(io.into()), Some(sql.into()), Some("3".into()), Some(error.into()));
        row
    }

    fn of(read_only: &str, gtid: &str, slave: Option<&Row>, upstream: Option<&str>) -> NodeStatus {
        let row: Row = [read_only, gtid, "4", "77"].iter().map(|text| Some((*text).to_owned())).collect();
        server("node1".into(), "127.0.0.1:1".into(), Some(&row), slave, upstream)
    }

    #[test]
    fn what_a_server_is() {
        let (good, broken) = (slave("Yes", "Yes", ""), slave("No", "Yes", "error 1236"));
        for (read_only, slave, upstream, role, streaming, error) in [
            ("0", None, Some("127.0.0.1:1"), "primary", None, None),
            ("OFF", None, None, "primary", None, None),
            ("0", None, Some("127.0.0.1:2"), "stale", None, None),
            ("1", Some(&good), Some("127.0.0.1:2"), "replica", Some(true), None),
            ("1", Some(&broken), Some("127.0.0.1:2"), "replica", Some(false), Some("error 1236")),
            ("1", None, Some("127.0.0.1:1"), "replica", Some(false), None),
        ] {
            let status = of(read_only, "0-1-5", slave, upstream);
            assert_eq!(
                (status.role, status.streaming, status.error.as_deref()),
                (role, streaming, error),
                "{read_only} {upstream:?}"
            );
            assert_eq!((status.connections, status.transactions), (Some(3), Some(77)));
        }
    }

    #[test]
    fn lag_is_counted_in_each_domain() {
        let replica = of("1", "0-1-5,1-2-9", None, None);
        let mut nodes = vec![of("0", "0-1-9,1-2-10,2-1-3", None, None), replica, of("1", "", None, None)];
        fill_lag(&super::super::family::MARIADB, &mut nodes);
        let lags: Vec<_> = nodes.iter().map(|node| node.lag_transactions).collect();
        assert_eq!(lags, [None, Some(4 + 1 + 3), Some(22)]);
    }
}
