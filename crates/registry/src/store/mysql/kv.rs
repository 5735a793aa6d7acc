//! Keys and sessions in MySQL or MariaDB: one connection writes, another reads. A connection that had any error is closed.

use std::sync::Arc;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row, Value};
use tokio::sync::Mutex;

use super::super::kv::{COLUMNS, KvColumns, KvDecision, KvPlan, KvRead, KvRow, KvStore, VERSION, lacks};
use super::super::row;
use super::super::{BoxFuture, Head, random};
use super::{PATIENCE, STORE, Server, Upsert, failed, pieces, size, within};
use crate::error::StoreError;
use crate::model::Revision;

/// The key-value part of a database.
pub(super) struct MySqlKv {
    server: Server,
    /// Id of this opening of the store in `registry_writer`.
    id: i64,
    writer: Mutex<Option<Conn>>,
    reader: Mutex<Option<Conn>>,
}

const HEAD: &str = "SELECT v, epoch, gc_floor FROM registry_kv_rev";

/// Creates the tables if they are absent. Each statement may be run by several nodes at once.
pub(super) async fn migrate(connection: &mut Conn) -> Result<(), StoreError> {
    let doing = "migrating the key-value tables";
    let migrating = async {
        for sql in [
            "CREATE TABLE IF NOT EXISTS registry_kv_rev (one INT PRIMARY KEY, v BIGINT NOT NULL, epoch BIGINT NOT NULL,
                gc_floor BIGINT NOT NULL, version BIGINT NOT NULL) ENGINE = InnoDB",
            "CREATE TABLE IF NOT EXISTS registry_kv (namespace VARBINARY(64) NOT NULL, kind BIGINT NOT NULL,
                name VARBINARY(1024) NOT NULL, value LONGBLOB NOT NULL, flags BIGINT NOT NULL, session VARBINARY(64),
                lock_index BIGINT NOT NULL, lock_delay BIGINT NOT NULL, created BIGINT NOT NULL, rev BIGINT NOT NULL,
                deleted BOOL NOT NULL, mtime BIGINT NOT NULL, PRIMARY KEY (namespace, kind, name),
                INDEX registry_kv_by_rev (rev)) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
        ] {
            connection.query_drop(sql).await?;
        }
        let first = "INSERT IGNORE INTO registry_kv_rev (one, v, epoch, gc_floor, version) VALUES (1, 1, ?, 0, ?)";
        connection.exec_drop(first, (random(), VERSION)).await?;
        let found: Option<i64> = connection.query_first("SELECT version FROM registry_kv_rev").await?;
        Ok(found.unwrap_or(0))
    };
    let found = within(doing, migrating).await?.map_err(|e| failed(doing, &e))?;
    if found > VERSION { Err(StoreError::Newer { store: STORE, found, known: VERSION }) } else { Ok(()) }
}

fn head(row: Option<(i64, i64, i64)>) -> Result<Head, StoreError> {
    let wrong = || StoreError::corrupt(STORE, "registry_kv_rev", "no row, or a negative revision");
    let (v, epoch, gc_floor) = row.ok_or_else(wrong)?;
    let revision = |number| row::revision(number).ok_or_else(wrong);
    Ok(Head { v: revision(v)?, epoch, gc_floor: revision(gc_floor)? })
}

fn columns(mut row: Row) -> Option<KvColumns> {
    let text = |row: &mut Row, n| String::from_utf8(row.take_opt::<Vec<u8>, _>(n)?.ok()?).ok();
    let number = |row: &mut Row, n| row.take_opt::<i64, _>(n)?.ok();
    Some(KvColumns {
        namespace: text(&mut row, 0)?,
        kind: number(&mut row, 1)?,
        name: text(&mut row, 2)?,
        value: row.take_opt::<Vec<u8>, _>(3)?.ok()?.into(),
        flags: number(&mut row, 4)?,
        session: match row.take_opt::<Option<Vec<u8>>, _>(5)?.ok()? {
            Some(session) => Some(String::from_utf8(session).ok()?),
            None => None,
        },
        lock_index: number(&mut row, 6)?,
        lock_delay: number(&mut row, 7)?,
        created: number(&mut row, 8)?,
        rev: number(&mut row, 9)?,
        deleted: number(&mut row, 10)? != 0,
        mtime: number(&mut row, 11)?,
    })
}

fn values(row: &KvRow) -> Vec<Value> {
    let c = row.columns();
    vec![
        c.namespace.into(),
        c.kind.into(),
        c.name.into(),
        c.value.to_vec().into(),
        c.flags.into(),
        c.session.into(),
        c.lock_index.into(),
        c.lock_delay.into(),
        c.created.into(),
        c.rev.into(),
        c.deleted.into(),
        c.mtime.into(),
    ]
}

/// Reads the rows after `seen` that a node lacks, in the transaction of `connection`.
async fn missed(connection: &mut Conn, head: Head, seen: (i64, Revision)) -> Result<KvRead, StoreError> {
    let (after, whole) = lacks(head, seen);
    let mut found = Vec::new();
    if after < head.v {
        let sql = format!("SELECT {COLUMNS} FROM registry_kv WHERE rev > ?");
        let rows: Vec<Row> =
            connection.exec(sql, (row::column(after),)).await.map_err(|e| failed("reading keys", &e))?;
        for row in rows {
            let wrong = || StoreError::corrupt(STORE, "a row of registry_kv", "a column of another type");
            found.push(columns(row).ok_or_else(wrong)?.decode(STORE)?);
        }
    }
    Ok(KvRead { head, whole, rows: found })
}

/// Runs a transaction up to its end. Returns true if there is anything to commit.
async fn write(connection: &mut Conn, id: i64, number: u64, plan: &dyn KvPlan) -> Result<bool, StoreError> {
    let error = |e| failed("commit", &e);
    connection.query_drop("START TRANSACTION").await.map_err(error)?;
    let locked = connection.query_first("SELECT v, epoch, gc_floor FROM registry_kv_rev FOR UPDATE").await;
    let head = head(locked.map_err(error)?)?;
    let missed = missed(connection, head, plan.seen()).await?;
    let KvDecision::Write(rows, v) = plan.plan(missed) else { return Ok(false) };
    let rev = row::column(v);
    connection.exec_drop("UPDATE registry_kv_rev SET v = ?", (rev,)).await.map_err(error)?;
    let upsert = Upsert::of(connection.server_version());
    let note = upsert.sql("registry_writer", "id, batch, rev, mtime", 1);
    let mtime = rows.first().map_or(0, |row| row.mtime);
    connection.exec_drop(note, (id, i64::try_from(number).unwrap_or(0), rev, mtime)).await.map_err(error)?;
    let rows: Vec<Vec<Value>> = rows.iter().map(values).collect();
    for chunk in pieces(&rows, |row| row.iter().map(size).sum()) {
        let sql = upsert.sql("registry_kv", COLUMNS, chunk.len());
        connection.exec_drop(sql, Params::Positional(chunk.concat())).await.map_err(error)?;
    }
    Ok(true)
}

impl MySqlKv {
    pub(super) fn new(server: Server) -> MySqlKv {
        MySqlKv { server, id: random(), writer: Mutex::default(), reader: Mutex::default() }
    }

    async fn head(&self) -> Result<Head, StoreError> {
        let mut slot = self.reader.lock().await;
        let mut connection = self.server.take(&mut slot).await?;
        let doing = "reading the key-value revision";
        let row = within(doing, connection.query_first(HEAD)).await?.map_err(|e| failed(doing, &e))?;
        *slot = Some(connection);
        head(row)
    }

    async fn read(&self, epoch: i64, after: Revision) -> Result<KvRead, StoreError> {
        let mut slot = self.reader.lock().await;
        let mut connection = self.server.take(&mut slot).await?;
        let doing = "reading keys";
        let reading = async {
            let error = |e| failed(doing, &e);
            connection.query_drop("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.map_err(error)?;
            connection.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").await.map_err(error)?;
            let head = head(connection.query_first(HEAD).await.map_err(error)?)?;
            let read = missed(&mut connection, head, (epoch, after)).await?;
            connection.query_drop("COMMIT").await.map_err(error)?;
            Ok(read)
        };
        let read = within(doing, reading).await??;
        *slot = Some(connection);
        Ok(read)
    }

    async fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> Result<(), StoreError> {
        let mut slot = self.writer.lock().await;
        let mut connection = self.server.take(&mut slot).await?;
        let wrote = within("commit", write(&mut connection, self.id, number, &*plan)).await??;
        let undetermined = |reason: String| {
            Err(StoreError::Undetermined { store: STORE, reason: reason.into(), planned: Box::default() })
        };
        let end = if wrote { "COMMIT" } else { "ROLLBACK" };
        match tokio::time::timeout(PATIENCE, connection.query_drop(end)).await {
            Ok(Ok(())) => {
                *slot = Some(connection);
                Ok(())
            }
            _ if !wrote => Ok(()),
            Ok(Err(mysql_async::Error::Server(e))) if super::settles(e.code) => {
                Err(failed("commit", &mysql_async::Error::Server(e)))
            }
            Ok(Err(e)) => undetermined(e.to_string()),
            Err(_) => undetermined(format!("no answer within {PATIENCE:?}")),
        }
    }

    async fn resolve(&self, number: u64) -> Result<bool, StoreError> {
        let doing = "resolving a commit";
        let mut connection = self.server.connect().await?;
        let found = within(doing, async {
            connection.query_drop("START TRANSACTION").await?;
            // Waits for a transaction of its own that the server still works on.
            connection.query_drop("SELECT v FROM registry_kv_rev FOR UPDATE").await?;
            let sql = "SELECT batch FROM registry_writer WHERE id = ?";
            let found: Option<i64> = connection.exec_first(sql, (self.id,)).await?;
            connection.query_drop("ROLLBACK").await?;
            Ok(found)
        });
        let found = found.await?.map_err(|e| failed(doing, &e))?;
        Ok(found.is_some_and(|batch| u64::try_from(batch) == Ok(number)))
    }

    async fn collect(&self, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
        let doing = "collecting deleted keys";
        let mut connection = self.server.connect().await?;
        let (up_to, limit) = (row::column(up_to), i64::try_from(limit).unwrap_or(i64::MAX));
        let collecting = async {
            // A tombstone at a revision remains one for ever, so this read needs no lock.
            let sql = "SELECT max(rev) FROM (SELECT rev FROM registry_kv WHERE deleted AND rev <= ? AND mtime < ?
                                             ORDER BY rev LIMIT ?) AS lowest";
            let floor: Option<Option<i64>> = connection.exec_first(sql, (up_to, before, limit)).await?;
            let Some(floor) = floor.flatten() else { return Ok(0) };
            connection.query_drop("START TRANSACTION").await?;
            let raise = "UPDATE registry_kv_rev SET gc_floor = greatest(gc_floor, ?)";
            connection.exec_drop(raise, (floor,)).await?;
            let gone = "DELETE FROM registry_kv WHERE deleted AND rev <= ? AND mtime < ?";
            connection.exec_drop(gone, (floor, before)).await?;
            let removed = connection.affected_rows();
            connection.query_drop("COMMIT").await?;
            Ok(usize::try_from(removed).unwrap_or(usize::MAX))
        };
        within(doing, collecting).await?.map_err(|e| failed(doing, &e))
    }
}

impl KvStore for MySqlKv {
    fn head(&self) -> BoxFuture<'_, Result<Head, StoreError>> {
        Box::pin(self.head())
    }

    fn read(&self, epoch: i64, after: Revision) -> BoxFuture<'_, Result<KvRead, StoreError>> {
        Box::pin(self.read(epoch, after))
    }

    fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.commit(number, plan))
    }

    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.resolve(number))
    }

    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(self.collect(up_to, before, limit))
    }
}
