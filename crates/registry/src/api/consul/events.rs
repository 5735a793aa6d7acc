//! `/v1/event/…`: user events, broadcast to the nodes of a namespace and kept only for a short time.
//!
//! An event may select its nodes by regular expressions: of the node's name, of a service on the node, of a tag of the service. At Consul each agent
//! evaluates them when it receives the event. Here the registry is every host's agent and evaluates them when a list is requested: for the client's
//! own node, by its address; or with the list's `?node=`, `?service=` and `?tag=`, for any of the nodes that these select.
//!
//! The index of a list is not a revision: it is derived from the id of the last event, as Consul's clients do to find the events that are new to
//! them. So a list waits while its last event is the one that the client names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::patterns::{PATTERN_BYTES, Patterns};
use super::session::uuid;
use super::wire::{FROM, Kept};
use super::{Blocked, Call, DEFAULT_WAIT, Scope, entry, filter, machine};
use crate::Instance;
use crate::api::{ApiError, Context, Reply};
use crate::kv::Entry;
use crate::rights::{Access, Resource};

/// Maximum length of an event in bytes: name, payload and filters. Consul's limit.
const LONGEST: usize = 512;
/// Version of the event format in Consul.
const VERSION: u32 = 1;
/// Name of the events by which Consul's agents are told to run a command. Not supported.
const REMOTE_EXEC: &str = "_rexec";
/// Maximum number of a host's services that are checked against an event's filters.
const MOST_SERVICES: usize = 4096;
/// A stored event.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Event {
    id: String,
    name: String,
    /// Payload in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    payload: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    node: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    service: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tag: String,
}

/// Arguments of a list of events.
#[derive(Debug, Clone)]
struct Asked {
    name: String,
    /// The nodes whose events are listed; `None` for the client's own node.
    nodes: Option<Chosen>,
    peer: String,
}

/// Nodes selected by name and service. An empty pattern matches any.
#[derive(Debug, Clone, Default)]
struct Chosen {
    node: String,
    service: String,
    tag: String,
}

/// A node, for the filters of events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Node {
    names: BTreeSet<String>,
    /// The node's services with their tags.
    services: BTreeMap<String, BTreeSet<String>>,
}

pub(super) async fn handle(call: &Call<'_>, path: &[&str]) -> Result<Reply, ApiError> {
    match path {
        ["fire", name, ..] if !name.is_empty() => {
            call.writes()?;
            fire(call).await
        }
        ["fire", ..] => Err(ApiError::bad("Missing name")),
        ["list"] => {
            call.reads()?;
            list(call).await
        }
        _ => Err(call.no_such_path()),
    }
}

async fn fire(call: &Call<'_>) -> Result<Reply, ApiError> {
    // The raw path: a slash is part of the name.
    let name = call.request.whole.strip_prefix("/v1/event/fire/").unwrap_or_default();
    call.needs(Access::Write, Resource::event(name))?;
    if name == REMOTE_EXEC {
        return Err(ApiError::NotImplemented("Consul's remote execution is not served here".into()));
    }
    let param = |name: &str| call.request.param(name).unwrap_or_default().to_owned();
    let payload = &call.request.body;
    let mut event = Event { id: uuid()?, name: name.to_owned(), node: param("node"), ..Event::default() };
    (event.service, event.tag) = (param("service"), param("tag"));
    let bytes = [name, &event.node, &event.service, &event.tag].iter().map(|text| text.len()).sum::<usize>();
    if bytes + payload.len() > LONGEST {
        let what = "the event (name, filters and payload)";
        return Err(ApiError::TooLarge { what, limit: "the fixed limit", value: LONGEST as u64 });
    }
    if name.chars().any(char::is_control) {
        return Err(ApiError::bad("the event's name: expected text without control characters"));
    }
    checked(&event.node, &event.service, &event.tag)?;
    event.payload = STANDARD.encode(payload);
    let value = Bytes::from(serde_json::to_vec(&event).unwrap_or_default());
    let number = call.context.registry.fire(&call.namespace, &value).await?;
    call.audit("event/fire", name);
    Ok(Reply::ok(&event.shown(number)))
}

/// Rejects invalid expressions, and a tag filter without a service filter.
fn checked(node: &str, service: &str, tag: &str) -> Result<(), ApiError> {
    if service.is_empty() && !tag.is_empty() {
        return Err(ApiError::bad("Cannot provide tag filter without service filter"));
    }
    for (what, text) in [("node", node), ("service", service), ("tag", tag)] {
        filter::pattern(text, PATTERN_BYTES)
            .map_err(|error| ApiError::bad(format!("Invalid {what} filter: {error}")))?;
    }
    Ok(())
}

async fn list(call: &Call<'_>) -> Result<Reply, ApiError> {
    let (registry, request) = (&call.context.registry, call.request);
    let asked = Asked::of(call)?;
    if request.param("consistent").is_some() {
        registry.kv_settle().await?;
    }
    let (mut seen, found) = registry.events(&call.namespace)?;
    let mut events = listed(call, &asked, found).await?;
    let known = request.number("index")?.unwrap_or(0);
    let waits = known > 0 && index(&events) == known;
    if waits {
        let wait = request.duration("wait")?.filter(|wait| !wait.is_zero()).unwrap_or(DEFAULT_WAIT);
        let deadline = Instant::now() + wait.min(call.context.limits.wait);
        let another = async {
            while index(&events) == known && Instant::now() < deadline {
                registry.event_after(&call.namespace, seen, deadline).await?;
                let found;
                (seen, found) = registry.events(&call.namespace)?;
                events = listed(call, &asked, found).await?;
            }
            Ok(())
        };
        call.context.hold(request, another).await?;
    }
    let shown: Vec<Value> = events.iter().map(|(number, event)| event.shown(*number)).collect();
    Ok(Blocked { index: index(&events), waited: waits }.show(Reply::ok(&shown)))
}

/// Returns the index of a list. An empty list has 1: with 0 the client would ask again at once.
fn index(events: &[(u64, Event)]) -> u64 {
    events.last().map_or(1, |(_, event)| index_of(&event.id))
}

/// Returns the two halves of a UUID combined by exclusive or, as Consul and its clients derive an index from an event's id.
fn index_of(id: &str) -> u64 {
    let digits: String = id.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).map_or(1, |id| ((id >> 64) as u64 ^ id as u64).max(1))
}

/// Selects the events of `found` to list. If that depends on the services, another thread does it.
async fn listed(call: &Call<'_>, asked: &Asked, found: Vec<Arc<Entry>>) -> Result<Vec<(u64, Event)>, ApiError> {
    let events =
        found.iter().filter_map(|entry| Some((entry.flags, serde_json::from_slice::<Event>(&entry.value).ok()?)));
    let mut events: Vec<(u64, Event)> = events.collect();
    events.retain(|(_, event)| asked.name.is_empty() || event.name == asked.name);
    events.retain(|(_, event)| {
        let sees = call.may(Access::Read, Resource::event(&event.name));
        if !sees {
            call.note_filtered();
        }
        sees
    });
    if asked.nodes.is_none() && !events.iter().any(|(_, event)| event.is_filtered()) {
        return Ok(events);
    }
    let (context, scope, asked) = (Arc::clone(call.context), call.scope(), asked.clone());
    call.context
        .lists
        .apart(move || {
            let nodes = asked.nodes_of(&context, &scope);
            events.retain(|(_, event)| nodes.iter().any(|node| event.is_for(node, &context.event_patterns)));
            events
        })
        .await
}

impl Asked {
    fn of(call: &Call<'_>) -> Result<Asked, ApiError> {
        let param = |name: &str| call.request.param(name).unwrap_or_default().to_owned();
        let chosen = Chosen { node: param("node"), service: param("service"), tag: param("tag") };
        checked(&chosen.node, &chosen.service, &chosen.tag)?;
        let some = [&chosen.node, &chosen.service].into_iter().any(|text| !text.is_empty());
        Ok(Asked { name: param("name"), nodes: some.then_some(chosen), peer: call.peer() })
    }

    fn nodes_of(&self, context: &Context, scope: &Scope) -> Vec<Node> {
        let Some(chosen) = &self.nodes else { return vec![Node::that_asks(scope, &self.peer)] };
        let like = Event {
            node: chosen.node.clone(),
            service: chosen.service.clone(),
            tag: chosen.tag.clone(),
            ..Event::default()
        };
        let mut nodes = Node::all(scope);
        nodes.retain(|node| like.is_for(node, &context.event_patterns));
        nodes
    }
}

impl Event {
    fn is_filtered(&self) -> bool {
        !self.node.is_empty() || !self.service.is_empty()
    }

    /// True if the event is for `node`.
    fn is_for(&self, node: &Node, patterns: &Patterns) -> bool {
        let fits = |pattern: &str, text: &str| patterns.fits(pattern, text);
        (self.node.is_empty() || node.names.iter().any(|name| fits(&self.node, name)))
            && (self.service.is_empty()
                || node.services.iter().any(|(service, tags)| {
                    fits(&self.service, service) && (self.tag.is_empty() || tags.iter().any(|tag| fits(&self.tag, tag)))
                }))
    }

    fn shown(&self, number: u64) -> Value {
        json!({
            "ID": self.id,
            "Name": self.name,
            "Payload": (!self.payload.is_empty()).then_some(&self.payload),
            "NodeFilter": self.node,
            "ServiceFilter": self.service,
            "TagFilter": self.tag,
            "Version": VERSION,
            "LTime": number,
        })
    }
}

impl Node {
    fn add(&mut self, instance: &Instance, kept: Kept) {
        self.services.entry(instance.service.name().to_owned()).or_default().extend(kept.tags);
    }

    /// Returns the node at the address `peer`: with its address, the names that the catalog has for it, and the name of the registry's own node,
    /// which represents all agents.
    fn that_asks(scope: &Scope, peer: &str) -> Node {
        let mut node = Node::default();
        node.names.insert(peer.to_owned());
        let machines = machine::all(scope).into_iter().filter(|(machine, _)| *machine.host == *peer);
        node.names.extend(machines.map(|(_, kept)| kept.node));
        let mut here = scope.registry.find(&scope.namespace, &[(FROM, peer)], MOST_SERVICES).instances;
        for name in &node.names {
            here.extend(scope.registry.on_machine(&scope.namespace, name));
        }
        here.truncate(MOST_SERVICES);
        here.iter().for_each(|instance| node.add(instance, Kept::of(instance)));
        node.names.insert(scope.node.clone());
        node
    }

    /// Returns all nodes of the namespace.
    fn all(scope: &Scope) -> Vec<Node> {
        let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
        for (_, kept) in machine::all(scope) {
            nodes.entry(kept.node).or_default();
        }
        for instance in scope.instances() {
            let kept = Kept::of(&instance);
            nodes.entry(entry::node_name(&kept, &scope.node).to_owned()).or_default().add(&instance, kept);
        }
        let named = |(name, mut node): (String, Node)| {
            node.names.insert(name);
            node
        };
        nodes.into_iter().map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_an_event_is_for() {
        let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect();
        let node = Node {
            names: ["10.0.0.1", "web-1"].map(str::to_owned).into(),
            services: [("shop".to_owned(), tags(&["v1", "blue"])), ("mail".to_owned(), tags(&[]))].into(),
        };
        let patterns = Patterns::default();
        for (name, service, tag, expected) in [
            ("", "", "", true),
            ("^web-", "", "", true),
            ("eb", "", "", true),
            ("^web-$", "", "", false),
            ("^10\\.0\\.0\\.1$", "", "", true),
            ("", "^shop$", "", true),
            ("", "sho", "v[12]", true),
            ("", "shop", "^green$", false),
            ("", "mail", "v1", false),
            ("web-1", "shop", "blue", true),
            ("web-2", "shop", "blue", false),
            ("web-1", "other", "", false),
            ("(", "", "", false),
        ] {
            let event = Event { node: name.into(), service: service.into(), tag: tag.into(), ..Event::default() };
            for _ in 0..2 {
                assert_eq!(event.is_for(&node, &patterns), expected, "{name:?} {service:?} {tag:?}");
            }
        }
    }

    /// Compares with a value of Go's `IDToIndex`.
    #[test]
    fn an_index_is_made_of_the_id() {
        assert_eq!(index_of("b54fe110-7af5-cafc-d1fb-afc8ba432b1c"), 0xb54f_e110_7af5_cafc ^ 0xd1fb_afc8_ba43_2b1c);
        assert_eq!(index_of("00000000-0000-0000-0000-000000000000"), 1, "0 would be no index");
        assert_eq!(index(&[]), 1);
    }
}
