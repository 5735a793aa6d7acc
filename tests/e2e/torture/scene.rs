//! The interface between the history of clients and the fleet that they use.

use std::path::Path;

use kingpost_tests::Node;

/// A fleet in which clients write and read.
pub(super) trait Scene {
    /// Returns the directory of the logs shown at a failure.
    fn dir(&self) -> &Path;

    /// Returns the server with the acknowledged rows.
    fn primary(&self) -> &Node;

    /// Returns the last fault.
    fn last(&self) -> &str;

    /// True if clients are never shown data that could be lost.
    fn has_barriers(&self) -> bool;
}
