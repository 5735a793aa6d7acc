//! Prepared queries: their stored form, the query that a name stands for, and the instances that it selects.
//!
//! Keys of rows: `id/ID` has the query; `name/NAME` and `template/PREFIX` have its id, so a name is found without a look at all queries. Names are in lower
//! case there: as at Consul, case does not distinguish them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entry::ServiceEntry;
use super::same;
use super::session::is_uuid;
use super::sight::Sight;
use super::template::{Name, Text};
use super::wire::{Kept, Object};
use crate::api::acl::{Stored, digest_of};
use crate::api::auth::{Caller, TokenHash, parse_hash};
use crate::api::{ApiError, RESERVED, parse_duration};
use crate::expressions::Expressions;
use crate::kv::{Entry, Operation, Verb};
use crate::rights::{Kind, Resource};
use crate::{Instance, NamespaceName, Registry, Revision, ServiceKey, WriteError};

/// Shown in place of a token.
const HIDDEN: &str = "<hidden>";
/// Maximum number of queries of a namespace.
pub(super) const MOST_QUERIES: usize = 10_000;
/// Maximum length of a name, of a regular expression, and of a whole query in its stored form.
const LONGEST_NAME: usize = 256;
const LONGEST_REGEXP: usize = 1024;
const LONGEST_QUERY: usize = 64 << 10;
/// Maximum size of a compiled regular expression.
const REGEXP_BYTES: usize = 1 << 20;

const ID: &str = "id/";
const NAME: &str = "name/";
const TEMPLATE: &str = "template/";
/// The only type of templates.
const BY_PREFIX: &str = "name_prefix_match";

/// Stored form of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Query {
    pub(super) id: String,
    pub(super) name: String,
    /// The session with which the query ends; empty for none.
    pub(super) session: String,
    /// SHA-256 of the token whose rights count when the query is executed, in hexadecimal; empty for the caller's.
    pub(super) token: String,
    pub(super) template: Option<Template>,
    pub(super) service: Service,
    /// Time for which DNS answers may be cached, as it was given.
    pub(super) ttl: String,
}

/// The part of a query that makes it stand for all names with its own as a prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Template {
    regexp: String,
    remove_empty_tags: bool,
}

/// Selection of instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Service {
    pub(super) service: String,
    nearest_n: u64,
    datacenters: Vec<String>,
    targets: Vec<Value>,
    only_passing: bool,
    ignored_checks: Vec<String>,
    pub(super) near: String,
    tags: Vec<String>,
    node_meta: BTreeMap<String, String>,
    service_meta: BTreeMap<String, String>,
}

impl Query {
    /// Reads and checks a query of a request's body.
    pub(super) fn read(body: &Value, id: String) -> Result<Query, ApiError> {
        let object = Object::new(body, "the body")?;
        let mut query = Query {
            id,
            name: object.text("name")?.to_owned(),
            session: object.text("session")?.to_owned(),
            ..Query::default()
        };
        query.template = match object.get("template") {
            None => None,
            Some(template) => Template::read(&Object::new(template, "Template")?)?,
        };
        let invalid = |what: String| ApiError::bad(format!("Invalid prepared query: {what}"));
        if query.name.is_empty() && query.template.is_none() && query.session.is_empty() {
            return Err(invalid("Must be bound to a session".into()));
        }
        if query.name.len() > LONGEST_NAME || query.name.chars().any(char::is_control) {
            return Err(invalid(format!("Name: expected at most {LONGEST_NAME} bytes without control characters")));
        }
        if is_uuid(&query.name) {
            return Err(invalid(format!("name '{}' has the form of a query's ID", query.name)));
        }
        query.token = match object.text("token")? {
            "" => String::new(),
            HIDDEN => {
                return Err(invalid(format!(
                    "Bad Token '{HIDDEN}', it looks like a query definition with a redacted token was submitted"
                )));
            }
            token => digest_of(token),
        };
        query.service = match object.get("service") {
            None => Service::default(),
            Some(service) => Service::read(&Object::new(service, "Service")?)?,
        };
        if query.service.service.is_empty() {
            return Err(invalid("Must provide a Service name to query".into()));
        }
        if let Some(dns) = object.get("dns") {
            Object::new(dns, "DNS")?.text("ttl")?.clone_into(&mut query.ttl);
        }
        if !query.ttl.is_empty() && parse_duration(&query.ttl).is_none() {
            return Err(invalid(format!("Bad DNS TTL '{}': expected a time such as 10s", query.ttl)));
        }
        // Errors of a template come out here, not at its first use.
        query.rendered(&query.name, &Expressions::default()).map_err(invalid)?;
        let length = query.encoded().len();
        if length > LONGEST_QUERY {
            return Err(invalid(format!("found {length} bytes, the most is {LONGEST_QUERY}")));
        }
        Ok(query)
    }

    /// Returns the name by which policies decide; `None` for a query without one.
    pub(super) fn resource(&self) -> Option<Resource<'_>> {
        (!self.name.is_empty() || self.template.is_some()).then_some(Resource::One(Kind::Query, &self.name))
    }

    /// Returns the time for which DNS answers may be cached; `None` for the zone's.
    fn ttl(&self) -> Option<Duration> {
        (!self.ttl.is_empty()).then(|| parse_duration(&self.ttl)).flatten()
    }

    fn encoded(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// Returns the key of the row by which the name is found.
    fn name_key(&self) -> Option<String> {
        match (&self.template, self.name.as_str()) {
            (Some(_), prefix) => Some(format!("{TEMPLATE}{}", prefix.to_lowercase())),
            (None, "") => None,
            (None, name) => Some(format!("{NAME}{}", name.to_lowercase())),
        }
    }

    /// Returns the operations that write this query in place of `before`.
    pub(super) fn put(&self, before: Option<&Query>) -> Vec<Operation> {
        let mut operations = Vec::new();
        let name = self.name_key();
        if let Some(old) = before.and_then(Query::name_key).filter(|old| Some(old) != name.as_ref()) {
            operations.push(Operation { key: old.as_str().into(), verb: Verb::Delete });
        }
        let id = Bytes::copy_from_slice(self.id.as_bytes());
        operations.extend(name.map(|key| Operation { key: key.as_str().into(), verb: Verb::Set(id, 0) }));
        let key = format!("{ID}{}", self.id);
        operations.push(Operation { key: key.as_str().into(), verb: Verb::Set(self.encoded(), 0) });
        operations
    }

    /// Returns the operations that remove this query.
    pub(super) fn remove(&self) -> Vec<Operation> {
        let keys = self.name_key().into_iter().chain([format!("{ID}{}", self.id)]);
        keys.map(|key| Operation { key: key.as_str().into(), verb: Verb::Delete }).collect()
    }

    /// Returns the id of another query of `rows` that has this one's name.
    pub(super) fn taken_by(&self, rows: &[Arc<Entry>]) -> Option<String> {
        let key = self.name_key()?;
        let row = rows.iter().find(|row| *row.key == *key)?;
        std::str::from_utf8(&row.value).ok().filter(|id| *id != self.id).map(str::to_owned)
    }

    /// Returns the query as it is for `name`, one of those that its template stands for.
    fn rendered(&self, name: &str, expressions: &Expressions) -> Result<Query, String> {
        let Some(template) = &self.template else { return Ok(self.clone()) };
        let regexp = template.compiled(expressions)?;
        let matches = regexp.as_ref().and_then(|regexp| regexp.captures(name));
        let groups = matches.iter().flat_map(|found| found.iter()).map(|group| group.map_or("", |text| text.as_str()));
        let name = Name { full: name, prefix: &self.name, matches: groups.collect() };
        let text = |text: &String| {
            let bad = |error| format!("Bad format '{text}' in Service: {error}");
            Text::parse(text).map(|text| text.render(&name)).map_err(bad)
        };
        let texts = |list: &[String]| list.iter().map(text).collect::<Result<Vec<String>, String>>();
        let pairs = |map: &BTreeMap<String, String>| {
            map.iter().map(|(key, value)| Ok((key.clone(), text(value)?))).collect::<Result<BTreeMap<_, _>, String>>()
        };
        let of = &self.service;
        let mut service = Service {
            service: text(&of.service)?,
            datacenters: texts(&of.datacenters)?,
            ignored_checks: texts(&of.ignored_checks)?,
            near: text(&of.near)?,
            tags: texts(&of.tags)?,
            node_meta: pairs(&of.node_meta)?,
            service_meta: pairs(&of.service_meta)?,
            ..of.clone()
        };
        if template.remove_empty_tags {
            service.tags.retain(|tag| !tag.is_empty());
        }
        Ok(Query { service, ..self.clone() })
    }
}

impl Template {
    /// Reads the template of a query; `None` if the query is none.
    fn read(object: &Object<'_>) -> Result<Option<Template>, ApiError> {
        let kind = object.text("type")?;
        if kind.is_empty() {
            return Ok(None);
        }
        if kind != BY_PREFIX {
            return Err(ApiError::bad(format!("Invalid prepared query: Bad Template.Type '{kind}'")));
        }
        let regexp = object.text("regexp")?.to_owned();
        Ok(Some(Template { regexp, remove_empty_tags: object.flag("removeemptytags")? }))
    }

    fn compiled(&self, expressions: &Expressions) -> Result<Option<Arc<Regex>>, String> {
        if self.regexp.is_empty() {
            return Ok(None);
        }
        if self.regexp.len() > LONGEST_REGEXP {
            return Err(format!("Bad Regexp: expected at most {LONGEST_REGEXP} bytes"));
        }
        let compile = |text: &str| RegexBuilder::new(text).size_limit(REGEXP_BYTES).build();
        let compiled = expressions.get(&self.regexp, compile);
        compiled.map(Some).map_err(|error| format!("Bad Regexp: {error}"))
    }
}

impl Service {
    fn read(object: &Object<'_>) -> Result<Service, ApiError> {
        object.refuse(&["connect", "peer", "samenessgroup"])?;
        let mut service = Service {
            service: object.text("service")?.to_owned(),
            only_passing: object.flag("onlypassing")?,
            ignored_checks: object.texts("ignorecheckids")?,
            near: object.text("near")?.to_owned(),
            tags: object.texts("tags")?,
            node_meta: object.pairs("nodemeta")?,
            service_meta: object.pairs("servicemeta")?,
            ..Service::default()
        };
        if let Some(failover) = object.get("failover") {
            let failover = Object::new(failover, "Failover")?;
            service.nearest_n = failover.number("nearestn")?.unwrap_or(0);
            service.datacenters = failover.texts("datacenters")?;
            service.targets = match failover.get("targets") {
                None => Vec::new(),
                Some(Value::Array(targets)) => targets.clone(),
                Some(_) => return Err(ApiError::bad("Failover.Targets: expected a list")),
            };
        }
        Ok(service)
    }

    /// True if the query selects an instance: by its tags, its metadata and its node's, and the health of all checks.
    fn takes(&self, instance: &Instance, kept: &Kept, node: &str) -> bool {
        let has = |tag: &str| kept.tags.iter().any(|known| same(known, tag));
        let fits = |tag: &String| match tag.strip_prefix('!') {
            Some(tag) => !has(tag),
            None => has(tag),
        };
        let of_service =
            |(key, value): (&String, &String)| !key.starts_with(RESERVED) && instance.metadata.get(key) == Some(value);
        self.tags.iter().all(fits)
            && self.node_meta.iter().all(|(key, value)| kept.node_meta.get(key) == Some(value))
            && self.service_meta.iter().all(of_service)
            && ServiceEntry::new(instance, node).is_healthy(self.only_passing, &self.ignored_checks)
    }
}

impl Stored<Query> {
    /// Returns a query in Consul's form.
    pub(super) fn show(&self) -> Value {
        let Query { id, name, session, token, template, service, ttl } = &self.row;
        let template = template.as_ref();
        json!({
            "ID": id,
            "Name": name,
            "Session": session,
            "Token": if token.is_empty() { "" } else { HIDDEN },
            "Template": {
                "Type": template.map_or("", |_| BY_PREFIX),
                "Regexp": template.map_or("", |template| &template.regexp),
                "RemoveEmptyTags": template.is_some_and(|template| template.remove_empty_tags),
            },
            "Service": {
                "Service": service.service,
                "SamenessGroup": "",
                "Failover": {
                    "NearestN": service.nearest_n,
                    "Datacenters": service.datacenters,
                    "Targets": service.targets,
                },
                "OnlyPassing": service.only_passing,
                "IgnoreCheckIDs": service.ignored_checks,
                "Near": service.near,
                "Tags": service.tags,
                "NodeMeta": service.node_meta,
                "ServiceMeta": service.service_meta,
                "Connect": false,
                "Peer": "",
            },
            "DNS": { "TTL": ttl },
            "CreateIndex": self.created.0,
            "ModifyIndex": self.modified.0,
        })
    }
}

/// The queries of a namespace at one time.
pub(super) struct Listed {
    /// The queries that have not ended with their sessions.
    pub(super) living: Vec<Stored<Query>>,
    /// The index of their list: the revision of its last change. A query leaves the list with its session, although its row stays until the next write.
    pub(super) index: Revision,
}

impl Listed {
    /// Reads the queries.
    ///
    /// # Errors
    /// The store holds no keys.
    pub(super) fn read(registry: &Registry, namespace: &NamespaceName) -> Result<Listed, WriteError> {
        let (of_rows, rows) = registry.query_rows(namespace, ROWS)?;
        let (living, ended) = split(registry, namespace, &rows);
        let ends = ended.iter().filter_map(|found| registry.session_end_revision(namespace, &found.row.session));
        let index = ends.fold(of_rows, Revision::max);
        Ok(Listed { living, index })
    }
}

/// Returns the queries among `rows` that have not ended with their session.
pub(super) fn living(registry: &Registry, namespace: &NamespaceName, rows: &[Arc<Entry>]) -> Vec<Stored<Query>> {
    split(registry, namespace, rows).0
}

/// Returns the queries among `rows`: those that live, and those that have ended with their session.
pub(super) fn split(
    registry: &Registry,
    namespace: &NamespaceName,
    rows: &[Arc<Entry>],
) -> (Vec<Stored<Query>>, Vec<Stored<Query>>) {
    let all = rows.iter().filter(|row| row.key.starts_with(ID)).filter_map(|row| Stored::<Query>::decode(row).ok());
    all.partition(|found| lives(registry, namespace, &found.row))
}

fn lives(registry: &Registry, namespace: &NamespaceName, query: &Query) -> bool {
    query.session.is_empty() || registry.knows_session(namespace, &query.session)
}

/// Prefix of the keys of queries.
pub(super) const ROWS: &str = ID;

/// Returns the query with an id.
pub(super) fn by_id(registry: &Registry, namespace: &NamespaceName, id: &str) -> Option<Stored<Query>> {
    let row = registry.query_row(namespace, &format!("{ID}{id}"))?;
    Stored::decode(&row).ok().filter(|found: &Stored<Query>| lives(registry, namespace, &found.row))
}

/// Returns the query that an id or a name stands for: the one of that name, else the template with the longest name that it begins with, rendered.
pub(super) fn resolve(registry: &Registry, namespace: &NamespaceName, id_or_name: &str) -> Option<Stored<Query>> {
    if is_uuid(id_or_name) {
        return by_id(registry, namespace, id_or_name);
    }
    if id_or_name.len() > LONGEST_NAME {
        return None;
    }
    let of_key = |key: String| {
        let row = registry.query_row(namespace, &key)?;
        by_id(registry, namespace, std::str::from_utf8(&row.value).ok()?)
    };
    let name = id_or_name.to_lowercase();
    if let Some(found) = of_key(format!("{NAME}{name}")) {
        return Some(found);
    }
    let prefixes = (0..=name.len()).rev().filter_map(|end| name.get(..end));
    let template = prefixes.map(|prefix| format!("{TEMPLATE}{prefix}")).find_map(of_key)?;
    let row = template.row.rendered(id_or_name, &registry.inner().expressions).ok()?;
    Some(Stored { row, ..template })
}

/// Returns the instances that a query selects, as far as `sight` reaches.
pub(super) fn selected(
    registry: &Registry,
    namespace: &NamespaceName,
    query: &Query,
    sight: Option<&Sight>,
    node: &str,
) -> Vec<Arc<Instance>> {
    let Ok(key) = ServiceKey::new(namespace, &query.service.service) else { return Vec::new() };
    let services = registry.spelled(&key);
    let all = services.iter().flat_map(|service| service.instances.iter());
    let takes = |instance: &Arc<Instance>| {
        let kept = Kept::of(instance);
        query.service.takes(instance, &kept, node) && sight.is_none_or(|sight| sight.instance(instance, &kept))
    };
    all.filter(|instance| takes(instance)).map(Arc::clone).collect()
}

/// Returns the instances that a name stands for in DNS, and the time for which they may be cached; `None` if no query has the name. `caller` gets the
/// hash of the query's token, and returns whose rights count: an inner `None` for no limits, an outer one for a token that is gone.
pub(in crate::api) fn of_name(
    registry: &Registry,
    namespace: &NamespaceName,
    name: &str,
    caller: impl FnOnce(Option<TokenHash>) -> Option<Option<Caller>>,
) -> Option<(Vec<Arc<Instance>>, Option<Duration>)> {
    let found = resolve(registry, namespace, name)?;
    let caller = caller(parse_hash(&found.row.token))?;
    let sight = caller.and_then(|caller| Sight::of(&caller, namespace.as_str(), "", &Arc::default()));
    Some((selected(registry, namespace, &found.row, sight.as_ref(), ""), found.row.ttl()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(body: Value) -> Result<Query, String> {
        Query::read(&body, "x".into()).map_err(|error| error.to_string())
    }

    #[test]
    fn queries_that_are_refused() {
        let service = json!({ "Service": "web" });
        for (body, expected) in [
            (json!({ "Service": service }), "Must be bound to a session"),
            (json!({ "Name": "a" }), "Must provide a Service name to query"),
            (json!({ "Name": "a", "Service": { "Tags": ["x"] } }), "Must provide a Service name to query"),
            (json!({ "Name": "a", "Service": service, "Token": "<hidden>" }), "Bad Token '<hidden>'"),
            (json!({ "Name": "a", "Service": service, "DNS": { "TTL": "soon" } }), "Bad DNS TTL 'soon'"),
            (json!({ "Name": "a", "Service": { "Service": "web", "Connect": true } }), "connect: not supported"),
            (json!({ "Name": "a", "Service": service, "Template": { "Type": "guess" } }), "Bad Template.Type 'guess'"),
            (
                json!({ "Name": "a", "Service": service, "Template": { "Type": BY_PREFIX, "Regexp": "(" } }),
                "Bad Regexp",
            ),
            (
                json!({ "Name": "a", "Service": { "Service": "${name.all}" }, "Template": { "Type": BY_PREFIX } }),
                "unknown expression ${name.all}",
            ),
            (
                json!({ "Name": "8f246b77-f3e1-ff88-5b48-8ec93abf3e05", "Service": service }),
                "has the form of a query's ID",
            ),
            (json!({ "Name": "a".repeat(257), "Service": service }), "at most 256 bytes"),
            (json!({ "Name": "a", "Service": { "Service": "w".repeat(70_000) } }), "the most is 65536"),
        ] {
            let error = read(body.clone()).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
        assert!(read(json!({ "Service": service, "Session": "s" })).is_ok());
        assert!(read(json!({ "Service": service, "Template": { "Type": BY_PREFIX } })).is_ok());
    }

    #[test]
    fn a_template_is_rendered_for_a_name() {
        let query = read(json!({
            "Name": "geo-",
            "Template": { "Type": BY_PREFIX, "Regexp": "^geo-(.*?)-([^-]+)$", "RemoveEmptyTags": true },
            "Service": {
                "Service": "db-${match(1)}",
                "Tags": ["${match(2)}", "${match(9)}", "x"],
                "NodeMeta": { "zone": "${name.suffix}" },
                "Failover": { "Datacenters": ["${match(2)}"] },
            },
        }))
        .unwrap();
        let expressions = Expressions::default();
        let rendered = query.rendered("geo-shop-eu", &expressions).unwrap().service;
        assert_eq!((rendered.service.as_str(), &rendered.tags[..]), ("db-shop", &["eu".to_owned(), "x".into()][..]));
        assert_eq!((&rendered.node_meta["zone"], &rendered.datacenters[0]), (&"shop-eu".to_owned(), &"eu".to_owned()));
        // The expression does not match.
        assert_eq!(query.rendered("geo-", &expressions).unwrap().service.tags, ["x"]);
    }

    #[test]
    fn a_new_name_takes_the_row_of_the_old_one_away() {
        let old = read(json!({ "Name": "old", "Service": { "Service": "web" } })).unwrap();
        let new = Query { name: "new".into(), ..old.clone() };
        let keys = |operations: Vec<Operation>| -> Vec<String> {
            operations
                .iter()
                .map(|one| format!("{}{}", if matches!(one.verb, Verb::Delete) { "-" } else { "" }, one.key))
                .collect()
        };
        assert_eq!(keys(old.put(None)), ["name/old", "id/x"]);
        assert_eq!(keys(old.put(Some(&old))), ["name/old", "id/x"]);
        assert_eq!(keys(new.put(Some(&old))), ["-name/old", "name/new", "id/x"]);
        assert_eq!(keys(new.remove()), ["-name/new", "-id/x"]);
    }
}
