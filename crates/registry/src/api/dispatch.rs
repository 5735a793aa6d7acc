//! The way of a request to its front.

use std::sync::Arc;

use super::{ApiError, Context, Front, Reply, Request, consul, eureka, nacos, native, polaris, prometheus};

/// Returns the front that serves a path. A new first segment of a front is named here, and in the front's own `handle`.
pub(super) fn of_path(path: &str) -> Option<Front> {
    let mut segments = path.split('/').skip(1);
    match (segments.next()?, segments.next()) {
        ("eureka", _) => Some(Front::Eureka),
        ("prometheus", _) => Some(Front::Prometheus),
        ("nacos", _) => Some(Front::Nacos),
        ("v1", Some("namespaces" | "openapi.json")) => Some(Front::Native),
        (
            "v1",
            Some("agent" | "catalog" | "health" | "status" | "kv" | "session" | "txn" | "event" | "query" | "acl"),
        ) => Some(Front::Consul),
        ("v1", Some(part)) if consul::ABSENT.contains(&part) => Some(Front::Consul),
        ("v1", Some("RegisterInstance" | "DeregisterInstance" | "Heartbeat" | "Discover" | "ReportClient")) => {
            Some(Front::Polaris)
        }
        ("naming", Some("v1" | "v2")) => Some(Front::Polaris),
        _ => None,
    }
}

/// Answers a request by its front. Tokens and policies may change while a request waits: its answer is then made again, without waiting, by the
/// present ones.
pub(super) async fn handle(front: Front, context: &Arc<Context>, mut request: Request) -> Result<Reply, ApiError> {
    let rights = context.rights_stamp();
    let reply = answer(front, context, &request).await;
    // Nacos' only request that waits decides at each change itself: its clients take an entry that they may not read for one that has changed.
    let decides_itself = front == Front::Nacos;
    if decides_itself || !reply.as_ref().is_ok_and(|reply| reply.waited) || rights == context.rights_stamp() {
        return reply;
    }
    request.at_once = true;
    answer(front, context, &request).await.map(|reply| reply.waited(true))
}

async fn answer(front: Front, context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    match front {
        Front::Native => native::handle(context, request).await,
        Front::Consul => consul::handle(context, request).await,
        Front::Eureka => eureka::handle(context, request).await,
        Front::Prometheus => prometheus::handle(context, request).await,
        Front::Polaris => polaris::handle(context, request).await,
        Front::Nacos => nacos::handle(context, request).await,
        Front::Xds => Err(ApiError::NoSuchPath(format!("/{}", request.segments.join("/")))),
    }
}

/// Encodes an error in the front's own form.
pub(super) fn show(front: Front, error: &ApiError) -> Reply {
    match front {
        Front::Native | Front::Prometheus => native::show(error),
        Front::Polaris => polaris::show(error),
        // Consul, Eureka and Nacos return plain text; their clients check only the status.
        Front::Consul | Front::Eureka | Front::Nacos | Front::Xds => Reply::text(error.status(), format!("{error}\n")),
    }
}
