//! A planned change of the primary. After a failure before the promotion, the old primary continues, and clients with it.
//!
//! ```text
//!  proxies pause, by a lease ─▶ the primary stops cleanly, or is locked ─▶ fence … promote ─▶ proxies resume, each when it has
//!  seen the new primary ─▶ relays and standbys follow
//! ```
//!
//! *What must hold*: from before the end of the old primary's log is read until that server has become a standby, no session can have a commit
//! acknowledged there.

use std::time::{Duration, Instant};

use ::relay::Order;
use watermark::Lsn;

use super::engine::Promoted;
use super::failover_run::{FailoverRun, Guard, NoGuard};
use super::hooks::{self, Hook};
use super::lock::{self, LEASE, Lock};
use super::pause::{Pause, Refusals};
use super::plan::{Situation, Survey};
use super::replace_primary::replace_primary;
use super::{Ends, survey_until};
use process::Failure;

/// Interval between two checks of a condition that is waited for.
const PACE: Duration = Duration::from_millis(50);

/// State in which the old primary can acknowledge nothing.
enum Silenced {
    /// The process has ended cleanly, and all that it wrote was received.
    Stopped,
    /// The server runs, and refuses sessions.
    Locked(Lock),
}

impl Guard for Silenced {
    /// From the election on, the old primary must stay silent without this program.
    async fn before_election(&self) -> Result<(), String> {
        match self {
            Silenced::Stopped => Ok(()),
            Silenced::Locked(lock) => lock.make_permanent().await,
        }
    }

    async fn before_promotion(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The pause and the silence that a switchover has begun, and that must end with it.
#[derive(Default)]
struct Begun {
    pause: Option<Pause>,
    silenced: Option<Silenced>,
}

/// Runs a switchover from the survey to the end.
pub(super) async fn run(
    steps: &FailoverRun,
    survey: &Survey,
    to: Option<&str>,
    dry_run: bool,
    stop: &mut Ends,
) -> Result<(), Failure> {
    let situation = survey.situation().map_err(|error| Failure::runtime(error.to_string()))?;
    let anew;
    let (survey, old, timeline) = match situation {
        Situation::Healthy { primary, timeline } => (survey, primary, timeline),
        // An earlier run was interrupted before its election: the old primary may have written since.
        Situation::Fenced { old, timeline } if survey.elected().is_none() && !dry_run => {
            steps.say("an earlier run was interrupted: it is called off, and this one begins anew");
            steps.abort().await?;
            anew = relays_receive(steps, survey.needed()).await;
            (&anew, old, timeline)
        }
        Situation::Fenced { .. } | Situation::NoPrimary { .. } | Situation::Promoted { .. } => {
            steps.say("no primary is at work: this goes on as a failover");
            return replace_primary(steps, survey, to, dry_run, &NoGuard).await;
        }
    };
    if steps.clients.relay_count() == 0 {
        return Err(Failure::config(
            "no relay is configured as [[failover.relays]]: it is what passes the last commits on",
        ));
    }
    if to == Some(old.as_str()) {
        return Err(Failure::runtime(format!("{old} is the primary already")));
    }
    let election = steps.prepared(survey, to, Some(&old))?;
    let receives = |name: &str| survey.state(name).is_some_and(|state| state.receiving);
    let Some(node) = election.candidates.iter().map(|candidate| &candidate.name).find(|name| receives(name)) else {
        let names: Vec<&str> = election.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        return Err(Failure::runtime(format!("{} receives nothing: it would take long to catch up", names.join(", ")))
            .advise("look at its log, or name another with --to"));
    };
    let streaming = survey.standing().filter(|(_, standing)| standing.state == "streaming").count();
    let needed = survey.needed();
    if streaming < needed {
        return Err(Failure::runtime(format!("{streaming} relays receive from {old}, and {needed} are needed")));
    }
    let by_hook = !steps.config.failover.stop.is_empty();
    if dry_run {
        let how = if by_hook { "stop it by the configured program" } else { "lock it" };
        let pause = if steps.clients.proxy_count() > 0 { "pause the proxies, " } else { "" };
        steps.say(format_args!("would {pause}{how}, fence the relays, have {node} catch up, promote it, and resume"));
        return Ok(());
    }
    let mut begun = Begun::default();
    let work = async {
        begun.pause = pause(steps).await?;
        steps.step("paused");
        let silenced = match by_hook {
            true => stop_by_hook(steps, &old).await?,
            false => locked(steps, &old, needed).await?,
        };
        let silenced = begun.silenced.insert(silenced);
        steps.step("silenced");
        steps.elect(survey, timeline, to, Some(&old), silenced).await
    };
    let result = tokio::select! {
        result = work => result,
        name = stop.next() => Err(Failure::runtime(format!("ended by {name}")).advise("run it again")),
    };
    match result {
        Ok(promoted) => steps.settle(survey, &promoted, resume(steps, begun.pause, &promoted)).await,
        Err(failure) => {
            go_on(steps, &old, by_hook, begun).await;
            Err(failure)
        }
    }
}

/// Waits until enough relays whose fences were removed receive again; returns the last survey, also after the time limit.
async fn relays_receive(steps: &FailoverRun, needed: usize) -> Survey {
    let streaming = |survey: &Survey| survey.standing().filter(|(_, standing)| standing.state == "streaming").count();
    survey_until(steps.limit(), async || steps.clients.survey().await, |survey| streaming(survey) >= needed).await
}

/// Waits for open transactions to end, and pauses clients.
async fn pause(steps: &FailoverRun) -> Result<Option<Pause>, Failure> {
    if steps.clients.proxy_count() == 0 {
        steps.say("no proxy is configured as [[failover.proxies]]: clients that have a transaction open now lose it");
        return Ok(None);
    }
    match Pause::begin(&steps.clients, steps.limit()).await {
        Ok(pause) => {
            steps.say("the proxies have paused: clients wait");
            Ok(Some(pause))
        }
        Err(failed) => {
            let lines: Vec<String> = failed.iter().map(|(proxy, why)| format!("{proxy}: {why}")).collect();
            Err(Failure::runtime(format!("not every proxy paused; nothing was changed\n{}", lines.join("\n")))
                .advise("a long transaction may be in the way: see SHOW CLIENTS in the proxy's console"))
        }
    }
}

/// Resumes clients at the new primary.
async fn resume(steps: &FailoverRun, pause: Option<Pause>, promoted: &Promoted) {
    let Some(pause) = pause else { return };
    say_resumed(steps, pause.end_at(promoted.timeline).await);
}

fn say_resumed(steps: &FailoverRun, failed: Refusals) {
    if failed.is_empty() {
        steps.say("the proxies have resumed");
    }
    for (proxy, why) in failed {
        steps.say(format_args!(
            "{proxy} has not resumed yet: it does when it sees the primary, or when its lease ends within {LEASE:?}: {why}"
        ));
    }
}

/// Stops the server by the configured program; waits until it no longer answers.
async fn stop_by_hook(steps: &FailoverRun, old: &str) -> Result<Silenced, Failure> {
    let address = steps.address(old);
    let hook = Hook { program: &steps.config.failover.stop, node: old, address: &address, ..Hook::default() };
    let ended = match hooks::run(&hook, steps.limit()).await {
        Ok(_) => gone(steps, old).await,
        Err(why) => Err(why),
    };
    match ended {
        Ok(()) => {
            steps.say(format_args!("{old} has stopped"));
            Ok(Silenced::Stopped)
        }
        Err(why) => Err(Failure::runtime(format!("{old} was not stopped: {why}"))
            .advise("it may be stopping: start it again, or run it again to go on without it")),
    }
}

async fn gone(steps: &FailoverRun, old: &str) -> Result<(), String> {
    let began = Instant::now();
    while steps.clients.look(old).await.is_ok() {
        if began.elapsed() > steps.limit() {
            return Err(format!("it still answers after {:?}", steps.limit()));
        }
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

/// Locks the server, ends all sessions, and waits until the relays have all that these have written.
async fn locked(steps: &FailoverRun, old: &str, needed: usize) -> Result<Silenced, Failure> {
    let failed = |why: String| Failure::runtime(format!("cannot lock {old}: {why}"));
    let mut lock = Lock::take(&steps.clients, old).await.map_err(failed)?;
    let silent = async {
        let written = lock.silence(steps.limit()).await?;
        steps.say(format_args!("{old} is locked, its log ends at {written}"));
        relays_have(steps, written, needed).await?;
        lock.still_silent().await
    };
    silent.await.map_err(failed)?;
    Ok(Silenced::Locked(lock))
}

/// Waits until enough relays have the log up to `written`.
async fn relays_have(steps: &FailoverRun, written: Lsn, needed: usize) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let mut have = 0;
        for relay in &steps.config.failover.relays {
            let standing = steps.clients.order(&relay.name, Order::Look).await;
            have += usize::from(standing.is_ok_and(|standing| standing.flushed >= written));
        }
        if have >= needed {
            return Ok(());
        }
        if began.elapsed() > steps.limit() {
            return Err(format!("its relays do not have all of its log after {:?}", steps.limit()));
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Keeps the old primary as the primary, unless another was promoted.
async fn go_on(steps: &FailoverRun, old: &str, by_hook: bool, begun: Begun) {
    let survey = steps.clients.survey().await;
    if let Ok(Situation::Promoted { primary, timeline }) = survey.situation() {
        return resume(steps, begun.pause, &Promoted { node: primary, timeline, old: None }).await;
    }
    if let Err(failure) = steps.abort().await {
        steps.say(failure);
    } else if !by_hook {
        // Also lifts a lock that was not complete.
        if let Err(why) = lock::unlock(&steps.clients, old).await {
            steps.say(format_args!("{old} may still be locked: {why}. Run `kingpost failover --abort`"));
        }
    } else if begun.silenced.is_some() {
        steps.say(format_args!("{old} is to go on as the primary: start it"));
    }
    if let Some(pause) = begun.pause {
        say_resumed(steps, pause.end().await);
    }
}
