//! `kingpost failover` and `switchover`: another primary, and nothing that was acknowledged is lost.
//!
//! ```text
//!  survey (servers, relays) ─▶ plan (pure): checked before anything is changed ─▶ fence the relays in a term ─▶ candidates catch up
//!  from the relay that has most ─▶ the first that has everything is elected, durably ─▶ promoted ─▶ proxies, relays, standbys follow
//!  ─▶ the old primary: rejoin, or what to do
//!
//!  switchover: proxies pause ─▶ the primary stops cleanly, or is locked ─▶ as above; the proxies resume at the new primary
//! ```
//!
//! What must be remembered is on the relays (term, fence, election) and the servers themselves (the note, the lock): this process keeps
//! nothing, and after it was killed, the next one goes on where it stopped.

mod abort;
mod acknowledge;
mod away;
pub(crate) mod config;
mod conninfo;
mod elect;
mod etcd;
mod follow;
mod held;
mod hooks;
mod judge;
mod lock;
mod note;
mod parts;
mod pause;
mod plan;
mod rejoin;
mod steps;
mod switchover;
mod sync_names;
mod watch;

use std::path::PathBuf;

use crate::cli::{FailoverArgs, SwitchoverArgs, WatchArgs, WhichConfig};
use crate::config::{Config, LogConfig, LogFlags, load};
use crate::error::Failure;
use crate::serve::{INTERRUPTED, StopSignals, control_runtime, warn};
use crate::{logging, out};
use away::away;
use plan::{ProxySeen, ProxyState, Survey};
use steps::{NoGuard, Steps};

/// Makes a standby the primary in place of one that is lost.
pub(crate) fn failover(args: &FailoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut steps = prepare(&args.config, log)?;
    (steps.force, steps.accept_loss, steps.stop) = (args.force, args.accept_loss, args.stop.clone());
    run(async {
        if args.abort {
            return steps.abort().await;
        }
        let (survey, _) = seen(&steps).await;
        away(&steps, &survey, args.to.as_deref(), args.dry_run, &NoGuard).await
    })
}

/// Makes another server the primary, as planned: clients wait, and none gets an error.
pub(crate) fn switchover(args: &SwitchoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut steps = prepare(&args.config, log)?;
    steps.stop = args.stop.clone();
    control_runtime()?.block_on(async {
        let mut stop = StopSignals::new()?;
        let (survey, _) = seen(&steps).await;
        switchover::run(&steps, &survey, args.to.as_deref(), args.dry_run, &mut stop).await
    })
}

/// Sees that the primary is lost, and says so, or replaces it.
pub(crate) fn watch(args: &WatchArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut steps = prepare(&args.config, log)?;
    steps.stop = args.stop.clone();
    control_runtime()?.block_on(async {
        let mut stop = StopSignals::new()?;
        watch::run(steps, args, &mut stop).await
    })
}

/// Asks everything that [failover] names whether it agrees with the configuration, and changes nothing.
pub(crate) fn check(config: Config) -> Result<(), Failure> {
    let steps = Steps::new(config)?;
    control_runtime()?.block_on(async {
        let (survey, proxies) = seen(&steps).await;
        let counted = steps.config.failover.acknowledgements;
        let mut found = survey.disagreements(counted);
        found.extend(acknowledge::gates(&proxies, counted));
        let mut lines: Vec<String> = found.iter().map(|found| format!("  {found}")).collect();
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

/// Runs to its end; a signal ends it wherever it is, and the next run goes on from there.
fn run(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    control_runtime()?.block_on(async {
        let mut stop = StopSignals::new()?;
        tokio::select! {
            result = work => result,
            name = stop.next() => {
                out::note(format_args!("kingpost: ended by {name}; run it again to go on from here"));
                std::process::exit(INTERRUPTED);
            }
        }
    })
}

fn prepare(which: &WhichConfig, log: &LogFlags) -> Result<Steps, Failure> {
    let path = which.config.clone().unwrap_or_else(|| PathBuf::from("./.kingpost/kingpost.toml"));
    let (config, warnings) = load(&path)?.accept(&path)?;
    logging::start(&log.over(&LogConfig { level: "warn".into(), ..LogConfig::default() }), None)?;
    warn(&warnings);
    Steps::new(config)
}

/// Looks at everything, and shows it.
async fn seen(steps: &Steps) -> (Survey, Vec<ProxySeen>) {
    let (survey, proxies) = tokio::join!(steps.parts.survey(), steps.parts.proxies());
    show(&survey, &proxies);
    (survey, proxies)
}

/// What was found, a line each.
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
                let locked = if state.locked { ", locked" } else { "" };
                format!(
                    "{role}, timeline {}, has {}, replayed {}{locked}{foreign}",
                    state.timeline, state.has, state.replayed
                )
            }
        };
        out::line(format_args!("{:<12} {:<22} {text}", server.name, server.address));
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
        out::line(format_args!("{:<12} {:<22} {text}", relay.name, relay.address));
    }
    for proxy in proxies {
        let text = match &proxy.state {
            Err(why) => format!("does not answer: {why}"),
            Ok(ProxyState { paused: false, .. }) => "proxy".into(),
            Ok(ProxyState { lease: Some(left), .. }) => format!("proxy, paused for another {left:?}"),
            Ok(ProxyState { lease: None, .. }) => "proxy, paused by an operator".into(),
        };
        out::line(format_args!("{:<12} {:<22} {text}", proxy.name, proxy.address));
    }
}
