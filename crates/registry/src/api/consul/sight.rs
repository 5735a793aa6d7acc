//! The part of a namespace that a caller may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::entry::node_name;
use super::wire::Kept;
use crate::Instance;
use crate::api::auth::Caller;
use crate::rights::{Access, Resource};

/// The services and nodes of a namespace that a caller may read.
#[derive(Clone)]
pub(super) struct Sight {
    caller: Caller,
    namespace: Arc<str>,
    /// Name of this registry's node.
    own: Arc<str>,
    /// Set once something was left out.
    filtered: Arc<AtomicBool>,
}

impl Sight {
    /// Returns the sight of a caller; `None` if it reads all services and nodes of the namespace.
    pub(super) fn of(caller: &Caller, namespace: &str, own: &str, filtered: &Arc<AtomicBool>) -> Option<Sight> {
        let sight = || Sight {
            caller: caller.clone(),
            namespace: namespace.into(),
            own: own.into(),
            filtered: Arc::clone(filtered),
        };
        (!caller.sees_all(namespace)).then(sight)
    }

    /// Reads an object or leaves it out.
    fn sees(&self, resource: Resource<'_>) -> bool {
        let sees = self.caller.may(Access::Read, resource, &self.namespace);
        if !sees {
            self.filtered.store(true, Ordering::Relaxed);
        }
        sees
    }

    pub(super) fn service(&self, name: &str) -> bool {
        self.sees(Resource::service(name))
    }

    pub(super) fn node(&self, name: &str) -> bool {
        self.sees(Resource::node(name))
    }

    /// True if the caller may read an instance: its service and its node. Of a node, the node.
    pub(super) fn instance(&self, instance: &Instance, kept: &Kept) -> bool {
        (instance.id.is_of_machine() || self.service(instance.service.name())) && self.node(node_name(kept, &self.own))
    }
}
