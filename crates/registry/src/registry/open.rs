//! Opening a node: what it reads, and the tasks it starts.

use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::{Inner, Registry, now_millis};
use crate::cache::{Cache, Memory};
use crate::error::OpenError;
use crate::expressions::Expressions;
use crate::health::Watch;
use crate::heartbeat::UnknownIds;
use crate::kv::Kv;
use crate::peers::{self, Peers};
use crate::retry;
use crate::settings::Settings;
use crate::status::{Counters, add};
use crate::store::Store;
use crate::turns::Turns;
use crate::writer;

/// Time that the other nodes have to push a commit before it is read from the store.
const GATHER: Duration = Duration::from_millis(50);
/// Interval between two collections of old tombstones.
const COLLECT: Duration = Duration::from_secs(30);
/// Tombstones that one transaction collects.
const COLLECT_ROWS: usize = 1000;

impl Registry {
    /// Reads everything from `store` and starts the node's tasks on the current tokio runtime.
    ///
    /// # Errors
    /// A setting is invalid, or the store cannot be read.
    pub async fn open(settings: Settings, store: Arc<dyn Store>) -> Result<Registry, OpenError> {
        settings.check()?;
        let memory = Memory { service_changes: settings.service_changes, changes: settings.changes };
        // A request has at least one row, so the limit on rows is reached before the channel is full.
        let (queue, requests) = mpsc::channel(settings.limits.queued_writes);
        let peers = Peers::bind(&settings.peers, settings.health.enabled)?;
        let health = Arc::new(Watch::new(&settings.health)?);
        let (kv, asks) = match store.kv() {
            Some(part) => {
                let (limits, config) = (settings.kv.clone(), settings.config.clone());
                let queued = settings.limits.queued_writes;
                Some(Kv::open(part, limits, config, queued, Arc::clone(&health)).await?).unzip()
            }
            None => (None, None),
        };
        let inner = Arc::new(Inner {
            store,
            cache: Cache::new(memory),
            applier: tokio::sync::Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            counters: Counters::default(),
            health,
            queued: AtomicUsize::new(0),
            stop: watch::Sender::new(false),
            queue,
            watchers: AtomicUsize::new(0),
            store_error: Mutex::new(None),
            writable: Mutex::default(),
            peers,
            epoch: AtomicI64::new(0),
            behind: Notify::new(),
            unknown_ids: UnknownIds::default(),
            turns: Turns::default(),
            expressions: Expressions::default(),
            tasks: Mutex::new(JoinSet::new()),
            kv,
            settings,
        });
        inner.health.probing.keep_from(inner.peers.bound());
        inner.catch_up().await?;
        peers::start(&inner).await?;
        {
            let mut tasks = inner.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.spawn(writer::run(Arc::clone(&inner), requests));
            tasks.spawn(feed(Arc::clone(&inner)));
            tasks.spawn(collect(Arc::clone(&inner)));
            crate::health::start(&inner, &mut tasks);
            if let Some(asks) = asks {
                crate::kv::start(&inner, asks, &mut tasks);
            }
        }
        Ok(Registry { inner })
    }
}

/// Follows the store.
async fn feed(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let mut pause = Duration::ZERO;
    loop {
        let turn = async {
            tokio::select! {
                () = inner.behind.notified() => {}
                () = inner.store.changed(inner.cache.revision()) => {
                    // Pushes between nodes are faster: the store is read only for commits whose push was lost.
                    if inner.peers.all_reached() {
                        tokio::time::sleep(GATHER).await;
                    }
                }
            }
            tokio::time::sleep(pause).await;
            inner.catch_up().await
        };
        let result = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            result = turn => result,
        };
        pause = retry::pause_of_follower(result, pause, inner.store.name(), "store");
    }
}

/// Collects tombstones, and removes services that no longer exist.
async fn collect(inner: Arc<Inner>) {
    let mut stop = inner.stop.subscribe();
    let keep = i64::try_from(inner.settings.tombstones.as_millis()).unwrap_or(i64::MAX);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(COLLECT) => {}
        }
        // Only tombstones that this node has applied: so its own cursor is never below gc_floor.
        let (cursor, floor) = {
            let applier = inner.applier.lock().await;
            (applier.cursor(), applier.gc_floor())
        };
        match inner.store.collect(cursor, now_millis().saturating_sub(keep), COLLECT_ROWS).await {
            Ok(collected) => add(&inner.counters.tombstones, collected as u64),
            Err(error) => tracing::warn!(store = inner.store.name(), "collecting tombstones: {error}"),
        }
        inner.cache.forget(floor);
    }
}
