//! The registry's own gRPC service.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::super::places::Place;
use super::proto::registry as pb;
use super::{Answers, Who, while_running};
use crate::api::watch_right::WatchRight;
use crate::api::{ApiError, Context, changed, namespace, several};
use crate::rights::{Access, Resource};
use crate::{
    Beat, Change, Check, CheckKind, Health, Instance, InstanceCheck, InstanceId, Location, Metadata, NamespaceName,
    Outcome, Pace, ProbeRequest, ProbeTls, Registration, Revision, ServiceKey, WriteError, Written,
};

/// Time that a watch waits before it checks again that the client is connected.
const QUIET: Duration = Duration::from_secs(30);
/// Number of services in a response.
const PAGE: usize = 1000;

#[derive(Clone)]
pub(super) struct Native(pub(super) Arc<Context>);

/// Returns the namespace of a request, `default` if it names none.
fn named(name: &str) -> Result<NamespaceName, ApiError> {
    if name.is_empty() { Ok(NamespaceName::default()) } else { namespace(name) }
}

#[tonic::async_trait]
impl pb::registry_server::Registry for Native {
    async fn register(&self, request: Request<pb::RegisterRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        let (context, who) = (&self.0, Who::of(&request)?);
        let request = request.into_inner();
        let ns = named(&request.namespace)?;
        let caller = who.caller(context)?;
        caller.enters(Access::Write, ns.as_str())?;
        context.batch("the list of instances", request.instances.len())?;
        let rows = request.instances.into_iter().enumerate().map(|(index, instance)| {
            let row =
                registration(&ns, instance).and_then(|row| Ok(row.check(context.registry.limits()).map(|()| row)?));
            row.map_err(|error| ApiError::bad(format!("instances[{index}]: {error}")))
        });
        // The form of the batch is checked as a whole: one invalid instance makes the batch invalid.
        let rows: Vec<Registration> = rows.collect::<Result<_, _>>()?;
        for row in &rows {
            caller.needs(Access::Write, Resource::service(row.service.name()), ns.as_str())?;
        }
        let ids: Vec<InstanceId> = rows.iter().map(|row| row.id.clone()).collect();
        // An id may be another service's now.
        context.needs_instances(&caller, Access::Write, &ids).await?;
        let answers = context.registry.register(rows).await;
        let results = results(&ids, &answers);
        let changed = changed(ids, &answers);
        if !changed.is_empty() {
            who.audit(context, "grpc/register", ns.as_str(), &several(&changed));
        }
        Ok(Response::new(results))
    }

    async fn deregister(&self, request: Request<pb::DeregisterRequest>) -> Result<Response<pb::WriteResponse>, Status> {
        let (context, who) = (&self.0, Who::of(&request)?);
        let request = request.into_inner();
        let ns = named(&request.namespace)?;
        let ids = ids(context, &who, &ns, &request.ids).await?;
        let answers = context.registry.deregister(&ids).await;
        who.audit(context, "grpc/deregister", ns.as_str(), &several(&ids));
        Ok(Response::new(results(&ids, &answers)))
    }

    type HeartbeatStream = Answers<pb::HeartbeatResponse>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<pb::HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let (context, who) = (Arc::clone(&self.0), Who::of(&request)?);
        let place = who.place(&context)?;
        let asked = Arc::new((Arc::clone(&context), who, place));
        let answers = request.into_inner().then(move |message| {
            let asked = Arc::clone(&asked);
            async move {
                let (context, who, _place) = &*asked;
                let message = message?;
                who.admitted(context)?;
                let ns = named(&message.namespace)?;
                let ids = ids(context, who, &ns, &message.ids).await?;
                let beats = context.registry.heartbeat(&ids).await;
                let unknown = ids.iter().zip(&beats).filter(|(_, beat)| **beat == Beat::Unknown);
                Ok(pb::HeartbeatResponse { unknown: unknown.map(|(id, _)| id.local().to_owned()).collect() })
            }
        });
        Ok(Response::new(while_running(&self.0, answers)))
    }

    async fn discover(&self, request: Request<pb::DiscoverRequest>) -> Result<Response<pb::DiscoverResponse>, Status> {
        let (context, who) = (&self.0, Who::of(&request)?);
        let request = request.into_inner();
        let ns = named(&request.namespace)?;
        who.caller(context)?.needs(Access::Read, Resource::service(&request.service), ns.as_str())?;
        let key = ServiceKey::new(&ns, &request.service).map_err(ApiError::from)?;
        let missing = || ApiError::NotFound { what: "service", name: request.service.clone() };
        let snapshot = context.registry.snapshot(&key).ok_or_else(missing)?;
        if request.revision == snapshot.revision.0 && request.revision > 0 {
            let unchanged =
                pb::DiscoverResponse { revision: snapshot.revision.0, unchanged: true, ..Default::default() };
            return Ok(Response::new(unchanged));
        }
        let wanted = snapshot.instances.iter().filter(|instance| !request.usable || instance.is_usable());
        Ok(Response::new(pb::DiscoverResponse {
            revision: snapshot.revision.0,
            unchanged: false,
            metadata: snapshot.metadata.as_ref().map(pairs).unwrap_or_default(),
            instances: wanted.map(|instance| shown(instance)).collect(),
        }))
    }

    type WatchStream = Answers<pb::WatchResponse>;

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (context, who) = (Arc::clone(&self.0), Who::of(&request)?);
        let request = request.into_inner();
        let ns = named(&request.namespace)?;
        who.caller(&context)?.needs(Access::Read, Resource::service(&request.service), ns.as_str())?;
        let service = ServiceKey::new(&ns, &request.service).map_err(ApiError::from)?;
        let right = WatchRight::new(who.headers.clone(), service);
        let service = right.service();
        // A revision that was never issued is from another store: begins with the full state.
        let known = Revision(request.revision);
        let seen = (known > Revision(0) && known <= context.registry.revision_of(service)).then_some(known);
        let place = who.place(&context)?;
        let following = Following { context, right, seen, _place: place };
        Ok(Response::new(while_running(&self.0, stream::unfold(following, Following::next))))
    }

    async fn list_services(
        &self,
        request: Request<pb::ListServicesRequest>,
    ) -> Result<Response<pb::ListServicesResponse>, Status> {
        let (context, who) = (&self.0, Who::of(&request)?);
        let request = request.into_inner();
        let ns = named(&request.namespace)?;
        let caller = who.caller(context)?;
        caller.enters(Access::Read, ns.as_str())?;
        let registry = context.registry.clone();
        let mut all = context.lists.apart(move || registry.services(Some(&ns))).await.map_err(Status::from)?;
        all.retain(|service| caller.may_read(&service.key));
        let mut wanted = all.iter().filter(|service| service.key.name() > request.from.as_str());
        let services: Vec<_> = wanted
            .by_ref()
            .take(PAGE)
            .map(|service| pb::list_services_response::Service {
                name: service.key.name().to_owned(),
                revision: service.revision.0,
                instances: service.instances.len() as u64,
                usable: service.usable() as u64,
            })
            .collect();
        let next = wanted.next().and_then(|_| services.last()).map(|last| last.name.clone()).unwrap_or_default();
        Ok(Response::new(pb::ListServicesResponse { services, next }))
    }
}

/// A running watch.
struct Following {
    context: Arc<Context>,
    right: WatchRight,
    /// The revision that the client has; `None` if it has none.
    seen: Option<Revision>,
    _place: Place,
}

impl Following {
    async fn next(mut self) -> Option<(Result<pb::WatchResponse, Status>, Following)> {
        loop {
            let Some(seen) = self.seen else {
                let whole = self.whole();
                return Some((Ok(whole), self));
            };
            let watched = self.context.registry.watch(self.right.service(), seen, Instant::now() + QUIET).await;
            let watched = watched.map_err(ApiError::from);
            let revision = match watched.and_then(|revision| self.right.check(&self.context).map(|()| revision)) {
                Ok(revision) => revision,
                // Sent once; then the stream ends: there can be no further watch, or the client may not read the service any more.
                Err(error) => return Some((Err(Status::from(error)), self)),
            };
            if revision > seen {
                let told = self.changes(seen, revision).unwrap_or_else(|| self.whole());
                self.seen = Some(Revision(told.revision));
                return Some((Ok(told), self));
            }
            if revision < seen {
                // Another store: the revision seen is meaningless.
                self.seen = None;
            }
        }
    }

    /// Returns the full state of the service. Its revision is read first, so that a change in between is sent twice rather than lost.
    fn whole(&mut self) -> pb::WatchResponse {
        let registry = &self.context.registry;
        let before = registry.revision_of(self.right.service());
        let snapshot = registry.snapshot(self.right.service());
        let revision = snapshot.as_ref().map_or(before, |snapshot| snapshot.revision);
        self.seen = Some(revision);
        pb::WatchResponse {
            revision: revision.0,
            snapshot: true,
            absent: snapshot.is_none(),
            put: snapshot.iter().flat_map(|snapshot| &snapshot.instances).map(|instance| shown(instance)).collect(),
            removed: Vec::new(),
        }
    }

    fn changes(&self, seen: Revision, now: Revision) -> Option<pb::WatchResponse> {
        let list = self.context.registry.changes(self.right.service(), seen)?;
        let revision = list.iter().map(Change::revision).max().unwrap_or(now).max(now);
        let mut told = pb::WatchResponse { revision: revision.0, ..Default::default() };
        for change in &list {
            match change {
                Change::Put { instance, .. } => told.put.push(shown(instance)),
                Change::Removed { last, .. } => told.removed.push(last.id.local().to_owned()),
                // The existence of the service is only in a snapshot.
                Change::Service { .. } => return None,
            }
        }
        Some(told)
    }
}

/// Returns the ids of a request, all of which the caller may change.
async fn ids(context: &Context, who: &Who, ns: &NamespaceName, ids: &[String]) -> Result<Vec<InstanceId>, ApiError> {
    let caller = who.caller(context)?;
    caller.enters(Access::Write, ns.as_str())?;
    context.batch("the list of ids", ids.len())?;
    let ids: Vec<InstanceId> = ids.iter().map(|id| InstanceId::new(ns, id)).collect::<Result<_, _>>()?;
    context.needs_instances(&caller, Access::Write, &ids).await?;
    Ok(ids)
}

fn results(ids: &[InstanceId], rows: &[Result<Written, WriteError>]) -> pb::WriteResponse {
    let results = ids.iter().zip(rows).map(|(id, row)| {
        let id = id.local().to_owned();
        match row {
            Ok(written) => {
                let outcome = match written.outcome {
                    Outcome::Created => "created",
                    Outcome::Updated => "updated",
                    Outcome::Removed => "removed",
                    _ => "unchanged",
                };
                pb::WriteResult { id, revision: written.revision.0, outcome: outcome.into(), error: String::new() }
            }
            Err(error) => pb::WriteResult { id, error: error.to_string(), ..Default::default() },
        }
    });
    pb::WriteResponse { results: results.collect() }
}

fn pairs(metadata: &Metadata) -> HashMap<String, String> {
    metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Converts a number to a smaller type.
fn small<T: TryFrom<u32>>(what: &str, number: u32) -> Result<T, ApiError> {
    T::try_from(number).map_err(|_| ApiError::bad(format!("{what} = {number}: too large")))
}

fn duration(what: &str, duration: prost_types::Duration) -> Result<Duration, ApiError> {
    Duration::try_from(duration).map_err(|_| ApiError::bad(format!("{what}: expected a duration above zero")))
}

fn proto_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos() as i32,
    }
}

/// Decodes a health; `None` if it is not given.
fn health(number: i32) -> Result<Option<Health>, ApiError> {
    match pb::Health::try_from(number) {
        Ok(pb::Health::Unspecified) => Ok(None),
        Ok(pb::Health::Passing) => Ok(Some(Health::Passing)),
        Ok(pb::Health::Warning) => Ok(Some(Health::Warning)),
        Ok(pb::Health::Critical) => Ok(Some(Health::Critical)),
        Err(_) => Err(ApiError::bad(format!("health = {number}: there is no such value"))),
    }
}

/// Returns the registration of an instance for the core.
fn registration(ns: &NamespaceName, instance: pb::Instance) -> Result<Registration, ApiError> {
    let health = health(instance.health)?;
    let service = ServiceKey::new(ns, &instance.service)?;
    let port: u16 = small("port", instance.port)?;
    let id = match instance.id.as_str() {
        "" => InstanceId::derived(&service, &instance.host, port, &instance.protocol),
        id => InstanceId::new(ns, id)?,
    };
    let mut row = Registration::new(id, service, &instance.host, port);
    if let Some(weight) = instance.weight {
        row.weight = small("weight", weight)?;
    }
    let check = instance.check.map(check).transpose()?;
    // A registration is a sign of life: an expired instance becomes passing.
    let beats = check.as_ref().is_some_and(|check| check.time_to_live().is_some());
    let location = instance.location.unwrap_or_default();
    Ok(Registration {
        protocol: instance.protocol,
        version: instance.version,
        priority: small("priority", instance.priority)?,
        location: Location {
            region: location.region.into(),
            zone: location.zone.into(),
            campus: location.campus.into(),
        },
        metadata: Metadata::from_pairs(&instance.metadata.into_iter().collect::<std::collections::BTreeMap<_, _>>())?,
        check,
        isolate: instance.isolate,
        health: health.or(beats.then_some(Health::Passing)),
        ..row
    })
}

/// Returns the request of an HTTP probe; `None` for a plain one.
fn request(method: String, headers: Vec<pb::check::Header>, body: String) -> Option<Box<ProbeRequest>> {
    let headers = headers.into_iter().map(|header| (header.name, header.value)).collect();
    let request = ProbeRequest { method, headers, body };
    (!request.is_plain()).then(|| Box::new(request))
}

fn shown_header((name, value): &(String, String)) -> pb::check::Header {
    pb::check::Header { name: name.clone(), value: value.clone() }
}

fn check(sent: pb::Check) -> Result<Check, ApiError> {
    use pb::check::Kind;
    let own = |target: &pb::check::Target| Some(target.target.clone()).filter(|target| !target.is_empty());
    let kind = match sent.kind.ok_or_else(|| ApiError::bad("check: expected one of ttl, tcp, http, postgres"))? {
        Kind::Ttl(ttl) => CheckKind::Ttl { ttl: duration("ttl", ttl)? },
        Kind::Tcp(target) => {
            CheckKind::Tcp { target: own(&target), tls: target.tls.map(tls), pace: pace(target.pace)? }
        }
        Kind::H2ping(target) => {
            CheckKind::H2ping { target: own(&target), tls: target.tls.map(tls), pace: pace(target.pace)? }
        }
        Kind::Alias(alias) => CheckKind::Alias { instance: alias.instance, node: alias.node, service: alias.service },
        Kind::Udp(target) => CheckKind::Udp { target: own(&target), pace: pace(target.pace)?, message: target.body },
        Kind::Postgres(target) => CheckKind::Postgres { target: own(&target), pace: pace(target.pace)? },
        Kind::Mysql(target) => CheckKind::Mysql { target: own(&target), pace: pace(target.pace)? },
        Kind::Redis(target) => CheckKind::Redis { target: own(&target), pace: pace(target.pace)? },
        Kind::Grpc(target) => CheckKind::Grpc {
            target: own(&target),
            service: target.service,
            tls: target.tls.map(tls),
            pace: pace(target.pace)?,
        },
        Kind::Http(target) => CheckKind::Http {
            url: own(&target).unwrap_or_else(|| "/".into()),
            tls: target.tls.map(tls),
            no_redirects: target.no_redirects,
            request: request(target.method, target.headers, target.body),
            pace: pace(target.pace)?,
        },
        Kind::Reported(pb::check::Reported {}) => CheckKind::Reported,
        Kind::Several(several) => {
            let part = |part: pb::check::Part| {
                let of = part.check.ok_or_else(|| ApiError::bad(format!("the check {:?} has no check", part.id)))?;
                // Limits the depth: several checks must not contain several checks.
                if matches!(of.kind, Some(Kind::Several(_))) {
                    return Err(ApiError::bad(format!("the check {:?} is several again", part.id)));
                }
                let health = health(part.health)?;
                Ok::<_, ApiError>(InstanceCheck { id: part.id, health, check: check(of)? })
            };
            CheckKind::Several { checks: several.checks.into_iter().map(part).collect::<Result<_, _>>()? }
        }
    };
    let deregister_after = sent.deregister_after.map(|after| duration("deregister_after", after)).transpose()?;
    Ok(Check { kind, deregister_after })
}

fn tls(tls: pb::check::Tls) -> ProbeTls {
    ProbeTls { skip_verify: tls.skip_verify, server_name: tls.server_name }
}

fn pace(pace: Option<pb::Pace>) -> Result<Pace, ApiError> {
    let (given, default) = (pace.unwrap_or_default(), Pace::default());
    let count = |what, given, default| if given == 0 { Ok(default) } else { small(what, given) };
    Ok(Pace {
        interval: given.interval.map_or(Ok(default.interval), |it| duration("interval", it))?,
        timeout: given.timeout.map_or(Ok(default.timeout), |it| duration("timeout", it))?,
        fall: count("fall", given.fall, default.fall)?,
        rise: count("rise", given.rise, default.rise)?,
    })
}

fn shown_health(health: Health) -> pb::Health {
    match health {
        Health::Passing => pb::Health::Passing,
        Health::Warning => pb::Health::Warning,
        Health::Critical => pb::Health::Critical,
    }
}

fn shown(instance: &Instance) -> pb::Instance {
    let health = shown_health(instance.overall());
    pb::Instance {
        id: instance.id.local().to_owned(),
        service: instance.service.name().to_owned(),
        host: instance.host.to_string(),
        port: u32::from(instance.port),
        protocol: instance.protocol.to_string(),
        version: instance.version.to_string(),
        weight: Some(u32::from(instance.weight)),
        priority: u32::from(instance.priority),
        location: Some(pb::Location {
            region: instance.location.region.to_string(),
            zone: instance.location.zone.to_string(),
            campus: instance.location.campus.to_string(),
        }),
        metadata: pairs(&instance.metadata),
        check: instance.check.as_deref().map(shown_check),
        isolate: Some(instance.isolate),
        health: health.into(),
        revision: instance.revision.0,
    }
}

fn shown_tls(tls: &ProbeTls) -> pb::check::Tls {
    pb::check::Tls { skip_verify: tls.skip_verify, server_name: tls.server_name.clone() }
}

fn shown_check(check: &Check) -> pb::Check {
    use pb::check::Kind;
    let target = |target: Option<&str>, pace: &Pace| pb::check::Target {
        target: target.unwrap_or_default().to_owned(),
        service: String::new(),
        tls: None,
        no_redirects: false,
        method: String::new(),
        headers: Vec::new(),
        body: String::new(),
        pace: Some(pb::Pace {
            interval: Some(proto_duration(pace.interval)),
            timeout: Some(proto_duration(pace.timeout)),
            fall: u32::from(pace.fall),
            rise: u32::from(pace.rise),
        }),
    };
    let kind = match &check.kind {
        CheckKind::Ttl { ttl } => Kind::Ttl(proto_duration(*ttl)),
        CheckKind::Tcp { target: to, tls, pace } => {
            Kind::Tcp(pb::check::Target { tls: tls.as_ref().map(shown_tls), ..target(to.as_deref(), pace) })
        }
        CheckKind::H2ping { target: to, tls, pace } => {
            Kind::H2ping(pb::check::Target { tls: tls.as_ref().map(shown_tls), ..target(to.as_deref(), pace) })
        }
        CheckKind::Alias { instance, node, service } => {
            Kind::Alias(pb::check::Alias { instance: instance.clone(), node: node.clone(), service: service.clone() })
        }
        CheckKind::Udp { target: to, message, pace } => {
            Kind::Udp(pb::check::Target { body: message.clone(), ..target(to.as_deref(), pace) })
        }
        CheckKind::Postgres { target: to, pace } => Kind::Postgres(target(to.as_deref(), pace)),
        CheckKind::Mysql { target: to, pace } => Kind::Mysql(target(to.as_deref(), pace)),
        CheckKind::Redis { target: to, pace } => Kind::Redis(target(to.as_deref(), pace)),
        CheckKind::Grpc { target: to, service, tls, pace } => Kind::Grpc(pb::check::Target {
            service: service.clone(),
            tls: tls.as_ref().map(shown_tls),
            ..target(to.as_deref(), pace)
        }),
        CheckKind::Http { url, tls, no_redirects, request, pace } => Kind::Http(pb::check::Target {
            method: request.as_ref().map(|of| of.method.clone()).unwrap_or_default(),
            headers: request.iter().flat_map(|of| of.headers.iter().map(shown_header)).collect(),
            body: request.as_ref().map(|of| of.body.clone()).unwrap_or_default(),
            tls: tls.as_ref().map(shown_tls),
            no_redirects: *no_redirects,
            ..target(Some(url), pace)
        }),
        CheckKind::Reported => Kind::Reported(pb::check::Reported {}),
        CheckKind::Several { checks } => {
            let part = |part: &InstanceCheck| pb::check::Part {
                id: part.id.clone(),
                health: part.health.map_or(pb::Health::Unspecified, shown_health).into(),
                check: Some(shown_check(&part.check)),
            };
            Kind::Several(pb::check::Several { checks: checks.iter().map(part).collect() })
        }
    };
    pb::Check { kind: Some(kind), deregister_after: check.deregister_after.map(proto_duration) }
}
