//! Ends sessions that are not renewed, and sessions with a check that is critical or gone.

use std::sync::Arc;
use std::time::Duration;

use super::Kv;
use super::model::{Ask, Session};
use crate::health::{self, leases::session};
use crate::model::{Health, InstanceId, NamespaceName, Revision};
use crate::registry::{Inner, Registry};

/// Interval between two looks at the sessions.
const TICK: Duration = Duration::from_millis(250);
/// Maximum number of sessions judged at a time, with one request to the other nodes.
const MOST: usize = 4096;

/// A session to end, at the revision at which it was judged, with the reason.
struct Verdict {
    namespace: NamespaceName,
    id: Arc<str>,
    revision: Revision,
    why: String,
}

pub(super) async fn run(inner: Arc<Inner>) {
    let Some(kv) = &inner.kv else { return };
    if !inner.settings.health.enabled {
        return;
    }
    let mut stop = inner.stop.subscribe();
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(TICK) => {}
        }
        if inner.health.leases.stood_still() {
            continue;
        }
        let verdicts = silent(&inner, kv).await;
        end(kv, verdicts).await;
        let verdicts = unwell(&inner, kv).await;
        end(kv, verdicts).await;
    }
}

/// Returns the sessions, among those that this node judges, that no node has renewed for twice their time to live.
async fn silent(inner: &Arc<Inner>, kv: &Kv) -> Vec<Verdict> {
    let over = {
        let (sessions, now) = kv.health.leases.sessions();
        sessions.over(now, MOST, |name| inner.peers.owns(name))
    };
    // Read before the others are asked: a renewal through the store after this changes the revision, and so prevents the end.
    let verdict = |(name, namespace, id): (InstanceId, NamespaceName, Arc<str>)| {
        let revision = kv.state().space(&namespace)?.session(&id)?.modified;
        Some((name, Verdict { namespace, id, revision, why: "it was not renewed in time".to_owned() }))
    };
    let (names, verdicts): (Vec<_>, Vec<_>) = over.into_iter().filter_map(verdict).unzip();
    let Some(asked) = health::ask_all(inner, &names).await else { return Vec::new() };
    let (sessions, _) = kv.health.leases.sessions();
    let silent = names.iter().zip(verdicts).filter(|(name, _)| sessions.is_over_at(name, asked.at()));
    silent.map(|(_, verdict)| verdict).collect()
}

/// Returns the sessions, among those that this node judges, with a check that is critical, or whose instance is gone.
async fn unwell(inner: &Arc<Inner>, kv: &Kv) -> Vec<Verdict> {
    let watched: Vec<(NamespaceName, Arc<Session>)> = {
        let state = kv.state();
        let checked = state.sessions().filter(|(_, session)| !session.service_checks.is_empty());
        checked.map(|(namespace, session)| (namespace.clone(), Arc::clone(session))).collect()
    };
    let registry = Registry::of(inner);
    let mut verdicts = Vec::new();
    for (namespace, session) in watched {
        if !session::name(&namespace, &session.id).is_some_and(|name| inner.peers.owns(&name)) {
            continue;
        }
        for (check, instance) in &session.service_checks {
            // An instance registered at another node a moment ago may not be in the cache yet.
            let instance = registry.instance_or_ask(instance).await;
            if instance.is_none_or(|instance| instance.isolate || instance.health_of(check) == Health::Critical) {
                let why = format!("its check {check} is critical or gone");
                let (id, revision) = (Arc::clone(&session.id), session.modified);
                verdicts.push(Verdict { namespace, id, revision, why });
                break;
            }
        }
    }
    verdicts
}

/// Queues all ends at once, so that none waits for the commit of another. A session that could not be ended is judged again.
async fn end(kv: &Kv, verdicts: Vec<Verdict>) {
    let mut answers = Vec::with_capacity(verdicts.len());
    for Verdict { namespace, id, revision, why } in verdicts {
        tracing::info!(namespace = namespace.as_str(), session = &*id, "ending a session: {why}");
        answers.extend(kv.queue(Ask::End(namespace, id, Some(revision))));
    }
    for answer in answers {
        // The writer logs failures.
        let _ = answer.await;
    }
}
