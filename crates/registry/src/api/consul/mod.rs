//! The part of Consul's HTTP API used by services and their clients: agent, catalog, health, status, keys, sessions, transactions, events; with
//! blocking queries.
//!
//! The whole registry is every host's agent, on each of our nodes: a client that registers on one node finds the same on another. The client's address
//! is the agent, and a service id is unique on it ([`super::identity`]). Not supported: the mesh, and the output of checks (`Output` is empty).
//!
//! Format: <https://developer.hashicorp.com/consul/api-docs>.

mod acl;
mod agent;
mod catalog;
mod checks;
mod configuration;
mod entry;
mod events;
mod filter;
mod health;
mod kv;
mod machine;
mod patterns;
mod prepared;
mod query;
mod routes;
mod schema;
mod session;
mod sight;
mod template;
mod txn;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderName;
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::auth::Caller;
use super::list_cache::{Key, ListBuilder, MOST_AT_ONCE, entries};
use super::reply::JSON;
use super::{ApiError, Context, Reply, Request, Watched, identity};
use crate::rights::{Access, Resource};
use crate::{Encoding, Health, Instance, InstanceId, NamespaceName, Registry, Revision, ServiceKey, ServiceSnapshot};
use entry::DATACENTER;
use filter::Filter;
#[doc(hidden)]
pub use filter::read_filter;
pub(super) use patterns::Patterns;
pub(super) use prepared::of_name;
pub(super) use routes::{ABSENT, handle};
use sight::Sight;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
const CONTENT_HASH: HeaderName = HeaderName::from_static("x-consul-contenthash");
/// Default wait of a blocking query.
const DEFAULT_WAIT: Duration = Duration::from_secs(300);

/// Maximum number of hosts with one service id among which the client's host is searched.
const MOST_HOSTS: usize = 64;

/// Maximum number of instances with one client's id among which one on a certain node is searched.
const MOST_ON_NODES: usize = 1000;

/// A request with the data that every part needs.
struct Call<'a> {
    context: &'a Arc<Context>,
    request: &'a Request,
    caller: Caller,
    namespace: NamespaceName,
    wanted: Wanted,
    /// True once a part of the answer was left out, because the caller may not read it.
    filtered: Arc<AtomicBool>,
}

/// Selection of entries by a request.
#[derive(Clone)]
struct Wanted {
    filter: Option<Arc<Filter>>,
    /// Pairs of `?node-meta=`, all of which an instance's node must have.
    node_meta: Arc<[(String, String)]>,
    /// The part of the namespace that the caller may read; `None` for all services and nodes.
    sight: Option<Sight>,
}

/// Inputs of a list of a namespace's services, without the request: lists are made on another thread.
struct Scope {
    registry: Registry,
    namespace: NamespaceName,
    /// Name of this registry's node.
    node: String,
    wanted: Wanted,
}

impl Wanted {
    fn of(request: &Request, sight: Option<Sight>) -> Result<Wanted, ApiError> {
        let filter = request.param("filter").filter(|text| !text.is_empty()).zip(schema::of_path(&request.path()));
        let pair = |text: &str| match text.split_once(':') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(ApiError::bad(format!("node-meta={text:?}: expected key:value"))),
        };
        let node_meta = request.params("node-meta").filter(|text| !text.is_empty()).map(pair);
        Ok(Wanted {
            filter: filter.map(|(text, kind)| Filter::parse(text, kind)).transpose()?.map(Arc::new),
            node_meta: node_meta.collect::<Result<_, _>>()?,
            sight,
        })
    }

    /// True if everything is selected, so that a cached response can be used.
    fn is_all(&self) -> bool {
        self.filter.is_none() && self.node_meta.is_empty() && self.sight.is_none()
    }

    /// True if instances on a node are selected, by the node's metadata kept with one of them.
    fn has_node_meta(&self, kept: &wire::Kept) -> bool {
        self.node_meta.iter().all(|(key, value)| kept.node_meta.get(key) == Some(value))
    }

    /// True if an instance or a node is selected, and the caller may read it and its node.
    fn takes(&self, instance: &Instance, kept: &wire::Kept) -> bool {
        self.has_node_meta(kept) && self.sight.as_ref().is_none_or(|sight| sight.instance(instance, kept))
    }

    /// True if an instance is selected, and the caller may read its service.
    fn takes_service(&self, instance: &Instance, kept: &wire::Kept) -> bool {
        self.has_node_meta(kept) && self.sees_service(instance.service.name())
    }

    fn sees_service(&self, name: &str) -> bool {
        self.sight.as_ref().is_none_or(|sight| sight.service(name))
    }

    fn sees_node(&self, name: &str) -> bool {
        self.sight.as_ref().is_none_or(|sight| sight.node(name))
    }
}

impl Call<'_> {
    /// Rejects parameters that would change the answer if they were supported.
    fn supported(&self) -> Result<(), ApiError> {
        if let Some(dc) = self.request.param("dc").filter(|dc| !matches!(*dc, "" | DATACENTER)) {
            return Err(ApiError::bad(format!("dc={dc:?}: there is one datacenter, {DATACENTER}")));
        }
        let has = |name| self.request.param(name).is_some();
        if has("stale") && has("consistent") {
            return Err(ApiError::bad("Cannot specify ?stale with ?consistent, conflicting semantics."));
        }
        // Also of a query that does not wait.
        self.request.duration("wait")?;
        for parameter in ["peer", "sg"] {
            if self.request.param(parameter).is_some_and(|value| !value.is_empty()) {
                return Err(ApiError::bad(format!("{parameter} is not supported")));
            }
        }
        Ok(())
    }

    fn no_such_path(&self) -> ApiError {
        ApiError::NoSuchPath(format!("/{}", self.request.segments.join("/")))
    }

    fn is(&self, method: &Method) -> Result<(), ApiError> {
        let asked = &self.request.method;
        if asked == method || (*method == Method::GET && *asked == Method::HEAD) {
            return Ok(());
        }
        Err(ApiError::MethodNotAllowed { allow: if *method == Method::GET { "GET, HEAD" } else { "PUT" } })
    }

    /// Checks the method and the caller's role for a read. Policies decide about each object.
    fn reads(&self) -> Result<(), ApiError> {
        self.is(&Method::GET)?;
        self.caller.enters(Access::Read, self.namespace.as_str())
    }

    /// Checks the method and the caller's role for a write. Policies decide about the object ([`Call::needs`]).
    fn writes(&self) -> Result<(), ApiError> {
        self.is(&Method::PUT)?;
        self.caller.enters(Access::Write, self.namespace.as_str())
    }

    /// Checks the caller's right to a resource.
    fn needs(&self, access: Access, resource: Resource<'_>) -> Result<(), ApiError> {
        self.caller.needs(access, resource, self.namespace.as_str())
    }

    fn may(&self, access: Access, resource: Resource<'_>) -> bool {
        self.caller.may(access, resource, self.namespace.as_str())
    }

    /// Remembers that a part of the answer was left out.
    fn note_filtered(&self) {
        self.filtered.store(true, Ordering::Relaxed);
    }

    /// Checks the caller's right to change an instance: by its service, or if it is a node, by its name.
    fn changes(&self, instance: &Instance) -> Result<(), ApiError> {
        match instance.id.is_of_machine() {
            true => self.needs(Access::Write, Resource::node(&wire::Kept::of(instance).node)),
            false => self.needs(Access::Write, Resource::service(instance.service.name())),
        }
    }

    fn audit(&self, action: &str, object: &str) {
        self.context.audit(&self.caller, self.request.peer, action, self.namespace.as_str(), object);
    }

    /// Returns the key for a service's name as it was asked for. Consul compares names without case: [`Registry::spelled`] finds the services.
    fn named(&self, name: &str) -> Result<ServiceKey, ApiError> {
        Ok(ServiceKey::new(&self.namespace, name)?)
    }

    /// Returns the key under which to register a service: that of the service that is there under this name, in its own spelling if there is one.
    fn registered(&self, name: &str) -> Result<ServiceKey, ApiError> {
        let key = self.named(name)?;
        let known = self.context.registry.spelled(&key);
        if known.iter().any(|service| service.key == key) {
            return Ok(key);
        }
        Ok(known.first().map_or(key, |service| service.key.clone()))
    }

    /// Returns the id under which to write the service `service` of the node `node`: of the row that is there, or a new one.
    fn node_identity(&self, node: &str, service: &str) -> Result<InstanceId, ApiError> {
        let registry = &self.context.registry;
        let id = identity::consul(&self.namespace, node, service)?;
        if registry.instance(&id).is_some() {
            return Ok(id);
        }
        // The node's name may have been spelled in another way, or the row is an agent's or was imported. The usual spellings are found among any
        // number of nodes with the id, others only among few.
        for name in [node.to_owned(), node.to_lowercase(), node.to_uppercase()] {
            let pairs = [(identity::CLIENT_ID, service), (crate::ON, name.as_str())];
            if let Some(instance) = registry.find(&self.namespace, &pairs, 1).instances.first() {
                return Ok(instance.id.clone());
            }
        }
        let found = registry.find(&self.namespace, &[(identity::CLIENT_ID, service)], MOST_ON_NODES).instances;
        let is_on = |instance: &Instance| match instance.metadata.get(crate::ON) {
            Some(on) => same(on, node),
            None => same(&wire::Kept::of(instance).node, node),
        };
        Ok(found.iter().find(|instance| is_on(instance)).map_or(id, |instance| instance.id.clone()))
    }

    /// Rejects a body that names another namespace than the request.
    fn same_namespace(&self, body: &Value) -> Result<(), ApiError> {
        let named = wire::Object::new(body, "the body")?.text("namespace")?;
        if named.is_empty() || named == self.namespace.as_str() {
            return Ok(());
        }
        Err(ApiError::bad(format!("Namespace {named:?}: choose it with ?ns= or X-Consul-Namespace")))
    }

    /// Returns the client's address as text.
    fn peer(&self) -> String {
        self.request.peer.to_canonical().to_string()
    }

    /// Returns the instance of the service `id` of the client's agent, with the id under which to write it; and other instances that an older version
    /// registered for the same agent and id, one for each address. `host` is the address of a registration: among instances of an older version
    /// the one with this address counts.
    ///
    /// An id is unique on an agent, so the agent (the client's address) is the scope, not the service's address. A service with that id and address
    /// that was imported, or put into the catalog, is the same service.
    fn agent_identity(&self, host: &str, id: &str) -> Result<(InstanceId, Vec<InstanceId>), ApiError> {
        let usual = identity::consul(&self.namespace, &self.peer(), id)?;
        let registry = &self.context.registry;
        let of_agent = self.of_agent(&usual, id);
        let same = of_agent.iter().find(|instance| instance.id == usual);
        let same =
            same.or_else(|| of_agent.iter().find(|instance| *instance.host == *host)).or_else(|| of_agent.first());
        if let Some(same) = same {
            let others = of_agent.iter().filter(|instance| instance.id != same.id);
            return Ok((same.id.clone(), others.map(|instance| instance.id.clone()).collect()));
        }
        let known = registry.find(&self.namespace, &[(identity::CLIENT_ID, id)], MOST_HOSTS).instances;
        let imported = known.iter().find(|instance| {
            let of_agent = instance.metadata.get(wire::FROM).is_some() || wire::Kept::of(instance).agent;
            *instance.host == *host && identity::in_consul(instance) == id && !of_agent
        });
        if let Some(imported) = imported {
            return Ok((imported.id.clone(), Vec::new()));
        }
        if registry.instance(&usual).is_some() {
            // An older version has given the id to another agent's service.
            return Ok((identity::consul(&self.namespace, &format!("agent@{}", self.peer()), id)?, Vec::new()));
        }
        Ok((usual, Vec::new()))
    }

    /// Returns the services `id` of the client's agent, the last changed first. There is one, or one for each address if an older version has
    /// registered them. `usual` is the agent's instance id.
    fn of_agent(&self, usual: &InstanceId, id: &str) -> Vec<Arc<Instance>> {
        let (registry, peer) = (&self.context.registry, self.peer());
        let own = registry.instance(usual).filter(|instance| is_of_agent(instance, &peer));
        let mut found =
            registry.find(&self.namespace, &[(identity::CLIENT_ID, id), (wire::FROM, &peer)], MOST_HOSTS).instances;
        found.retain(|instance| own.as_ref().is_none_or(|own| own.id != instance.id));
        found.extend(own);
        found.sort_by_key(|instance| std::cmp::Reverse(instance.revision));
        found
    }

    /// Returns the instance that a client of an agent calls `id`. Each of Consul's agents knows its own services; here all agents are one, so the
    /// service of the client's host comes first. A service id that only one host has is found from every host.
    ///
    /// # Errors
    /// `Missing`; `Conflict` if several hosts have the id, and the request comes from none of them.
    async fn agent_service(&self, id: &str) -> Result<Arc<Instance>, ApiError> {
        let registry = &self.context.registry;
        let own = identity::consul(&self.namespace, &self.peer(), id)?;
        // The usual case, without a search: each heartbeat passes here.
        if let Some(instance) = registry.instance(&own).filter(|instance| is_of_agent(instance, &self.peer())) {
            return Ok(instance);
        }
        if let Some(instance) = self.of_agent(&own, id).into_iter().next() {
            return Ok(instance);
        }
        let by_id = InstanceId::new(&self.namespace, id)?;
        let others = || registry.find(&self.namespace, &[(identity::CLIENT_ID, id)], 1).instances;
        if let Some(instance) = registry.instance(&by_id)
            && others().is_empty()
        {
            return Ok(instance);
        }
        // The host may just have registered it at another node of the registry.
        registry.instance_or_ask(&own).await;
        if let Some(instance) = self.of_agent(&own, id).into_iter().next() {
            return Ok(instance);
        }
        let found = self.only("service ID", id, &[(identity::CLIENT_ID, id)])?.or_else(|| registry.instance(&by_id));
        found.ok_or_else(|| no_such_service(id))
    }

    /// Returns the instance of Consul's clients with the metadata entry `key` = `value`: the one on the client's host, or the only one. Errors call
    /// it the `what` `name`.
    fn choose(&self, what: &str, name: &str, key: &str, value: &str) -> Result<Option<Arc<Instance>>, ApiError> {
        let peer = self.peer();
        let of_agent = self.context.registry.find(&self.namespace, &[(key, value), (wire::FROM, &peer)], MOST_HOSTS);
        let id_of = |instance: &Arc<Instance>| instance.metadata.get(identity::CLIENT_ID).map(str::to_owned);
        let last = of_agent.instances.iter().max_by_key(|instance| instance.revision);
        match last {
            // An older version has registered one service of an agent once for each address.
            Some(last) if of_agent.instances.iter().all(|instance| id_of(instance) == id_of(last)) => {
                Ok(Some(Arc::clone(last)))
            }
            Some(_) => self.only(what, name, &[(key, value), (wire::FROM, &peer)]),
            None => self.only(what, name, &[(key, value)]),
        }
    }

    fn only(&self, what: &str, name: &str, pairs: &[(&str, &str)]) -> Result<Option<Arc<Instance>>, ApiError> {
        let mut found = self.context.registry.find(&self.namespace, pairs, MOST_HOSTS).instances;
        found.retain(|instance| instance.metadata.get(wire::KEPT).is_some());
        if found.len() > 1 {
            let peer = self.peer();
            found.retain({
                let many = found.iter().filter(|instance| *instance.host == *peer).count();
                move |instance| many != 1 || *instance.host == *peer
            });
        }
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(Arc::clone(one))),
            [one, two, ..] => Err(ApiError::Conflict(format!(
                "the {what} {name:?} is registered on several hosts ({}, {} …), and this request does not come from one of them \
                 alone: give each an ID of its own, or name the Node with /v1/catalog/deregister",
                one.host, two.host
            ))),
        }
    }

    fn scope(&self) -> Scope {
        Scope {
            registry: self.context.registry.clone(),
            namespace: self.namespace.clone(),
            node: self.context.node.clone(),
            wanted: self.wanted.clone(),
        }
    }

    /// Returns a response about all services of the namespace: made on another thread, and without a filter made once per revision and `more` for all
    /// clients.
    async fn whole(
        &self,
        what: &'static str,
        more: &str,
        make: impl FnOnce(&Scope, &mut ListBuilder) + Send + 'static,
    ) -> Result<Reply, ApiError> {
        let (scope, packed) = (self.scope(), self.request.accepts_gzip());
        let make = move |out: &mut ListBuilder| make(&scope, out);
        let body = if !self.wanted.is_all() {
            self.context.lists.once(packed, make).await?
        } else {
            let key = Key { what, namespace: self.namespace.as_str().to_owned(), more: more.to_owned(), packed };
            let stamp = || (self.context.registry.revision_in(&self.namespace), Revision(0));
            self.context.lists.get(key, stamp, make).await?
        };
        Ok(Reply::pieces(JSON, body, packed))
    }

    /// Returns a list of one service: the results of `make` for its pieces of instances, without brackets, cached with each piece under `encoding`.
    /// `make` must depend on the instances only.
    async fn list_of(
        &self,
        snapshot: Arc<ServiceSnapshot>,
        encoding: Encoding,
        make: impl Fn(&[Arc<Instance>], &Scope) -> Bytes + Send + 'static,
    ) -> Result<Reply, ApiError> {
        let (scope, packed) = (self.scope(), self.request.accepts_gzip());
        let make = move |service: &ServiceSnapshot, out: &mut ListBuilder| {
            out.text("[");
            out.list(service, encoding, "", ",", |instances| make(instances, &scope));
            out.text("]");
        };
        let body = self.context.lists.of_service(snapshot, encoding, packed, make).await?;
        Ok(Reply::pieces(JSON, body, packed))
    }

    /// Returns the list that `look` makes of each of several services, without brackets, like [`Call::look_through`].
    async fn look_through_all(
        &self,
        snapshots: Vec<Arc<ServiceSnapshot>>,
        look: impl FnOnce(&ServiceSnapshot, &Scope) -> Bytes + Clone + Send + 'static,
    ) -> Result<Bytes, ApiError> {
        let mut list: Vec<Bytes> = Vec::with_capacity(snapshots.len());
        for snapshot in snapshots {
            list.push(self.look_through(snapshot, look.clone()).await?);
        }
        list.retain(|part| !part.is_empty());
        Ok(if list.len() == 1 { list.swap_remove(0) } else { list.join(&b","[..]).into() })
    }

    /// Runs `look` on one service for this request only, on another thread if the service is large.
    async fn look_through<T: Send + 'static>(
        &self,
        snapshot: Arc<ServiceSnapshot>,
        look: impl FnOnce(&ServiceSnapshot, &Scope) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let scope = self.scope();
        if snapshot.instances.len() <= MOST_AT_ONCE {
            return Ok(look(&snapshot, &scope));
        }
        self.context.lists.apart(move || look(&snapshot, &scope)).await
    }

    /// Returns the tags of `?tag=`, all of which an instance must have.
    fn wanted_tags(&self) -> Vec<String> {
        self.request.params("tag").filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
    }

    /// Waits, for a blocking query, until the service (or without one, anything in the namespace) has a higher index. Returns the index of the
    /// response: read before the response, so that a change in between is reported twice rather than lost.
    async fn blocked(&self, service: Option<&ServiceKey>) -> Result<Blocked, ApiError> {
        let watched = service.map_or(Watched::Namespace(&self.namespace), Watched::Spelled);
        let revision = || self.context.revision_of(watched);
        let wanted = self.request.number("index")?.unwrap_or(0);
        let now = revision();
        let wanted_revision = Revision(wanted.saturating_sub(1));
        let ahead = self.context.is_ahead(now, wanted_revision);
        // An index that was never issued is from another store: the client must start again.
        if wanted == 0 || (wanted_revision != now && !ahead) {
            return Ok(Blocked { index: index_of(now), waited: false });
        }
        let seen = if ahead { wanted_revision } else { now };
        let wait = self.request.duration("wait")?.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
        let wait = wait.min(self.context.limits.wait);
        self.context.wait(self.request, watched, seen, wait + jitter(wait)).await?;
        Ok(Blocked { index: index_of(revision()), waited: true })
    }
}

impl Scope {
    /// Returns the services of the namespace.
    fn services(&self) -> Vec<Arc<ServiceSnapshot>> {
        self.registry.services(Some(&self.namespace))
    }

    /// Returns the instances of the namespace.
    fn instances(&self) -> Vec<Arc<Instance>> {
        self.services().iter().flat_map(|service| service.instances.iter().map(Arc::clone)).collect()
    }

    /// True if an entry passes the request's filter.
    fn fits(&self, entry: &impl Serialize) -> bool {
        let Some(filter) = &self.wanted.filter else { return true };
        serde_json::to_value(entry).is_ok_and(|entry: Value| filter.fits(&entry))
    }
}

/// True if an instance is a service of the agent on the host `peer`, or was put into the catalog or imported.
fn is_of_agent(instance: &Instance, peer: &str) -> bool {
    match instance.metadata.get(wire::FROM) {
        Some(from) => from == peer,
        None => *instance.host == *peer || !wire::Kept::of(instance).agent,
    }
}

/// Returns the rest of a path behind its prefix as one id or name, which may have slashes; `None` if there is none.
fn rest(segments: &[&str]) -> Option<String> {
    Some(segments.join("/")).filter(|rest| !rest.is_empty())
}

/// True if two names differ at most in case, which Consul ignores in names of services and nodes, and in tags.
fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
        || (!(one.is_ascii() && other.is_ascii()) && one.to_lowercase() == other.to_lowercase())
}

/// True if `tags` contains all of `wanted`, in any case.
fn has_tags(tags: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|wanted| tags.iter().any(|tag| same(tag, wanted)))
}

/// Adds a JSON value.
fn add(out: &mut ListBuilder, value: &impl Serialize) {
    out.text(serde_json::to_vec(value).unwrap_or_default());
}

/// Returns a random time of up to a sixteenth of a wait, so that clients that began together do not return together.
fn jitter(wait: Duration) -> Duration {
    let mut random = [0; 4];
    if getrandom::fill(&mut random).is_err() {
        return Duration::ZERO;
    }
    (wait / 16).mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
}

/// Returns the index of a revision of services, which is one more: the lowest index is 1 and must exist before the first revision, which is 1. So the
/// very first change wakes waiting clients.
fn index_of(revision: Revision) -> u64 {
    revision.0.saturating_add(1)
}

/// Outcome of a blocking query.
struct Blocked {
    /// Index of the response, at least 1: Consul's clients take 0 for no index.
    index: u64,
    waited: bool,
}

impl Blocked {
    /// Adds the headers that clients read.
    fn show(&self, reply: Reply) -> Reply {
        reply.header(INDEX, self.index).header(KNOWN_LEADER, "true").header(LAST_CONTACT, 0).waited(self.waited)
    }
}

/// True if an instance has a tag, in any case.
pub(crate) fn has_tag(instance: &Instance, tag: &str) -> bool {
    wire::Kept::of(instance).tags.iter().any(|found| same(found, tag))
}

/// Returns name and address of the node that an instance is on, or that it is.
pub(crate) fn node_of(instance: &Instance) -> (String, String) {
    let kept = wire::Kept::of(instance);
    let address = entry::node_address(instance, &kept).to_owned();
    (kept.node, address)
}

/// Returns an instance's weight in its present health: with warnings, that of Consul's `Weights.Warning`, if Consul's front registered it.
pub(crate) fn weight_by_health(instance: &Instance) -> u16 {
    if instance.overall() != Health::Warning || instance.metadata.get(wire::KEPT).is_none() {
        return instance.weight;
    }
    wire::Kept::of(instance).warning_weight.unwrap_or(1).saturating_mul(wire::WEIGHT_SCALE)
}

/// Returns the error about a service id that no agent has, in Consul's words: its clients look for them.
fn no_such_service(id: &str) -> ApiError {
    let text = format!("Unknown service ID {id:?}. Ensure that the service ID is passed, not the service name.");
    ApiError::Missing(text)
}

/// Returns an empty success.
fn done() -> Reply {
    Reply::empty(StatusCode::OK)
}
