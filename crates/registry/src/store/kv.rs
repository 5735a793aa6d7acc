//! The key-value part of a store: keys and sessions in one table, with a counter of its own.
//!
//! It has the shape of the registry's part: the counter row is locked first in each write transaction and until its end, so revisions rise
//! in the order of commits over all nodes. Under that lock the rows that a node has missed are read, then a pure function
//! ([`KvPlan::plan`]) says what is to be written. So a decision always builds on everything that was committed before it. (TiKV has no
//! such lock: there the rows are read in a snapshot, and a transaction that another one has overtaken is planned and written anew.) The tables are
//! apart from the registry's: a lock that many ask for does not hold up registrations, and older programs can still open the store.

use std::sync::Arc;

use bytes::Bytes;

use super::{BoxFuture, Head};
use crate::error::StoreError;
use crate::kv::{Entry, Session};
use crate::model::{NamespaceName, Revision};

/// What a row is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvContent {
    /// A key.
    Entry(Arc<Entry>),
    /// A session.
    Session(Arc<Session>),
    /// A key that was deleted.
    NoEntry,
    /// A session that has ended.
    NoSession,
}

/// A row: a key, a session, or what is left of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRow {
    /// Whose.
    pub namespace: NamespaceName,
    /// The key, or the id of the session.
    pub name: Arc<str>,
    /// What it is.
    pub content: KvContent,
    /// Of a key whose holder's session has just ended: nobody may take it for so many milliseconds from when a node hears of the row.
    pub lock_delay: u64,
    /// The revision that made it so.
    pub revision: Revision,
    /// When, in milliseconds since 1970: for the age of tombstones.
    pub mtime: i64,
}

/// What a transaction is to do.
#[derive(Debug)]
pub enum KvDecision {
    /// Write these rows; the counter becomes the revision.
    Write(Vec<KvRow>, Revision),
    /// Nothing.
    Nothing,
}

/// Decides what a transaction writes.
pub trait KvPlan: Send + Sync {
    /// After which revision of which history the node lacks rows; asked when the counter is locked, or before the snapshot is taken.
    fn seen(&self) -> (i64, Revision);

    /// Called with the counter locked, or read in a snapshot, and all rows that the node lacks (all that there are, where `missed.whole`).
    /// Called again, after [`KvPlan::seen`], where the transaction begins anew.
    fn plan(&self, missed: KvRead) -> KvDecision;
}

/// What was read in one snapshot.
#[derive(Debug)]
pub struct KvRead {
    /// Where the store stands.
    pub head: Head,
    /// Whether `rows` is everything, and not what came after a revision.
    pub whole: bool,
    /// Rows, in no order.
    pub rows: Vec<KvRow>,
}

/// A database that holds keys and sessions. As of [`super::Store`], every call may be dropped before it has ended.
pub trait KvStore: Send + Sync + 'static {
    /// Where it stands, cheaply: nodes ask several times a second.
    ///
    /// # Errors
    /// `Unavailable`.
    fn head(&self) -> BoxFuture<'_, Result<Head, StoreError>>;

    /// Reads the rows after `after` of the history `epoch`; everything where that history is another one, or tombstones after `after` are
    /// gone.
    ///
    /// # Errors
    /// `Unavailable`, `Corrupt`.
    fn read(&self, epoch: i64, after: Revision) -> BoxFuture<'_, Result<KvRead, StoreError>>;

    /// One transaction: locks the counter, reads what the node lacks, asks `plan`, and commits what it says, durably. `number` rises with
    /// each call, for [`KvStore::resolve`].
    ///
    /// # Errors
    /// `Conflict`, `Unavailable`, `Corrupt`: nothing was written. `Undetermined`: ask [`KvStore::resolve`].
    fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Whether the own commit `number` happened. Waits for a transaction of ours that the database still works on.
    ///
    /// # Errors
    /// As of [`KvStore::commit`], without `Undetermined`.
    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Removes tombstones of at most revision `up_to` that are older than `before` (ms since 1970), at most about `limit`. Returns how
    /// many.
    ///
    /// # Errors
    /// As of [`KvStore::commit`].
    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>>;
}

// The counter begins at 1, so the first write is 2: Consul's clients take an index of 0 for none, and are told 1 where nothing has been yet.

/// The version of the tables that this program knows.
pub(crate) const VERSION: i64 = 1;

/// The columns of `registry_kv`, in the order in which every statement names them. The first three are the key.
pub(crate) const COLUMNS: &str =
    "namespace, kind, name, value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime";

const ENTRY: i64 = 0;
const SESSION: i64 = 1;

/// The columns of a row, as every database takes and gives them.
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

/// After which revision rows are to be read by a node that has seen `after` of the history `epoch`, and whether that is everything.
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
                // All 64 bits are the client's: the sign has no meaning.
                columns.flags = entry.flags.cast_signed();
                columns.session = entry.session.as_deref().map(str::to_owned);
                columns.lock_index = column(entry.lock_index);
                columns.created = super::row::column(entry.created);
            }
            KvContent::Session(session) => {
                columns.kind = SESSION;
                // A struct of texts and numbers: it can be written.
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
    /// The row. What no registry can have written is an error, not a guess.
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
