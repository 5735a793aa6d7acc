//! Width of lanes: the number of server connections that a worker has in use for one pool and node before statements share them.
//!
//! Few lanes make large batches, which cost servers and proxy less. But a lane is one server process, so a server with idle cores, or one that waits
//! for something else, answers more statements over more lanes. A proxy cannot see which of the two it has in front of it. So it tries: for a moment
//! all workers use another width, and the one that answers more statements stays.
//!
//! The search is common to all workers: by itself, each would gain from more lanes at the cost of the others.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Length of a window, in which statements are counted.
const WINDOW: Duration = Duration::from_millis(100);
/// Windows at the beginning of a measurement that do not count: connections open, batches form.
const SETTLE: u32 = 1;
/// Windows of a measurement that count.
const MEASURED: u32 = 2;
/// Fewest statements of a window that say something of the width.
const FEWEST: u64 = 100;
/// Ratio of statements from which a wider try is kept. More connections cost something, so they have to show for it.
const WIDER_GAIN: f64 = 1.05;
/// Ratio of statements down to which a narrower try is kept.
const NARROWER_LOSS: f64 = 0.98;
/// Windows between a try that was kept and the next one.
const SHORT_REST: u32 = 2;
/// Windows after the first try that was not kept. Each further one in a row doubles them, up to [`LONGEST_REST`].
const FIRST_REST: u32 = 10;
const LONGEST_REST: u32 = 160;
/// Statements that a worker counts before it tells the others.
const TOLD: u32 = 32;

/// Limits of the width, for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Bounds {
    pub least: usize,
    pub most: usize,
}

impl Bounds {
    fn clamp(self, width: usize) -> usize {
        width.clamp(self.least, self.most.max(self.least))
    }
}

/// Statements that one worker has counted and not yet told.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::core) struct Tally {
    answered: u32,
    behind: u32,
    lanes: u32,
}

impl Tally {
    /// Counts a statement that enters a lane. `behind`: another one is ahead of it.
    pub(in crate::core) fn entered(&mut self, behind: bool) {
        self.behind += u32::from(behind);
    }

    /// Counts an answer while the worker has this many lanes. True if the tally should be told now.
    pub(in crate::core) fn answered(&mut self, lanes: usize) -> bool {
        self.answered += 1;
        self.lanes = self.lanes.saturating_add(lanes as u32);
        self.answered >= TOLD
    }
}

/// The width that all workers use for one pool and node, and the counts of the present window.
#[derive(Debug)]
pub(in crate::core) struct LaneWidth {
    /// 0: the least.
    width: AtomicUsize,
    answered: AtomicU64,
    behind: AtomicU64,
    lanes: AtomicU64,
    since: Instant,
    /// End of the present window, in microseconds after `since`.
    ends: AtomicU64,
    search: Mutex<(Search, u64)>,
}

impl LaneWidth {
    pub(in crate::core) fn new(now: Instant) -> LaneWidth {
        LaneWidth {
            width: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            lanes: AtomicU64::new(0),
            since: now,
            ends: AtomicU64::new(0),
            search: Mutex::new((Search::default(), 0)),
        }
    }

    /// Returns the width to use now.
    pub(in crate::core) fn get(&self, bounds: Bounds) -> usize {
        bounds.clamp(self.width.load(Ordering::Relaxed))
    }

    /// Adds a worker's counts, and ends the window if it is over.
    pub(in crate::core) fn tell(&self, tally: &mut Tally, bounds: Bounds, now: Instant) {
        let told = std::mem::take(tally);
        self.answered.fetch_add(told.answered.into(), Ordering::Relaxed);
        self.behind.fetch_add(told.behind.into(), Ordering::Relaxed);
        self.lanes.fetch_add(told.lanes.into(), Ordering::Relaxed);
        let at = u64::try_from(now.saturating_duration_since(self.since).as_micros()).unwrap_or(u64::MAX);
        if at < self.ends.load(Ordering::Acquire) || bounds.least >= bounds.most {
            return;
        }
        let mut search = match self.search.try_lock() {
            Ok(search) => search,
            // Another worker ends the window.
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(search)) => search.into_inner(),
        };
        if at < self.ends.load(Ordering::Acquire) {
            return;
        }
        let (search, began) = &mut *search;
        let window = Window {
            answered: self.answered.swap(0, Ordering::Relaxed),
            behind: self.behind.swap(0, Ordering::Relaxed),
            lanes: self.lanes.swap(0, Ordering::Relaxed),
            time: Duration::from_micros(at - *began),
        };
        *began = at;
        self.width.store(search.next(window, bounds), Ordering::Relaxed);
        self.ends.store(at + WINDOW.as_micros() as u64, Ordering::Release);
    }
}

/// Counts of one window, or of several.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    /// Statements answered.
    answered: u64,
    /// Statements that entered a lane behind another one.
    behind: u64,
    /// Sum over the answered statements of the lanes that their worker had.
    lanes: u64,
    time: Duration,
}

impl Window {
    fn add(&mut self, other: Window) {
        self.answered += other.answered;
        self.behind += other.behind;
        self.lanes += other.lanes;
        self.time += other.time;
    }

    /// Returns the statements a second.
    fn rate(&self) -> f64 {
        self.answered as f64 / self.time.as_secs_f64().max(1e-6)
    }

    /// Returns the mean number of lanes of a worker.
    fn lanes(&self) -> usize {
        (self.lanes / self.answered.max(1)) as usize
    }

    /// True if most statements wait behind another one.
    fn is_crowded(&self) -> bool {
        self.behind * 2 >= self.answered
    }
}

/// A search for the width that answers most statements, by tries of twice and of half of it. Pure: windows go in, widths come out.
#[derive(Debug)]
struct Search {
    /// The width outside tries.
    settled: usize,
    phase: Phase,
    /// Windows of the next rest after a try that is not kept.
    rest: u32,
    /// True if the next try is a wider one.
    widens: bool,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// No try for so many windows.
    Rest(u32),
    /// The settled width is measured.
    Before(Sample),
    /// Another width is measured.
    Try { width: usize, before: Window, sample: Sample },
    /// The settled width is measured again: the load may have changed meanwhile.
    After { width: usize, before: Window, tried: Window, sample: Sample },
}

/// A measurement under way.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    windows: u32,
    sum: Window,
}

impl Sample {
    /// Adds a window. Returns the measurement when it is complete.
    fn add(&mut self, window: Window) -> Option<Window> {
        self.windows += 1;
        if self.windows > SETTLE {
            self.sum.add(window);
        }
        (self.windows >= SETTLE + MEASURED).then_some(self.sum)
    }
}

impl Default for Search {
    fn default() -> Search {
        Search { settled: 0, phase: Phase::Rest(SHORT_REST), rest: FIRST_REST, widens: true }
    }
}

impl Search {
    /// Takes the counts of the window that has ended. Returns the width of the next one.
    fn next(&mut self, window: Window, bounds: Bounds) -> usize {
        self.settled = bounds.clamp(self.settled);
        if window.answered < FEWEST || window.time > 2 * WINDOW {
            // The load has paused, or is too small to need more than one statement at a time.
            self.phase = Phase::Rest(SHORT_REST);
            return self.settled;
        }
        match &mut self.phase {
            Phase::Rest(left) => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.phase = Phase::Before(Sample::default());
                }
            }
            Phase::Before(sample) => {
                if let Some(before) = sample.add(window) {
                    self.phase = match self.choose(before, bounds) {
                        Some(width) => Phase::Try { width, before, sample: Sample::default() },
                        None => Phase::Rest(FIRST_REST),
                    };
                }
            }
            Phase::Try { width, before, sample } => {
                if let Some(tried) = sample.add(window) {
                    self.phase = Phase::After { width: *width, before: *before, tried, sample: Sample::default() };
                }
            }
            Phase::After { width, before, tried, sample } => {
                if let Some(after) = sample.add(window) {
                    let (width, best) = (*width, before.rate().max(after.rate()));
                    let gain = if width > self.settled { WIDER_GAIN } else { NARROWER_LOSS };
                    self.phase = if tried.rate() >= gain * best {
                        self.settled = width;
                        self.rest = FIRST_REST;
                        Phase::Rest(SHORT_REST)
                    } else {
                        self.rejected(width)
                    };
                }
            }
        }
        match self.phase {
            Phase::Try { width, .. } => bounds.clamp(width),
            _ => self.settled,
        }
    }

    /// Returns the width to try; `None` if there is no other.
    fn choose(&self, before: Window, bounds: Bounds) -> Option<usize> {
        // More lanes than the width are in use while all seats are taken.
        let wider = bounds.clamp(2 * self.settled.max(before.lanes()));
        let wider = Some(wider).filter(|&width| before.is_crowded() && width > self.settled);
        let narrower = Some(bounds.clamp(self.settled / 2)).filter(|&width| width < self.settled);
        if self.widens { wider.or(narrower) } else { narrower.or(wider) }
    }

    /// Returns the rest after a try of `width` that is not kept; the next try goes the other way.
    fn rejected(&mut self, width: usize) -> Phase {
        let rest = self.rest;
        self.rest = (2 * rest).min(LONGEST_REST);
        self.widens = width < self.settled;
        Phase::Rest(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { least: 2, most: 32 };

    /// A server under a number of clients that each wait for their answer.
    #[derive(Clone, Copy)]
    struct Server {
        clients: usize,
        /// Connections that can run at the same time.
        cores: usize,
        /// Microseconds of a statement, and of each batch: what a wake-up costs all of them.
        statement: f64,
        batch: f64,
        /// Lanes in use beyond the width, because all seats are taken.
        over: usize,
    }

    impl Server {
        fn rate(&self, width: usize) -> f64 {
            let lanes = width.max(self.over).min(self.clients);
            let batch = (self.clients as f64 / lanes as f64).max(1.0);
            lanes.min(self.cores) as f64 * 1e6 / (self.statement + self.batch / batch)
        }

        /// Counts of a window at this width; `noise` is a factor.
        fn window(&self, width: usize, noise: f64) -> Window {
            let lanes = width.max(self.over).min(self.clients);
            let answered = (self.rate(width) * noise * WINDOW.as_secs_f64()) as u64;
            let behind = if lanes < self.clients { answered * 9 / 10 } else { 0 };
            Window { answered, behind, lanes: answered * lanes as u64, time: WINDOW }
        }
    }

    /// Numbers from 0 to 1, the same in every run.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Runs the search for so many windows. Returns the statements answered, as a part of what the best width would have, for the second half.
    fn run(search: &mut Search, server: Server, windows: usize, noise: &mut Noise, spread: f64) -> f64 {
        let best = (BOUNDS.least..=BOUNDS.most).map(|width| server.rate(width)).fold(0.0, f64::max);
        let (mut width, mut answered) = (search.settled.max(BOUNDS.least), 0.0);
        for at in 0..windows {
            if at >= windows / 2 {
                answered += server.rate(width);
            }
            let factor = 1.0 + spread * (2.0 * noise.next() - 1.0);
            width = search.next(server.window(width, factor), BOUNDS);
        }
        answered / (windows.div_ceil(2) as f64 * best)
    }

    const IDLE_CORES: Server = Server { clients: 64, cores: 32, statement: 200.0, batch: 20.0, over: 0 };
    const BUSY_CORES: Server = Server { clients: 64, cores: 2, statement: 20.0, batch: 60.0, over: 0 };

    #[test]
    fn finds_the_width_that_answers_most() {
        // The server, and the least and most width that the search may end with.
        let cases = [
            ("32 idle cores", IDLE_CORES, 16, 32),
            ("two busy cores", BUSY_CORES, 2, 2),
            ("eight cores", Server { cores: 8, ..IDLE_CORES }, 8, 15),
            ("as many lanes as clients", Server { clients: 6, ..IDLE_CORES }, 4, 8),
            // The lanes are full, so that there are more of them than the width: twice the width would change nothing.
            ("long statements", Server { statement: 1_000.0, over: 13, ..IDLE_CORES }, 26, 32),
            ("no load to speak of", Server { clients: 1, statement: 10_000.0, ..IDLE_CORES }, 2, 2),
        ];
        for (name, server, least, most) in cases {
            for spread in [0.0, 0.02] {
                let (mut search, mut noise) = (Search::default(), Noise(7));
                let share = run(&mut search, server, 600, &mut noise, spread);
                assert!((least..=most).contains(&search.settled), "{name}, noise {spread}: {}", search.settled);
                assert!(share > 0.93, "{name}, noise {spread}: {share} of the best");
            }
        }
    }

    #[test]
    fn follows_a_server_that_changes() {
        let (mut search, mut noise) = (Search::default(), Noise(3));
        for (server, least, most) in [(IDLE_CORES, 16, 32), (BUSY_CORES, 2, 4), (IDLE_CORES, 16, 32)] {
            run(&mut search, server, 900, &mut noise, 0.02);
            assert!((least..=most).contains(&search.settled), "{}", search.settled);
        }
    }

    #[test]
    fn keeps_no_width_for_the_load_s_sake() {
        // The load grows by 3 % a window and falls again, whatever the width: only the measurement before or after a try shows it.
        for rising in [true, false] {
            let mut search = Search::default();
            let mut width = 2;
            for at in 0..40 {
                let steps = if rising { at } else { 40 - at };
                let answered = (2_000.0 * 1.03f64.powi(steps)) as u64;
                let window = Window { answered, behind: answered, lanes: 2 * answered, time: WINDOW };
                width = search.next(window, BOUNDS);
            }
            assert_eq!((search.settled, width), (2, 2), "rising: {rising}");
        }
    }

    #[test]
    fn tries_less_and_less_often() {
        let (mut search, mut tries, mut last) = (Search::default(), Vec::new(), 2);
        for at in 0..1_000 {
            let width = search.next(BUSY_CORES.window(last, 1.0), BOUNDS);
            if width != last && width > 2 {
                tries.push(at);
            }
            last = width;
        }
        let gaps: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps[..4], [19, 29, 49, 89], "{tries:?}");
        assert!(gaps[4..].iter().all(|&gap| gap == 169), "{gaps:?}");
    }

    #[test]
    fn is_fixed_by_equal_bounds() {
        let (width, now) = (LaneWidth::new(Instant::now()), Instant::now());
        let bounds = Bounds { least: 3, most: 3 };
        for second in 0..100 {
            let mut tally = Tally { answered: 10_000, behind: 10_000, lanes: 30_000 };
            width.tell(&mut tally, bounds, now + Duration::from_millis(100 * second));
            assert_eq!(width.get(bounds), 3);
        }
    }

    #[test]
    fn workers_share_one_width() {
        let (shared, now) = (LaneWidth::new(Instant::now()), Instant::now());
        let mut widest = 0;
        for turn in 0..400 {
            let width = shared.get(BOUNDS);
            widest = widest.max(width);
            for _ in 0..2 {
                let answered = 250 * width.min(16) as u32;
                let mut tally = Tally { answered, behind: answered, lanes: answered * width as u32 };
                shared.tell(&mut tally, BOUNDS, now + Duration::from_millis(50 * turn));
                assert_eq!(tally.answered, 0);
            }
        }
        assert!(widest >= 16, "{widest}");
        assert!((16..=32).contains(&shared.get(BOUNDS)), "{}", shared.get(BOUNDS));
    }
}
