//! A lock that is kept for as long as this value lives: from the moment it was taken, whatever else is waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::elector::{Elector, Lock};
use super::steps::Guard;

/// Shortest life of a lock: etcd grants no less, with its usual election timeout.
pub(super) const SHORTEST: Duration = Duration::from_secs(2);

/// A lock that is held, and kept by a task of its own.
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
    /// No endpoint answers as it should.
    pub(super) async fn take(elector: &Elector, key: &str, owner: &str, ttl: Duration) -> Result<Option<Held>, String> {
        let Some(lock) = elector.lock(key, owner, ttl).await? else { return Ok(None) };
        let lock = Arc::new(Mutex::new(lock));
        let keeping = tokio::spawn(keep(elector.clone(), Arc::clone(&lock), ttl / 4));
        Ok(Some(Held { elector: elector.clone(), lock, keeping }))
    }

    /// Gives it back.
    pub(super) async fn give_back(self) {
        self.keeping.abort();
        let lock = copy(&self.lock);
        self.elector.unlock(&lock).await;
    }

    fn is_ours(&self) -> Result<(), String> {
        if Instant::now() < copy(&self.lock).until() {
            Ok(())
        } else {
            Err(format!("the lock in {} has not been kept, and may be somebody else's by now", self.elector.name()))
        }
    }
}

/// Who holds the lock is the only one to go on.
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
        // A copy goes there and back: who looks at the lock must not wait for an answer.
        let mut lock = copy(&shared);
        if let Err(why) = elector.keep(&mut lock).await {
            tracing::warn!("the lock in {} is not kept: {why}", elector.name());
        }
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = lock;
    }
}
