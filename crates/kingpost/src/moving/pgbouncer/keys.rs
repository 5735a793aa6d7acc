//! Every key that PgBouncer documents up to 1.26.1, including those that 1.26 has dropped, with its fate. The table of docs/guide/pgbouncer.md is
//! generated from this one.

use super::super::keys::{
    CIPHERS, KEEP_ALIVE, Key, PROBED, RESOLVED, STANDARD_ERROR, Table, carried, needless, refused,
};

/// `[pgbouncer]`
pub(super) const P: &str = "pgbouncer";
/// Section of a line of `[databases]`.
pub(super) const D: &str = "databases";
/// Section of a line of `[users]`.
pub(super) const U: &str = "users";
/// Section of a line of `[peers]`.
pub(super) const R: &str = "peers";

const INSIDE: &str = "concerns PgBouncer's inside only";
const OWN_LOOKUP: &str = "Kingpost has one lookup for all databases";
const ONE_WAIT: &str = "Kingpost has one for all: proxy.pool.wait_timeout, which query_wait_timeout in `[pgbouncer]` becomes. Statements themselves have a limit for each database and user: query_timeout";

/// The table.
pub(in super::super) const TABLE: Table = Table { program: "PgBouncer 1.26", sections: &[P, D, U, R], keys: KEYS };

const KEYS: &[Key] = &[
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
    needless(
        P,
        "pool_idle_timeout",
        "a pool without clients and server connections is forgotten by itself after a minute",
    ),
    needless(P, "dns_max_ttl", RESOLVED),
    needless(P, "dns_nxdomain_ttl", RESOLVED),
    needless(P, "dns_zone_check_period", RESOLVED),
    refused(P, "resolv_conf", &[""], "Kingpost uses the system's resolver"),
    carried(P, "query_wait_notify", "proxy.pool.wait_notice", "without it: 5 s, as in PgBouncer"),
    refused(
        P,
        "login_notify_message",
        &[""],
        "Kingpost sends no notice after a login: leave it out with --ignore, and tell your users of the proxy by its host name or port",
    ),
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
        "left out where the mode does not verify certificates: PgBouncer does not use it then, Kingpost would. With verify-ca or verify-full and without it: the system's, /etc/ssl/certs/ca-certificates.crt, as PgBouncer is built",
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
        "dropped by PgBouncer 1.26. SUSPEND waits until all answers are delivered, or RESUME comes; a new process takes over the sockets (proxy.upgrade_socket)",
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
    needless(P, "tcp_keepalive", KEEP_ALIVE),
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
    refused(D, "query_wait_timeout", &["-1"], ONE_WAIT),
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
    refused(U, "query_wait_timeout", &["-1"], ONE_WAIT),
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
    #[test]
    fn the_guide_has_this_table() {
        super::super::super::keys::tests::the_guide_has(&super::TABLE, "pgbouncer.md");
    }
}
