//! The registry as a DNS server: one zone, read only, answered from memory.
//!
//! ```text
//!  datagram, or message of a TCP connection ─▶ answer (pure) ─▶ name: whose? ─▶ snapshot of a service ─▶ records
//! ```
//!
//! The names are those of Consul's DNS: `web.service.consul`, `_web._tcp.service.consul`, `TAG.web.service.consul`,
//! `NODE.node.consul`, `NAME.query.consul`; and those of `in-addr.arpa` and `ip6.arpa`. DNS has no login, so only the
//! namespaces that the zone lists are visible. Formats: RFC 1035, 2782, 6891, 7766.

mod answer;
mod limit;
mod name;
mod server;
mod source;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::{Instance, NamespaceName, ServiceKey, ServiceSnapshot};

pub use answer::{Seeds, Transport, answer};
pub use server::{Listener, Server};

/// A zone.
#[derive(Debug, Clone)]
pub struct Zone {
    /// The suffix of all names, without the last dot.
    pub domain: String,
    /// Time for which an answer may be cached, including a negative one. Whole seconds; 0 is allowed.
    pub ttl: Duration,
    /// The visible namespaces; names without a namespace are looked up in the first.
    pub namespaces: Vec<NamespaceName>,
}

/// Limits of the DNS server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of TCP connections; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Maximum silence on a TCP connection, also within a message.
    pub idle: Duration,
    /// Maximum number of answers a second, in datagrams, to one network of other machines (/24, for IPv6 /56), and of answers at once after a pause;
    /// 0: any number. Further questions are referred to TCP, or not answered.
    pub per_second: u32,
    /// Maximum length of an answer in a datagram to another machine; 0: four times that of the question, at most 1232 bytes.
    pub foreign_datagram: usize,
    /// True if datagrams from loopback addresses are exempt from these two limits.
    pub trust_loopback: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 512,
            idle: Duration::from_secs(10),
            per_second: 200,
            foreign_datagram: 0,
            trust_loopback: true,
        }
    }
}

/// Source of the services.
pub trait Services {
    /// Returns the services whose names differ from that of `key` at most in case: DNS ignores it.
    fn find(&self, key: &ServiceKey) -> Vec<Arc<ServiceSnapshot>>;

    /// Returns the instances that a prepared query selects; `None` if no query has the name.
    fn query(&self, namespace: &NamespaceName, name: &str) -> Option<Queried>;

    /// Returns the node with a name, in any case.
    fn node(&self, namespace: &NamespaceName, name: &str) -> Option<KnownNode>;

    /// Returns the owners of an address, nodes first. Nodes have the address as [`Services::node`] returns it.
    fn owners(&self, namespace: &NamespaceName, address: IpAddr) -> Vec<Owner>;
}

/// Result of a prepared query.
#[derive(Debug, Clone, Default)]
pub struct Queried {
    /// The instances, in any order.
    pub instances: Vec<Arc<Instance>>,
    /// Time for which an answer may be cached; `None` for the zone's.
    pub ttl: Option<Duration>,
}

/// The owner of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The node with this name, as it was registered.
    Node(String),
    /// A service with an instance at the address.
    Service(ServiceKey),
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownNode {
    /// Name, as it was registered.
    pub name: String,
    /// Address: an IP address, or the name of a host.
    pub address: String,
}

/// Counters of the DNS server.
#[derive(Debug, Default)]
pub struct Stats {
    /// Questions answered with at least one record.
    pub found: AtomicU64,
    /// Names that do not exist, and names without records of the requested type.
    pub empty: AtomicU64,
    /// Questions that were malformed, of another zone, or of an unsupported kind.
    pub refused: AtomicU64,
    /// Truncated answers, including those cut by the rate limit: the client asks again over TCP.
    pub truncated: AtomicU64,
    /// Questions of networks beyond [`Limits::per_second`]: referred to TCP, or not answered.
    pub limited: AtomicU64,
    /// Messages that were no questions: dropped without an answer.
    pub dropped: AtomicU64,
}
