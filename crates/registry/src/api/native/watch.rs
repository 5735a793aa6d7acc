//! Server-sent events: a service's current state, followed by its changes.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::wire::{Shown, ShownService};
use crate::api::reply::EVENTS;
use crate::api::watch_right::WatchRight;
use crate::api::{ApiError, Context, Reply, Request};
use crate::{Change, Revision, ServiceKey};

/// Interval of an empty line, so that no intermediary closes a silent connection.
const QUIET: Duration = Duration::from_secs(15);
/// Number of unread events at which no further one is made.
const AHEAD: usize = 4;

/// Changes between two revisions.
#[derive(Debug, Serialize)]
struct Changes<'a> {
    revision: Revision,
    put: Vec<Shown<'a>>,
    removed: Vec<&'a str>,
}

/// Streams a service. Begins with its full state, unless the client gives a revision that it has seen (`Last-Event-ID`, or `after`).
pub(super) fn stream(context: &Arc<Context>, request: &Request, service: ServiceKey) -> Result<Reply, ApiError> {
    let last = match request.named_header("last-event-id") {
        Some(id) => Some(id.parse().map_err(|_| ApiError::bad(format!("Last-Event-ID {id:?}: expected a revision")))?),
        None => request.number("after")?,
    };
    let place = context.place_of(request)?;
    let (sender, pieces) = mpsc::channel(AHEAD);
    let context = Arc::clone(context);
    let right = WatchRight::of(request, service);
    tokio::spawn(async move {
        let mut stopping = context.stopping.clone();
        let gone = sender.clone();
        tokio::select! {
            () = follow(&context, &right, last.map(Revision), &sender) => {}
            () = gone.closed() => {}
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        drop(place);
    });
    Ok(Reply::stream(EVENTS, pieces))
}

/// Returns when the client has disconnected or may not read the service any more, or the core allows no more watches.
async fn follow(context: &Context, right: &WatchRight, seen: Option<Revision>, client: &mpsc::Sender<Bytes>) {
    let service = right.service();
    let mut seen = match seen {
        Some(seen) if seen <= context.registry.revision_of(service) => seen,
        // Nothing seen, or a revision of another store: begins with the full state.
        _ => {
            let (revision, event) = whole(context, service);
            if client.send(event).await.is_err() {
                return;
            }
            revision
        }
    };
    loop {
        let Ok(revision) = context.registry.watch(service, seen, Instant::now() + QUIET).await else { return };
        if right.check(context).is_err() {
            return;
        }
        let event = if revision > seen {
            let (revision, event) =
                changes(context, service, seen, revision).unwrap_or_else(|| whole(context, service));
            seen = revision;
            event
        } else if revision < seen {
            // Another store: the revision seen is meaningless.
            let (revision, event) = whole(context, service);
            seen = revision;
            event
        } else {
            Bytes::from_static(b": still here\n\n")
        };
        if client.send(event).await.is_err() {
            return;
        }
    }
}

/// Returns the full state of the service. Its revision is read first, so that a change in between is sent twice rather than lost.
fn whole(context: &Context, service: &ServiceKey) -> (Revision, Bytes) {
    let revision = context.registry.revision_of(service);
    let Some(snapshot) = context.registry.snapshot(service) else {
        let absent = serde_json::json!({
            "namespace": service.namespace(), "service": service.name(), "revision": revision, "absent": true,
        });
        return (revision, event("snapshot", revision, &absent));
    };
    let revision = snapshot.revision;
    (revision, event("snapshot", revision, &ShownService::new(&snapshot, |_| true)))
}

fn changes(context: &Context, service: &ServiceKey, seen: Revision, now: Revision) -> Option<(Revision, Bytes)> {
    let list = context.registry.changes(service, seen)?;
    // The list of changes may be ahead of the revision that ended the wait.
    let revision = list.iter().map(Change::revision).max().unwrap_or(now).max(now);
    let mut told = Changes { revision, put: Vec::new(), removed: Vec::new() };
    for change in &list {
        match change {
            Change::Put { instance, .. } => told.put.push(Shown::from(&**instance)),
            Change::Removed { last, .. } => told.removed.push(last.id.local()),
            // The service's own record is only in its snapshot.
            Change::Service { .. } => return None,
        }
    }
    Some((revision, event("changes", revision, &told)))
}

fn event(name: &str, revision: Revision, data: &impl Serialize) -> Bytes {
    // JSON has line feeds only in strings, where they are escaped.
    let data = serde_json::to_string(data).unwrap_or_default();
    let mut text = String::with_capacity(data.len() + 48);
    let _ = write!(text, "event: {name}\nid: {revision}\ndata: {data}\n\n");
    text.into()
}
