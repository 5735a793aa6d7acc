//! Situation of servers with a binary log, from the answers to a survey. Pure: no I/O, no clock.

use super::super::judge::Judgement;
use super::super::plan::Survey;
use super::{BinlogServers, fit};

/// Situation of the servers and relays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Situation {
    /// The source of the relays answers, and no relay is fenced.
    Healthy { source: String },
    /// The source answers, relays are fenced from it, and no node is chosen: a run was interrupted.
    Fenced { source: String },
    /// A node is chosen as the next source, and a relay does not follow it yet.
    Chosen { node: String },
    /// No server answers that the relays receive from.
    NoSource,
}

/// Reason why a switchover cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unready {
    #[error("{0} is the source already")]
    Source(String),
    #[error("no server is named {0}")]
    Unknown(String),
    #[error("{0} does not answer")]
    Silent(String),
    #[error("{0} is set up to replicate from no server: it would take long to catch up")]
    Alone(String),
    #[error("no replica answers that could be promoted")]
    Nobody,
    #[error("{streaming} relays receive from {source_name}, and {needed} are needed")]
    TooFew { streaming: usize, source_name: String, needed: usize },
}

/// Returns the situation. The relay of the highest term names the source.
pub(super) fn situation(survey: &Survey<BinlogServers>) -> Situation {
    if let Some((_, node)) = survey.elected() {
        return Situation::Chosen { node };
    }
    let newest = survey.standing().filter(|(_, standing)| standing.epoch > 0).max_by_key(|(_, standing)| standing.term);
    let source = newest.and_then(|(_, newest)| {
        let is_source = |server_id| server_id == newest.source;
        survey.answering().find(|(_, state)| is_source(state.server_id)).map(|(node, _)| node.name.clone())
    });
    let fenced = survey.standing().any(|(_, standing)| standing.fenced);
    match source {
        Some(source) if fenced => Situation::Fenced { source },
        Some(source) => Situation::Healthy { source },
        None => Situation::NoSource,
    }
}

/// Judges a survey, for a watcher. A source that only this program cannot reach is not lost: it lives as long as a relay hears it.
pub(super) fn judge(survey: &Survey<BinlogServers>) -> Judgement {
    let situation = situation(survey);
    if let Situation::Healthy { source } = situation {
        return Judgement::Healthy(source);
    }
    let hears =
        |(_, standing): &(_, &::relay::BinlogStanding)| !standing.fenced && standing.upstream_state == "streaming";
    if situation == Situation::NoSource
        && let Some((relay, _)) = survey.standing().find(hears)
    {
        return Judgement::Unsure(format!("{} hears it", relay.name));
    }
    let (answering, needed) = (survey.standing().count(), survey.needed());
    if answering < needed {
        return Judgement::Unsure(format!("{answering} relays answer, and {needed} are needed"));
    }
    let fenced = survey.standing().any(|(_, standing)| standing.fenced);
    if situation == Situation::NoSource && !fenced { Judgement::Lost } else { Judgement::Unfinished }
}

/// Returns the node that a switchover away from `source` promotes.
///
/// # Errors
/// No such node, or too few relays receive.
pub(super) fn successor(survey: &Survey<BinlogServers>, source: &str, to: Option<&str>) -> Result<String, Unready> {
    if let Some(to) = to {
        if to == source {
            return Err(Unready::Source(to.into()));
        }
        let Some(server) = survey.server(to) else { return Err(Unready::Unknown(to.into())) };
        match &server.state {
            Err(_) => return Err(Unready::Silent(to.into())),
            Ok(state) if state.master.is_none() => return Err(Unready::Alone(to.into())),
            Ok(_) => {}
        }
    }
    let old = survey.state(source).map_or(0, |state| state.server_id);
    let receives = survey
        .standing()
        .filter(|(_, standing)| standing.upstream_state == "streaming" && !standing.fenced && standing.source == old);
    let (streaming, needed) = (receives.count(), survey.needed());
    if streaming < needed {
        return Err(Unready::TooFew { streaming, source_name: source.into(), needed });
    }
    let replicates = fit(survey, old, to).into_iter().find(|(_, state)| state.master.is_some());
    replicates.map(|(node, _)| node.name.clone()).ok_or(Unready::Nobody)
}

/// True if a relay has left its fence for a server.
pub(super) fn has_followed(standing: &::relay::BinlogStanding, server_id: u32) -> bool {
    !standing.fenced && standing.source == server_id
}
