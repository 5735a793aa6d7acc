//! Checks of services: the form that Consul's clients send, the stored form, and the health of a service with several checks.
//!
//! This front uses a list of checks. In the core an instance without checks has no check, one with one check has that check, and one with more has
//! [`CheckKind::Several`]. [`held`] and [`assemble`] convert between the two forms; every change of a service's checks is made on the list in
//! between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::catalog::write;
use super::wire::{CHECK_ID, Described, Kept, Object, health};
use super::{Call, done, machine, no_such_service, same, wire};
use crate::api::identity::{self, in_consul};
use crate::api::{ApiError, Reply};
use crate::rights::{Access, Resource};
use crate::{
    Beat, Check, CheckKind, Edit, Health, Instance, InstanceCheck, InstanceId, MOST_CHECKS, Metadata, Pace,
    ProbeRequest, ProbeTls, Registration, machine_id,
};

/// Maximum length of the id of one of several checks: the id is part of an indexed metadata key.
const LONGEST_ID: usize = 100;

/// A check sent by a client.
#[derive(Debug, Clone, Default)]
pub(super) struct Probe {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) notes: String,
    /// The kind of check; `None` for a bare status, which a client updates.
    pub(super) check: Option<Check>,
    pub(super) status: Option<Health>,
    /// Id of the service, if the check itself names it.
    pub(super) service: String,
    /// Definition of a check of the catalog.
    pub(super) definition: Option<Value>,
}

/// A check of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceCheck {
    pub(super) id: String,
    /// Name of the check; if empty, Consul derives one from the service's name.
    pub(super) name: String,
    pub(super) notes: String,
    /// The kind of check, like [`Probe::check`].
    pub(super) check: Option<Check>,
    pub(super) health: Health,
    /// Definition of a check of the catalog.
    pub(super) definition: Option<Value>,
}

/// Keys that a check must not have, because the probe would differ from the client's intention. Keys without effect here are accepted: no output is
/// kept (`OutputMaxSize`).
const REFUSED: [&str; 6] = ["args", "scriptargs", "script", "dockercontainerid", "osservice", "failuresbeforewarning"];

/// Refusal of a check of two kinds.
const ONE_OF: &str = "Check: expected one of TTL, HTTP, TCP, UDP, GRPC, H2PING and an alias";

/// Parses the request of an HTTP check; `None` for a plain one.
fn request(object: &Object<'_>) -> Result<Option<Box<ProbeRequest>>, ApiError> {
    let wrong = || ApiError::bad("Check.Header: expected an object of lists of texts");
    let mut headers = Vec::new();
    if let Some(header) = object.get("header") {
        for (name, values) in header.as_object().ok_or_else(wrong)? {
            for value in values.as_array().ok_or_else(wrong)? {
                headers.push((name.clone(), value.as_str().ok_or_else(wrong)?.to_owned()));
            }
        }
    }
    let (method, body) = (object.text("method")?.to_owned(), object.text("body")?.to_owned());
    let request = ProbeRequest { method, headers, body };
    Ok((!request.is_plain()).then(|| Box::new(request)))
}

/// Parses a check.
pub(super) fn probe(value: &Value) -> Result<Probe, ApiError> {
    let object = Object::new(value, "Check")?;
    object.refuse(&REFUSED)?;
    let status =
        match object.text("status")? {
            "" => None,
            text => Some(health(text).ok_or_else(|| {
                ApiError::bad(format!("Check.Status {text:?}: expected passing, warning or critical"))
            })?),
        };
    // The number of all in a row, one more than Consul's number before.
    let more = |key: &str| -> Result<u8, ApiError> {
        let before = u8::try_from(object.number(key)?.unwrap_or(0)).ok().filter(|before| *before < 100);
        before.map(|before| before + 1).ok_or_else(|| ApiError::bad(format!("Check.{key}: expected at most 99")))
    };
    let default = Pace::default();
    let pace = Pace {
        // As at Consul, a shorter one is one second.
        interval: object.duration("interval")?.unwrap_or(default.interval).max(Duration::from_secs(1)),
        timeout: object.duration("timeout")?.unwrap_or(default.timeout),
        fall: more("failuresbeforecritical")?,
        rise: more("successbeforepassing")?,
    };
    let tls =
        ProbeTls { skip_verify: object.flag("tlsskipverify")?, server_name: object.text("tlsservername")?.to_owned() };
    let (udp, h2ping) = (object.text("udp")?, object.text("h2ping")?);
    let (alias_node, alias_service) = (object.text("aliasnode")?, object.text("aliasservice")?);
    let is_alias = !alias_node.is_empty() || !alias_service.is_empty();
    let kind = match (object.duration("ttl")?, object.text("http")?, object.text("tcp")?, object.text("grpc")?) {
        (None, "", "", "") if !udp.is_empty() && h2ping.is_empty() && !is_alias => {
            // The body is the datagram, as at Consul.
            let (target, message) = (Some(udp.to_owned()), object.text("body")?.to_owned());
            Some(CheckKind::Udp { target, message, pace })
        }
        (None, "", "", "") if udp.is_empty() && !h2ping.is_empty() && !is_alias => {
            // As at Consul, with TLS unless the client says otherwise.
            let in_clear = object.get("h2pingusetls").is_some() && !object.flag("h2pingusetls")?;
            let tls = (!in_clear).then_some(tls);
            Some(CheckKind::H2ping { target: Some(h2ping.to_owned()), tls, pace })
        }
        (None, "", "", "") if udp.is_empty() && h2ping.is_empty() && is_alias => {
            // The instance is found by whoever knows the client.
            let (node, service) = (alias_node.to_owned(), alias_service.to_owned());
            Some(CheckKind::Alias { instance: String::new(), node, service })
        }
        _ if !udp.is_empty() || !h2ping.is_empty() || is_alias => return Err(ApiError::bad(ONE_OF)),
        (None, "", "", "") => None,
        (Some(ttl), "", "", "") => Some(CheckKind::Ttl { ttl }),
        (None, url, "", "") => {
            // `http://` may redirect to `https://`.
            let tls = (url.starts_with("https://") || tls.skip_verify).then_some(tls);
            let (url, no_redirects) = (url.to_owned(), object.flag("disableredirects")?);
            Some(CheckKind::Http { url, tls, no_redirects, request: request(&object)?, pace })
        }
        (None, "", target, "") => {
            let tls = object.flag("tcpusetls")?.then_some(tls);
            Some(CheckKind::Tcp { target: Some(target.to_owned()), tls, pace })
        }
        (None, "", "", grpc) => {
            let (target, service) = grpc.split_once('/').unwrap_or((grpc, ""));
            let tls = object.flag("grpcusetls")?.then_some(tls);
            Some(CheckKind::Grpc { target: Some(target.to_owned()), service: service.to_owned(), tls, pace })
        }
        _ => return Err(ApiError::bad(ONE_OF)),
    };
    match kind {
        Some(CheckKind::Http { .. }) => {}
        Some(CheckKind::Udp { .. }) => object.refuse(&["header", "method"])?,
        _ => object.refuse(&["header", "body", "method"])?,
    }
    let speaks_tls = match &kind {
        Some(
            CheckKind::Http { tls, .. }
            | CheckKind::Grpc { tls, .. }
            | CheckKind::Tcp { tls, .. }
            | CheckKind::H2ping { tls, .. },
        ) => tls.is_some(),
        _ => false,
    };
    if !speaks_tls {
        object.refuse(&["tlsservername"])?;
    }
    for (key, fits) in [
        ("grpcusetls", matches!(kind, Some(CheckKind::Grpc { .. }))),
        ("tcpusetls", matches!(kind, Some(CheckKind::Tcp { .. }))),
        ("h2pingusetls", matches!(kind, Some(CheckKind::H2ping { .. }))),
    ] {
        if !fits {
            object.refuse(&[key])?;
        }
    }
    let deregister_after = object.duration("deregistercriticalserviceafter")?.filter(|after| !after.is_zero());
    // A standalone check has a `CheckID`; an agent's check/register has an `ID`.
    let id = match object.text("checkid")? {
        "" => object.text("id")?,
        id => id,
    };
    Ok(Probe {
        id: id.to_owned(),
        name: object.text("name")?.to_owned(),
        notes: object.text("notes")?.to_owned(),
        check: kind.map(|kind| Check { kind, deregister_after }),
        status,
        service: object.text("serviceid")?.to_owned(),
        definition: None,
    })
}

/// Parses the checks of a registration of the service `service`, in `Check` and `Checks`.
pub(super) fn of_service(object: &Object<'_>, service: &str) -> Result<Vec<Probe>, ApiError> {
    named(sent(object)?.into_iter().map(probe).collect::<Result<_, _>>()?, service)
}

/// Parses the checks of a registration in the catalog: those of services, and those of the node. A check is of a service only if it names one.
pub(super) fn of_catalog(object: &Object<'_>, node: &str) -> Result<(Vec<Probe>, Vec<Probe>), ApiError> {
    let mut probes = Vec::new();
    for value in sent(object)? {
        let mut probe = probe(value)?;
        let of = Object::new(value, "Check")?.text("node")?;
        if !of.is_empty() && !same(of, node) {
            return Err(ApiError::bad(format!("Check.Node {of:?}: the registration is of the node {node:?}")));
        }
        if probe.id.is_empty() {
            probe.id.clone_from(&probe.name);
        }
        if probe.id.is_empty() {
            return Err(ApiError::bad("Check: expected CheckID, or Name"));
        }
        // The client that writes to the catalog also updates the status: nothing is probed.
        probe.check = None;
        let definition = Object::new(value, "Check")?.get("definition");
        probe.definition = definition.filter(|value| value.as_object().is_some_and(|map| !map.is_empty())).cloned();
        probes.push(probe);
    }
    named_apart(&probes)?;
    Ok(probes.into_iter().partition(|probe| !probe.service.is_empty()))
}

/// Returns the values of `Check` and `Checks`.
fn sent<'a>(object: &Object<'a>) -> Result<Vec<&'a Value>, ApiError> {
    let mut list: Vec<&Value> = object.get("check").into_iter().collect();
    if let Some(more) = object.get("checks") {
        list.extend(more.as_array().ok_or_else(|| ApiError::bad("Checks: expected a list"))?);
    }
    // Some clients send an empty object for no check.
    list.retain(|value| value.as_object().is_none_or(|map| !map.is_empty()));
    Ok(list)
}

/// Rejects two checks with the same id.
fn named_apart(probes: &[Probe]) -> Result<(), ApiError> {
    for (n, probe) in probes.iter().enumerate() {
        if probes[..n].iter().any(|other| other.id == probe.id) {
            return Err(ApiError::bad(format!("Checks: the CheckID {:?} is there twice", probe.id)));
        }
    }
    Ok(())
}

/// Gives checks without an id Consul's default: `service:ID`, or of several `service:ID:1`, `service:ID:2` ….
///
/// # Errors
/// Two checks have the same id, or there are too many.
pub(super) fn named(mut probes: Vec<Probe>, service: &str) -> Result<Vec<Probe>, ApiError> {
    let many = probes.len() > 1;
    for (n, probe) in probes.iter_mut().enumerate().filter(|(_, probe)| probe.id.is_empty()) {
        probe.id = if many { format!("service:{service}:{}", n + 1) } else { format!("service:{service}") };
    }
    named_apart(&probes)?;
    within_limits(probes.iter().map(|probe| probe.id.as_str()))?;
    Ok(probes)
}

/// Rejects more checks than an instance may have, and ids that are too long for one of several.
pub(super) fn within_limits<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), ApiError> {
    let many = ids.len();
    if many > MOST_CHECKS {
        return Err(ApiError::bad(format!("Checks: {many} of them, expected at most {MOST_CHECKS} a service")));
    }
    for id in ids {
        if many > 1 && id.len() > LONGEST_ID {
            return Err(ApiError::bad(format!(
                "CheckID {id:?}: expected at most {LONGEST_ID} bytes of one of several"
            )));
        }
    }
    Ok(())
}

/// Finds the instances of aliases: a service of the client's own agent unless the check names a node, or a node.
///
/// # Errors
/// The caller may not read the other instance, or it is `own`, the instance of the checks.
pub(super) async fn find_aliased(
    call: &Call<'_>,
    probes: &mut [Probe],
    own: Option<&InstanceId>,
) -> Result<(), ApiError> {
    for probe in probes {
        let Some(Check { kind: CheckKind::Alias { instance, node, service }, .. }) = &mut probe.check else { continue };
        let id = match (node.as_str(), service.as_str()) {
            (node, "") => machine_id(&call.namespace, node)?,
            // It may be registered later.
            ("", service) => match call.agent_service(service).await {
                Ok(found) => found.id.clone(),
                Err(_) => identity::consul(&call.namespace, &call.peer(), service)?,
            },
            (node, service) => identity::consul(&call.namespace, node, service)?,
        };
        if own == Some(&id) {
            return Err(ApiError::bad("Check.AliasService: expected another service than the check's own"));
        }
        if let Some(other) = call.context.registry.instance(&id) {
            call.context.needs_found(&call.caller, Access::Read, &other)?;
        }
        id.local().clone_into(instance);
    }
    Ok(())
}

/// Returns the checks of an instance.
pub(super) fn held(instance: &Instance, kept: &Kept) -> Vec<ServiceCheck> {
    match instance.check.as_deref() {
        Some(Check { kind: CheckKind::Several { checks }, .. }) => {
            let one = |part: &InstanceCheck| {
                let described = kept.checks.get(&part.id).cloned().unwrap_or_default();
                ServiceCheck {
                    id: part.id.clone(),
                    name: described.name,
                    notes: described.notes,
                    check: Some(part.check.clone()).filter(|check| check.kind != CheckKind::Reported),
                    health: part.health.unwrap_or_default(),
                    definition: described.definition,
                }
            };
            checks.iter().map(one).collect()
        }
        check
            if check.is_some()
                || instance.health != Health::Passing
                || !kept.check_name.is_empty()
                || instance.metadata.get(CHECK_ID).is_some() =>
        {
            let id = match instance.metadata.get(CHECK_ID) {
                Some(id) => id.to_owned(),
                None => format!("service:{}", in_consul(instance)),
            };
            let (name, notes) = (kept.check_name.clone(), kept.notes.clone());
            let (check, definition) = (check.cloned(), kept.definition.clone());
            vec![ServiceCheck { id, name, notes, check, health: instance.health, definition }]
        }
        _ => Vec::new(),
    }
}

/// True if an instance has the check `id`.
pub(super) fn has(instance: &Instance, id: &str) -> bool {
    held(instance, &Kept::of(instance)).iter().any(|held| held.id == id)
}

/// Returns the checks of a service that had `before` and is registered with `probes`: as at Consul, a check that the registration does not name is
/// kept, unless all are to be `replaced`. A bare status is never kept. A known check keeps its health if `stays`, else only where the registration
/// gives no status.
///
/// # Errors
/// There are too many checks.
pub(super) fn registered(
    probes: &[Probe],
    before: Vec<ServiceCheck>,
    replaced: bool,
    stays: bool,
) -> Result<Vec<ServiceCheck>, ApiError> {
    let health = |probe: &Probe| {
        let known = before.iter().find(|held| held.id == probe.id).map(|held| held.health);
        if let Some(known) = known.filter(|_| stays && probe.check.is_some()) {
            return known;
        }
        // A new check is critical until its first report, as at Consul.
        let new = if probe.check.is_some() { Health::Critical } else { Health::Passing };
        probe.status.or(known).unwrap_or(new)
    };
    let mut after: Vec<ServiceCheck> = probes
        .iter()
        .map(|probe| ServiceCheck {
            id: probe.id.clone(),
            name: probe.name.clone(),
            notes: probe.notes.clone(),
            check: probe.check.clone(),
            health: health(probe),
            definition: probe.definition.clone(),
        })
        .collect();
    if !replaced {
        let remains = |held: &ServiceCheck| held.check.is_some() && !probes.iter().any(|probe| probe.id == held.id);
        after.extend(before.into_iter().filter(remains));
    }
    within_limits(after.iter().map(|held| held.id.as_str()))?;
    Ok(after)
}

/// Returns the check and the health of an instance with these checks, for the core. Attributes that only Consul has go into `kept`.
pub(super) fn assemble(list: &[ServiceCheck], kept: &mut Kept) -> (Option<Check>, Health) {
    (kept.check_name, kept.notes, kept.checks, kept.definition) = Default::default();
    let worst = list.iter().map(|held| held.health).max().unwrap_or_default();
    match list {
        [] => (None, Health::Passing),
        [one] => {
            kept.check_name.clone_from(&one.name);
            kept.notes.clone_from(&one.notes);
            kept.definition.clone_from(&one.definition);
            (one.check.clone(), worst)
        }
        several => {
            let described = several.iter().map(|held| {
                let (name, notes, definition) = (held.name.clone(), held.notes.clone(), held.definition.clone());
                (held.id.clone(), Described { name, notes, definition })
            });
            kept.checks = described.filter(|(_, described)| *described != Described::default()).collect();
            let part = |held: &ServiceCheck| {
                let reported = Check { kind: CheckKind::Reported, deregister_after: None };
                let check = held.check.clone().unwrap_or(reported);
                InstanceCheck { id: held.id.clone(), health: Some(held.health), check }
            };
            let kind = CheckKind::Several { checks: several.iter().map(part).collect() };
            (Some(Check { kind, deregister_after: None }), worst)
        }
    }
}

/// Writes into the metadata what the model lacks: `kept`, the node, and the ids by which the checks of the service `id` are found.
pub(super) fn keep(meta: &mut BTreeMap<String, String>, kept: &Kept, id: &str, checks: &[ServiceCheck]) {
    meta.retain(|key, _| key.strip_prefix(CHECK_ID).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('.')));
    match *kept == Kept::default() {
        true => meta.remove(wire::KEPT),
        false => meta.insert(wire::KEPT.into(), serde_json::to_string(kept).unwrap_or_default()),
    };
    match kept.node.as_str() {
        "" => meta.remove(crate::ON),
        node => meta.insert(crate::ON.into(), node.to_owned()),
    };
    match checks {
        [] => {}
        [one] if one.id == format!("service:{id}") => {}
        [one] => drop(meta.insert(CHECK_ID.into(), one.id.clone())),
        several => meta.extend(several.iter().filter(|one| !is_numbered(&one.id, id)).map(|one| index_entry(&one.id))),
    }
}

/// Returns the metadata of an instance with `kept` in place of what was kept, and with the entries of its checks.
pub(super) fn metadata_with(instance: &Instance, kept: &Kept, checks: &[ServiceCheck]) -> Result<Metadata, ApiError> {
    let mut meta: BTreeMap<String, String> =
        instance.metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    keep(&mut meta, kept, in_consul(instance), checks);
    wire::within_own_bytes(&meta)?;
    Ok(Metadata::from_pairs(&meta)?)
}

/// Returns the metadata entry by which one of several checks is found.
fn index_entry(check: &str) -> (String, String) {
    (format!("{CHECK_ID}.{check}"), "1".to_owned())
}

/// True if the id of the check `check` is `service:ID` or `service:ID:N`, so that it is found by the service `service`.
fn is_numbered(check: &str, service: &str) -> bool {
    let rest = check.strip_prefix("service:").and_then(|rest| rest.strip_prefix(service));
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(|n| n.parse::<usize>().is_ok()))
}

/// Returns the instance that a check belongs to.
pub(super) async fn owner(call: &Call<'_>, check: &str) -> Result<Arc<Instance>, ApiError> {
    if let Some(id) = check.strip_prefix("service:") {
        match call.agent_service(id).await {
            // A check's own id may begin so, too, and the check may be one of several.
            Err(ApiError::Missing(_)) => {}
            found => return found,
        }
        if let Some((id, _)) = id.rsplit_once(':').filter(|(id, _)| is_numbered(check, id)) {
            match call.agent_service(id).await {
                Err(ApiError::Missing(_)) => {}
                found => return found,
            }
        }
    }
    if let Some(instance) = of_own_node(call, check)? {
        return Ok(instance);
    }
    if let Some(instance) = known(call, check)? {
        return Ok(instance);
    }
    // Another node may just have registered the check: a query for any instance brings this node up to the store's state.
    let any = identity::consul(&call.namespace, &call.peer(), check)?;
    call.context.registry.instance_or_ask(&any).await;
    if let Some(instance) = of_own_node(call, check)? {
        return Ok(instance);
    }
    known(call, check)?.ok_or_else(|| no_such_check(check))
}

/// Returns the node of the client's host, if it has the check: any number of hosts may have a check with one id.
fn of_own_node(call: &Call<'_>, check: &str) -> Result<Option<Arc<Instance>>, ApiError> {
    let machine = call.context.registry.instance(&machine_id(&call.namespace, &call.peer())?);
    Ok(machine.filter(|machine| has(machine, check)))
}

/// Returns the instance of a check with an id of its own, from this node's state.
fn known(call: &Call<'_>, check: &str) -> Result<Option<Arc<Instance>>, ApiError> {
    if let Some(instance) = call.choose("check ID", check, CHECK_ID, check)? {
        return Ok(Some(instance));
    }
    let (key, value) = index_entry(check);
    call.choose("check ID", check, &key, &value)
}

fn no_such_check(check: &str) -> ApiError {
    // In Consul's words: its clients look for them.
    let text = format!("Unknown check ID {check:?}. Ensure that the check ID is passed, not the check name.");
    ApiError::Missing(text)
}

/// Reports the status of a check.
pub(super) async fn report(call: &Call<'_>, check: &str, health: Health) -> Result<Reply, ApiError> {
    call.writes()?;
    let instance = owner(call, check).await?;
    call.changes(&instance)?;
    let list = held(&instance, &Kept::of(&instance));
    let one = list.iter().find(|held| held.id == check).ok_or_else(|| no_such_check(check))?;
    if one.check.as_ref().is_some_and(|check| !check.is_reported()) {
        return Err(ApiError::bad(format!("the check {check:?} has no TTL: the registry itself probes it")));
    }
    let registry = &call.context.registry;
    let is_several = list.len() > 1;
    // The usual report costs no write.
    if health == Health::Passing && one.health == Health::Passing {
        let beat = match one.check {
            // A bare status has no TTL to extend.
            None => Beat::Known,
            Some(_) if is_several => registry.heartbeat_of_check(&instance.id, check).await,
            Some(_) => registry.heartbeat(std::slice::from_ref(&instance.id)).await.pop().unwrap_or(Beat::Unknown),
        };
        if beat == Beat::Known {
            return Ok(done());
        }
    }
    match is_several {
        true => registry.report_check(&instance.id, check, health).await?,
        false => write(registry.report(&[(instance.id.clone(), health)]).await)?,
    };
    Ok(done())
}

/// Serves `/v1/agent/check/register`.
pub(super) async fn register(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    let service = Object::new(&body, "the body")?.text("serviceid")?;
    let mut probe = probe(&body)?;
    if probe.id.is_empty() {
        probe.id.clone_from(&probe.name);
    }
    if probe.id.is_empty() {
        return Err(ApiError::bad("expected Name, or an ID"));
    }
    if service.is_empty() {
        find_aliased(call, std::slice::from_mut(&mut probe), None).await?;
        let fields = machine::NodeFields::of_agent(call);
        call.needs(Access::Write, Resource::node(&fields.name))?;
        machine::change(call, &fields, false, |after| {
            Ok(machine::After { checks: machine::with_checks(std::slice::from_ref(&probe), after.checks)?, ..after })
        })
        .await?;
        call.audit("agent/check/register", &probe.id);
        return Ok(done());
    }
    let instance = call.agent_service(service).await?;
    call.changes(&instance)?;
    find_aliased(call, std::slice::from_mut(&mut probe), Some(&instance.id)).await?;
    change(call, &instance.id, |list| registered(std::slice::from_ref(&probe), list, false, false)).await?;
    call.audit("agent/check/register", service);
    Ok(done())
}

/// Serves `/v1/agent/check/deregister/ID`.
pub(super) async fn deregister(call: &Call<'_>, check: &str) -> Result<Reply, ApiError> {
    call.writes()?;
    let instance = owner(call, check).await?;
    call.changes(&instance)?;
    remove(call, &instance, check).await?;
    call.audit("agent/check/deregister", check);
    Ok(done())
}

/// Removes a check from a service, or from a node.
pub(super) async fn remove(call: &Call<'_>, instance: &Instance, check: &str) -> Result<(), ApiError> {
    let without = |mut list: Vec<ServiceCheck>| {
        let before = list.len();
        list.retain(|held| held.id != check);
        if list.len() == before { Err(no_such_check(check)) } else { Ok(list) }
    };
    if instance.id.is_of_machine() {
        return machine::change(call, &machine::NodeFields::known(instance), true, |after| {
            Ok(machine::After { checks: without(after.checks)?, ..after })
        })
        .await;
    }
    change(call, &instance.id, without).await
}

/// Replaces an instance's checks by the result of `decide`, which is called with the present ones.
pub(super) async fn change(
    call: &Call<'_>,
    id: &InstanceId,
    decide: impl Fn(Vec<ServiceCheck>) -> Result<Vec<ServiceCheck>, ApiError>,
) -> Result<(), ApiError> {
    let change = call.context.registry.change(id, |instance| {
        let missing = || no_such_service(id.local());
        let instance = instance.ok_or_else(missing)?;
        let mut kept = Kept::of(instance);
        let list = decide(held(instance, &kept))?;
        let (check, health) = assemble(&list, &mut kept);
        let registration = Registration {
            metadata: metadata_with(instance, &kept, &list)?,
            check,
            health: Some(health),
            ..Registration::of(instance)
        };
        Ok::<_, ApiError>(Edit::Register(Box::new(registration)))
    });
    change.await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::ServiceKey;

    fn probe_of(id: &str, status: Option<Health>) -> Probe {
        let check = Some(Check::ttl(Duration::from_secs(10)));
        Probe { id: id.into(), name: format!("name of {id}"), check, status, ..Probe::default() }
    }

    fn ids(list: &[ServiceCheck]) -> Vec<(&str, Health)> {
        list.iter().map(|held| (held.id.as_str(), held.health)).collect()
    }

    fn definition() -> Value {
        serde_json::json!({ "HTTP": "http://h/", "Interval": "10s" })
    }

    /// Checks put into the core are read back unchanged: none, one and several.
    #[test]
    fn there_and_back() {
        let id = InstanceId::parse("default/consul:web@n1").unwrap();
        for (sent, expected_keys) in [
            (vec![], vec![]),
            (vec![probe_of("service:web", Some(Health::Warning))], vec![]),
            (vec![probe_of("mine", None)], vec!["kingpost.check"]),
            (
                vec![Probe { check: None, definition: Some(definition()), ..probe_of("mine", None) }],
                vec!["kingpost.check"],
            ),
            (
                vec![probe_of("a", None), Probe { check: None, definition: Some(definition()), ..probe_of("b", None) }],
                vec!["kingpost.check.a", "kingpost.check.b"],
            ),
            (
                vec![probe_of("service:web:1", None), probe_of("b", Some(Health::Passing)), probe_of("c", None)],
                vec!["kingpost.check.b", "kingpost.check.c"],
            ),
        ] {
            let list = registered(&sent, Vec::new(), false, true).unwrap();
            let mut kept = Kept::default();
            let (check, health) = assemble(&list, &mut kept);
            let mut meta = BTreeMap::from([
                (crate::api::identity::CLIENT_ID.to_owned(), "web".to_owned()),
                ("kingpost.check.old".to_owned(), "1".to_owned()),
            ]);
            keep(&mut meta, &kept, "web", &list);
            let keys: Vec<&str> = meta.keys().map(String::as_str).filter(|key| key.starts_with(CHECK_ID)).collect();
            assert_eq!(keys, expected_keys);
            let registration = Registration {
                metadata: Metadata::from_pairs(&meta).unwrap(),
                check,
                health: Some(health),
                ..Registration::new(id.clone(), ServiceKey::parse("default/web").unwrap(), "h", 1)
            };
            let instance = Instance::registered(registration, None);
            assert_eq!(held(&instance, &Kept::of(&instance)), list);
            assert_eq!(instance.health, list.iter().map(|held| held.health).max().unwrap_or_default());
        }
    }

    #[test]
    fn what_a_registration_leaves() {
        use Health::{Critical as C, Passing as P, Warning as W};
        let two = registered(&[probe_of("a", Some(P)), probe_of("b", Some(W))], Vec::new(), false, true).unwrap();
        for (sent, replaced, after) in [
            (vec![probe_of("a", None)], false, vec![("a", P), ("b", W)]),
            (vec![probe_of("b", None)], true, vec![("b", W)]),
            (vec![probe_of("c", None)], false, vec![("c", C), ("a", P), ("b", W)]),
            (vec![], false, vec![("a", P), ("b", W)]),
            (vec![], true, vec![]),
        ] {
            assert_eq!(ids(&registered(&sent, two.clone(), replaced, true).unwrap()), after);
        }
        // A service's registration leaves the health of a known check, a check's own sets it.
        let critical = [probe_of("a", Some(C))];
        assert_eq!(ids(&registered(&critical, two.clone(), true, true).unwrap()), [("a", P)]);
        assert_eq!(ids(&registered(&critical, two.clone(), true, false).unwrap()), [("a", C)]);
        let many: Vec<Probe> = (0..MOST_CHECKS).map(|n| probe_of(&n.to_string(), None)).collect();
        assert!(registered(&many, two, false, true).is_err() && registered(&many, Vec::new(), false, true).is_ok());
    }

    #[test]
    fn ids_that_consul_gives() {
        let given = |ids: &[&str]| {
            let probes = ids.iter().map(|id| probe_of(id, None)).collect();
            named(probes, "web").map(|probes| probes.into_iter().map(|probe| probe.id).collect::<Vec<_>>())
        };
        assert_eq!(given(&[""]).unwrap(), ["service:web"]);
        assert_eq!(given(&["", "x", ""]).unwrap(), ["service:web:1", "x", "service:web:3"]);
        assert!(given(&["x", "x"]).is_err());
        for (check, service, numbered) in [
            ("service:web:1", "web", true),
            ("service:web", "web", true),
            ("service:web:x", "web", false),
            ("service:webs", "web", false),
            ("web:1", "web", false),
        ] {
            assert_eq!(is_numbered(check, service), numbered, "{check}");
        }
    }

    #[test]
    fn probes_over_tls() {
        let read = |json: serde_json::Value| probe(&json).unwrap().check.unwrap().kind;
        let tls = |skip_verify, server_name: &str| Some(ProbeTls { skip_verify, server_name: server_name.into() });
        for (sent, expected) in [
            (serde_json::json!({"HTTP": "http://h/", "TLSSkipVerify": true}), tls(true, "")),
            (serde_json::json!({"HTTP": "https://h/"}), tls(false, "")),
            (serde_json::json!({"HTTP": "https://h/", "TLSSkipVerify": true}), tls(true, "")),
            (serde_json::json!({"http": "https://h/", "tls_server_name": "x"}), tls(false, "x")),
            (serde_json::json!({"GRPC": "h:1", "TLSSkipVerify": true}), None),
            (serde_json::json!({"GRPC": "h:1/s", "GRPCUseTLS": true, "TLSServerName": "x"}), tls(false, "x")),
            (serde_json::json!({"TCP": "h:1", "TLSSkipVerify": true}), None),
            (serde_json::json!({"TCP": "h:1", "TCPUseTLS": true, "TLSServerName": "x"}), tls(false, "x")),
            (serde_json::json!({"H2PING": "h:1"}), tls(false, "")),
            (serde_json::json!({"H2PING": "h:1", "H2PingUseTLS": true, "TLSSkipVerify": true}), tls(true, "")),
            (serde_json::json!({"h2ping": "h:1", "h2ping_use_tls": false}), None),
        ] {
            let (CheckKind::Http { tls: found, .. }
            | CheckKind::Grpc { tls: found, .. }
            | CheckKind::Tcp { tls: found, .. }
            | CheckKind::H2ping { tls: found, .. }) = read(sent)
            else {
                panic!("another kind")
            };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn requests_of_probes() {
        let read = |json: serde_json::Value| match probe(&json).map(|probe| probe.check.unwrap().kind) {
            Ok(CheckKind::Http { request, .. }) => Ok(request),
            Ok(_) => panic!("another kind"),
            Err(error) => Err(error.to_string()),
        };
        let all = serde_json::json!({"HTTP": "/up", "Method": "POST", "Header": {"X-A": ["1", "2"]}, "Body": "{}"});
        let headers = vec![("X-A".to_owned(), "1".to_owned()), ("X-A".into(), "2".into())];
        let expected = ProbeRequest { method: "POST".into(), headers, body: "{}".into() };
        assert_eq!(read(all).unwrap().as_deref(), Some(&expected));
        for plain in
            [serde_json::json!({"HTTP": "/up"}), serde_json::json!({"HTTP": "/up", "Method": "GET", "Header": {}})]
        {
            assert_eq!(read(plain).unwrap(), None);
        }
        for bad in [
            serde_json::json!({"TCP": "h:1", "Header": {"X": ["1"]}}),
            serde_json::json!({"TTL": "10s", "Method": "POST"}),
            serde_json::json!({"TTL": "10s", "TCPUseTLS": true}),
            serde_json::json!({"TCP": "h:1", "H2PingUseTLS": true}),
            serde_json::json!({"H2PING": "h:1", "UDP": "h:1"}),
            serde_json::json!({"H2PING": "h:1", "H2PingUseTLS": false, "TLSServerName": "x"}),
            serde_json::json!({"AliasService": "web", "TTL": "10s"}),
            serde_json::json!({"HTTP": "/up", "Header": {"X": "1"}}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
