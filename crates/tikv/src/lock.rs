//! Locks of other transactions: the state of the transaction, and the resolution of the lock.
//!
//! The primary key decides the state of a transaction: with a lock there, it is open; with a commit, it is committed; with a rollback or nothing, it
//! is not. A client that finds a lock whose time to live is over by PD's clock first rolls back the primary, so that the lock's owner can no longer
//! commit, and only then removes the lock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::figures::add;
use crate::proto::tikvpb;
use crate::region::Sent;
use crate::verdict::{Phase, of_key};
use crate::{Client, Key, Timestamp};

/// State of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Open: it may still be committed.
    Open,
    /// Committed at this timestamp.
    Committed(u64),
    /// Rolled back for good.
    RolledBack,
}

impl Client {
    /// Handles the locks that a read or a prewrite has met: resolves those of transactions that have ended, or whose time is over, and pauses if one
    /// is open. The caller then tries again.
    ///
    /// # Errors
    /// An error other than a lock; [`Error::Late`].
    ///
    /// # Errors
    /// What is no lock; [`Error::Late`].
    pub(crate) async fn unlock(
        &self,
        errors: impl IntoIterator<Item = tikvpb::KeyError>,
        backoff: &mut Backoff,
        doing: &'static str,
    ) -> Result<(), Error> {
        // Locks by transaction: its start and its primary key.
        let mut locks: BTreeMap<(u64, Key), Vec<tikvpb::LockInfo>> = BTreeMap::new();
        for error in errors {
            let Some(lock) = error.locked else { return Err(of_key(&error, doing)) };
            add(&self.figures.locks_met, 1);
            locks.entry((lock.lock_version, lock.primary_lock.clone())).or_default().push(lock);
        }
        let mut open = false;
        for ((start, primary), locks) in locks {
            let ttl = locks.iter().map(|lock| lock.lock_ttl).max().unwrap_or_default();
            match self.fate(start, &primary, ttl, backoff).await? {
                Fate::Open => open = true,
                Fate::Committed(commit) => self.resolve(start, commit, &locks, backoff).await?,
                Fate::RolledBack => self.resolve(start, 0, &locks, backoff).await?,
            }
        }
        if open {
            backoff.again("a lock of a transaction that is under way").await?;
        }
        Ok(())
    }

    /// Returns the state of the transaction that began at `start`. Rolls it back if its time to live is over.
    async fn fate(&self, start: u64, primary: &Key, ttl: u64, backoff: &mut Backoff) -> Result<Fate, Error> {
        let deadline = backoff.deadline;
        let mut roll_back = false;
        loop {
            let now = self.timestamps.within(deadline).await?;
            let region = self.regions.of(primary, deadline).await?;
            let request = tikvpb::CheckTxnStatusRequest {
                context: region.context(),
                primary_key: primary.clone(),
                lock_ts: start,
                caller_start_ts: 0,
                current_ts: now.0,
                rollback_if_not_exist: roll_back,
                // A transaction that its owner commits asynchronously goes on as a two-phase one.
                force_sync_commit: true,
            };
            let mut store = region.client();
            let sent =
                self.regions.send(Phase::CheckStatus, &region, backoff, store.kv_check_txn_status(request)).await;
            let Sent::Done(reply) = sent? else { continue };
            if let Some(error) = reply.error {
                // The primary has no record of the transaction: the prewrite may still come while the time to live lasts.
                if error.txn_not_found.is_some() && !roll_back {
                    if now.millis() < Timestamp(start).millis().saturating_add(ttl) {
                        return Ok(Fate::Open);
                    }
                    roll_back = true;
                    continue;
                }
                if error.locked.is_some() {
                    return Ok(Fate::Open);
                }
                return Err(of_key(&error, "asking what became of a transaction"));
            }
            return Ok(match (reply.lock_ttl, reply.commit_version) {
                (0, 0) => Fate::RolledBack,
                (0, commit) => Fate::Committed(commit),
                _ => Fate::Open,
            });
        }
    }

    /// Resolves the locks of a transaction that has ended.
    async fn resolve(
        &self,
        start: u64,
        commit: u64,
        locks: &[tikvpb::LockInfo],
        backoff: &mut Backoff,
    ) -> Result<(), Error> {
        let mut left: Vec<Key> = locks.iter().map(|lock| lock.key.clone()).collect();
        left.sort_unstable();
        left.dedup();
        while let Some(first) = left.first() {
            let region = self.regions.of(first, backoff.deadline).await?;
            let fits = left.iter().take_while(|key| region.holds(key)).count();
            let request = tikvpb::ResolveLockRequest {
                context: region.context(),
                start_version: start,
                commit_version: commit,
                keys: left[..fits].to_vec(),
            };
            let mut store = region.client();
            let sent = self.regions.send(Phase::ResolveLock, &region, backoff, store.kv_resolve_lock(request)).await;
            let Sent::Done(reply) = sent? else { continue };
            if let Some(error) = reply.error {
                return Err(of_key(&error, "resolving a lock"));
            }
            add(&self.figures.locks_resolved, fits as u64);
            left.drain(..fits);
        }
        Ok(())
    }
}

/// Time to live of our own locks: a transaction that takes longer may be rolled back by anybody. Long enough for a store that stands
/// still for a moment; and so long, at most, a node that died keeps others waiting.
pub(crate) const TIME_TO_LIVE: Duration = Duration::from_secs(3);
