//! Keys and sessions in TiKV. As in the other stores, every transaction writes the counter. Nobody holds its lock here, but of two transactions that
//! read the same counter one commits, and the other is started again and planned on the new rows. So a decision is always based on everything
//! committed before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tikv::{Client, Error, Snapshot, Write};
use tokio::time::Instant;

use super::super::kv::{KvDecision, KvPlan, KvRead, KvRow, KvStore, VERSION, lacks};
use super::super::{BoxFuture, Head, random};
use super::keys::Keys;
use super::values::{self, KvFeed, KvName, Writer};
use super::{COLLECT_BATCHES, COLLECTING, PAGE, PATIENCE, STORE, committed_as, corrupt, failed, give_way, page};
use crate::error::StoreError;
use crate::model::Revision;

/// Maximum size of a key's value, and of a configuration entry's content, in TiKV. TiKV accepts 8 MB in one log entry, including all overhead.
pub const TIKV_MOST_VALUE: usize = 1 << 20;
/// Maximum size of a row's value: a configuration entry has a line beside its content, with description, tags and a key.
const LARGEST_ROW: usize = TIKV_MOST_VALUE + (64 << 10);

/// Rows of one request: with the largest values they stay below the client's limit of 64 MiB for one answer.
const ROWS: usize = 48;

/// The key-value part of a registry in TiKV.
pub(super) struct TiKvKv {
    client: Arc<Client>,
    keys: Keys,
    /// Id of this opening of the store among the writers.
    id: i64,
}

impl TiKvKv {
    /// Creates the counter, if it is absent.
    pub(super) async fn open(client: Arc<Client>, keys: Keys, deadline: Instant) -> Result<TiKvKv, StoreError> {
        let doing = "making the store of keys";
        let kv = TiKvKv { client, keys, id: random() };
        loop {
            let snapshot = kv.snapshot(doing, deadline).await?;
            let there = snapshot.get(kv.keys.kv_version(), deadline).await.map_err(|error| failed(doing, error))?;
            if let Some(version) = there {
                let found = values::number(&version).ok_or_else(|| corrupt("the version of keys"))?;
                if found > VERSION {
                    return Err(StoreError::Newer { store: STORE, found, known: VERSION });
                }
                return Ok(kv);
            }
            let head = Head { v: Revision(1), epoch: random(), gc_floor: Revision(0) };
            let writes = vec![
                Write::Put(kv.keys.kv_version(), values::of_number(VERSION)),
                Write::Put(kv.keys.kv_head(), values::of_head(head)),
            ];
            // After a conflict or an unknown outcome, the next round finds the counter.
            match kv.client.commit(snapshot.at(), writes, deadline).await {
                Ok(_) | Err(Error::Conflict { .. } | Error::Undetermined { .. }) => {}
                Err(error) => return Err(failed(doing, error)),
            }
        }
    }

    async fn snapshot(&self, doing: &'static str, deadline: Instant) -> Result<Snapshot, StoreError> {
        let at = self.client.timestamp(deadline).await.map_err(|error| failed(doing, error))?;
        Ok(self.client.snapshot(at))
    }

    async fn head_of(&self, snapshot: &Snapshot, deadline: Instant) -> Result<Head, StoreError> {
        let value = snapshot.get(self.keys.kv_head(), deadline).await;
        let value = value.map_err(|error| failed("reading the key-value revision", error))?;
        value.as_ref().and_then(values::head).ok_or_else(|| corrupt("the counter of keys"))
    }

    /// Reads the rows after `seen` that a node lacks.
    async fn missed(&self, snapshot: &Snapshot, head: Head, seen: (i64, Revision)) -> Result<KvRead, StoreError> {
        let doing = "reading keys";
        let (after, whole) = lacks(head, seen);
        let mut rows = Vec::new();
        if after == Revision(0) {
            let (start, end) = self.keys.kv_rows();
            let mut scan = snapshot.scan(doing, start, end, ROWS as u32);
            while let Some(page) = page(&mut scan, doing).await? {
                for pair in page {
                    rows.push(self.row(&pair.key, &pair.value)?);
                }
            }
            return Ok(KvRead { head, whole, rows });
        }
        if after < head.v {
            let (start, end) = self.keys.kv_feed_between(after, head.v);
            let mut scan = snapshot.scan(doing, start, end, PAGE);
            let mut keys = BTreeMap::new();
            while let Some(page) = page(&mut scan, doing).await? {
                for pair in page {
                    let feed: KvFeed = values::message(&pair.value).ok_or_else(|| corrupt("the feed of keys"))?;
                    keys.extend(self.rows_of(&feed).map(|key| (key, ())));
                }
            }
            let keys: Vec<Bytes> = keys.into_keys().collect();
            rows = self.rows(snapshot, &keys).await?;
            rows.retain(|row| row.revision > after);
        }
        Ok(KvRead { head, whole, rows })
    }

    /// Reads the rows of `keys` that exist.
    async fn rows(&self, snapshot: &Snapshot, keys: &[Bytes]) -> Result<Vec<KvRow>, StoreError> {
        let mut rows = Vec::with_capacity(keys.len());
        for keys in keys.chunks(ROWS) {
            let found = snapshot.get_many(keys.to_vec(), Instant::now() + PATIENCE).await;
            for (key, value) in found.map_err(|error| failed("reading keys", error))? {
                rows.push(self.row(&key, &value)?);
            }
        }
        Ok(rows)
    }

    fn row(&self, key: &Bytes, value: &Bytes) -> Result<KvRow, StoreError> {
        values::kv_row(self.keys.of_kv_row(key).ok_or_else(|| corrupt("a key"))?, value)
    }

    fn rows_of(&self, feed: &KvFeed) -> impl Iterator<Item = Bytes> {
        feed.rows.iter().map(|row| self.keys.kv_row(&row.namespace, row.kind, &row.name))
    }

    async fn head(&self) -> Result<Head, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let snapshot = self.snapshot("reading the key-value revision", deadline).await?;
        self.head_of(&snapshot, deadline).await
    }

    async fn read(&self, epoch: i64, after: Revision) -> Result<KvRead, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let snapshot = self.snapshot("reading keys", deadline).await?;
        let head = self.head_of(&snapshot, deadline).await?;
        self.missed(&snapshot, head, (epoch, after)).await
    }

    async fn commit(&self, number: u64, plan: Arc<dyn KvPlan>) -> Result<(), StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_commit(number, &*plan, deadline).await {
                // Another node was faster: the plan may be wrong by now.
                Err(error @ StoreError::Conflict { .. }) => give_way(deadline, error).await?,
                result => return result,
            }
        }
    }

    async fn try_commit(&self, number: u64, plan: &dyn KvPlan, deadline: Instant) -> Result<(), StoreError> {
        // Before the timestamp, so that the snapshot has everything that the node has seen.
        let seen = plan.seen();
        let snapshot = self.snapshot("commit", deadline).await?;
        let head = self.head_of(&snapshot, deadline).await?;
        let missed = self.missed(&snapshot, head, seen).await?;
        let KvDecision::Write(rows, revision) = plan.plan(missed) else { return Ok(()) };
        let now = rows.first().map_or(0, |row| row.mtime);
        let mut feed = KvFeed { now, rows: Vec::with_capacity(rows.len()) };
        let note = Writer { batch: number, rev: revision.0, mtime: now };
        // The counter is the primary key, so two nodes that commit at once conflict there.
        let mut writes = vec![
            Write::Put(self.keys.kv_head(), values::of_head(Head { v: revision, ..head })),
            Write::Put(self.keys.writer(self.id), values::of(&note)),
        ];
        for row in &rows {
            let columns = row.columns();
            if columns.value.len() > LARGEST_ROW {
                let reason = format!("a value of {} bytes; in TiKV the most is {LARGEST_ROW}", columns.value.len());
                return Err(StoreError::unavailable(STORE, "commit", reason));
            }
            let key = self.keys.kv_row(&columns.namespace, columns.kind, &columns.name);
            let name = KvName { namespace: columns.namespace.clone(), kind: columns.kind, name: columns.name.clone() };
            feed.rows.push(name);
            writes.push(Write::Put(key, values::of_kv_row(columns)));
        }
        writes.push(Write::Put(self.keys.kv_feed(revision), values::of(&feed)));
        match self.client.commit(snapshot.at(), writes, deadline).await {
            Ok(_) => Ok(()),
            Err(Error::Undetermined { last }) => {
                Err(StoreError::Undetermined { store: STORE, reason: last, planned: Box::default() })
            }
            Err(error) => Err(failed("commit", error)),
        }
    }

    async fn resolve(&self, number: u64) -> Result<bool, StoreError> {
        Ok(committed_as(&self.client, self.keys.writer(self.id), number).await?.is_some())
    }

    async fn collect(&self, up_to: Revision, before: i64, limit: usize) -> Result<usize, StoreError> {
        let until = Instant::now() + COLLECTING;
        let mut removed = 0;
        while removed < limit && Instant::now() < until {
            match self.collect_some(up_to, before).await? {
                Some(some) => removed += some,
                None => break,
            }
        }
        Ok(removed)
    }

    /// Removes the oldest batches from the feed, and the tombstones that they wrote. Returns the number of tombstones; `None` if no batch is old
    /// enough.
    async fn collect_some(&self, up_to: Revision, before: i64) -> Result<Option<usize>, StoreError> {
        let doing = "collecting deleted keys";
        let deadline = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.snapshot(doing, deadline).await?;
            let head = self.head_of(&snapshot, deadline).await?;
            let (start, end) = self.keys.kv_feed_between(Revision(0), up_to);
            let mut scan = snapshot.scan(doing, start, end, COLLECT_BATCHES as u32);
            let (mut entries, mut keys, mut floor) = (Vec::new(), Vec::new(), Revision(0));
            'pages: while let Some(page) = page(&mut scan, doing).await? {
                for pair in page {
                    let revision = self.keys.revision_of_kv_feed(&pair.key);
                    let feed: Option<KvFeed> = values::message(&pair.value);
                    let (Some(revision), Some(feed)) = (revision, feed) else {
                        return Err(corrupt("the feed of keys"));
                    };
                    if feed.now >= before || entries.len() >= COLLECT_BATCHES {
                        break 'pages;
                    }
                    keys.extend(self.rows_of(&feed));
                    entries.push(pair.key);
                    floor = revision;
                }
            }
            if entries.is_empty() {
                return Ok(None);
            }
            keys.sort_unstable();
            keys.dedup();
            let mut gone = self.rows(&snapshot, &keys).await?;
            // A row written or deleted again later belongs to that later batch.
            gone.retain(|row| row.columns().deleted && row.revision <= floor);
            let mut writes = vec![Write::Put(
                self.keys.kv_head(),
                values::of_head(Head { gc_floor: head.gc_floor.max(floor), ..head }),
            )];
            writes.extend(
                gone.iter()
                    .map(KvRow::columns)
                    .map(|columns| Write::Delete(self.keys.kv_row(&columns.namespace, columns.kind, &columns.name))),
            );
            writes.extend(entries.into_iter().map(Write::Delete));
            match self.client.commit(snapshot.at(), writes, deadline).await {
                Ok(_) => return Ok(Some(gone.len())),
                Err(error @ Error::Conflict { .. }) => give_way(deadline, failed(doing, error)).await?,
                Err(error) => return Err(failed(doing, error)),
            }
        }
    }
}

impl KvStore for TiKvKv {
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
