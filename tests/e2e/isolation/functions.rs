//! Session state left by a function (a parameter, a lock, a temporary table) belongs to its client: no other client has it, by default settings.
//!
//! Each talk leaves the method to the proxy: a client that has called such a function may keep its connection, so there is a second one for the
//! others; or it leaves before they come.

use kingpost_tests::oracle::{Talk, error, values};
use kingpost_tests::raw::{bind, close, execute, parse, sync};
use kingpost_tests::{Cluster, DATABASE, ShowLogs, USER, skipped};

use crate::common::name;
use crate::isolation::{Front, ONE, OTHER_DATABASE, OTHER_USER, PINNED, TWO, UNNAMED, World, people, world};

/// Runs a text as a simple query, without a name, or prepared; in a transaction of its own or in a block.
async fn run(talk: &mut Talk, who: usize, way: usize, text: &str) {
    let block = way >= 3;
    if block {
        talk.query(who, "BEGIN").await;
    }
    match way % 3 {
        0 => drop(talk.query(who, text).await),
        1 => drop(talk.say(who, &[parse("", text), bind("", "", &[]), execute("", 0), sync()]).await),
        _ => {
            talk.say(who, &[parse("s", text), sync()]).await;
            talk.say(who, &[bind("", "s", &[]), execute("", 0), close(b'S', "s"), sync()]).await;
        }
    }
    if block {
        talk.query(who, "COMMIT").await;
    }
}

/// Runs each text in each way in one client, and then `check` in another one: while the first one is connected, with a connection for each; and after
/// it has left, with one connection.
async fn leaves_nothing(texts: &[&str], check: impl AsyncFn(&mut Talk, usize)) -> Talk {
    let (world, _logs) = world().await;
    let talk = async |talk: &mut Talk, leaves: bool| {
        for text in texts {
            for way in 0..6 {
                let one = talk.login(USER, DATABASE).await;
                run(talk, one, way, text).await;
                if leaves {
                    talk.logout(one).await;
                }
                let two = talk.login(USER, DATABASE).await;
                check(talk, two).await;
                check(talk, two).await;
                if !leaves {
                    talk.logout(one).await;
                }
                talk.logout(two).await;
            }
        }
    };
    world.as_postgres(&[TWO], async |to: &mut Talk| talk(to, false).await).await;
    world.as_postgres(&[ONE], async |to: &mut Talk| talk(to, true).await).await
}

/// A client that had set nothing read the rows of the tenant that another client had set by a function: row-level security showed one tenant's rows
/// to another.
#[tokio::test]
async fn a_tenant_that_a_function_has_set() {
    let (world, _logs) = world().await;
    let table = name("secrets");
    let sql = format!(
        "CREATE TABLE {table} AS SELECT unnest(ARRAY['t1', 't2']) AS tenant, 'a secret' AS text;
         ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
         CREATE POLICY own ON {table} USING (tenant = current_setting('app.tenant', true));
         CREATE FUNCTION {table}_login(text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('app.tenant', $1, false) $$;
         CREATE PROCEDURE {table}_enter(t text) LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('app.tenant', t, false); END $$;
         GRANT SELECT ON {table} TO PUBLIC"
    );
    world.cluster.primary().execute(&sql).await;
    let texts = [
        format!("SELECT {table}_login('t1')"),
        format!("DO $$ BEGIN PERFORM {table}_login('t1'); END $$"),
        "DO $$ BEGIN PERFORM set_config('app.tenant', 't2', false); END $$".to_owned(),
        "DO $$ BEGIN SET app.tenant = 't2'; END $$".to_owned(),
        format!("CALL {table}_enter('t1')"),
        format!("SELECT count(*) FROM {table}_login('t1'), {table}"),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let rows = format!("SELECT tenant, text FROM {table}");
    let direct = leaves_nothing(&texts, async |talk, who| {
        let seen = talk.query(who, &rows).await;
        assert_eq!(values(&seen), [""; 0], "the rows of another client's tenant");
        talk.say(who, &[parse("", &rows), bind("", "", &[]), execute("", 0), sync()]).await;
    })
    .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A temporary table that a function has made for one client was there for the next one, which could not make its own.
#[tokio::test]
async fn a_temporary_table_that_a_function_has_made() {
    let (world, _logs) = world().await;
    let table = name("scratch");
    let sql = format!(
        "CREATE FUNCTION make_{table}() RETURNS void LANGUAGE plpgsql AS
         $$ BEGIN CREATE TEMP TABLE {table} AS SELECT 'a secret' AS text; END $$"
    );
    world.cluster.primary().execute(&sql).await;
    let texts = [format!("SELECT make_{table}()"), format!("DO $$ BEGIN PERFORM make_{table}(); END $$")];
    leaves_nothing(&[&*texts[0], &*texts[1]], async |talk, who| {
        let seen = talk.query(who, &format!("SELECT text FROM {table}")).await;
        assert_eq!(error(&seen), Some("42P01"), "another client's temporary table: {seen:?}");
    })
    .await;
    // It can make its own.
    let make = &*texts[0];
    let direct = world
        .as_postgres(&[TWO], async |talk| {
            let (one, two) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            talk.query(one, make).await;
            let made = talk.query(two, make).await;
            assert_eq!(error(&made), None, "{made:?}");
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A function takes an advisory lock: two clients on one connection both got it. A client that must keep the lock stays with its connection
/// (`unknown_functions = "pin"`); by default the lock ends with the unit, like all state that such a function leaves.
#[tokio::test]
async fn an_advisory_lock_that_a_function_has_taken_is_one_clients() {
    let (world, _logs) = world().await;
    let take = name("take");
    world.cluster.primary().execute(&lock_function(&take)).await;
    let direct = world
        .as_postgres(&[PINNED], async |talk| {
            // A different key in each run: that of the run before may still be locked.
            let key = kingpost_tests::unique();
            let (one, two) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            let taken = talk.say_aside(one, &[kingpost_tests::raw::query(&format!("SELECT {take}({key})"))]).await;
            assert_eq!(values(&taken), ["t"]);
            for _ in 0..3 {
                let taken = talk.say_aside(two, &[kingpost_tests::raw::query(&format!("SELECT {take}({key})"))]).await;
                assert_eq!(values(&taken), ["f"], "two clients have one lock");
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// An advisory lock that a function had taken was held for as long as the proxy kept the connection: after its client had left, nobody could get it.
#[tokio::test]
async fn an_advisory_lock_that_a_function_has_taken_goes_with_its_client() {
    let (world, _logs) = world().await;
    let take = name("take");
    let primary = world.cluster.primary();
    primary.execute(&lock_function(&take)).await;
    for front in [ONE, TWO] {
        let kingpost = front.start(&world.cluster).await;
        let mut talk = Talk::new(kingpost.port());
        for text in [format!("SELECT {take}(KEY)"), format!("DO $$ BEGIN PERFORM {take}(KEY); END $$")] {
            let key = kingpost_tests::unique();
            let who = talk.login(USER, DATABASE).await;
            let taken = talk.query(who, &text.replace("KEY", &key.to_string())).await;
            assert_eq!(error(&taken), None);
            talk.logout(who).await;
            let held = format!("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {key}");
            primary.wait_value(&held, "0").await;
        }
    }
}

fn lock_function(take: &str) -> String {
    format!(
        "CREATE FUNCTION {take}(bigint) RETURNS bool LANGUAGE plpgsql AS
         $$ BEGIN RETURN pg_try_advisory_lock($1); END $$"
    )
}

/// State that no statement clears: a loaded library, and the connections that dblink keeps by name, with another user's rights.
#[tokio::test]
async fn what_an_extension_keeps_in_a_session_is_its_clients() {
    let (world, _logs) = world().await;
    let primary = world.cluster.primary();
    if primary.query("SELECT count(*) FROM pg_available_extensions WHERE name = 'dblink'").await == "0" {
        skipped("no dblink here (PostgreSQL's contrib modules)");
        return;
    }
    primary.execute("CREATE EXTENSION IF NOT EXISTS dblink").await;
    let port = primary.port();
    let connect =
        format!("SELECT dblink_connect_u('mine', 'host=127.0.0.1 port={port} dbname={DATABASE} user={OTHER_USER}')");
    let direct = world
        .as_postgres(&[ONE, PINNED], async |talk| {
            for text in ["LOAD 'auto_explain'", "BEGIN; LOAD 'auto_explain'; COMMIT", &connect] {
                for way in [0, 1, 2] {
                    let one = talk.login("postgres", DATABASE).await;
                    if way == 0 || !text.starts_with("BEGIN") {
                        run(talk, one, way, text).await;
                    }
                    talk.query(one, "SELECT 1").await;
                    talk.query(one, "SELECT dblink_get_connections()").await;
                    talk.logout(one).await;
                    for _ in 0..2 {
                        let two = talk.login("postgres", DATABASE).await;
                        talk.query(two, "SELECT name FROM pg_settings WHERE name = 'auto_explain.log_format'").await;
                        talk.query(two, "SELECT dblink_get_connections()").await;
                        talk.logout(two).await;
                    }
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// PL/pgSQL keeps the literals of a function as they were when a session first ran it. A client got the time zone and the order of day and month of
/// an earlier caller on its server connection.
#[tokio::test]
async fn literals_in_a_function_are_its_callers() {
    // A cluster of its own: after a CREATE SCHEMA in another test PostgreSQL reads the literals of all prepared statements anew.
    let cluster = Cluster::builder().replicas(1).start().await;
    people(&cluster).await;
    let world = World { cluster };
    let _logs = ShowLogs(world.cluster.dir());
    let function = name("midnight");
    let sql = format!(
        "CREATE FUNCTION {function}() RETURNS text LANGUAGE plpgsql AS
         $$ BEGIN RETURN extract(epoch FROM '2020-01-01 00:00'::timestamptz) || ' ' || ('03/04/2020'::date - '2020-01-01'::date); END $$"
    );
    for database in [DATABASE, OTHER_DATABASE] {
        world.cluster.primary().execute_in(database, &sql).await;
    }
    let call = format!("SELECT {function}()");
    let calls = async |talk: &mut Talk, who: usize| {
        talk.query(who, &call).await;
        talk.say(who, &[parse("", &call), bind("", "", &[]), execute("", 0), sync()]).await;
        talk.say(who, &[parse("s", &call), sync()]).await;
        talk.say(who, &[bind("", "s", &[]), execute("", 0), close(b'S', "s"), sync()]).await;
    };
    let talk = async |talk: &mut Talk| {
        for database in [DATABASE, OTHER_DATABASE] {
            let (first, second) = (talk.login(USER, database).await, talk.login(USER, database).await);
            talk.query(second, "SET timezone = 'Asia/Tokyo'").await;
            talk.query(second, "SET datestyle = 'ISO, DMY'").await;
            let third = talk.login_with(USER, database, &[("TimeZone", "America/New_York")]).await;
            let local = talk.login(USER, database).await;
            // The literals of a statement that was prepared under other parameters stay unchanged.
            let kept = "SELECT extract(epoch FROM '2020-01-01 00:00'::timestamptz)";
            talk.say(second, &[parse("kept", kept), bind("", "kept", &[]), execute("", 0), sync()]).await;
            talk.query(second, "SET timezone = 'Asia/Seoul'; SET timezone = 'Asia/Kolkata'").await;
            for round in 0..3 {
                for who in [first, second, third, second, first] {
                    calls(talk, who).await;
                }
                talk.say(second, &[bind("", "kept", &[]), execute("", 0), sync()]).await;
                // The next client does not find the state that such a call leaves.
                if round == 1 {
                    for text in [
                        "BEGIN; SET LOCAL timezone = 'Asia/Tokyo'",
                        &format!("DO $$ BEGIN PERFORM {function}(); END $$"),
                        "COMMIT",
                    ] {
                        talk.query(local, text).await;
                    }
                }
            }
            for who in [first, second, third, local] {
                talk.logout(who).await;
            }
        }
    };
    let direct = world.as_postgres(&[ONE, TWO, UNNAMED, Front { pool: 8, ..PINNED }], talk).await;
    assert_eq!(direct.errors(), [""; 0]);
}
