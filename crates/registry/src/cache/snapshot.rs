//! A service at one revision.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::encodings::{Encoding, Encodings};
use super::instances::Instances;
use crate::model::{Digest, Health, Instance, InstanceId, Metadata, Revision, ServiceKey};

/// A service with its instances, never changed: a consistent picture.
#[derive(Debug)]
pub struct ServiceSnapshot {
    /// The service.
    pub key: ServiceKey,
    /// The last commit that changed the service. Two snapshots have the same revision if and only if they have the same content.
    pub revision: Revision,
    /// The service's own metadata; `None` for a service that exists only through its instances.
    pub metadata: Option<Metadata>,
    /// The instances, sorted by id.
    pub instances: Instances,
    /// Digest of all instances, independent of their order; equal on all nodes with the same content.
    pub digest: Digest,
    encodings: Encodings,
}

impl ServiceSnapshot {
    pub(crate) fn empty(key: ServiceKey) -> ServiceSnapshot {
        ServiceSnapshot::new(key, Revision(0), None, &[])
    }

    /// Makes a snapshot of `instances`, which are sorted by id.
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

    /// Returns a copy with `changes` (`None`: removed) at `revision`.
    pub(crate) fn with(
        &self,
        revision: Revision,
        metadata: Option<Metadata>,
        changes: BTreeMap<InstanceId, Option<Arc<Instance>>>,
    ) -> ServiceSnapshot {
        let (instances, digest) = self.instances.with(changes, self.digest);
        ServiceSnapshot::of(self.key.clone(), revision, metadata, instances, digest)
    }

    /// True if the service exists: it has instances, or a record of its own.
    pub fn exists(&self) -> bool {
        !self.instances.is_empty() || self.metadata.is_some()
    }

    /// Returns the number of instances that traffic may go to.
    pub fn usable(&self) -> usize {
        self.instances.iter().filter(|instance| instance.is_usable()).count()
    }

    /// Returns the number of instances that are not critical.
    pub fn healthy(&self) -> usize {
        self.instances.iter().filter(|instance| instance.overall() != Health::Critical).count()
    }

    /// Returns the instance with this id.
    pub fn instance(&self, id: &InstanceId) -> Option<&Arc<Instance>> {
        self.instances.get(id)
    }

    /// Returns the encoding that `make` makes of this snapshot; made once, then shared. `make` must depend on the snapshot alone.
    pub fn encoded(&self, encoding: Encoding, make: impl FnOnce(&ServiceSnapshot) -> Bytes) -> Bytes {
        self.encodings.get(encoding, || make(self))
    }

    /// Returns the encodings of the service as a whole.
    pub(crate) fn encodings(&self) -> &Encodings {
        &self.encodings
    }
}
