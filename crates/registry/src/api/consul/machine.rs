//! Nodes of the catalog that have something of their own: an address, metadata, checks that count for all services on them, maintenance.
//!
//! The core calls such a node a machine ([`crate::machines`]). The node of a call to an agent is the address that the call comes from, for
//! the registry is every host's agent.

use std::collections::BTreeMap;

use super::checks::{self, Held, Probe, assemble, held, keep};
use super::wire::{Kept, Object, flag};
use super::{Call, Scope, done};
use crate::api::{ApiError, Reply};
use crate::{Edit, Health, Instance, InstanceId, Metadata, Registration, machine_id, machines};

/// A node, as `/v1/catalog/register` or an agent's call tells of it.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) id: String,
    pub(super) meta: BTreeMap<String, String>,
    pub(super) tagged_addresses: BTreeMap<String, String>,
    /// Only its name is told: the call was made to an agent.
    agent: bool,
}

impl Told {
    /// The node of a registration in the catalog.
    pub(super) fn read(object: &Object<'_>) -> Result<Told, ApiError> {
        let (name, address) = (object.text("node")?, object.text("address")?);
        if name.is_empty() || address.is_empty() {
            return Err(ApiError::bad("expected Node and Address"));
        }
        Ok(Told {
            name: name.to_owned(),
            address: address.to_owned(),
            id: object.text("id")?.to_owned(),
            meta: object.pairs("nodemeta")?,
            tagged_addresses: object.pairs("taggedaddresses")?,
            agent: false,
        })
    }

    /// The node that a call to an agent is about.
    pub(super) fn of_agent(call: &Call<'_>) -> Told {
        Told { name: call.peer(), address: call.peer(), agent: true, ..Told::default() }
    }

    /// The node that `machine` is: nothing new is told.
    pub(super) fn known(machine: &Instance) -> Told {
        let kept = Kept::of(machine);
        Told { name: kept.node, address: machine.host.to_string(), agent: kept.agent, ..Told::default() }
    }

    /// Puts what is told of the node into what is kept of an instance on it, or of the node itself.
    pub(super) fn put_into(&self, kept: &mut Kept) {
        kept.node.clone_from(&self.name);
        kept.node_id.clone_from(&self.id);
        kept.node_meta.clone_from(&self.meta);
        kept.node_tagged_addresses.clone_from(&self.tagged_addresses);
    }
}

/// What a change makes of a node.
#[derive(Debug)]
pub(super) struct After {
    pub(super) checks: Vec<Held>,
    /// Whether it is in maintenance, and why.
    pub(super) maintenance: Option<String>,
}

/// The instance id of the node `name`.
pub(super) fn id(call: &Call<'_>, name: &str) -> Result<InstanceId, ApiError> {
    Ok(machine_id(&call.namespace, name)?)
}

/// The nodes of the namespace that have something of their own, with what is kept of them.
pub(super) fn all(scope: &Scope) -> Vec<(std::sync::Arc<Instance>, Kept)> {
    let list = scope.registry.machines(&scope.namespace).into_iter();
    list.map(|machine| {
        let kept = Kept::of(&machine);
        (machine, kept)
    })
    .collect()
}

/// Those of [`all`] that are the node `name`. This registry's own node stands for all agents.
pub(super) fn named(scope: &Scope, name: &str) -> Vec<(std::sync::Arc<Instance>, Kept)> {
    let mut list = all(scope);
    list.retain(|(_, kept)| kept.node == name || (kept.agent && *name == *scope.node));
    list
}

/// Gives a node the checks and the maintenance that `decide` makes of those that it has. What else is known of the node becomes what is
/// `told`; an agent's call and `skip_update` leave that of a known node as it is. A node of which nothing is left but its address, and that
/// nobody put into the catalog, goes.
pub(super) async fn change(
    call: &Call<'_>,
    told: &Told,
    skip_update: bool,
    decide: impl Fn(After) -> Result<After, ApiError>,
) -> Result<(), ApiError> {
    let id = id(call, &told.name)?;
    let written = call.context.registry.change(&id, |known| {
        let known_kept = known.map(|instance| Kept::of(instance));
        let before = match (known, &known_kept) {
            (Some(instance), Some(kept)) => {
                After { checks: held(instance, kept), maintenance: instance.isolate.then(|| kept.reason.clone()) }
            }
            _ => After { checks: Vec::new(), maintenance: None },
        };
        let After { checks, maintenance } = decide(before)?;
        let keeps = told.agent || skip_update;
        let (mut kept, address) = match (known, known_kept) {
            (Some(instance), Some(kept)) if keeps => (kept, instance.host.to_string()),
            _ => {
                let mut kept = Kept { agent: told.agent, ..Kept::default() };
                told.put_into(&mut kept);
                (kept, told.address.clone())
            }
        };
        if kept.agent && checks.is_empty() && maintenance.is_none() {
            return Ok(if known.is_some() { Edit::Deregister } else { Edit::Nothing });
        }
        kept.reason = maintenance.clone().unwrap_or_default();
        let (check, health) = assemble(&checks, &mut kept);
        let mut meta = BTreeMap::new();
        keep(&mut meta, &kept, id.local(), &checks);
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

/// The checks of a node that had `before` and is told of `probes`. All others stay. As at Consul, `DeregisterCriticalServiceAfter` says nothing
/// here: there is no service that it would be about.
///
/// # Errors
/// There are too many; one has no id.
pub(super) fn with_checks(probes: &[Probe], mut before: Vec<Held>) -> Result<Vec<Held>, ApiError> {
    for probe in probes {
        let mut check = probe.check.clone();
        check.iter_mut().for_each(|check| check.deregister_after = None);
        let at = before.iter().position(|held| held.id == probe.id);
        let known = at.map(|at| before[at].health);
        // A new check is critical until something was heard of it, as with Consul; so is one of which only that is known that it is there.
        let health = probe.status.or(known).unwrap_or(Health::Critical);
        let (id, name, notes) = (probe.id.clone(), probe.name.clone(), probe.notes.clone());
        let one = Held { id, name, notes, check, health };
        match at {
            Some(at) => before[at] = one,
            None => before.push(one),
        }
    }
    checks::within_limits(before.iter().map(|held| held.id.as_str()))?;
    Ok(before)
}

/// `/v1/agent/maintenance`: takes all services of the host that asks out, or back.
pub(super) async fn maintenance(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.writes()?;
    let enable = flag(call.request.param("enable"))?;
    let reason = call.request.param("reason").unwrap_or_default();
    change(call, &Told::of_agent(call), false, |mut after| {
        // Who is in maintenance already keeps the reason, as at Consul.
        after.maintenance = enable.then(|| after.maintenance.take().unwrap_or_else(|| reason.to_owned()));
        Ok(after)
    })
    .await?;
    call.audit(if enable { "maintenance on" } else { "maintenance off" }, &call.peer());
    Ok(done())
}
