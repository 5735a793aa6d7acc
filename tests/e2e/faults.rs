//! Replicas that die, freeze or are cut off, under load: in clear, and again over TLS with reads on shared lanes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use kingpost_tests::{Cluster, Cut, Kingpost, Link, ShowLogs, sqlstate, within};

use crate::common::{only_kingpost, value};
use crate::ways::{Front, Ground, Way};

const CLIENTS: usize = 12;

/// Clients that read until told to stop; errors are kept.
#[derive(Default)]
struct Readers {
    reads: AtomicUsize,
    errors: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Readers {
    /// Runs the clients: each stays on its first connection, and each read must be answered within `patience`.
    async fn run(&self, front: &Front, patience: Duration) {
        let reader = |n: usize| async move {
            let client = front.connect().await;
            let statement = client.prepare("SELECT n * 2 FROM facts WHERE n = $1").await.unwrap();
            for turn in 0.. {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = (turn % 100 + 1) as i32;
                let read = async {
                    match (turn + n) % 3 {
                        0 => client.query_one(&statement, &[&key]).await.map(|row| row.get::<_, i32>(0)),
                        1 => client
                            .query_one("SELECT n * 2 FROM facts WHERE n = $1", &[&key])
                            .await
                            .map(|row| row.get(0)),
                        _ => {
                            let sql = format!("SELECT n * 2 FROM facts WHERE n = {key}");
                            let messages = client.simple_query(&sql).await;
                            messages.map(|messages| match &messages[..] {
                                [_, tokio_postgres::SimpleQueryMessage::Row(row), _] => {
                                    row.get(0).unwrap().parse().unwrap()
                                }
                                other => panic!("{sql}: {other:?}"),
                            })
                        }
                    }
                };
                match tokio::time::timeout(patience, read).await {
                    Ok(Ok(value)) => assert_eq!(value, key * 2, "a stranger's answer"),
                    Ok(Err(error)) => {
                        self.errors.lock().unwrap().push(format!("{}: {error:?}", sqlstate(&error)));
                        assert!(!client.is_closed(), "client {n} was thrown out: {error:?}");
                    }
                    Err(_) => panic!("client {n} had no answer in {patience:?}"),
                }
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        join_all((0..CLIENTS).map(reader)).await;
    }

    async fn more(&self, cluster: &Cluster, what: &str, count: usize) {
        let until = self.reads.load(Ordering::Relaxed) + count;
        let reached = async || (self.reads.load(Ordering::Relaxed) >= until).then_some(());
        cluster.wait_for(&format!("{count} reads {what}"), Duration::from_secs(60), reached).await;
    }

    fn errors(&self) -> Vec<String> {
        self.errors.lock().unwrap().clone()
    }
}

async fn facts(way: Way, log_statements: bool) -> Ground {
    let settings: &[_] = if log_statements { &[("log_statement", "all")] } else { &[] };
    let ground = Ground::start(way, settings).await;
    let sql = "CREATE TABLE facts AS SELECT generate_series(1, 100) n; GRANT SELECT ON facts TO alice";
    ground.cluster.primary().execute(sql).await;
    ground.cluster.wait_caught_up().await;
    ground
}

/// Waits until reads arrive at a node.
async fn wait_reads(cluster: &Cluster, front: &Front, node: usize) {
    let client = front.connect().await;
    let marker = format!("mark{}end", kingpost_tests::unique());
    cluster
        .wait(&format!("reads on {}", cluster.nodes()[node].name()), async || {
            value(&client, &format!("SELECT n AS {marker} FROM facts LIMIT 1")).await;
            cluster.nodes()[node].saw(&marker).then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_notices_that_a_replica_is_killed() {
    killed_replicas(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_notices_that_a_replica_is_killed_over_tls_and_lanes() {
    killed_replicas(Way::SecuredLanes).await;
}

async fn killed_replicas(way: Way) {
    if only_kingpost() {
        return;
    }
    let ground = facts(way, true).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let front = ground.front(|builder| builder).await;
    let readers = Readers::default();
    let steps = async {
        for round in 0..2 {
            let victim = cluster.replica(round % 2);
            wait_reads(cluster, &front, 1 + round % 2).await;
            readers.more(cluster, "before the kill", 300).await;
            victim.kill9().await;
            readers.more(cluster, "after the kill", 600).await;
            victim.start().await;
            readers.more(cluster, "after the restart", 300).await;
            wait_reads(cluster, &front, 1 + round % 2).await;
        }
        // Both at once: only the primary is left.
        cluster.replica(0).kill9().await;
        cluster.replica(1).kill9().await;
        readers.more(cluster, "without replicas", 300).await;
        readers.stop.store(true, Ordering::Relaxed);
    };
    let all = join(readers.run(&front, Duration::from_secs(20)), steps);
    within("readers and kills", Duration::from_secs(180), cluster.dir(), all).await;
    assert_eq!(readers.errors(), Vec::<String>::new());
    front.check_way().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_notices_that_a_replica_is_cut_off() {
    cut_off_replicas(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_notices_that_a_replica_is_cut_off_over_tls_and_lanes() {
    cut_off_replicas(Way::SecuredLanes).await;
}

async fn cut_off_replicas(way: Way) {
    if only_kingpost() {
        return;
    }
    let ground = facts(way, false).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let cut = Cut::to(cluster.replica(0).port());
    let front = ground.front(|builder| builder.through(1, &cut)).await;
    let readers = Readers::default();
    let steps = async {
        for _ in 0..3 {
            readers.more(cluster, "with all links up", 300).await;
            cut.set(Link::Cut);
            readers.more(cluster, "with one link cut", 300).await;
            cut.set(Link::Slow(Duration::from_millis(5)));
            readers.more(cluster, "with a slow link", 300).await;
            cut.set(Link::Up);
        }
        readers.stop.store(true, Ordering::Relaxed);
    };
    let all = join(readers.run(&front, Duration::from_secs(20)), steps);
    within("readers and cuts", Duration::from_secs(120), cluster.dir(), all).await;
    assert_eq!(readers.errors(), Vec::<String>::new());
    front.check_way().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_replica_or_a_black_hole_holds_nobody_up_for_long() {
    frozen_replicas(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_replica_or_a_black_hole_holds_nobody_up_for_long_over_tls_and_lanes() {
    frozen_replicas(Way::SecuredLanes).await;
}

async fn frozen_replicas(way: Way) {
    if only_kingpost() {
        return;
    }
    let ground = facts(way, false).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let cut = Cut::to(cluster.replica(1).port());
    let front = ground
        .front(|builder| {
            let builder = builder.through(2, &cut).set("cluster.probe_timeout", "300ms");
            builder.set("proxy.pool.connect_timeout", "1s")
        })
        .await;
    let readers = Readers::default();
    let steps = async {
        readers.more(cluster, "before the freeze", 300).await;
        cluster.replica(0).sigstop();
        // Enough for every client to have gone on; a client that waits for the frozen server for good makes its reader panic.
        readers.more(cluster, "with a frozen replica", 2000).await;
        cluster.replica(0).sigcont();
        readers.more(cluster, "after the thaw", 300).await;
        cut.set(Link::BlackHole);
        readers.more(cluster, "with a black hole", 2000).await;
        cut.set(Link::Up);
        readers.more(cluster, "with all links up", 300).await;
        readers.stop.store(true, Ordering::Relaxed);
    };
    let all = join(readers.run(&front, Duration::from_secs(30)), steps);
    within("readers, a freeze and a black hole", Duration::from_secs(180), cluster.dir(), all).await;
    // A read that hangs on a frozen server may fail once the server is given up, but only the reads then in flight.
    let errors = readers.errors();
    assert!(errors.len() <= 2 * CLIENTS, "{} errors: {errors:#?}", errors.len());
    front.check_way().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_gone_and_back() {
    all_servers_gone(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_gone_and_back_over_tls_and_lanes() {
    all_servers_gone(Way::SecuredLanes).await;
}

async fn all_servers_gone(way: Way) {
    if only_kingpost() {
        return;
    }
    let ground = facts(way, false).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let front = ground.front(|builder| builder).await;
    let readers = Readers::default();
    let steps = async {
        for _ in 0..2 {
            readers.more(cluster, "with all servers", 300).await;
            for node in cluster.nodes() {
                node.kill9().await;
            }
            for node in cluster.nodes() {
                node.start().await;
            }
            readers.more(cluster, "after all came back", 300).await;
        }
        readers.stop.store(true, Ordering::Relaxed);
    };
    let all = join(readers.run(&front, Duration::from_secs(60)), steps);
    within("readers and kills", Duration::from_secs(180), cluster.dir(), all).await;
    // Statements in flight wait for a server and are sent again; one with a part of its answer delivered fails.
    let errors = readers.errors();
    assert!(errors.len() <= 2 * CLIENTS, "{} errors: {errors:#?}", errors.len());
    front.check_way().await;
}

#[tokio::test]
async fn a_replica_that_lags_beyond_the_limit_gets_no_reads() {
    if only_kingpost() {
        return;
    }
    let ground = facts(Way::Plain, true).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let front = ground
        .front(|builder| builder.set("cluster.lag_limit", "500ms").set("proxy.routing.consistency", "eventual"))
        .await;
    wait_reads(cluster, &front, 1).await;
    cluster.replica(0).pause_replay().await;
    let client = front.connect().await;
    // The lag shows only while there are writes.
    cluster
        .wait("the lagging replica to get no reads", async || {
            cluster.primary().execute("CREATE TABLE IF NOT EXISTS t (n int); INSERT INTO t VALUES (1)").await;
            let marker = format!("mark{}end", kingpost_tests::unique());
            for _ in 0..20 {
                value(&client, &format!("SELECT n AS {marker} FROM facts LIMIT 1")).await;
            }
            (!cluster.replica(0).saw(&marker)).then_some(())
        })
        .await;
    cluster.replica(0).resume_replay().await;
    wait_reads(cluster, &front, 1).await;
}

#[tokio::test]
async fn a_killed_proxy_starts_again_on_its_port() {
    if only_kingpost() {
        return;
    }
    let cluster = facts(Way::Plain, false).await.cluster;
    let _logs = ShowLogs(cluster.dir());
    let mut kingpost = Kingpost::of(&cluster).start().await;
    let client = kingpost.connect().await;
    client.batch_execute("BEGIN; CREATE TABLE undone (n int)").await.unwrap();
    kingpost.kill9().await;
    assert!(client.simple_query("SELECT 1").await.is_err());
    cluster
        .wait("the servers to end the lost sessions", async || (cluster.pool_connections().await == 0).then_some(()))
        .await;
    kingpost.start().await;
    let client = kingpost.connect().await;
    assert_eq!(value(&client, "SELECT to_regclass('undone') IS NULL").await, "t");
}
