//! What a user writes about failovers.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::relay::config::Engine;
use serde::{Deserialize, Serialize};

use super::etcd::EtcdConfig;

/// `[failover]`: what `kingpost failover`, `switchover` and `watch` need to know beside `[cluster]`.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FailoverConfig {
    /// What the servers are.
    pub(crate) engine: Engine,
    /// User on the servers that may promote and set `primary_conninfo`: a superuser.
    pub(crate) user: String,
    /// Its password.
    #[serde(skip_serializing)]
    pub(crate) password: Option<String>,
    /// File with its password in the first line.
    pub(crate) password_file: Option<PathBuf>,
    /// `[failover.tls]`: TLS with relays and proxies; servers are reached as `[cluster.tls]` says.
    pub(crate) tls: tls::ConnectConfig,
    /// How many relays must have a commit before it is acknowledged: the others may be missing at a failover.
    pub(crate) acknowledgements: usize,
    /// Longest time for one step.
    #[serde(with = "humantime_serde")]
    pub(crate) step_timeout: Duration,
    /// Zones whose nodes may become the primary without being named; none: all.
    pub(crate) zones: Vec<String>,
    /// A standby that lacks more than this many bytes does not become the primary without being named; None: there is no limit.
    pub(crate) lag_limit: Option<u64>,
    /// Program that stops a server cleanly, with its arguments; empty: there is none.
    pub(crate) stop: Vec<String>,
    /// Program that brings a former primary back as a standby; empty: it is said what to do.
    pub(crate) rejoin: Vec<String>,
    /// Who brings a former primary back without being told, in words; empty: nobody.
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

/// A proxy that is paused; or how a relay is reached.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartConfig {
    /// Unique among its kind.
    pub(crate) name: String,
    /// `host:port`: where a relay's downstreams or a proxy's clients connect.
    pub(crate) address: String,
    /// An operator there.
    #[serde(default = "operator")]
    pub(crate) user: String,
    /// Its password.
    #[serde(default, skip_serializing)]
    pub(crate) password: Option<String>,
    /// File with its password in the first line.
    #[serde(default)]
    pub(crate) password_file: Option<PathBuf>,
    /// What the proxy calls this cluster, where it has several; if not given, it has this one.
    #[serde(default)]
    pub(crate) cluster: Option<String>,
}

/// A relay that is fenced.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RelayPartConfig {
    /// See [`PartConfig`], as all but the last.
    pub(crate) name: String,
    /// Where its downstreams connect.
    pub(crate) address: String,
    /// An operator there.
    #[serde(default = "operator")]
    pub(crate) user: String,
    /// Its password.
    #[serde(default, skip_serializing)]
    pub(crate) password: Option<String>,
    /// File with its password in the first line.
    #[serde(default)]
    pub(crate) password_file: Option<PathBuf>,
    /// What it calls itself on servers, as `synchronous_standby_names` has it; its name if not given.
    #[serde(default)]
    pub(crate) application_name: Option<String>,
}

impl RelayPartConfig {
    /// How it is reached.
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
