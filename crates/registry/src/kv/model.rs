//! Keys, sessions, and the requests on them: plain values.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::model::{InstanceId, Invalid, NamespaceName, Revision};

/// A session that is not renewed ends after this multiple of its time to live. Consul does the same, and clients (Patroni) rely on it: a holder may
/// rely on the time to live, the others wait for the double.
pub(crate) const TTL_MULTIPLE: u32 = 2;
/// Maximum lock delay, as in Consul.
pub(crate) const LONGEST_LOCK_DELAY: Duration = Duration::from_secs(60);
/// Maximum time to live of a session, as in Consul.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(86_400);
/// Maximum number of operations in one transaction. Consul has the same limit.
pub(crate) const MOST_OPERATIONS: usize = 128;

::settings::settings! {
    /// Limits of the key-value store.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KvLimits: Default {
        /// Bytes of one key: 1 to 1024.
        pub key_bytes: usize = 512, range(1, 1024);
        /// Bytes of one value: up to 8 MiB, which every database takes in one statement.
        pub value_bytes: usize = 512 << 10, range(0, 8 << 20);
        /// Keys of one namespace.
        pub keys: usize = 100_000, range(0, 1 << 30);
        /// Bytes of all keys and values of one namespace.
        pub bytes: usize = 64 << 20, range(0, 1 << 40);
        /// Sessions of one namespace.
        pub sessions: usize = 10_000, range(0, 1 << 30);
        /// Bytes of keys and values of all namespaces together: each node has them in memory.
        pub total_bytes: usize = 256 << 20, range(0, 1 << 40);
        /// Shortest time to live of a session, at least 1s. A session that nobody renews ends after twice its time to live.
        pub session_ttl_min: Duration = Duration::from_secs(10);
    }
}

impl KvLimits {
    /// Refuses a key that is empty, too long, or contains a control character.
    ///
    /// # Errors
    /// The violation.
    pub fn check_key(&self, key: &str) -> Result<(), Invalid> {
        crate::model::check_text("key", key, 1, self.key_bytes)
    }

    /// Refuses a value that is too long.
    ///
    /// # Errors
    /// The limit.
    pub fn check_value(&self, value: &[u8]) -> Result<(), Invalid> {
        let (found, limit) = (value.len(), self.value_bytes);
        if found > limit { Err(Invalid::TooLong { what: "value, in bytes", found, limit }) } else { Ok(()) }
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, within its namespace.
    pub key: Arc<str>,
    /// The value: any bytes.
    pub value: Bytes,
    /// A number with a meaning of the client's choice.
    pub flags: u64,
    /// The session that holds the key as a lock.
    pub session: Option<Arc<str>>,
    /// Number of times that a session acquired the free key: rises with each new holder, so it can serve as a fencing token.
    pub lock_index: u64,
    /// The revision that created the key.
    pub created: Revision,
    /// The revision of the last change.
    pub modified: Revision,
}

impl Entry {
    /// Returns the bytes that count towards the limits.
    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// Behavior of the keys that a session holds when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    /// The keys stay, without a holder.
    #[default]
    Release,
    /// The keys are deleted.
    Delete,
}

/// A session: its owner may hold keys as locks for as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The id, chosen at random by the registry.
    #[serde(skip)]
    pub id: Arc<str>,
    /// A descriptive name.
    pub name: String,
    /// The node that the session belongs to, in Consul's sense.
    pub node: String,
    /// Time after the session's end during which nobody can acquire its keys, in nanoseconds; at most 60 s.
    pub lock_delay: u64,
    /// Behavior of the held keys at the session's end.
    pub behavior: Behavior,
    /// The time to live in milliseconds; `None`: the session ends only by a request or with a check.
    pub ttl: Option<u64>,
    /// The time to live as the client wrote it.
    pub ttl_text: String,
    /// Names of checks of the node.
    pub node_checks: Vec<String>,
    /// Checks of services, by the client's names, each with its instance: the session ends when one of them is critical or gone.
    pub service_checks: Vec<(String, InstanceId)>,
    /// The revision that created the session.
    #[serde(skip)]
    pub created: Revision,
    /// The revision of the session's row: above `created` after a renewal through the store.
    #[serde(skip)]
    pub modified: Revision,
}

impl Session {
    /// Returns the lock delay.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.lock_delay).min(LONGEST_LOCK_DELAY)
    }

    /// Returns the time to live.
    pub fn time_to_live(&self) -> Option<Duration> {
        self.ttl.map(Duration::from_millis)
    }
}

/// An operation on one key, or on all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The key, or the prefix.
    pub key: Arc<str>,
    /// The operation's kind and arguments.
    pub verb: Verb,
}

/// Kind and arguments of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Sets value and flags. The holder of the key stays the same.
    Set(Bytes, u64),
    /// Sets value and flags if the key has this revision; 0: if the key does not exist.
    SetIf(Bytes, u64, Revision),
    /// Sets value and flags and acquires the key for a session, if no other session holds it.
    Lock(Bytes, u64, Arc<str>),
    /// Sets value and flags and releases the key, if the session holds it.
    Unlock(Bytes, u64, Arc<str>),
    /// Deletes the key.
    Delete,
    /// Deletes the key if it has this revision.
    DeleteIf(Revision),
    /// Deletes all keys with the prefix.
    DeleteTree,
    /// Reads the key; an error if it does not exist.
    Get,
    /// Reads the key; an entry without a value if it does not exist.
    GetOrEmpty,
    /// Reads all keys with the prefix.
    GetTree,
    /// An error unless the key has this revision.
    CheckIndex(Revision),
    /// An error unless this session holds the key.
    CheckSession(Arc<str>),
    /// An error if the key exists.
    CheckNotExists,
}

impl Verb {
    /// True if the operation may change something.
    pub fn writes(&self) -> bool {
        use Verb::*;
        matches!(self, Set(..) | SetIf(..) | Lock(..) | Unlock(..) | Delete | DeleteIf(_) | DeleteTree)
    }

    /// Returns the bytes of the value to write.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Verb::Set(value, _) | Verb::SetIf(value, ..) | Verb::Lock(value, ..) | Verb::Unlock(value, ..) => {
                value.len()
            }
            _ => 0,
        }
    }
}

/// A request to the writer; carried out completely or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Operations in order: all of them, or none if one is refused.
    Operations(NamespaceName, Vec<Operation>),
    /// Create a session.
    Begin(NamespaceName, Arc<Session>),
    /// End a session, if it exists; with a revision, only if its row still has that revision.
    End(NamespaceName, Arc<str>, Option<Revision>),
    /// Record in the store that a session was renewed; [`Refusal::NoSession`] if it does not exist.
    Renew(NamespaceName, Arc<str>),
    /// No change: when it is answered, this node has everything committed before the request.
    Barrier,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// The entry as it is now.
    Entry {
        /// The entry.
        entry: Arc<Entry>,
        /// True if the client asked for the value.
        with_value: bool,
    },
    /// The entries read.
    Tree(Vec<Arc<Entry>>),
    /// No result.
    Nothing,
}

/// Reason why an operation was not carried out, and with it none of its call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The key does not have the expected revision.
    #[error("failed to {act} key {key:?}, index is stale")]
    Stale {
        /// `set` or `delete`.
        act: &'static str,
        /// The key.
        key: Arc<str>,
    },
    /// Another session holds the key.
    #[error("failed to lock key {key:?}, lock is already held")]
    Held {
        /// The key.
        key: Arc<str>,
    },
    /// The lock delay after the end of the holding session is not over.
    #[error("failed to lock key {key:?}, lock delay is in effect")]
    Delayed {
        /// The key.
        key: Arc<str>,
    },
    /// The session does not hold the key.
    #[error("failed to unlock key {key:?}, lock isn't held, or is held by another session")]
    NotHeld {
        /// The key.
        key: Arc<str>,
    },
    /// The session does not exist.
    #[error("invalid session {session:?}")]
    NoSession {
        /// The session.
        session: Arc<str>,
    },
    /// The key does not exist.
    #[error("{act}key {key:?} doesn't exist")]
    NoKey {
        /// The condition that failed, with a comma; empty for a read.
        act: &'static str,
        /// The key.
        key: Arc<str>,
    },
    /// The key exists.
    #[error("key {key:?} exists")]
    Exists {
        /// The key.
        key: Arc<str>,
    },
    /// The key has another revision.
    #[error("failed index check for key {key:?}, current modify index {found} != {expected}")]
    Index {
        /// The key.
        key: Arc<str>,
        /// The key's revision.
        found: Revision,
        /// The expected revision.
        expected: Revision,
    },
    /// The key is held by another session, or by none.
    #[error("failed session check for key {key:?}, current session {found:?} != {expected:?}")]
    Session {
        /// The key.
        key: Arc<str>,
        /// The holder.
        found: Arc<str>,
        /// The expected holder.
        expected: Arc<str>,
    },
    /// A limit of the namespace or of the node is reached.
    #[error("{what}: {found} is more than the limit of {limit}")]
    Full {
        /// The limited object.
        what: &'static str,
        /// The number or size that the write would have led to.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

impl Refusal {
    /// True if another client was faster: a single conditional write then answers `false`, without an error.
    pub fn is_lost_race(&self) -> bool {
        use Refusal::*;
        matches!(self, Stale { .. } | Held { .. } | Delayed { .. } | NotHeld { .. })
    }
}
