//! Addresses that may be probed. A client that may register an instance chooses the target of a probe: without rules that would let it examine what
//! only the registry's machine can reach.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// An address range, such as `10.0.0.0/8` or `10.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    first: u128,
    mask: u128,
}

/// The rules: an address may be probed if it is in `allow`, or if it is neither in `deny` nor one on which this process listens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    allow: Vec<Range>,
    deny: Vec<Range>,
    own: Vec<SocketAddr>,
}

/// Converts an address to a number. IPv4 addresses become mapped IPv6 ones, `::ffff:10.0.0.1`, so that neither form evades a rule for the other.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => Ipv6Addr::to_bits(v6),
    }
}

impl FromStr for Range {
    type Err = ();

    fn from_str(text: &str) -> Result<Range, ()> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| ())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let (most, before) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let bits = before + bits.filter(|bits| *bits <= most).or_else(|| bits.is_none().then_some(most)).ok_or(())?;
        let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits) };
        Ok(Range { first: number(address) & mask, mask })
    }
}

impl Reach {
    /// Parses ranges. Invalid ones are left out: settings were validated before.
    pub(crate) fn new(allow: &[String], deny: &[String]) -> Reach {
        let ranges = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        Reach { allow: ranges(allow), deny: ranges(deny), own: Vec::new() }
    }

    /// Returns the rules with further sockets of this process.
    #[must_use]
    pub(crate) fn without(&self, own: impl IntoIterator<Item = SocketAddr>) -> Reach {
        let mut after = self.clone();
        after.own.extend(own);
        after
    }

    /// True if `address` may be probed. `is_here` returns true for an address of this machine.
    pub(crate) fn may(&self, address: SocketAddr, is_here: impl Fn(IpAddr) -> bool) -> bool {
        let number = number(address.ip());
        let has = |ranges: &[Range]| ranges.iter().any(|range| number & range.mask == range.first);
        has(&self.allow) || !(has(&self.deny) || self.is_own(address, is_here))
    }

    fn is_own(&self, address: SocketAddr, is_here: impl Fn(IpAddr) -> bool) -> bool {
        let target = address.ip().to_canonical();
        self.own.iter().filter(|own| own.port() == address.port()).any(|own| {
            let bound = own.ip().to_canonical();
            // A connection to 0.0.0.0 reaches this machine.
            bound == target || target.is_unspecified() || (bound.is_unspecified() && is_here(target))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::HealthSettings;

    #[test]
    fn own_ports_are_not_probed() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let default = Reach::new(&[], &[]).without([at("127.0.0.1:8632"), at("0.0.0.0:9632"), at("[::]:7632")]);
        let allowed = Reach { allow: vec!["127.0.0.1".parse().unwrap()], ..default.clone() };
        let here = |ip: IpAddr| ip.is_loopback() || ip == IpAddr::from([10, 0, 0, 1]);
        for (target, by_default, with_allow) in [
            ("127.0.0.1:8632", false, true),
            ("[::ffff:127.0.0.1]:8632", false, true),
            ("127.0.0.1:8633", true, true),
            ("10.0.0.1:8632", true, true),
            ("0.0.0.0:8632", false, false),
            ("10.0.0.1:9632", false, false),
            ("127.9.9.9:9632", false, false),
            ("10.0.0.2:9632", true, true),
            ("[::1]:7632", false, false),
            ("10.0.0.1:7632", false, false),
        ] {
            let may = [&default, &allowed].map(|reach| reach.may(at(target), here));
            assert_eq!(may, [by_default, with_allow], "{target}");
        }
    }

    #[test]
    fn who_may_be_probed() {
        let settings = HealthSettings::default();
        let default = Reach::new(&settings.probe_allow, &settings.probe_deny);
        let one = Reach::new(&["169.254.7.7".into()], &settings.probe_deny);
        let own = Reach::new(&["10.0.0.0/8".into()], &["0.0.0.0/0".into(), "::/0".into()]);
        for (address, by_default, with_one, only_own) in [
            ("10.1.2.3", true, true, true),
            ("127.0.0.1", true, true, false),
            ("169.254.169.254", false, false, false),
            ("::ffff:169.254.169.254", false, false, false),
            ("169.254.7.7", false, true, false),
            ("169.255.0.1", true, true, false),
            ("fe80::1", false, false, false),
            ("fd00:ec2::254", false, false, false),
            ("2001:db8::1", true, true, false),
        ] {
            let at = SocketAddr::new(address.parse().unwrap(), 80);
            let may = [&default, &one, &own].map(|reach| reach.may(at, |_| false));
            assert_eq!(may, [by_default, with_one, only_own], "{address}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "name", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(text.parse::<Range>().is_err(), "{text:?}");
        }
    }
}
