//! A running relay: its threads and tasks, started and ended together.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::{info, warn};

use crate::archiver::Archiving;
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

/// Time between two runs of retention.
const RETENTION: Duration = Duration::from_secs(5);
/// Time between two queries to other servers for slots left behind.
const CLEAN_UP: Duration = Duration::from_secs(10);
/// Longest time for downstream tasks to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    receiving: Receiving,
    archiving: Archiving,
}

impl Relay {
    /// Opens the log, if the directory has one, listens, and starts following the upstream. Downstreams are tasks of `runtime`.
    ///
    /// A relay with an empty directory acknowledges nothing until it has learnt from its `surroundings` its possible earlier promises, or that it is
    /// new. `is_new`: an operator says that nobody else remains to be asked.
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
        // Its lock keeps two relays out of one directory.
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
        let archiving = Archiving::start(&shared)?;
        let relay = Relay { shared, addresses, receiving, archiving };
        let _context = runtime.enter();
        for listener in listeners {
            runtime.spawn(downstream::serve(listen(listener)?, Arc::clone(&relay.shared)));
        }
        runtime.spawn(maintain(Arc::clone(&relay.shared)));
        runtime.spawn(clean_up(Arc::clone(&relay.shared)));
        Ok(relay)
    }

    /// Returns the addresses for downstreams, with port 0 resolved.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// Gives `look` the metrics of the log, once it is open.
    pub fn log_metrics<T>(&self, look: impl FnOnce(&LogMetrics) -> T) -> Option<T> {
        self.shared.log().map(|log| look(log.metrics()))
    }

    /// Returns the failure of the log, if any: the process should end, and an operator should examine it before the next start.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailure> {
        self.shared.log().and_then(|log| log.failure().cloned())
    }

    /// Returns Ok if the relay works; the reason if not. A lost upstream is not a reason.
    ///
    /// # Errors
    /// The log has failed, or the receiving thread has ended.
    pub fn alive(&self) -> Result<(), String> {
        if let Some(failure) = self.failure() {
            return Err(failure.to_string());
        }
        self.receiving.alive()
    }

    /// Follows another upstream from now on, from the log's position, which must be in that upstream's history.
    pub fn follow(&self, address: &str) {
        if self.shared.control.address() != address {
            info!(upstream = address, "following another upstream");
        }
        self.shared.control.follow(|config| config.address = address.into());
    }

    /// Sets the slots to exactly these, apart from those in use. For each, WAL is kept from the current end of the log, or from the position of its
    /// user.
    ///
    /// # Errors
    /// A name is not a valid slot name, or the file beside the log cannot be written.
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

    /// Applies everything but `listen` and `dir`, which need a restart.
    ///
    /// # Errors
    /// The new configuration cannot be used; the old one stays.
    pub fn reload(&self, config: &RelayConfig, surroundings: Surroundings) -> Result<(), StartError> {
        if config.auth == AuthMethod::Trust
            && let Some(address) = self.addresses.iter().find(|address| !address.ip().is_loopback())
        {
            // `listen` changes only at the next start.
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

    /// Ends all threads and tasks; received WAL is durable afterwards. Blocks for some seconds at most.
    pub fn shutdown(&self) {
        self.shared.control.stop();
        self.shared.stopping.send_replace(true);
        self.receiving.join();
        self.archiving.finish();
        let end = std::time::Instant::now() + FAREWELL;
        while self.shared.places.taken() > 0 && std::time::Instant::now() < end {
            // Nothing signals the end of the last task, and nothing depends on it.
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

/// Reads the promise of the directory. Takes over the two files of an earlier version.
pub(crate) fn promised(directory: &Directory) -> Result<PromiseFile, StartError> {
    let dir = directory.path();
    let file = PromiseFile::open(dir)?;
    // In this order: until the earlier term is gone, the earlier files are authoritative, also for an earlier version of the program.
    if let Some(earlier) = slots::earlier_promise(dir)? {
        file.make(earlier)?;
        log::take_over(dir).map_err(|source| StartError::Log { dir: dir.into(), source })?;
        info!(dir = %dir.display(), term = file.term(), "took over what an earlier version had promised");
    }
    Ok(file)
}

/// Opens the log. None: the directory has no WAL yet, and the start position must come from the upstream.
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

/// Removes WAL that nobody needs, and saves the slots' positions.
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

/// Drops the slots that the relay has left at other servers. Separate from [`maintain`], as a server may take seconds not to answer.
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

    /// Writes the files of an earlier version: the term beside the log, the rest with the slots.
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
        // They are not taken over again.
        let file = promised(&directory).unwrap();
        file.change(|old| old.fence(4, 2, 2, watermark::Lsn(0))).unwrap();
        assert_eq!(promised(&directory).unwrap().term(), 4);
        // Killed between the two steps of taking over, after which an earlier version went on: its files are authoritative.
        earlier(path, 9, 3);
        let promise = promised(&directory).unwrap().now();
        assert_eq!((promise.term(), promise.fenced_up_to()), (9, 3));
    }
}
