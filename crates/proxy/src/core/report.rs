//! Report of a worker to the console.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::NodeId;

use crate::config::PoolMode;
use crate::core::statistics::StatementReport;
use crate::core::token::Token;
use crate::settings::CommitGate;

/// Optional parts of a report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// True for all clients.
    pub clients: bool,
    /// True for all server connections.
    pub servers: bool,
    /// True for all statement shapes.
    pub statements: bool,
    /// True for the allocated memory.
    pub memory: bool,
}

/// An operation of an operator, sent to every worker.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Pauses a database (`None`: all): no server connections are handed out, and each one is closed once it is free.
    Pause(Option<String>),
    /// Ends all pauses of a database (`None`: of all), including other operators'.
    Resume(Option<String>),
    /// Reads no more input from clients, and hands out no server connections, until all is resumed.
    Suspend,
    /// Refuses logins to a database.
    Disable(String),
    /// Ends `Disable`.
    Enable(String),
    /// Pauses all databases, for a program that holds a lease. Separate from `Pause`: an operator's pause stays.
    PauseLeased,
    /// Ends only `PauseLeased`.
    ResumeLeased,
    /// Closes server connections of a database (`None`: of all) once they are free; new ones are opened as needed.
    Reconnect(Option<String>),
    /// Closes clients and server connections of a database (`None`: of all) now, and pauses it.
    Kill(Option<String>),
    /// Closes one client.
    KillClient(Token),
    /// Resets the statistics of statements.
    ResetStatements,
}

/// State of one worker.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of the worker among those of all clusters.
    pub worker: usize,
    /// The worker's part of each pool.
    pub pools: Vec<PoolReport>,
    /// The clients, if requested.
    pub clients: Vec<ClientReport>,
    /// The server connections, if requested.
    pub servers: Vec<ServerReport>,
    /// Statement shapes and their counts, if requested.
    pub statements: Vec<StatementReport>,
    /// Number of clients that have not logged in.
    pub logging_in: usize,
    /// Number of connections with unwritten bytes or pending answers, while the proxy is suspended; otherwise `None`.
    pub suspended: Option<usize>,
    /// Allocated memory.
    pub memory: Vec<MemoryReport>,
}

/// Memory of one worker, allocated for one purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryReport {
    /// Purpose of the memory.
    pub name: &'static str,
    /// Bytes of one object.
    pub size: usize,
    /// Number of objects in use.
    pub used: usize,
    /// Number of further objects that fit.
    pub free: usize,
}

/// One worker's part of a pool.
#[derive(Debug, Clone)]
pub struct PoolReport {
    /// The database, by the name that clients use.
    pub database: Arc<str>,
    /// The user.
    pub user: Arc<str>,
    /// Pool mode: the time for which a client keeps a server connection.
    pub mode: PoolMode,
    /// True if the pool is paused.
    pub paused: bool,
    /// Number of clients.
    pub clients: usize,
    /// Number of clients that wait for a server connection.
    pub waiting: usize,
    /// Longest wait of these clients so far, shown as `maxwait`.
    pub oldest_wait: Duration,
    /// Number of server connections in use.
    pub busy: usize,
    /// Number of idle server connections.
    pub idle: usize,
    /// Number of server connections being opened.
    pub connecting: usize,
    /// Number of server connections that wait for the arrival of a cancel request.
    pub cancelling: usize,
    /// The last attempt to open a server connection, if it failed.
    pub connect_error: Option<ConnectError>,
    /// State of the commit gate; `None` if answers to commits are not held back.
    pub gate: Option<GateReport>,
    /// Counts since the pool was made; an unused pool is forgotten.
    pub totals: Totals,
}

/// A failed attempt to open a server connection, since which no attempt at that node has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError {
    /// Time of the failure.
    pub at: Instant,
    /// The server's text, or the reason for which it could not be reached.
    pub text: String,
}

/// State of the commit gate of one worker's part of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateReport {
    /// The configuration.
    pub settings: CommitGate,
    /// True if servers do not flush commits of this pool; the oracle's queries cause the flush.
    pub lazy: bool,
    /// True if fewer relays than `settings.relays` have confirmed anything for longer than the limit.
    pub degraded: bool,
    /// Number of clients with an answer that is held back.
    pub held: usize,
    /// Time for which the oldest such answer has been held back.
    pub longest: Duration,
}

/// Counters of one pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of times that a server connection was assigned to a client.
    pub assignments: u64,
    /// Number of times that a server connection was given back.
    pub transactions: u64,
    /// Number of statements (simple queries and extended-protocol batches) that a server answered.
    pub queries: u64,
    /// Bytes from clients.
    pub received: u64,
    /// Bytes from servers.
    pub sent: u64,
    /// Time for which clients held server connections, in microseconds.
    pub transaction_micros: u64,
    /// Time from the dispatch of statements to the end of their answers, in microseconds.
    pub query_micros: u64,
    /// Time for which clients waited for a server connection, in microseconds.
    pub wait_micros: u64,
    /// Number of named prepared statements that clients made.
    pub client_parses: u64,
    /// Number of named prepared statements that were made on servers.
    pub server_parses: u64,
    /// Number of Binds of statements that servers keep under a name.
    pub binds: u64,
    /// Number of clients that have logged in.
    pub logins: u64,
}

/// Report on a client.
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
    /// Time at which the client connected.
    pub connected: Instant,
    /// Start of the client's wait or of its statement.
    pub since: Option<Instant>,
    /// The server connection assigned to the client.
    pub server: Option<Token>,
    /// The client's `application_name`.
    pub application: String,
    /// Number of the client's prepared statements.
    pub prepared: usize,
    /// Reasons why the client keeps its server connection.
    pub pins: sql::Pins,
    /// True if the client uses TLS.
    pub tls: bool,
    /// `none`, `physical`, `logical`.
    pub replication: &'static str,
    /// Bytes from the client that were not handled yet, and bytes to the client that were not sent yet.
    pub buffered: (usize, usize),
    /// The socket's file descriptor. Filled in by the driver.
    pub fd: Option<i32>,
    /// The client's address; `None` over a Unix socket. Filled in by the driver.
    pub address: Option<SocketAddr>,
    /// The address that the client connected to, or `None` as above. Filled in by the driver.
    pub local: Option<SocketAddr>,
}

/// Report on a server connection.
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
    /// True if the connection is closed once it is free.
    pub retire: bool,
    /// Time at which opening the connection began.
    pub connected: Instant,
    /// Start of the present state.
    pub since: Instant,
    /// The client that uses the connection.
    pub client: Option<Token>,
    /// Process ID of the backend.
    pub pid: u32,
    /// True if the connection uses TLS.
    pub tls: bool,
    /// `none`, `physical`, `logical`.
    pub replication: &'static str,
    /// Bytes from the server that were not handled yet, and bytes to the server that were not sent yet.
    pub buffered: (usize, usize),
    /// The socket's file descriptor. Filled in by the driver.
    pub fd: Option<i32>,
    /// The statements on the connection, if it is a lane.
    pub lane: Option<LaneReport>,
    /// IDs of the prepared statements on the connection.
    pub prepared: Vec<u64>,
    /// The `application_name` of the client that uses the connection.
    pub application: String,
    /// The server's address; `None` over a Unix socket. Filled in by the driver.
    pub address: Option<SocketAddr>,
    /// The local address, or `None` as above. Filled in by the driver.
    pub local: Option<SocketAddr>,
}

impl ClientReport {
    /// Returns the reasons why the client keeps its server connection, by name.
    pub fn pinned_by(&self) -> impl Iterator<Item = &'static str> + use<> {
        let pins = self.pins;
        sql::Pins::NAMES.iter().filter(move |(pin, _)| pins.0 & pin.0 != 0).map(|(_, name)| *name)
    }
}

/// Report on a server connection that is a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneReport {
    /// Number of statements without an answer.
    pub statements: usize,
    /// Number of statements admitted since the connection was last free.
    pub admitted: u32,
    /// Number of lanes that a worker has for the pool and node before statements share them.
    pub width: usize,
    /// Start of the front statement.
    pub since: Instant,
    /// True if no more statements are admitted.
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
        self.client_parses += other.client_parses;
        self.server_parses += other.server_parses;
        self.binds += other.binds;
        self.logins += other.logins;
    }
}
