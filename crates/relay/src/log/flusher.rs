//! Flushing: makes durable whatever has been written, without a timer. While one flush is under way, the next batch gathers.
//!
//! Two threads may do it, one at a time: the flusher, and the writer's own when it has nothing better to do. On a busy machine a thread
//! that is woken for each batch comes late, and waking it costs as much as reading the batch did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Log, LogFailure, Segment, Unflushed, lock};

/// A disk that took longer the last time is left to the flusher, so that nobody who receives waits for it.
const QUICK: Duration = Duration::from_millis(4);

/// What came of one attempt.
enum Pass {
    /// Everything that was written is flushed already.
    Idle,
    Flushed,
    /// The log has failed, now or before.
    Failed,
}

impl Log {
    /// The flusher: runs until `stop` and everything written is flushed, or until a flush fails. Sleeps until it is unparked.
    pub(super) fn flush_on(&self, stop: &AtomicBool) {
        loop {
            // Before the positions: what was written before the stop is flushed after it.
            let stopping = stop.load(Ordering::Acquire);
            let pass = {
                let _turn = lock(&self.flushing);
                self.flush_once()
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
    pub(super) fn flush_here(&self) -> bool {
        let quick = Duration::from_micros(self.last_flush_us.load(Ordering::Relaxed)) <= QUICK;
        match self.flushing.try_lock() {
            Ok(_turn) if quick => {
                self.flush_once();
                true
            }
            _ => false,
        }
    }

    /// To be called with the lock `flushing`.
    fn flush_once(&self) -> Pass {
        // The kernel may have dropped the pages and the error with them: a second attempt would succeed, and prove nothing.
        if self.failure().is_some() {
            return Pass::Failed;
        }
        let tail = self.tail();
        let written = tail.written.get();
        if written <= tail.flushed.get() {
            return Pass::Idle;
        }
        let size = self.identity.segment_size;
        let files: Vec<Unflushed> = {
            let unflushed = lock(&self.unflushed);
            unflushed.iter().filter(|file| size.start(file.segment.number) < written).cloned().collect()
        };
        for Unflushed { segment, file } in &files {
            let began = Instant::now();
            let flushed = file.sync_data();
            #[cfg(test)]
            let flushed = flushed.and_then(|()| self.faults.sync());
            let took = began.elapsed();
            self.metrics.flushes.record(took);
            self.last_flush_us.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            if let Err(error) = flushed {
                let flushed = tail.flushed.get();
                let path = self.path(*segment);
                self.fail(LogFailure { tried: "flush", path, reason: error.to_string(), flushed });
                return Pass::Failed;
            }
            let end = watermark::Lsn(size.start(segment.number).0.saturating_add(size.bytes()));
            tail.flushed.publish(written.min(end));
        }
        if let Some(told) = &*self.told.load() {
            (told.0)();
        }
        // What has been begun since is not among them, even if it is lower: on another timeline.
        let whole = |segment: Segment| size.start(segment.number + 1) <= written;
        lock(&self.unflushed)
            .retain(|file| !(whole(file.segment) && files.iter().any(|flushed| flushed.segment == file.segment)));
        Pass::Flushed
    }
}
