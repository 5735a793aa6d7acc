//! The authoritative store: one narrow trait, and an implementation for each database.
//!
//! One row, `registry_rev(v, epoch, gc_floor)`, is locked first in each write transaction and until its end: so transactions of all nodes are
//! serialised, revisions rise in commit order, and a reader that reads rows in one snapshot with `v` has seen all rows up to `v`. Nothing slow
//! happens under that lock. (TiKV has no such lock: of two transactions that read the same counter one commits, and the other is started again.)

mod address;
pub(crate) mod kv;
mod mysql;
mod open;
mod plan;
mod postgres;
mod row;
mod sqlite;
mod tikv;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

pub use ::tikv::{BUCKETS as TIKV_BUCKETS_MICROS, Figures as TikvFigures};
pub use kv::{KvContent, KvDecision, KvPlan, KvRead, KvRow, KvStore};
pub use mysql::MySql;
pub use open::open;
#[cfg(test)]
pub(crate) use plan::{Existing, plan};
pub use plan::{Outcome, Write, WriteKind};
pub use postgres::Postgres;
pub(crate) use row::Columns;
pub use row::{InstanceRow, Interner, Record, ServiceRow};
pub use sqlite::Sqlite;
pub use tikv::{TIKV_MOST_VALUE, TiKv};

use crate::error::StoreError;
use crate::model::Revision;

/// Future returned by an asynchronous call of a [`Store`].
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A batch of writes: one transaction.
#[derive(Debug)]
pub struct Batch {
    /// Number of the batch among those of its writer; rises by one.
    pub number: u64,
    /// Writes in the order of the requests. A later one for the same id sees the result of an earlier one.
    pub writes: Vec<Write>,
    /// The current time, in milliseconds since 1970.
    pub now: i64,
    /// The result, computed in advance from this node's cache.
    foreseen: Option<Foreseen>,
}

/// The result of a batch if the store is at `v` of the history `epoch`: then the rows are those in this node's cache, and need not be read.
#[derive(Debug)]
struct Foreseen {
    epoch: i64,
    v: Revision,
    /// Taken by the first attempt for which the result holds.
    planned: Mutex<Option<Committed>>,
}

/// The result of a batch.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// The batch's revision; the latest one if nothing was written.
    pub revision: Revision,
    /// True if anything was written.
    pub wrote: bool,
    /// The store's epoch.
    pub epoch: i64,
    /// One outcome for each write, in order, with the revision of the row.
    pub outcomes: Vec<(Outcome, Revision)>,
    /// The new content of the rows written.
    pub records: Vec<Record>,
}

/// The head of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The latest revision.
    pub v: Revision,
    /// Chosen at random when the store was created. Another epoch is another history: their revisions cannot be compared.
    pub epoch: i64,
    /// Tombstones up to this revision have been removed: a node that has seen less must read everything.
    pub gc_floor: Revision,
}

/// Id of a node, chosen at random when it starts. A restarted node has a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub i64);

/// A node's row, by which the others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// The id.
    pub id: NodeId,
    /// `host:port` on which it listens for the others.
    pub address: String,
    /// True if it judges health.
    pub judges: bool,
    /// Rises by one with each write of the row: the others take the rise for a sign of life, whatever the clocks say.
    pub beat: i64,
}

/// A secret created with the store, known to any process that can read the store: nodes authenticate each other by it. Never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

/// The nodes that a store lists.
#[derive(Debug)]
pub struct NodeList {
    /// Rows of nodes, at most [`MOST_NODES`], including dead nodes.
    pub nodes: Vec<NodeRow>,
    /// The secret of the store.
    pub secret: Secret,
}

/// Maximum number of nodes of one store.
pub const MOST_NODES: usize = 64;

/// Receiver of a read. All calls of one read concern one snapshot.
pub trait Sink: Send {
    /// Called first, and once, with the store's head. Returns the revision after which rows are wanted; 0 for all.
    fn begin(&mut self, head: Head) -> Revision;
    /// Receives a row; rows are in no order.
    fn record(&mut self, record: Record);
}

/// A database that holds the registry.
///
/// Every call may be dropped before it has ended; it then leaves either nothing or a whole commit behind.
pub trait Store: Send + Sync + 'static {
    /// Returns the kind of the store, for messages and metrics.
    fn name(&self) -> &'static str;

    /// Commits `batch` as one transaction, durably. Rows with an unchanged digest are not written; if none is written, the revision does not rise.
    ///
    /// # Errors
    /// `Conflict`, `Unavailable`, `Corrupt`: nothing was written. `Undetermined`: ask [`Store::resolve`].
    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Returns the revision of this opening's batch `number`, if it was committed. Waits for a transaction of its own that the database still works
    /// on: the answer is final.
    ///
    /// # Errors
    /// The same as for [`Store::commit`], without `Undetermined`.
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>>;

    /// Reads the head, and the rows after the revision that `sink` asks for, in one snapshot.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`; `sink` may have received a part.
    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes up to `limit` tombstones of at most revision `up_to` that are older than `before` (ms since 1970), lowest revision first, and raises
    /// `gc_floor` to the highest revision removed. Returns the number removed.
    ///
    /// # Errors
    /// The same as for [`Store::commit`].
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>>;

    /// Writes `own` (`None`: nothing), removes the rows of `gone`, and returns all rows of nodes: so the nodes find each other. Touches neither the
    /// counter row nor a revision.
    ///
    /// # Errors
    /// The same as for [`Store::read`].
    fn attend<'a>(
        &'a self,
        own: Option<&'a NodeRow>,
        gone: &'a [NodeId],
    ) -> BoxFuture<'a, Result<NodeList, StoreError>>;

    /// Returns when there may be a revision after `seen`; from time to time also without one. Never fails: an unreachable store only lets time pass.
    fn changed(&self, seen: Revision) -> BoxFuture<'_, ()>;

    /// Returns the counters and timings of the TiKV client; `None` for another kind of store.
    fn figures(&self) -> Option<&Arc<TikvFigures>> {
        None
    }

    /// Returns the part that holds keys and sessions, if there is one.
    fn kv(&self) -> Option<Arc<dyn KvStore>> {
        None
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Returns the secret in hexadecimal, the stored form.
    fn text(&self) -> String {
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            use std::fmt::Write as _;
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn parse(store: &'static str, text: &str) -> Result<Secret, StoreError> {
        let wrong = || StoreError::corrupt(store, "registry_secret", "expected 64 hexadecimal digits");
        let mut secret = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        for (index, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Secret(secret))
    }

    /// Makes a new secret. Fails if the system gives no random numbers.
    fn random(store: &'static str) -> Result<Secret, StoreError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| StoreError::unavailable(store, "making the store's secret", e))?;
        Ok(Secret(secret))
    }
}

/// Returns a random positive number: an epoch, or the id of a writer.
pub(crate) fn random() -> i64 {
    let mut bytes = [0; 8];
    // Without random numbers from the system the time must do: only two openings of one store have to differ.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = (std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos()
            as u64)
            .to_be_bytes();
    }
    i64::from_be_bytes(bytes) & i64::MAX
}
