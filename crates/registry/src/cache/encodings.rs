//! Encodings of immutable objects (a service's snapshot, a piece of its instances), cached for later requests.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

/// Encodings of one object. Few of them are ever requested, so each gets its slot at the first request.
#[derive(Debug, Default)]
pub(crate) struct Encodings(Mutex<Vec<(Encoding, Form, Encoded)>>);

/// An encoding, made by the first caller; others wait for it.
type Encoded = Arc<OnceLock<Bytes>>;

/// The form of an encoding; `Packed` is for compressed bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Packed,
}

/// A front's encoding of a service, or of a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// The native front's instances of a piece, JSON, without the brackets of the list.
    NativeJson,
    /// Consul's `/v1/health/service` of a piece, without the brackets of the list.
    ConsulHealth,
    /// Consul's `/v1/health/service?passing` of a piece, without the brackets of the list.
    ConsulPassing,
    /// Consul's `/v1/catalog/service` of a piece, without the brackets of the list.
    ConsulCatalog,
    /// Nacos' hosts of a piece, without the brackets of the list.
    NacosHosts,
    /// Nacos' hosts of a piece, only those that are not critical.
    NacosHealthy,
    /// Nacos' hosts of a piece, all of them shown as healthy.
    NacosProtected,
    /// The digest of [`Encoding::NacosHosts`].
    NacosDigest,
    /// The service's entry of Consul's `/v1/catalog/services`: name and tags.
    ConsulTags,
    /// Consul's checks of a piece's instances, without the brackets of the list.
    ConsulChecks,
    /// Consul's checks of a piece's passing instances.
    ConsulChecksPassing,
    /// Consul's checks of a piece's instances in the state warning.
    ConsulChecksWarning,
    /// Consul's checks of a piece's critical instances.
    ConsulChecksCritical,
    /// Eureka's instances of a piece, XML.
    EurekaXml,
    /// Eureka's instances of a piece, JSON, without the brackets of the list.
    EurekaJson,
    /// Number of a piece's instances in each of Eureka's statuses.
    EurekaStatuses,
    /// Prometheus' http_sd of a piece's usable instances, without the brackets of the list.
    HttpSd,
    /// Prometheus' http_sd of all of a piece's instances, without the brackets of the list.
    HttpSdAll,
    /// xDS: a service's ClusterLoadAssignment.
    XdsEndpoints,
}

impl Encodings {
    /// Returns the encoding that `make` makes; made once, then shared.
    pub(crate) fn get(&self, encoding: Encoding, make: impl FnOnce() -> Bytes) -> Bytes {
        self.slot(encoding, Form::Plain).get_or_init(make).clone()
    }

    /// Returns the encoding in the form for compressed bodies, like [`Encodings::get`].
    pub(crate) fn get_packed(&self, encoding: Encoding, make: impl FnOnce() -> Bytes) -> Bytes {
        self.slot(encoding, Form::Packed).get_or_init(make).clone()
    }

    /// Returns the encoding if [`Encodings::get`] has made it.
    pub(crate) fn known(&self, encoding: Encoding) -> Option<Bytes> {
        let encodings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = encodings.iter().find(|(known, form, _)| (*known, *form) == (encoding, Form::Plain))?;
        found.2.get().cloned()
    }

    /// True if [`Encodings::get_packed`] (with `packed`) or [`Encodings::get`] has made the encoding.
    pub(crate) fn made(&self, encoding: Encoding, packed: bool) -> bool {
        let form = if packed { Form::Packed } else { Form::Plain };
        let encodings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        encodings.iter().any(|(known, of, made)| (*known, *of) == (encoding, form) && made.get().is_some())
    }

    fn slot(&self, encoding: Encoding, form: Form) -> Encoded {
        let mut encodings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., found)) = encodings.iter().find(|(known, of, _)| (*known, *of) == (encoding, form)) {
            return Arc::clone(found);
        }
        let slot = Encoded::default();
        encodings.push((encoding, form, Arc::clone(&slot)));
        slot
    }
}
