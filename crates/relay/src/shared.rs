//! What the parts of one relay share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use tokio::sync::watch;
use watermark::Lsn;

use crate::downstream::Places;
use crate::log::{Directory, Log, LogError, Removed, Retention};
use crate::memory::Recollection;
use crate::orders::Turns;
use crate::promise::PromiseFile;
use crate::settings::Settings;
use crate::slots::Slots;
use crate::surroundings::Surroundings;
use crate::upstream::Control;

pub(crate) use crate::slots::{Feedback, Greeting};

/// Everything that more than one thread of a relay looks at.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Until the relay is stopped.
    directory: Mutex<Option<Directory>>,
    pub(crate) settings: RwLock<Arc<Settings>>,
    pub(crate) control: Control,
    pub(crate) promise: PromiseFile,
    surroundings: RwLock<Arc<Surroundings>>,
    /// An operator says that this relay runs for the first time.
    pub(crate) is_new: bool,
    /// Of this process, at random: other relays are asked, and this one may be among them.
    pub(crate) instance: u64,
    /// Since when all servers have been seen on the upstream's timeline or an older one, by a relay that has lost its memory.
    pub(crate) seen_unpromoted: Mutex<Option<Instant>>,
    pub(crate) slots: Slots,
    pub(crate) metrics: Metrics,
    pub(crate) places: Places,
    /// Held while an operator's order is carried out: one after the other.
    pub(crate) orders: Turns,
    /// True once everything is to end.
    pub(crate) stopping: watch::Sender<bool>,
    /// Random, so that unknown users look like known ones.
    pub(crate) secret: [u8; 32],
    /// Set once the log is open, which on an empty directory the upstream has to allow.
    log: OnceLock<Arc<Log>>,
    upstream: Mutex<UpstreamState>,
    downstreams: Mutex<HashMap<u32, Arc<Progress>>>,
    next_downstream: AtomicU32,
}

/// How it stands with the upstream.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamState {
    /// `streaming`, or what stands in the way.
    pub(crate) state: String,
    /// Whether somebody has to look.
    pub(crate) alarm: bool,
    pub(crate) since: Instant,
}

/// Counts that only grow, unless it says otherwise.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Bytes of WAL from the upstream, also those that were held already.
    pub(crate) received_bytes: AtomicU64,
    /// Reports sent to the upstream.
    pub(crate) acknowledgements: AtomicU64,
    /// Times the connection to the upstream ended.
    pub(crate) disconnects: AtomicU64,
    /// The furthest end of the upstream's log that was heard of. A position.
    pub(crate) upstream_end: AtomicU64,
    /// Bytes of WAL to downstreams.
    pub(crate) sent_bytes: AtomicU64,
    /// Connections accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections refused: too many, no login, not the protocol.
    pub(crate) refused: AtomicU64,
}

/// One downstream connection that streams.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Unique while the process lives.
    pub(crate) id: u32,
    pub(crate) application_name: String,
    pub(crate) peer: String,
    pub(crate) slot: Option<String>,
    pub(crate) timeline: AtomicU32,
    /// Sent; written, flushed and applied by its own report. Positions.
    pub(crate) sent: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) flushed: AtomicU64,
    pub(crate) applied: AtomicU64,
    /// Before its first report: where it started.
    pub(crate) started: u64,
    pub(crate) feedback: Mutex<Feedback>,
}

impl Progress {
    /// What must be kept for it.
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

    /// The log's directory; None once the relay was stopped.
    pub(crate) fn directory(&self) -> Option<Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another relay may have the directory, as soon as the log is closed too.
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

    /// What it remembers of its promises, for other relays.
    pub(crate) fn recollection(&self) -> Recollection {
        let log = self.log();
        Recollection {
            instance: self.instance,
            system: log.as_ref().map(|log| log.identity().system_id),
            timeline: log.as_ref().map_or(0, |log| log.tail().timeline.0),
            memory: self.promise.exists().then(|| self.promise.now().memory()),
        }
    }

    /// Returns once everything is to end.
    pub(crate) async fn stopped(&self) {
        // The sender is in here: it does not go away.
        let _ = self.stopping.subscribe().wait_for(|stop| *stop).await;
    }

    /// The log, once it is open.
    pub(crate) fn log(&self) -> Option<Arc<Log>> {
        self.log.get().cloned()
    }

    pub(crate) fn set_log(&self, log: Arc<Log>) {
        // A second one cannot be: the directory is locked.
        let _ = self.log.set(log);
    }

    pub(crate) fn upstream_is(&self, state: &str, alarm: bool) {
        let mut upstream = self.upstream.lock().unwrap_or_else(PoisonError::into_inner);
        if upstream.state != state || upstream.alarm != alarm {
            *upstream = UpstreamState { state: state.into(), alarm, since: Instant::now() };
        }
    }

    /// The upstream is tried, or tried again. An alarm and its reason stand until something has come of that: whoever looks now and then must see them.
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

    /// All that stream, by id.
    pub(crate) fn downstreams(&self) -> Vec<Arc<Progress>> {
        let downstreams = self.downstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = downstreams.values().cloned().collect();
        all.sort_by_key(|progress| progress.id);
        all
    }

    /// The oldest transactions that readers of standbys need, for the upstream: of all that stream, and of slots whose users are away.
    pub(crate) fn feedback(&self) -> Feedback {
        if !self.settings().hot_standby_feedback {
            return Feedback::default();
        }
        let each = self.downstreams();
        let each = each.iter().map(|progress| *progress.feedback.lock().unwrap_or_else(PoisonError::into_inner));
        let oldest = || self.log().map_or(Lsn(0), |log| log.start());
        each.fold(self.slots.feedback(oldest), Feedback::and)
    }

    /// Removes WAL that nobody needs. `all`: also what is only kept for whoever was away for a moment (`keep_bytes`).
    pub(crate) fn retain(&self, log: &Log, all: bool) -> Result<Removed, LogError> {
        let settings = self.settings();
        log.retain(&Retention {
            downstream: self.needed(),
            archived: None,
            keep_bytes: if all { 0 } else { settings.keep_bytes },
            max_bytes: Some(settings.max_bytes),
        })
    }

    /// The oldest position that a downstream or a slot needs; None if there is neither.
    pub(crate) fn needed(&self) -> Option<Lsn> {
        let streaming = self.downstreams().iter().map(|progress| progress.needs()).min();
        [streaming, self.slots.oldest()].into_iter().flatten().min()
    }
}

/// Major version of `server_version`; 0 if it is unknown.
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
