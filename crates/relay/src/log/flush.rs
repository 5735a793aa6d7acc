//! Flushing of a log of any kind: all written bytes are made durable, without a timer. While one flush runs, the next batch gathers.
//!
//! Two threads may flush, one at a time: the flusher, and the writer's own when it is idle. On a busy machine a thread that is woken for each batch
//! runs late, and the wake-up costs as much as reading the batch.
//!
//! *Invariants*: positions are published as durable only after the flush of all files before them has succeeded. A failed flush is never retried: the
//! kernel may have dropped the pages together with the error, so that a second attempt would succeed and prove nothing.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;

use super::metrics::FlushTimes;

/// Duration of the last flush above which only the flusher flushes, so that receiving does not wait for a slow disk.
const QUICK: Duration = Duration::from_millis(4);

/// The callback after a flush.
struct FlushCallback(Box<dyn Fn() + Send + Sync>);

/// State of flushing: whose turn it is, and the duration of the last flush. A part of each log.
#[derive(Default)]
pub(crate) struct Flushing {
    /// Held during a flush, by the flusher or the writer's thread.
    turn: Mutex<()>,
    /// Duration of the last flush of a file, in microseconds.
    last_us: AtomicU64,
    /// Called after each flush, by the thread that flushed.
    callback: ArcSwapOption<FlushCallback>,
}

impl std::fmt::Debug for Flushing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flushing").field("last_us", &self.last_us).finish_non_exhaustive()
    }
}

impl Flushing {
    /// Sets the callback, called after each flush by the thread that flushes; None removes it. A call may be under way when this returns.
    pub(crate) fn tell(&self, tell: Option<Box<dyn Fn() + Send + Sync>>) {
        self.callback.store(tell.map(|tell| Arc::new(FlushCallback(tell))));
    }

    #[cfg(test)]
    pub(super) fn set_last_us(&self, us: u64) {
        self.last_us.store(us, Ordering::Relaxed);
    }
}

/// A log with files to make durable.
pub(crate) trait Flush {
    /// Bytes written but not durable at one moment, as their files, oldest first.
    type Batch;

    /// See [`Flushing`].
    fn flushing(&self) -> &Flushing;
    /// Returns the histogram of durations.
    fn times(&self) -> &FlushTimes;
    /// True if a flush has failed.
    fn has_failed(&self) -> bool;
    /// Returns the bytes to flush now; None if there are none.
    fn batch(&self) -> Option<Self::Batch>;
    /// Returns the number of files in the batch.
    fn files(batch: &Self::Batch) -> usize;
    /// Flushes one file of the batch.
    ///
    /// # Errors
    /// The operating system's.
    fn sync(&self, batch: &Self::Batch, file: usize) -> io::Result<()>;
    /// Publishes the position that is durable after the flush of `file` and those before.
    fn flushed(&self, batch: &Self::Batch, file: usize);
    /// Stops the log.
    fn failed(&self, batch: &Self::Batch, file: usize, error: io::Error);
    /// Called when all files are flushed and the callback has run.
    fn settled(&self, batch: Self::Batch);
}

/// Result of one attempt.
enum Pass {
    /// No unflushed bytes.
    Idle,
    Flushed,
    /// Failure of the log, now or before.
    Failed,
}

/// Runs the flusher until `stop` and everything written is flushed, or until a flush fails. Sleeps until it is unparked.
pub(crate) fn flush_on<L: Flush>(log: &L, stop: &AtomicBool) {
    loop {
        // Read before the positions: bytes written before the stop are flushed after it.
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

/// Flushes in the caller's thread. False: the flusher is flushing, or should, since the last flush was slow; wake it.
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

/// Waits for the end of the pass under way, if any, including its follow-up.
#[cfg(test)]
pub(crate) fn wait_settled<L: Flush>(log: &L) {
    drop(log.flushing().turn.lock());
}

/// Makes one pass. The caller holds the turn.
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
    if let Some(callback) = &*flushing.callback.load() {
        (callback.0)();
    }
    log.settled(batch);
    Pass::Flushed
}
