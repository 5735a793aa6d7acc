//! Replicas: missing objects, statements without meaning there, and unannounced writes of clients.

use kingpost_tests::oracle::{ServerMessage, Talk, error, values};
use kingpost_tests::raw::{bind, close, describe, execute, parse, query, sync};
use kingpost_tests::{Cluster, DATABASE, Kingpost, SCRAM_USER, ShowLogs, Subject, USER, subject, unique, user};
use tokio::sync::OnceCell;

use crate::common::{name, value};
use crate::isolation::{OTHER_DATABASE, OTHER_USER, REPLICA, people, world};

/// A table that every user may read and write, and a view with a function that writes into it, on a replica that has both and will never get another
/// row.
struct Lagging {
    cluster: Cluster,
    kingpost: Kingpost,
}

/// Returns the shared cluster, with replay paused on the replica, and a guard that shows its logs if the test panics.
async fn lagging() -> (&'static Lagging, ShowLogs<'static>) {
    static LAGGING: OnceCell<Lagging> = OnceCell::const_new();
    let lagging = LAGGING
        .get_or_init(async || {
            let cluster = Cluster::builder().replicas(1).start().await;
            people(&cluster).await;
            let sql = "CREATE TABLE visits (who text); GRANT ALL ON visits TO PUBLIC;
                       CREATE FUNCTION visit() RETURNS text LANGUAGE sql VOLATILE AS
                           $$ INSERT INTO visits VALUES (current_setting('application_name')) RETURNING who $$;
                       CREATE VIEW visitor AS SELECT visit() AS who; GRANT SELECT ON visitor TO PUBLIC";
            cluster.primary().execute(sql).await;
            cluster.wait_caught_up().await;
            cluster.replica(0).pause_replay().await;
            let kingpost =
                Kingpost::of(&cluster).set("cluster.lag_limit", "1h").set("proxy.pool.size", 8).start().await;
            Lagging { cluster, kingpost }
        })
        .await;
    (lagging, ShowLogs(lagging.cluster.dir()))
}

/// Returns a query for this client's rows of `visits`.
fn visits_of(who: &str) -> String {
    format!("SELECT count(*) FROM visits WHERE who = '{who}'")
}

/// Checks that the replica lags, and is used: otherwise the tests here prove nothing. A client that has written nothing reads old rows there.
async fn check_lag(lagging: &Lagging) {
    if subject() != Subject::Kingpost {
        return;
    }
    lagging.cluster.primary().execute("INSERT INTO visits VALUES ('somebody')").await;
    let seen = value(&lagging.kingpost.connect().await, &visits_of("somebody")).await;
    assert_eq!(seen, "0", "the replica does not lag, or is not asked");
}

/// A database that a replica does not have yet, after CREATE DATABASE through the proxy: every first read of every session failed with 3D000 for as
/// long as the replica lagged.
#[tokio::test]
async fn a_database_that_a_replica_does_not_have_yet() {
    let (lagging, _logs) = lagging().await;
    check_lag(lagging).await;
    let database = name("fresh");
    let mut talk = Talk::new(lagging.kingpost.port());
    let admin = talk.login("postgres", DATABASE).await;
    let made = talk.query(admin, &format!("CREATE DATABASE {database}")).await;
    assert_eq!(error(&made), None, "{made:?}");
    for user in [USER, OTHER_USER, USER] {
        let who = talk.login(user, &database).await;
        for _ in 0..2 {
            let said = talk.query(who, "SELECT current_database()").await;
            assert_eq!(values(&said), [&*database], "{user}: {said:?}");
            let said =
                talk.say(who, &[parse("", "SELECT $1::int"), bind("", "", &["5"]), execute("", 0), sync()]).await;
            assert_eq!(values(&said), ["5"], "{user}: {said:?}");
        }
        let said = talk.query(who, "/* kingpost.route=replica */ SELECT current_database()").await;
        assert_eq!(values(&said), [&*database], "{user}: {said:?}");
        let said = talk.query(who, "BEGIN READ ONLY; SELECT current_database(); COMMIT").await;
        assert_eq!(values(&said), [&*database], "{user}: {said:?}");
    }
}

/// A role that a replica does not have yet, as it has just been created.
#[tokio::test]
async fn a_role_that_a_replica_does_not_have_yet() {
    let (lagging, _logs) = lagging().await;
    check_lag(lagging).await;
    let role = name("newcomer");
    let mut talk = Talk::new(lagging.kingpost.port());
    let admin = talk.login("postgres", DATABASE).await;
    let made = talk.query(admin, &format!("CREATE ROLE {role} LOGIN")).await;
    assert_eq!(error(&made), None, "{made:?}");
    for database in [DATABASE, OTHER_DATABASE, DATABASE] {
        let who = talk.login(&role, database).await;
        for _ in 0..2 {
            let said = talk.query(who, "SELECT concat(user, ' ', current_database())").await;
            assert_eq!(values(&said), [format!("{role} {database}")], "{said:?}");
            let said = talk.query(who, "SELECT 7").await;
            assert_eq!(values(&said), ["7"], "{said:?}");
        }
    }
}

/// A password that has just been changed: the replica still asks for the old one.
#[tokio::test]
async fn a_password_that_a_replica_does_not_know_yet() {
    let (lagging, _logs) = lagging().await;
    check_lag(lagging).await;
    lagging.cluster.primary().execute(&format!("ALTER ROLE {SCRAM_USER} PASSWORD 'a new one'")).await;
    let kingpost = Kingpost::of(&lagging.cluster)
        .set("cluster.lag_limit", "1h")
        .set("proxy.auth", "scram-sha-256")
        .add("proxy.users", user(SCRAM_USER, "a new one"))
        .start()
        .await;
    let mut config = kingpost.endpoint().config();
    config.user(SCRAM_USER).password("a new one");
    for _ in 0..3 {
        let client = kingpost.endpoint().connect_as(&config).await;
        for _ in 0..2 {
            assert_eq!(value(&client, "SELECT current_user").await, SCRAM_USER);
            assert_eq!(client.query_one("SELECT 7", &[]).await.unwrap().get::<_, i32>(0), 7);
        }
    }
}

/// A replica that could not be used for a new database is used once it has it.
#[tokio::test]
async fn a_replica_that_gets_the_database_answers_again() {
    let cluster = Cluster::builder().replicas(1).start().await;
    let _logs = ShowLogs(cluster.dir());
    let kingpost = Kingpost::of(&cluster).set("cluster.lag_limit", "1h").set("proxy.pool.size", 2).start().await;
    cluster.wait_caught_up().await;
    cluster.replica(0).pause_replay().await;
    cluster.primary().execute("CREATE DATABASE fresh").await;
    let mut talk = Talk::new(kingpost.port());
    let who = talk.login(USER, "fresh").await;
    for _ in 0..3 {
        let said = talk.query(who, "SELECT 7").await;
        assert_eq!(values(&said), ["7"], "{said:?}");
    }
    cluster.replica(0).resume_replay().await;
    if subject() == Subject::Kingpost {
        let mut config = kingpost.endpoint().config();
        config.dbname("fresh");
        let client = kingpost.endpoint().connect_as(&config).await;
        let asks = "/* kingpost.route=replica */ SELECT pg_is_in_recovery()";
        cluster.wait("a read on the replica", async || (value(&client, asks).await == "t").then_some(())).await;
    }
}

/// A read of a view with a writing function, sent to the primary by a hint: the client's next read, on a lagging replica, did not show the written
/// row.
#[tokio::test]
async fn what_a_view_has_written_is_seen_by_the_next_read() {
    let (lagging, _logs) = lagging().await;
    check_lag(lagging).await;
    let mut wrong = Vec::new();
    for text in [
        "INSERT INTO visits VALUES (current_setting('application_name'))",
        "SELECT visit()",
        "/* kingpost.route=primary */ SELECT * FROM visitor",
        "SELECT * FROM visitor",
    ] {
        for extended in [false, true] {
            let who = name("visitor");
            let mut talk = Talk::new(lagging.kingpost.port());
            let client = talk.login_with(USER, DATABASE, &[("application_name", &who)]).await;
            let said = if extended {
                talk.say(client, &[parse("", text), bind("", "", &[]), execute("", 0), sync()]).await
            } else {
                talk.query(client, text).await
            };
            assert_eq!(error(&said), None, "{text}: {said:?}");
            let seen = talk.query(client, &visits_of(&who)).await;
            if values(&seen) != ["1"] {
                wrong.push(format!("{text}, extended: {extended}: {seen:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "own writes that are not seen:\n{}", wrong.join("\n"));
}

/// `BEGIN; SET kingpost.consistency = 'strong'` answered SET and changed nothing: later reads still returned old rows.
#[tokio::test]
async fn a_setting_of_the_proxy_right_behind_begin_counts() {
    let (lagging, _logs) = lagging().await;
    check_lag(lagging).await;
    let mut wrong = Vec::new();
    for sets in [
        &["SET kingpost.consistency = 'strong'"][..],
        &["BEGIN", "SET kingpost.consistency = 'strong'", "COMMIT"],
        &["BEGIN", "SELECT 1", "SET kingpost.consistency = 'strong'", "COMMIT"],
        &["BEGIN READ ONLY", "SET kingpost.consistency = 'strong'", "COMMIT"],
    ] {
        let who = name("somebody");
        lagging.cluster.primary().execute(&format!("INSERT INTO visits VALUES ('{who}')")).await;
        let mut talk = Talk::new(lagging.kingpost.port());
        let client = talk.login(USER, DATABASE).await;
        for set in sets {
            let said = talk.query(client, set).await;
            assert_eq!(error(&said), None, "{set}: {said:?}");
        }
        let shown = talk.query(client, "SHOW kingpost.consistency").await;
        let seen = talk.query(client, &visits_of(&who)).await;
        if (values(&shown), values(&seen)) != (vec!["strong".into()], vec!["1".into()]) {
            wrong.push(format!("{sets:?}: {shown:?}, {seen:?}"));
        }
    }
    assert!(wrong.is_empty(), "settings that do not count:\n{}", wrong.join("\n"));
}

/// `BEGIN READ ONLY; SELECT pg_advisory_xact_lock(77)` got, on a replica, the lock that another client held on the primary.
#[tokio::test]
async fn an_advisory_lock_first_in_a_read_only_transaction() {
    let (world, _logs) = world().await;
    let key = unique();
    let holder = world.cluster.primary().admin().await;
    holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
    let direct = world
        .as_postgres(&[REPLICA], async |talk| {
            for begin in ["BEGIN READ ONLY", "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"] {
                for extended in [false, true] {
                    for lock in
                        ["pg_try_advisory_xact_lock", "pg_try_advisory_xact_lock_shared", "pg_try_advisory_lock"]
                    {
                        let who = talk.login(USER, DATABASE).await;
                        talk.query(who, begin).await;
                        let text = format!("SELECT {lock}({key})");
                        let taken = if extended {
                            let all = [parse("", &text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()];
                            talk.say(who, &all).await
                        } else {
                            talk.query(who, &text).await
                        };
                        assert_eq!(values(&taken), ["f"], "{begin}: {text}: another client has it");
                        talk.query(who, "COMMIT").await;
                        // All in one packet, and in one query.
                        talk.say(who, &[query(begin), query(&text), query("COMMIT")]).await;
                        talk.query(who, &format!("{begin}; {text}; COMMIT")).await;
                        talk.logout(who).await;
                    }
                }
            }
        })
        .await;
    assert_eq!(direct.errors(), [""; 0]);
    drop(holder);
}

/// Such a lock behind a plain read, with the transaction already on a replica: an error is acceptable, the lock is not.
#[tokio::test]
async fn an_advisory_lock_later_in_a_read_only_transaction() {
    let (world, _logs) = world().await;
    let key = unique();
    let holder = world.cluster.primary().admin().await;
    holder.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
    world.cluster.wait_caught_up().await;
    let kingpost = REPLICA.start(&world.cluster).await;
    let mut talk = Talk::new(kingpost.port());
    for lock in [
        "pg_try_advisory_xact_lock",
        "pg_try_advisory_xact_lock_shared",
        "pg_try_advisory_lock",
        "pg_try_advisory_lock_shared",
    ] {
        for extended in [false, true] {
            let who = talk.login(USER, DATABASE).await;
            talk.query(who, "BEGIN READ ONLY").await;
            talk.query(who, "SELECT count(*) FROM pg_class").await;
            let text = format!("SELECT {lock}({key})");
            let said = if extended {
                talk.say(who, &[parse("l", &text), bind("", "l", &[]), execute("", 0), close(b'S', "l"), sync()]).await
            } else {
                talk.query(who, &text).await
            };
            assert!(values(&said) == ["f"] || error(&said).is_some(), "{lock}, extended: {extended}: {said:?}");
            talk.query(who, "ROLLBACK").await;
            let said = talk.query(who, "SELECT 7").await;
            assert_eq!(values(&said), ["7"]);
            talk.logout(who).await;
        }
    }
    drop(holder);
}

/// Statements that are valid first in a `BEGIN READ ONLY` on a primary failed, or were lost at COMMIT, because the transaction was on a replica.
#[tokio::test]
async fn what_is_first_in_a_read_only_transaction_is_as_on_the_primary() {
    let (world, _logs) = world().await;
    let (table, channel) = (name("locked"), name("channel"));
    let primary = world.cluster.primary();
    primary
        .execute(&format!("CREATE TABLE {table} AS SELECT generate_series(1, 3) AS n; GRANT ALL ON {table} TO PUBLIC"))
        .await;
    let transactions: [&[String]; 9] = [
        &[
            "SET TRANSACTION READ WRITE".into(),
            format!("INSERT INTO {table} VALUES (4)"),
            format!("SELECT count(*) FROM {table}"),
        ],
        &["SET transaction_read_only = off".into(), format!("DELETE FROM {table} WHERE n > 3")],
        &[format!("LOCK TABLE {table} IN SHARE MODE"), format!("SELECT count(*) FROM {table}")],
        &[format!("LOCK TABLE {table} IN ACCESS SHARE MODE"), format!("SELECT count(*) FROM {table}")],
        &["SELECT txid_current() > 0".into()],
        &["SELECT pg_current_xact_id() IS NULL".into(), "SELECT 1".into()],
        &[format!("LISTEN {channel}"), "SELECT 1".into()],
        &[format!("DECLARE held CURSOR WITH HOLD FOR SELECT n FROM {table} ORDER BY n"), "FETCH 1 FROM held".into()],
        &[format!("INSERT INTO {table} VALUES (5)")],
    ];
    let direct = world
        .as_postgres(&[REPLICA], async |talk| {
            for begin in ["BEGIN READ ONLY", "START TRANSACTION READ ONLY"] {
                for extended in [false, true] {
                    for statements in transactions {
                        let who = talk.login(USER, DATABASE).await;
                        talk.query(who, begin).await;
                        for text in statements {
                            if extended {
                                talk.say(
                                    who,
                                    &[parse("", text), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()],
                                )
                                .await;
                            } else {
                                talk.query(who, text).await;
                            }
                        }
                        talk.query(who, "COMMIT").await;
                        if statements[0].starts_with("DECLARE") {
                            talk.query(who, "FETCH ALL FROM held").await;
                            talk.query(who, "CLOSE held").await;
                        }
                        if statements[0].starts_with("LISTEN") {
                            let word = format!("NOTIFY {channel}, 'a word'");
                            let hears = async || {
                                let said = talk.say_aside(who, &[query(&word)]).await;
                                said.iter().any(|said| matches!(said, ServerMessage::Notified { .. })).then_some(())
                            };
                            world.cluster.wait("a word on the channel", hears).await;
                        }
                        talk.logout(who).await;
                    }
                }
            }
        })
        .await;
    // Only the last one is an error, as the client asked for it.
    assert_eq!(direct.errors(), ["25006"; 4]);
}

/// A snapshot belongs to one server: the exporting and the importing session must be on the same one, even if both only read.
#[tokio::test]
async fn a_snapshot_goes_from_one_reader_to_others() {
    let (lagging, _logs) = lagging().await;
    check_lag(lagging).await;
    let mut talk = Talk::new(lagging.kingpost.port());
    for begin in [
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        "BEGIN READ ONLY; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    ] {
        let one = talk.login(USER, DATABASE).await;
        talk.query(one, begin).await;
        let snapshot = values(&talk.query(one, "SELECT pg_export_snapshot()").await).concat();
        let count = "SELECT count(*) FROM visits";
        let before = values(&talk.query(one, count).await);
        lagging.cluster.primary().execute("INSERT INTO visits VALUES ('afterwards')").await;
        for user in [USER, OTHER_USER] {
            let other = talk.login(user, DATABASE).await;
            talk.query(other, begin).await;
            let taken = talk.query(other, &format!("SET TRANSACTION SNAPSHOT '{snapshot}'")).await;
            assert_eq!(error(&taken), None, "{begin}, {user}: {taken:?}");
            assert_eq!(values(&talk.query(other, count).await), before, "{begin}, {user}");
            talk.query(other, "COMMIT").await;
        }
        talk.query(one, "COMMIT").await;
    }
}
