//! A primary with another history than the relay's, or other segments, under the same system identifier and on the same timeline.

use std::path::PathBuf;
use std::process::Command;

use kingpost_tests::{Cluster, Node, Relay, RunAs, ShowLogs, command, pg_bin};

use crate::relay::wait_durable;
use crate::relay_gap::{alarm, reset};

const SEGMENT: u64 = 16 << 20;

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A copy of a server's files, taken while the server is stopped.
struct Copy(PathBuf);

impl Copy {
    async fn of(node: &Node) -> Copy {
        node.stop().await;
        let copy = node.dir().with_extension("copy");
        run(Command::new("rm").arg("-rf").arg(&copy));
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(node.dir()).arg(&copy));
        node.start().await;
        Copy(copy)
    }

    /// Replaces the server's files, which are lost, by the copy.
    async fn put_back(&self, node: &Node) {
        if node.is_running() {
            node.kill9().await;
        }
        run(Command::new("rm").arg("-rf").arg(node.dir()));
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&self.0).arg(node.dir()));
    }
}

async fn end(node: &Node) -> u64 {
    node.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").await.parse().unwrap()
}

/// Checks the alarm of a primary that has lost rows which the relay acknowledged, before any new write there.
async fn lacks(cluster: &Cluster, relay: &Relay, primary: &Node, held: u64) {
    let text = alarm(cluster, relay).await;
    assert!(text.contains("bytes of WAL that this relay has acknowledged"), "{text}");
    assert!(end(primary).await < held, "nobody has written there");
    let streams = format!(
        "SELECT count(*) FROM pg_stat_replication WHERE application_name = '{}' AND flush_lsn IS NOT NULL",
        relay.name()
    );
    assert_eq!(primary.query(&streams).await, "0");
    assert_eq!(relay.position("flushed").await, held, "nothing was cut off");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_put_back_from_a_copy_is_an_alarm_at_once() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    primary.execute("CREATE TABLE t (n int)").await;
    wait_durable(&relay, primary).await;

    // The relay is in the middle of a segment.
    let copy = Copy::of(primary).await;
    relay.wait_receiving().await;
    primary.execute("INSERT INTO t SELECT generate_series(1, 20)").await;
    let held = wait_durable(&relay, primary).await;
    assert!(!held.is_multiple_of(SEGMENT));
    copy.put_back(primary).await;
    primary.start().await;
    lacks(&cluster, &relay, primary, held).await;

    // The remedy for acknowledged rows: before the copy takes writes, it gets the missing WAL from the relay.
    copy.put_back(primary).await;
    primary.follow_port(relay.port());
    primary.start().await;
    primary.wait_value("SELECT count(*) FROM t", "20").await;
    primary.promote().await;
    relay.reload("relay.upstream.timeout", "11s");
    wait_durable(&relay, primary).await;
    relay.wait_receiving().await;
    assert_eq!(relay.metrics().await.sum("kingpost_relay_timeline", &[]), 2.0);

    // The relay is exactly at a segment's end.
    let copy = Copy::of(primary).await;
    relay.wait_receiving().await;
    primary.execute("INSERT INTO t SELECT generate_series(21, 40)").await;
    let mut held = 1_u64;
    while !held.is_multiple_of(SEGMENT) {
        primary.execute("INSERT INTO t VALUES (0)").await;
        primary.execute("SELECT pg_switch_wal()").await;
        held = wait_durable(&relay, primary).await;
    }
    copy.put_back(primary).await;
    assert_eq!(relay.position("flushed").await, held);
    primary.start().await;
    lacks(&cluster, &relay, primary, held).await;
    // Once the primary has passed that point its position proves nothing any more: the bytes do.
    while end(primary).await <= held {
        primary.execute("INSERT INTO t VALUES (-1)").await;
        primary.execute("SELECT pg_switch_wal()").await;
    }
    primary.execute("INSERT INTO t VALUES (-1)").await;
    relay.reload("relay.upstream.timeout", "10s");
    let differs = async || {
        let (status, text) = relay.http("/readyz").await?;
        assert_eq!(status, 503, "{text}");
        text.contains("this is another history").then_some(())
    };
    cluster.wait("the other history to be seen", differs).await;
    assert_eq!(relay.metrics().await.sum("kingpost_relay_alarm", &[]), 1.0);
    assert_eq!(relay.position("flushed").await, held, "nothing of the other history was taken");

    // The opposite: the WAL that only the relay has is discarded.
    relay.stop().await;
    let (code, text) = reset(&relay);
    assert_eq!(code, Some(0), "{text}");
    relay.start().await;
    wait_durable(&relay, primary).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_takes_segments_of_another_size() {
    // A server needs at least two segments, and their size is about to grow.
    let cluster = Cluster::builder().setting("min_wal_size", "256MB").start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    primary.execute("CREATE TABLE t (n int)").await;
    wait_durable(&relay, primary).await;
    primary.stop().await;
    let mut resetwal = command(&pg_bin().join("pg_resetwal"), RunAs::Server, "KILL");
    run(resetwal.args(["--wal-segsize", "64", "-D"]).arg(primary.dir()));
    primary.start().await;
    let text = alarm(&cluster, &relay).await;
    assert!(text.contains("67108864 bytes") && text.contains("kingpost relay reset"), "{text}");
    relay.stop().await;
    let (code, text) = reset(&relay);
    assert_eq!(code, Some(0), "{text}");
    relay.start().await;
    primary.execute("INSERT INTO t VALUES (1)").await;
    wait_durable(&relay, primary).await;
    // The next start reads the files that this one has written.
    relay.kill9().await;
    relay.start().await;
    wait_durable(&relay, primary).await;
}
