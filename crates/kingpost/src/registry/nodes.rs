//! The nodes of a cluster as instances of services, in the namespace `kingpost`: `postgres` has the servers, each with its role
//! in the metadata, `relay` the relays, `proxy` the proxies. The registry probes them like any other instance.

use std::sync::Arc;
use std::time::Duration;

use registry::{Check, CheckKind, InstanceId, Metadata, NamespaceName, Pace, Registration, Registry, ServiceKey};
use topology::{NodeConfig, Role, View};

/// The namespace of what Kingpost itself consists of.
pub(crate) const NAMESPACE: &str = "kingpost";
/// How often what the topology sees is compared with what is registered. What has not changed is not written.
const PACE: Duration = Duration::from_secs(1);

/// Keeps the registry up to date with what a topology sees, until the task is dropped.
pub(crate) async fn follow(
    registry: Registry,
    view: impl Fn() -> Arc<View>,
    servers: Vec<NodeConfig>,
    relays: Vec<String>,
    proxies: Vec<String>,
) {
    let mut failing = false;
    loop {
        let rows = registrations(&view(), &servers, &relays, &proxies);
        let refused = registry.register(rows).await.into_iter().find_map(Result::err);
        if let (Some(error), false) = (&refused, failing) {
            tracing::warn!(%error, "the cluster's nodes cannot be registered");
        }
        failing = refused.is_some();
        tokio::time::sleep(PACE).await;
    }
}

/// What is to be registered.
fn registrations(view: &View, servers: &[NodeConfig], relays: &[String], proxies: &[String]) -> Vec<Registration> {
    let pace = Pace { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), fall: 2, rise: 1 };
    let mut rows = Vec::new();
    for server in servers {
        let role = match view.nodes.iter().find(|node| node.node.name == server.name).map(|node| node.role) {
            Some(Role::Primary) => "primary",
            Some(Role::Replica) => "replica",
            Some(Role::Stale) => "stale",
            Some(Role::Unknown) | None => "unknown",
        };
        let check = CheckKind::Postgres { target: None, pace: pace.clone() };
        rows.extend(row("postgres", &server.name, &server.address, Some(role), server.zone.as_deref(), check));
    }
    for (service, addresses) in [("relay", relays), ("proxy", proxies)] {
        for (index, address) in addresses.iter().enumerate() {
            let check = CheckKind::Tcp { target: None, pace: pace.clone() };
            rows.extend(row(service, &format!("{service}{}", index + 1), address, None, None, check));
        }
    }
    rows
}

/// None for what cannot be an instance: a Unix socket, a name that is too long.
fn row(
    service: &str,
    name: &str,
    address: &str,
    role: Option<&str>,
    zone: Option<&str>,
    check: CheckKind,
) -> Option<Registration> {
    let (host, port) = address.rsplit_once(':')?;
    let namespace = NamespaceName::new(NAMESPACE).ok()?;
    let service = ServiceKey::new(&namespace, service).ok()?;
    let id = InstanceId::new(&namespace, name).ok()?;
    let mut row = Registration::new(id, service, host.trim_matches(['[', ']']), port.parse().ok()?);
    row.protocol = "postgresql".into();
    row.location.zone = zone.unwrap_or_default().into();
    row.metadata = Metadata::from_pairs(role.map(|role| ("role", role))).ok()?;
    row.check = Some(Check { kind: check, deregister_after: None });
    Some(row)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses_become_instances() {
        let check = || CheckKind::Tcp { target: None, pace: Pace::default() };
        let v6 = row("postgres", "node1", "[::1]:5432", Some("primary"), None, check()).unwrap();
        assert_eq!((v6.host.as_str(), v6.port, v6.metadata.get("role")), ("::1", 5432, Some("primary")));
        assert_eq!(v6.service.as_str(), "kingpost/postgres");
        assert!(row("postgres", "node1", "/run/postgresql", None, None, check()).is_none());
    }
}
