//! What the history of clients has to know of where they are.

use std::path::Path;

use kingpost_tests::Node;

/// A fleet in which clients write and read.
pub(super) trait Scene {
    /// Directory of the logs that explain a failure.
    fn dir(&self) -> &Path;

    /// The server that has what was acknowledged.
    fn primary(&self) -> &Node;

    /// What happened last.
    fn last(&self) -> &str;

    /// Whether nobody is shown what could be lost.
    fn has_barriers(&self) -> bool;
}
