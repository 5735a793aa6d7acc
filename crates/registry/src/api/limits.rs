//! Limits of the HTTP side. Errors name the key of the limit that was exceeded.

use std::time::Duration;

/// Limits of the HTTP side. The core has its own limits for stored data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpLimits {
    /// Maximum number of connections to all fronts together; further ones are closed at once.
    pub connections: usize,
    /// Maximum number of connections from one address, except loopback; further ones are closed at once.
    pub connections_per_address: usize,
    /// Maximum length of a request's line and headers.
    pub header_bytes: usize,
    /// Maximum length of a body.
    pub body_bytes: usize,
    /// Maximum time from the end of a request (or the start of a connection) to the last header of the next one.
    pub header_timeout: Duration,
    /// Maximum time from the headers to the last byte of the body.
    pub body_timeout: Duration,
    /// Maximum time for which a client may read nothing of a response.
    pub write_timeout: Duration,
    /// Maximum number of requests that wait for a change at once: blocking queries and event streams.
    pub waiting: usize,
    /// Maximum time for which a request may wait for a change.
    pub wait: Duration,
    /// Rate limit of a token, or of an address without one.
    pub rate: super::RateLimit,
    /// Maximum number of items in a batch: instances, heartbeats, services.
    pub batch: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        HttpLimits {
            connections: 10_000,
            connections_per_address: 2_000,
            header_bytes: 16 << 10,
            body_bytes: 4 << 20,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            waiting: 10_000,
            wait: Duration::from_secs(600),
            rate: super::RateLimit::default(),
            batch: 1_000,
        }
    }
}
