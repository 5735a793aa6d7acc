//! A server that its clients are to leave: when the wait for them ends. No I/O.

use std::time::Duration;

/// Time without a session after which clients have left. Those that still have the old list of servers may come within it.
const QUIET: Duration = Duration::from_secs(3);

/// A wait for clients to leave. Times are those of the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    since: Duration,
    /// Start of the time without a session; None while there are some, or while the server does not answer.
    quiet_since: Option<Duration>,
}

impl Drain {
    /// Begins a wait.
    #[must_use]
    pub fn begin(now: Duration) -> Drain {
        Drain { since: now, quiet_since: None }
    }

    /// Takes the number of clients' sessions; None: the server has not answered.
    pub fn see(&mut self, sessions: Option<u64>, now: Duration) {
        self.quiet_since = match sessions {
            Some(0) => Some(self.quiet_since.unwrap_or(now)),
            _ => None,
        };
    }

    /// True once all clients have left, or `limit` is over.
    #[must_use]
    pub fn is_over(&self, limit: Duration, now: Duration) -> bool {
        now.saturating_sub(self.since) >= limit
            || self.quiet_since.is_some_and(|since| now.saturating_sub(since) >= QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        let at = Duration::from_secs;
        for (name, seen, asked, over) in [
            ("begun", &[][..], 12, false),
            ("the limit", &[], 70, true),
            ("a limit with sessions", &[(12, Some(3))], 70, true),
            ("sessions", &[(12, Some(3))], 20, false),
            ("just left", &[(12, Some(3)), (13, Some(0))], 15, false),
            ("left", &[(12, Some(3)), (13, Some(0)), (15, Some(0))], 16, true),
            ("one came back", &[(12, Some(0)), (14, Some(1)), (15, Some(0))], 17, false),
            ("no answer says nothing", &[(12, Some(0)), (14, None)], 17, false),
        ] {
            let mut drain = Drain::begin(at(10));
            for (now, sessions) in seen {
                drain.see(*sessions, at(*now));
            }
            assert_eq!(drain.is_over(at(60), at(asked)), over, "{name}");
        }
    }
}
