//! A gap: the upstream has removed WAL that comes next here. Another relay may still have it.
//!
//! What comes from there is the same WAL: it is appended where this log ends, and compared as far as the upstream sends it again. Nothing of it is
//! confirmed before the upstream has.

use std::time::Duration;

use tracing::info;

use super::attempt::{Attempt, Source};
use crate::ask::recall;
use crate::error::UpstreamError;
use crate::log::Writer;

/// Longest time for one step of asking a relay what it has.
const STEP: Duration = Duration::from_secs(3);

/// Receives from one of the other relays, up to where that is. Err: none has what is missing; what was tried.
pub(super) fn catch_up(
    upstream: &Attempt<'_>,
    writer: &mut Option<Writer>,
    back_off: &mut Duration,
) -> Result<(), Vec<String>> {
    let shared = upstream.shared;
    let position = |writer: &Option<Writer>| writer.as_ref().map(Writer::position);
    let mut tried = Vec::new();
    for relay in &shared.surroundings().relays {
        match recall(&relay.access(), STEP) {
            Err(error) => {
                tried.push(error.to_string());
                continue;
            }
            // This one is listed too.
            Ok(told) if told.instance == shared.instance => continue,
            Ok(_) => {}
        }
        let before = position(writer);
        let mut attempt = Attempt { source: Source::Relay(relay), overlaps: true, ..*upstream };
        let mut failed = attempt.run(writer, back_off);
        if let UpstreamError::NoOverlap = failed {
            attempt.overlaps = false;
            failed = attempt.run(writer, back_off);
        }
        shared.control.received();
        if position(writer) > before || shared.control.interrupted(upstream.generation) {
            info!(relay = relay.name, end = %failed, "received what the upstream has no longer");
            return Ok(());
        }
        tried.push(match failed {
            UpstreamError::CaughtUp => format!("relay {} has no more than this one", relay.name),
            failed => failed.to_string(),
        });
    }
    Err(tried)
}
