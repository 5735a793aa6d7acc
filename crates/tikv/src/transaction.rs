//! Writes: optimistic transactions, committed in two phases.
//!
//! 1. Prewrite: every key is locked, and its new value stored beside the lock. It fails if another transaction has committed to the key since this
//!    one began. The request with the primary key goes first, alone: if several transactions write the same primary key, such as a counter, the
//!    losers leave no locks on other keys.
//! 2. Commit of the primary key. This decides the transaction: before it everything can be rolled back, after it nothing.
//! 3. Commit of the other keys in the background. A client that meets one of their locks before that looks at the primary key.

use std::sync::Arc;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::figures::add;
use crate::lock::TIME_TO_LIVE;
use crate::proto::tikvpb;
use crate::region::{Ended, Region, Sent};
use crate::verdict::{Done, Phase, of_key, settles};
use crate::{Client, Key, Timestamp};

/// Maximum bytes of keys and values in one request, unless a single pair is larger: far below the 8 MiB that a store accepts.
const REQUEST_BYTES: usize = 256 << 10;
/// Maximum number of keys in one request.
const REQUEST_KEYS: usize = 2048;
/// Time limit, after the call has returned, of committing or rolling back the remaining keys. Other clients do it then.
const AFTERWARDS: std::time::Duration = std::time::Duration::from_secs(10);

/// The new state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// A value, which must not be empty: stores do not distinguish an empty value from none.
    Put(Key, Key),
    /// The deletion of the key.
    Delete(Key),
}

impl Write {
    fn key(&self) -> &Key {
        match self {
            Write::Put(key, _) | Write::Delete(key) => key,
        }
    }

    fn size(&self) -> usize {
        match self {
            Write::Put(key, value) => key.len() + value.len() + 16,
            Write::Delete(key) => key.len() + 16,
        }
    }

    fn mutation(&self) -> tikvpb::Mutation {
        let (op, value) = match self {
            Write::Put(_, value) => (tikvpb::Op::Put, value.clone()),
            Write::Delete(_) => (tikvpb::Op::Del, Key::new()),
        };
        tikvpb::Mutation { op: op.into(), key: self.key().clone(), value }
    }
}

impl Client {
    /// Commits `writes` as one transaction that began at `start`: each key at most once, the first one is the primary. Fails with [`Error::Conflict`]
    /// if one of the keys was written since `start`. Keys that were only read at `start` are not checked: a decision that depends on a key must write
    /// it.
    ///
    /// # Errors
    /// [`Error::Undetermined`], when the commit was sent, and no answer proves whether it was carried out; with all others nothing was
    /// written.
    pub async fn commit(
        self: &Arc<Client>,
        start: Timestamp,
        writes: Vec<Write>,
        deadline: Instant,
    ) -> Result<Timestamp, Error> {
        let Some(primary) = writes.first().map(|write| write.key().clone()) else { return Ok(start) };
        let transaction = Transaction { client: Arc::clone(self), start, primary, writes: Arc::new(writes) };
        let result = transaction.run(deadline).await;
        match &result {
            Ok(_) => add(&self.figures.commits, 1),
            Err(Error::Conflict { .. }) => add(&self.figures.conflicts, 1),
            Err(Error::Undetermined { .. }) => add(&self.figures.undetermined, 1),
            Err(_) => {}
        }
        result
    }
}

#[derive(Clone)]
struct Transaction {
    client: Arc<Client>,
    start: Timestamp,
    primary: Key,
    writes: Arc<Vec<Write>>,
}

impl Transaction {
    async fn run(&self, deadline: Instant) -> Result<Timestamp, Error> {
        if let Err(error) = self.prewrite(deadline).await {
            self.roll_back();
            return Err(error);
        }
        self.commit(deadline).await
    }

    /// Locks all keys: the request with the primary first, then the others in order.
    async fn prewrite(&self, deadline: Instant) -> Result<(), Error> {
        let doing = "prewrite";
        let figures = &self.client.figures;
        let mut backoff = Backoff::new(doing, deadline);
        let mut left: Vec<&Write> = self.writes.iter().collect();
        left[1..].sort_unstable_by(|a, b| a.key().cmp(b.key()));
        while let Some(first) = left.first() {
            let region = self.client.regions.of(first.key(), deadline).await?;
            let (fit, rest) = split(&left, &region, |write| write.key(), |write| write.size());
            let request = tikvpb::PrewriteRequest {
                context: region.context(),
                mutations: fit.iter().map(|write| write.mutation()).collect(),
                primary_lock: self.primary.clone(),
                start_version: self.start.0,
                lock_ttl: TIME_TO_LIVE.as_millis() as u64,
                txn_size: self.writes.len() as u64,
            };
            add(&figures.prewrites, 1);
            let mut store = region.client();
            let sent =
                self.client.regions.send(Phase::Prewrite, &region, &mut backoff, store.kv_prewrite(request)).await;
            // Sent again, it finds its own locks: that is no conflict.
            let Sent::Done(reply) = sent? else { continue };
            if reply.errors.is_empty() {
                left = rest;
                continue;
            }
            if let Some(error) = reply.errors.iter().find(|error| error.locked.is_none()) {
                return Err(of_key(error, doing));
            }
            self.client.unlock(reply.errors, &mut backoff, doing).await?;
        }
        Ok(())
    }

    /// Commits the primary key, and with it the keys of its region.
    async fn commit(&self, deadline: Instant) -> Result<Timestamp, Error> {
        let mut backoff = Backoff::new("commit", deadline);
        let keys: Vec<Key> = self.keys();
        let mut at = match self.client.timestamps.within(deadline).await {
            Ok(at) => at,
            Err(error) => {
                self.roll_back();
                return Err(error);
            }
        };
        // `Unknown` from the first request on that may have been carried out without an answer that says so.
        let mut done = Done::No;
        let fail = |error: Error, done: Done, last: Arc<str>| match done {
            // Nothing is rolled back: who asks at the primary key finds out, and so does who meets a lock.
            Done::Unknown => Error::Undetermined { last },
            Done::No => {
                self.roll_back();
                error
            }
        };
        loop {
            let region = match self.client.regions.of(&self.primary, deadline).await {
                Ok(region) => region,
                Err(error) => return Err(fail(error, done, backoff.last())),
            };
            let (fit, rest) = split(&keys, &region, |key| key, |key| key.len());
            let request = tikvpb::CommitRequest {
                context: region.context(),
                start_version: self.start.0,
                keys: fit,
                commit_version: at.0,
            };
            let mut store = region.client();
            // Dropped from here on, the outcome is open.
            let sent = self.client.regions.send(Phase::CommitPrimary, &region, &mut backoff, store.kv_commit(request));
            match sent.await {
                Ok(Sent::Done(tikvpb::CommitResponse { error: None, .. })) => {
                    self.commit_rest(at, rest);
                    return Ok(at);
                }
                Ok(Sent::Done(tikvpb::CommitResponse { error: Some(error), .. })) => {
                    if let Some(expired) = error.commit_ts_expired
                        && done == Done::No
                    {
                        // Somebody has read at a later time, and was told that nothing is committed up to then.
                        at = match self.client.timestamps.within(deadline).await {
                            Ok(now) => now.max(Timestamp(expired.min_commit_ts)),
                            Err(error) => return Err(fail(error, done, backoff.last())),
                        };
                        continue;
                    }
                    let settled = settles(&error);
                    let error = of_key(&error, "commit");
                    // The store has looked: had an earlier request been carried out, this one would have been too.
                    let done = if settled { Done::No } else { Done::Unknown };
                    let last = error.to_string().into();
                    return Err(fail(error, done, last));
                }
                Ok(Sent::Again(Done::No)) => {}
                Ok(Sent::Again(Done::Unknown)) => done = Done::Unknown,
                Err(Ended { error: error @ Error::Undetermined { .. }, .. }) => return Err(error),
                Err(Ended { error, done: this }) => {
                    let done = if this == Done::Unknown { this } else { done };
                    return Err(fail(error, done, backoff.last()));
                }
            }
        }
    }

    fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.writes.iter().map(|write| write.key().clone()).collect();
        keys[1..].sort_unstable();
        keys
    }

    /// Commits the keys of other regions, in the background.
    fn commit_rest(&self, at: Timestamp, keys: Vec<Key>) {
        if keys.is_empty() {
            return;
        }
        let (client, start) = (Arc::clone(&self.client), self.start.0);
        afterwards(async move {
            let mut backoff = Backoff::new("committing the other keys", Instant::now() + AFTERWARDS);
            let mut left = keys;
            while let Some(first) = left.first() {
                let Ok(region) = client.regions.of(first, backoff.deadline).await else { return };
                let (fit, rest) = split(&left, &region, |key| key, |key| key.len());
                let context = region.context();
                let request = tikvpb::CommitRequest { context, start_version: start, keys: fit, commit_version: at.0 };
                let mut store = region.client();
                let sent = client.regions.send(Phase::CommitSecondary, &region, &mut backoff, store.kv_commit(request));
                match sent.await {
                    // Where there was an error, others have resolved the locks already, or will.
                    Ok(Sent::Done(_)) => left = rest,
                    Ok(Sent::Again(_)) => {}
                    Err(_) => return,
                }
            }
        });
    }

    /// Rolls back the prewritten keys in the background, so that no client waits for the locks' time to live. Only if no commit was sent, or the
    /// store has refused it.
    fn roll_back(&self) {
        let transaction = self.clone();
        add(&self.client.figures.rollbacks, 1);
        afterwards(async move {
            let Transaction { client, start, .. } = &transaction;
            let mut backoff = Backoff::new("rolling back", Instant::now() + AFTERWARDS);
            let mut left = transaction.keys();
            while let Some(first) = left.first() {
                let Ok(region) = client.regions.of(first, backoff.deadline).await else { return };
                let (fit, rest) = split(&left, &region, |key| key, |key| key.len());
                let request =
                    tikvpb::BatchRollbackRequest { context: region.context(), start_version: start.0, keys: fit };
                let mut store = region.client();
                let sent =
                    client.regions.send(Phase::Rollback, &region, &mut backoff, store.kv_batch_rollback(request));
                match sent.await {
                    Ok(Sent::Done(_)) => left = rest,
                    Ok(Sent::Again(_)) => {}
                    Err(_) => return,
                }
            }
        });
    }
}

/// Runs work in the background, if there is a runtime; otherwise other clients will resolve the locks.
fn afterwards(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

/// Splits `all` into the items that one request to `region` can contain, including the first, and the others.
fn split<T: Clone>(
    all: &[T],
    region: &Region,
    key: impl Fn(&T) -> &Key,
    size: impl Fn(&T) -> usize,
) -> (Vec<T>, Vec<T>) {
    let (mut fit, mut rest, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (n, one) in all.iter().enumerate() {
        bytes += size(one);
        if n == 0 || (fit.len() < REQUEST_KEYS && bytes <= REQUEST_BYTES && region.holds(key(one))) {
            fit.push(one.clone());
        } else {
            rest.push(one.clone());
        }
    }
    (fit, rest)
}
