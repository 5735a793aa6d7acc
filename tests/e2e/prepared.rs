//! Prepared statements and portals by the protocol, in transaction mode.

use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use kingpost_tests::raw::{Message, Raw, bind, close, describe, execute, flush, parse, query, sync};
use kingpost_tests::{Cluster, Kingpost, ShowLogs, Subject, pg_bin, subject, within};

use crate::common::{name, only_kingpost, shared, value};

/// Returns the text of the first column of each row.
fn column(messages: &[Message]) -> Vec<String> {
    let rows = messages.iter().filter(|message| message.kind == b'D');
    rows.map(|row| String::from_utf8_lossy(&row.body[6..]).into_owned()).collect()
}

fn code(messages: &[Message]) -> Option<String> {
    messages.iter().find(|message| message.kind == b'E').and_then(|message| message.field(b'C'))
}

async fn run(raw: &mut Raw, bytes: &[Vec<u8>]) -> Vec<Message> {
    raw.send(&bytes.concat()).await;
    raw.until(b'Z').await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_with_statements_on_few_servers() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 3).start().await;
    let work = (0..30i32).map(async |n| {
        let client = kingpost.connect().await;
        let add = client.prepare(&format!("SELECT $1::int + {n}")).await.unwrap();
        let join = client.prepare("SELECT $1::text || $2::text").await.unwrap();
        for round in 0..30i32 {
            assert_eq!(client.query_one(&add, &[&round]).await.unwrap().get::<_, i32>(0), round + n);
            let (a, b) = (n.to_string(), round.to_string());
            assert_eq!(client.query_one(&join, &[&a, &b]).await.unwrap().get::<_, String>(0), format!("{n}{round}"));
        }
    });
    within("30 clients", Duration::from_secs(60), shared.cluster.dir(), join_all(work)).await;
}

#[tokio::test]
async fn one_name_in_two_clients_is_two_statements() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let (mut one, mut two) = (Raw::login(kingpost.port()).await, Raw::login(kingpost.port()).await);
    assert_eq!(code(&run(&mut one, &[parse("s", "SELECT 'one' || $1::text"), sync()]).await), None);
    assert_eq!(code(&run(&mut two, &[parse("s", "SELECT 'two' || $1::text"), sync()]).await), None);
    for round in 0..5 {
        let round = round.to_string();
        let ask = [bind("", "s", &[&round]), execute("", 0), sync()];
        assert_eq!(column(&run(&mut one, &ask).await), [format!("one{round}")]);
        assert_eq!(column(&run(&mut two, &ask).await), [format!("two{round}")]);
    }
}

#[tokio::test]
async fn a_statement_lives_until_it_is_closed() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 2).start().await;
    let mut raw = Raw::login(kingpost.port()).await;
    let ask = [bind("", "s", &[]), execute("", 0), sync()];
    assert_eq!(code(&run(&mut raw, &ask).await).as_deref(), Some("26000"), "bind of what is not there");
    assert_eq!(code(&run(&mut raw, &[parse("s", "SELECT 1"), sync()]).await), None);
    assert_eq!(code(&run(&mut raw, &[parse("s", "SELECT 2"), sync()]).await).as_deref(), Some("42P05"), "a second s");
    assert_eq!(column(&run(&mut raw, &ask).await), ["1"]);
    assert_eq!(code(&run(&mut raw, &[close(b'S', "s"), sync()]).await), None);
    assert_eq!(code(&run(&mut raw, &ask).await).as_deref(), Some("26000"), "bind of what is closed");
    assert_eq!(code(&run(&mut raw, &[close(b'S', "never"), sync()]).await), None, "closing nothing is no error");
    // Close, a new text under the old name, and its use, in one go.
    let again =
        [parse("s", "SELECT 3"), close(b'S', "s"), parse("s", "SELECT 4"), bind("", "s", &[]), execute("", 0), sync()];
    assert_eq!(column(&run(&mut raw, &again).await), ["4"]);
    // By SQL.
    for (sql, name) in [("DEALLOCATE s", "s"), ("DEALLOCATE ALL", "t"), ("DISCARD ALL", "u")] {
        run(&mut raw, &[close(b'S', name), parse(name, "SELECT 5"), sync()]).await;
        assert_eq!(column(&run(&mut raw, &[bind("", name, &[]), execute("", 0), sync()]).await), ["5"]);
        assert_eq!(code(&run(&mut raw, &[query(sql)]).await), None, "{sql}");
        let messages = run(&mut raw, &[bind("", name, &[]), execute("", 0), sync()]).await;
        assert_eq!(code(&messages).as_deref(), Some("26000"), "after {sql}");
    }
    // A Parse that fails leaves no statement.
    assert_eq!(code(&run(&mut raw, &[parse("bad", "SELECT * FROM nowhere"), sync()]).await).as_deref(), Some("42P01"));
    let messages = run(&mut raw, &[bind("", "bad", &[]), execute("", 0), sync()]).await;
    assert_eq!(code(&messages).as_deref(), Some("26000"));
}

/// The Parse is refused even for a known statement: drivers take ParseComplete to mean that the statement exists from now on.
#[tokio::test]
async fn in_a_failed_transaction_a_parse_is_refused() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    for mode in ["transaction", "session"] {
        let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.mode", mode).start().await;
        let mut other = Raw::login(kingpost.port()).await;
        assert_eq!(code(&run(&mut other, &[parse("known", "SELECT 40 + 2"), sync()]).await), None);
        let mut raw = Raw::login(kingpost.port()).await;
        let ask = [bind("", "s", &[]), execute("", 0), sync()];
        for text in ["SELECT 40 + 2", "SELECT 40 + 3"] {
            run(&mut raw, &[query("BEGIN")]).await;
            assert_eq!(code(&run(&mut raw, &[query("SELECT 1 / 0")]).await).as_deref(), Some("22012"));
            let refused = run(&mut raw, &[parse("s", text), sync()]).await;
            assert_eq!(
                (code(&refused).as_deref(), &*refused.last().unwrap().body),
                (Some("25P02"), &b"E"[..]),
                "{text}"
            );
            // The statement that ends the transaction is accepted.
            let end = [parse("end", "ROLLBACK"), bind("", "end", &[]), execute("", 0), close(b'S', "end"), sync()];
            let ended = run(&mut raw, &end).await;
            assert_eq!((code(&ended), &*ended.last().unwrap().body), (None, &b"I"[..]));
            assert_eq!(code(&run(&mut raw, &ask).await).as_deref(), Some("26000"), "{mode}: {text} was never prepared");
        }
        // The same before the failure is known.
        raw.send(
            &[query("BEGIN"), query("SELECT 1 / 0"), parse("s", "SELECT 40 + 2"), sync(), query("ROLLBACK")].concat(),
        )
        .await;
        let mut codes = Vec::new();
        for _ in 0..4 {
            codes.push(code(&raw.until(b'Z').await));
        }
        assert_eq!(codes, [None, Some("22012".into()), Some("25P02".into()), None], "{mode}");
        assert_eq!(code(&run(&mut raw, &ask).await).as_deref(), Some("26000"), "{mode}");
        // Without a failure.
        raw.send(&[query("BEGIN"), query("SELECT 1"), parse("s", "SELECT 40 + 2"), sync(), query("COMMIT")].concat())
            .await;
        for _ in 0..4 {
            assert_eq!(code(&raw.until(b'Z').await), None, "{mode}");
        }
        assert_eq!(column(&run(&mut raw, &ask).await), ["42"], "{mode}");
    }
}

/// A use that libpq's manual describes.
#[tokio::test]
async fn what_was_prepared_by_sql_is_used_by_the_protocol() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    for mode in ["transaction", "session"] {
        let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.mode", mode).start().await;
        let mut raw = Raw::login(kingpost.port()).await;
        assert_eq!(code(&run(&mut raw, &[query("PREPARE adds(int) AS SELECT $1 + 1")]).await), None);
        for round in 0..3 {
            let round = round.to_string();
            let added = run(&mut raw, &[bind("", "adds", &[&round]), execute("", 0), sync()]).await;
            assert_eq!(column(&added), [(round.parse::<i32>().unwrap() + 1).to_string()], "{mode}");
        }
        let described = run(&mut raw, &[describe(b'S', "adds"), sync()]).await;
        assert_eq!(described.iter().map(|message| message.kind).collect::<Vec<_>>(), b"tTZ", "{mode}");
        // Names of the other kind are not affected.
        assert_eq!(code(&run(&mut raw, &[parse("mine", "SELECT 5"), sync()]).await), None);
        assert_eq!(column(&run(&mut raw, &[bind("", "mine", &[]), execute("", 0), sync()]).await), ["5"]);
        assert_eq!(code(&run(&mut raw, &[close(b'S', "adds"), sync()]).await), None);
        assert_eq!(code(&run(&mut raw, &[query("EXECUTE adds(1)")]).await).as_deref(), Some("26000"), "{mode}");
        let gone = run(&mut raw, &[bind("", "adds", &["1"]), execute("", 0), sync()]).await;
        assert_eq!(code(&gone).as_deref(), Some("26000"), "{mode}");
    }
}

/// `query!` asks for the plan of a statement that sqlx has prepared by the protocol, to see which columns may be null. The messages are those of sqlx 0.7
/// (a Query) and 0.8 (a statement of its own).
#[tokio::test]
async fn what_sqlx_asks_when_it_compiles() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let (mut direct, mut one, mut two) = (
        Raw::login(shared.cluster.primary().port()).await,
        Raw::login(kingpost.port()).await,
        Raw::login(kingpost.port()).await,
    );
    let explain = |name: &str| format!("EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE {name}(NULL, NULL)");
    let mut plans = Vec::new();
    for raw in [&mut direct, &mut one] {
        let text = "SELECT oid, relname FROM pg_class WHERE oid = $1 AND relname = $2";
        let prepared = run(raw, &[parse("sqlx_s_1", text), describe(b'S', "sqlx_s_1"), sync()]).await;
        assert_eq!(code(&prepared), None);
        run(&mut two, &[query("SELECT 1")]).await;
        let simple = run(raw, &[query(&explain("sqlx_s_1"))]).await;
        assert_eq!(code(&simple), None);
        run(&mut two, &[query("SELECT 1")]).await;
        let prepares = [parse("sqlx_s_2", &explain("sqlx_s_1")), describe(b'S', "sqlx_s_2"), sync()];
        assert_eq!(code(&run(raw, &prepares).await), None);
        run(&mut two, &[query("SELECT 1")]).await;
        let extended = run(raw, &[bind("", "sqlx_s_2", &[]), execute("", 0), close(b'P', ""), sync()]).await;
        assert_eq!(column(&simple), column(&extended));
        plans.push(column(&simple));
    }
    assert!(plans[0][0].contains("\"Output\"") && plans[0] == plans[1], "{plans:?}");
    // Nobody else has it, and the server connection has lost it with its client.
    let other = run(&mut two, &[query(&explain("sqlx_s_1"))]).await;
    assert_eq!(code(&other).as_deref(), Some("26000"));
    let left = run(&mut two, &[query("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'sqlx%'")]).await;
    assert_eq!(column(&left), ["0"]);
}

#[tokio::test]
async fn a_statement_that_is_too_long_to_be_kept_is_an_error_that_the_client_survives() {
    let (shared, _logs) = shared().await;
    if subject() != Subject::Kingpost {
        return;
    }
    let long = format!("SELECT length('{}')", "y".repeat(2 << 20));
    for mode in ["transaction", "session"] {
        let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.mode", mode).start().await;
        let mut raw = Raw::login(kingpost.port()).await;
        assert_eq!(column(&run(&mut raw, &[query("SELECT 1")]).await), ["1"]);
        let skipped = [parse("long", &long), bind("", "long", &[]), execute("", 0), sync()];
        let refused = run(&mut raw, &skipped).await;
        assert_eq!((code(&refused).as_deref(), &*refused.last().unwrap().body), (Some("54000"), &b"I"[..]), "{mode}");
        assert_eq!(column(&run(&mut raw, &[query("SELECT 2")]).await), ["2"], "{mode}");
    }
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_questions() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let mut raw = Raw::login(shared.kingpost.port()).await;
    raw.send(&[parse("d", "SELECT $1::int AS a, now()"), describe(b'S', "d"), sync()].concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await, "1tTZ");
    // Again, when the proxy knows the text.
    raw.send(&[parse("e", "SELECT $1::int AS a, now()"), describe(b'S', "e"), close(b'S', "e"), sync()].concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await, "1tT3Z");
    let all = [
        bind("p", "d", &["1"]),
        describe(b'P', "p"),
        execute("p", 0),
        close(b'P', "p"),
        parse("", "SELECT 2 WHERE false"),
        bind("", "", &[]),
        execute("", 0),
        sync(),
    ];
    raw.send(&all.concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await, "2TDC312CZ");
    // No rows to describe; an empty statement.
    raw.send(&[parse("", "BEGIN"), describe(b'S', ""), bind("", "", &[]), execute("", 0), sync()].concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await, "1tn2CZ");
    raw.send(&[parse("", ""), bind("", "", &[]), execute("", 0), sync()].concat()).await;
    assert_eq!(raw.kinds_until(b'Z').await, "12IZ");
    raw.send(&query("ROLLBACK")).await;
    raw.until(b'Z').await;
    // After an error everything up to Sync is skipped, then the next unit counts again.
    let skipped = [parse("", "SELECT 1/0"), bind("", "", &[]), execute("", 0), parse("x", "SELECT 1"), sync()];
    raw.send(&[skipped.concat(), parse("", "SELECT 7"), bind("", "", &[]), execute("", 0), sync()].concat()).await;
    let first = raw.until(b'Z').await;
    assert_eq!(code(&first).as_deref(), Some("22012"));
    assert_eq!(first.last().unwrap().body, b"I");
    assert_eq!(column(&raw.until(b'Z').await), ["7"]);
    let messages = run(&mut raw, &[bind("", "x", &[]), execute("", 0), sync()]).await;
    assert_eq!(code(&messages).as_deref(), Some("26000"), "a Parse that was skipped left a statement");
}

#[tokio::test]
async fn many_units_in_one_packet() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let mut raw = Raw::login(shared.kingpost.port()).await;
    let unit = |n: usize| match n % 3 {
        0 => query(&format!("SELECT {n}")),
        1 => [parse("", &format!("SELECT {n}")), bind("", "", &[]), execute("", 0), sync()].concat(),
        _ => [
            parse(&format!("u{n}"), "SELECT $1::text"),
            bind("", &format!("u{n}"), &[&n.to_string()]),
            execute("", 0),
            sync(),
        ]
        .concat(),
    };
    raw.send(&(0..300).map(unit).collect::<Vec<_>>().concat()).await;
    for n in 0..300 {
        assert_eq!(column(&raw.until(b'Z').await), [n.to_string()]);
    }
}

#[tokio::test]
async fn portals_and_flush() {
    let (shared, _logs) = shared().await;
    let mut raw = Raw::login(shared.kingpost.port()).await;
    // Each answer must come on Flush alone: no Sync is sent before it is read.
    raw.send(&[parse("", "SELECT generate_series(1, 5)"), flush()].concat()).await;
    assert_eq!(raw.next().await.unwrap().kind, b'1');
    raw.send(&[bind("", "", &[]), describe(b'P', ""), flush()].concat()).await;
    assert_eq!(raw.kinds_until(b'T').await, "2T");
    raw.send(&[execute("", 2), flush()].concat()).await;
    assert_eq!(column(&raw.until(b's').await), ["1", "2"]);
    raw.send(&[execute("", 2), flush()].concat()).await;
    assert_eq!(column(&raw.until(b's').await), ["3", "4"]);
    raw.send(&[execute("", 2), flush()].concat()).await;
    assert_eq!(column(&raw.until(b'C').await), ["5"]);
    raw.send(&sync()).await;
    assert_eq!(raw.next().await.unwrap(), Message { kind: b'Z', body: b"I".to_vec() });
    // An error answers a Flush too, and the Sync after it ends the unit.
    raw.send(&[parse("", "SELECT * FROM nowhere"), flush()].concat()).await;
    assert_eq!(raw.next().await.unwrap().kind, b'E');
    raw.send(&sync()).await;
    assert_eq!(raw.next().await.unwrap().kind, b'Z');
    raw.send(&query("SELECT 7")).await;
    assert_eq!(column(&raw.until(b'Z').await), ["7"]);
}

#[tokio::test]
async fn a_table_that_changes_under_a_statement() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let client = shared.kingpost.connect().await;
    let table = name("changes");
    client.batch_execute(&format!("CREATE TABLE {table} AS SELECT 1 AS a")).await.unwrap();
    let count = client.prepare(&format!("SELECT count(*) FROM {table}")).await.unwrap();
    for n in 0..5 {
        client
            .batch_execute(&format!("ALTER TABLE {table} ADD COLUMN c{n} int; INSERT INTO {table} (a) VALUES (2)"))
            .await
            .unwrap();
        assert_eq!(client.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), n + 2);
    }
}

/// As pgjdbc does: it assumes the described columns of a portal for each later portal of the same statement.
#[tokio::test]
async fn columns_that_were_asked_for_by_a_portal_are_not_changed_in_silence() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kinds = |messages: &[Message]| messages.iter().map(|of| char::from(of.kind)).collect::<String>();
    // With one server connection, on which it was prepared before the change, and with others, on which it is prepared afterwards.
    for size in [1, 3] {
        let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", size).set("proxy.routing.route", "primary");
        let kingpost = kingpost.start().await;
        let (mut raw, mut other) = (Raw::login(kingpost.port()).await, Raw::login(kingpost.port()).await);
        let table = name("portal");
        run(&mut other, &[query(&format!("CREATE TABLE {table} (a int); INSERT INTO {table} VALUES (1)"))]).await;
        let text = format!("SELECT * FROM {table}");
        let first = [parse("s", &text), bind("", "s", &[]), describe(b'P', ""), execute("", 0), sync()];
        assert_eq!(kinds(&run(&mut raw, &first).await), "12TDCZ");
        let again = [bind("", "s", &[]), execute("", 0), sync()];
        assert_eq!(column(&run(&mut raw, &again).await), ["1"]);
        run(&mut other, &[query(&format!("ALTER TABLE {table} ADD b text"))]).await;
        // Other clients hold the existing connections.
        let mut crowd = Vec::new();
        for _ in 1..size {
            let mut one = Raw::login(kingpost.port()).await;
            run(&mut one, &[query(&format!("BEGIN; LOCK TABLE {table} IN ACCESS SHARE MODE"))]).await;
            crowd.push(one);
        }
        let messages = run(&mut raw, &again).await;
        assert_eq!(code(&messages).as_deref(), Some("0A000"), "{size}: {messages:?}");
        // It is parsed again, as a driver does after this error.
        assert_eq!(code(&run(&mut raw, &[close(b'S', "s"), sync()]).await), None);
        assert_eq!(kinds(&run(&mut raw, &first).await), "12TDCZ");
        assert_eq!(kinds(&run(&mut raw, &again).await), "2DCZ");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pgbench_prepared_does_not_deadlock() {
    if subject() == Subject::PgBouncer {
        return;
    }
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("proxy.pool.size", 16).start().await;
    let pgbench = |port: u16, arguments: &[&str]| {
        let mut command = tokio::process::Command::new(pg_bin().join("pgbench"));
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "alice"]).args(arguments).arg("app");
        command.kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.output()
    };
    // Through the proxy as well: it drops and makes tables, copies, vacuums, adds keys.
    let made =
        within("pgbench -i", Duration::from_secs(60), cluster.dir(), pgbench(kingpost.port(), &["-i", "-s", "2"]))
            .await
            .unwrap();
    assert!(made.status.success(), "pgbench -i: {}", String::from_utf8_lossy(&made.stderr));
    for mode in ["prepared", "extended", "simple"] {
        let arguments = ["-M", mode, "-c", "40", "-j", "2", "-t", "25", "-n"];
        let run =
            within(mode, Duration::from_secs(90), cluster.dir(), pgbench(kingpost.port(), &arguments)).await.unwrap();
        let out = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(run.status.success(), "pgbench -M {mode}: {}\n{out}", String::from_utf8_lossy(&run.stderr));
        assert!(out.contains("processed: 1000/1000"), "pgbench -M {mode}:\n{out}");
    }
    let client = kingpost.connect().await;
    let sums = "SELECT count(*), sum(delta) = (SELECT sum(abalance) FROM pgbench_accounts) FROM pgbench_history";
    let row = crate::common::simple(&client, &format!("/* kingpost.route=primary */ {sums}")).await.concat();
    assert_eq!(row, ["3000", "t"]);
    assert!(value(&client, "SELECT 7").await == "7");
    if subject() == Subject::Kingpost {
        let held = cluster.primary().pool_connections().await;
        assert!(held <= 16, "{held} connections for a pool of 16");
    }
}

/// The answers to a statement's Parse and Describe are known from other clients: a new client gets them while every connection is taken.
#[tokio::test]
async fn a_known_statement_is_prepared_and_described_without_a_server() {
    let (shared, _logs) = shared().await;
    if subject() != Subject::Kingpost {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.size", 1).start().await;
    let table = name("known");
    let holder = kingpost.connect().await;
    holder.batch_execute(&format!("CREATE TABLE {table} (n int, t text)")).await.unwrap();
    shared.cluster.wait_caught_up().await;
    let text = format!("SELECT n, t FROM {table} WHERE n = $1 FOR UPDATE");
    let ask = |name: &str| [parse(name, &text), describe(b'S', name), sync()].concat();
    let mut first = Raw::login(kingpost.port()).await;
    first.send(&ask("first")).await;
    let told = first.until(b'Z').await;
    assert_eq!(told.iter().map(|m| char::from(m.kind)).collect::<String>(), "1tTZ");
    // A worker learns the parameters for clients from a server.
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(Raw::login(kingpost.port()).await);
    }
    holder.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(1)").await.unwrap();
    for (n, mut raw) in others.into_iter().enumerate() {
        let name = format!("mine {n}");
        raw.send(&ask(&name)).await;
        let heard = raw.until(b'Z').await;
        assert_eq!(heard, told, "another answer than the server's");
        // Again, alone; and ended by a Flush, as some drivers do.
        raw.send(&[describe(b'S', &name), flush()].concat()).await;
        assert_eq!(raw.until(b'T').await, told[1..3]);
        raw.send(&sync()).await;
        raw.until(b'Z').await;
    }
    assert!(kingpost.metrics().await.sum("kingpost_describes_local_total", &[]) >= 6.0);
    holder.batch_execute("COMMIT").await.unwrap();
    // A change of the table takes effect at once: no client gets columns that are gone.
    holder.batch_execute(&format!("ALTER TABLE {table} ALTER t TYPE int USING 1, ADD u text")).await.unwrap();
    let changed = run(&mut Raw::login(kingpost.port()).await, &[ask("x")]).await;
    assert_eq!(changed.iter().map(|m| char::from(m.kind)).collect::<String>(), "1tTZ");
    assert_ne!(changed[2], told[2]);
}

/// A repeated unnamed statement is parsed once by a server, and clients cannot tell.
#[tokio::test]
async fn unnamed_statements_are_shared_where_nobody_can_tell() {
    let (shared, _logs) = shared().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let kingpost =
        Kingpost::of(&shared.cluster).set("proxy.pool.size", 2).set("proxy.pool.unnamed", "shared").start().await;
    let table = name("unnamed");
    let admin = kingpost.connect().await;
    admin.batch_execute(&format!("CREATE TABLE {table} (n int PRIMARY KEY, t text)")).await.unwrap();
    let mut clients = [Raw::login(kingpost.port()).await, Raw::login(kingpost.port()).await];
    let one = |text: &str, values: &[&str]| {
        [parse("", text), bind("", "", values), describe(b'P', ""), execute("", 0), sync()].concat()
    };
    let kinds = |messages: &[Message]| messages.iter().map(|m| char::from(m.kind)).collect::<String>();
    for n in 0..10 {
        for (i, raw) in clients.iter_mut().enumerate() {
            let key = (2 * n + i).to_string();
            let heard = run(raw, &[one(&format!("INSERT INTO {table} VALUES ($1, $2)"), &[&key, "x"])]).await;
            assert_eq!(kinds(&heard), "12nCZ");
            let heard = run(raw, &[one(&format!("SELECT t FROM {table} WHERE n = $1"), &[&key])]).await;
            assert_eq!((&*kinds(&heard), column(&heard)), ("12TDCZ", vec!["x".into()]));
            // Types are part of the statement; failures are the same, too.
            let heard = run(raw, &[one("SELECT $1::int + 1", &[&key])]).await;
            assert_eq!(column(&heard), [(2 * n + i + 1).to_string()]);
            let heard = run(raw, &[one("SELECT 10 / $1::int", &["0"])]).await;
            // A server may find that when it plans the statement, at Bind, or when it runs it.
            assert!(["1EZ", "12TEZ"].contains(&&*kinds(&heard)), "{}", kinds(&heard));
            assert_eq!(code(&heard).as_deref(), Some("22012"));
            let heard = run(raw, &[one("SELECT nothing", &[])]).await;
            assert_eq!((&*kinds(&heard), code(&heard).as_deref()), ("EZ", Some("42703")));
        }
    }
    if subject() == Subject::Kingpost {
        let shared = kingpost.metrics().await.sum("kingpost_unnamed_shared_total", &[]);
        assert!(shared >= 40.0, "only {shared} of them were shared");
    }
    // In a transaction, with columns that change in between: a new Parse has the new ones.
    let heard = run(&mut clients[0], &[query("BEGIN")]).await;
    assert_eq!(kinds(&heard), "CZ");
    let all = one(&format!("SELECT * FROM {table} WHERE n = $1"), &["1"]);
    for _ in 0..4 {
        assert_eq!(kinds(&run(&mut clients[0], std::slice::from_ref(&all)).await), "12TDCZ");
    }
    run(&mut clients[0], &[query("COMMIT")]).await;
    for n in 0..4 {
        for raw in &mut clients {
            for _ in 0..3 {
                let heard = run(raw, std::slice::from_ref(&all)).await;
                assert_eq!(kinds(&heard), "12TDCZ", "{:?}", code(&heard));
                assert_eq!(heard[2].body[..2], [0, 2 + n], "columns");
            }
        }
        admin.batch_execute(&format!("ALTER TABLE {table} ADD c{n} int")).await.unwrap();
        shared.cluster.wait_caught_up().await;
        let heard = run(&mut clients[0], &[query("BEGIN")]).await;
        assert_eq!(kinds(&heard), "CZ");
        assert_eq!(kinds(&run(&mut clients[0], std::slice::from_ref(&all)).await), "12TDCZ");
        run(&mut clients[0], &[query("COMMIT")]).await;
    }
    // The statement outlives its unit, until a simple query or another takes its place.
    let heard = run(&mut clients[0], &[parse("", "SELECT $1::int + 1"), sync()]).await;
    assert_eq!(kinds(&heard), "1Z");
    for key in ["4", "5"] {
        let heard = run(&mut clients[0], &[bind("", "", &[key]), execute("", 0), sync()]).await;
        assert_eq!(column(&heard), [(key.parse::<i32>().unwrap() + 1).to_string()]);
    }
    run(&mut clients[0], &[query("SELECT 1")]).await;
    let heard = run(&mut clients[0], &[bind("", "", &["4"]), execute("", 0), sync()]).await;
    assert_eq!(code(&heard).as_deref(), Some("26000"));
}

/// Columns are added and dropped while all clients read all of them: unnamed statements never fail, prepared ones only with the error that their
/// drivers handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alter_table_under_load() {
    let (shared, _logs) = shared().await;
    if subject() != Subject::Kingpost {
        return;
    }
    let kingpost =
        Kingpost::of(&shared.cluster).set("proxy.pool.size", 3).set("proxy.pool.unnamed", "shared").start().await;
    let table = name("altered");
    let admin = kingpost.connect().await;
    admin.batch_execute(&format!("CREATE TABLE {table} AS SELECT 7 AS n")).await.unwrap();
    shared.cluster.wait_caught_up().await;
    let text = format!("SELECT * FROM {table}");
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
    let unnamed = (0..6).map(async |_| {
        let mut raw = Raw::login(kingpost.port()).await;
        let ask = [parse("", &text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()].concat();
        let mut turns = 0;
        while !is_done() || turns < 10 {
            turns += 1;
            let heard = run(&mut raw, std::slice::from_ref(&ask)).await;
            assert_eq!(code(&heard), None, "{:?}", heard.iter().find(|m| m.kind == b'E').and_then(|m| m.field(b'M')));
            let of = |kind| heard.iter().find(|m| m.kind == kind).map(|m| m.body[..2].to_vec());
            assert_eq!(of(b'T'), of(b'D'), "described and given columns");
        }
    });
    let named = (0..4).map(async |n| {
        let mut raw = Raw::login(kingpost.port()).await;
        let mut turns = 0;
        while !is_done() || turns < 10 {
            turns += 1;
            let name = format!("p{n}_{turns}");
            let heard = run(&mut raw, &[parse(&name, &text), describe(b'S', &name), sync()]).await;
            assert_eq!(code(&heard), None);
            let told = heard.iter().find(|m| m.kind == b'T').map(|m| m.body[..2].to_vec());
            for _ in 0..3 {
                let heard = run(&mut raw, &[bind("", &name, &[]), execute("", 0), sync()]).await;
                match code(&heard).as_deref() {
                    None => {
                        let row = heard.iter().find(|m| m.kind == b'D').map(|m| m.body[..2].to_vec());
                        assert_eq!(told, row, "told and given columns");
                    }
                    Some("0A000") => break,
                    other => panic!("{other:?}"),
                }
            }
            run(&mut raw, &[close(b'S', &name), sync()]).await;
        }
    });
    let alter = async {
        for n in 0..12 {
            admin.batch_execute(&format!("ALTER TABLE {table} ADD c{n} int")).await.unwrap();
            for _ in 0..20 {
                value(&admin, "SELECT 1").await;
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    let all = async { futures_util::join!(join_all(unnamed), join_all(named), alter) };
    within("altering under load", Duration::from_secs(60), shared.cluster.dir(), all).await;
}

#[tokio::test]
async fn a_lower_limit_of_statements_is_kept_with_the_next_ones() {
    if only_kingpost() {
        return;
    }
    let (shared, _logs) = shared().await;
    let kingpost =
        Kingpost::of(&shared.cluster).set("proxy.pool.mode", "session").set("proxy.pool.lanes", "off").start().await;
    let console = crate::console::console(&kingpost).await;
    // Two clients, each with a server connection of its own, and statements of its own: one that is known is prepared without a server.
    let (one, two) = (kingpost.connect().await, kingpost.connect().await);
    let mut kept = Vec::new();
    let mut count = async |client: &tokio_postgres::Client, texts: std::ops::Range<i32>| {
        for n in texts {
            kept.push(client.prepare(&format!("SELECT {n}::int4 AS n{n}")).await.unwrap());
        }
        value(client, "SELECT count(*) FROM pg_prepared_statements").await
    };
    assert_eq!((count(&one, 0..40).await, count(&two, 200..240).await), ("40".into(), "40".into()));
    console.simple_query("SET prepared_per_server = 5").await.expect("SET");
    for n in 100..104 {
        count(&one, n..n + 1).await;
    }
    assert_eq!(count(&one, 0..0).await, "5");
    assert_eq!(count(&two, 0..0).await, "40", "a connection without a new statement");
    // A closed statement still exists for its client.
    let values = async |client: &tokio_postgres::Client, from: usize| {
        let mut values = Vec::new();
        for statement in &kept[from..from + 40] {
            values.push(client.query_one(statement, &[]).await.unwrap().get::<_, i32>(0));
        }
        values
    };
    assert_eq!(
        (values(&one, 0).await, values(&two, 40).await),
        ((0..40).collect::<Vec<_>>(), (200..240).collect::<Vec<_>>())
    );
    assert_eq!(value(&two, "SELECT count(*) FROM pg_prepared_statements").await, "40");
}

/// Named statements of one session are limited by their bytes; the error names the setting.
#[tokio::test]
async fn a_session_may_have_as_many_statements_as_fit() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let many = |from: usize, to: usize| -> Vec<u8> {
        let mut bytes: Vec<u8> = (from..to).flat_map(|n| parse(&format!("s{n}"), "SELECT 1")).collect();
        bytes.extend(sync());
        bytes
    };
    for port in [shared.cluster.primary().port(), shared.kingpost.port()] {
        let mut raw = Raw::login(port).await;
        for part in 0..11 {
            raw.send(&many(part * 1_000, (part + 1) * 1_000)).await;
            let kinds = raw.kinds_until(b'Z').await;
            assert_eq!((kinds.len(), kinds.trim_start_matches('1')), (1_001, "Z"));
        }
        raw.send(&[bind("", "s10999", &[]), execute("", 0), sync()].concat()).await;
        assert_eq!(raw.kinds_until(b'Z').await, "2DCZ");
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.pool.prepared_bytes_per_client", 8 << 20).start().await;
    let mut raw = Raw::login(kingpost.port()).await;
    raw.send(&many(0, 20_000)).await;
    let last = raw.rest().await.pop().expect("a word");
    assert_eq!(last.field(b'C').as_deref(), Some("53400"), "{last:?}");
    assert!(last.field(b'M').is_some_and(|text| text.contains("prepared_bytes_per_client")), "{last:?}");
    // Another session has its own.
    let mut other = Raw::login(kingpost.port()).await;
    other.send(&many(0, 10)).await;
    assert_eq!(other.kinds_until(b'Z').await, "1111111111Z");
}
