//! A service as it was at one revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::encodings::{Encoding, Encodings};
use super::instances::Instances;
use crate::model::{Digest, Health, Instance, InstanceId, Metadata, Revision, ServiceKey};

/// A service with its instances, never changed: whoever has one has a whole picture.
#[derive(Debug)]
pub struct ServiceSnapshot {
    /// Which service.
    pub key: ServiceKey,
    /// The last commit that changed anything in it. Another revision is another content, and the other way round.
    pub revision: Revision,
    /// What was said about the service itself; `None` where nobody did: it then exists as long as it has instances.
    pub metadata: Option<Metadata>,
    /// Sorted by id.
    pub instances: Instances,
    /// Of all instances, whatever their order; equal on all nodes that hold the same.
    pub digest: Digest,
    encodings: Encodings,
}

impl ServiceSnapshot {
    pub(crate) fn empty(key: ServiceKey) -> ServiceSnapshot {
        ServiceSnapshot::new(key, Revision(0), None, &[])
    }

    /// `instances` sorted by id.
    pub(crate) fn new(
        key: ServiceKey,
        revision: Revision,
        metadata: Option<Metadata>,
        instances: &[Arc<Instance>],
    ) -> ServiceSnapshot {
        let digest =
            instances.iter().fold(Digest::default(), |sum, instance| sum.plus(instance.digest_with_machines()));
        ServiceSnapshot::of(key, revision, metadata, Instances::new(instances), digest)
    }

    fn of(
        key: ServiceKey,
        revision: Revision,
        metadata: Option<Metadata>,
        instances: Instances,
        digest: Digest,
    ) -> ServiceSnapshot {
        ServiceSnapshot { key, revision, metadata, instances, digest, encodings: Encodings::default() }
    }

    /// This one with `changes` (`None`: gone) at `revision`.
    pub(crate) fn with(
        &self,
        revision: Revision,
        metadata: Option<Metadata>,
        changes: BTreeMap<InstanceId, Option<Arc<Instance>>>,
    ) -> ServiceSnapshot {
        let (instances, digest) = self.instances.with(changes, self.digest);
        ServiceSnapshot::of(self.key.clone(), revision, metadata, instances, digest)
    }

    /// Whether the service exists: it has instances, or somebody said something about it.
    pub fn exists(&self) -> bool {
        !self.instances.is_empty() || self.metadata.is_some()
    }

    /// How many instances traffic may go to.
    pub fn usable(&self) -> usize {
        self.instances.iter().filter(|instance| instance.is_usable()).count()
    }

    /// How many instances are not critical.
    pub fn healthy(&self) -> usize {
        self.instances.iter().filter(|instance| instance.overall() != Health::Critical).count()
    }

    /// The instance with this id.
    pub fn instance(&self, id: &InstanceId) -> Option<&Arc<Instance>> {
        self.instances.get(id)
    }

    /// The bytes that `make` gives of this snapshot; made once, then shared. `make` depends on nothing but the snapshot.
    pub fn encoded(&self, encoding: Encoding, make: impl FnOnce(&ServiceSnapshot) -> Bytes) -> Bytes {
        self.encodings.get(encoding, || make(self))
    }

    /// What fronts have made of the service as a whole.
    pub(crate) fn encodings(&self) -> &Encodings {
        &self.encodings
    }
}
