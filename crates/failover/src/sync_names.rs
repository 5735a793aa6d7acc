//! `synchronous_standby_names`: the number of relays that have a commit before its client is told. Pure.
//!
//! The grammar: PostgreSQL's documentation, "Replication", and `syncrep_gram.y`. `a, b` is `FIRST 1 (a, b)`, `2 (a, b, c)` is
//! `FIRST 2 (…)`; names are compared without case; `*` is every standby.

/// A parsed setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyncNames {
    /// Number of the named standbys that must have a commit.
    count: usize,
    names: Vec<String>,
}

impl SyncNames {
    /// Parses a setting; None if it is empty, and commits wait for nobody.
    ///
    /// # Errors
    /// The setting has no form that PostgreSQL accepts.
    pub(super) fn read(text: &str) -> Result<Option<SyncNames>, ()> {
        let tokens = tokens(text).ok_or(())?;
        let (count, list) = match tokens.as_slice() {
            [] => return Ok(None),
            [Token::Name(word, false), Token::Name(count, false), Token::Open, list @ .., Token::Close]
                if word.eq_ignore_ascii_case("any") || word.eq_ignore_ascii_case("first") =>
            {
                (count.parse().map_err(|_| ())?, list)
            }
            [Token::Name(count, false), Token::Open, list @ .., Token::Close] => (count.parse().map_err(|_| ())?, list),
            list => (1, list),
        };
        let mut names = Vec::new();
        for (index, token) in list.iter().enumerate() {
            match (index % 2, token) {
                (0, Token::Name(name, _)) => names.push(name.clone()),
                (1, Token::Comma) if index + 1 < list.len() => {}
                _ => return Err(()),
            }
        }
        if names.is_empty() || count == 0 { Err(()) } else { Ok(Some(SyncNames { count, names })) }
    }

    /// True if any of the names is that of a relay, or `*`.
    pub(super) fn names_a_relay(&self, is_relay: impl Fn(&str) -> bool) -> bool {
        self.names.iter().any(|name| name == "*" || is_relay(name))
    }

    /// Returns the least number of relays that have a commit, if `is_relay` recognises relays' names: the wait may be for the other named standbys.
    pub(super) fn relays_at_least(&self, is_relay: impl Fn(&str) -> bool) -> usize {
        if self.names.iter().any(|name| name == "*") {
            return 0;
        }
        let others = self.names.iter().filter(|name| !is_relay(name)).count();
        self.count.saturating_sub(others)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// A name, and true if it was quoted.
    Name(String, bool),
    Open,
    Close,
    Comma,
}

/// Splits a setting into tokens; None if a quote is not closed, or a character is not part of any.
fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        tokens.push(match c {
            c if c.is_whitespace() => continue,
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '*' => Token::Name("*".into(), false),
            '"' => {
                let mut name = String::new();
                loop {
                    match chars.next()? {
                        '"' if chars.next_if_eq(&'"').is_some() => name.push('"'),
                        '"' => break,
                        c => name.push(c),
                    }
                }
                Token::Name(name, true)
            }
            c if c.is_alphanumeric() || c == '_' || !c.is_ascii() => {
                let mut name = String::from(c);
                while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii()) {
                    name.push(c);
                }
                Token::Name(name, false)
            }
            _ => return None,
        });
    }
    Some(tokens)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// Names `r…` are relays.
    #[test]
    fn how_many_relays_have_a_commit() {
        for (setting, expected) in [
            ("", None),
            ("  ", None),
            ("r1", Some(1)),
            ("R1", Some(1)),
            ("r1, r2", Some(1)),
            ("s1, r1", Some(0)),
            ("*", Some(0)),
            ("r1, *", Some(0)),
            ("2 (r1, r2, r3)", Some(2)),
            ("FIRST 2 (r1, r2)", Some(2)),
            ("first 2(r1,s1,r2)", Some(1)),
            ("ANY 1 (r1, r2, r3)", Some(1)),
            ("any 2 (r1, r2, r3)", Some(2)),
            ("ANY 3 (r1, r2, s1, s2)", Some(1)),
            ("ANY 2 (r1, s1, s2)", Some(0)),
            ("\"r1\", \"r \"\"2\"\"\"", Some(1)),
            // A quoted name, not the keyword.
            ("\"any\", r1", Some(0)),
            ("any", Some(0)),
            ("1", Some(0)),
        ] {
            let read = SyncNames::read(setting).unwrap_or_else(|()| panic!("{setting}"));
            let is_relay = |name: &str| name.starts_with(['r', 'R']);
            assert_eq!(read.map(|names| names.relays_at_least(is_relay)), expected, "{setting}");
        }
        for setting in ["ANY x (r1)", "ANY 1 ()", "ANY 0 (r1)", "r1,", "(r1)", "r1 r2", "\"r1", "ANY 1 (r1", "r1; r2"] {
            assert_eq!(SyncNames::read(setting), Err(()), "{setting}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,40}") {
            let _ = SyncNames::read(&text).map(|names| names.map(|names| names.relays_at_least(|name| name == "a")));
        }

        #[test]
        fn no_more_than_is_waited_for(count in 1_usize..9, names in prop::collection::vec("[a-z]{1,3}", 1..6), any: bool) {
            let method = if any { "ANY" } else { "FIRST" };
            let names = SyncNames::read(&format!("{method} {count} ({})", names.join(", "))).unwrap().unwrap();
            prop_assert!(names.relays_at_least(|name| name.len() == 2) <= count);
            prop_assert_eq!(names.relays_at_least(|_| true), count);
            prop_assert_eq!(names.relays_at_least(|_| false), count.saturating_sub(names.names.len()));
        }
    }
}
