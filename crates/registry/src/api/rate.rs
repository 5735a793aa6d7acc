//! Rate limits of callers. Pure: time is an argument.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of callers that are counted separately; beyond it, all new ones share one counter.
const CALLERS: usize = 65_536;

/// Rate limit of a caller: a token, or an address without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimit {
    /// Requests per second in the long run; 0 for no limit.
    pub per_second: u32,
    /// Requests at once after a pause; at least one.
    pub burst: u32,
}

/// A caller whose requests are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// A token, by its name.
    Token(String),
    Address(IpAddr),
    /// All callers above the limit of [`CALLERS`].
    Rest,
}

/// The theoretical arrival time of each caller's next request (generic cell rate algorithm): one number per caller, one comparison per request.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    limit: RateLimit,
    /// Arrival time of each caller, in nanoseconds on the caller's clock.
    due: Mutex<HashMap<Who, u64>>,
}

impl Rates {
    pub(crate) fn new(limit: RateLimit) -> Rates {
        Rates { limit, due: Mutex::default() }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.limit.per_second == 0
    }

    /// Returns the limit, for error messages.
    pub(crate) fn per_second(&self) -> u32 {
        self.limit.per_second
    }

    /// Returns true if `who` may send a request at `now`, measured from any fixed moment.
    pub(crate) fn admit(&self, who: Who, now: Duration) -> bool {
        if self.is_off() {
            return true;
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let interval = 1_000_000_000 / u64::from(self.limit.per_second);
        let ahead = interval * u64::from(self.limit.burst.max(1) - 1);
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        if due.len() >= CALLERS && !due.contains_key(&who) {
            // A caller whose arrival time has passed is like a new one.
            due.retain(|_, due| *due > now);
        }
        let who = if due.len() >= CALLERS && !due.contains_key(&who) { Who::Rest } else { who };
        let at = due.entry(who).or_insert(0);
        let from = (*at).max(now);
        if from - now > ahead {
            return false;
        }
        *at = from + interval;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> Who {
        Who::Token(name.into())
    }

    #[test]
    fn bursts_and_the_long_run() {
        let rates = Rates::new(RateLimit { per_second: 10, burst: 5 });
        let at = |millis| Duration::from_millis(millis);
        let admitted = (0..20).filter(|_| rates.admit(token("a"), at(0))).count();
        assert_eq!(admitted, 5, "a burst");
        assert!(rates.admit(token("b"), at(0)), "others are not touched");
        assert!(rates.admit(Who::Address([127, 0, 0, 1].into()), at(0)));
        assert!(!rates.admit(token("a"), at(99)));
        assert!(rates.admit(token("a"), at(100)), "one each tenth of a second");
        assert!(!rates.admit(token("a"), at(100)));
        let admitted = (200..2200).filter(|millis| rates.admit(token("a"), at(*millis))).count();
        assert!((20..=21).contains(&admitted), "ten a second, not {admitted} in two");
        let admitted = (0..20).filter(|_| rates.admit(token("a"), at(60_000))).count();
        assert_eq!(admitted, 5, "a silence saves up one burst, not more");
        let off = Rates::new(RateLimit::default());
        assert!((0..1000).all(|_| off.admit(token("a"), at(0))));
    }

    #[test]
    fn there_is_a_limit_on_callers() {
        let rates = Rates::new(RateLimit { per_second: 1, burst: 1 });
        for n in 0..CALLERS + 10 {
            rates.admit(token(&n.to_string()), Duration::ZERO);
        }
        assert!(rates.due.lock().unwrap_or_else(PoisonError::into_inner).len() <= CALLERS + 1);
        // A second later all callers are like new ones.
        assert!(rates.admit(token("new"), Duration::from_secs(2)));
        assert!(rates.due.lock().unwrap_or_else(PoisonError::into_inner).len() < 10);
    }
}
