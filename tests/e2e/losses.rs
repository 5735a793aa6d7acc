//! Losses beyond the guarantees of a failover: it refuses, instead of losing acknowledged commits, and goes on when told to.

use kingpost_tests::{SOON, ShowLogs, within};

use crate::common::only_kingpost;
use crate::fleet::Fleet;

/// The primary and its only relay are gone. Only the standbys' WAL is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_accepted_is_as_small_as_it_can_be() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    // The second standby has more than the first, as it receives from the primary itself.
    n1.stop().await;
    n1.follow_port(n0.port());
    n0.execute("INSERT INTO acked VALUES (1)").await;
    n2.wait_caught_up(n0).await;
    fleet.relays[0].kill9().await;
    n0.kill9().await;
    n1.start().await;
    let failover = fleet.failover();
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("0 of 1 relays answer") && text.contains("--accept-loss"), "{text}");
    let text = failover.fail(&["failover", "--accept-loss"]).await;
    assert!(text.contains("promoted n2"), "{text}");
    // The relay is still away: that is reported, and everything else was done all the same.
    assert!(text.contains("only 0 relays follow it") && text.contains("pg_rewind"), "{text}");
    assert_eq!(n2.query("SELECT count(*) FROM acked").await, "1");
    n1.wait_value("SELECT status FROM pg_stat_wal_receiver", "streaming").await;
    n1.wait_value("SELECT count(*) FROM acked", "1").await;
}

/// Servers acknowledge WAL that one relay of three has, and the configuration relies on two: the one that has it must be there.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_servers_wait_for_is_what_counts() {
    if only_kingpost() {
        return;
    }
    let mut fleet = Fleet::builder().relays(3).acknowledgements(1).start().await;
    let failover = fleet.failover().set("failover.acknowledgements", 2);
    {
        let cluster = &fleet.cluster;
        let _logs = ShowLogs(cluster.dir());
        let n0 = cluster.primary();
        for relay in &fleet.relays[1..] {
            relay.kill9().await;
        }
        within("a commit", SOON, cluster.dir(), n0.execute("INSERT INTO acked VALUES (1)")).await;
        fleet.relays[0].kill9().await;
        for standby in cluster.replicas() {
            standby.kill9().await;
        }
        n0.kill9().await;
    }
    for relay in &mut fleet.relays[1..] {
        relay.launch();
    }
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    // Relays that come back do not have it, even those with downstreams.
    for standby in cluster.replicas() {
        standby.follow_port(fleet.relays[1].port());
        standby.start().await;
    }
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("2 of 3 relays answer, and 3 have to be fenced"), "{text}");
    fleet.relays[0].launch();
    let cluster = &fleet.cluster;
    cluster.wait("the third relay", async || fleet.relays[0].http("/healthz").await).await;
    cluster
        .wait("a failover", async || (failover.run(&["failover"]).await.text.contains("promoted n")).then_some(()))
        .await;
    let mut found = 0;
    for standby in cluster.replicas() {
        assert_eq!(
            standby.query("SELECT count(*) FROM acked").await,
            "1",
            "{} lacks what was acknowledged",
            standby.name()
        );
        found += usize::from(standby.query("SELECT pg_is_in_recovery()").await == "f");
    }
    assert_eq!(found, 1);
    let ran = failover.run(&["check", "--online"]).await;
    let said = "commits there wait for 1 of the relays, fewer than failover.acknowledgements = 2";
    assert!(ran.code == Some(3) && ran.text.contains(said), "{}", ran.text);
}

/// One standby would, as the primary, acknowledge commits that no relay has.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_whose_commits_would_wait_for_nobody_is_no_candidate() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().acknowledgements(1).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    n1.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
    n1.execute("SELECT pg_reload_conf()").await;
    n1.wait_value("SHOW synchronous_standby_names", "").await;
    let failover = fleet.failover();
    let ran = failover.run(&["check", "--online"]).await;
    assert!(ran.code == Some(3) && ran.text.contains("n1 has no synchronous_standby_names"), "{}", ran.text);
    let text = failover.succeed(&["switchover"]).await;
    assert!(text.contains("promoted n2") && text.contains("n1 has no synchronous_standby_names"), "{text}");
    // If a standby counts as a relay, a failover, which asks relays only, would not know of a commit.
    n2.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({}, n1)'", fleet.relays[0].name())).await;
    n2.execute("SELECT pg_reload_conf()").await;
    n2.wait_value(
        "SELECT synchronous_standby_names FROM (SELECT current_setting('synchronous_standby_names')) AS s \
                   (synchronous_standby_names)",
        &format!("ANY 1 ({}, n1)", fleet.relays[0].name()),
    )
    .await;
    let text = failover.fail(&["switchover", "--to", "n1"]).await;
    assert!(text.contains("without any relay having it"), "{text}");
    assert!(!n0.query_past_lock("SELECT pg_is_in_recovery()").await.is_empty());
}
