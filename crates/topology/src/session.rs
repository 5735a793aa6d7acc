//! Sessions with the cluster's servers for control work other than probing: names, TLS and login as the probes have them.
//!
//! [`Topology::log_in`] is for programs that run beside a topology, [`connect`] for those that have only its configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::Client;
use wire::control::Settings;

use crate::Topology;
use crate::config::{ClusterConfig, NodeConfig, Target};
use crate::probe::{self, ProbeError};
use crate::view::NodeId;

/// Credentials of a session. Fields that are None have the probes' values.
#[derive(Clone, Default)]
pub struct Login {
    /// User; its password goes with it.
    pub user: Option<String>,
    /// Password of `user`, if the server requires one.
    pub password: Option<String>,
    /// Database.
    pub database: Option<String>,
    /// Name of the session in `pg_stat_activity`.
    pub application: String,
    /// Longest time to connect and log in; also the session's `statement_timeout`.
    pub timeout: Duration,
}

/// Cause of a failure to open a session.
#[derive(Debug, thiserror::Error)]
#[error("node {node:?}: {why}")]
pub struct SessionError {
    /// The node's name.
    pub node: String,
    /// Description of the error.
    pub why: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).field("database", &self.database).finish_non_exhaustive()
    }
}

impl Topology {
    /// Opens a session for an operator's statement: names are found in `pg_catalog`, then by the role's `search_path`. It ends soon after the
    /// client is dropped.
    ///
    /// # Errors
    /// The node is not of the cluster, cannot be reached in time, or refuses.
    pub async fn log_in(&self, node: NodeId, login: &Login) -> Result<Arc<Client>, SessionError> {
        let name = self.view().node(node).map(|node| node.node.name.clone()).unwrap_or_default();
        let error = |why: String| SessionError { node: name.clone(), why };
        let (mut config, connector) = self.to_log_in();
        let target = config.nodes.iter().find(|of| of.name == name).map(Target::of);
        let target = match target {
            Some(Ok(target)) => target,
            _ => return Err(error("it is no longer part of the cluster".into())),
        };
        if let Some(user) = &login.user {
            (config.user, config.password) = (user.clone(), login.password.clone());
        }
        if let Some(database) = &login.database {
            config.database.clone_from(database);
        }
        config.probe_timeout = login.timeout;
        let client =
            open(&target, &config, connector, &login.application, Some(&Settings::own_names()), login.timeout).await;
        client.map_err(|why| {
            self.note_refusal(&why);
            error(why.to_string())
        })
    }
}

/// A server does not answer, or refuses the login; in words for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// Connects to `node` as `cluster` says: user, password, database, TLS. `cluster.probe_timeout` limits each statement, `limit`
/// the time to connect. The session begins with `settings`; None for the console of a proxy, which has none. The session ends soon
/// after the client is dropped.
///
/// # Errors
/// [`ConnectError`], with the server's message.
pub async fn connect(
    cluster: &ClusterConfig,
    node: &NodeConfig,
    application: &str,
    settings: Option<&Settings>,
    limit: Duration,
) -> Result<Client, ConnectError> {
    let failed = |error: &dyn std::fmt::Display| ConnectError(error.to_string());
    let target = Target::of(node).map_err(|error| failed(&error))?;
    let connector = cluster.connector().map_err(|error| failed(&error))?.map(Arc::new);
    match open(&target, cluster, connector, application, settings, limit).await {
        // Only the prober has a handle of the client beside this one.
        Ok(client) => Arc::try_unwrap(client).map_err(|_| ConnectError("the session is shared".into())),
        Err(ProbeError::Timeout(_)) => Err(ConnectError(format!("no connection within {limit:?}"))),
        Err(error) => Err(failed(&error)),
    }
}

/// Connects and logs in within `limit`.
async fn open(
    target: &Target,
    config: &ClusterConfig,
    connector: Option<Arc<tls::Connector>>,
    application: &str,
    settings: Option<&Settings>,
    limit: Duration,
) -> Result<Arc<Client>, ProbeError> {
    let session = timeout(limit, probe::connect(target, config, connector, application, settings)).await;
    session.unwrap_or(Err(ProbeError::Timeout(limit))).map(|session| session.client)
}
