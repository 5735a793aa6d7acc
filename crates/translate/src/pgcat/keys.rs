//! Every key that PgCat 1.3.0 documents (CONFIG.md) or reads (src/config.rs).

use crate::keys::{KEEP_ALIVE, Key, PROBED, RESOLVED, Table, carried, needless, refused};

pub(super) const G: &str = "general";
pub(super) const P: &str = "pools.NAME";
pub(super) const U: &str = "pools.NAME.users.N";
pub(super) const S: &str = "pools.NAME.shards.N";
/// Section of the plugins, of all pools or of one.
pub(super) const L: &str = "plugins";

const SHARDS: &str = "Kingpost does not shard";
const ONE_LOOKUP: &str = "of all pools that need it one and the same: Kingpost has one lookup for all databases";
const ROUTING: &str = "of its own only with db_activity_based_routing, which is an error";

pub(super) const TABLE: Table = Table { program: "PgCat 1.3.0", sections: &[G, P, U, S, L], keys: KEYS };

const KEYS: &[Key] = &[
    carried(G, "host", "proxy.listen", "without it: 0.0.0.0, as in PgCat"),
    carried(
        G,
        "port",
        "proxy.listen",
        "without it: 5432, which is what PgCat takes, though its documentation says 6432",
    ),
    carried(
        G,
        "enable_prometheus_exporter",
        "metrics.listen",
        "the metrics have Kingpost's names. Without it: as Kingpost has it, on 127.0.0.1:9632",
    ),
    carried(
        G,
        "prometheus_exporter_port",
        "metrics.listen",
        "without it: 9930, as in PgCat; with `metrics.allow_remote` where `host` is no loopback address, as PgCat lets everybody read them",
    ),
    carried(
        G,
        "connect_timeout",
        "proxy.pool.wait_timeout",
        "without it: 1 s, as in PgCat. It is how long a client waits for a server connection",
    ),
    carried(G, "idle_timeout", "proxy.pool.server_idle_timeout", "without it: 10 min, as in PgCat"),
    carried(G, "server_lifetime", "proxy.pool.server_lifetime", "without it: 1 h, as in PgCat"),
    needless(
        G,
        "server_round_robin",
        "which idle connection is taken matters to nobody: each node has a pool of its own",
    ),
    carried(
        G,
        "server_tls",
        "cluster.tls.mode",
        "true is `prefer`: PgCat goes on in clear where the server has no TLS. false, and without it: `disable`",
    ),
    carried(
        G,
        "verify_server_certificate",
        "cluster.tls.mode, cluster.tls.ca_file",
        "with server_tls: `verify-full`, and no server without TLS any more. PgCat has a list of public CAs built in; in its place is the system's, /etc/ssl/certs/ca-certificates.crt",
    ),
    needless(G, "verify_config", "what is written was checked; `kingpost check` does it again"),
    needless(G, "validate_config", "what is written was checked; `kingpost check` does it again"),
    carried(G, "idle_client_in_transaction_timeout", "proxy.idle_transaction_timeout", ""),
    needless(G, "healthcheck_timeout", PROBED),
    needless(G, "healthcheck_delay", PROBED),
    needless(G, "shutdown_timeout", "`kingpost proxy --grace` says how long clients have at the end"),
    needless(G, "ban_time", "a node is used again as soon as it answers probes"),
    carried(G, "log_client_connections", "proxy.log_logins", "true is `all`; false, and without it, `refused`"),
    needless(G, "log_client_disconnections", "`SHOW CLIENTS` and the metrics tell of clients"),
    refused(
        G,
        "autoreload",
        &["0"],
        "Kingpost reads its file again when it is told to: by SIGHUP, or RELOAD in the console",
    ),
    carried(G, "worker_threads", "proxy.workers", "without it: one for each core"),
    needless(G, "tcp_keepalives_idle", KEEP_ALIVE),
    needless(G, "tcp_keepalives_count", KEEP_ALIVE),
    needless(G, "tcp_keepalives_interval", KEEP_ALIVE),
    refused(G, "tcp_user_timeout", &["0"], "set by the system: net.ipv4.tcp_retries2"),
    carried(
        G,
        "tls_certificate",
        "proxy.tls.cert_file, proxy.tls.mode",
        "with it the mode is `allow`, as in PgCat: who asks for TLS gets it",
    ),
    carried(G, "tls_private_key", "proxy.tls.key_file", ""),
    carried(
        G,
        "admin_username",
        "proxy.operators",
        "the console's database is called `kingpost` or `pgbouncer`; PgCat's name `pgcat` is not known",
    ),
    carried(G, "admin_password", "proxy.operators.password", ""),
    carried(
        G,
        "admin_auth_type",
        "proxy.hba",
        "`md5` and `trust`; without it: md5. By trust only admin_username comes in",
    ),
    carried(
        G,
        "auth_query",
        "proxy.auth_query.query",
        "of all pools that need it one and the same. `'$1'`, where PgCat writes the name, is the parameter `$1`. A query that lets in expired roles (CVE-2025-2291) is replaced. Left out where every user has a password",
    ),
    carried(G, "auth_query_user", "proxy.auth_query.user", ONE_LOOKUP),
    carried(G, "auth_query_password", "proxy.auth_query.password", ONE_LOOKUP),
    needless(G, "dns_cache_enabled", RESOLVED),
    needless(G, "dns_max_ttl", RESOLVED),
    needless(G, "prepared_statements_cache_size", "the documentation has it here; PgCat 1.3.0 reads it in pools"),
    carried(
        P,
        "pool_mode",
        "proxy.databases.pool_mode",
        "without it: transaction, as in PgCat. Session mode together with reads on replicas is an error: in session mode Kingpost sends everything to the primary",
    ),
    needless(P, "load_balancing_mode", "Kingpost gives a read to the less loaded of two replicas chosen at random"),
    refused(
        P,
        "checkout_failure_limit",
        &["0"],
        "a client that got no server connection in time gets an error and stays connected",
    ),
    carried(
        P,
        "default_role",
        "proxy.databases.route",
        "`primary`, `replica`; `any`, and without it, is `auto` with a `primary_weight` of 1: writes never go to a replica. Without replicas: `primary`",
    ),
    refused(
        P,
        "db_activity_based_routing",
        &["false"],
        "what others have just written is seen on replicas with `consistency = \"strong\"` only, which needs relays; what the client itself has written always is",
    ),
    needless(P, "db_activity_based_ms_init_delay", ROUTING),
    needless(P, "db_activity_init_delay", ROUTING),
    needless(P, "db_activity_ttl", ROUTING),
    needless(P, "table_mutation_cache_ms_ttl", ROUTING),
    carried(
        P,
        "prepared_statements_cache_size",
        "proxy.pool.prepared_per_server",
        "0 is left out: prepared statements always work. Of all pools one and the same",
    ),
    carried(P, "query_parser_enabled", "proxy.databases.route", "with query_parser_read_write_splitting: `auto`"),
    carried(P, "query_parser_read_write_splitting", "proxy.databases.route", "with query_parser_enabled: `auto`"),
    needless(
        P,
        "query_parser_max_length",
        "proxy.max_statement_bytes says how long a statement may be that is looked at; longer ones go to the primary",
    ),
    carried(
        P,
        "primary_reads_enabled",
        "proxy.routing.primary_weight",
        "true is 1, false is 0: then the primary answers reads where no replica can. Of all pools with reads on replicas one and the same",
    ),
    refused(P, "sharding_key_regex", &[""], SHARDS),
    refused(P, "shard_id_regex", &[""], SHARDS),
    needless(P, "regex_search_limit", "of sharding_key_regex and shard_id_regex, which are errors"),
    refused(P, "sharding_function", &["pg_bigint_hash", "sha1"], SHARDS),
    refused(P, "default_shard", &["shard_0"], SHARDS),
    refused(P, "automatic_sharding_key", &[""], SHARDS),
    carried(P, "auth_query", "proxy.auth_query.query", ONE_LOOKUP),
    carried(P, "auth_query_user", "proxy.auth_query.user", ONE_LOOKUP),
    carried(P, "auth_query_password", "proxy.auth_query.password", ONE_LOOKUP),
    carried(P, "idle_timeout", "proxy.pool.server_idle_timeout", "of all pools one and the same"),
    carried(P, "connect_timeout", "proxy.pool.wait_timeout", "of all pools one and the same"),
    carried(P, "server_lifetime", "proxy.databases.server_lifetime", ""),
    refused(
        P,
        "cleanup_server_connections",
        &["true"],
        "Kingpost clears what a client leaves before another one gets the server connection",
    ),
    needless(P, "log_client_parameter_status_changes", "parameters that a client sets move with it"),
    carried(U, "username", "proxy.users.name, proxy.hba", "rules let each user into its own pools only, as PgCat does"),
    carried(
        U,
        "password",
        "proxy.users.password",
        "of a user in several pools of one cluster one and the same. Without it the user is looked up by auth_query",
    ),
    carried(U, "auth_type", "proxy.hba.method", "`md5` and `trust`; without it: md5, as in PgCat"),
    carried(U, "server_username", "proxy.databases.server_user", "of all users of a pool one and the same"),
    carried(U, "server_password", "proxy.databases.server_password", "without it: password, as in PgCat"),
    carried(
        U,
        "pool_size",
        "proxy.pool.size, proxy.databases.pool_size, proxy.users.pool_size",
        "the same for all, for a pool, or for a user",
    ),
    carried(
        U,
        "min_pool_size",
        "proxy.pool.min_size, proxy.databases.min_pool_size",
        "the same for all, or for a pool; to the primary, while there are clients",
    ),
    carried(U, "pool_mode", "proxy.databases.pool_mode, proxy.users.pool_mode", "without it: the pool's"),
    carried(
        U,
        "server_lifetime",
        "proxy.databases.server_lifetime",
        "without it: the pool's; the same for all users of a pool",
    ),
    carried(U, "statement_timeout", "proxy.databases.query_timeout, proxy.users.query_timeout", "0 is left out"),
    carried(U, "connect_timeout", "proxy.pool.wait_timeout", "without it: the pool's; the same everywhere"),
    carried(U, "idle_timeout", "proxy.pool.server_idle_timeout", "without it: the pool's; the same everywhere"),
    carried(
        S,
        "servers",
        "cluster.nodes.address",
        "roles say where reads may go; which server is the primary is found out. Pools on different servers get clusters of their own, unless --same-cluster is said. A second shard, and the role `mirror`, are errors",
    ),
    refused(S, "mirrors", &[""], "Kingpost sends nothing to a second server"),
    carried(S, "database", "proxy.databases.dbname", ""),
    refused(L, "intercept", &["off"], "Kingpost answers no statement in a server's place"),
    refused(
        L,
        "table_access",
        &["off"],
        "Kingpost has no list of forbidden tables: take the rights away on the servers (REVOKE)",
    ),
    refused(L, "query_logger", &["off"], "Kingpost logs slow statements only (proxy.slow_statement)"),
    carried(
        L,
        "prewarmer",
        "proxy.databases.connect_query",
        "the queries one after another; they run again when a session was reset",
    ),
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_guide_has_this_table() {
        crate::keys::tests::the_guide_has(&super::TABLE, "pgcat.md");
    }

    #[test]
    fn the_code_reads_what_this_table_has() {
        crate::keys::tests::the_code_reads(&super::TABLE, &[include_str!("pools.rs"), include_str!("translate.rs")]);
    }
}
