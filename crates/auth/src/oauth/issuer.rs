//! Requests for an issuer's keys: its discovery document has their address. Answers are bounded, and redirects are not followed.

use std::sync::Arc;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HOST};
use hyper::{Method, Request};
use proxy::oauth::Url;
use serde_json::Value;
use tls::{Connector, Target};

use super::Unable;
use super::token::Keys;
use process::http::exchange;

/// Longest document, in bytes.
const LARGEST: usize = 256 << 10;

/// Reads the current signing keys of an issuer.
pub(super) async fn read_keys(
    issuer: &Url,
    connector: impl Fn() -> Result<Arc<Connector>, tls::Error>,
) -> Result<Keys, Unable> {
    let failed = |url: &dyn std::fmt::Display, why: String| Unable::Asked { url: url.to_string(), why };
    let at = format!("{}/.well-known/openid-configuration", issuer.text().trim_end_matches('/'));
    let discovery = Url::parse(&at).map_err(|why| failed(&at, why))?;
    let text = get(&discovery, &connector).await?;
    let document: Value = serde_json::from_slice(&text).map_err(|_| failed(&at, "it is no JSON".into()))?;
    if document.get("issuer").and_then(Value::as_str) != Some(issuer.text()) {
        return Err(failed(&at, "it is of another issuer than the rule's: both are compared letter by letter".into()));
    }
    let uri = document.get("jwks_uri").and_then(Value::as_str).unwrap_or_default();
    let uri = Url::parse(uri).map_err(|why| failed(&at, format!("jwks_uri: {why}")))?;
    // A remote issuer must not make this machine send requests to its own services.
    if issuer.is_secure() && !uri.is_secure() {
        return Err(failed(&at, "jwks_uri is no https, and the issuer is".into()));
    }
    let text = get(&uri, &connector).await?;
    Keys::read(&text).map_err(|why| failed(&uri, why.to_owned()))
}

async fn get(url: &Url, connector: &impl Fn() -> Result<Arc<Connector>, tls::Error>) -> Result<Bytes, Unable> {
    let failed = |why: String| Unable::Asked { url: url.to_string(), why };
    let target = match url.is_secure() {
        false => None,
        true => match Target::new(connector()?, url.host()) {
            None => return Err(failed("its host is no name that a certificate can be for".into())),
            target => target,
        },
    };
    let host = if url.host().contains(':') { format!("[{}]", url.host()) } else { url.host().to_owned() };
    let address = format!("{host}:{}", url.port());
    let request = Request::builder().method(Method::GET).uri(url.target()).header(HOST, &address);
    let request = request.header(ACCEPT, "application/json").body(Full::new(Bytes::new()));
    let request = request.map_err(|error| failed(error.to_string()))?;
    let response = exchange(&address, target.as_ref(), request).await.map_err(|error| failed(error.to_string()))?;
    let status = response.status();
    if status != hyper::StatusCode::OK {
        return Err(failed(format!("it answers {status}; expected 200, redirects are not followed")));
    }
    let whole = Limited::new(response.into_body(), LARGEST).collect().await;
    whole.map(|whole| whole.to_bytes()).map_err(|error| failed(format!("{error} (at most {LARGEST} bytes are read)")))
}
