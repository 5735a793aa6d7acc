//! What can be counted and timed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of a histogram's buckets, in microseconds; above the last there is one more.
pub const BUCKETS: [u64; 16] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 409_600, 1_638_400,
    6_553_600,
];

/// How often something took how long.
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

    /// How many were in each bucket, the last one without a bound; and the sum of all, in microseconds.
    #[must_use]
    pub fn read(&self) -> ([u64; BUCKETS.len() + 1], u64) {
        (std::array::from_fn(|n| self.buckets[n].load(Ordering::Relaxed)), self.micros.load(Ordering::Relaxed))
    }
}

macro_rules! figures {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// What happened since the start.
        #[derive(Debug, Default)]
        pub struct Figures {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)*
            /// From a caller's question for a timestamp to the sending of the batch that it joined.
            pub timestamp_wait: Histogram,
            /// From the sending of a batch of timestamps to its answer.
            pub timestamp_round_trip: Histogram,
        }

        /// What happened since the start, at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[doc = $doc])+ pub $name: u64,)* }

        impl Figures {
            /// All counts.
            #[must_use]
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Names and values, for a metrics page.
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
    /// Streams of timestamps that broke or stood still, and were opened anew.
    timestamp_streams_lost,
    /// Answers of PD that were refused: not higher than those before, or not what was asked for.
    timestamps_refused,
    /// Prewrite requests.
    prewrites,
    /// Transactions committed.
    commits,
    /// Transactions that another one was in the way of.
    conflicts,
    /// Transactions rolled back.
    rollbacks,
    /// Commits of which nothing was heard.
    undetermined,
    /// Locks of others that were met.
    locks_met,
    /// Locks of others that were resolved.
    locks_resolved,
    /// Regions asked of PD.
    region_loads,
    /// Requests that reached a store which does not serve the region any more, or not as it was known.
    region_misses,
    /// Requests sent again, for whatever reason.
    retries,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
