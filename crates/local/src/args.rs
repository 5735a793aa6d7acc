//! Arguments of `kingpost up`, `down` and `status`.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::Engine;

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub dir: Dir,
    /// Kind of the servers; the default is that of the directory, or postgresql
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub engine: Option<Engine>,
    /// Number of replicas; the default is 2, or as many as the directory has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=16))]
    pub replicas: Option<u16>,
    /// Directory of PostgreSQL's programs (13 to 19); searched for if not given
    #[arg(long, env = "KINGPOST_PG_BIN", value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,
    /// Directory of MySQL's programs (8.4 or later), which need not be installed; searched for if not given
    #[arg(long, env = "KINGPOST_MYSQL_BIN", value_name = "DIR")]
    pub mysql_bin: Option<PathBuf>,
    /// Address of the proxy: loopback only, for there are no passwords; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:6432", value_name = "ADDRESS")]
    pub listen: String,
    /// Address of /metrics, /healthz and /readyz; the default is 127.0.0.1:9632, or a free port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Option<String>,
    /// No relay: replicas stream from the primary
    #[arg(long)]
    pub no_relay: bool,
    /// Place where a commit is durable before its client gets the answer: the primary, or also the relay
    #[arg(long, value_enum, default_value = "local", value_name = "WHERE")]
    pub durability: Durability,
    /// Address of the registry; the default is 127.0.0.1:8632, or a free port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub registry_listen: Option<String>,
    /// Address of the web console; the default is 127.0.0.1:7632, or a free port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub console_listen: Option<String>,
    /// Shows once the way back in time (a backup while a client writes, a dropped table, a restore of the moment before), and the loss and return of the
    /// primary; or that loss alone
    #[arg(long, value_enum, value_name = "PART", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    pub tour: Option<Tour>,
    /// Start, check, print, stop
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    pub dir: Dir,
    /// Longest wait for a clean stop
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub dir: Dir,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Configuration file that names servers, relays and proxies: shows how these servers, relays and proxies stand, instead of a local cluster,
    /// and what an interrupted failover or switchover has left
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["json", "dir"])]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Dir {
    /// Directory of the cluster
    #[arg(long, short = 'D', env = "KINGPOST_DIR", default_value = "./.kingpost", value_name = "DIR")]
    pub dir: PathBuf,
}

/// Durability of a local cluster's commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// On the primary
    Local,
    /// On the relay, too
    Relay,
}

/// Part of the tour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Tour {
    /// The way back in time, and the loss of the primary
    All,
    /// The loss of the primary
    Loss,
}
