//! Nodes of the catalog with attributes of their own: an address, metadata, checks that count for all services on them, maintenance.
//!
//! The core calls such a node a machine ([`crate::machines`]). The node of a call to an agent is the client's address, because the registry is every
//! host's agent.

use std::collections::BTreeMap;

use super::checks::{self, Probe, ServiceCheck, assemble, held, keep};
use super::entry::node_address;
use super::wire::{Kept, Object, flag, within_own_bytes};
use super::{Call, Scope, done, same};
use crate::api::{ApiError, Reply};
use crate::rights::{Access, Resource};
use crate::{Edit, Health, Instance, InstanceId, Metadata, Registration, machine_id, machines};

/// A node as given by `/v1/catalog/register` or by an agent's call.
#[derive(Debug, Default)]
pub(super) struct NodeFields {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) id: String,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) tagged_addresses: BTreeMap<String, String>,
    /// True if only the name is given, by a call to an agent.
    agent: bool,
}

impl NodeFields {
    /// Parses the node of a registration in the catalog.
    pub(super) fn read(object: &Object<'_>) -> Result<NodeFields, ApiError> {
        let (name, address) = (object.text("node")?, object.text("address")?);
        if name.is_empty() || address.is_empty() {
            return Err(ApiError::bad("expected Node and Address"));
        }
        Ok(NodeFields {
            name: name.to_owned(),
            address: address.to_owned(),
            id: object.text("id")?.to_owned(),
            meta: object.pairs("nodemeta")?,
            tagged_addresses: object.pairs("taggedaddresses")?,
            agent: false,
        })
    }

    /// Returns the node of a call to an agent.
    pub(super) fn of_agent(call: &Call<'_>) -> NodeFields {
        NodeFields { name: call.peer(), address: call.peer(), agent: true, ..NodeFields::default() }
    }

    /// Returns the node `machine` itself, without new attributes.
    pub(super) fn known(machine: &Instance) -> NodeFields {
        let kept = Kept::of(machine);
        NodeFields { name: kept.node, address: machine.host.to_string(), agent: kept.agent, ..NodeFields::default() }
    }

    /// True if the node is more than a name and an address: then all services on it show the attributes that were told last.
    pub(super) fn has_attributes(&self) -> bool {
        !self.id.is_empty() || !self.meta.is_empty() || !self.tagged_addresses.is_empty()
    }

    /// Copies the node's attributes into those kept with an instance on it, or with the node itself.
    pub(super) fn put_into(&self, kept: &mut Kept) {
        kept.node.clone_from(&self.name);
        kept.node_id.clone_from(&self.id);
        kept.node_meta.clone_from(&self.meta);
        kept.node_tagged_addresses.clone_from(&self.tagged_addresses);
    }
}

/// State of a node after a change.
#[derive(Debug)]
pub(super) struct After {
    pub(super) checks: Vec<ServiceCheck>,
    /// The reason of maintenance; `None` if the node is not in maintenance.
    pub(super) maintenance: Option<String>,
}

/// Returns the instance id of the node `name`, in the spelling of the node that is there.
pub(super) fn id(call: &Call<'_>, name: &str) -> Result<InstanceId, ApiError> {
    let (registry, id) = (&call.context.registry, machine_id(&call.namespace, name)?);
    if registry.instance(&id).is_some() {
        return Ok(id);
    }
    let known = registry.machines(&call.namespace);
    let spelled = known.iter().find(|machine| machine.id.machine_name().is_some_and(|known| same(known, name)));
    Ok(spelled.map_or(id, |machine| machine.id.clone()))
}

/// True if a registration of the node `fields` changes nothing of it, so that it needs no right to write the node.
pub(super) fn is_known(call: &Call<'_>, fields: &NodeFields, skip_update: bool) -> Result<bool, ApiError> {
    let registry = &call.context.registry;
    let same_as = |instance: &Instance| {
        if skip_update {
            return true;
        }
        let kept = Kept::of(instance);
        node_address(instance, &kept) == fields.address
            && (fields.id.is_empty() || kept.node_id == fields.id)
            && kept.node_meta == fields.meta
            && kept.node_tagged_addresses == fields.tagged_addresses
    };
    match registry.instance(&id(call, &fields.name)?) {
        Some(machine) => Ok(same_as(&machine)),
        None => {
            Ok(registry.on_machine(&call.namespace, &fields.name).first().is_some_and(|instance| same_as(instance)))
        }
    }
}

/// Returns the nodes of the namespace with attributes of their own, with what is kept of them.
pub(super) fn all(scope: &Scope) -> Vec<(std::sync::Arc<Instance>, Kept)> {
    let list = scope.registry.machines(&scope.namespace).into_iter();
    list.map(|machine| {
        let kept = Kept::of(&machine);
        (machine, kept)
    })
    .collect()
}

/// Returns those of [`all`] that are the node `name`. This registry's own node represents all agents.
pub(super) fn named(scope: &Scope, name: &str) -> Vec<(std::sync::Arc<Instance>, Kept)> {
    let mut list = all(scope);
    list.retain(|(_, kept)| same(&kept.node, name) || (kept.agent && same(name, &scope.node)));
    list
}

/// Replaces a node's checks and maintenance by the result of `decide`, which is called with the present ones. The node's other attributes become
/// those of `told`; an agent's call and `skip_update` leave those of a known node unchanged. A node that was not put into the catalog is removed when
/// it has neither checks nor maintenance.
pub(super) async fn change(
    call: &Call<'_>,
    fields: &NodeFields,
    skip_update: bool,
    decide: impl Fn(After) -> Result<After, ApiError>,
) -> Result<(), ApiError> {
    let id = id(call, &fields.name)?;
    let written = call.context.registry.change(&id, |known| {
        let known_kept = known.map(|instance| Kept::of(instance));
        let before = match (known, &known_kept) {
            (Some(instance), Some(kept)) => {
                After { checks: held(instance, kept), maintenance: instance.isolate.then(|| kept.reason.clone()) }
            }
            _ => After { checks: Vec::new(), maintenance: None },
        };
        let After { checks, maintenance } = decide(before)?;
        let keeps = fields.agent || skip_update;
        let (mut kept, address) = match (known, known_kept) {
            (Some(instance), Some(kept)) if keeps => (kept, instance.host.to_string()),
            _ => {
                let mut kept = Kept { agent: fields.agent, ..Kept::default() };
                fields.put_into(&mut kept);
                (kept, fields.address.clone())
            }
        };
        if kept.agent && checks.is_empty() && maintenance.is_none() {
            return Ok(if known.is_some() { Edit::Deregister } else { Edit::Nothing });
        }
        kept.take_over(known.map(AsRef::as_ref), call.context.registry.revision());
        kept.reason = maintenance.clone().unwrap_or_default();
        let (check, health) = assemble(&checks, &mut kept);
        let mut meta = BTreeMap::new();
        keep(&mut meta, &kept, id.local(), &checks);
        within_own_bytes(&meta)?;
        Ok::<_, ApiError>(Edit::Register(Box::new(Registration {
            metadata: Metadata::from_pairs(&meta)?,
            check,
            health: Some(health),
            isolate: Some(maintenance.is_some()),
            ..Registration::new(id.clone(), machines(&call.namespace), &address, 0)
        })))
    });
    written.await?;
    Ok(())
}

/// Returns the checks of a node that had `before`, with `probes` added or replaced; all others are kept. As at Consul,
/// `DeregisterCriticalServiceAfter` is ignored: a node's check has no service to deregister.
///
/// # Errors
/// There are too many checks.
pub(super) fn with_checks(probes: &[Probe], mut before: Vec<ServiceCheck>) -> Result<Vec<ServiceCheck>, ApiError> {
    for probe in probes {
        let mut check = probe.check.clone();
        check.iter_mut().for_each(|check| check.deregister_after = None);
        let at = before.iter().position(|held| held.id == probe.id);
        let known = at.map(|at| before[at].health);
        // A new check is critical until its first report, as at Consul; so is one registered with neither a kind nor a status.
        let health = probe.status.or(known).unwrap_or(Health::Critical);
        let (id, name, notes) = (probe.id.clone(), probe.name.clone(), probe.notes.clone());
        let one = ServiceCheck { id, name, notes, check, health, definition: probe.definition.clone() };
        match at {
            Some(at) => before[at] = one,
            None => before.push(one),
        }
    }
    checks::within_limits(before.iter().map(|held| held.id.as_str()))?;
    Ok(before)
}

/// Serves `/v1/agent/maintenance`: isolates all services of the client's host, or ends that.
pub(super) async fn maintenance(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let enable = flag(call.request.param("enable"))?;
    let reason = call.request.param("reason").unwrap_or_default();
    let fields = NodeFields::of_agent(call);
    call.needs(Access::Write, Resource::node(&fields.name))?;
    change(call, &fields, false, |mut after| {
        // A node already in maintenance keeps the reason, as at Consul.
        after.maintenance = enable.then(|| after.maintenance.take().unwrap_or_else(|| reason.to_owned()));
        Ok(after)
    })
    .await?;
    call.audit(if enable { "maintenance on" } else { "maintenance off" }, &call.peer());
    Ok(done())
}
