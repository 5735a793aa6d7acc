//! `kingpost failover` and `switchover`: promotion of another primary, without loss of acknowledged commits.
//!
//! ```text
//!  survey (servers, relays) ─▶ plan (pure): checked before anything is changed ─▶ fence the relays in a term ─▶ candidates catch up
//!  from the relay that has most ─▶ the first that has everything is elected, durably ─▶ promoted ─▶ proxies, relays, standbys follow
//!  ─▶ the old primary: rejoin, or what to do
//!
//!  switchover: proxies pause ─▶ the primary stops cleanly, or is locked ─▶ as above; the proxies resume at the new primary
//! ```
//!
//! All state is on the relays (term, fence, election) and the servers themselves (the note, the lock): this process stores nothing, and after it was
//! killed, the next run continues where it stopped.

mod abort;
mod acknowledge;
mod args;
mod ballot;
mod binlog_servers;
mod cluster_clients;
mod cluster_monitor;
pub mod conninfo;
pub mod drain;
mod elect;
mod elector;
mod engine;
mod etcd;
mod failover_run;
mod follow;
mod held;
mod hooks;
mod judge;
mod leftovers;
mod lock;
#[cfg(test)]
mod model;
mod note;
pub mod observe;
mod pause;
mod plan;
mod postgresql;
mod rejoin;
mod replace_primary;
mod report;
mod scale;
mod session;
mod suspend_aware_clock;
mod switchover;
mod sync_names;
mod watch;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind};

use args::WhichConfig;
pub use args::{FailoverArgs, ScaleArgs, SwitchoverArgs, WatchArgs};
use config::{Config, load, warn};
use etcd::Etcd;
use failover_run::{FailoverRun, NoGuard};
use leftovers::Leftover;
use plan::{Locked, ProxySeen, ProxyState, Situation, Survey};
use process::{Failure, INTERRUPTED, LogConfig, LogFlags, StopSignals, control_runtime, listen_for, logging, terminal};
use replace_primary::replace_primary;

/// Time between two surveys that wait for something.
const BETWEEN_SURVEYS: Duration = Duration::from_millis(50);

/// Promotes a standby to replace a lost primary.
pub fn failover(args: &FailoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let config = read(&args.config, log)?;
    if let Some(dialect) = config.failover.engine.dialect() {
        return binlog_servers::failover(config, dialect, args);
    }
    let mut steps = FailoverRun::new(config)?;
    (steps.force, steps.accept_loss, steps.stop) = (args.force, args.accept_loss, args.stop.clone());
    run(async {
        if args.abort {
            return steps.abort().await;
        }
        let (survey, proxies) = seen(&steps).await;
        if !args.dry_run && !args.force && steps.mended(&survey, &proxies).await? {
            return Ok(());
        }
        replace_primary(&steps, &survey, args.to.as_deref(), args.dry_run, &NoGuard).await
    })
}

/// Makes another server the primary, as planned: clients wait, and none gets an error.
pub fn switchover(args: &SwitchoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let config = read(&args.config, log)?;
    if let Some(dialect) = config.failover.engine.dialect() {
        return binlog_servers::switchover(config, dialect, args);
    }
    let mut steps = FailoverRun::new(config)?;
    steps.stop = args.stop.clone();
    drive(async {
        let mut stop = Ends::new()?;
        let (survey, _) = seen(&steps).await;
        switchover::run(&steps, &survey, args.to.as_deref(), args.dry_run, &mut stop).await
    })
}

/// Detects the loss of the primary, and reports it or replaces the primary.
pub fn watch(args: &WatchArgs, log: &LogFlags) -> Result<(), Failure> {
    if let Some(parent) = args.with_process {
        process::server::end_with_parent(parent)?;
    }
    let config = read(&args.config, log)?;
    if let Some(dialect) = config.failover.engine.dialect() {
        return binlog_servers::watch(config, dialect, args);
    }
    let mut steps = FailoverRun::new(config)?;
    steps.stop = args.stop.clone();
    drive(async {
        let mut stop = Ends::new()?;
        watch::watch(steps, args, &mut stop).await
    })
}

/// Adds and removes replicas by their load.
pub fn scale(args: &ScaleArgs, log: &LogFlags) -> Result<(), Failure> {
    let config = read(&WhichConfig { config: Some(args.config.clone()) }, log)?;
    drive(async {
        let mut stop = Ends::new()?;
        scale::run(config, args, &mut stop).await
    })
}

/// Checks that every host in `[failover]` agrees with the configuration, and changes nothing.
pub fn check(config: Config) -> Result<(), Failure> {
    if let Some(dialect) = config.failover.engine.dialect() {
        return binlog_servers::check(config, dialect);
    }
    let steps = FailoverRun::new(config)?;
    drive(async {
        let (survey, proxies) = seen(&steps).await;
        let counted = steps.config.failover.acknowledgements;
        let mut found = survey.disagreements(counted);
        found.extend(acknowledge::gates(&proxies, counted));
        let mut lines: Vec<String> = found.iter().map(|found| format!("  {found}")).collect();
        if !steps.config.failover.etcd.endpoints.is_empty() {
            let etcd = Etcd::new(&steps.config.failover.etcd, "")?;
            if let Err(why) = etcd.check(&watch::lock_key(&steps.config)).await {
                lines.push(format!("  {why}"));
            }
        }
        lines.extend(
            survey
                .servers
                .iter()
                .filter_map(|server| Some(format!("  {}: {}", server.name, server.state.as_ref().err()?))),
        );
        lines.extend(
            survey
                .relays
                .iter()
                .filter_map(|relay| Some(format!("  {}: {}", relay.name, relay.standing.as_ref().err()?))),
        );
        if lines.is_empty() {
            return Ok(());
        }
        Err(Failure::config(format!("not everything agrees with the configuration\n{}", lines.join("\n"))))
    })
}

/// Shows the state of all hosts, and what an interrupted run has left.
pub fn status(path: &Path) -> Result<(), Failure> {
    let (config, _) = load(path)?.accept(path)?;
    let steps = FailoverRun::new(auth::filled(&config)?)?;
    drive(async {
        let (survey, proxies) = seen(&steps).await;
        let situation = survey.situation().map_err(|error| Failure::runtime(error.to_string()))?;
        let found = leftovers::leftovers(&survey, &proxies, &situation);
        for left in &found {
            terminal::line(format_args!("left by an interrupted run: {left}"));
        }
        match situation {
            Situation::Healthy { primary, .. } if found.is_empty() => {
                terminal::line(format_args!("{primary} is the primary"));
                Ok(())
            }
            Situation::Healthy { primary, .. } => Err(Failure::runtime(format!("{primary} is the primary, and not all is well"))
                .advise("`kingpost failover --abort` takes back what an interrupted run has left")),
            Situation::NoPrimary { .. } => {
                Err(Failure::runtime("no primary answers").advise("`kingpost failover` replaces it"))
            }
            Situation::Fenced { old, .. } => Err(Failure::runtime(format!(
                "{old} is the primary, and the relays are fenced: nothing is acknowledged, because a failover away from it was begun"
            ))
            .advise("`kingpost failover` goes on, `kingpost failover --abort` lets it be the primary")),
            Situation::Promoted { primary, .. } => Err(Failure::runtime(format!(
                "{primary} was promoted, and relays do not follow it yet"
            ))
            .advise("`kingpost failover` has them follow")),
        }
    })
}

/// Signals that end a run: SIGINT, SIGTERM, or SIGHUP when its terminal is gone.
struct Ends {
    stop: StopSignals,
    hangup: Signal,
}

impl Ends {
    fn new() -> Result<Ends, Failure> {
        Ok(Ends { stop: StopSignals::new()?, hangup: listen_for(SignalKind::hangup())? })
    }

    /// Waits for a signal, and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            name = self.stop.next() => name,
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

impl FailoverRun {
    /// Reverts what an interrupted run has left on a healthy cluster; returns true if there was something.
    ///
    /// # Errors
    /// The leftover ends by itself, and may belong to a run in progress; or it could not be removed.
    async fn mended(&self, survey: &Survey, proxies: &[ProxySeen]) -> Result<bool, Failure> {
        let situation = survey.situation().map_err(|error| Failure::runtime(error.to_string()))?;
        let found = leftovers::leftovers(survey, proxies, &situation);
        let lines: Vec<String> = found.iter().map(|left| format!("  {left}")).collect();
        if found.iter().any(Leftover::ends_by_itself) {
            return Err(Failure::runtime(format!(
                "a switchover is under way, or was interrupted a moment ago\n{}",
                lines.join("\n")
            ))
            .advise("what it holds ends by itself within 20 s; `kingpost failover --abort` takes it back at once"));
        }
        for line in &lines {
            self.say(format_args!("left by an interrupted run: {}", line.trim()));
        }
        if !found.iter().any(Leftover::can_be_taken_back) {
            return Ok(false);
        }
        self.abort().await.map(|()| true)
    }
}

/// Runs `work` on its own threads, and ends when `work` does, without waiting for threads that still wait for a lost host.
fn drive(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = control_runtime()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// Surveys until a survey is good enough; returns the last one, also after the time limit.
async fn survey_until<S>(limit: Duration, survey: impl AsyncFn() -> S, is_enough: impl Fn(&S) -> bool) -> S {
    let began = Instant::now();
    loop {
        let found = survey().await;
        if is_enough(&found) || began.elapsed() > limit {
            return found;
        }
        tokio::time::sleep(BETWEEN_SURVEYS).await;
    }
}

/// Runs `work` to its end; a signal ends it anywhere, and the next run continues from there.
fn run(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    drive(async {
        let mut stop = Ends::new()?;
        tokio::select! {
            result = work => result,
            name = stop.next() => {
                terminal::note(format_args!("kingpost: ended by {name}; run it again to go on from here"));
                std::process::exit(INTERRUPTED);
            }
        }
    })
}

fn read(which: &WhichConfig, log: &LogFlags) -> Result<Config, Failure> {
    let path = which.config.clone().unwrap_or_else(|| PathBuf::from("./.kingpost/kingpost.toml"));
    let (config, warnings) = load(&path)?.accept(&path)?;
    logging::start(&log.over(&LogConfig { level: "warn".into(), ..LogConfig::default() }), None)?;
    warn(&warnings);
    auth::filled(&config)
}

/// Surveys all hosts, and prints the result.
async fn seen(steps: &FailoverRun) -> (Survey, Vec<ProxySeen>) {
    let (survey, proxies) = tokio::join!(steps.clients.survey(), steps.clients.proxies());
    show(&survey, &proxies);
    (survey, proxies)
}

/// Prints the survey, one line per host.
fn show(survey: &Survey, proxies: &[ProxySeen]) {
    for server in &survey.servers {
        let text = match &server.state {
            Err(why) => format!("does not answer: {why}"),
            Ok(state) => {
                let role = match (state.standby, state.receiving) {
                    (false, _) => "writes",
                    (true, true) => "standby",
                    (true, false) => "standby, receives nothing",
                };
                let foreign = if Some(state.system) == survey.system() { "" } else { ", of another cluster" };
                let locked = match state.locked {
                    Locked::No => "",
                    Locked::ByLease => ", locked by a lease",
                    Locked::ForGood => ", locked",
                };
                format!(
                    "{role}, timeline {}, has {}, replayed {}{locked}{foreign}",
                    state.timeline, state.has, state.replayed
                )
            }
        };
        terminal::line(format_args!("{:<12} {:<22} {text}", server.name, server.address));
    }
    for relay in &survey.relays {
        let text = match &relay.standing {
            Err(why) => format!("does not answer: {why}"),
            Ok(standing) => {
                let fence = standing.fenced.map(|at| format!(", fenced at timeline {at}")).unwrap_or_default();
                let chosen = standing.chosen.as_ref().map(|(_, node)| format!(", {node} elected")).unwrap_or_default();
                format!(
                    "relay, timeline {}, has {}, term {}{fence}{chosen}: {}",
                    standing.timeline, standing.flushed, standing.term, standing.state
                )
            }
        };
        terminal::line(format_args!("{:<12} {:<22} {text}", relay.name, relay.address));
    }
    for proxy in proxies {
        let text = match &proxy.state {
            Err(why) => format!("does not answer: {why}"),
            Ok(ProxyState { paused: false, .. }) => "proxy".into(),
            Ok(ProxyState { lease: Some(left), .. }) => format!("proxy, paused for another {left:?}"),
            Ok(ProxyState { lease: None, .. }) => "proxy, paused by an operator".into(),
        };
        terminal::line(format_args!("{:<12} {:<22} {text}", proxy.name, proxy.address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_though_one_of_its_threads_waits_for_a_silent_host() {
        let (host, answer) = std::sync::mpsc::channel::<()>();
        let ended = drive(async move {
            let waits = tokio::task::spawn_blocking(move || answer.recv());
            drop(waits);
            Ok(())
        });
        assert!(ended.is_ok());
        // Only now.
        drop(host);
    }
}
