//! Queries of rules in the namespaces that the caller may read.

use std::sync::Arc;

use serde_json::Value;

use super::super::json::show;
use super::super::serve::rule_of;
use super::super::{Kind, Routing, Rule, of, pb, routes, routing};
use crate::api::auth::Caller;
use crate::api::polaris::lists::{Parameters, page};
use crate::api::{ApiError, Context, Reply, Request};
use crate::rights::{Access, Resource};

/// Returns the supported parameters, besides `offset`, `limit` and `brief` (which asks for a short form; the full one is returned).
fn known(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Routing => &[
            "id",
            "name",
            "namespace",
            "service",
            "source_namespace",
            "source_service",
            "destination_namespace",
            "destination_service",
            "enable",
            "order_field",
            "order_type",
        ],
        Kind::Limit => &["id", "name", "namespace", "service", "method", "disable", "order_field", "order_type"],
        Kind::Breaker => &[
            "id",
            "name",
            "namespace",
            "service",
            "serviceNamespace",
            "srcService",
            "srcNamespace",
            "dstService",
            "dstNamespace",
            "dstMethod",
            "description",
            "enable",
            "level",
        ],
        Kind::Detector => &[
            "id",
            "name",
            "namespace",
            "service",
            "serviceNamespace",
            "dstService",
            "dstNamespace",
            "dstMethod",
            "description",
        ],
    }
}

/// A parsed query for rules.
#[derive(Clone, Debug)]
struct RuleQuery {
    parameters: Parameters,
    by_priority: bool,
    descending: bool,
}

pub(super) async fn answer(
    context: &Arc<Context>,
    caller: &Caller,
    kind: Kind,
    request: &Request,
) -> Result<Reply, ApiError> {
    let query = RuleQuery::new(kind, request)?;
    if let Some(namespace) = query.value("namespace") {
        caller.needs(Access::Read, Resource::OPERATOR, namespace)?;
    }
    // Includes the commits of all nodes so far.
    context.registry.kv_settle().await?;
    let (registry, caller) = (context.registry.clone(), caller.clone());
    let found = context.lists.apart(move || {
        let mut found = Vec::new();
        for entries in registry.all_rules() {
            // All rules of a list are of one namespace.
            let of_kind =
                |key: &str| key.strip_prefix("rule/").is_some_and(|name| name.split('/').next() == Some(kind.name()));
            let mut rules =
                entries.iter().filter(|entry| of_kind(&entry.key)).filter_map(|entry| rule_of(entry)).peekable();
            if rules.peek().is_some_and(|rule| caller.may(Access::Read, Resource::OPERATOR, rule.namespace())) {
                found.extend(
                    rules.filter(|rule| {
                        caller.may(Access::Read, Resource::OPERATOR, rule.namespace()) && query.fits(rule)
                    }),
                );
            }
        }
        let amount = found.len();
        query.sort(&mut found);
        let rows: Vec<Value> = query
            .parameters
            .rows(found)
            .map(|mut rule| {
                rule.set_editable(caller.may(Access::Write, Resource::OPERATOR, rule.namespace()));
                show(&rule, kind != Kind::Limit)
            })
            .collect();
        (amount, rows)
    });
    let (amount, rows) = found.await?;
    let reply = page(if kind == Kind::Limit { "rateLimits" } else { "data" }, amount, rows);
    Ok(if request.accepts_gzip() { reply.gzip() } else { reply })
}

impl RuleQuery {
    fn new(kind: Kind, request: &Request) -> Result<RuleQuery, ApiError> {
        let known = [known(kind), &["brief"]].concat();
        let parameters = Parameters::read(request, &known).map_err(ApiError::bad)?;
        let mut query = RuleQuery { parameters, by_priority: false, descending: false };
        for (name, value) in &query.parameters.filters {
            match name.as_str() {
                "order_field" => match value.as_str() {
                    "priority" => query.by_priority = true,
                    "mtime" | "" => {}
                    _ => return Err(ApiError::bad(format!("order_field={value:?}: expected mtime or priority"))),
                },
                "order_type" => match value.to_ascii_lowercase().as_str() {
                    "desc" => query.descending = true,
                    "asc" | "" => {}
                    _ => return Err(ApiError::bad(format!("order_type={value:?}: expected asc or desc"))),
                },
                "enable" | "disable" if !matches!(value.as_str(), "true" | "false" | "") => {
                    return Err(ApiError::bad(format!("{name}={value:?}: expected true or false")));
                }
                _ => {}
            }
        }
        query.parameters.filters.retain(|_, value| !value.is_empty());
        Ok(query)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.parameters.filters.get(name).map(String::as_str)
    }

    fn fits(&self, rule: &Rule) -> bool {
        let place = |name: &str, found: &str| self.value(name).is_none_or(|wanted| wanted == found);
        let part =
            |name: &str, found: &str| self.value(name).is_none_or(|wanted| found.contains(wanted.trim_matches('*')));
        let all = self.parameters.filters.iter().all(|(name, value)| match name.as_str() {
            "id" => rule.id() == value,
            "enable" => rule.is_enabled() == (value == "true"),
            "disable" => rule.is_enabled() != (value == "true"),
            "description" => rule.description().contains(value.as_str()),
            _ => true,
        });
        if !all {
            return false;
        }
        match rule {
            Rule::Routing(rule) => self.named(&rule.name) && self.routing_fits(rule),
            Rule::Limit(rule) => {
                let method = rule.method.as_ref().and_then(|method| method.value.as_deref()).unwrap_or_default();
                part("name", of(&rule.name))
                    && place("namespace", of(&rule.namespace))
                    && place("service", of(&rule.service))
                    && part("method", method)
            }
            Rule::Breaker(rule) => {
                let matcher = rule.rule_matcher.clone().unwrap_or_default();
                let (source, destination) =
                    (matcher.source.unwrap_or_default(), matcher.destination.unwrap_or_default());
                let places = [
                    (source.namespace.as_str(), source.service.as_str()),
                    (destination.namespace.as_str(), destination.service.as_str()),
                ];
                let method = destination.method.as_ref().and_then(|method| method.value.as_deref()).unwrap_or_default();
                part("name", &rule.name)
                    && place("namespace", &rule.namespace)
                    && place("level", &rule.level.to_string())
                    && part("srcService", &source.service)
                    && part("srcNamespace", &source.namespace)
                    && part("dstService", &destination.service)
                    && part("dstNamespace", &destination.namespace)
                    && part("dstMethod", method)
                    && places
                        .iter()
                        .any(|(namespace, service)| place("serviceNamespace", namespace) && place("service", service))
            }
            Rule::Detector(rule) => {
                let target = rule.target_service.clone().unwrap_or_default();
                let method = target.method.as_ref().and_then(|method| method.value.as_deref()).unwrap_or_default();
                part("name", &rule.name)
                    && place("namespace", &rule.namespace)
                    && place("serviceNamespace", &target.namespace)
                    && place("service", &target.service)
                    && part("dstService", &target.service)
                    && part("dstNamespace", &target.namespace)
                    && part("dstMethod", method)
            }
        }
    }

    /// True if the name of a routing rule fits: the whole name, or a part of it if the query has a `*` at an end.
    fn named(&self, found: &str) -> bool {
        self.value("name").is_none_or(|wanted| match wanted.trim_matches('*') {
            part if part.len() < wanted.len() => found.contains(part),
            whole => whole == found,
        })
    }

    /// True if a part of the rule has the requested source and destination; `service` and `namespace` may be either of them.
    fn routing_fits(&self, rule: &pb::RouteRule) -> bool {
        let side = |namespace, service| (self.value(namespace), self.value(service));
        let fits =
            |(wanted_namespace, wanted_service): (Option<&str>, Option<&str>), namespace: &str, service: &str| {
                wanted_namespace.is_none_or(|wanted| wanted == namespace)
                    && wanted_service.is_none_or(|wanted| wanted == service)
            };
        let (either, from, to) = (
            side("namespace", "service"),
            side("source_namespace", "source_service"),
            side("destination_namespace", "destination_service"),
        );
        let asked = |side: (Option<&str>, Option<&str>)| side.0.is_some() || side.1.is_some();
        let own = |side: (Option<&str>, Option<&str>)| side.1.is_none() && side.0 == Some(&*rule.namespace);
        match routing(rule) {
            Ok(Routing::Rules(config)) => routes::parts(&config).iter().any(|(_, sources, destinations)| {
                let source = |side| sources.iter().any(|it| fits(side, &it.namespace, &it.service));
                let destination = |side| destinations.iter().any(|it| fits(side, &it.namespace, &it.service));
                (!asked(either) || own(either) || source(either) || destination(either))
                    && (!asked(from) || source(from))
                    && (!asked(to) || destination(to))
            }),
            Ok(Routing::Nearby(config)) => {
                let here = |side| !asked(side) || fits(side, &config.namespace, &config.service);
                (own(either) || here(either)) && here(to) && !asked(from)
            }
            Err(_) => !asked(either) && !asked(from) && !asked(to),
        }
    }

    /// Sorts the latest rule first, or the one with the highest priority.
    fn sort(&self, rules: &mut [Rule]) {
        let priority = |rule: &Rule| match rule {
            Rule::Routing(rule) => rule.priority,
            Rule::Limit(rule) => rule.priority.unwrap_or(0),
            Rule::Breaker(rule) => rule.priority,
            Rule::Detector(rule) => rule.priority,
        };
        rules.sort_by_cached_key(|rule| (rule.stamp().mtime, rule.id().to_owned()));
        rules.reverse();
        if self.by_priority {
            rules.sort_by_key(priority);
        }
        if self.descending {
            rules.reverse();
        }
    }
}
