//! Server connections that the server itself ends: the client gets the server's reason, as on a direct connection; and an error about an unknown
//! outcome only if the outcome is unknown.

use kingpost_tests::raw::{Message, Raw, query};
use kingpost_tests::{DATABASE, Kingpost, SOON, USER, database, within};

use crate::common::{name, only_kingpost, shared};

/// Fields of the last error that are the same in every run, and whether the connection ended after it.
type End = (Option<String>, Option<String>, Option<String>);

fn end(messages: &[Message]) -> End {
    let last = messages.last().unwrap_or_else(|| panic!("closed without a word"));
    (last.field(b'S'), last.field(b'C'), last.field(b'M'))
}

/// Runs the statements, and then waits until the other side closes.
async fn ended(port: u16, user: &str, database: &str, statements: &[&str]) -> End {
    let mut raw = Raw::login_as(port, user, database).await;
    for sql in statements {
        raw.send(&query(sql)).await;
        raw.until(b'Z').await;
    }
    end(&raw.rest().await)
}

#[tokio::test]
async fn a_session_that_the_server_ends_hears_the_servers_reason() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let primary = shared.cluster.primary();
    let hasty = name("hasty");
    primary
        .execute(&format!(
            "CREATE ROLE {hasty} LOGIN; ALTER ROLE {hasty} SET idle_in_transaction_session_timeout = 200"
        ))
        .await;
    shared.cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(&shared.cluster)
        .set("proxy.pool.size", 2)
        .add("proxy.databases", database("sessions", "pool_mode", "session"))
        .add("proxy.databases", database(DATABASE, "pool_mode", "transaction"))
        .start()
        .await;
    let idle = "SET idle_in_transaction_session_timeout = 200";
    let mut cases: Vec<(&str, &str, Vec<&str>, &str)> = vec![
        (USER, DATABASE, vec!["BEGIN", idle, "SELECT 1"], "25P03"),
        (USER, DATABASE, vec!["BEGIN", idle, "CREATE TEMP TABLE t (n int)", "INSERT INTO t VALUES (1)"], "25P03"),
        (USER, "sessions", vec!["BEGIN", idle, "SELECT 1"], "25P03"),
        (&hasty, DATABASE, vec!["BEGIN", "SELECT 1"], "25P03"),
        // The limit applies to a failed transaction, too.
        (&hasty, DATABASE, vec!["BEGIN", "SELECT 1/0"], "25P03"),
        (&hasty, "sessions", vec!["BEGIN READ ONLY", "SELECT 1"], "25P03"),
        (USER, "sessions", vec!["SET idle_session_timeout = 200"], "57P05"),
    ];
    if primary.query("SELECT current_setting('server_version_num')::int >= 170000").await == "t" {
        cases.push((USER, DATABASE, vec!["BEGIN", "SET LOCAL transaction_timeout = 200", "SELECT 1"], "25P04"));
        cases.push((USER, "sessions", vec!["BEGIN", "SET LOCAL transaction_timeout = 200", "SELECT 1"], "25P04"));
    }
    for (user, database, statements, code) in cases {
        let direct = ended(primary.port(), user, DATABASE, &statements).await;
        assert_eq!(direct.1.as_deref(), Some(code), "{statements:?}");
        let proxied = ended(kingpost.port(), user, database, &statements).await;
        assert_eq!(proxied, direct, "{user} in {database}: {statements:?}");
    }
    // An administrator's termination of one backend is no fault of the session: it continues on another connection, and its transaction can be
    // retried.
    let mut raw = Raw::login(kingpost.port()).await;
    raw.send(&query("BEGIN; SELECT pg_backend_pid()")).await;
    let row = raw.until(b'Z').await.into_iter().find(|message| message.kind == b'D').expect("a row");
    let pid = String::from_utf8_lossy(&row.body[6..]).into_owned();
    primary.execute(&format!("SELECT pg_terminate_backend({pid})")).await;
    primary.wait_value(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"), "0").await;
    raw.send(&query("SELECT 1")).await;
    let said = raw.until(b'Z').await;
    assert_eq!(said[0].field(b'C').as_deref(), Some("40001"), "{said:?}");
    raw.send(&[query("ROLLBACK"), query("SELECT 2")].concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await + &raw.kinds_until(b'Z').await, "CZTDCZ");
}

/// The proxy is suspended while the server closes an idle connection and a client sends a statement: the statement then goes to a closed connection.
#[tokio::test]
async fn a_statement_that_the_server_never_read_is_in_no_doubt() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let primary = shared.cluster.primary();
    let (idler, table) = (name("idler"), name("unread"));
    primary.execute(&format!("CREATE ROLE {idler} LOGIN; ALTER ROLE {idler} SET idle_session_timeout = 700")).await;
    primary.execute(&format!("CREATE TABLE {table} (n int); GRANT ALL ON {table} TO {idler}")).await;
    shared.cluster.wait_caught_up().await;
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.workers", 1).set("proxy.pool.size", 1).start().await;
    let backends = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{idler}'");
    let (mut told, mut rows) = (0, 0);
    for turn in 0..3 {
        let mut raw = Raw::login_as(kingpost.port(), &idler, DATABASE).await;
        raw.send(&query(&format!("INSERT INTO {table} VALUES (0)"))).await;
        assert_eq!(raw.kinds_until(b'Z').await, "CZ");
        rows += 1;
        kingpost.process().signal(libc::SIGSTOP);
        raw.send(&query(&format!("INSERT INTO {table} VALUES (1)"))).await;
        let gone = primary.wait_value(&backends, "0");
        within("the server closes the idle connection", SOON, shared.cluster.dir(), gone).await;
        kingpost.process().signal(libc::SIGCONT);
        let said = raw.until(b'Z').await;
        if said[0].kind == b'C' {
            rows += 1;
        } else {
            assert_eq!(said[0].field(b'C').as_deref(), Some("40001"), "turn {turn}: {said:?}");
            told += 1;
        }
        // In both cases the session continues, and a retry succeeds.
        raw.send(&query(&format!("INSERT INTO {table} VALUES (2)"))).await;
        assert_eq!(raw.kinds_until(b'Z').await, "CZ");
        rows += 1;
    }
    let count = primary.query(&format!("SELECT count(*) FROM {table}")).await;
    assert_eq!(count, rows.to_string(), "{told} heard that nothing was changed");
}
