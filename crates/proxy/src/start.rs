//! Initial state of a database's server connections: parameters of their start-up message, and a statement.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::config::DatabaseConfig;

/// Maximum length of `connect_query`, in bytes.
const MOST_QUERY: usize = 16 << 10;
/// Maximum number of parameters of a database.
const MOST_PARAMETERS: usize = 64;
/// Start-up parameters that the proxy itself sets or relies on.
const TAKEN: [&str; 7] =
    ["user", "database", "replication", "client_encoding", "synchronous_commit", "role", "session_authorization"];

/// Initial state of a server connection, before a client gets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Start {
    /// A statement that runs once on each connection, after its login, and again after its session was reset.
    pub query: Option<Arc<str>>,
    /// Parameters of the start-up message: the values that `RESET` restores.
    pub parameters: Arc<[(String, String)]>,
}

/// Error in a database's `connect_query` or `parameters`.
#[derive(Debug, thiserror::Error)]
pub enum InvalidStart {
    /// A parameter is not `name=value`.
    #[error("parameters: found {0:?}, expected \"name=value\" with a name of letters, digits, '_' and '.'")]
    Form(String),
    /// The proxy sets the parameter itself.
    #[error("parameters: found {0:?}, which the proxy sets itself; expected another parameter")]
    Taken(String),
    /// Too many parameters.
    #[error("parameters: found {0}, expected at most {MOST_PARAMETERS}")]
    Many(usize),
    /// The statement is empty or too long.
    #[error("connect_query: found {0} bytes, expected 1 to {MOST_QUERY}, none of them zero")]
    Query(usize),
}

impl Start {
    pub(crate) fn new(entry: &DatabaseConfig) -> Result<Start, InvalidStart> {
        if let Some(query) = &entry.connect_query
            && (query.trim().is_empty() || query.len() > MOST_QUERY || query.contains('\0'))
        {
            return Err(InvalidStart::Query(query.len()));
        }
        if entry.parameters.len() > MOST_PARAMETERS {
            return Err(InvalidStart::Many(entry.parameters.len()));
        }
        let parameters = entry.parameters.iter().map(|text| parameter(text)).collect::<Result<_, _>>()?;
        Ok(Start { query: entry.connect_query.as_deref().map(Arc::from), parameters })
    }

    /// Returns a text that is equal for two databases only if their server connections have the same initial state; empty if they have none of their
    /// own.
    pub(crate) fn name(&self) -> String {
        let mut name = String::new();
        for (parameter, value) in &*self.parameters {
            // Values contain no zero byte.
            let _ = write!(name, "{parameter}={value}\0");
        }
        name.push_str(self.query.as_deref().unwrap_or_default());
        name
    }
}

fn parameter(text: &str) -> Result<(String, String), InvalidStart> {
    let wrong = || InvalidStart::Form(text.to_owned());
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let (name, value) = (name.trim(), value.trim());
    let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
    if !named || value.contains('\0') {
        return Err(wrong());
    }
    if TAKEN.iter().any(|taken| taken.eq_ignore_ascii_case(name)) {
        return Err(InvalidStart::Taken(name.to_owned()));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_names_and_values() {
        for (text, expected) in [
            ("TimeZone = Europe/Vienna", Some(("TimeZone", "Europe/Vienna"))),
            ("app.tenant=", Some(("app.tenant", ""))),
            ("search_path=a, b=c", Some(("search_path", "a, b=c"))),
            ("TimeZone", None),
            ("=x", None),
            ("a b=x", None),
            ("x=\0", None),
            ("Role=x", None),
            ("synchronous_commit=off", None),
        ] {
            let found = parameter(text).ok();
            assert_eq!(found.as_ref().map(|(name, value)| (&**name, &**value)), expected, "{text:?}");
        }
    }

    #[test]
    fn names_differ_where_connections_do() {
        let start = |parameters: &[(&str, &str)], query: Option<&str>| Start {
            query: query.map(Arc::from),
            parameters: parameters.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        };
        let all = [
            start(&[], None),
            start(&[], Some("a=b")),
            start(&[("a", "b")], None),
            start(&[("a", "b")], Some("a=b")),
            start(&[("a", "b"), ("a", "b")], None),
            start(&[("a", "c")], None),
        ];
        let names: std::collections::BTreeSet<String> = all.iter().map(Start::name).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all[0].name(), "");
    }
}
