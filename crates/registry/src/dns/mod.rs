//! The registry as a DNS server: one zone, read only, answered from memory.
//!
//! ```text
//!  datagram, or message of a TCP connection ─▶ answer (pure) ─▶ name: whose? ─▶ snapshot of a service ─▶ records
//! ```
//!
//! The names are those of Consul's DNS: `web.service.consul`, `_web._tcp.service.consul`, `TAG.web.service.consul`. There is no
//! login in DNS, so only the namespaces that the zone lists are seen. Formats: RFC 1035, 2782, 6891, 7766.

mod answer;
mod limit;
mod name;
mod server;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::{NamespaceName, Registry, ServiceKey, ServiceSnapshot};

pub use answer::{Over, answer};
pub use server::{Listener, Server};

/// What is served.
#[derive(Debug, Clone)]
pub struct Zone {
    /// What all names end in, without the last dot.
    pub domain: String,
    /// How long an answer may be kept, also that there is no such name. Whole seconds; 0 is allowed.
    pub ttl: Duration,
    /// The namespaces that are seen; names without a namespace are looked for in the first.
    pub namespaces: Vec<NamespaceName>,
}

/// Bounds of the DNS side.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most TCP connections; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Longest silence on a TCP connection, also in the middle of a message.
    pub idle: Duration,
    /// Most answers a second, in datagrams, to one network of other machines (/24, of IPv6 /56), and as many at once after a silence; 0: any
    /// number. What is beyond is referred to TCP, or not answered.
    pub per_second: u32,
    /// Whether datagrams from loopback addresses have no such limit, nor one of their size beside that of all datagrams.
    pub trust_loopback: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 512, idle: Duration::from_secs(10), per_second: 200, trust_loopback: true }
    }
}

/// Where the services are found.
pub trait Services {
    /// The service, if it exists.
    fn find(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>>;
}

impl Services for Registry {
    fn find(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>> {
        self.snapshot(key)
    }
}

/// What the DNS side counts.
#[derive(Debug, Default)]
pub struct Stats {
    /// Questions that got at least one record.
    pub found: AtomicU64,
    /// Names that are not there, and names without records of the type asked for.
    pub empty: AtomicU64,
    /// Questions that were malformed, of another zone, or of a kind that is not answered.
    pub refused: AtomicU64,
    /// Answers that did not fit into a datagram: the client comes again over TCP.
    pub truncated: AtomicU64,
    /// Questions of networks that had more answers than [`Limits::per_second`]: referred to TCP, or not answered.
    pub limited: AtomicU64,
    /// What came and was no question: dropped without a word.
    pub dropped: AtomicU64,
}
