//! A switchover is interrupted at any step: its locks end by themselves, the next command finds its leftovers, and no acknowledged commit is lost.

use std::time::Duration;

use kingpost_tests::{SOON, ShowLogs, wait_until, within};

use crate::common::only_kingpost;
use crate::fleet::{Fleet, History, Kind};

/// Longer than a lease.
const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_switchover_holds_ends_by_itself() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let n0 = cluster.primary();
    let kingpost = fleet.proxy().await;
    let failover = fleet.failover().proxy(&kingpost);
    let status = async || failover.run(&["status"]).await;
    assert!(status().await.text.contains("n0 is the primary"));
    let mut history = History::new(cluster.dir());
    history.add(kingpost.endpoint(), Kind::Autocommit, 4).await;
    history.add(&n0.endpoint(), Kind::Stubborn, 2).await;
    history.more(50).await;
    failover.fail(&["switchover", "--to", "n1", "--die-at", "silenced"]).await;
    // A command reports the leftovers, and that they end by themselves: a switchover could be under way.
    let text = failover.fail(&["failover"]).await;
    for said in ["was interrupted a moment ago", "proxy is paused for another", "n0 is locked, by a lease", "--abort"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let ran = status().await;
    assert!(ran.code == Some(1) && ran.text.contains("left by an interrupted run: n0 is locked"), "{}", ran.text);
    // No operator acts.
    let opened = async || n0.endpoint().try_connect(&n0.admin_config()).await.ok();
    wait_until("the primary to let clients in again", LEASE, cluster.dir(), opened).await;
    history.more(200).await;
    let ended =
        async || status().await.text.lines().last().is_some_and(|last| last == "n0 is the primary").then_some(());
    wait_until("nothing to be left over", LEASE, cluster.dir(), ended).await;
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("n0 is the primary and answers"), "{text}");
    let errors = history.check(&n0.admin().await).await;
    assert!(errors.is_empty(), "clients of the proxy saw {} errors: {:?}", errors.len(), errors.first());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_switchover_holds_can_be_taken_back_at_once() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().acknowledgements(1).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let n0 = cluster.primary();
    let kingpost = fleet.proxy().await;
    let failover = fleet.failover().proxy(&kingpost);
    let mut history = History::new(cluster.dir());
    history.add(kingpost.endpoint(), Kind::Autocommit, 4).await;
    history.more(50).await;
    for step in ["paused", "silenced", "fenced", "elected"] {
        failover.fail(&["switchover", "--to", "n1", "--die-at", step]).await;
        let text = within("--abort", SOON, cluster.dir(), failover.succeed(&["failover", "--abort"])).await;
        assert!(text.contains("n0 goes on as the primary"), "{step}: {text}");
        history.more(100).await;
        fleet.relays[0].wait_receiving().await;
    }
    let errors = history.check(&n0.admin().await).await;
    assert!(errors.is_empty(), "clients of the proxy saw {} errors: {:?}", errors.len(), errors.first());
}

/// The terminal is gone, or the operator has changed his mind.
#[tokio::test(flavor = "multi_thread")]
async fn a_switchover_that_is_told_to_end_leaves_nothing_behind() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = fleet.proxy().await;
    let failover = fleet.failover().proxy(&kingpost);
    let (client, other) = (kingpost.connect().await, kingpost.connect().await);
    for signal in [1, 15, 2] {
        // The proxies are pausing for as long as this transaction is open.
        client.batch_execute("BEGIN; INSERT INTO acked VALUES (1)").await.unwrap();
        let (switchover, _) = failover.start(&["switchover", "--to", "n1"]);
        let console = crate::console::console(&kingpost).await;
        let paused = async || {
            let rows = crate::console::rows(&console, "SHOW STATE").await;
            rows.iter().any(|row| row["key"] == "paused" && row["value"] == "yes").then_some(())
        };
        wait_until("the proxy to pause", SOON, cluster.dir(), paused).await;
        switchover.signal(signal);
        let status = switchover.wait_exit(SOON).await;
        assert!(status.code().is_some_and(|code| code != 0), "signal {signal}: {status}");
        within(
            "another client's write",
            Duration::from_secs(10),
            cluster.dir(),
            other.batch_execute("INSERT INTO acked VALUES (2)"),
        )
        .await
        .unwrap();
        client.batch_execute("COMMIT").await.unwrap();
    }
    assert_eq!(cluster.primary().query("SELECT count(*) FROM acked").await, "6");
}

/// Killed at each step, and run again: another primary, nothing lost, and clients of the proxy have only waited.
#[tokio::test(flavor = "multi_thread")]
async fn a_switchover_is_killed_at_each_step_and_run_again() {
    if only_kingpost() {
        return;
    }
    for (step, acknowledgements) in [
        ("paused", 0),
        ("silenced", 0),
        ("fenced", 0),
        ("noted", 1),
        ("caught-up", 0),
        ("elected", 0),
        ("elected", 1),
        ("promoting", 0),
        ("promoted", 0),
        ("promoted", 1),
        ("resumed", 1),
    ] {
        eprintln!("killed at {step}, {acknowledgements} acknowledgements");
        let fleet = Fleet::builder().acknowledgements(acknowledgements).start().await;
        let cluster = &fleet.cluster;
        let _logs = ShowLogs(cluster.dir());
        let [n0, n1, _] = cluster.nodes() else { panic!("three nodes") };
        let kingpost = fleet.proxy().await;
        let failover = fleet.failover().proxy(&kingpost);
        let mut history = History::new(cluster.dir());
        history.add(kingpost.endpoint(), Kind::Autocommit, 3).await;
        history.add(kingpost.endpoint(), Kind::ReadWrite, 3).await;
        history.add(&n0.endpoint(), Kind::Stubborn, 2).await;
        history.more(50).await;
        failover.fail(&["switchover", "--to", "n1", "--die-at", step]).await;
        let text = within("the next run", SOON, cluster.dir(), failover.run(&["switchover", "--to", "n1"])).await.text;
        let done = text.contains("n1 is the primary, on timeline 2") || text.contains("n1 is the primary already");
        assert!(done, "{step}: {text}");
        history.more(100).await;
        let errors = history.check(&n1.admin().await).await;
        assert!(errors.is_empty(), "{step}: clients of the proxy saw {} errors: {:?}", errors.len(), errors.first());
    }
}
