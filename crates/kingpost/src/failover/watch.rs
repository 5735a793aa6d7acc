//! `kingpost watch`: sees that the primary is lost, and says so; or, where a lock in etcd guards it, fails over.

use std::time::{Duration, Instant};

use super::away::away;
use super::etcd::{Etcd, Lock};
use super::plan;
use super::plan::{Situation, Survey};
use super::steps::{Guard, Steps};
use crate::cli::WatchArgs;
use crate::error::Failure;
use crate::serve::StopSignals;

/// Time between two looks.
const PACE: Duration = Duration::from_secs(1);
/// Time after an attempt that failed.
const AGAIN: Duration = Duration::from_secs(5);

/// What a look at everything comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// There is a primary, and nothing to do.
    Healthy(String),
    /// It may be lost: not enough to act on.
    Unsure(String),
    /// Nobody gets anything acknowledged any more, and no relay hears the primary.
    Lost,
    /// A failover was begun, and not ended.
    Unfinished,
}

/// Judges. A primary that only this program cannot reach is not lost: as long as a relay hears it, it is there.
pub(super) fn judge(survey: &Survey, needed: usize) -> Judgement {
    match survey.situation() {
        Err(undecided) => Judgement::Unsure(undecided.to_string()),
        Ok(Situation::Healthy { primary, .. }) => Judgement::Healthy(primary),
        Ok(Situation::Fenced { .. } | Situation::Promoted { .. }) => Judgement::Unfinished,
        Ok(Situation::NoPrimary { timeline }) => {
            let hears =
                survey.standing().find(|(_, standing)| standing.state == "streaming" && standing.timeline == timeline);
            if let Some((relay, _)) = hears {
                return Judgement::Unsure(format!("{} hears it", relay.name));
            }
            let answering = survey.standing().count();
            if answering < needed {
                return Judgement::Unsure(format!("{answering} relays answer, and {needed} are needed"));
            }
            if survey.standing().any(|(_, standing)| standing.fenced.is_some()) {
                Judgement::Unfinished
            } else {
                Judgement::Lost
            }
        }
    }
}

/// Who holds the lock is the only one to promote.
struct Held<'a>(&'a std::sync::Mutex<Lock>);

impl Guard for Held<'_> {
    async fn before_election(&self) -> Result<(), String> {
        self.before_promotion().await
    }

    async fn before_promotion(&self) -> Result<(), String> {
        let lock = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if Instant::now() < lock.until { Ok(()) } else { Err("the lock in etcd may be somebody else's by now".into()) }
    }
}

/// Until a signal.
pub(super) async fn run(mut steps: Steps, args: &WatchArgs, stop: &mut StopSignals) -> Result<(), Failure> {
    let etcd = args.etcd.as_deref().map(Etcd::new).transpose().map_err(Failure::config)?;
    if let Some(etcd) = &etcd {
        if steps.parts.relay_count() == 0 {
            return Err(Failure::config(
                "no relay is configured as [[failover.relays]]: without one nothing is failed over by itself",
            ));
        }
        let keys = etcd.keys("/service/").await.map_err(|why| Failure::runtime(format!("cannot ask etcd: {why}")))?;
        let patroni = format!("/service/{}/leader", steps.config.cluster.name);
        if keys.contains(&patroni) {
            return Err(Failure::config(format!("etcd has {patroni}: Patroni decides who is primary of this cluster"))
                .advise(
                    "watch without --etcd: it advises; proxies and relays follow Patroni's decisions by themselves",
                ));
        }
    }
    let key = format!("/kingpost/failover/{}", steps.config.cluster.name);
    let owner = format!("{}:{}", host(), std::process::id());
    let mut last = None;
    let mut since = Instant::now();
    let mut told = false;
    steps.say(format_args!(
        "watching {} servers and {} relays; a lost primary is {}",
        steps.parts.nodes().len(),
        steps.parts.relay_count(),
        if etcd.is_some() { "replaced" } else { "reported" }
    ));
    loop {
        let survey = tokio::select! {
            survey = steps.parts.survey() => survey,
            name = stop.next() => {
                steps.say(format_args!("ended by {name}"));
                return Ok(());
            }
        };
        let needed = plan::needed(steps.parts.relay_count(), steps.config.failover.acknowledgements);
        // Without relays nobody else is heard.
        let needed = needed.min(steps.parts.relay_count());
        let judgement = judge(&survey, needed);
        if last.as_ref() != Some(&judgement) {
            steps.say(match &judgement {
                Judgement::Healthy(primary) => format!("{primary} is the primary"),
                Judgement::Unsure(why) => format!("no primary answers: {why}"),
                Judgement::Lost => "no primary answers, and no relay hears one".into(),
                Judgement::Unfinished => "a failover was begun, and has not ended".into(),
            });
            (last, since, told) = (Some(judgement.clone()), Instant::now(), false);
        }
        let due = matches!(judgement, Judgement::Lost | Judgement::Unfinished) && since.elapsed() >= args.after;
        let mut pause = PACE;
        if due && !told {
            match &etcd {
                None => {
                    told = true;
                    match plan::candidates(&survey, None, false, &steps.rules(None)) {
                        Ok(election) => {
                            let names: Vec<_> =
                                election.candidates.into_iter().map(|candidate| candidate.name).collect();
                            let names = names.join(" or ");
                            steps.say(format_args!("it is time for `kingpost failover`: {names} would be the primary"));
                        }
                        Err(why) => steps.say(format_args!("it is time for `kingpost failover`, but {why}")),
                    }
                }
                Some(etcd) => {
                    steps.began = Instant::now();
                    match guarded(&steps, etcd, &key, &owner, args.ttl, needed).await {
                        Ok(true) => {}
                        Ok(false) => steps.say("somebody else has the lock: it is theirs to do"),
                        Err(failure) => steps.say(format_args!("failed: {failure}")),
                    }
                    pause = AGAIN;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            name = stop.next() => {
                steps.say(format_args!("ended by {name}"));
                return Ok(());
            }
        }
    }
}

/// A failover under the lock; false: somebody else has it.
async fn guarded(
    steps: &Steps,
    etcd: &Etcd,
    key: &str,
    owner: &str,
    ttl: Duration,
    needed: usize,
) -> Result<bool, Failure> {
    let locked = etcd.lock(key, owner, ttl).await;
    let Some(lock) = locked.map_err(|why| Failure::runtime(format!("cannot take the lock: {why}")))? else {
        return Ok(false);
    };
    // Who had the lock before may have done it.
    let survey = steps.parts.survey().await;
    if !matches!(judge(&survey, needed), Judgement::Lost | Judgement::Unfinished) {
        etcd.unlock(&lock).await;
        return Ok(true);
    }
    let held = std::sync::Mutex::new(lock);
    let keep = async {
        loop {
            tokio::time::sleep(ttl / 4).await;
            // Kept beside the work, which must not wait for etcd: a copy of the lock goes there and back.
            let mut lock = {
                let lock = held.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                lock.copy()
            };
            if let Err(why) = etcd.keep(&mut lock).await {
                steps.say(format_args!("the lock is not kept: {why}"));
            }
            *held.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = lock;
        }
    };
    let guard = Held(&held);
    let result = tokio::select! {
        result = away(steps, &survey, None, false, &guard) => result,
        () = keep => Ok(()),
    };
    let lock = held.lock().unwrap_or_else(std::sync::PoisonError::into_inner).copy();
    etcd.unlock(&lock).await;
    result.map(|()| true)
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}
