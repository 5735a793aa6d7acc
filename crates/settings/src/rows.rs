//! Rows of `SHOW CONFIG`.

use crate::key::{Key, Takes};
use crate::table::Table;

/// A setting with its place and its value.
#[derive(Debug, Clone)]
pub struct Row {
    /// Path in the file: `proxy.pool.size`.
    pub path: String,
    /// The setting.
    pub key: &'static Key,
    /// Value; None for a secret. A duration is its number of seconds, as with PgBouncer.
    pub value: Option<String>,
    /// Default, in the same form.
    pub default: Option<String>,
    /// Time at which a change takes effect.
    pub takes: Takes,
}

/// Returns the rows of a table at `path`, with those of the tables in it.
#[must_use]
pub fn rows<T: Table>(table: &T, path: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    table.add(path, Takes::Live, &mut rows);
    rows
}
