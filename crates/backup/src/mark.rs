//! The mark of a backup that is being made or removed, and the decision to clean up after one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time between two beats of a mark.
pub(crate) const BEAT: Duration = Duration::from_secs(10);
/// Time without a beat after which a backup elsewhere counts as dead.
const DEAD: Duration = Duration::from_secs(60);
/// Age of a mark, by this host's clock, at which a single look is enough, in seconds.
const OLD: u64 = 86_400;

/// State of a backup that has no record, or loses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Making,
    Removing,
}

/// The mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) state: State,
    /// Boot and process namespace of the writer.
    place: String,
    pid: u32,
    /// Start of the process, in ticks since the boot.
    started: u64,
    /// Number that rises while the writer lives.
    pub(crate) beat: u64,
    /// Time of the beat, in seconds since 1970, by the writer's clock.
    pub(crate) time: u64,
}

impl Mark {
    /// Makes a mark of this process.
    pub(crate) fn here(state: State, beat: u64, time: u64) -> Mark {
        let pid = std::process::id();
        Mark { state, place: place(), pid, started: start_of(pid).unwrap_or(0), beat, time }
    }

    /// True if the process that wrote the mark is known to be gone: it ran here.
    fn is_gone(&self) -> bool {
        !self.place.is_empty() && self.place == place() && start_of(self.pid) != Some(self.started)
    }
}

/// True if a backup without a record may be removed. `first` and `now`: its mark when it was first looked at, and now; `between`: the time in between;
/// `time`: now, in seconds since 1970.
pub(crate) fn is_dead(first: Option<&Mark>, now: Option<&Mark>, between: Duration, time: u64) -> bool {
    match (first, now) {
        // A mark is written first and removed last.
        (None, None) => between >= DEAD,
        (Some(first), Some(now)) if first == now => {
            now.is_gone() || between >= DEAD || time.saturating_sub(now.time) >= OLD
        }
        _ => false,
    }
}

/// Returns the identity of the boot and the process namespace; empty if it is not known.
fn place() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = std::fs::read_link("/proc/self/ns/pid").map(|link| link.display().to_string()).unwrap_or_default();
    if boot.is_empty() || space.is_empty() { String::new() } else { format!("{} {space}", boot.trim()) }
}

/// Returns the start of a process, in ticks since the boot.
fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; the state is the first field behind it, the start the twentieth.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_dead_is_removed() {
        let here = Mark::here(State::Making, 1, 1000);
        let gone = Mark { started: here.started + 1, ..here.clone() };
        let elsewhere = Mark { place: "another host".into(), ..here.clone() };
        let beaten = Mark { beat: 2, ..elsewhere.clone() };
        let seconds = Duration::from_secs;
        for (first, now, between, time, expected) in [
            (Some(&here), Some(&here), seconds(1), 1000, false),
            (Some(&gone), Some(&gone), seconds(0), 1000, true),
            (Some(&elsewhere), Some(&elsewhere), seconds(59), 1000, false),
            (Some(&elsewhere), Some(&elsewhere), seconds(60), 1000, true),
            (Some(&elsewhere), Some(&beaten), seconds(600), 1000, false),
            (Some(&elsewhere), Some(&elsewhere), seconds(0), 1000 + OLD, true),
            // A clock that is ahead of ours.
            (Some(&elsewhere), Some(&elsewhere), seconds(0), 10, false),
            (None, Some(&elsewhere), seconds(600), 1000, false),
            (None, None, seconds(1), 1000, false),
            (None, None, seconds(60), 1000, true),
        ] {
            assert_eq!(is_dead(first, now, between, time), expected, "{first:?} {now:?} {between:?}");
        }
    }
}
