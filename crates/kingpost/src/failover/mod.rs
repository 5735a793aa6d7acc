//! `kingpost failover` and `switchover`: another primary, and nothing that was acknowledged is lost.
//!
//! ```text
//!  survey (servers, relays) ─▶ plan (pure) ─▶ fence the relays for a term ─▶ choose a node, durably ─▶ it catches up from the
//!  relay that has most ─▶ promote ─▶ relays follow ─▶ replicas follow ─▶ the old primary: rejoin, or what to do
//!
//!  switchover: proxies pause ─▶ the primary stops cleanly, or is made read-only ─▶ as above ─▶ proxies resume
//! ```
//!
//! What must be remembered is on the relays (term, fence, choice) and the servers themselves: this process keeps nothing, and
//! after it was killed, the next one goes on where it stopped.

pub(crate) mod config;
mod conninfo;
mod etcd;
mod hooks;
mod lock;
mod parts;
mod pause;
mod plan;
mod steps;
mod switchover;
mod watch;

use std::path::PathBuf;
use std::time::Instant;

use ::relay::Order;

use crate::cli::{FailoverArgs, SwitchoverArgs, WatchArgs, WhichConfig};
use crate::config::{Config, LogConfig, LogFlags, load};
use crate::error::Failure;
use crate::serve::{INTERRUPTED, StopSignals, control_runtime, warn};
use crate::{logging, out};
use parts::Parts;
use plan::{Situation, Survey, Target};
use steps::{Guard, NoGuard, Steps};

/// Makes a standby the primary in place of one that is lost.
pub(crate) fn failover(args: &FailoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let mut steps = prepare(&args.config, log)?;
    (steps.force, steps.accept_loss) = (args.force, args.accept_loss);
    run(async {
        if args.abort {
            return abort(&steps).await;
        }
        let survey = steps.parts.survey().await;
        show(&survey);
        away(&steps, &survey, args.to.as_deref(), args.dry_run, &NoGuard).await
    })
}

/// Makes another server the primary, as planned: clients wait, and none gets an error.
pub(crate) fn switchover(args: &SwitchoverArgs, log: &LogFlags) -> Result<(), Failure> {
    let steps = prepare(&args.config, log)?;
    control_runtime()?.block_on(async {
        let mut stop = StopSignals::new()?;
        let survey = steps.parts.survey().await;
        show(&survey);
        switchover::run(&steps, &survey, args.to.as_deref(), args.dry_run, &mut stop).await
    })
}

/// Sees that the primary is lost, and says so, or replaces it.
pub(crate) fn watch(args: &WatchArgs, log: &LogFlags) -> Result<(), Failure> {
    let steps = prepare(&args.config, log)?;
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

impl Steps {
    fn new(config: Config) -> Result<Steps, Failure> {
        if config.cluster.nodes.is_empty() {
            return Err(
                Failure::config("nothing says which servers there are").advise("list them as [[cluster.nodes]]")
            );
        }
        let parts = Parts::new(&config)?;
        Ok(Steps { config, parts, began: Instant::now(), force: false, accept_loss: false })
    }
}

/// Away from a primary that is lost, or from where an earlier run stopped.
async fn away(
    steps: &Steps,
    survey: &Survey,
    to: Option<&str>,
    dry_run: bool,
    guard: &impl Guard,
) -> Result<(), Failure> {
    let situation = survey.situation().map_err(|error| Failure::runtime(error.to_string()))?;
    let timeline = match situation {
        Situation::Promoted { primary, timeline } => {
            steps.say(format_args!("{primary} has been promoted already: relays and replicas are to follow it"));
            if dry_run {
                return Ok(());
            }
            return follow(steps, survey, &primary, timeline).await;
        }
        Situation::Healthy { primary, timeline } if !steps.force => {
            let behind = survey.standing().filter(|(_, standing)| standing.timeline < timeline).count();
            if behind > 0 && !dry_run {
                steps.say(format_args!("{primary} is the primary, and {behind} relays are not on its timeline yet"));
                return follow(steps, survey, &primary, timeline).await;
            }
            return Err(Failure::runtime(format!(
                "{primary} is the primary and answers: there is nothing to fail over"
            ))
            .advise("for a planned change use `kingpost switchover`; --force does it all the same"));
        }
        Situation::Healthy { timeline, .. } | Situation::Fenced { timeline, .. } => timeline,
        Situation::NoPrimary { timeline } => {
            let receives = survey.standing().find(|(_, standing)| {
                standing.state == "streaming" && standing.fenced.is_none() && standing.timeline == timeline
            });
            if let (Some((relay, standing)), false) = (receives, steps.force) {
                return Err(Failure::runtime(format!(
                    "{} receives from {} at this moment: the primary lives, and only this program cannot reach it",
                    relay.name, standing.upstream
                ))
                .advise("run it from where the servers can be reached; or say --force, which takes the primary's relays away"));
            }
            timeline
        }
    };
    let olds: Vec<String> = survey
        .servers
        .iter()
        .filter(|server| server.state.as_ref().map_or(true, |state| !state.standby))
        .map(|server| server.name.clone())
        .collect();
    if steps.parts.relay_count() == 0 && !steps.accept_loss {
        return Err(Failure::config(
            "no relay is configured as [[failover.relays]]: what only the old primary has would be lost",
        )
        .advise("say --accept-loss to take the standby that has most"));
    }
    if dry_run {
        let node = plan::choose(survey, to, steps.force).map_err(|error| Failure::runtime(error.to_string()))?;
        let needed = plan::needed(steps.parts.relay_count(), steps.config.failover.acknowledgements);
        steps.say(format_args!(
            "would fence {needed} or more of {} relays at timeline {timeline}, have {node} catch up, promote it, and have \
             relays and replicas follow it",
            steps.parts.relay_count()
        ));
        return Ok(());
    }
    onward(steps, survey, timeline, to, &olds, guard).await
}

/// A node that was promoted, and the timeline it writes.
struct Promoted {
    node: String,
    timeline: u32,
}

/// From the fence on, to the end.
async fn onward(
    steps: &Steps,
    survey: &Survey,
    timeline: u32,
    to: Option<&str>,
    olds: &[String],
    guard: &impl Guard,
) -> Result<(), Failure> {
    let promoted = elect(steps, survey, timeline, to, guard).await?;
    for (proxy, why) in pause::resume(&steps.parts, promoted.timeline).await {
        steps.say(format_args!("{proxy} does not know {} as the primary yet: {why}", promoted.node));
    }
    settle(steps, &promoted, olds).await
}

/// From the fence to the promotion.
async fn elect(
    steps: &Steps,
    survey: &Survey,
    timeline: u32,
    to: Option<&str>,
    guard: &impl Guard,
) -> Result<Promoted, Failure> {
    let mut fenced = match steps.parts.relay_count() {
        0 => None,
        _ => Some(steps.fence(survey, timeline).await?),
    };
    // Again: what was seen before the fence may have changed until it was up.
    let now = steps.parts.survey().await;
    if let Ok(Situation::Promoted { primary, timeline }) = now.situation() {
        steps.say(format_args!("{primary} has been promoted meanwhile"));
        return Ok(Promoted { node: primary, timeline });
    }
    let node = plan::choose(&now, to, steps.force).map_err(|error| {
        Failure::runtime(format!("no node can be the primary: {error}"))
            .advise("start the standbys and run it again; `kingpost failover --abort` takes the fences away")
    })?;
    let target = fenced.as_ref().and_then(|fenced| Target::of(fenced.relays.iter().map(|(relay, at)| (relay, at))));
    if let Some(fenced) = &mut fenced {
        steps.choose(fenced, &node).await?;
    }
    if let Some(target) = &target {
        steps.catch_up(&node, target).await?;
    }
    let timeline = steps.promote(&node, fenced.as_ref(), guard).await?;
    Ok(Promoted { node, timeline })
}

/// What is left to do once a node was promoted: relays and standbys follow it, and the old primary comes back.
async fn settle(steps: &Steps, promoted: &Promoted, olds: &[String]) -> Result<(), Failure> {
    let Promoted { node, timeline } = promoted;
    steps.relays_follow(node, *timeline).await?;
    steps.replicas_follow(node, *timeline).await;
    let olds: Vec<String> = olds.iter().filter(|old| *old != node).cloned().collect();
    steps.rejoin(node, &olds).await;
    steps.say(format_args!("{node} is the primary, on timeline {timeline}"));
    Ok(())
}

/// What is left to do once a node was promoted.
async fn follow(steps: &Steps, survey: &Survey, primary: &str, timeline: u32) -> Result<(), Failure> {
    let olds: Vec<String> = survey
        .servers
        .iter()
        .filter(|server| server.name != primary && server.state.as_ref().map_or(true, |state| !state.standby))
        .map(|server| server.name.clone())
        .collect();
    settle(steps, &Promoted { node: primary.to_owned(), timeline }, &olds).await
}

/// Takes the fences away: the old primary goes on.
async fn abort(steps: &Steps) -> Result<(), Failure> {
    let survey = steps.parts.survey().await;
    let term = survey.standing().map(|(_, standing)| standing.term).max().unwrap_or(0) + 1;
    let mut kept = Vec::new();
    for (relay, _) in survey.standing().filter(|(_, standing)| standing.fenced.is_some()) {
        match steps.parts.order(&relay.name, Order::Release { term }).await {
            Ok(_) => steps.say(format_args!("{} is fenced no more", relay.name)),
            Err(why) => kept.push(format!("{}: {why}", relay.name)),
        }
    }
    if kept.is_empty() {
        steps.say("no relay that answers is fenced");
        return Ok(());
    }
    Err(Failure::runtime(format!("some fences stay\n{}", kept.join("\n")))
        .advise("`kingpost failover` goes on from here"))
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
