//! What can go wrong.

use std::sync::Arc;

/// Why a call did not do what it was asked. Holds no key and no value.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The deadline came first. Nothing was written.
    #[error("{doing}: no success within the deadline; last: {last}")]
    Late {
        /// What was tried.
        doing: &'static str,
        /// What went wrong last.
        last: Arc<str>,
    },
    /// Another transaction was in the way. Nothing was written; a new transaction may succeed.
    #[error("{doing}: {reason}")]
    Conflict {
        /// What was tried.
        doing: &'static str,
        /// What the server said, in one word or a few.
        reason: Arc<str>,
    },
    /// A server said no, and will say it again. Nothing was written.
    #[error("{doing}: {reason}")]
    Refused {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        reason: Arc<str>,
    },
    /// The commit was sent, and nothing was heard of it until the deadline. To find out: read, at a new timestamp, a key that only
    /// this transaction writes. The read waits for the transaction's end or ends it, so what it sees is final.
    #[error("commit: sent, and no answer within the deadline; last: {last}")]
    Undetermined {
        /// What went wrong last.
        last: Arc<str>,
    },
    /// So many callers wait for a timestamp that no more may.
    #[error("a timestamp: {0} callers wait already")]
    Crowded(u32),
    /// A file of the TLS settings.
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
