//! The in-memory copy of the store's key-value part.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::model::{Entry, Session};
use crate::model::{NamespaceName, Revision};
use crate::store::{Head, KvContent, KvRow};

/// Keys and sessions at one revision.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The store's history.
    pub(crate) epoch: i64,
    /// The revision up to which everything has been applied.
    pub(crate) v: Revision,
    /// The revision up to which tombstones have been removed from the store.
    gc_floor: Revision,
    spaces: HashMap<NamespaceName, Space>,
    /// Bytes of all keys and values.
    bytes: usize,
}

/// Keys and sessions of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Space {
    entries: BTreeMap<Arc<str>, Arc<Entry>>,
    /// Deleted keys, kept so that the index of their watchers does not go back.
    gone: BTreeMap<Arc<str>, Revision>,
    sessions: BTreeMap<Arc<str>, Arc<Session>>,
    gone_sessions: BTreeMap<Arc<str>, Revision>,
    /// The keys that each session holds.
    held: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// Keys under a lock delay: the revision that started it, and its end by this node's clock.
    delays: HashMap<Arc<str>, (Revision, Instant)>,
    bytes: usize,
    /// Revision of the last change of any key, and of any session.
    last: Revision,
    last_session: Revision,
}

/// A key or a session that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// The key.
    Key(NamespaceName, Arc<str>),
    /// The session; `None`: it has ended.
    Session(NamespaceName, Arc<str>, Option<Arc<Session>>),
    /// A session that was renewed through the store.
    Renewed(NamespaceName, Arc<str>),
}

impl State {
    pub(crate) fn space(&self, namespace: &NamespaceName) -> Option<&Space> {
        self.spaces.get(namespace)
    }

    /// Iterates over all namespaces of keys.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = (&NamespaceName, &Space)> {
        self.spaces.iter()
    }

    /// Returns the bytes of all keys and values of all namespaces.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the numbers of keys and of sessions of all namespaces.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let count = |(keys, sessions), space: &Space| (keys + space.entries.len(), sessions + space.sessions.len());
        self.spaces.values().fold((0, 0), count)
    }

    /// Iterates over all sessions.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (&NamespaceName, &Arc<Session>)> {
        self.spaces.iter().flat_map(|(name, space)| space.sessions.values().map(move |session| (name, session)))
    }

    /// Applies committed rows, in any order, each any number of times. Returns the changes.
    pub(crate) fn absorb(&mut self, head: Head, rows: Vec<KvRow>, now: Instant) -> Vec<Touched> {
        let mut touched = Vec::with_capacity(rows.len());
        for row in rows {
            let space = self.spaces.entry(row.namespace.clone()).or_default();
            let before = space.bytes;
            let delay = (row.lock_delay > 0).then(|| now + Duration::from_millis(row.lock_delay));
            touched.extend(space.put(row, delay));
            self.bytes = self.bytes + space.bytes - before;
        }
        self.epoch = head.epoch;
        self.v = self.v.max(head.v);
        if head.gc_floor > self.gc_floor {
            self.gc_floor = head.gc_floor;
            self.forget(head.gc_floor, now);
        }
        touched
    }

    /// Replaces the state by `rows`, which are all there are. Returns all rows that have changed or may have.
    pub(crate) fn replace(&mut self, head: Head, rows: Vec<KvRow>, now: Instant) -> Vec<Touched> {
        let mut fresh = State { epoch: head.epoch, v: head.v, gc_floor: head.gc_floor, ..State::default() };
        let mut touched = Vec::new();
        for row in rows {
            let before = self.spaces.get(&row.namespace).filter(|_| self.epoch == head.epoch);
            // A row that was here already keeps the end of its delay.
            let delay = match before.filter(|space| space.revision_of(&row) == Some(row.revision)) {
                Some(space) => space.delays.get(&row.name).map(|(_, until)| *until),
                None => (row.lock_delay > 0).then(|| now + Duration::from_millis(row.lock_delay)),
            };
            let space = fresh.spaces.entry(row.namespace.clone()).or_default();
            let bytes = space.bytes;
            touched.extend(space.put(row, delay));
            fresh.bytes = fresh.bytes + space.bytes - bytes;
        }
        for (name, space) in &self.spaces {
            let after = fresh.spaces.get(name);
            let lost = |key: &&Arc<str>| !after.is_some_and(|after| after.entries.contains_key(*key));
            touched.extend(space.entries.keys().filter(lost).map(|key| Touched::Key(name.clone(), Arc::clone(key))));
            let ended = |id: &&Arc<str>| !after.is_some_and(|after| after.sessions.contains_key(*id));
            let session = |id: &Arc<str>| Touched::Session(name.clone(), Arc::clone(id), None);
            touched.extend(space.sessions.keys().filter(ended).map(session));
        }
        *self = fresh;
        touched
    }

    /// Forgets tombstones that the store has removed, and delays that are over.
    fn forget(&mut self, floor: Revision, now: Instant) {
        for space in self.spaces.values_mut() {
            space.gone.retain(|_, revision| *revision > floor);
            space.gone_sessions.retain(|_, revision| *revision > floor);
            space.delays.retain(|_, (_, until)| *until > now);
        }
    }
}

impl Space {
    pub(crate) fn entry(&self, key: &str) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    pub(crate) fn session(&self, id: &str) -> Option<&Arc<Session>> {
        self.sessions.get(id)
    }

    /// Iterates over all sessions, by id.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.sessions.values()
    }

    /// Iterates over the entries that begin with `prefix`, in order.
    pub(crate) fn tree<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Arc<Entry>> {
        within(&self.entries, prefix).map(|(_, entry)| entry)
    }

    /// Iterates over the deleted keys that begin with `prefix`, with the revisions of their deletion.
    pub(crate) fn gone<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a Arc<str>, Revision)> {
        within(&self.gone, prefix).map(|(key, revision)| (key, *revision))
    }

    /// Iterates over the keys that a session holds, in order.
    pub(crate) fn held(&self, session: &str) -> impl Iterator<Item = &Arc<str>> {
        self.held.get(session).into_iter().flatten()
    }

    /// Returns the end of the key's lock delay, if it is not over.
    pub(crate) fn delayed(&self, key: &str, now: Instant) -> Option<Instant> {
        self.delays.get(key).map(|(_, until)| *until).filter(|until| *until > now)
    }

    pub(crate) fn keys(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the index of a key: its own last change, or the namespace's if the key never existed.
    pub(crate) fn key_index(&self, key: &str) -> Revision {
        let of_entry = self.entries.get(key).map(|entry| entry.modified);
        of_entry.or_else(|| self.gone.get(key).copied()).unwrap_or(self.last)
    }

    /// Returns the index of all keys that begin with `prefix`.
    pub(crate) fn tree_index(&self, prefix: &str) -> Revision {
        if prefix.is_empty() {
            return self.last;
        }
        let entries = within(&self.entries, prefix).map(|(_, entry)| entry.modified);
        let gone = within(&self.gone, prefix).map(|(_, revision)| *revision);
        entries.chain(gone).max().unwrap_or(self.last)
    }

    /// Returns the index of all sessions.
    pub(crate) fn session_index(&self) -> Revision {
        self.last_session
    }

    /// Returns the revision at which a session ended that is not there; the index of all sessions if it is forgotten.
    pub(crate) fn session_end(&self, id: &str) -> Revision {
        self.gone_sessions.get(id).copied().unwrap_or(self.last_session)
    }

    /// Returns the revision that the state has for a row's name.
    fn revision_of(&self, row: &KvRow) -> Option<Revision> {
        let name = &*row.name;
        match row.content {
            KvContent::Entry(_) | KvContent::NoEntry => {
                self.entries.get(name).map(|entry| entry.modified).or_else(|| self.gone.get(name).copied())
            }
            KvContent::Session(_) | KvContent::NoSession => self
                .sessions
                .get(name)
                .map(|session| session.modified)
                .or_else(|| self.gone_sessions.get(name).copied()),
        }
    }

    fn put(&mut self, row: KvRow, delay: Option<Instant>) -> Option<Touched> {
        if self.revision_of(&row).is_some_and(|known| known >= row.revision) {
            return None;
        }
        let KvRow { namespace, name, content, revision, .. } = row;
        match content {
            KvContent::Entry(_) | KvContent::NoEntry => {
                self.last = self.last.max(revision);
                match delay {
                    Some(until) => drop(self.delays.insert(Arc::clone(&name), (revision, until))),
                    None => drop(self.delays.remove(&name)),
                }
                if let Some(before) = self.entries.remove(&name) {
                    self.bytes -= before.bytes();
                    if let Some(session) = &before.session
                        && let Some(keys) = self.held.get_mut(session)
                    {
                        keys.remove(&name);
                        if keys.is_empty() {
                            self.held.remove(session);
                        }
                    }
                }
                match content {
                    KvContent::Entry(entry) => {
                        self.gone.remove(&name);
                        self.bytes += entry.bytes();
                        if let Some(session) = &entry.session {
                            self.held.entry(Arc::clone(session)).or_default().insert(Arc::clone(&name));
                        }
                        self.entries.insert(Arc::clone(&name), entry);
                    }
                    _ => drop(self.gone.insert(Arc::clone(&name), revision)),
                }
                Some(Touched::Key(namespace, name))
            }
            KvContent::Session(session) => {
                let is_new = self.sessions.get(&name).is_none_or(|before| before.created != session.created);
                if !is_new {
                    // Only renewed: watchers of sessions have nothing new to see.
                    self.sessions.insert(Arc::clone(&name), session);
                    return Some(Touched::Renewed(namespace, name));
                }
                self.last_session = self.last_session.max(session.created);
                self.gone_sessions.remove(&name);
                self.sessions.insert(Arc::clone(&name), Arc::clone(&session));
                Some(Touched::Session(namespace, name, Some(session)))
            }
            KvContent::NoSession => {
                self.last_session = self.last_session.max(revision);
                self.sessions.remove(&name);
                self.gone_sessions.insert(Arc::clone(&name), revision);
                Some(Touched::Session(namespace, name, None))
            }
        }
    }
}

/// Iterates over the part of a map whose keys begin with `prefix`.
fn within<'a, V>(map: &'a BTreeMap<Arc<str>, V>, prefix: &'a str) -> impl Iterator<Item = (&'a Arc<str>, &'a V)> {
    let from = (Bound::Included(prefix), Bound::Unbounded);
    map.range::<str, _>(from).take_while(move |(key, _)| key.starts_with(prefix))
}
