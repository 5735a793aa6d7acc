//! Ctrl-C: once means to stop cleanly, twice at once.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::process::quit_server;
use crate::error::Failure;
use crate::out;
use crate::serve::StopSignals;

/// Told when the user wants an end.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    wanted: watch::Receiver<bool>,
    data: Arc<Mutex<Vec<PathBuf>>>,
}

impl Stop {
    /// Starts listening. From here on a signal does not end the process by itself.
    pub(super) fn listen() -> Result<Stop, Failure> {
        let mut signals = StopSignals::new()?;
        let (sender, wanted) = watch::channel(false);
        let data: Arc<Mutex<Vec<PathBuf>>> = Arc::default();
        let stop = Stop { wanted, data: Arc::clone(&data) };
        tokio::spawn(async move {
            signals.next().await;
            sender.send_replace(true);
            signals.next().await;
            out::note("kingpost: stopping at once");
            for data in data.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                quit_server(data);
            }
            std::process::exit(130);
        });
        Ok(stop)
    }

    /// Makes a second signal end the server of a data directory.
    pub(super) fn covers(&self, data: PathBuf) {
        let mut all = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&data) {
            all.push(data);
        }
    }

    /// Returns once an end is wanted.
    pub(super) async fn wanted(&self) {
        let mut wanted = self.wanted.clone();
        if wanted.wait_for(|wanted| *wanted).await.is_err() {
            // The sender lives as long as the process; without it nobody can want anything.
            std::future::pending::<()>().await;
        }
    }

    /// Returns once an end is wanted, with what to report if that comes before everything runs.
    pub(super) async fn failure(&self) -> Failure {
        self.wanted().await;
        Failure::runtime("interrupted while starting")
    }
}
