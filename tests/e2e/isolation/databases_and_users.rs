//! One text has one meaning in one database for one user: prepared statements of others are not reused for it.

use kingpost_tests::oracle::{ServerMessage, Talk};
use kingpost_tests::raw::{bind, close, describe, execute, parse, query, sync};
use kingpost_tests::{DATABASE, Kingpost, SOON, USER, database, wait_until};

use crate::common::{name, only_kingpost};
use crate::isolation::{ONE, OTHER_DATABASE, OTHER_USER, REPLICA, TWO, UNNAMED, world};

/// Prepares `text` as `name` and describes it; executes it, executes it once more with a description of the portal.
async fn prepared(talk: &mut Talk, who: usize, name: &str, text: &str, values: &[&str]) {
    talk.say(who, &[parse(name, text), describe(b'S', name), sync()]).await;
    for _ in 0..2 {
        talk.say(who, &[bind("", name, values), execute("", 0), sync()]).await;
    }
    talk.say(who, &[bind("", name, values), describe(b'P', ""), execute("", 0), sync()]).await;
}

/// Runs a text without a name, in one packet, as libpq's `PQexecParams` does.
async fn unnamed(talk: &mut Talk, who: usize, text: &str, values: &[&str]) {
    let all = [parse("", text), bind("", "", values), describe(b'P', ""), execute("", 0), sync()];
    talk.say(who, &all).await;
}

/// Logs sessions in as these users to these databases: all prepare one text under one name, one after the other, and use it in turn.
async fn in_turn(talk: &mut Talk, pairs: &[(&str, &str)], text: &str, values: &[&str]) {
    let mut sessions = Vec::new();
    for (user, database) in pairs {
        sessions.push(talk.login(user, database).await);
    }
    for round in 0..3 {
        for &who in &sessions {
            prepared(talk, who, &format!("s{round}"), text, values).await;
            unnamed(talk, who, text, values).await;
        }
        for &who in &sessions {
            talk.say(who, &[bind("", "s0", values), execute("", 0), sync()]).await;
            talk.say(who, &[query("BEGIN"), bind("", "s0", values), execute("", 0), sync(), query("COMMIT")]).await;
        }
    }
}

/// A client of one database was told the columns of the other database's table of that name, and its statement then failed with
/// "cached plan must not change result type".
#[tokio::test]
async fn a_table_of_one_name_in_two_databases() {
    let (world, _logs) = world().await;
    let table = name("t");
    for (database, columns) in [
        (DATABASE, "7 AS id, 'a title' AS title"),
        (OTHER_DATABASE, "12.50::numeric(8, 2) AS price, now()::date - now()::date AS age, 'x'::char(3) AS kind"),
    ] {
        let sql = format!("CREATE TABLE {table} AS SELECT {columns}; GRANT ALL ON {table} TO PUBLIC");
        world.cluster.primary().execute_in(database, &sql).await;
    }
    let pairs = [(USER, DATABASE), (USER, OTHER_DATABASE)];
    let direct = world
        .as_postgres(&[ONE, TWO, REPLICA, UNNAMED], async |talk| {
            in_turn(talk, &pairs, &format!("SELECT * FROM {table}"), &[]).await;
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A client was told the names of the columns of another user's table, which it may not read, and its statement then failed.
#[tokio::test]
async fn a_table_of_one_name_in_two_users_schemas() {
    let (world, _logs) = world().await;
    let table = name("t");
    let admin = world.cluster.primary().admin().await;
    for (user, columns) in [(USER, "1 AS id, 'hidden' AS secret_col"), (OTHER_USER, "'mine' AS note, 2::bigint AS n")] {
        let sql = format!(
            "CREATE SCHEMA IF NOT EXISTS {user} AUTHORIZATION {user};
             CREATE TABLE {user}.{table} AS SELECT {columns}; ALTER TABLE {user}.{table} OWNER TO {user}"
        );
        admin.batch_execute(&sql).await.unwrap();
    }
    // By the default search_path, "$user", public.
    let pairs = [(USER, DATABASE), (OTHER_USER, DATABASE)];
    let direct = world
        .as_postgres(&[ONE, TWO, REPLICA, UNNAMED], async |talk| {
            in_turn(talk, &pairs, &format!("SELECT * FROM {table}"), &[]).await;
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// One user comes to one database by two names, and is a different user on the servers by each (`server_user`): texts mean what they mean to that
/// server user.
#[tokio::test]
async fn a_table_of_one_name_in_the_schemas_of_two_server_users() {
    let (world, _logs) = world().await;
    if only_kingpost() {
        return;
    }
    let (table, left, right) = (name("t"), name("left"), name("right"));
    let admin = world.cluster.primary().admin().await;
    for (role, columns) in [(&left, "1 AS id, 'left' AS secret_col"), (&right, "'right' AS note, 2::bigint AS n")] {
        let sql = format!(
            "CREATE ROLE {role} LOGIN; CREATE SCHEMA {role} AUTHORIZATION {role};
             CREATE TABLE {role}.{table} AS SELECT {columns}; ALTER TABLE {role}.{table} OWNER TO {role}"
        );
        admin.batch_execute(&sql).await.unwrap();
    }
    let text = format!("SELECT * FROM {table}");
    let mut direct = Talk::new(world.cluster.primary().port());
    in_turn(&mut direct, &[(&left, DATABASE), (&right, DATABASE)], &text, &[]).await;
    assert_eq!(direct.errors(), [""; 0]);
    let alias = |role: &str| {
        let mut alias = database(&format!("as_{role}"), "dbname", DATABASE);
        alias.insert("server_user".into(), role.into());
        alias
    };
    let tweaks = Kingpost::of(&world.cluster).set("proxy.workers", 1).set("proxy.pool.size", 1);
    let tweaks = tweaks.set("proxy.routing.route", "primary").set("proxy.pool.unnamed", "shared");
    let kingpost = tweaks.add("proxy.databases", alias(&left)).add("proxy.databases", alias(&right)).start().await;
    let mut proxied = Talk::new(kingpost.port());
    in_turn(&mut proxied, &[(USER, &format!("as_{left}")), (USER, &format!("as_{right}"))], &text, &[]).await;
    assert_eq!(direct.first_difference(&proxied), None);
}

/// Tables of one name in two schemas that come from `ALTER ROLE … SET search_path`: no client has set anything.
#[tokio::test]
async fn a_table_of_one_name_in_the_schemas_that_roles_were_altered_to() {
    let (world, _logs) = world().await;
    let (table, left, right) = (name("t"), name("left"), name("right"));
    let admin = world.cluster.primary().admin().await;
    let layouts = [(&left, "1 AS id, 'left' AS t, 0.5::real AS r"), (&right, "'right' AS t, 2::bigint AS id")];
    for (role, columns) in layouts {
        let sql = format!(
            "CREATE ROLE {role} LOGIN; CREATE SCHEMA s_{role} AUTHORIZATION {role};
             CREATE TABLE s_{role}.{table} AS SELECT {columns}; GRANT ALL ON s_{role}.{table} TO {role};
             ALTER ROLE {role} SET search_path = s_{role}"
        );
        admin.batch_execute(&sql).await.unwrap();
    }
    let pairs = [(&*left, DATABASE), (&*right, DATABASE)];
    let direct = world
        .as_postgres(&[ONE, TWO, REPLICA, UNNAMED], async |talk| {
            in_turn(talk, &pairs, &format!("SELECT * FROM {table}"), &[]).await;
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// The statements of the drivers below, over a table with an enumerated type, whose OID differs in each database.
const READS: [(&str, &[&str]); 3] = [
    ("SELECT id, name, feeling FROM ITEMS WHERE id = $1", &["1"]),
    ("SELECT * FROM ITEMS WHERE feeling = $1 ORDER BY id", &["fine"]),
    (
        "INSERT INTO ITEMS (id, name, feeling) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING feeling",
        &["1", "x", "low"],
    ),
];

/// Runs a driver's pattern, in two sessions in each of two databases with the very same DDL, in turn.
async fn same_ddl(stem: &str, driver: impl AsyncFn(&mut Talk, usize, usize, usize, &str, &[&str])) {
    let (world, _logs) = world().await;
    let table = name(stem);
    for database in [DATABASE, OTHER_DATABASE] {
        let sql = format!(
            "CREATE TYPE {table}_mood AS ENUM ('low', 'fine');
             CREATE TABLE {table} (id int PRIMARY KEY, name varchar(20), feeling {table}_mood);
             INSERT INTO {table} VALUES (1, 'in {database}', 'fine'), (2, 'two', 'low');
             GRANT ALL ON {table} TO PUBLIC"
        );
        world.cluster.primary().execute_in(database, &sql).await;
    }
    let direct = world
        .as_postgres(&[ONE, TWO, REPLICA], async |talk| {
            let mut sessions = Vec::new();
            for database in [DATABASE, OTHER_DATABASE, DATABASE, OTHER_DATABASE] {
                sessions.push(talk.login(USER, database).await);
            }
            for turn in 0..8 {
                for &who in &sessions {
                    for (n, (text, values)) in READS.iter().enumerate() {
                        driver(talk, who, n, turn, &text.replace("ITEMS", &table), values).await;
                    }
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// asyncpg's pattern: every query failed in one of two databases with the same DDL ("could not resolve query result and/or argument
/// types").
#[tokio::test]
async fn two_databases_of_the_same_ddl_as_asyncpg() {
    same_ddl("asyncpg", async |talk, who, n, turn, text, values| {
        let name = format!("__asyncpg_stmt_{n}__");
        if turn == 0 {
            talk.say(who, &[parse(&name, text), describe(b'S', &name), sync()]).await;
        }
        talk.say(who, &[bind("", &name, values), execute("", 0), sync()]).await;
    })
    .await;
}

/// psycopg's pattern: it prepares a statement at its fifth time, and from then on each query failed in one of two databases.
#[tokio::test]
async fn two_databases_of_the_same_ddl_as_psycopg() {
    same_ddl("psycopg", async |talk, who, n, turn, text, values| {
        let name = if turn < 4 { String::new() } else { format!("_pg3_{n}") };
        if turn == 4 {
            talk.say(who, &[parse(&name, text), sync()]).await;
        }
        let parse = (turn < 4).then(|| parse("", text));
        let rest = [bind("", &name, values), describe(b'P', ""), execute("", 0), sync()];
        talk.say(who, &parse.into_iter().chain(rest).collect::<Vec<_>>()).await;
    })
    .await;
}

/// pgjdbc's pattern: without a name four times, with one from the fifth on, described once; then each query failed in one of two
/// databases.
#[tokio::test]
async fn two_databases_of_the_same_ddl_as_pgjdbc() {
    same_ddl("pgjdbc", async |talk, who, n, turn, text, values| {
        let name = if turn < 4 { String::new() } else { format!("S_{n}") };
        let mut messages = Vec::new();
        if turn <= 4 {
            messages.push(parse(&name, text));
        }
        messages.push(bind("", &name, values));
        if turn <= 4 {
            messages.push(describe(b'P', ""));
        }
        messages.extend([execute("", 0), sync()]);
        talk.say(who, &messages).await;
    })
    .await;
}

/// A table was swapped for one of the same columns by two RENAMEs, past the proxy: clients on connections that had not described the statement got
/// 0A000, which aborted their transactions. PostgreSQL accepts it.
#[tokio::test]
async fn a_table_that_is_swapped_past_the_proxy() {
    let (world, _logs) = world().await;
    let table = name("swapped");
    let primary = world.cluster.primary();
    let layout = "(id int PRIMARY KEY, t varchar(20))";
    let make = format!(
        "DROP TABLE IF EXISTS {table}, {table}_old, {table}_new;
         CREATE TABLE {table} {layout}; INSERT INTO {table} VALUES (1, 'before');
         CREATE TABLE {table}_new {layout}; INSERT INTO {table}_new VALUES (1, 'after');
         GRANT ALL ON {table}, {table}_new TO PUBLIC"
    );
    let swap = format!("ALTER TABLE {table} RENAME TO {table}_old; ALTER TABLE {table}_new RENAME TO {table}");
    let text = format!("SELECT * FROM {table} WHERE id = $1");
    let ask = [bind("", "s", &["1"]), execute("", 0), sync()];
    let ask_for_columns = [bind("", "s", &["1"]), describe(b'P', ""), execute("", 0), sync()];
    // The connection on which it was described.
    let direct = world
        .as_postgres(&[ONE, TWO], async |talk| {
            primary.execute(&make).await;
            let clients = [talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await];
            for who in clients {
                talk.say(who, &[parse("s", &text), describe(b'S', "s"), sync()]).await;
                talk.say(who, &ask).await;
            }
            primary.execute(&swap).await;
            for who in clients {
                talk.query(who, "BEGIN").await;
                talk.say(who, &ask).await;
                talk.say(who, &ask_for_columns).await;
                talk.query(who, "COMMIT").await;
                // Prepared anew.
                talk.say(who, &[parse("again", &text), describe(b'S', "again"), sync()]).await;
                talk.say(who, &[bind("", "again", &["1"]), execute("", 0), close(b'S', "again"), sync()]).await;
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
    // A connection that has never seen it: another client holds the one that has.
    let direct = world
        .as_postgres(&[TWO], async |talk| {
            primary.execute(&make).await;
            let (holder, who) = (talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await);
            talk.say(who, &[parse("s", &text), describe(b'S', "s"), sync()]).await;
            talk.say(who, &ask).await;
            primary.execute(&swap).await;
            talk.query(holder, "BEGIN").await;
            talk.query(holder, "SELECT 1").await;
            talk.query(who, "BEGIN").await;
            talk.say(who, &ask).await;
            talk.say(who, &ask_for_columns).await;
            talk.query(who, "COMMIT").await;
            talk.query(holder, "COMMIT").await;
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
}

/// A column got another type unseen by the proxy: past the proxy, or in `DO`. Clients that prepared the text later still got the earlier parameters,
/// and `'007'` was stored as `7`. PostgreSQL keeps them for the session that has them, and for no other.
#[tokio::test]
async fn a_column_that_gets_another_type_unseen() {
    let (world, _logs) = world().await;
    let table = name("retyped");
    let primary = world.cluster.primary();
    let make = format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, v int, w date); ALTER TABLE {table} OWNER TO {USER}"
    );
    let alter = format!("ALTER TABLE {table} ALTER v TYPE text");
    let insert = format!("INSERT INTO {table} (v) VALUES ($1)");
    let find = format!("SELECT v FROM {table} WHERE v = $1");
    let other = format!("SELECT w FROM {table} WHERE w = $1");
    let ways = [false, true];
    for (way, front) in ways.iter().flat_map(|way| [ONE, TWO, UNNAMED].map(|front| (*way, front))) {
        let direct = world
            .as_postgres(&[front], async |talk| {
                for database in [DATABASE, OTHER_DATABASE] {
                    primary.execute_in(database, &make).await;
                }
                // Two clients that have the statement, and one of the other database, where nothing happens.
                let old = [talk.login(USER, DATABASE).await, talk.login(USER, DATABASE).await];
                let stranger = talk.login(USER, OTHER_DATABASE).await;
                for who in [old[0], old[1], stranger] {
                    for text in [&insert, &find, &other] {
                        talk.say(who, &[parse("s", text), describe(b'S', "s"), close(b'S', "s"), sync()]).await;
                    }
                    prepared(talk, who, "insert", &insert, &["08"]).await;
                    prepared(talk, who, "find", &find, &["08"]).await;
                    unnamed(talk, who, &find, &["8"]).await;
                    unnamed(talk, who, &find, &["08"]).await;
                }
                if way {
                    talk.query(old[1], &format!("DO $$ BEGIN EXECUTE '{alter}'; END $$")).await;
                } else {
                    primary.execute(&alter).await;
                }
                // The proxy checks now and then that a text still means the same.
                let new = talk.login(USER, DATABASE).await;
                for text in [&insert, &find] {
                    let mut looks = 0;
                    wait_until("parameters of the new type", SOON, world.cluster.dir(), async || {
                        // A name that is used again would be taken after a failed check.
                        looks += 1;
                        let name = format!("look{looks}");
                        let look = [parse(&name, text), describe(b'S', &name), close(b'S', &name), sync()];
                        talk.say_aside(new, &look).await.contains(&ServerMessage::Parameters(vec![25])).then_some(())
                    })
                    .await;
                }
                let newer = talk.login(USER, DATABASE).await;
                for who in [new, newer, stranger] {
                    prepared(talk, who, "insert_now", &insert, &["007"]).await;
                    prepared(talk, who, "find_now", &find, &["007"]).await;
                    unnamed(talk, who, &find, &["007"]).await;
                    talk.query(who, "BEGIN").await;
                    unnamed(talk, who, &insert, &["0010"]).await;
                    talk.say(who, &[parse("s", &other), describe(b'S', "s"), close(b'S', "s"), sync()]).await;
                    talk.query(who, "COMMIT").await;
                }
                // Clients that prepared it before have a parameter of the former type.
                for who in old {
                    talk.say(who, &[describe(b'S', "insert"), sync()]).await;
                    talk.say(who, &[bind("", "insert", &["009"]), execute("", 0), sync()]).await;
                    // `text = integer`.
                    talk.say(who, &[bind("", "find", &["009"]), execute("", 0), sync()]).await;
                }
                talk.say(stranger, &[bind("", "insert", &["009"]), execute("", 0), sync()]).await;
                for who in [new, stranger] {
                    talk.query(who, &format!("SELECT string_agg(v::text, ' ' ORDER BY v::text) FROM {table}")).await;
                }
            })
            .await;
        assert_eq!(direct.errors(), ["42883"; 2]);
    }
}

/// A database was dropped, and another one has its name by now: for up to 10 s new clients were told the former one's columns, and `'007'` was stored
/// as `7`.
#[tokio::test]
async fn a_database_that_has_the_name_of_one_that_was_dropped() {
    let (world, _logs) = world().await;
    let (database, next, t) = (name("anew"), name("next"), name("t"));
    let primary = world.cluster.primary();
    let tables = [
        (&*database, format!("CREATE TABLE {t} (id int, a text); ALTER TABLE {t} OWNER TO {USER}")),
        (&*next, format!("CREATE TABLE {t} (price numeric, id text, z bool); ALTER TABLE {t} OWNER TO {USER}")),
    ];
    primary.execute_in(OTHER_DATABASE, &tables[0].1).await;
    let (insert, all) = (&*format!("INSERT INTO {t} (id) VALUES ($1)"), &*format!("SELECT * FROM {t}"));
    for front in [ONE, TWO, UNNAMED] {
        let direct = world
            .as_postgres(&[front], async |talk| {
                for (database, table) in &tables {
                    primary.execute(&format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")).await;
                    primary.execute(&format!("CREATE DATABASE {database}")).await;
                    primary.execute_in(database, table).await;
                }
                let stranger = talk.login(USER, OTHER_DATABASE).await;
                let old = talk.login(USER, &database).await;
                for who in [old, stranger] {
                    prepared(talk, who, "insert", insert, &["08"]).await;
                    prepared(talk, who, "all", all, &[]).await;
                    unnamed(talk, who, insert, &["08"]).await;
                }
                talk.logout(old).await;
                primary.execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await;
                primary.execute(&format!("ALTER DATABASE {next} RENAME TO {database}")).await;
                let new = talk.login(USER, &database).await;
                for who in [new, stranger] {
                    prepared(talk, who, "insert_now", insert, &["007"]).await;
                    prepared(talk, who, "all_now", all, &[]).await;
                    unnamed(talk, who, insert, &["0010"]).await;
                    talk.query(who, &format!("SELECT string_agg(id::text, ' ') FROM {t}")).await;
                    talk.query(who, &format!("DELETE FROM {t}")).await;
                }
            })
            .await;
        assert_eq!(direct.errors(), [""; 0]);
    }
}

/// Sessions of a role begin with another search path, and the connections with the former one have ended: new clients were still told the columns and
/// parameters of the former one.
#[tokio::test]
async fn a_search_path_that_new_connections_begin_with() {
    let (world, _logs) = world().await;
    let (role, one, two) = (name("wanderer"), name("one"), name("two"));
    let primary = world.cluster.primary();
    primary.execute(&format!("CREATE ROLE {role} LOGIN")).await;
    let schemas = format!(
        "CREATE SCHEMA {one} CREATE TABLE q (id int, a text); CREATE SCHEMA {two} CREATE TABLE q (price numeric, id text);
         GRANT USAGE ON SCHEMA {one}, {two} TO public; GRANT ALL ON {one}.q, {two}.q TO public"
    );
    primary.execute(&schemas).await;
    let insert = "INSERT INTO q (id) VALUES ($1)";
    let starts = async |path: &str| {
        primary.execute(&format!("ALTER ROLE {role} SET search_path = {path}")).await;
        let end = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE usename";
        primary.execute(&format!("{end} = '{role}'")).await;
    };
    for front in [ONE, UNNAMED] {
        let direct = world
            .as_postgres(&[front], async |talk| {
                starts(&one).await;
                let stranger = talk.login(USER, DATABASE).await;
                talk.query(stranger, &format!("SET search_path = {one}")).await;
                let old = talk.login(&role, DATABASE).await;
                for who in [old, stranger] {
                    prepared(talk, who, "insert", insert, &["08"]).await;
                    prepared(talk, who, "all", "SELECT * FROM q", &[]).await;
                }
                talk.logout(old).await;
                starts(&two).await;
                let new = talk.login(&role, DATABASE).await;
                for who in [new, stranger] {
                    prepared(talk, who, "insert_now", insert, &["007"]).await;
                    prepared(talk, who, "all_now", "SELECT * FROM q", &[]).await;
                    talk.query(who, "SELECT string_agg(id::text, ' ') FROM q").await;
                    talk.query(who, "DELETE FROM q").await;
                }
            })
            .await;
        assert_eq!(direct.errors(), [""; 0]);
    }
}
