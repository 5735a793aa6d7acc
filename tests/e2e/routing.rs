//! Routing of statements. Each statement has a marker of its own, and every node logs each statement before running it.

use kingpost_tests::{Cluster, Kingpost, ShowLogs, database, sqlstate, unique};
use tokio::sync::OnceCell;
use tokio_postgres::Client;

use crate::common::{name, only_kingpost, simple, value};

struct Routed {
    cluster: Cluster,
    kingpost: Kingpost,
}

async fn routed() -> (&'static Routed, ShowLogs<'static>) {
    static ROUTED: OnceCell<Routed> = OnceCell::const_new();
    let routed = ROUTED
        .get_or_init(async || {
            let cluster = Cluster::builder().replicas(2).log_statements().start().await;
            let kingpost = Kingpost::of(&cluster)
                .add("proxy.databases", database("reads", "route", "replica"))
                .add("proxy.databases", database("writes", "route", "primary"))
                .add("proxy.databases", database("app", "pool_size", 8))
                .set("proxy.routing.read_functions", vec!["declared_read"])
                .start()
                .await;
            let admin = cluster.primary().admin().await;
            admin
                .batch_execute(
                    "CREATE TABLE facts (n int PRIMARY KEY, t text); INSERT INTO facts SELECT n, 'fact ' || n FROM generate_series(1, 100) n;
                     CREATE TABLE hits (n int); CREATE TABLE once (n int); CREATE SEQUENCE numbers;
                     GRANT ALL ON facts, hits, once, numbers TO alice;
                     CREATE FUNCTION hit(n int) RETURNS int LANGUAGE sql AS 'INSERT INTO hits VALUES (n) RETURNING n';
                     CREATE FUNCTION declared_read(n int) RETURNS int LANGUAGE sql AS 'SELECT n';",
                )
                .await
                .unwrap();
            cluster.wait_caught_up().await;
            Routed { cluster, kingpost }
        })
        .await;
    (routed, ShowLogs(routed.cluster.dir()))
}

impl Routed {
    /// Returns the names of the nodes that got a statement with the marker.
    fn ran_on(&self, marker: &str) -> Vec<&str> {
        self.cluster.nodes().iter().filter(|node| node.saw(marker)).map(kingpost_tests::Node::name).collect()
    }

    /// Runs `sql`, in which `MARK` stands for the marker, and returns the nodes that ran it.
    async fn place(&self, client: &Client, sql: &str) -> Vec<&str> {
        let marker = format!("mark{}end", unique());
        client.simple_query(&sql.replace("MARK", &marker)).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        self.ran_on(&marker)
    }

    /// Runs `sql` until it runs on a replica: after a write, or a possible one, a client reads at the primary until the proxy knows that a replica
    /// has caught up.
    async fn settles_on_replica(&self, client: &Client, sql: &str) {
        self.cluster
            .wait(&format!("{sql} on a replica"), async || {
                let nodes = self.place(client, sql).await;
                (nodes == ["n1"] || nodes == ["n2"]).then_some(())
            })
            .await;
    }

    async fn place_extended(&self, client: &Client, sql: &str) -> Vec<&str> {
        let marker = format!("mark{}end", unique());
        client.query(&sql.replace("MARK", &marker), &[]).await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        self.ran_on(&marker)
    }
}

#[tokio::test]
async fn reads_are_spread_over_the_replicas() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    let client = routed.kingpost.connect().await;
    let mut counts = [0; 3];
    for n in 0..60 {
        let marker = format!("mark{}end", unique());
        let sql = format!("SELECT t, '{marker}' FROM facts WHERE n = {}", n % 100 + 1);
        if n % 2 == 0 {
            simple(&client, &sql).await;
        } else {
            client.query(&sql, &[]).await.unwrap();
        }
        let nodes = routed.ran_on(&marker);
        assert_eq!(nodes.len(), 1, "{sql} ran on {nodes:?}");
        counts[nodes[0].strip_prefix('n').unwrap().parse::<usize>().unwrap()] += 1;
    }
    assert_eq!(counts[0], 0, "reads went to the primary: {counts:?}");
    assert!(counts[1] >= 5 && counts[2] >= 5, "reads are not spread: {counts:?}");
}

#[tokio::test]
async fn statements_that_a_replica_may_run() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    for sql in [
        "SELECT 'MARK'",
        "select /* a comment */ count(*), 'MARK' from facts where t like 'fact%' group by n % 10 order by 1 limit 3",
        "WITH a AS (SELECT * FROM facts) SELECT 'MARK', * FROM a JOIN a b USING (n) LIMIT 1",
        "VALUES (1, 'MARK')",
        "SELECT lower('MARK'), coalesce(sum(n), 0), now() FROM facts",
        "SELECT 'MARK' UNION ALL SELECT t FROM facts",
        "TABLE facts -- MARK",
        "SELECT declared_read(1), 'MARK'",
        "BEGIN READ ONLY; SELECT 'MARK'; COMMIT",
    ] {
        // A separate client for each: a client that has written must see its writes.
        let client = routed.kingpost.connect().await;
        let nodes = routed.place(&client, sql).await;
        assert!(nodes == ["n1"] || nodes == ["n2"] || sql.starts_with("BEGIN"), "{sql} ran on {nodes:?}");
    }
}

#[tokio::test]
async fn statements_that_only_the_primary_may_run() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    let client = routed.kingpost.connect().await;
    for sql in [
        "INSERT INTO facts SELECT max(n) + 1, 'MARK' FROM facts",
        "UPDATE facts SET t = 'MARK' WHERE n = 1",
        "DELETE FROM facts WHERE t = 'MARK'",
        "SELECT 'MARK' FROM facts WHERE n = 2 FOR UPDATE",
        "SELECT 'MARK' FROM facts WHERE n = 2 FOR KEY SHARE",
        "WITH gone AS (DELETE FROM hits RETURNING 1) SELECT 'MARK', count(*) FROM gone",
        "SELECT hit(1), 'MARK'",
        "SELECT nextval('numbers'), 'MARK'",
        "SELECT setval('numbers', 5), 'MARK'",
        "SELECT set_config('app.mark', 'MARK', false)",
        "SELECT pg_advisory_xact_lock(1), 'MARK'",
        "SELECT txid_current(), 'MARK'",
        "EXPLAIN ANALYZE INSERT INTO hits SELECT length('MARK')",
        "SELECT 'MARK' AS made INTO UNLOGGED made_table",
        "DROP TABLE made_table /* MARK */",
        "CREATE TABLE IF NOT EXISTS made_again AS SELECT 'MARK'",
        "DO $$ BEGIN PERFORM 'MARK'; END $$",
        "SELECT 1; INSERT INTO hits VALUES (1); SELECT 'MARK'",
        "VACUUM facts /* MARK */",
        "SELECT pg_backend_pid(), 'MARK'",
        "BEGIN; SELECT 'MARK'; COMMIT",
    ] {
        assert_eq!(routed.place(&client, sql).await, ["n0"], "{sql}");
    }
    assert_eq!(routed.place_extended(&client, "INSERT INTO hits SELECT length('MARK')").await, ["n0"]);
    assert_eq!(routed.place_extended(&client, "SELECT hit(2), 'MARK'").await, ["n0"]);
}

#[tokio::test]
async fn transactions_go_where_their_begin_says() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    for begin in ["BEGIN READ ONLY", "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"] {
        let client = routed.kingpost.connect().await;
        client.batch_execute(begin).await.unwrap();
        let (one, two) =
            (routed.place(&client, "SELECT 'MARK'").await, routed.place_extended(&client, "SELECT 'MARK'").await);
        assert!(one == two && (one == ["n1"] || one == ["n2"]), "{begin}: {one:?}, {two:?}");
        // The client itself has declared the transaction read-only.
        let error = client.simple_query("INSERT INTO hits VALUES (1)").await.unwrap_err();
        assert_eq!(sqlstate(&error), "25006");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    let client = routed.kingpost.connect().await;
    for begin in ["BEGIN", "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY", "BEGIN READ WRITE"] {
        client.batch_execute(begin).await.unwrap();
        assert_eq!(routed.place(&client, "SELECT 'MARK'").await, ["n0"], "{begin}");
        client.batch_execute("COMMIT").await.unwrap();
    }
}

#[tokio::test]
async fn a_replicas_refusal_is_answered_by_the_primary() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    let client = routed.kingpost.connect().await;
    let hint = "/* kingpost.route=replica */";
    for sql in ["INSERT INTO hits SELECT length('MARK')", "SELECT nextval('numbers'), 'MARK'", "SELECT hit(3), 'MARK'"]
    {
        for _ in 0..2 {
            let nodes = routed.place(&client, &format!("{hint} {sql}")).await;
            assert!(nodes.contains(&"n0"), "{sql} ran on {nodes:?}");
            let nodes = routed.place_extended(&client, &format!("{hint} {sql}")).await;
            assert!(nodes.contains(&"n0"), "extended {sql} ran on {nodes:?}");
        }
    }
    // Exactly once each, in a table that no other test empties.
    let n = unique();
    client.batch_execute(&format!("{hint} INSERT INTO once VALUES ({n})")).await.unwrap();
    client.execute(&format!("{hint} INSERT INTO once VALUES ({n})"), &[]).await.unwrap();
    assert_eq!(value(&client, &format!("SELECT count(*) FROM once WHERE n = {n}")).await, "2");
    // The replica fails after a part of the answer was sent: then the client must get the error, not rows twice.
    let sql = format!("{hint} SELECT CASE WHEN n < 60000 THEN n ELSE hit(n) END FROM generate_series(1, 60000) n");
    if let Ok(rows) = client.query(&sql, &[]).await {
        let seen: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(seen, (1..=60000).collect::<Vec<i32>>());
    }
    assert_eq!(value(&client, "SELECT 7").await, "7");
}

#[tokio::test]
async fn hints_settings_and_aliases() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    let client = routed.kingpost.connect().await;
    let on_replica = |nodes: &[&str]| nodes == ["n1"] || nodes == ["n2"];
    assert_eq!(routed.place(&client, "/* kingpost.route=primary */ SELECT 'MARK'").await, ["n0"]);
    routed.settles_on_replica(&client, "/* kingpost.route=replica */ SELECT pg_backend_pid(), 'MARK'").await;

    client.batch_execute("SET kingpost.route = 'primary'").await.unwrap();
    assert_eq!(routed.place(&client, "SELECT 'MARK'").await, ["n0"]);
    assert_eq!(routed.place_extended(&client, "SELECT 'MARK'").await, ["n0"]);
    client.batch_execute("SET kingpost.route = 'replica'").await.unwrap();
    routed.settles_on_replica(&client, "SELECT pg_backend_pid(), 'MARK'").await;
    client.batch_execute("SET kingpost.route TO auto").await.unwrap();
    routed.settles_on_replica(&client, "SELECT 'MARK'").await;
    assert_eq!(routed.place(&client, "SELECT pg_backend_pid(), 'MARK'").await, ["n0"]);
    let error = client.simple_query("SET kingpost.route = 'elsewhere'").await.unwrap_err();
    assert_eq!(sqlstate(&error), "22023", "{error:?}");

    for (alias, place) in [("reads", None), ("writes", Some("n0"))] {
        let mut config = routed.kingpost.endpoint().config();
        config.dbname(alias);
        let client = routed.kingpost.endpoint().connect_as(&config).await;
        let nodes = routed.place(&client, "SELECT pg_backend_pid(), 'MARK'").await;
        assert!(place.map_or_else(|| on_replica(&nodes), |place| nodes == [place]), "{alias}: {nodes:?}");
        let nodes = routed.place(&client, "SELECT 'MARK'").await;
        assert!(place.map_or_else(|| on_replica(&nodes), |place| nodes == [place]), "{alias}: {nodes:?}");
    }
    let mut config = routed.kingpost.endpoint().config();
    config.dbname("not_listed");
    let error = routed.kingpost.endpoint().try_connect(&config).await.map(|_| ()).unwrap_err();
    assert_eq!(sqlstate(&error), "3D000", "{error:?}");
}

#[tokio::test]
async fn without_replicas_everything_goes_to_the_primary() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let client = kingpost.connect().await;
    let table = name("alone");
    client.batch_execute(&format!("CREATE TABLE {table} AS SELECT 1 AS n")).await.unwrap();
    assert_eq!(value(&client, &format!("SELECT n FROM {table}")).await, "1");
    client.batch_execute("BEGIN READ ONLY").await.unwrap();
    assert_eq!(value(&client, &format!("SELECT n FROM {table}")).await, "1");
    client.batch_execute("COMMIT").await.unwrap();
}

/// A statement that needs the primary, in a later unit of a READ ONLY transaction: after SHOW the transaction moves there, and the results are as
/// directly; after a read the transaction stays on its replica, and the statement fails.
#[tokio::test]
async fn what_needs_the_primary_in_a_transaction_that_only_reads() {
    let (routed, _logs) = routed().await;
    if only_kingpost() {
        return;
    }
    routed
        .cluster
        .primary()
        .execute("CREATE TABLE IF NOT EXISTS snapped (n int); GRANT ALL ON snapped TO PUBLIC")
        .await;
    routed.cluster.wait_caught_up().await;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    let (direct, client) = (routed.cluster.primary().admin().await, routed.kingpost.connect().await);
    let other = routed.kingpost.connect().await;
    // Statement, and its error after a read; after SHOW the result is PostgreSQL's.
    let cases = [
        ("SELECT pg_export_snapshot()", Some("25006")),
        ("SELECT pg_advisory_xact_lock(77)", Some("25006")),
        ("SELECT txid_current()", Some("25006")),
        ("SELECT pg_current_wal_lsn()", Some("55000")),
        ("LISTEN ends", Some("25006")),
        ("NOTIFY ends", Some("25006")),
        ("SELECT nextval('numbers')", Some("25006")),
        ("SELECT 1 FROM facts FOR UPDATE", Some("25006")),
        ("INSERT INTO facts VALUES (0)", Some("25006")),
        ("LOCK TABLE facts IN ACCESS SHARE MODE", None),
        ("SELECT count(*) FROM facts", None),
        ("SAVEPOINT s; RELEASE s", None),
    ];
    for (sql, behind_read) in cases {
        for extended in [false, true] {
            let mut outcomes = Vec::new();
            // A client that has exported a snapshot may have written: another one reads on a replica at once.
            let reader = routed.kingpost.connect().await;
            for (client, first) in
                [(&direct, "SHOW port"), (&client, "SHOW port"), (&reader, "SELECT count(*) FROM facts")]
            {
                client.batch_execute(begin).await.unwrap();
                client.batch_execute(first).await.unwrap();
                let outcome = match extended && !sql.contains(';') {
                    true => client.query(sql, &[]).await.err(),
                    false => client.simple_query(sql).await.err(),
                };
                outcomes.push(outcome.map(|error| sqlstate(&error).to_owned()));
                client.batch_execute("ROLLBACK").await.unwrap();
            }
            assert_eq!(outcomes[1], outcomes[0], "{sql} behind SHOW, extended: {extended}");
            assert_eq!(outcomes[2].as_deref(), behind_read, "{sql} behind a read, extended: {extended}");
        }
    }
    // A snapshot that was exported behind SHOW is another client's, as it was when it was exported.
    client.batch_execute(begin).await.unwrap();
    assert_eq!(value(&client, "SHOW transaction_isolation").await, "repeatable read");
    let snapshot = value(&client, "SELECT pg_export_snapshot()").await;
    direct.batch_execute("INSERT INTO snapped VALUES (1)").await.unwrap();
    other.batch_execute(&format!("{begin}; SET TRANSACTION SNAPSHOT '{snapshot}'")).await.unwrap();
    assert_eq!(value(&other, "SELECT count(*) FROM snapped").await, "0");
    assert_eq!(value(&client, "SHOW transaction_read_only").await, "on");
    other.batch_execute("COMMIT").await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    // A transaction that only shows and reads stays on its replica.
    let (marker, client) = (format!("mark{}end", unique()), routed.kingpost.connect().await);
    client.batch_execute(begin).await.unwrap();
    client.batch_execute("SHOW port").await.unwrap();
    client.simple_query(&format!("SELECT '{marker}'")).await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    assert_ne!(routed.ran_on(&marker), ["n0"]);
}
