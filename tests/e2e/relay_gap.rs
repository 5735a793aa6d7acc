//! A relay that lacks WAL which its upstream has removed, or that has more than a primary that is to stay: the remedies.

use std::process::Command;

use kingpost_tests::{Cluster, Node, Relay, ShowLogs, kingpost_bin};

use crate::relay::wait_durable;
use crate::relay_orders::order;

/// Starts a primary that keeps next to no WAL; with `all` not even for slots.
async fn forgetful(all: bool) -> Cluster {
    let builder = Cluster::builder().setting("wal_keep_size", "0").setting("min_wal_size", "32MB");
    let builder = builder.setting("max_wal_size", "32MB");
    if all { builder.setting("max_slot_wal_keep_size", "1MB").start().await } else { builder.start().await }
}

/// Writes until `done` holds.
async fn write_until(primary: &Node, sql: &str, done: &str) {
    for _ in 0..20 {
        primary.execute("INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n").await;
        primary.execute("SELECT pg_switch_wal()").await;
        primary.execute("CHECKPOINT").await;
        if primary.query(sql).await == done {
            return;
        }
    }
    panic!("{sql} is not {done}:\n{}", primary.log());
}

/// Writes until the slot of a stopped relay is lost.
async fn until_it_is_lost(primary: &Node, relay: &Relay) {
    let sql = format!("SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = '{}'", relay.name());
    write_until(primary, &sql, "lost").await;
}

/// Returns the segment of a position.
fn segment(position: u64) -> String {
    format!("{:08X}{:08X}{:08X}", 1, position >> 32, (position & 0xffff_ffff) >> 24)
}

/// Returns the reason of an alarm, once it is raised and stays.
pub(crate) async fn alarm(cluster: &Cluster, relay: &Relay) -> String {
    cluster
        .wait("the alarm", async || {
            // The relay may not listen yet.
            relay.http("/readyz").await?;
            let alarmed = relay.metrics().await.sum("kingpost_relay_alarm", &[]) == 1.0;
            let (_, text) = relay.http("/readyz").await?;
            alarmed.then_some(text)
        })
        .await
}

/// Runs `kingpost relay reset`; returns its exit code and output.
pub(crate) fn reset(relay: &Relay) -> (Option<i32>, String) {
    let output = Command::new(kingpost_bin()).args(["relay", "reset", "--dir"]).arg(relay.dir()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_filled_by_another_relay() {
    let cluster = forgetful(false).await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut first = Relay::of(&cluster, primary.port());
    let mut second = Relay::of(&cluster, primary.port());
    // Each configuration lists both: the files of two relays are the same.
    let both = [("relay1", first.port()), ("relay2", second.port())];
    for relay in [&mut first, &mut second] {
        relay.knows(&both);
        relay.launch();
    }
    first.wait_receiving().await;
    second.wait_receiving().await;
    primary.execute("CREATE TABLE t (n int, pad text)").await;
    wait_durable(&first, primary).await;

    // While the first is stopped, its slot is dropped. That of the second keeps what the second lacks.
    let held = first.position("flushed").await;
    first.stop().await;
    primary.execute(&format!("SELECT pg_drop_replication_slot('{}')", first.name())).await;
    let gone = format!("SELECT count(*) FROM pg_ls_waldir() WHERE name = '{}'", segment(held));
    write_until(primary, &gone, "0").await;
    wait_durable(&second, primary).await;
    let rows = primary.query("SELECT count(*) FROM t").await;
    first.start().await;
    primary.execute("INSERT INTO t VALUES (1)").await;
    wait_durable(&first, primary).await;
    assert!(first.log().contains("catching up from relay relay2"), "{}", first.log());
    assert_eq!(first.metrics().await.sum("kingpost_relay_alarm", &[]), 0.0);

    // A standby with data from the beginning gets all WAL from it: nothing is missing or different.
    primary.kill9().await;
    second.kill9().await;
    let cold = cluster.standby("cold", first.port());
    cold.start().await;
    cold.wait_value("SELECT count(*) FROM t", &(rows.parse::<u64>().unwrap() + 1).to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_nobody_can_fill_ends_with_a_reset() {
    let cluster = forgetful(true).await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    primary.execute("CREATE TABLE t (n int, pad text)").await;
    wait_durable(&relay, primary).await;
    order(&relay, "CREATE_REPLICATION_SLOT away PHYSICAL RESERVE_WAL").unwrap();
    order(&relay, "KINGPOST FENCE TERM 6 TIMELINE 1").unwrap();
    order(&relay, "KINGPOST RELEASE TERM 7").unwrap();
    relay.wait_receiving().await;
    relay.stop().await;
    until_it_is_lost(primary, &relay).await;
    // Counted: between two attempts no slot exists, because the relay drops a lost one and recreates it.
    let restart = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND wal_status <> 'lost' AND restart_lsn IS NOT NULL",
        relay.name()
    );
    relay.launch();
    let text = alarm(&cluster, &relay).await;
    assert!(text.contains("has already been removed") && text.contains("kingpost relay reset"), "{text}");
    // The alarm stays while the relay retries.
    let tries = async || relay.metrics().await.sum("kingpost_relay_upstream_disconnects_total", &[]);
    let before = tries().await;
    let again = async || {
        assert_eq!(relay.metrics().await.sum("kingpost_relay_alarm", &[]), 1.0);
        let (status, text) = relay.http("/readyz").await?;
        assert!(status == 503 && text.contains("kingpost relay reset"), "{text}");
        (tries().await > before).then_some(())
    };
    cluster.wait("another try", again).await;
    // The slot keeps all later WAL. A checkpoint in progress may invalidate it once more; the next attempt recreates it.
    let kept = async || {
        // Only a checkpoint detects that a slot's WAL is gone.
        primary.execute("CHECKPOINT").await;
        (primary.query(&restart).await == "1").then_some(())
    };
    cluster.wait("a slot that keeps WAL", kept).await;

    let (code, text) = reset(&relay);
    assert!(code == Some(4) && text.contains("in use by another process"), "{text}");
    relay.stop().await;
    let (code, text) = reset(&relay);
    assert!(code == Some(0) && text.contains("000000010000000000000001") && text.contains("term 7"), "{text}");
    relay.start().await;
    let standing = order(&relay, "KINGPOST LOOK").unwrap();
    assert_eq!((standing.term(), standing.fenced()), ("7", ""), "what it promised is kept");
    assert!(order(&relay, "KINGPOST FENCE TERM 7 TIMELINE 1").is_err());
    let metrics = relay.metrics().await;
    assert!(metrics.sum("kingpost_relay_slot_restart_bytes", &[("slot", "away")]) > 0.0, "slots are kept");
    primary.execute("INSERT INTO t VALUES (1)").await;
    wait_durable(&relay, primary).await;
    // The old WAL is still there, for inspection.
    let aside = std::fs::read_dir(relay.dir()).unwrap().flatten();
    let aside = aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("given-up-"));
    assert!(aside.map(|entry| entry.path().join("000000010000000000000001")).any(|segment| segment.exists()));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_primary_that_is_to_stay_ends_with_a_reset() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let mut relay = Relay::of(&cluster, primary.port());
    relay.start().await;
    let behind = cluster.standby("behind", relay.port());
    behind.start().await;
    primary.execute("CREATE TABLE t (n int)").await;
    behind.wait_caught_up(primary).await;
    behind.stop().await;
    primary.execute("INSERT INTO t VALUES (1)").await;
    wait_durable(&relay, primary).await;
    primary.kill9().await;
    relay.stop().await;
    // An operator promotes it deliberately, without the relay's WAL.
    behind.start().await;
    behind.promote().await;
    behind.execute("INSERT INTO t VALUES (2)").await;
    let mut relay = relay.set("relay.upstream.address", format!("127.0.0.1:{}", behind.port()));
    relay.launch();
    let text = alarm(&cluster, &relay).await;
    assert!(text.contains("has not got all that") && text.contains("kingpost relay reset"), "{text}");
    relay.stop().await;
    let (code, text) = reset(&relay);
    assert_eq!(code, Some(0), "{text}");
    relay.start().await;
    wait_durable(&relay, &behind).await;
    let standby = cluster.standby("late", behind.port());
    standby.start().await;
    standby.wait_value("SELECT string_agg(n::text, ' ') FROM t", "2").await;
    standby.follow_port(relay.port());
    let from_the_relay = format!(
        "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming' AND received_tli = 2 AND sender_port = {}",
        relay.port()
    );
    standby.wait_value(&from_the_relay, "1").await;
    behind.execute("INSERT INTO t VALUES (3)").await;
    standby.wait_value("SELECT string_agg(n::text, ' ' ORDER BY n) FROM t", "2 3").await;
}
