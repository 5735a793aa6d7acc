//! The sans-I/O core: everything one worker knows and decides.
//!
//! ```text
//!  received(token, bytes) ─▶ session: login ─▶ a unit ─▶ routing ─▶ pool ─▶ forward ─┐
//!                         └▶ server: login ─▶ protocol ─▶ reply ─────────▶ session ◀─┘
//!  effects: connect, secure, close, pause, resume, move, post        output(token): bytes to write
//! ```
//!
//! A [`Core`] is given bytes, the time and mail from other workers; it appends to the outputs of its connections and
//! to a list of [`Effect`]s. It never touches a socket or a clock, so the same code runs under the event loop, in unit
//! tests and under a fuzzer. TLS is below it: the core decides when a connection begins with it ([`Effect::Secure`]) and
//! what its peer's certificate is good for; what it is given and what it gives is plaintext.
//!
//! Some folders are types with private fields, which know nothing of a `Core`: `prepared`, `parameters`, `server::protocol`,
//! `lane::{fit, cost}`, `commit::fate`, `observe::{statistics, trace}`, `memory`. The others say what a `Core` does:
//!
//! - `session`: a client, from accept to its end: login, units, what goes to a server, what the proxy answers by itself.
//! - `server`: a server connection: login, what its messages mean.
//! - `pool`: who gets which server connection.
//! - `routing`: which node a statement goes to, and what it must see there.
//! - `lane`: statements of many clients on one server connection.
//! - `commit`: answers to commits that are held back until the commits are durable elsewhere.
//! - `notify`: LISTEN for all clients of a pool by one server connection.
//! - `observe`: what is counted, traced and logged of statements.

mod api;
mod commit;
mod lane;
mod memory;
mod notify;
mod observe;
mod parameters;
mod pool;
mod prepared;
mod routing;
mod server;
mod session;
mod shared;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sql::{Classifier, ClassifierConfig};
use topology::{NodeId, View};
use wire::{Severity, Sqlstate, message};

use crate::metrics::Metrics;
use crate::settings::Settings;
use commit::Commits;
use lane::Lanes;
use memory::{Buffers, Kind, Output, Token};
use notify::Noticed;
use observe::Observing;
use parameters::Interned;
use pool::Pools;
use prepared::Statements;
use routing::StrongReads;
use server::Server;
use session::{Cancel, Client, Doorkeeper, Journal, Paused, Phase, Revision};

use api::Moving;
pub use api::{Effect, Mail, Moved, Peer, Secure};
pub use memory::token;
pub use notify::Word;
pub use observe::{statistics, trace};
pub(crate) use pool::MOST_WORKERS;
pub use pool::PoolKey;
pub(crate) use prepared::StatementName;
pub use shared::Shared;

/// Runs the state of what a server connection owes against a model of a server, by messages that a fuzzer thinks of.
#[cfg(fuzzing)]
pub fn fuzz_protocol(data: &[u8]) {
    server::protocol::model::fuzz(data);
}

/// Longest text that is parsed to find out what it is, in bytes; a longer one goes to the primary.
const CLASSIFY_MAX: usize = 64 << 10;
/// Longest unit that is kept whole before its destination is decided, and that can be sent again, in bytes.
const UNIT_MAX: usize = 64 << 10;
/// Reply bytes held back so that the statement can still be sent to another server, in bytes.
const HOLD_MAX: usize = 16 << 10;
/// Longest message of a server that is kept whole though it is not a statement's rows (errors, authentication), in bytes.
const SMALL_MAX: usize = 64 << 10;
/// Longest description (`RowDescription`, `ParameterDescription`) that is kept whole, in bytes: 1664 columns with names of 63 bytes are 140 kB,
/// 65535 parameters 262 kB.
const DESCRIPTION_MAX: usize = 512 << 10;

/// What clients are told at the end.
const DRAINING: &str = "terminating connection: the proxy is shutting down";

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
    cancels: slab::Slab<Cancel>,
    generation: u32,
    pools: Pools,
    params: Interned,
    classifier: Classifier,
    statements: Statements,
    lanes: Lanes,
    strong: StrongReads,
    commits: Commits,
    noticed: Noticed,
    observing: Observing,
    doorkeeper: Doorkeeper,
    journal: Journal,
    /// When users that were looked up were last looked at.
    revision: Revision,
    paused: Paused,
    /// Makes the driver take a turn, from any thread.
    bell: Arc<dyn Fn() + Send + Sync>,
    buffers: Buffers,
    /// Clients whose kept input can be looked at again.
    runnable: VecDeque<Token>,
    /// Clients that go to other workers at the end of this step.
    leaving: Vec<(Token, usize)>,
    /// Server connections whose `ReadyForQuery` was put off: it can be looked at again.
    unheld: VecDeque<Token>,
    /// Connections with something to write.
    dirty: Vec<Token>,
    effects: Vec<Effect>,
    draining: bool,
    /// When it began; clients count their seconds from here.
    born: Instant,
    /// The last node that was known to be primary.
    last_primary: Option<NodeId>,
    random: u64,
}

impl Core {
    /// The core of worker number `id`.
    pub fn new(id: usize, shared: Arc<Shared>, settings: Arc<Settings>, metrics: Arc<Metrics>, now: Instant) -> Core {
        let view = shared.topology.view();
        shared.topology.set_flushing(settings.gate_flush);
        Core {
            id,
            classifier: classifier(&settings),
            observing: Observing::new(&settings, &shared.secret, id, now),
            statements: Statements::new(shared.registry.clone(), settings.cache_entries),
            params: Interned::new(shared.registry.clone()),
            commits: Commits::new(&shared.topology),
            doorkeeper: Doorkeeper::new(now),
            journal: Journal::new(now),
            revision: Revision::new(now),
            settings,
            metrics,
            now,
            view,
            // As with the driver's sockets: mapped apart from the start, and not in memory where it is not used.
            clients: slab::Slab::with_capacity(1024),
            servers: slab::Slab::new(),
            cancels: slab::Slab::new(),
            generation: 0,
            pools: Pools::default(),
            lanes: Lanes::default(),
            strong: StrongReads::default(),
            noticed: Noticed::default(),
            paused: Paused::default(),
            bell: Arc::new(|| {}),
            buffers: Buffers::default(),
            runnable: VecDeque::new(),
            leaving: Vec::new(),
            unheld: VecDeque::new(),
            dirty: Vec::new(),
            effects: Vec::new(),
            draining: false,
            born: now,
            last_primary: None,
            random: 0x9e37_79b9_7f4a_7c15 ^ id as u64,
            shared,
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
        if self.lanes.any() {
            self.check_lanes(then);
            self.run();
        }
        if self.shared.topology.epoch() != self.view.epoch {
            self.refresh_view();
            self.run();
        }
        if self.commits.any_wait() {
            self.release_gates();
            self.run();
        }
        if self.strong.any_wait() {
            self.release_strong();
            self.run();
        }
    }

    /// Takes a client connection in.
    pub fn accept(&mut self, peer: Peer) -> Token {
        let index = self.clients.vacant_key();
        let token = self.token(Kind::Client, index);
        self.clients.insert(Client::new(token, peer, self.params.none().clone(), self.now, self.seconds()));
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        self.metrics.clients.add(1);
        self.metrics.clients_accepted.add(1);
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
            Kind::Server | Kind::Client => {
                // What one read of the socket gave comes in pieces (records of TLS): the first may have sent the connection on its
                // way to another worker, and the rest goes with it.
                let moved = self.effects.iter_mut().rev().find_map(|effect| match effect {
                    Effect::Move { token: of, moved, .. } if *of == token => Some(moved),
                    _ => None,
                });
                if let Some(moved) = moved {
                    moved.received(bytes);
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
                    client.phase = Phase::Startup { refused: 0 };
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
                if client.output.unread() < limit
                    && let Some(server) = server.and_then(|s| self.servers.get_mut(s))
                    && server.client == Some(token.index())
                    && std::mem::take(&mut server.paused)
                {
                    self.effects.push(Effect::Resume(server.token));
                }
                let client = &self.clients[token.index()];
                if client.paused && client.output.unread() < limit {
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

    /// A turn is at its end: what has come in has been dealt with. To be called before the effects are asked for the last time.
    pub fn end_turn(&mut self) {
        self.publish_idle();
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
        self.expire_logins();
        self.watch_relays();
        self.expire_servers();
        self.expire_clients();
        self.revoke_users();
        self.expire_cancels();
        self.look_after_listeners();
        self.noticed.look_again_if_any();
        for pool in self.pools.ids() {
            self.expire_waiters(pool);
            self.pump(pool);
        }
        self.forget_pools();
        self.observing.tick();
        self.journal.tick();
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

    /// True while there are connections of clients or to servers.
    pub fn has_connections(&self) -> bool {
        !self.clients.is_empty() || !self.servers.is_empty()
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
        if self.noticed.may_be_told() {
            self.notify_all();
        }
        if !self.leaving.is_empty() {
            self.send_home();
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
        if client.output.unread() > self.settings.buffer_limit
            && let Some(server) = client.at.server().and_then(|s| self.servers.get_mut(s))
            && !server.paused
        {
            server.paused = true;
            self.effects.push(Effect::Pause(server.token));
        }
        // The proxy's own answers count, too: who does not read them is not read.
        let client = &mut self.clients[c];
        if client.output.unread() > self.settings.buffer_limit && !client.paused {
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

    fn apply(&mut self, settings: Arc<Settings>) {
        let old = std::mem::replace(&mut self.settings, settings);
        if old.read_functions != self.settings.read_functions || old.cache_entries != self.settings.cache_entries {
            self.classifier = classifier(&self.settings);
            self.statements = Statements::new(self.shared.registry.clone(), self.settings.cache_entries);
        }
        self.observing.apply(&self.settings, self.now);
        self.shared.topology.set_flushing(self.settings.gate_flush);
        self.apply_to_pools();
    }

    fn drain(&mut self) {
        self.draining = true;
        let is_idle = |client: &Client| match client.at.server() {
            None => client.at.lane().is_none() && client.output.gates() == 0,
            Some(s) => {
                let protocol = &self.servers[s].protocol;
                protocol.status() == message::Status::Idle && protocol.is_quiet() && client.output.gates() == 0
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
