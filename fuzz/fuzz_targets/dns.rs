//! DNS queries from untrusted clients.

#![cfg_attr(fuzzing, no_main)]

use std::sync::Arc;
use std::time::Duration;

use kingpost_fuzz::fuzz_target;
use registry::dns::{KnownNode, Queried, Seeds, Services, Transport, Zone, answer};
use registry::{NamespaceName, ServiceKey, ServiceSnapshot};

struct Nothing;

impl Services for Nothing {
    fn find(&self, _: &ServiceKey) -> Vec<Arc<ServiceSnapshot>> {
        Vec::new()
    }

    fn query(&self, _: &NamespaceName, _: &str) -> Option<Queried> {
        None
    }

    fn node(&self, _: &NamespaceName, _: &str) -> Option<KnownNode> {
        None
    }

    fn owners(&self, _: &NamespaceName, _: std::net::IpAddr) -> Vec<registry::dns::Owner> {
        Vec::new()
    }
}

fuzz_target!(|data: &[u8]| {
    let zone = Zone { domain: "consul".into(), ttl: Duration::ZERO, namespaces: vec![NamespaceName::default()] };
    let seeds = Seeds { order: 0, client: 0 };
    for over in [Transport::Udp, Transport::ForeignUdp { most: 0 }, Transport::Tcp] {
        if let Some(answered) = answer(data, over, &zone, &Nothing, seeds) {
            assert!(answered.bytes.len() <= 1232, "without records");
            assert_eq!(answered.bytes[..2], data[..2], "the answer to this question");
            assert!(answered.bytes[2] & 0x80 != 0);
            assert!(answer(&answered.bytes, over, &zone, &Nothing, seeds).is_none(), "nobody answers answers");
        }
    }
});
