//! tokio-postgres, and its pool deadpool.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use futures_util::{SinkExt, StreamExt, TryStreamExt, pin_mut, stream};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, Config, IsolationLevel, NoTls};

use crate::{Check, Failure, unique, url};

pub fn checks() -> Vec<Check> {
    crate::checks![
        parameters_and_types,
        prepared_in_many_clients,
        pipelined,
        transactions,
        portals,
        copies,
        listening,
        cancelling,
        errors_keep_the_connection,
        a_table_that_changes,
        session_settings,
        pool,
    ]
}

async fn connect() -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn table(client: &Client, columns: &str) -> Result<String, Failure> {
    let name = unique("tokio_postgres");
    client.batch_execute(&format!("CREATE TABLE {name} ({columns})")).await?;
    Ok(name)
}

async fn parameters_and_types() -> Result<(), Failure> {
    let client = connect().await?;
    assert_eq!(client.query_one("SELECT $1::int4 + $2::int4", &[&40, &2]).await?.get::<_, i32>(0), 42);
    assert_eq!(client.query_one("SELECT $1::text || 'é✓'", &[&"x'"]).await?.get::<_, String>(0), "x'é✓");
    assert_eq!(client.query_one("SELECT $1::int8[]", &[&vec![1i64, 2]]).await?.get::<_, Vec<i64>>(0), [1, 2]);
    assert_eq!(client.query_one("SELECT $1::bytea", &[&[0u8, 1, 255].as_slice()]).await?.get::<_, Vec<u8>>(0), [0, 1, 255]);
    assert_eq!(client.query_one("SELECT $1::text", &[&None::<String>]).await?.get::<_, Option<String>>(0), None);
    assert_eq!(client.query("SELECT n FROM generate_series(1, 10000) n", &[]).await?.len(), 10_000);
    let typed = client.query_typed("SELECT $1", &[(&7i32, Type::INT4)]).await?;
    assert_eq!(typed[0].get::<_, i32>(0), 7);
    Ok(())
}

async fn prepared_in_many_clients() -> Result<(), Failure> {
    let client = connect().await?;
    let name = table(&client, "n int4 PRIMARY KEY, t text").await?;
    let work = async |number: i32| {
        let client = connect().await?;
        let insert = client.prepare(&format!("INSERT INTO {name} VALUES ($1, $2)")).await?;
        let select = client.prepare(&format!("SELECT t FROM {name} WHERE n = $1")).await?;
        for turn in 0..20 {
            let n = number * 100 + turn;
            assert_eq!(client.execute(&insert, &[&n, &format!("row {n}")]).await?, 1);
            assert_eq!(client.query_one(&select, &[&n]).await?.get::<_, String>(0), format!("row {n}"));
        }
        Ok::<_, Failure>(())
    };
    try_join_all((0..12).map(work)).await?;
    Ok(())
}

async fn pipelined() -> Result<(), Failure> {
    let client = connect().await?;
    let divide = client.prepare("SELECT 100 / ($1::int4 - 50)").await?;
    let asked = (0..100).map(async |n: i32| client.query_one(&divide, &[&n]).await);
    for (n, answer) in join_all(asked).await.into_iter().enumerate() {
        match answer {
            Ok(row) => assert_eq!(row.get::<_, i32>(0), 100 / (n as i32 - 50)),
            Err(error) => {
                assert_eq!((n, error.code()), (50, Some(&SqlState::DIVISION_BY_ZERO)));
            }
        }
    }
    Ok(())
}

async fn transactions() -> Result<(), Failure> {
    let mut client = connect().await?;
    let name = table(&client, "n int4 PRIMARY KEY").await?;
    let insert = format!("INSERT INTO {name} VALUES ($1)");
    let count = format!("SELECT count(*) FROM {name}");
    let mut transaction = client.transaction().await?;
    transaction.execute(&insert, &[&1]).await?;
    let nested = transaction.savepoint("one").await?;
    assert_eq!(nested.execute(&insert, &[&1]).await.unwrap_err().code(), Some(&SqlState::UNIQUE_VIOLATION));
    nested.rollback().await?;
    transaction.execute(&insert, &[&2]).await?;
    transaction.commit().await?;
    let transaction = client.transaction().await?;
    transaction.execute(&insert, &[&3]).await?;
    // Dropped: rolled back by the driver, without waiting.
    drop(transaction);
    assert_eq!(client.query_one(&count, &[]).await?.get::<_, i64>(0), 2);
    let builder = client.build_transaction().isolation_level(IsolationLevel::Serializable).read_only(true);
    let transaction = builder.start().await?;
    assert_eq!(transaction.query_one(&count, &[]).await?.get::<_, i64>(0), 2);
    let refused = transaction.execute(&insert, &[&4]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::READ_ONLY_SQL_TRANSACTION));
    transaction.rollback().await?;
    Ok(())
}

async fn portals() -> Result<(), Failure> {
    let mut client = connect().await?;
    let transaction = client.transaction().await?;
    let portal = transaction.bind("SELECT n FROM generate_series(1, $1::int4) n", &[&250]).await?;
    let mut seen = 0;
    loop {
        let rows = transaction.query_portal(&portal, 100).await?;
        seen += rows.len();
        assert_eq!(transaction.query_one("SELECT 7", &[]).await?.get::<_, i32>(0), 7);
        if rows.len() < 100 {
            break;
        }
    }
    assert_eq!(seen, 250);
    transaction.commit().await?;
    Ok(())
}

async fn copies() -> Result<(), Failure> {
    let client = connect().await?;
    let name = table(&client, "n int4, t text").await?;
    let sink = client.copy_in(&format!("COPY {name} FROM STDIN")).await?;
    let lines = stream::iter((0..5000).map(|n| Ok::<_, tokio_postgres::Error>(Bytes::from(format!("{n}\trow {n}\n")))));
    pin_mut!(sink, lines);
    sink.send_all(&mut lines).await?;
    assert_eq!(sink.finish().await?, 5000);
    let out = client.copy_out(&format!("COPY {name} TO STDOUT")).await?;
    let size: usize = out.map_ok(|chunk| chunk.len()).try_fold(0, async |sum, n| Ok(sum + n)).await?;
    assert!(size > 5000 * 8);
    // Dropped before its end: the driver fails it.
    let sink = client.copy_in::<_, Bytes>(&format!("COPY {name} FROM STDIN")).await?;
    drop(sink);
    assert_eq!(client.query_one(&format!("SELECT count(*) FROM {name}"), &[]).await?.get::<_, i64>(0), 5000);
    Ok(())
}

async fn listening() -> Result<(), Failure> {
    let (client, mut connection) = tokio_postgres::connect(&url(), NoTls).await?;
    let (heard, mut inbox) = tokio::sync::mpsc::unbounded_channel();
    let messages = stream::poll_fn(move |context| connection.poll_message(context));
    tokio::spawn(messages.for_each(move |message| {
        if let Ok(AsyncMessage::Notification(note)) = message {
            let _ = heard.send(note.payload().to_owned());
        }
        async {}
    }));
    let channel = unique("tokio_postgres");
    client.batch_execute(&format!("LISTEN {channel}")).await?;
    let other = connect().await?;
    for payload in ["one", "two"] {
        other.execute("SELECT pg_notify($1, $2)", &[&channel, &payload]).await?;
    }
    assert_eq!(inbox.recv().await.as_deref(), Some("one"));
    assert_eq!(inbox.recv().await.as_deref(), Some("two"));
    Ok(())
}

async fn cancelling() -> Result<(), Failure> {
    let client = connect().await?;
    for _ in 0..3 {
        let cancel = client.cancel_token();
        let sleeping = client.simple_query("SELECT pg_sleep(600)");
        let cancelling = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cancel.cancel_query(NoTls).await
        };
        let (slept, cancelled) = tokio::join!(sleeping, cancelling);
        cancelled?;
        assert_eq!(slept.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
        assert_eq!(client.query_one("SELECT 7", &[]).await?.get::<_, i32>(0), 7);
    }
    Ok(())
}

async fn errors_keep_the_connection() -> Result<(), Failure> {
    let client = connect().await?;
    for (text, code) in [("SELEC 1", SqlState::SYNTAX_ERROR), ("SELECT * FROM no_such_table", SqlState::UNDEFINED_TABLE)] {
        assert_eq!(client.query(text, &[]).await.unwrap_err().code(), Some(&code));
        assert_eq!(client.simple_query(text).await.unwrap_err().code(), Some(&code));
        assert_eq!(client.query_one("SELECT 7", &[]).await?.get::<_, i32>(0), 7);
    }
    Ok(())
}

async fn a_table_that_changes() -> Result<(), Failure> {
    let client = connect().await?;
    let name = table(&client, "a int4").await?;
    client.batch_execute(&format!("INSERT INTO {name} VALUES (1)")).await?;
    let text = format!("SELECT * FROM {name}");
    for columns in 1..4 {
        assert_eq!(client.query(&text, &[]).await?[0].len(), columns);
        assert_eq!(client.query_typed(&text, &[]).await?[0].len(), columns);
        client.batch_execute(&format!("ALTER TABLE {name} ADD COLUMN c{columns} text")).await?;
    }
    Ok(())
}

async fn session_settings() -> Result<(), Failure> {
    let mut config: Config = url().parse()?;
    config.application_name("tokio-postgres tests").options("-c statement_timeout=77s");
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    for _ in 0..8 {
        assert_eq!(client.query_one("SHOW application_name", &[]).await?.get::<_, String>(0), "tokio-postgres tests");
        assert_eq!(client.query_one("SHOW statement_timeout", &[]).await?.get::<_, String>(0), "77s");
    }
    Ok(())
}

async fn pool() -> Result<(), Failure> {
    let manager = deadpool_postgres::Manager::new(url().parse()?, NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(12).build()?;
    let name = table(&*pool.get().await?, "n int4 PRIMARY KEY").await?;
    let work = async |n: i32| {
        let client = pool.get().await?;
        let insert = client.prepare_cached(&format!("INSERT INTO {name} VALUES ($1)")).await?;
        client.execute(&insert, &[&n]).await?;
        let count = client.prepare_cached(&format!("SELECT count(*) FROM {name} WHERE n = $1")).await?;
        assert_eq!(client.query_one(&count, &[&n]).await?.get::<_, i64>(0), 1);
        Ok::<_, Failure>(())
    };
    try_join_all((0..200).map(work)).await?;
    Ok(())
}
