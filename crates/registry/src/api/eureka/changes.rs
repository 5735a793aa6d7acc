//! Changes of Eureka's instances, by clients and by other Eureka servers. The rules are those of the original's server.

use std::sync::Arc;
use std::time::Duration;

use super::view;
use super::wire::{KEPT, Kept, Sent};
use crate::api::{ApiError, RESERVED, identity};
use crate::{
    Check, CheckKind, Edit, Health, Instance, InstanceId, Metadata, NamespaceName, Patch, Registration, Registry,
    ServiceKey,
};

/// Number of leases without a heartbeat after which an instance is removed.
const LEASES: u32 = 3;

/// Sender of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A client, whose change goes on to the other servers.
    Client,
    /// Another server, for one of its own clients.
    Replica,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    /// The sender knows the instance as it is here.
    Current,
    /// The sender has newer data, and is asked for them.
    Older,
    /// The sender's data are older than those here, which it gets.
    Newer,
}

/// Compares the time of change that a heartbeat names with that of the instance here. Only a server is told of newer data: a client knows best.
pub(super) fn renewal(instance: &Instance, kept: &Kept, dirty: Option<i64>, origin: Origin) -> Renewal {
    let own = match origin {
        // 0: the client does not say when it has changed.
        Origin::Client if kept.last_dirty == 0 => return Renewal::Current,
        Origin::Client => kept.last_dirty,
        Origin::Replica => view::last_dirty(instance, kept),
    };
    match dirty {
        Some(dirty) if dirty > own => Renewal::Older,
        Some(dirty) if dirty < own && origin == Origin::Replica => Renewal::Newer,
        _ => Renewal::Current,
    }
}

/// The outcome of a registration.
pub(super) struct Registered {
    /// True if the row has changed.
    pub(super) changed: bool,
    /// The instance's id.
    pub(super) id: InstanceId,
}

/// Registers an instance of an application. A newer registration stays, as in the original; its lease is renewed.
pub(super) async fn register(
    registry: &Registry,
    namespace: &NamespaceName,
    service: &ServiceKey,
    app: &str,
    sent: &Sent,
    origin: Origin,
) -> Result<Registered, ApiError> {
    let id = identity::eureka(namespace, app, &sent.id)?;
    let ttl = Duration::from_secs(sent.lease_seconds);
    let mut older = false;
    let written = registry.change(&id, |before| {
        let known = before.and_then(|instance| Kept::of(instance));
        let kept = sent.kept.after(known.as_ref(), origin);
        older = kept.is_none();
        let Some(kept) = kept else { return registered_again(before, known) };
        let isolate = isolated(&kept, known.as_ref());
        let own = [(KEPT, kept.to_text()), (identity::CLIENT_ID, sent.id.clone())];
        let pairs = sent.metadata.iter().filter(|(key, _)| !key.starts_with(RESERVED));
        let pairs = pairs.map(|(key, value)| (key.as_str(), value.clone())).chain(own);
        let registration = Registration {
            metadata: Metadata::from_pairs(pairs)?,
            check: Some(Check { kind: CheckKind::Ttl { ttl }, deregister_after: Some(ttl.saturating_mul(LEASES)) }),
            health: Some(Health::Passing),
            isolate,
            ..Registration::new(id.clone(), service.clone(), &sent.host, sent.port)
        };
        Ok::<_, ApiError>(Edit::Register(Box::new(registration)))
    });
    let changed = written.await?.changed();
    if older {
        registry.heartbeat(std::slice::from_ref(&id)).await;
    }
    Ok(Registered { changed, id })
}

/// Takes over an instance that another server has: the server's status of operators comes with it, also in place of another one. Leaves an instance
/// that is as new here alone. Returns true if it is changed.
pub(super) async fn adopt(registry: &Registry, namespace: &NamespaceName, sent: &Sent) -> Result<bool, ApiError> {
    let app = sent.app.as_deref().ok_or_else(|| ApiError::bad("instance.app is missing"))?;
    let id = identity::eureka(namespace, app, &sent.id)?;
    if let Some(instance) = registry.instance(&id) {
        let kept = Kept::of(&instance).unwrap_or_default();
        if renewal(&instance, &kept, Some(sent.kept.last_dirty), Origin::Replica) != Renewal::Older {
            return Ok(false);
        }
        if !sent.kept.overridden.is_empty() {
            keep_override(registry, &id, &sent.kept.overridden).await?;
        }
    }
    let usual = ServiceKey::new(namespace, &app.to_lowercase())?;
    // A service whose name is not in lower case was registered through another front.
    let service = registry.spelled(&usual).first().map_or(usual, |service| service.key.clone());
    Ok(register(registry, namespace, &service, app, sent, Origin::Replica).await?.changed)
}

/// Sets the status of an operator that another server names, also in place of another one.
pub(super) async fn keep_override(registry: &Registry, id: &InstanceId, status: &str) -> Result<(), ApiError> {
    let change = registry.change(id, |instance| {
        let Some((instance, kept)) = instance.and_then(|instance| Some((instance, Kept::of(instance)?))) else {
            return Ok(Edit::Nothing);
        };
        if kept.overridden == status {
            return Ok(Edit::Nothing);
        }
        let known = kept.clone();
        let kept = Kept { overridden: status.to_owned(), ..kept };
        let isolate = isolated(&kept, Some(&known));
        Ok::<_, ApiError>(Edit::Patch(Patch { metadata: Some(with(instance, &kept)?), isolate, ..Patch::default() }))
    });
    change.await.map(drop)
}

/// Returns an instance's metadata with other attributes of Eureka.
fn with(instance: &Instance, kept: &Kept) -> Result<Metadata, ApiError> {
    let pairs = instance.metadata.iter().filter(|(key, _)| *key != KEPT).map(|(key, value)| (key, value.to_owned()));
    Ok(Metadata::from_pairs(pairs.chain([(KEPT, kept.to_text())]))?)
}

/// Returns true if the instance must be isolated after a change from `known` to `kept`; `None` leaves that unchanged: an instance that was UP but
/// isolated has been isolated through another front.
pub(super) fn isolated(kept: &Kept, known: Option<&Kept>) -> Option<bool> {
    match (kept.effective() == "UP", known.is_none_or(|known| known.effective() == "UP")) {
        (false, _) => Some(true),
        (true, false) => Some(false),
        (true, true) => None,
    }
}

/// Returns what an older registration changes: as in the original, the last change of the instance is a registration then.
fn registered_again(before: Option<&Arc<Instance>>, known: Option<Kept>) -> Result<Edit, ApiError> {
    let (Some(before), Some(known)) = (before, known.filter(|known| known.modified)) else { return Ok(Edit::Nothing) };
    let metadata = Some(with(before, &Kept { modified: false, ..known })?);
    Ok(Edit::Patch(Patch { metadata, ..Patch::default() }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn whose_word_counts() {
        let kept = |status: &str, overridden: &str| Kept {
            status: status.into(),
            overridden: overridden.into(),
            ..Kept::default()
        };
        for (now, before, expected) in [
            (kept("UP", ""), None, None),
            (kept("DOWN", ""), None, Some(true)),
            (kept("UP", "OUT_OF_SERVICE"), None, Some(true)),
            (kept("UP", ""), Some(kept("UP", "")), None),
            (kept("UP", ""), Some(kept("DOWN", "")), Some(false)),
            (kept("UP", ""), Some(kept("UP", "OUT_OF_SERVICE")), Some(false)),
            (kept("UP", "UP"), Some(kept("DOWN", "")), Some(false)),
            (kept("DOWN", "UP"), Some(kept("UP", "UP")), Some(true)),
        ] {
            assert_eq!(isolated(&now, before.as_ref()), expected, "{now:?} after {before:?}");
        }
    }

    #[test]
    fn whose_data_are_newer() {
        use Origin::{Client, Replica};
        let namespace = NamespaceName::default();
        let id = identity::eureka(&namespace, "SHOP", "a").unwrap();
        let service = ServiceKey::new(&namespace, "shop").unwrap();
        let mut instance = Instance::registered(Registration::new(id, service, "h", 1), None);
        instance.mtime = 50;
        for (told, origin, dirty, expected) in [
            (10, Client, None, Renewal::Current),
            (10, Client, Some(10), Renewal::Current),
            (10, Client, Some(11), Renewal::Older),
            (10, Client, Some(9), Renewal::Current),
            (10, Replica, None, Renewal::Current),
            (10, Replica, Some(10), Renewal::Current),
            (10, Replica, Some(11), Renewal::Older),
            (10, Replica, Some(9), Renewal::Newer),
            // A client that does not say when it has changed: other servers know it by the time of its row.
            (0, Client, Some(51), Renewal::Current),
            (0, Replica, Some(51), Renewal::Older),
            (0, Replica, Some(50), Renewal::Current),
            (0, Replica, Some(49), Renewal::Newer),
        ] {
            let kept = Kept { last_dirty: told, ..Kept::default() };
            assert_eq!(renewal(&instance, &kept, dirty, origin), expected, "{told} {origin:?} {dirty:?}");
        }
    }
}
