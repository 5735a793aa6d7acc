//! Helpers for the tests of the stores.

pub(crate) mod authority;
pub(crate) mod config;
pub(crate) mod fire;
pub(crate) mod kv;
mod node;
pub(crate) mod suite;

pub(crate) use node::Node;

use std::sync::Arc;
use std::time::Duration;

use registry::{
    Digest, InstanceId, Metadata, NamespaceName, Patch, Registration, Registry, Revision, ServiceKey, Settings, Store,
};

/// Time limit of every wait; nothing here takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn service(n: usize) -> ServiceKey {
    ServiceKey::new(&NamespaceName::default(), &format!("service-{n}")).unwrap()
}

pub(crate) fn id(n: usize) -> InstanceId {
    InstanceId::new(&NamespaceName::default(), &format!("instance-{n}")).unwrap()
}

/// Makes instance `n` of service `n % 10` with `what` in its metadata.
pub(crate) fn registration(n: usize, what: &str) -> Registration {
    let mut registration = Registration::new(id(n), service(n % 10), "10.0.0.1", 8080);
    registration.metadata = Metadata::from_pairs([("what", what), ("n", &n.to_string())]).unwrap();
    registration
}

pub(crate) async fn open(store: &Arc<dyn Store>) -> Registry {
    Registry::open(Settings::default(), Arc::clone(store)).await.unwrap()
}

/// Registers a server of `kind` at `port` as critical, and waits until its probe makes it passing.
pub(crate) async fn probed(store: &Arc<dyn Store>, kind: &str, port: u16) {
    let registry = open(store).await;
    let mut probed = registration(700, "a server");
    (probed.host, probed.port, probed.health) = ("127.0.0.1".into(), port, Some(registry::Health::Critical));
    let check = format!(r#"{{"type":"{kind}","interval":"1s","rise":1}}"#);
    probed.check = Some(serde_json::from_str(&check).unwrap());
    let written = registry.register(vec![probed]).await.pop().unwrap().unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    assert!(registry.watch(&service(0), written.revision, deadline).await.unwrap() > written.revision);
    assert_eq!(registry.instance(&id(700)).unwrap().health, registry::Health::Passing);
    registry.shutdown().await;
}

pub(crate) fn weight(weight: u16) -> Patch {
    Patch { weight: Some(weight), ..Patch::default() }
}

/// Returns the digests of all services.
pub(crate) fn digests(registry: &Registry) -> Vec<(ServiceKey, Digest, usize)> {
    let services = registry.services(None);
    services.iter().map(|s| (s.key.clone(), s.digest, s.instances.len())).collect()
}

/// Waits until `registry` has everything up to `revision`.
pub(crate) async fn reached(registry: &Registry, revision: Revision) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let at = registry.watch_all(Revision(revision.0.saturating_sub(1)), deadline).await.unwrap();
    assert!(at >= revision, "the feed reached {at}, not {revision}");
}
