//! The JSON of the native front.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::ApiError;
use crate::{
    Check, Health, Instance, InstanceId, Limits, Location, Metadata, NamespaceName, Registration, Revision, ServiceKey,
    ServiceSnapshot,
};

/// An instance in a response.
#[derive(Debug, Serialize)]
pub(super) struct Shown<'a> {
    id: &'a str,
    service: &'a str,
    host: &'a str,
    port: u16,
    protocol: &'a str,
    version: &'a str,
    weight: u16,
    priority: u16,
    isolate: bool,
    health: Health,
    location: &'a Location,
    metadata: &'a Metadata,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'a Check>,
    revision: Revision,
    created_ms: i64,
    modified_ms: i64,
}

impl<'a> From<&'a Instance> for Shown<'a> {
    fn from(instance: &'a Instance) -> Shown<'a> {
        Shown {
            id: instance.id.local(),
            service: instance.service.name(),
            host: &instance.host,
            port: instance.port,
            protocol: &instance.protocol,
            version: &instance.version,
            weight: instance.weight,
            priority: instance.priority,
            isolate: instance.isolate,
            health: instance.overall(),
            location: &instance.location,
            metadata: &instance.metadata,
            check: instance.check.as_deref(),
            revision: instance.revision,
            created_ms: instance.ctime,
            modified_ms: instance.mtime,
        }
    }
}

/// A service with its instances.
#[derive(Debug, Serialize)]
pub(super) struct ShownService<'a> {
    pub(super) namespace: &'a str,
    pub(super) service: &'a str,
    pub(super) revision: Revision,
    /// The service's own metadata; null for a service that exists only through its instances.
    pub(super) metadata: Option<&'a Metadata>,
    pub(super) instances: Vec<Shown<'a>>,
}

impl<'a> ShownService<'a> {
    pub(super) fn new(snapshot: &'a ServiceSnapshot, keep: impl Fn(&Instance) -> bool) -> ShownService<'a> {
        let kept = snapshot.instances.iter().filter(|instance| keep(instance));
        ShownService {
            namespace: snapshot.key.namespace(),
            service: snapshot.key.name(),
            revision: snapshot.revision,
            metadata: snapshot.metadata.as_ref(),
            instances: kept.map(|instance| Shown::from(&**instance)).collect(),
        }
    }
}

/// A service in a list.
#[derive(Debug, Serialize)]
pub(super) struct Listed<'a> {
    pub(super) service: &'a str,
    pub(super) revision: Revision,
    pub(super) instances: usize,
    pub(super) usable: usize,
    pub(super) protected: bool,
    pub(super) metadata: Option<&'a Metadata>,
}

/// An instance in a registration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct New {
    /// Name of the service; optional if the path names it.
    service: Option<String>,
    /// Id of the instance; by default derived from service, host, port and protocol.
    id: Option<String>,
    host: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    version: String,
    weight: Option<u16>,
    #[serde(default)]
    priority: u16,
    #[serde(default)]
    location: Location,
    #[serde(default)]
    metadata: Metadata,
    check: Option<Check>,
    isolate: Option<bool>,
    health: Option<Health>,
}

impl New {
    /// Returns the registration for the core. `service` and `id` are those of the path.
    pub(super) fn registration(
        self,
        namespace: &NamespaceName,
        service: Option<&str>,
        id: Option<&str>,
        limits: &Limits,
    ) -> Result<Registration, ApiError> {
        let same = |what: &str, path: Option<&str>, body: Option<String>| match (path, body) {
            (Some(path), Some(body)) if path != body => {
                Err(ApiError::bad(format!("{what} {body:?} in the body, {path:?} in the address: expected the same")))
            }
            (Some(path), _) => Ok(Some(path.to_owned())),
            (None, body) => Ok(body),
        };
        let service = same("service", service, self.service)?
            .ok_or_else(|| ApiError::bad("service is missing: expected the name of the instance's service"))?;
        let service = ServiceKey::new(namespace, &service)?;
        let id = match same("id", id, self.id)? {
            Some(id) => InstanceId::new(namespace, &id)?,
            None => InstanceId::derived(&service, &self.host, self.port, &self.protocol),
        };
        let beats = self.check.as_ref().is_some_and(|check| check.time_to_live().is_some());
        let mut registration = Registration::new(id, service, &self.host, self.port);
        registration.weight = self.weight.unwrap_or(registration.weight);
        let registration = Registration {
            protocol: self.protocol,
            version: self.version,
            priority: self.priority,
            location: self.location,
            metadata: self.metadata,
            check: self.check,
            isolate: self.isolate,
            // A registration is a sign of life: an expired instance becomes passing.
            health: self.health.or(beats.then_some(Health::Passing)),
            ..registration
        };
        registration.check(limits)?;
        Ok(registration)
    }
}

/// A batch of instances.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBatch {
    pub(super) instances: Vec<New>,
}

/// A list of ids.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ids<'a> {
    #[serde(borrow)]
    pub(super) ids: Vec<Cow<'a, str>>,
}

/// A report of an instance's health.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    pub(super) health: Health,
}

/// A service's own record.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewService {
    #[serde(default)]
    pub(super) metadata: Metadata,
}

/// A query for several services.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    pub(super) services: Vec<Asked>,
    #[serde(default)]
    pub(super) usable: bool,
    pub(super) zone: Option<String>,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
}

/// A service of a [`Query`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    pub(super) service: String,
    /// The revision that the client has.
    pub(super) revision: Option<Revision>,
}

/// The answer for one service.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answered<'a> {
    /// The client has the current revision.
    Unchanged { service: &'a str, revision: Revision, unchanged: bool },
    /// The service does not exist.
    Absent { service: &'a str, revision: Revision, absent: bool },
    /// The service with its instances.
    Whole(ShownService<'a>),
}

/// Outcome of one row of a batch.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Outcome<'a> {
    /// A row that was written.
    Done { id: &'a str, revision: Revision, outcome: &'static str },
    /// A row that failed.
    Failed { id: &'a str, error: Problem<'a> },
}

/// An error in a response.
#[derive(Debug, Serialize)]
pub(super) struct Problem<'a> {
    pub(super) code: &'static str,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<u64>,
}

impl From<&ApiError> for Problem<'_> {
    fn from(error: &ApiError) -> Self {
        Problem {
            code: error.code(),
            message: error.to_string(),
            limit: error.limit().map(|(key, _)| key),
            value: error.limit().map(|(_, value)| value),
        }
    }
}
