//! Interfaces of the parts. The binary implements them; each part is optional.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Deserialize;

use crate::picture::{
    Clients, Cluster, Comparison, Entries, EntryDetail, Eureka, Found, InstanceDetail, Instances, PoolNumbers,
    ProxyNumbers, Registry, Relay, Statements,
};
use crate::search::Search;
use crate::transitions::Transition;

/// A future of an answer that takes a while.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The parts that run in this process.
#[derive(Clone, Default)]
pub struct Parts {
    /// The monitor of the nodes.
    pub cluster: Option<Arc<dyn ClusterPart>>,
    /// The proxy.
    pub proxy: Option<Arc<dyn ProxyPart>>,
    /// The relay.
    pub relay: Option<Arc<dyn RelayPart>>,
    /// The registry.
    pub registry: Option<Arc<dyn RegistryPart>>,
    /// The clusters, if there may be several: then `cluster` and `proxy` come from them.
    pub clusters: Option<Arc<dyn ClustersPart>>,
}

/// The clusters that this process serves. They may change at any time.
pub trait ClustersPart: Send + Sync {
    /// Returns the current clusters, the first one first; their names differ. Must not block.
    fn now(&self) -> Vec<Served>;
}

/// A cluster that is served.
#[derive(Clone)]
pub struct Served {
    /// The name.
    pub name: String,
    /// Identity of the cluster: a cluster that is removed and added again under its name has another one.
    pub identity: Arc<dyn Any + Send + Sync>,
    /// The monitor of its nodes.
    pub cluster: Arc<dyn ClusterPart>,
    /// The proxy of the cluster.
    pub proxy: Option<Arc<dyn ProxyPart>>,
}

/// The monitor of the nodes.
pub trait ClusterPart: Send + Sync {
    /// Returns the state of the cluster. Must not block.
    fn look(&self) -> Cluster;
}

/// A proxy.
pub trait ProxyPart: Send + Sync {
    /// Returns the proxy's numbers. Must not block.
    fn numbers(&self) -> ProxyNumbers;
    /// Asks the workers for their pools: may block for a second or two.
    fn pools(&self) -> Vec<PoolNumbers>;
    /// Asks the workers for up to `limit` clients: may block likewise.
    fn clients(&self, limit: usize) -> Clients;
    /// Asks the workers for up to `limit` shapes of statements, those with the longest total time first: may block likewise.
    fn statements(&self, limit: usize) -> Statements;
    /// Carries out an action, and returns what was done: may block likewise.
    ///
    /// # Errors
    /// The action was not carried out.
    fn act(&self, action: &Action) -> Result<String, Refusal>;
    /// Returns the meanings of the names in [`ProxyNumbers`].
    fn glossary(&self) -> Vec<(&'static str, &'static str)>;
}

/// A relay.
pub trait RelayPart: Send + Sync {
    /// Returns the state of the relay. Must not block.
    fn look(&self) -> Relay;
}

/// A registry.
pub trait RegistryPart: Send + Sync {
    /// Returns the state of the registry. Must not block.
    fn look(&self) -> Registry;
    /// Returns up to `limit` services and instances, unhealthy ones first.
    fn find(&self, search: &Search, limit: usize) -> Found;
    /// Returns up to `limit` instances of a service, `namespace/name`, unhealthy ones first.
    fn instances(&self, service: &str, limit: usize) -> Option<Instances>;
    /// Returns at most `limit` transitions of instances after the `since`th, oldest first; and the number of the last one.
    fn transitions_since(&self, since: u64, limit: usize) -> (Vec<Transition>, u64);
    /// Returns an instance, `namespace/id`.
    fn instance(&self, id: &str) -> Option<InstanceDetail>;
    /// Returns up to `limit` applications of a namespace, as Eureka's clients see them.
    fn eureka(&self, namespace: &str, limit: usize) -> Option<Eureka>;
    /// Returns up to `limit` configuration entries of a namespace: of a group, unless it is empty, and with `text` in their name.
    fn entries(&self, namespace: &str, group: &str, text: &str, limit: usize) -> Option<Entries>;
    /// Returns an entry with its versions. A secret's content is left out.
    fn entry(&self, name: &EntryName) -> Option<EntryDetail>;
    /// Returns the difference of two versions of an entry.
    fn compare(&self, name: &EntryName, old: u64, new: u64) -> Option<Comparison>;
    /// Carries out an action, and returns what was done.
    ///
    /// # Errors
    /// The action was not carried out, or its outcome is unknown.
    fn act<'a>(&'a self, action: &'a Action) -> BoxFuture<'a, Result<String, Refusal>>;
}

/// The name of a configuration entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct EntryName {
    /// The namespace.
    pub namespace: String,
    /// The group.
    pub group: String,
    /// The data id.
    pub id: String,
}

/// An operator's action.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Pause: transactions end, then server connections close and clients wait. Without a database: all of them.
    Pause {
        /// The database.
        database: Option<String>,
    },
    /// End a pause.
    Resume {
        /// The database.
        database: Option<String>,
    },
    /// Replace server connections as they become free.
    Reconnect {
        /// The database.
        database: Option<String>,
    },
    /// Close a client's connection.
    KillClient {
        /// The client's number, as in [`crate::picture::Client::id`].
        id: String,
    },
    /// Isolate an instance, whatever its health.
    Isolate {
        /// `namespace/id`.
        instance: String,
    },
    /// End the isolation of an instance.
    Restore {
        /// `namespace/id`.
        instance: String,
    },
    /// Set an instance's share of the traffic.
    Weight {
        /// `namespace/id`.
        instance: String,
        /// 0: none.
        weight: u16,
    },
    /// Deregister an instance.
    Deregister {
        /// `namespace/id`.
        instance: String,
    },
    /// Publish an older version of a configuration entry again.
    RollBack {
        /// The entry.
        entry: EntryName,
        /// The version to restore.
        version: u64,
    },
}

/// Reason why an action was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No part of this process can do it.
    #[error("no part of this process can do that: {0}")]
    NotHere(&'static str),
    /// The named object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The part refused; the text is the reason.
    #[error("{0}")]
    Refused(String),
}

impl Action {
    /// Describes the action for logs and messages.
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
            Action::RollBack { entry: EntryName { namespace, group, id }, version } => {
                format!("roll back {namespace}: {group}/{id} to version {version}")
            }
        }
    }

    /// True if the registry carries out the action; false if the proxy does.
    #[must_use]
    pub fn is_of_the_registry(&self) -> bool {
        matches!(
            self,
            Action::Isolate { .. }
                | Action::Restore { .. }
                | Action::Weight { .. }
                | Action::Deregister { .. }
                | Action::RollBack { .. }
        )
    }
}
