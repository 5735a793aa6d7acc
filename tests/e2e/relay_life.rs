//! The relay's operation: a full disk, WAL that standbys still need, and their feedback to the primary.

use std::path::{Path, PathBuf};
use std::process::Command;

use kingpost_tests::{Cluster, Relay, ShowLogs, skipped};

use crate::relay_orders::order;

/// A small file system in memory; unmounted on drop.
pub(crate) struct Small(PathBuf);

impl Small {
    /// Mounts it; None if that is not permitted.
    pub(crate) fn mount(at: &Path, megabytes: u32) -> Option<Small> {
        let options = format!("size={megabytes}m,mode=0777");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output().ok()?;
        mount.status.success().then(|| Small(at.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_nothing_for_good() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    let place = relay.dir().parent().unwrap().to_owned();
    let Some(small) = Small::mount(&place, 128) else {
        skipped("no file system can be mounted here");
        return;
    };
    relay.start().await;
    // An absent standby needs all of it: nothing can be removed.
    order(&relay, "CREATE_REPLICATION_SLOT away PHYSICAL RESERVE_WAL").unwrap();
    primary.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{}'", relay.name())).await;
    primary.execute("SELECT pg_reload_conf()").await;
    primary.wait_value("SELECT sync_state FROM pg_stat_replication", "sync").await;
    primary.execute("CREATE TABLE t (n int)").await;
    // A filler takes the rest of the disk.
    let filler = place.join("filler");
    let free = || {
        let out = Command::new("df").args(["--output=avail", "-k"]).arg(&place).output().unwrap();
        String::from_utf8_lossy(&out.stdout).lines().nth(1).unwrap().trim().parse::<usize>().unwrap()
    };
    std::fs::write(&filler, vec![0; free() * 1024]).unwrap();
    let client = primary.admin().await;
    let commits = tokio::spawn(async move {
        for n in 0..4 {
            client.batch_execute(&format!("INSERT INTO t VALUES ({n}); SELECT pg_switch_wal()")).await.unwrap();
        }
        client.batch_execute("INSERT INTO t VALUES (9)").await.unwrap();
    });
    cluster
        .wait("the alarm", async || (relay.metrics().await.sum("kingpost_relay_alarm", &[]) == 1.0).then_some(()))
        .await;
    assert!(!commits.is_finished(), "nothing is acknowledged that has no room");
    assert_eq!(relay.http("/healthz").await.unwrap().0, 200, "a full disk is no reason to be restarted");
    std::fs::remove_file(&filler).unwrap();
    kingpost_tests::within("the commits", kingpost_tests::SOON, cluster.dir(), commits).await.unwrap();
    let written = primary.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").await.parse().unwrap();
    cluster.wait("all of it", async || (relay.position("flushed").await >= written).then_some(())).await;
    assert_eq!(relay.metrics().await.sum("kingpost_relay_alarm", &[]), 0.0);
    relay.stop().await;
    drop(small);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_standbys_need_is_kept_and_passed_on() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    // A relay that serves written, not yet flushed, WAL feeds standbys as well.
    let mut relay = Relay::of(&cluster, primary.port()).set("relay.serve", "written").set("relay.keep_bytes", 0);
    relay.start().await;
    primary.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await;
    let standby = cluster.copy("s1", ("hot_standby_feedback", "on"));
    standby.follow_port(relay.port());
    standby.start().await;
    standby.wait_caught_up(primary).await;

    // A reader on the standby holds up vacuum on the primary, through the relay's slot there.
    let slot = "SELECT xmin IS NOT NULL FROM pg_replication_slots";
    let reader = standby.admin().await;
    reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t").await.unwrap();
    primary.wait_value(slot, "t").await;
    relay.reload("relay.hot_standby_feedback", false);
    primary.wait_value(slot, "f").await;
    drop(reader);

    // While the standby is away, its WAL stays; it has no slot there, so this is the work of `keep_bytes`.
    relay.reload("relay.keep_bytes", 1 << 30);
    standby.stop().await;
    for n in 0..3 {
        primary.execute(&format!("INSERT INTO t VALUES ({n}); SELECT pg_switch_wal()")).await;
    }
    standby.start().await;
    standby.wait_caught_up(primary).await;
    let oldest = relay.position("oldest").await;
    // Nothing is kept beyond the standby's position.
    relay.reload("relay.keep_bytes", 0);
    cluster.wait("old segments to go", async || (relay.position("oldest").await > oldest).then_some(())).await;
    primary.execute("INSERT INTO t VALUES (7)").await;
    standby.wait_caught_up(primary).await;
    assert_eq!(standby.query("SELECT count(*) FROM t").await, "5");
}
