//! Pauses between attempts, and their end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(300);

/// Pauses between attempts of one call: twice as long each time, each randomly shortened by up to a half, none past the deadline.
#[derive(Debug)]
pub(crate) struct Backoff {
    doing: &'static str,
    pub(crate) deadline: Instant,
    pause: Duration,
    last: Arc<str>,
}

impl Backoff {
    pub(crate) fn new(doing: &'static str, deadline: Instant) -> Backoff {
        Backoff { doing, deadline, pause: SHORTEST, last: "nothing".into() }
    }

    /// The call's name, for errors.
    pub(crate) fn doing(&self) -> &'static str {
        self.doing
    }

    /// Waits, because of `reason`.
    ///
    /// # Errors
    /// [`Error::Late`] where the deadline would come first.
    pub(crate) async fn again(&mut self, reason: impl Into<Arc<str>>) -> Result<(), Error> {
        self.again_after(Duration::ZERO, reason).await
    }

    /// Pauses for at least `least`, which a busy server may ask for.
    pub(crate) async fn again_after(&mut self, least: Duration, reason: impl Into<Arc<str>>) -> Result<(), Error> {
        self.last = reason.into();
        let pause = jittered(self.pause).max(least);
        self.pause = (self.pause * 2).min(LONGEST);
        if Instant::now() + pause >= self.deadline {
            return Err(self.late());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Returns the error for the deadline.
    pub(crate) fn late(&self) -> Error {
        Error::Late { doing: self.doing, last: Arc::clone(&self.last) }
    }

    pub(crate) fn last(&self) -> Arc<str> {
        Arc::clone(&self.last)
    }
}

/// Returns a random pause between a half of `pause` and all of it, so that conflicting callers do not meet again.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    // Without random numbers from the system, three quarters.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause / 2 * u32::from(byte[0]) / 255
}
