//! The embedded store: a single file, nothing to install. One connection writes, another reads; SQLite's write-ahead log lets them work at the same
//! time. Commits are durable (`synchronous = FULL`).

mod kv;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, Statement, TransactionBehavior, params};

use super::plan::{Existing, plan};
use super::row::{self, Columns, INSTANCE_COLUMNS, ISOLATED, Interner, SERVICE_COLUMNS};
use super::{
    Batch, BoxFuture, Committed, Head, InstanceRow, MOST_NODES, NodeId, NodeList, NodeRow, Record, Secret, ServiceRow,
    Sink, Store, random,
};
use crate::error::StoreError;
use crate::model::Revision;

const STORE: &str = "sqlite";

/// Migrations, forward only; never changed once released. The version of each is its place in the list, from 1.
const MIGRATIONS: &[&str] = &[
    "CREATE TABLE registry_rev (one INTEGER PRIMARY KEY CHECK (one = 1), v INTEGER NOT NULL, epoch INTEGER NOT NULL,
                                gc_floor INTEGER NOT NULL);
     CREATE TABLE service (id TEXT PRIMARY KEY, metadata TEXT NOT NULL, rev INTEGER NOT NULL, deleted INTEGER NOT NULL,
                           ctime INTEGER NOT NULL, mtime INTEGER NOT NULL) WITHOUT ROWID;
     CREATE INDEX service_rev ON service (rev);
     CREATE TABLE instance (id TEXT PRIMARY KEY, service TEXT NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL,
                            protocol TEXT NOT NULL, version TEXT NOT NULL, weight INTEGER NOT NULL,
                            priority INTEGER NOT NULL, flags INTEGER NOT NULL, health INTEGER NOT NULL, ttl INTEGER,
                            check_spec TEXT, region TEXT NOT NULL, zone TEXT NOT NULL, campus TEXT NOT NULL,
                            metadata TEXT NOT NULL, digest BLOB NOT NULL, rev INTEGER NOT NULL,
                            deleted INTEGER NOT NULL, ctime INTEGER NOT NULL, mtime INTEGER NOT NULL);
     CREATE INDEX instance_rev ON instance (rev);",
    "CREATE TABLE registry_writer (id INTEGER PRIMARY KEY, batch INTEGER NOT NULL, rev INTEGER NOT NULL,
                                   mtime INTEGER NOT NULL);
     CREATE INDEX instance_gone ON instance (rev) WHERE deleted;",
    "CREATE TABLE registry_node (id INTEGER PRIMARY KEY, address TEXT NOT NULL, judges INTEGER NOT NULL,
                                 beat INTEGER NOT NULL);
     CREATE TABLE registry_secret (one INTEGER PRIMARY KEY CHECK (one = 1), secret TEXT NOT NULL);",
];

/// The schema version that introduced `registry_secret`.
const SECRET_SINCE: i64 = 3;

/// Time for which another process may hold the file before a commit fails with `Conflict`.
const BUSY: Duration = Duration::from_secs(5);
/// Interval of checks for writes by other processes.
const POLL: Duration = Duration::from_secs(1);
/// Rows of a chunk, passed from the reading thread to the sink.
const CHUNK: usize = 512;

/// The store in one file.
pub struct Sqlite {
    writer: Arc<Mutex<Connection>>,
    reader: Arc<Mutex<Connection>>,
    /// For the node list: rows lost in a crash of the machine are useless after it, so commits do not wait for the disk.
    roll: Arc<Mutex<Connection>>,
    /// Id of this opening of the store in `registry_writer`.
    id: i64,
    kv: Arc<kv::SqliteKv>,
}

impl Sqlite {
    /// Opens or creates the file at `path`; its directory must exist.
    ///
    /// # Errors
    /// The file cannot be opened, is not a database, or has a newer schema.
    pub async fn open(path: &str) -> Result<Sqlite, StoreError> {
        let path = PathBuf::from(path);
        blocking("opening the file", move || {
            keep_private(&path)?;
            let mut writer = connect(&path)?;
            migrate(&mut writer, MIGRATIONS)?;
            kv::migrate(&mut writer)?;
            let reader = connect(&path)?;
            let roll = connect(&path)?;
            roll.pragma_update(None, "synchronous", "normal").map_err(|e| failed("opening the file", e))?;
            let shared = |connection| Arc::new(Mutex::new(connection));
            let (writer, reader) = (shared(writer), shared(reader));
            let kv = Arc::new(kv::SqliteKv::new(Arc::clone(&writer), Arc::clone(&reader)));
            Ok(Sqlite { writer, reader, roll: shared(roll), id: random(), kv })
        })
        .await
    }
}

impl Store for Sqlite {
    fn name(&self) -> &'static str {
        STORE
    }

    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        let (connection, id) = (Arc::clone(&self.writer), self.id);
        Box::pin(blocking("commit", move || commit(&mut lock(&connection), id, &batch)))
    }

    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        let (connection, id) = (Arc::clone(&self.writer), self.id);
        Box::pin(blocking("resolving a commit", move || {
            let connection = lock(&connection);
            // A transaction left open by a failed COMMIT has not happened.
            if !connection.is_autocommit() {
                connection.execute_batch("ROLLBACK").map_err(|e| failed("resolving a commit", e))?;
            }
            let found: Option<(i64, i64)> = connection
                .query_row("SELECT batch, rev FROM registry_writer WHERE id = ?", [id], |r| Ok((r.get(0)?, r.get(1)?)))
                .optional()
                .map_err(|e| failed("resolving a commit", e))?;
            Ok(found.filter(|(batch, _)| u64::try_from(*batch) == Ok(number)).and_then(|(_, rev)| row::revision(rev)))
        }))
    }

    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            // The head is sent one way and the wanted revision the other while the thread holds its snapshot.
            let (head_sent, head) = tokio::sync::oneshot::channel();
            let (after_sent, after) = std::sync::mpsc::channel();
            let (rows_sent, mut rows) = tokio::sync::mpsc::channel::<Vec<Record>>(4);
            let connection = Arc::clone(&self.reader);
            let reading = blocking("read", move || {
                let mut connection = lock(&connection);
                let transaction = connection.transaction().map_err(|e| failed("read", e))?;
                let _ = head_sent.send(read_head(&transaction)?);
                // The caller has gone, and wants no rows.
                let Ok(after) = after.recv() else { return Ok(()) };
                read_rows(&transaction, after, &mut |chunk| rows_sent.blocking_send(chunk).is_ok())
            });
            let feeding = async move {
                let Ok(head) = head.await else { return };
                let _ = after_sent.send(sink.begin(head));
                while let Some(chunk) = rows.recv().await {
                    chunk.into_iter().for_each(|record| sink.record(record));
                }
            };
            tokio::join!(reading, feeding).0
        })
    }

    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        let connection = Arc::clone(&self.writer);
        Box::pin(blocking("collecting tombstones", move || collect(&mut lock(&connection), up_to, before, limit)))
    }

    fn attend<'a>(
        &'a self,
        own: Option<&'a NodeRow>,
        gone: &'a [NodeId],
    ) -> BoxFuture<'a, Result<NodeList, StoreError>> {
        let (connection, own, gone) = (Arc::clone(&self.roll), own.cloned(), gone.to_vec());
        Box::pin(blocking("calling the roll", move || attend(&mut lock(&connection), own.as_ref(), &gone)))
    }

    fn changed(&self, _seen: Revision) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(POLL))
    }

    fn kv(&self) -> Option<Arc<dyn super::KvStore>> {
        Some(Arc::clone(&self.kv) as Arc<dyn super::KvStore>)
    }
}

/// Runs `work` on a blocking thread, which finishes even if the caller has gone.
async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(StoreError::unavailable(STORE, doing, error)),
    }
}

/// Locks a connection. A transaction of a thread that panicked has been rolled back by dropping its `Transaction`.
fn lock(connection: &Mutex<Connection>) -> std::sync::MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(doing: &'static str, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Conflict { store: STORE, doing, reason: error.to_string().into() }
        }
        _ => StoreError::unavailable(STORE, doing, error),
    }
}

/// Creates the file for this user only, and removes the permissions of others from existing files: the file contains the secret by which nodes
/// authenticate each other. SQLite gives its log the permissions of the file.
fn keep_private(path: &std::path::Path) -> Result<(), StoreError> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let doing = "keeping the file from other users";
    let refused = |error: std::io::Error| StoreError::unavailable(STORE, doing, error);
    std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(refused)?;
    for end in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(end);
        match std::fs::metadata(&file) {
            Ok(found) if found.permissions().mode() & 0o077 != 0 => {
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).map_err(refused)?;
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Ok(())
}

fn connect(path: &std::path::Path) -> Result<Connection, StoreError> {
    let open = || {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    };
    open().map_err(|e| failed("opening the file", e))
}

/// Brings the schema up to date in a transaction that locks the file from its beginning: if several processes start at once, one migrates, and the
/// others find it done.
fn migrate(connection: &mut Connection, migrations: &[&str]) -> Result<(), StoreError> {
    let error = |e| failed("migrating the schema", e);
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    transaction
        .execute_batch("CREATE TABLE IF NOT EXISTS registry_schema (version INTEGER PRIMARY KEY, at INTEGER NOT NULL)")
        .map_err(error)?;
    let found: i64 = transaction
        .query_row("SELECT coalesce(max(version), 0) FROM registry_schema", [], |row| row.get(0))
        .map_err(error)?;
    if found > known {
        return Err(StoreError::Newer { store: STORE, found, known });
    }
    for (version, sql) in (1..).zip(migrations).skip(usize::try_from(found).unwrap_or(0)) {
        transaction.execute_batch(sql).map_err(error)?;
        transaction.execute("INSERT INTO registry_schema VALUES (?, unixepoch() * 1000)", [version]).map_err(error)?;
    }
    transaction
        .execute("INSERT OR IGNORE INTO registry_rev (one, v, epoch, gc_floor) VALUES (1, 0, ?, 0)", [random()])
        .map_err(error)?;
    if known >= SECRET_SINCE {
        let secret = Secret::random(STORE)?.text();
        transaction
            .execute("INSERT OR IGNORE INTO registry_secret (one, secret) VALUES (1, ?)", [secret])
            .map_err(error)?;
    }
    transaction.commit().map_err(error)
}

fn commit(connection: &mut Connection, writer: i64, batch: &Batch) -> Result<Committed, StoreError> {
    let error = |e| failed("commit", e);
    // Takes the file's write lock at once, so that the rows read below cannot change before the end.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    let head = read_head(&transaction)?;
    let planned = match batch.foreseen_at(head) {
        Some(planned) => planned,
        None => plan(batch, head, &read_existing(&transaction, batch)?),
    };
    if !planned.wrote {
        return Ok(planned);
    }
    {
        let rev = row::column(planned.revision);
        transaction
            .prepare_cached("UPDATE registry_rev SET v = ?")
            .and_then(|mut s| s.execute([rev]))
            .map_err(error)?;
        transaction
            .prepare_cached("INSERT OR REPLACE INTO registry_writer (id, batch, rev, mtime) VALUES (?, ?, ?, ?)")
            .and_then(|mut s| s.execute(params![writer, i64::try_from(batch.number).unwrap_or(0), rev, batch.now]))
            .map_err(error)?;
        // Prepared once, not once a row: the cache is looked up by their text.
        let mut put_instance = transaction.prepare_cached(PUT_INSTANCE).map_err(error)?;
        let mut put_service = transaction.prepare_cached(PUT_SERVICE).map_err(error)?;
        for record in &planned.records {
            write(&mut put_instance, &mut put_service, record).map_err(error)?;
        }
    }
    match transaction.commit() {
        Ok(()) => Ok(planned),
        // The disk may have failed before or after the log contained the commit.
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
            Err(StoreError::Undetermined { store: STORE, reason: e.to_string().into(), planned: Box::new(planned) })
        }
        Err(e) => Err(error(e)),
    }
}

/// Reads the rows that a batch concerns.
fn read_existing(connection: &Connection, batch: &Batch) -> Result<Existing, StoreError> {
    let error = |e| failed("commit", e);
    let mut existing = Existing::default();
    let mut interner = Interner::default();
    let mut one =
        connection.prepare_cached(&format!("SELECT {INSTANCE_COLUMNS} FROM instance WHERE id = ?")).map_err(error)?;
    for id in batch.instance_ids() {
        let mut rows = one.query([id.as_str()]).map_err(error)?;
        if let Some(row) = rows.next().map_err(error)? {
            existing.instances.insert(id.clone(), instance(row, &mut interner)?);
        }
    }
    let mut one =
        connection.prepare_cached(&format!("SELECT {SERVICE_COLUMNS} FROM service WHERE id = ?")).map_err(error)?;
    let left = batch.services_left(&existing);
    for key in batch.service_keys().into_iter().chain(&left) {
        let mut rows = one.query([key.as_str()]).map_err(error)?;
        if let Some(row) = rows.next().map_err(error)? {
            existing.services.insert(key.clone(), service(row)?);
        }
    }
    Ok(existing)
}

const PUT_INSTANCE: &str = "INSERT INTO instance (id, service, host, port, protocol, version, weight, priority, flags,
        health, ttl, check_spec, region, zone, campus, metadata, digest, rev, deleted, ctime, mtime)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)
    ON CONFLICT (id) DO UPDATE SET service = ?2, host = ?3, port = ?4, protocol = ?5, version = ?6, weight = ?7,
        priority = ?8, flags = ?9, health = ?10, ttl = ?11, check_spec = ?12, region = ?13, zone = ?14, campus = ?15,
        metadata = ?16, digest = ?17, rev = ?18, deleted = ?19, ctime = ?20, mtime = ?21";

const PUT_SERVICE: &str =
    "INSERT INTO service (id, metadata, rev, deleted, ctime, mtime) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (id) DO UPDATE SET metadata = ?2, rev = ?3, deleted = ?4, ctime = ?5, mtime = ?6";

fn write(
    put_instance: &mut Statement<'_>,
    put_service: &mut Statement<'_>,
    record: &Record,
) -> rusqlite::Result<usize> {
    match record {
        Record::Instance(InstanceRow { instance: i, deleted }) => put_instance.execute(params![
            i.id.as_str(),
            i.service.as_str(),
            &*i.host,
            i.port,
            &*i.protocol,
            &*i.version,
            i.weight,
            i.priority,
            if i.isolate { ISOLATED } else { 0 },
            i.health.code(),
            i.ttl_millis(),
            i.check_text(),
            &*i.location.region,
            &*i.location.zone,
            &*i.location.campus,
            i.metadata.to_json(),
            &i.digest.0[..],
            row::column(i.revision),
            deleted,
            i.ctime,
            i.mtime,
        ]),
        Record::Service(s) => put_service.execute(params![
            s.key.as_str(),
            s.metadata.to_json(),
            row::column(s.revision),
            s.deleted,
            s.ctime,
            s.mtime,
        ]),
    }
}

fn read_head(connection: &Connection) -> Result<Head, StoreError> {
    let (v, epoch, gc_floor): (i64, i64, i64) = connection
        .prepare_cached("SELECT v, epoch, gc_floor FROM registry_rev")
        .and_then(|mut s| s.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))))
        .map_err(|e| failed("reading the revision", e))?;
    let negative = || StoreError::corrupt(STORE, "registry_rev", "a negative revision");
    Ok(Head {
        v: row::revision(v).ok_or_else(negative)?,
        epoch,
        gc_floor: row::revision(gc_floor).ok_or_else(negative)?,
    })
}

/// Reads the rows after `after` in chunks, until `give` returns false.
fn read_rows(
    connection: &Connection,
    after: Revision,
    give: &mut dyn FnMut(Vec<Record>) -> bool,
) -> Result<(), StoreError> {
    let error = |e| failed("reading rows", e);
    let mut interner = Interner::default();
    let mut chunk = Vec::with_capacity(CHUNK);
    // A full read is a scan in table order; the index on `rev` would cause random access.
    let condition = if after == Revision(0) { "?1 = 0" } else { "rev > ?1" };
    let mut statement = connection
        .prepare_cached(&format!("SELECT {INSTANCE_COLUMNS} FROM instance WHERE {condition}"))
        .map_err(error)?;
    let mut rows = statement.query([row::column(after)]).map_err(error)?;
    while let Some(row) = rows.next().map_err(error)? {
        chunk.push(Record::Instance(instance(row, &mut interner)?));
        if chunk.len() == CHUNK && !give(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK))) {
            return Ok(());
        }
    }
    let mut statement = connection
        .prepare_cached(&format!("SELECT {SERVICE_COLUMNS} FROM service WHERE {condition}"))
        .map_err(error)?;
    let mut rows = statement.query([row::column(after)]).map_err(error)?;
    while let Some(row) = rows.next().map_err(error)? {
        chunk.push(Record::Service(service(row)?));
        if chunk.len() == CHUNK && !give(std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK))) {
            return Ok(());
        }
    }
    give(chunk);
    Ok(())
}

fn instance(row: &Row<'_>, interner: &mut Interner) -> Result<InstanceRow, StoreError> {
    let text = |n: usize| row.get_ref(n).and_then(|value| Ok(value.as_str()?));
    let columns = || -> rusqlite::Result<Columns<'_>> {
        Ok(Columns {
            id: text(0)?,
            service: text(1)?,
            host: text(2)?,
            port: row.get(3)?,
            protocol: text(4)?,
            version: text(5)?,
            weight: row.get(6)?,
            priority: row.get(7)?,
            flags: row.get(8)?,
            health: row.get(9)?,
            check_spec: row.get_ref(11)?.as_str_or_null()?,
            region: text(12)?,
            zone: text(13)?,
            campus: text(14)?,
            metadata: text(15)?,
            digest: row.get_ref(16)?.as_blob()?,
            rev: row.get(17)?,
            deleted: row.get(18)?,
            ctime: row.get(19)?,
            mtime: row.get(20)?,
        })
    };
    let columns = columns().map_err(|e| StoreError::corrupt(STORE, "a row of instance", e))?;
    columns.decode(STORE, interner)
}

fn service(row: &Row<'_>) -> Result<ServiceRow, StoreError> {
    let columns = || -> rusqlite::Result<_> {
        Ok((row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
    };
    ServiceRow::decode(STORE, columns().map_err(|e| StoreError::corrupt(STORE, "a row of service", e))?)
}

fn attend(connection: &mut Connection, own: Option<&NodeRow>, gone: &[NodeId]) -> Result<NodeList, StoreError> {
    let error = |e| failed("calling the roll", e);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    if let Some(NodeRow { id, address, judges, beat }) = own {
        transaction
            .prepare_cached("INSERT OR REPLACE INTO registry_node (id, address, judges, beat) VALUES (?, ?, ?, ?)")
            .and_then(|mut s| s.execute(params![id.0, address, judges, beat]))
            .map_err(error)?;
    }
    for node in gone {
        transaction.execute("DELETE FROM registry_node WHERE id = ?", [node.0]).map_err(error)?;
    }
    let roll = || {
        let secret: String = transaction.query_row("SELECT secret FROM registry_secret", [], |row| row.get(0))?;
        let mut nodes =
            transaction.prepare_cached("SELECT id, address, judges, beat FROM registry_node ORDER BY id LIMIT ?")?;
        let row = |row: &Row<'_>| {
            Ok(NodeRow { id: NodeId(row.get(0)?), address: row.get(1)?, judges: row.get(2)?, beat: row.get(3)? })
        };
        let nodes = nodes.query_map([i64::try_from(MOST_NODES).unwrap_or(i64::MAX)], row)?.collect::<Result<_, _>>()?;
        Ok((secret, nodes))
    };
    let (secret, nodes) = roll().map_err(error)?;
    transaction.commit().map_err(error)?;
    Ok(NodeList { nodes, secret: Secret::parse(STORE, &secret)? })
}

fn collect(connection: &mut Connection, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
    let error = |e| failed("collecting tombstones", e);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    // The highest revision to remove: that of the last of at most `limit` old tombstones. All old ones up to it go at once, since gc_floor is a
    // single number.
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found: (i64, Option<i64>) = transaction
        .query_row(
            "SELECT count(*), max(rev) FROM (
                 SELECT rev FROM (SELECT rev, mtime FROM instance WHERE deleted AND rev <= ?1
                                  UNION ALL SELECT rev, mtime FROM service WHERE deleted AND rev <= ?1)
                 WHERE mtime < ?2 ORDER BY rev LIMIT ?3)",
            params![row::column(up_to), before, limit],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .map_err(error)?;
    let (_, Some(floor)) = found else { return Ok(0) };
    let mut removed = 0;
    for table in ["instance", "service"] {
        removed += transaction
            .execute(&format!("DELETE FROM {table} WHERE deleted AND rev <= ?1 AND mtime < ?2"), params![floor, before])
            .map_err(error)?;
    }
    transaction
        .execute("UPDATE registry_rev SET gc_floor = max(gc_floor, ?1)", [floor])
        .and_then(|_| transaction.execute("DELETE FROM registry_writer WHERE mtime < ?1", [before]))
        .map_err(error)?;
    transaction.commit().map_err(error)?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_older_schema_goes_forward_and_a_newer_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.db");
        let mut old = connect(&path).unwrap();
        migrate(&mut old, &MIGRATIONS[..1]).unwrap();
        old.execute("INSERT INTO service VALUES ('default/s', '{}', 1, 0, 0, 0)", []).unwrap();
        let epoch = read_head(&old).unwrap().epoch;
        migrate(&mut old, MIGRATIONS).unwrap();
        migrate(&mut old, MIGRATIONS).unwrap();
        let head = read_head(&old).unwrap();
        assert_eq!(head.epoch, epoch, "the same history");
        let services: i64 = old.query_row("SELECT count(*) FROM service", [], |row| row.get(0)).unwrap();
        assert_eq!(services, 1);
        old.prepare("SELECT * FROM registry_writer").unwrap();
        let newer = migrate(&mut old, &MIGRATIONS[..1]);
        assert!(matches!(newer, Err(StoreError::Newer { found: 3, known: 1, .. })), "{newer:?}");
    }

    #[test]
    fn processes_that_start_at_once_migrate_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.db");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| migrate(&mut connect(&path).unwrap(), MIGRATIONS).unwrap());
            }
        });
        let steps: i64 =
            connect(&path).unwrap().query_row("SELECT count(*) FROM registry_schema", [], |row| row.get(0)).unwrap();
        assert_eq!(usize::try_from(steps).unwrap(), MIGRATIONS.len());
    }
}
