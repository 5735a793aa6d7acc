//! Routing rules in the form that Polaris' clients read: as routes to the called service (inbound), and from the calling one (outbound). A pure
//! function of the rule and the requesting service.

use std::collections::{BTreeMap, HashMap};

use prost::Message as _;

use super::{ALL, pb};
use crate::NamespaceName;

/// Keywords for matched attributes other than the caller's own labels.
const METHOD: &str = "$method";
const PATH: &str = "$path";
const CALLER_IP: &str = "$caller_ip";
/// Keys of a route's rule id and priority, as of Polaris' own server.
const RULE_ID: &str = "__routing_v2_id__";
const RULE_PRIORITY: &str = "__routing_v2_priority__";

/// The services whose routes are requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Namespace of the rule: the rule is served for services of no other.
    pub(super) home: &'a NamespaceName,
    /// The service; `None` for all that the rule may be served for.
    pub(super) service: Option<&'a str>,
}

/// How specifically a rule fits a service: by name comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    Named,
    InNamespace,
    Everything,
}

impl Wanted<'_> {
    pub(super) fn fit(self, namespace: &str, service: &str) -> Option<Fit> {
        let near = namespace == self.home.as_str();
        let fits = service == ALL || self.service.is_none_or(|wanted| wanted == service);
        match (near || namespace == ALL) && fits {
            false => None,
            true if service != ALL => Some(Fit::Named),
            true if near => Some(Fit::InNamespace),
            true => Some(Fit::Everything),
        }
    }
}

/// Returns the parts of a configuration. A part without sources or destinations gets the common ones.
pub(super) fn parts(config: &pb::RuleRoutingConfig) -> Vec<(&str, &[pb::SourceService], &[pb::DestinationGroup])> {
    if config.rules.is_empty() {
        return vec![("", &config.sources, &config.destinations)];
    }
    let mut parts = Vec::with_capacity(config.rules.len());
    for pb::SubRuleRouting { name, sources, destinations } in &config.rules {
        let sources = if sources.is_empty() { &config.sources } else { sources };
        let destinations = if destinations.is_empty() { &config.destinations } else { destinations };
        parts.push((name.as_str(), sources.as_slice(), destinations.as_slice()));
    }
    parts
}

/// Estimates the bytes of the routes in one direction without building them: the common values may be long, and the parts many.
pub(super) fn about_bytes(rule: &pb::RouteRule, config: &pb::RuleRoutingConfig) -> usize {
    let sources = |list: &[pb::SourceService]| list.iter().map(pb::SourceService::encoded_len).sum::<usize>();
    let destinations =
        |list: &[pb::DestinationGroup]| list.iter().map(pb::DestinationGroup::encoded_len).sum::<usize>();
    let (all_sources, all_destinations) = (sources(&config.sources), destinations(&config.destinations));
    let texts = [&rule.extend_info, &rule.metadata].into_iter().flatten();
    let each = 1 + texts.map(|(key, value)| key.len() + value.len()).sum::<usize>();
    let mut bytes = 0;
    if config.rules.is_empty() {
        bytes = each + all_sources + all_destinations + config.destinations.len() * rule.name.len();
    }
    for part in &config.rules {
        bytes += each + if part.sources.is_empty() { all_sources } else { sources(&part.sources) };
        let own = !part.destinations.is_empty();
        bytes += if own { destinations(&part.destinations) } else { all_destinations };
        let named = if own { part.destinations.len() } else { config.destinations.len() };
        bytes += named * (rule.name.len() + part.name.len());
    }
    bytes
}

/// Returns a keyword that two conditions of one source have: only one of them would be kept.
pub(super) fn said_twice(config: &pb::RuleRoutingConfig) -> Option<String> {
    let sources = config.sources.iter().chain(config.rules.iter().flat_map(|rule| &rule.sources));
    for source in sources {
        let mut seen = BTreeMap::new();
        if let Some(word) = source.arguments.iter().map(word).find(|word| seen.insert(word.clone(), ()).is_some()) {
            return Some(word);
        }
    }
    None
}

/// Returns the routes for callers of the service.
pub(super) fn inbound(
    rule: &pb::RouteRule,
    config: &pb::RuleRoutingConfig,
    wanted: Wanted<'_>,
) -> Option<(Fit, Vec<pb::Route>)> {
    let mut best = None;
    let mut routes = Vec::new();
    for (name, sources, destinations) in parts(config) {
        let fitting: Vec<_> = destinations
            .iter()
            .filter_map(|it| wanted.fit(&it.namespace, &it.service).map(|fit| (fit, destination(rule, name, it))))
            .collect();
        let Some(fit) = fitting.iter().map(|(fit, _)| *fit).min() else { continue };
        best = Some(best.map_or(fit, |best: Fit| best.min(fit)));
        let sources = sources.iter().map(source).collect();
        routes.push(route(rule, sources, fitting.into_iter().map(|(_, it)| it).collect()));
    }
    best.map(|fit| (fit, routes))
}

/// Returns the routes for calls by the service. A client takes every source in them for its own.
pub(super) fn outbound(
    rule: &pb::RouteRule,
    config: &pb::RuleRoutingConfig,
    wanted: Wanted<'_>,
) -> Option<(Fit, Vec<pb::Route>)> {
    let mut best = None;
    let mut routes = Vec::new();
    for (name, sources, destinations) in parts(config) {
        let fitting: Vec<_> = sources
            .iter()
            .filter_map(|it| wanted.fit(&it.namespace, &it.service).map(|fit| (fit, source(it))))
            .collect();
        let Some(fit) = fitting.iter().map(|(fit, _)| *fit).min() else { continue };
        best = Some(best.map_or(fit, |best: Fit| best.min(fit)));
        let destinations = destinations.iter().map(|it| destination(rule, name, it)).collect();
        routes.push(route(rule, fitting.into_iter().map(|(_, it)| it).collect(), destinations));
    }
    best.map(|fit| (fit, routes))
}

/// Returns the number of bytes of all routes as which a rule may be served.
pub(super) fn served_bytes(rule: &pb::RouteRule, config: &pb::RuleRoutingConfig, home: &NamespaceName) -> usize {
    let wanted = Wanted { home, service: None };
    let bytes = |routes: Option<(Fit, Vec<pb::Route>)>| {
        routes.map_or(0, |(_, routes)| routes.iter().map(pb::Route::encoded_len).sum::<usize>())
    };
    bytes(inbound(rule, config, wanted)) + bytes(outbound(rule, config, wanted))
}

fn route(rule: &pb::RouteRule, sources: Vec<pb::Source>, destinations: Vec<pb::Destination>) -> pb::Route {
    let mut extend_info = rule.extend_info.clone();
    extend_info.insert(RULE_ID.to_owned(), rule.id.clone());
    extend_info.insert(RULE_PRIORITY.to_owned(), format!("{:04}", rule.priority));
    pb::Route { sources, destinations, extend_info, metadata: rule.metadata.clone() }
}

fn source(it: &pb::SourceService) -> pb::Source {
    let value = |argument: &pb::SourceMatch| argument.value.clone().unwrap_or_default();
    pb::Source {
        service: Some(it.service.clone()),
        namespace: Some(it.namespace.clone()),
        metadata: it.arguments.iter().map(|argument| (word(argument), value(argument))).collect(),
    }
}

fn destination(rule: &pb::RouteRule, part: &str, it: &pb::DestinationGroup) -> pb::Destination {
    let metadata: HashMap<String, pb::MatchString> = it.labels.clone();
    pb::Destination {
        service: Some(it.service.clone()),
        namespace: Some(it.namespace.clone()),
        metadata,
        priority: Some(it.priority),
        weight: Some(it.weight),
        transfer: Some(it.transfer.clone()),
        isolate: Some(it.isolate),
        name: Some(format!("{}.{part}.{}", rule.name, it.name)),
    }
}

/// Returns the keyword by which a client looks up the attribute of a condition.
fn word(argument: &pb::SourceMatch) -> String {
    use pb::source_match::Type;

    let key = &argument.key;
    match argument.r#type() {
        Type::Custom => key.clone(),
        Type::Method => METHOD.into(),
        Type::Header => format!("$header.{key}"),
        Type::Query => format!("$query.{key}"),
        Type::CallerIp => CALLER_IP.into(),
        Type::Path => PATH.into(),
        Type::Cookie => format!("$cookie.{key}"),
        Type::CallerMetadata => format!("$caller_metadata.{key}"),
    }
}
