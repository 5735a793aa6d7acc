//! Status and counters of a node.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::kv::KvStatus;
use crate::model::{Revision, ServiceKey};

/// Status of a registry node.
#[derive(Clone, Debug)]
pub struct Status {
    /// True if the last read of the store and the last writes succeeded, and the node is not stopping.
    pub ready: bool,
    /// Kind of the store.
    pub store: &'static str,
    /// The last read error of the store; None if the last read succeeded.
    pub store_error: Option<String>,
    /// The reason why the store takes no writes; None if it does.
    pub write_error: Option<String>,
    /// Revision of the whole registry.
    pub revision: Revision,
    /// The store's history.
    pub epoch: i64,
    /// Number of instances.
    pub instances: usize,
    /// Number of critical instances.
    pub critical: usize,
    /// Number of isolated instances that are not critical.
    pub isolated: usize,
    /// Number of services, including those that are only watched.
    pub services: usize,
    /// Calls that wait for a change.
    pub watchers: usize,
    /// Writes that wait for their batch.
    pub queued_writes: usize,
    /// Services whose brake holds, and for how long; `None` stands for the whole registry.
    pub protected: Vec<(Option<ServiceKey>, Duration)>,
    /// Address at which other nodes reach this one.
    pub peer_address: String,
    /// The other live nodes, according to the store.
    pub peers: Vec<PeerStatus>,
    /// Keys and sessions.
    pub kv: KvStatus,
    /// Counters since the start.
    pub counts: Counts,
}

/// Another node on the same store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Address at which it listens for the others.
    pub address: String,
    /// True if there is a connection to it.
    pub reached: bool,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// Counters of events since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[doc = $doc])+ pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(crate) fn get(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Iterates over names and values, for a metrics page.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Batches committed.
    commits,
    /// Writes in these batches.
    writes,
    /// Rows written for these writes; the other rows were unchanged.
    rows_written,
    /// Commits tried again after a conflict with another transaction.
    conflicts,
    /// Commits whose answer was lost.
    undetermined,
    /// Commits among these that turned out to have happened.
    undetermined_committed,
    /// Batches that the store did not take.
    failed_commits,
    /// Microseconds from the start of a batch to the end of its commit, summed.
    commit_micros,
    /// Microseconds that a call waited for its batch to begin: the longest wait of each batch, summed.
    wait_micros,
    /// Calls refused because too many writes waited.
    overloaded,
    /// Reads of the store.
    feed_reads,
    /// Failed reads of the store.
    feed_failures,
    /// Full reads of the store.
    full_loads,
    /// Rows read or applied.
    rows_applied,
    /// Heartbeats of known instances.
    heartbeats,
    /// Heartbeats of unknown instances.
    unknown_heartbeats,
    /// Reads of the store for a heartbeat or lookup of an instance that was not in the cache.
    unknown_id_lookups,
    /// Instances that became critical for lack of a heartbeat.
    expired,
    /// Instances whose expiry the brake prevented (counted at each check).
    held,
    /// Instances that recovered.
    revived,
    /// Instances deregistered because they stayed critical.
    reaped,
    /// Probes sent.
    probes,
    /// Probes that failed.
    failed_probes,
    /// Tombstones collected.
    tombstones,
    /// Commits pushed to another node.
    pushed,
    /// Pushed commits of other nodes that were applied without reading the store.
    pushes_applied,
    /// Instances about which other nodes were asked before a judgement.
    asked,
    /// Judgements postponed because a live node did not answer (counted for each instance and check).
    unanswered,
    /// Other nodes that were lost.
    nodes_lost,
    /// Extensions of all leases: after a node was lost, or this one was suspended.
    graces,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
