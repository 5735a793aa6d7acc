//! Whether the store takes writes, as far as this node's own writes tell. Pure: time comes as an argument.
//!
//! A store can be read and not written: the disk is full, the file is read-only, the database has become a replica. Each node writes its
//! beat once a second, so that this is found out without a client; and a commit may need room where a beat does not.

use std::time::Duration;

use tokio::time::Instant;

/// A commit that failed is forgotten after so long, if beats are written: who is not ready gets no writes any more that could succeed.
const FORGET: Duration = Duration::from_secs(10);

/// What became of the last writes.
#[derive(Debug, Default)]
pub(crate) struct Writable {
    /// Why the last beat could not be written.
    beat: Option<String>,
    /// Why the last commit could not be written, and when that was.
    commit: Option<(String, Instant)>,
}

impl Writable {
    /// A beat was written, or could not be.
    pub(crate) fn beat(&mut self, written: Result<(), String>, now: Instant) {
        self.beat = written.err();
        let old = self.commit.as_ref().is_some_and(|(_, at)| now.duration_since(*at) >= FORGET);
        if self.beat.is_none() && old {
            self.commit = None;
        }
    }

    /// A batch was committed, or the store did not take it.
    pub(crate) fn commit(&mut self, written: Result<(), String>, now: Instant) {
        self.commit = written.err().map(|error| (error, now));
    }

    /// Why the store takes no writes; `None` while it does.
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
