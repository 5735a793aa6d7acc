//! How long to wait before trying again, and when to stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(300);

/// Waits between tries of one call: twice as long each time, each by chance up to a half shorter, none past the deadline.
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

    /// Waits, because of `reason`.
    ///
    /// # Errors
    /// [`Error::Late`] where the deadline would come first.
    pub(crate) async fn again(&mut self, reason: impl Into<Arc<str>>) -> Result<(), Error> {
        self.again_after(Duration::ZERO, reason).await
    }

    /// The same, for at least `least`, as a server that is busy may ask for.
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

    /// The error of the deadline.
    pub(crate) fn late(&self) -> Error {
        Error::Late { doing: self.doing, last: Arc::clone(&self.last) }
    }

    pub(crate) fn last(&self) -> Arc<str> {
        Arc::clone(&self.last)
    }
}

/// Between a half of `pause` and all of it, by chance: who was in each other's way is not so again.
pub(crate) fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    // Without random numbers from the system, three quarters.
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause / 2 * u32::from(byte[0]) / 255
}
