//! The proxy's part of the configuration file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hba::Fields;
use crate::traffic::{self, Given, Rate, Rule, RuleError};

pub use secret::Secret;

/// `[proxy]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyConfig {
    /// The addresses that clients connect to.
    pub listen: Vec<Listen>,
    /// Number of worker threads; 0: one per CPU core.
    pub workers: usize,
    /// Interface by which workers wait for their sockets.
    pub driver: Driver,
    /// The Unix socket by which another process of the same user can take over (`--take-over`, SIGUSR2). Not set: no
    /// process can.
    pub upgrade_socket: Option<std::path::PathBuf>,
    /// Longest time for which clients stay with a process that a new one has taken over.
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
    /// The authentication method of clients.
    pub auth: AuthMethod,
    /// Rules that decide by address, database and user if a client may connect, and with which method. The first rule that fits replaces `auth`. Not
    /// set: no rules.
    pub hba: Vec<HbaConfig>,
    /// A file with such rules in the format of `pg_hba.conf`, which a reload reads again. Not together with `hba`.
    pub hba_file: Option<std::path::PathBuf>,
    /// A file with name maps for rules with `map=`, in the format of `pg_ident.conf`, which a reload reads again.
    pub ident_file: Option<std::path::PathBuf>,
    /// Lookup on a server of users that are not listed, or listed without a secret.
    pub auth_query: AuthQueryConfig,
    /// Options of the LDAP servers that rules name.
    pub ldap: LdapConfig,
    /// Options of PAM.
    pub pam: PamConfig,
    /// Options for the check of GSSAPI tokens.
    pub gss: GssConfig,
    /// Requirements on tokens of the issuers that rules name.
    pub oauth: OAuthConfig,
    /// TLS with clients.
    pub tls: tls::ListenConfig,
    /// Most clients that are logged in at a time, over all databases. Further ones are refused with 53300.
    pub max_clients: usize,
    /// Most connections from one IP address, not counting the console's; 0: as many as `max_clients`.
    pub max_clients_per_address: usize,
    /// Most clients of one user, for each that has no limit of its own; 0: as many as `max_clients`.
    pub max_clients_per_user: usize,
    /// Most connections that have not logged in yet. For a further one, the connection whose login has taken the
    /// longest is closed.
    pub max_logins: usize,
    /// Connections beyond `max_clients`, for operators in the console only.
    pub reserved_clients: usize,
    /// Longest time from accept until the client has authenticated.
    #[serde(with = "humantime_serde")]
    pub login_timeout: Duration,
    /// A client that is idle outside a transaction for this long is closed; 0: never.
    #[serde(with = "humantime_serde")]
    pub client_idle_timeout: Duration,
    /// A client that is idle in a transaction for this long is closed; 0: never.
    #[serde(with = "humantime_serde")]
    pub idle_transaction_timeout: Duration,
    /// A client whose statement runs for longer than this is closed, and the statement is cancelled; 0: never.
    #[serde(with = "humantime_serde")]
    pub query_timeout: Duration,
    /// Longest time in one transaction; 0 means no limit.
    #[serde(with = "humantime_serde")]
    pub transaction_timeout: Duration,
    /// A statement that takes at least this long is logged, without its literals; 0: never.
    #[serde(with = "humantime_serde")]
    pub slow_statement: Duration,
    /// Logins that are written to the log.
    pub log_logins: LogLogins,
    /// Statement shapes that each worker counts for `SHOW STATEMENTS`; 0: none.
    pub statements_kept: usize,
    /// Selection of traced statements, and the receiver of their spans.
    pub tracing: TracingConfig,
    /// Longest statement text that is examined and kept, in bytes. A longer simple query or unnamed statement goes to
    /// the primary unexamined. A longer named statement is refused with 54000.
    pub max_statement_bytes: usize,
    /// Most output buffered for a slow client or server before the other side is not read any more, in bytes.
    pub buffer_limit: usize,
    /// The number of this proxy among several, from 1 to 31; 0 if there is only one. The process ids that clients are
    /// told contain this number.
    pub peer_id: u8,
    /// The other proxies: a cancel request for one of their clients is passed on.
    pub peers: Vec<PeerConfig>,
    /// Zone of this proxy: reads prefer replicas of the same zone.
    pub zone: Option<String>,
    /// Pool settings for databases and users without settings of their own.
    pub pool: PoolConfig,
    /// Routing of statements.
    pub routing: RoutingConfig,
    /// Durability that a commit needs before its client gets the answer.
    pub gate: GateConfig,
    /// LISTEN and NOTIFY.
    pub notify: NotifyConfig,
    /// The databases that clients may ask for. If none is listed, any name is passed on to the servers.
    pub databases: Vec<DatabaseConfig>,
    /// Limits on statements, by user, database and statement.
    pub traffic: Vec<TrafficConfig>,
    /// The users that may log in. If none is listed (possible with `auth = "trust"` only), any name may.
    pub users: Vec<UserConfig>,
    /// Users of the console (the database `kingpost`). They can't log in to other databases.
    pub operators: Vec<OperatorConfig>,
}

/// Interface by which workers wait for their sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Driver {
    /// `epoll`, with a system call for each read and write.
    Epoll,
    /// io_uring, with one system call a turn. If the system does not permit io_uring: epoll, with a warning.
    IoUring,
    /// io_uring if the system permits it, otherwise epoll.
    Auto,
}

impl Default for ProxyConfig {
    fn default() -> Self {
        ProxyConfig {
            listen: vec![Listen::at("127.0.0.1:6432")],
            workers: 0,
            driver: Driver::Epoll,
            upgrade_socket: None,
            drain_timeout: Duration::from_secs(600),
            auth: AuthMethod::ScramSha256,
            hba: Vec::new(),
            hba_file: None,
            ident_file: None,
            auth_query: AuthQueryConfig::default(),
            ldap: LdapConfig::default(),
            pam: PamConfig::default(),
            gss: GssConfig::default(),
            oauth: OAuthConfig::default(),
            tls: tls::ListenConfig::default(),
            max_clients: 10_000,
            max_clients_per_address: 0,
            max_clients_per_user: 0,
            max_logins: 5_000,
            reserved_clients: 8,
            login_timeout: Duration::from_secs(15),
            client_idle_timeout: Duration::ZERO,
            idle_transaction_timeout: Duration::ZERO,
            query_timeout: Duration::ZERO,
            transaction_timeout: Duration::ZERO,
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
            traffic: Vec::new(),
            users: Vec::new(),
            operators: Vec::new(),
        }
    }
}

/// Logins that are written to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLogins {
    /// None.
    Off,
    /// Refused logins, with the reason.
    Refused,
    /// Refused and accepted logins.
    All,
}

/// `[[proxy.traffic]]`: a limit on statements. All that is given has to apply to a statement.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficConfig {
    /// The rule's name, by which operators change it.
    pub name: String,
    /// The cluster whose statements it is about, where there are several; if not given, each cluster has the limits for itself.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The clients' user.
    #[serde(default)]
    pub user: Option<String>,
    /// The database, by the name that clients use.
    #[serde(default)]
    pub database: Option<String>,
    /// The statement: a fingerprint as `SHOW STATEMENTS` has it, or a text. Literals do not count.
    #[serde(default)]
    pub statement: Option<String>,
    /// Reads or writes. Not set: both.
    #[serde(default)]
    pub access: Option<TrafficAccess>,
    /// `user`, `database` or both: each of them has the limits for itself. Not set: all share them.
    #[serde(default)]
    pub each: Vec<TrafficEach>,
    /// Number of statements per time, such as `100/s`, `30/min`, `500/h`.
    #[serde(default)]
    pub rate: Option<String>,
    /// Most statements at once; if not given, as many as `rate` allows in a second.
    #[serde(default)]
    pub burst: Option<u32>,
    /// Most clients that run such a statement at the same time.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// True if the rule refuses every such statement.
    #[serde(default)]
    pub block: bool,
    /// True if the rule refuses nothing and only counts the statements that it would refuse.
    #[serde(default)]
    pub dry_run: bool,
}

/// Kind of statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrafficAccess {
    /// Statements that replicas may run.
    Read,
    /// Other statements, including doubtful ones.
    Write,
}

/// Unit with limits of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrafficEach {
    /// Each user.
    User,
    /// Each database.
    Database,
}

impl TrafficConfig {
    /// As a configuration would have this rule.
    #[must_use]
    pub fn of(rule: &Rule) -> TrafficConfig {
        let (whose, limits) = (&rule.whose, rule.limits);
        let access = |access| match access {
            sql::Access::Read => TrafficAccess::Read,
            sql::Access::Write => TrafficAccess::Write,
        };
        let each = [(whose.each_user, TrafficEach::User), (whose.each_database, TrafficEach::Database)];
        TrafficConfig {
            name: rule.name.clone(),
            cluster: None,
            user: whose.user.clone(),
            database: whose.database.clone(),
            statement: whose.statement.map(traffic::digits),
            access: whose.access.map(access),
            each: each.into_iter().filter_map(|(is, each)| is.then_some(each)).collect(),
            rate: limits.rate.map(Rate::written),
            burst: limits.rate.map(Rate::burst),
            concurrency: limits.concurrency,
            block: limits.block,
            dry_run: rule.dry_run,
        }
    }

    /// Returns the rule.
    ///
    /// # Errors
    /// The part that is invalid.
    pub fn rule(&self) -> Result<Rule, RuleError> {
        let access = |access| match access {
            TrafficAccess::Read => sql::Access::Read,
            TrafficAccess::Write => sql::Access::Write,
        };
        let given = Given {
            name: self.name.clone(),
            user: self.user.clone(),
            database: self.database.clone(),
            statement: self.statement.clone(),
            access: self.access.map(access),
            each_user: self.each.contains(&TrafficEach::User),
            each_database: self.each.contains(&TrafficEach::Database),
            rate: self.rate.clone(),
            burst: self.burst,
            concurrency: self.concurrency,
            block: self.block,
            dry_run: self.dry_run,
        };
        given.check()
    }
}

/// `[[proxy.peers]]`: another proxy of the same fleet.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// The other proxy's `peer_id`.
    pub id: u8,
    /// The other proxy's address: `ip:port`, or the path of a Unix socket.
    pub address: String,
}

/// An address that clients connect to: a string, or a table with `route`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(from = "ListenForm", into = "ListenForm")]
pub struct Listen {
    /// `host:port`, or the absolute path of a Unix socket to make. Port 0 lets the system choose.
    pub address: String,
    /// Routing of statements of clients of this address, unless a hint says otherwise.
    pub route: Option<RouteTo>,
    /// The permissions of a Unix socket; `None`: by the process's umask.
    pub mode: Option<SocketMode>,
    /// The group of a Unix socket, by name or number; `None`: the process's.
    pub group: Option<String>,
}

impl Listen {
    /// Creates a listener of an address, without further settings.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Listen {
        Listen { address: address.into(), route: None, mode: None, group: None }
    }
}

/// Permissions of a Unix socket, in octal digits: `"0770"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

/// A text that is no [`SocketMode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected permissions in octal digits such as \"0770\"")]
pub struct NoMode(String);

impl TryFrom<String> for SocketMode {
    type Error = NoMode;

    fn try_from(text: String) -> Result<SocketMode, NoMode> {
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if octal && mode <= 0o777 => Ok(SocketMode(mode)),
            _ => Err(NoMode(text)),
        }
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> String {
        format!("{:04o}", mode.0)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum ListenForm {
    Plain(String),
    Full {
        address: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        route: Option<RouteTo>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<SocketMode>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<String>,
    },
}

impl From<ListenForm> for Listen {
    fn from(form: ListenForm) -> Listen {
        match form {
            ListenForm::Plain(address) => Listen::at(address),
            ListenForm::Full { address, route, mode, group } => Listen { address, route, mode, group },
        }
    }
}

impl From<Listen> for ListenForm {
    fn from(listen: Listen) -> ListenForm {
        let Listen { address, route, mode, group } = listen;
        match (route, mode, &group) {
            (None, None, None) => ListenForm::Plain(address),
            _ => ListenForm::Full { address, route, mode, group },
        }
    }
}

/// Routing of statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteTo {
    /// To the primary.
    Primary,
    /// To a replica. A statement that writes is run on the primary nevertheless.
    Replica,
    /// Reads to replicas, writes to the primary: the default.
    Auto,
}

impl RouteTo {
    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RouteTo::Primary => "primary",
            RouteTo::Replica => "replica",
            RouteTo::Auto => "auto",
        }
    }
}

/// Authentication method of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// Without proof. `kingpost check` refuses it for an address that is neither loopback nor a Unix socket.
    Trust,
    /// SCRAM-SHA-256; under TLS also SCRAM-SHA-256-PLUS.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// MD5, for old clients. A user with a SCRAM verifier is asked for SCRAM nevertheless.
    Md5,
    /// A certificate whose common name (CN) is the user's name, or that a name map lets be the user.
    Cert,
    /// The operating system identifies the user at the other end of a Unix socket. In rules only.
    #[serde(skip)]
    Peer,
    /// A directory judges the password that the client sends in clear: by the options of the rule, or of `[proxy.ldap]`.
    Ldap,
    /// PAM judges the password that the client sends in clear: by the options of the rule, or of `[proxy.pam]`.
    Pam,
    /// Kerberos identifies the client, by GSSAPI. In rules only.
    #[serde(skip)]
    Gss,
    /// A token that an issuer has signed identifies the client. In rules only.
    #[serde(skip)]
    OAuth,
}

impl AuthMethod {
    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AuthMethod::Trust => "trust",
            AuthMethod::ScramSha256 => "scram-sha-256",
            AuthMethod::Md5 => "md5",
            AuthMethod::Cert => "cert",
            AuthMethod::Peer => "peer",
            AuthMethod::Ldap => "ldap",
            AuthMethod::Pam => "pam",
            AuthMethod::Gss => "gss",
            AuthMethod::OAuth => "oauth",
        }
    }

    /// True if the method proves a client's identity by something other than a secret that the proxy knows: a certificate, the operating system, or
    /// an external authenticator of the password or the token.
    #[must_use]
    pub fn proves_otherwise(self) -> bool {
        matches!(
            self,
            AuthMethod::Cert
                | AuthMethod::Peer
                | AuthMethod::Ldap
                | AuthMethod::Pam
                | AuthMethod::Gss
                | AuthMethod::OAuth
        )
    }
}

/// `[proxy.ldap]`: the options of `auth = "ldap"`, and those that PostgreSQL's rules do not have.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LdapConfig {
    /// The options of `auth = "ldap"`, as behind the method in a rule: `ldapserver=… ldapbasedn=…`. There may be a password among them. A rule
    /// has its own.
    #[serde(skip_serializing)]
    pub options: Option<Secret>,
    /// PEM: CAs that certificates of LDAP servers are verified with; not set: the system's.
    pub ca_file: Option<std::path::PathBuf>,
    /// Longest time in which all servers of a rule together have to judge a password.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Most logins that servers are asked about at a time; further ones wait.
    pub max_binds: usize,
}

impl Default for LdapConfig {
    fn default() -> Self {
        LdapConfig { options: None, ca_file: None, timeout: Duration::from_secs(10), max_binds: 32 }
    }
}

/// `[proxy.pam]`: the options of `auth = "pam"`, and those that PostgreSQL's rules do not have.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PamConfig {
    /// The options of `auth = "pam"`, as behind the method in a rule: `pamservice=…`. A rule has its own.
    pub options: String,
    /// The program that asks PAM; not set: `kingpost-pam` beside the running program.
    pub helper: Option<std::path::PathBuf>,
    /// Longest time in which PAM has to judge a password. The modules are killed after that.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Most logins that PAM is asked about at a time, each by a process; further ones wait.
    pub max_checks: usize,
}

impl Default for PamConfig {
    fn default() -> Self {
        PamConfig { options: String::new(), helper: None, timeout: Duration::from_secs(10), max_checks: 32 }
    }
}

/// `[proxy.gss]`: options that PostgreSQL's rules do not have.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GssConfig {
    /// The program that looks at tokens; not set: `kingpost-gss` beside the running program.
    pub helper: Option<std::path::PathBuf>,
    /// The keytab with the proxy's keys; not set: the system's.
    pub keytab: Option<std::path::PathBuf>,
    /// True if the comparison of names ignores case, as PostgreSQL's `krb_caseins_users`.
    pub case_insensitive: bool,
    /// Longest time in which a token has to be looked at.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Most tokens that are looked at at a time, each by a process; further ones wait.
    pub max_checks: usize,
}

impl Default for GssConfig {
    fn default() -> Self {
        GssConfig {
            helper: None,
            keytab: None,
            case_insensitive: false,
            timeout: Duration::from_secs(10),
            max_checks: 32,
        }
    }
}

/// `[proxy.oauth]`: options that PostgreSQL's rules do not have.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OAuthConfig {
    /// Accepted audiences of tokens (`aud`). An empty list accepts no token: an issuer makes tokens for other applications, too, whose operators
    /// could log in with those of their users.
    pub audience: Vec<String>,
    /// Claim with the name of the bearer.
    pub claim: String,
    /// Claim with the users as which the bearer may log in, for rules with `delegate_ident_mapping=1`: a name, or a list of names.
    pub users_claim: Option<String>,
    /// PEM: CAs that certificates of issuers are verified with; not set: the system's.
    pub ca_file: Option<std::path::PathBuf>,
    /// Longest time for the verification of a token, including queries to its issuer.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Most logins that wait for an answer of one issuer; further ones are refused. Logins whose key is known do not wait.
    pub max_questions: usize,
}

impl Default for OAuthConfig {
    fn default() -> Self {
        OAuthConfig {
            audience: Vec::new(),
            claim: "sub".into(),
            users_claim: None,
            ca_file: None,
            timeout: Duration::from_secs(10),
            max_questions: 32,
        }
    }
}

/// `[[proxy.hba]]`: a rule, with fields as in a line of `pg_hba.conf`.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
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
    /// `trust`, `reject`, `scram-sha-256`, `md5`, `cert`, `peer`, `ldap`, `pam`, `gss`, `oauth`; `clientcert=verify-ca` or `=verify-full`, and
    /// `map=NAME`, may follow.
    pub method: String,
}

impl HbaConfig {
    /// Returns the rule's fields.
    #[must_use]
    pub fn fields(&self) -> Fields<'_> {
        Fields {
            kind: &self.kind,
            database: &self.database,
            user: &self.user,
            address: self.address.as_deref(),
            method: &self.method,
        }
    }
}

impl std::fmt::Debug for HbaConfig {
    /// Writes only the name of `method`: an option behind the name may be a password (`ldapbindpasswd`).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method: String = self.method.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        f.debug_struct("HbaConfig")
            .field("kind", &self.kind)
            .field("database", &self.database)
            .field("user", &self.user)
            .field("address", &self.address)
            .field("method", &method)
            .finish_non_exhaustive()
    }
}

/// `[proxy.tracing]`: OpenTelemetry spans of statements.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// `http://host:port` or `https://host:port` of a collector that takes OTLP over gRPC. Not set: nothing is traced.
    pub endpoint: Option<String>,
    /// Share of statements that are traced by chance. Not set: none, except for those of [`comments`](Self::comments).
    pub ratio: Option<f64>,
    /// True if a `traceparent` in a statement's comment decides: the statement is traced if, and only if, its parent is sampled.
    pub comments: bool,
    /// The service name in the spans.
    pub service_name: String,
    /// PEM: CAs that the collector's certificate is verified with; the system's if not set.
    pub ca_file: Option<std::path::PathBuf>,
    /// PEM: the certificate that is shown to the collector.
    pub cert_file: Option<std::path::PathBuf>,
    /// PEM: that certificate's private key.
    pub key_file: Option<std::path::PathBuf>,
    /// Sent with each request, each `name: value`.
    #[serde(skip_serializing)]
    pub headers: Vec<String>,
}

impl Default for TracingConfig {
    fn default() -> Self {
        TracingConfig {
            endpoint: None,
            ratio: None,
            comments: true,
            service_name: "kingpost".into(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            headers: Vec::new(),
        }
    }
}

impl std::fmt::Debug for TracingConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A header may be a token.
        f.debug_struct("TracingConfig")
            .field("endpoint", &self.endpoint)
            .field("ratio", &self.ratio)
            .field("comments", &self.comments)
            .finish_non_exhaustive()
    }
}

/// `[proxy.auth_query]`: how the accounts of users without a configured secret are looked up.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthQueryConfig {
    /// The query. It gets the user's name as `$1` and gives at most one row: the name, and the secret as in `pg_authid`
    /// (or NULL). Empty: no user is looked up.
    pub query: String,
    /// The user that runs the query; the cluster's probing user if not set.
    pub user: Option<String>,
    /// The password of that user.
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// File that holds the password (one line).
    pub password_file: Option<std::path::PathBuf>,
    /// Program, with its arguments, that writes the password to its standard output.
    pub password_command: Vec<String>,
    /// The database in which the query runs; that of the probes if not set.
    pub database: Option<String>,
    /// Time for which a found account is cached.
    #[serde(with = "humantime_serde")]
    pub cache: Duration,
    /// Time for which the absence of a user is cached.
    #[serde(with = "humantime_serde")]
    pub negative_cache: Duration,
    /// Longest time for a lookup, including the connection.
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
            password_command: Vec::new(),
            database: None,
            cache: Duration::from_secs(60),
            negative_cache: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
        }
    }
}

impl AuthQueryConfig {
    /// True if users are looked up.
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

/// Time for which a client keeps a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolMode {
    /// For a transaction.
    Transaction,
    /// For a statement, or for several in one message or up to one Sync. Transaction blocks are refused.
    Statement,
    /// From the client's first statement until the client leaves. Everything goes to the primary.
    Session,
}

impl PoolMode {
    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PoolMode::Transaction => "transaction",
            PoolMode::Statement => "statement",
            PoolMode::Session => "session",
        }
    }
}

/// Treatment of `DO`, `CALL` and unknown functions. They may leave anything in the session (parameters, advisory locks, temporary tables), which the
/// next client would see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownFunctions {
    /// As if they left nothing.
    Trust,
    /// The session is cleaned of everything they may have left, before another client gets the server connection.
    #[default]
    Reset,
    /// The client keeps its server connection.
    Pin,
}

/// Treatment of unnamed statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnnamedMode {
    /// A server parses a recurring text once and keeps it for all clients, if no client can notice.
    Shared,
    /// Each one is parsed every time.
    Parsed,
}

/// Sharing of server connections between statements of several clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaneMode {
    /// Yes, for plain reads that are known to be fast and small, if there are more of them than connections. In
    /// transaction mode only.
    Auto,
    /// No.
    Off,
}

/// `[proxy.pool]`: limits of server connections.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Time for which a client keeps a server connection.
    pub mode: PoolMode,
    /// Most server connections for one database and user on one node.
    pub size: usize,
    /// Server connections to the primary that are kept open for one database and user while it has clients.
    pub min_size: usize,
    /// Server connections beyond `size`, for clients that have waited for `reserve_timeout`.
    pub reserve_size: usize,
    /// Time that a client waits before it may use a connection of the reserve.
    #[serde(with = "humantime_serde")]
    pub reserve_timeout: Duration,
    /// Most server connections of one user to one node, with all databases; 0: no limit.
    pub max_user_connections: usize,
    /// Most server connections of one database to one node, for all users; 0: no limit.
    pub max_database_connections: usize,
    /// Most server connections of all databases and users to one node; 0: no limit.
    pub max_node_connections: usize,
    /// Time that a client waits for a server connection before it gets a notice; 0: no notice.
    #[serde(with = "humantime_serde")]
    pub wait_notice: Duration,
    /// Longest wait of a statement or a login for a server connection. After that it fails with 53300, or with 57P03 if no server was reached; a
    /// statement's client stays connected.
    #[serde(with = "humantime_serde")]
    pub wait_timeout: Duration,
    /// Longest wait while there is no primary. After that a statement or a login fails with 57P03.
    #[serde(with = "humantime_serde")]
    pub no_primary_timeout: Duration,
    /// A server connection older than this is closed when it is next idle; 0 means never.
    #[serde(with = "humantime_serde")]
    pub server_lifetime: Duration,
    /// Each server connection lives for up to this much longer than `server_lifetime`, by chance: connections that were
    /// opened together are closed apart.
    #[serde(with = "humantime_serde")]
    pub server_lifetime_jitter: Duration,
    /// A server connection that is idle for longer than this is closed; 0: never.
    #[serde(with = "humantime_serde")]
    pub server_idle_timeout: Duration,
    /// Longest time to connect and log in to a server.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Most prepared statements in one server connection. For a new one, the least recently used is closed.
    pub prepared_per_server: usize,
    /// Most bytes of one client's named prepared statements. A client with more is closed with 53400.
    pub prepared_bytes_per_client: usize,
    /// True if a BEGIN is answered at once and sent to a server together with the next statement.
    pub defer_begin: bool,
    /// Treatment of unknown functions.
    pub unknown_functions: UnknownFunctions,
    /// Treatment of unnamed statements: a server may keep one that recurs, like a prepared one.
    pub unnamed: UnnamedMode,
    /// Sharing of server connections between statements of several clients.
    pub lanes: LaneMode,
    /// Most statements on one shared connection at a time.
    pub lane_depth: usize,
    /// Connections that a worker uses for one database and user on one node, before statements share them.
    pub lane_width: usize,
    /// Run time of a statement on a shared connection after which the statements behind it are sent elsewhere. Statements that take less than a
    /// quarter of this count as fast.
    #[serde(with = "humantime_serde")]
    pub lane_stall: Duration,
    /// Time for which a worker with many statements on shared connections lets their answers gather before it reads them; 0: none.
    #[serde(with = "humantime_serde")]
    pub lane_gather: Duration,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            mode: PoolMode::Transaction,
            size: 20,
            min_size: 0,
            reserve_size: 0,
            reserve_timeout: Duration::from_secs(5),
            max_user_connections: 0,
            max_database_connections: 0,
            max_node_connections: 0,
            wait_notice: Duration::ZERO,
            wait_timeout: Duration::from_secs(30),
            no_primary_timeout: Duration::from_secs(30),
            server_lifetime: Duration::from_secs(3600),
            server_lifetime_jitter: Duration::ZERO,
            server_idle_timeout: Duration::from_secs(600),
            connect_timeout: Duration::from_secs(5),
            prepared_per_server: 500,
            prepared_bytes_per_client: 64 << 20,
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

/// Commits that a read on a replica is guaranteed to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Consistency {
    /// The replica's current state, within the cluster's lag limit.
    Eventual,
    /// At least everything this client has committed.
    Session,
    /// At least all commits that were acknowledged to any client before the read began.
    Strong,
}

impl Consistency {
    /// Returns the name in the configuration.
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
    /// Default routing of statements: `auto` splits reads from writes.
    pub route: RouteTo,
    /// Commits that a read on a replica is guaranteed to see.
    pub consistency: Consistency,
    /// The primary's weight among the nodes that answer reads, beside those of the nodes; 0: it answers them only where
    /// no replica can.
    pub primary_weight: u32,
    /// Longest wait of a strong read for a replica that has replayed enough. After that the primary answers.
    #[serde(with = "humantime_serde")]
    pub strong_wait: Duration,
    /// Functions (`name` or `schema.name`) that only read, besides PostgreSQL's own. A SELECT that calls them may go to
    /// a replica.
    pub read_functions: Vec<String>,
    /// Most statement shapes that each worker caches.
    pub cache_entries: usize,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        RoutingConfig {
            route: RouteTo::Auto,
            consistency: Consistency::Session,
            primary_weight: 0,
            strong_wait: Duration::from_millis(30),
            read_functions: Vec::new(),
            cache_entries: 5_000,
        }
    }
}

/// Durability that a commit needs before its client gets the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum CommitDurability {
    /// On the primary, as PostgreSQL guarantees.
    Local,
    /// Also on this many relays: `relay` means one, `quorum(2)` two.
    Relays(usize),
}

/// A text that is not a valid [`CommitDurability`].
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
    /// Returns the number of relays.
    #[must_use]
    pub fn relays(self) -> usize {
        match self {
            CommitDurability::Local => 0,
            CommitDurability::Relays(relays) => relays,
        }
    }
}

/// Treatment of commits while too few relays confirm them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDegraded {
    /// Commits wait, and new writes are refused: a commit that is not durable is never acknowledged.
    Wait,
    /// Commits are acknowledged, although only the primary has them.
    Local,
}

/// Flush of the primary's log for commits that are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// Each commit flushes by itself.
    Commit,
    /// The oracle has one flush done for all commits of a batch. On servers before PostgreSQL 17: like
    /// [`Flush::Commit`].
    Batch,
    /// Like [`Flush::Batch`] on all servers. Before PostgreSQL 17 it takes a transaction, and so a transaction id, per
    /// batch.
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
    /// Durability that a commit needs before its client gets the answer.
    pub commit_durability: CommitDurability,
    /// Treatment of commits while too few relays confirm them.
    pub on_degraded: OnDegraded,
    /// Time with too few confirming relays after which `on_degraded` applies.
    #[serde(with = "humantime_serde")]
    pub degraded_after: Duration,
    /// Longest time that an answer is held back. After that the client is closed with 08007: the outcome is unknown.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// True if answers to reads on the primary are also held back, until the data that they may show is durable.
    pub read_barrier: bool,
    /// Flush of the primary's log for commits that are held back.
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

/// Server connection that executes a client's LISTEN, in transaction and statement mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ListenMode {
    /// One server connection for all clients of a database and user.
    Shared,
    /// The client's server connection, which the client then keeps.
    Pinned,
}

/// `[proxy.notify]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyConfig {
    /// Server connection that executes LISTEN.
    pub listen: ListenMode,
    /// Most channels of one client. A client that wants more keeps its server connection.
    pub channels_per_client: usize,
    /// Most channels of one shared connection. A client that wants a further channel keeps its server connection.
    pub channels: usize,
    /// Most notifications waiting for a client that does not read or is in a transaction, in bytes. A client with more
    /// is closed.
    pub queue_bytes: usize,
}

impl Default for NotifyConfig {
    fn default() -> Self {
        NotifyConfig { listen: ListenMode::Shared, channels_per_client: 256, channels: 10_000, queue_bytes: 1 << 20 }
    }
}

/// `[[proxy.databases]]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseConfig {
    /// The name that clients use; `*` stands for every name that is not listed.
    pub name: String,
    /// The cluster that has it, where there are several; if not given, the first one.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The name on the servers; the same if not set.
    #[serde(default)]
    pub dbname: Option<String>,
    /// Login on the servers for this database; if not given, each client's own user.
    #[serde(default)]
    pub server_user: Option<String>,
    /// True if the sessions of each client take the client's user as their role, as by `SET ROLE`; only together with `server_user`.
    #[serde(default)]
    pub set_role: bool,
    /// The password of `server_user`.
    #[serde(default, skip_serializing)]
    pub server_password: Option<Secret>,
    /// A file that holds it in its first line.
    #[serde(default)]
    pub server_password_file: Option<std::path::PathBuf>,
    /// A program, with its arguments, that writes it to its standard output.
    #[serde(default)]
    pub server_password_command: Vec<String>,
    /// True if the password was read from a file or a command, and can be read again. Not part of the configuration: set by the code that reads the
    /// password.
    #[serde(skip)]
    pub server_renewable: bool,
    /// Pool size for this database.
    #[serde(default)]
    pub pool_size: Option<usize>,
    /// Server connections to the primary that are kept open for a user of this database while it has clients.
    #[serde(default)]
    pub min_pool_size: Option<usize>,
    /// Server connections beyond a pool's size, for clients that have waited for `reserve_timeout`.
    #[serde(default)]
    pub reserve_pool_size: Option<usize>,
    /// Most server connections of this database to one node, for all users; 0: no limit.
    #[serde(default)]
    pub max_connections: Option<usize>,
    /// A statement that is run on each server connection of this database before a client gets it.
    #[serde(default)]
    pub connect_query: Option<String>,
    /// Parameters that server connections of this database start with, each `name=value`.
    #[serde(default)]
    pub parameters: Vec<String>,
    /// Age at which a server connection of this database is closed when it is next idle; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub server_lifetime: Option<Duration>,
    /// `client_idle_timeout` for this database; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub client_idle_timeout: Option<Duration>,
    /// `idle_transaction_timeout` for this database; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub idle_transaction_timeout: Option<Duration>,
    /// `query_timeout` for this database; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub query_timeout: Option<Duration>,
    /// `transaction_timeout` for this database; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub transaction_timeout: Option<Duration>,
    /// True if clients may open logical replication connections (`replication=database`) to this database.
    #[serde(default)]
    pub replication: bool,
    /// Most clients of this database.
    #[serde(default)]
    pub max_clients: Option<usize>,
    /// Pool mode for this database.
    #[serde(default)]
    pub pool_mode: Option<PoolMode>,
    /// Treatment of unknown functions, for this database.
    #[serde(default)]
    pub unknown_functions: Option<UnknownFunctions>,
    /// Sharing of server connections between statements, for this database.
    #[serde(default)]
    pub lanes: Option<LaneMode>,
    /// Consistency for this database.
    #[serde(default)]
    pub consistency: Option<Consistency>,
    /// Durability that this database's commits need before the client gets the answer.
    #[serde(default)]
    pub commit_durability: Option<CommitDurability>,
    /// Treatment of this database's commits while too few relays confirm them.
    #[serde(default)]
    pub on_degraded: Option<OnDegraded>,
    /// True if answers to this database's reads on the primary are held back as well.
    #[serde(default)]
    pub read_barrier: Option<bool>,
    /// Routing of this database's statements. An alias with `route = "replica"` is a read-only address.
    #[serde(default)]
    pub route: Option<RouteTo>,
}

/// `[[proxy.users]]`. At most one of `password`, `password_file`, `password_command` and `verifier` may be set. Without any, the user can
/// log in only under `auth = "trust"`.
#[derive(Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UserConfig {
    /// The name, for clients and on the servers.
    pub name: String,
    /// The cluster that the entry is for, where there are several; if not given, all of them, but for those with an entry of their own.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The user's authentication method; `proxy.auth` if not set. Never `trust`.
    #[serde(default)]
    pub auth: Option<AuthMethod>,
    /// The password, for clients and for logins to servers.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File that holds the password (one line).
    #[serde(default)]
    pub password_file: Option<std::path::PathBuf>,
    /// Program, with its arguments, that writes the password to its standard output.
    #[serde(default)]
    pub password_command: Vec<String>,
    /// True if the password was read from a file or a command, and can be read again. Not part of the configuration: set by the code that reads the
    /// password.
    #[serde(skip)]
    pub renewable: bool,
    /// `SCRAM-SHA-256$…` or `md5…` as in `pg_authid`. It suffices to authenticate clients. With the proof of a client the proxy can then log in to
    /// servers that have the same verifier.
    #[serde(default, skip_serializing)]
    pub verifier: Option<String>,
    /// Further secrets, each a password or a verifier by its form: clients may log in with any of them, and servers that refuse the first
    /// password are offered the next one. For the time in which a password is being changed.
    #[serde(default, skip_serializing)]
    pub secrets: Vec<Secret>,
    /// Pool size for this user.
    #[serde(default)]
    pub pool_size: Option<usize>,
    /// Server connections beyond the pool's size for this user; overrides the database's.
    #[serde(default)]
    pub reserve_pool_size: Option<usize>,
    /// Most server connections of this user to one node, with all databases; 0: no limit.
    #[serde(default)]
    pub max_connections: Option<usize>,
    /// Pool mode for this user; overrides the database's.
    #[serde(default)]
    pub pool_mode: Option<PoolMode>,
    /// `client_idle_timeout` for this user; overrides the database's; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub client_idle_timeout: Option<Duration>,
    /// `idle_transaction_timeout` for this user; overrides the database's; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub idle_transaction_timeout: Option<Duration>,
    /// `query_timeout` for this user; overrides the database's; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub query_timeout: Option<Duration>,
    /// `transaction_timeout` for this user; overrides the database's; 0 means never.
    #[serde(default, with = "humantime_serde")]
    pub transaction_timeout: Option<Duration>,
    /// True if this user may open replication connections, physical ones and logical ones of every database.
    #[serde(default)]
    pub replication: bool,
    /// Most clients of this user.
    #[serde(default)]
    pub max_clients: Option<usize>,
    /// Durability that this user's commits need; overrides the database's.
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

/// Permissions of a user of the console.
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
    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Access::Viewer => "viewer",
            Access::Operator => "operator",
        }
    }
}

/// `[[proxy.operators]]`: an account that manages the proxy and can't read data. At most one of `password`,
/// `password_file` and `verifier`, as with users.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorConfig {
    /// Name.
    pub name: String,
    /// The operator's authentication method; `proxy.auth` if not set. Never `trust`.
    #[serde(default)]
    pub auth: Option<AuthMethod>,
    /// Password.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File that holds the password (one line).
    #[serde(default)]
    pub password_file: Option<std::path::PathBuf>,
    /// Program, with its arguments, that writes the password to its standard output.
    #[serde(default)]
    pub password_command: Vec<String>,
    /// `SCRAM-SHA-256$…` as in `pg_authid`.
    #[serde(default, skip_serializing)]
    pub verifier: Option<String>,
    /// Further secrets, as with users.
    #[serde(default, skip_serializing)]
    pub secrets: Vec<Secret>,
    /// Permissions of the operator.
    #[serde(default)]
    pub role: Access,
}

impl OperatorConfig {
    /// Returns the operator's name and secrets as those of a user.
    #[must_use]
    pub fn as_user(&self) -> UserConfig {
        UserConfig {
            name: self.name.clone(),
            auth: self.auth,
            password: self.password.clone(),
            password_file: self.password_file.clone(),
            password_command: self.password_command.clone(),
            verifier: self.verifier.clone(),
            secrets: self.secrets.clone(),
            ..UserConfig::default()
        }
    }
}

impl std::fmt::Debug for OperatorConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperatorConfig").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}
