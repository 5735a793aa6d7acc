//! Metrics sent to a collector at an interval: the same as at `/metrics`.
//!
//! Each request has the current value of every metric; a counter's is its count since the start of the process (cumulative). A lost request therefore
//! costs only a point in time, and nothing is kept to be sent later.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data as Kind;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Point;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tonic::Request;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use super::explained;
use super::{FAREWELL, host, instance_id};
use crate::admin::Source;
use crate::exposition::{Data, Exposition, Family, Number, Observations, Sample};
use config::otlp::PATIENCE;
use config::otlp::{Collector, OtlpConfig, Wrong};
use process::Failure;

/// A task that sends metrics. Dropping it ends the task without a last request.
#[derive(Debug)]
pub struct Pushing {
    now: mpsc::Sender<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Pushing {
    /// Starts to send as configured, within a runtime; `None` if no collector is configured. The collector may be down.
    ///
    /// # Errors
    /// The endpoint, a header or a file cannot be used.
    pub fn start<S: Source>(config: &OtlpConfig, source: Arc<S>) -> Result<Option<Pushing>, Failure> {
        let Some(collector) = Collector::of_metrics(config) else { return Ok(None) };
        let failed = |Wrong { key, why }| Failure::config(format!("cannot send metrics: metrics.otlp.{key}: {why}"));
        let push = Push {
            client: MetricsServiceClient::new(collector.channel().map_err(failed)?),
            metadata: collector.metadata().map_err(failed)?,
            resource: resource(&config.service_name),
            began: nanos(),
            patience: PATIENCE.min(config.interval),
            last: Last::Taken,
        };
        let (now, asked) = mpsc::channel(1);
        let task = tokio::spawn(push.run(config.interval, source, asked));
        Ok(Some(Pushing { now, task }))
    }

    /// Sends the current metrics, with a time limit. For a process that begins to end.
    pub async fn flush(&self) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.now.send(done).await.is_ok() {
                let _ = sent.await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, flushed).await;
    }
}

impl Drop for Pushing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Result of the last request: only a change is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Taken,
    TakenInPart,
    Failed,
}

struct Push {
    client: MetricsServiceClient<Channel>,
    metadata: MetadataMap,
    resource: Resource,
    /// Time at which this process began to count, in nanoseconds since 1970.
    began: u64,
    patience: Duration,
    last: Last,
}

impl Push {
    async fn run<S: Source>(
        mut self,
        interval: Duration,
        source: Arc<S>,
        mut asked: mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                _ = ticks.tick() => None,
                Some(done) = asked.recv() => Some(done),
            };
            self.send(source.metrics()).await;
            // The receiver may have given up waiting.
            let _ = done.map(|done| done.send(()));
        }
    }

    async fn send(&mut self, exposition: Exposition) {
        let message = translate(exposition, &self.resource, self.began, nanos());
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        let (now, why) = match tokio::time::timeout(self.patience, self.client.export(request)).await {
            Ok(Ok(answer)) => match answer.into_inner().partial_success {
                Some(part) if part.rejected_data_points > 0 => {
                    (Last::TakenInPart, format!("{} refused: {}", part.rejected_data_points, part.error_message))
                }
                _ => (Last::Taken, String::new()),
            },
            Ok(Err(status)) => (Last::Failed, explained(&status)),
            Err(_) => (Last::Failed, format!("no answer in {:?}", self.patience)),
        };
        if std::mem::replace(&mut self.last, now) == now {
            return;
        }
        let why: String = why.chars().filter(|character| !character.is_control()).take(500).collect();
        match now {
            Last::Taken => tracing::info!("the collector takes metrics again"),
            Last::TakenInPart => tracing::warn!(why, "the collector does not take all metrics"),
            Last::Failed => tracing::warn!(why, "the collector does not take metrics: it is sent the next ones"),
        }
    }
}

fn nanos() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn text(key: &str, value: impl Into<String>) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::StringValue(value.into())) }) }
}

fn resource(service_name: &str) -> Resource {
    let host = host();
    let attributes = vec![
        text("service.name", service_name),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", instance_id(&host)),
        text("host.name", host),
    ];
    Resource { attributes, ..Resource::default() }
}

/// Translates all metrics. `now` and `began`, from which counters count, are in nanoseconds since 1970.
fn translate(exposition: Exposition, resource: &Resource, began: u64, now: u64) -> ExportMetricsServiceRequest {
    let metrics = exposition.into_families().into_iter().map(|family| metric(family, began, now)).collect();
    let scope = InstrumentationScope {
        name: "kingpost".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
    let metrics = ResourceMetrics { resource: Some(resource.clone()), scope_metrics, ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![metrics] }
}

fn metric(family: Family, began: u64, now: u64) -> Metric {
    let cumulative = AggregationTemporality::Cumulative as i32;
    let points = |samples: Vec<Sample>, began| samples.into_iter().map(|sample| point(sample, began, now)).collect();
    let unit = unit(&family.name).to_owned();
    let data = match family.data {
        Data::Counter(samples) => Kind::Sum(Sum {
            data_points: points(samples, began),
            aggregation_temporality: cumulative,
            is_monotonic: true,
        }),
        Data::Gauge(samples) => Kind::Gauge(Gauge { data_points: points(samples, 0) }),
        Data::Histogram(all) => {
            let data_points = all.into_iter().map(|of| histogram(of, began, now)).collect();
            Kind::Histogram(Histogram { data_points, aggregation_temporality: cumulative })
        }
    };
    Metric { name: family.name, description: family.help, unit, metadata: Vec::new(), data: Some(data) }
}

fn histogram(of: Observations, began: u64, now: u64) -> HistogramDataPoint {
    let (explicit_bounds, mut bucket_counts): (Vec<f64>, Vec<u64>) = of.buckets.into_iter().unzip();
    bucket_counts.push(of.above);
    HistogramDataPoint {
        attributes: attributes(of.labels),
        start_time_unix_nano: began,
        time_unix_nano: now,
        count: bucket_counts.iter().fold(0, |total, count| total.saturating_add(*count)),
        sum: Some(of.sum),
        bucket_counts,
        explicit_bounds,
        ..HistogramDataPoint::default()
    }
}

fn attributes(labels: Vec<(String, String)>) -> Vec<KeyValue> {
    labels.into_iter().map(|(name, value)| text(&name, value)).collect()
}

fn point(sample: Sample, began: u64, now: u64) -> NumberDataPoint {
    let value = match sample.value {
        // No metric of ours is larger than an i64; a float has the magnitude of one that is.
        Number::Integer(value) => i64::try_from(value).map_or(Point::AsDouble(value as f64), Point::AsInt),
        Number::Float(value) => Point::AsDouble(value),
    };
    NumberDataPoint {
        attributes: attributes(sample.labels),
        start_time_unix_nano: began,
        time_unix_nano: now,
        value: Some(value),
        ..NumberDataPoint::default()
    }
}

/// Returns the UCUM unit of a metric, from the end of its Prometheus name.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::exposition::Type;

    #[test]
    fn figures_keep_their_names_labels_and_kinds() {
        let mut exposition = Exposition::default();
        exposition.counter("relay_received_bytes_total", "Bytes.", u64::MAX);
        exposition
            .metric(Type::Gauge, "node_up", "Up.")
            .sample(&[("node", "a"), ("role", "primary")], true)
            .sample(&[("node", "b"), ("role", "replica")], 0.5);
        exposition.histogram("wait_seconds", "Waits.", &[(0.1, 2), (1.0, 3)], 1, 4.5);
        let sent = translate(exposition, &resource("shop"), 7, 9);
        let resource = sent.resource_metrics[0].resource.as_ref().unwrap();
        assert!(resource.attributes.contains(&text("service.name", "shop")));
        let metrics = &sent.resource_metrics[0].scope_metrics[0].metrics;
        let of = |index: usize| (metrics[index].name.as_str(), metrics[index].unit.as_str());
        assert_eq!(
            [of(0), of(1), of(2)],
            [("kingpost_relay_received_bytes_total", "By"), ("kingpost_node_up", ""), ("kingpost_wait_seconds", "s")]
        );
        let Some(Kind::Sum(sum)) = &metrics[0].data else { panic!("{:?}", metrics[0]) };
        assert!(sum.is_monotonic && sum.aggregation_temporality == AggregationTemporality::Cumulative as i32);
        assert_eq!((sum.data_points[0].start_time_unix_nano, sum.data_points[0].time_unix_nano), (7, 9));
        assert_eq!(sum.data_points[0].value, Some(Point::AsDouble(u64::MAX as f64)));
        let Some(Kind::Gauge(gauge)) = &metrics[1].data else { panic!("{:?}", metrics[1]) };
        assert_eq!(gauge.data_points[0].attributes, [text("node", "a"), text("role", "primary")]);
        let values: Vec<_> = gauge.data_points.iter().map(|point| point.value).collect();
        assert_eq!(values, [Some(Point::AsInt(1)), Some(Point::AsDouble(0.5))]);
        let Some(Kind::Histogram(histogram)) = &metrics[2].data else { panic!("{:?}", metrics[2]) };
        let point = &histogram.data_points[0];
        assert_eq!((&*point.bucket_counts, &*point.explicit_bounds), (&[2, 3, 1][..], &[0.1, 1.0][..]));
        assert_eq!((point.count, point.sum), (6, Some(4.5)));
    }
}
