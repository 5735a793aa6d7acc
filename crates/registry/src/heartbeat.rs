//! Heartbeats, and the lookup of instances that this node does not know.
//!
//! With several nodes, a client may register at one and send its first heartbeat to another that has not seen the commit yet. So an instance is
//! reported as unknown only after the store, and then the other nodes, have been asked once. A known instance costs none of this.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::health::{Alive, Beat, several};
use crate::model::{Instance, InstanceId};
use crate::peers;
use crate::registry::{Inner, Registry};
use crate::status::add;

/// Calls that may wait for the store; further calls are answered from memory.
const WAITING: usize = 1024;
/// Maximum wait of a call.
const PATIENCE: Duration = Duration::from_secs(1);
/// Minimum time between two reads of the store: calls that arrive meanwhile share the next read.
const GATHER: Duration = Duration::from_millis(10);

/// Reads of the store for ids that are not in the cache. Each read serves all calls that came before it began.
#[derive(Debug)]
pub(crate) struct UnknownIds {
    places: Semaphore,
    /// Start of the latest read that succeeded. Locked by the call that reads.
    read: Mutex<Option<Instant>>,
}

impl Default for UnknownIds {
    fn default() -> UnknownIds {
        UnknownIds { places: Semaphore::new(WAITING), read: Mutex::new(None) }
    }
}

impl UnknownIds {
    /// Brings the cache up to date with the store. Does nothing if too many calls wait already; gives up silently if the store does not answer in
    /// time.
    async fn ask_store(&self, inner: &Inner) {
        let Ok(_place) = self.places.try_acquire() else { return };
        let came = Instant::now();
        let read = async {
            let mut read = self.read.lock().await;
            if read.is_some_and(|began| began > came) {
                return;
            }
            if let Some(began) = *read {
                tokio::time::sleep_until(began + GATHER).await;
            }
            let began = Instant::now();
            add(&inner.counters.unknown_id_lookups, 1);
            if inner.catch_up().await.is_ok() {
                *read = Some(began);
            }
        };
        let _ = tokio::time::timeout(PATIENCE, read).await;
    }

    /// Asks the other nodes which of `ids` they know: the store may have been read from a replica that lags, or may be silent. An id known elsewhere
    /// will appear in this cache later, so its lease is renewed in advance. Returns nothing if too many calls wait or the others take too long.
    async fn ask_peers(&self, inner: &Inner, ids: &[InstanceId]) -> Vec<Beat> {
        let Ok(_place) = self.places.try_acquire() else { return Vec::new() };
        let beats = tokio::time::timeout(PATIENCE, peers::heard(inner, ids)).await.unwrap_or_default();
        let known = ids.iter().zip(&beats).filter(|(_, beat)| **beat == Beat::Known).map(|(id, _)| id);
        inner.health.leases.renew_early(known);
        beats
    }
}

impl Registry {
    /// Renews the leases of instances, in memory only; an expired instance becomes passing again soon after. Waits only for an id unknown to this
    /// node: until the store, and then the other nodes, have been asked once.
    pub async fn heartbeat(&self, ids: &[InstanceId]) -> Vec<Beat> {
        let inner = self.inner();
        let mut beats = beat(inner, ids);
        if beats.contains(&Beat::Unknown) {
            inner.unknown_ids.ask_store(inner).await;
            let found = beat(inner, &strangers(&beats, ids));
            fill_in(&mut beats, found);
        }
        if beats.contains(&Beat::Unknown) {
            let heard = inner.unknown_ids.ask_peers(inner, &strangers(&beats, ids)).await;
            fill_in(&mut beats, heard);
        }
        let known = beats.iter().filter(|beat| **beat == Beat::Known).count();
        add(&inner.counters.heartbeats, known as u64);
        add(&inner.counters.unknown_heartbeats, (beats.len() - known) as u64);
        beats
    }

    /// Renews the lease of one of several checks of an instance, like [`Registry::heartbeat`].
    pub async fn heartbeat_of_check(&self, id: &InstanceId, check: &str) -> Beat {
        self.heartbeat(&[several::unit(id, check)]).await.pop().unwrap_or(Beat::Unknown)
    }

    /// Returns the instance like [`Registry::instance`], but asks the store once if the cache does not have it.
    pub async fn instance_or_ask(&self, id: &InstanceId) -> Option<Arc<Instance>> {
        if let Some(instance) = self.instance(id) {
            return Some(instance);
        }
        let inner = self.inner();
        inner.unknown_ids.ask_store(inner).await;
        self.instance(id)
    }
}

fn beat(inner: &Inner, ids: &[InstanceId]) -> Vec<Beat> {
    let leased = inner.health.leases.renew(ids, Alive::Passing);
    inner.health.renew_each_check(ids, Alive::Passing);
    let known = |(leased, id)| if leased || inner.cache.instance(id).is_some() { Beat::Known } else { Beat::Unknown };
    leased.into_iter().zip(ids).map(known).collect()
}

/// Returns the ids whose answer is `Unknown`.
fn strangers(beats: &[Beat], ids: &[InstanceId]) -> Vec<InstanceId> {
    beats.iter().zip(ids).filter(|(beat, _)| **beat == Beat::Unknown).map(|(_, id)| id.clone()).collect()
}

/// Replaces each `Unknown` by the next of `answers`, which may be fewer.
fn fill_in(beats: &mut [Beat], answers: Vec<Beat>) {
    for (beat, answer) in beats.iter_mut().filter(|beat| **beat == Beat::Unknown).zip(answers) {
        *beat = answer;
    }
}
