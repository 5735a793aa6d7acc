//! `/v1/catalog/…`: what there is, and registration by somebody else than the service itself.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::entry::{self, AgentService, CatalogService, Node};
use super::wire::{self, Kept, Object};
use super::{Call, DATACENTER};
use crate::api::{ApiError, Reply, identity};
use crate::{Health, Instance, InstanceId, Registration};

/// Instances with one client's id that are looked through for one of a certain node.
const MOST_ON_NODES: usize = 1000;

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
    let own = call.context.node.as_str();
    match path {
        ["datacenters"] => Ok(Reply::ok(&[DATACENTER])),
        ["services"] => {
            let blocked = call.blocked(None).await?;
            let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for service in call.services() {
                let mut tags = BTreeSet::new();
                let mut any = service.instances.is_empty() && call.filter.is_none();
                for instance in &service.instances {
                    if call.filter.is_none() || call.fits(&CatalogService::new(instance, own)) {
                        any = true;
                        tags.extend(Kept::of(instance).tags);
                    }
                }
                // A service that nobody is in is none to Consul.
                if any && !service.instances.is_empty() {
                    names.insert(service.key.name().to_owned(), tags);
                }
            }
            Ok(blocked.show(Reply::ok(&names)))
        }
        ["service", name] => {
            let key = call.service(name)?;
            let blocked = call.blocked(Some(&key)).await?;
            let snapshot = call.context.registry.snapshot(&key);
            let list = snapshot.iter().flat_map(|snapshot| snapshot.instances.iter());
            let entries: Vec<CatalogService> = list
                .filter(|instance| call.has_tags(&Kept::of(instance).tags))
                .map(|instance| CatalogService::new(instance, own))
                .filter(|entry| call.fits(entry))
                .collect();
            Ok(blocked.show(Reply::ok(&entries)))
        }
        ["connect", _] => Ok(call.blocked(None).await?.show(Reply::ok(&[(); 0]))),
        ["nodes"] => {
            let blocked = call.blocked(None).await?;
            let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
            nodes.insert(own.to_owned(), Node::new(own, "127.0.0.1", 1));
            for instance in call.instances() {
                let kept = Kept::of(&instance);
                if !kept.node.is_empty() {
                    let node = Node::of(&instance, &kept, own);
                    nodes.entry(kept.node).or_insert(node);
                }
            }
            let nodes: Vec<Node> = nodes.into_values().filter(|node| call.fits(node)).collect();
            Ok(blocked.show(Reply::ok(&nodes)))
        }
        ["node", name] => {
            let blocked = call.blocked(None).await?;
            let on_it: Vec<_> = on_node(call, name);
            let shown = match on_it.first() {
                _ if *name == own => Node::new(name, "127.0.0.1", 1),
                Some(instance) => Node::of(instance, &Kept::of(instance), own),
                // As Consul says that there is no such node.
                None => return Ok(blocked.show(Reply::ok(&Value::Null))),
            };
            let services: BTreeMap<String, AgentService> = on_it
                .iter()
                .map(|instance| AgentService::new(instance, &Kept::of(instance)))
                .filter(|service| call.fits(service))
                .map(|service| (service.id.clone(), service))
                .collect();
            let node = json!({ "Node": shown, "Services": services });
            Ok(blocked.show(Reply::ok(&node)))
        }
        _ => Err(call.no_such_path()),
    }
}

/// The instances on a node. This registry's own node stands for all agents.
fn on_node(call: &Call<'_>, node: &str) -> Vec<std::sync::Arc<Instance>> {
    let own = &call.context.node;
    let mut list = call.instances();
    list.retain(|instance| {
        let kept = Kept::of(instance);
        entry::node_name(&kept, own) == node || (kept.agent && node == own)
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
    let (node, address) = (object.text("node")?, object.text("address")?);
    if node.is_empty() || address.is_empty() {
        return Err(ApiError::bad("expected Node and Address"));
    }
    let Some(service) = object.get("service") else {
        // A node by itself: there is nothing to keep of one that has no services.
        return Ok(Reply::ok(&true));
    };
    call.same_namespace(service)?;
    let mut read = wire::service(service, "service")?;
    read.kept.node_address = if read.address.is_empty() { String::new() } else { address.to_owned() };
    read.kept.node_id = object.text("id")?.to_owned();
    read.kept.node_meta = object.pairs("nodemeta")?;
    read.kept.node_tagged_addresses = object.pairs("taggedaddresses")?;
    node.clone_into(&mut read.kept.node);
    match (object.get("check"), object.get("checks").and_then(Value::as_array).map(Vec::as_slice)) {
        (Some(check), _) | (None, Some([check])) => read.check = Some(wire::probe(check)?),
        (None, Some(list)) if list.len() > 1 => {
            return Err(ApiError::bad(format!("Checks: {} of them, expected at most one a service", list.len())));
        }
        _ => {}
    }
    if let Some(check) = &read.check {
        read.kept.check_name.clone_from(&check.name);
        read.kept.notes.clone_from(&check.notes);
    }
    let host = if read.address.is_empty() { address } else { &read.address };
    let id = identity::consul(&call.namespace, node, &read.id)?;
    let registration = Registration {
        weight: read.weight,
        metadata: read.metadata(None)?,
        // Whoever writes to the catalog keeps the status up to date too: nothing is probed.
        health: Some(read.check.as_ref().and_then(|check| check.status).unwrap_or(Health::Passing)),
        location: read.location.clone(),
        ..Registration::new(id, call.service(&read.name)?, host, read.port)
    };
    if write(call.context.registry.register(vec![registration]).await)?.changed() {
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
        return Err(ApiError::bad("CheckID: a check is removed by registering its service without one"));
    }
    let ids: Vec<_> = match service {
        "" => on_node(call, node).iter().map(|instance| instance.id.clone()).collect(),
        service => on_node_by_id(call, node, service).await?.into_iter().collect(),
    };
    for some in ids.chunks(call.context.registry.limits().call_rows.max(1)) {
        for row in call.context.registry.deregister(some).await {
            match row {
                // Somebody else was faster.
                Ok(_) | Err(crate::WriteError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    call.audit("catalog/deregister", if service.is_empty() { node } else { service });
    Ok(Reply::ok(&true))
}

/// The instance that is known as `service` on `node`. This registry's own node stands for all agents.
async fn on_node_by_id(call: &Call<'_>, node: &str, service: &str) -> Result<Option<InstanceId>, ApiError> {
    let registry = &call.context.registry;
    let id = identity::consul(&call.namespace, node, service)?;
    if let Some(instance) = registry.instance_or_ask(&id).await {
        return Ok(Some(instance.id.clone()));
    }
    if node == call.context.node {
        return match call.agent_service(service).await {
            Ok(instance) => Ok(Some(instance.id.clone())),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        };
    }
    // An agent's service that was imported keeps its instance id.
    let found = registry.find(&call.namespace, &[(identity::CLIENT_ID, service)], MOST_ON_NODES).instances;
    Ok(found.iter().find(|instance| Kept::of(instance).node == node).map(|instance| instance.id.clone()))
}

/// The only row of a call.
pub(super) fn write(rows: Vec<Result<crate::Written, crate::WriteError>>) -> Result<crate::Written, ApiError> {
    rows.into_iter().next().unwrap_or(Err(crate::WriteError::Stopped)).map_err(ApiError::from)
}
