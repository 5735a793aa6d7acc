//! `/v1/query`: prepared queries.
//!
//! There is one datacenter, so a query never fails over to another. Without coordinates `near` moves the instances of one node to the front, and `_agent`
//! and `_ip` stand for the client's host. The store has the hash of a query's token, not the token.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::entry::{DATACENTER, ServiceEntry};
use super::prepared::{Found, MOST_QUERIES, Query, ROWS, by_id, living, resolve, selected};
use super::session::uuid;
use super::{Blocked, Call, DEFAULT_WAIT, Sight, node_of, same};
use crate::api::auth::parse_hash;
use crate::api::{ApiError, Reply};
use crate::rights::{Access, Kind, Resource};
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

impl Call<'_> {
    /// True if the caller may read a query. One without a name is visible to who manages tokens, and to who knows its id.
    fn sees_query(&self, query: &Query) -> bool {
        self.may(Access::Read, query.resource().unwrap_or(Resource::ACL))
    }

    /// Checks the caller's right to change a query: a query without a name is everybody's who knows its id.
    fn changes_query(&self, query: &Query) -> Result<(), ApiError> {
        query.resource().map_or(Ok(()), |resource| self.needs(Access::Write, resource))
    }

    /// Waits, for a blocking query, for a change of the prepared queries.
    async fn queries_blocked(&self) -> Result<Blocked, ApiError> {
        let registry = &self.context.registry;
        if self.request.param("consistent").is_some() {
            registry.kv_settle().await?;
        }
        let index = || registry.query_rows(&self.namespace, ROWS).map(|(index, _)| index.0.max(1));
        let now = index()?;
        let wanted = self.request.number("index")?.unwrap_or(0);
        if wanted == 0 || wanted != now {
            return Ok(Blocked { index: now, waited: false });
        }
        let wait = self.request.duration("wait")?.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
        let deadline = Instant::now() + wait.min(self.context.limits.wait);
        let changed = registry.query_wait(&self.namespace, ROWS, Revision(wanted), deadline);
        self.context.hold(self.request, async { changed.await.map_err(ApiError::from) }).await?;
        Ok(Blocked { index: index()?.max(wanted), waited: true })
    }
}

async fn list(call: &Call<'_>) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    let blocked = call.queries_blocked().await?;
    let registry = &call.context.registry;
    let (_, rows) = registry.query_rows(&call.namespace, ROWS)?;
    let mut shown = Vec::new();
    for found in living(registry, &call.namespace, &rows) {
        if call.sees_query(&found.query) {
            shown.push(found.show());
        } else {
            call.note_filtered();
        }
    }
    Ok(blocked.show(Reply::ok(&shown)))
}

async fn get(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    let blocked = call.queries_blocked().await?;
    let Some(found) = by_id(&call.context.registry, &call.namespace, id) else { return Ok(not_found()) };
    if let Some(resource) = found.query.resource() {
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
    call.changes_query(&existing(call, id)?.query)?;
    write(call, &query, false).await?;
    call.audit("query/update", id);
    Ok(Reply::ok(&Value::Null))
}

fn existing(call: &Call<'_>, id: &str) -> Result<Found, ApiError> {
    let missing = || ApiError::Missing(format!("Cannot modify non-existent prepared query: '{id}'"));
    by_id(&call.context.registry, &call.namespace, id).ok_or_else(missing)
}

/// Writes a query, if its name is free and its session lives.
async fn write(call: &Call<'_>, query: &Query, is_new: bool) -> Result<(), ApiError> {
    let registry = &call.context.registry;
    if !query.session.is_empty() && registry.session(&call.namespace, &query.session).await?.is_none() {
        return Err(ApiError::bad(format!("invalid session {:?}", query.session)));
    }
    let change = registry.change_queries(&call.namespace, |rows| {
        let known = living(registry, &call.namespace, rows);
        let taken = query.taken_by(rows).filter(|id| known.iter().any(|found| found.query.id == *id));
        if taken.is_some() {
            return Err(ApiError::bad(format!("name '{}' aliases an existing query name", query.name)));
        }
        let before = known.iter().map(|found| &found.query).find(|found| found.id == query.id);
        if before.is_none() && !is_new {
            return Err(ApiError::Missing(format!("Cannot modify non-existent prepared query: '{}'", query.id)));
        }
        let all = rows.iter().filter(|row| row.key.starts_with(ROWS)).count();
        if is_new && known.len() >= MOST_QUERIES {
            let (what, limit) = ("prepared queries of a namespace", MOST_QUERIES);
            return Err(WriteError::Full { what, found: known.len() + 1, limit }.into());
        }
        let mut operations = query.put(before);
        // Queries that ended with their sessions leave with the next write.
        if all > known.len() {
            let ended = ended(rows, &known);
            operations.splice(0..0, ended.iter().take(MOST_ENDED).flat_map(Query::remove));
        }
        Ok((operations, ()))
    });
    change.await
}

/// Number of ended queries that one write removes.
const MOST_ENDED: usize = 32;

/// Returns the queries of `rows` that are not among the living.
fn ended(rows: &[Arc<crate::kv::Entry>], known: &[Found]) -> Vec<Query> {
    let all = rows.iter().filter(|row| row.key.starts_with(ROWS));
    let all = all.filter_map(|row| serde_json::from_slice::<Query>(&row.value).ok());
    all.filter(|query| !known.iter().any(|found| found.query.id == query.id)).collect()
}

async fn remove(call: &Call<'_>, id: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Write, call.namespace.as_str())?;
    let before = existing(call, id)?.query;
    call.changes_query(&before)?;
    let registry = &call.context.registry;
    let change = registry.change_queries(&call.namespace, |rows| {
        let known = living(registry, &call.namespace, rows);
        let found = known.iter().find(|found| found.query.id == id);
        Ok::<_, ApiError>((found.map(|found| found.query.remove()).unwrap_or_default(), ()))
    });
    change.await?;
    call.audit("query/delete", id);
    Ok(Reply::ok(&Value::Null))
}

/// Shows which query a name stands for; a template as it is for that name.
async fn explain(call: &Call<'_>, name: &str) -> Result<Reply, ApiError> {
    call.caller.enters(Access::Read, call.namespace.as_str())?;
    settle(call).await?;
    let Some(found) = resolve(&call.context.registry, &call.namespace, name) else { return Ok(not_found()) };
    if !call.sees_query(&found.query) {
        call.needs(Access::Read, found.query.resource().unwrap_or(Resource::One(Kind::Acl, "")))?;
    }
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
    let caller = match found.as_ref().and_then(|found| parse_hash(&found.query.token)) {
        Some(hash) => call.context.identify_hash(&hash)?,
        None => call.caller.clone(),
    };
    caller.enters(Access::Read, call.namespace.as_str())?;
    let Some(Found { query, .. }) = found else { return Ok(not_found()) };
    let sight = Sight::of(&caller, call.namespace.as_str(), &call.context.node, &call.filtered);
    let near = Near::of(call, &query);
    let (registry, namespace, node) = (registry.clone(), call.namespace.clone(), call.context.node.clone());
    let mesh = call.request.flag("connect");
    let nodes = move || {
        // No service has a proxy in the mesh.
        let mut found = if mesh { Vec::new() } else { selected(&registry, &namespace, &query, sight.as_ref(), &node) };
        shuffle(&mut found);
        found.sort_by_key(|instance| !near.is(instance));
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

/// The node whose instances come first.
struct Near {
    /// Names or addresses; empty for none.
    named: String,
}

impl Near {
    fn of(call: &Call<'_>, query: &Query) -> Near {
        let named = call.request.param("near").filter(|near| !near.is_empty()).unwrap_or(&query.service.near);
        let named = match named {
            "_agent" | "_ip" => call.peer(),
            named => named.to_owned(),
        };
        Near { named }
    }

    fn is(&self, instance: &Instance) -> bool {
        if self.named.is_empty() {
            return false;
        }
        let (name, address) = node_of(instance);
        same(&name, &self.named) || address == self.named
    }
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
