//! Notes of the core on each message that a server connection still has to answer.

use std::sync::Arc;

use sql::Changes;
use wire::message;
use wire::{Severity, Sqlstate};

use super::protocol;
use crate::core::observe::Timing;
use crate::core::prepared::{Alias, Dropped, SchemaSnapshot, Statement, Undo};
use crate::core::routing::ReplayCheck;
use crate::traffic::{Refused, Traffic};

/// Kind of a message to a server. Read when the message is answered or skipped.
#[derive(Debug)]
pub(in crate::core) enum Note {
    /// A client's message with nothing to remember: a Describe or Close of a portal, COPY data.
    Client,
    /// A message in a unit of the proxy's. The client gets none of the answer, and waits for the unit's end.
    Own,
    /// As `Own`: the Query that checks that the connection has the prepared statements of the proxy, and no others.
    Audit,
    /// A message in a unit of the proxy's, sent ahead of the client's unit. The client does not wait for the unit's
    /// end.
    Ahead,
    /// A message of a replay check, ahead of the client's unit.
    ReplayCheck(ReplayCheck),
    /// A Parse of this statement, under its server name, in a unit of the proxy's ahead of the client's.
    ParseAhead(Arc<Statement>),
    /// A message that the proxy inserted in a client's unit: the client gets its answer only if it fails.
    Inserted,
    /// The Bind or Execute of a BEGIN that was put off. The client has already got its answer.
    Begin,

    /// A client's Parse.
    Parse { statement: Arc<Statement>, sent_as: SentAs, undo: Undo },
    /// A Parse that the proxy inserted, under the statement's server name.
    ParseOwn(Arc<Statement>),
    /// A Parse that the proxy inserted: the client's unnamed statement, which this server connection did not have.
    ParseUnnamed,
    /// A Close that the proxy inserted, of the statement with this id: the connection has too many, or no client uses
    /// the statement.
    Evict(u64),
    /// A Parse or Close of a statement under the client's own name, for a text that names it; the alias before. `ahead`: in a unit of the proxy's ahead
    /// of the client's.
    Alias { name: Box<[u8]>, was: Option<Alias>, ahead: bool },
    /// A Close that the proxy inserted, after a Parse that was only a trial (`SentAs::Tried`).
    CloseOwn,

    /// A client's Parse of this name, which is in use: sent so that the server gives the error.
    Doomed(Box<[u8]>),
    /// A client's Bind of this statement. `None`: of a statement that may have been prepared by SQL.
    Bind(Option<Arc<Statement>>),
    /// A client's Bind or Describe of this name, which it has not prepared: sent so that the server gives the error.
    Missing(Box<[u8]>),
    /// A client's Execute of a portal that the proxy has already run: sent so that the server gives an error.
    Finished(Box<[u8]>),
    /// A Bind with a name that no server has, so that it fails: the client gets this refusal in place of the server's
    /// error.
    Refused(Refusal),
    /// A client's Describe of a statement: the client's name for it, and the version of the schema when it was sent.
    Describe { statement: Arc<Statement>, name: Box<[u8]>, schema: u64, undo: Undo },
    /// A Describe that the proxy inserted, to check that this connection returns the columns that the client was sent.
    Check(Arc<Statement>),
    /// A Describe that the proxy inserted behind a fresh Parse of this statement's text, to learn its present meaning. `held`: the Parse has given
    /// the statement to this connection; otherwise it was without a name.
    Ask { statement: Arc<Statement>, held: bool, asked: SchemaSnapshot },
    /// A client's Execute: its changes of parameters and channels, and the prepared statements that it drops.
    Execute { changes: Option<Arc<Changes>>, dropped: Option<Box<Dropping>> },
    /// Placeholder without a message: the proxy answers the client when everything before has been answered.
    Answer { answer: ProxyReply, undo: Undo },

    /// A client's Sync.
    Sync(Timing),
    /// A client's Query or FunctionCall.
    Query { changes: Option<Arc<Changes>>, undo: Undo, dropped: Option<Box<Dropping>>, timing: Timing },
    /// A client's Query that the proxy refuses: the server got a text that fails, and the client gets this refusal.
    RefusedQuery { why: Refusal, undo: Undo, timing: Timing },
    /// As `RefusedQuery`, with this `ErrorResponse` for the client.
    FailedQuery { error: Box<[u8]>, undo: Undo, timing: Timing },
}

/// The name under which a client's Parse was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum SentAs {
    /// As the unnamed statement, as the client sent it.
    Unnamed,
    /// Under the statement's server name.
    Named,
    /// Under a name that is closed at once, to learn whether the transaction has failed.
    Tried,
}

/// An answer from the proxy to a client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum ProxyReply {
    /// A message without a payload: `ParseComplete` (`1`), `CloseComplete` (`3`).
    Empty(u8),
    /// `CommandComplete`.
    Complete(&'static str),
}

/// Reason for which the proxy refuses a client's statement that the server would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Refusal {
    /// The statement's columns differ from those that the client was sent.
    Outdated,
    /// The statement takes an advisory lock, on a replica.
    LockOnReplica,
    /// The statement exports a snapshot or takes one, on a replica.
    SnapshotOnReplica,
    /// The statement declares a cursor WITH HOLD on a replica, where the client does not stay after the transaction.
    HoldOnReplica,
    /// A traffic rule does not let the statement pass.
    Rule(Refused),
}

/// Reversal of a statement that drops prepared statements, in case it fails or is skipped.
#[derive(Debug)]
pub(in crate::core) struct Dropping {
    /// Undoes the change of the client's names.
    pub names: Undo,
    /// Undoes the change of the server connection's statements; `None` if there was none.
    pub statements: Option<Dropped>,
}

/// DEALLOCATEs in a client's Query of statements that the client has prepared by the protocol.
#[derive(Debug)]
pub(in crate::core) struct Deallocating {
    /// Number of the Query's statements that have completed.
    pub completed: usize,
    /// The number of the statement in its text, and the name that it drops.
    pub drops: Vec<(usize, Box<[u8]>)>,
}

impl Note {
    /// Returns a client's Query about which nothing is known.
    pub(in crate::core) fn query(timing: Timing) -> Note {
        Note::Query { changes: None, undo: Undo::Nothing, dropped: None, timing }
    }

    /// Returns a client's Execute about which nothing is known.
    pub(in crate::core) fn execute() -> Note {
        Note::Execute { changes: None, dropped: None }
    }
}

impl Note {
    /// True if the client gets `ReadyForQuery` when this message is answered.
    pub(in crate::core) fn ends_clients_unit(&self) -> bool {
        use Note::{FailedQuery, Query, RefusedQuery, Sync};
        matches!(self, Sync(_) | Query { .. } | RefusedQuery { .. } | FailedQuery { .. })
    }

    /// Takes out the undos of this message's changes to the client's names, in the order in which they have to be
    /// carried out.
    pub(in crate::core) fn take_undo(&mut self) -> [Undo; 2] {
        let of_dropped = |dropped: &mut Option<Box<Dropping>>| {
            dropped.as_mut().map_or(Undo::Nothing, |dropped| std::mem::take(&mut dropped.names))
        };
        match self {
            Note::Parse { undo, .. } | Note::Describe { undo, .. } | Note::Answer { undo, .. } => {
                [std::mem::take(undo), Undo::Nothing]
            }
            Note::RefusedQuery { undo, .. } | Note::FailedQuery { undo, .. } => [std::mem::take(undo), Undo::Nothing],
            Note::Execute { dropped, .. } => [of_dropped(dropped), Undo::Nothing],
            Note::Query { undo, dropped, .. } => [of_dropped(dropped), std::mem::take(undo)],
            Note::Client | Note::Own | Note::Audit | Note::Begin => Default::default(),
            Note::Ahead | Note::ParseAhead(_) | Note::ReplayCheck(_) | Note::Inserted => Default::default(),
            Note::ParseOwn(_) | Note::ParseUnnamed | Note::Evict(_) | Note::CloseOwn => Default::default(),
            Note::Alias { .. } => Default::default(),
            Note::Doomed(_) | Note::Bind(_) | Note::Missing(_) | Note::Refused(_) => Default::default(),
            Note::Finished(_) | Note::Check(_) | Note::Ask { .. } | Note::Sync(_) => Default::default(),
        }
    }

    /// Returns the statistics entry of a client's unit that ends with this message; `None` for any other message.
    pub(in crate::core) fn into_timing(self) -> Option<Timing> {
        match self {
            Note::Sync(timing) => Some(timing),
            Note::Query { timing, .. } | Note::RefusedQuery { timing, .. } | Note::FailedQuery { timing, .. } => {
                Some(timing)
            }
            _ => None,
        }
    }
}

impl protocol::Note for Note {
    fn is_depended_on(&self) -> bool {
        match self {
            // Which statements the client and the server connection have depends on whether the message succeeds.
            Note::Parse { .. } | Note::ParseOwn(_) | Note::ParseUnnamed | Note::Doomed(_) | Note::Alias { .. } => true,
            Note::Answer { undo, .. } => undo.is_change(),
            Note::Execute { dropped, .. } => dropped.is_some(),
            Note::Query { undo, dropped, .. } => undo.is_change() || dropped.is_some(),
            Note::RefusedQuery { undo, .. } | Note::FailedQuery { undo, .. } => undo.is_change(),
            // Messages that the proxy adds around the client's own: no later unit relies on them.
            Note::Ahead | Note::ParseAhead(_) | Note::ReplayCheck(_) | Note::Inserted => false,
            Note::Client | Note::Own | Note::Audit | Note::Begin | Note::Evict(_) | Note::CloseOwn => false,
            Note::Bind(_)
            | Note::Missing(_)
            | Note::Finished(_)
            | Note::Refused(_)
            | Note::Describe { .. }
            | Note::Check(_)
            | Note::Ask { .. }
            | Note::Sync(_) => false,
        }
    }
}

impl ProxyReply {
    /// Appends the message to `out`.
    pub(in crate::core) fn write(self, out: &mut Vec<u8>) {
        match self {
            ProxyReply::Empty(tag) => message::empty(out, tag),
            ProxyReply::Complete(tag) => message::complete(out, tag),
        }
    }
}

impl Refusal {
    /// Returns the text that the server gets instead of a Query, so that an open transaction fails there, too. Its log shows the text.
    pub(in crate::core) fn text(self) -> &'static str {
        match self {
            Refusal::Rule(_) => "refused by kingpost: a traffic rule",
            Refusal::Outdated | Refusal::LockOnReplica | Refusal::SnapshotOnReplica | Refusal::HoldOnReplica => {
                "refused by kingpost: not on a replica"
            }
        }
    }

    /// Appends the `ErrorResponse` that the client gets.
    pub(in crate::core) fn write(self, traffic: &Traffic, out: &mut Vec<u8>) {
        match self {
            // PostgreSQL's own error. Drivers with a statement cache recognise it by its routine, and prepare the
            // statement again.
            Refusal::Outdated => message::message(out, b'E', |out| {
                out.extend_from_slice(
                    b"SERROR\0VERROR\0C0A000\0Mcached plan must not change result type\0RRevalidateCachedQuery\0\0",
                );
            }),
            Refusal::LockOnReplica => message::error(
                out,
                Severity::Error,
                Sqlstate::READ_ONLY_TRANSACTION,
                "cannot take an advisory lock in this transaction: it is on a replica, where the lock excludes nobody on the primary",
                "begin the transaction without READ ONLY, or with the comment /* kingpost.route=primary */",
            ),
            Refusal::SnapshotOnReplica => message::error(
                out,
                Severity::Error,
                Sqlstate::READ_ONLY_TRANSACTION,
                "cannot export or import a snapshot in this transaction: it is on a replica, and other sessions are on other servers",
                "export or import the snapshot first in the transaction, or begin with the comment /* kingpost.route=primary */",
            ),
            Refusal::HoldOnReplica => message::error(
                out,
                Severity::Error,
                Sqlstate::READ_ONLY_TRANSACTION,
                "cannot declare a cursor WITH HOLD in this transaction: it is on a replica, where the session does not stay",
                "begin the transaction without READ ONLY, or with the comment /* kingpost.route=primary */",
            ),
            Refusal::Rule(refused) => {
                let message = traffic.explain(refused);
                message::error(out, Severity::Error, message.code, &message.text, &message.hint);
            }
        }
    }
}
