//! Replacement of a lost primary, or the continuation of an interrupted run.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Promoted;
use super::failover_run::{FailoverRun, Guard};
use super::judge::{FailoverDecision, course};
use super::plan::Survey;
use process::Failure;

/// Runs a failover from the survey to the end.
pub(super) async fn replace_primary(
    steps: &FailoverRun,
    survey: &Survey,
    to: Option<&str>,
    dry_run: bool,
    guard: &impl Guard,
) -> Result<(), Failure> {
    let course = course(survey, steps.force).map_err(|error| Failure::runtime(error.to_string()))?;
    let timeline = match course {
        FailoverDecision::Follow { primary, timeline } => {
            steps.say(format_args!("{primary} has been promoted already: relays and standbys are to follow it"));
            if dry_run {
                return Ok(());
            }
            return follow(steps, survey, primary, timeline).await;
        }
        FailoverDecision::Nothing { primary, timeline } => {
            let behind = survey.standing().filter(|(_, standing)| standing.timeline < timeline).count();
            let stale = survey.answering().filter(|(_, state)| !state.standby && state.timeline < timeline).count();
            let can_rejoin = !steps.config.failover.rejoin.is_empty();
            // After a completed failover, no record tells whether a silent server was the primary.
            let promoted = Promoted { node: primary.clone(), timeline, old: None };
            if (behind > 0 || (stale > 0 && can_rejoin)) && !dry_run {
                steps.say(format_args!(
                    "{primary} is the primary; {behind} relays are not on its timeline yet, and {stale} servers take themselves for a primary \
                     of an older one"
                ));
                return steps.settle(survey, &promoted, steps.proxies_look(&promoted)).await;
            }
            if stale > 0 && !dry_run {
                // Such a server cannot be repaired from here; the report tells the operator what to do.
                steps.rejoin(survey, &promoted).await;
            }
            return Err(Failure::runtime(format!(
                "{primary} is the primary and answers: there is nothing to fail over"
            ))
            .advise("for a planned change use `kingpost switchover`; --force does it all the same"));
        }
        FailoverDecision::Interrupted { old } => {
            return Err(Failure::runtime(format!(
                "{old} is the primary and answers, and the relays are fenced: an earlier run was interrupted before anything was \
                 elected"
            ))
            .advise(format!(
                "`kingpost failover --abort` lets {old} go on; `kingpost switchover` begins anew; --force goes on away from {old}"
            )));
        }
        FailoverDecision::Heard { relay, upstream } => {
            return Err(Failure::runtime(format!(
                "{relay} receives from {upstream} at this moment: the primary lives, and only this program cannot reach it"
            ))
            .advise("run it from where the servers can be reached; or say --force, which takes the primary's relays away"));
        }
        FailoverDecision::Away { timeline } => timeline,
    };
    let old = steps.primary_of(survey, timeline).await;
    if dry_run {
        let election = steps.prepared(survey, to, old.as_deref())?;
        let candidates: Vec<&str> = election.candidates.iter().map(|candidate| candidate.name.as_str()).collect();
        steps.say(format_args!(
            "would fence {} or more of {} relays at timeline {timeline}, have {} catch up, promote it, and have relays and standbys \
             follow it",
            survey.needed(),
            steps.clients.relay_count(),
            candidates.join(" or ")
        ));
        return Ok(());
    }
    steps.prepared(survey, to, old.as_deref())?;
    let guard = LeaseGuard { guard, lease: steps.config.failover.lease, fenced: Cell::new(Instant::now()) };
    let promoted = steps.elect(survey, timeline, to, old.as_deref(), &guard).await?;
    steps.settle(survey, &promoted, steps.proxies_look(&promoted)).await
}

/// A guard that lets a node be promoted only after the lease of the old primary's agent has ended. The relays are fenced before the election, and a
/// fenced relay renews no lease.
struct LeaseGuard<'a, G> {
    guard: &'a G,
    lease: Duration,
    /// Latest time of the fence.
    fenced: Cell<Instant>,
}

impl<G: Guard> Guard for LeaseGuard<'_, G> {
    async fn before_election(&self) -> Result<(), String> {
        self.fenced.set(Instant::now());
        self.guard.before_election().await
    }

    async fn before_promotion(&self) -> Result<(), String> {
        if !self.lease.is_zero() {
            tokio::time::sleep_until(self.fenced.get() + self.lease).await;
        }
        self.guard.before_promotion().await
    }
}

/// Completes a failover after the promotion.
async fn follow(steps: &FailoverRun, survey: &Survey, primary: String, timeline: u32) -> Result<(), Failure> {
    let old = survey.state(&primary).and_then(|state| state.note.as_ref()?.after.clone());
    let promoted = Promoted { node: primary, timeline, old };
    steps.settle(survey, &promoted, steps.proxies_look(&promoted)).await
}
