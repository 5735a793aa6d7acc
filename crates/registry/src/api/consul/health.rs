//! `/v1/health/…`: services with their checks.

use bytes::Bytes;
use hyper::StatusCode;

use super::catalog::{bracketed, on_node};
use super::entry::{self, Check, ServiceEntry};
use super::wire::{self, Kept, health, status};
use super::{Call, Scope, entries, has_tags, machine, rest};
use std::sync::Arc;

use crate::api::list_cache::ListBuilder;
use crate::api::reply::JSON;
use crate::api::{ApiError, Reply};
use crate::{Encoding, Health, Instance, ServiceSnapshot};

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    call.reads()?;
    // Everything behind the first part is the name, which may have slashes.
    let Some(name) = rest(path.get(1..).unwrap_or_default()) else { return Err(call.no_such_path()) };
    match path[0] {
        "service" => service(call, &name).await,
        "checks" => {
            let key = call.named(&name)?;
            let blocked = call.blocked(Some(&key)).await?;
            let mut found = call.context.registry.spelled(&key);
            let only = if call.wanted.is_all() && found.len() == 1 { found.pop() } else { None };
            let reply = if let Some(snapshot) = only {
                let make = |instances: &[Arc<Instance>], scope: &Scope| checks(instances, scope, None);
                call.list_of(snapshot, Encoding::ConsulChecks, make).await?
            } else {
                let all = |it: &ServiceSnapshot, scope: &Scope| checks(&it.instances, scope, None);
                bracketed(&call.look_through_all(found, all).await?)
            };
            Ok(blocked.show(reply))
        }
        "state" => {
            let wanted = match name.as_str() {
                "any" => None,
                state => Some(health(state).ok_or_else(|| {
                    ApiError::bad(format!("state {state:?}: expected any, passing, warning or critical"))
                })?),
            };
            let blocked = call.blocked(None).await?;
            let make = move |scope: &Scope, out: &mut ListBuilder| in_state(scope, wanted, out);
            Ok(blocked.show(call.whole("consul.state", wanted.map_or("any", status), make).await?))
        }
        "node" => {
            let blocked = call.blocked(None).await?;
            let wanted = name.clone();
            let make = move |scope: &Scope, out: &mut ListBuilder| {
                let nodes = machine::named(scope, &wanted);
                let of_nodes = nodes.iter().flat_map(|(node, kept)| of_node(node, kept, scope, None));
                let all = on_node(scope, &wanted);
                out.text("[");
                out.text(entries(of_nodes.chain(all.iter().flat_map(|instance| of_instance(instance, scope, None)))));
                out.text("]");
            };
            Ok(blocked.show(call.whole("consul.node.checks", &name, make).await?))
        }
        // The mesh: always empty.
        "connect" | "ingress" => Ok(call.blocked(None).await?.show(Reply::bytes(StatusCode::OK, JSON, "[]"))),
        _ => Err(call.no_such_path()),
    }
}

/// Writes the checks of all services in a state; `None` for any state.
fn in_state(scope: &Scope, state: Option<Health>, out: &mut ListBuilder) {
    let encoding = match state {
        None => Encoding::ConsulChecks,
        Some(Health::Passing) => Encoding::ConsulChecksPassing,
        Some(Health::Warning) => Encoding::ConsulChecksWarning,
        Some(Health::Critical) => Encoding::ConsulChecksCritical,
    };
    let nodes = machine::all(scope);
    let of_nodes = entries(nodes.iter().flat_map(|(node, kept)| of_node(node, kept, scope, state)));
    let mut some = !of_nodes.is_empty();
    out.text("[");
    out.text(of_nodes);
    for service in scope.services() {
        let before = if some { "," } else { "" };
        if scope.wanted.is_all() {
            some |= out.list(&service, encoding, before, ",", |instances| checks(instances, scope, state));
        } else {
            let list = checks(&service.instances, scope, state);
            if !list.is_empty() {
                out.text(before);
                out.text(&list);
                some = true;
            }
        }
    }
    out.text("]");
}

/// Encodes the checks of instances in a state that pass the filter, without the brackets of the list.
fn checks<'a>(instances: impl IntoIterator<Item = &'a Arc<Instance>>, scope: &Scope, state: Option<Health>) -> Bytes {
    entries(instances.into_iter().flat_map(|instance| of_instance(instance, scope, state)))
}

fn of_node(node: &Instance, kept: &Kept, scope: &Scope, state: Option<Health>) -> Vec<Check> {
    let checks = if scope.wanted.takes(node, kept) { entry::node_checks(node, kept) } else { Vec::new() };
    wanted(checks, scope, state)
}

fn of_instance(instance: &Instance, scope: &Scope, state: Option<Health>) -> Vec<Check> {
    let kept = Kept::of(instance);
    if !scope.wanted.takes(instance, &kept) {
        return Vec::new();
    }
    wanted(entry::checks(instance, &kept, &scope.node), scope, state)
}

fn wanted(mut checks: Vec<Check>, scope: &Scope, state: Option<Health>) -> Vec<Check> {
    checks.retain(|check| state.is_none_or(|state| check.is(status(state))) && scope.fits(check));
    checks
}

async fn service(call: &Call<'_>, name: &str) -> Result<Reply, ApiError> {
    let key = call.named(name)?;
    let blocked = call.blocked(Some(&key)).await?;
    let passing = match call.request.param("passing") {
        None => false,
        Some("") => true,
        said => wire::truth(said).ok_or_else(|| ApiError::bad("Invalid value for ?passing: expected true or false"))?,
    };
    let plain = call.wanted.is_all() && call.request.param("tag").is_none();
    let mut found = call.context.registry.spelled(&key);
    let only = if plain && found.len() == 1 { found.pop() } else { None };
    let reply = match only {
        // The most common request's encoding is cached with the instances.
        Some(snapshot) => {
            let slot = if passing { Encoding::ConsulPassing } else { Encoding::ConsulHealth };
            let make = move |instances: &[Arc<Instance>], scope: &Scope| {
                let list = instances.iter().filter(|instance| !passing || entry::worst(instance) == Health::Passing);
                entries(list.map(|instance| ServiceEntry::new(instance, &scope.node)))
            };
            call.list_of(snapshot, slot, make).await?
        }
        None => {
            let wanted = call.wanted_tags();
            let fitting = move |snapshot: &ServiceSnapshot, scope: &Scope| {
                let list = snapshot.instances.iter();
                let list = list.filter(|instance| !passing || entry::worst(instance) == Health::Passing);
                let is_wanted =
                    |it: &Instance, kept: &Kept| has_tags(&kept.tags, &wanted) && scope.wanted.takes(it, kept);
                let list = list.filter(|instance| is_wanted(instance, &Kept::of(instance)));
                let list = list.map(|instance| ServiceEntry::new(instance, &scope.node));
                entries(list.filter(|entry| scope.fits(entry)))
            };
            bracketed(&call.look_through_all(found, fitting).await?)
        }
    };
    let reply = if call.request.accepts_gzip() { reply.gzip() } else { reply };
    Ok(blocked.show(reply))
}
