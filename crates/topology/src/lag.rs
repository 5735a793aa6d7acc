//! Lag of a replica, from the history of the primary's positions.
//!
//! A replica's lag is measured on the observer's clock: the replica is current as of the last moment at which the primary had written no more than
//! the replica has replayed. So a replica of an idle primary has no lag, however old the last commit is; one cut off from a busy primary has a lag
//! although it has replayed all that it received; and while no primary answers, no lag grows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use watermark::Lsn;

/// Number of samples: they reach back [`REACH`] times the lag limit.
const KEPT: usize = 64;
const REACH: u32 = 2;

/// Lag of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    pub(crate) time: Duration,
    pub(crate) bytes: u64,
}

/// Positions of the primary over time, in one term.
#[derive(Debug)]
pub(crate) struct Samples {
    spacing: Duration,
    /// Oldest first, positions rising, at least `spacing` apart.
    spaced: VecDeque<(Instant, Lsn)>,
    latest: Option<(Instant, Lsn)>,
}

impl Samples {
    /// Creates samples. `limit`: the lag that must be distinguishable from a smaller one.
    pub(crate) fn new(limit: Duration) -> Samples {
        let mut samples = Samples { spacing: Duration::ZERO, spaced: VecDeque::with_capacity(KEPT), latest: None };
        samples.set_span(limit);
        samples
    }

    pub(crate) fn set_span(&mut self, limit: Duration) {
        self.spacing = limit * REACH / KEPT as u32;
    }

    pub(crate) fn clear(&mut self) {
        self.spaced.clear();
        self.latest = None;
    }

    pub(crate) fn record(&mut self, lsn: Lsn, now: Instant) {
        let lsn = self.latest.map_or(lsn, |(_, before)| before.max(lsn));
        self.latest = Some((now, lsn));
        if self.spaced.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= self.spacing) {
            if self.spaced.len() == KEPT {
                self.spaced.pop_front();
            }
            self.spaced.push_back((now, lsn));
        }
    }

    /// Returns the lag of a replica that has replayed up to `replayed`, its last commit `commit_age` ago by its own clock.
    pub(crate) fn lag(&self, replayed: Lsn, commit_age: Option<Duration>) -> Lag {
        let Some((latest, written)) = self.latest else { return Lag::default() };
        if replayed >= written {
            return Lag::default();
        }
        let ago = |at: &(Instant, Lsn)| latest.saturating_duration_since(at.0);
        // The missing log was there at the first sample beyond the replica's position, and was not at the last sample before.
        let least = self.spaced.iter().find(|(_, lsn)| *lsn > replayed).map_or(Duration::ZERO, ago);
        let most = self.spaced.iter().rev().find(|(_, lsn)| *lsn <= replayed).map(ago);
        // In between, or if the samples do not reach back far enough, the replica's own clock may be more precise.
        let time = match (commit_age, most) {
            (Some(age), Some(most)) => age.clamp(least, most.max(least)),
            (Some(age), None) => age.max(least),
            (None, Some(most)) => most,
            (None, None) => least,
        };
        Lag { time, bytes: written.0 - replayed.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn lag_is_time_since_it_was_last_current() {
        let start = Instant::now();
        let mut samples = Samples::new(SECOND * 10);
        assert_eq!(samples.lag(Lsn(5), Some(SECOND * 900)), Lag::default(), "nothing to compare with");
        // Writes 100 bytes a second for 20 s, then none for 20 s.
        for second in 0..40 {
            samples.record(Lsn(100 * (second.min(20) + 1)), start + SECOND * second as u32);
        }
        for (replayed, age, time, bytes, why) in [
            (2100, Some(3600), 0, 0, "an idle primary makes no lag"),
            (2100, None, 0, 0, "no commit replayed since the start"),
            (9999, None, 0, 0, "ahead of the last sample"),
            (2000, None, 20, 100, "current as of second 19"),
            (2050, None, 20, 50, "between two samples: the older"),
            (2050, Some(0), 19, 50, "a clock cannot make it fresher than the samples prove"),
            (2050, Some(500), 20, 50, "nor staler"),
            (1, Some(77), 77, 2099, "behind all samples: the replica's clock"),
            (1, None, 39, 2099, "behind all samples, no clock: at least as old as they are"),
        ] {
            let lag = samples.lag(Lsn(replayed), age.map(|age| SECOND * age));
            assert_eq!(lag, Lag { time: SECOND * time, bytes }, "{why}");
        }
    }

    #[test]
    fn keeps_a_bounded_number_that_reaches_back_far_enough() {
        let start = Instant::now();
        let mut samples = Samples::new(SECOND * 10);
        for tick in 0..100_000_u32 {
            samples.record(Lsn(u64::from(tick) + 1), start + Duration::from_millis(1) * tick);
        }
        assert!(samples.spaced.len() <= KEPT);
        assert!(samples.lag(Lsn(100_000 - 15_000), None).time >= SECOND * 15);
        assert!(samples.lag(Lsn(1), None).time >= SECOND * 19);
    }
}
