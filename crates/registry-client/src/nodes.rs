//! The nodes of a cluster as instances in the namespace `kingpost`: services `postgres` or `mariadb` for the servers, each with its role in the
//! metadata, `relay` for the relays, `proxy` for the proxies. The registry probes them like any other instance.

use std::time::Duration;

use registry::{Check, CheckKind, InstanceId, Metadata, NamespaceName, Pace, Registration, Registry, ServiceKey};
use topology::{NodeConfig, Role, View};

/// The namespace of Kingpost's own parts.
pub const NAMESPACE: &str = "kingpost";
/// Interval at which the nodes are registered again. The registry does not write unchanged ones.
const PACE: Duration = Duration::from_secs(1);

/// Registers the instances that `rows` returns, again and again, until the task is dropped.
pub async fn keep(registry: Registry, rows: impl Fn() -> Vec<Registration>) {
    let mut failing = false;
    loop {
        let refused = registry.register(rows()).await.into_iter().find_map(Result::err);
        if let (Some(error), false) = (&refused, failing) {
            tracing::warn!(%error, "the cluster's nodes cannot be registered");
        }
        failing = refused.is_some();
        tokio::time::sleep(PACE).await;
    }
}

/// Returns the pace of the registry's probes.
fn pace() -> Pace {
    Pace { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), fall: 2, rise: 1 }
}

/// Returns the instances of the servers of MariaDB or MySQL (`engine`) and their relay, given as name, address and role.
pub fn of_binlog(engine: &str, parts: impl Iterator<Item = (String, String, &'static str)>) -> Vec<Registration> {
    let mut rows = Vec::new();
    for (name, address, role) in parts {
        let check = CheckKind::Tcp { target: None, tls: None, pace: pace() };
        // Recognised by its name: a relay that is down has no role.
        let row = match (name.as_str(), role) {
            ("relay", _) => row("relay", "mysql", "relay1", &address, None, None, check),
            (name, "down") => row(engine, "mysql", name, &address, Some("unknown"), None, check),
            (name, role) => row(engine, "mysql", name, &address, Some(role), None, check),
        };
        rows.extend(row);
    }
    rows
}

/// Returns the instances of the PostgreSQL servers in a topology's view, of their relays and proxies.
pub fn of_postgres(view: &View, servers: &[NodeConfig], relays: &[String], proxies: &[String]) -> Vec<Registration> {
    let mut rows = Vec::new();
    for server in servers {
        let role = match view.nodes.iter().find(|node| node.node.name == server.name).map(|node| node.role) {
            Some(Role::Primary) => "primary",
            Some(Role::Replica) => "replica",
            Some(Role::Stale) => "stale",
            Some(Role::Unknown) | None => "unknown",
        };
        let check = CheckKind::Postgres { target: None, pace: pace() };
        let zone = server.zone.as_deref();
        rows.extend(row("postgres", "postgresql", &server.name, &server.address, Some(role), zone, check));
    }
    for (service, addresses) in [("relay", relays), ("proxy", proxies)] {
        for (index, address) in addresses.iter().enumerate() {
            let check = CheckKind::Tcp { target: None, tls: None, pace: pace() };
            let name = format!("{service}{}", index + 1);
            rows.extend(row(service, "postgresql", &name, address, None, None, check));
        }
    }
    rows
}

/// Makes an instance; `None` if it cannot be one: a Unix socket, a name that is too long.
fn row(
    service: &str,
    protocol: &str,
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
    row.protocol = protocol.into();
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
        let check = || CheckKind::Tcp { target: None, tls: None, pace: Pace::default() };
        let v6 = row("postgres", "postgresql", "node1", "[::1]:5432", Some("primary"), None, check()).unwrap();
        assert_eq!((v6.host.as_str(), v6.port, v6.metadata.get("role")), ("::1", 5432, Some("primary")));
        assert_eq!(v6.service.as_str(), "kingpost/postgres");
        assert!(row("postgres", "postgresql", "node1", "/run/postgresql", None, None, check()).is_none());
        let parts = [("node1", "primary"), ("node2", "down"), ("relay", "down")];
        let rows =
            of_binlog("mariadb", parts.into_iter().map(|(name, role)| (name.into(), "127.0.0.1:3306".into(), role)));
        let found: Vec<_> = rows.iter().map(|row| (row.service.as_str(), row.metadata.get("role"))).collect();
        let mariadb = "kingpost/mariadb";
        assert_eq!(found, [(mariadb, Some("primary")), (mariadb, Some("unknown")), ("kingpost/relay", None)]);
    }
}
