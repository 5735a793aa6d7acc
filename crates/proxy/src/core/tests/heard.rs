//! Which notifications a model client must get.

use std::collections::{BTreeMap, HashSet};

use super::backend::{Backend, OWNER, Store};

/// The channels that a client listens on, as far as it can know, and the notifications it has got.
#[derive(Debug, Default)]
pub(super) struct Ear {
    /// Channels, each with the number of notifications there had been when the client knew that it listens.
    since: BTreeMap<u64, usize>,
    heard: HashSet<(u64, u64)>,
    /// For each channel, the position of the client's last notification among all.
    last: BTreeMap<u64, usize>,
    /// The reference's count of channels given up.
    unlistened: usize,
}

impl Ear {
    /// The client has been answered everything: from here on it must get all notifications of its channels.
    pub(super) fn opens(&mut self, reference: &Backend, store: &Store) {
        for &channel in &reference.listens {
            self.since.entry(channel).or_insert(store.notified.len());
        }
    }

    /// The client has sent something after which it may not listen any more.
    pub(super) fn closes(&mut self, reference: &Backend) {
        if self.unlistened != reference.unlistened {
            self.unlistened = reference.unlistened;
            self.since.clear();
        }
    }

    /// The client was told that it listens on its own channel.
    pub(super) fn listens(&mut self, id: u64, store: &Store) {
        self.since.entry(id).or_insert(store.notified.len());
    }

    /// The client gets a notification. `itself`: it takes the notification for one that it sent itself, with this id.
    pub(super) fn hears(&mut self, store: &Store, channel: u64, number: u64, itself: Option<u64>) {
        let at = store.notified.iter().position(|of| (of.0, of.1) == (channel, number));
        let at = at.unwrap_or_else(|| panic!("{number} was never notified on {channel}"));
        let last = self.last.insert(channel, at);
        assert!(last.is_none_or(|last| last < at), "{number} is heard on {channel} twice, or too late");
        assert!(itself.is_none_or(|id| number / OWNER == id), "{number} is taken for a client's own: {itself:?}");
        self.heard.insert((channel, number));
    }

    /// The first notification that the client should have got, and has not.
    pub(super) fn missed(&self, store: &Store) -> Option<(u64, u64)> {
        let of = |(&channel, &from): (&u64, &usize)| {
            let due = store.notified.iter().skip(from).filter(move |of| of.0 == channel);
            due.map(|of| (of.0, of.1)).find(|of| !self.heard.contains(of))
        };
        self.since.iter().find_map(of)
    }
}
