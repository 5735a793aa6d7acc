//! The map from keys to stores: known regions in one immutable sorted list, replaced as a whole. Readers take no lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::Key;
use crate::backoff::Backoff;
use crate::codec;
use crate::error::Error;
use crate::figures::{Figures, add};
use crate::pd::{Pd, clip, describe};
use crate::proto::{pdpb, tikvpb};

/// Time limit of a request to a store. It is sent again after that, so every request may be carried out twice.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Maximum size of an answer: a page of rows.
const LARGEST_ANSWER: usize = 64 << 20;
/// Maximum number of regions, more than the keys of this client are in; beyond it, all are forgotten, and requested again.
const MOST_REGIONS: usize = 65_536;

pub(crate) type Tikv = tikvpb::tikv_client::TikvClient<Channel>;

/// A part of the key space, and its leader.
#[derive(Debug)]
pub(crate) struct Region {
    id: u64,
    epoch: Option<pdpb::RegionEpoch>,
    leader: pdpb::Peer,
    start: Key,
    /// The end; empty if there is none.
    pub(crate) end: Key,
    channel: Channel,
}

impl Region {
    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        *self.start <= *key && (self.end.is_empty() || *key < *self.end)
    }

    pub(crate) fn client(&self) -> Tikv {
        Tikv::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER)
    }

    /// Returns the context of each request to the region.
    pub(crate) fn context(&self) -> Option<tikvpb::Context> {
        Some(tikvpb::Context {
            region_id: self.id,
            region_epoch: self.epoch,
            peer: Some(self.leader),
            max_execution_duration_ms: ATTEMPT.as_millis() as u64,
            request_source: "external_kingpost".into(),
            ..tikvpb::Context::default()
        })
    }
}

/// The known regions and stores.
#[derive(Debug)]
pub(crate) struct Regions {
    pd: Arc<Pd>,
    figures: Arc<Figures>,
    /// Regions by first key; none overlaps another.
    known: ArcSwap<Vec<Arc<Region>>>,
    stores: ArcSwap<HashMap<u64, String>>,
}

/// An answer of a store, possibly with an error about the region.
pub(crate) trait Reply {
    fn region_error(&mut self) -> Option<tikvpb::RegionError>;
}

macro_rules! replies {
    ($($name:ident),*) => { $(impl Reply for tikvpb::$name {
        fn region_error(&mut self) -> Option<tikvpb::RegionError> {
            self.region_error.take()
        }
    })* };
}

replies!(
    GetResponse,
    BatchGetResponse,
    ScanResponse,
    PrewriteResponse,
    CommitResponse,
    BatchRollbackResponse,
    CheckTxnStatusResponse,
    ResolveLockResponse
);

/// The result of a request.
pub(crate) enum Sent<T> {
    /// The store has carried it out.
    Done(T),
    /// The store has refused it.
    NotDone,
    /// Unknown: no answer came.
    Unknown,
}

impl Regions {
    pub(crate) fn new(pd: Arc<Pd>, figures: Arc<Figures>) -> Regions {
        Regions { pd, figures, known: ArcSwap::default(), stores: ArcSwap::default() }
    }

    /// Returns the region of `key`, as far as it is known.
    pub(crate) async fn of(&self, key: &[u8], deadline: Instant) -> Result<Arc<Region>, Error> {
        if let Some(region) = find(&self.known.load(), key) {
            return Ok(region);
        }
        let mut backoff = Backoff::new("finding a region", deadline);
        loop {
            add(&self.figures.region_loads, 1);
            match self.load(key, deadline).await? {
                Ok(region) => {
                    let region = Arc::new(region);
                    self.known.rcu(|known| with(known, &region));
                    return Ok(region);
                }
                Err(why) => backoff.again(why).await?,
            }
        }
    }

    async fn load(&self, key: &[u8], deadline: Instant) -> Result<Result<Region, &'static str>, Error> {
        let (region, leader) = self.pd.region(codec::encode(key), deadline).await?;
        let Some(region) = region else { return Ok(Err("PD knows no region of this key")) };
        // PD may not know the leader yet; then any peer names it.
        let Some(leader) = leader.filter(|peer| peer.id != 0).or_else(|| region.peers.first().copied()) else {
            return Ok(Err("the region has no peers"));
        };
        let bounds = |key: &Key| if key.is_empty() { Some(Key::new()) } else { codec::decode(key) };
        let (Some(start), Some(end)) = (bounds(&region.start_key), bounds(&region.end_key)) else {
            return Ok(Err("the region's keys are not those of transactions"));
        };
        let known = self.stores.load().get(&leader.store_id).cloned();
        let address = match known {
            Some(address) => address,
            None => {
                let Some(address) = self.pd.store(leader.store_id, deadline).await? else {
                    return Ok(Err("PD does not know the store of the region"));
                };
                self.stores.rcu(|stores| {
                    let mut stores = HashMap::clone(stores);
                    stores.insert(leader.store_id, address.clone());
                    stores
                });
                address
            }
        };
        let channel = self.pd.channels.get(&address)?;
        let region = Region { id: region.id, epoch: region.region_epoch, leader, start, end, channel };
        Ok(if region.holds(key) { Ok(region) } else { Err("PD names a region that does not hold the key") })
    }

    /// Forgets a region whose entry is wrong.
    fn forget(&self, region: &Arc<Region>) {
        add(&self.figures.region_misses, 1);
        self.known.rcu(|known| known.iter().filter(|known| !Arc::ptr_eq(known, region)).cloned().collect::<Vec<_>>());
        // Its store may have moved.
        self.stores.rcu(|stores| {
            let mut stores = HashMap::clone(stores);
            stores.remove(&region.leader.store_id);
            stores
        });
    }

    /// Sends a request to `region`. If the store has refused it, or has not answered, corrects the entry of the region and pauses before it returns.
    pub(crate) async fn send<T: Reply>(
        &self,
        region: &Arc<Region>,
        backoff: &mut Backoff,
        request: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Sent<T>, (Error, bool)> {
        let until = backoff.deadline.min(Instant::now() + ATTEMPT);
        let (why, pause, unknown) = match tokio::time::timeout_at(until, request).await {
            Ok(Ok(reply)) => {
                let mut reply = reply.into_inner();
                let Some(error) = reply.region_error() else { return Ok(Sent::Done(reply)) };
                let busy = error.server_is_busy.map(|busy| Duration::from_millis(busy.backoff_ms.clamp(20, 1000)));
                match (busy, error.not_leader.and_then(|not| not.leader)) {
                    (Some(_), _) => {}
                    (None, Some(leader)) => self.lead(region, leader),
                    (None, None) => self.forget(region),
                }
                (clip(&error.message), busy.unwrap_or_default(), false)
            }
            Ok(Err(status)) => {
                self.forget(region);
                (describe(&status), Duration::ZERO, true)
            }
            Err(_) => {
                self.forget(region);
                ("the store does not answer".into(), Duration::ZERO, true)
            }
        };
        add(&self.figures.retries, 1);
        backoff.again_after(pause, why).await.map_err(|error| (error, unknown))?;
        Ok(if unknown { Sent::Unknown } else { Sent::NotDone })
    }

    /// Records the leader that a store has named, which PD may learn later. If that leader's address is unknown, PD is asked after all.
    fn lead(&self, region: &Arc<Region>, leader: pdpb::Peer) {
        let channel = self.stores.load().get(&leader.store_id).and_then(|address| self.pd.channels.get(address).ok());
        self.forget(region);
        if let Some(channel) = channel.filter(|_| leader.store_id != region.leader.store_id) {
            let (start, end) = (region.start.clone(), region.end.clone());
            let region = Arc::new(Region { id: region.id, epoch: region.epoch, leader, start, end, channel });
            self.known.rcu(|known| with(known, &region));
        }
    }
}

fn find(known: &[Arc<Region>], key: &[u8]) -> Option<Arc<Region>> {
    let after = known.partition_point(|region| *region.start <= *key);
    known[..after].last().filter(|region| region.holds(key)).cloned()
}

/// Returns `known` with `new`, without the regions that overlap `new`.
fn with(known: &[Arc<Region>], new: &Arc<Region>) -> Vec<Arc<Region>> {
    let overlaps =
        |one: &Region| (new.end.is_empty() || one.start < new.end) && (one.end.is_empty() || new.start < one.end);
    let known = if known.len() < MOST_REGIONS { known } else { &[] };
    let mut list: Vec<Arc<Region>> = known.iter().filter(|one| !overlaps(one)).cloned().collect();
    let at = list.partition_point(|one| one.start < new.start);
    list.insert(at, Arc::clone(new));
    list
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    fn region(id: u64, start: &'static str, end: &'static str) -> Arc<Region> {
        let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let leader = pdpb::Peer::default();
        Arc::new(Region { id, epoch: None, leader, start: start.into(), end: end.into(), channel })
    }

    #[tokio::test]
    async fn the_newest_of_a_region_replaces_what_it_overlaps() {
        let mut known = Vec::new();
        for (id, start, end, ids) in [
            (1, "", "", &[1][..]),
            (2, "", "m", &[2]),
            (3, "m", "", &[2, 3]),
            (4, "d", "m", &[4, 3]),
            (5, "", "d", &[5, 4, 3]),
            (6, "c", "e", &[6, 3]),
            (7, "a", "z", &[7]),
        ] {
            known = with(&known, &region(id, start, end));
            assert_eq!(known.iter().map(|one| one.id).collect::<Vec<_>>(), ids, "after {start:?}..{end:?}");
        }
        for (key, id) in [("", None), ("a", Some(7)), ("yz", Some(7)), ("z", None)] {
            assert_eq!(find(&known, key.as_bytes()).map(|one| one.id), id, "{key:?}");
        }
    }
}
