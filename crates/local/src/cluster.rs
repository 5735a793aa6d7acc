//! The PostgreSQL servers of one directory: creating them, starting and stopping them in order.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::children::{Account, Launcher};
use super::dir::{Directory, Engine, FORMAT, State};
use super::plan::{Part, plan};
use super::postgres::{self, Server};
use super::relay::{self, Dirs, LocalRelay};
use super::stop::Stop;
use super::tour;
use config::Config;
use config::node::{Attachment, NodeAgentConfig};
use process::Failure;
use process::postgresql::{self, Installation};

/// Longest time for a replica with existing data to stream; after it, its data are made again.
const FOLLOW_LIMIT: Duration = Duration::from_secs(20);
/// Longest time for a new replica to stream.
const REBUILT_LIMIT: Duration = Duration::from_secs(60);
/// Interval between two checks for streaming.
const PACE: Duration = Duration::from_millis(100);
/// Longest path of a Unix socket.
const SOCKET_PATH_LIMIT: usize = 107;
/// Directory for data when the servers' user cannot reach the cluster's directory.
const SHARED_DATA: &str = "/var/lib/kingpost";

/// The PostgreSQL servers of one directory.
#[derive(Debug)]
pub(super) struct Cluster {
    directory: Directory,
    pub(super) state: State,
    pub(super) installation: Installation,
    pub(super) launcher: Launcher,
    /// The servers that were started: the primary first, then the replicas.
    pub(super) servers: Vec<Server>,
    /// The relay that the replicas stream from; `None` if they stream from the primary.
    pub(super) relay: Option<LocalRelay>,
}

impl State {
    /// Makes the state for a cluster, from the state of an earlier run if it left one: data stay in their place, and nodes are kept if all of them
    /// were made. `programs`: engine, version and directory of the programs.
    pub(super) fn taken_up(
        directory: &Directory,
        previous: Option<&State>,
        account: Option<&Account>,
        (engine, version, bin): (Engine, u32, PathBuf),
    ) -> Result<State, Failure> {
        let usable = previous.filter(|state| state.complete);
        let data = match previous {
            Some(state) => state.data.clone(),
            None => data_root(directory, account)?,
        };
        Ok(State {
            format: FORMAT,
            engine,
            complete: usable.is_some(),
            version,
            bin,
            sockets: socket_directory(&data, account)?,
            nodes: usable.map(|state| state.nodes.clone()).unwrap_or_default(),
            data,
        })
    }
}

impl Cluster {
    /// Finds programs, account and earlier data. Starts nothing.
    ///
    /// # Errors
    /// No usable PostgreSQL, no account for it, or a directory that cannot be used.
    pub(super) fn prepare(directory: &Directory, pg_bin: Option<&Path>, stop: Stop) -> Result<Cluster, Failure> {
        let previous = directory.state()?;
        let usable = previous.as_ref().filter(|state| state.complete);
        let installation = postgresql::find(pg_bin, usable.map(|state| (state.version, state.bin.as_path())))?;
        let account = Account::choose(&directory.path, Engine::Postgresql.account())?;
        let programs = (Engine::Postgresql, installation.version, installation.bin.clone());
        let state = State::taken_up(directory, previous.as_ref(), account.as_ref(), programs)?;
        let launcher = Launcher { account, logs: directory.logs(), cwd: state.data.clone(), stop };
        Ok(Cluster { directory: directory.clone(), state, installation, launcher, servers: Vec::new(), relay: None })
    }

    /// The directory of the data, if it is not the cluster's directory.
    pub(super) fn data_elsewhere(&self) -> Option<&Path> {
        (self.state.data != self.directory.path).then_some(self.state.data.as_path())
    }

    pub(super) fn version(&self) -> u32 {
        self.installation.version
    }

    pub(super) fn account(&self) -> Option<&str> {
        self.launcher.account.as_ref().map(|account| account.name.as_str())
    }

    /// True if all nodes were made.
    pub(super) fn is_complete(&self) -> bool {
        self.state.complete
    }

    /// Stops servers that an earlier `up` left behind and returns their names.
    pub(super) async fn stop_leftovers(&self) -> Vec<String> {
        let mut stopped = Vec::new();
        for (name, data) in super::children::left_behind(&self.nodes_dir()) {
            postgres::stop_data(&self.installation, &self.launcher, &data).await;
            stopped.push(name);
        }
        stopped
    }

    fn nodes_dir(&self) -> PathBuf {
        self.state.data.join("nodes")
    }

    /// Starts the primary and `replicas` replicas, making missing ones. Calls `step` with each step. `relay`: None without a relay, true for one that
    /// archives.
    ///
    /// # Errors
    /// A server cannot be made or started. Started servers are in `servers`, to be stopped.
    pub(super) async fn start(
        &mut self,
        replicas: Option<u16>,
        relay: Option<bool>,
        step: &dyn Fn(&str),
    ) -> Result<(), Failure> {
        let fresh = !self.state.complete;
        if fresh {
            postgres::remove_dir(&self.nodes_dir())?;
            postgres::remove_dir(&self.directory.relay())?;
            postgres::remove_dir(&self.state.data.join("archive"))?;
        }
        own_directory(&self.nodes_dir(), self.launcher.account.as_ref(), 0o700)?;
        let wanted = self.state.add_nodes(replicas);
        for node in &self.state.nodes {
            self.move_data(&node.name)?;
        }
        self.directory.save_state(&self.state)?;
        if fresh {
            step("making node1 with initdb");
            postgres::initdb(&self.installation, &self.launcher, &self.state.node_data("node1")).await?;
        }
        let mut on_disk = Vec::new();
        for node in &self.state.nodes {
            let data = self.state.node_data(&node.name);
            on_disk.push(postgres::inspect(&self.installation, &self.launcher, &data).await?);
        }
        let parts = plan(&on_disk).ok_or_else(|| {
            Failure::environment(format!("no node under {} has data", self.nodes_dir().display()))
                .advise("remove the directory and start again, or name another one with --dir")
        })?;
        let mut followers = Vec::new();
        for (node, part) in self.state.nodes.clone().iter().zip(parts) {
            let data = self.state.node_data(&node.name);
            let server = Server::new(&node.name, data, node.port, &self.launcher.logs);
            match part {
                Part::Primary { promote } => self.start_primary(server, promote, step).await?,
                part => followers.push((server, part)),
            }
        }
        followers.truncate(wanted.saturating_sub(1));
        let slots: Vec<String> = followers.iter().map(|(server, _)| server.slot()).collect();
        if let Some(archives) = relay {
            let archive = if archives { Some(tour::archive(self)?) } else { None };
            // The relay creates its own slot: a missing slot tells it that it is new.
            self.drop_slots(&[relay::SLOT.into()]).await?;
            step("starting the relay between it and the replicas");
            let dirs = Dirs { log: &self.directory.relay(), archive: archive.as_deref() };
            let relay = LocalRelay::start(dirs, self.servers[0].port, &self.launcher.stop, step).await?;
            relay.keep_for(&slots)?;
            self.relay = Some(relay);
        } else {
            self.set_slots(&slots).await?;
        }
        for (server, part) in followers {
            self.start_replica(server, part == Part::Follow, step).await?;
        }
        self.servers.iter_mut().for_each(Server::leave);
        self.state.complete = true;
        self.directory.save_state(&self.state)
    }

    /// Makes the directory of a node's agent, and moves the data of an earlier version into it.
    fn move_data(&self, name: &str) -> Result<(), Failure> {
        let (dir, data) = (self.state.node_dir(name), self.state.node_data(name));
        let moving = dir.with_extension("moving");
        let failed = |error: std::io::Error| Failure::path("move", &dir, &error);
        if dir.join("PG_VERSION").is_file() {
            fs::rename(&dir, &moving).map_err(failed)?;
        }
        own_directory(&dir, self.launcher.account.as_ref(), 0o750)?;
        // Also one that an interrupted start has left.
        if moving.is_dir() && !data.exists() {
            fs::rename(&moving, &data).map_err(failed)?;
        }
        Ok(())
    }

    async fn start_primary(&mut self, server: Server, promote: bool, step: &dyn Fn(&str)) -> Result<(), Failure> {
        step(&format!("starting {} as primary", server.name));
        self.servers.insert(0, server);
        self.start_server(0, None).await?;
        if promote {
            step("promoting it: the earlier primary is lost");
            self.servers[0].promote().await?;
        }
        Ok(())
    }

    async fn start_replica(&mut self, server: Server, has_data: bool, step: &dyn Fn(&str)) -> Result<(), Failure> {
        let primary = self.servers[0].port;
        let upstream = self.relay.as_ref().map_or(primary, LocalRelay::port);
        let name = server.name.clone();
        let index = self.servers.len();
        self.servers.push(server);
        if has_data {
            step(&format!("starting {name} as replica"));
            let followed = match self.start_server(index, Some(upstream)).await {
                Ok(()) => self.wait_streaming(&name, FOLLOW_LIMIT).await?,
                Err(failure) => {
                    tracing::warn!(node = name, "{failure}");
                    false
                }
            };
            if followed {
                return Ok(());
            }
            self.servers[index].stop(&self.installation, &self.launcher).await;
            step(&format!("{name} cannot follow: its data are made again"));
        } else {
            step(&format!("making {name} with pg_basebackup"));
        }
        let (data, slot) = (self.servers[index].data.clone(), self.servers[index].slot());
        // What an agent has left beside the data goes with them.
        let dir = self.state.node_dir(&name);
        postgres::remove_dir(&dir)?;
        own_directory(&dir, self.launcher.account.as_ref(), 0o750)?;
        // A relay has no data to copy: they come from the primary, and only the WAL after them from the relay.
        let kept = self.relay.is_none();
        postgres::basebackup(&self.installation, &self.launcher, &data, primary, &slot, kept).await?;
        self.start_server(index, Some(upstream)).await?;
        if self.wait_streaming(&name, REBUILT_LIMIT).await? {
            return Ok(());
        }
        let log = self.launcher.logs.join(format!("{name}.log"));
        Err(Failure::runtime(format!("{name} does not stream; the end of {}:", log.display()))
            .advise(super::children::tail(&log, 12)))
    }

    /// Starts a server and saves its port.
    async fn start_server(&mut self, index: usize, follow: Option<u16>) -> Result<(), Failure> {
        let server = &mut self.servers[index];
        server.start(&self.installation, &self.launcher, &self.state.sockets, follow).await?;
        if let Some(node) = self.state.nodes.iter_mut().find(|node| node.name == server.name) {
            node.port = server.port;
        }
        self.directory.save_state(&self.state)
    }

    /// Makes the primary keep WAL for these slots, and for no other one of kingpost.
    async fn set_slots(&self, slots: &[String]) -> Result<(), Failure> {
        self.drop_slots(slots).await?;
        for slot in slots {
            self.set_up_slots(&format!(
                "SELECT pg_create_physical_replication_slot('{slot}', true) \
                 WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{slot}')"
            ))
            .await?;
        }
        Ok(())
    }

    /// Drops the primary's inactive slots of kingpost except these.
    async fn drop_slots(&self, but: &[String]) -> Result<(), Failure> {
        let list = but.iter().map(|slot| format!("'{slot}'")).collect::<Vec<_>>().join(", ");
        self.set_up_slots(&format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
             WHERE starts_with(slot_name, 'kingpost_') AND NOT active AND slot_name <> ALL (ARRAY[{list}]::text[])"
        ))
        .await
    }

    async fn set_up_slots(&self, statement: &str) -> Result<(), Failure> {
        let done = postgres::query(self.servers[0].port, statement).await;
        done.map(drop).map_err(|error| Failure::runtime(format!("cannot set up replication slots: {error}")))
    }

    /// Returns true once a replica streams from the relay or the primary; false if the limit passes or the replica ends. A signal is an error.
    async fn wait_streaming(&mut self, name: &str, limit: Duration) -> Result<bool, Failure> {
        let port = self.servers[0].port;
        let question =
            format!("SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}' AND state = 'streaming'");
        let started = Instant::now();
        loop {
            let streams = match &self.relay {
                Some(relay) => relay.feeds(name),
                None => postgres::query(port, &question).await.is_ok_and(|rows| !rows.is_empty()),
            };
            if streams {
                return Ok(true);
            }
            let down = self.servers.iter_mut().any(|server| server.name == name && server.is_down());
            if down || started.elapsed() > limit {
                return Ok(false);
            }
            tokio::select! {
                () = tokio::time::sleep(PACE) => {}
                failure = self.launcher.stop.failure() => return Err(failure),
            }
        }
    }

    /// Stops the replicas, then the primaries, so that the replicas have all WAL.
    pub(super) async fn stop(&mut self) {
        let (primaries, replicas): (Vec<_>, Vec<_>) = std::mem::take(&mut self.servers)
            .into_iter()
            .partition(|server| !server.data.join("standby.signal").exists());
        for mut server in replicas.into_iter().chain(primaries) {
            server.stop(&self.installation, &self.launcher).await;
        }
        // Last: a primary that is stopped waits until the relay has all of its WAL.
        if let Some(relay) = self.relay.take() {
            relay.stop().await;
        }
    }

    /// Removes half-made nodes.
    pub(super) fn discard(&self) {
        if let Err(failure) = postgres::remove_dir(&self.nodes_dir()) {
            tracing::warn!("{failure}");
        }
    }

    /// Returns the configuration of each node's agent, made from that of the cluster.
    pub(super) fn agents(&self, config: &Config) -> Vec<Config> {
        let of = |server: &Server| {
            let mut config = config.clone();
            config.node = NodeAgentConfig {
                name: server.name.clone(),
                address: server.address(),
                directory: self.state.node_dir(&server.name),
                listen_addresses: "127.0.0.1".into(),
                socket_directory: self.state.sockets.display().to_string(),
                pg_bin: Some(self.installation.bin.clone()),
                // Servers are stopped in the order of the cluster, after their agents.
                server: Attachment::Detached,
                // The loss of the only relay would stop the primary.
                lease: Duration::ZERO,
                ..config.node
            };
            config
        };
        self.servers.iter().map(of).collect()
    }

    /// Names and ports of the servers, the primary first.
    pub(super) fn ports(&self) -> Vec<(String, u16)> {
        self.servers.iter().map(|server| (server.name.clone(), server.port)).collect()
    }
}

/// Returns the directory for data: the cluster's directory, or a shared place if the servers' user cannot enter it (such as root's home).
fn data_root(directory: &Directory, account: Option<&Account>) -> Result<PathBuf, Failure> {
    let Some(account) = account else { return Ok(directory.path.clone()) };
    let own = fs::metadata(&directory.path).map_err(|error| Failure::path("look at", &directory.path, &error))?;
    if own.uid() == 0 {
        // Other users may pass through the directory, not list it.
        let mode = own.permissions().mode() | 0o111;
        fs::set_permissions(&directory.path, fs::Permissions::from_mode(mode))
            .map_err(|error| Failure::path("open to the servers' user", &directory.path, &error))?;
    }
    if account.can_enter(&directory.path) {
        return Ok(directory.path.clone());
    }
    let data = Path::new(SHARED_DATA).join(tag(&directory.path));
    fs::create_dir_all(&data).map_err(|error| Failure::path("create", &data, &error))?;
    for path in [Path::new(SHARED_DATA), data.as_path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .map_err(|error| Failure::path("open to the servers' user", path, &error))?;
    }
    Ok(data)
}

/// Makes a short name of a path by its FNV-1a hash.
fn tag(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

/// Makes a directory for sockets, with a path that is short enough.
fn socket_directory(data: &Path, account: Option<&Account>) -> Result<PathBuf, Failure> {
    let near = data.join("sockets");
    let longest = near.join(".s.PGSQL.65535");
    if longest.as_os_str().len() <= SOCKET_PATH_LIMIT {
        own_directory(&near, account, 0o755)?;
        return Ok(near);
    }
    // Anybody may have created a directory in /tmp first: only one that the servers' user owns is used.
    let far = PathBuf::from(format!("/tmp/kingpost-{}", tag(data)));
    if !far.exists() {
        own_directory(&far, account, 0o755)?;
    }
    let metadata = fs::symlink_metadata(&far).map_err(|error| Failure::path("look at", &far, &error))?;
    let owner = account.map_or_else(|| rustix::process::geteuid().as_raw(), |account| account.uid);
    if metadata.is_dir() && metadata.uid() == owner {
        return Ok(far);
    }
    Err(Failure::environment(format!("{} is not a directory of the servers' user", far.display()))
        .advise("remove it, or use a --dir with a shorter path"))
}

/// Makes a directory that belongs to the account.
pub(super) fn own_directory(path: &Path, account: Option<&Account>, mode: u32) -> Result<(), Failure> {
    let make = || -> std::io::Result<()> {
        fs::create_dir_all(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        match account {
            Some(account) => std::os::unix::fs::chown(path, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        }
    };
    make().map_err(|error| Failure::path("prepare", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_differ() {
        assert_eq!(tag(Path::new("/a/b")), tag(Path::new("/a/b")));
        assert_ne!(tag(Path::new("/a/b")), tag(Path::new("/a/c")));
    }
}
