//! Polaris' console API for instances, services and namespaces: `/naming/v1/{instances,services,namespaces}`, with the codes of its own server
//! (1.18), which was asked the same questions.
//!
//! A service exists with its instances, or with a record ([`services`]). Namespaces exist with their services: they are listed, not made here.

mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::http::{Instance as Shown, status};
use super::lists::{MOST, Parameters, changes, outcomes, page, refused};
use super::{Asking, answer, code, identity_of, named, pb, registration, response, shown, visible};
use crate::api::{AT_ONCE, ApiError, RESERVED, Reply, Request};
use crate::model::Health;
use crate::rights::{Access, Resource};
use crate::{Edit, Instance, Metadata, NamespaceName, Patch, Registration, ServiceKey, ServiceSnapshot, WriteError};

/// Parameters of a query of instances.
const OF_INSTANCES: [&str; 18] = [
    "id",
    "service",
    "namespace",
    "host",
    "port",
    "keys",
    "values",
    "protocol",
    "version",
    "health_status",
    "healthy",
    "isolate",
    "weight",
    "priority",
    "cmdb_region",
    "cmdb_zone",
    "cmdb_idc",
    "show_last_heartbeat",
];
/// Parameters of a query of services.
const OF_SERVICES: [&str; 7] =
    ["name", "namespace", "keys", "values", "host", "only_exist_health_instance", "only_exist_instance"];

/// True for a path of this API.
pub(super) fn is_path(path: &[&str]) -> bool {
    matches!(path, ["naming", "v1", "instances" | "services" | "namespaces", ..])
}

/// Answers a request of this API.
pub(super) async fn handle(asking: &Asking<'_>, request: &Request) -> Result<Reply, ApiError> {
    let path = request.path();
    let none = || ApiError::NoSuchPath(format!("/{}", request.segments.join("/")));
    let (_, rest) = path.split_at(2.min(path.len()));
    let allow = match rest {
        ["instances"] => "GET, POST, PUT",
        ["instances", "delete"] | ["instances", "delete", "host"] => "POST",
        ["instances", "isolate", "host"] => "PUT",
        ["services"] => "GET, POST, PUT",
        ["services", "delete"] => "POST",
        ["instances", "count" | "labels"] | ["services", "count"] | ["namespaces"] => "GET",
        _ => return Err(none()),
    };
    match (rest, &request.method) {
        (["instances"], &Method::GET) => asking.list_instances(request).await,
        (["instances", "count"], &Method::GET) => Ok(page("instances", asking.count().await?.1, Vec::new())),
        (["instances", "labels"], &Method::GET) => asking.labels(request).await,
        (["services"], &Method::GET) => asking.list_services(request).await,
        (["services", "count"], &Method::GET) => Ok(page("services", asking.count().await?.0, Vec::new())),
        (["namespaces"], &Method::GET) => asking.list_namespaces(request).await,
        (["instances"], &Method::POST) => asking.each(request, Act::Create).await,
        (["instances"], &Method::PUT) => asking.each(request, Act::Update).await,
        (["services"], &Method::POST) => asking.change_services(request, services::Act::Create).await,
        (["services"], &Method::PUT) => asking.change_services(request, services::Act::Update).await,
        (["services", "delete"], &Method::POST) => asking.change_services(request, services::Act::Delete).await,
        (["instances", "delete"], &Method::POST) => asking.each(request, Act::Delete).await,
        (["instances", "delete", "host"], &Method::POST) => asking.each(request, Act::DeleteHost).await,
        (["instances", "isolate", "host"], &Method::PUT) => asking.each(request, Act::IsolateHost).await,
        _ => Err(ApiError::MethodNotAllowed { allow }),
    }
}

/// A change of the instances of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Create,
    Update,
    Delete,
    /// Deregistration of all instances of a service at one host.
    DeleteHost,
    IsolateHost,
}

/// An instance of a request.
struct Sent {
    fields: pb::Instance,
    /// True if metadata were sent, perhaps empty.
    has_metadata: bool,
}

impl<'de> Deserialize<'de> for Sent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Sent, D::Error> {
        let mut fields = Map::deserialize(deserializer)?;
        // A client of Polaris writes what it does not set as null.
        fields.retain(|_, value| !value.is_null());
        let has_metadata = fields.contains_key("metadata");
        let fields: Shown = serde_json::from_value(Value::Object(fields)).map_err(serde::de::Error::custom)?;
        Ok(Sent { fields: fields.into(), has_metadata })
    }
}

impl Asking<'_> {
    /// Changes the instances of a request side by side, after a check of all of them, as Polaris' own server does.
    async fn each(&self, request: &Request, act: Act) -> Result<Reply, ApiError> {
        let sent: Vec<Sent> = match serde_json::from_slice(&request.body) {
            Ok(sent) => sent,
            Err(error) => return Ok(batch(Some((code::UNREADABLE, error.to_string())), &[])),
        };
        if sent.is_empty() {
            return Ok(batch(Some((code::EMPTY, "the body: a list without an instance".into())), &[]));
        }
        self.context.batch("the list of instances", sent.len())?;
        let refused: Vec<pb::Response> = sent.iter().filter_map(|sent| refusal(act, &sent.fields)).collect();
        if !refused.is_empty() {
            return Ok(batch(None, &refused));
        }
        let changes: Vec<_> = sent.into_iter().map(|sent| self.one(sent, act)).collect();
        Ok(batch(None, &stream::iter(changes).buffered(AT_ONCE).collect::<Vec<_>>().await))
    }

    async fn one(&self, sent: Sent, act: Act) -> pb::Response {
        let about = Some(pb::Instance { metadata: Default::default(), ..sent.fields.clone() });
        let outcome = match act {
            Act::Create => self.register(sent.fields).await,
            Act::Delete => self.deregister(sent.fields).await,
            Act::Update => answer(self.update(sent).await),
            Act::DeleteHost => answer(self.delete_host(&sent.fields).await),
            Act::IsolateHost => answer(self.isolate_host(&sent.fields).await),
        };
        pb::Response { instance: outcome.instance.or(about), ..outcome }
    }

    async fn update(&self, sent: Sent) -> Result<pb::Response, ApiError> {
        let Sent { fields, has_metadata } = sent;
        let ns = named(fields.namespace.as_deref())?;
        self.caller.enters(Access::Write, ns.as_str())?;
        let id = identity_of(&ns, &fields)?;
        self.context.needs_instances(&self.caller, Access::Write, std::slice::from_ref(&id)).await?;
        let written = self.context.registry.change(&id, |known| {
            let known = known.ok_or_else(|| ApiError::NotFound { what: "instance", name: id.local().to_owned() })?;
            Ok::<_, ApiError>(Edit::Register(Box::new(updated(&ns, known, fields.clone(), has_metadata)?)))
        });
        match written.await {
            Ok(written) => Ok(self.changed("polaris/update", &ns, id.local(), written.changed())),
            Err(ApiError::NotFound { .. }) => Ok(response(code::NO_INSTANCE, "not found instances")),
            Err(error) => Err(error),
        }
    }

    /// Returns the answer to a change, with an audit line for one.
    fn changed(&self, action: &'static str, ns: &NamespaceName, object: &str, changed: bool) -> pb::Response {
        if !changed {
            return response(code::SAME, "update data is no change, no need to update");
        }
        self.context.audit(&self.caller, self.peer, action, ns.as_str(), object);
        response(code::OK, "execute success")
    }

    /// Returns the instances of a service at a host; None for a service that does not exist.
    fn at_host(&self, ns: &NamespaceName, sent: &pb::Instance) -> Result<Option<Vec<Arc<Instance>>>, ApiError> {
        let service = ServiceKey::new(ns, sent.service.as_deref().unwrap_or_default())?;
        self.caller.needs(Access::Write, Resource::service(service.name()), ns.as_str())?;
        let Some(snapshot) = self.context.registry.snapshot(&service) else { return Ok(None) };
        let host = sent.host.as_deref().unwrap_or_default();
        let instances = snapshot.instances.iter().filter(|instance| &*instance.host == host);
        Ok(Some(instances.cloned().collect()))
    }

    async fn delete_host(&self, sent: &pb::Instance) -> Result<pb::Response, ApiError> {
        let ns = named(sent.namespace.as_deref())?;
        let Some(instances) = self.at_host(&ns, sent)? else { return Ok(no_service()) };
        let ids: Vec<_> = instances.iter().map(|instance| instance.id.clone()).collect();
        for (id, row) in ids.iter().zip(self.context.registry.deregister(&ids).await) {
            match row {
                Ok(_) => self.context.audit(&self.caller, self.peer, "polaris/deregister", ns.as_str(), id.local()),
                Err(WriteError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(response(code::OK, "execute success"))
    }

    async fn isolate_host(&self, sent: &pb::Instance) -> Result<pb::Response, ApiError> {
        let ns = named(sent.namespace.as_deref())?;
        let Some(instances) = self.at_host(&ns, sent)? else { return Ok(no_service()) };
        let mut changed = false;
        for instance in instances {
            let patch = Patch { isolate: sent.isolate, ..Patch::default() };
            let written = self.context.registry.change(&instance.id, |known| {
                // One that has gone since then needs no isolation.
                Ok::<_, ApiError>(known.map_or(Edit::Nothing, |_| Edit::Patch(patch.clone())))
            });
            changed |= written.await?.changed();
        }
        Ok(self.changed("polaris/isolate", &ns, sent.host.as_deref().unwrap_or_default(), changed))
    }

    /// Returns the services that the caller may read.
    fn readable(&self) -> Vec<Arc<ServiceSnapshot>> {
        let mut services = self.context.registry.services(None);
        services.retain(|service| self.caller.may_read(&service.key));
        services
    }

    /// Counts the services and the instances that the caller may read.
    async fn count(&self) -> Result<(usize, usize), ApiError> {
        let services = self.readable();
        let count = move || (services.len(), services.iter().map(|service| service.instances.len()).sum());
        self.context.lists.apart(count).await
    }

    async fn list_instances(&self, request: &Request) -> Result<Reply, ApiError> {
        let query = match NamingQuery::new(request, &OF_INSTANCES) {
            Ok(query) if query.is_empty() => {
                return Ok(refused("instances", code::EMPTY_QUERY, "query instance parameter is empty"));
            }
            Ok(query) => query,
            Err((code, info)) => return Ok(refused("instances", code, &info)),
        };
        let services = self.readable();
        let found = self.context.lists.apart(move || {
            let mut found: Vec<&Arc<Instance>> = Vec::new();
            for service in services.iter().filter(|service| query.fits_service(&service.key, "service")) {
                found.extend(service.instances.iter().filter(|instance| query.fits_instance(instance)));
            }
            // The latest change first.
            found.sort_by(|a, b| (b.mtime, &b.id).cmp(&(a.mtime, &a.id)));
            (found.len(), query.parameters.rows(&found).map(|instance| row(instance)).collect())
        });
        let (amount, rows) = found.await?;
        let reply = page("instances", amount, rows);
        Ok(if request.accepts_gzip() { reply.gzip() } else { reply })
    }

    /// Returns the metadata of a service's instances: by key, the values that occur.
    async fn labels(&self, request: &Request) -> Result<Reply, ApiError> {
        let ns = named(request.param("namespace"))?;
        let service = ServiceKey::new(&ns, request.param("service").unwrap_or_default())?;
        self.caller.needs(Access::Read, Resource::service(service.name()), ns.as_str())?;
        let Some(snapshot) = self.context.registry.snapshot(&service) else {
            let body = json!({ "code": code::NOT_FOUND, "info": "not found resource", "instanceLabels": null });
            return Ok(Reply::json(status(code::NOT_FOUND), &body));
        };
        let labels = move || {
            let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for instance in snapshot.instances.iter() {
                for (key, value) in visible(&instance.metadata) {
                    labels.entry(key).or_default().insert(value);
                }
            }
            labels.into_iter().map(|(key, values)| (key, json!({ "values": values }))).collect::<Map<_, _>>()
        };
        let labels = self.context.lists.apart(labels).await?;
        let body = json!({ "code": code::OK, "info": "execute success", "instanceLabels": { "labels": labels } });
        Ok(Reply::json(status(code::OK), &body))
    }

    async fn list_services(&self, request: &Request) -> Result<Reply, ApiError> {
        let query = match NamingQuery::new(request, &OF_SERVICES) {
            Ok(query) => query,
            Err((code, info)) => return Ok(refused("services", code, &info)),
        };
        let mut services = self.readable();
        let found = self.context.lists.apart(move || {
            services.retain(|service| query.fits_service(&service.key, "name") && query.fits_rest(service));
            (services.len(), query.parameters.rows(&services).map(|service| service_row(service)).collect())
        });
        let (amount, rows) = found.await?;
        Ok(page("services", amount, rows))
    }

    async fn list_namespaces(&self, request: &Request) -> Result<Reply, ApiError> {
        let query = match NamingQuery::new(request, &["name"]) {
            Ok(query) => query,
            Err((code, info)) => return Ok(refused("namespaces", code, &info)),
        };
        let services = self.readable();
        let found = self.context.lists.apart(move || {
            let mut namespaces: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
            for service in services.iter().filter(|service| query.fits("name", service.key.namespace())) {
                let [services, instances, healthy] = namespaces.entry(service.key.namespace()).or_default();
                *services += 1;
                *instances += service.instances.len();
                *healthy += healthy_in(service);
            }
            let rows = query.parameters.rows(&namespaces).map(|(name, counts)| {
                let [services, instances, healthy] = counts;
                json!({
                    "id": name, "name": name, "total_service_count": services, "total_instance_count": instances,
                    "total_health_instance_count": healthy,
                })
            });
            (namespaces.len(), rows.collect())
        });
        let (amount, rows) = found.await?;
        Ok(page("namespaces", amount, rows))
    }
}

/// Returns the refusal of an instance that lacks what the change needs.
fn refusal(act: Act, sent: &pb::Instance) -> Option<pb::Response> {
    let has = |field: &Option<String>| field.as_deref().is_some_and(|field| !field.is_empty());
    let by_id = matches!(act, Act::Update | Act::Delete) && has(&sent.id);
    let (code, info) = if by_id {
        return None;
    } else if !has(&sent.service) {
        (code::BAD_SERVICE, "invalid service name")
    } else if !has(&sent.host) {
        (code::BAD_HOST, "invalid instance host")
    } else if act == Act::IsolateHost && sent.isolate.is_none() {
        (code::BAD_ISOLATE, "invalid instance isolate")
    } else {
        return None;
    };
    Some(pb::Response { instance: Some(sent.clone()), ..response(code, info) })
}

fn no_service() -> pb::Response {
    response(code::NO_SERVICE, "not found service")
}

/// Returns the registration of a known instance with what was sent in the place of what it has.
fn updated(
    ns: &NamespaceName,
    known: &Instance,
    sent: pb::Instance,
    has_metadata: bool,
) -> Result<Registration, ApiError> {
    let before = Registration::of(known);
    let now = shown(known);
    let is_checked = sent.enable_health_check.is_some() || sent.health_check.is_some();
    let healthy = sent.healthy;
    let whole = pb::Instance {
        service: now.service,
        host: now.host,
        port: now.port,
        protocol: sent.protocol.or(now.protocol),
        version: sent.version.or(now.version),
        priority: sent.priority.or(now.priority),
        weight: sent.weight.or(now.weight),
        location: sent.location.or(now.location),
        metadata: if has_metadata { sent.metadata } else { now.metadata },
        ..sent
    };
    let row = registration(ns, known.id.clone(), whole)?;
    // What other fronts keep in an instance stays.
    let own = known.metadata.iter().filter(|(key, _)| key.starts_with(RESERVED));
    let pairs: BTreeMap<String, String> =
        row.metadata.iter().chain(own).map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Ok(Registration {
        metadata: Metadata::from_pairs(&pairs)?,
        check: if is_checked { row.check } else { before.check },
        health: healthy.map(|healthy| if healthy { Health::Passing } else { Health::Critical }),
        ..row
    })
}

/// A parsed query for instances, services or namespaces.
struct NamingQuery {
    parameters: Parameters,
    /// Pairs of metadata.
    pairs: Vec<(String, String)>,
}

impl NamingQuery {
    /// Reads a query. The error is a code and a text.
    fn new(request: &Request, known: &[&str]) -> Result<NamingQuery, (u32, String)> {
        let invalid = |text: String| (code::INVALID, format!("invalid parameter: {text}"));
        let mut parameters = Parameters::read(request, known).map_err(invalid)?;
        if let Some((name, _)) = parameters.filters.iter().find(|(_, value)| value.is_empty()) {
            return Err(invalid(format!("the value for {name} is empty")));
        }
        let keys = (parameters.filters.remove("keys"), parameters.filters.remove("values"));
        let mut query = NamingQuery { parameters, pairs: Vec::new() };
        let text = match keys {
            (None, None) => return Ok(query),
            (Some(keys), Some(values)) => {
                let (keys, values): (Vec<_>, Vec<_>) = (keys.split(',').collect(), values.split(',').collect());
                if keys.len() == values.len() {
                    let pairs = keys.into_iter().zip(values);
                    query.pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                    return Ok(query);
                }
                "instance metadata key and value length are different"
            }
            _ => "instance metadata key and value must be both provided",
        };
        Err((code::BAD_QUERY, text.to_owned()))
    }

    fn is_empty(&self) -> bool {
        let Parameters { filters, offset, limit } = &self.parameters;
        filters.is_empty() && self.pairs.is_empty() && *offset == 0 && *limit == MOST
    }

    /// True if a filter is absent or fits a name: `*` at its beginning or end stands for anything.
    fn fits(&self, filter: &str, name: &str) -> bool {
        self.parameters.filters.get(filter).is_none_or(|pattern| is_like(name, pattern))
    }

    fn fits_service(&self, key: &ServiceKey, name: &str) -> bool {
        self.fits(name, key.name()) && self.fits("namespace", key.namespace())
    }

    /// True if a service fits what is asked of its metadata and its instances.
    fn fits_rest(&self, service: &ServiceSnapshot) -> bool {
        let is_on = |filter: &str| self.parameters.filters.get(filter).is_some_and(|value| value == "true");
        let metadata = |key: &str| service.metadata.as_ref().and_then(|metadata| metadata.get(key));
        self.pairs.iter().all(|(key, value)| metadata(key) == Some(value.as_str()))
            && (!is_on("only_exist_instance") || !service.instances.is_empty())
            && (!is_on("only_exist_health_instance") || healthy_in(service) > 0)
            && (!self.parameters.filters.contains_key("host")
                || service.instances.iter().any(|instance| self.fits_host(&instance.host)))
    }

    fn fits_host(&self, host: &str) -> bool {
        self.parameters.filters.get("host").is_none_or(|hosts| hosts.split(',').any(|one| one.trim() == host))
    }

    fn fits_instance(&self, instance: &Instance) -> bool {
        let text = |filter: &str, value: &str| self.parameters.filters.get(filter).is_none_or(|wanted| wanted == value);
        // As at Polaris, a number or a truth that cannot be read does not filter.
        let number = |filter: &str, value: u16| {
            let wanted = self.parameters.filters.get(filter).and_then(|wanted| wanted.parse::<u64>().ok());
            wanted.is_none_or(|wanted| wanted == u64::from(value))
        };
        let truth = |filter: &str, value: bool| {
            let wanted = match self.parameters.filters.get(filter).map(String::as_str) {
                Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Some(true),
                Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Some(false),
                _ => None,
            };
            wanted.is_none_or(|wanted| wanted == value)
        };
        let health = if self.parameters.filters.contains_key("healthy") { "healthy" } else { "health_status" };
        self.fits("id", instance.id.local())
            && self.fits_host(&instance.host)
            && number("port", instance.port)
            && number("weight", instance.weight)
            && number("priority", instance.priority)
            && truth("isolate", instance.isolate)
            && truth(health, instance.overall() != Health::Critical)
            && text("protocol", &instance.protocol)
            && text("version", &instance.version)
            && text("cmdb_region", &instance.location.region)
            && text("cmdb_zone", &instance.location.zone)
            && text("cmdb_idc", &instance.location.campus)
            && self.pairs.iter().all(|(key, value)| instance.metadata.get(key) == Some(value.as_str()))
    }
}

/// True if a name fits a pattern: `*` at its beginning or end stands for anything.
fn is_like(name: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

fn healthy_in(service: &ServiceSnapshot) -> usize {
    service.instances.iter().filter(|instance| instance.overall() != Health::Critical).count()
}

/// Returns a time in milliseconds since 1970 as text.
fn time(milliseconds: i64) -> String {
    let since = std::time::Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0));
    super::time_of(std::time::UNIX_EPOCH + since)
}

fn row(instance: &Instance) -> Value {
    let mut fields = json!(Shown::from(shown(instance)));
    fields["ctime"] = time(instance.ctime).into();
    fields["mtime"] = time(instance.mtime).into();
    fields
}

fn service_row(service: &ServiceSnapshot) -> Value {
    let ports: BTreeSet<u16> =
        service.instances.iter().map(|instance| instance.port).filter(|port| *port > 0).collect();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let mut row = json!({
        "name": service.key.name(), "namespace": service.key.namespace(), "ports": ports.join(","),
        "metadata": service.metadata.as_ref().map(visible).unwrap_or_default(),
        "revision": format!("{}-{}", service.revision, service.digest),
        "total_instance_count": service.instances.len(), "healthy_instance_count": healthy_in(service),
    });
    for (name, value) in service.metadata.as_ref().map(services::fields).unwrap_or_default() {
        row[name] = value.into();
    }
    row
}

/// Returns the answer to a change of several instances; `whole` refuses it as a whole.
fn batch(whole: Option<(u32, String)>, responses: &[pb::Response]) -> Reply {
    if let Some((code, info)) = whole {
        return changes(code, &info, &[]);
    }
    let all = responses.iter().map(|it| (it.code.unwrap_or(code::FAILED), it.info.as_deref().unwrap_or_default()));
    let shown: Vec<Value> = responses.iter().map(super::http::told_fields).collect();
    outcomes(&all.collect::<Vec<_>>(), &shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (name, pattern, fits) in [
            ("shop", "shop", true),
            ("shop", "sh", false),
            ("shop", "sh*", true),
            ("shop", "*op", true),
            ("shop", "*ho*", true),
            ("shop", "*x*", false),
            ("shop", "*", true),
            ("shop", "op*", false),
        ] {
            assert_eq!(is_like(name, pattern), fits, "{name} {pattern}");
        }
    }
}
