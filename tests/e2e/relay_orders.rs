//! Single orders to a relay, as `kingpost failover` gives them; and their effect after `kill -9`.

use std::process::Command;
use std::time::Duration;

use kingpost_tests::{Cluster, Failover, Relay, SOON, ShowLogs, SlowDisk, pg_bin, skipped};

use crate::relay::wait_durable;

/// Sends an order to a relay; returns the columns of its standing, or its error.
pub(crate) fn order(relay: &Relay, order: &str) -> Result<Standing, String> {
    let mut psql = Command::new(pg_bin().join("psql"));
    psql.args(["-X", "-A", "-t", "-w", "-F", "|", "-c", order]);
    let to = format!("host=127.0.0.1 port={} user=postgres dbname=replication replication=true", relay.port());
    let output = psql.arg(to).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(Standing(text.trim_end().split('|').map(str::to_owned).collect()))
}

/// Standing of a relay, in the order of the answer's columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing(Vec<String>);

impl Standing {
    pub(crate) fn term(&self) -> &str {
        &self.0[1]
    }

    pub(crate) fn fenced(&self) -> &str {
        &self.0[5]
    }

    /// Returns term and node.
    pub(crate) fn chosen(&self) -> (&str, &str) {
        (&self.0[6], &self.0[7])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_can_be_withdrawn() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let mut relay = Relay::of(&cluster, cluster.primary().port());
    relay.start().await;
    // A new relay refuses a fence until it has what its upstream had at its start.
    wait_durable(&relay, cluster.primary()).await;
    order(&relay, "KINGPOST FENCE TERM 3 TIMELINE 1").unwrap();
    order(&relay, "KINGPOST CHOOSE TERM 3 NODE \"n1\"").unwrap();
    order(&relay, "KINGPOST FENCE TERM 4 TIMELINE 1").unwrap();
    for (text, why) in [
        ("KINGPOST RELEASE TERM 5", "node \"n1\" was chosen in term 3"),
        ("KINGPOST WITHDRAW TERM 3 NODE \"n1\"", "the relay has promised to term 4"),
        ("KINGPOST WITHDRAW TERM 5 NODE \"n1\"", "the relay has promised to term 4"),
        ("KINGPOST WITHDRAW TERM 4 NODE \"n2\"", "node \"n1\" was chosen in term 3, not \"n2\""),
    ] {
        let error = order(&relay, text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    let standing = order(&relay, "KINGPOST WITHDRAW TERM 4 NODE \"n1\"").unwrap();
    assert_eq!((standing.term(), standing.fenced(), standing.chosen()), ("4", "1", ("", "")));
    // It was durable before the answer.
    relay.kill9().await;
    relay.launch();
    let looked = cluster.wait("the relay to answer", async || order(&relay, "KINGPOST LOOK").ok()).await;
    assert_eq!((looked.term(), looked.fenced(), looked.chosen()), ("4", "1", ("", "")));
    order(&relay, "KINGPOST WITHDRAW TERM 4 NODE \"n1\"").expect("it may be said again");
    order(&relay, "KINGPOST RELEASE TERM 5").unwrap();
    relay.wait_receiving().await;
}

/// With flushes of several seconds the fence is carried out, and reported as such.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_does_not_make_a_fence_fail() {
    let Some(disk) = SlowDisk::new() else {
        skipped("there is no C compiler here");
        return;
    };
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    let mut relay = Relay::of(&cluster, primary.port()).environment(disk.environment());
    relay.start().await;
    replica.follow_port(relay.port());
    primary.execute("CREATE TABLE t (n int)").await;
    replica.wait_caught_up(primary).await;
    disk.set(Duration::from_secs(4));
    primary.execute("INSERT INTO t SELECT generate_series(1, 100000)").await;
    primary.kill9().await;
    cluster.wait("the relay to notice", async || (relay.http("/readyz").await?.0 != 200).then_some(())).await;
    let failover = Failover::of(&cluster, &[&relay]);
    let (process, log) = failover.start(&["failover"]);
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let ended = || process.exit_status().is_some();
    cluster.wait("a word of the fence", async || (said().contains("fenced") || ended()).then_some(())).await;
    assert!(said().contains(&format!("fenced {}", relay.name())), "{}", said());
    // The rest is not the subject of this test.
    disk.set(Duration::ZERO);
    assert!(process.wait_exit(SOON).await.success(), "{}", said());
    assert!(said().contains("promoted n1"), "{}", said());
}
