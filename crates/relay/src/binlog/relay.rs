//! A running relay of MariaDB: its threads and tasks, started and ended together.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

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

/// Time between two looks at what can be removed, and at the source's variables.
const MAINTENANCE: Duration = Duration::from_secs(5);

/// A running relay of MariaDB.
#[derive(Debug)]
pub struct BinlogRelay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    receiving: Receiving,
}

impl BinlogRelay {
    /// Opens the log, listens, and begins to follow the source. Replicas are tasks of `runtime`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: &RelayConfig, runtime: &Handle) -> Result<BinlogRelay, StartError> {
        let settings = Settings::new(config)?;
        let listeners = bind(&config.listen)?;
        let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let failed = |source| StartError::Log { dir: config.dir.clone(), source };
        // Its lock is what keeps two relays out of one directory.
        let directory = Directory::open(&config.dir).map_err(failed)?;
        let promise = PromiseFile::open(directory.path())?;
        if !promise.exists() {
            promise.make(Promise::default())?;
        }
        crate::reset::resume(&directory, &promise)?;
        let opened = Log::open(&directory);
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

    /// Where replicas connect; port 0 resolved.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> BinlogStatus {
        BinlogStatus::of(&self.shared)
    }

    /// How long flushes took.
    pub fn flush_times<T>(&self, look: impl FnOnce(&FlushTimes) -> T) -> T {
        look(&self.shared.log.metrics.flushes)
    }

    /// Whether it does its work; if not, why. A source that is away is no reason.
    ///
    /// # Errors
    /// The log has failed, or the receiving thread has ended.
    pub fn alive(&self) -> Result<(), String> {
        if let Some(failure) = self.shared.log.failure() {
            return Err(failure.to_string());
        }
        self.receiving.alive()
    }

    /// Takes over everything but `listen` and `dir`, which need a restart.
    ///
    /// # Errors
    /// The new configuration cannot be used; the old one stays.
    pub fn reload(&self, config: &RelayConfig) -> Result<(), StartError> {
        let settings = Settings::new(config)?;
        *self.shared.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.shared.control.configure(&config.upstream, &self.shared.promise.now());
        Ok(())
    }

    /// Ends everything; what was received is durable afterwards. Blocks for some seconds at most.
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

/// Asks the source that is configured why a commit there does not mean that the relay has it; none: it does. Blocking.
///
/// # Errors
/// Why it cannot be asked, in words.
pub fn source_concerns(config: &RelayConfig) -> Result<Vec<String>, String> {
    upstream::look(&config.upstream).map(|looked| looked.concerns).map_err(|failed| failed.to_string())
}

/// `server_id` of the source that a relay followed last, by the directory of its log; none if it has followed nobody.
#[must_use]
pub fn last_source(dir: &Path) -> Option<u32> {
    super::log::last_source(dir)
}

/// Removes files that nobody needs, and looks whether the source's commits wait.
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
            // A source that is away is said elsewhere.
            if let Some((config, _)) = shared.control.wanted().filter(|_| shared.upstream().state == "streaming") {
                // Before the source is asked: it may write more meanwhile, and not less.
                let (held, history) = (shared.log.durable().file, shared.log.history());
                match upstream::look(&config) {
                    Ok(looked) => {
                        shared.set_concerns(looked.concerns);
                        let is_same = held.is_some_and(|(held, _)| held.source == looked.settings.server_id);
                        if let Err(error) = looked.settings.still_has(&history)
                            && is_same
                        {
                            // A source goes on with the stream as if nothing had happened. A new connection begins with the question.
                            warn!(%error, "connecting to the source again");
                            shared.control.interrupt(Instant::now());
                        }
                        // A source that waits from now on waits for those who asked as semi-synchronous replicas: commits would wait for ever.
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
