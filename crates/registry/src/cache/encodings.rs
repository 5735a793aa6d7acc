//! What fronts have made of something that never changes (a service's snapshot, a piece of its instances), kept for whoever asks next.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

/// Encodings of one thing. Few of them are asked for, so there is room for none before that.
#[derive(Debug, Default)]
pub(crate) struct Encodings(Mutex<Vec<(Encoding, Form, Encoded)>>);

/// An encoding that is made by the first who asks; others wait for that.
type Encoded = Arc<OnceLock<Bytes>>;

/// Whether an encoding is one for compressed bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Plain,
    Packed,
}

/// What a front makes of a service, or of a piece of one.
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
    /// Those that are not critical.
    NacosHealthy,
    /// The digest of [`Encoding::NacosHosts`].
    NacosDigest,
    /// The service's entry of Consul's `/v1/catalog/services`: name and tags.
    ConsulTags,
    /// Consul's checks of a piece's instances, without the brackets of the list.
    ConsulChecks,
    /// Those that are passing.
    ConsulChecksPassing,
    /// Those that are warning.
    ConsulChecksWarning,
    /// Those that are critical.
    ConsulChecksCritical,
    /// Eureka's instances of a piece, XML.
    EurekaXml,
    /// The same, JSON, without the brackets of the list.
    EurekaJson,
    /// How many instances of a piece have which of Eureka's statuses.
    EurekaStatuses,
    /// Prometheus' http_sd of a piece's usable instances, without the brackets of the list.
    HttpSd,
    /// The same of all instances.
    HttpSdAll,
    /// xDS: a service's ClusterLoadAssignment.
    XdsEndpoints,
}

impl Encodings {
    /// The bytes that `make` gives; made once, then shared.
    pub(crate) fn get(&self, encoding: Encoding, make: impl FnOnce() -> Bytes) -> Bytes {
        self.slot(encoding, Form::Plain).get_or_init(make).clone()
    }

    /// As [`Encodings::get`], of the form for compressed bodies.
    pub(crate) fn get_packed(&self, encoding: Encoding, make: impl FnOnce() -> Bytes) -> Bytes {
        self.slot(encoding, Form::Packed).get_or_init(make).clone()
    }

    /// What [`Encodings::get`] has made, if it has.
    pub(crate) fn known(&self, encoding: Encoding) -> Option<Bytes> {
        let encodings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = encodings.iter().find(|(known, form, _)| (*known, *form) == (encoding, Form::Plain))?;
        found.2.get().cloned()
    }

    /// Whether [`Encodings::get_packed`] (`packed`) or [`Encodings::get`] has made it.
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
