//! The primary dies and a replica is promoted, under load: the answers to each client are compared with the rows that are there.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, sqlstate, within};
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::common::{only_kingpost, simple, value};
use crate::ways::{Front, Ground, Way};

const WRITERS: usize = 12;
/// Codes of an unknown outcome: transaction_resolution_unknown for a COMMIT, statement_completion_unknown for a statement that is a transaction of
/// its own. With every other code nothing was done.
const UNKNOWN: [&str; 2] = ["08007", "40003"];

/// Outcome of one id, as its writer was told.
#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    /// Done on this node; `lsn` is a position of its log shortly before the commit.
    Acknowledged { node: String, lsn: u64 },
    /// Possibly done.
    Unknown,
    /// Certainly not done.
    NotDone(String),
}

#[derive(Default)]
struct History {
    /// Outcomes by id; an id is a writer's number and its turn, so that a writer's ids are in the order of its attempts.
    outcomes: Mutex<HashMap<i64, Outcome>>,
    stop: AtomicBool,
}

fn lsn(text: &str) -> u64 {
    let (high, low) = text.split_once('/').expect("an LSN");
    u64::from_str_radix(high, 16).unwrap() << 32 | u64::from_str_radix(low, 16).unwrap()
}

fn id(writer: usize, turn: usize) -> i64 {
    (writer * 1_000_000 + turn) as i64
}

fn insert(id: i64) -> String {
    format!(
        "INSERT INTO ledger VALUES ({id}) RETURNING pg_current_wal_insert_lsn()::text, current_setting('cluster_name')"
    )
}

fn acknowledged(messages: &[SimpleQueryMessage]) -> Outcome {
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.expect("a row");
    Outcome::Acknowledged { node: row.get(1).unwrap().into(), lsn: lsn(row.get(0).unwrap()) }
}

/// Returns the outcome that an error of a committing statement means.
fn refused(error: &Error) -> Outcome {
    match sqlstate(error) {
        code if UNKNOWN.contains(&code) => Outcome::Unknown,
        "" => panic!("not an answer but a lost connection: {error:?}"),
        code => Outcome::NotDone(code.into()),
    }
}

async fn write(client: &Client, id: i64, way: usize) -> Outcome {
    match way {
        0 => match client.simple_query(&insert(id)).await {
            Ok(messages) => acknowledged(&messages),
            Err(error) => refused(&error),
        },
        1 => match client.query_one(&insert(id), &[]).await {
            Ok(row) => Outcome::Acknowledged { node: row.get(1), lsn: lsn(row.get(0)) },
            Err(error) => refused(&error),
        },
        _ => {
            let work = async {
                client.batch_execute("BEGIN").await?;
                client.simple_query(&insert(id)).await
            };
            let outcome = match work.await {
                Ok(messages) => acknowledged(&messages),
                Err(error) => {
                    // Before COMMIT was sent nothing can have been done, with any code.
                    assert_ne!(sqlstate(&error), "", "a lost connection: {error:?}");
                    client.batch_execute("ROLLBACK").await.expect("ROLLBACK after an error");
                    return Outcome::NotDone(sqlstate(&error).into());
                }
            };
            match client.simple_query("COMMIT").await {
                Ok(messages) => {
                    // COMMIT of a failed transaction answers ROLLBACK, which the driver does not report; the rows will show it.
                    assert!(!messages.is_empty());
                    outcome
                }
                Err(error) => refused(&error),
            }
        }
    }
}

impl History {
    async fn run(&self, front: &Front) {
        let writer = |n: usize| async move {
            // One client for the whole run.
            let client = front.connect().await;
            for turn in 0.. {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                let id = id(n, turn);
                let outcome = write(&client, id, (n + turn) % 3).await;
                assert!(!client.is_closed(), "writer {n} was thrown out");
                // Writes on the new primary must be read back by their writer; those on the old one may be gone with it.
                if matches!(&outcome, Outcome::Acknowledged { node, .. } if node != "n0") {
                    let found = value(&client, &format!("SELECT count(*) FROM ledger WHERE id = {id}")).await;
                    assert_eq!(found, "1", "writer {n} misses its own write {id}");
                }
                self.outcomes.lock().unwrap().insert(id, outcome);
            }
        };
        join_all((0..WRITERS).map(writer)).await;
    }

    /// Waits until every writer has `count` writes acknowledged by the node.
    async fn acknowledged_by(&self, cluster: &Cluster, node: &str, count: usize) {
        let reached = async || {
            let mut counts = [0; WRITERS];
            for (id, outcome) in self.outcomes.lock().unwrap().iter() {
                if matches!(outcome, Outcome::Acknowledged { node: by, .. } if by == node) {
                    counts[(id / 1_000_000) as usize] += 1;
                }
            }
            counts.iter().all(|&done| done >= count).then_some(())
        };
        let what = format!("{count} writes of each writer on {node}");
        cluster.wait_for(&what, Duration::from_secs(60), reached).await;
    }

    /// Compares the outcomes with the rows of the new primary, whose timeline began at `switched`.
    fn check(&self, rows: &HashMap<i64, usize>, switched: u64) -> String {
        let outcomes = self.outcomes.lock().unwrap();
        let (mut lost, mut unknown, mut unknown_done, mut refused) = (0, 0, 0, HashMap::<&str, usize>::new());
        for (id, count) in rows {
            assert_eq!(*count, 1, "{id} was done {count} times, told: {:?}", outcomes.get(id));
            assert!(outcomes.contains_key(id), "{id} was never asked for");
        }
        for (id, outcome) in outcomes.iter() {
            let present = rows.contains_key(id);
            match outcome {
                Outcome::NotDone(code) => {
                    assert!(!present, "{id} was done, but its writer was told {code}");
                    *refused.entry(code).or_default() += 1;
                }
                Outcome::Unknown => {
                    unknown += 1;
                    unknown_done += usize::from(present);
                }
                Outcome::Acknowledged { .. } if present => {}
                Outcome::Acknowledged { node, .. } => {
                    assert_eq!(node, "n0", "{id} was acknowledged by the new primary and is not there");
                    lost += 1;
                    // Its commit lies before the position that its writer's next write saw: if the replica had received that much, it would have the
                    // row.
                    if let Some(Outcome::Acknowledged { node, lsn }) = outcomes.get(&(id + 1)) {
                        assert!(
                            node != "n0" || *lsn > switched,
                            "{id} is lost, but {switched:x} lies after its commit"
                        );
                    }
                }
            }
        }
        format!(
            "{} asked, {} there, {lost} acknowledged and lost, {unknown} unknown ({unknown_done} done), refused: {refused:?}",
            outcomes.len(),
            rows.len()
        )
    }
}

async fn ledger(client: &Client) -> HashMap<i64, usize> {
    let rows = simple(client, "SELECT id, count(*) FROM ledger GROUP BY id").await;
    rows.iter().map(|row| (row[0].parse().unwrap(), row[1].parse().unwrap())).collect()
}

async fn ground_with_ledger(way: Way) -> Ground {
    let ground = Ground::start(way, &[("log_connections", "on")]).await;
    // No key, so that duplicates show.
    let sql = "CREATE TABLE ledger (id bigint); CREATE INDEX ON ledger (id); GRANT ALL ON ledger TO alice";
    ground.cluster.primary().execute(sql).await;
    ground.cluster.wait_caught_up().await;
    ground
}

async fn cluster_with_ledger() -> Cluster {
    ground_with_ledger(Way::Plain).await.cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_and_a_promoted_replica() {
    failover(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_and_a_promoted_replica_over_tls_and_lanes() {
    failover(Way::SecuredLanes).await;
}

async fn failover(way: Way) {
    if only_kingpost() {
        return;
    }
    let ground = ground_with_ledger(way).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let front = ground.front(|builder| builder).await;
    let (old, new, other) = (cluster.primary(), cluster.replica(0), cluster.replica(1));
    let history = History::default();
    let steps = async {
        history.acknowledged_by(cluster, "n0", 20).await;
        old.kill9().await;
        new.promote().await;
        other.follow(new).await;
        history.acknowledged_by(cluster, "n1", 20).await;

        // The old primary comes back and still believes that it is the primary. The proxy must have seen it before the test means anything: its
        // probes use the database postgres, which nobody else does.
        let seen = |log: &str| log.matches("database=postgres").count();
        let before = seen(&old.log());
        old.start().await;
        let rows_of_old = old.query("SELECT count(*) FROM ledger").await;
        cluster.wait("probes of the stale primary", async || (seen(&old.log()) > before).then_some(())).await;
        history.acknowledged_by(cluster, "n1", 60).await;
        assert_eq!(old.query("SELECT count(*) FROM ledger").await, rows_of_old, "the stale primary got a write");

        // After a rewind it serves again, as a replica.
        old.stop().await;
        old.rejoin(new).await;
        history.acknowledged_by(cluster, "n1", 80).await;
        history.stop.store(true, Ordering::Relaxed);
    };
    within("writers and a failover", Duration::from_secs(240), cluster.dir(), join(history.run(&front), steps)).await;
    let admin = new.admin().await;
    // The history file of the new timeline has the switch point.
    let switched =
        value(&admin, "SELECT (regexp_match(pg_read_file('pg_wal/00000002.history'), '1\\s+(\\S+)'))[1]").await;
    let rows = ledger(&admin).await;
    eprintln!("{}", history.check(&rows, lsn(&switched)));
}

#[tokio::test]
async fn writes_wait_while_there_is_no_primary() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster_with_ledger().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let (writer, reader) = (kingpost.connect().await, kingpost.connect().await);
    // This client's server connection is idle when the primary dies; the other has none yet.
    writer.batch_execute("INSERT INTO ledger VALUES (1)").await.unwrap();
    let fresh = kingpost.connect().await;
    cluster.wait_caught_up().await;
    cluster.primary().kill9().await;
    let steps = async {
        for _ in 0..50 {
            assert_eq!(value(&reader, "SELECT count(*) FROM ledger WHERE id = 1").await, "1", "reads go on");
        }
        cluster.replica(0).promote().await;
    };
    let writes = join(
        writer.batch_execute("INSERT INTO ledger VALUES (2)"),
        fresh.execute("INSERT INTO ledger VALUES (3)", &[]),
    );
    let both = within("writes without a primary", Duration::from_secs(60), cluster.dir(), join(writes, steps)).await;
    // A statement given to a dead connection, not yet known as dead, may have an unknown outcome, but is not lost silently.
    let ((one, two), ()) = both;
    for outcome in [one.map(|()| 1), two] {
        if let Err(error) = outcome {
            assert!(UNKNOWN.contains(&sqlstate(&error)), "{error:?}");
        }
    }
    writer.batch_execute("INSERT INTO ledger VALUES (4)").await.unwrap();
    assert_eq!(value(&writer, "SELECT count(*) FROM ledger WHERE id = 4").await, "1");
}

#[tokio::test]
async fn without_a_primary_for_too_long_is_an_error_that_the_client_survives() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster_with_ledger().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.pool.no_primary_timeout", "300ms").start().await;
    let client = kingpost.connect().await;
    cluster.primary().stop().await;
    for n in 0..3 {
        let error = client.simple_query(&format!("INSERT INTO ledger VALUES ({n})")).await.unwrap_err();
        assert!(!["", "08007", "40003"].contains(&sqlstate(&error)), "{error:?}");
        let error = client.execute(&format!("INSERT INTO ledger VALUES ({n})"), &[]).await.unwrap_err();
        assert!(!["", "08007", "40003"].contains(&sqlstate(&error)), "{error:?}");
    }
    assert_eq!(value(&client, "SELECT count(*) FROM ledger").await, "0");
    // The same server comes back.
    cluster.primary().start().await;
    cluster
        .wait("a write after the restart", async || client.batch_execute("INSERT INTO ledger VALUES (9)").await.ok())
        .await;
    assert_eq!(value(&client, "SELECT count(*) FROM ledger").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_restarts_is_waited_for() {
    restarts(Way::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_restarts_is_waited_for_over_tls_and_lanes() {
    restarts(Way::SecuredLanes).await;
}

async fn restarts(way: Way) {
    if only_kingpost() {
        return;
    }
    let ground = ground_with_ledger(way).await;
    let cluster = &ground.cluster;
    let _logs = ShowLogs(cluster.dir());
    let front = ground.front(|builder| builder).await;
    let history = History::default();
    let acknowledged = |history: &History| {
        let outcomes = history.outcomes.lock().unwrap();
        outcomes.values().filter(|outcome| matches!(outcome, Outcome::Acknowledged { .. })).count()
    };
    let steps = async {
        history.acknowledged_by(cluster, "n0", 10).await;
        for _ in 0..2 {
            cluster.primary().stop().await;
            cluster.primary().start().await;
            let until = acknowledged(&history) + 300;
            cluster.wait("writes after the restart", async || (acknowledged(&history) >= until).then_some(())).await;
        }
        history.stop.store(true, Ordering::Relaxed);
    };
    within("writers and restarts", Duration::from_secs(120), cluster.dir(), join(history.run(&front), steps)).await;
    let rows = ledger(&cluster.primary().admin().await).await;
    // Nothing may be lost: the switch point is the end of the log.
    eprintln!("{}", history.check(&rows, u64::MAX));
}
