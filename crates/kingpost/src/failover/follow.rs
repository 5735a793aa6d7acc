//! After a promotion: proxies, relays and standbys follow the new primary.

use std::time::{Duration, Instant};

use ::relay::{Order, Standing};
use futures_util::future::join_all;

use super::conninfo;
use super::elect::Promoted;
use super::pause;
use super::plan::ServerState;
use super::steps::{Steps, same, split};
use crate::error::Failure;

/// How often something that is waited for is looked at.
const PACE: Duration = Duration::from_millis(100);
/// Longest time for a server to take over its configuration.
const RELOAD: Duration = Duration::from_secs(5);
/// After this a relay that does not follow is told so again.
const AGAIN: Duration = Duration::from_secs(3);
/// How long relays are waited for once enough follow.
const OTHERS: Duration = Duration::from_secs(2);
/// How long standbys are waited for.
const STANDBYS: Duration = Duration::from_secs(15);

impl Steps {
    /// What is left to do once a node was promoted: relays and standbys follow it, and the old primary comes back. All of it is tried,
    /// whatever fails of it.
    ///
    /// # Errors
    /// Too few relays follow for commits to end.
    pub(super) async fn settle(&self, promoted: &Promoted) -> Result<(), Failure> {
        let Promoted { node, timeline, .. } = promoted;
        let relays = self.relays_follow(node, *timeline).await;
        self.step("relays-follow");
        self.replicas_follow(node, *timeline).await;
        self.rejoin(promoted).await;
        relays?;
        self.say(format_args!("{node} is the primary, on timeline {timeline}"));
        Ok(())
    }

    /// Has proxies look for the new primary at once, and go on if they have paused.
    pub(super) async fn proxies_look(&self, promoted: &Promoted) {
        for (proxy, why) in pause::resume(&self.parts, promoted.timeline).await {
            self.say(format_args!("{proxy} does not know yet that {} is the primary: {why}", promoted.node));
        }
    }

    /// Waits until the relays take from the new primary: with them as synchronous standbys, commits end only then.
    async fn relays_follow(&self, node: &str, timeline: u32) -> Result<(), Failure> {
        let address = self.address(node);
        let mut waiting: Vec<String> = self.config.failover.relays.iter().map(|relay| relay.name.clone()).collect();
        let needed = self.config.failover.acknowledgements.min(waiting.len());
        let (mut following, mut told): (usize, Vec<(String, Instant)>) = (0, Vec::new());
        let mut last = Vec::new();
        let began = Instant::now();
        while !waiting.is_empty() {
            last.clear();
            let each =
                waiting.iter().map(|relay| async { (relay.clone(), self.parts.order(relay, Order::Look).await) });
            for (relay, answer) in join_all(each).await {
                match answer {
                    Ok(standing) if follows(&standing, timeline) => {
                        self.say(format_args!("{relay} follows on timeline {timeline}"));
                        waiting.retain(|waits| *waits != relay);
                        following += 1;
                    }
                    Ok(standing) => {
                        // Also one that watches the cluster, which would find the primary by itself, later.
                        let recently = told.iter().any(|(name, at)| *name == relay && at.elapsed() < AGAIN);
                        if !recently && !same(&standing.upstream, &address).await {
                            told.push((relay.clone(), Instant::now()));
                            let order = Order::Follow { term: standing.term, address: address.clone() };
                            if let Err(why) = self.parts.order(&relay, order).await {
                                self.say(format_args!("{relay} does not follow {node}: {why}"));
                            }
                        }
                        last.push(format!("{relay}: {}", standing.state));
                    }
                    Err(why) => last.push(format!("{relay}: {why}")),
                }
            }
            // Those that are away will follow when they are back.
            let patience = if following >= needed { OTHERS } else { self.limit() };
            if waiting.is_empty() || began.elapsed() > patience {
                break;
            }
            tokio::time::sleep(PACE).await;
        }
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

    /// Has every other standby that received from a server receive from the new primary, and waits for all to be on its timeline.
    /// Standbys that do not come along are named, and no reason to fail.
    async fn replicas_follow(&self, node: &str, timeline: u32) {
        let address = self.address(node);
        let survey = self.parts.survey().await;
        let mut waiting = Vec::new();
        for (server, state) in survey.answering().filter(|(server, state)| state.standby && server.name != node) {
            let mut leads_to_server = false;
            for other in self.parts.nodes() {
                leads_to_server |= self.receives_from(state, &other.address).await;
            }
            if leads_to_server && let Err(why) = self.lead_to_server(&server.name, state, node, &address).await {
                self.say(why);
            }
            waiting.push(server.name.clone());
        }
        let began = Instant::now();
        while !waiting.is_empty() && began.elapsed() < self.limit().min(STANDBYS) {
            let each = waiting.iter().map(|name| async { (name.clone(), self.parts.look(name).await) });
            for (name, state) in join_all(each).await {
                if state.is_ok_and(|state| state.timeline >= timeline && state.receiving) {
                    self.say(format_args!("{name} follows on timeline {timeline}"));
                    waiting.retain(|waits| *waits != name);
                }
            }
            if !waiting.is_empty() {
                tokio::time::sleep(PACE).await;
            }
        }
        for name in waiting {
            self.say(format_args!(
                "{name} does not follow yet: look at its log; if it had more than the new primary, rewind it with pg_rewind"
            ));
        }
    }

    /// Whether a standby is configured to receive from there.
    pub(super) async fn receives_from(&self, state: &ServerState, address: &str) -> bool {
        match state.conninfo.as_deref().and_then(conninfo::endpoint) {
            Some((host, port)) => same(&format!("{host}:{port}"), address).await,
            None => false,
        }
    }

    /// Has a standby receive from a relay, by the slot that it uses, which is made there.
    pub(super) async fn lead_to_relay(
        &self,
        node: &str,
        state: &ServerState,
        relay: &str,
        address: &str,
    ) -> Result<(), String> {
        if let Some(slot) = &state.slot {
            let made = self.parts.make_slot(relay, slot).await;
            made.map_err(|why| format!("{node} uses the slot {slot:?}, which {relay} does not have: {why}"))?;
        }
        self.lead_to(node, state, relay, address).await
    }

    /// Has a standby receive from a server, by the slot that it uses, which is made there.
    async fn lead_to_server(&self, node: &str, state: &ServerState, to: &str, address: &str) -> Result<(), String> {
        if let Some(slot) = &state.slot {
            let slot = slot.replace('\'', "''");
            let make = format!(
                "SELECT pg_catalog.pg_create_physical_replication_slot('{slot}', true) \
                 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = '{slot}')"
            );
            let made = self.parts.run(to, &[&make]).await;
            made.map_err(|why| format!("{node} uses the slot {slot:?}, which {to} does not have: {why}"))?;
        }
        self.lead_to(node, state, to, address).await
    }

    /// Has a standby receive from there, unless it does.
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
        let (host, port) = split(address);
        let Some(changed) = port.parse().ok().and_then(|port| conninfo::with_endpoint(conninfo, &host, port)) else {
            self.say(format_args!("{node}'s primary_conninfo is not of keywords: set it to {address} by hand"));
            return Ok(());
        };
        let set = format!("ALTER SYSTEM SET primary_conninfo = '{}'", changed.replace('\'', "''"));
        let result = self.parts.run(node, &[&set, "SELECT pg_catalog.pg_reload_conf()"]).await;
        result.map_err(|why| format!("cannot have {node} receive from {to}: {why}"))?;
        let began = Instant::now();
        loop {
            let now = self.parts.look(node).await.ok().and_then(|state| state.conninfo);
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

fn follows(standing: &Standing, timeline: u32) -> bool {
    standing.timeline >= timeline && standing.state == "streaming"
}
