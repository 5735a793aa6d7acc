//! Slots of a relay at the servers that it has followed.

use kingpost_tests::{Cluster, Node, Relay, ShowLogs};

const SLOTS: &str = "SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots";

/// A stopped former primary, and its standby that was promoted and that the relay follows.
async fn promoted() -> (Cluster, Relay, Node) {
    let cluster = Cluster::builder().start().await;
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port()).set("log.level", "debug");
    relay.start().await;
    let heir = cluster.standby("heir", relay.port());
    heir.start().await;
    // Somebody else's.
    primary.execute("SELECT pg_create_physical_replication_slot('another', true)").await;
    primary.execute("CREATE TABLE t (n int)").await;
    heir.wait_caught_up(primary).await;
    primary.stop().await;
    let flushed = relay.position("flushed").await;
    heir.wait_value(&format!("SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint >= {flushed}"), "t").await;
    heir.promote().await;
    heir.execute("INSERT INTO t VALUES (1)").await;
    relay.reload("relay.upstream.address", format!("127.0.0.1:{}", heir.port()));
    heir.wait_value(SLOTS, relay.name()).await;
    relay.wait_receiving().await;
    (cluster, relay, heir)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_primary_that_is_a_standby_loses_the_relays_slot() {
    let (cluster, mut relay, heir) = promoted().await;
    let _logs = ShowLogs(cluster.dir());
    // Also a relay that was started again in between knows of it.
    relay.kill9().await;
    relay.start().await;
    let former = cluster.primary();
    former.demote(relay.port());
    former.start().await;
    former.wait_value("SELECT count(*) FROM t", "1").await;
    former.wait_value(SLOTS, "another").await;
    assert_eq!(heir.query(SLOTS).await, relay.name(), "where it streams from it keeps its slot");
    heir.execute("INSERT INTO t VALUES (2)").await;
    former.wait_value("SELECT count(*) FROM t", "2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_primary_that_still_is_one_keeps_it() {
    let (cluster, relay, _heir) = promoted().await;
    let _logs = ShowLogs(cluster.dir());
    let former = cluster.primary();
    former.start().await;
    let stays = "the slot that was left behind stays";
    cluster.wait("the relay to look", async || relay.log().contains(stays).then_some(())).await;
    assert_eq!(former.query(SLOTS).await, format!("another {}", relay.name()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_primary_keeps_for_a_relay_that_is_away_is_seen_elsewhere() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let ports: Vec<u16> = cluster.nodes().iter().map(Node::port).collect();
    let mut here = Relay::watching(&cluster, &ports);
    let mut away = Relay::of(&cluster, primary.port());
    here.start().await;
    away.start().await;
    let held = async |node: &Node| here.metrics().await.sum("kingpost_node_slots_held_bytes", &[("node", node.name())]);
    away.kill9().await;
    primary.execute("CREATE TABLE t AS SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n").await;
    let sql = format!(
        "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = '{}'",
        away.name()
    );
    let least: f64 = primary.query(&sql).await.parse().unwrap();
    assert!(least > 20e6, "{least}");
    cluster.wait("the metric to say so", async || (held(primary).await >= least).then_some(())).await;
    assert_eq!(held(cluster.replica(0)).await, 0.0, "the replica has no slot");
    // Back again, it needs nothing of that.
    away.start().await;
    cluster.wait("the metric to fall", async || (held(primary).await < least / 2.0).then_some(())).await;
}
