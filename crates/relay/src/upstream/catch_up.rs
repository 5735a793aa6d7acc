//! Closing a gap: the upstream has removed the WAL that comes next here. Another relay may still have it.
//!
//! The other relay's WAL is the same: it is appended at the end of this log, and compared as far as the upstream sends it again. It is confirmed only
//! after the upstream has sent it, too.

use std::time::Duration;

use tracing::info;

use super::attempt::{Attempt, Source};
use crate::ask::recall;
use crate::error::UpstreamError;
use crate::log::Writer;

/// Time limit of one step of a relay's query.
const STEP: Duration = Duration::from_secs(3);

/// Receives from one of the other relays, up to its current end. Err: none has the missing WAL; the attempts.
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
            // This relay is listed, too.
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
