//! Reads of the data committed up to a timestamp.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::proto::tikvpb;
use crate::region::Sent;
use crate::verdict::Phase;
use crate::{Client, Key, Timestamp};

/// Keys of one request.
const KEYS: usize = 256;

/// The data committed up to a timestamp. If a read meets a lock of a transaction that may have been committed before the timestamp, it waits for the
/// transaction's end, or ends the transaction once its time is over.
#[derive(Clone, Debug)]
pub struct Snapshot {
    client: Arc<Client>,
    at: Timestamp,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Key,
    /// The value; never empty.
    pub value: Key,
}

/// A range of keys, read page by page.
#[derive(Debug)]
pub struct Scan {
    snapshot: Snapshot,
    doing: &'static str,
    /// The next key; `None`: everything was read.
    next: Option<Key>,
    end: Key,
    page: u32,
}

impl Snapshot {
    pub(crate) fn new(client: Arc<Client>, at: Timestamp) -> Snapshot {
        Snapshot { client, at }
    }

    /// Returns the timestamp of the snapshot.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the value of a key, if it has one.
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::Refused`].
    ///
    /// # Errors
    /// [`Error::Late`], [`Error::Refused`].
    pub async fn get(&self, key: Key, deadline: Instant) -> Result<Option<Key>, Error> {
        let mut backoff = Backoff::new("reading a key", deadline);
        loop {
            let region = self.client.regions.of(&key, deadline).await?;
            let request = tikvpb::GetRequest { context: region.context(), key: key.clone(), version: self.at.0 };
            let mut store = region.client();
            let sent = self.client.regions.send(Phase::Read, &region, &mut backoff, store.kv_get(request)).await;
            let Sent::Done(reply) = sent? else { continue };
            match reply.error {
                Some(error) => self.client.unlock([error], &mut backoff, "reading a key").await?,
                None => return Ok((!reply.not_found && !reply.value.is_empty()).then_some(reply.value)),
            }
        }
    }

    /// Returns the values of those of `keys` that have one, sorted by key.
    ///
    /// # Errors
    /// The same as for [`Snapshot::get`].
    pub async fn get_many(&self, keys: Vec<Key>, deadline: Instant) -> Result<BTreeMap<Key, Key>, Error> {
        let doing = "reading keys";
        let mut backoff = Backoff::new(doing, deadline);
        let mut left = keys;
        left.sort_unstable();
        left.dedup();
        let mut found = BTreeMap::new();
        while let Some(first) = left.first() {
            let region = self.client.regions.of(first, deadline).await?;
            let fits = left.iter().take(KEYS).take_while(|key| region.holds(key)).count();
            let request =
                tikvpb::BatchGetRequest { context: region.context(), keys: left[..fits].to_vec(), version: self.at.0 };
            let mut store = region.client();
            let sent = self.client.regions.send(Phase::Read, &region, &mut backoff, store.kv_batch_get(request)).await;
            let Sent::Done(reply) = sent? else { continue };
            let (values, errors) = sort(reply.pairs, reply.error);
            if !errors.is_empty() {
                self.client.unlock(errors, &mut backoff, doing).await?;
                continue;
            }
            found.extend(values.into_iter().map(|pair| (pair.key, pair.value)));
            left.drain(..fits);
        }
        Ok(found)
    }

    /// Scans the keys from `start` up to and without `end`, with their values: `page` at a time, in order.
    #[must_use]
    pub fn scan(&self, doing: &'static str, start: Key, end: Key, page: u32) -> Scan {
        let next = (start < end).then_some(start);
        Scan { snapshot: self.clone(), doing, next, end, page: page.clamp(1, 4096) }
    }
}

impl Scan {
    /// Returns the next page; an empty one at the end of a region; `None` at the end of the scan.
    ///
    /// # Errors
    /// The same as for [`Snapshot::get`]. The page can be requested again.
    pub async fn page(&mut self, deadline: Instant) -> Result<Option<Vec<Pair>>, Error> {
        let Some(start) = self.next.clone() else { return Ok(None) };
        let (client, at) = (&self.snapshot.client, self.snapshot.at);
        let mut backoff = Backoff::new(self.doing, deadline);
        loop {
            let region = client.regions.of(&start, deadline).await?;
            let reaches = region.end.is_empty() || self.end <= region.end;
            let end = if reaches { self.end.clone() } else { region.end.clone() };
            let request = tikvpb::ScanRequest {
                context: region.context(),
                start_key: start.clone(),
                end_key: end.clone(),
                limit: self.page,
                version: at.0,
            };
            let mut store = region.client();
            let sent = client.regions.send(Phase::Read, &region, &mut backoff, store.kv_scan(request)).await;
            let Sent::Done(reply) = sent? else { continue };
            let full = reply.pairs.len() >= self.page as usize;
            let (pairs, errors) = sort(reply.pairs, reply.error);
            if !errors.is_empty() {
                client.unlock(errors, &mut backoff, self.doing).await?;
                continue;
            }
            if pairs.iter().any(|pair| pair.key < start || pair.key >= end) {
                return Err(Error::refused(self.doing, "the store gave keys that were not asked for"));
            }
            self.next = match pairs.last() {
                Some(last) if full => Some(after(&last.key)),
                _ if reaches => None,
                _ => Some(end),
            };
            return Ok(Some(pairs));
        }
    }
}

/// Returns the first key after `key`.
fn after(key: &Key) -> Key {
    [&key[..], &[0]].concat().into()
}

/// Separates pairs and errors.
fn sort(pairs: Vec<tikvpb::KvPair>, error: Option<tikvpb::KeyError>) -> (Vec<Pair>, Vec<tikvpb::KeyError>) {
    let mut errors: Vec<tikvpb::KeyError> = error.into_iter().collect();
    let mut values = Vec::with_capacity(pairs.len());
    for pair in pairs {
        match pair.error {
            Some(error) => errors.push(error),
            None if pair.value.is_empty() => {}
            None => values.push(Pair { key: pair.key, value: pair.value }),
        }
    }
    (values, errors)
}
