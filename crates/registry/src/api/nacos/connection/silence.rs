//! Detection of silent clients: when a client is sent a probe, and when its connection is cut. Pure.

use std::time::Duration;

/// Silence after which a client is sent a probe. Clients send a message every 5 s.
const ASK: Duration = Duration::from_secs(20);

/// The next step for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// None: the client is alive.
    Nothing,
    /// Send a probe.
    Ask,
    /// Cut the connection: the client was sent a probe at the previous check and is still silent.
    Cut,
}

/// Returns the next step after a time of silence; `asked` means that the previous check led to [`Step::Ask`].
pub(super) fn step(silence: Duration, asked: bool) -> Step {
    match (silence >= ASK, asked) {
        (false, _) => Step::Nothing,
        (true, false) => Step::Ask,
        (true, true) => Step::Cut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_asked_and_who_is_cut() {
        for (silence, asked, expected) in [
            (0, false, Step::Nothing),
            (19, false, Step::Nothing),
            (19, true, Step::Nothing),
            (20, false, Step::Ask),
            (25, true, Step::Cut),
            // After a suspension of this node, however long, the client is first sent a probe.
            (3600, false, Step::Ask),
        ] {
            assert_eq!(step(Duration::from_secs(silence), asked), expected, "{silence} {asked}");
        }
    }
}
