//! What a failover and the second half of a switchover have in common: fence, choose, catch up, promote, follow. Each step
//! looks at what is there first, so that the whole may be begun again wherever it was cut off.

use std::time::{Duration, Instant};

use ::relay::{Order, Standing};

use super::conninfo;
use super::hooks::{self, Hook};
use super::parts::{Parts, join_all};
use super::plan::{self, RelaySeen, ServerState, Survey, Target};
use crate::config::Config;
use crate::error::Failure;
use crate::out;

/// How often something that is waited for is looked at.
const PACE: Duration = Duration::from_millis(100);

/// One failover under way.
pub(super) struct Steps {
    pub(super) config: Config,
    pub(super) parts: Parts,
    pub(super) began: Instant,
    /// Whatever cannot be known any more counts as lost.
    pub(super) force: bool,
    /// There may be no relay.
    pub(super) accept_loss: bool,
}

/// Relays that promised to a term.
pub(super) struct Fenced {
    pub(super) term: u64,
    pub(super) relays: Vec<(RelaySeen, Standing)>,
}

/// A word that is asked for before the point of no return.
pub(super) trait Guard {
    /// Err: somebody else is at it, or may be.
    fn allows(&self) -> impl Future<Output = Result<(), String>>;
}

/// An operator's own responsibility.
pub(super) struct NoGuard;

impl Guard for NoGuard {
    async fn allows(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Steps {
    pub(super) fn say(&self, text: impl std::fmt::Display) {
        out::line(format_args!("{:6.1} s  {text}", self.began.elapsed().as_secs_f32()));
    }

    pub(super) fn limit(&self) -> Duration {
        self.config.failover.step_timeout
    }

    /// Has enough relays promise to a new term: nobody can get a commit acknowledged on `timeline` any more.
    pub(super) async fn fence(&self, survey: &Survey, timeline: u32) -> Result<Fenced, Failure> {
        let needed = plan::needed(self.parts.relay_count(), self.config.failover.acknowledgements);
        let term = survey.standing().map(|(_, standing)| standing.term).max().unwrap_or(0) + 1;
        let each = survey.relays.iter().map(|relay| async {
            (relay.clone(), self.parts.order(&relay.name, Order::Fence { term, timeline }).await)
        });
        let mut relays = Vec::new();
        let mut refused = Vec::new();
        for (relay, answer) in join_all(each).await {
            match answer {
                Ok(standing) => {
                    self.say(format_args!(
                        "fenced {} at timeline {timeline} for term {term}: it has {}",
                        relay.name, standing.flushed
                    ));
                    relays.push((relay, standing));
                }
                Err(why) => {
                    self.say(format_args!("{} is not fenced: {why}", relay.name));
                    refused.push(format!("{}: {why}", relay.name));
                }
            }
        }
        if relays.len() < needed {
            return Err(Failure::runtime(format!(
                "{} of {} relays are fenced, and {needed} are needed: with fewer, what was acknowledged might be missing, or \
                 more be acknowledged\n{}",
                relays.len(),
                survey.relays.len(),
                refused.join("\n")
            ))
            .advise("bring the relays back and run it again; `kingpost failover --abort` takes the fences away"));
        }
        Ok(Fenced { term, relays })
    }

    /// Makes it known which node is to go on, before it does.
    pub(super) async fn choose(&self, fenced: &mut Fenced, node: &str) -> Result<(), Failure> {
        let needed = plan::needed(self.parts.relay_count(), self.config.failover.acknowledgements);
        let term = fenced.term;
        let each = fenced.relays.iter().map(|(relay, _)| async {
            (relay.name.clone(), self.parts.order(&relay.name, Order::Choose { term, node: node.into() }).await)
        });
        let (mut agreed, mut refused) = (0, Vec::new());
        for (relay, answer) in join_all(each).await {
            match answer {
                Ok(_) => agreed += 1,
                Err(why) => refused.push(format!("{relay}: {why}")),
            }
        }
        if agreed < needed {
            return Err(Failure::runtime(format!(
                "{agreed} relays agree that {node} goes on, and {needed} are needed\n{}",
                refused.join("\n")
            ))
            .advise("another failover may be under way; run it again when that has ended"));
        }
        self.say(format_args!("{node} is to be the primary"));
        Ok(())
    }

    /// Waits until the node has received and replayed what counts as acknowledged.
    pub(super) async fn catch_up(&self, node: &str, target: &Target) -> Result<(), Failure> {
        let began = Instant::now();
        let mut led = false;
        let mut last: Result<ServerState, String>;
        loop {
            last = self.parts.look(node).await;
            match &last {
                Ok(state) if !state.standby => {
                    // Somebody was faster; whether with everything, the promotion's own check will not tell.
                    return Err(Failure::runtime(format!("{node} has been promoted by somebody else"))
                        .advise("run it again to have relays and replicas follow"));
                }
                Ok(state) if target.reached(state) => {
                    self.say(format_args!(
                        "{node} has replayed {}, and {} were needed",
                        state.replayed, target.replayed
                    ));
                    return Ok(());
                }
                Ok(state) => {
                    if let (false, Some((relay, address))) = (led, &target.relay) {
                        led = true;
                        self.lead_to(node, state, relay, address).await?;
                    }
                }
                Err(_) => {}
            }
            if began.elapsed() > self.limit() {
                break;
            }
            tokio::time::sleep(PACE).await;
        }
        let stands = match last {
            Ok(state) => format!("it has replayed {} of timeline {}", state.replayed, state.timeline),
            Err(why) => why,
        };
        Err(Failure::runtime(format!(
            "{node} did not replay {} of timeline {} within {:?}: {stands}",
            target.replayed,
            target.timeline,
            self.limit()
        ))
        .advise("look at its log: it may not reach the relay, or have a conflict with queries; then run it again"))
    }

    /// Has a standby receive from there, unless it does.
    async fn lead_to(&self, node: &str, state: &ServerState, to: &str, address: &str) -> Result<(), Failure> {
        let Some(conninfo) = &state.conninfo else {
            self.say(format_args!(
                "{node} has no primary_conninfo that can be read: it has to receive from {to} by itself"
            ));
            return Ok(());
        };
        let Some((host, port)) = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)))
        else {
            return Ok(());
        };
        if let Some((old_host, old_port)) = conninfo::endpoint(conninfo)
            && same(&format!("{old_host}:{old_port}"), address).await
        {
            return Ok(());
        }
        let Some(changed) = conninfo::with_endpoint(conninfo, host.trim_matches(['[', ']']), port) else {
            self.say(format_args!("{node}'s primary_conninfo is not of keywords: set it to {address} by hand"));
            return Ok(());
        };
        let set = format!("ALTER SYSTEM SET primary_conninfo = '{}'", changed.replace('\'', "''"));
        let result = self.parts.run(node, &[&set, "SELECT pg_reload_conf()"]).await;
        result.map_err(|why| Failure::runtime(format!("cannot have {node} receive from {to}: {why}")))?;
        let began = Instant::now();
        loop {
            let now = self.parts.look(node).await.ok().and_then(|state| state.conninfo);
            if now.as_deref() == Some(changed.as_str()) {
                self.say(format_args!("{node} receives from {to} ({address}) from now on"));
                return Ok(());
            }
            if began.elapsed() > Duration::from_secs(5) {
                self.say(format_args!(
                    "{node} keeps another primary_conninfo, perhaps from its command line: have it receive from {address} by hand"
                ));
                return Ok(());
            }
            tokio::time::sleep(PACE).await;
        }
    }

    /// The point of no return. Gives the new timeline.
    pub(super) async fn promote(
        &self,
        node: &str,
        fenced: Option<&Fenced>,
        guard: &impl Guard,
    ) -> Result<u32, Failure> {
        if let Some(fenced) = fenced {
            let needed = plan::needed(self.parts.relay_count(), self.config.failover.acknowledgements);
            let each = fenced.relays.iter().map(|(relay, _)| self.parts.order(&relay.name, Order::Look));
            let ours = join_all(each).await;
            let ours = ours.iter().filter(|answer| answer.as_ref().is_ok_and(|now| now.term == fenced.term)).count();
            if ours < needed {
                return Err(Failure::runtime(format!(
                    "only {ours} relays still stand by term {}, and {needed} are needed: another failover was begun, or \
                     relays were lost",
                    fenced.term
                ))
                .advise("run it again"));
            }
        }
        guard.allows().await.map_err(|why| Failure::runtime(format!("{node} is not promoted: {why}")))?;
        let promote = format!("SELECT pg_promote(true, {})", self.limit().as_secs().max(1));
        match self.parts.run(node, &[&promote]).await {
            Ok(Some(done)) if done == "t" => {}
            // Whatever became of it, it is looked at below.
            other => self.say(format_args!("promoting {node} gave {other:?}")),
        }
        let began = Instant::now();
        loop {
            match self.parts.look(node).await {
                Ok(state) if !state.standby => {
                    self.say(format_args!("promoted {node}: it writes timeline {}", state.timeline));
                    return Ok(state.timeline);
                }
                other if began.elapsed() > self.limit() => {
                    let why = other.err().unwrap_or_else(|| "it is in recovery".into());
                    return Err(Failure::runtime(format!("cannot tell that {node} was promoted: {why}"))
                        .advise("run it again: it goes on with the same node"));
                }
                _ => tokio::time::sleep(PACE).await,
            }
        }
    }

    /// Waits until the relays take from the new primary: with them as synchronous standbys, commits end only then.
    pub(super) async fn relays_follow(&self, node: &str, timeline: u32) -> Result<(), Failure> {
        let address = self.address(node);
        let mut waiting: Vec<String> = self.config.failover.relays.iter().map(|relay| relay.name.clone()).collect();
        let needed = self.config.failover.acknowledgements.min(waiting.len());
        let (mut following, mut told) = (0, Vec::new());
        let mut last = Vec::new();
        let began = Instant::now();
        while !waiting.is_empty() {
            last.clear();
            let each =
                waiting.iter().map(|relay| async { (relay.clone(), self.parts.order(relay, Order::Look).await) });
            for (relay, answer) in join_all(each).await {
                match answer {
                    Ok(standing) if standing.timeline >= timeline && standing.state == "streaming" => {
                        self.say(format_args!("{relay} follows on timeline {timeline}"));
                        waiting.retain(|waits| *waits != relay);
                        following += 1;
                    }
                    Ok(standing) => {
                        // One that watches the cluster finds the primary by itself, sooner or later.
                        let late = began.elapsed() > Duration::from_secs(3);
                        if (standing.named || late)
                            && !told.contains(&relay)
                            && !same(&standing.upstream, &address).await
                        {
                            told.push(relay.clone());
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
            let patience = if following >= needed { Duration::from_secs(2) } else { self.limit() };
            if began.elapsed() > patience {
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
            "{node} is the primary, but only {following} relays follow it, and {needed} are needed for commits to end\n{}",
            last.join("\n")
        ))
        .advise("look at the relays' logs; run it again to have them follow"))
    }

    /// Has every other standby that received from a server receive from the new primary, and waits for all to be on its timeline.
    /// Standbys that do not come along are named, and no reason to fail.
    pub(super) async fn replicas_follow(&self, node: &str, timeline: u32) {
        let address = self.address(node);
        let survey = self.parts.survey().await;
        let mut waiting = Vec::new();
        for (server, state) in survey.answering().filter(|(server, state)| state.standby && server.name != node) {
            let from = state.conninfo.as_deref().and_then(conninfo::endpoint);
            let mut leads_to_server = false;
            if let Some((host, port)) = from {
                for other in self.parts.nodes() {
                    leads_to_server |= same(&format!("{host}:{port}"), &other.address).await;
                }
            }
            if leads_to_server && let Err(failure) = self.lead_to(&server.name, state, node, &address).await {
                self.say(failure);
            }
            waiting.push(server.name.clone());
        }
        let began = Instant::now();
        while !waiting.is_empty() && began.elapsed() < self.limit().min(Duration::from_secs(15)) {
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

    /// What becomes of former primaries: by the configured program, or in words.
    pub(super) async fn rejoin(&self, node: &str, olds: &[String]) {
        let upstream = match self.config.failover.relays.first() {
            Some(relay) => relay.address.clone(),
            None => self.address(node),
        };
        for old in olds {
            let hook = Hook {
                program: &self.config.failover.rejoin,
                node: old,
                address: &self.address(old),
                primary: Some((node, &self.address(node))),
                upstream: Some(&upstream),
            };
            if self.config.failover.rejoin.is_empty() {
                self.say(format_args!(
                    "{old} is not the primary any more, and gets neither reads nor writes. To bring it back:"
                ));
                let (primary_host, primary_port) = split(&self.address(node));
                let (host, port) = split(&upstream);
                out::line(format_args!(
                    "            stop it; pg_rewind --target-pgdata=ITS_DATA --source-server='host={primary_host} \
                     port={primary_port} user={} dbname=postgres'\n            (after a clean stop that nothing was written \
                     behind, or with a new pg_basebackup, this is not needed)\n            touch ITS_DATA/standby.signal; \
                     primary_conninfo = 'host={host} port={port} …'; start it",
                    self.config.failover.user
                ));
            } else {
                match hooks::run(&hook, self.limit() * 5).await {
                    Ok(()) => self.say(format_args!("{old} was brought back as a standby")),
                    Err(why) => self.say(format_args!("{old} is not back: {why}")),
                }
            }
        }
    }

    /// Configured address of a node.
    pub(super) fn address(&self, node: &str) -> String {
        self.parts
            .nodes()
            .iter()
            .find(|known| known.name == node)
            .map(|known| known.address.clone())
            .unwrap_or_default()
    }
}

fn split(address: &str) -> (String, String) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "5432"));
    (host.trim_matches(['[', ']']).to_owned(), port.to_owned())
}

/// Whether two addresses lead to the same place: the same text, or a common resolved address.
pub(super) async fn same(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let resolve = async |address: &str| -> Vec<std::net::SocketAddr> {
        let found = tokio::time::timeout(Duration::from_secs(2), tokio::net::lookup_host(address)).await;
        found.ok().and_then(Result::ok).map(Iterator::collect).unwrap_or_default()
    };
    let (one, other) = tokio::join!(resolve(one), resolve(other));
    one.iter().any(|address| other.contains(address))
}
