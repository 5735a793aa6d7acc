//! Decision to poll for a moment before a worker sleeps (`proxy.spin`): waking a sleeping thread costs more than a statement of a few microseconds.

use std::time::{Duration, Instant};

/// Waits in the average: the last so many count most.
const MEMORY: u32 = 8;
/// Share of waits that must end within the spin, in percent: a spin in vain costs its whole length.
const SHORT_ENOUGH: u32 = 60;
/// Time without a spin after one that another thread's need for the core ended.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// History of a worker's waits, by which it spins or sleeps.
pub(super) struct Spin {
    /// Share of the last waits that were short, in percent of [`MEMORY`] parts.
    short: u32,
    /// No spin before this moment.
    rests_until: Option<Instant>,
    /// The next rest.
    rest: Duration,
    /// The thread's involuntary switches when it last looked.
    switches: i64,
}

impl Spin {
    /// Creates the history of a worker that has never waited: it sleeps.
    pub(super) const fn new() -> Spin {
        Spin { short: 0, rests_until: None, rest: FIRST_REST, switches: 0 }
    }

    /// Returns true if the next wait begins with a spin.
    pub(super) fn pays(&self, now: Instant) -> bool {
        self.short >= SHORT_ENOUGH * MEMORY && self.rests_until.is_none_or(|until| now >= until)
    }

    /// Notes a wait and whether it was shorter than a spin.
    pub(super) fn waited(&mut self, short: bool) {
        self.short = self.short - self.short / MEMORY + if short { 100 } else { 0 };
    }

    /// Notes, after a spin, how often another thread has taken the core from this one. A machine without an idle core makes a worker sleep: each time
    /// longer, up to a second.
    pub(super) fn switched(&mut self, switches: i64, now: Instant) {
        if std::mem::replace(&mut self.switches, switches) != switches {
            self.rests_until = Some(now + self.rest);
            self.rest = (self.rest * 2).min(LONGEST_REST);
        } else if self.rests_until.is_some_and(|until| now > until + self.rest) {
            (self.rests_until, self.rest) = (None, FIRST_REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_while_waits_are_short_and_the_core_is_its_own() {
        let mut spin = Spin::new();
        let start = Instant::now();
        assert!(!spin.pays(start), "it begins with sleep");
        (0..20).for_each(|_| spin.waited(true));
        assert!(spin.pays(start));
        (0..5).for_each(|_| spin.waited(false));
        assert!(!spin.pays(start), "an idle worker sleeps");
        (0..20).for_each(|_| spin.waited(true));
        spin.switched(1, start);
        assert!(!spin.pays(start + FIRST_REST / 2));
        assert!(spin.pays(start + FIRST_REST));
        spin.switched(2, start + FIRST_REST);
        assert!(!spin.pays(start + FIRST_REST * 2), "the second rest is longer");
        assert!(spin.pays(start + FIRST_REST * 3));
        spin.switched(2, start + FIRST_REST * 30);
        spin.switched(3, start + FIRST_REST * 30);
        assert!(spin.pays(start + FIRST_REST * 31), "after a quiet time the rest is short again");
    }

    #[test]
    fn a_rest_has_a_limit() {
        let (mut spin, mut now) = (Spin::new(), Instant::now());
        (0..20).for_each(|_| spin.waited(true));
        for switches in 1..100 {
            spin.switched(switches, now);
            now += LONGEST_REST;
            assert!(spin.pays(now));
        }
    }
}
