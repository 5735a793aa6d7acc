//! A service as it was at one revision.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

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
    /// Few of a service's encodings are asked for, so there is room for none before that.
    encodings: Mutex<Vec<(Encoding, Form, Encoded)>>,
}

/// An encoding that is made by the first who asks; others wait for that.
type Encoded = Arc<OnceLock<Bytes>>;

/// Whether an encoding is one for compressed bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Packed,
}

/// What a front makes of a whole service, kept with the snapshot for whoever asks next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The native front's JSON.
    NativeJson,
    /// The same, gzip.
    NativeJsonGzip,
    /// Consul's `/v1/health/service`.
    ConsulHealth,
    /// Consul's `/v1/health/service?passing`.
    ConsulPassing,
    /// Consul's `/v1/catalog/service`.
    ConsulCatalog,
    /// The service's entry of Consul's `/v1/catalog/services`: name and tags.
    ConsulTags,
    /// Consul's checks of all instances, without the brackets of the list.
    ConsulChecks,
    /// Those that are passing.
    ConsulChecksPassing,
    /// Those that are warning.
    ConsulChecksWarning,
    /// Those that are critical.
    ConsulChecksCritical,
    /// Eureka's application, XML.
    EurekaXml,
    /// Eureka's application, JSON.
    EurekaJson,
    /// How many instances have which of Eureka's statuses.
    EurekaStatuses,
    /// Prometheus' http_sd of the usable instances, without the brackets of the list.
    HttpSd,
    /// The same of all instances.
    HttpSdAll,
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
        let digest = instances.iter().fold(Digest::default(), |sum, instance| sum.plus(instance.digest));
        ServiceSnapshot::of(key, revision, metadata, Instances::new(instances), digest)
    }

    fn of(
        key: ServiceKey,
        revision: Revision,
        metadata: Option<Metadata>,
        instances: Instances,
        digest: Digest,
    ) -> ServiceSnapshot {
        ServiceSnapshot { key, revision, metadata, instances, digest, encodings: Mutex::default() }
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
        self.instances.iter().filter(|instance| instance.health != Health::Critical).count()
    }

    /// The instance with this id.
    pub fn instance(&self, id: &InstanceId) -> Option<&Arc<Instance>> {
        self.instances.get(id)
    }

    /// The bytes that `make` gives of this snapshot; made once, then shared. `make` depends on nothing but the snapshot.
    pub fn encoded(&self, encoding: Encoding, make: impl FnOnce(&ServiceSnapshot) -> Bytes) -> Bytes {
        self.slot(encoding, Form::Plain).get_or_init(|| make(self)).clone()
    }

    /// As [`ServiceSnapshot::encoded`], of the form for compressed bodies.
    pub(crate) fn encoded_packed(&self, encoding: Encoding, make: impl FnOnce(&ServiceSnapshot) -> Bytes) -> Bytes {
        self.slot(encoding, Form::Packed).get_or_init(|| make(self)).clone()
    }

    /// What [`ServiceSnapshot::encoded`] has made, if it has.
    pub(crate) fn known(&self, encoding: Encoding) -> Option<Bytes> {
        let encodings = self.encodings.lock().unwrap_or_else(PoisonError::into_inner);
        let found = encodings.iter().find(|(known, form, _)| (*known, *form) == (encoding, Form::Plain))?;
        found.2.get().cloned()
    }

    fn slot(&self, encoding: Encoding, form: Form) -> Encoded {
        let mut encodings = self.encodings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., found)) = encodings.iter().find(|(known, of, _)| (*known, *of) == (encoding, form)) {
            return Arc::clone(found);
        }
        let slot = Encoded::default();
        encodings.push((encoding, form, Arc::clone(&slot)));
        slot
    }
}
