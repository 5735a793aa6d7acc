//! The PD client: the leader, and the locations of regions and stores.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::backoff::Backoff;
use crate::channel::Channels;
use crate::error::Error;
use crate::proto::pdpb::{self, pd_client::PdClient};

/// Time limit of an answer of one member.
const ANSWER: Duration = Duration::from_secs(1);
/// Maximum number of members, more than a cluster has.
const MOST_MEMBERS: usize = 16;

/// PD's members.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) channels: Arc<Channels>,
    /// Addresses as configured.
    endpoints: Vec<String>,
    /// Addresses that the members returned last.
    members: ArcSwap<Vec<String>>,
    leader: ArcSwapOption<Leader>,
    /// Cluster id of the first answer: later answers of another cluster are refused.
    cluster: OnceLock<u64>,
}

/// PD's leader.
#[derive(Debug)]
pub(crate) struct Leader {
    /// The address, `host:port`.
    pub(crate) address: String,
    pub(crate) cluster: u64,
    channel: Channel,
}

impl Leader {
    pub(crate) fn header(&self) -> Option<pdpb::RequestHeader> {
        Some(pdpb::RequestHeader { cluster_id: self.cluster })
    }
}

/// The header common to all answers of PD.
pub(crate) trait PdResponse {
    fn header(&self) -> Option<&pdpb::ResponseHeader>;
}

macro_rules! answers {
    ($($name:ident),*) => { $(impl PdResponse for pdpb::$name {
        fn header(&self) -> Option<&pdpb::ResponseHeader> {
            self.header.as_ref()
        }
    })* };
}

answers!(GetMembersResponse, GetRegionResponse, GetStoreResponse, TsoResponse);

impl Pd {
    pub(crate) fn new(endpoints: Vec<String>, channels: Arc<Channels>) -> Pd {
        Pd {
            channels,
            endpoints,
            members: ArcSwap::default(),
            leader: ArcSwapOption::empty(),
            cluster: OnceLock::new(),
        }
    }

    /// Returns the leader: the last known one, or the one that the members name.
    ///
    /// # Errors
    /// [`Error::Late`].
    pub(crate) async fn leader(&self, deadline: Instant) -> Result<Arc<Leader>, Error> {
        if let Some(leader) = self.leader.load_full() {
            return Ok(leader);
        }
        let mut backoff = Backoff::new("finding PD's leader", deadline);
        loop {
            let mut why: Arc<str> = "no address".into();
            // The current members, and the configured ones in case all have changed.
            let members = self.members.load_full();
            let asked: Vec<&String> =
                members.iter().chain(self.endpoints.iter().filter(|one| !members.contains(one))).collect();
            for address in asked {
                match self.ask(address, deadline).await {
                    Ok(leader) => {
                        let leader = Arc::new(leader);
                        self.leader.store(Some(Arc::clone(&leader)));
                        return Ok(leader);
                    }
                    Err(reason) => why = format!("{address}: {reason}").into(),
                }
            }
            backoff.again(why).await?;
        }
    }

    /// Forgets a leader that no longer leads, or does not answer.
    pub(crate) fn forget(&self, leader: &Arc<Leader>) {
        let known = self.leader.load();
        if known.as_ref().is_some_and(|known| Arc::ptr_eq(known, leader)) {
            self.leader.compare_and_swap(&known, None);
        }
    }

    /// Asks the member at `address` for the leader.
    async fn ask(&self, address: &str, deadline: Instant) -> Result<Leader, Arc<str>> {
        let channel = self.channels.get(address).map_err(|error| Arc::<str>::from(error.to_string()))?;
        let mut client = PdClient::new(channel);
        let until = deadline.min(Instant::now() + ANSWER);
        let asked = tokio::time::timeout_at(until, client.get_members(pdpb::GetMembersRequest::default()));
        let said = asked.await.map_err(|_| "no answer")?.map_err(|status| describe(&status))?.into_inner();
        refusal(&said)?;
        let cluster = said.header.as_ref().map_or(0, |header| header.cluster_id);
        if *self.cluster.get_or_init(|| cluster) != cluster {
            return Err("a member of another cluster".into());
        }
        let security = &self.channels.security;
        let of = |member: &pdpb::Member| {
            security.address_of(member.client_urls.iter().map(String::as_str)).map(str::to_owned)
        };
        let members: Vec<String> = said.members.iter().filter_map(of).take(MOST_MEMBERS).collect();
        self.members.store(Arc::new(members));
        let leader = said.leader.as_ref().ok_or("there is no leader")?;
        let address =
            of(leader).ok_or("the leader has no address for connections as these are, with or without TLS")?;
        let channel = self.channels.get(&address).map_err(|error| Arc::<str>::from(error.to_string()))?;
        Ok(Leader { address, cluster, channel })
    }

    /// Calls the leader, and each later leader, until one answers.
    async fn call<T, F>(
        &self,
        doing: &'static str,
        deadline: Instant,
        call: impl Fn(PdClient<Channel>, Option<pdpb::RequestHeader>) -> F,
    ) -> Result<T, Error>
    where
        T: PdResponse,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut backoff = Backoff::new(doing, deadline);
        loop {
            let leader = self.leader(deadline).await?;
            let until = deadline.min(Instant::now() + ANSWER);
            let asked = call(PdClient::new(leader.channel.clone()), leader.header());
            let why = match tokio::time::timeout_at(until, asked).await {
                Ok(Ok(answer)) => match refusal(answer.get_ref()) {
                    Ok(()) => return Ok(answer.into_inner()),
                    Err(reason) => reason,
                },
                Ok(Err(status)) => describe(&status),
                Err(_) => "PD's leader does not answer".into(),
            };
            self.forget(&leader);
            backoff.again(why).await?;
        }
    }

    /// Returns the region that contains `key` (encoded), and its leading peer, if known.
    pub(crate) async fn region(
        &self,
        key: Vec<u8>,
        deadline: Instant,
    ) -> Result<(Option<pdpb::Region>, Option<pdpb::Peer>), Error> {
        let answer = self.call("finding a region", deadline, |mut client, header| {
            let request = pdpb::GetRegionRequest { header, region_key: key.clone().into() };
            async move { client.get_region(request).await }
        });
        let answer = answer.await?;
        Ok((answer.region, answer.leader))
    }

    /// Returns the address of a store, `host:port`.
    pub(crate) async fn store(&self, store_id: u64, deadline: Instant) -> Result<Option<String>, Error> {
        let answer = self.call("finding a store", deadline, |mut client, header| async move {
            client.get_store(pdpb::GetStoreRequest { header, store_id }).await
        });
        Ok(answer.await?.store.map(|store| store.address))
    }
}

/// Returns the error of PD's answer, if it has one.
pub(crate) fn refusal(answer: &impl PdResponse) -> Result<(), Arc<str>> {
    match answer.header().and_then(|header| header.error.as_ref()) {
        Some(error) => Err(clip(&error.message)),
        None => Ok(()),
    }
}

/// Describes a status.
pub(crate) fn describe(status: &Status) -> Arc<str> {
    let mut words = format!("{:?}: {}", status.code(), status.message());
    if let Some(source) = std::error::Error::source(status) {
        words = format!("{words}: {source}");
    }
    clip(&words)
}

/// Shortens a server's text to one line of bounded length.
pub(crate) fn clip(text: &str) -> Arc<str> {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect::<String>().into()
}
