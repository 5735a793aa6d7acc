//! Servers of PostgreSQL, as a kind of servers of the [engine](super::engine) and behind its adapter: a timeline that all relays count alike, and a
//! note on each standby.

use std::time::{Duration, Instant};

use ::relay::{Order, RelayState};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::ballot::{self, NotNoted, TooFew};
use super::elect::{Adapter, News, NotPromoted, Stop, elect};
use super::engine::{Engine, NotAgreed, Plan, Promoted, ServerKind, Wish};
use super::failover_run::{FailoverRun, Guard};
use super::note::{self, Note};
use super::plan::{self, Candidate, Election, RelaySeen, ServerState, Situation, Survey, Target, Unfit};
use process::Failure;

/// Interval between two checks of a condition that is waited for.
const PACE: Duration = Duration::from_millis(50);
/// Time that a complete candidate waits for one of a higher priority.
const PREFERENCE: Duration = Duration::from_secs(1);
/// Grace time of a candidate that receives from a relay with the whole log, before it is switched to another relay.
const UNLED: Duration = Duration::from_millis(500);

/// Servers of PostgreSQL.
#[derive(Debug, Clone, Copy)]
pub(super) enum Postgresql {}

impl ServerKind for Postgresql {
    type Server = ServerState;
    type Relay = RelayState;
    type Target = Target;
    type Refusal = Unfit;

    const NOTES: bool = true;
    const SURVEYS_AGAIN: bool = true;
    const SIDE_BY_SIDE: bool = true;
    const OWN_TERMS: bool = true;

    fn system_of_server(server: &ServerState) -> u64 {
        server.system
    }

    fn system_of_relay(relay: &RelayState) -> u64 {
        relay.system
    }

    fn term(relay: &RelayState) -> u64 {
        relay.term
    }

    fn chosen(relay: &RelayState) -> Option<&(u64, String)> {
        relay.chosen.as_ref()
    }

    fn noted(server: &ServerState) -> Option<u64> {
        server.note.as_ref().map(|note| note.term)
    }

    fn fence(plan: &Plan, _: &RelaySeen) -> Option<u32> {
        Some(plan.timeline)
    }

    fn promoted(now: &Survey) -> Option<Promoted> {
        let Ok(Situation::Promoted { primary, timeline }) = now.situation() else { return None };
        let old = now.state(&primary).and_then(|state| state.note.as_ref()?.after.clone());
        Some(Promoted { node: primary, timeline, old })
    }

    fn candidates(now: &Survey, _: &Plan, wish: &Wish<'_>) -> Result<Election, Unfit> {
        plan::candidates(now, wish.to, wish.force, &wish.rules)
    }

    fn keep_furthest(election: &mut Election, now: &Survey) {
        election.keep_furthest(now);
    }

    fn target(fenced: &[(RelaySeen, RelayState)]) -> Result<Option<Target>, Unfit> {
        Ok(Target::of(fenced.iter().map(|(relay, standing)| (relay, standing))))
    }

    #[cfg(test)]
    fn reached(target: &Target, server: &ServerState) -> bool {
        target.reached(server)
    }

    fn holds(_: &RelayState, _: &RelayState, _: Option<&ServerState>) -> bool {
        true
    }
}

impl Adapter for FailoverRun {
    type Kind = Postgresql;
    type Setback = Failure;

    fn run(&self) -> u16 {
        self.run
    }

    fn mark(&self, name: &str) {
        self.step(name);
    }

    async fn order(&self, relay: &str, order: Order) -> Result<RelayState, String> {
        self.clients.order(relay, order).await
    }

    async fn survey_again(&self, before: &Survey) -> Survey {
        self.clients.survey_again(before).await
    }

    async fn note(&self, now: &Survey, term: u64, old: Option<&str>) -> Vec<String> {
        self.claim(now, term, old).await
    }

    async fn catch_up(&self, candidates: &[Candidate], target: &Target) -> Result<String, Failure> {
        self.first_complete(candidates, target).await
    }

    async fn promote(&self, node: &str, engine: &Engine<Postgresql>) -> Result<u32, NotPromoted<Failure>> {
        let promoted = note::promote(&self.clients, node, engine.term(), self.limit()).await;
        // The server is queried whatever the result: the answer may have been lost.
        let began = Instant::now();
        loop {
            match (self.clients.look(node).await, &promoted) {
                (Ok(state), _) if !state.standby => {
                    self.say(format_args!("promoted {node}: it writes timeline {}", state.timeline));
                    return Ok(state.timeline);
                }
                (Ok(_), Err(why)) => {
                    let failure = Failure::runtime(format!("{node} is not promoted: {why}")).advise("run it again");
                    return Err(NotPromoted::Not(failure));
                }
                (other, _) if began.elapsed() > self.limit() => {
                    let why = other.err().unwrap_or_else(|| "it is in recovery".into());
                    let failure = Failure::runtime(format!("cannot tell that {node} was promoted: {why}"));
                    return Err(NotPromoted::Unknown(failure.advise("run it again: it goes on with the same node")));
                }
                _ => tokio::time::sleep(PACE).await,
            }
        }
    }

    fn not_chosen(&self, node: &str, not: NotAgreed, refused: &[String]) -> Failure {
        Failure::runtime(format!(
            "{node} is not elected: {} relays agree to it, and {} are needed\n{}",
            not.agree,
            not.quorum,
            refused.join("\n")
        ))
        .advise("another failover may be under way; run it again when that has ended")
    }

    fn nothing_promoted(&self, mut setbacks: Vec<(String, Failure)>) -> Failure {
        // All candidates are tried at once, so that there is one.
        setbacks.pop().map_or_else(|| no_candidate(Unfit::Nobody), |(_, failure)| failure)
    }

    fn tell(&self, news: News<'_, Postgresql>) {
        match news {
            News::Fenced { relay, term, order: Order::Fence { timeline, .. }, standing } => self.say(format_args!(
                "fenced {relay} at timeline {timeline} in term {term}: it has {}",
                standing.flushed
            )),
            News::NotFenced { relay, why } => self.say(format_args!("{relay} is not fenced: {why}")),
            News::EnoughFenced { engine, needed } if engine.ballot.quorum < needed => self.say(format_args!(
                "{} of {needed} relays are fenced: what only the others or the old primary have is lost. Keep those from following the old \
                 primary when they come back",
                engine.ballot.quorum
            )),
            News::PromotedMeanwhile { node } => self.say(format_args!("{node} has been promoted meanwhile")),
            News::Counted { engine } => {
                let is_standby = |name: &str| engine.now.state(name).is_some_and(|state| state.standby);
                for (_, why) in engine.election.unfit.iter().filter(|(name, _)| is_standby(name)) {
                    self.say(why);
                }
            }
            News::Withdrawn { node } => {
                self.say(format_args!("{node}, which an earlier run had elected, is given up"));
            }
            News::Chosen { node, term } => self.say(format_args!("elected {node} in term {term}")),
            News::Fenced { .. } | News::EnoughFenced { .. } | News::There { .. } | News::NotChosen { .. } => {}
        }
    }

    fn failure(&self, stop: Stop<'_, Postgresql>) -> Failure {
        match stop {
            Stop::Fenced { too_few: TooFew { fenced, needed }, relays, refused } => Failure::runtime(format!(
                "{fenced} of {relays} relays are fenced, and {needed} are needed: with fewer, something that was acknowledged might be missing, \
                 or more be acknowledged\n{}",
                refused.join("\n")
            ))
            .advise("bring the relays back and run it again; `kingpost failover --abort` takes the fences away"),
            Stop::Refused(why) => no_candidate(why),
            Stop::NotNoted(NotNoted::Nobody) => {
                Failure::runtime("no candidate is left").advise("look at what was said of each, and run it again")
            }
            Stop::NotNoted(NotNoted::Elected(why)) => no_candidate(why),
            Stop::NotWithdrawn { relay, node, why } => {
                Failure::runtime(format!("{relay} stands by {node}, which an earlier run has elected: {why}"))
                    .advise("another failover may be under way; run it again when that has ended")
            }
            Stop::Overtaken { node, term, not: NotAgreed { agree, quorum } } => Failure::runtime(format!(
                "{node} is not promoted: only {agree} relays still stand by term {term}, and {quorum} are needed: another failover was \
                 begun, or relays were lost"
            ))
            .advise("run it again"),
        }
    }
}

impl FailoverRun {
    /// Checks whether a failover can begin, and returns its candidates: every check that is possible before anything is changed.
    ///
    /// # Errors
    /// The failover cannot begin; the error advises what to do.
    pub(super) fn prepared(&self, survey: &Survey, to: Option<&str>, old: Option<&str>) -> Result<Election, Failure> {
        let election = plan::candidates(survey, to, self.force, &self.rules(old)).map_err(no_candidate)?;
        let (answering, needed) = (survey.standing().count(), survey.needed());
        for found in survey.disagreements(self.config.failover.acknowledgements) {
            if found.is_in_the_way() && !self.accept_loss {
                return Err(Failure::runtime(found.to_string())
                    .advise("set it as on the other servers and reload; --accept-loss goes on all the same"));
            }
            self.say(format_args!("note: {found}"));
        }
        if self.clients.relay_count() == 0 && !self.accept_loss {
            return Err(Failure::config(
                "no relay is configured as [[failover.relays]]: what only the old primary has would be lost",
            )
            .advise("say --accept-loss to take the standby that has most"));
        }
        if answering < needed && !self.accept_loss {
            let silent = survey.relays.iter().filter_map(|relay| {
                let why = relay.standing.as_ref().err()?;
                Some(format!("  {}: {why}", relay.name))
            });
            return Err(Failure::runtime(format!(
                "{answering} of {} relays answer, and {needed} have to be fenced: with fewer, something that was acknowledged might \
                 be missing; nothing was changed\n{}",
                survey.relays.len(),
                silent.collect::<Vec<_>>().join("\n")
            ))
            .advise("bring the relays back and run it again; --accept-loss goes on with those that answer"));
        }
        Ok(election)
    }

    /// Runs the steps from the fence to the promotion. `old` is the replaced primary, if known.
    ///
    /// # Errors
    /// No node was promoted.
    pub(super) async fn elect(
        &self,
        survey: &Survey,
        timeline: u32,
        to: Option<&str>,
        old: Option<&str>,
        guard: &impl Guard,
    ) -> Result<Promoted, Failure> {
        let plan = Plan { timeline, ..Plan::default() };
        let wish = Wish { to, force: self.force, accept_loss: self.accept_loss, rules: self.rules(old) };
        elect(self, survey, plan, &wish, old, guard).await.map(|elected| elected.promoted)
    }

    /// Notes the term on every standby that answers, so that no earlier run can promote it; returns the standbys that carry the note.
    pub(super) async fn claim(&self, survey: &Survey, term: u64, old: Option<&str>) -> Vec<String> {
        let note = Note { term, after: old.map(str::to_owned) };
        let each = ballot::to_be_noted(survey)
            .map(|server| async { (server.name.clone(), note::claim(&self.clients, &server.name, &note).await) });
        let mut claimed = Vec::new();
        for (node, result) in join_all(each).await {
            match result {
                Ok(()) => claimed.push(node),
                Err(why) => self.say(format_args!("{node} is no candidate: {why}")),
            }
        }
        claimed
    }

    /// Has all candidates receive the relays' log concurrently; returns the first that has replayed it.
    async fn first_complete(&self, candidates: &[Candidate], target: &Target) -> Result<String, Failure> {
        let mut running: FuturesUnordered<_> = candidates
            .iter()
            .map(|candidate| async move { (candidate, self.reach(&candidate.name, target).await) })
            .collect();
        let mut there: Option<&Candidate> = None;
        let mut failed = Vec::new();
        let mut waiting: Vec<&Candidate> = candidates.iter().collect();
        let preferred_until = tokio::time::sleep(self.limit() + PREFERENCE);
        tokio::pin!(preferred_until);
        loop {
            if let Some(best) = there
                && !waiting.iter().any(|candidate| candidate.priority > best.priority)
            {
                return Ok(best.name.clone());
            }
            tokio::select! {
                next = running.next() => match next {
                    Some((candidate, Ok(()))) => {
                        waiting.retain(|waits| waits.name != candidate.name);
                        if there.is_none() {
                            preferred_until.as_mut().reset(tokio::time::Instant::now() + PREFERENCE);
                        }
                        // Among candidates of equal priority, the first that is complete.
                        if there.is_none_or(|best| candidate.priority > best.priority) {
                            there = Some(candidate);
                        }
                    }
                    Some((candidate, Err(why))) => {
                        waiting.retain(|waits| waits.name != candidate.name);
                        self.say(&why);
                        failed.push(why);
                    }
                    None => break,
                },
                () = &mut preferred_until => break,
            }
        }
        match there {
            Some(best) => Ok(best.name.clone()),
            None => Err(Failure::runtime(format!(
                "no candidate has everything that was acknowledged; nothing was elected\n  {}",
                failed.join("\n  ")
            ))
            .advise(
                "look at their logs: they may not reach the relay, or have a conflict with queries; then run it again. `kingpost \
                 failover --abort` lets the old primary go on",
            )),
        }
    }

    /// Waits until the node has received and replayed all that counts as acknowledged.
    async fn reach(&self, node: &str, target: &Target) -> Result<(), String> {
        let began = Instant::now();
        let mut led = false;
        loop {
            let state = self.clients.look(node).await;
            match &state {
                Ok(state) if !state.standby => return Err(format!("{node} has been promoted by somebody else")),
                Ok(state) if target.reached(state) => {
                    self.say(format_args!(
                        "{node} has everything: it has replayed {}, and {} were needed",
                        state.replayed, target.replayed
                    ));
                    return Ok(());
                }
                Ok(state) if !led && (began.elapsed() > UNLED || !self.receives_from(state, &target.relay.1).await) => {
                    led = true;
                    let (relay, address) = &target.relay;
                    self.lead_to_relay(node, state, relay, address).await?;
                }
                Ok(_) | Err(_) => {}
            }
            if began.elapsed() > self.limit() {
                let stands = match state {
                    Ok(state) => format!("it has replayed {} of timeline {}", state.replayed, state.timeline),
                    Err(why) => why,
                };
                return Err(format!(
                    "{node} did not replay {} of timeline {} within {:?}: {stands}",
                    target.replayed,
                    target.timeline,
                    self.limit()
                ));
            }
            tokio::time::sleep(PACE).await;
        }
    }
}

fn no_candidate(why: Unfit) -> Failure {
    let advice = match why {
        Unfit::Nobody | Unfit::None(_) | Unfit::Silent(..) => {
            "start the standbys, or let them be candidates, and run it again"
        }
        _ => "run it again",
    };
    let failure = Failure::runtime(why.to_string());
    match why {
        // The error's text itself advises what to do.
        Unfit::Elected(..) | Unfit::Unknown(..) | Unfit::Delayed(..) | Unfit::Paused(_) | Unfit::Never(_) => failure,
        _ => failure.advise(advice),
    }
}
