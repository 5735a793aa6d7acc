//! Where the truth is: one narrow trait, and a store for each database.
//!
//! All stores have the same shape. One row, `registry_rev(v, epoch, gc_floor)`, is locked first in each write transaction
//! and until its end: so transactions of all nodes come one after the other, revisions rise in the order of commits, and
//! whoever reads rows in one snapshot with `v` has seen all rows up to `v`. Nothing slow happens under that lock.

mod address;
pub(crate) mod kv;
mod mysql;
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

/// What an asynchronous call of a [`Store`] returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A batch of writes: one transaction.
#[derive(Debug)]
pub struct Batch {
    /// Number of the batch among those of its writer: rises by one each.
    pub number: u64,
    /// In the order in which they were asked for. A later one for the same id sees what an earlier one made.
    pub writes: Vec<Write>,
    /// Now, in milliseconds since 1970.
    pub now: i64,
    /// What it comes to, if the rows that it concerns are as this node has them in memory.
    foreseen: Option<Foreseen>,
}

/// What a batch comes to where the store is at `v` of the history `epoch`: then the rows are those that the node has in memory, and
/// need not be read.
#[derive(Debug)]
struct Foreseen {
    epoch: i64,
    v: Revision,
    /// Taken by the first who finds that it holds.
    planned: Mutex<Option<Committed>>,
}

/// What became of a batch.
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// The batch's revision; where nothing was written, the latest one.
    pub revision: Revision,
    /// Whether anything was written.
    pub wrote: bool,
    /// The store's epoch.
    pub epoch: i64,
    /// One for each write, in order, with the revision of the row.
    pub outcomes: Vec<(Outcome, Revision)>,
    /// The rows as they are now, of those that were written.
    pub records: Vec<Record>,
}

/// Where a store stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The latest revision.
    pub v: Revision,
    /// Chosen at random when the store was made. Another one is another history: revisions cannot be compared.
    pub epoch: i64,
    /// Tombstones up to this revision are gone: whoever has seen less has to read everything.
    pub gc_floor: Revision,
}

/// What a node is called: chosen at random when it starts. One that was started again is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub i64);

/// A node, as it tells the others of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// Who.
    pub id: NodeId,
    /// `host:port` where it listens for the others.
    pub address: String,
    /// Whether it judges health.
    pub judges: bool,
    /// Rises by one each time it tells: that it rises is the sign of life, whatever the clocks say.
    pub beat: i64,
}

/// Made with the store, and known to whoever can read it: by it nodes recognise each other. Never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

/// The nodes that a store knows of.
#[derive(Debug)]
pub struct Roll {
    /// Of those whose rows are there, at most [`MOST_NODES`]; dead ones too.
    pub nodes: Vec<NodeRow>,
    /// What they have in common.
    pub secret: Secret,
}

/// Most nodes of one store.
pub const MOST_NODES: usize = 64;

/// Whoever reads from a store. All calls of one read concern one snapshot.
pub trait Sink: Send {
    /// First, and once: where the store stands. Returns after which revision rows are wanted; 0 for all.
    fn begin(&mut self, head: Head) -> Revision;
    /// A row; in no order.
    fn record(&mut self, record: Record);
}

/// A database that holds the registry.
///
/// Every call may be dropped before it has ended, and then leaves either nothing or a whole commit behind.
pub trait Store: Send + Sync + 'static {
    /// Name of the kind, for messages and metrics.
    fn name(&self) -> &'static str;

    /// Commits `batch` as one transaction, durably. Rows whose digest does not change are not written; when none is,
    /// the revision does not rise.
    ///
    /// # Errors
    /// `Conflict`, `Unavailable`, `Corrupt`: nothing was written. `Undetermined`: ask [`Store::resolve`].
    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Whether this store's own batch `number` was committed, and as which revision. Waits for a transaction of ours that
    /// the database still works on: the answer is final.
    ///
    /// # Errors
    /// As of [`Store::commit`], without `Undetermined`.
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>>;

    /// Reads where the store stands, and the rows after the revision that `sink` asks for, in one snapshot.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`; `sink` may have got a part.
    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes up to `limit` tombstones of at most revision `up_to` that are older than `before` (ms since 1970), lowest
    /// revision first, and raises `gc_floor` to the highest revision removed. Returns how many.
    ///
    /// # Errors
    /// As of [`Store::commit`].
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>>;

    /// Writes `own` (`None`: nothing), removes the rows of `gone`, and returns the rows that are there: the nodes find each other
    /// by it. Touches neither the counter row nor a revision.
    ///
    /// # Errors
    /// As of [`Store::read`].
    fn attend<'a>(&'a self, own: Option<&'a NodeRow>, gone: &'a [NodeId]) -> BoxFuture<'a, Result<Roll, StoreError>>;

    /// Returns when there may be something after `seen`; also now and then without. Never fails: a store that cannot be
    /// reached lets time pass.
    fn changed(&self, seen: Revision) -> BoxFuture<'_, ()>;

    /// What the client of a TiKV cluster counts and times; none, where the store is something else.
    fn figures(&self) -> Option<&Arc<TikvFigures>> {
        None
    }

    /// The part that holds keys and sessions, if it has one.
    fn kv(&self) -> Option<Arc<dyn KvStore>> {
        None
    }
}

/// Opens the store at `address`, `sqlite:FILE`, `postgres://…`, `mysql://…` or `tikv://…`, and brings its schema up to date.
///
/// # Errors
/// When the address makes no sense, or the database cannot be opened or migrated.
pub async fn open(address: &str) -> Result<Arc<dyn Store>, StoreError> {
    let (scheme, rest) =
        address.split_once(':').ok_or(StoreError::Address { reason: "it does not begin with a kind and a colon" })?;
    match scheme {
        "sqlite" if rest.starts_with(":memory:") || rest.starts_with("file:") => Err(StoreError::Address {
            reason: "sqlite: needs the name of a file: what is only in memory is neither kept nor shared by its connections",
        }),
        "sqlite" if !rest.is_empty() && !rest.contains('\0') => Ok(Arc::new(Sqlite::open(rest).await?)),
        "sqlite" => Err(StoreError::Address { reason: "sqlite: without a file" }),
        "postgres" | "postgresql" => Ok(Arc::new(Postgres::open(address).await?)),
        "mysql" => Ok(Arc::new(MySql::open(address).await?)),
        "tikv" => Ok(Arc::new(TiKv::open(address).await?)),
        _ => Err(StoreError::Address { reason: "this kind of store is not known" }),
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// In hexadecimal, as stores keep it.
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

    /// A new one. Without random numbers from the system there is none.
    fn random(store: &'static str) -> Result<Secret, StoreError> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| StoreError::unavailable(store, "making the store's secret", e))?;
        Ok(Secret(secret))
    }
}

/// A random positive number: an epoch, or the name of a writer.
pub(crate) fn random() -> i64 {
    let mut bytes = [0; 8];
    // Without random numbers from the system the time has to do: what must differ is two openings of one store.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = (std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos()
            as u64)
            .to_be_bytes();
    }
    i64::from_be_bytes(bytes) & i64::MAX
}
