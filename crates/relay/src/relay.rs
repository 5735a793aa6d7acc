//! A running relay: its threads and tasks, started and ended together.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::config::{AuthMethod, RelayConfig};
use crate::downstream;
use crate::error::StartError;
use crate::log::{self, Directory, Log, LogError, LogFailure, LogMetrics, LogOptions, Writer};
use crate::promise::PromiseFile;
use crate::reset;
use crate::running::{Receiving, listen};
use crate::settings::Settings;
use crate::shared::Shared;
use crate::slots::{self, SlotError, Slots};
use crate::status::Status;
use crate::surroundings::Surroundings;
use crate::upstream::{self, Control, SPARES};

/// Time between two looks at what can be removed.
const RETENTION: Duration = Duration::from_secs(5);
/// How often other servers are asked for slots that were left there.
const CLEAN_UP: Duration = Duration::from_secs(10);
/// Longest time for downstream tasks to say good-bye.
const FAREWELL: Duration = Duration::from_secs(2);

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    receiving: Receiving,
}

impl Relay {
    /// Opens the log, if the directory has one, listens, and begins to follow the upstream. Downstreams are tasks of
    /// `runtime`.
    ///
    /// A relay whose directory is empty acknowledges nothing until it has learnt from its `surroundings` what it may have promised before, or
    /// that it is new. `is_new`: an operator says that those who answer are all there is to ask.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        config: &RelayConfig,
        surroundings: Surroundings,
        is_new: bool,
        runtime: &Handle,
    ) -> Result<Relay, StartError> {
        let settings = Settings::new(config)?;
        let listeners = bind(&config.listen)?;
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let failed = |source| StartError::Log { dir: config.dir.clone(), source };
        // Its lock is what keeps two relays out of one directory.
        let directory = Directory::open(&config.dir).map_err(failed)?;
        let promise = promised(&directory)?;
        reset::resume(&directory, &promise)?;
        let opened = open(&directory).map_err(failed)?;
        let slots = Slots::open(directory.path())?;
        let control = Control::new(&config.upstream, &promise.now());
        let shared = Arc::new(Shared::new(directory, settings, control, promise, slots, surroundings, is_new));
        let writer = opened.map(|(writer, log)| {
            shared.set_log(log);
            writer
        });
        let receiver = Arc::clone(&shared);
        let receiving = Receiving::start("relay-receive", move || upstream::run(&receiver, writer))?;
        let relay = Relay { shared, addresses, receiving };
        let _context = runtime.enter();
        for listener in listeners {
            runtime.spawn(downstream::serve(listen(listener)?, Arc::clone(&relay.shared)));
        }
        runtime.spawn(maintain(Arc::clone(&relay.shared)));
        runtime.spawn(clean_up(Arc::clone(&relay.shared)));
        Ok(relay)
    }

    /// Where downstreams connect; port 0 resolved.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// The log's own figures, once it is open.
    pub fn log_metrics<T>(&self, look: impl FnOnce(&LogMetrics) -> T) -> Option<T> {
        self.shared.log().map(|log| look(log.metrics()))
    }

    /// Why the log takes nothing more: the process should end, and be started again by somebody who has looked.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailure> {
        self.shared.log().and_then(|log| log.failure().cloned())
    }

    /// Whether it does its work; if not, why. An upstream that is away is no reason.
    ///
    /// # Errors
    /// The log has failed, or the receiving thread has ended.
    pub fn alive(&self) -> Result<(), String> {
        if let Some(failure) = self.failure() {
            return Err(failure.to_string());
        }
        self.receiving.alive()
    }

    /// Follows another upstream from now on, from where the log is. It must have that position in its history.
    pub fn follow(&self, address: &str) {
        if self.shared.control.address() != address {
            info!(upstream = address, "following another upstream");
        }
        self.shared.control.follow(|config| config.address = address.into());
    }

    /// Has exactly these slots, apart from those in use: WAL is kept for each from where the log is now, or from where its
    /// user was.
    ///
    /// # Errors
    /// A name is no slot's, or the file beside the log cannot be written.
    pub fn set_slots(&self, names: &[String]) -> Result<(), StartError> {
        let failed = |error: SlotError| StartError::Config(error.text);
        let slots = &self.shared.slots;
        let old = slots.slots();
        for slot in old.iter().filter(|slot| !slot.active && !names.contains(&slot.name)) {
            slots.drop_slot(&slot.name, 0).map_err(failed)?;
        }
        let log = self.shared.log();
        let now = log.map(|log| log.tail()).map(|tail| (tail.flushed.get(), tail.timeline.0));
        for name in names.iter().filter(|name| !old.iter().any(|slot| slot.name == **name)) {
            slots.create(name, false, now, 0).map_err(failed)?;
        }
        Ok(())
    }

    /// Takes over everything but `listen` and `dir`, which need a restart.
    ///
    /// # Errors
    /// The new configuration cannot be used; the old one stays.
    pub fn reload(&self, config: &RelayConfig, surroundings: Surroundings) -> Result<(), StartError> {
        if config.auth == AuthMethod::Trust
            && let Some(address) = self.addresses.iter().find(|address| !address.ip().is_loopback())
        {
            // `listen` changes at the next start only, whatever the file says of it now.
            return Err(StartError::Config(format!(
                "relay.auth is \"trust\" and the relay listens on {address} until it is started again"
            )));
        }
        let settings = Settings::new(config)?;
        *self.shared.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.shared.surround(surroundings);
        self.shared.control.configure(&config.upstream, &self.shared.promise.now());
        Ok(())
    }

    /// Ends everything; what was received is durable afterwards. Blocks for some seconds at most.
    pub fn shutdown(&self) {
        self.shared.control.stop();
        self.shared.stopping.send_replace(true);
        self.receiving.join();
        let end = std::time::Instant::now() + FAREWELL;
        while self.shared.places.taken() > 0 && std::time::Instant::now() < end {
            // Nothing tells when the last task has gone, and nothing depends on it.
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Err(error) = self.shared.slots.save() {
            warn!(%error, "positions of slots were not saved");
        }
        self.shared.leave_directory();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.control.stop();
        self.shared.stopping.send_replace(true);
    }
}

/// What the directory says was promised. Takes over what an earlier version kept in two files.
pub(crate) fn promised(directory: &Directory) -> Result<PromiseFile, StartError> {
    let dir = directory.path();
    let file = PromiseFile::open(dir)?;
    // In this order: until the earlier term is gone, the earlier files are the truth, also for an earlier version of the program.
    if let Some(earlier) = slots::earlier_promise(dir)? {
        file.make(earlier)?;
        log::take_over(dir).map_err(|source| StartError::Log { dir: dir.into(), source })?;
        info!(dir = %dir.display(), term = file.term(), "took over what an earlier version had promised");
    }
    Ok(file)
}

/// None: the directory holds nothing yet, and where to begin must come from the upstream.
fn open(directory: &Directory) -> Result<Option<(Writer, Arc<Log>)>, LogError> {
    let Some(identity) = log::identify(directory.path())? else { return Ok(None) };
    match Log::open(LogOptions { directory: directory.clone(), identity, start: None, spares: SPARES }) {
        Ok(opened) => Ok(Some(opened)),
        Err(LogError::Empty { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) fn bind(listen: &[String]) -> Result<Vec<std::net::TcpListener>, StartError> {
    listen
        .iter()
        .map(|address| {
            let bind = || -> std::io::Result<std::net::TcpListener> {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            };
            bind().map_err(|source| StartError::Listen { address: address.clone(), source })
        })
        .collect()
}

/// Removes WAL that nobody needs, and saves what slots need.
async fn maintain(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RETENTION) => {}
            () = shared.stopped() => return,
        }
        let shared = Arc::clone(&shared);
        let done = tokio::task::spawn_blocking(move || {
            if let Err(error) = shared.slots.save() {
                warn!(%error, "positions of slots were not saved");
            }
            let Some(log) = shared.log() else { return };
            let short = log.is_short_of_room();
            match shared.retain(&log, short) {
                Ok(removed) if removed.segments.is_empty() => {}
                Ok(removed) if short => {
                    let segments = removed.segments.len();
                    warn!(
                        segments,
                        "the disk is full: gave up old segments that nobody needs, whatever keep_bytes says"
                    );
                }
                Ok(removed) => info!(segments = removed.segments.len(), "removed old segments"),
                Err(error) => warn!(%error, "cannot remove old segments"),
            }
            if short || !log.has_reserve() {
                log.prepare();
            }
        });
        if done.await.is_err() {
            warn!("looking for segments to remove panicked");
        }
    }
}

/// Drops the slots that the relay has left at other servers. Apart from [`maintain`], for a server may take seconds not to answer.
async fn clean_up(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(CLEAN_UP) => {}
            () = shared.stopped() => return,
        }
        let shared = Arc::clone(&shared);
        if tokio::task::spawn_blocking(move || upstream::drop_left_slots(&shared)).await.is_err() {
            warn!("dropping slots that were left behind panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// As an earlier version leaves it: the term beside the log, the rest with the slots.
    fn earlier(dir: &std::path::Path, term: u64, timeline: u32) {
        let lines = format!("kingpost-log 1\nsystem-id 7\nsegment-size 16777216\nterm {term}\n");
        let state = format!("{lines}crc32c {:08x}\n", crc32c::crc32c(lines.as_bytes()));
        std::fs::write(dir.join(log::STATE_FILE), state).unwrap();
        let json = format!(
            r#"{{"format": 2, "greeting": null, "slots": {{}}, "fence": {{"timeline": {timeline}, "chosen": [{term}, "n1"]}}}}"#
        );
        std::fs::write(dir.join("kingpost-relay.json"), json).unwrap();
    }

    #[test]
    fn what_an_earlier_version_promised_holds() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        earlier(path, 3, 2);
        let directory = Directory::open(path).unwrap();
        let promise = promised(&directory).unwrap().now();
        assert_eq!((promise.term(), promise.fenced_up_to()), (3, 2));
        assert!(matches!(promise.standing(2), Some((2, Some(choice))) if choice.node == "n1"));
        assert_eq!(log::identify(path).unwrap().map(|identity| identity.system_id), Some(7));
        // And is not taken over again.
        let file = promised(&directory).unwrap();
        file.change(|old| old.fence(4, 2, 2, watermark::Lsn(0))).unwrap();
        assert_eq!(promised(&directory).unwrap().term(), 4);
        // Killed between the two steps of taking over, and an earlier version went on: it is the one to believe.
        earlier(path, 9, 3);
        let promise = promised(&directory).unwrap().now();
        assert_eq!((promise.term(), promise.fenced_up_to()), (9, 3));
    }
}
