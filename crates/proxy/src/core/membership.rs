//! The place of a cluster's proxy among those of its process, as its workers see it.

use std::sync::Arc;

use super::directory::Directory;

/// The clusters of a process.
pub(crate) trait Clusters: Send + Sync {
    /// Returns the directory by which clients are assigned.
    fn directory(&self) -> Arc<Directory>;

    /// Returns the cluster of a worker, by the worker's number among those of all clusters.
    fn of_worker(&self, number: usize) -> Option<Arc<str>>;
}

/// The clusters of a process with one cluster: there is no other one to which a client could be assigned.
struct Alone;

impl Clusters for Alone {
    fn directory(&self) -> Arc<Directory> {
        Arc::default()
    }

    fn of_worker(&self, _: usize) -> Option<Arc<str>> {
        None
    }
}

/// Name of the first cluster if no clusters are configured.
pub const ALONE: &str = "main";

/// Place of a cluster's proxy among those of its process.
#[derive(Clone)]
pub struct Membership {
    pub(crate) clusters: Arc<dyn Clusters>,
    /// Name of the cluster.
    pub(crate) cluster: Arc<str>,
    /// Number of its first worker among the workers of all clusters.
    pub(crate) first_worker: usize,
}

impl Membership {
    /// Returns the membership of a process with one cluster.
    #[must_use]
    pub fn alone() -> Membership {
        Membership { clusters: Arc::new(Alone), cluster: ALONE.into(), first_worker: 0 }
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
