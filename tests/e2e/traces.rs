//! Traces of statements, as a collector gets them: OTLP over gRPC.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kingpost_tests::raw::{Raw, bind, execute, parse, sync};
use kingpost_tests::{Cluster, Kingpost, SOON, wait_until};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;

use crate::common::{only_kingpost, shared, simple};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A collector: whatever it is sent, it keeps.
struct Collector {
    port: u16,
    spans: Arc<Mutex<Vec<Span>>>,
    /// Of each request, the name of the service.
    services: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Collector {
    async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (spans, services) = <(Arc<Mutex<Vec<Span>>>, Arc<Mutex<Vec<String>>>)>::default();
        let (all, names) = (spans.clone(), services.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (all, names) = (all.clone(), names.clone());
                let service = service_fn(move |request| take(request, all.clone(), names.clone()));
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        Collector { port, spans, services, task }
    }

    /// The spans of statements with this text, once there are so many.
    async fn spans(&self, text: &str, number: usize, kingpost: &Kingpost) -> Vec<Span> {
        wait_until(&format!("{number} spans of {text:?}"), SOON, &kingpost.endpoint().logs, async || {
            let spans = self.spans.lock().unwrap();
            let found: Vec<Span> =
                spans.iter().filter(|span| attribute(span, "db.query.text") == text).cloned().collect();
            (found.len() >= number).then_some(found)
        })
        .await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `TraceService/Export`: a message, behind its five bytes of length; the answer is an empty one.
async fn take(
    request: Request<Incoming>,
    spans: Arc<Mutex<Vec<Span>>>,
    services: Arc<Mutex<Vec<String>>>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    let body = request.into_body().collect().await.expect("a whole request").to_bytes();
    let request = ExportTraceServiceRequest::decode(&body[5..]).expect("a request for a collector");
    for resource in request.resource_spans {
        let attributes = resource.resource.expect("a resource").attributes;
        let name = attributes.iter().find(|attribute| attribute.key == "service.name").expect("its name");
        services.lock().unwrap().push(format!("{:?}", name.value));
        spans.lock().unwrap().extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frames = [Ok(Frame::data(Bytes::from_static(&[0; 5]))), Ok(Frame::trailers(trailers))];
    let answer = Response::builder().header("content-type", "application/grpc");
    Ok(answer.body(StreamBody::new(futures_util::stream::iter(frames))).unwrap())
}

fn attribute(span: &Span, key: &str) -> String {
    let value = span.attributes.iter().find(|attribute| attribute.key == key).and_then(|found| found.value.clone());
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(yes)) => yes.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn traced(cluster: &Cluster, collector: &Collector, ratio: Option<f64>) -> Kingpost {
    let kingpost = Kingpost::of(cluster)
        .set("proxy.tracing.endpoint", format!("http://127.0.0.1:{}", collector.port))
        .set("proxy.tracing.service_name", "shop");
    match ratio {
        Some(ratio) => kingpost.set("proxy.tracing.ratio", ratio).start().await,
        None => kingpost.start().await,
    }
}

#[tokio::test]
async fn a_statement_is_a_part_of_its_callers_trace() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let collector = Collector::start().await;
    let kingpost = traced(&shared.cluster, &collector, None).await;
    let client = kingpost.connect().await;
    let sampled = format!("/*app='x',traceparent='00-{TRACE}-{SPAN}-01'*/");
    let quiet = format!("/*traceparent='00-{TRACE}-{SPAN}-00'*/");
    // In each protocol, in a transaction, and one that fails; what is not sampled is not told of.
    simple(&client, &format!("SELECT 'secret', generate_series(1, 3) {sampled}")).await;
    simple(&client, &format!("SELECT 'quiet' AS quiet {quiet}")).await;
    simple(&client, "SELECT 'untraced' AS untraced").await;
    let mut raw = Raw::login(kingpost.port()).await;
    let unnamed = format!("SELECT 'secret' AS unnamed {sampled}");
    raw.send(&[parse("", &unnamed), bind("", "", &[]), execute("", 0), sync()].concat()).await;
    raw.until(b'Z').await;
    client.batch_execute("BEGIN; CREATE TEMP TABLE traces_t (a int)").await.unwrap();
    client.simple_query(&format!("INSERT INTO traces_t VALUES (1), (2) {sampled}")).await.unwrap();
    client.simple_query(&format!("SELECT 1 / 0 AS failing {sampled}")).await.unwrap_err();
    client.batch_execute("ROLLBACK").await.unwrap();
    let spans = collector.spans("SELECT ?, generate_series(?, …)", 1, &kingpost).await;
    let span = &spans[0];
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
    assert_eq!((span.name.as_str(), span.span_id.len()), ("SELECT", 8));
    assert!(span.start_time_unix_nano <= span.end_time_unix_nano && span.start_time_unix_nano > 0, "{span:?}");
    for (key, expected) in [
        ("db.system.name", "postgresql"),
        ("db.operation.name", "SELECT"),
        ("db.response.returned_rows", "3"),
        ("kingpost.shared_lane", "false"),
    ] {
        assert_eq!(attribute(span, key), expected, "{span:?}");
    }
    assert_eq!(collector.spans("SELECT ? AS unnamed", 1, &kingpost).await.len(), 1);
    let inserted = &collector.spans("INSERT INTO traces_t VALUES (?), (?)", 1, &kingpost).await[0];
    assert_eq!(
        (attribute(inserted, "kingpost.role"), attribute(inserted, "db.response.returned_rows")),
        ("primary".into(), "2".into())
    );
    let failed = &collector.spans("SELECT ? / ? AS failing", 1, &kingpost).await[0];
    assert_eq!(attribute(failed, "db.response.status_code"), "22012");
    assert_eq!(failed.status.as_ref().map(|status| status.code), Some(2));
    let all = collector.spans.lock().unwrap().clone();
    assert_eq!(all.len(), 4, "{all:#?}");
    let ids: HashMap<_, _> = all.iter().map(|span| (&span.span_id, span)).collect();
    assert_eq!(ids.len(), 4);
    assert!(!format!("{all:?}").contains("secret"));
    assert!(collector.services.lock().unwrap().iter().all(|name| name.contains("shop")));
    let metrics = kingpost.metrics().await;
    assert_eq!(metrics.sum("kingpost_spans_total", &[]), 4.0);
    assert_eq!(metrics.sum("kingpost_spans_dropped_total", &[]), 0.0);
}

/// By chance: all of them here. What is traced at the very end is sent before the process is gone; without a collector nothing is
/// held up, and what is lost is counted.
#[tokio::test]
async fn statements_are_traced_by_chance_and_nothing_waits_for_the_collector() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let collector = Collector::start().await;
    let kingpost = traced(&shared.cluster, &collector, Some(1.0)).await;
    let client = kingpost.connect().await;
    let prepared = client.prepare("SELECT $1::int8 AS by_chance").await.unwrap();
    for n in 0..30i64 {
        client.query(&prepared, &[&n]).await.unwrap();
    }
    drop(client);
    kingpost.process().signal(libc::SIGTERM);
    assert!(kingpost.process().wait_exit(SOON).await.success());
    let spans = collector.spans("SELECT $1::int8 AS by_chance", 30, &kingpost).await;
    let traces: HashMap<_, _> = spans.iter().map(|span| (&span.trace_id, span)).collect();
    // Each is a trace of its own.
    assert_eq!(traces.len(), spans.len());
    assert!(spans.iter().all(|span| span.parent_span_id.iter().all(|&byte| byte == 0)), "{spans:?}");

    let nobody = Collector::start().await;
    nobody.task.abort();
    let kingpost = traced(&shared.cluster, &nobody, Some(1.0)).await;
    let client = kingpost.connect().await;
    for _ in 0..30 {
        simple(&client, "SELECT 7").await;
    }
    wait_until("spans to be lost", SOON, &kingpost.endpoint().logs, async || {
        (kingpost.metrics().await.sum("kingpost_spans_failed_total", &[]) >= 30.0).then_some(())
    })
    .await;
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    assert_eq!(log.matches("does not take traces").count(), 1, "{log}");
}
