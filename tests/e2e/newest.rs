//! Statements that PostgreSQL 19 brought, and that the proxy's grammar does not have.

use kingpost_tests::{Cluster, Kingpost, ShowLogs, skipped, unique};

use crate::common::{is_postgresql_19, only_kingpost, replay_checks, simple, value};

/// Starts a primary and a replica of PostgreSQL 19; None where the servers are others, or another proxy is tested.
async fn postgresql_19() -> Option<Cluster> {
    if only_kingpost() {
        return None;
    }
    let cluster = Cluster::builder().replicas(1).log_statements().start().await;
    if !is_postgresql_19(&cluster).await {
        skipped("PostgreSQL 19 is needed (PG_BIN, tests/postgresql/setup --newest prints it)");
        return None;
    }
    Some(cluster)
}

#[tokio::test]
async fn graphs_are_read_and_standbys_waited_for_on_replicas() {
    let Some(cluster) = postgresql_19().await else { return };
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let client = kingpost.connect().await;
    simple(
        &client,
        "CREATE TABLE person (id int PRIMARY KEY, name text); INSERT INTO person VALUES (1, 'a'), (2, 'b')",
    )
    .await;
    let replica = cluster.nodes().iter().find(|node| node.name() == "n1").unwrap();

    // A read, once the replica has what this session wrote. The first release candidate has no graphs.
    if client.simple_query("CREATE PROPERTY GRAPH people VERTEX TABLES (person)").await.is_ok() {
        let read = "SELECT string_agg(name, '' ORDER BY name) FROM GRAPH_TABLE (people MATCH (p IS person WHERE lower(p.name) <> 'MARK') COLUMNS (p.name AS name))";
        cluster
            .wait("a graph is read on the replica", async || {
                let marker = format!("mark{}end", unique());
                assert_eq!(value(&client, &read.replace("MARK", &marker)).await, "ab");
                replica.saw(&marker).then_some(())
            })
            .await;
    }

    // A wait for a position, though the replica lacks it and this session's write.
    replica.pause_replay().await;
    simple(&client, "INSERT INTO person VALUES (3, 'c')").await;
    let written = value(&client, "/* kingpost.route=primary */ SELECT pg_current_wal_insert_lsn()").await;
    let wait = |with: &str| format!("WAIT FOR LSN '{written}' WITH ({with}NO_THROW)");
    assert_eq!(value(&client, &wait("TIMEOUT '50ms', ")).await, "timeout");
    assert_eq!(value(&client, &wait("MODE 'standby_flush', TIMEOUT '20s', ")).await, "success");
    assert_eq!(value(&client, &wait("MODE 'primary_flush', ")).await, "success");
    assert_eq!(value(&client, &format!("/* kingpost.route=primary */ {}", wait(""))).await, "not in recovery");
    replica.resume_replay().await;
    assert_eq!(value(&client, &wait("TIMEOUT '20s', ")).await, "success");
}

/// The first read behind a write runs on the replica, which waits for the write. One that waits in vain drops the read.
#[tokio::test]
async fn a_replica_waits_for_what_a_read_must_see() {
    let Some(cluster) = postgresql_19().await else { return };
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("cluster.probe_interval", "2s").set("cluster.probe_timeout", "3s");
    let kingpost = kingpost.set("cluster.lag_limit", "1h").start().await;
    let client = kingpost.connect().await;
    simple(&client, "CREATE TABLE own (id int PRIMARY KEY)").await;
    cluster.wait_caught_up().await;
    let replica = cluster.replica(0);
    let counts = async || replay_checks(&kingpost).await;
    let mut ids = 0..;
    let mut write_and_read = async || {
        let id: i32 = ids.next().unwrap();
        client.execute("INSERT INTO own VALUES ($1)", &[&id]).await.unwrap();
        let marker = format!("mark{}end", unique());
        let read = format!("SELECT count(*) AS {marker} FROM own WHERE id = {id}");
        assert_eq!(value(&client, &read).await, "1", "row {id} is missing");
        replica.saw(&marker)
    };
    cluster
        .wait("reads on the replica right behind their writes", async || {
            let on_replica = write_and_read().await;
            let [checks, behind] = counts().await;
            (on_replica && checks >= behind + 5.0).then_some(())
        })
        .await;
    assert!(replica.saw("WAIT FOR LSN"), "the replica was not asked to wait");
    replica.pause_replay().await;
    let [_, before] = counts().await;
    cluster
        .wait("a check that waits in vain", async || {
            write_and_read().await;
            (counts().await[1] > before).then_some(())
        })
        .await;
}
