//! What the console asks of the parts. The binary implements these; each part is there or not.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Deserialize;

use crate::picture::{
    Clients, Cluster, Found, InstanceDetail, Instances, PoolNumbers, ProxyNumbers, Registry, Relay, Statements,
};
use crate::search::Search;
use crate::transitions::Transition;

/// An answer that takes a while.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What runs in this process.
#[derive(Clone, Default)]
pub struct Parts {
    /// Who watches the nodes.
    pub cluster: Option<Arc<dyn ClusterPart>>,
    /// The proxy.
    pub proxy: Option<Arc<dyn ProxyPart>>,
    /// The relay.
    pub relay: Option<Arc<dyn RelayPart>>,
    /// The registry.
    pub registry: Option<Arc<dyn RegistryPart>>,
    /// The clusters, where there may be several: then `cluster` and `proxy` are taken from them.
    pub clusters: Option<Arc<dyn ClustersPart>>,
}

/// Who knows the clusters that this process serves. They may change at any time.
pub trait ClustersPart: Send + Sync {
    /// The clusters now, the first one first; their names differ. Must not block.
    fn now(&self) -> Vec<Served>;
}

/// One cluster that is served.
#[derive(Clone)]
pub struct Served {
    /// Its name.
    pub name: String,
    /// The same value as long as it is the same cluster: one that goes and comes again under its name is another.
    pub identity: Arc<dyn Any + Send + Sync>,
    /// Who watches its nodes.
    pub cluster: Arc<dyn ClusterPart>,
    /// Its proxy.
    pub proxy: Option<Arc<dyn ProxyPart>>,
}

/// Who watches the nodes.
pub trait ClusterPart: Send + Sync {
    /// Must not block.
    fn look(&self) -> Cluster;
}

/// A proxy.
pub trait ProxyPart: Send + Sync {
    /// Must not block.
    fn numbers(&self) -> ProxyNumbers;
    /// Asks the workers: may block for a second or two.
    fn pools(&self) -> Vec<PoolNumbers>;
    /// Up to `limit` clients. Likewise.
    fn clients(&self, limit: usize) -> Clients;
    /// Up to `limit` shapes of statements, those that have taken longest together first. Likewise.
    fn statements(&self, limit: usize) -> Statements;
    /// Does it, and says what was done. Likewise.
    ///
    /// # Errors
    /// It was not done.
    fn act(&self, action: &Action) -> Result<String, Refusal>;
    /// What the names in [`ProxyNumbers`] mean.
    fn glossary(&self) -> Vec<(&'static str, &'static str)>;
}

/// A relay.
pub trait RelayPart: Send + Sync {
    /// Must not block.
    fn look(&self) -> Relay;
}

/// A registry.
pub trait RegistryPart: Send + Sync {
    /// Must not block.
    fn look(&self) -> Registry;
    /// Up to `limit` services and instances, those that are not well first.
    fn find(&self, search: &Search, limit: usize) -> Found;
    /// Up to `limit` instances of a service, `namespace/name`, those that are not well first.
    fn instances(&self, service: &str, limit: usize) -> Option<Instances>;
    /// What became of instances after the `since`th transition, oldest first and at most `limit`; and the number of the last one.
    fn transitions_since(&self, since: u64, limit: usize) -> (Vec<Transition>, u64);
    /// An instance, `namespace/id`.
    fn instance(&self, id: &str) -> Option<InstanceDetail>;
    /// Does it, and says what was done.
    ///
    /// # Errors
    /// It was not done, or nobody knows.
    fn act<'a>(&'a self, action: &'a Action) -> BoxFuture<'a, Result<String, Refusal>>;
}

/// What an operator can do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Transactions end, then server connections close and clients wait. Without a database: of all.
    Pause {
        /// Which.
        database: Option<String>,
    },
    /// Goes on.
    Resume {
        /// Which.
        database: Option<String>,
    },
    /// Server connections are replaced as they become free.
    Reconnect {
        /// Which.
        database: Option<String>,
    },
    /// A client's connection is closed.
    KillClient {
        /// Its number, as [`crate::picture::Client::id`].
        id: String,
    },
    /// An instance is not used any more, whatever its health.
    Isolate {
        /// `namespace/id`.
        instance: String,
    },
    /// It is used again.
    Restore {
        /// `namespace/id`.
        instance: String,
    },
    /// Its share of the traffic.
    Weight {
        /// `namespace/id`.
        instance: String,
        /// 0: none.
        weight: u16,
    },
    /// It is taken out of the registry.
    Deregister {
        /// `namespace/id`.
        instance: String,
    },
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No part of this process could.
    #[error("no part of this process can do that: {0}")]
    NotHere(&'static str),
    /// Nothing of this name is there.
    #[error("{0}")]
    NotFound(String),
    /// The part says no; the text says why.
    #[error("{0}")]
    Refused(String),
}

impl Action {
    /// For logs and messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let of = |name: &Option<String>| name.clone().unwrap_or_else(|| "all databases".into());
        match self {
            Action::Pause { database } => format!("pause {}", of(database)),
            Action::Resume { database } => format!("resume {}", of(database)),
            Action::Reconnect { database } => format!("reconnect {}", of(database)),
            Action::KillClient { id } => format!("close client {id}"),
            Action::Isolate { instance } => format!("isolate {instance}"),
            Action::Restore { instance } => format!("restore {instance}"),
            Action::Weight { instance, weight } => format!("weight of {instance}: {weight}"),
            Action::Deregister { instance } => format!("deregister {instance}"),
        }
    }

    /// Whether it is the registry that does it; otherwise the proxy.
    #[must_use]
    pub fn is_of_the_registry(&self) -> bool {
        matches!(
            self,
            Action::Isolate { .. } | Action::Restore { .. } | Action::Weight { .. } | Action::Deregister { .. }
        )
    }
}
