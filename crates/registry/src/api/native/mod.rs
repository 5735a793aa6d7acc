//! Kingpost's own REST API with JSON. `openapi.json` beside this file describes it; a test compares the two.

mod config;
mod filter;
mod routes;
mod watch;
mod wire;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{ETAG, HeaderName, IF_NONE_MATCH, VARY};
use serde_json::{Value, json};

use super::auth::Caller;
use super::list_cache::{ListBuilder, entries};
use super::reply::JSON;
use super::{ApiError, Context, Reply, Request, Watched, changed, namespace, several};
use crate::rights::{Access, Resource};
use crate::{Beat, Encoding, InstanceId, NamespaceName, Patch, Registration, Revision, ServiceKey, ServiceSnapshot};
use crate::{Outcome as Written, WriteError};
use filter::Filter;
use routes::{Op, Route};
use wire::{Answered, Ids, Listed, New, NewBatch, NewService, Outcome, Problem, Query, Report, Shown, ShownService};

/// Revision of the response's content.
const REVISION: HeaderName = HeaderName::from_static("x-kingpost-revision");
/// Default wait of a request with `after`.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
/// Maximum and default number of entries in a page.
const PAGE: usize = 1000;
/// The description of the API.
const OPENAPI: &str = include_str!("openapi.json");

/// Encodes an error in this front's form.
pub(super) fn show(error: &ApiError) -> Reply {
    Reply::json(error.status(), &json!({ "error": Problem::from(error) }))
}

pub(super) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let route = Route::find(&request.method, &request.path())?;
    if route.op == Op::OpenApi {
        return Ok(Reply::bytes(StatusCode::OK, JSON, OPENAPI));
    }
    let caller = context.identify(request)?;
    if route.op == Op::ListNamespaces {
        return list_namespaces(context, caller).await;
    }
    let ns = namespace(route.namespace)?;
    if route.op.is_about_configuration() {
        return config::handle(context, request, &caller, &ns, &route).await;
    }
    allowed(context, &caller, &route, &ns).await?;
    let service = || ServiceKey::new(&ns, route.service);
    let id = || InstanceId::new(&ns, route.id);
    let log = |object: &str| context.audit(&caller, request.peer, route.op.name(), ns.as_str(), object);
    match route.op {
        Op::OpenApi
        | Op::ListNamespaces
        | Op::ListConfigs
        | Op::GetConfig
        | Op::PutConfig
        | Op::DeleteConfig
        | Op::ConfigHistory
        | Op::RollBackConfig => Err(ApiError::NoSuchPath(route.namespace.into())),
        Op::ListServices => list_services(context, request, &caller, &ns).await,
        Op::GetService => get_service(context, &service()?),
        Op::PutService => {
            let body: NewService = request.json()?;
            let written = context.registry.put_service(service()?, body.metadata).await?;
            log(route.service);
            Ok(Reply::ok(&json!({ "service": route.service, "revision": written.revision })))
        }
        Op::DeleteService => {
            context.registry.delete_service(&service()?).await?;
            log(route.service);
            Ok(Reply::empty(StatusCode::NO_CONTENT))
        }
        Op::Discover => discover(context, request, &service()?).await,
        Op::Watch => watch::stream(context, request, service()?),
        Op::RegisterBatch | Op::RegisterInService => {
            let named = (route.op == Op::RegisterInService).then_some(route.service);
            let (changed, replied) = register(context, &caller, &ns, named, request.json()?).await?;
            if !changed.is_empty() {
                log(&several(&changed));
            }
            Ok(replied)
        }
        Op::PutInstance => {
            let new: New = request.json()?;
            let limits = context.registry.limits();
            let registration = new.registration(&ns, Some(route.service), Some(route.id), limits)?;
            let written = one(context.registry.register(vec![registration]).await)?;
            if written.changed() {
                log(route.id);
            }
            let status = if written.outcome == Written::Created { StatusCode::CREATED } else { StatusCode::OK };
            Ok(Reply::json(status, &done(route.id, &written)))
        }
        Op::GetInstance => {
            let instance = context.registry.instance(&id()?).ok_or_else(|| no_instance(route.id))?;
            Ok(Reply::ok(&Shown::from(&*instance)))
        }
        Op::PatchInstance => {
            let patch: Patch = request.json()?;
            let written = one(context.registry.update(vec![(id()?, patch)]).await)?;
            log(route.id);
            Ok(Reply::ok(&done(route.id, &written)))
        }
        Op::DeleteInstance => {
            one(context.registry.deregister(&[id()?]).await)?;
            log(route.id);
            Ok(Reply::empty(StatusCode::NO_CONTENT))
        }
        Op::ReportHealth => {
            let report: Report = request.json()?;
            let written = one(context.registry.report(&[(id()?, report.health)]).await)?;
            Ok(Reply::ok(&done(route.id, &written)))
        }
        Op::Heartbeat => {
            let beat = context.registry.heartbeat(&[id()?]).await;
            match beat.first() {
                Some(Beat::Known) => Ok(Reply::empty(StatusCode::NO_CONTENT)),
                _ => Err(no_instance(route.id)),
            }
        }
        Op::Heartbeats => heartbeats(context, request, &caller, &ns).await,
        Op::Deregister => {
            let (ids, replied) = deregister(context, request, &caller, &ns).await?;
            log(&several(&ids));
            Ok(replied)
        }
        Op::Find => find(context, request, &caller, &ns),
        Op::Query => query(context, request, &caller, &ns),
        Op::Audit => changes(context, request, &ns),
    }
}

/// Checks the caller's right to the service or instance in the path. Others are checked where they are known.
async fn allowed(context: &Context, caller: &Caller, route: &Route<'_>, ns: &NamespaceName) -> Result<(), ApiError> {
    let access = route.op.access();
    caller.enters(access, ns.as_str())?;
    match route.op {
        Op::Audit => return caller.needs(access, Resource::Audit, ns.as_str()),
        Op::PutService | Op::DeleteService => {
            return caller.needs(access, Resource::Record(route.service), ns.as_str());
        }
        _ if !route.service.is_empty() => caller.needs(access, Resource::service(route.service), ns.as_str())?,
        _ => {}
    }
    if route.id.is_empty() {
        return Ok(());
    }
    context.needs_instances(caller, access, &[InstanceId::new(ns, route.id)?]).await
}

/// Returns the last changes in a namespace, newest first.
fn changes(context: &Context, request: &Request, ns: &NamespaceName) -> Result<Reply, ApiError> {
    let limit = page(request)?;
    let same = |wanted: Option<&str>, found: &str| wanted.is_none_or(|wanted| wanted == found);
    let (token, action, object) = (request.param("token_name"), request.param("action"), request.param("object"));
    let found = context.audit.last(limit, |change| {
        change.namespace == ns.as_str()
            && same(token, &change.token)
            && same(action, &change.action)
            && object.is_none_or(|object| change.object.split(' ').any(|named| named == object))
    });
    Ok(Reply::ok(&json!({ "namespace": ns, "changes": found })))
}

fn no_instance(id: &str) -> ApiError {
    ApiError::NotFound { what: "instance", name: id.to_owned() }
}

/// Returns the only row of a call.
fn one(rows: Vec<Result<crate::Written, WriteError>>) -> Result<crate::Written, ApiError> {
    rows.into_iter().next().unwrap_or(Err(WriteError::Stopped)).map_err(ApiError::from)
}

fn outcome(written: &crate::Written) -> &'static str {
    match written.outcome {
        Written::Created => "created",
        Written::Updated => "updated",
        Written::Unchanged => "unchanged",
        Written::Removed => "removed",
        // Only for a write with an expected revision, which no request here has.
        Written::Superseded => "superseded",
        // Such a row is an error.
        Written::NotFound => "not_found",
    }
}

fn done<'a>(id: &'a str, written: &crate::Written) -> Outcome<'a> {
    Outcome::Done { id, revision: written.revision, outcome: outcome(written) }
}

async fn list_namespaces(context: &Context, caller: Caller) -> Result<Reply, ApiError> {
    let registry = context.registry.clone();
    let names = context.lists.apart(move || registry.namespaces()).await?;
    let seen: Vec<&str> = names.iter().map(NamespaceName::as_str).filter(|name| caller.may_see(name)).collect();
    Ok(Reply::ok(&json!({ "namespaces": seen })))
}

/// Delays a request with `after` until there is a newer revision. Returns true if it did.
async fn hold(context: &Context, request: &Request, watched: Watched<'_>) -> Result<bool, ApiError> {
    let Some(after) = request.number("after")? else { return Ok(false) };
    let limit = request.duration("wait")?.unwrap_or(DEFAULT_WAIT);
    let now = context.revision_of(watched);
    // A number that was never issued is from another store.
    if now == Revision(after) || context.is_ahead(now, Revision(after)) {
        context.wait(request, watched, Revision(after), limit).await?;
        return Ok(true);
    }
    Ok(false)
}

fn page(request: &Request) -> Result<usize, ApiError> {
    let limit = request.number("limit")?.unwrap_or(PAGE as u64);
    if (1..=PAGE as u64).contains(&limit) {
        return Ok(limit as usize);
    }
    Err(ApiError::bad(format!("limit={limit}: expected 1 to {PAGE}")))
}

async fn list_services(
    context: &Context,
    request: &Request,
    caller: &Caller,
    ns: &NamespaceName,
) -> Result<Reply, ApiError> {
    let limit = page(request)?;
    let waited = hold(context, request, Watched::Namespace(ns)).await?;
    // Read before the list, so that the next request sees any change in between.
    let revision = context.registry.revision_in(ns);
    let prefix = request.param("prefix").unwrap_or_default().to_owned();
    let from = request.param("from").unwrap_or_default().to_owned();
    let protected = protected(context);
    let (registry, ns, caller) = (context.registry.clone(), ns.clone(), caller.clone());
    let page = context.lists.apart(move || {
        let mut services = registry.services(Some(&ns));
        services.retain(|service| caller.may_read(&service.key));
        list_page(&services, &ns, &prefix, &from, limit, &protected, revision)
    });
    Ok(Reply::ok(&page.await?).header(REVISION, revision.0).waited(waited))
}

/// Returns up to `limit` services of a namespace with names after `from`.
fn list_page(
    services: &[Arc<ServiceSnapshot>],
    ns: &NamespaceName,
    prefix: &str,
    from: &str,
    limit: usize,
    protected: &HashSet<ServiceKey>,
    revision: Revision,
) -> Value {
    let mut wanted =
        services.iter().filter(|service| service.key.name().starts_with(prefix) && service.key.name() > from);
    let listed: Vec<Listed<'_>> = wanted
        .by_ref()
        .take(limit)
        .map(|snapshot| Listed {
            service: snapshot.key.name(),
            revision: snapshot.revision,
            instances: snapshot.instances.len(),
            usable: snapshot.usable(),
            protected: protected.contains(&snapshot.key),
            metadata: snapshot.metadata.as_ref(),
        })
        .collect();
    let next = wanted.next().and_then(|_| listed.last()).map(|last| last.service);
    json!({ "namespace": ns, "revision": revision, "services": listed, "next": next })
}

fn get_service(context: &Context, service: &ServiceKey) -> Result<Reply, ApiError> {
    let snapshot = existing(context, service)?;
    Ok(Reply::ok(&Listed {
        service: service.name(),
        revision: snapshot.revision,
        instances: snapshot.instances.len(),
        usable: snapshot.usable(),
        protected: protected(context).contains(service),
        metadata: snapshot.metadata.as_ref(),
    })
    .header(REVISION, snapshot.revision.0))
}

/// Returns the services with self-preservation in effect.
fn protected(context: &Context) -> HashSet<ServiceKey> {
    context.registry.status().protected.into_iter().filter_map(|(service, _)| service).collect()
}

fn existing(context: &Context, service: &ServiceKey) -> Result<Arc<ServiceSnapshot>, ApiError> {
    let missing = || ApiError::NotFound { what: "service", name: service.name().to_owned() };
    context.registry.snapshot(service).ok_or_else(missing)
}

async fn discover(context: &Context, request: &Request, service: &ServiceKey) -> Result<Reply, ApiError> {
    let filter = Filter::of(request)?;
    let waited = hold(context, request, Watched::Service(service)).await?;
    let snapshot = existing(context, service)?;
    // The digest beside the revision: another store may have the same numbers.
    let tag = format!("\"{}-{}\"", snapshot.revision, snapshot.digest);
    let known = request.header(&IF_NONE_MATCH).is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    let reply = if known {
        Reply::empty(StatusCode::NOT_MODIFIED)
    } else if filter.is_empty() {
        let packed = request.accepts_gzip();
        let body = context.lists.of_service(Arc::clone(&snapshot), Encoding::NativeJson, packed, compose).await?;
        Reply::pieces(JSON, body, packed)
    } else {
        Reply::ok(&ShownService::new(&snapshot, |instance| filter.fits(instance)))
    };
    Ok(reply.header(VARY, "Accept-Encoding").header(ETAG, tag).header(REVISION, snapshot.revision.0).waited(waited))
}

/// Writes a service with all its instances, in the form of [`ShownService`].
fn compose(snapshot: &ServiceSnapshot, out: &mut ListBuilder) {
    let empty = serde_json::to_vec(&ShownService::new(snapshot, |_| false)).unwrap_or_default();
    // The instances come last: `…,"instances":[]}`.
    out.text(empty.strip_suffix(b"]}").unwrap_or_default());
    out.list(snapshot, Encoding::NativeJson, "", ",", |instances| {
        entries(instances.iter().map(|instance| Shown::from(&**instance)))
    });
    out.text("]}");
}

async fn register(
    context: &Context,
    caller: &Caller,
    ns: &NamespaceName,
    service: Option<&str>,
    batch: NewBatch,
) -> Result<(Vec<InstanceId>, Reply), ApiError> {
    context.batch("the list of instances", batch.instances.len())?;
    // The form of the batch is checked as a whole: one invalid instance makes the batch invalid.
    let registrations: Vec<Registration> = batch
        .instances
        .into_iter()
        .enumerate()
        .map(|(index, new)| {
            new.registration(ns, service, None, context.registry.limits())
                .map_err(|error| ApiError::bad(format!("instances[{index}]: {error}")))
        })
        .collect::<Result<_, _>>()?;
    for registration in &registrations {
        caller.needs(Access::Write, Resource::service(registration.service.name()), ns.as_str())?;
    }
    let ids: Vec<InstanceId> = registrations.iter().map(|registration| registration.id.clone()).collect();
    // An id may be another service's now.
    context.needs_instances(caller, Access::Write, &ids).await?;
    let rows = context.registry.register(registrations).await;
    let reply = results(&ids, &rows);
    Ok((changed(ids, &rows), reply))
}

async fn deregister(
    context: &Context,
    request: &Request,
    caller: &Caller,
    ns: &NamespaceName,
) -> Result<(Vec<InstanceId>, Reply), ApiError> {
    let ids = ids(context, request, caller, ns).await?;
    let rows = context.registry.deregister(&ids).await;
    let reply = results(&ids, &rows);
    Ok((ids, reply))
}

/// Returns the ids of a request, all of which the caller may change.
async fn ids(
    context: &Context,
    request: &Request,
    caller: &Caller,
    ns: &NamespaceName,
) -> Result<Vec<InstanceId>, ApiError> {
    let body: Ids<'_> =
        serde_json::from_slice(&request.body).map_err(|error| ApiError::bad(format!("the body: {error}")))?;
    context.batch("the list of ids", body.ids.len())?;
    let ids: Vec<InstanceId> = body.ids.iter().map(|id| InstanceId::new(ns, id)).collect::<Result<_, _>>()?;
    context.needs_instances(caller, Access::Write, &ids).await?;
    Ok(ids)
}

fn results(ids: &[InstanceId], rows: &[Result<crate::Written, WriteError>]) -> Reply {
    let results: Vec<Outcome<'_>> = ids
        .iter()
        .zip(rows)
        .map(|(id, row)| match row {
            Ok(written) => done(id.local(), written),
            Err(error) => {
                let error = ApiError::from(error.clone());
                Outcome::Failed { id: id.local(), error: Problem::from(&error) }
            }
        })
        .collect();
    let failed = rows.iter().filter(|row| row.is_err()).count();
    Reply::ok(&json!({ "failed": failed, "results": results }))
}

async fn heartbeats(
    context: &Context,
    request: &Request,
    caller: &Caller,
    ns: &NamespaceName,
) -> Result<Reply, ApiError> {
    let ids = ids(context, request, caller, ns).await?;
    let beats = context.registry.heartbeat(&ids).await;
    let unknown: Vec<&str> =
        ids.iter().zip(&beats).filter(|(_, beat)| **beat == Beat::Unknown).map(|(id, _)| id.local()).collect();
    Ok(Reply::ok(&json!({ "unknown": unknown })))
}

fn find(context: &Context, request: &Request, caller: &Caller, ns: &NamespaceName) -> Result<Reply, ApiError> {
    let pairs = filter::pairs(request)?;
    if pairs.is_empty() {
        return Err(ApiError::bad("expected at least one meta=key=value"));
    }
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let found = context.registry.find(ns, &pairs, page(request)?);
    let may_read = |instance: &crate::Instance| context.needs_found(caller, Access::Read, instance).is_ok();
    let seen = found.instances.iter().filter(|instance| may_read(instance));
    let shown: Vec<Shown<'_>> = seen.map(|instance| Shown::from(&**instance)).collect();
    Ok(Reply::ok(&json!({ "namespace": ns, "instances": shown, "truncated": found.truncated })))
}

fn query(context: &Context, request: &Request, caller: &Caller, ns: &NamespaceName) -> Result<Reply, ApiError> {
    let query: Query = request.json()?;
    context.batch("the list of services", query.services.len())?;
    let filter = Filter::new(query.usable, query.zone, query.metadata.into_iter().collect());
    let keys: Vec<ServiceKey> =
        query.services.iter().map(|asked| ServiceKey::new(ns, &asked.service)).collect::<Result<_, _>>()?;
    // A service that the caller may not read is absent for it.
    let held = keys.iter().map(|key| match caller.may_read(key) {
        true => (context.registry.revision_of(key), context.registry.snapshot(key)),
        false => (Revision(0), None),
    });
    let held: Vec<(Revision, Option<Arc<ServiceSnapshot>>)> = held.collect();
    let answers: Vec<Answered<'_>> = query
        .services
        .iter()
        .zip(&held)
        .map(|(asked, (revision, snapshot))| {
            let service = asked.service.as_str();
            let now = snapshot.as_ref().map_or(*revision, |snapshot| snapshot.revision);
            match snapshot {
                _ if asked.revision == Some(now) => Answered::Unchanged { service, revision: now, unchanged: true },
                None => Answered::Absent { service, revision: now, absent: true },
                Some(snapshot) => Answered::Whole(ShownService::new(snapshot, |instance| filter.fits(instance))),
            }
        })
        .collect();
    let reply = Reply::ok(&json!({ "namespace": ns, "services": answers }));
    Ok(if request.accepts_gzip() { reply.gzip() } else { reply })
}
