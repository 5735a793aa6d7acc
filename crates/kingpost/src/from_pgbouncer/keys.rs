//! Every key that PgBouncer 1.25 documents, and what becomes of it. The table of docs/guide/pgbouncer.md is made from this one.

/// Where a key stands in PgBouncer's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// `[pgbouncer]`
    Pgbouncer,
    /// In a line of `[databases]`.
    Databases,
    /// In a line of `[users]`.
    Users,
    /// In a line of `[peers]`.
    Peers,
}

impl Section {
    /// All, in the order of PgBouncer's documentation.
    pub(super) const ALL: [Section; 4] = [Section::Pgbouncer, Section::Databases, Section::Users, Section::Peers];

    /// As it stands between the brackets.
    pub(super) fn name(self) -> &'static str {
        match self {
            Section::Pgbouncer => "pgbouncer",
            Section::Databases => "databases",
            Section::Users => "users",
            Section::Peers => "peers",
        }
    }
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// It becomes this key of Kingpost's.
    Carried(&'static str),
    /// It is left out, and a comment says why: nothing that a client, a login or an operator relies on is lost.
    Needless,
    /// An error, unless it has one of these values: with them PgBouncer does what Kingpost does anyway.
    Refused(&'static [&'static str]),
}

/// A key of PgBouncer's.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) section: Section,
    pub(super) name: &'static str,
    pub(super) fate: Fate,
    /// What is special about the translation, or why there is none.
    pub(super) note: &'static str,
}

/// The key of this name; None: PgBouncer 1.25 documents no such key.
pub(super) fn find(section: Section, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section == section && key.name == name)
}

const fn carried(section: Section, name: &'static str, to: &'static str, note: &'static str) -> Key {
    Key { section, name, fate: Fate::Carried(to), note }
}

const fn needless(section: Section, name: &'static str, note: &'static str) -> Key {
    Key { section, name, fate: Fate::Needless, note }
}

const fn refused(section: Section, name: &'static str, harmless: &'static [&'static str], note: &'static str) -> Key {
    Key { section, name, fate: Fate::Refused(harmless), note }
}

use Section::{Databases as D, Peers as R, Pgbouncer as P, Users as U};

const STANDARD_ERROR: &str = "Kingpost logs to standard error, which the service manager keeps";
const PROBED: &str = "Kingpost probes every node";
const RESOLVED: &str = "host names are resolved by the system, anew for each connection";
const INSIDE: &str = "concerns PgBouncer's inside only";
const OWN_LOOKUP: &str = "Kingpost has one lookup for all databases";
const CIPHERS: &str = "Kingpost offers the safe cipher suites of TLS 1.2 and 1.3, and has no list of them";

/// The table.
pub(super) const KEYS: &[Key] = &[
    needless(P, "logfile", STANDARD_ERROR),
    needless(P, "pidfile", "Kingpost stays in the foreground: the service manager knows its process"),
    carried(P, "listen_addr", "proxy.listen", "`*` becomes `[::]`, which is every address of IPv4 and IPv6"),
    carried(P, "listen_port", "proxy.listen", ""),
    carried(
        P,
        "unix_socket_dir",
        "proxy.listen",
        "`DIRECTORY/.s.PGSQL.PORT`. Without the key PgBouncer's directory depends on who built it: a socket is carried over where the key is there, or nothing else listens",
    ),
    carried(P, "unix_socket_mode", "proxy.listen.mode", "without it: 0777, as in PgBouncer"),
    carried(P, "unix_socket_group", "proxy.listen.group", ""),
    needless(P, "user", "the service manager starts Kingpost as the right user (`User=` in the unit)"),
    carried(P, "pool_mode", "proxy.pool.mode", "without it: session, as in PgBouncer"),
    carried(P, "max_client_conn", "proxy.max_clients", "without it: 100, as in PgBouncer"),
    carried(P, "default_pool_size", "proxy.pool.size", "without it: 20, as in PgBouncer"),
    carried(P, "min_pool_size", "proxy.pool.min_size", "to the primary, while there are clients"),
    carried(P, "reserve_pool_size", "proxy.pool.reserve_size", ""),
    carried(
        P,
        "reserve_pool_timeout",
        "proxy.pool.reserve_timeout",
        "with 0 PgBouncer has no reserve: then the size is left out",
    ),
    carried(P, "max_db_connections", "proxy.pool.max_database_connections", "to one node"),
    carried(
        P,
        "max_db_client_connections",
        "proxy.databases.max_clients",
        "of every database that has none of its own",
    ),
    carried(
        P,
        "max_user_connections",
        "proxy.pool.max_user_connections",
        "to one node; of the user that clients log in as",
    ),
    carried(P, "max_user_client_connections", "proxy.max_clients_per_user", ""),
    needless(
        P,
        "server_round_robin",
        "which idle connection is taken matters to nobody: each node has a pool of its own",
    ),
    needless(P, "track_extra_parameters", "all parameters that a client sets move with it"),
    needless(
        P,
        "ignore_startup_parameters",
        "start-up parameters are passed on to the servers, and move with the client",
    ),
    carried(P, "peer_id", "proxy.peer_id", "1 to 31"),
    refused(P, "disable_pqexec", &["0"], "Kingpost takes simple queries from everybody"),
    refused(P, "application_name_add_host", &["0"], "Kingpost leaves application_name as it is"),
    needless(P, "conffile", "Kingpost's file is named by `--config`"),
    needless(P, "service_name", "the unit's name says so"),
    needless(P, "job_name", "the unit's name says so"),
    needless(P, "stats_period", "rates are for the metrics' reader to compute"),
    carried(
        P,
        "max_prepared_statements",
        "proxy.pool.prepared_per_server",
        "0 is left out: prepared statements always work",
    ),
    refused(
        P,
        "scram_iterations",
        &["4096"],
        "Kingpost computes verifiers of plain-text passwords with 4096 iterations: give it verifiers instead",
    ),
    carried(
        P,
        "auth_type",
        "proxy.auth",
        "`trust`, `md5`, `scram-sha-256`, `cert` and `hba`; `pam` (with PgBouncer's service, `pgbouncer`) and `ldap` become rules in `proxy.hba`, for users that auth_file or `[users]` names; `any` and `plain` are errors. Without it: md5, as in PgBouncer",
    ),
    carried(
        P,
        "auth_hba_file",
        "proxy.hba_file",
        "with `auth_type = hba` only: otherwise PgBouncer does not read it either",
    ),
    carried(
        P,
        "auth_ident_file",
        "proxy.ident_file",
        "with `auth_type = hba` only: otherwise PgBouncer does not read it either",
    ),
    carried(
        P,
        "auth_file",
        "proxy.users, proxy.operators",
        "users whose secret cannot serve the `auth_type` are left out, with a comment",
    ),
    carried(P, "auth_user", "proxy.auth_query.user", "its password, from auth_file, has to be in plain text or absent"),
    carried(
        P,
        "auth_query",
        "proxy.auth_query.query",
        "PgBouncer's default before 1.24.1, which lets in expired roles (CVE-2025-2291), becomes today's default. Without auth_user PgBouncer asks nobody: then it is left out",
    ),
    carried(P, "auth_dbname", "proxy.auth_query.database", ""),
    carried(P, "auth_ldap_options", "proxy.hba", "with `auth_type = ldap`: the options of the method `ldap`"),
    needless(P, "syslog", STANDARD_ERROR),
    needless(P, "syslog_ident", STANDARD_ERROR),
    needless(P, "syslog_facility", STANDARD_ERROR),
    carried(P, "log_connections", "proxy.log_logins", "1, also PgBouncer's default, is `all`, 0 is `refused`"),
    needless(P, "log_disconnections", "`SHOW CLIENTS` and the metrics tell of clients"),
    needless(P, "log_pooler_errors", "the metrics count them"),
    needless(P, "log_stats", "the metrics have them"),
    needless(P, "verbose", "log.level says how much is logged"),
    carried(
        P,
        "admin_users",
        "proxy.operators",
        "each needs a usable secret in auth_file: operators are not looked up",
    ),
    carried(P, "stats_users", "proxy.operators", "with `role = \"viewer\"`"),
    refused(
        P,
        "server_reset_query",
        &["", "DISCARD ALL"],
        "Kingpost clears what a client leaves by itself, with DISCARD ALL where that is needed",
    ),
    needless(P, "server_reset_query_always", "a connection with anything left in its session is always cleaned"),
    needless(P, "server_check_delay", PROBED),
    needless(P, "server_check_query", PROBED),
    refused(
        P,
        "server_fast_close",
        &["0"],
        "Kingpost lets a client in session mode keep its server connection at a reload",
    ),
    carried(P, "server_lifetime", "proxy.pool.server_lifetime", ""),
    carried(P, "server_idle_timeout", "proxy.pool.server_idle_timeout", ""),
    carried(P, "server_connect_timeout", "proxy.pool.connect_timeout", "without it: 15 s, as in PgBouncer"),
    needless(P, "server_login_retry", "Kingpost waits longer after each failure, from milliseconds on"),
    carried(P, "client_login_timeout", "proxy.login_timeout", "without it: 60 s, as in PgBouncer; 0 is an error"),
    needless(P, "autodb_idle_timeout", "a pool that nobody uses is forgotten by itself"),
    needless(P, "dns_max_ttl", RESOLVED),
    needless(P, "dns_nxdomain_ttl", RESOLVED),
    needless(P, "dns_zone_check_period", RESOLVED),
    refused(P, "resolv_conf", &[""], "Kingpost uses the system's resolver"),
    carried(P, "query_wait_notify", "proxy.pool.wait_notice", "without it: 5 s, as in PgBouncer"),
    carried(
        P,
        "client_tls_sslmode",
        "proxy.tls.mode, proxy.tls.client_cert",
        "`prefer` is `allow`; `verify-ca` and `verify-full` are `require` with `client_cert = \"verify-ca\"`, which is what both mean in PgBouncer",
    ),
    carried(P, "client_tls_key_file", "proxy.tls.key_file", ""),
    carried(P, "client_tls_cert_file", "proxy.tls.cert_file", ""),
    carried(
        P,
        "client_tls_ca_file",
        "proxy.tls.ca_file",
        "in a mode that does not insist on certificates with `client_cert = \"optional\"`: one that a client shows is verified, as in PgBouncer",
    ),
    carried(P, "client_tls_protocols", "proxy.tls.min_protocol_version", "TLS 1.0 and 1.1 are never offered"),
    refused(P, "client_tls_ciphers", &["", "default", "secure", "fast", "normal"], CIPHERS),
    refused(P, "client_tls13_ciphers", &[""], CIPHERS),
    refused(P, "client_tls_ecdhcurve", &["", "auto"], CIPHERS),
    needless(P, "client_tls_dheparams", "Kingpost offers no finite-field Diffie-Hellman"),
    carried(P, "server_tls_sslmode", "cluster.tls.mode", "without it: prefer, as in PgBouncer; `allow` is `prefer`"),
    carried(
        P,
        "server_tls_ca_file",
        "cluster.tls.ca_file",
        "left out where the mode does not verify certificates: PgBouncer does not use it then, Kingpost would",
    ),
    carried(P, "server_tls_key_file", "cluster.tls.key_file", ""),
    carried(P, "server_tls_cert_file", "cluster.tls.cert_file", ""),
    carried(P, "server_tls_protocols", "cluster.tls.min_protocol_version", "TLS 1.0 and 1.1 are never used"),
    refused(P, "server_tls_ciphers", &["", "default", "secure", "fast", "normal"], CIPHERS),
    refused(P, "server_tls13_ciphers", &[""], CIPHERS),
    carried(P, "query_timeout", "proxy.query_timeout", ""),
    carried(
        P,
        "query_wait_timeout",
        "proxy.pool.wait_timeout",
        "without it: 120 s, as in PgBouncer; 0 is an error. A client that has waited for so long gets an error and stays connected",
    ),
    needless(P, "cancel_wait_timeout", "a cancel request takes no place in a pool"),
    carried(P, "client_idle_timeout", "proxy.client_idle_timeout", ""),
    carried(P, "idle_transaction_timeout", "proxy.idle_transaction_timeout", ""),
    carried(P, "transaction_timeout", "proxy.transaction_timeout", ""),
    needless(
        P,
        "suspend_timeout",
        "SUSPEND waits until all answers are delivered, or RESUME comes; a new process takes over the sockets (proxy.upgrade_socket)",
    ),
    needless(P, "pkt_buf", INSIDE),
    needless(
        P,
        "max_packet_size",
        "messages are passed on in pieces; proxy.max_statement_bytes and proxy.buffer_limit bound what is kept",
    ),
    needless(P, "listen_backlog", INSIDE),
    needless(P, "sbuf_loopcnt", INSIDE),
    needless(P, "so_reuseport", "one process uses every core (proxy.workers)"),
    needless(P, "tcp_defer_accept", INSIDE),
    needless(P, "tcp_socket_buffer", INSIDE),
    needless(P, "tcp_keepalive", "connections have keep-alives, with the system's times"),
    needless(P, "tcp_keepcnt", "set by the system: net.ipv4.tcp_keepalive_probes"),
    needless(P, "tcp_keepidle", "set by the system: net.ipv4.tcp_keepalive_time"),
    needless(P, "tcp_keepintvl", "set by the system: net.ipv4.tcp_keepalive_intvl"),
    refused(P, "tcp_user_timeout", &["0"], "set by the system: net.ipv4.tcp_retries2"),
    carried(D, "dbname", "proxy.databases.dbname", ""),
    carried(
        D,
        "host",
        "cluster.nodes.address",
        "one node for each host; databases that lead to different servers get clusters of their own, unless --same-cluster is said",
    ),
    carried(D, "port", "cluster.nodes.address", ""),
    carried(D, "user", "proxy.databases.server_user", ""),
    carried(
        D,
        "password",
        "proxy.databases.server_password",
        "without it: the one that auth_file has for `user`, which has to be in plain text or an MD5 hash. Without `user` PgBouncer does not use it",
    ),
    refused(D, "auth_user", &[""], OWN_LOOKUP),
    refused(D, "auth_query", &[""], OWN_LOOKUP),
    refused(D, "auth_dbname", &[""], OWN_LOOKUP),
    carried(D, "pool_size", "proxy.databases.pool_size", ""),
    carried(D, "min_pool_size", "proxy.databases.min_pool_size", "to the primary, while there are clients"),
    carried(D, "reserve_pool_size", "proxy.databases.reserve_pool_size", ""),
    carried(D, "reserve_pool", "proxy.databases.reserve_pool_size", "the old name of reserve_pool_size"),
    carried(D, "connect_query", "proxy.databases.connect_query", "run again when a session was reset"),
    carried(D, "pool_mode", "proxy.databases.pool_mode", ""),
    needless(D, "load_balance_hosts", "Kingpost finds out which host is the primary"),
    carried(D, "max_db_connections", "proxy.databases.max_connections", "to one node"),
    carried(D, "max_db_client_connections", "proxy.databases.max_clients", ""),
    carried(D, "server_lifetime", "proxy.databases.server_lifetime", ""),
    refused(
        D,
        "client_encoding",
        &["", "utf8", "UTF8", "utf-8", "UTF-8", "unicode", "UNICODE"],
        "clients set their encoding themselves",
    ),
    carried(D, "datestyle", "proxy.databases.parameters", ""),
    carried(D, "timezone", "proxy.databases.parameters", ""),
    carried(U, "pool_size", "proxy.users.pool_size", ""),
    carried(U, "reserve_pool_size", "proxy.users.reserve_pool_size", ""),
    carried(U, "pool_mode", "proxy.users.pool_mode", ""),
    carried(
        U,
        "max_user_connections",
        "proxy.users.max_connections",
        "to one node; of the user that clients log in as",
    ),
    carried(U, "query_timeout", "proxy.users.query_timeout", ""),
    carried(U, "idle_transaction_timeout", "proxy.users.idle_transaction_timeout", ""),
    carried(U, "transaction_timeout", "proxy.users.transaction_timeout", ""),
    carried(U, "client_idle_timeout", "proxy.users.client_idle_timeout", ""),
    carried(U, "max_user_client_connections", "proxy.users.max_clients", ""),
    carried(
        R,
        "host",
        "proxy.peers.address",
        "an IP address or a directory: host names are errors. The entry of `peer_id` itself is left out",
    ),
    carried(R, "port", "proxy.peers.address", ""),
    needless(R, "pool_size", "cancel requests take no place in a pool"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the guide's table for a section.
    fn rows(section: Section) -> Vec<String> {
        let mut rows = Vec::new();
        for key in KEYS.iter().filter(|key| key.section == section) {
            let (becomes, note) = match key.fate {
                Fate::Carried(to) => {
                    let to: Vec<String> = to.split(", ").map(|key| format!("`{key}`")).collect();
                    (to.join(", "), key.note.to_owned())
                }
                Fate::Needless => ("not needed".to_owned(), key.note.to_owned()),
                Fate::Refused([]) => ("an error".to_owned(), key.note.to_owned()),
                Fate::Refused(harmless) => {
                    let named = |value: &&str| if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") };
                    let harmless: Vec<String> = harmless.iter().map(named).collect();
                    (format!("an error, unless {}", harmless.join(" or ")), key.note.to_owned())
                }
            };
            rows.push(format!("| `{}` | {becomes} | {note} |", key.name));
        }
        rows
    }

    #[test]
    fn the_guide_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/pgbouncer.md");
        let guide = std::fs::read_to_string(path).expect("docs/guide/pgbouncer.md");
        for section in Section::ALL {
            let begin = format!("### `[{}]`\n", section.name());
            let part = guide.split(&begin).nth(1).unwrap_or_else(|| panic!("{path} has no heading {begin:?}"));
            let part = part.split("\n#").next().unwrap_or_default();
            let found: Vec<&str> = part.lines().filter(|line| line.starts_with("| `")).collect();
            assert_eq!(found, rows(section), "[{}]: the table should be\n{}", section.name(), rows(section).join("\n"));
        }
    }

    #[test]
    fn no_key_is_there_twice() {
        for (index, key) in KEYS.iter().enumerate() {
            let twice = KEYS[index + 1..].iter().any(|other| (other.section, other.name) == (key.section, key.name));
            assert!(!twice, "[{}] {}", key.section.name(), key.name);
            assert!(!key.note.is_empty() || matches!(key.fate, Fate::Carried(_)), "{}: no reason", key.name);
        }
    }
}
