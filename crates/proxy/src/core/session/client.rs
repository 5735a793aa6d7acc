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

use super::ends::End;
use super::login::Login;
use super::put_off::PutOff;
use super::replay::Replay;
use super::replication::Replication;
use crate::config::Access;
use crate::config::{Consistency, RouteTo, TransactionReads};
use crate::core::memory::Output;
use crate::core::memory::Token;
use crate::core::memory::{Idle, PooledBox, Spare};
use crate::core::notify::Listening;
use crate::core::parameters::Params;
use crate::core::prepared::Names;
use crate::core::routing::{Proof, Reach};
use crate::core::{Core, Effect, Peer, UNIT_MAX};
use crate::traffic::{Refused, StatementFacts};

/// A connection from an application. Kept small: there may be very many idle clients.
pub(crate) struct Client {
    pub token: Token,
    pub phase: Phase,
    /// True if the client came over a Unix socket.
    pub local: bool,
    /// The client's address; `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// Set if the client speaks TLS. Holds the client certificate's identity until the login is done.
    pub identity: Option<Box<tls::Identity>>,
    /// Name that the operating system has for the user at the other end of a Unix socket, until the login is done.
    pub system: Option<Arc<String>>,
    /// Index of the client's pool; meaningful once it has logged in.
    pub pool: usize,
    pub at: At,
    /// `params`: the parameters that the client has set. `base`: those that it began with, which RESET goes back to.
    pub params: Arc<Params>,
    pub base: Arc<Params>,
    /// Bytes that have arrived and could not be handled yet.
    pub input: Vec<u8>,
    pub output: Output,
    /// Treatment of the rest of a message whose beginning has been handled.
    pub pass_through: PassThrough,
    /// The unit that is being collected or forwarded.
    pub unit: PooledBox<Unit>,
    /// The unit in flight, while it may be sent to another server. Its replies are held back meanwhile.
    pub replay: Replay,
    /// True if the unit in `replay` may be sent again even if its first run is in doubt, because it changes nothing.
    pub repeatable: bool,
    /// The position that this client's reads must see.
    pub read_bound: ReadBound,
    /// The names of the client's prepared statements.
    pub names: Names,
    /// A transaction whose BEGIN was put off: it goes to a server with the first unit that is no early read.
    pub begun: PutOff,
    /// A failed transaction of which only the proxy knows.
    pub aborted: Aborted,
    /// True in a failed transaction if a statement that ends it (ROLLBACK, COMMIT) has been bound.
    pub ending: bool,
    pub pins: Pins,
    /// Channels of the client on its pool's shared connection, and the notifications it has not been sent yet.
    pub listening: Option<Box<Listening>>,
    /// True if the client may have set its commits not to wait for the primary's own flush (`synchronous_commit`).
    pub unflushed: bool,
    /// True if the client has `standard_conforming_strings` off, so the parser may misread its texts.
    pub odd_strings: bool,
    /// Route of this session's statements, set by the listener or by `SET kingpost.route`.
    pub route: Option<RouteTo>,
    /// Proof by which a lookup has accepted the client, if one has.
    pub looked_up: LookedUp,
    pub consistency: Option<Consistency>,
    pub transaction_reads: Option<TransactionReads>,
    /// Start of the current state: waiting for a server connection, running a statement, or idle.
    pub since: Instant,
    /// Duration of the client's last wait for a server connection, in microseconds; 0 once it has been reported.
    pub waited: u32,
    /// True if the term still stood after the client's unit in flight had arrived: the unit's answer needs no more proof.
    pub proven: bool,
    /// True if the client waits in its pool's queue, or its strong read waits for a position or for proof.
    pub waiting: bool,
    /// True if the server connection owes [`MOST_EXPECTED`](super::MOST_EXPECTED) answers: the client's next messages wait.
    pub held_up: bool,
    /// True if the client's buffered input waits for an event, and not for more input.
    pub blocked: bool,
    /// True if the client's messages up to Sync are skipped, after an error from the proxy.
    pub skipping: bool,
    /// Progress of the client's end.
    pub end: End,
    pub dirty: bool,
    /// True if the client's socket is not read, because its server is slow or its buffered input is full.
    pub paused: bool,
    /// Results of earlier attempts at the current unit.
    pub attempts: Attempts,
    /// Time at which the client connected, in seconds since its worker started.
    pub connected: u32,
}

impl Client {
    /// Detaches the client from the server connection that it holds, and gives the slot of that connection.
    pub(in crate::core) fn leave_server(&mut self) -> Option<usize> {
        let held = self.at.server()?;
        self.at = At::Nobody;
        self.names.settle();
        Some(held)
    }
}

/// Acceptance of a client by a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookedUp {
    /// None: the configuration has the client's account.
    No,
    /// By its password, which was compared with the secret that the lookup found.
    ByPassword,
    /// By its name: the lookup found the role; the certificate or the operating system proves that it is the client's, or `trust` requires no proof.
    ByName,
}

/// The server connection that a client uses, by slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum At {
    Nobody,
    /// The client holds this server connection.
    Server(u32),
    /// The client shares this server connection with others, for the unit in flight.
    Lane(u32),
}

impl At {
    /// Returns the server connection that the client holds.
    pub(in crate::core) fn server(self) -> Option<usize> {
        match self {
            At::Server(s) => Some(s as usize),
            At::Nobody | At::Lane(_) => None,
        }
    }

    /// Returns the server connection that the client shares.
    pub(in crate::core) fn lane(self) -> Option<usize> {
        match self {
            At::Lane(s) => Some(s as usize),
            At::Nobody | At::Server(_) => None,
        }
    }

    /// Returns the server connection that the client holds or shares.
    pub(in crate::core) fn either(self) -> Option<usize> {
        self.server().or(self.lane())
    }

    /// Leaves the lane, and gives the server connection that was shared.
    pub(in crate::core) fn leave_lane(&mut self) -> Option<usize> {
        let shared = self.lane();
        if shared.is_some() {
            *self = At::Nobody;
        }
        shared
    }
}

/// With the driver's 24 bytes this is the cost of an idle connection: a new field needs another to be removed, or a reason (bench/README.md, idle
/// clients). The last 8 bytes are for LISTEN, which is looked at after each answer and so not kept in a table.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Client>() <= 248);

/// Phase in the life of a connection.
pub(in crate::core) enum Phase {
    /// Waits for a startup packet.
    Startup {
        /// Requests for encryption (SSLRequest, GSSENCRequest) that were answered with no, a bit each.
        refused: u8,
        /// True if another cluster's worker has handed the connection over: it is not handed over again.
        led: bool,
    },
    /// The TLS handshake is under way; then the phase is `Startup` again.
    Securing,
    /// Authenticates, or waits for a server connection to learn the server's parameters for the greeting.
    Login(Box<Login>),
    /// Logged in.
    Ready,
    /// A cancel request; the connection is closed when the request has been handled.
    Cancelling,
    /// Logged in to the console.
    Console(Box<Operator>),
    /// Logged in for replication: bytes are passed on as they are.
    Replicating(Replication),
}

/// A user of the console.
pub(in crate::core) struct Operator {
    pub user: Arc<str>,
    pub access: Access,
    /// True if the console is that of all clusters.
    pub whole: bool,
    /// True if a command has been sent and not answered yet.
    pub asked: bool,
}

/// The rest of a message; every message is shorter than 2 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum PassThrough {
    /// No rest.
    No,
    /// Passed on to the server: `left` bytes remain.
    Forward {
        left: u32,
        /// True if the server answers the message. (It does not answer COPY data.)
        asks: bool,
    },
    /// Number of bytes that are dropped.
    Discard(u32),
}

impl PassThrough {
    pub(in crate::core) fn forward(left: usize, asks: bool) -> PassThrough {
        PassThrough::Forward { left: left as u32, asks }
    }

    pub(in crate::core) fn discard(bytes: usize) -> PassThrough {
        PassThrough::Discard(bytes as u32)
    }
}

/// Messages up to `Query`, `Sync` or `Flush`, routed as one.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) struct Unit {
    /// True if the server has been chosen and the messages are being forwarded.
    pub routed: bool,
    /// Bytes looked at so far; once the unit is routed, how many of those are still to be forwarded.
    pub scanned: usize,
    /// True if the `scanned` bytes are the whole unit, up to Query or Sync. False if it was too long to wait for, or ends in Flush.
    pub whole: bool,
    /// Tag of the message that ends the unit: `Q`, `S`, `H`, `F`; 0 while there is none.
    pub end: u8,
    /// True if every statement may run on a replica.
    pub read: bool,
    /// True if every statement is a read, or is only about its session or transaction (SET, SAVEPOINT). In a transaction declared READ ONLY a replica
    /// can run these as well as the primary.
    pub writes_nothing: bool,
    /// True if sending the unit twice does no harm: it is one BEGIN, or only reads.
    pub repeatable: bool,
    /// True if a statement reads the time of its transaction's begin.
    pub begin_time: bool,
    /// True if the unit is a read of a transaction whose BEGIN is put off further, if the unit runs on a replica.
    pub early: bool,
    /// True if the unit contains a BEGIN.
    pub begins: bool,
    /// True if the unit's first statement is BEGIN READ ONLY.
    pub begin_read_only: bool,
    /// True if the unit needs the primary in spite of any hint: it takes an advisory lock, which would exclude no other session on a replica, or
    /// leaves something in the session (`PREPARE`), and only the primary's connection stays with its client.
    pub primary_only: bool,
    /// True if a statement waits for the replay of a standby: the unit is for a replica, however far that is behind.
    pub standby: bool,
    /// True if the unit has a Parse of the unnamed statement.
    pub parses_unnamed: bool,
    /// Hash of the name in the unit's last Parse, if the proxy can answer a Describe of that statement by itself;
    /// otherwise 0.
    pub describable: u64,
    /// True if the unit has a message that the proxy can't answer by itself.
    pub needs_server: bool,
    pub hint: Option<Hint>,
    /// Class of the simple query that the unit consists of.
    pub query: Option<Class>,
    /// True if so far the messages amount to one statement, executed once to its end.
    pub single: bool,
    /// Kind of that statement.
    pub statement_kind: SingleStatement,
    /// True if the unit has a Bind (`bound`), and an Execute behind that (`executed`).
    pub bound: bool,
    pub executed: bool,
    /// Identifies the statement's shape in the table of costs; 0: no shape.
    pub key: u64,
    /// The position that the unit must see, if it is a strong read.
    pub reach: Reach,
    /// The position for a replay check ahead of the unit, if the chosen replica is not known to have replayed it.
    pub check: Option<Lsn>,
    /// Proof that the unit's term still stands, if its session is strong.
    pub proof: Proof,
    /// Facts about the unnamed statement that the unit parses, for traffic rules.
    pub parsed: Option<StatementFacts>,
    /// Statements of the unit that traffic rules have let pass, and that are still to be passed on.
    pub admitted: u32,
    /// The refusal of one of them by a traffic rule.
    pub refused: Option<Refused>,
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
        begin_time: false,
        early: false,
        begins: false,
        begin_read_only: false,
        primary_only: false,
        standby: false,
        parses_unnamed: false,
        describable: 0,
        needs_server: false,
        hint: None,
        query: None,
        single: true,
        statement_kind: SingleStatement::Nothing,
        bound: false,
        executed: false,
        key: 0,
        reach: Reach::Unasked,
        check: None,
        proof: Proof::Unasked,
        parsed: None,
        admitted: 0,
        refused: None,
    };

    fn idle() -> &'static Unit {
        &Unit::IDLE
    }

    fn spare() -> &'static LocalKey<Spare<Unit>> {
        thread_local!(static SPARE: Spare<Unit> = const { RefCell::new(Vec::new()) });
        &SPARE
    }
}

/// The kind of a unit's one statement, where the kind gets special treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum SingleStatement {
    /// No statement has been seen yet.
    Nothing,
    /// A plain read, which may share a server connection in a lane.
    Read,
    /// A BEGIN.
    Begin,
    /// COMMIT or ROLLBACK.
    End,
    /// Another kind of statement, or several statements.
    Other,
}

/// Results of earlier attempts at a unit.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::core) struct Attempts {
    pub count: u8,
    /// True if a replica refused the unit, so the primary gets it.
    pub primary: bool,
    /// True if a replica had not replayed the unit's position: the unit is not sent behind a replay check again.
    pub behind: bool,
    /// True if the unit was in a lane, and now gets a server connection to itself.
    pub alone: bool,
    /// Number of server connections that have refused the client's parameters.
    pub setups: u8,
    /// The node on which the unit was lost.
    pub avoid: Option<NodeId>,
    /// True if traffic rules have let the unit's statements pass.
    pub admitted: bool,
}

/// The lower bound on the position that a client's reads must see.
#[derive(Debug, Clone, Copy)]
pub(in crate::core) enum ReadBound {
    /// The client has written nothing.
    Nothing,
    /// The client has written, and no ticket has been taken for the position yet.
    Wrote,
    /// The position that the primary had when the batch of this ticket reached it.
    Asked(Ticket),
    /// A known position on a known timeline.
    At { term: u32, lsn: Lsn },
}

/// A transaction that was lost with its server connection, while the client believes it is still open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Aborted {
    No,
    /// The client has not received the error for the loss.
    Untold,
    /// The client has received that error.
    Told,
}

/// The result of handling a client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Step {
    /// Number of bytes that were handled.
    Used(usize),
    /// No bytes were handled, but the client's state changed: look at the same bytes again.
    Again,
    /// More bytes are needed.
    More,
    /// The client must wait for an event; the code that returns this names the event that makes the client `runnable`.
    Blocked,
    /// The client has been closed.
    Gone,
}

impl Client {
    pub(in crate::core) fn new(token: Token, peer: Peer, params: Arc<Params>, now: Instant, connected: u32) -> Client {
        Client {
            token,
            phase: Phase::Startup { refused: 0, led: false },
            local: peer.local,
            address: peer.address,
            identity: None,
            system: peer.system,
            pool: usize::MAX,
            at: At::Nobody,
            base: params.clone(),
            params,
            input: Vec::new(),
            output: Output::default(),
            pass_through: PassThrough::No,
            unit: PooledBox::new(),
            replay: Replay::default(),
            repeatable: false,
            read_bound: ReadBound::Nothing,
            names: Names::default(),
            begun: PutOff::default(),
            aborted: Aborted::No,
            ending: false,
            pins: Pins::NONE,
            listening: None,
            unflushed: false,
            odd_strings: false,
            route: peer.route,
            looked_up: LookedUp::No,
            consistency: None,
            transaction_reads: None,
            since: now,
            waited: 0,
            proven: false,
            waiting: false,
            held_up: false,
            blocked: false,
            skipping: false,
            end: End::No,
            dirty: false,
            paused: false,
            attempts: Attempts::default(),
            connected,
        }
    }
}

impl Client {
    /// True if an event is to make the client `runnable`: it has input, or its stream has ended.
    pub(in crate::core) fn has_more(&self) -> bool {
        !self.input.is_empty() || self.end != End::No
    }

    /// True if the client has not yet requested encryption and been refused.
    pub(super) fn has_not_asked(&self) -> bool {
        matches!(self.phase, Phase::Startup { refused: 0, .. })
    }

    /// True if the client logs in for replication, and has no server connection yet.
    pub(in crate::core) fn asks_to_replicate(&self) -> bool {
        matches!(&self.phase, Phase::Login(login) if login.tunnel.is_some())
    }

    /// Returns the transaction status that `ReadyForQuery` shows while the client has no server connection.
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
            if self.is_client(token) {
                self.look_at_end(c);
            }
        } else {
            self.clients[c].input.extend_from_slice(bytes);
            self.client_resume(c);
        }
    }

    /// Handles the client's buffered input again.
    pub(in crate::core) fn client_resume(&mut self, c: usize) {
        let token = self.clients[c].token;
        let mut input = std::mem::take(&mut self.clients[c].input);
        let used = self.client_bytes(c, &input);
        if !self.is_client(token) {
            self.buffers.give(input);
            return;
        }
        let client = &mut self.clients[c];
        // A replay may have put bytes into `input` meanwhile; those come first.
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
        self.look_at_end(c);
    }

    /// Stops reading a client whose buffered input or unread output is too long, and reads it again when both have
    /// shrunk.
    pub(in crate::core) fn bound_input(&mut self, c: usize) {
        let client = &mut self.clients[c];
        let limit = self.settings.buffer_limit;
        // A client that only waits needs little read-ahead. Each unit that is taken off the buffer moves the rest, so a
        // long buffer costs CPU.
        let most = if client.blocked { UNIT_MAX } else { self.settings.max_statement + UNIT_MAX_KEPT };
        let full = client.input.len() > most || client.output.unread() > limit;
        let server_full =
            client.at.server().and_then(|s| self.servers.get(s)).is_some_and(|server| server.output.len() > limit);
        if full && !client.paused {
            client.paused = true;
            self.effects.push(Effect::Pause(client.token));
        } else if client.paused && !full && !server_full && !self.paused.is_suspended() {
            client.paused = false;
            self.effects.push(Effect::Resume(client.token));
        }
    }

    /// Handles as many of the bytes as possible, and gives their number.
    fn client_bytes(&mut self, c: usize, bytes: &[u8]) -> usize {
        let token = self.clients[c].token;
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if rest.is_empty() {
                return used;
            }
            let client = &mut self.clients[c];
            if client.end == End::Reads {
                return bytes.len();
            }
            let step = match client.pass_through {
                PassThrough::Forward { left, asks } => {
                    let left = left as usize;
                    let n = left.min(rest.len());
                    client.pass_through =
                        if n == left { PassThrough::No } else { PassThrough::forward(left - n, asks) };
                    match client.at.server() {
                        Some(s) => self.write_server(s, |out| out.extend_from_slice(&rest[..n])),
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
                PassThrough::Discard(left) => {
                    let left = left as usize;
                    let n = left.min(rest.len());
                    client.pass_through = if n == left { PassThrough::No } else { PassThrough::discard(left - n) };
                    Step::Used(n)
                }
                PassThrough::No => match client.phase {
                    Phase::Startup { .. } => self.startup(c, rest),
                    // The driver runs the handshake and takes the bytes (`Core::early`).
                    Phase::Securing => Step::Blocked,
                    Phase::Login(_) => self.login_message(c, rest),
                    Phase::Ready => self.message(c, rest),
                    Phase::Cancelling => Step::Used(rest.len()),
                    Phase::Console(_) => self.console_message(c, rest),
                    Phase::Replicating(_) => {
                        self.tunnel_sent(c, rest);
                        Step::Used(rest.len())
                    }
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

    /// Closes and forgets a client. Output that is still to be written is handed to the driver.
    pub(in crate::core) fn close_client(&mut self, c: usize) {
        if self.clients[c].at.server().is_some() {
            self.abandon_server(c);
        }
        if self.clients[c].at.lane().is_some() {
            self.leave_lane(c);
        }
        self.stop_listening(c);
        self.runs_nothing(self.clients[c].token);
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

/// Limit on buffered input beyond one statement of the greatest length, in bytes.
const UNIT_MAX_KEPT: usize = 128 << 10;
