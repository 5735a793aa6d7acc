//! xDS, state of the world: the protocol by which Envoy and gRPC discover services.
//!
//! ```text
//!  stream ─▶ serve: one task ─▶ exchange (sans-I/O): what the client wants and has ─▶ resources, endpoints (pure)
//!                 ▲ watched: what has changed        ▲ World: services, as the client's token may see them
//! ```
//!
//! A service is a Listener, a RouteConfiguration, a Cluster and a ClusterLoadAssignment of one name, `namespace/service`. A service that the token
//! may not read appears not to exist.

mod endpoints;
mod exchange;
#[cfg(test)]
mod exchange_tests;
mod resources;
mod serve;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::exchange::Listing;
pub(in crate::api) use self::resources::{Kind, Resource};
pub(in crate::api) use self::serve::{Shown, serve};
use super::complaint::Complaint;
use super::grpc::proto::xds as pb;
use super::{ApiError, Context};
use crate::{NamespaceName, Registry, Revision, ServiceKey};

/// Minimum interval of log messages about client errors.
const COMPLAIN: Duration = Duration::from_secs(10);
/// Maximum number of namespaces with a cached list of services.
const REMEMBERED: usize = 1024;

/// Counters of xDS streams.
#[derive(Debug, Default)]
pub struct XdsStats {
    /// Number of open streams.
    pub streams: AtomicU64,
    /// Number of responses sent.
    pub responses: AtomicU64,
    /// Number of responses that clients rejected.
    pub refused: AtomicU64,
    /// Number of instances omitted from encoded endpoints: the host is a name, or there is no port.
    pub left_out: AtomicU64,
}

/// Lists of the services of a namespace, or of all (`None`), with their revision.
type Lists = BTreeMap<Option<NamespaceName>, (Revision, Arc<Listing>)>;

/// State shared by all xDS streams of this node.
#[derive(Debug)]
pub(super) struct Shared {
    /// Locked while a list is made: callers that wait for the lock then get that list.
    lists: tokio::sync::Mutex<Lists>,
    refusals: Complaint,
    names: Complaint,
}

impl Default for Shared {
    fn default() -> Shared {
        let complaint = || Complaint::every(COMPLAIN);
        Shared { lists: tokio::sync::Mutex::default(), refusals: complaint(), names: complaint() }
    }
}

impl Shared {
    /// Returns the services of namespaces (`None` for all). Made once per revision, on other threads than those that answer heartbeats.
    ///
    /// # Errors
    /// The server is stopping.
    async fn list(&self, context: &Context, namespaces: Option<Vec<NamespaceName>>) -> Result<Arc<Listing>, ApiError> {
        let Some(mut namespaces) = namespaces else { return self.list_of(context, None).await };
        namespaces.sort_unstable();
        namespaces.dedup();
        let mut lists = Vec::with_capacity(namespaces.len());
        for namespace in namespaces {
            lists.push(self.list_of(context, Some(namespace)).await?);
        }
        match &*lists {
            [one] => Ok(Arc::clone(one)),
            _ => context.lists.apart(move || Arc::new(Listing::joined(&lists))).await,
        }
    }

    async fn list_of(&self, context: &Context, namespace: Option<NamespaceName>) -> Result<Arc<Listing>, ApiError> {
        let mut lists = self.lists.lock().await;
        let registry = context.registry.clone();
        let now = revision(&registry, namespace.as_ref());
        if let Some((revision, list)) = lists.get(&namespace)
            && *revision == now
        {
            return Ok(Arc::clone(list));
        }
        let asked = namespace.clone();
        let made = context.lists.apart(move || {
            let revision = revision(&registry, asked.as_ref());
            let services = registry.services(asked.as_ref());
            (revision, Arc::new(Listing::new(services.iter().map(|service| service.key.clone()))))
        });
        let (revision, mut list) = made.await?;
        // If only instances have changed, the list that streams already have is kept.
        if let Some((_, before)) = lists.get(&namespace)
            && *before == list
        {
            list = Arc::clone(before);
        }
        if lists.len() >= REMEMBERED {
            lists.clear();
        }
        lists.insert(namespace, (revision, Arc::clone(&list)));
        Ok(list)
    }

    /// Counts a response that a client rejects, and logs it with a rate limit.
    fn refused(&self, context: &Context, kind: Kind, node: &str, why: &str) {
        context.stats.xds.refused.fetch_add(1, Ordering::Relaxed);
        if self.refusals.is_due() {
            let why = why.chars().take(300).collect::<String>();
            tracing::warn!(?kind, ?node, ?why, "a client of xDS refuses what it is sent; said every 10 s at most");
        }
    }

    /// Counts omitted instances.
    fn left_out(&self, context: &Context, service: &ServiceKey, instances: usize) {
        context.stats.xds.left_out.fetch_add(instances as u64, Ordering::Relaxed);
        if instances > 0 && self.names.is_due() {
            let service = service.as_str();
            tracing::warn!(
                service,
                instances,
                "left out for clients of xDS: instances whose host is a name, or without a port; said every 10 s at most"
            );
        }
    }
}

/// Returns the revision of the last change in a namespace, or anywhere (`None`).
fn revision(registry: &Registry, namespace: Option<&NamespaceName>) -> Revision {
    namespace.map_or_else(|| registry.revision(), |namespace| registry.revision_in(namespace))
}
