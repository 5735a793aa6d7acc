//! Configuration entries: rows of the key-value store that no key-value front can reach, in a reserved namespace of keys for each namespace
//! ([`NamespaceName::of_config`]); [`crate::configuration`] has their form.
//!
//! A change is conditional on the rows that it was decided on. An entry is read from this node's memory, and from the store's state only where the
//! answer would be a refusal, or that nothing has to change.

use std::sync::Arc;

use super::Kv;
use super::model::{Ask, Entry, Operation, Refusal, Verb};
use super::state::{Space, Touched};
use super::watch::Subject;
use crate::configuration::{
    Audience, ConfigClient, ConfigEntry, ConfigError, ConfigKey, ConfigLimits, Expected, Listener, NewConfig, Place,
    Removal, decode, encode, md5_of, place,
};
use crate::error::{WatchError, WriteError};
use crate::model::{Invalid, NamespaceName, Revision};
use crate::registry::{Registry, now_millis};
use tokio::time::Instant;

/// Attempts before a change is given up.
const ATTEMPTS: u32 = 32;
/// Type of a content without one.
const TEXT: &str = "text";

/// The rows of one entry.
#[derive(Debug, Default)]
struct Rows {
    current: Option<ConfigEntry>,
    gray: Option<ConfigEntry>,
    draft: Option<ConfigEntry>,
    removed: Option<ConfigEntry>,
    /// Older versions, oldest first.
    versions: Vec<ConfigEntry>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigChange {
    /// The entry after the change; `None` if it was removed, or does not exist.
    pub entry: Option<ConfigEntry>,
    /// True if the change wrote anything.
    pub wrote: bool,
}

/// A choice of entries by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigPrefix {
    /// One entry.
    One(ConfigKey),
    /// The entries whose name, `GROUP/ID`, begins with a text.
    All(String),
}

impl ConfigPrefix {
    /// Returns the key, or the prefix of the keys, of the current versions' rows.
    fn row(&self) -> String {
        match self {
            ConfigPrefix::One(key) => Place::Current.key(key),
            ConfigPrefix::All(prefix) => Place::current(prefix),
        }
    }

    /// True if a key whose row begins with [`ConfigPrefix::row`] is meant.
    fn fits(&self, key: &ConfigKey) -> bool {
        match self {
            ConfigPrefix::One(one) => one == key,
            ConfigPrefix::All(_) => true,
        }
    }
}

/// Operations of a change, and its result.
type Decision = (Vec<Operation>, Option<ConfigEntry>);

fn read(space: &Space, of: Place, key: &ConfigKey) -> Option<ConfigEntry> {
    let row = space.entry(&of.key(key))?;
    decode(key, &row.value, row.modified)
}

/// Parses the row of an entry's version.
fn parsed(row: &Entry) -> Option<ConfigEntry> {
    let (_, key) = place(&row.key)?;
    decode(&key, &row.value, row.modified)
}

impl Rows {
    fn of(space: Option<&Space>, key: &ConfigKey) -> Rows {
        let Some(space) = space else { return Rows::default() };
        Rows {
            current: read(space, Place::Current, key),
            gray: read(space, Place::Gray, key),
            draft: read(space, Place::Draft, key),
            removed: read(space, Place::Removed, key),
            versions: space.tree(&Place::versions(key)).filter_map(|row| parsed(row)).collect(),
        }
    }

    /// Returns the newest version that is not current.
    fn last(&self) -> Option<&ConfigEntry> {
        self.removed.as_ref().or(self.versions.last())
    }

    /// Checks the condition of a change.
    fn check(&self, key: &ConfigKey, expected: &Expected) -> Result<(), ConfigError> {
        match expected {
            Expected::Anything => Ok(()),
            Expected::Md5OrAbsent(_) if self.current.is_none() => Ok(()),
            Expected::Md5(expected) | Expected::Md5OrAbsent(expected) => {
                let found = self.current.as_ref().map_or("", |entry| &entry.md5);
                if found == expected {
                    return Ok(());
                }
                let (expected, found) = (expected.clone(), found.to_owned());
                Err(ConfigError::Changed { key: key.clone(), expected, found })
            }
            Expected::Revision(expected) => {
                let found = self.current.as_ref().map_or(Revision(0), |entry| entry.revision);
                if found == *expected {
                    return Ok(());
                }
                Err(ConfigError::Stale { key: key.clone(), expected: *expected, found })
            }
        }
    }

    fn version(&self, version: u64) -> Option<&ConfigEntry> {
        let all = self.current.iter().chain(&self.removed).chain(&self.versions);
        all.into_iter().find(|entry| entry.version == version)
    }

    /// Returns the operations that write `next`, on the condition that the entry is as it was read.
    fn put(&self, next: &ConfigEntry, limits: &ConfigLimits) -> Vec<Operation> {
        let key = &next.key;
        let expected = self.current.as_ref().map_or(Revision(0), |entry| entry.revision);
        let mut operations = vec![set_if(Place::Current, next, expected)];
        match &self.removed {
            None => operations.push(operation(Place::Removed, key, Verb::CheckNotExists)),
            Some(removed) => operations.push(operation(Place::Removed, key, Verb::DeleteIf(removed.revision))),
        }
        if let Some(removed) = self.removed.as_ref().filter(|_| limits.history > 0) {
            operations.push(set(Place::Version(removed.version), removed));
        }
        if let Some(before) = self.current.as_ref().filter(|_| limits.history > 0) {
            operations.push(set(Place::Version(before.version), before));
        }
        let kept = self.versions.len() + usize::from(self.current.is_some() || self.removed.is_some());
        let surplus = kept.saturating_sub(limits.history);
        operations.extend(self.versions.iter().take(surplus).map(|old| delete(Place::Version(old.version), key)));
        operations
    }
}

fn operation(of: Place, key: &ConfigKey, verb: Verb) -> Operation {
    Operation { key: of.key(key).into(), verb }
}

fn set(of: Place, entry: &ConfigEntry) -> Operation {
    operation(of, &entry.key, Verb::Set(encode(entry), 0))
}

fn set_if(of: Place, entry: &ConfigEntry, expected: Revision) -> Operation {
    operation(of, &entry.key, Verb::SetIf(encode(entry), 0, expected))
}

fn delete(of: Place, key: &ConfigKey) -> Operation {
    operation(of, key, Verb::Delete)
}

/// Deletes a row, on the condition that it is as it was read. (A conditional deletion of a row that is gone is no refusal.)
fn delete_known(of: Place, entry: &ConfigEntry) -> [Operation; 2] {
    [operation(of, &entry.key, Verb::CheckIndex(entry.revision)), delete(of, &entry.key)]
}

/// Writes an entry in place of the one that was read, unless it is the same. Returns the operations, and the entry after them.
fn replace(of: Place, before: Option<&ConfigEntry>, entry: ConfigEntry) -> (Vec<Operation>, Option<ConfigEntry>) {
    match before {
        Some(before) if is_same(before, &entry) => (Vec::new(), Some(before.clone())),
        before => {
            let expected = before.map_or(Revision(0), |before| before.revision);
            (vec![set_if(of, &entry, expected)], Some(entry))
        }
    }
}

/// True if another change was faster.
fn is_lost_race(refusal: &Refusal) -> bool {
    use Refusal::*;
    refusal.is_lost_race() || matches!(refusal, Exists { .. } | NoKey { .. } | Index { .. })
}

/// Makes the version that follows `rows`.
fn next(rows: &Rows, key: &ConfigKey, new: &NewConfig, author: &str) -> ConfigEntry {
    let base = rows.current.as_ref();
    let taken =
        |value: &Option<String>, before: Option<&String>| value.clone().or_else(|| before.cloned()).unwrap_or_default();
    let kind = taken(&new.kind, base.map(|it| &it.kind));
    let time = now_millis();
    ConfigEntry {
        key: key.clone(),
        content: new.content.clone().into(),
        md5: md5_of(new.content.as_bytes()),
        kind: if kind.is_empty() { TEXT.to_owned() } else { kind },
        description: taken(&new.description, base.map(|it| &it.description)),
        app: taken(&new.app, base.map(|it| &it.app)),
        tags: new.tags.clone().or_else(|| base.map(|it| it.tags.clone())).unwrap_or_default(),
        secret: new.secret.or_else(|| base.map(|it| it.secret)).unwrap_or(false),
        // A key belongs to its content.
        cipher_key: new.cipher_key.clone().unwrap_or_default(),
        version: base.or_else(|| rows.last()).map_or(0, |it| it.version) + 1,
        restored: 0,
        author: author.to_owned(),
        time,
        created: base.map_or(time, |it| it.created),
        audience: Audience::default(),
        removal: None,
        revision: Revision(0),
    }
}

/// Returns the publication of a version's, or a draft's, content.
fn publication_of(entry: &ConfigEntry, rows: &Rows) -> NewConfig {
    NewConfig {
        content: entry.text().to_owned(),
        kind: Some(entry.kind.clone()),
        description: Some(entry.description.clone()),
        app: Some(entry.app.clone()),
        tags: Some(entry.tags.clone()),
        // A secret stays one, whatever the other content was.
        secret: Some(entry.secret || rows.current.as_ref().is_some_and(|current| current.secret)),
        cipher_key: Some(entry.cipher_key.clone()),
    }
}

/// Returns a written entry with its revision, unless it has been changed again since.
fn stored(space: Option<&Space>, entry: ConfigEntry) -> ConfigEntry {
    let places = [Place::Current, Place::Gray, Place::Draft].into_iter();
    let mut rows = places.filter_map(|of| read(space?, of, &entry.key));
    rows.find(|row| ConfigEntry { revision: entry.revision, ..row.clone() } == entry).unwrap_or(entry)
}

/// True if both have the same content and attributes.
fn is_same(one: &ConfigEntry, other: &ConfigEntry) -> bool {
    let of = |it: &ConfigEntry| {
        let texts = [it.kind.clone(), it.description.clone(), it.app.clone(), it.cipher_key.clone()];
        (it.content.clone(), texts, it.tags.clone(), it.secret, it.audience.clone())
    };
    of(one) == of(other)
}

impl Kv {
    /// Wakes the listeners of changed entries.
    pub(super) fn wake_listeners(&self, touched: &[Touched]) {
        for one in touched {
            if let Touched::Key(space, key) = one
                && space.is_of_config()
                && let Some((Place::Current | Place::Gray, key)) = place(key)
            {
                self.listeners.wake(space, key);
            }
        }
    }
}

impl Registry {
    /// Returns the limits on entries.
    pub fn config_limits(&self) -> &ConfigLimits {
        &self.inner().settings.config
    }

    /// Calls `read` with the rows of the namespace's entries.
    fn with_config<T: Default>(
        &self,
        namespace: &NamespaceName,
        read: impl FnOnce(&Space) -> T,
    ) -> Result<T, WriteError> {
        let state = self.kv()?.state();
        Ok(state.space(&NamespaceName::of_config(namespace)).map(read).unwrap_or_default())
    }

    /// Returns an entry.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn config(&self, namespace: &NamespaceName, key: &ConfigKey) -> Result<Option<ConfigEntry>, WriteError> {
        self.with_config(namespace, |space| read(space, Place::Current, key))
    }

    /// Returns the content for a client: that of the gray release, if it is for the client.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn config_for(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        client: &ConfigClient,
    ) -> Result<Option<ConfigEntry>, WriteError> {
        self.with_config(namespace, |space| {
            let gray = read(space, Place::Gray, key).filter(|gray| gray.audience.includes(client));
            gray.or_else(|| read(space, Place::Current, key))
        })
    }

    /// Returns the gray release of an entry.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn config_gray(&self, namespace: &NamespaceName, key: &ConfigKey) -> Result<Option<ConfigEntry>, WriteError> {
        self.with_config(namespace, |space| read(space, Place::Gray, key))
    }

    /// Returns the entries of a namespace, or of one group, in the order of their names.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn configs(&self, namespace: &NamespaceName, group: Option<&str>) -> Result<Vec<ConfigEntry>, WriteError> {
        let prefix = Place::current(&group.map_or_else(String::new, |group| format!("{group}/")));
        // Rows are shared, so the lock is held for the copies of pointers only.
        let rows: Vec<Arc<Entry>> = self.with_config(namespace, |space| space.tree(&prefix).cloned().collect())?;
        Ok(rows.iter().filter_map(|row| parsed(row)).collect())
    }

    /// Returns the entries whose name begins with `prefix`, each with the revision that created its row, and their index, read together. Both are
    /// made of the entries for which `is_seen` is true only: others neither show nor move the index.
    ///
    /// # Errors
    /// The store holds no keys.
    pub(crate) fn config_rows(
        &self,
        namespace: &NamespaceName,
        prefix: &ConfigPrefix,
        is_seen: impl Fn(&ConfigKey) -> bool,
    ) -> Result<(Revision, Vec<(Revision, ConfigEntry)>), WriteError> {
        let row_prefix = prefix.row();
        let is_meant = |key: &ConfigKey| prefix.fits(key) && is_seen(key);
        self.with_config(namespace, |space| {
            let mut index = Revision(0);
            for (key, revision) in space.gone(&row_prefix) {
                if place(key).is_some_and(|(_, key)| is_meant(&key)) {
                    index = index.max(revision);
                }
            }
            let mut found = Vec::new();
            for row in space.tree(&row_prefix) {
                if let Some(entry) = parsed(row).filter(|entry| is_meant(&entry.key)) {
                    index = index.max(row.modified);
                    found.push((row.created, entry));
                }
            }
            (index, found)
        })
    }

    /// Waits until `has_changed` is true, which is asked again after each change of an entry that `prefix` names, or until `deadline`.
    ///
    /// # Errors
    /// The registry stops; too many calls wait.
    pub(crate) async fn config_wait(
        &self,
        namespace: &NamespaceName,
        prefix: &ConfigPrefix,
        has_changed: impl Fn() -> bool,
        deadline: Instant,
    ) -> Result<(), WatchError> {
        let row = prefix.row().into();
        let subject = match prefix {
            ConfigPrefix::One(_) => Subject::Key(row),
            ConfigPrefix::All(_) => Subject::Tree(row),
        };
        self.kv_wait_until(&NamespaceName::of_config(namespace), subject, has_changed, deadline).await
    }

    /// Returns all versions of an entry that are kept, newest first, with the current one or the removed one.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn config_history(&self, namespace: &NamespaceName, key: &ConfigKey) -> Result<Vec<ConfigEntry>, WriteError> {
        self.with_config(namespace, |space| {
            let Rows { current, removed, versions, .. } = Rows::of(Some(space), key);
            current.into_iter().chain(removed).chain(versions.into_iter().rev()).collect()
        })
    }

    /// Makes a listener of nothing.
    ///
    /// # Errors
    /// The store holds no keys.
    pub fn config_listener(&self) -> Result<Listener, WriteError> {
        Ok(self.kv()?.listeners.listener())
    }

    /// Returns the number of wake-ups of listeners.
    pub fn config_wakes(&self) -> u64 {
        self.inner().kv.as_ref().map_or(0, |kv| kv.listeners.woken())
    }

    /// Publishes a content. Nothing is written if content and attributes are the current ones.
    ///
    /// # Errors
    /// A limit is exceeded, the condition does not hold, or the write fails.
    pub async fn publish_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        new: &NewConfig,
        expected: &Expected,
        author: &str,
    ) -> Result<ConfigChange, ConfigError> {
        let limits = self.config_limits();
        new.check(limits)?;
        self.change_config(namespace, key, |rows| {
            rows.check(key, expected)?;
            let next = next(rows, key, new, author);
            match &rows.current {
                Some(current) if is_same(current, &next) => Ok((Vec::new(), Some(current.clone()))),
                _ => Ok((rows.put(&next, limits), Some(next))),
            }
        })
        .await
    }

    /// Writes a draft: a content that no client gets until it is released. `create`: only if there is no such entry; otherwise only if there is one.
    ///
    /// # Errors
    /// A limit is exceeded, the entry exists or not, or the write fails.
    pub async fn draft_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        new: &NewConfig,
        create: bool,
        author: &str,
    ) -> Result<ConfigChange, ConfigError> {
        new.check(self.config_limits())?;
        self.change_config(namespace, key, |rows| {
            match (create, rows.current.is_some() || rows.draft.is_some()) {
                (true, true) => return Err(ConfigError::Exists { key: key.clone() }),
                (false, false) => return Err(ConfigError::Absent { key: key.clone() }),
                _ => {}
            }
            let draft = ConfigEntry { version: 0, ..next(rows, key, new, author) };
            Ok(replace(Place::Draft, rows.draft.as_ref(), draft))
        })
        .await
    }

    /// Publishes the draft of an entry, which ends it. Without a draft, the current version stays.
    ///
    /// # Errors
    /// There is neither a draft nor a version, or the write fails.
    pub async fn release_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        author: &str,
    ) -> Result<ConfigChange, ConfigError> {
        let limits = self.config_limits();
        self.change_config(namespace, key, |rows| {
            let Some(draft) = &rows.draft else {
                let current = rows.current.clone().ok_or_else(|| ConfigError::Absent { key: key.clone() })?;
                return Ok((Vec::new(), Some(current)));
            };
            let next = next(rows, key, &publication_of(draft, rows), author);
            let mut operations = delete_known(Place::Draft, draft).to_vec();
            match &rows.current {
                Some(current) if is_same(current, &next) => Ok((operations, Some(current.clone()))),
                _ => {
                    operations.extend(rows.put(&next, limits));
                    Ok((operations, Some(next)))
                }
            }
        })
        .await
    }

    /// Publishes an older version of an entry again, also of a removed one.
    ///
    /// # Errors
    /// The version is not kept, or the write fails.
    pub async fn roll_back_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        version: u64,
        author: &str,
    ) -> Result<ConfigChange, ConfigError> {
        let limits = self.config_limits();
        self.change_config(namespace, key, |rows| {
            let found = rows.version(version);
            let old = found.ok_or_else(|| ConfigError::NoVersion { key: key.clone(), version })?;
            let next = ConfigEntry { restored: version, ..next(rows, key, &publication_of(old, rows), author) };
            match &rows.current {
                Some(current) if is_same(current, &next) => Ok((Vec::new(), Some(current.clone()))),
                _ => Ok((rows.put(&next, limits), Some(next))),
            }
        })
        .await
    }

    /// Removes an entry and its gray release. The last version is kept, to be rolled back to.
    ///
    /// # Errors
    /// The condition does not hold, or the write fails.
    pub async fn remove_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        expected: &Expected,
        author: &str,
    ) -> Result<ConfigChange, ConfigError> {
        let limits = self.config_limits();
        let surplus = self.surplus_of_removed(namespace, limits)?;
        self.change_config(namespace, key, |rows| {
            rows.check(key, expected)?;
            let mut operations = Vec::new();
            for (place, row) in [(Place::Gray, &rows.gray), (Place::Draft, &rows.draft)] {
                if row.is_some() {
                    operations.push(delete(place, key));
                }
            }
            if let Some(current) = &rows.current {
                operations.extend(delete_known(Place::Current, current));
                operations.extend(rows.versions.iter().map(|old| delete(Place::Version(old.version), key)));
                if limits.removed > 0 {
                    let removal = Removal { author: author.to_owned(), time: now_millis() };
                    operations.push(set(Place::Removed, &ConfigEntry { removal: Some(removal), ..current.clone() }));
                    operations.extend(surplus.iter().map(|key| delete(Place::Removed, key)));
                }
            }
            Ok((operations, None))
        })
        .await
    }

    /// Returns the removed entries that have to make room for one more: the oldest ones, at most a few.
    fn surplus_of_removed(
        &self,
        namespace: &NamespaceName,
        limits: &ConfigLimits,
    ) -> Result<Vec<ConfigKey>, WriteError> {
        /// More than one, so that a lowered limit is reached in time.
        const AT_ONCE: usize = 8;
        let rows: Vec<Arc<Entry>> = self.with_config(namespace, |space| space.tree("r/").cloned().collect())?;
        let surplus = (rows.len() + 1).saturating_sub(limits.removed).min(AT_ONCE);
        if surplus == 0 {
            return Ok(Vec::new());
        }
        let mut rows: Vec<_> = rows.iter().map(|row| (row.modified, &row.key)).collect();
        rows.sort_unstable();
        Ok(rows.into_iter().take(surplus).filter_map(|(_, key)| place(key)).map(|(_, key)| key).collect())
    }

    /// Publishes a content for the clients of an audience only.
    ///
    /// # Errors
    /// The audience is empty, a limit is exceeded, or the write fails.
    pub async fn publish_gray_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        new: &NewConfig,
        audience: &Audience,
        author: &str,
    ) -> Result<ConfigChange, ConfigError> {
        new.check(self.config_limits())?;
        if audience.is_empty() {
            return Err(Invalid::Missing { what: "address or label of the gray release" }.into());
        }
        self.change_config(namespace, key, |rows| {
            let gray = ConfigEntry { audience: audience.clone(), ..next(rows, key, new, author) };
            Ok(replace(Place::Gray, rows.gray.as_ref(), gray))
        })
        .await
    }

    /// Ends a gray release.
    ///
    /// # Errors
    /// The write fails.
    pub async fn remove_gray_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
    ) -> Result<ConfigChange, ConfigError> {
        self.change_config(namespace, key, |rows| {
            let operations = rows.gray.iter().flat_map(|gray| delete_known(Place::Gray, gray)).collect();
            Ok((operations, rows.current.clone()))
        })
        .await
    }

    /// Changes an entry: `decide` gets its rows and returns the operations, of which one is conditional. It is called again if another change came
    /// in between, or if it refuses or changes nothing and this node may not have the newest rows.
    async fn change_config(
        &self,
        namespace: &NamespaceName,
        key: &ConfigKey,
        mut decide: impl FnMut(&Rows) -> Result<Decision, ConfigError>,
    ) -> Result<ConfigChange, ConfigError> {
        let kv = self.kv()?;
        let space = NamespaceName::of_config(namespace);
        let mut settled = false;
        for _ in 0..ATTEMPTS {
            let rows = Rows::of(kv.state().space(&space), key);
            let (operations, entry) = match decide(&rows) {
                Ok((operations, entry)) if !operations.is_empty() => (operations, entry),
                conclusive if settled => {
                    return conclusive.map(|(_, entry)| ConfigChange { entry, wrote: false });
                }
                _ => {
                    self.kv_settle().await?;
                    settled = true;
                    continue;
                }
            };
            match kv.ask(Ask::Operations(space.clone(), operations)).await? {
                Ok(_) => {
                    let entry = entry.map(|entry| stored(kv.state().space(&space), entry));
                    return Ok(ConfigChange { entry, wrote: true });
                }
                Err(refused) => match refused.into_iter().next() {
                    // A refusal is decided on the store's rows, so the state has them now.
                    Some((_, refusal)) if is_lost_race(&refusal) => settled = true,
                    Some((_, Refusal::Full { what, found, limit })) => {
                        return Err(WriteError::Full { what, found, limit }.into());
                    }
                    refused => {
                        let text = refused.map_or_else(String::new, |(_, refusal)| refusal.to_string());
                        return Err(WriteError::Unavailable { reason: text.into() }.into());
                    }
                },
            }
        }
        Err(WriteError::Contended { what: format!("{key} of {namespace}").into(), attempts: ATTEMPTS }.into())
    }
}
