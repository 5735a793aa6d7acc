//! Changes of services: `POST`, `PUT` and `POST …/delete` of `/naming/v1/services`. A service that was created has a record, and exists without
//! instances.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::super::lists::{changes, outcomes};
use super::super::{Asking, code, code_of};
use crate::api::{AT_ONCE, ApiError, RESERVED, Reply, Request, namespace};
use crate::rights::{Access, Resource};
use crate::{Metadata, NamespaceName, ServiceKey, WriteError};

/// The metadata key of a record's [`FIELDS`]: an object of texts, in JSON.
const KEPT: &str = "kingpost.polaris";
/// Fields of a record beside its metadata. They are shown and have no effect.
const FIELDS: [&str; 9] =
    ["ports", "business", "department", "comment", "owners", "cmdb_mod1", "cmdb_mod2", "cmdb_mod3", "platform_id"];
/// Fields that an answer has and a request may repeat.
const SHOWN_ONLY: [&str; 9] = [
    "id",
    "revision",
    "ctime",
    "mtime",
    "token",
    "total_instance_count",
    "healthy_instance_count",
    "editable",
    "deleteable",
];
/// Most entries of a service's metadata, as at Polaris.
const MOST_ENTRIES: usize = 64;

/// A change of the services of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Create,
    Update,
    Delete,
}

/// A service of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    name: String,
    namespace: String,
    metadata: Option<BTreeMap<String, String>>,
    fields: BTreeMap<String, String>,
}

/// Returns the fields of a service's record that are no metadata.
pub(super) fn fields(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.get(KEPT).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

impl Sent {
    /// Reads a service. The error describes the first field that is wrong.
    fn read(value: &Value) -> Result<Sent, String> {
        let object = value.as_object().ok_or("expected a list of services")?;
        let mut sent = Sent::default();
        // A client of Polaris writes what it does not set as null.
        for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
            let text = || value.as_str().map(str::to_owned).ok_or_else(|| format!("{name}: expected text"));
            match name.as_str() {
                "name" => sent.name = text()?,
                "namespace" => sent.namespace = text()?,
                "metadata" => {
                    let pairs = serde_json::from_value(value.clone());
                    sent.metadata = Some(pairs.map_err(|_| "metadata: expected an object of texts".to_owned())?);
                }
                other if FIELDS.contains(&other) => drop(sent.fields.insert(other.to_owned(), text()?)),
                other if SHOWN_ONLY.contains(&other) => {}
                other => return Err(format!("{other}: not known")),
            }
        }
        Ok(sent)
    }

    /// Returns the refusal of a service that no change could be about.
    fn refusal(&self, act: Act) -> Option<(u32, &'static str)> {
        if NamespaceName::new(&self.namespace).is_err() {
            return Some((code::BAD_NAMESPACE, "invalid namespace name"));
        }
        let key = NamespaceName::new(&self.namespace).map(|ns| ServiceKey::new(&ns, &self.name));
        if !matches!(key, Ok(Ok(_))) {
            return Some((code::BAD_SERVICE, "invalid service name"));
        }
        let metadata = self.metadata.iter().flatten();
        let is_bad = act != Act::Delete
            && (metadata.clone().count() > MOST_ENTRIES || metadata.clone().any(|(key, _)| key.starts_with(RESERVED)));
        is_bad.then_some((
            code::BAD_METADATA,
            "the length of metadata is too long or metadata contains invalid characters",
        ))
    }

    /// Returns the metadata of the service's record: what is sent, over what the record has; what other fronts keep in it stays.
    fn record(self, before: Option<&Metadata>) -> Result<Metadata, ApiError> {
        let known = || before.iter().flat_map(|metadata| metadata.iter());
        let mut pairs: BTreeMap<String, String> = known()
            .filter(|(key, _)| self.metadata.is_none() || key.starts_with(RESERVED))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        pairs.extend(self.metadata.into_iter().flatten());
        let mut all = before.map(fields).unwrap_or_default();
        all.extend(self.fields);
        all.retain(|_, value| !value.is_empty());
        if all.is_empty() {
            pairs.remove(KEPT);
        } else {
            pairs.insert(KEPT.into(), json!(all).to_string());
        }
        Ok(Metadata::from_pairs(&pairs)?)
    }
}

impl Asking<'_> {
    /// Changes each service of a request, after a check of all of them, as Polaris' own server does.
    pub(super) async fn change_services(&self, request: &Request, act: Act) -> Result<Reply, ApiError> {
        let list: Vec<Value> = match serde_json::from_slice(&request.body) {
            Ok(list) => list,
            Err(error) => return Ok(changes(code::UNREADABLE, &error.to_string(), &[])),
        };
        if list.is_empty() {
            return Ok(changes(code::EMPTY, "the body: a list without a service", &[]));
        }
        self.context.batch("the list of services", list.len())?;
        let sent: Vec<Sent> = match list.iter().map(Sent::read).collect() {
            Ok(sent) => sent,
            Err(error) => return Ok(changes(code::UNREADABLE, &error, &[])),
        };
        let shown: Vec<Value> =
            sent.iter().map(|sent| json!({ "name": sent.name, "namespace": sent.namespace })).collect();
        let refused: Vec<_> = sent.iter().zip(&shown).filter_map(|(sent, it)| Some((sent.refusal(act)?, it))).collect();
        let found: Vec<(u32, String, &Value)> = if refused.is_empty() {
            let each: Vec<_> = sent.into_iter().map(|sent| self.change_service(sent, act)).collect();
            let done: Vec<_> = stream::iter(each).buffered(AT_ONCE).collect().await;
            let done = done.into_iter().map(|it| it.unwrap_or_else(|error| (code_of(&error), error.to_string())));
            done.zip(&shown).map(|((code, info), it)| (code, info, it)).collect()
        } else {
            refused.into_iter().map(|((code, info), it)| (code, info.to_owned(), it)).collect()
        };
        let responses: Vec<Value> =
            found.iter().map(|(code, info, it)| json!({ "code": code, "info": info, "service": it })).collect();
        let all: Vec<_> = found.iter().map(|(code, info, _)| (*code, info.as_str())).collect();
        Ok(outcomes(&all, &responses))
    }

    async fn change_service(&self, sent: Sent, act: Act) -> Result<(u32, String), ApiError> {
        let answer = |code, info: &str| Ok((code, info.to_owned()));
        let ns = namespace(&sent.namespace)?;
        let key = ServiceKey::new(&ns, &sent.name)?;
        self.caller.needs(Access::Write, Resource::Record(key.name()), ns.as_str())?;
        let registry = &self.context.registry;
        let known = registry.snapshot(&key);
        let (written, action) = match (act, known) {
            (Act::Create, Some(_)) => return answer(code::EXISTS, "existed resource"),
            (Act::Update, None) => return answer(code::NOT_FOUND, "not found resource"),
            (Act::Delete, None) => return answer(code::OK, "execute success"),
            (Act::Create, None) => (registry.put_service(key.clone(), sent.record(None)?).await, "put_service"),
            (Act::Update, Some(known)) => {
                let record = sent.record(known.metadata.as_ref())?;
                (registry.put_service(key.clone(), record).await, "put_service")
            }
            (Act::Delete, Some(_)) => (registry.delete_service(&key).await, "delete_service"),
        };
        match written {
            Ok(written) if written.changed() => {
                self.context.audit(&self.caller, self.peer, action, ns.as_str(), key.name());
                answer(code::OK, "execute success")
            }
            Ok(_) if act == Act::Update => answer(code::SAME, "update data is no change, no need to update"),
            Ok(_) => answer(code::OK, "execute success"),
            Err(WriteError::NotEmpty { .. }) => {
                answer(code::SERVICE_HAS_INSTANCES, "some instances existed in service")
            }
            Err(WriteError::NotFound { .. }) if act == Act::Delete => answer(code::OK, "execute success"),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn services_of_requests() {
        let read = |value: Value| Sent::read(&value);
        let all = read(
            json!({ "name": "shop", "namespace": "default", "metadata": {"a": "b"}, "owners": "x", "token": null }),
        );
        assert_eq!(all.unwrap().fields, BTreeMap::from([("owners".to_owned(), "x".to_owned())]));
        assert_eq!(read(json!({ "name": "shop", "revision": "1", "total_instance_count": 3 })).unwrap().name, "shop");
        for wrong in [json!([]), json!({ "name": 1 }), json!({ "metadata": {"a": 1} }), json!({ "export_to": ["a"] })] {
            assert!(read(wrong.clone()).is_err(), "{wrong}: taken and then dropped");
        }
    }

    #[test]
    fn services_that_are_refused() {
        let many: BTreeMap<String, String> = (0..65).map(|n| (n.to_string(), String::new())).collect();
        for (sent, expected) in [
            (json!({ "name": "shop", "namespace": "default" }), None),
            (json!({ "name": "shop" }), Some(code::BAD_NAMESPACE)),
            (json!({ "namespace": "default" }), Some(code::BAD_SERVICE)),
            (json!({ "name": "shop", "namespace": "default", "metadata": many }), Some(code::BAD_METADATA)),
            (
                json!({ "name": "shop", "namespace": "default", "metadata": {"kingpost.a": ""} }),
                Some(code::BAD_METADATA),
            ),
        ] {
            let found = Sent::read(&sent).unwrap().refusal(Act::Create).map(|(code, _)| code);
            assert_eq!(found, expected, "{sent}");
        }
    }

    #[test]
    fn a_record_keeps_what_a_request_does_not_name() {
        let read = |value: Value| Sent::read(&value).unwrap();
        let first = read(json!({ "metadata": {"a": "1"}, "owners": "x", "comment": "c" })).record(None).unwrap();
        let other: BTreeMap<&str, &str> = first.iter().chain([("kingpost.nacos", "0 {}")]).collect();
        let before = Metadata::from_pairs(&other).unwrap();
        let after = read(json!({ "comment": "", "business": "b" })).record(Some(&before)).unwrap();
        assert_eq!((after.get("a"), after.get("kingpost.nacos")), (Some("1"), Some("0 {}")));
        let kept = fields(&after);
        assert_eq!(kept.keys().map(|key| key.as_str()).collect::<Vec<_>>(), ["business", "owners"]);
        let replaced = read(json!({ "metadata": {"b": "2"} })).record(Some(&after)).unwrap();
        assert_eq!((replaced.get("a"), replaced.get("b")), (None, Some("2")));
        assert_eq!(replaced.get("kingpost.nacos"), Some("0 {}"));
    }
}
