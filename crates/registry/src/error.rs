//! Error types, one enum for each boundary.

use std::sync::Arc;

use crate::model::{Invalid, Revision};

/// Reason why a write was not carried out, or may not have been.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The request is invalid or exceeds a limit; nothing was tried.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// No such instance or service exists.
    #[error("{what} is not registered")]
    NotFound {
        /// The instance or service.
        what: Arc<str>,
    },
    /// A service with instances cannot be deleted.
    #[error("{service} still has {instances} instances: deregister them first")]
    NotEmpty {
        /// The service.
        service: Arc<str>,
        /// Number of its instances.
        instances: usize,
    },
    /// The write queue is full; nothing was tried.
    #[error("overloaded: {queued} writes wait already, the limit is {limit}; try again later")]
    Overloaded {
        /// Writes in the queue.
        queued: usize,
        /// Limit of the queue.
        limit: usize,
    },
    /// The limit on instances or services is reached.
    #[error("{what}: there are {found}, the limit is {limit}")]
    Full {
        /// The limited object.
        what: &'static str,
        /// Number present.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Others changed the instance before every attempt; nothing was written.
    #[error("{what}: others changed it {attempts} times meanwhile; try again")]
    Contended {
        /// The instance, or the group of keys.
        what: Arc<str>,
        /// Number of attempts.
        attempts: u32,
    },
    /// The store could not be reached, or refused; nothing was written.
    #[error("nothing was written: {reason}")]
    Unavailable {
        /// The store's error.
        reason: Arc<str>,
    },
    /// The connection was lost during the commit, and the store did not say in time if the commit happened. Repeating the write is safe: all writes
    /// are idempotent.
    #[error("the outcome is unknown: {reason}; repeat it, or read back")]
    Undetermined {
        /// The error that broke the commit.
        reason: Arc<str>,
    },
    /// The registry is shutting down; nothing was tried.
    #[error("the registry is stopping")]
    Stopped,
}

/// Reason why the registry did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store could not be opened, migrated or read.
    #[error("opening the registry: {0}")]
    Store(#[from] StoreError),
    /// The node cannot listen on its address for other nodes.
    #[error("opening the registry: listening on {address} for other nodes: {reason}")]
    Peers {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        reason: String,
    },
    /// A file for TLS between the nodes is missing or unusable.
    #[error("opening the registry: TLS between the nodes: {reason}")]
    PeerTls {
        /// The setting.
        setting: &'static str,
        /// The fault.
        reason: String,
    },
    /// The CA certificates for probes are unusable.
    #[error("opening the registry: health.probe_ca_file: {reason}")]
    Authorities {
        /// The file and its fault.
        reason: String,
    },
    /// An invalid setting.
    #[error("opening the registry: setting {0}")]
    Setting(&'static str),
}

/// Error of a store operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Another transaction conflicted, and nothing was written. Trying again helps.
    #[error("{store}: {doing}: another transaction is in the way: {reason}")]
    Conflict {
        /// The store.
        store: &'static str,
        /// The operation.
        doing: &'static str,
        /// The store's error.
        reason: Arc<str>,
    },
    /// The connection was lost after COMMIT was sent, so the commit may have happened. [`crate::store::Store::resolve`] finds out.
    #[error("{store}: commit: the answer was lost: {reason}")]
    Undetermined {
        /// The store.
        store: &'static str,
        /// The connection's error.
        reason: Arc<str>,
        /// The result of the batch, if it was committed.
        planned: Box<crate::store::Committed>,
    },
    /// The store could not be reached or refused, and nothing was written.
    #[error("{store}: {doing}: {reason}")]
    Unavailable {
        /// The store.
        store: &'static str,
        /// The operation.
        doing: &'static str,
        /// The store's error.
        reason: Arc<str>,
    },
    /// The stored data cannot have been written by a registry.
    #[error("{store}: {what} cannot be read: {reason}")]
    Corrupt {
        /// The store.
        store: &'static str,
        /// The row.
        what: Arc<str>,
        /// The fault.
        reason: Arc<str>,
    },
    /// The schema was made by a newer version of this program.
    #[error("{store}: the schema has version {found}, this program knows up to {known}: use the newer program")]
    Newer {
        /// The store.
        store: &'static str,
        /// The schema's version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// The store's address cannot be parsed. Contains no secret.
    #[error(
        "store address: {reason}; expected sqlite:FILE, postgres://user@host/database, mysql://user@host/database or tikv://pd:2379/PREFIX"
    )]
    Address {
        /// The fault.
        reason: &'static str,
    },
}

/// Reason why a watch did not wait.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// The limit on watching calls is reached.
    #[error("{watchers} calls watch already, the limit is {limit}; try again later")]
    TooMany {
        /// Calls that watch.
        watchers: usize,
        /// The limit.
        limit: usize,
    },
    /// The service does not exist, and the limit on services is reached.
    #[error("there are {services} services, which is the limit; a service that does not exist cannot be watched now")]
    Full {
        /// Number of services.
        services: usize,
    },
    /// The registry stopped during the wait.
    #[error("the registry is stopping (revision {at})")]
    Stopped {
        /// The revision reached.
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
