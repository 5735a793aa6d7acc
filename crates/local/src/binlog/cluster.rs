//! The servers of MariaDB or MySQL of one directory and the relay between them: creating them, starting and stopping them in order.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::relay::config::{RelayConfig, UpstreamConfig, UserConfig};
use ::relay::{BinlogRelay, last_source};

use super::super::children::{self, Account, Launcher};
use super::super::cluster::own_directory;
use super::super::dir::{Directory, Engine, State};
use super::super::stop::Stop;
use super::family::Family;
use super::look::observe;
use super::server::{Part, Programs, Server, USER, stop_data};
use process::Failure;

/// `server_id` of the relay; those of the servers count from 1.
const RELAY_ID: u32 = 1_000_000;
/// Longest time until the relay receives, and until a replica with existing data replicates.
const LIMIT: Duration = Duration::from_secs(30);
/// Longest time until a new replica replicates.
const NEW_LIMIT: Duration = Duration::from_secs(120);
/// Interval between two checks of relay and replica.
const PACE: Duration = Duration::from_millis(100);

/// The servers of one directory, and their relay.
pub(super) struct Cluster {
    pub(super) family: &'static Family,
    directory: Directory,
    state: State,
    programs: Programs,
    launcher: Launcher,
    pub(super) secret: String,
    /// The servers that were started: the primary first, then the replicas.
    pub(super) servers: Vec<Server>,
    pub(super) relay: Option<(Arc<BinlogRelay>, SocketAddr)>,
    pub(super) names: Names,
}

/// Names of the servers, by `server_id`.
pub(super) type Names = Arc<Mutex<HashMap<u32, String>>>;

/// Locks a mutex, also a poisoned one: its values are always replaced as a whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Finds programs, account and earlier data. Starts nothing.
    ///
    /// # Errors
    /// No usable server programs, no account for them, or a directory that cannot be used.
    pub(super) fn prepare(
        directory: &Directory,
        engine: Engine,
        bin: Option<&Path>,
        stop: Stop,
    ) -> Result<Cluster, Failure> {
        let previous = directory.state()?;
        let family = Family::of(engine);
        let known = previous.as_ref().map(|state| state.bin.as_path()).filter(|bin| !bin.as_os_str().is_empty());
        let programs = Programs::find(family, bin.or(known))?;
        let account = Account::choose(&directory.path, engine.account())?;
        let what = (engine, programs.version, bin.or(known).map(PathBuf::from).unwrap_or_default());
        let state = State::taken_up(directory, previous.as_ref(), account.as_ref(), what)?;
        let launcher = Launcher { account, logs: directory.logs(), cwd: state.data.clone(), stop };
        let secret = directory.password(engine)?;
        let names = state.nodes.iter().map(|node| (node.server_id, node.name.clone())).collect();
        Ok(Cluster {
            family,
            directory: directory.clone(),
            state,
            programs,
            launcher,
            secret,
            servers: Vec::new(),
            relay: None,
            names: Arc::new(Mutex::new(names)),
        })
    }

    /// The version; 1011 for 10.11, 804 for 8.4.
    pub(super) fn version(&self) -> u32 {
        self.programs.version
    }

    pub(super) fn account(&self) -> Option<&str> {
        self.launcher.account.as_ref().map(|account| account.name.as_str())
    }

    /// Returns the directory of the data.
    pub(super) fn data(&self) -> &std::path::Path {
        &self.state.data
    }

    /// Stops servers that an earlier `up` left behind and returns their names.
    pub(super) async fn stop_leftovers(&self) -> Vec<String> {
        let mut stopped = Vec::new();
        for (name, data) in children::left_behind(&self.state.data.join("nodes")) {
            stop_data(&data, None).await;
            stopped.push(name);
        }
        stopped
    }

    /// Starts the primary, the relay and `replicas` replicas, making missing ones. Calls `step` with each step.
    ///
    /// # Errors
    /// A server or the relay cannot be made or started. Started servers are in `servers`, to be stopped.
    pub(super) async fn start(&mut self, replicas: Option<u16>, step: &dyn Fn(&str)) -> Result<(), Failure> {
        let nodes = self.state.data.join("nodes");
        let fresh = !self.state.complete;
        if fresh {
            super::super::postgres::remove_dir(&nodes)?;
            super::super::postgres::remove_dir(&self.directory.relay())?;
        }
        own_directory(&nodes, self.launcher.account.as_ref(), 0o700)?;
        let wanted = self.state.add_nodes(replicas);
        self.directory.save_state(&self.state)?;
        let mut all = Vec::new();
        for node in &self.state.nodes {
            let data = self.state.node_data(&node.name);
            all.push(Server::new(self.family, &node.name, node.server_id, data, node.port, &self.launcher.logs));
        }
        // The server that the relay followed last took the writes, and has every acknowledged transaction.
        let source = last_source(&self.directory.relay());
        let leads = all.iter().position(|server| Some(server.id) == source).unwrap_or(0);
        let primary = all.remove(leads);
        if !fresh && !primary.has_data() {
            let what =
                format!("{}, whose binary log the relay has, has no data in {}", primary.name, primary.data.display());
            return Err(Failure::environment(what).advise("start again in another directory with --dir"));
        }
        self.servers.push(primary);
        if fresh {
            step(&format!("making node1 with {}", self.programs.maker()));
            self.make(0).await?;
        }
        step(&format!("starting {} as primary", self.servers[0].name));
        self.start_server(0, Part::Primary).await?;
        step("starting the relay between it and the replicas");
        self.start_relay().await?;
        for server in all.into_iter().take(wanted.saturating_sub(1)) {
            self.start_replica(server, step).await?;
        }
        self.state.complete = true;
        self.directory.save_state(&self.state)
    }

    /// Starts a server and saves its port.
    async fn start_server(&mut self, index: usize, part: Part) -> Result<(), Failure> {
        let server = &mut self.servers[index];
        server.start(&self.programs, &self.launcher, &self.state.sockets, part, &self.secret).await?;
        if let Some(node) = self.state.nodes.iter_mut().find(|node| node.name == server.name) {
            node.port = server.port;
        }
        self.directory.save_state(&self.state)
    }

    async fn start_relay(&mut self) -> Result<(), Failure> {
        let config = RelayConfig {
            engine: self.family.relay,
            server_id: RELAY_ID,
            listen: vec!["127.0.0.1:0".into()],
            dir: self.directory.relay(),
            // A new replica gets the whole log, as far as there is room for it.
            keep_bytes: 4 << 30,
            max_bytes: 8 << 30,
            upstream: UpstreamConfig {
                address: self.servers[0].address(),
                user: USER.into(),
                password: Some(self.secret.clone()),
                ..UpstreamConfig::default()
            },
            users: vec![UserConfig {
                name: USER.into(),
                password: Some(self.secret.clone()),
                password_file: None,
                verifier: None,
                operator: true,
            }],
            ..RelayConfig::default()
        };
        let dir = self.directory.relay();
        fs::create_dir_all(&dir).map_err(|error| Failure::path("create", &dir, &error))?;
        let relay = BinlogRelay::start(&config, &tokio::runtime::Handle::current())
            .map_err(|error| daemon::relay_failure(&error))?;
        let address = *relay.addresses().first().ok_or_else(|| Failure::runtime("the relay does not listen"))?;
        let relay = Arc::new(relay);
        self.relay = Some((Arc::clone(&relay), address));
        let started = Instant::now();
        loop {
            let status = relay.status();
            if status.upstream_state == "streaming" && status.concerns.is_empty() && status.epoch > 0 {
                return Ok(());
            }
            if started.elapsed() > LIMIT {
                let why = status.concerns.first().unwrap_or(&status.upstream_state);
                return Err(Failure::runtime(format!("the relay does not receive from {}: {why}", status.upstream)));
            }
            tokio::select! {
                () = tokio::time::sleep(PACE) => {}
                failure = self.launcher.stop.failure() => return Err(failure),
            }
        }
    }

    /// Starts a replica with its existing data, or with empty data, which it fills from the relay.
    async fn start_replica(&mut self, server: Server, step: &dyn Fn(&str)) -> Result<(), Failure> {
        let (name, index, has_data) = (server.name.clone(), self.servers.len(), server.has_data());
        self.servers.push(server);
        if has_data {
            step(&format!("starting {name} as replica"));
            match self.follow_relay(index, LIMIT).await {
                Ok(()) => return Ok(()),
                Err(failure) => tracing::warn!(node = name, "{failure}"),
            }
            self.servers[index].stop().await;
            step(&format!("{name} cannot follow: its data are made again"));
        } else {
            step(&format!("making {name}: it gets everything from the relay"));
        }
        self.make(index).await?;
        self.follow_relay(index, NEW_LIMIT).await
    }

    /// Makes a server's data anew, with a `server_id` that this cluster never used: a replica skips events with its own `server_id`, and so would
    /// never get its own writes of an earlier life.
    async fn make(&mut self, index: usize) -> Result<(), Failure> {
        let id = self.state.nodes.iter().map(|node| node.server_id).max().unwrap_or(0) + 1;
        let server = &mut self.servers[index];
        server.id = id;
        if let Some(node) = self.state.nodes.iter_mut().find(|node| node.name == server.name) {
            node.server_id = id;
        }
        lock(&self.names).insert(id, server.name.clone());
        self.directory.save_state(&self.state)?;
        self.servers[index].make(&self.programs, &self.launcher).await
    }

    /// Starts a server as a replica of the relay and waits until it has everything that the relay has at the start. A signal ends the wait.
    async fn follow_relay(&mut self, index: usize, limit: Duration) -> Result<(), Failure> {
        self.start_server(index, Part::Replica).await?;
        let Some((relay, address)) = &self.relay else { return Err(Failure::runtime("there is no relay")) };
        let server = &self.servers[index];
        let failed =
            |why: String| Failure::runtime(format!("{} does not replicate from the relay: {why}", server.name));
        server.follow(address.port(), &self.secret).await.map_err(failed)?;
        let wanted = relay.status().gtids;
        let started = Instant::now();
        let only = [(server.name.clone(), server.port)];
        loop {
            let status = observe(self.family, &only, None, &self.secret).await.pop();
            let has = status.as_ref().and_then(|status| status.gtid.as_deref());
            if status.as_ref().is_some_and(|status| status.streaming == Some(true))
                && self.family.covers(has.unwrap_or_default(), &wanted)
            {
                return Ok(());
            }
            if let Some(error) = status.and_then(|status| status.error)
                && error.contains("1236")
            {
                // The relay cannot feed the server: a final answer.
                return Err(failed(error));
            }
            if started.elapsed() > limit {
                return Err(failed(format!(
                    "it has {} and not {wanted}",
                    has_text(self.family, &only, &self.secret).await
                )));
            }
            tokio::select! {
                () = tokio::time::sleep(PACE) => {}
                failure = self.launcher.stop.failure() => return Err(failure),
            }
        }
    }

    /// Makes a former primary a replica of the relay, with its data made again.
    ///
    /// # Errors
    /// The replica cannot be made, or does not replicate.
    pub(super) async fn rejoin(&mut self, name: &str, step: &dyn Fn(&str)) -> Result<(), Failure> {
        let Some(index) = self.servers.iter().position(|server| server.name == name) else {
            return Err(Failure::runtime(format!("{name} is no node of this cluster")));
        };
        let mut server = self.servers.remove(index);
        server.stop().await;
        super::super::postgres::remove_dir(&server.data)?;
        self.start_replica(server, step).await
    }

    /// Names and ports of the servers, the primary first.
    pub(super) fn ports(&self) -> Vec<(String, u16)> {
        self.servers.iter().map(|server| (server.name.clone(), server.port)).collect()
    }

    /// Stops the replicas, then the primary, then the relay. Removes half-made nodes if not all nodes were made.
    pub(super) async fn stop(&mut self) {
        let source = self.relay.as_ref().map(|(relay, _)| relay.status().source);
        let (sources, replicas): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.servers).into_iter().partition(|server| Some(server.id) == source);
        for mut server in replicas.into_iter().chain(sources) {
            server.stop().await;
        }
        if let Some((relay, _)) = self.relay.take()
            && let Err(error) = tokio::task::spawn_blocking(move || relay.shutdown()).await
        {
            tracing::error!(%error, "stopping the relay failed");
        }
        if !self.state.complete
            && let Err(failure) = super::super::postgres::remove_dir(&self.state.data.join("nodes"))
        {
            tracing::warn!("{failure}");
        }
    }
}

async fn has_text(family: &Family, server: &[(String, u16)], secret: &str) -> String {
    let status = observe(family, server, None, secret).await.pop();
    status.and_then(|status| status.gtid.or(status.error)).unwrap_or_default()
}
