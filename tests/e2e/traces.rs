//! Traces of statements sent to a collector: OTLP over gRPC.

use std::collections::HashMap;

use kingpost_tests::certs::Authority;
use kingpost_tests::raw::{Raw, bind, execute, parse, sync};
use kingpost_tests::{Cluster, Kingpost, SOON, wait_until};
use opentelemetry_proto::tonic::trace::v1::Span;

use crate::collector::{self, Collector};
use crate::common::{only_kingpost, shared, simple};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// Returns the spans of statements with this text, once there are this many.
async fn spans_of(collector: &Collector, text: &str, number: usize, kingpost: &Kingpost) -> Vec<Span> {
    wait_until(&format!("{number} spans of {text:?}"), SOON, &kingpost.endpoint().logs, async || {
        let sent = collector.sent();
        let with = |span: &&Span| attribute(span, "db.query.text") == text;
        let found: Vec<Span> = sent.spans.iter().filter(with).cloned().collect();
        (found.len() >= number).then_some(found)
    })
    .await
}

fn attribute(span: &Span, key: &str) -> String {
    collector::attribute(&span.attributes, key)
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
    // In each protocol, in a transaction, and one that fails; unsampled statements are not sent.
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
    let spans = spans_of(&collector, "SELECT ?, generate_series(?, …)", 1, &kingpost).await;
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
    assert_eq!(spans_of(&collector, "SELECT ? AS unnamed", 1, &kingpost).await.len(), 1);
    let inserted = &spans_of(&collector, "INSERT INTO traces_t VALUES (?), (?)", 1, &kingpost).await[0];
    assert_eq!(
        (attribute(inserted, "kingpost.role"), attribute(inserted, "db.response.returned_rows")),
        ("primary".into(), "2".into())
    );
    let failed = &spans_of(&collector, "SELECT ? / ? AS failing", 1, &kingpost).await[0];
    assert_eq!(attribute(failed, "db.response.status_code"), "22012");
    assert_eq!(failed.status.as_ref().map(|status| status.code), Some(2));
    let all = collector.sent().spans.clone();
    assert_eq!(all.len(), 4, "{all:#?}");
    let ids: HashMap<_, _> = all.iter().map(|span| (&span.span_id, span)).collect();
    assert_eq!(ids.len(), 4);
    assert!(!format!("{all:?}").contains("secret"));
    assert!(collector.sent().services.iter().all(|name| name == "shop"));
    let metrics = kingpost.metrics().await;
    assert_eq!(metrics.sum("kingpost_spans_total", &[]), 4.0);
    assert_eq!(metrics.sum("kingpost_spans_dropped_total", &[]), 0.0);
}

/// By random sampling: all of them here. The last spans are sent before the process ends; without a collector nothing is delayed, and lost spans are
/// counted.
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
    let spans = spans_of(&collector, "SELECT $1::int8 AS by_chance", 30, &kingpost).await;
    let traces: HashMap<_, _> = spans.iter().map(|span| (&span.trace_id, span)).collect();
    // Each is a trace of its own.
    assert_eq!(traces.len(), spans.len());
    assert!(spans.iter().all(|span| span.parent_span_id.iter().all(|&byte| byte == 0)), "{spans:?}");

    // A port without a server.
    let nobody = Collector::start().await;
    nobody.end().await;
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

/// Over TLS, with a token: to a collector of the configured authority, and to no other one.
#[tokio::test]
async fn spans_go_to_the_right_collector_only() {
    let (shared, _logs) = shared().await;
    if only_kingpost() {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let own = authority.issue("kingpost", &[]);
    let pair = authority.issue("collector", &["127.0.0.1"]);
    let collector = Collector::start_secure(&pair, &authority).await;
    // Its certificate is another authority's.
    let other = Collector::start_secure(&stranger.issue("collector", &["127.0.0.1"]), &authority).await;
    let traced = async |collector: &Collector| {
        let kingpost = Kingpost::of(&shared.cluster)
            .set("proxy.tracing.endpoint", format!("https://127.0.0.1:{}", collector.port))
            .set("proxy.tracing.ca_file", authority.ca_file().display().to_string())
            .set("proxy.tracing.cert_file", own.cert.display().to_string())
            .set("proxy.tracing.key_file", own.key.display().to_string())
            .set("proxy.tracing.headers", vec!["authorization: Bearer s3cret"])
            .set("proxy.tracing.ratio", 1.0)
            .start()
            .await;
        simple(&kingpost.connect().await, "SELECT 'secret' AS secure").await;
        kingpost
    };
    let kingpost = traced(&collector).await;
    spans_of(&collector, "SELECT ? AS secure", 1, &kingpost).await;
    for headers in &collector.sent().headers {
        assert_eq!(headers.get("authorization").map(|value| value.as_bytes()), Some(&b"Bearer s3cret"[..]));
    }
    let kingpost = traced(&other).await;
    wait_until("spans to be lost", SOON, &kingpost.endpoint().logs, async || {
        (kingpost.metrics().await.sum("kingpost_spans_failed_total", &[]) >= 1.0).then_some(())
    })
    .await;
    assert!(other.sent().headers.is_empty(), "a request was sent to a stranger");
    let log = std::fs::read_to_string(kingpost.process().log()).unwrap();
    assert!(log.contains("does not take traces") && !log.contains("s3cret"), "{log}");
}
