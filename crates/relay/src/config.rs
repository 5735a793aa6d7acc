//! What a user writes about a relay.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[relay]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RelayConfig {
    /// What the servers are.
    pub engine: Engine,
    /// `server_id` of the relay itself, among servers of MariaDB: one that none of them has. 0: none.
    pub server_id: u32,
    /// Where standbys connect, `host:port`. None: nobody is served.
    pub listen: Vec<String>,
    /// Directory of the log.
    pub dir: PathBuf,
    /// How downstreams prove who they are.
    pub auth: AuthMethod,
    /// `[relay.tls]`: TLS with downstreams.
    pub tls: tls::ListenConfig,
    /// Up to where downstreams are served.
    pub serve: ServeUpTo,
    /// Most downstream connections.
    pub max_downstreams: usize,
    /// Time from accept to a completed login.
    #[serde(with = "humantime_serde")]
    pub login_timeout: Duration,
    /// A downstream that has said nothing for this long is dropped.
    #[serde(with = "humantime_serde")]
    pub downstream_timeout: Duration,
    /// Whether what downstreams' queries still need is passed on to the upstream.
    pub hot_standby_feedback: bool,
    /// Bytes of WAL kept although no downstream needs them.
    pub keep_bytes: u64,
    /// Most bytes of WAL kept; a downstream that is further behind has to restore from an archive.
    pub max_bytes: u64,
    /// `[relay.upstream]`.
    pub upstream: UpstreamConfig,
    /// `[[relay.users]]`.
    pub users: Vec<UserConfig>,
}

impl Default for RelayConfig {
    fn default() -> Self {
        RelayConfig {
            engine: Engine::Postgresql,
            server_id: 0,
            listen: vec!["127.0.0.1:6442".into()],
            dir: "/var/lib/kingpost/relay".into(),
            auth: AuthMethod::ScramSha256,
            tls: tls::ListenConfig::default(),
            serve: ServeUpTo::Flushed,
            max_downstreams: 100,
            login_timeout: Duration::from_secs(15),
            downstream_timeout: Duration::from_secs(60),
            hot_standby_feedback: true,
            keep_bytes: 1 << 30,
            max_bytes: 64 << 30,
            upstream: UpstreamConfig::default(),
            users: Vec::new(),
        }
    }
}

/// What the servers are that a relay is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// PostgreSQL: the relay keeps its write-ahead log.
    Postgresql,
    /// MariaDB: the relay keeps its binary log.
    Mariadb,
}

/// `[relay.upstream]`: the server, or the relay, that WAL comes from.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamConfig {
    /// `host:port`, or the absolute path of a Unix socket. Empty: no relay is configured.
    pub address: String,
    /// User with the REPLICATION attribute.
    pub user: String,
    /// Its password.
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// File with its password in the first line.
    pub password_file: Option<PathBuf>,
    /// `[relay.upstream.tls]`: TLS with the upstream. Files are read for each connection.
    pub tls: tls::ConnectConfig,
    /// Permanent physical slot there, made when it is missing; empty: none is used.
    pub slot: String,
    /// What the upstream knows this relay as: the name for `synchronous_standby_names`.
    pub application_name: String,
    /// Longest time between two reports of how far the log is.
    #[serde(with = "humantime_serde")]
    pub status_interval: Duration,
    /// An upstream that has said nothing for this long is asked whether it is there. If it does not answer within the same time
    /// again, the relay says that it does not hear it, and keeps the connection.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// The connection to an upstream that has said nothing for this long is given up.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for UpstreamConfig {
    fn default() -> Self {
        UpstreamConfig {
            address: String::new(),
            user: "postgres".into(),
            password: None,
            password_file: None,
            tls: tls::ConnectConfig::default(),
            slot: "kingpost_relay".into(),
            application_name: "kingpost_relay".into(),
            status_interval: Duration::from_secs(10),
            heartbeat: Duration::from_millis(500),
            timeout: Duration::from_secs(20),
        }
    }
}

impl fmt::Debug for UpstreamConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamConfig")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("slot", &self.slot)
            .field("application_name", &self.application_name)
            .finish_non_exhaustive()
    }
}

/// `[[relay.users]]`: who may stream.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UserConfig {
    /// Name.
    pub name: String,
    /// Password.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File with the password in its first line.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// `SCRAM-SHA-256$…` as in `pg_authid`.
    #[serde(default, skip_serializing)]
    pub verifier: Option<String>,
    /// Whether it may also fence the relay and name its upstream, as `kingpost failover` does.
    #[serde(default)]
    pub operator: bool,
}

impl fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserConfig").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How downstreams prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// Not at all: only where every address is on the loopback.
    Trust,
    /// By password.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
}

/// Up to where downstreams are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServeUpTo {
    /// What is durable here: a replica never shows what the relay could lose.
    Flushed,
    /// What has arrived: one flush sooner, and safe only as long as the upstream lives.
    Written,
}
