//! Metrics sent to a collector: the same as at `/metrics`, from every kind of process.

use std::collections::BTreeSet;
use std::path::Path;

use kingpost_tests::certs::Authority;
use kingpost_tests::{
    Cluster, Failover, Kingpost, KingpostBuilder, Metrics, Port, RegistryNode, Relay, SOON, wait_until,
};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics};

use crate::collector::{Collector, attribute};
use crate::common::{only_kingpost, shared, simple};

/// Interval between two requests of a process.
const INTERVAL: &str = "100ms";

/// Returns everything that the processes of a service have sent, in order.
fn of_service(collector: &Collector, service: &str) -> Vec<ResourceMetrics> {
    let is_of = |of: &&ResourceMetrics| resource(of, "service.name") == service;
    collector.sent().metrics.iter().filter(is_of).cloned().collect()
}

fn resource(of: &ResourceMetrics, key: &str) -> String {
    attribute(&of.resource.as_ref().expect("a resource").attributes, key)
}

fn metrics(of: &ResourceMetrics) -> impl Iterator<Item = &Metric> {
    of.scope_metrics.iter().flat_map(|scope| &scope.metrics)
}

/// Returns the value of a counter or gauge of one sample.
fn value(of: &ResourceMetrics, name: &str) -> f64 {
    let metric = metrics(of).find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}"));
    let points = match metric.data.as_ref().expect("data") {
        Data::Sum(sum) => &sum.data_points,
        Data::Gauge(gauge) => &gauge.data_points,
        other => panic!("{name}: {other:?}"),
    };
    match points[0].value.expect("a value") {
        Value::AsInt(value) => value as f64,
        Value::AsDouble(value) => value,
    }
}

/// Waits until a service has sent data that satisfy the condition.
async fn sent(
    collector: &Collector,
    service: &str,
    logs: &Path,
    holds: impl Fn(&ResourceMetrics) -> bool,
) -> ResourceMetrics {
    let what = format!("metrics of {service}");
    wait_until(&what, SOON, logs, async || of_service(collector, service).into_iter().find(&holds)).await
}

/// Checks that the data of a collector and of `/metrics` are the same metrics, of the same kinds.
fn are_the_same(of: &ResourceMetrics, shown: &Metrics) {
    let kind = |metric: &Metric| match metric.data.as_ref().expect("data") {
        Data::Sum(sum) if sum.is_monotonic => "counter",
        Data::Gauge(_) => "gauge",
        Data::Histogram(_) => "histogram",
        other => panic!("{}: {other:?}", metric.name),
    };
    let sent: BTreeSet<_> = metrics(of).map(|metric| (metric.name.as_str(), kind(metric))).collect();
    let shown: BTreeSet<_> = shown.types.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).collect();
    assert_eq!(sent, shown);
}

fn proxy<'a>(cluster: &'a Cluster, collector: &Collector, service: &str) -> KingpostBuilder<'a> {
    Kingpost::of(cluster)
        .set("metrics.otlp.endpoint", format!("http://127.0.0.1:{}", collector.port))
        .set("metrics.otlp.interval", INTERVAL)
        .set("metrics.otlp.service_name", service)
}

/// Two proxies with a collector each: neither collector gets the other's metrics. The last counts are sent before a process ends.
#[tokio::test]
async fn proxies_send_what_they_show_to_their_own_collector() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let (shop, bank) = (Collector::start().await, Collector::start().await);
    let of_shop = proxy(&shared.cluster, &shop, "shop").start().await;
    // One request at the start, and none before the end.
    let of_bank = proxy(&shared.cluster, &bank, "bank").set("metrics.otlp.interval", "1h").start().await;
    let logs = of_shop.endpoint().logs.clone();
    for (proxy, number) in [(&of_shop, 20), (&of_bank, 30)] {
        let client = proxy.connect().await;
        for _ in 0..number {
            simple(&client, "/* kingpost.route=primary */ SELECT 1").await;
        }
    }
    const STATEMENTS: &str = "kingpost_statements_primary_total";
    let counted = of_shop.metrics().await.sum(STATEMENTS, &[]);
    assert!(counted >= 20.0, "{counted}");
    let last = sent(&shop, "shop", &logs, |of| value(of, STATEMENTS) == counted).await;
    are_the_same(&last, &of_shop.metrics().await);
    let instance = resource(&last, "service.instance.id");
    assert_eq!(instance, format!("{}:{}", resource(&last, "host.name"), of_shop.process().pid()));
    let counted = of_bank.metrics().await.sum(STATEMENTS, &[]);
    assert!(counted >= 30.0 && of_service(&bank, "bank").len() == 1, "{counted}");
    of_bank.process().signal(libc::SIGTERM);
    assert!(of_bank.process().wait_exit(SOON).await.success());
    let of_bank = of_service(&bank, "bank");
    assert_eq!((of_bank.len(), value(&of_bank[1], STATEMENTS)), (2, counted));
    assert!(of_service(&shop, "bank").is_empty() && of_service(&bank, "shop").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_registries_and_watchers_send_theirs() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let collector = Collector::start().await;
    let logs = shared.cluster.dir();
    let endpoint = format!("http://127.0.0.1:{}", collector.port);
    let otlp = |service: &str| {
        let mut table = toml::Table::new();
        table.insert("endpoint".into(), endpoint.clone().into());
        table.insert("interval".into(), INTERVAL.into());
        table.insert("service_name".into(), service.into());
        table
    };
    // Its primary does not exist.
    let nobody = Port::reserve();
    let mut relay = Relay::of(&shared.cluster, nobody.number()).set("metrics.otlp", otlp("relay"));
    relay.is_new(true);
    relay.launch();
    let first = sent(&collector, "relay", logs, |of| value(of, "kingpost_build_info") == 1.0).await;
    are_the_same(&first, &relay.metrics().await);

    let more = format!("[metrics.otlp]\n{}", toml::to_string(&otlp("registry")).unwrap());
    let registry = RegistryNode::start(&more).await;
    registry
        .send(
            "PUT",
            "/v1/namespaces/default/services/web/instances/w1",
            &serde_json::json!({"host": "10.0.0.1", "port": 80}),
        )
        .await;
    let with = sent(&collector, "registry", logs, |of| value(of, "kingpost_registry_instances") == 1.0).await;
    are_the_same(&with, &registry.metrics().await);

    let failover = Failover::of(&shared.cluster, &[]).set("metrics.otlp", otlp("watch"));
    let (_watch, _) = failover.start(&["watch"]);
    sent(&collector, "watch", logs, |of| value(of, "kingpost_watch_looks_total") > 0.0).await;
}

/// Over TLS, with a token. Nothing is sent to a collector that is down, or has a wrong certificate; it does no harm, and causes one line in the log.
#[tokio::test]
async fn metrics_go_to_the_right_collector_only() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let own = authority.issue("kingpost", &[]);
    let collector = Collector::start_secure(&authority.issue("collector", &["127.0.0.1"]), &authority).await;
    let other = Collector::start_secure(&stranger.issue("collector", &["127.0.0.1"]), &authority).await;
    let secure = |collector: &Collector| {
        proxy(&shared.cluster, collector, "shop")
            .set("metrics.otlp.endpoint", format!("https://127.0.0.1:{}", collector.port))
            .set("metrics.otlp.ca_file", authority.ca_file().display().to_string())
            .set("metrics.otlp.cert_file", own.cert.display().to_string())
            .set("metrics.otlp.key_file", own.key.display().to_string())
            .set("metrics.otlp.headers", vec!["authorization: Bearer s3cret", "X-Scope-OrgID: shop"])
    };
    let kingpost = secure(&collector).start().await;
    sent(&collector, "shop", &kingpost.endpoint().logs, |_| true).await;
    for headers in &collector.sent().headers {
        let of = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!((of("authorization"), of("x-scope-orgid")), (Some("Bearer s3cret"), Some("shop")));
    }
    for nobody in [&other, &collector] {
        if std::ptr::eq(nobody, &collector) {
            // No server listens at the third's port for a while.
            collector.end().await;
        }
        let kingpost = secure(nobody).start().await;
        let log = || std::fs::read_to_string(kingpost.process().log()).unwrap();
        wait_until("a line in the log", SOON, &kingpost.endpoint().logs, async || {
            log().contains("does not take metrics").then_some(())
        })
        .await;
        simple(&kingpost.connect().await, "SELECT 1").await;
        kingpost.process().signal(libc::SIGTERM);
        assert!(kingpost.process().wait_exit(SOON).await.success());
        let log = log();
        assert_eq!(log.matches("does not take metrics").count(), 1, "{log}");
        assert!(!log.contains("s3cret"), "{log}");
    }
    assert!(other.sent().headers.is_empty(), "a request was sent to a stranger");
}

/// A collector that starts later gets the counts from before.
#[tokio::test]
async fn a_collector_may_come_later() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let early = Collector::start().await;
    early.end().await;
    let kingpost = proxy(&shared.cluster, &early, "shop").start().await;
    for _ in 0..10 {
        simple(&kingpost.connect().await, "/* kingpost.route=primary */ SELECT 1").await;
    }
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap();
    let logs = &kingpost.endpoint().logs;
    wait_until("a line in the log", SOON, logs, async || log().contains("does not take metrics").then_some(())).await;
    let late = Collector::start_on(early.port, None).await;
    sent(&late, "shop", logs, |of| value(of, "kingpost_statements_primary_total") >= 10.0).await;
    wait_until("another line", SOON, logs, async || log().contains("takes metrics again").then_some(())).await;
}
