//! Effect of run-time parameters on the meaning of a text.

/// PostgreSQL's parameters that change neither the reading of a text (its names, its literals) nor its planning: format of results, time limits,
/// logging, durability, maintenance. A name that ends with `*` is a prefix.
const INDIFFERENT: [&str; 53] = [
    "application_name",
    "backend_flush_after",
    "check_function_bodies",
    "client_connection_check_interval",
    "client_min_messages",
    "commit_*",
    "compute_query_id",
    "createrole_self_grant",
    "deadlock_timeout",
    "debug_pretty_print",
    "debug_print_*",
    "default_table_access_method",
    "default_tablespace",
    "default_toast_compression",
    "default_transaction_*",
    "exit_on_error",
    "file_copy_method",
    "gin_*",
    "icu_validation_level",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lc_messages",
    "lc_numeric",
    "lc_time",
    "lo_compat_privileges",
    "lock_timeout",
    "log_*",
    "logical_decoding_work_mem",
    "maintenance_*",
    "max_parallel_maintenance_workers",
    "max_stack_depth",
    "md5_password_warnings",
    "password_encryption",
    "post_auth_delay",
    "scram_iterations",
    "seed",
    "statement_timeout",
    "stats_fetch_consistency",
    "synchronous_commit",
    "tcp_*",
    "temp_buffers",
    "temp_file_limit",
    "temp_tablespaces",
    "trace_*",
    "track_*",
    "transaction_deferrable",
    "transaction_isolation",
    "transaction_read_only",
    "transaction_timeout",
    "update_process_title",
    "vacuum_*",
    "wal_*",
    "xmlbinary",
];

/// Parameters that change only the reading of string literals: they do not affect a text without one.
pub const OF_LITERALS: [&str; 11] = [
    "array_nulls",
    "backslash_quote",
    "datestyle",
    "default_text_search_config",
    "escape_string_warning",
    "intervalstyle",
    "lc_monetary",
    "standard_conforming_strings",
    "timezone",
    "timezone_abbreviations",
    "xmloption",
];

/// Parameters that change what a statement means, returns or comes to: sessions that clients share must agree on them, on whichever server.
/// Every user may set them. Missing, on purpose: parameters of performance and durability, which servers may differ in, and
/// `default_transaction_read_only`. `client_encoding` is set by the proxy itself.
pub const ALIKE: [&str; 31] = [
    "array_nulls",
    "backslash_quote",
    "bytea_output",
    "client_min_messages",
    "datestyle",
    "default_text_search_config",
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "escape_string_warning",
    "extra_float_digits",
    "gin_fuzzy_search_limit",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "intervalstyle",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
    "lock_timeout",
    "quote_all_identifiers",
    "restrict_nonsystem_relation_kind",
    "role",
    "row_security",
    "search_path",
    "standard_conforming_strings",
    "statement_timeout",
    "timezone",
    "timezone_abbreviations",
    "transaction_timeout",
    "transform_null_equals",
    "xmlbinary",
    "xmloption",
];

/// Part of a text's meaning that a parameter changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// No part, as far as preparing the text is concerned.
    Nothing,
    /// The reading of its string literals.
    Literals,
    /// The meaning of its names, its plan, or an unknown part.
    Anything,
}

/// Returns the part of a text's meaning that this parameter changes; `name` is in lower case. An unknown parameter may change any; one with a dot in
/// its name belongs to an application or an extension, and changes none.
#[must_use]
pub fn meaning_of(name: &str) -> Meaning {
    if name.contains('.') {
        return Meaning::Nothing;
    }
    let is = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    if INDIFFERENT.iter().any(is) {
        Meaning::Nothing
    } else if OF_LITERALS.contains(&name) {
        Meaning::Literals
    } else {
        Meaning::Anything
    }
}

/// True if different values of this parameter in two sessions may give a text different meanings. `name` is in lower case.
#[must_use]
pub fn changes_reading(name: &str) -> bool {
    meaning_of(name) != Meaning::Nothing
}

/// True for a value of `client_encoding` under which bytes are read as UTF-8.
#[must_use]
pub fn is_utf8(encoding: &str) -> bool {
    ["utf8", "utf-8", "unicode"].iter().any(|name| encoding.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_sorted() {
        assert!(INDIFFERENT.is_sorted() && OF_LITERALS.is_sorted() && ALIKE.is_sorted());
    }

    #[test]
    fn sessions_agree_on_how_literals_are_read() {
        for name in OF_LITERALS {
            assert!(ALIKE.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_changes_the_meaning_of_a_text() {
        for name in [
            "search_path",
            "timezone",
            "timezone_abbreviations",
            "datestyle",
            "intervalstyle",
            "role",
            "session_authorization",
            "standard_conforming_strings",
            "backslash_quote",
            "client_encoding",
            "array_nulls",
            "lc_monetary",
            "xmloption",
            "transform_null_equals",
            "default_text_search_config",
            "enable_seqscan",
            "plan_cache_mode",
            "work_mem",
            "jit",
            "row_security",
            "session_replication_role",
            // Output functions of constants are run at planning.
            "extra_float_digits",
            "bytea_output",
            "quote_all_identifiers",
            "a_parameter_of_a_version_to_come",
        ] {
            assert!(changes_reading(name), "{name}");
        }
        for name in [
            "application_name",
            "app.tenant",
            "a.b.c",
            "statement_timeout",
            "log_statement",
            "default_transaction_isolation",
            "synchronous_commit",
            "vacuum_cost_delay",
            "lock_timeout",
        ] {
            assert!(!changes_reading(name), "{name}");
        }
        assert_eq!(meaning_of("timezone"), Meaning::Literals);
        assert_eq!(meaning_of("search_path"), Meaning::Anything);
        assert_eq!(meaning_of("client_encoding"), Meaning::Anything);
    }
}
