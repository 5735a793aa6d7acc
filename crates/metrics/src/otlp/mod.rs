//! Data for OpenTelemetry collectors, by OTLP over gRPC: spans of statements, and the metrics of every process.
//!
//! ```text
//!  workers ── spans ──▶ traces::Traces ───┐
//!                                         ├── collector::Collector: address, TLS, headers ──▶ collector
//!  Source::metrics() ─▶ metrics::Pushing ─┘
//! ```

pub(crate) mod metrics;
pub(crate) mod traces;

use std::time::Duration;

/// Longest wait for the collector at the end of the process.
const FAREWELL: Duration = Duration::from_secs(2);

/// Makes an id that is unique among the processes of this machine, or of this container.
fn instance_id(host: &str) -> String {
    format!("{host}:{}", std::process::id())
}

/// Returns this machine's name; in a container that of the container.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Describes an error with its causes: tonic's own text is "transport error".
fn explained(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
