//! Rules of routing, rate limits, circuit breakers and fault detection. Administrators write them as JSON (`admin`); they are stored as protobuf in
//! the namespace that they belong to, and served to clients that ask for a service of that namespace (`serve`).
//!
//! # Invariants
//!
//! - A rule belongs to one namespace, and is written only by callers that may write there. It is served only for services of that namespace, whatever
//!   its sources and destinations are: it never affects clients of another namespace's services.
//! - No part of a rule is dropped: an unknown field is an error that names it.
//! - The size of a stored rule, of a served rule and of a namespace's rules is limited at write time.

pub(super) mod admin;
mod check;
mod json;
mod routes;
mod serve;

use prost::Message as _;

use super::{code, pb};
use crate::NamespaceName;
use crate::api::ApiError;
use crate::api::request::named;

pub use json::read_any;
pub(super) use json::shown;
pub(in crate::api) use serve::Shared;
pub(super) use serve::{Served, Sort};

/// Wildcard for every service, or every namespace.
const ALL: &str = "*";

/// Kind of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Routing,
    Limit,
    Breaker,
    Detector,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    Routing(Box<pb::RouteRule>),
    Limit(Box<pb::Rule>),
    Breaker(Box<pb::CircuitBreakerRule>),
    Detector(Box<pb::FaultDetectRule>),
}

/// Configuration of a routing rule.
#[derive(Clone, Debug, PartialEq)]
enum Routing {
    /// Routing by attributes of a call.
    Rules(pb::RuleRoutingConfig),
    /// Routing by the locations of caller and callee.
    Nearby(pb::NearbyRoutingConfig),
}

/// Attributes of a rule that the registry sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) id: String,
    /// Revision, different after each change.
    pub(super) revision: String,
    /// Times of creation, of the last change, and of the last enabling.
    pub(super) ctime: String,
    pub(super) mtime: String,
    pub(super) etime: String,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Routing, Kind::Limit, Kind::Breaker, Kind::Detector];

    /// Returns the prefix of the rules' names in the store, also used in the audit log.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Routing => "routing",
            Kind::Limit => "ratelimit",
            Kind::Breaker => "circuitbreaker",
            Kind::Detector => "faultdetector",
        }
    }

    /// Returns the name of the message.
    fn message(self) -> &'static str {
        match self {
            Kind::Routing => "v1.RouteRule",
            Kind::Limit => "v1.Rule",
            Kind::Breaker => "v1.CircuitBreakerRule",
            Kind::Detector => "v1.FaultDetectRule",
        }
    }

    /// Returns the code for a missing rule.
    fn not_found(self) -> u32 {
        match self {
            Kind::Routing => code::NO_ROUTING,
            Kind::Limit => code::NO_LIMIT,
            Kind::Breaker => code::NO_BREAKER,
            Kind::Detector => code::NOT_FOUND,
        }
    }

    /// Returns the code for an invalid or missing id.
    fn bad_id(self) -> u32 {
        match self {
            Kind::Routing => code::BAD_ROUTING_ID,
            Kind::Limit => code::BAD_LIMIT_ID,
            Kind::Breaker | Kind::Detector => code::BAD_BREAKER_ID,
        }
    }

    /// Returns the code for an invalid name.
    fn bad_name(self) -> u32 {
        match self {
            Kind::Routing => code::BAD_ROUTING_NAME,
            Kind::Limit => code::BAD_LIMIT_NAME,
            Kind::Breaker | Kind::Detector => code::BAD_BREAKER_NAME,
        }
    }

    /// Returns the code for a duplicate name; `None` if duplicates are allowed.
    fn exists(self) -> Option<u32> {
        match self {
            Kind::Routing | Kind::Limit => None,
            Kind::Breaker => Some(code::BREAKER_EXISTS),
            Kind::Detector => Some(code::DETECTOR_EXISTS),
        }
    }

    pub(super) fn decode(self, bytes: &[u8]) -> Result<Rule, prost::DecodeError> {
        Ok(match self {
            Kind::Routing => Rule::Routing(Box::new(pb::RouteRule::decode(bytes)?)),
            Kind::Limit => Rule::Limit(Box::new(pb::Rule::decode(bytes)?)),
            Kind::Breaker => Rule::Breaker(Box::new(pb::CircuitBreakerRule::decode(bytes)?)),
            Kind::Detector => Rule::Detector(Box::new(pb::FaultDetectRule::decode(bytes)?)),
        })
    }
}

fn of(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

/// True if the text stands for every service or namespace. In circuit breakers and detectors an empty text does, too.
fn is_all(text: &str) -> bool {
    text.is_empty() || text == ALL
}

impl Rule {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Rule::Routing(_) => Kind::Routing,
            Rule::Limit(_) => Kind::Limit,
            Rule::Breaker(_) => Kind::Breaker,
            Rule::Detector(_) => Kind::Detector,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Rule::Routing(rule) => rule.encode_to_vec(),
            Rule::Limit(rule) => rule.encode_to_vec(),
            Rule::Breaker(rule) => rule.encode_to_vec(),
            Rule::Detector(rule) => rule.encode_to_vec(),
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Rule::Routing(rule) => &rule.id,
            Rule::Limit(rule) => of(&rule.id),
            Rule::Breaker(rule) => &rule.id,
            Rule::Detector(rule) => &rule.id,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Rule::Routing(rule) => &rule.name,
            Rule::Limit(rule) => of(&rule.name),
            Rule::Breaker(rule) => &rule.name,
            Rule::Detector(rule) => &rule.name,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        match self {
            Rule::Routing(rule) => &rule.namespace,
            Rule::Limit(rule) => of(&rule.namespace),
            Rule::Breaker(rule) => &rule.namespace,
            Rule::Detector(rule) => &rule.namespace,
        }
    }

    fn description(&self) -> &str {
        match self {
            Rule::Routing(rule) => &rule.description,
            Rule::Limit(_) => "",
            Rule::Breaker(rule) => &rule.description,
            Rule::Detector(rule) => &rule.description,
        }
    }

    pub(super) fn is_enabled(&self) -> bool {
        match self {
            Rule::Routing(rule) => rule.enable,
            Rule::Limit(rule) => !rule.disable.unwrap_or(false),
            Rule::Breaker(rule) => rule.enable,
            Rule::Detector(_) => true,
        }
    }

    /// Enables or disables the rule like `other`; a detector is always enabled.
    fn enable_as(&mut self, other: &Rule) {
        let enabled = other.is_enabled();
        match self {
            Rule::Routing(rule) => rule.enable = enabled,
            Rule::Limit(rule) => rule.disable = Some(!enabled),
            Rule::Breaker(rule) => rule.enable = enabled,
            Rule::Detector(_) => {}
        }
    }

    pub(super) fn stamp(&self) -> Stamp {
        let owned = |text: &Option<String>| text.clone().unwrap_or_default();
        match self {
            Rule::Routing(rule) => Stamp {
                id: rule.id.clone(),
                revision: rule.revision.clone(),
                ctime: rule.ctime.clone(),
                mtime: rule.mtime.clone(),
                etime: rule.etime.clone(),
            },
            Rule::Limit(rule) => Stamp {
                id: owned(&rule.id),
                revision: owned(&rule.revision),
                ctime: owned(&rule.ctime),
                mtime: owned(&rule.mtime),
                etime: owned(&rule.etime),
            },
            Rule::Breaker(rule) => Stamp {
                id: rule.id.clone(),
                revision: rule.revision.clone(),
                ctime: rule.ctime.clone(),
                mtime: rule.mtime.clone(),
                etime: rule.etime.clone(),
            },
            Rule::Detector(rule) => Stamp {
                id: rule.id.clone(),
                revision: rule.revision.clone(),
                ctime: rule.ctime.clone(),
                mtime: rule.mtime.clone(),
                etime: String::new(),
            },
        }
    }

    /// Sets the attributes from the registry, and the namespace.
    pub(super) fn set_stamp(&mut self, namespace: &NamespaceName, stamp: Stamp) {
        let namespace = namespace.as_str().to_owned();
        let Stamp { id, revision, ctime, mtime, etime } = stamp;
        match self {
            Rule::Routing(rule) => {
                (rule.id, rule.namespace, rule.revision) = (id, namespace, revision);
                (rule.ctime, rule.mtime, rule.etime) = (ctime, mtime, etime);
            }
            Rule::Limit(rule) => {
                (rule.id, rule.namespace, rule.revision) = (Some(id), Some(namespace), Some(revision));
                (rule.ctime, rule.mtime, rule.etime) = (Some(ctime), Some(mtime), Some(etime));
            }
            Rule::Breaker(rule) => {
                (rule.id, rule.namespace, rule.revision) = (id, namespace, revision);
                (rule.ctime, rule.mtime, rule.etime) = (ctime, mtime, etime);
            }
            Rule::Detector(rule) => {
                (rule.id, rule.namespace, rule.revision) = (id, namespace, revision);
                (rule.ctime, rule.mtime) = (ctime, mtime);
            }
        }
    }

    /// Sets whether the caller may change the rule. Shown to administrators, and never stored.
    pub(super) fn set_editable(&mut self, editable: bool) {
        let (one, other) = match self {
            Rule::Routing(rule) => (&mut rule.editable, &mut rule.deleteable),
            Rule::Limit(rule) => (&mut rule.editable, &mut rule.deleteable),
            Rule::Breaker(rule) => (&mut rule.editable, &mut rule.deleteable),
            Rule::Detector(rule) => (&mut rule.editable, &mut rule.deleteable),
        };
        (*one, *other) = (editable, editable);
    }

    /// Returns the namespaces and services whose clients the rule is for, as the rule names them.
    fn subjects(&self) -> Result<Vec<(String, String)>, ApiError> {
        let pair = |namespace: &str, service: &str| (namespace.to_owned(), service.to_owned());
        Ok(match self {
            Rule::Routing(rule) => match routing(rule)? {
                Routing::Nearby(config) => vec![pair(&config.namespace, &config.service)],
                Routing::Rules(config) => {
                    // Includes those given for all parts, or without any part.
                    let parts = || config.rules.iter();
                    let destinations = parts().flat_map(|part| &part.destinations).chain(&config.destinations);
                    let destinations = destinations.map(|it| pair(&it.namespace, &it.service));
                    let sources = parts().flat_map(|part| &part.sources).chain(&config.sources);
                    destinations.chain(sources.map(|it| pair(&it.namespace, &it.service))).collect()
                }
            },
            Rule::Limit(rule) => vec![pair(of(&rule.namespace), of(&rule.service))],
            Rule::Breaker(rule) => {
                let destination = rule.rule_matcher.as_ref().and_then(|matcher| matcher.destination.as_ref());
                vec![destination.map_or_else(Default::default, |it| pair(&it.namespace, &it.service))]
            }
            Rule::Detector(rule) => {
                let target = rule.target_service.as_ref();
                vec![target.map_or_else(Default::default, |it| pair(&it.namespace, &it.service))]
            }
        })
    }

    /// Returns the namespace that the rule belongs to: the one it names, or else the only one among its subjects, or `default`.
    pub(super) fn home(&self) -> Result<NamespaceName, ApiError> {
        if !is_all(self.namespace()) {
            return named(Some(self.namespace()));
        }
        let subjects = self.subjects()?;
        let mut named_ones = subjects.iter().map(|(namespace, _)| namespace.as_str()).filter(|name| !is_all(name));
        let Some(first) = named_ones.next() else { return Ok(NamespaceName::default()) };
        if let Some(other) = named_ones.find(|name| *name != first) {
            return Err(ApiError::bad(format!(
                "the rule is about services of {first:?} and {other:?}, and does not say which namespace it belongs to: it is \
                 served for services of that one only"
            )));
        }
        named(Some(first))
    }
}

/// Decodes the configuration of a routing rule.
fn routing(rule: &pb::RouteRule) -> Result<Routing, ApiError> {
    let Some(config) = &rule.routing_config else {
        return Err(ApiError::bad("routing_config: there is none"));
    };
    let expected = json::config_of(rule.routing_policy)?;
    let name = config.type_url.rsplit('/').next().unwrap_or_default();
    if name != expected {
        return Err(ApiError::bad(format!(
            "routing_config: found {name:?}, expected {expected:?} by the routing_policy"
        )));
    }
    let wrong = |error: prost::DecodeError| ApiError::bad(format!("routing_config: {error}"));
    match rule.routing_policy() {
        pb::RoutingPolicy::NearbyPolicy => {
            Ok(Routing::Nearby(pb::NearbyRoutingConfig::decode(config.value.as_slice()).map_err(wrong)?))
        }
        _ => Ok(Routing::Rules(pb::RuleRoutingConfig::decode(config.value.as_slice()).map_err(wrong)?)),
    }
}
