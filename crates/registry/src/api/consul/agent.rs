//! `/v1/agent/…`: registration, checks and queries of an agent's services.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::catalog::write;
use super::entry::{self, AgentService, Check, DATACENTER};
use super::wire::{self, Kept, Object, status};
use super::{CONTENT_HASH, Call, DEFAULT_WAIT, Scope, add, checks, done, machine, no_such_service};
use crate::api::list_cache::ListBuilder;
use crate::api::{ApiError, Reply, Watched, identity};
use crate::rights::{Access, Resource};
use crate::{Edit, Health, Instance, Patch, Registration};

/// Parts of Consul's agent API about its own process and cluster, which are not served: operators use the registry's own tools instead.
const ABSENT: [&str; 9] = ["connect", "force-leave", "host", "join", "leave", "metrics", "monitor", "reload", "token"];

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    match path {
        [part, ..] if ABSENT.contains(part) => {
            Err(ApiError::NotImplemented(format!("Consul's /v1/agent/{part} is not served here")))
        }
        ["service", "register"] => register(call).await,
        ["check", "register"] => checks::register(call).await,
        ["maintenance"] => machine::maintenance(call).await,
        [what @ ("service" | "check"), how, id @ ..] if !id.is_empty() => {
            let id = id.join("/");
            match (*what, *how) {
                ("service", "deregister") => deregister(call, &id).await,
                ("service", "maintenance") => maintenance(call, &id).await,
                ("check", "deregister") => checks::deregister(call, &id).await,
                ("check", "pass") => checks::report(call, &id, Health::Passing).await,
                ("check", "warn") => checks::report(call, &id, Health::Warning).await,
                ("check", "fail") => checks::report(call, &id, Health::Critical).await,
                ("check", "update") => update(call, &id).await,
                _ => {
                    call.reads()?;
                    read(call, path).await
                }
            }
        }
        _ => {
            call.reads()?;
            read(call, path).await
        }
    }
}

async fn deregister(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.writes()?;
    let instance = call.agent_service(id).await?;
    call.changes(&instance)?;
    write(call.context.registry.deregister(std::slice::from_ref(&instance.id)).await)?;
    call.audit("agent/service/deregister", id);
    Ok(done())
}

/// Serves `/v1/agent/check/update/ID`: the status is in the body.
async fn update(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    let name = Object::new(&body, "the body")?.text("status")?;
    let health = wire::health(name)
        .ok_or_else(|| ApiError::bad(format!("Status {name:?}: expected passing, warning or critical")))?;
    checks::report(call, id, health).await
}

async fn read(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    let own = call.context.node.as_str();
    match path {
        ["self" | "version"] => {
            call.needs(Access::Read, Resource::agent(own))?;
            let version = || json!({ "HumanVersion": env!("CARGO_PKG_VERSION") });
            Ok(Reply::ok(&if path == ["self"] { own_config(own) } else { version() }))
        }
        ["members"] => {
            let seen: Vec<Value> = call.wanted.sees_node(own).then(|| member(own)).into_iter().collect();
            Ok(Reply::ok(&seen))
        }
        ["services"] => {
            let peer = call.peer();
            let make = move |scope: &Scope, out: &mut ListBuilder| {
                // A service of the client's own host has the plain id as its key.
                let own = own_instances(scope);
                let own = own.iter().filter(|(it, _)| scope.wanted.sees_service(it.service.name()));
                let services = own.map(|(it, kept)| (AgentService::new(it, kept), comes_from(it, &peer)));
                add(out, &entry::by_id(services.filter(|(service, _)| scope.fits(service))));
            };
            call.whole("consul.agent.services", &call.peer(), make).await
        }
        ["service", id @ ..] if !id.is_empty() => watched_service(call, &id.join("/")).await,
        ["checks"] => {
            let make = |scope: &Scope, out: &mut ListBuilder| {
                let of_nodes = machine::named(scope, &scope.node);
                let of_nodes = of_nodes.iter().filter(|(_, kept)| scope.wanted.sees_node(&kept.node));
                let of_nodes = of_nodes.flat_map(|(node, kept)| entry::node_checks(node, kept));
                let checks: BTreeMap<String, Check> = own_instances(scope)
                    .iter()
                    .filter(|(instance, _)| scope.wanted.sees_service(instance.service.name()))
                    .flat_map(|(instance, kept)| entry::checks(instance, kept, &scope.node))
                    .chain(of_nodes)
                    .filter(|check| scope.fits(check))
                    .map(|check| (check.check_id.clone(), check))
                    .collect();
                add(out, &checks);
            };
            call.whole("consul.agent.checks", "", make).await
        }
        ["health", "service", "id", id @ ..] if !id.is_empty() => {
            let instance = call.agent_service(&id.join("/")).await?;
            call.needs(Access::Read, Resource::service(instance.service.name()))?;
            Ok(judged(call, &[&instance]))
        }
        ["health", "service", "name", name @ ..] if !name.is_empty() => {
            let name = name.join("/");
            let snapshots = call.context.registry.spelled(&call.named(&name)?);
            call.needs(Access::Read, Resource::service(snapshots.first().map_or(&name, |it| it.key.name())))?;
            let list: Vec<&Arc<Instance>> = snapshots.iter().flat_map(|snapshot| snapshot.instances.iter()).collect();
            if list.is_empty() {
                return Err(ApiError::NotFound { what: "service", name });
            }
            Ok(judged(call, &list))
        }
        _ => Err(call.no_such_path()),
    }
}

/// Returns a service with a hash of its content. With `?hash=`, waits until the hash differs.
async fn watched_service(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    let known = call.request.param("hash").filter(|hash| !hash.is_empty());
    let wait = call.request.duration("wait")?.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
    let until = Instant::now() + wait.min(call.context.limits.wait);
    let mut waited = false;
    loop {
        let registry = &call.context.registry;
        let found = call.agent_service(id).await?;
        call.needs(Access::Read, Resource::service(found.service.name()))?;
        // Read before the instance: a change in between ends the wait.
        let revision = registry.revision_of(&found.service);
        let instance = registry.instance(&found.id).unwrap_or(found);
        let mut shown = serde_json::to_value(AgentService::new(&instance, &Kept::of(&instance))).unwrap_or_default();
        let hash = content_hash(&shown);
        let left = until.saturating_duration_since(Instant::now());
        let at_once = call.request.at_once || left.is_zero();
        if known != Some(hash.as_str()) || at_once || *call.context.stopping.borrow() {
            // Go's watch takes the hash from the body; without one, it repeats the request at once.
            shown["ContentHash"] = Value::String(hash.clone());
            return Ok(Reply::ok(&shown).header(CONTENT_HASH, hash).waited(waited));
        }
        waited = true;
        call.context.wait(call.request, Watched::Service(&instance.service), revision, left).await?;
    }
}

/// Returns a hash of a service's content, which differs after any change of it. The indexes are excluded: a heartbeat that is written changes no
/// content.
fn content_hash(shown: &Value) -> String {
    let mut said = shown.clone();
    if let Some(said) = said.as_object_mut() {
        said.retain(|key, _| !matches!(key.as_str(), "CreateIndex" | "ModifyIndex"));
    }
    crate::api::hash_of(&said.to_string())[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the answer about this node.
fn own_config(own: &str) -> Value {
    json!({
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
    })
}

fn member(own: &str) -> Value {
    json!({ "Name": own, "Addr": "127.0.0.1", "Port": 8301, "Status": 1, "Tags": { "dc": DATACENTER, "role": "consul" } })
}

/// Returns the instances of this node, which all our nodes represent.
fn own_instances(scope: &Scope) -> Vec<(Arc<Instance>, Kept)> {
    let all = scope.instances().into_iter().map(|instance| {
        let kept = Kept::of(&instance);
        (instance, kept)
    });
    all.filter(|(_, kept)| kept.agent || kept.node.is_empty() || kept.node == scope.node).collect()
}

/// True if the host at `peer` registered `instance`.
fn comes_from(instance: &Instance, peer: &str) -> bool {
    instance.metadata.get(wire::FROM).unwrap_or(&instance.host) == peer
}

/// Returns the health as a status code: 200 passing, 429 warning, 503 critical.
fn judged(call: &Call<'_>, list: &[&Arc<Instance>]) -> Reply {
    let worst = list.iter().map(|instance| entry::worst(instance)).max().unwrap_or_default();
    let code = match worst {
        Health::Passing => StatusCode::OK,
        Health::Warning => StatusCode::TOO_MANY_REQUESTS,
        Health::Critical => StatusCode::SERVICE_UNAVAILABLE,
    };
    let aggregated = |instance: &Instance| match entry::is_maintained(instance) {
        true => "maintenance",
        false => status(entry::worst(instance)),
    };
    if call.request.param("format") == Some("text") {
        let maintained = list.iter().any(|instance| entry::is_maintained(instance));
        return Reply::text(code, if maintained { "maintenance" } else { status(worst) });
    }
    let shown: Vec<Value> = list
        .iter()
        .map(|instance| {
            let kept = Kept::of(instance);
            json!({
                "AggregatedStatus": aggregated(instance),
                "Service": AgentService::new(instance, &kept),
                "Checks": entry::with_node_checks(instance, &kept, &call.context.node),
            })
        })
        .collect();
    match shown.as_slice() {
        [one] if call.request.segments.get(4).is_some_and(|by| by == "id") => Reply::json(code, one),
        list => Reply::json(code, &list),
    }
}

async fn register(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    call.same_namespace(&body)?;
    let mut read = wire::service(&body, wire::Form::Agent)?;
    // As at Consul: nobody can connect to it.
    if matches!(read.address.as_str(), "0.0.0.0" | "::" | "[::]") {
        return Err(ApiError::bad(format!(
            "Invalid service address {:?}: expected one that clients reach",
            read.address
        )));
    }
    // A service without an address gets its agent's: here, the address of the client.
    let peer = call.peer();
    let host = if read.address.is_empty() { peer.clone() } else { std::mem::take(&mut read.address) };
    let (id, others) = call.agent_identity(&host, &read.id)?;
    let is_plain = host == peer && id == identity::consul(&call.namespace, &peer, &read.id)?;
    let service = call.registered(&read.name)?;
    call.needs(Access::Write, Resource::service(service.name()))?;
    read.kept.agent = true;
    let replaced = call.request.flag("replace-existing-checks");
    checks::find_aliased(call, &mut read.checks, Some(&id)).await?;
    let written = call.context.registry.change(&id, |known| {
        // The id may be another service's now.
        known.map_or(Ok(()), |instance| call.changes(instance))?;
        // A service that was imported or put into the catalog stays on its node; an agent's own one is on a node named after its address.
        let node = known.map(|instance| (Kept::of(instance).node, &instance.host));
        let node = node.and_then(|(node, host)| (!node.is_empty() && *node != **host).then_some(node));
        read.kept.node = node.unwrap_or_else(|| host.clone());
        let before = known.map(|instance| checks::held(instance, &Kept::of(instance))).unwrap_or_default();
        let list = checks::registered(&read.checks, before, replaced, true)?;
        let mut kept = read.kept.clone();
        kept.take_over(known.map(AsRef::as_ref), call.context.registry.revision());
        // At Consul maintenance is a check, and is replaced as the others are.
        if replaced {
            kept.reason.clear();
        }
        // Tags that others have set stay while the agent repeats its own.
        if let Some(before) = known.map(|instance| Kept::of(instance)).filter(|_| kept.enable_tag_override)
            && before.own_tags.as_ref() == Some(&kept.tags)
        {
            (kept.tags, kept.own_tags) = (before.tags, before.own_tags);
        }
        // Health is always set: the core takes a registration without a health for a heartbeat, and would set a service to passing that has reported
        // otherwise.
        let (check, health) = checks::assemble(&list, &mut kept);
        let registration = Registration {
            weight: read.weight,
            metadata: read.metadata(&kept, &list, (!is_plain).then_some(peer.as_str()))?,
            health: Some(health),
            check,
            location: read.location.clone(),
            isolate: replaced.then_some(false),
            ..Registration::new(id.clone(), service.clone(), &host, read.port)
        };
        Ok::<_, ApiError>(Edit::Register(Box::new(registration)))
    });
    let mut changed = written.await?.changed();
    for row in call.context.registry.deregister(&others).await {
        match row {
            Ok(removed) => changed |= removed.changed(),
            Err(crate::WriteError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if changed {
        call.audit("agent/service/register", &read.id);
    }
    Ok(done())
}

async fn maintenance(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.writes()?;
    let isolate = wire::flag(call.request.param("enable"))?;
    let reason = call.request.param("reason").filter(|_| isolate).unwrap_or_default();
    let found = call.agent_service(id).await?;
    call.changes(&found)?;
    let id_of = found.id.clone();
    let change = call.context.registry.change(&id_of, |known| {
        let missing = || no_such_service(id);
        let instance = known.ok_or_else(missing)?;
        // A service already in maintenance keeps the reason, as at Consul.
        if instance.isolate == isolate {
            return Ok(Edit::Nothing);
        }
        let mut kept = Kept::of(instance);
        let metadata = if kept.reason == reason {
            None
        } else {
            reason.clone_into(&mut kept.reason);
            Some(checks::metadata_with(instance, &kept, &checks::held(instance, &kept))?)
        };
        Ok::<_, ApiError>(Edit::Patch(Patch { isolate: Some(isolate), metadata, ..Patch::default() }))
    });
    change.await?;
    call.audit(if isolate { "maintenance on" } else { "maintenance off" }, id);
    Ok(done())
}
