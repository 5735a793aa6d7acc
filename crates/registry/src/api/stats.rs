//! Counters of the fronts. Relaxed: no ordering depends on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the latency histogram, in microseconds. Requests delayed on purpose are excluded.
pub const BUCKETS_MICROS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_000_000];

/// Counters of a front.
#[derive(Debug, Default)]
pub struct FrontStats {
    /// Requests answered with a status below 400.
    pub answered: AtomicU64,
    /// Requests with a client error: 4xx.
    pub refused: AtomicU64,
    /// Requests with a server error: 5xx.
    pub failed: AtomicU64,
    /// Number of responses by duration: one for each of [`BUCKETS_MICROS`], and one for all above. Not cumulative.
    pub buckets: [AtomicU64; BUCKETS_MICROS.len() + 1],
    /// Sum of their durations in microseconds.
    pub sum_micros: AtomicU64,
}

impl FrontStats {
    /// Counts a response.
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
    /// Counters by [`super::Front`].
    pub fronts: [FrontStats; super::Front::ALL.len()],
    /// Number of accepted connections.
    pub accepted: AtomicU64,
    /// Connections closed at once because there were too many, in all or from their address.
    pub turned_away: AtomicU64,
    /// Requests with a missing or unknown token.
    pub unauthorized: AtomicU64,
    /// Requests rejected by the rate limit of their token or address.
    pub too_often: AtomicU64,
    /// Failed TLS handshakes, and connections without TLS where TLS is required.
    pub insecure: AtomicU64,
    /// Counters of xDS.
    pub xds: super::XdsStats,
}
