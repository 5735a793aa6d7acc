//! The cost of many instances: fills a store, then loads them in a node in a process of its own, which follows 5,000 changes, and answers queries for
//! metadata. `bench/registry` runs it; by hand:
//!
//! ```sh
//! cargo run --release -p registry --example load -- fill sqlite:/tmp/registry.db 200000 8
//! cargo run --release -p registry --example load -- fresh sqlite:/tmp/registry.db
//! ```
//!
//! The last line is JSON. CPU is that of this process with all its threads: with SQLite that includes the database, with PostgreSQL it does not.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::time::{Duration, Instant};

use common::{Arguments, cpu, id, memory, registration, value};
use registry::{InstanceId, NamespaceName, Patch, Registry, Revision, Settings, store};

const SERVICES: usize = 1000;
const CHANGED: usize = 5000;
/// Number of times that each query is made; the slowest counts, too.
const QUERIES: usize = 1000;

async fn open(address: &str) -> Registry {
    Registry::open(Settings::default(), store::open(address).await.unwrap()).await.unwrap()
}

/// Registers `count` instances with 16 callers, 500 instances a call.
async fn fill(address: &str, count: usize, entries: usize) {
    let registry = open(address).await;
    let (began, before) = (Instant::now(), cpu());
    let mut calls = tokio::task::JoinSet::new();
    for first in (0..count).step_by(500) {
        let registry = registry.clone();
        calls.spawn(async move {
            let rows = (first..(first + 500).min(count)).map(|n| registration(n, SERVICES, entries, 20)).collect();
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

/// Measures a new node, in a process of its own.
async fn fresh(address: &str) {
    let (began, before) = (Instant::now(), cpu());
    let registry = open(address).await;
    let (load_ms, load_cpu) = (began.elapsed().as_secs_f64() * 1e3, cpu() - before);
    let count = registry.status().instances;
    let (resident, peak) = (memory("VmRSS"), memory("VmHWM"));

    // Another node changes 5,000; this one follows, and a cold reader catches up at once.
    let (cursor, rows) = (registry.revision(), registry.status().counts.rows_applied);
    let writer = open(address).await;
    let spread = (count / CHANGED).max(1);
    let changed = CHANGED.min(count);
    // A weight that no previous run has set.
    let news = (cursor.0 % 60_000) as u16 + 200;
    for first in (0..changed).step_by(500) {
        let weight = |n| (id(n * spread), Patch { weight: Some(news), ..Patch::default() });
        let rows = writer.update((first..(first + 500).min(changed)).map(weight).collect()).await;
        rows.into_iter().for_each(|row| assert!(row.is_ok(), "{row:?}"));
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let last = writer.revision();
    assert!(registry.watch_all(Revision(last.0 - 1), deadline).await.unwrap() >= last, "it follows");
    // The counter is updated a moment after the change is visible.
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
    let values: Vec<(String, String)> = (0..3).map(|e| (format!("key-{e:05}"), value(1234, e, 20))).collect();
    let query = [&[1][..], &[0], &[0, 2]].map(|entries| {
        let pairs: Vec<(&str, &str)> = entries.iter().map(|e: &usize| (&*values[*e].0, &*values[*e].1)).collect();
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
    let arguments = Arguments::get();
    let (what, address) = (arguments.text(0), arguments.text(1));
    match what {
        "fill" => fill(address, arguments.number_or(2, 200_000), arguments.number_or(3, 8)).await,
        "fresh" => fresh(address).await,
        other => panic!("{other}: expected fill or fresh"),
    }
}
