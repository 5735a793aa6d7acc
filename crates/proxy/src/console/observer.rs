//! Looking at the proxy, and acting on it, from inside the process and without the console's protocol.

use std::sync::Arc;
use std::time::Duration;

use super::orders::TakingOver;
use super::{ConsoleContext, show};
use crate::core::report::{ClientReport, Look, Operation, PoolReport};
use crate::core::statistics::Counts;
use crate::metrics::Snapshot;
use crate::traffic::RuleReport;

/// Longest wait for the workers' reports: a caller that looks every second prefers a partial answer now to a complete one later.
const REPORTS: Duration = Duration::from_secs(1);

/// A handle to a running proxy. After the proxy's end it sees nothing any more.
#[derive(Clone)]
pub struct Observer(Arc<ConsoleContext>);

impl Observer {
    pub(crate) fn new(context: Arc<ConsoleContext>) -> Observer {
        Observer(context)
    }

    /// Returns the sums of the workers' counters.
    #[must_use]
    pub fn metrics(&self) -> Snapshot {
        Snapshot::of(self.0.metrics.iter().map(|metrics| &**metrics))
    }

    /// Returns all pools, over all workers. Blocks until the workers have answered, at most for a second.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolReport> {
        show::wholes(&self.0.look(Look::default(), REPORTS))
    }

    /// Returns all clients, with their numbers in `SHOW CLIENTS`. Blocks likewise.
    #[must_use]
    pub fn clients(&self) -> Vec<(u64, ClientReport)> {
        let reports = self.0.look(Look { clients: true, ..Look::default() }, REPORTS);
        let of = |report: super::Report| {
            let worker = report.worker;
            report.clients.into_iter().map(move |client| (show::public_id(worker, client.token), client))
        };
        reports.into_iter().flat_map(of).collect()
    }

    /// Returns the costs of statements, as in `SHOW STATEMENTS`: by their texts without literals, the longest total time first. Blocks likewise.
    #[must_use]
    pub fn statements(&self) -> Vec<(String, Counts)> {
        let reports = self.0.look(Look { statements: true, ..Look::default() }, REPORTS);
        show::sums_of_statements(&reports).into_iter().map(|sum| (sum.shown, sum.counts)).collect()
    }

    /// Returns the traffic rules in force, as in `SHOW TRAFFIC`.
    #[must_use]
    pub fn traffic(&self) -> Vec<RuleReport> {
        self.0.shared.traffic.report(std::time::Instant::now())
    }

    /// Returns for each node: its name, the number of session settings in which it differs from those under which clients' statements run, and true
    /// if it refuses those.
    #[must_use]
    pub fn settings(&self) -> Vec<(String, usize, bool)> {
        let shared = &self.0.shared;
        let view = shared.topology.view();
        let of = |node: &topology::NodeView| {
            let differ = shared.registry.differences(node.node.id);
            (node.node.name.clone(), differ.names.len(), differ.refused)
        };
        view.nodes.iter().map(of).collect()
    }

    /// True if clients may connect to this database.
    #[must_use]
    pub fn has_database(&self, name: &str) -> bool {
        self.0.settings().database(name).is_some()
    }

    /// Starts the operation in every worker, and does not wait for its end.
    ///
    /// # Errors
    /// Another process is taking over, and would not know of it.
    pub fn operate(&self, operation: &Operation) -> Result<(), TakingOver> {
        let _changing = self.0.fleet.changes.begin()?;
        self.0.tell_all(operation);
        Ok(())
    }

    /// Closes a client by its number in `SHOW CLIENTS`; false if there is none. Blocks like [`Observer::clients`].
    #[must_use]
    pub fn kill_client(&self, id: u64) -> bool {
        let reports = self.0.look(Look { clients: true, ..Look::default() }, REPORTS);
        let found = show::client_of(&reports, id);
        if let Some((worker, token)) = found {
            self.0.tell(worker, Operation::KillClient(token));
        }
        found.is_some()
    }
}
