//! Run-time parameters that clients start with and set, and how a server connection is brought to them.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What a client has in force: asked for at start-up, or set since. Sorted by name, lower case. Shared by content inside a worker, so two clients that ask
/// for the same compare equal by pointer.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Params(pub Vec<(String, String)>);

/// What a server connection has in force.
#[derive(Debug, Clone)]
pub(super) enum Applied {
    /// These, over its defaults.
    These(Arc<Params>),
    /// Something else: everything must be reset first.
    Unknown,
}

impl Applied {
    /// True if nothing has to be done for a client with `wanted`.
    pub(super) fn is(&self, wanted: &Arc<Params>) -> bool {
        match self {
            Applied::These(params) => Arc::ptr_eq(params, wanted) || params == wanted,
            Applied::Unknown => false,
        }
    }

    /// The statement that brings a connection from here to `wanted`.
    pub(super) fn statement(&self, wanted: &Params) -> String {
        let mut sql = String::new();
        let mut calls: Vec<(&str, Option<&str>)> = Vec::new();
        match self {
            // RESET ALL leaves the role.
            Applied::Unknown => sql.push_str("RESET ROLE; RESET ALL; "),
            Applied::These(have) => {
                // set_config() with NULL puts a parameter back to the connection's default.
                calls.extend(have.0.iter().filter(|(n, _)| wanted.get(n).is_none()).map(|(n, _)| (n.as_str(), None)));
            }
        }
        let have = match self {
            Applied::These(have) => Some(have),
            Applied::Unknown => None,
        };
        calls.extend(
            wanted
                .0
                .iter()
                .filter(|(n, v)| have.and_then(|have| have.get(n)) != Some(v))
                .map(|(n, v)| (n.as_str(), Some(v.as_str()))),
        );
        // What another role may set, this one may not: a role is the first to go and the last to come.
        if have.is_some_and(|have| have.get("role").is_some()) && !calls.is_empty() {
            calls.retain(|(name, _)| *name != "role");
            calls.insert(0, ("role", None));
            calls.extend(wanted.get("role").map(|role| ("role", Some(role.as_str()))));
        } else if let Some(at) = calls.iter().position(|(name, _)| *name == "role") {
            let role = calls.remove(at);
            calls.push(role);
        }
        // DateStyle is set in parts (`ISO`, `DMY`), so what an earlier value left must go first.
        if calls.iter().any(|(name, value)| *name == "datestyle" && value.is_some()) {
            calls.insert(0, ("datestyle", None));
        }
        for (i, (name, value)) in calls.iter().enumerate() {
            // set_config() and not SET: it takes a list (search_path, DateStyle) as the start-up packet does.
            sql.push_str(if i == 0 { "SELECT pg_catalog.set_config(" } else { ", pg_catalog.set_config(" });
            quote(&mut sql, name);
            sql.push_str(", ");
            match value {
                Some(value) => quote(&mut sql, value),
                None => sql.push_str("NULL"),
            }
            sql.push_str(", false)");
        }
        sql
    }
}

impl Params {
    /// The value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&String> {
        self.0.binary_search_by(|(n, _)| n.as_str().cmp(name)).ok().map(|i| &self.0[i].1)
    }

    /// A number for what of these changes how a statement's text is read: 0 if nothing does.
    pub(super) fn dialect(&self) -> u64 {
        let plain = |name: &str, value: &str| {
            matches!(name, "application_name" | "extra_float_digits" | "statement_timeout" | "lock_timeout")
                || (name == "client_encoding" && matches!(&*value.to_ascii_lowercase(), "utf8" | "utf-8" | "unicode"))
        };
        let mut hasher = DefaultHasher::new();
        let mut any = false;
        for pair in self.0.iter().filter(|(name, value)| !plain(name, value)) {
            any = true;
            pair.hash(&mut hasher);
        }
        if any { hasher.finish().max(1) } else { 0 }
    }

    /// From pairs in any order and case; the last of a name wins, as in the server.
    pub(super) fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Params {
        let mut list: Vec<(String, String)> = Vec::new();
        for (name, value) in pairs {
            let name = name.to_ascii_lowercase();
            match list.iter_mut().find(|(n, _)| *n == name) {
                Some(entry) => entry.1 = value,
                None => list.push((name, value)),
            }
        }
        list.sort();
        Params(list)
    }
}

/// A literal that is read the same whatever `standard_conforming_strings` says.
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
        Params::from_pairs(list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())))
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
        // A role goes first and comes last.
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
