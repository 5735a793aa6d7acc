//! The store in a MySQL (8.0 or newer) or MariaDB database, shared by several nodes. One connection writes, one reads, one maintains the node list,
//! and one polls for commits, since these databases send no notifications. A connection that had any error is closed: its transaction ends with it.

mod address;
mod kv;

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Params, Row, Value};
use tokio::sync::Mutex;

use self::address::Database;
use super::plan::{Existing, plan};
use super::row::{self, Columns, INSTANCE_COLUMNS, ISOLATED, Interner, SERVICE_COLUMNS};
use super::{
    Batch, BoxFuture, Committed, Head, InstanceRow, MOST_NODES, NodeId, NodeList, NodeRow, Record, Secret, ServiceRow,
    Sink, Store, random,
};
use crate::error::StoreError;
use crate::model::Revision;

const STORE: &str = "mysql";

/// Migrations, forward only; never changed once released. The version of each is its place in the list, from 1. These databases commit before and
/// after each such statement, so each step must be repeatable after an interruption.
///
/// Keys are bytes: collations of text treat some different ids as equal.
const MIGRATIONS: &[&[&str]] = &[
    &[
        "CREATE TABLE IF NOT EXISTS registry_rev (one INT PRIMARY KEY, v BIGINT NOT NULL, epoch BIGINT NOT NULL,
            gc_floor BIGINT NOT NULL) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS service (id VARBINARY(400) PRIMARY KEY, metadata JSON NOT NULL, rev BIGINT NOT NULL,
            deleted BOOL NOT NULL, ctime BIGINT NOT NULL, mtime BIGINT NOT NULL, INDEX service_rev (rev)) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS instance (id VARBINARY(400) PRIMARY KEY, service VARBINARY(400) NOT NULL,
            host VARCHAR(255) NOT NULL, port INT NOT NULL, protocol VARCHAR(64) NOT NULL, version VARCHAR(64) NOT NULL,
            weight INT NOT NULL, priority INT NOT NULL, flags INT NOT NULL, health INT NOT NULL, ttl BIGINT,
            check_spec TEXT, region VARCHAR(64) NOT NULL, zone VARCHAR(64) NOT NULL, campus VARCHAR(64) NOT NULL,
            metadata JSON NOT NULL, digest BINARY(16) NOT NULL, rev BIGINT NOT NULL, deleted BOOL NOT NULL,
            ctime BIGINT NOT NULL, mtime BIGINT NOT NULL, INDEX instance_rev (rev))
            ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    ],
    &["CREATE TABLE IF NOT EXISTS registry_writer (id BIGINT PRIMARY KEY, batch BIGINT NOT NULL, rev BIGINT NOT NULL,
        mtime BIGINT NOT NULL) ENGINE = InnoDB"],
    &[
        "CREATE TABLE IF NOT EXISTS registry_node (id BIGINT PRIMARY KEY, address VARCHAR(300) NOT NULL, judges BOOL NOT NULL,
            beat BIGINT NOT NULL) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4",
        "CREATE TABLE IF NOT EXISTS registry_secret (one INT PRIMARY KEY, secret VARCHAR(64) NOT NULL) ENGINE = InnoDB",
    ],
];

/// Time limit of everything before COMMIT, and of the COMMIT itself.
const PATIENCE: Duration = Duration::from_secs(15);
/// Interval between two reads of the counter.
const POLL: Duration = Duration::from_millis(50);
/// Time after which the store is read even though the counter has not moved.
const LONGEST: Duration = Duration::from_secs(5);

/// Maximum number of rows of one statement, and of their bytes, which stay below any server's `max_allowed_packet` (16 MiB or more by default).
const PIECE_ROWS: usize = 256;
const PIECE_BYTES: usize = 4 << 20;

/// The store in a MySQL or MariaDB database.
pub struct MySql {
    server: Server,
    /// Id of this opening of the store in `registry_writer`.
    id: i64,
    writer: Mutex<Option<Conn>>,
    reader: Mutex<Option<Conn>>,
    poller: Mutex<Option<Conn>>,
    roll: Mutex<Option<Conn>>,
    kv: Arc<kv::MySqlKv>,
}

impl MySql {
    /// Connects to the database of `address`, `mysql://user@host/database`, and brings the schema up to date. TLS follows `ssl-mode` and the other
    /// parameters of MySQL's clients; the default is `PREFERRED`.
    ///
    /// # Errors
    /// The address is invalid, a TLS file is unusable, the database does not answer (or not with TLS where it must), or has a newer schema.
    pub async fn open(address: &str) -> Result<MySql, StoreError> {
        // At the default isolation level ranges are locked too, and batches deadlock.
        let setup = vec![
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
            "SET SESSION innodb_lock_wait_timeout = 10".to_owned(),
            // A value that does not fit is an error, not truncated.
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES'".to_owned(),
        ];
        let server = Server(Database::parse(address, setup)?);
        let store = MySql {
            kv: Arc::new(kv::MySqlKv::new(server.clone())),
            server,
            id: random(),
            writer: Mutex::new(None),
            reader: Mutex::new(None),
            poller: Mutex::new(None),
            roll: Mutex::new(None),
        };
        let mut connection = store.server.connect().await?;
        migrate(&mut connection, MIGRATIONS).await?;
        kv::migrate(&mut connection).await?;
        Ok(store)
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed, StoreError> {
        let mut slot = self.writer.lock().await;
        let mut connection = self.server.take(&mut slot).await?;
        let planned = within("commit", write(&mut connection, self.id, batch)).await??;
        let end = if planned.wrote { "COMMIT" } else { "ROLLBACK" };
        let undetermined = |reason: String, planned: Committed| {
            let planned = Box::new(planned);
            Err(StoreError::Undetermined { store: STORE, reason: reason.into(), planned })
        };
        match tokio::time::timeout(PATIENCE, connection.query_drop(end)).await {
            Ok(Ok(())) => {
                *slot = Some(connection);
                Ok(planned)
            }
            _ if !planned.wrote => Ok(planned),
            Ok(Err(mysql_async::Error::Server(e))) if settles(e.code) => {
                Err(failed("commit", &mysql_async::Error::Server(e)))
            }
            Ok(Err(e)) => undetermined(e.to_string(), planned),
            Err(_) => undetermined(format!("no answer within {PATIENCE:?}"), planned),
        }
    }

    async fn resolve(&self, number: u64) -> Result<Option<Revision>, StoreError> {
        let doing = "resolving a commit";
        let mut connection = self.server.connect().await?;
        let found = within(doing, async {
            connection.query_drop("START TRANSACTION").await?;
            // Waits for a transaction of its own that the server still works on.
            connection.query_drop("SELECT v FROM registry_rev FOR UPDATE").await?;
            let sql = "SELECT batch, rev FROM registry_writer WHERE id = ?";
            let found: Option<(i64, i64)> = connection.exec_first(sql, (self.id,)).await?;
            connection.query_drop("ROLLBACK").await?;
            Ok(found)
        });
        let found = found.await?.map_err(|e| failed(doing, &e))?;
        Ok(found.filter(|(batch, _)| u64::try_from(*batch) == Ok(number)).and_then(|(_, rev)| row::revision(rev)))
    }

    async fn read(&self, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let mut slot = self.reader.lock().await;
        let mut connection = self.server.take(&mut slot).await?;
        let doing = "reading rows";
        let error = |e| failed(doing, &e);
        let begin = async {
            connection.query_drop("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await?;
            connection.query_drop("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").await?;
            connection.query_first::<(i64, i64, i64), _>("SELECT v, epoch, gc_floor FROM registry_rev").await
        };
        let head = read_head(within(doing, begin).await?.map_err(error)?)?;
        let after = sink.begin(head);
        if after < head.v {
            let mut interner = Interner::default();
            // A full read is a scan; the index on `rev` would cause random access.
            let condition = if after == Revision(0) { "? = 0" } else { "rev > ?" };
            for (table, columns) in [("instance", INSTANCE_COLUMNS), ("service", SERVICE_COLUMNS)] {
                let sql = format!("SELECT {columns} FROM {table} WHERE {condition}");
                let rows = within(doing, connection.exec_iter(sql, (row::column(after),)));
                let mut rows = rows.await?.map_err(error)?;
                while let Some(row) = within(doing, rows.next()).await?.map_err(error)? {
                    sink.record(match table {
                        "instance" => Record::Instance(instance(&row, &mut interner)?),
                        _ => Record::Service(service(&row)?),
                    });
                }
            }
        }
        within(doing, connection.query_drop("COMMIT")).await?.map_err(error)?;
        *slot = Some(connection);
        Ok(())
    }

    async fn collect(&self, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
        let doing = "collecting tombstones";
        let mut connection = self.server.connect().await?;
        let (up_to, limit) = (row::column(up_to), i64::try_from(limit).unwrap_or(i64::MAX));
        let collecting = async {
            // A tombstone at a revision remains one for ever, so this read needs no lock.
            let sql = "SELECT max(rev) FROM (
                           SELECT rev FROM (SELECT rev, mtime FROM instance WHERE deleted AND rev <= ?
                                            UNION ALL SELECT rev, mtime FROM service WHERE deleted AND rev <= ?) AS gone
                           WHERE mtime < ? ORDER BY rev LIMIT ?) AS lowest";
            let floor: Option<Option<i64>> = connection.exec_first(sql, (up_to, up_to, before, limit)).await?;
            let Some(floor) = floor.flatten() else { return Ok(0) };
            connection.query_drop("START TRANSACTION").await?;
            let raise = "UPDATE registry_rev SET gc_floor = greatest(gc_floor, ?)";
            connection.exec_drop(raise, (floor,)).await?;
            let mut removed = 0;
            for table in ["instance", "service"] {
                let sql = format!("DELETE FROM {table} WHERE deleted AND rev <= ? AND mtime < ?");
                connection.exec_drop(sql, (floor, before)).await?;
                removed += connection.affected_rows();
            }
            connection.exec_drop("DELETE FROM registry_writer WHERE mtime < ?", (before,)).await?;
            connection.query_drop("COMMIT").await?;
            Ok(usize::try_from(removed).unwrap_or(usize::MAX))
        };
        within(doing, collecting).await?.map_err(|e| failed(doing, &e))
    }

    async fn attend(&self, own: Option<&NodeRow>, gone: &[NodeId]) -> Result<NodeList, StoreError> {
        let doing = "calling the roll";
        let mut slot = self.roll.lock().await;
        let mut connection = self.server.take(&mut slot).await?;
        let attending = async {
            if let Some(NodeRow { id, address, judges, beat }) = own {
                let put = Upsert::of(connection.server_version()).sql("registry_node", "id, address, judges, beat", 1);
                connection.exec_drop(put, (id.0, address, judges, beat)).await?;
            }
            for node in gone {
                connection.exec_drop("DELETE FROM registry_node WHERE id = ?", (node.0,)).await?;
            }
            let secret: Option<String> = connection.query_first("SELECT secret FROM registry_secret").await?;
            let rows = format!("SELECT id, address, judges, beat FROM registry_node ORDER BY id LIMIT {MOST_NODES}");
            let node = |(id, address, judges, beat)| NodeRow { id: NodeId(id), address, judges, beat };
            Ok((secret.unwrap_or_default(), connection.query_map(rows, node).await?))
        };
        let (secret, nodes) = within(doing, attending).await?.map_err(|e| failed(doing, &e))?;
        *slot = Some(connection);
        Ok(NodeList { nodes, secret: Secret::parse(STORE, &secret)? })
    }

    /// Polls the counter until it is not `seen`. May be dropped between two polls without losing the connection.
    async fn poll(&self, seen: Revision) -> Result<(), StoreError> {
        let mut slot = self.poller.lock().await;
        loop {
            let mut connection = self.server.take(&mut slot).await?;
            let counter = connection.query_first::<i64, _>("SELECT v FROM registry_rev");
            let v =
                within("looking at the revision", counter).await?.map_err(|e| failed("looking at the revision", &e))?;
            *slot = Some(connection);
            if v != Some(row::column(seen)) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Store for MySql {
    fn name(&self) -> &'static str {
        STORE
    }

    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move { self.commit(&batch).await })
    }

    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        Box::pin(self.resolve(number))
    }

    fn read<'a>(&'a self, sink: &'a mut dyn Sink) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.read(sink))
    }

    fn collect(&self, up_to: Revision, before: i64, limit: usize) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(self.collect(up_to, before, limit))
    }

    fn attend<'a>(
        &'a self,
        own: Option<&'a NodeRow>,
        gone: &'a [NodeId],
    ) -> BoxFuture<'a, Result<NodeList, StoreError>> {
        Box::pin(self.attend(own, gone))
    }

    fn changed(&self, seen: Revision) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(Err(error)) = tokio::time::timeout(LONGEST, self.poll(seen)).await {
                tracing::debug!("{error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
    }

    fn kv(&self) -> Option<Arc<dyn super::KvStore>> {
        Some(Arc::clone(&self.kv) as Arc<dyn super::KvStore>)
    }
}

/// Connection parameters of the database.
#[derive(Clone)]
struct Server(Database);

impl Server {
    async fn connect(&self) -> Result<Conn, StoreError> {
        self.0.connect().await
    }

    /// Takes the connection out of `slot`, or opens one. A dropped connection ends, and its transaction with it.
    async fn take(&self, slot: &mut Option<Conn>) -> Result<Conn, StoreError> {
        match slot.take() {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }
}

async fn within<T>(doing: &'static str, work: impl Future<Output = T>) -> Result<T, StoreError> {
    let late = |_| StoreError::unavailable(STORE, doing, format_args!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, work).await.map_err(late)
}

/// True if the number of an error of COMMIT proves that the transaction was rolled back. 1053: the server was shut down in the middle of it. 1180: the
/// engine failed in the middle of it. 1317, 1927: somebody has ended the statement or the connection. From 2000 and from 9000 on: a proxy between has lost its
/// server.
fn settles(code: u16) -> bool {
    !matches!(code, 1053 | 1180 | 1317 | 1927 | 2000..=2999 | 9000..=9999)
}

fn failed(doing: &'static str, error: &mysql_async::Error) -> StoreError {
    let reason = address::describe(error).into();
    // Lock wait timeout, deadlock.
    let conflict = matches!(error, mysql_async::Error::Server(e) if [1205, 1213].contains(&e.code));
    match conflict {
        true => StoreError::Conflict { store: STORE, doing, reason },
        false => StoreError::Unavailable { store: STORE, doing, reason },
    }
}

async fn migrate(connection: &mut Conn, migrations: &[&[&str]]) -> Result<(), StoreError> {
    let doing = "migrating the schema";
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    let new_secret = Secret::random(STORE)?.text();
    let migrating = async {
        // If several nodes start at once, one migrates, and the others find it done.
        let held: Option<Option<i64>> = connection.query_first("SELECT get_lock('kingpost_registry', 10)").await?;
        if held.flatten() != Some(1) {
            return Ok(Err(StoreError::unavailable(STORE, doing, "another node has held the lock for 10 s")));
        }
        let table = "CREATE TABLE IF NOT EXISTS registry_schema (version BIGINT PRIMARY KEY, at TIMESTAMP NOT NULL) ENGINE = InnoDB";
        connection.query_drop(table).await?;
        let found: Option<i64> =
            connection.query_first("SELECT coalesce(max(version), 0) FROM registry_schema").await?;
        let found = found.unwrap_or(0);
        if found > known {
            return Ok(Err(StoreError::Newer { store: STORE, found, known }));
        }
        for (version, statements) in (1i64..).zip(migrations).skip(usize::try_from(found).unwrap_or(0)) {
            for sql in *statements {
                connection.query_drop(*sql).await?;
            }
            connection.exec_drop("INSERT INTO registry_schema VALUES (?, now())", (version,)).await?;
        }
        let first = "INSERT IGNORE INTO registry_rev (one, v, epoch, gc_floor) VALUES (1, 0, ?, 0)";
        connection.exec_drop(first, (random(),)).await?;
        connection.exec_drop("INSERT IGNORE INTO registry_secret (one, secret) VALUES (1, ?)", (new_secret,)).await?;
        connection.query_drop("DO release_lock('kingpost_registry')").await?;
        Ok(Ok(()))
    };
    within(doing, migrating).await?.map_err(|e| failed(doing, &e))?
}

/// Runs a transaction up to its end.
async fn write(connection: &mut Conn, id: i64, batch: &Batch) -> Result<Committed, StoreError> {
    let error = |e| failed("commit", &e);
    connection.query_drop("START TRANSACTION").await.map_err(error)?;
    let head = connection.query_first("SELECT v, epoch, gc_floor FROM registry_rev FOR UPDATE").await.map_err(error)?;
    let head = read_head(head)?;
    let planned = match batch.foreseen_at(head) {
        Some(planned) => planned,
        None => plan(batch, head, &read_existing(connection, batch).await?),
    };
    if !planned.wrote {
        return Ok(planned);
    }
    let rev = row::column(planned.revision);
    connection.exec_drop("UPDATE registry_rev SET v = ?", (rev,)).await.map_err(error)?;
    let upsert = Upsert::of(connection.server_version());
    let note = upsert.sql("registry_writer", "id, batch, rev, mtime", 1);
    let number = i64::try_from(batch.number).unwrap_or(0);
    connection.exec_drop(note, (id, number, rev, batch.now)).await.map_err(error)?;
    let mut instances = Vec::with_capacity(planned.records.len());
    let mut services = Vec::new();
    for record in &planned.records {
        match record {
            Record::Instance(row) => instances.push(instance_values(row, rev)),
            Record::Service(row) => services.push(service_values(row, rev)),
        }
    }
    for (table, columns, rows) in [("instance", INSTANCE_COLUMNS, instances), ("service", SERVICE_COLUMNS, services)] {
        for chunk in pieces(&rows, |row| row.iter().map(size).sum()) {
            let sql = upsert.sql(table, columns, chunk.len());
            connection.exec_drop(sql, Params::Positional(chunk.concat())).await.map_err(error)?;
        }
    }
    Ok(planned)
}

/// Reads the rows that a batch concerns.
async fn read_existing(connection: &mut Conn, batch: &Batch) -> Result<Existing, StoreError> {
    let error = |e| failed("commit", &e);
    let mut interner = Interner::default();
    let mut existing = Existing::default();
    let ids: Vec<Value> = batch.instance_ids().into_iter().map(|id| id.as_str().into()).collect();
    for chunk in pieces(&ids, size) {
        let sql = format!("SELECT {INSTANCE_COLUMNS} FROM instance WHERE id IN ({})", marks(chunk.len(), "?"));
        let rows: Vec<Row> = connection.exec(sql, Params::Positional(chunk.to_vec())).await.map_err(error)?;
        for row in rows {
            let row = instance(&row, &mut interner)?;
            existing.instances.insert(row.instance.id.clone(), row);
        }
    }
    let left = batch.services_left(&existing);
    for key in batch.service_keys().into_iter().chain(&left) {
        let sql = format!("SELECT {SERVICE_COLUMNS} FROM service WHERE id = ?");
        if let Some(row) = connection.exec_first::<Row, _, _>(sql, (key.as_str(),)).await.map_err(error)? {
            existing.services.insert(key.clone(), service(&row)?);
        }
    }
    Ok(existing)
}

/// Syntax by which an upsert refers to the row to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upsert {
    /// MariaDB, and MySQL before 8.0.19: `VALUES(column)`. Later versions of MySQL accept it with a warning.
    Values,
    /// MySQL from 8.0.19 on: `n.column`, after `AS n`. Unknown to MariaDB.
    Alias,
}

impl Upsert {
    fn of(version: (u16, u16, u16)) -> Upsert {
        // MariaDB's versions are 10 and above; MySQL's are still below.
        match ((8, 0, 19)..(10, 0, 0)).contains(&version) {
            true => Upsert::Alias,
            false => Upsert::Values,
        }
    }

    /// Returns the statement for `rows` rows of `columns`, the first of which is the key.
    fn sql(self, table: &str, columns: &str, rows: usize) -> String {
        let names: Vec<&str> = columns.split(',').map(str::trim).collect();
        let values = marks(rows, &format!("({})", marks(names.len(), "?")));
        let (alias, update): (&str, fn(&str) -> String) = match self {
            Upsert::Values => ("", |name| format!("{name} = VALUES({name})")),
            Upsert::Alias => (" AS n", |name| format!("{name} = n.{name}")),
        };
        let updates: Vec<String> = names[1..].iter().map(|name| update(name)).collect();
        format!("INSERT INTO {table} ({columns}) VALUES {values}{alias} ON DUPLICATE KEY UPDATE {}", updates.join(", "))
    }
}

/// Splits rows into pieces of a power of two, at most `PIECE_ROWS`: so there are nine statements of a kind, which stay prepared. A piece has at most
/// `PIECE_BYTES`, unless it is a single row.
fn pieces<T>(mut all: &[T], size: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |row: &&T| {
            bytes += size(row);
            bytes <= PIECE_BYTES
        };
        let rows = all.iter().take(PIECE_ROWS).take_while(fits).count().max(1).min(all.len());
        let (piece, rest) = all.split_at(1 << rows.checked_ilog2()?);
        all = rest;
        Some(piece)
    })
}

fn size(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len(),
        _ => 8,
    }
}

fn marks(n: usize, mark: &str) -> String {
    vec![mark; n].join(", ")
}

fn instance_values(InstanceRow { instance: i, deleted }: &InstanceRow, rev: i64) -> Vec<Value> {
    vec![
        i.id.as_str().into(),
        i.service.as_str().into(),
        (&*i.host).into(),
        i.port.into(),
        (&*i.protocol).into(),
        (&*i.version).into(),
        i.weight.into(),
        i.priority.into(),
        (if i.isolate { ISOLATED } else { 0 }).into(),
        i.health.code().into(),
        i.ttl_millis().into(),
        i.check_text().into(),
        (&*i.location.region).into(),
        (&*i.location.zone).into(),
        (&*i.location.campus).into(),
        i.metadata.to_json().into(),
        Value::Bytes(i.digest.0.to_vec()),
        rev.into(),
        (*deleted).into(),
        i.ctime.into(),
        i.mtime.into(),
    ]
}

fn service_values(s: &ServiceRow, rev: i64) -> Vec<Value> {
    let metadata = s.metadata.to_json().into();
    vec![s.key.as_str().into(), metadata, rev.into(), s.deleted.into(), s.ctime.into(), s.mtime.into()]
}

fn read_head(row: Option<(i64, i64, i64)>) -> Result<Head, StoreError> {
    let wrong = || StoreError::corrupt(STORE, "registry_rev", "no row, or a negative revision");
    let (v, epoch, gc_floor) = row.ok_or_else(wrong)?;
    Ok(Head { v: row::revision(v).ok_or_else(wrong)?, epoch, gc_floor: row::revision(gc_floor).ok_or_else(wrong)? })
}

fn bytes(row: &Row, n: usize) -> Result<Option<&[u8]>, StoreError> {
    match row.as_ref(n) {
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Value::NULL) => Ok(None),
        other => Err(StoreError::corrupt(STORE, "a row", format_args!("column {n} is {other:?}"))),
    }
}

fn optional_text(row: &Row, n: usize) -> Result<Option<&str>, StoreError> {
    let text = bytes(row, n)?.map(std::str::from_utf8).transpose();
    text.map_err(|e| StoreError::corrupt(STORE, "a row", format_args!("column {n}: {e}")))
}

fn text(row: &Row, n: usize) -> Result<&str, StoreError> {
    Ok(optional_text(row, n)?.unwrap_or_default())
}

fn number(row: &Row, n: usize) -> Result<i64, StoreError> {
    match row.as_ref(n) {
        Some(Value::Int(number)) => Ok(*number),
        Some(Value::UInt(number)) => Ok(i64::try_from(*number).unwrap_or(i64::MAX)),
        other => Err(StoreError::corrupt(STORE, "a row", format_args!("column {n} is {other:?}"))),
    }
}

fn instance(row: &Row, interner: &mut Interner) -> Result<InstanceRow, StoreError> {
    Columns {
        id: text(row, 0)?,
        service: text(row, 1)?,
        host: text(row, 2)?,
        port: number(row, 3)?,
        protocol: text(row, 4)?,
        version: text(row, 5)?,
        weight: number(row, 6)?,
        priority: number(row, 7)?,
        flags: number(row, 8)?,
        health: number(row, 9)?,
        check_spec: optional_text(row, 11)?,
        region: text(row, 12)?,
        zone: text(row, 13)?,
        campus: text(row, 14)?,
        metadata: text(row, 15)?,
        digest: bytes(row, 16)?.unwrap_or_default(),
        rev: number(row, 17)?,
        deleted: number(row, 18)? != 0,
        ctime: number(row, 19)?,
        mtime: number(row, 20)?,
    }
    .decode(STORE, interner)
}

fn service(row: &Row) -> Result<ServiceRow, StoreError> {
    let columns =
        (text(row, 0)?, text(row, 1)?, number(row, 2)?, number(row, 3)? != 0, number(row, 4)?, number(row, 5)?);
    ServiceRow::decode(STORE, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proves_that_a_commit_was_rolled_back() {
        for (code, proves) in [
            (1062, true),
            (1205, true),
            (1213, true),
            (3101, true),
            (1053, false),
            (1180, false),
            (1317, false),
            (1927, false),
            (2013, false),
            (9001, false),
        ] {
            assert_eq!(settles(code), proves, "{code}");
        }
    }

    #[test]
    fn pieces_are_few_and_whole() {
        for (n, sizes) in [(0, vec![]), (1, vec![1]), (7, vec![4, 2, 1]), (600, vec![256, 256, 64, 16, 8])] {
            let all: Vec<usize> = (0..n).collect();
            assert_eq!(pieces(&all, |_| 1).map(<[usize]>::len).collect::<Vec<_>>(), sizes);
            assert_eq!(pieces(&all, |_| 1).flatten().copied().collect::<Vec<_>>(), all);
        }
        let large: Vec<usize> = (0..7).collect();
        let sizes = |each: usize| pieces(&large, move |_| each).map(<[usize]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(PIECE_BYTES / 3), [2, 2, 2, 1]);
        assert_eq!(sizes(PIECE_BYTES + 1), [1; 7]);
    }

    #[test]
    fn each_server_gets_an_upsert_that_it_knows() {
        for (version, expected) in [
            ((5, 7, 44), Upsert::Values),
            ((8, 0, 18), Upsert::Values),
            ((8, 0, 19), Upsert::Alias),
            ((9, 1, 0), Upsert::Alias),
            ((10, 11, 6), Upsert::Values),
            ((11, 4, 2), Upsert::Values),
        ] {
            assert_eq!(Upsert::of(version), expected, "{version:?}");
        }
        assert_eq!(
            Upsert::Values.sql("t", "a, b, c", 2),
            "INSERT INTO t (a, b, c) VALUES (?, ?, ?), (?, ?, ?) ON DUPLICATE KEY UPDATE b = VALUES(b), c = VALUES(c)"
        );
        assert_eq!(
            Upsert::Alias.sql("t", "a, b", 1),
            "INSERT INTO t (a, b) VALUES (?, ?) AS n ON DUPLICATE KEY UPDATE b = n.b"
        );
    }
}
