//! The HTTP side of the registry: several fronts over the one core.
//!
//! ```text
//!  socket ─▶ server (limits) ─▶ Request ─▶ Front ──▶ Registry: register, report, snapshot, watch …
//!                                          ├ native      /v1/namespaces/…  /v1/openapi.json
//!                                          ├ consul      /v1/{agent,catalog,health,status,kv,session,txn}/…
//!                                          ├ eureka      /eureka/…
//!                                          ├ polaris     /v1/{RegisterInstance,Discover,…}  /naming/…
//!                                          ├ nacos       /nacos/…
//!                                          └ prometheus  /prometheus/…
//!  socket ◀─ server ◀── Reply ◀────────────┘
//!           server ─▶ grpc: native, polaris, nacos, xds, health, reflection (over HTTP/2, on the same addresses)
//! ```
//!
//! A front translates and nothing else: whatever two of them need is in the core. The paths of the fronts do not overlap,
//! so that any number of them can share an address.

mod audit;
mod auth;
mod complaint;
mod consul;
mod error;
mod eureka;
mod grpc;
mod gzip;
mod host;
pub mod identity;
mod limits;
mod nacos;
mod native;
mod places;
mod polaris;
mod prometheus;
pub(crate) mod rate;
mod reply;
mod request;
mod server;
mod stats;
mod whole;
mod xds;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::HeaderMap;
use places::Places;
use rate::Rates;
use tokio::sync::watch;
use tokio::time::Instant;

pub use audit::{AuditLog, Change as Audited};
pub use auth::{Auth, Role, Token, TokenHash, hash_of};
pub use error::ApiError;
pub use limits::HttpLimits;
#[doc(hidden)]
pub use polaris::read_any as read_polaris_rules;
pub use rate::RateLimit;
pub use reply::{Body, Reply};
pub use request::{Request, format_duration, parse_duration};
pub use server::{Mount, Server, Tls};
pub use stats::{BUCKETS_MICROS, FrontStats, HttpStats};
pub use whole::Pieces;
use whole::Whole;
pub use xds::XdsStats;

use crate::{Invalid, NamespaceName, Registry, Revision, ServiceKey, WatchError, WriteError};

/// What metadata keys start with that fronts keep for themselves: what Consul and Eureka know of an instance and the model
/// does not. The native front shows them, the others do not.
pub const RESERVED: &str = "kingpost.";

/// A way to speak with the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Our own REST and JSON.
    Native,
    /// The agent, catalog, health, key-value and session parts of Consul's HTTP API.
    Consul,
    /// Eureka's REST.
    Eureka,
    /// Service discovery for Prometheus over HTTP.
    Prometheus,
    /// PolarisMesh's registration, heartbeats, discovery and rules, over HTTP and gRPC.
    Polaris,
    /// Naming by Nacos' HTTP API of version 1.
    Nacos,
    /// xDS, over gRPC only.
    Xds,
}

/// What a client may wait for: nothing that reaches beyond one namespace, so that nobody is woken by, or counts, the changes of others.
#[derive(Debug, Clone, Copy)]
enum Watched<'a> {
    /// One service.
    Service(&'a ServiceKey),
    /// All services of a namespace.
    Namespace(&'a NamespaceName),
}

/// What all fronts work with.
pub struct Context {
    /// The core.
    pub registry: Registry,
    /// Who is let in; can be replaced while it runs.
    auth: Arc<ArcSwap<Auth>>,
    /// Bounds.
    pub limits: HttpLimits,
    /// Counters.
    pub stats: Arc<HttpStats>,
    /// What Consul's clients are told that this node is called.
    pub node: String,
    /// By which names a registry without a login is asked for, beside those of this machine.
    hosts: Vec<String>,
    /// Who changed what.
    audit: AuditLog,
    /// How often each may ask.
    rates: Rates,
    /// What [`Rates`] measures from.
    began: Instant,
    /// What Eureka's deltas begin from.
    delta_window: eureka::DeltaWindow,
    /// Answers that are about all services.
    whole: Whole,
    /// What streams of xDS share.
    xds: xds::Shared,
    /// Polaris' rules as clients are given them.
    rules: polaris::Shared,
    /// Regular expressions of events.
    event_patterns: consul::Patterns,
    /// One for each request that waits for a change.
    places: Arc<Places>,
    /// Becomes true when the server stops: whoever waits answers with what there is.
    stopping: watch::Receiver<bool>,
}

impl Front {
    /// All of them, in the order of their numbers.
    pub const ALL: [Front; 7] =
        [Front::Native, Front::Consul, Front::Eureka, Front::Prometheus, Front::Polaris, Front::Nacos, Front::Xds];

    /// A short name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Front::Native => "native",
            Front::Consul => "consul",
            Front::Eureka => "eureka",
            Front::Prometheus => "prometheus",
            Front::Polaris => "polaris",
            Front::Nacos => "nacos",
            Front::Xds => "xds",
        }
    }

    /// Whose path it is.
    fn of_path(path: &str) -> Option<Front> {
        let mut segments = path.split('/').skip(1);
        match (segments.next()?, segments.next()) {
            ("eureka", _) => Some(Front::Eureka),
            ("prometheus", _) => Some(Front::Prometheus),
            ("nacos", _) => Some(Front::Nacos),
            ("v1", Some("namespaces" | "openapi.json")) => Some(Front::Native),
            ("v1", Some("agent" | "catalog" | "health" | "status" | "kv" | "session" | "txn" | "event")) => {
                Some(Front::Consul)
            }
            ("v1", Some(part)) if consul::ABSENT.contains(&part) => Some(Front::Consul),
            ("v1", Some("RegisterInstance" | "DeregisterInstance" | "Heartbeat" | "Discover" | "ReportClient")) => {
                Some(Front::Polaris)
            }
            ("naming", Some("v1" | "v2")) => Some(Front::Polaris),
            _ => None,
        }
    }

    async fn handle(self, context: &Arc<Context>, request: Request) -> Result<Reply, ApiError> {
        match self {
            Front::Native => native::handle(context, &request).await,
            Front::Consul => consul::handle(context, &request).await,
            Front::Eureka => eureka::handle(context, &request).await,
            Front::Prometheus => prometheus::handle(context, &request).await,
            Front::Polaris => polaris::handle(context, &request).await,
            Front::Nacos => nacos::handle(context, &request).await,
            Front::Xds => Err(ApiError::NoSuchPath(format!("/{}", request.segments.join("/")))),
        }
    }

    /// An error in the front's own form.
    fn show(self, error: &ApiError) -> Reply {
        match self {
            Front::Native | Front::Prometheus => native::show(error),
            Front::Polaris => polaris::show(error),
            // Consul, Eureka and Nacos answer with plain text; their clients look at the status only.
            Front::Consul | Front::Eureka | Front::Nacos | Front::Xds => {
                Reply::text(error.status(), format!("{error}\n"))
            }
        }
    }
}

impl Context {
    /// What fronts need, over a core that runs.
    pub fn new(registry: Registry, auth: Auth, limits: HttpLimits, node: String, audit: AuditLog) -> Context {
        let places = Places::new(limits.waiting);
        // Replaced by the server's own.
        let (_, stopping) = watch::channel(false);
        let delta_window = eureka::DeltaWindow::default();
        delta_window.note(std::time::Instant::now(), registry.revision());
        let (auth, rates) = (Arc::new(ArcSwap::from_pointee(auth)), Rates::new(limits.rate));
        let (stats, began) = (Arc::default(), Instant::now());
        let hosts = Vec::new();
        Context {
            registry,
            auth,
            limits,
            stats,
            node,
            hosts,
            audit,
            rates,
            began,
            delta_window,
            whole: Whole::new(),
            xds: xds::Shared::default(),
            rules: polaris::Shared::default(),
            event_patterns: consul::Patterns::default(),
            places,
            stopping,
        }
    }

    /// Names, beside those of this machine, by which a registry without a login is asked for: without a port.
    #[must_use]
    pub fn known_as(self, hosts: Vec<String>) -> Context {
        Context { hosts, ..self }
    }

    /// Refuses, where everybody is let in, who asks by a name that is not the registry's.
    fn meant(&self, uri: &hyper::Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !matches!(**self.auth.load(), Auth::None) {
            return Ok(());
        }
        match host::of(uri, headers) {
            Some(host) if !host::is_known(host, &self.hosts) => {
                Err(ApiError::Misdirected { host: host.chars().take(255).collect() })
            }
            _ => Ok(()),
        }
    }

    /// A handle by which who is let in can be replaced while the server runs.
    pub fn door(&self) -> Arc<ArcSwap<Auth>> {
        Arc::clone(&self.auth)
    }

    /// Finds out who asks.
    fn identify(&self, request: &Request) -> Result<auth::Caller, ApiError> {
        self.auth.load().identify(request)
    }

    /// As [`Context::identify`], by a request's headers and the parameter of its address.
    fn identify_by(&self, headers: &HeaderMap, parameter: Option<&str>) -> Result<auth::Caller, ApiError> {
        self.auth.load().identify_by(headers, parameter)
    }

    /// Refuses who asks too often. Who is not known is measured by the address.
    fn admit(&self, caller: Option<&auth::Caller>, peer: IpAddr) -> Result<(), ApiError> {
        if self.rates.is_off() {
            return Ok(());
        }
        if self.rates.admit(asker(caller, peer), self.began.elapsed()) {
            return Ok(());
        }
        self.stats.too_often.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let value = u64::from(self.rates.per_second());
        Err(ApiError::Busy {
            what: "requests a second of this token or address",
            limit: "registry.rate.per_second",
            value,
        })
    }

    /// How many requests wait for a change.
    pub fn waiting(&self) -> usize {
        self.places.taken()
    }

    /// One line a change, for whoever has to answer who did what. At INFO under the target `registry::audit`.
    fn audit(&self, caller: &auth::Caller, peer: IpAddr, action: &str, namespace: &str, object: &str) {
        tracing::info!(target: "registry::audit", token = caller.name(), %peer, action, namespace, object);
        self.audit.note(Audited {
            time_ms: crate::registry::now_millis(),
            token: caller.name().to_owned(),
            peer,
            action: action.to_owned(),
            namespace: namespace.to_owned(),
            object: object.to_owned(),
        });
    }

    /// Counts a caller that was not let in.
    fn refused(&self, error: &ApiError) {
        if *error == ApiError::Unauthorized {
            self.stats.unauthorized.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// A place among those that wait, for a caller.
    fn place(&self, caller: Option<&auth::Caller>, peer: IpAddr) -> Result<places::Place, ApiError> {
        self.places.take(asker(caller, peer)).ok_or(ApiError::Busy {
            what: "requests that wait for a change, or the share of this token or address of them",
            limit: "registry.waiting",
            value: self.limits.waiting as u64,
        })
    }

    /// As [`Context::place`], for whoever sent `request`.
    fn place_of(&self, request: &Request) -> Result<places::Place, ApiError> {
        self.place(Some(&self.identify(request)?), request.peer)
    }

    /// Waits until what is watched has a revision above `after`, the time is over, or the server stops.
    async fn wait(
        &self,
        request: &Request,
        watched: Watched<'_>,
        after: Revision,
        limit: Duration,
    ) -> Result<(), ApiError> {
        let deadline = Instant::now() + limit.min(self.limits.wait);
        let changed = async {
            match watched {
                Watched::Service(service) => self.registry.watch(service, after, deadline).await,
                Watched::Namespace(namespace) => self.registry.watch_namespace(namespace, after, deadline).await,
            }
        };
        self.hold(request, async { changed.await.map(drop).map_err(ApiError::from) }).await
    }

    /// Holds a request back, at a place among those that wait, until `waited` is over or the server stops.
    async fn hold(
        &self,
        request: &Request,
        waited: impl Future<Output = Result<(), ApiError>>,
    ) -> Result<(), ApiError> {
        let _place = self.place_of(request)?;
        let mut stopping = self.stopping.clone();
        tokio::select! {
            waited = waited => waited,
            // An error means that the server has gone: the same.
            _ = stopping.wait_for(|stop| *stop) => Ok(()),
        }
    }

    /// The revision of what is watched.
    fn revision_of(&self, watched: Watched<'_>) -> Revision {
        match watched {
            Watched::Service(service) => self.registry.revision_of(service),
            Watched::Namespace(namespace) => self.registry.revision_in(namespace),
        }
    }

    /// Whether `wanted`, above the `now` of an existing service or namespace, is what another node calls the same content: after
    /// collecting tombstones, and after a restart, nodes may know of one last change by different numbers. This node has
    /// seen all up to `wanted`, so there is nothing newer. (To answer at once would make a client that is sent to one node
    /// and then the other come back for ever.)
    fn is_ahead(&self, now: Revision, wanted: Revision) -> bool {
        now > Revision(0) && wanted > now && wanted <= self.registry.revision()
    }

    /// Refuses a batch that is too long.
    fn batch(&self, what: &'static str, length: usize) -> Result<(), ApiError> {
        let most = self.limits.batch.min(self.registry.limits().call_rows);
        if length <= most {
            return Ok(());
        }
        Err(ApiError::TooLarge { what, limit: "registry.batch", value: most as u64 })
    }
}

/// Whose share is taken: the token's, or where there is none, the address's.
fn asker(caller: Option<&auth::Caller>, peer: IpAddr) -> rate::Who {
    match caller.and_then(auth::Caller::token) {
        Some(token) => rate::Who::Token(token.to_owned()),
        None => rate::Who::Address(peer),
    }
}

/// The objects of a batch in one line of the audit log.
fn several(ids: &[crate::InstanceId]) -> String {
    /// Named; the rest is counted.
    const NAMED: usize = 20;
    let mut text = ids.iter().take(NAMED).map(|id| id.local()).collect::<Vec<_>>().join(" ");
    if ids.len() > NAMED {
        text.push_str(&format!(" and {} more", ids.len() - NAMED));
    }
    text
}

/// Those of `ids` whose rows were written: what says what is there already changes nothing, and is no line of the audit log.
fn changed(ids: Vec<crate::InstanceId>, rows: &[Result<crate::Written, WriteError>]) -> Vec<crate::InstanceId> {
    let written = rows.iter().map(|row| row.as_ref().is_ok_and(crate::Written::changed));
    ids.into_iter().zip(written).filter_map(|(id, changed)| changed.then_some(id)).collect()
}

/// Whether an instance has a tag; only Consul's clients give them.
pub(crate) fn has_tag(instance: &crate::Instance, tag: &str) -> bool {
    consul::has_tag(instance, tag)
}

fn namespace(name: &str) -> Result<NamespaceName, ApiError> {
    Ok(NamespaceName::new(name)?)
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> ApiError {
        ApiError::Invalid(invalid.to_string())
    }
}

impl From<WatchError> for ApiError {
    fn from(error: WatchError) -> ApiError {
        ApiError::Unavailable(error.to_string())
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> ApiError {
        let text = error.to_string();
        match error {
            WriteError::Invalid(_) | WriteError::Full { .. } => ApiError::Invalid(text),
            WriteError::NotFound { .. } => ApiError::Missing(text),
            WriteError::NotEmpty { .. } => ApiError::Conflict(text),
            WriteError::Undetermined { .. } => ApiError::Undetermined(text),
            WriteError::Overloaded { .. }
            | WriteError::Contended { .. }
            | WriteError::Unavailable { .. }
            | WriteError::Stopped => ApiError::Unavailable(text),
        }
    }
}
