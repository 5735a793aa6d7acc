//! Arguments of `kingpost failover`, `switchover`, `watch` and `scale`.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

#[derive(Debug, Args)]
pub struct FailoverArgs {
    #[command(flatten)]
    pub config: WhichConfig,
    /// The node to promote; the default is the standby that has most
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// Looks, says what would be done, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Also while the primary is alive, or when the node that an earlier run elected is given up for good
    #[arg(long)]
    pub force: bool,
    /// Goes on without relays: what only the old primary has is lost
    #[arg(long)]
    pub accept_loss: bool,
    /// Takes back what an earlier run has begun, so that the old primary goes on; possible until a node was promoted. With --force
    /// also when the node that was elected cannot be asked, and is given up for good
    #[arg(long, conflicts_with_all = ["to", "dry_run", "accept_loss"])]
    pub abort: bool,
    #[command(flatten)]
    pub stop: StopAt,
}

#[derive(Debug, Args)]
pub struct SwitchoverArgs {
    #[command(flatten)]
    pub config: WhichConfig,
    /// The node to promote; the default is the standby that has most
    #[arg(long, value_name = "NODE")]
    pub to: Option<String>,
    /// Looks, says what would be done, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub stop: StopAt,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(flatten)]
    pub config: WhichConfig,
    /// A lost primary is replaced, under a lock in etcd. Endpoints: https://host:port or http://host:port with commas in between; without them those of
    /// the configuration, which also has user, password and certificates
    #[arg(long, value_name = "ENDPOINTS", num_args = 0..=1, default_missing_value = "")]
    pub etcd: Option<String>,
    /// Nodes of a registry (or of a Consul), http://host:port with commas in between, as --etcd. Its store must not be in the cluster that is
    /// watched
    #[arg(long, value_name = "URLS", conflicts_with = "etcd")]
    pub registry: Option<String>,
    /// A token that may write there
    #[arg(long, env = "KINGPOST_REGISTRY_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub registry_token: Option<String>,
    /// File with that token
    #[arg(long, value_name = "FILE", requires = "registry")]
    pub registry_token_file: Option<PathBuf>,
    /// Certificates of the authorities that an https:// registry is trusted by; the system's if not given
    #[arg(long, value_name = "FILE", requires = "registry")]
    pub registry_ca: Option<PathBuf>,
    /// Time for which the primary must be lost before anything is done. Longer than it takes to restart a server, if that is to be waited for
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub after: Duration,
    /// Life of the lock without a renewal: after that the next watcher takes over from one that has died. If not given, 3s in etcd, and 10s in a
    /// registry, the shortest that it grants by default
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub ttl: Option<Duration>,
    /// Address of /metrics, /healthz and /readyz; none if not given
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Option<String>,
    /// Ends with its parent, the process of this id: for `kingpost up --tour`
    #[arg(long, value_name = "PID", hide = true)]
    pub with_process: Option<u32>,
    #[command(flatten)]
    pub stop: StopAt,
}

impl WatchArgs {
    /// Returns the life of the lock without a renewal.
    pub(crate) fn lock_ttl(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(if self.registry.is_some() { 10 } else { 3 }))
    }
}

#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Configuration file, with the sections scale, cluster.from and failover
    #[arg(long, short, env = "KINGPOST_CONFIG", default_value = "kingpost.toml", value_name = "FILE")]
    pub config: PathBuf,
    /// Looks once, says what would be done at the load of this moment, and changes nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Life of the lock in the registry without a renewal: after that another scaler takes over from one that has died
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub ttl: Duration,
}

#[derive(Debug, Args)]
pub struct WhichConfig {
    /// Configuration file, with a cluster and failover section; the default is that of the local cluster, ./.kingpost/kingpost.toml
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// For tests: what must hold wherever a run ends.
#[derive(Debug, Default, Clone, Args)]
pub struct StopAt {
    /// Ends as by kill -9 when it gets to this step
    #[arg(long, hide = true, value_name = "STEP")]
    pub die_at: Option<String>,
    /// Stands still as by kill -STOP when it gets to this step
    #[arg(long, hide = true, value_name = "STEP")]
    pub stop_at: Option<String>,
}
