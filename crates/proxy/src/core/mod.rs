//! The sans-I/O core: everything one worker knows and decides.
//!
//! ```text
//!  received(token, bytes) ─▶ session: login ─▶ a unit ─▶ routing ─▶ pool ─▶ forward ─┐
//!                         └▶ server: login ─▶ protocol ─▶ reply ─────────▶ session ◀─┘
//!  effects: connect, secure, close, pause, resume, move, post        output(token): bytes to write
//! ```
//!
//! A [`Core`] is given bytes, the time and messages from other workers. It appends to the outputs of its connections and to a list of [`Effect`]s. It
//! never touches a socket or a clock, so the same code runs under the event loop, in unit tests and under a fuzzer. TLS is a layer below: the core
//! decides when a connection starts TLS ([`Effect::Secure`]) and whether the peer's certificate is good enough; all bytes that the core reads and
//! writes are plaintext. Some folders are types with private fields, independent of a `Core`: `prepared`, `parameters`, `server::protocol`,
//! `lane::{fit, cost}`, `commit::fate`, `observe::{statistics, trace}`, `memory`. The others are the operations of a `Core`:
//!
//! - `session`: a client, from accept to its end: login, units, messages to a server, answers by the proxy itself.
//! - `server`: a server connection: login, interpretation of its messages.
//! - `pool`: assignment of server connections to clients.
//! - `routing`: choice of the node for a statement, and the position that it must see there.
//! - `lane`: statements of many clients on one server connection.
//! - `commit`: answers to commits that are held back until the commits are durable elsewhere.
//! - `notify`: LISTEN for all clients of a pool by one server connection.
//! - `observe`: statistics, traces and logs of statements.

mod api;
mod commit;
pub(crate) mod directory;
mod lane;
pub(crate) mod membership;
mod memory;
mod notify;
mod observe;
mod parameters;
pub(crate) mod paused;
mod pool;
mod prepared;
pub(crate) mod report;
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
use crate::verify::{Question, Verdict};
use commit::Commits;
use lane::Lanes;
use memory::{Buffers, Kind, Output, Token};
use notify::PendingNotifications;
use observe::Observing;
use parameters::Interned;
use paused::Paused;
use pool::Pools;
use prepared::Statements;
use routing::{ReplayChecks, StrongReads};
use server::Server;
use session::{Cancel, Client, End, Journal, Leavers, Phase, PreAuthConnections, Revision, TrafficAdmission};

pub use api::{CoreMessage, Destination, Effect, Moved, Peer, Secure};
use api::{Moving, Newcomer};
pub use memory::token;
pub use notify::ListenerMessage;
pub use observe::{statistics, trace};
pub(crate) use pool::MOST_WORKERS;
pub use pool::PoolKey;
pub(crate) use prepared::{Registry, StatementName};
pub use shared::Shared;

/// Checks `server::protocol` (the answers that a server connection still owes) against a model of a server, with messages made from the fuzzer's
/// bytes.
#[cfg(fuzzing)]
pub fn fuzz_protocol(data: &[u8]) {
    server::protocol::model::fuzz(data);
}

/// Longest statement text that is parsed to classify it, in bytes. A longer statement goes to the primary.
const CLASSIFY_MAX: usize = 64 << 10;
/// Longest unit (see [`session`]) that is buffered whole before its node is chosen, and that can be sent again, in
/// bytes.
const UNIT_MAX: usize = 64 << 10;
/// Most reply bytes of one unit that are held back so that the unit can still be sent to another server.
const HOLD_MAX: usize = 16 << 10;
/// Longest server message outside of a result's rows (an error, an authentication request) that is buffered whole, in
/// bytes.
const SMALL_MAX: usize = 64 << 10;
/// Longest description (`RowDescription`, `ParameterDescription`) that is kept whole, in bytes: 1664 columns with names of 63 bytes are 140 kB,
/// 65535 parameters 262 kB.
const DESCRIPTION_MAX: usize = 512 << 10;

/// The text of the FATAL error that clients get when the proxy shuts down.
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
    replay_checks: ReplayChecks,
    commits: Commits,
    pending_notifications: PendingNotifications,
    observing: Observing,
    pre_auth: PreAuthConnections,
    /// Replication clients that wait for a primary, oldest first; no more than there are clients.
    awaiting_primary: VecDeque<Token>,
    traffic_admission: TrafficAdmission,
    journal: Journal,
    leavers: Leavers,
    /// Time of the last check of users that were looked up.
    revision: Revision,
    paused: Paused,
    /// Wakes the driver for a turn; may be called from any thread.
    wake: Arc<dyn Fn() + Send + Sync>,
    buffers: Buffers,
    /// Clients whose buffered input is to be looked at again in this step.
    runnable: VecDeque<Token>,
    /// Clients that move to another worker at the end of this step.
    leaving: Vec<(Token, Destination)>,
    /// Server connections whose `ReadyForQuery` was put off and can now be handled.
    unheld: VecDeque<Token>,
    /// Connections that have output for the driver to write.
    dirty: Vec<Token>,
    effects: Vec<Effect>,
    draining: bool,
    /// Up to which ticket passwords were read again: see `renewals`.
    renewed: u64,
    /// Number of RECONNECT orders of operators that this worker has received. Every worker receives each.
    reconnects: u64,
    /// Start of the worker; [`Client::connected`] counts seconds from here.
    born: Instant,
    /// The node that was primary last, also while there is none.
    last_primary: Option<NodeId>,
    random: u64,
}

impl Core {
    /// Creates the core of worker number `id`.
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
            pre_auth: PreAuthConnections::new(now),
            awaiting_primary: VecDeque::new(),
            traffic_admission: TrafficAdmission::default(),
            journal: Journal::new(now),
            leavers: Leavers::default(),
            revision: Revision::new(now),
            settings,
            metrics,
            now,
            view,
            // The slab's memory is mapped once, up front; the pages that no client has used yet take no physical
            // memory.
            clients: slab::Slab::with_capacity(1024),
            servers: slab::Slab::new(),
            cancels: slab::Slab::new(),
            generation: 0,
            pools: Pools::default(),
            lanes: Lanes::default(),
            strong: StrongReads::default(),
            replay_checks: ReplayChecks::default(),
            pending_notifications: PendingNotifications::default(),
            paused: Paused::default(),
            wake: Arc::new(|| {}),
            buffers: Buffers::default(),
            runnable: VecDeque::new(),
            leaving: Vec::new(),
            unheld: VecDeque::new(),
            dirty: Vec::new(),
            effects: Vec::new(),
            draining: false,
            renewed: 0,
            reconnects: 0,
            born: now,
            last_primary: None,
            random: 0x9e37_79b9_7f4a_7c15 ^ id as u64,
            shared,
        }
    }

    /// Sets the call that wakes the driver for a turn, from any thread: made when a position that a client waits for
    /// has been reached.
    pub fn wake_by(&mut self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.wake = wake;
    }

    // --- calls of the driver ---

    /// Begins a new turn of the event loop at `now`.
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

    /// Takes in a client connection that the acceptor has accepted.
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

    /// Handles `bytes` (plaintext) from the peer of this connection.
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
                // One read of the socket can give several TLS records, so several calls. The first may have sent the
                // connection on its way to another worker (`Effect::Move`): the bytes of the later ones travel with it.
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

    /// Bytes that the core was given and has not used. The driver asks once, when it carries out [`Effect::Secure`].
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

    /// Continues a connection after its TLS handshake.
    pub fn secured(&mut self, token: Token, identity: tls::Identity) {
        match token.kind() {
            Kind::Client if self.is_client(token) => {
                let client = &mut self.clients[token.index()];
                if matches!(client.phase, Phase::Securing) {
                    client.phase = Phase::Startup { refused: 0, led: false };
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

    /// Handles a failure of TLS on a connection, which is then treated as [`closed`](Core::closed).
    pub fn insecure(&mut self, token: Token, why: &str) {
        self.metrics.tls_failures.add(1);
        if token.kind() == Kind::Client {
            tracing::info!(why, "a client's TLS failed");
        }
        self.closed(token, why);
    }

    /// Continues a connection that the core requested by [`Effect::Connect`] and that is now established.
    pub fn connected(&mut self, token: Token) {
        match token.kind() {
            Kind::Server if self.is_server(token) => self.server_connected(token.index()),
            Kind::Cancel if self.is_cancel(token) => self.cancel_connected(token.index()),
            _ => {}
        }
        self.run();
    }

    /// Handles a connection that broke, or could not be made: the peer reads nothing more. The driver still has the socket open.
    pub fn closed(&mut self, token: Token, why: &str) {
        match token.kind() {
            Kind::Client if self.is_client(token) => self.close_client(token.index()),
            Kind::Server if self.is_server(token) => self.server_closed(token.index(), why),
            Kind::Cancel if self.is_cancel(token) => self.cancel_done(token.index()),
            _ => {}
        }
        self.run();
    }

    /// Returns the bytes that the driver is to write to this connection.
    pub fn output(&self, token: Token) -> Option<&Output> {
        match token.kind() {
            Kind::Client if self.is_client(token) => Some(&self.clients[token.index()].output),
            Kind::Server if self.is_server(token) => Some(&self.servers[token.index()].output),
            Kind::Cancel if self.is_cancel(token) => Some(&self.cancels[token.index()].output),
            _ => None,
        }
    }

    /// Removes the first `count` bytes of the connection's output, which the driver has written.
    pub fn written(&mut self, token: Token, count: usize) {
        let limit = self.settings.buffer_limit / 2;
        match token.kind() {
            Kind::Client if self.is_client(token) => {
                let client = &mut self.clients[token.index()];
                client.output.written(count, &mut self.buffers);
                if client.end == End::Reads && client.output.is_empty() {
                    return self.close_client(token.index());
                }
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
                    // The client's server connection may still be too slow for the client to be read again.
                    self.bound_input(token.index());
                }
            }
            Kind::Server if self.is_server(token) => {
                let server = &mut self.servers[token.index()];
                server.output.written(count, &mut self.buffers);
                if server.output.len() < limit
                    && let Some(c) = server.client
                    && self.clients[c].paused
                {
                    self.bound_input(c);
                }
            }
            Kind::Cancel if self.is_cancel(token) => {
                self.cancels[token.index()].output.written(count, &mut self.buffers);
            }
            _ => {}
        }
    }

    /// Returns the next connection that has something to write.
    pub fn next_dirty(&mut self) -> Option<Token> {
        let token = self.dirty.pop()?;
        match token.kind() {
            Kind::Client if self.is_client(token) => self.clients[token.index()].dirty = false,
            Kind::Server if self.is_server(token) => self.servers[token.index()].dirty = false,
            _ => {}
        }
        Some(token)
    }

    /// Ends a turn: all input has been handled. The driver calls this before it takes the effects for the last time.
    pub fn end_turn(&mut self) {
        self.publish_idle();
    }

    /// Moves the effects since the last call to the end of `into`.
    pub fn take_effects(&mut self, into: &mut Vec<Effect>) {
        into.append(&mut self.effects);
    }

    /// Handles a message from another worker or from the control thread.
    pub fn deliver(&mut self, message: CoreMessage) {
        match message {
            CoreMessage::Want { key, node, from } => self.wanted(&key, node, from),
            CoreMessage::Yield { key, node, from } => self.yield_idle(&key, node, from),
            CoreMessage::Room => self.room(),
            CoreMessage::Cancel { pid, secret, from, requester } => self.cancel(pid, &secret, from, requester),
            CoreMessage::Cancelled(requester) => {
                if self.is_client(requester) {
                    self.close_client(requester.index());
                }
            }
            CoreMessage::Listen { key, message } => self.about_listening(&key, message),
            CoreMessage::Settings(settings, _in_effect) => self.apply(settings),
            CoreMessage::Renewed(ticket) => self.renewed(ticket),
            CoreMessage::Answer { client, bytes } => {
                if self.is_client(client) {
                    self.console_answer(client.index(), &bytes);
                }
            }
            CoreMessage::Account { client, answer } => {
                if self.is_client(client) {
                    self.looked_up(client.index(), answer);
                    if self.is_client(client) {
                        self.runnable.push_back(client);
                    }
                }
            }
            CoreMessage::Verified { client, verdict } => {
                if self.is_client(client) {
                    self.verified(client.index(), verdict);
                    if self.is_client(client) {
                        self.runnable.push_back(client);
                    }
                }
            }
            CoreMessage::Operate(operation) => self.operate(&operation),
            CoreMessage::Drain => self.drain(),
        }
        self.run();
    }

    /// Enforces time limits and does other periodic work. The driver calls this a few times a second.
    pub fn tick(&mut self) {
        self.expire_logins();
        self.expire_awaiting_primary();
        self.watch_relays();
        self.expire_servers();
        self.fill_pools();
        self.retire_outdated(None);
        self.ask_for_settings();
        self.expire_clients();
        self.expire_leavers();
        self.revoke_users();
        self.expire_cancels();
        self.look_after_listeners();
        self.pending_notifications.look_again_if_any();
        for pool in self.pools.ids() {
            self.expire_waiters(pool);
            self.pump(pool);
            self.notify_waiters(pool);
        }
        self.forget_pools();
        self.observing.tick();
        self.journal.tick();
        let classified = self.classifier.counters();
        self.metrics.classify_hits.set(classified.hits);
        self.metrics.classify_misses.set(classified.misses);
        self.run();
    }

    /// Carries out [`Effect::LookUp`]: asks for the user's account. The answer comes as [`CoreMessage::Account`].
    pub fn look_up(&self, user: &str, client: Token) -> Result<(), &'static str> {
        self.metrics.user_lookups.add(1);
        self.shared.accounts.ask(user, (self.id, client))
    }

    /// True while clients are connected.
    pub fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Carries out [`Effect::Verify`]. The answer comes as [`CoreMessage::Verified`]; at once, if no authenticator accepts the question.
    pub fn verify(&mut self, question: Question) {
        let (_, client) = question.waiting;
        if !self.shared.verifier.ask(question) {
            self.deliver(CoreMessage::Verified { client, verdict: Verdict::Unknown });
        }
    }

    /// True while there are connections of clients or to servers.
    pub fn has_connections(&self) -> bool {
        self.has_clients() || !self.servers.is_empty()
    }

    // --- shared by the parts ---

    /// Seconds since the worker started; saturates after 136 years.
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

    /// Lets clients and server connections that were held up go on. The loop ends: each enters its queue only by an
    /// event of its own or of its peer.
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
        if self.pending_notifications.may_be_told() {
            self.notify_all();
        }
        if !self.leaving.is_empty() {
            self.send_away();
        }
    }

    /// Appends to a client's output.
    fn write_client(&mut self, c: usize, write: impl FnOnce(&mut Vec<u8>)) {
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
        // The proxy's own answers count as well: a client that does not read them is not read from.
        let client = &mut self.clients[c];
        if client.output.unread() > self.settings.buffer_limit && !client.paused {
            client.paused = true;
            self.effects.push(Effect::Pause(client.token));
        }
    }

    /// Appends to a server's output.
    fn write_server(&mut self, s: usize, write: impl FnOnce(&mut Vec<u8>)) {
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

    /// Sends the client a FATAL error and closes it.
    fn fatal(&mut self, c: usize, code: Sqlstate, text: &str) {
        self.fatal_with_detail(c, code, text, "");
    }

    fn fatal_with_detail(&mut self, c: usize, code: Sqlstate, text: &str, detail: &str) {
        let client = &mut self.clients[c];
        client.output.retract(&mut self.buffers);
        // A stream that is passed on unread may have stopped in the middle of a message: an error there would be misread.
        if !matches!(client.phase, Phase::Replicating(_)) {
            let out = client.output.append(&mut self.buffers);
            message::error_with_detail(out, Severity::Fatal, code, text, detail, "");
        }
        self.close_client(c);
    }

    /// Sends the client a server's FATAL error, as the server sent it, and closes it.
    fn fatal_as(&mut self, c: usize, error: &[u8]) {
        let client = &mut self.clients[c];
        client.output.retract(&mut self.buffers);
        let out = client.output.append(&mut self.buffers);
        message::message(out, b'E', |out| out.extend_from_slice(error));
        self.close_client(c);
    }

    /// Closes a client that broke the protocol, with an error that says how.
    fn violation(&mut self, c: usize, text: &str) {
        self.metrics.protocol_errors.add(1);
        self.fatal(c, Sqlstate::PROTOCOL_VIOLATION, text);
    }

    /// Returns a pseudo-random number (xorshift64*): for balancing, nothing else.
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
        if old.read_functions != self.settings.read_functions {
            // The known meaning of a prepared text depends on them, too.
            for pool in self.pools.iter_mut() {
                pool.namespace.schema().changes(self.now, true);
            }
        }
        self.observing.apply(&self.settings, self.now);
        self.shared.topology.set_flushing(self.settings.gate_flush);
        self.apply_to_pools();
    }

    /// Closes these clients with 57P01, as far as they are still there.
    fn shut_out(&mut self, clients: &[Token], why: &str) {
        for token in clients {
            if self.is_client(*token) {
                self.fatal(token.index(), Sqlstate::ADMIN_SHUTDOWN, why);
            }
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        let is_idle = |client: &Client| match client.at.server() {
            None => {
                let open = client.at.lane().is_some() || client.begun.reads().is_some();
                !open && client.output.gates() == 0 && client.end != End::Reads
            }
            Some(s) => {
                let protocol = &self.servers[s].protocol;
                protocol.status() == message::Status::Idle && protocol.is_quiet() && client.output.gates() == 0
            }
        };
        let idle: Vec<Token> =
            self.clients.iter().filter(|(_, client)| is_idle(client)).map(|(_, client)| client.token).collect();
        self.shut_out(&idle, DRAINING);
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

/// True if `limit` has passed since `since`.
fn over(since: Instant, limit: Duration, now: Instant) -> bool {
    now.saturating_duration_since(since) >= limit
}
