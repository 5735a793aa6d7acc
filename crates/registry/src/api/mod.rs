//! The HTTP side of the registry: several fronts over one core.
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
//! A front only translates; logic that two of them need is in the core. The paths of the fronts do not overlap, so any number of them can share an
//! address.

mod acl;
mod audit;
mod auth;
mod complaint;
mod configs;
mod consul;
mod credentials;
mod dispatch;
mod error;
mod eureka;
mod grpc;
mod gzip;
mod host;
pub mod identity;
mod limits;
mod list_cache;
mod nacos;
mod native;
mod places;
mod polaris;
mod prometheus;
mod public;
pub(crate) mod rate;
mod reply;
mod request;
mod server;
mod stats;
mod time;
mod watch_right;
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
pub use auth::{Auth, Role, Token, TokenHash, hash_of, parse_hash};
#[doc(hidden)]
pub use consul::read_filter as read_consul_filter;
pub(crate) use consul::{has_tag, node_of, weight_by_health};
pub use error::ApiError;
pub use eureka::{
    EurekaApplication, EurekaInstance, EurekaOverview, EurekaServer, EurekaServers, EurekaView, ServerAnswer,
    ServerStep,
};
pub use identity::RESERVED;
pub use limits::HttpLimits;
use list_cache::ListCache;
pub use list_cache::Pieces;
#[doc(hidden)]
pub use nacos::read_listening;
#[doc(hidden)]
pub use polaris::read_any as read_polaris_rules;
pub use public::PublicServices;
pub(crate) use public::queried;
pub use rate::RateLimit;
pub use reply::{Body, Reply};
use request::namespace;
pub use request::{Request, format_duration, parse_duration};
pub use server::{Mount, Server, Tls};
pub use stats::{BUCKETS_MICROS, FrontStats, HttpStats};
pub use xds::XdsStats;

use crate::rights::{Access, Resource};
use crate::{NamespaceName, Registry, Revision, ServiceKey, WriteError};

/// A protocol of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Kingpost's own REST API with JSON.
    Native,
    /// The agent, catalog, health, key-value and session parts of Consul's HTTP API.
    Consul,
    /// Eureka's REST API.
    Eureka,
    /// Service discovery for Prometheus over HTTP (`http_sd`).
    Prometheus,
    /// PolarisMesh's registration, heartbeats, discovery and rules, over HTTP and gRPC.
    Polaris,
    /// Nacos' naming and configuration, over HTTP and gRPC.
    Nacos,
    /// xDS, over gRPC only.
    Xds,
}

/// The object that a client waits for. It never reaches beyond one namespace, so that no client is woken by, or can count, changes in other
/// namespaces.
#[derive(Debug, Clone, Copy)]
enum Watched<'a> {
    /// A service.
    Service(&'a ServiceKey),
    /// Services whose names differ from that of a key at most in case.
    Spelled(&'a ServiceKey),
    /// All services of a namespace.
    Namespace(&'a NamespaceName),
}

/// State shared by all fronts.
pub struct Context {
    /// The registry's core.
    pub registry: Registry,
    /// Authentication; replaceable at run time.
    auth: Arc<ArcSwap<Auth>>,
    /// Tokens and policies of the store.
    acl: Arc<acl::Acl>,
    /// Limits of the HTTP side.
    pub limits: HttpLimits,
    /// Counters of the HTTP side.
    pub stats: Arc<HttpStats>,
    /// Name of this node shown to Consul clients.
    pub node: String,
    /// Host names of a registry without authentication, besides those of this machine.
    hosts: Vec<String>,
    /// Audit log of changes.
    audit: AuditLog,
    /// Rate limits of callers.
    rates: Rates,
    /// The time from which [`Rates`] measures.
    began: Instant,
    /// History from which Eureka's deltas start.
    delta_window: eureka::DeltaWindow,
    /// Renewals of leases by Eureka's clients.
    eureka_renewals: Arc<eureka::Renewals>,
    /// Eureka's own servers that are told of changes.
    eureka_servers: Option<Arc<EurekaServers>>,
    /// Cached responses about all services.
    lists: ListCache,
    /// State shared by all xDS streams.
    xds: xds::Shared,
    /// Polaris' rules, encoded for clients.
    rules: polaris::Shared,
    /// Compiled regular expressions of events.
    event_patterns: consul::Patterns,
    /// Slots, one for each request that waits for a change.
    places: Arc<Places>,
    /// Set to true when the server stops: waiting requests are then answered with the current state.
    stopping: watch::Receiver<bool>,
}

/// A version of all rights: equal to a later one only if no token and no policy has changed.
#[derive(Debug, Clone)]
struct RightsStamp {
    auth: Arc<Auth>,
    /// Number of changes of the store's tokens and policies.
    changes: u64,
}

impl PartialEq for RightsStamp {
    fn eq(&self, other: &RightsStamp) -> bool {
        Arc::ptr_eq(&self.auth, &other.auth) && self.changes == other.changes
    }
}

impl Front {
    /// All fronts, in the order of their numbers.
    pub const ALL: [Front; 7] =
        [Front::Native, Front::Consul, Front::Eureka, Front::Prometheus, Front::Polaris, Front::Nacos, Front::Xds];

    /// Returns a short name, for metrics.
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
}

impl Context {
    /// Creates the fronts' shared state over a running core.
    pub fn new(registry: Registry, auth: Auth, limits: HttpLimits, node: String, audit: AuditLog) -> Context {
        let places = Places::new(limits.waiting);
        // Replaced by the server's own channel.
        let (_, stopping) = watch::channel(false);
        let delta_window = eureka::DeltaWindow::default();
        delta_window.note(std::time::Instant::now(), registry.revision());
        let (auth, rates) = (Arc::new(ArcSwap::from_pointee(auth)), Rates::new(limits.rate));
        let (stats, began) = (Arc::default(), Instant::now());
        let hosts = Vec::new();
        Context {
            registry,
            auth,
            acl: Arc::default(),
            limits,
            stats,
            node,
            hosts,
            audit,
            rates,
            began,
            delta_window,
            eureka_renewals: Arc::default(),
            eureka_servers: None,
            lists: ListCache::new(),
            xds: xds::Shared::default(),
            rules: polaris::Shared::default(),
            event_patterns: consul::Patterns::default(),
            places,
            stopping,
        }
    }

    /// Sets the host names, without ports, of a registry without authentication, besides those of this machine.
    #[must_use]
    pub fn known_as(self, hosts: Vec<String>) -> Context {
        Context { hosts, ..self }
    }

    /// Sets Eureka's own servers that are told of the changes of Eureka's clients.
    #[must_use]
    pub fn replicating(self, servers: Option<Arc<EurekaServers>>) -> Context {
        Context { eureka_servers: servers, ..self }
    }

    /// Returns Eureka's front, to look at.
    pub fn eureka_view(&self) -> EurekaView {
        EurekaView::new(self.registry.clone(), Arc::clone(&self.eureka_renewals), self.eureka_servers.clone())
    }

    /// Without authentication, rejects a request for a host name that is not the registry's.
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

    /// Returns a handle that replaces the authentication while the server runs.
    pub fn door(&self) -> Arc<ArcSwap<Auth>> {
        Arc::clone(&self.auth)
    }

    /// Returns the present version of all rights.
    fn rights_stamp(&self) -> RightsStamp {
        let auth = self.auth.load_full();
        let changes = if matches!(*auth, Auth::Acl { .. }) { self.registry.acl_changes() } else { 0 };
        RightsStamp { auth, changes }
    }

    /// True if a caller may do what no rule decides.
    fn allows_by_default(&self) -> bool {
        self.auth.load().allows_by_default()
    }

    /// Identifies the caller of a request.
    fn identify(&self, request: &Request) -> Result<auth::Caller, ApiError> {
        self.auth.load().identify(request, || self.acl.view(&self.registry))
    }

    /// Identifies the caller by the headers and the query parameter, like [`Context::identify`].
    fn identify_by(&self, headers: &HeaderMap, parameter: Option<&str>) -> Result<auth::Caller, ApiError> {
        self.auth.load().identify_by(headers, parameter, || self.acl.view(&self.registry))
    }

    /// Identifies the owner of a token by its hash.
    fn identify_hash(&self, hash: &auth::TokenHash) -> Result<auth::Caller, ApiError> {
        self.auth.load().identify_hash(hash, || self.acl.view(&self.registry))
    }

    /// Checks a caller's policies about instances, by the services that they belong to now. Instances that do not exist are not checked; the store is
    /// asked once if this node lacks one of them. A role is about all instances of the namespace, and was checked.
    async fn needs_instances(
        &self,
        caller: &auth::Caller,
        access: Access,
        ids: &[crate::InstanceId],
    ) -> Result<(), ApiError> {
        if caller.stored().is_none() {
            return Ok(());
        }
        if let Some(unknown) = ids.iter().find(|id| self.registry.instance(id).is_none()) {
            // Brings this node up to the store's state, also for the others.
            self.registry.instance_or_ask(unknown).await;
        }
        let mut found = ids.iter().filter_map(|id| self.registry.instance(id));
        found.try_for_each(|instance| self.needs_found(caller, access, &instance))
    }

    /// Checks a caller's right to an instance: by its service, or if it is a node, by its name.
    fn needs_found(&self, caller: &auth::Caller, access: Access, instance: &crate::Instance) -> Result<(), ApiError> {
        let resource = match instance.id.machine_name() {
            Some(name) => Resource::node(name),
            None => Resource::service(instance.service.name()),
        };
        caller.needs(access, resource, instance.namespace())
    }

    /// Rejects a caller above its rate limit. Unidentified callers are counted by address.
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

    /// Returns the number of requests that wait for a change.
    pub fn waiting(&self) -> usize {
        self.places.taken()
    }

    /// Records a change in the audit log, and as one line at INFO under the target `registry::audit`.
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

    /// Counts a caller that failed authentication.
    fn refused(&self, error: &ApiError) {
        if matches!(error, ApiError::Unauthorized | ApiError::NoSuchToken) {
            self.stats.unauthorized.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Takes a slot for a waiting request of a caller.
    fn place(&self, caller: Option<&auth::Caller>, peer: IpAddr) -> Result<places::Place, ApiError> {
        self.places.take(asker(caller, peer)).ok_or(ApiError::Busy {
            what: "requests that wait for a change, or the share of this token or address of them",
            limit: "registry.waiting",
            value: self.limits.waiting as u64,
        })
    }

    /// Takes a slot for the caller of `request`, like [`Context::place`].
    fn place_of(&self, request: &Request) -> Result<places::Place, ApiError> {
        self.place(Some(&self.identify(request)?), request.peer)
    }

    /// Waits until the watched object has a revision above `after`, the time has elapsed, or the server stops.
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
                Watched::Spelled(service) => self.registry.watch_spelled(service, after, deadline).await,
                Watched::Namespace(namespace) => self.registry.watch_namespace(namespace, after, deadline).await,
            }
        };
        self.hold(request, async { changed.await.map(drop).map_err(ApiError::from) }).await
    }

    /// Delays a request, which holds a slot, until `waited` completes or the server stops.
    async fn hold(
        &self,
        request: &Request,
        waited: impl Future<Output = Result<(), ApiError>>,
    ) -> Result<(), ApiError> {
        if request.at_once {
            return Ok(());
        }
        let _place = self.place_of(request)?;
        let mut stopping = self.stopping.clone();
        tokio::select! {
            waited = waited => waited,
            // An error means that the server is gone, which is handled as a stop.
            _ = stopping.wait_for(|stop| *stop) => Ok(()),
        }
    }

    /// Returns the revision of the watched object.
    fn revision_of(&self, watched: Watched<'_>) -> Revision {
        match watched {
            Watched::Service(service) => self.registry.revision_of(service),
            Watched::Spelled(service) => self.registry.revision_of_spelled(service),
            Watched::Namespace(namespace) => self.registry.revision_in(namespace),
        }
    }

    /// True if `wanted`, above the revision `now` of an existing service or namespace, is another node's revision of the same content: after
    /// tombstones are collected, and after a restart, nodes may know the last change by different numbers. This node has seen everything up to
    /// `wanted`, so there is nothing newer. (An immediate answer would send a client that alternates between two nodes into an endless loop.)
    fn is_ahead(&self, now: Revision, wanted: Revision) -> bool {
        now > Revision(0) && wanted > now && wanted <= self.registry.revision()
    }

    /// Rejects a batch that is too long.
    fn batch(&self, what: &'static str, length: usize) -> Result<(), ApiError> {
        let most = self.limits.batch.min(self.registry.limits().call_rows);
        if length <= most {
            return Ok(());
        }
        Err(ApiError::TooLarge { what, limit: "registry.batch", value: most as u64 })
    }
}

/// Returns the caller to which a request is charged: the token, or the address if there is none.
fn asker(caller: Option<&auth::Caller>, peer: IpAddr) -> rate::Who {
    match caller.and_then(auth::Caller::token) {
        Some(token) => rate::Who::Token(token.to_owned()),
        None => rate::Who::Address(peer),
    }
}

/// Number of changes of one request that run side by side: the writer takes many in one batch.
const AT_ONCE: usize = 64;

/// Formats the objects of a batch for the audit log.
fn several(ids: &[crate::InstanceId]) -> String {
    /// Number of ids listed by name; the rest is only counted.
    const NAMED: usize = 20;
    let mut text = ids.iter().take(NAMED).map(|id| id.local()).collect::<Vec<_>>().join(" ");
    if ids.len() > NAMED {
        text.push_str(&format!(" and {} more", ids.len() - NAMED));
    }
    text
}

/// Returns those of `ids` whose rows were written: a registration of the existing state changes nothing, and is not audited.
fn changed(ids: Vec<crate::InstanceId>, rows: &[Result<crate::Written, WriteError>]) -> Vec<crate::InstanceId> {
    let written = rows.iter().map(|row| row.as_ref().is_ok_and(crate::Written::changed));
    ids.into_iter().zip(written).filter_map(|(id, changed)| changed.then_some(id)).collect()
}
