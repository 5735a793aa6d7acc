//! Slots for requests that wait for a change, shared so that no caller takes all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::rate::Who;

/// A caller may take at most this many times as many slots as then remain free: alone, three quarters of all, so that the next caller finds some.
const TIMES_FREE: usize = 3;

/// The slots.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Number of slots of each caller that has any.
    each: HashMap<Who, usize>,
}

/// A slot, held until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    who: Who,
}

impl Places {
    /// Creates `most` slots.
    pub(super) fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, taken: Mutex::default() })
    }

    /// Takes a slot for `who`; returns `None` if none is free, or the caller has its share. Loopback addresses without a token have no share: all
    /// clients behind a proxy on this machine have one address.
    pub(super) fn take(self: &Arc<Self>, who: Who) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.most.saturating_sub(taken.all);
        let own = taken.each.get(&who).copied().unwrap_or(0);
        let shares = !matches!(&who, Who::Address(address) if address.is_loopback());
        if free == 0 || (shares && own >= TIMES_FREE.saturating_mul(free)) {
            return None;
        }
        taken.all += 1;
        *taken.each.entry(who.clone()).or_default() += 1;
        drop(taken);
        Some(Place { places: Arc::clone(self), who })
    }

    /// Returns the number of slots taken.
    pub(super) fn taken(&self) -> usize {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(own) = taken.each.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.each.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn nobody_takes_them_all() {
        let places = Places::new(100);
        let token = |name: &str| Who::Token(name.into());
        let fill = |who: Who| std::iter::from_fn(|| places.take(who.clone())).collect::<Vec<_>>();
        let first = fill(token("a"));
        assert_eq!(first.len(), 75);
        let second = fill(Who::Address([10, 0, 0, 1].into()));
        assert_eq!(second.len(), 19, "three quarters of what was left");
        assert!(places.take(token("c")).is_some(), "there is one for somebody else");
        let here = fill(Who::Address([127, 0, 0, 1].into()));
        assert_eq!((here.len(), places.taken()), (6, 100), "an address of this machine has no share");
        assert!(places.take(token("d")).is_none());
        drop((first, second, here));
        assert_eq!(places.taken(), 0);
        assert!(places.taken.lock().unwrap().each.is_empty());
        let one = Places::new(1);
        let held = one.take(token("a"));
        assert!(held.is_some() && one.take(token("b")).is_none());
    }
}
