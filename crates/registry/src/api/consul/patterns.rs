//! Compiled regular expressions of events' filters.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use regex::Regex;

use super::filter;

/// Maximum size of a compiled regular expression, and number of compiled ones kept.
pub(super) const PATTERN_BYTES: usize = 64 << 10;
const PATTERNS: usize = 128;

/// Cache of compiled regular expressions: a watching client is woken by each event, and then all events are evaluated again.
#[derive(Debug, Default)]
pub(in crate::api) struct Patterns(Mutex<VecDeque<(String, Option<Regex>)>>);

impl Patterns {
    /// True if `pattern` matches anywhere in `text`. An invalid pattern, which is rejected with its event, matches nothing.
    pub(super) fn fits(&self, pattern: &str, text: &str) -> bool {
        self.get(pattern).is_some_and(|regex| regex.is_match(text))
    }

    fn get(&self, pattern: &str) -> Option<Regex> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = lock().iter().find(|(text, _)| text == pattern) {
            return known.clone();
        }
        let regex = filter::pattern(pattern, PATTERN_BYTES).ok();
        let mut known = lock();
        if known.len() >= PATTERNS {
            known.pop_front();
        }
        known.push_back((pattern.to_owned(), regex.clone()));
        regex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_are_kept() {
        let patterns = Patterns::default();
        let many = (0..2 * PATTERNS).filter(|n| patterns.fits(&format!("^{n}$"), "7")).count();
        assert_eq!((many, patterns.0.lock().map(|known| known.len()).ok()), (1, Some(PATTERNS)));
    }
}
