//! Parameters that a server reports at login, remembered for clients with the same startup parameters.
//!
//! A startup parameter that no server refuses, and that every server reports as it was given, is no part of the key: a client with an
//! `application_name` of its own (`pod-5d4f8`) is answered from the greeting of another. [`verbatim`] has the rules.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use crate::core::parameters::Params;

/// Most sets of startup parameters whose greeting a pool remembers.
const MOST_GREETINGS: usize = 1024;
/// Longest value of a parameter that PostgreSQL takes for a name (`GUC_IS_NAME`), in bytes: it cuts a longer one.
const LONGEST_NAME: usize = 63;

/// Startup parameters on which a greeting depends: those that a server may refuse or change, with their values, and the names of the others.
#[derive(Debug, PartialEq, Eq, Hash)]
struct GreetingKey(Vec<(String, Option<String>)>);

/// The greetings of a pool.
#[derive(Debug, Default)]
pub(in crate::core) struct Greetings {
    known: HashMap<GreetingKey, Arc<Vec<(String, String)>>>,
}

/// Returns the value that every server reports for a parameter given like this at login; `None` if only a server can tell.
fn verbatim<'a>(name: &str, value: &'a str) -> Option<Cow<'a, str>> {
    match name {
        // PostgreSQL cuts the value, and replaces other bytes, by `?` up to version 15 and by `\x..` from 16 on.
        "application_name" if value.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
            Some(value[..value.len().min(LONGEST_NAME)].into())
        }
        // Reported from version 18 on. Names need not exist.
        "search_path" if is_plain_list(value) => Some(value.into()),
        _ => None,
    }
}

/// True for names in lower case without quotes, separated by commas: no server refuses such a list.
fn is_plain_list(list: &str) -> bool {
    let is_plain = |name: &str| {
        let name = name.trim_matches(' ');
        name.len() <= LONGEST_NAME
            && name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    };
    list.split(',').all(is_plain)
}

// === impl GreetingKey ===

impl GreetingKey {
    fn of(params: &Params) -> GreetingKey {
        let judged = |(name, value): &(String, String)| match verbatim(name, value) {
            Some(_) => (name.clone(), None),
            None => (name.clone(), Some(value.clone())),
        };
        GreetingKey(params.list().iter().map(judged).collect())
    }
}

// === impl Greetings ===

impl Greetings {
    /// Returns the parameters that a server reports to a client with these startup parameters.
    pub(in crate::core) fn get(&self, params: &Params) -> Option<Vec<(String, String)>> {
        let mut greeting = Vec::clone(self.known.get(&GreetingKey::of(params))?);
        for (name, value) in &mut greeting {
            let name = name.to_ascii_lowercase();
            if let Some(given) = params.get(&name).and_then(|given| verbatim(&name, given)) {
                *value = given.into_owned();
            }
        }
        Some(greeting)
    }

    /// Remembers the parameters that a server has reported to a client with these startup parameters.
    pub(in crate::core) fn learn(&mut self, params: &Params, reported: &[(String, String)]) {
        if self.known.len() >= MOST_GREETINGS {
            self.known.clear();
        }
        self.known.insert(GreetingKey::of(params), Arc::new(reported.to_vec()));
    }

    /// Forgets all greetings: new sessions begin with other values.
    pub(in crate::core) fn clear(&mut self) {
        self.known.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::prepared::Registry;

    fn params(list: &[(&str, &str)]) -> Params {
        Params::test(&Registry::default(), list)
    }

    #[test]
    fn a_name_that_no_server_judges_is_put_in() {
        let long = "x".repeat(70);
        let cases = [
            ("application_name", "pod-1", Some("pod-1")),
            ("application_name", "", Some("")),
            ("application_name", &long, Some(&long[..63])),
            ("application_name", "caf\u{e9}", None),
            ("application_name", "a\tb", None),
            ("search_path", "tenant_7, public", Some("tenant_7, public")),
            ("search_path", "\"A\"", None),
            ("search_path", "Tenant", None),
            ("search_path", "a,,b", None),
            ("search_path", "", None),
            ("search_path", "$user", None),
            ("timezone", "UTC", None),
            ("app.tenant", "7", None),
        ];
        for (name, value, expected) in cases {
            assert_eq!(verbatim(name, value).as_deref(), expected, "{name} {value}");
        }
        let mut greetings = Greetings::default();
        let reported = |name: &str| vec![("application_name".to_owned(), name.to_owned()), ("x".into(), "y".into())];
        greetings.learn(&params(&[("application_name", "a"), ("TimeZone", "UTC")]), &reported("a"));
        let other = params(&[("application_name", "b"), ("TimeZone", "UTC")]);
        assert_eq!(greetings.get(&other), Some(reported("b")));
        for stranger in [
            &[("TimeZone", "UTC")][..],
            &[("application_name", "b"), ("TimeZone", "GMT")],
            &[("application_name", "\u{e9}")],
        ] {
            assert!(greetings.get(&params(stranger)).is_none(), "{stranger:?}");
        }
        // Without a name, the session's is the proxy's.
        greetings.learn(&params(&[]), &reported("kingpost"));
        assert_eq!(greetings.get(&params(&[])), Some(reported("kingpost")));
        greetings.clear();
        assert!(greetings.get(&other).is_none());
    }

    #[test]
    fn few_are_remembered() {
        let mut greetings = Greetings::default();
        for n in 0..3 * MOST_GREETINGS {
            greetings.learn(&params(&[("app.tenant", &n.to_string())]), &[]);
            assert!(greetings.known.len() <= MOST_GREETINGS);
        }
    }
}
