//! Servers that report no log positions, such as Aurora's: roles, reads, own writes, and the detection of the primary without timelines.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use kingpost_tests::{Cluster, Kingpost, KingpostBuilder, PROBED, PROBER, ShowLogs, Tells, unique, within};
use tokio_postgres::Client;

use crate::common::{only_kingpost, value};

/// Users, each with a database of its own, with the same tables.
const TENANTS: [(&str, &str); 2] = [("alice", "app"), ("bob", "other")];
const CLIENTS: usize = 3;
/// Writes of all clients together, in each state of the servers.
const WRITES_A_PHASE: usize = 80;
/// Marker of each read: to count the nodes on which they ran.
const READ: &str = "own_read";
/// Pause of an application between two statements: part of the load, not of any wait.
const THINK: Duration = Duration::from_millis(8);

async fn model(tells: Tells) -> Cluster {
    let cluster = Cluster::builder().replicas(2).log_statements().start().await;
    cluster.tell_only(tells).await;
    let admin = cluster.primary().admin().await;
    admin.batch_execute("CREATE ROLE bob LOGIN").await.unwrap();
    admin.batch_execute("CREATE DATABASE other OWNER bob").await.unwrap();
    for (user, database) in TENANTS {
        let table = format!("CREATE TABLE own (id bigint PRIMARY KEY, of text); GRANT ALL ON own TO {user}");
        cluster.primary().execute_in(database, &table).await;
    }
    cluster.wait_caught_up().await;
    cluster
}

fn proxy(cluster: &Cluster) -> KingpostBuilder<'_> {
    Kingpost::of(cluster).set("cluster.user", PROBER).set("cluster.database", PROBED).set("cluster.lag_limit", "1h")
}

async fn client(kingpost: &Kingpost, (user, database): (&str, &str)) -> Client {
    let mut config = kingpost.endpoint().config();
    config.user(user).dbname(database);
    kingpost.endpoint().connect_as(&config).await
}

#[derive(Default)]
struct History {
    writes: AtomicUsize,
    misses: AtomicUsize,
    strangers: AtomicUsize,
    /// Acknowledged writes, by tenant.
    acknowledged: Mutex<Vec<(usize, i64)>>,
    stop: AtomicBool,
}

impl History {
    /// Each client writes, reads the write back, and looks for rows of other users.
    async fn load(&self, kingpost: &Kingpost) {
        let one = |n: usize| async move {
            let tenant = n % TENANTS.len();
            let user = TENANTS[tenant].0;
            let client = client(kingpost, TENANTS[tenant]).await;
            for turn in 0.. {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                let id = (turn * 100 + n) as i64;
                let insert = format!("INSERT INTO own VALUES ({id}, '{user}')");
                // During a failover the write may fail, with an unknown outcome: then it need not be visible.
                let acknowledged = match turn % 3 {
                    0 => client.simple_query(&insert).await.is_ok(),
                    1 => client.execute(&insert, &[]).await.is_ok(),
                    _ => client.batch_execute(&format!("BEGIN; {insert}; COMMIT")).await.is_ok(),
                };
                if acknowledged {
                    self.acknowledged.lock().unwrap().push((tenant, id));
                }
                let select = format!(
                    "SELECT count(*) AS {READ}, count(*) FILTER (WHERE of <> '{user}') FROM own WHERE id = {id}"
                );
                for later in 0..4 {
                    if later > 0 {
                        tokio::time::sleep(THINK).await;
                    }
                    let Ok(row) = client.query_one(&select, &[]).await else { continue };
                    let (found, strangers) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
                    self.misses.fetch_add(usize::from(acknowledged && found == 0), Ordering::Relaxed);
                    self.strangers.fetch_add(usize::try_from(strangers).unwrap(), Ordering::Relaxed);
                }
                self.writes.fetch_add(usize::from(acknowledged), Ordering::Relaxed);
            }
        };
        join_all((0..CLIENTS * TENANTS.len()).map(one)).await;
    }

    async fn phase(&self, cluster: &Cluster, what: &str) {
        let until = self.writes.load(Ordering::Relaxed) + WRITES_A_PHASE;
        let written = async || (self.writes.load(Ordering::Relaxed) >= until).then_some(());
        cluster.wait_for(&format!("{WRITES_A_PHASE} writes with {what}"), Duration::from_secs(60), written).await;
    }
}

/// Makes the readers lag in turn, and at the end replaces the writer.
async fn disturb(cluster: &Cluster, kingpost: &Kingpost, history: &History) {
    let (writer, one, two) = (cluster.primary(), cluster.replica(0), cluster.replica(1));
    history.phase(cluster, "readers that keep up").await;
    one.pause_replay().await;
    history.phase(cluster, "one held back").await;
    two.pause_replay().await;
    history.phase(cluster, "both held back").await;
    one.resume_replay().await;
    two.resume_replay().await;
    // The transaction has an ID, and stays open: no later write can be proven to be on all nodes.
    let open = writer.admin().await;
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    history.phase(cluster, "a transaction that stays open").await;
    open.batch_execute("COMMIT").await.unwrap();
    one.recovery_delay(Duration::from_millis(120)).await;
    history.phase(cluster, "one that is late").await;
    one.recovery_delay(Duration::ZERO).await;
    cluster.wait_caught_up().await;
    writer.stop().await;
    one.promote().await;
    two.follow(one).await;
    kingpost.wait_readyz(200).await;
    history.phase(cluster, "another writer").await;
    two.pause_replay().await;
    history.phase(cluster, "another writer, and its reader held back").await;
    two.resume_replay().await;
    history.stop.store(true, Ordering::Relaxed);
}

struct Seen {
    misses: usize,
    writes: usize,
    on_readers: usize,
}

async fn run(consistency: &str) -> Seen {
    let cluster = model(Tells::Members).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).set("proxy.routing.consistency", consistency).start().await;
    let history = History::default();
    let all = join(history.load(&kingpost), disturb(&cluster, &kingpost, &history));
    within("writes and reads", Duration::from_secs(300), cluster.dir(), all).await;
    assert_eq!(history.strangers.into_inner(), 0, "rows of the other user's database");
    // No acknowledged write is lost.
    for (tenant, (_, database)) in TENANTS.iter().enumerate() {
        let acknowledged = history.acknowledged.lock().unwrap().clone();
        let ids: Vec<String> =
            acknowledged.iter().filter(|(of, _)| *of == tenant).map(|(_, id)| format!("({id})")).collect();
        assert!(!ids.is_empty());
        let lost =
            format!("SELECT count(*) FROM (VALUES {}) AS w (id) WHERE id NOT IN (SELECT id FROM own)", ids.join(","));
        assert_eq!(cluster.replica(0).query_in(database, &lost).await, "0", "lost, in {database}");
    }
    // The first reader was promoted: its answers before and after that are not distinguished.
    let on_readers = cluster.replica(1).log().matches(READ).count();
    Seen { misses: history.misses.into_inner(), writes: history.writes.into_inner(), on_readers }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_writes_are_read_back_though_no_server_tells_its_lsn() {
    if only_kingpost() {
        return;
    }
    let seen = run("session").await;
    assert_eq!(seen.misses, 0, "of {} own writes", seen.writes);
    assert!(seen.on_readers >= CLIENTS, "only {} reads on a reader, of {} writes", seen.on_readers, seen.writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eventual_reads_of_such_servers_miss_own_writes() {
    if only_kingpost() {
        return;
    }
    let seen = run("eventual").await;
    assert!(
        seen.misses > 0,
        "none of {}, with {} on a reader: the other test can't fail",
        seen.writes,
        seen.on_readers
    );
}

/// Sends `times` reads with a marker of their own, and returns how many of them each node got.
async fn spread(cluster: &Cluster, client: &Client, times: usize) -> Vec<usize> {
    let marker = format!("spread_{}", unique());
    for _ in 0..times {
        value(client, &format!("SELECT count(*) AS {marker} FROM own")).await;
    }
    cluster.nodes().iter().map(|node| node.log().matches(&marker).count()).collect()
}

#[tokio::test]
async fn who_has_written_reads_at_the_primary_where_servers_tell_only_their_roles() {
    if only_kingpost() {
        return;
    }
    // A server without a list of members reports no history either, so its transaction IDs are not used.
    for tells in [Tells::Roles, Tells::Snapshots] {
        let cluster = model(tells).await;
        let _logs = ShowLogs(cluster.dir());
        let kingpost = proxy(&cluster).set("proxy.routing.strong_wait", "1h").start().await;
        let (writes, reads) = (client(&kingpost, TENANTS[0]).await, client(&kingpost, TENANTS[1]).await);
        let before = spread(&cluster, &writes, 40).await;
        assert!(before[0] == 0 && before[1] > 0 && before[2] > 0, "{tells:?}: {before:?}");

        writes.batch_execute("INSERT INTO own VALUES (1, 'alice')").await.unwrap();
        cluster.wait_caught_up().await;
        assert_eq!(spread(&cluster, &writes, 40).await, [40, 0, 0], "{tells:?}: nobody can prove it");
        let others = spread(&cluster, &reads, 40).await;
        assert!(others[0] == 0 && others[1] > 0 && others[2] > 0, "{tells:?}: {others:?}");

        // A token only says that there was a write.
        let token = value(&writes, "SHOW kingpost.token").await;
        let told = client(&kingpost, TENANTS[0]).await;
        told.batch_execute(&format!("SET kingpost.token = '{token}'")).await.unwrap();
        assert_eq!(spread(&cluster, &told, 10).await, [10, 0, 0], "{tells:?}: {token}");
        // And no client waits for a position that is not reported.
        reads.batch_execute("SET kingpost.consistency = 'strong'").await.unwrap();
        let strong = spread(&cluster, &reads, 10);
        let strong = within("strong reads", Duration::from_secs(60), cluster.dir(), strong).await;
        assert_eq!(strong, [10, 0, 0], "{tells:?}");
    }
}

#[tokio::test]
async fn transaction_ids_are_used_where_somebody_says_so() {
    if only_kingpost() {
        return;
    }
    let cluster = model(Tells::Snapshots).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).set("cluster.positions", "transactions").start().await;
    let client = client(&kingpost, TENANTS[0]).await;
    client.batch_execute("INSERT INTO own VALUES (1, 'alice')").await.unwrap();
    let on_readers = async || {
        let nodes = spread(&cluster, &client, 10).await;
        (nodes[1] > 0 && nodes[2] > 0).then_some(())
    };
    cluster.wait("reads on both readers", on_readers).await;
    // A session that takes another's token reads at the primary until the node of that write is known.
    let token = value(&client, "SHOW kingpost.token").await;
    client.batch_execute(&format!("SET kingpost.token = '{token}'")).await.unwrap();
    cluster.wait("reads on both readers", on_readers).await;

    // With `positions = "wal"` the servers are down; with their real kind they are found again.
    kingpost.reload("cluster.positions", "wal");
    kingpost.wait_readyz(503).await;
    kingpost.reload("cluster.positions", "auto");
    kingpost.wait_readyz(200).await;
    assert_eq!(value(&client, "SELECT count(*) FROM own").await, "1");
}

#[tokio::test]
async fn of_two_writers_without_timelines_neither_gets_writes() {
    if only_kingpost() {
        return;
    }
    let cluster = model(Tells::Members).await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = proxy(&cluster).set("proxy.pool.no_primary_timeout", "300ms").start().await;
    let (old, new, reader) = (cluster.primary(), cluster.replica(0), cluster.replica(1));
    let client = client(&kingpost, TENANTS[0]).await;
    client.batch_execute("INSERT INTO own VALUES (1, 'alice')").await.unwrap();
    cluster.wait_caught_up().await;

    new.promote().await;
    kingpost.wait_readyz(503).await;
    let refused = client.batch_execute("INSERT INTO own VALUES (2, 'alice')").await.unwrap_err();
    assert!(refused.code().is_some(), "{refused:?}");
    for node in [old, new] {
        assert_eq!(node.query("SELECT count(*) FROM own WHERE id = 2").await, "0", "{}", node.name());
    }

    // Its own servers report that the old one is no longer a writer.
    old.execute_in(PROBED, &format!("INSERT INTO model.disowned VALUES ('{}')", old.name())).await;
    kingpost.wait_readyz(200).await;
    client.batch_execute("INSERT INTO own VALUES (3, 'alice')").await.unwrap();
    assert_eq!(new.query("SELECT count(*) FROM own WHERE id = 3").await, "1");
    assert_eq!(old.query("SELECT count(*) FROM own WHERE id = 3").await, "0");
    reader.follow(new).await;
}
