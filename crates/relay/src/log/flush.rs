//! The discipline of flushing, whatever log it is: whatever has been written is made durable, without a timer. While one flush is under way, the
//! next batch gathers.
//!
//! Two threads may flush, one at a time: the flusher, and the writer's own when it has nothing better to do. On a busy machine a thread
//! that is woken for each batch comes late, and waking it costs as much as reading the batch did.
//!
//! *What must hold*: positions are published as durable only after the flush of all files before them has succeeded; a flush that failed is
//! never tried again and believed: the kernel may have dropped the pages and the error with them, and a second attempt would succeed and
//! prove nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use super::metrics::FlushTimes;

/// A disk that took longer the last time is left to the flusher, so that nobody who receives waits for it.
const QUICK: Duration = Duration::from_millis(4);

/// What is called after a flush.
struct Told(Box<dyn Fn() + Send + Sync>);

/// Who flushes, and how long the disk took: a part of each log.
#[derive(Default)]
pub(crate) struct Flushing {
    /// Held by whoever flushes: the flusher, or the writer's thread.
    turn: Mutex<()>,
    /// How long the last flush of a file took, in microseconds.
    last_us: AtomicU64,
    /// Called by who flushes, after each flush.
    told: ArcSwapOption<Told>,
}

impl std::fmt::Debug for Flushing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flushing").field("last_us", &self.last_us).finish_non_exhaustive()
    }
}

impl Flushing {
    /// `tell` is called after each flush, by the thread that flushes. None: nobody. A call may be under way when this returns.
    pub(crate) fn tell(&self, tell: Option<Box<dyn Fn() + Send + Sync>>) {
        self.told.store(tell.map(|tell| Arc::new(Told(tell))));
    }

    #[cfg(test)]
    pub(super) fn set_last_us(&self, us: u64) {
        self.last_us.store(us, Ordering::Relaxed);
    }
}

/// A log with files that are to be made durable.
pub(crate) trait Flush {
    /// What had been written at one moment and was not durable: the files with anything of it, oldest first.
    type Batch;

    /// See [`Flushing`].
    fn flushing(&self) -> &Flushing;
    /// Where durations are counted.
    fn times(&self) -> &FlushTimes;
    /// Whether a flush has failed.
    fn has_failed(&self) -> bool;
    /// What is to be flushed now; None: nothing.
    fn batch(&self) -> Option<Self::Batch>;
    /// How many files it has.
    fn files(batch: &Self::Batch) -> usize;
    /// Flushes one of them.
    ///
    /// # Errors
    /// The operating system's.
    fn sync(&self, batch: &Self::Batch, file: usize) -> io::Result<()>;
    /// Publishes what is durable by the flush of `file` and those before.
    fn flushed(&self, batch: &Self::Batch, file: usize);
    /// The log has to stop.
    fn failed(&self, batch: &Self::Batch, file: usize, error: io::Error);
    /// All files were flushed, and whoever waits for it was told.
    fn settled(&self, batch: Self::Batch);
}

/// What came of one attempt.
enum Pass {
    /// Everything that was written is flushed already.
    Idle,
    Flushed,
    /// The log has failed, now or before.
    Failed,
}

/// The flusher: runs until `stop` and everything written is flushed, or until a flush fails. Sleeps until it is unparked.
pub(crate) fn flush_on<L: Flush>(log: &L, stop: &AtomicBool) {
    loop {
        // Before the positions: what was written before the stop is flushed after it.
        let stopping = stop.load(Ordering::Acquire);
        let pass = {
            let _turn = super::lock(&log.flushing().turn);
            flush_once(log)
        };
        match pass {
            Pass::Flushed => {}
            Pass::Failed => return,
            Pass::Idle if stopping => return,
            Pass::Idle => std::thread::park(),
        }
    }
}

/// Flushes in the caller's thread. False: the flusher is at it, or should be, since the disk was slow the last time; wake it.
pub(crate) fn flush_here<L: Flush>(log: &L) -> bool {
    let flushing = log.flushing();
    let quick = Duration::from_micros(flushing.last_us.load(Ordering::Relaxed)) <= QUICK;
    match flushing.turn.try_lock() {
        Ok(_turn) if quick => {
            flush_once(log);
            true
        }
        _ => false,
    }
}

/// Waits until the pass that is under way, if there is one, has ended, with all that follows from it.
#[cfg(test)]
pub(crate) fn wait_settled<L: Flush>(log: &L) {
    drop(log.flushing().turn.lock());
}

/// To be called in turn.
fn flush_once<L: Flush>(log: &L) -> Pass {
    if log.has_failed() {
        return Pass::Failed;
    }
    let Some(batch) = log.batch() else { return Pass::Idle };
    let flushing = log.flushing();
    for file in 0..L::files(&batch) {
        let began = Instant::now();
        let synced = log.sync(&batch, file);
        let took = began.elapsed();
        log.times().record(took);
        flushing.last_us.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if let Err(error) = synced {
            log.failed(&batch, file, error);
            return Pass::Failed;
        }
        log.flushed(&batch, file);
    }
    if let Some(told) = &*flushing.told.load() {
        (told.0)();
    }
    log.settled(batch);
    Pass::Flushed
}
