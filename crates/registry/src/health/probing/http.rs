//! The HTTP probe: a check's URL, the request, redirects and the answer.
//!
//! A URL may have secrets: in `user:password@`, which becomes an `Authorization` header, or in its query. So nothing here is printed but the address
//! that is connected to.

use std::fmt;
use std::io;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::model::{Health, ProbeRequest};

/// Maximum number of requests of a probe, with those that follow redirects: that of Go's client, which Consul's agent probes with.
pub(super) const MOST_REQUESTS: u32 = 10;
/// Maximum number of informational responses (status 100 to 199) before the answer.
const MOST_INFORMATIONAL: u32 = 5;
/// Maximum length of a response's head.
const HEAD: usize = 16 * 1024;
/// Length of the beginning of a status line, with the code: `HTTP/1.1 200`.
const STATUS: usize = 12;

/// The URL of a request.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// True for `https`.
    pub(super) secure: bool,
    /// Host and port as in the URL: the `Host` header.
    authority: String,
    /// Path and query.
    path: String,
    /// Content of the `Authorization` header.
    login: Option<String>,
}

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Health(Health),
    Redirect {
        to: Url,
        /// True if the same request is sent there; false for a `GET`.
        same_method: bool,
    },
}

impl fmt::Debug for Url {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}://{}/…", if self.secure { "https" } else { "http" }, self.authority)
    }
}

fn method_of(request: &ProbeRequest) -> &str {
    if request.method.is_empty() { "GET" } else { &request.method }
}

impl Url {
    /// Parses a check's URL: `http://…`, `https://…`, or a path at `own`, the instance's `host:port`.
    pub(super) fn of(text: &str, own: impl FnOnce() -> String) -> Url {
        Url::absolute(text).unwrap_or_else(|| Url { secure: false, authority: own(), path: path_of(text), login: None })
    }

    fn absolute(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // It is a line of the request.
        if authority.contains(|c: char| c.is_control() || c.is_whitespace()) {
            return None;
        }
        let (login, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(basic(user)), authority),
            None => (None, authority),
        };
        Some(Url { secure, authority: authority.trim_end_matches(':').to_owned(), path: path_of(path), login })
    }

    /// Returns the address to connect to, `host:port`.
    pub(super) fn target(&self) -> String {
        match self.authority.rsplit_once(':').map(|(_, port)| port.parse::<u16>()) {
            Some(Ok(_)) => self.authority.clone(),
            _ => format!("{}:{}", self.authority, if self.secure { 443 } else { 80 }),
        }
    }

    /// Returns the URL that a `Location` refers to; `None` if it is not of HTTP. As with Go's client, only a reference without a host keeps the
    /// password.
    fn joined(&self, location: &str) -> Option<Url> {
        let path_begins = location.find(['/', '?', '#']).unwrap_or(location.len());
        if location.get(..path_begins)?.contains(':') {
            return Url::absolute(location).filter(|url| !url.authority.is_empty());
        }
        if location.starts_with("//") {
            let scheme = if self.secure { "https" } else { "http" };
            return Url::absolute(&format!("{scheme}:{location}")).filter(|url| !url.authority.is_empty());
        }
        let base = self.path.split('?').next().unwrap_or_default();
        let path = match location.chars().next() {
            Some('/') => location.to_owned(),
            Some('?') => format!("{base}{location}"),
            None | Some('#') => self.path.clone(),
            Some(_) => format!("{}{location}", &base[..=base.rfind('/').unwrap_or(0)]),
        };
        Some(Url { path: without_dots(&path_of(&path)), ..self.clone() })
    }

    /// Returns the bytes of a request. Its own headers come in place of those that every probe has.
    fn request(&self, request: &ProbeRequest) -> String {
        let has = |name: &str| request.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        let mut text = format!("{} {} HTTP/1.1\r\n", method_of(request), self.path);
        let length = request.body.len().to_string();
        let login = self.login.as_deref().unwrap_or_default();
        for (name, value, sent) in [
            ("Host", self.authority.as_str(), true),
            ("Authorization", login, !login.is_empty()),
            ("User-Agent", "kingpost", true),
            ("Accept", "*/*", true),
            ("Content-Length", &length, !request.body.is_empty()),
            ("Connection", "close", true),
        ] {
            if sent && !has(name) {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        for (name, value) in &request.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text.push_str(&request.body);
        text
    }

    /// Makes `request` the one that goes to `to`, as Go's client does: a `GET` unless the method stays the same, and without the headers that prove who
    /// asks if the host is another one.
    pub(super) fn redirected(&self, to: &Url, same_method: bool, request: &mut ProbeRequest) {
        if !same_method {
            if method_of(request) != "HEAD" {
                request.method.clear();
            }
            request.body.clear();
            request.headers.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("content-"));
        }
        if self.authority != to.authority {
            const SECRET: [&str; 4] = ["authorization", "cookie", "www-authenticate", "host"];
            request.headers.retain(|(name, _)| !SECRET.iter().any(|secret| name.eq_ignore_ascii_case(secret)));
        }
    }

    /// Sends a request, and reads as much of the response as is needed.
    pub(super) async fn ask(
        &self,
        request: &ProbeRequest,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> io::Result<Answer> {
        stream.write_all(self.request(request).as_bytes()).await?;
        let mut bytes = Vec::with_capacity(512);
        for _ in 0..=MOST_INFORMATIONAL {
            while bytes.len() < STATUS && more(stream, &mut bytes).await? {}
            let Some(code) = code(&bytes) else { return Ok(Answer::Health(Health::Critical)) };
            let redirects = matches!(code, 301 | 302 | 303 | 307 | 308);
            if !redirects && !matches!(code, 100 | 102..=199) {
                return Ok(Answer::Health(health(code)));
            }
            let end = loop {
                match end_of_head(&bytes) {
                    Some(end) => break end,
                    None if more(stream, &mut bytes).await? => {}
                    None => return Ok(Answer::Health(Health::Critical)),
                }
            };
            if redirects {
                let location = bytes.get(..end).and_then(location);
                let elsewhere = location.and_then(|location| self.joined(location));
                let same_method = matches!(code, 307 | 308) || matches!(method_of(request), "GET" | "HEAD");
                let redirect = |to| Answer::Redirect { to, same_method };
                return Ok(elsewhere.map_or(Answer::Health(Health::Critical), redirect));
            }
            bytes.drain(..end);
        }
        Ok(Answer::Health(Health::Critical))
    }
}

/// Parses a check's URL and a response to it, separated by a line feed, and returns the health; for the fuzz target.
///
/// # Panics
/// Where a request would have other lines than its own.
#[doc(hidden)]
pub fn read_probe(bytes: &[u8]) -> Option<Health> {
    let (url, response) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n')?);
    let url = Url::of(std::str::from_utf8(url).ok()?, || "h:1".into());
    let mut request = Vec::new();
    let mut stream = tokio::io::join(response.get(1..)?, &mut request);
    let answer = futures_util::FutureExt::now_or_never(url.ask(&ProbeRequest::default(), &mut stream))?.ok()?;
    let lines = 6 + usize::from(url.login.is_some());
    assert_eq!(String::from_utf8(request).ok()?.lines().count(), lines);
    match answer {
        Answer::Health(health) => Some(health),
        Answer::Redirect { to, .. } => {
            assert!(!to.authority.is_empty() && to.path.starts_with('/'));
            None
        }
    }
}

/// Returns the content of `Authorization` for `user:password`, both percent-encoded.
fn basic(user: &str) -> String {
    let (user, password) = user.split_once(':').unwrap_or((user, ""));
    crate::basic_login(percent_decode_str(user).collect::<Vec<u8>>(), percent_decode_str(password).collect::<Vec<u8>>())
}

/// Returns path and query as they are sent: beginning with a slash, without a fragment, and with all but visible ASCII percent-encoded.
fn path_of(text: &str) -> String {
    let text = text.split('#').next().unwrap_or_default();
    let mut path = String::with_capacity(text.len() + 1);
    if !text.starts_with('/') {
        path.push('/');
    }
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' => path.push(char::from(byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    path
}

/// Removes `.` and `..` from a path, as RFC 3986 (5.2.4) says; the query stays as it is.
fn without_dots(path: &str) -> String {
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let mut parts: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    parts.pop();
                }
                if last {
                    parts.push("");
                }
            }
            other => parts.push(other),
        }
    }
    format!("/{}{query}", parts.join("/"))
}

/// Reads on. Returns false at the end, or if a head is longer than [`HEAD`].
async fn more(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<bool> {
    Ok(bytes.len() < HEAD && stream.take((HEAD - bytes.len()) as u64).read_buf(bytes).await? > 0)
}

/// Returns the code of a status line.
fn code(line: &[u8]) -> Option<u16> {
    let digits = line.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Returns the health for a status: 200 to 299 is passing, 429 a warning.
fn health(code: u16) -> Health {
    match code {
        200..=299 => Health::Passing,
        429 => Health::Warning,
        _ => Health::Critical,
    }
}

/// Returns the length of a head, with the empty line at its end.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').scan(0, |at, line| {
        *at += line.len();
        Some((*at, line))
    });
    lines.find(|(_, line)| matches!(*line, b"\n" | b"\r\n")).map(|(at, _)| at)
}

/// Returns the `Location` of a response; `None` if it is missing or empty.
fn location(head: &[u8]) -> Option<&str> {
    let mut lines = std::str::from_utf8(head).ok()?.lines().skip(1);
    let (_, value) =
        lines.find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("location")))?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use base64::Engine as _;

    use super::*;

    fn url(text: &str) -> Url {
        Url::of(text, || "h:7".into())
    }

    #[test]
    fn http_answers() {
        for (line, found) in [
            ("HTTP/1.1 200", Some(Health::Passing)),
            ("HTTP/1.0 204", Some(Health::Passing)),
            ("HTTP/1.1 429", Some(Health::Warning)),
            ("HTTP/1.1 304", Some(Health::Critical)),
            ("HTTP/1.1 500", Some(Health::Critical)),
            ("HTTP/1.1 2", None),
            ("HTTP/1.1 2xx", None),
            ("HTTP/1.1 +20", None),
            ("SSH-2.0-Open", None),
            ("", None),
        ] {
            assert_eq!(code(line.as_bytes()).map(health), found, "{line:?}");
        }
    }

    #[test]
    fn urls_of_checks() {
        for (text, target, path, login) in [
            ("/up", "h:7", "/up", None),
            ("/up?a=b#c", "h:7", "/up?a=b", None),
            ("/go?to=http://x/", "h:7", "/go?to=http://x/", None),
            ("http://g/up", "g:80", "/up", None),
            ("http://g:8", "g:8", "/", None),
            ("http://g:8?x=1", "g:8", "/?x=1", None),
            ("http://g:/up", "g:80", "/up", None),
            ("https://g?x=a/b@c", "g:443", "/?x=a/b@c", None),
            ("http://[::1]/up", "[::1]:80", "/up", None),
            ("http://user:pw@g/up", "g:80", "/up", Some("user:pw")),
            ("https://u:a%40b%3A@g:8/", "g:8", "/", Some("u:a@b:")),
            ("http://only@g", "g:80", "/", Some("only:")),
            ("http://u:p@w@g", "g:80", "/", Some("u:p@w")),
            ("http://g/ä", "g:80", "/%C3%A4", None),
            ("http://g\rX: y/", "h:7", "/http://g%0DX:%20y/", None),
        ] {
            let found = url(text);
            let login = login.map(|plain| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(plain)));
            assert_eq!((found.target().as_str(), found.path.as_str(), &found.login), (target, path, &login), "{text}");
            assert!(!format!("{found:?}").contains("pw") && !format!("{found:?}").contains('@'), "{found:?}");
        }
    }

    #[test]
    fn redirects_lead_where_go_goes() {
        for (base, location, expected) in [
            ("http://u:p@g:8/a/b?q=1", "/c", Some("http://u:p@g:8/c")),
            ("http://u:p@g:8/a/b?q=1", "c?r=2", Some("http://u:p@g:8/a/c?r=2")),
            ("http://u:p@g:8/a/b?q=1", "../c/./d/..", Some("http://u:p@g:8/c/")),
            ("http://u:p@g:8/a/b?q=1", "/../../c", Some("http://u:p@g:8/c")),
            ("http://u:p@g:8/a/b?q=1", "?r=a/../b", Some("http://u:p@g:8/a/b?r=a/../b")),
            // A password is for the host that it was given for.
            ("http://u:p@g:8/a", "http://g:8/c", Some("http://g:8/c")),
            ("http://u:p@g:8/a", "//f/c", Some("http://f/c")),
            ("https://g/a", "//f/c", Some("https://f/c")),
            ("http://g/a", "HTTPS://v:w@f:9?c", Some("https://v:w@f:9?c")),
            ("http://g/a", "ftp://f/c", None),
            ("http://g/a", "mailto:f", None),
            ("http://g/a", "http:///c", None),
        ] {
            assert_eq!(url(base).joined(location), expected.map(url), "{base} → {location}");
        }
    }

    #[tokio::test]
    async fn what_is_read_of_a_response() {
        let critical = || Answer::Health(Health::Critical);
        let moved = |to| Answer::Redirect { to: url(to), same_method: true };
        let long = format!("HTTP/1.1 302 Found\r\nX: {}\r\nLocation: /b\r\n\r\n", "x".repeat(HEAD));
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Answer::Health(Health::Passing)),
            ("HTTP/1.1 302 Found\r\nlocation:  /b \r\n\r\nbody", moved("/b")),
            ("HTTP/1.0 301 M\nLOCATION: /b\n\n", moved("/b")),
            ("HTTP/1.1 103 Hints\r\nLocation: /a\r\n\r\nHTTP/1.1 204 No\r\n\r\n", Answer::Health(Health::Passing)),
            ("HTTP/1.1 302 Found\r\n\r\nLocation: /b\r\n\r\n", critical()),
            ("HTTP/1.1 302 Found\r\nLocation: /b\r\n", critical()),
            ("HTTP/1.1 302 Found\r\nLocation:\r\n\r\n", critical()),
            ("HTTP/1.1 101 Switching\r\n\r\n", critical()),
            (&*"HTTP/1.1 100 Continue\r\n\r\n".repeat(9), critical()),
            (&long, critical()),
            ("", critical()),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
            theirs.write_all(response.as_bytes()).await.unwrap();
            theirs.shutdown().await.unwrap();
            assert_eq!(url("/a").ask(&ProbeRequest::default(), &mut ours).await.unwrap(), expected, "{response:.80}");
        }
    }

    #[tokio::test]
    async fn what_is_sent() {
        let (mut ours, mut theirs) = tokio::io::duplex(4096);
        theirs.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        url("http://user:pw@g?x=1").ask(&ProbeRequest::default(), &mut ours).await.unwrap();
        drop(ours);
        let mut sent = String::new();
        theirs.read_to_string(&mut sent).await.unwrap();
        assert!(sent.starts_with("GET /?x=1 HTTP/1.1\r\nHost: g\r\nAuthorization: Basic dXNlcjpwdw==\r\n"), "{sent}");
    }

    fn request(method: &str, headers: &[(&str, &str)], body: &str) -> ProbeRequest {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ProbeRequest { method: method.into(), headers, body: body.into() }
    }

    #[test]
    fn a_request_of_its_own() {
        let sent = url("http://u:p@g/a").request(&request("POST", &[("host", "h"), ("X-Y", "1"), ("X-Y", "2")], "{}"));
        let expected = "POST /a HTTP/1.1\r\nAuthorization: Basic dTpw\r\nUser-Agent: kingpost\r\nAccept: */*\r\nContent-Length: 2\r\n\
             Connection: close\r\nhost: h\r\nX-Y: 1\r\nX-Y: 2\r\n\r\n{}";
        assert_eq!(sent, expected);
    }

    #[test]
    fn requests_behind_redirects() {
        let all = [("Authorization", "x"), ("Cookie", "y"), ("X-Z", "z"), ("Content-Type", "t")];
        for (method, to, same_method, expected) in [
            ("POST", "http://g/b", true, request("POST", &all, "{}")),
            ("POST", "http://g/b", false, request("", &all[..3], "")),
            ("HEAD", "http://g/b", false, request("HEAD", &all[..3], "")),
            // Another host learns no secret.
            ("POST", "http://f/b", true, request("POST", &all[2..], "{}")),
            ("POST", "http://f/b", false, request("", &all[2..3], "")),
        ] {
            let mut sent = request(method, &all, "{}");
            url("http://g/a").redirected(&url(to), same_method, &mut sent);
            assert!(sent == expected, "{method} {to} {same_method}: {:?}", sent.headers);
        }
    }
}
