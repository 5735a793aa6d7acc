//! Listeners: each is woken for its own entries only, and is told which.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::entry::ConfigKey;
use crate::model::NamespaceName;

/// An entry with the reserved namespace that holds it.
type Name = (NamespaceName, ConfigKey);

/// Listeners of all namespaces, by entry.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    entries: Mutex<HashMap<Name, HashMap<u64, Arc<Mailbox>>>>,
    next: AtomicU64,
    /// Number of wake-ups.
    woken: AtomicU64,
}

/// The changed entries that a listener has not taken yet. A set: an entry that changes twice is there once, so its size is bounded by the listener's.
#[derive(Debug, Default)]
struct Mailbox {
    changed: Mutex<BTreeSet<Name>>,
    notify: Notify,
}

/// A client that listens to entries; dropping it ends that.
#[derive(Debug)]
pub struct Listener {
    of: Arc<Listeners>,
    number: u64,
    mailbox: Arc<Mailbox>,
    names: Mutex<BTreeSet<Name>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    fn put(&self, name: &Name) {
        lock(&self.changed).insert(name.clone());
        self.notify.notify_one();
    }
}

impl Listeners {
    /// Makes a listener of nothing.
    pub(crate) fn listener(self: &Arc<Listeners>) -> Listener {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Listener { of: Arc::clone(self), number, mailbox: Arc::default(), names: Mutex::default() }
    }

    /// Wakes the listeners of an entry.
    pub(crate) fn wake(&self, space: &NamespaceName, key: ConfigKey) {
        let name = (space.clone(), key);
        let entries = lock(&self.entries);
        for mailbox in entries.get(&name).into_iter().flat_map(HashMap::values) {
            self.woken.fetch_add(1, Ordering::Relaxed);
            mailbox.put(&name);
        }
    }

    /// Wakes all listeners: the state may be of another history.
    pub(crate) fn wake_all(&self) {
        for (name, listeners) in lock(&self.entries).iter() {
            for mailbox in listeners.values() {
                self.woken.fetch_add(1, Ordering::Relaxed);
                mailbox.put(name);
            }
        }
    }

    /// True if there is no listener.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.entries).is_empty()
    }

    /// Returns the number of wake-ups so far.
    pub(crate) fn woken(&self) -> u64 {
        self.woken.load(Ordering::Relaxed)
    }

    fn remove(&self, name: &Name, number: u64) {
        let mut entries = lock(&self.entries);
        if let Some(listeners) = entries.get_mut(name) {
            listeners.remove(&number);
            if listeners.is_empty() {
                entries.remove(name);
            }
        }
    }
}

impl Listener {
    /// Listens to an entry from now on.
    pub fn add(&self, namespace: &NamespaceName, key: &ConfigKey) {
        let name = (NamespaceName::of_config(namespace), key.clone());
        if lock(&self.names).insert(name.clone()) {
            lock(&self.of.entries).entry(name).or_default().insert(self.number, Arc::clone(&self.mailbox));
        }
    }

    /// Listens to an entry no longer.
    pub fn remove(&self, namespace: &NamespaceName, key: &ConfigKey) {
        let name = (NamespaceName::of_config(namespace), key.clone());
        if lock(&self.names).remove(&name) {
            self.of.remove(&name, self.number);
            lock(&self.mailbox.changed).remove(&name);
        }
    }

    /// Waits until an entry has changed that was not taken yet.
    pub async fn changed(&self) {
        loop {
            // `notify_one` keeps a permit, so a change between the check and the wait is not lost.
            if !lock(&self.mailbox.changed).is_empty() {
                return;
            }
            self.mailbox.notify.notified().await;
        }
    }

    /// Takes one changed entry, named by its reserved namespace; each is reported once.
    pub fn pop(&self) -> Option<Name> {
        lock(&self.mailbox.changed).pop_first()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for name in std::mem::take(&mut *lock(&self.names)) {
            self.of.remove(&name, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_change_wakes_its_own_listeners_only() {
        let (one, other) = (NamespaceName::new("one").unwrap(), NamespaceName::new("other").unwrap());
        let key = |n: usize| ConfigKey::new("g", &format!("id-{n}")).unwrap();
        let listeners = Arc::new(Listeners::default());
        let crowd: Vec<Listener> = (0..10_000)
            .map(|n| {
                let listener = listeners.listener();
                listener.add(&one, &key(n));
                listener.add(&one, &key(n + 10_000));
                listener
            })
            .collect();
        let second = listeners.listener();
        second.add(&one, &key(7));
        let stranger = listeners.listener();
        stranger.add(&other, &key(7));
        listeners.wake(&NamespaceName::of_config(&one), key(7));
        assert_eq!(listeners.woken(), 2, "of ten thousand listeners");
        let is_woken = |listener: &Listener| listener.changed().now_or_never().is_some();
        assert!(is_woken(&crowd[7]) && is_woken(&second));
        assert!(!is_woken(&crowd[8]) && !is_woken(&stranger));
        // A second change before the first was taken is one entry.
        listeners.wake(&NamespaceName::of_config(&one), key(7));
        assert_eq!(crowd[7].pop(), Some((NamespaceName::of_config(&one), key(7))));
        assert!(crowd[7].pop().is_none() && !is_woken(&crowd[7]));
        second.remove(&one, &key(7));
        assert!(!is_woken(&second));
        listeners.wake_all();
        assert!(is_woken(&stranger));
        drop((crowd, second, stranger));
        assert!(listeners.is_empty());
    }
}
