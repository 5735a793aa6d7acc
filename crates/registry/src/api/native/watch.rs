//! Server-sent events: a service as it is, and then what changes.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::wire::{Shown, ShownService};
use crate::api::reply::EVENTS;
use crate::api::{ApiError, Context, Reply, Request};
use crate::{Change, Revision, ServiceKey};

/// A line that says nothing, so that whatever is between does not close a silent connection.
const QUIET: Duration = Duration::from_secs(15);
/// Events that a client has not taken yet; then the next is not made.
const AHEAD: usize = 4;

/// What changed between two revisions.
#[derive(Debug, Serialize)]
struct Changes<'a> {
    revision: Revision,
    put: Vec<Shown<'a>>,
    removed: Vec<&'a str>,
}

/// Streams a service. Begins with all of it, unless the client says (`Last-Event-ID`, or `after`) what it has seen.
pub(super) fn stream(context: &Arc<Context>, request: &Request, service: ServiceKey) -> Result<Reply, ApiError> {
    let last = match request.named_header("last-event-id") {
        Some(id) => Some(id.parse().map_err(|_| ApiError::bad(format!("Last-Event-ID {id:?}: expected a revision")))?),
        None => request.number("after")?,
    };
    let place = context.place_of(request)?;
    let (sender, pieces) = mpsc::channel(AHEAD);
    let context = Arc::clone(context);
    tokio::spawn(async move {
        let mut stopping = context.stopping.clone();
        let gone = sender.clone();
        tokio::select! {
            () = follow(&context, &service, last.map(Revision), &sender) => {}
            () = gone.closed() => {}
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        drop(place);
    });
    Ok(Reply::stream(EVENTS, pieces))
}

/// Ends when the client has gone, or the core allows no more watching.
async fn follow(context: &Context, service: &ServiceKey, seen: Option<Revision>, client: &mpsc::Sender<Bytes>) {
    let mut seen = match seen {
        Some(seen) if seen <= context.registry.revision_of(service) => seen,
        // Nothing seen, or of another store: from the beginning.
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
        let event = if revision > seen {
            let (revision, event) =
                changes(context, service, seen, revision).unwrap_or_else(|| whole(context, service));
            seen = revision;
            event
        } else if revision < seen {
            // Another store: what was seen means nothing any more.
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

/// All of the service. Its revision is read first: what changes in between is told once more, not lost.
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
    // The ring may be ahead of what woke us.
    let revision = list.iter().map(Change::revision).max().unwrap_or(now).max(now);
    let mut told = Changes { revision, put: Vec::new(), removed: Vec::new() };
    for change in &list {
        match change {
            Change::Put { instance, .. } => told.put.push(Shown::from(&**instance)),
            Change::Removed { last, .. } => told.removed.push(last.id.local()),
            // What is said about the service itself is in its snapshot.
            Change::Service { .. } => return None,
        }
    }
    Some((revision, event("changes", revision, &told)))
}

fn event(name: &str, revision: Revision, data: &impl Serialize) -> Bytes {
    // JSON has no line feed outside of its strings, and there it is escaped.
    let data = serde_json::to_string(data).unwrap_or_default();
    let mut text = String::with_capacity(data.len() + 48);
    let _ = write!(text, "event: {name}\nid: {revision}\ndata: {data}\n\n");
    text.into()
}
