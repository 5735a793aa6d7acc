//! Signs of life, and what a node does about an instance that it has not heard of.
//!
//! With several nodes a client may register at one and send its first heartbeat to another, before that one has been told. So
//! nobody is called a stranger before the store, and then the other nodes, were asked once. What is known costs none of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use crate::health::{Alive, Beat, several};
use crate::model::{Instance, InstanceId};
use crate::peers;
use crate::registry::{Inner, Registry};
use crate::status::add;

/// Calls that may wait to hear what the store says; those beyond go by what is here.
const WAITING: usize = 1024;
/// Longest wait of a call.
const PATIENCE: Duration = Duration::from_secs(1);
/// At least so long between two reads: whoever comes meanwhile shares the next one.
const GATHER: Duration = Duration::from_millis(10);

/// Reads of the store because somebody asks for what is not here. Each serves all who came before it began.
#[derive(Debug)]
pub(crate) struct UnknownIds {
    places: Semaphore,
    /// When the latest read began that also came to its end. Held by whoever reads.
    read: Mutex<Option<Instant>>,
}

impl Default for UnknownIds {
    fn default() -> UnknownIds {
        UnknownIds { places: Semaphore::new(WAITING), read: Mutex::new(None) }
    }
}

impl UnknownIds {
    /// Brings the cache up to what the store has now. Without effect when too many wait, the store does not answer, or
    /// takes too long.
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

    /// Which of `ids` another node has heard of: the store may have been read where it lags, or be silent. Who is known elsewhere will be
    /// known here later, and has been heard here now. Nobody is, when too many wait or the others take too long.
    async fn ask_peers(&self, inner: &Inner, ids: &[InstanceId]) -> Vec<Beat> {
        let Ok(_place) = self.places.try_acquire() else { return Vec::new() };
        let beats = tokio::time::timeout(PATIENCE, peers::heard(inner, ids)).await.unwrap_or_default();
        let known = ids.iter().zip(&beats).filter(|(_, beat)| **beat == Beat::Known).map(|(id, _)| id);
        inner.health.leases.renew_early(known);
        beats
    }
}

impl Registry {
    /// Instances say that they live. In memory only; one that had expired becomes passing again soon after. Waits only
    /// where one is not known here: until the store, and then the other nodes, were asked once.
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

    /// As [`Registry::heartbeat`], of one of several checks of an instance.
    pub async fn heartbeat_of_check(&self, id: &InstanceId, check: &str) -> Beat {
        self.heartbeat(&[several::unit(id, check)]).await.pop().unwrap_or(Beat::Unknown)
    }

    /// As [`Registry::instance`]; where it is not here, the store is asked once.
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

/// Those of `ids` that are unknown.
fn strangers(beats: &[Beat], ids: &[InstanceId]) -> Vec<InstanceId> {
    beats.iter().zip(ids).filter(|(beat, _)| **beat == Beat::Unknown).map(|(_, id)| id.clone()).collect()
}

/// What was found out about those that were unknown, in their order; about some at the end it may be nothing.
fn fill_in(beats: &mut [Beat], answers: Vec<Beat>) {
    for (beat, answer) in beats.iter_mut().filter(|beat| **beat == Beat::Unknown).zip(answers) {
        *beat = answer;
    }
}
