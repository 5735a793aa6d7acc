//! Durations of the oracle's requests: the wait until their batch is sent, and the query itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Upper bounds of the buckets, in microseconds; one more bucket follows, without a bound.
pub const BUCKETS: [u64; 16] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 819_200, 3_276_800,
    13_107_200,
];

/// Histogram of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Number of durations in each bucket of [`BUCKETS`], and above all of them; not cumulative.
    pub buckets: [u64; BUCKETS.len() + 1],
    /// Sum of all durations, in microseconds.
    pub sum_micros: u64,
}

/// Durations of the oracle's batches since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OracleTimes {
    /// Time from the request for a batch (its first ticket, or the failure of the previous one) until it was sent: the longest wait of one of its
    /// requesters for the pace, for room among the queries under way, or for a primary.
    pub waited: Times,
    /// Time from sending a query to its answer, of answered queries.
    pub round_trip: Times,
    /// Number of batches without an answer.
    pub failed: u64,
}

/// Times of the oracle. Written by the oracle's driver, except for `wanted`; read by any thread.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// Nanoseconds after `origin` at which the next batch was requested; 0 if unknown.
    wanted: AtomicU64,
    waited: Histogram,
    round_trip: Histogram,
    failed: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    sum_micros: AtomicU64,
}

// === impl Clock ===

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock {
            origin: Instant::now(),
            wanted: AtomicU64::new(0),
            waited: Histogram::default(),
            round_trip: Histogram::default(),
            failed: AtomicU64::new(0),
        }
    }

    /// Records the request for a batch, before the driver is woken.
    pub(crate) fn wanted(&self) {
        let now = self.origin.elapsed().as_nanos();
        self.wanted.store(u64::try_from(now).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// Records that a batch is being sent. Called after `Oracle::begin`, so that the next request is not missed.
    pub(crate) fn sent(&self) {
        // 0 if the requester has raised the flag and not yet called `wanted`: it has not waited then.
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        let waited = self.origin.elapsed().saturating_sub(Duration::from_nanos(wanted));
        self.waited.observe(if wanted == 0 { Duration::ZERO } else { waited });
    }

    pub(crate) fn answered(&self, after: Duration) {
        self.round_trip.observe(after);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> OracleTimes {
        OracleTimes {
            waited: self.waited.read(),
            round_trip: self.round_trip.read(),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}

// === impl Histogram ===

impl Histogram {
    fn observe(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn read(&self) -> Times {
        Times {
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
            sum_micros: self.sum_micros.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        for (micros, bucket) in [(0, 0), (50, 0), (51, 1), (100, 1), (13_107_200, 15), (13_107_201, 16), (1 << 50, 16)]
        {
            let histogram = Histogram::default();
            histogram.observe(Duration::from_micros(micros));
            let times = histogram.read();
            assert_eq!(times.buckets.iter().position(|count| *count == 1), Some(bucket), "{micros} µs");
            assert_eq!((times.buckets.iter().sum::<u64>(), times.sum_micros), (1, micros));
        }
    }

    #[test]
    fn what_nobody_was_seen_to_want_has_not_waited() {
        let clock = Clock::new();
        clock.wanted();
        std::thread::yield_now();
        clock.sent();
        clock.sent();
        let times = clock.read();
        assert_eq!(times.waited.buckets.iter().sum::<u64>(), 2);
        assert!(times.waited.buckets[0] >= 1, "the second was not wanted by anybody");
    }
}
