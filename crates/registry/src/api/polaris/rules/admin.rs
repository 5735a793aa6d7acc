//! Administration of rules: `/naming/v1/ratelimits`, `/naming/v2/routings`, `/naming/v1/circuitbreaker/rules` and `/naming/v1/faultdetectors`, with
//! the calls and answers of Polaris' own server.

mod query;

use std::fmt::Write as _;
use std::sync::Arc;

use hyper::Method;
use serde_json::{Map, Value};

use super::check::{Refused, check};
use super::json::{read, show};
use super::serve::rule_of;
use super::{Kind, Rule, Stamp, code, is_all};
use crate::api::auth::Caller;
use crate::api::polaris::lists::{changes, outcomes};
use crate::api::{ApiError, Context, Reply, Request};
use crate::kv::{Entry, RuleWrite};
use crate::rights::{Access, Resource};
use crate::{NamespaceName, WriteError};

/// Number of an id's hexadecimal digits: of the namespace's digest at the beginning, and in all.
const OWNER: usize = 8;
const ID: usize = 32;
/// Text of an outcome that is no refusal.
const DONE: &str = "execute success";
/// Maximum number of attempts to make a free id, each out of 2^96.
const ATTEMPTS: usize = 4;

/// A change of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Create,
    Update,
    Enable,
    Delete,
}

impl Act {
    fn name(self) -> &'static str {
        match self {
            Act::Create => "create",
            Act::Update => "update",
            Act::Enable => "enable",
            Act::Delete => "delete",
        }
    }
}

/// Outcome of one rule of a request.
type Outcome = Result<Rule, Refused>;

/// A rule of a request that has been checked.
struct Ready {
    rule: Rule,
    /// The namespace that the rule belongs to.
    home: NamespaceName,
    /// Size of the rule for the limits.
    bytes: usize,
}

pub(in super::super) async fn handle(
    context: &Arc<Context>,
    caller: &Caller,
    request: &Request,
) -> Result<Reply, ApiError> {
    let path = request.path();
    let none = || ApiError::NoSuchPath(format!("/{}", request.segments.join("/")));
    let (kind, rest) = match path.as_slice() {
        ["naming", "v2", "routings", rest @ ..] => (Kind::Routing, rest),
        ["naming", "v1", "ratelimits", rest @ ..] => (Kind::Limit, rest),
        ["naming", "v1", "circuitbreaker", "rules", rest @ ..] => (Kind::Breaker, rest),
        ["naming", "v1", "faultdetectors", rest @ ..] => (Kind::Detector, rest),
        _ => return Err(none()),
    };
    if !context.registry.has_keys() {
        return Err(ApiError::NotImplemented("the registry's store cannot hold keys, and so no rules".into()));
    }
    let act = match (rest, &request.method) {
        ([], &Method::GET) => return query::answer(context, caller, kind, request).await,
        ([], &Method::POST) => Act::Create,
        ([], &Method::PUT) => Act::Update,
        (["delete"], &Method::POST) => Act::Delete,
        (["enable"], &Method::PUT) if kind != Kind::Detector => Act::Enable,
        ([], _) => return Err(ApiError::MethodNotAllowed { allow: "GET, POST, PUT" }),
        (["delete"], _) => return Err(ApiError::MethodNotAllowed { allow: "POST" }),
        (["enable"], _) if kind != Kind::Detector => return Err(ApiError::MethodNotAllowed { allow: "PUT" }),
        _ => return Err(none()),
    };
    let rules = match read(kind, &request.body) {
        Ok(rules) if rules.is_empty() => return Ok(changes(code::EMPTY, "the body: a list without a rule", &[])),
        Ok(rules) => rules,
        Err(ApiError::BadRequest(text)) => return Ok(changes(code::UNREADABLE, &text, &[])),
        Err(error) => return Err(error),
    };
    let found = Acting { context, caller, request, kind, act }.all(rules).await?;
    Ok(told(kind, &found))
}

struct Acting<'a> {
    context: &'a Context,
    caller: &'a Caller,
    request: &'a Request,
    kind: Kind,
    act: Act,
}

impl Acting<'_> {
    /// Checks all rules of the request before any change, as Polaris' own server does; then applies each separately.
    async fn all(&self, rules: Vec<Rule>) -> Result<Vec<Outcome>, ApiError> {
        let registry = &self.context.registry;
        if self.act != Act::Create {
            // Also finds a rule that another node has just committed.
            registry.kv_settle().await?;
        }
        let mut ready = Vec::with_capacity(rules.len());
        let mut refused = Vec::new();
        for rule in rules {
            match self.prepare(rule)? {
                Ok(rule) => ready.push(rule),
                Err(error) => refused.push(Err(error)),
            }
        }
        if !refused.is_empty() {
            return Ok(refused);
        }
        let mut outcomes = Vec::with_capacity(ready.len());
        for rule in ready {
            outcomes.push(match rule {
                Some(rule) => self.carry_out(rule).await,
                // A missing rule in a deletion.
                None => Err(Refused::new(code::OK, "execute success")),
            });
        }
        Ok(outcomes)
    }

    /// Checks the caller's permission and the rule. Returns `None` for the deletion of a missing rule.
    fn prepare(&self, mut rule: Rule) -> Result<Result<Option<Ready>, Refused>, ApiError> {
        rule.set_editable(false);
        let limits = &self.context.registry.rule_limits();
        if self.act == Act::Create {
            let home = match rule.home() {
                Ok(home) => home,
                Err(error) => return Ok(Err(error.into())),
            };
            self.caller.needs(Access::Write, Resource::OPERATOR, home.as_str())?;
            // The client's values of these are discarded.
            rule.set_stamp(&home, Stamp::default());
            return Ok(check(&mut rule, &home, limits).map(|bytes| Some(Ready { rule, home, bytes })));
        }
        let id = rule.id().to_owned();
        if id.is_empty() {
            return Ok(Err(Refused::new(self.kind.bad_id(), "id: there is none")));
        }
        let Some(known) = self.find(&id) else {
            return Ok(match self.act {
                Act::Delete => Ok(None),
                _ => Err(Refused::new(self.kind.not_found(), format!("no rule with the id {id:?}"))),
            });
        };
        let home = NamespaceName::new(known.namespace())?;
        self.caller.needs(Access::Write, Resource::OPERATOR, home.as_str())?;
        if self.act != Act::Update {
            return Ok(Ok(Some(Ready { rule, home, bytes: 0 })));
        }
        if !is_all(rule.namespace()) && rule.namespace() != home.as_str() {
            let text = format!("namespace: the rule belongs to {:?} and stays there; make another one", home.as_str());
            return Ok(Err(Refused::new(code::INVALID, text)));
        }
        rule.set_stamp(&home, known.stamp());
        Ok(check(&mut rule, &home, limits).map(|bytes| Some(Ready { rule, home, bytes })))
    }

    /// Returns the rule with this id, if the caller may read it.
    fn find(&self, id: &str) -> Option<Rule> {
        let hexadecimal = id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if id.len() != ID || !hexadecimal {
            return None;
        }
        let found = self.context.registry.rules_called(&id[..OWNER], &self.name_of(id));
        let mut rules = found.iter().filter_map(|entry| rule_of(entry));
        rules.find(|rule| self.caller.may(Access::Read, Resource::OPERATOR, rule.namespace()))
    }

    /// Returns the name of the rule in the store.
    fn name_of(&self, id: &str) -> String {
        format!("{}/{id}", self.kind.name())
    }

    async fn carry_out(&self, ready: Ready) -> Outcome {
        let now = now();
        let made = match self.act {
            Act::Create => Some(ids(&ready.home)?),
            _ => None,
        };
        let revision = random()?;
        let registry = &self.context.registry;
        let decided = registry
            .change_rules(&ready.home, |entries| self.decide(&ready, entries, made.as_deref(), &revision, &now));
        let (rule, changed) = decided.await?;
        if changed {
            let action = format!("polaris/{}/{}", self.kind.name(), self.act.name());
            self.context.audit(self.caller, self.request.peer, &action, ready.home.as_str(), rule.id());
        }
        Ok(rule)
    }

    /// Decides, with all rules of the namespace, which rows to write. Also returns the resulting rule, and true if it was changed.
    fn decide(
        &self,
        ready: &Ready,
        entries: &[Arc<Entry>],
        made: Option<&[String]>,
        revision: &str,
        now: &str,
    ) -> Result<(Vec<RuleWrite>, (Rule, bool)), Refused> {
        let find = |id: &str| {
            let name = self.name_of(id);
            entries.iter().find(|entry| crate::kv::rule_name(entry) == Some(name.as_str()))
        };
        let gone = || Refused::new(self.kind.not_found(), format!("no rule with the id {:?}", ready.rule.id()));
        let known = find(ready.rule.id()).and_then(|entry| rule_of(entry).map(|rule| (rule, entry.flags)));
        let mut rule = ready.rule.clone();
        let mut bytes = ready.bytes;
        let stamp = match (self.act, &known) {
            (Act::Create, _) => {
                let id = made.into_iter().flatten().find(|id| find(id).is_none());
                let id = id.cloned().ok_or_else(|| Refused::new(code::FAILED, "no id was free; try again"))?;
                let etime = if rule.is_enabled() { now } else { "" };
                let (ctime, mtime, etime) = (now.to_owned(), now.to_owned(), etime.to_owned());
                Stamp { id, revision: revision.to_owned(), ctime, mtime, etime }
            }
            (Act::Delete, None) => return Ok((Vec::new(), (rule, false))),
            (_, None) => return Err(gone()),
            (Act::Delete, Some((known, _))) => {
                let write = RuleWrite::Delete(self.name_of(known.id()));
                return Ok((vec![write], (known.clone(), true)));
            }
            (Act::Update | Act::Enable, Some((known, counted))) => {
                if self.act == Act::Enable {
                    rule = known.clone();
                    rule.enable_as(&ready.rule);
                    bytes = usize::try_from(*counted).unwrap_or(usize::MAX);
                }
                // A request for the existing state changes nothing.
                rule.set_stamp(&ready.home, known.stamp());
                if rule == *known {
                    return Ok((Vec::new(), (rule, false)));
                }
                let before = known.stamp();
                let etime = if rule.is_enabled() && !known.is_enabled() { now.to_owned() } else { before.etime };
                Stamp { revision: revision.to_owned(), mtime: now.to_owned(), etime, ..before }
            }
        };
        rule.set_stamp(&ready.home, stamp);
        // Includes the fields set by the registry.
        let value = rule.encode();
        let bytes = bytes.max(value.len());
        self.room(&rule, bytes, entries)?;
        let write = RuleWrite::Put(self.name_of(rule.id()), value.into(), bytes as u64);
        Ok((vec![write], (rule, true)))
    }

    /// Rejects rules above the namespace's limits, and a second rule with the same name.
    fn room(&self, rule: &Rule, bytes: usize, entries: &[Arc<Entry>]) -> Result<(), Refused> {
        let limits = self.context.registry.rule_limits();
        let name = self.name_of(rule.id());
        let others = || entries.iter().filter(|entry| crate::kv::rule_name(entry) != Some(name.as_str()));
        if others().count() >= limits.count {
            let value = limits.count as u64;
            let error = ApiError::TooLarge {
                what: "the number of the namespace's rules",
                limit: "registry.rules.count",
                value,
            };
            return Err(Refused::new(code::FULL, error.to_string()));
        }
        let whole =
            others().map(|entry| entry.flags.max(entry.value.len() as u64)).fold(bytes as u64, u64::saturating_add);
        if whole > limits.bytes as u64 {
            let value = limits.bytes as u64;
            let error =
                ApiError::TooLarge { what: "all of the namespace's rules", limit: "registry.rules.bytes", value };
            return Err(Refused::new(code::FULL, error.to_string()));
        }
        if let Some(exists) = self.kind.exists() {
            let mut rules = others().filter_map(|entry| rule_of(entry)).filter(|other| other.kind() == self.kind);
            if rules.any(|other| other.name() == rule.name()) {
                return Err(Refused::new(exists, format!("there is another rule called {:?}", rule.name())));
            }
        }
        Ok(())
    }
}

/// Returns random bytes as hexadecimal digits.
fn random() -> Result<String, Refused> {
    let mut bytes = [0u8; ID / 2];
    let failed = |error: getrandom::Error| WriteError::Unavailable { reason: error.to_string().into() };
    getrandom::fill(&mut bytes).map_err(failed)?;
    let mut text = String::with_capacity(ID);
    for byte in bytes {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// Returns candidate ids for a rule of `home`; the first free one is used. The beginning of an id identifies the namespace.
fn ids(home: &NamespaceName) -> Result<Vec<String>, Refused> {
    let space = NamespaceName::of_rules(home);
    let owner = space.rules_digest().and_then(|digest| digest.get(..OWNER)).unwrap_or_default();
    (0..ATTEMPTS).map(|_| Ok(format!("{owner}{}", &random()?[OWNER..]))).collect()
}

/// Returns the time in the format of Polaris' own server.
fn now() -> String {
    crate::api::polaris::time_of(std::time::SystemTime::now())
}

/// Returns the answer to a change.
fn told(kind: Kind, found: &[Outcome]) -> Reply {
    let responses: Vec<Value> = found.iter().map(|outcome| response(kind, outcome)).collect();
    let all = found.iter().map(|outcome| match outcome {
        Ok(_) => (code::OK, DONE),
        Err(Refused { code, info }) => (*code, info.as_str()),
    });
    outcomes(&all.collect::<Vec<_>>(), &responses)
}

fn response(kind: Kind, outcome: &Outcome) -> Value {
    let mut fields = Map::new();
    match outcome {
        Ok(rule) => {
            fields.insert("code".into(), code::OK.into());
            fields.insert("info".into(), DONE.into());
            if kind == Kind::Limit {
                fields.insert("rateLimit".into(), show(rule, false));
            } else {
                fields.insert("data".into(), show(rule, true));
            }
        }
        Err(Refused { code, info }) => {
            fields.insert("code".into(), (*code).into());
            fields.insert("info".into(), info.as_str().into());
        }
    }
    fields.into()
}
