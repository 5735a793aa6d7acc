//! Machines: what instances run on, with checks that count for all of them.
//!
//! A machine (Consul calls it a node) may have checks of its own, and may be taken out as a whole. It is kept as an instance of the
//! service `kingpost.machines` of its namespace. So the store, leases, probes and verdicts treat a machine as every instance, and no
//! table and no message between nodes is added. An instance names its machines in its metadata ([`ON`], [`AGENT`]); the cache joins
//! the two ([`super::Instance::machines`]).

use std::sync::Arc;

use super::limits::Invalid;
use super::{Digest, Health, Instance, InstanceId, NamespaceName, ServiceKey};

/// The service that machines are instances of. No front lists it.
const SERVICE: &str = "kingpost.machines";
/// What the instance ids of machines begin with.
const ID: &str = "kingpost.machine:";
/// The metadata key of the machine that an instance runs on; of a machine, its own name.
pub const ON: &str = "kingpost.machine";
/// The metadata key of the machine whose agent an instance was registered with, where that is not the machine under [`ON`].
pub const AGENT: &str = "kingpost.from";

/// The machines of an instance, as of the snapshot that the instance is from: mostly none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machines(Option<Arc<[Arc<Instance>]>>);

/// The instance id of the machine `name`, which ends with the name.
///
/// # Errors
/// `name` is too long for that, or has a control character.
pub fn machine_id(namespace: &NamespaceName, name: &str) -> Result<InstanceId, Invalid> {
    InstanceId::new(namespace, &format!("{ID}{name}"))
}

/// The service that the machines of a namespace are instances of.
pub fn machines(namespace: &NamespaceName) -> ServiceKey {
    ServiceKey::of_machines(namespace, SERVICE)
}

impl ServiceKey {
    /// Whether the instances of this service are machines.
    pub fn is_of_machines(&self) -> bool {
        self.name() == SERVICE
    }
}

impl InstanceId {
    /// Whether this is the id of a machine.
    pub fn is_of_machine(&self) -> bool {
        self.machine_name().is_some()
    }

    /// The name of the machine that this is the id of.
    pub(crate) fn machine_name(&self) -> Option<&str> {
        self.local().strip_prefix(ID)
    }
}

impl Machines {
    pub(crate) fn new(machines: Vec<Arc<Instance>>) -> Machines {
        Machines((!machines.is_empty()).then(|| machines.into()))
    }

    /// Each machine, as the instance that it is kept as.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.0.iter().flat_map(|machines| machines.iter())
    }
}

impl Instance {
    /// The worst of what the instance's own checks and those of its machines say. A machine that is taken out is critical.
    pub fn overall(&self) -> Health {
        let of_machine = |machine: &Arc<Instance>| if machine.isolate { Health::Critical } else { machine.health };
        self.machines.iter().map(of_machine).fold(self.health, Health::max)
    }

    /// The names of the machines that the instance says it is on, in its metadata.
    pub(crate) fn machine_names(&self) -> impl Iterator<Item = &str> {
        [ON, AGENT].into_iter().filter_map(|key| self.metadata.get(key))
    }

    /// The digest of the instance with its machines.
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

    /// Only a machine has a machine's id, and only a machine is in the service of machines.
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
