//! State of one limit: the number of running statements, and the time at which the next one may begin. Atomics only: workers share a limiter, and
//! never wait for it.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Rate of statements per second, evenly distributed, with a burst.
///
/// The generic cell rate algorithm (ITU-T I.371): a limiter has the time at which the next statement is due, in nanoseconds, and a statement may come
/// earlier by the time of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Nanoseconds between two statements.
    interval: u64,
    burst: u32,
}

impl Rate {
    /// Minimum and maximum rate per second.
    pub const LIMITS: (f64, f64) = (0.000_1, 1_000_000.0);
    /// Maximum burst.
    pub const MOST_BURST: u32 = 1_000_000;

    /// Creates a rate of `per_second` statements per second, `burst` of them at once. `None`: outside of [`Rate::LIMITS`] or [`Rate::MOST_BURST`], or
    /// no burst.
    #[must_use]
    pub fn new(per_second: f64, burst: u32) -> Option<Rate> {
        // A limit in another unit may be slightly off: 0.36 / 3600 is less than 0.000_1.
        let possible = (Rate::LIMITS.0 * (1.0 - 1e-9)..=Rate::LIMITS.1 * (1.0 + 1e-9)).contains(&per_second);
        let interval = (1e9 / per_second) as u64;
        (possible && (1..=Rate::MOST_BURST).contains(&burst)).then_some(Rate { interval, burst })
    }

    /// Parses `100/s`, `30/min`, `500/h`, or a number per second. The default burst is the number of statements in one second, at least one.
    #[must_use]
    pub fn parse(text: &str, burst: Option<u32>) -> Option<Rate> {
        let (number, seconds) = match text.split_once('/') {
            None | Some((_, "s")) => (text.strip_suffix("/s").unwrap_or(text), 1.0),
            Some((number, "min")) => (number, 60.0),
            Some((number, "h")) => (number, 3600.0),
            Some(_) => return None,
        };
        let per_second = number.parse::<f64>().ok()? / seconds;
        let usual = per_second.clamp(1.0, f64::from(Rate::MOST_BURST)) as u32;
        Rate::new(per_second, burst.unwrap_or(usual))
    }

    /// Returns a text that [`Rate::parse`] parses as exactly this rate, apart from the burst: the displayed form, if that is exact.
    #[must_use]
    pub fn written(self) -> String {
        // Rounding may lead to a neighbouring rate; the middle of all rates with this interval does not, but may be outside of the limits.
        let interval = self.interval as f64;
        let exact = [1e9 / interval, 1e9 / (interval + 0.5)].map(|per_second| per_second.to_string());
        let mut forms = std::iter::once(self.to_string()).chain(exact);
        forms.find(|text| Rate::parse(text, Some(self.burst)) == Some(self)).unwrap_or_else(|| self.to_string())
    }

    /// Returns the number of statements that may come at once.
    #[must_use]
    pub fn burst(self) -> u32 {
        self.burst
    }
}

impl fmt::Display for Rate {
    /// Formats the rate for [`Rate::parse`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = 1e9 / self.interval as f64;
        let (number, unit) = match per_second {
            fast if fast >= 0.999 => (fast, "s"),
            slow if slow * 60.0 >= 0.999 => (slow * 60.0, "min"),
            slower => (slower * 3600.0, "h"),
        };
        // Without digits that result from the stored form.
        write!(f, "{}/{unit}", (number * 1000.0).round() / 1000.0)
    }
}

/// State of one limit.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    running: AtomicU32,
    /// Time at which the next statement is due, in nanoseconds since the clock's start; 0: at any time.
    due: AtomicU64,
}

impl Limiter {
    /// Returns the number of running statements.
    pub(super) fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// True if the state equals that of a new limiter.
    pub(super) fn is_at_rest(&self, now: u64) -> bool {
        self.running() == 0 && self.due.load(Ordering::Relaxed) <= now
    }

    /// Starts a statement, unless `most` are running; returns true if it was started. Without `most`, always.
    pub(super) fn begin(&self, most: Option<u32>) -> bool {
        let more = |running| (most.is_none_or(|most| running < most)).then(|| running + 1);
        self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Ends a statement that was started.
    pub(super) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Admits a statement at `now`. `Err`: the time after which it would be admitted.
    pub(super) fn pass(&self, rate: Rate, now: u64) -> Result<(), Duration> {
        let ahead = rate.interval.saturating_mul(u64::from(rate.burst) - 1);
        let next = |due: u64| (due <= now.saturating_add(ahead)).then(|| due.max(now).saturating_add(rate.interval));
        let passed = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        passed.map(drop).map_err(|due| Duration::from_nanos(due.saturating_sub(now.saturating_add(ahead))))
    }

    /// Returns the admission of a statement that does not come after all.
    pub(super) fn give_back(&self, rate: Rate) {
        let earlier = |due: u64| Some(due.saturating_sub(rate.interval));
        let _ = self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earlier);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MILLI: u64 = 1_000_000;

    #[test]
    fn a_rate_is_held_and_a_burst_goes_ahead() {
        let rate = Rate::new(100.0, 3).unwrap();
        let limiter = Limiter::default();
        let begin = 1_000 * MILLI;
        // The time of each statement, in milliseconds, and its wait if it is refused.
        for (at, expected) in [
            (0, None),
            (0, None),
            (0, None),
            (0, Some(10)),
            (4, Some(6)),
            (10, None),
            (10, Some(10)),
            // Unused time adds up to no more than the burst.
            (900, None),
            (900, None),
            (900, None),
            (900, Some(10)),
        ] {
            let wait = limiter.pass(rate, begin + at * MILLI).err().map(|wait| wait.as_millis() as u64);
            assert_eq!(wait, expected, "at {at} ms");
        }
        limiter.give_back(rate);
        assert_eq!(limiter.pass(rate, begin + 900 * MILLI), Ok(()));
    }

    #[test]
    fn over_any_time_no_more_pass_than_may() {
        for (per_second, burst) in [(1.0, 1), (7.0, 2), (1000.0, 50), (0.5, 1)] {
            let rate = Rate::new(per_second, burst).unwrap();
            let limiter = Limiter::default();
            let seconds = 20;
            // Far more statements come than are admitted.
            let passed = (0..seconds * 10_000).filter(|n| limiter.pass(rate, n * MILLI / 10).is_ok()).count();
            let most = per_second * seconds as f64 + f64::from(burst);
            assert!(
                (most - 1.0 - f64::from(burst)..=most).contains(&(passed as f64)),
                "{per_second} {burst}: {passed}"
            );
        }
    }

    #[test]
    fn what_is_no_rate() {
        for (per_second, burst) in [(0.0, 1), (-1.0, 1), (f64::NAN, 1), (f64::INFINITY, 1), (1e7, 1), (1.0, 0)] {
            assert_eq!(Rate::new(per_second, burst), None, "{per_second} {burst}");
        }
    }

    #[test]
    fn how_a_rate_is_written() {
        for (text, shown, burst) in [
            ("100", "100/s", 100),
            ("100/s", "100/s", 100),
            ("0.5", "30/min", 1),
            ("30/min", "30/min", 1),
            ("90/min", "1.5/s", 1),
            ("7/h", "7/h", 1),
            ("0.0001", "0.36/h", 1),
            ("0.36/h", "0.36/h", 1),
            ("60000000/min", "1000000/s", 1_000_000),
            ("1000000", "1000000/s", 1_000_000),
        ] {
            let rate = Rate::parse(text, None).unwrap();
            assert_eq!((rate.to_string().as_str(), rate.burst()), (shown, burst), "{text}");
        }
        for text in ["", "x", "1/", "/s", "1/d", "1/s/s", "-1", "0", "inf", "NaN", "1e9"] {
            assert_eq!(Rate::parse(text, None), None, "{text}");
        }
    }

    #[test]
    fn threads_together_stay_below_the_limit() {
        let limiter = Limiter::default();
        let most = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if limiter.begin(Some(3)) {
                            most.fetch_max(limiter.running(), Ordering::Relaxed);
                            limiter.end();
                        }
                    }
                });
            }
        });
        assert_eq!(limiter.running(), 0);
        assert!((1..=3).contains(&most.load(Ordering::Relaxed)));
    }
}
