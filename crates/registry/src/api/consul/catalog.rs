//! `/v1/catalog/…`: lists of nodes and services, and registration by a third party.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::Value;

use super::entry::{self, AgentService, CatalogService, Node};
use super::machine::{self, After, NodeFields};
use super::wire::{self, Kept, Object};
use super::{Call, DATACENTER, Scope, add, checks, entries, has_tags, rest, same, session};
use crate::api::list_cache::ListBuilder;
use crate::api::reply::JSON;
use crate::api::{ApiError, Reply};
use crate::rights::{Access, Resource};
use crate::{Edit, Encoding, Instance, InstanceId, Patch, Registration, ServiceSnapshot};

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    match path {
        ["register"] => register(call).await,
        ["deregister"] => deregister(call).await,
        _ => {
            call.reads()?;
            read(call, path).await
        }
    }
}

async fn read(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    // Everything behind the first part is the name, which may have slashes.
    let name = rest(path.get(1..).unwrap_or_default());
    match (path.first().copied().unwrap_or_default(), name) {
        ("datacenters", None) => Ok(Reply::ok(&[DATACENTER])),
        ("services", None) => {
            let blocked = call.blocked(None).await?;
            Ok(blocked.show(call.whole("consul.services", "", services).await?))
        }
        ("service", Some(name)) => {
            let key = call.named(&name)?;
            let blocked = call.blocked(Some(&key)).await?;
            let mut found = call.context.registry.spelled(&key);
            let wanted = call.wanted_tags();
            let plain = call.wanted.is_all() && wanted.is_empty();
            let only = if plain && found.len() == 1 { found.pop() } else { None };
            let reply = if let Some(snapshot) = only {
                let make = |instances: &[Arc<Instance>], scope: &Scope| {
                    entries(instances.iter().map(|instance| CatalogService::new(instance, &scope.node)))
                };
                call.list_of(snapshot, Encoding::ConsulCatalog, make).await?
            } else {
                let fitting = move |snapshot: &ServiceSnapshot, scope: &Scope| {
                    let is_wanted =
                        |it: &Instance, kept: &Kept| has_tags(&kept.tags, &wanted) && scope.wanted.takes(it, kept);
                    let list = snapshot.instances.iter().filter(|it| is_wanted(it, &Kept::of(it)));
                    let list = list.map(|instance| CatalogService::new(instance, &scope.node));
                    entries(list.filter(|entry| scope.fits(entry)))
                };
                bracketed(&call.look_through_all(found, fitting).await?)
            };
            Ok(blocked.show(reply))
        }
        // There is no mesh, and so no gateway.
        ("connect" | "gateway-services", Some(_)) => Ok(call.blocked(None).await?.show(Reply::ok(&[(); 0]))),
        ("nodes", None) => {
            let blocked = call.blocked(None).await?;
            Ok(blocked.show(call.whole("consul.nodes", "", nodes).await?))
        }
        ("node", Some(name)) => {
            let blocked = call.blocked(None).await?;
            let wanted = name.clone();
            Ok(blocked.show(call.whole("consul.node", &name, move |scope, out| node(scope, &wanted, out)).await?))
        }
        ("node-services", Some(name)) => {
            let blocked = call.blocked(None).await?;
            let wanted = name.clone();
            let make = move |scope: &Scope, out: &mut ListBuilder| node_services(scope, &wanted, out);
            Ok(blocked.show(call.whole("consul.node.services", &name, make).await?))
        }
        _ => Err(call.no_such_path()),
    }
}

/// Returns a list from encoded entries.
pub(super) fn bracketed(list: &[u8]) -> Reply {
    Reply::bytes(StatusCode::OK, JSON, [&b"["[..], list, b"]"].concat())
}

/// Writes the names of services with the tags of their instances.
fn services(scope: &Scope, out: &mut ListBuilder) {
    out.text("{");
    let mut some = false;
    for service in scope.services() {
        let before = if some { "," } else { "" };
        if scope.wanted.is_all() {
            some |= out.part(before, &service, Encoding::ConsulTags, |service| tags(service, |_| true));
        } else {
            let fits = |instance: &Instance| {
                scope.wanted.takes_service(instance, &Kept::of(instance))
                    && scope.fits(&CatalogService::new(instance, &scope.node))
            };
            let entry = tags(&service, fits);
            if !entry.is_empty() {
                out.text(before);
                out.text(&entry);
                some = true;
            }
        }
    }
    out.text("}");
}

/// Returns `"name":["tag"]` of the instances that fit; empty if none does: to Consul, a service without instances does not exist.
fn tags(service: &ServiceSnapshot, fits: impl Fn(&Instance) -> bool) -> Bytes {
    let mut tags = BTreeSet::new();
    let mut any = false;
    for instance in service.instances.iter().filter(|instance| fits(instance)) {
        any = true;
        tags.extend(Kept::of(instance).tags);
    }
    if !any {
        return Bytes::new();
    }
    let entry = serde_json::to_string(&BTreeMap::from([(service.key.name(), tags)])).unwrap_or_default();
    let inner = entry.strip_prefix('{').and_then(|entry| entry.strip_suffix('}')).unwrap_or_default();
    inner.to_owned().into()
}

fn nodes(scope: &Scope, out: &mut ListBuilder) {
    let own = scope.node.as_str();
    // By their names in lower case: two spellings are one node.
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    if scope.wanted.node_meta.is_empty() && scope.wanted.sees_node(own) {
        nodes.insert(own.to_lowercase(), Node::new(own, "127.0.0.1", 1));
    }
    for (machine, kept) in machine::all(scope) {
        if scope.wanted.takes(&machine, &kept) {
            let node = Node::of(&machine, &kept, own);
            nodes.insert(kept.node.to_lowercase(), node);
        }
    }
    for instance in scope.instances() {
        let kept = Kept::of(&instance);
        if !kept.node.is_empty() && scope.wanted.has_node_meta(&kept) && scope.wanted.sees_node(&kept.node) {
            let node = Node::of(&instance, &kept, own);
            nodes.entry(kept.node.to_lowercase()).or_insert(node);
        }
    }
    out.text("[");
    out.text(entries(nodes.into_values().filter(|node| scope.fits(node))));
    out.text("]");
}

/// Writes a node and its services; `null`, as at Consul, if there is no such node.
fn node(scope: &Scope, name: &str, out: &mut ListBuilder) {
    let mut on_it = on_node(scope, name);
    let shown = shown_node(scope, name, &on_it).filter(|node| scope.wanted.sees_node(node.name()));
    let Some(shown) = shown else { return out.text("null") };
    on_it.retain(|instance| scope.wanted.sees_service(instance.service.name()));
    out.text("{\"Node\":");
    add(out, &shown);
    out.text(",\"Services\":");
    let services = on_it.iter().map(|instance| AgentService::new(instance, &Kept::of(instance)));
    add(out, &entry::by_id(services.filter(|service| scope.fits(service)).map(|service| (service, false))));
    out.text("}");
}

/// Writes the same as [`node`] with the services in a list: two on one node may have the same id, because the registry's node represents all agents.
fn node_services(scope: &Scope, name: &str, out: &mut ListBuilder) {
    let mut on_it = on_node(scope, name);
    let shown = shown_node(scope, name, &on_it).filter(|node| scope.wanted.sees_node(node.name()));
    let Some(shown) = shown else {
        return out.text("{\"Node\":null,\"Services\":[]}");
    };
    on_it.retain(|instance| scope.wanted.sees_service(instance.service.name()));
    out.text("{\"Node\":");
    add(out, &shown);
    out.text(",\"Services\":[");
    let services = on_it.iter().map(|instance| AgentService::new(instance, &Kept::of(instance)));
    out.text(entries(services.filter(|service| scope.fits(service))));
    out.text("]}");
}

/// Returns a node: its catalog entry, or else the node part of an instance on it. `None` if nothing is known of it.
fn shown_node(scope: &Scope, name: &str, on_it: &[Arc<Instance>]) -> Option<Node> {
    let own = scope.node.as_str();
    if same(name, own) {
        return Some(Node::new(own, "127.0.0.1", 1));
    }
    if let Some((machine, kept)) = machine::named(scope, name).first() {
        return Some(Node::of(machine, kept, own));
    }
    on_it.first().map(|instance| Node::of(instance, &Kept::of(instance), own))
}

/// Returns the instances on a node. This registry's own node represents all agents.
pub(super) fn on_node(scope: &Scope, node: &str) -> Vec<Arc<Instance>> {
    let own = scope.node.as_str();
    let mut list = scope.instances();
    list.retain(|instance| {
        let kept = Kept::of(instance);
        same(entry::node_name(&kept, own), node) || (kept.agent && same(node, own))
    });
    list
}

async fn register(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    let object = Object::new(&body, "the body")?;
    object.refuse(&["partition", "locality"])?;
    if !matches!(object.text("datacenter")?, "" | DATACENTER) {
        return Err(ApiError::bad(format!("Datacenter: there is one, {DATACENTER}")));
    }
    let mut fields = NodeFields::read(&object)?;
    // A node that is there keeps the spelling of its name.
    if let Some(name) = machine::id(call, &fields.name)?.machine_name() {
        name.clone_into(&mut fields.name);
    }
    let (of_services, of_node) = checks::of_catalog(&object, &fields.name)?;
    let skip_update = object.flag("skipnodeupdate")?;
    if !of_node.is_empty() || !machine::is_known(call, &fields, skip_update)? {
        call.needs(Access::Write, Resource::node(&fields.name))?;
    }
    let is_known = call.context.registry.instance(&machine::id(call, &fields.name)?).is_some();
    let service = object.get("service");
    // A node that is known only through its services, by name and address, needs no row of its own.
    if service.is_none() || !of_node.is_empty() || is_known || fields.has_attributes() {
        let with = |after: After| Ok(After { checks: machine::with_checks(&of_node, after.checks)?, ..after });
        machine::change(call, &fields, skip_update, with).await?;
    }
    let Some(service) = service else {
        for probe in &of_services {
            let on_it = on_node_by_id(call, &fields.name, &probe.service).await?;
            let missing = || ApiError::NotFound { what: "service ID", name: probe.service.clone() };
            if let Some(instance) = on_it.as_ref().and_then(|id| call.context.registry.instance(id)) {
                call.changes(&instance)?;
            }
            let with = |list| machine::with_checks(std::slice::from_ref(probe), list);
            checks::change(call, &on_it.ok_or_else(missing)?, with).await?;
        }
        call.audit("catalog/register", &fields.name);
        return Ok(Reply::ok(&true));
    };
    call.same_namespace(service)?;
    let mut read = wire::service(service, wire::Form::Catalog)?;
    fields.put_into(&mut read.kept);
    read.kept.node_address = if read.address.is_empty() { String::new() } else { fields.address.clone() };
    if let Some(probe) = of_services.iter().find(|probe| probe.service != read.id) {
        return Err(ApiError::bad(format!(
            "the check {:?} is of the service {:?}, and this registration of {:?}",
            probe.id, probe.service, read.id
        )));
    }
    let mut probes = of_services;
    if probes.is_empty() {
        probes = std::mem::take(&mut read.checks);
    }
    // The client that writes to the catalog also updates the status: nothing is probed.
    probes.iter_mut().for_each(|probe| probe.check = None);
    let host = if read.address.is_empty() { &fields.address } else { &read.address };
    let id = call.node_identity(&fields.name, &read.id)?;
    let name = call.registered(&read.name)?;
    call.needs(Access::Write, Resource::service(name.name()))?;
    let written = call.context.registry.change(&id, |known| {
        // The id may be another service's now.
        known.map_or(Ok(()), |instance| call.changes(instance))?;
        let before = known.map(|instance| Kept::of(instance));
        // An agent reverts what others write about its service, except the tags that it lets them set.
        if let (Some(instance), Some(before)) = (known, &before)
            && before.agent
            && before.enable_tag_override
        {
            let own = before.own_tags.as_ref().unwrap_or(&before.tags);
            let own_tags = (*own != read.kept.tags).then(|| own.clone());
            let kept = Kept { tags: read.kept.tags.clone(), own_tags, ..before.clone() };
            let metadata = Some(checks::metadata_with(instance, &kept, &checks::held(instance, &kept))?);
            return Ok(Edit::Patch(Patch { metadata, ..Patch::default() }));
        }
        // As at Consul, checks that the registration does not name stay.
        let held = known.zip(before.as_ref()).map(|(instance, before)| checks::held(instance, before));
        let list = machine::with_checks(&probes, held.unwrap_or_default())?;
        let mut kept = read.kept.clone();
        kept.take_over(known.map(AsRef::as_ref), call.context.registry.revision());
        let (check, health) = checks::assemble(&list, &mut kept);
        Ok::<_, ApiError>(Edit::Register(Box::new(Registration {
            weight: read.weight,
            metadata: read.metadata(&kept, &list, None)?,
            health: Some(health),
            check,
            location: read.location.clone(),
            ..Registration::new(id.clone(), name.clone(), host, read.port)
        })))
    });
    if written.await?.changed() {
        call.audit("catalog/register", &read.id);
    }
    Ok(Reply::ok(&true))
}

async fn deregister(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let body: Value = call.request.json()?;
    let object = Object::new(&body, "the body")?;
    let node = object.text("node")?;
    if node.is_empty() {
        return Err(ApiError::bad("expected Node"));
    }
    let (service, check) = (object.text("serviceid")?, object.text("checkid")?);
    if service.is_empty() && !check.is_empty() {
        if let Some(instance) = with_check(call, node, check).await? {
            removes(call, &instance)?;
            checks::remove(call, &instance, check).await?;
            call.audit("catalog/deregister", check);
        }
        return Ok(Reply::ok(&true));
    }
    let ids: Vec<_> = match service {
        "" => {
            call.needs(Access::Write, Resource::node(node))?;
            let (scope, name) = (call.scope(), node.to_owned());
            let found = call.context.lists.apart(move || on_node(&scope, &name)).await?;
            let machine = machine::id(call, node)?;
            let known = call.context.registry.instance_or_ask(&machine).await;
            // The names as they were registered: a rule is about one spelling.
            for instance in found.iter().chain(&known) {
                let kept = Kept::of(instance);
                call.needs(Access::Write, Resource::node(entry::node_name(&kept, &call.context.node)))?;
            }
            found.iter().map(|instance| instance.id.clone()).chain(known.map(|_| machine)).collect()
        }
        service => {
            let found = on_node_by_id(call, node, service).await?;
            let instance = found.as_ref().and_then(|id| call.context.registry.instance(id));
            if let Some(instance) = instance {
                removes(call, &instance)?;
            }
            found.into_iter().collect()
        }
    };
    for some in ids.chunks(call.context.registry.limits().call_rows.max(1)) {
        for row in call.context.registry.deregister(some).await {
            match row {
                // Deregistered by another client in the meantime.
                Ok(_) | Err(crate::WriteError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if service.is_empty() {
        session::end_of_node(call, node).await?;
    }
    call.audit("catalog/deregister", if service.is_empty() { node } else { service });
    Ok(Reply::ok(&true))
}

/// Checks the caller's right to remove something of an instance: to change it, or its node and so everything on it.
fn removes(call: &Call<'_>, instance: &Instance) -> Result<(), ApiError> {
    let kept = Kept::of(instance);
    if call.may(Access::Write, Resource::node(entry::node_name(&kept, &call.context.node))) {
        return Ok(());
    }
    call.changes(instance)
}

/// Returns the instance known as `service` on `node`. This registry's own node represents all agents.
async fn on_node_by_id(call: &Call<'_>, node: &str, service: &str) -> Result<Option<InstanceId>, ApiError> {
    let id = call.node_identity(node, service)?;
    if call.context.registry.instance_or_ask(&id).await.is_some() {
        return Ok(Some(id));
    }
    if same(node, &call.context.node) {
        return match call.agent_service(service).await {
            Ok(instance) => Ok(Some(instance.id.clone())),
            Err(ApiError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        };
    }
    Ok(None)
}

/// Returns the node, or an instance on it, with the check `check`.
async fn with_check(call: &Call<'_>, node: &str, check: &str) -> Result<Option<Arc<Instance>>, ApiError> {
    let machine = call.context.registry.instance_or_ask(&machine::id(call, node)?).await;
    if let Some(machine) = machine.filter(|machine| checks::has(machine, check)) {
        return Ok(Some(machine));
    }
    let (scope, node) = (call.scope(), node.to_owned());
    let on_it = call.context.lists.apart(move || on_node(&scope, &node)).await?;
    Ok(on_it.into_iter().find(|instance| checks::has(instance, check)))
}

/// Returns the only row of a call.
pub(super) fn write(rows: Vec<Result<crate::Written, crate::WriteError>>) -> Result<crate::Written, ApiError> {
    rows.into_iter().next().unwrap_or(Err(crate::WriteError::Stopped)).map_err(ApiError::from)
}
