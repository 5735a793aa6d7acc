//! A session with a server for whoever operates it, begun as the probes' own are: names, TLS and login alike.

use std::time::Duration;

use tokio_postgres::Client;

use crate::config::{ClusterConfig, NodeConfig, Target};
use crate::probe;

/// A server does not answer, or refuses the login; in words for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// Connects to `node` as `cluster` says: user, password, database, TLS. `cluster.probe_timeout` limits each statement, `limit`
/// the time to connect. The session ends soon after the client is dropped.
///
/// # Errors
/// [`ConnectError`], with what the server said.
pub async fn connect(
    cluster: &ClusterConfig,
    node: &NodeConfig,
    application: &str,
    limit: Duration,
) -> Result<Client, ConnectError> {
    let failed = |error: &dyn std::fmt::Display| ConnectError(error.to_string());
    let target = Target::of(node).map_err(|error| failed(&error))?;
    let connector = cluster.connector().map_err(|error| failed(&error))?.map(std::sync::Arc::new);
    let session = tokio::time::timeout(limit, probe::connect(&target, cluster, connector, application)).await;
    match session {
        Ok(Ok(session)) => {
            // Only the prober has a handle of the client beside this one.
            std::sync::Arc::try_unwrap(session.client).map_err(|_| ConnectError("the session is shared".into()))
        }
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(ConnectError(format!("no connection within {limit:?}"))),
    }
}
