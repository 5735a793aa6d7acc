//! Limits on the number and size of registered objects.

::settings::settings! {
    /// The registry's limits. A value beyond one is refused with [`Invalid`] or a typed error that names the limit; nothing is truncated.
    ///
    /// Names have fixed limits ([`super::NamespaceName::MAX_BYTES`] and similar): they are key columns in the store. So has
    /// what fronts keep in metadata under keys that begin with `kingpost.`: 128 KiB of an instance or service, which do not count as the client's.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Limits: Default {
        /// Entries in the metadata of one instance or service.
        pub metadata_entries: usize = 64, range(0, 10_000);
        /// Bytes of one metadata key.
        pub metadata_key_bytes: usize = 128, range(1, 1 << 16);
        /// Bytes of one metadata value.
        pub metadata_value_bytes: usize = 4096, range(0, 1 << 20);
        /// Bytes of all keys and values of one instance or service.
        pub metadata_bytes: usize = 64 * 1024, range(0, 1 << 20);
        /// Instances of one service.
        pub instances_per_service: usize = 250_000, range(1, 1 << 30);
        /// Instances in all.
        pub instances: usize = 1_000_000, range(1, 1 << 30);
        /// Services in all, including those that are only watched.
        pub services: usize = 100_000, range(1, 1 << 30);
        /// Rows of one call (register, deregister, update, heartbeat).
        pub call_rows: usize = 1000, range(1, 100_000);
        /// Writes that wait for their batch; further calls are refused as overload.
        pub queued_writes: usize = 16_384, range(1, 10_000_000);
        /// Calls that watch at the same time.
        pub watchers: usize = 65_536, range(1, 10_000_000);
    }
}

/// Reason why an input value was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A required value is empty or absent.
    #[error("{what} is missing")]
    Missing {
        /// The value.
        what: &'static str,
    },
    /// A value beyond its limit.
    #[error("{what}: {found} is more than the limit of {limit}")]
    TooLong {
        /// The value, with its unit.
        what: &'static str,
        /// Size or number found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A part of a metadata entry beyond its limit.
    #[error("metadata {part} of {key:?}, in bytes: {found} is more than the limit of {limit}")]
    Entry {
        /// The part: key or value.
        part: &'static str,
        /// The beginning of the key.
        key: String,
        /// Bytes found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A character that is not allowed.
    #[error("{what} holds a character that is not allowed: {allowed}")]
    Character {
        /// The value.
        what: &'static str,
        /// The allowed characters.
        allowed: &'static str,
    },
    /// A character that is not displayed, or that changes the order of the displayed ones.
    #[error(
        "{what} holds {found}, a control character or one that is not seen: nobody could tell the name from another one"
    )]
    Invisible {
        /// The value.
        what: &'static str,
        /// The character, as `U+202E`.
        found: String,
    },
    /// A number or combination that makes no sense.
    #[error("{what}: {found}; expected {expected}")]
    Value {
        /// The value.
        what: &'static str,
        /// The value found.
        found: String,
        /// The values accepted.
        expected: &'static str,
    },
    /// A metadata key that is given twice.
    #[error("metadata key {key:?} is given twice")]
    Twice {
        /// The key.
        key: String,
    },
}

/// Checks that a text has `min` to `max` bytes and no control characters: PostgreSQL cannot store a NUL, and no log or header may get a line feed
/// from a name.
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
