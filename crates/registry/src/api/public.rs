//! The services that clients without a login see: those of DNS.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::acl::Acl;
use super::auth::{Auth, TokenHash};
use super::{Context, consul};
use crate::dns::{KnownNode, Owner, Queried, Services};
use crate::rights::{Access, Resource};
use crate::{NamespaceName, Registry, ServiceKey, ServiceSnapshot};

/// The services that clients without a login see.
pub struct PublicServices {
    registry: Registry,
    auth: Arc<ArcSwap<Auth>>,
    acl: Arc<Acl>,
}

impl Services for PublicServices {
    fn find(&self, key: &ServiceKey) -> Vec<Arc<ServiceSnapshot>> {
        let mut found = self.registry.spelled(key);
        if let Some(anonymous) = self.auth.load().anonymous(|| self.acl.view(&self.registry)) {
            found.retain(|service| anonymous.may_read(&service.key) && anonymous.sees_nodes(service.key.namespace()));
        }
        found
    }

    fn query(&self, namespace: &NamespaceName, name: &str) -> Option<Queried> {
        let auth = self.auth.load();
        let view = || self.acl.view(&self.registry);
        let caller = |token: Option<TokenHash>| match token {
            Some(hash) => auth.identify_hash(&hash, view).ok().map(Some),
            None => Some(auth.anonymous(view)),
        };
        let (instances, ttl) = consul::of_name(&self.registry, namespace, name, caller)?;
        Some(Queried { instances, ttl })
    }

    fn node(&self, namespace: &NamespaceName, name: &str) -> Option<KnownNode> {
        let node = Services::node(&self.registry, namespace, name)?;
        match self.auth.load().anonymous(|| self.acl.view(&self.registry)) {
            Some(anonymous) if !anonymous.may(Access::Read, Resource::node(&node.name), namespace.as_str()) => None,
            _ => Some(node),
        }
    }

    fn owners(&self, namespace: &NamespaceName, address: IpAddr) -> Vec<Owner> {
        let mut owners = Services::owners(&self.registry, namespace, address);
        if let Some(anonymous) = self.auth.load().anonymous(|| self.acl.view(&self.registry)) {
            owners.retain(|owner| match owner {
                Owner::Node(name) => anonymous.may(Access::Read, Resource::node(name), namespace.as_str()),
                Owner::Service(key) => anonymous.may_read(key) && anonymous.sees_nodes(key.namespace()),
            });
        }
        owners
    }
}

/// Returns the instances that a prepared query selects for whom may read everything, like [`PublicServices`]' `query`.
pub(crate) fn queried(registry: &Registry, namespace: &NamespaceName, name: &str) -> Option<Queried> {
    let (instances, ttl) = consul::of_name(registry, namespace, name, |_| Some(None))?;
    Some(Queried { instances, ttl })
}

impl Context {
    /// Returns the services that clients without a login see, for DNS: all, or with policies those of the anonymous token.
    pub fn public(&self) -> PublicServices {
        PublicServices { registry: self.registry.clone(), auth: Arc::clone(&self.auth), acl: Arc::clone(&self.acl) }
    }
}
