//! The time that a delta covers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Revision;

/// Time that a delta covers.
const WINDOW: Duration = Duration::from_secs(180);

/// History of revisions, which gives a delta its start. At most one entry per second, and only those of the window.
#[derive(Debug, Default)]
pub(in crate::api) struct DeltaWindow(Mutex<VecDeque<(Instant, Revision)>>);

impl DeltaWindow {
    /// Records a revision that a client is about to see.
    pub(in crate::api) fn note(&self, now: Instant, revision: Revision) {
        let mut revisions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if revisions.back().is_none_or(|(last, _)| now.duration_since(*last) >= Duration::from_secs(1)) {
            revisions.push_back((now, revision));
        }
        // One entry older than the window is kept: the window begins there.
        while revisions.get(1).is_some_and(|(second, _)| now.duration_since(*second) >= WINDOW) {
            revisions.pop_front();
        }
    }

    /// Returns the revision at the beginning of the window.
    pub(super) fn begin(&self) -> Option<Revision> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).front().map(|(_, revision)| *revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_delta() {
        let window = DeltaWindow::default();
        let start = Instant::now();
        assert_eq!(window.begin(), None);
        for second in 0..400_u64 {
            window.note(start + Duration::from_secs(second), Revision(second));
        }
        let begin = window.begin().map(|revision| revision.0);
        assert_eq!(begin, Some(399 - 180), "the last one that is as old as the window");
    }
}
