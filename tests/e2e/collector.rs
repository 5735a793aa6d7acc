//! A collector of OpenTelemetry for tests: OTLP over gRPC, with TLS or without. It keeps everything it receives.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kingpost_tests::certs::{Authority, Pair};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Data that a collector has received.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) spans: Vec<Span>,
    pub(crate) metrics: Vec<ResourceMetrics>,
    /// Service name of each resource.
    pub(crate) services: Vec<String>,
    /// Headers of each request.
    pub(crate) headers: Vec<HeaderMap>,
}

pub(crate) struct Collector {
    pub(crate) port: u16,
    sent: Arc<Mutex<Sent>>,
    task: tokio::task::JoinHandle<()>,
}

impl Collector {
    pub(crate) async fn start() -> Collector {
        Collector::start_on(0, None).await
    }

    /// Starts a collector that requires TLS: with this certificate, and client certificates of that authority.
    pub(crate) async fn start_secure(pair: &Pair, clients: &Authority) -> Collector {
        let config = tls::ListenConfig {
            mode: tls::ListenMode::Require,
            cert_file: Some(pair.cert.clone()),
            key_file: Some(pair.key.clone()),
            ca_file: Some(clients.ca_file()),
            client_cert: tls::ClientCert::VerifyCa,
            ..tls::ListenConfig::default()
        };
        let acceptor = tls::Acceptor::new(&config).unwrap().unwrap();
        Collector::start_on(0, Some(TlsAcceptor::from(acceptor.speaking(&[b"h2"])))).await
    }

    /// Starts at this port, or at one from the system if it is 0.
    pub(crate) async fn start_on(port: u16, acceptor: Option<TlsAcceptor>) -> Collector {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::<Mutex<Sent>>::default();
        let kept = Arc::clone(&sent);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kept, acceptor) = (Arc::clone(&kept), acceptor.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| take(request, Arc::clone(&kept)));
                    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    match acceptor {
                        None => _ = http.serve_connection(TokioIo::new(stream), service).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                _ = http.serve_connection(TokioIo::new(stream), service).await;
                            }
                        }
                    }
                });
            }
        });
        Collector { port, sent, task }
    }

    /// Ends the collector, and frees its port.
    pub(crate) async fn end(&self) {
        self.task.abort();
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    /// Returns the data received so far.
    pub(crate) fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a message, behind its five bytes of length; the answer is empty.
async fn take(
    request: Request<Incoming>,
    sent: Arc<Mutex<Sent>>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole request").to_bytes();
    let mut sent = sent.lock().unwrap();
    sent.headers.push(head.headers);
    match head.uri.path() {
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => {
            let request = ExportTraceServiceRequest::decode(&body[5..]).expect("a request for a collector");
            for of in request.resource_spans {
                sent.services.push(attribute(&of.resource.expect("a resource").attributes, "service.name"));
                sent.spans.extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => {
            let request = ExportMetricsServiceRequest::decode(&body[5..]).expect("a request for a collector");
            for of in request.resource_metrics {
                let attributes = &of.resource.as_ref().expect("a resource").attributes;
                sent.services.push(attribute(attributes, "service.name"));
                sent.metrics.push(of);
            }
        }
        path => panic!("a collector was asked for {path}"),
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = [Ok(Frame::data(Bytes::from_static(&[0; 5]))), Ok(Frame::trailers(trailers))];
    let answer = Response::builder().header("content-type", "application/grpc");
    Ok(answer.body(StreamBody::new(futures_util::stream::iter(frames))).unwrap())
}

/// Returns the value as text, or its debug form if it is not text.
pub(crate) fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key).and_then(|found| found.value.clone());
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(yes)) => yes.to_string(),
        other => format!("{other:?}"),
    }
}
