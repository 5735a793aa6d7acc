//! Parameters of clients, and the statement that changes a server connection's parameters to a client's.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use sql::{changes_reading, is_utf8};

use crate::core::prepared::{ParseSettings, Registry};

/// Parameters of a client: from the startup packet, or set since. Interned by content within a worker ([`Interned`]), so that equal sets usually
/// compare equal by pointer.
#[derive(Debug)]
pub(crate) struct Params {
    /// Sorted by name, in lower case.
    list: Vec<(String, String)>,
    /// The parse settings for those parameters in `list` that change how a text is read.
    parse_settings: ParseSettings,
}

/// Parameter sets of a worker, each stored once.
#[derive(Debug)]
pub(crate) struct Interned {
    known: HashMap<Arc<Params>, ()>,
    none: Arc<Params>,
    registry: Arc<Registry>,
}

/// Parameters in force on a server connection.
#[derive(Debug, Clone)]
pub(crate) enum Applied {
    /// Known parameters, over the connection's defaults.
    These(Arc<Params>),
    /// Unknown parameters: all have to be reset first.
    Unknown,
}

impl Applied {
    /// True if a client with `wanted` needs no change.
    pub(crate) fn is(&self, wanted: &Arc<Params>) -> bool {
        match self {
            Applied::These(params) => Arc::ptr_eq(params, wanted) || params == wanted,
            Applied::Unknown => false,
        }
    }

    /// Returns the statement that changes a connection's parameters to `wanted`.
    pub(crate) fn statement(&self, wanted: &Params) -> String {
        let mut sql = String::new();
        let mut calls: Vec<(&str, Option<&str>)> = Vec::new();
        match self {
            // RESET ALL does not reset the role.
            Applied::Unknown => sql.push_str("RESET ROLE; RESET ALL; "),
            Applied::These(have) => {
                calls
                    .extend(have.list.iter().filter(|(n, _)| wanted.get(n).is_none()).map(|(n, _)| (n.as_str(), None)));
            }
        }
        let have = match self {
            Applied::These(have) => Some(have),
            Applied::Unknown => None,
        };
        calls.extend(
            wanted
                .list
                .iter()
                .filter(|(n, v)| have.and_then(|have| have.get(n)) != Some(v))
                .map(|(n, v)| (n.as_str(), Some(v.as_str()))),
        );
        // The role may not be allowed to set the other parameters: it is reset first and set last.
        if have.is_some_and(|have| have.get("role").is_some()) && !calls.is_empty() {
            calls.retain(|(name, _)| *name != "role");
            calls.insert(0, ("role", None));
            calls.extend(wanted.get("role").map(|role| ("role", Some(role.as_str()))));
        } else if let Some(at) = calls.iter().position(|(name, _)| *name == "role") {
            let role = calls.remove(at);
            calls.push(role);
        }
        // A value of DateStyle may be partial (`ISO`, `DMY`), so the old value is reset first.
        if calls.iter().any(|(name, value)| *name == "datestyle" && value.is_some()) {
            calls.insert(0, ("datestyle", None));
        }
        sql.push_str(&set_config(calls.into_iter(), false));
        sql
    }
}

/// Returns a statement that sets these parameters, for the session or (`local`) for its transaction. A value of `None` resets to the value at the
/// start of the session. Empty if there are no parameters.
pub(crate) fn set_config<'a>(calls: impl Iterator<Item = (&'a str, Option<&'a str>)>, local: bool) -> String {
    let mut sql = String::new();
    for (i, (name, value)) in calls.enumerate() {
        // set_config() rather than SET: it accepts a list (search_path, DateStyle) in the form of the startup packet.
        sql.push_str(if i == 0 { "SELECT pg_catalog.set_config(" } else { ", pg_catalog.set_config(" });
        quote(&mut sql, name);
        sql.push_str(", ");
        match value {
            Some(value) => quote(&mut sql, value),
            // NULL resets a parameter to the session's default.
            None => sql.push_str("NULL"),
        }
        sql.push_str(if local { ", true)" } else { ", false)" });
    }
    sql
}

/// Returns a statement that sets all parameters that affect literals as in `then`, until the transaction ends, and one that restores the former
/// values: the server keeps them in parameters of the proxy, which also end with the transaction.
pub(crate) fn literals_and_back(then: &[(String, String)]) -> (String, String) {
    let (mut there, mut back) = (String::new(), String::new());
    for (i, name) in sql::OF_LITERALS.iter().enumerate() {
        let begin = if i == 0 { "SELECT " } else { ", " };
        // The list of a SELECT is evaluated from left to right.
        let _ = write!(
            there,
            "{begin}pg_catalog.set_config('kingpost.was_{name}', pg_catalog.current_setting('{name}'), true)"
        );
        there.push_str(", pg_catalog.set_config(");
        quote(&mut there, name);
        there.push_str(", ");
        match then.iter().find(|(known, _)| known == name) {
            Some((_, value)) => quote(&mut there, value),
            None => there.push_str("NULL"),
        }
        there.push_str(", true)");
        let _ = write!(
            back,
            "{begin}pg_catalog.set_config('{name}', pg_catalog.current_setting('kingpost.was_{name}'), true)"
        );
    }
    (there, back)
}

impl PartialEq for Params {
    fn eq(&self, other: &Params) -> bool {
        // The parse settings follow from the list.
        self.list == other.list
    }
}

impl Eq for Params {}

impl Hash for Params {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list.hash(state);
    }
}

impl Params {
    /// Returns the value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&String> {
        self.list.binary_search_by(|(n, _)| n.as_str().cmp(name)).ok().map(|i| &self.list[i].1)
    }

    /// Returns all parameters, sorted by name, in lower case.
    pub(crate) fn list(&self) -> &[(String, String)] {
        &self.list
    }

    /// True if no parameter is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the parse settings for these parameters.
    pub(crate) fn parse_settings(&self) -> ParseSettings {
        self.parse_settings
    }

    /// Returns the parameters that change how a text is read.
    pub(crate) fn reading_list(&self) -> impl Iterator<Item = &(String, String)> {
        self.list.iter().filter(|(name, value)| is_reading(name, value))
    }

    /// True if the client's texts are in UTF-8, according to the startup packet and SET.
    pub(crate) fn is_utf8(&self) -> bool {
        self.get("client_encoding").is_none_or(|encoding| is_utf8(encoding))
    }
}

#[cfg(test)]
impl Params {
    /// Creates parameters for tests.
    pub(crate) fn test(registry: &Registry, list: &[(&str, &str)]) -> Params {
        Params::new(sorted(list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))), registry)
    }
}

impl Params {
    fn new(list: Vec<(String, String)>, registry: &Registry) -> Params {
        let parse_settings = registry.parse_settings(list.iter().filter(|(name, value)| is_reading(name, value)));
        Params { list, parse_settings }
    }
}

/// True if this value changes how a text is read. (Server connections begin with UTF-8.)
pub(super) fn is_reading(name: &str, value: &str) -> bool {
    changes_reading(name) && !(name == "client_encoding" && is_utf8(value))
}

/// Returns a sorted list of pairs in any order and case. If a name occurs twice, the last value wins, as in PostgreSQL.
pub(super) fn sorted(pairs: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut list: Vec<(String, String)> = Vec::new();
    for (name, value) in pairs {
        let name = name.to_ascii_lowercase();
        match list.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value,
            None => list.push((name, value)),
        }
    }
    list.sort();
    list
}

// === impl Interned ===

impl Interned {
    pub(crate) fn new(registry: Arc<Registry>) -> Interned {
        let none = Arc::new(Params { list: Vec::new(), parse_settings: ParseSettings::DEFAULT });
        Interned { known: HashMap::from([(none.clone(), ())]), none, registry }
    }

    /// Returns the empty set.
    pub(crate) fn none(&self) -> &Arc<Params> {
        &self.none
    }

    /// Returns the worker's copy of this set, given in any order and case; the last value of a name wins.
    pub(crate) fn intern(&mut self, pairs: impl IntoIterator<Item = (String, String)>) -> Arc<Params> {
        let list = sorted(pairs);
        // `Hash` and `Eq` use only the list, so the lookup does not need the parse settings.
        let wanted = Params { list, parse_settings: ParseSettings::DEFAULT };
        if let Some((known, ())) = self.known.get_key_value(&wanted) {
            return known.clone();
        }
        if self.known.len() >= 64 && self.known.len().is_power_of_two() {
            self.known.retain(|params, ()| Arc::strong_count(params) > 1);
        }
        let params = Arc::new(Params::new(wanted.list, &self.registry));
        self.known.insert(params.clone(), ());
        params
    }
}

/// Appends a string literal that is read the same with `standard_conforming_strings` on or off.
fn quote(sql: &mut String, text: &str) {
    sql.push_str(if text.contains('\\') { " E'" } else { "'" });
    for c in text.chars() {
        match c {
            '\'' => sql.push_str("''"),
            '\\' => sql.push_str("\\\\"),
            c => {
                let _ = sql.write_char(c);
            }
        }
    }
    sql.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(list: &[(&str, &str)]) -> Params {
        Params::test(&Registry::default(), list)
    }

    #[test]
    fn all_that_matters_to_literals_is_set_and_set_back() {
        let (there, back) = literals_and_back(&[("datestyle".into(), "ISO, 'DMY'".into())]);
        assert_eq!(there.matches("set_config(").count(), 2 * sql::OF_LITERALS.len());
        assert_eq!(back.matches("set_config(").count(), sql::OF_LITERALS.len());
        let kept = "pg_catalog.set_config('kingpost.was_datestyle', pg_catalog.current_setting('datestyle'), true)";
        assert!(there.contains(&format!("{kept}, pg_catalog.set_config('datestyle', ")), "{there}");
        assert!(there.contains("pg_catalog.set_config('timezone', NULL, true)"), "{there}");
        let first = "SELECT pg_catalog.set_config('array_nulls', pg_catalog.current_setting('kingpost.was_array_nulls'), true), ";
        assert!(back.starts_with(first), "{back}");
    }

    #[test]
    fn what_is_read_alike() {
        let registry = Registry::default();
        let parse_settings = |list: &[(&str, &str)]| Params::test(&registry, list).parse_settings();
        for same in [
            &[("application_name", "a"), ("app.tenant", "b"), ("Client_Encoding", "UTF8"), ("statement_timeout", "5")]
                [..],
            &[],
        ] {
            assert_eq!(parse_settings(same), ParseSettings::DEFAULT, "{same:?}");
        }
        assert_eq!(parse_settings(&[("timezone", "UTC"), ("app.tenant", "a")]), parse_settings(&[("TimeZone", "UTC")]));
        let others = [
            parse_settings(&[]),
            parse_settings(&[("timezone", "UTC")]),
            parse_settings(&[("timezone", "utc")]),
            parse_settings(&[("search_path", "a")]),
            parse_settings(&[("role", "a")]),
            parse_settings(&[("client_encoding", "latin1")]),
        ];
        for (at, one) in others.iter().enumerate() {
            assert!(others[..at].iter().all(|other| other != one), "{at}");
        }
        let mut interned = Interned::new(Arc::new(registry));
        let pairs =
            |value: &str| vec![("TimeZone".to_owned(), "UTC".to_owned()), ("timezone".to_owned(), value.to_owned())];
        let one = interned.intern(pairs("x"));
        assert!(Arc::ptr_eq(&one, &interned.intern(pairs("x"))) && !Arc::ptr_eq(&one, &interned.intern(pairs("y"))));
        let none = interned.intern([]);
        assert!(Arc::ptr_eq(interned.none(), &none));
    }

    #[test]
    fn statements() {
        let base = Applied::These(Arc::new(params(&[])));
        let a = params(&[("TimeZone", "UTC"), ("search_path", "a, b"), ("timezone", "Asia/Tokyo")]);
        assert_eq!(
            base.statement(&a),
            "SELECT pg_catalog.set_config('search_path', 'a, b', false), pg_catalog.set_config('timezone', 'Asia/Tokyo', false)"
        );
        let b = params(&[("search_path", "a, b"), ("application_name", r"it's \ x")]);
        assert_eq!(
            Applied::These(Arc::new(a)).statement(&b),
            r"SELECT pg_catalog.set_config('timezone', NULL, false), pg_catalog.set_config('application_name',  E'it''s \\ x', false)"
        );
        assert_eq!(Applied::Unknown.statement(&params(&[])), "RESET ROLE; RESET ALL; ");
        // The role is reset first and set last.
        let role = |list: &[(&str, &str)]| Applied::These(Arc::new(params(list)));
        assert_eq!(
            role(&[("role", "a")]).statement(&params(&[("role", "b"), ("search_path", "x"), ("work_mem", "1MB")])),
            "SELECT pg_catalog.set_config('role', NULL, false), pg_catalog.set_config('search_path', 'x', false), \
             pg_catalog.set_config('work_mem', '1MB', false), pg_catalog.set_config('role', 'b', false)"
        );
        assert_eq!(
            role(&[("role", "a"), ("jit", "off")]).statement(&params(&[("role", "a")])),
            "SELECT pg_catalog.set_config('role', NULL, false), pg_catalog.set_config('jit', NULL, false), \
             pg_catalog.set_config('role', 'a', false)"
        );
        assert_eq!(
            base.statement(&params(&[("role", "b"), ("work_mem", "1MB")])),
            "SELECT pg_catalog.set_config('work_mem', '1MB', false), pg_catalog.set_config('role', 'b', false)"
        );
        assert_eq!(role(&[("role", "a")]).statement(&params(&[])), "SELECT pg_catalog.set_config('role', NULL, false)");
        assert!(base.is(&Arc::new(params(&[]))));
        assert!(!base.is(&Arc::new(params(&[("geqo", "off")]))));
    }
}
