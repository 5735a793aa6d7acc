//! Viewers' requests.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use http_body_util::{BodyExt, StreamBody};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::request::{Asked, Failed, cookie, hub_of};
use super::response::{Body, with_type};
use super::{ANSWER, Shared};
use crate::auth::Role;
use crate::board::Cursor;
use crate::hub::Hub;
use crate::parts::EntryName;
use crate::search::Search;
use crate::stream;

/// Maximum number of rows of a list.
const ROWS: usize = 200;

/// Answers a viewer's request.
pub(super) async fn look(path: &str, asked: &Asked<'_>, shared: &Arc<Shared>) -> Result<Response<Body>, Failed> {
    let hub = hub_of(asked, shared)?;
    let value = |name: &str| asked.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let registry = || hub.parts.registry.clone().ok_or_else(|| not_here("registry"));
    match path {
        "/api/events" => watch_events(asked, shared, &hub),
        "/api/state" => {
            let text = hub.boards.borrow().news(&mut Cursor::default());
            Ok(with_type(StatusCode::OK, "application/json", text.into()))
        }
        "/api/history" => {
            let after = value("after").and_then(|text| text.parse().ok()).unwrap_or(0);
            let history = hub.history.lock().unwrap_or_else(PoisonError::into_inner);
            let text = history.after(&value("span").unwrap_or_default(), after);
            let text = text.ok_or_else(|| Failed::Status(StatusCode::NOT_FOUND, "no such span: hour, day".into()))?;
            Ok(with_type(StatusCode::OK, "application/json", text.into()))
        }
        "/api/statements" => {
            let proxy = hub.parts.proxy.clone().ok_or_else(|| not_here("proxy"))?;
            blocking(move || Some(proxy.statements(ROWS)), "").await
        }
        "/api/services" => {
            let registry = registry()?;
            let search = Search::parse(value("namespace").as_deref(), &value("q").unwrap_or_default());
            blocking(move || Some(registry.find(&search, ROWS)), "").await
        }
        "/api/instances" => {
            let (registry, service) = (registry()?, value("service").unwrap_or_default());
            blocking(move || registry.instances(&service, ROWS), "no such service").await
        }
        "/api/instance" => {
            let (registry, id) = (registry()?, value("id").unwrap_or_default());
            blocking(move || registry.instance(&id), "no such instance").await
        }
        "/api/eureka" => {
            let (registry, namespace) = (registry()?, value("namespace").unwrap_or_default());
            blocking(move || registry.eureka(&namespace, ROWS), "no such namespace").await
        }
        "/api/entries" => {
            let registry = registry()?;
            let [namespace, group, text] = ["namespace", "group", "q"].map(|name| value(name).unwrap_or_default());
            blocking(move || registry.entries(&namespace, &group, &text, ROWS), "no such namespace").await
        }
        "/api/entry" => {
            let (registry, name) = (registry()?, entry_name(value));
            blocking(move || registry.entry(&name), "no such configuration entry").await
        }
        "/api/entry/compare" => {
            let version = |name: &str| value(name).and_then(|text| text.parse().ok()).unwrap_or(0);
            let (old, new) = (version("from"), version("to"));
            let (registry, name) = (registry()?, entry_name(value));
            blocking(move || registry.compare(&name, old, new), "no such versions").await
        }
        "/api/clients" => {
            let proxy = hub.parts.proxy.clone().ok_or_else(|| not_here("proxy"))?;
            blocking(move || Some(proxy.clients(ROWS)), "").await
        }
        _ => Err(Failed::Status(StatusCode::NOT_FOUND, "there is nothing here".into())),
    }
}

/// Returns the role that a path needs. Contents of configuration entries are no matter of whoever looks.
pub(super) fn role_for(path: &str) -> Role {
    let of_entries = path == "/api/entries" || path == "/api/entry" || path.starts_with("/api/entry/");
    if of_entries { Role::Operator } else { Role::Viewer }
}

fn entry_name(value: impl Fn(&str) -> Option<String>) -> EntryName {
    let [namespace, group, id] = ["namespace", "group", "id"].map(|name| value(name).unwrap_or_default());
    EntryName { namespace, group, id }
}

fn not_here(part: &str) -> Failed {
    Failed::Status(StatusCode::NOT_FOUND, format!("no {part} runs in this process"))
}

/// Runs a query that may scan a large registry, or wait for workers, on a blocking thread.
async fn blocking<T: Serialize + Send + 'static>(
    ask: impl FnOnce() -> Option<T> + Send + 'static,
    missing: &str,
) -> Result<Response<Body>, Failed> {
    let asked = tokio::task::spawn_blocking(move || ask().map(|value| serde_json::to_vec(&value)));
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(Some(Ok(text)))) => Ok(with_type(StatusCode::OK, "application/json", text.into())),
        Ok(Ok(None)) => Err(Failed::Status(StatusCode::NOT_FOUND, missing.to_owned())),
        Ok(_) => Err(Failed::Status(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made".into())),
        Err(_) => Err(Failed::Status(StatusCode::GATEWAY_TIMEOUT, "no answer in time".into())),
    }
}

fn watch_events(asked: &Asked<'_>, shared: &Arc<Shared>, hub: &Hub) -> Result<Response<Body>, Failed> {
    let place = Arc::clone(&shared.places).try_acquire_owned().map_err(|_| {
        Failed::Status(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: console.viewers limits them".into())
    })?;
    // The first board is soon followed by one with the pools, which were not read without a viewer.
    shared.hubs.wake().wake();
    let cookie = cookie(asked.headers, &shared.cookie).map(str::to_owned);
    let guard = Arc::clone(shared);
    let allowed = move || {
        let session = guard.auth.session(cookie.as_deref(), Instant::now());
        guard.auth.may(session.as_ref(), Role::Viewer)
    };
    let events = stream::events(hub.boards.clone(), shared.stopping.clone(), Box::new(allowed), place);
    let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(events)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Tells reverse proxies not to buffer the stream.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}
