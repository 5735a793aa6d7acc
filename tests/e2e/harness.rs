//! The harness itself: the properties that other tests rely on when they blame the proxy.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kingpost_tests::{Cluster, Cut, Endpoint, Link, Metrics, Port, SOON, ShowLogs, run_dir, wait_until};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::common::value;

#[tokio::test]
async fn nodes_die_come_back_and_change_roles() {
    let cluster = Cluster::builder().replicas(2).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (old, new, other) = (cluster.primary(), cluster.replica(0), cluster.replica(1));
    old.execute("CREATE TABLE t AS SELECT 1 AS n").await;
    cluster.wait_caught_up().await;
    assert_eq!(other.query("SELECT count(*) FROM t").await, "1");

    new.kill9().await;
    assert!(!new.is_running());
    old.execute("INSERT INTO t VALUES (2)").await;
    new.start().await;
    cluster.wait_streaming(old, 2).await;
    cluster.wait_caught_up().await;
    assert_eq!(new.query("SELECT count(*) FROM t").await, "2");

    old.kill9().await;
    new.promote().await;
    other.follow(new).await;
    new.execute("INSERT INTO t VALUES (3)").await;
    other.wait_caught_up(new).await;
    assert_eq!(other.query("SELECT count(*) FROM t").await, "3");
    old.start().await;
    assert_eq!(old.query("SELECT pg_is_in_recovery()").await, "f", "the stale one takes itself for the primary");
    assert_eq!(old.query("SELECT count(*) FROM t").await, "2");
    old.execute("INSERT INTO t VALUES (666)").await;
    old.stop().await;
    old.rejoin(new).await;
    old.wait_caught_up(new).await;
    assert_eq!(old.query("SELECT string_agg(n::text, ' ' ORDER BY n) FROM t").await, "1 2 3");
    cluster.wait_streaming(new, 2).await;
}

#[tokio::test]
async fn replay_can_be_paused_and_delayed() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let (primary, replica) = (cluster.primary(), cluster.replica(0));
    primary.execute("CREATE TABLE t AS SELECT 1 AS n").await;
    cluster.wait_caught_up().await;
    replica.pause_replay().await;
    primary.execute("INSERT INTO t VALUES (2)").await;
    let received = primary.query("SELECT pg_current_wal_lsn()").await;
    replica.wait_value(&format!("SELECT pg_last_wal_receive_lsn() >= '{received}'"), "t").await;
    assert_eq!(replica.query("SELECT count(*) FROM t").await, "1");
    replica.resume_replay().await;
    cluster.wait_caught_up().await;
    assert_eq!(replica.query("SELECT count(*) FROM t").await, "2");

    replica.recovery_delay(Duration::from_secs(3600)).await;
    primary.execute("INSERT INTO t VALUES (3)").await;
    let received = primary.query("SELECT pg_current_wal_lsn()").await;
    replica.wait_value(&format!("SELECT pg_last_wal_receive_lsn() >= '{received}'"), "t").await;
    assert_eq!(replica.query("SELECT count(*) FROM t").await, "2");
    replica.recovery_delay(Duration::ZERO).await;
    cluster.wait_caught_up().await;
    assert_eq!(replica.query("SELECT count(*) FROM t").await, "3");
}

#[tokio::test]
async fn a_link_is_cut_black_holed_and_mended() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let cut = Cut::to(cluster.primary().port());
    let endpoint = Endpoint::new(cut.port(), cluster.dir());
    let client = endpoint.connect().await;
    assert_eq!(value(&client, "SELECT 7").await, "7");
    cut.set(Link::Slow(Duration::from_millis(1)));
    assert_eq!(value(&client, "SELECT 7").await, "7");
    cut.set(Link::BlackHole);
    {
        let asked = client.simple_query("SELECT 7");
        futures_util::pin_mut!(asked);
        // Nothing can arrive: a probe of another link is answered meanwhile.
        cluster.primary().query("SELECT 1").await;
        assert!(futures_util::FutureExt::now_or_never(&mut asked).is_none());
        cut.set(Link::Up);
        assert!(asked.await.is_ok());
    }
    cut.set(Link::Cut);
    wait_until("the connection to end", SOON, cluster.dir(), async || client.is_closed().then_some(())).await;
    assert!(endpoint.try_connect(&endpoint.config()).await.is_err());
    cut.set(Link::Up);
    endpoint.connect().await;
}

#[tokio::test]
async fn a_frozen_node_answers_after_the_thaw() {
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let client = cluster.primary().endpoint().connect().await;
    cluster.primary().sigstop();
    let asked = client.simple_query("SELECT 7");
    assert!(tokio::time::timeout(Duration::from_millis(200), asked).await.is_err(), "a frozen server answered");
    cluster.primary().sigcont();
    assert_eq!(value(&client, "SELECT 8").await, "8");
}

#[tokio::test]
async fn a_reserved_port_is_given_to_nobody_else() {
    let port = Port::reserve();
    for _ in 0..2 {
        // A server can listen there, stop, and listen again.
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port.number())).await.unwrap();
        drop(listener);
    }
    for _ in 0..500 {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_ne!(other.local_addr().unwrap().port(), port.number());
    }
}

/// Not a test: the child process of [`a_killed_test_process_leaves_nothing`].
#[tokio::test]
async fn inner_process_that_is_killed() {
    if std::env::var_os("KINGPOST_TESTS_INNER").is_none() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let pid = |node: &kingpost_tests::Node| {
        let file = std::fs::read_to_string(cluster.dir().join(node.name()).join("postmaster.pid")).unwrap();
        file.lines().next().unwrap().to_owned()
    };
    cluster.replica(0).sigstop();
    eprintln!("\nready {} {} {}", run_dir().display(), pid(cluster.primary()), pid(cluster.replica(0)));
    std::future::pending().await
}

#[tokio::test]
async fn a_killed_test_process_leaves_nothing() {
    let mut inner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "harness::inner_process_that_is_killed", "--nocapture"])
        .env("KINGPOST_TESTS_INNER", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(inner.stderr.take().unwrap()).lines();
    let ready = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the inner process says that it is ready");
            if let Some(ready) = line.strip_prefix("ready ") {
                return ready.to_owned();
            }
        }
    });
    let ready = ready.await.expect("the inner process is ready in time");
    let mut words = ready.split(' ');
    let dir = PathBuf::from(words.next().unwrap());
    let processes: Vec<PathBuf> = words.map(|pid| PathBuf::from("/proc").join(pid)).collect();
    assert!(dir.exists() && processes.len() == 2 && processes.iter().all(|process| process.exists()), "{ready}");
    inner.kill().await.unwrap();
    wait_until("the servers and their files to go", SOON, run_dir(), async || {
        (!dir.exists() && !processes.iter().any(|process| process.exists())).then_some(())
    })
    .await;
}

#[test]
fn metrics_in_valid_text_are_read() {
    let text = "# HELP a_total All of \"it\".\n# TYPE a_total counter\na_total{x=\"1\",y=\"q\\\"\\n\"} 3\na_total 4\n\
                # TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3.5\nh_count 2\n";
    let metrics = Metrics::parse(text).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(metrics.sum("a_total", &[]), 7.0);
    assert_eq!(metrics.sum("a_total", &[("x", "1")]), 3.0);
}

#[test]
fn rules_that_metrics_break_are_named() {
    let histogram = "# TYPE h histogram\n";
    for (text, rule) in [
        ("a 1\n", "without a TYPE"),
        ("# TYPE a gauge\na 1", "does not end"),
        ("# TYPE a counter\na 1\n", "not named _total"),
        ("# TYPE a gauge\na 1\na 2\n", "a sample twice"),
        ("# TYPE a gauge\na{x=1} 1\n", "not a sample"),
        ("# TYPE a gauge\na inf\n", "not a sample"),
        ("# TYPE a gauge\n# TYPE b gauge\nb 1\na 1\n", "in two places"),
        (&format!("{histogram}h_bucket{{le=\"1\"}} 1\nh_count 1\nh_sum 1\n"), "no bucket +Inf"),
        (&format!("{histogram}h_bucket{{le=\"1\"}} 2\nh_bucket{{le=\"+Inf\"}} 1\nh_count 1\n"), "out of order"),
        (&format!("{histogram}h_bucket{{le=\"+Inf\"}} 1\nh_count 2\n"), "_count is not"),
    ] {
        let error = Metrics::parse(text).err().unwrap_or_default();
        assert!(error.contains(rule), "{text:?}: {error:?} does not say {rule:?}");
    }
}
