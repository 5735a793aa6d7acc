//! A worker's report to the console.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::NodeId;

use crate::config::PoolMode;
use crate::core::statistics::StatementReport;
use crate::core::token::Token;
use crate::settings::CommitGate;

/// What a report is to contain besides its pools.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// All clients.
    pub clients: bool,
    /// All server connections.
    pub servers: bool,
    /// All statement shapes.
    pub statements: bool,
    /// Memory that is set aside.
    pub memory: bool,
}

/// An operation of an operator, sent to every worker.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Pauses a database (`None`: all): no server connection is given out, and each one is closed when it is free.
    Pause(Option<String>),
    /// Ends pauses of a database (`None`: all), whoever began them.
    Resume(Option<String>),
    /// Reads nothing more from clients, and gives out no server connections, until all is resumed.
    Suspend,
    /// Refuses logins to a database.
    Disable(String),
    /// Ends `Disable`.
    Enable(String),
    /// Pauses all databases, for a program that holds a lease. Separate from `Pause`: an operator's pause stays.
    PauseLeased,
    /// Ends `PauseLeased`, and nothing else.
    ResumeLeased,
    /// Closes server connections of a database (`None`: of all) when they are free; new ones are opened as needed.
    Reconnect(Option<String>),
    /// Closes clients and server connections of a database (`None`: of all) now, and pauses it.
    Kill(Option<String>),
    /// Closes one client.
    KillClient(Token),
    /// Resets the statistics of statements.
    ResetStatements,
}

/// The state of one worker.
#[derive(Debug, Default)]
pub struct Report {
    /// The worker's number among those of all clusters.
    pub worker: usize,
    /// The worker's part of each pool.
    pub pools: Vec<PoolReport>,
    /// The clients, if they were asked for.
    pub clients: Vec<ClientReport>,
    /// The server connections, if they were asked for.
    pub servers: Vec<ServerReport>,
    /// Statement shapes and their counts, if they were asked for.
    pub statements: Vec<StatementReport>,
    /// Clients that have not logged in.
    pub logging_in: usize,
    /// Connections with bytes to be written or answers to come, while the proxy is suspended; `None`: it is not.
    pub suspended: Option<usize>,
    /// Memory that is set aside.
    pub memory: Vec<MemoryReport>,
}

/// Memory of one worker that is set aside for one kind of thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// What for.
    pub name: &'static str,
    /// Bytes of one.
    pub size: usize,
    /// How many are in use.
    pub used: usize,
    /// How many more there is memory for.
    pub free: usize,
}

/// One worker's part of a pool.
#[derive(Debug, Clone)]
pub struct PoolReport {
    /// The database, by the name that clients use.
    pub database: Arc<str>,
    /// The user.
    pub user: Arc<str>,
    /// How long a client keeps a server connection.
    pub mode: PoolMode,
    /// The pool is paused.
    pub paused: bool,
    /// Clients of the pool.
    pub clients: usize,
    /// Clients that wait for a server connection.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Duration,
    /// Server connections in use.
    pub busy: usize,
    /// Idle server connections.
    pub idle: usize,
    /// Server connections being opened.
    pub connecting: usize,
    /// Server connections that wait until a cancel request has arrived.
    pub cancelling: usize,
    /// How answers to commits are held back; `None`: they are not.
    pub gate: Option<GateReport>,
    /// Counts since the worker started.
    pub totals: Totals,
}

/// How one worker's part of a pool holds back answers to commits, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateReport {
    /// The configuration.
    pub settings: CommitGate,
    /// Servers do not flush commits of this pool; the oracle's queries have them flushed.
    pub lazy: bool,
    /// Fewer relays than `settings.relays` have confirmed anything for longer than the limit.
    pub degraded: bool,
    /// Clients with an answer that is held back.
    pub held: usize,
    /// For how long the first such answer has been held back.
    pub longest: Duration,
}

/// Counts of one pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// How often a server connection was given to a client.
    pub assignments: u64,
    /// How often a server connection was given back.
    pub transactions: u64,
    /// Statements (simple queries and extended-protocol batches) that a server answered.
    pub queries: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes from servers.
    pub sent: u64,
    /// Time for which server connections were held, in microseconds.
    pub transaction_micros: u64,
    /// Time from the dispatch of statements to the end of their answers, in microseconds.
    pub query_micros: u64,
    /// Time clients waited for a server connection, in microseconds.
    pub wait_micros: u64,
}

/// A client.
#[derive(Debug, Clone)]
pub struct ClientReport {
    /// The client's token, which is unique within its worker.
    pub token: Token,
    /// The user; empty before the startup packet.
    pub user: Arc<str>,
    /// The database.
    pub database: Arc<str>,
    /// `login`, `waiting`, `active`, `idle`, `console`.
    pub state: &'static str,
    /// When the client connected.
    pub connected: Instant,
    /// Since when the client waits, or its statement runs.
    pub since: Option<Instant>,
    /// The server connection that the client uses.
    pub server: Option<Token>,
    /// The client's `application_name`.
    pub application: String,
    /// Number of the client's prepared statements.
    pub prepared: usize,
    /// The reasons why the client keeps its server connection.
    pub pins: sql::Pins,
    /// The client speaks TLS.
    pub tls: bool,
    /// `none`, `physical`, `logical`.
    pub replication: &'static str,
    /// Bytes from the client that were not handled yet, and bytes that it has not been sent yet.
    pub buffered: (usize, usize),
    /// The socket's file descriptor. Filled in by the driver.
    pub fd: Option<i32>,
    /// The client's address; `None` over a Unix socket. Filled in by the driver.
    pub address: Option<SocketAddr>,
    /// The address that the client connected to; likewise.
    pub local: Option<SocketAddr>,
}

/// A server connection.
#[derive(Debug, Clone)]
pub struct ServerReport {
    /// The server connection's token, which is unique within its worker.
    pub token: Token,
    /// The user.
    pub user: Arc<str>,
    /// The database, by the name that clients use.
    pub database: Arc<str>,
    /// The node.
    pub node: NodeId,
    /// `login`, `active`, `idle`, `being_canceled`, `closing`.
    pub state: &'static str,
    /// The connection is closed as soon as nobody uses it.
    pub retire: bool,
    /// Since when the connection is open, or being opened.
    pub connected: Instant,
    /// Since when the connection is in this state.
    pub since: Instant,
    /// The client that uses the connection.
    pub client: Option<Token>,
    /// The backend's process id.
    pub pid: u32,
    /// The connection speaks TLS.
    pub tls: bool,
    /// `none`, `physical`, `logical`.
    pub replication: &'static str,
    /// Bytes from the server that were not handled yet, and bytes that it has not been sent yet.
    pub buffered: (usize, usize),
    /// The socket's file descriptor. Filled in by the driver.
    pub fd: Option<i32>,
    /// The statements on the connection, if it is a lane.
    pub lane: Option<LaneReport>,
    /// Ids of the prepared statements that the connection has.
    pub prepared: Vec<u64>,
    /// The `application_name` of the client that uses the connection.
    pub application: String,
    /// The server's address; `None` over a Unix socket. Filled in by the driver.
    pub address: Option<SocketAddr>,
    /// The local address; likewise.
    pub local: Option<SocketAddr>,
}

impl ClientReport {
    /// The reasons why the client keeps its server connection, by name.
    pub fn pinned_by(&self) -> impl Iterator<Item = &'static str> + use<> {
        let pins = self.pins;
        sql::Pins::NAMES.iter().filter(move |(pin, _)| pins.0 & pin.0 != 0).map(|(_, name)| *name)
    }
}

/// A server connection that is a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneReport {
    /// Statements that have not been answered.
    pub statements: usize,
    /// Statements admitted since the connection was last free.
    pub admitted: u32,
    /// Since when the front statement runs.
    pub since: Instant,
    /// No more statements are admitted.
    pub closed: bool,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Totals) {
        self.assignments += other.assignments;
        self.transactions += other.transactions;
        self.queries += other.queries;
        self.received += other.received;
        self.sent += other.sent;
        self.transaction_micros += other.transaction_micros;
        self.query_micros += other.query_micros;
        self.wait_micros += other.wait_micros;
    }
}
