//! `kingpost failover` and `switchover` against a [`Cluster`].

use std::path::PathBuf;
use std::process::{Command, Stdio};

use toml::{Table, Value};

use crate::cluster::Cluster;
use crate::kingpost::{Kingpost, kingpost_bin, set};
use crate::process::{Process, RunAs, command};
use crate::relay::Relay;
use crate::run::unique;

/// A configuration as an operator would use it.
#[derive(Debug, Clone)]
pub struct Failover {
    path: PathBuf,
    config: Table,
}

/// A finished command.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output and standard error together.
    pub text: String,
}

impl Failover {
    /// Makes a configuration with the cluster's nodes and these relays, and a limit of ten seconds for a step.
    pub fn of(cluster: &Cluster, relays: &[&Relay]) -> Failover {
        let mut config = Table::new();
        let part = |name: &str, port: u16| {
            let mut table = Table::new();
            table.insert("name".into(), name.into());
            table.insert("address".into(), format!("127.0.0.1:{port}").into());
            Value::Table(table)
        };
        let nodes: Vec<Value> = cluster.nodes().iter().map(|node| part(node.name(), node.port())).collect();
        let relays: Vec<Value> = relays.iter().map(|relay| part(relay.name(), relay.port())).collect();
        set(&mut config, "cluster.nodes", nodes.into());
        set(&mut config, "cluster.user", "postgres".into());
        set(&mut config, "proxy.auth", "trust".into());
        set(&mut config, "failover.step_timeout", "10s".into());
        if !relays.is_empty() {
            set(&mut config, "failover.relays", relays.into());
        }
        Failover { path: cluster.dir().join(format!("failover-{}.toml", unique())), config }
    }

    /// Sets `section.key`.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Failover {
        set(&mut self.config, path, value.into());
        self
    }

    /// Sets a key of `[[cluster.nodes]]` for the node of this name.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn tag(mut self, node: &str, key: &str, value: impl Into<Value>) -> Failover {
        let nodes = self.config.get_mut("cluster").and_then(|cluster| cluster.get_mut("nodes"));
        let mut nodes = nodes.and_then(Value::as_array_mut).expect("nodes").iter_mut().filter_map(Value::as_table_mut);
        let found = nodes.find(|found| found.get("name").and_then(Value::as_str) == Some(node)).expect("that node");
        found.insert(key.into(), value.into());
        self
    }

    /// Adds a proxy to pause and resume.
    #[must_use]
    pub fn proxy(self, proxy: &Kingpost) -> Failover {
        let mut table = Table::new();
        table.insert("name".into(), "proxy".into());
        table.insert("address".into(), format!("127.0.0.1:{}", proxy.port()).into());
        self.set("failover.proxies", vec![Value::Table(table)])
    }

    /// Stops the server named in `$KINGPOST_NODE` as an operator on its machine would.
    #[must_use]
    pub fn stopping(self, cluster: &Cluster) -> Failover {
        let script = format!(
            "cd {}/\"$KINGPOST_NODE\" && pid=$(head -1 postmaster.pid) && kill -INT \"$pid\" && \
             while kill -0 \"$pid\" 2>/dev/null && [ -e postmaster.pid ]; do sleep 0.05; done",
            cluster.dir().display()
        );
        self.set("failover.stop", vec!["/bin/sh".to_owned(), "-c".into(), script])
    }

    /// Copies the configuration to a file of its own, for two runs at once.
    #[must_use]
    pub fn copy(self, cluster: &Cluster) -> Failover {
        Failover { path: cluster.dir().join(format!("failover-{}.toml", unique())), ..self }
    }

    /// Writes the configuration; returns its file.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self) -> PathBuf {
        std::fs::write(&self.path, toml::to_string(&self.config).expect("a configuration")).expect("write it");
        self.path.clone()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.write();
        let mut kingpost = command(&kingpost_bin(), RunAs::Tests, "KILL");
        kingpost.args(arguments).arg("--config").arg(&self.path);
        kingpost
    }

    /// Runs `kingpost …` with this configuration to its end, without blocking.
    ///
    /// # Panics
    /// When it cannot be started.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("a thread");
        let output = output.expect("run kingpost");
        let text = [output.stdout, output.stderr].concat();
        Ran { code: output.status.code(), text: String::from_utf8_lossy(&text).into_owned() }
    }

    /// Runs a command as [`Failover::run`] does; it must succeed. Returns its output.
    ///
    /// # Panics
    /// When it fails.
    pub async fn succeed(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments).await;
        assert_eq!(ran.code, Some(0), "kingpost {}:\n{}", arguments.join(" "), ran.text);
        ran.text
    }

    /// Runs a command as [`Failover::run`] does; it must fail. Returns its output.
    ///
    /// # Panics
    /// When it succeeds.
    pub async fn fail(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments).await;
        assert_ne!(ran.code, Some(0), "kingpost {}:\n{}", arguments.join(" "), ran.text);
        ran.text
    }

    /// Starts a command, with its output in a file beside its configuration. It is killed on drop.
    pub fn start(&self, arguments: &[&str]) -> (Process, PathBuf) {
        let log = self.path.with_file_name(format!("failover-{}.log", unique()));
        (Process::start("failover", self.command(arguments), &log), log)
    }
}
