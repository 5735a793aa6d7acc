//! Traffic rules: refused statements, the clients that they apply to, and the effect on all others.

use kingpost_tests::raw::{self, Raw};
use kingpost_tests::{Cluster, DATABASE, Kingpost, ShowLogs, USER, sqlstate};
use tokio_postgres::Client;
use toml::{Table, Value};

use crate::common::{only_kingpost, value};
use crate::console::{console, rows};
use crate::governed::connect;

pub(crate) const SECOND: &str = "second";
pub(crate) const OTHER: &str = "bert";

/// Makes two databases with a table of one name, and two users.
pub(crate) async fn cluster() -> Cluster {
    let cluster = Cluster::builder().replicas(1).start().await;
    let admin = cluster.primary().admin().await;
    admin
        .batch_execute(&format!(
            "CREATE ROLE {OTHER} LOGIN; CREATE SEQUENCE bumps; GRANT ALL ON bumps TO {USER};
        CREATE FUNCTION bump() RETURNS bigint LANGUAGE sql AS 'SELECT nextval(''bumps'')'"
        ))
        .await
        .unwrap();
    admin.batch_execute(&format!("CREATE DATABASE {SECOND}")).await.unwrap();
    for database in [DATABASE, SECOND] {
        let mut config = cluster.primary().endpoint().config();
        config.user("postgres").dbname(database);
        let admin = cluster.primary().endpoint().connect_as(&config).await;
        let sql = format!(
            "CREATE TABLE guarded AS SELECT n, '{database}' AS of FROM generate_series(1, 9) n; GRANT ALL ON guarded TO {USER}, {OTHER}"
        );
        admin.batch_execute(&sql).await.unwrap();
    }
    cluster.wait_caught_up().await;
    cluster
}

pub(crate) fn rule<const N: usize>(name: &str, settings: [(&str, Value); N]) -> Table {
    let mut table = Table::new();
    table.insert("name".into(), name.into());
    table.extend(settings.map(|(key, value)| (key.into(), value)));
    table
}

/// Returns the SQLSTATE and message of a statement's error; empty if it succeeded.
pub(crate) async fn code(client: &Client, sql: &str) -> String {
    client.simple_query(sql).await.map_or_else(|error| sqlstate(&error).to_owned(), |_| String::new())
}

/// Returns the counts of a rule in `SHOW TRAFFIC`: running, passed, refused.
async fn counts(console: &Client, rule: &str) -> [u64; 3] {
    let rows = rows(console, "SHOW TRAFFIC").await;
    let row = rows.iter().find(|row| row["name"] == rule).unwrap_or_else(|| panic!("{rule}: {rows:?}"));
    ["running", "passed", "refused"].map(|column| row[column].parse().unwrap())
}

/// Sends one read; returns the kinds of the messages up to `ReadyForQuery`, the transaction's status in it, and the SQLSTATEs of errors.
async fn answer(client: &mut Raw, messages: &[u8]) -> (String, char, String) {
    client.send(messages).await;
    let answer = client.until(b'Z').await;
    let kinds = answer.iter().map(|message| char::from(message.kind)).collect();
    let codes: Vec<String> = answer.iter().filter(|of| of.kind == b'E').filter_map(|of| of.field(b'C')).collect();
    (kinds, char::from(answer.last().unwrap().body[0]), codes.join(" "))
}

#[tokio::test]
async fn a_blocked_statement_fails_for_whom_it_is_blocked_and_for_nobody_else() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.workers", 2).start().await;
    let console = console(&kingpost).await;
    let text = "SELECT of FROM guarded WHERE n = 1";
    let mut everybody = Vec::new();
    for (user, database) in [(USER, DATABASE), (OTHER, DATABASE), (USER, SECOND), (OTHER, SECOND)] {
        let client = connect(&kingpost, user, "", database).await;
        // The statement is prepared before it is blocked.
        let prepared = client.prepare("SELECT of FROM guarded WHERE n = $1").await.unwrap();
        everybody.push((user, database, client, prepared));
    }
    let outcomes = async |expected: &str| {
        for (user, database, client, prepared) in &everybody {
            let expected = if (*user, *database) == (USER, DATABASE) { expected } else { "" };
            assert_eq!(code(client, text).await, expected, "{user} {database}: Query");
            let found = client.query(prepared, &[&1]).await;
            let found = found.map(|rows| rows[0].get::<_, String>(0)).map_err(|error| sqlstate(&error).to_owned());
            let good = if expected.is_empty() { Ok((*database).to_owned()) } else { Err(expected.to_owned()) };
            assert_eq!(found, good, "{user} {database}: prepared");
            // Another statement, and a similar one, are not blocked.
            assert_eq!(value(client, "SELECT count(*) FROM guarded").await, "9");
            assert_eq!(value(client, "SELECT of FROM guarded WHERE n = 1 AND true").await, *database);
        }
    };
    outcomes("").await;
    let limit = format!("BLOCK no USER {USER} DATABASE {DATABASE} STATEMENT '{text}'");
    console.batch_execute(&limit).await.unwrap();
    outcomes("42501").await;
    let error = everybody[0].2.simple_query(text).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.message(), "the traffic rule \"no\" blocks the statement");
    assert!(error.hint().unwrap().contains("SHOW TRAFFIC"), "{error:?}");
    // The fingerprint in a table is that of the rule.
    let shown = rows(&console, "SHOW STATEMENTS").await;
    let shown = shown.iter().find(|row| row["statement"] == "SELECT of FROM guarded WHERE n = ?").unwrap();
    let by_rule = rows(&console, "SHOW TRAFFIC").await.swap_remove(0);
    assert_eq!(shown["fingerprint"], by_rule["statement"]);
    assert_eq!(by_rule["set_by"], "operator");
    // The log reports it once, with names and without the statement.
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("a traffic rule refuses")).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(USER) && told[0].contains(DATABASE) && !told[0].contains("guarded"), "{told:?}");
    console.batch_execute("LIFT no").await.unwrap();
    outcomes("").await;
    assert_eq!(code(&console, "LIFT no").await, "22023");
}

#[tokio::test]
async fn a_refused_statement_leaves_the_session_as_a_failed_one_does() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster)
        .add("proxy.traffic", rule("no", [("block", true.into()), ("access", "write".into())]))
        .add("proxy.traffic", rule("slow", [("rate", "1/h".into()), ("user", OTHER.into()), ("dry_run", true.into())]))
        .start()
        .await;
    let port = kingpost.port();
    let mut client = Raw::login_as(port, USER, DATABASE).await;
    let write = "DELETE FROM guarded";
    let p = |text: &str| [raw::parse("", text), raw::bind("", "", &[]), raw::execute("", 0)].concat();
    for (what, messages, expected) in [
        ("a Query", raw::query(write), ("EZ", 'I', "42501")),
        ("a read behind it", raw::query("SELECT 1"), ("TDCZ", 'I', "")),
        ("the extended protocol", [p(write), raw::sync()].concat(), ("EZ", 'I', "42501")),
        (
            "a pipeline, as a whole",
            [p("SELECT 1"), p(write), p("SELECT 2"), raw::sync()].concat(),
            ("EZ", 'I', "42501"),
        ),
        ("several in one text", raw::query("SELECT 1; DELETE FROM guarded"), ("EZ", 'I', "42501")),
        ("what a session needs", raw::query("SET work_mem = '1MB'"), ("CZ", 'I', "")),
        // In a transaction.
        ("BEGIN", raw::query("BEGIN"), ("CZ", 'T', "")),
        ("a read", raw::query("SELECT 1"), ("TDCZ", 'T', "")),
        ("a write", raw::query(write), ("EZ", 'E', "42501")),
        ("in the failed transaction", raw::query("SELECT 1"), ("EZ", 'E', "25P02")),
        ("a write in the failed transaction", raw::query(write), ("EZ", 'E', "25P02")),
        ("ROLLBACK", raw::query("ROLLBACK"), ("CZ", 'I', "")),
        ("BEGIN again", [p("BEGIN"), raw::sync()].concat(), ("12CZ", 'T', "")),
        ("a write at once", [p(write), raw::sync()].concat(), ("EZ", 'E', "42501")),
        ("COMMIT", [p("COMMIT"), raw::sync()].concat(), ("12CZ", 'I', "")),
        ("BEGIN in the pipeline", [p("BEGIN"), p("SELECT 1"), raw::sync()].concat(), ("12C12DCZ", 'T', "")),
        (
            "a write behind a read",
            [p("SELECT 1"), p(write), p("SELECT 2"), raw::sync()].concat(),
            ("12DC1EZ", 'E', "42501"),
        ),
        ("ROLLBACK again", raw::query("ROLLBACK"), ("CZ", 'I', "")),
    ] {
        let (kinds, status, codes) = answer(&mut client, &messages).await;
        // Parameters that the server reports are not the subject.
        assert_eq!((kinds.replace('S', "").as_str(), status, codes.as_str()), expected, "{what}");
    }
    // None of it was carried out, in either database; and no rows are gone.
    for database in [DATABASE, SECOND] {
        let reader = connect(&kingpost, OTHER, "", database).await;
        assert_eq!(value(&reader, "SELECT count(*) FROM guarded").await, "9");
    }
    // A dry run counts the statements that it would have refused.
    let console = console(&kingpost).await;
    let [running, passed, refused] = counts(&console, "slow").await;
    assert_eq!((running, passed, refused), (0, 1, 1));
    let shown = kingpost.metrics().await.sum("kingpost_traffic_rule_refused_total", &[("rule", "slow")]);
    assert_eq!(shown as u64, refused);
}

#[tokio::test]
async fn a_rate_holds_over_workers_and_each_user_has_its_own() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let each: Value = vec!["user"].into();
    let kingpost = Kingpost::of(&cluster)
        .set("proxy.workers", 3)
        .set("proxy.routing.read_functions", vec!["bump"])
        .add(
            "proxy.traffic",
            rule("few", [("rate", "1/h".into()), ("burst", 40.into()), ("each", each), ("access", "read".into())]),
        )
        .start()
        .await;
    let mut clients = Vec::new();
    for n in 0..8 {
        clients.push(connect(&kingpost, USER, "", if n % 2 == 0 { DATABASE } else { SECOND }).await);
    }
    let all = clients.iter().map(|client| async move {
        let mut passed = 0;
        for _ in 0..20 {
            match code(client, "SELECT of FROM guarded LIMIT 1").await.as_str() {
                "" => passed += 1,
                other => assert_eq!(other, "53400"),
            }
        }
        passed
    });
    let passed: u64 = futures_util::future::join_all(all).await.iter().sum();
    assert_eq!(passed, 40, "of 160, over three workers and two databases");
    let console = console(&kingpost).await;
    assert_eq!(counts(&console, "few").await, [0, 40, 120]);
    // The other user has a rate of its own.
    let other = connect(&kingpost, OTHER, "", SECOND).await;
    assert_eq!(code(&other, "SELECT of FROM guarded LIMIT 1").await, "");
    // A statement that a replica refuses, and that is then sent to the primary, counts once.
    console.batch_execute("LIMIT few RATE 1/h BURST 1 EACH USER READS").await.unwrap();
    console
        .batch_execute(&format!(
            "LIMIT bumps USER {USER} DATABASE {DATABASE} STATEMENT 'select bump()' RATE 1/h BURST 1"
        ))
        .await
        .unwrap();
    console.batch_execute("LIFT few").await.unwrap();
    let before = kingpost.metrics().await.sum("kingpost_replays_refused_total", &[]);
    assert_eq!(code(&clients[0], "SELECT bump()").await, "");
    assert!(
        kingpost.metrics().await.sum("kingpost_replays_refused_total", &[]) > before,
        "it did go to a replica first"
    );
    assert_eq!(code(&clients[2], "SELECT bump()").await, "53400");
    assert_eq!(counts(&console, "bumps").await, [0, 1, 1]);
    // A reload brings the file's rule back, and an operator's stays.
    kingpost.reload("proxy.slow_statement", "10s");
    cluster
        .wait("the rule of the file", async || {
            let rows = rows(&console, "SHOW TRAFFIC").await;
            rows.iter().any(|row| row["name"] == "few" && row["set_by"] == "file").then_some(())
        })
        .await;
    assert_eq!(code(&clients[0], "SELECT bump()").await, "53400");
}

#[tokio::test]
async fn so_many_run_at_a_time_and_whoever_ends_makes_room() {
    if only_kingpost() {
        return;
    }
    let cluster = cluster().await;
    let _logs = ShowLogs(cluster.dir());
    let two = rule("two", [("concurrency", 2.into()), ("database", DATABASE.into()), ("access", "write".into())]);
    let kingpost = Kingpost::of(&cluster).set("proxy.workers", 2).add("proxy.traffic", two).start().await;
    let console = console(&kingpost).await;
    let admin = cluster.primary().admin().await;
    // They wait for a lock held in the first database; the second is not affected.
    let hold = async || admin.batch_execute("SELECT pg_advisory_lock(7)").await.unwrap();
    hold().await;
    let locks = "SELECT pg_advisory_xact_lock(7)";
    let runs = async |n: u64| {
        cluster.wait(&format!("{n} run"), async || (counts(&console, "two").await[0] == n).then_some(())).await;
    };
    let [mut one, mut two] =
        [Raw::login_as(kingpost.port(), USER, DATABASE).await, Raw::login_as(kingpost.port(), OTHER, DATABASE).await];
    one.send(&raw::query(locks)).await;
    two.send(&raw::query(locks)).await;
    runs(2).await;
    let third = connect(&kingpost, USER, "", DATABASE).await;
    assert_eq!(code(&third, locks).await, "53400");
    assert_eq!(code(&third, "SELECT count(*) FROM guarded").await, "", "reads are not limited");
    assert_eq!(code(&connect(&kingpost, USER, "", SECOND).await, locks).await, "", "nor is the other database");
    // A client whose connection breaks during its statement releases its place. (The end of its stream alone leaves the statement running.)
    one.stream.set_zero_linger().unwrap();
    drop(one);
    runs(1).await;
    // So does one whose server connection is lost.
    admin
        .batch_execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'advisory'")
        .await
        .unwrap();
    assert!(two.until(b'Z').await.iter().any(|message| message.kind == b'E'));
    runs(0).await;
    // In a transaction the place belongs to the statement, not to the transaction.
    admin.batch_execute("SELECT pg_advisory_unlock(7)").await.unwrap();
    let [first, second] = [connect(&kingpost, USER, "", DATABASE).await, connect(&kingpost, OTHER, "", DATABASE).await];
    for client in [&first, &second, &third] {
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute("SELECT pg_advisory_xact_lock_shared(8)").await.unwrap();
    }
    runs(0).await;
    for client in [&first, &second, &third] {
        client.batch_execute("COMMIT").await.unwrap();
    }
    let [running, passed, refused] = counts(&console, "two").await;
    assert_eq!((running, passed, refused), (0, 5, 1));
}
