//! A revision that is published, and waited for.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::Revision;

/// A revision that grows, and starts over only with another history.
#[derive(Debug)]
pub(crate) struct Mark(watch::Sender<Revision>);

impl Mark {
    pub(crate) fn new(revision: Revision) -> Mark {
        Mark(watch::Sender::new(revision))
    }

    pub(crate) fn get(&self) -> Revision {
        *self.0.borrow()
    }

    /// Publishes `revision`, and wakes whoever waits for something else than it. It may be lower only where another
    /// history begins.
    pub(crate) fn publish(&self, revision: Revision) {
        self.0.send_if_modified(|current| std::mem::replace(current, revision) != revision);
    }

    /// Waits until it is more than `after`, or less than it was when the waiting began (another history), or `deadline` has
    /// passed; returns what it is then.
    pub(crate) async fn passed(&self, after: Revision, deadline: Instant) -> Revision {
        let mut receiver = self.0.subscribe();
        let at_first = *receiver.borrow_and_update();
        let reached = receiver.wait_for(|current| *current > after || *current < at_first);
        match tokio::time::timeout_at(deadline, reached).await {
            Ok(Ok(current)) => *current,
            // The sender is `self`: it cannot have gone.
            Ok(Err(_)) | Err(_) => self.get(),
        }
    }
}
