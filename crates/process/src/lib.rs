//! The process itself, below every part that it runs: failures and exit codes, output, logging, signals, listening, tokens, the service manager,
//! and a small HTTP client.
//!
//! The crate knows no part of Kingpost and no configuration file.

pub mod address;
mod error;
pub mod http;
mod listen;
pub mod logging;
pub mod postgresql;
mod runtime;
pub mod server;
pub mod settings_file;
mod signals;
pub mod systemd;
pub mod terminal;
pub mod token;

pub use error::{EXIT_CODES, Exit, Failure};
pub use listen::listen;
pub use logging::{LogConfig, LogFlags, LogFormat};
pub use runtime::{control_runtime, raise_descriptor_limit};
pub use signals::{INTERRUPTED, StopSignals, listen_for};
