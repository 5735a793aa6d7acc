//! The hubs: one for each cluster, started and ended as clusters come and go.

use std::sync::{Arc, Mutex, PoisonError};

use crate::hub::{Hub, Wake};
use crate::parts::{Parts, Served};

/// Each cluster's hub. Without several clusters there is a single one, for the given parts.
pub(crate) struct Hubs {
    parts: Parts,
    wake: Wake,
    /// Hubs in the order of the clusters.
    kept: Mutex<Vec<(Option<Served>, Arc<Hub>)>>,
}

impl Hubs {
    /// Starts the hubs.
    pub(crate) fn start(parts: Parts) -> Hubs {
        let hubs = Hubs { parts, wake: Wake::new(), kept: Mutex::default() };
        hubs.follow();
        hubs
    }

    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// Returns the hub of the cluster of this name; without a name, that of the first one.
    pub(crate) fn of(&self, name: Option<&str>) -> Option<Arc<Hub>> {
        self.follow();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |served: &Option<Served>, hub: &Hub| match (name, served) {
            (None, _) => true,
            (Some(name), Some(served)) => served.name == name,
            (Some(name), None) => hub.parts.cluster.as_ref().is_some_and(|part| part.look().name == name),
        };
        kept.iter().find(|(served, hub)| of(served, hub)).map(|(_, hub)| Arc::clone(hub))
    }

    /// Starts the hubs of new clusters, and ends those of removed clusters, whose viewers' streams end.
    pub(crate) fn follow(&self) {
        let now: Vec<Option<Served>> = match &self.parts.clusters {
            Some(clusters) => clusters.now().into_iter().map(Some).collect(),
            None => vec![None],
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |a: &Option<Served>, b: &Option<Served>| match (a, b) {
            (Some(a), Some(b)) => Arc::ptr_eq(&a.identity, &b.identity) && a.name == b.name,
            (None, None) => true,
            _ => false,
        };
        *kept = now
            .into_iter()
            .map(|served| {
                let known = kept.iter().find(|(known, _)| same(known, &served)).map(|(_, hub)| Arc::clone(hub));
                let hub = known.unwrap_or_else(|| {
                    let mut parts = self.parts.clone();
                    if let Some(served) = &served {
                        parts.cluster = Some(Arc::clone(&served.cluster));
                        parts.proxy.clone_from(&served.proxy);
                    }
                    Arc::new(Hub::start(parts, &self.wake))
                });
                (served, hub)
            })
            .collect();
    }
}
