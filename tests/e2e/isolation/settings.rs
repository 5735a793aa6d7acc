//! Parameters and roles: a text is parsed under those in force when it is prepared, and the next client has its own.

use kingpost_tests::oracle::{ServerMessage, Talk, values};
use kingpost_tests::raw::{Raw, bind, close, describe, execute, parse, query, sync};
use kingpost_tests::{Cluster, DATABASE, SOON, ShowLogs, USER, wait_until};

use crate::common::name;
use crate::isolation::{
    LOW_ROLE, ONE, OTHER_DATABASE, OTHER_USER, PINNED, REPLICA, TWO, UNNAMED, WIDE, World, people, world,
};

/// Prepares a text and executes it, in one packet; the name is freed again.
async fn once(talk: &mut Talk, who: usize, text: &str) -> Vec<ServerMessage> {
    let all = [
        parse("once", text),
        describe(b'S', "once"),
        bind("", "once", &[]),
        execute("", 0),
        close(b'S', "once"),
        sync(),
    ];
    talk.say(who, &all).await
}

/// Runs a text without a name.
async fn unnamed(talk: &mut Talk, who: usize, text: &str) -> Vec<ServerMessage> {
    talk.say(who, &[parse("", text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()]).await
}

/// Makes a statement without rows, in the extended protocol.
fn in_extended(text: &str) -> [Vec<u8>; 4] {
    [parse("", text), bind("", "", &[]), execute("", 0), sync()]
}

/// Ways to set two parameters until the end of a transaction.
const LOCALLY: [&str; 3] = [
    "SET LOCAL timezone = 'Asia/Tokyo'; SET LOCAL datestyle = 'ISO, DMY'",
    "SELECT set_config('timezone', 'Asia/Tokyo', true), set_config('datestyle', 'ISO, DMY', true)",
    "SET LOCAL datestyle TO 'ISO, DMY'; SELECT set_config('timezone', 'Asia/Tokyo', true)",
];

/// Begins a transaction with its own parameters: statement by statement, in one message, or in the extended protocol.
async fn begin_with(talk: &mut Talk, who: usize, way: usize, sets: &str) {
    match way {
        0 => {
            talk.query(who, "BEGIN").await;
            for set in sets.split("; ") {
                talk.query(who, set).await;
            }
        }
        1 => drop(talk.query(who, &format!("BEGIN; {sets}")).await),
        _ => {
            let all = std::iter::once("BEGIN").chain(sets.split("; ")).flat_map(in_extended).collect::<Vec<_>>();
            talk.say(who, &all).await;
        }
    }
}

/// Returns a query of a date and a time with another meaning under the parameters above. `n` makes it a different text for each case.
fn reading(n: usize) -> String {
    format!("SELECT '2020-01-01 00:00'::timestamptz AT TIME ZONE 'utc', '03/04/2020'::date AS d, {n}")
}

/// A client under the default time zone read a literal as another client's transaction had, and vice versa: a wrong date, and no error.
#[tokio::test]
async fn literals_of_a_text_that_others_prepare_under_set_local() {
    let (world, _logs) = world().await;
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let (local, plain) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            let mut n = 0;
            for sets in LOCALLY {
                for way in 0..3 {
                    for local_first in [true, false] {
                        n += 1;
                        let text = reading(n);
                        for turn in [local_first, !local_first, local_first, !local_first] {
                            if turn {
                                begin_with(talk, local, way, sets).await;
                                let rows = once(talk, local, &text).await;
                                assert_eq!(values(&rows), ["2019-12-31 15:00:00"], "{rows:?}");
                                unnamed(talk, local, &text).await;
                                talk.query(local, "COMMIT").await;
                            } else {
                                once(talk, plain, &text).await;
                                unnamed(talk, plain, &text).await;
                            }
                        }
                    }
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A row was stored with the wrong date, because another client had prepared the INSERT in a transaction with another DateStyle.
#[tokio::test]
async fn literals_that_are_stored_by_a_text_that_others_prepare_under_set_local() {
    let (world, _logs) = world().await;
    let table = name("stored");
    let primary = world.cluster.primary();
    primary
        .execute(&format!("CREATE TABLE {table} (n int, d date, at timestamptz); GRANT ALL ON {table} TO PUBLIC"))
        .await;
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            primary.execute(&format!("TRUNCATE {table}")).await;
            let (local, plain) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            for (n, local_first) in [(0, true), (1, false)] {
                let text = format!("INSERT INTO {table} VALUES ({n}, '03/04/2020', '2020-01-01 00:00')");
                for turn in [local_first, !local_first, local_first, !local_first] {
                    if turn {
                        begin_with(talk, local, n, LOCALLY[0]).await;
                        once(talk, local, &text).await;
                        unnamed(talk, local, &text).await;
                        talk.query(local, "COMMIT").await;
                    } else {
                        once(talk, plain, &text).await;
                        unnamed(talk, plain, &text).await;
                    }
                }
            }
            let stored =
                format!("SELECT string_agg(format('%s %s %s', n, d, at), ', ' ORDER BY n, d, at) FROM {table}");
            talk.note("what is stored", &primary.query(&stored).await);
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// One client alone: after the COMMIT it got the values of a text that it had prepared in a transaction with SET LOCAL.
#[tokio::test]
async fn literals_of_a_text_that_one_client_prepares_with_and_without_set_local() {
    let (world, _logs) = world().await;
    let direct = world
        .as_postgres(&[ONE, UNNAMED], async |talk| {
            for (n, sets) in LOCALLY.iter().enumerate() {
                let who = talk.login(USER, DATABASE).await;
                let text = reading(100 + n);
                let ask = |name| [bind("", name, &[]), execute("", 0), sync()];
                begin_with(talk, who, n, sets).await;
                talk.say(who, &[parse("local", &text), describe(b'S', "local"), sync()]).await;
                talk.say(who, &ask("local")).await;
                unnamed(talk, who, &text).await;
                talk.query(who, "COMMIT").await;
                talk.say(who, &[parse("plain", &text), describe(b'S', "plain"), sync()]).await;
                talk.say(who, &ask("plain")).await;
                unnamed(talk, who, &text).await;
                // Both have read their literals, which no later SET changes.
                talk.say(who, &ask("local")).await;
                begin_with(talk, who, n, sets).await;
                talk.say(who, &ask("plain")).await;
                once(talk, who, &text).await;
                talk.query(who, "ROLLBACK").await;
                once(talk, who, &text).await;
                talk.logout(who).await;
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// Makes two schemas with a table `table` each, of these columns, and returns their names.
async fn two_schemas(table: &str, left: &str, right: &str) -> [String; 2] {
    let (world, _) = world().await;
    let admin = world.cluster.primary().admin().await;
    let schemas = [format!("{table}_left"), format!("{table}_right")];
    for (schema, columns) in schemas.iter().zip([left, right]) {
        let sql = format!(
            "CREATE SCHEMA {schema}; GRANT ALL ON SCHEMA {schema} TO PUBLIC;
             CREATE TABLE {schema}.{table} AS SELECT {columns}; GRANT ALL ON {schema}.{table} TO PUBLIC"
        );
        admin.batch_execute(&sql).await.unwrap();
    }
    schemas
}

/// Tenants with a schema each, of the same layout, chosen by SET LOCAL in each transaction: every second one failed with 0A000, and
/// was aborted.
#[tokio::test]
async fn a_search_path_set_locally_by_tenants_of_one_layout() {
    let (world, _logs) = world().await;
    let table = name("orders");
    let schemas = two_schemas(&table, "1 AS id, 'left' AS who", "1 AS id, 'right' AS who").await;
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let tenants = [talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await];
            let text = format!("SELECT * FROM {table} WHERE id = $1");
            let ask = |name| [bind("", name, &["1"]), execute("", 0), sync()];
            for turn in 0..4 {
                for (who, schema) in tenants.iter().zip(&schemas) {
                    begin_with(talk, *who, turn % 3, &format!("SET LOCAL search_path = {schema}")).await;
                    // One that lasts, from the first transaction on, and one of this transaction.
                    if turn == 0 {
                        talk.say(*who, &[parse("kept", &text), describe(b'S', "kept"), sync()]).await;
                    }
                    talk.say(*who, &ask("kept")).await;
                    talk.say(*who, &[parse("mine", &text), describe(b'S', "mine"), sync()]).await;
                    talk.say(*who, &ask("mine")).await;
                    talk.say(*who, &[close(b'S', "mine"), sync()]).await;
                    let all = [parse("", &text), bind("", "", &["1"]), describe(b'P', ""), execute("", 0), sync()];
                    talk.say(*who, &all).await;
                    talk.query(*who, "COMMIT").await;
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// One client that serves one tenant after the other: it got one tenant's columns, or rows, for the other.
#[tokio::test]
async fn a_search_path_set_locally_by_one_client_for_tenants_in_turn() {
    let (world, _logs) = world().await;
    let table = name("orders");
    let same = two_schemas(&table, "1 AS id, 'left' AS who", "1 AS id, 'right' AS who").await;
    let other_table = name("parts");
    let other = two_schemas(&other_table, "1 AS id, 'left' AS who", "0.5::real AS weight, 1 AS id").await;
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let who = talk.login(USER, DATABASE).await;
            let text = format!("SELECT * FROM {table} WHERE id = $1");
            talk.query(who, &format!("BEGIN; SET LOCAL search_path = {}", same[0])).await;
            talk.say(who, &[parse("kept", &text), describe(b'S', "kept"), sync()]).await;
            talk.query(who, "COMMIT").await;
            for turn in 0..6 {
                begin_with(talk, who, turn % 3, &format!("SET LOCAL search_path = {}", same[turn % 2])).await;
                let rows = talk.say(who, &[bind("", "kept", &["1"]), execute("", 0), sync()]).await;
                assert_eq!(
                    rows[1],
                    ServerMessage::Row(vec![Some("1".into()), Some(["left", "right"][turn % 2].into())])
                );
                talk.query(who, "COMMIT").await;
                // With different layouts, each transaction prepares its own text.
                begin_with(talk, who, turn % 3, &format!("SET LOCAL search_path = {}", other[turn % 2])).await;
                once(talk, who, &format!("SELECT * FROM {other_table}")).await;
                unnamed(talk, who, &format!("SELECT * FROM {other_table}")).await;
                talk.query(who, "COMMIT").await;
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A different search_path within one transaction, by SET and not by SET LOCAL: the second text used the first one's statement.
#[tokio::test]
async fn a_search_path_set_twice_within_one_transaction() {
    let (world, _logs) = world().await;
    let table = name("twice");
    let [left, right] = two_schemas(&table, "1 AS id, 'left' AS who", "2::bigint AS n").await;
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let clients = [talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await];
            let text = format!("SELECT * FROM {table}");
            for end in ["COMMIT", "ROLLBACK", "COMMIT"] {
                for (who, paths) in clients.iter().zip([[&left, &right], [&right, &left]]) {
                    for set in ["SET", "SET LOCAL", "SET SESSION"] {
                        talk.query(*who, "BEGIN").await;
                        for (n, path) in paths.iter().enumerate() {
                            talk.query(*who, &format!("{set} search_path = {path}, public")).await;
                            let name = format!("s{n}");
                            talk.say(*who, &[parse(&name, &text), describe(b'S', &name), sync()]).await;
                            talk.say(*who, &[bind("", &name, &[]), execute("", 0), sync()]).await;
                            unnamed(talk, *who, &text).await;
                        }
                        talk.query(*who, end).await;
                        talk.say(*who, &[close(b'S', "s0"), close(b'S', "s1"), sync()]).await;
                        talk.query(*who, &format!("SELECT count(*) FROM {left}.{table}")).await;
                    }
                    talk.query(*who, "RESET search_path").await;
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// Tenants that are roles, with a schema of the role's name: `"$user"` in the search_path refers to another schema after SET LOCAL ROLE.
#[tokio::test]
async fn a_role_set_locally_with_a_schema_of_its_name() {
    let (world, _logs) = world().await;
    let table = name("owned");
    let roles = two_schemas(&table, "1 AS id, 'left' AS who", "'right' AS other_name, 2 AS n").await;
    let admin = world.cluster.primary().admin().await;
    for role in &roles {
        admin.batch_execute(&format!("CREATE ROLE {role}; GRANT {role} TO {USER}")).await.unwrap();
    }
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let clients = [talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await];
            let text = format!("SELECT * FROM {table}");
            for turn in 0..4 {
                for (who, role) in clients.iter().zip(&roles) {
                    begin_with(talk, *who, turn % 3, &format!("SET LOCAL ROLE {role}")).await;
                    once(talk, *who, &text).await;
                    unnamed(talk, *who, &text).await;
                    talk.query(*who, "COMMIT").await;
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A parameter of a type that each tenant's schema defines: the second tenant was told the first one's type.
#[tokio::test]
async fn a_parameter_of_a_type_of_the_tenants_schema() {
    let (world, _logs) = world().await;
    let table = name("typed");
    let schemas = two_schemas(&table, "1 AS id", "1 AS id").await;
    let admin = world.cluster.primary().admin().await;
    for (schema, labels) in schemas.iter().zip(["'new', 'left only'", "'new', 'right only'"]) {
        let sql = format!(
            "CREATE TYPE {schema}.kind AS ENUM ({labels}); ALTER TABLE {schema}.{table} ADD k {schema}.kind DEFAULT 'new'"
        );
        admin.batch_execute(&sql).await.unwrap();
    }
    let direct = world
        .as_postgres(&[ONE, TWO, UNNAMED], async |talk| {
            let clients = [talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await];
            for turn in 0..3 {
                for (who, schema) in clients.iter().zip(&schemas) {
                    begin_with(talk, *who, turn, &format!("SET LOCAL search_path = {schema}")).await;
                    for text in [format!("SELECT id, k FROM {table} WHERE k = $1"), "SELECT $1::kind".to_owned()] {
                        talk.say(*who, &[parse("s", &text), describe(b'S', "s"), sync()]).await;
                        talk.say(*who, &[bind("", "s", &["new"]), execute("", 0), close(b'S', "s"), sync()]).await;
                    }
                    talk.query(*who, "COMMIT").await;
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// After a RESET by a named portal the proxy's record of the connection was wrong: another client, which had taken a role with few rights, then ran
/// as the login user, and without the tenant that it had set.
#[tokio::test]
async fn a_reset_by_a_named_portal_is_not_the_next_clients() {
    let (world, _logs) = world().await;
    // A parameter once set in a session is empty there, and unknown in a session that has never had it: both are accepted here.
    let app = "coalesce(current_setting('app.t', true), '')";
    let who_am_i = format!("SELECT concat_ws(' ', current_user, {app}, current_setting('work_mem'))");
    let who_am_i = &who_am_i;
    let direct = world
        .as_postgres(&[ONE, TWO], async |talk| {
            for reset in [
                "RESET ROLE",
                "SET ROLE TO DEFAULT",
                "SET ROLE NONE",
                "RESET app.t",
                "SET app.t TO DEFAULT",
                "RESET work_mem",
                "RESET ALL",
                "DISCARD ALL",
            ] {
                for way in 0..3 {
                    let (one, two) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
                    for who in [one, two] {
                        for set in ["SET app.t = 't1'", "SET work_mem = '5MB'", &format!("SET ROLE {LOW_ROLE}")] {
                            talk.query(who, set).await;
                        }
                    }
                    match way {
                        0 => drop(
                            talk.say(one, &[parse("", reset), bind("p1", "", &[]), execute("p1", 0), sync()]).await,
                        ),
                        1 => {
                            talk.say(one, &[parse("r", reset), sync()]).await;
                            talk.say(one, &[bind("p1", "r", &[]), describe(b'P', "p1"), execute("p1", 0), sync()])
                                .await;
                        }
                        // The portal lives to the end of the transaction. DISCARD ALL can't be in one.
                        _ => {
                            talk.query(one, "BEGIN").await;
                            talk.say(one, &[parse("", reset), bind("p1", "", &[]), sync()]).await;
                            talk.say(one, &[execute("p1", 0), sync()]).await;
                            talk.query(one, "COMMIT").await;
                        }
                    }
                    for _ in 0..3 {
                        let row = talk.query(two, who_am_i).await;
                        assert_eq!(values(&row), [format!("{LOW_ROLE} t1 5MB")], "{reset}, {way}");
                    }
                    talk.query(one, who_am_i).await;
                    talk.logout(one).await;
                    talk.logout(two).await;
                }
            }
        })
        .await;
    assert!(direct.errors().iter().all(|code| *code == "25001"), "{:?}", direct.errors());
}

/// With `standard_conforming_strings = off` by ALTER ROLE or ALTER DATABASE a backslash escapes the quote: a literal in the proxy's view was a SET to
/// the server, and the next client had that tenant.
#[tokio::test]
async fn a_set_behind_a_backslash_is_not_the_next_clients() {
    let (world, _logs) = world().await;
    let primary = world.cluster.primary();
    let (role, database) = (name("slash"), name("slashes"));
    primary
        .execute(&format!("CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET standard_conforming_strings = off"))
        .await;
    primary.execute(&format!("CREATE DATABASE {database}")).await;
    primary.execute(&format!("ALTER DATABASE {database} SET standard_conforming_strings = off")).await;
    let direct = world
        .as_postgres(&[TWO, REPLICA], async |talk| {
            for (user, database) in [(&*role, DATABASE), (USER, &*database)] {
                for extended in [false, true] {
                    let (one, two) = (talk.login(user, database).await, talk.login(user, database).await);
                    let text = r"select 'a\', 'b; set app.tenant = t1 --'";
                    if extended {
                        // One statement, but a different one than it seems.
                        let text = r"select set_config('app.tenant', 't2', false), 'a\', ' || current_setting('work_mem') || '--'";
                        talk.say(one, &[parse("", text), bind("", "", &[]), execute("", 0), sync()]).await;
                    } else {
                        talk.query(one, text).await;
                    }
                    for _ in 0..3 {
                        let tenant = talk.query(two, "SELECT coalesce(current_setting('app.tenant', true), '') AS tenant").await;
                        assert_eq!(values(&tenant), [""], "{user}@{database}: another client's tenant");
                    }
                    talk.logout(one).await;
                    talk.logout(two).await;
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A SET behind a backslash by a role that is altered while clients and server connections are there: later connections begin with another
/// `standard_conforming_strings` than clients were told, and the proxy believed the first one.
#[tokio::test]
async fn a_set_behind_a_backslash_of_a_role_that_is_altered_later() {
    let (world, _logs) = world().await;
    let primary = world.cluster.primary();
    let role = name("altered");
    primary.execute(&format!("CREATE ROLE {role} LOGIN")).await;
    // A client that sends such a text keeps its connection.
    for front in [WIDE] {
        primary.execute(&format!("ALTER ROLE {role} RESET ALL")).await;
        let kingpost = front.start(&world.cluster).await;
        let mut talk = Talk::new(kingpost.port());
        let (old, victim) = (talk.login(&role, DATABASE).await, talk.login(&role, DATABASE).await);
        talk.query(old, "SELECT 1").await;
        primary.execute(&format!("ALTER ROLE {role} SET standard_conforming_strings = off")).await;
        let sessions = format!("SELECT pid FROM pg_stat_activity WHERE usename = '{role}'");
        primary.execute(&format!("SELECT pg_terminate_backend(pid) FROM ({sessions}) AS of_it")).await;
        primary.wait_value(&format!("SELECT count(*) FROM ({sessions}) AS of_it"), "0").await;
        // An earlier client, and one that comes after it.
        for new in [false, true] {
            let who = if new { talk.login(&role, DATABASE).await } else { old };
            for _ in 0..2 {
                // The first one may get an error for its lost connection.
                talk.query(who, r"select 'a\', 'b; set app.tenant = t1 --'").await;
            }
            for _ in 0..3 {
                let tenant =
                    talk.query(victim, "SELECT coalesce(current_setting('app.tenant', true), '') AS tenant").await;
                assert_eq!(values(&tenant), [""], "{front:?}, new: {new}: another client's tenant");
            }
        }
        let (_raw, greeting) = Raw::greeted(kingpost.port(), &role, DATABASE, &[]).await;
        let told = greeting.iter().any(|said| said.kind == b'S' && said.body == b"standard_conforming_strings\0off\0");
        assert!(told, "{front:?}: who logs in now is told what is in force");
    }
}

/// A client got the columns of a text from a client of another role, which reads a backslash in a literal by another rule: the role's default, the
/// client's start-up parameter, or its SET.
#[tokio::test]
async fn a_backslash_in_a_text_that_others_prepare() {
    let (world, _logs) = world().await;
    let role = name("slash");
    let primary = world.cluster.primary();
    primary
        .execute(&format!("CREATE ROLE {role} LOGIN; ALTER ROLE {role} SET standard_conforming_strings = off"))
        .await;
    let direct = world
        .as_postgres(&[WIDE], async |talk| {
            let off = talk.login(&role, DATABASE).await;
            let on = talk.login_with(&role, DATABASE, &[("standard_conforming_strings", "on")]).await;
            let set = talk.login(&role, DATABASE).await;
            talk.query(set, "SET standard_conforming_strings = on").await;
            let other = talk.login(USER, DATABASE).await;
            for turn in 0..3 {
                for who in [off, on, set, other] {
                    let rows = once(talk, who, r"SELECT 'a\\b'::text, length('a\\b')").await;
                    assert_eq!(values(&rows), [if who == off { r"a\b" } else { r"a\\b" }], "turn {turn}");
                    unnamed(talk, who, r"SELECT 'a\\b'::text, length('a\\b')").await;
                    // One column or two: the quote behind the backslash ends the literal, or it does not.
                    let rows = once(talk, who, r"SELECT '\' AS a, 1 AS b --' AS c").await;
                    assert_eq!(values(&rows), [if who == off { "' AS a, 1 AS b --" } else { r"\" }], "turn {turn}");
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// In a transaction with `SET LOCAL standard_conforming_strings = off` a client read a backslash as another client had prepared it, and vice versa.
/// Nor must others get a text that the client prepares afterwards under its own DateStyle.
#[tokio::test]
async fn a_transaction_with_other_strings_and_what_comes_after_it() {
    let (world, _logs) = world().await;
    let off = "SET LOCAL standard_conforming_strings = off";
    let direct = world
        // Two connections: a client with texts that the proxy cannot judge may keep one.
        .as_postgres(&[TWO], async |talk| {
            for way in 0..4 {
                let (one, two) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
                if way < 3 {
                    for one_first in [true, false] {
                        let text = format!(r"SELECT 'a\\b', '{way} {one_first}'");
                        if !one_first {
                            once(talk, two, &text).await;
                        }
                        begin_with(talk, one, way, off).await;
                        let rows = once(talk, one, &text).await;
                        assert_eq!(values(&rows), [r"a\b"], "{way}, {one_first}");
                        unnamed(talk, one, &text).await;
                        talk.query(one, "COMMIT").await;
                        // A client that kept a connection for this may release it now.
                        talk.query(one, "RESET ALL").await;
                        once(talk, two, &text).await;
                        unnamed(talk, two, &text).await;
                    }
                    talk.query(one, "SET datestyle = 'ISO, DMY'").await;
                } else {
                    // All of it before any answer.
                    let all = ["BEGIN", off, "COMMIT", "SET datestyle = 'ISO, DMY'"].map(query);
                    talk.say(one, &all).await;
                }
                for n in 0..2 {
                    let text = format!("SELECT '03/04/2020'::date, {way}, {n}");
                    for who in if n == 0 { [one, two] } else { [two, one] } {
                        let rows = once(talk, who, &text).await;
                        assert_eq!(values(&rows), [if who == one { "2020-04-03" } else { "2020-03-04" }], "{way}");
                        unnamed(talk, who, &text).await;
                        talk.query(who, "SHOW datestyle").await;
                    }
                }
                talk.logout(one).await;
                talk.logout(two).await;
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// `SET SESSION AUTHORIZATION DEFAULT` resets the role as well, which `RESET ALL` does not. A client that sent both kept its earlier role: the next
/// user of a connection of Npgsql's pool read the rows of the one before.
#[tokio::test]
async fn a_session_authorization_ends_the_role() {
    let (world, _logs) = world().await;
    let clears = [
        "SET SESSION AUTHORIZATION DEFAULT; RESET ALL",
        "RESET SESSION AUTHORIZATION; RESET ALL",
        // The statement with which Npgsql clears a connection of its pool.
        "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD SEQUENCES; DISCARD TEMP",
    ];
    for clear in clears {
        let direct = world
            .as_postgres(&[WIDE], async |talk| {
                for way in 0..3 {
                    let who = talk.login_with(USER, DATABASE, &[("application_name", "tenants")]).await;
                    let other = talk.login(USER, DATABASE).await;
                    talk.query(who, &format!("SET ROLE {LOW_ROLE}")).await;
                    assert_eq!(values(&talk.query(who, "SELECT current_user").await), [LOW_ROLE]);
                    match way {
                        0 => drop(talk.query(who, clear).await),
                        1 => {
                            for part in clear.split("; ") {
                                talk.query(who, part).await;
                            }
                        }
                        _ => {
                            for part in clear.split("; ") {
                                talk.say(who, &in_extended(part)).await;
                            }
                        }
                    }
                    for who in [who, other, who] {
                        assert_eq!(values(&talk.query(who, "SELECT current_user").await), [USER], "{way}: {clear}");
                    }
                }
            })
            .await;
        assert_eq!(direct.errors(), [""; 0]);
    }
}

/// The server's configuration was reloaded with another `TimeZone` and `DateStyle`, or a database was altered to begin with others: texts shared by
/// clients kept the values of their literals for ever, and new clients were told the former parameters.
#[tokio::test]
async fn a_time_zone_that_servers_begin_with_later() {
    let cluster = Cluster::builder().replicas(1).start().await;
    people(&cluster).await;
    let world = World { cluster };
    let _logs = ShowLogs(world.cluster.dir());
    let primary = world.cluster.primary();
    let zone = "SELECT current_setting('timezone')";
    let set = async |zone: &str, style: &str| {
        for what in [format!("timezone = '{zone}'"), format!("datestyle = '{style}'")] {
            primary.execute(&format!("ALTER SYSTEM SET {what}")).await;
        }
        primary.execute("SELECT pg_reload_conf()").await;
    };
    for front in [ONE, TWO, UNNAMED, PINNED] {
        let direct = world
            .as_postgres(&[front], async |talk| {
                set("UTC", "ISO, MDY").await;
                let mut old = Vec::new();
                for (user, database) in [(USER, DATABASE), (OTHER_USER, OTHER_DATABASE)] {
                    old.push(talk.login(user, database).await);
                    old.push(talk.login_with(user, database, &[("timezone", "Asia/Kolkata")]).await);
                }
                let reloaded = async |talk: &mut Talk, who: &[usize], to: &str| {
                    for &who in who {
                        wait_until("the reload", SOON, world.cluster.dir(), async || {
                            let said = talk.say_aside(who, &[query(zone)]).await;
                            (values(&said) == [to]).then_some(())
                        })
                        .await;
                    }
                };
                reloaded(talk, &[old[0], old[2]], "UTC").await;
                for &who in &old {
                    once(talk, who, &reading(0)).await;
                    unnamed(talk, who, &reading(0)).await;
                    unnamed(talk, who, &reading(0)).await;
                }
                set("Asia/Tokyo", "ISO, DMY").await;
                reloaded(talk, &[old[0], old[2]], "Asia/Tokyo").await;
                // Every client that prepares the text from now on, new or not.
                for (user, database) in [(USER, DATABASE), (OTHER_USER, OTHER_DATABASE)] {
                    let port = talk.port();
                    let told = async || {
                        let (_, said) = Raw::greeted(port, user, database, &[]).await;
                        let all = said.iter().filter(|message| message.kind == b'S');
                        all.map(|message| String::from_utf8_lossy(&message.body).into_owned())
                            .any(|told| told == "TimeZone\0Asia/Tokyo\0")
                            .then_some(())
                    };
                    wait_until("a login that is told the time zone", SOON, world.cluster.dir(), told).await;
                    let plain = talk.login(user, database).await;
                    let own = talk.login_with(user, database, &[("timezone", "Asia/Kolkata")]).await;
                    for who in [plain, own] {
                        once(talk, who, &reading(0)).await;
                        unnamed(talk, who, &reading(0)).await;
                        talk.query(who, zone).await;
                        talk.query(who, "SHOW datestyle").await;
                    }
                }
                for &who in &old {
                    once(talk, who, &reading(0)).await;
                    unnamed(talk, who, &reading(0)).await;
                }
            })
            .await;
        assert_eq!(direct.errors(), [""; 0]);
    }
}
