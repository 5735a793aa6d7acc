//! Whether the oracle's question also makes the primary flush its log.
//!
//! Then commits need not flush it one by one: sessions commit with `synchronous_commit = off`, and one question flushes for all
//! that were committed before it. Nothing is believed because of it: whoever waits for a commit compares positions, as ever. A
//! flush that was not asked for, or is lost, makes them wait for PostgreSQL's WAL writer instead. The WAL writer does not flush
//! everything, though: what a transaction that is still open has written lies in the last page until somebody commits. So whoever waits
//! for a position that is not flushed says that a flush is *needed*; then a question flushes also where it takes a transaction.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// Since which version a message can be flushed without a transaction (`server_version_num`).
const SINCE: i32 = 170_000;

/// Who flushes the log of the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushing {
    /// Every commit for itself.
    Commits,
    /// The oracle's questions, where the server can do that without a transaction: since PostgreSQL 17.
    Questions,
    /// The oracle's questions, on older servers by a transaction, which takes a transaction id each time.
    Transactions,
}

/// What the questions do, besides asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Message,
    Transaction,
}

/// What is wanted, and what the server can do.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    /// A [`Flushing`].
    policy: AtomicU8,
    /// `server_version_num` of the last primary; 0: not known yet.
    version: AtomicI32,
    /// How much somebody has wanted a flush since the last question that flushed: [`NOT_WANTED`], [`WANTED`] or [`NEEDED`]. One number, so
    /// that a question takes all of it or nothing.
    wanted: AtomicU8,
}

const NOT_WANTED: u8 = 0;
/// Somebody has seen a commit.
const WANTED: u8 = 1;
/// Somebody waits for a position that was not flushed when it was asked for.
const NEEDED: u8 = 2;

impl Flush {
    pub(crate) fn set(&self, policy: Flushing) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    pub(crate) fn found(&self, version: i32) {
        self.version.store(version, Ordering::Relaxed);
    }

    pub(crate) fn want(&self) {
        self.raise(WANTED);
    }

    /// A flush is wanted, and nobody else may come to flush.
    pub(crate) fn need(&self) {
        self.raise(NEEDED);
    }

    fn raise(&self, to: u8) {
        // A load first: it leaves the cache line with all who only look, and mostly a flush is wanted already.
        if self.wanted.load(Ordering::SeqCst) < to {
            self.wanted.fetch_max(to, Ordering::SeqCst);
        }
    }

    /// Whether the next question would flush.
    pub(crate) fn is_wanted(&self) -> bool {
        self.question(self.wanted.load(Ordering::SeqCst)).is_some()
    }

    /// To be called after a batch was begun, before its question is sent: whoever wanted a flush before it gets one now.
    pub(crate) fn take(&self) -> Option<By> {
        // What is raised between the two is taken as well: the level only rises, and a question for the higher one serves both.
        if self.is_wanted() { self.question(self.wanted.swap(NOT_WANTED, Ordering::SeqCst)) } else { None }
    }

    /// What a question can do for who wants a flush so much: also for a single session that has chosen not to wait for its own, where that
    /// needs no transaction, or where it is needed.
    fn question(&self, wanted: u8) -> Option<By> {
        if wanted == NOT_WANTED {
            return None;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.by().or_else(|| match version {
            0 => None,
            SINCE.. => Some(By::Message),
            _ => (wanted == NEEDED).then_some(By::Transaction),
        })
    }

    pub(crate) fn by(&self) -> Option<By> {
        by(self.policy.load(Ordering::Relaxed), self.version.load(Ordering::Relaxed))
    }
}

fn by(policy: u8, version: i32) -> Option<By> {
    match policy {
        _ if version == 0 || policy == Flushing::Commits as u8 => None,
        _ if version >= SINCE => Some(By::Message),
        _ => (policy == Flushing::Transactions as u8).then_some(By::Transaction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_flushes() {
        for (policy, version, expected, asked) in [
            (Flushing::Commits, 169_999, None, None),
            (Flushing::Commits, 180_001, None, Some(By::Message)),
            (Flushing::Questions, 0, None, None),
            (Flushing::Questions, 169_999, None, None),
            (Flushing::Questions, 170_000, Some(By::Message), Some(By::Message)),
            (Flushing::Transactions, 0, None, None),
            (Flushing::Transactions, 130_023, Some(By::Transaction), Some(By::Transaction)),
            (Flushing::Transactions, 180_001, Some(By::Message), Some(By::Message)),
        ] {
            let flush = Flush::default();
            flush.set(policy);
            flush.found(version);
            assert_eq!(flush.by(), expected, "{policy:?} {version}");
            assert_eq!(flush.take(), None, "nobody wants it");
            flush.want();
            assert_eq!(flush.is_wanted(), asked.is_some(), "{policy:?} {version}");
            assert_eq!(flush.take(), asked, "{policy:?} {version}");
            assert!(!flush.is_wanted() && flush.take().is_none(), "once is enough");
        }
    }

    #[test]
    fn who_needs_a_flush_gets_one() {
        for (policy, version, expected) in [
            (Flushing::Commits, 0, None),
            (Flushing::Commits, 150_018, Some(By::Transaction)),
            (Flushing::Questions, 169_999, Some(By::Transaction)),
            (Flushing::Commits, 170_000, Some(By::Message)),
            (Flushing::Transactions, 150_018, Some(By::Transaction)),
        ] {
            let flush = Flush::default();
            flush.set(policy);
            flush.found(version);
            flush.need();
            assert_eq!(flush.is_wanted(), expected.is_some(), "{policy:?} {version}");
            assert_eq!(flush.take(), expected, "{policy:?} {version}");
            flush.found(if version == 0 { 150_018 } else { version });
            let later = (version == 0).then_some(By::Transaction);
            assert_eq!(flush.take(), later, "{policy:?} {version}: what cannot be done yet stays needed, once");
            assert_eq!(flush.take(), None, "{policy:?} {version}");
        }
    }
}
