//! A client always reads its own writes, with any lag of the replicas, and with `strong` all clients' writes; with less it does not, which proves
//! that the tests can tell the difference.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, within};
use tokio_postgres::Client;

use crate::common::{is_postgresql_19, only_kingpost, replay_checks, value};

const LATER_READS: usize = 3;
/// Pause of an application between two statements: part of the load, nothing waits for it.
const THINK: Duration = Duration::from_millis(8);
const CLIENTS: usize = 8;
/// Writes of all clients together in each state of the replicas.
const WRITES_A_PHASE: usize = 120;
/// Marker in each read, for counting the reads of each node.
const READ: &str = "own_read";

#[derive(Default)]
struct Tally {
    writes: AtomicUsize,
    misses: AtomicUsize,
    stop: AtomicBool,
}

/// Writes a row in one of several ways.
async fn write(client: &Client, id: i64, way: usize) {
    let insert = format!("INSERT INTO own VALUES ({id})");
    match way {
        0 => drop(client.simple_query(&insert).await.unwrap()),
        1 => drop(client.execute("INSERT INTO own VALUES ($1)", &[&id]).await.unwrap()),
        2 => client.batch_execute(&format!("BEGIN; {insert}; COMMIT")).await.unwrap(),
        3 => {
            client.batch_execute("BEGIN").await.unwrap();
            client.batch_execute(&insert).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
        }
        4 => drop(client.query("SELECT put($1)", &[&id]).await.unwrap()),
        _ => {
            use futures_util::SinkExt;
            let sink = client.copy_in("COPY own FROM STDIN").await.unwrap();
            futures_util::pin_mut!(sink);
            sink.send(bytes::Bytes::from(format!("{id}\n"))).await.unwrap();
            sink.finish().await.unwrap();
        }
    }
}

/// True if a read by key finds the row.
async fn find(client: &Client, id: i64, way: usize) -> bool {
    let select = format!("SELECT count(*) AS {READ} FROM own WHERE id = {id}");
    match way {
        0 => value(client, &select).await == "1",
        1 => {
            let select = format!("SELECT count(*) AS {READ} FROM own WHERE id = $1");
            client.query_one(&select, &[&id]).await.unwrap().get::<_, i64>(0) == 1
        }
        2 => value(client, &format!("/* kingpost.route=replica */ {select}")).await == "1",
        _ => {
            client.batch_execute("BEGIN READ ONLY").await.unwrap();
            let found = value(client, &select).await == "1";
            client.batch_execute("COMMIT").await.unwrap();
            found
        }
    }
}

/// Makes each client write, and read it back; or, with a second proxy, makes a client of that one read it.
async fn load(kingpost: &Kingpost, elsewhere: Option<&Kingpost>, tally: &Tally) {
    let client = |n: usize| async move {
        let here = kingpost.connect().await;
        let there = match elsewhere {
            Some(elsewhere) => Some(elsewhere.connect().await),
            None => None,
        };
        let mut turn = 0;
        while !tally.stop.load(Ordering::Relaxed) {
            let id = (turn * CLIENTS + n) as i64;
            let (writer, reader) = match &there {
                Some(there) if turn % 2 == 0 => (&here, there),
                Some(there) => (there, &here),
                None => (&here, &here),
            };
            write(writer, id, (turn + n) % 6).await;
            if !find(reader, id, (turn / 6 + n) % 4).await {
                tally.misses.fetch_add(1, Ordering::Relaxed);
            }
            tally.writes.fetch_add(1, Ordering::Relaxed);
            // Right after a write only the primary is sure to have it; a little later a replica may answer.
            for _ in 0..LATER_READS {
                tokio::time::sleep(THINK).await;
                if !find(reader, id, turn % 4).await {
                    tally.misses.fetch_add(1, Ordering::Relaxed);
                }
            }
            turn += 1;
        }
    };
    join_all((0..CLIENTS).map(client)).await;
}

/// Takes the replicas through every kind of lag, each for a number of writes.
async fn disturb(cluster: &Cluster, tally: &Tally) {
    let phase = async |what: &str| {
        let until = tally.writes.load(Ordering::Relaxed) + WRITES_A_PHASE;
        cluster
            .wait_for(&format!("{WRITES_A_PHASE} writes with {what}"), Duration::from_secs(60), async || {
                (tally.writes.load(Ordering::Relaxed) >= until).then_some(())
            })
            .await;
    };
    let (one, two) = (cluster.replica(0), cluster.replica(1));
    phase("replicas that keep up").await;
    one.pause_replay().await;
    phase("one paused replica").await;
    two.pause_replay().await;
    phase("both paused").await;
    one.resume_replay().await;
    phase("one that catches up").await;
    two.resume_replay().await;
    one.recovery_delay(Duration::from_millis(150)).await;
    phase("one that is late").await;
    two.recovery_delay(Duration::from_millis(40)).await;
    phase("both late").await;
    one.recovery_delay(Duration::ZERO).await;
    two.recovery_delay(Duration::ZERO).await;
    phase("replicas that have recovered").await;
    tally.stop.store(true, Ordering::Relaxed);
}

/// Returns misses, writes, and reads answered by replicas.
async fn run(consistency: &str, two_proxies: bool) -> (usize, usize, usize) {
    let cluster = Cluster::builder().replicas(2).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    let admin = cluster.primary().admin().await;
    let table = "CREATE TABLE own (id bigint PRIMARY KEY); GRANT ALL ON own TO alice;
                 CREATE FUNCTION put(bigint) RETURNS void LANGUAGE sql AS 'INSERT INTO own VALUES ($1)'";
    admin.batch_execute(table).await.unwrap();
    cluster.wait_caught_up().await;
    let proxy = || {
        let tweaks = Kingpost::of(&cluster).set("proxy.pool.size", 12).set("proxy.routing.consistency", consistency);
        tweaks.set("cluster.lag_limit", "1h").start()
    };
    let kingpost = proxy().await;
    let elsewhere = if two_proxies { Some(proxy().await) } else { None };
    let tally = Tally::default();
    let all = join(load(&kingpost, elsewhere.as_ref(), &tally), disturb(&cluster, &tally));
    within("writes and reads", Duration::from_secs(240), cluster.dir(), all).await;
    let on_replicas = cluster.replicas().iter().map(|node| node.log().matches(READ).count()).sum();
    (tally.misses.into_inner(), tally.writes.into_inner(), on_replicas)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_writes_are_always_read_back() {
    let (misses, writes, on_replicas) = run("session", false).await;
    assert_eq!(misses, 0, "of {writes} own writes");
    if !only_kingpost() {
        // A proxy that sends every read to the primary would pass trivially. Right after a write few replicas are known to have it, so the share is
        // small; the reads of old rows below raise it.
        assert!(on_replicas >= CLIENTS, "only {on_replicas} of {writes} reads on replicas");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eventual_reads_miss_own_writes() {
    if only_kingpost() {
        return;
    }
    let (misses, writes, on_replicas) = run("eventual", false).await;
    assert!(misses > 0, "none of {writes} missed with {on_replicas} reads on replicas: this test cannot fail");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strong_reads_see_what_was_committed_through_another_proxy() {
    if only_kingpost() {
        return;
    }
    let (misses, writes, on_replicas) = run("strong", true).await;
    assert_eq!(misses, 0, "of {writes} writes through another proxy");
    assert!(on_replicas >= CLIENTS, "only {on_replicas} reads on replicas, of {writes} writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_reads_miss_what_was_committed_through_another_proxy() {
    if only_kingpost() {
        return;
    }
    let (misses, writes, on_replicas) = run("session", true).await;
    assert!(
        misses > 0,
        "none of {writes} missed with {on_replicas} reads on replicas: the test of strong reads cannot fail"
    );
}

/// Makes the table of [`write`] and [`find`], on all nodes.
async fn make_table(cluster: &Cluster) {
    cluster.primary().execute("CREATE TABLE own (id bigint PRIMARY KEY); GRANT ALL ON own TO alice").await;
    cluster.wait_caught_up().await;
}

/// A replica that has replayed a write answers the session's first read after it, before any probe has told so.
#[tokio::test]
async fn a_read_behind_its_write_runs_on_a_replica_that_has_the_write() {
    let cluster = Cluster::builder().replicas(2).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    make_table(&cluster).await;
    let share = async |verified: bool, from: i64| {
        // Probes say too late that a replica has the write.
        let kingpost = Kingpost::of(&cluster).set("cluster.probe_interval", "2s").set("cluster.probe_timeout", "3s");
        let kingpost = kingpost.set("proxy.routing.verified_reads", verified).start().await;
        let client = kingpost.connect().await;
        let marker = format!("first_{verified}");
        let mut ids = from..;
        let mut reads = 0;
        // For a moment after its start the proxy probes often, and needs no check.
        while reads < 40 || (verified && reads < 1000 && replay_checks(&kingpost).await[0] < 10.0) {
            let id = ids.next().unwrap();
            reads += 1;
            write(&client, id, 1).await;
            cluster.wait_caught_up().await;
            let select = format!("SELECT count(*) AS {marker} FROM own WHERE id = $1");
            assert_eq!(client.query_one(&select, &[&id]).await.unwrap().get::<_, i64>(0), 1, "row {id}");
        }
        let on_replicas: usize = cluster.replicas().iter().map(|node| node.log().matches(&marker).count()).sum();
        let [checks, behind] = replay_checks(&kingpost).await;
        (reads, on_replicas, checks, behind)
    };
    let (reads, on_replicas, checks, behind) = share(true, 0).await;
    if only_kingpost() {
        return;
    }
    // (Until the commit's position is known the primary answers.)
    assert!(on_replicas >= reads / 2, "{on_replicas} of {reads}, {checks} checks, {behind} behind");
    assert!(checks >= 10.0 && behind <= 4.0, "{checks} checks, {behind} behind");
    let (_, _, checks, _) = share(false, 10_000).await;
    assert_eq!(checks, 0.0, "checks that were not to be made");
}

/// A statement that is only about the session writes nothing that the next read has to see.
#[tokio::test]
async fn a_read_behind_a_set_runs_on_a_replica() {
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    make_table(&cluster).await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&cluster).set("proxy.routing.verified_reads", false).start().await;
    let client = kingpost.connect().await;
    let select = format!("SELECT count(*) AS {READ} FROM own");
    let on_replica = || cluster.replica(0).log().matches(READ).count();
    cluster
        .wait("a read on the replica", async || {
            value(&client, &select).await;
            (on_replica() > 0).then_some(())
        })
        .await;
    let before = on_replica();
    for turn in 0..10 {
        client.batch_execute(&format!("SET work_mem = '{}MB'", turn + 4)).await.unwrap();
        value(&client, &select).await;
        client.execute("SET kingpost.route = 'auto'", &[]).await.unwrap();
        value(&client, &select).await;
    }
    assert_eq!(on_replica() - before, 20);
}

/// So does the first read of a transaction that is READ ONLY; one that finds its replica behind begins again on the primary.
#[tokio::test]
async fn a_read_only_transaction_begins_on_a_replica_that_has_the_write() {
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    make_table(&cluster).await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&cluster).set("cluster.probe_interval", "2s").set("cluster.probe_timeout", "3s");
    let kingpost = kingpost.set("cluster.lag_limit", "1h").start().await;
    let client = kingpost.connect().await;
    let replica = cluster.replica(0);
    let mut on_replica = 0;
    for id in 0..20 {
        write(&client, id, 1).await;
        cluster.wait_caught_up().await;
        client.batch_execute("BEGIN READ ONLY").await.unwrap();
        let select = format!("SELECT count(*) AS {READ} FROM own WHERE id = {id}");
        assert_eq!(value(&client, &select).await, "1", "row {id}");
        assert_eq!(value(&client, &select).await, "1", "row {id}, again");
        client.batch_execute("COMMIT").await.unwrap();
        on_replica = replica.log().matches(READ).count();
    }
    // (Until the commit's position is known the primary answers.)
    assert!(on_replica >= 20, "{on_replica} of 40");
    replica.pause_replay().await;
    let behind = async || replay_checks(&kingpost).await[1];
    let before = behind().await;
    let mut ids = 100..;
    cluster
        .wait("a transaction that is begun again", async || {
            for id in ids.by_ref().take(10) {
                write(&client, id, 1).await;
                assert!(find(&client, id, 3).await, "row {id} is missing");
            }
            (behind().await > before).then_some(())
        })
        .await;
}

/// A replica that is behind is asked, and its answer is dropped; it is not asked by each read. One that refuses the question is left alone.
#[tokio::test]
async fn the_answer_of_a_replica_that_is_behind_is_dropped() {
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    let _logs = ShowLogs(cluster.dir());
    make_table(&cluster).await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&cluster).set("cluster.lag_limit", "1h").start().await;
    let client = kingpost.connect().await;
    let counts = async || replay_checks(&kingpost).await;
    cluster.replica(0).pause_replay().await;
    let mut ids = 0..;
    let mut each_way = async |client: &Client, reads: usize| {
        for (id, turn) in ids.by_ref().zip(0..reads) {
            write(client, id, turn % 4).await;
            assert!(find(client, id, turn % 4).await, "row {id} is missing");
            assert!(find(client, id, (turn + 1) % 4).await, "row {id} is missing");
        }
    };
    cluster
        .wait("a check that finds the replica behind", async || {
            each_way(&client, 20).await;
            (counts().await[1] > 0.0).then_some(())
        })
        .await;
    let [checks, behind] = counts().await;
    assert_eq!(checks, behind, "a replica that replays nothing proved a read");
    cluster.replica(0).resume_replay().await;
    cluster.wait_caught_up().await;
    cluster
        .wait("a check that proves a read", async || {
            each_way(&client, 5).await;
            cluster.wait_caught_up().await;
            let [checks, behind] = counts().await;
            (checks > behind).then_some(())
        })
        .await;
    if is_postgresql_19(&cluster).await {
        // The replica is asked to wait, by no function.
        return;
    }
    // A role that may not ask.
    cluster.primary().execute("REVOKE EXECUTE ON FUNCTION pg_last_wal_replay_lsn() FROM PUBLIC").await;
    cluster.wait_caught_up().await;
    let fresh = kingpost.connect().await;
    let [_, before] = counts().await;
    cluster
        .wait("a check that is refused", async || {
            each_way(&fresh, 5).await;
            (counts().await[1] > before).then_some(())
        })
        .await;
    let [checks, _] = counts().await;
    each_way(&fresh, 20).await;
    assert!(counts().await[0] <= checks + 2.0, "a replica that refuses is asked again and again");
}

/// Another session sees one session's writes, through another proxy, if it gets the first one's token.
#[tokio::test]
async fn a_token_carries_own_writes_to_another_proxy() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    if only_kingpost() {
        return;
    }
    let proxy = async || Kingpost::of(&cluster).set("cluster.lag_limit", "1h").start().await;
    let (one, two) = (proxy().await, proxy().await);
    let (writer, reader) = (one.connect().await, two.connect().await);
    writer.batch_execute("CREATE TABLE seen (n int)").await.unwrap();
    cluster.wait_caught_up().await;
    cluster.replica(0).pause_replay().await;
    writer.batch_execute("INSERT INTO seen VALUES (1)").await.unwrap();
    let token = value(&writer, "SHOW kingpost.token").await;
    assert!(token.starts_with("1:"), "{token}");
    let count = "SELECT count(*) FROM seen";
    assert_eq!(value(&reader, count).await, "0", "the replica does not lag: this proves nothing");
    reader.batch_execute(&format!("SET kingpost.token = '{token}'")).await.unwrap();
    assert_eq!(value(&reader, count).await, "1");
    // An older token takes nothing back; and it is honoured in a transaction as well.
    reader.batch_execute("SET kingpost.token = '1:0/1'").await.unwrap();
    assert_eq!(value(&reader, count).await, "1");
    writer.batch_execute("BEGIN").await.unwrap();
    assert!(value(&writer, "SHOW kingpost.token").await.starts_with("1:"));
    writer.batch_execute("COMMIT").await.unwrap();
    let error = reader.simple_query("SET kingpost.token = 'yesterday'").await.unwrap_err();
    assert_eq!(kingpost_tests::sqlstate(&error), "22023");
    // Once the replica has it, it may answer again.
    cluster.replica(0).resume_replay().await;
    cluster.wait_caught_up().await;
    let on_replica = "SELECT count(*) FROM seen WHERE pg_is_in_recovery()";
    cluster
        .wait("reads on the replica", async || {
            (value(&reader, &format!("/* kingpost.route=replica */ {on_replica}")).await == "1").then_some(())
        })
        .await;
}
