//! One atomic, monotone position.

use crate::Lsn;
use crate::sync::{AtomicU64, Ordering};

/// A position that only grows. Publishing never blocks; a reader pays one load.
#[derive(Debug, Default)]
pub struct Watermark(AtomicU64);

impl Watermark {
    /// Starts at `lsn`.
    #[must_use]
    pub fn new(lsn: Lsn) -> Watermark {
        Watermark(AtomicU64::new(lsn.0))
    }

    /// The highest position published so far.
    #[must_use]
    pub fn get(&self) -> Lsn {
        Lsn(self.0.load(Ordering::Acquire))
    }

    /// Raises the mark to `lsn`; a lower position changes nothing. True if it rose.
    pub fn publish(&self, lsn: Lsn) -> bool {
        self.0.fetch_max(lsn.0, Ordering::AcqRel) < lsn.0
    }

    /// Starts over at `lsn`, which may be lower: only where positions known so far mean nothing any more (a new term, a
    /// server that may have been restarted).
    pub fn reset(&self, lsn: Lsn) {
        self.0.store(lsn.0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_rises() {
        let mark = Watermark::default();
        assert_eq!(mark.get(), Lsn(0));
        assert!(mark.publish(Lsn(7)));
        assert!(!mark.publish(Lsn(7)), "the same position is no progress");
        assert!(!mark.publish(Lsn(3)));
        assert_eq!(mark.get(), Lsn(7));
    }

    #[test]
    fn reset_may_go_down() {
        let mark = Watermark::new(Lsn(9));
        mark.reset(Lsn(2));
        assert_eq!(mark.get(), Lsn(2));
        assert!(mark.publish(Lsn(3)));
    }
}
