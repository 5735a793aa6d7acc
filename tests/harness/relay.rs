//! The relay between servers: the real binary, with a directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

use crate::cluster::Cluster;
use crate::endpoint::Endpoint;
use crate::kingpost::{kingpost_bin, set};
use crate::metrics::Metrics;
use crate::port::Port;
use crate::process::{Process, RunAs, command, server_user};
use crate::run::{Files, new_dir, unique};
use crate::template::run;
use crate::wait::{SOON, wait_until};

/// A relay that follows a server or another relay, stopped on drop.
#[derive(Debug)]
pub struct Relay {
    name: String,
    dir: PathBuf,
    logs: PathBuf,
    port: Port,
    metrics_port: Port,
    config_path: PathBuf,
    config: Table,
    environment: Vec<(String, String)>,
    is_new: bool,
    process: Option<Process>,
    _files: Files,
}

impl Relay {
    /// Makes a relay that follows any server on `upstream`, without starting it. Trust, and reports once a second.
    ///
    /// # Panics
    /// When its directory cannot be made.
    pub fn of(cluster: &Cluster, upstream: u16) -> Relay {
        let name = format!("relay{}", unique());
        let parent = new_dir(&name);
        // The relay runs as the servers' user, so that their restore_command can read its files.
        if let Some(user) = server_user() {
            run(Command::new("chown").arg(user).arg(&parent));
        }
        let dir = parent.join("wal");
        let (port, metrics_port) = (Port::reserve(), Port::reserve());
        let mut config = Table::new();
        for (path, value) in [
            ("relay.listen", Value::from(vec![format!("127.0.0.1:{}", port.number())])),
            ("relay.dir", dir.display().to_string().into()),
            ("relay.auth", "trust".into()),
            ("relay.downstream_timeout", "10s".into()),
            ("relay.upstream.address", format!("127.0.0.1:{upstream}").into()),
            ("relay.upstream.application_name", name.clone().into()),
            ("relay.upstream.slot", name.clone().into()),
            ("relay.upstream.status_interval", "1s".into()),
            ("relay.upstream.timeout", "10s".into()),
            ("metrics.listen", format!("127.0.0.1:{}", metrics_port.number()).into()),
        ] {
            set(&mut config, path, value);
        }
        let config_path = cluster.dir().join(format!("{name}.toml"));
        let logs = cluster.dir().to_owned();
        let environment = Vec::new();
        Relay {
            name,
            dir,
            logs,
            port,
            metrics_port,
            config_path,
            config,
            environment,
            is_new: false,
            process: None,
            _files: Files(parent),
        }
    }

    /// Makes a relay that follows the cluster's current primary, and reaches node `index` at `addresses[index]` on 127.0.0.1.
    ///
    /// # Panics
    /// When its directory cannot be made.
    pub fn watching(cluster: &Cluster, addresses: &[u16]) -> Relay {
        let mut relay = Relay::of(cluster, 0);
        set(&mut relay.config, "relay.upstream.address", "".into());
        let nodes = cluster.nodes().iter().zip(addresses);
        let node = |(node, port): (&crate::Node, &u16)| {
            let mut table = Table::new();
            table.insert("name".into(), node.name().into());
            table.insert("address".into(), format!("127.0.0.1:{port}").into());
            Value::Table(table)
        };
        set(&mut relay.config, "cluster.nodes", nodes.map(node).collect::<Vec<_>>().into());
        for (path, value) in
            [("cluster.user", "postgres"), ("cluster.probe_interval", "100ms"), ("cluster.probe_timeout", "1s")]
        {
            set(&mut relay.config, path, value.into());
        }
        relay
    }

    /// Sets `section.key`; takes effect at the next start or [`Relay::reload`].
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Relay {
        set(&mut self.config, path, value.into());
        self
    }

    /// Adds to the environment of the process; takes effect at the next start.
    #[must_use]
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Relay {
        self.environment.extend(variables);
        self
    }

    /// Lists these relays in its configuration, to be asked; takes effect at the next start.
    pub fn knows(&mut self, others: &[(&str, u16)]) {
        let relays = others.iter().map(|(name, port)| {
            let mut table = Table::new();
            table.insert("name".into(), (*name).into());
            table.insert("address".into(), format!("127.0.0.1:{port}").into());
            table.insert("user".into(), "postgres".into());
            Value::Table(table)
        });
        set(&mut self.config, "cluster.relays", relays.collect::<Vec<_>>().into());
    }

    /// Starts it with `--new` from now on, or no longer.
    pub fn is_new(&mut self, is_new: bool) {
        self.is_new = is_new;
    }

    /// Removes its directory.
    ///
    /// # Panics
    /// When it runs, or the directory cannot be removed.
    pub fn lose_directory(&mut self) {
        assert!(self.process.as_ref().is_none_or(|process| process.exit_status().is_some()), "it runs");
        std::fs::remove_dir_all(&self.dir).expect("remove the relay's directory");
    }

    /// Returns the name, as in `synchronous_standby_names`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory of its log.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the port for downstreams, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the endpoint for downstreams.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(self.port(), &self.logs)
    }

    /// Returns the process.
    ///
    /// # Panics
    /// When it is not started.
    pub fn process(&self) -> &Process {
        self.process.as_ref().expect("the relay is started")
    }

    /// Returns its log output so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.config_path.with_extension("log")).unwrap_or_default()).into_owned()
    }

    /// Starts the binary without waiting.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn launch(&mut self) {
        self.write_config();
        let mut relay = command(&kingpost_bin(), RunAs::Server, "KILL");
        relay.args(["relay", "--config"]).arg(&self.config_path);
        relay.args(self.is_new.then_some("--new"));
        relay.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let log = self.config_path.with_extension("log");
        self.process = Some(Process::start(&self.name, relay, &log));
    }

    /// Starts it (again, on the same port) and waits until it receives.
    ///
    /// # Panics
    /// When it ends, or does not receive in time.
    pub async fn start(&mut self) {
        self.launch();
        self.wait_receiving().await;
    }

    /// Waits until it receives from its upstream.
    ///
    /// # Panics
    /// When it ends, or does not receive in time.
    pub async fn wait_receiving(&self) {
        wait_until(&format!("{} to receive", self.name), SOON, &self.logs, async || {
            let ended = self.process().exit_status();
            assert!(ended.is_none(), "the relay ended with {ended:?}:\n{}", self.log());
            self.http("/readyz").await.filter(|(status, _)| *status == 200)
        })
        .await;
    }

    /// Kills it.
    ///
    /// # Panics
    /// When it is not started.
    pub async fn kill9(&self) {
        self.process().signal(libc::SIGKILL);
        self.process().wait_exit(SOON).await;
    }

    /// Stops it as an operator does.
    ///
    /// # Panics
    /// When it is not started, or does not end well.
    pub async fn stop(&self) {
        self.process().signal(libc::SIGTERM);
        let status = self.process().wait_exit(SOON).await;
        assert!(status.success(), "the relay ended with {status}:\n{}", self.log());
    }

    /// Changes `section.key` and sends SIGHUP. The change takes effect some time after.
    pub fn reload(&mut self, path: &str, value: impl Into<Value>) {
        set(&mut self.config, path, value.into());
        self.write_config();
        self.process().signal(libc::SIGHUP);
    }

    /// Returns status and body of a GET on the metrics address; None if it does not answer.
    pub async fn http(&self, path: &str) -> Option<(u16, String)> {
        crate::metrics::get(self.metrics_port.number(), path).await
    }

    /// Returns the current metrics.
    ///
    /// # Panics
    /// When they cannot be had, or are not valid.
    pub async fn metrics(&self) -> Metrics {
        Metrics::now(self.metrics_port.number()).await
    }

    /// Returns one of the log's positions: `written`, `flushed`, `acknowledged`, `oldest`.
    pub async fn position(&self, which: &str) -> u64 {
        self.metrics().await.sum("kingpost_relay_position_bytes", &[("position", which)]) as u64
    }

    fn write_config(&self) {
        let text = toml::to_string(&self.config).expect("a configuration");
        std::fs::write(&self.config_path, text).expect("write the relay's configuration");
    }
}
