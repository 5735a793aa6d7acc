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
mod report;
mod settings_file;
mod shared;
mod supervise;
#[cfg(test)]
mod supervise_tests;
mod watchdog;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::node::Attachment;
use config::{Config, load, parse, stat_file, warn};
use failover::observe::Observer;
use metrics::{Admin, Pushing};
use process::postgresql::ControlData;
use process::{Failure, INTERRUPTED, LogFlags, StopSignals, control_runtime, logging, systemd, terminal};
use registry_client::{Entry, Member};
use tokio::sync::watch;
use topology::NodeConfig;
use watermark::Lsn;

use agent::{Agent, Memory, split, with_own};
pub use args::NodeArgs;
use directory::{Directory, DirectoryLock, NodeIdentity};
use hands::{Hands, Login, StartSettings};
use lease::LeaseClock;
use report::Report;
use supervise::Permits;

/// Interval of registrations, and of looks for a volume.
const REGISTER: Duration = Duration::from_secs(1);
/// Longest wait for the registry when the agent ends.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Runs the agent of a server.
pub fn node(args: &NodeArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut config = read(args)?;
    logging::start(&log.over(&config.log), None)?;
    if args.keep || args.pause || args.resume {
        return order(args, args.directory.as_ref().unwrap_or(&config.node.directory));
    }
    complete(&mut config, args)?;
    let runtime = control_runtime()?;
    let result = runtime.block_on(run(config, args));
    runtime.shutdown_background();
    result
}

/// Opens the directory of an agent that has run before.
fn used(path: &Path) -> Result<Directory, Failure> {
    if Directory::is_used(path) {
        return Directory::open(path);
    }
    Err(Failure::config(format!("{} is no agent's directory", path.display()))
        .advise("name that of the agent with --directory, or its configuration with --config"))
}

/// Has the agent of a directory only watch, or act again.
///
/// # Errors
/// The directory is not an agent's, or cannot be written.
pub fn pause(path: &Path, paused: bool) -> Result<(), Failure> {
    used(path)?.set_paused(paused)
}

/// Writes an order into a directory, for its agent.
fn order(args: &NodeArgs, path: &Path) -> Result<(), Failure> {
    let does = if args.keep {
        used(path)?.set_rebuild_wanted(false)?;
        "keeps the present data"
    } else {
        pause(path, args.pause)?;
        if args.pause { "only watches: `kingpost node --resume` has it act again" } else { "acts" }
    };
    terminal::line(format_args!("the agent of {} {does}", path.display()));
    Ok(())
}

/// The agent of a server that another part of the process has made and started. The server outlives it.
pub struct LocalAgent {
    agent: Agent,
    _lock: DirectoryLock,
}

impl std::fmt::Debug for LocalAgent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalAgent").field("name", &self.agent.name).finish_non_exhaustive()
    }
}

impl LocalAgent {
    /// Takes the server over. The configuration has `[node]` with name, address and directory; the server's data are in `data` there.
    ///
    /// # Errors
    /// The directory cannot be used, has no data, or has another agent.
    pub async fn start(config: Config) -> Result<LocalAgent, Failure> {
        let directory = Directory::open(&config.node.directory)?;
        let Some(lock) = directory.lock()? else { return Err(directory.has_agent()) };
        // Nobody listens at the other ends: there is no registry to write to, and no watchdog.
        let ((entry, _), (_, listed)) = (watch::channel(None), watch::channel(Vec::new()));
        let outlets =
            Outlets { entry, listed, member: None, guarded: watch::channel(None).0, status: Arc::new(Report::new()) };
        let mut agent = prepare(config, &NodeArgs::default(), directory, outlets)?;
        agent.is_alone = false;
        agent.remember_data().await?;
        Ok(LocalAgent { agent, _lock: lock })
    }

    /// Runs the agent until the future is dropped.
    ///
    /// # Errors
    /// The cluster's servers and relays cannot be asked.
    pub async fn run(mut self) -> Result<(), Failure> {
        self.agent.run().await
    }
}

/// Writes the upstream of a standby into the files of its stopped server. `path`: the directory of its agent.
///
/// # Errors
/// The files cannot be read or written.
pub fn follow(path: &Path, conninfo: &str, slot: &str) -> Result<(), Failure> {
    let directory = Directory::open(path)?;
    directory.follow(&directory.data(), conninfo, slot)
}

/// Reads a text as control data, as the history of a timeline and as settings; returns the settings that a standby keeps.
#[must_use]
pub fn kept_settings(text: &str) -> String {
    let _ = (controldata::on_disk(&ControlData::new(text.into(), false, 0)), controldata::fork(text, 2, 1));
    let own = shared::OwnSettings::parse(text).unwrap_or_default();
    let _ = own.short(&ControlData::new(text.into(), true, 0));
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
        Some(peer) if args.init => {
            return Err(Failure::config(format!("--init with --join {peer}: two hosts could each make a cluster"))
                .advise("name a registry with --join, or list all servers in [[cluster.nodes]] and give --join without a value"));
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
    let lock = directory.lock()?;
    let member = match config.cluster.from.urls.is_empty() {
        true => None,
        false => Some(Arc::new(Member::new(&config.cluster.from)?)),
    };
    let Some(_lock) = lock else {
        return match args.rebuild {
            true => order_rebuild(config, &directory, member.as_deref()).await,
            false => Err(directory.has_agent()),
        };
    };
    let status = Arc::new(Report::new());
    let _admin = match &*config.node.metrics_listen {
        "" => None,
        address => {
            config.metrics.permits("node.metrics_listen", address)?;
            Some(Admin::start(address, None, Arc::clone(&status)).await?)
        }
    };
    let pushing = Pushing::start(&config.metrics.otlp, Arc::clone(&status))?;
    let (guarded, leases) = watch::channel(None);
    let lease = config.node.lease;
    let watchdog = config.node.watchdog.clone().map(|path| tokio::spawn(watchdog::run(path, leases, lease)));
    let (entry, entries) = watch::channel(None);
    let (list, listed) = watch::channel(Vec::new());
    let mut agent =
        prepare(config, args, directory, Outlets { entry, listed, member: member.clone(), guarded, status })?;
    if let Some(member) = &member {
        let relays = !agent.config.failover.relays.is_empty();
        match member.nodes().await {
            Ok(nodes) => drop(list.send_replace(nodes)),
            // The claim in the registry, or the relays, keep this server from being a second primary.
            Err(failure) if args.init || args.leave || relays => tracing::warn!("{failure}"),
            Err(failure) => {
                tracing::warn!("the agent waits for the list of servers: {failure}");
                tokio::select! {
                    nodes = first_list(member) => drop(list.send_replace(nodes)),
                    _ = stop.next() => return Ok(()),
                }
            }
        }
    }
    // An order of the command line observes the others once, before the first turn.
    agent.take_list()?;
    if args.leave {
        return leave(&mut agent, member.as_deref()).await;
    }
    if args.adopt {
        agent.remember_data().await?;
    }
    if args.rebuild {
        let leader = something_to_copy(&agent.observer, &agent.name).await?;
        tracing::info!(leader, "the data are to be copied anew");
        agent.hands.directory.set_rebuild_wanted(true)?;
    }
    let ends = member.map(|member| tokio::spawn(async move { register(&member, entries, list).await }));
    systemd::ready();
    let ended = tokio::select! {
        ended = agent.run() => ended,
        signal = stop.next() => {
            tracing::info!(signal, "the agent ends");
            Ok(())
        }
    };
    systemd::notify("STOPPING=1");
    // A container's processes end with its first one, in any mode.
    let paused = agent.hands.directory.is_paused() && std::process::id() != 1;
    if agent.config.node.server == Attachment::Attached && !paused {
        tokio::select! {
            () = agent.end() => {}
            _ = stop.next() => {
                agent.hands.stop(true).await;
                std::process::exit(INTERRUPTED);
            }
        }
    }
    drop(agent);
    for task in ends.into_iter().chain(watchdog) {
        let _ = tokio::time::timeout(LAST_WORD, task).await;
    }
    if let Some(pushing) = &pushing {
        pushing.flush().await;
    }
    ended
}

/// Waits for the first list of servers: without relays nothing may start before the others are known.
async fn first_list(member: &Member) -> Vec<NodeConfig> {
    loop {
        tokio::time::sleep(REGISTER).await;
        if let Ok(nodes) = member.nodes().await {
            return nodes;
        }
    }
}

/// Waits until a directory is a mount point.
async fn mounted(path: &Path) {
    while !Directory::is_mounted(path) {
        tokio::time::sleep(REGISTER).await;
    }
}

/// The agent's ends of channels, and its access to the registry.
struct Outlets {
    entry: watch::Sender<Option<Entry>>,
    listed: watch::Receiver<Vec<NodeConfig>>,
    member: Option<Arc<Member>>,
    guarded: watch::Sender<Option<LeaseClock>>,
    status: Arc<Report>,
}

/// True if the command line lets this node make a cluster. Where several may, and no registry decides, it is the first of the configuration.
fn may_initialise(config: &Config, args: &NodeArgs) -> bool {
    let is_first = || config.cluster.nodes.first().is_none_or(|first| first.name == config.node.name);
    args.init && (args.join.is_none() || !config.cluster.from.urls.is_empty() || is_first())
}

/// Makes the agent, and checks that the directory is its own.
fn prepare(config: Config, args: &NodeArgs, directory: Directory, outlets: Outlets) -> Result<Agent, Failure> {
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
    let permits =
        Permits { initialise: may_initialise(&config, args), join: args.join.is_some() || directory.is_copy_wanted() };
    Ok(Agent {
        observer: Observer::new(&config)?,
        address: config.node.address.clone(),
        lease: LeaseClock::new(config.node.lease, lease::now()),
        hands: Hands::new(directory, installation, login, start, limits),
        config,
        name,
        identity,
        permits,
        entry: outlets.entry,
        listed: outlets.listed,
        member: outlets.member,
        file: args.config.clone(),
        guarded: outlets.guarded,
        status: outlets.status,
        is_alone: true,
        memory: Memory::default(),
    })
}

/// Returns the name of the primary among the other servers.
async fn something_to_copy(observer: &Observer, own: &str) -> Result<String, Failure> {
    let leader = mandate::leader(&observer.observe().await, own);
    leader.map(|leader| leader.name).ok_or_else(|| {
        Failure::runtime("no other server is primary: there is nothing to copy, and the data stay")
            .advise("run it again when a primary answers")
    })
}

/// Has the running agent of a directory copy the primary's data anew.
async fn order_rebuild(mut config: Config, directory: &Directory, member: Option<&Member>) -> Result<(), Failure> {
    let (name, address) = (config.node.name.clone(), config.node.address.clone());
    Directory::belongs(directory.identity()?.as_ref(), &name).map_err(|why| Failure::config(why.to_string()))?;
    if let Some(member) = member {
        let nodes = member.nodes().await?;
        if !nodes.is_empty() {
            config.cluster.nodes = with_own(nodes, &name, &address);
        }
    }
    let leader = something_to_copy(&Observer::new(&config)?, &name).await?;
    directory.set_rebuild_wanted(true)?;
    terminal::line(format_args!(
        "the agent of {} copies the data of {leader} when clients have left, and keeps the present ones aside",
        directory.path.display()
    ));
    Ok(())
}

/// Removes the server from the registry, and its slots from the others.
async fn leave(agent: &mut Agent, member: Option<&Member>) -> Result<(), Failure> {
    if let Some(member) = member {
        member.deregister(&agent.name).await?;
        terminal::line(format_args!("{} is no longer in the registry", agent.name));
    }
    let left = agent.observer.leave(&agent.name).await;
    if left.is_empty() {
        terminal::line(format_args!("nobody keeps a slot for {}", agent.name));
        return Ok(());
    }
    Err(Failure::runtime(format!("slots of {} may be left\n  {}", agent.name, left.join("\n  ")))
        .advise("stop its server, and run it again when these answer: a slot that nobody uses keeps WAL"))
}

/// Registers the server again and again, and fetches the list of servers.
async fn register(member: &Member, mut entries: watch::Receiver<Option<Entry>>, list: watch::Sender<Vec<NodeConfig>>) {
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
