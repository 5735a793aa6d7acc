//! `kingpost watch`: notices the loss of the primary, and reports it; or, guarded by a lock in etcd or in the registry, fails over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ends;
use super::cluster_monitor::{ClusterMonitor, LOOK};
use super::elector::Elector;
use super::etcd::PATRONI;
use super::failover_run::FailoverRun;
use super::held::{Held, SHORTEST};
use super::judge::{Due, Judgement, Watched, judge};
use super::plan::{self, Situation, Survey};
use super::replace_primary::replace_primary;
use super::report::Report;
use super::suspend_aware_clock::SuspendAwareClock;
use crate::args::WatchArgs;
use config::Config;
use metrics::{Admin, Pushing};
use process::Failure;

/// Longest time until the first answer of etcd or the registry.
const STARTING: Duration = Duration::from_secs(10);
/// Time until the next attempt to take a lock that somebody else has: its holder may die.
const TAKEN: Duration = Duration::from_millis(250);
/// Time until the next attempt after a failure; it doubles while they fail.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// Runs until a signal.
pub(super) async fn run(mut steps: FailoverRun, args: &WatchArgs, stop: &mut Ends) -> Result<(), Failure> {
    steps.clients.look_within_at_most(LOOK);
    let elector = Elector::of(args, &steps.config.failover)?;
    if let Some(elector) = &elector {
        may_act(&steps, elector, args.ttl).await?;
    }
    let lock =
        Locking { key: lock_key(&steps.config), owner: format!("{}:{}", host(), std::process::id()), ttl: args.ttl };
    steps.say(format_args!(
        "watching {} servers and {} relays; a lost primary is {}",
        steps.clients.nodes().len(),
        steps.clients.relay_count(),
        if elector.is_some() { "replaced" } else { "reported" }
    ));
    let report = Arc::new(Report::new(elector.is_some()));
    let _admin = match &args.metrics_listen {
        Some(address) => {
            steps.config.metrics.permits("--metrics-listen", address)?;
            Some(Admin::start(address, None, Arc::clone(&report)).await?)
        }
        None => None,
    };
    let pushing = Pushing::start(&steps.config.metrics.otlp, Arc::clone(&report))?;
    let patient = steps.clients.patient();
    let clock = SuspendAwareClock::start();
    let mut monitor = ClusterMonitor::new(&patient, &clock);
    let mut watched = Watched::default();
    let mut again = AGAIN.0;
    let mut busy = false;
    let mut not_before = Duration::ZERO;
    loop {
        let survey = tokio::select! {
            survey = monitor.next() => survey,
            name = stop.next() => {
                if let Some(pushing) = &pushing {
                    pushing.flush().await;
                }
                return ended(&steps, name);
            }
        };
        let judgement = judge(survey);
        report.looked(&judgement);
        if watched.see(&judgement, clock.now()) {
            again = AGAIN.0;
            busy = false;
            not_before = Duration::ZERO;
            steps.say(match &judgement {
                Judgement::Healthy(primary) => format!("{primary} is the primary"),
                Judgement::Unsure(why) => format!("no primary answers: {why}"),
                Judgement::Lost => "no primary answers, and no relay hears one".into(),
                Judgement::Unfinished => "a failover was begun, and has not ended".into(),
            });
        }
        match (watched.due(clock.now(), args.after, elector.is_some()), &elector) {
            (Due::Nothing, _) | (Due::Failover, None) => {}
            (Due::Advice, _) => advise(&steps, survey),
            (Due::Failover, Some(_)) if clock.now() < not_before => {}
            (Due::Failover, Some(elector)) => {
                steps.began = Instant::now();
                report.begins();
                let result = guarded(&steps, elector, &lock, survey).await;
                report.ends(result.as_ref().ok().copied());
                match result {
                    // Earlier looks are outdated.
                    Ok(true) => monitor = ClusterMonitor::new(&patient, &clock),
                    Ok(false) => {
                        not_before = clock.now() + TAKEN;
                        if !std::mem::replace(&mut busy, true) {
                            steps.say("somebody else has the lock: it is theirs to do");
                        }
                    }
                    Err(failure) => {
                        steps.say(format_args!("failed: {failure}"));
                        monitor = ClusterMonitor::new(&patient, &clock);
                        not_before = clock.now() + again;
                        again = (again * 2).min(AGAIN.1);
                    }
                }
            }
        }
    }
}

/// Returns the name of the lock, in etcd or in the registry.
pub(super) fn lock_key(config: &Config) -> String {
    format!("/kingpost/failover/{}", config.cluster.name)
}

fn ended(steps: &FailoverRun, signal: &str) -> Result<(), Failure> {
    steps.say(format_args!("ended by {signal}"));
    Ok(())
}

/// Checks that this program may replace a primary by itself.
async fn may_act(steps: &FailoverRun, elector: &Elector, ttl: Duration) -> Result<(), Failure> {
    if steps.clients.relay_count() == 0 {
        return Err(Failure::config(
            "no relay is configured as [[failover.relays]]: without one nothing is failed over by itself",
        ));
    }
    if ttl < SHORTEST {
        return Err(Failure::config(format!(
            "--ttl is {ttl:?}: expected at least {SHORTEST:?}, or etcd grants a longer one"
        )));
    }
    // The service may be starting, too, as after a power cut.
    let began = Instant::now();
    let keys = loop {
        match elector.keys(PATRONI).await {
            Ok(keys) => break keys,
            Err(why) if began.elapsed() > STARTING => {
                return Err(Failure::runtime(format!("cannot ask {}: {why}", elector.name())));
            }
            Err(_) => tokio::time::sleep(STARTING / 20).await,
        }
    };
    let patroni = format!("{PATRONI}{}/leader", steps.config.cluster.name);
    if keys.contains(&patroni) {
        return Err(Failure::config(format!(
            "{} has {patroni}: Patroni decides who is primary of this cluster",
            elector.name()
        ))
            .advise("watch without --etcd and --registry: it advises; proxies and relays follow Patroni's decisions by themselves"));
    }
    let refused = |why| Failure::runtime(format!("{} would not give a lock of {ttl:?}: {why}", elector.name()));
    elector.would_grant(ttl).await.map_err(refused)
}

fn advise(steps: &FailoverRun, survey: &Survey) {
    match plan::candidates(survey, None, false, &steps.rules(None)) {
        Ok(election) => {
            let names: Vec<_> = election.candidates.into_iter().map(|candidate| candidate.name).collect();
            let names = names.join(" or ");
            steps.say(format_args!("it is time for `kingpost failover`: {names} would be the primary"));
        }
        Err(why) => steps.say(format_args!("it is time for `kingpost failover`, but {why}")),
    }
}

/// Settings of the lock: its key, its owner, and its time to live without renewal.
struct Locking {
    key: String,
    owner: String,
    ttl: Duration,
}

/// Fails over under the lock; false: somebody else has it. `seen`: the earlier survey.
async fn guarded(steps: &FailoverRun, elector: &Elector, lock: &Locking, seen: &Survey) -> Result<bool, Failure> {
    let held = Held::take(elector, &lock.key, &lock.owner, lock.ttl).await;
    let Some(held) = held.map_err(|why| Failure::runtime(format!("cannot take the lock: {why}")))? else {
        return Ok(false);
    };
    steps.step("locked");
    // The earlier holder may have failed over. Hosts that have been silent for long are not waited for again.
    let survey = steps.clients.survey_again(seen).await;
    let result = match (judge(&survey), survey.situation()) {
        // An earlier run was interrupted before it had elected a node, and the primary lives: removing the fences is enough for it to go on.
        (_, Ok(Situation::Fenced { .. })) if survey.elected().is_none() => steps.abort().await,
        (Judgement::Lost | Judgement::Unfinished, _) => replace_primary(steps, &survey, None, false, &held).await,
        (Judgement::Healthy(_) | Judgement::Unsure(_), _) => Ok(()),
    };
    held.give_back().await;
    result.map(|()| true)
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}
