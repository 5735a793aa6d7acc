//! Names of statements and portals belong to one client, and change when PostgreSQL executes a message: not when it is sent, and not when it is
//! skipped.

use kingpost_tests::oracle::{ServerMessage, Talk, error, values};
use kingpost_tests::raw::{bind, close, describe, execute, parse, query, sync};
use kingpost_tests::{DATABASE, USER};

use crate::common::name;
use crate::isolation::{ONE, REPLICA, TWO, UNNAMED, world};

/// Binds a statement to the unnamed portal and executes it.
fn use_of(name: &str) -> [Vec<u8>; 3] {
    [bind("", name, &[]), execute("", 0), sync()]
}

/// Prepares a text without a name and runs it.
fn run(text: &str) -> [Vec<u8>; 4] {
    [parse("", text), bind("", "", &[]), execute("", 0), sync()]
}

/// The Parse of a DELETE, skipped because of an error before it, became the client's unnamed statement: its next Bind deleted the rows
/// that it meant to count.
#[tokio::test]
async fn a_parse_that_is_skipped_is_not_the_unnamed_statement() {
    let (world, _logs) = world().await;
    let table = name("kept");
    let primary = world.cluster.primary();
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let sql =
                format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table} AS SELECT generate_series(1, 5) AS n");
            primary.execute(&format!("{sql}; GRANT ALL ON {table} TO PUBLIC")).await;
            let count = format!("SELECT count(*) FROM {table}");
            let delete = format!("DELETE FROM {table}");
            let fails = format!("SELECT 1 / (n - n) FROM {table}");
            for block in [false, true] {
                for way in 0..4 {
                    let who = talk.login(USER, DATABASE).await;
                    talk.say(who, &run(&count)).await;
                    let skipped = match way {
                        // The error comes when it is executed, bound, parsed, or described.
                        0 => vec![
                            parse("s1", &fails),
                            bind("", "s1", &[]),
                            execute("", 0),
                            parse("", &delete),
                            bind("", "", &[]),
                        ],
                        1 => vec![parse("s1", "SELECT $1::int"), bind("", "s1", &["x"]), parse("", &delete)],
                        2 => vec![
                            parse("s1", "SELECT * FROM nowhere"),
                            parse("", &delete),
                            bind("", "", &[]),
                            execute("", 0),
                        ],
                        _ => vec![describe(b'S', "nowhere"), parse("", &delete), describe(b'S', "")],
                    };
                    if block {
                        talk.query(who, "BEGIN").await;
                        talk.say(who, &run(&count)).await;
                    }
                    talk.say(who, &[skipped, vec![sync()]].concat()).await;
                    if block {
                        talk.query(who, "ROLLBACK").await;
                        talk.say(who, &run(&count)).await;
                        talk.say(who, &[parse("x", "SELECT * FROM nowhere"), parse("", &delete), sync()]).await;
                    }
                    talk.say(who, &use_of("")).await;
                    talk.say(who, &[describe(b'S', ""), sync()]).await;
                    talk.note("rows", &primary.query(&count).await);
                    talk.logout(who).await;
                }
            }
        })
        .await;
    assert!(direct.errors().len() >= 8, "{:?}", direct.errors());
}

/// Names of statements: a skipped Parse creates none, and a skipped Close removes none.
#[tokio::test]
async fn a_parse_or_close_that_is_skipped_changes_no_name() {
    let (world, _logs) = world().await;
    world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let (who, other) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            talk.say(other, &[parse("known", "SELECT 'new'"), sync()]).await;
            talk.say(who, &[parse("old", "SELECT 'old'"), sync()]).await;
            for fails in ["SELECT 1/0", "SELECT * FROM nowhere"] {
                let all = [run(fails)[..3].to_vec(), vec![parse("new", "SELECT 'new'"), close(b'S', "old"), sync()]];
                talk.say(who, &all.concat()).await;
                talk.say(who, &use_of("new")).await;
                talk.say(who, &use_of("old")).await;
                // Closed, then made anew, and the latter is skipped.
                let all =
                    [vec![close(b'S', "old")], run(fails)[..3].to_vec(), vec![parse("old", "SELECT 'x'"), sync()]];
                talk.say(who, &all.concat()).await;
                talk.say(who, &use_of("old")).await;
                talk.say(who, &[parse("old", "SELECT 'old'"), sync()]).await;
            }
        })
        .await;
}

/// A client's `DEALLOCATE a1` right behind its BEGIN, as sent by drivers that keep a bounded number of statements: it got 26000, and the transaction
/// was aborted.
#[tokio::test]
async fn deallocate_right_behind_begin() {
    let (world, _logs) = world().await;
    let direct = world
        .as_postgres(&[ONE, TWO, REPLICA], async |talk| {
            let who = talk.login(USER, DATABASE).await;
            for begin in ["BEGIN", "BEGIN READ ONLY", "START TRANSACTION ISOLATION LEVEL SERIALIZABLE"] {
                for extended in [false, true] {
                    talk.say(who, &[parse("a1", "SELECT 1"), parse("a2", "SELECT 2"), sync()]).await;
                    talk.say(who, &use_of("a1")).await;
                    if extended {
                        talk.say(who, &run(begin)).await
                    } else {
                        talk.query(who, begin).await
                    };
                    let said = talk.query(who, "DEALLOCATE a1").await;
                    assert_eq!(said, [ServerMessage::Done("DEALLOCATE".into()), ServerMessage::Ready('T')], "{begin}");
                    talk.say(who, &use_of("a2")).await;
                    talk.query(who, "DEALLOCATE PREPARE a2").await;
                    talk.query(who, "COMMIT").await;
                }
            }
            // All in one packet.
            talk.say(who, &[parse("a1", "SELECT 1"), sync()]).await;
            talk.say(who, &[query("BEGIN"), query("DEALLOCATE a1"), query("SELECT 7"), query("COMMIT")]).await;
            talk.say(who, &[parse("a1", "SELECT 1"), sync()]).await;
            talk.say(who, &[query("BEGIN"), query("DEALLOCATE ALL"), query("SELECT 7"), query("COMMIT")]).await;
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// `DEALLOCATE a1` in the extended protocol failed: no such statement.
#[tokio::test]
async fn deallocate_in_the_extended_protocol() {
    let (world, _logs) = world().await;
    world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let who = talk.login(USER, DATABASE).await;
            for block in [false, true] {
                if block {
                    talk.query(who, "BEGIN").await;
                }
                talk.say(who, &[parse("a1", "SELECT 1"), sync()]).await;
                talk.say(who, &use_of("a1")).await;
                let said = talk.say(who, &run("DEALLOCATE a1")).await;
                assert_eq!(error(&said), None, "{said:?}");
                // By a prepared DEALLOCATE; and in one packet with a new Parse of the name.
                talk.say(who, &[parse("a1", "SELECT 2"), parse("drop", "DEALLOCATE a1"), sync()]).await;
                talk.say(who, &use_of("drop")).await;
                talk.say(who, &[parse("a1", "SELECT 3"), sync()]).await;
                let all = [run("DEALLOCATE a1")[..3].to_vec(), vec![parse("a1", "SELECT 4")], use_of("a1").to_vec()];
                talk.say(who, &all.concat()).await;
                talk.say(who, &use_of("a1")).await;
                talk.say(who, &run("DEALLOCATE ALL")).await;
                if block {
                    talk.query(who, "COMMIT").await;
                }
                talk.say(who, &use_of("a1")).await;
                // A name that does not exist.
                talk.say(who, &run("DEALLOCATE nobodys")).await;
                talk.query(who, "DEALLOCATE nobodys").await;
            }
        })
        .await;
}

/// `DEALLOCATE ALL` in a failed transaction succeeded, and the client's statements were gone; PostgreSQL refuses it.
#[tokio::test]
async fn deallocate_in_a_failed_transaction() {
    let (world, _logs) = world().await;
    world
        .as_postgres(&[ONE, TWO], async |talk| {
            for text in ["DEALLOCATE ALL", "DEALLOCATE a1", "DEALLOCATE PREPARE ALL", "DISCARD ALL"] {
                for extended in [false, true] {
                    let who = talk.login(USER, DATABASE).await;
                    talk.say(who, &[parse("a1", "SELECT 1"), parse("", "SELECT 2"), sync()]).await;
                    talk.query(who, "BEGIN").await;
                    talk.query(who, "SELECT 1/0").await;
                    let said = if extended { talk.say(who, &run(text)).await } else { talk.query(who, text).await };
                    assert_eq!(
                        (error(&said), said.last()),
                        (Some("25P02"), Some(&ServerMessage::Ready('E'))),
                        "{text}"
                    );
                    talk.query(who, "ROLLBACK").await;
                    let said = talk.say(who, &use_of("a1")).await;
                    assert_eq!(values(&said), ["1"], "{text}: {said:?}");
                    // The failure is not known yet when it is sent.
                    talk.say(who, &[query("BEGIN"), query("SELECT 1/0"), query(text), query("ROLLBACK")]).await;
                    talk.say(who, &use_of("a1")).await;
                    talk.logout(who).await;
                }
            }
        })
        .await;
}

/// `DEALLOCATE ALL` or `DISCARD ALL` and, in the same packet, a Parse of an existing name: it was refused as a duplicate, or the new statement was
/// lost.
#[tokio::test]
async fn a_parse_behind_deallocate_all_or_discard_all() {
    let (world, _logs) = world().await;
    let direct = world
        .as_postgres(&[ONE, TWO], async |talk| {
            for text in ["DEALLOCATE ALL", "DISCARD ALL"] {
                for extended in [false, true] {
                    let who = talk.login(USER, DATABASE).await;
                    for round in 0..3 {
                        talk.say(
                            who,
                            &[close(b'S', "a1"), parse("a1", "SELECT 'old'"), parse("a2", "SELECT 2"), sync()],
                        )
                        .await;
                        talk.say(who, &use_of("a1")).await;
                        let first = if extended { run(text)[..3].to_vec() } else { vec![query(text)] };
                        let new = format!("SELECT 'new', {round}");
                        let said = talk.say(who, &[first, vec![parse("a1", &new), sync()]].concat()).await;
                        assert_eq!(error(&said), None, "{text}: {said:?}");
                        let said = talk.say(who, &use_of("a1")).await;
                        assert_eq!(values(&said), ["new"], "{text}: {said:?}");
                        // The same with its use in one packet.
                        let first = if extended { run(text)[..3].to_vec() } else { vec![query(text)] };
                        talk.say(who, &[first, vec![parse("a1", "SELECT 'newer'")], use_of("a1").to_vec()].concat())
                            .await;
                        talk.say(who, &use_of("a1")).await;
                    }
                    // Earlier statements are gone.
                    let said = talk.say(who, &use_of("a2")).await;
                    assert_eq!(error(&said), Some("26000"), "{text}: {said:?}");
                    talk.logout(who).await;
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), ["26000"; 4]);
}

/// A unit that failed and ended in a Close of the unnamed statement broke the session for good: each later `PQexecParams` failed because the prepared
/// statement "kp…" did not exist.
#[tokio::test]
async fn a_failed_unit_that_closes_the_unnamed_statement() {
    let (world, _logs) = world().await;
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            for fails in ["SELECT 1/0", "SELECT * FROM nowhere"] {
                let who = talk.login(USER, DATABASE).await;
                talk.say(who, &[parse("named", "SELECT 'named'"), sync()]).await;
                let all = [run(fails)[..3].to_vec(), vec![close(b'S', ""), sync()]].concat();
                for turn in 0..3 {
                    talk.say(who, &all).await;
                    talk.say(who, &use_of("")).await;
                    for n in 0..3 {
                        let text = format!("SELECT {turn} + {n}");
                        let ask = [parse("", &text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()];
                        let said = talk.say(who, &ask).await;
                        assert_eq!(values(&said), [(turn + n).to_string()], "{said:?}");
                    }
                    // A unit that does not fail.
                    talk.say(who, &[run("SELECT 5")[..3].to_vec(), vec![close(b'S', ""), sync()]].concat()).await;
                    talk.say(who, &use_of("named")).await;
                }
                talk.logout(who).await;
            }
        })
        .await;
    assert!(direct.errors().iter().all(|code| ["22012", "42P01", "26000"].contains(code)), "{:?}", direct.errors());
}

/// The Parse that the proxy sends ahead of `D S s1`, on a connection without `s1`, took a snapshot: the transaction that the same packet begins could
/// not be serializable any more.
#[tokio::test]
async fn a_describe_ahead_of_a_serializable_transaction() {
    let (world, _logs) = world().await;
    let table = name("few");
    world.cluster.primary().execute(&format!("CREATE TABLE {table} (n int); GRANT ALL ON {table} TO PUBLIC")).await;
    let direct = world
        .as_postgres(&[TWO], async |talk| {
            let (who, other) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            for (n, begin) in ["begin isolation level serializable", "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"]
                .into_iter()
                .enumerate()
            {
                let first = format!("s{n}");
                talk.say(who, &[parse(&first, &format!("SELECT n, {n} AS other FROM {table}")), sync()]).await;
                // Another client holds the connection that has it.
                lend(talk, other).await;
                let again = format!("b{n}");
                let unit = [describe(b'S', &first), parse(&again, begin)];
                let said = talk.say(who, &[unit.to_vec(), use_of(&again).to_vec()].concat()).await;
                assert_eq!(error(&said), None, "{said:?}");
                talk.query(who, "SHOW transaction_isolation").await;
                talk.query(who, "COMMIT").await;
                talk.query(other, "COMMIT").await;
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// Makes another client take the connection that was used last, and keep it.
async fn lend(talk: &mut Talk, other: usize) {
    talk.query(other, "BEGIN").await;
    talk.query(other, "SELECT 1").await;
}

/// `P '' "begin"; B '' nosuch; E; S` seemed to begin a transaction ("BEGIN", and then not in one): it is an error, and nothing begins.
#[tokio::test]
async fn a_begin_that_is_parsed_and_another_name_that_is_bound() {
    let (world, _logs) = world().await;
    world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let who = talk.login(USER, DATABASE).await;
            let said = talk.say(who, &[parse("", "begin"), bind("", "nosuch", &[]), execute("", 0), sync()]).await;
            assert_eq!((error(&said), said.last()), (Some("26000"), Some(&ServerMessage::Ready('I'))), "{said:?}");
            talk.query(who, "SELECT 1").await;
            // The bound statement differs from the parsed one.
            talk.say(who, &[parse("one", "SELECT 'one'"), parse("b", "BEGIN"), sync()]).await;
            for name in ["one", "b", ""] {
                talk.say(who, &[vec![parse("", "BEGIN")], use_of(name).to_vec()].concat()).await;
                talk.query(who, "SELECT 2").await;
                talk.query(who, "ROLLBACK").await;
            }
            talk.say(who, &[vec![parse("c", "BEGIN")], use_of("one").to_vec()].concat()).await;
            talk.say(who, &[vec![parse("d", "BEGIN")], use_of("nosuch").to_vec()].concat()).await;
            // A portal of another name is executed.
            talk.say(who, &[parse("", "BEGIN"), bind("p", "", &[]), execute("", 0), sync()]).await;
            talk.query(who, "SELECT 3").await;
            // A named BEGIN is described in a failed transaction, on a connection that may not have it.
            talk.query(who, "BEGIN").await;
            talk.query(who, "SELECT 1/0").await;
            talk.say(who, &[describe(b'S', "b"), sync()]).await;
            talk.query(who, "ROLLBACK").await;
        })
        .await;
}

/// `'now'` is read when a text is prepared. A session that prepared the text later than another one got that one's time, for up to an hour.
#[tokio::test]
async fn now_in_a_literal_is_the_time_of_the_sessions_own_parse() {
    let (world, _logs) = world().await;
    let primary = world.cluster.primary();
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED, REPLICA], async |talk| {
            for text in [
                "SELECT 'now'::timestamptz, 'today'::date",
                "SELECT timestamptz 'now'",
                "SELECT $1::int, 'now'::timestamptz",
            ] {
                let values_of = if text.contains('$') { &["1"][..] } else { &[] };
                for turn in 0..3 {
                    for unnamed in [false, true] {
                        let before = primary.query("SELECT clock_timestamp()").await;
                        let who = talk.login(USER, DATABASE).await;
                        let name = if unnamed { "" } else { "s" };
                        let ask = [parse(name, text), bind("", name, values_of), execute("", 0), sync()];
                        // The answer is the time of the run: only the order is compared.
                        let said = talk.say_aside(who, &ask).await;
                        let row = said.iter().find_map(|said| match said {
                            ServerMessage::Row(row) => row
                                .last()
                                .cloned()
                                .flatten()
                                .filter(|time| time.contains(':'))
                                .or_else(|| row[0].clone()),
                            _ => None,
                        });
                        let now = row.unwrap_or_else(|| panic!("{text}: {said:?}"));
                        let later =
                            primary.query(&format!("SELECT '{now}'::timestamptz >= '{before}'::timestamptz")).await;
                        assert_eq!(later, "t", "{text}, {turn}: {now} is before {before}, when nobody had asked yet");
                        talk.logout(who).await;
                    }
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}
