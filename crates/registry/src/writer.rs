//! The batch writer: many callers, one transaction at a time.
//!
//! A batch begins when the previous one is done, and takes the writes that wait then: a single write does not wait. Under load, rows gather while the
//! store commits, and for a moment more, as long as less than half of the recent callers are back. Writes are carried out in the order of the queue.
//!
//! The result of a batch is computed in advance from memory. It holds if the store, with its counter locked, is at the revision of the memory: then
//! no row has to be read. Otherwise the rows are read and the result is computed anew.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::{StoreError, WriteError};
use crate::model::{Instance, Machines, Revision};
use crate::registry::Inner;
use crate::retry;
use crate::status::{add, micros};
use crate::store::{Batch, Committed, InstanceRow, Outcome, Write};

/// The answer to one write.
pub(crate) type WriteResult = Result<(Outcome, Revision), WriteError>;

/// The writes of one call.
pub(crate) struct Request {
    pub(crate) writes: Vec<Write>,
    pub(crate) reply: oneshot::Sender<Vec<WriteResult>>,
    pub(crate) since: Instant,
}

/// Maximum number of requests that a batch waits for, and maximum wait.
const ENOUGH: usize = 128;
const LINGER: Duration = Duration::from_millis(2);
/// Time that another node has to push a commit that precedes this node's.
const TOLD: Duration = Duration::from_millis(5);

/// Runs until the registry stops; then fails the queued requests.
pub(crate) async fn run(inner: Arc<Inner>, mut queue: mpsc::Receiver<Request>) {
    let mut stop = inner.stop.subscribe();
    let (mut number, mut foresee, mut expected) = (0, true, 0);
    loop {
        let first = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            request = queue.recv() => match request {
                Some(request) => request,
                None => break,
            },
        };
        let mut requests = vec![first];
        let mut rows = requests[0].writes.len();
        gather(&mut queue, &mut requests, &mut rows, inner.settings.batch_rows, expected).await;
        number += 1;
        let callers = requests.len();
        batch(&inner, number, requests, &mut foresee).await;
        inner.queued.fetch_sub(rows, Ordering::Relaxed);
        // Answered callers mostly write again, and queued ones wait already. Half of them: while these are committed, the others' requests are read,
        // and vice versa.
        expected = (callers + queue.len()).div_ceil(2).min(ENOUGH);
    }
    queue.close();
    while let Ok(request) = queue.try_recv() {
        inner.queued.fetch_sub(request.writes.len(), Ordering::Relaxed);
        let answers = request.writes.iter().map(|_| Err(WriteError::Stopped)).collect();
        let _ = request.reply.send(answers);
    }
}

/// Adds queued requests to `requests`, up to `most` rows. If fewer than `expected` are there, waits for more, for [`LINGER`] at most: a commit costs
/// as much as dozens of rows. A single caller never waits.
async fn gather(
    queue: &mut mpsc::Receiver<Request>,
    requests: &mut Vec<Request>,
    rows: &mut usize,
    most: usize,
    expected: usize,
) {
    let until = Instant::now() + LINGER;
    while *rows < most {
        let request = match queue.try_recv() {
            Ok(request) => request,
            Err(_) if requests.len() >= expected => return,
            Err(_) => match tokio::time::timeout_at(until, queue.recv()).await {
                Ok(Some(request)) => request,
                Ok(None) | Err(_) => return,
            },
        };
        *rows += request.writes.len();
        requests.push(request);
    }
}

async fn batch(inner: &Inner, number: u64, requests: Vec<Request>, foresee: &mut bool) {
    let began = Instant::now();
    let longest = requests.iter().map(|r| began - r.since).max().unwrap_or_default();
    let (mut writes, mut replies) = (Vec::new(), Vec::with_capacity(requests.len()));
    for request in requests {
        replies.push((request.writes.len(), request.reply));
        writes.extend(request.writes);
    }
    let mut batch = Batch::new(number, writes, crate::registry::now_millis());
    if *foresee {
        let (epoch, v, known) = inner.cache.recall(&batch.instance_ids());
        let row = |i: Arc<Instance>| {
            let instance = Instance { machines: Machines::default(), ..Instance::clone(&i) };
            (instance.id.clone(), InstanceRow { instance, deleted: false })
        };
        batch.foresee(epoch, v, known.into_iter().map(row).collect());
    }
    let batch = Arc::new(batch);
    let before = inner.cache.revision();
    let result = commit(inner, &batch).await;
    let counters = &inner.counters;
    add(&counters.wait_micros, micros(longest));
    add(&counters.commit_micros, micros(began.elapsed()));
    match result {
        Ok(committed) => {
            add(&counters.commits, 1);
            add(&counters.writes, batch.writes.len() as u64);
            add(&counters.rows_written, committed.records.len() as u64);
            let Committed { revision, wrote, epoch, outcomes, records } = committed;
            // While others commit in between, a prediction would only delay the read of the rows by a round trip.
            *foresee = revision.0 == before.0 + u64::from(wrote);
            if wrote {
                inner.peers.push(inner, epoch, revision, &records);
                if revision <= before {
                    // A new commit must be above every revision seen: this is another history.
                    inner.applier.lock().await.distrust();
                    let _ = inner.catch_up().await;
                }
            }
            // A row that another batch wrote has to be read.
            let is_in = if wrote { inner.offer(epoch, revision, records).await } else { revision <= before };
            if !is_in {
                bring_in(inner, revision).await;
            }
            let mut outcomes = outcomes.into_iter();
            for (rows, reply) in replies {
                // A caller that has gone needs no answer.
                let _ = reply.send(outcomes.by_ref().take(rows).map(Ok).collect());
            }
        }
        Err(error) => {
            add(&counters.failed_commits, 1);
            tracing::warn!(store = inner.store.name(), rows = batch.writes.len(), "commit failed: {error}");
            for (rows, reply) in replies {
                let _ = reply.send((0..rows).map(|_| Err(error.clone())).collect());
            }
        }
    }
}

async fn commit(inner: &Inner, batch: &Arc<Batch>) -> Result<Committed, WriteError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let error = match inner.store.commit(Arc::clone(batch)).await {
            Ok(committed) => {
                // A batch without changes wrote nothing.
                if committed.wrote {
                    noted(inner, Ok(()));
                }
                return Ok(committed);
            }
            Err(StoreError::Undetermined { reason, planned, .. }) => {
                add(&inner.counters.undetermined, 1);
                match retry::resolve("instances", batch.number, || inner.store.resolve(batch.number)).await {
                    Some(Some(revision)) => {
                        add(&inner.counters.undetermined_committed, 1);
                        return Ok(Committed { revision, ..*planned });
                    }
                    Some(None) => StoreError::unavailable(inner.store.name(), "commit", reason),
                    None => return Err(WriteError::Undetermined { reason }),
                }
            }
            Err(error) => error,
        };
        let Some(pause) = retry::pause(&error, attempt) else {
            // A conflict is no fault of the store.
            if !matches!(error, StoreError::Conflict { .. }) {
                noted(inner, Err(error.to_string()));
            }
            return Err(WriteError::Unavailable { reason: error.to_string().into() });
        };
        if matches!(error, StoreError::Conflict { .. }) {
            add(&inner.counters.conflicts, 1);
        }
        tokio::time::sleep(pause).await;
    }
}

fn noted(inner: &Inner, written: Result<(), String>) {
    inner.writable.lock().unwrap_or_else(PoisonError::into_inner).commit(written, Instant::now());
}

/// Waits until this node's cache has a commit that is about to be answered, so that clients read their own writes.
async fn bring_in(inner: &Inner, revision: Revision) {
    // Another node has committed in between, and mostly pushes that commit itself.
    let soon = Instant::now() + TOLD;
    if inner.peers.all_reached()
        && inner.cache.whole().passed(Revision(revision.0.saturating_sub(1)), soon).await >= revision
    {
        return;
    }
    let deadline = Instant::now() + retry::RESOLVE;
    loop {
        // A replica that is read may lag.
        let why = match inner.catch_up().await {
            Ok(()) if inner.cache.revision() >= revision => return,
            Ok(()) => "the store is read where it is not yet".into(),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= deadline {
            // The commit is durable, as the answer says; the feed goes on trying.
            tracing::warn!("revision {revision} is committed but cannot be read back: {why}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
