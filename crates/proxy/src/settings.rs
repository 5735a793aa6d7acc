//! The configuration in the form in which the workers use it.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::settings::{Limit, OrNever};
use secret::Source;
use topology::Address;
use wire::md5;

use crate::config::{
    Access, AuthMethod, Consistency, DatabaseConfig, HbaConfig, LaneMode, LogLogins, NotifyConfig, OnDegraded,
    OperatorConfig, PoolMode, ProxyConfig, RouteTo, TracingConfig, TransactionReads, UnknownFunctions, UnnamedMode,
    UserConfig,
};
use crate::core::directory::DATABASES;
use crate::demand::{Certificate, Demand, OptionsError};
use crate::hba::{self, Rules};
use crate::ident::Maps;
pub use crate::limits::{ConnectionLimits, Lifetime, OwnLimits, TimeLimits};
use crate::secrets::{Given, Secrets, SecretsError};
use crate::start::InvalidStart;
pub use crate::start::Start;
use crate::traffic::{Rule, RuleError};

/// Configuration in the form that workers use. Immutable; a reload makes a new value.
#[derive(Debug)]
pub struct Settings {
    /// Rows of `SHOW CONFIG`.
    pub rows: Vec<::settings::Row>,
    /// Authentication of clients, unless a rule or their user says otherwise.
    pub demand: Arc<Demand>,
    /// TLS with clients; `None` if there is none.
    pub tls: Option<Arc<tls::Acceptor>>,
    /// Rules that decide by address, database and user if a client may connect; `None`: no rules, and `auth` applies to all.
    pub hba: Option<Rules>,
    /// The name maps of those rules.
    pub maps: Maps,
    /// True if the comparison of Kerberos principals ignores case.
    pub any_case_of_principals: bool,
    /// True if users that are not configured are looked up on a server.
    pub looks_up: bool,
    /// Most clients that have logged in.
    pub max_clients: usize,
    /// Most connections from one address; 0: no limit.
    pub max_clients_per_address: usize,
    /// Most clients of a user that has no limit of its own; `None`: no limit.
    pub max_clients_per_user: Option<usize>,
    /// Most connections that have not logged in.
    pub max_logins: usize,
    /// Further clients, for the console only.
    pub reserved_clients: usize,
    /// Longest time from accept to the end of the login.
    pub login_timeout: Duration,
    /// Notice at the end of a login; empty: none.
    pub login_notice: String,
    /// True if logins report the proxy's version and the pool's mode.
    pub report_proxy: bool,
    /// True if some client may have a time limit.
    pub has_time_limits: bool,
    /// Statements that take at least this long are logged; `None`: no log.
    pub slow_statement: Option<Duration>,
    /// Logins that are written to the log.
    pub log_logins: LogLogins,
    /// Selection of traced statements; `None`: none.
    pub tracing: Option<Tracing>,
    /// Statement shapes with counts, per worker.
    pub statements_kept: usize,
    /// Longest named statement, in bytes.
    pub max_statement: usize,
    /// Most output buffered for a slow peer, in bytes.
    pub buffer_limit: usize,
    /// Limits on statements, by user, database and statement.
    pub traffic: Vec<Rule>,
    /// Zone of this proxy.
    pub zone: Option<String>,
    /// Longest wait for a server connection.
    pub wait_timeout: Duration,
    /// Time that a client waits before it may use a connection of the reserve; also the time for which an unused such connection is kept.
    pub reserve_timeout: Duration,
    /// Most server connections of a user to one node that has no limit of its own.
    pub max_user_connections: Option<usize>,
    /// Most server connections of all users to one node.
    pub max_node_connections: Option<usize>,
    /// Time that a client waits before it gets a notice; `None`: no notice.
    pub wait_notice: Option<Duration>,
    /// Longest wait for a primary.
    pub no_primary_timeout: Duration,
    /// Idle time after which a server connection is closed.
    pub server_idle_timeout: Option<Duration>,
    /// Time after which a pool without clients and server connections is forgotten.
    pub pool_idle_timeout: Option<Duration>,
    /// Longest time to connect and log in to a server.
    pub connect_timeout: Duration,
    /// The number of this proxy among several; 0 if there is only one.
    pub peer: u8,
    /// The addresses of the other proxies.
    pub peers: HashMap<u8, Address>,
    /// Most prepared statements per server connection.
    pub prepared_per_server: usize,
    /// Most bytes of one client's named prepared statements.
    pub prepared_bytes: usize,
    /// True if BEGIN is put off until the next statement.
    pub defer_begin: bool,
    /// True if server connections keep unnamed statements that recur.
    pub share_unnamed: bool,
    /// Shared lanes.
    pub lanes: Lanes,
    /// The primary's weight among the nodes that answer reads, as a view has weights; 0: it answers them only where no replica can.
    pub primary_weight: u32,
    /// True if reads may go to replicas behind replay checks.
    pub verified_reads: bool,
    /// Longest wait of a strong read for a replica.
    pub strong_wait: Duration,
    /// Longest time that an answer to a commit is held back.
    pub gate_timeout: Duration,
    /// Flush of the primary's log for commits whose answers are held back.
    pub gate_flush: topology::Flushing,
    /// Time with too few confirming relays after which commits wait or are acknowledged in a degraded state.
    pub gate_degraded_after: Duration,
    /// LISTEN and NOTIFY.
    pub notify: NotifyConfig,
    /// Functions that are known to only read.
    pub read_functions: Vec<String>,
    /// Most statement shapes that each worker caches.
    pub cache_entries: usize,
    default: Database,
    databases: HashMap<String, Database>,
    any_database: bool,
    users: HashMap<String, User>,
    operators: HashMap<String, Operator>,
}

/// A user of the console. It can't log in to databases.
#[derive(Debug, Clone)]
pub struct Operator {
    /// The operator's credentials.
    pub account: User,
    /// Permissions of the operator.
    pub access: Access,
}

/// Limits of shared server connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    /// Most statements in one lane.
    pub depth: usize,
    /// Least number of lanes per worker, pool and node before statements share one.
    pub width: usize,
    /// Most lanes before statements share one.
    pub most_width: usize,
    /// Statements of a shape that usually takes this long do not share a connection.
    pub slow: Duration,
    /// Run time of a statement after which the statements behind it are sent elsewhere.
    pub stall: Duration,
    /// Time for which answers may gather; 0: none.
    pub gather: Duration,
    /// Statements of a shape with answers of this size do not share a connection, in bytes.
    pub bytes: u32,
}

/// Largest answer of a statement in a lane, in bytes: the whole answer can be held back.
const LANE_BYTES: u32 = 12 << 10;

/// Settings of a database.
#[derive(Debug, Clone, PartialEq)]
pub struct Database {
    /// The database's name on the servers; `None`: the name that clients use.
    pub dbname: Option<String>,
    /// Login on the servers; None: each client's own user.
    pub server_user: Option<Arc<ServerUser>>,
    /// True if the sessions of a client have its user as their role.
    pub set_role: bool,
    /// Server connections per user and node.
    pub pool_size: usize,
    /// Number of server connections to the primary that are kept open for a user with clients.
    pub min_size: usize,
    /// Age at which a server connection is closed once it is idle.
    pub server_lifetime: Option<Lifetime>,
    /// Initial state of its server connections.
    pub start: Start,
    /// Server connections beyond a pool's size, for clients that have waited for long.
    pub reserve: usize,
    /// Most server connections to one node, for all users; `None`: no limit.
    pub max_connections: Option<usize>,
    /// Longest wait for a server connection.
    pub wait_timeout: Duration,
    /// Time limits of clients that have logged in.
    pub time_limits: TimeLimits,
    /// True if clients may open logical replication connections.
    pub replication: bool,
    /// Most clients of the database.
    pub max_clients: Option<usize>,
    /// Time for which a client keeps a server connection.
    pub mode: PoolMode,
    /// Treatment of unknown functions.
    pub unknown_functions: UnknownFunctions,
    /// True if statements of several clients may share a server connection.
    pub lanes: bool,
    /// Commits that reads on replicas are guaranteed to see.
    pub consistency: Consistency,
    /// Node for the reads of a transaction before its first write.
    pub transaction_reads: TransactionReads,
    /// Routing of statements.
    pub route: RouteTo,
    /// Hold-back of answers to commits, unless the user says otherwise.
    pub gate: CommitGate,
}

impl Database {
    /// Returns the database and the user that a session has on the servers, for a client of `user` that has come to the database `name`. Together
    /// they decide the meaning of a text there.
    pub(crate) fn on_servers<'a>(&'a self, name: &'a str, user: &'a str) -> (&'a str, &'a str) {
        (self.dbname.as_deref().unwrap_or(name), self.server_user.as_ref().map_or(user, |user| &user.name))
    }
}

/// Login on the servers for a database, in place of the clients' own users.
pub struct ServerUser {
    /// Name of the user on the servers.
    pub name: Arc<str>,
    /// Password; None: the servers require none, or use MD5.
    pub password: Option<String>,
    /// Verifier for the answer to an MD5 login: derived from the password, or given in its place.
    pub md5: Option<md5::Verifier>,
    /// True if the password can be read again.
    pub renewable: bool,
}

impl PartialEq for ServerUser {
    /// Compares all but a renewable password, which changes by itself (a token of a cloud, say). The connections that were opened with the last one
    /// are as good as new ones: the user is the same.
    fn eq(&self, other: &ServerUser) -> bool {
        self.name == other.name
            && self.renewable == other.renewable
            && (self.renewable || (&self.password, &self.md5) == (&other.password, &other.md5))
    }
}

impl Eq for ServerUser {}

impl std::fmt::Debug for ServerUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerUser").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ServerUser {
    fn new(entry: &DatabaseConfig) -> Result<Option<Arc<ServerUser>>, SettingsError> {
        let Some(name) = &entry.server_user else { return Ok(None) };
        let given = [
            entry.server_password.is_some(),
            entry.server_password_file.is_some(),
            !entry.server_password_command.is_empty(),
        ];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(SettingsError::Secrets(name.clone()));
        }
        let password = match &entry.server_password {
            Some(password) => Some(password.expose().to_owned()),
            None => read(name, entry.server_password_file.as_deref(), &entry.server_password_command)?,
        };
        // PostgreSQL takes a password of this form for the hash of one, too: it is no user's password itself.
        let (password, md5) = match password.as_deref().and_then(md5::Verifier::parse) {
            Some(verifier) => (None, Some(verifier)),
            None => {
                let verifier = password.as_deref().map(|password| md5::Verifier::new(name, password));
                (password, verifier)
            }
        };
        let renewable = entry.server_renewable;
        Ok(Some(Arc::new(ServerUser { name: name.as_str().into(), password, md5, renewable })))
    }
}

/// Longest time of a `password_command` that the caller has not run before.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// Returns a user's password from its file or its command, if there is one.
fn read(user: &str, file: Option<&Path>, command: &[String]) -> Result<Option<String>, SettingsError> {
    let Some(source) = Source::of(file, command) else { return Ok(None) };
    let password =
        source.read(COMMAND_LIMIT).map_err(|source| SettingsError::Unreadable { user: user.to_owned(), source })?;
    Ok(Some(password.expose().to_owned()))
}

/// Hold-back of a pool's answers to commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitGate {
    /// Number of relays on which the commit must be durable; 0: answers are not held back.
    pub relays: usize,
    /// True if commits are acknowledged although too few relays confirm anything.
    pub degrade: bool,
    /// True if answers to reads on the primary are held back as well.
    pub barrier: bool,
}

/// A user that may log in.
#[derive(Clone)]
pub struct User {
    /// Authentication of the user's clients; `None`: the general one.
    pub demand: Option<Arc<Demand>>,
    /// Secrets of the user, one of which a client must know; also used by the proxy to log in to servers.
    pub secrets: Secrets,
    /// True if the password can be read again.
    pub renewable: bool,
    /// The size of this user's pools.
    pub pool_size: Option<usize>,
    /// Server connections beyond the size of this user's pools, for clients that have waited for long.
    pub reserve: Option<usize>,
    /// Most server connections of this user to one node, with all databases.
    pub max_connections: Option<Limit>,
    /// Longest wait of this user's clients for a server connection; overrides the database's.
    pub wait_timeout: Option<Duration>,
    /// Pool mode of this user.
    pub mode: Option<PoolMode>,
    /// Time limits of this user, in place of those of the database.
    pub time_limits: OwnLimits,
    /// True if the user may open replication connections.
    pub replication: bool,
    /// Most clients of this user.
    pub max_clients: Option<usize>,
    /// On how many relays the user's commits must be durable before they are acknowledged.
    pub relays: Option<usize>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("pool_size", &self.pool_size).finish_non_exhaustive()
    }
}

/// Reason for which a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// More than one secret for a user.
    #[error("user {0:?}: give at most one of password, password_file, password_command and verifier")]
    Secrets(String),
    /// A user's secrets can't be used.
    #[error("user {user:?}: {source}")]
    Unusable {
        /// The user.
        user: String,
        /// The reason.
        source: SecretsError,
    },
    /// A traffic rule is none.
    #[error("proxy.traffic[{index}]: {source}")]
    Traffic {
        /// The rule's index, from 0.
        index: usize,
        /// The reason.
        source: RuleError,
    },
    /// Certificates or keys can't be used.
    #[error("[proxy.tls] {0}")]
    Tls(#[from] tls::Error),
    /// The options of a method that `auth` names can't be used.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A user authenticates by certificate, and the listener asks for none.
    #[error(
        "user {0:?} has auth = \"cert\": [proxy.tls] needs a mode other than \"disable\" and a client_cert other than \"none\""
    )]
    NoCertificates(String),
    /// A single user has the method `trust`.
    #[error("user {0:?} has auth = \"trust\", which is possible for all users together only")]
    Trusted(String),
    /// The password can't be read.
    #[error("user {user:?}: {source}")]
    Unreadable {
        /// The user.
        user: String,
        /// The reason.
        source: secret::Error,
    },
    /// A rule is invalid.
    #[error("proxy.hba[{index}]: {message}")]
    Rule {
        /// The rule's index, from 0.
        index: usize,
        /// The invalid text, and the expected form.
        message: String,
    },
    /// Lines of the rules file are invalid.
    #[error("{}", rule_errors(.path, .errors))]
    RuleFile {
        /// The file.
        path: PathBuf,
        /// One error per line.
        errors: Vec<hba::Error>,
    },
    /// The rules file can't be read.
    #[error("cannot read {key} {path}: {source}")]
    RuleFileUnreadable {
        /// `hba_file` or `ident_file`.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Rules are given in two places.
    #[error("found both proxy.hba and proxy.hba_file, expected at most one of them")]
    TwoRules,
    /// A rule names a map that is not there.
    #[error("a rule of who may log in has map={0}, and proxy.ident_file has no line of that map")]
    NoMap(String),
    /// A rule demands a certificate, and the listener asks for none.
    #[error(
        "a rule of who may log in asks for a certificate: [proxy.tls] needs a mode other than \"disable\" and a client_cert other than \"none\""
    )]
    RuleWithoutCertificates,
    /// The initial state for a database's server connections is invalid.
    #[error("database {database:?}: {source}")]
    Start {
        /// The database.
        database: String,
        /// The invalid text, and the expected form.
        source: InvalidStart,
    },
    /// A peer's address is invalid.
    #[error("proxy.peers: found {0:?}, expected ip:port or the absolute path of a Unix socket")]
    Peer(String),
    /// Two entries have the same name.
    #[error("{kind} {name:?} is configured twice")]
    Twice {
        /// `user` or `database`.
        kind: &'static str,
        /// The entry's name.
        name: String,
    },
}

/// Selection of traced statements.
#[derive(Debug, Clone, Copy)]
pub struct Tracing {
    /// A statement is traced if its random number is at most this; 0: none by chance.
    pub below: u64,
    /// True if statements with a `traceparent` in a comment are traced.
    pub comments: bool,
}

impl Tracing {
    fn new(config: &TracingConfig) -> Tracing {
        // The conversion saturates: a ratio of 1.0 gives the maximum.
        Tracing { below: (config.ratio.unwrap_or(0.0) * 2f64.powi(64)) as u64, comments: config.comments }
    }
}

impl Settings {
    /// Resolves a configuration: reads password files and computes verifiers, which takes some milliseconds a user.
    pub fn new(config: &ProxyConfig) -> Result<Settings, SettingsError> {
        let jitter = config.pool.server_lifetime_jitter;
        let lifetime = |least: OrNever| least.get().map(|least| Lifetime { least, jitter });
        let default = Database {
            dbname: None,
            server_user: None,
            set_role: false,
            replication: false,
            max_clients: None,
            pool_size: config.pool.size,
            min_size: config.pool.min_size,
            server_lifetime: lifetime(config.pool.server_lifetime),
            start: Start::default(),
            reserve: config.pool.reserve_size,
            max_connections: config.pool.max_database_connections.get(),
            wait_timeout: config.pool.wait_timeout,
            time_limits: TimeLimits {
                idle: config.client_idle_timeout.get(),
                idle_transaction: config.idle_transaction_timeout.get(),
                query: config.query_timeout.get(),
                transaction: config.transaction_timeout.get(),
            },
            mode: config.pool.mode,
            unknown_functions: config.pool.unknown_functions,
            lanes: config.pool.lanes == LaneMode::Auto,
            consistency: config.routing.consistency,
            transaction_reads: config.routing.transaction_reads,
            route: config.routing.route,
            gate: CommitGate {
                relays: config.gate.commit_durability.relays(),
                degrade: config.gate.on_degraded == OnDegraded::Local,
                barrier: config.gate.read_barrier,
            },
        };
        let mut databases = HashMap::new();
        for entry in &config.databases {
            let database = Database {
                dbname: entry.dbname.clone(),
                server_user: ServerUser::new(entry)?,
                set_role: entry.set_role && entry.server_user.is_some(),
                replication: entry.replication,
                max_clients: entry.max_clients,
                pool_size: entry.pool_size.unwrap_or(default.pool_size),
                min_size: entry.min_pool_size.unwrap_or(default.min_size),
                server_lifetime: entry.server_lifetime.map_or(default.server_lifetime, lifetime),
                start: Start::new(entry)
                    .map_err(|source| SettingsError::Start { database: entry.name.clone(), source })?,
                reserve: entry.reserve_pool_size.unwrap_or(default.reserve),
                max_connections: entry.max_connections.map_or(default.max_connections, Limit::get),
                wait_timeout: entry.wait_timeout.unwrap_or(default.wait_timeout),
                time_limits: OwnLimits {
                    idle: entry.client_idle_timeout,
                    idle_transaction: entry.idle_transaction_timeout,
                    query: entry.query_timeout,
                    transaction: entry.transaction_timeout,
                }
                .over(default.time_limits),
                mode: entry.pool_mode.unwrap_or(default.mode),
                unknown_functions: entry.unknown_functions.unwrap_or(default.unknown_functions),
                lanes: entry.lanes.map_or(default.lanes, |lanes| lanes == LaneMode::Auto),
                consistency: entry.consistency.unwrap_or(default.consistency),
                transaction_reads: entry.transaction_reads.unwrap_or(default.transaction_reads),
                route: entry.route.unwrap_or(default.route),
                gate: CommitGate {
                    relays: entry.commit_durability.map_or(default.gate.relays, |durability| durability.relays()),
                    degrade: entry.on_degraded.map_or(default.gate.degrade, |then| then == OnDegraded::Local),
                    barrier: entry.read_barrier.unwrap_or(default.gate.barrier),
                },
            };
            if databases.insert(entry.name.clone(), database).is_some() {
                return Err(SettingsError::Twice { kind: "database", name: entry.name.clone() });
            }
        }
        let tls = tls::Acceptor::new(&config.tls)?.map(Arc::new);
        let certificates = tls.as_ref().is_some_and(|tls| tls.client_cert != tls::ClientCert::None);
        let mut users = HashMap::new();
        for entry in &config.users {
            if users.insert(entry.name.clone(), User::new(entry, config, certificates)?).is_some() {
                return Err(SettingsError::Twice { kind: "user", name: entry.name.clone() });
            }
        }
        let mut operators = HashMap::new();
        for entry in &config.operators {
            if operators.insert(entry.name.clone(), Operator::new(entry, config, certificates)?).is_some() {
                return Err(SettingsError::Twice { kind: "operator", name: entry.name.clone() });
            }
        }
        let mut peers = HashMap::new();
        for peer in &config.peers {
            let address = match peer.address.strip_prefix('/') {
                Some(_) => Address::Unix(PathBuf::from(&peer.address)),
                None => match peer.address.parse() {
                    Ok(address) => Address::Tcp(address),
                    Err(_) => return Err(SettingsError::Peer(peer.address.clone())),
                },
            };
            peers.insert(peer.id, address);
        }
        let hba = rules(config, certificates)?;
        let has_time_limits = default.time_limits.any()
            || databases.values().any(|database: &Database| database.time_limits.any())
            || users.values().any(|user: &User| user.time_limits != OwnLimits::default());
        Ok(Settings {
            rows: ::settings::rows(config, "proxy"),
            demand: Arc::new(config.demand(config.auth)?),
            tls,
            maps: maps(config, hba.as_ref())?,
            any_case_of_principals: config.gss.case_insensitive,
            hba,
            looks_up: config.auth_query.is_on(),
            max_clients: config.max_clients,
            max_clients_per_address: config.max_clients_per_address,
            max_clients_per_user: config.max_clients_per_user.get(),
            max_logins: config.max_logins.max(1),
            reserved_clients: config.reserved_clients,
            slow_statement: config.slow_statement.get(),
            log_logins: config.log_logins,
            statements_kept: config.statements_kept,
            tracing: config.tracing.endpoint.is_some().then(|| Tracing::new(&config.tracing)),
            login_timeout: config.login_timeout,
            login_notice: config.login_notice.clone(),
            report_proxy: config.report_proxy,
            has_time_limits,
            max_statement: config.max_statement_bytes,
            buffer_limit: config.buffer_limit.max(64 << 10),
            traffic: traffic(config)?,
            zone: config.zone.clone(),
            wait_timeout: config.pool.wait_timeout,
            reserve_timeout: config.pool.reserve_timeout,
            max_user_connections: config.pool.max_user_connections.get(),
            max_node_connections: config.pool.max_node_connections.get(),
            wait_notice: config.pool.wait_notice.get(),
            no_primary_timeout: config.pool.no_primary_timeout,
            server_idle_timeout: config.pool.server_idle_timeout.get(),
            pool_idle_timeout: config.pool.idle_timeout.get(),
            connect_timeout: config.pool.connect_timeout,
            peer: config.peer_id,
            peers,
            prepared_per_server: config.pool.prepared_per_server.max(1),
            prepared_bytes: config.pool.prepared_bytes_per_client,
            defer_begin: config.pool.defer_begin,
            share_unnamed: config.pool.unnamed == UnnamedMode::Shared,
            lanes: Lanes {
                depth: config.pool.lane_depth.max(1),
                width: config.pool.lane_width.max(1),
                most_width: config.pool.lane_width_most.max(config.pool.lane_width),
                slow: config.pool.lane_stall / 4,
                stall: config.pool.lane_stall,
                gather: config.pool.lane_gather,
                bytes: LANE_BYTES,
            },
            verified_reads: config.routing.verified_reads,
            strong_wait: config.routing.strong_wait,
            primary_weight: config.routing.primary_weight.saturating_mul(topology::WEIGHT_SCALE),
            gate_timeout: config.gate.timeout,
            gate_flush: config.gate.flush.into(),
            gate_degraded_after: config.gate.degraded_after,
            notify: config.notify.clone(),
            read_functions: config.routing.read_functions.clone(),
            cache_entries: config.routing.cache_entries,
            default,
            any_database: databases.is_empty() || databases.contains_key("*"),
            databases,
            users,
            operators,
        })
    }

    /// Returns the settings of the database of this name; None: the database is not served.
    pub fn database(&self, name: &str) -> Option<&Database> {
        match self.databases.get(name) {
            Some(database) => Some(database),
            None if self.any_database => Some(self.databases.get("*").unwrap_or(&self.default)),
            None => None,
        }
    }

    /// Returns the settings of a user's clients of a database: the user's own settings replace the database's. `None`: the database is not served.
    pub fn served(&self, database: &str, user: &str) -> Option<Database> {
        let mut served = self.database(database)?.clone();
        if let Some(user) = self.user(user) {
            served.mode = user.mode.unwrap_or(served.mode);
            served.time_limits = user.time_limits.over(served.time_limits);
            served.wait_timeout = user.wait_timeout.unwrap_or(served.wait_timeout);
        }
        Some(served)
    }

    /// Returns the hold-back of commits of this database and user.
    pub fn gate(&self, database: &str, user: &str) -> CommitGate {
        let gate = self.database(database).unwrap_or(&self.default).gate;
        let relays = self.user(user).and_then(|user| user.relays).unwrap_or(gate.relays);
        CommitGate { relays, barrier: gate.barrier && relays > 0, ..gate }
    }

    /// Returns the settings of a database without settings of its own.
    pub fn default_database(&self) -> &Database {
        &self.default
    }

    /// Returns the user of this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// True if any name may log in: no user is listed.
    pub fn any_user(&self) -> bool {
        self.users.is_empty()
    }

    /// Returns every database that is listed, `*` left out.
    pub fn databases(&self) -> impl Iterator<Item = (&str, &Database)> {
        self.databases.iter().map(|(name, database)| (name.as_str(), database)).filter(|(name, _)| *name != "*")
    }

    /// Returns every user that is listed.
    pub fn users(&self) -> impl Iterator<Item = (&str, &User)> {
        self.users.iter().map(|(name, user)| (name.as_str(), user))
    }

    /// Returns every operator.
    pub fn operators(&self) -> impl Iterator<Item = (&str, &Operator)> {
        self.operators.iter().map(|(name, operator)| (name.as_str(), operator))
    }

    /// True if a database of this name is listed.
    pub fn lists(&self, database: &str) -> bool {
        self.databases.contains_key(database)
    }

    /// True if this name stands for the console: it does unless a database of that name is listed.
    pub fn is_console(&self, database: &str) -> bool {
        DATABASES.contains(&database) && !self.lists(database)
    }

    /// True if this name may log in under `trust` without a lookup.
    pub fn trusts(&self, user: &str, console: bool) -> bool {
        if console {
            self.operators.is_empty() || self.operators.contains_key(user)
        } else {
            self.users.contains_key(user) || (self.any_user() && !self.looks_up)
        }
    }

    /// Returns the user or the operator of this name.
    pub fn account(&self, name: &str, console: bool) -> Option<&User> {
        if console { self.operators.get(name).map(|operator| &operator.account) } else { self.users.get(name) }
    }

    /// Returns the permissions of a client of the console that has authenticated as `operator`. A user that is not listed came by `trust`, which
    /// proves no name.
    pub fn access(&self, operator: &str) -> Access {
        self.operators.get(operator).map_or(Access::Operator, |operator| operator.access)
    }

    /// Returns the maximum number of server connections of a database and user on one node.
    pub fn pool_size(&self, database: &str, user: &str) -> usize {
        self.connection_limits(database, user).pool
    }

    /// Returns the maximum number of clients of this user, listed or not; `None`: no limit.
    pub fn most_clients_of(&self, user: &str) -> Option<usize> {
        self.user(user).and_then(|user| user.max_clients).or(self.max_clients_per_user)
    }

    /// Returns the limits on server connections to one node, for clients of this user in this database.
    pub fn connection_limits(&self, database: &str, user: &str) -> ConnectionLimits {
        let database = self.database(database).unwrap_or(&self.default);
        let user = self.user(user);
        let of_user = user.and_then(|user| user.max_connections);
        ConnectionLimits {
            pool: user.and_then(|user| user.pool_size).unwrap_or(database.pool_size).max(1),
            reserve: user.and_then(|user| user.reserve).unwrap_or(database.reserve),
            user: of_user.map_or(self.max_user_connections, Limit::get),
            database: database.max_connections,
            node: self.max_node_connections,
        }
    }
}

/// Returns every wrong line of a file of rules, each with its place.
fn rule_errors(path: &Path, errors: &[hba::Error]) -> String {
    let lines: Vec<String> =
        errors.iter().map(|error| format!("{}:{}: {}", path.display(), error.line, error.message)).collect();
    lines.join("\n")
}

/// Returns the rules for connecting clients; None: none are configured. `certificates`: clients can show theirs.
fn rules(config: &ProxyConfig, certificates: bool) -> Result<Option<Rules>, SettingsError> {
    let rules = match (&config.hba_file, config.hba.is_empty()) {
        (None, true) => return Ok(None),
        (Some(_), false) => return Err(SettingsError::TwoRules),
        (Some(path), true) => parsed("hba_file", path, Rules::parse)?,
        (None, false) => {
            let rule = |(index, entry): (usize, &HbaConfig)| {
                hba::Rule::from_fields(entry.fields()).map_err(|message| SettingsError::Rule { index, message })
            };
            let rules = config.hba.iter().enumerate().map(rule).collect::<Result<Vec<_>, _>>()?;
            Rules::new(rules).map_err(|message| SettingsError::Rule { index: hba::MAX_RULES, message })?
        }
    };
    let asks = |demand: &Demand| demand.certificate != Certificate::No || demand.method == AuthMethod::Cert;
    if !certificates && rules.iter().filter_map(|rule| rule.demand.as_deref()).any(asks) {
        return Err(SettingsError::RuleWithoutCertificates);
    }
    Ok(Some(rules))
}

/// Returns the traffic rules.
fn traffic(config: &ProxyConfig) -> Result<Vec<Rule>, SettingsError> {
    let mut rules: Vec<Rule> = Vec::new();
    for (index, entry) in config.traffic.iter().enumerate() {
        let rule = entry.rule().map_err(|source| SettingsError::Traffic { index, source })?;
        if rules.iter().any(|other| other.name == rule.name) {
            return Err(SettingsError::Twice { kind: "traffic rule", name: rule.name });
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// Returns the name maps; none without a file.
fn maps(config: &ProxyConfig, rules: Option<&Rules>) -> Result<Maps, SettingsError> {
    let maps = match &config.ident_file {
        None => Maps::default(),
        Some(path) => parsed("ident_file", path, Maps::parse)?,
    };
    let mut named = rules.into_iter().flat_map(Rules::iter).filter_map(|rule| rule.demand.as_ref()?.map.as_deref());
    match named.find(|map| !maps.has(map)) {
        Some(map) => Err(SettingsError::NoMap(map.to_owned())),
        None => Ok(maps),
    }
}

/// Returns the parsed content of the file that the setting `key` names.
fn parsed<T>(
    key: &'static str,
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, Vec<hba::Error>>,
) -> Result<T, SettingsError> {
    let path = path.to_owned();
    match read_bounded(&path) {
        Ok(text) => parse(&text).map_err(|errors| SettingsError::RuleFile { path, errors }),
        Err(source) => Err(SettingsError::RuleFileUnreadable { key, path, source }),
    }
}

/// Reads a file's text, at most one byte more than the limit on a file of rules: that suffices to report that it is too long.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(hba::MAX_TEXT as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

impl Operator {
    fn new(entry: &OperatorConfig, config: &ProxyConfig, certificates: bool) -> Result<Operator, SettingsError> {
        let account = User::new(&entry.as_user(), config, certificates)?;
        Ok(Operator { account, access: entry.role })
    }
}

impl User {
    /// Creates a user from its configuration. `certificates`: clients can show theirs.
    fn new(entry: &UserConfig, config: &ProxyConfig, certificates: bool) -> Result<User, SettingsError> {
        if entry.auth == Some(AuthMethod::Trust) && config.auth != AuthMethod::Trust {
            return Err(SettingsError::Trusted(entry.name.clone()));
        }
        if entry.auth.unwrap_or(config.auth) == AuthMethod::Cert && !certificates {
            return Err(SettingsError::NoCertificates(entry.name.clone()));
        }
        let demand = entry.auth.map(|method| config.demand(method)).transpose()?.map(Arc::new);
        let secrets = [
            entry.password.is_some(),
            entry.password_file.is_some(),
            !entry.password_command.is_empty(),
            entry.verifier.is_some(),
        ];
        if secrets.iter().filter(|given| **given).count() > 1 {
            return Err(SettingsError::Secrets(entry.name.clone()));
        }
        let password = match &entry.password {
            Some(password) => Some(password.clone()),
            None => read(&entry.name, entry.password_file.as_deref(), &entry.password_command)?,
        };
        let given =
            Given { password: password.as_deref(), verifier: entry.verifier.as_deref(), others: &entry.secrets };
        let secrets = Secrets::new(&entry.name, &given)
            .map_err(|source| SettingsError::Unusable { user: entry.name.clone(), source })?;
        Ok(User {
            demand,
            secrets,
            renewable: entry.renewable,
            pool_size: entry.pool_size,
            reserve: entry.reserve_pool_size,
            max_connections: entry.max_connections,
            wait_timeout: entry.wait_timeout,
            mode: entry.pool_mode,
            time_limits: OwnLimits {
                idle: entry.client_idle_timeout,
                idle_transaction: entry.idle_transaction_timeout,
                query: entry.query_timeout,
                transaction: entry.transaction_timeout,
            },
            replication: entry.replication,
            max_clients: entry.max_clients,
            relays: entry.commit_durability.map(|d| d.relays()),
        })
    }

    /// Creates a user that was looked up: with its entry in `pg_authid`, a password in clear text, or no secret. A verifier for the password is
    /// computed, which takes some milliseconds.
    ///
    /// # Errors
    /// The secret looks like a verifier and is none, or can't be a password.
    pub fn looked_up(name: &str, secret: Option<&str>) -> Result<User, SettingsError> {
        let secrets = Secrets::looked_up(name, secret)
            .map_err(|source| SettingsError::Unusable { user: name.to_owned(), source })?;
        Ok(User {
            demand: None,
            secrets,
            renewable: false,
            pool_size: None,
            reserve: None,
            max_connections: None,
            wait_timeout: None,
            mode: None,
            time_limits: OwnLimits::default(),
            replication: false,
            max_clients: None,
            relays: None,
        })
    }

    /// True if there is something that a client's proof can be compared with.
    pub fn has_secret(&self) -> bool {
        !self.secrets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::PoolConfig;

    #[test]
    fn a_wait_has_the_limit_of_the_user_or_else_of_the_database() {
        let seconds = Duration::from_secs;
        let database =
            |name: &str, wait_timeout| DatabaseConfig { name: name.into(), wait_timeout, ..Default::default() };
        let user = |name: &str, wait_timeout| UserConfig { name: name.into(), wait_timeout, ..Default::default() };
        let config = ProxyConfig {
            auth: AuthMethod::Trust,
            pool: PoolConfig { wait_timeout: seconds(30), ..PoolConfig::default() },
            databases: vec![database("shop", Some(seconds(10))), database("*", None)],
            users: vec![user("ann", Some(seconds(2))), user("bob", None)],
            ..ProxyConfig::default()
        };
        let settings = Settings::new(&config).unwrap();
        for (database, user, expected) in
            [("shop", "ann", 2), ("shop", "bob", 10), ("books", "ann", 2), ("books", "bob", 30)]
        {
            assert_eq!(settings.served(database, user).unwrap().wait_timeout, seconds(expected), "{database} {user}");
        }
    }

    #[test]
    fn an_unused_pool_is_forgotten_after_a_minute_or_never() {
        let mut config = ProxyConfig { auth: AuthMethod::Trust, ..ProxyConfig::default() };
        assert_eq!(Settings::new(&config).unwrap().pool_idle_timeout, Some(Duration::from_secs(60)));
        config.pool.idle_timeout = OrNever::NEVER;
        assert_eq!(Settings::new(&config).unwrap().pool_idle_timeout, None);
    }
}
