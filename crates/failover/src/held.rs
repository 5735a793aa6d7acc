//! A lock that is renewed for the lifetime of this value, from the moment it was taken, during all other waits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::elector::{Elector, Lock};
use super::failover_run::Guard;

/// Shortest time to live of a lock: etcd grants no less, with its usual election timeout.
pub(super) const SHORTEST: Duration = Duration::from_secs(2);

/// A held lock, renewed by its own task.
pub(super) struct Held {
    elector: Elector,
    lock: Arc<Mutex<Lock>>,
    keeping: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

impl Held {
    /// Takes the lock if nobody has it.
    ///
    /// # Errors
    /// No endpoint gives a valid answer.
    pub(super) async fn take(elector: &Elector, key: &str, owner: &str, ttl: Duration) -> Result<Option<Held>, String> {
        let Some(lock) = elector.lock(key, owner, ttl).await? else { return Ok(None) };
        let lock = Arc::new(Mutex::new(lock));
        let keeping = tokio::spawn(keep(elector.clone(), Arc::clone(&lock), ttl / 4));
        Ok(Some(Held { elector: elector.clone(), lock, keeping }))
    }

    /// Releases the lock.
    pub(super) async fn give_back(self) {
        self.keeping.abort();
        let lock = copy(&self.lock);
        self.elector.unlock(&lock).await;
    }

    /// Checks that the lock is still held.
    ///
    /// # Errors
    /// It has not been renewed in time.
    pub(super) fn is_ours(&self) -> Result<(), String> {
        if Instant::now() < copy(&self.lock).until() {
            Ok(())
        } else {
            Err(format!("the lock in {} has not been kept, and may be somebody else's by now", self.elector.name()))
        }
    }
}

/// Only the holder of the lock may go on.
impl Guard for Held {
    async fn before_election(&self) -> Result<(), String> {
        self.is_ours()
    }

    async fn before_promotion(&self) -> Result<(), String> {
        self.is_ours()
    }
}

fn copy(lock: &Mutex<Lock>) -> Lock {
    lock.lock().unwrap_or_else(PoisonError::into_inner).copy()
}

async fn keep(elector: Elector, shared: Arc<Mutex<Lock>>, pace: Duration) {
    loop {
        tokio::time::sleep(pace).await;
        // Renewed on a copy: a reader of the lock must not wait for an answer.
        let mut lock = copy(&shared);
        if let Err(why) = elector.keep(&mut lock).await {
            tracing::warn!("the lock in {} is not kept: {why}", elector.name());
        }
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }
}
