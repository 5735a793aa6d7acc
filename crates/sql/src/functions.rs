//! Which functions a replica may run: PostgreSQL's own that only read, less those whose answer is about the node, the
//! session or the transaction rather than the data, plus what the operator names.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Written by `functions.sh`: all overloads immutable or stable.
static STABLE: &str = include_str!("functions.txt");
/// Written by `functions.sh`: PostgreSQL's other functions.
static OTHER: &str = include_str!("functions-other.txt");

/// PostgreSQL's own, but they run a text that they are given.
const RUN_TEXTS: [&str; 10] = [
    "cursor_to_xml",
    "cursor_to_xmlschema",
    "pg_extension_update_paths",
    "query_to_xml",
    "query_to_xml_and_xmlschema",
    "query_to_xmlschema",
    "ts_rewrite",
    "ts_stat",
    "xpath_table",
    "xslt_process",
];

/// Volatile by declaration, harmless in a read; and some newer than the generated list.
const ALSO: [&str; 34] = [
    "any_value",
    "array_reverse",
    "array_sample",
    "array_shuffle",
    "array_sort",
    "casefold",
    "clock_timestamp",
    "crc32",
    "crc32c",
    "date_add",
    "date_subtract",
    "erf",
    "erfc",
    "gamma",
    "gen_random_uuid",
    "lgamma",
    "pg_basetype",
    "pg_column_toast_chunk_id",
    "pg_database_size",
    "pg_indexes_size",
    "pg_input_is_valid",
    "pg_relation_size",
    "pg_table_size",
    "pg_tablespace_size",
    "pg_total_relation_size",
    "random",
    "random_normal",
    "timeofday",
    "to_bin",
    "to_oct",
    "unicode_assigned",
    "uuid_extract_timestamp",
    "uuidv4",
    "uuidv7",
];

/// About the node, the session or the transaction; or given SQL to run.
const NOT: [&str; 24] = [
    "current_setting",
    "cursor_to_xml",
    "inet_client_addr",
    "inet_client_port",
    "inet_server_addr",
    "inet_server_port",
    "pg_available_extension_versions",
    "pg_available_extensions",
    "pg_backend_pid",
    "pg_blocking_pids",
    "pg_conf_load_time",
    "pg_config",
    "pg_cursor",
    "pg_extension_update_paths",
    "pg_get_replication_slots",
    "pg_is_other_temp_schema",
    "pg_listening_channels",
    "pg_my_temp_schema",
    "pg_prepared_statement",
    "pg_prepared_xact",
    "pg_settings_get_flags",
    "pg_show_all_settings",
    "ts_rewrite",
    "ts_stat",
];

fn is_denied(name: &str) -> bool {
    NOT.binary_search(&name).is_ok()
        || ["pg_advisory", "pg_try_advisory", "pg_current_", "pg_last_", "pg_stat_", "pg_postmaster_", "txid_", "lo_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        || ["pg_snapshot_", "pg_wal", "pg_lock", "pg_event_trigger_", "pg_replication_", "pg_is_", "pg_read_", "pg_ls_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        || name.ends_with("_in_snapshot")
        || name.contains("_to_xml")
        || (name.starts_with("pg_") && name.contains("xact"))
}

static READ: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    let mut read: HashSet<&str> = STABLE.lines().filter(|name| !is_denied(name)).collect();
    read.extend(ALSO);
    read
});

static OWN: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
    STABLE.lines().chain(OTHER.lines()).chain(ALSO).filter(|name| !RUN_TEXTS.contains(name)).collect()
});

/// What the operator's list adds to PostgreSQL's own.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    configured: HashSet<String>,
}

impl Functions {
    pub(crate) fn new(configured: Vec<String>) -> Functions {
        Functions { configured: configured.into_iter().collect() }
    }

    /// Is it PostgreSQL's own, and only reads?
    pub(crate) fn is_own(schema: &str, name: &str) -> bool {
        matches!(schema, "" | "pg_catalog") && READ.contains(name)
    }

    /// Is it known what it leaves in the session? PostgreSQL's own are, and what the operator says only reads.
    pub(crate) fn knows(&self, schema: &str, name: &str) -> bool {
        (matches!(schema, "" | "pg_catalog") && OWN.contains(name)) || self.reads(schema, name)
    }

    /// May a replica run it? `schema` is empty if the text names none.
    pub(crate) fn reads(&self, schema: &str, name: &str) -> bool {
        match schema {
            "" => READ.contains(name) || self.configured.contains(name),
            "pg_catalog" => READ.contains(name),
            _ => !self.configured.is_empty() && self.configured.contains(&format!("{schema}.{name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted() {
        assert!(ALSO.is_sorted());
        assert!(NOT.is_sorted());
        assert!(STABLE.lines().is_sorted());
        assert!(OTHER.lines().is_sorted());
        assert!(RUN_TEXTS.is_sorted());
    }

    #[test]
    fn what_is_known_to_leave_nothing_unseen() {
        let functions = Functions::new(vec!["my_area".into()]);
        for name in ["now", "nextval", "pg_notify", "count", "lo_open", "uuidv7", "my_area", "pg_sleep", "set_config"] {
            assert!(functions.knows("", name), "{name}");
        }
        for name in ["login", "dblink_connect", "query_to_xml", "st_area", ""] {
            assert!(!functions.knows("", name), "{name}");
        }
        assert!(functions.knows("pg_catalog", "now") && !functions.knows("public", "now"));
    }

    #[test]
    fn built_in() {
        let functions = Functions::default();
        for name in ["now", "count", "lower", "random", "format_type", "pg_get_expr", "generate_series", "row_number"] {
            assert!(functions.reads("", name), "{name}");
            assert!(functions.reads("pg_catalog", name), "{name}");
            assert!(!functions.reads("public", name), "{name}");
        }
        for name in [
            "nextval",
            "set_config",
            "setval",
            "pg_is_in_recovery",
            "pg_backend_pid",
            "txid_current",
            "pg_sleep",
            "pg_advisory_lock",
            "pg_notify",
            "lo_import",
            "dblink",
            "query_to_xml",
            "table_to_xml",
            "pg_stat_get_wal",
            "pg_current_wal_lsn",
            "pg_last_wal_replay_lsn",
            "current_setting",
            "pg_read_file",
            "pg_export_snapshot",
            "pg_snapshot_xmin",
            "pg_visible_in_snapshot",
            "pg_current_xact_id",
            "ts_stat",
            "my_function",
            "",
            "pg_xact_commit_timestamp",
            "pg_terminate_backend",
            "pg_postmaster_start_time",
            "inet_server_addr",
        ] {
            assert!(!functions.reads("", name), "{name}");
            assert!(!functions.reads("pg_catalog", name), "{name}");
        }
    }

    #[test]
    fn configured() {
        let functions = Functions::new(vec!["my_area".into(), "geo.length".into()]);
        assert!(functions.reads("", "my_area"));
        assert!(functions.reads("geo", "length"));
        assert!(!functions.reads("geo", "my_area"));
        assert!(!functions.reads("pg_catalog", "my_area"));
    }
}
