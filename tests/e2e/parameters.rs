//! Session parameters: those of the start-up packet and those of SET, with server connections that move between clients.

use futures_util::future::join_all;
use kingpost_tests::raw::{Message, Raw, bind, execute, parse, query, startup, sync};
use kingpost_tests::{DATABASE, Kingpost, Subject, USER, subject};
use tokio_postgres::Client;

use crate::common::{name, shared, value};

/// More clients than server connections, so that every round moves connections to clients with other settings.
const CLIENTS: usize = 10;
const SERVERS: usize = 3;

async fn check(client: &Client, n: usize) {
    let zone = ["UTC", "Asia/Tokyo", "America/New_York"][n % 3];
    for (sql, expected) in [
        ("SHOW application_name", format!("app {n}")),
        ("SELECT replace(current_setting('search_path'), ' ', '')", format!("s{n},public")),
        ("SHOW TimeZone", zone.into()),
        ("SHOW statement_timeout", format!("{}s", 100 + n)),
        ("SHOW DateStyle", if n.is_multiple_of(2) { "ISO, MDY" } else { "German, DMY" }.into()),
    ] {
        assert_eq!(value(client, sql).await, expected, "client {n}: {sql}");
    }
    // Replicas must apply them, too.
    let instant = value(client, "SELECT to_char(timestamptz '2024-01-01 00:00:00+00', 'HH24')").await;
    assert_eq!(instant, ["00", "09", "19"][n % 3], "client {n} in {zone}");
}

#[tokio::test]
async fn startup_parameters_move_with_their_client() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", SERVERS as i64).start().await;
    let clients = join_all((0..CLIENTS).map(async |n| {
        let zone = ["UTC", "Asia/Tokyo", "America/New_York"][n % 3];
        let style = if n.is_multiple_of(2) { "ISO" } else { "German" };
        let mut config = kingpost.endpoint().config();
        config.application_name(format!("app {n}"));
        config.options(format!(
            "-c search_path=s{n},public -c TimeZone={zone} -c statement_timeout={}s --DateStyle={style}",
            100 + n
        ));
        kingpost.endpoint().connect_as(&config).await
    }))
    .await;
    for _ in 0..5 {
        join_all(clients.iter().enumerate().map(|(n, client)| check(client, n))).await;
    }
}

#[tokio::test]
async fn set_parameters_move_with_their_client() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", SERVERS as i64).start().await;
    let clients = join_all((0..CLIENTS).map(|_| kingpost.connect())).await;
    let plain = kingpost.connect().await;
    for (n, client) in clients.iter().enumerate() {
        let zone = ["UTC", "Asia/Tokyo", "America/New_York"][n % 3];
        let style = if n % 2 == 0 { "ISO" } else { "German" };
        client
            .batch_execute(&format!(
                "SET application_name = 'app {n}'; SET search_path = s{n}, public; SET TIME ZONE '{zone}';
                 SET statement_timeout = '{}s'; SET DateStyle = {style}",
                100 + n
            ))
            .await
            .unwrap();
    }
    for _ in 0..5 {
        join_all(clients.iter().enumerate().map(|(n, client)| check(client, n))).await;
        assert_eq!(
            value(&plain, "SHOW statement_timeout").await,
            "0",
            "a client that set nothing has another's setting"
        );
        assert_eq!(value(&plain, "SHOW search_path").await, "\"$user\", public");
    }
    assert_eq!(pinned(&kingpost).await, 0.0);
    // SET LOCAL and a rolled back SET leave nothing behind.
    clients[0].batch_execute("BEGIN; SET LOCAL statement_timeout = '5s'; COMMIT").await.unwrap();
    clients[0].batch_execute("BEGIN; SET statement_timeout = '6s'; ROLLBACK").await.unwrap();
    check(&clients[0], 0).await;
    clients[0].batch_execute("RESET statement_timeout").await.unwrap();
    assert_eq!(value(&clients[0], "SHOW statement_timeout").await, "0");
    clients[1].batch_execute("DISCARD ALL").await.unwrap();
    assert_eq!(value(&clients[1], "SHOW statement_timeout").await, "0");
    // All leave; the next clients find defaults.
    drop(clients);
    for _ in 0..CLIENTS {
        assert_eq!(value(&kingpost.connect().await, "SHOW statement_timeout").await, "0");
    }
}

/// Counts the pinned clients.
async fn pinned(kingpost: &Kingpost) -> f64 {
    if subject() == Subject::Kingpost { kingpost.metrics().await.sum("kingpost_clients_pinned", &[]) } else { 0.0 }
}

/// With one server connection for two clients, each finds the values that it has set itself: after each of these statements, and with rolled back and
/// transaction-local values undone.
#[tokio::test]
async fn a_set_lasts_as_long_as_its_transaction_says() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let mut config = kingpost.endpoint().config();
    config.options("-c lock_timeout=1s");
    let client = kingpost.endpoint().connect_as(&config).await;
    let other = kingpost.connect().await;
    for (text, lock_timeout, work_mem) in [
        ("SELECT 1", "1s", "4MB"),
        ("SET work_mem = '5MB'", "1s", "5MB"),
        ("SET lock_timeout = '2s'; SET work_mem TO 6144", "2s", "6MB"),
        ("BEGIN; SET work_mem = '7MB'; ROLLBACK", "2s", "6MB"),
        ("BEGIN; SET work_mem = '7MB'; SET LOCAL lock_timeout = '9s'; COMMIT", "2s", "7MB"),
        ("SELECT set_config('lock_timeout', '3s', false), set_config('work_mem', '1MB', true)", "3s", "7MB"),
        ("RESET lock_timeout", "1s", "7MB"),
        ("SET work_mem = DEFAULT", "1s", "4MB"),
        ("SET SESSION work_mem = '8MB'; SET lock_timeout = 0", "0", "8MB"),
        ("RESET ALL", "1s", "4MB"),
        ("BEGIN; SET work_mem = '6MB'; ROLLBACK AND CHAIN; SET lock_timeout = '4s'; END", "4s", "4MB"),
        ("BEGIN; SET work_mem = '8MB'; COMMIT AND CHAIN; SET work_mem = '9MB'; ROLLBACK", "4s", "8MB"),
        ("DISCARD ALL", "1s", "4MB"),
    ] {
        // Each statement of a list by itself, then all in one message: between the two all values are reset.
        for whole in [false, true] {
            if whole {
                client.batch_execute(text).await.unwrap();
            } else {
                for statement in text.split("; ") {
                    client.batch_execute(statement).await.unwrap();
                }
            }
            assert_eq!(value(&other, "SHOW lock_timeout").await, "0", "another client's after {text}");
            assert_eq!(value(&other, "SHOW work_mem").await, "4MB", "another client's after {text}");
            assert_eq!(value(&client, "SHOW lock_timeout").await, lock_timeout, "{text}");
            assert_eq!(value(&client, "SHOW work_mem").await, work_mem, "{text}");
        }
    }
    // A failed statement sets nothing: alone, with others in one message, and in a transaction.
    for text in [
        "SET work_mem = 'much'",
        "SET work_mem = '5MB'; SELECT 1/0",
        "SET work_mem = '5MB'; SET lock_timeout = 'soon'",
        "BEGIN; SET work_mem = '5MB'; SELECT 1/0; COMMIT",
    ] {
        client.batch_execute(text).await.unwrap_err();
        client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(value(&other, "SHOW work_mem").await, "4MB", "another client's after {text}");
        assert_eq!(value(&client, "SHOW work_mem").await, "4MB", "{text}");
    }
    // In the extended protocol, with a value of its own.
    client.execute("SET work_mem = '11MB'", &[]).await.unwrap();
    client.query("SELECT set_config('lock_timeout', $1, false)", &[&"7s"]).await.unwrap();
    assert_eq!(value(&other, "SHOW work_mem").await, "4MB");
    assert_eq!(value(&client, "SHOW work_mem").await, "11MB");
    assert_eq!(value(&client, "SHOW lock_timeout").await, "7s");
    assert_eq!(pinned(&kingpost).await, 0.0);
    // With a savepoint in between, and a rollback to it.
    client
        .batch_execute("BEGIN; SAVEPOINT a; SET work_mem = '12MB'; ROLLBACK TO a; SET lock_timeout = '8s'; COMMIT")
        .await
        .unwrap();
    assert_eq!(pinned(&kingpost).await, 0.0);
    assert_eq!(value(&client, "SHOW work_mem").await, "11MB");
    assert_eq!(value(&client, "SHOW lock_timeout").await, "8s");
    client.batch_execute("RESET ALL").await.unwrap();
    assert_eq!(pinned(&kingpost).await, 0.0);
    assert_eq!(value(&other, "SHOW lock_timeout").await, "0");
    assert_eq!(value(&client, "SHOW lock_timeout").await, "1s");
    assert_eq!(value(&client, "SHOW work_mem").await, "4MB");
}

#[tokio::test]
async fn a_role_moves_with_its_client() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let (role, reader) = (name("role"), name("reader"));
    let admin = shared.cluster.primary().admin().await;
    admin
        .batch_execute(&format!("CREATE ROLE {role}; CREATE ROLE {reader}; GRANT {role}, {reader} TO {USER}"))
        .await
        .unwrap();
    shared.cluster.wait_caught_up().await;
    let clients = [kingpost.connect().await, kingpost.connect().await, kingpost.connect().await];
    clients[0].batch_execute(&format!("SET ROLE {role}; SET work_mem = '5MB'")).await.unwrap();
    clients[1].batch_execute(&format!("SET SESSION ROLE {reader}")).await.unwrap();
    for _ in 0..3 {
        for (client, who) in clients.iter().zip([&*role, &*reader, USER]) {
            assert_eq!(value(client, "SELECT current_user").await, who);
            assert_eq!(value(client, "SELECT session_user").await, USER);
        }
    }
    // RESET ALL leaves the role, and nothing else.
    clients[0].batch_execute("RESET ALL").await.unwrap();
    assert_eq!(value(&clients[2], "SELECT current_user").await, USER);
    assert_eq!(value(&clients[0], "SELECT current_user").await, role);
    assert_eq!(value(&clients[0], "SHOW work_mem").await, "4MB");
    clients[0].batch_execute("RESET ROLE").await.unwrap();
    clients[1].batch_execute("DISCARD ALL").await.unwrap();
    for client in &clients {
        assert_eq!(value(client, "SELECT current_user").await, USER);
    }
    assert_eq!(pinned(&kingpost).await, 0.0);
}

#[tokio::test]
async fn a_schema_of_the_search_path_is_used_for_names() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 2).start().await;
    let admin = shared.cluster.primary().admin().await;
    let table = name("same");
    let mut clients = Vec::new();
    for n in 0..4 {
        let schema = format!("{table}_{n}");
        admin
            .batch_execute(&format!(
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table} AS SELECT {n} AS n;
                 GRANT USAGE ON SCHEMA {schema} TO {USER}; GRANT SELECT ON {schema}.{table} TO {USER}"
            ))
            .await
            .unwrap();
        let mut config = kingpost.endpoint().config();
        config.options(format!("-c search_path={schema}"));
        clients.push(kingpost.endpoint().connect_as(&config).await);
    }
    shared.cluster.wait_caught_up().await;
    // The same text, prepared by each: a shared plan must not show one client another's table.
    let statements =
        join_all(clients.iter().map(|client| client.prepare(&*format!("SELECT n FROM {table}").leak()))).await;
    for _ in 0..10 {
        for (n, client) in clients.iter().enumerate() {
            assert_eq!(value(client, &format!("SELECT n FROM {table}")).await, n.to_string());
            let row = client.query_one(statements[n].as_ref().unwrap(), &[]).await.unwrap();
            assert_eq!(row.get::<_, i32>(0), n as i32);
        }
    }
}

#[tokio::test]
async fn parameter_status_tells_the_client() {
    let (shared, _logs) = shared().await;
    let port = shared.kingpost.port();
    let mut raw = Raw::connect(port).await;
    let parameters =
        [("user", USER), ("database", DATABASE), ("application_name", "first"), ("client_encoding", "LATIN1")];
    raw.send(&startup(3 << 16, &parameters)).await;
    let status = |messages: &[kingpost_tests::raw::Message]| -> Vec<(String, String)> {
        let pairs = messages.iter().filter(|message| message.kind == b'S').map(|message| {
            let mut fields = message.body.split(|&b| b == 0).map(|field| String::from_utf8_lossy(field).into_owned());
            (fields.next().unwrap(), fields.next().unwrap())
        });
        pairs.collect()
    };
    let login = status(&raw.until(b'Z').await);
    let of = |name: &str| login.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    assert_eq!(of("client_encoding"), Some("LATIN1"));
    assert_eq!(of("server_encoding"), Some("UTF8"));
    assert_eq!(of("integer_datetimes"), Some("on"));
    assert_eq!(of("standard_conforming_strings"), Some("on"));
    assert!(of("server_version").is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())), "{login:?}");
    if subject() != Subject::PgBouncer {
        assert_eq!(of("application_name"), Some("first"));
    }
    // In this client's encoding an é is one byte.
    raw.send(&query("SELECT chr(233)")).await;
    let messages = raw.until(b'Z').await;
    let row = messages.iter().find(|message| message.kind == b'D').unwrap();
    assert_eq!(row.body, [0, 1, 0, 0, 0, 1, 0xe9]);
    raw.send(&query("SET application_name = 'second'")).await;
    let changed = status(&raw.until(b'Z').await);
    assert!(changed.contains(&("application_name".into(), "second".into())), "{changed:?}");
    raw.send(&query("SET TimeZone = 'Asia/Tokyo'")).await;
    let changed = status(&raw.until(b'Z').await);
    assert!(changed.contains(&("TimeZone".into(), "Asia/Tokyo".into())), "{changed:?}");
}

/// Returns the time zone that a client knows after these messages.
fn believed(messages: &[Message], before: &str) -> String {
    let told = messages.iter().rev().filter(|message| message.kind == b'S');
    let zone = told.filter_map(|message| message.body.strip_prefix(b"TimeZone\0")?.strip_suffix(b"\0")).next();
    zone.map_or(before.into(), |zone| String::from_utf8_lossy(zone).into_owned())
}

/// Reported before the end of the reset, and before any later message of the client.
#[tokio::test]
async fn a_reset_goes_back_to_what_the_client_began_with() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    for mode in ["transaction", "session"] {
        let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.mode", mode).start().await;
        let mut raw =
            Raw::login_with(kingpost.port(), &[("TimeZone", "Asia/Tokyo"), ("application_name", "mine")]).await;
        for reset in ["RESET TimeZone", "SET TimeZone TO DEFAULT", "RESET ALL", "DISCARD ALL"] {
            for extended in [false, true] {
                raw.send(&query("SET TimeZone = 'Europe/Rome'")).await;
                assert_eq!(believed(&raw.until(b'Z').await, ""), "Europe/Rome");
                let asked = match extended {
                    false => query(reset),
                    true => [parse("", reset), bind("", "", &[]), execute("", 0), sync()].concat(),
                };
                raw.send(&[asked, query("SHOW TimeZone"), query("SHOW application_name")].concat()).await;
                let done = raw.until(b'Z').await;
                assert_eq!(believed(&done, "Europe/Rome"), "Asia/Tokyo", "{mode}: {reset}, extended: {extended}");
                for expected in ["Asia/Tokyo", "mine"] {
                    let shown = raw.until(b'Z').await;
                    let row = shown.iter().find(|message| message.kind == b'D').expect("a row");
                    assert_eq!(
                        String::from_utf8_lossy(&row.body[6..]),
                        expected,
                        "{mode}: {reset}, extended: {extended}"
                    );
                }
            }
        }
        // In a transaction: at its end, at the latest.
        let texts = ["SET TimeZone = 'Europe/Rome'", "BEGIN", "RESET TimeZone", "COMMIT"];
        raw.send(&texts.map(query).concat()).await;
        let mut zone = String::new();
        for _ in texts {
            zone = believed(&raw.until(b'Z').await, &zone);
        }
        assert_eq!(zone, "Asia/Tokyo", "{mode}");
    }
}

#[tokio::test]
async fn a_wrong_startup_parameter_is_refused_clearly() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    for options in ["-c no_such_parameter=1", "-c statement_timeout=soon"] {
        let mut config = shared.kingpost.endpoint().config();
        config.options(options);
        // A proxy may only notice once it has a server for the client.
        let error = match shared.kingpost.endpoint().try_connect(&config).await {
            Ok(client) => client.simple_query("SELECT 1").await.map(|_| ()).unwrap_err(),
            Err(error) => error,
        };
        assert!(["42704", "22023"].contains(&kingpost_tests::sqlstate(&error)), "{options}: {error:?}");
    }
    assert_eq!(value(&shared.kingpost.connect().await, "SELECT 7").await, "7", "the pool is spoilt");
}
