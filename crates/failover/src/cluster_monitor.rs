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
use super::plan::{RelaySeen, ServerSeen, Survey};
use super::suspend_aware_clock::SuspendAwareClock;

/// Time from the end of one look at a part to the beginning of the next one.
const PACE: Duration = Duration::from_millis(500);
/// As [`PACE`], while no primary answers and the relays' answers decide.
const HURRY: Duration = Duration::from_millis(200);
/// Longest time for one look at a part, on a clock that runs only while this program does.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Result of one look.
enum Seen {
    Server(usize, ServerSeen),
    Relay(usize, RelaySeen),
}

/// The latest answers, and the looks under way.
pub(super) struct ClusterMonitor<'a> {
    clients: &'a ClusterClients,
    clock: &'a SuspendAwareClock,
    looks: FuturesUnordered<Pin<Box<dyn Future<Output = Seen> + 'a>>>,
    survey: Survey,
    /// Entries are true once the first look at a part has ended: servers first, then relays.
    known: Vec<bool>,
}

impl<'a> ClusterMonitor<'a> {
    /// Starts with a look at all parts. `clients` need limits far above [`LOOK`].
    pub(super) fn new(clients: &'a ClusterClients, clock: &'a SuspendAwareClock) -> ClusterMonitor<'a> {
        let survey = clients.unseen();
        let known = vec![false; survey.servers.len() + survey.relays.len()];
        let monitor = ClusterMonitor { clients, clock, looks: FuturesUnordered::new(), survey, known };
        for index in 0..monitor.survey.servers.len() {
            monitor.looks.push(monitor.server(index, Duration::ZERO));
        }
        for index in 0..monitor.survey.relays.len() {
            monitor.looks.push(monitor.relay(index, Duration::ZERO));
        }
        monitor
    }

    /// Waits for the end of the next look, and returns the latest answers; the first time, for a look at each part.
    pub(super) async fn next(&mut self) -> &Survey {
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
                    let is_well = self.survey.answering().any(|(_, state)| !state.standby);
                    self.looks.push(self.relay(index, if is_well { PACE } else { HURRY }));
                }
                // No parts, which cannot be: the configuration names at least one server.
                None => std::future::pending().await,
            }
            if self.known.iter().all(|known| *known) {
                self.clients.count(&mut self.survey);
                return &self.survey;
            }
        }
    }

    fn server(&self, index: usize, pause: Duration) -> Pin<Box<dyn Future<Output = Seen> + 'a>> {
        let (clients, clock) = (self.clients, self.clock);
        Box::pin(async move {
            clock.sleep(pause).await;
            let limit = clock.sleep(LOOK);
            Seen::Server(index, clients.see_server(&clients.nodes()[index], limit).await)
        })
    }

    fn relay(&self, index: usize, pause: Duration) -> Pin<Box<dyn Future<Output = Seen> + 'a>> {
        let (clients, clock) = (self.clients, self.clock);
        Box::pin(async move {
            clock.sleep(pause).await;
            let limit = clock.sleep(LOOK);
            Seen::Relay(index, clients.see_relay(index, limit).await)
        })
    }
}
