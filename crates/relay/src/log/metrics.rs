//! Counters of a log. Plain atomics, which the renderer of metrics reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets of [`FlushTimes`], in microseconds; one more bucket takes longer durations.
pub const FLUSH_BUCKETS_US: [u64; 14] =
    [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 409_600, 1_638_400];

/// Counters since the log was opened.
#[derive(Debug, Default)]
pub struct LogMetrics {
    /// New bytes.
    pub appended_bytes: AtomicU64,
    /// Appends with new bytes.
    pub appends: AtomicU64,
    /// Bytes already held, which were compared.
    pub compared_bytes: AtomicU64,
    /// Times that an append had to wait for the disk.
    pub throttled: AtomicU64,
    /// Durations of flushes.
    pub flushes: FlushTimes,
    /// Segments filled with zeroes ahead of time.
    pub segments_prepared: AtomicU64,
    /// Segments made only when needed, in the writer's thread.
    pub segments_late: AtomicU64,
    /// Old segments renamed for reuse.
    pub segments_recycled: AtomicU64,
    /// Old segments removed.
    pub segments_removed: AtomicU64,
    /// Pages read to find the end of the last whole record, for queries of the relay's state.
    pub walked_pages: AtomicU64,
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct FlushTimes {
    buckets: [AtomicU64; FLUSH_BUCKETS_US.len() + 1],
    sum_us: AtomicU64,
}

impl FlushTimes {
    pub(super) fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = FLUSH_BUCKETS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// Returns the count of each bucket, not cumulated; the last one is above every bound.
    #[must_use]
    pub fn buckets(&self) -> [u64; FLUSH_BUCKETS_US.len() + 1] {
        std::array::from_fn(|bucket| self.buckets[bucket].load(Relaxed))
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets().iter().sum()
    }

    /// Returns the sum of durations, in microseconds.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_in_its_bucket() {
        let times = FlushTimes::default();
        for us in [0, 50, 51, 1_638_400, 1_638_401] {
            times.record(Duration::from_micros(us));
        }
        let buckets = times.buckets();
        assert_eq!((buckets[0], buckets[1], buckets[13], buckets[14]), (2, 1, 1, 1));
        assert_eq!((times.count(), times.sum_us()), (5, 3_276_902));
    }
}
