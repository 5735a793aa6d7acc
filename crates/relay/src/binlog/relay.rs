//! A running relay of a binary log: its threads and tasks, started and ended together.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use ::binlog::Dialect;
use tokio::runtime::Handle;
use tracing::{info, warn};

use super::log::Log;
use super::settings::Settings;
use super::shared::Shared;
use super::status::BinlogStatus;
use super::{downstream, upstream};
use crate::config::RelayConfig;
use crate::error::StartError;
use crate::log::{Directory, FlushTimes};
use crate::promise::{Promise, PromiseFile};
use crate::relay::bind;
use crate::running::{Receiving, listen};
use crate::upstream::Control;

/// Interval of the removal of files and of the checks of the source's variables.
const MAINTENANCE: Duration = Duration::from_secs(5);

/// A running relay of the binary log of MariaDB or MySQL.
#[derive(Debug)]
pub struct BinlogRelay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    receiving: Receiving,
}

impl BinlogRelay {
    /// Opens the log, listens, and starts to follow the source. Replicas are tasks of `runtime`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &RelayConfig, runtime: &Handle) -> Result<BinlogRelay, StartError> {
        let dialect = dialect_of(config).map_err(StartError::Config)?;
        let settings = Settings::new(config, dialect)?;
        let listeners = bind(&config.listen)?;
        let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let failed = |source| StartError::Log { dir: config.dir.clone(), source };
        // The directory's lock prevents two relays in one directory.
        let directory = Directory::open(&config.dir).map_err(failed)?;
        let promise = PromiseFile::open(directory.path())?;
        if !promise.exists() {
            promise.make(Promise::default())?;
        }
        crate::reset::resume(&directory, &promise)?;
        let opened = Log::open(&directory, dialect);
        let (writer, log) =
            opened.map_err(|error| StartError::Binlog { dir: config.dir.clone(), text: error.to_string() })?;
        let control = Control::new(&config.upstream, &promise.now());
        let shared = Arc::new(Shared::new(settings, control, promise, log));
        let receiver = Arc::clone(&shared);
        let receiving = Receiving::start("binlog-receive", move || upstream::run(&receiver, writer))?;
        let relay = BinlogRelay { shared, addresses, receiving };
        let _context = runtime.enter();
        for listener in listeners {
            runtime.spawn(downstream::serve(listen(listener)?, Arc::clone(&relay.shared)));
        }
        runtime.spawn(maintain(Arc::clone(&relay.shared)));
        Ok(relay)
    }

    /// Returns the addresses for replicas, with port 0 resolved.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the status of the relay.
    #[must_use]
    pub fn status(&self) -> BinlogStatus {
        BinlogStatus::of(&self.shared)
    }

    /// Passes the durations of flushes to `look`.
    pub fn flush_times<T>(&self, look: impl FnOnce(&FlushTimes) -> T) -> T {
        look(&self.shared.log.metrics.flushes)
    }

    /// Checks that the relay works. An unreachable source is no error.
    ///
    /// # Errors
    /// The log has failed, or the receiving thread has ended.
    pub fn alive(&self) -> Result<(), String> {
        if let Some(failure) = self.shared.log.failure() {
            return Err(failure.to_string());
        }
        self.receiving.alive()
    }

    /// Applies all settings but `listen` and `dir`, which need a restart.
    ///
    /// # Errors
    /// The new configuration cannot be used; the old one stays.
    pub fn reload(&self, config: &RelayConfig) -> Result<(), StartError> {
        let dialect = self.shared.log.dialect;
        if config.engine.dialect() != Some(dialect) {
            return Err(StartError::Config("relay.engine is another one, which takes a restart".into()));
        }
        let settings = Settings::new(config, dialect)?;
        *self.shared.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.shared.control.configure(&config.upstream, &self.shared.promise.now());
        Ok(())
    }

    /// Stops the relay; received bytes are durable afterwards. Blocks for some seconds at most.
    pub fn shutdown(&self) {
        self.shared.control.stop();
        self.shared.stopping.send_replace(true);
        self.receiving.join();
    }
}

impl Drop for BinlogRelay {
    fn drop(&mut self) {
        self.shared.control.stop();
        self.shared.stopping.send_replace(true);
    }
}

/// Queries the configured source for reasons why a commit there may not be durable on the relay; empty if there are none. Blocking.
///
/// # Errors
/// The reason why it cannot be queried, in words.
pub fn source_concerns(config: &RelayConfig) -> Result<Vec<String>, String> {
    upstream::look(dialect_of(config)?, &config.upstream)
        .map(|looked| looked.concerns)
        .map_err(|failed| failed.to_string())
}

fn dialect_of(config: &RelayConfig) -> Result<Dialect, String> {
    config.engine.dialect().ok_or_else(|| "relay.engine is not that of a binary log".into())
}

/// Returns the `server_id` of the source that a relay followed last, from the directory of its log; None if it has followed no source.
#[must_use]
pub fn last_source(dir: &Path) -> Option<u32> {
    super::log::last_source(dir)
}

/// Removes unneeded files, and checks that the source's commits wait.
async fn maintain(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(MAINTENANCE) => {}
            () = shared.stopped() => return,
        }
        let shared = Arc::clone(&shared);
        let done = tokio::task::spawn_blocking(move || {
            let settings = shared.settings();
            match shared.log.retain(shared.needed(), settings.keep_bytes, settings.max_bytes) {
                Ok(removed) if removed.is_empty() => {}
                Ok(removed) => info!(files = removed.len(), "removed old binary logs"),
                Err(error) => warn!(%error, "cannot remove old binary logs"),
            }
            // An unreachable source is reported elsewhere.
            if let Some((config, _)) = shared.control.wanted().filter(|_| shared.upstream().state == "streaming") {
                // Read before the source is queried: meanwhile it may write more, but never less.
                let (log_file, history) = (shared.log.durable().file, shared.log.history());
                match upstream::look(shared.log.dialect, &config) {
                    Ok(looked) => {
                        shared.set_concerns(looked.concerns);
                        let is_same =
                            log_file.is_some_and(|(log_file, _)| log_file.source == looked.settings.server_id);
                        if let Err(error) = looked.settings.still_has(&history)
                            && is_same
                        {
                            // The source would continue the stream without a sign. A new connection begins with this check.
                            warn!(%error, "connecting to the source again");
                            shared.control.interrupt(Instant::now());
                        }
                        // A source that waits from now on waits only for replicas that registered as semi-synchronous: commits would wait for ever.
                        let semisync = looked.settings.semisync;
                        if semisync != shared.semisync.load(Ordering::Relaxed) {
                            info!(semisync, "the source's semi-synchronous replication was switched: connecting again");
                            shared.control.interrupt(Instant::now());
                        }
                    }
                    Err(error) => tracing::debug!(%error, "the source's variables were not read"),
                }
            }
        });
        if done.await.is_err() {
            warn!("maintenance panicked");
        }
    }
}
