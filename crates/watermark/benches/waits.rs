//! Benchmark of the cost and the delay of a wake-up, for several ways to wait for a number that another thread publishes, alternately in one run.
//!
//! One thread publishes 1, 2, 3, … every half millisecond. Each waiter waits for a number a random distance ahead, chosen so that on average four are
//! due at each publish (all of them if there are fewer), and then for the next. It records the time from just before the publish of its number to its
//! own first instruction after the wait. CPU is the process's time, less the publisher's own for its pauses, divided by the number of completed
//! waits.
//!
//! ```text
//! # --limit: no run begins later than this many seconds after the start
//! cargo bench -p watermark --bench waits -- [--seconds 1] [--repetitions 5] [--waiters 1,16,256,2048] [--limit 180]
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints, for those who work on this")]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use watermark::{Parker, Reached, Waited, Waiters, Watermark};

const PAUSE: Duration = Duration::from_micros(500);
const DUE: u64 = 4;
const WARM_UP: Duration = Duration::from_millis(200);
/// Number of threads of an event-loop server, each with a heap.
const LOOPS: usize = 2;
const END: u64 = u64::MAX;
/// Maximum number of checks per second in a polling run; others are skipped. With 2048 threads that check every millisecond, two cores have no time
/// left for the publisher, and the run does not end.
const MOST_LOOKS: u64 = 2_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// No waiters: the cost of the pauses.
    Nobody,
    /// A thread per waiter, with a `Parker`.
    Parkers,
    /// Two threads with all waiters, each with its `Waiters`.
    Heaps,
    /// A task per waiter, on two threads, awaiting `reached`.
    Tasks,
    /// A thread per waiter, in one queue behind one mutex, each with its own condition variable.
    Queue,
    /// A thread per waiter, on one mutex and one condition variable.
    Herd,
    /// A thread per waiter, which alternately checks and sleeps this many microseconds.
    Poll(u64),
}

const WAYS: [Way; 7] = [Way::Parkers, Way::Heaps, Way::Tasks, Way::Queue, Way::Herd, Way::Poll(100), Way::Poll(1000)];

/// State shared by the waiters of a run.
struct Run {
    began: Instant,
    /// Publication time of each number, in nanoseconds; a ring buffer.
    published: Box<[AtomicU64]>,
    waiters: u64,
    ended: AtomicBool,
    /// Number of waiters that have started.
    ready: AtomicUsize,
}

/// Delays of a waiter in nanoseconds, each with the end time of the wait.
type Delays = Vec<(u64, u64)>;

trait Publish: Send + Sync + 'static {
    fn publish(&self, number: u64);
}

/// The waiters, and their publisher.
struct Set {
    publish: Arc<dyn Publish>,
    threads: Vec<JoinHandle<Delays>>,
}

struct Figures {
    cpu: f64,
    publisher: f64,
    p50: f64,
    p99: f64,
    ends: f64,
}

// === the ways ===

impl Way {
    /// Returns the number of checks of all waiters per second.
    fn looks(self, waiters: u64) -> u64 {
        match self {
            Way::Poll(pause) => waiters * 1_000_000 / pause,
            _ => 0,
        }
    }
}

impl Publish for Watermark<u64> {
    fn publish(&self, number: u64) {
        Watermark::publish(self, number);
    }
}

#[derive(Default)]
struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    number: u64,
    /// Waiters by target and thread.
    queue: BTreeMap<(u64, usize), Arc<Condvar>>,
}

impl Publish for Queue {
    fn publish(&self, number: u64) {
        let mut waiting = self.0.lock().unwrap();
        waiting.number = number;
        while let Some(first) = waiting.queue.first_entry() {
            if first.key().0 > number {
                break;
            }
            first.remove().notify_one();
        }
    }
}

impl Queue {
    fn wait(&self, target: u64, who: usize, mine: &Arc<Condvar>) {
        let mut waiting = self.0.lock().unwrap();
        if waiting.number < target {
            waiting.queue.insert((target, who), Arc::clone(mine));
            while waiting.number < target {
                waiting = mine.wait(waiting).unwrap();
            }
        }
    }
}

#[derive(Default)]
struct Herd {
    number: Mutex<u64>,
    changed: Condvar,
}

impl Publish for Herd {
    fn publish(&self, number: u64) {
        *self.number.lock().unwrap() = number;
        self.changed.notify_all();
    }
}

fn spawn(body: impl FnOnce() -> Delays + Send + 'static) -> JoinHandle<Delays> {
    thread::Builder::new().stack_size(64 << 10).spawn(body).unwrap()
}

/// Starts a thread for each waiter, which waits for one number after another.
fn threads<P: Publish>(
    run: &Arc<Run>,
    shared: &Arc<P>,
    now: fn(&P) -> u64,
    wait: impl Fn(&Arc<P>, usize) -> Box<dyn FnMut(u64)> + Send + Sync + Clone + 'static,
) -> Set {
    let threads = (0..run.waiters as usize).map(|who| {
        let (run, shared, wait) = (Arc::clone(run), Arc::clone(shared), wait.clone());
        spawn(move || {
            let mut wait = wait(&shared, who);
            let mut random = Random::new(who);
            let mut delays = Delays::new();
            run.ready.fetch_add(1, Ordering::SeqCst);
            loop {
                let target = now(&shared).saturating_add(run.distance(&mut random));
                wait(target);
                if !run.ended(target, &mut delays) {
                    return delays;
                }
            }
        })
    });
    Set { threads: threads.collect(), publish: Arc::clone(shared) as Arc<dyn Publish> }
}

fn heaps(run: &Arc<Run>) -> Set {
    let mark = Arc::new(Watermark::new(0_u64));
    let loops = LOOPS.min(run.waiters as usize);
    let threads = (0..loops).map(|which| {
        let (run, mark) = (Arc::clone(run), Arc::clone(&mark));
        spawn(move || {
            let this = thread::current();
            let count = (run.waiters as usize + loops - 1 - which) / loops;
            let mut waiters = Waiters::new(Arc::clone(&mark), count, move || this.unpark());
            let mut random = Random::new(which);
            let mut delays = Delays::new();
            for _ in 0..count {
                let target = mark.get() + run.distance(&mut random);
                waiters.insert(target, target).unwrap();
            }
            run.ready.fetch_add(count, Ordering::SeqCst);
            loop {
                while let Some(target) = waiters.pop() {
                    if !run.ended(target, &mut delays) {
                        return delays;
                    }
                    let target = mark.get().saturating_add(run.distance(&mut random));
                    waiters.insert(target, target).unwrap();
                }
                thread::park();
            }
        })
    });
    Set { threads: threads.collect(), publish: mark }
}

/// Runtime of one thread, as small as possible: the tasks to be polled.
struct Ready {
    tasks: Mutex<Vec<usize>>,
    thread: Thread,
}

struct Task {
    ready: Arc<Ready>,
    index: usize,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.ready.tasks.lock().unwrap().push(self.index);
        self.ready.thread.unpark();
    }
}

fn tasks(run: &Arc<Run>) -> Set {
    let mark = Arc::new(Watermark::new(0_u64));
    let loops = LOOPS.min(run.waiters as usize);
    let threads = (0..loops).map(|which| {
        let (run, mark) = (Arc::clone(run), Arc::clone(&mark));
        spawn(move || {
            let ready = Arc::new(Ready { tasks: Mutex::default(), thread: thread::current() });
            let count = (run.waiters as usize + loops - 1 - which) / loops;
            let mut random = Random::new(which);
            let mut delays = Delays::new();
            let mut tasks: Vec<(Waker, u64, Reached<'_, u64>)> = Vec::new();
            for index in 0..count {
                let target = run.distance(&mut random);
                let waker = Waker::from(Arc::new(Task { ready: Arc::clone(&ready), index }));
                tasks.push((waker, target, mark.reached(target)));
            }
            let mut polled: Vec<usize> = (0..count).collect();
            run.ready.fetch_add(count, Ordering::SeqCst);
            loop {
                for index in polled.drain(..) {
                    let (waker, target, reached) = &mut tasks[index];
                    while Pin::new(&mut *reached).poll(&mut Context::from_waker(waker)).is_ready() {
                        if !run.ended(*target, &mut delays) {
                            return delays;
                        }
                        *target = mark.get().saturating_add(run.distance(&mut random));
                        *reached = mark.reached(*target);
                    }
                }
                std::mem::swap(&mut polled, &mut ready.tasks.lock().unwrap());
                if polled.is_empty() {
                    thread::park();
                }
            }
        })
    });
    Set { threads: threads.collect(), publish: mark }
}

fn set(way: Way, run: &Arc<Run>) -> Set {
    let mark = Arc::new(Watermark::new(0_u64));
    match way {
        Way::Nobody => Set { publish: mark, threads: Vec::new() },
        Way::Heaps => heaps(run),
        Way::Tasks => tasks(run),
        Way::Parkers => threads(
            run,
            &mark,
            |mark| mark.get(),
            |mark, _| {
                let mut parker = Parker::new(Arc::clone(mark));
                Box::new(move |target| assert!(matches!(parker.wait(target, None), Waited::Reached(_))))
            },
        ),
        Way::Poll(pause) => threads(
            run,
            &mark,
            |mark| mark.get(),
            move |mark, _| {
                let mark = Arc::clone(mark);
                Box::new(move |target| {
                    while mark.get() < target {
                        thread::sleep(Duration::from_micros(pause));
                    }
                })
            },
        ),
        Way::Queue => threads(
            run,
            &Arc::new(Queue::default()),
            |queue| queue.0.lock().unwrap().number,
            |queue, who| {
                let (queue, mine) = (Arc::clone(queue), Arc::new(Condvar::new()));
                Box::new(move |target| queue.wait(target, who, &mine))
            },
        ),
        Way::Herd => threads(
            run,
            &Arc::new(Herd::default()),
            |herd| *herd.number.lock().unwrap(),
            |herd, _| {
                let herd = Arc::clone(herd);
                Box::new(move |target| {
                    let mut number = herd.number.lock().unwrap();
                    while *number < target {
                        number = herd.changed.wait(number).unwrap();
                    }
                })
            },
        ),
    }
}

// === a run ===

impl Run {
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Returns the distance of a waiter's target: 1 to twice the mean less one.
    fn distance(&self, random: &mut Random) -> u64 {
        let mean = (self.waiters / DUE).max(1);
        1 + random.below(2 * mean - 1)
    }

    /// Records the end of a wait. Returns false at the end of the run.
    fn ended(&self, target: u64, delays: &mut Delays) -> bool {
        let now = self.now();
        if self.ended.load(Ordering::Acquire) {
            return false;
        }
        let published = self.published[target as usize % self.published.len()].load(Ordering::Relaxed);
        delays.push((now, now.saturating_sub(published)));
        true
    }
}

/// xorshift64*: https://doi.org/10.18637/jss.v008.i14 and https://doi.org/10.1145/2845077
struct Random(u64);

impl Random {
    fn new(seed: usize) -> Random {
        Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed as u64 + 1))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

fn cpu(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn measure(way: Way, waiters: u64, window: Duration) -> Figures {
    let run = Arc::new(Run {
        began: Instant::now(),
        published: (0..1 << 16).map(|_| AtomicU64::new(0)).collect(),
        waiters,
        ended: AtomicBool::new(false),
        ready: AtomicUsize::new(0),
    });
    let set = set(way, &run);
    let expected = if way == Way::Nobody { 0 } else { waiters as usize };
    while run.ready.load(Ordering::SeqCst) < expected {
        thread::yield_now();
    }
    let (mut number, start) = (0_u64, Instant::now());
    let mut turn = || {
        number += 1;
        run.published[number as usize % run.published.len()].store(run.now(), Ordering::Relaxed);
        set.publish.publish(number);
        thread::sleep(PAUSE);
    };
    while start.elapsed() < WARM_UP {
        turn();
    }
    let (first, all, own) = (run.now(), cpu(ClockId::ProcessCPUTime), cpu(ClockId::ThreadCPUTime));
    let (mut turns, start) = (0_u64, Instant::now());
    while start.elapsed() < window {
        turn();
        turns += 1;
    }
    let (last, all, own) = (run.now(), cpu(ClockId::ProcessCPUTime) - all, cpu(ClockId::ThreadCPUTime) - own);
    run.ended.store(true, Ordering::Release);
    set.publish.publish(END);
    let mut delays: Vec<u64> = Vec::new();
    for thread in set.threads {
        let ends = thread.join().unwrap();
        delays.extend(ends.into_iter().filter(|(at, _)| (first..last).contains(at)).map(|(_, delay)| delay));
    }
    delays.sort_unstable();
    let quantile = |q: f64| delays.get((delays.len() as f64 * q) as usize).map_or(0.0, |ns| *ns as f64 / 1e3);
    Figures {
        cpu: if delays.is_empty() { all / turns as f64 } else { all / delays.len() as f64 },
        publisher: own / turns as f64,
        p50: quantile(0.5),
        p99: quantile(0.99),
        ends: delays.len() as f64 / turns as f64,
    }
}

// === the table ===

/// Returns the median, and half the range relative to it.
fn spread(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> (f64, f64) {
    let mut values: Vec<f64> = figures.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    let median = values[values.len() / 2];
    (median, (values[values.len() - 1] - values[0]) / 2.0 / median * 100.0)
}

fn name(way: Way) -> String {
    match way {
        Way::Nobody => "nobody waits".into(),
        Way::Parkers => "a thread each, `Parker`".into(),
        Way::Heaps => "2 threads, `Waiters`".into(),
        Way::Tasks => "a task each on 2 threads, `reached`".into(),
        Way::Queue => "a thread each, mutex + queue of condvars".into(),
        Way::Herd => "a thread each, mutex + one condvar".into(),
        Way::Poll(pause) => format!("a thread each, polling every {pause} µs"),
    }
}

fn argument(name: &str, default: &str) -> String {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == name);
    at.and_then(|at| arguments.get(at + 1)).map_or(default, String::as_str).to_owned()
}

fn main() {
    let seconds: f64 = argument("--seconds", "1").parse().unwrap();
    let repetitions: usize = argument("--repetitions", "5").parse().unwrap();
    let counts: Vec<u64> =
        argument("--waiters", "1,16,256,2048").split(',').map(|count| count.parse().unwrap()).collect();
    let window = Duration::from_secs_f64(seconds);
    let limit = Duration::from_secs(argument("--limit", "180").parse().unwrap());
    let start = Instant::now();

    let mut results: BTreeMap<(u64, Way), Vec<Figures>> = BTreeMap::new();
    let mut alone = Vec::new();
    for repetition in 0..repetitions {
        alone.push(measure(Way::Nobody, 0, window));
        for &count in &counts {
            let mut ways = WAYS;
            ways.rotate_left(repetition % WAYS.len());
            for way in ways {
                if start.elapsed() < limit && way.looks(count) <= MOST_LOOKS {
                    let began = Instant::now();
                    results.entry((count, way)).or_default().push(measure(way, count, window));
                    eprintln!("{repetition} {count} {way:?}: {:.1} s", began.elapsed().as_secs_f64());
                }
            }
        }
    }

    let least = results.values().map(Vec::len).min().unwrap_or(0);
    let pause = spread(&alone, |figures| figures.publisher).0;
    println!(
        "{least} to {repetitions} repetitions of {seconds} s; the publisher alone: {pause:.1} µs of CPU a publish and pause\n"
    );
    println!(
        "| waiters | way | wake-ups a publish | CPU a wake-up, µs | publisher's CPU a publish, µs | delay p50, µs | p99, µs |"
    );
    println!("|---|---|---|---|---|---|---|");
    for ((count, way), figures) in &results {
        let cell = |of: &dyn Fn(&Figures) -> f64| {
            let (median, spread) = spread(figures, of);
            if median > 0.0 { format!("{median:.1} ±{spread:.0}%") } else { format!("{median:.1}") }
        };
        println!(
            "| {count} | {} | {:.1} | {} | {} | {} | {} |",
            name(*way),
            spread(figures, |figures| figures.ends).0,
            cell(&|figures| figures.cpu - pause / figures.ends.max(1e-9)),
            cell(&|figures| (figures.publisher - pause).max(0.0)),
            cell(&|figures| figures.p50),
            cell(&|figures| figures.p99),
        );
    }
}
