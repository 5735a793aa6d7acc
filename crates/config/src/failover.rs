//! Configuration of failovers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::relay::config::Engine;
use serde::{Deserialize, Serialize};

use crate::etcd::EtcdConfig;

/// `[failover]`: settings of `kingpost failover`, `switchover` and `watch` beside `[cluster]`.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FailoverConfig {
    /// Kind of the servers.
    pub engine: Engine,
    /// User on the servers that may promote and set `primary_conninfo`: a superuser.
    pub user: String,
    /// Password of the user.
    #[serde(skip_serializing)]
    pub password: Option<String>,
    /// File whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// `[failover.tls]`: TLS with relays and proxies; servers are reached as `[cluster.tls]` says.
    pub tls: tls::ConnectConfig,
    /// Number of relays that must have a commit before it is acknowledged: the others may be missing at a failover.
    pub acknowledgements: usize,
    /// Longest time for one step.
    #[serde(with = "humantime_serde")]
    pub step_timeout: Duration,
    /// Zones whose nodes may become the primary without being named; none: all.
    pub zones: Vec<String>,
    /// A standby that lacks more than this many bytes does not become the primary without being named; None: there is no limit.
    pub lag_limit: Option<u64>,
    /// Program that stops a server cleanly, with its arguments; empty: none.
    pub stop: Vec<String>,
    /// Program that brings a former primary back as a standby; empty: none, and a message gives advice.
    pub rejoin: Vec<String>,
    /// Name of whatever brings a former primary back by itself, for messages; empty: nothing does.
    pub rejoined_by: String,
    /// `[failover.etcd]`.
    pub etcd: EtcdConfig,
    /// `[[failover.relays]]`.
    pub relays: Vec<RelayPartConfig>,
    /// `[[failover.proxies]]`.
    pub proxies: Vec<PartConfig>,
}

impl Default for FailoverConfig {
    fn default() -> Self {
        FailoverConfig {
            engine: Engine::Postgresql,
            user: "postgres".into(),
            password: None,
            password_file: None,
            tls: tls::ConnectConfig::default(),
            acknowledgements: 1,
            step_timeout: Duration::from_secs(60),
            zones: Vec::new(),
            lag_limit: None,
            stop: Vec::new(),
            rejoin: Vec::new(),
            rejoined_by: String::new(),
            etcd: EtcdConfig::default(),
            relays: Vec::new(),
            proxies: Vec::new(),
        }
    }
}

impl fmt::Debug for FailoverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailoverConfig")
            .field("engine", &self.engine)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("acknowledgements", &self.acknowledgements)
            .field("step_timeout", &self.step_timeout)
            .field("zones", &self.zones)
            .field("lag_limit", &self.lag_limit)
            .field("stop", &self.stop)
            .field("rejoin", &self.rejoin)
            .field("rejoined_by", &self.rejoined_by)
            .field("etcd", &self.etcd)
            .field("relays", &self.relays)
            .field("proxies", &self.proxies)
            .finish_non_exhaustive()
    }
}

/// A proxy that is paused; or the address of a relay.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// Unique among its kind.
    pub name: String,
    /// `host:port`, for a relay's downstreams or a proxy's clients.
    pub address: String,
    /// An operator there.
    #[serde(default = "operator")]
    pub user: String,
    /// Password of the operator.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File whose first line is the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// The proxy's name for this cluster, if it has several; without it, the proxy has only this one.
    #[serde(default)]
    pub cluster: Option<String>,
}

/// A relay that is fenced.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RelayPartConfig {
    /// See [`PartConfig`] for all keys but the last.
    pub name: String,
    /// Address for its downstreams.
    pub address: String,
    /// An operator there.
    #[serde(default = "operator")]
    pub user: String,
    /// Password of the operator.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// File whose first line is the password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Name of the relay on servers, as in `synchronous_standby_names`; by default `name`.
    #[serde(default)]
    pub application_name: Option<String>,
}

impl RelayPartConfig {
    /// Returns the address and login of the relay.
    pub fn part(&self) -> PartConfig {
        PartConfig {
            name: self.name.clone(),
            address: self.address.clone(),
            user: self.user.clone(),
            password: self.password.clone(),
            password_file: self.password_file.clone(),
            cluster: None,
        }
    }
}

impl fmt::Debug for RelayPartConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part().fmt(f)
    }
}

fn operator() -> String {
    "kingpost".into()
}

impl fmt::Debug for PartConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartConfig")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Returns the number of `relays` that a failover needs: enough to stop all commits ([`stopping`]), and more than half, or two runs could each get
/// enough and elect two nodes.
pub fn needed(relays: usize, acknowledgements: usize) -> usize {
    stopping(relays, acknowledgements).max(relays / 2 + 1)
}

/// Returns the number of `relays` to fence so that no commit can be acknowledged any more, and so that one of them has every acknowledged commit.
pub fn stopping(relays: usize, acknowledgements: usize) -> usize {
    (relays + 1).saturating_sub(acknowledgements.max(1)).max(1)
}
