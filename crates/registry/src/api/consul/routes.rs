//! The way of a request to the part of the API that answers it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::header::HeaderName;
use hyper::{Method, StatusCode};

use super::{Call, Sight, Wanted, acl, agent, catalog, events, health, kv, query, session, txn};
use crate::api::{ApiError, Context, Reply, Request, namespace};

/// Tells a client whether it may do what no policy decides.
const DEFAULT_POLICY: HeaderName = HeaderName::from_static("x-consul-default-acl-policy");
/// Tells a client that its token does not read everything that was asked for.
const FILTERED: HeaderName = HeaderName::from_static("x-consul-results-filtered-by-acls");

/// Parts of Consul that are not served. Consul's clients take a 404 for "no such key", and a watch of a key then repeats the request at once: so
/// these are answered with 501.
pub(in crate::api) const ABSENT: [&str; 6] = ["config", "connect", "coordinate", "operator", "snapshot", "internal"];

pub(in crate::api) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let path = request.path();
    // Requests of load balancers need no token.
    if let ["v1", "status", what] = path.as_slice() {
        return status(request, what);
    }
    let caller = context.identify(request)?;
    if let ["v1", part, ..] = path.as_slice()
        && ABSENT.contains(part)
    {
        return Err(ApiError::NotImplemented(format!("Consul's /v1/{part} is not served here")));
    }
    if let ["v1", part @ ("kv" | "session" | "txn" | "event" | "query"), ..] = path.as_slice()
        && !context.registry.has_keys()
    {
        return Err(ApiError::NotImplemented(format!(
            "Consul's /v1/{part} is not served here: keys, sessions, events and queries need a store in SQLite, PostgreSQL, MySQL, MariaDB or TiKV"
        )));
    }
    if let ["v1", "acl", rest @ ..] = path.as_slice() {
        return acl::handle(context, request, caller, rest).await;
    }
    let named = request.param("ns").or_else(|| request.named_header("x-consul-namespace"));
    // As at Consul, the token's namespace is the default: many clients have no setting for it.
    let name = named.or_else(|| caller.only_namespace()).unwrap_or("default").to_owned();
    let namespace = namespace(&name)?;
    let filtered = Arc::default();
    let sight = Sight::of(&caller, namespace.as_str(), &context.node, &filtered);
    let call = Call { context, request, caller, namespace, wanted: Wanted::of(request, sight)?, filtered };
    call.supported()?;
    let reply = part(&call, &path).await?;
    // As at Consul, a caller without a token is not told.
    let filtered = call.filtered.load(Ordering::Relaxed) && call.caller.token().is_some();
    let reply = reply.header(DEFAULT_POLICY, if context.allows_by_default() { "allow" } else { "deny" });
    Ok(if filtered { reply.header(FILTERED, "true") } else { reply })
}

async fn part(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    match path {
        ["v1", "agent", rest @ ..] => agent::handle(call, rest).await,
        ["v1", "catalog", rest @ ..] => catalog::handle(call, rest).await,
        ["v1", "health", rest @ ..] => health::handle(call, rest).await,
        ["v1", "kv", ..] => plainly(kv::handle(call).await),
        ["v1", "session", rest @ ..] => plainly(session::handle(call, rest).await),
        ["v1", "event", rest @ ..] => plainly(events::handle(call, rest).await),
        ["v1", "query", rest @ ..] => plainly(query::handle(call, rest).await),
        ["v1", "txn"] => plainly(txn::handle(call).await),
        _ => Err(call.no_such_path()),
    }
}

/// Maps a temporary failure to status 500 as at Consul, which clients retry: Go's client keeps waiting for a lock, Patroni keeps asking.
fn plainly(reply: Result<Reply, ApiError>) -> Result<Reply, ApiError> {
    match reply {
        Err(error @ (ApiError::Unavailable(_) | ApiError::Undetermined(_))) => {
            Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
        }
        reply => reply,
    }
}

fn status(request: &Request, what: &str) -> Result<Reply, ApiError> {
    // Any address will do: clients only check that there is one.
    let leader = "127.0.0.1:8300";
    match (what, &request.method) {
        ("leader" | "peers", method) if method != Method::GET && method != Method::HEAD => {
            Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" })
        }
        ("leader", _) => Ok(Reply::ok(&leader)),
        ("peers", _) => Ok(Reply::ok(&[leader])),
        _ => Err(ApiError::NoSuchPath(format!("/v1/status/{what}"))),
    }
}
