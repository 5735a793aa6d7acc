//! What there is to be seen: plain values, written to the page as JSON. Positions are texts as PostgreSQL writes them
//! (`0/16B3748`), for JavaScript's numbers do not hold all of them; times are milliseconds.

use std::collections::BTreeMap;

use serde::Serialize;

/// What the servers are. Positions of PostgreSQL are LSNs, and its log has timelines; positions of MariaDB are GTIDs, or a file and an offset
/// in it, and a relay counts epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// PostgreSQL.
    #[default]
    Postgresql,
    /// MariaDB.
    Mariadb,
}

/// The nodes of a cluster, as this process sees them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cluster {
    /// Its configured name.
    pub name: String,
    /// What the nodes are.
    pub engine: Engine,
    /// Of MariaDB: the relay's epoch. Timeline of the current, or the last, primary.
    pub timeline: u32,
    /// The node that takes writes.
    pub primary: Option<String>,
    /// All nodes, in the order of the configuration.
    pub nodes: Vec<Node>,
}

/// What a node is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Not reached.
    #[default]
    Unknown,
    /// Takes writes.
    Primary,
    /// Follows.
    Replica,
    /// Takes writes on a timeline that has been left.
    Stale,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Node {
    /// Configured.
    pub name: String,
    /// `host:port` or a path.
    pub address: String,
    /// What it is.
    pub role: Role,
    /// May be given work.
    pub usable: bool,
    /// Share of reads relative to the others, lowered during slow start.
    pub weight: f64,
    /// Configured.
    pub zone: Option<String>,
    /// As of its last answer.
    pub timeline: Option<u32>,
    /// Written by a primary, replayed by a replica; as of its last answer.
    pub position: Option<String>,
    /// Time a replica is behind.
    pub lag_ms: u64,
    /// Bytes a replica is behind.
    pub lag_bytes: u64,
    /// Of MariaDB, in place of bytes: transactions a replica is behind.
    pub lag_transactions: Option<u64>,
    /// Why it cannot be reached.
    pub error: Option<String>,
}

/// Numbers of a proxy, of all its workers together. The names are those of its metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProxyNumbers {
    /// Where clients connect.
    pub addresses: Vec<String>,
    /// Values of the moment.
    pub gauges: Vec<(&'static str, u64)>,
    /// Values that only grow.
    pub counters: Vec<(&'static str, u64)>,
    /// Clients that became pinned, by reason; they only grow.
    pub pins: Vec<(&'static str, u64)>,
    /// Time of statements, by [`ProxyNumbers::bounds`]; counts only grow.
    pub statements: Vec<u64>,
    /// Time that clients waited for a server connection; likewise.
    pub waits: Vec<u64>,
    /// Upper bounds of the buckets in microseconds; one more bucket follows.
    pub bounds: &'static [u64],
}

/// One database and user of a proxy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolNumbers {
    /// As clients name it.
    pub database: String,
    /// Whose.
    pub user: String,
    /// When a client holds on to a server connection.
    pub mode: &'static str,
    /// An operator has paused it.
    pub paused: bool,
    /// Clients.
    pub clients: usize,
    /// Of these, those that wait for a server connection.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait_ms: u64,
    /// Server connections in use.
    pub busy: usize,
    /// Idle ones.
    pub idle: usize,
    /// Those being opened.
    pub connecting: usize,
    /// Statements so far.
    pub queries: u64,
    /// Transactions so far.
    pub transactions: u64,
    /// Microseconds that clients have waited so far.
    pub wait_micros: u64,
    /// Microseconds that statements have taken so far.
    pub query_micros: u64,
}

/// A client of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Client {
    /// Its number in the proxy's console, as text: it has 63 bits.
    pub id: String,
    /// Who.
    pub user: String,
    /// Of what.
    pub database: String,
    /// `login`, `waiting`, `active`, `idle`, `console`.
    pub state: &'static str,
    /// From where; empty for a Unix socket.
    pub address: String,
    /// What it calls itself.
    pub application: String,
    /// For how long it is connected.
    pub connected_ms: u64,
    /// For how long it has been waiting, or its statement running.
    pub since_ms: Option<u64>,
    /// What keeps it on its server connection.
    pub pins: Vec<&'static str>,
    /// It speaks TLS.
    pub tls: bool,
}

/// Clients of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Clients {
    /// Those that wait first, then by age of what they do.
    pub clients: Vec<Client>,
    /// How many there are in all.
    pub total: usize,
}

/// What statements of one shape have taken. Literals are not in the shape.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// Its text without literals; `(others)` for all shapes that are not kept.
    pub text: String,
    /// How often one has ended.
    pub calls: u64,
    /// Time from sending one to the end of its answer, in microseconds: of all together,
    pub total_micros: u64,
    /// and of the longest.
    pub longest_micros: u64,
    /// Rows that were returned or changed.
    pub rows: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls on the primary; all others were on replicas.
    pub on_primary: u64,
}

/// Shapes of statements since the start of the proxy, or since somebody had them counted anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Statements {
    /// Those that have taken longest together first.
    pub statements: Vec<Statement>,
    /// How many shapes there are.
    pub total: usize,
    /// Microseconds of all shapes together.
    pub micros: u64,
}

/// A relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Relay {
    /// What it holds the log of.
    pub engine: Engine,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Where WAL comes from.
    pub upstream: String,
    /// `streaming`, or what stands in the way.
    pub state: String,
    /// Somebody has to look.
    pub alarm: bool,
    /// Of MariaDB: settings of the upstream by which commits do not wait for this relay.
    pub concerns: Vec<String>,
    /// The end of the upstream's log.
    pub upstream_end: Option<String>,
    /// The log; none before the upstream was reached for the first time.
    pub log: Option<RelayLog>,
    /// All that stream.
    pub downstreams: Vec<Downstream>,
    /// Their slots.
    pub slots: Vec<Slot>,
}

/// A relay's log.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RelayLog {
    /// Being written.
    pub timeline: u32,
    /// Oldest position held.
    pub oldest: String,
    /// Appended.
    pub written: String,
    /// Durable.
    pub flushed: String,
    /// Told to the upstream.
    pub acknowledged: String,
    /// Of MariaDB: the last transaction of each domain and server that is durable.
    pub gtids: String,
    /// Bytes between the upstream's end and what is durable here; of MariaDB between what has come and what is durable.
    pub lag_bytes: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Why nothing is written any more.
    pub failure: Option<String>,
}

/// Somebody who streams from a relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Downstream {
    /// As it calls itself.
    pub name: String,
    /// From where.
    pub peer: String,
    /// Its slot.
    pub slot: Option<String>,
    /// Sent to it.
    pub sent: String,
    /// Durable there.
    pub flushed: String,
    /// Replayed there.
    pub applied: String,
    /// Bytes that are durable here and not yet there.
    pub lag_bytes: u64,
}

/// A slot of a relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Slot {
    /// Its name.
    pub name: String,
    /// Oldest position that it needs.
    pub restart: Option<String>,
    /// A connection uses it.
    pub active: bool,
}

/// A registry.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Registry {
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Its store answers.
    pub ready: bool,
    /// Kind of the store.
    pub store: String,
    /// Why it does not answer.
    pub store_error: Option<String>,
    /// Of the whole.
    pub revision: u64,
    /// How many.
    pub instances: usize,
    /// Of them, whose checks fail.
    pub critical: usize,
    /// Of them, taken out by hand, whose checks do not fail.
    pub isolated: usize,
    /// How many.
    pub services: usize,
    /// Calls that wait for a change.
    pub watchers: usize,
    /// Writes that wait for their batch.
    pub queued: usize,
    /// Whose last good state is kept because too much was lost at once; an empty name is the whole.
    pub protected: Vec<Protected>,
    /// Counted since the start.
    pub counts: BTreeMap<&'static str, u64>,
}

/// A brake that holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Protected {
    /// `namespace/name`; empty for the whole.
    pub service: String,
    /// Since when, in seconds.
    pub seconds: u64,
}

/// A service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Service {
    /// Of it.
    pub namespace: String,
    /// Inside the namespace.
    pub name: String,
    /// How many.
    pub instances: usize,
    /// Traffic may go to.
    pub usable: usize,
    /// Whose checks fail.
    pub critical: usize,
    /// Last change.
    pub revision: u64,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Found {
    /// Services whose names fit, those that are not well first, then by name.
    pub services: Vec<Service>,
    /// How many fit in all.
    pub total: usize,
    /// Instances with the metadata that was asked for.
    pub instances: Vec<Instance>,
    /// There are more of them.
    pub more: bool,
    /// Names of all namespaces.
    pub namespaces: Vec<String>,
    /// The registry's, when this was found.
    pub revision: u64,
}

/// The instances of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Instances {
    /// The service itself.
    pub service: Service,
    /// What was said about it.
    pub metadata: Vec<(String, String)>,
    /// Those that are not well first, then by id.
    pub instances: Vec<Instance>,
    /// There are more.
    pub more: bool,
}

/// An instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Instance {
    /// `namespace/id`.
    pub id: String,
    /// `namespace/name`.
    pub service: String,
    /// Name or address.
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// `passing`, `warning`, `critical`.
    pub health: &'static str,
    /// Taken out by hand.
    pub isolate: bool,
    /// Traffic may go to it.
    pub usable: bool,
    /// Share of the traffic.
    pub weight: u16,
    /// Lower is preferred.
    pub priority: u16,
    /// Free text.
    pub protocol: String,
    /// Free text.
    pub version: String,
    /// Region, zone, campus; those that are set.
    pub location: Vec<String>,
    /// Whatever else.
    pub metadata: Vec<(String, String)>,
    /// How its health is known.
    pub check: Option<serde_json::Value>,
    /// The commit that made it so.
    pub revision: u64,
    /// When it was registered, in milliseconds since 1970.
    pub created: i64,
    /// When it was last changed.
    pub changed: i64,
}

/// An instance and what became of it while this process looked.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct InstanceDetail {
    /// As it is.
    pub instance: Instance,
    /// Newest first.
    pub history: Vec<crate::Transition>,
}
