//! What can be seen from outside, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::kv::KvStatus;
use crate::model::{Revision, ServiceKey};

/// How the registry is.
#[derive(Clone, Debug)]
pub struct Status {
    /// Everything was loaded once, the store answered when it was asked last, and takes writes.
    pub ready: bool,
    /// Kind of the store.
    pub store: &'static str,
    /// Why the store did not answer, if it did not.
    pub store_error: Option<String>,
    /// Why the store does not take writes, if it does not.
    pub write_error: Option<String>,
    /// Of the whole.
    pub revision: Revision,
    /// The store's history.
    pub epoch: i64,
    /// Instances.
    pub instances: usize,
    /// Of them, those that are critical.
    pub critical: usize,
    /// Of them, those that are isolated and not critical.
    pub isolated: usize,
    /// Services, those included that are only waited for.
    pub services: usize,
    /// Calls that wait for a change.
    pub watchers: usize,
    /// Writes that wait for their batch.
    pub queued_writes: usize,
    /// Services whose brake holds, and since when; `None` stands for the whole.
    pub protected: Vec<(Option<ServiceKey>, Duration)>,
    /// Where other nodes reach this one.
    pub peer_address: String,
    /// The other nodes that live, as far as the store says.
    pub peers: Vec<PeerStatus>,
    /// Keys and sessions.
    pub kv: KvStatus,
    /// Counted since the start.
    pub counts: Counts,
}

/// Another node on the same store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Where it listens for the others.
    pub address: String,
    /// Whether there is a connection to it.
    pub reached: bool,
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),* $(,)?) => {
        /// What happened since the start.
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
            /// Names and values, for a metrics page.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Batches committed.
    commits,
    /// Writes in them.
    writes,
    /// Rows that were written for them; the rest said what was there already.
    rows_written,
    /// Commits tried again after another transaction was in the way.
    conflicts,
    /// Commits whose answer was lost.
    undetermined,
    /// Those that turned out to have happened.
    undetermined_committed,
    /// Batches that the store did not take.
    failed_commits,
    /// Microseconds from the start of a batch to the end of its commit, summed.
    commit_micros,
    /// Microseconds that a call waited for its batch to begin, summed over batches (of each the longest).
    wait_micros,
    /// Calls refused because too many writes waited.
    overloaded,
    /// Reads of the store.
    feed_reads,
    /// Reads that failed.
    feed_failures,
    /// Reads of everything.
    full_loads,
    /// Rows read or applied.
    rows_applied,
    /// Heartbeats of known instances.
    heartbeats,
    /// Heartbeats of unknown ones.
    unknown_heartbeats,
    /// Reads of the store because of a heartbeat, or the like, of an instance that was not here yet.
    unknown_id_lookups,
    /// Instances that went critical for want of a heartbeat.
    expired,
    /// Instances whose expiry the brake held back (counted once a look).
    held,
    /// Instances that came back.
    revived,
    /// Instances deregistered because they stayed critical.
    reaped,
    /// Probes tried.
    probes,
    /// Probes failed.
    failed_probes,
    /// Tombstones collected.
    tombstones,
    /// Commits told to another node.
    pushed,
    /// Commits of other nodes that were applied as they told of them, without reading the store.
    pushes_applied,
    /// Instances that other nodes were asked about before they were judged.
    asked,
    /// Judgements put off because a node that lives did not answer (counted once an instance and look).
    unanswered,
    /// Other nodes that were lost.
    nodes_lost,
    /// Times that every lease was prolonged: a node was lost, or this one stood still.
    graces,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
