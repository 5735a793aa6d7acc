//! `kingpost watch`: it says what is to be done, or does it under a lock in etcd.

use std::process::{Command, Stdio};

use kingpost_tests::{Cluster, Port, SOON, ShowLogs, wait_until};

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
    let (_watch, log) = failover.start(&["watch", "--after", "1s"]);
    says(cluster, &log, "n0 is the primary").await;
    cluster.primary().kill9().await;
    says(cluster, &log, "it is time for `kingpost failover`: n1 would be the primary").await;
    assert_eq!(cluster.replica(0).query("SELECT pg_is_in_recovery()").await, "t");
    assert_eq!(fleet.relays[0].metrics().await.sum("kingpost_relay_term", &[]), 0.0);
    failover.succeed(&["failover"]).await;
    says(cluster, &log, "n1 is the primary").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaces_a_lost_primary_under_a_lock() {
    if only_kingpost() {
        return;
    }
    let program = std::env::var("KINGPOST_ETCD").unwrap_or_else(|_| "etcd".into());
    if !Command::new(&program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no etcd (set KINGPOST_ETCD)");
        return;
    }
    let fleet = fleet().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let (client, peer) = (Port::reserve(), Port::reserve());
    let (url, peers) = (format!("http://127.0.0.1:{}", client.number()), format!("http://127.0.0.1:{}", peer.number()));
    let mut etcd = kingpost_tests::command(std::path::Path::new(&program), kingpost_tests::RunAs::Tests, "KILL");
    etcd.arg("--data-dir").arg(cluster.dir().join("etcd"));
    etcd.args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--listen-peer-urls", &peers]);
    etcd.args(["--initial-advertise-peer-urls", &peers, "--initial-cluster", &format!("default={peers}")]);
    etcd.stdin(Stdio::null());
    let _etcd = kingpost_tests::Process::start("etcd", etcd, &cluster.dir().join("etcd.log"));
    wait_until("etcd", SOON, cluster.dir(), async || {
        tokio::net::TcpStream::connect(("127.0.0.1", client.number())).await.ok()
    })
    .await;
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
