//! The displayed state: plain values, written to the page as JSON. Positions are texts in PostgreSQL's form (`0/16B3748`), since JavaScript's numbers
//! cannot hold all of them; times are milliseconds.

use std::collections::BTreeMap;

use serde::Serialize;

/// Kind of the servers. Positions of PostgreSQL are LSNs, and its log has timelines; positions of MariaDB and MySQL are GTIDs, or a file and an offset in it,
/// and a relay counts epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// PostgreSQL.
    #[default]
    Postgresql,
    /// MariaDB.
    Mariadb,
    /// MySQL.
    Mysql,
}

/// The nodes of a cluster, as seen by this process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cluster {
    /// The configured name.
    pub name: String,
    /// Kind of the servers.
    pub engine: Engine,
    /// Timeline of the current, or the last, primary. For MariaDB: the relay's epoch.
    pub timeline: u32,
    /// The node that takes writes.
    pub primary: Option<String>,
    /// Nodes, in the order of the configuration.
    pub nodes: Vec<Node>,
}

/// Role of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Not reached.
    #[default]
    Unknown,
    /// Accepts writes.
    Primary,
    /// Follows a primary.
    Replica,
    /// Accepts writes on a timeline that the cluster has left.
    Stale,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Node {
    /// The configured name.
    pub name: String,
    /// `host:port` or a path.
    pub address: String,
    /// The role.
    pub role: Role,
    /// True if it may be given work.
    pub usable: bool,
    /// Share of reads relative to the others, lowered during slow start.
    pub weight: f64,
    /// The configured zone.
    pub zone: Option<String>,
    /// Timeline of its last answer.
    pub timeline: Option<u32>,
    /// Position written by a primary, replayed by a replica; from its last answer.
    pub position: Option<String>,
    /// Time that a replica is behind.
    pub lag_ms: u64,
    /// Bytes that a replica is behind.
    pub lag_bytes: u64,
    /// Transactions that a replica is behind. For MariaDB, in place of bytes.
    pub lag_transactions: Option<u64>,
    /// The connection error, if it cannot be reached.
    pub error: Option<String>,
}

/// Numbers of a proxy, summed over its workers. The names are those of its metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProxyNumbers {
    /// Addresses on which clients connect.
    pub addresses: Vec<String>,
    /// Current values.
    pub gauges: Vec<(&'static str, u64)>,
    /// Values that only grow.
    pub counters: Vec<(&'static str, u64)>,
    /// Clients that became pinned, by reason; the counts only grow.
    pub pins: Vec<(&'static str, u64)>,
    /// Histogram of statement times, by [`ProxyNumbers::bounds`]; counts only grow.
    pub statements: Vec<u64>,
    /// Histogram of the waits for a server connection; counts only grow.
    pub waits: Vec<u64>,
    /// Upper bounds of the buckets in microseconds; one more bucket follows.
    pub bounds: &'static [u64],
}

/// The pool of a database and user.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolNumbers {
    /// The database, by the clients' name.
    pub database: String,
    /// The user.
    pub user: String,
    /// Pool mode: how long a client keeps a server connection.
    pub mode: &'static str,
    /// True if an operator has paused it.
    pub paused: bool,
    /// Clients.
    pub clients: usize,
    /// Clients that wait for a server connection.
    pub waiting: usize,
    /// Longest current wait of these clients.
    pub oldest_wait_ms: u64,
    /// Server connections in use.
    pub busy: usize,
    /// Idle server connections.
    pub idle: usize,
    /// Server connections being opened.
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
    /// The number in the proxy's console, as text: it has 63 bits.
    pub id: String,
    /// The user.
    pub user: String,
    /// The database.
    pub database: String,
    /// `login`, `waiting`, `active`, `idle`, `console`.
    pub state: &'static str,
    /// Source address; empty for a Unix socket.
    pub address: String,
    /// The application name.
    pub application: String,
    /// Time since it connected.
    pub connected_ms: u64,
    /// Time that it has waited, or that its statement has run.
    pub since_ms: Option<u64>,
    /// Reasons why it is pinned to its server connection.
    pub pins: Vec<&'static str>,
    /// True if it uses TLS.
    pub tls: bool,
}

/// Clients of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Clients {
    /// Waiting clients first, then by the age of their state.
    pub clients: Vec<Client>,
    /// Number of all clients.
    pub total: usize,
}

/// Statistics of the statements of one shape. A shape has no literals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// The text without literals; `(others)` for all shapes that are not kept.
    pub text: String,
    /// Number of executions that have ended.
    pub calls: u64,
    /// Time from sending a statement to the end of its answer, in microseconds, summed.
    pub total_micros: u64,
    /// The longest such time.
    pub longest_micros: u64,
    /// Rows returned or changed.
    pub rows: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls on the primary; all others were on replicas.
    pub on_primary: u64,
}

/// Shapes of statements since the start of the proxy, or since the statistics were reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Statements {
    /// Shapes with the longest total time first.
    pub statements: Vec<Statement>,
    /// Number of shapes.
    pub total: usize,
    /// Microseconds of all shapes, summed.
    pub micros: u64,
}

/// A relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Relay {
    /// Kind of the servers whose log it holds.
    pub engine: Engine,
    /// Addresses on which it listens.
    pub addresses: Vec<String>,
    /// Address that WAL comes from.
    pub upstream: String,
    /// `streaming`, or the reason why not.
    pub state: String,
    /// True if an operator must act.
    pub alarm: bool,
    /// Settings of the upstream that let commits not wait for this relay. For MariaDB.
    pub concerns: Vec<String>,
    /// The archive of its WAL. For PostgreSQL.
    pub archive: Option<RelayArchive>,
    /// The end of the upstream's log.
    pub upstream_end: Option<String>,
    /// The log; None before the upstream was reached for the first time.
    pub log: Option<RelayLog>,
    /// Streaming clients.
    pub downstreams: Vec<Downstream>,
    /// Replication slots.
    pub slots: Vec<Slot>,
}

/// A relay's log.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RelayLog {
    /// Timeline being written.
    pub timeline: u32,
    /// Oldest position held.
    pub oldest: String,
    /// End of the log appended.
    pub written: String,
    /// End of the log that is durable.
    pub flushed: String,
    /// Position acknowledged to the upstream.
    pub acknowledged: String,
    /// The last durable transaction of each domain and server. For MariaDB.
    pub gtids: String,
    /// Bytes between the upstream's end and the durable end here; for MariaDB between the received and the durable end.
    pub lag_bytes: u64,
    /// Bytes held.
    pub bytes: u64,
    /// The error that stopped all writes.
    pub failure: Option<String>,
}

/// A relay's archive.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RelayArchive {
    /// URL of the archive.
    pub url: String,
    /// `archiving`, or the reason why not.
    pub state: String,
    /// True if an operator must act.
    pub alarm: bool,
    /// Position up to which it has confirmed every segment.
    pub confirmed: String,
    /// Durable bytes of the relay that it does not have.
    pub behind_bytes: u64,
    /// Milliseconds since when it has not had all that was durable.
    pub behind_ms: u64,
    /// The moments that can be restored; None without a restorable backup.
    pub window: Option<String>,
    /// The failure of the last backup by schedule, while it is an alarm.
    pub backup_failure: Option<String>,
}

/// A client that streams from a relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Downstream {
    /// The application name.
    pub name: String,
    /// The peer's address.
    pub peer: String,
    /// The replication slot.
    pub slot: Option<String>,
    /// Position sent to it.
    pub sent: String,
    /// Position that is durable there.
    pub flushed: String,
    /// Position that is replayed there.
    pub applied: String,
    /// Bytes that are durable here and not yet there.
    pub lag_bytes: u64,
}

/// A replication slot of a relay.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Slot {
    /// The name.
    pub name: String,
    /// Oldest position that it needs.
    pub restart: Option<String>,
    /// True if a connection uses it.
    pub active: bool,
}

/// A registry.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Registry {
    /// Addresses on which it listens.
    pub addresses: Vec<String>,
    /// True if its store answers.
    pub ready: bool,
    /// Kind of the store.
    pub store: String,
    /// The store's error, if it does not answer.
    pub store_error: Option<String>,
    /// Revision of the whole registry.
    pub revision: u64,
    /// Number of instances.
    pub instances: usize,
    /// Number of instances with failing checks.
    pub critical: usize,
    /// Number of instances that are isolated by hand and have no failing check.
    pub isolated: usize,
    /// Number of services.
    pub services: usize,
    /// Calls that wait for a change.
    pub watchers: usize,
    /// Writes that wait for their batch.
    pub queued: usize,
    /// Services whose last good state is kept after a mass loss; an empty name stands for the whole registry.
    pub protected: Vec<Protected>,
    /// Counters since the start.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Applications that Eureka's clients see, and their leases.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Eureka {
    /// Namespaces of the registry.
    pub namespaces: Vec<String>,
    /// Applications, those with an instance that is not UP first.
    pub applications: Vec<EurekaApplication>,
    /// Number of all applications.
    pub total: usize,
    /// Renewals a minute that the instances' intervals come to, at all nodes.
    pub expected: u64,
    /// Renewals in the last minute at this node.
    pub renewed: u64,
    /// Seconds since silent instances are kept, for too many are silent at once; None if none are.
    pub protected: Option<u64>,
    /// Eureka's own servers that the node replicates with.
    pub servers: Vec<EurekaServer>,
}

/// An application of Eureka's clients. The counts are of its instances, by machine image, zone and status; an empty name stands for those without one.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EurekaApplication {
    /// The name, in upper case.
    pub name: String,
    /// Counts by machine image.
    pub images: BTreeMap<String, usize>,
    /// Counts by zone.
    pub zones: BTreeMap<String, usize>,
    /// Counts by status.
    pub statuses: BTreeMap<&'static str, usize>,
    /// Instances, those that are not UP first; further ones are left out.
    pub instances: Vec<EurekaInstance>,
}

/// An instance of an application.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EurekaInstance {
    /// The client's id.
    pub id: String,
    /// `namespace/id` of the registry's instance.
    pub instance: String,
    /// The status in force.
    pub status: &'static str,
    /// Address of the page about its state, as the client has sent it.
    pub page: Option<String>,
}

/// One of Eureka's own servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EurekaServer {
    /// Address.
    pub url: String,
    /// True if the last request succeeded.
    pub reached: bool,
    /// Reason of the last failure; None after a success.
    pub error: Option<String>,
    /// Instances whose changes have not been sent.
    pub waiting: usize,
    /// Changes that were sent, refused, and given up, since the start.
    pub sent: u64,
    /// See `sent`.
    pub refused: u64,
    /// See `sent`.
    pub lost: u64,
}

/// A brake that holds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Protected {
    /// `namespace/name`; empty for the whole.
    pub service: String,
    /// Seconds since the brake has held.
    pub seconds: u64,
}

/// A service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Service {
    /// The namespace.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
    /// Number of instances.
    pub instances: usize,
    /// Number of instances that traffic may go to.
    pub usable: usize,
    /// Number of instances with failing checks.
    pub critical: usize,
    /// Revision of the last change.
    pub revision: u64,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Found {
    /// Services with matching names, unhealthy ones first, then by name.
    pub services: Vec<Service>,
    /// Number of all matching services.
    pub total: usize,
    /// Instances with the requested metadata.
    pub instances: Vec<Instance>,
    /// True if there are more such instances.
    pub more: bool,
    /// Names of all namespaces.
    pub namespaces: Vec<String>,
    /// The registry's revision at the search.
    pub revision: u64,
}

/// The instances of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Instances {
    /// The service itself.
    pub service: Service,
    /// The service's own metadata.
    pub metadata: Vec<(String, String)>,
    /// Instances, unhealthy ones first, then by id.
    pub instances: Vec<Instance>,
    /// True if there are more.
    pub more: bool,
}

/// An instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Instance {
    /// `namespace/id`.
    pub id: String,
    /// `namespace/name`.
    pub service: String,
    /// Host name or address.
    pub host: String,
    /// The port; 0: none.
    pub port: u16,
    /// `passing`, `warning`, `critical`.
    pub health: &'static str,
    /// True if it is isolated by hand.
    pub isolate: bool,
    /// True if traffic may go to it.
    pub usable: bool,
    /// Share of the traffic.
    pub weight: u16,
    /// The priority; lower is preferred.
    pub priority: u16,
    /// Free text.
    pub protocol: String,
    /// Free text.
    pub version: String,
    /// Region, zone, campus; those that are set.
    pub location: Vec<String>,
    /// Free key-value pairs.
    pub metadata: Vec<(String, String)>,
    /// The health check.
    pub check: Option<serde_json::Value>,
    /// The commit that wrote this state.
    pub revision: u64,
    /// Time of registration, in milliseconds since 1970.
    pub created: i64,
    /// Time of the last change.
    pub changed: i64,
}

/// An instance with its transitions while this process has run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct InstanceDetail {
    /// The current state.
    pub instance: Instance,
    /// Transitions, newest first.
    pub history: Vec<crate::Transition>,
}

/// A version of a configuration entry, without its content.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Entry {
    /// The namespace.
    pub namespace: String,
    /// The group.
    pub group: String,
    /// The data id.
    pub id: String,
    /// The content's type.
    #[serde(rename = "type")]
    pub kind: String,
    /// MD5 of the content.
    pub md5: String,
    /// Number of the version.
    pub version: u64,
    /// The version that this one restored; 0 for none.
    pub restored: u64,
    /// The commit that wrote the row.
    pub revision: u64,
    /// Bytes of the content.
    pub bytes: usize,
    /// True if the content must not be shown.
    pub secret: bool,
    /// Name of the token that published the version.
    pub author: String,
    /// Time of the publication, in milliseconds since 1970.
    pub time: i64,
    /// Name of the token that removed the entry, for the last version of a removed one.
    pub removed_by: Option<String>,
}

/// Entries of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Entries {
    /// Entries with matching names, in the order of their names.
    pub entries: Vec<Entry>,
    /// Number of all matching entries.
    pub total: usize,
    /// Names of the namespaces that have services.
    pub namespaces: Vec<String>,
}

/// An entry with its content and its versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EntryDetail {
    /// The current version, or the last one of a removed entry.
    pub entry: Entry,
    /// The content; `None` for a secret.
    pub content: Option<String>,
    /// The versions that are kept, newest first.
    pub versions: Vec<Entry>,
    /// Changes of the entry in the audit log, newest first.
    pub audit: Vec<Audited>,
}

/// A line of the audit log.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Audited {
    /// The time, in milliseconds since 1970.
    pub time: i64,
    /// Name of the token.
    pub token: String,
    /// Address of the client; `0.0.0.0` for the console's own change.
    pub peer: String,
    /// The action, for example `publishConfig`.
    pub action: String,
    /// Name, version and MD5.
    pub object: String,
}

/// A line of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Line {
    /// `same`, `added`, `removed`; `gap` between distant changes.
    pub change: &'static str,
    /// The text, without its end of line.
    pub text: String,
}

/// The difference of two versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Changed lines with their surroundings; `None` for contents that are secret or too long.
    pub lines: Option<Vec<Line>>,
}
