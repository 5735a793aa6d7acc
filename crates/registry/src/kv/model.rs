//! Keys, sessions, and what can be asked of them: plain values.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::model::{InstanceId, Invalid, NamespaceName, Revision};

/// A session without a time to live, or one that nobody renews, ends after this multiple of it. Consul does the same, and clients
/// (Patroni) count on it: the time to live is what a holder may rely on, the double is what the others wait.
pub(crate) const TTL_MULTIPLE: u32 = 2;
/// Longest lock delay, as Consul's.
pub(crate) const LONGEST_LOCK_DELAY: Duration = Duration::from_secs(60);
/// Longest time to live of a session, as Consul's.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(86_400);
/// Most operations in one transaction, as Consul's.
pub(crate) const MOST_OPERATIONS: usize = 128;

/// How much the key-value store may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvLimits {
    /// Bytes of one key: 1 to 1024.
    pub key_bytes: usize,
    /// Bytes of one value: up to 8 MiB, which is what every database takes in one statement.
    pub value_bytes: usize,
    /// Keys of one namespace.
    pub keys: usize,
    /// Bytes of all keys and values of one namespace.
    pub bytes: usize,
    /// Sessions of one namespace.
    pub sessions: usize,
    /// Bytes of all keys and values of all namespaces: each node has them in memory.
    pub total_bytes: usize,
    /// Shortest time to live of a session, at least 1 s. Consul has the same setting.
    #[serde(with = "humantime_serde")]
    pub session_ttl_min: Duration,
}

impl Default for KvLimits {
    fn default() -> KvLimits {
        KvLimits {
            key_bytes: 512,
            value_bytes: 512 << 10,
            keys: 100_000,
            bytes: 64 << 20,
            sessions: 10_000,
            total_bytes: 256 << 20,
            session_ttl_min: Duration::from_secs(10),
        }
    }
}

impl KvLimits {
    /// Refuses a key that is empty, too long, or holds a control character.
    ///
    /// # Errors
    /// Which of these.
    pub fn check_key(&self, key: &str) -> Result<(), Invalid> {
        crate::model::check_text("key", key, 1, self.key_bytes)
    }

    /// Refuses a value that is too long.
    ///
    /// # Errors
    /// With the limit.
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
    /// A number that clients give a meaning.
    pub flags: u64,
    /// The session that holds the key as a lock.
    pub session: Option<Arc<str>>,
    /// How often a session took the key that did not hold it: rises with each new holder, so it can serve as a fencing number.
    pub lock_index: u64,
    /// The revision that made it.
    pub created: Revision,
    /// The revision that made it what it is.
    pub modified: Revision,
}

impl Entry {
    /// What it counts for in the limits, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

/// What becomes of the keys that a session holds when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    /// They stay, held by nobody.
    #[default]
    Release,
    /// They are deleted.
    Delete,
}

/// A session: whoever has it may hold keys as locks, for as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Chosen at random by the registry.
    #[serde(skip)]
    pub id: Arc<str>,
    /// A name for people.
    pub name: String,
    /// The node that it belongs to, in Consul's sense.
    pub node: String,
    /// For so long after the session's end nobody gets the keys that it held, in nanoseconds; at most 60 s.
    pub lock_delay: u64,
    /// What becomes of its keys.
    pub behavior: Behavior,
    /// The time to live in milliseconds; `None`: it ends only when somebody ends it, or with a check.
    pub ttl: Option<u64>,
    /// The time to live as the client wrote it.
    pub ttl_text: String,
    /// Names of checks of the node.
    pub node_checks: Vec<String>,
    /// Checks of services, as the client named them, each with the instance that it is a check of: when one of them is critical or gone
    /// the session ends.
    pub service_checks: Vec<(String, InstanceId)>,
    /// The revision that made it.
    #[serde(skip)]
    pub created: Revision,
    /// The revision of its row: above `created` where a renewal went through the store.
    #[serde(skip)]
    pub modified: Revision,
}

impl Session {
    /// The lock delay.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.lock_delay).min(LONGEST_LOCK_DELAY)
    }

    /// The time to live.
    pub fn time_to_live(&self) -> Option<Duration> {
        self.ttl.map(Duration::from_millis)
    }
}

/// An operation on one key, or on all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The key, or the prefix.
    pub key: Arc<str>,
    /// What to do.
    pub verb: Verb,
}

/// What to do with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Make it so. Who holds the key does not change.
    Set(Bytes, u64),
    /// Make it so if its revision is this one; 0: if there is none.
    SetIf(Bytes, u64, Revision),
    /// Make it so and take it for a session, if no other session holds it.
    Lock(Bytes, u64, Arc<str>),
    /// Make it so and give it back, if the session holds it.
    Unlock(Bytes, u64, Arc<str>),
    /// Delete it.
    Delete,
    /// Delete it if its revision is this one.
    DeleteIf(Revision),
    /// Delete all keys that begin so.
    DeleteTree,
    /// Read it; an error if there is none.
    Get,
    /// Read it; an entry without a value if there is none.
    GetOrEmpty,
    /// Read all keys that begin so.
    GetTree,
    /// An error if its revision is not this one.
    CheckIndex(Revision),
    /// An error if this session does not hold it.
    CheckSession(Arc<str>),
    /// An error if there is such a key.
    CheckNotExists,
}

impl Verb {
    /// Whether it may change something.
    pub fn writes(&self) -> bool {
        use Verb::*;
        matches!(self, Set(..) | SetIf(..) | Lock(..) | Unlock(..) | Delete | DeleteIf(_) | DeleteTree)
    }

    /// Bytes of a value to be written.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Verb::Set(value, _) | Verb::SetIf(value, ..) | Verb::Lock(value, ..) | Verb::Unlock(value, ..) => {
                value.len()
            }
            _ => 0,
        }
    }
}

/// What is asked of the one writer; each is carried out whole or not at all.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Operations, one after the other: all of them, or none if one is refused.
    Operations(NamespaceName, Vec<Operation>),
    /// Make a session.
    Begin(NamespaceName, Arc<Session>),
    /// End a session, if it is there; with a revision, only if its row is still as of that.
    End(NamespaceName, Arc<str>, Option<Revision>),
    /// Note in the store that a session was renewed; [`Refusal::NoSession`] if there is none.
    Renew(NamespaceName, Arc<str>),
    /// Nothing: what was committed before it is here when it is answered.
    Barrier,
}

/// What an operation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// The entry as it is now; `with_value`: the client asked for the value too.
    Entry {
        /// Which.
        entry: Arc<Entry>,
        /// Whether the value was asked for.
        with_value: bool,
    },
    /// Those that were asked for.
    Tree(Vec<Arc<Entry>>),
    /// Nothing to say.
    Nothing,
}

/// Why an operation was not carried out, and with it none of its call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The key is not as of the revision that was expected.
    #[error("failed to {act} key {key:?}, index is stale")]
    Stale {
        /// set, delete
        act: &'static str,
        /// Which.
        key: Arc<str>,
    },
    /// Another session holds it.
    #[error("failed to lock key {key:?}, lock is already held")]
    Held {
        /// Which.
        key: Arc<str>,
    },
    /// The session that held it ended a moment ago: nobody may take it yet.
    #[error("failed to lock key {key:?}, lock delay is in effect")]
    Delayed {
        /// Which.
        key: Arc<str>,
    },
    /// The session does not hold it.
    #[error("failed to unlock key {key:?}, lock isn't held, or is held by another session")]
    NotHeld {
        /// Which.
        key: Arc<str>,
    },
    /// There is no such session.
    #[error("invalid session {session:?}")]
    NoSession {
        /// Which.
        session: Arc<str>,
    },
    /// There is no such key.
    #[error("key {key:?} doesn't exist")]
    NoKey {
        /// Which.
        key: Arc<str>,
    },
    /// There is such a key.
    #[error("key {key:?} exists")]
    Exists {
        /// Which.
        key: Arc<str>,
    },
    /// Its revision is another one.
    #[error("failed index check for key {key:?}, current modify index {found} != {expected}")]
    Index {
        /// Which.
        key: Arc<str>,
        /// What it is.
        found: Revision,
        /// What was expected.
        expected: Revision,
    },
    /// Another session, or none, holds it.
    #[error("failed session check for key {key:?}, current session {found:?} != {expected:?}")]
    Session {
        /// Which.
        key: Arc<str>,
        /// Who holds it.
        found: Arc<str>,
        /// Who was expected to.
        expected: Arc<str>,
    },
    /// The namespace, or the node, holds as much as it may.
    #[error("{what}: {found} is more than the limit of {limit}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How much there would be.
        found: usize,
        /// How much there may be.
        limit: usize,
    },
}

impl Refusal {
    /// Whether it says that somebody else was first: a single conditional write then answers `false`, and is no error.
    pub fn is_lost_race(&self) -> bool {
        use Refusal::*;
        matches!(self, Stale { .. } | Held { .. } | Delayed { .. } | NotHeld { .. })
    }
}
