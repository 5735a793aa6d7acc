//! Flushes of the primary's log by the oracle's query.
//!
//! If it flushes, commits need not flush one by one: sessions commit with `synchronous_commit = off`, and one query flushes all commits before it. No
//! decision relies on the flush: a waiting commit compares positions as always. If the flush was not requested, or is lost, it waits for
//! PostgreSQL's WAL writer instead. The WAL writer does not flush the whole log, however: the writes of an open transaction stay in the last page
//! until some transaction commits. So a waiter at an unflushed position reports that a flush is *needed*; then a query flushes even if that takes a
//! transaction.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// First version that can flush a message without a transaction (`server_version_num`).
const SINCE: i32 = 170_000;

/// Policy for flushing the primary's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushing {
    /// Every commit flushes for itself.
    Commits,
    /// The oracle's queries flush, if the server can do that without a transaction: since PostgreSQL 17.
    Questions,
    /// The oracle's queries flush, on older servers by a transaction, which takes a transaction ID each time.
    Transactions,
}

/// Means by which a query flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Message,
    Transaction,
}

/// Requested flushes, and the server's capabilities.
#[derive(Debug, Default)]
pub(crate) struct Flush {
    /// A [`Flushing`].
    policy: AtomicU8,
    /// `server_version_num` of the last primary; 0 if not yet known.
    version: AtomicI32,
    /// Level of the requested flush since the last query that flushed: [`NOT_WANTED`], [`WANTED`] or [`NEEDED`]. One number, so that a query takes
    /// the whole request or none of it.
    wanted: AtomicU8,
}

const NOT_WANTED: u8 = 0;
/// A commit was seen.
const WANTED: u8 = 1;
/// A client waits for a position that was not flushed at its query.
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

    /// Requests a flush, since possibly no other commit will cause one.
    pub(crate) fn need(&self) {
        self.raise(NEEDED);
    }

    fn raise(&self, to: u8) {
        // A load first: it leaves the cache line shared with the readers, and mostly a flush is already requested.
        if self.wanted.load(Ordering::SeqCst) < to {
            self.wanted.fetch_max(to, Ordering::SeqCst);
        }
    }

    /// True if the next query would flush.
    pub(crate) fn is_wanted(&self) -> bool {
        self.question(self.wanted.load(Ordering::SeqCst)).is_some()
    }

    /// Takes the request, after a batch was begun and before its query is sent: this query serves all earlier requests.
    pub(crate) fn take(&self) -> Option<By> {
        // A request raised between the two is also taken: the level only rises, and a query for the higher one serves both.
        if self.is_wanted() { self.question(self.wanted.swap(NOT_WANTED, Ordering::SeqCst)) } else { None }
    }

    /// Returns the flush by a query for this level of request: also for a single session that has chosen not to wait for its own flush, if that needs
    /// no transaction, or is needed.
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
