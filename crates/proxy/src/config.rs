//! What a user writes about the proxy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[proxy]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyConfig {
    /// Where clients connect.
    pub listen: Vec<Listen>,
    /// Worker threads; 0 means one a core.
    pub workers: usize,
    /// What the workers wait with.
    pub driver: Driver,
    /// Unix socket by which another process of the same user can take over (`--take-over`, SIGUSR2); none: it cannot.
    pub upgrade_socket: Option<std::path::PathBuf>,
    /// For how long clients may stay with a process that was taken over.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
    /// How clients prove who they are.
    pub auth: AuthMethod,
    /// Who may come from where, and how: the first rule that fits takes the place of `auth`. None: no rules.
    pub hba: Vec<HbaConfig>,
    /// The same as a file in the form of `pg_hba.conf`; read again by a reload. Not together with `hba`.
    pub hba_file: Option<std::path::PathBuf>,
    /// Users that are not listed, or listed without a secret, are looked up on a server.
    pub auth_query: AuthQueryConfig,
    /// TLS with clients.
    pub tls: tls::ListenConfig,
    /// Most clients that are logged in at a time, all together; more are refused with 53300.
    pub max_clients: usize,
    /// Most connections of one IP address, the console's not counted; 0: as many as `max_clients`.
    pub max_clients_per_address: usize,
    /// Most connections that have not logged in yet; for a further one that which has been at it for longest is closed.
    pub max_logins: usize,
    /// Connections beyond `max_clients` that only operators get, in the console.
    pub reserved_clients: usize,
    /// Time from accept to a completed login.
    #[serde(with = "humantime_serde")]
    pub login_timeout: Duration,
    /// A client that is in no transaction and sends nothing for as long is closed; 0 means never.
    #[serde(with = "humantime_serde")]
    pub client_idle_timeout: Duration,
    /// A client that sends nothing for as long while it is in a transaction is closed; 0 means never.
    #[serde(with = "humantime_serde")]
    pub idle_transaction_timeout: Duration,
    /// A client whose statement runs for longer is closed, and the statement cancelled; 0 means never.
    #[serde(with = "humantime_serde")]
    pub query_timeout: Duration,
    /// A statement that takes as long is logged, its literals taken out; 0 means never.
    #[serde(with = "humantime_serde")]
    pub slow_statement: Duration,
    /// Which logins are in the log.
    pub log_logins: LogLogins,
    /// Shapes of statements that each worker counts for `SHOW STATEMENTS`; 0 means none.
    pub statements_kept: usize,
    /// Which statements are traced, and where that is sent.
    pub tracing: TracingConfig,
    /// Longest statement text that is looked at and kept, in bytes: a longer simple query or unnamed statement goes to
    /// the primary unexamined, a longer named statement is refused with 54000.
    pub max_statement_bytes: usize,
    /// Output kept for a slow client or server before its peer is no longer read, in bytes.
    pub buffer_limit: usize,
    /// Which of several proxies side by side this one is, from 1 to 31; 0 means there are no others. Clients of it have cancel keys
    /// that say so.
    pub peer_id: u8,
    /// The others, which cancel requests for their clients are passed on to.
    pub peers: Vec<PeerConfig>,
    /// This proxy's zone: reads prefer replicas of the same zone.
    pub zone: Option<String>,
    /// Pool settings for every database and user that has none of its own.
    pub pool: PoolConfig,
    /// Where statements go.
    pub routing: RoutingConfig,
    /// When a client hears that its transaction is committed.
    pub gate: GateConfig,
    /// LISTEN and NOTIFY.
    pub notify: NotifyConfig,
    /// Databases that clients may name. None listed: every name, passed on as it is.
    pub databases: Vec<DatabaseConfig>,
    /// Users that may log in. None listed (only possible with `auth = "trust"`): every name.
    pub users: Vec<UserConfig>,
    /// Who may log in to the console, the database `kingpost`, and to nothing else.
    pub operators: Vec<OperatorConfig>,
}

/// What workers wait with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// `epoll`, and a call for each read and write.
    Epoll,
    /// io_uring: a call a turn. Where the system does not let us, epoll, and a warning.
    IoUring,
    /// io_uring where the system lets us, or else epoll.
    Auto,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            listen: vec![Listen { address: "127.0.0.1:6432".into(), route: None }],
            workers: 0,
            driver: Driver::Epoll,
            upgrade_socket: None,
            drain_timeout: Duration::from_secs(600),
            auth: AuthMethod::ScramSha256,
            hba: Vec::new(),
            hba_file: None,
            auth_query: AuthQueryConfig::default(),
            tls: tls::ListenConfig::default(),
            max_clients: 10_000,
            max_clients_per_address: 0,
            max_logins: 5_000,
            reserved_clients: 8,
            login_timeout: Duration::from_secs(15),
            client_idle_timeout: Duration::ZERO,
            idle_transaction_timeout: Duration::ZERO,
            query_timeout: Duration::ZERO,
            slow_statement: Duration::ZERO,
            log_logins: LogLogins::Refused,
            statements_kept: 1_024,
            tracing: TracingConfig::default(),
            max_statement_bytes: 1 << 20,
            buffer_limit: 256 << 10,
            peer_id: 0,
            peers: Vec::new(),
            zone: None,
            pool: PoolConfig::default(),
            routing: RoutingConfig::default(),
            gate: GateConfig::default(),
            notify: NotifyConfig::default(),
            databases: Vec::new(),
            users: Vec::new(),
            operators: Vec::new(),
        }
    }
}

/// Which logins are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLogins {
    /// None.
    Off,
    /// Those that were refused, with the reason.
    Refused,
    /// Those, and whoever was let in.
    All,
}

/// `[[proxy.peers]]`: another proxy of the same fleet.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// Its `peer_id`.
    pub id: u8,
    /// Where it listens: `ip:port`, or the path of a Unix socket.
    pub address: String,
}

/// An address that clients connect to: a string, or a table with `route`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(from = "ListenForm", into = "ListenForm")]
pub struct Listen {
    /// `host:port`, or the absolute path of a Unix socket to make. Port 0 lets the system choose.
    pub address: String,
    /// Every statement of clients that come in here goes there, unless a hint says otherwise.
    pub route: Option<RouteTo>,
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum ListenForm {
    Plain(String),
    Full {
        address: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        route: Option<RouteTo>,
    },
}

impl From<ListenForm> for Listen {
    fn from(form: ListenForm) -> Listen {
        match form {
            ListenForm::Plain(address) => Listen { address, route: None },
            ListenForm::Full { address, route } => Listen { address, route },
        }
    }
}

impl From<Listen> for ListenForm {
    fn from(listen: Listen) -> ListenForm {
        match listen.route {
            None => ListenForm::Plain(listen.address),
            route => ListenForm::Full { address: listen.address, route },
        }
    }
}

/// A fixed destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteTo {
    /// The primary.
    Primary,
    /// A replica; what writes there is answered from the primary all the same.
    Replica,
    /// By what the statement is: the default.
    Auto,
}

impl RouteTo {
    /// As the configuration writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RouteTo::Primary => "primary",
            RouteTo::Replica => "replica",
            RouteTo::Auto => "auto",
        }
    }
}

/// How clients prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// No proof. Refused by `kingpost check` for an address that is not loopback or a Unix socket.
    Trust,
    /// SCRAM-SHA-256; under TLS also SCRAM-SHA-256-PLUS.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// MD5, for old clients; a user with a SCRAM verifier is asked for SCRAM all the same.
    Md5,
    /// A certificate whose common name (CN) is the user's name.
    Cert,
}

impl AuthMethod {
    /// As the configuration writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AuthMethod::Trust => "trust",
            AuthMethod::ScramSha256 => "scram-sha-256",
            AuthMethod::Md5 => "md5",
            AuthMethod::Cert => "cert",
        }
    }
}

/// `[[proxy.hba]]`: a rule, its fields as in a line of `pg_hba.conf`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HbaConfig {
    /// `local`, `host`, `hostssl`, `hostnossl`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Databases, separated by commas; `all`, `sameuser`.
    pub database: String,
    /// Users, separated by commas; `all`.
    pub user: String,
    /// `10.0.0.0/8`, `10.0.0.0 255.0.0.0` or `all`; not for `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// `trust`, `reject`, `scram-sha-256`, `md5`, `cert`; `clientcert=verify-ca` or `=verify-full` may follow.
    pub method: String,
}

/// `[proxy.tracing]`: OpenTelemetry's spans of statements.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// `http://host:port` of a collector that takes OTLP over gRPC; none: nothing is traced.
    pub endpoint: Option<String>,
    /// Share of statements that are traced by chance; none: only those that [`comments`](Self::comments) are for.
    pub ratio: Option<f64>,
    /// Whether a statement whose comment has a `traceparent` is traced when, and only when, that is sampled.
    pub comments: bool,
    /// What the spans are said to come from.
    pub service_name: String,
}

impl Default for TracingConfig {
    fn default() -> Self {
        TracingConfig { endpoint: None, ratio: None, comments: true, service_name: "kingpost".into() }
    }
}

/// `[proxy.auth_query]`: where the verifiers of users come from that the configuration has none of.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthQueryConfig {
    /// With the user's name as `$1`, gives at most one row: a name, and a secret as in `pg_authid` (or NULL). Empty: nobody is looked up.
    pub query: String,
    /// User that it runs as; the cluster's probing user if not given.
    pub user: Option<String>,
    /// Its password.
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// File that holds the password (one line).
    pub password_file: Option<std::path::PathBuf>,
    /// Database that it runs in; the probes' if not given.
    pub database: Option<String>,
    /// Time for which what was found is used again.
    #[serde(with = "humantime_serde")]
    pub cache: Duration,
    /// Time for which it is remembered that there is no such user.
    #[serde(with = "humantime_serde")]
    pub negative_cache: Duration,
    /// Longest time for a lookup, connecting included.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for AuthQueryConfig {
    fn default() -> Self {
        AuthQueryConfig {
            query: String::new(),
            user: None,
            password: None,
            password_file: None,
            database: None,
            cache: Duration::from_secs(60),
            negative_cache: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
        }
    }
}

impl AuthQueryConfig {
    /// Whether users are looked up.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.query.is_empty()
    }
}

impl std::fmt::Debug for AuthQueryConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthQueryConfig").field("query", &self.query).field("user", &self.user).finish_non_exhaustive()
    }
}

/// When a client holds on to a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolMode {
    /// For a transaction.
    Transaction,
    /// For a statement, or a batch of them in one message or up to one Sync: transaction blocks are refused.
    Statement,
    /// From its first statement until it leaves; everything goes to the primary.
    Session,
}

impl PoolMode {
    /// As the configuration writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PoolMode::Transaction => "transaction",
            PoolMode::Statement => "statement",
            PoolMode::Session => "session",
        }
    }
}

/// What is done about functions of which nothing is known, `DO` and `CALL`: they may leave anything in the session (parameters, advisory
/// locks, temporary tables), and the next client would meet it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownFunctions {
    /// Nothing.
    Trust,
    /// What they may have left is cleared before another client gets the server connection.
    #[default]
    Reset,
    /// Their client keeps its server connection.
    Pin,
}

/// What becomes of statements that are parsed without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnnamedMode {
    /// A server parses one text once, and keeps it for all clients, where nobody can tell.
    Shared,
    /// They are parsed each time.
    Parsed,
}

/// Whether statements of several clients may share a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaneMode {
    /// Plain reads that are known to be quick and small, when there are more of them than connections they would have to
    /// themselves. In transaction mode only.
    Auto,
    /// Never.
    Off,
}

/// `[proxy.pool]`: limits of server connections.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// When a client holds on to a server connection.
    pub mode: PoolMode,
    /// Most server connections for one database and user on one node.
    pub size: usize,
    /// Longest wait for a server connection; then 53300, and the client stays connected.
    #[serde(with = "humantime_serde")]
    pub wait_timeout: Duration,
    /// Longest wait while there is no primary.
    #[serde(with = "humantime_serde")]
    pub no_primary_timeout: Duration,
    /// A server connection older than this is closed when it is next idle; 0 means never.
    #[serde(with = "humantime_serde")]
    pub server_lifetime: Duration,
    /// A server connection idle for longer is closed; 0 means never.
    #[serde(with = "humantime_serde")]
    pub server_idle_timeout: Duration,
    /// Longest time to connect and log in to a server.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Prepared statements kept in one server connection; the longest unused is closed for a new one.
    pub prepared_per_server: usize,
    /// A BEGIN is answered at once, and goes to a server with the statement after it.
    pub defer_begin: bool,
    /// What is done about functions of which nothing is known.
    pub unknown_functions: UnknownFunctions,
    /// Whether an unnamed statement that comes again is kept by servers, as prepared ones are.
    pub unnamed: UnnamedMode,
    /// Whether statements of several clients may share a server connection.
    pub lanes: LaneMode,
    /// Most statements on one shared connection at a time.
    pub lane_depth: usize,
    /// Connections a worker uses for one database and user on one node before statements share them.
    pub lane_width: usize,
    /// A statement that runs for longer on a shared connection has it to itself from then on; a quarter of this is what counts as
    /// quick.
    #[serde(with = "humantime_serde")]
    pub lane_stall: Duration,
    /// Time that a worker with many statements on shared connections lets their answers gather before it looks at them; 0:
    /// none.
    #[serde(with = "humantime_serde")]
    pub lane_gather: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            mode: PoolMode::Transaction,
            size: 20,
            wait_timeout: Duration::from_secs(30),
            no_primary_timeout: Duration::from_secs(30),
            server_lifetime: Duration::from_secs(3600),
            server_idle_timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(5),
            prepared_per_server: 500,
            defer_begin: true,
            unknown_functions: UnknownFunctions::Reset,
            unnamed: UnnamedMode::Parsed,
            lanes: LaneMode::Auto,
            lane_depth: 16,
            lane_width: 2,
            lane_stall: Duration::from_millis(20),
            lane_gather: Duration::from_micros(100),
        }
    }
}

/// What a read on a replica is sure to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// What the replica has, within the cluster's lag limit.
    Eventual,
    /// At least everything this client has committed.
    Session,
    /// Everything that anybody was told to be committed before the read began.
    Strong,
}

impl Consistency {
    /// As the configuration writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Consistency::Eventual => "eventual",
            Consistency::Session => "session",
            Consistency::Strong => "strong",
        }
    }
}

/// `[proxy.routing]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// Where statements go by default: `auto` splits reads from writes.
    pub route: RouteTo,
    /// What a read on a replica is sure to see.
    pub consistency: Consistency,
    /// Longest time that a strong read waits for a replica that has everything it must see; then the primary answers it.
    #[serde(with = "humantime_serde")]
    pub strong_wait: Duration,
    /// Functions (`name` or `schema.name`) that only read, beyond PostgreSQL's own: SELECTs that call them may go to a
    /// replica.
    pub read_functions: Vec<String>,
    /// Statement shapes kept per worker.
    pub cache_entries: usize,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        RoutingConfig {
            route: RouteTo::Auto,
            consistency: Consistency::Session,
            strong_wait: Duration::from_millis(30),
            read_functions: Vec::new(),
            cache_entries: 5_000,
        }
    }
}

/// Where a commit is durable when its client hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum CommitDurability {
    /// On the primary, as PostgreSQL itself sees to it.
    Local,
    /// Also on so many relays: `relay` is one, `quorum(2)` two.
    Relays(usize),
}

/// A text that is no [`CommitDurability`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected \"local\", \"relay\" or \"quorum(n)\" with n from 1 to {most}", most = topology::MOST_RELAYS)]
pub struct NoDurability(String);

impl TryFrom<String> for CommitDurability {
    type Error = NoDurability;

    fn try_from(text: String) -> Result<CommitDurability, NoDurability> {
        let quorum = || text.strip_prefix("quorum(")?.strip_suffix(')')?.parse().ok();
        match text.as_str() {
            "local" => Ok(CommitDurability::Local),
            "relay" => Ok(CommitDurability::Relays(1)),
            _ => match quorum() {
                Some(relays) if (1..=topology::MOST_RELAYS).contains(&relays) => Ok(CommitDurability::Relays(relays)),
                _ => Err(NoDurability(text)),
            },
        }
    }
}

impl From<CommitDurability> for String {
    fn from(durability: CommitDurability) -> String {
        match durability {
            CommitDurability::Local => "local".into(),
            CommitDurability::Relays(1) => "relay".into(),
            CommitDurability::Relays(relays) => format!("quorum({relays})"),
        }
    }
}

impl CommitDurability {
    /// How many relays.
    #[must_use]
    pub fn relays(self) -> usize {
        match self {
            CommitDurability::Local => 0,
            CommitDurability::Relays(relays) => relays,
        }
    }
}

/// What becomes of commits while too few relays confirm them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDegraded {
    /// They wait, and new writes are refused: nothing is acknowledged that is not durable.
    Wait,
    /// They are acknowledged though only the primary has them.
    Local,
}

/// Who flushes the primary's log for commits that are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// Every commit for itself.
    Commit,
    /// The oracle, for all commits of a batch; on servers before PostgreSQL 17 as [`Flush::Commit`].
    Batch,
    /// The same on all servers: before PostgreSQL 17 by a transaction, which takes a transaction id a batch.
    BatchTransaction,
}

impl From<Flush> for topology::Flushing {
    fn from(flush: Flush) -> topology::Flushing {
        match flush {
            Flush::Commit => topology::Flushing::Commits,
            Flush::Batch => topology::Flushing::Questions,
            Flush::BatchTransaction => topology::Flushing::Transactions,
        }
    }
}

/// `[proxy.gate]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Where a commit is durable when its client hears of it.
    pub commit_durability: CommitDurability,
    /// What becomes of commits while too few relays confirm them.
    pub on_degraded: OnDegraded,
    /// For how long too few relays must have confirmed anything for that.
    #[serde(with = "humantime_serde")]
    pub degraded_after: Duration,
    /// Longest time that an answer is held back; then the client's connection ends with 08007: the outcome is unknown.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Whether reads on the primary are held back, too, until what they may show is durable.
    pub read_barrier: bool,
    /// Who flushes the primary's log for them.
    pub flush: Flush,
}

impl Default for GateConfig {
    fn default() -> Self {
        GateConfig {
            commit_durability: CommitDurability::Local,
            on_degraded: OnDegraded::Wait,
            degraded_after: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            read_barrier: false,
            flush: Flush::Commit,
        }
    }
}

/// Who listens for clients that LISTEN, in transaction and statement mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenMode {
    /// One server connection for all clients of a database and user.
    Shared,
    /// Each client's own, which it then keeps.
    Pinned,
}

/// `[proxy.notify]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyConfig {
    /// Who listens.
    pub listen: ListenMode,
    /// Channels of one client; one that wants more keeps its server connection.
    pub channels_per_client: usize,
    /// Channels of one shared connection; a client that wants a further one keeps its server connection.
    pub channels: usize,
    /// Notifications kept for a client that does not read, or is in a transaction, in bytes; with more it is closed.
    pub queue_bytes: usize,
}

impl Default for NotifyConfig {
    fn default() -> Self {
        NotifyConfig { listen: ListenMode::Shared, channels_per_client: 256, channels: 10_000, queue_bytes: 1 << 20 }
    }
}

/// `[[proxy.databases]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// Name that clients give; `*` stands for every name not listed.
    pub name: String,
    /// Name on the servers; the same if not given.
    #[serde(default)]
    pub dbname: Option<String>,
    /// Who logs in to the servers for this database; if not given, each client's own user.
    #[serde(default)]
    pub server_user: Option<String>,
    /// The password of `server_user`.
    #[serde(default, skip_serializing)]
    pub server_password: Option<Secret>,
    /// A file that holds it in its first line.
    #[serde(default)]
    pub server_password_file: Option<std::path::PathBuf>,
    /// Pool size for this database.
    #[serde(default)]
    pub pool_size: Option<usize>,
    /// Most clients of this database.
    #[serde(default)]
    pub max_clients: Option<usize>,
    /// Pool mode for this database.
    #[serde(default)]
    pub pool_mode: Option<PoolMode>,
    /// What is done about functions of which nothing is known, for this database.
    #[serde(default)]
    pub unknown_functions: Option<UnknownFunctions>,
    /// Whether statements may share server connections, for this database.
    #[serde(default)]
    pub lanes: Option<LaneMode>,
    /// Consistency for this database.
    #[serde(default)]
    pub consistency: Option<Consistency>,
    /// Where this database's commits are durable.
    #[serde(default)]
    pub commit_durability: Option<CommitDurability>,
    /// What becomes of this database's commits while too few relays confirm them.
    #[serde(default)]
    pub on_degraded: Option<OnDegraded>,
    /// Whether this database's reads on the primary are held back, too.
    #[serde(default)]
    pub read_barrier: Option<bool>,
    /// Destination for this database: an alias with `route = "replica"` is a read-only address.
    #[serde(default)]
    pub route: Option<RouteTo>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// `[[proxy.users]]`. Of `password`, `password_file` and `verifier` at most one; without any the user can log in only
/// under `auth = "trust"`.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UserConfig {
    /// Name, for clients and on the servers.
    pub name: String,
    /// How this user proves who it is; as `proxy.auth` if not given. Never `trust`.
    #[serde(default)]
    pub auth: Option<AuthMethod>,
    /// Password, for clients and towards the servers.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File that holds the password (one line).
    #[serde(default)]
    pub password_file: Option<std::path::PathBuf>,
    /// `SCRAM-SHA-256$…` or `md5…` as in `pg_authid`: enough to let clients in, and, with what a client shows then, to log in to
    /// servers that have the same.
    #[serde(default, skip_serializing)]
    pub verifier: Option<String>,
    /// Pool size for this user.
    #[serde(default)]
    pub pool_size: Option<usize>,
    /// Most clients of this user.
    #[serde(default)]
    pub max_clients: Option<usize>,
    /// Where this user's commits are durable, whatever the database says.
    #[serde(default)]
    pub commit_durability: Option<CommitDurability>,
}

impl std::fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserConfig")
            .field("name", &self.name)
            .field("auth", &self.auth)
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}

/// What somebody may do in the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Look: `SHOW`.
    Viewer,
    /// Look and act: everything.
    #[default]
    Operator,
}

impl Access {
    /// As the configuration writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Access::Viewer => "viewer",
            Access::Operator => "operator",
        }
    }
}

/// `[[proxy.operators]]`: an account that manages the proxy and reads nobody's data. Of `password`, `password_file` and
/// `verifier` at most one, as with users.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorConfig {
    /// Name.
    pub name: String,
    /// How this operator proves who it is; as `proxy.auth` if not given. Never `trust`.
    #[serde(default)]
    pub auth: Option<AuthMethod>,
    /// Password.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File that holds the password (one line).
    #[serde(default)]
    pub password_file: Option<std::path::PathBuf>,
    /// `SCRAM-SHA-256$…` as in `pg_authid`.
    #[serde(default, skip_serializing)]
    pub verifier: Option<String>,
    /// What is allowed.
    #[serde(default)]
    pub role: Access,
}

impl OperatorConfig {
    /// Its name and secrets, as those of a user.
    #[must_use]
    pub fn as_user(&self) -> UserConfig {
        UserConfig {
            name: self.name.clone(),
            auth: self.auth,
            password: self.password.clone(),
            password_file: self.password_file.clone(),
            verifier: self.verifier.clone(),
            pool_size: None,
            max_clients: None,
            commit_durability: None,
        }
    }
}

impl std::fmt::Debug for OperatorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperatorConfig").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}
