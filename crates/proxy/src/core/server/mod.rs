//! A server connection.
//!
//! - `protocol`: the answers that it owes; pure.
//! - `note`: the core's note on each message that is still to be answered.
//! - `portal`: the statements that the portals of the current transaction run.
//! - `reply`: the meaning of the server's messages for the client.
//! - `align`: alignment of a session with the values that all sessions of its namespace have.
//! - `connect`: the login to the server, and the setting of a session to a client's parameters.

mod align;
mod connect;
mod defaults;
mod note;
mod portal;
pub(in crate::core) mod protocol;
mod reply;

use std::time::Instant;

use sql::Pins;
use topology::{NodeId, Role};
use wire::message::Status;
use wire::{Sqlstate, payload};

use crate::core::over;
use crate::settings::Lifetime;
use wire::scram;

use self::defaults::Defaults;
use super::Core;
use super::lane::Lane;
use super::memory::Output;
use super::notify::Sender;
use super::observe::Timing;
use super::parameters::{Applied, Params, Tracker};
use super::prepared::baseline::{Begins, ToldValues};
use super::prepared::{CachedFunctionPlans, ServerStatements};
use super::routing::Replayed;
use super::session::Tunnel;
use super::token::Token;

pub(in crate::core) use note::{Deallocating, Dropping, Note, ProxyReply, Refusal, SentAs};
pub(in crate::core) use portal::{Portals, Run};
pub(in crate::core) use protocol::{Protocol, Request};

/// A connection to a server.
pub(crate) struct Server {
    pub(in crate::core) token: Token,
    pub(in crate::core) pool: usize,
    pub(in crate::core) node: NodeId,
    pub(in crate::core) phase: ServerPhase,
    /// The client whose unit the server works on; in a lane, the front seat's client.
    pub(in crate::core) client: Option<usize>,
    /// The units that share this connection.
    pub(in crate::core) lane: Lane,

    /// The beginning of a message that has not arrived whole.
    pub(in crate::core) input: Vec<u8>,
    pub(in crate::core) output: Output,
    /// Bytes still to come of a message whose beginning has been handled, and whether the client gets them.
    pub(in crate::core) pass: usize,
    pub(in crate::core) pass_on: bool,
    pub(in crate::core) dirty: bool,
    pub(in crate::core) paused: bool,

    pub(in crate::core) protocol: Protocol<Note>,
    /// The prepared statements that the server connection has.
    pub(in crate::core) statements: ServerStatements,
    /// Plans of functions that the server connection has cached.
    pub(in crate::core) function_plans: CachedFunctionPlans,
    pub(in crate::core) portals: Portals,
    /// The state of a BEGIN that was put off and then sent here.
    pub(in crate::core) begin: Begin,
    /// True if replies up to `ReadyForQuery` are dropped, because the client's unit goes to another server.
    pub(in crate::core) discard: bool,
    /// The answer to the replay check in front, until that check ends.
    pub(in crate::core) replayed: Option<Replayed>,
    /// True if a statement is in flight after which the session's prepared statements or parameters are unknown: nothing is sent until it is
    /// answered.
    pub(in crate::core) barrier: bool,
    /// The DEALLOCATEs of the Query in flight; nothing is sent behind it.
    pub(in crate::core) deallocating: Option<Box<Deallocating>>,

    /// The parameters that the proxy has set in the session (`params`), and the client's changes since (`tracker`).
    pub(in crate::core) params: Applied,
    pub(in crate::core) tracker: Tracker,
    /// The parameters as the server reported them (`ParameterStatus`).
    pub(in crate::core) reported: Vec<(String, String)>,
    /// Check that literals are still read as when the session began.
    pub(in crate::core) defaults: Defaults,
    /// The `ParameterDescription` of a Describe whose second message is still to come.
    pub(in crate::core) describing: Vec<u8>,

    /// Effects of the client's units since the session was last outside a transaction with nothing in flight.
    pub(in crate::core) work: Work,
    pub(in crate::core) meter: Meter,
    pub(in crate::core) own: Own,
    /// Clean-up that is due before another client gets the connection.
    pub(in crate::core) cleaning: Cleaning,

    /// True if the connection goes to the Unix socket of a server whose configured address is TCP.
    pub(in crate::core) by_socket: bool,
    /// True if the server has asked for a proof of who logs in.
    pub(in crate::core) proof_asked: bool,
    /// The FATAL error that the server sent before it closed.
    pub(in crate::core) fatal: Option<LastWord>,
    /// Set if the connection speaks TLS; holds the data for SCRAM channel binding.
    pub(in crate::core) identity: Option<Box<tls::Identity>>,
    /// The backend's process id and secret key, for cancel requests.
    pub(in crate::core) key: (u32, Vec<u8>),
    /// Cancel requests under way for this connection.
    pub(in crate::core) cancels: u8,
    /// True if the connection would be idle, but cancel requests are under way.
    pub(in crate::core) held_for_cancel: bool,
    /// True if the connection is a pool's shared connection that listens; it never runs a client's statements.
    pub(in crate::core) listener: bool,
    /// The client whose notifications this backend sends.
    pub(in crate::core) sender: Sender,
    /// True if the connection is closed without a Terminate message.
    pub(in crate::core) silent: bool,
    /// True if the connection is closed when it is next idle.
    pub(in crate::core) retire: bool,
    /// [`StatementNamespace::renewals`](crate::core::prepared::StatementNamespace::renewals) when the session began.
    pub(in crate::core) renewals: u64,

    /// Set if the connection is a client's own, for replication; it is in no pool.
    pub(in crate::core) tunnel: Option<Box<Tunnel>>,
    /// Values that the session begins with, and the number of its node's configuration then.
    pub(in crate::core) begins: Begins,
    pub(in crate::core) settings: u64,
    /// The session's answer about its own values, while it is awaited.
    pub(in crate::core) answer: Option<Box<ToldValues>>,
    /// Progress of the database's `connect_query` on this connection.
    pub(in crate::core) greeting: Greeting,
    /// Number of the user's secret that the server was offered: see `SecretSelection`.
    pub(in crate::core) offered: usize,
    /// Ticket up to which passwords had been read again then: `Core::renewed`.
    pub(in crate::core) offered_at: u64,

    pub(in crate::core) opened: Instant,
    /// True if the connection has served no client yet.
    pub(in crate::core) fresh: bool,
    /// Time at which the current client got the connection.
    pub(in crate::core) taken: Instant,
    pub(in crate::core) idle_since: Instant,
}

/// A server's last FATAL error: the server closes the connection behind it.
#[derive(Debug)]
pub(in crate::core) struct LastWord {
    /// The SQLSTATE, if the message has one.
    pub code: Option<Sqlstate>,
    /// The payload of the `ErrorResponse`.
    pub error: Box<[u8]>,
}

impl LastWord {
    /// Reads the last error from an `ErrorResponse`; `None` if the error does not end the connection.
    pub(in crate::core) fn read(error: &[u8]) -> Option<LastWord> {
        let severity = payload::error_field(error, b'V').or_else(|| payload::error_field(error, b'S'));
        let is_last = matches!(severity, Some(b"FATAL" | b"PANIC"));
        is_last.then(|| LastWord { code: payload::sqlstate(error), error: error.into() })
    }

    /// Returns the error's text.
    pub(in crate::core) fn text(&self) -> String {
        payload::error_message(&self.error).into_owned()
    }
}

/// Phase in the life of a server connection.
pub(in crate::core) enum ServerPhase {
    Connecting,
    /// SSLRequest was sent.
    Asking(Box<tls::Target>),
    /// The TLS handshake is under way.
    Securing,
    /// The proxy authenticates to the server.
    Login(Option<Box<scram::Client>>),
    Ready,
}

/// Progress of a database's `connect_query` on a connection that logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Greeting {
    /// Not sent yet.
    ToDo,
    /// Sent, not answered yet.
    Sent,
}

/// The state of a BEGIN that was put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Begin {
    /// No such BEGIN.
    No,
    /// Sent, not answered yet.
    Sent,
    /// Failed; the unit behind it is over at the next `ReadyForQuery`.
    Failed,
}

/// Certain or possible effects of a client's units.
#[derive(Debug, Default)]
pub(in crate::core) struct Work {
    /// True if a statement that may write was sent.
    pub has_written: bool,
    /// True if a statement was sent that may write more than the session's own state.
    pub changed: bool,
    /// True if a read was sent to the primary because of its hint: a function that it calls may have written. (The read may be sent again all the
    /// same.)
    pub may_have_written: bool,
    /// True if a statement that may begin a transaction was sent.
    pub may_begin: bool,
    /// True if a statement that may commit is in flight.
    pub committing: bool,
    /// True if the unit whose answer arrives has committed something.
    pub committed: bool,
    /// True if the unit whose answer arrives has failed.
    pub erred: bool,
    /// True if a command of the unit whose answer arrives has completed.
    pub completed: bool,
    /// True if the unit whose answer arrives was one ROLLBACK, or the COMMIT of a failed transaction.
    pub rolled_back: bool,
    /// True if something in the units in flight has failed.
    pub failed: bool,
    /// Pins that the client loses if the unit in flight succeeds.
    pub unpins: Pins,
    /// Time at which the current transaction was first seen to run, if transactions have a time limit; `None`: not seen yet.
    pub seen: Option<Instant>,
    /// The BEGIN of a transaction, if it was put off, and nothing but SHOW was sent since.
    pub shown: Option<crate::core::session::PutOffBegin>,
    /// The schema is changed; `true` if by DDL, `false` if a function may do so.
    pub alters: Option<bool>,
}

/// Measurements of the connection's units.
#[derive(Debug)]
pub(in crate::core) struct Meter {
    /// The shape of the unit in flight if its cost is measured, and the bytes of its answer so far.
    pub measured: u64,
    pub answered: u32,
    /// Statistics entry of the unit that is being sent.
    pub timing: Timing,
    /// Statistics entry of the unit that has just ended; that unit's rows and error.
    pub ended: Option<Timing>,
    pub rows: u64,
    pub error: Option<Sqlstate>,
}

/// The state of statements that the proxy itself has sent.
#[derive(Debug, Default)]
pub(in crate::core) struct Own {
    /// The `ErrorResponse` of a statement of the proxy's that has failed.
    pub error: Option<Vec<u8>>,
    /// The error of a Parse in a unit ahead of the client's.
    pub ahead: Option<Box<[u8]>>,
    /// True if the unit that has just ended was one of the proxy's.
    pub done: bool,
    /// True if the client gets its `ReadyForQuery` when the proxy's statement in flight is done.
    pub owes_ready: bool,
}

/// Session state that the client may have left behind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Cleaning {
    /// True if anything may be left: DISCARD ALL.
    pub all: bool,
    /// True if functions may have left anything. Prepared statements are audited, and dropped only if they were changed.
    pub functions: bool,
    /// True if prepared statements are not those that the proxy has made: all go.
    pub statements: bool,
    /// True if prepared statements were run while literals were read otherwise than when they were prepared: those go. See
    /// [`ServerStatements::runs_outside`](crate::core::prepared::ServerStatements::runs_outside).
    pub outside: bool,
    /// True if the connection may have statements under the client's own names: those are closed.
    pub aliases: bool,
    /// True if an object was made in the first schema of `search_path`, which may be `pg_temp`: DISCARD TEMP.
    pub temp: bool,
    /// True if the session may listen, though the pool's shared connection listens for the client by now.
    pub unlisten: bool,
}

impl Server {
    pub(in crate::core) fn new(
        token: Token,
        pool: usize,
        node: NodeId,
        params: std::sync::Arc<Params>,
        now: Instant,
    ) -> Server {
        Server {
            token,
            pool,
            node,
            phase: ServerPhase::Connecting,
            client: None,
            lane: Lane::new(now),
            input: Vec::new(),
            output: Output::default(),
            pass: 0,
            pass_on: false,
            dirty: false,
            paused: false,
            protocol: Protocol::new(),
            statements: ServerStatements::default(),
            function_plans: CachedFunctionPlans::default(),
            portals: Portals::default(),
            begin: Begin::No,
            discard: false,
            replayed: None,
            barrier: false,
            deallocating: None,
            params: Applied::These(params),
            tracker: Tracker::default(),
            reported: Vec::new(),
            defaults: Defaults::default(),
            describing: Vec::new(),
            work: Work::default(),
            meter: Meter { measured: 0, answered: 0, timing: Timing::none(now), ended: None, rows: 0, error: None },
            own: Own::default(),
            cleaning: Cleaning::default(),
            by_socket: false,
            proof_asked: false,
            fatal: None,
            identity: None,
            key: (0, Vec::new()),
            cancels: 0,
            held_for_cancel: false,
            listener: false,
            sender: Sender::new(),
            silent: false,
            retire: false,
            renewals: 0,
            tunnel: None,
            begins: Begins::Own,
            settings: 0,
            answer: None,
            greeting: Greeting::ToDo,
            offered: 0,
            offered_at: 0,
            opened: now,
            fresh: true,
            taken: now,
            idle_since: now,
        }
    }

    /// Notes that the end of a client's unit is sent; `request` is Sync or Query.
    pub(in crate::core) fn ends_unit(&mut self, request: Request, note: impl FnOnce(Timing) -> Note) {
        let none = Timing::none(self.meter.timing.since);
        let timing = std::mem::replace(&mut self.meter.timing, none);
        self.protocol.sent(request, note(timing));
    }

    /// True if the connection is older than `lifetime` plus the part that is added for this connection.
    pub(in crate::core) fn is_aged(&self, lifetime: Option<Lifetime>, now: Instant) -> bool {
        // Most connections are younger than the shortest lifetime.
        lifetime.is_some_and(|lifetime| {
            over(self.opened, lifetime.least, now)
                && over(self.opened, lifetime.least + lifetime.jitter.mul_f32(spread(self.key.0)), now)
        })
    }

    /// True if a client's statement, or a message that goes with it, is in flight.
    pub(in crate::core) fn is_running(&self) -> bool {
        self.protocol.all().any(|(_, note)| !matches!(note, Note::Own | Note::Audit))
    }

    /// True if the connection is logged in and has nothing to do.
    pub(in crate::core) fn is_idle(&self) -> bool {
        matches!(self.phase, ServerPhase::Ready)
            && self.client.is_none()
            && self.protocol.is_settled()
            && self.cancels == 0
    }

    /// True if the transaction in which the next message will run has failed, or may have failed by then.
    pub(in crate::core) fn may_have_failed(&self) -> bool {
        match self.protocol.status() {
            Status::Failed => true,
            Status::Transaction => self.protocol.owes_end(),
            Status::Idle => self.work.may_begin && self.protocol.owes_end(),
        }
    }

    /// True if the connection is inside a unit or, as far as is known, inside a transaction.
    pub(in crate::core) fn is_in_transaction(&self) -> bool {
        self.protocol.is_in_unit() || self.protocol.status() != Status::Idle
    }

    /// True if the server's next message answers a statement of the proxy's.
    pub(in crate::core) fn is_at_own(&self) -> bool {
        matches!(self.protocol.front(), Some((_, Note::Own | Note::Audit)))
    }

    /// Remembers the value in a `ParameterStatus` message.
    pub(in crate::core) fn report(&mut self, name: &[u8], value: &[u8]) {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        if self.defaults.hear(&name) && !self.lane.is_empty() {
            // No text of a lane sets anything: the server's configuration was loaded again.
            self.retire = true;
        }
        match self.reported.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value.into_owned(),
            None => self.reported.push((name.into_owned(), value.into_owned())),
        }
    }

    /// True if literals are no longer read as when the session began. Called while no client has the session.
    pub(in crate::core) fn reads_otherwise(&mut self) -> bool {
        self.defaults.have_changed(&self.reported, &self.params)
    }

    /// Returns the last reported value of a parameter.
    pub(in crate::core) fn reports(&self, name: &str) -> Option<&str> {
        self.reported.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Returns a number from 0 to below 1 that differs from one backend to the next, from the backend's process id: those that were started together are
/// closed apart.
fn spread(pid: u32) -> f32 {
    // Fibonacci hashing; the upper 24 bits fit an f32.
    (pid.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 24) as f32
}

impl Cleaning {
    /// The row (one column of text, `t`) that reports that prepared statements were changed.
    pub(in crate::core) const STATEMENTS_CHANGED: &[u8] = b"\0\x01\0\0\0\x01t";

    /// Returns the query for that row, for a connection that should have `count` prepared statements. Statements of the proxy are not `from_sql`.
    /// Operators are named with their schema, for the role may have another `search_path`.
    pub(in crate::core) fn ask_for_statements(count: usize) -> String {
        format!(
            "SELECT pg_catalog.count(*) OPERATOR(pg_catalog.<>) {count} OR pg_catalog.bool_or(from_sql) \
             FROM pg_catalog.pg_prepared_statements"
        )
    }

    /// True if nothing has to be cleaned up.
    pub(in crate::core) fn is_none(self) -> bool {
        self == Cleaning::default()
    }
}

impl Core {
    /// True if the connection's node is known to be a replica.
    pub(in crate::core) fn is_replica(&self, s: usize) -> bool {
        self.view.node(self.servers[s].node).is_some_and(|node| node.role == Role::Replica)
    }

    /// True if the connection's node is the current primary.
    pub(in crate::core) fn is_primary(&self, s: usize) -> bool {
        self.view.primary == Some(self.servers[s].node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Backends that were started together, so with process ids in a row, get lifetimes all over the jitter.
    #[test]
    fn lifetimes_are_spread() {
        for first in [1, 30_000, 4_000_000] {
            let mut tenths = [0; 10];
            for pid in first..first + 100 {
                let part = spread(pid);
                assert!((0.0..1.0).contains(&part), "{pid}: {part}");
                tenths[(part * 10.0) as usize] += 1;
            }
            assert!(tenths.iter().all(|count| (8..=12).contains(count)), "{first}: {tenths:?}");
        }
    }
}
