//! Choice of the new primary, and the way on if the chosen one cannot be promoted: nothing is fenced before everything that can be known is known,
//! and there is always a command that goes on.

use std::process::Command;

use kingpost_tests::{Cut, Failover, Link, Node, Relay, SOON, ShowLogs, pg_bin, within};

use crate::common::only_kingpost;
use crate::fleet::Fleet;

/// Makes a primary with two standbys, whose commits wait for the relay.
async fn synchronous() -> Fleet {
    Fleet::builder().acknowledgements(1).start().await
}

/// Checks that commits on this server complete.
async fn commits(fleet: &Fleet, primary: &Node, n: i64) {
    let sql = format!("INSERT INTO acked VALUES ({n})");
    within("a commit", SOON, fleet.cluster.dir(), primary.execute(&sql)).await;
}

async fn fenced(fleet: &Fleet) -> bool {
    fleet.relays[0].metrics().await.sum("kingpost_relay_fenced", &[]) == 1.0
}

/// Kills the primary, and waits until the relays know it.
async fn lose(fleet: &Fleet, primary: &Node) {
    primary.kill9().await;
    for relay in &fleet.relays {
        fleet.cluster.wait("the relay to notice", async || (relay.http("/readyz").await?.0 != 200).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_fenced_before_everything_was_looked_at() {
    if only_kingpost() {
        return;
    }
    let fleet = synchronous().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let failover = fleet.failover();
    // A typing error, on a healthy cluster.
    let text = failover.fail(&["failover", "--force", "--to", "n9"]).await;
    assert!(text.contains("there is no node \"n9\": expected one of n0, n1, n2"), "{text}");
    assert!(!fenced(&fleet).await, "{text}");
    commits(&fleet, n0, 1).await;
    // No relay, in another operator's configuration.
    let away = Relay::of(cluster, n0.port());
    let text = Failover::of(cluster, &[&fleet.relays[0], &away]).fail(&["failover", "--force"]).await;
    assert!(text.contains("1 of 2 relays answer, and 2 have to be fenced"), "{text}");
    assert!(!fenced(&fleet).await, "{text}");
    commits(&fleet, n0, 2).await;
    // No standby.
    for standby in [n1, n2] {
        standby.kill9().await;
    }
    lose(&fleet, n0).await;
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("no standby answers"), "{text}");
    assert!(!fenced(&fleet).await, "{text}");
    n0.start().await;
    commits(&fleet, n0, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_lags_on_purpose_is_no_candidate() {
    if only_kingpost() {
        return;
    }
    let fleet = synchronous().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let failover = fleet.failover();
    // Among equals the first in the order of the configuration.
    n1.recovery_delay(std::time::Duration::from_secs(3600)).await;
    commits(&fleet, n0, 1).await;
    lose(&fleet, n0).await;
    let text = failover.fail(&["failover", "--to", "n1"]).await;
    assert!(text.contains("recovery_min_apply_delay"), "{text}");
    assert!(!fenced(&fleet).await, "{text}");
    let text = failover.succeed(&["failover"]).await;
    assert!(text.contains("n1 replays everything") && text.contains("promoted n2"), "{text}");
    commits(&fleet, n2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_say_who_comes_first_and_who_never() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().replicas(3).acknowledgements(1).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, _, n2, n3] = cluster.nodes() else { panic!("four nodes") };
    let failover = fleet.failover();
    let failover = failover.tag("n1", "failover", "never").tag("n3", "failover_priority", 2);
    let text = failover.fail(&["switchover", "--to", "n1"]).await;
    assert!(text.contains("n1 is never to be promoted"), "{text}");
    let text = failover.succeed(&["switchover"]).await;
    assert!(text.contains("promoted n3"), "{text}");
    commits(&fleet, n3, 1).await;
    // The one with the priority is lost.
    n3.kill9().await;
    cluster.wait("the relay to notice", async || (fleet.relays[0].http("/readyz").await?.0 != 200).then_some(())).await;
    let text = failover.succeed(&["failover"]).await;
    assert!(text.contains("promoted n2"), "{text}");
    commits(&fleet, n2, 2).await;
    assert_eq!(n0.query_past_lock("SELECT count(*) FROM acked").await, "0");
}

/// Creates a slot as the guide says.
fn make_slot(relay: &Relay, slot: &str) {
    let to = format!("host=127.0.0.1 port={} user=postgres replication=true dbname=x", relay.port());
    let make = format!("CREATE_REPLICATION_SLOT {slot} PHYSICAL RESERVE_WAL");
    let made = Command::new(pg_bin().join("psql")).args(["-X", &to, "-c", &make]).output().expect("psql");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A standby streams by a slot from a relay that lacks WAL. It is moved to another relay, which has no such slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_goes_along_to_another_relay() {
    if only_kingpost() {
        return;
    }
    let mut fleet = Fleet::builder().replicas(1).start().await;
    let [n0, n1] = fleet.cluster.nodes() else { panic!("two nodes") };
    let cut = Cut::to(n0.port());
    let mut behind = Relay::of(&fleet.cluster, cut.port());
    behind.start().await;
    make_slot(&behind, "n1");
    n1.follow_by_slot(behind.port(), "n1");
    n1.wait_value("SELECT slot_name FROM pg_stat_wal_receiver", "n1").await;
    n1.wait_caught_up(n0).await;
    cut.set(Link::BlackHole);
    n0.execute("INSERT INTO acked VALUES (1)").await;
    let target = n0.query("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").await.parse().unwrap();
    let ahead = &fleet.relays[0];
    fleet
        .cluster
        .wait("the relay to have it", async || (ahead.position("flushed").await >= target).then_some(()))
        .await;
    n0.kill9().await;
    fleet.relays.push(behind);
    let _logs = ShowLogs(fleet.cluster.dir());
    // The relay behind the cut does not know yet that the primary is lost.
    let text = fleet.failover().succeed(&["failover", "--force"]).await;
    assert!(text.contains("promoted n1"), "{text}");
    assert_eq!(n1.query("SELECT count(*) FROM acked").await, "1");
}

/// A run ends between the election and the promotion, and the elected node is gone for good.
#[tokio::test(flavor = "multi_thread")]
async fn an_elected_node_that_is_gone_can_be_given_up() {
    if only_kingpost() {
        return;
    }
    let fleet = Fleet::builder().replicas(1).acknowledgements(1).start().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1] = cluster.nodes() else { panic!("two nodes") };
    let failover = fleet.failover();
    commits(&fleet, n0, 1).await;
    lose(&fleet, n0).await;
    failover.fail(&["failover", "--die-at", "elected"]).await;
    n1.kill9().await;
    n0.start().await;
    // The node may have been promoted: only an operator can know that it was not. The message names the way on.
    for command in [&["failover"][..], &["failover", "--abort"], &["switchover"]] {
        let text = failover.fail(command).await;
        assert!(text.contains("kingpost failover --abort --force"), "{command:?}: {text}");
    }
    assert!(fenced(&fleet).await);
    let text = failover.succeed(&["failover", "--abort", "--force"]).await;
    assert!(text.contains("n0 goes on as the primary"), "{text}");
    commits(&fleet, n0, 2).await;
    // It was not promoted, and is a standby again.
    n1.start().await;
    n1.wait_caught_up(n0).await;
    let text = failover.succeed(&["switchover"]).await;
    assert!(text.contains("promoted n1"), "{text}");
    commits(&fleet, n1, 3).await;
}

/// A run ends between the election and the promotion, and the elected node answers as a standby: it can be given up without force, for another node
/// or the old primary; also when another node is gone for good.
#[tokio::test(flavor = "multi_thread")]
async fn an_elected_node_that_answers_can_be_given_up_without_force() {
    if only_kingpost() {
        return;
    }
    let fleet = synchronous().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let failover = fleet.failover();
    commits(&fleet, n0, 1).await;
    lose(&fleet, n0).await;
    failover.fail(&["failover", "--to", "n1", "--die-at", "elected"]).await;
    n0.start().await;
    assert!(fenced(&fleet).await);
    let text = failover.succeed(&["failover", "--abort"]).await;
    assert!(text.contains("n1, which was elected in an earlier run, is given up"), "{text}");
    commits(&fleet, n0, 2).await;

    lose(&fleet, n0).await;
    failover.fail(&["failover", "--to", "n1", "--die-at", "elected"]).await;
    n1.kill9().await;
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("n1 was elected in term") && text.contains("kingpost failover --force"), "{text}");
    n1.start().await;
    // By default the same node goes on; another one only if it is named.
    let text = failover.succeed(&["failover", "--dry-run"]).await;
    assert!(text.contains("have n1 catch up"), "{text}");
    let text = failover.succeed(&["failover", "--to", "n2"]).await;
    assert!(
        text.contains("n1, which an earlier run had elected, is given up") && text.contains("promoted n2"),
        "{text}"
    );
    commits(&fleet, n2, 3).await;
    n1.wait_value("SELECT count(*) FROM acked", "3").await;
}

/// Two runs: the first is suspended right before it promotes the elected node, and the second gives that node up. When the first goes on, it must not
/// promote it any more: two servers promoted from one point would be on the same new timeline.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_overtaken_promotes_nothing() {
    if only_kingpost() {
        return;
    }
    let fleet = synchronous().await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    commits(&fleet, n0, 1).await;
    lose(&fleet, n0).await;
    let (first, log) = fleet.failover().start(&["failover", "--to", "n1", "--stop-at", "promoting"]);
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    cluster.wait("the first run to stand still", async || said().contains("standing still").then_some(())).await;
    let text = fleet.failover().copy(cluster).succeed(&["failover", "--to", "n2"]).await;
    assert!(
        text.contains("n1, which an earlier run had elected, is given up") && text.contains("promoted n2"),
        "{text}"
    );
    first.signal(18);
    let status = first.wait_exit(SOON).await;
    assert!(!status.success(), "{}", said());
    assert!(said().contains("n1 is not promoted: a failover in term 2"), "{}", said());
    assert!(said().contains("has begun on it since"), "{}", said());
    assert_eq!(n1.query("SELECT pg_is_in_recovery()").await, "t");
    commits(&fleet, n2, 2).await;
    n1.wait_value("SELECT count(*) FROM acked", "2").await;
}
