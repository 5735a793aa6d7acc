//! `kingpost watch`: sees that the primary is lost, and says so; or, where a lock in etcd guards it, fails over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Ends;
use super::away::away;
use super::etcd::Etcd;
use super::held::{Held, SHORTEST};
use super::judge::{Due, Judgement, Watched, judge};
use super::plan::{self, Situation, Survey};
use super::report::{Report, check_address};
use super::steps::Steps;
use crate::admin::Admin;
use crate::cli::WatchArgs;
use crate::error::Failure;

/// Time from one look to the next.
const PACE: Duration = Duration::from_millis(500);
/// Longest time for one look at a server or a relay: with the pace it bounds how late a silence is noticed.
const LOOK: Duration = Duration::from_secs(1);
/// How long etcd may take to answer for the first time.
const STARTING: Duration = Duration::from_secs(10);
/// Time after an attempt that failed; it doubles while they fail.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// Until a signal.
pub(super) async fn run(mut steps: Steps, args: &WatchArgs, stop: &mut Ends) -> Result<(), Failure> {
    steps.parts.look_within_at_most(LOOK);
    let etcd = args.etcd.as_deref().map(Etcd::new).transpose().map_err(Failure::config)?;
    if let Some(etcd) = &etcd {
        may_act(&steps, etcd, args.ttl).await?;
    }
    let lock = Locking {
        key: format!("/kingpost/failover/{}", steps.config.cluster.name),
        owner: format!("{}:{}", host(), std::process::id()),
        ttl: args.ttl,
    };
    steps.say(format_args!(
        "watching {} servers and {} relays; a lost primary is {}",
        steps.parts.nodes().len(),
        steps.parts.relay_count(),
        if etcd.is_some() { "replaced" } else { "reported" }
    ));
    let report = Arc::new(Report::new(etcd.is_some()));
    let _admin = match &args.metrics_listen {
        Some(address) => {
            check_address(address, &steps.config.metrics)?;
            Some(Admin::start(address, None, Arc::clone(&report)).await?)
        }
        None => None,
    };
    let mut watched = Watched::default();
    let mut again = AGAIN.0;
    let mut busy = false;
    loop {
        let began = Instant::now();
        let survey = tokio::select! {
            survey = steps.parts.survey() => survey,
            name = stop.next() => return ended(&steps, name),
        };
        let judgement = judge(&survey);
        report.looked(&judgement);
        if watched.see(&judgement, began) {
            again = AGAIN.0;
            busy = false;
            steps.say(match &judgement {
                Judgement::Healthy(primary) => format!("{primary} is the primary"),
                Judgement::Unsure(why) => format!("no primary answers: {why}"),
                Judgement::Lost => "no primary answers, and no relay hears one".into(),
                Judgement::Unfinished => "a failover was begun, and has not ended".into(),
            });
        }
        let mut pause = PACE.saturating_sub(began.elapsed());
        match (watched.due(Instant::now(), args.after, etcd.is_some()), &etcd) {
            (Due::Nothing, _) | (Due::Failover, None) => {}
            (Due::Advice, _) => advise(&steps, &survey),
            (Due::Failover, Some(etcd)) => {
                steps.began = Instant::now();
                report.begins();
                let result = guarded(&steps, etcd, &lock).await;
                report.ends(result.as_ref().ok().copied());
                match result {
                    Ok(true) => {}
                    Ok(false) => {
                        // Whoever has it may die: this one looks at the same pace as ever.
                        if !std::mem::replace(&mut busy, true) {
                            steps.say("somebody else has the lock: it is theirs to do");
                        }
                    }
                    Err(failure) => {
                        steps.say(format_args!("failed: {failure}"));
                        pause = again;
                        again = (again * 2).min(AGAIN.1);
                    }
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            name = stop.next() => return ended(&steps, name),
        }
    }
}

fn ended(steps: &Steps, signal: &str) -> Result<(), Failure> {
    steps.say(format_args!("ended by {signal}"));
    Ok(())
}

/// Whether this program may replace a primary by itself.
async fn may_act(steps: &Steps, etcd: &Etcd, ttl: Duration) -> Result<(), Failure> {
    if steps.parts.relay_count() == 0 {
        return Err(Failure::config(
            "no relay is configured as [[failover.relays]]: without one nothing is failed over by itself",
        ));
    }
    if ttl < SHORTEST {
        return Err(Failure::config(format!(
            "--ttl is {ttl:?}: expected at least {SHORTEST:?}, or etcd grants a longer one"
        )));
    }
    // It may be starting, too, as after a power cut.
    let began = Instant::now();
    let keys = loop {
        match etcd.keys("/service/").await {
            Ok(keys) => break keys,
            Err(why) if began.elapsed() > STARTING => return Err(Failure::runtime(format!("cannot ask etcd: {why}"))),
            Err(_) => tokio::time::sleep(PACE).await,
        }
    };
    let patroni = format!("/service/{}/leader", steps.config.cluster.name);
    if keys.contains(&patroni) {
        return Err(Failure::config(format!("etcd has {patroni}: Patroni decides who is primary of this cluster"))
            .advise("watch without --etcd: it advises; proxies and relays follow Patroni's decisions by themselves"));
    }
    Ok(())
}

fn advise(steps: &Steps, survey: &Survey) {
    match plan::candidates(survey, None, false, &steps.rules(None)) {
        Ok(election) => {
            let names: Vec<_> = election.candidates.into_iter().map(|candidate| candidate.name).collect();
            let names = names.join(" or ");
            steps.say(format_args!("it is time for `kingpost failover`: {names} would be the primary"));
        }
        Err(why) => steps.say(format_args!("it is time for `kingpost failover`, but {why}")),
    }
}

/// The lock in etcd: where, whose, and how long it lives without being kept.
struct Locking {
    key: String,
    owner: String,
    ttl: Duration,
}

/// A failover under the lock; false: somebody else has it.
async fn guarded(steps: &Steps, etcd: &Etcd, lock: &Locking) -> Result<bool, Failure> {
    let held = Held::take(etcd, &lock.key, &lock.owner, lock.ttl).await;
    let Some(held) = held.map_err(|why| Failure::runtime(format!("cannot take the lock: {why}")))? else {
        return Ok(false);
    };
    steps.step("locked");
    // Who had the lock before may have done it.
    let survey = steps.parts.survey().await;
    let result = match (judge(&survey), survey.situation()) {
        // An earlier run was interrupted before it had elected anything, and the primary lives: that it goes on takes no more than to
        // take the fences away.
        (_, Ok(Situation::Fenced { .. })) if survey.elected().is_none() => steps.abort().await,
        (Judgement::Lost | Judgement::Unfinished, _) => away(steps, &survey, None, false, &held).await,
        (Judgement::Healthy(_) | Judgement::Unsure(_), _) => Ok(()),
    };
    held.give_back().await;
    result.map(|()| true)
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}
