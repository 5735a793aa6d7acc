//! Meaning of a name within the zone. Pure text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Owner, Zone};
use crate::{NamespaceName, ServiceKey};

/// The only datacenter, which Consul's clients may name.
const DATACENTER: &str = "dc1";

/// Meaning of a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The zone itself.
    Apex,
    /// A name without records that may have names below it: answered as existing and empty.
    Between,
    /// A service.
    Service(Wanted),
    /// A node of a namespace, in any case.
    Node(NamespaceName, String),
    /// A prepared query of a namespace.
    Query(NamespaceName, String),
    /// An address encoded in the name, as in targets of SRV records.
    Address(IpAddr),
    /// An address whose owner's name is asked for.
    Owner(IpAddr),
    /// A name that does not exist.
    Nothing,
}

/// Selection of instances of a service.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The service, in any case; `None` for a name that no service can have.
    pub(super) key: Option<ServiceKey>,
    /// Only instances with this tag.
    pub(super) tag: Option<String>,
}

/// Parses the labels before the zone's own.
pub(super) fn meaning(labels: &[&str], zone: &Zone) -> Meaning {
    let is = |label: &str, word: &str| label.eq_ignore_ascii_case(word);
    let mut rest = labels;
    // From the end: [NAMESPACE.ns.] [DATACENTER.dc. | DATACENTER.]
    match rest {
        [before @ .., dc, word] if is(word, "dc") => {
            if !is(dc, DATACENTER) {
                return Meaning::Nothing;
            }
            rest = before;
        }
        [before @ .., dc] if is(dc, DATACENTER) => rest = before,
        [word] if is(word, "dc") => return Meaning::Between,
        _ => {}
    }
    let mut namespace = zone.namespaces.first();
    match rest {
        [before @ .., name, word] if is(word, "ns") => {
            namespace = zone.namespaces.iter().find(|namespace| is(namespace.as_str(), name));
            rest = before;
        }
        [word] if is(word, "ns") => return Meaning::Between,
        _ => {}
    }
    // An invisible namespace does not exist.
    let Some(namespace) = namespace else { return Meaning::Nothing };
    match rest {
        [] if labels.is_empty() => Meaning::Apex,
        [] => Meaning::Between,
        [hex, word] if is(word, "addr") => address(hex).map_or(Meaning::Nothing, Meaning::Address),
        [word] if ["service", "addr", "node", "query"].iter().any(|known| is(word, known)) || word.starts_with('_') => {
            Meaning::Between
        }
        // Names of nodes have dots, too.
        [name @ .., word] if is(word, "node") => Meaning::Node(namespace.clone(), name.join(".")),
        [before @ .., word] if is(word, "query") => query(namespace, before),
        [before @ .., word] if is(word, "service") => service(namespace, before),
        [name, proto] if name.starts_with('_') && proto.starts_with('_') => service(namespace, rest),
        _ => Meaning::Nothing,
    }
}

/// Parses the labels of a name below `in-addr.arpa` or `ip6.arpa`; `None` for another name.
pub(super) fn reversed(labels: &[&str]) -> Option<Meaning> {
    let [digits @ .., family, arpa] = labels else { return None };
    if !arpa.eq_ignore_ascii_case("arpa") {
        return None;
    }
    let digits = digits.iter().rev().copied();
    let address = if family.eq_ignore_ascii_case("in-addr") {
        digits.collect::<Vec<_>>().join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
    } else if family.eq_ignore_ascii_case("ip6") {
        let single = digits.clone().all(|digit| digit.len() == 1);
        address(&digits.collect::<String>()).filter(|address| single && address.is_ipv6())
    } else {
        return None;
    };
    Some(address.map_or(Meaning::Nothing, Meaning::Owner))
}

/// Returns the name of an owner, without the zone's; `None` if DNS has no such name.
pub(super) fn of_owner(owner: &Owner, namespace: &NamespaceName, zone: &Zone) -> Option<String> {
    let (name, word) = match owner {
        Owner::Node(name) => (name.as_str(), "node"),
        Owner::Service(key) => (key.name(), "service"),
    };
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let within = if zone.namespaces.first() == Some(namespace) { String::new() } else { format!("{namespace}.ns.") };
    let text = format!("{name}.{word}.{within}{DATACENTER}");
    // The name has to lead back to its owner: that of a service with a dot is that of a tag.
    let found = meaning(&text.split('.').collect::<Vec<_>>(), zone);
    let same = match owner {
        Owner::Node(name) => found == Meaning::Node(namespace.clone(), name.clone()),
        Owner::Service(key) => found == Meaning::Service(Wanted { key: Some(key.clone()), tag: None }),
    };
    (plain && same).then_some(text)
}

fn service(namespace: &NamespaceName, labels: &[&str]) -> Meaning {
    let (name, tag) = match labels {
        // RFC 2782. A protocol other than tcp and udp is a tag.
        [name, proto] if name.len() > 1 && name.starts_with('_') && proto.starts_with('_') => {
            let proto = &proto[1..];
            let plain = proto.eq_ignore_ascii_case("tcp") || proto.eq_ignore_ascii_case("udp");
            (&name[1..], (!plain).then(|| proto.to_owned()))
        }
        [proto] if proto.starts_with('_') => return Meaning::Between,
        [name] => (*name, None),
        [tag @ .., name] => (*name, Some(tag.join("."))),
        [] => return Meaning::Between,
    };
    Meaning::Service(Wanted { key: ServiceKey::new(namespace, name).ok(), tag })
}

fn query(namespace: &NamespaceName, labels: &[&str]) -> Meaning {
    let name = match labels {
        // RFC 2782.
        [name, proto] if name.len() > 1 && name.starts_with('_') && proto.starts_with('_') => name[1..].to_owned(),
        [proto] if proto.starts_with('_') => return Meaning::Between,
        labels => labels.join("."),
    };
    Meaning::Query(namespace.clone(), name)
}

/// Returns the label of an address: its bytes in hexadecimal.
pub(super) fn label(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{:08x}", v4.to_bits()),
        IpAddr::V6(v6) => format!("{:032x}", v6.to_bits()),
    }
}

fn address(hex: &str) -> Option<IpAddr> {
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    match hex.len() {
        8 => u32::from_str_radix(hex, 16).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        32 => u128::from_str_radix(hex, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_names_stand_for() {
        let zone = Zone {
            domain: "consul".into(),
            ttl: Duration::ZERO,
            namespaces: vec![NamespaceName::default(), NamespaceName::new("shop").unwrap()],
        };
        let found = |key: &str, tag: Option<&str>| {
            Meaning::Service(Wanted { key: Some(ServiceKey::parse(key).unwrap()), tag: tag.map(str::to_owned) })
        };
        let query = |name: &str| Meaning::Query(NamespaceName::default(), name.into());
        for (name, meaning_of) in [
            ("", Meaning::Apex),
            ("web.service", found("default/web", None)),
            ("web.service.dc1", found("default/web", None)),
            ("web.SERVICE.Dc1", found("default/web", None)),
            ("web.service.dc2", Meaning::Nothing),
            ("web.service.shop.ns", found("shop/web", None)),
            ("web.service.shop.ns.dc1.dc", found("shop/web", None)),
            ("web.service.other.ns", Meaning::Nothing),
            ("v2.web.service", found("default/web", Some("v2"))),
            ("v2.1.web.service", found("default/web", Some("v2.1"))),
            ("_web._tcp", found("default/web", None)),
            ("_web._TCP.service", found("default/web", None)),
            ("_web._v2.service.dc1", found("default/web", Some("v2"))),
            ("db-1.node", Meaning::Node(NamespaceName::default(), "db-1".into())),
            ("db-1.NODE.dc1", Meaning::Node(NamespaceName::default(), "db-1".into())),
            ("db-1.example.node.shop.ns", Meaning::Node(NamespaceName::new("shop").unwrap(), "db-1.example".into())),
            ("db-1.node.other.ns", Meaning::Nothing),
            ("node", Meaning::Between),
            ("node.service", found("default/node", None)),
            // Names above existing ones: by RFC 8020, NXDOMAIN for them would hide everything below.
            ("service", Meaning::Between),
            ("dc1", Meaning::Between),
            ("shop.ns", Meaning::Between),
            ("_tcp", Meaning::Between),
            ("_tcp.service", Meaning::Between),
            ("0a000001.addr", Meaning::Address([10, 0, 0, 1].into())),
            ("00000000000000000000000000000001.addr.dc1", Meaning::Address(IpAddr::V6(Ipv6Addr::LOCALHOST))),
            ("0a00001.addr", Meaning::Nothing),
            ("+a000001.addr", Meaning::Nothing),
            ("web", Meaning::Nothing),
            ("web.query", query("web")),
            ("a.web.QUERY.dc1", query("a.web")),
            ("_web._tcp.query", query("web")),
            ("_tcp.query", Meaning::Between),
            ("query", Meaning::Between),
            ("web.query.other.ns", Meaning::Nothing),
        ] {
            let labels: Vec<&str> = name.split('.').filter(|label| !label.is_empty()).collect();
            assert_eq!(meaning(&labels, &zone), meaning_of, "{name}");
        }
        let owner = |address: &str| Some(Meaning::Owner(address.parse().unwrap()));
        let six = format!("1{}.ip6.arpa", ".0".repeat(31));
        for (name, expected) in [
            ("1.0.0.10.in-addr.arpa", owner("10.0.0.1")),
            ("1.0.0.10.IN-ADDR.Arpa", owner("10.0.0.1")),
            (&*six, owner("::1")),
            (&*six.replace('1', "F"), owner("::f")),
            ("0.0.10.in-addr.arpa", Some(Meaning::Nothing)),
            ("1.1.0.0.10.in-addr.arpa", Some(Meaning::Nothing)),
            ("256.0.0.10.in-addr.arpa", Some(Meaning::Nothing)),
            ("01.0.0.10.in-addr.arpa", Some(Meaning::Nothing)),
            ("in-addr.arpa", Some(Meaning::Nothing)),
            ("0a000001.ip6.arpa", Some(Meaning::Nothing)),
            ("00000000000000000000000000000001.ip6.arpa", Some(Meaning::Nothing)),
            (&*six.replace('1', "g"), Some(Meaning::Nothing)),
            ("home.arpa", None),
            ("arpa", None),
            ("1.0.0.10.in-addr.arpa.org", None),
        ] {
            assert_eq!(reversed(&name.split('.').collect::<Vec<_>>()), expected, "{name}");
        }
        let shop = NamespaceName::new("shop").unwrap();
        let service = |key: &str| Owner::Service(ServiceKey::parse(key).unwrap());
        for (owner, namespace, expected) in [
            (Owner::Node("db-1.example".into()), NamespaceName::default(), Some("db-1.example.node.dc1")),
            (Owner::Node("db 1".into()), NamespaceName::default(), None),
            (service("default/web"), NamespaceName::default(), Some("web.service.dc1")),
            (service("shop/web"), shop.clone(), Some("web.service.shop.ns.dc1")),
            (service("default/g@@web"), NamespaceName::default(), None),
            (service("default/v2.web"), NamespaceName::default(), None),
        ] {
            assert_eq!(of_owner(&owner, &namespace, &zone).as_deref(), expected, "{owner:?}");
        }
        for address in ["10.0.0.1", "::1", "fe80::12"] {
            let written = label(address.parse().unwrap());
            assert_eq!(meaning(&[&written, "addr"], &zone), Meaning::Address(address.parse().unwrap()));
        }
    }
}
