//! What can go wrong, one enum a boundary.

use std::sync::Arc;

use crate::model::{Invalid, Revision};

/// Why a write was not carried out, or may not have been.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// What was asked makes no sense or exceeds a limit; nothing was tried.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// There is no such instance or service.
    #[error("{what} is not registered")]
    NotFound {
        /// Which.
        what: Arc<str>,
    },
    /// A service with instances is not deleted.
    #[error("{service} still has {instances} instances: deregister them first")]
    NotEmpty {
        /// Which.
        service: Arc<str>,
        /// How many.
        instances: usize,
    },
    /// As many writes as may wait do wait already; nothing was tried.
    #[error("overloaded: {queued} writes wait already, the limit is {limit}; try again later")]
    Overloaded {
        /// How many wait.
        queued: usize,
        /// How many may.
        limit: usize,
    },
    /// There are as many instances or services as there may be.
    #[error("{what}: there are {found}, the limit is {limit}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Others changed the instance each time before the change could be written: nothing was written.
    #[error("{what}: others changed it {attempts} times meanwhile; try again")]
    Contended {
        /// Which.
        what: Arc<str>,
        /// How often it was tried.
        attempts: u32,
    },
    /// The store could not be reached, or refused: nothing was written.
    #[error("nothing was written: {reason}")]
    Unavailable {
        /// What the store said.
        reason: Arc<str>,
    },
    /// The connection was lost during the commit and the store could not be asked in time whether it happened.
    /// Repeating the write is safe: all writes are idempotent.
    #[error("the outcome is unknown: {reason}; repeat it, or read back")]
    Undetermined {
        /// What happened.
        reason: Arc<str>,
    },
    /// The registry is shutting down; nothing was tried.
    #[error("the registry is stopping")]
    Stopped,
}

/// Why the registry did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store could not be opened, migrated or read.
    #[error("opening the registry: {0}")]
    Store(#[from] StoreError),
    /// The address at which other nodes should reach this one cannot be listened at.
    #[error("opening the registry: listening on {address} for other nodes: {reason}")]
    Peers {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        reason: String,
    },
    /// A file of TLS between the nodes is missing, or cannot be used.
    #[error("opening the registry: TLS between the nodes: {reason}")]
    PeerTls {
        /// Which setting.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The certificates that probes verify with cannot be used.
    #[error("opening the registry: health.probe_ca_file: {reason}")]
    Authorities {
        /// Which file, and what is wrong with it.
        reason: String,
    },
    /// A setting that makes no sense.
    #[error("opening the registry: setting {0}")]
    Setting(&'static str),
}

/// What a store answers instead of doing what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another transaction was in the way, and nothing was written. Trying again helps.
    #[error("{store}: {doing}: another transaction is in the way: {reason}")]
    Conflict {
        /// Which store.
        store: &'static str,
        /// What was tried.
        doing: &'static str,
        /// What it said.
        reason: Arc<str>,
    },
    /// The connection was lost after COMMIT was sent: it may have happened. [`crate::store::Store::resolve`] finds out.
    #[error("{store}: commit: the answer was lost: {reason}")]
    Undetermined {
        /// Which store.
        store: &'static str,
        /// What happened.
        reason: Arc<str>,
        /// What was committed, if it was.
        planned: Box<crate::store::Committed>,
    },
    /// Could not be reached or refused, and nothing was written.
    #[error("{store}: {doing}: {reason}")]
    Unavailable {
        /// Which store.
        store: &'static str,
        /// What was tried.
        doing: &'static str,
        /// What it said.
        reason: Arc<str>,
    },
    /// What is in the store cannot be what a registry put there.
    #[error("{store}: {what} cannot be read: {reason}")]
    Corrupt {
        /// Which store.
        store: &'static str,
        /// Which row.
        what: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// The schema was made by a newer version.
    #[error("{store}: the schema has version {found}, this program knows up to {known}: use the newer program")]
    Newer {
        /// Which store.
        store: &'static str,
        /// What there is.
        found: i64,
        /// What is known.
        known: i64,
    },
    /// The address of a store that cannot be understood. Holds no secret.
    #[error(
        "store address: {reason}; expected sqlite:FILE, postgres://user@host/database, mysql://user@host/database or tikv://pd:2379/PREFIX"
    )]
    Address {
        /// Why.
        reason: &'static str,
    },
}

/// Why a watch did not wait.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// As many as may watch do.
    #[error("{watchers} calls watch already, the limit is {limit}; try again later")]
    TooMany {
        /// How many watch.
        watchers: usize,
        /// How many may.
        limit: usize,
    },
    /// There is no such service, and as many services as there may be.
    #[error("there are {services} services, which is the limit; a service that does not exist cannot be watched now")]
    Full {
        /// How many there are.
        services: usize,
    },
    /// The registry stopped while waiting.
    #[error("the registry is stopping (revision {at})")]
    Stopped {
        /// What was reached.
        at: Revision,
    },
}

impl StoreError {
    pub(crate) fn unavailable(store: &'static str, doing: &'static str, reason: impl std::fmt::Display) -> StoreError {
        StoreError::Unavailable { store, doing, reason: reason.to_string().into() }
    }

    pub(crate) fn corrupt(store: &'static str, what: &str, reason: impl std::fmt::Display) -> StoreError {
        StoreError::Corrupt { store, what: what.into(), reason: reason.to_string().into() }
    }
}
