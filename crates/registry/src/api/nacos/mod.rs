//! Naming by Nacos' HTTP API of version 1: instances, beats, lists.
//!
//! A namespace of Nacos is the namespace of the same name; where none is given, `public`. A service has a group: `GROUP@@name`. The group
//! `DEFAULT_GROUP` is left out of the name that other fronts see. An instance is known by service, cluster, address and port
//! ([`identity::nacos`]); it has no id that a client chooses.
//!
//! An ephemeral instance lives by its beats: without one for 15 s it is critical, after 15 s more it is gone; its metadata may say otherwise. One
//! that is not ephemeral is probed at its port.
//!
//! Not there: configuration, clusters and services as things of their own, pushes over UDP (clients ask every 10 s), gRPC.
//!
//! Format: <https://nacos.io/docs/v1/open-api/>.

mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::auth::{Caller, Role};
use super::{ApiError, Context, Reply, Request, identity, namespace};
use crate::{Beat, Edit, Instance, NamespaceName, Registration, ServiceKey, Written};
use wire::{Fields, Sent, Service};

/// The namespace of who names none.
const PUBLIC: &str = "public";
/// How long clients keep a list, in milliseconds.
const CACHE_MILLIS: u64 = 10_000;
/// Names in one page of the list of services.
const MOST_NAMES: usize = 10_000;

/// A beat was taken.
const BEAT_OK: u64 = 10_200;
/// There is no such instance: the client registers again.
const BEAT_UNKNOWN: u64 = 20_404;

struct Call<'a> {
    context: &'a Arc<Context>,
    request: &'a Request,
    caller: Caller,
    fields: Fields,
    namespace: NamespaceName,
}

pub(super) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let path = request.path();
    if is_login(&path) {
        return login(context, request);
    }
    let caller = context.identify(request)?;
    let fields = Fields::of(request)?;
    let namespace = namespace(match fields.text("namespaceId") {
        "" => PUBLIC,
        name => name,
    })?;
    let call = Call { context, request, caller, fields, namespace };
    let method = if request.method == Method::HEAD { Method::GET } else { request.method.clone() };
    match (method.as_str(), path.as_slice()) {
        ("POST" | "PUT", ["nacos", "v1", "ns", "instance"]) => call.register().await,
        ("DELETE", ["nacos", "v1", "ns", "instance"]) => call.deregister().await,
        ("GET", ["nacos", "v1", "ns", "instance"]) => call.instance().await,
        ("PUT", ["nacos", "v1", "ns", "instance", "beat"]) => call.beat().await,
        ("GET", ["nacos", "v1", "ns", "instance", "list"]) => call.list(),
        ("GET", ["nacos", "v1", "ns", "service", "list"]) => call.services().await,
        ("GET", ["nacos", "v1", "ns", "operator", "metrics"]) => {
            call.caller.needs(Role::Read, call.namespace.as_str())?;
            Ok(Reply::ok(&json!({ "status": "UP" })))
        }
        (_, ["nacos", "v1", "ns", "instance"]) => {
            Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST, PUT, DELETE" })
        }
        (_, ["nacos", "v1", "ns", "instance", "beat"]) => Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        (_, ["nacos", "v1", "ns", "instance" | "service", "list"]) => {
            Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" })
        }
        // A client of the configuration asks again at once where it is told that there is nothing.
        (_, ["nacos", "v1", "cs", ..]) => {
            Err(ApiError::NotImplemented("Nacos' configuration is not served here".into()))
        }
        _ => Err(ApiError::NoSuchPath(request.whole.chars().take(200).collect())),
    }
}

/// Whether a path is one at which clients log in, with user and password in the address or in a form.
pub(super) fn is_login(path: &[&str]) -> bool {
    matches!(
        path,
        ["nacos", "v1", "auth", "login"]
            | ["nacos", "v1", "auth", "users", "login"]
            | ["nacos", "v3", "auth", "user", "login"]
    )
}

/// A password is a token, and so is the access token that the client goes on with.
fn login(context: &Context, request: &Request) -> Result<Reply, ApiError> {
    let fields = Fields::of(request)?;
    let password = fields.text("password");
    let caller = context.identify_by(&request.headers, Some(password).filter(|password| !password.is_empty()))?;
    Ok(Reply::ok(&json!({
        "accessToken": password, "tokenTtl": 18_000, "globalAdmin": false, "username": caller.name(),
    })))
}

impl Call<'_> {
    fn service(&self) -> Result<(Service, ServiceKey), ApiError> {
        let service = Service::of(self.fields.text("serviceName"), self.fields.text("groupName"))?;
        let key = ServiceKey::new(&self.namespace, &service.known_as())?;
        Ok((service, key))
    }

    fn audit(&self, action: &str, object: &str) {
        self.context.audit(&self.caller, self.request.peer, action, self.namespace.as_str(), object);
    }

    async fn register(&self) -> Result<Reply, ApiError> {
        self.caller.needs(Role::Write, self.namespace.as_str())?;
        let sent = Sent::of(&self.fields)?;
        self.put(&sent).await?;
        Ok(Reply::text(StatusCode::OK, "ok"))
    }

    async fn put(&self, sent: &Sent) -> Result<Written, ApiError> {
        let (service, key) = self.service()?;
        let id = identity::nacos(&self.namespace, &service.full(), &sent.cluster, &sent.ip, sent.port)?;
        let written = self.context.registry.change(&id, |before| {
            let registration = Registration {
                weight: sent.weight,
                metadata: sent.metadata(&service)?,
                check: Some(sent.check()),
                isolate: Some(!sent.enabled),
                // To register is a sign of life.
                health: if sent.ephemeral { Some(crate::Health::Passing) } else { before.map(|it| it.health) },
                ..Registration::new(id.clone(), key.clone(), &sent.ip, sent.port)
            };
            Ok::<_, ApiError>(Edit::Register(Box::new(registration)))
        });
        let written = written.await?;
        if written.changed() {
            self.audit("register", &sent.shown_id(&service));
        }
        Ok(written)
    }

    /// The instance that the request's address and cluster mean, in the service that it names: of this front, or of another one.
    async fn found(&self, ip: &str, port: u16, cluster: &str) -> Result<Option<Arc<Instance>>, ApiError> {
        let (service, key) = self.service()?;
        let registry = &self.context.registry;
        let id = identity::nacos(&self.namespace, &service.full(), cluster, ip, port)?;
        if let Some(instance) = registry.instance_or_ask(&id).await {
            return Ok(Some(instance));
        }
        let Some(snapshot) = registry.snapshot(&key) else { return Ok(None) };
        let same = |it: &&Arc<Instance>| *it.host == *ip && it.port == port && wire::cluster(it) == cluster;
        Ok(snapshot.instances.iter().find(same).map(Arc::clone))
    }

    async fn deregister(&self) -> Result<Reply, ApiError> {
        self.caller.needs(Role::Write, self.namespace.as_str())?;
        let sent = Sent::of(&self.fields)?;
        // Who is gone already is gone.
        if let Some(instance) = self.found(&sent.ip, sent.port, &sent.cluster).await? {
            let rows = self.context.registry.deregister(std::slice::from_ref(&instance.id)).await;
            match rows.into_iter().next() {
                Some(Err(error)) if !matches!(error, crate::WriteError::NotFound { .. }) => return Err(error.into()),
                _ => self.audit("deregister", instance.id.local()),
            }
        }
        Ok(Reply::text(StatusCode::OK, "ok"))
    }

    async fn beat(&self) -> Result<Reply, ApiError> {
        self.caller.needs(Role::Write, self.namespace.as_str())?;
        let (sent, whole) = Sent::of_beat(&self.fields)?;
        let answer = |code: u64| {
            let interval = u64::try_from(sent.beat_interval.as_millis()).unwrap_or(u64::MAX);
            Ok(Reply::ok(&json!({ "clientBeatInterval": interval, "code": code, "lightBeatEnabled": true })))
        };
        let (service, _) = self.service()?;
        let id = identity::nacos(&self.namespace, &service.full(), &sent.cluster, &sent.ip, sent.port)?;
        let id = match self.context.registry.instance(&id) {
            Some(_) => Some(id),
            None => self.found(&sent.ip, sent.port, &sent.cluster).await?.map(|instance| instance.id.clone()),
        };
        if let Some(id) = id
            && self.context.registry.heartbeat(std::slice::from_ref(&id)).await.first() == Some(&Beat::Known)
        {
            return answer(BEAT_OK);
        }
        // A beat that says all of the instance registers it: some clients do nothing else.
        if !whole {
            return answer(BEAT_UNKNOWN);
        }
        self.put(&sent).await?;
        answer(BEAT_OK)
    }

    async fn instance(&self) -> Result<Reply, ApiError> {
        self.caller.needs(Role::Read, self.namespace.as_str())?;
        let sent = Sent::of(&self.fields)?;
        let (service, _) = self.service()?;
        let found = self.found(&sent.ip, sent.port, &sent.cluster).await?;
        let instance = found.ok_or_else(|| ApiError::NotFound { what: "instance", name: sent.shown_id(&service) })?;
        let mut shown = wire::shown(&instance, &service);
        shown["service"] = service.full().into();
        Ok(Reply::ok(&shown))
    }

    fn list(&self) -> Result<Reply, ApiError> {
        self.caller.needs(Role::Read, self.namespace.as_str())?;
        let (service, key) = self.service()?;
        let clusters = self.fields.text("clusters");
        let wanted: Vec<&str> = clusters.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let healthy = self.fields.text("healthyOnly").eq_ignore_ascii_case("true");
        let snapshot = self.context.registry.snapshot(&key);
        let list = snapshot.iter().flat_map(|snapshot| snapshot.instances.iter());
        // Who is taken out is not shown, as in Nacos.
        let list = list.filter(|instance| !instance.isolate);
        let list = list.filter(|instance| wanted.is_empty() || wanted.contains(&wire::cluster(instance).as_str()));
        let list = list.filter(|instance| !healthy || instance.overall() != crate::Health::Critical);
        let hosts: Vec<Value> = list.map(|instance| wire::shown(instance, &service)).collect();
        let revision = snapshot.as_ref().map_or(0, |snapshot| snapshot.revision.0);
        let reply = Reply::ok(&json!({
            "name": service.full(),
            "dom": service.full(),
            "groupName": service.group,
            "clusters": clusters,
            "cacheMillis": CACHE_MILLIS,
            "hosts": hosts,
            // Clients drop a list that is older than theirs.
            "lastRefTime": crate::registry::now_millis(),
            "checksum": revision.to_string(),
            "allIPs": false,
            "reachProtectionThreshold": false,
            "useSpecifiedURL": false,
            "valid": true,
            "env": "",
            "metadata": {},
        }));
        Ok(if self.request.accepts_gzip() { reply.gzip() } else { reply })
    }

    async fn services(&self) -> Result<Reply, ApiError> {
        self.caller.needs(Role::Read, self.namespace.as_str())?;
        let group = match self.fields.text("groupName") {
            "" => wire::DEFAULT_GROUP,
            group => group,
        }
        .to_owned();
        let (page, size) = (self.fields.number("pageNo")?.unwrap_or(1), self.fields.number("pageSize")?.unwrap_or(20));
        let (registry, ns) = (self.context.registry.clone(), self.namespace.clone());
        let names = move || -> Vec<String> {
            let services = registry.services(Some(&ns));
            let named = services.iter().filter(|service| !service.instances.is_empty());
            let named = named.filter_map(|service| Service::of(service.key.name(), "").ok());
            named.filter(|service| service.group == group).map(|service| service.name).collect()
        };
        let names = self.context.whole.apart(names).await?;
        let size = usize::try_from(size).unwrap_or(MOST_NAMES).clamp(1, MOST_NAMES);
        let skipped = usize::try_from(page.max(1) - 1).unwrap_or(usize::MAX).saturating_mul(size);
        let doms: Vec<&String> = names.iter().skip(skipped).take(size).collect();
        Ok(Reply::ok(&json!({ "count": names.len(), "doms": doms })))
    }
}
