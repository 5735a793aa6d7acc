//! Flushing of a log of segments: see [`super::flush`].

use std::io;
use std::sync::Arc;

use watermark::Lsn;

use super::flush::{Flush, Flushing};
use super::metrics::FlushTimes;
use super::{Log, LogFailure, Segment, Tail, Unflushed, lock};

/// Segments with unflushed bytes, of one timeline, up to `written`.
pub(crate) struct Batch {
    tail: Arc<Tail>,
    written: Lsn,
    files: Vec<Unflushed>,
}

impl Flush for Log {
    type Batch = Batch;

    fn flushing(&self) -> &Flushing {
        &self.flushing
    }

    fn times(&self) -> &FlushTimes {
        &self.metrics.flushes
    }

    fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    fn batch(&self) -> Option<Batch> {
        let tail = self.tail();
        let written = tail.written.get();
        if written <= tail.flushed.get() {
            return None;
        }
        let size = self.identity.segment_size;
        let unflushed = lock(&self.unflushed);
        let files = unflushed.iter().filter(|file| size.start(file.segment.number) < written).cloned().collect();
        Some(Batch { tail, written, files })
    }

    fn files(batch: &Batch) -> usize {
        batch.files.len()
    }

    fn sync(&self, batch: &Batch, file: usize) -> io::Result<()> {
        let flushed = batch.files[file].file.sync_data();
        #[cfg(test)]
        let flushed = flushed.and_then(|()| self.faults.sync());
        flushed
    }

    fn flushed(&self, batch: &Batch, file: usize) {
        let size = self.identity.segment_size;
        let end = Lsn(size.start(batch.files[file].segment.number).0.saturating_add(size.bytes()));
        batch.tail.flushed.publish(batch.written.min(end));
    }

    fn failed(&self, batch: &Batch, file: usize, error: io::Error) {
        let (flushed, path) = (batch.tail.flushed.get(), self.path(batch.files[file].segment));
        self.fail(LogFailure { tried: "flush", path, reason: error.to_string(), flushed });
    }

    fn settled(&self, batch: Batch) {
        let Batch { written, files, .. } = batch;
        let size = self.identity.segment_size;
        // Segments begun since are not among them, even with a lower number: those are on another timeline.
        let whole = |segment: Segment| size.start(segment.number + 1) <= written;
        lock(&self.unflushed)
            .retain(|file| !(whole(file.segment) && files.iter().any(|flushed| flushed.segment == file.segment)));
    }
}
