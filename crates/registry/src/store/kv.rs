//! The key-value part of a store: keys and sessions in one table, with a counter of its own.
//!
//! It works like the registry's part: a write transaction locks the counter row first and until its end, so revisions rise in commit order across all
//! nodes. Under that lock the rows that a node has missed are read, then a pure function ([`KvPlan::plan`]) returns the rows to write. So a decision
//! is always based on everything committed before it. (TiKV has no such lock: there the rows are read in a snapshot, and a transaction that another
//! one has overtaken is planned and written again.) The tables are separate from the registry's: a contended lock does not hold up registrations, and
//! older programs can still open the store.

use std::sync::Arc;

use bytes::Bytes;

use super::{BoxFuture, Head};
use crate::error::StoreError;
use crate::kv::{Entry, Session};
use crate::model::{NamespaceName, Revision};

/// Content of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvContent {
    /// A key.
    Entry(Arc<Entry>),
    /// A session.
    Session(Arc<Session>),
    /// A deleted key.
    NoEntry,
    /// An ended session.
    NoSession,
}

/// A row: a key, a session, or the tombstone of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRow {
    /// The namespace.
    pub namespace: NamespaceName,
    /// The key, or the id of the session.
    pub name: Arc<str>,
    /// The content.
    pub content: KvContent,
    /// Milliseconds, from the time a node receives the row, during which nobody may acquire the key; set when the holder's session ends.
    pub lock_delay: u64,
    /// The revision of the row's last change.
    pub revision: Revision,
    /// Time of the change, in milliseconds since 1970: for the age of tombstones.
    pub mtime: i64,
}

/// Result of a plan.
#[derive(Debug)]
pub enum KvDecision {
    /// Write these rows; the counter becomes the revision.
    Write(Vec<KvRow>, Revision),
    /// No change.
    Nothing,
}

/// Decides the writes of a transaction.
pub trait KvPlan: Send + Sync {
    /// Returns the history and revision after which the node lacks rows; called with the counter locked, or before the snapshot is taken.
    fn seen(&self) -> (i64, Revision);

    /// Called with the counter locked, or read in a snapshot, and with all rows that the node lacks (every row if `missed.whole`). Called again,
    /// after [`KvPlan::seen`], if the transaction is started again.
    fn plan(&self, missed: KvRead) -> KvDecision;
}

/// Rows and head, read in one snapshot.
#[derive(Debug)]
pub struct KvRead {
    /// The store's head.
    pub head: Head,
    /// True if `rows` is every row, and not only those after a revision.
    pub whole: bool,
    /// Rows, in no order.
    pub rows: Vec<KvRow>,
}

/// A database that holds keys and sessions. As with [`super::Store`], every call may be dropped before it has ended.
pub trait KvStore: Send + Sync + 'static {
    /// Returns the store's head, cheaply: nodes ask several times a second.
    ///
    /// # Errors
    /// `Unavailable`.
    fn head(&self) -> BoxFuture<'_, Result<Head, StoreError>>;

    /// Reads the rows after `after` of the history `epoch`; reads every row if the history is another one, or if tombstones after `after` have been
    /// removed.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    fn read(&self, epoch: i64, after: Revision) -> BoxFuture<'_, Result<KvRead, StoreError>>;

    /// Runs one transaction: locks the counter, reads the rows that the node lacks, calls `plan`, and commits its rows durably. `number` rises with
    /// each call, for [`KvStore::resolve`].
    ///
    /// # Errors
    /// `Conflict`, `Unavailable`, `Corrupt`: nothing was written. `Undetermined`: ask [`KvStore::resolve`].
    fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns true if this opening's commit `number` happened. Waits for a transaction of its own that the database still works on.
    ///
    /// # Errors
    /// The same as for [`KvStore::commit`], without `Undetermined`.
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Removes tombstones of at most revision `up_to` that are older than `before` (ms since 1970), at most about `limit`. Returns the number
    /// removed.
    ///
    /// # Errors
    /// The same as for [`KvStore::commit`].
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>>;
}

// The counter begins at 1, so the first write is 2: Consul's clients take an index of 0 for absent, and get 1 before the first write.

/// The newest version of the tables that this program knows.
pub(crate) const VERSION: i64 = 1;

/// The columns of `registry_kv`, in the order in which every statement names them. The first three are the key.
pub(crate) const COLUMNS: &str =
    "namespace, kind, name, value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime";

const ENTRY: i64 = 0;
const SESSION: i64 = 1;

/// The columns of a row, in the types of all databases.
pub(crate) struct KvColumns {
    pub(crate) namespace: String,
    pub(crate) kind: i64,
    pub(crate) name: String,
    pub(crate) value: Bytes,
    pub(crate) flags: i64,
    pub(crate) session: Option<String>,
    pub(crate) lock_index: i64,
    pub(crate) lock_delay: i64,
    pub(crate) created: i64,
    pub(crate) rev: i64,
    pub(crate) deleted: bool,
    pub(crate) mtime: i64,
}

/// Returns the revision after which rows must be read for a node that has seen `after` of the history `epoch`, and true if that means every row.
pub(crate) fn lacks(head: Head, (epoch, after): (i64, Revision)) -> (Revision, bool) {
    let whole = head.epoch != epoch || head.v < after || after < head.gc_floor;
    (if whole { Revision(0) } else { after }, whole)
}

impl KvRow {
    pub(crate) fn columns(&self) -> KvColumns {
        let column = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut columns = KvColumns {
            namespace: self.namespace.as_str().to_owned(),
            kind: ENTRY,
            name: self.name.to_string(),
            value: Bytes::new(),
            flags: 0,
            session: None,
            lock_index: 0,
            lock_delay: column(self.lock_delay),
            created: 0,
            rev: super::row::column(self.revision),
            deleted: false,
            mtime: self.mtime,
        };
        match &self.content {
            KvContent::Entry(entry) => {
                columns.value = entry.value.clone();
                // All 64 bits belong to the client: the sign has no meaning.
                columns.flags = entry.flags.cast_signed();
                columns.session = entry.session.as_deref().map(str::to_owned);
                columns.lock_index = column(entry.lock_index);
                columns.created = super::row::column(entry.created);
            }
            KvContent::Session(session) => {
                columns.kind = SESSION;
                // A struct of texts and numbers: encoding cannot fail.
                columns.value = serde_json::to_vec(&**session).unwrap_or_default().into();
                columns.created = super::row::column(session.created);
            }
            KvContent::NoEntry => columns.deleted = true,
            KvContent::NoSession => (columns.kind, columns.deleted) = (SESSION, true),
        }
        columns
    }
}

impl KvColumns {
    /// Decodes a row. Content that no registry can have written is an error.
    pub(crate) fn decode(self, store: &'static str) -> Result<KvRow, StoreError> {
        let what = format!("registry_kv {}/{}", self.namespace, self.name);
        let wrong = |reason: &dyn std::fmt::Display| StoreError::corrupt(store, &what, reason);
        let positive = |column: &str, value: i64| {
            u64::try_from(value).map_err(|_| wrong(&format_args!("{column} {value} is negative")))
        };
        let name: Arc<str> = self.name.as_str().into();
        let revision = Revision(positive("rev", self.rev)?);
        let created = Revision(positive("created", self.created)?);
        let content = match (self.kind, self.deleted) {
            (ENTRY, false) => KvContent::Entry(Arc::new(Entry {
                key: Arc::clone(&name),
                value: self.value,
                flags: self.flags.cast_unsigned(),
                session: self.session.map(Into::into),
                lock_index: positive("lock_index", self.lock_index)?,
                created,
                modified: revision,
            })),
            (SESSION, false) => {
                let session: Session = serde_json::from_slice(&self.value).map_err(|e| wrong(&e))?;
                KvContent::Session(Arc::new(Session { id: Arc::clone(&name), created, modified: revision, ..session }))
            }
            (ENTRY, true) => KvContent::NoEntry,
            (SESSION, true) => KvContent::NoSession,
            (kind, _) => return Err(wrong(&format_args!("kind {kind} is not known"))),
        };
        let namespace = NamespaceName::stored(&self.namespace).map_err(|e| wrong(&e))?;
        let lock_delay = positive("lock_delay", self.lock_delay)?;
        Ok(KvRow { namespace, name, content, lock_delay, revision, mtime: self.mtime })
    }
}
