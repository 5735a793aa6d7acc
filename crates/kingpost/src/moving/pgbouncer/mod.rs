//! PgBouncer's pgbouncer.ini and auth_file.

mod ini;
mod keys;
#[cfg(test)]
mod tests;
mod translate;

use std::path::Path;

use super::keys::Fate;
use super::plan::Plan;
use super::{Options, Read};
use process::Failure;

/// Returns the key that a key of PgBouncer's `[pgbouncer]` is carried over to.
pub(crate) fn carried_to(key: &str) -> Option<&'static str> {
    match keys::TABLE.find(keys::P, key)?.fate {
        Fate::Carried(to) => Some(to),
        Fate::Needless | Fate::Refused(_) => None,
    }
}

/// Returns the reason why a key of PgBouncer's `[pgbouncer]` is not needed; `None`: it is, or there is no such key.
pub(crate) fn needless(key: &str) -> Option<&'static str> {
    let key = keys::TABLE.find(keys::P, key)?;
    matches!(key.fate, Fate::Needless).then_some(key.note)
}

/// Reads `file` and the files that it refers to, and plans the translation.
pub(super) fn plan(file: &Path, read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
    let entries = ini::read(file, read)?;
    translate::translate(file, &entries, read, options)
}
