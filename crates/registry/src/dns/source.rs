//! The registry as the source of a zone.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::answer::LOOKED_AT;
use super::{KnownNode, Owner, Queried, Services};
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

    fn owners(&self, namespace: &NamespaceName, address: IpAddr) -> Vec<Owner> {
        let found = self.on_host(namespace, &address.to_string(), LOOKED_AT);
        let at_address = |text: &str| text.parse() == Ok(address);
        let mut owners = Vec::new();
        let mut names = HashSet::new();
        for instance in &found {
            let (name, node_address) = crate::api::node_of(instance);
            // A registration that names no node gets its address as one, which says nothing about the address.
            if at_address(&name) || !at_address(&node_address) || !names.insert(name.clone()) {
                continue;
            }
            if Services::node(self, namespace, &name).is_some_and(|node| at_address(&node.address)) {
                owners.push(Owner::Node(name));
            }
        }
        for instance in found.iter().filter(|instance| !instance.service.is_of_machines()) {
            let service = Owner::Service(instance.service.clone());
            if !owners.contains(&service) {
                owners.push(service);
            }
        }
        owners
    }
}
