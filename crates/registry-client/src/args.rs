//! Arguments of commands of the registry's client.
#![allow(missing_docs, reason = "a doc comment on a type of arguments would be printed as help")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use process::EXIT_CODES;

#[derive(Debug, Subcommand)]
pub enum RegistryCommand {
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
        /// Also the configuration entries of the namespaces; contents of secrets are among them
        #[arg(long)]
        configs: bool,
        /// With the older versions of the entries that are kept
        #[arg(long, requires = "configs")]
        history: bool,
    },
    /// Registers the instances of JSON lines, or those that a running Consul or Eureka has
    ///
    /// What is there already, and the same, is not written: it can be run again.
    #[command(after_help = EXIT_CODES)]
    Import(ImportArgs),
    /// Keeps the lease of this host: when the host is gone, its instances are critical, whether or not they have checks
    ///
    /// The host is the address from which the registry is reached; its instances are those that were registered from there through Consul's API. The
    /// agent runs until a signal ends it, and the lease ends after its time, unless an agent goes on with it. The lease is the check serfHealth of
    /// the host's node; to do without it again, stop the agent and deregister the check (/v1/agent/check/deregister/serfHealth).
    #[command(after_help = EXIT_CODES)]
    Agent {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
        /// Time without a sign of life after which the host counts as gone; a sign of life is sent three times in it
        #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = lease)]
        ttl: Duration,
    },
    /// Lists configuration entries, restores older versions, imports from a running Nacos
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Makes a token: prints it, and what of it goes into the configuration
    #[command(after_help = EXIT_CODES)]
    Token {
        /// Name of the token, for logs
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Lists entries, without their contents, as JSON lines
    #[command(after_help = EXIT_CODES)]
    Ls {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
    },
    /// Lists the versions of an entry that are kept, newest first, as JSON lines
    #[command(after_help = EXIT_CODES)]
    History {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
        /// The group
        group: String,
        /// The data id
        id: String,
    },
    /// Publishes an older version of an entry again, also of a removed one
    #[command(after_help = EXIT_CODES)]
    Rollback {
        #[command(flatten)]
        remote: RemoteArgs,
        /// The namespace
        #[arg(long, short, default_value = "default", value_name = "NAME")]
        namespace: String,
        /// The group
        group: String,
        /// The data id
        id: String,
        /// Number of the version
        version: u64,
    },
    /// Publishes what a running Nacos has, in namespaces of the same names
    ///
    /// What is there already, and the same, is not written: it can be run again.
    #[command(after_help = EXIT_CODES)]
    Import(ConfigImportArgs),
}

#[derive(Debug, Args)]
pub struct ConfigImportArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// The Nacos to import from, as http://host:8848/nacos
    #[arg(long, value_name = "URL")]
    pub nacos: String,
    /// User of that Nacos
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Password of that user; better in the variable, where other users do not see it
    #[arg(long, env = "NACOS_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    pub password: Option<String>,
    /// Id of a namespace to import; may be given several times; without it all of them
    #[arg(long, short, value_name = "ID")]
    pub namespace: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RemoteArgs {
    /// Address of the registry
    #[arg(long, env = "KINGPOST_REGISTRY_URL", default_value = "http://127.0.0.1:8632", value_name = "URL")]
    pub url: String,
    /// CAs that the registry's certificate is verified with (PEM), for an https:// address; the system's if not given
    #[arg(long, env = "KINGPOST_REGISTRY_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Own certificate (PEM), if the registry wants one
    #[arg(long, env = "KINGPOST_REGISTRY_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of that certificate (PEM)
    #[arg(long, env = "KINGPOST_REGISTRY_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Token; better in the variable, where other users do not see it
    #[arg(long, env = "KINGPOST_REGISTRY_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
}

#[derive(Debug, Args)]
pub struct RegisterArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// The namespace
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// The service
    pub service: String,
    /// Address on which the instance listens
    #[arg(value_name = "HOST:PORT")]
    pub address: String,
    /// Id of the instance; made from service and address if not given
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Metadata; may be given several times
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = pair)]
    pub meta: Vec<(String, String)>,
    /// Time without a heartbeat after which the instance is critical; without this it stays until it is deregistered
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub ttl: Option<Duration>,
    /// Share of the traffic
    #[arg(long, value_name = "N")]
    pub weight: Option<u16>,
    /// Zone of the instance
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// Version of the instance
    #[arg(long, value_name = "VERSION")]
    pub instance_version: Option<String>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// The file; standard input if not given
    #[arg(conflicts_with_all = ["from_consul", "from_eureka"])]
    pub file: Option<PathBuf>,
    /// A running Consul to import from, as http://host:port
    #[arg(long, value_name = "URL", conflicts_with = "from_eureka")]
    pub from_consul: Option<String>,
    /// A running Eureka to import from, as http://host:port/eureka
    #[arg(long, value_name = "URL")]
    pub from_eureka: Option<String>,
    /// Token for that Consul; better in the variable, where other users do not see it
    #[arg(long, env = "CONSUL_HTTP_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub from_token: Option<String>,
    /// Namespace for what comes from Consul or Eureka
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// Time without a heartbeat here after which an instance from Consul or Eureka is critical; without this it stays until it is
    /// deregistered
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub ttl: Option<Duration>,
}

/// Parses the time of a host's lease.
fn lease(text: &str) -> Result<Duration, String> {
    let ttl = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&ttl) {
        return Ok(ttl);
    }
    Err("expected 1s to 1h".into())
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".into()),
    }
}
