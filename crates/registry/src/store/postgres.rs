//! The store in a PostgreSQL database, shared by several nodes. One connection writes, one reads, one maintains the node list, and one listens for
//! commits (`LISTEN`). A connection that had any error is closed: its transaction ends with it.

mod address;
mod kv;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{Mutex, Notify};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Connection, Row, Socket, Statement};
use wire::control::{self, Settings};

use self::address::Database;
use super::plan::{Existing, plan};
use super::row::{self, Columns, ISOLATED, Interner, SERVICE_COLUMNS};
use super::{
    Batch, BoxFuture, Committed, Head, InstanceRow, MOST_NODES, NodeId, NodeList, NodeRow, Record, Secret, ServiceRow,
    Sink, Store, random,
};
use crate::error::StoreError;
use crate::model::{Instance, Revision};

const STORE: &str = "postgres";

/// Migrations, forward only; never changed once released. The version of each is its place in the list, from 1.
const MIGRATIONS: &[&str] = &[
    "CREATE TABLE registry_rev (one INT PRIMARY KEY CHECK (one = 1), v BIGINT NOT NULL, epoch BIGINT NOT NULL,
                                gc_floor BIGINT NOT NULL) WITH (fillfactor = 10);
     CREATE TABLE service (id TEXT COLLATE \"C\" PRIMARY KEY, metadata JSONB NOT NULL, rev BIGINT NOT NULL,
                           deleted BOOL NOT NULL, ctime BIGINT NOT NULL, mtime BIGINT NOT NULL);
     CREATE INDEX service_rev ON service (rev);
     CREATE TABLE instance (id TEXT COLLATE \"C\" PRIMARY KEY, service TEXT NOT NULL, host TEXT NOT NULL,
                            port INT NOT NULL, protocol TEXT NOT NULL, version TEXT NOT NULL, weight INT NOT NULL,
                            priority INT NOT NULL, flags INT NOT NULL, health INT NOT NULL, ttl BIGINT,
                            check_spec TEXT, region TEXT NOT NULL, zone TEXT NOT NULL, campus TEXT NOT NULL,
                            metadata JSONB NOT NULL, digest BYTEA NOT NULL, rev BIGINT NOT NULL,
                            deleted BOOL NOT NULL, ctime BIGINT NOT NULL, mtime BIGINT NOT NULL);
     CREATE INDEX instance_rev ON instance (rev);",
    "CREATE TABLE registry_writer (id BIGINT PRIMARY KEY, batch BIGINT NOT NULL, rev BIGINT NOT NULL,
                                   mtime BIGINT NOT NULL) WITH (fillfactor = 50);
     CREATE INDEX instance_gone ON instance (rev) WHERE deleted;",
    "CREATE TABLE registry_node (id BIGINT PRIMARY KEY, address TEXT NOT NULL, judges BOOL NOT NULL, beat BIGINT NOT NULL)
         WITH (fillfactor = 50);
     CREATE TABLE registry_secret (one INT PRIMARY KEY CHECK (one = 1), secret TEXT NOT NULL);",
];

/// Key of the advisory lock for migrations: arbitrary, but always the same.
const MIGRATION_LOCK: i64 = 0x6b70_7265_6769_7374;
const CHANNEL: &str = "kingpost_registry";

/// Time limit of everything before COMMIT, and of the COMMIT itself.
const PATIENCE: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(5);
/// Interval of reads without a notification.
const POLL: Duration = Duration::from_secs(2);
/// Interval of reads of a replica that does not have the tables yet.
const BEHIND: Duration = Duration::from_millis(20);

/// Settings of both connections. Tables are found by the role's `search_path`, behind `pg_catalog`.
fn session_settings() -> Settings {
    Settings::own_names()
        .with_statement_timeout(PATIENCE)
        .with("lock_timeout", "10s")
        .with("idle_in_transaction_session_timeout", "30s")
        .with("application_name", control::REGISTRY)
}

/// Select list in the order of `INSTANCE_COLUMNS`, with `metadata` as text.
const SELECT: &str = "SELECT id, service, host, port, protocol, version, weight, priority, flags, health, ttl, check_spec, \
     region, zone, campus, metadata::text, digest, rev, deleted, ctime, mtime FROM instance";

const PUT: &str = "INSERT INTO instance (id, service, host, port, protocol, version, weight, priority, flags, health, ttl,
        check_spec, region, zone, campus, metadata, digest, rev, deleted, ctime, mtime)
    SELECT id, service, host, port, protocol, version, weight, priority, flags, health, ttl, check_spec, region, zone,
        campus, metadata::jsonb, digest, $18, deleted, ctime, mtime
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::int[], $8::int[], $9::int[],
        $10::int[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bytea[],
        $19::bool[], $20::bigint[], $21::bigint[])
        AS n (id, service, host, port, protocol, version, weight, priority, flags, health, ttl, check_spec, region, zone,
              campus, metadata, digest, deleted, ctime, mtime)
    ON CONFLICT (id) DO UPDATE SET service = excluded.service, host = excluded.host, port = excluded.port,
        protocol = excluded.protocol, version = excluded.version, weight = excluded.weight, priority = excluded.priority,
        flags = excluded.flags, health = excluded.health, ttl = excluded.ttl, check_spec = excluded.check_spec,
        region = excluded.region, zone = excluded.zone, campus = excluded.campus, metadata = excluded.metadata,
        digest = excluded.digest, rev = excluded.rev, deleted = excluded.deleted, ctime = excluded.ctime,
        mtime = excluded.mtime";

const PUT_SERVICE: &str = "INSERT INTO service (id, metadata, rev, deleted, ctime, mtime)
    VALUES ($1, $2::text::jsonb, $3, $4, $5, $6)
    ON CONFLICT (id) DO UPDATE SET metadata = excluded.metadata, rev = excluded.rev, deleted = excluded.deleted,
        ctime = excluded.ctime, mtime = excluded.mtime";

const PUT_WRITER: &str = "INSERT INTO registry_writer (id, batch, rev, mtime) VALUES ($1, $2, $3, $4)
    ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, rev = excluded.rev, mtime = excluded.mtime";

/// The store in a PostgreSQL database.
pub struct Postgres {
    database: Database,
    /// Id of this opening of the store in `registry_writer`.
    id: i64,
    writer: Mutex<Option<Writer>>,
    /// Separate from the listening connection, so that a proxy in between may route reads to a replica.
    reader: Mutex<Option<Client>>,
    listener: Mutex<Option<Client>>,
    roll: Mutex<Option<Client>>,
    /// Signalled after a commit, or when the listening connection has ended.
    news: Arc<Notify>,
    kv: Arc<kv::PostgresKv>,
}

type Parameter<'a> = &'a (dyn tokio_postgres::types::ToSql + Sync);

/// A connection with its statements.
struct Writer {
    client: Client,
    lock: Statement,
    instances: Statement,
    services: Statement,
    put: Statement,
    put_service: Statement,
    put_writer: Statement,
    raise: Statement,
}

impl Postgres {
    /// Connects to the database of `address`, `postgres://user@host/database` with libpq's parameters, and brings the schema up to date. TLS follows
    /// `sslmode` and libpq's other parameters; the default is `prefer`.
    ///
    /// # Errors
    /// The address is invalid, a TLS file is unusable, the database does not answer (or not with TLS where it must), or has a newer schema.
    pub async fn open(address: &str) -> Result<Postgres, StoreError> {
        let mut database = Database::parse(address)?;
        database.config.connect_timeout(CONNECT).keepalives_idle(Duration::from_secs(30));
        let store = Postgres {
            kv: Arc::new(kv::PostgresKv::new(database.clone())),
            database,
            id: random(),
            writer: Mutex::new(None),
            reader: Mutex::new(None),
            listener: Mutex::new(None),
            roll: Mutex::new(None),
            news: Arc::new(Notify::new()),
        };
        let mut client = store.connect(false).await?;
        migrate(&mut client, MIGRATIONS).await?;
        kv::migrate(&mut client).await?;
        store.listen().await?;
        Ok(store)
    }

    /// Ensures that a connection listens for commits.
    async fn listen(&self) -> Result<(), StoreError> {
        let mut slot = self.listener.lock().await;
        if slot.as_ref().is_none_or(Client::is_closed) {
            *slot = Some(self.connect(true).await?);
        }
        Ok(())
    }

    /// Opens a connection; a listening one signals every commit.
    async fn connect(&self, listens: bool) -> Result<Client, StoreError> {
        let error = |e| failed("connecting", &e);
        let client = connect(&self.database, listens.then(|| Arc::clone(&self.news))).await?;
        if listens {
            within("connecting", client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?.map_err(error)?;
        }
        Ok(client)
    }

    async fn writer(&self) -> Result<Writer, StoreError> {
        let client = self.connect(false).await?;
        let error = |e| failed("preparing statements", &e);
        // Rows are looked up by their keys. A plan made while the table was small, and kept, would scan the whole table for every batch until the
        // next ANALYZE. The single row of the counter has no index: the cost of its scan must not trigger JIT compilation.
        let plans = "SET enable_seqscan = off; SET jit = off";
        within("preparing statements", client.batch_execute(plans)).await?.map_err(error)?;
        let prepare = |sql: String| {
            let client = &client;
            async move { within("preparing statements", client.prepare(&sql)).await?.map_err(error) }
        };
        let lock = prepare("SELECT v, epoch, gc_floor FROM registry_rev FOR UPDATE".into()).await?;
        let instances = prepare(format!("{SELECT} WHERE id = ANY($1)")).await?;
        let services =
            prepare("SELECT id, metadata::text, rev, deleted, ctime, mtime FROM service WHERE id = ANY($1)".into())
                .await?;
        let put = prepare(PUT.into()).await?;
        let put_service = prepare(PUT_SERVICE.into()).await?;
        let put_writer = prepare(PUT_WRITER.into()).await?;
        let raise =
            prepare(format!("WITH raised AS (UPDATE registry_rev SET v = $1) SELECT pg_notify('{CHANNEL}', '')"))
                .await?;
        Ok(Writer { client, lock, instances, services, put, put_service, put_writer, raise })
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed, StoreError> {
        let mut slot = self.writer.lock().await;
        // Taken out: if it is dropped with this future, or on an error, its connection ends and so its transaction.
        let writer = match slot.take().filter(|writer| !writer.client.is_closed()) {
            Some(writer) => writer,
            None => self.writer().await?,
        };
        let planned = within("commit", writer.write(self.id, batch)).await??;
        let end = if planned.wrote { "COMMIT" } else { "ROLLBACK" };
        let undetermined = |reason: String, planned: Committed| {
            let planned = Box::new(planned);
            Err(StoreError::Undetermined { store: STORE, reason: reason.into(), planned })
        };
        match tokio::time::timeout(PATIENCE, writer.client.batch_execute(end)).await {
            Ok(Ok(())) => {
                *slot = Some(writer);
                Ok(planned)
            }
            _ if !planned.wrote => Ok(planned),
            Ok(Err(e)) if e.code().is_some_and(|code| settles(code.code())) => Err(failed("commit", &e)),
            Ok(Err(e)) => undetermined(describe(&e), planned),
            Err(_) => undetermined(format!("no answer within {PATIENCE:?}"), planned),
        }
    }

    async fn resolve(&self, number: u64) -> Result<Option<Revision>, StoreError> {
        let mut client = self.connect(false).await?;
        let doing = "resolving a commit";
        let found = within(doing, async {
            let transaction = client.transaction().await?;
            // Waits for a transaction of its own that the server still works on.
            transaction.execute("SELECT 1 FROM registry_rev FOR UPDATE", &[]).await?;
            transaction.query_opt("SELECT batch, rev FROM registry_writer WHERE id = $1", &[&self.id]).await
        });
        let found = found.await?.map_err(|e| failed(doing, &e))?;
        let ours = found.filter(|row| u64::try_from(row.get::<_, i64>(0)) == Ok(number));
        Ok(ours.and_then(|row| row::revision(row.get(1))))
    }

    async fn read(&self, sink: &mut dyn Sink) -> Result<(), StoreError> {
        // First, so that a commit after the read is notified.
        self.listen().await?;
        let mut slot = self.reader.lock().await;
        let client = match slot.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.connect(false).await?,
        };
        let error = |e| failed("reading rows", &e);
        let head = within("reading rows", begin(&client)).await?.map_err(error)?;
        let head = read_head(&head)?;
        let after = sink.begin(head);
        if after < head.v {
            let mut interner = Interner::default();
            // A full read is a scan; the index on `rev` would cause random access.
            let condition = if after == Revision(0) { "$1::bigint = 0" } else { "rev > $1" };
            let sql = format!("{SELECT} WHERE {condition}");
            let rows = within("reading rows", client.query_raw(&sql, [row::column(after)])).await?;
            let mut rows = std::pin::pin!(rows.map_err(error)?);
            while let Some(row) = within("reading rows", rows.next()).await? {
                sink.record(Record::Instance(instance(&row.map_err(error)?, &mut interner)?));
            }
            let columns = SERVICE_COLUMNS.replace("metadata", "metadata::text");
            let sql = format!("SELECT {columns} FROM service WHERE {condition}");
            let rows = within("reading rows", client.query_raw(&sql, [row::column(after)])).await?;
            let mut rows = std::pin::pin!(rows.map_err(error)?);
            while let Some(row) = within("reading rows", rows.next()).await? {
                sink.record(Record::Service(service(&row.map_err(error)?)?));
            }
        }
        within("reading rows", client.batch_execute("COMMIT")).await?.map_err(error)?;
        *slot = Some(client);
        Ok(())
    }

    async fn attend(&self, own: Option<&NodeRow>, gone: &[NodeId]) -> Result<NodeList, StoreError> {
        let doing = "calling the roll";
        let mut slot = self.roll.lock().await;
        let mut client = match slot.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.connect(false).await?,
        };
        let attending = async {
            // A transaction that may write is never routed to a replica: liveness must not be read from a lagging server.
            let client = client.transaction().await?;
            if let Some(NodeRow { id, address, judges, beat }) = own {
                let put = "INSERT INTO registry_node (id, address, judges, beat) VALUES ($1, $2, $3, $4)
                    ON CONFLICT (id) DO UPDATE SET address = excluded.address, judges = excluded.judges, beat = excluded.beat";
                client.execute(put, &[&id.0, address, judges, beat]).await?;
            }
            if !gone.is_empty() {
                let gone: Vec<i64> = gone.iter().map(|id| id.0).collect();
                client.execute("DELETE FROM registry_node WHERE id = ANY($1)", &[&gone]).await?;
            }
            let secret = client.query_one("SELECT secret FROM registry_secret", &[]).await?;
            let most = i64::try_from(MOST_NODES).unwrap_or(i64::MAX);
            let rows = "SELECT id, address, judges, beat FROM registry_node ORDER BY id LIMIT $1";
            let rows = client.query(rows, &[&most]).await?;
            client.commit().await?;
            Ok((secret.get::<_, String>(0), rows))
        };
        let (secret, rows) = within(doing, attending).await?.map_err(|e| failed(doing, &e))?;
        *slot = Some(client);
        let node =
            |row: &Row| NodeRow { id: NodeId(row.get(0)), address: row.get(1), judges: row.get(2), beat: row.get(3) };
        Ok(NodeList { nodes: rows.iter().map(node).collect(), secret: Secret::parse(STORE, &secret)? })
    }

    async fn collect(&self, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
        let mut client = self.connect(false).await?;
        let (up_to, limit) = (row::column(up_to), i64::try_from(limit).unwrap_or(i64::MAX));
        let collecting = async {
            // A tombstone at a revision remains one for ever, so this read needs no lock.
            let floor = client
                .query_one(
                    "SELECT max(rev) FROM (
                         SELECT rev FROM (SELECT rev, mtime FROM instance WHERE deleted AND rev <= $1
                                          UNION ALL SELECT rev, mtime FROM service WHERE deleted AND rev <= $1) AS gone
                         WHERE mtime < $2 ORDER BY rev LIMIT $3) AS lowest",
                    &[&up_to, &before, &limit],
                )
                .await?
                .get::<_, Option<i64>>(0);
            let Some(floor) = floor else { return Ok(0) };
            let transaction = client.transaction().await?;
            transaction.execute("UPDATE registry_rev SET gc_floor = greatest(gc_floor, $1)", &[&floor]).await?;
            let mut removed = 0;
            for table in ["instance", "service"] {
                let sql = format!("DELETE FROM {table} WHERE deleted AND rev <= $1 AND mtime < $2");
                removed += transaction.execute(&sql, &[&floor, &before]).await?;
            }
            transaction.execute("DELETE FROM registry_writer WHERE mtime < $1", &[&before]).await?;
            transaction.commit().await?;
            Ok(usize::try_from(removed).unwrap_or(usize::MAX))
        };
        within("collecting tombstones", collecting).await?.map_err(|e| failed("collecting tombstones", &e))
    }
}

impl Writer {
    /// Runs a transaction up to its end.
    async fn write(&self, id: i64, batch: &Batch) -> Result<Committed, StoreError> {
        let error = |e| failed("commit", &e);
        // Pipelined in this order. At READ COMMITTED each statement sees the commits before its own start, and the statements after the lock start
        // when the lock is held.
        let begin = self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED");
        let lock = self.client.query_one(&self.lock, &[]);
        let planned = if batch.is_foreseen() {
            let (begun, head) = tokio::join!(biased; begin, lock);
            begun.map_err(error)?;
            let head = read_head(&head.map_err(error)?)?;
            match batch.foreseen_at(head) {
                Some(planned) => planned,
                None => plan(batch, head, &self.existing(batch).await?),
            }
        } else {
            let (begun, head, existing) = tokio::join!(biased; begin, lock, self.existing(batch));
            begun.map_err(error)?;
            plan(batch, read_head(&head.map_err(error)?)?, &existing?)
        };
        if !planned.wrote {
            return Ok(planned);
        }
        let rev = row::column(planned.revision);
        let number = i64::try_from(batch.number).unwrap_or(0);
        let (of_raise, of_note): ([Parameter<'_>; 1], [Parameter<'_>; 4]) = ([&rev], [&id, &number, &rev, &batch.now]);
        let (raised, noted, put) = tokio::join!(
            biased;
            self.client.execute(&self.raise, &of_raise),
            self.client.execute(&self.put_writer, &of_note),
            self.put_instances(&planned.records, rev),
        );
        raised.and(noted).and(put).map_err(error)?;
        for record in &planned.records {
            if let Record::Service(s) = record {
                let metadata = s.metadata.to_json();
                let values: [Parameter<'_>; 6] = [&s.key.as_str(), &metadata, &rev, &s.deleted, &s.ctime, &s.mtime];
                self.client.execute(&self.put_service, &values).await.map_err(error)?;
            }
        }
        Ok(planned)
    }

    /// Reads the rows that a batch concerns.
    async fn existing(&self, batch: &Batch) -> Result<Existing, StoreError> {
        let error = |e| failed("commit", &e);
        let ids: Vec<&str> = batch.instance_ids().into_iter().map(|id| id.as_str()).collect();
        let keys: Vec<&str> = batch.service_keys().into_iter().map(|key| key.as_str()).collect();
        let (of_instances, of_services): ([Parameter<'_>; 1], [Parameter<'_>; 1]) = ([&ids], [&keys]);
        let (instances, services) = tokio::join!(
            biased;
            self.client.query(&self.instances, &of_instances),
            self.client.query(&self.services, &of_services),
        );
        let mut interner = Interner::default();
        let mut existing = Existing::default();
        for row in instances.map_err(error)? {
            let row = instance(&row, &mut interner)?;
            existing.instances.insert(row.instance.id.clone(), row);
        }
        for row in services.map_err(error)? {
            let row = service(&row)?;
            existing.services.insert(row.key.clone(), row);
        }
        let left = batch.services_left(&existing);
        if !left.is_empty() {
            let left: Vec<&str> = left.iter().map(|key| key.as_str()).collect();
            for row in self.client.query(&self.services, &[&left]).await.map_err(error)? {
                let row = service(&row)?;
                existing.services.insert(row.key.clone(), row);
            }
        }
        Ok(existing)
    }

    async fn put_instances(&self, records: &[Record], rev: i64) -> Result<u64, tokio_postgres::Error> {
        let rows: Vec<&InstanceRow> = records
            .iter()
            .filter_map(|record| match record {
                Record::Instance(row) => Some(row),
                Record::Service(_) => None,
            })
            .collect();
        if rows.is_empty() {
            return Ok(0);
        }
        fn each<'a, T>(rows: &[&'a InstanceRow], value: impl Fn(&'a Instance) -> T) -> Vec<T> {
            rows.iter().map(|row| value(&row.instance)).collect()
        }
        let deleted: Vec<bool> = rows.iter().map(|row| row.deleted).collect();
        self.client
            .execute(
                &self.put,
                &[
                    &each(&rows, |i| i.id.as_str()),
                    &each(&rows, |i| i.service.as_str()),
                    &each(&rows, |i| &*i.host),
                    &each(&rows, |i| i32::from(i.port)),
                    &each(&rows, |i| &*i.protocol),
                    &each(&rows, |i| &*i.version),
                    &each(&rows, |i| i32::from(i.weight)),
                    &each(&rows, |i| i32::from(i.priority)),
                    &each(&rows, |i| if i.isolate { ISOLATED as i32 } else { 0 }),
                    &each(&rows, |i| i32::from(i.health.code())),
                    &each(&rows, Instance::ttl_millis),
                    &each(&rows, Instance::check_text),
                    &each(&rows, |i| &*i.location.region),
                    &each(&rows, |i| &*i.location.zone),
                    &each(&rows, |i| &*i.location.campus),
                    &each(&rows, |i| i.metadata.to_json()),
                    &each(&rows, |i| &i.digest.0[..]),
                    &rev,
                    &deleted,
                    &each(&rows, |i| i.ctime),
                    &each(&rows, |i| i.mtime),
                ],
            )
            .await
    }
}

impl Store for Postgres {
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

    fn changed(&self, _seen: Revision) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Without a notification, the store is read after this time.
            let _ = tokio::time::timeout(POLL, self.news.notified()).await;
        })
    }

    fn kv(&self) -> Option<Arc<dyn super::KvStore>> {
        Some(Arc::clone(&self.kv) as Arc<dyn super::KvStore>)
    }
}

/// Opens a connection and sets it up; its notifications are signalled to `news`.
async fn connect(database: &Database, news: Option<Arc<Notify>>) -> Result<Client, StoreError> {
    let error = |e| failed("connecting", &e);
    let secure = within("connecting", database.secure()).await??;
    let (client, connection) = within("connecting", database.config.connect(secure)).await?.map_err(error)?;
    tokio::spawn(drive(connection, news));
    within("connecting", begin_session(&client)).await?.map_err(error)?;
    Ok(client)
}

/// Gives a session its settings, by statements that a pooler between can follow.
async fn begin_session(client: &Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&session_settings().sql()).await?;
    if let Some(row) = client.query_opt(control::OWN_PATH, &[]).await? {
        let path: Option<String> = row.try_get(0)?;
        client.batch_execute(&format!("SET search_path = {}", path.as_deref().unwrap_or("''"))).await?;
    }
    for row in client.query(control::LIMITS, &[]).await? {
        let name: String = row.try_get(0)?;
        client.batch_execute(&format!("SET {name} = 0")).await?;
    }
    Ok(())
}

/// Drives a connection until it ends, and signals notifications of commits.
async fn drive(mut connection: Connection<Socket, tls::postgres::Secured<Socket>>, news: Option<Arc<Notify>>) {
    loop {
        match std::future::poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notification(_))) => {
                if let Some(news) = &news {
                    news.notify_one();
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!("connection to PostgreSQL ended: {error}");
                break;
            }
            None => break,
        }
    }
    if let Some(news) = &news {
        news.notify_one();
    }
}

async fn within<T>(doing: &'static str, work: impl Future<Output = T>) -> Result<T, StoreError> {
    let late = |_| StoreError::unavailable(STORE, doing, format_args!("no answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, work).await.map_err(late)
}

/// Begins a read-only transaction, and reads the counter's row. A replica chosen by a proxy may not have the tables yet that this process has just
/// created: then starts again, on the replica chosen next.
async fn begin(client: &Client) -> Result<Row, tokio_postgres::Error> {
    loop {
        // The duration of a full read depends on the size, so only the wait for each row is bounded.
        // Two messages, sent together: a proxy routes the transaction by the first one alone.
        tokio::try_join!(
            biased;
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
            client.batch_execute("SET LOCAL statement_timeout = 0"),
        )?;
        match client.query_one("SELECT v, epoch, gc_floor FROM registry_rev", &[]).await {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                client.batch_execute("ROLLBACK").await?;
                tokio::time::sleep(BEHIND).await;
            }
            head => return head,
        }
    }
}

/// True if the SQLSTATE of an error of COMMIT proves that the transaction was rolled back. 57P: the server was shut down in the middle of it. Class 08 and
/// 40003: a proxy between has lost its server, and does not know.
fn settles(code: &str) -> bool {
    !(code.starts_with("57P") || code.starts_with("08") || code == "40003")
}

/// What the server said, or why it could not be asked. Neither holds a password.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

fn failed(doing: &'static str, error: &tokio_postgres::Error) -> StoreError {
    let reason = describe(error).into();
    let conflicts =
        [&SqlState::T_R_SERIALIZATION_FAILURE, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::LOCK_NOT_AVAILABLE];
    if error.code().is_some_and(|code| conflicts.contains(&code)) {
        StoreError::Conflict { store: STORE, doing, reason }
    } else {
        StoreError::Unavailable { store: STORE, doing, reason }
    }
}

async fn migrate(client: &mut Client, migrations: &[&str]) -> Result<(), StoreError> {
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    let new_secret = Secret::random(STORE)?.text();
    let migrating = async {
        let transaction = client.transaction().await?;
        transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        let table = "CREATE TABLE IF NOT EXISTS registry_schema (version BIGINT PRIMARY KEY, at TIMESTAMPTZ NOT NULL)";
        transaction.batch_execute(table).await?;
        let found = "SELECT coalesce(max(version), 0) FROM registry_schema";
        let found: i64 = transaction.query_one(found, &[]).await?.get(0);
        if found > known {
            return Ok(Some(found));
        }
        for (version, sql) in (1i64..).zip(migrations).skip(usize::try_from(found).unwrap_or(0)) {
            transaction.batch_execute(sql).await?;
            transaction.execute("INSERT INTO registry_schema VALUES ($1, now())", &[&version]).await?;
        }
        let first = "INSERT INTO registry_rev (one, v, epoch, gc_floor) VALUES (1, 0, $1, 0) ON CONFLICT DO NOTHING";
        transaction.execute(first, &[&random()]).await?;
        let secret = "INSERT INTO registry_secret (one, secret) VALUES (1, $1) ON CONFLICT DO NOTHING";
        transaction.execute(secret, &[&new_secret]).await?;
        transaction.commit().await?;
        Ok(None)
    };
    match within("migrating the schema", migrating).await?.map_err(|e| failed("migrating the schema", &e))? {
        Some(found) => Err(StoreError::Newer { store: STORE, found, known }),
        None => Ok(()),
    }
}

fn read_head(row: &Row) -> Result<Head, StoreError> {
    let negative = || StoreError::corrupt(STORE, "registry_rev", "a negative revision");
    Ok(Head {
        v: row::revision(row.get(0)).ok_or_else(negative)?,
        epoch: row.get(1),
        gc_floor: row::revision(row.get(2)).ok_or_else(negative)?,
    })
}

fn instance(row: &Row, interner: &mut Interner) -> Result<InstanceRow, StoreError> {
    let number = |n: usize| i64::from(row.get::<_, i32>(n));
    Columns {
        id: row.get(0),
        service: row.get(1),
        host: row.get(2),
        port: number(3),
        protocol: row.get(4),
        version: row.get(5),
        weight: number(6),
        priority: number(7),
        flags: number(8),
        health: number(9),
        check_spec: row.get(11),
        region: row.get(12),
        zone: row.get(13),
        campus: row.get(14),
        metadata: row.get(15),
        digest: row.get(16),
        rev: row.get(17),
        deleted: row.get(18),
        ctime: row.get(19),
        mtime: row.get(20),
    }
    .decode(STORE, interner)
}

fn service(row: &Row) -> Result<ServiceRow, StoreError> {
    ServiceRow::decode(STORE, (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proves_that_a_commit_was_rolled_back() {
        for (code, proves) in [
            ("23505", true),
            ("40001", true),
            ("40P01", true),
            ("53100", true),
            // As Kingpost's own proxy says where it does not know, and PgBouncer of a server that is gone.
            ("40003", false),
            ("08007", false),
            ("08006", false),
            ("08P01", false),
            ("57P01", false),
            ("57P02", false),
        ] {
            assert_eq!(settles(code), proves, "{code}");
        }
    }
}
