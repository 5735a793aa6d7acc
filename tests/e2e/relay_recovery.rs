//! A relay that is killed during recovery.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use kingpost_tests::{Cluster, Cut, Link, Relay, SOON, ShowLogs, wait_until};

use crate::relay::{same_before, wait_durable};

/// Returns the names of the segments with WAL: their first page has a header.
fn begun(dir: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(dir).unwrap().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_segment = |name: &String| name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_header = |name: &String| {
        let mut header = [0; 2];
        // The file may just have been removed.
        let read = std::fs::File::open(dir.join(name)).and_then(|mut file| file.read_exact(&mut header));
        read.is_ok() && header != [0; 2]
    };
    names.filter(is_segment).filter(has_header).collect()
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let done = std::process::Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// A record of hundreds of megabytes was received in part. Recovery removes that part, file by file, and is killed meanwhile: the next one has to
/// find the same end, and finally the relay has the primary's WAL.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_it_clears_a_long_record() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let link = Cut::to(primary.port());
    let mut relay = Relay::of(&cluster, link.port());
    relay.start().await;
    primary.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await;
    wait_durable(&relay, primary).await;
    let before = relay.position("written").await;

    // Until more of it was received than may be unflushed, but not all.
    let admin = primary.admin().await;
    let long = tokio::spawn(async move {
        admin.batch_execute("SELECT pg_logical_emit_message(false, '', repeat('x', 400 << 20))").await.unwrap();
    });
    let enough = before + (150 << 20);
    let come = async || (relay.position("written").await >= enough).then_some(());
    wait_until("a part of the record", SOON, cluster.dir(), come).await;
    link.set(Link::BlackHole);
    relay.kill9().await;
    link.set(Link::Cut);
    long.await.unwrap();
    let written = begun(relay.dir());
    assert!((8..25).contains(&written.len()), "a part of the record is there: {written:?}");

    // Killed as soon as the first file is gone. If the recovery was too quick, everything is repeated.
    let saved = relay.dir().with_file_name("saved");
    copy(relay.dir(), &saved);
    let mut in_the_middle = false;
    for _ in 0..10 {
        copy(&saved, relay.dir());
        relay.launch();
        let started = Instant::now();
        tokio::task::block_in_place(|| {
            while begun(relay.dir()) == written && relay.process().exit_status().is_none() {
                assert!(started.elapsed() < SOON, "recovery clears nothing:\n{}", relay.log());
            }
        });
        relay.kill9().await;
        let left = begun(relay.dir()).len();
        in_the_middle = (3..written.len()).contains(&left);
        if in_the_middle {
            break;
        }
    }
    assert!(in_the_middle, "it was never killed in the middle");

    link.set(Link::Up);
    relay.start().await;
    primary.execute("INSERT INTO t VALUES (2)").await;
    let end = wait_durable(&relay, primary).await;
    assert!(same_before(relay.dir(), &primary.dir().join("pg_wal"), end) >= 25);
    assert!(!relay.log().contains("out of reach"), "{}", relay.log());
}
