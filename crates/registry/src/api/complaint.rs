//! What is said in the log now and then, however often there is a reason.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Something to complain of, once in a while.
#[derive(Debug)]
pub(super) struct Complaint {
    every: Duration,
    last: Mutex<Option<Instant>>,
}

impl Complaint {
    /// At most once in this time.
    pub(super) fn every(every: Duration) -> Complaint {
        Complaint { every, last: Mutex::new(None) }
    }

    /// Whether it is time to say it; then the caller says it.
    pub(super) fn is_due(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= self.every);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
