//! Tests if a request comes from the page itself. Pure.
//!
//! Any page open on the machine can send requests to a server on its loopback, and with a name that resolves to it (DNS rebinding) even read the
//! answers. A browser sends the name it used in `Host` and the page's origin in `Origin`: both must be the console's. Addresses are always accepted,
//! since the owner of a name cannot make it look like an address.

use std::net::{IpAddr, SocketAddr};

/// Scheme, host and port of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    /// True for `https://`, false for `http://`.
    pub(crate) secure: bool,
    /// Host in lower case, with the port unless it is the scheme's default.
    pub(crate) authority: String,
}

/// Names under which the page may be requested.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    port: u16,
    public: Option<Site>,
}

impl Site {
    /// Parses `http://host[:port]`, with an optional slash at the end.
    pub(crate) fn parse(url: &str) -> Option<Site> {
        let (secure, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return None,
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest).to_ascii_lowercase();
        let good = |c: char| c.is_ascii_alphanumeric() || "-.:[]_".contains(c);
        if authority.is_empty() || authority.starts_with(':') || !authority.chars().all(good) {
            return None;
        }
        let authority = authority.strip_suffix(if secure { ":443" } else { ":80" }).unwrap_or(&authority).to_owned();
        Some(Site { secure, authority })
    }
}

impl Guard {
    pub(crate) fn new(listen: SocketAddr, public: Option<Site>) -> Guard {
        Guard { port: listen.port(), public }
    }

    /// True if browsers are known to connect over TLS.
    pub(crate) fn secure(&self) -> bool {
        self.public.as_ref().is_some_and(|site| site.secure)
    }

    /// True if a request with this `Host` was sent to the console.
    pub(crate) fn host(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return false };
        let host = host.to_ascii_lowercase();
        if self.public.as_ref().is_some_and(|site| site.authority == host) {
            return true;
        }
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                (name, port.parse().ok())
            }
            _ => (host.as_str(), Some(80)),
        };
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        port == Some(self.port) && (name == "localhost" || name.parse::<IpAddr>().is_ok())
    }

    /// True if a request that changes something was sent by the console's page: its origin is the host that it was sent to.
    pub(crate) fn origin(&self, host: Option<&str>, origin: Option<&str>, fetch_site: Option<&str>) -> bool {
        if !self.host(host) || fetch_site.is_some_and(|site| site != "same-origin") {
            return false;
        }
        let (Some(host), Some(origin)) = (host.and_then(|host| Site::parse(&format!("http://{host}"))), origin) else {
            return false;
        };
        let Some(origin) = Site::parse(origin) else { return false };
        match &self.public {
            Some(public) if public.authority == host.authority => *public == origin,
            _ => host == origin,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn guard(public: &str) -> Guard {
        Guard::new("127.0.0.1:7632".parse().unwrap(), Site::parse(public))
    }

    #[test]
    fn hosts() {
        let guard = guard("https://console.example.com");
        for (host, good) in [
            (Some("127.0.0.1:7632"), true),
            (Some("localhost:7632"), true),
            (Some("LOCALHOST:7632"), true),
            (Some("[::1]:7632"), true),
            (Some("10.1.2.3:7632"), true),
            (Some("console.example.com"), true),
            (Some("Console.Example.com"), true),
            (Some("console.example.com:7632"), false),
            (Some("127.0.0.1:7633"), false),
            (Some("127.0.0.1"), false),
            (Some("evil.example:7632"), false),
            (Some("127.0.0.1.evil.example:7632"), false),
            (Some("localhost.evil.example:7632"), false),
            (Some(""), false),
            (Some(":7632"), false),
            (Some("[::1]:7632:7632"), false),
            (None, false),
        ] {
            assert_eq!(guard.host(host), good, "{host:?}");
        }
    }

    #[test]
    fn origins() {
        let public = guard("https://console.example.com/");
        for (host, origin, site, good) in [
            ("127.0.0.1:7632", Some("http://127.0.0.1:7632"), Some("same-origin"), true),
            ("127.0.0.1:7632", Some("http://127.0.0.1:7632"), None, true),
            ("127.0.0.1:7632", Some("http://localhost:7632"), None, false),
            ("127.0.0.1:7632", Some("http://127.0.0.1:7633"), None, false),
            ("127.0.0.1:7632", Some("http://127.0.0.1:7632"), Some("same-site"), false),
            ("127.0.0.1:7632", Some("http://127.0.0.1:7632"), Some("cross-site"), false),
            ("127.0.0.1:7632", Some("null"), None, false),
            ("127.0.0.1:7632", None, None, false),
            ("console.example.com", Some("https://console.example.com"), None, true),
            ("console.example.com", Some("https://console.example.com:443"), None, true),
            ("console.example.com", Some("http://console.example.com"), None, false),
            ("evil.example:7632", Some("http://evil.example:7632"), None, false),
        ] {
            assert_eq!(public.origin(Some(host), origin, site), good, "{host} {origin:?} {site:?}");
        }
    }

    #[test]
    fn sites() {
        for (url, authority) in [
            ("https://a.b", Some("a.b")),
            ("http://A.b:80/", Some("a.b")),
            ("http://a.b:8080", Some("a.b:8080")),
            ("https://[::1]:443", Some("[::1]")),
            ("a.b", None),
            ("ftp://a", None),
            ("https://", None),
            ("https://a/b", None),
            ("https://a b", None),
            ("https://u@a", None),
        ] {
            assert_eq!(Site::parse(url).map(|site| site.authority).as_deref(), authority, "{url}");
        }
    }

    proptest::proptest! {
        #[test]
        fn only_addresses_and_known_names_are_ours(host in "\\PC{0,60}", name in "[a-z0-9.:\\[\\]-]{1,40}", origin in "\\PC{0,60}") {
            let guard = guard("https://console.example.com");
            for host in [host, format!("{name}:7632")] {
                if guard.host(Some(&host)) {
                    let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name).to_ascii_lowercase();
                    let name = name.trim_matches(['[', ']']);
                    let known = ["localhost", "console.example.com"].contains(&name);
                    proptest::prop_assert!(known || name.parse::<IpAddr>().is_ok(), "{}", host);
                }
                // An origin other than the host itself is always refused.
                let same = origin.eq_ignore_ascii_case(&format!("http://{host}"));
                proptest::prop_assert!(same || !guard.origin(Some(&host), Some(&origin), None));
            }
        }
    }
}
