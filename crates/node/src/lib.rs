//! `kingpost node`: the agent of one PostgreSQL server.
//!
//! ```text
//!  servers, relays ─▶ Observation ─▶ supervise::decide (pure) ─▶ Action ─▶ hands (programs, signals, files), SQL
//!  data directory  ─┘                                        └─▶ state ─▶ log, service manager, registry
//! ```
//!
//! The agent decides nothing about the cluster: which server is primary follows from timelines, and from what relays have promised.

mod agent;
mod args;
mod controldata;
mod directory;
mod hands;
mod lease;
mod mandate;
mod reap;
mod settings_file;
mod supervise;
#[cfg(test)]
mod supervise_tests;

use std::path::Path;
use std::time::Duration;

use config::node::Attachment;
use config::{Config, load, parse, stat_file, warn};
use failover::observe::Observer;
use process::postgresql::ControlData;
use process::{Failure, INTERRUPTED, LogFlags, StopSignals, control_runtime, logging, systemd, terminal};
use registry_client::{Entry, Member};
use tokio::sync::watch;
use topology::NodeConfig;
use watermark::Lsn;

use agent::{Agent, Memory, split};
pub use args::NodeArgs;
use directory::{Directory, NodeIdentity};
use hands::{Hands, Login, StartSettings};
use lease::LeaseClock;
use supervise::Permits;

/// Interval of registrations, and of looks for a volume.
const REGISTER: Duration = Duration::from_secs(1);
/// Longest wait for the registry when the agent ends.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Runs the agent of a server.
pub fn node(args: &NodeArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut config = read(args)?;
    logging::start(&log.over(&config.log), None)?;
    complete(&mut config, args)?;
    let runtime = control_runtime()?;
    let result = runtime.block_on(run(config, args));
    runtime.shutdown_background();
    result
}

/// Reads a text as control data, as the history of a timeline and as settings; returns the settings that a standby keeps.
#[must_use]
pub fn kept_settings(text: &str) -> String {
    let _ = (controldata::on_disk(&ControlData::new(text.into(), false, 0)), controldata::fork(text, 2, 1));
    let _ = text.lines().filter(|line| controldata::is_left_segment(line, 2, Lsn(7), 16 << 20)).count();
    settings_file::cleaned(text)
}

/// Reads the configuration; without a file, the environment alone.
fn read(args: &NodeArgs) -> Result<Config, Failure> {
    let (config, warnings) = match &args.config {
        Some(path) => load(path)?.accept(path)?,
        None => {
            let text = format!("[node]\nname = {:?}\n", args.name.as_deref().unwrap_or("node"));
            let name = "the environment";
            let (mut config, warnings) = parse(name, &text, std::env::vars_os(), &stat_file).accept(Path::new(name))?;
            if args.name.is_none() {
                config.node.name = String::new();
            }
            (config, warnings)
        }
    };
    warn(&warnings);
    auth::filled(&config)
}

/// Adds the command line, and this server to the list of servers.
fn complete(config: &mut Config, args: &NodeArgs) -> Result<(), Failure> {
    let node = &mut config.node;
    if let Some(name) = &args.name {
        node.name.clone_from(name);
    }
    if node.name.is_empty() {
        node.name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    }
    if let Some(directory) = &args.directory {
        node.directory.clone_from(directory);
    }
    if let Some(address) = &args.address {
        node.address.clone_from(address);
    }
    let name = node.name.clone();
    let own = config.cluster.nodes.iter().find(|node| node.name == name);
    if config.node.address.is_empty() {
        let unknown = || {
            Failure::config(format!("no address is known at which the others reach the server {name}"))
                .advise("give --address HOST:PORT or node.address, or list the server in [[cluster.nodes]]")
        };
        config.node.address = own.map(|node| node.address.clone()).ok_or_else(unknown)?;
    }
    if !config.node.address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    {
        return Err(Failure::config(format!(
            "the address of the server is {:?}: expected host:port",
            config.node.address
        )));
    }
    if own.is_none() {
        let node = NodeConfig::new(&name, &config.node.address);
        config.cluster.nodes.push(node);
    }
    match args.join.as_deref() {
        None | Some("") => {}
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
            config.cluster.from.urls = vec![url.to_owned()];
        }
        Some(peer) if !config.cluster.nodes.iter().any(|node| node.address == peer) => {
            config.cluster.nodes.push(NodeConfig::new(format!("peer at {peer}"), peer));
        }
        Some(_) => {}
    }
    Ok(())
}

async fn run(config: Config, args: &NodeArgs) -> Result<(), Failure> {
    let mut stop = StopSignals::new()?;
    if config.node.volume && !Directory::is_mounted(&config.node.directory) {
        let directory = config.node.directory.display();
        tracing::warn!(
            "{directory} is no mounted volume: the agent waits for it; node.volume = false takes a plain directory"
        );
        tokio::select! {
            () = mounted(&config.node.directory) => {}
            _ = stop.next() => return Ok(()),
        }
    }
    let directory = Directory::open(&config.node.directory)?;
    let _lock = directory.lock()?;
    let member = match config.cluster.from.urls.is_empty() {
        true => None,
        false => Some(Member::new(&config.cluster.from)?),
    };
    let (entry, entries) = watch::channel(None);
    let (list, listed) = watch::channel(Vec::new());
    let mut agent = prepare(config, args, directory, entry, listed)?;
    if let Some(member) = &member {
        // The first list: nothing may be made before the others are known.
        match member.nodes().await {
            Ok(nodes) => drop(list.send_replace(nodes)),
            Err(failure) if args.init || args.leave => tracing::warn!("{failure}"),
            Err(failure) => return Err(failure),
        }
    }
    if args.leave {
        return leave(&mut agent, member.as_ref()).await;
    }
    if args.adopt {
        agent.remember_data().await?;
    }
    if args.rebuild {
        rebuild(&mut agent).await?;
    }
    let ends = member.map(|member| tokio::spawn(register(member, entries, list)));
    systemd::ready();
    let ended = tokio::select! {
        ended = agent.run() => ended,
        signal = stop.next() => {
            tracing::info!(signal, "the agent ends");
            Ok(())
        }
    };
    systemd::notify("STOPPING=1");
    if agent.config.node.server == Attachment::Attached {
        tokio::select! {
            () = agent.end() => {}
            _ = stop.next() => {
                agent.hands.stop(true).await;
                std::process::exit(INTERRUPTED);
            }
        }
    }
    drop(agent);
    if let Some(ends) = ends {
        let _ = tokio::time::timeout(LAST_WORD, ends).await;
    }
    ended
}

/// Waits until a directory is a mount point.
async fn mounted(path: &Path) {
    while !Directory::is_mounted(path) {
        tokio::time::sleep(REGISTER).await;
    }
}

/// Makes the agent, and checks that the directory is its own.
fn prepare(
    config: Config,
    args: &NodeArgs,
    directory: Directory,
    entry: watch::Sender<Option<Entry>>,
    listed: watch::Receiver<Vec<NodeConfig>>,
) -> Result<Agent, Failure> {
    let name = config.node.name.clone();
    let identity = directory.identity()?;
    Directory::belongs(identity.as_ref(), &name).map_err(|why| Failure::config(why.to_string()))?;
    let identity = match identity {
        Some(identity) => identity,
        None => {
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
            let id = random.iter().map(|byte| format!("{byte:02x}")).collect();
            let identity = NodeIdentity { format: 1, name: name.clone(), id, system: None, version: None };
            directory.set_identity(&identity)?;
            identity
        }
    };
    let login = Login {
        user: config.failover.user.clone(),
        password: config.failover.password.clone(),
        sslmode: match config.cluster.tls.mode {
            tls::ConnectMode::Disable => "disable",
            tls::ConnectMode::Prefer => "prefer",
            tls::ConnectMode::Require => "require",
            tls::ConnectMode::VerifyCa => "verify-ca",
            tls::ConnectMode::VerifyFull => "verify-full",
        },
        ca_file: config.cluster.tls.ca_file.clone(),
    };
    if let Some(password) = &login.password {
        directory.write(&directory.passfile(), &settings_file::password_file(&login.user, password), 0o600)?;
    }
    let made = identity.version.map(|version| (version, Path::new("/")));
    let installation = process::postgresql::find(config.node.pg_bin.as_deref(), made)?;
    let start = StartSettings {
        port: split(&config.node.address).1,
        listen_addresses: config.node.listen_addresses.clone(),
        socket_directory: config.node.socket_directory.clone(),
        cluster_name: name.clone(),
    };
    let limits = (config.node.stop_timeout, config.node.clone_timeout);
    let permits = Permits { initialise: args.init, join: args.join.is_some() || directory.is_copy_wanted() };
    Ok(Agent {
        observer: Observer::new(&config)?,
        address: config.node.address.clone(),
        lease: LeaseClock::new(config.node.lease, lease::now()),
        hands: Hands::new(directory, installation, login, start, limits),
        config,
        name,
        identity,
        permits,
        entry,
        listed,
        memory: Memory::default(),
    })
}

/// Moves the data aside, so that the first turn copies the primary's.
async fn rebuild(agent: &mut Agent) -> Result<(), Failure> {
    let seen = agent.observer.observe().await;
    let Some(leader) = mandate::leader(&seen, &agent.name) else {
        return Err(Failure::runtime("no other server is primary: there is nothing to copy, and the data stay")
            .advise("run it again when a primary answers"));
    };
    if agent.hands.runs() {
        agent.hands.stop(false).await;
    }
    if agent.hands.directory.data().exists() || agent.hands.directory.rewinding().exists() {
        let aside = agent.set_aside()?;
        tracing::info!(kept = %aside.display(), leader = leader.name, "the data are made anew");
    }
    agent.permits.join = true;
    Ok(())
}

/// Removes the server from the registry, and its slots from the others.
async fn leave(agent: &mut Agent, member: Option<&Member>) -> Result<(), Failure> {
    if let Some(member) = member {
        member.deregister(&agent.name).await?;
        terminal::line(format_args!("{} is no longer in the registry", agent.name));
    }
    agent.take_list()?;
    let left = agent.leave().await;
    if left.is_empty() {
        terminal::line(format_args!("nobody keeps a slot for {}", agent.name));
        return Ok(());
    }
    Err(Failure::runtime(format!("slots of {} may be left\n  {}", agent.name, left.join("\n  ")))
        .advise("stop its server, and run it again when these answer: a slot that nobody uses keeps WAL"))
}

/// Registers the server again and again, and fetches the list of servers.
async fn register(member: Member, mut entries: watch::Receiver<Option<Entry>>, list: watch::Sender<Vec<NodeConfig>>) {
    let mut failing = false;
    loop {
        let entry = entries.borrow_and_update().clone();
        let done = async {
            if let Some(entry) = &entry {
                member.register(entry).await?;
            }
            let nodes = member.nodes().await?;
            // An empty list is not believed: a registry may have lost everything.
            if !nodes.is_empty() {
                list.send_if_modified(|before| {
                    let differs = *before != nodes;
                    *before = nodes;
                    differs
                });
            }
            Ok::<(), Failure>(())
        };
        match done.await {
            Err(failure) if !failing => {
                failing = true;
                tracing::warn!("the server is not registered; trying again: {failure}");
            }
            Ok(()) if failing => {
                failing = false;
                tracing::info!("the server is registered again");
            }
            _ => {}
        }
        tokio::select! {
            () = tokio::time::sleep(REGISTER) => {}
            changed = entries.changed() => if changed.is_err() { return },
        }
    }
}
