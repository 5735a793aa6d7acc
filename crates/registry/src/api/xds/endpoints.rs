//! A service's instances as a ClusterLoadAssignment. Pure.
//!
//! Clients reject a whole assignment (and keep the last one) that has an address twice, a priority without the ones before it, a weight of 0, weights
//! whose sum exceeds 32 bits, or a host name: so an assignment never has any of these.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::pb::envoy::config::core::v3::{self as core, HealthStatus};
use super::pb::envoy::config::endpoint::v3 as pb;
use crate::{Health, Instance, Location, ServiceSnapshot};

/// Number of the field with the assignment's name, which comes first.
const NAME_FIELD: u32 = 1;
/// Highest priority number that Envoy accepts; all beyond share it.
const LAST_PRIORITY: u32 = 128;

/// An encoded assignment.
pub(super) struct Encoded {
    /// The message, with the service's key as its name.
    pub(super) bytes: Bytes,
    /// Number of omitted instances: their host is a name, or they have no port.
    pub(super) left_out: usize,
}

/// An address of a service.
struct Endpoint<'a> {
    address: IpAddr,
    port: u16,
    status: HealthStatus,
    priority: u16,
    weight: u16,
    location: &'a Location,
}

/// Returns the rank of an endpoint among several with the same address: serving ones first, then by priority.
fn rank(endpoint: &Endpoint<'_>) -> (bool, u16) {
    (endpoint.status != HealthStatus::Healthy, endpoint.priority)
}

/// Returns the xDS health status. A warning counts as healthy: gRPC sends no calls to a degraded endpoint.
fn status(instance: &Instance) -> HealthStatus {
    match (instance.isolate, instance.overall()) {
        (true, _) => HealthStatus::Draining,
        (false, Health::Critical) => HealthStatus::Unhealthy,
        (false, Health::Passing | Health::Warning) => HealthStatus::Healthy,
    }
}

/// Parses a host as an address; IPv6 may have brackets.
fn address(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or(host).parse().ok()
}

/// Encodes the assignment of a service.
pub(super) fn encode(service: &ServiceSnapshot) -> Encoded {
    let mut left_out = 0;
    let mut found: BTreeMap<(IpAddr, u16), Endpoint<'_>> = BTreeMap::new();
    for instance in service.instances.iter().filter(|instance| instance.weight > 0) {
        let (Some(address), 1..) = (address(&instance.host), instance.port) else {
            left_out += 1;
            continue;
        };
        let endpoint = Endpoint {
            address,
            port: instance.port,
            status: status(instance),
            priority: instance.priority,
            weight: instance.weight,
            location: &instance.location,
        };
        match found.get(&(address, instance.port)) {
            Some(known) if rank(known) <= rank(&endpoint) => {}
            _ => drop(found.insert((address, instance.port), endpoint)),
        }
    }
    let endpoints = localities(&found);
    Encoded { bytes: assignment(service.key.as_str(), endpoints).encode_to_vec().into(), left_out }
}

/// Encodes an assignment without endpoints.
pub(super) fn none(name: &str) -> Bytes {
    assignment(name, Vec::new()).encode_to_vec().into()
}

fn assignment(name: &str, endpoints: Vec<pb::LocalityLbEndpoints>) -> pb::ClusterLoadAssignment {
    pb::ClusterLoadAssignment { cluster_name: name.to_owned(), endpoints }
}

/// Returns the assignment `bytes`, whose name is `old`, under the name `new`. Returns the same bytes if the names are equal.
pub(super) fn renamed(bytes: &Bytes, old: &str, new: &str) -> Bytes {
    if old == new {
        return bytes.clone();
    }
    let field = |name: &str| prost::encoding::string::encoded_len(NAME_FIELD, &name.to_owned());
    let rest = bytes.get(field(old)..).unwrap_or_default();
    let mut renamed = BytesMut::with_capacity(field(new) + rest.len());
    prost::encoding::string::encode(NAME_FIELD, &new.to_owned(), &mut renamed);
    renamed.put_slice(rest);
    renamed.freeze()
}

/// Groups endpoints by priority and location.
fn localities(found: &BTreeMap<(IpAddr, u16), Endpoint<'_>>) -> Vec<pb::LocalityLbEndpoints> {
    let mut places: BTreeMap<(u16, [&str; 3]), Vec<&Endpoint<'_>>> = BTreeMap::new();
    for endpoint in found.values() {
        let Location { region, zone, campus } = endpoint.location;
        places.entry((endpoint.priority, [region, zone, campus])).or_default().push(endpoint);
    }
    // The sum of all weights must fit into 32 bits; three quarters of that are left for weights that are rounded up to 1.
    let total: u64 = found.values().map(|endpoint| u64::from(endpoint.weight)).sum();
    let shift = (0..).find(|shift| total >> shift <= u64::from(u32::MAX / 4)).unwrap_or(0);
    let scaled = |weight: u64| u32::try_from((weight >> shift).max(1)).unwrap_or(u32::MAX);
    let mut priorities: Vec<u16> = places.keys().map(|(priority, _)| *priority).collect();
    priorities.dedup();
    let mut list: Vec<pb::LocalityLbEndpoints> = Vec::with_capacity(places.len());
    for ((priority, [region, zone, sub_zone]), endpoints) in places {
        let at = priorities.partition_point(|known| *known < priority);
        let serving = |endpoint: &&&Endpoint<'_>| endpoint.status == HealthStatus::Healthy;
        let weight = endpoints.iter().filter(serving).map(|endpoint| u64::from(endpoint.weight)).sum();
        let locality =
            core::Locality { region: region.to_owned(), zone: zone.to_owned(), sub_zone: sub_zone.to_owned() };
        let lb_endpoints = endpoints.iter().map(|endpoint| shown(endpoint, scaled(endpoint.weight.into()))).collect();
        let priority = u32::try_from(at).unwrap_or(LAST_PRIORITY).min(LAST_PRIORITY);
        // Localities that share the last priority may also share their location, which must occur only once.
        let same = |known: &&mut pb::LocalityLbEndpoints| {
            known.priority == priority && known.locality.as_ref() == Some(&locality)
        };
        match list.iter_mut().find(|known| priority == LAST_PRIORITY && same(known)) {
            Some(known) => {
                let before = known.load_balancing_weight.unwrap_or_default();
                known.load_balancing_weight = Some(before.saturating_add(scaled(weight)));
                known.lb_endpoints.extend::<Vec<_>>(lb_endpoints);
            }
            None => list.push(pb::LocalityLbEndpoints {
                locality: Some(locality),
                lb_endpoints,
                load_balancing_weight: Some(scaled(weight)),
                priority,
            }),
        }
    }
    list
}

fn shown(endpoint: &Endpoint<'_>, weight: u32) -> pb::LbEndpoint {
    let socket = core::SocketAddress {
        address: endpoint.address.to_string(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(endpoint.port.into())),
    };
    let address = core::Address { address: Some(core::address::Address::SocketAddress(socket)) };
    pb::LbEndpoint {
        host_identifier: Some(pb::lb_endpoint::HostIdentifier::Endpoint(pb::Endpoint { address: Some(address) })),
        health_status: endpoint.status.into(),
        load_balancing_weight: Some(weight),
    }
}
