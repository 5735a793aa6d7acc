//! How the health of an instance is known.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::instance::Health;
use super::limits::{self, Invalid};
use super::text::visible;

/// How the health of an instance is known, and what becomes of one that stays critical.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Check {
    /// Who finds out, and how.
    #[serde(flatten)]
    pub kind: CheckKind,
    /// An instance that was critical for this long is deregistered.
    #[serde(default, with = "humantime_serde::option", skip_serializing_if = "Option::is_none")]
    pub deregister_after: Option<Duration>,
}

/// Who finds out, and how. Probes are active: the registry connects every `interval`, and changes its mind after
/// `fall` failures or `rise` successes in a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CheckKind {
    /// The instance says that it lives; without a word for `ttl` it is critical.
    Ttl {
        /// 1 s to 1 day.
        #[serde(with = "humantime_serde")]
        ttl: Duration,
    },
    /// A TCP connection is accepted.
    Tcp {
        /// Whom to connect to, `host:port`; the instance's own address where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
    /// `GET` answers with 200 to 299. 429 is a warning.
    Http {
        /// `http://host:port/path` or `https://host:port/path`, or a path on the instance's own address, without TLS.
        url: String,
        /// How TLS is spoken, with `https://`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<ProbeTls>,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A PostgreSQL server answers an `SSLRequest`: it accepts connections and speaks the protocol. No credentials needed.
    Postgres {
        /// Whom to connect to, `host:port`; the instance's own address where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A MySQL or MariaDB server accepts connections. No credentials needed: it is asked with a user that need not exist.
    Mysql {
        /// Whom to connect to, `host:port`; the instance's own address where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
    /// A Redis server answers a `PING`, also by asking for a password.
    Redis {
        /// Whom to connect to, `host:port`; the instance's own address where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
    /// `grpc.health.v1.Health/Check` says that it is serving.
    Grpc {
        /// Whom to connect to, `host:port`; the instance's own address where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// The service that is asked for; the server as a whole where it is empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        service: String,
        /// How TLS is spoken; without it the connection is in clear.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls: Option<ProbeTls>,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
    /// Nobody finds out: the health stays as it was reported last.
    Reported,
    /// Several checks, each of which has a health of its own. The instance has the worst of them.
    Several {
        /// Two to [`MOST_CHECKS`], each with an id of its own. None of them is `Several` again.
        checks: Vec<Part>,
    },
}

/// One of several checks of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Unique among the checks of the instance: 1 to 256 bytes.
    pub id: String,
    /// What the check found last. Of a registration `None` leaves the health as it was; of a new check: passing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// The check.
    #[serde(flatten)]
    pub check: Check,
}

/// How a probe speaks TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeTls {
    /// Whether any certificate will do. Otherwise one is wanted of an authority that the registry trusts (`registry.health.probe_ca_file`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_verify: bool,
    /// The name that the certificate must have, and that the server is told; where it is empty, the host that is connected to. At most 253 bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_name: String,
}

/// More checks than this an instance cannot have.
pub const MOST_CHECKS: usize = 16;

/// When and how often a probe is tried.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Pace {
    /// From the start of one try to the next: 1 s to 1 day.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// A try that has not succeeded after this has failed: 10 ms to 1 minute.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Failures in a row that make it critical: 1 to 100.
    pub fall: u8,
    /// Successes in a row that make it passing again: 1 to 100.
    pub rise: u8,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { interval: Duration::from_secs(10), timeout: Duration::from_secs(2), fall: 3, rise: 2 }
    }
}

const DAY: Duration = Duration::from_secs(86_400);

impl Check {
    /// A heartbeat every `ttl` at the latest.
    pub fn ttl(ttl: Duration) -> Check {
        Check { kind: CheckKind::Ttl { ttl }, deregister_after: None }
    }

    /// The time to live, where the instance itself reports.
    pub fn time_to_live(&self) -> Option<Duration> {
        match self.kind {
            CheckKind::Ttl { ttl } => Some(ttl),
            _ => None,
        }
    }

    /// The checks of an instance that has several; otherwise none.
    pub fn parts(&self) -> &[Part] {
        match &self.kind {
            CheckKind::Several { checks } => checks,
            _ => &[],
        }
    }

    /// Whether a registration, a heartbeat or a report says how the instance is; otherwise the registry finds out by itself.
    pub fn is_reported(&self) -> bool {
        matches!(self.kind, CheckKind::Ttl { .. } | CheckKind::Reported)
    }

    /// Gives each of several checks the health that it has: the one that the registration says, else that of `before`, else passing. The worst
    /// of them is the instance's; `None` where there are not several.
    pub(crate) fn settle(&mut self, before: Option<&Check>) -> Option<Health> {
        let CheckKind::Several { checks } = &mut self.kind else { return None };
        let known = |id: &str| before?.parts().iter().find(|part| part.id == id)?.health;
        for part in checks.iter_mut() {
            part.health = Some(part.health.or_else(|| known(&part.id)).unwrap_or_default());
        }
        worst(checks)
    }

    /// Sets the health of those of several checks of which `of` says one. The worst of all then; `None` where there are not several.
    pub(crate) fn report(&mut self, of: impl Fn(&Part) -> Option<Health>) -> Option<Health> {
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
            CheckKind::Tcp { target, pace }
            | CheckKind::Postgres { target, pace }
            | CheckKind::Mysql { target, pace }
            | CheckKind::Redis { target, pace }
            | CheckKind::Grpc { target, pace, .. } => {
                if let CheckKind::Grpc { service, tls, .. } = &self.kind {
                    limits::text("service of a check", service, 0, 256)?;
                    tls.iter().try_for_each(ProbeTls::check)?;
                }
                if let Some(target) = target {
                    limits::text("target of a check", target, 1, 300)?;
                }
                pace.check()?;
            }
            CheckKind::Http { url, tls, pace } => {
                limits::text("url of a check", url, 1, 1024)?;
                let begins = ["http://", "https://", "/"].iter().any(|start| url.starts_with(start));
                if !begins || url.contains(char::is_whitespace) {
                    return Err(Invalid::Value {
                        what: "url of a check",
                        found: url.clone(),
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

/// The worst health of several checks.
fn worst(checks: &[Part]) -> Option<Health> {
    checks.iter().filter_map(|part| part.health).max()
}

fn several(checks: &[Part]) -> Result<(), Invalid> {
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
    fn json_forms() {
        for (json, good) in [
            (r#"{"type":"ttl","ttl":"10s"}"#, true),
            (r#"{"type":"ttl","ttl":"10s","deregister_after":"1m"}"#, true),
            (r#"{"type":"ttl","ttl":"10ms"}"#, false),
            (r#"{"type":"tcp"}"#, true),
            (r#"{"type":"tcp","interval":"2s","fall":0}"#, false),
            (r#"{"type":"http","url":"/health"}"#, true),
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
}
