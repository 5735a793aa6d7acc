//! What a model client must hear of what was notified.

use std::collections::{BTreeMap, HashSet};

use super::backend::{Backend, OWNER, Store};

/// What a client listens on, as far as it can know, and what it has heard.
#[derive(Debug, Default)]
pub(super) struct Ear {
    /// Channels, and how many notifications there had been when it knew that it listens.
    since: BTreeMap<u64, usize>,
    heard: HashSet<(u64, u64)>,
    /// Where the last that it has heard on a channel stands among all.
    last: BTreeMap<u64, usize>,
    /// As its reference counts.
    unlistened: usize,
}

impl Ear {
    /// It has been answered everything: from here on it hears of all.
    pub(super) fn opens(&mut self, reference: &Backend, store: &Store) {
        for &channel in &reference.listens {
            self.since.entry(channel).or_insert(store.notified.len());
        }
    }

    /// It has sent something, after which it may listen no more.
    pub(super) fn closes(&mut self, reference: &Backend) {
        if self.unlistened != reference.unlistened {
            self.unlistened = reference.unlistened;
            self.since.clear();
        }
    }

    /// It has been told that it listens on its own channel.
    pub(super) fn listens(&mut self, id: u64, store: &Store) {
        self.since.entry(id).or_insert(store.notified.len());
    }

    /// It hears something. `itself`: it takes it for what it has sent itself, under this number.
    pub(super) fn hears(&mut self, store: &Store, channel: u64, number: u64, itself: Option<u64>) {
        let at = store.notified.iter().position(|of| (of.0, of.1) == (channel, number));
        let at = at.unwrap_or_else(|| panic!("{number} was never notified on {channel}"));
        let last = self.last.insert(channel, at);
        assert!(last.is_none_or(|last| last < at), "{number} is heard on {channel} twice, or too late");
        assert!(itself.is_none_or(|id| number / OWNER == id), "{number} is taken for a client's own: {itself:?}");
        self.heard.insert((channel, number));
    }

    /// The first that it should have heard, and has not.
    pub(super) fn missed(&self, store: &Store) -> Option<(u64, u64)> {
        let of = |(&channel, &from): (&u64, &usize)| {
            let due = store.notified.iter().skip(from).filter(move |of| of.0 == channel);
            due.map(|of| (of.0, of.1)).find(|of| !self.heard.contains(of))
        };
        self.since.iter().find_map(of)
    }
}
