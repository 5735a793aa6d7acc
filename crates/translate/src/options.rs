//! Options of a translation, and the way to its files.

use std::path::Path;

use process::Failure;

/// Function that reads a file named by the settings.
pub(crate) type Read<'a> = &'a dyn Fn(&Path) -> Result<String, Failure>;

/// Options of a translation.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Settings to leave out.
    pub(crate) ignored: Vec<String>,
    /// Leaves out all that cannot be carried over.
    pub(crate) ignore_all: bool,
    /// Databases to translate; none: all.
    pub(crate) databases: Vec<String>,
    /// True if all servers are one primary and its replicas.
    pub(crate) same_cluster: bool,
    /// User of the probes.
    pub(crate) probe_user: Option<String>,
}
