//! Pool settings by database and by user: least size, time limits, pool mode.

use kingpost_tests::{
    Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, ShowLogs, USER, database, sqlstate, user,
};
use tokio_postgres::{Client, Config};

use crate::common::{only_kingpost, value};

pub(crate) fn config(kingpost: &Kingpost, user: &str, password: &str, database: &str) -> Config {
    let mut config = kingpost.endpoint().config();
    config.user(user).password(password).dbname(database);
    config
}

pub(crate) async fn connect(kingpost: &Kingpost, user: &str, password: &str, database: &str) -> Client {
    kingpost.endpoint().connect_as(&config(kingpost, user, password, database)).await
}

/// Returns the table with these settings added.
fn with(mut table: toml::Table, settings: &[(&str, &str)]) -> toml::Table {
    for (key, value) in settings {
        table.insert((*key).into(), (*value).into());
    }
    table
}

#[tokio::test]
async fn a_pool_with_clients_has_its_least_number_of_connections_and_one_without_has_none() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.pool.min_size", 2)
        // Idle connections go at once, except for the least number.
        .set("proxy.pool.server_idle_timeout", "10ms")
        .add("proxy.databases", database("warm", "dbname", DATABASE))
        .add("proxy.databases", {
            let mut table = database("warmer", "dbname", DATABASE);
            table.insert("min_pool_size".into(), 5.into());
            table
        })
        .start()
        .await;
    let open = async |user: &str| {
        let sql =
            format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}' AND application_name = 'kingpost'");
        cluster.primary().query(&sql).await
    };
    let warm = connect(&kingpost, USER, "", "warm").await;
    cluster.wait("two connections", async || (open(USER).await == "2").then_some(())).await;
    assert_eq!(open(SCRAM_USER).await, "0", "another user has no clients");
    let warmer = connect(&kingpost, USER, "", "warmer").await;
    cluster.wait("seven connections", async || (open(USER).await == "7").then_some(())).await;
    let pids = "SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE usename = 'alice' AND application_name = 'kingpost'";
    let before = cluster.primary().query(pids).await;
    // They are still the same when the idle timeout has passed many times: forty probes of the cluster.
    for _ in 0..40 {
        assert_eq!(value(&warm, "/* kingpost.route=primary */ SELECT 7").await, "7");
        cluster.primary().query("SELECT pg_sleep(0.02)").await;
    }
    assert_eq!(cluster.primary().query(pids).await, before);
    // No client is left to keep them for.
    drop((warm, warmer));
    cluster.wait("no connection", async || (open(USER).await == "0").then_some(())).await;
}

/// A replica whose weight becomes 0 loses its idle connections, long before server_idle_timeout; the primary keeps its own.
#[tokio::test]
async fn a_replica_without_a_weight_is_left() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let client = connect(&kingpost, USER, "", DATABASE).await;
    const WHERE: &str = "/* kingpost.route=replica */ SELECT pg_is_in_recovery()";
    let open = async |node: &kingpost_tests::Node| {
        node.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kingpost' AND usename = 'alice'")
            .await
    };
    cluster
        .wait("a read on the replica", async || {
            let on_replica = value(&client, WHERE).await == "t";
            on_replica.then_some(())
        })
        .await;
    value(&client, "/* kingpost.route=primary */ SELECT 7").await;
    assert_ne!(open(cluster.replica(0)).await, "0");
    let nodes = [cluster.primary(), cluster.replica(0)].map(|node| {
        let mut table = toml::Table::new();
        table.insert("name".into(), node.name().into());
        table.insert("address".into(), format!("127.0.0.1:{}", node.port()).into());
        table.insert("weight".into(), i64::from(node.port() == cluster.primary().port()).into());
        toml::Value::Table(table)
    });
    kingpost.reload_and_wait("cluster.nodes", nodes.to_vec()).await;
    cluster.wait("no connection", async || (open(cluster.replica(0)).await == "0").then_some(())).await;
    assert_ne!(open(cluster.primary()).await, "0");
    assert_eq!(value(&client, WHERE).await, "f");
}

#[tokio::test]
async fn time_limits_and_modes_are_those_of_the_user_before_those_of_the_database() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.query_timeout", "1h")
        .add(
            "proxy.users",
            with(user(SCRAM_USER, SCRAM_PASSWORD), &[("query_timeout", "0s"), ("pool_mode", "session")]),
        )
        .add("proxy.users", user(USER, "alice's own"))
        .add("proxy.databases", with(database("brief", "dbname", DATABASE), &[("query_timeout", "100ms")]))
        .add("proxy.databases", database(DATABASE, "pool_size", 4))
        .start()
        .await;
    // The database's limit holds for a user without one.
    let limited = connect(&kingpost, USER, "alice's own", "brief").await;
    let error = limited.simple_query("SELECT pg_sleep(600)").await.unwrap_err();
    assert_eq!(sqlstate(&error), "57014", "{error:?}");
    // It does not hold for the user without any limit, nor in another database. Both statements run long after a limit would have been noticed: until
    // clients of the first database have run into it twice.
    let free = connect(&kingpost, SCRAM_USER, SCRAM_PASSWORD, "brief").await;
    let other = connect(&kingpost, USER, "alice's own", DATABASE).await;
    cluster.primary().execute("SELECT pg_advisory_lock(7), pg_advisory_unlock(7)").await;
    let gate = cluster.primary().endpoint().connect().await;
    gate.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    let wait = "DO $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); END $$";
    let waiting = futures_util::future::join(free.simple_query(wait), other.simple_query(wait));
    let twice = async {
        for _ in 0..2 {
            let limited = connect(&kingpost, USER, "alice's own", "brief").await;
            let error = limited.simple_query("SELECT pg_sleep(600)").await.unwrap_err();
            assert_eq!(sqlstate(&error), "57014", "{error:?}");
        }
        gate.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    };
    let ((free_answer, other_answer), ()) = futures_util::future::join(waiting, twice).await;
    free_answer.expect("the user without a limit");
    other_answer.expect("another database");
    // In session mode a client keeps its connection, and what it has there, while another of the same user has its own.
    let second = connect(&kingpost, SCRAM_USER, SCRAM_PASSWORD, "brief").await;
    let (first_pid, second_pid) =
        (value(&free, "SELECT pg_backend_pid()").await, value(&second, "SELECT pg_backend_pid()").await);
    assert_ne!(first_pid, second_pid);
    free.batch_execute("CREATE TEMP TABLE mine (n int); INSERT INTO mine VALUES (7)").await.unwrap();
    assert_eq!(value(&free, "SELECT n FROM mine").await, "7");
    assert_eq!(value(&free, "SELECT pg_backend_pid()").await, first_pid);
}

#[tokio::test]
async fn a_transaction_that_takes_too_long_is_ended_and_many_short_ones_are_not() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    // Both modes: a client in session mode keeps its server connection from one transaction to the next.
    for mode in ["session", "transaction"] {
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.auth", "scram-sha-256")
            .add(
                "proxy.users",
                with(user(SCRAM_USER, SCRAM_PASSWORD), &[("transaction_timeout", "1s"), ("pool_mode", mode)]),
            )
            .add("proxy.users", with(user(USER, "alice's own"), &[("pool_mode", mode)]))
            .start()
            .await;
        let long = connect(&kingpost, SCRAM_USER, SCRAM_PASSWORD, DATABASE).await;
        let short = connect(&kingpost, SCRAM_USER, SCRAM_PASSWORD, DATABASE).await;
        let other = connect(&kingpost, USER, "alice's own", DATABASE).await;
        // The other user has no limit.
        other.batch_execute("BEGIN; CREATE TEMP TABLE kept (n int)").await.unwrap();
        long.batch_execute("BEGIN").await.unwrap();
        // The transaction is over its limit in its last statement, which began long before: a driver reports the error of a connection only while an
        // answer is awaited. There is no pause between the short statements.
        let ends = async {
            for seconds in ["0.1", "0.1", "20"] {
                if let Err(error) = long.simple_query(&format!("SELECT pg_sleep({seconds})")).await {
                    return error;
                }
            }
            panic!("{mode}: a transaction of 20 s was not ended");
        };
        let short_ones = async {
            loop {
                short.batch_execute("BEGIN; SELECT pg_sleep(0.01); COMMIT").await.expect("short transactions");
            }
        };
        let error = tokio::select! { error = ends => error, () = short_ones => unreachable!("they go on") };
        assert_eq!(sqlstate(&error), "25P04", "{mode}: {error:?}");
        // As many again: the limit has passed for all of them together.
        for _ in 0..100 {
            short.batch_execute("BEGIN; SELECT pg_sleep(0.01); COMMIT").await.expect("short transactions");
        }
        other.batch_execute("INSERT INTO kept VALUES (1); COMMIT").await.expect("the other user's transaction");
    }
}
