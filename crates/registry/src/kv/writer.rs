//! The writer of a node: many calls, one transaction at a time. A batch begins when the previous one is done, with the calls that wait then.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::model::Ask;
use super::plan::{CallResult, Draft};
use super::{Kv, lock};
use crate::error::{StoreError, WriteError};
use crate::model::Revision;
use crate::registry::Inner;
use crate::retry;
use crate::store::{Head, KvDecision, KvPlan, KvRead, KvRow};

/// Maximum number of calls in a batch, and of bytes of their values: every database takes this much in one transaction.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;

/// A call that waits for its batch.
pub(crate) struct Queued {
    ask: Ask,
    reply: oneshot::Sender<Result<CallResult, WriteError>>,
}

impl Queued {
    /// Makes a queued call, and the receiver of its answer.
    pub(crate) fn new(ask: Ask) -> (Queued, oneshot::Receiver<Result<CallResult, WriteError>>) {
        let (reply, answer) = oneshot::channel();
        (Queued { ask, reply }, answer)
    }

    fn bytes(&self) -> usize {
        match &self.ask {
            Ask::Operations(_, operations) => operations.iter().map(|operation| operation.verb.bytes()).sum(),
            _ => 0,
        }
    }
}

/// A batch in the form that the store carries out.
struct Batch {
    inner: Arc<Inner>,
    asks: Vec<Ask>,
    planned: Mutex<Option<Planned>>,
}

/// The result of a batch.
struct Planned {
    head: Head,
    rows: Vec<KvRow>,
    answers: Vec<CallResult>,
}

impl KvPlan for Batch {
    fn seen(&self) -> (i64, Revision) {
        let Some(kv) = &self.inner.kv else { return (0, Revision(0)) };
        let state = kv.state();
        (state.epoch, state.v)
    }

    fn plan(&self, missed: KvRead) -> KvDecision {
        let Some(kv) = &self.inner.kv else { return KvDecision::Nothing };
        let head = missed.head;
        // These rows are committed, whatever becomes of this batch, and no other commit can happen before this transaction ends. In TiKV one can:
        // then the state may be ahead of `missed`, whose older rows change nothing, and the commit conflicts.
        kv.take(missed);
        let state = kv.state();
        let now = (Instant::now(), crate::registry::now_millis());
        let mut draft = Draft::new(&state, &kv.limits, now.0, now.1).with_config(&kv.config);
        let answers = self.asks.iter().map(|ask| draft.run(ask)).collect();
        let (rows, v) = draft.rows();
        let decision = if rows.is_empty() { KvDecision::Nothing } else { KvDecision::Write(rows.clone(), v) };
        *lock(&self.planned) = Some(Planned { head: Head { v, ..head }, rows, answers });
        decision
    }
}

/// Runs until the registry stops; then fails the queued calls.
pub(super) async fn run(inner: Arc<Inner>, mut queue: mpsc::Receiver<Queued>) {
    let Some(kv) = &inner.kv else { return };
    let mut stop = inner.stop.subscribe();
    let mut number = 0;
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                request = queue.recv() => match request {
                    Some(request) => request,
                    None => break,
                },
            },
        };
        let mut bytes = first.bytes();
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(request) = queue.try_recv()
        {
            bytes += request.bytes();
            if bytes > BATCH_BYTES {
                next = Some(request);
                break;
            }
            batch.push(request);
        }
        number += 1;
        kv.queued.fetch_sub(batch.len(), Ordering::Relaxed);
        carry_out(&inner, kv, number, batch).await;
    }
    queue.close();
    let rest = std::iter::from_fn(|| queue.try_recv().ok());
    next.into_iter().chain(rest).for_each(|request| drop(request.reply.send(Err(WriteError::Stopped))));
}

async fn carry_out(inner: &Arc<Inner>, kv: &Kv, number: u64, requests: Vec<Queued>) {
    let (asks, replies): (Vec<Ask>, Vec<_>) = requests.into_iter().map(|request| (request.ask, request.reply)).unzip();
    let batch = Arc::new(Batch { inner: Arc::clone(inner), asks, planned: Mutex::default() });
    let result = commit(inner, kv, number, &batch).await;
    let planned = lock(&batch.planned).take();
    match (result, planned) {
        (Ok(()), Some(Planned { head, rows, answers })) => {
            if !rows.is_empty() {
                kv.take(KvRead { head, whole: false, rows });
            }
            for (reply, answer) in replies.into_iter().zip(answers) {
                // A caller that has gone needs no answer.
                let _ = reply.send(Ok(answer));
            }
        }
        (result, _) => {
            let error = result.err().unwrap_or(WriteError::Stopped);
            tracing::warn!(store = inner.store.name(), "a commit of keys failed: {error}");
            replies.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
        }
    }
}

async fn commit(inner: &Inner, kv: &Kv, number: u64, batch: &Arc<Batch>) -> Result<(), WriteError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let plan: Arc<dyn KvPlan> = Arc::clone(batch) as Arc<dyn KvPlan>;
        let error = match kv.store.commit(number, plan).await {
            Ok(()) => return Ok(()),
            Err(StoreError::Undetermined { reason, .. }) => {
                match retry::resolve("keys", number, || kv.store.resolve(number)).await {
                    Some(true) => return Ok(()),
                    Some(false) => StoreError::unavailable(inner.store.name(), "commit", reason),
                    None => return Err(WriteError::Undetermined { reason }),
                }
            }
            Err(error) => error,
        };
        let Some(pause) = retry::pause(&error, attempt) else {
            return Err(WriteError::Unavailable { reason: error.to_string().into() });
        };
        tokio::time::sleep(pause).await;
    }
}
