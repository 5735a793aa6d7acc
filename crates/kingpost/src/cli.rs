//! The command line. Help, completions and man pages come from these definitions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::up::Engine;
use process::EXIT_CODES;
use process::LogFormat;

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
pub(crate) struct ProxyArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// How long transactions may go on when stopping
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
    /// Take over the listening sockets of the process that runs by the same configuration (proxy.upgrade_socket)
    #[arg(long)]
    pub(crate) take_over: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RelayArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE", required = true)]
    pub(crate) config: Option<PathBuf>,
    /// This relay has never run before, or the others that could tell what it promised are gone for good
    ///
    /// For a relay whose directory is empty and that cannot find out by itself whether it is new. Not for a unit file: a relay that loses its
    /// directory must ask what it promised before it acknowledges anything.
    #[arg(long)]
    pub(crate) new: bool,
    #[command(subcommand)]
    pub(crate) command: Option<RelayCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RelayCommand {
    /// Gets a segment or a history file from relays, or out of a relay's directory: restore_command = 'kingpost relay fetch %f %p --from relay:6442'
    ///
    /// Exits with 1 and says nothing if no relay holds it: a server in recovery asks for the next segment all the time.
    #[command(after_help = EXIT_CODES)]
    Fetch(FetchArgs),
    /// Gives up the write-ahead log or the binary log that a relay holds; it keeps what it has promised, and its slots
    ///
    /// The way back for a relay that has a gap no other relay can fill, or that has more than a primary that is to stay. The relay must not run; at
    /// its next start it begins with what its upstream writes then (MariaDB: with the oldest binary log that it has). What only this relay held is
    /// lost.
    #[command(after_help = EXIT_CODES)]
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// Directory of the relay's log
    #[arg(long, env = "KINGPOST_RELAY_DIR", default_value = "/var/lib/kingpost/relay", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Removes the files; without it they are moved to a directory below
    #[arg(long)]
    pub(crate) remove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// Name of the file (%f)
    pub(crate) name: String,
    /// Where to put it (%p)
    pub(crate) target: PathBuf,
    /// Directory of the relay's log, on this host
    #[arg(long, env = "KINGPOST_RELAY_DIR", default_value = "/var/lib/kingpost/relay", value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// A relay to ask, host:port, instead of --dir; may be given several times: the first that has the file gives it
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) from: Vec<String>,
    /// User of [[relay.users]] there
    #[arg(long, default_value = "postgres", value_name = "NAME", requires = "from")]
    pub(crate) user: String,
    /// File with the user's password in its first line
    #[arg(long, value_name = "FILE", requires = "from")]
    pub(crate) password_file: Option<PathBuf>,
    /// TLS with the relays, as libpq's sslmode: disable, prefer, require, verify-ca or verify-full
    #[arg(long, default_value = "disable", value_name = "MODE", requires = "from", value_parser = tls_mode)]
    pub(crate) tls: tls::ConnectMode,
    /// PEM: CAs that the relays' certificates are verified with
    #[arg(long, value_name = "FILE", requires = "from")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM: certificate shown to the relays
    #[arg(long, value_name = "FILE", requires_all = ["from", "key_file"])]
    pub(crate) cert_file: Option<PathBuf>,
    /// PEM: the certificate's key
    #[arg(long, value_name = "FILE", requires_all = ["from", "cert_file"])]
    pub(crate) key_file: Option<PathBuf>,
}

/// Parses a TLS mode by its name in the configuration.
fn tls_mode(text: &str) -> Result<tls::ConnectMode, String> {
    use serde::Deserialize;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};
    let name: StrDeserializer<'_, Error> = text.into_deserializer();
    tls::ConnectMode::deserialize(name).map_err(|error| error.to_string())
}

#[derive(Debug, Args)]
pub(crate) struct RegistryArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE", required = true)]
    pub(crate) config: Option<PathBuf>,
    /// How long requests under way may go on when stopping
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
    #[command(subcommand)]
    pub(crate) command: Option<RegistryCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegistryCommand {
    /// Registers an instance and prints its id
    #[command(after_help = EXIT_CODES)]
    Register(RegisterArgs),
    /// Deregisters instances by their ids
    #[command(after_help = EXIT_CODES)]
    Deregister {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
        /// Ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Lists services, or the instances of one, or those with some metadata
    #[command(after_help = EXIT_CODES)]
    Ls {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
        /// The service; without it and --meta the services are listed
        service: Option<String>,
        /// Only instances with this metadata; may be given several times
        #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
        meta: Vec<(String, String)>,
        /// Prints JSON lines
        #[arg(long)]
        json: bool,
    },
    /// Prints a service, and then each change, as JSON lines
    #[command(after_help = EXIT_CODES)]
    Watch {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
        /// The service
        service: String,
    },
    /// Prints all instances as JSON lines that `import` reads
    #[command(after_help = EXIT_CODES)]
    Export {
        #[command(flatten)]
        remote: RemoteArgs,
        /// Only this namespace
        #[arg(long, short, value_name = "NAME")]
        namespace: Option<String>,
    },
    /// Registers the instances of JSON lines, or those that a running Consul or Eureka has
    ///
    /// What is there already, and the same, is not written: it can be run again.
    #[command(after_help = EXIT_CODES)]
    Import(ImportArgs),
    /// Makes a token: prints it, and what of it goes into the configuration
    #[command(after_help = EXIT_CODES)]
    Token {
        /// Its name, for logs
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConsoleCommand {
    /// Makes a token to sign in with: prints it, and what of it goes into the configuration
    #[command(after_help = EXIT_CODES)]
    Token {
        /// Its name, for logs
        name: String,
        /// It may look and not act
        #[arg(long)]
        viewer: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// The file; standard input if not given
    #[arg(conflicts_with_all = ["from_consul", "from_eureka"])]
    pub(crate) file: Option<PathBuf>,
    /// A running Consul to import from, as http://host:port
    #[arg(long, value_name = "URL", conflicts_with = "from_eureka")]
    pub(crate) from_consul: Option<String>,
    /// A running Eureka to import from, as http://host:port/eureka
    #[arg(long, value_name = "URL")]
    pub(crate) from_eureka: Option<String>,
    /// Token for that Consul; better in the variable, where other users do not see it
    #[arg(long, env = "CONSUL_HTTP_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) from_token: Option<String>,
    /// Namespace for what comes from Consul or Eureka
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    pub(crate) namespace: String,
    /// What comes from Consul or Eureka goes critical after so long without a heartbeat here; without this it stays until it is
    /// deregistered
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct RemoteArgs {
    /// Address of the registry
    #[arg(long, env = "KINGPOST_REGISTRY_URL", default_value = "http://127.0.0.1:8632", value_name = "URL")]
    pub(crate) url: String,
    /// CAs that the registry's certificate is verified with (PEM), for an https:// address; the system's if not given
    #[arg(long, env = "KINGPOST_REGISTRY_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Own certificate (PEM), if the registry wants one
    #[arg(long, env = "KINGPOST_REGISTRY_CERT", value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, env = "KINGPOST_REGISTRY_KEY", value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Token; better in the variable, where other users do not see it
    #[arg(long, env = "KINGPOST_REGISTRY_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RegisterArgs {
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// The namespace
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    pub(crate) namespace: String,
    /// The service
    pub(crate) service: String,
    /// Where the instance listens
    #[arg(value_name = "HOST:PORT")]
    pub(crate) address: String,
    /// Its id; made from service and address if not given
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Metadata; may be given several times
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) meta: Vec<(String, String)>,
    /// It is critical after so long without a heartbeat; without this it stays until it is deregistered
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Its share of the traffic
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u16>,
    /// Its zone
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,
    /// Its version
    #[arg(long, value_name = "VERSION")]
    pub(crate) instance_version: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".into()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct WhichConfig {
    /// Configuration file, with a cluster and failover section; the default is that of the local cluster, ./.kingpost/kingpost.toml
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    pub(crate) config: WhichConfig,
    /// The node to promote; the default is the standby that has most
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Option<String>,
    /// Looks, says what would be done, and changes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also while the primary is alive, or when the node that an earlier run elected is given up for good
    #[arg(long)]
    pub(crate) force: bool,
    /// Goes on without relays: what only the old primary has is lost
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Takes back what an earlier run has begun, so that the old primary goes on; possible until a node was promoted. With --force
    /// also when the node that was elected cannot be asked, and is given up for good
    #[arg(long, conflicts_with_all = ["to", "dry_run", "accept_loss"])]
    pub(crate) abort: bool,
    #[command(flatten)]
    pub(crate) stop: StopAt,
}

/// For tests: what must hold wherever a run ends.
#[derive(Debug, Default, Clone, Args)]
pub(crate) struct StopAt {
    /// Ends as by kill -9 when it gets to this step
    #[arg(long, hide = true, value_name = "STEP")]
    pub(crate) die_at: Option<String>,
    /// Stands still as by kill -STOP when it gets to this step
    #[arg(long, hide = true, value_name = "STEP")]
    pub(crate) stop_at: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SwitchoverArgs {
    #[command(flatten)]
    pub(crate) config: WhichConfig,
    /// The node to promote; the default is the standby that has most
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Option<String>,
    /// Looks, says what would be done, and changes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) stop: StopAt,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) config: WhichConfig,
    /// A lost primary is replaced, under a lock in etcd. Endpoints: https://host:port or http://host:port with commas in between; without them those of
    /// the configuration, which also has user, password and certificates
    #[arg(long, value_name = "ENDPOINTS", num_args = 0..=1, default_missing_value = "")]
    pub(crate) etcd: Option<String>,
    /// Nodes of a registry (or of a Consul), http://host:port with commas in between, as --etcd. Its store must not be in the cluster that is
    /// watched
    #[arg(long, value_name = "URLS", conflicts_with = "etcd")]
    pub(crate) registry: Option<String>,
    /// A token that may write there
    #[arg(long, env = "KINGPOST_REGISTRY_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) registry_token: Option<String>,
    /// File with that token
    #[arg(long, value_name = "FILE", requires = "registry")]
    pub(crate) registry_token_file: Option<PathBuf>,
    /// Certificates of the authorities that an https:// registry is trusted by; the system's if not given
    #[arg(long, value_name = "FILE", requires = "registry")]
    pub(crate) registry_ca: Option<PathBuf>,
    /// How long the primary must be lost before anything is done. Longer than it takes to restart a server, if that is to be waited for
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) after: Duration,
    /// How long the lock lives without being kept: after that the next watcher takes over from one that has died
    #[arg(long, default_value = "3s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// Address of /metrics, /healthz and /readyz; none if not given
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<String>,
    #[command(flatten)]
    pub(crate) stop: StopAt,
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

#[derive(Debug, Args)]
pub(crate) struct FromDatabasesArgs {
    /// The program's file, usually pgbouncer.ini or pgcat.toml
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) how: Translation,
    #[command(flatten)]
    pub(crate) which: WhichDatabases,
}

#[derive(Debug, Args)]
pub(crate) struct FromPgdogArgs {
    /// PgDog's file, usually pgdog.toml
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// PgDog's users; without it users.toml beside the file
    #[arg(long, value_name = "FILE")]
    pub(crate) users: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: Translation,
    #[command(flatten)]
    pub(crate) which: WhichDatabases,
}

#[derive(Debug, Args)]
pub(crate) struct FromPgpoolArgs {
    /// pgpool-II's file, usually pgpool.conf
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// pgpool-II's rules; without it pool_hba.conf beside the file. Read with enable_pool_hba = on only
    #[arg(long, value_name = "FILE")]
    pub(crate) hba: Option<PathBuf>,
    /// pgpool-II's passwords; without it what the file names, or pool_passwd beside it
    #[arg(long, value_name = "FILE")]
    pub(crate) passwords: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) how: Translation,
}

/// What all translations of other programs' files have in common.
#[derive(Debug, Args)]
pub(crate) struct Translation {
    /// File to write, which must not exist; standard output if not given. It may hold passwords.
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Setting to leave out, as the error names it (`databases.shop.connect_query`), by its last part, or by the table above it; may be given several times
    #[arg(long, value_name = "KEY")]
    pub(crate) ignore: Vec<String>,
    /// User that watches the servers; without it one that the files name for such things, else a user of clients with a password, else postgres. A
    /// password that the files do not have comes by KINGPOST__CLUSTER__PASSWORD
    #[arg(long, value_name = "NAME")]
    pub(crate) probe_user: Option<String>,
    /// Writes also what `kingpost check` finds wrong, because the files that it names are on another machine
    #[arg(long)]
    pub(crate) no_check: bool,
}

/// For programs whose files name databases.
#[derive(Debug, Args)]
pub(crate) struct WhichDatabases {
    /// Database to translate; may be given several times. Without it all are
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Vec<String>,
    /// The servers that the databases lead to are one primary and its replicas
    #[arg(long)]
    pub(crate) same_cluster: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Dir {
    /// Directory of the cluster
    #[arg(long, short = 'D', env = "KINGPOST_DIR", default_value = "./.kingpost", value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Durability of a local cluster's commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Durability {
    /// On the primary
    Local,
    /// On the relay, too
    Relay,
}

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// What the servers are; the default is what the directory has, or postgresql
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) engine: Option<Engine>,
    /// Number of replicas; the default is 2, or as many as the directory has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=16))]
    pub(crate) replicas: Option<u16>,
    /// Directory of PostgreSQL's programs (13 to 18); searched for if not given
    #[arg(long, env = "KINGPOST_PG_BIN", value_name = "DIR")]
    pub(crate) pg_bin: Option<PathBuf>,
    /// Address of the proxy: loopback only, for there are no passwords; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:6432", value_name = "ADDRESS")]
    pub(crate) listen: String,
    /// Address of /metrics, /healthz and /readyz; the default is 127.0.0.1:9632, or a free port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<String>,
    /// No relay: replicas stream from the primary
    #[arg(long)]
    pub(crate) no_relay: bool,
    /// Where a commit is durable when its client hears of it: on the primary, or also on the relay
    #[arg(long, value_enum, default_value = "local", value_name = "WHERE")]
    pub(crate) durability: Durability,
    /// Address of the registry; the default is 127.0.0.1:8632, or a free port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) registry_listen: Option<String>,
    /// Address of the web console; the default is 127.0.0.1:7632, or a free port if that is taken
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) console_listen: Option<String>,
    /// Start, check, print, stop
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// How long to wait for a clean stop
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// Prints JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Configuration file that names servers, relays and proxies: shows how these servers, relays and proxies stand, instead of a local cluster,
    /// and what an interrupted failover or switchover has left
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["json", "dir"])]
    pub(crate) config: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
