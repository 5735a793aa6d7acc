//! The command line. Help, completions and man pages come from these definitions.

use std::path::PathBuf;

use backup::{BackupArgs, RestoreArgs};
use clap::{Args, Parser, Subcommand};
use daemon::{ConsoleCommand, ProxyArgs, RegistryArgs, RelayArgs};
use failover::{FailoverArgs, ScaleArgs, SwitchoverArgs, WatchArgs};
use local::{DownArgs, StatusArgs, UpArgs};
use node::NodeArgs;
use process::{EXIT_CODES, LogFormat};
use translate::{FromDatabasesArgs, FromPgdogArgs, FromPgpoolArgs};

/// A PostgreSQL proxy: one address over a primary and its replicas.
#[derive(Debug, Parser)]
#[command(name = "kingpost", version, after_help = EXIT_CODES, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to log: error, warn, info, debug, trace, or a list such as `info,proxy=debug`
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// How to log; the default is human on a terminal and JSON otherwise
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the proxy
    ///
    /// SIGHUP reloads the configuration, SIGTERM and SIGINT stop gracefully, a second one stops at once.
    #[command(after_help = EXIT_CODES)]
    Proxy(ProxyArgs),
    /// Runs the relay: makes write-ahead log durable here, and feeds standbys with it
    ///
    /// SIGHUP reloads the configuration (also which upstream to follow), SIGTERM and SIGINT stop.
    #[command(after_help = EXIT_CODES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Relay(RelayArgs),
    /// Runs the service registry, or talks to one
    ///
    /// SIGHUP reloads tokens and certificates, SIGTERM and SIGINT stop gracefully, a second one stops at once.
    #[command(after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
    Registry(RegistryArgs),
    /// Makes what the web console needs
    #[command(after_help = EXIT_CODES, subcommand)]
    Console(ConsoleCommand),
    /// Checks a configuration file, and the environment variables that override it
    ///
    /// Prints every error with file, line and column, the key, what was found and what was expected.
    #[command(after_help = EXIT_CODES)]
    Check(CheckArgs),
    /// Makes configurations
    #[command(after_help = EXIT_CODES, subcommand)]
    Config(ConfigCommand),
    /// Starts a local cluster in one directory: a primary, a relay, replicas, the proxy in front, and a registry
    ///
    /// Runs until Ctrl-C. A second start uses the same data again.
    #[command(after_help = EXIT_CODES)]
    Up(UpArgs),
    /// Stops the local cluster of a directory, also what was left of one that was killed
    #[command(after_help = EXIT_CODES)]
    Down(DownArgs),
    /// Shows the nodes of the local cluster of a directory
    #[command(after_help = EXIT_CODES)]
    Status(StatusArgs),
    /// Makes a standby the primary in place of one that is lost, without losing what was acknowledged
    ///
    /// Fences the relays, has the standby catch up from the one that has most, promotes it, and has relays and replicas follow.
    /// Each step is printed. Whatever ends it, the next run goes on from there.
    #[command(after_help = EXIT_CODES)]
    Failover(FailoverArgs),
    /// Makes another server the primary, as planned: clients of the proxies wait, and none gets an error
    #[command(after_help = EXIT_CODES)]
    Switchover(SwitchoverArgs),
    /// Watches the cluster: says when the primary is lost, and with --etcd or --registry replaces it
    ///
    /// A primary is lost when it does not answer and no relay hears it either. Any number of these may run: with --etcd or --registry
    /// the one that gets the lock acts.
    #[command(after_help = EXIT_CODES)]
    Watch(WatchArgs),
    /// Adds and removes replicas by their load, through a program of yours
    ///
    /// The registry lists the servers, and has the lock: any number of these may run, and one acts. A replica that is removed is left by its clients first,
    /// and none is removed while another one does not serve.
    #[command(after_help = EXIT_CODES)]
    Scale(ScaleArgs),
    /// Runs the agent of one PostgreSQL server: makes its data, starts it, has it follow, and brings it back after a failover
    ///
    /// The agent never decides which server is primary: `kingpost failover` and `watch` do. SIGTERM and SIGINT stop the agent, and the server with it
    /// unless node.server is "detached"; a second one stops at once.
    #[command(after_help = EXIT_CODES)]
    Node(NodeArgs),
    /// Takes a base backup of a server into the archive of the WAL, or lists, shows, verifies and removes backups
    ///
    /// From a standby that answers, else from the primary, over the replication protocol. A backup that is killed is not there.
    #[command(after_help = EXIT_CODES, args_conflicts_with_subcommands = true)]
    Backup(BackupArgs),
    /// Makes a data directory of a moment from a base backup and the archived WAL
    ///
    /// The server that is started in it recovers up to the moment. With --verify that is tried at once.
    #[command(after_help = EXIT_CODES)]
    Restore(RestoreArgs),
    /// Prints a completion script for a shell
    #[command(after_help = EXIT_CODES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes man pages
    #[command(hide = true, after_help = EXIT_CODES)]
    Man {
        /// Directory to write one page a command to; without it the main page goes to standard output
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", default_value = "kingpost.toml", value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Also logs in to every server as probes, lookups and databases do, and asks the servers, relays, proxies and the etcd that the failover section
    /// names whether they agree with it
    #[arg(long)]
    pub(crate) online: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Translates PgBouncer's configuration, users included
    ///
    /// Strict: a setting that can't be carried over is an error that names it, and nothing is written. What is written passes `kingpost check`.
    #[command(after_help = EXIT_CODES)]
    FromPgbouncer(FromDatabasesArgs),
    /// Translates PgCat's configuration, users included
    ///
    /// Strict: a setting that can't be carried over is an error that names it, and nothing is written. What is written passes `kingpost check`.
    #[command(after_help = EXIT_CODES)]
    FromPgcat(FromDatabasesArgs),
    /// Translates PgDog's configuration, users included
    ///
    /// Strict: a setting that can't be carried over is an error that names it, and nothing is written. What is written passes `kingpost check`.
    #[command(after_help = EXIT_CODES)]
    FromPgdog(FromPgdogArgs),
    /// Translates pgpool-II's configuration, rules and passwords included
    ///
    /// Strict: a setting that can't be carried over is an error that names it, and nothing is written. What is written passes `kingpost check`.
    #[command(after_help = EXIT_CODES)]
    FromPgpool(FromPgpoolArgs),
    /// Prints a configuration file with every key, its default and what it does
    #[command(after_help = EXIT_CODES)]
    Default,
    /// Prints a JSON schema of the configuration file, for editors: keys, types, bounds, defaults, descriptions
    #[command(after_help = EXIT_CODES)]
    Schema,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
