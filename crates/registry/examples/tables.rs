//! Compares one row for each instance with three tables (`instance`, `health_check`, `instance_metadata`), in the database alone: the cost of writes
//! as metadata grows, of a full read and of a read of changes. One connection, no HTTP, no cache; the two schemas alternate in one run.
//! `bench/registry` runs it; by hand:
//!
//! ```sh
//! cargo run --release -p registry --example tables -- write sqlite:/tmp/registry.db 10000 2
//! cargo run --release -p registry --example tables -- read sqlite:/tmp/filled.db 3        # filled by `load -- fill`
//! ```
//!
//! For `write` the database should be empty and used by nothing else. Each line is JSON: the measurement, entries, repetition, and the figures of
//! both schemas.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Arguments, id, metadata, registration};
use registry::store::{self, Batch, Head, Record, Sink, Write, WriteKind};
use registry::{InstanceId, Patch, Registration, Revision, Store};
use rusqlite::ToSql;

/// Rows of one transaction, as in a full batch of the registry.
const BATCH: usize = 512;
const SHAPES: [(usize, usize); 5] = [(0, 20), (4, 20), (8, 20), (16, 20), (8, 1024)];
/// Number of rows that are changed.
const CHANGED: usize = 5000;

const SCHEMA: &str = "
    CREATE TABLE three_instance (id VARCHAR(300) PRIMARY KEY, service VARCHAR(300), host VARCHAR(300), port INT, mtime BIGINT);
    CREATE INDEX three_instance_service ON three_instance (service); CREATE INDEX three_instance_mtime ON three_instance (mtime);
    CREATE TABLE three_check (id VARCHAR(300) PRIMARY KEY, type INT, ttl INT);
    CREATE TABLE three_metadata (id VARCHAR(300), name VARCHAR(300), value TEXT, mtime BIGINT, PRIMARY KEY (id, name));
    CREATE INDEX three_metadata_name ON three_metadata (name);";
const DROP: &str =
    "DROP TABLE IF EXISTS three_instance; DROP TABLE IF EXISTS three_check; DROP TABLE IF EXISTS three_metadata;";
const JOIN: &str = "SELECT i.id, i.service, i.host, i.port, c.type, c.ttl, m.name, m.value FROM three_instance i
    LEFT JOIN three_check c ON c.id = i.id LEFT JOIN three_metadata m ON m.id = i.id";

/// The three tables in one of the databases.
enum Three {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

impl Three {
    async fn open(address: &str) -> Three {
        let mut three = match address.strip_prefix("sqlite:") {
            Some(file) => {
                let connection = rusqlite::Connection::open(format!("{file}.three")).unwrap();
                connection.pragma_update(None, "journal_mode", "wal").unwrap();
                connection.pragma_update(None, "synchronous", "full").unwrap();
                Three::Sqlite(connection)
            }
            None => {
                let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                Three::Postgres(client)
            }
        };
        three.run(DROP).await;
        three.run(SCHEMA).await;
        three
    }

    async fn run(&mut self, sql: &str) {
        match self {
            Three::Sqlite(connection) => connection.execute_batch(sql).unwrap(),
            Three::Postgres(client) => client.batch_execute(sql).await.unwrap(),
        }
    }

    /// Runs one transaction: replaces instance and check, deletes and inserts metadata.
    async fn write(&mut self, rows: &[Registration]) {
        match self {
            Three::Sqlite(connection) => sqlite(connection, rows),
            Three::Postgres(client) => postgres(client, rows).await,
        }
    }

    /// Reads everything, or the changes after `mtime`: joined, and assembled.
    async fn read(&mut self, mtime: i64) -> usize {
        let mut found: HashMap<String, Vec<(String, String)>> = HashMap::new();
        let sql = if mtime > 0 { format!("{JOIN} WHERE i.mtime > {mtime}") } else { JOIN.into() };
        let mut take = |id: String, pair: Option<(String, String)>| found.entry(id).or_default().extend(pair);
        match self {
            Three::Sqlite(connection) => {
                let mut statement = connection.prepare(&sql).unwrap();
                let mut rows = statement.query([]).unwrap();
                while let Some(row) = rows.next().unwrap() {
                    let name: Option<String> = row.get(6).unwrap();
                    take(row.get(0).unwrap(), name.map(|name| (name, row.get(7).unwrap())));
                }
            }
            Three::Postgres(client) => {
                use futures_util::TryStreamExt as _;
                let none: [&str; 0] = [];
                let rows = client.query_raw(&sql, none).await.unwrap();
                let mut rows = std::pin::pin!(rows);
                while let Some(row) = rows.try_next().await.unwrap() {
                    let name: Option<String> = row.get(6);
                    take(row.get(0), name.map(|name| (name, row.get(7))));
                }
            }
        }
        found.len()
    }
}

fn sqlite(connection: &mut rusqlite::Connection, rows: &[Registration]) {
    let transaction = connection.transaction().unwrap();
    let run = |sql: &str, values: &[&dyn ToSql]| transaction.prepare_cached(sql).unwrap().execute(values).unwrap();
    for row in rows {
        let id = row.id.as_str();
        run(
            "INSERT OR REPLACE INTO three_instance VALUES (?, ?, ?, 8080, 1)",
            &[&id, &row.service.as_str(), &row.host],
        );
        run("INSERT OR REPLACE INTO three_check VALUES (?, 1, 5)", &[&id]);
        run("DELETE FROM three_metadata WHERE id = ?", &[&id]);
        for (key, value) in row.metadata.iter() {
            run("INSERT INTO three_metadata VALUES (?, ?, ?, 1)", &[&id, &key, &value]);
        }
    }
    transaction.commit().unwrap();
}

async fn postgres(client: &mut tokio_postgres::Client, rows: &[Registration]) {
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let services: Vec<&str> = rows.iter().map(|row| row.service.as_str()).collect();
    let hosts: Vec<&str> = rows.iter().map(|row| row.host.as_str()).collect();
    let (mut owners, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        for (key, value) in row.metadata.iter() {
            owners.push(row.id.as_str());
            keys.push(key);
            values.push(value);
        }
    }
    let transaction = client.transaction().await.unwrap();
    let instances = "INSERT INTO three_instance SELECT i, s, h, 8080, 1 FROM unnest($1::text[], $2::text[], $3::text[]) AS n (i, s, h)
        ON CONFLICT (id) DO UPDATE SET service = excluded.service, host = excluded.host, mtime = excluded.mtime";
    transaction.execute(instances, &[&ids, &services, &hosts]).await.unwrap();
    let checks = "INSERT INTO three_check SELECT i, 1, 5 FROM unnest($1::text[]) AS n (i)
        ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl";
    transaction.execute(checks, &[&ids]).await.unwrap();
    transaction.execute("DELETE FROM three_metadata WHERE id = ANY($1)", &[&ids]).await.unwrap();
    let entries =
        "INSERT INTO three_metadata SELECT i, k, v, 1 FROM unnest($1::text[], $2::text[], $3::text[]) AS n (i, k, v)";
    transaction.execute(entries, &[&owners, &keys, &values]).await.unwrap();
    transaction.commit().await.unwrap();
}

/// The registry's own store alone.
struct One {
    store: Arc<dyn Store>,
    number: u64,
}

impl One {
    async fn write(&mut self, rows: Vec<Registration>) {
        self.commit(rows.into_iter().map(|row| WriteKind::Register(Box::new(row)))).await;
    }

    async fn commit(&mut self, kinds: impl Iterator<Item = WriteKind>) {
        self.number += 1;
        let writes = kinds.map(|kind| Write { kind, expected: None }).collect();
        self.store.commit(Arc::new(Batch::new(self.number, writes, 1))).await.unwrap();
    }

    async fn read(&self, after: Revision) -> usize {
        let mut sink = Count { after, head: Revision(0), rows: 0 };
        self.store.read(&mut sink).await.unwrap();
        sink.rows
    }

    async fn head(&self) -> Revision {
        let mut sink = Count { after: Revision(u64::MAX >> 1), head: Revision(0), rows: 0 };
        self.store.read(&mut sink).await.unwrap();
        sink.head
    }
}

struct Count {
    after: Revision,
    head: Revision,
    rows: usize,
}

impl Sink for Count {
    fn begin(&mut self, head: Head) -> Revision {
        self.head = head.v;
        self.after
    }

    fn record(&mut self, record: Record) {
        self.rows += usize::from(matches!(record, Record::Instance(_)));
    }
}

fn line(what: &str, entries: usize, bytes: usize, repetition: usize, unit: &str, three: f64, one: f64) {
    println!(
        "{{\"what\":\"{what}\",\"entries\":{entries},\"bytes\":{bytes},\"repetition\":{repetition},\"unit\":\"{unit}\",\
         \"three\":{three:.3},\"one\":{one:.3}}}"
    );
}

async fn write(address: &str, count: usize, repetitions: usize) {
    let mut one = One { store: store::open(address).await.unwrap(), number: 0 };
    let mut first = 0;
    for repetition in 0..repetitions {
        for (entries, bytes) in SHAPES {
            let count = if bytes > 100 { count / 4 } else { count };
            let mut three = Three::open(address).await;
            // Twice: new rows, and then the same rows with other metadata.
            for (what, salt) in [("register", 0), ("change", 7)] {
                let rows = |from: usize| -> Vec<Registration> {
                    let one = |n| Registration {
                        metadata: metadata(n + salt, entries, bytes),
                        priority: salt as u16,
                        ..registration(n, 100, 0, 20)
                    };
                    (from..(from + BATCH).min(first + count)).map(one).collect()
                };
                let batches = || (first..first + count).step_by(BATCH);
                let mut spent = [Duration::ZERO; 2];
                for from in batches() {
                    let batch = rows(from);
                    let began = Instant::now();
                    three.write(&batch).await;
                    spent[0] += began.elapsed();
                    let began = Instant::now();
                    one.write(batch).await;
                    spent[1] += began.elapsed();
                }
                let rate = |spent: Duration| count as f64 / spent.as_secs_f64();
                line(what, entries, bytes, repetition, "rows/s", rate(spent[0]), rate(spent[1]));
            }
            first += count;
        }
    }
}

/// Measures reads of a store filled by `load -- fill`. The three tables get the same rows by SQL.
async fn read(address: &str, repetitions: usize) {
    const ENTRIES: usize = 8;
    let mut one = One { store: store::open(address).await.unwrap(), number: 0 };
    let count = one.read(Revision(0)).await;
    let mut three = Three::open(address).await;
    let lite = matches!(three, Three::Sqlite(_));
    let digits = |what: &str, width: usize| match lite {
        true => format!("printf('%0{width}d', {what})"),
        false => format!("lpad(({what})::text, {width}, '0')"),
    };
    let rows = match lite {
        true => format!(
            "(WITH RECURSIVE c (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM c WHERE n < {count} - 1) SELECT n FROM c) AS r"
        ),
        false => format!("generate_series(0, {count} - 1) AS r (n)"),
    };
    let ids = format!("'default/i' || {}", digits("n", 8));
    let (service, own, shared) = (digits("n % 1000", 5), digits("n", 9), digits("(n + e) % 50", 4));
    let entries: Vec<String> = (0..ENTRIES).map(|e| format!("SELECT {e} AS e")).collect();
    three
        .run(&format!(
            "INSERT INTO three_instance SELECT {ids}, 'default/service-' || {service}, '10.0.0.1', 8080, 1 FROM {rows}"
        ))
        .await;
    three.run(&format!("INSERT INTO three_check SELECT {ids}, 1, 5 FROM {rows}")).await;
    let value = format!("CASE WHEN e % 2 = 0 THEN 'shared' || {shared} || 's' ELSE 'u' || {own} || 'u' END");
    let name = digits("e", 5);
    let entries = entries.join(" UNION ALL ");
    three
        .run(&format!(
            "INSERT INTO three_metadata SELECT {ids}, 'key-' || {name}, {value}, 1 FROM {rows}, ({entries}) AS s"
        ))
        .await;
    if !lite {
        for table in ["three_instance", "three_check", "three_metadata", "instance"] {
            three.run(&format!("VACUUM ANALYZE {table}")).await;
        }
    }
    let before = one.head().await;
    let changed: Vec<InstanceId> = (0..CHANGED).map(|n| id(n * (count / CHANGED).max(1))).collect();
    for chunk in changed.chunks(BATCH) {
        // A weight that no previous run has set.
        let patch = || Patch { weight: Some((before.0 % 60_000) as u16 + 200), ..Patch::default() };
        one.commit(chunk.iter().map(|id| WriteKind::Patch(id.clone(), patch()))).await;
        let ids: Vec<String> = chunk.iter().map(|id| format!("'{}'", id.as_str())).collect();
        three.run(&format!("UPDATE three_instance SET mtime = 2 WHERE id IN ({})", ids.join(","))).await;
    }
    for repetition in 0..repetitions {
        for (what, mtime, after, expected) in
            [("full load", 0, Revision(0), count), ("5,000 changes", 1, before, CHANGED.min(count))]
        {
            let began = Instant::now();
            assert_eq!(three.read(mtime).await, expected);
            let old = began.elapsed();
            let began = Instant::now();
            assert_eq!(one.read(after).await, expected);
            let new = began.elapsed();
            line(what, ENTRIES, 20, repetition, "ms", old.as_secs_f64() * 1e3, new.as_secs_f64() * 1e3);
        }
    }
    three.run(DROP).await;
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::get();
    let (what, address) = (arguments.text(0), arguments.text(1));
    match what {
        "write" => write(address, arguments.number_or(2, 10_000), arguments.number_or(3, 2)).await,
        "read" => read(address, arguments.number_or(2, 3)).await,
        other => panic!("{other}: expected write or read"),
    }
}
