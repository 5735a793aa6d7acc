//! Statistics of statements, and slow statements.

use std::collections::HashMap;

use kingpost_tests::Kingpost;
use kingpost_tests::raw::{Raw, bind, execute, parse, sync};

use crate::common::{only_kingpost, shared, simple};

/// Returns `SHOW STATEMENTS` by text: calls, rows, errors, on the primary, on replicas.
async fn statements(kingpost: &Kingpost) -> HashMap<String, [u64; 5]> {
    let mut config = kingpost.endpoint().config();
    config.dbname("kingpost");
    let console = kingpost.endpoint().connect_as(&config).await;
    let rows = simple(&console, "SHOW STATEMENTS").await;
    let number = |text: &String| text.parse::<u64>().unwrap();
    rows.iter().map(|row| (row[8].clone(), [0, 4, 5, 6, 7].map(|column: usize| number(&row[column])))).collect()
}

#[tokio::test]
async fn statements_are_counted_by_shape_in_each_protocol() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).start().await;
    let client = kingpost.connect().await;
    for n in 0..20 {
        simple(&client, &format!("SELECT {n}, 'my secret {n}' FROM generate_series(1, 3) AS counted")).await;
    }
    let prepared = client.prepare("SELECT $1::int8 AS prepared").await.unwrap();
    for n in 0..7i64 {
        client.query(&prepared, &[&n]).await.unwrap();
    }
    // In a transaction, with an error, and a statement after it.
    client.batch_execute("BEGIN").await.unwrap();
    client.simple_query("SELECT 1 / 0 AS failing").await.unwrap_err();
    client.simple_query("ROLLBACK").await.unwrap();
    // The unnamed statement.
    let mut raw = Raw::login(kingpost.port()).await;
    raw.send(&[parse("", "SELECT 'unnamed'"), bind("", "", &[]), execute("", 0), sync()].concat()).await;
    raw.until(b'Z').await;
    client.batch_execute("CREATE TEMP TABLE statements_t (a int)").await.unwrap();
    for _ in 0..3 {
        client.execute("INSERT INTO statements_t VALUES ($1), ($1)", &[&1i32]).await.unwrap();
    }
    let counted = statements(&kingpost).await;
    let of = |text: &str| *counted.get(text).unwrap_or_else(|| panic!("no {text:?} in {counted:#?}"));
    let [calls, rows, errors, primary, replicas] = of("SELECT ?, … FROM generate_series(?, …) AS counted");
    assert_eq!((calls, rows, errors, primary + replicas), (20, 60, 0, 20));
    assert!(replicas > 0, "{counted:#?}");
    let [calls, rows, errors, ..] = of("SELECT $1::int8 AS prepared");
    // Preparation alone counts, too.
    assert!(calls >= 7 && (rows, errors) == (7, 0), "{counted:#?}");
    assert_eq!(of("SELECT ? / ? AS failing")[..3], [1, 0, 1]);
    assert_eq!(of("ROLLBACK")[..3], [1, 0, 0]);
    assert_eq!(of("SELECT ?")[..2], [1, 1]);
    let inserted = of("INSERT INTO statements_t VALUES ($1), ($1)");
    assert_eq!((inserted[1], inserted[3] > 0), (6, true), "{counted:#?}");
    assert!(!format!("{counted:?}").contains("secret"));
    let mut config = kingpost.endpoint().config();
    config.dbname("kingpost");
    kingpost.endpoint().connect_as(&config).await.batch_execute("RESET STATEMENTS").await.unwrap();
    assert!(statements(&kingpost).await.is_empty());
}

#[tokio::test]
async fn slow_statements_are_logged_without_their_literals() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let kingpost = Kingpost::of(&shared.cluster).set("proxy.slow_statement", "150ms").start().await;
    let client = kingpost.connect().await;
    simple(&client, "SELECT 'quick secret'").await;
    simple(&client, "SELECT 'slow secret', pg_sleep(0.2) /* hidden secret */").await;
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    let slow: Vec<&str> = log.lines().filter(|line| line.contains("slow statement")).collect();
    assert_eq!(slow.len(), 1, "{log}");
    assert!(slow[0].contains("SELECT ?, pg_sleep(?)"), "{slow:?}");
    assert!(!log.contains("secret"), "{log}");
    assert_eq!(kingpost.metrics().await.sum("kingpost_statements_slow_total", &[]), 1.0);
}
