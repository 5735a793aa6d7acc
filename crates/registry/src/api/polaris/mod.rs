//! PolarisMesh's API, with the same messages and answers over gRPC and HTTP. An answer has a code and a text in the message; the HTTP status follows
//! the code.
//!
//! Supported: registration, heartbeats, discovery of instances, services and namespaces, over HTTP their console API ([`console`]); rules of routing, rate limits, circuit breakers and fault
//! detection (`rules`). Not supported: other rules (lanes, lossless, allow lists …), which are always answered with an empty list; contracts,
//! aliases. Configuration files are [`config`]'s, over gRPC.

pub(super) mod code;
mod config;
mod console;
mod http;
mod lists;
mod rules;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use super::auth::Caller;
use super::grpc::proto::polaris as pb;
use super::request::named;
use super::{ApiError, Context, RESERVED};
use crate::model::Digest;
use crate::rights::{Access, Resource};
use crate::{
    Beat, Check, CheckKind, Health, Instance, InstanceId, Location, Metadata, NamespaceName, Registration, ServiceKey,
    ServiceSnapshot, WriteError,
};

use code::code_of;
pub(super) use http::{handle, show};
pub(super) use rules::Shared;
#[doc(hidden)]
pub use rules::read_any;
use rules::{Served, Sort};

/// Number of heartbeat intervals in a lease: Polaris' SDKs send one heartbeat per interval, and its server waits for three.
const BEATS: u32 = 3;
/// Default interval between heartbeats in seconds.
const DEFAULT_TTL: u32 = 5;
/// `HealthCheck.type`: health by the instance's heartbeats.
const HEARTBEAT: i32 = 1;
/// Maximum number of services, or namespaces, in an answer.
const MOST: usize = 10_000;

/// Values of `DiscoverRequest.type`.
mod kind {
    pub(super) const INSTANCE: i32 = 1;
    pub(super) const CLUSTER: i32 = 2;
    pub(super) const SERVICES: i32 = 6;
    pub(super) const NAMESPACES: i32 = 12;
    /// Types of rules that are not supported: lanes, lossless, allow lists.
    pub(super) const NO_RULES: [i32; 3] = [100, 103, 104];
}

/// A request's context: the caller and its address.
pub(super) struct Asking<'a> {
    pub(super) context: &'a Context,
    pub(super) caller: Caller,
    pub(super) peer: IpAddr,
}

/// Returns an answer with only a code and a text.
pub(super) fn response(code: u32, info: impl Into<String>) -> pb::Response {
    pb::Response { code: Some(code), info: Some(info.into()), ..Default::default() }
}

fn answer(result: Result<pb::Response, ApiError>) -> pb::Response {
    result.unwrap_or_else(|error| response(code_of(&error), error.to_string()))
}

/// Returns an instance's id: the given one, or one derived from service, host and port. The protocol is not included, because heartbeats do not have
/// it.
fn identity(ns: &NamespaceName, id: &str, service: &str, host: &str, port: u32) -> Result<InstanceId, ApiError> {
    if !id.is_empty() {
        return Ok(InstanceId::new(ns, id)?);
    }
    if host.is_empty() {
        return Err(ApiError::bad("expected the instance's id, or its service, host and port"));
    }
    Ok(InstanceId::derived(&ServiceKey::new(ns, service)?, host, port_of(port)?, ""))
}

fn port_of(port: u32) -> Result<u16, ApiError> {
    u16::try_from(port).map_err(|_| ApiError::bad(format!("port = {port}: expected 0 to 65535")))
}

fn identity_of(ns: &NamespaceName, sent: &pb::Instance) -> Result<InstanceId, ApiError> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    identity(ns, &text(&sent.id), &text(&sent.service), &text(&sent.host), sent.port.unwrap_or(0))
}

impl Asking<'_> {
    /// Registers an instance.
    pub(super) async fn register(&self, sent: pb::Instance) -> pb::Response {
        answer(self.try_register(sent).await)
    }

    async fn try_register(&self, sent: pb::Instance) -> Result<pb::Response, ApiError> {
        let ns = named(sent.namespace.as_deref())?;
        self.caller.needs(
            Access::Write,
            Resource::service(sent.service.as_deref().unwrap_or_default()),
            ns.as_str(),
        )?;
        let id = identity_of(&ns, &sent)?;
        self.context.needs_instances(&self.caller, Access::Write, std::slice::from_ref(&id)).await?;
        let shown = pb::Instance {
            id: Some(id.local().to_owned()),
            service: sent.service.clone(),
            namespace: Some(ns.as_str().to_owned()),
            host: sent.host.clone(),
            port: sent.port,
            ..Default::default()
        };
        let row = registration(&ns, id.clone(), sent)?;
        if first(self.context.registry.register(vec![row]).await)?.changed() {
            self.context.audit(&self.caller, self.peer, "polaris/register", ns.as_str(), id.local());
        }
        Ok(pb::Response { instance: Some(shown), ..response(code::OK, "execute success") })
    }

    /// Deregisters an instance. A missing one is answered as at Polaris: with success, since it is gone.
    pub(super) async fn deregister(&self, sent: pb::Instance) -> pb::Response {
        answer(self.try_deregister(sent).await)
    }

    async fn try_deregister(&self, sent: pb::Instance) -> Result<pb::Response, ApiError> {
        let ns = named(sent.namespace.as_deref())?;
        self.caller.enters(Access::Write, ns.as_str())?;
        let id = identity_of(&ns, &sent)?;
        self.context.needs_instances(&self.caller, Access::Write, std::slice::from_ref(&id)).await?;
        let removed = self.context.registry.deregister(std::slice::from_ref(&id)).await;
        match removed.into_iter().next().unwrap_or(Err(WriteError::Stopped)) {
            Ok(_) => self.context.audit(&self.caller, self.peer, "polaris/deregister", ns.as_str(), id.local()),
            Err(WriteError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(pb::Response {
            instance: Some(pb::Instance { service_token: None, ..sent }),
            ..response(code::OK, "execute success")
        })
    }

    /// Renews the lease of an instance.
    pub(super) async fn heartbeat(&self, sent: &pb::Instance) -> pb::Response {
        answer(self.try_heartbeat(sent).await)
    }

    async fn try_heartbeat(&self, sent: &pb::Instance) -> Result<pb::Response, ApiError> {
        let ns = named(sent.namespace.as_deref())?;
        self.caller.enters(Access::Write, ns.as_str())?;
        let id = identity_of(&ns, sent)?;
        self.context.needs_instances(&self.caller, Access::Write, std::slice::from_ref(&id)).await?;
        match self.context.registry.heartbeat(std::slice::from_ref(&id)).await.first() {
            Some(Beat::Known) => {}
            _ => return Err(ApiError::NotFound { what: "instance", name: id.local().to_owned() }),
        }
        let checked = self.context.registry.instance(&id).is_none_or(|instance| instance.check.is_some());
        if checked {
            Ok(response(code::OK, "execute success"))
        } else {
            Ok(response(code::NO_HEALTH_CHECK, "no health check"))
        }
    }

    /// Renews the leases of many instances. Unknown ones are not reported: the answer has no field for them.
    pub(super) async fn heartbeats(&self, sent: &[pb::InstanceHeartbeat]) -> Result<(), ApiError> {
        self.context.batch("the list of heartbeats", sent.len())?;
        let mut ids = Vec::with_capacity(sent.len());
        for beat in sent {
            let ns = named(Some(&beat.namespace))?;
            self.caller.enters(Access::Write, ns.as_str())?;
            let id = identity(&ns, &beat.instance_id, &beat.service, &beat.host, beat.port)?;
            ids.push(id);
        }
        self.context.needs_instances(&self.caller, Access::Write, &ids).await?;
        self.context.registry.heartbeat(&ids).await;
        Ok(())
    }

    /// Answers a discovery of any type.
    pub(super) async fn discover(&self, asked: &pb::DiscoverRequest) -> pb::DiscoverResponse {
        let found = self.try_discover(asked).await.unwrap_or_else(|error| pb::DiscoverResponse {
            code: Some(code_of(&error)),
            info: Some(error.to_string()),
            service: asked.service.clone(),
            ..Default::default()
        });
        pb::DiscoverResponse { r#type: asked.r#type, ..found }
    }

    async fn try_discover(&self, asked: &pb::DiscoverRequest) -> Result<pb::DiscoverResponse, ApiError> {
        let wanted = asked.service.clone().unwrap_or_default();
        let registry = &self.context.registry;
        if asked.r#type == kind::NAMESPACES {
            let names = registry.namespaces();
            let seen = names.iter().filter(|name| self.caller.may_see(name.as_str())).take(MOST);
            let namespaces = seen.map(|name| pb::Namespace { name: Some(name.as_str().to_owned()) }).collect();
            return Ok(pb::DiscoverResponse { namespaces, ..found(code::OK, wanted) });
        }
        if asked.r#type == kind::SERVICES {
            return self.services(wanted).await;
        }
        let ns = named(wanted.namespace.as_deref())?;
        let name = wanted.name.as_deref().unwrap_or_default();
        self.caller.needs(Access::Read, Resource::service(name), ns.as_str())?;
        match asked.r#type {
            kind::INSTANCE | kind::CLUSTER => {
                let name = wanted.name.clone().unwrap_or_default();
                let key = ServiceKey::new(&ns, &name)?;
                let snapshot = registry.snapshot(&key).ok_or(ApiError::NotFound { what: "service", name })?;
                let service = described(&snapshot);
                if wanted.revision.is_some() && wanted.revision == service.revision {
                    return Ok(found(code::NO_CHANGE, service));
                }
                let healthy = asked.filter.as_ref().is_some_and(|filter| filter.only_healthy_instance);
                let instances = snapshot.instances.iter().filter(|it| !healthy || it.overall() != Health::Critical);
                let instances = instances.map(|instance| shown(instance)).collect();
                Ok(pb::DiscoverResponse { instances, ..found(code::OK, service) })
            }
            none if kind::NO_RULES.contains(&none) => Ok(found(code::OK, unruled(wanted))),
            rules if Sort::of(rules).is_some() => Ok(self.rules(rules, &ns, wanted)),
            other => Ok(pb::DiscoverResponse {
                info: Some(format!("discovery of type {other} is not known")),
                ..found(code::NO_SUCH_RESOURCE, wanted)
            }),
        }
    }
}

impl Asking<'_> {
    /// Returns the services of the wanted namespace; without one, of all namespaces that the caller may read.
    async fn services(&self, wanted: pb::Service) -> Result<pb::DiscoverResponse, ApiError> {
        let named_in = wanted.namespace.as_deref().filter(|name| !name.is_empty());
        let ns = named_in.map(|name| named(Some(name))).transpose()?;
        if let Some(ns) = &ns {
            self.caller.enters(Access::Read, ns.as_str())?;
        }
        let (registry, caller) = (self.context.registry.clone(), self.caller.clone());
        let list = move || {
            let mut services = registry.services(ns.as_ref());
            services.retain(|service| caller.may_read(&service.key));
            let services: Vec<pb::Service> = services.iter().take(MOST).map(|service| listed(service)).collect();
            let revision = Some(revision_of(&services));
            (services, revision)
        };
        let (services, revision) = self.context.lists.apart(list).await?;
        if wanted.revision == revision {
            return Ok(found(code::NO_CHANGE, wanted));
        }
        let wanted = pb::Service { metadata: HashMap::new(), revision, ..wanted };
        Ok(pb::DiscoverResponse { services, ..found(code::OK, wanted) })
    }

    /// Returns the rules for a service, which need not be registered. The caller may read the namespace.
    fn rules(&self, kind: i32, ns: &NamespaceName, wanted: pb::Service) -> pb::DiscoverResponse {
        let service = ServiceKey::new(ns, wanted.name.as_deref().unwrap_or_default()).ok();
        let served = Sort::of(kind).zip(service);
        let served =
            served.and_then(|(sort, service)| self.context.rules.served(&self.context.registry, sort, &service));
        let Some(served) = served else { return found(code::OK, unruled(wanted)) };
        let Served { revision, content } = &*served;
        let known = wanted.revision.as_ref() == Some(revision);
        let service = pb::Service { revision: Some(revision.clone()), ..unruled(wanted) };
        if known {
            return found(code::NO_CHANGE, service);
        }
        let pb::DiscoverResponse { code, info, service, .. } = found(code::OK, service);
        pb::DiscoverResponse { code, info, service, ..content.clone() }
    }
}

/// Returns the requested service without a revision: the client's own revision would mean that there are rules.
fn unruled(wanted: pb::Service) -> pb::Service {
    pb::Service { name: wanted.name, namespace: wanted.namespace, metadata: HashMap::new(), revision: None }
}

fn first(rows: Vec<Result<crate::Written, WriteError>>) -> Result<crate::Written, ApiError> {
    rows.into_iter().next().unwrap_or(Err(WriteError::Stopped)).map_err(ApiError::from)
}

fn found(code: u32, service: pb::Service) -> pb::DiscoverResponse {
    let info = if code == code::NO_CHANGE { "discover data is no change" } else { "execute success" };
    pb::DiscoverResponse { code: Some(code), info: Some(info.into()), service: Some(service), ..Default::default() }
}

/// Describes a service. Its revision is a text that differs whenever the content does, also between stores.
fn described(snapshot: &ServiceSnapshot) -> pb::Service {
    pb::Service {
        name: Some(snapshot.key.name().to_owned()),
        namespace: Some(snapshot.key.namespace().to_owned()),
        metadata: snapshot.metadata.as_ref().map(visible).unwrap_or_default(),
        revision: Some(format!("{}-{}", snapshot.revision, snapshot.digest)),
    }
}

/// Describes a service in a list: like Polaris, without the revision of its instances, which is none of the list's.
fn listed(snapshot: &ServiceSnapshot) -> pb::Service {
    pb::Service { revision: None, ..described(snapshot) }
}

/// Returns the revision of a list of services: a digest of its content.
fn revision_of(services: &[pb::Service]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for service in services {
        let metadata: BTreeMap<_, _> = service.metadata.iter().collect();
        parts.extend([&service.namespace, &service.name].map(|name| name.clone().unwrap_or_default()));
        parts.push(metadata.len().to_string());
        parts.extend(metadata.into_iter().flat_map(|(key, value)| [key.clone(), value.clone()]));
    }
    Digest::of_parts(parts.iter().map(String::as_str)).to_string()
}

fn visible(metadata: &Metadata) -> HashMap<String, String> {
    let pairs = metadata.iter().filter(|(key, _)| !key.starts_with(RESERVED));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn registration(ns: &NamespaceName, id: InstanceId, sent: pb::Instance) -> Result<Registration, ApiError> {
    let service = ServiceKey::new(ns, &sent.service.unwrap_or_default())?;
    let small = |what: &str, number: u32| {
        u16::try_from(number).map_err(|_| ApiError::bad(format!("{what} = {number}: expected at most 65535")))
    };
    if let Some(key) = sent.metadata.keys().find(|key| key.starts_with(RESERVED)) {
        return Err(ApiError::bad(format!("metadata: {key:?} begins with {RESERVED:?}, which is reserved")));
    }
    let checked = sent.enable_health_check.unwrap_or(sent.health_check.is_some());
    let check = checked.then(|| {
        let beat = sent.health_check.and_then(|check| check.heartbeat).and_then(|beat| beat.ttl);
        let ttl = beat.filter(|ttl| *ttl > 0).unwrap_or(DEFAULT_TTL);
        Check {
            kind: CheckKind::Ttl { ttl: Duration::from_secs(u64::from(ttl.saturating_mul(BEATS))) },
            deregister_after: None,
        }
    });
    let location = sent.location.unwrap_or_default();
    let part = |part: Option<String>| part.unwrap_or_default().into();
    let row = Registration::new(id, service, &sent.host.unwrap_or_default(), port_of(sent.port.unwrap_or(0))?);
    Ok(Registration {
        protocol: sent.protocol.unwrap_or_default(),
        version: sent.version.unwrap_or_default(),
        weight: sent.weight.map_or(Ok(row.weight), |weight| small("weight", weight))?,
        priority: small("priority", sent.priority.unwrap_or(0))?,
        location: Location { region: part(location.region), zone: part(location.zone), campus: part(location.campus) },
        metadata: Metadata::from_pairs(&sent.metadata.into_iter().collect::<BTreeMap<_, _>>())?,
        // A registration is a sign of life; without a check, the health is as given.
        health: match (sent.healthy, &check) {
            (Some(false), None) => Some(Health::Critical),
            _ => Some(Health::Passing),
        },
        check,
        isolate: sent.isolate,
        ..row
    })
}

fn shown(instance: &Instance) -> pb::Instance {
    let ttl = instance.check.as_ref().and_then(|check| check.time_to_live());
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    pb::Instance {
        id: Some(instance.id.local().to_owned()),
        service: Some(instance.service.name().to_owned()),
        namespace: Some(instance.namespace().to_owned()),
        host: Some(instance.host.to_string()),
        port: Some(u32::from(instance.port)),
        protocol: text(&instance.protocol),
        version: text(&instance.version),
        priority: Some(u32::from(instance.priority)),
        weight: Some(u32::from(instance.weight)),
        health_check: ttl.map(|ttl| pb::HealthCheck {
            r#type: HEARTBEAT,
            heartbeat: Some(pb::HeartbeatHealthCheck {
                ttl: Some(u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX).div_ceil(BEATS)),
            }),
        }),
        healthy: Some(instance.overall() != Health::Critical),
        isolate: Some(instance.isolate),
        location: Some(pb::Location {
            region: text(&instance.location.region),
            zone: text(&instance.location.zone),
            campus: text(&instance.location.campus),
        }),
        metadata: visible(&instance.metadata),
        revision: Some(instance.revision.to_string()),
        service_token: None,
        enable_health_check: Some(instance.check.is_some()),
    }
}

/// Returns a time in the format of Polaris' own server, in UTC.
fn time_of(time: std::time::SystemTime) -> String {
    let time = humantime_serde::re::humantime::format_rfc3339_seconds(time);
    time.to_string().replace('T', " ").replace('Z', "")
}
