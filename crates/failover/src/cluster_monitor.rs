//! A monitor of servers and relays. Each has its own loop of looks, so that one that does not answer delays no other.
//!
//! ```text
//!  n0      |look|    |look|    |look …… no answer|look …… no answer|
//!  relay1  |look|    |look|    |look| hears n0    |look| does not hear it ─▶ no primary answers, and no relay hears one
//! ```
//!
//! A survey that waits for all of them would be as late with the relays' answers as a server that does not answer. This one holds the latest answer
//! of each: enough to see a fault. Before acting on it a caller surveys again ([`ClusterClients::survey_again`]).

use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::cluster_clients::ClusterClients;
use super::engine::ServerKind;
use super::plan::{RelaySeen, ServerSeen, Survey};
use super::postgresql::Postgresql;
use super::suspend_aware_clock::SuspendAwareClock;

/// Time from the end of one look at a part to the beginning of the next one.
const PACE: Duration = Duration::from_millis(500);
/// As [`PACE`], while no primary answers and the relays' answers decide.
const HURRY: Duration = Duration::from_millis(200);
/// Longest time for one look at a part, on a clock that runs only while this program does.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Servers and relays of one kind that are looked at one by one.
pub(super) trait Hosts {
    type Kind: ServerKind;

    /// Returns a survey in which no host has been queried.
    fn unseen(&self) -> Survey<Self::Kind>;
    /// Queries the server of this index until `limit` is over.
    async fn see_server(&self, index: usize, limit: impl Future<Output = ()>) -> ServerSeen<Self::Kind>;
    /// Queries the relay of this index until `limit` is over.
    async fn see_relay(&self, index: usize, limit: impl Future<Output = ()>) -> RelaySeen<Self::Kind>;
    /// True if a primary answers.
    fn is_well(survey: &Survey<Self::Kind>) -> bool;
    /// Sets the number of relays that commits wait for, from what the servers report.
    fn count(&self, survey: &mut Survey<Self::Kind>);
}

impl Hosts for ClusterClients {
    type Kind = Postgresql;

    fn unseen(&self) -> Survey {
        self.unseen()
    }

    async fn see_server(&self, index: usize, limit: impl Future<Output = ()>) -> ServerSeen {
        self.see_server(&self.nodes()[index], limit).await
    }

    async fn see_relay(&self, index: usize, limit: impl Future<Output = ()>) -> RelaySeen {
        self.see_relay(index, limit).await
    }

    fn is_well(survey: &Survey) -> bool {
        survey.answering().any(|(_, state)| !state.standby)
    }

    fn count(&self, survey: &mut Survey) {
        self.count(survey);
    }
}

/// Result of one look.
enum Seen<K: ServerKind> {
    Server(usize, ServerSeen<K>),
    Relay(usize, RelaySeen<K>),
}

/// A look under way.
type Look<'a, K> = Pin<Box<dyn Future<Output = Seen<K>> + 'a>>;

/// The latest answers, and the looks under way.
pub(super) struct ClusterMonitor<'a, H: Hosts> {
    hosts: &'a H,
    clock: &'a SuspendAwareClock,
    looks: FuturesUnordered<Look<'a, H::Kind>>,
    survey: Survey<H::Kind>,
    /// Entries are true once the first look at a part has ended: servers first, then relays.
    known: Vec<bool>,
}

impl<'a, H: Hosts> ClusterMonitor<'a, H> {
    /// Starts with a look at all parts. `hosts` need limits far above [`LOOK`].
    pub(super) fn new(hosts: &'a H, clock: &'a SuspendAwareClock) -> ClusterMonitor<'a, H> {
        let survey = hosts.unseen();
        let known = vec![false; survey.servers.len() + survey.relays.len()];
        let monitor = ClusterMonitor { hosts, clock, looks: FuturesUnordered::new(), survey, known };
        for index in 0..monitor.survey.servers.len() {
            monitor.looks.push(monitor.server(index, Duration::ZERO));
        }
        for index in 0..monitor.survey.relays.len() {
            monitor.looks.push(monitor.relay(index, Duration::ZERO));
        }
        monitor
    }

    /// Returns the latest answers.
    pub(super) fn survey(&self) -> &Survey<H::Kind> {
        &self.survey
    }

    /// Waits for the end of the next look, and returns the latest answers; the first time, for a look at each part.
    pub(super) async fn next(&mut self) -> &Survey<H::Kind> {
        loop {
            match self.looks.next().await {
                Some(Seen::Server(index, server)) => {
                    self.survey.servers[index] = server;
                    self.known[index] = true;
                    self.looks.push(self.server(index, PACE));
                }
                Some(Seen::Relay(index, relay)) => {
                    self.survey.relays[index] = relay;
                    self.known[self.survey.servers.len() + index] = true;
                    let is_well = H::is_well(&self.survey);
                    self.looks.push(self.relay(index, if is_well { PACE } else { HURRY }));
                }
                // No parts, which cannot be: the configuration names at least one server.
                None => std::future::pending().await,
            }
            if self.known.iter().all(|known| *known) {
                self.hosts.count(&mut self.survey);
                return &self.survey;
            }
        }
    }

    fn server(&self, index: usize, pause: Duration) -> Look<'a, H::Kind> {
        let (hosts, clock) = (self.hosts, self.clock);
        Box::pin(async move {
            clock.sleep(pause).await;
            let limit = clock.sleep(LOOK);
            Seen::Server(index, hosts.see_server(index, limit).await)
        })
    }

    fn relay(&self, index: usize, pause: Duration) -> Look<'a, H::Kind> {
        let (hosts, clock) = (self.hosts, self.clock);
        Box::pin(async move {
            clock.sleep(pause).await;
            let limit = clock.sleep(LOOK);
            Seen::Relay(index, hosts.see_relay(index, limit).await)
        })
    }
}
