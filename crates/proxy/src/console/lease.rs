//! Lease of a pause, which then ends by itself: `PAUSE FOR 30s`, for a program that moves the primary. Pure: no clock, no I/O.
//!
//! The program repeats the command before the lease expires. If the program dies, clients wait no longer than the rest of the lease.

use std::time::{Duration, Instant};

/// Maximum length of a lease.
pub(super) const LONGEST: Duration = Duration::from_secs(600);

/// Lease of a pause of all databases, with its end.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    until: Option<Instant>,
}

impl Lease {
    /// Starts a lease, or renews the current one.
    pub(super) fn renew(&mut self, now: Instant, time: Duration) {
        self.until = Some(now + time);
    }

    /// Ends the lease; returns true if there was one.
    pub(super) fn end(&mut self) -> bool {
        self.until.take().is_some()
    }

    /// Ends the lease if it has expired; returns true if it has just ended.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now) && self.end()
    }

    /// Returns the rest of the lease; `None` if there is none.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_by_itself_and_only_once() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut lease = Lease::default();
        assert!(!lease.expire(start) && !lease.end());
        assert_eq!(lease.left(start), None);
        lease.renew(start, 3 * second);
        assert!(!lease.expire(start + 2 * second));
        assert_eq!(lease.left(start + 2 * second), Some(second));
        // Renewed: the time counts from now.
        lease.renew(start + 2 * second, 3 * second);
        assert!(!lease.expire(start + 4 * second));
        assert!(lease.expire(start + 5 * second));
        assert!(!lease.expire(start + 6 * second));
        // Ended by its holder.
        lease.renew(start, second);
        assert!(lease.end() && !lease.expire(start + 2 * second));
    }
}
