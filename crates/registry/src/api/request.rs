//! A whole request, parsed: path segments, query, headers, body.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName};
use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::NamespaceName;

/// Maximum number of segments of a path, and of pairs of a query.
const MOST_PARTS: usize = 64;

/// A request with its whole body.
#[derive(Debug)]
pub struct Request {
    /// The method: GET, PUT …
    pub method: Method,
    /// The decoded path.
    pub whole: String,
    /// The decoded segments of the path; an empty last one (a path that ends in a slash) is omitted.
    pub segments: Vec<String>,
    /// The decoded pairs of the query, in order.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, within its limit.
    pub body: Bytes,
    /// Address of the client.
    pub peer: IpAddr,
    /// True if the request does not wait for a change, whatever its parameters say.
    pub at_once: bool,
}

impl Request {
    /// Parses a request.
    ///
    /// # Errors
    /// The path or the query is not UTF-8 once decoded, or has too many parts.
    pub fn new(method: Method, uri: &Uri, headers: HeaderMap, body: Bytes, peer: IpAddr) -> Result<Request, ApiError> {
        let path = uri.path();
        let trimmed = path.strip_prefix('/').unwrap_or(path);
        let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
        let mut segments = Vec::with_capacity(8);
        for segment in trimmed.split('/').take(MOST_PARTS + 1) {
            segments.push(decode(segment)?.into_owned());
        }
        let whole = decode(path)?.into_owned();
        let query = Request::pairs(uri.query().unwrap_or_default())?;
        if segments.len() > MOST_PARTS {
            return Err(ApiError::bad(format!("the address has more than {MOST_PARTS} parts")));
        }
        Ok(Request { method, whole, segments, query, headers, body, peer, at_once: false })
    }

    /// Parses and decodes the pairs of a query or a form.
    ///
    /// # Errors
    /// The pairs are not UTF-8 once decoded, or too many.
    pub(super) fn pairs(text: &str) -> Result<Vec<(String, String)>, ApiError> {
        let mut pairs = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if pairs.len() >= MOST_PARTS {
                return Err(ApiError::bad(format!("the address or form has more than {MOST_PARTS} parts")));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let plus = |text: &str| -> Result<String, ApiError> {
                if text.contains('+') {
                    Ok(decode(&text.replace('+', " "))?.into_owned())
                } else {
                    Ok(decode(text)?.into_owned())
                }
            };
            pairs.push((plus(name)?, plus(value)?));
        }
        Ok(pairs)
    }

    /// Returns the path's segments, to match on.
    pub fn path(&self) -> Vec<&str> {
        self.segments.iter().map(String::as_str).collect()
    }

    /// Returns the first value of a query parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a query parameter.
    pub fn params<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// True if a parameter is set and not `false` or `0`: `?passing`, `?passing=1`.
    pub fn flag(&self, name: &str) -> bool {
        self.param(name).is_some_and(|value| !matches!(value, "false" | "0"))
    }

    /// Parses a parameter as a whole number.
    ///
    /// # Errors
    /// The value is not a whole number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.param(name)
            .map(|value| value.parse().map_err(|_| ApiError::bad(format!("{name}={value:?}: expected a whole number"))))
            .transpose()
    }

    /// Parses a parameter as a time such as `10s`, `1m30s`, `1000ms`; a bare number is seconds.
    ///
    /// # Errors
    /// The value is not a time.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>, ApiError> {
        self.param(name)
            .map(|value| {
                parse_duration(value)
                    .ok_or_else(|| ApiError::bad(format!("{name}={value:?}: expected a time such as 10s or 500ms")))
            })
            .transpose()
    }

    /// Returns a header as text.
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns a header that is not one of the standard ones as text.
    pub fn named_header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Parses the body as JSON, regardless of its content type: most clients send none.
    ///
    /// # Errors
    /// The body is not JSON of that shape; the message says where and why.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        // Validates UTF-8 once for the whole body, not once per string.
        let read = match std::str::from_utf8(&self.body) {
            Ok(text) => serde_json::from_str(text),
            Err(_) => serde_json::from_slice(&self.body),
        };
        read.map_err(|error| ApiError::bad(format!("the body: {error}")))
    }

    /// True if the client accepts a compressed response.
    pub fn accepts_gzip(&self) -> bool {
        self.header(&hyper::header::ACCEPT_ENCODING).is_some_and(|value| {
            value.split(',').any(|coding| {
                let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
                name.trim().eq_ignore_ascii_case("gzip")
                    && !quality.trim().starts_with("q=0;")
                    && quality.trim() != "q=0"
            })
        })
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, ApiError> {
    percent_decode_str(text).decode_utf8().map_err(|_| ApiError::bad("the address is not UTF-8".to_owned()))
}

/// Parses a time in Go's format: `1h2m3s`, `1.5s`, `1000ms`, `100us`, and a bare number of seconds. Returns `None` for any other text and for more
/// than a hundred years.
pub fn parse_duration(text: &str) -> Option<Duration> {
    const LONGEST: f64 = 100.0 * 365.0 * 86400.0;
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let number = |digits: &str| -> Option<f64> {
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if plain { digits.parse().ok() } else { None }
    };
    if let Some(seconds) = number(text) {
        return (seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds));
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let value = number(&rest[..digits])?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let scale = match &rest[..unit_end] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        rest = &rest[unit_end..];
        seconds += value * scale;
    }
    (seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds))
}

/// Formats a time like Go, for responses.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0s".into(),
        _ if !millis.is_multiple_of(1000) => format!("{millis}ms"),
        _ => format!("{}s", millis / 1000),
    }
}

/// Returns the namespace of a name.
pub(super) fn namespace(name: &str) -> Result<NamespaceName, ApiError> {
    Ok(NamespaceName::new(name)?)
}

/// Returns the namespace that a request names; the default one if it names none.
pub(super) fn named(name: Option<&str>) -> Result<NamespaceName, ApiError> {
    match name {
        None | Some("") => Ok(NamespaceName::default()),
        Some(name) => namespace(name),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn request(uri: &str) -> Result<Request, ApiError> {
        Request::new(Method::GET, &uri.parse().unwrap(), HeaderMap::new(), Bytes::new(), [127, 0, 0, 1].into())
    }

    #[test]
    fn addresses_are_taken_apart() {
        let asked =
            request("/v1/agent/check/pass/service%3Aweb%2F1/?note=all+is%20well&passing&wait=10s&tag=a&tag=b").unwrap();
        assert_eq!(asked.path(), ["v1", "agent", "check", "pass", "service:web/1"]);
        assert_eq!(asked.param("note"), Some("all is well"));
        assert!(asked.flag("passing") && !asked.flag("other"));
        assert_eq!(asked.duration("wait").unwrap(), Some(Duration::from_secs(10)));
        assert_eq!(asked.params("tag").collect::<Vec<_>>(), ["a", "b"]);
        assert!(request("/%ff").is_err(), "not UTF-8");
        assert!(request(&format!("/{}", "a/".repeat(100))).is_err(), "too many segments");
        assert!(request("/?wait=soon").unwrap().duration("wait").is_err());
        assert_eq!(request("/").unwrap().path(), [""]);
    }

    #[test]
    fn times() {
        for (text, millis) in [
            ("10s", Some(10_000)),
            ("1000ms", Some(1000)),
            ("1m30s", Some(90_000)),
            ("1.5s", Some(1500)),
            ("5", Some(5000)),
            ("0s", Some(0)),
            ("1h", Some(3_600_000)),
            ("", None),
            ("s", None),
            ("10x", None),
            ("-1s", None),
            ("1e9s", None),
            ("NaN", None),
            ("99999999999999999999h", None),
            ("1..5s", None),
        ] {
            assert_eq!(parse_duration(text).map(|duration| duration.as_millis() as u64), millis, "{text:?}");
        }
        assert_eq!(format_duration(Duration::from_millis(1500)), "1500ms");
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
    }
}
