//! Configuration entries for all fronts: rights, changes, and their lines in the audit log.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::auth::Caller;
use super::credentials::Credentials;
use super::{ApiError, Context};
use crate::NamespaceName;
use crate::configuration::{Audience, ConfigClient, ConfigEntry, ConfigKey, Expected, NewConfig};
use crate::kv::ConfigChange;
use crate::rights::{Access, Resource};

/// A caller in a namespace.
pub(super) struct Configs<'a> {
    pub(super) context: &'a Context,
    pub(super) caller: &'a Caller,
    pub(super) peer: IpAddr,
    pub(super) namespace: NamespaceName,
}

/// An entry that a client listens to, with the MD5 of the content that it has; empty for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listened {
    pub(super) namespace: NamespaceName,
    pub(super) key: ConfigKey,
    pub(super) md5: String,
}

impl Configs<'_> {
    /// Checks the right to an entry, by role and by policies. The answer does not depend on the entry's existence.
    pub(super) fn needs(&self, access: Access, key: &ConfigKey) -> Result<(), ApiError> {
        self.caller.enters(access, self.namespace.as_str())?;
        self.caller.needs(access, Resource::config(&key.to_string()), self.namespace.as_str())
    }

    fn audit(&self, action: &str, object: &str) {
        self.context.audit(self.caller, self.peer, action, self.namespace.as_str(), object);
    }

    fn audit_version(&self, action: &str, change: &ConfigChange) {
        if let Some(entry) = change.entry.as_ref().filter(|_| change.wrote) {
            self.audit(action, &format!("{} version {} md5 {}", entry.key, entry.version, entry.md5));
        }
    }

    /// Returns the content for a client.
    pub(super) fn get(&self, key: &ConfigKey, client: &ConfigClient) -> Result<Option<ConfigEntry>, ApiError> {
        self.needs(Access::Read, key)?;
        Ok(self.context.registry.config_for(&self.namespace, key, client)?)
    }

    /// Returns the current version and the gray release.
    pub(super) fn both(&self, key: &ConfigKey) -> Result<[Option<ConfigEntry>; 2], ApiError> {
        self.needs(Access::Read, key)?;
        let registry = &self.context.registry;
        Ok([registry.config(&self.namespace, key)?, registry.config_gray(&self.namespace, key)?])
    }

    /// Returns the versions that are kept, newest first.
    pub(super) fn history(&self, key: &ConfigKey) -> Result<Vec<ConfigEntry>, ApiError> {
        self.needs(Access::Read, key)?;
        Ok(self.context.registry.config_history(&self.namespace, key)?)
    }

    /// Returns the entries that the caller may read, in the order of their names. Runs apart from the threads that answer heartbeats.
    pub(super) async fn list(&self, group: Option<&str>) -> Result<Vec<ConfigEntry>, ApiError> {
        self.caller.enters(Access::Read, self.namespace.as_str())?;
        let (registry, caller) = (self.context.registry.clone(), self.caller.clone());
        let (namespace, group) = (self.namespace.clone(), group.map(str::to_owned));
        let listed = self.context.lists.apart(move || {
            let mut entries = registry.configs(&namespace, group.as_deref())?;
            entries.retain(|entry| may_read(&caller, &namespace, &entry.key));
            Ok::<_, crate::WriteError>(entries)
        });
        Ok(listed.await??)
    }

    /// Publishes a content; for the clients of an audience only, unless it is empty.
    pub(super) async fn publish(
        &self,
        key: &ConfigKey,
        new: &NewConfig,
        expected: &Expected,
        audience: &Audience,
    ) -> Result<ConfigChange, ApiError> {
        self.needs(Access::Write, key)?;
        let (registry, author) = (&self.context.registry, self.caller.name());
        if audience.is_empty() {
            let change = registry.publish_config(&self.namespace, key, new, expected, author).await?;
            self.audit_version("publishConfig", &change);
            return Ok(change);
        }
        let change = registry.publish_gray_config(&self.namespace, key, new, audience, author).await?;
        self.audit_version("publishGrayConfig", &change);
        Ok(change)
    }

    /// Writes a draft; `create`: only if there is no such entry, otherwise only if there is one.
    pub(super) async fn draft(&self, key: &ConfigKey, new: &NewConfig, create: bool) -> Result<(), ApiError> {
        self.needs(Access::Write, key)?;
        let author = self.caller.name();
        let change = self.context.registry.draft_config(&self.namespace, key, new, create, author).await?;
        if change.wrote {
            self.audit("draftConfig", &key.to_string());
        }
        Ok(())
    }

    /// Publishes the draft.
    pub(super) async fn release(&self, key: &ConfigKey) -> Result<ConfigChange, ApiError> {
        self.needs(Access::Write, key)?;
        let change = self.context.registry.release_config(&self.namespace, key, self.caller.name()).await?;
        self.audit_version("publishConfig", &change);
        Ok(change)
    }

    /// Publishes an older version again.
    pub(super) async fn roll_back(&self, key: &ConfigKey, version: u64) -> Result<ConfigChange, ApiError> {
        self.needs(Access::Write, key)?;
        let author = self.caller.name();
        let change = self.context.registry.roll_back_config(&self.namespace, key, version, author).await?;
        self.audit_version("rollBackConfig", &change);
        Ok(change)
    }

    /// Removes an entry; true if there was one.
    pub(super) async fn remove(&self, key: &ConfigKey, expected: &Expected) -> Result<bool, ApiError> {
        self.needs(Access::Write, key)?;
        let change = self.context.registry.remove_config(&self.namespace, key, expected, self.caller.name()).await?;
        if change.wrote {
            self.audit("removeConfig", &key.to_string());
        }
        Ok(change.wrote)
    }

    /// Ends a gray release; true if there was one.
    pub(super) async fn remove_gray(&self, key: &ConfigKey) -> Result<bool, ApiError> {
        self.needs(Access::Write, key)?;
        let change = self.context.registry.remove_gray_config(&self.namespace, key).await?;
        if change.wrote {
            self.audit("removeGrayConfig", &key.to_string());
        }
        Ok(change.wrote)
    }
}

/// True if the caller may read an entry. Without the right, an entry is absent for it.
pub(super) fn may_read(caller: &Caller, namespace: &NamespaceName, key: &ConfigKey) -> bool {
    caller.may(Access::Read, Resource::config(&key.to_string()), namespace.as_str())
}

/// Returns the MD5 of the content that a client gets; empty if there is none, or the caller may not read it.
pub(super) fn visible_md5(
    context: &Context,
    caller: &Caller,
    of: (&NamespaceName, &ConfigKey),
    client: &ConfigClient,
) -> String {
    let (namespace, key) = of;
    if !may_read(caller, namespace, key) {
        return String::new();
    }
    let found = context.registry.config_for(namespace, key, client).ok().flatten();
    found.map(|entry| entry.md5).unwrap_or_default()
}

/// A client that waits for entries. Its rights are decided again at each change, for tokens end while it waits.
pub(super) struct Waiter<'a> {
    pub(super) context: &'a Context,
    pub(super) credentials: Credentials,
    pub(super) peer: IpAddr,
    pub(super) client: ConfigClient,
}

impl Waiter<'_> {
    /// Returns the entries of which the client has another content, at once or as soon as there is one; none after `limit`.
    pub(super) async fn changed<'a>(
        &self,
        listened: &'a [Listened],
        limit: Duration,
    ) -> Result<Vec<&'a Listened>, ApiError> {
        let differs = |caller: &Caller, one: &Listened| {
            visible_md5(self.context, caller, (&one.namespace, &one.key), &self.client) != one.md5
        };
        self.wait_for(listened, |one| (&one.namespace, &one.key), limit, differs).await
    }

    /// Returns those of `listened` for which `is_new` is true, at once or as soon as it is for one that the client may read; none after `limit`.
    /// `name` returns their names.
    pub(super) async fn wait_for<'a, T>(
        &self,
        listened: &'a [T],
        name: impl Fn(&T) -> (&NamespaceName, &ConfigKey),
        limit: Duration,
        is_new: impl Fn(&Caller, &T) -> bool,
    ) -> Result<Vec<&'a T>, ApiError> {
        let context = self.context;
        let caller = self.credentials.identify(context)?;
        // Listens before it looks: a change in between is found by one of the two.
        let listener = context.registry.config_listener()?;
        let mut places: HashMap<(NamespaceName, ConfigKey), Vec<usize>> = HashMap::with_capacity(listened.len());
        for (index, one) in listened.iter().enumerate() {
            let (namespace, key) = name(one);
            listener.add(namespace, key);
            places.entry((NamespaceName::of_config(namespace), key.clone())).or_default().push(index);
        }
        let mut found: Vec<&T> = listened.iter().filter(|one| is_new(&caller, one)).collect();
        if !found.is_empty() || limit.is_zero() {
            return Ok(found);
        }
        let deadline = Instant::now() + limit.min(context.limits.wait);
        let is_told = |caller: &Caller, one: &T| {
            let (namespace, key) = name(one);
            // Without the right, nothing: not even that the entry has changed.
            may_read(caller, namespace, key) && is_new(caller, one)
        };
        let waiting = async {
            while tokio::time::timeout_at(deadline, listener.changed()).await.is_ok() {
                let caller = self.credentials.identify(context).ok();
                while let Some(changed) = listener.pop() {
                    let Some(caller) = &caller else { continue };
                    let indices = places.get(&changed).into_iter().flatten();
                    found.extend(indices.map(|index| &listened[*index]).filter(|one| is_told(caller, one)));
                }
                if !found.is_empty() {
                    break;
                }
            }
        };
        let _place = context.place(Some(&caller), self.peer)?;
        let mut stopping = context.stopping.clone();
        tokio::select! {
            () = waiting => {}
            // An error means that the server is gone, which is handled as a stop.
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        Ok(found)
    }
}
