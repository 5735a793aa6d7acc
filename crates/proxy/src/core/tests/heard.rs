//! The notifications that a model client must get.

use std::collections::{BTreeMap, HashSet};

use super::backend::{Backend, OWNER, Store};

/// The channels that a client listens on, as far as it can know, and the notifications that it has received.
#[derive(Debug, Default)]
pub(super) struct Ear {
    /// Channels, each with the number of notifications up to the moment at which the client knew that it listens.
    since: BTreeMap<u64, usize>,
    heard: HashSet<(u64, u64)>,
    /// Position of the client's last notification among all, by channel.
    last: BTreeMap<u64, usize>,
    /// The reference's count of removed channels.
    unlistened: usize,
}

impl Ear {
    /// Records that all of the client's messages have been answered: from here on it must get all notifications of its channels.
    pub(super) fn opens(&mut self, reference: &Backend, store: &Store) {
        for &channel in &reference.listens {
            self.since.entry(channel).or_insert(store.notified.len());
        }
    }

    /// Records that the client has sent a message after which it may not listen any more.
    pub(super) fn closes(&mut self, reference: &Backend) {
        if self.unlistened != reference.unlistened {
            self.unlistened = reference.unlistened;
            self.since.clear();
        }
    }

    /// Records that the client was told that it listens on its own channel.
    pub(super) fn listens(&mut self, id: u64, store: &Store) {
        self.since.entry(id).or_insert(store.notified.len());
    }

    /// Checks a notification for the client. `itself`: the client takes the notification for its own, with this ID.
    pub(super) fn hears(&mut self, store: &Store, channel: u64, number: u64, itself: Option<u64>) {
        let at = store.notified.iter().position(|of| (of.0, of.1) == (channel, number));
        let at = at.unwrap_or_else(|| panic!("{number} was never notified on {channel}"));
        let last = self.last.insert(channel, at);
        assert!(last.is_none_or(|last| last < at), "{number} is heard on {channel} twice, or too late");
        assert!(itself.is_none_or(|id| number / OWNER == id), "{number} is taken for a client's own: {itself:?}");
        self.heard.insert((channel, number));
    }

    /// Returns the first notification that the client should have received, and has not.
    pub(super) fn missed(&self, store: &Store) -> Option<(u64, u64)> {
        let of = |(&channel, &from): (&u64, &usize)| {
            let due = store.notified.iter().skip(from).filter(move |of| of.0 == channel);
            due.map(|of| (of.0, of.1)).find(|of| !self.heard.contains(of))
        };
        self.since.iter().find_map(of)
    }
}
