//! The time that a delta covers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Revision;

/// Time that a delta covers.
const WINDOW: Duration = Duration::from_secs(180);

/// Part of the history that a delta covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Covered {
    /// The revision before the first change.
    pub(super) since: Revision,
    /// True if the node does not know all changes of the window: the delta has every instance then, beside those removed since.
    pub(super) whole: bool,
}

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

    /// Returns the part of the history that a delta covers now; `None` before the first [`DeltaWindow::note`].
    pub(super) fn begin(&self, now: Instant) -> Option<Covered> {
        let revisions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (noted, since) = *revisions.front()?;
        Some(Covered { since, whole: now.duration_since(noted) < WINDOW })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_delta() {
        let window = DeltaWindow::default();
        let start = Instant::now();
        assert_eq!(window.begin(start), None);
        for second in 0..400_u64 {
            let now = start + Duration::from_secs(second);
            window.note(now, Revision(second));
            // The last revision that is as old as the window. What was before a young node's first one, it does not know.
            let expected = Covered { since: Revision(second.saturating_sub(180)), whole: second < 180 };
            assert_eq!(window.begin(now), Some(expected), "{second}");
        }
    }
}
