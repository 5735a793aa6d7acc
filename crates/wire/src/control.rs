//! Settings and names of control sessions: the SQL sessions that Kingpost opens for itself, beside those of its clients.
//!
//! A session inherits settings from its role, its database and the server's files. A control session must not: with another `search_path`
//! `pg_is_in_recovery()` is another user's function, with another isolation level nothing runs on a standby. So each control session begins with
//! [`Settings`], and names in its statements are looked up in `pg_catalog` first.
//!
//! Source of the settings: PostgreSQL documentation, "Client Connection Defaults" and "Version and Platform Compatibility"; each can be set by
//! any role, in PostgreSQL 13 and later.

use std::time::Duration;

/// Settings that change the meaning or the fate of a statement, as every control session has them.
const FIXED: &[(&str, &str)] = &[
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("row_security", "on"),
    ("datestyle", "ISO, MDY"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    ("quote_all_identifiers", "off"),
    ("client_min_messages", "warning"),
];

/// `application_name` of a session that a proxy opens for a client, until the client names itself: not one of [`NAMES`].
pub const PROXIED: &str = "kingpost";
/// `application_name` of a probe.
pub const PROBE: &str = "kingpost probe";
/// `application_name` of the sessions that read the primary's position.
pub const ORACLE: &str = "kingpost oracle";
/// `application_name` of a login that `kingpost check` tries.
pub const CHECK: &str = "kingpost check";
/// `application_name` of agents, scalers and failovers.
pub const FAILOVER: &str = "kingpost failover";
/// `application_name` of the sessions of a switchover on the server that it locks.
pub const SWITCHOVER: &str = "kingpost switchover";
/// `application_name` of the session in which a proxy listens for its clients: it runs nothing but LISTEN and UNLISTEN.
pub const LISTENER: &str = "kingpost listener";
/// `application_name` of the registry's sessions in its database.
pub const REGISTRY: &str = "kingpost registry";
/// `application_name` of the session that looks up users (`proxy.auth_query`).
pub const AUTH_QUERY: &str = "kingpost auth_query";
/// `application_name` of the sessions in which `kingpost up` and `status` look at servers.
pub const UP: &str = "kingpost up";
/// Names of control sessions: a session with any other name is a client's.
pub const NAMES: [&str; 9] = [PROBE, ORACLE, CHECK, FAILOVER, SWITCHOVER, LISTENER, REGISTRY, AUTH_QUERY, UP];

/// Returns a condition on `pg_stat_activity`: true for a session whose name is one of `names`, false for one without a name.
#[must_use]
pub fn is_named(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("'{}'", name.replace('\'', "''"))).collect();
    format!("(COALESCE(application_name, '') IN ({}))", names.join(", "))
}

/// Asks a session with [`Settings::own_names`] for its `search_path` without `pg_catalog`, which PostgreSQL then searches first, and in which it
/// creates nothing: a row only if that is to be set, NULL for an empty list. Uses no operator, which the session's own path would find.
pub const OWN_PATH: &str = "SELECT pg_catalog.string_agg(pg_catalog.quote_ident(schema), ', ' ORDER BY place) \
    FROM pg_catalog.unnest(pg_catalog.array_remove(pg_catalog.current_schemas(false), 'pg_catalog')) \
    WITH ORDINALITY AS own(schema, place) \
    HAVING pg_catalog.array_position(pg_catalog.current_schemas(false), 'pg_catalog') IS NOT NULL";

/// Asks for the names of limits that are to be lifted, where they are set. Older servers do not know them, so a start-up packet may not name them.
/// The operators are found by `search_path`.
pub const LIMITS: &str = "SELECT name FROM pg_catalog.pg_settings \
    WHERE name IN ('transaction_timeout', 'idle_session_timeout') AND setting <> '0'";

/// Settings that a control session begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Names in lower case, values in the form of `SET`; each name once.
    list: Vec<(&'static str, String)>,
    /// True if names are found by the role's `search_path`, behind `pg_catalog`.
    own_names: bool,
}

impl Settings {
    /// Returns the settings of a session whose statements name only objects of `pg_catalog`.
    #[must_use]
    pub fn catalog() -> Settings {
        Settings { own_names: false, ..Settings::own_names() }.with("search_path", "pg_catalog")
    }

    /// Settings of a session in which an operator's statement, or a table of Kingpost's, is found by the role's `search_path`.
    #[must_use]
    pub fn own_names() -> Settings {
        let list = FIXED.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Settings { list, own_names: true }
    }

    /// Returns the settings with `name` added or replaced. `value` is in the form of `SET`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Settings {
        self.list.retain(|(of, _)| *of != name);
        self.list.push((name, value.into()));
        self
    }

    /// Returns the settings with a limit on each statement, of at least a millisecond.
    #[must_use]
    pub fn with_statement_timeout(self, limit: Duration) -> Settings {
        self.with("statement_timeout", limit.as_millis().max(1).to_string())
    }

    /// Returns the settings as the start-up parameter `options`: `-c name=value`, with spaces and backslashes escaped.
    #[must_use]
    pub fn options(&self) -> String {
        let words = self.list.iter().map(|(name, value)| {
            let escaped = value.replace('\\', "\\\\").replace(' ', "\\ ");
            format!("-c {name}={escaped}")
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns the simple query that a session which began with [`Settings::options`] runs before any other.
    #[must_use]
    pub fn prologue(&self) -> String {
        let lift = format!("SELECT pg_catalog.set_config(name, '0', false) FROM ({LIMITS}) AS limited");
        if !self.own_names {
            return lift;
        }
        format!(
            "SELECT pg_catalog.set_config('search_path', COALESCE(path, ''), false) FROM ({OWN_PATH}) AS own(path); {lift}"
        )
    }

    /// Returns the settings as `SET`s, for sessions behind a pooler. A pooler can follow these; it cannot follow the prologue, for which
    /// [`OWN_PATH`] and [`LIMITS`] ask first.
    #[must_use]
    pub fn sql(&self) -> String {
        self.list.iter().map(|(name, value)| set(name, value)).collect::<Vec<_>>().join("; ")
    }
}

fn set(name: &str, value: &str) -> String {
    match name {
        // Quotes would make one item of a list.
        "search_path" => format!("SET search_path = {value}"),
        _ => format!("SET {name} = '{}'", value.replace('\'', "''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_what_a_start_up_packet_is_read_as() {
        let settings =
            Settings::catalog().with_statement_timeout(Duration::from_secs(2)).with("application_name", r"a\ b");
        let options = settings.options();
        let read = crate::startup::options(&options).expect("options that can be read");
        let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        for expected in [
            ("default_transaction_isolation", "read committed"),
            ("datestyle", "ISO, MDY"),
            ("search_path", "pg_catalog"),
            ("statement_timeout", "2000"),
            ("application_name", r"a\ b"),
        ] {
            assert!(read.contains(&expected), "{expected:?} in {options}");
        }
        assert_eq!(read.len(), FIXED.len() + 3);
    }

    #[test]
    fn names_of_control_sessions() {
        assert_eq!(is_named(&["a", "it's"]), "(COALESCE(application_name, '') IN ('a', 'it''s'))");
        let own = is_named(&NAMES);
        for (name, expected) in [
            (PROBE, true),
            (ORACLE, true),
            (CHECK, true),
            (FAILOVER, true),
            (SWITCHOVER, true),
            (LISTENER, true),
            (REGISTRY, true),
            (AUTH_QUERY, true),
            (UP, true),
            (PROXIED, false),
            ("kingpost dashboard", false),
        ] {
            assert_eq!(own.contains(&format!("'{name}'")), expected, "{name}");
        }
    }

    #[test]
    fn a_setting_stands_once() {
        let settings = Settings::own_names().with("lock_timeout", "10s").with_statement_timeout(Duration::ZERO);
        let sql = settings.sql();
        assert_eq!(sql.matches("lock_timeout").count(), 1);
        assert!(sql.ends_with("SET lock_timeout = '10s'; SET statement_timeout = '1'"), "{sql}");
        assert!(!sql.contains("search_path"), "{sql}");
        assert!(Settings::catalog().sql().ends_with("SET search_path = pg_catalog"));
    }
}
