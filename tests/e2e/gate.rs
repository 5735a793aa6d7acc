//! The commit gate: a commit of any kind is answered once a relay has it; and answered commits survive the primary.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::SinkExt;
use futures_util::future::join_all;
use kingpost_tests::raw::{self, Raw};
use kingpost_tests::{
    Cluster, ClusterBuilder, Cut, Failover, Kingpost, KingpostBuilder, Link, Relay, SOON, ShowLogs, signal, sqlstate,
    within,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};
use toml::Table;

use crate::common::{only_kingpost, value};
use crate::console::{console, rows};

/// A primary with a relay behind a forwarder.
struct Gated {
    cluster: Cluster,
    relay: Relay,
    cut: Cut,
}

impl Gated {
    async fn start() -> Gated {
        Gated::of(Cluster::builder()).await
    }

    async fn of(cluster: ClusterBuilder) -> Gated {
        let cluster = cluster.setting("max_prepared_transactions", "100").start().await;
        let cut = Cut::to(cluster.primary().port());
        let mut relay = Relay::of(&cluster, cut.port());
        relay.start().await;
        let sql = "CREATE TABLE t (n bigint); GRANT ALL ON t TO alice;
                   CREATE FUNCTION put(bigint) RETURNS void LANGUAGE sql AS 'INSERT INTO t VALUES ($1)';
                   CREATE PROCEDURE call_put(n bigint) LANGUAGE plpgsql AS
                       $$ BEGIN INSERT INTO t VALUES (n); COMMIT; PERFORM 1; END $$";
        cluster.primary().admin().await.batch_execute(sql).await.unwrap();
        Gated { cluster, relay, cut }
    }

    /// Makes a proxy that waits for the relay.
    fn proxy(&self) -> KingpostBuilder<'_> {
        let relay = [("name", "r1".to_owned()), ("address", format!("127.0.0.1:{}", self.relay.port()))];
        let relay: Table = relay.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        let proxy = Kingpost::of(&self.cluster).add("cluster.relays", relay);
        proxy.set("proxy.gate.commit_durability", "relay").set("proxy.gate.degraded_after", "1h")
    }

    /// Cuts the relay off.
    fn separate(&self) {
        self.cut.set(Link::BlackHole);
    }

    /// Waits until the relay, whose link was cut, has flushed everything received, and `kingpost` knows that nothing more comes: with a slow flush a
    /// commit may be acknowledged long after the cut.
    async fn relay_has_ended(&self, kingpost: &Kingpost) {
        let console = console(kingpost).await;
        let ended = async || {
            // The relay reports this behind all its confirmations, on the same connection.
            let confirms = rows(&console, "SHOW RELAYS").await[0]["confirms"] == "yes";
            let (flushed, written) = (self.relay.position("flushed").await, self.relay.position("written").await);
            (!confirms && flushed == written).then_some(())
        };
        self.cluster.wait("the relay to have flushed all that it received", ended).await;
    }

    async fn rows(&self) -> String {
        value(&self.cluster.primary().admin().await, "SELECT count(*) FROM t").await
    }
}

const WAYS: i64 = 12;

/// The row of a commit that a relay surely does not have.
const LATE: i64 = -1;

/// Inserts a row in one of several ways.
async fn insert(client: &Client, n: i64) -> Result<(), tokio_postgres::Error> {
    let insert = format!("INSERT INTO t VALUES ({n})");
    match n % WAYS {
        0 => client.batch_execute(&insert).await,
        1 => client.execute("INSERT INTO t VALUES ($1)", &[&n]).await.map(drop),
        2 => client.batch_execute(&format!("BEGIN; {insert}; COMMIT")).await,
        3 => {
            client.batch_execute("BEGIN").await?;
            client.execute(&insert, &[]).await?;
            client.batch_execute("COMMIT").await
        }
        4 => client.query("SELECT put($1)", &[&n]).await.map(drop),
        5 => {
            // Kept until the answer: the driver would send the statement's Close right behind the COPY, the proxy would hold back the answer to the
            // Close like that to a commit, and the driver would lose an error that comes in its place.
            let copy = client.prepare("COPY t FROM STDIN").await?;
            let sink = client.copy_in(&copy).await?;
            futures_util::pin_mut!(sink);
            sink.send(bytes::Bytes::from(format!("{n}\n"))).await?;
            sink.finish().await.map(drop)
        }
        6 => client.batch_execute(&format!("BEGIN; {insert}; COMMIT AND CHAIN; SELECT 1; ROLLBACK")).await,
        7 => client.batch_execute(&format!("CALL call_put({n})")).await,
        8 => client.batch_execute(&format!("DO $$ BEGIN PERFORM put({n}); END $$")).await,
        9 => {
            // The server may lose it; for the gate it is a commit like any other.
            client.batch_execute("SET synchronous_commit = off").await?;
            client.batch_execute(&insert).await
        }
        10 => client.query(&format!("WITH i AS ({insert} RETURNING n) SELECT n FROM i"), &[]).await.map(drop),
        _ => {
            client.batch_execute(&format!("BEGIN; {insert}; PREPARE TRANSACTION 'p{n}'")).await?;
            client.batch_execute(&format!("COMMIT PREPARED 'p{n}'")).await
        }
    }
}

/// WAL of an open transaction lies in the last page of the log, which PostgreSQL's WAL writer leaves there until somebody commits. A session that
/// waits for all written WAL, because it may not wait for its own flush, must not wait for that page.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_everything_does_not_wait_for_an_open_transaction() {
    if only_kingpost() {
        return;
    }
    let gated = Gated::of(Cluster::builder().setting("checkpoint_timeout", "1h")).await;
    let dir = gated.cluster.dir();
    let _logs = ShowLogs(dir);
    let kingpost = gated.proxy().start().await;
    // Every 15 s the background writer flushes everything: not while this runs.
    let admin = gated.cluster.primary().admin().await;
    let writer = value(&admin, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'").await;
    let writer = writer.parse().unwrap();
    assert!(signal(writer, libc::SIGSTOP));
    let open = kingpost.connect().await;
    for n in 0..3 {
        open.batch_execute(&format!("BEGIN; INSERT INTO t VALUES ({n})")).await.unwrap();
        let client = kingpost.connect().await;
        let set = client.batch_execute("SELECT set_config('synchronous_commit', 'off', false)");
        within("a session that may not wait for its flush", SOON, dir, set).await.unwrap();
        within("its commit", SOON, dir, client.batch_execute("INSERT INTO t VALUES (9)")).await.unwrap();
        open.batch_execute("ROLLBACK").await.unwrap();
    }
    assert!(signal(writer, libc::SIGCONT));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_waits_for_the_relay_however_it_was_committed() {
    if only_kingpost() {
        return;
    }
    let gated = Gated::start().await;
    let _logs = ShowLogs(gated.cluster.dir());
    // One server connection: a waiting client does not hold it.
    let kingpost = gated.proxy().set("proxy.pool.size", 1).start().await;
    let clients: Vec<Client> = join_all((0..WAYS).map(|_| kingpost.connect())).await;
    for (n, client) in clients.iter().enumerate() {
        within("a commit with a relay", SOON, gated.cluster.dir(), insert(client, n as i64)).await.unwrap();
    }
    assert_eq!(gated.rows().await, WAYS.to_string());
    let shown = value(&clients[9], "SHOW synchronous_commit").await;
    assert_eq!(shown, "off", "a client sees what it has set");

    gated.separate();
    let cancel: Vec<_> = clients.iter().map(Client::cancel_token).collect();
    let waiting: Vec<_> =
        (WAYS..).zip(clients).map(|(n, client)| tokio::spawn(async move { insert(&client, n).await })).collect();
    // All but the one that waits for its PREPARE TRANSACTION, and has not reached COMMIT PREPARED.
    let expected = (2 * WAYS - 1).to_string();
    gated.cluster.wait("the commits on the primary", async || (gated.rows().await == expected).then_some(())).await;
    let prepared = "SELECT count(*) FROM pg_prepared_xacts";
    gated.cluster.primary().wait_value(prepared, "1").await;
    // A cancel releases nothing; nor do other clients' reads and failures on the same worker and connection.
    for token in cancel {
        token.cancel_query(NoTls).await.unwrap();
    }
    let other = kingpost.connect().await;
    for _ in 0..20 {
        assert_eq!(value(&other, "SELECT 7").await, "7");
        other.batch_execute("SELECT 1/0").await.unwrap_err();
        for sql in ["BEGIN", "SELECT 1", "ROLLBACK", "BEGIN", "INSERT INTO t VALUES (-1)", "ROLLBACK"] {
            within("a rollback", SOON, gated.cluster.dir(), other.batch_execute(sql)).await.unwrap();
        }
        // The COMMIT of a failed transaction commits nothing.
        other.batch_execute("BEGIN").await.unwrap();
        other.batch_execute("INSERT INTO t VALUES (-2)").await.unwrap();
        other.batch_execute("SELECT 1/0").await.unwrap_err();
        within("a commit that fails", SOON, gated.cluster.dir(), other.batch_execute("COMMIT")).await.unwrap();
    }
    let early: Vec<usize> = waiting.iter().enumerate().filter(|(_, task)| task.is_finished()).map(|(n, _)| n).collect();
    assert!(early.is_empty(), "answered before the relay had it, or cancelled: ways {early:?}");
    let held = gated.cluster.wait("the metric", async || {
        let held = kingpost.metrics().await.sum("kingpost_gate_held", &[]);
        (held >= WAYS as f64).then_some(held)
    });
    assert_eq!(held.await, WAYS as f64);
    // An operator sees the same clients, and the reason of their wait.
    let console = console(&kingpost).await;
    let gates = rows(&console, "SHOW GATE").await;
    assert_eq!(gates.len(), 1, "{gates:?}");
    let number = |name: &str| gates[0][name].parse::<u64>().unwrap();
    assert_eq!(number("held"), WAYS as u64);
    assert!(number("longest_us") > 0 && number("lag_bytes") > 0, "{gates:?}");
    assert_eq!((&*gates[0]["durability"], &*gates[0]["flush"], &*gates[0]["read_barrier"]), ("relay", "commit", "off"));
    let relays = rows(&console, "SHOW RELAYS").await;
    assert_eq!((&*relays[0]["name"], &*relays[0]["confirmed_lsn"]), ("r1", &*gates[0]["durable_lsn"]), "{relays:?}");

    gated.cut.set(Link::Up);
    for task in waiting {
        within("the answers, with the relay back", SOON, gated.cluster.dir(), task).await.unwrap().unwrap();
    }
    assert_eq!(gated.rows().await, (2 * WAYS).to_string());
    let gates = rows(&console, "SHOW GATE").await;
    assert_eq!((&*gates[0]["held"], &*gates[0]["state"]), ("0", "durable"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_relays_nothing_is_acknowledged_unless_that_was_chosen() {
    if only_kingpost() {
        return;
    }
    let mut gated = Gated::start().await;
    gated.relay.stop().await;
    let _logs = ShowLogs(gated.cluster.dir());
    // Past the time limit: the outcome is unknown.
    let kingpost = gated.proxy().set("proxy.gate.timeout", "500ms").start().await;
    let client = kingpost.connect().await;
    let error = within("the time-out", SOON, gated.cluster.dir(), insert(&client, 0)).await.unwrap_err();
    assert_eq!(sqlstate(&error), "08007", "{error:?}");
    assert_eq!(gated.rows().await, "1", "it was committed all the same");

    // Degraded: writes are refused, reads are not.
    kingpost.reload("proxy.gate.degraded_after", "10ms");
    let refused = gated.cluster.wait("a refusal", async || {
        let client = kingpost.connect().await;
        match insert(&client, 1).await {
            Err(error) if sqlstate(&error) == "57P03" => Some(client),
            _ => None,
        }
    });
    let client = refused.await;
    let rows = gated.rows().await;
    assert_eq!(value(&client, "SELECT count(*) FROM t").await, rows);
    let degraded = async || (kingpost.metrics().await.sum("kingpost_gate_degraded", &[]) > 0.0).then_some(());
    gated.cluster.wait("the metric to say so", degraded).await;

    // With `local` they are acknowledged.
    kingpost.reload("proxy.gate.on_degraded", "local");
    gated.cluster.wait("a degraded commit", async || insert(&client, 2).await.ok()).await;
    assert!(kingpost.metrics().await.sum("kingpost_gate_degraded_commits_total", &[]) >= 1.0);

    // With a relay again, as before.
    gated.relay.start().await;
    gated
        .cluster
        .wait("the end of it", async || {
            (kingpost.metrics().await.sum("kingpost_gate_degraded", &[]) == 0.0).then_some(())
        })
        .await;
    within("a commit with a relay", SOON, gated.cluster.dir(), insert(&client, 3)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_barrier_shows_nothing_that_could_be_lost() {
    if only_kingpost() {
        return;
    }
    let gated = Gated::start().await;
    let _logs = ShowLogs(gated.cluster.dir());
    let kingpost = gated.proxy().set("proxy.gate.read_barrier", true).start().await;
    let (writer, reader) = (kingpost.connect().await, kingpost.connect().await);
    insert(&writer, 0).await.unwrap();
    assert_eq!(value(&reader, "SELECT count(*) FROM t").await, "1");
    let answer = reader.prepare("SELECT count(*) FROM t WHERE n >= $1").await.unwrap();
    gated.separate();
    let write = tokio::spawn(async move { insert(&writer, 1).await });
    gated.cluster.wait("the commit on the primary", async || (gated.rows().await == "2").then_some(())).await;
    let read = tokio::spawn(async move { reader.query_one(&answer, &[&0_i64]).await.map(|row| row.get::<_, i64>(0)) });
    gated
        .cluster
        .wait("both to be held", async || {
            (kingpost.metrics().await.sum("kingpost_gate_held", &[]) >= 2.0).then_some(())
        })
        .await;
    assert!(!write.is_finished() && !read.is_finished());
    gated.cut.set(Link::Up);
    within("the write", SOON, gated.cluster.dir(), write).await.unwrap().unwrap();
    assert_eq!(within("the read", SOON, gated.cluster.dir(), read).await.unwrap().unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_outlives_the_primary() {
    outlives("commit").await;
}

/// The servers' own commits wait for nothing, and nobody else flushes them in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_question_flushed_for_all_outlives_the_primary() {
    outlives("batch").await;
}

async fn outlives(flush: &str) {
    if only_kingpost() {
        return;
    }
    // Without the proxy's request nothing is flushed.
    let gated = Gated::of(Cluster::builder().replicas(1).setting("wal_writer_delay", "10s")).await;
    let _logs = ShowLogs(gated.cluster.dir());
    let (primary, heir) = (gated.cluster.primary(), gated.cluster.replica(0));
    heir.follow_port(gated.relay.port());
    heir.wait_caught_up(primary).await;
    let proxy = gated.proxy().set("proxy.pool.size", 8);
    let version: u32 = primary.query("SHOW server_version_num").await.parse().unwrap();
    let kingpost = if flush == "batch" && version < 170_000 {
        eprintln!("before PostgreSQL 17 the flush takes a transaction: PG_BIN names another's programs");
        proxy.set("proxy.gate.flush", "batch-transaction").start().await
    } else {
        proxy.set("proxy.gate.flush", flush).start().await
    };
    let expected = if flush == "commit" { "on" } else { "off" };
    gated
        .cluster
        .wait("connections that commit as configured", async || {
            let shown = value(&kingpost.connect().await, "/* kingpost.route=primary */ SHOW synchronous_commit").await;
            (shown == expected).then_some(())
        })
        .await;
    let (told, next) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let mut running: JoinSet<()> = JoinSet::new();
    for client in join_all((0..64).map(|_| kingpost.connect())).await {
        let (told, next, over) = (Arc::clone(&told), Arc::clone(&next), Arc::clone(&over));
        running.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed) as i64;
                let result = insert(&client, n).await;
                let failed = result.is_err();
                told.lock().await.push((n, result));
                if failed || over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
    }
    let acked = async || told.lock().await.iter().filter(|(_, result)| result.is_ok()).count();
    gated.cluster.wait("acknowledged commits", async || (acked().await >= 500).then_some(())).await;
    // Cut, not silent: data held back by a silent link may still arrive.
    gated.cut.set(Link::Cut);
    gated.relay_has_ended(&kingpost).await;
    // The relay's last flush may have been slow, and all 64 may have waited for it: they are told now that their commits are durable, and end. One
    // more commit is surely not on the relay.
    over.store(true, Ordering::Relaxed);
    let (late, told_late) = (kingpost.connect().await, Arc::clone(&told));
    running.spawn(async move {
        let result = late.batch_execute(&format!("INSERT INTO t VALUES ({LATE})")).await;
        told_late.lock().await.push((LATE, result));
    });
    let console = console(&kingpost).await;
    let mut before = None;
    let rest_is_held = async || {
        while let Some(ended) = running.try_join_next() {
            ended.expect("a writer");
        }
        let gates = rows(&console, "SHOW GATE").await;
        let ours = gates.iter().filter(|gate| gate["user"] == kingpost_tests::USER);
        let held: usize = ours.map(|gate| gate["held"].parse::<usize>().unwrap()).sum();
        let now = (held == running.len()).then_some(held);
        (now.is_some() && std::mem::replace(&mut before, now) == now).then_some(())
    };
    gated.cluster.wait("each writer to have ended or to be held", rest_is_held).await;
    // A commit that only the primary has was not acknowledged.
    assert_eq!(primary.query(&format!("SELECT count(*) FROM t WHERE n = {LATE}")).await, "1");
    primary.kill9().await;
    Failover::of(&gated.cluster, &[&gated.relay]).succeed(&["failover"]).await;
    within("the writers to hear of it", SOON, gated.cluster.dir(), running.join_all()).await;

    let rows = heir.admin().await.query("SELECT n FROM t", &[]).await.unwrap();
    let held: BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(held.len(), rows.len(), "something was written twice");
    let told = told.lock().await;
    let acked: BTreeSet<i64> = told.iter().filter(|(_, result)| result.is_ok()).map(|(n, _)| *n).collect();
    let lost: Vec<_> = acked.difference(&held).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged commits are lost: {lost:?}", lost.len(), acked.len());
    assert!(!held.contains(&LATE), "nothing was lost with the primary: this test cannot fail");
    // Clients held when the primary died are told that the outcome is unknown.
    let errors = || told.iter().filter_map(|(n, result)| Some((n, result.as_ref().err()?)));
    let codes: BTreeSet<&str> = errors().map(|(_, error)| sqlstate(error)).collect();
    assert_eq!(codes, BTreeSet::from(["08007"]), "who did not end was held");

    // On the new timeline the gate goes on.
    let client = kingpost.connect().await;
    within("a commit on the new primary", SOON, gated.cluster.dir(), insert(&client, 1_000_000)).await.unwrap();
    assert_eq!(heir.query("SELECT count(*) FROM t WHERE n = 1000000").await, "1");
}

/// Makes a raw client that listens on `news`, and waits for the confirmation.
async fn listener(kingpost: &Kingpost, database: &str) -> Raw {
    let mut raw = Raw::connect(kingpost.port()).await;
    let parameters = [("user", kingpost_tests::USER), ("database", database)];
    raw.send(&raw::startup(3 << 16, &parameters)).await;
    raw.until(b'Z').await;
    raw.send(&raw::query("LISTEN news")).await;
    raw.until(b'Z').await;
    raw
}

/// A notification reveals a commit: nobody gets it before the relay has the commit, by any connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_waits_for_the_relay_as_the_commit_does() {
    if only_kingpost() {
        return;
    }
    let gated = Gated::start().await;
    let _logs = ShowLogs(gated.cluster.dir());
    let database = kingpost_tests::database;
    let usual = database(kingpost_tests::DATABASE, "pool_mode", "transaction");
    let builder = gated.proxy().add("proxy.databases", usual);
    let builder = builder.add("proxy.databases", database("held", "pool_mode", "session"));
    let builder = builder.add("proxy.databases", database("local", "commit_durability", "local"));
    let kingpost = builder.start().await;
    // By the pool's shared connection, by a connection of its own, and by a pool without a gate.
    let mut shared = listener(&kingpost, kingpost_tests::DATABASE).await;
    let mut own = listener(&kingpost, "held").await;
    let mut local = listener(&kingpost, "local").await;
    let writer = kingpost.connect().await;
    writer.batch_execute("NOTIFY news, 'one'").await.unwrap();
    for raw in [&mut shared, &mut own, &mut local] {
        let heard = within("a notification with a relay", SOON, gated.cluster.dir(), raw.next()).await.unwrap();
        assert_eq!(heard.kind, b'A', "{heard:?}");
    }

    gated.separate();
    let waiting = tokio::spawn(async move {
        writer.batch_execute("BEGIN; INSERT INTO t VALUES (1); SELECT pg_notify('news', 'two'); COMMIT").await
    });
    // The pool without a gate gets it: so PostgreSQL has sent it to the others, too.
    let heard = within("a notification where nothing is held", SOON, gated.cluster.dir(), local.next()).await.unwrap();
    assert_eq!(heard.kind, b'A', "{heard:?}");
    let told = async || (kingpost.metrics().await.sum("kingpost_notifications_told_total", &[]) >= 4.0).then_some(());
    gated.cluster.wait("the proxy to have it for all who share a connection", told).await;
    // In between, each worker passes a whole statement of another client.
    for _ in 0..20 {
        assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
    }
    for (raw, how) in [(&mut shared, "by the shared connection"), (&mut own, "by its own connection")] {
        let early = tokio::time::timeout(Duration::from_millis(100), raw.next()).await;
        assert!(early.is_err(), "heard {how} of a commit that no relay has: {early:?}");
    }
    assert!(!waiting.is_finished());
    gated.cut.set(Link::Up);
    within("the commit", SOON, gated.cluster.dir(), waiting).await.unwrap().unwrap();
    for raw in [&mut shared, &mut own] {
        let heard = within("the notification", SOON, gated.cluster.dir(), raw.next()).await.unwrap();
        assert_eq!(heard.kind, b'A', "{heard:?}");
    }
}
