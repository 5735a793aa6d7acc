//! What is sent to an OpenTelemetry collector, by OTLP over gRPC: spans of statements, and the metrics of every process.
//!
//! ```text
//!  workers ── spans ──▶ traces::Traces ───┐
//!                                         ├── collector::Collector: address, TLS, headers ──▶ collector
//!  Source::metrics() ─▶ metrics::Pushing ─┘
//! ```

pub(crate) mod collector;
pub(crate) mod metrics;
pub(crate) mod traces;

use std::time::Duration;

/// Longest wait for the collector's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for it when the process ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// Of the process, whatever it is called: on this machine, or in this container, and no other.
fn instance_id(host: &str) -> String {
    format!("{host}:{}", std::process::id())
}

/// This machine's name; in a container that of the container.
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
