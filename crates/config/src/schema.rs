//! Every key of the file, with the kind of its value.
//!
//! The configuration's types belong to the parts (`proxy::config`, `topology::config`). This table makes it possible to report all wrong keys and
//! values at once, with their places, and to read environment variables. A test compares the two.

use super::problem::{Problem, nearest};
use super::tree::{Tree, Value};

/// Kind of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Any string.
    Text,
    /// Any string, never shown.
    Secret,
    Boolean,
    Integer {
        min: i64,
        max: i64,
    },
    /// A number above 0, at most 1.
    Share,
    /// `"30s"`.
    Duration {
        /// True if `"0s"` is allowed.
        zero: bool,
    },
    Choice(&'static [&'static str]),
    /// `local`, `relay`, `quorum(n)`.
    Durability,
    /// An array of strings.
    Texts,
    /// An array of strings, never shown.
    Secrets,
    /// An array of strings or tables.
    TextsOrTables(&'static [Key]),
    Table(&'static [Key]),
    /// `[[…]]`.
    Tables(&'static [Key]),
}

/// A key of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// True if the table must have the key.
    pub(super) required: bool,
}

/// True if a key or table has this path, such as `proxy.users.password`, also in a list of tables.
pub fn has(path: &str) -> bool {
    let mut keys = ROOT;
    for step in path.split('.') {
        let Some(key) = keys.iter().find(|key| key.name == step) else { return false };
        keys = match key.kind {
            Kind::Table(inner) | Kind::Tables(inner) | Kind::TextsOrTables(inner) => inner,
            _ => &[],
        };
    }
    true
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind, required: false }
}

const fn required(name: &'static str, kind: Kind) -> Key {
    Key { name, kind, required: true }
}

const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

const POSITIVE: Kind = Kind::Duration { zero: false };
const OR_NEVER: Kind = Kind::Duration { zero: true };
const ROUTE: Kind = Kind::Choice(&["primary", "replica", "auto"]);
const UNNAMED: Kind = Kind::Choice(&["shared", "parsed"]);
const LANES: Kind = Kind::Choice(&["auto", "off"]);
const UNKNOWN_FUNCTIONS: Kind = Kind::Choice(&["trust", "reset", "pin"]);
const POOL_MODE: Kind = Kind::Choice(&["transaction", "statement", "session"]);
const CONSISTENCY: Kind = Kind::Choice(&["eventual", "session", "strong"]);
const ON_DEGRADED: Kind = Kind::Choice(&["wait", "local"]);
const FLUSH: Kind = Kind::Choice(&["commit", "batch", "batch-transaction"]);
const TLS_VERSION: Kind = Kind::Choice(&["TLSv1.2", "TLSv1.3"]);
/// Method of one user or operator.
const OWN_AUTH: Kind = Kind::Choice(&["scram-sha-256", "md5", "cert", "ldap", "pam"]);
const POOL_SIZE: Kind = integer(1, 10_000);

/// Keys of the whole file.
pub(super) const ROOT: &[Key] = &[
    key("proxy", Kind::Table(PROXY)),
    key("cluster", Kind::Table(CLUSTER)),
    key("clusters", Kind::Tables(FURTHER_CLUSTER)),
    key("relay", Kind::Table(RELAY)),
    key("failover", Kind::Table(FAILOVER)),
    key("registry", Kind::Table(REGISTRY)),
    key("passwords", Kind::Table(PASSWORDS)),
    key("console", Kind::Table(CONSOLE)),
    key("metrics", Kind::Table(METRICS)),
    key("log", Kind::Table(LOG)),
];

const PROXY: &[Key] = &[
    key("listen", Kind::TextsOrTables(LISTEN)),
    key("workers", integer(0, 256)),
    key("driver", Kind::Choice(&["epoll", "io_uring", "auto"])),
    key("upgrade_socket", Kind::Text),
    key("drain_timeout", POSITIVE),
    key("auth", Kind::Choice(&["trust", "scram-sha-256", "md5", "cert", "ldap", "pam"])),
    key("hba", Kind::Tables(HBA)),
    key("hba_file", Kind::Text),
    key("ident_file", Kind::Text),
    key("auth_query", Kind::Table(AUTH_QUERY)),
    key("ldap", Kind::Table(LDAP)),
    key("pam", Kind::Table(PAM)),
    key("gss", Kind::Table(GSS)),
    key("oauth", Kind::Table(OAUTH)),
    key("tls", Kind::Table(PROXY_TLS)),
    key("max_clients", integer(1, 1_000_000)),
    key("max_clients_per_address", integer(0, 1_000_000)),
    key("max_clients_per_user", integer(0, 1_000_000)),
    key("max_logins", integer(1, 1_000_000)),
    key("reserved_clients", integer(0, 1000)),
    key("login_timeout", POSITIVE),
    key("client_idle_timeout", OR_NEVER),
    key("idle_transaction_timeout", OR_NEVER),
    key("query_timeout", OR_NEVER),
    key("transaction_timeout", OR_NEVER),
    key("slow_statement", OR_NEVER),
    key("log_logins", Kind::Choice(&["off", "refused", "all"])),
    key("statements_kept", integer(0, 65_536)),
    key("tracing", Kind::Table(TRACING)),
    key("max_statement_bytes", integer(1024, 1 << 30)),
    key("buffer_limit", integer(16 << 10, 1 << 30)),
    key("peer_id", integer(0, 31)),
    key("peers", Kind::Tables(PEER)),
    key("traffic", Kind::Tables(TRAFFIC)),
    key("zone", Kind::Text),
    key("pool", Kind::Table(POOL)),
    key("routing", Kind::Table(ROUTING)),
    key("gate", Kind::Table(GATE)),
    key("notify", Kind::Table(NOTIFY)),
    key("databases", Kind::Tables(DATABASE)),
    key("users", Kind::Tables(USER)),
    key("operators", Kind::Tables(OPERATOR)),
];

const TRACING: &[Key] = &[
    key("endpoint", Kind::Text),
    key("ratio", Kind::Share),
    key("comments", Kind::Boolean),
    key("service_name", Kind::Text),
    key("ca_file", Kind::Text),
    key("cert_file", Kind::Text),
    key("key_file", Kind::Text),
    key("headers", Kind::Secrets),
];

const HBA: &[Key] = &[
    required("type", Kind::Choice(&["local", "host", "hostssl", "hostnossl"])),
    required("database", Kind::Text),
    required("user", Kind::Text),
    key("address", Kind::Text),
    required("method", Kind::Text),
];

const AUTH_QUERY: &[Key] = &[
    key("query", Kind::Text),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("password_command", Kind::Texts),
    key("database", Kind::Text),
    key("cache", POSITIVE),
    key("negative_cache", POSITIVE),
    key("timeout", POSITIVE),
];

const PAM: &[Key] = &[
    key("options", Kind::Text),
    key("helper", Kind::Text),
    key("timeout", POSITIVE),
    key("max_checks", integer(1, 1000)),
];

const GSS: &[Key] = &[
    key("helper", Kind::Text),
    key("keytab", Kind::Text),
    key("case_insensitive", Kind::Boolean),
    key("timeout", POSITIVE),
    key("max_checks", integer(1, 1000)),
];

const OAUTH: &[Key] = &[
    key("audience", Kind::Texts),
    key("claim", Kind::Text),
    key("users_claim", Kind::Text),
    key("ca_file", Kind::Text),
    key("timeout", POSITIVE),
    key("max_questions", integer(1, 1000)),
];

const LDAP: &[Key] = &[
    key("options", Kind::Secret),
    key("ca_file", Kind::Text),
    key("timeout", POSITIVE),
    key("max_binds", integer(1, 1000)),
];

const TRAFFIC: &[Key] = &[
    required("name", Kind::Text),
    key("cluster", Kind::Text),
    key("user", Kind::Text),
    key("database", Kind::Text),
    key("statement", Kind::Text),
    key("access", Kind::Choice(&["read", "write"])),
    key("each", Kind::Texts),
    key("rate", Kind::Text),
    key("burst", integer(1, 1_000_000)),
    key("concurrency", integer(1, 1_000_000)),
    key("block", Kind::Boolean),
    key("dry_run", Kind::Boolean),
];

const PEER: &[Key] = &[required("id", integer(1, 31)), required("address", Kind::Text)];

const PROXY_TLS: &[Key] = &[
    key("mode", Kind::Choice(&["disable", "allow", "require"])),
    key("cert_file", Kind::Text),
    key("key_file", Kind::Text),
    key("ca_file", Kind::Text),
    key("client_cert", Kind::Choice(&["none", "optional", "verify-ca", "verify-full"])),
    key("min_protocol_version", TLS_VERSION),
];

const CLUSTER_TLS: &[Key] = &[
    key("mode", Kind::Choice(&["disable", "prefer", "require", "verify-ca", "verify-full"])),
    key("ca_file", Kind::Text),
    key("cert_file", Kind::Text),
    key("key_file", Kind::Text),
    key("min_protocol_version", TLS_VERSION),
];

const LISTEN: &[Key] =
    &[required("address", Kind::Text), key("route", ROUTE), key("mode", Kind::Text), key("group", Kind::Text)];

const POOL: &[Key] = &[
    key("mode", POOL_MODE),
    key("size", POOL_SIZE),
    key("min_size", integer(0, 10_000)),
    key("reserve_size", integer(0, 10_000)),
    key("reserve_timeout", POSITIVE),
    key("max_user_connections", integer(0, 1_000_000)),
    key("max_database_connections", integer(0, 1_000_000)),
    key("max_node_connections", integer(0, 1_000_000)),
    key("wait_notice", OR_NEVER),
    key("wait_timeout", POSITIVE),
    key("no_primary_timeout", POSITIVE),
    key("server_lifetime", OR_NEVER),
    key("server_lifetime_jitter", OR_NEVER),
    key("server_idle_timeout", OR_NEVER),
    key("connect_timeout", POSITIVE),
    key("prepared_per_server", integer(1, 100_000)),
    key("prepared_bytes_per_client", integer(1 << 20, 1 << 34)),
    key("defer_begin", Kind::Boolean),
    key("unknown_functions", UNKNOWN_FUNCTIONS),
    key("unnamed", UNNAMED),
    key("lanes", LANES),
    key("lane_depth", integer(1, 256)),
    key("lane_width", integer(1, 1_000)),
    key("lane_stall", POSITIVE),
    key("lane_gather", OR_NEVER),
];

const ROUTING: &[Key] = &[
    key("route", ROUTE),
    key("consistency", CONSISTENCY),
    key("primary_weight", integer(0, 1_000)),
    key("strong_wait", POSITIVE),
    key("read_functions", Kind::Texts),
    key("cache_entries", integer(1, 1_000_000)),
];

const GATE: &[Key] = &[
    key("commit_durability", Kind::Durability),
    key("on_degraded", ON_DEGRADED),
    key("degraded_after", POSITIVE),
    key("timeout", POSITIVE),
    key("read_barrier", Kind::Boolean),
    key("flush", FLUSH),
];

const NOTIFY: &[Key] = &[
    key("listen", Kind::Choice(&["shared", "pinned"])),
    key("channels_per_client", integer(1, 100_000)),
    key("channels", integer(1, 1_000_000)),
    key("queue_bytes", integer(16 << 10, 1 << 30)),
];

const DATABASE: &[Key] = &[
    required("name", Kind::Text),
    key("cluster", Kind::Text),
    key("dbname", Kind::Text),
    key("server_user", Kind::Text),
    key("set_role", Kind::Boolean),
    key("server_password", Kind::Secret),
    key("server_password_file", Kind::Text),
    key("server_password_command", Kind::Texts),
    key("pool_size", POOL_SIZE),
    key("min_pool_size", integer(0, 10_000)),
    key("reserve_pool_size", integer(0, 10_000)),
    key("max_connections", integer(0, 1_000_000)),
    key("connect_query", Kind::Text),
    key("parameters", Kind::Texts),
    key("server_lifetime", OR_NEVER),
    key("client_idle_timeout", OR_NEVER),
    key("idle_transaction_timeout", OR_NEVER),
    key("query_timeout", OR_NEVER),
    key("transaction_timeout", OR_NEVER),
    key("replication", Kind::Boolean),
    key("max_clients", integer(1, 1_000_000)),
    key("pool_mode", POOL_MODE),
    key("unknown_functions", UNKNOWN_FUNCTIONS),
    key("lanes", LANES),
    key("consistency", CONSISTENCY),
    key("route", ROUTE),
    key("commit_durability", Kind::Durability),
    key("on_degraded", ON_DEGRADED),
    key("read_barrier", Kind::Boolean),
];

const USER: &[Key] = &[
    required("name", Kind::Text),
    key("cluster", Kind::Text),
    key("auth", OWN_AUTH),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("password_command", Kind::Texts),
    key("verifier", Kind::Secret),
    key("secrets", Kind::Secrets),
    key("pool_size", POOL_SIZE),
    key("reserve_pool_size", integer(0, 10_000)),
    key("max_connections", integer(0, 1_000_000)),
    key("pool_mode", POOL_MODE),
    key("client_idle_timeout", OR_NEVER),
    key("idle_transaction_timeout", OR_NEVER),
    key("query_timeout", OR_NEVER),
    key("transaction_timeout", OR_NEVER),
    key("replication", Kind::Boolean),
    key("max_clients", integer(1, 1_000_000)),
    key("commit_durability", Kind::Durability),
];

const OPERATOR: &[Key] = &[
    required("name", Kind::Text),
    key("auth", OWN_AUTH),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("password_command", Kind::Texts),
    key("verifier", Kind::Secret),
    key("secrets", Kind::Secrets),
    key("role", Kind::Choice(&["viewer", "operator"])),
];

const CLUSTER: &[Key] = &cluster(key("name", Kind::Text));

const FURTHER_CLUSTER: &[Key] = &cluster(required("name", Kind::Text));

/// Returns the keys of a cluster; `name` is the first one.
const fn cluster(name: Key) -> [Key; 17] {
    [
        name,
        key("server_names", Kind::Texts),
        key("user", Kind::Text),
        key("password", Kind::Secret),
        key("password_file", Kind::Text),
        key("password_command", Kind::Texts),
        key("database", Kind::Text),
        key("tls", Kind::Table(CLUSTER_TLS)),
        key("probe_interval", POSITIVE),
        key("probe_timeout", POSITIVE),
        key("probe_failures", integer(1, 1000)),
        key("lag_limit", POSITIVE),
        key("positions", Kind::Choice(&["auto", "wal", "transactions", "none"])),
        key("oracle_pace", POSITIVE),
        key("nodes", Kind::Tables(NODE)),
        key("from", Kind::Table(CLUSTER_FROM)),
        key("relays", Kind::Tables(CLUSTER_RELAY)),
    ]
}

const CLUSTER_FROM: &[Key] = &[
    key("urls", Kind::Texts),
    key("namespace", Kind::Text),
    key("service", Kind::Text),
    key("token", Kind::Secret),
    key("ca_file", Kind::Text),
];

const CLUSTER_RELAY: &[Key] = &[
    required("name", Kind::Text),
    required("address", Kind::Text),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("tls", Kind::Boolean),
];

const NODE: &[Key] = &[
    required("name", Kind::Text),
    required("address", Kind::Text),
    key("weight", integer(0, 10_000)),
    key("zone", Kind::Text),
    key("failover", Kind::Choice(&["allowed", "never"])),
    key("failover_priority", integer(0, 10_000)),
];

const RELAY: &[Key] = &[
    key("engine", Kind::Choice(&["postgresql", "mariadb"])),
    key("server_id", integer(0, u32::MAX as i64)),
    key("listen", Kind::Texts),
    key("dir", Kind::Text),
    key("tls", Kind::Table(PROXY_TLS)),
    key("auth", Kind::Choice(&["trust", "scram-sha-256"])),
    key("serve", Kind::Choice(&["flushed", "written"])),
    key("max_downstreams", integer(1, 10_000)),
    key("login_timeout", POSITIVE),
    key("downstream_timeout", POSITIVE),
    key("hot_standby_feedback", Kind::Boolean),
    key("keep_bytes", integer(0, i64::MAX)),
    key("max_bytes", integer(64 << 20, i64::MAX)),
    key("upstream", Kind::Table(UPSTREAM)),
    key("users", Kind::Tables(RELAY_USER)),
];

const UPSTREAM: &[Key] = &[
    key("address", Kind::Text),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("tls", Kind::Table(CLUSTER_TLS)),
    key("slot", Kind::Text),
    key("application_name", Kind::Text),
    key("status_interval", POSITIVE),
    key("heartbeat", POSITIVE),
    key("timeout", POSITIVE),
];

const RELAY_USER: &[Key] = &[
    required("name", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("verifier", Kind::Secret),
    key("operator", Kind::Boolean),
];

const FAILOVER: &[Key] = &[
    key("engine", Kind::Choice(&["postgresql", "mariadb"])),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("acknowledgements", integer(1, 100)),
    key("step_timeout", POSITIVE),
    key("zones", Kind::Texts),
    key("lag_limit", integer(0, i64::MAX)),
    key("tls", Kind::Table(CLUSTER_TLS)),
    key("stop", Kind::Texts),
    key("rejoin", Kind::Texts),
    key("rejoined_by", Kind::Text),
    key("etcd", Kind::Table(FAILOVER_ETCD)),
    key("relays", Kind::Tables(FAILOVER_RELAY)),
    key("proxies", Kind::Tables(FAILOVER_PROXY)),
];

const FAILOVER_ETCD: &[Key] = &[
    key("endpoints", Kind::Texts),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("ca_file", Kind::Text),
    key("cert_file", Kind::Text),
    key("key_file", Kind::Text),
];

const FAILOVER_RELAY: &[Key] = &[
    required("name", Kind::Text),
    required("address", Kind::Text),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
    key("application_name", Kind::Text),
];

const FAILOVER_PROXY: &[Key] = &[
    required("name", Kind::Text),
    required("address", Kind::Text),
    key("cluster", Kind::Text),
    key("user", Kind::Text),
    key("password", Kind::Secret),
    key("password_file", Kind::Text),
];

const REGISTRY_PEER_TLS: &[Key] = &[
    key("mode", Kind::Choice(&["disable", "require"])),
    key("cert_file", Kind::Text),
    key("key_file", Kind::Text),
    key("ca_file", Kind::Text),
];

const REGISTRY: &[Key] = &[
    key("listen", Kind::Text),
    key("consul_listen", Kind::Text),
    key("eureka_listen", Kind::Text),
    key("nacos_listen", Kind::Text),
    key("xds_listen", Kind::Text),
    key("peer_listen", Kind::Text),
    key("peer_advertise", Kind::Text),
    key("peer_tls", Kind::Table(REGISTRY_PEER_TLS)),
    key("dns", Kind::Table(REGISTRY_DNS)),
    key("tls", Kind::Table(PROXY_TLS)),
    key("rate", Kind::Table(REGISTRY_RATE)),
    key("audit", Kind::Table(REGISTRY_AUDIT)),
    key("store", Kind::Secret),
    key("node", Kind::Text),
    key("auth", Kind::Choice(&["none", "tokens"])),
    key("hosts", Kind::Texts),
    key("connections", integer(1, 1_000_000)),
    key("connections_per_address", integer(1, 1_000_000)),
    key("header_bytes", integer(8 << 10, 1 << 20)),
    key("body_bytes", integer(1 << 10, 1 << 30)),
    key("header_timeout", POSITIVE),
    key("body_timeout", POSITIVE),
    key("write_timeout", POSITIVE),
    key("waiting", integer(1, 1_000_000)),
    key("wait", POSITIVE),
    key("batch", integer(1, 100_000)),
    key("limits", Kind::Table(REGISTRY_LIMITS)),
    key("kv", Kind::Table(REGISTRY_KV)),
    key("rules", Kind::Table(REGISTRY_RULES)),
    key("health", Kind::Table(REGISTRY_HEALTH)),
    key("tokens", Kind::Tables(REGISTRY_TOKEN)),
];

const REGISTRY_RATE: &[Key] = &[key("per_second", integer(0, 1_000_000)), key("burst", integer(1, 1_000_000))];

const REGISTRY_AUDIT: &[Key] = &[key("file", Kind::Text), key("max_bytes", integer(1 << 16, 1 << 40))];

const REGISTRY_DNS: &[Key] = &[
    key("listen", Kind::Text),
    key("allow_remote", Kind::Boolean),
    key("domain", Kind::Text),
    key("ttl", Kind::Duration { zero: true }),
    key("namespaces", Kind::Texts),
    key("per_second", integer(0, 1_000_000)),
    key("connections", integer(1, 100_000)),
    key("idle_timeout", POSITIVE),
];

const REGISTRY_LIMITS: &[Key] = &[
    key("metadata_entries", integer(0, 10_000)),
    key("metadata_key_bytes", integer(1, 1 << 16)),
    key("metadata_value_bytes", integer(0, 1 << 20)),
    key("metadata_bytes", integer(0, 1 << 20)),
    key("instances_per_service", integer(1, 1 << 30)),
    key("instances", integer(1, 1 << 30)),
    key("services", integer(1, 1 << 30)),
    key("call_rows", integer(1, 100_000)),
    key("queued_writes", integer(1, 10_000_000)),
    key("watchers", integer(1, 10_000_000)),
];

const REGISTRY_KV: &[Key] = &[
    key("key_bytes", integer(1, 1024)),
    key("value_bytes", integer(0, 8 << 20)),
    key("keys", integer(0, 1 << 30)),
    key("bytes", integer(0, 1 << 40)),
    key("sessions", integer(0, 1 << 30)),
    key("total_bytes", integer(0, 1 << 40)),
    key("session_ttl_min", POSITIVE),
];

const REGISTRY_RULES: &[Key] =
    &[key("count", integer(0, 100_000)), key("rule_bytes", integer(0, 512 << 10)), key("bytes", integer(0, 64 << 20))];

const REGISTRY_HEALTH: &[Key] = &[
    key("enabled", Kind::Boolean),
    key("probes", integer(1, 1_000_000)),
    key("probe_allow", Kind::Texts),
    key("probe_deny", Kind::Texts),
    key("probe_ca_file", Kind::Text),
    key("brake", Kind::Table(REGISTRY_BRAKE)),
];

const REGISTRY_BRAKE: &[Key] = &[
    key("service_share", Kind::Share),
    key("whole_share", Kind::Share),
    key("least", integer(0, 1 << 30)),
    key("longest", POSITIVE),
];

const REGISTRY_TOKEN: &[Key] = &[
    required("name", Kind::Text),
    required("sha256", Kind::Secret),
    required("role", Kind::Choice(&["read", "write", "admin"])),
    key("namespaces", Kind::Texts),
];

const CONSOLE: &[Key] = &[
    key("listen", Kind::Text),
    key("public_url", Kind::Text),
    key("anonymous_view", Kind::Boolean),
    key("viewers", integer(1, 10_000)),
    key("tokens", Kind::Tables(CONSOLE_TOKEN)),
];

const CONSOLE_TOKEN: &[Key] = &[
    required("name", Kind::Text),
    required("sha256", Kind::Secret),
    required("role", Kind::Choice(&["viewer", "operator"])),
];

const PASSWORDS: &[Key] = &[key("interval", OR_NEVER), key("timeout", POSITIVE)];

const METRICS: &[Key] = &[
    key("listen", Kind::Text),
    key("allow_remote", Kind::Boolean),
    key("profiler_token", Kind::Secret),
    key("otlp", Kind::Table(OTLP)),
];

const OTLP: &[Key] = &[
    key("endpoint", Kind::Text),
    key("interval", POSITIVE),
    key("service_name", Kind::Text),
    key("ca_file", Kind::Text),
    key("cert_file", Kind::Text),
    key("key_file", Kind::Text),
    key("headers", Kind::Secrets),
];

const LOG: &[Key] = &[key("level", Kind::Text), key("format", Kind::Choice(&["auto", "human", "json"]))];

impl Kind {
    /// Describes the kind for a message.
    pub(super) fn expected(self) -> String {
        match self {
            Kind::Text | Kind::Secret => "a string".into(),
            Kind::Boolean => "true or false".into(),
            Kind::Integer { min, max } => format!("an integer from {min} to {max}"),
            Kind::Share => "a number above 0, at most 1".into(),
            Kind::Duration { zero: false } => "a duration above zero such as \"30s\", \"500ms\" or \"1h\"".into(),
            Kind::Duration { zero: true } => "a duration such as \"30s\" or \"1h\", or \"0s\" for never".into(),
            Kind::Choice(choices) => match choices {
                [all @ .., last] if !all.is_empty() => {
                    let all: Vec<String> = all.iter().map(|choice| format!("{choice:?}")).collect();
                    format!("{} or {last:?}", all.join(", "))
                }
                _ => format!("{choices:?}"),
            },
            Kind::Durability => "\"local\", \"relay\" or \"quorum(n)\" with n from 1 to 16".into(),
            Kind::Texts | Kind::Secrets => "an array of strings".into(),
            Kind::TextsOrTables(_) => "an array of addresses".into(),
            Kind::Table(_) => "a table".into(),
            Kind::Tables(_) => "an array of tables".into(),
        }
    }

    pub(super) fn is_secret(self) -> bool {
        matches!(self, Kind::Secret | Kind::Secrets)
    }
}

/// Reports unknown keys, missing keys, and values of the wrong kind.
pub(super) fn check(tree: &Tree, problems: &mut Vec<Problem>) {
    if let Value::Table(_) = &tree.value {
        check_table(tree, ROOT, "", problems);
    }
}

fn check_table(tree: &Tree, keys: &[Key], path: &str, problems: &mut Vec<Problem>) {
    let Value::Table(table) = &tree.value else { return };
    for (name, item) in table {
        let path = join(path, name);
        match keys.iter().find(|key| key.name == name) {
            Some(key) => check_value(item, key.kind, &path, problems),
            None => problems.push(Problem::new(item.key_origin.clone(), &path, unknown(name, keys))),
        }
    }
    for key in keys.iter().filter(|key| key.required && !table.contains_key(key.name)) {
        problems.push(Problem {
            missing: true,
            ..Problem::new(
                tree.origin.clone(),
                &join(path, key.name),
                format!("missing, expected {}", key.kind.expected()),
            )
        });
    }
}

fn check_value(item: &Tree, kind: Kind, path: &str, problems: &mut Vec<Problem>) {
    let fits = match (kind, &item.value) {
        (Kind::Text | Kind::Secret, Value::Text(_)) | (Kind::Boolean, Value::Boolean(_)) => true,
        (Kind::Integer { min, max }, Value::Integer(number)) => (min..=max).contains(number),
        (Kind::Share, Value::Float(share)) => *share > 0.0 && *share <= 1.0,
        (Kind::Duration { zero }, Value::Text(text)) => {
            humantime::parse_duration(text).is_ok_and(|duration| zero || !duration.is_zero())
        }
        (Kind::Durability, Value::Text(text)) => proxy::config::CommitDurability::try_from(text.clone()).is_ok(),
        (Kind::Choice(choices), Value::Text(text)) => {
            let fits = choices.contains(&text.as_str());
            if let (false, Some(near)) = (fits, nearest(text, choices.iter().copied())) {
                let message = format!("found {text:?}, expected {}; did you mean {near:?}?", kind.expected());
                problems.push(Problem::new(item.origin.clone(), path, message));
                return;
            }
            fits
        }
        (Kind::Table(keys), Value::Table(_)) => {
            check_table(item, keys, path, problems);
            true
        }
        (Kind::Texts | Kind::Secrets, Value::Array(items)) => {
            let of = if kind.is_secret() { Kind::Secret } else { Kind::Text };
            for (index, item) in items.iter().enumerate() {
                check_value(item, of, &format!("{path}[{index}]"), problems);
            }
            true
        }
        (Kind::Tables(keys), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                check_value(item, Kind::Table(keys), &format!("{path}[{index}]"), problems);
            }
            true
        }
        (Kind::TextsOrTables(keys), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let kind = if matches!(item.value, Value::Table(_)) { Kind::Table(keys) } else { Kind::Text };
                check_value(item, kind, &format!("{path}[{index}]"), problems);
            }
            true
        }
        _ => false,
    };
    if !fits {
        let message = format!("found {}, expected {}", item.value.describe(kind.is_secret()), kind.expected());
        problems.push(Problem::new(item.origin.clone(), path, message));
    }
}

/// Makes the message about an unknown key.
pub(super) fn unknown(name: &str, keys: &[Key]) -> String {
    match nearest(name, keys.iter().map(|key| key.name)) {
        Some(near) => format!("unknown key; did you mean `{near}`?"),
        None => {
            let names: Vec<&str> = keys.iter().map(|key| key.name).collect();
            format!("unknown key, expected one of {}", names.join(", "))
        }
    }
}

/// Joins path and name with a dot.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}
