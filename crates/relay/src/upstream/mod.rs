//! Receiving from the upstream: one thread that reads and appends, one that acknowledges.
//!
//! ```text
//!  attempt: connect ─▶ who are you? ─▶ slot, histories ─▶ start where the log ends ─▶ receive ─▶ its timeline ended ─┐
//!     ▲                                                        ▲───────────── switch ◀───────────────────────────────┘
//!     └── back off; an alarm waits longer, and for a reload ◀── anything failed
//!         the upstream has no longer what comes next ─▶ catch up from another relay, and back to the upstream
//! ```
//!
//! *What must hold*: while input is available, the receiver does not wait for a flush; while there is none, it waits only on a disk that was quick
//! the last time. Only WAL is acknowledged that is durable here and that this very upstream has sent, or sent again with an equal comparison. Nothing
//! is truncated because an upstream says so.

mod acknowledge;
mod attempt;
mod catch_up;
mod control;
mod left;
mod remember;
mod silence;

pub(crate) use acknowledge::now_micros;
pub(crate) use control::Control;
pub(crate) use left::drop_left_slots;

use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info, warn};

use crate::config::UpstreamConfig;
use crate::error::{Cause, SessionError, UpstreamError};
use crate::log::{AppendError, Writer};
use crate::shared::Shared;
use attempt::{Attempt, Source};
use catch_up::catch_up;

/// First and longest pause between connection attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Pause while no host has the WAL that comes next: another relay may be about to start.
const GAP_PAUSE: Duration = Duration::from_secs(5);
/// Pause after an error that retrying does not fix.
const ALARM_PAUSE: Duration = Duration::from_secs(30);
/// Number of segments created ahead of time.
pub(crate) const SPARES: usize = 2;

/// Runs the receiving thread, until [`Control::stop`], or until the log has failed.
pub(crate) fn run(shared: &Arc<Shared>, mut writer: Option<Writer>) {
    let mut back_off = BACK_OFF.0;
    let mut said = String::new();
    // True if the upstream lacks the WAL that comes next, and this was logged.
    let mut lacks = false;
    let mut slot_is_lost = false;
    let mut overlaps = true;
    loop {
        let Some((config, generation)) = shared.control.wanted() else { return };
        if config.address.is_empty() {
            shared.upstream_is("no upstream is known", false);
            shared.control.pause(generation, ALARM_PAUSE);
            continue;
        }
        let upstream =
            Attempt { shared, config: &config, generation, source: Source::Upstream, slot_is_lost, overlaps };
        let mut failed = upstream.run(&mut writer, &mut back_off);
        shared.control.received();
        slot_is_lost = failed.is_lost_slot();
        overlaps = !matches!(failed, UpstreamError::NoOverlap);
        if !overlaps {
            info!(
                upstream = config.address,
                "the upstream has removed the segment before the next one: nothing can be compared but what follows it"
            );
            continue;
        }
        if failed.is_gap() && !shared.control.interrupted(generation) {
            if !lacks {
                warn!(upstream = config.address, error = %failed, "the upstream has no longer what comes next: asking other relays");
            }
            lacks = true;
            match catch_up(&upstream, &mut writer, &mut back_off) {
                Ok(()) => continue,
                Err(tried) => failed = UpstreamError::Gap { error: Box::new(failed), tried },
            }
        }
        shared.metrics.disconnects.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if shared.control.interrupted(generation) {
            back_off = BACK_OFF.0;
            continue;
        }
        lacks &= failed.is_gap();
        let alarm = failed.is_alarm();
        shared.upstream_is(&failed.to_string(), alarm);
        if let UpstreamError::Failed(_) | UpstreamError::Append(AppendError::Failed(_)) = failed {
            error!(error = %failed, "the log has failed, nothing is received any more");
            return;
        }
        let waits_for_others = match failed {
            UpstreamError::NoMemory(_) => Some(BACK_OFF.1),
            UpstreamError::Gap { .. } => Some(GAP_PAUSE),
            _ => None,
        };
        let pause = if let Some(pause) = waits_for_others {
            // Other relays may begin to answer at any time: it is retried soon, and logged once.
            let text = failed.to_string();
            if said != text {
                error!(upstream = config.address, error = text, "nothing is received");
                said = text;
            }
            jittered(pause)
        } else if alarm {
            error!(upstream = config.address, error = %failed, "the upstream cannot be followed; nothing was cut off");
            ALARM_PAUSE
        } else {
            match failed {
                UpstreamError::Session(SessionError { cause: Cause::ShuttingDown, .. }) => {
                    info!(upstream = config.address, "the upstream is shutting down")
                }
                error => warn!(upstream = config.address, %error, again_in = ?back_off, "not receiving"),
            }
            jittered(back_off)
        };
        shared.control.pause(generation, pause);
        back_off = (back_off * 2).min(BACK_OFF.1);
    }
}

/// Returns a random duration between half of `length` and `length`, so that many relays do not reconnect at the same moment.
pub(crate) fn jittered(length: Duration) -> Duration {
    let mut byte = [0; 1];
    let share = getrandom::fill(&mut byte).map_or(255, |()| u32::from(byte[0]));
    length / 2 + length * share / 510
}

pub(crate) fn password(config: &UpstreamConfig) -> Result<Option<String>, UpstreamError> {
    match (&config.password, &config.password_file) {
        (Some(password), _) => Ok(Some(password.clone())),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|source| {
                let path = path.clone();
                UpstreamError::State(Box::new(crate::error::StartError::File { tried: "read", path, source }))
            })?;
            Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
        }
        (None, None) => Ok(None),
    }
}

/// Parses `16MB` or `1GB`, the form of a setting with the unit byte.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "kB" => 10,
        "MB" => 20,
        "GB" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("16MB", Some(16 << 20)),
            ("1GB", Some(1 << 30)),
            ("64kB", Some(64 << 10)),
            ("512B", Some(512)),
            ("7", Some(7)),
            ("", None),
            ("MB", None),
            ("16 MB", None),
            ("99999999999999999999GB", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }

    #[test]
    fn jitter_stays_within_bounds() {
        for _ in 0..1000 {
            let pause = jittered(Duration::from_millis(100));
            assert!((50..=100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
