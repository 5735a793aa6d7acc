//! Keys and sessions in the embedded store. They share its connections, so that several writers in one process wait for a mutex, and not for the
//! file.

use rusqlite::{Connection, OptionalExtension as _, Row, TransactionBehavior, params};
use std::sync::{Arc, Mutex};

use super::super::kv::{COLUMNS, KvColumns, KvDecision, KvPlan, KvRead, KvRow, KvStore, VERSION, lacks};
use super::super::row;
use super::super::{BoxFuture, Head, random};
use super::{STORE, blocking, failed, lock};
use crate::error::StoreError;
use crate::model::Revision;

/// The key-value part of a file.
pub(super) struct SqliteKv {
    writer: Arc<Mutex<Connection>>,
    reader: Arc<Mutex<Connection>>,
    /// Id of this opening of the store in `registry_writer`.
    id: i64,
}

impl SqliteKv {
    pub(super) fn new(writer: Arc<Mutex<Connection>>, reader: Arc<Mutex<Connection>>) -> SqliteKv {
        SqliteKv { writer, reader, id: random() }
    }
}

/// Creates the tables if they are absent.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let error = |e| failed("migrating the key-value tables", e);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    transaction
        .execute_batch(
            "CREATE TABLE IF NOT EXISTS registry_kv_rev (one INTEGER PRIMARY KEY CHECK (one = 1), v INTEGER NOT NULL,
                 epoch INTEGER NOT NULL, gc_floor INTEGER NOT NULL, version INTEGER NOT NULL);
             CREATE TABLE IF NOT EXISTS registry_kv (namespace TEXT NOT NULL, kind INTEGER NOT NULL, name TEXT NOT NULL,
                 value BLOB NOT NULL, flags INTEGER NOT NULL, session TEXT, lock_index INTEGER NOT NULL,
                 lock_delay INTEGER NOT NULL, created INTEGER NOT NULL, rev INTEGER NOT NULL, deleted INTEGER NOT NULL,
                 mtime INTEGER NOT NULL, PRIMARY KEY (namespace, kind, name));
             CREATE INDEX IF NOT EXISTS registry_kv_by_rev ON registry_kv (rev);",
        )
        .map_err(error)?;
    let first = "INSERT OR IGNORE INTO registry_kv_rev (one, v, epoch, gc_floor, version) VALUES (1, 1, ?, 0, ?)";
    transaction.execute(first, params![random(), VERSION]).map_err(error)?;
    let found: i64 =
        transaction.query_row("SELECT version FROM registry_kv_rev", [], |row| row.get(0)).map_err(error)?;
    if found > VERSION {
        return Err(StoreError::Newer { store: STORE, found, known: VERSION });
    }
    transaction.commit().map_err(error)
}

fn head(connection: &Connection) -> Result<Head, StoreError> {
    let (v, epoch, gc_floor): (i64, i64, i64) = connection
        .prepare_cached("SELECT v, epoch, gc_floor FROM registry_kv_rev")
        .and_then(|mut s| s.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))))
        .map_err(|e| failed("reading the key-value revision", e))?;
    let negative = || StoreError::corrupt(STORE, "registry_kv_rev", "a negative revision");
    let revision = |number| row::revision(number).ok_or_else(negative);
    Ok(Head { v: revision(v)?, epoch, gc_floor: revision(gc_floor)? })
}

fn read(connection: &Connection, seen: (i64, Revision)) -> Result<KvRead, StoreError> {
    let error = |e| failed("reading keys", e);
    let head = head(connection)?;
    let (after, whole) = lacks(head, seen);
    let mut found = Vec::new();
    if after < head.v {
        let mut statement =
            connection.prepare_cached(&format!("SELECT {COLUMNS} FROM registry_kv WHERE rev > ?")).map_err(error)?;
        let mut rows = statement.query([row::column(after)]).map_err(error)?;
        while let Some(row) = rows.next().map_err(error)? {
            let columns = columns(row).map_err(|e| StoreError::corrupt(STORE, "a row of registry_kv", e))?;
            found.push(columns.decode(STORE)?);
        }
    }
    Ok(KvRead { head, whole, rows: found })
}

fn columns(row: &Row<'_>) -> rusqlite::Result<KvColumns> {
    Ok(KvColumns {
        namespace: row.get(0)?,
        kind: row.get(1)?,
        name: row.get(2)?,
        value: row.get::<_, Vec<u8>>(3)?.into(),
        flags: row.get(4)?,
        session: row.get(5)?,
        lock_index: row.get(6)?,
        lock_delay: row.get(7)?,
        created: row.get(8)?,
        rev: row.get(9)?,
        deleted: row.get(10)?,
        mtime: row.get(11)?,
    })
}

fn commit(connection: &mut Connection, id: i64, number: u64, plan: &dyn KvPlan) -> Result<(), StoreError> {
    let error = |e| failed("commit", e);
    // Takes the file's write lock at once, so that the rows read below cannot change before the end.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    let missed = read(&transaction, plan.seen())?;
    let KvDecision::Write(rows, v) = plan.plan(missed) else { return Ok(()) };
    {
        let rev = row::column(v);
        let mtime = rows.first().map_or(0, |row| row.mtime);
        transaction
            .prepare_cached("UPDATE registry_kv_rev SET v = ?")
            .and_then(|mut s| s.execute([rev]))
            .map_err(error)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO registry_writer (id, batch, rev, mtime) VALUES (?, ?, ?, ?)")
            .and_then(|mut s| s.execute(params![id, i64::try_from(number).unwrap_or(0), rev, mtime]))
            .map_err(error)?;
        let put = format!("INSERT OR REPLACE INTO registry_kv ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
        let mut put = transaction.prepare_cached(&put).map_err(error)?;
        for row in &rows {
            write(&mut put, row).map_err(error)?;
        }
    }
    match transaction.commit() {
        Ok(()) => Ok(()),
        // The disk may have failed before or after the log contained the commit.
        Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::SystemIoFailure) => {
            Err(StoreError::Undetermined { store: STORE, reason: e.to_string().into(), planned: Box::default() })
        }
        Err(e) => Err(error(e)),
    }
}

fn write(put: &mut rusqlite::Statement<'_>, row: &KvRow) -> rusqlite::Result<usize> {
    let c = row.columns();
    put.execute(params![
        c.namespace,
        c.kind,
        c.name,
        &c.value[..],
        c.flags,
        c.session,
        c.lock_index,
        c.lock_delay,
        c.created,
        c.rev,
        c.deleted,
        c.mtime
    ])
}

impl KvStore for SqliteKv {
    fn head(&self) -> BoxFuture<'_, Result<Head, StoreError>> {
        let connection = Arc::clone(&self.reader);
        Box::pin(blocking("reading the key-value revision", move || head(&lock(&connection))))
    }

    fn read(&self, epoch: i64, after: Revision) -> BoxFuture<'_, Result<KvRead, StoreError>> {
        let connection = Arc::clone(&self.reader);
        Box::pin(blocking("reading keys", move || {
            let mut connection = lock(&connection);
            let transaction = connection.transaction().map_err(|e| failed("reading keys", e))?;
            read(&transaction, (epoch, after))
        }))
    }

    fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> BoxFuture<'_, Result<(), StoreError>> {
        let (connection, id) = (Arc::clone(&self.writer), self.id);
        Box::pin(blocking("commit", move || commit(&mut lock(&connection), id, number, &*plan)))
    }

    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let (connection, id) = (Arc::clone(&self.writer), self.id);
        Box::pin(blocking("resolving a commit", move || {
            let connection = lock(&connection);
            let error = |e| failed("resolving a commit", e);
            // A transaction left open by a failed COMMIT has not happened.
            if !connection.is_autocommit() {
                connection.execute_batch("ROLLBACK").map_err(error)?;
            }
            let found: Option<i64> = connection
                .query_row("SELECT batch FROM registry_writer WHERE id = ?", [id], |row| row.get(0))
                .optional()
                .map_err(error)?;
            Ok(found.is_some_and(|batch| u64::try_from(batch) == Ok(number)))
        }))
    }

    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        let connection = Arc::clone(&self.writer);
        Box::pin(blocking("collecting deleted keys", move || {
            let error = |e| failed("collecting deleted keys", e);
            let mut connection = lock(&connection);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let floor: Option<i64> = transaction
                .query_row(
                    "SELECT max(rev) FROM (SELECT rev FROM registry_kv WHERE deleted AND rev <= ? AND mtime < ?
                                           ORDER BY rev LIMIT ?)",
                    params![row::column(up_to), before, limit],
                    |row| row.get(0),
                )
                .map_err(error)?;
            let Some(floor) = floor else { return Ok(0) };
            transaction.execute("UPDATE registry_kv_rev SET gc_floor = max(gc_floor, ?)", [floor]).map_err(error)?;
            let gone = "DELETE FROM registry_kv WHERE deleted AND rev <= ? AND mtime < ?";
            let removed = transaction.execute(gone, params![floor, before]).map_err(error)?;
            transaction.commit().map_err(error)?;
            Ok(removed)
        }))
    }
}
