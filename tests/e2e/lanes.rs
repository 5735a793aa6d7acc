//! Shared lanes: the statements of many clients on one server connection do not affect each other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use kingpost_tests::raw::{self, Raw};
use kingpost_tests::{Cluster, Kingpost, SOON, ShowLogs, sqlstate, within};
use tokio_postgres::NoTls;

use crate::common::{only_kingpost, value};

const CROWD: usize = 16;

/// Clients that read until told to stop, each checking that it gets its own answers; any error is a failure.
#[derive(Default)]
struct Crowd {
    reads: AtomicUsize,
    stop: AtomicBool,
}

impl Crowd {
    async fn run(&self, kingpost: &Kingpost) {
        let reader = |n: usize| async move {
            let client = kingpost.connect().await;
            let prepared = client.prepare("SELECT n * 2 FROM facts WHERE n = $1").await.unwrap();
            for turn in 0.. {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = ((turn * 7 + n * 31) % 100 + 1) as i32;
                let answer: i32 = if (turn + n).is_multiple_of(2) {
                    client.query_one(&prepared, &[&key]).await.unwrap().get(0)
                } else {
                    value(&client, &format!("SELECT n * 2 FROM facts WHERE n = {key}")).await.parse().unwrap()
                };
                assert_eq!(answer, key * 2, "client {n} hears another's answer");
                if turn % 16 == 15 {
                    // A query of a shape that usually succeeds: the error is this client's alone.
                    let bad = key % 3;
                    let sql = format!("SELECT {key} / {bad}");
                    match client.simple_query(&sql).await {
                        Ok(_) => assert_ne!(bad, 0, "{sql}"),
                        Err(error) => assert_eq!((sqlstate(&error), bad), ("22012", 0), "{sql}"),
                    }
                }
                self.reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        join_all((0..CROWD).map(reader)).await;
    }

    async fn more(&self, cluster: &Cluster, what: &str, count: usize) {
        let until = self.reads.load(Ordering::Relaxed) + count;
        let reached = async || (self.reads.load(Ordering::Relaxed) >= until).then_some(());
        cluster.wait_for(&format!("{count} reads {what}"), Duration::from_secs(60), reached).await;
    }

    fn done(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

async fn cluster(replicas: usize) -> Cluster {
    let cluster = Cluster::builder().replicas(replicas).start().await;
    let sql = "CREATE TABLE facts AS SELECT generate_series(1, 100) n; CREATE TABLE locked (n int); GRANT SELECT ON facts, locked TO alice";
    cluster.primary().execute(sql).await;
    cluster.wait_caught_up().await;
    cluster
}

/// Starts a proxy with one worker, so that all clients meet.
async fn lanes(cluster: &Cluster) -> Kingpost {
    let tweaks = Kingpost::of(cluster).set("proxy.workers", 1).set("proxy.pool.lane_width", 1);
    tweaks.set("proxy.pool.lane_stall", "200ms").set("proxy.pool.size", 24).start().await
}

async fn counted(kingpost: &Kingpost, name: &str) -> f64 {
    kingpost.metrics().await.sum(&format!("kingpost_{name}_total"), &[])
}

/// Waits until a counter has passed a value.
async fn wait_counted(cluster: &Cluster, kingpost: &Kingpost, name: &str, beyond: f64) {
    cluster.wait(name, async || (counted(kingpost, name).await > beyond).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_share_connections_and_can_be_kept_from_it() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = lanes(&cluster).await;
    let crowd = Crowd::default();
    let steps = async {
        wait_counted(&cluster, &kingpost, "lane_statements", 1000.0).await;
        let (statements, batches) =
            (counted(&kingpost, "lane_statements").await, counted(&kingpost, "lane_batches").await);
        assert!(batches < statements, "{statements} statements in {batches} batches");
        kingpost.reload("proxy.pool.lanes", "off");
        // Statements under way at the change of settings still count.
        let mut before = -1.0;
        let unchanged = async || {
            crowd.more(&cluster, "without lanes", 200).await;
            let now = counted(&kingpost, "lane_statements").await;
            (std::mem::replace(&mut before, now) == now).then_some(())
        };
        cluster.wait("the end of all lanes", unchanged).await;
        crowd.done();
    };
    within("the crowd", Duration::from_secs(120), cluster.dir(), join(crowd.run(&kingpost), steps)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_hears_another_s_answer_while_servers_are_killed() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(2).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = lanes(&cluster).await;
    let crowd = Crowd::default();
    let steps = async {
        crowd.more(&cluster, "before the kills", 2000).await;
        let before = counted(&kingpost, "lane_statements").await;
        let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'alice'";
        for round in 0..6 {
            for node in cluster.nodes() {
                let admin = node.admin().await;
                value(&admin, terminate).await;
            }
            crowd.more(&cluster, "after sessions were ended", 500).await;
            if round % 3 == 1 {
                let victim = cluster.replica(round / 3);
                victim.kill9().await;
                crowd.more(&cluster, "after the kill", 500).await;
                victim.start().await;
            }
        }
        assert!(counted(&kingpost, "lane_statements").await > before, "no lanes were used");
        crowd.done();
    };
    within("the crowd", Duration::from_secs(180), cluster.dir(), join(crowd.run(&kingpost), steps)).await;
}

/// Runs a statement that waits for a lock, in a lane, among a crowd; then `end` ends the wait.
async fn among_a_crowd_that_waits(
    cluster: &Cluster,
    kingpost: &Kingpost,
    end: impl AsyncFnOnce(&tokio_postgres::Client, tokio_postgres::Client),
) {
    const SQL: &str = "SELECT count(*) FROM locked";
    let crowd = Crowd::default();
    let steps = async {
        crowd.more(cluster, "at first", 1000).await;
        let client = kingpost.connect().await;
        for _ in 0..10 {
            assert_eq!(value(&client, SQL).await, "0");
        }
        let before = counted(kingpost, "lane_stalls").await;
        let holder = cluster.primary().admin().await;
        holder.batch_execute("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let noticed = async {
            wait_counted(cluster, kingpost, "lane_stalls", before).await;
            crowd.more(cluster, "beside a statement that waits", 1000).await;
        };
        tokio::select! {
            outcome = client.simple_query(SQL) => panic!("it has not waited: {outcome:?}"),
            () = noticed => {}
        }
        end(&holder, client).await;
        crowd.more(cluster, "afterwards", 1000).await;
        crowd.done();
    };
    within("the crowd", Duration::from_secs(120), cluster.dir(), join(crowd.run(kingpost), steps)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_waits_holds_nobody_up() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = lanes(&cluster).await;
    // The lock is released: the client goes on.
    among_a_crowd_that_waits(&cluster, &kingpost, async |holder, client| {
        holder.batch_execute("COMMIT").await.unwrap();
        assert_eq!(value(&client, "SELECT 7").await, "7");
    })
    .await;
    // A cancel for this statement alone.
    let kingpost = lanes(&cluster).await;
    among_a_crowd_that_waits(&cluster, &kingpost, async |holder, client| {
        client.cancel_token().cancel_query(NoTls).await.unwrap();
        assert_eq!(value(&client, "SELECT 7").await, "7");
        holder.batch_execute("COMMIT").await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_is_not_waited_for() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = lanes(&cluster).await;
    let crowd = Crowd::default();
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let steps = async {
        crowd.more(&cluster, "at first", 1000).await;
        let mut client = Raw::login(kingpost.port()).await;
        let query = raw::query("SELECT count(*) FROM locked");
        for _ in 0..10 {
            client.send(&query).await;
            client.until(b'Z').await;
        }
        let holder = cluster.primary().admin().await;
        holder.batch_execute("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE").await.unwrap();
        client.send(&query).await;
        cluster.primary().wait_value(blocked, "1").await;
        // The end of the stream alone would not do: the client could still read.
        client.stream.set_zero_linger().unwrap();
        drop(client);
        // No client waits for it any more: it is cancelled.
        cluster.primary().wait_value(blocked, "0").await;
        crowd.more(&cluster, "afterwards", 1000).await;
        holder.batch_execute("COMMIT").await.unwrap();
        crowd.done();
    };
    within("the crowd", Duration::from_secs(120), cluster.dir(), join(crowd.run(&kingpost), steps)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_holds_nobody_up() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster(0).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = lanes(&cluster).await;
    let crowd = Crowd::default();
    let length = 40_000_000;
    let steps = async {
        crowd.more(&cluster, "at first", 1000).await;
        let mut slow = Raw::login(kingpost.port()).await;
        // Small answers at first, so that it gets into a lane; then one larger than any buffer.
        for _ in 0..10 {
            slow.send(&raw::query("SELECT repeat('x', 7)")).await;
            slow.until(b'Z').await;
        }
        let kept_out = async || counted(&kingpost, "lane_large").await + counted(&kingpost, "lane_slow").await;
        let before = kept_out().await;
        let rss = kingpost.process().rss_kib();
        slow.send(&raw::query(&format!("SELECT repeat('x', {length})"))).await;
        crowd.more(&cluster, "beside a client that does not read", 2000).await;
        let grown = kingpost.process().rss_kib().saturating_sub(rss);
        let answer = within("the long answer", SOON, cluster.dir(), slow.until(b'Z')).await;
        assert_eq!(answer.iter().map(|message| message.kind as char).collect::<String>(), "TDCZ");
        assert_eq!(answer[1].body.len(), length + 6);
        assert!(grown < 20 << 10, "{grown} KiB are kept for a client that does not read");
        // From now on it is known as large.
        slow.send(&raw::query("SELECT repeat('x', 7)")).await;
        slow.until(b'Z').await;
        assert!(kept_out().await > before);
        crowd.done();
    };
    within("the crowd", Duration::from_secs(120), cluster.dir(), join(crowd.run(&kingpost), steps)).await;
}
