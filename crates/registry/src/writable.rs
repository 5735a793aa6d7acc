//! Write availability of the store, according to this node's own writes. Pure: time is an argument.
//!
//! A store may be readable and not writable: the disk is full, the file is read-only, the database has become a replica. Each node writes its beat
//! once a second, so this is detected without a client; a commit may still need room that a beat does not.

use std::time::Duration;

use tokio::time::Instant;

/// Time after which a failed commit is forgotten if beats succeed: a node that is not ready gets no writes that could prove otherwise.
const FORGET: Duration = Duration::from_secs(10);

/// Results of the last writes.
#[derive(Debug, Default)]
pub(crate) struct Writable {
    /// Error of the last beat, if it failed.
    beat: Option<String>,
    /// Error and time of the last commit, if it failed.
    commit: Option<(String, Instant)>,
}

impl Writable {
    /// Records the result of a beat.
    pub(crate) fn beat(&mut self, written: Result<(), String>, now: Instant) {
        self.beat = written.err();
        let old = self.commit.as_ref().is_some_and(|(_, at)| now.duration_since(*at) >= FORGET);
        if self.beat.is_none() && old {
            self.commit = None;
        }
    }

    /// Records the result of a commit.
    pub(crate) fn commit(&mut self, written: Result<(), String>, now: Instant) {
        self.commit = written.err().map(|error| (error, now));
    }

    /// Returns the reason why the store takes no writes; `None` while it does.
    pub(crate) fn error(&self) -> Option<&str> {
        self.commit.as_ref().map(|(error, _)| error.as_str()).or(self.beat.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_writes_tell() {
        enum Event {
            Beat(bool),
            Commit(bool),
        }
        use Event::{Beat, Commit};
        let began = Instant::now();
        let mut writable = Writable::default();
        for (second, event, error) in [
            (0, Beat(true), None),
            (1, Beat(false), Some("beat")),
            (2, Beat(true), None),
            (3, Commit(false), Some("commit")),
            // A beat needs less room than a commit.
            (4, Beat(true), Some("commit")),
            (5, Commit(true), None),
            (6, Commit(false), Some("commit")),
            (15, Beat(true), Some("commit")),
            (16, Beat(false), Some("commit")),
            (17, Beat(true), None),
            (18, Commit(true), None),
        ] {
            let now = began + Duration::from_secs(second);
            let told = |good: bool, what: &str| if good { Ok(()) } else { Err(what.to_owned()) };
            match event {
                Beat(good) => writable.beat(told(good, "beat"), now),
                Commit(good) => writable.commit(told(good, "commit"), now),
            }
            assert_eq!(writable.error(), error, "second {second}");
        }
    }
}
