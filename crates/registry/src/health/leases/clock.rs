//! The time by which health is judged: that in which this node ran. Pure: the time since the start comes as an argument.
//!
//! While a node does not run (stopped, starved of processor time, busy with heavy work), heartbeats wait unread in its sockets. That time is no
//! silence of the instances, and does not count: a lease of one second does not end because the machine was busy for one.

use std::sync::atomic::{AtomicU64, Ordering};

/// A node looks at the clock so often, in milliseconds.
const TICK: u64 = 100;
/// A node that looks so many milliseconds after it looked last was late.
const LATE: u64 = 300;
/// A node that was late by so much stood still: signs of life that it should have heard may be lost.
const STILL: u64 = 1500;

/// Milliseconds in which the node ran.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// When it was looked at last, by the time since the start.
    looked: AtomicU64,
    /// Milliseconds that do not count.
    lost: AtomicU64,
    /// When the node was last found to have stood still, by this clock; 0: never.
    stood: AtomicU64,
}

impl Clock {
    /// Begins to look.
    pub(super) fn start(&self, since_start: u64) {
        self.looked.store(since_start, Ordering::Relaxed);
    }

    /// The time at `since_start`.
    pub(super) fn at(&self, since_start: u64) -> u64 {
        since_start.saturating_sub(self.lost.load(Ordering::Relaxed))
    }

    /// Looks; to be called each [`TICK`], and before something is judged. For how many milliseconds the node stood still, if it did.
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

    /// Whether the node stood still a moment ago: what was sent meanwhile may not have been read yet.
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
            // A machine that is busy.
            (&[100, 900, 100], 300, 0),
            (&[900, 900, 900], 300, 0),
            // One that was stopped.
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
