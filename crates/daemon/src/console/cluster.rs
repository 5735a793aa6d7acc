//! The cluster pages of the web console, from the topology's view.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ::console::ClusterPart;
use ::console::picture::{self, Cluster};
use topology::{NodeView, Role, Topology, WEIGHT_SCALE};
use watermark::Lsn;

use crate::run::address_of;

/// A cluster that is being watched.
pub(crate) struct Watched {
    pub topology: Arc<Topology>,
    pub name: String,
}

impl ClusterPart for Watched {
    fn look(&self) -> Cluster {
        let view = self.topology.view();
        Cluster {
            name: self.name.clone(),
            engine: picture::Engine::Postgresql,
            timeline: view.term.told_timeline(),
            primary: view.primary_node().map(|node| node.node.name.clone()),
            nodes: view.nodes.iter().map(|node| self.node(node)).collect(),
        }
    }
}

impl Watched {
    fn node(&self, view: &NodeView) -> picture::Node {
        let node = &view.node;
        let position = Lsn(node.reported.position.load(Ordering::Relaxed));
        let timeline = node.reported.timeline.load(Ordering::Relaxed);
        picture::Node {
            name: node.name.clone(),
            address: address_of(&view.address),
            role: match view.role {
                Role::Unknown => picture::Role::Unknown,
                Role::Primary => picture::Role::Primary,
                Role::Replica => picture::Role::Replica,
                Role::Stale => picture::Role::Stale,
            },
            usable: view.usable,
            weight: f64::from(view.weight) / f64::from(WEIGHT_SCALE),
            zone: view.zone.clone(),
            timeline: (timeline > 0).then_some(timeline),
            position: (position > Lsn(0)).then(|| position.to_string()),
            lag_ms: node.lag_ms.load(Ordering::Relaxed),
            lag_bytes: node.lag_bytes.load(Ordering::Relaxed),
            lag_transactions: None,
            error: self.topology.failure(node.id),
        }
    }
}
