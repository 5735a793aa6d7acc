//! COPY both ways.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, TryStreamExt, pin_mut};
use kingpost_tests::sqlstate;
use tokio_postgres::binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream};
use tokio_postgres::types::Type;

use crate::common::{name, shared, value};

#[tokio::test]
async fn text_in_and_out() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let table = name("copy");
    client.batch_execute(&format!("CREATE TABLE {table} (n int, t text)")).await.unwrap();
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN")).await.unwrap();
    pin_mut!(sink);
    // Chunks that end in the middle of a row, and an empty one.
    for chunk in ["1\tone\n2", "\ttw", "", "o\n3\t\\N\n"] {
        sink.send(Bytes::from(chunk)).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), 3);
    let out = client.copy_out(&format!("COPY (SELECT * FROM {table} ORDER BY n) TO STDOUT")).await.unwrap();
    let text = out.try_fold(Vec::new(), async |mut all, chunk| Ok([std::mem::take(&mut all), chunk.to_vec()].concat()));
    assert_eq!(text.await.unwrap(), b"1\tone\n2\ttwo\n3\t\\N\n");
}

#[tokio::test]
async fn binary_in_and_out() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let table = name("copy");
    client.batch_execute(&format!("CREATE TABLE {table} (n int8, t text)")).await.unwrap();
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN (FORMAT binary)")).await.unwrap();
    let writer = BinaryCopyInWriter::new(sink, &[Type::INT8, Type::TEXT]);
    pin_mut!(writer);
    for n in 0..1000i64 {
        writer.as_mut().write(&[&n, &"x".repeat(n as usize)]).await.unwrap();
    }
    assert_eq!(writer.finish().await.unwrap(), 1000);
    let out = client.copy_out(&format!("COPY {table} TO STDOUT (FORMAT binary)")).await.unwrap();
    let rows = BinaryCopyOutStream::new(out, &[Type::INT8, Type::TEXT]);
    pin_mut!(rows);
    let mut seen = 0;
    while let Some(row) = rows.next().await {
        let row = row.unwrap();
        assert_eq!(row.get::<String>(1).len() as i64, row.get::<i64>(0));
        seen += 1;
    }
    assert_eq!(seen, 1000);
}

#[tokio::test]
async fn fifty_megabytes_in_and_out() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let table = name("copy");
    client.batch_execute(&format!("CREATE UNLOGGED TABLE {table} (n int, t text)")).await.unwrap();
    let (chunks, rows_a_chunk, width) = (500usize, 100usize, 1000usize);
    let sink = client.copy_in(&format!("COPY {table} FROM STDIN")).await.unwrap();
    pin_mut!(sink);
    for chunk in 0..chunks {
        let rows = (0..rows_a_chunk).map(|row| {
            let n = chunk * rows_a_chunk + row;
            let fill = char::from(b'a' + (n % 26) as u8).to_string().repeat(width);
            format!("{n}\t{fill}\n")
        });
        sink.send(Bytes::from(rows.collect::<String>())).await.unwrap();
    }
    let total = (chunks * rows_a_chunk) as u64;
    assert_eq!(sink.finish().await.unwrap(), total);
    let digest = format!("SELECT md5(string_agg(n || t, '' ORDER BY n)) FROM {table}");
    let expected = value(&client, &digest).await;

    let copy = name("copy");
    client.batch_execute(&format!("CREATE UNLOGGED TABLE {copy} (n int, t text)")).await.unwrap();
    let other = shared.kingpost.connect().await;
    let out = other.copy_out(&format!("COPY {table} TO STDOUT")).await.unwrap();
    let back = client.copy_in(&format!("COPY {copy} FROM STDIN")).await.unwrap();
    pin_mut!(out, back);
    while let Some(chunk) = out.next().await {
        back.feed(chunk.unwrap()).await.unwrap();
    }
    assert_eq!(back.finish().await.unwrap(), total);
    assert_eq!(value(&client, &digest.replace(&table, &copy)).await, expected);
    client.batch_execute(&format!("DROP TABLE {table}, {copy}")).await.unwrap();
}

#[tokio::test]
async fn copy_that_fails_leaves_nothing_and_the_connection_usable() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let table = name("copy");
    client.batch_execute(&format!("CREATE TABLE {table} (n int)")).await.unwrap();
    let copy = format!("COPY {table} FROM STDIN");
    {
        // The client gives up: the driver sends CopyFail when the sink is dropped.
        let sink = client.copy_in(&copy).await.unwrap();
        pin_mut!(sink);
        sink.send(Bytes::from("1\n2\n")).await.unwrap();
    }
    assert_eq!(value(&client, &format!("SELECT count(*) FROM {table}")).await, "0");
    {
        // The server finds an error while more data is on its way.
        let sink = client.copy_in(&copy).await.unwrap();
        pin_mut!(sink);
        for _ in 0..200 {
            let _ = sink.send(Bytes::from("1\nx\n".repeat(1000))).await;
        }
        assert_eq!(sqlstate(&sink.finish().await.unwrap_err()), "22P02");
    }
    assert_eq!(value(&client, &format!("SELECT count(*) FROM {table}")).await, "0");
    let Err(error) = client.copy_out("COPY no_such_table TO STDOUT").await.map(|_| ()) else {
        panic!("a table that is not there was copied")
    };
    assert_eq!(sqlstate(&error), "42P01");
    assert_eq!(value(&client, "SELECT 7").await, "7");
}
