//! Configuration of every part of Kingpost: one TOML file, and environment variables over it.
//!
//! ```text
//!  file ──tree──▶ Tree (values with positions) ◀──env── KINGPOST__PROXY__POOL__SIZE=30
//!                  └─ schema: unknown keys, types, ranges ─▶ serde ─▶ Config ─ check: what the values mean together
//! ```
//!
//! Every step adds to one list of [`Problem`]s, so that a user gets all errors at once.

mod check;
mod env;
pub mod etcd;
pub mod failover;
mod json_schema;
pub mod otlp;
mod overrides;
mod problem;
pub mod registry;
mod reload;
mod schema;
#[cfg(test)]
mod tests;
mod tree;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use console::ConsoleConfig;
use serde::{Deserialize, Serialize};
use topology::ClusterConfig;

use crate::failover::FailoverConfig;
use crate::otlp::OtlpConfig;
use crate::registry::RegistryConfig;
use process::{Failure, LogConfig};
use proxy::config::ProxyConfig;
use proxy::fleet::{Directory, Listed};
use relay::config::RelayConfig;

pub use check::{SAFE_QUERY, Stat, stat_file};
pub use json_schema::{DESCRIBED, json_schema};
pub use overrides::{Alias, Aliases, Overrides};
pub use problem::{Origin, Problem, Severity};
pub use reload::{settle, warn};
pub use schema::has as is_key;
pub use tree::{Tree, Value, parse as parse_tree};

/// Returns a password that is given in place, or as the first line of a file.
///
/// # Errors
/// The file cannot be used.
pub fn secret(password: Option<&String>, file: Option<&Path>) -> Result<Option<String>, Failure> {
    ::secret::given(password, file).map_err(|error| Failure::environment(error.to_string()))
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[proxy]`.
    pub proxy: ProxyConfig,
    /// `[cluster]`.
    pub cluster: ClusterConfig,
    /// `[[clusters]]`: further clusters behind the same proxy.
    pub clusters: Vec<ClusterConfig>,
    /// `[relay]`.
    pub relay: RelayConfig,
    /// `[failover]`.
    pub failover: FailoverConfig,
    /// `[registry]`.
    pub registry: RegistryConfig,
    /// `[passwords]`.
    pub passwords: PasswordsConfig,
    /// `[console]`.
    pub console: ConsoleConfig,
    /// `[metrics]`.
    pub metrics: MetricsConfig,
    /// `[log]`.
    pub log: LogConfig,
}

impl Config {
    /// True if the file has no settings of a proxy, and has settings of a relay or of failovers, which need none. It may name servers for those, and
    /// a relay's file the other relays.
    pub fn needs_no_proxy(&self) -> bool {
        let (relay, failover) = (self.relay != RelayConfig::default(), self.failover != FailoverConfig::default());
        let no_nodes = self.clusters.is_empty() && self.cluster.nodes.is_empty() && self.cluster.from.urls.is_empty();
        let silent = self.proxy == ProxyConfig::default();
        (relay || failover) && (silent || (relay && no_nodes && self.proxy.users.is_empty()))
    }

    /// True if the file has settings of a registry and none of a proxy, which it then does not need.
    pub fn is_registry_only(&self) -> bool {
        self.registry != RegistryConfig::default()
            && self.proxy == ProxyConfig::default()
            && self.cluster == ClusterConfig::default()
            && self.clusters.is_empty()
    }

    /// Returns every cluster with its path in the file (`cluster`, `clusters[0]`), in the order of precedence for clients: `[cluster]`, if it has any
    /// settings, then each of `[[clusters]]`.
    pub fn all_clusters(&self) -> Vec<(String, &ClusterConfig)> {
        let further = self.clusters.iter().enumerate().map(|(at, cluster)| (format!("clusters[{at}]"), cluster));
        let one = self.clusters.is_empty() || self.cluster != ClusterConfig::default();
        one.then(|| ("cluster".to_owned(), &self.cluster)).into_iter().chain(further).collect()
    }

    /// Returns the configuration of each cluster: with its own databases and users, and without listen addresses for all but the first.
    pub fn of_each_cluster(&self) -> Vec<Config> {
        let several = !self.clusters.is_empty();
        let of = |(at, (_, cluster)): (usize, (String, &ClusterConfig))| Config {
            proxy: if several { self.proxy.of_cluster(&cluster.name, at == 0) } else { self.proxy.clone() },
            cluster: cluster.clone(),
            clusters: Vec::new(),
            ..self.clone()
        };
        self.all_clusters().into_iter().enumerate().map(of).collect()
    }

    /// Returns the directory that leads clients to their cluster; empty if there is only one.
    pub fn directory(&self) -> Directory {
        if self.clusters.is_empty() {
            return Directory::default();
        }
        let listed = |(_, cluster): (String, &ClusterConfig)| Listed {
            name: cluster.name.clone(),
            server_names: cluster.server_names.clone(),
        };
        let listed: Vec<Listed> = self.all_clusters().into_iter().map(listed).collect();
        Directory::new(&self.proxy, &listed)
    }

    /// Returns the cluster of this name.
    pub fn cluster_mut(&mut self, name: &str) -> Option<&mut ClusterConfig> {
        let one = self.clusters.is_empty() || self.cluster != ClusterConfig::default();
        let all = one.then_some(&mut self.cluster).into_iter().chain(&mut self.clusters);
        all.into_iter().find(|cluster| cluster.name == name)
    }
}

/// `[metrics]`: the admin HTTP address, and a collector.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// `host:port` of /metrics, /healthz and /readyz; empty switches them off.
    pub listen: String,
    /// True if `listen` may be reachable from other machines: there is no login.
    pub allow_remote: bool,
    /// Token that gives access to profiles; without one there are none.
    #[serde(skip_serializing)]
    pub profiler_token: Option<String>,
    /// A collector that the metrics are sent to.
    pub otlp: OtlpConfig,
}

impl std::fmt::Debug for MetricsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("MetricsConfig");
        shown.field("listen", &self.listen).field("otlp", &self.otlp).finish_non_exhaustive()
    }
}

impl Default for MetricsConfig {
    fn default() -> Self {
        MetricsConfig {
            listen: "127.0.0.1:9632".into(),
            allow_remote: false,
            profiler_token: None,
            otlp: OtlpConfig::default(),
        }
    }
}

/// `[passwords]`: reading of passwords from files and commands.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PasswordsConfig {
    /// Time that a password is used before its command is run, or its file read, again; zero: until the file changes, or a server refuses the
    /// password.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Longest time of a command.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for PasswordsConfig {
    fn default() -> Self {
        PasswordsConfig { interval: Duration::from_secs(300), timeout: Duration::from_secs(10) }
    }
}

/// Result of reading a configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration, if it has no errors.
    pub config: Option<Config>,
    /// Errors and warnings, by position.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// Returns the configuration and the warnings, or all errors as one failure.
    pub fn accept(self, path: &Path) -> Result<(Config, Vec<Problem>), Failure> {
        match self.config {
            Some(config) => Ok((config, self.problems)),
            None => {
                let errors = self.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
                let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
                let count = if errors == 1 { "1 error".into() } else { format!("{errors} errors") };
                Err(Failure::config(format!("{count} in the configuration {}\n{}", path.display(), lines.join("\n"))))
            }
        }
    }
}

/// Reads a file, with this process's environment over it.
///
/// # Errors
/// The file cannot be read. Errors in it are in [`Loaded`].
pub fn load(path: &Path) -> Result<Loaded, Failure> {
    load_with(path, Vec::new())
}

/// As [`load`], with further variables over those of the environment.
///
/// # Errors
/// The file cannot be read.
pub fn load_with(path: &Path, further: Vec<(OsString, OsString)>) -> Result<Loaded, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::config(format!("cannot read the configuration {}: {error}", path.display()))
            .advise("name the file with --config, or by the variable KINGPOST_CONFIG")
    })?;
    let stands = |name: &OsString| further.iter().any(|(other, _)| other == name);
    let variables = std::env::vars_os().filter(|(name, _)| !stands(name)).chain(further.iter().cloned());
    Ok(parse(&path.display().to_string(), &text, variables, &stat_file))
}

/// Parses a text. `name`: the file's name in messages; `stat` looks at password files.
pub fn parse(
    name: &str,
    text: &str,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    stat: &dyn Fn(&Path) -> check::Stat,
) -> Loaded {
    let mut problems = Vec::new();
    let mut tree = tree::parse(name, text, &mut problems);
    let torn = !problems.is_empty();
    env::apply(&mut tree, variables, &mut problems);
    schema::check(&tree, &mut problems);
    let mut config = None;
    if !problems.iter().any(|problem| problem.severity == Severity::Error) {
        match Config::deserialize(tree::to_toml(&tree)) {
            Ok(parsed) => {
                for finding in check::check(&parsed, stat) {
                    problems.push(finding.at(&tree));
                }
                config = Some(parsed);
            }
            // The schema should find every error; this catches any that it does not.
            Err(error) => problems.push(Problem::new(tree.origin.clone(), "", error.message().to_owned())),
        }
    }
    if torn {
        // The content of a broken line is unknown: missing keys may be its consequence and are not shown.
        problems.retain(|problem| !problem.missing);
    }
    problems.sort_by(|a, b| a.origin.cmp(&b.origin));
    problems.dedup();
    if problems.iter().any(|problem| problem.severity == Severity::Error) {
        config = None;
    }
    Loaded { config, problems }
}
