//! FailoverRun after a promotion: proxies, relays and standbys follow the new primary.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ::relay::{Order, RelayState};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::conninfo;
use super::engine::Promoted;
use super::failover_run::{FailoverRun, same};
use super::pause;
use super::plan::{ServerState, Survey};
use process::Failure;
use process::address::split;

/// Interval between two checks of a condition that is waited for.
const PACE: Duration = Duration::from_millis(100);
/// Longest time for a server to take over its configuration.
const RELOAD: Duration = Duration::from_secs(5);
/// Time after which a relay that does not follow gets the order again.
const AGAIN: Duration = Duration::from_secs(3);
/// Time to wait for further relays once enough follow.
const OTHERS: Duration = Duration::from_secs(2);
/// Time to wait for standbys.
const STANDBYS: Duration = Duration::from_secs(15);

impl FailoverRun {
    /// Completes a failover after the promotion: proxies detect the new primary, by `proxies`; relays and standbys follow it, concurrently; then the
    /// old primary rejoins. Each part is attempted even if others fail, and an unreachable host delays no other. `before`: the last survey.
    ///
    /// # Errors
    /// Too few relays follow for commits to complete.
    pub(super) async fn settle(
        &self,
        before: &Survey,
        promoted: &Promoted,
        proxies: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let Promoted { node, timeline, .. } = promoted;
        let proxies = async {
            proxies.await;
            self.step("resumed");
        };
        let others = async {
            let relays = self.relays_follow(node, *timeline).await;
            self.step("relays-follow");
            self.replicas_follow(before, node, *timeline).await;
            self.rejoin(before, promoted).await;
            relays
        };
        let (relays, ()) = tokio::join!(others, proxies);
        relays?;
        self.say(format_args!("{node} is the primary, on timeline {timeline}"));
        Ok(())
    }

    /// Has proxies look for the new primary at once, and resume if they have paused.
    pub(super) async fn proxies_look(&self, promoted: &Promoted) {
        for (proxy, why) in pause::resume(&self.clients, promoted.timeline).await {
            self.say(format_args!("{proxy} does not know yet that {} is the primary: {why}", promoted.node));
        }
    }

    /// Waits until the relays receive from the new primary: with them as synchronous standbys, commits complete only then.
    async fn relays_follow(&self, node: &str, timeline: u32) -> Result<(), Failure> {
        let relays = &self.config.failover.relays;
        let needed = self.config.failover.acknowledgements.min(relays.len());
        // The last message of each relay that does not follow yet.
        let last: RefCell<BTreeMap<&str, String>> = RefCell::default();
        let mut running: FuturesUnordered<_> =
            relays.iter().map(|relay| self.relay_follows(&relay.name, node, timeline, &last)).collect();
        let mut following = 0;
        let began = tokio::time::Instant::now();
        loop {
            // Relays that are down will follow when they are back.
            let patience = if following >= needed { OTHERS } else { self.limit() };
            match tokio::time::timeout_at(began + patience, running.next()).await {
                Ok(Some(())) => following += 1,
                Ok(None) | Err(_) => break,
            }
        }
        drop(running);
        let last: Vec<String> = last.into_inner().into_iter().map(|(relay, why)| format!("{relay}: {why}")).collect();
        for lagging in &last {
            self.say(format_args!("not following yet: {lagging}"));
        }
        if following >= needed {
            return Ok(());
        }
        Err(Failure::runtime(format!(
            "{node} is the primary, but only {following} relays follow it, and {needed} are needed for commits to end\n  {}",
            last.join("\n  ")
        ))
        .advise("look at the relays' logs; run it again to have them follow"))
    }

    /// Returns when this relay receives from the new primary; orders it to if it does not by itself.
    async fn relay_follows<'a>(
        &self,
        relay: &'a str,
        node: &str,
        timeline: u32,
        last: &RefCell<BTreeMap<&'a str, String>>,
    ) {
        let address = self.address(node);
        last.borrow_mut().insert(relay, "it has not been asked yet".into());
        let mut told: Option<Instant> = None;
        loop {
            let said = match self.clients.order(relay, Order::Look).await {
                Ok(standing) if follows(&standing, timeline) => {
                    self.say(format_args!("{relay} follows on timeline {timeline}"));
                    last.borrow_mut().remove(relay);
                    return;
                }
                Ok(standing) => {
                    // A relay that watches the cluster gets the order, too: it would find the primary by itself, but later.
                    let recently = told.is_some_and(|at| at.elapsed() < AGAIN);
                    if !recently && !same(&standing.upstream, &address).await {
                        told = Some(Instant::now());
                        let order = Order::Follow { term: standing.term, address: address.clone() };
                        if let Err(why) = self.clients.order(relay, order).await {
                            self.say(format_args!("{relay} does not follow {node}: {why}"));
                        }
                    }
                    standing.state
                }
                Err(why) => why,
            };
            last.borrow_mut().insert(relay, said);
            tokio::time::sleep(PACE).await;
        }
    }

    /// Has every other standby that received from a server receive from the new primary, and waits, concurrently, until all are on its timeline.
    /// Standbys that do not follow are named in a message; they do not fail the run.
    async fn replicas_follow(&self, before: &Survey, node: &str, timeline: u32) {
        let survey = self.clients.survey_again(before).await;
        let standbys = survey.answering().filter(|(server, state)| state.standby && server.name != node);
        join_all(standbys.map(|(server, state)| self.replica_follows(&server.name, state, node, timeline))).await;
    }

    async fn replica_follows(&self, name: &str, state: &ServerState, node: &str, timeline: u32) {
        let address = self.address(node);
        let mut leads_to_server = false;
        for other in self.clients.nodes() {
            leads_to_server |= self.receives_from(state, &other.address).await;
        }
        if leads_to_server && let Err(why) = self.lead_to_server(name, state, node, &address).await {
            self.say(why);
        }
        let began = Instant::now();
        while began.elapsed() < self.limit().min(STANDBYS) {
            if self.clients.look(name).await.is_ok_and(|state| state.timeline >= timeline && state.receiving) {
                self.say(format_args!("{name} follows on timeline {timeline}"));
                return;
            }
            tokio::time::sleep(PACE).await;
        }
        self.say(format_args!(
            "{name} does not follow yet: look at its log; if it had more than the new primary, rewind it with pg_rewind"
        ));
    }

    /// True if the standby is configured to receive from `address`.
    pub(super) async fn receives_from(&self, state: &ServerState, address: &str) -> bool {
        match state.conninfo.as_deref().and_then(conninfo::endpoint) {
            Some((host, port)) => same(&format!("{host}:{port}"), address).await,
            None => false,
        }
    }

    /// Has a standby receive from a relay through the slot that it uses, which is created there.
    pub(super) async fn lead_to_relay(
        &self,
        node: &str,
        state: &ServerState,
        relay: &str,
        address: &str,
    ) -> Result<(), String> {
        if let Some(slot) = &state.slot {
            let made = self.clients.make_slot(relay, slot).await;
            made.map_err(|why| format!("{node} uses the slot {slot:?}, which {relay} does not have: {why}"))?;
        }
        self.lead_to(node, state, relay, address).await
    }

    /// Has a standby receive from a server through the slot that it uses, which is created there.
    async fn lead_to_server(&self, node: &str, state: &ServerState, to: &str, address: &str) -> Result<(), String> {
        if let Some(slot) = &state.slot {
            let slot = slot.replace('\'', "''");
            let make = format!(
                "SELECT pg_catalog.pg_create_physical_replication_slot('{slot}', true) \
                 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = '{slot}')"
            );
            let made = self.clients.run(to, &[&make]).await;
            made.map_err(|why| format!("{node} uses the slot {slot:?}, which {to} does not have: {why}"))?;
        }
        self.lead_to(node, state, to, address).await
    }

    /// Has a standby receive from `address`, unless it already does.
    async fn lead_to(&self, node: &str, state: &ServerState, to: &str, address: &str) -> Result<(), String> {
        let Some(conninfo) = &state.conninfo else {
            self.say(format_args!(
                "{node} has no primary_conninfo that can be read: it has to receive from {to} by itself"
            ));
            return Ok(());
        };
        if self.receives_from(state, address).await {
            return Ok(());
        }
        let (host, port) = split(address, "5432");
        let Some(changed) = port.parse().ok().and_then(|port| conninfo::with_endpoint(conninfo, host, port)) else {
            self.say(format_args!("{node}'s primary_conninfo is not of keywords: set it to {address} by hand"));
            return Ok(());
        };
        let set = format!("ALTER SYSTEM SET primary_conninfo = '{}'", changed.replace('\'', "''"));
        let result = self.clients.run(node, &[&set, "SELECT pg_catalog.pg_reload_conf()"]).await;
        result.map_err(|why| format!("cannot have {node} receive from {to}: {why}"))?;
        let began = Instant::now();
        loop {
            let now = self.clients.look(node).await.ok().and_then(|state| state.conninfo);
            if now.as_deref() == Some(changed.as_str()) {
                self.say(format_args!("{node} receives from {to} ({address}) from now on"));
                return Ok(());
            }
            if began.elapsed() > RELOAD {
                self.say(format_args!(
                    "{node} keeps another primary_conninfo, perhaps from its command line: have it receive from {address} by hand"
                ));
                return Ok(());
            }
            tokio::time::sleep(PACE / 4).await;
        }
    }
}

fn follows(standing: &RelayState, timeline: u32) -> bool {
    standing.timeline >= timeline && standing.state == "streaming"
}
