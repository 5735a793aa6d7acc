//! The relay of MySQL's binary log while it, and the source, are killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kingpost_tests::{MySql, SOON, wait_until};
use mysql_async::prelude::Queryable as _;

use crate::binlog::has_alarm;
use crate::mysql::{TABLE, checksum, is_missing, relay_of, replica, source};

/// Writes rows one by one until `stop`, and returns the acknowledged ones. A lost connection is opened again.
async fn write(source: Arc<MySql>, writer: u64, stop: Arc<AtomicBool>, total: Arc<AtomicU64>) -> BTreeSet<u64> {
    let (mut done, mut next, mut connection) = (BTreeSet::new(), (writer + 1) << 32, None);
    let stopped = async || {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = source.connect().await.ok();
        }
        let Some(open) = &mut connection else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        next += 1;
        // Some with a tag.
        let tag = if next % 3 == 0 { "AUTOMATIC:blue" } else { "AUTOMATIC" };
        let insert = async {
            open.query_drop(format!("SET gtid_next = '{tag}'")).await?;
            open.query_drop(format!("INSERT INTO app.t VALUES ({next}, 'row', NULL)")).await
        };
        // A commit may wait for a relay that does not come back: its outcome is unknown then.
        let acknowledged = tokio::select! {
            result = insert => result.is_ok(),
            () = stopped() => false,
        };
        if acknowledged {
            done.insert(next);
            total.fetch_add(1, Ordering::Relaxed);
        } else {
            connection = None;
        }
    }
    done
}

pub(crate) async fn rows(server: &MySql) -> BTreeSet<u64> {
    let ids: Vec<u64> = server.connect().await.unwrap().query("SELECT id FROM app.t").await.unwrap();
    ids.into_iter().collect()
}

/// Waits until a commit waits for the acknowledgement of a replica.
async fn commits_wait(source: &MySql) {
    wait_until("a commit to wait", SOON, source.dir(), async || {
        let mut connection = source.connect().await.ok()?;
        let all: Vec<mysql_async::Row> = connection.query("SHOW PROCESSLIST").await.ok()?;
        let state = |row: &mysql_async::Row| row.get_opt::<Option<String>, _>("State").and_then(Result::ok).flatten();
        all.iter().filter_map(state).any(|state| state.starts_with("Waiting for semi-sync ACK")).then_some(())
    })
    .await;
}

/// The relay and the source are killed while commits are acknowledged, the source for good in the end: the relay has every acknowledged commit. A replica
/// that has all of the relay's takes over, and the relay follows it in a new epoch; others go on. The old source has a commit that nobody acknowledged: it
/// is not followed, and not fed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts four servers of MySQL, and kills one often, for scripts/test-long"]
async fn nothing_that_mysql_acknowledged_is_lost() {
    if is_missing() {
        return;
    }
    let source = Arc::new(source().await);
    let mut relay = relay_of(&source);
    relay.start().await;
    source.run(TABLE).await;
    let (heir, other) = (replica(2, &relay).await, replica(3, &relay).await);
    let (stop, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..4)
        .map(|writer| tokio::spawn(write(Arc::clone(&source), writer, Arc::clone(&stop), Arc::clone(&total))))
        .collect();
    let more = async |count: u64| {
        let target = total.load(Ordering::Relaxed) + count;
        wait_until("commits to be acknowledged", SOON * 2, source.dir(), async || {
            (total.load(Ordering::Relaxed) >= target).then_some(())
        })
        .await;
    };
    more(50).await;
    for _ in 0..3 {
        relay.kill9().await;
        commits_wait(&source).await;
        relay.start().await;
        more(30).await;
        source.run(&["FLUSH BINARY LOGS"]).await;
        // Transactions that it had written, without an acknowledgement, are committed when it recovers.
        source.kill9().await;
        source.start().await;
        more(30).await;
    }
    relay.kill9().await;
    commits_wait(&source).await;
    source.kill9().await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = BTreeSet::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(acknowledged.len() >= 200, "{}", acknowledged.len());
    relay.launch();
    let held = relay.wait_for("open its log", |metrics| metrics.sum("kingpost_relay_epoch", &[]) == 1.0).await;
    assert_eq!(held.sum("kingpost_relay_streaming", &[]), 0.0);
    let gtids = relay.gtids().await;
    for replica in [&heir, &other] {
        replica.wait_for_gtids(&gtids).await;
    }
    let there = rows(&heir).await;
    let lost: Vec<_> = acknowledged.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");

    // A replica takes over; the other one stays with the relay.
    heir.run(&[
        "STOP REPLICA",
        "RESET REPLICA ALL",
        "SET GLOBAL rpl_semi_sync_source_timeout = 4294967295",
        "SET GLOBAL rpl_semi_sync_source_enabled = ON",
    ])
    .await;
    relay.follow(&format!("127.0.0.1:{}", heir.port()));
    relay
        .wait_for("follow the new source", |metrics| {
            metrics.sum("kingpost_relay_streaming", &[]) == 1.0 && metrics.sum("kingpost_relay_epoch", &[]) == 2.0
        })
        .await;
    heir.run(&[
        "INSERT INTO app.t VALUES (1, 'after the failover', NULL)",
        "FLUSH BINARY LOGS",
        "INSERT INTO app.t VALUES (2, 'and on', NULL)",
    ])
    .await;
    let at = heir.gtids().await;
    // One that begins with nothing gets all transactions, over both epochs.
    let fresh = replica(4, &relay).await;
    for replica in [&other, &fresh] {
        replica.wait_for_gtids(&at).await;
        assert_eq!(checksum(replica).await, checksum(&heir).await);
        assert_eq!(replica.gtids().await, at);
    }

    // All waiting commits of the writers may have been on the relay, so there is one more.
    source.start().await;
    let late = Arc::clone(&source);
    let late = tokio::spawn(async move {
        let mut connection = late.connect().await.unwrap();
        connection.query_drop("INSERT INTO app.t VALUES (10000000, 'too late for the relay', NULL)").await
    });
    commits_wait(&source).await;
    source.kill9().await;
    assert!(late.await.unwrap().is_err(), "nobody acknowledged it");
    source.start().await;
    assert!(rows(&source).await.contains(&10_000_000), "the old source has what nobody acknowledged");
    relay.follow(&format!("127.0.0.1:{}", source.port()));
    relay.wait_for("recognise the old source", has_alarm).await;
    let (_, why) = relay.http("/readyz").await.unwrap();
    assert!(why.contains("the server lacks"), "{why}");
    assert_eq!(relay.metrics().await.sum("kingpost_relay_epoch", &[]), 2.0, "nothing of it was taken");
    source.replicate_from(relay.port(), "SOURCE_SSL=0").await;
    source.wait_for_error("more GTIDs").await;
}

/// `kingpost failover`: a replica that is behind gets everything that the relay has, transactions with tags, too, and is promoted; the relay follows it,
/// and the other replica stays. While the source lives, or its loss is not noticed, nothing is done.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts three servers of MySQL, for scripts/test-long"]
async fn a_failover_of_mysql_loses_nothing_that_was_acknowledged() {
    if is_missing() {
        return;
    }
    let source = Arc::new(source().await);
    let mut relay = relay_of(&source);
    relay.start().await;
    source.run(TABLE).await;
    let (behind, other) = (replica(2, &relay).await, replica(3, &relay).await);
    for replica in [&behind, &other] {
        replica.wait_for_gtids(&source.gtids().await).await;
        replica.run(&["SET GLOBAL super_read_only = ON"]).await;
    }
    behind.run(&["STOP REPLICA"]).await;
    let nodes = [("n1", source.port()), ("n2", behind.port()), ("n3", other.port())];
    let (done, said) = relay.failover(&nodes, &[]).await;
    assert!(!done && said.contains("the source lives"), "{said}");

    let (stop, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..4)
        .map(|writer| tokio::spawn(write(Arc::clone(&source), writer, Arc::clone(&stop), Arc::clone(&total))))
        .collect();
    wait_until("commits to be acknowledged", SOON * 2, source.dir(), async || {
        (total.load(Ordering::Relaxed) >= 100).then_some(())
    })
    .await;
    source.kill9().await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = BTreeSet::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    // Until the relay has noticed the loss, it reports that the source lives.
    let noticed = async || {
        let (done, said) = relay.failover(&nodes, &["--dry-run"]).await;
        (!said.contains("the source lives")).then_some((done, said))
    };
    let (done, said) = wait_until("the relay to miss its source", SOON, relay.logs(), noticed).await;
    assert!(done && said.contains("and promote n3 or n2"), "{said}");
    let (done, said) = relay.failover(&nodes, &["--to", "n2"]).await;
    assert!(done && said.contains("n2 is the source"), "{said}");
    let there = rows(&behind).await;
    let lost: Vec<_> = acknowledged.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    assert_eq!(behind.value("SELECT @@read_only + @@super_read_only").await, "0");
    assert_eq!(other.value("SELECT @@super_read_only").await, "1");
    relay
        .wait_for("follow the new source", |metrics| {
            metrics.sum("kingpost_relay_streaming", &[]) == 1.0 && metrics.sum("kingpost_relay_epoch", &[]) == 2.0
        })
        .await;
    // A commit waits for the relay, which acknowledges it.
    assert_eq!(behind.status("Rpl_semi_sync_source_status").await, "ON");
    behind.run(&["INSERT INTO app.t VALUES (1, 'after the failover', NULL)"]).await;
    other.wait_for_gtids(&behind.gtids().await).await;
    assert_eq!(checksum(&other).await, checksum(&behind).await);
    // Nothing is left to do.
    let (done, said) = relay.failover(&nodes, &["--abort"]).await;
    assert!(done, "{said}");
}
