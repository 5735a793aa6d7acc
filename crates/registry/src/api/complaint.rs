//! Rate limit of log messages.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A log message with a minimum interval.
#[derive(Debug)]
pub(super) struct Complaint {
    every: Duration,
    last: Mutex<Option<Instant>>,
}

impl Complaint {
    /// Creates one that is logged at most once per `every`.
    pub(super) fn every(every: Duration) -> Complaint {
        Complaint { every, last: Mutex::new(None) }
    }

    /// Returns true if the message is due; then the caller logs it.
    pub(super) fn is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= self.every);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
