//! Arguments of `kingpost proxy`, `relay`, `registry` and `console`.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use process::EXIT_CODES;
use registry_client::RegistryCommand;

#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE")]
    pub config: PathBuf,
    /// Longest time that transactions may go on when stopping
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub grace: Duration,
    /// Take over the listening sockets of the process that runs by the same configuration (proxy.upgrade_socket)
    #[arg(long)]
    pub take_over: bool,
}

#[derive(Debug, Args)]
pub struct RelayArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE", required = true)]
    pub config: Option<PathBuf>,
    /// Says that the relay has never run before, or that the others that could tell what it promised are gone for good
    ///
    /// For a relay whose directory is empty and that cannot find out by itself whether it is new. Not for a unit file: a relay that loses its
    /// directory must ask what it promised before it acknowledges anything.
    #[arg(long)]
    pub new: bool,
    #[command(subcommand)]
    pub command: Option<RelayCommand>,
}

#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Gets a segment or a history file from relays, or out of a relay's directory: restore_command = 'kingpost relay fetch %f %p --from relay:6442'
    ///
    /// Exits with 1 and says nothing if no relay and no archive holds it: a server in recovery asks for the next segment all the time.
    #[command(after_help = EXIT_CODES)]
    Fetch(Box<FetchArgs>),
    /// Gives up the write-ahead log or the binary log that a relay holds; it keeps what it has promised, and its slots
    ///
    /// The way back for a relay that has a gap no other relay can fill, or that has more than a primary that is to stay. The relay must not run; at
    /// its next start it begins with what its upstream writes then (MariaDB: with the oldest binary log that it has). What only this relay held is
    /// lost.
    #[command(after_help = EXIT_CODES)]
    Reset(ResetArgs),
}

#[derive(Debug, Args)]
pub struct ResetArgs {
    /// Directory of the relay's log
    #[arg(long, env = "KINGPOST_RELAY_DIR", default_value = "/var/lib/kingpost/relay", value_name = "DIR")]
    pub dir: PathBuf,
    /// Removes the files; without it they are moved to a directory below
    #[arg(long)]
    pub remove: bool,
}

#[derive(Debug, Args)]
pub struct FetchArgs {
    /// Name of the file (%f)
    pub name: String,
    /// Path to write the file to (%p)
    pub target: PathBuf,
    /// Directory of the relay's log, on this host
    #[arg(long, env = "KINGPOST_RELAY_DIR", default_value = "/var/lib/kingpost/relay", value_name = "DIR")]
    pub dir: PathBuf,
    /// A relay to ask, host:port, instead of --dir; may be given several times: the first that has the file gives it
    #[arg(long, value_name = "ADDRESS")]
    pub from: Vec<String>,
    /// Configuration file with [relay.archive], which is asked for what no relay holds
    #[arg(long, value_name = "FILE")]
    pub archive: Option<PathBuf>,
    /// Exits with 126 after an error: a server's recovery then stops, where it would end early. For a recovery to a point in time; not for a standby
    #[arg(long)]
    pub stop_recovery: bool,
    /// User of [[relay.users]] there
    #[arg(long, default_value = "postgres", value_name = "NAME", requires = "from")]
    pub user: String,
    /// File with the user's password in its first line
    #[arg(long, value_name = "FILE", requires = "from")]
    pub password_file: Option<PathBuf>,
    /// TLS with the relays, as libpq's sslmode: disable, prefer, require, verify-ca or verify-full
    #[arg(long, default_value = "disable", value_name = "MODE", requires = "from", value_parser = tls_mode)]
    pub tls: tls::ConnectMode,
    /// PEM: CAs that the relays' certificates are verified with
    #[arg(long, value_name = "FILE", requires = "from")]
    pub ca_file: Option<PathBuf>,
    /// PEM: certificate shown to the relays
    #[arg(long, value_name = "FILE", requires_all = ["from", "key_file"])]
    pub cert_file: Option<PathBuf>,
    /// PEM: the certificate's key
    #[arg(long, value_name = "FILE", requires_all = ["from", "cert_file"])]
    pub key_file: Option<PathBuf>,
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
pub struct RegistryArgs {
    /// Configuration file
    #[arg(long, short, env = "KINGPOST_CONFIG", value_name = "FILE", required = true)]
    pub config: Option<PathBuf>,
    /// Longest time that requests under way may go on when stopping
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub grace: Duration,
    #[command(subcommand)]
    pub command: Option<RegistryCommand>,
}

#[derive(Debug, Subcommand)]
pub enum ConsoleCommand {
    /// Makes a token to sign in with: prints it, and what of it goes into the configuration
    #[command(after_help = EXIT_CODES)]
    Token {
        /// Name of the token, for logs
        name: String,
        /// Gives the right to look and none to act
        #[arg(long)]
        viewer: bool,
    },
}
