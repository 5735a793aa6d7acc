//! A new process takes over from an old one.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kingpost_tests::{Cluster, DATABASE, Kingpost, Port, ShowLogs, USER, database, new_dir, sqlstate};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::clusters::further;
use crate::common::{only_kingpost, value};
use crate::console::{console, rows};
use crate::governed::{config, connect};
use crate::traffic::{self, OTHER, SECOND, code, rule};

/// A statement that is blocked for one user.
const BLOCKED: &str = "SELECT of FROM guarded WHERE n = 1";
/// A statement that is limited for each user of the second database.
const LIMITED: &str = "UPDATE guarded SET of = of WHERE n = 2";

/// Connects to the console of one cluster among several.
async fn console_of(kingpost: &Kingpost, cluster: &str) -> Client {
    connect(kingpost, "anybody", "", &format!("kingpost.{cluster}")).await
}

/// Returns rows of one cluster's databases, rules or settings: by name, the value of a column.
async fn shown(console: &Client, command: &str, cluster: &str, key: &str, column: &str) -> Vec<(String, String)> {
    let of = rows(console, command).await.into_iter().filter(|row| row["cluster"] == cluster);
    of.map(|row| (row[key].clone(), row[column].clone())).collect()
}

/// Checks that the operators' orders hold, in the tables and for clients.
async fn orders_hold(kingpost: &Kingpost, process: &str) {
    let console = console(kingpost).await;
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let by = |cluster: &'static str| shown(&console, "SHOW TRAFFIC", cluster, "name", "set_by");
    assert_eq!(by("shop").await, pairs(&[("no", "operator"), ("slow", "operator")]), "{process}");
    assert_eq!(by("billing").await, pairs(&[("few", "file"), ("no", "operator")]), "{process}");
    for (rule, left) in shown(&console, "SHOW TRAFFIC", "shop", "name", "ends_in").await {
        let left = left.parse::<u64>().ok();
        assert_eq!(left.is_some_and(|left| (1..=600).contains(&left)), rule == "no", "{process}: {rule} {left:?}");
    }
    for (cluster, column, expected) in [
        ("shop", "disabled", vec!["closed"]),
        ("shop", "paused", vec!["held", "killed"]),
        ("billing", "disabled", vec![]),
        ("billing", "paused", vec!["bills", "closed", "held"]),
    ] {
        let mut all = shown(&console, "SHOW DATABASES", cluster, "name", column).await;
        all.retain(|(_, value)| value == "1");
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, expected, "{process}: {cluster} {column}");
    }
    for cluster in ["shop", "billing"] {
        let config = shown(&console, "SHOW CONFIG", cluster, "key", "value").await;
        assert!(config.contains(&("default_pool_size".into(), "7".into())), "{process}: {config:?}");
    }
    // Blocked users are blocked, and others are not.
    for (user, database, expected) in
        [(USER, DATABASE, "42501"), (USER, SECOND, "42501"), (OTHER, DATABASE, ""), (OTHER, SECOND, "")]
    {
        let client = connect(kingpost, user, "", database).await;
        assert_eq!(code(&client, BLOCKED).await, expected, "{process}: {user} {database}");
        let of = value(&client, "SELECT max(of) FROM guarded").await;
        assert_eq!(of, database, "{process}: {user} {database}");
        // Each user has its own limit, and the other database has none. The file's rule, which would block it, is lifted.
        let codes = [code(&client, LIMITED).await, code(&client, LIMITED).await];
        assert_eq!(codes, if database == SECOND { ["", "53400"] } else { ["", ""] }, "{process}: {user} {database}");
    }
    for user in [USER, OTHER] {
        let error = kingpost.endpoint().try_connect(&config(kingpost, user, "", "closed")).await.unwrap_err();
        assert_eq!(sqlstate(&error), "57P03", "{process}: {user}");
    }
}

/// Starts a client in a database, and returns the only value of its statement.
fn comes(kingpost: &Kingpost, user: &str, database: &str) -> JoinHandle<String> {
    let mut config = config(kingpost, user, "", database);
    config.connect_timeout(kingpost_tests::SOON);
    tokio::spawn(async move {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("a login");
        tokio::spawn(connection);
        value(&client, "SELECT count(*) FROM guarded").await
    })
}

/// Operators' orders in the console hold in the new process before it has a client, for each of two clusters, and in one that takes over from that.
#[tokio::test]
async fn what_operators_have_ordered_holds_in_the_new_process() {
    if only_kingpost() {
        return;
    }
    let (cluster, other) = futures_util::future::join(traffic::cluster(), Cluster::builder().start()).await;
    let _logs = ShowLogs(cluster.dir());
    let of_others = async |sql: &str| other.primary().execute_in(DATABASE, sql).await;
    of_others(&format!(
        "CREATE ROLE {OTHER} LOGIN; CREATE TABLE guarded (n int); GRANT ALL ON guarded TO {USER}, {OTHER}"
    ))
    .await;
    let socket = new_dir("upgrade").join("upgrade.sock");
    let mut builder = Kingpost::of(&cluster)
        .set("cluster.name", "shop")
        .add("clusters", further("billing", &other, None))
        .set("proxy.workers", 2)
        .set("proxy.upgrade_socket", socket.to_str().unwrap())
        .add("proxy.traffic", rule("few", [("block", true.into()), ("access", "write".into())]));
    for name in [DATABASE, "closed", "held", "killed"] {
        builder = builder.add("proxy.databases", database(name, "dbname", DATABASE));
    }
    builder = builder.add("proxy.databases", database(SECOND, "dbname", SECOND));
    // Names that both clusters have lead to the first one; orders for one do not affect the other.
    for name in ["bills", "closed", "held"] {
        builder = builder.add("proxy.databases", database(name, "cluster", "billing"));
    }
    let mut kingpost = builder.start().await;
    let (console, shop, billing) =
        (console(&kingpost).await, console_of(&kingpost, "shop").await, console_of(&kingpost, "billing").await);
    for (console, order) in [
        (&console, format!("BLOCK no USER {USER} STATEMENT '{BLOCKED}' FOR 10min")),
        (&console, format!("LIMIT slow DATABASE {SECOND} RATE 1/h BURST 1 WRITES EACH USER")),
        (&console, "SET default_pool_size = 7".into()),
        (&shop, "LIFT few".into()),
        (&shop, "DISABLE closed".into()),
        (&shop, "PAUSE held".into()),
        (&shop, "KILL killed".into()),
        (&billing, "PAUSE FOR 10min".into()),
        // An ended order does not come back.
        (&shop, format!("PAUSE {SECOND}")),
        (&shop, format!("RESUME {SECOND}")),
        (&shop, format!("DISABLE {SECOND}")),
        (&shop, format!("ENABLE {SECOND}")),
    ] {
        console.batch_execute(&order).await.unwrap_or_else(|error| panic!("{order}: {error:?}"));
    }
    orders_hold(&kingpost, "the old process").await;
    let first = kingpost.take_over().await;
    orders_hold(&kingpost, "the new process").await;
    let second = kingpost.take_over().await;
    orders_hold(&kingpost, "the one after it").await;
    // Connected clients stay with the old process, whose messages are not seen here. It cannot read its configuration any more.
    cluster
        .wait("operators to order again", async || {
            code(&shop, &format!("DISABLE {DATABASE}")).await.is_empty().then_some(())
        })
        .await;
    for order in ["RELOAD", "SET default_pool_size = 9"] {
        assert_eq!(code(&console, order).await, "22023", "{order}");
    }
    assert_eq!(code(&connect(&kingpost, OTHER, "", DATABASE).await, BLOCKED).await, "");
    drop((console, shop, billing));
    for process in [first, second] {
        assert!(process.wait_exit(kingpost_tests::SOON).await.success());
    }
    let (shop, billing) = (console_of(&kingpost, "shop").await, console_of(&kingpost, "billing").await);
    let waiting = [("held", "9"), ("killed", "9"), ("bills", "0")].map(|(database, rows)| {
        let clients = [USER, OTHER].map(|user| comes(&kingpost, user, database));
        (database, rows, clients)
    });
    for (database, expected, clients) in waiting {
        let console = if database == "bills" { &billing } else { &shop };
        cluster
            .wait("both clients to wait", async || {
                let all = rows(console, "SHOW CLIENTS").await;
                let waits = |row: &&std::collections::HashMap<String, String>| {
                    row["database"] == database && ["waiting", "login"].contains(&row["state"].as_str())
                };
                (all.iter().filter(waits).count() == 2).then_some(())
            })
            .await;
        assert!(clients.iter().all(|client| !client.is_finished()), "{database}");
        let resume = if database == "bills" { "RESUME".to_owned() } else { format!("RESUME {database}") };
        console.batch_execute(&resume).await.unwrap();
        for client in clients {
            assert_eq!(client.await.unwrap(), expected, "{database}");
        }
    }
    // The orders can be ended.
    for order in ["LIFT no", "LIFT slow", "ENABLE closed", "SET default_pool_size = 8"] {
        crate::console::console(&kingpost).await.batch_execute(order).await.unwrap();
    }
    assert_eq!(code(&connect(&kingpost, USER, "", "closed").await, BLOCKED).await, "");
}

/// Reads an old process's messages up to this end; descriptors that come with them are dropped.
async fn hear(mut stream: UnixStream, end: &'static str) -> (UnixStream, String) {
    let hear = move || {
        stream.set_read_timeout(Some(kingpost_tests::SOON)).unwrap();
        let (mut text, mut byte) = (String::new(), [0]);
        while !text.ends_with(end) {
            stream.read_exact(&mut byte).unwrap();
            text.push(char::from(byte[0]));
        }
        (stream, text)
    };
    tokio::task::spawn_blocking(hear).await.unwrap()
}

/// From the handover of the orders on no further order is accepted, which the new process would not know, until that process has failed.
#[tokio::test]
async fn nothing_is_ordered_while_another_process_takes_over() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let socket = new_dir("upgrade").join("upgrade.sock");
    let console_address = Port::reserve();
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.upgrade_socket", socket.to_str().unwrap())
        .set("console.listen", format!("127.0.0.1:{}", console_address.number()))
        .start()
        .await;
    let console = console(&kingpost).await;
    console.batch_execute("SET default_pool_size = 7").await.unwrap();
    // It waits for a primary that does not come, and is cancelled at the handover: the new process would not know of the wait.
    let waits = crate::console::console(&kingpost).await;
    let waits = tokio::spawn(async move { code(&waits, "RESUME WHEN TIMELINE >= 1000").await });
    let asks = async || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"kingpost take-over 1\n").unwrap();
        hear(stream, "}\n").await
    };
    let (mut stream, list) = asks().await;
    assert!(list.contains("\"orders\":1"), "{list}");
    // The sockets alone change nothing.
    console.batch_execute("DISABLE elsewhere").await.unwrap();
    stream.write_all(b"orders 1\n").unwrap();
    let (stream, answer) = hear(stream, "]}").await;
    let (length, orders) = answer.split_once('\n').unwrap();
    assert_eq!(length, orders.len().to_string());
    let expected = "{\"orders\":[{\"order\":\"disable\",\"cluster\":\"main\",\"database\":\"elsewhere\"},\
                    {\"order\":\"set\",\"key\":\"proxy.pool.size\",\"value\":\"7\"}]}";
    assert_eq!(orders, expected);
    assert_eq!(waits.await.unwrap(), "57014");
    for order in [
        "PAUSE",
        "PAUSE FOR 10s",
        "LIMIT r RATE 1/s",
        "DISABLE elsewhere",
        "SET default_pool_size = 8",
        "RELOAD",
        "KILL",
    ] {
        assert_eq!(code(&console, order).await, "57P03", "{order}");
    }
    assert!(!rows(&console, "SHOW CONFIG").await.is_empty());
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
    // A third process gets sockets, but no orders.
    let (mut third, _) = asks().await;
    third.write_all(b"orders 1\n").unwrap();
    wait_log(&cluster, &kingpost, "the third one to be refused", "another process is taking over already").await;
    assert_eq!(code(&console, "PAUSE").await, "57P03", "it ends nothing of the second one's");
    // The new process fails: orders are accepted again, and the refused ones had no effect.
    drop(stream);
    cluster
        .wait("operators to order again", async || code(&console, "LIMIT r RATE 1/s").await.is_empty().then_some(()))
        .await;
    console.batch_execute("SET default_pool_size = 9").await.unwrap();
    assert_eq!(rows(&console, "SHOW TRAFFIC").await.len(), 1);
    let paused = rows(&console, "SHOW DATABASES").await;
    assert!(paused.iter().all(|row| row["paused"] == "0"), "{paused:?}");
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

async fn with_socket(cluster: &Cluster, drain: &str) -> Kingpost {
    let socket = new_dir("upgrade").join("upgrade.sock");
    Kingpost::of(cluster)
        .set("proxy.upgrade_socket", socket.to_str().unwrap())
        .set("proxy.drain_timeout", drain)
        .start()
        .await
}

/// Waits for a line in the log, which the two processes share.
async fn wait_log(cluster: &Cluster, kingpost: &Kingpost, what: &str, text: &str) {
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    cluster.wait(what, async || log().contains(text).then_some(())).await;
}

/// Clients that come and go, and one that stays, through three upgrades: none is refused, no statement fails.
#[tokio::test]
async fn nobody_notices_an_upgrade_under_load() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let console = Port::reserve();
    let socket = new_dir("upgrade").join("upgrade.sock");
    let mut kingpost = Kingpost::of(&cluster)
        .set("proxy.upgrade_socket", socket.to_str().unwrap())
        .set("proxy.drain_timeout", "60s")
        .set("console.listen", format!("127.0.0.1:{}", console.number()))
        .start()
        .await;
    let stays = kingpost.connect().await;
    stays.batch_execute("CREATE TABLE upgrades (n int); BEGIN; INSERT INTO upgrades VALUES (1)").await.unwrap();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (stop, done, endpoint) = (stop.clone(), done.clone(), kingpost.endpoint().clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let client = endpoint.try_connect(&endpoint.config()).await?;
                    for _ in 0..3 {
                        client.query_one("SELECT count(*) FROM pg_class", &[]).await?;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), tokio_postgres::Error>(())
            })
        })
        .collect();
    let progress = async || {
        let goal = done.load(Ordering::Relaxed) + 20;
        cluster.wait("20 more sessions", async || (done.load(Ordering::Relaxed) >= goal).then_some(())).await;
    };
    progress().await;
    let mut old = Vec::new();
    for _ in 0..3 {
        let before = kingpost.process().pid();
        old.push(kingpost.take_over().await);
        assert_ne!(kingpost.process().pid(), before);
        progress().await;
        assert_eq!(kingpost.http("/readyz").await.map(|(status, _)| status), Some(200));
    }
    // The web console has changed hands, too: the old process cannot answer any more.
    TcpStream::connect(("127.0.0.1", console.number())).await.expect("the console listens");
    stop.store(true, Ordering::Relaxed);
    for client in load {
        client.await.unwrap().expect("a client saw an error");
    }
    // Its transaction goes on in the old process, and so does the client.
    stays.batch_execute("INSERT INTO upgrades VALUES (2); COMMIT").await.unwrap();
    assert_eq!(value(&stays, "SELECT count(*) FROM upgrades").await, "2");
    drop(stays);
    // Each process ends when its last client has left.
    for process in &old {
        assert!(process.wait_exit(kingpost_tests::SOON).await.success());
    }
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

#[tokio::test]
async fn who_stays_is_told_when_the_time_is_over() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let mut kingpost = with_socket(&cluster, "1s").await;
    let stays = kingpost.connect().await;
    assert_eq!(value(&stays, "SELECT 7").await, "7");
    let old = kingpost.take_over().await;
    assert!(old.wait_exit(kingpost_tests::SOON).await.success());
    let error = stays.simple_query("SELECT 7").await.unwrap_err();
    assert!(error.is_closed() || sqlstate(&error) == "57P01", "{error:?}");
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

#[tokio::test]
async fn a_successor_that_fails_changes_nothing() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = with_socket(&cluster, "1s").await;
    let client = kingpost.connect().await;
    // Its configuration is wrong: it ends before it asks.
    let text = std::fs::read_to_string(kingpost.config_path()).unwrap();
    std::fs::write(kingpost.config_path(), text.replace("upgrade_socket", "upgrade_sokcet")).unwrap();
    kingpost.process().signal(libc::SIGUSR2);
    wait_log(&cluster, &kingpost, "the successor to fail", "upgrade_sokcet").await;
    // A process that asks and never reports that it is ready, and one with another protocol.
    let socket: toml::Table = text.parse().unwrap();
    let socket = socket["proxy"]["upgrade_socket"].as_str().unwrap().to_owned();
    for words in ["kingpost take-over 1\n", "GET / HTTP/1.1\r\n\r\n     "] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(words.as_bytes()).unwrap();
    }
    wait_log(&cluster, &kingpost, "them to be refused", "no process has taken over").await;
    assert_eq!(value(&client, "SELECT 7").await, "7");
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
    // Without a socket no take-over is possible.
    std::fs::write(kingpost.config_path(), text.replace("upgrade_socket", "zone")).unwrap();
    let alone = Kingpost::run(&["proxy", "--take-over", "--config", kingpost.config_path().to_str().unwrap()]);
    assert_eq!(alone.status.code(), Some(3), "{}", String::from_utf8_lossy(&alone.stderr));
}
