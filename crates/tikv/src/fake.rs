//! gRPC servers of tests, whose answers are made by a function: for refusals that a cluster gives only in the middle of a fault.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A gRPC answer: one message, and the status as trailers.
type Answered =
    http_body_util::combinators::WithTrailers<Full<Bytes>, std::future::Ready<Option<Result<HeaderMap, Infallible>>>>;

/// One server. It ends when dropped.
pub(crate) struct Fake {
    /// `host:port`.
    pub(crate) address: String,
    calls: Arc<Mutex<BTreeMap<String, usize>>>,
    serving: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Fake {
    /// Starts a server on `listener`. `answer` gets a call's name and its message; None: the call is unknown here.
    pub(crate) fn serve(
        listener: TcpListener,
        answer: impl Fn(&str, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Fake {
        let address = listener.local_addr().expect("an address").to_string();
        let calls = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let (answer, counted) = (Arc::new(answer), Arc::clone(&calls));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, counted) = (Arc::clone(&answer), Arc::clone(&counted));
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let (answer, counted) = (Arc::clone(&answer), Arc::clone(&counted));
                    async move {
                        let call = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                        let body = request.into_body().collect().await.expect("a request").to_bytes();
                        *counted.lock().expect("counts").entry(call.clone()).or_default() += 1;
                        // Behind five bytes: compressed or not, and the length.
                        let said = answer(&call, body.get(5..).unwrap_or_default());
                        Ok::<_, Infallible>(response(said))
                    }
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Fake { address, calls, serving }
    }

    /// Returns the number of calls of this name.
    pub(crate) fn calls(&self, call: &str) -> usize {
        self.calls.lock().expect("counts").get(call).copied().unwrap_or_default()
    }
}

fn response(said: Option<Vec<u8>>) -> Response<Answered> {
    // Unimplemented, where there is nothing to say.
    let status = if said.is_some() { "0" } else { "12" };
    let body = said.map_or_else(Vec::new, |message| {
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len()).expect("a small message").to_be_bytes());
        body.extend(message);
        body
    });
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), status.parse().expect("a value"))]);
    let body = Full::new(Bytes::from(body)).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", "application/grpc".parse().expect("a value"));
    response
}
