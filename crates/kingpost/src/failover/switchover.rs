//! A planned change of the primary. Whatever goes wrong before the promotion, the old primary goes on, and clients with it.

use std::time::{Duration, Instant};

use ::relay::Order;
use watermark::Lsn;

use super::hooks::{self, Hook};
use super::plan::{self, Situation, Survey};
use super::steps::{NoGuard, Steps};
use super::{away, onward};
use crate::error::Failure;
use crate::serve::StopSignals;

/// How often something that is waited for is looked at.
const PACE: Duration = Duration::from_millis(50);
/// Longest time for a proxy to go on.
const RESUME: Duration = Duration::from_secs(10);

/// How the old primary was kept from writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quiet {
    /// Its process has ended cleanly, everything it wrote was received.
    Stopped,
    /// It runs, and its sessions cannot write.
    ReadOnly,
}

/// From the survey to the end.
pub(super) async fn run(
    steps: &Steps,
    survey: &Survey,
    to: Option<&str>,
    dry_run: bool,
    stop: &mut StopSignals,
) -> Result<(), Failure> {
    let situation = survey.situation().map_err(|error| Failure::runtime(error.to_string()))?;
    let Situation::Healthy { primary: old, timeline } = situation else {
        // Where an earlier run was cut off, or the primary is gone: the rest is the same, and proxies may be waiting.
        steps.say("no primary is at work: this goes on as a failover");
        let result = away(steps, survey, to, dry_run, &NoGuard).await;
        if !dry_run {
            resume(steps).await;
        }
        return result;
    };
    if steps.parts.relay_count() == 0 {
        return Err(Failure::config(
            "no relay is configured as [[failover.relays]]: it is what passes the last commits on",
        ));
    }
    if to == Some(old.as_str()) {
        return Err(Failure::runtime(format!("{old} is the primary already")));
    }
    let node = plan::choose(survey, to, false).map_err(|error| Failure::runtime(error.to_string()))?;
    let state = survey.server(&node).and_then(|server| server.state.as_ref().ok());
    if !state.is_some_and(|state| state.receiving) {
        return Err(Failure::runtime(format!("{node} receives nothing: it would take long to catch up"))
            .advise("look at its log, or name another with --to"));
    }
    let needed = plan::needed(steps.parts.relay_count(), steps.config.failover.acknowledgements);
    let streaming = survey.standing().filter(|(_, standing)| standing.state == "streaming").count();
    if streaming < needed {
        return Err(Failure::runtime(format!("{streaming} relays receive from {old}, and {needed} are needed")));
    }
    let by_hook = !steps.config.failover.stop.is_empty();
    if dry_run {
        let how = if by_hook { "stop it by the configured program" } else { "make it read-only" };
        let pause = if steps.parts.has_proxies() { "pause the proxies, " } else { "" };
        steps.say(format_args!("would {pause}{how}, fence the relays, have {node} catch up, promote it, and resume"));
        return Ok(());
    }
    let work = async {
        pause(steps).await?;
        let quiet = match by_hook {
            true => stop_by_hook(steps, &old).await?,
            false => read_only(steps, &old).await?,
        };
        let olds = [old.clone()];
        let result = onward(steps, survey, timeline, Some(&node), &olds, &NoGuard).await;
        if result.is_err() {
            go_on(steps, &old, quiet).await;
        }
        result
    };
    let result = tokio::select! {
        result = work => result,
        name = stop.next() => {
            Err(Failure::runtime(format!("ended by {name}"))
                .advise(format!("run it again to go on; or, if {old} is to stay the primary, `kingpost failover --abort`")))
        }
    };
    resume(steps).await;
    result
}

/// Lets transactions end, and has clients wait.
async fn pause(steps: &Steps) -> Result<(), Failure> {
    if !steps.parts.has_proxies() {
        steps.say("no proxy is configured as [[failover.proxies]]: transactions that are open now will be lost");
        return Ok(());
    }
    let failed = steps.parts.consoles("PAUSE", steps.limit()).await;
    let failed: Vec<_> = failed.into_iter().filter(|(_, why)| !why.contains("already paused")).collect();
    if failed.is_empty() {
        steps.say("the proxies have paused: clients wait");
        return Ok(());
    }
    resume(steps).await;
    let lines: Vec<String> = failed.iter().map(|(proxy, why)| format!("{proxy}: {why}")).collect();
    Err(Failure::runtime(format!("not every proxy paused; nothing was changed\n{}", lines.join("\n")))
        .advise("a long transaction may be in the way: see SHOW CLIENTS in the proxy's console"))
}

async fn resume(steps: &Steps) {
    if !steps.parts.has_proxies() {
        return;
    }
    let failed = steps.parts.consoles("RESUME", RESUME).await;
    let mut others = failed.iter().filter(|(_, why)| !why.contains("not paused")).peekable();
    if others.peek().is_none() {
        steps.say("the proxies have resumed");
    }
    for (proxy, why) in others {
        steps.say(format_args!("{proxy} has not resumed, say RESUME in its console: {why}"));
    }
}

/// By the configured program; waits until the server answers no more.
async fn stop_by_hook(steps: &Steps, old: &str) -> Result<Quiet, Failure> {
    let address = steps.address(old);
    let hook =
        Hook { program: &steps.config.failover.stop, node: old, address: &address, primary: None, upstream: None };
    let ended = match hooks::run(&hook, steps.limit()).await {
        Ok(()) => gone(steps, old).await,
        Err(why) => Err(why),
    };
    match ended {
        Ok(()) => {
            steps.say(format_args!("{old} has stopped"));
            Ok(Quiet::Stopped)
        }
        Err(why) => Err(Failure::runtime(format!("{old} was not stopped: {why}"))
            .advise("it may be stopping: start it again, or run it again to go on without it")),
    }
}

async fn gone(steps: &Steps, old: &str) -> Result<(), String> {
    let began = Instant::now();
    while steps.parts.look(old).await.is_ok() {
        if began.elapsed() > steps.limit() {
            return Err(format!("it still answers after {:?}", steps.limit()));
        }
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

/// Ends all its sessions, has new ones write nothing, and waits until the relays have what was written before.
async fn read_only(steps: &Steps, old: &str) -> Result<Quiet, Failure> {
    let failed = |why: String| Failure::runtime(format!("cannot make {old} read-only: {why}"));
    let quiet = async {
        let set = ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"];
        steps.parts.run(old, &set).await?;
        let began = Instant::now();
        // A new session has what the server itself has taken over: all that begin later write nothing.
        while steps.parts.run(old, &["SHOW default_transaction_read_only"]).await?.as_deref() != Some("on") {
            late(steps, began, "it has not taken over its configuration")?;
        }
        let since = steps.parts.run(old, &["SELECT clock_timestamp()"]).await?.ok_or("it has no time")?;
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND backend_start < '{since}'"
        );
        while steps.parts.run(old, &[&end]).await?.as_deref() != Some("0") {
            late(steps, began, "its sessions do not end")?;
            tokio::time::sleep(PACE).await;
        }
        // Flushes what the sessions had not, too.
        let last = ["SELECT pg_switch_wal()", "SELECT pg_current_wal_flush_lsn() - '0/0'"];
        let position = steps.parts.run(old, &last).await?;
        let written =
            position.and_then(|text| text.parse().ok()).map(Lsn).ok_or("it does not say where its log ends")?;
        steps.say(format_args!("{old} is read-only, its log ends at {written}"));
        let needed = plan::needed(steps.parts.relay_count(), steps.config.failover.acknowledgements);
        loop {
            let mut have = 0;
            for relay in &steps.config.failover.relays {
                let standing = steps.parts.order(&relay.name, Order::Look).await;
                have += usize::from(standing.is_ok_and(|standing| standing.flushed >= written));
            }
            if have >= needed {
                return Ok(());
            }
            late(steps, began, "its relays do not have all of its log")?;
            tokio::time::sleep(PACE).await;
        }
    };
    match quiet.await {
        Ok(()) => Ok(Quiet::ReadOnly),
        Err(why) => {
            go_on(steps, old, Quiet::ReadOnly).await;
            Err(failed(why))
        }
    }
}

fn late(steps: &Steps, began: Instant, what: &str) -> Result<(), String> {
    if began.elapsed() <= steps.limit() { Ok(()) } else { Err(format!("{what} after {:?}", steps.limit())) }
}

/// The old primary stays the primary, unless another was promoted.
async fn go_on(steps: &Steps, old: &str, quiet: Quiet) {
    let survey = steps.parts.survey().await;
    if matches!(survey.situation(), Ok(Situation::Promoted { .. })) {
        return;
    }
    let term = survey.standing().map(|(_, standing)| standing.term).max().unwrap_or(0) + 1;
    for (relay, _) in survey.standing().filter(|(_, standing)| standing.fenced.is_some()) {
        if let Err(why) = steps.parts.order(&relay.name, Order::Release { term }).await {
            steps.say(format_args!("{} stays fenced: {why}", relay.name));
            return;
        }
    }
    match quiet {
        Quiet::Stopped => steps.say(format_args!("{old} is to go on as the primary: start it")),
        Quiet::ReadOnly => {
            let back = ["ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"];
            match steps.parts.run(old, &back).await {
                Ok(_) => steps.say(format_args!("{old} goes on as the primary")),
                Err(why) => steps.say(format_args!(
                    "{old} is still read-only (ALTER SYSTEM RESET default_transaction_read_only): {why}"
                )),
            }
        }
    }
}
