//! Outcome for a client whose server connection has ended, decided by the server's last FATAL. Pure.

use wire::Sqlstate;
use wire::message::Status;

use super::aborted::LOST;

/// The reason for the end of a server connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The server shuts down or the connection broke: another connection, or another server, can do the work.
    Server,
    /// `idle_session_timeout`: the server waited for a command, and has executed nothing that was sent since.
    Idle,
    /// A limit or an error of the session itself: the same work ends the same way on every connection.
    Session,
}

/// State of the client's work when its server connection ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    /// The session's state as of the last answer.
    pub status: Status,
    /// True if a statement that may commit was not answered.
    pub committing: bool,
    /// True if a statement that may write was sent.
    pub has_written: bool,
    /// True if the unit is kept and changes nothing, so it can be sent again.
    pub repeatable: bool,
    /// True if the session's state is on the connection: session mode, or a client that keeps its connection.
    pub bound: bool,
}

/// Consequence for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The unit is sent again on another connection; the client sees no error.
    Again,
    /// The client gets an error and stays connected.
    Told(Loss),
    /// The client gets the error that its session's state is lost, and is closed.
    SessionLost,
    /// The client gets the server's own FATAL, and is closed, as by a direct connection.
    Closed,
}

/// The work that was in flight when the server connection was lost; decides the client's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// A transaction without a COMMIT in flight: certainly rolled back.
    Transaction,
    /// A transaction that may have committed.
    Commit,
    /// A statement outside a transaction that may have been executed.
    Statement,
    /// Reads outside a transaction: only the answer is lost.
    Read,
    /// A unit that the server never read.
    Unread,
}

/// Returns the reason that the SQLSTATE of a server's last FATAL stands for; `None`: the server sent none.
pub(super) fn cause(code: Option<Sqlstate>) -> Cause {
    match code {
        None
        | Some(
            Sqlstate::ADMIN_SHUTDOWN
            | Sqlstate::CRASH_SHUTDOWN
            | Sqlstate::CANNOT_CONNECT_NOW
            // A standby's conflict with recovery.
            | Sqlstate::SERIALIZATION_FAILURE,
        ) => Cause::Server,
        Some(Sqlstate::IDLE_SESSION_TIMEOUT) => Cause::Idle,
        Some(_) => Cause::Session,
    }
}

/// Decides the consequence for the client.
pub(super) fn outcome(cause: Cause, work: InFlight) -> Outcome {
    let InFlight { repeatable, bound, .. } = work;
    match cause {
        Cause::Session => Outcome::Closed,
        Cause::Idle if bound => Outcome::Closed,
        _ if bound => Outcome::SessionLost,
        _ if repeatable => Outcome::Again,
        Cause::Idle if work.status == Status::Idle => Outcome::Told(Loss::Unread),
        Cause::Idle | Cause::Server => Outcome::Told(loss(work)),
    }
}

fn loss(work: InFlight) -> Loss {
    match (work.status, work.committing) {
        (Status::Idle, _) if work.committing || work.has_written => Loss::Statement,
        (Status::Idle, _) => Loss::Read,
        (_, true) => Loss::Commit,
        (_, false) => Loss::Transaction,
    }
}

impl Loss {
    pub(super) fn message(self) -> (Sqlstate, &'static str) {
        match self {
            Loss::Transaction => (Sqlstate::SERIALIZATION_FAILURE, LOST),
            Loss::Commit => (
                Sqlstate::TRANSACTION_RESOLUTION_UNKNOWN,
                "the connection to the server was lost during COMMIT: whether the transaction was committed is unknown",
            ),
            Loss::Statement => (
                Sqlstate::COMPLETION_UNKNOWN,
                "the connection to the server was lost during the statement: whether it was carried out is unknown",
            ),
            Loss::Read => (
                Sqlstate::SERIALIZATION_FAILURE,
                "the connection to the server was lost during the query: nothing was changed; it can be run again",
            ),
            Loss::Unread => (
                Sqlstate::SERIALIZATION_FAILURE,
                "the server closed the idle connection (idle_session_timeout) before it read the statement: nothing was changed; it can be run again",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes() {
        let cases = [
            ("57P01", Cause::Server),
            ("57P02", Cause::Server),
            ("57P03", Cause::Server),
            ("40001", Cause::Server),
            ("57P05", Cause::Idle),
            ("25P03", Cause::Session),
            ("25P04", Cause::Session),
            ("57P04", Cause::Session),
            ("08P01", Cause::Session),
            ("53200", Cause::Session),
            ("XX000", Cause::Session),
        ];
        assert_eq!(cause(None), Cause::Server);
        for (code, expected) in cases {
            let code = Sqlstate(code.as_bytes().try_into().expect("five bytes"));
            assert_eq!(cause(Some(code)), expected, "{code}");
        }
    }

    #[test]
    fn outcomes() {
        use Cause::{Idle, Server, Session};
        use Outcome::{Again, Closed, SessionLost, Told};
        use Status::{Failed, Transaction};
        let free = Status::Idle;
        // Cause; status, committing, has written, repeatable, bound.
        let cases = [
            (Server, (free, false, false, false, false), Told(Loss::Read)),
            (Server, (free, true, false, false, false), Told(Loss::Statement)),
            (Server, (free, false, true, false, false), Told(Loss::Statement)),
            (Server, (Transaction, false, true, false, false), Told(Loss::Transaction)),
            (Server, (Transaction, false, false, false, false), Told(Loss::Transaction)),
            (Server, (Transaction, true, true, false, false), Told(Loss::Commit)),
            (Server, (Failed, false, true, false, false), Told(Loss::Transaction)),
            (Server, (free, false, false, true, false), Again),
            (Server, (free, false, true, false, true), SessionLost),
            (Server, (Transaction, true, true, false, true), SessionLost),
            // Nothing was read: neither a write nor a COMMIT is in doubt.
            (Idle, (free, false, true, false, false), Told(Loss::Unread)),
            (Idle, (free, true, true, false, false), Told(Loss::Unread)),
            (Idle, (free, false, false, true, false), Again),
            (Idle, (free, false, false, false, true), Closed),
            (Idle, (Transaction, true, true, false, false), Told(Loss::Commit)),
            // Another attempt would end the same way, also where nothing would be changed by it.
            (Session, (Transaction, false, true, false, false), Closed),
            (Session, (Transaction, true, true, false, false), Closed),
            (Session, (free, false, false, true, false), Closed),
            (Session, (free, false, false, false, true), Closed),
        ];
        for (cause, (status, committing, has_written, repeatable, bound), expected) in cases {
            let work = InFlight { status, committing, has_written, repeatable, bound };
            assert_eq!(outcome(cause, work), expected, "{cause:?} {work:?}");
        }
    }
}
