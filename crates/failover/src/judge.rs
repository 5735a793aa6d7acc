//! Judgement of a survey, for a watcher. Pure: no I/O, no clock of its own.

use std::time::Duration;

use super::plan::{Situation, Survey, Undecided};

/// Judgement of a survey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// A working primary, and nothing to do.
    Healthy(String),
    /// A possibly lost primary: not enough to act on.
    Unsure(String),
    /// A lost primary: no commit is acknowledged any more, and no relay hears it.
    Lost,
    /// A failover that was begun, and not ended.
    Unfinished,
}

/// Judges a survey. A primary that only this program cannot reach is not lost: it lives as long as a relay hears it.
pub(super) fn judge(survey: &Survey) -> Judgement {
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
            let (answering, needed) = (survey.standing().count(), survey.needed());
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

/// Next step of `kingpost failover`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FailoverDecision {
    /// A node was promoted: relays and standbys have to follow it.
    Follow { primary: String, timeline: u32 },
    /// No step: the primary answers.
    Nothing { primary: String, timeline: u32 },
    /// The primary answers, and relays are fenced by a run that has elected no node.
    Interrupted { old: String },
    /// No primary answers here, but this relay receives from it.
    Heard { relay: String, upstream: String },
    /// The timeline must be ended.
    Away { timeline: u32 },
}

/// Decides the next step of a failover. `force`: away from a primary in any case, unless a node was promoted already.
///
/// # Errors
/// Nobody answers, or there are two primaries.
pub(super) fn course(survey: &Survey, force: bool) -> Result<FailoverDecision, Undecided> {
    Ok(match survey.situation()? {
        Situation::Promoted { primary, timeline } => FailoverDecision::Follow { primary, timeline },
        Situation::Healthy { primary, timeline } if !force => FailoverDecision::Nothing { primary, timeline },
        Situation::Fenced { old, .. } if survey.elected().is_none() && !force => FailoverDecision::Interrupted { old },
        Situation::Healthy { timeline, .. } | Situation::Fenced { timeline, .. } => FailoverDecision::Away { timeline },
        Situation::NoPrimary { timeline } => {
            let receives = survey.standing().find(|(_, standing)| {
                standing.state == "streaming" && standing.fenced.is_none() && standing.timeline == timeline
            });
            match receives {
                Some((relay, standing)) if !force => {
                    FailoverDecision::Heard { relay: relay.name.clone(), upstream: standing.upstream.clone() }
                }
                _ => FailoverDecision::Away { timeline },
            }
        }
    })
}

/// Judgements so far. Times are those of a clock that runs only while the watcher does ([`super::suspend_aware_clock`]): a suspended watcher does not
/// lengthen the time of a loss.
#[derive(Debug, Default)]
pub(super) struct Watched {
    last: Option<(Judgement, Duration)>,
    advised: bool,
}

/// Action due after a survey.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// None, or not yet.
    Nothing,
    /// The primary has been lost for long enough, which has not been reported yet.
    Advice,
    /// The primary has been lost for long enough.
    Failover,
}

impl Watched {
    /// Records a judgement; true if it differs from the last one.
    pub(super) fn see(&mut self, judgement: &Judgement, now: Duration) -> bool {
        if self.last.as_ref().is_some_and(|(last, _)| last == judgement) {
            return false;
        }
        self.last = Some((judgement.clone(), now));
        self.advised = false;
        true
    }

    /// Returns the action due once the primary has been lost for `after`. `acts`: the watcher may fail over by itself.
    pub(super) fn due(&mut self, now: Duration, after: Duration, acts: bool) -> Due {
        let Some((Judgement::Lost | Judgement::Unfinished, since)) = &self.last else { return Due::Nothing };
        if now.saturating_sub(*since) < after {
            return Due::Nothing;
        }
        match (acts, self.advised) {
            (true, _) => Due::Failover,
            (false, true) => Due::Nothing,
            (false, false) => {
                self.advised = true;
                Due::Advice
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due() {
        let at = Duration::from_secs;
        let after = Duration::from_secs(2);
        for (acts, first, again) in [(true, Due::Failover, Due::Failover), (false, Due::Advice, Due::Nothing)] {
            let mut watched = Watched::default();
            assert!(watched.see(&Judgement::Healthy("a".into()), at(0)));
            assert!(!watched.see(&Judgement::Healthy("a".into()), at(9)));
            assert_eq!(watched.due(at(9), after, acts), Due::Nothing);
            // No certainty, which counts for nothing.
            assert!(watched.see(&Judgement::Unsure("r hears it".into()), at(10)));
            assert_eq!(watched.due(at(20), after, acts), Due::Nothing);
            assert!(watched.see(&Judgement::Lost, at(20)));
            assert_eq!(watched.due(at(21), after, acts), Due::Nothing);
            assert_eq!(watched.due(at(22), after, acts), first);
            assert_eq!(watched.due(at(23), after, acts), again);
            // The primary was there in between.
            assert!(watched.see(&Judgement::Healthy("a".into()), at(24)));
            assert!(watched.see(&Judgement::Lost, at(25)));
            assert_eq!(watched.due(at(26), after, acts), Due::Nothing);
            assert_eq!(watched.due(at(27), after, acts), first);
        }
    }
}
