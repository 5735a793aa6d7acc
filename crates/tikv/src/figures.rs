//! Counters and histograms.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of a histogram's buckets, in microseconds; one more bucket follows.
pub const BUCKETS: [u64; 16] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 409_600, 1_638_400,
    6_553_600,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the counts of the buckets, of which the last has no bound; and the sum of all durations, in microseconds.
    #[must_use]
    pub fn read(&self) -> ([u64; BUCKETS.len() + 1], u64) {
        (std::array::from_fn(|n| self.buckets[n].load(Ordering::Relaxed)), self.micros.load(Ordering::Relaxed))
    }
}

macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// Counters and histograms since the start.
        #[derive(Debug, Default)]
        pub struct Figures {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)*
            /// Time from a caller's request for a timestamp to the sending of the batch that it joined.
            pub timestamp_wait: Histogram,
            /// Time from the sending of a batch of timestamps to its answer.
            pub timestamp_round_trip: Histogram,
        }

        /// Counters since the start, read at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl Figures {
            /// Returns all counters.
            #[must_use]
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Iterates over names and values, for a metrics page.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

figures! {
    /// Timestamps given.
    timestamps,
    /// Batches of timestamps that PD answered.
    timestamp_batches,
    /// Streams of timestamps that broke or stalled, and were opened again.
    timestamp_streams_lost,
    /// Answers of PD that were refused: not higher than those before, or not as requested.
    timestamps_refused,
    /// Prewrite requests.
    prewrites,
    /// Transactions committed.
    commits,
    /// Transactions that conflicted with another one.
    conflicts,
    /// Transactions rolled back.
    rollbacks,
    /// Commits without an answer.
    undetermined,
    /// Locks of other transactions that were met.
    locks_met,
    /// Locks of other transactions that were resolved.
    locks_resolved,
    /// Regions requested from PD.
    region_loads,
    /// Requests to a store that no longer serves the region, or not in its known form.
    region_misses,
    /// Requests sent again, for any reason.
    retries,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
