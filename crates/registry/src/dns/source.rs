//! The registry as the source of a zone.

use std::sync::Arc;

use super::{KnownNode, Queried, Services};
use crate::{NamespaceName, ON, Registry, ServiceKey, ServiceSnapshot, machine_id};

impl Services for Registry {
    fn find(&self, key: &ServiceKey) -> Vec<Arc<ServiceSnapshot>> {
        self.spelled(key)
    }

    fn query(&self, namespace: &NamespaceName, name: &str) -> Option<Queried> {
        crate::api::queried(self, namespace, name)
    }

    fn node(&self, namespace: &NamespaceName, name: &str) -> Option<KnownNode> {
        // DNS ignores case; a name that was registered in mixed case is found in that spelling only.
        let spelled = [name.to_owned(), name.to_lowercase(), name.to_uppercase()];
        let machine = |name: &String| self.instance(&machine_id(namespace, name).ok()?);
        let on_it = |name: &String| self.find(namespace, &[(ON, name)], 1).instances.into_iter().next();
        let found = spelled.iter().find_map(machine).or_else(|| spelled.iter().find_map(on_it))?;
        let (name, address) = crate::api::node_of(&found);
        Some(KnownNode { name, address })
    }
}
