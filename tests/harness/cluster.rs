//! A primary and its replicas.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::certs::Pair;
use crate::node::Node;
use crate::run::{Files, new_dir};
use crate::wait::{SOON, wait_until};

/// One primary, with replicas that stream from it; all stopped on drop.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    nodes: Vec<Node>,
    settings: Vec<(String, String)>,
    _files: Files,
}

/// Settings of a [`Cluster`].
#[derive(Debug, Default)]
pub struct ClusterBuilder {
    replicas: usize,
    settings: Vec<(String, String)>,
    durable: bool,
    hba: Option<String>,
}

impl ClusterBuilder {
    /// Sets the number of replicas; the default is none.
    #[must_use]
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Adds a setting of every node.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Replaces the harness's `pg_hba.conf` on every node: the harness and replication connect as `postgres` without TLS.
    #[must_use]
    pub fn hba(mut self, text: &str) -> Self {
        self.hba = Some(text.into());
        self
    }

    /// Makes every node offer TLS with this certificate.
    #[must_use]
    pub fn tls(self, pair: &Pair) -> Self {
        let path = |path: &Path| path.to_str().expect("a path of UTF-8").to_owned();
        self.setting("ssl", "on").setting("ssl_cert_file", &path(&pair.cert)).setting("ssl_key_file", &path(&pair.key))
    }

    /// Makes every node log each statement before it runs; see [`Node::saw`].
    #[must_use]
    pub fn log_statements(self) -> Self {
        self.setting("log_statement", "all")
    }

    /// Makes commits reach the disk; only for tests that may lose the machine's memory, which a killed process does not.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Starts all nodes and waits until every replica streams from the primary.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn start(self) -> Cluster {
        let dir = new_dir("cluster");
        let mut settings = vec![("fsync".to_owned(), if self.durable { "on" } else { "off" }.to_owned())];
        settings.extend(self.settings);
        let names = (0..=self.replicas).map(|n| format!("n{n}"));
        let nodes: Vec<Node> = names.map(|name| Node::create(&name, &dir, &settings, self.hba.as_deref())).collect();
        for replica in &nodes[1..] {
            replica.set_follow(nodes[0].port());
        }
        for node in &nodes {
            node.launch();
        }
        for node in &nodes {
            node.wait_ready().await;
        }
        let cluster = Cluster { _files: Files(dir.clone()), dir, nodes, settings };
        cluster.wait_streaming(&cluster.nodes[0], self.replicas).await;
        cluster
    }
}

impl Cluster {
    /// Starts the description of a cluster.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Returns the directory of data and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes one more server, with data as old as this cluster's and not started, that will stream from `port`.
    pub fn standby(&self, name: &str, port: u16) -> Node {
        let standby = Node::create(name, &self.dir, &self.settings, None);
        standby.set_follow(port);
        standby
    }

    /// As [`Cluster::standby`], without an upstream, and with one more setting.
    pub fn copy(&self, name: &str, setting: (&str, &str)) -> Node {
        let mut settings = self.settings.clone();
        settings.push((setting.0.into(), setting.1.into()));
        Node::create(name, &self.dir, &settings, None)
    }

    /// Makes a server, not started, of a data directory that something else made, such as a restore.
    pub fn adopt(&self, name: &str, dir: &Path) -> Node {
        Node::adopt(name, dir, &self.dir)
    }

    /// Returns all nodes; the first was the primary at the start.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the node that was the primary at the start.
    pub fn primary(&self) -> &Node {
        &self.nodes[0]
    }

    /// Returns replica `n`, from 0, as numbered at the start.
    pub fn replica(&self, n: usize) -> &Node {
        &self.nodes[1 + n]
    }

    /// Returns the nodes that were replicas at the start.
    pub fn replicas(&self) -> &[Node] {
        &self.nodes[1..]
    }

    /// Waits until `count` replicas stream from `primary`.
    pub async fn wait_streaming(&self, primary: &Node, count: usize) {
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        primary.wait_value(sql, &count.to_string()).await;
    }

    /// Waits until every running replica has applied what the primary has written so far.
    pub async fn wait_caught_up(&self) {
        for replica in self.replicas().iter().filter(|node| node.is_running()) {
            replica.wait_caught_up(self.primary()).await;
        }
    }

    /// Counts the connections that pools hold on all running nodes.
    pub async fn pool_connections(&self) -> usize {
        let mut sum = 0;
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            sum += node.pool_connections().await;
        }
        sum
    }

    /// Waits for a condition, and shows this cluster's logs if it is not met.
    ///
    /// # Panics
    /// When it does not come within [`SOON`].
    pub async fn wait<T>(&self, what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
        self.wait_for(what, SOON, condition).await
    }

    /// Waits as [`Cluster::wait`] does, with another limit.
    ///
    /// # Panics
    /// When it does not come in time.
    pub async fn wait_for<T>(&self, what: &str, limit: Duration, condition: impl AsyncFnMut() -> Option<T>) -> T {
        wait_until(what, limit, &self.dir, condition).await
    }
}
