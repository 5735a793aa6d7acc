//! What the parts of a relay have in common.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use watermark::Lsn;

use super::log::Log;
use super::settings::Settings;
use crate::downstream::Places;
use crate::log::lock;
use crate::orders::Turns;
use crate::promise::PromiseFile;
use crate::upstream::Control;

/// How it stands with the source.
#[derive(Debug, Clone)]
pub(super) struct UpstreamState {
    pub(super) state: String,
    pub(super) alarm: bool,
    pub(super) since: Instant,
}

/// Counts that only grow.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received_bytes: AtomicU64,
    pub(super) acknowledgements: AtomicU64,
    pub(super) disconnects: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// One replica that is fed.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) id: u32,
    pub(super) server_id: u32,
    pub(super) peer: String,
    pub(super) user: String,
    /// Position in the log up to where it was sent.
    pub(super) sent: AtomicU64,
    /// Told when another connection of the same server has come.
    pub(super) replaced: Notify,
    /// Told when its server has ended this connection from another one.
    pub(super) killed: Notify,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: RwLock<Arc<Settings>>,
    pub(super) control: Control,
    pub(super) promise: PromiseFile,
    pub(super) log: Arc<Log>,
    pub(super) places: Places,
    pub(super) stopping: watch::Sender<bool>,
    pub(super) counts: Counts,
    pub(super) orders: Turns,
    /// The last version that the source named.
    pub(super) version: Mutex<String>,
    /// Whether the connection in use was begun as that of a semi-synchronous replica. A source decides that when events are asked for.
    pub(super) semisync: AtomicBool,
    upstream: Mutex<UpstreamState>,
    /// Why a commit on the source does not mean that it is durable here.
    concerns: Mutex<Vec<String>>,
    fed: Mutex<HashMap<u32, Arc<Fed>>>,
    next: AtomicU32,
}

impl Shared {
    pub(super) fn new(settings: Settings, control: Control, promise: PromiseFile, log: Arc<Log>) -> Shared {
        let upstream = UpstreamState { state: "not connected yet".into(), alarm: false, since: Instant::now() };
        Shared {
            settings: RwLock::new(Arc::new(settings)),
            control,
            promise,
            log,
            places: Places::default(),
            stopping: watch::Sender::new(false),
            counts: Counts::default(),
            orders: Turns::default(),
            version: Mutex::default(),
            semisync: AtomicBool::new(false),
            upstream: Mutex::new(upstream),
            concerns: Mutex::default(),
            fed: Mutex::default(),
            next: AtomicU32::new(1),
        }
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Returns once everything is to end.
    pub(super) async fn stopped(&self) {
        let _ = self.stopping.subscribe().wait_for(|stop| *stop).await;
    }

    pub(super) fn upstream(&self) -> UpstreamState {
        lock(&self.upstream).clone()
    }

    pub(super) fn upstream_is(&self, state: &str, alarm: bool) {
        let mut upstream = lock(&self.upstream);
        if upstream.state != state || upstream.alarm != alarm {
            *upstream = UpstreamState { state: state.into(), alarm, since: Instant::now() };
        }
    }

    /// The source is tried again. An alarm and its reason stand until something has come of that.
    pub(super) fn upstream_is_tried(&self) {
        if !self.upstream().alarm {
            self.upstream_is("connecting", false);
        }
    }

    pub(super) fn concerns(&self) -> Vec<String> {
        lock(&self.concerns).clone()
    }

    /// What stands in the way of "acknowledged is durable", as of now. What is new is said once.
    pub(super) fn set_concerns(&self, found: Vec<String>) {
        let mut concerns = lock(&self.concerns);
        for concern in found.iter().filter(|concern| !concerns.contains(concern)) {
            tracing::error!(concern, "commits on the source may not wait until they are durable here");
        }
        if found.is_empty() && !concerns.is_empty() {
            tracing::info!("commits on the source wait again until they are durable here");
        }
        *concerns = found;
    }

    pub(super) fn new_id(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// True if a connection has, or had, this number.
    pub(super) fn was_given(&self, id: u32) -> bool {
        (1..self.next.load(Ordering::Relaxed)).contains(&id)
    }

    /// A replica is fed from now on. An earlier connection of the same server is one that it has lost: it ends.
    pub(super) fn enter(&self, fed: Arc<Fed>) {
        let mut all = lock(&self.fed);
        // 0 is no server: `mariadb-binlog`, for example.
        let same = |other: &&Arc<Fed>| other.server_id == fed.server_id && fed.server_id != 0;
        all.values().filter(same).for_each(|other| other.replaced.notify_one());
        all.insert(fed.id, fed);
    }

    pub(super) fn leave(&self, id: u32) {
        lock(&self.fed).remove(&id);
    }

    /// All that are fed, by id.
    pub(super) fn fed(&self) -> Vec<Arc<Fed>> {
        let mut all: Vec<_> = lock(&self.fed).values().cloned().collect();
        all.sort_by_key(|fed| fed.id);
        all
    }

    /// The lowest position that a connected replica still has to get.
    pub(super) fn needed(&self) -> Option<Lsn> {
        self.fed().iter().map(|fed| Lsn(fed.sent.load(Ordering::Relaxed))).min()
    }
}
