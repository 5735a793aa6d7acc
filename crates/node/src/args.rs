//! Arguments of `kingpost node`.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Default, Args)]
pub struct NodeArgs {
    /// Configuration file; without one, everything has its default or comes from the environment
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this server; node.name, or the host's name, if not given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Address at which the others reach this server; node.address if not given
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// Directory of the agent; node.directory if not given
    #[arg(long, short = 'D', value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Makes a new cluster, if the directory is empty and no other server of the cluster answers. With --join on several hosts one makes it: the first
    /// that the registry lets, or the first in [[cluster.nodes]]; the others are its replicas
    #[arg(long)]
    pub init: bool,
    /// Makes a replica, if the directory is empty: from the primary among the servers of this registry (http://…), or of the configuration and this server.
    /// Without a value, of those in the configuration
    #[arg(long, value_name = "URL or HOST:PORT", num_args = 0..=1, default_missing_value = "", require_equals = false)]
    pub join: Option<String>,
    /// Takes over a data directory that was made without an agent
    #[arg(long)]
    pub adopt: bool,
    /// Copies the primary's data anew; the present ones are kept aside. A running agent of the directory does it, when clients have left, after node.drain
    /// at the latest
    #[arg(long, conflicts_with = "init")]
    pub rebuild: bool,
    /// Takes back an order of --rebuild that the running agent has not carried out yet
    #[arg(long, conflicts_with_all = ["init", "join", "adopt", "rebuild", "leave", "pause", "resume"])]
    pub keep: bool,
    /// Removes this server from the registry, and its slots from the others; the agent has to be stopped
    #[arg(long, conflicts_with_all = ["init", "join", "adopt", "rebuild"])]
    pub leave: bool,
    /// Has the running agent of the directory only watch, also after its restart: it starts, stops, fences and changes nothing
    #[arg(long, conflicts_with_all = ["init", "join", "adopt", "rebuild", "leave", "resume"])]
    pub pause: bool,
    /// Has the agent of the directory act again
    #[arg(long, conflicts_with_all = ["init", "join", "adopt", "rebuild", "leave"])]
    pub resume: bool,
}
