//! Faults of a relay of MariaDB and of its source, and the recovery from each.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use kingpost_tests::{BinlogRelay, MariaDb, SOON, skipped, wait_until, within};

use crate::binlog::{TABLE, checksum, has_alarm, position, replica, source, wait_for_gtid, waiting};
use crate::relay_life::Small;

/// Fills the rest of the file system of `dir`.
fn fill(dir: &Path) {
    let mut file = File::options().append(true).create(true).open(dir.join("filler")).unwrap();
    let mut piece = &[7; 1 << 20][..];
    while !piece.is_empty() {
        match file.write(piece) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => piece = &piece[..piece.len() / 2],
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs statements, each on a connection of its own, at the same time.
fn all_at_once(source: &Arc<MariaDb>, statements: &[String]) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for statement in statements {
        let (source, statement) = (Arc::clone(source), statement.clone());
        tasks.spawn(async move { source.run(&[&statement]).await });
    }
    tasks
}

async fn why(relay: &BinlogRelay) -> String {
    relay.http("/readyz").await.unwrap().1
}

/// The disk is full in the middle of an event: the relay waits with its connection open, and continues when there is room. It first removes unneeded
/// files.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_ends_no_connection() {
    let source = Arc::new(source().await);
    let mut relay = BinlogRelay::of(source.port());
    std::fs::create_dir(relay.dir()).unwrap();
    let Some(small) = Small::mount(&relay.dir(), 64) else {
        skipped("no file system can be mounted here");
        return;
    };
    relay.start().await;
    source.run(TABLE).await;
    let replica = replica(2, &relay).await;
    // More than the disk can hold; keep_bytes is 1 GiB.
    for id in 1..=5 {
        source.run(&[&format!("INSERT INTO app.t VALUES ({id}, REPEAT('x', 20000000))"), "FLUSH BINARY LOGS"]).await;
        wait_for_gtid(&replica, &position(&source).await).await;
    }
    assert!(relay.log().contains("gave up old binary logs that nobody needs"), "{}", relay.log());

    let ended = relay.metrics().await.sum("kingpost_relay_upstream_disconnects_total", &[]);
    let large = |id: u64| format!("INSERT INTO app.t VALUES ({id}, REPEAT('y', 10000000))");
    // Fills the rest of the disk, including the space that the relay frees.
    fill(&relay.dir());
    source.run(&[&large(9)]).await;
    wait_for_gtid(&replica, &position(&source).await).await;
    fill(&relay.dir());
    let mut commits = all_at_once(&source, &[large(10), large(11), large(13)]);
    relay.wait_for("raise the alarm", has_alarm).await;
    assert!(why(&relay).await.contains("no room for the binary log"), "{}", why(&relay).await);
    assert!(commits.try_join_next().is_none(), "nothing is acknowledged that has no room");
    assert_eq!(relay.http("/healthz").await.unwrap().0, 200, "a full disk is no reason to be restarted");
    std::fs::remove_file(relay.dir().join("filler")).unwrap();
    while let Some(done) = within("the commits", SOON, relay.logs(), commits.join_next()).await {
        done.unwrap();
    }
    wait_for_gtid(&replica, &position(&source).await).await;
    assert_eq!(checksum(&replica).await, checksum(&source).await);
    let metrics = relay.metrics().await;
    assert_eq!(metrics.sum("kingpost_relay_upstream_disconnects_total", &[]), ended, "the same connection");
    assert!(!has_alarm(&metrics));
    // A fence does not wait for room.
    fill(&relay.dir());
    let commits = all_at_once(&source, &[large(12)]);
    relay.wait_for("raise the alarm", has_alarm).await;
    within("a fence", SOON, relay.logs(), relay.order("KINGPOST FENCE TERM 1 TIMELINE 1")).await;
    drop(commits);
    relay.kill9().await;
    drop(small);
}

/// The source has begun anew, or has purged the next file: the alarm is raised, nothing is acknowledged, and the command that the alarm names is the
/// remedy, also while commits wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_cannot_go_on_is_reset() {
    let source = Arc::new(source().await);
    let mut relay = BinlogRelay::of(source.port());
    relay.start().await;
    source.run(TABLE).await;
    let replica = replica(2, &relay).await;
    for id in 1..=5 {
        source.run(&[&format!("INSERT INTO app.t VALUES ({id}, 'before')")]).await;
    }
    let held = position(&source).await;
    wait_for_gtid(&replica, &held).await;
    // Each of these commits waited for an acknowledgement, which the relay counts a moment after it has sent it.
    let count = async || relay.metrics().await.sum("kingpost_relay_acknowledgements_total", &[]);
    let all = (TABLE.len() + 5) as f64;
    let acknowledged =
        wait_until("all to be counted", SOON, relay.logs(), async || Some(count().await).filter(|count| *count >= all))
            .await;
    source.run(&["RESET MASTER"]).await;
    // The second one waits for the first, with the lock of the binary log.
    let insert = |id: u64| format!("INSERT INTO app.t VALUES ({id}, 'anew')");
    let mut commits = all_at_once(&source, &[insert(10)]);
    wait_until("a commit to wait", SOON, source.dir(), async || (waiting(&source).await != "0").then_some(())).await;
    commits.spawn({
        let (source, insert) = (Arc::clone(&source), insert(11));
        async move { source.run(&[&insert]).await }
    });
    relay.wait_for("raise the alarm", has_alarm).await;
    let text = why(&relay).await;
    assert!(text.contains("begun its history anew") && text.contains(&held), "{text}");
    assert!(commits.try_join_next().is_none(), "nothing of the other history is acknowledged");
    assert_eq!(count().await, acknowledged);
    assert_eq!(relay.gtids().await, held);
    let (done, said) = relay.reset(&text).await;
    assert!(!done && said.contains("in use by another process"), "{said}");
    relay.kill9().await;
    let (done, said) = relay.reset(&text).await;
    assert!(done && said.contains("0000000001-1/mysql-bin.000001"), "{said}");
    relay.start().await;
    while let Some(done) = within("the commits", SOON, relay.logs(), commits.join_next()).await {
        done.unwrap();
    }
    assert_eq!(relay.gtids().await, position(&source).await);
    // A replica with the earlier history gets the error that the source itself would send.
    let error = wait_until("the replica to be refused", SOON, replica.dir(), async || {
        let error = replica.slave_status("Last_IO_Error").await;
        error.contains("which is not in the master's binlog").then_some(error)
    })
    .await;
    assert!(error.contains("1236"), "{error}");
    replica.run(&["STOP SLAVE", "RESET MASTER", "SET GLOBAL gtid_slave_pos = ''", "START SLAVE"]).await;
    wait_for_gtid(&replica, &position(&source).await).await;
    assert_eq!(checksum(&replica).await, checksum(&source).await);

    // The source continues without the relay, and keeps nothing for it.
    relay.kill9().await;
    source
        .run(&[
            "SET GLOBAL rpl_semi_sync_master_enabled = OFF",
            &insert(20),
            "FLUSH BINARY LOGS",
            &insert(21),
            "FLUSH BINARY LOGS",
        ])
        .await;
    // A file that a dump thread reads is not purged.
    wait_until("the source to notice that the relay is gone", SOON, source.dir(), async || {
        let feeding = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'";
        (source.value(feeding).await == "0").then_some(())
    })
    .await;
    source.run(&["PURGE BINARY LOGS TO 'mysql-bin.000003'", "SET GLOBAL rpl_semi_sync_master_enabled = ON"]).await;
    relay.launch();
    relay.wait_for("raise the alarm", has_alarm).await;
    let text = why(&relay).await;
    assert!(text.contains("Could not find first log file name"), "{text}");
    relay.kill9().await;
    let (done, said) = relay.reset(&text).await;
    assert!(done, "{said}");
    relay.start().await;
    within("a commit", SOON, relay.logs(), source.run(&[&insert(22)])).await;
    assert_eq!(relay.gtids().await, position(&source).await);
}
