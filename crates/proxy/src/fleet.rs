//! Several clusters behind the same addresses.
//!
//! ```text
//!  client ──▶ worker of the first cluster ── start-up packet: Fleet::lead ──▶ worker of the client's cluster
//! ```
//!
//! Each cluster has a proxy of its own: a topology, workers, pools, prepared statements, limits, a console. They share only the listening sockets,
//! which the first cluster's proxy has. So no state of one cluster can reach a client of another one, and a cluster that is down delays no other
//! cluster's clients.
//!
//! The cluster of a client is a pure function of the client's request ([`Directory::lead`]). A connection is handed over once, at its start-up packet
//! or its cancel request, before any answer to it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::console::{Changes, ConsoleHandle};
use crate::core::MOST_WORKERS;
pub use crate::core::directory::{Asked, Directory, Lead, Listed};
use crate::core::membership::Clusters;
pub use crate::core::membership::{ALONE, Membership};
use crate::driver::mailbox::{Mailbox, WorkerCommand};
use crate::metrics::Metrics;

/// State shared by the proxies of a process: the directory, and the mailboxes of each cluster's workers.
#[derive(Default)]
pub struct Fleet {
    state: ArcSwap<State>,
    /// Number of handed-over connections, which distributes them over equally busy workers of a cluster.
    handed: AtomicU64,
    /// Changes by operators, in any cluster.
    pub(crate) changes: Changes,
}

#[derive(Default)]
struct State {
    directory: Arc<Directory>,
    clusters: HashMap<Arc<str>, ClusterWorkers>,
}

/// Workers of one cluster's proxy.
#[derive(Clone)]
struct ClusterWorkers {
    /// Numbers of the workers among those of all clusters.
    numbers: Range<usize>,
    mailboxes: Arc<Vec<Mailbox>>,
    metrics: Vec<Arc<Metrics>>,
    console: ConsoleHandle,
}

// === impl Fleet ===

impl Fleet {
    /// Creates a fleet with this directory and no workers.
    #[must_use]
    pub fn new(directory: Directory) -> Arc<Fleet> {
        let fleet = Fleet::default();
        fleet.set_directory(directory);
        Arc::new(fleet)
    }

    /// Replaces the directory by which clients are assigned.
    pub fn set_directory(&self, directory: Directory) {
        let directory = Arc::new(directory);
        self.change(|state| State { directory: directory.clone(), clusters: state.clusters.clone() });
    }

    /// Returns the directory by which clients are assigned.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        self.state.load().directory.clone()
    }

    fn change(&self, mut change: impl FnMut(&State) -> State) {
        self.state.rcu(|state| change(state));
    }

    /// Adds a cluster's workers, and returns the number of the first of them among those of all clusters; `None`: no numbers are left.
    pub(crate) fn enroll(
        &self,
        cluster: &Arc<str>,
        mailboxes: &Arc<Vec<Mailbox>>,
        metrics: &[Arc<Metrics>],
        console: &ConsoleHandle,
    ) -> Option<usize> {
        let mut first = None;
        self.change(|state| {
            let taken: Vec<Range<usize>> = state.clusters.values().map(|workers| workers.numbers.clone()).collect();
            first = free(&taken, mailboxes.len());
            let mut clusters = state.clusters.clone();
            if let Some(first) = first {
                let numbers = first..first + mailboxes.len();
                let (mailboxes, console) = (mailboxes.clone(), console.clone());
                let workers = ClusterWorkers { numbers, mailboxes, metrics: metrics.to_vec(), console };
                clusters.insert(cluster.clone(), workers);
            }
            State { directory: state.directory.clone(), clusters }
        });
        first
    }

    /// Removes a cluster's workers, which end.
    pub(crate) fn dismiss(&self, cluster: &str, first_worker: usize) {
        self.change(|state| {
            let mut clusters = state.clusters.clone();
            // A cluster of the same name may have started meanwhile.
            if clusters.get(cluster).is_some_and(|workers| workers.numbers.start == first_worker) {
                clusters.remove(cluster);
            }
            State { directory: state.directory.clone(), clusters }
        });
    }

    /// Returns the consoles of the clusters, in the order of the directory.
    pub(crate) fn consoles(&self) -> Vec<(Arc<str>, ConsoleHandle)> {
        let state = self.state.load();
        let console =
            |name: &str| state.clusters.get_key_value(name).map(|(name, of)| (name.clone(), of.console.clone()));
        state.directory.names().filter_map(console).collect()
    }

    /// Returns the consoles of all clusters, by the clusters' names.
    pub(crate) fn console_handles(&self) -> Vec<(Arc<str>, ConsoleHandle)> {
        self.state.load().clusters.iter().map(|(name, workers)| (name.clone(), workers.console.clone())).collect()
    }

    /// Posts a message to the worker of the cluster that has the fewest clients; returns the message if the cluster has no workers.
    pub(crate) fn post(&self, cluster: &str, command: WorkerCommand) -> Result<(), WorkerCommand> {
        let state = self.state.load();
        let Some(workers) = state.clusters.get(cluster).filter(|workers| !workers.mailboxes.is_empty()) else {
            return Err(command);
        };
        let turn = self.handed.fetch_add(1, Ordering::Relaxed) as usize;
        let count = workers.mailboxes.len();
        let in_turn = (0..count).map(|i| (turn + i) % count);
        let worker = in_turn.min_by_key(|&worker| workers.metrics.get(worker).map_or(0, |of| of.clients.get()));
        workers.mailboxes[worker.unwrap_or(0)].post(command);
        Ok(())
    }
}

impl Clusters for Fleet {
    fn directory(&self) -> Arc<Directory> {
        Fleet::directory(self)
    }

    fn of_worker(&self, number: usize) -> Option<Arc<str>> {
        let state = self.state.load();
        let found = state.clusters.iter().find(|(_, workers)| workers.numbers.contains(&number));
        found.map(|(name, _)| name.clone())
    }
}

/// Returns the first of `count` consecutive free numbers below [`MOST_WORKERS`].
fn free(taken: &[Range<usize>], count: usize) -> Option<usize> {
    let fits = |first: usize| {
        let (start, end) = (first, first + count);
        end <= MOST_WORKERS && taken.iter().all(|other| end <= other.start || other.end <= start)
    };
    std::iter::once(0).chain(taken.iter().map(|range| range.end)).filter(|&first| fits(first)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_numbers_of_their_own() {
        for (taken, count, expected) in [
            (vec![], 2, Some(0)),
            (vec![(0, 2)], 2, Some(2)),
            (vec![(2, 4)], 2, Some(0)),
            (vec![(1, 4)], 2, Some(4)),
            (vec![(0, 128), (128, 254)], 2, Some(254)),
            (vec![(0, 128), (128, 255)], 2, None),
            (vec![(0, 10), (14, 256)], 4, Some(10)),
            (vec![], 257, None),
        ] {
            let ranges: Vec<_> = taken.iter().map(|&(start, end)| start..end).collect();
            assert_eq!(free(&ranges, count), expected, "{taken:?} {count}");
        }
    }
}
