//! Looks at servers and relays all the time, at each in turns of its own, so that one that does not answer holds up no other.
//!
//! ```text
//!  n0      |look|    |look|    |look …… no answer|look …… no answer|
//!  relay1  |look|    |look|    |look| hears n0    |look| does not hear it ─▶ no primary answers, and no relay hears one
//! ```
//!
//! A survey that waits for all of them would know what the relays say as late as the server that does not answer takes. What it gives is the last that each of them has
//! said: enough to see that something is wrong. Whoever acts on it looks again ([`Parts::survey_again`]).

use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::awake::Awake;
use super::parts::Parts;
use super::plan::{RelaySeen, ServerSeen, Survey};

/// Time from the end of one look at a part to the beginning of the next one.
const PACE: Duration = Duration::from_millis(500);
/// The same while no primary answers: what relays say of it decides.
const HURRY: Duration = Duration::from_millis(200);
/// Longest time for one look at a part, on a clock that runs only while this program does.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// What one look has seen.
enum Seen {
    Server(usize, ServerSeen),
    Relay(usize, RelaySeen),
}

/// What is known of everything, and the looks that are under way.
pub(super) struct Lookout<'a> {
    parts: &'a Parts,
    awake: &'a Awake,
    looks: FuturesUnordered<Pin<Box<dyn Future<Output = Seen> + 'a>>>,
    survey: Survey,
    /// Of servers, then of relays: whether the first look at it has ended.
    known: Vec<bool>,
}

impl<'a> Lookout<'a> {
    /// Begins with a look at everything. `parts`: with limits far above [`LOOK`].
    pub(super) fn new(parts: &'a Parts, awake: &'a Awake) -> Lookout<'a> {
        let survey = parts.unseen();
        let known = vec![false; survey.servers.len() + survey.relays.len()];
        let lookout = Lookout { parts, awake, looks: FuturesUnordered::new(), survey, known };
        for index in 0..lookout.survey.servers.len() {
            lookout.looks.push(lookout.server(index, Duration::ZERO));
        }
        for index in 0..lookout.survey.relays.len() {
            lookout.looks.push(lookout.relay(index, Duration::ZERO));
        }
        lookout
    }

    /// Waits for the end of the next look; gives what is known then. The first time when each part has been looked at.
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
                // There are no parts: the configuration names at least one server.
                None => std::future::pending().await,
            }
            if self.known.iter().all(|known| *known) {
                self.parts.count(&mut self.survey);
                return &self.survey;
            }
        }
    }

    fn server(&self, index: usize, pause: Duration) -> Pin<Box<dyn Future<Output = Seen> + 'a>> {
        let (parts, awake) = (self.parts, self.awake);
        Box::pin(async move {
            awake.sleep(pause).await;
            let limit = awake.sleep(LOOK);
            Seen::Server(index, parts.see_server(&parts.nodes()[index], limit).await)
        })
    }

    fn relay(&self, index: usize, pause: Duration) -> Pin<Box<dyn Future<Output = Seen> + 'a>> {
        let (parts, awake) = (self.parts, self.awake);
        Box::pin(async move {
            awake.sleep(pause).await;
            let limit = awake.sleep(LOOK);
            Seen::Relay(index, parts.see_relay(index, limit).await)
        })
    }
}
