//! Responses, and their headers for browsers.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::assets;

/// Allows only the console's own files; the page cannot be framed, and no script can turn text into markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Adds the headers that restrict browsers to the use that the console's pages make of a response.
pub(super) fn guarded(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Returns a file of the page.
pub(super) fn file(asset: &'static assets::Asset, headers: &HeaderMap) -> Response<Body> {
    let has = |name: HeaderName, wanted: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(wanted))
    };
    let mut response = if has(header::IF_NONE_MATCH, &asset.tag) {
        with_type(StatusCode::NOT_MODIFIED, asset.content_type, Bytes::new())
    } else if has(header::ACCEPT_ENCODING, "gzip") {
        let mut response = with_type(StatusCode::OK, asset.content_type, asset.gzip.clone());
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    } else {
        with_type(StatusCode::OK, asset.content_type, asset.plain.clone())
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&asset.tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

pub(super) fn json_of(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    with_type(status, "application/json", value.to_string().into())
}

pub(super) fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
