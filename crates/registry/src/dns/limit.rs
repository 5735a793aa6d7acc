//! Rate limit of datagrams for each network. Pure: time is an argument.
//!
//! The source address of a datagram may be forged, and the answer then reaches a victim. So each network of other machines gets a limited number of
//! answers a second; beyond it every second question gets a short answer with the truncation flag (a real client then asks over TCP, which proves its
//! address), and the others get none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::api::rate::{RateLimit, Rates, Who};

/// Treatment of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A whole answer.
    Whole,
    /// An empty answer with the truncation flag.
    Cut,
    /// No answer.
    Silence,
}

/// Rates of answers by network.
#[derive(Debug)]
pub(super) struct Limiter {
    rates: Rates,
    /// Number of questions beyond the limit.
    beyond: AtomicU64,
}

impl Limiter {
    /// Allows `per_second` answers to each network, and as many at once after a pause; 0: any number.
    pub(super) fn new(per_second: u32) -> Limiter {
        Limiter { rates: Rates::new(RateLimit { per_second, burst: per_second }), beyond: AtomicU64::new(0) }
    }

    /// Decides on a question from another machine at `now`, measured from any fixed moment.
    pub(super) fn judge(&self, peer: IpAddr, now: Duration) -> Verdict {
        if self.rates.admit(Who::Address(network(peer)), now) {
            return Verdict::Whole;
        }
        if self.beyond.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { Verdict::Cut } else { Verdict::Silence }
    }
}

/// Returns the first address of the network that is limited as one: /24, and /56 for IPv6. An attacker that forges addresses can forge all of a
/// network.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & (u32::MAX << 8)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & (u128::MAX << 72)).into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_network_has_a_measure() {
        let limiter = Limiter::new(3);
        let at = |address: &str, seconds| limiter.judge(address.parse().unwrap(), Duration::from_secs(seconds));
        use Verdict::{Cut, Silence, Whole};
        for (address, seconds, expected) in [
            ("198.51.100.1", 0, Whole),
            ("198.51.100.2", 0, Whole),
            ("198.51.100.255", 0, Whole),
            ("198.51.100.1", 0, Cut),
            ("198.51.100.9", 0, Silence),
            ("::ffff:198.51.100.9", 0, Cut),
            ("198.51.101.1", 0, Whole),
            ("2001:db8:0:1::1", 0, Whole),
            ("2001:db8:0:2::1", 0, Whole),
            ("2001:db8:0:ff::1", 0, Whole),
            ("2001:db8:0:3::1", 0, Silence),
            ("2001:db8:0:100::1", 0, Whole),
            ("198.51.100.1", 1, Whole),
        ] {
            assert_eq!(at(address, seconds), expected, "{address} at {seconds} s");
        }
        let unlimited = Limiter::new(0);
        assert!((0..100).all(|_| unlimited.judge("198.51.100.1".parse().unwrap(), Duration::ZERO) == Whole));
    }
}
