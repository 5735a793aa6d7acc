//! Entries for Consul's clients: services, checks and nodes in their JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::checks;
use super::wire::{Kept, WEIGHT_SCALE, status};
use crate::api::identity::in_consul;
use crate::api::{RESERVED, format_duration};
use crate::{CheckKind, Health, Instance, Pace, ProbeRequest};

/// Notes of a maintenance check without a reason, of a service and of a node: Consul's.
const NO_REASON: [&str; 2] = [
    "Maintenance mode is enabled for this service, but no reason was provided. This is a default message.",
    "Maintenance mode is enabled for this node, but no reason was provided. This is a default message.",
];

/// The only datacenter.
pub(super) const DATACENTER: &str = "dc1";

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Node {
    #[serde(rename = "ID")]
    id: String,
    node: String,
    address: String,
    datacenter: &'static str,
    tagged_addresses: BTreeMap<String, String>,
    meta: BTreeMap<String, String>,
    create_index: u64,
    modify_index: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Weights {
    passing: u16,
    warning: u16,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AgentService {
    #[serde(rename = "ID")]
    pub(super) id: String,
    service: String,
    tags: Vec<String>,
    meta: BTreeMap<String, String>,
    port: u16,
    address: String,
    tagged_addresses: Value,
    weights: Weights,
    #[serde(skip_serializing_if = "Option::is_none")]
    locality: Option<BTreeMap<&'static str, String>>,
    enable_tag_override: bool,
    create_index: u64,
    modify_index: u64,
    datacenter: &'static str,
    #[serde(skip)]
    instance_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Check {
    node: String,
    #[serde(rename = "CheckID")]
    pub(super) check_id: String,
    name: String,
    status: &'static str,
    notes: String,
    output: &'static str,
    #[serde(rename = "ServiceID")]
    service_id: String,
    service_name: String,
    service_tags: Vec<String>,
    #[serde(rename = "Type")]
    kind: &'static str,
    /// Interval and timeout of a probe, in Go's form; empty for a check without one.
    interval: String,
    timeout: String,
    /// Port of the mesh.
    exposed_port: u16,
    definition: Value,
    create_index: u64,
    modify_index: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ServiceEntry {
    node: Node,
    service: AgentService,
    checks: Vec<Check>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CatalogService {
    #[serde(rename = "ID")]
    id: String,
    node: String,
    address: String,
    datacenter: &'static str,
    tagged_addresses: BTreeMap<String, String>,
    node_meta: BTreeMap<String, String>,
    #[serde(rename = "ServiceID")]
    service_id: String,
    service_name: String,
    service_address: String,
    service_tagged_addresses: Value,
    service_tags: Vec<String>,
    service_meta: BTreeMap<String, String>,
    service_port: u16,
    service_weights: Weights,
    service_enable_tag_override: bool,
    create_index: u64,
    modify_index: u64,
}

/// Returns the name of an instance's node.
pub(super) fn node_name<'a>(kept: &'a Kept, own: &'a str) -> &'a str {
    if kept.node.is_empty() { own } else { &kept.node }
}

/// Returns the address of an instance's node, which defaults to the instance's own.
pub(super) fn node_address<'a>(instance: &'a Instance, kept: &'a Kept) -> &'a str {
    if kept.node_address.is_empty() { &instance.host } else { &kept.node_address }
}

/// Returns the worst health of an instance's checks and of its node's.
pub(super) fn worst(instance: &Instance) -> Health {
    if instance.is_withdrawn() { Health::Critical } else { instance.overall() }
}

/// True if the instance or its node is in maintenance. So is an instance of weight 0, which Consul's clients do not know.
pub(super) fn is_maintained(instance: &Instance) -> bool {
    instance.is_withdrawn() || instance.machines.iter().any(|machine| machine.isolate)
}

fn meta(instance: &Instance) -> BTreeMap<String, String> {
    let open = instance.metadata.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    open.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn weights(instance: &Instance, kept: &Kept) -> Weights {
    let passing = kept.passing_weight.filter(|_| instance.weight == u16::MAX);
    Weights {
        passing: passing.unwrap_or((instance.weight / WEIGHT_SCALE).max(1)),
        warning: kept.warning_weight.unwrap_or(1),
    }
}

/// Returns a service's location in Consul's form; `None` if none was given.
fn locality(instance: &Instance) -> Option<BTreeMap<&'static str, String>> {
    let (region, zone) = (&instance.location.region, &instance.location.zone);
    let said = !region.is_empty() || !zone.is_empty();
    said.then(|| BTreeMap::from([("Region", region.to_string()), ("Zone", zone.to_string())]))
}

/// Returns a service's tagged addresses: those of its registration, and as at Consul those of an agent's service in the networks of its address.
fn addresses(instance: &Instance, kept: &Kept) -> Value {
    let mut addresses = kept.tagged_addresses.clone().unwrap_or_else(|| json!({}));
    if kept.agent
        && let Some(addresses) = addresses.as_object_mut()
    {
        for net in nets(&instance.host).into_iter().filter(|net| net.contains('_')) {
            let own = json!({ "Address": &*instance.host, "Port": instance.port });
            addresses.entry(net).or_insert(own);
        }
    }
    addresses
}

/// Returns the tags of an address of a node.
fn nets(address: &str) -> Vec<String> {
    let family = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => "_ipv4",
        Ok(IpAddr::V6(_)) => "_ipv6",
        Err(_) => return vec!["lan".into(), "wan".into()],
    };
    ["lan", "wan"].iter().flat_map(|net| [(*net).to_owned(), format!("{net}{family}")]).collect()
}

/// Returns a time as Go's clients write it: `1m30s`.
fn go_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let rest = format_duration(time - Duration::from_secs(seconds / 60 * 60));
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

impl Node {
    pub(super) fn new(name: &str, address: &str, revision: u64) -> Node {
        Node {
            id: node_id(name),
            node: name.to_owned(),
            address: address.to_owned(),
            datacenter: DATACENTER,
            tagged_addresses: nets(address).into_iter().map(|net| (net, address.to_owned())).collect(),
            meta: BTreeMap::new(),
            create_index: revision,
            modify_index: revision,
        }
    }

    /// Returns the name, as it was registered.
    pub(super) fn name(&self) -> &str {
        &self.node
    }

    /// Creates the node of an instance from the attributes kept with it.
    pub(super) fn of(instance: &Instance, kept: &Kept, own: &str) -> Node {
        let mut node = Node::new(node_name(kept, own), node_address(instance, kept), instance.revision.0);
        node.create_index = kept.created(instance);
        node.meta.clone_from(&kept.node_meta);
        if !kept.agent {
            // A node of the catalog has the addresses that it was told; those of its networks are for older clients.
            node.tagged_addresses.retain(|net, _| !net.contains('_'));
        }
        node.tagged_addresses.extend(kept.node_tagged_addresses.clone());
        if !kept.node_id.is_empty() {
            node.id.clone_from(&kept.node_id);
        }
        node
    }
}

/// Returns a UUID derived from the name.
pub(super) fn node_id(name: &str) -> String {
    let hash = crate::api::hash_of(name);
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

impl AgentService {
    pub(super) fn new(instance: &Instance, kept: &Kept) -> AgentService {
        AgentService {
            id: in_consul(instance).to_owned(),
            service: instance.service.name().to_owned(),
            tags: kept.tags.clone(),
            meta: meta(instance),
            port: instance.port,
            address: instance.host.to_string(),
            tagged_addresses: addresses(instance, kept),
            weights: weights(instance, kept),
            locality: locality(instance),
            enable_tag_override: kept.enable_tag_override,
            create_index: kept.created(instance),
            modify_index: instance.revision.0,
            datacenter: DATACENTER,
            instance_id: instance.id.local().to_owned(),
        }
    }
}

/// Maps services by their ids. All agents are one here, so several hosts may share an id: then the `preferred` service has the id as its key, or else
/// the first one, and the others have their instance ids.
pub(super) fn by_id(services: impl Iterator<Item = (AgentService, bool)>) -> BTreeMap<String, AgentService> {
    let mut map: BTreeMap<String, AgentService> = BTreeMap::new();
    for (service, preferred) in services {
        let plain = preferred || !map.contains_key(&service.id);
        let key = if plain { service.id.clone() } else { service.instance_id.clone() };
        if let Some(other) = map.insert(key, service) {
            map.insert(other.instance_id.clone(), other);
        }
    }
    map
}

/// Returns the registered checks of an instance, and one for maintenance while it is withdrawn.
pub(super) fn checks(instance: &Instance, kept: &Kept, own_node: &str) -> Vec<Check> {
    let check = |check_id: String, name: String, status, notes: String, kind, definition| Check {
        node: node_name(kept, own_node).to_owned(),
        check_id,
        name,
        status,
        notes,
        output: "",
        service_id: in_consul(instance).to_owned(),
        service_name: instance.service.name().to_owned(),
        service_tags: kept.tags.clone(),
        kind,
        interval: String::new(),
        timeout: String::new(),
        exposed_port: 0,
        definition,
        create_index: kept.created(instance),
        modify_index: instance.revision.0,
    };
    let mut list = Vec::with_capacity(1);
    for held in checks::held(instance, kept) {
        let name = match held.name.as_str() {
            "" => format!("Service '{}' check", instance.service.name()),
            name => name.to_owned(),
        };
        let (kind, definition, pace) = definition(instance, &held);
        let (id, notes) = (held.id.clone(), held.notes.clone());
        list.push(check(id, name, status(held.health), notes, kind, definition).at(pace));
    }
    if instance.is_withdrawn() {
        let id = format!("_service_maintenance:{}", in_consul(instance));
        let name = "Service Maintenance Mode".into();
        list.push(check(id, name, "critical", reason(kept, NO_REASON[0]), "maintenance", json!({})));
    }
    list
}

/// Returns the checks of a node, and one for maintenance while the node is in it. They belong to no service.
pub(super) fn node_checks(machine: &Instance, kept: &Kept) -> Vec<Check> {
    let check = |check_id: String, name: String, status, notes: String, kind, definition| Check {
        node: kept.node.clone(),
        check_id,
        name,
        status,
        notes,
        output: "",
        service_id: String::new(),
        service_name: String::new(),
        service_tags: Vec::new(),
        kind,
        interval: String::new(),
        timeout: String::new(),
        exposed_port: 0,
        definition,
        create_index: kept.created(machine),
        modify_index: machine.revision.0,
    };
    let mut list = Vec::new();
    for held in checks::held(machine, kept) {
        let (kind, definition, pace) = definition(machine, &held);
        let (id, name, notes) = (held.id.clone(), held.name.clone(), held.notes.clone());
        list.push(check(id, name, status(held.health), notes, kind, definition).at(pace));
    }
    if machine.isolate {
        let (id, name) = ("_node_maintenance".into(), "Node Maintenance Mode".into());
        list.push(check(id, name, "critical", reason(kept, NO_REASON[1]), "maintenance", json!({})));
    }
    list
}

/// Returns the notes of a maintenance check.
fn reason(kept: &Kept, default: &str) -> String {
    if kept.reason.is_empty() { default.to_owned() } else { kept.reason.clone() }
}

/// Returns all checks that count for an instance: as at Consul, first those of its node, then its own.
pub(super) fn with_node_checks(instance: &Instance, kept: &Kept, own_node: &str) -> Vec<Check> {
    let mut list: Vec<Check> =
        instance.machines.iter().flat_map(|machine| node_checks(machine, &Kept::of(machine))).collect();
    list.extend(checks(instance, kept, own_node));
    list
}

/// Returns a check's type, its definition, and the pace of a probe.
fn definition<'a>(instance: &Instance, held: &'a checks::ServiceCheck) -> (&'static str, Value, Option<&'a Pace>) {
    let Some(check) = &held.check else { return ("", held.definition.clone().unwrap_or_else(|| json!({})), None) };
    let mut definition = serde_json::Map::new();
    let mut add = |key: &str, value: String| {
        definition.insert(key.to_owned(), Value::String(value));
    };
    let (mut secure, mut disable_redirects, mut asked) = (None, false, None);
    let (kind, pace) = match &check.kind {
        CheckKind::Ttl { .. } => ("ttl", None),
        CheckKind::Reported | CheckKind::Several { .. } => ("", None),
        CheckKind::Http { url, tls, no_redirects, request, pace } => {
            add("HTTP", url.clone());
            asked = request.as_deref();
            (secure, disable_redirects) = (tls.as_ref(), *no_redirects);
            ("http", Some(pace))
        }
        CheckKind::Alias { node, service, .. } => {
            for (key, name) in [("AliasNode", node), ("AliasService", service)] {
                if !name.is_empty() {
                    add(key, name.clone());
                }
            }
            ("alias", None)
        }
        CheckKind::H2ping { target, tls, pace } => {
            secure = tls.as_ref();
            add("H2PING", target.clone().unwrap_or_else(|| format!("{}:{}", instance.host, instance.port)));
            ("h2ping", Some(pace))
        }
        CheckKind::Tcp { target, tls, pace } => {
            secure = tls.as_ref();
            add("TCP", target.clone().unwrap_or_else(|| format!("{}:{}", instance.host, instance.port)));
            ("tcp", Some(pace))
        }
        CheckKind::Udp { target, message, pace } => {
            add("UDP", target.clone().unwrap_or_else(|| format!("{}:{}", instance.host, instance.port)));
            if !message.is_empty() {
                add("Body", message.clone());
            }
            ("udp", Some(pace))
        }
        CheckKind::Grpc { target, service, tls, pace } => {
            secure = tls.as_ref();
            let target = target.clone().unwrap_or_else(|| format!("{}:{}", instance.host, instance.port));
            add("GRPC", if service.is_empty() { target } else { format!("{target}/{service}") });
            ("grpc", Some(pace))
        }
        CheckKind::Postgres { pace, .. } => ("postgres", Some(pace)),
        CheckKind::Mysql { pace, .. } => ("mysql", Some(pace)),
        CheckKind::Redis { pace, .. } => ("redis", Some(pace)),
    };
    if let Some(pace) = pace {
        add("Interval", format_duration(pace.interval));
        add("Timeout", format_duration(pace.timeout));
    }
    if let Some(after) = check.deregister_after {
        add("DeregisterCriticalServiceAfter", format_duration(after));
    }
    if let Some(tls) = secure {
        if !tls.server_name.is_empty() {
            add("TLSServerName", tls.server_name.clone());
        }
        definition.insert("TLSSkipVerify".into(), tls.skip_verify.into());
        match kind {
            "grpc" => drop(definition.insert("GRPCUseTLS".into(), true.into())),
            "tcp" => drop(definition.insert("TCPUseTLS".into(), true.into())),
            _ => {}
        }
    }
    if let CheckKind::H2ping { tls, .. } = &check.kind {
        definition.insert("H2PingUseTLS".into(), tls.is_some().into());
    }
    if let Some(ProbeRequest { method, headers, body }) = asked {
        let mut header: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, value) in headers {
            header.entry(name).or_default().push(value);
        }
        definition.insert("Method".into(), method.as_str().into());
        definition.insert("Header".into(), json!(header));
        definition.insert("Body".into(), body.as_str().into());
    }
    if disable_redirects {
        definition.insert("DisableRedirects".into(), true.into());
    }
    (kind, Value::Object(definition), pace)
}

impl ServiceEntry {
    pub(super) fn new(instance: &Instance, own_node: &str) -> ServiceEntry {
        let kept = Kept::of(instance);
        ServiceEntry {
            node: Node::of(instance, &kept, own_node),
            checks: with_node_checks(instance, &kept, own_node),
            service: AgentService::new(instance, &kept),
        }
    }

    /// True if no check but the ignored ones is critical, or with `only_passing`, if all pass.
    pub(super) fn is_healthy(&self, only_passing: bool, ignored: &[String]) -> bool {
        let counts = self.checks.iter().filter(|check| !ignored.contains(&check.check_id));
        counts.into_iter().all(|check| check.is("passing") || (!only_passing && !check.is("critical")))
    }
}

impl CatalogService {
    pub(super) fn new(instance: &Instance, own_node: &str) -> CatalogService {
        let kept = Kept::of(instance);
        let Node { id, node, address, tagged_addresses, meta: node_meta, .. } = Node::of(instance, &kept, own_node);
        CatalogService {
            id,
            node,
            address,
            datacenter: DATACENTER,
            tagged_addresses,
            node_meta,
            service_id: in_consul(instance).to_owned(),
            service_name: instance.service.name().to_owned(),
            service_address: instance.host.to_string(),
            service_tagged_addresses: addresses(instance, &kept),
            service_tags: kept.tags.clone(),
            service_meta: meta(instance),
            service_port: instance.port,
            service_weights: weights(instance, &kept),
            service_enable_tag_override: kept.enable_tag_override,
            create_index: kept.created(instance),
            modify_index: instance.revision.0,
        }
    }
}

impl Check {
    /// Shows the pace of a probe.
    fn at(mut self, pace: Option<&Pace>) -> Check {
        if let Some(Pace { interval, timeout, .. }) = pace {
            (self.interval, self.timeout) = (go_duration(*interval), go_duration(*timeout));
        }
        self
    }

    /// True if the check has the status `status`.
    pub(super) fn is(&self, status: &str) -> bool {
        self.status == status
    }
}
