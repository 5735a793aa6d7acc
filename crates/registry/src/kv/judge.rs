//! Ends sessions: those that nobody renews, and those with a check that is critical or gone.

use std::sync::Arc;
use std::time::Duration;

use super::model::{Ask, Session};
use super::{Kv, lease, lock};
use crate::model::{Health, InstanceId, NamespaceName, Revision};
use crate::peers;
use crate::registry::{Inner, Registry};
use crate::status::add;

/// How often sessions are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Sessions that are judged at a time: one question to the other nodes.
const MOST: usize = 4096;

pub(super) async fn run(inner: Arc<Inner>) {
    let Some(kv) = &inner.kv else { return };
    if !inner.settings.health.enabled {
        return;
    }
    let mut stop = inner.stop.subscribe();
    let mut graces = inner.health.graces();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(TICK) => {}
        }
        // Whatever prolongs the leases of instances prolongs those of sessions: renewals may have been lost.
        let is_still = inner.health.stood_still();
        let now = inner.health.graces();
        if is_still || now != graces {
            graces = now;
            lock(&kv.leases).prolong(kv.now());
        }
        silent(&inner, kv, graces).await;
        unwell(&inner, kv).await;
    }
}

/// Ends those that this node judges, that nobody has renewed, here or elsewhere, for twice their time to live.
async fn silent(inner: &Arc<Inner>, kv: &Kv, graces: u64) {
    let names = lock(&kv.leases).over(kv.now(), MOST, |name| inner.peers.owns(name));
    if names.is_empty() {
        return;
    }
    // As of before the others are asked: a renewal through the store after that is in the way of the end.
    let known = |(namespace, id): &(NamespaceName, Arc<str>)| -> Option<Revision> {
        Some(kv.state().space(namespace)?.session(id)?.modified)
    };
    let judged = |name: &InstanceId| lock(&kv.leases).is_over(name, kv.now());
    let before: Vec<_> = names.iter().map(|name| judged(name).as_ref().and_then(known)).collect();
    if !inner.peers.is_alone() {
        add(&inner.counters.asked, names.len() as u64);
    }
    let answered = peers::ask(inner, &names, |silence| {
        let (mut leases, now) = (lock(&kv.leases), kv.now());
        for (name, silence) in names.iter().zip(silence) {
            if let Some(silence) = silence {
                leases.heard_elsewhere(name, Duration::from_millis(u64::from(silence)), now);
            }
        }
    });
    // A node is lost, or this one stood still meanwhile: everybody has more time.
    if !answered.await || inner.health.stood_still() || inner.health.graces() != graces {
        return;
    }
    for (name, revision) in names.iter().zip(before) {
        let Some((namespace, id)) = judged(name) else { continue };
        match revision {
            Some(revision) => end(kv, &namespace, &id, revision, "it was not renewed in time").await,
            // It has ended meanwhile.
            None => lock(&kv.leases).observe(&namespace, &id, None, kv.now()),
        }
    }
}

/// Ends those that this node judges with a check that is critical, or whose instance is gone.
async fn unwell(inner: &Arc<Inner>, kv: &Kv) {
    let watched: Vec<(NamespaceName, Arc<Session>)> = {
        let state = kv.state();
        let checked = state.sessions().filter(|(_, session)| !session.service_checks.is_empty());
        checked.map(|(namespace, session)| (namespace.clone(), Arc::clone(session))).collect()
    };
    let registry = Registry::of(inner);
    for (namespace, session) in watched {
        if !lease::name(&namespace, &session.id).is_some_and(|name| inner.peers.owns(&name)) {
            continue;
        }
        for (check, instance) in &session.service_checks {
            // Registered at another node a moment ago, it may not be here yet.
            let instance = registry.instance_or_ask(instance).await;
            if instance.is_none_or(|instance| instance.isolate || instance.health == Health::Critical) {
                let why = format!("its check {check} is critical or gone");
                end(kv, &namespace, &session.id, session.modified, &why).await;
                break;
            }
        }
    }
}

async fn end(kv: &Kv, namespace: &NamespaceName, id: &Arc<str>, revision: Revision, why: &str) {
    tracing::info!(namespace = namespace.as_str(), session = &**id, "ending a session: {why}");
    // Should it fail, it is judged again.
    let _ = kv.ask(Ask::End(namespace.clone(), Arc::clone(id), Some(revision))).await;
}
