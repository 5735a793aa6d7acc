//! Resources used up by one client are not taken from others: places for databases and users, memory, prepared statements.

use std::time::Duration;

use futures_util::future::join_all;
use kingpost_tests::oracle::{Talk, values};
use kingpost_tests::raw::{Message, Raw, bind, execute, parse, query, startup, sync};
use kingpost_tests::{DATABASE, Kingpost, Subject, USER, subject, within};

use crate::common::{name, only_kingpost};
use crate::isolation::{ONE, OTHER_DATABASE, OTHER_USER, World, world};

/// More than the proxy's places for pairs of a database and a user.
const STRANGERS: usize = 1050;
/// Concurrent logins.
const AT_A_TIME: usize = 15;

/// Tries to log in, and returns the SQLSTATE of the refusal; None if it succeeded.
async fn refusal(port: u16, user: &str, database: &str) -> Option<String> {
    let mut raw = Raw::connect(port).await;
    raw.send(&startup(3 << 16, &[("user", user), ("database", database)])).await;
    while let Some(message) = raw.next().await {
        match message.kind {
            b'E' => return message.field(b'C'),
            b'Z' => return None,
            _ => {}
        }
    }
    Some("closed without a word".into())
}

/// Lets many unknown clients try to log in, all refused with `code`; then logs existing users in for the first time.
async fn strangers(world: &World, code: &str, stranger: impl Fn(usize) -> (String, String)) {
    let kingpost = ONE.start(&world.cluster).await;
    let port = kingpost.port();
    let all = async {
        for first in (0..STRANGERS).step_by(AT_A_TIME) {
            let some = (first..STRANGERS.min(first + AT_A_TIME)).map(async |n| {
                let (user, database) = stranger(n);
                refusal(port, &user, &database).await
            });
            for refused in join_all(some).await {
                assert_eq!(refused.as_deref(), Some(code), "stranger of {first} and after");
            }
        }
    };
    within("logins of strangers", Duration::from_secs(120), world.cluster.dir(), all).await;
    for (user, database) in [
        (USER, DATABASE),
        (USER, OTHER_DATABASE),
        (OTHER_USER, DATABASE),
        (OTHER_USER, OTHER_DATABASE),
        ("postgres", "postgres"),
    ] {
        let refused = refusal(port, user, database).await;
        assert_eq!(refused, None, "{user} at {database}, after {STRANGERS} strangers");
        let mut raw = Raw::login_as(port, user, database).await;
        raw.send(&query("SELECT 7")).await;
        assert_eq!(raw.kinds_until(b'Z').await, "TDCZ");
    }
}

/// After a thousand logins to databases that do not exist, every first login to a database was refused with 53300 until the proxy was restarted.
#[tokio::test]
async fn logins_to_databases_that_do_not_exist_take_nobodys_place() {
    let (world, _logs) = world().await;
    strangers(world, "3D000", |n| (USER.into(), format!("nosuch_{n}"))).await;
}

/// A thousand logins of users that do not exist, with a proxy that itself asks for no proof.
#[tokio::test]
async fn logins_of_users_that_do_not_exist_take_nobodys_place() {
    let (world, _logs) = world().await;
    strangers(world, "28000", |n| (format!("nosuch_{n}"), DATABASE.into())).await;
}

/// Workers, each with some of the clients of two small pools; and transactions of each client.
const WORKERS: i64 = 48;
const ROUNDS: usize = 20;

/// A pool with fewer connections than workers: nearly every transaction took its connection from another worker, after it had asked all of them. All
/// answers were right; the cost is the wake-ups of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connections_of_a_small_pool_stay_with_few_workers() {
    let (world, _logs) = world().await;
    if only_kingpost() {
        return;
    }
    let tweaks = Kingpost::of(&world.cluster).set("proxy.workers", WORKERS).set("proxy.pool.size", 4);
    let kingpost = tweaks.set("proxy.pool.lanes", "off").set("proxy.routing.route", "primary").start().await;
    let port = kingpost.port();
    let pools = [(USER, DATABASE), (OTHER_USER, OTHER_DATABASE)];
    let clients = (0..48).map(async |n| {
        let (user, database) = pools[n % pools.len()];
        let mut raw = Raw::login_as(port, user, database).await;
        for round in 0..ROUNDS {
            let text = format!("BEGIN; SELECT '{n} {round}', current_user, current_database(); COMMIT");
            raw.send(&query(&text)).await;
            let said = raw.until(b'Z').await;
            let row = said.iter().find(|message| message.kind == b'D').map(|message| message.body.clone());
            let row = String::from_utf8_lossy(&row.unwrap_or_default()).into_owned();
            for own in [&*format!("{n} {round}"), user, database] {
                assert!(row.contains(own), "client {n} of {user} at {database}: {row:?}");
            }
        }
    });
    within("48 clients over 48 workers", Duration::from_secs(120), world.cluster.dir(), join_all(clients)).await;
    let moved = kingpost.metrics().await.sum("kingpost_server_connections_moved_total", &[]);
    let transactions = (48 * ROUNDS) as f64;
    assert!(moved < transactions / 5.0, "{moved} connections went to another worker in {transactions} transactions");
}

/// Number of texts, and the length of each in bytes: below `proxy.max_statement_bytes`.
const TEXTS: usize = 150;
const LONG: usize = 1_000_000;
/// Allowed growth of resident memory for them, in KiB: the texts that workers keep because they may come again, less than half of all.
const MOST_GROWTH: u64 = 64 << 10;

/// Waits until the proxy's memory is no more than [`MOST_GROWTH`] above `before`.
async fn wait_for_memory(world: &World, kingpost: &Kingpost, before: u64) {
    let grown = || kingpost.process().rss_kib().saturating_sub(before);
    let what = format!("memory to fall: it has grown by {} MiB for {TEXTS} texts of 1 MB that are gone", grown() >> 10);
    world.cluster.wait(&what, async || (grown() <= MOST_GROWTH).then_some(())).await;
}

/// Makes a role whose long texts the server does not log, and a proxy with one server connection.
async fn one_server(world: &World) -> (String, Kingpost) {
    let role = name("quiet");
    let sql = format!("CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET log_min_error_statement = panic");
    world.cluster.primary().execute(&sql).await;
    // The server keeps few of the texts.
    let tweaks = Kingpost::of(&world.cluster).set("proxy.pool.size", 1).set("proxy.pool.prepared_per_server", 4);
    (role, tweaks.set("proxy.routing.route", "primary").start().await)
}

fn kinds(messages: &[Message]) -> String {
    messages.iter().filter(|message| !b"SN".contains(&message.kind)).map(|message| char::from(message.kind)).collect()
}

/// One client sent many texts of 1 MB that are not even SQL: the proxy kept all of them, even after the client had left.
#[tokio::test]
async fn texts_that_no_server_took_are_not_kept() {
    let (world, _logs) = world().await;
    if only_kingpost() {
        return;
    }
    let (role, kingpost) = one_server(world).await;
    let mut raw = Raw::login_as(kingpost.port(), &role, DATABASE).await;
    raw.send(&query("SELECT 1")).await;
    raw.until(b'Z').await;
    let before = kingpost.process().rss_kib();
    let padding = "x".repeat(LONG);
    for n in 0..TEXTS {
        raw.send(&[parse("", &format!("this is not sql {n} {padding}")), sync()].concat()).await;
        let said = raw.until(b'Z').await;
        assert_eq!((&*kinds(&said), said[0].field(b'C').as_deref()), ("EZ", Some("42601")), "{n}");
    }
    drop(raw);
    wait_for_memory(world, &kingpost, before).await;
}

/// Clients with long named statements came and went, and the proxy's memory only grew.
#[tokio::test]
async fn texts_of_named_statements_go_with_their_client() {
    let (world, _logs) = world().await;
    if only_kingpost() {
        return;
    }
    let (role, kingpost) = one_server(world).await;
    let mut raw = Raw::login_as(kingpost.port(), &role, DATABASE).await;
    raw.send(&query("SELECT 1")).await;
    raw.until(b'Z').await;
    let before = kingpost.process().rss_kib();
    let padding = "x".repeat(LONG);
    for client in 0..10 {
        let mut raw = Raw::login_as(kingpost.port(), &role, DATABASE).await;
        for n in 0..TEXTS / 10 {
            let name = format!("s{n}");
            let text = format!("SELECT {client} * 100 + {n} /* {padding} */");
            raw.send(&[parse(&name, &text), bind("", &name, &[]), execute("", 0), sync()].concat()).await;
            let said = raw.until(b'Z').await;
            // Beyond a number of bytes a client may be refused, with an error.
            assert!(kinds(&said) == "12DCZ" || said[0].field(b'C').as_deref() == Some("54000"), "{}", kinds(&said));
        }
    }
    wait_for_memory(world, &kingpost, before).await;
}

/// A hundred clients, each with its tenant set: the server parsed every execution anew, because no two clients shared a statement. A setting of that
/// kind does not affect the parsing of a text.
#[tokio::test]
async fn tenants_share_prepared_statements() {
    const CLIENTS: usize = 100;
    const STATEMENTS: usize = 8;
    let (world, _logs) = world().await;
    let table = name("shared");
    let sql = format!("CREATE TABLE {table} AS SELECT generate_series(1, 8) AS n; GRANT SELECT ON {table} TO PUBLIC");
    world.cluster.primary().execute(&sql).await;
    for (set, setting) in [
        ("SET application_name = 'TENANT'", "application_name"),
        ("SET app.tenant = 'TENANT'", "app.tenant"),
        ("SELECT set_config('app.tenant', 'TENANT', false)", "app.tenant"),
    ] {
        let kingpost = ONE.start(&world.cluster).await;
        let mut talk = Talk::new(kingpost.port());
        let name = |n: usize| format!("s{n}");
        for n in 0..CLIENTS {
            let who = talk.login(USER, DATABASE).await;
            talk.query(who, &set.replace("TENANT", &format!("t{n}"))).await;
            for n in 0..STATEMENTS {
                let text =
                    format!("SELECT concat(n, ' ', current_setting('{setting}')) FROM {table} WHERE n = $1 + {n}");
                talk.say(who, &[parse(&name(n), &text), sync()]).await;
            }
        }
        for who in 0..CLIENTS {
            for n in 0..STATEMENTS {
                let said = talk.say(who, &[bind("", &name(n), &["1"]), execute("", 0), sync()]).await;
                assert_eq!(values(&said), [format!("{} t{who}", n + 1)], "{set}: {said:?}");
            }
        }
        assert_eq!(talk.errors(), [""; 0], "{set}");
        if subject() == Subject::Kingpost {
            let prepares = kingpost.metrics().await.sum("kingpost_prepares_total", &[]);
            assert!(prepares <= 2.0 * STATEMENTS as f64, "{set}: {prepares} Parses for {STATEMENTS} statements");
        }
    }
}
