//! The proxy's part of the configuration file.

mod accounts;
mod auth;
mod gate;
mod listen;
mod notify;
mod pool;
mod routing;
mod tracing;
mod traffic;

use std::time::Duration;

use settings::{Kind, Limit, OrNever, Row};

pub use accounts::{Access, DatabaseConfig, OperatorConfig, UserConfig};
pub use auth::{AuthMethod, AuthQueryConfig, GssConfig, HbaConfig, LdapConfig, OAuthConfig, PamConfig};
pub use gate::{CommitDurability, Flush, GateConfig, NoDurability, OnDegraded};
pub use listen::{Listen, ListenTable, NoMode, SocketMode};
pub use notify::{ListenMode, NotifyConfig};
pub use pool::{LaneMode, PoolConfig, PoolMode, UnknownFunctions, UnnamedMode};
pub use routing::{Consistency, RouteTo, RoutingConfig, TransactionReads};
pub use secret::Secret;
pub use tracing::TracingConfig;
pub use traffic::{TrafficAccess, TrafficConfig, TrafficEach};

::settings::settings! {
    /// `[proxy]`.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ProxyConfig: Default {
        /// Addresses that clients connect to: host:port, or the absolute path of a Unix socket. An entry may be a table with a route: { address =
        /// "127.0.0.1:6433", route = "replica" } is a read-only address. Permissions and group say who may connect to a Unix socket: { address =
        /// "/run/app/.s.PGSQL.6432", mode = "0770", group = "app" }.
        pub listen: Vec<Listen> = vec![Listen::at("127.0.0.1:6432")], of(Kind::TextsOrTables(ListenTable::KEYS)), at_start();
        /// Worker threads, at most 256; 0 means one a core.
        pub workers: usize = 0, range(0, 256), at_start();
        /// Interface by which workers wait: "epoll"; "io_uring", one system call a turn instead of one for each read and write (Linux 6.1; containers
        /// often forbid it: then a warning, and epoll); or "auto", io_uring where the system permits it and is Linux 6.12 or newer: with an older one
        /// quick reads take longer than with epoll. Taken at the start.
        pub driver: Driver = Driver::Auto, at_start();
        /// Unix socket by which a new process takes over the listening sockets (`kingpost proxy --take-over`, or SIGUSR2), so that no connection is
        /// refused.
        pub upgrade_socket: Option<std::path::PathBuf> = None, example(r#""/run/kingpost/upgrade.sock""#), at_start();
        /// Longest time that clients may stay with a process that a new one has taken over.
        pub drain_timeout: Duration = Duration::from_secs(600);
        /// Authentication method of clients: "scram-sha-256" (under TLS also with channel binding); "md5", for old clients; "cert", by a certificate
        /// whose common name is the user's; "ldap" or "pam", by a password that a directory or PAM judges (`[proxy.ldap]`, `[proxy.pam]`); or
        /// "trust", only where every address is loopback or a Unix socket.
        pub auth: AuthMethod = AuthMethod::ScramSha256, pgbouncer("auth_type");
        /// Rule of who may come from where: the fields of a line of pg_hba.conf.
        pub hba: Vec<HbaConfig> = Vec::new();
        /// Rules of who may come from where, and how: a file in the form of pg_hba.conf, read again by SIGHUP; or `[[proxy.hba]]`, below. The first
        /// rule that fits takes the place of `auth`; a client that none fits is refused.
        pub hba_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/pg_hba.conf""#);
        /// Name maps for rules with map=NAME (methods cert and peer): a file in the form of pg_ident.conf, read again by SIGHUP.
        pub ident_file: Option<std::path::PathBuf> = None, example(r#""/etc/kingpost/pg_ident.conf""#);
        /// Lookup on a server of users that are not in `[[proxy.users]]`, or are there without a secret.
        pub auth_query: AuthQueryConfig = AuthQueryConfig::default();
        /// Questions to LDAP servers: for auth = "ldap", and for rules with the method ldap.
        pub ldap: LdapConfig = LdapConfig::default();
        /// Questions to PAM: for auth = "pam", and for rules with the method pam.
        pub pam: PamConfig = PamConfig::default();
        /// Check of GSSAPI (Kerberos) tokens, for rules with the method gss.
        pub gss: GssConfig = GssConfig::default();
        /// Tokens that clients log in with, by rules with the method oauth.
        pub oauth: OAuthConfig = OAuthConfig::default();
        /// TLS with clients. Files are PEM; SIGHUP reads them again, for new connections. Unix sockets have no TLS.
        pub tls: tls::ListenConfig = tls::ListenConfig::default();
        /// Most clients that are logged in at a time; more are refused with 53300.
        pub max_clients: usize = 10_000, range(1, 1_000_000), pgbouncer("max_client_conn");
        /// Most connections of one IP address; 0: no limit of their own.
        pub max_clients_per_address: usize = 0, range(0, 1_000_000);
        /// Most clients of one user, for each that has no max_clients of its own, also for those that are looked up; 0: no limit.
        pub max_clients_per_user: Limit = Limit::NONE, range(0, 1_000_000), pgbouncer("max_user_client_connections");
        /// Most connections that have not logged in yet. For a further one the connection whose login has taken the longest is closed.
        pub max_logins: usize = 5_000, range(1, 1_000_000);
        /// Connections beyond max_clients that only operators get, for the console: they can look when applications have used up every other.
        pub reserved_clients: usize = 8, range(0, 1000);
        /// Time from accept until a client has authenticated; then 57014. A login that waits for a server has pool.wait_timeout, as a statement has.
        pub login_timeout: Duration = Duration::from_secs(15), pgbouncer("client_login_timeout");
        /// Notice that each client gets at the end of its login; "": none. It can say that the client has reached a proxy and not a server.
        pub login_notice: String = String::new(), pgbouncer("login_notify_message");
        /// True if each client is told at the end of its login that it has reached a proxy: by the parameters kingpost.version and
        /// kingpost.pool_mode, beside those that the server reports.
        pub report_proxy: bool = true;
        /// Time after which a client that is idle outside a transaction is closed; "0s" means never.
        pub client_idle_timeout: OrNever = OrNever::NEVER, pgbouncer("client_idle_timeout");
        /// Time after which a client that is idle in a transaction is closed; "0s" means never.
        pub idle_transaction_timeout: OrNever = OrNever::NEVER, pgbouncer("idle_transaction_timeout");
        /// Time after which a client whose statement still runs is closed, and the statement cancelled; "0s" means never.
        pub query_timeout: OrNever = OrNever::NEVER, pgbouncer("query_timeout");
        /// Time after which a client whose transaction is still open is closed; "0s" means never.
        pub transaction_timeout: OrNever = OrNever::NEVER, pgbouncer("transaction_timeout");
        /// Time from which a statement is logged, its literals taken out; "0s" means never.
        pub slow_statement: OrNever = OrNever::NEVER;
        /// Logins that are in the log, under the target kingpost::login, at most 20 a second and worker: "off"; "refused", with the reason; or "all".
        pub log_logins: LogLogins = LogLogins::Refused;
        /// Shapes of statements that each worker counts for SHOW STATEMENTS; 0 means none.
        pub statements_kept: usize = 1_024, range(0, 65_536);
        /// Traces of statements (OpenTelemetry), sent by OTLP over gRPC.
        pub tracing: TracingConfig = TracingConfig::default();
        /// Longest statement text that is looked at and kept, in bytes. A longer simple query or unnamed statement goes to the primary unexamined, a
        /// longer named statement is refused with 54000.
        pub max_statement_bytes: usize = 1 << 20, range(1024, 1 << 30);
        /// Output kept for a slow client or server before its peer is no longer read, in bytes.
        pub buffer_limit: usize = 256 << 10, range(16 << 10, 1 << 30);
        /// Number of this proxy among several side by side, from 1 to 31. A cancel request that a balancer gives to another proxy than its client's
        /// is passed on to the right one (`[[proxy.peers]]`). 0: there are no others.
        pub peer_id: u8 = 0, range(0, 31), example("1");
        /// Another proxy beside this one.
        pub peers: Vec<PeerConfig> = Vec::new();
        /// Traffic rules: which statements may not run, how many may run at a time, and how many in which time. All that is given has to apply to a
        /// statement. Who is over a limit gets an error at once. Of several rules each has to let a statement pass.
        pub traffic: Vec<TrafficConfig> = Vec::new();
        /// Zone of this proxy: reads prefer replicas of the same zone.
        pub zone: Option<String> = None, example(r#""a""#);
        /// Server connections: how many, for how long, and what clients share.
        pub pool: PoolConfig = PoolConfig::default();
        /// Routing of statements to the primary and the replicas, and the commits that reads there must see.
        pub routing: RoutingConfig = RoutingConfig::default();
        /// Durability that a commit needs before its client hears of it.
        pub gate: GateConfig = GateConfig::default();
        /// LISTEN and NOTIFY, in transaction and statement mode.
        pub notify: NotifyConfig = NotifyConfig::default();
        /// Databases that clients may name. None listed: every name, passed on as it is.
        pub databases: Vec<DatabaseConfig> = Vec::new();
        /// Users that may log in. None listed (only with auth = "trust"): every name. Of password, password_file and verifier at most one.
        pub users: Vec<UserConfig> = Vec::new(), shown_table();
        /// Users of the console, the database "kingpost", and of no other: to manage, not to read data. None listed: nobody with scram-sha-256,
        /// everybody with trust. Of password, password_file and verifier exactly one with scram-sha-256.
        pub operators: Vec<OperatorConfig> = Vec::new();
    }
}

::settings::settings! {
    /// Interface by which workers wait for their sockets.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Driver {
        /// `epoll`, with a system call for each read and write.
        Epoll = "epoll",
        /// io_uring, with one system call a turn. If the system does not permit io_uring: epoll, with a warning.
        IoUring = "io_uring",
        /// io_uring if the system permits it and lets completions gather (Linux 6.12), otherwise epoll.
        Auto = "auto",
    }
}

::settings::settings! {
    /// Logins that are written to the log.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LogLogins {
        /// None.
        Off = "off",
        /// Refused logins, with the reason.
        Refused = "refused",
        /// Refused and accepted logins.
        All = "all",
    }
}

::settings::settings! {
    /// `[[proxy.peers]]`: another proxy of the same fleet.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PeerConfig {
        /// Number of the other proxy: its peer_id.
        pub id: u8, range(1, 31), example("2");
        /// Address of the other proxy: host:port.
        pub address: String, example(r#""10.0.0.2:6432""#);
    }
}

/// Prefixes of paths that `SHOW CONFIG` leaves out, and `SET` tries in this order.
pub const LEFT_OUT: [&str; 3] = ["proxy.pool.", "proxy.routing.", "proxy."];

/// Returns the name of a setting in `SHOW CONFIG`: PgBouncer's where it has the same setting (exporters read `max_client_conn` and
/// `default_pool_size`), else the path without one of [`LEFT_OUT`].
#[must_use]
pub fn shown_name(row: &Row) -> &str {
    let short = || LEFT_OUT.iter().find_map(|prefix| row.path.strip_prefix(prefix));
    row.key.pgbouncer.or_else(short).unwrap_or(&row.path)
}
