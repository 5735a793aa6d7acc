//! The last changes, for those who fell behind only a little.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::{Instance, Revision, ServiceKey};

/// One thing that changed.
#[derive(Clone, Debug)]
pub enum Change {
    /// An instance, or a machine that it is on, has changed.
    Put {
        /// As it is now.
        instance: Arc<Instance>,
        /// Since when: higher than that of the instance where it is a machine that has changed.
        revision: Revision,
    },
    /// An instance is gone from a service.
    Removed {
        /// As it was last, with the service that it was in.
        last: Arc<Instance>,
        /// Since when.
        revision: Revision,
        /// The same in milliseconds since 1970, by the clock of the node that wrote it.
        mtime: i64,
    },
    /// What is said about the service itself.
    Service {
        /// Which.
        service: ServiceKey,
        /// Since when.
        revision: Revision,
    },
}

/// Changes in the order of their revisions, bounded in number.
#[derive(Debug)]
pub(crate) struct Ring {
    changes: VecDeque<Change>,
    limit: usize,
    /// Everything after this revision is in the ring.
    since: Revision,
}

impl Change {
    /// Where it happened.
    pub fn service(&self) -> &ServiceKey {
        match self {
            Change::Put { instance, .. } => &instance.service,
            Change::Removed { last, .. } => &last.service,
            Change::Service { service, .. } => service,
        }
    }

    /// The commit that did it.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put { revision, .. } | Change::Removed { revision, .. } | Change::Service { revision, .. } => {
                *revision
            }
        }
    }
}

impl Ring {
    /// Holds everything after `since`: nothing yet.
    pub(crate) fn new(limit: usize, since: Revision) -> Ring {
        Ring { changes: VecDeque::new(), limit, since }
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.changes.push_back(change);
        while self.changes.len() > self.limit
            && let Some(oldest) = self.changes.pop_front()
        {
            // Others of the same commit may still be there, but not all of it is.
            self.since = self.since.max(oldest.revision());
        }
    }

    /// What changed after `since`, or `None` where the ring does not reach back so far.
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
