//! The flusher: makes durable whatever has been written, without a timer: while one flush is under way, the next batch
//! gathers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{Log, LogFailure, Segment, Unflushed, lock};

impl Log {
    /// Runs until `stop` and everything written is flushed, or until a flush fails. Sleeps until it is unparked.
    pub(super) fn flush_on(&self, stop: &AtomicBool) {
        loop {
            // Before the positions: what was written before the stop is flushed after it.
            let stopping = stop.load(Ordering::Acquire);
            let tail = self.tail();
            let written = tail.written.get();
            if written <= tail.flushed.get() {
                if stopping {
                    return;
                }
                std::thread::park();
                continue;
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
                self.metrics.flushes.record(began.elapsed());
                if let Err(error) = flushed {
                    // The kernel may have dropped the pages and the error with them: a second attempt would succeed, and prove
                    // nothing.
                    let flushed = tail.flushed.get();
                    let path = self.path(*segment);
                    self.fail(LogFailure { tried: "flush", path, reason: error.to_string(), flushed });
                    return;
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
        }
    }
}
