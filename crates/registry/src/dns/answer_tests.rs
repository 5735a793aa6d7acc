#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::time::Duration;

use domain::rdata::AllRecordData;
use proptest::prelude::*;

use super::*;
use crate::dns::{KnownNode, Owner, Queried};
use crate::{Health, InstanceId, Metadata, NamespaceName, Registration, Revision, ServiceKey};

struct Fixed(HashMap<ServiceKey, Arc<ServiceSnapshot>>);

impl Services for Fixed {
    fn find(&self, key: &ServiceKey) -> Vec<Arc<ServiceSnapshot>> {
        self.0.iter().filter(|(known, _)| known.folded() == key.folded()).map(|(_, found)| Arc::clone(found)).collect()
    }

    fn query(&self, namespace: &NamespaceName, name: &str) -> Option<Queried> {
        let key = ServiceKey::new(namespace, name.strip_prefix("q-")?).ok()?;
        let instances = self.find(&key).iter().flat_map(|found| found.instances.iter()).map(Arc::clone).collect();
        Some(Queried { instances, ttl: Some(Duration::from_secs(77)) })
    }

    fn node(&self, namespace: &NamespaceName, name: &str) -> Option<KnownNode> {
        let address = match name.to_lowercase().as_str() {
            "db-1" => "10.0.0.9",
            "db-2.example" => "fe80::9",
            "db-3" => "db-3.example.org",
            _ => return None,
        };
        (*namespace == NamespaceName::default()).then(|| KnownNode { name: name.into(), address: address.into() })
    }

    fn owners(&self, namespace: &NamespaceName, address: IpAddr) -> Vec<Owner> {
        let at = |name: &str| self.node(namespace, name).is_some_and(|node| node.address == address.to_string());
        let nodes = ["db-1", "db-2.example"].into_iter().filter(|name| at(name)).map(|name| Owner::Node(name.into()));
        let has = |service: &ServiceSnapshot| service.instances.iter().any(|it| *it.host == *address.to_string());
        let mut services: Vec<_> = self.0.iter().filter(|(_, found)| has(found)).map(|(key, _)| key.clone()).collect();
        services.sort_unstable();
        nodes.chain(services.into_iter().map(Owner::Service)).collect()
    }
}

const SEEDS: Seeds = Seeds { order: 5, client: 7 };

fn zone() -> Zone {
    Zone { domain: "consul".into(), ttl: Duration::from_secs(7), namespaces: vec![NamespaceName::default()] }
}

/// Makes services by name, each with the `host:port` of its instances, changed by `change`.
fn services(list: &[(&str, &[&str])], change: impl Fn(&mut Registration)) -> Fixed {
    let one = |(name, hosts): &(&str, &[&str])| {
        let key = ServiceKey::new(&NamespaceName::default(), name).unwrap();
        let instances = hosts.iter().enumerate().map(|(n, host)| {
            let id = InstanceId::new(&NamespaceName::default(), &format!("{name}{n:05}")).unwrap();
            let mut registration = Registration::new(id, key.clone(), host, 8000 + n as u16);
            change(&mut registration);
            Arc::new(Instance::registered(registration, None))
        });
        let instances: Vec<_> = instances.collect();
        (key.clone(), Arc::new(ServiceSnapshot::new(key, Revision(1), None, &instances)))
    };
    Fixed(list.iter().map(one).collect())
}

fn query(name: &str, rtype: Rtype, opt: Option<u16>) -> Vec<u8> {
    let mut question = MessageBuilder::new_vec().question();
    question.header_mut().set_id(77);
    question.header_mut().set_rd(true);
    question.push((Name::vec_from_str(name).unwrap(), rtype)).unwrap();
    let mut last = question.additional();
    if let Some(size) = opt {
        last.opt(|opt| {
            opt.set_udp_payload_size(size);
            Ok(())
        })
        .unwrap();
    }
    last.finish()
}

/// Returns the answer's code, its records as `name type data` by section, and the truncation flag.
fn ask(
    fixed: &Fixed,
    name: &str,
    rtype: Rtype,
    transport: Transport,
    opt: Option<u16>,
) -> (Rcode, Vec<String>, Vec<String>, bool) {
    let answered = answer(&query(name, rtype, opt), transport, &zone(), fixed, SEEDS).unwrap();
    let most =
        if transport == Transport::Tcp { 65_535 } else { usize::from(opt.unwrap_or(512)).clamp(512, LOCAL_DATAGRAM) };
    assert!(answered.bytes.len() <= most, "{} bytes", answered.bytes.len());
    let message = Message::from_octets(answered.bytes).unwrap();
    assert_eq!((message.header().id(), message.header().qr(), message.header().rd()), (77, true, true));
    assert_eq!(message.opt().is_some(), opt.is_some(), "OPT is for those who send it");
    let (_, answers, authority, additional) = message.sections().unwrap();
    let texts = |section: domain::base::message::RecordSection<'_, Vec<u8>>| {
        let records = section.limit_to::<AllRecordData<_, _>>().map(|record| {
            let record = record.unwrap();
            // Some types show the last dot of names, some do not.
            let text = format!("{} {} {}", record.owner(), record.rtype(), record.data());
            text.replace(". ", " ").trim_end_matches('.').to_owned()
        });
        records.filter(|record| !record.contains(" OPT ")).collect::<Vec<_>>()
    };
    let mut more = texts(authority);
    more.extend(texts(additional));
    (message.header().rcode(), texts(answers), more, message.header().tc())
}

#[test]
fn what_is_answered() {
    let fixed = services(
        &[
            ("web", &["10.0.0.1"]),
            ("Order-Service", &["10.0.0.3"]),
            ("six", &["::1"]),
            ("far", &["db.example.org"]),
            ("empty", &[]),
            ("db", &["10.0.0.9"]),
            ("a.b", &["10.0.0.1"]),
        ],
        |_| {},
    );
    let soa = "consul SOA ns.consul hostmaster.consul 1 3600 600 86400 7";
    for (name, rtype, rcode, answers, more) in [
        ("web.service.consul", Rtype::A, Rcode::NOERROR, &["web.service.consul A 10.0.0.1"][..], &[][..]),
        ("WEB.Service.Consul", Rtype::A, Rcode::NOERROR, &["WEB.Service.Consul A 10.0.0.1"], &[]),
        ("order-service.service.consul", Rtype::A, Rcode::NOERROR, &["order-service.service.consul A 10.0.0.3"], &[]),
        ("web.service.consul", Rtype::AAAA, Rcode::NOERROR, &[], &[soa]),
        ("web.service.consul", Rtype::TXT, Rcode::NOERROR, &[], &[soa]),
        ("six.service.consul", Rtype::AAAA, Rcode::NOERROR, &["six.service.consul AAAA ::1"], &[]),
        ("far.service.consul", Rtype::A, Rcode::NOERROR, &["far.service.consul CNAME db.example.org"], &[]),
        (
            "_web._tcp.service.consul",
            Rtype::SRV,
            Rcode::NOERROR,
            &["_web._tcp.service.consul SRV 0 100 8000 0a000001.addr.consul"],
            &["0a000001.addr.consul A 10.0.0.1"],
        ),
        ("far.service.consul", Rtype::SRV, Rcode::NOERROR, &["far.service.consul SRV 0 100 8000 db.example.org"], &[]),
        ("0a000001.addr.consul", Rtype::A, Rcode::NOERROR, &["0a000001.addr.consul A 10.0.0.1"], &[]),
        ("empty.service.consul", Rtype::A, Rcode::NXDOMAIN, &[], &[soa]),
        ("nobody.service.consul", Rtype::SRV, Rcode::NXDOMAIN, &[], &[soa]),
        ("service.consul", Rtype::A, Rcode::NOERROR, &[], &[soa]),
        ("consul", Rtype::SOA, Rcode::NOERROR, &[soa], &[]),
        ("consul", Rtype::NS, Rcode::NOERROR, &["consul NS ns.consul"], &[]),
        (
            "1.0.0.10.in-addr.arpa",
            Rtype::PTR,
            Rcode::NOERROR,
            &["1.0.0.10.in-addr.arpa PTR web.service.dc1.consul"],
            &[],
        ),
        ("9.0.0.10.in-addr.arpa", Rtype::PTR, Rcode::NOERROR, &["9.0.0.10.in-addr.arpa PTR db-1.node.dc1.consul"], &[]),
        ("9.0.0.10.in-addr.arpa", Rtype::A, Rcode::NOERROR, &[], &[&*soa.replace(" 7", " 0")]),
        ("8.0.0.10.in-addr.arpa", Rtype::PTR, Rcode::NXDOMAIN, &[], &[soa]),
        ("0.0.10.in-addr.arpa", Rtype::PTR, Rcode::NXDOMAIN, &[], &[soa]),
        ("9.0.0.10.in-addr.arpa", Rtype::ANY, Rcode::NOTIMP, &[], &[]),
        ("home.arpa", Rtype::PTR, Rcode::REFUSED, &[], &[]),
        ("web.service.consul", Rtype::PTR, Rcode::NOERROR, &[], &[soa]),
        ("web.service.consul", Rtype::ANY, Rcode::NOTIMP, &[], &[]),
        ("consul", Rtype::AXFR, Rcode::REFUSED, &[], &[]),
        ("example.org", Rtype::A, Rcode::REFUSED, &[], &[]),
        ("notconsul", Rtype::A, Rcode::REFUSED, &[], &[]),
    ] {
        let (found, records, rest, cut) = ask(&fixed, name, rtype, Transport::Udp, None);
        assert_eq!((found, cut), (rcode, false), "{name} {rtype}");
        assert_eq!(records, answers, "{name} {rtype}");
        assert_eq!(rest, more, "{name} {rtype}");
    }
}

#[test]
fn only_who_can_be_used_is_told_and_by_priority() {
    let fixed = services(&[("web", &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"])], |registration| {
        match registration.port {
            8000 => registration.health = Some(Health::Critical),
            8001 => registration.isolate = Some(true),
            8002 => registration.weight = 0,
            8003 => {
                registration.priority = 1;
                let kept = r#"{"tags":["V2"]}"#;
                registration.metadata = Metadata::from_pairs([("kingpost.consul", kept)]).unwrap();
            }
            _ => {}
        }
    });
    let (_, addresses, _, _) = ask(&fixed, "web.service.consul", Rtype::A, Transport::Udp, None);
    assert_eq!(addresses, ["web.service.consul A 10.0.0.5"], "the best priority only");
    let (_, srv, _, _) = ask(&fixed, "web.service.consul", Rtype::SRV, Transport::Udp, None);
    let data: Vec<&str> = srv.iter().filter_map(|text| text.split(" SRV ").nth(1)).collect();
    assert_eq!(data, ["0 100 8004 0a000005.addr.consul", "1 100 8003 0a000004.addr.consul"]);
    let (_, tagged, _, _) = ask(&fixed, "v2.web.service.consul", Rtype::A, Transport::Udp, None);
    assert_eq!(tagged, ["v2.web.service.consul A 10.0.0.4"]);
    assert_eq!(ask(&fixed, "v3.web.service.consul", Rtype::A, Transport::Udp, None).0, Rcode::NXDOMAIN);
}

#[test]
fn what_does_not_fit_says_so_and_comes_whole_over_tcp() {
    let hosts: Vec<String> = (0..300).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let fixed = services(&[("web", &hosts)], |_| {});
    for (rtype, each) in [(Rtype::A, 16), (Rtype::SRV, 40)] {
        let mut told = 0;
        for opt in [None, Some(100), Some(1000), Some(4000)] {
            let (rcode, answers, _, cut) = ask(&fixed, "web.service.consul", rtype, Transport::Udp, opt);
            assert_eq!((rcode, cut), (Rcode::NOERROR, true));
            let size = usize::from(opt.unwrap_or(512)).max(512);
            assert!(answers.len() >= told && answers.len() >= size / each - 4, "{rtype} {opt:?}: {}", answers.len());
            told = answers.len();
        }
        let (_, answers, _, cut) = ask(&fixed, "web.service.consul", rtype, Transport::Tcp, None);
        assert_eq!((answers.len(), cut), (300, false), "{rtype}");
        let (_, answers, _, cut) = ask(&fixed, "web.service.consul", rtype, Transport::Udp, Some(16_384));
        assert_eq!((answers.len(), cut), (300, false), "{rtype}: on this machine as much as the client takes");
    }
}

/// Answers of `length` bytes for a client, with the order that `order` determines: sorted records, and those in their order.
fn parts(fixed: &Fixed, rtype: Rtype, length: u16, seeds: Seeds) -> (Vec<String>, Vec<String>) {
    let over = Transport::ForeignUdp { most: usize::from(length) };
    let answered = answer(&query("web.service.consul", rtype, Some(length)), over, &zone(), fixed, seeds).unwrap();
    assert!(answered.truncated && answered.bytes.len() <= usize::from(length));
    let message = Message::from_octets(answered.bytes).unwrap();
    let records = message.answer().unwrap().limit_to::<AllRecordData<_, _>>();
    let list: Vec<String> = records.map(|record| record.unwrap().data().to_string()).collect();
    assert_eq!(list.len(), answered.records);
    let mut sorted = list.clone();
    sorted.sort();
    (sorted, list)
}

#[test]
fn a_cut_answer_has_the_same_instances_for_a_client_and_others_for_another() {
    let hosts: Vec<String> = (0..60).map(|n| format!("10.0.0.{n}")).collect();
    let all: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let heavy =
        |registration: &mut Registration| registration.weight = if registration.port == 8007 { 900 } else { 100 };
    let (before, without) = (services(&[("web", &all)], heavy), services(&[("web", &all[..59])], heavy));
    for (rtype, length) in [(Rtype::A, 600), (Rtype::SRV, 1232)] {
        let mut times = HashMap::new();
        let (mut orders, mut clients) = (HashSet::new(), HashSet::new());
        for client in 0..600 {
            let seeds = |order| Seeds { order, client };
            let (first, _) = parts(&before, rtype, length, seeds(0));
            for order in 1..4 {
                let (again, list) = parts(&before, rtype, length, seeds(order));
                assert_eq!(again, first, "{rtype}: the same instances each time");
                orders.insert(list);
            }
            first.iter().for_each(|record| *times.entry(record.clone()).or_insert(0) += 1);
            // The instance that is gone is replaced, and no other one.
            let (after, _) = parts(&without, rtype, length, seeds(0));
            let gone = first.iter().filter(|record| !after.contains(record)).count();
            assert!(gone <= 1 && after.len() == first.len(), "{rtype}: {gone} of {} are gone", first.len());
            clients.insert(first);
        }
        assert!(orders.len() > 1700 && clients.len() > 590, "{rtype}: {} orders, {} sets", orders.len(), clients.len());
        assert_eq!(times.len(), 60, "{rtype}: each instance is told to somebody");
        let heaviest = times.iter().max_by_key(|(_, times)| **times).unwrap().0;
        assert!(heaviest.contains("10.0.0.7") || heaviest.contains("8007"), "{rtype}: {heaviest}");
        let fair = times.values().filter(|times| (150..450).contains(*times)).count();
        assert!(fair >= 59, "{rtype}: {times:?}");
    }
    // Without EDNS, each answer has others.
    let told: HashSet<Vec<String>> = (0..20)
        .map(|order| {
            let asked = query("web.service.consul", Rtype::SRV, None);
            let seeds = Seeds { order, client: 1 };
            let answered = answer(&asked, Transport::Udp, &zone(), &before, seeds).unwrap();
            let message = Message::from_octets(answered.bytes).unwrap();
            let records = message.answer().unwrap().limit_to::<AllRecordData<_, _>>();
            let mut list: Vec<String> = records.map(|record| record.unwrap().data().to_string()).collect();
            list.sort();
            list
        })
        .collect();
    assert_eq!(told.len(), 20);
}

#[test]
fn weights_are_kept() {
    let fixed = services(&[("web", &["10.0.0.1", "10.0.0.2"])], |registration| {
        registration.weight = if registration.port == 8000 { 300 } else { 100 };
    });
    let wanted = Wanted { key: ServiceKey::new(&NamespaceName::default(), "web").ok(), tag: None };
    let first = (0..4000)
        .filter(|n| instances(&wanted, &fixed, Seeds { order: *n, client: 0 }).unwrap()[0].port == 8000)
        .count();
    assert!((2800..3200).contains(&first), "three quarters of 4000, not {first}");
}

/// With warnings, Consul's `Weights.Warning` counts instead of the weight; an instance of another front has none.
#[test]
fn a_service_with_warnings_has_consuls_weight_for_them() {
    for (kept, expected) in [
        (None, 300),
        (Some("{}"), 100),
        (Some(r#"{"warning_weight":0}"#), 0),
        (Some(r#"{"warning_weight":7}"#), 700),
        (Some(r#"{"warning_weight":65535}"#), 65_535),
    ] {
        for (health, expected) in [(Health::Passing, 300), (Health::Warning, expected)] {
            let fixed = services(&[("web", &["10.0.0.1"])], |registration| {
                registration.weight = 300;
                registration.health = Some(health);
                registration.metadata = Metadata::from_pairs(kept.map(|kept| ("kingpost.consul", kept))).unwrap();
            });
            let (_, answers, ..) = ask(&fixed, "web.service.consul", Rtype::SRV, Transport::Tcp, None);
            assert_eq!(answers, [format!("web.service.consul SRV 0 {expected} 8000 0a000001.addr.consul")], "{kept:?}");
        }
    }
}

#[test]
fn what_is_no_question() {
    let fixed = services(&[], |_| {});
    let good = query("web.service.consul", Rtype::A, None);
    for length in 0..12 {
        assert!(answer(&good[..length], Transport::Udp, &zone(), &fixed, SEEDS).is_none(), "no header, no answer");
    }
    let mut reply = good.clone();
    reply[2] |= 0x80;
    assert!(answer(&reply, Transport::Udp, &zone(), &fixed, SEEDS).is_none(), "answers are not answered");
    let code = |bytes: &[u8]| {
        let answered = answer(bytes, Transport::Udp, &zone(), &fixed, SEEDS).unwrap();
        Message::from_octets(answered.bytes).unwrap().header().rcode()
    };
    assert_eq!(code(&good[..20]), Rcode::FORMERR, "cut off in its question");
    assert_eq!(code(&good[..12]), Rcode::FORMERR);
    let mut two = good.clone();
    two[5] = 2;
    assert_eq!(code(&two), Rcode::FORMERR, "two questions");
    let mut update = good.clone();
    update[2] |= 5 << 3;
    assert_eq!(code(&update), Rcode::NOTIMP);
    let mut later = query("web.service.consul", Rtype::A, Some(4096));
    let version = later.len() - 5;
    later[version] = 1;
    let answered = answer(&later, Transport::Udp, &zone(), &fixed, SEEDS).unwrap();
    let message = Message::from_octets(answered.bytes).unwrap();
    assert_eq!(message.opt_rcode(), OptRcode::BADVERS);
}

proptest! {
    #[test]
    fn nothing_makes_it_fall_over(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        mended in any::<bool>(),
        tcp in any::<bool>(),
    ) {
        let fixed = services(&[("web", &["10.0.0.1", "::1", "name"])], |_| {});
        if mended && bytes.len() > 12 {
            bytes[2..12].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
        }
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        if let Some(answered) = answer(&bytes, transport, &zone(), &fixed, SEEDS) {
            prop_assert!(tcp || answered.bytes.len() <= LOCAL_DATAGRAM);
            prop_assert_eq!(&answered.bytes[..2], &bytes[..2]);
        }
    }
}

#[test]
fn an_answer_to_another_machine_is_at_most_four_times_as_long_as_its_question() {
    let hosts: Vec<String> = (1..=200).map(|n| format!("10.0.0.{n}")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let fixed = services(&[("web", &hosts), ("one", &["10.0.0.1"])], |_| {});
    for (name, rtype, all) in [
        ("web.service.consul", Rtype::A, false),
        ("web.service.consul", Rtype::SRV, false),
        ("one.service.consul", Rtype::A, true),
        ("one.service.consul", Rtype::SRV, true),
        ("nobody.service.consul", Rtype::A, true),
    ] {
        for opt in [None, Some(1232), Some(65_000)] {
            let question = query(name, rtype, opt);
            let answered = answer(&question, Transport::ForeignUdp { most: 0 }, &zone(), &fixed, SEEDS).unwrap();
            let (asked, sent) = (question.len(), answered.bytes.len());
            assert!(sent <= 4 * asked, "{name} {rtype} {opt:?}: {sent} bytes for {asked}");
            let message = Message::from_octets(answered.bytes).unwrap();
            assert_eq!(message.header().tc(), !all, "{name} {rtype} {opt:?}: who gets only a part is told so");
            let short = cut(&question, &zone()).unwrap().bytes;
            assert!(short.len() <= asked + OPT_BYTES, "{} bytes for {asked}", short.len());
            assert!(Message::from_octets(short).unwrap().header().tc());
        }
    }
    assert!(cut(b"no question", &zone()).is_none());
}

#[test]
fn nodes_have_addresses() {
    let none = services(&[], |_| {});
    for (name, rtype, code, records) in [
        ("db-1.node.consul", Rtype::A, Rcode::NOERROR, &["10.0.0.9"][..]),
        ("DB-1.node.dc1.consul", Rtype::A, Rcode::NOERROR, &["10.0.0.9"]),
        ("db-1.node.consul", Rtype::AAAA, Rcode::NOERROR, &[]),
        ("db-2.example.node.consul", Rtype::AAAA, Rcode::NOERROR, &["fe80::9"]),
        ("db-3.node.consul", Rtype::A, Rcode::NOERROR, &["db-3.example.org"]),
        ("db-4.node.consul", Rtype::A, Rcode::NXDOMAIN, &[]),
        ("node.consul", Rtype::A, Rcode::NOERROR, &[]),
    ] {
        let (found, answers, ..) = ask(&none, name, rtype, Transport::Udp, None);
        assert_eq!(found, code, "{name}");
        assert_eq!(answers.len(), records.len(), "{name}: {answers:?}");
        assert!(answers.iter().zip(records).all(|(answer, record)| answer.contains(record)), "{name}: {answers:?}");
    }
}

#[test]
fn prepared_queries_have_the_records_of_what_they_select() {
    let some = services(&[("web", &["10.0.0.1", "10.0.0.2"])], |_| {});
    for (name, rtype, code, records) in [
        ("q-web.query.consul", Rtype::A, Rcode::NOERROR, 2),
        ("q-web.QUERY.dc1.consul", Rtype::A, Rcode::NOERROR, 2),
        ("_q-web._tcp.query.consul", Rtype::SRV, Rcode::NOERROR, 2),
        ("q-none.query.consul", Rtype::A, Rcode::NXDOMAIN, 0),
        ("query.consul", Rtype::A, Rcode::NOERROR, 0),
    ] {
        let (found, answers, ..) = ask(&some, name, rtype, Transport::Udp, None);
        assert_eq!((found, answers.len()), (code, records), "{name}: {answers:?}");
    }
}
