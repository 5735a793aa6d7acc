//! A silent upstream: when the relay reports it, and when not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kingpost_tests::{Cluster, Relay, ShowLogs, SlowDisk, skipped, within};

/// Interval between two looks at `/readyz`: a false alarm would last for seconds.
const PACE: Duration = Duration::from_millis(5);

/// Collects the reasons of `/readyz`, until `done` is set.
async fn reasons(relay: &Relay, done: &AtomicBool) -> Vec<String> {
    let mut reasons = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let (status, text) = relay.http("/readyz").await.expect("the relay answers");
        if status != 200 {
            reasons.push(text);
        }
        // Without a pause test and relay would take a core each, for as long as the disk is slow.
        tokio::time::sleep(PACE).await;
    }
    reasons
}

/// A suspended host keeps its connections. The relay reports it long before it closes the connection, which goes on when the host does.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_upstream_is_not_heard() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port()).set("relay.upstream.timeout", "60s");
    relay.start().await;
    primary.execute("CREATE TABLE t (n int)").await;
    primary.sigstop();
    let (_, reason) = cluster
        .wait("the relay to notice", async || relay.http("/readyz").await.filter(|(status, _)| *status != 200))
        .await;
    assert!(reason.contains("does not answer"), "{reason}");
    let metrics = relay.metrics().await;
    assert_eq!(metrics.sum("kingpost_relay_streaming", &[]), 0.0);
    assert_eq!(metrics.sum("kingpost_relay_alarm", &[]), 0.0);
    primary.sigcont();
    relay.wait_receiving().await;
    primary.execute("INSERT INTO t VALUES (1)").await;
    crate::relay::wait_durable(&relay, primary).await;
    let lost = relay.metrics().await.sum("kingpost_relay_upstream_disconnects_total", &[]);
    assert_eq!(lost, 0.0, "the connection was kept");
}

/// A local flush that takes longer than the upstream's time to answer is not the upstream's silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_is_no_silence() {
    let Some(disk) = SlowDisk::new() else {
        skipped("there is no C compiler here");
        return;
    };
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port()).environment(disk.environment());
    relay.start().await;
    primary.execute("CREATE TABLE t (n int)").await;
    crate::relay::wait_durable(&relay, primary).await;
    let flushes = async || relay.metrics().await.sum("kingpost_relay_flush_seconds_count", &[]);
    disk.set(Duration::from_secs(6));
    let before = flushes().await;
    let done = Arc::new(AtomicBool::new(false));
    let work = async {
        // Small pieces: between two of them the upstream has nothing to send.
        for n in 1..=3 {
            primary.execute("INSERT INTO t VALUES (1)").await;
            cluster.wait("a flush", async || (flushes().await >= before + f64::from(n)).then_some(())).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let both = async { tokio::join!(reasons(&relay, &done), work).0 };
    let reasons = within("three flushes", Duration::from_secs(120), cluster.dir(), both).await;
    assert!(reasons.is_empty(), "false alarms: {reasons:?}");
    disk.set(Duration::ZERO);
}
