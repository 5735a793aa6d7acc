//! A cluster with relays, as an operator runs it, and clients with a checked history: the answer to each insert, and the rows in the end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kingpost_tests::{Cluster, Endpoint, Failover, Kingpost, Node, Relay, SOON, wait_until, within};
use tokio::sync::Mutex;
use tokio_postgres::Client;

/// A primary with standbys that stream from relays. Every server has the table `acked (n bigint)`, without a key, so that duplicates show.
pub(crate) struct Fleet {
    pub(crate) cluster: Cluster,
    pub(crate) relays: Vec<Relay>,
}

/// A description of a fleet.
pub(crate) struct FleetBuilder {
    replicas: usize,
    relays: usize,
    /// Number of relays that a commit waits for; 0 for none.
    acknowledgements: usize,
    /// True if the relays' configurations name the upstream; else they follow the current primary.
    named: bool,
    settings: Vec<(&'static str, &'static str)>,
    /// Silence of its upstream that a relay tolerates.
    patience: &'static str,
}

impl FleetBuilder {
    pub(crate) fn replicas(mut self, replicas: usize) -> FleetBuilder {
        self.replicas = replicas;
        self
    }

    pub(crate) fn relays(mut self, relays: usize) -> FleetBuilder {
        self.relays = relays;
        self
    }

    pub(crate) fn acknowledgements(mut self, acknowledgements: usize) -> FleetBuilder {
        self.acknowledgements = acknowledgements;
        self
    }

    pub(crate) fn named(mut self) -> FleetBuilder {
        self.named = true;
        self
    }

    /// Adds a setting of every server.
    pub(crate) fn setting(mut self, name: &'static str, value: &'static str) -> FleetBuilder {
        self.settings.push((name, value));
        self
    }

    pub(crate) fn patience(mut self, patience: &'static str) -> FleetBuilder {
        self.patience = patience;
        self
    }

    pub(crate) async fn start(self) -> Fleet {
        let mut builder = Cluster::builder().replicas(self.replicas);
        for (name, value) in &self.settings {
            builder = builder.setting(name, value);
        }
        let cluster = builder.start().await;
        let primary = cluster.primary();
        let ports: Vec<u16> = cluster.nodes().iter().map(Node::port).collect();
        let mut relays = Vec::new();
        for _ in 0..self.relays {
            let mut relay = match self.named {
                true => Relay::of(&cluster, primary.port()),
                false => Relay::watching(&cluster, &ports),
            };
            relay = relay.set("relay.upstream.timeout", self.patience);
            relay.start().await;
            relays.push(relay);
        }
        // Standbys are spread over the relays in turn.
        for (replica, relay) in cluster.replicas().iter().zip(relays.iter().cycle()) {
            replica.follow_port(relay.port());
        }
        if self.acknowledgements > 0 {
            let names: Vec<&str> = relays.iter().map(Relay::name).collect();
            let names = format!("ANY {} ({})", self.acknowledgements, names.join(", "));
            for node in cluster.nodes() {
                node.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await;
                node.execute("SELECT pg_reload_conf()").await;
            }
            let quorum = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'";
            primary.wait_value(quorum, &relays.len().to_string()).await;
        }
        primary.execute("CREATE TABLE acked (n bigint); GRANT ALL ON acked TO PUBLIC").await;
        for replica in cluster.replicas() {
            replica.wait_value("SELECT status FROM pg_stat_wal_receiver", "streaming").await;
            replica.wait_caught_up(primary).await;
        }
        Fleet { cluster, relays }
    }
}

impl Fleet {
    /// Starts the description of a primary, two standbys and one relay that follows the primary; commits wait for nobody.
    pub(crate) fn builder() -> FleetBuilder {
        FleetBuilder {
            replicas: 2,
            relays: 1,
            acknowledgements: 0,
            named: false,
            settings: Vec::new(),
            patience: "10s",
        }
    }

    pub(crate) fn failover(&self) -> Failover {
        Failover::of(&self.cluster, &self.relays.iter().collect::<Vec<_>>())
    }

    /// Starts a proxy that probes its servers at the default interval.
    pub(crate) async fn proxy(&self) -> Kingpost {
        let builder =
            Kingpost::of(&self.cluster).set("cluster.probe_interval", "1s").set("cluster.probe_timeout", "2s");
        builder.start().await
    }
}

/// Behaviour of a client of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each insert is a transaction of its own.
    Autocommit,
    /// As drivers do for a session that writes: READ WRITE was set once.
    ReadWrite,
    /// Sets READ WRITE, waits for no standby, and reconnects at once to the same address after any error.
    Stubborn,
}

impl Kind {
    fn begins_with(self) -> &'static str {
        match self {
            Kind::Autocommit => "SELECT 1",
            Kind::ReadWrite => "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
            Kind::Stubborn => "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE; SET synchronous_commit = off",
        }
    }
}

/// Clients that insert numbers, each number once.
pub(crate) struct History {
    /// Directory of the logs shown at a failure.
    logs: PathBuf,
    next: Arc<AtomicU64>,
    acked: Arc<Mutex<BTreeSet<i64>>>,
    errors: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl History {
    pub(crate) fn new(logs: &Path) -> History {
        let (next, acked, errors, stop) = Default::default();
        History { logs: logs.into(), next, acked, errors, stop, tasks: Vec::new() }
    }

    /// Adds clients that connect to `endpoint`.
    pub(crate) async fn add(&mut self, endpoint: &Endpoint, kind: Kind, count: usize) {
        for _ in 0..count {
            let mut client = Some(open(endpoint, kind).await.expect("a first connection"));
            let endpoint = endpoint.clone();
            let (acked, errors) = (self.acked.clone(), self.errors.clone());
            let (stop, next) = (self.stop.clone(), self.next.clone());
            self.tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let Some(connected) = &client else {
                        client = open(&endpoint, kind).await;
                        if client.is_none() {
                            // A server that refuses is tried again soon, but not in a busy loop.
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        continue;
                    };
                    let n = next.fetch_add(1, Ordering::Relaxed) as i64;
                    match connected.batch_execute(&format!("INSERT INTO acked VALUES ({n})")).await {
                        Ok(()) => drop(acked.lock().await.insert(n)),
                        Err(_) if kind == Kind::Stubborn => client = None,
                        Err(error) => {
                            errors.lock().await.push(format!("{kind:?}: {error:?}"));
                            if connected.is_closed() {
                                client = None;
                            }
                        }
                    }
                }
            }));
        }
    }

    /// Waits until this many more inserts were acknowledged.
    pub(crate) async fn more(&self, count: usize) {
        let target = self.acked.lock().await.len() + count;
        let reached = async || (self.acked.lock().await.len() >= target).then_some(());
        wait_until("more acknowledged commits", SOON, &self.logs, reached).await;
    }

    /// Ends the clients. Checks that all acknowledged rows are there, as `client` sees them, and none twice. Returns the errors of all clients but
    /// the stubborn ones.
    pub(crate) async fn check(self, client: &Client) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            within("a client of the history to end", SOON, &self.logs, task).await.unwrap();
        }
        let rows = client.query("SELECT n FROM acked", &[]).await.unwrap();
        let held: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let set: BTreeSet<i64> = held.iter().copied().collect();
        assert_eq!(set.len(), held.len(), "something is there twice");
        let acked = self.acked.lock().await;
        let lost: Vec<_> = acked.difference(&set).collect();
        let some = &lost[..lost.len().min(10)];
        assert!(lost.is_empty(), "{} of {} acknowledged commits are lost: {some:?}", lost.len(), acked.len());
        eprintln!("{} acknowledged, none lost", acked.len());
        self.errors.lock().await.clone()
    }
}

async fn open(endpoint: &Endpoint, kind: Kind) -> Option<Client> {
    let client = endpoint.try_connect(&endpoint.config()).await.ok()?;
    client.batch_execute(kind.begins_with()).await.ok()?;
    Some(client)
}
