//! `kingpost scale`: adds and removes replicas by their load, through a program of the user.
//!
//! ```text
//!  registry (list, record), servers ─▶ Seen, Window ─▶ decide (pure) ─▶ Action ─▶ program, registry, slots
//! ```
//!
//! The registry has the lock and the record of the order under way, so that a scaler goes on where another one was killed.

mod decide;
#[cfg(test)]
mod decide_tests;
mod report;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use config::Config;
use futures_util::future::join_all;
use metrics::{Admin, Pushing};
use process::{Failure, terminal};
use registry_client::Member;

use super::Ends;
use super::args::ScaleArgs;
use super::drain::Drain;
use super::elector::Elector;
use super::held::{Held, SHORTEST};
use super::hooks::{self, Hook};
use super::observe::{Observer, Peer, PeerState};
use super::session::Sessions;
use super::watch::host;
use decide::{Action, Answer, Decision, Record, Seen, Stage, decide, load};
use report::Report;
use window::Window;

/// Pause before the next attempt to take the lock.
const TAKEN: Duration = Duration::from_secs(1);

/// A scaler.
struct Scaler<'a> {
    config: Config,
    member: Member,
    elector: Elector,
    lock: String,
    ttl: Duration,
    observer: Observer,
    window: Window,
    /// Lock, record and its index in the registry, while this scaler is the one that acts.
    held: Option<Holding>,
    /// Wait for clients to leave a server.
    drain: Option<(String, Drain)>,
    began: Instant,
    said: Option<String>,
    report: &'a Report,
}

struct Holding {
    lock: Held,
    record: Record,
    index: u64,
}

/// Scales until a signal; with `--dry-run` looks once.
pub(super) async fn run(config: Config, args: &ScaleArgs, stop: &mut Ends) -> Result<(), Failure> {
    if config.cluster.from.urls.is_empty() || config.scale.add.is_empty() || config.scale.remove.is_empty() {
        return Err(Failure::config("there is no server to add or remove")
            .advise("set scale.add, scale.remove, and cluster.from.urls, whose registry lists the servers"));
    }
    if args.ttl < SHORTEST {
        return Err(Failure::config(format!("--ttl is {:?}: expected at least {SHORTEST:?}", args.ttl)));
    }
    let from = &config.cluster.from;
    let urls = from.urls.iter().map(String::as_str);
    let report = Arc::new(Report::new(config.scale.interval));
    let mut scaler = Scaler {
        member: Member::new(from)?,
        elector: Elector::Registry(Sessions::new(urls, from.token.clone(), from.ca_file.as_deref())?),
        lock: format!("/{}/lock", key(&config)),
        ttl: args.ttl,
        observer: Observer::new(&config)?,
        window: Window::new(config.scale.window),
        held: None,
        drain: None,
        began: Instant::now(),
        said: None,
        report: &report,
        config,
    };
    if args.dry_run {
        return scaler.dry_run().await;
    }
    let _admin = match &*scaler.config.scale.metrics_listen {
        "" => None,
        address => {
            scaler.config.metrics.permits("scale.metrics_listen", address)?;
            Some(Admin::start(address, None, Arc::clone(&report)).await?)
        }
    };
    let pushing = Pushing::start(&scaler.config.metrics.otlp, Arc::clone(&report))?;
    let signal = loop {
        tokio::select! {
            pause = scaler.turn() => tokio::select! {
                () = tokio::time::sleep(pause) => {}
                signal = stop.next() => break signal,
            },
            signal = stop.next() => break signal,
        }
    };
    // A program that runs is killed: the order stays in the registry, and the next scaler goes on with it.
    if let Some(held) = scaler.held.take() {
        held.lock.give_back().await;
    }
    if let Some(pushing) = &pushing {
        pushing.flush().await;
    }
    scaler.say(format!("ended by {signal}"));
    Ok(())
}

impl Scaler<'_> {
    fn say(&mut self, text: String) {
        if self.said.as_ref() != Some(&text) {
            terminal::line(format_args!("{:6.1} s  {text}", self.began.elapsed().as_secs_f32()));
            self.said = Some(text);
        }
    }

    /// Takes the lock, or looks and acts once; returns the pause until the next turn.
    async fn turn(&mut self) -> Duration {
        let turned = match self.take_lock().await {
            Ok(true) => self.look_and_act().await,
            Ok(false) => {
                self.report.looked(false, &[], None, None);
                self.say("another scaler has the lock".into());
                return TAKEN;
            }
            Err(failure) => Err(failure),
        };
        match turned {
            Ok(true) => Duration::ZERO,
            Ok(false) => self.config.scale.interval,
            Err(failure) => {
                self.report.failed();
                self.say(format!("failed: {failure}"));
                self.config.scale.interval
            }
        }
    }

    /// Takes the lock and reads the record, unless it is held already; returns false if somebody else has it.
    async fn take_lock(&mut self) -> Result<bool, Failure> {
        if let Some(held) = &self.held {
            match held.lock.is_ours() {
                Ok(()) => return Ok(true),
                Err(why) => self.say(why),
            }
        }
        (self.held, self.drain) = (None, None);
        self.window.forget();
        let owner = format!("{}:{}", host(), std::process::id());
        let lock = Held::take(&self.elector, &self.lock, &owner, self.ttl).await;
        let Some(lock) = lock.map_err(|why| Failure::runtime(format!("cannot take the lock: {why}")))? else {
            return Ok(false);
        };
        let (record, index) = self.read_record().await?;
        if let Some(order) = &record.order {
            self.say(format!("an order was under way: {} is {}", order.node, word(order.stage)));
        }
        self.held = Some(Holding { lock, record, index });
        self.say("this scaler has the lock".into());
        Ok(true)
    }

    async fn read_record(&self) -> Result<(Record, u64), Failure> {
        let Some(stored) = self.member.stored(&record_key(&self.config)).await? else {
            return Ok((Record::default(), 0));
        };
        let record: Record = serde_json::from_value(stored.value).map_err(|error| {
            Failure::runtime(format!(
                "the registry's key {} is no record of a scaler: {error}",
                record_key(&self.config)
            ))
            .advise("remove the key, if no other program needs it: cool-downs begin anew")
        })?;
        Ok((record.not_after(now()), stored.index))
    }

    /// Changes the record, in the registry first; only the holder of the lock can, and only if nobody else has changed it.
    async fn write(&mut self, change: impl FnOnce(&mut Record)) -> Result<(), Failure> {
        let key = record_key(&self.config);
        let Some(held) = &mut self.held else { return Err(Failure::runtime("the lock was lost")) };
        held.lock.is_ours().map_err(Failure::runtime)?;
        let mut record = held.record.clone();
        change(&mut record);
        let value = serde_json::to_value(&record)
            .map_err(|error| Failure::runtime(format!("cannot write the record of the scaler: {error}")))?;
        let written = self.member.store(&key, held.index, &value).await?;
        let stored = self.member.stored(&key).await?;
        match stored.filter(|stored| written && stored.value == value) {
            Some(stored) => {
                (held.record, held.index) = (record, stored.index);
                Ok(())
            }
            None => {
                self.held = None;
                Err(Failure::runtime(format!("another scaler has written the registry's key {key}")))
            }
        }
    }

    /// Looks, decides and acts; returns true if the next look is to follow at once.
    async fn look_and_act(&mut self) -> Result<bool, Failure> {
        let seen = self.look().await?;
        let since = self.began.elapsed();
        self.window.see(load(&seen, self.config.scale.lag_bytes), since);
        let drained = self.drained(&seen).await;
        let Some(held) = &self.held else { return Ok(true) };
        let average = self.window.average(since);
        let decision = decide(&self.config.scale, &seen, average, &held.record, drained, now());
        self.report.looked(true, &seen, average, Some(&decision));
        if decision.action == Action::Wait {
            self.say(waits(&decision, held.record.order.as_ref().map(|order| order.node.as_str())));
            return Ok(false);
        }
        self.act(&decision, &seen).await?;
        // The registry may show it a moment later.
        Ok(!matches!(decision.action, Action::Isolate { .. }))
    }

    /// Asks the registry for the servers, and the servers for their state.
    async fn look(&mut self) -> Result<Vec<Seen>, Failure> {
        let listed = self.member.listed().await?;
        let nodes: Vec<_> = listed.iter().map(|listed| listed.node.clone()).collect();
        if nodes != self.config.cluster.nodes {
            self.config.cluster.nodes = nodes;
            self.observer = Observer::new(&self.config)?;
        }
        let observed = self.observer.observe().await;
        let is_primary = |peer: &&Peer| peer.state.as_ref().is_ok_and(|state| !state.standby);
        let primary = observed.servers.iter().find(is_primary).and_then(|peer| peer.state.clone().ok());
        let answers = observed.servers.iter().map(|peer| answer(&self.observer, peer, primary.as_ref()));
        let answers = join_all(answers).await;
        let seen = listed.into_iter().zip(answers).map(|(listed, answer)| Seen {
            name: listed.node.name,
            address: listed.node.address,
            isolated: listed.isolated,
            weightless: listed.node.weight == 0,
            answer,
        });
        Ok(seen.collect())
    }

    /// True once the clients of the server that is drained have left, or have had time to.
    async fn drained(&mut self, seen: &[Seen]) -> bool {
        let order = self.held.as_ref().and_then(|held| held.record.order.as_ref());
        let Some(order) = order.filter(|order| order.stage == Stage::Draining) else {
            self.drain = None;
            return false;
        };
        // Clients leave only after the proxies have been told.
        if !seen.iter().any(|server| server.name == order.node && server.isolated) {
            return false;
        }
        let now = self.began.elapsed();
        let mut drain = match &self.drain {
            Some((node, drain)) if *node == order.node => *drain,
            _ => Drain::begin(now),
        };
        drain.see(self.observer.client_sessions(&order.node).await.ok(), now);
        self.drain = Some((order.node.clone(), drain));
        drain.is_over(self.config.scale.drain, now)
    }

    async fn act(&mut self, Decision { action, why }: &Decision, seen: &[Seen]) -> Result<(), Failure> {
        let listed = |node: &str| seen.iter().any(|server| server.name == node);
        match action {
            Action::Wait => {}
            Action::Add { node } => {
                self.say(format!("{node} is added: {why}"));
                self.write(|record| record.take(action, why, now())).await?;
            }
            Action::RunAdd { node } => self.command(true, node, "", seen.len() + 1, seen).await?,
            Action::Joined { node } => {
                self.write(|record| record.take(action, why, now())).await?;
                self.window.forget();
                self.say(format!("{node} serves"));
            }
            Action::GiveUp { node, .. } => {
                self.report.failed();
                self.say(format!("{node} is given up: {why}"));
                self.write(|record| record.take(action, why, now())).await?;
            }
            Action::Drain { node, .. } => {
                self.say(format!("{node} is to be removed: {why}"));
                self.write(|record| record.take(action, why, now())).await?;
            }
            Action::Isolate { node } => self.member.isolate(node, true).await?,
            Action::Keep { node } => {
                if listed(node) {
                    self.member.isolate(node, false).await?;
                }
                self.write(|record| record.take(action, why, now())).await?;
                self.window.forget();
                self.say(format!("{node} stays: {why}"));
            }
            Action::Remove { node, .. } => {
                self.say(format!("{node} is removed: {why}"));
                self.write(|record| record.take(action, why, now())).await?;
            }
            Action::RunRemove { node, address } => {
                let servers = seen.len() - usize::from(listed(node));
                self.command(false, node, address, servers, seen).await?;
            }
            Action::Forget { node } => {
                self.member.deregister(node).await?;
                let left = self.observer.leave(node).await;
                // The server itself does not answer.
                let left: Vec<_> = left.iter().filter(|left| !left.starts_with(&format!("{node}: "))).collect();
                if !left.is_empty() {
                    tracing::warn!("slots of {node} may be left: {left:?}: `kingpost node --leave` removes them");
                }
                self.write(|record| record.take(action, why, now())).await?;
                self.window.forget();
                self.say(format!("{node} is gone"));
            }
        }
        Ok(())
    }

    /// Runs the program that adds or removes a server, and records its end.
    async fn command(
        &mut self,
        adds: bool,
        node: &str,
        address: &str,
        servers: usize,
        seen: &[Seen],
    ) -> Result<(), Failure> {
        let scale = &self.config.scale;
        let reason = self.held.as_ref().and_then(|held| held.record.order.as_ref()).map(|order| order.reason.clone());
        let primary = seen.iter().find(|server| server.answer == Answer::Primary);
        let word = if adds { "add" } else { "remove" };
        let more = [
            ("KINGPOST_SCALE", word.to_owned()),
            ("KINGPOST_REASON", reason.unwrap_or_default()),
            ("KINGPOST_SERVERS", servers.to_string()),
        ];
        let hook = Hook {
            program: if adds { &scale.add } else { &scale.remove },
            node,
            address,
            primary: primary.map(|primary| (primary.name.as_str(), primary.address.as_str())),
            more: &more,
            withholds: true,
            ..Hook::default()
        };
        self.report.begins();
        let ended = hooks::run(&hook, scale.command_timeout).await;
        self.report.ends(ended.is_ok());
        let text = match &ended {
            Ok(output) if output.is_empty() => format!("scale.{word} has run for {node}"),
            Ok(output) => format!("scale.{word} has run for {node}: {output}"),
            Err(why) => format!("scale.{word} failed for {node}: {why}"),
        };
        self.say(text);
        self.write(|record| record.ended(ended.is_ok(), now())).await
    }

    /// Prints the servers and the decision, at the load of this moment.
    async fn dry_run(&mut self) -> Result<(), Failure> {
        let (record, _) = self.read_record().await?;
        let seen = self.look().await?;
        for server in &seen {
            let text = match server.answer {
                Answer::Missing => "does not answer".to_owned(),
                Answer::Primary => "primary".to_owned(),
                Answer::Standby { receiving, behind, busy } => format!(
                    "replica{}, {behind} bytes behind, {} busy sessions",
                    if receiving { "" } else { " that receives nothing" },
                    busy.map_or_else(|| "unknown".to_owned(), |busy| busy.to_string()),
                ),
            };
            let left = if server.isolated || server.weightless { ", left by proxies" } else { "" };
            terminal::line(format_args!("{:<16} {:<22} {text}{left}", server.name, server.address));
        }
        // Numbers of servers and sessions are small.
        let moment = load(&seen, self.config.scale.lag_bytes).map(|(busy, replicas)| busy as f64 / replicas as f64);
        let decision = decide(&self.config.scale, &seen, moment, &record, false, now());
        terminal::line(waits(&decision, record.order.as_ref().map(|order| order.node.as_str())));
        Ok(())
    }
}

/// Returns the answer of a server; a replica is asked for its load.
async fn answer(observer: &Observer, peer: &Peer, primary: Option<&PeerState>) -> Answer {
    let Ok(state) = &peer.state else { return Answer::Missing };
    if !state.standby {
        return Answer::Primary;
    }
    if primary.is_some_and(|primary| primary.system != state.system) {
        return Answer::Missing;
    }
    let busy = observer.busy_sessions(&peer.name).await;
    if let Err(why) = &busy {
        tracing::warn!(node = peer.name, why, "the load of a replica is not known");
    }
    Answer::Standby {
        receiving: state.receiving,
        behind: primary.map_or(0, |primary| primary.has.0.saturating_sub(state.replayed.0)),
        busy: busy.ok(),
    }
}

/// Returns the words for a decision.
fn waits(decision: &Decision, node: Option<&str>) -> String {
    let Decision { action, why } = decision;
    let about = node.map(|node| format!("{node}: ")).unwrap_or_default();
    match action {
        Action::Wait => format!("nothing to do: {about}{why}"),
        Action::Add { node } | Action::RunAdd { node } => format!("would add {node}: {why}"),
        Action::Drain { node, .. }
        | Action::Isolate { node }
        | Action::Remove { node, .. }
        | Action::RunRemove { node, .. }
        | Action::GiveUp { node, .. } => format!("would remove {node}: {why}"),
        Action::Joined { node } | Action::Keep { node } | Action::Forget { node } => {
            format!("would end the order about {node}: {why}")
        }
    }
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Adding => "being added",
        Stage::Draining => "being drained",
        Stage::Removing => "being removed",
    }
}

/// Returns the beginning of this scaler's keys in the registry.
fn key(config: &Config) -> String {
    format!("kingpost/scale/{}/{}", config.cluster.from.namespace, config.cluster.from.service)
}

fn record_key(config: &Config) -> String {
    format!("{}/record", key(config))
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
