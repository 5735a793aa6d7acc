//! xDS, state of the world: the protocol by which Envoy and gRPC ask where services are.
//!
//! ```text
//!  stream ─▶ serve: one task ─▶ exchange (sans-I/O): what the client wants and has ─▶ resources, endpoints (pure)
//!                 ▲ watched: what has changed        ▲ World: services, as the client's token may see them
//! ```
//!
//! A service is a Listener, a RouteConfiguration, a Cluster and a ClusterLoadAssignment of one name, `namespace/service`. What a token may not read
//! looks as if it were not there.

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

/// What clients do wrong is in the log so often at most.
const COMPLAIN: Duration = Duration::from_secs(10);
/// Namespaces of which the list of services is remembered.
const REMEMBERED: usize = 1024;

/// What streams of xDS count.
#[derive(Debug, Default)]
pub struct XdsStats {
    /// Streams that are open.
    pub streams: AtomicU64,
    /// Responses sent.
    pub responses: AtomicU64,
    /// Responses that clients refused.
    pub refused: AtomicU64,
    /// Instances that were left out when a service's endpoints were encoded: the host is a name, or there is no port.
    pub left_out: AtomicU64,
}

/// The services of a namespace, or of all (`None`), as of a revision.
type Lists = BTreeMap<Option<NamespaceName>, (Revision, Arc<Listing>)>;

/// What all streams share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Locked while a list is made: who waits for the lock gets it.
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
    /// The services of namespaces (`None`: of all). Made once a revision, apart from the threads that answer heartbeats.
    ///
    /// # Errors
    /// The server stops.
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
            _ => context.whole.apart(move || Arc::new(Listing::joined(&lists))).await,
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
        let made = context.whole.apart(move || {
            let revision = revision(&registry, asked.as_ref());
            let services = registry.services(asked.as_ref());
            (revision, Arc::new(Listing::new(services.iter().map(|service| service.key.clone()))))
        });
        let (revision, mut list) = made.await?;
        // Where only instances have changed, the list is the one that streams have already.
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

    /// Counts a response that a client does not take, and says so now and then.
    fn refused(&self, context: &Context, kind: Kind, node: &str, why: &str) {
        context.stats.xds.refused.fetch_add(1, Ordering::Relaxed);
        if self.refusals.is_due() {
            let why = why.chars().take(300).collect::<String>();
            tracing::warn!(?kind, ?node, ?why, "a client of xDS refuses what it is sent; said every 10 s at most");
        }
    }

    /// Counts instances that clients cannot be told of.
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

/// Of the last change in a namespace, or anywhere (`None`).
fn revision(registry: &Registry, namespace: Option<&NamespaceName>) -> Revision {
    namespace.map_or_else(|| registry.revision(), |namespace| registry.revision_in(namespace))
}
