//! Which addresses may be probed. Whoever may register an instance names the target of a probe: without rules that would be a way to
//! look at what only the registry's machine can reach.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// A range of addresses, as `10.0.0.0/8` or `10.0.0.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    first: u128,
    mask: u128,
}

/// What may be probed: what `allow` has, then what `deny` has not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reach {
    allow: Vec<Range>,
    deny: Vec<Range>,
}

/// IPv4 addresses are looked at as IPv6 ones, `::ffff:10.0.0.1`: so neither form gets round a rule for the other.
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
    /// From the texts of ranges. What is none is left out: settings are checked before.
    pub(crate) fn new(allow: &[String], deny: &[String]) -> Reach {
        let ranges = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        Reach { allow: ranges(allow), deny: ranges(deny) }
    }

    pub(crate) fn may(&self, address: SocketAddr) -> bool {
        let number = number(address.ip());
        let has = |ranges: &[Range]| ranges.iter().any(|range| number & range.mask == range.first);
        has(&self.allow) || !has(&self.deny)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::settings::HealthSettings;

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
            assert_eq!([default.may(at), one.may(at), own.may(at)], [by_default, with_one, only_own], "{address}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "name", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(text.parse::<Range>().is_err(), "{text:?}");
        }
    }
}
