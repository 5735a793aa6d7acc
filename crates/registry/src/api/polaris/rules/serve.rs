//! Rules served to clients: the rules for a service, with their revision. Built at the first request after a change, and cached: a repeated request
//! is answered by comparing two revisions, independent of the number of rules.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::routes::{self, Fit, Wanted};
use super::{Kind, Routing, Rule, is_all, of, pb, routing};
use crate::kv::{Entry, RulesMark, rule_name};
use crate::{NamespaceName, Registry, ServiceKey};

/// Maximum size of the cached decoded rules, and of the cached answers, in encoded bytes. The caches are emptied when full.
const KEPT: usize = 64 << 20;
/// Overhead of a cache entry in bytes.
const ENTRY: usize = 256;

/// Type of rules in a request; there are more types than kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Sort {
    Routing,
    Limits,
    Breakers,
    Detectors,
    /// Routing rules as they were written.
    Custom,
    Nearby,
}

/// Rules of one type served to clients of a service.
#[derive(Debug)]
pub(in super::super) struct Served {
    /// Revision, different for different rules, and the same on every node.
    pub(in super::super) revision: String,
    /// A response with the rules only.
    pub(in super::super) content: pb::DiscoverResponse,
}

/// Caches shared by all requests.
#[derive(Debug, Default)]
pub(in crate::api) struct Shared {
    /// Decoded rules by namespace.
    views: Mutex<Bounded<NamespaceName, Arc<View>>>,
    /// Answers by type and service.
    answers: Mutex<Bounded<(Sort, ServiceKey), CachedRules>>,
}

#[derive(Debug)]
struct CachedRules {
    /// Version of the namespace's rules.
    mark: RulesMark,
    /// The rules; `None` if there are none for the service.
    served: Option<Arc<Served>>,
}

/// Enabled rules of a namespace, decoded.
#[derive(Debug)]
struct View {
    mark: RulesMark,
    rules: Vec<Taken>,
}

#[derive(Debug)]
struct Taken {
    rule: Rule,
    /// Configuration of a routing rule.
    config: Option<Routing>,
}

/// A map that is emptied when its content exceeds [`KEPT`].
#[derive(Debug)]
struct Bounded<K, V> {
    entries: HashMap<K, (usize, V)>,
    weight: usize,
}

impl<K, V> Default for Bounded<K, V> {
    fn default() -> Self {
        Bounded { entries: HashMap::new(), weight: 0 }
    }
}

impl<K: Hash + Eq, V> Bounded<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    fn insert(&mut self, key: K, bytes: usize, value: V) {
        let weight = bytes + ENTRY;
        if let Some((before, _)) = self.entries.remove(&key) {
            self.weight -= before;
        }
        if self.weight + weight > KEPT {
            self.entries.clear();
            self.weight = 0;
        }
        if weight <= KEPT {
            self.weight += weight;
            self.entries.insert(key, (weight, value));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sort {
    /// Returns the type for its number in a request.
    pub(in super::super) fn of(discovered: i32) -> Option<Sort> {
        match discovered {
            3 => Some(Sort::Routing),
            4 => Some(Sort::Limits),
            5 => Some(Sort::Breakers),
            13 => Some(Sort::Detectors),
            101 => Some(Sort::Custom),
            102 => Some(Sort::Nearby),
            _ => None,
        }
    }
}

impl Shared {
    /// Returns the rules of a type for a service; `None` if there are none.
    pub(in super::super) fn served(
        &self,
        registry: &Registry,
        sort: Sort,
        service: &ServiceKey,
    ) -> Option<Arc<Served>> {
        let namespace = NamespaceName::new(service.namespace()).ok()?;
        let mark = registry.rules_mark(&namespace)?;
        let key = (sort, service.clone());
        if let Some(answer) = lock(&self.answers).get(&key).filter(|answer| answer.mark == mark) {
            return answer.served.clone();
        }
        let view = self.view(registry, &namespace, mark);
        let served = view.select(sort, &namespace, service).map(Arc::new);
        let bytes = served.as_ref().map_or(0, |served| served.content.encoded_len());
        let answer = CachedRules { mark: view.mark, served: served.clone() };
        lock(&self.answers).insert(key, bytes + service.as_str().len(), answer);
        served
    }

    fn view(&self, registry: &Registry, namespace: &NamespaceName, mark: RulesMark) -> Arc<View> {
        if let Some(view) = lock(&self.views).get(namespace).filter(|view| view.mark == mark) {
            return Arc::clone(view);
        }
        let (mark, entries) = registry.rules(namespace);
        let bytes = entries.iter().map(|entry| entry.value.len()).sum();
        let view = Arc::new(View::new(namespace, mark, &entries));
        lock(&self.views).insert(namespace.clone(), bytes, Arc::clone(&view));
        view
    }
}

/// Decodes the rule in a row. Logs and omits a rule that no registry can have written.
pub(super) fn rule_of(entry: &Entry) -> Option<Rule> {
    let (kind, id) = rule_name(entry)?.split_once('/')?;
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
    match kind.decode(&entry.value) {
        Ok(rule) if rule.id() == id => Some(rule),
        Ok(_) => {
            tracing::warn!(key = &*entry.key, "a stored rule has another id than its key");
            None
        }
        Err(error) => {
            tracing::warn!(key = &*entry.key, %error, "a stored rule cannot be read");
            None
        }
    }
}

impl View {
    fn new(namespace: &NamespaceName, mark: RulesMark, entries: &[Arc<Entry>]) -> View {
        let taken = |entry: &Arc<Entry>| {
            let rule = rule_of(entry)?;
            // Only a writer of this namespace can have written it.
            if !rule.is_enabled() || rule.namespace() != namespace.as_str() {
                return None;
            }
            let config = match &rule {
                Rule::Routing(rule) => Some(routing(rule).ok()?),
                Rule::Limit(_) | Rule::Breaker(_) | Rule::Detector(_) => None,
            };
            Some(Taken { rule, config })
        };
        View { mark, rules: entries.iter().filter_map(taken).collect() }
    }

    fn select(&self, sort: Sort, home: &NamespaceName, service: &ServiceKey) -> Option<Served> {
        let wanted = Wanted { home, service: Some(service.name()) };
        let mut content = pb::DiscoverResponse::default();
        let mut revisions = Revisions::default();
        match sort {
            Sort::Routing => {
                let mut inbound = Vec::new();
                let mut outbound = Vec::new();
                for (rule, config) in self.routing() {
                    let Routing::Rules(config) = config else { continue };
                    let ins = routes::inbound(rule, config, wanted);
                    let outs = routes::outbound(rule, config, wanted);
                    if ins.is_some() || outs.is_some() {
                        revisions.add(&rule.id, &rule.revision);
                    }
                    inbound.extend(ins.map(|(fit, routes)| (rule, fit, routes)));
                    outbound.extend(outs.map(|(fit, routes)| (rule, fit, routes)));
                }
                content.routing = Some(pb::Routing {
                    service: Some(service.name().to_owned()),
                    namespace: Some(home.as_str().to_owned()),
                    inbounds: sorted(inbound),
                    outbounds: sorted(outbound),
                    revision: revisions.told(),
                });
            }
            Sort::Custom | Sort::Nearby => {
                let mut chosen: Vec<(&pb::RouteRule, Fit)> = Vec::new();
                for (rule, config) in self.routing() {
                    let fit = match config {
                        Routing::Rules(config) if sort == Sort::Custom => {
                            let ins = routes::inbound(rule, config, wanted).map(|(fit, _)| fit);
                            ins.into_iter().chain(routes::outbound(rule, config, wanted).map(|(fit, _)| fit)).min()
                        }
                        Routing::Nearby(config) if sort == Sort::Nearby => {
                            wanted.fit(&config.namespace, &config.service)
                        }
                        Routing::Rules(_) | Routing::Nearby(_) => None,
                    };
                    chosen.extend(fit.map(|fit| (rule, fit)));
                }
                chosen.sort_by(|one, other| before((one.0, one.1), (other.0, other.1)));
                chosen.iter().for_each(|(rule, _)| revisions.add(&rule.id, &rule.revision));
                let rules = chosen.into_iter().map(|(rule, _)| rule.clone()).collect();
                match sort {
                    Sort::Custom => content.custom_route_rules = rules,
                    _ => content.nearby_route_rules = rules,
                }
            }
            Sort::Limits => {
                let mut rules: Vec<pb::Rule> = Vec::new();
                for Taken { rule, .. } in &self.rules {
                    if let Rule::Limit(rule) = rule
                        && of(&rule.service) == service.name()
                    {
                        rules.push(pb::Rule::clone(rule));
                    }
                }
                rules.sort_by(|one, other| {
                    let key = |rule: &pb::Rule| (rule.priority.unwrap_or(0), of(&rule.id).to_owned());
                    key(one).cmp(&key(other))
                });
                rules.iter().for_each(|rule| revisions.add(of(&rule.id), of(&rule.revision)));
                content.rate_limit = Some(pb::RateLimit { rules, revision: revisions.told() });
            }
            Sort::Breakers => {
                let mut rules: Vec<pb::CircuitBreakerRule> = Vec::new();
                for Taken { rule, .. } in &self.rules {
                    let Rule::Breaker(rule) = rule else { continue };
                    let destination = rule.rule_matcher.as_ref().and_then(|matcher| matcher.destination.as_ref());
                    let (of_namespace, of_service) =
                        destination.map_or(("", ""), |it| (it.namespace.as_str(), it.service.as_str()));
                    if is_for(home, service, of_namespace, of_service) {
                        rules.push(pb::CircuitBreakerRule::clone(rule));
                    }
                }
                rules.sort_by(|one, other| (one.priority, &one.id).cmp(&(other.priority, &other.id)));
                rules.iter().for_each(|rule| revisions.add(&rule.id, &rule.revision));
                content.circuit_breaker = Some(pb::CircuitBreaker {
                    service: Some(service.name().to_owned()),
                    service_namespace: Some(home.as_str().to_owned()),
                    revision: revisions.told(),
                    rules,
                });
            }
            Sort::Detectors => {
                let mut rules: Vec<pb::FaultDetectRule> = Vec::new();
                for Taken { rule, .. } in &self.rules {
                    let Rule::Detector(rule) = rule else { continue };
                    let target = rule.target_service.as_ref();
                    let (of_namespace, of_service) =
                        target.map_or(("", ""), |it| (it.namespace.as_str(), it.service.as_str()));
                    if is_for(home, service, of_namespace, of_service) {
                        rules.push(pb::FaultDetectRule::clone(rule));
                    }
                }
                rules.sort_by(|one, other| (one.priority, &one.id).cmp(&(other.priority, &other.id)));
                rules.iter().for_each(|rule| revisions.add(&rule.id, &rule.revision));
                let revision = revisions.told().unwrap_or_default();
                content.fault_detector = Some(pb::FaultDetector { rules, revision });
            }
        }
        Some(Served { revision: revisions.told()?, content })
    }

    fn routing(&self) -> impl Iterator<Item = (&pb::RouteRule, &Routing)> {
        self.rules.iter().filter_map(|taken| match (&taken.rule, &taken.config) {
            (Rule::Routing(rule), Some(config)) => Some((&**rule, config)),
            _ => None,
        })
    }
}

/// True if a breaker or a detector of `home` with this destination is for `service` of `home`.
fn is_for(home: &NamespaceName, service: &ServiceKey, namespace: &str, name: &str) -> bool {
    (is_all(namespace) || namespace == home.as_str()) && (is_all(name) || name == service.name())
}

/// Orders two routing rules: by priority, by fit, by id.
fn before(one: (&pb::RouteRule, Fit), other: (&pb::RouteRule, Fit)) -> Ordering {
    let key = |(rule, fit): (&pb::RouteRule, Fit)| (rule.priority, fit);
    key(one).cmp(&key(other)).then_with(|| one.0.id.cmp(&other.0.id))
}

fn sorted(mut routes: Vec<(&pb::RouteRule, Fit, Vec<pb::Route>)>) -> Vec<pb::Route> {
    routes.sort_by(|one, other| before((one.0, one.1), (other.0, other.1)));
    routes.into_iter().flat_map(|(_, _, routes)| routes).collect()
}

/// Builder of a common revision of several rules.
#[derive(Default)]
struct Revisions {
    rules: Vec<String>,
}

impl Revisions {
    fn add(&mut self, id: &str, revision: &str) {
        self.rules.push(format!("{id} {revision}\n"));
    }

    /// Returns the revision; `None` without rules.
    fn told(&self) -> Option<String> {
        let mut rules = self.rules.clone();
        if rules.is_empty() {
            return None;
        }
        rules.sort();
        let digest = Sha256::digest(rules.concat().as_bytes());
        let mut text = String::new();
        for byte in digest.iter().take(16) {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
