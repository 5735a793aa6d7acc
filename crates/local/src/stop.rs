//! Ctrl-C: once for a clean stop, twice for an immediate one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::children::quit_server;
use process::{Failure, StopSignals, terminal};

/// A receiver of the user's wish to stop.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    wanted: watch::Receiver<bool>,
    data: Arc<Mutex<Vec<PathBuf>>>,
}

impl Stop {
    /// Starts listening. From then on a signal does not end the process by itself.
    pub(super) fn listen() -> Result<Stop, Failure> {
        let mut signals = StopSignals::new()?;
        let (sender, wanted) = watch::channel(false);
        let data: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let stop = Stop { wanted, data: Arc::clone(&data) };
        tokio::spawn(async move {
            signals.next().await;
            sender.send_replace(true);
            signals.next().await;
            terminal::note("kingpost: stopping at once");
            for data in data.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                quit_server(data);
            }
            std::process::exit(130);
        });
        Ok(stop)
    }

    /// Adds a data directory whose server a second signal ends.
    pub(super) fn covers(&self, data: PathBuf) {
        let mut all = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&data) {
            all.push(data);
        }
    }

    /// Returns once a stop is wanted.
    pub(super) async fn wanted(&self) {
        let mut wanted = self.wanted.clone();
        if wanted.wait_for(|wanted| *wanted).await.is_err() {
            // The sender lives as long as the process; without it no signal can come.
            std::future::pending::<()>().await;
        }
    }

    /// Returns once a stop is wanted, with the failure to report while not everything runs.
    pub(super) async fn failure(&self) -> Failure {
        self.wanted().await;
        Failure::runtime("interrupted while starting")
    }
}
