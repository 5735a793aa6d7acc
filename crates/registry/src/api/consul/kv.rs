//! `/v1/kv/KEY`: keys with their values.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Blocked, Call, DEFAULT_WAIT, configuration, jitter};
use crate::api::{ApiError, Reply};
use crate::kv::{Entry, Given, Operation, Refusal, Subject, Verb};
use crate::rights::{Access, Resource};
use crate::{Revision, WatchError, WriteError};

const NO_SNIFFING: HeaderName = HeaderName::from_static("x-content-type-options");
const POLICY: HeaderName = HeaderName::from_static("content-security-policy");
pub(super) const ALLOW: &str = "GET, HEAD, PUT, DELETE";

pub(super) async fn handle(call: &Call<'_>) -> Result<Reply, ApiError> {
    // The raw path: a trailing slash is part of the key.
    let path = call.request.whole.as_str();
    let key = path.strip_prefix("/v1/kv").map(|rest| rest.strip_prefix('/').unwrap_or(rest)).unwrap_or_default();
    if let Some(name) = configuration::name_of(call, key) {
        return configuration::handle(call, key, name).await;
    }
    match call.request.method {
        Method::GET | Method::HEAD => {
            call.caller.enters(Access::Read, call.namespace.as_str())?;
            get(call, key).await
        }
        Method::PUT => {
            call.caller.enters(Access::Write, call.namespace.as_str())?;
            put(call, key).await
        }
        Method::DELETE => {
            call.caller.enters(Access::Write, call.namespace.as_str())?;
            delete(call, key).await
        }
        _ => Err(ApiError::MethodNotAllowed { allow: ALLOW }),
    }
}

/// Returns an entry in Consul's form; without its value in the answer to a write.
pub(super) fn show(entry: &Entry, with_value: bool) -> Value {
    let value = (with_value && !entry.value.is_empty()).then(|| STANDARD.encode(&entry.value));
    let mut shown = json!({
        "LockIndex": entry.lock_index,
        "Key": &*entry.key,
        "Flags": entry.flags,
        "Value": value,
        "CreateIndex": entry.created.0,
        "ModifyIndex": entry.modified.0,
    });
    if let Some(session) = &entry.session
        && let Some(shown) = shown.as_object_mut()
    {
        shown.insert("Session".into(), json!(&**session));
    }
    shown
}

/// Rejects mutually exclusive parameters.
pub(super) fn one_of(call: &Call<'_>, parameters: &[&str]) -> Result<(), ApiError> {
    let given: Vec<&str> = parameters.iter().copied().filter(|name| call.request.param(name).is_some()).collect();
    if given.len() > 1 {
        return Err(ApiError::bad(format!("Conflicting flags: {}", given.join("&"))));
    }
    Ok(())
}

pub(super) fn named(key: &str) -> Result<(), ApiError> {
    if key.is_empty() { Err(ApiError::bad("Missing key name")) } else { Ok(()) }
}

async fn get(call: &Call<'_>, key: &str) -> Result<Reply, ApiError> {
    let has = |name| call.request.param(name).is_some();
    let (keys, recurse) = (has("keys"), has("recurse"));
    let registry = &call.context.registry;
    if keys || recurse {
        if registry.acl_limits().key_list {
            call.needs(Access::List, Resource::key(key))?;
        }
        let index = |(index, _): &(Revision, Vec<Arc<Entry>>)| *index;
        let read = || registry.kv_tree(&call.namespace, key);
        let (blocked, (_, entries)) = watched(call, Subject::Tree(key.into()), read, index).await?;
        let entries = call.readable(entries);
        if keys {
            return Ok(blocked.show(keys_below(call, &entries, key)));
        }
        return Ok(blocked.show(list(&entries, |_| true)));
    }
    named(key)?;
    call.needs(Access::Read, Resource::key(key))?;
    let index = |(index, _): &(Revision, Option<Arc<Entry>>)| *index;
    let read = || registry.kv_get(&call.namespace, key);
    let (blocked, (_, entry)) = watched(call, Subject::Key(key.into()), read, index).await?;
    Ok(blocked.show(one_key(call, entry.as_deref())))
}

/// Answers a query of one key.
pub(super) fn one_key(call: &Call<'_>, entry: Option<&Entry>) -> Reply {
    let Some(entry) = entry else { return Reply::empty(StatusCode::NOT_FOUND) };
    if call.request.param("raw").is_some() {
        // No browser may interpret the value as a page.
        let reply = Reply::bytes(StatusCode::OK, HeaderValue::from_static("text/plain"), entry.value.clone());
        return reply.header(NO_SNIFFING, "nosniff").header(POLICY, "sandbox");
    }
    Reply::ok(&[show(entry, true)])
}

/// Answers a query of a tree, with the values of the entries for whose places `with_value` is true.
pub(super) fn list(entries: &[Arc<Entry>], with_value: impl Fn(usize) -> bool) -> Reply {
    if entries.is_empty() {
        return Reply::empty(StatusCode::NOT_FOUND);
    }
    let shown: Vec<Value> = entries.iter().enumerate().map(|(at, entry)| show(entry, with_value(at))).collect();
    Reply::ok(&shown)
}

/// Answers a query of the keys below a prefix, up to a separator.
pub(super) fn keys_below(call: &Call<'_>, entries: &[Arc<Entry>], prefix: &str) -> Reply {
    let separator = call.request.param("separator").or_else(|| call.request.param("seperator"));
    let names = names(entries, prefix, separator.unwrap_or_default());
    if names.is_empty() && !prefix.is_empty() { Reply::empty(StatusCode::NOT_FOUND) } else { Reply::ok(&names) }
}

impl Call<'_> {
    /// Returns the entries that the caller may read.
    pub(super) fn readable(&self, mut entries: Vec<Arc<Entry>>) -> Vec<Arc<Entry>> {
        // A role is about all keys, and was checked.
        if self.caller.stored().is_some() {
            let before = entries.len();
            entries.retain(|entry| self.may(Access::Read, Resource::key(&entry.key)));
            if entries.len() < before {
                self.note_filtered();
            }
        }
        entries
    }
}

/// Returns the distinct keys, each cut after the first separator behind the prefix.
fn names<'a>(entries: &'a [Arc<Entry>], prefix: &str, separator: &str) -> BTreeSet<&'a str> {
    let cut = |key: &'a str| match key[prefix.len()..].find(separator).filter(|_| !separator.is_empty()) {
        Some(at) => &key[..prefix.len() + at + separator.len()],
        None => key,
    };
    entries.iter().map(|entry| cut(&entry.key)).collect()
}

/// Returns the result of `read`; for a blocking query, waits until its index is above the request's. Result and index are read together.
pub(super) async fn watched<T>(
    call: &Call<'_>,
    subject: Subject,
    read: impl Fn() -> Result<T, WriteError>,
    index: impl Fn(&T) -> Revision,
) -> Result<(Blocked, T), ApiError> {
    let registry = &call.context.registry;
    let wait = |after, deadline| registry.kv_wait(&call.namespace, subject, after, deadline);
    blocking(call, read, index, wait).await
}

/// Answers a blocking query whose objects `read` and `index` return, and `wait` waits for: until their index is above a revision, or a deadline.
pub(super) async fn blocking<T, F: Future<Output = Result<(), WatchError>>>(
    call: &Call<'_>,
    read: impl Fn() -> Result<T, WriteError>,
    index: impl Fn(&T) -> Revision,
    wait_for: impl FnOnce(Revision, Instant) -> F,
) -> Result<(Blocked, T), ApiError> {
    let (registry, request) = (&call.context.registry, call.request);
    let wanted = Revision(request.number("index")?.unwrap_or(0));
    // A change known from another node must be applied here before the query can wait for the next one.
    if request.param("consistent").is_some() || wanted > registry.kv_revision() {
        registry.kv_settle().await?;
    }
    let found = read()?;
    let now = index(&found);
    // An index that was never issued is from another store: the client must start again. An index above the present one, of a subject whose last
    // change has been forgotten, is as good as the present one: nothing has happened since.
    let known = wanted.0 > 0 && wanted >= Revision(now.0.max(1)) && wanted <= Revision(registry.kv_revision().0.max(1));
    if !known {
        return Ok((Blocked { index: now.0.max(1), waited: false }, found));
    }
    let wait = request.duration("wait")?.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
    let wait = wait.min(call.context.limits.wait);
    let deadline = Instant::now() + (wait + jitter(wait)).min(call.context.limits.wait);
    // Of what never existed, a client has index 1, which may be that of the first change of all.
    let changed = wait_for(if now == Revision(0) { now } else { wanted }, deadline);
    call.context.hold(request, async { changed.await.map_err(ApiError::from) }).await?;
    let found = read()?;
    // Never lower than the client's index: it would start again for nothing.
    let index = index(&found).max(wanted).0.max(1);
    Ok((Blocked { index, waited: true }, found))
}

async fn put(call: &Call<'_>, key: &str) -> Result<Reply, ApiError> {
    named(key)?;
    call.needs(Access::Write, Resource::key(key))?;
    one_of(call, &["cas", "acquire", "release"])?;
    let request = call.request;
    let limit = call.context.registry.kv_limits().value_bytes;
    if request.body.len() > limit {
        let value = limit as u64;
        return Err(ApiError::TooLarge { what: "the value", limit: "registry.kv.value_bytes", value });
    }
    let (value, flags) = (request.body.clone(), request.number("flags")?.unwrap_or(0));
    let (verb, action) = if let Some(index) = request.number("cas")? {
        (Verb::SetIf(value, flags, Revision(index)), "kv/cas")
    } else if let Some(session) = request.param("acquire") {
        (Verb::Lock(value, flags, session.into()), "kv/acquire")
    } else if let Some(session) = request.param("release") {
        (Verb::Unlock(value, flags, session.into()), "kv/release")
    } else {
        (Verb::Set(value, flags), "kv/put")
    };
    one(call, key, verb, action).await
}

async fn delete(call: &Call<'_>, key: &str) -> Result<Reply, ApiError> {
    one_of(call, &["recurse", "cas"])?;
    if call.request.param("recurse").is_some() {
        call.needs(Access::Write, Resource::Keys(key))?;
        return one(call, key, Verb::DeleteTree, "kv/delete-tree").await;
    }
    named(key)?;
    call.needs(Access::Write, Resource::key(key))?;
    match call.request.number("cas")? {
        Some(index) => one(call, key, Verb::DeleteIf(Revision(index)), "kv/delete-cas").await,
        None => one(call, key, Verb::Delete, "kv/delete").await,
    }
}

/// Applies one write, and answers true if it was carried out: `false` if another client was first.
async fn one(call: &Call<'_>, key: &str, verb: Verb, action: &'static str) -> Result<Reply, ApiError> {
    let before = call.context.registry.kv_revision();
    let operation = Operation { key: key.into(), verb };
    let answer = call.context.registry.kv_apply(&call.namespace, vec![operation]).await?;
    match answer {
        Ok(given) => {
            // A write of the existing state changes nothing, and is not audited.
            let unchanged =
                given.iter().all(|given| matches!(given, Given::Entry { entry, .. } if entry.modified <= before));
            if !unchanged {
                call.audit(action, key);
            }
            Ok(Reply::ok(&true))
        }
        Err(refused) => match refused.into_iter().next() {
            Some((_, refusal)) if refusal.is_lost_race() => Ok(Reply::ok(&false)),
            Some((_, refusal)) => refuse(&refusal),
            None => Ok(Reply::ok(&false)),
        },
    }
}

/// Returns a refusal with Consul's status: clients check both text and status.
pub(super) fn refuse(refusal: &Refusal) -> Result<Reply, ApiError> {
    match refusal {
        Refusal::Full { .. } => Err(ApiError::Invalid(refusal.to_string())),
        _ => Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, refusal.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn keys_are_cut_behind_the_first_separator_after_the_prefix() {
        let entry = |key: &str| {
            let (created, modified) = (Revision(1), Revision(1));
            let key = key.into();
            Arc::new(Entry { key, value: Bytes::new(), flags: 0, session: None, lock_index: 0, created, modified })
        };
        let entries: Vec<Arc<Entry>> = ["a/b/c", "a/b/d", "a/e", "a/ä/f"].into_iter().map(entry).collect();
        for (prefix, separator, expected) in [
            ("", "", &["a/b/c", "a/b/d", "a/e", "a/ä/f"][..]),
            ("", "/", &["a/"]),
            ("a/", "/", &["a/b/", "a/e", "a/ä/"]),
            ("a", "/", &["a/"]),
            ("a/", "ä", &["a/b/c", "a/b/d", "a/e", "a/ä"]),
            ("a/", "/f", &["a/b/c", "a/b/d", "a/e", "a/ä/f"]),
        ] {
            let found: Vec<&str> = names(&entries, prefix, separator).into_iter().collect();
            assert_eq!(found, expected, "{prefix:?} {separator:?}");
        }
    }
}
