//! State shared by the parts of a relay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use watermark::Lsn;

use super::log::Log;
use super::settings::Settings;
use crate::log::lock;
use crate::orders::Turns;
use crate::places::Places;
use crate::promise::PromiseFile;
use crate::upstream::Control;

/// State of the connection to the source.
#[derive(Debug, Clone)]
pub(super) struct UpstreamState {
    pub(super) state: String,
    pub(super) alarm: bool,
    pub(super) since: Instant,
}

/// Counters that only grow.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received_bytes: AtomicU64,
    pub(super) acknowledgements: AtomicU64,
    pub(super) disconnects: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
}

/// A connected replica.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) id: u32,
    pub(super) server_id: u32,
    pub(super) peer: String,
    pub(super) user: String,
    /// Position in the log up to which events were sent.
    pub(super) sent: AtomicU64,
    /// Notified when another connection of the same server arrives.
    pub(super) replaced: Notify,
    /// Notified when its server has ended this connection from another one.
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
    /// The last version reported by the source.
    pub(super) version: Mutex<String>,
    /// True if the current connection was begun as that of a semi-synchronous replica. A source decides this when events are requested.
    pub(super) semisync: AtomicBool,
    upstream: Mutex<UpstreamState>,
    /// Reasons why a commit on the source may not be durable here.
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

    /// Returns once the relay is being stopped.
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

    /// Marks the start of another attempt. An alarm and its reason remain until the attempt has a result.
    pub(super) fn upstream_is_tried(&self) {
        if !self.upstream().alarm {
            self.upstream_is("connecting", false);
        }
    }

    pub(super) fn concerns(&self) -> Vec<String> {
        lock(&self.concerns).clone()
    }

    /// Sets the current reasons why acknowledged may not mean durable. New ones are logged once.
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

    /// Registers a replica. An earlier connection of the same server is lost to it, and is ended.
    pub(super) fn enter(&self, fed: Arc<Fed>) {
        let mut all = lock(&self.fed);
        // Zero is not a server: `mariadb-binlog`, for example.
        let same = |other: &&Arc<Fed>| other.server_id == fed.server_id && fed.server_id != 0;
        all.values().filter(same).for_each(|other| other.replaced.notify_one());
        all.insert(fed.id, fed);
    }

    pub(super) fn leave(&self, id: u32) {
        lock(&self.fed).remove(&id);
    }

    /// Returns all connected replicas, by ID.
    pub(super) fn fed(&self) -> Vec<Arc<Fed>> {
        let mut all: Vec<_> = lock(&self.fed).values().cloned().collect();
        all.sort_by_key(|fed| fed.id);
        all
    }

    /// Returns the lowest position that a connected replica still needs.
    pub(super) fn needed(&self) -> Option<Lsn> {
        self.fed().iter().map(|fed| Lsn(fed.sent.load(Ordering::Relaxed))).min()
    }
}
