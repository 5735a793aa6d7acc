//! Requests of Consul's clients: JSON with keys in any case, with or without underscores.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::checks::{self, Probe, ServiceCheck};
use crate::api::identity::CLIENT_ID;
use crate::api::{ApiError, RESERVED, parse_duration};
use crate::model::OWN_BYTES;
use crate::{Health, Instance, Location, Metadata, Revision, visible};

/// The metadata key of [`Kept`].
pub(super) const KEPT: &str = "kingpost.consul";
/// The metadata key of a check's id other than `service:ID`, for the index. Each of several checks has its own key: this one, a dot and the id.
pub(super) const CHECK_ID: &str = "kingpost.check";
/// The metadata key of the client's address in a registration, if it is not the service's address. Indexed: it distinguishes an agent's client from
/// clients of other agents with the same service id.
pub(super) const FROM: &str = crate::AGENT;
/// Factor between Consul's weights, small numbers around 1, and ours, around 100.
pub(super) const WEIGHT_SCALE: u16 = 100;

/// Attributes of a Consul instance that the model lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tags: Vec<String>,
    /// Name of the node in the catalog; for a service registered through an agent's API, the address of its host. Stored under a metadata key of its
    /// own, [`crate::ON`], so that the instances on a node are found; older rows have it here.
    #[serde(skip_serializing)]
    pub(super) node: String,
    /// True if the service was registered through an agent's API.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) agent: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) check_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) notes: String,
    /// Names and notes of several checks, by id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) checks: BTreeMap<String, Described>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tagged_addresses: Option<Value>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) enable_tag_override: bool,
    /// The weight in the state warning, if given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warning_weight: Option<u16>,
    /// The weight in the state passing, if it is more than the model's largest weight stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passing_weight: Option<u16>,
    /// Address of the node, if it differs from the service's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_id: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) node_meta: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) node_tagged_addresses: BTreeMap<String, String>,
    /// Reason of the maintenance of a node or service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) reason: String,
    /// The first revision that the instance may have had; 0 in older rows.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) created: u64,
    /// Definition of a check of the catalog, which its writer carries out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) definition: Option<Value>,
    /// Tags of the agent's registration, while others have set the tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) own_tags: Option<Vec<String>>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Attributes of one of several Consul checks that the model lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Described {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) notes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) definition: Option<Value>,
}

impl Kept {
    /// Takes over what a registration does not say: when the instance was first registered, and why it is in maintenance. `known` is the instance
    /// that is there, and `now` the registry's revision.
    pub(super) fn take_over(&mut self, known: Option<&Instance>, now: Revision) {
        let Some(instance) = known else {
            self.created = now.0.saturating_add(1);
            return;
        };
        let before = Kept::of(instance);
        self.created = before.created(instance);
        if instance.isolate {
            self.reason = before.reason;
        }
    }

    /// Returns the revision to show as that of an instance's first registration.
    pub(super) fn created(&self, instance: &Instance) -> u64 {
        match self.created {
            0 => instance.revision.0,
            // Another history of the store may count less far.
            created => created.min(instance.revision.0),
        }
    }

    /// Returns the attributes kept with an instance; only its node if another front registered it. If the catalog has an entry for the node, the
    /// node's attributes are taken from there.
    pub(super) fn of(instance: &Instance) -> Kept {
        let parsed = instance.metadata.get(KEPT).and_then(|text| serde_json::from_str(text).ok());
        let mut kept: Kept = parsed.unwrap_or_default();
        if let Some(node) = instance.metadata.get(crate::ON) {
            node.clone_into(&mut kept.node);
        }
        let of_node = instance.machines.iter().find(|machine| machine.metadata.get(crate::ON) == Some(&kept.node));
        if let Some(machine) = of_node {
            let of_node = Kept::of(machine);
            // An agent's call gives only the name of a node.
            if !of_node.agent {
                kept.node_address = machine.host.to_string();
                kept.node_id = of_node.node_id;
                kept.node_meta = of_node.node_meta;
                kept.node_tagged_addresses = of_node.node_tagged_addresses;
            }
        }
        kept
    }
}

/// An object with keys looked up regardless of case and underscores.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    map: &'a Map<String, Value>,
    /// Name of the object in messages.
    name: &'a str,
}

impl<'a> Object<'a> {
    pub(super) fn new(value: &'a Value, name: &'a str) -> Result<Object<'a>, ApiError> {
        let map = value.as_object().ok_or_else(|| ApiError::bad(format!("{name}: expected an object")))?;
        Ok(Object { map, name })
    }

    /// Returns the value of a key, given in lower case without underscores. `null` counts as missing.
    pub(super) fn get(&self, wanted: &str) -> Option<&'a Value> {
        let same = |key: &str| {
            key.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase()).eq(wanted.bytes())
        };
        self.map.iter().find(|(key, _)| same(key)).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &str, expected: &str) -> ApiError {
        ApiError::bad(format!("{}.{key}: expected {expected}", self.name))
    }

    /// Rejects keys that would be ignored, if they have a value.
    pub(super) fn refuse(&self, keys: &[&str]) -> Result<(), ApiError> {
        let says = |value: &Value| match value {
            Value::Null => false,
            Value::Bool(flag) => *flag,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
        };
        match keys.iter().find(|key| self.get(key).is_some_and(says)) {
            Some(key) => Err(ApiError::bad(format!("{}.{key}: not supported", self.name))),
            None => Ok(()),
        }
    }

    /// Returns a text; empty if the key is missing.
    pub(super) fn text(&self, key: &str) -> Result<&'a str, ApiError> {
        match self.get(key) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.wrong(key, "text")),
        }
    }

    /// Returns a whole number; Python's clients sometimes send it as text.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => text.parse().map(Some).map_err(|_| self.wrong(key, "a whole number")),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| self.wrong(key, "a whole number")),
        }
    }

    /// Returns a weight, from `least` to 65535 as at Consul.
    fn weight(&self, key: &str, least: u16) -> Result<Option<u16>, ApiError> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        let weight = u16::try_from(number).ok().filter(|weight| *weight >= least);
        weight.map(Some).ok_or_else(|| self.wrong(key, &format!("a weight from {least} to 65535, found {number}")))
    }

    pub(super) fn port(&self, key: &str) -> Result<u16, ApiError> {
        let number = self.number(key)?.unwrap_or(0);
        u16::try_from(number).map_err(|_| self.wrong(key, "a port from 0 to 65535"))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        match self.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// Returns a time given as text; a number is in nanoseconds, as Go encodes it.
    pub(super) fn duration(&self, key: &str) -> Result<Option<Duration>, ApiError> {
        let expected = "a time such as 10s";
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => parse_duration(text).map(Some).ok_or_else(|| self.wrong(key, expected)),
            Some(value) => {
                let nanos = value.as_u64().ok_or_else(|| self.wrong(key, expected))?;
                Ok((nanos > 0).then(|| Duration::from_nanos(nanos)))
            }
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(|| self.wrong(key, "a list of texts"))?;
        list.iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| self.wrong(key, "a list of texts")))
            .collect()
    }

    pub(super) fn pairs(&self, key: &str) -> Result<BTreeMap<String, String>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(BTreeMap::new()) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object of texts"))?;
        map.iter()
            .map(|(name, value)| match value {
                Value::String(text) => Ok((name.clone(), text.clone())),
                _ => Err(self.wrong(key, "an object of texts")),
            })
            .collect()
    }
}

/// A service in a registration with an agent or the catalog.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) weight: u16,
    pub(super) location: Location,
    /// Metadata of the client.
    pub(super) meta: BTreeMap<String, String>,
    pub(super) kept: Kept,
    /// Checks of the service, each with an id.
    pub(super) checks: Vec<Probe>,
}

impl Service {
    /// Returns the metadata of the instance: the client's own entries, and the front's for it and its `checks`.
    ///
    /// # Errors
    /// An entry is too long.
    pub(super) fn metadata(
        &self,
        kept: &Kept,
        checks: &[ServiceCheck],
        from: Option<&str>,
    ) -> Result<Metadata, ApiError> {
        let mut meta = self.meta.clone();
        checks::keep(&mut meta, kept, &self.id, checks);
        meta.insert(CLIENT_ID.into(), self.id.clone());
        if let Some(from) = from {
            meta.insert(FROM.into(), from.into());
        }
        within_own_bytes(&meta)?;
        Ok(Metadata::from_pairs(&meta)?)
    }
}

/// Rejects more tags, notes, tagged addresses and node metadata than fit into the registry's own entries, in a client's words.
pub(super) fn within_own_bytes(meta: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let own = meta.iter().filter(|(key, _)| key.starts_with(RESERVED));
    match own.map(|(key, value)| key.len() + value.len()).sum::<usize>() {
        bytes if bytes > OWN_BYTES => Err(ApiError::bad(format!(
            "Tags, with the tagged addresses, the node's metadata, and the names, notes and definitions of checks: {bytes} bytes are more than \
             the limit of {OWN_BYTES}"
        ))),
        _ => Ok(()),
    }
}

/// Parses a boolean, in all spellings that Consul accepts.
pub(super) fn truth(said: Option<&str>) -> Option<bool> {
    match said {
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Some(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Some(false),
        _ => None,
    }
}

/// Parses `?enable=`.
pub(super) fn flag(enable: Option<&str>) -> Result<bool, ApiError> {
    let wrong = || ApiError::bad(format!("enable={}: expected true or false", enable.unwrap_or_default()));
    truth(enable).ok_or_else(wrong)
}

/// Parses the name of a status.
pub(super) fn health(name: &str) -> Option<Health> {
    match name {
        "passing" => Some(Health::Passing),
        "warning" => Some(Health::Warning),
        "critical" => Some(Health::Critical),
        _ => None,
    }
}

/// Returns the name of a status.
pub(super) fn status(health: Health) -> &'static str {
    match health {
        Health::Passing => "passing",
        Health::Warning => "warning",
        Health::Critical => "critical",
    }
}

/// Form of a service in a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// With an agent.
    Agent,
    /// In the catalog.
    Catalog,
}

impl Form {
    fn name_key(self) -> &'static str {
        match self {
            Form::Agent => "name",
            Form::Catalog => "service",
        }
    }

    /// Returns the least weight. Clients of the catalog in Go and Rust send zeroes where the application gave no weights; an agent refuses them.
    fn least_weight(self) -> u16 {
        match self {
            Form::Agent => 1,
            Form::Catalog => 0,
        }
    }
}

/// Parses a service in a registration.
pub(super) fn service(value: &Value, form: Form) -> Result<Service, ApiError> {
    let object = Object::new(value, "the service")?;
    let name = object.text(form.name_key())?;
    if name.is_empty() {
        return Err(ApiError::bad("the service has no name"));
    }
    let id = match object.text("id")? {
        "" => name,
        id => id,
    };
    if !matches!(object.text("kind")?, "" | "typical")
        || object.get("connect").is_some_and(|connect| *connect != Value::Object(Map::new()))
    {
        return Err(ApiError::bad("Kind and Connect: the service mesh is not supported"));
    }
    object.refuse(&["socketpath", "ports", "proxy", "partition", "peername"])?;
    let (passing, warning_weight) = match object.get("weights") {
        Some(weights) => {
            let weights = Object::new(weights, "Weights")?;
            let (passing, warning) = (weights.weight("passing", form.least_weight())?, weights.weight("warning", 0)?);
            match (passing.unwrap_or(1), warning) {
                (0, _) => (1, None),
                // As at Consul, weights without one for warnings give no traffic to a service with a warning.
                (passing, warning) => (passing, Some(warning.unwrap_or(0)).filter(|warning| *warning != 1)),
            }
        }
        None => (1, None),
    };
    let location = match object.get("locality") {
        Some(locality) => {
            let locality = Object::new(locality, "Locality")?;
            Location {
                region: locality.text("region")?.into(),
                zone: locality.text("zone")?.into(),
                ..Location::default()
            }
        }
        None => Location::default(),
    };
    let weight = passing.saturating_mul(WEIGHT_SCALE);
    let meta = object.pairs("meta")?;
    if let Some(key) = meta.keys().find(|key| key.starts_with(RESERVED)) {
        return Err(ApiError::bad(format!("Meta: {key:?} begins with {RESERVED:?}, which is reserved")));
    }
    let checks = checks::of_service(&object, id)?;
    let tags = object.texts("tags")?;
    tags.iter().try_for_each(|tag| visible("tag", tag))?;
    let kept = Kept {
        tags,
        tagged_addresses: object.get("taggedaddresses").filter(|value| value.is_object()).cloned(),
        enable_tag_override: object.flag("enabletagoverride")?,
        warning_weight,
        passing_weight: (weight == u16::MAX).then_some(passing),
        ..Kept::default()
    };
    Ok(Service {
        id: id.to_owned(),
        name: name.to_owned(),
        address: object.text("address")?.to_owned(),
        port: object.port("port")?,
        weight,
        location,
        meta,
        kept,
        checks,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_clients_send() {
        for sent in [
            // Go and Node.
            json!({"ID": "w1", "Name": "web", "Tags": ["a"], "Port": 80, "Meta": {"v": "1"}, "Weights": {"Passing": 2, "Warning": 1},
                   "Check": {"TTL": "10s", "DeregisterCriticalServiceAfter": "1m"}}),
            // Python: lower case, checks as a list.
            json!({"id": "w1", "name": "web", "tags": ["a"], "port": 80, "meta": {"v": "1"}, "weights": {"passing": 2},
                   "checks": [{"ttl": "10s", "DeregisterCriticalServiceAfter": "1m"}]}),
            json!({"id": "w1", "name": "web", "tags": ["a"], "port": "80", "meta": {"v": "1"}, "weights": {"passing": 2},
                   "check": {"ttl": "10s", "deregister_critical_service_after": 60_000_000_000_u64}, "checks": null}),
        ] {
            let read = service(&sent, Form::Agent).unwrap();
            assert_eq!(
                (read.id.as_str(), read.name.as_str(), read.port, read.weight),
                ("w1", "web", 80, 200),
                "{sent}"
            );
            assert_eq!(read.meta.get("v").map(String::as_str), Some("1"));
            assert_eq!(read.kept.tags, ["a"]);
            let check = read.checks[0].check.clone().unwrap();
            assert_eq!(check.time_to_live(), Some(Duration::from_secs(10)));
            assert_eq!(check.deregister_after, Some(Duration::from_secs(60)));
        }
    }

    #[test]
    fn what_is_refused() {
        for (sent, names) in [
            (json!([]), "object"),
            (json!({"ID": "x"}), "name"),
            (json!({"Name": "x", "Port": 70000}), "65535"),
            (json!({"Name": "x", "Port": -1}), "number"),
            (
                json!({"Name": "x", "Weights": {"Passing": 0}}),
                "Weights.passing: expected a weight from 1 to 65535, found 0",
            ),
            (
                json!({"Name": "x", "Weights": {"Passing": 1, "Warning": 65536}}),
                "Weights.warning: expected a weight from 0 to 65535",
            ),
            (
                json!({"Name": "x", "Check": {"TCP": "a:1", "FailuresBeforeCritical": 100}}),
                "failuresbeforecritical: expected at most 99",
            ),
            (json!({"Name": "x", "Tags": "a"}), "list"),
            (json!({"Name": "x", "Meta": {"a": 1}}), "texts"),
            (json!({"Name": "x", "Meta": {"kingpost.consul": "{}"}}), "reserved"),
            (json!({"Name": "x", "Kind": "mesh-gateway"}), "mesh"),
            (json!({"Name": "x", "Check": {"Args": ["sh"], "Interval": "1s"}}), "args"),
            (json!({"Name": "x", "Check": {"UDP": "a:1", "TCPUseTLS": true}}), "tls"),
            (json!({"Name": "x", "Check": {"UDP": "a:1", "H2PING": "a:1"}}), "one of"),
            (json!({"Name": "x", "Check": {"UDP": "a:1", "TCP": "a:1"}}), "one of"),
            (json!({"Name": "x", "Check": {"UDP": "a:1", "Method": "POST"}}), "method"),
            (json!({"Name": "x", "Check": {"TTL": "soon"}}), "time"),
            (json!({"Name": "x", "Check": {"TTL": "1s", "TCP": "a:1"}}), "one of"),
            (json!({"Name": "x", "Check": {"Status": "fine"}}), "passing"),
            (json!({"Name": "x", "Checks": [{"CheckID": "a", "TTL": "1s"}, {"CheckID": "a", "TTL": "2s"}]}), "twice"),
            (json!({"Name": "x", "Checks": [{"CheckID": "a".repeat(120), "TTL": "1s"}, {"TTL": "2s"}]}), "100"),
        ] {
            let error = service(&sent, Form::Agent).unwrap_err().to_string();
            assert!(error.contains(names), "{sent}: {error}");
        }
    }

    #[test]
    fn a_catalog_without_weights_has_zeroes() {
        for (weights, expected) in [
            (json!({"Passing": 0, "Warning": 0}), 1),
            (json!({"Passing": 0, "Warning": 3}), 1),
            (json!({"Passing": 7, "Warning": 0}), 7),
            (json!(null), 1),
        ] {
            let read = service(&json!({"Service": "x", "Weights": weights}), Form::Catalog).unwrap();
            assert_eq!(read.weight, expected * WEIGHT_SCALE, "{weights}");
        }
    }
}
