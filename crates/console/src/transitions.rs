//! Transitions of instances: their last changes of health and isolation, in memory.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;

/// Maximum number of transitions remembered, of all instances together.
const MOST: usize = 8192;
/// Maximum number of instances other than [`State::usual`] whose state is remembered; the transitions of further ones start from the usual state.
const MOST_UNUSUAL: usize = 100_000;

/// The state of an instance that is tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct State {
    /// `passing`, `warning`, `critical`.
    pub health: &'static str,
    /// True if it is isolated by hand.
    pub isolate: bool,
}

/// A change of an instance's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// `namespace/id`.
    pub instance: String,
    /// Milliseconds since 1970.
    pub at: i64,
    /// The state before.
    pub from: State,
    /// The state after; None: deregistered.
    pub to: Option<State>,
}

/// The last transitions. An unknown instance counts as passing, so only the others cost memory.
#[derive(Debug, Default)]
pub struct Transitions {
    unusual: HashMap<String, State>,
    last: VecDeque<Transition>,
    /// Number of all transitions.
    count: u64,
}

impl State {
    /// Returns the state passing, and not isolated.
    #[must_use]
    pub fn usual() -> State {
        State { health: "passing", isolate: false }
    }
}

impl Transitions {
    /// Records an instance's state since `at`. Returns true if it has changed.
    pub fn observe(&mut self, instance: &str, now: State, at: i64) -> bool {
        let before = self.unusual.get(instance).copied().unwrap_or_else(State::usual);
        if before == now {
            return false;
        }
        self.know(instance, now);
        self.push(Transition { instance: instance.to_owned(), at, from: before, to: Some(now) });
        true
    }

    /// Records the initial state of an instance, without a transition.
    pub fn know(&mut self, instance: &str, now: State) {
        if now == State::usual() {
            self.unusual.remove(instance);
        } else if self.unusual.len() < MOST_UNUSUAL || self.unusual.contains_key(instance) {
            self.unusual.insert(instance.to_owned(), now);
        }
    }

    /// Records the removal of an instance.
    pub fn remove(&mut self, instance: &str, at: i64) {
        let from = self.unusual.remove(instance).unwrap_or_else(State::usual);
        self.push(Transition { instance: instance.to_owned(), at, from, to: None });
    }

    fn push(&mut self, transition: Transition) {
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back(transition);
        self.count += 1;
    }

    /// Returns the last `limit` transitions of an instance, newest first.
    #[must_use]
    pub fn of(&self, instance: &str, limit: usize) -> Vec<Transition> {
        self.last.iter().rev().filter(|transition| transition.instance == instance).take(limit).cloned().collect()
    }

    /// Returns the last `limit` of the transitions after the `since`th, oldest first; and the number of all transitions.
    #[must_use]
    pub fn since(&self, since: u64, limit: usize) -> (Vec<Transition>, u64) {
        let new = usize::try_from(self.count.saturating_sub(since)).unwrap_or(usize::MAX);
        let from = self.last.len() - new.min(limit).min(self.last.len());
        (self.last.range(from..).cloned().collect(), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_is_kept_and_not_for_ever() {
        let critical = State { health: "critical", isolate: false };
        let mut transitions = Transitions::default();
        assert!(!transitions.observe("n/a", State::usual(), 1), "as expected of a new one");
        assert!(transitions.observe("n/a", critical, 2));
        assert!(!transitions.observe("n/a", critical, 3));
        transitions.know("n/b", critical);
        assert!(!transitions.observe("n/b", critical, 3), "it was so before");
        assert!(transitions.observe("n/b", State::usual(), 4));
        transitions.remove("n/a", 5);
        let of_a = transitions.of("n/a", 10);
        assert_eq!(of_a.iter().map(|t| (t.at, t.to)).collect::<Vec<_>>(), [(5, None), (2, Some(critical))]);
        assert_eq!(of_a[0].from, critical);
        assert!(transitions.unusual.is_empty());
        for (since, limit, found) in [(0, 9, 3), (0, 2, 2), (1, 9, 2), (3, 9, 0), (99, 9, 0)] {
            assert_eq!((transitions.since(since, limit).0.len(), transitions.since(since, limit).1), (found, 3));
        }
        for at in 0..2 * MOST as i64 {
            transitions.remove("n/c", at);
        }
        assert_eq!((transitions.last.len(), transitions.of("n/a", 10).len()), (MOST, 0));
    }
}
