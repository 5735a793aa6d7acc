//! The configuration, resolved: what the workers look things up in.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wire::md5;
use wire::scram::Verifier;

use crate::config::{
    Access, AuthMethod, Consistency, LaneMode, OperatorConfig, PoolMode, ProxyConfig, RouteTo, UserConfig,
};
use crate::console;

/// Everything a worker needs to know of the configuration. Immutable; a reload makes a new one.
#[derive(Debug)]
pub struct Settings {
    /// How clients prove who they are, unless their user says otherwise.
    pub auth: AuthMethod,
    /// TLS with clients; None: there is none.
    pub tls: Option<Arc<tls::Acceptor>>,
    /// Most clients.
    pub max_clients: usize,
    /// Clients beyond these, for the console alone.
    pub reserved_clients: usize,
    /// Time from accept to a completed login.
    pub login_timeout: Duration,
    /// Longest named statement, in bytes.
    pub max_statement: usize,
    /// Output kept for a slow peer, in bytes.
    pub buffer_limit: usize,
    /// This proxy's zone.
    pub zone: Option<String>,
    /// Longest wait for a server connection.
    pub wait_timeout: Duration,
    /// Longest wait for a primary.
    pub no_primary_timeout: Duration,
    /// Age at which an idle server connection is closed.
    pub server_lifetime: Option<Duration>,
    /// Idle time after which it is closed.
    pub server_idle_timeout: Option<Duration>,
    /// Longest time to connect and log in to a server.
    pub connect_timeout: Duration,
    /// Prepared statements per server connection.
    pub prepared_per_server: usize,
    /// Shared lanes.
    pub lanes: Lanes,
    /// Longest time that a strong read waits for a replica.
    pub strong_wait: Duration,
    /// Functions that only read.
    pub read_functions: Vec<String>,
    /// Statement shapes kept per worker.
    pub cache_entries: usize,
    default: Database,
    pool_size: usize,
    databases: HashMap<String, Database>,
    any_database: bool,
    users: HashMap<String, User>,
    operators: HashMap<String, Operator>,
}

/// Somebody who may log in to the console, and nowhere else.
#[derive(Debug, Clone)]
pub struct Operator {
    /// How it proves who it is.
    pub account: User,
    /// What is allowed.
    pub access: Access,
}

/// Which statements share server connections, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lanes {
    /// Most statements in one lane.
    pub depth: usize,
    /// Lanes a worker, pool and node before statements share one.
    pub width: usize,
    /// A shape that usually takes as long has connections to itself.
    pub slow: Duration,
    /// A statement that has run for as long has its connection to itself from then on.
    pub stall: Duration,
    /// Time that answers are let gather; 0: none.
    pub gather: Duration,
    /// A shape that answers as much has connections to itself, in bytes.
    pub bytes: u32,
}

/// Answers up to this size share a lane, in bytes: they can be held back until they are whole.
const LANE_BYTES: u32 = 12 << 10;

/// How a database is served.
#[derive(Debug, Clone, PartialEq)]
pub struct Database {
    /// Its name on the servers; None: as the client says.
    pub dbname: Option<String>,
    /// Server connections a user and node.
    pub pool_size: usize,
    /// When a client holds on to a server connection.
    pub mode: PoolMode,
    /// Whether statements of several clients may share a server connection.
    pub lanes: bool,
    /// What a read on a replica is sure to see.
    pub consistency: Consistency,
    /// Where statements go.
    pub route: RouteTo,
}

/// A user that may log in.
#[derive(Clone)]
pub struct User {
    /// How it proves who it is.
    pub auth: AuthMethod,
    /// What a client must prove to know; None: nothing to compare with, so SCRAM does not let the user in.
    pub verifier: Option<Verifier>,
    /// The same for MD5; also what MD5 towards a server takes.
    pub md5: Option<md5::Verifier>,
    /// Towards the servers.
    pub password: Option<String>,
    /// Pool size of this user.
    pub pool_size: Option<usize>,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("pool_size", &self.pool_size).finish_non_exhaustive()
    }
}

/// What makes a configuration unusable.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// More than one secret, where one is expected.
    #[error("user {0:?}: give at most one of password, password_file and verifier")]
    Secrets(String),
    /// The password can't be used.
    #[error("user {user:?}: password: {source}")]
    Password {
        /// Whose.
        user: String,
        /// Why.
        source: wire::scram::Error,
    },
    /// The verifier is not one.
    #[error(
        "user {0:?}: verifier: expected SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> or md5<hash> as in pg_authid"
    )]
    Verifier(String),
    /// Certificates or keys can't be used.
    #[error("[proxy.tls] {0}")]
    Tls(#[from] tls::Error),
    /// A user proves who it is by its certificate, and nobody is asked for one.
    #[error(
        "user {0:?} has auth = \"cert\": [proxy.tls] needs a mode other than \"disable\" and a client_cert other than \"none\""
    )]
    NoCertificates(String),
    /// A single user is trusted.
    #[error("user {0:?} has auth = \"trust\", which is possible for all users together only")]
    Trusted(String),
    /// The password file can't be read.
    #[error("user {user:?}: cannot read password_file {path}: {source}")]
    PasswordFile {
        /// Whose.
        user: String,
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A second entry of the same name.
    #[error("{kind} {name:?} is configured twice")]
    Twice {
        /// `user` or `database`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

impl Settings {
    /// Resolves a configuration: reads password files and computes verifiers, which takes some milliseconds a user.
    pub fn new(config: &ProxyConfig) -> Result<Settings, SettingsError> {
        let default = Database {
            dbname: None,
            pool_size: config.pool.size,
            mode: config.pool.mode,
            lanes: config.pool.lanes == LaneMode::Auto,
            consistency: config.routing.consistency,
            route: config.routing.route,
        };
        let mut databases = HashMap::new();
        for entry in &config.databases {
            let database = Database {
                dbname: entry.dbname.clone(),
                pool_size: entry.pool_size.unwrap_or(default.pool_size),
                mode: entry.pool_mode.unwrap_or(default.mode),
                lanes: entry.lanes.map_or(default.lanes, |lanes| lanes == LaneMode::Auto),
                consistency: entry.consistency.unwrap_or(default.consistency),
                route: entry.route.unwrap_or(default.route),
            };
            if databases.insert(entry.name.clone(), database).is_some() {
                return Err(SettingsError::Twice { kind: "database", name: entry.name.clone() });
            }
        }
        let tls = tls::Acceptor::new(&config.tls)?.map(Arc::new);
        let certificates = tls.as_ref().is_some_and(|tls| tls.client_cert != tls::ClientCert::None);
        let mut users = HashMap::new();
        for entry in &config.users {
            if users.insert(entry.name.clone(), User::new(entry, config.auth, certificates)?).is_some() {
                return Err(SettingsError::Twice { kind: "user", name: entry.name.clone() });
            }
        }
        let mut operators = HashMap::new();
        for entry in &config.operators {
            if operators.insert(entry.name.clone(), Operator::new(entry, config.auth, certificates)?).is_some() {
                return Err(SettingsError::Twice { kind: "operator", name: entry.name.clone() });
            }
        }
        let unless_zero = |d: Duration| (!d.is_zero()).then_some(d);
        Ok(Settings {
            auth: config.auth,
            tls,
            max_clients: config.max_clients,
            reserved_clients: config.reserved_clients,
            login_timeout: config.login_timeout,
            max_statement: config.max_statement_bytes,
            buffer_limit: config.buffer_limit.max(64 << 10),
            zone: config.zone.clone(),
            wait_timeout: config.pool.wait_timeout,
            no_primary_timeout: config.pool.no_primary_timeout,
            server_lifetime: unless_zero(config.pool.server_lifetime),
            server_idle_timeout: unless_zero(config.pool.server_idle_timeout),
            connect_timeout: config.pool.connect_timeout,
            prepared_per_server: config.pool.prepared_per_server.max(1),
            lanes: Lanes {
                depth: config.pool.lane_depth.max(1),
                width: config.pool.lane_width.max(1),
                slow: config.pool.lane_stall / 4,
                stall: config.pool.lane_stall,
                gather: config.pool.lane_gather,
                bytes: LANE_BYTES,
            },
            strong_wait: config.routing.strong_wait,
            read_functions: config.routing.read_functions.clone(),
            cache_entries: config.routing.cache_entries,
            pool_size: default.pool_size,
            default,
            any_database: databases.is_empty() || databases.contains_key("*"),
            databases,
            users,
            operators,
        })
    }

    /// How the database of this name is served; None: there is no such database.
    pub fn database(&self, name: &str) -> Option<&Database> {
        match self.databases.get(name) {
            Some(database) => Some(database),
            None if self.any_database => Some(self.databases.get("*").unwrap_or(&self.default)),
            None => None,
        }
    }

    /// How a database without settings of its own is served.
    pub fn default_database(&self) -> &Database {
        &self.default
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// True if any name may log in: nobody is listed.
    pub fn any_user(&self) -> bool {
        self.users.is_empty()
    }

    /// Every database that is listed, `*` left out.
    pub fn databases(&self) -> impl Iterator<Item = (&str, &Database)> {
        self.databases.iter().map(|(name, database)| (name.as_str(), database)).filter(|(name, _)| *name != "*")
    }

    /// Every user that is listed.
    pub fn users(&self) -> impl Iterator<Item = (&str, &User)> {
        self.users.iter().map(|(name, user)| (name.as_str(), user))
    }

    /// Every operator.
    pub fn operators(&self) -> impl Iterator<Item = (&str, &Operator)> {
        self.operators.iter().map(|(name, operator)| (name.as_str(), operator))
    }

    /// True if this name stands for the console: it does unless a database of that name is listed.
    pub fn is_console(&self, database: &str) -> bool {
        console::DATABASES.contains(&database) && !self.databases.contains_key(database)
    }

    /// Under `trust`: may this name log in?
    pub fn trusts(&self, user: &str, console: bool) -> bool {
        if console {
            self.operators.is_empty() || self.operators.contains_key(user)
        } else {
            self.any_user() || self.users.contains_key(user)
        }
    }

    /// The user of this name, or the operator.
    pub fn account(&self, name: &str, console: bool) -> Option<&User> {
        if console { self.operators.get(name).map(|operator| &operator.account) } else { self.users.get(name) }
    }

    /// What a client of the console, who is who it says, may do. Who got in without being listed came by `trust`, where
    /// everybody may be anybody.
    pub fn access(&self, operator: &str) -> Access {
        self.operators.get(operator).map_or(Access::Operator, |operator| operator.access)
    }

    /// Most server connections of a database and user on one node.
    pub fn pool_size(&self, database: &str, user: &str) -> usize {
        let of_user = self.user(user).and_then(|user| user.pool_size);
        of_user.or_else(|| self.database(database).map(|d| d.pool_size)).unwrap_or(self.pool_size).max(1)
    }
}

impl Operator {
    fn new(entry: &OperatorConfig, auth: AuthMethod, certificates: bool) -> Result<Operator, SettingsError> {
        let account = User::new(&entry.as_user(), auth, certificates)?;
        Ok(Operator { account, access: entry.role })
    }
}

impl User {
    /// `auth`: for one that does not say; `certificates`: clients can show theirs.
    fn new(entry: &UserConfig, auth: AuthMethod, certificates: bool) -> Result<User, SettingsError> {
        if entry.auth == Some(AuthMethod::Trust) && auth != AuthMethod::Trust {
            return Err(SettingsError::Trusted(entry.name.clone()));
        }
        let auth = entry.auth.unwrap_or(auth);
        if auth == AuthMethod::Cert && !certificates {
            return Err(SettingsError::NoCertificates(entry.name.clone()));
        }
        let secrets = [entry.password.is_some(), entry.password_file.is_some(), entry.verifier.is_some()];
        if secrets.iter().filter(|given| **given).count() > 1 {
            return Err(SettingsError::Secrets(entry.name.clone()));
        }
        let password = match (&entry.password, &entry.password_file) {
            (Some(password), _) => Some(password.clone()),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path).map_err(|source| SettingsError::PasswordFile {
                    user: entry.name.clone(),
                    path: path.clone(),
                    source,
                })?;
                Some(text.lines().next().unwrap_or_default().to_owned())
            }
            (None, None) => None,
        };
        let md5 = match (&password, &entry.verifier) {
            (Some(password), _) => Some(md5::Verifier::new(&entry.name, password)),
            (None, Some(text)) => md5::Verifier::parse(text),
            (None, None) => None,
        };
        let verifier = match (&password, &entry.verifier) {
            (Some(password), _) => Some(
                Verifier::from_password(password)
                    .map_err(|source| SettingsError::Password { user: entry.name.clone(), source })?,
            ),
            (None, Some(_)) if md5.is_some() => None,
            (None, Some(text)) => Some(Verifier::parse(text).map_err(|_| SettingsError::Verifier(entry.name.clone()))?),
            (None, None) => None,
        };
        Ok(User { auth, verifier, md5, password, pool_size: entry.pool_size })
    }
}
