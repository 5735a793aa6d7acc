//! PgBouncer's pgbouncer.ini and auth_file.

mod ini;
mod keys;
#[cfg(test)]
mod tests;
mod translate;

use std::path::Path;

use super::keys::Fate;
use super::plan::Plan;
use crate::options::{Options, Read};
use config::Alias;
use process::Failure;

/// Returns the meaning of a key of PgBouncer's `[pgbouncer]` for an operator who sets it.
pub fn alias(key: &str) -> Option<Alias> {
    let key = keys::TABLE.find(keys::P, key)?;
    match key.fate {
        Fate::Carried(to) => Some(Alias::Path(to)),
        Fate::Needless => Some(Alias::Needless(key.note)),
        Fate::Refused(_) => None,
    }
}

/// Reads `file` and the files that it refers to, and plans the translation.
pub(super) fn plan(file: &Path, read: Read<'_>, options: &Options) -> Result<Plan, Failure> {
    let entries = ini::read(file, read)?;
    translate::translate(file, &entries, read, options)
}
