//! Configuration entries as keys: `PREFIX/GROUP/ID`, under the prefix of `registry.config.consul_keys`, in the request's namespace.
//!
//! A value is an entry's current content, `ModifyIndex` the revision of its row. A write publishes, with a version in the history. The caller needs the
//! right to the key and the right to the entry. Flags, locks and the removal of trees are not there: an entry has none, and is removed on its own.

use std::sync::Arc;

use hyper::Method;

use super::kv::{ALLOW, blocking, keys_below, list, named, one_key, one_of};
use super::{Blocked, Call};
use crate::Revision;
use crate::api::configs::{Configs, may_read};
use crate::api::{ApiError, Reply};
use crate::configuration::{Audience, ConfigEntry, ConfigKey, Expected, NewConfig};
use crate::kv::{ConfigPrefix, Entry};
use crate::rights::{Access, Resource};

/// An index, and entries with the revisions that created their rows.
type Found = (Revision, Vec<(Revision, ConfigEntry)>);

/// Returns the part of a key behind the prefix of entries; `None` for a key of the store.
pub(super) fn name_of<'a>(call: &Call<'_>, key: &'a str) -> Option<&'a str> {
    let prefix = call.context.registry.config_limits().consul_keys.trim_matches('/');
    if prefix.is_empty() {
        return None;
    }
    key.strip_prefix(prefix)?.strip_prefix('/')
}

/// Answers a request for the key `key`, whose part behind the prefix is `name`.
pub(super) async fn handle(call: &Call<'_>, key: &str, name: &str) -> Result<Reply, ApiError> {
    match call.request.method {
        Method::GET | Method::HEAD => {
            call.caller.enters(Access::Read, call.namespace.as_str())?;
            get(call, key, name).await
        }
        Method::PUT => put(call, key, name).await,
        Method::DELETE => delete(call, key, name).await,
        _ => Err(ApiError::MethodNotAllowed { allow: ALLOW }),
    }
}

fn entry_of(key: &str, name: &str) -> Result<ConfigKey, ApiError> {
    named(name)?;
    let (group, id) = name.split_once('/').unwrap_or((name, ""));
    ConfigKey::new(group, id)
        .map_err(|error| ApiError::bad(format!("{key}: expected the key of an entry, PREFIX/GROUP/ID: {error}")))
}

fn configs<'a>(call: &'a Call<'_>) -> Configs<'a> {
    let (context, caller) = (&**call.context, &call.caller);
    Configs { context, caller, peer: call.request.peer, namespace: call.namespace.clone() }
}

/// Returns an entry as a key; `prefix` is the key's part before the entry's name.
fn shown(prefix: &str, created: Revision, entry: &ConfigEntry) -> Entry {
    Entry {
        key: format!("{prefix}{}", entry.key).into(),
        value: entry.content.clone(),
        flags: 0,
        session: None,
        lock_index: 0,
        created,
        modified: entry.revision,
    }
}

async fn get(call: &Call<'_>, key: &str, name: &str) -> Result<Reply, ApiError> {
    let has = |name| call.request.param(name).is_some();
    let prefix = key.strip_suffix(name).unwrap_or_default();
    let registry = &call.context.registry;
    if !has("keys") && !has("recurse") {
        call.needs(Access::Read, Resource::key(key))?;
        // A key that is no entry's is absent.
        let Ok(of) = entry_of(key, name) else { return Ok(one_key(call, None)) };
        configs(call).needs(Access::Read, &of)?;
        let (blocked, (_, found)) = watched(call, &ConfigPrefix::One(of), |_| true).await?;
        let found = found.first().map(|(created, entry)| shown(prefix, *created, entry));
        return Ok(blocked.show(one_key(call, found.as_ref())));
    }
    if registry.acl_limits().key_list {
        call.needs(Access::List, Resource::key(key))?;
    }
    // What the caller may not read neither shows nor moves the index: nothing tells that it exists.
    let is_seen = |of: &ConfigKey| {
        call.may(Access::Read, Resource::key(&format!("{prefix}{of}"))) && may_read(&call.caller, &call.namespace, of)
    };
    let (blocked, (_, found)) = watched(call, &ConfigPrefix::All(name.to_owned()), is_seen).await?;
    let keys: Vec<Arc<Entry>> = found.iter().map(|(created, entry)| Arc::new(shown(prefix, *created, entry))).collect();
    if has("keys") {
        return Ok(blocked.show(keys_below(call, &keys, key)));
    }
    // A secret's content is in no list.
    Ok(blocked.show(list(&keys, |at| found.get(at).is_some_and(|(_, entry)| !entry.secret))))
}

async fn watched(
    call: &Call<'_>,
    of: &ConfigPrefix,
    is_seen: impl Fn(&ConfigKey) -> bool,
) -> Result<(Blocked, Found), ApiError> {
    let registry = &call.context.registry;
    let read = || registry.config_rows(&call.namespace, of, &is_seen);
    let index = |(index, _): &Found| *index;
    let wait = |after: Revision, deadline| {
        // An entry that cannot be read is no reason to wait for ever.
        let has_changed = move || read().map_or(true, |found| index(&found) > after);
        registry.config_wait(&call.namespace, of, has_changed, deadline)
    };
    blocking(call, read, index, wait).await
}

/// Rejects parameters of keys that an entry does not have.
fn plain(call: &Call<'_>, key: &str, parameters: &[&str]) -> Result<(), ApiError> {
    let given = |name: &&&str| call.request.param(name).is_some_and(|value| **name != "flags" || value != "0");
    match parameters.iter().find(given) {
        Some(name) => Err(ApiError::bad(format!("{key}: a configuration entry has no {name}"))),
        None => Ok(()),
    }
}

/// Returns the condition of a write.
fn expected(call: &Call<'_>) -> Result<Expected, ApiError> {
    Ok(call.request.number("cas")?.map_or(Expected::Anything, |index| Expected::Revision(Revision(index))))
}

async fn put(call: &Call<'_>, key: &str, name: &str) -> Result<Reply, ApiError> {
    let of = entry_of(key, name)?;
    call.needs(Access::Write, Resource::key(key))?;
    configs(call).needs(Access::Write, &of)?;
    one_of(call, &["cas", "acquire", "release"])?;
    plain(call, key, &["acquire", "release", "flags"])?;
    let content = std::str::from_utf8(&call.request.body)
        .map_err(|_| ApiError::bad(format!("{key}: the content of a configuration entry is UTF-8")))?;
    let secret = of.is_encrypted().then_some(true);
    let new = NewConfig { secret, ..NewConfig::new(content) };
    let published = configs(call).publish(&of, &new, &expected(call)?, &Audience::default()).await;
    written(published.map(drop))
}

async fn delete(call: &Call<'_>, key: &str, name: &str) -> Result<Reply, ApiError> {
    one_of(call, &["recurse", "cas"])?;
    plain(call, key, &["recurse"])?;
    let of = entry_of(key, name)?;
    call.needs(Access::Write, Resource::key(key))?;
    match configs(call).remove(&of, &expected(call)?).await {
        // As at Consul: what does not exist is removed, whatever the condition.
        Err(ApiError::Conflict(_)) if call.context.registry.config(&call.namespace, &of)?.is_none() => {
            Ok(Reply::ok(&true))
        }
        removed => written(removed.map(drop)),
    }
}

/// Answers a write: `false` if its condition does not hold.
fn written(result: Result<(), ApiError>) -> Result<Reply, ApiError> {
    match result {
        Ok(()) => Ok(Reply::ok(&true)),
        Err(ApiError::Conflict(_)) => Ok(Reply::ok(&false)),
        Err(error) => Err(error),
    }
}
