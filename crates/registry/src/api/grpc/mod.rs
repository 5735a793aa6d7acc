//! The registry over gRPC: its own service, Polaris', Nacos', xDS, health and reflection, over HTTP/2 on the addresses of the HTTP fronts.
//!
//! ```text
//!  server (HTTP/2) ─▶ Services: by path ─▶ tonic: frames, protobuf ─▶ native | polaris | nacos | xds | ready ─▶ Registry
//! ```
// tonic's traits require its `Status` unboxed.
#![allow(clippy::result_large_err)]

mod nacos;
mod native;
mod polaris;
mod polaris_config;
pub(crate) mod proto;
mod ready;
mod services;
mod xds;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use hyper::HeaderMap;
use hyper::body::Incoming;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Request, Status};

use super::auth::Caller;
use super::places::Place;
use super::{ApiError, Context, Front};
pub(super) use services::Services;

type HttpRequest = hyper::Request<Incoming>;
type HttpResponse = hyper::Response<tonic::body::Body>;
type Answering = Pin<Box<dyn Future<Output = HttpResponse> + Send>>;
/// Messages of a streamed response.
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The caller. The token is checked for each message, so a stream does not outlive the token.
#[derive(Debug, Clone)]
struct Who {
    headers: HeaderMap,
    peer: IpAddr,
}

/// Place of a service's authentication and rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// The headers, before anything of the body is read.
    Token,
    /// None: every client is answered.
    Open,
    /// The messages.
    Within,
}

/// A mounted service.
struct Mounted {
    /// Prefix of its paths: `/package.Service/`.
    prefix: String,
    front: Front,
    door: Door,
    call: Box<dyn Fn(HttpRequest) -> Answering + Send + Sync>,
}

/// True if the request is a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(hyper::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
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
    /// Returns the caller of a request that passed [`Services::answer`].
    fn of<T>(request: &Request<T>) -> Result<Who, Status> {
        request.extensions().get::<Who>().cloned().ok_or_else(|| Status::internal("the caller is not known"))
    }

    /// Identifies the caller. An unknown caller gets an error, at the beginning and within a stream.
    fn caller(&self, context: &Context) -> Result<Caller, ApiError> {
        context.identify_by(&self.headers, None)
    }

    /// Rejects a message of a stream above the caller's rate limit.
    fn admitted(&self, context: &Context) -> Result<(), ApiError> {
        context.admit(context.identify_by(&self.headers, None).ok().as_ref(), self.peer)
    }

    /// Takes a slot for a waiting request. Does not check the caller's permission.
    fn place(&self, context: &Context) -> Result<Place, ApiError> {
        context.place(context.identify_by(&self.headers, None).ok().as_ref(), self.peer)
    }

    fn audit(&self, context: &Context, action: &'static str, namespace: &str, object: &str) {
        if let Ok(caller) = context.identify_by(&self.headers, None) {
            context.audit(&caller, self.peer, action, namespace, object);
        }
    }
}

/// Returns the stream, which ends when the server stops.
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
            ApiError::BadRequest(_)
            | ApiError::Coded { .. }
            | ApiError::Invalid(_)
            | ApiError::UnsupportedMediaType { .. } => Code::InvalidArgument,
            ApiError::NoSuchPath(_) | ApiError::NotImplemented(_) | ApiError::MethodNotAllowed { .. } => {
                Code::Unimplemented
            }
            ApiError::NotFound { .. } | ApiError::Missing(_) => Code::NotFound,
            ApiError::Unauthorized | ApiError::NoSuchToken => Code::Unauthenticated,
            ApiError::Denied(_) | ApiError::Forbidden { .. } | ApiError::Misdirected { .. } => Code::PermissionDenied,
            ApiError::TooLarge { .. } | ApiError::Busy { .. } => Code::ResourceExhausted,
            ApiError::BodyTimeout { .. } => Code::DeadlineExceeded,
            ApiError::Conflict(_) => Code::FailedPrecondition,
            ApiError::Unavailable(_) | ApiError::Undetermined(_) => Code::Unavailable,
        };
        Status::new(code, error.to_string())
    }
}
