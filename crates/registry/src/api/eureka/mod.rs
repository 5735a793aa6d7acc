//! Eureka's REST API: XML unless a client asks for JSON.
//!
//! An application is a service in the namespace of the caller's token, or in `default`. The service's name is the application's in lower case; Eureka
//! itself writes application names in upper case. An instance whose lease has expired is hidden at once, and removed after three more leases; a
//! heartbeat before that restores it.
//!
//! A node replicates with Eureka's own servers: [`replica`] takes their changes, [`servers`] has them told of changes that clients made here. Remote
//! regions are not supported (`regions=` is ignored).
//!
//! Format: <https://github.com/Netflix/eureka/wiki/Eureka-REST-operations>.

mod changes;
mod delta;
mod overview;
mod replica;
mod servers;
mod view;
mod whole;
mod wire;
mod xml;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hyper::header::{ACCEPT, CONTENT_TYPE};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::auth::Caller;
use super::list_cache::{Key, ListBuilder, Pieces};
use super::reply::{JSON, XML};
use super::{ApiError, Context, RESERVED, Reply, Request, identity};
use crate::rights::{Access, Resource};
use crate::{Beat, Edit, Instance, InstanceId, Metadata, NamespaceName, Patch, Revision, ServiceKey, ServiceSnapshot};
use changes::{Origin, Renewal};
pub(super) use delta::DeltaWindow;
pub(super) use overview::Renewals;
pub use overview::{EurekaApplication, EurekaInstance, EurekaOverview, EurekaView};
use servers::Action;
pub use servers::{EurekaServer, EurekaServers, ServerAnswer, ServerStep};
use view::{Form, app_name};
use wire::{KEPT, Kept, Sent};

/// Default namespace, if the token is not for a single one: Eureka's clients cannot name a namespace.
const NAMESPACE: &str = "default";
/// Maximum number of instances with one id, of any application, that are searched.
const MOST_OF_ID: usize = 64;

struct Call<'a> {
    context: &'a Arc<Context>,
    request: &'a Request,
    caller: Caller,
    namespace: NamespaceName,
    form: Form,
    origin: Origin,
}

pub(super) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let caller = context.identify(request)?;
    let accept = request.header(&ACCEPT).unwrap_or_default();
    let form = if accept.contains("json") { Form::Json } else { Form::Xml };
    let namespace = super::namespace(caller.only_namespace().unwrap_or(NAMESPACE))?;
    let origin =
        if request.named_header(servers::REPLICATION) == Some("true") { Origin::Replica } else { Origin::Client };
    let call = Call { context, request, caller, namespace, form, origin };
    let path = request.path();
    let method = if request.method == Method::HEAD { Method::GET } else { request.method.clone() };
    // Spring's clients use …/eureka, older ones …/eureka/v2.
    let path = match path.as_slice() {
        ["eureka", "v2", rest @ ..] | ["eureka", rest @ ..] => rest,
        _ => &[],
    };
    let reading = method == Method::GET;
    call.caller.enters(if reading { Access::Read } else { Access::Write }, call.namespace.as_str())?;
    let reply = match (method.as_str(), path) {
        ("GET", ["apps"]) => call.applications().await?,
        ("GET", ["apps", "delta"]) => call.delta().await?,
        ("GET", ["apps", app]) => call.application(app).await?,
        ("GET", ["apps", app, id]) => call.show("instance", view::instance(&*call.found(Some(app), id)?, form)),
        ("GET", ["instances", id]) => call.show("instance", view::instance(&*call.found(None, id)?, form)),
        ("GET", ["vips", vip]) => call.vip("vipAddress", vip).await?,
        ("GET", ["svips", vip]) => call.vip("secureVipAddress", vip).await?,
        ("POST", ["apps", app]) => call.register(app).await?,
        ("PUT", ["apps", app, id]) => call.heartbeat(app, id).await?,
        ("DELETE", ["apps", app, id]) => done(call.cancel(app, id).await)?,
        (verb @ ("PUT" | "DELETE"), ["apps", app, id, "status"]) => {
            done(call.overrides(app, id, verb == "PUT", request.param("value"), call.dirty()?).await)?
        }
        ("PUT", ["apps", app, id, "metadata"]) => done(call.metadata(app, id).await)?,
        ("POST", ["peerreplication", "batch"]) => replica::batch(&call).await?,
        (_, ["apps"] | ["apps", "delta"] | ["instances" | "vips" | "svips", _]) => {
            return Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" });
        }
        (_, ["apps", _]) => return Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST" }),
        (_, ["apps", _, _]) => return Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, PUT, DELETE" }),
        (_, ["apps", _, _, "status"]) => return Err(ApiError::MethodNotAllowed { allow: "PUT, DELETE" }),
        (_, ["peerreplication", "batch"]) => return Err(ApiError::MethodNotAllowed { allow: "POST" }),
        (_, ["apps", _, _, "metadata"]) => return Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        _ => return Err(ApiError::NoSuchPath(format!("/{}", request.segments.join("/")))),
    };
    Ok(if request.accepts_gzip() { reply.gzip() } else { reply })
}

impl Call<'_> {
    fn show(&self, name: &str, tree: Value) -> Reply {
        self.show_as(StatusCode::OK, name, tree)
    }

    fn show_as(&self, status: StatusCode, name: &str, tree: Value) -> Reply {
        match self.form {
            Form::Xml => Reply::bytes(status, XML, view::xml(name, &tree)),
            Form::Json => Reply::bytes(status, JSON, json!({ name: tree }).to_string()),
        }
    }

    /// Returns the service of an application. A service whose name is not in lower case was registered through another front.
    async fn service(&self, app: &str) -> Result<ServiceKey, ApiError> {
        let usual = ServiceKey::new(&self.namespace, &app.to_lowercase())?;
        let registry = self.context.registry.clone();
        if registry.snapshot(&usual).is_some() {
            return Ok(usual);
        }
        let (upper, namespace) = (app_name(app), self.namespace.clone());
        let same = move || registry.services(Some(&namespace)).into_iter().find(|it| app_name(it.key.name()) == upper);
        let other = self.context.lists.apart(same).await?;
        Ok(other.map_or(usual, |service| service.key.clone()))
    }

    /// Returns the instance shown as `id`, of one application or of any. One that the caller may not read or change, whatever the request does, is an
    /// error.
    fn known(&self, app: Option<&str>, id: &str) -> Result<Option<Arc<Instance>>, ApiError> {
        let found = self.looked_up(app, id)?;
        if let Some(instance) = &found {
            self.needs(&instance.service)?;
        }
        Ok(found)
    }

    /// Checks the caller's right to do what the request does with a service.
    fn needs(&self, service: &ServiceKey) -> Result<(), ApiError> {
        let reading = matches!(self.request.method, Method::GET | Method::HEAD);
        let access = if reading { Access::Read } else { Access::Write };
        self.caller.needs(access, Resource::service(service.name()), service.namespace())
    }

    fn looked_up(&self, app: Option<&str>, id: &str) -> Result<Option<Arc<Instance>>, ApiError> {
        let registry = &self.context.registry;
        let of_app =
            |instance: &Arc<Instance>| app.is_none_or(|app| app_name(app) == app_name(instance.service.name()));
        let own = match app {
            Some(app) => registry.instance(&identity::eureka(&self.namespace, app, id)?),
            None => {
                let mut found = registry.find(&self.namespace, &[(identity::CLIENT_ID, id)], MOST_OF_ID).instances;
                found.retain(|instance| identity::in_eureka(instance) == id);
                found.pop()
            }
        };
        let shown = |instance: &Arc<Instance>| of_app(instance) && identity::in_eureka(instance) == id;
        // An instance of another front is shown with its instance id.
        let other = || registry.instance(&InstanceId::new(&self.namespace, id).ok()?);
        Ok(own.filter(shown).or_else(|| other().filter(shown)))
    }

    fn found(&self, app: Option<&str>, id: &str) -> Result<Arc<Instance>, ApiError> {
        let lives = self.known(app, id)?.filter(|instance| view::status(instance).is_some());
        lives.ok_or_else(|| ApiError::NotFound { what: "instance", name: id.to_owned() })
    }

    /// Returns an instance even if its lease has expired, unlike [`Call::found`].
    async fn leased(&self, app: &str, id: &str) -> Result<Arc<Instance>, ApiError> {
        if let Some(instance) = self.known(Some(app), id)? {
            return Ok(instance);
        }
        // It may just have been registered at another node of the registry.
        self.context.registry.instance_or_ask(&identity::eureka(&self.namespace, app, id)?).await;
        let missing = || ApiError::NotFound { what: "instance", name: id.to_owned() };
        self.known(Some(app), id)?.ok_or_else(missing)
    }

    /// Returns a response about all applications, made by `make` once for each `more`, revision and `since`.
    async fn all(
        &self,
        what: &'static str,
        more: &str,
        since: Revision,
        make: impl FnOnce(&whole::All, &mut ListBuilder) + Send + 'static,
    ) -> Result<Pieces, ApiError> {
        let (registry, namespace, form) = (&self.context.registry, &self.namespace, self.form);
        let packed = self.request.accepts_gzip();
        let more = format!("{} {more}", if form == Form::Xml { "xml" } else { "json" });
        let key = Key { what, namespace: namespace.as_str().into(), more, packed };
        let stamp = || (registry.revision_in(namespace), since);
        let (registry_there, namespace_there) = (registry.clone(), namespace.clone());
        if !self.caller.sees_all(namespace.as_str()) {
            let caller = self.caller.clone();
            let make = move |out: &mut ListBuilder| {
                make(&whole::All::new(registry_there, &namespace_there, form).seen_by(caller), out);
            };
            return self.context.lists.once(packed, make).await;
        }
        let make = move |out: &mut ListBuilder| make(&whole::All::new(registry_there, &namespace_there, form), out);
        self.context.lists.get(key, stamp, make).await
    }

    fn reply(&self, body: Pieces) -> Reply {
        Reply::pieces(if self.form == Form::Xml { XML } else { JSON }, body, self.request.accepts_gzip())
    }

    async fn applications(&self) -> Result<Reply, ApiError> {
        self.context.delta_window.note(Instant::now(), self.context.registry.revision());
        Ok(self.reply(self.all("eureka.apps", "", Revision(0), whole::All::applications).await?))
    }

    async fn application(&self, app: &str) -> Result<Reply, ApiError> {
        let key = self.service(app).await?;
        self.needs(&key)?;
        let snapshot = self.context.registry.snapshot(&key);
        let services: Vec<_> = snapshot.into_iter().collect();
        match shown(&services, self.form, |_| true).pop() {
            Some(application) => Ok(self.show("application", application)),
            None => Err(ApiError::NotFound { what: "application", name: app.to_owned() }),
        }
    }

    /// Returns the instances with an address. An address that nobody has is an empty list, as in the original: 404 would leave clients with their last one.
    async fn vip(&self, field: &'static str, vip: &str) -> Result<Reply, ApiError> {
        let wanted = vip.to_owned();
        let body = self.all(field, vip, Revision(0), move |all, out| {
            let fits = |instance: &Instance| {
                let kept = Kept::of(instance).unwrap_or_default();
                let addresses = if field == "vipAddress" { view::vip(instance, &kept) } else { Some(kept.text(field)) };
                addresses.is_some_and(|text| text.split(',').any(|one| one == wanted))
            };
            all.wanted(fits, out);
        });
        Ok(self.reply(body.await?))
    }

    /// Returns the changes of the last minutes. All applications take their place where this node does not know all of these changes: a client that
    /// has heard of some from another node, or from this one before a restart, then has every instance, and counts none too many without noticing.
    async fn delta(&self) -> Result<Reply, ApiError> {
        let registry = &self.context.registry;
        let now = Instant::now();
        self.context.delta_window.note(now, registry.revision());
        let Some(window) = self.context.delta_window.begin(now) else { return self.applications().await };
        let quiet = registry.revision_in(&self.namespace) <= window.since;
        if !quiet && registry.all_changes(window.since).is_none() {
            return self.applications().await;
        }
        // While nothing changes, the start does not matter.
        let since = if quiet { Revision(0) } else { window.since };
        let more = if window.whole { "whole" } else { "" };
        Ok(self.reply(self.all("eureka.delta", more, since, move |all, out| all.delta(window, out)).await?))
    }

    async fn register(&self, app: &str) -> Result<Reply, ApiError> {
        let body = &self.request.body;
        let says_xml = self.request.header(&CONTENT_TYPE).is_some_and(|kind| kind.contains("xml"));
        let looks_so = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'<');
        let tree: Value = if says_xml || looks_so { xml::read(body)? } else { self.request.json()? };
        let sent = wire::read(&tree)?;
        if let Some(own) = sent.app.as_ref().filter(|own| app_name(own) != app_name(app)) {
            return Err(ApiError::bad(format!("instance.app: found {own:?}, expected {app:?} as in the address")));
        }
        self.put(app, &sent).await?;
        Ok(Reply::empty(StatusCode::NO_CONTENT))
    }

    /// Registers an instance of an application.
    async fn put(&self, app: &str, sent: &Sent) -> Result<(), ApiError> {
        let service = self.service(app).await?;
        self.needs(&service)?;
        let registry = &self.context.registry;
        let done = changes::register(registry, &self.namespace, &service, app, sent, self.origin).await?;
        if done.changed {
            self.audit("register", &sent.id);
        }
        self.tell(Action::Register, &done.id, app, &sent.id);
        Ok(())
    }

    /// Has the other Eureka servers told of a client's change.
    fn tell(&self, action: Action, id: &InstanceId, app: &str, client_id: &str) {
        if let (Some(servers), Origin::Client) = (&self.context.eureka_servers, self.origin) {
            servers.tell(&self.namespace, action, id, app, client_id);
        }
    }

    /// Returns the time of the client's last change, if the request has it.
    fn dirty(&self) -> Result<Option<i64>, ApiError> {
        let read = |text: &str| {
            text.parse().map_err(|_| ApiError::bad(format!("lastDirtyTimestamp {text:?}: expected a whole number")))
        };
        self.request.param("lastDirtyTimestamp").map(read).transpose()
    }

    async fn heartbeat(&self, app: &str, id: &str) -> Result<Reply, ApiError> {
        // `status=` is ignored, as in the original: a client whose status changes registers again, or has it overridden.
        match self.renew(app, id, self.dirty()?, self.request.param("overriddenstatus")).await? {
            None => Ok(Reply::empty(StatusCode::OK)),
            Some(newer) => Ok(self.show_as(StatusCode::CONFLICT, "instance", view::instance(&newer, self.form))),
        }
    }

    /// Renews an instance's lease. Returns the instance if the sender, another server, has older data of it.
    async fn renew(
        &self,
        app: &str,
        id: &str,
        dirty: Option<i64>,
        overridden: Option<&str>,
    ) -> Result<Option<Arc<Instance>>, ApiError> {
        let instance = self.leased(app, id).await?;
        let Some(kept) = Kept::of(&instance) else {
            // Registered by another front: only its lease is renewed.
            return self.beat(&instance).await.map(|()| None);
        };
        let again = |what| Err(ApiError::NotFound { what, name: id.to_owned() });
        if kept.effective() == "UNKNOWN" {
            // An operator's status has ended: the answer makes the client register its own.
            return again("status of the instance");
        }
        self.beat(&instance).await?;
        self.tell(Action::Heartbeat, &instance.id, app, id);
        match changes::renewal(&instance, &kept, dirty, self.origin) {
            Renewal::Current => Ok(None),
            Renewal::Newer => Ok(Some(instance)),
            // The answer makes the sender register the instance again. The lease is renewed all the same.
            Renewal::Older => {
                if let (Origin::Replica, Some(status)) = (self.origin, overridden.filter(|it| *it != "UNKNOWN")) {
                    changes::keep_override(&self.context.registry, &instance.id, &wire::status(status)?).await?;
                }
                again("instance as new as that")
            }
        }
    }

    async fn beat(&self, instance: &Instance) -> Result<(), ApiError> {
        let beats = self.context.registry.heartbeat(std::slice::from_ref(&instance.id)).await;
        match beats.first() {
            Some(Beat::Known) => {
                self.context.eureka_renewals.note(Instant::now());
                Ok(())
            }
            _ => Err(ApiError::NotFound { what: "instance", name: identity::in_eureka(instance).to_owned() }),
        }
    }

    async fn cancel(&self, app: &str, id: &str) -> Result<(), ApiError> {
        let instance = self.leased(app, id).await?;
        one(self.context.registry.deregister(std::slice::from_ref(&instance.id)).await)?;
        self.audit("cancel", id);
        self.tell(Action::Cancel, &instance.id, app, id);
        Ok(())
    }

    /// Sets an operator's override of the status, or removes it.
    async fn overrides(
        &self,
        app: &str,
        id: &str,
        set: bool,
        value: Option<&str>,
        dirty: Option<i64>,
    ) -> Result<(), ApiError> {
        let instance = self.leased(app, id).await?;
        let value = match value.map(wire::status).transpose()? {
            Some(value) => value,
            None if set => return Err(ApiError::bad("value is missing: expected a status")),
            // An instance of another front never registers here again.
            None if !identity::is_eureka(&instance) => "UP".to_owned(),
            None => "UNKNOWN".to_owned(),
        };
        self.patch(&instance.id, |instance, pairs| {
            let known = Kept::of(instance).unwrap_or_default();
            let mut kept = known.clone();
            if set {
                kept.set_override(&value)
            } else {
                kept.end_override(&value)
            }
            if kept != known {
                kept.last_dirty = kept.last_dirty.max(dirty.unwrap_or(0));
            }
            pairs.insert(KEPT.into(), kept.to_text());
            changes::isolated(&kept, Some(&known))
        })
        .await?;
        self.audit(if set { "override status" } else { "end status override" }, id);
        self.beat(&instance).await?;
        self.tell(if set { Action::StatusUpdate } else { Action::DeleteStatusOverride }, &instance.id, app, id);
        Ok(())
    }

    /// Sets single entries of the metadata: `?key=value`.
    async fn metadata(&self, app: &str, id: &str) -> Result<(), ApiError> {
        let instance = self.leased(app, id).await?;
        let mut entries = BTreeMap::new();
        for (key, value) in self.request.query.iter().filter(|(key, _)| !matches!(key.as_str(), "token")) {
            if key.starts_with(RESERVED) {
                return Err(ApiError::bad(format!("{key:?} begins with {RESERVED:?}, which is reserved")));
            }
            // Of a key that is there twice the first counts.
            entries.entry(key.clone()).or_insert_with(|| value.clone());
        }
        self.patch(&instance.id, |instance, pairs| {
            pairs.extend(entries.clone());
            if let Some(kept) = Kept::of(instance) {
                pairs.insert(KEPT.into(), Kept { modified: false, ..kept }.to_text());
            }
            None
        })
        .await?;
        self.audit("set metadata", id);
        self.beat(&instance).await?;
        // As in the original, it is a registration for the others.
        self.tell(Action::Register, &instance.id, app, id);
        Ok(())
    }

    /// Edits an instance's metadata. `edit` returns true if the instance is isolated from now on; `None` leaves that unchanged.
    async fn patch(
        &self,
        id: &InstanceId,
        edit: impl Fn(&Instance, &mut BTreeMap<String, String>) -> Option<bool>,
    ) -> Result<(), ApiError> {
        let change = self.context.registry.change(id, |instance| {
            let missing = || ApiError::NotFound { what: "instance", name: id.local().to_owned() };
            let instance = instance.ok_or_else(missing)?;
            let mut pairs: BTreeMap<String, String> =
                instance.metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            let isolate = edit(instance, &mut pairs);
            Ok::<_, ApiError>(Edit::Patch(Patch {
                metadata: Some(Metadata::from_pairs(&pairs)?),
                isolate,
                ..Patch::default()
            }))
        });
        change.await?;
        Ok(())
    }

    fn audit(&self, action: &str, id: &str) {
        self.context.audit(&self.caller, self.request.peer, action, self.namespace.as_str(), id);
    }
}

/// Returns the applications with at least one instance that is wanted and whose lease is valid.
fn shown(services: &[Arc<ServiceSnapshot>], form: Form, wanted: impl Fn(&Instance) -> bool) -> Vec<Value> {
    // Two services whose names differ only in case are one application.
    let mut applications: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for service in services {
        let list = service.instances.iter().filter(|instance| view::status(instance).is_some() && wanted(instance));
        let list: Vec<Value> = list.map(|instance| view::instance(instance, form)).collect();
        if !list.is_empty() {
            applications.entry(app_name(service.key.name())).or_default().extend(list);
        }
    }
    applications.into_iter().map(|(name, list)| view::application(&name, list)).collect()
}

/// Returns the empty answer to a change.
fn done(changed: Result<(), ApiError>) -> Result<Reply, ApiError> {
    changed.map(|()| Reply::empty(StatusCode::OK))
}

fn one(rows: Vec<Result<crate::Written, crate::WriteError>>) -> Result<crate::Written, ApiError> {
    rows.into_iter().next().unwrap_or(Err(crate::WriteError::Stopped)).map_err(ApiError::from)
}
