//! The HTTP side of the registry: several fronts over the one core.
//!
//! ```text
//!  socket ─▶ server (limits) ─▶ Request ─▶ Front ──▶ Registry: register, report, snapshot, watch …
//!                                          ├ native      /v1/namespaces/…  /v1/openapi.json
//!                                          ├ consul      /v1/{agent,catalog,health,status}/…
//!                                          ├ eureka      /eureka/…
//!                                          └ prometheus  /prometheus/…
//!  socket ◀─ server ◀── Reply ◀────────────┘
//! ```
//!
//! A front translates and nothing else: whatever two of them need is in the core. The paths of the fronts do not overlap,
//! so that any number of them can share an address.

mod auth;
mod consul;
mod error;
mod eureka;
mod gzip;
mod limits;
mod native;
mod prometheus;
mod reply;
mod request;
mod server;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

pub use auth::{Auth, Role, Token, TokenHash, hash_of};
pub use error::ApiError;
pub use limits::HttpLimits;
pub use reply::{Body, Reply};
pub use request::{Request, format_duration, parse_duration};
pub use server::{Mount, Server};
pub use stats::{BUCKETS_MICROS, FrontStats, HttpStats};

use crate::{Invalid, NamespaceName, Registry, Revision, ServiceKey, WatchError, WriteError};

/// What metadata keys start with that fronts keep for themselves: what Consul and Eureka know of an instance and the model
/// does not. The native front shows them, the others do not.
pub const RESERVED: &str = "kingpost.";

/// A way to speak with the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Our own REST and JSON.
    Native,
    /// The agent, catalog and health parts of Consul's HTTP API.
    Consul,
    /// Eureka's REST.
    Eureka,
    /// Service discovery for Prometheus over HTTP.
    Prometheus,
}

/// What all fronts work with.
pub struct Context {
    /// The core.
    pub registry: Registry,
    /// Who is let in.
    pub auth: Auth,
    /// Bounds.
    pub limits: HttpLimits,
    /// Counters.
    pub stats: Arc<HttpStats>,
    /// What Consul's clients are told that this node is called.
    pub node: String,
    /// What Eureka's deltas begin from.
    past: eureka::Past,
    /// One permit a request that waits for a change.
    waiting: Arc<Semaphore>,
    /// Becomes true when the server stops: whoever waits answers with what there is.
    stopping: watch::Receiver<bool>,
}

impl Front {
    /// All of them, in the order of their numbers.
    pub const ALL: [Front; 4] = [Front::Native, Front::Consul, Front::Eureka, Front::Prometheus];

    /// A short name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Front::Native => "native",
            Front::Consul => "consul",
            Front::Eureka => "eureka",
            Front::Prometheus => "prometheus",
        }
    }

    /// Whose path it is.
    fn of_path(path: &str) -> Option<Front> {
        let mut segments = path.split('/').skip(1);
        match (segments.next()?, segments.next()) {
            ("eureka", _) => Some(Front::Eureka),
            ("prometheus", _) => Some(Front::Prometheus),
            ("v1", Some("namespaces" | "openapi.json")) => Some(Front::Native),
            ("v1", Some("agent" | "catalog" | "health" | "status")) => Some(Front::Consul),
            _ => None,
        }
    }

    async fn handle(self, context: &Arc<Context>, request: Request) -> Result<Reply, ApiError> {
        match self {
            Front::Native => native::handle(context, &request).await,
            Front::Consul => consul::handle(context, &request).await,
            Front::Eureka => eureka::handle(context, &request).await,
            Front::Prometheus => prometheus::handle(context, &request).await,
        }
    }

    /// An error in the front's own form.
    fn show(self, error: &ApiError) -> Reply {
        match self {
            Front::Native | Front::Prometheus => native::show(error),
            // Consul and Eureka answer with plain text; their clients look at the status only.
            Front::Consul | Front::Eureka => Reply::text(error.status(), format!("{error}\n")),
        }
    }
}

impl Context {
    /// What fronts need, over a core that runs.
    pub fn new(registry: Registry, auth: Auth, limits: HttpLimits, node: String) -> Context {
        let waiting = Arc::new(Semaphore::new(limits.waiting.min(Semaphore::MAX_PERMITS)));
        // Replaced by the server's own.
        let (_, stopping) = watch::channel(false);
        let past = eureka::Past::default();
        past.note(std::time::Instant::now(), registry.revision());
        Context { registry, auth, limits, stats: Arc::default(), node, past, waiting, stopping }
    }

    /// How many requests wait for a change.
    pub fn waiting(&self) -> usize {
        self.limits.waiting.saturating_sub(self.waiting.available_permits())
    }

    /// A place among those that wait.
    fn place(&self) -> Result<tokio::sync::OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| ApiError::Busy {
            what: "requests that wait for a change",
            limit: "registry.waiting",
            value: self.limits.waiting as u64,
        })
    }

    /// Waits until a service (or with none, anything) has a revision above `after`, the time is over, or the server stops.
    async fn wait(&self, service: Option<&ServiceKey>, after: Revision, limit: Duration) -> Result<(), ApiError> {
        let _place = self.place()?;
        let deadline = Instant::now() + limit.min(self.limits.wait);
        let mut stopping = self.stopping.clone();
        let changed = async {
            match service {
                Some(service) => self.registry.watch(service, after, deadline).await,
                None => self.registry.watch_all(after, deadline).await,
            }
        };
        tokio::select! {
            changed = changed => changed.map(drop).map_err(ApiError::from),
            // An error means that the server has gone: the same.
            _ = stopping.wait_for(|stop| *stop) => Ok(()),
        }
    }

    /// Whether `wanted`, above the `now` of an existing service, is what another node calls the same content: after collecting
    /// tombstones, and after a restart, nodes may know of one service's last change by different numbers. This node has
    /// seen all up to `wanted`, so there is nothing newer. (To answer at once would make a client that is sent to one node
    /// and then the other come back for ever.)
    fn is_ahead(&self, service: Option<&ServiceKey>, now: Revision, wanted: Revision) -> bool {
        service.is_some() && now > Revision(0) && wanted > now && wanted <= self.registry.revision()
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

/// One line a change, for whoever has to answer who did what. At INFO under the target `registry::audit`.
fn audit(caller: &auth::Caller<'_>, request: &Request, action: &str, namespace: &str, object: &str) {
    tracing::info!(target: "registry::audit", token = caller.name(), peer = %request.peer, action, namespace, object);
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
            WriteError::Overloaded { .. } | WriteError::Unavailable { .. } | WriteError::Stopped => {
                ApiError::Unavailable(text)
            }
        }
    }
}
