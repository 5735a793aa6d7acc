//! Health checks of instances.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::instance::Health;
use super::limits::{self, Invalid};
use super::text::visible;

/// The health check of an instance, and the time after which a critical instance is deregistered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Check {
    /// The kind of check.
    #[serde(flatten)]
    pub kind: CheckKind,
    /// Time for which an instance may be critical before it is deregistered.
    #[serde(default, with = "humantime_serde::option", skip_serializing_if = "Option::is_none")]
    pub deregister_after: Option<Duration>,
}

/// The kind of a check: who determines the health, and how. Probes are active: the registry connects every `interval`, and changes the health only
/// after `fall` failures or `rise` successes in a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CheckKind {
    /// A lease that the instance renews by heartbeats; without one for `ttl` the instance is critical.
    Ttl {
        /// Lifetime of the lease: 1 s to 1 day.
        #[serde(with = "humantime_serde")]
        ttl: Duration,
    },
    /// A probe that passes if a TCP connection is accepted.
    Tcp {
        /// Address to connect to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// TLS parameters of a probe that passes only after a TLS handshake; None for a connection in clear.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<ProbeTls>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if a datagram is answered by any other.
    Udp {
        /// Address to send to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Content of the datagram.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        message: String,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if an HTTP request is answered with 200 to 299, after at most 9 redirects. 429 is a warning.
    Http {
        /// `http://host:port/path` or `https://host:port/path`, or a path on the instance's own address, without TLS. `user:password@` before the
        /// host becomes Basic authentication.
        url: String,
        /// TLS parameters for `https://`, also after a redirect.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<ProbeTls>,
        /// True if a redirect is not followed, but critical.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        no_redirects: bool,
        /// The request, if it is not a plain `GET`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<Box<ProbeRequest>>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if a PostgreSQL server answers an `SSLRequest`: it accepts connections and speaks the protocol. Needs no credentials.
    Postgres {
        /// Address to connect to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if a MySQL or MariaDB server accepts connections. Needs no credentials: it logs in as a user that need not exist.
    Mysql {
        /// Address to connect to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if a Redis server answers a `PING`, even with a request for a password.
    Redis {
        /// Address to connect to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if `grpc.health.v1.Health/Check` answers that the service is serving.
    Grpc {
        /// Address to connect to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// The service named in the request; empty for the server as a whole.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        service: String,
        /// TLS parameters; None for a connection in clear.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<ProbeTls>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A probe that passes if an HTTP/2 server answers a `PING` frame.
    H2ping {
        /// Address to connect to, `host:port`; None for the instance's own address.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// TLS parameters; None for a connection in clear.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<ProbeTls>,
        /// Interval, timeout and thresholds of the probe.
        #[serde(flatten)]
        pace: Pace,
    },
    /// The health of another instance of the namespace; critical while that does not exist.
    Alias {
        /// The other instance's id in the namespace.
        instance: String,
        /// Name of Consul's node, as the client has sent it; empty if it sent none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        node: String,
        /// Id of Consul's service, like `node`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        service: String,
    },
    /// No lease and no probe: the health stays as it was reported last.
    Reported,
    /// Several checks, each with a health of its own. The instance has the worst of them.
    Several {
        /// Two to [`MOST_CHECKS`] checks with distinct ids. None of them is `Several` again.
        checks: Vec<InstanceCheck>,
    },
}

/// One of several checks of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InstanceCheck {
    /// Unique among the checks of the instance: 1 to 256 bytes.
    pub id: String,
    /// The check's last result. In a registration, `None` leaves the health unchanged; a new check is then passing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// The check.
    #[serde(flatten)]
    pub check: Check,
}

/// Request of an HTTP probe. Headers may have secrets: they are not shown but to Consul's own clients.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeRequest {
    /// Method; empty for `GET`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Headers with their values, in the order in which they are sent. `Host` replaces the host of the URL.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// Body.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub body: String,
}

impl std::fmt::Debug for ProbeRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbeRequest").field("method", &self.method).finish_non_exhaustive()
    }
}

/// TLS parameters of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeTls {
    /// True if any certificate is accepted. If false, the certificate must come from an authority that the registry trusts
    /// (`registry.health.probe_ca_file`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_verify: bool,
    /// The name that is sent as SNI and that the certificate must have; empty for the host that is connected to. At most 253 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_name: String,
}

/// Maximum number of headers of a probe's request, and maximum length of all of them and of its body, in bytes.
const MOST_HEADERS: usize = 32;
const LONGEST_HEADERS: usize = 4096;
const LONGEST_BODY: usize = 4096;
/// Maximum length of a probe's datagram in bytes: what every path carries in one piece.
const LONGEST_DATAGRAM: usize = 1024;
/// Headers that the probe sets by itself.
const OWN_HEADERS: [&str; 5] = ["connection", "content-length", "transfer-encoding", "upgrade", "te"];

/// Maximum number of checks of an instance.
pub const MOST_CHECKS: usize = 16;

/// Interval, timeout and thresholds of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// Time from the start of one attempt to the next: 1 s to 1 day.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Time after which an attempt without a result has failed: 10 ms to 1 minute.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Failures in a row after which the health is critical: 1 to 100.
    pub fall: u8,
    /// Successes in a row after which the health is passing again: 1 to 100.
    pub rise: u8,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { interval: Duration::from_secs(10), timeout: Duration::from_secs(2), fall: 3, rise: 2 }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

impl Check {
    /// Makes a check by heartbeats, at least one every `ttl`.
    pub fn ttl(ttl: Duration) -> Check {
        Check { kind: CheckKind::Ttl { ttl }, deregister_after: None }
    }

    /// Returns the time to live of a check by heartbeats.
    pub fn time_to_live(&self) -> Option<Duration> {
        match self.kind {
            CheckKind::Ttl { ttl } => Some(ttl),
            _ => None,
        }
    }

    /// Returns the checks of an instance that has several; otherwise an empty slice.
    pub fn parts(&self) -> &[InstanceCheck] {
        match &self.kind {
            CheckKind::Several { checks } => checks,
            _ => &[],
        }
    }

    /// Returns a copy for people to look at: its URLs have no `user:password@` and no query, its requests no values of headers and no body.
    #[must_use]
    pub fn redacted(&self) -> Check {
        let mut check = self.clone();
        match &mut check.kind {
            CheckKind::Http { url, request, .. } => {
                *url = without_secrets(url);
                if let Some(request) = request {
                    request.headers.iter_mut().for_each(|(_, value)| *value = "…".into());
                    request.body.clear();
                }
            }
            CheckKind::Several { checks } => checks.iter_mut().for_each(|part| part.check = part.check.redacted()),
            _ => {}
        }
        check
    }

    /// True if a registration, a heartbeat or a report sets the health; false if the registry determines it by itself.
    pub fn is_reported(&self) -> bool {
        matches!(self.kind, CheckKind::Ttl { .. } | CheckKind::Reported)
    }

    /// Sets the health of each of several checks: that of the registration, else that of `before`, else passing. Returns the worst of them, which is
    /// the instance's; `None` for a single check.
    pub(crate) fn settle(&mut self, before: Option<&Check>) -> Option<Health> {
        let CheckKind::Several { checks } = &mut self.kind else { return None };
        let known = |id: &str| before?.parts().iter().find(|part| part.id == id)?.health;
        for part in checks.iter_mut() {
            part.health = Some(part.health.or_else(|| known(&part.id)).unwrap_or_default());
        }
        worst(checks)
    }

    /// Sets the health of each of several checks for which `of` returns one. Returns the worst of all; `None` for a single check.
    pub(crate) fn report(&mut self, of: impl Fn(&InstanceCheck) -> Option<Health>) -> Option<Health> {
        let CheckKind::Several { checks } = &mut self.kind else { return None };
        for part in checks.iter_mut() {
            if let Some(health) = of(part) {
                part.health = Some(health);
            }
        }
        worst(checks)
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        match &self.kind {
            CheckKind::Reported => {}
            CheckKind::Several { checks } => several(checks)?,
            CheckKind::Ttl { ttl } => within("ttl of a check", *ttl, Duration::from_secs(1), DAY, "1s to 1day")?,
            CheckKind::Alias { instance, node, service } => {
                limits::text("instance of a check", instance, 1, 300)?;
                limits::text("node of a check", node, 0, 300)?;
                limits::text("service of a check", service, 0, 300)?;
            }
            CheckKind::Tcp { target, pace, .. }
            | CheckKind::H2ping { target, pace, .. }
            | CheckKind::Udp { target, pace, .. }
            | CheckKind::Postgres { target, pace }
            | CheckKind::Mysql { target, pace }
            | CheckKind::Redis { target, pace }
            | CheckKind::Grpc { target, pace, .. } => {
                if let CheckKind::Udp { message, .. } = &self.kind {
                    limits::text("message of a check", message, 0, LONGEST_DATAGRAM)?;
                }
                if let CheckKind::Grpc { service, .. } = &self.kind {
                    limits::text("service of a check", service, 0, 256)?;
                }
                if let CheckKind::Grpc { tls, .. } | CheckKind::Tcp { tls, .. } | CheckKind::H2ping { tls, .. } =
                    &self.kind
                {
                    tls.iter().try_for_each(ProbeTls::check)?;
                }
                if let Some(target) = target {
                    limits::text("target of a check", target, 1, 300)?;
                }
                pace.check()?;
            }
            CheckKind::Http { url, tls, pace, request, .. } => {
                request.iter().try_for_each(|request| request.check())?;
                limits::text("url of a check", url, 1, 1024)?;
                let begins = ["http://", "https://", "/"].iter().any(|start| url.starts_with(start));
                if !begins || url.contains(char::is_whitespace) {
                    return Err(Invalid::Value {
                        what: "url of a check",
                        found: without_secrets(url),
                        expected: "http://host:port/path, https://host:port/path or /path, without spaces",
                    });
                }
                tls.iter().try_for_each(ProbeTls::check)?;
                pace.check()?;
            }
        }
        if let Some(after) = self.deregister_after {
            within("deregister_after of a check", after, Duration::from_secs(1), DAY * 30, "1s to 30days")?;
        }
        Ok(())
    }
}

/// Returns a URL without `user:password@`, and with `…` in place of its query.
fn without_secrets(url: &str) -> String {
    let start = url.find("://").filter(|at| !url[..*at].contains(['/', '?', '#'])).map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(start);
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (path, query) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
    format!("{scheme}{host}{path}{}", if query.is_empty() { "" } else { "?…" })
}

/// Returns the worst health of several checks.
fn worst(checks: &[InstanceCheck]) -> Option<Health> {
    checks.iter().filter_map(|part| part.health).max()
}

fn several(checks: &[InstanceCheck]) -> Result<(), Invalid> {
    if checks.len() < 2 {
        return Err(Invalid::Value {
            what: "checks of an instance with several",
            found: checks.len().to_string(),
            expected: "2 to 16",
        });
    }
    limits::at_most("checks of an instance", checks.len(), MOST_CHECKS)?;
    let mut ids = std::collections::BTreeSet::new();
    for part in checks {
        limits::text("id of a check", &part.id, 1, 256)?;
        visible("id of a check", &part.id)?;
        if !ids.insert(&part.id) {
            return Err(Invalid::Value {
                what: "ids of an instance's checks",
                found: format!("{:?} twice", part.id),
                expected: "each once",
            });
        }
        if matches!(part.check.kind, CheckKind::Several { .. }) {
            return Err(Invalid::Value {
                what: "one of several checks",
                found: "several".into(),
                expected: "a check of another type",
            });
        }
        part.check.check()?;
    }
    Ok(())
}

impl ProbeRequest {
    /// Checks that the parts are those of one request, and of no second one.
    fn check(&self) -> Result<(), Invalid> {
        let invalid =
            |what: &'static str, expected: &'static str| Invalid::Value { what, found: "…".into(), expected };
        let is_token = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
        };
        if !self.method.is_empty() && (self.method.len() > 16 || !is_token(&self.method)) {
            return Err(invalid("method of a check", "a method such as POST, at most 16 characters"));
        }
        let length: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        if self.headers.len() > MOST_HEADERS || length > LONGEST_HEADERS {
            return Err(invalid("headers of a check", "at most 32 headers of 4096 bytes"));
        }
        let is_own = |name: &str| OWN_HEADERS.iter().any(|own| name.eq_ignore_ascii_case(own));
        let is_good = |(name, value): &(String, String)| {
            is_token(name) && !is_own(name) && !value.chars().any(|c| c.is_control() && c != '\t')
        };
        if !self.headers.iter().all(is_good) {
            let expected = "names and values of one line, and none of Connection, Content-Length, Transfer-Encoding, Upgrade and TE";
            return Err(invalid("header of a check", expected));
        }
        if self.body.len() > LONGEST_BODY {
            return Err(invalid("body of a check", "at most 4096 bytes"));
        }
        Ok(())
    }

    /// True if this is a plain `GET`.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.method.as_str(), "" | "GET") && self.headers.is_empty() && self.body.is_empty()
    }
}

impl ProbeTls {
    fn check(&self) -> Result<(), Invalid> {
        limits::text("server_name of a check", &self.server_name, 0, 253)
    }
}

impl Pace {
    fn check(&self) -> Result<(), Invalid> {
        within("interval of a check", self.interval, Duration::from_secs(1), DAY, "1s to 1day")?;
        within("timeout of a check", self.timeout, Duration::from_millis(10), Duration::from_secs(60), "10ms to 1min")?;
        for (what, count) in [("fall of a check", self.fall), ("rise of a check", self.rise)] {
            if !(1..=100).contains(&count) {
                return Err(Invalid::Value { what, found: count.to_string(), expected: "1 to 100" });
            }
        }
        Ok(())
    }
}

fn within(
    what: &'static str,
    found: Duration,
    min: Duration,
    max: Duration,
    expected: &'static str,
) -> Result<(), Invalid> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(Invalid::Value { what, found: format!("{found:?}"), expected })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn secrets_of_urls_are_not_shown() {
        for (url, shown) in [
            ("http://user:pw@h:8/up?token=pw#pw", "http://h:8/up?…"),
            ("https://a:p@w@h", "https://h"),
            ("http://h?pw", "http://h?…"),
            ("/up?to=http://user:pw@h/", "/up?…"),
            ("ftp://user:pw@h/ up", "ftp://h/ up"),
            ("user:pw@h/up", "h/up"),
        ] {
            let kind = CheckKind::Http {
                url: url.into(),
                tls: None,
                no_redirects: false,
                request: None,
                pace: Pace::default(),
            };
            let check = Check { kind, deregister_after: None };
            let part = InstanceCheck { id: "a".into(), health: None, check: check.clone() };
            let several = Check { kind: CheckKind::Several { checks: vec![part] }, deregister_after: None };
            for check in [&check, &several] {
                let text = serde_json::to_string(&check.redacted()).unwrap();
                assert!(text.contains(&format!("\"url\":{shown:?}")) && !text.contains("pw"), "{url}: {text}");
            }
            if let Err(error) = check.check() {
                assert!(!error.to_string().contains("pw"), "{url}: {error}");
            }
        }
    }

    #[test]
    fn json_forms() {
        for (json, good) in [
            (r#"{"type":"ttl","ttl":"10s"}"#, true),
            (r#"{"type":"ttl","ttl":"10s","deregister_after":"1m"}"#, true),
            (r#"{"type":"ttl","ttl":"10ms"}"#, false),
            (r#"{"type":"tcp"}"#, true),
            (r#"{"type":"tcp","interval":"2s","fall":0}"#, false),
            (r#"{"type":"http","url":"/health"}"#, true),
            (r#"{"type":"http","url":"http://u:p@h?x=1","no_redirects":true}"#, true),
            (r#"{"type":"http","url":"ftp://x"}"#, false),
            (r#"{"type":"http","url":"/a\r\nX: y"}"#, false),
            (r#"{"type":"postgres","target":"127.0.0.1:5432"}"#, true),
            (r#"{"type":"mysql"}"#, true),
            (r#"{"type":"redis","target":""}"#, false),
            (r#"{"type":"grpc","service":"shop.v1.Cart"}"#, true),
            (r#"{"type":"grpc","tls":{"skip_verify":true}}"#, true),
            (r#"{"type":"grpc","tls":{"verify":false}}"#, false),
            (r#"{"type":"http","url":"https://h:8443/up","tls":{"server_name":"h.example"}}"#, true),
            (r#"{"type":"reported"}"#, true),
            (
                r#"{"type":"several","checks":[{"id":"a","type":"ttl","ttl":"10s"},{"id":"b","health":"warning","type":"tcp"}]}"#,
                true,
            ),
            (r#"{"type":"several","checks":[{"id":"a","type":"ttl","ttl":"10s"}]}"#, false),
            (r#"{"type":"several","checks":[{"id":"a","type":"tcp"},{"id":"a","type":"ttl","ttl":"10s"}]}"#, false),
            (r#"{"type":"several","checks":[{"id":"a","type":"tcp"},{"id":"b","type":"ttl","ttl":"1ms"}]}"#, false),
            (r#"{"type":"several","checks":[{"id":"a","type":"tcp"},{"id":"b","type":"several","checks":[]}]}"#, false),
            (r#"{"type":"voodoo"}"#, false),
        ] {
            let found = serde_json::from_str::<Check>(json).ok().filter(|c| c.check().is_ok());
            assert_eq!(found.is_some(), good, "{json}");
            if let Some(check) = found {
                let again = serde_json::to_string(&check).unwrap();
                assert_eq!(serde_json::from_str::<Check>(&again).unwrap(), check, "{again}");
            }
        }
    }

    #[test]
    fn requests_that_are_none() {
        let request = |method: &str, name: &str, value: &str, body: usize| ProbeRequest {
            method: method.into(),
            headers: vec![(name.into(), value.into())],
            body: "x".repeat(body),
        };
        for (request, good) in [
            (request("POST", "X-A", "1", 4096), true),
            (request("", "Host", "a\tb", 0), true),
            (request("POST /", "X-A", "1", 0), false),
            (request("", "X-A", "1\r\nX-B: 2", 0), false),
            (request("", "X A", "1", 0), false),
            (request("", "", "1", 0), false),
            (request("", "content-length", "5", 0), false),
            (request("", "Transfer-Encoding", "chunked", 0), false),
            (request("", "X-A", &"1".repeat(4096), 0), false),
            (request("", "X-A", "1", 4097), false),
            (ProbeRequest { headers: vec![("X".into(), String::new()); 33], ..ProbeRequest::default() }, false),
        ] {
            let (shown, secret) = (format!("{request:?}"), request.headers[0].1.clone());
            assert_eq!(request.check().is_ok(), good, "{shown} {:?}", request.headers[0]);
            assert!(secret.len() < 3 || !shown.contains(&secret));
        }
    }
}
