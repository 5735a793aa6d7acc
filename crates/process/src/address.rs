//! Addresses of sockets as settings have them.

use std::net::IpAddr;

/// Longest path of a Unix socket, in bytes, without the closing zero.
pub const SOCKET_PATH_LIMIT: usize = 107;

/// The host part of an address.
#[derive(Debug, PartialEq, Eq)]
pub enum Host {
    /// Path of a Unix socket.
    Unix,
    /// An IP address.
    Ip(IpAddr),
    /// Name to look up.
    Name(String),
}

impl Host {
    /// True if only this machine can reach the host.
    pub fn is_local(&self) -> bool {
        match self {
            Host::Unix => true,
            Host::Ip(ip) => ip.is_loopback(),
            Host::Name(name) => name == "localhost",
        }
    }
}

/// Returns the host of `host:port`, without the brackets of an IPv6 address; empty without a port.
pub fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']'])
}

/// Splits `host:port` into the host, without the brackets of an IPv6 address, and the port; `port` if there is none.
pub fn split<'a>(address: &'a str, port: &'a str) -> (&'a str, &'a str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, port));
    (host.trim_matches(['[', ']']), port)
}

/// Parses `host:port`, `http://host:port` or `https://host:port`, also with slashes at the end: true for HTTPS, and `host:port`. `None` for another text.
pub fn of_url(url: &str) -> Option<(bool, &str)> {
    let (is_secure, address) = match url.strip_prefix("https://") {
        Some(address) => (true, address),
        None => (false, url.strip_prefix("http://").unwrap_or(url)),
    };
    let address = address.trim_end_matches('/');
    let (host, port) = address.rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok() && !address.contains('/')).then_some((is_secure, address))
}

/// True if an address (`host:port`, or a socket's path) can be reached from this machine only.
pub fn is_loopback(address: &str) -> bool {
    parse_address(address, true).is_ok_and(|host| host.is_local())
}

/// Parses `host:port`, `[v6]:port` or an absolute path.
pub fn parse_address(text: &str, port_zero: bool) -> Result<Host, String> {
    let expected = "expected host:port, [v6]:port, or the absolute path of a Unix socket";
    if text.starts_with('/') {
        return match text.len() {
            ..=SOCKET_PATH_LIMIT => Ok(Host::Unix),
            length => Err(format!("found a path of {length} bytes, expected at most {SOCKET_PATH_LIMIT}: {text:?}")),
        };
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("found {text:?} without a port, {expected}"));
    };
    let port_expected = if port_zero { "from 0 to 65535" } else { "from 1 to 65535" };
    match port.parse::<u16>() {
        Ok(0) if !port_zero => return Err(format!("found port 0 in {text:?}, expected a port {port_expected}")),
        Ok(_) if port.bytes().all(|byte| byte.is_ascii_digit()) => {}
        _ => return Err(format!("found {port:?} as the port in {text:?}, expected a port {port_expected}")),
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return match inner.parse() {
            Ok(ip) => Ok(Host::Ip(IpAddr::V6(ip))),
            Err(_) => Err(format!("found {inner:?} in brackets, expected an IPv6 address")),
        };
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return match ip {
            IpAddr::V4(_) => Ok(Host::Ip(ip)),
            IpAddr::V6(_) => Err(format!("found {text:?}, expected brackets around an IPv6 address: [{host}]:{port}")),
        };
    }
    let name = !host.is_empty()
        && host.len() <= 253
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        && !host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if name { Ok(Host::Name(host.into())) } else { Err(format!("found {host:?} as the host in {text:?}, {expected}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, zero, expected) in [
            ("127.0.0.1:5432", false, Some(true)),
            ("127.3.2.1:1", false, Some(true)),
            ("[::1]:5432", false, Some(true)),
            ("localhost:5432", false, Some(true)),
            ("/run/postgresql/.s.PGSQL.5432", false, Some(true)),
            ("10.0.0.1:5432", false, Some(false)),
            ("0.0.0.0:6432", true, Some(false)),
            ("[::]:6432", true, Some(false)),
            ("db-1.example:5432", false, Some(false)),
            ("localhost.example:5432", false, Some(false)),
            ("127.0.0.1:0", true, Some(true)),
            ("127.0.0.1:0", false, None),
            ("127.0.0.1", false, None),
            ("127.0.0.1:+80", false, None),
            ("127.0.0.1:65536", false, None),
            ("127.0.0:5432", false, None),
            ("::1:5432", false, None),
            ("[::g]:5432", false, None),
            (":5432", false, None),
            ("a b:5432", false, None),
            ("relative/path", false, None),
        ] {
            assert_eq!(parse_address(text, zero).ok().map(|host| host.is_local()), expected, "{text}");
        }
        assert!(parse_address(&format!("/{}", "x".repeat(107)), false).is_err());
        assert!(parse_address(&format!("/{}", "x".repeat(106)), false).is_ok());
    }
}
