//! How the health of an instance is known.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::limits::{self, Invalid};

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
    /// `GET` answers with 200 to 299. 429 is a warning. Plain HTTP only.
    Http {
        /// `http://host:port/path`, or a path on the instance's own address.
        url: String,
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
    /// `grpc.health.v1.Health/Check` says that it is serving. Without TLS.
    Grpc {
        /// Whom to connect to, `host:port`; the instance's own address where it is absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// The service that is asked for; the server as a whole where it is empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        service: String,
        /// When and how often.
        #[serde(flatten)]
        pace: Pace,
    },
}

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

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        match &self.kind {
            CheckKind::Ttl { ttl } => within("ttl of a check", *ttl, Duration::from_secs(1), DAY, "1s to 1day")?,
            CheckKind::Tcp { target, pace }
            | CheckKind::Postgres { target, pace }
            | CheckKind::Mysql { target, pace }
            | CheckKind::Redis { target, pace }
            | CheckKind::Grpc { target, pace, .. } => {
                if let CheckKind::Grpc { service, .. } = &self.kind {
                    limits::text("service of a check", service, 0, 256)?;
                }
                if let Some(target) = target {
                    limits::text("target of a check", target, 1, 300)?;
                }
                pace.check()?;
            }
            CheckKind::Http { url, pace } => {
                limits::text("url of a check", url, 1, 1024)?;
                if !(url.starts_with("http://") || url.starts_with('/')) || url.contains(char::is_whitespace) {
                    return Err(Invalid::Value {
                        what: "url of a check",
                        found: url.clone(),
                        expected: "http://host:port/path or /path, without spaces",
                    });
                }
                pace.check()?;
            }
        }
        if let Some(after) = self.deregister_after {
            within("deregister_after of a check", after, Duration::from_secs(1), DAY * 30, "1s to 30days")?;
        }
        Ok(())
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
