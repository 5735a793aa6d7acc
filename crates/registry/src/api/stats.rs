//! What the fronts count. Relaxed counters: nothing is ordered by them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency histogram, in microseconds; what waits on purpose is not in it.
pub const BUCKETS_MICROS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_000_000];

/// Counters of one front.
#[derive(Debug, Default)]
pub struct FrontStats {
    /// Requests answered with a status below 400.
    pub answered: AtomicU64,
    /// Those that were the client's fault: 4xx.
    pub refused: AtomicU64,
    /// Those that were ours: 5xx.
    pub failed: AtomicU64,
    /// Answers that took at most so long, by [`BUCKETS_MICROS`], and one more for all above. Not cumulative.
    pub buckets: [AtomicU64; BUCKETS_MICROS.len() + 1],
    /// Their sum in microseconds.
    pub sum_micros: AtomicU64,
}

impl FrontStats {
    /// Counts an answer.
    pub fn record(&self, status: u16, took: Duration, waited: bool) {
        let counter = match status {
            ..400 => &self.answered,
            400..500 => &self.refused,
            _ => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if !waited {
            let micros = took.as_micros().min(u128::from(u64::MAX)) as u64;
            let bucket = BUCKETS_MICROS.partition_point(|bound| *bound < micros);
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
            self.sum_micros.fetch_add(micros, Ordering::Relaxed);
        }
    }
}

/// Counters of the HTTP side.
#[derive(Debug, Default)]
pub struct HttpStats {
    /// By [`super::Front`].
    pub fronts: [FrontStats; super::Front::ALL.len()],
    /// Connections accepted so far.
    pub accepted: AtomicU64,
    /// Connections closed at once because an address had too many.
    pub turned_away: AtomicU64,
    /// Requests whose token was missing or wrong.
    pub unauthorized: AtomicU64,
    /// Requests refused because their token or address asked too often.
    pub too_often: AtomicU64,
    /// Handshakes of TLS that failed, and connections without TLS where it is required.
    pub insecure: AtomicU64,
    /// Of xDS.
    pub xds: super::XdsStats,
}
