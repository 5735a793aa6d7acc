//! A server connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use sql::{Changes, Pins};
use topology::{NodeId, Role};
use wire::Sqlstate;
use wire::message::Status;
use wire::scram;

use super::Core;
use super::buffer::Output;
use super::lane::Lane;
use super::notice::Sender;
use super::params::{Applied, Params};
use super::pool::PoolKey;
use super::statement::Statement;
use super::statistics::Timing;
use super::token::Token;
use super::tracked::Sets;

/// A connection to a server.
pub(crate) struct Server {
    pub(super) token: Token,
    pub(super) pool: usize,
    pub(super) node: NodeId,
    pub(super) phase: ServerPhase,
    /// Whose unit it works on: of a lane's clients the front one's.
    pub(super) client: Option<usize>,
    /// The units that share it.
    pub(super) lane: Lane,
    /// Shape of the unit in flight, if its cost is to be known, and bytes of its answer so far.
    pub(super) measured: u64,
    pub(super) answered: u32,
    /// The beginning of a message that has not arrived whole.
    pub(super) input: Vec<u8>,
    pub(super) output: Output,
    /// Bytes still to come of a message whose beginning was used, and whether the client gets them.
    pub(super) pass: usize,
    pub(super) pass_on: bool,
    /// What it owes, oldest first.
    pub(super) expect: VecDeque<Expect>,
    /// For each unit that it owes the end of, but the proxy's own: what that is counted under.
    pub(super) timings: VecDeque<Timing>,
    /// The same for the unit that is being sent.
    pub(super) timing: Timing,
    /// And for the one that has just ended; its rows, and its error.
    pub(super) ended: Option<Timing>,
    pub(super) rows: u64,
    pub(super) erred: Option<Sqlstate>,
    /// How many of these change which prepared statements there are, and how many of those are of units before the last.
    pub(super) unanswered: usize,
    pub(super) unanswered_before: usize,
    /// As of its last `ReadyForQuery`.
    pub(super) status: Status,
    /// Extended-protocol messages were sent, and no Sync after them.
    pub(super) in_unit: bool,
    /// A BEGIN that was put off has been sent, and not answered; or it has failed.
    pub(super) beginning: bool,
    pub(super) begin_failed: bool,
    /// It failed, and skips what it gets until Sync, which has not been sent.
    pub(super) skipping: bool,
    /// It reads COPY data from the client.
    pub(super) copy_in: bool,
    /// Its replies up to `ReadyForQuery` go nowhere: the unit goes to another server.
    pub(super) discard: bool,
    /// Pins of its client that are cleared if the unit in flight succeeds.
    pub(super) unpins: Pins,
    /// A statement is in flight after which it is not known which prepared statements it has.
    pub(super) barrier: bool,
    /// Something in the unit in flight has failed.
    pub(super) failed: bool,
    /// Something that may begin a transaction was sent since it last owed nothing.
    pub(super) may_begin: bool,
    /// Its client is told that it is ready when the statement of the proxy's own in flight is done.
    pub(super) owes_ready: bool,
    /// Something that may have written was sent since it was last idle.
    pub(super) wrote: bool,
    /// And more than to its session.
    pub(super) changed: bool,
    /// Something that may have committed is in flight.
    pub(super) committing: bool,
    /// The unit whose answer arrives has committed something; it has failed.
    pub(super) committed: bool,
    pub(super) unit_erred: bool,
    /// Id of the statement that is its unnamed one; 0 if none is known.
    pub(super) unnamed: u64,
    /// Ids of the statements it has, with the clock of their last use.
    pub(super) prepared: HashMap<u64, Kept>,
    pub(super) clock: u64,
    pub(super) params: Applied,
    /// What its client does to them.
    pub(super) sets: Sets,
    /// Its client changes the schema; true: by a statement that says so.
    pub(super) alters: Option<bool>,
    /// The first part of the answer to a Describe.
    pub(super) describing: Vec<u8>,
    /// What it said of its parameters.
    pub(super) reported: Vec<(String, String)>,
    /// What the proxy's own statement failed with.
    pub(super) setup_error: Option<Vec<u8>>,
    /// The unit that just ended was a statement of the proxy's own.
    pub(super) own_done: bool,
    /// What it said before it closed.
    pub(super) fatal: Option<String>,
    /// It speaks TLS; its certificate, for channel binding.
    pub(super) identity: Option<Box<tls::Identity>>,
    /// Process id and secret, for cancel requests.
    pub(super) key: (u32, Vec<u8>),
    /// Cancel requests on their way.
    pub(super) cancels: u8,
    /// It would be idle, but for cancel requests on their way.
    pub(super) held_for_cancel: bool,
    /// Its session has state of a client that left.
    pub(super) reset: bool,
    /// Its session may listen for a client that the shared connection listens for.
    pub(super) unlisten: bool,
    /// It is a pool's shared connection that listens, and never anybody's.
    pub(super) listener: bool,
    /// Whose notifications its own process sends.
    pub(super) sender: Sender,
    /// It is closed without a word.
    pub(super) silent: bool,
    /// To be closed when it is next idle.
    pub(super) retire: bool,
    pub(super) opened: Instant,
    /// It has been of use to nobody yet.
    pub(super) fresh: bool,
    /// When its client got it.
    pub(super) taken: Instant,
    pub(super) idle_since: Instant,
    pub(super) dirty: bool,
    pub(super) paused: bool,
}

/// How far a connection has come.
pub(super) enum ServerPhase {
    Connecting,
    /// Was asked for TLS.
    Asking(Box<tls::Target>),
    /// TLS begins.
    Securing,
    /// Proves who the proxy is.
    Login(Option<Box<scram::Client>>),
    Ready,
}

/// A server connection on its way to another worker.
pub struct Moved {
    pub(super) key: PoolKey,
    pub(super) server: Server,
}

/// A prepared statement that a server connection has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kept {
    /// By the connection's clock.
    pub(super) used: u64,
    /// Its columns as this connection has them are those that clients are told of. Two connections may have parsed the text on either
    /// side of a change of the schema.
    pub(super) described: bool,
}

/// What a client's Parse was sent as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parsed {
    /// As the unnamed statement.
    Unnamed,
    /// Under the server's name for it; the client has a name for it, too.
    Named,
    /// Under the server's name for it; to the client it is the unnamed one.
    Shared,
    /// Under a name that the server has already, for the sake of its error.
    Doomed,
    /// Under a name that is closed again at once, to learn whether its transaction has failed. The client has a name for it.
    Tried,
}

/// What a server owes for one message.
#[derive(Debug, Clone)]
pub(super) enum Expect {
    /// A statement of the proxy's own: nothing of its answer is for the client.
    Setup,
    /// `ParseComplete`, for the client's own Parse.
    Parse { statement: Arc<Statement>, parsed: Parsed },
    /// `ParseComplete`, for a Parse of the proxy's own.
    ParseOwn { statement: Arc<Statement>, named: bool },
    /// `CloseComplete`, for a Close of the proxy's own. 0: of a name that was only tried.
    CloseOwn(u64),
    /// Nothing: the proxy answers with this empty message when its turn comes.
    Answer {
        tag: u8,
        /// How to take back what it did, if the server skips that far after an error.
        undo: Undo,
    },
    /// `BindComplete`, for a BEGIN that was put off.
    BindOwn,
    /// `CommandComplete`, likewise.
    ExecuteOwn,
    /// `BindComplete`.
    Bind(Option<Arc<Statement>>),
    /// An error, in whose place the client is told that the statement's columns have changed.
    Outdated,
    /// `ParameterDescription` and `RowDescription` or `NoData`, for a Describe of the proxy's own.
    DescribeOwn(Arc<Statement>),
    /// `CloseComplete`, for a portal.
    Close,
    /// `ParameterDescription` and `RowDescription` or `NoData`. With the number of the schema as of then.
    Describe(Option<Arc<Statement>>, u64),
    /// Rows, and `CommandComplete`, `EmptyQueryResponse` or `PortalSuspended`. With what it changes of the session's parameters.
    Execute(Option<Arc<Changes>>),
    /// `ReadyForQuery`.
    Sync,
    /// Anything, and `ReadyForQuery`.
    Query(Option<Arc<Changes>>),
}

/// What the proxy has done to a client's statements ahead of the server.
#[derive(Debug, Clone)]
pub(super) enum Undo {
    Nothing,
    /// A name was given.
    Forget(Box<[u8]>),
    /// A name was taken from this statement.
    Restore(Box<[u8]>, Arc<Statement>),
}

impl Expect {
    /// True if it is about prepared statements, and may yet come to nothing.
    fn changes_statements(&self) -> bool {
        match self {
            Expect::Parse { .. } | Expect::ParseOwn { .. } => true,
            Expect::Answer { undo, .. } => !matches!(undo, Undo::Nothing),
            _ => false,
        }
    }

    /// True if `ReadyForQuery` ends it.
    pub(super) fn ends_unit(&self) -> bool {
        matches!(self, Expect::Setup | Expect::Sync | Expect::Query(_))
    }
}

impl Server {
    pub(super) fn new(token: Token, pool: usize, node: NodeId, params: Arc<Params>, now: Instant) -> Server {
        Server {
            token,
            pool,
            node,
            phase: ServerPhase::Connecting,
            client: None,
            lane: Lane::new(now),
            measured: 0,
            answered: 0,
            input: Vec::new(),
            output: Output::default(),
            pass: 0,
            pass_on: false,
            expect: VecDeque::new(),
            timings: VecDeque::new(),
            timing: Timing::none(now),
            ended: None,
            rows: 0,
            erred: None,
            unanswered: 0,
            unanswered_before: 0,
            status: Status::Idle,
            in_unit: false,
            beginning: false,
            begin_failed: false,
            skipping: false,
            copy_in: false,
            discard: false,
            unpins: Pins::NONE,
            barrier: false,
            failed: false,
            may_begin: false,
            owes_ready: false,
            wrote: false,
            changed: false,
            committing: false,
            committed: false,
            unit_erred: false,
            unnamed: 0,
            prepared: HashMap::new(),
            clock: 0,
            params: Applied::These(params),
            sets: Sets::default(),
            alters: None,
            describing: Vec::new(),
            reported: Vec::new(),
            setup_error: None,
            own_done: false,
            fatal: None,
            identity: None,
            key: (0, Vec::new()),
            cancels: 0,
            held_for_cancel: false,
            reset: false,
            unlisten: false,
            listener: false,
            sender: Sender::new(),
            silent: false,
            retire: false,
            opened: now,
            fresh: true,
            taken: now,
            idle_since: now,
            dirty: false,
            paused: false,
        }
    }

    /// It owes one thing more.
    pub(super) fn owe(&mut self, expect: Expect) {
        if expect.changes_statements() {
            self.unanswered += 1;
        } else if expect.ends_unit() {
            self.unanswered_before = self.unanswered;
            if !matches!(expect, Expect::Setup) {
                let none = Timing::none(self.timing.since);
                self.timings.push_back(std::mem::replace(&mut self.timing, none));
            }
        }
        self.expect.push_back(expect);
    }

    /// The oldest thing that it owed is settled: answered, or skipped.
    pub(super) fn settled(&mut self) -> Option<Expect> {
        let expect = self.expect.pop_front()?;
        if expect.changes_statements() {
            self.unanswered -= 1;
            self.unanswered_before = self.unanswered_before.saturating_sub(1);
        } else if expect.ends_unit() && !matches!(expect, Expect::Setup) {
            self.ended = self.timings.pop_front();
        }
        Some(expect)
    }

    /// True if it works on a statement of its client.
    pub(super) fn is_running(&self) -> bool {
        self.expect.iter().any(|expect| !matches!(expect, Expect::Setup))
    }

    /// True if it is logged in and has nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.phase, ServerPhase::Ready) && self.client.is_none() && self.expect.is_empty() && self.cancels == 0
    }

    /// This connection has given a statement's columns, as clients are told of them.
    pub(super) fn has_described(&mut self, statement: &Statement) {
        if let Some(kept) = self.prepared.get_mut(&statement.id) {
            kept.described = true;
        }
    }

    /// True if this connection has the statement, with the columns that clients are told of.
    pub(super) fn is_described(&self, statement: &Statement) -> bool {
        self.prepared.get(&statement.id).is_some_and(|kept| kept.described)
    }

    /// True if the transaction in which the next message is run has failed, or may have by then.
    pub(super) fn may_have_failed(&self) -> bool {
        match self.status {
            Status::Failed => true,
            Status::Transaction => self.expect.iter().any(Expect::ends_unit),
            Status::Idle => self.may_begin && self.expect.iter().any(Expect::ends_unit),
        }
    }

    /// Keeps a statement, used now.
    pub(super) fn keep(&mut self, id: u64) {
        self.clock += 1;
        self.prepared.insert(id, Kept { used: self.clock, described: false });
    }

    /// Keeps what a `ParameterStatus` says.
    pub(super) fn report(&mut self, name: &[u8], value: &[u8]) {
        let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        match self.reported.iter_mut().find(|(n, _)| *n == name) {
            Some(entry) => entry.1 = value.into_owned(),
            None => self.reported.push((name.into_owned(), value.into_owned())),
        }
    }
}

impl Core {
    /// True if the server is known to be a replica.
    pub(super) fn is_replica(&self, s: usize) -> bool {
        self.view.node(self.servers[s].node).is_some_and(|node| node.role == Role::Replica)
    }

    /// True if the server is the node that takes writes.
    pub(super) fn is_primary(&self, s: usize) -> bool {
        self.view.primary == Some(self.servers[s].node)
    }
}
