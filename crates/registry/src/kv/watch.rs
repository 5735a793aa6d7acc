//! Watchers of a key, of a prefix, or of sessions.
//!
//! A change wakes only its own watchers: a changed key is looked up as such, and by its prefix of each length that is watched in its namespace.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::state::Touched;
use crate::model::NamespaceName;

/// The watched object, in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A key.
    Key(Arc<str>),
    /// Every key with a prefix.
    Tree(Arc<str>),
    /// Any session.
    Sessions,
}

/// Watchers of all namespaces.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    spaces: Mutex<HashMap<NamespaceName, Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    subjects: HashMap<Subject, Arc<Notify>>,
    /// Lengths of the watched prefixes, and the number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

/// A registered watcher; dropping it unregisters it.
#[derive(Debug)]
pub(crate) struct Watcher<'a> {
    watchers: &'a Watchers,
    namespace: NamespaceName,
    subject: Subject,
    pub(crate) notify: Arc<Notify>,
}

impl Watchers {
    fn lock(&self) -> MutexGuard<'_, HashMap<NamespaceName, Waiting>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a watcher of `subject`. A change wakes it only once the [`Notify`] has been polled or enabled.
    pub(crate) fn watch(&self, namespace: &NamespaceName, subject: Subject) -> Watcher<'_> {
        let mut spaces = self.lock();
        let waiting = spaces.entry(namespace.clone()).or_default();
        let notify = match waiting.subjects.get(&subject) {
            Some(notify) => Arc::clone(notify),
            None => {
                if let Subject::Tree(prefix) = &subject {
                    *waiting.lengths.entry(prefix.len()).or_default() += 1;
                }
                let notify = Arc::new(Notify::new());
                waiting.subjects.insert(subject.clone(), Arc::clone(&notify));
                notify
            }
        };
        Watcher { watchers: self, namespace: namespace.clone(), subject, notify }
    }

    /// True if there is no watcher.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Wakes the watchers of these changes.
    pub(crate) fn wake(&self, touched: &[Touched]) {
        let spaces = self.lock();
        if spaces.is_empty() {
            return;
        }
        for one in touched {
            match one {
                Touched::Key(namespace, key) => {
                    let Some(waiting) = spaces.get(namespace) else { continue };
                    waiting.wake(&Subject::Key(Arc::clone(key)));
                    let fits = |length: &&usize| **length <= key.len() && key.is_char_boundary(**length);
                    for length in waiting.lengths.keys().filter(fits) {
                        waiting.wake(&Subject::Tree(key[..*length].into()));
                    }
                }
                Touched::Session(namespace, ..) => {
                    if let Some(waiting) = spaces.get(namespace) {
                        waiting.wake(&Subject::Sessions);
                    }
                }
                Touched::Renewed(..) => {}
            }
        }
    }

    /// Wakes all watchers: the state may be of another history.
    pub(crate) fn wake_all(&self) {
        let spaces = self.lock();
        spaces.values().flat_map(|waiting| waiting.subjects.values()).for_each(|notify| notify.notify_waiters());
    }
}

impl Waiting {
    fn wake(&self, subject: &Subject) {
        if let Some(notify) = self.subjects.get(subject) {
            notify.notify_waiters();
        }
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let mut spaces = self.watchers.lock();
        let Some(waiting) = spaces.get_mut(&self.namespace) else { return };
        // Two references: the map's and ours. Nobody clones another one while the map is locked.
        if Arc::strong_count(&self.notify) > 2 {
            return;
        }
        waiting.subjects.remove(&self.subject);
        if let Subject::Tree(prefix) = &self.subject
            && let Some(count) = waiting.lengths.get_mut(&prefix.len())
        {
            *count -= 1;
            if *count == 0 {
                waiting.lengths.remove(&prefix.len());
            }
        }
        if waiting.subjects.is_empty() {
            spaces.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt as _;

    use super::*;

    /// A change wakes exactly its own watchers, none of another namespace; and dropped watchers leave nothing behind.
    #[test]
    fn only_those_who_wait_for_it_are_woken() {
        let (one, other) = (NamespaceName::new("one").unwrap(), NamespaceName::new("other").unwrap());
        let watchers = Watchers::default();
        for (subject, key, woken) in [
            (Subject::Key("a/b".into()), "a/b", true),
            (Subject::Key("a/b".into()), "a/bc", false),
            (Subject::Key("a/b".into()), "a", false),
            (Subject::Tree("a/".into()), "a/b", true),
            (Subject::Tree("a/".into()), "a/", true),
            (Subject::Tree("a/".into()), "a", false),
            (Subject::Tree("a/".into()), "b/a/", false),
            (Subject::Tree("".into()), "anything", true),
            (Subject::Tree("ä".into()), "äb", true),
            (Subject::Tree("x".into()), "äb", false),
            (Subject::Sessions, "a", false),
        ] {
            let mine = watchers.watch(&one, subject.clone());
            let theirs = watchers.watch(&other, subject.clone());
            let (mut a, mut b) = (Box::pin(mine.notify.notified()), Box::pin(theirs.notify.notified()));
            assert!(a.as_mut().now_or_never().is_none() && b.as_mut().now_or_never().is_none());
            watchers.wake(&[Touched::Key(one.clone(), key.into())]);
            assert_eq!(a.as_mut().now_or_never().is_some(), woken, "{subject:?} by {key:?}");
            assert!(b.as_mut().now_or_never().is_none(), "{subject:?} of another namespace by {key:?}");
        }
        assert!(watchers.is_empty());
    }
}
