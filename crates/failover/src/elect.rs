//! Steps from the fence to the promotion. Each step first checks what has been done already, so the whole can be started again wherever it was
//! interrupted.
//!
//! ```text
//!  checked (nothing is changed before) ─▶ fence the relays ─▶ note the term on every standby ─▶ candidates catch up, side by side
//!  ─▶ the first that has everything is elected, durably, on the relays ─▶ it is promoted
//! ```
//!
//! *What must hold*: no node is elected before it has replayed all that the fenced relays have; no node is promoted that is not elected, or that
//! carries the note of another term; an elected node is given up only when no run can promote it any more.

use std::time::{Duration, Instant};

use ::relay::Order;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::ballot::{self, Ballot, NotNoted, TooFew};
use super::note::{self, Note};
use super::plan::{self, Candidate, Election, Situation, Survey, Target, Unfit};
use super::steps::{Guard, Steps};
use process::Failure;

/// Interval between two checks of a condition that is waited for.
const PACE: Duration = Duration::from_millis(50);
/// Time that a complete candidate waits for one of a higher priority.
const PREFERENCE: Duration = Duration::from_secs(1);
/// Time to wait for further relays once enough have carried out an order.
const OTHERS: Duration = Duration::from_secs(2);
/// Grace time of a candidate that receives from a relay with the whole log, before it is switched to another relay.
const UNLED: Duration = Duration::from_millis(500);

/// A node that was promoted, and the timeline it writes.
pub(super) struct Promoted {
    pub(super) node: String,
    pub(super) timeline: u32,
    /// The primary that it replaces, if known.
    pub(super) old: Option<String>,
}

impl Steps {
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
        if self.parts.relay_count() == 0 && !self.accept_loss {
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
        let fenced = self.fence(survey, timeline).await?;
        self.step("fenced");
        // A second survey: the state seen before the fence may have changed until the fence was up.
        let now = fenced.seen_with(self.parts.survey_again(survey).await);
        if let Ok(Situation::Promoted { primary, timeline }) = now.situation() {
            self.say(format_args!("{primary} has been promoted meanwhile"));
            let old = now.state(&primary).and_then(|state| state.note.as_ref()?.after.clone());
            return Ok(Promoted { node: primary, timeline, old });
        }
        let mut election = plan::candidates(&now, to, self.force, &self.rules(old)).map_err(no_candidate)?;
        for (_, why) in election.unfit.iter().filter(|(name, _)| now.state(name).is_some_and(|state| state.standby)) {
            self.say(why);
        }
        let claimed = self.claim(&now, fenced.term, old).await;
        let withdraw = election.narrow(&claimed, fenced.term, self.force).map_err(|why| match why {
            NotNoted::Nobody => {
                Failure::runtime("no candidate is left").advise("look at what was said of each, and run it again")
            }
            NotNoted::Elected(why) => no_candidate(why),
        })?;
        if fenced.quorum < now.needed() {
            // The acknowledged position is no longer known: only the candidate with the most log remains.
            election.keep_furthest(&now);
        }
        if let Some(node) = withdraw {
            self.withdraw(&fenced, &node).await?;
        }
        self.step("noted");
        let node = match fenced.target() {
            Some(target) => self.catch_up(&election.candidates, &target).await?,
            None => election.candidates.swap_remove(0).name,
        };
        self.step("caught-up");
        guard.before_election().await.map_err(|why| Failure::runtime(format!("{node} is not elected: {why}")))?;
        self.choose(&fenced, &node).await?;
        self.step("elected");
        let timeline = self.promote(&node, &fenced, guard).await?;
        self.step("promoted");
        Ok(Promoted { node, timeline, old: old.map(str::to_owned) })
    }

    /// Has enough relays promise to a new term, after which no commit on `timeline` can be acknowledged.
    async fn fence(&self, survey: &Survey, timeline: u32) -> Result<Ballot, Failure> {
        let needed = survey.needed();
        let term = ballot::next_term(survey.highest_term(), self.run);
        let mut orders: FuturesUnordered<_> = survey
            .relays
            .iter()
            .map(|relay| async move { (relay, self.parts.order(&relay.name, Order::Fence { term, timeline }).await) })
            .collect();
        let mut waiting = survey.standing().count();
        let (mut relays, mut refused) = (Vec::new(), Vec::new());
        // A relay that did not answer before is waited for only while there are too few without it.
        while waiting > 0 || relays.len() < needed {
            let next = orders.next();
            let next = match relays.len() < needed {
                true => next.await,
                // A relay that has fallen silent since the survey keeps only what it received by then, and acknowledges nothing more.
                false => tokio::time::timeout(OTHERS, next).await.unwrap_or_default(),
            };
            let Some((relay, answer)) = next else { break };
            waiting -= usize::from(relay.standing.is_ok());
            match answer {
                Ok(standing) => {
                    self.say(format_args!(
                        "fenced {} at timeline {timeline} in term {term}: it has {}",
                        relay.name, standing.flushed
                    ));
                    relays.push((relay.clone(), standing));
                }
                Err(why) => {
                    self.say(format_args!("{} is not fenced: {why}", relay.name));
                    refused.push(format!("  {}: {why}", relay.name));
                }
            }
        }
        let ballot = Ballot::of(survey, term, relays, self.accept_loss).map_err(|TooFew { fenced, needed }| {
            Failure::runtime(format!(
                "{fenced} of {} relays are fenced, and {needed} are needed: with fewer, something that was acknowledged might be missing, \
                 or more be acknowledged\n{}",
                survey.relays.len(),
                refused.join("\n")
            ))
            .advise("bring the relays back and run it again; `kingpost failover --abort` takes the fences away")
        })?;
        if ballot.quorum < needed {
            self.say(format_args!(
                "{} of {needed} relays are fenced: what only the others or the old primary have is lost. Keep those from following the old \
                 primary when they come back",
                ballot.quorum
            ));
        }
        Ok(ballot)
    }

    /// Notes the term on every standby that answers, so that no earlier run can promote it; returns the standbys that carry the note.
    pub(super) async fn claim(&self, survey: &Survey, term: u64, old: Option<&str>) -> Vec<String> {
        let note = Note { term, after: old.map(str::to_owned) };
        let each = ballot::to_be_noted(survey)
            .map(|server| async { (server.name.clone(), note::claim(&self.parts, &server.name, &note).await) });
        let mut claimed = Vec::new();
        for (node, result) in join_all(each).await {
            match result {
                Ok(()) => claimed.push(node),
                Err(why) => self.say(format_args!("{node} is no candidate: {why}")),
            }
        }
        claimed
    }

    /// Withdraws a node that an earlier run has elected.
    async fn withdraw(&self, fenced: &Ballot, node: &str) -> Result<(), Failure> {
        let each = fenced.stand_by(node).map(|relay| async {
            let order = Order::Withdraw { term: fenced.term, node: node.into() };
            (relay.name.clone(), self.parts.order(&relay.name, order).await)
        });
        for (relay, result) in join_all(each).await {
            if let Err(why) = result {
                return Err(Failure::runtime(format!(
                    "{relay} stands by {node}, which an earlier run has elected: {why}"
                ))
                .advise("another failover may be under way; run it again when that has ended"));
            }
        }
        self.say(format_args!("{node}, which an earlier run had elected, is given up"));
        Ok(())
    }

    /// Has all candidates receive the relays' log concurrently; returns the first that has replayed it.
    async fn catch_up(&self, candidates: &[Candidate], target: &Target) -> Result<String, Failure> {
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
            let state = self.parts.look(node).await;
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

    /// Records the election of a node on the relays, before the promotion.
    async fn choose(&self, fenced: &Ballot, node: &str) -> Result<(), Failure> {
        let term = fenced.term;
        let each = fenced.relays.iter().map(|(relay, _)| async {
            (relay.name.clone(), self.parts.order(&relay.name, Order::Choose { term, node: node.into() }).await)
        });
        let mut orders: FuturesUnordered<_> = each.collect();
        let (mut agreed, mut refused) = (0, Vec::new());
        loop {
            let next = match fenced.elects(agreed) {
                false => orders.next().await,
                true => tokio::time::timeout(OTHERS, orders.next()).await.unwrap_or_default(),
            };
            match next {
                Some((_, Ok(_))) => agreed += 1,
                Some((relay, Err(why))) => refused.push(format!("  {relay}: {why}")),
                None => break,
            }
        }
        if !fenced.elects(agreed) {
            return Err(Failure::runtime(format!(
                "{node} is not elected: {agreed} relays agree to it, and {} are needed\n{}",
                fenced.quorum,
                refused.join("\n")
            ))
            .advise("another failover may be under way; run it again when that has ended"));
        }
        self.say(format_args!("elected {node} in term {term}"));
        Ok(())
    }

    /// Promotes the node: the point of no return. Returns the new timeline.
    async fn promote(&self, node: &str, fenced: &Ballot, guard: &impl Guard) -> Result<u32, Failure> {
        let each = fenced.relays.iter().map(|(relay, _)| self.parts.order(&relay.name, Order::Look));
        let ours = join_all(each).await;
        let ours = fenced.standing(ours.iter().filter_map(|answer| answer.as_ref().ok()));
        if !fenced.elects(ours) {
            return Err(Failure::runtime(format!(
                "{node} is not promoted: only {ours} relays still stand by term {}, and {} are needed: another failover was \
                 begun, or relays were lost",
                fenced.term, fenced.quorum
            ))
            .advise("run it again"));
        }
        guard.before_promotion().await.map_err(|why| Failure::runtime(format!("{node} is not promoted: {why}")))?;
        self.step("promoting");
        let promoted = note::promote(&self.parts, node, fenced.term, self.limit()).await;
        // The server is queried whatever the result: the answer may have been lost.
        let began = Instant::now();
        loop {
            match (self.parts.look(node).await, &promoted) {
                (Ok(state), _) if !state.standby => {
                    self.say(format_args!("promoted {node}: it writes timeline {}", state.timeline));
                    return Ok(state.timeline);
                }
                (Ok(_), Err(why)) => {
                    return Err(Failure::runtime(format!("{node} is not promoted: {why}")).advise("run it again"));
                }
                (other, _) if began.elapsed() > self.limit() => {
                    let why = other.err().unwrap_or_else(|| "it is in recovery".into());
                    return Err(Failure::runtime(format!("cannot tell that {node} was promoted: {why}"))
                        .advise("run it again: it goes on with the same node"));
                }
                _ => tokio::time::sleep(PACE).await,
            }
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
