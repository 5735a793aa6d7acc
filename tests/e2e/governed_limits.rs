//! Limits shared by several pools, the reserve, the start of server connections, and notices to waiting clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kingpost_tests::raw::{Message, Raw};
use kingpost_tests::{
    Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, ShowLogs, USER, database, sqlstate, user,
};
use tokio_postgres::{AsyncMessage, Client};
use toml::{Table, Value};

use crate::common::{only_kingpost, value};
use crate::governed::{config, connect};

const ALICE: &str = "alice's own";

/// Returns the table with these settings added.
fn with<const N: usize>(mut table: Table, settings: [(&str, Value); N]) -> Table {
    for (key, value) in settings {
        table.insert(key.into(), value);
    }
    table
}

/// Counts the server connections of this user in this database (`%`: any).
async fn open(cluster: &Cluster, user: &str, database: &str) -> usize {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE '{user}' AND datname LIKE '{database}' AND application_name = 'kingpost'"
    );
    cluster.primary().query(&sql).await.parse().expect("a number")
}

/// Counts those in a transaction at this moment. A connection that the proxy has closed may still be listed for a while, but is in none.
async fn working(cluster: &Cluster, user: &str, database: &str) -> usize {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE usename LIKE '{user}' AND datname LIKE '{database}' AND application_name = 'kingpost' AND xact_start IS NOT NULL"
    );
    cluster.primary().query(&sql).await.parse().expect("a number")
}

/// Runs this number of transactions of one client, each with its own statement.
async fn transactions(client: &Client, count: usize) -> usize {
    for n in 0..count {
        client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(value(client, &format!("/* kingpost.route=primary */ SELECT {n}")).await, n.to_string());
        client.batch_execute("COMMIT").await.unwrap();
    }
    count
}

/// Creates a second database on the servers of the cluster.
async fn second_database(cluster: &Cluster) -> &'static str {
    cluster.primary().execute("CREATE DATABASE second").await;
    "second"
}

#[tokio::test]
async fn pools_share_the_limit_of_their_user_and_the_limit_of_their_database() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let second = second_database(&cluster).await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.workers", 2)
        .set("proxy.pool.size", 3)
        // The user has one connection, in any database. The database has two, for all users.
        .add("proxy.users", with(user(USER, ALICE), [("max_connections", 1.into())]))
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .add("proxy.databases", with(database(DATABASE, "lanes", "off"), [("max_connections", 2.into())]))
        .add("proxy.databases", with(database(second, "lanes", "off"), [("dbname", second.into())]))
        .start()
        .await;
    let first = connect(&kingpost, USER, ALICE, DATABASE).await;
    assert_eq!(value(&first, "SELECT 1").await, "1");
    // The connection of the first database is idle: it makes room for one in the second.
    let other = connect(&kingpost, USER, ALICE, second).await;
    assert_eq!(value(&other, "SELECT 2").await, "2");
    cluster
        .wait("the connection of the first database is closed", async || {
            let both = (open(&cluster, USER, DATABASE).await, open(&cluster, USER, second).await);
            (both == (0, 1)).then_some(())
        })
        .await;
    // While the user's only connection is in use, its other clients wait; another user does not.
    other.batch_execute("BEGIN; SELECT 3").await.unwrap();
    let stranger = connect(&kingpost, SCRAM_USER, SCRAM_PASSWORD, second).await;
    let waiting = async { value(&first, "SELECT 4").await };
    let busy = async {
        for _ in 0..3 {
            transactions(&stranger, 20).await;
            assert_eq!(open(&cluster, USER, "%").await, 1);
        }
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (answer, ()) = futures_util::future::join(waiting, busy).await;
    assert_eq!(answer, "4");
    // All clients at once, on both sides of both limits: none starves, and no limit is ever exceeded.
    let mut clients = Vec::new();
    for _ in 0..3 {
        for (name, password) in [(USER, ALICE), (SCRAM_USER, SCRAM_PASSWORD)] {
            for database in [DATABASE, second] {
                clients.push(connect(&kingpost, name, password, database).await);
            }
        }
    }
    let ended = AtomicBool::new(false);
    let work = async {
        let done = futures_util::future::join_all(clients.iter().map(|client| transactions(client, 60))).await;
        ended.store(true, Ordering::Relaxed);
        done
    };
    let watch = async {
        let mut most = (0, 0, 0);
        while !ended.load(Ordering::Relaxed) {
            let now = (
                working(&cluster, USER, "%").await,
                working(&cluster, "%", DATABASE).await,
                working(&cluster, SCRAM_USER, second).await,
            );
            assert!(now.0 <= 1 && now.1 <= 2 && now.2 <= 3, "{now:?}");
            most = (most.0.max(now.0), most.1.max(now.1), most.2.max(now.2));
        }
        most
    };
    let (done, most) = futures_util::future::join(work, watch).await;
    assert_eq!(done.iter().sum::<usize>(), clients.len() * 60);
    eprintln!("at most {most:?} connections at work of the user, of the database, and of those without a limit");
    // Limits are read again, and connections beyond them are closed.
    kingpost.reload("proxy.pool.max_node_connections", 1);
    cluster
        .wait("one connection", async || {
            for client in &clients {
                transactions(client, 1).await;
            }
            (open(&cluster, "%", "%").await <= 1).then_some(())
        })
        .await;
}

#[tokio::test]
async fn the_reserve_is_for_clients_that_have_waited_and_whoever_waits_is_told() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.workers", 2)
        .set("proxy.pool.size", 1)
        .set("proxy.pool.reserve_timeout", "300ms")
        .set("proxy.pool.wait_notice", "100ms")
        .set("proxy.pool.wait_timeout", "2s")
        .add("proxy.users", with(user(USER, ALICE), [("reserve_pool_size", 1.into())]))
        .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
        .start()
        .await;
    let mut holders = Vec::new();
    for (name, password) in [(USER, ALICE), (SCRAM_USER, SCRAM_PASSWORD)] {
        let holder = connect(&kingpost, name, password, DATABASE).await;
        holder.batch_execute("BEGIN; SELECT 1").await.unwrap();
        holders.push(holder);
    }
    // The user with a reserve gets a second connection, and a notice that it waits.
    let of_alice = config(&kingpost, USER, ALICE, DATABASE);
    let (late, mut messages) = kingpost.endpoint().connect_with_messages(&of_alice).await;
    assert_eq!(value(&late, "SELECT 2").await, "2");
    match messages.recv().await {
        Some(AsyncMessage::Notice(notice)) => {
            assert_eq!(notice.code().code(), "00000");
            assert!(notice.message().contains("waits for a server connection"), "{notice:?}");
        }
        _ => panic!("a notice"),
    }
    assert_eq!((open(&cluster, USER, "%").await, open(&cluster, SCRAM_USER, "%").await), (2, 1));
    // The reserve is used up; and the other user has none.
    late.batch_execute("BEGIN; SELECT 3").await.unwrap();
    for (name, password) in [(USER, ALICE), (SCRAM_USER, SCRAM_PASSWORD)] {
        let error = connect(&kingpost, name, password, DATABASE).await.simple_query("SELECT 4").await.unwrap_err();
        assert_eq!(sqlstate(&error), "53300", "{error:?}");
    }
    // Once the reserve is not needed, the pool shrinks to its size.
    drop((late, holders));
    cluster.wait("one connection", async || (open(&cluster, USER, "%").await == 1).then_some(())).await;
}

#[tokio::test]
async fn a_login_ends_with_the_notice() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.login_notice", "this is a proxy").start().await;
    let endpoint = kingpost.endpoint();
    let (client, mut messages) = endpoint.connect_with_messages(&endpoint.config()).await;
    assert_eq!(value(&client, "SELECT 1").await, "1");
    match messages.recv().await {
        Some(AsyncMessage::Notice(notice)) => assert_eq!(notice.message(), "this is a proxy"),
        _ => panic!("a notice"),
    }
}

/// Returns the value of a parameter in the messages of a login.
fn reported(greeting: &[Message], name: &str) -> Option<String> {
    let parameters = greeting.iter().filter(|message| message.kind == b'S');
    let mut pairs = parameters.map(|message| String::from_utf8_lossy(&message.body).into_owned());
    pairs.find_map(|pair| Some(pair.strip_prefix(&format!("{name}\0"))?.trim_end_matches('\0').to_owned()))
}

#[tokio::test]
async fn a_login_tells_the_proxy_and_the_mode_of_the_pool() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    for reports in [true, false] {
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.report_proxy", reports)
            .add("proxy.databases", database("plain", "dbname", DATABASE))
            .add("proxy.databases", with(database("sessions", "dbname", DATABASE), [("pool_mode", "session".into())]))
            .start()
            .await;
        for (database, mode) in [("plain", "transaction"), ("sessions", "session")] {
            let (_, greeting) = Raw::greeted(kingpost.port(), USER, database, &[]).await;
            let expected = |value: &str| reports.then(|| value.to_owned());
            assert_eq!(reported(&greeting, "kingpost.version"), expected(env!("CARGO_PKG_VERSION")));
            assert_eq!(reported(&greeting, "kingpost.pool_mode"), expected(mode));
            assert!(reported(&greeting, "server_version").is_some());
        }
    }
}

#[tokio::test]
async fn server_connections_begin_with_what_their_database_says() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster
        .primary()
        .execute("CREATE SCHEMA one; CREATE TABLE one.t AS SELECT 'one' AS whose; CREATE TABLE public.t AS SELECT 'public' AS whose; GRANT USAGE ON SCHEMA one TO PUBLIC; GRANT SELECT ON one.t, public.t TO PUBLIC")
        .await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.pool.size", 1)
        .add(
            "proxy.databases",
            with(
                database("greeted", "dbname", DATABASE),
                [
                    ("connect_query", "SET app.greeted = 'yes'; CREATE TEMP TABLE greeting AS SELECT 7 AS n".into()),
                    ("parameters", vec!["statement_timeout=77s", "search_path=one", "application_name=shop"].into()),
                ],
            ),
        )
        .add("proxy.databases", database("plain", "dbname", DATABASE))
        .add("proxy.databases", with(database("broken", "dbname", DATABASE), [("connect_query", "SELECT 1/0".into())]))
        .add("proxy.databases", with(database("half", "dbname", DATABASE), [("connect_query", "BEGIN".into())]))
        .start()
        .await;
    let greeted = connect(&kingpost, USER, "", "greeted").await;
    let plain = connect(&kingpost, USER, "", "plain").await;
    let setting = |name: &str| format!("/* kingpost.route=primary */ SELECT current_setting('{name}', true)");
    for _ in 0..2 {
        assert_eq!(value(&greeted, &setting("app.greeted")).await, "yes");
        assert_eq!(value(&greeted, "SELECT n FROM greeting").await, "7");
        assert_eq!(value(&greeted, "SHOW statement_timeout").await, "77s");
        assert_ne!(value(&plain, &setting("app.greeted")).await, "yes");
        assert_eq!(value(&plain, "SHOW statement_timeout").await, "0");
        // The same text, prepared in both, refers to the table of each.
        for (client, whose) in [(&greeted, "one"), (&plain, "public")] {
            let row = client.query_one("SELECT whose FROM t", &[]).await.unwrap();
            assert_eq!(row.get::<_, String>(0), whose);
        }
        // RESET restores the session's initial value; and a parameter that DISCARD ALL cleared is set again for the next transaction.
        greeted.batch_execute("SET statement_timeout = '5s'").await.unwrap();
        greeted.batch_execute("RESET statement_timeout").await.unwrap();
        assert_eq!(value(&greeted, "SHOW statement_timeout").await, "77s");
        greeted.batch_execute("DISCARD ALL").await.unwrap();
    }
    // The name is for clients that have none.
    for (database, expected) in [("greeted", "shop"), ("plain", "kingpost")] {
        let (_, greeting) = Raw::greeted(kingpost.port(), USER, database, &[]).await;
        assert_eq!(reported(&greeting, "application_name"), Some(expected.into()));
    }
    // A connect_query that fails, or leaves a transaction open, makes the login fail, and the error names it.
    for (name, expected) in [("broken", "connect_query failed: division by zero"), ("half", "left a transaction open")]
    {
        let refused = kingpost.endpoint().try_connect(&config(&kingpost, USER, "", name)).await;
        let error = refused.err().unwrap_or_else(|| panic!("{name}: a refusal"));
        assert!(format!("{error:?}").contains(expected), "{name}: {error:?}");
    }
    assert_eq!(value(&plain, "SELECT 1").await, "1");
}

#[tokio::test]
async fn the_primary_answers_reads_where_it_has_a_weight() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    for (weight, expected) in [(0, false), (1, true)] {
        let kingpost = Kingpost::of(&cluster)
            .set("proxy.routing.primary_weight", weight)
            .set("proxy.pool.lanes", "off")
            .set("proxy.workers", 1)
            .start()
            .await;
        cluster.wait_caught_up().await;
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(kingpost.connect().await);
        }
        cluster
            .wait_for("reads that a replica answered", Duration::from_secs(60), async || {
                let answers = futures_util::future::join_all(
                    clients
                        .iter()
                        .map(|client| value(client, "/* kingpost.route=replica */ SELECT pg_is_in_recovery()")),
                );
                let answers = answers.await;
                answers.iter().any(|answer| answer == "t").then_some(())
            })
            .await;
        let mut primaries = 0;
        for _ in 0..10 {
            let answers = futures_util::future::join_all(
                clients.iter().map(|client| value(client, "/* kingpost.route=replica */ SELECT pg_is_in_recovery()")),
            );
            primaries += answers.await.iter().filter(|answer| *answer == "f").count();
        }
        assert_eq!(primaries > 0, expected, "weight {weight}: the primary answered {primaries}");
    }
}
