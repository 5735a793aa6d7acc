//! The endpoints of a process for its operators: metrics and health over HTTP, the web console, and metrics sent to a collector.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use config::Config;
use metrics::{Admin, Pushing, Source};
use process::Failure;
use topology::Topology;

use crate::console::{Scene, Serving};

/// The endpoints that are configured; they end with this value.
pub(crate) struct Endpoints {
    /// `metrics.listen`.
    pub(crate) admin: Option<Admin>,
    /// `console.listen`.
    pub(crate) console: Option<Serving>,
    /// `metrics.otlp`.
    pushing: Option<Pushing>,
}

impl Endpoints {
    /// Starts the endpoints. `metrics` and `console` are the sockets that another process handed over for them.
    ///
    /// # Errors
    /// An address cannot be bound, or the collector's settings cannot be used. None of the endpoints is left.
    pub(crate) async fn start<S: Source>(
        config: &Config,
        (metrics, console): (Option<OwnedFd>, Option<OwnedFd>),
        source: Arc<S>,
        scene: Scene,
        topology: Option<&Topology>,
    ) -> Result<Endpoints, Failure> {
        let admin = match config.metrics.listen.as_str() {
            "" => None,
            address => Some(Admin::start(address, metrics, Arc::clone(&source)).await?),
        };
        let console = scene.start(&config.console, console, topology).await?;
        let pushing = Pushing::start(&config.metrics.otlp, source)?;
        Ok(Endpoints { admin, console, pushing })
    }

    /// Returns the address of the metrics for the log; empty without one.
    pub(crate) fn metrics(&self) -> String {
        self.admin.as_ref().map(|admin| admin.address().to_string()).unwrap_or_default()
    }

    /// Returns the address of the console for the log; empty without one.
    pub(crate) fn console(&self) -> String {
        self.console.as_ref().map(|serving| serving.console.address().to_string()).unwrap_or_default()
    }

    /// Closes what listens. Metrics are still sent.
    pub(crate) fn close(&mut self) {
        (self.admin, self.console) = (None, None);
    }

    /// Sends the last metrics to the collector, if there is one, with a time limit.
    pub(crate) async fn flush(&self) {
        if let Some(pushing) = &self.pushing {
            pushing.flush().await;
        }
    }
}
