//! The part of Consul's HTTP API that services and their clients use: agent, catalog, health, status; with blocking queries.
//!
//! The whole registry is one agent on one node, whichever of our nodes is asked: a client that registers here and asks there
//! finds what it expects. Not there: key-value store, sessions, ACLs, the mesh, several checks a service, node checks, and
//! Consul's record of what a check printed (`Output` is empty).
//!
//! Format: <https://developer.hashicorp.com/consul/api-docs>.

mod agent;
mod catalog;
mod entry;
mod filter;
mod health;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderName;
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::auth::{Caller, Role};
use super::{ApiError, Context, Reply, Request, namespace};
use crate::{Instance, InstanceId, NamespaceName, Registration, Revision, ServiceKey, ServiceSnapshot};
use entry::DATACENTER;
use filter::Filter;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");
/// How long a blocking query waits that does not say.
const DEFAULT_WAIT: Duration = Duration::from_secs(300);

/// A request with what every part needs to know of it.
struct Call<'a> {
    context: &'a Arc<Context>,
    request: &'a Request,
    caller: Caller,
    namespace: NamespaceName,
    filter: Option<Filter>,
}

pub(super) async fn handle(context: &Arc<Context>, request: &Request) -> Result<Reply, ApiError> {
    let path = request.path();
    // What load balancers ask needs no token.
    if let ["v1", "status", what] = path.as_slice() {
        return status(request, what);
    }
    let caller = context.identify(request)?;
    let name = request.param("ns").or_else(|| request.named_header("x-consul-namespace")).unwrap_or("default");
    let call = Call {
        context,
        request,
        caller,
        namespace: namespace(name)?,
        filter: request.param("filter").filter(|text| !text.is_empty()).map(Filter::parse).transpose()?,
    };
    call.supported()?;
    match path.as_slice() {
        ["v1", "agent", rest @ ..] => agent::handle(&call, rest).await,
        ["v1", "catalog", rest @ ..] => catalog::handle(&call, rest).await,
        ["v1", "health", rest @ ..] => health::handle(&call, rest).await,
        _ => Err(call.no_such_path()),
    }
}

fn status(request: &Request, what: &str) -> Result<Reply, ApiError> {
    // Any address will do: what is asked is whether there is one.
    let leader = "127.0.0.1:8300";
    match (what, &request.method) {
        ("leader" | "peers", method) if method != Method::GET && method != Method::HEAD => {
            Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" })
        }
        ("leader", _) => Ok(Reply::ok(&leader)),
        ("peers", _) => Ok(Reply::ok(&[leader])),
        _ => Err(ApiError::NoSuchPath(format!("/v1/status/{what}"))),
    }
}

impl Call<'_> {
    /// Refuses what would change the answer if it were understood.
    fn supported(&self) -> Result<(), ApiError> {
        if let Some(dc) = self.request.param("dc").filter(|dc| !matches!(*dc, "" | DATACENTER)) {
            return Err(ApiError::bad(format!("dc={dc:?}: there is one datacenter, {DATACENTER}")));
        }
        for parameter in ["node-meta", "peer", "sg"] {
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

    /// A request that reads.
    fn reads(&self) -> Result<(), ApiError> {
        self.is(&Method::GET)?;
        self.caller.needs(Role::Read, self.namespace.as_str())
    }

    /// A request that writes.
    fn writes(&self) -> Result<(), ApiError> {
        self.is(&Method::PUT)?;
        self.caller.needs(Role::Write, self.namespace.as_str())
    }

    fn audit(&self, action: &str, object: &str) {
        self.context.audit(&self.caller, self.request.peer, action, self.namespace.as_str(), object);
    }

    fn service(&self, name: &str) -> Result<ServiceKey, ApiError> {
        Ok(ServiceKey::new(&self.namespace, name)?)
    }

    fn id(&self, id: &str) -> Result<InstanceId, ApiError> {
        Ok(InstanceId::new(&self.namespace, id)?)
    }

    /// The services of the namespace.
    fn services(&self) -> Vec<Arc<ServiceSnapshot>> {
        self.context.registry.services(Some(&self.namespace))
    }

    /// The instances of the namespace.
    fn instances(&self) -> Vec<Arc<Instance>> {
        self.services().iter().flat_map(|service| service.instances.iter().map(Arc::clone)).collect()
    }

    /// Whether an entry passes the request's filter.
    fn fits(&self, entry: &impl Serialize) -> bool {
        let Some(filter) = &self.filter else { return true };
        serde_json::to_value(entry).is_ok_and(|entry: Value| filter.fits(&entry))
    }

    /// Whether the request lists all tags of `?tag=`.
    fn has_tags(&self, tags: &[String]) -> bool {
        self.request.params("tag").filter(|tag| !tag.is_empty()).all(|tag| tags.iter().any(|found| found == tag))
    }

    /// Holds a blocking query back until the service (or with none, anything) has a higher index. What it gives is the
    /// index of the answer: read before the answer is, so that a change in between is reported once more, and never lost.
    async fn blocked(&self, service: Option<&ServiceKey>) -> Result<Blocked, ApiError> {
        let registry = &self.context.registry;
        let revision = || service.map_or_else(|| registry.revision(), |service| registry.revision_of(service));
        let wanted = self.request.number("index")?.unwrap_or(0);
        let now = revision();
        let ahead = self.context.is_ahead(service, now, Revision(wanted));
        // An index that was never given out is one of another store: the client has to begin again. The lowest index is 1.
        if wanted == 0 || (wanted != now.0.max(1) && !ahead) {
            return Ok(Blocked { index: now, waited: false });
        }
        let seen = if ahead { Revision(wanted) } else { now };
        let wait = self.request.duration("wait")?.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
        let wait = wait.min(self.context.limits.wait);
        self.context.wait(service, seen, wait + jitter(wait)).await?;
        Ok(Blocked { index: revision(), waited: true })
    }
}

/// Up to a sixteenth of a wait: clients that began together do not come back together.
fn jitter(wait: Duration) -> Duration {
    let mut random = [0; 4];
    if getrandom::fill(&mut random).is_err() {
        return Duration::ZERO;
    }
    (wait / 16).mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
}

/// What a blocking query came back with.
struct Blocked {
    index: Revision,
    waited: bool,
}

impl Blocked {
    /// Adds the headers that clients look for.
    fn show(&self, reply: Reply) -> Reply {
        reply
            .header(INDEX, self.index.0.max(1))
            .header(KNOWN_LEADER, "true")
            .header(LAST_CONTACT, 0)
            .waited(self.waited)
    }
}

/// Whether an instance has a tag; in any case, for DNS asks in any.
pub(super) fn has_tag(instance: &Instance, tag: &str) -> bool {
    wire::Kept::of(instance).tags.iter().any(|found| found.eq_ignore_ascii_case(tag))
}

/// Nothing to say.
fn done() -> Reply {
    Reply::empty(StatusCode::OK)
}

/// What a client would have to send to make an instance what it is.
fn registration_of(instance: &Instance) -> Registration {
    Registration {
        protocol: instance.protocol.to_string(),
        version: instance.version.to_string(),
        weight: instance.weight,
        priority: instance.priority,
        location: (*instance.location).clone(),
        metadata: instance.metadata.clone(),
        check: instance.check.as_deref().cloned(),
        ..Registration::new(instance.id.clone(), instance.service.clone(), &instance.host, instance.port)
    }
}
