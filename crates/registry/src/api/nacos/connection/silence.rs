//! When a client is asked whether it is there, and when its connection is cut. Pure.

use std::time::Duration;

/// Who is silent for so long is asked. Clients say something every 5 s.
const ASK: Duration = Duration::from_secs(20);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The client lives.
    Nothing,
    /// Ask it.
    Ask,
    /// It was asked at the look before this one, and has said nothing since.
    Cut,
}

/// What to do after so much silence; `asked`: the last look led to [`Step::Ask`].
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
            // This node stood still: the client is asked first, however long that was.
            (3600, false, Step::Ask),
        ] {
            assert_eq!(step(Duration::from_secs(silence), asked), expected, "{silence} {asked}");
        }
    }
}
