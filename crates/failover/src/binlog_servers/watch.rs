//! The servers of MariaDB or MySQL as the cluster of a watcher.

use std::sync::Arc;

use binlog::Dialect;

use super::super::cluster_monitor::{ClusterMonitor, Hosts, LOOK};
use super::super::engine::{ServerKind, Wish};
use super::super::held::Held;
use super::super::judge::Judgement;
use super::super::plan::{RelaySeen, ServerSeen, Survey};
use super::super::suspend_aware_clock::SuspendAwareClock;
use super::super::watch::{self, Watching};
use super::super::{Ends, drive};
use super::situation::{Situation, judge, situation};
use super::{BinlogClients, BinlogServers, Servers, abort, begin, replace_source};
use crate::args::WatchArgs;
use config::Config;
use process::Failure;

/// Detects the loss of the source, and reports it or replaces the source.
///
/// # Errors
/// The watcher cannot start.
pub(in super::super) fn watch(config: Config, dialect: Dialect, args: &WatchArgs) -> Result<(), Failure> {
    let servers = Servers::new(config, dialect, &args.stop)?;
    drive(async {
        let mut stop = Ends::new()?;
        let clock = SuspendAwareClock::start();
        let hosts = Arc::clone(&servers.clients);
        let monitor = ClusterMonitor::new(&hosts, &clock);
        watch::run(Cluster { servers, hosts: &hosts, clock: &clock, monitor }, &clock, args, &mut stop).await
    })
}

struct Cluster<'a> {
    servers: Servers,
    hosts: &'a Arc<BinlogClients>,
    clock: &'a SuspendAwareClock,
    monitor: ClusterMonitor<'a, Arc<BinlogClients>>,
}

const LATE: &str = "it does not answer in time";

impl Hosts for Arc<BinlogClients> {
    type Kind = BinlogServers;

    fn unseen(&self) -> Survey<BinlogServers> {
        let why = "it has not been looked at yet";
        let servers = (0..self.config.cluster.nodes.len()).map(|index| self.server_seen(index, Err(why.into())));
        let relays = (0..self.config.failover.relays.len()).map(|index| self.relay_seen(index, Err(why.into())));
        let acknowledgements = self.config.failover.acknowledgements;
        Survey { servers: servers.collect(), relays: relays.collect(), acknowledgements }
    }

    async fn see_server(&self, index: usize, limit: impl Future<Output = ()>) -> ServerSeen<BinlogServers> {
        tokio::select! {
            biased;
            seen = self.look_at_server(index) => seen,
            () = limit => self.server_seen(index, Err(LATE.into())),
        }
    }

    async fn see_relay(&self, index: usize, limit: impl Future<Output = ()>) -> RelaySeen<BinlogServers> {
        tokio::select! {
            biased;
            seen = self.look_at_relay(index) => seen,
            () = limit => self.relay_seen(index, Err(LATE.into())),
        }
    }

    fn is_well(survey: &Survey<BinlogServers>) -> bool {
        matches!(situation(survey), Situation::Healthy { .. })
    }

    fn count(&self, _: &mut Survey<BinlogServers>) {}
}

impl Watching for Cluster<'_> {
    fn config(&self) -> &Config {
        &self.servers.clients.config
    }

    async fn next(&mut self) -> Judgement {
        judge(self.monitor.next().await)
    }

    fn forget(&mut self) {
        self.monitor = ClusterMonitor::new(self.hosts, self.clock);
    }

    fn advice(&self) -> String {
        let (survey, wish) = (self.monitor.survey(), Wish::default());
        let candidates = begin(survey, &wish).and_then(|plan| BinlogServers::candidates(survey, &plan, &wish));
        match candidates {
            Ok(election) => {
                let names: Vec<_> = election.candidates.into_iter().map(|candidate| candidate.name).collect();
                format!("it is time for `kingpost failover`: {} would be the source", names.join(" or "))
            }
            Err(why) => format!("it is time for `kingpost failover`, but {why}"),
        }
    }

    async fn act(&mut self, held: &Held) -> Result<(), Failure> {
        use super::super::elect::Adapter;
        self.servers.mark("locked");
        // The earlier holder of the lock may have failed over.
        let survey = self.servers.clients.survey_within(LOOK).await;
        match (judge(&survey), situation(&survey)) {
            // An earlier run was interrupted before it had chosen a node, and the source lives.
            (Judgement::Unfinished, Situation::Fenced { .. }) => abort(&self.servers, &survey).await,
            (Judgement::Lost | Judgement::Unfinished, _) => {
                replace_source(&self.servers, &survey, &Wish::default(), false, held).await
            }
            (Judgement::Healthy(_) | Judgement::Unsure(_), _) => Ok(()),
        }
    }
}
