//! Machines on which instances run, with checks that count for all of these instances.
//!
//! A machine (Consul calls it a node) may have checks of its own, and may be isolated as a whole. It is stored as an instance of the service
//! `kingpost.machines` of its namespace. So the store, leases, probes and verdicts treat a machine like any instance, and need no further table and
//! no further message between nodes. An instance names its machines in its metadata ([`ON`], [`AGENT`]); the cache joins the two
//! ([`super::Instance::machines`]).

use std::sync::Arc;

use super::limits::Invalid;
use super::{Digest, Health, Instance, InstanceId, NamespaceName, ServiceKey};

/// The service of all machines. No front lists it.
const SERVICE: &str = "kingpost.machines";
/// Prefix of the instance ids of machines.
const ID: &str = "kingpost.machine:";
/// Metadata key of the machine that an instance runs on; in a machine, its own name.
pub const ON: &str = "kingpost.machine";
/// Metadata key of the machine whose agent registered an instance, if it is not the machine under [`ON`].
pub const AGENT: &str = "kingpost.from";

/// The machines of an instance, from the same snapshot as the instance; mostly none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machines(Option<Arc<[Arc<Instance>]>>);

/// Returns the instance id of the machine `name`; the id ends with the name.
///
/// # Errors
/// `name` is too long for an id, or has a control character.
pub fn machine_id(namespace: &NamespaceName, name: &str) -> Result<InstanceId, Invalid> {
    InstanceId::new(namespace, &format!("{ID}{name}"))
}

/// Returns the service of the machines of a namespace.
pub fn machines(namespace: &NamespaceName) -> ServiceKey {
    ServiceKey::of_machines(namespace, SERVICE)
}

impl ServiceKey {
    /// True if the instances of this service are machines.
    pub fn is_of_machines(&self) -> bool {
        self.name() == SERVICE
    }
}

impl InstanceId {
    /// True if this is the id of a machine.
    pub fn is_of_machine(&self) -> bool {
        self.machine_name().is_some()
    }

    /// Returns the name of the machine that has this id.
    pub(crate) fn machine_name(&self) -> Option<&str> {
        self.local().strip_prefix(ID)
    }
}

impl Machines {
    pub(crate) fn new(machines: Vec<Arc<Instance>>) -> Machines {
        Machines((!machines.is_empty()).then(|| machines.into()))
    }

    /// Iterates over the machines, each as the instance that stores it.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.0.iter().flat_map(|machines| machines.iter())
    }
}

impl Instance {
    /// Returns the worst health among the instance's own and that of its machines. An isolated machine is critical.
    pub fn overall(&self) -> Health {
        let of_machine = |machine: &Arc<Instance>| if machine.isolate { Health::Critical } else { machine.health };
        self.machines.iter().map(of_machine).fold(self.health, Health::max)
    }

    /// Returns the names of the machines in the instance's metadata.
    pub(crate) fn machine_names(&self) -> impl Iterator<Item = &str> {
        [ON, AGENT].into_iter().filter_map(|key| self.metadata.get(key))
    }

    /// Returns the digest of the instance with its machines.
    pub(crate) fn digest_with_machines(&self) -> Digest {
        self.machines.iter().fold(self.digest, |sum, machine| sum.plus(machine.digest))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::model::{Limits, Registration};

    fn machine(isolate: bool, health: Health) -> Arc<Instance> {
        let namespace = NamespaceName::default();
        let id = machine_id(&namespace, "m").unwrap();
        let registration = Registration::new(id, machines(&namespace), "10.0.0.1", 0);
        Arc::new(Instance { isolate, health, ..Instance::registered(registration, None) })
    }

    #[test]
    fn the_worst_counts() {
        use Health::{Critical as C, Passing as P, Warning as W};
        for (own, of_machines, expected) in [
            (P, vec![], P),
            (W, vec![], W),
            (P, vec![(false, P)], P),
            (P, vec![(false, W)], W),
            (W, vec![(false, P)], W),
            (P, vec![(false, P), (false, C)], C),
            (P, vec![(true, P)], C),
            (C, vec![(false, P)], C),
        ] {
            let id = InstanceId::parse("default/i").unwrap();
            let registration = Registration::new(id, ServiceKey::parse("default/s").unwrap(), "h", 1);
            let list: Vec<_> = of_machines.iter().map(|(isolate, health)| machine(*isolate, *health)).collect();
            let one =
                Instance { health: own, machines: Machines::new(list), ..Instance::registered(registration, None) };
            assert_eq!((one.overall(), one.is_usable()), (expected, expected != C), "{own:?} {of_machines:?}");
        }
    }

    /// A machine's id is allowed only in the service of machines, and only machines are allowed in that service.
    #[test]
    fn machines_and_instances_are_told_apart() {
        let namespace = NamespaceName::default();
        let id = |text: &str| InstanceId::new(&namespace, text).unwrap();
        let service = ServiceKey::new(&namespace, "s").unwrap();
        for (id, service, good) in [
            (machine_id(&namespace, "m").unwrap(), machines(&namespace), true),
            (id("i"), service.clone(), true),
            (id("i"), machines(&namespace), false),
            (machine_id(&namespace, "m").unwrap(), service, false),
        ] {
            let registration = Registration::new(id.clone(), service.clone(), "h", 1);
            assert_eq!(registration.check(&Limits::default()).is_ok(), good, "{id:?} {service:?}");
        }
    }
}
