//! The latest changes, for readers that are only a little behind.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::{Instance, Revision, ServiceKey};

/// A change.
#[derive(Clone, Debug)]
pub enum Change {
    /// A change of an instance, or of a machine that it is on.
    Put {
        /// The new state.
        instance: Arc<Instance>,
        /// The commit: higher than the instance's own revision if a machine has changed.
        revision: Revision,
    },
    /// The removal of an instance from a service.
    Removed {
        /// The last state, with the service that the instance was in.
        last: Arc<Instance>,
        /// The commit.
        revision: Revision,
        /// Time of the commit in milliseconds since 1970, by the clock of the node that wrote it.
        mtime: i64,
    },
    /// A change of a service's own record.
    Service {
        /// The service.
        service: ServiceKey,
        /// The commit.
        revision: Revision,
    },
}

/// A bounded number of changes, in the order of their revisions.
#[derive(Debug)]
pub(crate) struct Ring {
    changes: VecDeque<Change>,
    limit: usize,
    /// The revision after which the ring has every change.
    since: Revision,
}

impl Change {
    /// Returns the service concerned.
    pub fn service(&self) -> &ServiceKey {
        match self {
            Change::Put { instance, .. } => &instance.service,
            Change::Removed { last, .. } => &last.service,
            Change::Service { service, .. } => service,
        }
    }

    /// Returns the commit that made the change.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put { revision, .. } | Change::Removed { revision, .. } | Change::Service { revision, .. } => {
                *revision
            }
        }
    }
}

impl Ring {
    /// Makes an empty ring that has every change after `since`.
    pub(crate) fn new(limit: usize, since: Revision) -> Ring {
        Ring { changes: VecDeque::new(), limit, since }
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.changes.push_back(change);
        while self.changes.len() > self.limit
            && let Some(oldest) = self.changes.pop_front()
        {
            // Other changes of the same commit may still be in the ring, but not all.
            self.since = self.since.max(oldest.revision());
        }
    }

    /// Returns the changes after `since`, or `None` if the ring does not reach back so far.
    pub(crate) fn after(&self, since: Revision) -> Option<Vec<Change>> {
        if since < self.since {
            return None;
        }
        let from = self.changes.partition_point(|change| change.revision() <= since);
        Some(self.changes.range(from..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn change(revision: u64) -> Change {
        Change::Service { service: ServiceKey::parse("default/s").unwrap(), revision: Revision(revision) }
    }

    #[test]
    fn says_when_it_does_not_know() {
        let mut ring = Ring::new(3, Revision(4));
        for revision in [5, 6, 6, 7] {
            ring.push(change(revision));
        }
        for (since, expected) in [(3, None), (4, None), (5, Some(3)), (6, Some(1)), (7, Some(0)), (9, Some(0))] {
            assert_eq!(ring.after(Revision(since)).map(|c| c.len()), expected, "since {since}");
        }
        ring.push(change(8));
        assert!(ring.after(Revision(5)).is_none(), "half of 6 is gone");
        assert_eq!(ring.after(Revision(6)).map(|c| c.len()), Some(2));
    }
}
