//! Metrics of a process: the admin HTTP address, profiles, and data for OpenTelemetry collectors.

mod admin;
mod exposition;
mod otlp;
mod profile;
mod pulse;

pub use admin::{Admin, IDLE, Source};
pub use exposition::{Exposition, Type};
pub use otlp::metrics::Pushing;
pub use otlp::traces::Traces;
pub use pulse::Pulse;
