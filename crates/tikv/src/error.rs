//! Errors of the client.

use std::sync::Arc;

/// Reason why a call failed. Contains no key and no value.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The deadline came first. Nothing was written.
    #[error("{doing}: no success within the deadline; last: {last}")]
    Late {
        /// The operation.
        doing: &'static str,
        /// The last error.
        last: Arc<str>,
    },
    /// Another transaction conflicted. Nothing was written; a new transaction may succeed.
    #[error("{doing}: {reason}")]
    Conflict {
        /// The operation.
        doing: &'static str,
        /// The server's reason, in a few words.
        reason: Arc<str>,
    },
    /// A server refused, and will refuse again. Nothing was written.
    #[error("{doing}: {reason}")]
    Refused {
        /// The operation.
        doing: &'static str,
        /// The server's reason.
        reason: Arc<str>,
    },
    /// The commit was sent, and no answer proves whether it was carried out. To find out: read, at a new timestamp, a key that only
    /// this transaction writes. The read waits for the transaction's end or ends it, so what it sees is final.
    #[error("commit: sent, and it is not known whether it was carried out; last: {last}")]
    Undetermined {
        /// The last error.
        last: Arc<str>,
    },
    /// The limit on callers that wait for a timestamp is reached.
    #[error("a timestamp: {0} callers wait already")]
    Crowded(u32),
    /// A TLS file is unusable.
    #[error(transparent)]
    Tls(Arc<tls::Error>),
    /// The thread for timestamps could not be started.
    #[error("starting the thread for timestamps: {0}")]
    Thread(Arc<std::io::Error>),
}

impl Error {
    pub(crate) fn conflict(doing: &'static str, reason: impl Into<Arc<str>>) -> Error {
        Error::Conflict { doing, reason: reason.into() }
    }

    pub(crate) fn refused(doing: &'static str, reason: impl Into<Arc<str>>) -> Error {
        Error::Refused { doing, reason: reason.into() }
    }
}
