//! Spans of the proxy, sent to a collector by OTLP over gRPC.
//!
//! ```text
//!  workers ── spans ──▶ a queue of [`QUEUE`] ──▶ a task: batches ── OTLP ──▶ collector
//!                        │ full: dropped, counted     │ not taken: dropped, counted
//! ```
//!
//! Literals are removed from statements here, in the control world.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use proxy::config::TracingConfig;
use proxy::trace::{Outcome, Sink, Span};
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver};
use tokio::task::JoinHandle;

use super::{FAREWELL, host, instance_id};
use crate::exposition::Exposition;
use config::otlp::PATIENCE;
use config::otlp::{Collector, Wrong};
use process::Failure;

/// Most spans that wait to be sent; further ones are dropped.
const QUEUE: usize = 2_048;
/// Most spans in one request.
const BATCH: usize = 512;
/// Longest time that a span waits for others.
const GATHER: Duration = Duration::from_secs(1);

/// Counts of spans that were sent.
#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    failed: AtomicU64,
}

/// The task that sends spans to the collector.
#[derive(Debug)]
pub struct Traces {
    counts: Arc<Counts>,
    stop: Arc<Notify>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Traces {
    /// Starts to send as configured and returns a sink for the proxy; `None` if no collector is configured. The collector may be down.
    ///
    /// # Errors
    /// The endpoint, a header or a file cannot be used.
    pub fn start(config: &TracingConfig, runtime: &tokio::runtime::Handle) -> Result<Option<(Traces, Sink)>, Failure> {
        let Some(collector) = Collector::of_traces(config) else { return Ok(None) };
        let _inside = runtime.enter();
        let failed = |Wrong { key, why }| Failure::config(format!("cannot send traces: proxy.tracing.{key}: {why}"));
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_channel(collector.channel().map_err(failed)?)
            .with_metadata(collector.metadata().map_err(failed)?)
            .with_timeout(PATIENCE)
            .build();
        let mut exporter = exporter
            .map_err(|error| Failure::config(format!("cannot send traces to {}: {error}", collector.endpoint)))?;
        let host = host();
        let resource = Resource::builder_empty()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance_id(&host)))
            .with_attribute(KeyValue::new("host.name", host))
            .build();
        exporter.set_resource(&resource);
        let (sender, receiver) = mpsc::channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let stop = Arc::new(Notify::new());
        let task = runtime.spawn(forward(receiver, exporter, Arc::clone(&counts), Arc::clone(&stop)));
        let task = Mutex::new(Some(task));
        Ok(Some((Traces { counts, stop, task }, Arc::new(move |span| sender.try_send(span).is_ok()))))
    }

    /// Accepts no more spans and waits until the queued ones are sent, at most for `FAREWELL`.
    pub async fn end(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut task) = task else { return };
        self.stop.notify_one();
        if tokio::time::timeout(FAREWELL, &mut task).await.is_err() {
            task.abort();
        }
    }

    /// Adds the numbers of spans sent and lost.
    pub fn describe(&self, exposition: &mut Exposition) {
        let (exported, failed) = (&self.counts.exported, &self.counts.failed);
        let help = "Traced statements that the collector has taken";
        exposition.counter("spans_exported_total", help, exported.load(Ordering::Relaxed));
        let help = "Traced statements that the collector has not taken: they are lost";
        exposition.counter("spans_failed_total", help, failed.load(Ordering::Relaxed));
    }
}

/// Sends spans until the queue is closed and empty.
async fn forward(mut receiver: Receiver<Span>, exporter: SpanExporter, counts: Arc<Counts>, stop: Arc<Notify>) {
    let mut reachable = true;
    loop {
        let mut spans = Vec::new();
        tokio::select! {
            number = receiver.recv_many(&mut spans, BATCH) => if number == 0 {
                return;
            },
            () = stop.notified() => {
                receiver.close();
                continue;
            }
        }
        let until = tokio::time::Instant::now() + GATHER;
        while spans.len() < BATCH {
            let room = BATCH - spans.len();
            match tokio::time::timeout_at(until, receiver.recv_many(&mut spans, room)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        let number = spans.len() as u64;
        let now = (Instant::now(), SystemTime::now());
        let batch = spans.into_iter().map(|span| translate(span, now)).collect();
        let error = match tokio::time::timeout(PATIENCE, exporter.export(batch)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer in {PATIENCE:?}")),
        };
        match error {
            None => {
                counts.exported.fetch_add(number, Ordering::Relaxed);
                if !std::mem::replace(&mut reachable, true) {
                    tracing::info!("the collector takes traces again");
                }
            }
            Some(error) => {
                counts.failed.fetch_add(number, Ordering::Relaxed);
                if std::mem::take(&mut reachable) {
                    tracing::warn!(error, "the collector does not take traces: they are dropped until it does");
                }
            }
        }
    }
}

/// Translates a span to OpenTelemetry's conventions for databases. The span begins when the statement began to wait.
fn translate(span: Span, now: (Instant, SystemTime)) -> SpanData {
    let time = |at: Instant| now.1.checked_sub(now.0.saturating_duration_since(at)).unwrap_or(now.1);
    let text = span.text.show();
    let verb: String = text.chars().take_while(char::is_ascii_alphabetic).take(16).collect::<String>().to_uppercase();
    let name = if verb.is_empty() { "statement".into() } else { Cow::Owned(verb.clone()) };
    let sent = time(span.sent);
    let mut attributes = vec![
        KeyValue::new("db.system.name", "postgresql"),
        KeyValue::new("db.namespace", span.database.to_string()),
        KeyValue::new("db.query.text", text),
        KeyValue::new("db.response.returned_rows", i64::try_from(span.rows).unwrap_or(i64::MAX)),
        KeyValue::new("user.name", span.user.to_string()),
        KeyValue::new("kingpost.node", span.node),
        KeyValue::new("kingpost.role", if span.primary { "primary" } else { "replica" }),
        KeyValue::new("kingpost.shared_lane", span.lane),
        KeyValue::new("kingpost.wait_us", i64::try_from(span.waited.as_micros()).unwrap_or(i64::MAX)),
    ];
    if !verb.is_empty() {
        attributes.push(KeyValue::new("db.operation.name", verb));
    }
    let status = match span.outcome {
        Outcome::Done => Status::Unset,
        Outcome::Failed(code) => {
            let code = String::from_utf8_lossy(&code).into_owned();
            attributes.push(KeyValue::new("db.response.status_code", code.clone()));
            attributes.push(KeyValue::new("error.type", code.clone()));
            Status::error(format!("SQLSTATE {code}"))
        }
        Outcome::Lost => {
            attributes.push(KeyValue::new("error.type", "connection_lost"));
            Status::error("the connection to the server was lost")
        }
    };
    let id = |number: u64| SpanId::from_bytes(number.to_be_bytes());
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(span.trace.to_be_bytes()),
            id(span.id),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: id(span.parent),
        span_kind: SpanKind::Client,
        name,
        start_time: sent.checked_sub(span.waited).unwrap_or(sent),
        end_time: time(span.ended),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status,
        instrumentation_scope: InstrumentationScope::builder("kingpost")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}
