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
mod watch;

use std::path::PathBuf;

use crate::cli::{FailoverArgs, SwitchoverArgs, WatchArgs, WhichConfig};
use crate::config::{LogConfig, LogFlags, load};
use crate::error::Failure;
use crate::serve::{INTERRUPTED, StopSignals, control_runtime, warn};
use crate::{logging, out};
use away::away;
use plan::Survey;
use steps::{NoGuard, Steps};

/// Makes a standby the primary in place of one that is lost.
pub(crate) fn failover(args: &FailoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut steps = prepare(&args.config, log)?;
    (steps.force, steps.accept_loss, steps.stop) = (args.force, args.accept_loss, args.stop.clone());
    run(async {
        if args.abort {
            return steps.abort().await;
        }
        let survey = steps.parts.survey().await;
        show(&survey);
        away(&steps, &survey, args.to.as_deref(), args.dry_run, &NoGuard).await
    })
}

/// Makes another server the primary, as planned: clients wait, and none gets an error.
pub(crate) fn switchover(args: &SwitchoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut steps = prepare(&args.config, log)?;
    steps.stop = args.stop.clone();
    control_runtime()?.block_on(async {
        let mut stop = StopSignals::new()?;
        let survey = steps.parts.survey().await;
        show(&survey);
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

/// What was found, a line each.
fn show(survey: &Survey) {
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
                format!("{role}, timeline {}, has {}, replayed {}{foreign}", state.timeline, state.has, state.replayed)
            }
        };
        out::line(format_args!("{:<12} {:<22} {text}", server.name, server.address));
    }
    for relay in &survey.relays {
        let text = match &relay.standing {
            Err(why) => format!("does not answer: {why}"),
            Ok(standing) => {
                let fence = standing.fenced.map(|at| format!(", fenced at timeline {at}")).unwrap_or_default();
                let chosen = standing.chosen.as_ref().map(|(_, node)| format!(", for {node}")).unwrap_or_default();
                format!(
                    "relay, timeline {}, has {}, term {}{fence}{chosen}: {}",
                    standing.timeline, standing.flushed, standing.term, standing.state
                )
            }
        };
        out::line(format_args!("{:<12} {:<22} {text}", relay.name, relay.address));
    }
}
