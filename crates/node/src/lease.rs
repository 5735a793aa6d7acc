//! The lease of a primary: the time since the relays last confirmed its timeline, by a clock that also runs while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::supervise::Lease;

/// Reads the clock: time since boot, suspensions included.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A lease; `None` for a length of zero: it never ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseClock {
    length: Option<Duration>,
    renewed: Duration,
}

impl LeaseClock {
    pub(crate) fn new(length: Duration, now: Duration) -> LeaseClock {
        LeaseClock { length: (!length.is_zero()).then_some(length), renewed: now }
    }

    /// Renews the lease by answers to questions that were asked at `asked`.
    pub(crate) fn renew(&mut self, asked: Duration) {
        self.renewed = self.renewed.max(asked);
    }

    /// Returns the rest of the length; None for a lease without an end.
    pub(crate) fn rest(&self, now: Duration) -> Option<Duration> {
        self.length.map(|length| length.saturating_sub(now.saturating_sub(self.renewed)))
    }

    /// Returns the age: late after half of the length, over after three quarters. The rest is for the stop.
    pub(crate) fn state(&self, now: Duration) -> Lease {
        let Some(length) = self.length else { return Lease::Valid };
        match now.saturating_sub(self.renewed) {
            age if age >= length * 3 / 4 => Lease::Over,
            age if age >= length / 2 => Lease::Late,
            _ => Lease::Valid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        let at = Duration::from_secs;
        let mut lease = LeaseClock::new(at(20), at(100));
        for (now, expected) in [(100, Lease::Valid), (109, Lease::Valid), (110, Lease::Late), (115, Lease::Over)] {
            assert_eq!(lease.state(at(now)), expected, "{now}");
        }
        lease.renew(at(112));
        assert_eq!(lease.state(at(115)), Lease::Valid);
        lease.renew(at(90));
        assert_eq!(lease.state(at(122)), Lease::Late, "an older answer does not shorten it");
        assert_eq!((lease.rest(at(122)), lease.rest(at(140))), (Some(at(10)), Some(Duration::ZERO)));
        assert_eq!(LeaseClock::new(Duration::ZERO, at(0)).state(at(9999)), Lease::Valid);
    }

    #[test]
    fn the_clock_runs() {
        assert!(now() > Duration::ZERO);
    }
}
