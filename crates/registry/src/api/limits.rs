//! Bounds of the HTTP side. Errors name the key of the limit that was in the way.

use std::time::Duration;

/// Bounds of the HTTP side. The core has its own for what is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpLimits {
    /// Most connections to all fronts together; further ones are closed at once.
    pub connections: usize,
    /// Most connections from one address, loopback excepted; further ones are closed at once.
    pub connections_per_address: usize,
    /// Most bytes of a request's line and headers.
    pub header_bytes: usize,
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// Longest time from the end of one request (or the start of a connection) to the last header of the next.
    pub header_timeout: Duration,
    /// Longest time from the headers to the last byte of the body.
    pub body_timeout: Duration,
    /// Longest time that a client may take nothing of an answer.
    pub write_timeout: Duration,
    /// Most requests that wait for a change at a time: blocking queries and event streams.
    pub waiting: usize,
    /// Longest time that a request may wait for a change.
    pub wait: Duration,
    /// How often a token, or an address without one, may ask.
    pub rate: super::RateLimit,
    /// Most items in one batch: instances, heartbeats, services.
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
