//! The registry over gRPC: its own service, Polaris', Nacos', xDS, health and reflection, over HTTP/2 on the addresses of the HTTP fronts.
//!
//! ```text
//!  server (HTTP/2) ─▶ Services: by path ─▶ tonic: frames, protobuf ─▶ native | polaris | nacos | xds | ready ─▶ Registry
//! ```
// tonic's traits want its `Status` bare.
#![allow(clippy::result_large_err)]

mod nacos;
mod native;
mod polaris;
mod ready;
mod xds;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use hyper::HeaderMap;
use hyper::body::Incoming;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Request, Status};

use super::auth::Role;
use super::places::Place;
use super::{ApiError, Context, Front};

/// What `build.rs` makes of `proto/`.
#[allow(missing_docs, unreachable_pub, nonstandard_style, clippy::all)]
pub(crate) mod proto {
    pub mod registry {
        tonic::include_proto!("kingpost.registry.v1");
    }
    pub mod polaris {
        tonic::include_proto!("v1");
    }
    pub mod nacos {
        // Of files without a package.
        tonic::include_proto!("_");
    }
    pub mod xds {
        tonic::include_proto!("xds");
    }
    /// All of it, for reflection.
    pub const DESCRIBED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/described.bin"));
    pub const DESCRIBED_XDS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/described_xds.bin"));
}

type HttpRequest = hyper::Request<Incoming>;
type HttpResponse = hyper::Response<tonic::body::Body>;
type Answering = Pin<Box<dyn Future<Output = HttpResponse> + Send>>;
/// The messages of a streamed answer.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How long the beginning of an answer may take, beyond the time for the request's body: the store's own limits are shorter.
const ANSWER: Duration = Duration::from_secs(60);

/// Who asks. The token is looked up for each message: a stream does not outlive it.
#[derive(Debug, Clone)]
struct Who {
    headers: HeaderMap,
    peer: IpAddr,
}

/// Where it is found out who calls, and how often they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// By the headers, before anything of the body is read.
    Token,
    /// Nowhere: it is answered to anybody.
    Open,
    /// By what is in the messages.
    Within,
}

/// One service.
struct Mounted {
    /// `/package.Service/`.
    prefix: String,
    front: Front,
    door: Door,
    call: Box<dyn Fn(HttpRequest) -> Answering + Send + Sync>,
}

/// All services.
pub(super) struct Services {
    context: Arc<Context>,
    mounted: Vec<Mounted>,
}

/// Whether a request is gRPC's.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(hyper::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

impl Services {
    pub(super) fn new(context: &Arc<Context>) -> Services {
        use proto::polaris::polaris_grpc_server::PolarisGrpcServer;
        use proto::polaris::polaris_heartbeat_grpc_server::PolarisHeartbeatGrpcServer;
        use proto::registry::registry_server::RegistryServer;
        use tonic_health::pb::health_server::HealthServer;

        let most = context.limits.body_bytes;
        let native = RegistryServer::new(native::Native(Arc::clone(context))).max_decoding_message_size(most);
        let polaris = polaris::Polaris(Arc::clone(context));
        let beats = PolarisHeartbeatGrpcServer::new(polaris.clone()).max_decoding_message_size(most);
        let polaris = PolarisGrpcServer::new(polaris).max_decoding_message_size(most);
        let health = HealthServer::new(ready::Ready(Arc::clone(context))).max_decoding_message_size(most);
        let mut mounted = vec![
            mount(Front::Native, Door::Token, native),
            mount(Front::Polaris, Door::Token, polaris),
            mount(Front::Polaris, Door::Token, beats),
            // As the paths for load balancers and the OpenAPI document.
            mount(Front::Native, Door::Open, health),
        ];
        mounted.extend(nacos::mounted(context));
        mounted.extend(xds::mounted(context));
        let described = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIBED)
                .register_encoded_file_descriptor_set(proto::DESCRIBED_XDS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        match (described().build_v1(), described().build_v1alpha()) {
            (Ok(v1), Ok(v1alpha)) => {
                mounted.push(mount(Front::Native, Door::Open, v1.max_decoding_message_size(most)));
                mounted.push(mount(Front::Native, Door::Open, v1alpha.max_decoding_message_size(most)));
            }
            // Our own description; a test reads it.
            (Err(error), _) | (_, Err(error)) => tracing::error!(%error, "gRPC without reflection"),
        }
        Services { context: Arc::clone(context), mounted }
    }

    /// Answers a request, if one of `fronts` does. Says whose it was.
    pub(super) async fn answer(
        &self,
        mut request: HttpRequest,
        peer: IpAddr,
        fronts: &[Front],
    ) -> (Front, HttpResponse) {
        let path = request.uri().path();
        let found = self.mounted.iter().find(|mounted| path.starts_with(&mounted.prefix));
        let Some(found) = found.filter(|mounted| fronts.contains(&mounted.front)) else {
            let speaker = fronts.first().copied().unwrap_or(Front::Native);
            return (speaker, Status::unimplemented("there is no such service here").into_http());
        };
        if let Err(error) = self.context.meant(request.uri(), request.headers()) {
            return (found.front, Status::from(error).into_http());
        }
        let who = Who { headers: request.headers().clone(), peer };
        if let Err(error) = self.let_in(found.door, &who) {
            self.context.refused(&error);
            return (found.front, Status::from(error).into_http());
        }
        request.extensions_mut().insert(who);
        let limit = self.context.limits.body_timeout + ANSWER;
        let answered = tokio::time::timeout(limit, (found.call)(request)).await;
        let response = answered.unwrap_or_else(|_| Status::deadline_exceeded("the request took too long").into_http());
        (found.front, response)
    }

    /// Before anything of the body is read.
    fn let_in(&self, door: Door, who: &Who) -> Result<(), ApiError> {
        if door == Door::Within {
            return Ok(());
        }
        let caller = self.context.identify_by(&who.headers, None);
        self.context.admit(caller.as_ref().ok(), who.peer)?;
        if door == Door::Open { Ok(()) } else { caller.map(drop) }
    }
}

fn mount<S>(front: Front, door: Door, service: S) -> Mounted
where
    S: Service<HttpRequest, Response = HttpResponse, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    let call = move |request| -> Answering { Box::pin(answered(service.clone(), request)) };
    Mounted { prefix: format!("/{}/", S::NAME), front, door, call: Box::new(call) }
}

async fn answered<S>(mut service: S, request: HttpRequest) -> HttpResponse
where
    S: Service<HttpRequest, Response = HttpResponse, Error = Infallible>,
{
    match service.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

impl Who {
    /// Of a call that passed [`Services::answer`].
    fn of<T>(request: &Request<T>) -> Result<Who, Status> {
        request.extensions().get::<Who>().cloned().ok_or_else(|| Status::internal("the caller is not known"))
    }

    /// Insists on a role in a namespace. Who is not let in, at the beginning or in a stream, is told so.
    fn needs(&self, context: &Context, role: Role, namespace: &str) -> Result<(), ApiError> {
        context.identify_by(&self.headers, None)?.needs(role, namespace)
    }

    /// Refuses a message of a stream where there are too many.
    fn admitted(&self, context: &Context) -> Result<(), ApiError> {
        context.admit(context.identify_by(&self.headers, None).ok().as_ref(), self.peer)
    }

    /// A place among those that wait. Whether the caller may ask is decided elsewhere.
    fn place(&self, context: &Context) -> Result<Place, ApiError> {
        context.place(context.identify_by(&self.headers, None).ok().as_ref(), self.peer)
    }

    fn audit(&self, context: &Context, action: &'static str, namespace: &str, object: &str) {
        if let Ok(caller) = context.identify_by(&self.headers, None) {
            context.audit(&caller, self.peer, action, namespace, object);
        }
    }
}

/// A stream that ends with the server.
fn while_running<T: 'static>(
    context: &Arc<Context>,
    stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    let mut stopping = context.stopping.clone();
    let stop = async move {
        let _ = stopping.wait_for(|stop| *stop).await.is_ok();
    };
    Box::pin(stream.take_until(Box::pin(stop)))
}

impl From<ApiError> for Status {
    fn from(error: ApiError) -> Status {
        let code = match &error {
            ApiError::BadRequest(_) | ApiError::Invalid(_) | ApiError::UnsupportedMediaType { .. } => {
                Code::InvalidArgument
            }
            ApiError::NoSuchPath(_) | ApiError::NotImplemented(_) | ApiError::MethodNotAllowed { .. } => {
                Code::Unimplemented
            }
            ApiError::NotFound { .. } | ApiError::Missing(_) => Code::NotFound,
            ApiError::Unauthorized => Code::Unauthenticated,
            ApiError::Forbidden { .. } | ApiError::Misdirected { .. } => Code::PermissionDenied,
            ApiError::TooLarge { .. } | ApiError::Busy { .. } => Code::ResourceExhausted,
            ApiError::BodyTimeout { .. } => Code::DeadlineExceeded,
            ApiError::Conflict(_) => Code::FailedPrecondition,
            ApiError::Unavailable(_) | ApiError::Undetermined(_) => Code::Unavailable,
        };
        Status::new(code, error.to_string())
    }
}
