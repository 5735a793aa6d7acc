//! What the core remembers of each thing that a server connection owes.

use std::sync::Arc;

use sql::Changes;
use wire::message;
use wire::{Severity, Sqlstate};

use super::protocol;
use crate::core::observe::Timing;
use crate::core::prepared::{Dropped, Statement, Undo};

/// What a message to a server was, for when it is answered or skipped.
#[derive(Debug)]
pub(in crate::core) enum Note {
    /// A client's message, of which nothing has to be remembered: a Bind, Describe or Close of a portal, COPY data.
    Client,
    /// Of a unit of the proxy's own: nothing of its answer is for the client, who waits for its end.
    Own,
    /// Of a unit of the proxy's own that goes ahead of the client's: the client does not wait for its end.
    Ahead,
    /// The Parse of this statement, under the server's name for it, in a unit of the proxy's that goes ahead of the client's.
    ParseAhead(Arc<Statement>),
    /// Of a statement of the proxy's own within a client's unit: the client hears of it only if it fails.
    Inserted,
    /// Of a BEGIN that was put off: Bind, Execute. The client has been told already.
    Begin,

    /// A client's Parse.
    Parse { statement: Arc<Statement>, sent_as: SentAs, undo: Undo },
    /// A Parse of the proxy's own, under the server's name for the statement.
    ParseOwn(Arc<Statement>),
    /// A Parse of the proxy's own, of the client's unnamed statement: this server connection has another.
    ParseUnnamed,
    /// A Close of the proxy's own, of the statement with this id: there are too many, or it is nobody's any more.
    Evict(u64),
    /// A Close of the proxy's own, of what was only tried.
    CloseOwn,

    /// A client's Parse under this name, which it has given already: sent for the sake of the server's error.
    Doomed(Box<[u8]>),
    /// A client's Bind of this statement. None: of one that it may have prepared by SQL.
    Bind(Option<Arc<Statement>>),
    /// A client's Bind or Describe of a statement of this name, which it has not prepared: sent for the sake of the server's error.
    Missing(Box<[u8]>),
    /// A client's Execute of a portal that the proxy has carried out already: sent for the sake of an error.
    Finished(Box<[u8]>),
    /// A Bind that no server can take, for the sake of its error: the client is told this instead.
    Refused(Refusal),
    /// A client's Describe of a statement, under which name it calls it, and what the schema was.
    Describe { statement: Arc<Statement>, name: Box<[u8]>, schema: u64, undo: Undo },
    /// A Describe of the proxy's own: has this connection the columns that the client was told of?
    Check(Arc<Statement>),
    /// A client's Execute. What it changes of parameters and channels, and of the client's statements.
    Execute { changes: Option<Arc<Changes>>, dropped: Option<Box<Dropping>> },
    /// Nothing was sent: the proxy answers.
    Answer { answer: Answer, undo: Undo },

    /// A client's Sync.
    Sync(Timing),
    /// A client's Query, or its function call.
    Query { changes: Option<Arc<Changes>>, undo: Undo, dropped: Option<Box<Dropping>>, timing: Timing },
    /// A client's Query in whose place the server got a text that it can't run: the client is told this instead.
    RefusedQuery { why: Refusal, undo: Undo, timing: Timing },
    /// A client's Query in whose place the server got a text that it can't run: the client is told this `ErrorResponse` instead.
    FailedQuery { error: Box<[u8]>, undo: Undo, timing: Timing },
}

/// What a client's Parse was sent as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum SentAs {
    /// As the unnamed statement, which it is to the client.
    Unnamed,
    /// Under the server's name for it. To the client it has another name, or none.
    Named,
    /// Under a name that is closed again at once, to learn whether its transaction has failed.
    Tried,
}

/// What the proxy says to a client's message by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Answer {
    /// A message without a payload: `ParseComplete` (`1`), `CloseComplete` (`3`).
    Empty(u8),
    /// `CommandComplete`.
    Complete(&'static str),
}

/// Why a client's statement is refused by the proxy, though a server would run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Refusal {
    /// Its columns are no longer what the client was told.
    Outdated,
    /// It takes an advisory lock, on a replica.
    LockOnReplica,
    /// It declares a cursor WITH HOLD in a transaction on a replica, where the client does not stay.
    HoldOnReplica,
}

/// A statement that drops prepared statements: how to take that back, if it fails or is skipped.
#[derive(Debug)]
pub(in crate::core) struct Dropping {
    /// Of the client's names.
    pub names: Undo,
    /// Of what the server connection has; None: it loses nothing of that.
    pub held: Option<Dropped>,
}

impl Note {
    /// A client's Query of which nothing is known.
    pub(in crate::core) fn query(timing: Timing) -> Note {
        Note::Query { changes: None, undo: Undo::Nothing, dropped: None, timing }
    }

    /// A client's Execute of which nothing is known.
    pub(in crate::core) fn execute() -> Note {
        Note::Execute { changes: None, dropped: None }
    }
}

impl Note {
    /// True if a client is told that it is ready when this is answered.
    pub(in crate::core) fn ends_clients_unit(&self) -> bool {
        use Note::{FailedQuery, Query, RefusedQuery, Sync};
        matches!(self, Sync(_) | Query { .. } | RefusedQuery { .. } | FailedQuery { .. })
    }

    /// Takes out how to take back what this has changed of its client's names: in this order.
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
            Note::Client | Note::Own | Note::Begin | Note::Ahead | Note::ParseAhead(_) | Note::Inserted => {
                Default::default()
            }
            Note::ParseOwn(_) | Note::ParseUnnamed | Note::Evict(_) | Note::CloseOwn => Default::default(),
            Note::Doomed(_) | Note::Bind(_) | Note::Missing(_) | Note::Refused(_) => Default::default(),
            Note::Finished(_) | Note::Check(_) | Note::Sync(_) => Default::default(),
        }
    }

    /// What the end of a unit is counted under; None: it is no client's, or not the end of one.
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
            // What a server has after it: the client's names, and the server connection's.
            Note::Parse { .. } | Note::ParseOwn(_) | Note::ParseUnnamed | Note::Doomed(_) => true,
            Note::Answer { undo, .. } => undo.is_change(),
            Note::Execute { dropped, .. } => dropped.is_some(),
            Note::Query { undo, dropped, .. } => undo.is_change() || dropped.is_some(),
            Note::RefusedQuery { undo, .. } | Note::FailedQuery { undo, .. } => undo.is_change(),
            // Its unit is not the client's: what comes behind it is skipped by nobody.
            Note::Ahead | Note::ParseAhead(_) | Note::Inserted => false,
            Note::Client | Note::Own | Note::Begin | Note::Evict(_) | Note::CloseOwn => false,
            Note::Bind(_)
            | Note::Missing(_)
            | Note::Finished(_)
            | Note::Refused(_)
            | Note::Describe { .. }
            | Note::Check(_)
            | Note::Sync(_) => false,
        }
    }
}

impl Answer {
    /// Appends it.
    pub(in crate::core) fn write(self, out: &mut Vec<u8>) {
        match self {
            Answer::Empty(tag) => message::empty(out, tag),
            Answer::Complete(tag) => message::complete(out, tag),
        }
    }
}

impl Refusal {
    /// What the client is told: an `ErrorResponse`.
    pub(in crate::core) fn write(self, out: &mut Vec<u8>) {
        match self {
            // As PostgreSQL says it; drivers that cache statements know it by its routine, and prepare again.
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
            Refusal::HoldOnReplica => message::error(
                out,
                Severity::Error,
                Sqlstate::READ_ONLY_TRANSACTION,
                "cannot declare a cursor WITH HOLD in this transaction: it is on a replica, where the session does not stay",
                "begin the transaction without READ ONLY, or with the comment /* kingpost.route=primary */",
            ),
        }
    }
}
