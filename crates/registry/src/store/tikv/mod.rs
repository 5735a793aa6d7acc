//! The store in a TiKV cluster, shared by several nodes. A batch is one optimistic transaction, which reads and writes the counter's key: of two
//! concurrent ones one commits, and the other is started again. TiKV sends no notification of a commit, so the counter is polled; nodes push commits
//! to each other much sooner.
//!
//! Beside the rows there is a feed: one key for each batch, with the ids of the rows that it wrote. An incremental read reads the feed from the
//! cursor on, and then those rows, all at one timestamp.

mod address;
mod keys;
mod kv;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tikv::{Client, Error, Snapshot, Write};
use tokio::time::Instant;

pub use self::kv::TIKV_MOST_VALUE;

use self::address::Address;
use self::keys::Keys;
use self::kv::TiKvKv;
use self::values::{Feed, Node, Writer};
use super::plan::{Existing, plan};
use super::row::Interner;
use super::{
    Batch, BoxFuture, Committed, Head, InstanceRow, KvStore, MOST_NODES, NodeId, NodeList, NodeRow, Record, Secret,
    ServiceRow, Sink, Store, random,
};
use crate::error::StoreError;
use crate::model::{InstanceId, Revision, ServiceKey};

const STORE: &str = "tikv";

/// The only format of keys and values so far. A newer program may know a newer one.
const VERSION: i64 = 1;

/// Time limit of a commit with all its attempts, and of a page of a read.
const PATIENCE: Duration = Duration::from_secs(15);
/// Interval between two reads of the counter.
const POLL: Duration = Duration::from_millis(200);
/// Maximum pause, chosen at random, before a conflicting transaction is started again.
const GIVE_WAY: Duration = Duration::from_millis(8);
/// Rows, or feed keys, of a page.
const PAGE: u32 = 512;
/// Batches whose feed keys are removed in one transaction.
const COLLECT_BATCHES: usize = 256;
/// Time limit of one collection.
const COLLECTING: Duration = Duration::from_secs(10);

/// The store in a TiKV cluster.
pub struct TiKv {
    client: Arc<Client>,
    keys: Keys,
    /// Id of this opening of the store among the writers.
    id: i64,
    kv: Arc<TiKvKv>,
}

impl TiKv {
    /// Connects to the cluster of `address`, `tikv://pd1:2379,pd2:2379/PREFIX`, and creates the counter and the secret below PREFIX, if they are
    /// absent. `?ca=FILE` enables TLS, `&cert=FILE&key=FILE` client authentication.
    ///
    /// # Errors
    /// The address is invalid, the cluster does not answer, or the data is of a newer version.
    pub async fn open(address: &str) -> Result<TiKv, StoreError> {
        let address = Address::parse(address)?;
        let doing = "connecting";
        let security = address.security().map_err(|error| failed(doing, error))?;
        let deadline = Instant::now() + PATIENCE;
        let client = Client::connect(address.endpoints, security, deadline).await;
        let client = client.map_err(|error| failed(doing, error))?;
        let keys = || Keys::new(&address.prefix);
        let kv = TiKvKv::open(Arc::clone(&client), keys(), deadline).await?;
        let store = TiKv { client, keys: keys(), id: random(), kv: Arc::new(kv) };
        store.found(deadline).await?;
        Ok(store)
    }

    /// Creates the initial keys. If several nodes open an empty store at once, one of them does.
    async fn found(&self, deadline: Instant) -> Result<(), StoreError> {
        let doing = "making the store";
        loop {
            let snapshot = self.snapshot(doing, deadline).await?;
            let there = snapshot.get(self.keys.version(), deadline).await.map_err(|error| failed(doing, error))?;
            if let Some(version) = there {
                let found = values::number(&version).ok_or_else(|| corrupt("the version"))?;
                if found > VERSION {
                    return Err(StoreError::Newer { store: STORE, found, known: VERSION });
                }
                return Ok(());
            }
            let head = Head { v: Revision(0), epoch: random(), gc_floor: Revision(0) };
            let writes = vec![
                Write::Put(self.keys.version(), values::of_number(VERSION)),
                Write::Put(self.keys.head(), values::of_head(head)),
                Write::Put(self.keys.secret(), values::of_text(&Secret::random(STORE)?.text())),
            ];
            // After a conflict or an unknown outcome, the next round finds the keys.
            match self.client.commit(snapshot.at(), writes, deadline).await {
                Ok(_) | Err(Error::Conflict { .. } | Error::Undetermined { .. }) => {}
                Err(error) => return Err(failed(doing, error)),
            }
        }
    }

    async fn snapshot(&self, doing: &'static str, deadline: Instant) -> Result<Snapshot, StoreError> {
        let at = self.client.timestamp(deadline).await.map_err(|error| failed(doing, error))?;
        Ok(self.client.snapshot(at))
    }

    async fn head(&self, doing: &'static str, snapshot: &Snapshot, deadline: Instant) -> Result<Head, StoreError> {
        let value = snapshot.get(self.keys.head(), deadline).await.map_err(|error| failed(doing, error))?;
        value.as_ref().and_then(values::head).ok_or_else(|| corrupt("the counter"))
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_commit(batch, deadline).await {
                // Another node was faster. The pauses are of random length, so that the same node does not lose every time.
                Err(error @ StoreError::Conflict { .. }) => give_way(deadline, error).await?,
                result => return result,
            }
        }
    }

    async fn try_commit(&self, batch: &Batch, deadline: Instant) -> Result<Committed, StoreError> {
        let doing = "commit";
        let snapshot = self.snapshot(doing, deadline).await?;
        let head = self.head(doing, &snapshot, deadline).await?;
        let planned = match batch.foreseen_at(head) {
            Some(planned) => planned,
            None => plan(batch, head, &self.existing(batch, &snapshot, deadline).await?),
        };
        if !planned.wrote {
            return Ok(planned);
        }
        let writes = self.writes(batch, head, &planned);
        match self.client.commit(snapshot.at(), writes, deadline).await {
            Ok(_) => Ok(planned),
            Err(Error::Undetermined { last }) => {
                Err(StoreError::Undetermined { store: STORE, reason: last, planned: Box::new(planned) })
            }
            Err(error) => Err(failed(doing, error)),
        }
    }

    /// Returns the mutations of a batch. The counter row is the primary key, so two nodes that commit at once conflict there.
    fn writes(&self, batch: &Batch, head: Head, planned: &Committed) -> Vec<Write> {
        let revision = planned.revision;
        let mut feed = Feed::at(batch.now);
        let mut writes = Vec::with_capacity(planned.records.len() + 3);
        let note = Writer { batch: batch.number, rev: revision.0, mtime: batch.now };
        writes.push(Write::Put(self.keys.head(), values::of_head(Head { v: revision, ..head })));
        writes.push(Write::Put(self.keys.writer(self.id), values::of(&note)));
        for record in &planned.records {
            match record {
                Record::Instance(row) => {
                    feed.instances.push(row.instance.id.as_str().to_owned());
                    writes.push(Write::Put(self.keys.instance(&row.instance.id), values::of_instance(row)));
                }
                Record::Service(row) => {
                    feed.services.push(row.key.as_str().to_owned());
                    writes.push(Write::Put(self.keys.service(&row.key), values::of_service(row)));
                }
            }
        }
        writes.push(Write::Put(self.keys.feed(revision), values::of(&feed)));
        writes
    }

    /// Reads the rows that a batch concerns.
    async fn existing(&self, batch: &Batch, snapshot: &Snapshot, deadline: Instant) -> Result<Existing, StoreError> {
        let mut existing = Existing::default();
        let instances = batch.instance_ids().into_iter().map(|id| self.keys.instance(id));
        let services = batch.service_keys().into_iter().map(|key| self.keys.service(key));
        self.look_up(instances.chain(services).collect(), snapshot, deadline, &mut existing).await?;
        let left = batch.services_left(&existing);
        if !left.is_empty() {
            let left = left.iter().map(|key| self.keys.service(key)).collect();
            self.look_up(left, snapshot, deadline, &mut existing).await?;
        }
        Ok(existing)
    }

    async fn look_up(
        &self,
        keys: Vec<Bytes>,
        snapshot: &Snapshot,
        deadline: Instant,
        existing: &mut Existing,
    ) -> Result<(), StoreError> {
        let mut interner = Interner::default();
        let found = snapshot.get_many(keys, deadline).await.map_err(|error| failed("commit", error))?;
        for (key, value) in found {
            match self.record(&key, &value, &mut interner)? {
                Record::Instance(row) => drop(existing.instances.insert(row.instance.id.clone(), row)),
                Record::Service(row) => drop(existing.services.insert(row.key.clone(), row)),
            }
        }
        Ok(())
    }

    /// Decodes the row of a key and its value.
    fn record(&self, key: &Bytes, value: &Bytes, interner: &mut Interner) -> Result<Record, StoreError> {
        if let Some(id) = self.keys.id_of_instance(key) {
            return Ok(Record::Instance(values::instance(id, value, interner)?));
        }
        if let Some(id) = self.keys.id_of_service(key) {
            return Ok(Record::Service(values::service(id, value)?));
        }
        Err(corrupt("a key"))
    }

    async fn read(&self, sink: &mut dyn Sink) -> Result<(), StoreError> {
        let doing = "reading rows";
        let snapshot = self.snapshot(doing, Instant::now() + PATIENCE).await?;
        let head = self.head(doing, &snapshot, Instant::now() + PATIENCE).await?;
        let after = sink.begin(head);
        if after >= head.v {
            return Ok(());
        }
        let mut interner = Interner::default();
        if after == Revision(0) {
            for (start, end) in [self.keys.instances(), self.keys.services()] {
                let mut scan = snapshot.scan(doing, start, end, PAGE);
                while let Some(page) = page(&mut scan, doing).await? {
                    for pair in page {
                        sink.record(self.record(&pair.key, &pair.value, &mut interner)?);
                    }
                }
            }
            return Ok(());
        }
        let (start, end) = self.keys.feed_between(after, head.v);
        let mut scan = snapshot.scan(doing, start, end, PAGE);
        while let Some(page) = page(&mut scan, doing).await? {
            let mut entries = BTreeMap::new();
            for pair in &page {
                let revision = self.keys.revision_of_feed(&pair.key).ok_or_else(|| corrupt("a key of the feed"))?;
                let feed: Feed = values::message(&pair.value).ok_or_else(|| corrupt("the feed"))?;
                for key in self.rows_of(&feed)? {
                    // For a row written twice, the later revision: only that one matches the row.
                    entries.insert(key, revision);
                }
            }
            let keys: Vec<Bytes> = entries.keys().cloned().collect();
            for keys in keys.chunks(PAGE as usize) {
                let found = snapshot.get_many(keys.to_vec(), Instant::now() + PATIENCE).await;
                for (key, value) in found.map_err(|error| failed(doing, error))? {
                    let record = self.record(&key, &value, &mut interner)?;
                    // A row written again later comes with a later page.
                    if entries.get(&key) == Some(&revision_of(&record)) {
                        sink.record(record);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the keys of the rows that a batch wrote.
    fn rows_of(&self, feed: &Feed) -> Result<Vec<Bytes>, StoreError> {
        let wrong = |_| corrupt("the feed");
        let mut keys = Vec::with_capacity(feed.instances.len() + feed.services.len());
        for id in &feed.instances {
            keys.push(self.keys.instance(&InstanceId::parse(id).map_err(wrong)?));
        }
        for key in &feed.services {
            keys.push(self.keys.service(&ServiceKey::parse(key).map_err(wrong)?));
        }
        Ok(keys)
    }

    async fn attend(&self, own: Option<&NodeRow>, gone: &[NodeId]) -> Result<NodeList, StoreError> {
        let doing = "calling the roll";
        let deadline = Instant::now() + PATIENCE;
        let mut writes: Vec<Write> = own
            .iter()
            .map(|row| {
                let node = Node { address: row.address.clone(), judges: row.judges, beat: row.beat };
                Write::Put(self.keys.node(row.id), values::of(&node))
            })
            .collect();
        writes.extend(
            gone.iter().filter(|id| own.is_none_or(|own| own.id != **id)).map(|id| Write::Delete(self.keys.node(*id))),
        );
        loop {
            let at = self.client.timestamp(deadline).await.map_err(|error| failed(doing, error))?;
            match self.client.commit(at, writes.clone(), deadline).await {
                Ok(_) => break,
                // Another node removes the same rows. All of these writes are idempotent.
                Err(error @ Error::Conflict { .. }) => give_way(deadline, failed(doing, error)).await?,
                Err(error) => return Err(failed(doing, error)),
            }
        }
        let snapshot = self.snapshot(doing, deadline).await?;
        let secret = snapshot.get(self.keys.secret(), deadline).await.map_err(|error| failed(doing, error))?;
        let secret = secret.as_ref().and_then(values::text).ok_or_else(|| corrupt("the secret"))?;
        let secret = Secret::parse(STORE, secret)?;
        let (start, end) = self.keys.nodes();
        let mut scan = snapshot.scan(doing, start, end, MOST_NODES as u32);
        let mut nodes = Vec::new();
        while nodes.len() < MOST_NODES
            && let Some(page) = page(&mut scan, doing).await?
        {
            for pair in page {
                let id = self.keys.id_of_node(&pair.key).ok_or_else(|| corrupt("a node"))?;
                let Node { address, judges, beat } = values::message(&pair.value).ok_or_else(|| corrupt("a node"))?;
                nodes.push(NodeRow { id, address, judges, beat });
            }
        }
        nodes.truncate(MOST_NODES);
        Ok(NodeList { nodes, secret })
    }

    async fn collect(&self, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
        let until = Instant::now() + COLLECTING;
        let mut removed = 0;
        while removed < limit && Instant::now() < until {
            match self.collect_some(up_to, before, limit - removed).await? {
                Some(some) => removed += some,
                None => break,
            }
        }
        self.forget_writers(before).await?;
        Ok(removed)
    }

    /// Removes the oldest batches from the feed, and the tombstones that they wrote. Returns the number of tombstones; `None` if no batch is old
    /// enough.
    async fn collect_some(&self, up_to: Revision, before: i64, limit: usize) -> Result<Option<usize>, StoreError> {
        let doing = "collecting tombstones";
        let deadline = Instant::now() + PATIENCE;
        let snapshot = self.snapshot(doing, deadline).await?;
        let (start, end) = self.keys.feed_between(Revision(0), up_to);
        let mut scan = snapshot.scan(doing, start, end, COLLECT_BATCHES as u32);
        let (mut entries, mut rows, mut floor) = (Vec::new(), Vec::new(), Revision(0));
        'pages: while let Some(page) = page(&mut scan, doing).await? {
            for pair in page {
                let revision = self.keys.revision_of_feed(&pair.key).ok_or_else(|| corrupt("a key of the feed"))?;
                let feed: Feed = values::message(&pair.value).ok_or_else(|| corrupt("the feed"))?;
                let wrote = self.rows_of(&feed)?;
                let full = entries.len() >= COLLECT_BATCHES || !rows.is_empty() && rows.len() + wrote.len() > limit;
                if feed.now >= before || full {
                    break 'pages;
                }
                rows.extend(wrote.into_iter().map(|key| (key, revision)));
                entries.push(pair.key);
                floor = revision;
            }
        }
        if entries.is_empty() {
            return Ok(None);
        }
        // A row that is no tombstone now never becomes one at that revision: only the others are read again below.
        let old = self.tombstones(&snapshot, &rows, deadline).await?;
        loop {
            let snapshot = self.snapshot(doing, deadline).await?;
            let head = self.head(doing, &snapshot, deadline).await?;
            let gone = self.tombstones(&snapshot, &old, deadline).await?;
            let mut writes = vec![Write::Put(
                self.keys.head(),
                values::of_head(Head { gc_floor: head.gc_floor.max(floor), ..head }),
            )];
            writes.extend(gone.iter().map(|(key, _)| Write::Delete(key.clone())));
            writes.extend(entries.iter().cloned().map(Write::Delete));
            match self.client.commit(snapshot.at(), writes, deadline).await {
                Ok(_) => return Ok(Some(gone.len())),
                Err(error @ Error::Conflict { .. }) => give_way(deadline, failed(doing, error)).await?,
                Err(error) => return Err(failed(doing, error)),
            }
        }
    }

    /// Returns those of `rows` that are tombstones at the given revision.
    async fn tombstones(
        &self,
        snapshot: &Snapshot,
        rows: &[(Bytes, Revision)],
        deadline: Instant,
    ) -> Result<Vec<(Bytes, Revision)>, StoreError> {
        let mut interner = Interner::default();
        let keys = rows.iter().map(|(key, _)| key.clone()).collect();
        let found = snapshot.get_many(keys, deadline).await.map_err(|error| failed("collecting tombstones", error))?;
        let mut tombstones = Vec::new();
        for (key, revision) in rows {
            let Some(value) = found.get(key) else { continue };
            let record = self.record(key, value, &mut interner)?;
            let deleted = match &record {
                Record::Instance(row) => row.deleted,
                Record::Service(row) => row.deleted,
            };
            if deleted && revision_of(&record) == *revision {
                tombstones.push((key.clone(), *revision));
            }
        }
        Ok(tombstones)
    }

    /// Removes the records of openings that have not written since `before`.
    async fn forget_writers(&self, before: i64) -> Result<(), StoreError> {
        let doing = "collecting writers' notes";
        let deadline = Instant::now() + PATIENCE;
        let snapshot = self.snapshot(doing, deadline).await?;
        let (start, end) = self.keys.writers();
        let mut scan = snapshot.scan(doing, start, end, PAGE);
        let own = self.keys.writer(self.id);
        let Some(page) = page(&mut scan, doing).await? else { return Ok(()) };
        let mut writes = Vec::new();
        for pair in page {
            let note: Writer = values::message(&pair.value).ok_or_else(|| corrupt("a writer's note"))?;
            if note.mtime < before && pair.key != own {
                writes.push(Write::Delete(pair.key));
            }
        }
        match self.client.commit(snapshot.at(), writes, deadline).await {
            // One of them has written again, or another node removes them too: left for the next collection.
            Ok(_) | Err(Error::Conflict { .. } | Error::Undetermined { .. }) => Ok(()),
            Err(error) => Err(failed(doing, error)),
        }
    }
}

impl Store for TiKv {
    fn name(&self) -> &'static str {
        STORE
    }

    fn commit(&self, batch: Arc<Batch>) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(async move { self.commit(&batch).await })
    }

    fn resolve(&self, number: u64) -> BoxFuture<'_, Result<Option<Revision>, StoreError>> {
        Box::pin(committed_as(&self.client, self.keys.writer(self.id), number))
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
            tokio::time::sleep(POLL).await;
            let doing = "looking for news";
            let until = Instant::now() + PATIENCE;
            while Instant::now() < until {
                let Ok(snapshot) = self.snapshot(doing, until).await else { return };
                match self.head(doing, &snapshot, until).await {
                    Ok(head) if head.v == seen => tokio::time::sleep(POLL).await,
                    // A new revision; or an error, which the following read will meet, too.
                    _ => return,
                }
            }
        })
    }

    fn figures(&self) -> Option<&Arc<tikv::Figures>> {
        Some(self.client.figures())
    }

    fn kv(&self) -> Option<Arc<dyn KvStore>> {
        Some(Arc::clone(&self.kv) as Arc<dyn KvStore>)
    }
}

/// Returns the revision at which the writer with its record at `key` has committed batch `number`, if it has.
async fn committed_as(client: &Arc<Client>, key: Bytes, number: u64) -> Result<Option<Revision>, StoreError> {
    let doing = "resolving a commit";
    let deadline = Instant::now() + PATIENCE;
    // Only this opening writes the key, and each batch does. If the transaction's lock is still there, the read waits until the transaction is
    // committed or rolled back. If neither lock nor value is there, the transaction can no longer commit: the call that would have committed it has
    // ended.
    let at = client.timestamp(deadline).await.map_err(|error| failed(doing, error))?;
    let value = client.snapshot(at).get(key, deadline).await.map_err(|error| failed(doing, error))?;
    let Some(value) = value else { return Ok(None) };
    let note: Writer = values::message(&value).ok_or_else(|| corrupt("a writer's note"))?;
    Ok((note.batch == number).then_some(Revision(note.rev)))
}

/// Returns the next page, within the time limit of a page.
async fn page(scan: &mut tikv::Scan, doing: &'static str) -> Result<Option<Vec<tikv::Pair>>, StoreError> {
    scan.page(Instant::now() + PATIENCE).await.map_err(|error| failed(doing, error))
}

/// Waits for a random pause before a transaction is started again; returns `error` if no time is left.
async fn give_way(deadline: Instant, error: StoreError) -> Result<(), StoreError> {
    let pause = GIVE_WAY * u32::from(random() as u8) / 255;
    if Instant::now() + pause >= deadline {
        return Err(error);
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

fn revision_of(record: &Record) -> Revision {
    match record {
        Record::Instance(InstanceRow { instance, .. }) => instance.revision,
        Record::Service(ServiceRow { revision, .. }) => *revision,
    }
}

fn corrupt(what: &str) -> StoreError {
    StoreError::corrupt(STORE, what, "it is not what a registry writes")
}

fn failed(doing: &'static str, error: Error) -> StoreError {
    match error {
        Error::Conflict { reason, .. } => StoreError::Conflict { store: STORE, doing, reason },
        error => StoreError::unavailable(STORE, doing, error),
    }
}
