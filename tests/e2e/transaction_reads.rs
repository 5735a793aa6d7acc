//! Transactions that read on a replica before their first write (`transaction_reads = "replica"`). Each statement has a marker of its own, and every
//! node logs each statement before running it.

use kingpost_tests::{Cluster, Kingpost, Node, ShowLogs, sqlstate, unique};
use tokio_postgres::Client;

use crate::common::{only_kingpost, value};

/// A cluster with a table, and a proxy whose transactions read on replicas.
async fn start(replicas: usize) -> (Cluster, Kingpost) {
    let cluster = Cluster::builder().replicas(replicas).log_statements().start().await;
    let primary = cluster.primary();
    primary.execute("CREATE TABLE facts (n int PRIMARY KEY); GRANT ALL ON facts TO alice").await;
    primary.execute("INSERT INTO facts SELECT generate_series(1, 100)").await;
    cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(&cluster).set("proxy.routing.transaction_reads", "replica").start().await;
    (cluster, kingpost)
}

/// Runs `sql`, in which `MARK` stands for a marker, and returns the first value with the names of the nodes that ran it.
async fn place(cluster: &Cluster, client: &Client, sql: &str) -> (String, Vec<String>) {
    let marker = format!("mark{}end", unique());
    let answer = value(client, &sql.replace("MARK", &marker)).await;
    let saw = |node: &&Node| node.saw(&marker);
    (answer, cluster.nodes().iter().filter(saw).map(|node| node.name().to_owned()).collect())
}

const COUNT: &str = "SELECT count(*) AS MARK FROM facts";

/// Waits until a transaction of the client reads on a replica: after a start or a write, the proxy does not know at once that one has everything.
async fn settles_on_replica(cluster: &Cluster, client: &Client) {
    let primary = cluster.primary().name();
    cluster
        .wait("a transaction that reads on a replica", async || {
            client.batch_execute("BEGIN").await.unwrap();
            let (_, nodes) = place(cluster, client, COUNT).await;
            client.batch_execute("COMMIT").await.unwrap();
            (!nodes.iter().any(|node| node == primary)).then_some(())
        })
        .await;
}

/// The reads of a transaction run on one replica, until it writes; then it sees its own rows, and a rollback undoes them.
#[tokio::test]
async fn reads_before_the_first_write_run_on_one_replica() {
    let (cluster, kingpost) = start(2).await;
    let _logs = ShowLogs(cluster.dir());
    if only_kingpost() {
        return;
    }
    let (client, primary) = (kingpost.connect().await, cluster.primary().name());
    for end in ["COMMIT", "ROLLBACK", "commit work", "END", "abort"] {
        settles_on_replica(&cluster, &client).await;
        client.batch_execute("BEGIN").await.unwrap();
        let (rows, first) = place(&cluster, &client, COUNT).await;
        for _ in 0..5 {
            assert_eq!(place(&cluster, &client, COUNT).await, (rows.clone(), first.clone()), "{end}");
        }
        assert!(first.len() == 1 && first != [primary], "{first:?}");
        let marker = format!("mark{}end", unique());
        let prepared = format!("SELECT count(*) AS {marker} FROM facts WHERE n > $1");
        let seen: i64 = client.query_one(&prepared, &[&0]).await.unwrap().get(0);
        assert_eq!(seen.to_string(), rows);
        client.execute("INSERT INTO facts SELECT max(n) + 1 FROM facts", &[]).await.unwrap();
        let (own, after) = place(&cluster, &client, COUNT).await;
        assert_eq!((own.parse::<i64>().unwrap(), after), (seen + 1, vec![primary.to_owned()]), "{end}");
        client.batch_execute(end).await.unwrap();
        let kept = i64::from(!matches!(end, "ROLLBACK" | "abort"));
        assert_eq!(value(&client, "SELECT count(*) FROM facts").await.parse::<i64>().unwrap(), seen + kept, "{end}");
    }
    // One that never writes leaves no trace on the primary.
    settles_on_replica(&cluster, &client).await;
    let marker = format!("mark{}end", unique());
    client.batch_execute(&format!("BEGIN /* {marker} */")).await.unwrap();
    assert_ne!(place(&cluster, &client, COUNT).await.1, [primary]);
    client.batch_execute(&format!("COMMIT /* {marker} */")).await.unwrap();
    assert!(cluster.nodes().iter().all(|node| !node.saw(&marker)));
}

/// An error of such a read fails the transaction, as on any server; a new one can begin.
#[tokio::test]
async fn an_error_of_an_early_read_fails_its_transaction() {
    let (cluster, kingpost) = start(1).await;
    let _logs = ShowLogs(cluster.dir());
    let client = kingpost.connect().await;
    settles_on_replica(&cluster, &client).await;
    for end in ["COMMIT", "ROLLBACK"] {
        client.batch_execute("BEGIN").await.unwrap();
        place(&cluster, &client, COUNT).await;
        let error = client.query("SELECT 1 / (n - n) FROM facts", &[]).await.unwrap_err();
        assert_eq!(sqlstate(&error), "22012");
        for refused in ["SELECT 1", "INSERT INTO facts VALUES (-1)"] {
            assert_eq!(sqlstate(&client.batch_execute(refused).await.unwrap_err()), "25P02", "{refused}");
        }
        client.batch_execute(end).await.unwrap();
        assert_eq!(value(&client, "SELECT count(*) FROM facts WHERE n < 0").await, "0");
    }
}

/// A transaction whose statements share one snapshot, or that asks for its own begin, goes to the primary as a whole.
#[tokio::test]
async fn what_needs_the_transaction_begins_it() {
    let (cluster, kingpost) = start(1).await;
    let _logs = ShowLogs(cluster.dir());
    if only_kingpost() {
        return;
    }
    let (client, primary) = (kingpost.connect().await, cluster.primary().name().to_owned());
    settles_on_replica(&cluster, &client).await;
    let of_primary = vec![primary.clone()];
    for begin in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION ISOLATION LEVEL SERIALIZABLE"] {
        client.batch_execute(begin).await.unwrap();
        assert_eq!(place(&cluster, &client, COUNT).await.1, of_primary, "{begin}");
        client.batch_execute("COMMIT").await.unwrap();
    }
    for first in [
        "SELECT now() AS MARK",
        "SELECT count(*) AS MARK FROM facts WHERE current_date > '2000-01-01'",
        "SELECT age(timestamp '2000-01-01') AS MARK",
        "SELECT n AS MARK FROM facts WHERE n = 1 FOR SHARE",
        "SELECT pg_advisory_xact_lock(1) AS MARK",
    ] {
        client.batch_execute("BEGIN").await.unwrap();
        assert_ne!(place(&cluster, &client, COUNT).await.1, of_primary, "before {first}");
        assert_eq!(place(&cluster, &client, first).await.1, of_primary, "{first}");
        assert_eq!(place(&cluster, &client, COUNT).await.1, of_primary, "after {first}");
        client.batch_execute("COMMIT").await.unwrap();
        settles_on_replica(&cluster, &client).await;
    }
    // The session's, or the role's, default.
    for (set, level) in [("repeatable read", true), ("read committed", false), ("SERIALIZABLE", true)] {
        client.batch_execute(&format!("SET default_transaction_isolation = '{set}'")).await.unwrap();
        if level {
            client.batch_execute("BEGIN").await.unwrap();
            assert_eq!(place(&cluster, &client, COUNT).await.1, of_primary, "{set}");
            client.batch_execute("COMMIT").await.unwrap();
        } else {
            settles_on_replica(&cluster, &client).await;
        }
    }
    // A session may choose.
    let other = kingpost.connect().await;
    settles_on_replica(&cluster, &other).await;
    other.batch_execute("SET kingpost.transaction_reads = 'primary'").await.unwrap();
    assert_eq!(value(&other, "SHOW kingpost.transaction_reads").await, "primary");
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(place(&cluster, &other, COUNT).await.1, of_primary);
    other.batch_execute("COMMIT").await.unwrap();
    other.batch_execute("RESET kingpost.transaction_reads").await.unwrap();
    settles_on_replica(&cluster, &other).await;
}

/// A role whose transactions are REPEATABLE READ by default reads on the primary, beside one whose are not.
#[tokio::test]
async fn a_role_may_have_another_isolation_level() {
    let (cluster, kingpost) = start(1).await;
    let _logs = ShowLogs(cluster.dir());
    if only_kingpost() {
        return;
    }
    let primary = cluster.primary();
    primary.execute("CREATE ROLE bob LOGIN; GRANT ALL ON facts TO bob").await;
    primary.execute("ALTER ROLE bob SET default_transaction_isolation = 'repeatable read'").await;
    cluster.wait_caught_up().await;
    let mut config = kingpost.endpoint().config();
    config.user("bob");
    let (bob, alice) = (kingpost.endpoint().connect_as(&config).await, kingpost.connect().await);
    settles_on_replica(&cluster, &alice).await;
    for _ in 0..5 {
        bob.batch_execute("BEGIN").await.unwrap();
        assert_eq!(place(&cluster, &bob, COUNT).await.1, [primary.name()]);
        bob.batch_execute("COMMIT").await.unwrap();
    }
}

/// A transaction sees what its session has committed, and a replica that is lost in the middle costs nothing.
#[tokio::test]
async fn early_reads_see_the_sessions_own_commits() {
    let (cluster, kingpost) = start(2).await;
    let _logs = ShowLogs(cluster.dir());
    let client = kingpost.connect().await;
    for turn in 0..30 {
        client.execute("INSERT INTO facts VALUES ($1)", &[&(1000 + turn)]).await.unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        for _ in 0..3 {
            let found = value(&client, &format!("SELECT count(*) FROM facts WHERE n = {}", 1000 + turn)).await;
            assert_eq!(found, "1", "row {turn}");
        }
        client.batch_execute("COMMIT").await.unwrap();
    }
    if only_kingpost() {
        return;
    }
    settles_on_replica(&cluster, &client).await;
    client.batch_execute("BEGIN").await.unwrap();
    let (rows, first) = place(&cluster, &client, COUNT).await;
    let lost = cluster.replicas().iter().find(|node| first == [node.name()]).expect("a replica has answered");
    lost.kill9().await;
    let (again, then) = place(&cluster, &client, COUNT).await;
    assert_eq!((again, then), (rows, vec![cluster.primary().name().to_owned()]));
    client.batch_execute("COMMIT").await.unwrap();
}

/// After a failover the new primary may not have what the transaction has seen: the transaction is lost, as on a server that is gone.
#[tokio::test]
async fn a_failover_loses_a_transaction_that_has_read() {
    let (cluster, kingpost) = start(1).await;
    let _logs = ShowLogs(cluster.dir());
    if only_kingpost() {
        return;
    }
    let (reader, new) = (kingpost.connect().await, kingpost.connect().await);
    settles_on_replica(&cluster, &reader).await;
    reader.batch_execute("BEGIN").await.unwrap();
    assert_ne!(place(&cluster, &reader, COUNT).await.1, [cluster.primary().name()]);
    cluster.primary().kill9().await;
    cluster.replica(0).promote().await;
    cluster
        .wait("a write on the new primary", async || {
            new.batch_execute("INSERT INTO facts VALUES (7000)").await.is_ok().then_some(())
        })
        .await;
    let error = reader.query("SELECT count(*) FROM facts", &[]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "40001");
    reader.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(value(&reader, "SELECT count(*) FROM facts WHERE n = 7000").await, "1");
}
