//! Slots of a relay at the servers that it has followed.

use kingpost_tests::{Cluster, Node, Relay, ShowLogs};

use crate::relay_orders::order;

const SLOTS: &str = "SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots";

/// Starts a former primary, now stopped, and its promoted standby, which the relay follows.
async fn promoted() -> (Cluster, Relay, Node) {
    let cluster = Cluster::builder().start().await;
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port()).set("log.level", "debug");
    relay.start().await;
    let heir = cluster.standby("heir", relay.port());
    heir.start().await;
    // A slot that is not the relay's.
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
    // A relay that was restarted in between knows the old slot, too.
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
    // After its return it needs no old rows.
    away.start().await;
    cluster.wait("the metric to fall", async || (held(primary).await < least / 2.0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_standby_needs_are_kept_while_it_is_away() {
    let cluster = Cluster::builder().setting("hot_standby_feedback", "on").start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    primary.execute("CREATE TABLE t AS SELECT generate_series(1, 10000) n").await;
    primary.execute("SELECT pg_create_physical_replication_slot('direct', true)").await;
    order(&relay, "CREATE_REPLICATION_SLOT behind PHYSICAL RESERVE_WAL").unwrap();
    // A standby beside the relay, for comparison.
    let direct = cluster.standby("direct", primary.port());
    direct.follow_by_slot(primary.port(), "direct");
    let behind = cluster.standby("behind", relay.port());
    behind.follow_by_slot(relay.port(), "behind");
    for standby in [&direct, &behind] {
        standby.start().await;
        standby.wait_caught_up(primary).await;
    }
    let xmins = "SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL";
    primary.wait_value(xmins, "2").await;
    let relays =
        format!("SELECT coalesce(xmin::text, '') FROM pg_replication_slots WHERE slot_name = '{}'", relay.name());
    let kept = "SELECT pg_relation_size('t') > 0";

    // The standbys are stopped, and then the relay for a moment, too.
    direct.stop().await;
    behind.stop().await;
    let reports = async || relay.metrics().await.sum("kingpost_relay_acknowledgements_total", &[]);
    let before = reports().await;
    cluster.wait("several reports", async || (reports().await > before + 3.0).then_some(())).await;
    assert_eq!(primary.query(xmins).await, "2", "nothing is taken back when a standby leaves");
    let file = relay.dir().join("kingpost-relay.json");
    let saved = async || std::fs::read_to_string(&file).ok()?.contains("feedback").then_some(());
    cluster.wait("the slot's transactions to be saved", saved).await;
    relay.kill9().await;
    assert_eq!(primary.query(xmins).await, "2");
    relay.start().await;
    let before = primary.query(&relays).await;
    let reports = async || relay.metrics().await.sum("kingpost_relay_acknowledgements_total", &[]);
    cluster.wait("several reports", async || (reports().await > 4.0).then_some(())).await;
    assert_eq!(primary.query(&relays).await, before, "nor when the relay is back without it");
    primary.execute("DELETE FROM t").await;
    primary.execute("VACUUM t").await;
    assert_eq!(primary.query(kept).await, "t");
    primary.execute("SELECT pg_drop_replication_slot('direct')").await;
    primary.execute("VACUUM t").await;
    assert_eq!(primary.query(kept).await, "t", "for the standby behind the relay alone");
    let xmin = relay.metrics().await.sum("kingpost_relay_slot_xmin", &[("slot", "behind")]);
    assert_eq!(xmin.to_string(), before);

    // A dropped slot needs nothing more, here once its user has left.
    behind.start().await;
    behind.wait_caught_up(primary).await;
    assert!(order(&relay, "DROP_REPLICATION_SLOT behind").unwrap_err().contains("is active for PID"));
    let accepted = async || relay.metrics().await.sum("kingpost_relay_accepted_total", &[]);
    let before = accepted().await;
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| order(&relay, "DROP_REPLICATION_SLOT behind WAIT").map(|_| ()));
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                cluster.wait("the order to come", async || (accepted().await > before).then_some(())).await;
                behind.stop().await;
            });
        });
        assert_eq!(dropped.join().unwrap(), Ok(()), "it waits until the standby has left");
    });
    primary.wait_value(&relays, "").await;
    let removed = async || {
        primary.execute("VACUUM t").await;
        (primary.query(kept).await == "f").then_some(())
    };
    cluster.wait("the rows to go", removed).await;
}
