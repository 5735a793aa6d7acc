//! Pools: few servers for many clients, waiting, session mode.

use std::time::Duration;

use futures_util::future::join_all;
use kingpost_tests::raw::{Raw, bind, describe, execute, parse, query, sync};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, Subject, database, sqlstate, subject, within};

use crate::common::{name, only_kingpost, shared, value};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_stay_within_the_pool() {
    if subject() == Subject::Direct {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let size = 4;
    let kingpost = Kingpost::of(&cluster).set("proxy.pool.size", size as i64).start().await;
    let table = name("pool");
    kingpost.connect().await.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.unwrap();
    drop(kingpost.connect().await);
    let clients = join_all((0..40).map(|_| kingpost.connect())).await;
    let base = kingpost.process().fd_count();
    let work = clients.iter().enumerate().map(async |(n, client)| {
        for _ in 0..20 {
            client.batch_execute(&format!("BEGIN; INSERT INTO {table} VALUES ({n}); COMMIT")).await.unwrap();
            let own = value(client, &format!("SELECT count(*) > 0 FROM {table} WHERE n = {n}")).await;
            assert_eq!(own, "t");
        }
    });
    let most = async {
        let mut most = 0;
        for _ in 0..20 {
            for node in cluster.nodes() {
                most = most.max(node.pool_connections().await);
            }
        }
        most
    };
    let both = futures_util::future::join(join_all(work), most);
    let (_, most) = within("40 clients", Duration::from_secs(60), cluster.dir(), both).await;
    assert!((1..=size).contains(&most), "{most} connections to one node, for a pool of {size}");
    assert_eq!(value(&clients[0], &format!("/* kingpost.route=primary */ SELECT count(*) FROM {table}")).await, "800");
    drop(clients);
    // All descriptors of the 40 clients are closed; server connections may be fewer or, up to the pools, more.
    let limit = base - 40 + 2 * size + 4;
    cluster
        .wait("the proxy to close its clients' descriptors", async || {
            (kingpost.process().fd_count() <= limit).then_some(())
        })
        .await;
}

#[tokio::test]
async fn clients_take_turns_on_one_server() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let clients = join_all((0..5).map(|_| kingpost.connect())).await;
    let mut pids = Vec::new();
    for client in &clients {
        pids.push(value(client, "SELECT pg_backend_pid()").await);
    }
    pids.dedup();
    assert_eq!(pids.len(), 1, "one server connection, but {pids:?}");
}

#[tokio::test]
async fn waiting_too_long_is_an_error_that_the_client_survives() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let tweaks = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).set("proxy.pool.wait_timeout", "300ms");
    let kingpost = tweaks.start().await;
    let (holder, waiting) = (kingpost.connect().await, kingpost.connect().await);
    holder.batch_execute("BEGIN").await.unwrap();
    let pid = value(&holder, "SELECT pg_backend_pid()").await;
    for _ in 0..2 {
        let error = waiting.simple_query("SELECT pg_backend_pid()").await.unwrap_err();
        assert_eq!(sqlstate(&error), "53300", "{error:?}");
        let error = waiting.query("SELECT pg_backend_pid()", &[]).await.unwrap_err();
        assert_eq!(sqlstate(&error), "53300", "{error:?}");
    }
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(value(&waiting, "SELECT pg_backend_pid()").await, pid);
    assert_eq!(waiting.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0).to_string(), pid);
}

#[tokio::test]
async fn a_client_that_leaves_in_a_transaction_leaves_nothing() {
    let (shared, _logs) = shared().await;
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let table = name("left");
    let client = kingpost.connect().await;
    client.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.unwrap();
    client.batch_execute(&format!("BEGIN; INSERT INTO {table} VALUES (1); LOCK TABLE {table}")).await.unwrap();
    drop(client);
    let next = kingpost.connect().await;
    let sql = format!("SELECT count(*) FROM {table}");
    let seen = within("the lock of a client that has gone", kingpost_tests::SOON, shared.cluster.dir(), async {
        next.batch_execute(&format!("BEGIN; LOCK TABLE {table}; COMMIT")).await.unwrap();
        value(&next, &format!("/* kingpost.route=primary */ {sql}")).await
    });
    assert_eq!(seen.await, "0");
}

/// A client that has pipelined very many statements does not block the others until the last of them.
#[tokio::test]
async fn a_long_pipeline_lets_others_in() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let other = kingpost.connect().await;
    let mut raw = Raw::login(kingpost.port()).await;
    let count = 3000;
    raw.send(&query("/* kingpost.route=primary */ SELECT pg_sleep(0.002)").repeat(count)).await;
    raw.until(b'Z').await;
    let all = async {
        for _ in 1..count {
            raw.until(b'Z').await;
        }
    };
    let read = other.simple_query("/* kingpost.route=primary */ SELECT 1");
    tokio::select! {
        biased;
        outcome = read => drop(outcome.unwrap()),
        () = all => panic!("the other client has waited for all of the pipeline"),
    }
}

#[tokio::test]
async fn statement_mode_has_no_transaction_blocks() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.pool.size", 1)
        .add("proxy.databases", database("statements", "pool_mode", "statement"))
        .add("proxy.databases", database("app", "pool_mode", "transaction"))
        .start()
        .await;
    let mut config = kingpost.endpoint().config();
    config.dbname("statements");
    let admin = kingpost.connect().await;
    let table = name("single");
    admin.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.unwrap();
    drop(admin);
    let (client, other) =
        (kingpost.endpoint().connect_as(&config).await, kingpost.endpoint().connect_as(&config).await);
    let statement = client.prepare("SELECT $1::int + 1").await.unwrap();
    for _ in 0..3 {
        assert_eq!(value(&client, "SELECT 1").await, "1");
        assert_eq!(client.query_one(&statement, &[&1]).await.unwrap().get::<_, i32>(0), 2);
        // A batch in one message is one transaction of its own; also with its own BEGIN and COMMIT.
        client.batch_execute(&format!("SET work_mem = '5MB'; INSERT INTO {table} VALUES (1)")).await.unwrap();
        client.batch_execute(&format!("BEGIN; INSERT INTO {table} VALUES (2); COMMIT")).await.unwrap();
        assert_eq!(value(&other, "SHOW work_mem").await, "4MB");
        assert_eq!(value(&client, "SHOW work_mem").await, "5MB");
        // A block is refused, in either protocol, and the session continues.
        for error in
            [client.simple_query("BEGIN").await.unwrap_err(), client.query("START TRANSACTION", &[]).await.unwrap_err()]
        {
            assert_eq!(sqlstate(&error), "0A000", "{error:?}");
        }
    }
    // At the primary: a replica may not have what another session wrote.
    let count = format!("/* kingpost.route=primary */ SELECT count(*) FROM {table}");
    assert_eq!(value(&other, &count).await, "6");
    // A block that begins inside of a message is detected at the end of the message: then the session cannot continue, and nothing is committed.
    let _ = client.simple_query(&format!("INSERT INTO {table} VALUES (3); BEGIN")).await;
    client.simple_query("SELECT 1").await.unwrap_err();
    assert_eq!(value(&other, &count).await, "6");
}

#[tokio::test]
async fn connections_that_are_not_to_live_long_serve_somebody() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.server_lifetime", "1ms").start().await;
    let clients = join_all((0..8).map(|_| kingpost.connect())).await;
    for _ in 0..5 {
        let answers = join_all(clients.iter().map(|client| value(client, "SELECT 7"))).await;
        assert!(answers.iter().all(|answer| answer == "7"), "{answers:?}");
        value(&clients[0], "/* kingpost.route=primary */ SELECT pg_backend_pid()").await;
    }
}

#[tokio::test]
async fn session_mode_keeps_the_server() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.pool.size", 2)
        .set("proxy.pool.wait_timeout", "300ms")
        .add("proxy.databases", database("sessions", "pool_mode", "session"))
        .start()
        .await;
    let mut config = kingpost.endpoint().config();
    config.dbname("sessions");
    let one = kingpost.endpoint().connect_as(&config).await;
    let two = kingpost.endpoint().connect_as(&config).await;
    let pids = (value(&one, "SELECT pg_backend_pid()").await, value(&two, "SELECT pg_backend_pid()").await);
    assert_ne!(pids.0, pids.1);
    one.batch_execute("SET work_mem = '9MB'; CREATE TEMP TABLE mine (n int)").await.unwrap();
    for _ in 0..5 {
        assert_eq!((value(&one, "SELECT pg_backend_pid()").await, value(&two, "SELECT pg_backend_pid()").await), pids);
        assert_eq!(
            (value(&one, "SHOW work_mem").await, value(&two, "SHOW work_mem").await),
            ("9MB".into(), "4MB".into())
        );
    }
    // Both servers are taken as long as their clients stay.
    let three = kingpost.endpoint().connect_as(&config).await;
    assert_eq!(sqlstate(&three.simple_query("SELECT 1").await.unwrap_err()), "53300");
    drop(one);
    shared
        .cluster
        .wait("the server of a client that has left", async || {
            three.simple_query("SELECT * FROM pg_class LIMIT 1").await.ok()
        })
        .await;
    assert_eq!(value(&three, "SHOW work_mem").await, "4MB", "another's setting");
    let error = three.simple_query("SELECT * FROM mine").await.unwrap_err();
    assert_eq!(sqlstate(&error), "42P01", "another's temporary table");
}

#[tokio::test]
async fn too_many_clients_are_refused() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.max_clients", 5).start().await;
    let clients = join_all((0..5).map(|_| kingpost.connect())).await;
    let error = kingpost.endpoint().try_connect(&kingpost.endpoint().config()).await.map(|_| ()).unwrap_err();
    assert_eq!(sqlstate(&error), "53300", "{error:?}");
    drop(clients);
    shared
        .cluster
        .wait("a place", async || kingpost.endpoint().try_connect(&kingpost.endpoint().config()).await.ok())
        .await;
}

#[tokio::test]
async fn who_has_only_said_begin_holds_no_server() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let tweaks = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).set("proxy.pool.wait_timeout", "300ms");
    let kingpost = tweaks.start().await;
    let table = name("begun");
    let (first, second) = (kingpost.connect().await, kingpost.connect().await);
    first.batch_execute(&format!("CREATE TABLE {table} (n int PRIMARY KEY)")).await.unwrap();
    first.batch_execute("BEGIN").await.unwrap();
    second.batch_execute("START TRANSACTION ISOLATION LEVEL SERIALIZABLE").await.unwrap();
    assert_eq!(value(&second, "SHOW transaction_isolation").await, "serializable");
    second.batch_execute(&format!("INSERT INTO {table} VALUES (2)")).await.unwrap();
    // The one server is the second client's now; a transaction that could not begin has failed, until its end.
    for expected in ["53300", "25P02"] {
        let error = first.batch_execute(&format!("INSERT INTO {table} VALUES (1)")).await.unwrap_err();
        assert_eq!(sqlstate(&error), expected, "{error:?}");
    }
    first.batch_execute("ROLLBACK").await.unwrap();
    second.batch_execute("COMMIT").await.unwrap();
    // Failures, rollbacks and commits in it are as in any other transaction.
    first.batch_execute("BEGIN").await.unwrap();
    let error = first.batch_execute(&format!("INSERT INTO {table} VALUES (2)")).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505", "{error:?}");
    first.batch_execute("ROLLBACK").await.unwrap();
    first.batch_execute("BEGIN").await.unwrap();
    first.execute(&format!("INSERT INTO {table} VALUES ($1)"), &[&3]).await.unwrap();
    first.batch_execute("ROLLBACK").await.unwrap();
    first.batch_execute("BEGIN").await.unwrap();
    first.execute(&format!("INSERT INTO {table} VALUES ($1)"), &[&4]).await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    first.batch_execute("BEGIN").await.unwrap();
    first.batch_execute("COMMIT").await.unwrap();
    let rows = format!("/* kingpost.route=primary */ SELECT string_agg(n::text, ' ' ORDER BY n) FROM {table}");
    assert_eq!(value(&second, &rows).await, "2 4");
    assert!(kingpost.metrics().await.sum("kingpost_begins_put_off_total", &[]) >= 6.0);
}

#[tokio::test]
async fn begin_is_put_off_in_the_extended_protocol_too() {
    let (shared, _logs) = shared().await;
    let kingpost = Kingpost::of(&shared.cluster).start().await;
    let mut raw = Raw::login(kingpost.port()).await;
    let answers = async |raw: &mut Raw, messages: &[Vec<u8>]| {
        raw.send(&messages.concat()).await;
        let all = raw.until(b'Z').await;
        let kinds: String = all.iter().map(|message| char::from(message.kind)).collect();
        format!("{kinds}:{}", char::from(all.last().unwrap().body[0]))
    };
    let begin = |name| [bind("", name, &[]), describe(b'P', ""), execute("", 0), sync()];
    assert_eq!(answers(&mut raw, &[&[parse("", "BEGIN")][..], &begin("")].concat()).await, "12nCZ:T");
    assert_eq!(answers(&mut raw, &[query("SELECT 1")]).await, "TDCZ:T");
    assert_eq!(answers(&mut raw, &[query("COMMIT")]).await, "CZ:I");
    assert_eq!(answers(&mut raw, &[parse("b", "START TRANSACTION"), sync()]).await, "1Z:I");
    assert_eq!(answers(&mut raw, &begin("b")).await, "2nCZ:T");
    assert_eq!(answers(&mut raw, &[parse("", "SELECT 1/0"), bind("", "", &[]), execute("", 0), sync()]).await, "1EZ:E");
    assert_eq!(answers(&mut raw, &[query("ROLLBACK")]).await, "CZ:I");
    // The server itself refuses a parameter too many.
    assert_eq!(answers(&mut raw, &[bind("", "b", &["1"]), execute("", 0), sync()]).await, "EZ:I");
}

/// The server's own limits: `max_connections`, and a role's CONNECTION LIMIT. Users come one after another, as they can directly, and stay connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_others_make_room_on_a_full_server() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder()
        .setting("max_connections", "16")
        .setting("superuser_reserved_connections", "3")
        .setting("max_wal_senders", "2")
        .start()
        .await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    primary.execute("CREATE DATABASE second").await;
    primary
        .execute("DO $$ BEGIN FOR n IN 1..30 LOOP EXECUTE format('CREATE ROLE u%s LOGIN', n); END LOOP; END $$")
        .await;
    primary.execute("CREATE ROLE single LOGIN CONNECTION LIMIT 1").await;
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.pool.size", 4)
        .set("proxy.pool.wait_timeout", "3s")
        .set("proxy.login_timeout", "2s")
        .start()
        .await;
    let config = |user: &str, database: &str| {
        let mut config = kingpost.endpoint().config();
        config.user(user).dbname(database);
        config
    };
    // Directly, one after another.
    for n in 1..=30 {
        let mut direct = primary.endpoint().config();
        direct.user(format!("u{n}"));
        assert_eq!(value(&primary.endpoint().connect_as(&direct).await, "SELECT current_user").await, format!("u{n}"));
    }
    let mut clients = Vec::new();
    for n in 1..=30 {
        let name = format!("u{n}");
        let database = if n % 2 == 0 { "second" } else { kingpost_tests::DATABASE };
        let client = kingpost.endpoint().connect_as(&config(&name, database)).await;
        assert_eq!(value(&client, "/* kingpost.route=primary */ SELECT current_user").await, name);
        clients.push(client);
    }
    // The role's limit: the connection to one database makes room for one to the other.
    for database in [kingpost_tests::DATABASE, "second", kingpost_tests::DATABASE] {
        let client = kingpost.endpoint().connect_as(&config("single", database)).await;
        assert_eq!(value(&client, "/* kingpost.route=primary */ SELECT current_user").await, "single");
    }
    // All connections are in use: the server's own error, as directly.
    let busy =
        join_all(clients[..24].iter().map(async |client| client.batch_execute("BEGIN; SELECT pg_backend_pid()").await));
    let outcomes = busy.await;
    let inside: Vec<usize> = (0..24).filter(|&n| outcomes[n].is_ok()).collect();
    for outcome in &outcomes {
        let Err(error) = outcome else { continue };
        let said = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
        assert_eq!(sqlstate(error), "53300", "{error:?}");
        assert!(said.contains("connection"), "{said}");
    }
    assert!(inside.len() >= 8 && inside.len() < 24, "{inside:?}");
    let direct = primary.endpoint().try_connect(&primary.endpoint().config()).await;
    assert_eq!(sqlstate(&direct.map(drop).expect_err("it is full")), "53300");
    // A released connection makes room for a waiting pool, although its own pool has active clients.
    let waits = async { value(&clients[29], "/* kingpost.route=primary */ SELECT 7").await };
    let leaves = async { clients[inside[0]].batch_execute("COMMIT").await.unwrap() };
    let (answer, ()) = futures_util::future::join(waits, leaves).await;
    assert_eq!(answer, "7");
}

/// `CREATE DATABASE` copies template1, and fails (55006) while any session is connected there.
#[tokio::test]
async fn no_idle_connection_stays_in_the_template() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.min_size", 1).start().await;
    let mut config = kingpost.endpoint().config();
    config.user("postgres").dbname("template1");
    let inside = kingpost.endpoint().connect_as(&config).await;
    assert_eq!(value(&inside, "/* kingpost.route=primary */ SELECT 1").await, "1");
    config.dbname("postgres");
    let other = kingpost.endpoint().connect_as(&config).await;
    let made = name("made");
    // Directly the client in template1 would be in the way; here it has no server connection while it is idle.
    for sql in [format!("CREATE DATABASE {made}"), format!("DROP DATABASE {made}")] {
        other.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
    assert_eq!(value(&inside, "/* kingpost.route=primary */ SELECT 2").await, "2");
}

/// More pairs of database and user than one worker's earlier limit; all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_of_database_and_user_have_no_limit_of_their_own() {
    if only_kingpost() {
        return;
    }
    let cluster = Cluster::builder().setting("max_connections", "40").start().await;
    let _logs = ShowLogs(cluster.dir());
    let roles = "DO $$ BEGIN FOR n IN 1..1010 LOOP EXECUTE format('CREATE ROLE u%s LOGIN', n); END LOOP; END $$";
    cluster.primary().execute(roles).await;
    let kingpost =
        Kingpost::of(&cluster).set("proxy.workers", 1).set("proxy.pool.max_node_connections", 20).start().await;
    let mut inside = Vec::new();
    for group in (1..=1010).collect::<Vec<_>>().chunks(16) {
        let logins = group
            .iter()
            .map(async |n| Raw::login_as(kingpost.port(), &format!("u{n}"), kingpost_tests::DATABASE).await);
        inside.extend(join_all(logins).await);
    }
    let last = inside.last_mut().expect("clients");
    last.send(&query("SELECT current_user")).await;
    let said = last.until(b'Z').await;
    assert!(said.iter().any(|message| message.kind == b'D' && message.body.ends_with(b"u1010")), "{said:?}");
}
