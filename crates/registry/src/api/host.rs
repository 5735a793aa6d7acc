//! Host names accepted by a registry without authentication. Pure.
//!
//! A page open in a browser on the machine can resolve a name of its own to 127.0.0.1 (DNS rebinding) and then read the registry's responses. The
//! browser sends the name in `Host`: `Host: evil.example:8632`. So without tokens, only names of this machine and names from the configuration are
//! accepted. Clients that send no `Host` are not browsers.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::Uri;
use hyper::header::HOST;

/// Returns the host of a request, from HTTP/2's `:authority` or from the header.
pub(super) fn of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        // A value that is not text is never a known name.
        None => headers.get(HOST).map(|value| value.to_str().unwrap_or("?")),
    }
}

/// True if `host`, with or without a port, is this machine or one of `names`. The port is ignored: a forwarded port differs from the socket's.
pub(super) fn is_known(host: &str, names: &[String]) -> bool {
    let host = host.trim();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => match host.split_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        },
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if let Ok(address) = name.parse::<IpAddr>()
        && address.to_canonical().is_loopback()
    {
        return true;
    }
    let lower = name.to_ascii_lowercase();
    lower == "localhost" || lower.ends_with(".localhost") || names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let names = ["registry.internal".to_owned(), "10.0.0.9".to_owned()];
        for (host, known) in [
            ("127.0.0.1:8632", true),
            ("127.0.0.1", true),
            ("127.1.2.3:1", true),
            ("[::1]:8632", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]:8632", true),
            ("localhost", true),
            ("LOCALHOST:9", true),
            ("localhost.", true),
            ("registry.localhost:8632", true),
            ("registry.internal:80", true),
            ("Registry.Internal", true),
            ("10.0.0.9:8632", true),
            ("10.0.0.8:8632", false),
            ("evil.example:8632", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:8632", false),
            ("notlocalhost", false),
            ("registry.internal.evil.example", false),
            ("127.0.0.1@evil.example", false),
            ("", false),
            ("[", false),
        ] {
            assert_eq!(is_known(host, &names), known, "{host:?}");
        }
    }
}
