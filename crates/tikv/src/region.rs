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
use crate::pd::{Pd, describe};
use crate::proto::{pdpb, tikvpb};
use crate::verdict::{Done, Next, Phase, Refusal, first_words, verdict};

/// Time limit of a request to a store. It is sent again after that, so every request may be carried out twice.
const ATTEMPT: Duration = Duration::from_secs(4);
/// Maximum size of an answer: a page of rows.
const LARGEST_ANSWER: usize = 64 << 20;
/// Maximum number of regions, more than the keys of this client are in; beyond it, all are forgotten, and requested again.
const MOST_REGIONS: usize = 65_536;
/// A peer that refuses for a while is believed to lead for so long after PD has named it: then PD is asked again.
const BELIEVED: Duration = Duration::from_secs(1);
/// Most peers that are followed from one to the next before PD is asked again: as many as regions have.
const MOST_HINTS: u8 = 3;

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
    /// Time of the request to PD.
    since: Instant,
    /// Peers followed from the one that PD named.
    hints: u8,
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
    /// Not the result: the request must be sent again. Only the commit of the primary key is ever of unknown outcome.
    Again(Done),
}

/// The error that ends a call, and whether its last request was carried out.
pub(crate) struct Ended {
    pub(crate) error: Error,
    pub(crate) done: Done,
}

impl From<Ended> for Error {
    fn from(ended: Ended) -> Error {
        ended.error
    }
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
        let Some(address) = self.address(leader.store_id, deadline).await? else {
            return Ok(Err("PD does not know the store of the region"));
        };
        let channel = self.pd.channels.get(&address)?;
        let since = Instant::now();
        let region = Region { id: region.id, epoch: region.region_epoch, leader, start, end, channel, since, hints: 0 };
        Ok(if region.holds(key) { Ok(region) } else { Err("PD names a region that does not hold the key") })
    }

    /// Returns the address of a store, as it is known or as PD gives it; None: PD does not know the store.
    async fn address(&self, store: u64, deadline: Instant) -> Result<Option<String>, Error> {
        let known = self.stores.load().get(&store).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let told = self.pd.store(store, deadline).await?;
        if let Some(address) = &told {
            self.stores.rcu(|stores| {
                let mut stores = HashMap::clone(stores);
                stores.insert(store, address.clone());
                stores
            });
        }
        Ok(told)
    }

    /// Removes a region whose cached description has proved wrong.
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

    /// Sends one request to `region`. If the store refuses it, or does not answer, the knowledge of the region is corrected as
    /// [`verdict`] says, and the pause before the next try is over.
    ///
    /// # Errors
    /// The store will refuse it again; the outcome of a commit is unknown; the deadline comes first.
    pub(crate) async fn send<T: Reply>(
        &self,
        phase: Phase,
        region: &Arc<Region>,
        backoff: &mut Backoff,
        request: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Sent<T>, Ended> {
        let until = backoff.deadline.min(Instant::now() + ATTEMPT);
        let (refusal, why) = match tokio::time::timeout_at(until, request).await {
            Ok(Ok(reply)) => {
                let mut reply = reply.into_inner();
                let Some(error) = reply.region_error() else { return Ok(Sent::Done(reply)) };
                let refusal = Refusal::of(&error);
                let why = match (refusal, first_words(&error.message)) {
                    (Refusal::Unnamed, words) if !words.is_empty() => format!("{}: {words}", refusal.name()).into(),
                    _ => refusal.name().into(),
                };
                (refusal, why)
            }
            Ok(Err(status)) => (Refusal::Status(status.code()), describe(&status)),
            Err(_) => (Refusal::Silence, Refusal::Silence.name().into()),
        };
        let (done, next) = verdict(phase, refusal);
        match next {
            Next::Here if region.since.elapsed() <= BELIEVED => {}
            Next::Here | Next::AskPd => self.forget(region),
            Next::Peer(leader) => self.lead(region, leader, backoff.deadline).await,
            Next::Undetermined => {
                self.forget(region);
                return Err(Ended { error: Error::Undetermined { last: why }, done });
            }
            Next::Fail => return Err(Ended { error: Error::Refused { doing: backoff.doing(), reason: why }, done }),
        }
        add(&self.figures.retries, 1);
        backoff.again_after(refusal.pause(), why).await.map_err(|error| Ended { error, done })?;
        Ok(Sent::Again(done))
    }

    /// Follows a store's hint at the leader, of which PD may learn later. PD is asked for that peer's address, if it is not known, and, after several
    /// such hints, for the leader.
    async fn lead(&self, region: &Arc<Region>, leader: pdpb::Peer, deadline: Instant) {
        self.forget(region);
        if leader.store_id == region.leader.store_id || region.hints >= MOST_HINTS {
            return;
        }
        let Ok(Some(address)) = self.address(leader.store_id, deadline).await else { return };
        let Ok(channel) = self.pd.channels.get(&address) else { return };
        let (start, end) = (region.start.clone(), region.end.clone());
        let (id, epoch, since, hints) = (region.id, region.epoch, region.since, region.hints + 1);
        let region = Arc::new(Region { id, epoch, leader, start, end, channel, since, hints });
        self.known.rcu(|known| with(known, &region));
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
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU64, Ordering};

    use prost::Message;
    use tokio::net::TcpListener;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::fake::Fake;
    use crate::{Client, Security, Timestamp};

    fn region(id: u64, start: &'static str, end: &'static str) -> Arc<Region> {
        let channel = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let (leader, since) = (pdpb::Peer::default(), Instant::now());
        Arc::new(Region { id, epoch: None, leader, start: start.into(), end: end.into(), channel, since, hints: 0 })
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

    /// A cluster of one region on three stores: a PD that names `leader`, and stores that send prescribed answers.
    struct Cluster {
        pd: Fake,
        stores: Vec<Fake>,
        /// The store that PD names.
        leader: Arc<AtomicU64>,
    }

    fn peer(store_id: u64) -> Option<pdpb::Peer> {
        Some(pdpb::Peer { id: 10 + store_id, store_id, ..pdpb::Peer::default() })
    }

    /// A store's answer to a read: a region error, or none and the value.
    type StoreReply = fn(store: u64, leader: &AtomicU64) -> Option<tikvpb::RegionError>;

    impl Cluster {
        async fn start(answer: StoreReply) -> Cluster {
            let leader = Arc::new(AtomicU64::new(1));
            let (mut stores, mut addresses) = (Vec::new(), Vec::new());
            for store in 1..=3 {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let named = Arc::clone(&leader);
                let fake = Fake::serve(listener, move |call, _| {
                    assert_eq!(call, "KvGet");
                    let region_error = answer(store, &named);
                    let value = if region_error.is_none() { "value".into() } else { Key::new() };
                    Some(tikvpb::GetResponse { region_error, value, ..tikvpb::GetResponse::default() }.encode_to_vec())
                });
                addresses.push(fake.address.clone());
                stores.push(fake);
            }
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (own, named) = (listener.local_addr().unwrap(), Arc::clone(&leader));
            let pd = Fake::serve(listener, move |call, request| {
                let header = Some(pdpb::ResponseHeader { cluster_id: 1, error: None });
                match call {
                    "GetMembers" => {
                        let member =
                            pdpb::Member { client_urls: vec![format!("http://{own}")], ..pdpb::Member::default() };
                        let (leader, members) = (Some(member.clone()), vec![member]);
                        Some(pdpb::GetMembersResponse { header, members, leader }.encode_to_vec())
                    }
                    "GetRegion" => {
                        let peers = (1..=3).filter_map(peer).collect();
                        let region = Some(pdpb::Region { id: 7, peers, ..pdpb::Region::default() });
                        let leader = peer(named.load(Ordering::SeqCst));
                        Some(pdpb::GetRegionResponse { header, region, leader }.encode_to_vec())
                    }
                    "GetStore" => {
                        let id = pdpb::GetStoreRequest::decode(request).unwrap().store_id;
                        let store = Some(pdpb::Store { id, address: addresses[id as usize - 1].clone() });
                        Some(pdpb::GetStoreResponse { header, store }.encode_to_vec())
                    }
                    // No timestamps here.
                    _ => None,
                }
            });
            Cluster { pd, stores, leader }
        }

        /// Reads a key; it has to succeed.
        async fn read(&self) {
            let deadline = Instant::now() + Duration::from_secs(20);
            let client = Client::connect(vec![self.pd.address.clone()], Security::none(), deadline).await.unwrap();
            let value = client.snapshot(Timestamp(1)).get("k".into(), deadline).await;
            assert_eq!(value.unwrap().as_deref(), Some(&b"value"[..]));
        }

        fn reads(&self) -> Vec<usize> {
            self.stores.iter().map(|store| store.calls("KvGet")).collect()
        }
    }

    fn not_leader(leader: Option<u64>) -> tikvpb::RegionError {
        let leader = leader.and_then(peer);
        let not_leader = Some(tikvpb::NotLeader { region_id: 7, leader });
        tikvpb::RegionError { not_leader, ..tikvpb::RegionError::default() }
    }

    /// PD does not know of an election yet, and goes on naming the former leader. That one knows the new leader.
    #[tokio::test]
    async fn a_leader_whom_a_store_names_is_asked_though_its_address_is_new() {
        let cluster = Cluster::start(|store, _| (store != 2).then(|| not_leader(Some(2)))).await;
        cluster.read().await;
        assert_eq!(cluster.reads(), [1, 1, 0]);
        assert_eq!((cluster.pd.calls("GetRegion"), cluster.pd.calls("GetStore")), (1, 2));
    }

    /// Two stores that were partitioned name each other; PD knows better.
    #[tokio::test]
    async fn stores_that_name_each_other_are_not_believed_for_ever() {
        let cluster = Cluster::start(|store, leader| {
            let other = match store {
                1 => 2,
                2 => 1,
                _ => return None,
            };
            leader.store(3, Ordering::SeqCst);
            Some(not_leader(Some(other)))
        });
        let cluster = cluster.await;
        cluster.read().await;
        assert_eq!(cluster.leader.load(Ordering::SeqCst), 3);
        assert!(cluster.reads()[..2].iter().sum::<usize>() <= 1 + usize::from(MOST_HINTS), "{:?}", cluster.reads());
    }

    /// A store that hangs refuses everything as busy; the region has another leader since.
    #[tokio::test]
    async fn a_store_that_stays_busy_is_no_longer_believed_to_lead() {
        let cluster = Cluster::start(|store, leader| {
            leader.store(2, Ordering::SeqCst);
            let server_is_busy = Some(tikvpb::ServerIsBusy::default());
            (store == 1).then(|| tikvpb::RegionError { server_is_busy, ..tikvpb::RegionError::default() })
        });
        let cluster = cluster.await;
        cluster.read().await;
        assert_eq!((cluster.pd.calls("GetRegion"), cluster.reads()[1]), (2, 1));
    }
}
