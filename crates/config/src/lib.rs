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
mod guide;
mod json_schema;
pub mod node;
pub mod otlp;
mod overrides;
mod problem;
pub mod registry;
mod reload;
pub mod scale;
mod schema;
#[cfg(test)]
mod tests;
mod tree;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use console::ConsoleConfig;
use serde::Deserialize as _;
use settings::{Key, Kind, Table as _};
use topology::ClusterConfig;

use crate::failover::FailoverConfig;
use crate::node::NodeAgentConfig;
use crate::otlp::OtlpConfig;
use crate::registry::RegistryConfig;
use crate::scale::ScaleConfig;
use process::{Failure, LogConfig};
use proxy::config::ProxyConfig;
use proxy::fleet::{Directory, Listed};
use relay::config::RelayConfig;

pub use check::{SAFE_QUERY, Stat, stat_file};
pub use guide::described;
pub use json_schema::json_schema;
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

/// Example of a further cluster, whose other keys are those of `[cluster]`.
const FURTHER_EXAMPLE: &str = r#"#[[clusters]]
# Unique name.
#name = "billing"
# Host names by which clients ask for it over TLS.
#server_names = ["billing.db.example.org"]
#[[clusters.nodes]]
#name = "billing1"
#address = "10.0.1.1:5432"
#[[clusters.relays]]
#name = "billing-relay"
#address = "10.0.1.9:6442"
"#;

/// Keys of a further cluster: it has to have a name.
const FURTHER: &[Key] = &settings::required::<{ ClusterConfig::KEYS.len() }>("name", ClusterConfig::KEYS);

settings::settings! {
    /// The whole file.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Config: Default {
        /// Proxy: who is let in, pooling and routing.
        pub proxy: ProxyConfig = ProxyConfig::default();
        /// Servers, and how they are watched.
        pub cluster: ClusterConfig = ClusterConfig::default();
        /// Further clusters behind the same addresses, each with all keys of `[cluster]` (`[[clusters.nodes]]`, `[[clusters.relays]]`,
        /// `[clusters.tls]`, `[clusters.from]`). Clients are led to one by its server_names, else by the database (`[[proxy.databases]]` with
        /// `cluster`). A cluster that is down keeps nobody else waiting. Limits such as max_clients, and workers, are for each cluster.
        pub clusters: Vec<ClusterConfig> = Vec::new(), of(Kind::Tables(FURTHER)), example(FURTHER_EXAMPLE);
        /// `kingpost relay`. A file that configures only this needs nothing of what is above.
        pub relay: RelayConfig = RelayConfig::default();
        /// Settings of `kingpost failover`, `switchover` and `watch` beside `[cluster]`.
        pub failover: FailoverConfig = FailoverConfig::default();
        /// Settings of `kingpost node`, the agent of one server.
        pub node: NodeAgentConfig = NodeAgentConfig::default();
        /// Settings of `kingpost scale`, which adds and removes replicas.
        pub scale: ScaleConfig = ScaleConfig::default();
        /// `kingpost registry`. A file that configures only this needs nothing of what is above.
        pub registry: RegistryConfig = RegistryConfig::default();
        /// Reading of the passwords of `[proxy]` and `[cluster]` that are in files or come from commands. A file is also read again when it has
        /// changed, and each of them when a server has refused the password, before the login fails.
        pub passwords: PasswordsConfig = PasswordsConfig::default();
        /// Web console: a page that shows, live, the parts that run in this process.
        pub console: ConsoleConfig = ConsoleConfig::default();
        /// Metrics and health, for Prometheus and load balancers.
        pub metrics: MetricsConfig = MetricsConfig::default();
        /// Log, to standard error.
        pub log: LogConfig = LogConfig::default();
    }
}

impl Config {
    /// True if the file has no settings of a proxy, and has settings of a relay, of failovers, of an agent or of a scaler, which need none. It may name
    /// servers for those, and a relay's file the other relays.
    pub fn needs_no_proxy(&self) -> bool {
        let (relay, failover) = (self.relay != RelayConfig::default(), self.failover != FailoverConfig::default());
        let failover = failover || self.node != NodeAgentConfig::default() || self.scale != ScaleConfig::default();
        let no_nodes = self.clusters.is_empty() && self.cluster.nodes.is_empty() && self.cluster.from.urls.is_empty();
        let silent = self.proxy == ProxyConfig::default();
        (relay || failover) && (silent || (relay && no_nodes && self.proxy.users.is_empty()))
    }

    /// Returns the names and addresses of the servers that a backup may be taken from: the nodes, else the relay's own upstream, by the name
    /// `upstream`.
    pub fn backup_sources(&self) -> Vec<(&str, &str)> {
        let mut nodes: Vec<(&str, &str)> =
            self.cluster.nodes.iter().map(|node| (node.name.as_str(), node.address.as_str())).collect();
        let upstream = &self.relay.upstream;
        if nodes.is_empty() && !upstream.address.is_empty() {
            nodes.push(("upstream", &upstream.address));
        }
        nodes
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

::settings::settings! {
    /// `[metrics]`: the admin HTTP address, and a collector.
    #[derive(Clone, PartialEq)]
    pub struct MetricsConfig: Default {
        /// host:port of /metrics, /healthz and /readyz; "" switches them off.
        pub listen: String = "127.0.0.1:9632".into();
        /// True if other machines may reach that address: there is no login.
        pub allow_remote: bool = false;
        /// Token for CPU profiles at /debug/pprof/profile, sent as `Authorization: Bearer …`. Not set: there are no profiles.
        pub profiler_token: Option<String> = None, secret(), example(r#""a-long-random-text""#);
        /// Sending of the same figures to a collector of OpenTelemetry by OTLP over gRPC; by every process that has this file: proxy, relay,
        /// registry, watch.
        pub otlp: OtlpConfig = OtlpConfig::default();
    }
}

impl MetricsConfig {
    /// Checks that a process may serve metrics at an address: there is no login. `name`: the setting or flag that gave the address.
    ///
    /// # Errors
    /// Other machines could reach it, and the configuration does not allow that; or the address is invalid.
    pub fn permits(&self, name: &str, address: &str) -> Result<(), Failure> {
        let read: Result<std::net::SocketAddr, _> = address.parse();
        match read {
            Ok(read) if read.ip().is_loopback() || self.allow_remote => Ok(()),
            Ok(_) => {
                Err(Failure::config(format!("{name} {address} may be reached from other machines, and has no login"))
                    .advise("give a loopback address, or say metrics.allow_remote = true in the configuration"))
            }
            Err(_) => Err(Failure::config(format!("{name} is {address:?}: expected ip:port"))),
        }
    }
}

impl std::fmt::Debug for MetricsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("MetricsConfig");
        shown.field("listen", &self.listen).field("otlp", &self.otlp).finish_non_exhaustive()
    }
}

::settings::settings! {
    /// `[passwords]`: reading of passwords from files and commands.
    #[derive(Debug, Clone, PartialEq)]
    pub struct PasswordsConfig: Default {
        /// Time that a password is used before its file is read, or its command run, again; "0s": never because of the time.
        pub interval: Duration = Duration::from_secs(300), or_never();
        /// Longest time of a command; then it is killed with its children.
        pub timeout: Duration = Duration::from_secs(10);
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
