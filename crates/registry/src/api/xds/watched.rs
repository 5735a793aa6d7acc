//! Wake-ups of an xDS stream: single services while the client names few, whole namespaces when it names many.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, pending};
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::{NamespaceName, Registry, Revision, ServiceKey};

/// Number of names in a namespace above which a stream waits for any change of the namespace.
const EACH: usize = 64;
/// Minimum interval between two responses about the same object. Many services take longer to check.
const BETWEEN: Duration = Duration::from_millis(200);
const BETWEEN_MANY: Duration = Duration::from_secs(1);
/// Time that a watch waits before it is renewed.
const QUIET: Duration = Duration::from_secs(30);
/// Polling interval when there are too many watches.
const POLL: Duration = Duration::from_secs(5);

/// An object that is watched.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Watch {
    /// One service.
    Service(ServiceKey),
    /// Any service of a namespace.
    Namespace(NamespaceName),
    /// Any service.
    All,
}

/// Returns the objects to watch for the services `keys`, named by the client, and for `listed`, the namespaces with all services (an inner `None`
/// means all namespaces).
pub(super) fn wanted<'a>(
    keys: impl Iterator<Item = &'a ServiceKey>,
    listed: Option<Option<Vec<NamespaceName>>>,
) -> BTreeSet<Watch> {
    let mut watches: BTreeSet<Watch> = match listed {
        Some(None) => return BTreeSet::from([Watch::All]),
        Some(Some(namespaces)) => namespaces.into_iter().map(Watch::Namespace).collect(),
        None => BTreeSet::new(),
    };
    let mut by_namespace: BTreeMap<&str, BTreeSet<&ServiceKey>> = BTreeMap::new();
    for key in keys {
        by_namespace.entry(key.namespace()).or_default().insert(key);
    }
    for keys in by_namespace.into_values() {
        let Some(namespace) = keys.first().map(|key| Watch::Namespace(NamespaceName::of(key))) else { continue };
        if watches.contains(&namespace) {
            continue;
        }
        if keys.len() > EACH {
            watches.insert(namespace);
        } else {
            watches.extend(keys.into_iter().map(|key| Watch::Service(key.clone())));
        }
    }
    watches
}

/// Running watches, in the task of their stream.
pub(super) struct Watches {
    registry: Registry,
    running: BTreeMap<Watch, AbortHandle>,
    futures: FuturesUnordered<Abortable<Pin<Box<dyn Future<Output = Watch> + Send>>>>,
}

impl Watches {
    pub(super) fn new(registry: &Registry) -> Watches {
        Watches { registry: registry.clone(), running: BTreeMap::new(), futures: FuturesUnordered::new() }
    }

    /// Replaces the watched objects. Later changes are reported by [`Watches::next`].
    pub(super) fn set(&mut self, wanted: BTreeSet<Watch>) {
        self.running.retain(|watch, handle| {
            let stays = wanted.contains(watch);
            if !stays {
                handle.abort();
            }
            stays
        });
        for watch in wanted {
            if !self.running.contains_key(&watch) {
                self.begin(watch, Duration::ZERO);
            }
        }
    }

    /// Waits until an object has changed, and continues to watch it: a later read is not older than the change.
    pub(super) async fn next(&mut self) -> Watch {
        loop {
            match self.futures.next().await {
                Some(Ok(watch)) => {
                    let pause = if matches!(watch, Watch::Service(_)) { BETWEEN } else { BETWEEN_MANY };
                    self.begin(watch.clone(), pause);
                    return watch;
                }
                Some(Err(_aborted)) => {}
                None => pending().await,
            }
        }
    }

    fn begin(&mut self, watch: Watch, pause: Duration) {
        let (handle, registration) = AbortHandle::new_pair();
        let seen = revision(&self.registry, &watch);
        self.running.insert(watch.clone(), handle);
        let changed: Pin<Box<dyn Future<Output = Watch> + Send>> =
            Box::pin(changed(self.registry.clone(), watch, seen, pause));
        self.futures.push(Abortable::new(changed, registration));
    }
}

fn revision(registry: &Registry, watch: &Watch) -> Revision {
    match watch {
        Watch::Service(key) => registry.revision_of(key),
        Watch::Namespace(namespace) => super::revision(registry, Some(namespace)),
        Watch::All => super::revision(registry, None),
    }
}

/// Returns when the revision of the watched object differs from `seen`, but not before `pause` has elapsed.
async fn changed(registry: Registry, watch: Watch, seen: Revision, pause: Duration) -> Watch {
    tokio::time::sleep(pause).await;
    loop {
        let deadline = Instant::now() + QUIET;
        let found = match &watch {
            Watch::Service(key) => registry.watch(key, seen, deadline).await,
            Watch::Namespace(namespace) => registry.watch_namespace(namespace, seen, deadline).await,
            Watch::All => registry.watch_all(seen, deadline).await,
        };
        match found {
            Ok(now) if now != seen => return watch,
            Ok(_) => {}
            // Too many watches, or the server is stopping.
            Err(_) => {
                tokio::time::sleep(POLL).await;
                if revision(&registry, &watch) != seen {
                    return watch;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_waited_for() {
        let key = |namespace: &str, n: usize| ServiceKey::parse(&format!("{namespace}/s{n}")).unwrap();
        let namespace = |name: &str| NamespaceName::new(name).unwrap();
        let few: Vec<_> = (0..3).map(|n| key("a", n)).collect();
        let many: Vec<_> = (0..=EACH).map(|n| key("b", n)).collect();
        let each = |keys: &[ServiceKey]| keys.iter().cloned().map(Watch::Service).collect::<BTreeSet<_>>();
        assert_eq!(wanted(few.iter(), None), each(&few));
        assert_eq!(wanted(many[1..].iter(), None), each(&many[1..]));
        let mut both = each(&few);
        both.insert(Watch::Namespace(namespace("b")));
        assert_eq!(wanted(few.iter().chain(&many), None), both);
        let listed = BTreeSet::from([Watch::Namespace(namespace("a"))]);
        assert_eq!(wanted(few.iter(), Some(Some(vec![namespace("a")]))), listed);
        assert_eq!(wanted(few.iter().chain(&many), Some(None)), BTreeSet::from([Watch::All]));
    }
}
