//! Answers to questions, from bytes to bytes, without I/O.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::base::iana::{Class, Opcode, OptRcode, Rcode};
use domain::base::message_builder::{AdditionalBuilder, AnswerBuilder, PushError};
use domain::base::name::FlattenInto;
use domain::base::{Message, MessageBuilder, Name, Rtype, Serial, StaticCompressor, Ttl};
use domain::rdata::{A, Aaaa, Cname, Ns, Ptr, Soa, Srv};

use super::name::{self, Meaning, Wanted};
use super::{KnownNode, Queried, Services, Zone};
use crate::{Instance, InstanceId, ServiceSnapshot};

/// Transport of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A datagram from this machine.
    Udp,
    /// A datagram that seems to come from another machine: with a forged source address, the answer reaches a victim.
    ForeignUdp {
        /// Maximum length of the answer; 0: four times that of the question, at most 1232 bytes.
        most: usize,
    },
    /// A connection.
    Tcp,
}

/// Seeds of an answer about a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// Determines the order of the instances, and those in a cut answer to a client without EDNS.
    pub order: u64,
    /// Determines the instances in any other cut answer: the same for all questions of a client, and at all nodes.
    pub client: u64,
}

/// The outcome of a question, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Found,
    Empty,
    Refused,
    Limited,
}

/// An answer.
#[derive(Debug)]
pub struct Answered {
    /// The message.
    pub bytes: Vec<u8>,
    pub(super) outcome: Outcome,
    pub(super) truncated: bool,
    /// Number of records in the answer's first section.
    records: usize,
}

/// Maximum length of an answer in a datagram to another machine, unless the settings allow more: the length that passes without fragments.
const DATAGRAM: usize = 1232;
/// Maximum length of an answer in a datagram on this machine.
const LOCAL_DATAGRAM: usize = 65_000;
/// Maximum length of an answer in a datagram to another machine, as a multiple of the question's, unless the settings allow more. The rest is fetched
/// over TCP.
const AMPLIFICATION: usize = 4;
/// Maximum length for a client without EDNS.
const CLASSIC: usize = 512;
/// Maximum number of instances that one question examines; in a larger service, the examination starts at an instance that the client determines.
pub(super) const LOOKED_AT: usize = 4096;
/// Length of an OPT record without options.
const OPT_BYTES: usize = 11;

type Target = StaticCompressor<Vec<u8>>;
type AnyName = Name<Vec<u8>>;

/// Answers a question; `None` if the message is not a question.
pub fn answer(
    query: &[u8],
    transport: Transport,
    zone: &Zone,
    services: &dyn Services,
    seeds: Seeds,
) -> Option<Answered> {
    let asked_in = query.len();
    let query = Message::from_octets(query).ok()?;
    // Answering an answer could loop for ever.
    if query.header().qr() {
        return None;
    }
    let opt = query.opt();
    let accepted = opt.as_ref().map_or(CLASSIC, |opt| usize::from(opt.udp_payload_size()).max(CLASSIC));
    let most = match transport {
        Transport::Tcp => usize::from(u16::MAX),
        Transport::Udp => accepted.min(LOCAL_DATAGRAM),
        Transport::ForeignUdp { most: 0 } => accepted.min(DATAGRAM).min(AMPLIFICATION * asked_in),
        Transport::ForeignUdp { most } => accepted.min(most.clamp(CLASSIC, LOCAL_DATAGRAM)),
    };
    let with_opt = opt.is_some();
    let mut draft = Draft { with_opt, most, authoritative: false, ttl: ttl(zone), cut: false };
    if query.header().opcode() != Opcode::QUERY {
        return draft.error(&query, OptRcode::NOTIMP);
    }
    if opt.is_some_and(|opt| opt.version() != 0) {
        return draft.error(&query, OptRcode::BADVERS);
    }
    let Ok(question) = query.sole_question() else { return draft.error(&query, OptRcode::FORMERR) };
    let asked: AnyName = match question.qname().try_flatten_into() {
        Ok(asked) => asked,
        Err(_) => return draft.error(&query, OptRcode::FORMERR),
    };
    let Ok(apex) = Name::vec_from_str(&zone.domain) else { return draft.error(&query, OptRcode::SERVFAIL) };
    // The last label is that of the root.
    let (all, own) = (asked.label_count() - 1, asked.label_count().saturating_sub(apex.label_count()));
    let labels: Option<Vec<&str>> =
        asked.iter().take(all).map(|label| std::str::from_utf8(label.as_slice()).ok()).collect();
    let meaning = match &labels {
        _ if question.qclass() != Class::IN => None,
        Some(labels) if asked.ends_with(&apex) => Some(name::meaning(&labels[..own], zone)),
        None if asked.ends_with(&apex) => Some(Meaning::Nothing),
        Some(labels) => name::reversed(labels),
        None => None,
    };
    let Some(meaning) = meaning else { return draft.error(&query, OptRcode::REFUSED) };
    let rtype = question.qtype();
    if matches!(rtype, Rtype::AXFR | Rtype::IXFR) {
        return draft.error(&query, OptRcode::REFUSED);
    }
    // ANY is the question that amplification attacks use.
    if rtype == Rtype::ANY {
        return draft.error(&query, OptRcode::NOTIMP);
    }
    draft.authoritative = true;
    let (records, list) = match meaning {
        Meaning::Nothing => (None, None),
        Meaning::Between => (Some(Records::default()), None),
        Meaning::Apex => (Some(Records { apex: true, ..Records::default() }), None),
        Meaning::Address(address) => (Some(Records { addresses: vec![address], ..Records::default() }), None),
        Meaning::Node(namespace, name) => {
            let of_node = |node: KnownNode| match node.address.parse() {
                Ok(address) => Records { addresses: vec![address], ..Records::default() },
                Err(_) => Records { alias: Name::vec_from_str(&node.address).ok(), ..Records::default() },
            };
            (services.node(&namespace, &name).map(of_node), None)
        }
        Meaning::Owner(address) => {
            let owner = owner(address, zone, services);
            if owner.is_some() {
                // As at Consul: nobody is told when an address changes its owner.
                draft.ttl = Ttl::ZERO;
            }
            (owner.map(|owner| Records { owner: Some(owner), ..Records::default() }), None)
        }
        Meaning::Query(namespace, name) => {
            let found = services.query(&namespace, &name);
            draft.ttl = found.as_ref().and_then(|found| found.ttl).map_or(draft.ttl, seconds);
            (None, found.and_then(|found| queried(&found, seeds)))
        }
        Meaning::Service(wanted) => (None, instances(&wanted, services, seeds)),
    };
    let Some(list) = list else { return draft.records(&query, &asked, &apex, rtype, records) };
    let whole = draft.records(&query, &asked, &apex, rtype, Some(of_service(&list, rtype)))?;
    // A client that knows neither EDNS nor TCP takes any address and forgets the others; so each answer has others.
    let kept_by_client = with_opt || transport == Transport::Tcp;
    if !(whole.truncated && kept_by_client) {
        return Some(whole);
    }
    let mut ranked = list.clone();
    rank(&mut ranked, seeds.client);
    let chosen = draft.records(&query, &asked, &apex, rtype, Some(of_service(&ranked, rtype)))?;
    draft.cut = true;
    let mixed = of_service(&list, rtype).only(&of_service(&ranked, rtype), rtype, chosen.records);
    // Another order may compress to another length.
    let mixed = draft.records(&query, &asked, &apex, rtype, Some(mixed))?;
    Some(if mixed.records < chosen.records { chosen } else { mixed })
}

/// Returns the name of the owner of an address: as at Consul that of one node, else that of one service.
fn owner(address: IpAddr, zone: &Zone, services: &dyn Services) -> Option<AnyName> {
    zone.namespaces.iter().find_map(|namespace| {
        let names = services.owners(namespace, address);
        let mut names = names.iter().filter_map(|owner| name::of_owner(owner, namespace, zone));
        names.find_map(|name| Name::vec_from_str(&format!("{name}.{}", zone.domain)).ok())
    })
}

/// Makes an empty answer with the truncation flag, so that the client asks again over TCP; `None` as in [`answer`].
pub(super) fn cut(query: &[u8], zone: &Zone) -> Option<Answered> {
    let query = Message::from_octets(query).ok()?;
    if query.header().qr() || query.sole_question().is_err() {
        return None;
    }
    let draft =
        Draft { with_opt: query.opt().is_some(), most: CLASSIC, authoritative: true, ttl: ttl(zone), cut: false };
    let answer = draft.start(&query, Rcode::NOERROR)?;
    draft.finish(answer.additional(), OptRcode::NOERROR, Outcome::Limited, true)
}

fn ttl(zone: &Zone) -> Ttl {
    seconds(zone.ttl)
}

fn seconds(ttl: Duration) -> Ttl {
    // More than a day would be a mistake; more than 2^31 s is not allowed.
    Ttl::from_secs(u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX).min(86_400))
}

/// The records of a name.
#[derive(Default)]
struct Records {
    apex: bool,
    addresses: Vec<IpAddr>,
    alias: Option<AnyName>,
    owner: Option<AnyName>,
    services: Vec<Arc<Instance>>,
}

impl Records {
    /// Keeps the first `count` records of `other`, in this order.
    fn only(mut self, other: &Records, rtype: Rtype, count: usize) -> Records {
        let ids: HashSet<&InstanceId> = other.services.iter().take(count).map(|instance| &instance.id).collect();
        self.services.retain(|instance| ids.contains(&instance.id));
        let of_type = |address: &&IpAddr| address.is_ipv4() == (rtype == Rtype::A);
        let addresses: HashSet<&IpAddr> = other.addresses.iter().filter(of_type).take(count).collect();
        self.addresses.retain(|address| addresses.contains(address));
        self
    }
}

/// Sorts instances by priority, then in an order of the client's own: by weight and by a hash of the client and the instance. A cut answer has the
/// first of them. So a client that takes a cut answer for the whole one (HAProxy's resolver, which without `hold obsolete` drops at once what an
/// answer lacks) gets the same instances each time, other clients get others, and an instance that comes or goes changes one record.
fn rank(list: &mut [Arc<Instance>], client: u64) {
    let score = |instance: &Arc<Instance>| {
        // FNV-1a: the same at all nodes.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = instance.id.as_str().bytes().fold(client ^ 0xcbf2_9ce4_8422_2325, hash);
        -Random(hash).unit().ln() / f64::from(instance.weight)
    };
    list.sort_by_cached_key(|instance| (instance.priority, Score(score(instance))));
}

/// A number with a total order.
#[derive(PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Returns the usable instances in the order in which to try them: by priority, then at random by weight. `None` if the service does not exist, or
/// has none.
fn instances(wanted: &Wanted, services: &dyn Services, seeds: Seeds) -> Option<Vec<Arc<Instance>>> {
    let snapshots: Vec<Arc<ServiceSnapshot>> = wanted.key.iter().flat_map(|key| services.find(key)).collect();
    let start = |snapshot: &ServiceSnapshot| match snapshot.instances.len() {
        some if some > LOOKED_AT => (Random(seeds.client).next() % some as u64) as usize,
        _ => 0,
    };
    let found = snapshots
        .iter()
        .flat_map(|snapshot| snapshot.instances.iter_from(start(snapshot)).take(LOOKED_AT))
        .filter(|instance| instance.is_usable())
        .filter(|instance| wanted.tag.as_ref().is_none_or(|tag| crate::api::has_tag(instance, tag)));
    ordered(found, seeds)
}

/// Returns the instances of a prepared query in the order in which to try them; `None` if there are none.
fn queried(found: &Queried, seeds: Seeds) -> Option<Vec<Arc<Instance>>> {
    let some = found.instances.len().checked_sub(LOOKED_AT);
    let start = some.map_or(0, |more| (Random(seeds.client).next() % (more as u64 + 1)) as usize);
    ordered(found.instances.iter().skip(start).take(LOOKED_AT), seeds)
}

/// Orders instances by priority, then at random by weight; `None` if there are none.
fn ordered<'a>(found: impl Iterator<Item = &'a Arc<Instance>>, seeds: Seeds) -> Option<Vec<Arc<Instance>>> {
    let mut random = Random(seeds.order);
    let mut found: Vec<(u16, f64, &Arc<Instance>)> = found
        // An exponential variate that is shorter for a higher weight: an instance comes first with a probability proportional to its weight.
        .map(|instance| {
            let weight = f64::from(crate::api::weight_by_health(instance));
            (instance.priority, -random.unit().ln() / weight, instance)
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    (!found.is_empty()).then(|| found.into_iter().map(|(_, _, instance)| Arc::clone(instance)).collect())
}

/// Returns the records of a service. Addresses are those of the best priority only, since an address record has no priority.
fn of_service(list: &[Arc<Instance>], rtype: Rtype) -> Records {
    if rtype == Rtype::SRV {
        return Records { services: list.to_vec(), ..Records::default() };
    }
    let best = list.first().map(|instance| instance.priority);
    let best = list.iter().filter(|instance| Some(instance.priority) == best);
    let (mut addresses, mut alias) = (Vec::new(), None);
    for instance in best {
        match instance.host.parse() {
            Ok(address) if !addresses.contains(&address) => addresses.push(address),
            Ok(_) => {}
            Err(_) => alias = alias.or_else(|| Name::vec_from_str(&instance.host).ok()),
        }
    }
    // An alias excludes all other records.
    let alias = alias.filter(|_| addresses.is_empty());
    Records { addresses, alias, ..Records::default() }
}

/// Properties of an answer, before its records.
struct Draft {
    with_opt: bool,
    most: usize,
    authoritative: bool,
    ttl: Ttl,
    /// True if the records are known to be only a part.
    cut: bool,
}

impl Draft {
    fn start(&self, query: &Message<&[u8]>, rcode: Rcode) -> Option<AnswerBuilder<Target>> {
        let mut builder = MessageBuilder::from_target(Target::new(Vec::with_capacity(CLASSIC))).ok()?;
        let reserved = if self.with_opt { OPT_BYTES } else { 0 };
        builder.set_push_limit(self.most - reserved);
        let mut answer = builder.start_answer(query, rcode).ok()?;
        answer.header_mut().set_aa(self.authoritative);
        Some(answer)
    }

    /// Adds OPT if the client sent one, and the truncation flag.
    fn finish(
        &self,
        mut last: AdditionalBuilder<Target>,
        rcode: OptRcode,
        outcome: Outcome,
        cut: bool,
    ) -> Option<Answered> {
        last.header_mut().set_tc(cut);
        if self.with_opt {
            last.set_push_limit(self.most);
            last.opt(|opt| {
                opt.set_udp_payload_size(DATAGRAM as u16);
                opt.set_rcode(rcode);
                Ok(())
            })
            .ok()?;
        }
        let records = usize::from(last.counts().ancount());
        Some(Answered { bytes: last.finish().into_target(), outcome, truncated: cut, records })
    }

    /// Makes an answer without records. An unreadable question is not repeated in it.
    fn error(&self, query: &Message<&[u8]>, rcode: OptRcode) -> Option<Answered> {
        let plain = rcode.rcode();
        if query.sole_question().is_ok() {
            let answer = self.start(query, plain)?;
            return self.finish(answer.additional(), rcode, Outcome::Refused, false);
        }
        let mut builder = MessageBuilder::from_target(Target::new(Vec::with_capacity(CLASSIC))).ok()?;
        let header = builder.header_mut();
        header.set_id(query.header().id());
        header.set_qr(true);
        header.set_opcode(query.header().opcode());
        header.set_rd(query.header().rd());
        header.set_rcode(plain);
        self.finish(builder.additional(), rcode, Outcome::Refused, false)
    }

    fn records(
        &self,
        query: &Message<&[u8]>,
        asked: &AnyName,
        apex: &AnyName,
        rtype: Rtype,
        records: Option<Records>,
    ) -> Option<Answered> {
        let rcode = if records.is_none() { Rcode::NXDOMAIN } else { Rcode::NOERROR };
        let mut answer = self.start(query, rcode)?;
        let records = records.unwrap_or_default();
        let (pushed, extra) = match self.answers(&mut answer, asked, apex, rtype, &records) {
            Ok(_) if self.cut => (false, Vec::new()),
            Ok(extra) => (true, extra),
            // Not enough room: the records that fit are sent, with the truncation flag.
            Err(Full) => (false, Vec::new()),
        };
        let some = answer.counts().ancount() > 0;
        let mut authority = answer.authority();
        if pushed && !some {
            // The time for which a negative answer may be cached.
            let _ = authority.push((apex, Class::IN, self.ttl, self.soa(apex)?));
        }
        let mut additional = authority.additional();
        for (name, address) in extra {
            // Optional: a client that lacks one asks for it.
            if push_address(&mut additional, &name, self.ttl, address).is_err() {
                break;
            }
        }
        let outcome = if some { Outcome::Found } else { Outcome::Empty };
        self.finish(additional, rcode.into(), outcome, !pushed)
    }

    /// Adds the records of the requested type, and returns the addresses that go with them.
    fn answers(
        &self,
        answer: &mut AnswerBuilder<Target>,
        asked: &AnyName,
        apex: &AnyName,
        rtype: Rtype,
        records: &Records,
    ) -> Result<Vec<(AnyName, IpAddr)>, Full> {
        let mut extra: Vec<(AnyName, IpAddr)> = Vec::new();
        match rtype {
            Rtype::A | Rtype::AAAA => {
                if let Some(alias) = &records.alias {
                    answer.push((asked, Class::IN, self.ttl, Cname::new(alias)))?;
                }
                for address in &records.addresses {
                    match address {
                        IpAddr::V4(v4) if rtype == Rtype::A => {
                            answer.push((asked, Class::IN, self.ttl, A::new(*v4)))?
                        }
                        IpAddr::V6(v6) if rtype == Rtype::AAAA => {
                            answer.push((asked, Class::IN, self.ttl, Aaaa::new(*v6)))?;
                        }
                        _ => {}
                    }
                }
            }
            Rtype::SRV => {
                for instance in &records.services {
                    let address: Option<IpAddr> = instance.host.parse().ok();
                    let target = match address {
                        Some(address) => format!("{}.addr.{}", name::label(address), apex),
                        None => instance.host.to_string(),
                    };
                    // A host that is no valid name cannot be a target.
                    let Ok(target) = Name::vec_from_str(&target) else { continue };
                    let weight = crate::api::weight_by_health(instance);
                    let data = Srv::new(instance.priority, weight, instance.port, &target);
                    answer.push((asked, Class::IN, self.ttl, data))?;
                    if let Some(address) = address
                        && !extra.iter().any(|(known, _)| *known == target)
                    {
                        extra.push((target, address));
                    }
                }
            }
            Rtype::PTR => {
                if let Some(owner) = &records.owner {
                    answer.push((asked, Class::IN, self.ttl, Ptr::new(owner)))?;
                }
            }
            Rtype::SOA if records.apex => {
                if let Some(soa) = self.soa(apex) {
                    answer.push((asked, Class::IN, self.ttl, soa))?;
                }
            }
            Rtype::NS if records.apex => {
                if let Some(ns) = below("ns", apex) {
                    answer.push((asked, Class::IN, self.ttl, Ns::new(ns)))?;
                }
            }
            _ => {}
        }
        Ok(extra)
    }

    fn soa(&self, apex: &AnyName) -> Option<Soa<AnyName>> {
        let (hour, day) = (Ttl::from_secs(3600), Ttl::from_secs(86_400));
        Some(Soa::new(
            below("ns", apex)?,
            below("hostmaster", apex)?,
            Serial(1),
            hour,
            Ttl::from_secs(600),
            day,
            self.ttl,
        ))
    }
}

/// Error: there is no room left.
struct Full;

impl From<PushError> for Full {
    fn from(_: PushError) -> Full {
        Full
    }
}

fn below(label: &str, apex: &AnyName) -> Option<AnyName> {
    Name::vec_from_str(&format!("{label}.{apex}")).ok()
}

fn push_address(
    to: &mut AdditionalBuilder<Target>,
    name: &AnyName,
    ttl: Ttl,
    address: IpAddr,
) -> Result<(), PushError> {
    match address {
        IpAddr::V4(v4) => to.push((name, Class::IN, ttl, A::new(v4))),
        IpAddr::V6(v6) => to.push((name, Class::IN, ttl, Aaaa::new(v6))),
    }
}

/// SplitMix64: for fairness, not for secrets.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number above 0, up to 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
