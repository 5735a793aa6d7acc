//! Configuration of a relay.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[relay]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RelayConfig {
    /// Kind of the servers.
    pub engine: Engine,
    /// `server_id` of the relay itself, unique among the MariaDB servers. 0: none.
    pub server_id: u32,
    /// Addresses for standbys, `host:port`. Empty: no standby is served.
    pub listen: Vec<String>,
    /// Directory of the log.
    pub dir: PathBuf,
    /// Authentication method for downstreams.
    pub auth: AuthMethod,
    /// `[relay.tls]`: TLS with downstreams.
    pub tls: tls::ListenConfig,
    /// Limit of the WAL that downstreams get.
    pub serve: ServeUpTo,
    /// Most downstream connections.
    pub max_downstreams: usize,
    /// Time from accept to a completed login.
    #[serde(with = "humantime_serde")]
    pub login_timeout: Duration,
    /// Time without a message after which a downstream is dropped.
    #[serde(with = "humantime_serde")]
    pub downstream_timeout: Duration,
    /// True if the downstreams' hot-standby feedback is passed on to the upstream.
    pub hot_standby_feedback: bool,
    /// Bytes of WAL kept although no downstream needs them.
    pub keep_bytes: u64,
    /// Most bytes of WAL kept; a downstream further behind has to restore from an archive.
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

/// Kind of the servers that a relay serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// PostgreSQL: the relay stores its write-ahead log.
    Postgresql,
    /// MariaDB: the relay stores its binary log.
    Mariadb,
}

/// `[relay.upstream]`: the server, or the relay, that the WAL comes from.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamConfig {
    /// `host:port`, or the absolute path of a Unix socket. Empty: no upstream is configured.
    pub address: String,
    /// User with the REPLICATION attribute.
    pub user: String,
    /// Password of the user.
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// `[relay.upstream.tls]`: TLS with the upstream. Files are read for each connection.
    pub tls: tls::ConnectConfig,
    /// Permanent physical slot there, created if missing; empty: none is used.
    pub slot: String,
    /// Name of this relay at the upstream, for `synchronous_standby_names`.
    pub application_name: String,
    /// Longest time between two reports of the log's position.
    #[serde(with = "humantime_serde")]
    pub status_interval: Duration,
    /// Time without a message after which the upstream is asked for a reply. After the same time again without a reply the relay reports it as
    /// silent, and keeps the connection.
    #[serde(with = "humantime_serde")]
    pub heartbeat: Duration,
    /// Time without a message after which the connection to the upstream is closed.
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

/// `[[relay.users]]`: a user that may stream.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UserConfig {
    /// Name.
    pub name: String,
    /// Password.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File whose first line is the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// `SCRAM-SHA-256$…` as in `pg_authid`.
    #[serde(default, skip_serializing)]
    pub verifier: Option<String>,
    /// True if the user may also fence the relay and set its upstream, as `kingpost failover` does.
    #[serde(default)]
    pub operator: bool,
}

impl fmt::Debug for UserConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserConfig").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Authentication method for downstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthMethod {
    /// None: only if every address is on the loopback.
    Trust,
    /// Password, by SCRAM-SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
}

/// Limit of the WAL that downstreams get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServeUpTo {
    /// WAL durable here: a replica never shows data that the relay could lose.
    Flushed,
    /// WAL received: one flush sooner, and safe only as long as the upstream lives.
    Written,
}
