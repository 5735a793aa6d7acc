//! How much of everything there may be.

use serde::{Deserialize, Serialize};

/// The registry's limits. What exceeds one is refused with [`Invalid`] or a typed error that names the limit; nothing is cut.
///
/// Names have fixed limits ([`super::NamespaceName::MAX_BYTES`] and its like): they are key columns in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Entries in the metadata of one instance or service.
    pub metadata_entries: usize,
    /// Bytes of one metadata key.
    pub metadata_key_bytes: usize,
    /// Bytes of one metadata value.
    pub metadata_value_bytes: usize,
    /// Bytes of all keys and values of one instance or service.
    pub metadata_bytes: usize,
    /// Instances of one service.
    pub instances_per_service: usize,
    /// Instances in all.
    pub instances: usize,
    /// Services in all, those included that are only watched.
    pub services: usize,
    /// Rows of one call (register, deregister, update, heartbeat).
    pub call_rows: usize,
    /// Writes that wait for their batch; beyond it a call is told that the registry is overloaded.
    pub queued_writes: usize,
    /// Calls that watch at the same time.
    pub watchers: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            metadata_entries: 64,
            metadata_key_bytes: 128,
            metadata_value_bytes: 4096,
            metadata_bytes: 16 * 1024,
            instances_per_service: 250_000,
            instances: 1_000_000,
            services: 100_000,
            call_rows: 1000,
            queued_writes: 16_384,
            watchers: 65_536,
        }
    }
}

/// Why a value from outside was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Something needed is empty or absent.
    #[error("{what} is missing")]
    Missing {
        /// What.
        what: &'static str,
    },
    /// Longer or more than the limit.
    #[error("{what}: {found} is more than the limit of {limit}")]
    TooLong {
        /// What, with its unit.
        what: &'static str,
        /// How much there was.
        found: usize,
        /// How much there may be.
        limit: usize,
    },
    /// A character that may not be there.
    #[error("{what} holds a character that is not allowed: {allowed}")]
    Character {
        /// What.
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A character that a reader does not see, or that changes the order of what is seen.
    #[error(
        "{what} holds {found}, a control character or one that is not seen: nobody could tell the name from another one"
    )]
    Invisible {
        /// What.
        what: &'static str,
        /// The character, as `U+202E`.
        found: String,
    },
    /// A number or combination that makes no sense.
    #[error("{what}: {found}; expected {expected}")]
    Value {
        /// What.
        what: &'static str,
        /// What there was.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A metadata key that is there twice.
    #[error("metadata key {key:?} is given twice")]
    Twice {
        /// The key.
        key: String,
    },
}

/// A text of `min` to `max` bytes without control characters. (PostgreSQL cannot hold a NUL, and no log or header should
/// get a line feed from a name.)
pub(crate) fn text(what: &'static str, text: &str, min: usize, max: usize) -> Result<(), Invalid> {
    if text.len() < min {
        return Err(Invalid::Missing { what });
    }
    at_most(what, text.len(), max)?;
    if text.chars().any(char::is_control) {
        return Err(Invalid::Character { what, allowed: "no control characters" });
    }
    Ok(())
}

pub(crate) fn at_most(what: &'static str, found: usize, limit: usize) -> Result<(), Invalid> {
    if found > limit { Err(Invalid::TooLong { what, found, limit }) } else { Ok(()) }
}
