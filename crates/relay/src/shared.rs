//! State shared by the parts of a relay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use tokio::sync::watch;
use watermark::Lsn;

use crate::archiver::ArchiveMarks;
use crate::log::{Directory, Log, LogError, Removed, Retention};
use crate::memory::Recollection;
use crate::orders::Turns;
use crate::places::Places;
use crate::promise::PromiseFile;
use crate::settings::Settings;
use crate::slots::Slots;
use crate::surroundings::Surroundings;
use crate::upstream::Control;

pub(crate) use crate::slots::{Feedback, Greeting};

/// State that several threads of a relay use.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The locked directory, until the relay is stopped.
    directory: Mutex<Option<Directory>>,
    pub(crate) settings: RwLock<Arc<Settings>>,
    pub(crate) control: Control,
    pub(crate) promise: PromiseFile,
    surroundings: RwLock<Arc<Surroundings>>,
    /// True if an operator says that this relay runs for the first time.
    pub(crate) is_new: bool,
    /// Random number of this process: when other relays are queried, this one may be among them.
    pub(crate) instance: u64,
    /// Time since when all servers have been seen on the upstream's timeline or an older one, by a relay that has lost its memory.
    pub(crate) seen_unpromoted: Mutex<Option<Instant>>,
    pub(crate) slots: Slots,
    pub(crate) metrics: Metrics,
    pub(crate) archive: ArchiveMarks,
    pub(crate) places: Places,
    /// Held while an operator's order is carried out: orders run one at a time.
    pub(crate) orders: Turns,
    /// True once the relay is being stopped.
    pub(crate) stopping: watch::Sender<bool>,
    /// Random bytes that make unknown users look like known ones.
    pub(crate) secret: [u8; 32],
    /// Set once the log is open; on an empty directory that takes the upstream's consent.
    log: OnceLock<Arc<Log>>,
    upstream: Mutex<UpstreamState>,
    downstreams: Mutex<HashMap<u32, Arc<Progress>>>,
    next_downstream: AtomicU32,
}

/// State of the connection to the upstream.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamState {
    /// `streaming`, or the obstacle.
    pub(crate) state: String,
    /// True if an operator must act.
    pub(crate) alarm: bool,
    pub(crate) since: Instant,
}

/// Counters that only grow, unless stated otherwise.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Bytes of WAL from the upstream, including those that were held already.
    pub(crate) received_bytes: AtomicU64,
    /// Reports sent to the upstream.
    pub(crate) acknowledgements: AtomicU64,
    /// Number of times that the connection to the upstream ended.
    pub(crate) disconnects: AtomicU64,
    /// The furthest reported end of the upstream's log. A position.
    pub(crate) upstream_end: AtomicU64,
    /// Bytes of WAL sent to downstreams.
    pub(crate) sent_bytes: AtomicU64,
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Refused connections: too many, no login, or a wrong protocol.
    pub(crate) refused: AtomicU64,
}

/// One streaming downstream connection.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Unique in this process.
    pub(crate) id: u32,
    pub(crate) application_name: String,
    pub(crate) peer: String,
    pub(crate) slot: Option<String>,
    pub(crate) timeline: AtomicU32,
    /// Positions: sent; written, flushed and applied by its own report.
    pub(crate) sent: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) flushed: AtomicU64,
    pub(crate) applied: AtomicU64,
    /// Start position, used before its first report.
    pub(crate) started: u64,
    pub(crate) feedback: Mutex<Feedback>,
}

impl Progress {
    /// Returns the oldest position that must be kept for it.
    pub(crate) fn needs(&self) -> Lsn {
        Lsn(match self.flushed.load(Ordering::Relaxed) {
            0 => self.started,
            flushed => flushed,
        })
    }
}

impl Shared {
    pub(crate) fn new(
        directory: Directory,
        settings: Settings,
        control: Control,
        promise: PromiseFile,
        slots: Slots,
        surroundings: Surroundings,
        is_new: bool,
    ) -> Shared {
        let mut secret = [0; 32];
        // Without random bytes SCRAM itself will refuse; the mock's salt need not be good.
        let _ = getrandom::fill(&mut secret);
        let mut instance = [0; 8];
        let _ = getrandom::fill(&mut instance);
        Shared {
            directory: Mutex::new(Some(directory)),
            settings: RwLock::new(Arc::new(settings)),
            control,
            promise,
            surroundings: RwLock::new(Arc::new(surroundings)),
            is_new,
            instance: u64::from_ne_bytes(instance),
            seen_unpromoted: Mutex::new(None),
            slots,
            metrics: Metrics::default(),
            archive: ArchiveMarks::default(),
            places: Places::default(),
            orders: Turns::default(),
            stopping: watch::Sender::new(false),
            secret,
            log: OnceLock::new(),
            upstream: Mutex::new(UpstreamState {
                state: "not connected yet".into(),
                alarm: false,
                since: Instant::now(),
            }),
            downstreams: Mutex::default(),
            next_downstream: AtomicU32::new(1),
        }
    }

    /// Returns the log's directory; None once the relay was stopped.
    pub(crate) fn directory(&self) -> Option<Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Releases the directory: another relay may use it as soon as the log is closed, too.
    pub(crate) fn leave_directory(&self) {
        *self.directory.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn surroundings(&self) -> Arc<Surroundings> {
        Arc::clone(&self.surroundings.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn surround(&self, surroundings: Surroundings) {
        *self.surroundings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(surroundings);
    }

    /// Returns the promises that the relay remembers, for other relays.
    pub(crate) fn recollection(&self) -> Recollection {
        let log = self.log();
        Recollection {
            instance: self.instance,
            system: log.as_ref().map(|log| log.identity().system_id),
            timeline: log.as_ref().map_or(0, |log| log.tail().timeline.0),
            memory: self.promise.exists().then(|| self.promise.now().memory()),
        }
    }

    /// Returns once the relay is being stopped.
    pub(crate) async fn stopped(&self) {
        // The sender is a field of this struct, so it is not dropped.
        let _ = self.stopping.subscribe().wait_for(|stop| *stop).await;
    }

    /// Returns the log, once it is open.
    pub(crate) fn log(&self) -> Option<Arc<Log>> {
        self.log.get().cloned()
    }

    pub(crate) fn set_log(&self, log: Arc<Log>) {
        // No second log can exist: the directory is locked.
        let _ = self.log.set(log);
    }

    pub(crate) fn upstream_is(&self, state: &str, alarm: bool) {
        let mut upstream = self.upstream.lock().unwrap_or_else(PoisonError::into_inner);
        if upstream.state != state || upstream.alarm != alarm {
            *upstream = UpstreamState { state: state.into(), alarm, since: Instant::now() };
        }
    }

    /// Marks the start of another attempt. An alarm and its reason remain until the attempt has a result: an occasional observer must see them.
    pub(crate) fn upstream_is_tried(&self, state: &str) {
        if !self.upstream().alarm {
            self.upstream_is(state, false);
        }
    }

    pub(crate) fn upstream(&self) -> UpstreamState {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn new_id(&self) -> u32 {
        self.next_downstream.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn enter(&self, progress: Arc<Progress>) {
        self.downstreams.lock().unwrap_or_else(PoisonError::into_inner).insert(progress.id, progress);
    }

    pub(crate) fn leave(&self, id: u32) {
        self.downstreams.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Returns all streaming downstreams, by ID.
    pub(crate) fn downstreams(&self) -> Vec<Arc<Progress>> {
        let downstreams = self.downstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = downstreams.values().cloned().collect();
        all.sort_by_key(|progress| progress.id);
        all
    }

    /// Returns the oldest transactions that readers of standbys need, for the upstream: of all streaming downstreams, and of slots not in use.
    pub(crate) fn feedback(&self) -> Feedback {
        if !self.settings().hot_standby_feedback {
            return Feedback::default();
        }
        let each = self.downstreams();
        let each = each.iter().map(|progress| *progress.feedback.lock().unwrap_or_else(PoisonError::into_inner));
        let oldest = || self.log().map_or(Lsn(0), |log| log.start());
        each.fold(self.slots.feedback(oldest), Feedback::and)
    }

    /// Removes unneeded WAL. `all`: including the part kept only for downstreams that were disconnected for a moment (`keep_bytes`).
    pub(crate) fn retain(&self, log: &Log, all: bool) -> Result<Removed, LogError> {
        let settings = self.settings();
        log.retain(&Retention {
            downstream: self.needed(),
            archived: settings.archive.is_on().then(|| self.archive.confirmed(&settings.archive)),
            keep_bytes: if all { 0 } else { settings.keep_bytes },
            max_bytes: Some(settings.max_bytes),
        })
    }

    /// Returns the oldest position that a downstream or a slot needs; None if neither exists.
    pub(crate) fn needed(&self) -> Option<Lsn> {
        let streaming = self.downstreams().iter().map(|progress| progress.needs()).min();
        [streaming, self.slots.oldest()].into_iter().flatten().min()
    }
}

/// Returns the major version in a `server_version`; 0 if it is unknown.
pub(crate) fn major(version: &str) -> u32 {
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version[..digits].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors() {
        for (version, expected) in
            [("15.8 (Debian 15.8-0+deb12u1)", 15), ("18beta1", 18), ("9.6", 9), ("", 0), ("devel", 0)]
        {
            assert_eq!(major(version), expected, "{version}");
        }
    }
}
