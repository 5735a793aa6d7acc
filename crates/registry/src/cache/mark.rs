//! A published revision that callers can wait for.

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::Revision;

/// A revision that rises, and restarts only with another history.
#[derive(Debug)]
pub(crate) struct Mark(watch::Sender<Revision>);

impl Mark {
    pub(crate) fn new(revision: Revision) -> Mark {
        Mark(watch::Sender::new(revision))
    }

    pub(crate) fn get(&self) -> Revision {
        *self.0.borrow()
    }

    /// Publishes `revision`, and wakes all waiting callers if it differs. It may be lower only if another history begins.
    pub(crate) fn publish(&self, revision: Revision) {
        self.0.send_if_modified(|current| std::mem::replace(current, revision) != revision);
    }

    /// Waits until the revision is above `after`, or below its value at the start of the wait (another history), or until `deadline`. Returns the
    /// revision at the end.
    pub(crate) async fn passed(&self, after: Revision, deadline: Instant) -> Revision {
        let mut receiver = self.0.subscribe();
        let at_first = *receiver.borrow_and_update();
        let reached = receiver.wait_for(|current| *current > after || *current < at_first);
        match tokio::time::timeout_at(deadline, reached).await {
            Ok(Ok(current)) => *current,
            // The sender is `self`, so it still exists.
            Ok(Err(_)) | Err(_) => self.get(),
        }
    }
}
