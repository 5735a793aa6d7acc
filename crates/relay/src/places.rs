//! A count of the connections, against a limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A counter of connections; its limit may change while places are taken.
#[derive(Debug, Default)]
pub(crate) struct Places(Arc<std::sync::atomic::AtomicUsize>);

/// A place, released when dropped.
pub(crate) struct Place(Arc<std::sync::atomic::AtomicUsize>);

impl Places {
    pub(crate) fn take(&self, limit: usize) -> Option<Place> {
        let place = Place(Arc::clone(&self.0));
        (self.0.fetch_add(1, Ordering::Relaxed) < limit).then_some(place)
    }

    /// Returns the number of taken places.
    pub(crate) fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let places = Places::default();
        let (one, two) = (places.take(2), places.take(2));
        assert!(one.is_some() && two.is_some() && places.take(2).is_none());
        assert_eq!(places.taken(), 2);
        drop(one);
        assert!(places.take(2).is_some());
    }
}
