//! Routing of requests, and the checks before an answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::json;

use super::Shared;
use super::act::act;
use super::look::{look, role_for};
use super::response::{Body, file, guarded, json_of};
use super::sign_in::{login, logout, who};
use crate::assets;
use crate::auth::{Role, Session};
use crate::hub::Hub;

/// Maximum length of a body, and time limit of receiving it.
pub(super) const BODY_BYTES: usize = 8 << 10;
const BODY: Duration = Duration::from_secs(5);

/// A request without its body.
pub(super) struct Asked<'a> {
    pub(super) headers: &'a HeaderMap,
    pub(super) query: Vec<(String, String)>,
    pub(super) peer: IpAddr,
    pub(super) session: Option<Session>,
}

/// A refusal, as a status with a text or as a time to wait.
pub(super) enum Failed {
    Status(StatusCode, String),
    RetryAfter(u64),
}

/// Answers any request.
pub(super) async fn answer(request: Request<Incoming>, peer: IpAddr, shared: &Arc<Shared>) -> Response<Body> {
    let response = match route(request, peer, shared).await {
        Ok(response) => response,
        Err(Failed::Status(status, why)) => json_of(status, &json!({ "error": why })),
        Err(Failed::RetryAfter(seconds)) => {
            let why = format!("too many wrong tokens from your address: try again in {seconds} s");
            let mut response = json_of(StatusCode::TOO_MANY_REQUESTS, &json!({ "error": why }));
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            response
        }
    };
    guarded(response)
}

async fn route(request: Request<Incoming>, peer: IpAddr, shared: &Arc<Shared>) -> Result<Response<Body>, Failed> {
    let (parts, body) = request.into_parts();
    let header = |name: &HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    if !shared.guard.host(header(&header::HOST)) {
        let why = "this name is not the console's: use its address, localhost, or set console.public_url";
        return Err(Failed::Status(StatusCode::MISDIRECTED_REQUEST, why.into()));
    }
    let path = parts.uri.path();
    if let (&Method::GET | &Method::HEAD, Some(asset)) = (&parts.method, assets::at(path)) {
        return Ok(file(asset, &parts.headers));
    }
    let asked = Asked {
        headers: &parts.headers,
        query: pairs(parts.uri.query().unwrap_or_default()),
        peer,
        session: shared.auth.session(cookie(&parts.headers, &shared.cookie), Instant::now()),
    };
    match (&parts.method, path) {
        (&Method::GET, "/api/session") => Ok(json_of(StatusCode::OK, &who(shared, asked.session.as_ref()))),
        (&Method::GET, path) if path.starts_with("/api/") => {
            let role = role_for(path);
            if !shared.auth.may(asked.session.as_ref(), role) {
                let (status, why) = match (role, &asked.session) {
                    (Role::Operator, Some(_)) => (StatusCode::FORBIDDEN, "only operators see configuration entries"),
                    (Role::Operator, None) => (StatusCode::UNAUTHORIZED, "sign in as an operator to look at this"),
                    (Role::Viewer, _) => (StatusCode::UNAUTHORIZED, "sign in to look"),
                };
                return Err(Failed::Status(status, why.into()));
            }
            look(path, &asked, shared).await
        }
        (&Method::POST, "/api/login" | "/api/logout" | "/api/act") => {
            let (host, origin) = (header(&header::HOST), header(&header::ORIGIN));
            if !shared.guard.origin(host, origin, header(&HeaderName::from_static("sec-fetch-site"))) {
                return Err(Failed::Status(StatusCode::FORBIDDEN, "only the console's own page may do that".into()));
            }
            let json = header(&header::CONTENT_TYPE).is_some_and(|value| value.starts_with("application/json"));
            if !json {
                return Err(Failed::Status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "expected application/json".into()));
            }
            if path == "/api/act" {
                let session =
                    asked.session.as_ref().filter(|_| shared.auth.may(asked.session.as_ref(), Role::Operator));
                let session = session.ok_or_else(|| {
                    let status = if asked.session.is_some() { StatusCode::FORBIDDEN } else { StatusCode::UNAUTHORIZED };
                    Failed::Status(status, "sign in with an operator's token to act".into())
                })?;
                return act(read(body).await?, session, &hub_of(&asked, shared)?, shared.hubs.wake()).await;
            }
            let body = read(body).await?;
            if path == "/api/login" { login(&body, &asked, shared) } else { Ok(logout(&asked, shared)) }
        }
        _ if path.starts_with("/api/") => Err(Failed::Status(StatusCode::NOT_FOUND, "there is nothing here".into())),
        _ => Err(Failed::Status(StatusCode::NOT_FOUND, "there is no such page".into())),
    }
}

/// Returns the hub of the cluster that a request names.
pub(super) fn hub_of(asked: &Asked<'_>, shared: &Shared) -> Result<Arc<Hub>, Failed> {
    let name = asked.query.iter().find(|(key, _)| key == "cluster").map(|(_, value)| value.as_str());
    shared.hubs.of(name).ok_or_else(|| {
        Failed::Status(StatusCode::NOT_FOUND, format!("no such cluster: {:?}", name.unwrap_or_default()))
    })
}

/// Returns the value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Reads the body, if it is short and comes soon.
async fn read(body: Incoming) -> Result<Bytes, Failed> {
    match tokio::time::timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Failed::Status(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body has more than {BODY_BYTES} bytes, or broke off"),
        )),
        Err(_) => Err(Failed::Status(StatusCode::REQUEST_TIMEOUT, "the body did not come".into())),
    }
}

/// Parses a body.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<T, Failed> {
    // Serde's message could quote names of fields, but never a token, which is a value.
    serde_json::from_slice(body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Failed::Status(StatusCode::BAD_REQUEST, format!("the body is not what was expected, at {line}:{column}"))
    })
}

/// Parses and decodes the pairs of a query.
pub(super) fn pairs(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(16)
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}
