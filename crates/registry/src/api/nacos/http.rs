//! Naming over HTTP, of version 1, and the parts of versions 2 and 3 that clients use: instances, beats, lists, services; and the login, which gRPC
//! clients use, too.

use hyper::{Method, StatusCode};
use serde_json::json;

use super::super::list_cache::ListBuilder;
use super::super::reply::JSON;
use super::config::result;
use super::naming::{Hosts, Naming, Wanted, named};
use super::service::ServiceRecord;
use super::wire::{self, Fields, Info, Lease, Sent, Service};
use super::*;
use crate::model::Digest;
use crate::rights::Access;
use crate::{Beat, Health, OverlayChange, ServiceSnapshot};

/// Code for an accepted beat.
const BEAT_OK: u64 = 10_200;
/// Code for an unknown instance: the client registers again.
const BEAT_UNKNOWN: u64 = 20_404;

struct Call<'a> {
    request: &'a Request,
    fields: Fields,
    naming: Naming<'a>,
}

pub(in crate::api) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let path = request.path();
    if is_login(&path) {
        return login(context, request);
    }
    if let Some(answered) = super::config::handle(context, request).await {
        return answered;
    }
    let caller = context.identify(request)?;
    let fields = Fields::of(request)?;
    let namespace = named(fields.text("namespaceId"))?;
    let call = Call { request, fields, naming: Naming { context, caller, peer: request.peer, namespace } };
    let method = if request.method == Method::HEAD { Method::GET } else { request.method.clone() };
    if let ["nacos", "v3", "client" | "admin", "ns", rest @ ..] = path.as_slice() {
        // These clients read the code in the body.
        return call.version_3(method.as_str(), rest).await.or_else(|error| Ok(super::config::refused(&error)));
    }
    if let ["nacos", "v2", "ns", rest @ ..] = path.as_slice() {
        return call.version_2(method.as_str(), rest).await.or_else(|error| Ok(super::config::refused(&error)));
    }
    match (method.as_str(), path.as_slice()) {
        ("POST", ["nacos", "v1", "ns", "instance"]) => call.register().await,
        ("PUT", ["nacos", "v1", "ns", "instance"]) => call.overrides(true).await,
        ("PATCH", ["nacos", "v1", "ns", "instance"]) => call.overrides(false).await,
        ("DELETE", ["nacos", "v1", "ns", "instance"]) => call.deregister().await,
        ("GET", ["nacos", "v1", "ns", "instance"]) => Ok(Reply::ok(&call.instance().await?)),
        ("PUT", ["nacos", "v1", "ns", "instance", "beat"]) => Ok(Reply::ok(&call.beat().await?)),
        ("PUT" | "DELETE", ["nacos", "v1", "ns", "instance", "metadata", "batch"]) => {
            Ok(Reply::ok(&call.metadata(method == Method::PUT).await?))
        }
        ("PUT", ["nacos", "v1", "ns", "health"] | ["nacos", "v1", "ns", "health", "instance"]) => {
            call.report().await.map(|()| Reply::text(StatusCode::OK, "ok"))
        }
        ("GET", ["nacos", "v1", "ns", "instance", "list"]) => call.list().await,
        ("GET", ["nacos", "v1", "ns", "service"]) => call.described().await,
        ("GET", ["nacos", "v1", "ns", "service", "list"]) => call.services().await,
        ("GET", ["nacos", "v1", "ns", "operator", "metrics"]) => {
            call.naming.enters(Access::Read)?;
            Ok(Reply::ok(&json!({ "status": "UP" })))
        }
        (_, ["nacos", "v1", "ns", "instance"]) => {
            Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST, PUT, PATCH, DELETE" })
        }
        ("PUT", ["nacos", "v1", "ns", "service"]) if call.fields.text("protectThreshold").is_empty() => {
            Err(required("protectThreshold"))
        }
        (method, ["nacos", "v1", "ns", "service"]) => {
            call.change_service(method).await.map(|()| Reply::text(StatusCode::OK, "ok"))
        }
        (_, ["nacos", "v1", "ns", "instance", "beat"]) => Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        (_, ["nacos", "v1", "ns", "instance" | "service", "list"]) => {
            Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" })
        }
        _ => Err(ApiError::NoSuchPath(request.whole.chars().take(200).collect())),
    }
}

/// True for the path of a login, with user and password in the address or in a form.
pub(in crate::api) fn is_login(path: &[&str]) -> bool {
    matches!(
        path,
        ["nacos", "v1", "auth", "login"]
            | ["nacos", "v1", "auth", "users", "login"]
            | ["nacos", "v3", "auth", "user", "login"]
    )
}

/// Answers a login. The password is a token, and also the access token that the client then uses.
fn login(context: &Context, request: &Request) -> Result<Reply, ApiError> {
    let fields = Fields::of(request)?;
    let password = fields.text("password");
    let caller = context.identify_by(&request.headers, Some(password).filter(|password| !password.is_empty()))?;
    Ok(Reply::ok(&json!({
        "accessToken": password, "tokenTtl": 18_000, "globalAdmin": false, "username": caller.name(),
    })))
}

impl Call<'_> {
    fn service(&self) -> Result<Service, ApiError> {
        Service::of(self.fields.text("serviceName"), self.fields.text("groupName"))
    }

    /// Checks the caller's right to the service.
    fn needs(&self, access: Access) -> Result<(), ApiError> {
        self.naming.enters(access)?;
        self.naming.needs(access, &self.service()?)
    }

    /// Creates (POST), changes (PUT) or removes (DELETE) a service.
    async fn change_service(&self, method: &str) -> Result<(), ApiError> {
        if !matches!(method, "POST" | "PUT" | "DELETE") {
            return Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST, PUT, DELETE" });
        }
        self.naming.enters(Access::Write)?;
        let service = self.service()?;
        self.naming.needs_record(&service)?;
        if method == "DELETE" {
            return self.naming.remove_service(&service).await;
        }
        self.naming.put_record(&service, &ServiceRecord::of(&self.fields)?, method == "POST").await
    }

    /// Describes a service in the form of versions 2 and 3, which differ in the name of the namespace's field.
    async fn detailed(&self, namespace: &str) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        let service = self.service()?;
        let clusters = self.naming.clusters(&service).await?.into_iter().map(|name| {
            let cluster = json!({
                "clusterName": name, "healthChecker": { "type": "TCP" }, "metadata": {},
                "useInstancePortForCheck": true, "healthyCheckPort": 80, "hosts": null,
            });
            (name, cluster)
        });
        let mut description = json!({
            namespace: self.naming.namespace.as_str(),
            "groupName": service.group,
            "serviceName": service.name,
            "clusterMap": clusters.collect::<serde_json::Map<_, _>>(),
            "ephemeral": self.naming.is_ephemeral(&service)?,
        });
        self.naming.record(&service)?.describe(&mut description);
        Ok(result(&description))
    }

    /// Answers a request of version 2, whose answers are in an envelope, but for those to beats.
    async fn version_2(&self, method: &str, path: &[&str]) -> Result<Reply, ApiError> {
        let done = |reply: Result<Reply, ApiError>| reply.map(|_| result(&"ok"));
        match (method, path) {
            ("POST", ["instance"]) => done(self.register().await),
            ("PUT", ["instance"]) => done(self.overrides(true).await),
            ("PATCH", ["instance"]) => done(self.overrides(false).await),
            ("DELETE", ["instance"]) => done(self.deregister().await),
            ("GET", ["instance"]) => Ok(result(&self.instance().await?)),
            ("PUT", ["instance", "beat"]) => Ok(Reply::ok(&self.beat().await?)),
            ("PUT" | "DELETE", ["instance", "metadata", "batch"]) => Ok(result(&self.metadata(method == "PUT").await?)),
            ("PUT", ["health"] | ["health", "instance"]) => self.report().await.map(|()| result(&"ok")),
            ("GET", ["instance", "list"]) => {
                self.needs(Access::Read)?;
                let (service, wanted) = (self.service()?, self.wanted());
                let mut body = br#"{"code":0,"message":"success","data":"#.to_vec();
                info(&service, &wanted, self.naming.hosts(&service, &wanted).await?).write(&mut body);
                body.extend(b"}");
                Ok(Reply::bytes(StatusCode::OK, JSON, body))
            }
            ("GET", ["service"]) => self.detailed("namespace").await,
            ("GET", ["service", "list"]) => {
                let (names, count, _) = self.page(self.fields.text("groupName")).await?;
                Ok(result(&json!({ "count": count, "services": names })))
            }
            (method, ["service"]) => self.change_service(method).await.map(|()| result(&"ok")),
            (_, ["instance"]) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST, PUT, PATCH, DELETE" }),
            (_, ["instance", "beat"] | ["health"] | ["health", "instance"]) => {
                Err(ApiError::MethodNotAllowed { allow: "PUT" })
            }
            (_, ["instance" | "service", "list"]) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" }),
            _ => Err(ApiError::NoSuchPath(self.request.whole.chars().take(200).collect())),
        }
    }

    /// Returns the requested page of the names of services in `group`, the total number, and the number of the page.
    async fn page(&self, group: &str) -> Result<(Vec<String>, usize, u64), ApiError> {
        self.naming.enters(Access::Read)?;
        let (page, size) = (self.fields.number("pageNo")?.unwrap_or(1), self.fields.number("pageSize")?.unwrap_or(20));
        let empty = !self.fields.text("ignoreEmptyService").eq_ignore_ascii_case("true");
        let (names, count) = self.naming.services(group, page, size, empty).await?;
        Ok((names, count, page))
    }

    /// Answers a request of version 3, whose answers are in an envelope.
    async fn version_3(&self, method: &str, path: &[&str]) -> Result<Reply, ApiError> {
        let done = |reply: Result<Reply, ApiError>| reply.map(|_| result(&"ok"));
        match (method, path) {
            ("POST", ["instance"]) if self.fields.text("heartBeat") == "true" => self.renew().await,
            ("POST", ["instance"]) => done(self.register().await),
            ("PUT", ["instance"]) => done(self.overrides(true).await),
            ("DELETE", ["instance"]) => done(self.deregister().await),
            ("PUT" | "DELETE", ["instance", "metadata", "batch"]) => Ok(result(&self.metadata(method == "PUT").await?)),
            ("GET", ["instance"]) => {
                self.needs(Access::Read)?;
                let (sent, service) = (Sent::of(&self.fields)?, self.service()?);
                let found = self.naming.found(&service, &sent).await?;
                let missing = || ApiError::NotFound { what: "instance", name: sent.shown_id(&service) };
                Ok(result(&wire::shown(&*found.ok_or_else(missing)?, &service)))
            }
            ("GET", ["instance", "list"]) => {
                self.needs(Access::Read)?;
                let hosts = self.naming.hosts(&self.service()?, &self.wanted()).await?;
                let mut body = br#"{"code":0,"message":"success","data":["#.to_vec();
                body.extend(hosts.parts.join(&b','));
                body.extend(b"]}");
                Ok(Reply::bytes(StatusCode::OK, JSON, body))
            }
            ("GET", ["service", "list"]) => {
                let group = [self.fields.text("groupNameParam"), self.fields.text("groupName")].concat();
                let (names, count, page) = self.page(&group).await?;
                let group = if group.is_empty() { wire::DEFAULT_GROUP } else { &group };
                let items: Vec<_> = names.iter().map(|name| json!({ "name": name, "groupName": group })).collect();
                Ok(result(&json!({ "totalCount": count, "pageNumber": page, "pageItems": items })))
            }
            ("GET", ["service"]) => self.detailed("namespaceId").await,
            (method, ["service"]) => self.change_service(method).await.map(|()| result(&"ok")),
            _ => Err(ApiError::NoSuchPath(self.request.whole.chars().take(200).collect())),
        }
    }

    /// Renews the lease of an instance; one that is not there is an error, and its client registers it again.
    async fn renew(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let (sent, service) = (Sent::of(&self.fields)?, self.service()?);
        let id = self.naming.found(&service, &sent).await?.map(|instance| instance.id.clone());
        let known = match id {
            Some(id) => self.naming.context.registry.heartbeat(&[id]).await.first() == Some(&Beat::Known),
            None => false,
        };
        if known {
            return Ok(result(&"ok"));
        }
        Err(ApiError::NotFound { what: "instance", name: sent.shown_id(&service) })
    }

    async fn register(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let sent = Sent::of(&self.fields)?;
        self.naming.put(&self.service()?, &sent, Lease::Beats).await?;
        Ok(Reply::text(StatusCode::OK, "ok"))
    }

    /// Overrides values of an instance, as an operator's word beside the instance's own: all of them if `whole`, else those that are named.
    async fn overrides(&self, whole: bool) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let sent = Sent::of(&self.fields)?;
        let overlay = sent.overlay(&self.fields, whole);
        self.naming.overlay(&self.service()?, &sent, &overlay).await?;
        Ok(Reply::text(StatusCode::OK, "ok"))
    }

    /// Overrides entries of the metadata of several instances, or takes these overrides away unless `set`. Returns the instances that are there.
    async fn metadata(&self, set: bool) -> Result<Value, ApiError> {
        self.needs(Access::Write)?;
        let (service, metadata) = (self.service()?, wire::pairs(self.fields.text("metadata"))?);
        if metadata.is_empty() {
            return Err(required("metadata"));
        }
        wire::not_reserved(&metadata)?;
        let entries = metadata.into_iter().map(|(key, value)| (key, set.then_some(value))).collect();
        let overlay = OverlayChange { entries, ..OverlayChange::default() };
        let sent = Sent::several(self.fields.text("instances"))?;
        let changed = self.naming.overlay_several(&service, &sent, &overlay).await?;
        let shown: Vec<String> = changed.iter().map(|instance| wire::changed(instance)).collect();
        Ok(json!({ "updated": shown }))
    }

    async fn deregister(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Write)?;
        let sent = Sent::of(&self.fields)?;
        self.naming.remove(&self.service()?, &sent).await?;
        Ok(Reply::text(StatusCode::OK, "ok"))
    }

    /// Renews the lease of an instance, and registers one that is not there if its beat has everything. As at Nacos, a persistent instance is not there
    /// for a beat, and no beat makes it ephemeral.
    async fn beat(&self) -> Result<Value, ApiError> {
        self.needs(Access::Write)?;
        let (sent, whole) = Sent::of_beat(&self.fields)?;
        let answer = |code: u64| {
            let interval = u64::try_from(sent.beat_interval.as_millis()).unwrap_or(u64::MAX);
            Ok(json!({ "clientBeatInterval": interval, "code": code, "lightBeatEnabled": true }))
        };
        let service = self.service()?;
        let registry = &self.naming.context.registry;
        let found = match registry.instance(&self.naming.id(&service, &sent)?) {
            Some(instance) => Some(instance),
            None => self.naming.found(&service, &sent).await?,
        };
        match found {
            Some(instance) if wire::is_persistent(&instance) => {
                if whole {
                    let id = sent.shown_id(&service);
                    return Err(ApiError::bad(format!("the instance {id} is persistent: expected no beat")));
                }
                return answer(BEAT_UNKNOWN);
            }
            Some(instance) => {
                let beats = registry.heartbeat(std::slice::from_ref(&instance.id)).await;
                if beats.first() == Some(&Beat::Known) {
                    return answer(BEAT_OK);
                }
            }
            None => {}
        }
        // A beat with all attributes of an instance registers it: some clients send nothing else.
        if !whole {
            return answer(BEAT_UNKNOWN);
        }
        self.naming.put(&service, &sent, Lease::Beats).await?;
        answer(BEAT_OK)
    }

    /// Sets the health of an instance that nobody probes.
    async fn report(&self) -> Result<(), ApiError> {
        self.needs(Access::Write)?;
        let text = self.fields.text("healthy");
        let health = match text.to_ascii_lowercase().as_str() {
            "true" => Health::Passing,
            "false" => Health::Critical,
            "" => return Err(required("healthy")),
            _ => return Err(wire::expected("healthy", text, "true or false")),
        };
        let (sent, service) = (Sent::of(&self.fields)?, self.service()?);
        let missing = || ApiError::NotFound { what: "instance", name: sent.shown_id(&service) };
        let instance = self.naming.found(&service, &sent).await?.ok_or_else(missing)?;
        if instance.check.as_ref().is_some_and(|check| !check.is_reported()) {
            return Err(ApiError::bad(format!("the registry itself probes the instance {}", sent.shown_id(&service))));
        }
        let written = self.naming.context.registry.report(&[(instance.id.clone(), health)]).await.pop();
        written.unwrap_or(Err(crate::WriteError::Stopped))?;
        Ok(())
    }

    /// Returns the selection that a request of a list names. The clusters are `clusters` in version 1, and `clusterName` in versions 2 and 3.
    fn wanted(&self) -> Wanted {
        let healthy = self.fields.text("healthyOnly").eq_ignore_ascii_case("true");
        Wanted { clusters: [self.fields.text("clusterName"), self.fields.text("clusters")].concat(), healthy }
    }

    async fn instance(&self) -> Result<Value, ApiError> {
        self.needs(Access::Read)?;
        let sent = Sent::of(&self.fields)?;
        let service = self.service()?;
        let found = self.naming.found(&service, &sent).await?;
        let instance = found.ok_or_else(|| ApiError::NotFound { what: "instance", name: sent.shown_id(&service) })?;
        let mut shown = wire::shown(&instance, &service);
        shown["service"] = service.full().into();
        Ok(shown)
    }

    async fn list(&self) -> Result<Reply, ApiError> {
        self.needs(Access::Read)?;
        let (service, wanted) = (self.service()?, self.wanted());
        let context = self.naming.context;
        let snapshot = context.registry.snapshot(&self.naming.key(&service)?);
        // The most common request's encoding is cached with the instances.
        let selection = snapshot.as_ref().map(|snapshot| wanted.of(snapshot));
        let encoding = selection.as_ref().and_then(|selection| selection.kept());
        let (Some(snapshot), Some(selection), Some(encoding)) = (snapshot, selection, encoding) else {
            let mut body = Vec::new();
            info(&service, &wanted, self.naming.hosts(&service, &wanted).await?).write(&mut body);
            let reply = Reply::bytes(StatusCode::OK, JSON, body);
            return Ok(if self.request.accepts_gzip() { reply.gzip() } else { reply });
        };
        let (revision, protected) = (snapshot.revision, selection.protected);
        let hosts = Hosts { revision, parts: Vec::new(), digest: Digest::of_bytes(&[]), protected };
        let tail = info(&service, &wanted, hosts).tail();
        let packed = self.request.accepts_gzip();
        let make = move |snapshot: &ServiceSnapshot, out: &mut ListBuilder| {
            out.text(wire::HOSTS);
            out.list(snapshot, encoding, "", ",", |instances| selection.encode(instances, &service));
            out.text(tail);
        };
        let body = context.lists.of_service(snapshot, encoding, packed, make).await?;
        Ok(Reply::pieces(JSON, body, packed))
    }

    /// Describes a service: its record and its clusters, with Nacos' defaults for everything that a cluster here does not have.
    async fn described(&self) -> Result<Reply, ApiError> {
        let service = self.service()?;
        self.naming.needs(Access::Read, &service)?;
        let clusters = self.naming.clusters(&service).await?;
        let cluster = |name| json!({ "name": name, "healthChecker": { "type": "TCP" }, "metadata": {} });
        let mut description = json!({
            "namespaceId": self.naming.namespace.as_str(),
            "groupName": service.group,
            "name": service.name,
            "clusters": clusters.into_iter().map(cluster).collect::<Vec<_>>(),
        });
        self.naming.record(&service)?.describe(&mut description);
        Ok(Reply::ok(&description))
    }

    async fn services(&self) -> Result<Reply, ApiError> {
        let (names, count, _) = self.page(self.fields.text("groupName")).await?;
        Ok(Reply::ok(&json!({ "count": count, "doms": names })))
    }
}

/// Returns a list of instances in the form of this API.
fn info(service: &Service, wanted: &Wanted, hosts: Hosts) -> Info {
    let mut info = Info::new(service, &wanted.clusters, hosts, crate::registry::now_millis());
    for (field, value) in [
        ("name", json!(service.full())),
        ("dom", json!(service.full())),
        ("useSpecifiedURL", json!(false)),
        ("env", json!("")),
        ("metadata", json!({})),
    ] {
        info.set(field, value);
    }
    info
}
