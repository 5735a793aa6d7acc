//! Validation of rules, including their size, before any change of a request.

use std::collections::BTreeSet;

use super::{Kind, Routing, Rule, code, is_all, of, routes, routing};
use crate::api::ApiError;
use crate::settings::RuleLimits;
use crate::{NamespaceName, WriteError};

/// Maximum number of characters of a name and of a description, as of Polaris' own server.
const NAME: usize = 64;
const DESCRIPTION: usize = 1024;
/// Lowest priority of a routing rule.
const LAST_PRIORITY: u32 = 10;

/// Reason why a rule was refused, or not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Refused {
    pub(in super::super) code: u32,
    pub(in super::super) info: String,
}

impl Refused {
    pub(super) fn new(code: u32, info: impl Into<String>) -> Refused {
        Refused { code, info: info.into() }
    }
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Refused {
        Refused::new(super::super::code_of(&error), error.to_string())
    }
}

impl From<WriteError> for Refused {
    fn from(error: WriteError) -> Refused {
        ApiError::from(error).into()
    }
}

/// Sets the defaults of Polaris' own server, and rejects a rule that is invalid in `home`. Returns the rule's size for the limits, in bytes.
pub(super) fn check(rule: &mut Rule, home: &NamespaceName, limits: &RuleLimits) -> Result<usize, Refused> {
    let kind = rule.kind();
    let name = rule.name().chars().count();
    if name > NAME {
        return Err(Refused::new(kind.bad_name(), format!("name: {name} characters; expected at most {NAME}")));
    }
    if name == 0 && kind.exists().is_some() {
        return Err(Refused::new(kind.bad_name(), "name: there is none"));
    }
    let description = rule.description().chars().count();
    if description > DESCRIPTION {
        let text = format!("description: {description} characters; expected at most {DESCRIPTION}");
        return Err(Refused::new(code::BAD_COMMENT, text));
    }
    if let Rule::Limit(rule) = rule {
        limit(rule)?;
    }
    served_in(rule, home)?;
    let stored = rule.encode().len();
    let bytes = match rule {
        Rule::Routing(rule) => stored.max(routed(rule, home, limits)?),
        Rule::Limit(_) | Rule::Breaker(_) | Rule::Detector(_) => stored,
    };
    if bytes > limits.rule_bytes {
        let (what, limit, value) =
            ("the rule, as it is kept or served,", "registry.rules.rule_bytes", limits.rule_bytes);
        return Err(ApiError::TooLarge { what, limit, value: value as u64 }.into());
    }
    Ok(bytes)
}

fn limit(rule: &mut crate::api::polaris::pb::Rule) -> Result<(), Refused> {
    if !of(&rule.service_token).is_empty() {
        return Err(Refused::new(
            code::INVALID,
            "service_token: who may change a rule is decided by the registry's own tokens; leave it out",
        ));
    }
    if is_all(of(&rule.service)) {
        return Err(Refused::new(code::BAD_SERVICE, "service: a rate limit is one service's; expected its name"));
    }
    let mut periods = BTreeSet::new();
    for amount in &rule.amounts {
        let period = amount.valid_duration.unwrap_or_default();
        if period.seconds < 0 || period.nanos < 0 {
            return Err(Refused::new(code::BAD_AMOUNTS, "amounts.validDuration: less than nothing"));
        }
        if !periods.insert((period.seconds, period.nanos)) {
            let text = "amounts: two of them have the same validDuration";
            return Err(Refused::new(code::BAD_AMOUNTS, text));
        }
    }
    if of(&rule.action).is_empty() {
        rule.action = Some("REJECT".into());
    }
    Ok(())
}

/// Rejects a rule that would never be served to any client.
fn served_in(rule: &Rule, home: &NamespaceName) -> Result<(), Refused> {
    let everywhere = |namespace: &str| match rule.kind() {
        Kind::Routing => namespace == super::ALL,
        Kind::Limit => false,
        Kind::Breaker | Kind::Detector => is_all(namespace),
    };
    let subjects = rule.subjects()?;
    if subjects.iter().any(|(namespace, _)| namespace == home.as_str() || everywhere(namespace)) {
        return Ok(());
    }
    let named: BTreeSet<&str> = subjects.iter().map(|(namespace, _)| namespace.as_str()).collect();
    if named.is_empty() {
        return Err(Refused::new(code::INVALID, "the rule names no service: nobody would be given it"));
    }
    let text = format!(
        "the rule belongs to the namespace {:?} and is about services of {named:?} only: nobody would be given it. A rule is served \
         for services of its own namespace: say {:?} as its namespace",
        home.as_str(),
        named.first().copied().unwrap_or_default(),
    );
    Err(Refused::new(code::INVALID, text))
}

/// Returns the number of bytes of a routing rule as served.
fn routed(
    rule: &crate::api::polaris::pb::RouteRule,
    home: &NamespaceName,
    limits: &RuleLimits,
) -> Result<usize, Refused> {
    if rule.priority > LAST_PRIORITY {
        let text = format!("priority: {}; expected 0 to {LAST_PRIORITY}", rule.priority);
        return Err(Refused::new(code::BAD_PRIORITY, text));
    }
    match routing(rule)? {
        Routing::Nearby(_) => Ok(0),
        Routing::Rules(config) => {
            if let Some(word) = routes::said_twice(&config) {
                let text =
                    format!("routing_config: two conditions of one source are about {word:?}; only one could hold");
                return Err(Refused::new(code::INVALID, text));
            }
            // A rule that is too large is not built first.
            let about = routes::about_bytes(rule, &config);
            if about > limits.rule_bytes {
                return Ok(about);
            }
            Ok(routes::served_bytes(rule, &config, home))
        }
    }
}
