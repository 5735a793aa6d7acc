//! `/v1/agent/…`: what a service says of itself, and what the agent knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::catalog::write;
use super::entry::{self, AgentService, Check, DATACENTER};
use super::wire::{self, CHECK_ID, Kept, Object, Probe, status};
use super::{Call, done, registration_of};
use crate::api::{ApiError, Reply};
use crate::{Beat, CheckKind, Health, Instance, Metadata, Patch, Registration};

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    match path {
        ["service", "register"] => register(call).await,
        ["service", "deregister", id] => {
            call.writes()?;
            write(call.context.registry.deregister(&[call.id(id)?]).await)?;
            call.audit("agent/service/deregister", id);
            Ok(done())
        }
        ["service", "maintenance", id] => maintenance(call, id).await,
        ["check", "register"] => register_check(call).await,
        ["check", "deregister", id] => deregister_check(call, id).await,
        ["check", how @ ("pass" | "warn" | "fail"), id] => {
            let health = match *how {
                "pass" => Health::Passing,
                "warn" => Health::Warning,
                _ => Health::Critical,
            };
            report(call, id, health).await
        }
        ["check", "update", id] => {
            call.writes()?;
            let body: Value = call.request.json()?;
            let name = Object::new(&body, "the body")?.text("status")?;
            let health = wire::health(name)
                .ok_or_else(|| ApiError::bad(format!("Status {name:?}: expected passing, warning or critical")))?;
            report(call, id, health).await
        }
        _ => {
            call.reads()?;
            read(call, path)
        }
    }
}

fn read(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    let own = call.context.node.as_str();
    match path {
        ["self"] => Ok(Reply::ok(&json!({
            "Config": {
                "Datacenter": DATACENTER,
                "PrimaryDatacenter": DATACENTER,
                "NodeName": own,
                "NodeID": entry::node_id(own),
                "Server": true,
                "Revision": "",
                "Version": env!("CARGO_PKG_VERSION"),
            },
            "Member": member(own),
            "Meta": {},
        }))),
        ["members"] => Ok(Reply::ok(&[member(own)])),
        ["version"] => Ok(Reply::ok(&json!({ "HumanVersion": env!("CARGO_PKG_VERSION") }))),
        ["services"] => {
            let services: BTreeMap<String, AgentService> = own_instances(call)
                .iter()
                .map(|(instance, kept)| AgentService::new(instance, kept))
                .filter(|service| call.fits(service))
                .map(|service| (service.id.clone(), service))
                .collect();
            Ok(Reply::ok(&services))
        }
        ["service", id] => {
            let instance = instance(call, id)?;
            Ok(Reply::ok(&AgentService::new(&instance, &Kept::of(&instance))))
        }
        ["checks"] => {
            let checks: BTreeMap<String, Check> = own_instances(call)
                .iter()
                .flat_map(|(instance, kept)| entry::checks(instance, kept, own))
                .filter(|check| call.fits(check))
                .map(|check| (check.check_id.clone(), check))
                .collect();
            Ok(Reply::ok(&checks))
        }
        ["health", "service", "id", id] => {
            let instance = instance(call, id)?;
            Ok(judged(call, &[&instance]))
        }
        ["health", "service", "name", name] => {
            let snapshot = call.context.registry.snapshot(&call.service(name)?);
            match snapshot.filter(|snapshot| !snapshot.instances.is_empty()) {
                Some(snapshot) => {
                    let list: Vec<&Arc<Instance>> = snapshot.instances.iter().collect();
                    Ok(judged(call, &list))
                }
                None => Err(ApiError::NotFound { what: "service", name: (*name).to_owned() }),
            }
        }
        _ => Err(call.no_such_path()),
    }
}

fn member(own: &str) -> Value {
    json!({ "Name": own, "Addr": "127.0.0.1", "Port": 8301, "Status": 1, "Tags": { "dc": DATACENTER, "role": "consul" } })
}

/// The instances of this node, which all of our nodes are.
fn own_instances(call: &Call<'_>) -> Vec<(Arc<Instance>, Kept)> {
    let all = call.instances().into_iter().map(|instance| {
        let kept = Kept::of(&instance);
        (instance, kept)
    });
    all.filter(|(_, kept)| kept.node.is_empty()).collect()
}

/// Health as a status code: 200 passing, 429 warning, 503 critical.
fn judged(call: &Call<'_>, list: &[&Arc<Instance>]) -> Reply {
    let worst = list.iter().map(|instance| entry::worst(instance)).max().unwrap_or_default();
    let code = match worst {
        Health::Passing => StatusCode::OK,
        Health::Warning => StatusCode::TOO_MANY_REQUESTS,
        Health::Critical => StatusCode::SERVICE_UNAVAILABLE,
    };
    if call.request.param("format") == Some("text") {
        return Reply::text(code, status(worst));
    }
    let shown: Vec<Value> = list
        .iter()
        .map(|instance| {
            let kept = Kept::of(instance);
            json!({
                "AggregatedStatus": status(entry::worst(instance)),
                "Service": AgentService::new(instance, &kept),
                "Checks": entry::checks(instance, &kept, &call.context.node),
            })
        })
        .collect();
    match shown.as_slice() {
        [one] if call.request.segments.get(4).is_some_and(|by| by == "id") => Reply::json(code, one),
        list => Reply::json(code, &list),
    }
}

fn instance(call: &Call<'_>, id: &str) -> Result<Arc<Instance>, ApiError> {
    let missing = || ApiError::NotFound { what: "service ID", name: id.to_owned() };
    call.context.registry.instance(&call.id(id)?).ok_or_else(missing)
}

async fn register(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    let read = wire::service(&body, "name")?;
    let id = call.id(&read.id)?;
    let known = call.context.registry.instance(&id).map(|instance| instance.health);
    // An agent without an address of its own: the one that the service itself came from.
    let host = if read.address.is_empty() { call.request.peer.to_string() } else { read.address };
    let registration = Registration {
        weight: read.weight,
        metadata: read.metadata,
        health: first_health(read.check.as_ref(), known),
        check: read.check.and_then(|check| check.check),
        ..Registration::new(id, call.service(&read.name)?, &host, read.port)
    };
    if write(call.context.registry.register(vec![registration]).await)?.changed() {
        call.audit("agent/service/register", &read.id);
    }
    Ok(done())
}

/// The health that a registration brings: what it says; else a new check is critical until it was heard of, as with Consul,
/// and one that was there keeps its status, `known`. Where the instance itself reports it is said in so many words: to the
/// core a registration that says nothing is a heartbeat, and makes passing what has reported that it is not.
fn first_health(check: Option<&Probe>, known: Option<Health>) -> Option<Health> {
    match check {
        None => Some(Health::Passing),
        Some(Probe { status: Some(status), .. }) => Some(*status),
        Some(Probe { check: Some(_), .. }) if known.is_none() => Some(Health::Critical),
        Some(Probe { check: Some(check), .. }) if check.time_to_live().is_some() => known,
        Some(_) => None,
    }
}

async fn maintenance(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.writes()?;
    let isolate = match call.request.param("enable").map(str::to_ascii_lowercase).as_deref() {
        Some("true") => true,
        Some("false") => false,
        found => return Err(ApiError::bad(format!("enable={}: expected true or false", found.unwrap_or_default()))),
    };
    let patch = Patch { isolate: Some(isolate), ..Patch::default() };
    write(call.context.registry.update(vec![(call.id(id)?, patch)]).await)?;
    call.audit(if isolate { "maintenance on" } else { "maintenance off" }, id);
    Ok(done())
}

/// The instance that a check belongs to.
async fn checked(call: &Call<'_>, check: &str) -> Result<Arc<Instance>, ApiError> {
    let registry = &call.context.registry;
    if let Some(id) = check.strip_prefix("service:")
        && let Some(instance) = registry.instance_or_ask(&call.id(id)?).await
    {
        return Ok(instance);
    }
    let found = registry.find(&call.namespace, &[(CHECK_ID, check)], 1);
    let missing = || ApiError::NotFound { what: "check ID", name: check.to_owned() };
    found.instances.into_iter().next().ok_or_else(missing)
}

async fn report(call: &Call<'_>, check: &str, health: Health) -> Result<Reply, ApiError> {
    call.writes()?;
    let instance = checked(call, check).await?;
    if instance.check.as_ref().is_some_and(|check| !matches!(check.kind, CheckKind::Ttl { .. })) {
        return Err(ApiError::bad(format!("the check {check:?} has no TTL: the registry itself probes it")));
    }
    let registry = &call.context.registry;
    // What is usual costs no write.
    if health == Health::Passing && instance.health == Health::Passing {
        let id = [instance.id.clone()];
        if registry.heartbeat(&id).await.first() == Some(&Beat::Known) {
            return Ok(done());
        }
    }
    write(registry.report(&[(instance.id.clone(), health)]).await)?;
    Ok(done())
}

async fn register_check(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    let object = Object::new(&body, "the body")?;
    let service = object.text("serviceid")?;
    if service.is_empty() {
        return Err(ApiError::bad("ServiceID is missing: checks of the node are not supported"));
    }
    let mut probe = wire::probe(&body)?;
    if probe.id.is_empty() {
        probe.id.clone_from(&probe.name);
    }
    let instance = instance(call, service)?;
    if instance.check.is_some() && entry::check_id(&instance) != probe.id {
        return Err(ApiError::Conflict(format!(
            "the service {service:?} has the check {:?} already, and one is all it can have",
            entry::check_id(&instance)
        )));
    }
    let known = instance.check.is_some().then_some(instance.health);
    set_check(call, &instance, Some(&probe), first_health(Some(&probe), known)).await?;
    call.audit("agent/check/register", service);
    Ok(done())
}

async fn deregister_check(call: &Call<'_>, check: &str) -> Result<Reply, ApiError> {
    call.writes()?;
    let instance = checked(call, check).await?;
    // Without a check a service is passing.
    set_check(call, &instance, None, Some(Health::Passing)).await?;
    call.audit("agent/check/deregister", check);
    Ok(done())
}

async fn set_check(
    call: &Call<'_>,
    instance: &Instance,
    probe: Option<&Probe>,
    health: Option<Health>,
) -> Result<(), ApiError> {
    let mut kept = Kept::of(instance);
    kept.check_name = probe.map(|probe| probe.name.clone()).unwrap_or_default();
    kept.notes = probe.map(|probe| probe.notes.clone()).unwrap_or_default();
    let mut meta: BTreeMap<String, String> =
        instance.metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    wire::keep(&mut meta, &kept, instance.id.local(), probe);
    let registration = Registration {
        metadata: Metadata::from_pairs(&meta)?,
        check: probe.and_then(|probe| probe.check.clone()),
        health,
        ..registration_of(instance)
    };
    write(call.context.registry.register(vec![registration]).await)?;
    Ok(())
}
