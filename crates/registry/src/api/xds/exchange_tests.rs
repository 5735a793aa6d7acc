//! Tests of the exchange with simulated clients, against a changing registry: a client that acknowledges everything ends with the current state.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::endpoints;
use super::exchange::{Asked, Exchange, Listing, NAMES, Noted, World, XdsResponse};
use super::pb::envoy::config::cluster::v3::Cluster;
use super::pb::envoy::config::core::v3::HealthStatus;
use super::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use super::pb::envoy::config::listener::v3::Listener;
use super::pb::envoy::config::route::v3::RouteConfiguration;
use super::resources::{Kind, key};
use crate::{Health, Instance, InstanceId, Registration, Revision, ServiceKey, ServiceSnapshot};

/// Services by key; those in the namespace `secret` are not visible.
#[derive(Default)]
struct Registry {
    services: BTreeMap<ServiceKey, Arc<ServiceSnapshot>>,
    revision: u64,
}

impl World for Registry {
    fn service(&self, key: &ServiceKey) -> Option<Arc<ServiceSnapshot>> {
        self.services.get(key).filter(|_| key.namespace() != "secret").cloned()
    }

    fn assignment(&self, service: &ServiceSnapshot) -> Bytes {
        endpoints::encode(service).bytes
    }
}

fn instance(service: &ServiceKey, n: usize, change: impl FnOnce(&mut Registration)) -> Arc<Instance> {
    let id = InstanceId::parse(&format!("{}/i{n:03}", service.namespace())).unwrap();
    let mut registration = Registration::new(id, service.clone(), "10.0.0.1", 1000 + n as u16);
    change(&mut registration);
    Arc::new(Instance::registered(registration, None))
}

impl Registry {
    /// Sets the number of instances of a service; `None` removes it.
    fn set(&mut self, name: &str, instances: Option<usize>) {
        let key = ServiceKey::parse(name).unwrap();
        self.revision += 1;
        match instances {
            None => drop(self.services.remove(&key)),
            Some(count) => {
                let list: Vec<_> = (0..count).map(|n| instance(&key, n, |_| {})).collect();
                let snapshot = ServiceSnapshot::new(key.clone(), Revision(self.revision), None, &list);
                self.services.insert(key, Arc::new(snapshot));
            }
        }
    }

    fn listed(&self) -> Arc<Listing> {
        Arc::new(Listing::new(self.seen().cloned()))
    }

    fn seen(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.keys().filter(|key| key.namespace() != "secret")
    }

    /// Returns the complete state of a client with these names: the number of endpoints, or 0.
    fn expected(&self, kind: Kind, names: &BTreeSet<String>, all: bool) -> BTreeMap<String, usize> {
        let count = |name: &String| {
            let service = self.service(&key(name)?)?;
            Some(if kind == Kind::Endpoints { service.instances.len() } else { 0 })
        };
        let absent = |_: &String| (kind == Kind::Endpoints).then_some(0);
        let mut known: BTreeMap<String, usize> =
            names.iter().filter_map(|name| Some((name.clone(), count(name).or_else(|| absent(name))?))).collect();
        if all && kind == Kind::Cluster {
            known.extend(self.seen().map(|key| (key.as_str().to_owned(), 0)));
        }
        known
    }
}

/// Returns a resource's name and its number of endpoints.
fn read(kind: Kind, value: &Bytes) -> (String, usize) {
    match kind {
        Kind::Cluster => (Cluster::decode(value.clone()).unwrap().name, 0),
        Kind::Listener => (Listener::decode(value.clone()).unwrap().name, 0),
        Kind::Route => (RouteConfiguration::decode(value.clone()).unwrap().name, 0),
        Kind::Endpoints => {
            let read = ClusterLoadAssignment::decode(value.clone()).unwrap();
            (read.cluster_name, read.endpoints.iter().map(|place| place.lb_endpoints.len()).sum())
        }
    }
}

/// A client according to the xDS protocol, with the resources that it has of each type.
#[derive(Default)]
struct Client {
    wanted: BTreeMap<Kind, BTreeSet<String>>,
    /// Types that were requested by name; for others, no names mean all.
    named: BTreeSet<Kind>,
    asked: BTreeSet<Kind>,
    nonce: BTreeMap<Kind, String>,
    has: BTreeMap<Kind, BTreeMap<String, usize>>,
    /// Requests not yet read by the server, and responses not yet read by the client.
    out: VecDeque<Asked>,
    back: VecDeque<XdsResponse>,
}

impl Client {
    fn want(&mut self, kind: Kind, names: BTreeSet<String>) {
        if !names.is_empty() {
            self.named.insert(kind);
        }
        // A client forgets the resources that it no longer wants, and all listed ones once it asks by name.
        let keep = |name: &String| names.contains(name);
        self.has.entry(kind).or_default().retain(|name, _| keep(name));
        self.wanted.insert(kind, names);
        self.asked.insert(kind);
        self.send(kind, None);
    }

    fn all(&self, kind: Kind) -> bool {
        self.asked.contains(&kind) && !self.named.contains(&kind)
    }

    fn send(&mut self, kind: Kind, refused: Option<String>) {
        let names = self.wanted.get(&kind).into_iter().flatten().cloned().collect();
        let nonce = self.nonce.get(&kind).cloned().unwrap_or_default();
        self.out.push_back(Asked { kind, names, nonce, refused });
    }

    /// Processes a response, and acknowledges it.
    fn take(&mut self, response: XdsResponse) {
        let wanted = self.wanted.get(&response.kind).cloned().unwrap_or_default();
        let all = self.all(response.kind);
        let has = self.has.entry(response.kind).or_default();
        if response.kind.is_whole() {
            has.clear();
        }
        for resource in &response.resources {
            assert_eq!(resource.type_url, response.kind.type_url());
            let (name, count) = read(response.kind, &resource.value);
            if all || wanted.contains(&name) {
                has.insert(name, count);
            }
        }
        self.nonce.insert(response.kind, response.nonce);
        self.send(response.kind, None);
    }
}

const SERVICES: [&str; 5] = ["default/a", "default/b", "other/c", "secret/d", "other/e"];
/// Names that clients request: one service by two names, one that is not visible, and an invalid one.
const ASKED: [&str; 6] = ["a", "default/a", "other/c", "secret/d", "not a/name", "other/e"];

#[derive(Debug, Clone)]
enum Step {
    /// The client requests these names.
    Want(usize, Vec<bool>),
    /// A service changes.
    Set(usize, Option<usize>),
    /// The server reads a request, or makes a response; the client reads one.
    Read,
    Answer,
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0usize..4, proptest::collection::vec(any::<bool>(), ASKED.len()))
            .prop_map(|(kind, names)| Step::Want(kind, names)),
        (0usize..SERVICES.len(), proptest::option::of(0usize..4)).prop_map(|(n, count)| Step::Set(n, count)),
        Just(Step::Read),
        Just(Step::Answer),
        Just(Step::Take),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// Any order of requests, responses and changes.
    #[test]
    fn who_acknowledges_everything_ends_with_what_there_is(steps in steps()) {
        let (mut world, mut exchange, mut client) = (Registry::default(), Exchange::default(), Client::default());
        let answer = |exchange: &mut Exchange, world: &Registry, client: &mut Client| {
            exchange.list(world.listed());
            let response = exchange.next(world);
            let some = response.is_some();
            client.back.extend(response);
            some
        };
        for step in steps {
            match step {
                Step::Want(kind, names) => {
                    let names = ASKED.iter().zip(names).filter(|(_, wanted)| *wanted);
                    client.want(Kind::ALL[kind], names.map(|(name, _)| (*name).to_owned()).collect());
                }
                Step::Set(n, count) => world.set(SERVICES[n], count),
                Step::Read => if let Some(asked) = client.out.pop_front() {
                    exchange.request(asked).unwrap();
                },
                Step::Answer => drop(answer(&mut exchange, &world, &mut client)),
                Step::Take => if let Some(response) = client.back.pop_front() {
                    client.take(response);
                },
            }
        }
        // Then the exchange must come to rest within this many rounds.
        for round in 0.. {
            prop_assert!(round < 100, "client and server answer each other for ever");
            let mut moved = false;
            while let Some(asked) = client.out.pop_front() {
                exchange.request(asked).unwrap();
                moved = true;
            }
            while answer(&mut exchange, &world, &mut client) {
                moved = true;
            }
            while let Some(response) = client.back.pop_front() {
                client.take(response);
            }
            if !moved {
                break;
            }
        }
        for (kind, names) in &client.wanted {
            let expected = world.expected(*kind, names, client.all(*kind));
            let mut has = client.has.get(kind).cloned().unwrap_or_default();
            if *kind == Kind::Route {
                // The removal of a route cannot be reported. No listener leads to it any more.
                has.retain(|name, _| expected.contains_key(name));
            }
            prop_assert_eq!(has, expected, "{:?}", kind);
        }
    }

    /// Any request is answered or not, and the number of names is bounded.
    #[test]
    fn nothing_is_kept_beyond_the_bound(
        requests in proptest::collection::vec((0usize..4, 0usize..3000, "[0-9]{0,2}", any::<bool>()), 1..12),
    ) {
        let (world, mut exchange) = (Registry::default(), Exchange::default());
        for (kind, count, nonce, refused) in requests {
            let names = (0..count).map(|n| format!("s{n}")).collect();
            let refused = refused.then(String::new);
            let _ = exchange.request(Asked { kind: Kind::ALL[kind], names, nonce, refused });
            while exchange.next(&world).is_some() {}
            prop_assert!(exchange.keys().count() <= NAMES);
        }
    }
}

fn asked(kind: Kind, names: &[&str], nonce: &str) -> Asked {
    Asked { kind, names: names.iter().map(|name| (*name).to_owned()).collect(), nonce: nonce.into(), refused: None }
}

fn names(response: &XdsResponse) -> Vec<String> {
    response.resources.iter().map(|resource| read(response.kind, &resource.value).0).collect()
}

#[test]
fn a_refused_response_is_not_sent_again_until_there_is_another() {
    let (mut world, mut exchange) = (Registry::default(), Exchange::default());
    world.set("default/a", Some(1));
    exchange.request(asked(Kind::Endpoints, &["a"], "")).unwrap();
    let first = exchange.next(&world).unwrap();
    let refuse = |nonce: &str| Asked { refused: Some("no".into()), ..asked(Kind::Endpoints, &["a"], nonce) };
    assert_eq!(exchange.request(refuse(&first.nonce)), Ok(Noted { names: false, refused: true }));
    assert_eq!(exchange.next(&world), None);
    world.set("default/a", Some(2));
    let second = exchange.next(&world).unwrap();
    assert_ne!(second.nonce, first.nonce);
    // A rejection of the first response comes too late.
    assert_eq!(exchange.request(refuse(&first.nonce)), Ok(Noted::default()));
    assert_eq!(exchange.next(&world), None);
    // The same content at another revision is not sent.
    world.set("default/a", Some(2));
    assert_eq!(exchange.next(&world), None);
}

#[test]
fn who_asks_without_names_asks_for_all_clusters_and_for_no_endpoints() {
    let (mut world, mut exchange) = (Registry::default(), Exchange::default());
    world.set("default/a", Some(1));
    world.set("secret/d", Some(1));
    exchange.request(asked(Kind::Cluster, &[], "")).unwrap();
    exchange.request(asked(Kind::Endpoints, &[], "")).unwrap();
    exchange.request(asked(Kind::Listener, &[], "")).unwrap();
    assert!(exchange.wants_all());
    let response = exchange.next(&world).unwrap();
    assert_eq!(
        (response.kind, names(&response)),
        (Kind::Listener, vec![]),
        "clusters are not known before the list is"
    );
    exchange.list(world.listed());
    let response = exchange.next(&world).unwrap();
    assert_eq!((response.kind, names(&response)), (Kind::Cluster, vec!["default/a".to_owned()]));
    assert_eq!(exchange.next(&world), None);
    // By name from now on, and then none.
    exchange.request(asked(Kind::Cluster, &["a"], &response.nonce)).unwrap();
    let response = exchange.next(&world).unwrap();
    assert_eq!(names(&response), ["a"]);
    exchange.request(asked(Kind::Cluster, &[], &response.nonce)).unwrap();
    assert!(!exchange.wants_all());
    assert_eq!(exchange.next(&world), None);
    exchange.request(asked(Kind::Cluster, &["*"], &response.nonce)).unwrap();
    assert_eq!(names(&exchange.next(&world).unwrap()), ["default/a"]);
}

#[test]
fn many_endpoints_come_in_several_responses() {
    let (mut world, mut exchange) = (Registry::default(), Exchange::default());
    let services: Vec<String> = (0..20).map(|n| format!("default/s{n:02}")).collect();
    for service in &services {
        world.set(service, Some(3000));
    }
    let wanted: Vec<&str> = services.iter().map(String::as_str).collect();
    exchange.request(asked(Kind::Endpoints, &wanted, "")).unwrap();
    let (mut seen, mut responses) = (Vec::new(), 0);
    while let Some(response) = exchange.next(&world) {
        assert!(response.encoded_len() < 2 << 20);
        seen.extend(names(&response));
        responses += 1;
    }
    assert_eq!(seen, services);
    assert!(responses > 1);
}

impl XdsResponse {
    fn encoded_len(&self) -> usize {
        self.resources.iter().map(Message::encoded_len).sum()
    }
}

#[test]
fn what_an_assignment_says() {
    let service = ServiceKey::parse("default/s").unwrap();
    type Change = fn(&mut Registration);
    let changes: [Change; 12] = [
        |r| r.health = Some(Health::Critical),
        |r| r.health = Some(Health::Warning),
        |r| r.isolate = Some(true),
        |r| r.weight = 0,
        |r| r.host = "a.example".into(),
        |r| r.port = 0,
        |r| r.host = "[::1]".into(),
        |r| (r.priority, r.location.zone) = (7, "z".into()),
        |r| (r.priority, r.location.zone, r.weight) = (7, "z".into(), 5),
        |r| (r.priority, r.location.region) = (9, "r".into()),
        // The address of the first one, which is critical.
        |r| r.port = 1000,
        |r| (r.port, r.health) = (1000, Some(Health::Critical)),
    ];
    let list: Vec<_> = changes.into_iter().enumerate().map(|(n, change)| instance(&service, n, change)).collect();
    let encoded = endpoints::encode(&ServiceSnapshot::new(service.clone(), Revision(1), None, &list));
    assert_eq!(encoded.left_out, 2);
    let read = ClusterLoadAssignment::decode(encoded.bytes.clone()).unwrap();
    let places: Vec<_> = read
        .endpoints
        .iter()
        .map(|place| {
            let locality = place.locality.clone().unwrap();
            (
                place.priority,
                locality.region + &locality.zone,
                place.load_balancing_weight.unwrap(),
                place.lb_endpoints.len(),
            )
        })
        .collect();
    assert_eq!(places, [(0, String::new(), 300, 4), (1, "z".into(), 105, 2), (2, "r".into(), 100, 1)]);
    let healths: Vec<_> = read.endpoints[0].lb_endpoints.iter().map(|endpoint| endpoint.health_status()).collect();
    assert_eq!(healths, [HealthStatus::Healthy, HealthStatus::Healthy, HealthStatus::Draining, HealthStatus::Healthy]);
    // Under another name, the rest is the same.
    let renamed = ClusterLoadAssignment::decode(endpoints::renamed(&encoded.bytes, "default/s", "s")).unwrap();
    assert_eq!(renamed, ClusterLoadAssignment { cluster_name: "s".into(), ..read });
    // The bytes with the service's own name are shared.
    assert_eq!(endpoints::renamed(&encoded.bytes, "default/s", "default/s").as_ptr(), encoded.bytes.as_ptr());
}

proptest! {
    /// Causes of a rejection never occur: an address twice, a gap between priorities, a weight of 0, sums above 32 bits, a locality twice.
    #[test]
    fn an_assignment_is_one_that_clients_take(
        rows in proptest::collection::vec((0u16..40, prop_oneof![Just(0u16), Just(1), Just(u16::MAX)], any::<u16>(), 0u8..3, any::<bool>()), 0..400),
    ) {
        let service = ServiceKey::parse("default/s").unwrap();
        let row = |(n, &(port, weight, priority, zone, isolate)): (usize, &(u16, u16, u16, u8, bool))| instance(&service, n, |r| {
            (r.port, r.weight, r.priority, r.isolate) = (port, weight, priority, Some(isolate));
            r.location.zone = format!("z{zone}").into();
        });
        let list: Vec<_> = rows.iter().enumerate().map(row).collect();
        let encoded = endpoints::encode(&ServiceSnapshot::new(service.clone(), Revision(1), None, &list));
        let read = ClusterLoadAssignment::decode(encoded.bytes).unwrap();
        let (mut places, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        for place in &read.endpoints {
            prop_assert!(places.insert((place.priority, place.locality.clone().unwrap().zone)));
            let weight = place.load_balancing_weight.unwrap();
            prop_assert!(weight > 0 && !place.lb_endpoints.is_empty());
            *sums.entry(place.priority).or_default() += u64::from(weight);
            for endpoint in &place.lb_endpoints {
                prop_assert!(endpoint.load_balancing_weight.unwrap() > 0);
                let is_new = addresses.insert(format!("{:?}", endpoint.host_identifier));
                prop_assert!(is_new, "an address twice");
            }
        }
        let count = sums.len() as u32;
        prop_assert!(sums.keys().copied().eq(0..count) && count <= 129);
        prop_assert!(sums.values().all(|sum| *sum <= u64::from(u32::MAX)));
        let usable: BTreeSet<u16> = rows.iter().filter(|row| row.0 > 0 && row.1 > 0).map(|row| row.0).collect();
        prop_assert_eq!(addresses.len(), usable.len());
    }
}
