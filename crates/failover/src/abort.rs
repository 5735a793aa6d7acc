//! Abort of a failover: the old primary goes on.

use std::collections::BTreeSet;

use ::relay::{Order, RelayState};
use futures_util::future::join_all;

use super::ballot;
use super::failover_run::FailoverRun;
use super::lock;
use super::pause;
use super::plan::{Locked, RelaySeen, Situation, Survey, Unfit};
use process::Failure;

impl FailoverRun {
    /// Removes the leftovers of a failover or switchover that has promoted no node: fences, the elected node, the lock on the old primary, the pause
    /// of the proxies.
    ///
    /// # Errors
    /// A node was promoted, or may have been; or something could not be removed. Everything else is removed all the same.
    pub(super) async fn abort(&self) -> Result<(), Failure> {
        let survey = self.clients.survey().await;
        let situation = survey.situation().map_err(|error| Failure::runtime(error.to_string()))?;
        if let Situation::Promoted { primary, .. } = situation {
            return Err(Failure::runtime(format!("{primary} has been promoted: it can't be called off any more"))
                .advise("`kingpost failover` has relays and standbys follow it"));
        }
        let fenced = survey.standing().filter(|(_, standing)| standing.fenced.is_some());
        let fenced: Vec<(&RelaySeen, &RelayState)> = fenced.collect();
        if !fenced.is_empty() {
            self.release(&survey, &fenced).await?;
        }
        for (server, _) in survey.answering().filter(|(_, state)| state.locked != Locked::No) {
            match lock::unlock(&self.clients, &server.name).await {
                Ok(_) => self.say(format_args!("{} is not locked any more", server.name)),
                Err(why) => {
                    return Err(Failure::runtime(format!("{} is still locked: {why}", server.name)).advise(
                        "run it again; or there, as a superuser with PGOPTIONS='-c session_preload_libraries=': ALTER SYSTEM RESET \
                         session_preload_libraries; ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf();",
                    ));
                }
            }
        }
        match situation {
            Situation::Healthy { primary, .. } | Situation::Fenced { old: primary, .. } => {
                self.say(format_args!("{primary} goes on as the primary"));
                // Waiting clients need not wait until the lease of their pause ends.
                for (proxy, why) in pause::resume(&self.clients, 1).await {
                    self.say(format_args!("{proxy} may go on waiting until its lease ends: {why}"));
                }
            }
            Situation::NoPrimary { .. } | Situation::Promoted { .. } => {
                self.say(
                    "no relay that answers is fenced, and no primary answers: start it, or run `kingpost failover`",
                );
            }
        }
        Ok(())
    }

    /// Removes fences, and before that every election, once nobody can promote the elected node.
    async fn release(&self, survey: &Survey, fenced: &[(&RelaySeen, &RelayState)]) -> Result<(), Failure> {
        let mut term = ballot::next_term(survey.highest_term(), self.run);
        let elected: BTreeSet<&str> =
            fenced.iter().filter_map(|(_, standing)| Some(standing.chosen.as_ref()?.1.as_str())).collect();
        if !elected.is_empty() {
            let claimed = self.claim(survey, term, None).await;
            if let Some(node) = elected.iter().find(|node| !self.force && !claimed.iter().any(|name| name == *node)) {
                let in_term = survey.elected().map_or(0, |(term, _)| term);
                return Err(Failure::runtime(Unfit::Elected((*node).to_owned(), in_term).to_string()));
            }
            for (relay, standing) in fenced {
                let Some((_, node)) = &standing.chosen else { continue };
                // A relay withdraws in the term that it has promised.
                let timeline = standing.fenced.unwrap_or(standing.timeline);
                self.must(relay, Order::Fence { term, timeline }).await?;
                self.must(relay, Order::Withdraw { term, node: node.clone() }).await?;
                self.say(format_args!("{}: {node}, which was elected in an earlier run, is given up", relay.name));
            }
            term = ballot::next_term(term, self.run);
        }
        let each = fenced
            .iter()
            .map(|(relay, _)| async { (*relay, self.clients.order(&relay.name, Order::Release { term }).await) });
        let mut kept = Vec::new();
        for (relay, result) in join_all(each).await {
            match result {
                Ok(_) => self.say(format_args!("{} is not fenced any more", relay.name)),
                Err(why) => kept.push(format!("  {}: {why}", relay.name)),
            }
        }
        if kept.is_empty() {
            return Ok(());
        }
        Err(Failure::runtime(format!("some fences stay\n{}", kept.join("\n")))
            .advise("run it again, or `kingpost failover`"))
    }

    async fn must(&self, relay: &RelaySeen, order: Order) -> Result<(), Failure> {
        let result = self.clients.order(&relay.name, order).await;
        result.map(drop).map_err(|why| {
            Failure::runtime(format!("{} does not take it back: {why}", relay.name)).advise("run it again")
        })
    }
}
