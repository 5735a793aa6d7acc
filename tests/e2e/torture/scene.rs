//! The interface between the history of clients and the fleet that they use.

use std::path::Path;

use tokio_postgres::Client;

/// A fleet in which clients write and read.
pub(super) trait Scene {
    /// Returns the directory of the logs shown at a failure.
    fn dir(&self) -> &Path;

    /// Connects as a superuser to the server with the acknowledged rows.
    async fn admin(&self) -> Client;

    /// Returns the last fault.
    fn last(&self) -> &str;

    /// True if clients are never shown data that could be lost.
    fn has_barriers(&self) -> bool;
}
