//! `/v1/query`: prepared queries.
//!
//! There is one datacenter, so a query never fails over to another. Without coordinates `near` moves the instances of one node to the front, and `_agent`
//! and `_ip` stand for the client's host. The store has the hash of a query's token, not the token.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::entry::{DATACENTER, ServiceEntry};
use super::prepared::{Listed, MOST_QUERIES, Query, ROWS, by_id, living, resolve, selected, split};
use super::session::uuid;
use super::{Blocked, Call, Sight, kv, node_of, same};
use crate::api::acl::Stored;
use crate::api::auth::parse_hash;
use crate::api::{ApiError, Reply};
use crate::rights::{Access, Resource};
use crate::{Instance, Revision, WriteError};

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    let method = if call.request.method == Method::HEAD { &Method::GET } else { &call.request.method };
    match (method.as_str(), path) {
        ("GET", []) => list(call).await,
        ("POST", []) => create(call).await,
        (_, []) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, POST" }),
        ("GET", [name @ .., "execute"]) if !name.is_empty() => execute(call, &name.join("/")).await,
        ("GET", [name @ .., "explain"]) if !name.is_empty() => explain(call, &name.join("/")).await,
        (_, [_, .., "execute" | "explain"]) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD" }),
        ("GET", [id]) => get(call, id).await,
        ("PUT", [id]) => update(call, id).await,
        ("DELETE", [id]) => remove(call, id).await,
        (_, [_]) => Err(ApiError::MethodNotAllowed { allow: "GET, HEAD, PUT, DELETE" }),
        _ => Err(call.no_such_path()),
    }
}

/// Returns Consul's answer for a query that is not there.
fn not_found() -> Reply {
    Reply::text(StatusCode::NOT_FOUND, "Query not found")
}

/// Returns the right that reads a query among others. One without a name is visible to who manages tokens, and to who knows its id.
fn read_right(query: &Query) -> Resource<'_> {
    query.resource().unwrap_or(Resource::ACL)
}

impl Call<'_> {
    /// Checks the caller's right to change a query: a query without a name is everybody's who knows its id.
    fn changes_query(&self, query: &Query) -> Result<(), ApiError> {
        query.resource().map_or(Ok(()), |resource| self.needs(Access::Write, resource))
    }

    /// Returns the prepared queries; for a blocking query, after a change.
    async fn queries(&self) -> Result<(Blocked, Vec<Stored<Query>>), ApiError> {
        let (registry, namespace) = (&self.context.registry, &self.namespace);
        let read = || Listed::read(registry, namespace);
        let wait = move |after: Revision, deadline| async move {
            let Ok(listed) = read() else { return Ok(()) };
            if listed.index > after {
                return Ok(());
            }
            let sessions = listed.living.iter().map(|found| found.row.session.as_str());
            let sessions: Vec<&str> = sessions.filter(|session| !session.is_empty()).collect();
            registry.query_wait(namespace, ROWS, after, &sessions, deadline).await
        };
        let (blocked, listed) = kv::blocking(self, read, |listed| listed.index, wait).await?;
        Ok((blocked, listed.living))
    }
}

async fn list(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    let (blocked, queries) = call.queries().await?;
    let mut shown = Vec::new();
    for found in queries {
        if call.may(Access::Read, read_right(&found.row)) {
            shown.push(found.show());
        } else {
            call.note_filtered();
        }
    }
    Ok(blocked.show(Reply::ok(&shown)))
}

async fn get(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    let (blocked, queries) = call.queries().await?;
    let Some(found) = queries.into_iter().find(|found| found.row.id == id) else { return Ok(not_found()) };
    if let Some(resource) = found.row.resource() {
        call.needs(Access::Read, resource)?;
    }
    Ok(blocked.show(Reply::ok(&[found.show()])))
}

async fn create(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Write, call.namespace.as_str())?;
    let body: Value = call.request.json()?;
    call.same_namespace(&body)?;
    if !super::wire::Object::new(&body, "the body")?.text("id")?.is_empty() {
        return Err(ApiError::bad("ID must be empty when creating a new prepared query"));
    }
    let query = Query::read(&body, uuid()?)?;
    call.changes_query(&query)?;
    write(call, &query, true).await?;
    call.audit("query/create", &query.id);
    Ok(Reply::ok(&json!({ "ID": query.id })))
}

async fn update(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Write, call.namespace.as_str())?;
    let body: Value = call.request.json()?;
    call.same_namespace(&body)?;
    let query = Query::read(&body, id.to_owned())?;
    call.changes_query(&query)?;
    call.changes_query(&existing(call, id)?)?;
    write(call, &query, false).await?;
    call.audit("query/update", id);
    Ok(Reply::empty(StatusCode::OK))
}

fn existing(call: &Call<'_>, id: &str) -> Result<Query, ApiError> {
    by_id(&call.context.registry, &call.namespace, id).map(|found| found.row).ok_or_else(|| missing(id))
}

fn missing(id: &str) -> ApiError {
    ApiError::Missing(format!("Cannot modify non-existent prepared query: '{id}'"))
}

/// Writes a query, if its name is free and its session lives.
async fn write(call: &Call<'_>, query: &Query, is_new: bool) -> Result<(), ApiError> {
    let registry = &call.context.registry;
    if !query.session.is_empty() && registry.session(&call.namespace, &query.session).await?.is_none() {
        return Err(ApiError::bad(format!("invalid session {:?}", query.session)));
    }
    let change = registry.change_queries(&call.namespace, |rows| {
        let (known, ended) = split(registry, &call.namespace, rows);
        let taken = query.taken_by(rows).filter(|id| known.iter().any(|found| found.row.id == *id));
        if taken.is_some() {
            return Err(ApiError::bad(format!("name '{}' aliases an existing query name", query.name)));
        }
        let before = known.iter().map(|found| &found.row).find(|found| found.id == query.id);
        if before.is_none() && !is_new {
            return Err(missing(&query.id));
        }
        if is_new && known.len() >= MOST_QUERIES {
            let (what, limit) = ("prepared queries of a namespace", MOST_QUERIES);
            return Err(WriteError::Full { what, found: known.len() + 1, limit }.into());
        }
        // Queries that ended with their sessions leave with the next write.
        let ended = ended.iter().take(MOST_ENDED).flat_map(|found| found.row.remove());
        Ok((ended.chain(query.put(before)).collect(), ()))
    });
    change.await
}

/// Number of ended queries that one write removes.
const MOST_ENDED: usize = 32;

async fn remove(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Write, call.namespace.as_str())?;
    let before = existing(call, id)?;
    call.changes_query(&before)?;
    let registry = &call.context.registry;
    let change = registry.change_queries(&call.namespace, |rows| {
        let known = living(registry, &call.namespace, rows);
        let found = known.iter().find(|found| found.row.id == id);
        Ok::<_, ApiError>((found.map(|found| found.row.remove()).unwrap_or_default(), ()))
    });
    change.await?;
    call.audit("query/delete", id);
    Ok(Reply::empty(StatusCode::OK))
}

/// Shows which query a name stands for; a template as it is for that name.
async fn explain(call: &Call<'_>, name: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    settle(call).await?;
    let Some(found) = resolve(&call.context.registry, &call.namespace, name) else { return Ok(not_found()) };
    call.needs(Access::Read, read_right(&found.row))?;
    Ok(shown(call, Reply::ok(&json!({ "Query": found.show() }))))
}

async fn settle(call: &Call<'_>) -> Result<(), ApiError> {
    if call.request.param("consistent").is_some() {
        call.context.registry.kv_settle().await?;
    }
    Ok(())
}

fn shown(call: &Call<'_>, reply: Reply) -> Reply {
    let index = call.context.registry.kv_revision().0.max(1);
    Blocked { index, waited: false }.show(reply)
}

/// Executes a query: with the rights of its own token, else with the caller's, who needs none to the query itself.
async fn execute(call: &Call<'_>, name: &str) -> Result<Reply, ApiError> {
    let registry = &call.context.registry;
    let limit = call.request.number("limit")?.filter(|limit| *limit > 0).unwrap_or(u64::MAX);
    settle(call).await?;
    let found = resolve(registry, &call.namespace, name);
    let caller = match found.as_ref().and_then(|found| parse_hash(&found.row.token)) {
        Some(hash) => call.context.identify_hash(&hash)?,
        None => call.caller.clone(),
    };
    caller.enters(Access::Read, call.namespace.as_str())?;
    let Some(Stored { row: query, .. }) = found else { return Ok(not_found()) };
    let sight = Sight::of(&caller, call.namespace.as_str(), &call.context.node, &call.filtered);
    let near = near(call, &query);
    let (registry, namespace, node) = (registry.clone(), call.namespace.clone(), call.context.node.clone());
    let mesh = call.request.flag("connect");
    let nodes = move || {
        // No service has a proxy in the mesh.
        let mut found = if mesh { Vec::new() } else { selected(&registry, &namespace, &query, sight.as_ref(), &node) };
        shuffle(&mut found);
        found.sort_by_key(|instance| !is_on(instance, &near));
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let entries: Vec<ServiceEntry> = found.iter().map(|instance| ServiceEntry::new(instance, &node)).collect();
        json!({
            "Service": query.service.service,
            "Nodes": entries,
            "DNS": { "TTL": query.ttl },
            "Datacenter": DATACENTER,
            "Failovers": 0,
        })
    };
    let answer = call.context.lists.apart(nodes).await?;
    Ok(shown(call, Reply::ok(&answer)))
}

/// Returns the name or address of the node whose instances come first; empty for none.
fn near(call: &Call<'_>, query: &Query) -> String {
    match call.request.param("near").filter(|near| !near.is_empty()).unwrap_or(&query.service.near) {
        "_agent" | "_ip" => call.peer(),
        named => named.to_owned(),
    }
}

/// True if an instance is on the node with this name or address.
fn is_on(instance: &Instance, node: &str) -> bool {
    let (name, address) = node_of(instance);
    !node.is_empty() && (same(&name, node) || address == node)
}

/// Shuffles instances, so that clients that take the first one share the load.
fn shuffle(instances: &mut [Arc<Instance>]) {
    for last in (1..instances.len()).rev() {
        let mut random = [0; 8];
        if getrandom::fill(&mut random).is_err() {
            return;
        }
        let other = u64::from_le_bytes(random) % (last as u64 + 1);
        instances.swap(last, other as usize);
    }
}
