//! Computes the effect of a batch of calls: a pure function of the state, the calls, the time and the limits. Follows Consul's rules, with one
//! revision a call: so two calls of one batch never give two contents of a key the same revision.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::model::{Ask, Behavior, Entry, Given, KvLimits, Operation, Refusal, Session, Verb};
use super::state::State;
use crate::configuration::ConfigLimits;
use crate::model::{NamespaceName, Revision};
use crate::store::{KvContent, KvRow};

/// The result of a call: the result of each operation, or the refused ones. A refused call changed nothing.
pub(crate) type CallResult = Result<Vec<Given>, Vec<(usize, Refusal)>>;

/// A state with the changes of a batch so far.
pub(crate) struct Draft<'a> {
    state: &'a State,
    limits: &'a KvLimits,
    /// Limits of the namespaces of configuration entries.
    config: Option<&'a ConfigLimits>,
    now: Instant,
    mtime: i64,
    /// The revision of the current call.
    next: Revision,
    entries: BTreeMap<(NamespaceName, Arc<str>), Drafted>,
    sessions: BTreeMap<(NamespaceName, Arc<str>), DraftedSession>,
    usage: HashMap<NamespaceName, Usage>,
    /// The steps that undo the current call.
    undo: Vec<Undo>,
}

/// A key changed by the batch.
#[derive(Clone)]
struct Drafted {
    entry: Option<Arc<Entry>>,
    revision: Revision,
    /// Same as [`KvRow::lock_delay`].
    lock_delay: u64,
}

/// A session changed by the batch (`None`: ended), and the revision of the change.
type DraftedSession = (Option<Arc<Session>>, Revision);

/// Difference between the namespace's size in the draft and in the state.
#[derive(Clone, Copy, Default)]
struct Usage {
    keys: isize,
    bytes: isize,
    sessions: isize,
}

enum Undo {
    Entry((NamespaceName, Arc<str>), Option<Drafted>, Usage),
    Session((NamespaceName, Arc<str>), Option<DraftedSession>, Usage),
}

impl<'a> Draft<'a> {
    /// Makes a draft over `state` at `now`; `mtime` is the same time in milliseconds since 1970.
    pub(crate) fn new(state: &'a State, limits: &'a KvLimits, now: Instant, mtime: i64) -> Draft<'a> {
        Draft {
            state,
            limits,
            config: None,
            now,
            mtime,
            next: Revision(state.v.0 + 1),
            entries: BTreeMap::new(),
            sessions: BTreeMap::new(),
            usage: HashMap::new(),
            undo: Vec::new(),
        }
    }

    /// Sets the limits of the namespaces of configuration entries.
    pub(crate) fn with_config(self, limits: &'a ConfigLimits) -> Draft<'a> {
        Draft { config: Some(limits), ..self }
    }

    /// Carries out a call, completely or not at all.
    pub(crate) fn run(&mut self, ask: &Ask) -> CallResult {
        let mut given = Vec::new();
        let mut refused = Vec::new();
        match ask {
            Ask::Operations(namespace, operations) => {
                for (index, operation) in operations.iter().enumerate() {
                    match self.operate(namespace, operation) {
                        Ok(one) => given.push(one),
                        Err(refusal) => refused.push((index, refusal)),
                    }
                }
            }
            Ask::Begin(namespace, session) => match self.begin(namespace, session) {
                Ok(()) => given.push(Given::Nothing),
                Err(refusal) => refused.push((0, refusal)),
            },
            Ask::End(namespace, id, expected) => {
                let session = self.session(namespace, id);
                if session.is_some_and(|session| expected.is_none_or(|expected| session.modified == expected)) {
                    self.end(namespace, id);
                }
                given.push(Given::Nothing);
            }
            Ask::Renew(namespace, id) => match self.session(namespace, id) {
                Some(session) => {
                    let session = Session { modified: self.next, ..Session::clone(&session) };
                    self.put_session(namespace, id, Some(Arc::new(session)));
                    given.push(Given::Nothing);
                }
                None => refused.push((0, Refusal::NoSession { session: Arc::clone(id) })),
            },
            Ask::Barrier => given.push(Given::Nothing),
        }
        if !refused.is_empty() {
            self.take_back();
            return Err(refused);
        }
        if !self.undo.is_empty() {
            self.undo.clear();
            self.next.0 += 1;
        }
        Ok(given)
    }

    /// Returns the rows to write, and the revision of the store after them. Without rows there is nothing to write.
    pub(crate) fn rows(self) -> (Vec<KvRow>, Revision) {
        let mtime = self.mtime;
        let entries = self.entries.into_iter().map(|((namespace, name), drafted)| KvRow {
            namespace,
            name,
            content: drafted.entry.map_or(KvContent::NoEntry, KvContent::Entry),
            lock_delay: drafted.lock_delay,
            revision: drafted.revision,
            mtime,
        });
        let sessions = self.sessions.into_iter().map(|((namespace, name), (session, revision))| KvRow {
            namespace,
            name,
            content: session.map_or(KvContent::NoSession, KvContent::Session),
            lock_delay: 0,
            revision,
            mtime,
        });
        (entries.chain(sessions).collect(), Revision(self.next.0 - 1))
    }

    fn take_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Entry(key, before, usage) => {
                    self.usage.insert(key.0.clone(), usage);
                    match before {
                        Some(before) => drop(self.entries.insert(key, before)),
                        None => drop(self.entries.remove(&key)),
                    }
                }
                Undo::Session(key, before, usage) => {
                    self.usage.insert(key.0.clone(), usage);
                    match before {
                        Some(before) => drop(self.sessions.insert(key, before)),
                        None => drop(self.sessions.remove(&key)),
                    }
                }
            }
        }
    }

    fn entry(&self, namespace: &NamespaceName, key: &Arc<str>) -> Option<Arc<Entry>> {
        match self.entries.get(&(namespace.clone(), Arc::clone(key))) {
            Some(drafted) => drafted.entry.clone(),
            None => self.state.space(namespace)?.entry(key).cloned(),
        }
    }

    fn session(&self, namespace: &NamespaceName, id: &Arc<str>) -> Option<Arc<Session>> {
        match self.sessions.get(&(namespace.clone(), Arc::clone(id))) {
            Some((session, _)) => session.clone(),
            None => self.state.space(namespace)?.session(id).cloned(),
        }
    }

    /// Returns all entries that begin with `prefix`, in order.
    fn tree(&self, namespace: &NamespaceName, prefix: &Arc<str>) -> Vec<Arc<Entry>> {
        let here = self.state.space(namespace).into_iter().flat_map(|space| space.tree(prefix));
        let mut found: BTreeMap<Arc<str>, Arc<Entry>> =
            here.map(|entry| (Arc::clone(&entry.key), Arc::clone(entry))).collect();
        let drafted = self.entries.range((namespace.clone(), Arc::clone(prefix))..);
        for ((_, key), drafted) in drafted.take_while(|((of, key), _)| of == namespace && key.starts_with(&**prefix)) {
            match &drafted.entry {
                Some(entry) => drop(found.insert(Arc::clone(key), Arc::clone(entry))),
                None => drop(found.remove(key)),
            }
        }
        found.into_values().collect()
    }

    /// Returns the rest of the key's lock delay, in milliseconds.
    fn delay_left(&self, namespace: &NamespaceName, key: &Arc<str>) -> u64 {
        if let Some(drafted) = self.entries.get(&(namespace.clone(), Arc::clone(key))) {
            return drafted.lock_delay;
        }
        let until = self.state.space(namespace).and_then(|space| space.delayed(key, self.now));
        until.map_or(0, |until| u64::try_from((until - self.now).as_millis()).unwrap_or(u64::MAX).saturating_add(1))
    }

    /// Sets a key to `entry`; `None` deletes it.
    fn put(&mut self, namespace: &NamespaceName, key: &Arc<str>, entry: Option<Arc<Entry>>, lock_delay: u64) {
        let before = self.entry(namespace, key);
        let usage = self.usage.entry(namespace.clone()).or_default();
        let old = *usage;
        let bytes = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or(0, |entry| entry.bytes().cast_signed());
        usage.bytes += bytes(&entry) - bytes(&before);
        usage.keys += isize::from(entry.is_some()) - isize::from(before.is_some());
        let at = (namespace.clone(), Arc::clone(key));
        let drafted = Drafted { entry, revision: self.next, lock_delay };
        let replaced = self.entries.insert(at.clone(), drafted);
        self.undo.push(Undo::Entry(at, replaced, old));
    }

    fn put_session(&mut self, namespace: &NamespaceName, id: &Arc<str>, session: Option<Arc<Session>>) {
        let before = self.session(namespace, id).is_some();
        let usage = self.usage.entry(namespace.clone()).or_default();
        let old = *usage;
        usage.sessions += isize::from(session.is_some()) - isize::from(before);
        let at = (namespace.clone(), Arc::clone(id));
        let replaced = self.sessions.insert(at.clone(), (session, self.next));
        self.undo.push(Undo::Session(at, replaced, old));
    }

    /// Refuses an entry that would exceed a limit.
    fn room(&self, namespace: &NamespaceName, entry: &Entry, before: Option<&Entry>) -> Result<(), Refusal> {
        let space = self.state.space(namespace);
        let usage = self.usage.get(namespace).copied().unwrap_or_default();
        let more = entry.bytes().cast_signed() - before.map_or(0, |before| before.bytes().cast_signed());
        let whole: isize = self.usage.values().map(|usage| usage.bytes).sum();
        let keys = space.map_or(0, |space| space.keys()).saturating_add_signed(usage.keys);
        let bytes = space.map_or(0, |space| space.bytes()).saturating_add_signed(usage.bytes + more);
        let total = self.state.bytes().saturating_add_signed(whole + more);
        let (rows, sum) = match self.config.filter(|_| namespace.is_of_config()) {
            Some(config) => (
                ("rows of the namespace's configuration", config.rows),
                ("bytes of the namespace's configuration", config.bytes),
            ),
            None => (
                ("keys of the namespace", self.limits.keys),
                ("bytes of the namespace's keys and values", self.limits.bytes),
            ),
        };
        for (what, found, limit, grows) in [
            (rows.0, keys + 1, rows.1, before.is_none()),
            (sum.0, bytes, sum.1, more > 0),
            ("bytes of all keys and values", total, self.limits.total_bytes, more > 0),
        ] {
            if grows && found > limit {
                return Err(Refusal::Full { what, found, limit });
            }
        }
        Ok(())
    }

    /// Writes `entry` unless the key has the same content already. Returns the entry that is there then.
    fn set(&mut self, namespace: &NamespaceName, entry: Entry, lock_delay: u64) -> Result<Given, Refusal> {
        let key = Arc::clone(&entry.key);
        let before = self.entry(namespace, &key);
        if let Some(before) = &before {
            let unchanged = Entry { modified: before.modified, ..entry.clone() };
            if unchanged == **before {
                return Ok(Given::Entry { entry: Arc::clone(before), with_value: false });
            }
        }
        self.room(namespace, &entry, before.as_deref())?;
        let entry = Arc::new(entry);
        self.put(namespace, &key, Some(Arc::clone(&entry)), lock_delay);
        Ok(Given::Entry { entry, with_value: false })
    }

    /// Makes the entry that a write gives: the holder of the key stays the same.
    fn written(&self, key: &Arc<str>, value: &Bytes, flags: u64, before: Option<&Entry>) -> Entry {
        Entry {
            key: Arc::clone(key),
            value: value.clone(),
            flags,
            session: before.and_then(|before| before.session.clone()),
            lock_index: before.map_or(0, |before| before.lock_index),
            created: before.map_or(self.next, |before| before.created),
            modified: self.next,
        }
    }

    fn operate(&mut self, namespace: &NamespaceName, operation: &Operation) -> Result<Given, Refusal> {
        let key = &operation.key;
        let before = self.entry(namespace, key);
        let owned = || Arc::clone(key);
        let missing = |act| Refusal::NoKey { act, key: owned() };
        match &operation.verb {
            Verb::Set(value, flags) => {
                let entry = self.written(key, value, *flags, before.as_deref());
                self.set(namespace, entry, self.delay_left(namespace, key))
            }
            Verb::SetIf(value, flags, expected) => {
                let found = before.as_ref().map_or(Revision(0), |before| before.modified);
                if found != *expected {
                    return Err(Refusal::Stale { act: "set", key: owned() });
                }
                let entry = self.written(key, value, *flags, before.as_deref());
                self.set(namespace, entry, self.delay_left(namespace, key))
            }
            Verb::Lock(value, flags, session) => {
                if self.session(namespace, session).is_none() {
                    return Err(Refusal::NoSession { session: Arc::clone(session) });
                }
                let holder = before.as_ref().and_then(|before| before.session.as_ref());
                if holder.is_some_and(|holder| holder != session) {
                    return Err(Refusal::Held { key: owned() });
                }
                let is_new = holder.is_none();
                if is_new && self.delay_left(namespace, key) > 0 {
                    return Err(Refusal::Delayed { key: owned() });
                }
                let mut entry = self.written(key, value, *flags, before.as_deref());
                entry.session = Some(Arc::clone(session));
                entry.lock_index += u64::from(is_new);
                self.set(namespace, entry, 0)
            }
            Verb::Unlock(value, flags, session) => {
                let held = before.as_ref().is_some_and(|before| before.session.as_ref() == Some(session));
                if !held {
                    return Err(Refusal::NotHeld { key: owned() });
                }
                let mut entry = self.written(key, value, *flags, before.as_deref());
                entry.session = None;
                self.set(namespace, entry, 0)
            }
            Verb::Delete => {
                if before.is_some() {
                    self.put(namespace, key, None, self.delay_left(namespace, key));
                }
                Ok(Given::Nothing)
            }
            Verb::DeleteIf(expected) => match before {
                Some(before) if before.modified != *expected => Err(Refusal::Stale { act: "delete", key: owned() }),
                Some(_) => {
                    self.put(namespace, key, None, self.delay_left(namespace, key));
                    Ok(Given::Nothing)
                }
                None => Ok(Given::Nothing),
            },
            Verb::DeleteTree => {
                for entry in self.tree(namespace, key) {
                    self.put(namespace, &entry.key, None, self.delay_left(namespace, &entry.key));
                }
                Ok(Given::Nothing)
            }
            Verb::Get => before.map(|entry| Given::Entry { entry, with_value: true }).ok_or_else(|| missing("")),
            Verb::GetOrEmpty => {
                let empty = || Arc::new(Entry { lock_index: 0, ..self.nothing(key) });
                Ok(Given::Entry { entry: before.unwrap_or_else(empty), with_value: true })
            }
            Verb::GetTree => Ok(Given::Tree(self.tree(namespace, key))),
            Verb::CheckIndex(expected) => {
                let entry = before.ok_or_else(|| missing("failed to check index, "))?;
                if entry.modified != *expected {
                    return Err(Refusal::Index { key: owned(), found: entry.modified, expected: *expected });
                }
                Ok(Given::Entry { entry, with_value: false })
            }
            Verb::CheckSession(expected) => {
                let entry = before.ok_or_else(|| missing("failed to check session, "))?;
                let found = entry.session.clone().unwrap_or_else(|| "".into());
                if found != *expected {
                    return Err(Refusal::Session { key: owned(), found, expected: Arc::clone(expected) });
                }
                Ok(Given::Entry { entry, with_value: false })
            }
            Verb::CheckNotExists if before.is_some() => Err(Refusal::Exists { key: owned() }),
            Verb::CheckNotExists => Ok(Given::Nothing),
        }
    }

    /// Returns the placeholder for a key that does not exist.
    fn nothing(&self, key: &Arc<str>) -> Entry {
        let none = Revision(0);
        let (created, modified) = (none, none);
        Entry { key: Arc::clone(key), value: Bytes::new(), flags: 0, session: None, lock_index: 0, created, modified }
    }

    fn begin(&mut self, namespace: &NamespaceName, session: &Arc<Session>) -> Result<(), Refusal> {
        let here = self.state.space(namespace).map_or(0, |space| space.session_count());
        let found = here.saturating_add_signed(self.usage.get(namespace).map_or(0, |usage| usage.sessions)) + 1;
        if found > self.limits.sessions {
            return Err(Refusal::Full { what: "sessions of the namespace", found, limit: self.limits.sessions });
        }
        let session = Session { created: self.next, modified: self.next, ..Session::clone(session) };
        let id = Arc::clone(&session.id);
        self.put_session(namespace, &id, Some(Arc::new(session)));
        Ok(())
    }

    /// Ends a session: releases or deletes its keys, and starts their lock delay.
    fn end(&mut self, namespace: &NamespaceName, id: &Arc<str>) {
        let Some(session) = self.session(namespace, id) else { return };
        self.put_session(namespace, id, None);
        let here = self.state.space(namespace).into_iter().flat_map(|space| space.held(id).cloned());
        let drafted = self.entries.keys().filter(|(of, _)| of == namespace).map(|(_, key)| Arc::clone(key));
        let keys: BTreeSet<Arc<str>> = here.chain(drafted).collect();
        // Rounded up, so that the delay is never shorter than requested.
        let delay = u64::try_from(session.delay().as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        for key in keys {
            let Some(entry) = self.entry(namespace, &key).filter(|entry| entry.session.as_ref() == Some(id)) else {
                continue;
            };
            let released = Entry { session: None, modified: self.next, ..Entry::clone(&entry) };
            let after = (session.behavior == Behavior::Release).then(|| Arc::new(released));
            self.put(namespace, &key, after, delay);
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
