//! Commits through the relay as synchronous standby, and the state after failures.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kingpost_tests::{Cluster, Kingpost, Relay, SOON, ShowLogs, wait_until, within};
use tokio::sync::Mutex;

use crate::relay::refusal;

/// Starts a primary whose commits wait for the relay.
async fn synchronous() -> (Cluster, Relay) {
    let cluster = Cluster::builder().start().await;
    let mut relay = Relay::of(&cluster, cluster.primary().port());
    relay.start().await;
    let primary = cluster.primary();
    primary.execute("CREATE TABLE acked (n bigint PRIMARY KEY)").await;
    primary.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name())).await;
    primary.execute("SELECT pg_reload_conf()").await;
    primary.wait_value("SELECT sync_state FROM pg_stat_replication", "sync").await;
    (cluster, relay)
}

/// Clients that insert numbers, and the acknowledged numbers.
struct Writers {
    acked: Arc<Mutex<BTreeSet<u64>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    async fn start(cluster: &Cluster, count: usize) -> Writers {
        let (acked, next) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicU64::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..count {
            let client = cluster.primary().admin().await;
            let (acked, next) = (Arc::clone(&acked), Arc::clone(&next));
            tasks.push(tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    match client.batch_execute(&format!("INSERT INTO acked VALUES ({n})")).await {
                        Ok(()) => drop(acked.lock().await.insert(n)),
                        // The server is gone: the outcome of this one is unknown.
                        Err(_) => return,
                    }
                }
            }));
        }
        Writers { acked, tasks }
    }

    async fn wait_for(&self, cluster: &Cluster, more: usize) {
        let target = self.acked.lock().await.len() + more;
        cluster
            .wait("more acknowledged commits", async || (self.acked.lock().await.len() >= target).then_some(()))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_wait_for_the_relay_and_outlive_the_primary() {
    let (cluster, mut relay) = synchronous().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let writers = Writers::start(&cluster, 8).await;
    writers.wait_for(&cluster, 200).await;

    // kill -9 of the relay: nothing is acknowledged until it is back.
    relay.kill9().await;
    primary.wait_value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", "8").await;
    let before = writers.acked.lock().await.len();
    relay.start().await;
    writers.wait_for(&cluster, 200).await;
    assert!(writers.acked.lock().await.len() > before);

    // kill -9 of the primary: everything acknowledged is in the relay.
    primary.kill9().await;
    for task in writers.tasks {
        within("the writers to notice", SOON, cluster.dir(), task).await.unwrap();
    }
    let acked = writers.acked.lock().await.clone();
    assert!(acked.len() >= 400);
    let heir = cluster.standby("heir", relay.port());
    heir.start().await;
    let position = relay.position("flushed").await;
    let caught_up = format!("SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint >= {position}");
    heir.wait_value(&caught_up, "t").await;
    heir.promote().await;
    let client = heir.admin().await;
    let rows = client.query("SELECT n FROM acked", &[]).await.unwrap();
    let held: BTreeSet<u64> = rows.iter().map(|row| row.get::<_, i64>(0) as u64).collect();
    let lost: Vec<_> = acked.difference(&held).collect();
    assert!(lost.is_empty(), "{} acknowledged commits are lost: {lost:?}", lost.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn follows_a_promotion_and_takes_the_others_along() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    let standbys = ["s1", "s2"].map(|name| cluster.standby(name, relay.port()));
    for standby in &standbys {
        standby.start().await;
    }
    primary.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await;
    for standby in &standbys {
        standby.wait_caught_up(primary).await;
    }
    let (heir, other) = (&standbys[0], &standbys[1]);
    // A clean shutdown: the standbys have all WAL, so none is ahead of the heir.
    primary.stop().await;
    let flushed = relay.position("flushed").await;
    heir.wait_value(&format!("SELECT (pg_last_wal_receive_lsn() - '0/0')::bigint >= {flushed}"), "t").await;
    heir.promote().await;
    heir.execute("INSERT INTO t VALUES (2)").await;
    relay.reload("relay.upstream.address", format!("127.0.0.1:{}", heir.port()));
    relay.wait_receiving().await;
    other.wait_value("SELECT count(*) FROM t", "2").await;
    other.wait_value("SELECT received_tli FROM pg_stat_wal_receiver", "2").await;
    assert!(relay.dir().join("00000002.history").exists());

    // A new standby passes through both timelines.
    let late = cluster.standby("late", relay.port());
    late.start().await;
    late.wait_value("SELECT count(*) FROM t", "2").await;

    // And the relay itself, restarted on the new timeline.
    relay.kill9().await;
    relay.start().await;
    heir.execute("INSERT INTO t VALUES (3)").await;
    other.wait_value("SELECT count(*) FROM t", "3").await;

    // It refuses in the server's own words, which standbys and people match on.
    let left = heir.query("SELECT pg_current_wal_flush_lsn()").await;
    for order in [
        &format!("START_REPLICATION {left} TIMELINE 1")[..],
        "START_REPLICATION 0/1000000 TIMELINE 7",
        "START_REPLICATION FF/0 TIMELINE 2",
        "START_REPLICATION SLOT \"none\" 0/1000000 TIMELINE 2",
        "TIMELINE_HISTORY 7",
        "SHOW nothing",
        "SELECT 1",
    ] {
        assert_eq!(refusal(relay.port(), order).await, refusal(heir.port(), order).await, "{order}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn does_not_follow_a_primary_that_lacks_what_it_has() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    let behind = cluster.standby("behind", relay.port());
    behind.start().await;
    primary.execute("CREATE TABLE t (n int)").await;
    behind.wait_caught_up(primary).await;
    behind.stop().await;
    primary.execute("INSERT INTO t VALUES (1)").await;
    let target = primary.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").await.parse().unwrap();
    cluster.wait("the relay to have it", async || (relay.position("flushed").await >= target).then_some(())).await;
    primary.kill9().await;
    let held = relay.position("flushed").await;
    relay.kill9().await;
    // Alone, it cannot know of the last commit.
    behind.start().await;
    behind.promote().await;
    behind.execute("INSERT INTO t VALUES (2)").await;
    let address = format!("127.0.0.1:{}", behind.port());
    let mut relay = relay.set("relay.upstream.address", address);
    relay.launch();
    let alarmed = async || (relay.metrics().await.sum("kingpost_relay_alarm", &[]) == 1.0).then_some(());
    wait_until("the alarm", SOON, cluster.dir(), async || {
        relay.http("/metrics").await?;
        alarmed().await
    })
    .await;
    assert_eq!(relay.position("flushed").await, held, "what was acknowledged stays");
    // A standby with the position in its history still gets the WAL.
    let heir = cluster.standby("heir", relay.port());
    heir.start().await;
    heir.wait_value("SELECT count(*) FROM t", "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_reads_from_replicas_behind_the_relay() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let mut relay = Relay::of(&cluster, cluster.primary().port());
    relay.start().await;
    let replica = cluster.replica(0);
    // From now on by way of the relay.
    replica.stop().await;
    replica.follow_port(relay.port());
    replica.start().await;
    let kingpost = Kingpost::of(&cluster).start().await;
    let client = kingpost.connect().await;
    client.batch_execute("CREATE TABLE own (n int)").await.unwrap();
    let read = "SELECT count(*) FROM own";
    for n in 1..=20_i64 {
        client.execute("INSERT INTO own VALUES (1)", &[]).await.unwrap();
        let row = client.query_one(read, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), n, "a client sees its own commits");
    }
    cluster
        .wait_for("a read on the replica", SOON, async || {
            client.query_one(read, &[]).await.ok()?;
            let reads = kingpost.metrics().await.sum("kingpost_statements_replica_total", &[]);
            (reads > 0.0).then_some(())
        })
        .await;
}
