//! What many instances cost: a store is filled, and then a node in a process of its own loads them, follows 5,000 changes, and is
//! asked for metadata. `bench/registry` runs it; by hand:
//!
//! ```sh
//! cargo run --release -p registry --example load -- fill sqlite:/tmp/registry.db 200000 8
//! cargo run --release -p registry --example load -- fresh sqlite:/tmp/registry.db
//! ```
//!
//! The last line is JSON. CPU is that of this process with all its threads: of SQLite that includes the database, of PostgreSQL
//! it does not.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use registry::{
    Check, InstanceId, Metadata, NamespaceName, Patch, Registration, Registry, Revision, ServiceKey, Settings, store,
};

const SERVICES: usize = 1000;
const CHANGED: usize = 5000;
/// Each query is made so often; the slowest counts, too.
const QUERIES: usize = 1000;

/// CPU time of this process, user and system, in ms.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = stat.rsplit_once(')').unwrap().1;
    let ticks: u64 = after.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().unwrap()).sum();
    ticks as f64 * 10.0
}

/// A line of `/proc/self/status`, in MB.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Entries of 20 bytes: half of the values repeat, the other half are the instance's own.
fn metadata(n: usize, entries: usize) -> Metadata {
    let value = |e| if e % 2 == 0 { format!("shared-{:03}", (n + e) % 50) } else { format!("u{n:09}") };
    Metadata::from_pairs((0..entries).map(|e| (format!("key-{e:05}"), value(e)))).unwrap()
}

fn id(n: usize) -> InstanceId {
    InstanceId::new(&NamespaceName::default(), &format!("instance-{n:08}")).unwrap()
}

fn registration(n: usize, entries: usize) -> Registration {
    let service = ServiceKey::new(&NamespaceName::default(), &format!("service-{:05}", n % SERVICES)).unwrap();
    let host = format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255);
    let mut registration = Registration::new(id(n), service, &host, 8080);
    registration.protocol = "grpc".into();
    registration.version = "1.0.0".into();
    registration.check = Some(Check::ttl(Duration::from_secs(3600)));
    registration.metadata = metadata(n, entries);
    registration
}

async fn open(address: &str) -> Registry {
    Registry::open(Settings::default(), store::open(address).await.unwrap()).await.unwrap()
}

/// 16 callers, 500 instances a call.
async fn fill(address: &str, count: usize, entries: usize) {
    let registry = open(address).await;
    let (began, before) = (Instant::now(), cpu());
    let mut calls = tokio::task::JoinSet::new();
    for first in (0..count).step_by(500) {
        let registry = registry.clone();
        calls.spawn(async move {
            let rows = (first..(first + 500).min(count)).map(|n| registration(n, entries)).collect();
            registry.register(rows).await.into_iter().for_each(|row| assert!(row.is_ok(), "{row:?}"));
        });
        if calls.len() >= 16 {
            calls.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu() - before);
    registry.shutdown().await;
    println!(
        "{{\"instances\":{count},\"seconds\":{seconds:.3},\"rate\":{:.0},\"us\":{:.1}}}",
        count as f64 / seconds,
        cpu * 1e3 / count as f64
    );
}

/// In a process of its own: what a fresh node costs.
async fn fresh(address: &str) {
    let (began, before) = (Instant::now(), cpu());
    let registry = open(address).await;
    let (load_ms, load_cpu) = (began.elapsed().as_secs_f64() * 1e3, cpu() - before);
    let count = registry.status().instances;
    let (resident, peak) = (memory("VmRSS"), memory("VmHWM"));

    // Another node changes 5,000; this one follows, and a cold reader catches up in one go.
    let (cursor, rows) = (registry.revision(), registry.status().counts.rows_applied);
    let writer = open(address).await;
    let spread = (count / CHANGED).max(1);
    let changed = CHANGED.min(count);
    // One that no run before has given.
    let news = (cursor.0 % 60_000) as u16 + 200;
    for first in (0..changed).step_by(500) {
        let weight = |n| (id(n * spread), Patch { weight: Some(news), ..Patch::default() });
        let rows = writer.update((first..(first + 500).min(changed)).map(weight).collect()).await;
        rows.into_iter().for_each(|row| assert!(row.is_ok(), "{row:?}"));
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let last = writer.revision();
    assert!(registry.watch_all(Revision(last.0 - 1), deadline).await.unwrap() >= last, "it follows");
    // What is counted is counted a moment after it is seen.
    let applied = || (registry.status().counts.rows_applied - rows) as usize;
    let began = Instant::now();
    while applied() < changed && began.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let followed = applied();
    let reader = store::open(address).await.unwrap();
    let mut times: Vec<f64> = Vec::new();
    let mut sink = Count { after: cursor, rows: 0 };
    for _ in 0..5 {
        sink.rows = 0;
        let began = Instant::now();
        reader.read(&mut sink).await.unwrap();
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    writer.shutdown().await;

    let namespace = NamespaceName::default();
    let queries = [
        vec![("key-00001", "u000001234")],
        vec![("key-00000", "shared-007")],
        vec![("key-00000", "shared-007"), ("key-00002", "shared-009")],
    ];
    let query = queries.map(|pairs| {
        let mut times: Vec<f64> = Vec::with_capacity(QUERIES);
        for _ in 0..QUERIES {
            let began = Instant::now();
            assert!(!registry.find(&namespace, &pairs, 100).instances.is_empty());
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        format!("[{:.1},{:.1}]", times[QUERIES / 2], times[QUERIES * 99 / 100])
    });
    let (began, mut beats) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(1) {
        let ids: Vec<InstanceId> = (beats..beats + 100).map(|n| id(n % count)).collect();
        registry.heartbeat(&ids).await;
        beats += 100;
    }
    println!(
        "{{\"instances\":{count},\"load_ms\":{load_ms:.1},\"load_cpu_ms\":{load_cpu:.0},\"resident_mb\":{resident},\"peak_mb\":{peak},\
         \"changed\":{},\"changes_ms\":{:.2},\"changes_worst_ms\":{:.2},\"followed\":{followed},\"query_us\":[{}],\"beats\":{:.0}}}",
        sink.rows,
        times[2],
        times[4],
        query.join(","),
        beats as f64 / began.elapsed().as_secs_f64()
    );
    registry.shutdown().await;
}

struct Count {
    after: Revision,
    rows: usize,
}

impl store::Sink for Count {
    fn begin(&mut self, _: store::Head) -> Revision {
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
    let (what, address) = (arguments[0].as_str(), arguments[1].as_str());
    match what {
        "fill" => fill(address, number(2, 200_000), number(3, 8)).await,
        "fresh" => fresh(address).await,
        other => panic!("{other}: expected fill or fresh"),
    }
}
