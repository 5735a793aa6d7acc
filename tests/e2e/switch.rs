//! `kingpost failover` and `switchover`: another primary, without the loss of acknowledged commits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kingpost_tests::{Cluster, Failover, Kingpost, Relay, SOON, ShowLogs, within};
use tokio::sync::Mutex;

use crate::common::{only_kingpost, value};
use crate::fleet::Fleet;

/// Starts a primary and two standbys, with a relay in between that commits wait for. `named`: the relay's configuration names its upstream.
async fn fleet(named: bool) -> Fleet {
    let builder = Fleet::builder().acknowledgements(1);
    if named { builder.named().start().await } else { builder.start().await }
}

/// Clients of a proxy that insert numbers, each once.
struct Writers {
    acked: Arc<Mutex<BTreeSet<i64>>>,
    errors: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    async fn start(kingpost: &Kingpost, count: usize) -> Writers {
        let (acked, errors) = (Arc::<Mutex<BTreeSet<i64>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = Vec::new();
        for _ in 0..count {
            let client = kingpost.connect().await;
            let (acked, errors, stop, next) = (acked.clone(), errors.clone(), stop.clone(), next.clone());
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed) as i64;
                    match client.batch_execute(&format!("INSERT INTO acked VALUES ({n})")).await {
                        Ok(()) => drop(acked.lock().await.insert(n)),
                        Err(error) => errors.lock().await.push(format!("{error:?}")),
                    }
                    assert!(!client.is_closed(), "a client was thrown out");
                }
            }));
        }
        Writers { acked, errors, stop, tasks }
    }

    async fn more(&self, cluster: &Cluster, count: usize) {
        let target = self.acked.lock().await.len() + count;
        cluster
            .wait("more acknowledged commits", async || (self.acked.lock().await.len() >= target).then_some(()))
            .await;
    }

    /// Ends them; checks that acknowledged rows are there, and none twice. Returns the errors.
    async fn check(self, kingpost: &Kingpost, cluster: &Cluster) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            within("a writer to end", SOON, cluster.dir(), task).await.unwrap();
        }
        let client = kingpost.connect().await;
        let rows = client.query("/* kingpost.route=primary */ SELECT n FROM acked", &[]).await.unwrap();
        let held: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let set: BTreeSet<i64> = held.iter().copied().collect();
        assert_eq!(set.len(), held.len(), "something is there twice");
        let acked = self.acked.lock().await;
        let lost: Vec<_> = acked.difference(&set).collect();
        assert!(lost.is_empty(), "{} of {} acknowledged commits are lost: {lost:?}", lost.len(), acked.len());

        self.errors.lock().await.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_loses_nothing_that_was_acknowledged() {
    if only_kingpost() {
        return;
    }
    let mut fleet = fleet(true).await;
    let (cluster, failover) = (&fleet.cluster, fleet.failover());
    let _logs = ShowLogs(cluster.dir());
    let [old, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let kingpost = Kingpost::of(cluster).start().await;
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("n0 is the primary and answers"), "{text}");

    let writers = Writers::start(&kingpost, 8).await;
    writers.more(cluster, 100).await;
    old.kill9().await;
    // One standby has not replayed everything that it received, the other has: both reach the same end.
    let dry = failover.succeed(&["failover", "--to", "n2", "--dry-run"]).await;
    assert!(dry.contains("would fence 1"), "{dry}");
    let text = failover.succeed(&["failover", "--to", "n2"]).await;
    assert!(text.contains("promoted n2") && text.contains("n1 follows on timeline 2"), "{text}");
    assert!(text.contains("pg_rewind"), "says what to do with the old primary: {text}");
    writers.more(cluster, 100).await;

    // The old primary comes back unchanged: nobody accepts it as primary, and the relay takes nothing from it.
    old.start().await;
    assert_eq!(old.query("SELECT pg_is_in_recovery()").await, "f");
    writers.more(cluster, 100).await;
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("n2 is the primary and answers"), "{text}");
    // The relay was told its upstream, and remembers it.
    fleet.relays[0].kill9().await;
    fleet.relays[0].start().await;
    writers.more(&fleet.cluster, 100).await;
    assert_eq!(n1.query("SELECT received_tli FROM pg_stat_wal_receiver").await, "2");
    assert_eq!(n2.query("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'").await, "1");
    writers.check(&kingpost, &fleet.cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switchover_is_not_noticed() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet(false).await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, _] = cluster.nodes() else { panic!("three nodes") };
    let kingpost = Kingpost::of(cluster).start().await;
    let failover = fleet.failover().proxy(&kingpost);
    let writers = Writers::start(&kingpost, 8).await;
    writers.more(cluster, 50).await;

    // With a program that stops servers: a clean shutdown, after which the old primary goes on as a standby, unchanged.
    let stopping = failover.clone().stopping(cluster);
    let dry = stopping.succeed(&["switchover", "--to", "n1", "--dry-run"]).await;
    assert!(dry.contains("would pause the proxies, stop it"), "{dry}");
    stopping.succeed(&["switchover", "--to", "n1"]).await;
    writers.more(cluster, 50).await;
    assert!(!n0.is_running());
    n0.demote(fleet.relays[0].port());
    n0.start().await;
    n0.wait_value("SELECT received_tli FROM pg_stat_wal_receiver", "2").await;

    // Without one the old primary is locked and stays.
    let text = failover.succeed(&["switchover", "--to", "n0"]).await;
    assert!(text.contains("n1 is locked"), "{text}");
    writers.more(cluster, 50).await;
    assert_eq!(n1.query_past_lock("SHOW default_transaction_read_only").await, "on");
    assert_eq!(n0.query("SELECT pg_is_in_recovery()").await, "f");
    let errors = writers.check(&kingpost, cluster).await;
    assert!(errors.is_empty(), "clients saw {} errors: {errors:?}", errors.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switchover_that_fails_leaves_the_primary() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet(false).await;
    let cluster = &fleet.cluster;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, _] = cluster.nodes() else { panic!("three nodes") };
    let kingpost = Kingpost::of(cluster).start().await;
    let failover = fleet.failover().proxy(&kingpost);
    let text = failover.fail(&["switchover", "--to", "n7"]).await;
    assert!(text.contains("n0, n1, n2"), "{text}");

    // A transaction does not end: the proxies go on, and nothing was changed.
    let client = kingpost.connect().await;
    client.batch_execute("BEGIN; INSERT INTO acked VALUES (1)").await.unwrap();
    let text = failover.clone().set("failover.step_timeout", "1s").fail(&["switchover", "--to", "n1"]).await;
    assert!(text.contains("not every proxy paused"), "{text}");
    client.batch_execute("COMMIT; INSERT INTO acked VALUES (2)").await.unwrap();

    // A standby with paused replay would never catch up: that is known before anything is done.
    n1.pause_replay().await;
    let text = failover.fail(&["switchover", "--to", "n1"]).await;
    assert!(text.contains("replay is paused on n1") && text.contains("pg_wal_replay_resume"), "{text}");
    n1.resume_replay().await;
    client.batch_execute("INSERT INTO acked VALUES (3)").await.unwrap();

    // It receives, and does not replay because of a reader. No node was elected: the old primary goes on.
    client.batch_execute("CREATE TABLE seen (n int)").await.unwrap();
    n1.wait_caught_up(n0).await;
    let reader = n1.admin().await;
    reader.batch_execute("BEGIN; SELECT * FROM seen").await.unwrap();
    client.batch_execute("DROP TABLE seen").await.unwrap();
    let text = failover.clone().set("failover.step_timeout", "2s").fail(&["switchover", "--to", "n1"]).await;
    assert!(text.contains("n1 did not replay") && text.contains("n0 goes on as the primary"), "{text}");
    client.batch_execute("INSERT INTO acked VALUES (4)").await.unwrap();
    // Of the possible candidates, the one that has everything is promoted.
    let text = failover.succeed(&["switchover"]).await;
    assert!(text.contains("promoted n2"), "{text}");
    client.batch_execute("INSERT INTO acked VALUES (5)").await.unwrap();
    assert_eq!(value(&client, "SELECT count(*) FROM acked").await, "5");
    let rows = n0.query_past_lock("SELECT count(*) FROM acked").await;
    assert_eq!(rows, "4", "the old primary has no more than was acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_primary_gets_nothing_acknowledged() {
    if only_kingpost() {
        return;
    }
    let fleet = fleet(false).await;
    let (cluster, failover) = (&fleet.cluster, fleet.failover());
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    let kingpost = Kingpost::of(cluster).start().await;
    let client = kingpost.connect().await;
    client.batch_execute("INSERT INTO acked VALUES (1)").await.unwrap();
    let direct = n0.admin().await;
    // Frozen: its connections stay open, and the relay cannot tell.
    n0.sigstop();
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("the primary lives"), "{text}");
    let text = failover.succeed(&["failover", "--force"]).await;
    assert!(text.contains("promoted n"), "{text}");
    n0.sigcont();
    // It does not know: a client that is still connected to it may write, but never gets an acknowledgement.
    let write = tokio::spawn(async move { direct.batch_execute("INSERT INTO acked VALUES (666)").await });
    n0.wait_value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", "1").await;
    for n in 2..50 {
        client.batch_execute(&format!("INSERT INTO acked VALUES ({n})")).await.unwrap();
    }
    assert_eq!(value(&client, "SELECT count(*) FROM acked WHERE n = 666").await, "0");
    assert!(!write.is_finished());
    let new = if n1.query("SELECT pg_is_in_recovery()").await == "f" { n1 } else { n2 };
    // After a rewind that write is gone, and it follows.
    n0.kill9().await;
    assert!(write.await.unwrap().is_err());
    n0.rejoin(new).await;
    n0.follow_port(fleet.relays[0].port());
    n0.wait_value("SELECT count(*) FROM acked", "49").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_relays_and_with_too_few() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(2).start().await;
    let _logs = ShowLogs(cluster.dir());
    let [n0, n1, n2] = cluster.nodes() else { panic!("three nodes") };
    n0.execute("CREATE TABLE t (n int)").await;
    cluster.wait_caught_up().await;
    let away = Relay::of(&cluster, n0.port());
    n0.kill9().await;
    let text = Failover::of(&cluster, &[&away]).fail(&["failover"]).await;
    assert!(text.contains("0 of 1 relays answer, and 1 have to be fenced"), "{text}");
    let failover = Failover::of(&cluster, &[]);
    let text = failover.fail(&["failover"]).await;
    assert!(text.contains("--accept-loss"), "{text}");
    // The other one received from the lost primary: it is pointed at the new one.
    failover.succeed(&["failover", "--accept-loss", "--to", "n2"]).await;
    n2.execute("INSERT INTO t VALUES (1)").await;
    n1.wait_value("SELECT count(*) FROM t", "1").await;
    let conninfo = n1.query("SHOW primary_conninfo").await;
    assert!(
        conninfo.contains(&format!("port={}", n2.port())) && conninfo.contains("application_name=n1"),
        "{conninfo}"
    );
}
