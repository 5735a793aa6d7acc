//! `kingpost watch`: it says what is to be done, or does it under a lock in etcd.

use kingpost_tests::{Cluster, Etcd, Port, SOON, ShowLogs, http_get, wait_until};

use crate::common::only_kingpost;
use crate::fleet::Fleet;

async fn fleet() -> Fleet {
    Fleet::builder().replicas(1).start().await
}

async fn says(cluster: &Cluster, log: &std::path::Path, text: &str) {
    let what = format!("`kingpost watch` to say {text:?}");
    wait_until(&what, SOON, cluster.dir(), async || {
        std::fs::read_to_string(log).unwrap_or_default().contains(text).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn says_that_the_primary_is_lost_and_changes_nothing() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let failover = fleet.failover();
    let port = Port::reserve();
    let address = format!("127.0.0.1:{}", port.number());
    let (_watch, log) = failover.start(&["watch", "--after", "1s", "--metrics-listen", &address]);
    says(cluster, &log, "n0 is the primary").await;
    let status = async |path: &str| Some(http_get(port.number(), path).await?.0);
    assert_eq!((status("/healthz").await, status("/readyz").await), (Some(200), Some(200)));
    cluster.primary().kill9().await;
    says(cluster, &log, "it is time for `kingpost failover`: n1 would be the primary").await;
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "t");
    assert_eq!(fleet.relays[0].metrics().await.sum("kingpost_relay_term", &[]), 0.0);
    assert_eq!((status("/healthz").await, status("/readyz").await), (Some(200), Some(503)));
    let (_, text) = http_get(port.number(), "/metrics").await.unwrap();
    assert!(text.contains("kingpost_watch_judgement{judgement=\"lost\"} 1"), "{text}");
    assert!(text.contains("kingpost_watch_failovers_total 0"), "{text}");
    failover.succeed(&["failover"]).await;
    says(cluster, &log, "n1 is the primary").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_lost_primary_under_a_lock() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let Some(etcd) = Etcd::start(cluster).await else { return };
    let url = etcd.url();
    let failover = fleet.failover();
    // Two of them: one acts.
    let arguments = ["watch", "--after", "1s", "--ttl", "4s", "--etcd", &url];
    let other = failover.clone().copy(cluster);
    let (_one, log) = failover.start(&arguments);
    let (_two, log_two) = other.start(&arguments);
    for log in [&log, &log_two] {
        says(cluster, log, "n0 is the primary").await;
    }
    cluster.primary().kill9().await;
    for log in [&log, &log_two] {
        says(cluster, log, "n1 is the primary").await;
    }
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "f");
    let said = [&log, &log_two].map(|log| std::fs::read_to_string(log).unwrap_or_default()).concat();
    assert_eq!(said.matches("promoted n1").count(), 1, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_a_lock_that_lives_too_short() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet().await;
    let _logs = ShowLogs(fleet.cluster.dir());
    let (watch, log) = fleet.failover().start(&["watch", "--etcd", "http://127.0.0.1:1", "--ttl", "1s"]);
    assert!(!watch.wait_exit(SOON).await.success());
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("expected at least 2s"), "{said}");
}

/// A host that is gone says nothing: nobody closes its connections. Servers and relays have to notice its silence.
#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_primary_that_is_silent() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().replicas(1).patience("2s").start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1] = cluster.nodes() else { panic!("two nodes") };
    let Some(etcd) = Etcd::start(cluster).await else { return };
    let url = etcd.url();
    let failover = fleet.failover();
    // A lock that lives for a short time is kept all the same while everything is looked at.
    let (_watch, log) = failover.start(&["watch", "--after", "1s", "--ttl", "4s", "--etcd", &url]);
    says(cluster, &log, "n0 is the primary").await;
    n0.sigstop();
    says(cluster, &log, "n1 is the primary").await;
    assert_eq!(n1.query("SELECT pg_is_in_recovery()").await, "f");
    n0.sigcont();
}
