//! Cost of the log, compared with ways of writing that it does not use.
//!
//! ```text
//! cargo run --release -p relay --example log_bench -- [DIRECTORY [ROUNDS]]
//! ```
//!
//! 1. Durable appends of 8 and 128 kB into one file, one after the other: a file that grows, one with `fallocate`, one filled
//!    with zeroes, and the log itself (append, then wait for the flusher). The four take turns within a round.
//! 2. Throughput of the log: appends of 8 and 128 kB that do not wait for the disk, until all is flushed; and the CPU time per MB. The WAL has no
//!    meaning: the log does not parse it.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use relay::log::{Directory, Identity, Log, LogOptions, SegmentSize, Start, Timeline, Writer};
use watermark::Lsn;

const SEGMENT: u64 = 16 << 20;
const BEGIN: Lsn = Lsn(SEGMENT);
/// Durable appends of one way in one round.
const APPENDS: usize = 120;
/// Bytes of a throughput run.
const STREAM: u64 = 512 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().unwrap_or_else(|| ".".into());
    let rounds: usize = arguments.next().map_or(10, |rounds| rounds.parse().unwrap());
    let dir = Path::new(&parent).join(format!("log-bench-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    latency(&dir, rounds);
    throughput(&dir, rounds.min(5));
    fs::remove_dir_all(&dir).unwrap();
}

fn latency(dir: &Path, rounds: usize) {
    println!(
        "durable append, microseconds; median over {rounds} rounds of each round's p50 and p99 (lowest to highest p50)\n"
    );
    println!("| bytes | way | p50 | p99 | p50 of the rounds |\n|---:|---|---:|---:|---|");
    for size in [8 << 10, 128 << 10] {
        let names = ["growing file", "fallocate", "zero-filled", "log"];
        let mut p50: [Vec<f64>; 4] = Default::default();
        let mut p99: [Vec<f64>; 4] = Default::default();
        for _ in 0..rounds {
            for way in 0..4 {
                let mut took = run(dir, way, size);
                took.sort_unstable();
                p50[way].push(micros(took[took.len() / 2]));
                p99[way].push(micros(took[took.len() * 99 / 100]));
            }
        }
        for way in 0..4 {
            p50[way].sort_by(f64::total_cmp);
            p99[way].sort_by(f64::total_cmp);
            let middle = |all: &[f64]| all[all.len() / 2];
            let (low, high) = (p50[way][0], p50[way][rounds - 1]);
            let (p50, p99, name) = (middle(&p50[way]), middle(&p99[way]), names[way]);
            println!("| {size} | {name} | {p50:.0} | {p99:.0} | {low:.0} to {high:.0} |");
        }
    }
}

fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

fn run(dir: &Path, way: usize, size: usize) -> Vec<Duration> {
    let bytes = vec![0x5a; size];
    let path = dir.join("file");
    if way == 3 {
        let (mut writer, _log) = open(&dir.join("log"));
        // The preallocator's work is not part of the append.
        let mut at = BEGIN;
        let took = measure(|_| {
            writer.append(at, &bytes).unwrap();
            at.0 += size as u64;
            writer.flush().unwrap();
        });
        drop(writer);
        fs::remove_dir_all(dir.join("log")).unwrap();
        return took;
    }
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    match way {
        1 => rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SEGMENT).unwrap(),
        2 => {
            let zeroes = vec![0; 1 << 20];
            (0..SEGMENT >> 20).for_each(|mb| file.write_all_at(&zeroes, mb << 20).unwrap());
        }
        _ => {}
    }
    file.sync_all().unwrap();
    let took = measure(|index| {
        file.write_all_at(&bytes, (index * size) as u64).unwrap();
        file.sync_data().unwrap();
    });
    fs::remove_file(path).unwrap();
    took
}

fn measure(mut append: impl FnMut(usize)) -> Vec<Duration> {
    (0..APPENDS)
        .map(|index| {
            let began = Instant::now();
            append(index);
            began.elapsed()
        })
        .collect()
}

fn throughput(dir: &Path, rounds: usize) {
    println!(
        "\nthroughput of {} MB, flushed in the end; median of {rounds} rounds (lowest to highest)\n",
        STREAM >> 20
    );
    println!("| bytes an append | MB/s | CPU µs/MB, writer | CPU µs/MB, all threads |\n|---:|---:|---:|---:|");
    for size in [8 << 10, 128 << 10] {
        let bytes = vec![0x5a; size];
        let (mut rate, mut writer_cpu, mut all_cpu) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (mut writer, log) = open(&dir.join("log"));
            let mut at = BEGIN;
            let (began, own, all) = (Instant::now(), cpu(true), cpu(false));
            while at.0 < BEGIN.0 + STREAM {
                writer.append(at, &bytes).unwrap();
                at.0 += size as u64;
            }
            writer.flush().unwrap();
            let megabytes = (STREAM >> 20) as f64;
            rate.push(megabytes / began.elapsed().as_secs_f64());
            writer_cpu.push((cpu(true) - own) / 1e3 / megabytes);
            all_cpu.push((cpu(false) - all) / 1e3 / megabytes);
            drop((writer, log));
            fs::remove_dir_all(dir.join("log")).unwrap();
        }
        for all in [&mut rate, &mut writer_cpu, &mut all_cpu] {
            all.sort_by(f64::total_cmp);
        }
        let text = |all: &[f64]| format!("{:.0} ({:.0} to {:.0})", all[all.len() / 2], all[0], all[all.len() - 1]);
        println!("| {size} | {} | {} | {} |", text(&rate), text(&writer_cpu), text(&all_cpu));
    }
}

/// CPU time in nanoseconds: of this thread, or of all that live.
fn cpu(own: bool) -> f64 {
    let read = |path: &Path| -> f64 {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0)
    };
    if own {
        return read(Path::new("/proc/thread-self/schedstat"));
    }
    fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| read(&task.path().join("schedstat"))).sum()
}

fn open(dir: &Path) -> (Writer, std::sync::Arc<Log>) {
    let identity = Identity { system_id: 1, segment_size: SegmentSize::DEFAULT };
    let start = Some(Start { timeline: Timeline(1), at: BEGIN });
    let (writer, log) =
        Log::open(LogOptions { directory: Directory::open(dir).unwrap(), identity, start, spares: 2 }).unwrap();
    (writer, log)
}
