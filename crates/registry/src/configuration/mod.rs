//! Configuration entries: texts that clients read, and are told about when they change.
//!
//! ```text
//!  publish, remove, roll back ─▶ kv::config ─▶ keys of a reserved namespace ─▶ every node's State
//!                                                                                │ changed keys
//!                                        clients ◀── Listener ◀── Listeners ◀────┘
//! ```
//!
//! An entry is named by group and data id within a namespace. Each change gives it a new version; older versions are kept, so that a roll-back is a
//! publication of an older content. A gray release is a second content, for the clients of
//! its [`Audience`].
//!
//! Rows are keys of a reserved namespace (`NamespaceName::of_config`), so all stores hold them without a migration, and no key-value front
//! reaches them:
//!
//! ```text
//!  c/GROUP/ID             the current version
//!  g/GROUP/ID             the gray release
//!  d/GROUP/ID             the draft: a content that no client gets until it is released
//!  h/GROUP/ID TAB 00012   version 12, written when version 13 replaced it
//!  r/GROUP/ID             the last version of a removed entry
//! ```
//!
//! # Invariants
//!
//! - A version never changes: a row of the history has the content that was current.
//! - A change, its history row, and the removal of the oldest history row are one transaction.
//! - A change wakes only listeners of its own entry.
//! - No log, error or `Debug` output contains a content.

mod audience;
mod entry;
mod listeners;
mod row;

pub(crate) use audience::TAG;
pub use audience::{Audience, ConfigClient};
pub use entry::{ConfigEntry, ConfigError, ConfigKey, ConfigLimits, Expected, NewConfig, Removal, md5_of};
pub use listeners::Listener;
pub(crate) use listeners::Listeners;
pub(crate) use row::{Place, decode, encode, place};

/// Reads a row, for fuzzing: any outcome is fine.
#[doc(hidden)]
pub fn read_config_row(bytes: &[u8]) {
    let Ok(key) = ConfigKey::new("group", "id") else { return };
    let _ = decode(&key, &bytes::Bytes::copy_from_slice(bytes), crate::Revision(1));
}
