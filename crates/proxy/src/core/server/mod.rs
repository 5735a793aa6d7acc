//! A server connection.
//!
//! - `protocol`: what it owes, pure.
//! - `note`: what the core remembers of each thing that it owes.
//! - `portal`: what the portals of the transaction in progress are of.
//! - `reply`: what its messages mean to its client.
//! - `connect`: its login, and how its session is brought to a client's parameters.

mod connect;
mod note;
mod portal;
pub(in crate::core) mod protocol;
mod reply;

use std::time::Instant;

use sql::Pins;
use topology::{NodeId, Role};
use wire::Sqlstate;
use wire::message::Status;
use wire::scram;

use super::Core;
use super::lane::Lane;
use super::memory::Output;
use super::notify::Sender;
use super::observe::Timing;
use super::parameters::{Applied, Params, Tracker};
use super::prepared::Held;
use super::token::Token;

pub(in crate::core) use note::{Answer, Dropping, Note, Refusal, SentAs};
pub(in crate::core) use portal::{Portals, Run};
pub(in crate::core) use protocol::{Protocol, Request};

/// A connection to a server.
pub(crate) struct Server {
    pub(in crate::core) token: Token,
    pub(in crate::core) pool: usize,
    pub(in crate::core) node: NodeId,
    pub(in crate::core) phase: ServerPhase,
    /// Whose unit it works on: of a lane's clients the front one's.
    pub(in crate::core) client: Option<usize>,
    /// The units that share it.
    pub(in crate::core) lane: Lane,

    /// The beginning of a message that has not arrived whole.
    pub(in crate::core) input: Vec<u8>,
    pub(in crate::core) output: Output,
    /// Bytes still to come of a message whose beginning was used, and whether the client gets them.
    pub(in crate::core) pass: usize,
    pub(in crate::core) pass_on: bool,
    pub(in crate::core) dirty: bool,
    pub(in crate::core) paused: bool,

    pub(in crate::core) protocol: Protocol<Note>,
    /// The prepared statements that it has.
    pub(in crate::core) held: Held,
    pub(in crate::core) portals: Portals,
    /// A BEGIN that was put off, once it has been sent here.
    pub(in crate::core) begin: Begin,
    /// The connection's replies up to `ReadyForQuery` go nowhere: the client's unit goes to another server.
    pub(in crate::core) discard: bool,
    /// A statement is in flight after which nobody knows what the session has (prepared statements, parameters): nothing is sent until that is answered.
    pub(in crate::core) barrier: bool,

    /// Its session's parameters: what is in force, and what its client does to them.
    pub(in crate::core) params: Applied,
    pub(in crate::core) tracker: Tracker,
    /// What it said of its parameters.
    pub(in crate::core) reported: Vec<(String, String)>,
    /// The first part of its answer to a client's Describe.
    pub(in crate::core) describing: Vec<u8>,

    /// What its client's units do, since it was last outside of a transaction with nothing in flight.
    pub(in crate::core) work: Work,
    pub(in crate::core) meter: Meter,
    pub(in crate::core) own: Own,
    /// What goes before another client gets it.
    pub(in crate::core) cleaning: Cleaning,

    /// What it said before it closed.
    pub(in crate::core) fatal: Option<String>,
    /// It speaks TLS; its certificate, for channel binding.
    pub(in crate::core) identity: Option<Box<tls::Identity>>,
    /// Process id and secret, for cancel requests.
    pub(in crate::core) key: (u32, Vec<u8>),
    /// Cancel requests on their way.
    pub(in crate::core) cancels: u8,
    /// It would be idle, but for cancel requests on their way.
    pub(in crate::core) held_for_cancel: bool,
    /// It is a pool's shared connection that listens, and never anybody's.
    pub(in crate::core) listener: bool,
    /// Whose notifications its own process sends.
    pub(in crate::core) sender: Sender,
    /// The connection is closed without a Terminate.
    pub(in crate::core) silent: bool,
    /// To be closed when it is next idle.
    pub(in crate::core) retire: bool,

    pub(in crate::core) opened: Instant,
    /// It has been of use to nobody yet.
    pub(in crate::core) fresh: bool,
    /// When its client got it.
    pub(in crate::core) taken: Instant,
    pub(in crate::core) idle_since: Instant,
}

/// How far a connection has come.
pub(in crate::core) enum ServerPhase {
    Connecting,
    /// Was asked for TLS.
    Asking(Box<tls::Target>),
    /// TLS begins.
    Securing,
    /// Proves who the proxy is.
    Login(Option<Box<scram::Client>>),
    Ready,
}

/// What has become of a BEGIN that was put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Begin {
    /// There is none.
    No,
    /// It has been sent, and not answered.
    Sent,
    /// It has failed: the unit behind it is over when the server is ready.
    Failed,
}

/// What a client's units do.
#[derive(Debug, Default)]
pub(in crate::core) struct Work {
    /// Something that may have written was sent.
    pub wrote: bool,
    /// And more than to its session.
    pub changed: bool,
    /// A read was sent to the primary because its text says so: what it calls may have written. (It may be sent again all the same.)
    pub may_have_written: bool,
    /// Something that may begin a transaction was sent.
    pub may_begin: bool,
    /// Something that may have committed is in flight.
    pub committing: bool,
    /// The unit whose answer arrives has committed something.
    pub committed: bool,
    /// It has failed.
    pub erred: bool,
    /// Something in the units in flight has failed.
    pub failed: bool,
    /// Pins of the client that are cleared if the unit in flight succeeds.
    pub unpins: Pins,
    /// The schema is changed; true: by a statement that says so.
    pub alters: Option<bool>,
}

/// What is measured of its units.
#[derive(Debug)]
pub(in crate::core) struct Meter {
    /// Shape of the unit in flight, if its cost is to be known, and bytes of its answer so far.
    pub measured: u64,
    pub answered: u32,
    /// What the end of the unit that is being sent is counted under.
    pub timing: Timing,
    /// What the end of the unit that has just ended is counted under; the unit's rows, and its error.
    pub ended: Option<Timing>,
    pub rows: u64,
    pub error: Option<Sqlstate>,
}

/// Statements of the proxy's own.
#[derive(Debug, Default)]
pub(in crate::core) struct Own {
    /// The `ErrorResponse` of one that has failed.
    pub error: Option<Vec<u8>>,
    /// What the Parse of a client's statement has failed with, in a unit ahead of the client's.
    pub ahead: Option<Box<[u8]>>,
    /// The unit that has just ended was one.
    pub done: bool,
    /// The client is told that it is ready when the one in flight is done.
    pub owes_ready: bool,
}

/// What a client has left in the session.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) struct Cleaning {
    /// Anything: the session is made as it was when it began.
    pub all: bool,
    /// What functions may have left: all but prepared statements.
    pub functions: bool,
    /// It may listen for a client that the shared connection listens for.
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
            held: Held::default(),
            portals: Portals::default(),
            begin: Begin::No,
            discard: false,
            barrier: false,
            params: Applied::These(params),
            tracker: Tracker::default(),
            reported: Vec::new(),
            describing: Vec::new(),
            work: Work::default(),
            meter: Meter { measured: 0, answered: 0, timing: Timing::none(now), ended: None, rows: 0, error: None },
            own: Own::default(),
            cleaning: Cleaning::default(),
            fatal: None,
            identity: None,
            key: (0, Vec::new()),
            cancels: 0,
            held_for_cancel: false,
            listener: false,
            sender: Sender::new(),
            silent: false,
            retire: false,
            opened: now,
            fresh: true,
            taken: now,
            idle_since: now,
        }
    }

    /// A client's unit is at its end: `request` is Sync or Query.
    pub(in crate::core) fn ends_unit(&mut self, request: Request, note: impl FnOnce(Timing) -> Note) {
        let none = Timing::none(self.meter.timing.since);
        let timing = std::mem::replace(&mut self.meter.timing, none);
        self.protocol.sent(request, note(timing));
    }

    /// True if it works on a statement of its client.
    pub(in crate::core) fn is_running(&self) -> bool {
        self.protocol.all().any(|(_, note)| !matches!(note, Note::Own))
    }

    /// True if it is logged in and has nothing to do.
    pub(in crate::core) fn is_idle(&self) -> bool {
        matches!(self.phase, ServerPhase::Ready)
            && self.client.is_none()
            && self.protocol.is_settled()
            && self.cancels == 0
    }

    /// True if the transaction in which the next message is run has failed, or may have by then.
    pub(in crate::core) fn may_have_failed(&self) -> bool {
        match self.protocol.status() {
            Status::Failed => true,
            Status::Transaction => self.protocol.owes_end(),
            Status::Idle => self.work.may_begin && self.protocol.owes_end(),
        }
    }

    /// True if it is in a transaction, as far as is known, or in the middle of a unit.
    pub(in crate::core) fn is_in_transaction(&self) -> bool {
        self.protocol.is_in_unit() || self.protocol.status() != Status::Idle
    }

    /// True if its next message is about a statement of the proxy's own.
    pub(in crate::core) fn is_at_own(&self) -> bool {
        matches!(self.protocol.front(), Some((_, Note::Own)))
    }

    /// Keeps what a `ParameterStatus` says.
    pub(in crate::core) fn report(&mut self, name: &[u8], value: &[u8]) {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        match self.reported.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value.into_owned(),
            None => self.reported.push((name.into_owned(), value.into_owned())),
        }
    }

    /// What it says that a parameter is.
    pub(in crate::core) fn reports(&self, name: &str) -> Option<&str> {
        self.reported.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Cleaning {
    /// Nothing has to go.
    pub(in crate::core) fn is_none(self) -> bool {
        self == Cleaning::default()
    }
}

impl Core {
    /// True if the server is known to be a replica.
    pub(in crate::core) fn is_replica(&self, s: usize) -> bool {
        self.view.node(self.servers[s].node).is_some_and(|node| node.role == Role::Replica)
    }

    /// True if the server is the node that takes writes.
    pub(in crate::core) fn is_primary(&self, s: usize) -> bool {
        self.view.primary == Some(self.servers[s].node)
    }
}
