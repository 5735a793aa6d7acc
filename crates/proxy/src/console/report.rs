//! What a worker says of itself when it is asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topology::NodeId;

use crate::config::PoolMode;
use crate::core::statistics::StatementReport;
use crate::core::token::Token;
use crate::settings::Gate;

/// What a report is to have beyond its pools.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look {
    /// Every client.
    pub clients: bool,
    /// Every server connection.
    pub servers: bool,
    /// Every shape of statement.
    pub statements: bool,
}

/// What an operator has done to it, in every worker.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Server connections of this database (None: of all) are given to nobody any more, and closed when they are free.
    Pause(Option<String>),
    /// They are given out again, whoever paused them.
    Resume(Option<String>),
    /// As `Pause` of all databases, on behalf of a program whose lease ends; what an operator has paused stays so.
    PauseLeased,
    /// Ends `PauseLeased`, and nothing else.
    ResumeLeased,
    /// They are closed when they are free, and new ones opened.
    Reconnect(Option<String>),
    /// Clients and server connections of it are closed now, and it is paused.
    Kill(Option<String>),
    /// One client is closed.
    KillClient(Token),
    /// Statements are counted from here.
    ResetStatements,
}

/// One worker at one moment.
#[derive(Debug, Default)]
pub struct Report {
    /// Its number.
    pub worker: usize,
    /// Its part of every pool.
    pub pools: Vec<PoolReport>,
    /// Its clients, if they were asked for.
    pub clients: Vec<ClientReport>,
    /// Its server connections, if they were asked for.
    pub servers: Vec<ServerReport>,
    /// Shapes of statements and their numbers, if they were asked for.
    pub statements: Vec<StatementReport>,
    /// Clients that have not logged in.
    pub logging_in: usize,
}

/// One worker's part of a pool.
#[derive(Debug, Clone)]
pub struct PoolReport {
    /// As clients name it.
    pub database: Arc<str>,
    /// Whose.
    pub user: Arc<str>,
    /// When a client holds on to a server connection.
    pub mode: PoolMode,
    /// An operator has paused it.
    pub paused: bool,
    /// Clients of it.
    pub clients: usize,
    /// Of these, those that wait for a server connection.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub oldest_wait: Duration,
    /// Server connections in use.
    pub busy: usize,
    /// Idle ones.
    pub idle: usize,
    /// Those being opened.
    pub connecting: usize,
    /// Those that wait for a cancel request to arrive before they are used again.
    pub cancelling: usize,
    /// How its commits are held back; None: they are not.
    pub gate: Option<GateReport>,
    /// Since the worker started.
    pub totals: Totals,
}

/// How one worker's part of a pool holds commits back, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateReport {
    /// What is configured.
    pub settings: Gate,
    /// Server connections leave the flush of their commits to the oracle's questions.
    pub lazy: bool,
    /// Fewer relays than `settings.relays` have confirmed anything for longer than is allowed.
    pub degraded: bool,
    /// Clients of which an answer is held back.
    pub held: usize,
    /// For how long the first of these has been.
    pub longest: Duration,
}

/// What a pool has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Times a server connection was given to a client.
    pub assignments: u64,
    /// Times one came back.
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
    /// Its name inside its worker.
    pub token: Token,
    /// Who; empty before it has said so.
    pub user: Arc<str>,
    /// Of which database.
    pub database: Arc<str>,
    /// `login`, `waiting`, `active`, `idle`, `console`.
    pub state: &'static str,
    /// Since when it is connected.
    pub connected: Instant,
    /// Since when it waits, or since when its statement runs.
    pub since: Option<Instant>,
    /// The server connection it holds.
    pub server: Option<Token>,
    /// What it calls itself.
    pub application: String,
    /// Prepared statements it has names for.
    pub prepared: usize,
    /// What keeps it on its server connection.
    pub pins: sql::Pins,
    /// It speaks TLS.
    pub tls: bool,
    /// From where; None for a Unix socket. Filled in by the driver.
    pub address: Option<SocketAddr>,
    /// Where it came in. Likewise.
    pub local: Option<SocketAddr>,
}

/// A server connection.
#[derive(Debug, Clone)]
pub struct ServerReport {
    /// Its name inside its worker.
    pub token: Token,
    /// Who.
    pub user: Arc<str>,
    /// Of which database, as clients name it.
    pub database: Arc<str>,
    /// On which node.
    pub node: NodeId,
    /// `login`, `active`, `idle`, `being_canceled`, `closing`.
    pub state: &'static str,
    /// It is closed as soon as nobody uses it.
    pub retire: bool,
    /// Since when it is open or being opened.
    pub connected: Instant,
    /// Since when it is in its state.
    pub since: Instant,
    /// The client that holds it.
    pub client: Option<Token>,
    /// The server's process.
    pub pid: u32,
    /// It speaks TLS.
    pub tls: bool,
    /// Statements on it, if it is a shared lane.
    pub lane: Option<LaneReport>,
    /// Prepared statements it has.
    pub prepared: Vec<u64>,
    /// What its session is called at the moment.
    pub application: String,
    /// To where; None for a Unix socket. Filled in by the driver.
    pub address: Option<SocketAddr>,
    /// From where. Likewise.
    pub local: Option<SocketAddr>,
}

impl ClientReport {
    /// What keeps it on its server connection, by name.
    pub fn pinned_by(&self) -> impl Iterator<Item = &'static str> + use<> {
        let pins = self.pins;
        sql::Pins::NAMES.iter().filter(move |(pin, _)| pins.0 & pin.0 != 0).map(|(_, name)| *name)
    }
}

/// A server connection that is a shared lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneReport {
    /// Statements on it that have not been answered.
    pub statements: usize,
    /// Statements let in since it last had none.
    pub admitted: u32,
    /// Since when the front one runs.
    pub since: Instant,
    /// Nobody enters any more.
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
