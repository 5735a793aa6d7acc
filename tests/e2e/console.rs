//! The console database: operators' views and commands, through real clients.

use std::collections::HashMap;

use kingpost_tests::{Cluster, DATABASE, Kingpost, SOON, ShowLogs, USER, sqlstate, user, wait_until, within};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::common::{name, only_kingpost, shared, value};

/// Connects to the console of a proxy under `trust`, where every user is an operator.
pub(crate) async fn console(kingpost: &Kingpost) -> Client {
    let mut config = kingpost.endpoint().config();
    config.user("anybody").dbname("kingpost");
    kingpost.endpoint().connect_as(&config).await
}

/// Returns rows by column name.
pub(crate) async fn rows(console: &Client, command: &str) -> Vec<HashMap<String, String>> {
    let messages = console.simple_query(command).await.unwrap_or_else(|e| panic!("{command}: {e:?}"));
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let row = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => Some(
            row.columns().iter().enumerate().map(|(i, column)| (column.name().to_owned(), text(row.get(i)))).collect(),
        ),
        _ => None,
    };
    messages.iter().filter_map(row).collect()
}

/// Returns the value of a key in a table of keys and values.
async fn state(console: &Client, key: &str) -> String {
    let rows = rows(console, "SHOW STATE").await;
    rows.iter().find(|row| row["key"] == key).expect(key)["value"].clone()
}

async fn cluster() -> Cluster {
    Cluster::builder().replicas(1).start().await
}

/// The workers' wait mechanism is shown: the requested one or, where the system forbids it, epoll.
#[tokio::test]
async fn says_what_workers_wait_with() {
    if only_kingpost() {
        return;
    }
    let (shared, _logs) = shared().await;
    for (asked, either) in
        [("epoll", ["epoll"; 2]), ("io_uring", ["io_uring", "epoll"]), ("auto", ["io_uring", "epoll"])]
    {
        let kingpost = Kingpost::of(&shared.cluster).set("proxy.driver", asked).start().await;
        let console = console(&kingpost).await;
        let config = rows(&console, "SHOW CONFIG").await;
        let driver = config.iter().find(|row| row["key"] == "driver").expect("driver")["value"].clone();
        assert!(either.contains(&driver.as_str()), "{asked}: {driver}");
        let failures =
            config.iter().find(|row| row["key"] == "cluster.probe_failures").expect("a setting of the cluster");
        assert_eq!((&*failures["default"], &*failures["changeable"]), ("2", "yes"));
        assert_eq!(value(&kingpost.connect().await, "SELECT 1").await, "1");
    }
}

#[tokio::test]
async fn shows_what_there_is() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let client = kingpost.connect().await;
    client.batch_execute("CREATE TABLE seen (a int); INSERT INTO seen VALUES (1)").await.unwrap();
    let console = console(&kingpost).await;

    let pools = rows(&console, "SHOW POOLS").await;
    assert_eq!((pools[0]["database"].as_str(), pools[0]["user"].as_str()), (DATABASE, USER));
    assert_eq!(pools[0]["cl_active"], "1");

    let clients = rows(&console, "show clients;").await;
    let states: Vec<&str> = clients.iter().map(|row| row["state"].as_str()).collect();
    assert!(states.contains(&"idle") && states.contains(&"console"), "{states:?}");
    assert!(clients.iter().all(|row| row["addr"] == "127.0.0.1" && row["port"] != "0"), "{clients:?}");

    let servers = rows(&console, "SHOW SERVERS").await;
    let primary = cluster.primary().port().to_string();
    assert!(servers.iter().any(|row| row["port"] == primary && row["remote_pid"] != "0"), "{servers:?}");

    let stats = rows(&console, "SHOW STATS").await;
    assert!(stats[0]["total_query_count"].parse::<u64>().unwrap() >= 1, "{stats:?}");
    let nodes = rows(&console, "SHOW NODES").await;
    assert_eq!(nodes.iter().map(|row| row["role"].as_str()).collect::<Vec<_>>(), ["primary", "replica"]);
    // Everything that SHOW HELP offers can be shown.
    for row in rows(&console, "SHOW HELP").await {
        if row["command"].starts_with("SHOW ") {
            rows(&console, &row["command"]).await;
        }
    }

    // A pinned client shows the reason. LISTEN does not pin.
    client.batch_execute("LISTEN news").await.unwrap();
    client.batch_execute("CREATE TEMP TABLE mine (a int)").await.unwrap();
    let pins = rows(&console, "SHOW PINS").await;
    assert!(pins.iter().any(|row| row["reason"] == "temp_table" && row["clients"] == "1"), "{pins:?}");
    assert!(pins.iter().any(|row| row["reason"] == "listen" && row["clients"] == "0"), "{pins:?}");

    // The console is no database: nothing else is understood, parameters included.
    let error = console.simple_query("SELECT 1").await.unwrap_err();
    assert_eq!(sqlstate(&error), "42601");
    let error = console.query("SHOW POOLS", &[]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "0A000");
    assert_eq!(rows(&console, "SHOW VERSION").await.len(), 1);
}

#[tokio::test]
async fn operators_are_accounts_of_their_own() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let mut viewer = user("watcher", "looking glass");
    viewer.insert("role".into(), "viewer".into());
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.max_clients", 2)
        .add("proxy.users", user(USER, "user's own"))
        .add("proxy.operators", user("boss", "master key"))
        .add("proxy.operators", viewer)
        .start()
        .await;
    let login = |user: &str, password: &str, database: &str| {
        let mut config = kingpost.endpoint().config();
        config.user(user).password(password).dbname(database);
        config
    };
    // Operators cannot read data, and application users cannot manage.
    for (user, password, database) in
        [("boss", "master key", DATABASE), (USER, "user's own", "kingpost"), ("boss", "wrong", "kingpost")]
    {
        let error = kingpost.endpoint().try_connect(&login(user, password, database)).await.unwrap_err();
        assert_eq!(sqlstate(&error), "28P01", "{user} at {database}");
    }
    // Applications have used up every connection: an operator can still log in.
    let _first = kingpost.endpoint().connect_as(&login(USER, "user's own", DATABASE)).await;
    let _second = kingpost.endpoint().connect_as(&login(USER, "user's own", DATABASE)).await;
    let error = kingpost.endpoint().try_connect(&login(USER, "user's own", DATABASE)).await.unwrap_err();
    assert_eq!(sqlstate(&error), "53300");
    let boss = kingpost.endpoint().connect_as(&login("boss", "master key", "kingpost")).await;
    let watcher = kingpost.endpoint().connect_as(&login("watcher", "looking glass", "pgbouncer")).await;

    assert_eq!(rows(&watcher, "SHOW POOLS").await.len(), 1);
    for command in ["PAUSE", "RELOAD", "KILL", "SHUTDOWN", "KILL_CLIENT 1"] {
        let error = watcher.simple_query(command).await.unwrap_err();
        assert_eq!(sqlstate(&error), "42501", "{command}");
    }
    // A wrong configuration is refused, with a message to the client that sent RELOAD.
    rows(&boss, "RELOAD").await;
    std::fs::write(kingpost.config_path(), "[proxy]\nlisten = 5\n").unwrap();
    let error = boss.simple_query("RELOAD").await.unwrap_err();
    assert_eq!(sqlstate(&error), "22023");
}

#[tokio::test]
async fn pause_lets_transactions_end_and_holds_clients() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let (console, other) = (console(&kingpost).await, console(&kingpost).await);
    let mut inside = kingpost.connect().await;
    let outside = kingpost.connect().await;
    let tx = inside.transaction().await.unwrap();
    tx.batch_execute("CREATE TABLE paused (a int); INSERT INTO paused VALUES (1)").await.unwrap();

    let pause = tokio::spawn(async move { console.simple_query("PAUSE").await.map(drop) });
    let logs = cluster.dir();
    wait_until("the pools to be paused", SOON, logs, async || (state(&other, "paused").await == "yes").then_some(()))
        .await;
    // The transaction goes on to its end; PAUSE is over only then.
    tx.batch_execute("INSERT INTO paused VALUES (2)").await.unwrap();
    assert!(!pause.is_finished());
    tx.commit().await.unwrap();
    within("PAUSE", SOON, logs, pause).await.unwrap().unwrap();
    assert_eq!(rows(&other, "SHOW SERVERS").await.len(), 0);

    // A new client waits, without an error, and is served after RESUME.
    let waits = tokio::spawn(async move { value(&outside, "SELECT count(*) FROM paused").await });
    wait_until("the client to wait", SOON, logs, async || {
        rows(&other, "SHOW POOLS").await.iter().any(|row| row["cl_waiting"] == "1").then_some(())
    })
    .await;
    assert!(!waits.is_finished());
    rows(&other, "RESUME").await;
    assert_eq!(within("the client", SOON, logs, waits).await.unwrap(), "2");
}

#[tokio::test]
async fn pools_show_why_no_server_connection_opens() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    cluster.primary().execute("CREATE ROLE capped LOGIN").await;
    let kingpost = Kingpost::of(&cluster).set("proxy.workers", 1).start().await;
    let mut config = kingpost.endpoint().config();
    config.user("capped");
    let client = kingpost.endpoint().connect_as(&config).await;
    let console = console(&kingpost).await;
    let error = async || {
        let pools = rows(&console, "SHOW POOLS").await;
        let pool = pools.iter().find(|row| row["user"] == "capped").expect("the client's pool");
        (pool["connect_error"].clone(), pool["connect_error_age"].clone())
    };
    assert_eq!(error().await, (String::new(), String::new()));

    cluster.primary().execute("ALTER ROLE capped CONNECTION LIMIT 0").await;
    rows(&console, "RECONNECT").await;
    let waits = tokio::spawn(async move { value(&client, "SELECT 1").await });
    let logs = cluster.dir();
    wait_until("the server's refusal to be shown", SOON, logs, async || {
        let (text, age) = error().await;
        (text.contains("too many connections for role") && !age.is_empty()).then_some(())
    })
    .await;
    cluster.primary().execute("ALTER ROLE capped CONNECTION LIMIT -1").await;
    assert_eq!(within("the client", SOON, logs, waits).await.unwrap(), "1");
    assert_eq!(error().await, (String::new(), String::new()));
}

#[tokio::test]
async fn a_pause_that_cannot_end_is_ended_by_resume() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let (console, other) = (console(&kingpost).await, console(&kingpost).await);
    let mut inside = kingpost.connect().await;
    let tx = inside.transaction().await.unwrap();
    tx.batch_execute("SELECT 1").await.unwrap();
    let pause = tokio::spawn(async move { console.simple_query(&format!("PAUSE {DATABASE}")).await.map(drop) });
    let logs = cluster.dir();
    wait_until("the pools to be paused", SOON, logs, async || {
        rows(&other, "SHOW DATABASES").await.iter().any(|row| row["paused"] == "1").then_some(())
    })
    .await;
    rows(&other, &format!("RESUME {DATABASE}")).await;
    let error = within("PAUSE", SOON, logs, pause).await.unwrap().unwrap_err();
    assert_eq!(sqlstate(&error), "57014");
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn reconnect_replaces_and_wait_close_waits() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let console = console(&kingpost).await;
    let client = kingpost.connect().await;
    let pid = "/* kingpost.route=primary */ SELECT pg_backend_pid()";
    let before = value(&client, pid).await;
    rows(&console, "RECONNECT").await;
    within("WAIT_CLOSE", SOON, cluster.dir(), console.simple_query("WAIT_CLOSE")).await.unwrap();
    assert_ne!(value(&client, pid).await, before);
}

/// A column gets another type past the proxy, in each of two databases; then RECONNECT of one of them. There a newly prepared text has the new type
/// at once; a session that has it prepared keeps the former one, as directly.
#[tokio::test]
async fn reconnect_ends_what_texts_meant() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    primary.execute("CREATE DATABASE shop").await;
    let table = name("retyped");
    for database in [DATABASE, "shop"] {
        primary.execute_in(database, &format!("CREATE TABLE {table} (v int); GRANT ALL ON {table} TO PUBLIC")).await;
    }
    let kingpost = Kingpost::of(&cluster).set("proxy.workers", 1).start().await;
    let console = console(&kingpost).await;
    let text = format!("INSERT INTO {table} VALUES ($1)");
    let took = async |client: &Client| client.prepare(&text).await.unwrap().params()[0].name().to_owned();
    let login = async |database: &str| {
        let mut config = kingpost.endpoint().config();
        kingpost.endpoint().connect_as(config.dbname(database)).await
    };
    let [one, other] = [login(DATABASE).await, login("shop").await];
    let held = one.prepare(&text).await.unwrap();
    assert_eq!([held.params()[0].name(), &took(&other).await], ["int4"; 2]);
    for database in [DATABASE, "shop"] {
        primary.execute_in(database, &format!("ALTER TABLE {table} ALTER v TYPE text")).await;
    }
    rows(&console, &format!("RECONNECT {DATABASE}")).await;
    let new = login(DATABASE).await;
    assert_eq!([took(&one).await, took(&new).await], ["text"; 2]);
    new.execute(&text, &[&"007"]).await.unwrap();
    one.execute(&held, &[&8]).await.unwrap();
    assert_eq!(value(&new, &format!("SELECT string_agg(v, ' ' ORDER BY v) FROM {table}")).await, "007 8");
}

#[tokio::test]
async fn kill_client_and_kill() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let console = console(&kingpost).await;
    let (one, two) = (kingpost.connect().await, kingpost.connect().await);
    let mut config = kingpost.endpoint().config();
    config.application_name("marked");
    let marked = kingpost.endpoint().connect_as(&config).await;
    let clients = rows(&console, "SHOW CLIENTS").await;
    let id = &clients.iter().find(|row| row["application_name"] == "marked").unwrap()["id"];
    rows(&console, &format!("KILL_CLIENT {id}")).await;
    wait_until("the client to be gone", SOON, cluster.dir(), async || marked.is_closed().then_some(())).await;
    assert_eq!(value(&one, "SELECT 1").await, "1");
    let error = console.simple_query(&format!("KILL_CLIENT {id}")).await.unwrap_err();
    assert_eq!(sqlstate(&error), "22023");

    rows(&console, &format!("KILL {DATABASE}")).await;
    let gone = async || (one.is_closed() && two.is_closed()).then_some(());
    wait_until("all to be gone", SOON, cluster.dir(), gone).await;
    rows(&console, &format!("RESUME {DATABASE}")).await;
    assert_eq!(value(&kingpost.connect().await, "SELECT 1").await, "1");
}

#[tokio::test]
async fn shutdown_stops_the_process() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).start().await;
    let console = console(&kingpost).await;
    // The answer may be overtaken by the end of the connection.
    let _ = within("SHUTDOWN", SOON, cluster.dir(), console.simple_query("SHUTDOWN")).await;
    assert!(kingpost.process().wait_exit(SOON).await.success());
}

/// A pause for a program that moves the primary: it ends by itself when that program is gone, and undoes no operator's command.
#[tokio::test(flavor = "multi_thread")]
async fn a_leased_pause_ends_by_itself() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("cluster.probe_interval", "10s").start().await;
    let client = kingpost.connect().await;
    client.batch_execute("CREATE TABLE t (n int)").await.unwrap();
    let console = console(&kingpost).await;
    // PAUSE waits for open transactions.
    client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    let (quiet, ()) = tokio::join!(console.batch_execute("PAUSE FOR 60s"), async {
        client.batch_execute("COMMIT").await.unwrap();
    });
    quiet.unwrap();
    assert_eq!(state(&console, "paused").await, "yes");
    assert_ne!(state(&console, "pause_lease").await, "");
    let waiting = tokio::spawn(async move {
        client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
        client
    });
    // Repeated, the lease starts again; there is no third command.
    console.batch_execute("PAUSE FOR 1s").await.unwrap();
    let client = within("the lease to end", SOON, cluster.dir(), waiting).await.unwrap();
    assert_eq!(state(&console, "pause_lease").await, "");

    // A lease does not end an operator's PAUSE, nor does it begin during one.
    console.batch_execute("PAUSE").await.unwrap();
    console.batch_execute("PAUSE FOR 60s").await.unwrap();
    console.batch_execute("RESUME WHEN TIMELINE >= 1").await.unwrap();
    assert_eq!(state(&console, "pause_lease").await, "");
    assert_eq!(state(&console, "paused").await, "yes");
    console.batch_execute("PAUSE FOR 60s").await.unwrap();
    console.batch_execute("RESUME").await.unwrap();
    assert_eq!((state(&console, "active").await.as_str(), state(&console, "pause_lease").await.as_str()), ("yes", ""));

    // Waiting clients go on once the proxy has seen the new primary, for which it probes at once, not after ten seconds.
    console.batch_execute("PAUSE FOR 60s").await.unwrap();
    let [old, new] = cluster.nodes() else { panic!("two nodes") };
    new.wait_caught_up(old).await;
    let resumed = tokio::spawn(async move { console.batch_execute("RESUME WHEN TIMELINE >= 2").await });
    old.kill9().await;
    new.promote().await;
    within("the proxy to resume", SOON, cluster.dir(), resumed).await.unwrap().unwrap();
    client.batch_execute("INSERT INTO t VALUES (3)").await.unwrap();
    assert_eq!(new.query("SELECT count(*) FROM t").await, "3");
}
