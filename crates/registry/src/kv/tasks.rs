//! The tasks of the key-value part.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::judge;
use super::writer::{self, Queued};
use crate::registry::Inner;
use crate::retry;

/// Interval between two reads of the counter while keys are in use and other nodes may change them.
const POLL: Duration = Duration::from_millis(50);
/// The interval otherwise.
const IDLE_POLL: Duration = Duration::from_secs(1);
/// Milliseconds after the last use during which the store counts as used.
const USED: u64 = 60_000;
/// Interval between two collections of deleted keys, and rows collected at a time.
const COLLECT: Duration = Duration::from_secs(30);
const COLLECT_ROWS: usize = 10_000;

/// Starts the tasks that write, follow the store, collect and judge.
pub(crate) fn start(inner: &Arc<Inner>, asks: mpsc::Receiver<Queued>, tasks: &mut JoinSet<()>) {
    tasks.spawn(writer::run(Arc::clone(inner), asks));
    tasks.spawn(feed(Arc::clone(inner)));
    tasks.spawn(collect(Arc::clone(inner)));
    tasks.spawn(judge::run(Arc::clone(inner)));
}

/// Follows the store.
async fn feed(inner: Arc<Inner>) {
    let Some(kv) = &inner.kv else { return };
    let mut stop = inner.stop.subscribe();
    let mut pause = Duration::ZERO;
    loop {
        let used = kv.now().saturating_sub(kv.used.load(Ordering::Relaxed)) < USED
            || !kv.watchers.is_empty()
            || !kv.listeners.is_empty();
        let poll = if used && !inner.peers.is_alone() { POLL } else { IDLE_POLL };
        let turn = async {
            tokio::select! {
                () = kv.wanted.notified() => {}
                () = tokio::time::sleep(poll) => {}
            }
            tokio::time::sleep(pause).await;
            kv.catch_up().await
        };
        let result = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            result = turn => result,
        };
        pause = retry::pause_of_follower(result, pause, inner.store.name(), "key-value store");
    }
}

/// Collects deleted keys and ended sessions, once they have reached the age of tombstones.
async fn collect(inner: Arc<Inner>) {
    let Some(kv) = &inner.kv else { return };
    let mut stop = inner.stop.subscribe();
    let keep = i64::try_from(inner.settings.tombstones.as_millis()).unwrap_or(i64::MAX);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(COLLECT) => {}
        }
        let seen = kv.state().v;
        let before = crate::registry::now_millis().saturating_sub(keep);
        if let Err(error) = kv.store.collect(seen, before, COLLECT_ROWS).await {
            tracing::warn!(store = inner.store.name(), "collecting deleted keys: {error}");
        }
    }
}
