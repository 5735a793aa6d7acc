//! The registry under load, in this process: what a registration costs beside the three-table schema, and what 200,000 instances
//! cost in memory and time.
//!
//! ```sh
//! cargo run --release -p registry --example load -- sqlite:/tmp/registry.db 20000 256
//! cargo run --release -p registry --example load -- postgres://postgres@127.0.0.1/postgres 20000 256
//! ```
//!
//! The database should be empty and its own: tables `three_*` are made and dropped. Microseconds are CPU time of this process
//! with all its threads: of SQLite that includes the database, of PostgreSQL it does not.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use registry::{
    Check, InstanceId, Metadata, NamespaceName, Outcome, Patch, Registration, Registry, ServiceKey, Settings, store,
};

/// CPU time of this process, user and system.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// Resident memory of this process, in MB, from `/proc/self/status`.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Entries of 20 bytes: half of the values repeat, the other half are the instance's own. `large`: values of 1 KiB.
fn metadata(n: usize, entries: usize, large: bool) -> Metadata {
    let pairs = (0..entries).map(|e| {
        let value = match (large, e % 2) {
            (true, _) => format!("{n:010}").repeat(103)[..1024].to_owned(),
            (false, 0) => format!("shared-{:03}", (n + e) % 50),
            (false, _) => format!("u{n:09}"),
        };
        (format!("key-{e:05}"), value)
    });
    Metadata::from_pairs(pairs).unwrap()
}

fn registration(n: usize, entries: usize, large: bool, services: usize) -> Registration {
    let namespace = NamespaceName::default();
    let service = ServiceKey::new(&namespace, &format!("service-{:05}", n % services)).unwrap();
    let host = format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255);
    let id = InstanceId::new(&namespace, &format!("instance-{n:08}")).unwrap();
    let mut registration = Registration::new(id, service, &host, 8080);
    registration.protocol = "grpc".into();
    registration.version = "1.0.0".into();
    registration.check = Some(Check::ttl(Duration::from_secs(3600)));
    registration.metadata = metadata(n, entries, large);
    registration
}

struct Figures {
    rate: f64,
    cpu: f64,
    p50: Duration,
    p99: Duration,
}

/// `count` calls of one row by `clients` at a time.
async fn calls<F: Future<Output = ()> + Send>(
    count: usize,
    clients: usize,
    call: impl Fn(usize) -> F + Send + Sync + 'static,
) -> Figures {
    let (next, call) = (Arc::new(AtomicUsize::new(0)), Arc::new(call));
    let (start, before) = (Instant::now(), cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (next, call) = (Arc::clone(&next), Arc::clone(&call));
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return times;
                }
                let began = Instant::now();
                call(n).await;
                times.push(began.elapsed());
            }
        });
    }
    let mut times: Vec<Duration> = tasks.join_all().await.into_iter().flatten().collect();
    let (elapsed, spent) = (start.elapsed(), cpu() - before);
    times.sort_unstable();
    Figures {
        rate: count as f64 / elapsed.as_secs_f64(),
        cpu: spent.as_secs_f64() * 1e6 / count as f64,
        p50: times[count / 2],
        p99: times[count * 99 / 100],
    }
}

fn row(what: &str, f: &Figures) {
    println!(
        "| {what} | {:.0} | {:.1} | {:.1} | {:.0} |",
        f.rate,
        f.p50.as_secs_f64() * 1e3,
        f.p99.as_secs_f64() * 1e3,
        f.cpu
    );
}

async fn one(registry: &Registry, registration: Registration, expected: Outcome) {
    let written = registry.register(vec![registration]).await.pop().unwrap().unwrap();
    assert_eq!(written.outcome, expected);
}

/// What PostgreSQL alone does with the same rows in three tables and in one, by one connection in batches of 512.
async fn three_tables(address: &str, count: usize, entries: usize, large: bool) -> f64 {
    let (mut client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = "DROP TABLE IF EXISTS three_instance, three_check, three_metadata;
        CREATE TABLE three_instance (id TEXT PRIMARY KEY, service TEXT, host TEXT, port INT, mtime BIGINT);
        CREATE INDEX ON three_instance (service); CREATE INDEX ON three_instance (mtime);
        CREATE TABLE three_check (id TEXT PRIMARY KEY, type INT, ttl INT);
        CREATE TABLE three_metadata (id TEXT, key TEXT, value TEXT, mtime BIGINT, PRIMARY KEY (id, key));
        CREATE INDEX ON three_metadata (key)";
    client.batch_execute(schema).await.unwrap();
    let start = Instant::now();
    let numbers: Vec<usize> = (0..count).collect();
    for chunk in numbers.chunks(512) {
        let rows: Vec<Registration> = chunk.iter().map(|n| registration(*n, entries, large, 100)).collect();
        let ids: Vec<&str> = rows.iter().map(|r| r.id.as_str()).collect();
        let services: Vec<&str> = rows.iter().map(|r| r.service.as_str()).collect();
        let hosts: Vec<&str> = rows.iter().map(|r| r.host.as_str()).collect();
        let (mut owners, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            for (key, value) in row.metadata.iter() {
                owners.push(row.id.as_str());
                keys.push(key);
                values.push(value);
            }
        }
        let transaction = client.transaction().await.unwrap();
        let instances = "INSERT INTO three_instance SELECT i, s, h, 8080, 0 FROM unnest($1::text[], $2::text[], $3::text[]) AS n (i, s, h)
            ON CONFLICT (id) DO UPDATE SET service = excluded.service, host = excluded.host, mtime = excluded.mtime";
        transaction.execute(instances, &[&ids, &services, &hosts]).await.unwrap();
        let checks = "INSERT INTO three_check SELECT i, 1, 5 FROM unnest($1::text[]) AS n (i) ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl";
        transaction.execute(checks, &[&ids]).await.unwrap();
        transaction.execute("DELETE FROM three_metadata WHERE id = ANY($1)", &[&ids]).await.unwrap();
        let entries = "INSERT INTO three_metadata SELECT i, k, v, 0 FROM unnest($1::text[], $2::text[], $3::text[]) AS n (i, k, v)";
        transaction.execute(entries, &[&owners, &keys, &values]).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    client.batch_execute("DROP TABLE three_instance, three_check, three_metadata").await.unwrap();
    rate
}

/// The same three tables in a SQLite file beside the registry's.
fn three_tables_sqlite(file: &str, count: usize, entries: usize, large: bool) -> f64 {
    let file = format!("{file}.three");
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{file}{end}"));
    }
    let mut connection = rusqlite::Connection::open(&file).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.pragma_update(None, "synchronous", "full").unwrap();
    connection
        .execute_batch(
            "CREATE TABLE i (id TEXT PRIMARY KEY, service TEXT, host TEXT, port INT, mtime INT); CREATE INDEX i_s ON i (service);
             CREATE INDEX i_m ON i (mtime); CREATE TABLE c (id TEXT PRIMARY KEY, type INT, ttl INT);
             CREATE TABLE m (id TEXT, key TEXT, value TEXT, mtime INT, PRIMARY KEY (id, key)); CREATE INDEX m_k ON m (key);",
        )
        .unwrap();
    let start = Instant::now();
    let numbers: Vec<usize> = (0..count).collect();
    for chunk in numbers.chunks(512) {
        let transaction = connection.transaction().unwrap();
        for n in chunk {
            let r = registration(*n, entries, large, 100);
            let id = r.id.as_str();
            let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
                transaction.prepare_cached(sql).unwrap().execute(values).unwrap();
            };
            run("INSERT OR REPLACE INTO i VALUES (?, ?, ?, 8080, 0)", &[&id, &r.service.as_str(), &r.host]);
            run("INSERT OR REPLACE INTO c VALUES (?, 1, 5)", &[&id]);
            run("DELETE FROM m WHERE id = ?", &[&id]);
            for (key, value) in r.metadata.iter() {
                run("INSERT INTO m VALUES (?, ?, ?, 0)", &[&id, &key, &value]);
            }
        }
        transaction.commit().unwrap();
    }
    count as f64 / start.elapsed().as_secs_f64()
}

async fn registrations(registry: &Registry, address: &str, count: usize, clients: usize) {
    println!("{} instances, {clients} clients, one row a call\n", count);
    println!("| | a second | p50 ms | p99 ms | µs CPU each |\n|---|---|---|---|---|");
    let mut three = Vec::new();
    for (base, entries, large) in [(0, 0, false), (1, 4, false), (2, 8, false), (3, 16, false), (4, 8, true)] {
        let count = if large { count / 4 } else { count };
        let first = (base + 1) * 1_000_000;
        let node = registry.clone();
        let figures = calls(count, clients, move |n| {
            let (node, row) = (node.clone(), registration(first + n, entries, large, 100));
            async move { one(&node, row, Outcome::Created).await }
        });
        let what = if large { format!("{entries} x 1 KiB") } else { format!("{entries} entries") };
        row(&what, &figures.await);
        if entries == 16 {
            let node = registry.clone();
            let again = calls(count, clients, move |n| {
                let (node, row) = (node.clone(), registration(first + n, entries, large, 100));
                async move { one(&node, row, Outcome::Unchanged).await }
            });
            row("16 entries, registered again", &again.await);
        }
        let rate = match address.strip_prefix("sqlite:") {
            Some(file) => three_tables_sqlite(file, count, entries, large),
            None => three_tables(address, count, entries, large).await,
        };
        three.push((what, rate));
        for ids in (first..first + count).map(|n| registration(n, 0, false, 100).id).collect::<Vec<_>>().chunks(1000) {
            registry.deregister(ids).await;
        }
    }
    println!("\nThree tables, the database alone, batches of 512 by one connection\n\n| | rows a second |\n|---|---|");
    for (what, rate) in three {
        println!("| {what} | {rate:.0} |");
    }
}

async fn many(address: &str, count: usize) {
    let registry = Registry::open(Settings::default(), store::open(address).await.unwrap()).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for first in (0..count).step_by(500) {
        let registry = registry.clone();
        calls.spawn(async move {
            let rows = (first..(first + 500).min(count)).map(|n| registration(n, 8, false, 1000)).collect();
            registry.register(rows).await.into_iter().for_each(|row| {
                row.unwrap();
            });
        });
        if calls.len() >= 16 {
            calls.join_next().await;
        }
    }
    while calls.join_next().await.is_some() {}
    registry.shutdown().await;
}

/// In a process of its own: what a fresh node costs.
async fn fresh(address: &str) {
    let store = store::open(address).await.unwrap();
    let other = Registry::open(Settings::default(), store::open(address).await.unwrap()).await.unwrap();
    other.shutdown().await;
    drop(other);
    let (start, before) = (Instant::now(), cpu());
    let registry = Registry::open(Settings::default(), store).await.unwrap();
    let count = registry.status().instances;
    println!(
        "| full load of {count} | {:.0} ms | {:.0} ms CPU |",
        start.elapsed().as_secs_f64() * 1e3,
        (cpu() - before).as_secs_f64() * 1e3
    );
    println!("| resident after it (peak) | {} MB ({} MB) | |", memory("VmRSS"), memory("VmHWM"));
    let writer = Registry::open(Settings::default(), store::open(address).await.unwrap()).await.unwrap();
    let rows = registry.status().counts.rows_applied;
    // 5,000 changes by another node, in one go as far as the feed is concerned: it is stopped meanwhile.
    registry.shutdown().await;
    let reader = store::open(address).await.unwrap();
    let cursor = registry.revision();
    for first in (0..5000).step_by(1000) {
        let patches = (first..first + 1000).map(|n| {
            (registration(n * (count / 5000).max(1), 0, false, 1000).id, Patch { weight: Some(7), ..Patch::default() })
        });
        writer.update(patches.collect()).await.into_iter().for_each(|row| {
            row.unwrap();
        });
    }
    let mut sink = Count { after: cursor, rows: 0 };
    let (start, before) = (Instant::now(), cpu());
    reader.read(&mut sink).await.unwrap();
    println!(
        "| reading {} changed rows (of {rows}) | {:.1} ms | {:.0} ms CPU |",
        sink.rows,
        start.elapsed().as_secs_f64() * 1e3,
        (cpu() - before).as_secs_f64() * 1e3
    );
    let namespace = NamespaceName::default();
    for (what, pairs) in [
        ("a pair that one has", vec![("key-00001", "u000001234")]),
        ("a pair that 1 in 50 has, first 100", vec![("key-00000", "shared-007")]),
        ("two pairs, 1 in 50 each, first 100", vec![("key-00000", "shared-007"), ("key-00002", "shared-009")]),
    ] {
        let start = Instant::now();
        let mut found = 0;
        for _ in 0..100 {
            found = writer.find(&namespace, &pairs, 100).instances.len();
        }
        println!("| query: {what} ({found}) | {:.1} µs | |", start.elapsed().as_secs_f64() * 1e6 / 100.0);
    }
    let ids: Vec<InstanceId> = (0..count).map(|n| registration(n, 0, false, 1000).id).collect();
    let before = cpu();
    ids.chunks(100).for_each(|ids| drop(writer.heartbeat(ids)));
    println!("| a heartbeat, batches of 100 | | {:.2} µs CPU |", (cpu() - before).as_secs_f64() * 1e6 / count as f64);
    writer.shutdown().await;
}

struct Count {
    after: registry::Revision,
    rows: usize,
}

impl store::Sink for Count {
    fn begin(&mut self, _: store::Head) -> registry::Revision {
        self.after
    }

    fn record(&mut self, _: store::Record) {
        self.rows += 1;
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: usize| arguments.get(n).and_then(|a| a.parse().ok()).unwrap_or(default);
    let address = arguments.first().expect("the address of an empty store").as_str();
    match arguments.get(1).map(String::as_str) {
        Some("many") => many(address, number(2, 200_000)).await,
        Some("fresh") => fresh(address).await,
        _ => {
            let registry = Registry::open(Settings::default(), store::open(address).await.unwrap()).await.unwrap();
            registrations(&registry, address, number(1, 20_000), number(2, 256)).await;
            registry.shutdown().await;
        }
    }
}
