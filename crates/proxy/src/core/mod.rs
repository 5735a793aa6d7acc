//! The sans-I/O core: everything one worker knows and decides.
//!
//! ```text
//!  received(token, bytes) ─▶ client: login ─▶ assemble a unit ─▶ route ─▶ pool ─▶ forward ─┐
//!                         └▶ server: login ─▶ follow the replies ─────────▶ forward ◀──────┘
//!  effects: connect, secure, close, pause, resume, move, post        output(token): bytes to write
//! ```
//!
//! A [`Core`] is given bytes, the time and mail from other workers; it appends to the outputs of its connections and
//! to a list of [`Effect`]s. It never touches a socket or a clock, so the same code runs under the event loop, in unit
//! tests and under a fuzzer. TLS is below it: the core decides when a connection begins with it ([`Effect::Secure`]) and
//! what its peer's certificate is good for; what it is given and what it gives is plaintext.
//!
//! - `login`: from accept to the first `ReadyForQuery` of a client.
//! - `unit`: a client without a server: what its next statements are, and where they go.
//! - `strong`: reads that wait until a replica has all they must see.
//! - `lane`: statements of many clients on one server connection; `fit`, `cost`: which of them may share one.
//! - `begin`: BEGIN, which goes to the server with what follows it.
//! - `forward`: a client with a server: its messages, one by one.
//! - `tracked`: parameters that clients set, and take with them.
//! - `reply`: a server's messages.
//! - `connect`: a server's login.
//! - `pool`: who gets which server connection.
//! - `listen`, `listener`: LISTEN by one server connection for all clients of a pool; `notice`: what it hears.
//! - `lost`: what a client is told when its server is gone.
//! - `gate`: answers to commits that are held back until these are durable elsewhere.
//! - `cancel`: cancel requests.
//! - `console`: clients of the console database, and what operators do.

mod aborted;
mod begin;
pub mod buffer;
mod cancel;
mod client;
mod connect;
mod console;
mod cost;
mod fit;
mod forward;
pub(crate) mod gate;
mod lane;
mod limits;
mod listen;
mod listener;
mod local;
mod login;
mod lost;
mod notice;
mod params;
mod pool;
mod reply;
mod route;
mod seldom;
mod server;
pub mod statement;
pub mod statistics;
mod strong;
pub mod token;
pub mod trace;
mod tracked;
mod unit;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use sql::{Classifier, ClassifierConfig};
use topology::{Address, Durable, MOST_RELAYS, NodeId, Topology, View};
use wire::scram::SaltedKeys;
use wire::{Severity, Sqlstate, message};

use crate::accounts::{Accounts, Answer};
use crate::config::{Access, RouteTo};
use crate::console::Operation;
use crate::metrics::Metrics;
use crate::settings::Settings;
use buffer::{Buffers, Output};
use client::{Client, Phase};
use params::Params;
use pool::{Pool, PoolKey};
use server::Server;
use statement::{Registry, Statements};
use token::{Kind, Token};

pub use listener::Word;
pub use pool::Budget;
pub use server::Moved;

/// Longest text that is parsed to find out what it is, in bytes; a longer one goes to the primary.
const CLASSIFY_MAX: usize = 64 << 10;
/// Longest unit that is kept whole before its destination is decided, and that can be sent again, in bytes.
const UNIT_MAX: usize = 64 << 10;
/// Reply bytes held back so that the statement can still be sent to another server, in bytes.
const HOLD_MAX: usize = 16 << 10;
/// Longest message that is kept whole though it is not a statement (errors, Describe, Close, authentication), in bytes.
const SMALL_MAX: usize = 64 << 10;

/// What clients are told at the end.
const DRAINING: &str = "terminating connection: the proxy is shutting down";

/// What all workers of a process share. Locks in here are taken when connections are made, never for a statement.
pub struct Shared {
    /// Who is primary, and how far the replicas are.
    pub topology: Arc<Topology>,
    /// Prepared statements by content.
    pub registry: Arc<Registry>,
    /// Server connections in all workers.
    pub budgets: Mutex<HashMap<(PoolKey, NodeId), Arc<Budget>>>,
    /// Derived SCRAM keys of the last login to a server, by user.
    pub keys: Mutex<HashMap<String, Arc<SaltedKeys>>>,
    /// Users that are looked up on a server.
    pub accounts: Accounts,
    /// What clients have shown of themselves, by user: enough to log in to the servers as them.
    pub(crate) passed: Mutex<HashMap<String, Passed>>,
    /// Clients by address, database and user.
    pub(crate) counts: Mutex<limits::Counts>,
    /// Clients of all workers that have logged in.
    pub(crate) inside: AtomicUsize,
    /// Whose notifications servers' processes send.
    pub(crate) senders: notice::Senders,
    /// Numbers of the probes that say what has been heard of these.
    pub(crate) tide: notice::Tide,
    /// Bytes of notifications on their way between workers.
    pub(crate) notices: AtomicUsize,
    /// Makes cancel keys and the salts of users that do not exist.
    pub secret: [u8; 32],
    /// Clients of all workers.
    pub clients: AtomicUsize,
    /// Number of workers.
    pub workers: usize,
    /// Takes what is traced; nothing is set where nothing is.
    pub sink: OnceLock<trace::Sink>,
}

impl Shared {
    /// Of a process with so many workers, in which nothing has happened. `secret` is random.
    pub fn new(topology: Arc<Topology>, workers: usize, secret: [u8; 32]) -> Arc<Shared> {
        Arc::new(Shared {
            topology,
            registry: Arc::default(),
            budgets: Mutex::default(),
            keys: Mutex::default(),
            accounts: Accounts::default(),
            passed: Mutex::default(),
            counts: Mutex::default(),
            inside: AtomicUsize::new(0),
            senders: notice::Senders::default(),
            tide: notice::Tide::default(),
            notices: AtomicUsize::new(0),
            secret,
            clients: AtomicUsize::new(0),
            workers,
            sink: OnceLock::new(),
        })
    }
}

/// With what the proxy can log in as a user, because a client has.
#[derive(Clone, Default)]
pub(crate) struct Passed {
    /// By SCRAM, where the server has the verifier that the client was compared with.
    pub(crate) keys: Option<Arc<SaltedKeys>>,
    /// By MD5.
    pub(crate) md5: Option<wire::md5::Verifier>,
    /// Where the lookup gave it in clear text.
    pub(crate) password: Option<String>,
}

/// What a client connection came with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Peer {
    /// The listener's fixed destination.
    pub route: Option<RouteTo>,
    /// It came over a Unix socket: there is no TLS, and none is asked for.
    pub local: bool,
    /// From where; None: over a Unix socket.
    pub address: Option<IpAddr>,
}

/// What one worker sends another.
pub enum Mail {
    /// An idle server connection is wanted. Any answer is an [`Effect::Move`].
    Want {
        /// Of which pool.
        key: PoolKey,
        /// On which node.
        node: NodeId,
        /// By which worker.
        from: usize,
    },
    /// A cancel request for one of this worker's clients.
    Cancel {
        /// As the requester sent it.
        pid: u32,
        /// Likewise.
        secret: Vec<u8>,
        /// Which worker is to be told when it is done.
        from: usize,
        /// The requester's connection there.
        requester: Token,
    },
    /// A cancel request has had its effect, or none: the requester may be closed.
    Cancelled(Token),
    /// About a pool's shared connection that listens.
    Listen {
        /// Which pool.
        key: PoolKey,
        /// What.
        word: Word,
    },
    /// A new configuration.
    Settings(Arc<Settings>),
    /// What the console says to one of this worker's clients.
    Answer {
        /// Whose command it was.
        client: Token,
        /// Messages up to `ReadyForQuery`.
        bytes: Vec<u8>,
    },
    /// What a lookup has found for one of this worker's clients.
    Account {
        /// Whose login it was.
        client: Token,
        /// What there is to compare its proof with.
        answer: Answer,
    },
    /// An operator's doing.
    Operate(Operation),
    /// Idle clients are closed now; the others when their transaction ends.
    Drain,
}

/// What the driver is asked to do.
pub enum Effect {
    /// Connect a socket; then [`Core::connected`] or [`Core::closed`].
    Connect {
        /// For this connection.
        token: Token,
        /// Where to.
        address: Address,
    },
    /// From here on the connection speaks TLS. What the core still has to write to it goes before that, in clear;
    /// what it was given and has not used ([`Core::early`]) is TLS already. Then [`Core::secured`] or [`Core::insecure`].
    Secure {
        /// Which.
        token: Token,
        /// How.
        with: Secure,
    },
    /// Write `last` as far as that goes at once, and close. The token is no longer known to the core.
    Close {
        /// Which.
        token: Token,
        /// What was still to be written.
        last: Vec<u8>,
    },
    /// Stop reading.
    Pause(Token),
    /// Read again.
    Resume(Token),
    /// Give a server connection, socket and all, to another worker.
    Move {
        /// Which socket. The token is no longer known to the core.
        token: Token,
        /// To which worker.
        to: usize,
        /// What goes with the socket: for [`Core::adopt`].
        server: Box<Moved>,
    },
    /// Ask the console: its answer comes by [`Mail::Answer`].
    Ask {
        /// For this client.
        client: Token,
        /// The command.
        text: String,
        /// What the client may do.
        access: Access,
    },
    /// Look a user up: what is found comes by [`Mail::Account`].
    LookUp {
        /// For this client.
        client: Token,
        /// Its name.
        user: Arc<str>,
    },
    /// Send mail to a worker.
    Post {
        /// To which.
        to: usize,
        /// What.
        mail: Mail,
    },
}

/// How a connection begins with TLS.
#[derive(Debug)]
pub enum Secure {
    /// As the server.
    Accept {
        /// With the certificates of the day.
        acceptor: Arc<tls::Acceptor>,
        /// The client began with it, without SSLRequest.
        direct: bool,
    },
    /// As the client.
    Connect(tls::Target),
}

/// One worker's state.
pub struct Core {
    id: usize,
    shared: Arc<Shared>,
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    now: Instant,
    view: Arc<View>,
    clients: slab::Slab<Client>,
    servers: slab::Slab<Server>,
    cancels: slab::Slab<cancel::Cancel>,
    generation: u32,
    pools: Vec<Pool>,
    pool_ids: HashMap<PoolKey, usize>,
    params: HashMap<Arc<Params>, ()>,
    no_params: Arc<Params>,
    classifier: Classifier,
    statements: Statements,
    costs: cost::Costs,
    statistics: statistics::Statistics,
    dice: trace::Dice,
    /// Server connections that are lanes at the moment.
    lanes: Vec<usize>,
    /// Strong reads that wait; None until there is one.
    strong: Option<Box<strong::Strong>>,
    /// Clients whose answers are held back; None until there is one.
    held: Option<Box<gate::Held>>,
    /// Of a turn, in `release_gates`.
    due: Vec<Token>,
    /// What the relays have made durable, on the view's term.
    durable: Arc<Durable>,
    /// Since when fewer relays than this have confirmed anything.
    short: [Option<Instant>; MOST_RELAYS + 1],
    was_degraded: bool,
    /// The oracle's questions flush, so commits need not.
    flushes: bool,
    /// Makes the driver take a turn, from any thread.
    bell: Arc<dyn Fn() + Send + Sync>,
    buffers: Buffers,
    /// Clients whose kept input can be looked at again.
    runnable: VecDeque<Token>,
    /// Server connections that the end of an answer of was put off: it can be looked at again.
    unheld: VecDeque<Token>,
    /// Clients with notifications that they have not got yet; and whether one of them may be able to get them by now.
    noticed: Vec<Token>,
    look_again: bool,
    /// Connections with something to write.
    dirty: Vec<Token>,
    /// Clients that have not logged in, oldest first.
    logins: VecDeque<(Instant, Token)>,
    /// Clients that have not shown who they are.
    logging_in: usize,
    /// When clients' time limits were last looked at.
    looked: Instant,
    effects: Vec<Effect>,
    draining: bool,
    paused: console::Paused,
    /// When it began; clients count their seconds from here.
    born: Instant,
    /// The last node that was known to be primary.
    last_primary: Option<topology::NodeId>,
    random: u64,
}

impl Core {
    /// The core of worker number `id`.
    pub fn new(id: usize, shared: Arc<Shared>, settings: Arc<Settings>, metrics: Arc<Metrics>, now: Instant) -> Core {
        let view = shared.topology.view();
        let durable = shared.topology.durable();
        shared.topology.set_flushing(settings.gate_flush);
        let flushes = shared.topology.flushes();
        let no_params = Arc::new(Params(Vec::new()));
        Core {
            id,
            classifier: classifier(&settings),
            statistics: statistics::Statistics::new(settings.statements_kept, now),
            statements: Statements::new(shared.registry.clone(), settings.cache_entries),
            dice: trace::Dice::new(&shared.secret, id),
            shared,
            settings,
            metrics,
            now,
            view,
            // As with the driver's sockets: mapped apart from the start, and not in memory where it is not used.
            clients: slab::Slab::with_capacity(1024),
            servers: slab::Slab::new(),
            cancels: slab::Slab::new(),
            generation: 0,
            pools: Vec::new(),
            pool_ids: HashMap::new(),
            params: HashMap::from([(no_params.clone(), ())]),
            no_params,
            costs: cost::Costs::new(),
            lanes: Vec::new(),
            strong: None,
            held: None,
            due: Vec::new(),
            durable,
            short: [None; MOST_RELAYS + 1],
            was_degraded: false,
            flushes,
            bell: Arc::new(|| {}),
            buffers: Buffers::default(),
            runnable: VecDeque::new(),
            unheld: VecDeque::new(),
            noticed: Vec::new(),
            look_again: false,
            dirty: Vec::new(),
            logins: VecDeque::new(),
            logging_in: 0,
            looked: now,
            effects: Vec::new(),
            draining: false,
            paused: console::Paused::default(),
            born: now,
            last_primary: None,
            random: 0x9e37_79b9_7f4a_7c15 ^ id as u64,
        }
    }

    /// What makes the driver take a turn, from any thread: called when something has been reached that a client waits for.
    pub fn wake_by(&mut self, bell: Arc<dyn Fn() + Send + Sync>) {
        self.bell = bell;
    }

    // --- what the driver calls ---

    /// A new turn begins at this time.
    pub fn turn(&mut self, now: Instant) {
        let then = std::mem::replace(&mut self.now, now);
        self.metrics.turns.add(1);
        if !self.lanes.is_empty() {
            self.check_lanes(then);
            self.run();
        }
        if self.shared.topology.epoch() != self.view.epoch {
            self.refresh_view();
            self.run();
        }
        if self.held.is_some() || !self.due.is_empty() {
            self.release_gates();
            self.run();
        }
        if self.strong.is_some() {
            self.release_strong();
            self.run();
        }
    }

    /// Takes a client connection in.
    pub fn accept(&mut self, peer: Peer) -> Token {
        let index = self.clients.vacant_key();
        let token = self.token(Kind::Client, index);
        self.clients.insert(Client::new(token, peer, self.no_params.clone(), self.now, self.seconds()));
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        self.metrics.clients.add(1);
        self.metrics.clients_accepted.add(1);
        self.logins.push_back((self.now, token));
        self.count_in(index);
        token
    }

    /// Bytes have arrived.
    pub fn received(&mut self, token: Token, bytes: &[u8]) {
        match token.kind() {
            Kind::Client if self.is_client(token) => {
                self.metrics.bytes_from_clients.add(bytes.len() as u64);
                if let Some(pool) = self.pools.get_mut(self.clients[token.index()].pool) {
                    pool.totals.received += bytes.len() as u64;
                }
                self.client_received(token.index(), bytes);
            }
            Kind::Server if self.is_server(token) => {
                self.metrics.bytes_from_servers.add(bytes.len() as u64);
                self.pools[self.servers[token.index()].pool].totals.sent += bytes.len() as u64;
                self.server_received(token.index(), bytes);
            }
            Kind::Cancel if self.is_cancel(token) => self.cancel_received(token.index(), bytes),
            Kind::Server => {
                // What one read of the socket gave comes in pieces (records of TLS): the first may have sent the connection on its
                // way to another worker, and the rest goes with it.
                let moved = self.effects.iter_mut().rev().find_map(|effect| match effect {
                    Effect::Move { token: of, server, .. } if *of == token => Some(server),
                    _ => None,
                });
                if let Some(moved) = moved {
                    moved.server.input.extend_from_slice(bytes);
                }
            }
            _ => {}
        }
        self.run();
    }

    /// Bytes that the core was given and has not used: to be asked for once, when [`Effect::Secure`] is carried out.
    pub fn early(&mut self, token: Token) -> Vec<u8> {
        match token.kind() {
            Kind::Client if self.is_client(token) => {
                let client = &mut self.clients[token.index()];
                if std::mem::take(&mut client.paused) {
                    self.effects.push(Effect::Resume(token));
                }
                std::mem::take(&mut client.input)
            }
            Kind::Server if self.is_server(token) => std::mem::take(&mut self.servers[token.index()].input),
            _ => Vec::new(),
        }
    }

    /// A connection's handshake is done.
    pub fn secured(&mut self, token: Token, identity: tls::Identity) {
        match token.kind() {
            Kind::Client if self.is_client(token) => {
                let client = &mut self.clients[token.index()];
                if matches!(client.phase, Phase::Securing) {
                    client.phase = Phase::Startup;
                    client.identity = Some(Box::new(identity));
                    self.metrics.clients_secured.add(1);
                }
            }
            Kind::Server if self.is_server(token) => self.server_secured(token.index(), identity),
            Kind::Cancel if self.is_cancel(token) => self.cancel_ready(token.index()),
            _ => {}
        }
        self.run();
    }

    /// A connection's TLS can't go on: as [`closed`](Core::closed).
    pub fn insecure(&mut self, token: Token, why: &str) {
        self.metrics.tls_failures.add(1);
        if token.kind() == Kind::Client {
            tracing::info!(why, "a client's TLS failed");
        }
        self.closed(token, why);
    }

    /// A connection that the core asked for is there.
    pub fn connected(&mut self, token: Token) {
        match token.kind() {
            Kind::Server if self.is_server(token) => self.server_connected(token.index()),
            Kind::Cancel if self.is_cancel(token) => self.cancel_connected(token.index()),
            _ => {}
        }
        self.run();
    }

    /// The peer closed the connection, or it broke, or could not be made. The driver has not closed it yet.
    pub fn closed(&mut self, token: Token, why: &str) {
        match token.kind() {
            Kind::Client if self.is_client(token) => self.close_client(token.index()),
            Kind::Server if self.is_server(token) => self.server_closed(token.index(), why),
            Kind::Cancel if self.is_cancel(token) => self.cancel_done(token.index()),
            _ => {}
        }
        self.run();
    }

    /// What is to be written to a connection.
    pub fn output(&self, token: Token) -> Option<&Output> {
        match token.kind() {
            Kind::Client if self.is_client(token) => Some(&self.clients[token.index()].output),
            Kind::Server if self.is_server(token) => Some(&self.servers[token.index()].output),
            Kind::Cancel if self.is_cancel(token) => Some(&self.cancels[token.index()].output),
            _ => None,
        }
    }

    /// The first `count` bytes of the output were written.
    pub fn wrote(&mut self, token: Token, count: usize) {
        let limit = self.settings.buffer_limit / 2;
        match token.kind() {
            Kind::Client if self.is_client(token) => {
                let client = &mut self.clients[token.index()];
                client.output.wrote(count, &mut self.buffers);
                let server = client.at.either();
                if client.output.len() < limit
                    && let Some(server) = server.and_then(|s| self.servers.get_mut(s))
                    && server.client == Some(token.index())
                    && std::mem::take(&mut server.paused)
                {
                    self.effects.push(Effect::Resume(server.token));
                }
                let client = &self.clients[token.index()];
                if client.paused && client.output.len() < limit {
                    // Whether it may be read again depends on its server, too.
                    self.bound_input(token.index());
                }
            }
            Kind::Server if self.is_server(token) => {
                let server = &mut self.servers[token.index()];
                server.output.wrote(count, &mut self.buffers);
                if server.output.len() < limit
                    && let Some(c) = server.client
                    && self.clients[c].paused
                {
                    self.bound_input(c);
                }
            }
            Kind::Cancel if self.is_cancel(token) => {
                self.cancels[token.index()].output.wrote(count, &mut self.buffers);
            }
            _ => {}
        }
    }

    /// The next connection that has something to write.
    pub fn next_dirty(&mut self) -> Option<Token> {
        let token = self.dirty.pop()?;
        match token.kind() {
            Kind::Client if self.is_client(token) => self.clients[token.index()].dirty = false,
            Kind::Server if self.is_server(token) => self.servers[token.index()].dirty = false,
            _ => {}
        }
        Some(token)
    }

    /// The effects since the last call, moved into `into`.
    pub fn take_effects(&mut self, into: &mut Vec<Effect>) {
        into.append(&mut self.effects);
    }

    /// Mail from another worker or from control.
    pub fn mail(&mut self, mail: Mail) {
        match mail {
            Mail::Want { key, node, from } => self.wanted(&key, node, from),
            Mail::Cancel { pid, secret, from, requester } => self.cancel(pid, &secret, from, requester),
            Mail::Cancelled(requester) => {
                if self.is_client(requester) {
                    self.close_client(requester.index());
                }
            }
            Mail::Listen { key, word } => self.about_listening(&key, word),
            Mail::Settings(settings) => self.apply(settings),
            Mail::Answer { client, bytes } => {
                if self.is_client(client) {
                    self.console_answer(client.index(), &bytes);
                }
            }
            Mail::Account { client, answer } => {
                if self.is_client(client) {
                    self.looked_up(client.index(), answer);
                    if self.is_client(client) {
                        self.runnable.push_back(client);
                    }
                }
            }
            Mail::Operate(operation) => self.operate(&operation),
            Mail::Drain => self.drain(),
        }
        self.run();
    }

    /// Looks after everything that has a time limit. To be called a few times a second.
    pub fn tick(&mut self) {
        while let Some(&(since, token)) = self.logins.front() {
            if self.now.saturating_duration_since(since) < self.settings.login_timeout {
                break;
            }
            self.logins.pop_front();
            if self.is_client(token)
                && !matches!(self.clients[token.index()].phase, Phase::Ready | Phase::Cancelling | Phase::Console(_))
            {
                self.fail_login(token.index(), Sqlstate::INVALID_AUTHORIZATION, "login took longer than login_timeout");
            }
        }
        self.watch_relays();
        self.expire_servers();
        self.expire_clients();
        self.expire_cancels();
        self.look_after_listeners();
        self.look_again = !self.noticed.is_empty();
        for pool in 0..self.pools.len() {
            self.expire_waiters(pool);
            self.pump(pool);
        }
        let kept_back = self.statistics.kept_back();
        if kept_back > 0 {
            tracing::warn!(statements = kept_back, "more slow statements than are logged");
        }
        let classified = self.classifier.counters();
        self.metrics.classify_hits.set(classified.hits);
        self.metrics.classify_misses.set(classified.misses);
        self.run();
    }

    /// Carries out [`Effect::LookUp`]; an error if it can't be done.
    pub fn look_up(&self, user: &str, client: Token) -> Result<(), &'static str> {
        self.metrics.user_lookups.add(1);
        self.shared.accounts.ask(user, (self.id, client))
    }

    /// True while clients are connected.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    // --- shared by the parts ---

    /// Seconds since the worker began; in 136 years it stands still.
    fn seconds(&self) -> u32 {
        u32::try_from(self.now.saturating_duration_since(self.born).as_secs()).unwrap_or(u32::MAX)
    }

    fn token(&mut self, kind: Kind, index: usize) -> Token {
        self.generation = self.generation.wrapping_add(1);
        Token::new(kind, self.generation, index)
    }

    fn is_client(&self, token: Token) -> bool {
        self.clients.get(token.index()).is_some_and(|client| client.token == token)
    }

    fn is_server(&self, token: Token) -> bool {
        self.servers.get(token.index()).is_some_and(|server| server.token == token)
    }

    fn is_cancel(&self, token: Token) -> bool {
        self.cancels.get(token.index()).is_some_and(|cancel| cancel.token == token)
    }

    /// Lets clients that were held up go on. Bounded: a client is put in the queue only by an event of its own or of its server.
    fn run(&mut self) {
        loop {
            if let Some(token) = self.unheld.pop_front() {
                if self.is_server(token) {
                    self.server_received(token.index(), &[]);
                }
            } else if let Some(token) = self.runnable.pop_front() {
                if self.is_client(token) {
                    self.client_resume(token.index());
                }
            } else {
                break;
            }
        }
        if std::mem::take(&mut self.look_again) {
            self.notify_all();
        }
    }

    /// Appends to a client's output.
    fn tell(&mut self, c: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let client = &mut self.clients[c];
        write(client.output.append(&mut self.buffers));
        if !client.dirty {
            client.dirty = true;
            self.dirty.push(client.token);
        }
        if client.output.len() > self.settings.buffer_limit
            && let Some(server) = client.at.server().and_then(|s| self.servers.get_mut(s))
            && !server.paused
        {
            server.paused = true;
            self.effects.push(Effect::Pause(server.token));
        }
        // The proxy's own answers count, too: who does not read them is not read.
        let client = &mut self.clients[c];
        if client.output.len() > self.settings.buffer_limit && !client.paused {
            client.paused = true;
            self.effects.push(Effect::Pause(client.token));
        }
    }

    /// Appends to a server's output.
    fn send(&mut self, s: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let server = &mut self.servers[s];
        write(server.output.append(&mut self.buffers));
        if !server.dirty {
            server.dirty = true;
            self.dirty.push(server.token);
        }
        if server.output.len() > self.settings.buffer_limit
            && let Some(client) = server.client.and_then(|c| self.clients.get_mut(c))
            && !client.paused
        {
            client.paused = true;
            self.effects.push(Effect::Pause(client.token));
        }
    }

    /// Tells a client why, and closes it.
    fn fatal(&mut self, c: usize, code: Sqlstate, text: &str) {
        let client = &mut self.clients[c];
        client.output.retract(&mut self.buffers);
        message::error(client.output.append(&mut self.buffers), Severity::Fatal, code, text, "");
        self.close_client(c);
    }

    /// The client broke the protocol.
    fn violation(&mut self, c: usize, text: &str) {
        self.metrics.protocol_errors.add(1);
        self.fatal(c, Sqlstate::PROTOCOL_VIOLATION, text);
    }

    /// A pseudo-random number (xorshift64*): for balancing, nothing else.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The shared copy of these parameters.
    fn intern_params(&mut self, params: Params) -> Arc<Params> {
        if let Some((known, ())) = self.params.get_key_value(&params) {
            return known.clone();
        }
        if self.params.len() >= 64 && self.params.len().is_power_of_two() {
            self.params.retain(|params, ()| Arc::strong_count(params) > 1);
        }
        let params = Arc::new(params);
        self.params.insert(params.clone(), ());
        params
    }

    fn apply(&mut self, settings: Arc<Settings>) {
        let old = std::mem::replace(&mut self.settings, settings);
        if old.read_functions != self.settings.read_functions || old.cache_entries != self.settings.cache_entries {
            self.classifier = classifier(&self.settings);
            self.statements = Statements::new(self.shared.registry.clone(), self.settings.cache_entries);
        }
        if old.statements_kept != self.settings.statements_kept {
            self.statistics = statistics::Statistics::new(self.settings.statements_kept, self.now);
        }
        self.shared.topology.set_flushing(self.settings.gate_flush);
        self.apply_to_pools();
    }

    fn drain(&mut self) {
        self.draining = true;
        let is_idle = |client: &Client| match client.at.server() {
            None => client.at.lane().is_none() && client.output.gates() == 0,
            Some(s) => {
                let server = &self.servers[s];
                server.status == message::Status::Idle
                    && server.expect.is_empty()
                    && !server.in_unit
                    && client.output.gates() == 0
            }
        };
        let idle: Vec<Token> =
            self.clients.iter().filter(|(_, client)| is_idle(client)).map(|(_, client)| client.token).collect();
        for token in idle {
            if self.is_client(token) {
                self.fatal(token.index(), Sqlstate::ADMIN_SHUTDOWN, DRAINING);
            }
        }
    }
}

fn classifier(settings: &Settings) -> Classifier {
    Classifier::new(ClassifierConfig {
        max_entries: settings.cache_entries,
        max_text: CLASSIFY_MAX,
        max_bytes: 16 << 20,
        read_functions: settings.read_functions.clone(),
    })
}

/// A time limit that is over.
fn over(since: Instant, limit: Duration, now: Instant) -> bool {
    now.saturating_duration_since(since) >= limit
}
