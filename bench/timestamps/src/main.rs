//! `timestamps CLIENT PD CALLERS SECONDS BUSY`: counts the timestamps of CALLERS tasks that each request the next one after receiving one, while BUSY
//! threads of this process calculate. CLIENT is `ours`, `tikv-client` or `tikv-client-4` (four clients, round-robin). Prints a line of JSON:
//! timestamps, seconds, percentiles of a call in microseconds, CPU seconds of this process without the busy threads; for `ours` also the batches, and
//! the upper bounds of the 99th percentile of the wait to be sent and of the batches' round trips.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tikv::BUCKETS;
use tikv::timestamps::Settings;

type Failure = Box<dyn Error + Send + Sync>;

/// The measured client.
enum Source {
    Ours(tikv::Timestamps),
    Library(Vec<tikv_client::TransactionClient>),
}

impl Source {
    async fn open(pd: &str, client: &str) -> Result<Source, Failure> {
        let endpoints = vec![pd.to_owned()];
        let clients = match client {
            "ours" => {
                let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
                let settings = Settings::default();
                let ours = tikv::Timestamps::connect(endpoints, tikv::Security::none(), settings, deadline);
                return Ok(Source::Ours(ours.await?));
            }
            "tikv-client" => 1,
            "tikv-client-4" => 4,
            _ => return Err("CLIENT is ours, tikv-client or tikv-client-4".into()),
        };
        let mut library = Vec::new();
        for _ in 0..clients {
            library.push(tikv_client::TransactionClient::new(endpoints.clone()).await?);
        }
        Ok(Source::Library(library))
    }

    async fn next(&self, caller: usize) -> Result<u64, Failure> {
        Ok(match self {
            Source::Ours(ours) => ours.next().await?.0,
            Source::Library(clients) => {
                let at = clients[caller % clients.len()].current_timestamp().await?;
                (at.physical as u64) << 18 | at.logical as u64
            }
        })
    }
}

/// Returns the CPU seconds of `whom`: this process with all threads (`self`), or this thread (`thread-self`).
fn cpu(whom: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{whom}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    // utime and stime, in hundredths of a second.
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Keeps a thread busy; returns its CPU seconds while `counting`.
fn calculate(counting: &AtomicBool, stop: &AtomicBool) -> f64 {
    let mut sum = 0u64;
    let mut until = |value: bool| {
        while counting.load(Ordering::Relaxed) != value && !stop.load(Ordering::Relaxed) {
            for n in 0..1 << 12 {
                sum = std::hint::black_box(sum.wrapping_add(n));
            }
        }
    };
    until(true);
    let before = cpu("thread-self");
    until(false);
    cpu("thread-self") - before
}

/// Counts of a histogram's buckets.
type Buckets = [u64; BUCKETS.len() + 1];

/// Returns the parts of a call that `ours` measures: the wait to be sent, and the batches' round trips.
fn parts(source: &Source) -> [Buckets; 2] {
    match source {
        Source::Ours(ours) => {
            let figures = ours.figures();
            [&figures.timestamp_wait, &figures.timestamp_round_trip].map(|histogram| histogram.read().0)
        }
        Source::Library(_) => [Buckets::default(), Buckets::default()],
    }
}

/// Returns the upper bound in microseconds of a percentile, from two readings of a histogram; 0 if it is above all bounds.
fn below(before: &Buckets, after: &Buckets, share: f64) -> u64 {
    let new: Vec<u64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let wanted = new.iter().sum::<u64>() as f64 * share;
    let mut sum = 0;
    let reached = new.iter().position(|count| {
        sum += count;
        sum as f64 >= wanted
    });
    reached.and_then(|at| BUCKETS.get(at)).copied().unwrap_or(0)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let usage = "timestamps CLIENT PD CALLERS SECONDS BUSY";
    let words: Vec<String> = std::env::args().collect();
    let [_, client, pd, callers, seconds, busy] = &words[..] else { return Err(usage.into()) };
    let (callers, seconds, busy): (usize, u64, usize) = (callers.parse()?, seconds.parse()?, busy.parse()?);
    let source = Arc::new(Source::open(pd, client).await?);
    let (counting, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let mut neighbours = Vec::new();
    for _ in 0..busy {
        let (counting, stop) = (Arc::clone(&counting), Arc::clone(&stop));
        neighbours.push(std::thread::spawn(move || calculate(&counting, &stop)));
    }
    let mut tasks = Vec::new();
    for caller in 0..callers {
        let (source, counting, stop) = (Arc::clone(&source), Arc::clone(&counting), Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let (mut took, mut last) = (Vec::new(), 0);
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                let at = source.next(caller).await?;
                if at <= last {
                    return Err(Failure::from("a timestamp that is not higher than the one before"));
                }
                last = at;
                if counting.load(Ordering::Relaxed) {
                    took.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
                }
            }
            Ok::<_, Failure>(took)
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let batches = |source: &Source| match source {
        Source::Ours(ours) => ours.figures().counts().timestamp_batches,
        Source::Library(_) => 0,
    };
    let (began, cpu_before, batches_before) = (Instant::now(), cpu("self"), batches(&source));
    let parts_before = parts(&source);
    counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    counting.store(false, Ordering::Relaxed);
    let (elapsed, batches) = (began.elapsed().as_secs_f64(), batches(&source) - batches_before);
    let [wait, round_trip] = std::array::from_fn(|at| below(&parts_before[at], &parts(&source)[at], 0.99));
    let mut cpu = cpu("self") - cpu_before;
    stop.store(true, Ordering::Relaxed);
    for neighbour in neighbours {
        cpu -= neighbour.join().map_err(|_| "a neighbour has panicked")?;
    }
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await??);
    }
    took.sort_unstable();
    let at = |share: f64| took.get(((took.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or(0);
    println!(
        "{{\"timestamps\": {}, \"seconds\": {elapsed:.3}, \"p50_us\": {}, \"p99_us\": {}, \"cpu\": {cpu:.2}, \"batches\": {batches}, \
         \"wait_p99_below_us\": {wait}, \"round_trip_p99_below_us\": {round_trip}}}",
        took.len(),
        at(0.5),
        at(0.99)
    );
    Ok(())
}
