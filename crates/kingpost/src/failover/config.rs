//! Configuration of failovers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::relay::config::Engine;
use serde::{Deserialize, Serialize};

use super::etcd::EtcdConfig;

/// `[failover]`: settings of `kingpost failover`, `switchover` and `watch` beside `[cluster]`.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FailoverConfig {
    /// Kind of the servers.
    pub(crate) engine: Engine,
    /// User on the servers that may promote and set `primary_conninfo`: a superuser.
    pub(crate) user: String,
    /// Password of the user.
    #[serde(skip_serializing)]
    pub(crate) password: Option<String>,
    /// File whose first line is the password.
    pub(crate) password_file: Option<PathBuf>,
    /// `[failover.tls]`: TLS with relays and proxies; servers are reached as `[cluster.tls]` says.
    pub(crate) tls: tls::ConnectConfig,
    /// Number of relays that must have a commit before it is acknowledged: the others may be missing at a failover.
    pub(crate) acknowledgements: usize,
    /// Longest time for one step.
    #[serde(with = "humantime_serde")]
    pub(crate) step_timeout: Duration,
    /// Zones whose nodes may become the primary without being named; none: all.
    pub(crate) zones: Vec<String>,
    /// A standby that lacks more than this many bytes does not become the primary without being named; None: there is no limit.
    pub(crate) lag_limit: Option<u64>,
    /// Program that stops a server cleanly, with its arguments; empty: none.
    pub(crate) stop: Vec<String>,
    /// Program that brings a former primary back as a standby; empty: none, and a message gives advice.
    pub(crate) rejoin: Vec<String>,
    /// Name of whatever brings a former primary back by itself, for messages; empty: nothing does.
    pub(crate) rejoined_by: String,
    /// `[failover.etcd]`.
    pub(crate) etcd: EtcdConfig,
    /// `[[failover.relays]]`.
    pub(crate) relays: Vec<RelayPartConfig>,
    /// `[[failover.proxies]]`.
    pub(crate) proxies: Vec<PartConfig>,
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
pub(crate) struct PartConfig {
    /// Unique among its kind.
    pub(crate) name: String,
    /// `host:port`, for a relay's downstreams or a proxy's clients.
    pub(crate) address: String,
    /// An operator there.
    #[serde(default = "operator")]
    pub(crate) user: String,
    /// Password of the operator.
    #[serde(default, skip_serializing)]
    pub(crate) password: Option<String>,
    /// File whose first line is the password.
    #[serde(default)]
    pub(crate) password_file: Option<PathBuf>,
    /// The proxy's name for this cluster, if it has several; without it, the proxy has only this one.
    #[serde(default)]
    pub(crate) cluster: Option<String>,
}

/// A relay that is fenced.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RelayPartConfig {
    /// See [`PartConfig`] for all keys but the last.
    pub(crate) name: String,
    /// Address for its downstreams.
    pub(crate) address: String,
    /// An operator there.
    #[serde(default = "operator")]
    pub(crate) user: String,
    /// Password of the operator.
    #[serde(default, skip_serializing)]
    pub(crate) password: Option<String>,
    /// File whose first line is the password.
    #[serde(default)]
    pub(crate) password_file: Option<PathBuf>,
    /// Name of the relay on servers, as in `synchronous_standby_names`; by default `name`.
    #[serde(default)]
    pub(crate) application_name: Option<String>,
}

impl RelayPartConfig {
    /// Returns the address and login of the relay.
    pub(crate) fn part(&self) -> PartConfig {
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
