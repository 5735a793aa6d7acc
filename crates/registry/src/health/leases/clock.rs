//! The clock by which health is judged: it runs only while this node does. Pure: the time since the start is an argument.
//!
//! While a node does not run (stopped, starved of processor time, busy with heavy work), heartbeats wait unread in its sockets. That time is not
//! counted as silence of the instances: a lease of one second does not end because the machine was busy for one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Interval between two looks at the clock, in milliseconds.
const TICK: u64 = 100;
/// Milliseconds between two looks above which the node was late.
const LATE: u64 = 300;
/// Milliseconds between two looks above which the node was suspended: heartbeats may have been lost.
const STILL: u64 = 1500;

/// Milliseconds during which the node ran.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Time of the last look, in milliseconds since the start.
    looked: AtomicU64,
    /// Milliseconds that are not counted.
    lost: AtomicU64,
    /// Time of the last suspension found, by this clock; 0: never.
    stood: AtomicU64,
}

impl Clock {
    /// Starts the clock.
    pub(super) fn start(&self, since_start: u64) {
        self.looked.store(since_start, Ordering::Relaxed);
    }

    /// Returns the clock's time at `since_start`.
    pub(super) fn at(&self, since_start: u64) -> u64 {
        since_start.saturating_sub(self.lost.load(Ordering::Relaxed))
    }

    /// Looks at the clock; to be called every [`TICK`], and before a judgement. Returns the length of a suspension in milliseconds, if there was one.
    pub(super) fn look(&self, since_start: u64) -> Option<u64> {
        let missed = since_start.saturating_sub(self.looked.swap(since_start, Ordering::Relaxed));
        if missed > LATE {
            self.lost.fetch_add(missed - TICK, Ordering::Relaxed);
        }
        if missed > STILL {
            self.stood.store(self.at(since_start), Ordering::Relaxed);
            return Some(missed);
        }
        None
    }

    /// True if the node was suspended a moment ago: heartbeats sent meanwhile may not have been read yet.
    pub(super) fn has_just_stood(&self, since_start: u64) -> bool {
        let stood = self.stood.load(Ordering::Relaxed);
        stood > 0 && self.at(since_start).saturating_sub(stood) < STILL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_node_does_not_run_does_not_count() {
        for (pauses, time, stood) in [
            (&[100; 10][..], 1000, 0),
            (&[100, 300, 100], 500, 0),
            // A busy machine.
            (&[100, 900, 100], 300, 0),
            (&[900, 900, 900], 300, 0),
            // A suspended one.
            (&[100, 60_000, 100], 300, 1),
        ] {
            let clock = Clock::default();
            clock.start(1000);
            let (mut now, mut found) = (1000, 0);
            for pause in pauses {
                now += pause;
                found += usize::from(clock.look(now).is_some());
            }
            assert_eq!((clock.at(now) - 1000, found), (time, stood), "{pauses:?}");
            assert_eq!(clock.has_just_stood(now), stood > 0, "{pauses:?}");
            assert!(!clock.has_just_stood(now + STILL), "{pauses:?}");
        }
    }
}
