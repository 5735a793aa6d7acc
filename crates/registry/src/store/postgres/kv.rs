//! Keys and sessions in PostgreSQL: one connection writes, another reads. A connection that had any error is closed.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_postgres::{Client, Row};

use super::super::kv::{COLUMNS, KvColumns, KvDecision, KvPlan, KvRead, KvRow, KvStore, VERSION, lacks};
use super::super::row;
use super::super::{BoxFuture, Head, random};
use super::address::Database;
use super::{MIGRATION_LOCK, PATIENCE, STORE, describe, failed, within};
use crate::error::StoreError;
use crate::model::Revision;

/// The key-value part of a database.
pub(super) struct PostgresKv {
    database: Database,
    /// Id of this opening of the store in `registry_writer`.
    id: i64,
    writer: Mutex<Option<Client>>,
    reader: Mutex<Option<Client>>,
}

const HEAD: &str = "SELECT v, epoch, gc_floor FROM registry_kv_rev";

const PUT: &str = "INSERT INTO registry_kv
        (namespace, kind, name, value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime)
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bytea[], $5::bigint[], $6::text[], $7::bigint[],
                         $8::bigint[], $9::bigint[], $10::bigint[], $11::bool[], $12::bigint[])
    ON CONFLICT (namespace, kind, name) DO UPDATE SET value = excluded.value, flags = excluded.flags,
        session = excluded.session, lock_index = excluded.lock_index, lock_delay = excluded.lock_delay,
        created = excluded.created, rev = excluded.rev, deleted = excluded.deleted, mtime = excluded.mtime";

/// Creates the tables if they are absent.
pub(super) async fn migrate(client: &mut Client) -> Result<(), StoreError> {
    let doing = "migrating the key-value tables";
    let migrating = async {
        let transaction = client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        transaction
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS registry_kv_rev (one INT PRIMARY KEY CHECK (one = 1), v BIGINT NOT NULL,
                     epoch BIGINT NOT NULL, gc_floor BIGINT NOT NULL, version BIGINT NOT NULL) WITH (fillfactor = 10);
                 CREATE TABLE IF NOT EXISTS registry_kv (namespace TEXT COLLATE \"C\" NOT NULL, kind BIGINT NOT NULL,
                     name TEXT COLLATE \"C\" NOT NULL, value BYTEA NOT NULL, flags BIGINT NOT NULL, session TEXT,
                     lock_index BIGINT NOT NULL, lock_delay BIGINT NOT NULL, created BIGINT NOT NULL, rev BIGINT NOT NULL,
                     deleted BOOL NOT NULL, mtime BIGINT NOT NULL, PRIMARY KEY (namespace, kind, name));
                 CREATE INDEX IF NOT EXISTS registry_kv_by_rev ON registry_kv (rev);",
            )
            .await?;
        let first = "INSERT INTO registry_kv_rev (one, v, epoch, gc_floor, version) VALUES (1, 1, $1, 0, $2)
            ON CONFLICT DO NOTHING";
        transaction.execute(first, &[&random(), &VERSION]).await?;
        let found: i64 = transaction.query_one("SELECT version FROM registry_kv_rev", &[]).await?.get(0);
        transaction.commit().await?;
        Ok(found)
    };
    let found = within(doing, migrating).await?.map_err(|e| failed(doing, &e))?;
    if found > VERSION { Err(StoreError::Newer { store: STORE, found, known: VERSION }) } else { Ok(()) }
}

fn head(row: &Row) -> Result<Head, StoreError> {
    let negative = || StoreError::corrupt(STORE, "registry_kv_rev", "a negative revision");
    let revision = |column| row::revision(row.get(column)).ok_or_else(negative);
    Ok(Head { v: revision(0)?, epoch: row.get(1), gc_floor: revision(2)? })
}

fn columns(row: &Row) -> KvColumns {
    KvColumns {
        namespace: row.get(0),
        kind: row.get(1),
        name: row.get(2),
        value: row.get::<_, Vec<u8>>(3).into(),
        flags: row.get(4),
        session: row.get(5),
        lock_index: row.get(6),
        lock_delay: row.get(7),
        created: row.get(8),
        rev: row.get(9),
        deleted: row.get(10),
        mtime: row.get(11),
    }
}

/// Reads the rows after `seen` that a node lacks, in the transaction of `client`.
async fn missed(client: &Client, head: Head, seen: (i64, Revision)) -> Result<KvRead, StoreError> {
    let (after, whole) = lacks(head, seen);
    let mut rows = Vec::new();
    if after < head.v {
        let sql = format!("SELECT {COLUMNS} FROM registry_kv WHERE rev > $1");
        for row in client.query(&sql, &[&row::column(after)]).await.map_err(|e| failed("reading keys", &e))? {
            rows.push(columns(&row).decode(STORE)?);
        }
    }
    Ok(KvRead { head, whole, rows })
}

async fn put(client: &Client, rows: &[KvRow]) -> Result<u64, tokio_postgres::Error> {
    let rows: Vec<KvColumns> = rows.iter().map(KvRow::columns).collect();
    fn each<'a, T>(rows: &'a [KvColumns], value: impl Fn(&'a KvColumns) -> T) -> Vec<T> {
        rows.iter().map(value).collect()
    }
    client
        .execute(
            PUT,
            &[
                &each(&rows, |c| c.namespace.as_str()),
                &each(&rows, |c| c.kind),
                &each(&rows, |c| c.name.as_str()),
                &each(&rows, |c| &c.value[..]),
                &each(&rows, |c| c.flags),
                &each(&rows, |c| c.session.as_deref()),
                &each(&rows, |c| c.lock_index),
                &each(&rows, |c| c.lock_delay),
                &each(&rows, |c| c.created),
                &each(&rows, |c| c.rev),
                &each(&rows, |c| c.deleted),
                &each(&rows, |c| c.mtime),
            ],
        )
        .await
}

impl PostgresKv {
    pub(super) fn new(database: Database) -> PostgresKv {
        PostgresKv { database, id: random(), writer: Mutex::default(), reader: Mutex::default() }
    }

    /// Takes the connection out of `slot`, or opens one. A dropped connection ends, and its transaction with it.
    async fn take(&self, slot: &mut Option<Client>) -> Result<Client, StoreError> {
        match slot.take().filter(|client| !client.is_closed()) {
            Some(client) => Ok(client),
            None => super::connect(&self.database, None).await,
        }
    }

    async fn head(&self) -> Result<Head, StoreError> {
        let mut slot = self.reader.lock().await;
        let client = self.take(&mut slot).await?;
        let doing = "reading the key-value revision";
        let row = within(doing, client.query_one(HEAD, &[])).await?.map_err(|e| failed(doing, &e))?;
        *slot = Some(client);
        head(&row)
    }

    async fn read(&self, epoch: i64, after: Revision) -> Result<KvRead, StoreError> {
        let mut slot = self.reader.lock().await;
        let client = self.take(&mut slot).await?;
        let doing = "reading keys";
        let reading = async {
            let error = |e| failed(doing, &e);
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(error)?;
            let head = head(&client.query_one(HEAD, &[]).await.map_err(error)?)?;
            let read = missed(&client, head, (epoch, after)).await?;
            client.batch_execute("COMMIT").await.map_err(error)?;
            Ok(read)
        };
        let read = within(doing, reading).await??;
        *slot = Some(client);
        Ok(read)
    }

    async fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> Result<(), StoreError> {
        let mut slot = self.writer.lock().await;
        let client = self.take(&mut slot).await?;
        let error = |e| failed("commit", &e);
        let writing = async {
            // At READ COMMITTED each statement sees the commits before its own start, and the statements after the lock start when it is held.
            let (begun, row) = tokio::join!(
                biased;
                client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
                client.query_one("SELECT v, epoch, gc_floor FROM registry_kv_rev FOR UPDATE", &[]),
            );
            begun.map_err(error)?;
            let head = head(&row.map_err(error)?)?;
            let missed = missed(&client, head, plan.seen()).await?;
            let KvDecision::Write(rows, v) = plan.plan(missed) else { return Ok(false) };
            let rev = row::column(v);
            client.execute("UPDATE registry_kv_rev SET v = $1", &[&rev]).await.map_err(error)?;
            let note = "INSERT INTO registry_writer (id, batch, rev, mtime) VALUES ($1, $2, $3, $4)
                ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, rev = excluded.rev, mtime = excluded.mtime";
            let mtime = rows.first().map_or(0, |row| row.mtime);
            let number = i64::try_from(number).unwrap_or(0);
            client.execute(note, &[&self.id, &number, &rev, &mtime]).await.map_err(error)?;
            put(&client, &rows).await.map_err(error)?;
            Ok(true)
        };
        let wrote = within("commit", writing).await??;
        let undetermined = |reason: String| {
            Err(StoreError::Undetermined { store: STORE, reason: reason.into(), planned: Box::default() })
        };
        match tokio::time::timeout(PATIENCE, client.batch_execute(if wrote { "COMMIT" } else { "ROLLBACK" })).await {
            Ok(Ok(())) => {
                *slot = Some(client);
                Ok(())
            }
            _ if !wrote => Ok(()),
            Ok(Err(e)) if e.code().is_some_and(|code| super::settles(code.code())) => Err(failed("commit", &e)),
            Ok(Err(e)) => undetermined(describe(&e)),
            Err(_) => undetermined(format!("no answer within {PATIENCE:?}")),
        }
    }

    async fn resolve(&self, number: u64) -> Result<bool, StoreError> {
        let mut client = super::connect(&self.database, None).await?;
        let doing = "resolving a commit";
        let found = within(doing, async {
            let transaction = client.transaction().await?;
            // Waits for a transaction of its own that the server still works on.
            transaction.execute("SELECT 1 FROM registry_kv_rev FOR UPDATE", &[]).await?;
            transaction.query_opt("SELECT batch FROM registry_writer WHERE id = $1", &[&self.id]).await
        });
        let found = found.await?.map_err(|e| failed(doing, &e))?;
        Ok(found.is_some_and(|row| u64::try_from(row.get::<_, i64>(0)) == Ok(number)))
    }

    async fn collect(&self, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
        let mut client = super::connect(&self.database, None).await?;
        let doing = "collecting deleted keys";
        let (up_to, limit) = (row::column(up_to), i64::try_from(limit).unwrap_or(i64::MAX));
        let collecting = async {
            // A tombstone at a revision remains one for ever, so this read needs no lock.
            let sql = "SELECT max(rev) FROM (SELECT rev FROM registry_kv WHERE deleted AND rev <= $1 AND mtime < $2
                                             ORDER BY rev LIMIT $3) AS lowest";
            let floor: Option<i64> = client.query_one(sql, &[&up_to, &before, &limit]).await?.get(0);
            let Some(floor) = floor else { return Ok(0) };
            let transaction = client.transaction().await?;
            transaction.execute("UPDATE registry_kv_rev SET gc_floor = greatest(gc_floor, $1)", &[&floor]).await?;
            let gone = "DELETE FROM registry_kv WHERE deleted AND rev <= $1 AND mtime < $2";
            let removed = transaction.execute(gone, &[&floor, &before]).await?;
            transaction.commit().await?;
            Ok(usize::try_from(removed).unwrap_or(usize::MAX))
        };
        within(doing, collecting).await?.map_err(|e| failed(doing, &e))
    }
}

impl KvStore for PostgresKv {
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
