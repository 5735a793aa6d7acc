//! `/v1/session/…`: sessions, which hold keys as locks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::checks::{self, owner};
use super::wire::Object;
use super::{Call, catalog, kv, machine};
use crate::api::{AT_ONCE, ApiError, Reply, format_duration, parse_duration};
use crate::kv::{Behavior, LONGEST_LOCK_DELAY, LONGEST_TTL, Renewal, Session, Subject};
use crate::rights::{Access, Resource};
use crate::{Health, Instance, InstanceId, Revision};

/// Default lock delay.
const LOCK_DELAY: Duration = Duration::from_secs(15);
/// The check that every node of Consul has: the lease of a host that keeps one ([`leased_host`]). For all others it is always passing, because the
/// registry is every host's agent and answers.
const SERF: &str = "serfHealth";
/// Maximum number of checks of a session, and maximum length of names.
const MOST_CHECKS: usize = 64;
const LONGEST_NAME: usize = 256;

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    let registry = &call.context.registry;
    match path {
        ["create"] => {
            call.writes()?;
            create(call).await
        }
        ["destroy", id] => {
            call.writes()?;
            holds(call, id).await?;
            registry.session_end(&call.namespace, id).await?;
            call.audit("session/destroy", id);
            Ok(Reply::ok(&true))
        }
        ["renew", id] => {
            call.writes()?;
            holds(call, id).await?;
            match registry.session_renew(&call.namespace, id).await? {
                Renewal::Lives(session) => Ok(Reply::ok(&[show(&session)])),
                Renewal::Unknown => Ok(Reply::text(StatusCode::NOT_FOUND, format!("Session id '{id}' not found"))),
            }
        }
        ["info", id] => list(call, |session| *session.id == **id).await,
        ["node", node @ ..] if !node.is_empty() => {
            let node = node.join("/");
            list(call, |session| super::same(&session.node, &node)).await
        }
        ["list"] => list(call, |_| true).await,
        ["destroy" | "renew" | "info" | "node"] => Err(ApiError::bad("Missing session")),
        _ => Err(call.no_such_path()),
    }
}

fn show(session: &Session) -> Value {
    let of_node = |(_, of): &&(String, InstanceId)| of.is_of_machine();
    let of_service = |(_, of): &&(String, InstanceId)| !of.is_of_machine();
    let of_node = session.service_checks.iter().filter(of_node).map(|(id, _)| id);
    let of_node: Vec<&String> = session.node_checks.iter().chain(of_node).collect();
    let of_service: Vec<&String> = session.service_checks.iter().filter(of_service).map(|(id, _)| id).collect();
    let services: Vec<Value> = of_service.iter().map(|id| json!({ "ID": id, "Namespace": "" })).collect();
    let names = of_node.iter().chain(&of_service);
    json!({
        "ID": &*session.id,
        "Name": session.name,
        "Node": session.node,
        "LockDelay": session.lock_delay,
        "Behavior": session.behavior,
        "TTL": session.ttl_text,
        "Checks": names.collect::<Vec<_>>(),
        "NodeChecks": of_node,
        "ServiceChecks": if services.is_empty() { Value::Null } else { services.into() },
        "CreateIndex": session.created.0,
        "ModifyIndex": session.created.0,
    })
}

async fn list(call: &Call<'_>, wanted: impl Fn(&Session) -> bool) -> Result<Reply, ApiError> {
    if !matches!(call.request.method, Method::GET | Method::HEAD) {
        return Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" });
    }
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    let read = || call.context.registry.sessions(&call.namespace);
    let (blocked, (_, sessions)) = kv::watched(call, Subject::Sessions, read, |(index, _)| *index).await?;
    let sees = |session: &Session| {
        let sees = call.may(Access::Read, Resource::session(&session.node));
        if !sees {
            call.note_filtered();
        }
        sees
    };
    let shown = sessions.iter().filter(|session| wanted(session) && sees(session));
    let shown: Vec<Value> = shown.map(|session| show(session)).collect();
    Ok(blocked.show(Reply::ok(&shown)))
}

/// Checks the caller's right to a session, by its node. A session that does not exist is everybody's.
async fn holds(call: &Call<'_>, id: &str) -> Result<(), ApiError> {
    // A role is about all sessions, and was checked; renewals are frequent.
    if call.caller.stored().is_none() {
        return Ok(());
    }
    match call.context.registry.session(&call.namespace, id).await? {
        Some(session) => call.needs(Access::Write, Resource::session(&session.node)),
        None => Ok(()),
    }
}

async fn create(call: &Call<'_>) -> Result<Reply, ApiError> {
    let registry = &call.context.registry;
    let body = if call.request.body.is_empty() { json!({}) } else { call.request.json::<Value>()? };
    call.same_namespace(&body)?;
    let object = Object::new(&body, "the body")?;
    let ttl_text = object.text("ttl")?;
    let shortest = registry.kv_limits().session_ttl_min;
    let ttl = match ttl_text {
        "" => None,
        text => Some(parse_duration(text).filter(|ttl| (shortest..=LONGEST_TTL).contains(ttl) || ttl.is_zero())),
    };
    // Patroni checks this text and the status.
    let Some(ttl) = ttl.map_or(Some(None), |ttl| ttl.map(Some)) else {
        let shortest = format_duration(shortest);
        let text = format!("Invalid Session TTL '{ttl_text}', must be between [{shortest}=24h0m0s]");
        return Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text));
    };
    let behavior = match object.text("behavior")? {
        "" | "release" => Behavior::Release,
        "delete" => Behavior::Delete,
        other => {
            let text = format!("Invalid Behavior setting '{other}'");
            return Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text));
        }
    };
    let node = match object.text("node")? {
        "" => call.context.node.as_str(),
        node => node,
    };
    call.needs(Access::Write, Resource::session(node))?;
    if !is_there(call, node).await? {
        return Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, format!("Missing node registration: {node:?}")));
    }
    for (what, text) in [("Name", object.text("name")?), ("Node", node)] {
        if text.len() > LONGEST_NAME || text.chars().any(char::is_control) {
            return Err(ApiError::bad(format!(
                "{what}: expected up to {LONGEST_NAME} bytes without control characters"
            )));
        }
    }
    let (mut node_checks, mut services) = checks(&object)?;
    if node_checks.len() + services.len() > MOST_CHECKS {
        return Err(ApiError::bad(format!("a session has at most {MOST_CHECKS} checks")));
    }
    // Checks of services used to be among those of the node, and old clients still send them there.
    services.extend(node_checks.extract_if(.., |check| check != SERF));
    let mut service_checks = Vec::with_capacity(services.len() + 1);
    if node_checks.iter().any(|check| check == SERF)
        && let Some(machine) = leased_host(call, node)?
    {
        if machine.isolate || machine.health_of(SERF) == Health::Critical {
            let text = format!("Check '{SERF}' is in critical state");
            return Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text));
        }
        node_checks.retain(|check| check != SERF);
        service_checks.push((SERF.to_owned(), machine.id.clone()));
    }
    for check in services {
        let found = match owner(call, &check).await {
            Err(ApiError::Missing(_)) => None,
            found => Some(found?),
        };
        // A service is found by the id that its check would have, although it has none, or checks with ids of their own.
        let has_check = |instance: &Arc<Instance>| checks::has(instance, &check);
        let Some(instance) = found.filter(has_check) else {
            let text = format!("Missing check '{check}' registration");
            return Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text));
        };
        if instance.isolate || instance.health_of(&check) == Health::Critical {
            let text = format!("Check '{check}' is in critical state");
            return Ok(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, text));
        }
        service_checks.push((check, instance.id.clone()));
    }
    let session = Session {
        id: uuid()?.into(),
        name: object.text("name")?.to_owned(),
        node: node.to_owned(),
        lock_delay: lock_delay(&object)?,
        behavior,
        ttl: ttl.filter(|ttl| !ttl.is_zero()).map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        ttl_text: ttl_text.to_owned(),
        node_checks,
        service_checks,
        created: Revision(0),
        modified: Revision(0),
    };
    let id = session.id.clone();
    match registry.session_begin(&call.namespace, session).await? {
        Ok(()) => {
            call.audit("session/create", &id);
            Ok(Reply::ok(&json!({ "ID": &*id })))
        }
        Err(refusal) => kv::refuse(&refusal),
    }
}

/// True for a node of the catalog, for this registry's own node and for the client's own host, which need no registration.
async fn is_there(call: &Call<'_>, node: &str) -> Result<bool, ApiError> {
    if super::same(node, &call.context.node) || super::same(node, &call.peer()) {
        return Ok(true);
    }
    if call.context.registry.instance_or_ask(&machine::id(call, node)?).await.is_some() {
        return Ok(true);
    }
    let (scope, node) = (call.scope(), node.to_owned());
    call.context.lists.apart(move || !catalog::on_node(&scope, &node).is_empty()).await
}

/// Ends the sessions of a node that has left the catalog, as Consul does.
pub(super) async fn end_of_node(call: &Call<'_>, node: &str) -> Result<(), ApiError> {
    // The registry's own node stands for all hosts, and is never gone.
    if super::same(node, &call.context.node) || !call.context.registry.has_keys() {
        return Ok(());
    }
    let registry = &call.context.registry;
    let (_, sessions) = registry.sessions(&call.namespace)?;
    let ends = sessions.iter().filter(|session| super::same(&session.node, node));
    let ends: Vec<_> = ends.map(|session| registry.session_end(&call.namespace, &session.id)).collect();
    stream::iter(ends).buffered(AT_ONCE).try_collect::<()>().await?;
    Ok(())
}

/// Returns the node of a session, if its host keeps a lease. This registry's own node stands for the client's host.
fn leased_host(call: &Call<'_>, node: &str) -> Result<Option<Arc<Instance>>, ApiError> {
    let peer = call.peer();
    let name = if super::same(node, &call.context.node) { &peer } else { node };
    let machine = call.context.registry.instance(&machine::id(call, name)?);
    Ok(machine.filter(|machine| checks::has(machine, SERF)))
}

/// Parses the names of a session's checks: of the node, and of services. The default is Consul's one check of each node; an empty list means none.
fn checks(object: &Object<'_>) -> Result<(Vec<String>, Vec<String>), ApiError> {
    let wrong = |key: &str| ApiError::bad(format!("{key}: expected a list of names of checks"));
    let names = |key: &str| match object.get(key) {
        None => Ok(None),
        Some(list) => {
            let list = list.as_array().ok_or_else(|| wrong(key))?;
            let name = |value: &Value| match value {
                Value::String(name) => Ok(name.clone()),
                Value::Object(_) => Ok(Object::new(value, "a check")?.text("id")?.to_owned()),
                _ => Err(wrong(key)),
            };
            list.iter().map(name).collect::<Result<Vec<String>, ApiError>>().map(Some)
        }
    };
    let (old, node, services) = (names("checks")?, names("nodechecks")?, names("servicechecks")?);
    let node = match (node, old) {
        (None, None) => vec![SERF.to_owned()],
        (node, old) => {
            let mut all = node.unwrap_or_default();
            all.extend(old.unwrap_or_default());
            all.dedup();
            all
        }
    };
    Ok((node, services.unwrap_or_default()))
}

/// Parses a session's lock delay, in nanoseconds. A number below 1000 is taken for seconds, as at Consul: nobody means five nanoseconds.
fn lock_delay(object: &Object<'_>) -> Result<u64, ApiError> {
    let wrong = || ApiError::bad("LockDelay: expected a time of up to 60s, such as 15s");
    let delay = match object.get("lockdelay") {
        None => LOCK_DELAY,
        Some(Value::String(text)) => parse_duration(text).ok_or_else(wrong)?,
        Some(number) => match number.as_f64().filter(|number| (0.0..=1e11).contains(number)).ok_or_else(wrong)? {
            seconds if seconds < 1000.0 => Duration::from_secs_f64(seconds.trunc()),
            nanos => Duration::from_nanos(nanos as u64),
        },
    };
    if delay > LONGEST_LOCK_DELAY {
        return Err(wrong());
    }
    u64::try_from(delay.as_nanos()).map_err(|_| wrong())
}

/// True for a UUID in its usual form.
pub(super) fn is_uuid(text: &str) -> bool {
    let dashes = [8, 13, 18, 23];
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match dashes.contains(&at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        })
}

/// Returns a random UUID, which identifies a session or an event and cannot be guessed.
pub(super) fn uuid() -> Result<String, ApiError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| ApiError::Unavailable(format!("the system has no random numbers: {error}")))?;
    (bytes[6], bytes[8]) = (bytes[6] & 0x0f | 0x40, bytes[8] & 0x3f | 0x80);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lock_delays_as_clients_write_them() {
        for (body, millis) in [
            (json!({}), Some(15_000)),
            (json!({ "LockDelay": "0s" }), Some(0)),
            (json!({ "LockDelay": "1.5s" }), Some(1500)),
            (json!({ "lockdelay": 5 }), Some(5000)),
            (json!({ "LockDelay": 15_000_000_000_u64 }), Some(15_000)),
            (json!({ "LockDelay": "60s" }), Some(60_000)),
            (json!({ "LockDelay": "61s" }), None),
            (json!({ "LockDelay": -1 }), None),
            (json!({ "LockDelay": "soon" }), None),
            (json!({ "LockDelay": [] }), None),
        ] {
            let nanos = lock_delay(&Object::new(&body, "the body").unwrap());
            assert_eq!(nanos.ok().map(|nanos| nanos / 1_000_000), millis, "{body}");
        }
    }

    #[test]
    fn which_checks_a_session_has() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (body, expected) in [
            (json!({}), Some((list(&[SERF]), list(&[])))),
            (json!({ "Checks": [] }), Some((list(&[]), list(&[])))),
            (json!({ "Checks": ["serfHealth", "service:a"] }), Some((list(&[SERF, "service:a"]), list(&[])))),
            (json!({ "NodeChecks": [SERF], "ServiceChecks": [{ "ID": "b" }] }), Some((list(&[SERF]), list(&["b"])))),
            (json!({ "ServiceChecks": ["b"] }), Some((list(&[SERF]), list(&["b"])))),
            (json!({ "Checks": "a" }), None),
            (json!({ "Checks": [1] }), None),
        ] {
            assert_eq!(checks(&Object::new(&body, "the body").unwrap()).ok(), expected, "{body}");
        }
    }

    #[test]
    fn ids_are_uuids_and_each_another() {
        let (one, other) = (uuid().unwrap(), uuid().unwrap());
        assert_ne!(one, other);
        assert_eq!((one.len(), one.as_bytes()[14]), (36, b'4'));
    }
}
