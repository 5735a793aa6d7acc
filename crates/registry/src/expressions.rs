//! Compiled regular expressions of stored texts, kept for their next use.

use std::sync::{Arc, Mutex, PoisonError};

use regex::Regex;

/// Maximum number of kept expressions; beyond it, the least recently used one is dropped. Their callers limit the size of each.
const MOST: usize = 32;

/// Cache of expressions by their text, in the order of their last use, the latest last. A changed text is another expression.
#[derive(Debug, Default)]
pub(crate) struct Expressions(Mutex<Vec<(Box<str>, Arc<Regex>)>>);

impl Expressions {
    /// Returns the expression of `text`; `compile` makes it, if it is not kept.
    ///
    /// # Errors
    /// Any error of `compile`, which is not kept.
    pub(crate) fn get<E>(&self, text: &str, compile: impl FnOnce(&str) -> Result<Regex, E>) -> Result<Arc<Regex>, E> {
        if let Some(found) = self.used(text, None) {
            return Ok(found);
        }
        // Without the lock: it takes milliseconds.
        let made = Arc::new(compile(text)?);
        Ok(self.used(text, Some(&made)).unwrap_or(made))
    }

    /// Returns the kept expression of `text`, else keeps `new`.
    fn used(&self, text: &str, new: Option<&Arc<Regex>>) -> Option<Arc<Regex>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match kept.iter().position(|(known, _)| **known == *text) {
            Some(at) => kept.remove(at),
            None => (text.into(), Arc::clone(new?)),
        };
        if kept.len() >= MOST {
            kept.remove(0);
        }
        let found = Arc::clone(&entry.1);
        kept.push(entry);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_expression_is_compiled_once_while_it_is_used() {
        let kept = Expressions::default();
        let mut compiled = 0;
        let mut get = |text: &str| {
            let made = kept.get(text, |text| {
                compiled += 1;
                Regex::new(text)
            });
            (made.map(|made| made.as_str().to_owned()).ok(), compiled)
        };
        assert_eq!(get("a"), (Some("a".into()), 1));
        assert_eq!(get("a"), (Some("a".into()), 1));
        assert_eq!(get("("), (None, 2), "an error is not kept");
        assert_eq!(get("("), (None, 3));
        for n in 1..MOST {
            get(&format!("b{n}"));
        }
        for _ in 0..3 {
            assert_eq!(get("a").1, MOST + 2, "still kept, and now the latest");
        }
        assert_eq!(get("b2").1, MOST + 2, "kept once, however often it is used");
        get("c");
        assert_eq!(get("a").1, MOST + 3);
        assert_eq!(get("b1").1, MOST + 4, "dropped for c");
        assert_eq!(kept.0.lock().unwrap().len(), MOST);
    }
}
