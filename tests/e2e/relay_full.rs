//! A relay with a full disk: the WAL that it removes first, and the operations that still work.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use kingpost_tests::{Cluster, Failover, Relay, SOON, ShowLogs, skipped, within};

use crate::relay_life::Small;
use crate::relay_orders::order;

/// Fills the file system of `dir`.
pub(crate) fn fill(dir: &Path) {
    let mut file = File::create(dir.join("filler")).unwrap();
    let mut piece = &[7; 1 << 20][..];
    loop {
        match file.write(piece) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull && piece.len() > 1 => {
                piece = &piece[..piece.len() / 2];
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                break;
            }
        }
    }
}

/// Starts a primary whose commits wait for a relay on a disk of 150 MB, and a standby behind the relay.
async fn on_a_small_disk() -> Option<(Cluster, Relay, Small)> {
    let cluster = Cluster::builder().replicas(1).start().await;
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let mut relay = Relay::of(&cluster, primary.port());
    let Some(small) = Small::mount(relay.dir().parent().unwrap(), 150) else {
        skipped("no file system can be mounted here");
        return None;
    };
    relay.start().await;
    replica.follow_port(relay.port());
    for node in cluster.nodes() {
        node.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name())).await;
        node.execute("SELECT pg_reload_conf()").await;
    }
    primary.wait_value("SELECT string_agg(sync_state, ',') FROM pg_stat_replication", "sync").await;
    primary.execute("CREATE TABLE t (n int, pad text)").await;
    replica.wait_caught_up(primary).await;
    Some((cluster, relay, small))
}

/// Makes acknowledged commits, each with about 8 MB of WAL.
async fn commit(cluster: &Cluster, node: &kingpost_tests::Node, count: u32) {
    let client = node.admin().await;
    let work = async {
        for _ in 0..count {
            client
                .batch_execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 7000) n")
                .await
                .unwrap();
        }
    };
    within("commits", Duration::from_secs(60), cluster.dir(), work).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wal_that_nobody_needs_goes_before_commits_wait() {
    let Some((cluster, relay, small)) = on_a_small_disk().await else { return };
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    // Three times the size of the disk; keep_bytes is 1 GiB.
    for _ in 0..6 {
        commit(&cluster, primary, 10).await;
        replica.wait_caught_up(primary).await;
    }
    assert!(relay.log().contains("gave up old segments that nobody needs"), "{}", relay.log());
    assert_eq!(relay.metrics().await.sum("kingpost_relay_alarm", &[]), 0.0);
    assert_eq!(replica.query("SELECT count(*) FROM t").await, (60 * 7000).to_string());
    relay.stop().await;
    drop(small);
}

/// Not a byte is free: the relay can still be fenced, feeds the candidate, and follows the new primary.
#[tokio::test(flavor = "multi_thread")]
async fn without_any_room_the_cluster_fails_over() {
    let Some((cluster, relay, small)) = on_a_small_disk().await else { return };
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    commit(&cluster, primary, 3).await;
    // The candidate lacks the last WAL, and gets it from the relay.
    replica.stop().await;
    commit(&cluster, primary, 1).await;
    let reserved = async || (relay.metrics().await.sum("kingpost_relay_reserve", &[]) == 1.0).then_some(());
    cluster.wait("what is kept in reserve", reserved).await;
    fill(relay.dir().parent().unwrap());
    assert_eq!(order(&relay, "KINGPOST LOOK").unwrap().fenced(), "");
    primary.kill9().await;
    replica.start().await;
    cluster.wait("the relay to notice", async || (relay.http("/readyz").await?.0 != 200).then_some(())).await;

    let text = Failover::of(&cluster, &[&relay]).succeed(&["failover"]).await;
    assert!(text.contains("promoted n1") && text.contains("follows on timeline 2"), "{text}");
    let client = replica.admin().await;
    let insert = client.batch_execute("INSERT INTO t VALUES (-1)");
    within("a commit on the new primary", SOON, cluster.dir(), insert).await.unwrap();
    assert_eq!(
        replica.query("SELECT count(*) FROM t").await,
        (4 * 7000 + 1).to_string(),
        "nothing acknowledged is lost"
    );
    // WAL and promises survive a crash, after which no free space is needed either.
    relay.kill9().await;
    let mut relay = relay;
    relay.start().await;
    let standing = order(&relay, "KINGPOST LOOK").unwrap();
    assert!(standing.term().parse::<u64>().unwrap() > 0, "the promise of the failover is remembered");
    assert_eq!(standing.fenced(), "");
    let insert = client.batch_execute("INSERT INTO t VALUES (-2)");
    within("a commit after the relay's crash", SOON, cluster.dir(), insert).await.unwrap();
    relay.stop().await;
    drop(small);
}
