//! Configuration of a cluster.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

::settings::settings! {
    /// `[cluster]`: the database servers behind one address, and how to watch them.
    #[derive(Clone, PartialEq)]
    pub struct ClusterConfig: Default {
        /// Name of the cluster in metrics and logs.
        pub name: String = "main".into();
        /// Host names by which clients ask for this cluster over TLS (SNI), with `[[clusters]]`: "db.example.org", or "*.db.example.org" for one
        /// label more. They come before the database's name.
        pub server_names: Vec<String> = Vec::new();
        /// User of the probes; it needs no privilege beyond CONNECT. With pg_monitor replicas serve reads again sooner after a failover.
        pub user: String = "postgres".into();
        /// Password of the user, where the servers ask for one. `KINGPOST__CLUSTER__PASSWORD` keeps it out of the file.
        pub password: Option<String> = None, secret(), example(r#""change-me-too""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/cluster.password""#);
        /// Program, with its arguments, that writes the password to its standard output.
        pub password_command: Vec<String> = Vec::new(), example(r#"["/usr/local/bin/token-of", "kingpost"]"#);
        /// Database that probes connect to.
        pub database: String = "postgres".into();
        /// TLS with the servers: of probes, of clients' connections, and of cancel requests. Files are PEM; SIGHUP reads them again, for new
        /// connections. Unix sockets have no TLS.
        pub tls: tls::ConnectConfig = tls::ConnectConfig::default();
        /// Time between two probes of a node while all is well.
        pub probe_interval: Duration = Duration::from_secs(1);
        /// A probe (connect and query) that takes longer has failed.
        pub probe_timeout: Duration = Duration::from_secs(2);
        /// Failed probes in a row before a node is taken out.
        pub probe_failures: u32 = 2, range(1, 1000);
        /// A replica further behind than this gets no reads.
        pub lag_limit: Duration = Duration::from_secs(10);
        /// Kind of the servers' positions. "auto": each server is asked; "wal": positions and timelines of the write-ahead log, as PostgreSQL has
        /// them; "transactions": ids of transactions, for servers whose replicas can't have what the primary has lost; "none". See
        /// docs/guide/aurora.md.
        pub positions: Positions = Positions::default();
        /// Shortest time between two questions to the primary about its LSN while several sessions wait for one; three times as long between two that
        /// make it flush its log (`[proxy.gate]`, flush).
        pub oracle_pace: Duration = Duration::from_millis(1);
        /// Clients' connections to a server on this host go through its Unix socket, which costs less than TCP: if the server itself names the
        /// socket (pg_monitor may read that), the file is there, and `[cluster.tls]` mode is "disable" or "prefer". A user whom pg_hba.conf refuses
        /// there, or asks for less than over TCP, goes on by TCP.
        pub local_sockets: bool = true;
        /// The servers. Which one is primary is found out, not configured.
        pub nodes: Vec<NodeConfig> = Vec::new(), shown_table();
        /// A registry that has the list of nodes, instead of `[[cluster.nodes]]` here: the instances of a service. Which of them is primary, and how
        /// they are, is found out all the same.
        pub from: RegistrySource = RegistrySource::default(), at_start();
        /// Relays whose confirmations count for commits that must be durable on another host (`[proxy.gate]`).
        pub relays: Vec<RelayConfig> = Vec::new();
    }
}

::settings::settings! {
    /// `cluster.positions`: kind of the servers' positions, which are compared with the positions that a replica's reads must see.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Positions {
        /// Per server: its log positions if it reports them, else transaction IDs if the servers report a shared storage, else none.
        #[default]
        Auto = "auto",
        /// Positions and timelines of the write-ahead log. A server that cannot report them is down.
        Wal = "wal",
        /// Transaction IDs. Only for servers whose replicas cannot have transactions that the primary has lost.
        Transactions = "transactions",
        /// None: only the role is queried.
        None = "none",
    }
}

::settings::settings! {
    /// `[cluster.from]`: a registry that has the nodes as instances of a service.
    #[derive(Clone, PartialEq, Eq)]
    pub struct RegistrySource: Default {
        /// URLs of the registry's nodes, `http://host:port` or `https://host:port`, tried in turn; none: the nodes are in this file.
        pub urls: Vec<String> = Vec::new();
        /// Namespace of the service.
        pub namespace: String = "kingpost".into();
        /// The service whose instances are the nodes.
        pub service: String = "postgres".into();
        /// Token that may read there. `KINGPOST__CLUSTER__FROM__TOKEN` keeps it out of the file.
        pub token: Option<String> = None, secret(), example(r#""change-me-four""#);
        /// CAs of the registry's certificate, for https://; those of the system if not given.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/registry-ca.crt""#);
    }
}

impl fmt::Debug for RegistrySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrySource")
            .field("urls", &self.urls)
            .field("namespace", &self.namespace)
            .field("service", &self.service)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

::settings::settings! {
    /// `[[cluster.nodes]]`: one database server.
    #[derive(Debug, Clone, PartialEq)]
    pub struct NodeConfig {
        /// Unique name.
        pub name: String, shown(r#""node1""#);
        /// Address: host:port, or the absolute path of a Unix socket.
        pub address: String, shown(r#""127.0.0.1:5432""#);
        /// Share of reads relative to the other replicas; 0 takes reads off it.
        pub weight: u32 = 1, range(0, 10_000);
        /// Zone, compared with proxy.zone. A failover prefers the old primary's.
        pub zone: Option<String> = None, example(r#""a""#);
        /// Permission to become the primary: "allowed" or "never".
        pub failover: Candidacy = Candidacy::default();
        /// Priority among the nodes that may become the primary and have everything: the highest becomes it.
        pub failover_priority: u32 = 1, range(0, 10_000);
    }
}

impl NodeConfig {
    /// Creates a node with defaults for all but its name and address.
    #[must_use]
    pub fn new(name: impl Into<String>, address: impl Into<String>) -> NodeConfig {
        NodeConfig {
            name: name.into(),
            address: address.into(),
            weight: 1,
            zone: None,
            failover: Candidacy::default(),
            failover_priority: 1,
        }
    }
}

::settings::settings! {
    /// Permission of a node to be promoted by a failover.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Candidacy {
        /// The node may be promoted.
        #[default]
        Allowed = "allowed",
        /// The node is never promoted: for example a delayed standby, or one at another site.
        Never = "never",
    }
}

::settings::settings! {
    /// `[[cluster.relays]]`: a relay of the primary's write-ahead log.
    #[derive(Clone, PartialEq, Eq)]
    pub struct RelayConfig {
        /// Unique name.
        pub name: String, example(r#""relay1""#);
        /// Address, host:port, as in the relay's own relay.listen.
        pub address: String, example(r#""10.0.0.9:6442""#);
        /// User, as for the relay's downstreams; the cluster's if not given.
        pub user: Option<String> = None, example(r#""replicator""#);
        /// Password of the user; the cluster's if neither user nor password is given.
        pub password: Option<String> = None, secret(), example(r#""secret""#);
        /// True if the connection begins with TLS as `[cluster.tls]` says; false: never.
        pub tls: bool = true;
    }
}

impl Default for RelayConfig {
    fn default() -> RelayConfig {
        RelayConfig { name: String::new(), address: String::new(), user: None, password: None, tls: true }
    }
}

impl RelayConfig {
    /// Returns the relay with the cluster's values in place of missing ones.
    pub(crate) fn with_defaults(&self, cluster: &ClusterConfig) -> RelayConfig {
        let mut relay = self.clone();
        if relay.user.is_none() {
            relay.user = Some(cluster.user.clone());
            relay.password = relay.password.or_else(|| cluster.password.clone());
        }
        relay
    }
}

impl fmt::Debug for RelayConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayConfig")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterConfig")
            .field("name", &self.name)
            .field("server_names", &self.server_names)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("tls", &self.tls)
            .field("probe_interval", &self.probe_interval)
            .field("probe_timeout", &self.probe_timeout)
            .field("probe_failures", &self.probe_failures)
            .field("lag_limit", &self.lag_limit)
            .field("positions", &self.positions)
            .field("oracle_pace", &self.oracle_pace)
            .field("nodes", &self.nodes)
            .field("from", &self.from)
            .field("relays", &self.relays)
            .finish_non_exhaustive()
    }
}

/// Error in a cluster's configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The oracle's thread cannot be started.
    #[error("cannot start a thread: {reason}")]
    Thread {
        /// The system's error.
        reason: String,
    },
    /// The cluster has no nodes.
    #[error("cluster {cluster:?} has no nodes: give at least one [[cluster.nodes]] with a name and an address")]
    NoNodes {
        /// The cluster's name.
        cluster: String,
    },
    /// The cluster has more nodes than IDs, including removed ones.
    #[error("cluster {cluster:?} has more than {most} nodes, counted with those removed since the start")]
    TooManyNodes {
        /// The cluster's name.
        cluster: String,
        /// Maximum number of nodes.
        most: usize,
    },
    /// Two nodes or relays have the same name.
    #[error("two nodes or relays are named {name:?}: names must be unique")]
    SameName {
        /// The name.
        name: String,
    },
    /// The cluster has more relays than marks.
    #[error("cluster {cluster:?} has more than {most} relays")]
    TooManyRelays {
        /// The cluster's name.
        cluster: String,
        /// Maximum number of relays.
        most: usize,
    },
    /// A relay's address is not valid.
    #[error("relay {relay:?} has address {address:?}: expected host:port")]
    RelayAddress {
        /// The relay's name.
        relay: String,
        /// The configured address.
        address: String,
    },
    /// An address has neither of the two forms.
    #[error("node {node:?} has address {address:?}: expected host:port, or the absolute path of a Unix socket")]
    Address {
        /// The node's name.
        node: String,
        /// The configured address.
        address: String,
    },
    /// Certificates or keys cannot be used.
    #[error("[cluster.tls] {0}")]
    Tls(#[from] tls::Error),
    /// A time is 0 and must not be.
    #[error("{setting} of cluster {cluster:?} is 0: expected a time such as 1s")]
    Zero {
        /// The cluster's name.
        cluster: String,
        /// The setting.
        setting: &'static str,
    },
}

/// Maximum number of nodes of a cluster, including those removed since the start.
pub const MOST_NODES: usize = 1024;
/// Maximum number of relays of a cluster.
pub const MOST_RELAYS: usize = 16;

impl ClusterConfig {
    /// Reads the files of `tls`; None if TLS is disabled.
    ///
    /// # Errors
    /// The first error in them.
    pub fn connector(&self) -> Result<Option<tls::Connector>, StartError> {
        Ok(tls::Connector::new(&self.tls)?)
    }

    /// True if connections may go through a server's Unix socket in place of its TCP address.
    pub(crate) fn may_use_local_sockets(&self) -> bool {
        self.local_sockets && matches!(self.tls.mode, tls::ConnectMode::Disable | tls::ConnectMode::Prefer)
    }

    /// Checks that a topology can be started with this configuration, without reading files (see [`connector`](Self::connector)).
    ///
    /// # Errors
    /// The first error.
    pub fn validate(&self) -> Result<(), StartError> {
        let cluster = || self.name.clone();
        if self.nodes.is_empty() {
            return Err(StartError::NoNodes { cluster: cluster() });
        }
        if self.nodes.len() > MOST_NODES {
            return Err(StartError::TooManyNodes { cluster: cluster(), most: MOST_NODES });
        }
        for (setting, time) in [
            ("probe_interval", self.probe_interval),
            ("probe_timeout", self.probe_timeout),
            ("lag_limit", self.lag_limit),
        ] {
            if time.is_zero() {
                return Err(StartError::Zero { cluster: cluster(), setting });
            }
        }
        let mut names = HashSet::new();
        for node in &self.nodes {
            if !names.insert(&node.name) {
                return Err(StartError::SameName { name: node.name.clone() });
            }
            Target::of(node)?;
        }
        if self.relays.len() > MOST_RELAYS {
            return Err(StartError::TooManyRelays { cluster: cluster(), most: MOST_RELAYS });
        }
        let mut names = HashSet::new();
        for relay in &self.relays {
            if !names.insert(&relay.name) {
                return Err(StartError::SameName { name: relay.name.clone() });
            }
            if !matches!(Target::parse(&relay.address), Some(Target::Tcp { .. })) {
                let (relay, address) = (relay.name.clone(), relay.address.clone());
                return Err(StartError::RelayAddress { relay, address });
            }
        }
        Ok(())
    }
}

/// Parsed address of a node; a host name is not resolved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Target {
    pub(crate) fn of(node: &NodeConfig) -> Result<Target, StartError> {
        Target::parse(&node.address)
            .ok_or_else(|| StartError::Address { node: node.name.clone(), address: node.address.clone() })
    }

    pub(crate) fn parse(address: &str) -> Option<Target> {
        if address.starts_with('/') {
            return Some(Target::Unix(Path::new(address).to_owned()));
        }
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = match bare {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().ok()?.to_string(),
            None if host.is_empty() || host.contains([':', '[', ']', '/', ' ']) => return None,
            None => host.to_owned(),
        };
        Some(Target::Tcp { host, port })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn node(name: &str, address: &str) -> NodeConfig {
        NodeConfig::new(name, address)
    }

    #[test]
    fn addresses() {
        let tcp = |host: &str, port| Some(Target::Tcp { host: host.into(), port });
        for (address, target) in [
            ("db1:5432", tcp("db1", 5432)),
            ("127.0.0.1:1", tcp("127.0.0.1", 1)),
            ("[::1]:5432", tcp("::1", 5432)),
            ("/run/postgresql/.s.PGSQL.5432", Some(Target::Unix("/run/postgresql/.s.PGSQL.5432".into()))),
            ("db1", None),
            ("db1:", None),
            (":5432", None),
            ("db1:0", None),
            ("db1:65536", None),
            ("::1:5432", None),
            ("[db1]:5432", None),
            ("", None),
        ] {
            assert_eq!(Target::parse(address), target, "{address:?}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let mut config = ClusterConfig::default();
        assert!(matches!(config.validate(), Err(StartError::NoNodes { .. })));
        config.nodes = vec![node("a", "x:1"), node("a", "y:1")];
        assert_eq!(config.validate(), Err(StartError::SameName { name: "a".into() }));
        config.nodes[1] = node("b", "nowhere");
        assert_eq!(config.validate(), Err(StartError::Address { node: "b".into(), address: "nowhere".into() }));
        config.nodes[1] = node("b", "y:1");
        assert_eq!(config.validate(), Ok(()));
        config.lag_limit = Duration::ZERO;
        assert!(matches!(config.validate(), Err(StartError::Zero { setting: "lag_limit", .. })));
    }

    #[test]
    fn the_password_is_not_shown() {
        let config = ClusterConfig { password: Some("s3cret".into()), ..ClusterConfig::default() };
        assert!(!format!("{config:?}").contains("s3cret"));
    }
}
