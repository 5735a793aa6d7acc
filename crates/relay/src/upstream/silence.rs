//! Meaning of a silent upstream: a decision over moments, without a clock.
//!
//! A server without data sends nothing for half a minute, so it is asked for a reply. Silence counts only while the receiver waited for the upstream
//! and nothing could be read: a slow disk here, or a busy machine, is not the upstream's silence.

use std::time::{Duration, Instant};

/// Next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silence {
    /// Wait, and judge again at this moment.
    Wait(Instant),
    /// Ask for a reply.
    Ask,
    /// The upstream was asked, and did not answer: it counts as silent. Judge again at this moment.
    Unheard(Instant),
}

/// Decides the next step. `since`: start of the receiver's wait without data; None while it is busy. `asked`: the last request for a reply. The
/// upstream has `patience` to send something, and as long again to answer. `late`: this process runs much later than it meant to, because it or its
/// machine was suspended; the answer may be on its way, so the upstream is asked once more.
pub(super) fn judge(
    now: Instant,
    since: Option<Instant>,
    asked: Option<Instant>,
    patience: Duration,
    late: bool,
) -> Silence {
    let Some(since) = since else { return Silence::Wait(now + patience) };
    if now < since + patience {
        return Silence::Wait(since + patience);
    }
    match asked.filter(|asked| *asked >= since) {
        None => Silence::Ask,
        Some(asked) if now < asked + patience => Silence::Wait(asked + patience),
        Some(_) if late => Silence::Ask,
        Some(_) => Silence::Unheard(now + patience),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let patience = Duration::from_millis(2000);
        for (now, since, asked, expected, why) in [
            (5000, None, None, Silence::Wait(at(7000)), "something is being written to the disk"),
            (9000, None, Some(1000), Silence::Wait(at(11_000)), "the same, and an answer may lie in the socket"),
            (1999, Some(0), None, Silence::Wait(at(2000)), "not silent for long"),
            (2000, Some(0), None, Silence::Ask, "silent for so long"),
            (9000, Some(0), None, Silence::Ask, "this process stood still, and has not asked"),
            (3999, Some(0), Some(2000), Silence::Wait(at(4000)), "it was asked, and has time to answer"),
            (4000, Some(0), Some(2000), Silence::Unheard(at(6000)), "it did not answer"),
            (4000, Some(3000), Some(2000), Silence::Wait(at(5000)), "it did answer"),
            (5000, Some(3000), Some(2000), Silence::Ask, "and said nothing more since"),
            (2500, Some(500), Some(500), Silence::Unheard(at(4500)), "asked at the same moment"),
        ] {
            let asked = asked.map(at);
            assert_eq!(judge(at(now), since.map(at), asked, patience, false), expected, "{why}");
            let late = if let Silence::Unheard(_) = expected { Silence::Ask } else { expected };
            assert_eq!(
                judge(at(now), since.map(at), asked, patience, true),
                late,
                "{why}, and this process comes late"
            );
        }
    }
}
