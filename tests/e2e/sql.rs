//! Ordinary SQL of a user, through tokio-postgres: answers and errors in every state.

use futures_util::future::join;
use futures_util::{TryStreamExt, pin_mut};
use kingpost_tests::{SOON, sqlstate, within};
use tokio_postgres::{AsyncMessage, error::Severity};

use crate::common::{name, shared, simple, value};

#[tokio::test]
async fn ddl_and_rows() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let table = name("ddl");
    client
        .batch_execute(&format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, name text NOT NULL, at timestamptz DEFAULT now());
             CREATE INDEX ON {table} (name);
             ALTER TABLE {table} ADD COLUMN tags text[] DEFAULT '{{}}';"
        ))
        .await
        .unwrap();
    let insert = format!("INSERT INTO {table} (id, name, tags) VALUES ($1, $2, $3)");
    let tags = vec!["x".to_owned(), "y".to_owned()];
    assert_eq!(client.execute(&insert, &[&1i32, &"one", &tags]).await.unwrap(), 1);
    assert_eq!(client.execute(&insert, &[&2i32, &"two", &tags]).await.unwrap(), 1);
    let update = format!("UPDATE {table} SET name = upper(name) WHERE id = $1 RETURNING name");
    assert_eq!(client.query_one(&update, &[&2i32]).await.unwrap().get::<_, String>(0), "TWO");
    let rows = client.query(&format!("SELECT id, name, tags FROM {table} ORDER BY id"), &[]).await.unwrap();
    let seen: Vec<(i32, String, Vec<String>)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    assert_eq!(seen, [(1, "one".into(), tags.clone()), (2, "TWO".into(), tags)]);
    assert_eq!(client.execute(&format!("DELETE FROM {table} WHERE id = 1"), &[]).await.unwrap(), 1);
    assert_eq!(value(&client, &format!("SELECT count(*) FROM {table}")).await, "1");
    client.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
    let gone = client.simple_query(&format!("SELECT * FROM {table}")).await.unwrap_err();
    assert_eq!(sqlstate(&gone), "42P01");
}

#[tokio::test]
async fn transactions_commit_and_roll_back() {
    let (shared, _logs) = shared().await;
    let mut client = shared.kingpost.connect().await;
    let other = shared.kingpost.connect().await;
    let table = name("tx");
    client.batch_execute(&format!("CREATE TABLE {table} (id int PRIMARY KEY)")).await.unwrap();
    let insert = format!("INSERT INTO {table} VALUES ($1)");
    // The other client reads at the primary: it has no guarantee to see this one's writes on a replica.
    let count = format!("/* kingpost.route=primary */ SELECT count(*) FROM {table}");

    let tx = client.transaction().await.unwrap();
    tx.execute(&insert, &[&1i32]).await.unwrap();
    assert_eq!(value(&other, &count).await, "0", "an open transaction shows");
    tx.commit().await.unwrap();
    assert_eq!(value(&other, &count).await, "1");

    let tx = client.transaction().await.unwrap();
    tx.execute(&insert, &[&2i32]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(value(&other, &count).await, "1", "a rolled back row shows");

    let mut tx = client.transaction().await.unwrap();
    tx.execute(&insert, &[&3i32]).await.unwrap();
    let savepoint = tx.transaction().await.unwrap();
    let duplicate = savepoint.execute(&insert, &[&3i32]).await.unwrap_err();
    assert_eq!(sqlstate(&duplicate), "23505");
    savepoint.rollback().await.unwrap();
    tx.execute(&insert, &[&4i32]).await.unwrap();
    tx.commit().await.unwrap();
    let ids = simple(&client, &format!("SELECT id FROM {table} ORDER BY id")).await.concat();
    assert_eq!(ids, ["1", "3", "4"]);
}

#[tokio::test]
async fn errors_leave_the_connection_usable() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    // Simple; then extended, found while parsing, while binding (the driver sends any given value), while executing.
    let error = client.simple_query("SELEC 1").await.unwrap_err();
    assert_eq!(
        (sqlstate(&error), error.as_db_error().unwrap().message()),
        ("42601", "syntax error at or near \"SELEC\"")
    );
    assert!(error.as_db_error().unwrap().position().is_some(), "an error's fields get lost: {error:?}");
    let errors = [
        ("SELECT * FROM no_such_table", "42P01"),
        ("SELECT 'x'::text::int", "22P02"),
        ("SELECT 1 / (SELECT 0)", "22012"),
        ("SELECT no_such_function()", "42883"),
    ];
    for (sql, code) in errors {
        assert_eq!(sqlstate(&client.query(sql, &[]).await.unwrap_err()), code, "extended: {sql}");
        assert_eq!(sqlstate(&client.simple_query(sql).await.unwrap_err()), code, "simple: {sql}");
        assert_eq!(value(&client, "SELECT 7").await, "7", "after {sql}");
    }
    // Part of an answer first, then the error.
    let error = client.query("SELECT 1 / (50000 - n) FROM generate_series(1, 60000) n", &[]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "22012");
    assert_eq!(value(&client, "SELECT 7").await, "7");
}

#[tokio::test]
async fn errors_in_a_transaction_last_until_its_end() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    for end in ["ROLLBACK", "COMMIT"] {
        client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(sqlstate(&client.query("SELECT 1/0", &[]).await.unwrap_err()), "22012");
        assert_eq!(sqlstate(&client.query("SELECT 1", &[]).await.unwrap_err()), "25P02");
        assert_eq!(sqlstate(&client.simple_query("SELECT 1").await.unwrap_err()), "25P02");
        client.batch_execute(end).await.unwrap();
        assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
    }
}

#[tokio::test]
async fn pipelined_statements_get_their_own_answers() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let square = client.prepare("SELECT $1::int * $1::int, repeat('x', $1)").await.unwrap();
    let fail = client.prepare("SELECT 10 / $1::int").await.unwrap();
    for round in 0..50i32 {
        // All are sent before the first answer is read; the failing one must fail alone.
        let (zero, next) = (0i32, round + 1);
        let (first, (failed, second)) = join(
            client.query_one(&square, &[&round]),
            join(client.query_one(&fail, &[&zero]), client.query_one(&square, &[&next])),
        )
        .await;
        assert_eq!(first.unwrap().get::<_, i32>(0), round * round);
        assert_eq!(sqlstate(&failed.unwrap_err()), "22012");
        let second = second.unwrap();
        assert_eq!((second.get::<_, i32>(0), second.get::<_, String>(1).len()), (next * next, next as usize));
    }
}

#[tokio::test]
async fn several_statements_in_one_query() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let table = name("multi");
    let rows = simple(
        &client,
        &format!(
            "CREATE TABLE {table} (n int); INSERT INTO {table} VALUES (1), (2);
             SELECT n FROM {table} ORDER BY n; ; SELECT 'a;b' -- c;d"
        ),
    )
    .await;
    assert_eq!(rows.concat(), ["1", "2", "a;b"]);
    let error = client.simple_query(&format!("INSERT INTO {table} VALUES (3); SELECT 1/0")).await.unwrap_err();
    assert_eq!(sqlstate(&error), "22012");
    assert_eq!(value(&client, &format!("SELECT count(*) FROM {table}")).await, "2", "one query is one transaction");
    assert!(client.simple_query("").await.is_ok(), "an empty query has an answer");
    assert!(client.simple_query(" -- nothing\n ; ").await.is_ok());
    client.execute("", &[]).await.unwrap();
    assert_eq!(value(&client, "SELECT 7").await, "7");
}

#[tokio::test]
async fn notices_arrive() {
    let (shared, _logs) = shared().await;
    let endpoint = shared.kingpost.endpoint();
    let (client, mut messages) = endpoint.connect_with_messages(&endpoint.config()).await;
    let sql = "DO $$ BEGIN FOR n IN 1..100 LOOP RAISE NOTICE 'notice %', n; END LOOP; RAISE WARNING 'last'; END $$";
    client.batch_execute(sql).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 101 {
        let message = within("the notices", SOON, shared.cluster.dir(), messages.recv()).await;
        if let AsyncMessage::Notice(notice) = message.expect("the connection stays") {
            seen.push((notice.parsed_severity(), notice.message().to_owned()));
        }
    }
    assert_eq!(seen[41], (Some(Severity::Notice), "notice 42".into()));
    assert_eq!(seen[100], (Some(Severity::Warning), "last".into()));
}

#[tokio::test]
async fn portals_give_rows_in_portions() {
    let (shared, _logs) = shared().await;
    let mut client = shared.kingpost.connect().await;
    let tx = client.transaction().await.unwrap();
    let portal = tx.bind("SELECT n, repeat('x', 1000) FROM generate_series(1, 2500) n", &[]).await.unwrap();
    let other = tx.bind("SELECT -n FROM generate_series(1, 3) n", &[]).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let rows = tx.query_portal(&portal, 1000).await.unwrap();
        if rows.is_empty() {
            break;
        }
        seen.extend(rows.iter().map(|row| row.get::<_, i32>(0)));
        assert!(tx.query_portal(&other, 1).await.unwrap().len() <= 1, "an interleaved portal");
    }
    assert_eq!(seen, (1..=2500).collect::<Vec<i32>>());
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_result_that_is_dropped_half_way_is_followed_by_the_next() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    for _ in 0..5 {
        let sql = "SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n";
        let rows = client.query_raw(sql, std::iter::empty::<i32>()).await.unwrap();
        {
            pin_mut!(rows);
            assert!(rows.try_next().await.unwrap().is_some());
        }
        assert_eq!(client.query_one("SELECT 7", &[]).await.unwrap().get::<_, i32>(0), 7);
    }
}

#[tokio::test]
async fn session_state_stays_with_its_client() {
    let (shared, _logs) = shared().await;
    let one = shared.kingpost.connect().await;
    let two = shared.kingpost.connect().await;
    let (sequence, key) = (name("s"), kingpost_tests::unique());
    one.batch_execute(&format!("CREATE SEQUENCE {sequence} START 100")).await.unwrap();
    one.batch_execute(
        "CREATE TEMP TABLE mine (n int); INSERT INTO mine VALUES (1);
         PREPARE plan AS SELECT 'one'; SET work_mem = '7MB';
         BEGIN; DECLARE held CURSOR WITH HOLD FOR SELECT generate_series(1, 10); COMMIT;",
    )
    .await
    .unwrap();
    assert_eq!(value(&one, &format!("SELECT pg_advisory_lock({key})::text, 1")).await, "");
    assert_eq!(value(&one, &format!("SELECT nextval('{sequence}')")).await, "100");
    two.batch_execute("CREATE TEMP TABLE mine (n int); PREPARE plan AS SELECT 'two'").await.unwrap();
    for round in 1..=10 {
        assert_eq!(value(&one, "SELECT count(*) FROM mine").await, "1");
        assert_eq!(value(&two, "SELECT count(*) FROM mine").await, "0");
        assert_eq!(value(&one, "EXECUTE plan").await, "one");
        assert_eq!(value(&two, "EXECUTE plan").await, "two");
        assert_eq!(value(&one, "FETCH 1 FROM held").await, round.to_string());
        assert_eq!(value(&one, &format!("SELECT currval('{sequence}')")).await, "100");
        assert_eq!(value(&one, "SHOW work_mem").await, "7MB");
        assert_ne!(value(&two, "SHOW work_mem").await, "7MB");
        assert_eq!(value(&two, &format!("SELECT pg_try_advisory_lock({key})")).await, "f");
    }
    drop(one);
    // The first client's session state on the server goes with it.
    shared
        .cluster
        .wait("the lock of a client that has gone", async || {
            (value(&two, &format!("SELECT pg_try_advisory_lock({key})")).await == "t").then_some(())
        })
        .await;
}

#[tokio::test]
async fn listen_hears_notify() {
    let (shared, _logs) = shared().await;
    let endpoint = shared.kingpost.endpoint();
    let (listener, mut messages) = endpoint.connect_with_messages(&endpoint.config()).await;
    let other = shared.kingpost.connect().await;
    let channel = name("channel");
    listener.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
    for n in 0..3 {
        other.batch_execute(&format!("NOTIFY {channel}, 'payload {n}'")).await.unwrap();
        loop {
            let message = within("a notification", SOON, shared.cluster.dir(), messages.recv()).await;
            if let AsyncMessage::Notification(notification) = message.expect("the connection stays") {
                assert_eq!(
                    (notification.channel(), notification.payload()),
                    (channel.as_str(), &*format!("payload {n}"))
                );
                break;
            }
        }
    }
}
