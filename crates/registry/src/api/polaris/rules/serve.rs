//! What clients are given: the rules for a service, and their revision. Made when somebody asks after a change, and kept: a client that
//! asks again is answered by comparing two revisions, however many rules there are.

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

/// Bytes, as they are encoded, of rules that are kept taken apart, and of answers that are kept. What does not fit is made anew.
const KEPT: usize = 64 << 20;
/// What an entry counts for beside its content.
const ENTRY: usize = 256;

/// What is asked for: as many sorts as clients ask for, which are more than kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Sort {
    Routing,
    Limits,
    Breakers,
    Detectors,
    /// Rules of routing as they were written.
    Custom,
    Nearby,
}

/// What a service's clients are given of one sort.
#[derive(Debug)]
pub(in super::super) struct Served {
    /// Another one where the rules are others; the same at every node.
    pub(in super::super) revision: String,
    /// With the rules in it, and nothing else.
    pub(in super::super) content: pb::DiscoverResponse,
}

/// What is kept for those who ask.
#[derive(Debug, Default)]
pub(in crate::api) struct Shared {
    /// The rules of a namespace.
    views: Mutex<Bounded<NamespaceName, Arc<View>>>,
    /// Answers.
    answers: Mutex<Bounded<(Sort, ServiceKey), Answer>>,
}

#[derive(Debug)]
struct Answer {
    /// As of when.
    mark: RulesMark,
    /// `None`: there are no such rules for the service.
    served: Option<Arc<Served>>,
}

/// The rules of a namespace that are enabled, taken apart.
#[derive(Debug)]
struct View {
    mark: RulesMark,
    rules: Vec<Taken>,
}

#[derive(Debug)]
struct Taken {
    rule: Rule,
    /// Of a rule of routing.
    config: Option<Routing>,
}

/// A map that is emptied when what is in it weighs too much.
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
    /// By the number of what is asked for.
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
    /// The rules of a sort for a service; `None`: there are none.
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
        let answer = Answer { mark: view.mark, served: served.clone() };
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

/// The rule in a row. One that no registry can have written is told of, and left out.
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
            // Who wrote it may write in this namespace.
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

/// Whether a breaker or a detector of `home` with this destination is for a service of `home`.
fn is_for(home: &NamespaceName, service: &ServiceKey, namespace: &str, name: &str) -> bool {
    (is_all(namespace) || namespace == home.as_str()) && (is_all(name) || name == service.name())
}

/// Which of two rules of routing comes first: the more important one, the one that fits better, the lower id.
fn before(one: (&pb::RouteRule, Fit), other: (&pb::RouteRule, Fit)) -> Ordering {
    let key = |(rule, fit): (&pb::RouteRule, Fit)| (rule.priority, fit);
    key(one).cmp(&key(other)).then_with(|| one.0.id.cmp(&other.0.id))
}

fn sorted(mut routes: Vec<(&pb::RouteRule, Fit, Vec<pb::Route>)>) -> Vec<pb::Route> {
    routes.sort_by(|one, other| before((one.0, one.1), (other.0, other.1)));
    routes.into_iter().flat_map(|(_, _, routes)| routes).collect()
}

/// The revisions of rules, as one.
#[derive(Default)]
struct Revisions {
    rules: Vec<String>,
}

impl Revisions {
    fn add(&mut self, id: &str, revision: &str) {
        self.rules.push(format!("{id} {revision}\n"));
    }

    /// `None`: of none.
    fn told(&self) -> Option<String> {
        let mut rules = self.rules.clone();
        if rules.is_empty() {
            return None;
        }
        rules.sort();
        let digest = Sha256::digest(rules.concat().as_bytes());
        let mut text = String::new();
        for byte in digest.iter().take(16) {
            // Into a text: it does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        Some(text)
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
