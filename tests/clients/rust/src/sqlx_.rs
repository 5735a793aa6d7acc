//! sqlx: it prepares every statement by name, describes it, and asks the catalogue for types that it does not know.

use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use sqlx::types::{Json, Uuid};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use crate::{Check, Failure, unique, url};

pub fn checks() -> Vec<Check> {
    crate::checks![
        parameters_and_types,
        rows_as_structs,
        types_of_ones_own,
        transactions,
        pool,
        streams,
        copies,
        listening,
        errors_keep_the_connection,
        a_table_that_changes,
        statement_time_out,
        cache_of_statements,
    ]
}

async fn connect() -> Result<PgConnection, Failure> {
    Ok(PgConnection::connect(&url()).await?)
}

async fn run(connection: &mut PgConnection, text: String) -> Result<(), Failure> {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(text))).await?;
    Ok(())
}

async fn table(connection: &mut PgConnection, columns: &str) -> Result<String, Failure> {
    let name = unique("sqlx");
    run(connection, format!("CREATE TABLE {name} ({columns})")).await?;
    Ok(name)
}

fn code(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).map(Into::into).unwrap_or_default()
}

async fn parameters_and_types() -> Result<(), Failure> {
    let mut connection = connect().await?;
    let sum: i32 = sqlx::query_scalar("SELECT $1 + $2").bind(40).bind(2).fetch_one(&mut connection).await?;
    assert_eq!(sum, 42);
    let id = Uuid::new_v4();
    let row = sqlx::query("SELECT $1::uuid, $2::jsonb, $3::text[], $4::bytea, $5::text")
        .bind(id)
        .bind(Json(vec![1, 2]))
        .bind(vec!["a".to_owned(), "é✓".to_owned()])
        .bind(vec![0u8, 1, 255])
        .bind(None::<String>)
        .fetch_one(&mut connection)
        .await?;
    assert_eq!(row.get::<Uuid, _>(0), id);
    assert_eq!(row.get::<Json<Vec<i32>>, _>(1).0, [1, 2]);
    assert_eq!(row.get::<Vec<String>, _>(2), ["a", "é✓"]);
    assert_eq!(row.get::<Vec<u8>, _>(3), [0, 1, 255]);
    assert_eq!(row.get::<Option<String>, _>(4), None);
    connection.close().await?;
    Ok(())
}

#[derive(sqlx::FromRow, Debug, PartialEq)]
struct Book {
    id: i64,
    title: String,
}

async fn rows_as_structs() -> Result<(), Failure> {
    let mut connection = connect().await?;
    let name = table(&mut connection, "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, title text NOT NULL").await?;
    for n in 1..=50 {
        let text = format!("INSERT INTO {name} (title) VALUES ($1) RETURNING id, title");
        let book: Book = sqlx::query_as(AssertSqlSafe(text)).bind(format!("b{n}")).fetch_one(&mut connection).await?;
        assert_eq!(book, Book { id: n, title: format!("b{n}") });
    }
    let text = format!("SELECT id, title FROM {name} WHERE id = ANY($1) ORDER BY id");
    let books: Vec<Book> = sqlx::query_as(AssertSqlSafe(text)).bind(vec![3i64, 7]).fetch_all(&mut connection).await?;
    assert_eq!(books.iter().map(|book| book.id).collect::<Vec<_>>(), [3, 7]);
    Ok(())
}

async fn types_of_ones_own() -> Result<(), Failure> {
    #[derive(sqlx::Type, Debug, PartialEq, Clone, Copy)]
    #[sqlx(type_name = "sqlx_mood", rename_all = "lowercase")]
    enum Mood {
        Sad,
        Glad,
    }
    let mut connection = connect().await?;
    let create = "DO $$ BEGIN CREATE TYPE sqlx_mood AS ENUM ('sad', 'glad'); EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    run(&mut connection, create.into()).await?;
    // Another connection, which has to look the type up.
    let mut other = connect().await?;
    for mood in [Mood::Sad, Mood::Glad] {
        let text = "/* kingpost.route=primary */ SELECT $1::sqlx_mood";
        assert_eq!(sqlx::query_scalar::<_, Mood>(text).bind(mood).fetch_one(&mut other).await?, mood);
    }
    Ok(())
}

async fn transactions() -> Result<(), Failure> {
    let mut connection = connect().await?;
    let name = table(&mut connection, "n int4 PRIMARY KEY").await?;
    let insert = || AssertSqlSafe(format!("INSERT INTO {name} VALUES ($1)"));
    let count = || AssertSqlSafe(format!("SELECT count(*) FROM {name}"));
    let mut transaction = connection.begin().await?;
    sqlx::query(insert()).bind(1).execute(&mut *transaction).await?;
    let mut nested = transaction.begin().await?;
    let error = sqlx::query(insert()).bind(1).execute(&mut *nested).await.unwrap_err();
    assert_eq!(code(&error), "23505");
    nested.rollback().await?;
    sqlx::query(insert()).bind(2).execute(&mut *transaction).await?;
    transaction.commit().await?;
    let mut transaction = connection.begin().await?;
    sqlx::query(insert()).bind(3).execute(&mut *transaction).await?;
    // Dropped: rolled back with the connection's next use.
    drop(transaction);
    assert_eq!(sqlx::query_scalar::<_, i64>(count()).fetch_one(&mut connection).await?, 2);
    let mut transaction = connection.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY").await?;
    assert_eq!(sqlx::query_scalar::<_, i64>(count()).fetch_one(&mut *transaction).await?, 2);
    let error = sqlx::query(insert()).bind(4).execute(&mut *transaction).await.unwrap_err();
    assert_eq!(code(&error), "25006");
    transaction.rollback().await?;
    Ok(())
}

async fn pool() -> Result<(), Failure> {
    let pool = PgPoolOptions::new().max_connections(12).acquire_timeout(Duration::from_secs(20)).connect(&url()).await?;
    let name = table(&mut *pool.acquire().await?, "n int4 PRIMARY KEY").await?;
    let work = async |n: i32| {
        let mut connection = pool.acquire().await?;
        let insert = AssertSqlSafe(format!("INSERT INTO {name} VALUES ($1)"));
        sqlx::query(insert).bind(n).execute(&mut *connection).await?;
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {name} WHERE n = $1"));
        assert_eq!(sqlx::query_scalar::<_, i64>(count).bind(n).fetch_one(&mut *connection).await?, 1);
        Ok::<_, Failure>(())
    };
    try_join_all((0..200).map(work)).await?;
    let count = AssertSqlSafe(format!("/* kingpost.route=primary */ SELECT count(*) FROM {name}"));
    assert_eq!(sqlx::query_scalar::<_, i64>(count).fetch_one(&pool).await?, 200);
    pool.close().await;
    Ok(())
}

async fn streams() -> Result<(), Failure> {
    let mut connection = connect().await?;
    {
        let mut rows = sqlx::query_scalar::<_, i32>("SELECT n FROM generate_series(1, 5000) n").fetch(&mut connection);
        let mut last = 0;
        while let Some(n) = rows.try_next().await? {
            assert_eq!(n, last + 1);
            last = n;
        }
        assert_eq!(last, 5000);
    }
    {
        // Left before its end.
        let mut rows = sqlx::query_scalar::<_, i32>("SELECT n FROM generate_series(1, 5000) n").fetch(&mut connection);
        assert_eq!(rows.try_next().await?, Some(1));
    }
    assert_eq!(sqlx::query_scalar::<_, i32>("SELECT 7").fetch_one(&mut connection).await?, 7);
    Ok(())
}

async fn copies() -> Result<(), Failure> {
    let mut connection = connect().await?;
    let name = table(&mut connection, "n int4, t text").await?;
    let mut copy = connection.copy_in_raw(&format!("COPY {name} FROM STDIN")).await?;
    for n in 0..5000 {
        copy.send(format!("{n}\trow {n}\n").into_bytes()).await?;
    }
    assert_eq!(copy.finish().await?, 5000);
    let out = connection.copy_out_raw(&format!("COPY {name} TO STDOUT")).await?;
    let size: usize = out.map_ok(|chunk| chunk.len()).try_fold(0, async |sum, n| Ok(sum + n)).await?;
    assert!(size > 5000 * 8);
    Ok(())
}

async fn listening() -> Result<(), Failure> {
    let channel = unique("sqlx");
    let mut listener = PgListener::connect(&url()).await?;
    listener.listen(&channel).await?;
    let mut other = connect().await?;
    for payload in ["one", "two"] {
        sqlx::query("SELECT pg_notify($1, $2)").bind(&channel).bind(payload).execute(&mut other).await?;
    }
    assert_eq!(listener.recv().await?.payload(), "one");
    assert_eq!(listener.recv().await?.payload(), "two");
    Ok(())
}

async fn errors_keep_the_connection() -> Result<(), Failure> {
    let mut connection = connect().await?;
    for (text, wanted) in [("SELEC 1", "42601"), ("SELECT * FROM no_such_table", "42P01"), ("SELECT 1/0", "22012")] {
        let error = sqlx::query(text).fetch_all(&mut connection).await.unwrap_err();
        assert_eq!(code(&error), wanted);
        assert_eq!(sqlx::query_scalar::<_, i32>("SELECT 7").fetch_one(&mut connection).await?, 7);
    }
    Ok(())
}

async fn a_table_that_changes() -> Result<(), Failure> {
    let mut connection = connect().await?;
    let name = table(&mut connection, "a int4").await?;
    run(&mut connection, format!("INSERT INTO {name} VALUES (1)")).await?;
    for columns in 1..4 {
        // A statement kept under its text goes stale, as on a direct connection: so it is not kept.
        let text = AssertSqlSafe(format!("SELECT * FROM {name}"));
        let row = sqlx::query(text).persistent(false).fetch_one(&mut connection).await?;
        assert_eq!(row.len(), columns);
        run(&mut connection, format!("ALTER TABLE {name} ADD COLUMN c{columns} text")).await?;
    }
    Ok(())
}

async fn statement_time_out() -> Result<(), Failure> {
    let options: PgConnectOptions = url().parse()?;
    let options = options.options([("statement_timeout", "150ms")]).application_name("sqlx tests");
    let mut connection = PgConnection::connect_with(&options).await?;
    for _ in 0..3 {
        let error = sqlx::query("SELECT pg_sleep(600)").execute(&mut connection).await.unwrap_err();
        assert_eq!(code(&error), "57014");
        let name = sqlx::query_scalar::<_, String>("SHOW application_name").fetch_one(&mut connection).await?;
        assert_eq!(name, "sqlx tests");
    }
    Ok(())
}

async fn cache_of_statements() -> Result<(), Failure> {
    let options: PgConnectOptions = url().parse()?;
    let mut connection = PgConnection::connect_with(&options.statement_cache_capacity(3)).await?;
    for turn in 0..3 {
        for n in 0..20 {
            let text = AssertSqlSafe(format!("SELECT {n} + $1"));
            assert_eq!(sqlx::query_scalar::<_, i32>(text).bind(turn).fetch_one(&mut connection).await?, n + turn);
        }
    }
    connection.clear_cached_statements().await?;
    let pool = PgPool::connect(&url()).await?;
    assert_eq!(sqlx::query_scalar::<_, i32>("SELECT 7").fetch_one(&pool).await?, 7);
    Ok(())
}
