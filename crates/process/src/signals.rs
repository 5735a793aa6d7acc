//! Signals that end or reload a process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Failure;

/// Exit code after a second signal, as a shell reports a death by SIGINT.
pub const INTERRUPTED: i32 = 130;

/// The signals SIGINT and SIGTERM.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Starts to listen for both signals.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn new() -> Result<StopSignals, Failure> {
        Ok(StopSignals {
            interrupt: listen_for(SignalKind::interrupt())?,
            terminate: listen_for(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Starts to listen for a signal.
///
/// # Errors
/// The system refuses a handler.
pub fn listen_for(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::runtime(format!("cannot listen for signals: {error}")))
}
