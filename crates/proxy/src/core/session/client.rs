//! A client connection.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::LocalKey;
use std::time::Instant;

use sql::{Class, Hint, Pins};
use topology::NodeId;
use watermark::{Lsn, Ticket};
use wire::message::Status;

use super::login::Login;
use super::replay::Replay;
use crate::config::Access;
use crate::config::{Consistency, RouteTo};
use crate::core::memory::Output;
use crate::core::memory::Token;
use crate::core::memory::{Idle, Seldom, Spare};
use crate::core::notify::Listening;
use crate::core::parameters::Params;
use crate::core::prepared::{Names, Statement};
use crate::core::routing::{Proof, Reach};
use crate::core::{Core, Effect, Peer, UNIT_MAX};

/// A connection from an application. Small: there may be very many that do nothing.
pub(crate) struct Client {
    pub token: Token,
    pub phase: Phase,
    /// It came over a Unix socket.
    pub local: bool,
    /// From where; None: over a Unix socket.
    pub address: Option<IpAddr>,
    /// It speaks TLS; until it has logged in, whose certificate it showed.
    pub identity: Option<Box<tls::Identity>>,
    /// Index of its pool; meaningful once logged in.
    pub pool: usize,
    pub at: At,
    /// What it has set, and what it began with and goes back to.
    pub params: Arc<Params>,
    pub base: Arc<Params>,
    /// Bytes that arrived and could not be used yet.
    pub input: Vec<u8>,
    pub output: Output,
    /// What to do with the rest of a message whose beginning was used.
    pub pass: Pass,
    /// The statements that its server is going to be chosen for.
    pub unit: Seldom<Unit>,
    /// The unit in flight, if it may be sent to another server: its replies are held back.
    pub replay: Replay,
    /// That unit may be sent again even if nobody knows how far it got: it changes nothing.
    pub repeatable: bool,
    /// What its reads must see.
    pub mark: Mark,
    /// What it calls its prepared statements.
    pub names: Names,
    /// A transaction that only the proxy knows of: the statement that begins it goes to a server with the next unit.
    pub begun: Option<Arc<Statement>>,
    /// That BEGIN came by Bind and Execute, which leave a portal; a Query leaves none.
    pub begin_leaves_portal: bool,
    /// A failed transaction that only the proxy knows of.
    pub aborted: Aborted,
    /// In a failed transaction, a statement that ends it is bound.
    pub ending: bool,
    pub pins: Pins,
    /// What it listens on by its pool's shared connection, and what it has not been told of that.
    pub listening: Option<Box<Listening>>,
    /// It may have made its commits not wait for the primary's own flush.
    pub unflushed: bool,
    /// `standard_conforming_strings` is off: its statements can't be told apart by the parser.
    pub odd_strings: bool,
    /// Where statements go for this session, by listener or `SET kingpost.route`.
    pub route: Option<RouteTo>,
    /// Whether a lookup has let it in, and by which proof.
    pub looked_up: LookedUp,
    pub consistency: Option<Consistency>,
    /// Since when it waits, or since when its statement runs, or since when it is silent.
    pub since: Instant,
    /// For how long it has last waited, in microseconds; 0 once that was told of.
    pub waited: u32,
    /// The term still stood after its unit in flight had come: the unit's answer needs no more proof.
    pub proven: bool,
    /// It waits in its pool's queue.
    pub waiting: bool,
    /// Its server owes so many answers that no more is sent to it.
    pub held_up: bool,
    /// Its kept input waits for something else than more of it.
    pub blocked: bool,
    /// Messages up to Sync are skipped, after an error that the proxy gave.
    pub skipping: bool,
    pub dirty: bool,
    /// It is not read, because its server is slow or its input is full.
    pub paused: bool,
    /// The unit being assembled was sent before: to the primary this time, if the first refused it.
    pub again: Again,
    /// When it connected: seconds after its worker began.
    pub connected: u32,
}

impl Client {
    /// It holds no server connection from now on; returns the one that it held.
    pub(in crate::core) fn leave_server(&mut self) -> Option<usize> {
        let held = self.at.server()?;
        self.at = At::Nobody;
        self.names.settle();
        Some(held)
    }
}

/// Whether a lookup has let a client in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookedUp {
    /// The configuration has.
    No,
    /// What was found is what its password was compared with.
    ByPassword,
    /// There is such a role; its certificate says that it is the client's.
    ByCertificate,
}

/// The server connection that a client is at: its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum At {
    Nobody,
    /// It holds it.
    Server(u32),
    /// It shares it with others, for the unit in flight.
    Lane(u32),
}

impl At {
    /// The one that it holds.
    pub(in crate::core) fn server(self) -> Option<usize> {
        match self {
            At::Server(s) => Some(s as usize),
            At::Nobody | At::Lane(_) => None,
        }
    }

    /// The one that it shares.
    pub(in crate::core) fn lane(self) -> Option<usize> {
        match self {
            At::Lane(s) => Some(s as usize),
            At::Nobody | At::Server(_) => None,
        }
    }

    /// The one that it holds or shares.
    pub(in crate::core) fn either(self) -> Option<usize> {
        self.server().or(self.lane())
    }

    /// Shares none from now on; returns the one that it shared.
    pub(in crate::core) fn leave_lane(&mut self) -> Option<usize> {
        let shared = self.lane();
        if shared.is_some() {
            *self = At::Nobody;
        }
        shared
    }
}

/// With the driver's 24 bytes it is what an idle connection costs: whoever adds to it has to find something to leave out, or a
/// reason (bench/README.md, idle clients). The last 8 are for LISTEN: looked at after each answer, so not in a table beside.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Client>() <= 248);

/// How far a connection has come.
pub(in crate::core) enum Phase {
    /// Waits for a startup packet.
    Startup {
        /// How often it has asked for encryption and was told that there is none.
        refused: u8,
    },
    /// TLS begins; then it is back at `Startup`.
    Securing,
    /// Proves who it is, or waits for a server to learn what to greet it with.
    Login(Box<Login>),
    /// Logged in.
    Ready,
    /// Asked for a cancel, is told when it is done.
    Cancelling,
    /// Logged in to the console.
    Console(Box<Operator>),
}

/// Who has logged in to the console.
pub(in crate::core) struct Operator {
    pub user: Arc<str>,
    pub access: Access,
    /// A command has no answer yet.
    pub asked: bool,
}

/// The rest of a message; its length is below 2 GiB, as every message's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Pass {
    /// There is none.
    No,
    /// So many bytes go to the server.
    Forward(u32),
    /// So many bytes go nowhere.
    Discard(u32),
}

impl Pass {
    pub(in crate::core) fn forward(bytes: usize) -> Pass {
        Pass::Forward(bytes as u32)
    }

    pub(in crate::core) fn discard(bytes: usize) -> Pass {
        Pass::Discard(bytes as u32)
    }
}

/// A run of messages up to `Query`, `Sync` or `Flush`: it is routed as one.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Unit {
    /// The destination is decided, the messages are being forwarded.
    pub routed: bool,
    /// Bytes looked at; once it is routed, those of them that have not been forwarded yet.
    pub scanned: usize,
    /// Ends with the `scanned` bytes, in Query or Sync; false if it was too long to wait for its end, or ends in Flush.
    pub whole: bool,
    /// Tag of the message that ends it: `Q`, `S`, `H`, `F`, or 0.
    pub end: u8,
    /// Every statement may run on a replica.
    pub read: bool,
    /// Every statement is a read, or is about its session or transaction alone: in a transaction that is declared to only read a replica
    /// can run it as well as the primary.
    pub writes_nothing: bool,
    /// It is one BEGIN, or nothing but reads: sending it twice does no harm.
    pub repeatable: bool,
    /// It has a BEGIN of its own.
    pub begins: bool,
    /// It begins with BEGIN READ ONLY.
    pub begin_read_only: bool,
    /// It takes an advisory lock: that excludes nobody on a replica.
    pub locks: bool,
    /// It has a Parse of the unnamed statement.
    pub parses_unnamed: bool,
    /// Hash of the name of the last Parse in it, if a Describe of that needs no server.
    pub describable: u64,
    /// Something in it needs a server.
    pub needs_server: bool,
    pub hint: Option<Hint>,
    /// Class of the simple query that it consists of.
    pub query: Option<Class>,
    /// By its messages it is one statement, executed at once to its end, so far.
    pub single: bool,
    /// What that statement is.
    pub sole: Sole,
    /// It has a Bind, and an Execute after that.
    pub bound: bool,
    pub executed: bool,
    /// Stands for the shape of its statement, where costs are kept; 0 if it has none.
    pub key: u64,
    /// What it must see, if it is a strong read.
    pub reach: Reach,
    /// Whether its term still stands, if its session is strong.
    pub proof: Proof,
}

impl Default for Unit {
    fn default() -> Unit {
        Unit::IDLE
    }
}

impl Idle for Unit {
    const IDLE: Unit = Unit {
        routed: false,
        scanned: 0,
        whole: false,
        end: 0,
        read: true,
        writes_nothing: true,
        repeatable: true,
        begins: false,
        begin_read_only: false,
        locks: false,
        parses_unnamed: false,
        describable: 0,
        needs_server: false,
        hint: None,
        query: None,
        single: true,
        sole: Sole::Nothing,
        bound: false,
        executed: false,
        key: 0,
        reach: Reach::Unasked,
        proof: Proof::Unasked,
    };

    fn idle() -> &'static Unit {
        &Unit::IDLE
    }

    fn spare() -> &'static LocalKey<Spare<Unit>> {
        thread_local!(static SPARE: Spare<Unit> = const { RefCell::new(Vec::new()) });
        &SPARE
    }
}

/// What the one statement of a unit is, to those who treat it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Sole {
    /// None has been seen.
    Nothing,
    /// A read like any other, that may share a server connection.
    Read,
    /// It begins a transaction.
    Begin,
    /// Something else, or more than one.
    Other,
}

/// What is known of earlier attempts at a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::core) struct Again {
    pub attempts: u8,
    /// A replica refused it.
    pub primary: bool,
    /// It has been in a shared lane, and is to have a server connection to itself.
    pub alone: bool,
    /// Its parameters were refused by a server connection so many times.
    pub setups: u8,
    /// Where it was lost.
    pub avoid: Option<NodeId>,
}

/// The least that a client's reads must see.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) enum Mark {
    /// It has written nothing.
    Nothing,
    /// It has written, and nobody has asked where that was.
    Wrote,
    /// What the primary had when this ticket's batch reached it.
    Asked(Ticket),
    /// This position of this timeline.
    At { term: u32, lsn: Lsn },
}

/// A transaction that was lost with its server while the client believes to be in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Aborted {
    No,
    /// The client has not been told.
    Untold,
    /// It has.
    Told,
}

/// What came of looking at a client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Step {
    /// So many were used.
    Used(usize),
    /// None were used, but the client's state changed: look again.
    Again,
    /// More are needed.
    More,
    /// The client must wait for something else.
    Blocked,
    /// The client is closed.
    Gone,
}

impl Client {
    pub(in crate::core) fn new(token: Token, peer: Peer, params: Arc<Params>, now: Instant, connected: u32) -> Client {
        Client {
            token,
            phase: Phase::Startup { refused: 0 },
            local: peer.local,
            address: peer.address,
            identity: None,
            pool: usize::MAX,
            at: At::Nobody,
            base: params.clone(),
            params,
            input: Vec::new(),
            output: Output::default(),
            pass: Pass::No,
            unit: Seldom::new(),
            replay: Replay::default(),
            repeatable: false,
            mark: Mark::Nothing,
            names: Names::default(),
            begun: None,
            begin_leaves_portal: false,
            aborted: Aborted::No,
            ending: false,
            pins: Pins::NONE,
            listening: None,
            unflushed: false,
            odd_strings: false,
            route: peer.route,
            looked_up: LookedUp::No,
            consistency: None,
            since: now,
            waited: 0,
            proven: false,
            waiting: false,
            held_up: false,
            blocked: false,
            skipping: false,
            dirty: false,
            paused: false,
            again: Again::default(),
            connected,
        }
    }
}

impl Client {
    /// True if it has not asked for encryption in vain.
    pub(super) fn has_not_asked(&self) -> bool {
        matches!(self.phase, Phase::Startup { refused: 0 })
    }

    /// In which state it is without a server, as `ReadyForQuery` says it.
    pub(in crate::core) fn status(&self) -> Status {
        match self.aborted {
            Aborted::No if self.begun.is_some() => Status::Transaction,
            Aborted::No => Status::Idle,
            Aborted::Untold | Aborted::Told => Status::Failed,
        }
    }
}

impl Core {
    pub(in crate::core) fn client_received(&mut self, c: usize, bytes: &[u8]) {
        if self.clients[c].input.is_empty() {
            let token = self.clients[c].token;
            let used = self.client_bytes(c, bytes);
            if self.is_client(token) && used < bytes.len() {
                let client = &mut self.clients[c];
                self.buffers.lend(&mut client.input).extend_from_slice(&bytes[used..]);
                self.bound_input(c);
            }
        } else {
            self.clients[c].input.extend_from_slice(bytes);
            self.client_resume(c);
        }
    }

    /// Looks at what was kept.
    pub(in crate::core) fn client_resume(&mut self, c: usize) {
        let token = self.clients[c].token;
        let mut input = std::mem::take(&mut self.clients[c].input);
        let used = self.client_bytes(c, &input);
        if !self.is_client(token) {
            self.buffers.give(input);
            return;
        }
        let client = &mut self.clients[c];
        // A replay may have put bytes back meanwhile: they come first.
        if used < input.len() {
            input.drain(..used);
            if client.input.is_empty() {
                client.input = input;
            } else {
                client.input.extend_from_slice(&input);
                self.buffers.give(input);
            }
        } else {
            self.buffers.give(input);
        }
        self.bound_input(c);
    }

    /// A client whose kept input has reached its bound is not read until that shrinks.
    pub(in crate::core) fn bound_input(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let limit = self.settings.buffer_limit;
        // What only waits its turn need not be read ahead far: what is kept is moved with each unit that is taken off it.
        let most = if client.blocked { UNIT_MAX } else { self.settings.max_statement + UNIT_MAX_KEPT };
        let full = client.input.len() > most || client.output.unread() > limit;
        let server_full =
            client.at.server().and_then(|s| self.servers.get(s)).is_some_and(|server| server.output.len() > limit);
        if full && !client.paused {
            client.paused = true;
            self.effects.push(Effect::Pause(client.token));
        } else if client.paused && !full && !server_full {
            client.paused = false;
            self.effects.push(Effect::Resume(client.token));
        }
    }

    /// Uses as many of the bytes as can be used now, and says how many.
    fn client_bytes(&mut self, c: usize, bytes: &[u8]) -> usize {
        let token = self.clients[c].token;
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if rest.is_empty() {
                return used;
            }
            let client = &mut self.clients[c];
            let step = match client.pass {
                Pass::Forward(left) => {
                    let left = left as usize;
                    let n = left.min(rest.len());
                    client.pass = if n == left { Pass::No } else { Pass::forward(left - n) };
                    match client.at.server() {
                        Some(s) => self.send(s, |out| out.extend_from_slice(&rest[..n])),
                        None => debug_assert!(false, "a message is forwarded to no server"),
                    }
                    if n == left {
                        self.release_if_done(c);
                        if !self.is_client(token) {
                            return used;
                        }
                    }
                    Step::Used(n)
                }
                Pass::Discard(left) => {
                    let left = left as usize;
                    let n = left.min(rest.len());
                    client.pass = if n == left { Pass::No } else { Pass::discard(left - n) };
                    Step::Used(n)
                }
                Pass::No => match client.phase {
                    Phase::Startup { .. } => self.startup(c, rest),
                    // The driver takes it.
                    Phase::Securing => Step::Blocked,
                    Phase::Login(_) => self.login_message(c, rest),
                    Phase::Ready => self.message(c, rest),
                    Phase::Cancelling => Step::Used(rest.len()),
                    Phase::Console(_) => self.console_message(c, rest),
                },
            };
            match step {
                Step::Used(n) => {
                    used += n;
                    if let Some(client) = self.clients.get_mut(c).filter(|client| client.unit.routed) {
                        client.unit.scanned = client.unit.scanned.saturating_sub(n);
                    }
                }
                Step::Again => {}
                Step::More => {
                    self.clients[c].blocked = false;
                    return used;
                }
                Step::Blocked => {
                    self.clients[c].blocked = true;
                    return used;
                }
                Step::Gone => return used,
            }
        }
    }

    /// Forgets a client; what is still to be written is handed to the driver.
    pub(in crate::core) fn close_client(&mut self, c: usize) {
        if self.clients[c].at.server().is_some() {
            self.abandon_server(c);
        }
        if self.clients[c].at.lane().is_some() {
            self.leave_lane(c);
        }
        self.stop_listening(c);
        self.count_out(c);
        self.leaves_pool(c);
        let mut client = self.clients.remove(c);
        if client.waiting {
            self.metrics.clients_waiting.sub(1);
        }
        if !client.pins.is_empty() {
            self.metrics.clients_pinned.sub(1);
        }
        client.output.retract(&mut self.buffers);
        let last = client.output.writable().to_vec();
        client.output.clear(&mut self.buffers);
        self.buffers.give(std::mem::take(&mut client.input));
        client.replay.forget(&mut self.buffers);
        self.effects.push(Effect::Close { token: client.token, last });
        self.metrics.clients.sub(1);
        self.shared.clients.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Input kept beyond one statement of the greatest length, in bytes.
const UNIT_MAX_KEPT: usize = 128 << 10;
